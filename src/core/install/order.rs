//! In which order an installation's objects are applied.

use serde_json::Value;

use crate::api::HELM_RESOURCE_POLICY;
use crate::core::cso::{applied_by, release};
use crate::core::manifest::{ObjectKey, split_api_version};

/// Objects in the order in which they are applied; those of a wave at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waves {
    /// The namespace, and definitions of kinds: they are established before anything else comes.
    pub definitions: Vec<Value>,
    /// Accounts, rights, settings and Services.
    pub before: Vec<Value>,
    /// What runs the operator.
    pub workloads: Vec<Value>,
}

impl Waves {
    /// All, in their order.
    pub fn objects(&self) -> impl Iterator<Item = &Value> {
        self.definitions.iter().chain(&self.before).chain(&self.workloads)
    }
}

/// Sorts objects: what runs comes when all that it needs is there.
pub fn waves(objects: Vec<Value>) -> Waves {
    let mut waves = Waves::default();
    for object in objects {
        match object["kind"].as_str().unwrap_or_default() {
            "Namespace" | "CustomResourceDefinition" => waves.definitions.push(object),
            "Deployment" | "StatefulSet" => waves.workloads.push(object),
            _ => waves.before.push(object),
        }
    }
    waves
}

/// Who keeps an installed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// `clusterstack install`, or nobody who says so.
    Ours,
    /// Another tool, by its `app.kubernetes.io/managed-by`.
    Other(String),
}

/// Value of `app.kubernetes.io/managed-by` of what is installed.
pub const MANAGED_BY: &str = "clusterstack-install";

/// Label of what is installed: the namespace of its operator. Another installation of the same cluster has another.
pub const INSTALLED_IN: &str = "clusterstack.x-k8s.io/installed-in";

/// Who keeps an object that is there.
pub fn owner(live: &Value) -> Owner {
    let by = live["metadata"]["labels"]["app.kubernetes.io/managed-by"].as_str();
    match by {
        Some(by) if by != MANAGED_BY && live["kind"] != "Namespace" => Owner::Other(by.to_owned()),
        _ => Owner::Ours,
    }
}

/// The release of Helm, by namespace and name, that leaves a definition behind when it is removed. `None` where another tool
/// works with Helm: it may keep its releases elsewhere.
pub fn left_by(live: &Value) -> Option<(&str, &str)> {
    let keeps = live["metadata"]["annotations"][HELM_RESOURCE_POLICY] == "keep";
    let may_be = keeps && live["kind"] == "CustomResourceDefinition" && applied_by(live).is_none();
    release(live).filter(|_| may_be)
}

/// The namespace of another installation that has an object; definitions and namespaces are everybody's.
pub fn elsewhere<'a>(live: &'a Value, namespace: &str) -> Option<&'a str> {
    let is_shared = live["kind"] == "CustomResourceDefinition" || live["kind"] == "Namespace";
    let there = live["metadata"]["labels"][INSTALLED_IN].as_str()?;
    (!is_shared && there != namespace).then_some(there)
}

/// The command that makes way for an object that can't be changed in place. The pods of a `StatefulSet` and their claims stay.
pub fn make_way(object: &ObjectKey) -> String {
    let kind = object.kind.to_lowercase();
    let namespace = if object.namespace.is_empty() { String::new() } else { format!(" -n {}", object.namespace) };
    let orphan = if kind == "statefulset" { " --cascade=orphan" } else { "" };
    format!("kubectl delete {kind} {}{namespace}{orphan}", object.name)
}

/// Which object it is.
pub fn key(object: &Value) -> ObjectKey {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, _) = split_api_version(object["apiVersion"].as_str().unwrap_or_default());
    ObjectKey {
        group: group.to_owned(),
        kind: text(&object["kind"]),
        namespace: text(&object["metadata"]["namespace"]),
        name: text(&object["metadata"]["name"]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_runs_comes_last_and_kinds_come_first() {
        let of = |kind: &str| json!({"kind": kind});
        let sorted = waves(["Deployment", "Role", "CustomResourceDefinition", "Service", "Namespace"].map(of).to_vec());
        let kinds: Vec<&str> = sorted.objects().filter_map(|object| object["kind"].as_str()).collect();
        assert_eq!(kinds, ["CustomResourceDefinition", "Namespace", "Role", "Service", "Deployment"]);
    }

    #[test]
    fn what_another_tool_keeps_is_its_own() {
        let of = |kind: &str, by: Option<&str>| json!({"kind": kind, "metadata": {"labels": {"app.kubernetes.io/managed-by": by}}});
        for (live, expected) in [
            (of("Role", None), Owner::Ours),
            (of("Role", Some(MANAGED_BY)), Owner::Ours),
            (of("Role", Some("Helm")), Owner::Other("Helm".into())),
            // A namespace is shared.
            (of("Namespace", Some("Helm")), Owner::Ours),
        ] {
            assert_eq!(owner(&live), expected, "{live}");
        }
    }

    #[test]
    fn only_definitions_that_helm_keeps_are_left_by_a_release() {
        let of = |kind: &str, policy: &str, labels: Value| {
            let annotations = json!({
                "helm.sh/resource-policy": policy,
                "meta.helm.sh/release-name": "cs", "meta.helm.sh/release-namespace": "ns",
            });
            json!({"kind": kind, "metadata": {"labels": labels, "annotations": annotations}})
        };
        let definition = "CustomResourceDefinition";
        let flux = json!({"helm.toolkit.fluxcd.io/name": "cs"});
        for (live, expected) in [
            (of(definition, "keep", json!({})), Some(("ns", "cs"))),
            (of(definition, "", json!({})), None),
            (of("ClusterRole", "keep", json!({})), None),
            (of(definition, "keep", flux), None),
            (json!({"kind": definition, "metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}}), None),
        ] {
            assert_eq!(left_by(&live), expected, "{live}");
        }
    }

    #[test]
    fn what_another_installation_has_is_its_own() {
        let of = |kind: &str, there: Option<&str>| json!({"kind": kind, "metadata": {"labels": {INSTALLED_IN: there}}});
        for (live, expected) in [
            (of("ClusterRoleBinding", Some("first")), Some("first")),
            (of("ClusterRoleBinding", Some("second")), None),
            (of("ClusterRoleBinding", None), None),
            (of("Namespace", Some("first")), None),
            (of("CustomResourceDefinition", Some("first")), None),
        ] {
            assert_eq!(elsewhere(&live, "second"), expected, "{live}");
        }
    }

    #[test]
    fn pods_of_what_makes_way_run_on_where_they_can() {
        let of = |kind: &str, namespace: &str| json!({"kind": kind, "metadata": {"name": "x", "namespace": namespace}});
        for (object, expected) in [
            (of("StatefulSet", "ns"), "kubectl delete statefulset x -n ns --cascade=orphan"),
            (of("Deployment", "ns"), "kubectl delete deployment x -n ns"),
            (of("ClusterRoleBinding", ""), "kubectl delete clusterrolebinding x"),
        ] {
            assert_eq!(make_way(&key(&object)), expected);
        }
    }
}
