//! In which order an installation's objects are applied.

use serde_json::Value;

use crate::api::{HELM_RESOURCE_POLICY, MANAGED_BY_LABEL};
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
    /// Another tool: Flux or Argo CD by what they set, others by their `app.kubernetes.io/managed-by`.
    Other(String),
}

/// Value of `app.kubernetes.io/managed-by` of what is installed.
pub const MANAGED_BY: &str = "clusterstack-install";

/// Label of what is installed: the namespace of its operator. Another installation of the same cluster has another.
pub const INSTALLED_IN: &str = "clusterstack.x-k8s.io/installed-in";

/// Field manager of what is installed.
pub const MANAGER: &str = "clusterstack-install";

/// Who keeps an object that is there.
pub fn owner(live: &Value) -> Owner {
    let by = live["metadata"]["labels"][MANAGED_BY_LABEL].as_str();
    match by {
        _ if live["kind"] == "Namespace" => Owner::Ours,
        // The base of kustomize says so, too, whoever applies it.
        Some(MANAGED_BY) if !is_taken(live) => {
            applied_by(live).map_or(Owner::Ours, |tool| Owner::Other(tool.to_owned()))
        }
        Some(by) if by != MANAGED_BY => Owner::Other(by.to_owned()),
        _ => Owner::Ours,
    }
}

/// Whether a definition was taken over: from the Go operator's manifest, say, which Flux applied once, and whose labels stay.
fn is_taken(live: &Value) -> bool {
    let managers = live["metadata"]["managedFields"].as_array().into_iter().flatten();
    live["kind"] == "CustomResourceDefinition" && managers.into_iter().any(|entry| entry["manager"] == MANAGER)
}

/// The release of Helm, by namespace and name, that leaves a definition behind when it is removed. `None` where another tool
/// works with Helm: it may keep its releases elsewhere.
pub fn left_by(live: &Value) -> Option<(&str, &str)> {
    let keeps = live["metadata"]["annotations"][HELM_RESOURCE_POLICY] == "keep";
    let may_be = keeps && live["kind"] == "CustomResourceDefinition" && applied_by(live).is_none();
    release(live).filter(|_| may_be)
}

/// Whether an object says that it was made by `clusterstack install`.
pub fn is_marked(live: &Value) -> bool {
    live["metadata"]["labels"][MANAGED_BY_LABEL] == MANAGED_BY
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
    fn what_flux_or_argo_applied_of_our_base_is_theirs() {
        let flux = json!({"kustomize.toolkit.fluxcd.io/name": "cs"});
        let argo = json!({"argocd.argoproj.io/tracking-id": "cs:x"});
        let of = |kind: &str, by: Option<&str>, labels: &Value, annotations: &Value, manager: &str| {
            let mut labels = labels.clone();
            labels["app.kubernetes.io/managed-by"] = by.into();
            json!({"kind": kind, "metadata": {
                "labels": labels, "annotations": annotations, "managedFields": [{"manager": "x"}, {"manager": manager}],
            }})
        };
        let (ours, none) = (Some(MANAGED_BY), &json!({}));
        let (is_flux, is_argo) = (Owner::Other("Flux (Kustomization)".into()), Owner::Other("Argo CD".into()));
        let definition = "CustomResourceDefinition";
        for (live, expected) in [
            (of("Deployment", ours, &flux, none, "kustomize-controller"), is_flux.clone()),
            (of("Deployment", ours, none, &argo, "argocd-controller"), is_argo),
            // It was applied over it by hand, and would be again by the tool.
            (of("Deployment", ours, &flux, none, MANAGER), is_flux.clone()),
            (of("Namespace", ours, &flux, none, "kustomize-controller"), Owner::Ours),
            (of(definition, ours, &flux, none, "kustomize-controller"), is_flux),
            // Those of the Go operator, before they are taken over and after that.
            (of(definition, None, &flux, none, "kustomize-controller"), Owner::Ours),
            (of(definition, ours, &flux, none, MANAGER), Owner::Ours),
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
