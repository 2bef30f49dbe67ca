//! What matters of a Cluster for its addons.

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use serde_json::Value;

use crate::api::PAUSED;
use crate::core::in_use;
use crate::core::manifest::label;
use crate::core::manifest::{annotation, split_api_version};

/// The Helm release that addon charts are rendered as. The Go operator's, or every addon would be installed twice.
pub const HELM_RELEASE: &str = "cluster-addon";
/// The namespace that they are rendered for.
pub const HELM_NAMESPACE: &str = "kube-system";

/// The name of the ClusterAddon of a Cluster.
pub fn addon_name(cluster: &str) -> String {
    format!("cluster-addon-{cluster}")
}

/// Longest name of a Cluster that can have addons: its ClusterAddon is called after it, and has a name of at most 253
/// characters (RFC 1123 subdomain). Cluster API itself takes no Cluster of a topology with a name over 63.
pub const LONGEST_NAME: usize = 253 - "cluster-addon-".len();

/// Why a Cluster of this name gets no addons; `None` where it does.
pub fn name_problem(cluster: &str) -> Option<String> {
    (cluster.len() > LONGEST_NAME).then(|| {
        format!("its name is too long for a ClusterAddon: a Cluster with addons has one of at most {LONGEST_NAME} characters")
    })
}

/// An object that a Cluster refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name; its namespace is that of the Cluster.
    pub name: String,
}

/// A Cluster of either contract of Cluster API, reduced to what matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Identity.
    pub uid: String,
    /// Namespace and name of its ClusterClass; `None` without a topology.
    pub class: Option<(String, String)>,
    /// The version of Kubernetes that it asks for.
    pub kubernetes_version: String,
    /// All of its machines run it, and it is reconciled.
    pub rolled_out: bool,
    /// Nothing is to be done with it.
    pub paused: bool,
    /// It is being deleted.
    pub deleting: bool,
    /// Its control plane, where it has one.
    pub control_plane: Option<Reference>,
    /// Its infrastructure, where it has one.
    pub infrastructure: Option<Reference>,
    /// When its deletion was asked for.
    pub deleting_since: Option<Timestamp>,
    /// Names of ConfigMaps and Secrets with values for the addons.
    pub values: String,
    /// Stages of its addons that are to be passed.
    pub skips: String,
    /// Which replicas work on its addons.
    pub shard_class: String,
    /// Which operator does; empty for any.
    pub watch_filter: String,
}

/// Reads a Cluster of v1beta1 or v1beta2. `None` for what is no Cluster.
pub fn read(object: &Value) -> Option<Cluster> {
    let usage = in_use::cluster(object)?;
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let is_true = |pointer: &str| object.pointer(pointer).and_then(Value::as_bool) == Some(true);
    Some(Cluster {
        uid: text("/metadata/uid"),
        kubernetes_version: text("/spec/topology/version"),
        rolled_out: usage.reconciled,
        paused: is_true("/spec/paused") || annotation(object, PAUSED).is_some(),
        deleting: object.pointer("/metadata/deletionTimestamp").is_some(),
        deleting_since: text("/metadata/deletionTimestamp").parse().ok(),
        control_plane: reference(object.pointer("/spec/controlPlaneRef")),
        infrastructure: reference(object.pointer("/spec/infrastructureRef")),
        values: annotation(object, crate::api::ADDON_VALUES).unwrap_or_default().to_owned(),
        skips: annotation(object, crate::api::SKIP_STAGE).unwrap_or_default().to_owned(),
        shard_class: label(object, crate::api::SHARD_CLASS).unwrap_or_default().to_owned(),
        watch_filter: label(object, crate::api::WATCH_LABEL).unwrap_or_default().to_owned(),
        namespace: usage.namespace,
        name: usage.name,
        class: usage.class,
    })
}

/// Whether a control plane waits for a version: Cluster API writes the one that a topology asks for into the control plane's
/// `spec.version` when the hook BeforeClusterUpgrade lets it, and when it makes the object.
pub fn is_held(control_plane: &Value, wanted: &str) -> bool {
    let own = control_plane.pointer("/spec/version").and_then(Value::as_str).unwrap_or_default();
    !own.is_empty() && own != wanted
}

/// A hash of what a template of values could make something of: all of an object but its `resourceVersion`, who manages
/// which field, and the times in its status, which change without a change of content.
pub fn content(object: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    hash(object, &mut Vec::new(), &mut hasher);
    hasher.finish()
}

fn hash<'a>(value: &'a Value, path: &mut Vec<&'a str>, hasher: &mut DefaultHasher) {
    let is_time = |text: &str| path.first() == Some(&"status") && text.parse::<jiff::Timestamp>().is_ok();
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                path.push(key);
                if !matches!(path.as_slice(), ["metadata", "resourceVersion" | "managedFields"]) {
                    key.hash(hasher);
                    hash(value, path, hasher);
                }
                path.pop();
            }
            '}'.hash(hasher);
        }
        Value::Array(list) => {
            for value in list {
                hash(value, path, hasher);
            }
            ']'.hash(hasher);
        }
        Value::String(text) if is_time(text) => {}
        other => other.to_string().hash(hasher),
    }
}

/// v1beta1 writes `apiVersion`, v1beta2 `apiGroup`.
fn reference(value: Option<&Value>) -> Option<Reference> {
    let text = |key: &str| value?.get(key)?.as_str().filter(|text| !text.is_empty());
    let group = text("apiGroup").or_else(|| text("apiVersion").map(|version| split_api_version(version).0))?;
    Some(Reference { group: group.to_owned(), kind: text("kind")?.to_owned(), name: text("name")?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_control_plane_of_another_version_is_held() {
        for (object, expected) in [
            (json!({"spec": {"version": "v1.33.1"}}), true),
            (json!({"spec": {"version": "v1.34.7"}}), false),
            (json!({"spec": {"version": ""}, "status": {"version": "v1.33.1"}}), false),
            (json!({"spec": {"version": 1}}), false),
            (json!({}), false),
        ] {
            assert_eq!(is_held(&object, "v1.34.7"), expected, "{object}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_for_a_cluster_addon_is_told() {
        assert_eq!(name_problem(&"x".repeat(LONGEST_NAME)), None);
        assert_eq!(addon_name(&"x".repeat(LONGEST_NAME)).len(), 253);
        assert!(name_problem(&"x".repeat(LONGEST_NAME + 1)).is_some_and(|problem| problem.contains("239")));
    }

    #[test]
    fn only_a_change_of_content_counts() {
        let object = json!({
            "metadata": {"name": "c", "labels": {"a": "b"}, "resourceVersion": "1", "managedFields": [{"manager": "x"}]},
            "spec": {"at": "2026-01-01T00:00:00Z", "list": [{"a": 1}]},
            "status": {"ready": true, "conditions": [{"type": "Ready", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        });
        let same = content(&object);
        for (pointer, value, is_content) in [
            ("/metadata/resourceVersion", json!("2"), false),
            ("/metadata/managedFields", json!([]), false),
            ("/status/conditions/0/lastTransitionTime", json!("2026-01-02T00:00:00Z"), false),
            ("/metadata/labels/a", json!("c"), true),
            ("/spec/at", json!("2026-01-02T00:00:00Z"), true),
            ("/spec/list", json!([{"a": 2}]), true),
            ("/spec/list/0", json!({}), true),
            ("/status/ready", json!(false), true),
        ] {
            let mut changed = object.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            assert_eq!(content(&changed) != same, is_content, "{pointer}");
        }
    }

    #[test]
    fn both_contracts_are_read() {
        let old = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster",
            "metadata": {"namespace": "team", "name": "c", "uid": "u"},
            "spec": {
                "paused": true,
                "topology": {"class": "docker-x-1-34-v1", "version": "v1.34.2"},
                "controlPlaneRef": {"apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "KubeadmControlPlane", "name": "c-cp", "namespace": "team"},
            },
        });
        let read_old = read(&old).unwrap();
        assert!(read_old.paused && !read_old.deleting);
        assert_eq!(read_old.class, Some(("team".into(), "docker-x-1-34-v1".into())));
        assert_eq!(read_old.kubernetes_version, "v1.34.2");
        let control_plane = read_old.control_plane.unwrap();
        assert_eq!(
            (control_plane.group.as_str(), control_plane.name.as_str()),
            ("controlplane.cluster.x-k8s.io", "c-cp")
        );
        assert_eq!(read_old.infrastructure, None);
        let new = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"namespace": "team", "name": "c", "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": {PAUSED: ""}},
            "spec": {
                "topology": {"classRef": {"name": "docker-x-1-34-v1", "namespace": "stacks"}, "version": "v1.34.2"},
                "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevCluster", "name": "c-infra"},
            },
        });
        let read_new = read(&new).unwrap();
        assert!(read_new.paused && read_new.deleting);
        assert_eq!(read_new.deleting_since, "2026-01-01T00:00:00Z".parse().ok());
        assert_eq!(read_new.class, Some(("stacks".into(), "docker-x-1-34-v1".into())));
        assert_eq!(read_new.infrastructure.unwrap().group, "infrastructure.cluster.x-k8s.io");
    }
}
