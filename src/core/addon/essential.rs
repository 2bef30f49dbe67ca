//! What a cluster needs to its end: while its machines are deleted, Cluster API drains nodes, and volumes and load
//! balancers go. Without its network or its cloud controller manager none of that works.

use serde_json::Value;

/// What a workload is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Essential {
    /// It puts the network onto nodes: a `DaemonSet` that mounts the host's directories of CNI.
    Network,
    /// It ties nodes to their cloud: its image, command or arguments name a cloud-controller-manager.
    Cloud,
}

impl Essential {
    /// How messages call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Network => "the network of the nodes (CNI)",
            Self::Cloud => "the cloud controller manager",
        }
    }
}

/// What an object is needed for to the end, if it is.
pub fn of(object: &Value) -> Option<Essential> {
    let kind = object.get("kind").and_then(Value::as_str)?;
    if !matches!(kind, "DaemonSet" | "Deployment" | "StatefulSet") {
        return None;
    }
    let pod = object.pointer("/spec/template/spec")?;
    let list = |key: &str| pod.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let is_cni =
        |path: &str| ["/etc/cni", "/opt/cni"].iter().any(|dir| path == *dir || path.starts_with(&format!("{dir}/")));
    let mounts_cni = |volume: &Value| volume.pointer("/hostPath/path").and_then(Value::as_str).is_some_and(is_cni);
    if kind == "DaemonSet" && list("volumes").iter().any(mounts_cni) {
        return Some(Essential::Network);
    }
    let containers = list("containers").iter();
    let mut words = containers.flat_map(|container| {
        let own = |key: &str| container.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        container.get("image").into_iter().chain(own("command")).chain(own("args")).filter_map(Value::as_str)
    });
    words.any(|word| word.contains("cloud-controller-manager")).then_some(Essential::Cloud)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn network_and_cloud_are_known_by_what_they_run() {
        let object = |kind: &str, pod: Value| json!({"kind": kind, "spec": {"template": {"spec": pod}}});
        let volume =
            |path: &str| json!({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": path}}]});
        let image = |image: &str| json!({"containers": [{"name": "a", "image": image}]});
        for (object, expected) in [
            (object("DaemonSet", volume("/etc/cni/net.d")), Some(Essential::Network)),
            (object("DaemonSet", volume("/opt/cni/bin")), Some(Essential::Network)),
            (object("DaemonSet", volume("/etc/cnidaemon")), None),
            (object("Deployment", volume("/etc/cni/net.d")), None),
            (
                object("DaemonSet", image("registry.k8s.io/provider-os/openstack-cloud-controller-manager:v1.34.0")),
                Some(Essential::Cloud),
            ),
            (
                object(
                    "Deployment",
                    json!({"containers": [{"image": "k3s", "command": ["/bin/cloud-controller-manager"]}]}),
                ),
                Some(Essential::Cloud),
            ),
            (object("Deployment", image("registry.k8s.io/ingress-nginx/controller:v1")), None),
            (object("ConfigMap", volume("/etc/cni")), None),
            (json!({"kind": "DaemonSet"}), None),
        ] {
            assert_eq!(of(&object), expected, "{object}");
        }
    }
}
