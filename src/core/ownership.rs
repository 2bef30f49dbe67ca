//! Whose an object is. Force is for fields; objects that belong to somebody else are not touched.

use serde_json::Value;

use crate::api::{
    CSO_FIELD_MANAGER, FIELD_MANAGER, MANAGED_BY, MANAGED_BY_LABEL, OWNER_KIND_LABEL, OWNER_NAME_LABEL,
    OWNER_NAMESPACE_LABEL,
};
use crate::core::fields;
use crate::core::manifest::{annotation, label, label_value};

/// The object that applies: by kind, namespace and name, never by UID, so that a moved or restored one is still the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Kind, for example `ClusterStackRelease`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Owner {
    /// The labels that every object it applies carries.
    pub fn labels(&self) -> [(&'static str, String); 4] {
        [
            (MANAGED_BY_LABEL, MANAGED_BY.to_owned()),
            (OWNER_KIND_LABEL, self.kind.clone()),
            (OWNER_NAMESPACE_LABEL, self.namespace.clone()),
            (OWNER_NAME_LABEL, label_value(&self.name)),
        ]
    }

    /// The label selector that finds what it applied.
    pub fn selector(&self) -> String {
        format!(
            "{OWNER_KIND_LABEL}={},{OWNER_NAMESPACE_LABEL}={},{OWNER_NAME_LABEL}={}",
            self.kind,
            self.namespace,
            label_value(&self.name)
        )
    }

    /// Whether an object carries the labels of this owner.
    pub fn is_of(&self, object: &Value) -> bool {
        label(object, OWNER_KIND_LABEL) == Some(&self.kind)
            && label(object, OWNER_NAMESPACE_LABEL) == Some(&self.namespace)
            && label(object, OWNER_NAME_LABEL) == Some(&label_value(&self.name))
    }
}

/// Whose a live object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// It carries our labels, or nobody's while there are fields in it that we applied.
    Ours,
    /// Nobody says that it is his, and we never applied it: it may be taken over by applying it, and is not deleted.
    Nobodys,
    /// The Go operator applied it and holds it in its inventory: its managed fields become ours first.
    OfGoOperator,
    /// Somebody else's; who, for the message.
    Other(String),
}

/// Annotations and labels by which other tools mark what is theirs.
///
/// Cluster API copies the labels of a class's templates, ours too, to the templates that it makes for each Cluster, and notes
/// where they come from (`templateToTemplate` in its `exp/topology/desiredstate`).
const MARKERS: &[(&str, bool)] = &[
    ("cluster.x-k8s.io/cloned-from-name", true),
    ("meta.helm.sh/release-name", true),
    ("argocd.argoproj.io/tracking-id", true),
    ("helm.toolkit.fluxcd.io/name", false),
    ("kustomize.toolkit.fluxcd.io/name", false),
    ("argocd.argoproj.io/instance", false),
];

/// Decides whose `live` is, seen from `owner`. `by_go_operator`: the Go operator's inventory holds it, and nothing was
/// written of it since; what that one applied looks as if somebody had used kubectl.
pub fn of(live: &Value, owner: &Owner, by_go_operator: bool) -> Ownership {
    if let Some(reference) = controller(live) {
        return Ownership::Other(format!("controlled by {reference}"));
    }
    if let Some(other) = marker(live) {
        return Ownership::Other(other);
    }
    if let Some(name) = label(live, OWNER_NAME_LABEL) {
        if owner.is_of(live) {
            return Ownership::Ours;
        }
        return Ownership::Other(format!(
            "applied by {} {}/{name}",
            label(live, OWNER_KIND_LABEL).unwrap_or("?"),
            label(live, OWNER_NAMESPACE_LABEL).unwrap_or("?"),
        ));
    }
    let applied_by = |manager| fields::entry(live, manager).is_some();
    match by_go_operator {
        _ if applied_by(FIELD_MANAGER) => Ownership::Ours,
        // Of an object with nothing but a name there is no record who applied it.
        true if applied_by(CSO_FIELD_MANAGER) || is_unmanaged(live) => Ownership::OfGoOperator,
        _ => Ownership::Nobodys,
    }
}

/// Whether `now` is still the object that `before` was, and nothing says that it has become another's meanwhile.
pub fn is_unchanged(before: &Value, now: &Value) -> bool {
    let uid = |object: &Value| object.pointer("/metadata/uid").cloned();
    let labels = [MANAGED_BY_LABEL, OWNER_KIND_LABEL, OWNER_NAMESPACE_LABEL, OWNER_NAME_LABEL];
    uid(before) == uid(now)
        && controller(before) == controller(now)
        && marker(before) == marker(now)
        && labels.iter().all(|name| label(before, name) == label(now, name))
}

fn is_unmanaged(live: &Value) -> bool {
    live.pointer("/metadata/managedFields").and_then(Value::as_array).is_none_or(Vec::is_empty)
}

fn controller(live: &Value) -> Option<String> {
    let references = live.pointer("/metadata/ownerReferences")?.as_array()?;
    let controller = references.iter().find(|r| r.get("controller").and_then(Value::as_bool) == Some(true))?;
    let get = |key| controller.get(key).and_then(Value::as_str).unwrap_or("?");
    Some(format!("{} {}", get("kind"), get("name")))
}

fn marker(live: &Value) -> Option<String> {
    MARKERS.iter().find_map(|(key, is_annotation)| {
        let value = if *is_annotation { annotation(live, key) } else { label(live, key) }?;
        Some(format!("marked by {key}={value}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn owner() -> Owner {
        Owner { kind: "ClusterStackRelease".into(), namespace: "shop".into(), name: "docker-x-1-34-v1".into() }
    }

    #[test]
    fn an_object_is_ours_nobodys_or_anothers() {
        let labels = |owner: &Owner| {
            owner.labels().into_iter().map(|(k, v)| (k.to_owned(), Value::String(v))).collect::<serde_json::Map<_, _>>()
        };
        let other = Owner { name: "docker-x-1-34-v2".into(), ..owner() };
        let by_kubectl = json!([{"manager": "kubectl", "operation": "Apply", "fieldsV1": {}}]);
        let by_helm = json!([{"manager": "helm", "operation": "Apply", "fieldsV1": {}}]);
        let by_us = json!([{"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {}}]);
        let status_by_us = json!([{"manager": FIELD_MANAGER, "operation": "Apply", "subresource": "status"}]);
        for (name, metadata, inventory, expected) in [
            ("without labels", json!({}), false, "nobody's"),
            ("without labels or fields, in the Go operator's inventory", json!({}), true, "go"),
            ("another's, in the Go operator's inventory", json!({"managedFields": by_helm}), true, "nobody's"),
            ("its labels were taken away", json!({"managedFields": by_us}), true, "ours"),
            ("its status is ours", json!({"managedFields": status_by_us}), true, "nobody's"),
            ("our labels", json!({"labels": labels(&owner())}), false, "ours"),
            (
                "another release",
                json!({"labels": labels(&other)}),
                true,
                "applied by ClusterStackRelease shop/docker-x-1-34-v2",
            ),
            (
                "a controller",
                json!({"ownerReferences": [{"kind": "Cluster", "name": "c", "controller": true}]}),
                true,
                "controlled by Cluster c",
            ),
            (
                "an owner that is none",
                json!({"ownerReferences": [{"kind": "ClusterClass", "name": "c"}]}),
                false,
                "nobody's",
            ),
            (
                "Helm",
                json!({"annotations": {"meta.helm.sh/release-name": "r"}}),
                false,
                "marked by meta.helm.sh/release-name=r",
            ),
            (
                "a copy that Cluster API made for a Cluster, with our labels",
                json!({"labels": labels(&owner()), "annotations": {"cluster.x-k8s.io/cloned-from-name": "t"}}),
                false,
                "marked by cluster.x-k8s.io/cloned-from-name=t",
            ),
            (
                "Flux",
                json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "f"}}),
                false,
                "marked by kustomize.toolkit.fluxcd.io/name=f",
            ),
            (
                "Argo",
                json!({"annotations": {"argocd.argoproj.io/tracking-id": "a"}}),
                false,
                "marked by argocd.argoproj.io/tracking-id=a",
            ),
            ("the Go operator's, in its inventory", json!({"managedFields": by_kubectl}), true, "go"),
            ("applied by hand with kubectl", json!({"managedFields": by_kubectl}), false, "nobody's"),
        ] {
            let found = match of(&json!({"metadata": metadata}), &owner(), inventory) {
                Ownership::Ours => "ours".to_owned(),
                Ownership::Nobodys => "nobody's".to_owned(),
                Ownership::OfGoOperator => "go".to_owned(),
                Ownership::Other(who) => who,
            };
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn an_object_stays_the_same_until_another_has_it() {
        let before = json!({"metadata": {
            "uid": "1", "resourceVersion": "7", "labels": {OWNER_NAME_LABEL: "docker-x-1-34-v1", "tier": "a"},
        }});
        for (name, change, expected) in [
            ("another version", json!({"resourceVersion": "8"}), true),
            ("another's fields, and a label of the user", json!({"managedFields": [], "labels": {"tier": "b"}}), true),
            ("an owner that is none", json!({"ownerReferences": [{"kind": "Cluster", "name": "c"}]}), true),
            ("another object of this name", json!({"uid": "2"}), false),
            ("a controller", json!({"ownerReferences": [{"kind": "Cluster", "name": "c", "controller": true}]}), false),
            ("another release has it", json!({"labels": {OWNER_NAME_LABEL: "docker-x-1-34-v2"}}), false),
            ("our label is gone", json!({"labels": {OWNER_NAME_LABEL: null}}), false),
            ("Helm has it", json!({"annotations": {"meta.helm.sh/release-name": "r"}}), false),
        ] {
            let mut now = before.clone();
            json_patch::merge(&mut now, &json!({"metadata": change}));
            assert_eq!(is_unchanged(&before, &now), expected, "{name}");
        }
    }
}
