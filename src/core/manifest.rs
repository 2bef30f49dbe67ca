//! Rendered documents as objects with an identity, and the order in which they are applied.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::core::chart::Secrets;
use crate::core::identity::{self, Problem};

/// Identity of an object: two kinds with one name are two objects; the version is not part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// API group; empty is the core group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl fmt::Display for ObjectKey {
    /// As people name it: `Kind/name` with the namespace in front where there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

impl ObjectKey {
    /// Whether it is a Cluster API ClusterClass.
    pub fn is_cluster_class(&self) -> bool {
        self.group == "cluster.x-k8s.io" && self.kind == "ClusterClass"
    }

    /// Whether it is a Secret of Kubernetes, and none of another group.
    pub fn is_secret(&self) -> bool {
        self.group.is_empty() && self.kind == "Secret"
    }
}

/// An object as a release wants it.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Its identity.
    pub key: ObjectKey,
    /// API version without the group: `v1beta1`.
    pub version: String,
    /// The whole object.
    pub object: Value,
    /// What no message about it may show: whoever refuses it may quote what it was made of.
    pub hidden: Arc<Secrets>,
}

/// Why a rendered document is no object.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// The document is no mapping.
    #[error("a rendered document is no object but {0}")]
    NoObject(&'static str),
    /// A field that every object has is missing or of the wrong type.
    #[error("a rendered object has no {field}: {what}")]
    Missing {
        /// The field.
        field: &'static str,
        /// What is known of the object.
        what: String,
    },
    /// A field that every object has holds what no API server takes there, or what no status has room for.
    #[error("a rendered object's {field} {problem}: {what}")]
    Malformed {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        problem: Problem,
        /// What is known of the object.
        what: String,
    },
    /// Two documents are the same object.
    #[error("{0} is rendered twice: give one of them another name")]
    Duplicate(ObjectKey),
}

impl Manifest {
    /// Reads one document.
    pub fn from_value(object: Value) -> Result<Self, ManifestError> {
        let Some(map) = object.as_object() else {
            return Err(ManifestError::NoObject(type_name(&object)));
        };
        let text = |field: &'static str, value: Option<&Value>| {
            value
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
                .map(ToOwned::to_owned)
                .ok_or_else(|| ManifestError::Missing { field, what: describe(&object) })
        };
        let sound = |field: &'static str, problem: Result<(), Problem>| {
            problem.map_err(|problem| ManifestError::Malformed { field, problem, what: describe(&object) })
        };
        let api_version = text("apiVersion", map.get("apiVersion"))?;
        sound("apiVersion", identity::api_version(&api_version))?;
        let kind = text("kind", map.get("kind"))?;
        sound("kind", identity::kind(&kind))?;
        let metadata = map.get("metadata");
        let name = text("metadata.name", metadata.and_then(|m| m.get("name")))?;
        sound("metadata.name", identity::name(&name))?;
        let namespace = match metadata.and_then(|m| m.get("namespace")) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(namespace)) => namespace.clone(),
            Some(_) => {
                sound("metadata.namespace", Err(Problem::NoText))?;
                String::new()
            }
        };
        sound("metadata.namespace", identity::namespace(&namespace))?;
        let (group, version) = split_api_version(&api_version);
        let key = ObjectKey { group: group.to_owned(), kind, namespace, name };
        Ok(Self { key, version: version.to_owned(), object, hidden: Arc::default() })
    }

    /// The same with what no message about it may show.
    #[must_use]
    pub fn hiding(self, hidden: &Arc<Secrets>) -> Self {
        Self { hidden: Arc::clone(hidden), ..self }
    }

    /// `group/version`, or the version alone in the core group.
    pub fn api_version(&self) -> String {
        join_api_version(&self.key.group, &self.version)
    }

    /// Puts it into a namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.key.namespace);
        if let Some(Value::Object(metadata)) = self.object.get_mut("metadata") {
            metadata.insert("namespace".into(), namespace.into());
        }
        self
    }

    /// Takes it out of its namespace, as the API server does with a cluster-scoped object.
    #[must_use]
    pub fn without_namespace(mut self) -> Self {
        self.key.namespace.clear();
        if let Some(Value::Object(metadata)) = self.object.get_mut("metadata") {
            metadata.remove("namespace");
        }
        self
    }

    /// Sets labels, over those that the chart gave it.
    #[must_use]
    pub fn with_labels<'a>(mut self, labels: impl IntoIterator<Item = (&'a str, String)>) -> Self {
        if let Some(Value::Object(metadata)) = self.object.get_mut("metadata") {
            let entry = metadata.entry("labels").or_insert_with(|| Value::Object(serde_json::Map::new()));
            if !entry.is_object() {
                *entry = Value::Object(serde_json::Map::new());
            }
            if let Value::Object(map) = entry {
                map.extend(labels.into_iter().map(|(key, value)| (key.to_owned(), Value::String(value))));
            }
        }
        self
    }

    /// An annotation of the object.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        annotation(&self.object, key)
    }

    /// Digest over the whole object.
    pub fn digest(&self) -> String {
        short_digest(&self.object)
    }
}

/// An annotation of any object.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("annotations")?.get(key)?.as_str()
}

/// A label of any object.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("labels")?.get(key)?.as_str()
}

/// `apps/v1` into group and version; `v1` has an empty group.
pub fn split_api_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// Group and version into an apiVersion.
pub fn join_api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// 64 bits of SHA-256 over the canonical JSON (keys sorted), in hex: enough to see a change, short enough for a status.
pub fn short_digest(value: &Value) -> String {
    // Keys of a `serde_json::Map` are sorted, so equal values print equal bytes.
    let bytes = Sha256::digest(value.to_string().as_bytes());
    format!("{:016x}", u64::from_be_bytes(std::array::from_fn(|i| bytes[i])))
}

/// A label value for a name: as it is where it fits (63 characters), else its start and a digest.
pub fn label_value(name: &str) -> String {
    if name.len() <= 63 {
        return name.to_owned();
    }
    let start: String = name.chars().take(46).collect();
    format!("{}-{}", start.trim_end_matches(['-', '.', '_']), short_digest(&Value::String(name.to_owned())))
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Characters of a field that an error shows.
const SHOWN: usize = 80;

fn describe(object: &Value) -> String {
    let of = |value: Option<&Value>| -> String {
        let text = value.and_then(Value::as_str).unwrap_or("?");
        text.chars().take(SHOWN).flat_map(char::escape_debug).collect()
    };
    format!(
        "apiVersion {}, kind {}, name {}",
        of(object.get("apiVersion")),
        of(object.get("kind")),
        of(object.get("metadata").and_then(|m| m.get("name")))
    )
}

/// All objects of the documents, `List`s taken apart (as Helm does when it applies), each object once.
pub fn manifests(documents: impl IntoIterator<Item = Value>) -> Result<Vec<Manifest>, ManifestError> {
    let mut all = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for document in documents.into_iter().flat_map(without_lists) {
        let manifest = Manifest::from_value(document)?;
        if !seen.insert(manifest.key.clone()) {
            return Err(ManifestError::Duplicate(manifest.key));
        }
        all.push(manifest);
    }
    all.sort_by(|a, b| (install_rank(&a.key), &a.key).cmp(&(install_rank(&b.key), &b.key)));
    Ok(all)
}

/// The objects of a `List`, or the object itself.
pub fn without_lists(document: Value) -> Vec<Value> {
    let is_list = document.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List"));
    match (is_list, document) {
        (true, Value::Object(mut map)) => match map.remove("items") {
            Some(Value::Array(items)) => items,
            Some(other) => {
                map.insert("items".into(), other);
                vec![Value::Object(map)]
            }
            None => vec![Value::Object(map)],
        },
        (_, document) => vec![document],
    }
}

/// Helm's install order (`releaseutil.InstallOrder`, Helm 3.21) with CustomResourceDefinitions and Namespaces in front
/// and ClusterClasses, which name all the templates beside them, at the end.
const INSTALL_ORDER: &[&str] = &[
    "CustomResourceDefinition",
    "Namespace",
    "PriorityClass",
    "NetworkPolicy",
    "ResourceQuota",
    "LimitRange",
    "PodSecurityPolicy",
    "PodDisruptionBudget",
    "ServiceAccount",
    "Secret",
    "SecretList",
    "ConfigMap",
    "StorageClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "ClusterRole",
    "ClusterRoleList",
    "ClusterRoleBinding",
    "ClusterRoleBindingList",
    "Role",
    "RoleList",
    "RoleBinding",
    "RoleBindingList",
    "Service",
    "DaemonSet",
    "Pod",
    "ReplicationController",
    "ReplicaSet",
    "Deployment",
    "HorizontalPodAutoscaler",
    "StatefulSet",
    "Job",
    "CronJob",
    "IngressClass",
    "Ingress",
    "APIService",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// Place of an object in the order of applying; deleting goes the other way. Kinds that Helm does not know come after
/// those it knows, ClusterClasses last.
pub fn install_rank(key: &ObjectKey) -> usize {
    let unknown = INSTALL_ORDER.len();
    if key.is_cluster_class() {
        return unknown + 1;
    }
    INSTALL_ORDER.iter().position(|kind| *kind == key.kind).unwrap_or(unknown)
}

/// The wave of CustomResourceDefinitions.
pub const DEFINITIONS: u8 = 0;

/// Which wave of the apply an object belongs to: what a wave holds has to be served before the next one starts.
pub fn wave(key: &ObjectKey) -> u8 {
    match key.kind.as_str() {
        "CustomResourceDefinition" if key.group == "apiextensions.k8s.io" => DEFINITIONS,
        "Namespace" if key.group.is_empty() => 1,
        _ if key.is_cluster_class() => 3,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config_map(name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "shop"}})
    }

    #[test]
    fn two_kinds_with_one_name_are_two_objects() {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "shop"}});
        assert_eq!(manifests([config_map("a"), secret]).unwrap().len(), 2);
        assert!(matches!(manifests([config_map("a"), config_map("a")]), Err(ManifestError::Duplicate(_))));
    }

    #[test]
    fn lists_are_taken_apart() {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [config_map("a"), config_map("b")]});
        assert_eq!(manifests([list]).unwrap().len(), 2);
    }

    #[test]
    fn documents_that_are_no_objects_are_refused() {
        for (document, part) in [
            (json!("text"), "no object but a string"),
            (json!({"kind": "ConfigMap"}), "no apiVersion"),
            (json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}), "no metadata.name"),
            (json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": 7}}), "no metadata.name"),
            (
                json!({"apiVersion": "a.b/v1/pods?watch=true&x=0", "kind": "Pod", "metadata": {"name": "x"}}),
                "apiVersion is no group and version",
            ),
            (json!({"apiVersion": "v1", "kind": "Pod/x", "metadata": {"name": "x"}}), "kind is no kind"),
            (json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x".repeat(254)}}), "has more than 253"),
            (
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": 5}}),
                "namespace is no text",
            ),
            (
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": "a/../b"}}),
                "namespace is no DNS label",
            ),
        ] {
            assert!(Manifest::from_value(document).unwrap_err().to_string().contains(part));
        }
    }

    #[test]
    fn definitions_come_first_and_classes_last() {
        let of = |api: &str, kind: &str| json!({"apiVersion": api, "kind": kind, "metadata": {"name": "x"}});
        let ordered = manifests([
            of("cluster.x-k8s.io/v1beta1", "ClusterClass"),
            of("infrastructure.cluster.x-k8s.io/v1beta1", "DockerClusterTemplate"),
            of("v1", "Secret"),
            of("v1", "Namespace"),
            of("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        ])
        .unwrap();
        let kinds: Vec<_> = ordered.iter().map(|m| m.key.kind.as_str()).collect();
        assert_eq!(kinds, ["CustomResourceDefinition", "Namespace", "Secret", "DockerClusterTemplate", "ClusterClass"]);
    }

    #[test]
    fn long_names_become_distinct_label_values() {
        let (a, b) = (format!("{}a", "x".repeat(90)), format!("{}b", "x".repeat(90)));
        assert!(label_value(&a).len() <= 63);
        assert_ne!(label_value(&a), label_value(&b));
        assert_eq!(label_value("short"), "short");
    }
}
