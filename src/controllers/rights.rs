//! With whose rights a release is applied, and what they reach.

use kube::Client;

use super::{Context, Error};
use crate::api::condition::Reason;
use crate::api::{ClusterStackSpec, GROUP, INFRASTRUCTURE_GROUP};
use crate::core::identity;
use crate::core::manifest::Manifest;
use crate::core::plan::Desired;
use crate::io::kinds::Kind;

/// An identity and its reach.
pub(super) struct Rights {
    /// The client that reads, applies and deletes.
    pub(super) client: Client,
    /// The only namespace that is applied to; `None` leaves the judgement to the API server.
    pub(super) only_namespace: Option<String>,
    /// The ServiceAccount; `None` is the operator itself.
    pub(super) account: Option<String>,
}

impl Context {
    /// The rights of a ClusterStack of `namespace`: its ServiceAccount's, the default one's, or the operator's own,
    /// which reach no further than the namespace unless a flag says so.
    pub(super) fn rights(&self, namespace: &str, spec: Option<&ClusterStackSpec>) -> Result<Rights, Error> {
        self.rights_as(namespace, spec.and_then(|spec| spec.service_account_name.as_deref()))
    }

    /// The same by the name of the ServiceAccount.
    pub(super) fn rights_as(&self, namespace: &str, named: Option<&str>) -> Result<Rights, Error> {
        if let Some(account) = named.or(self.settings.default_service_account.as_deref()) {
            let client = self.clients.of_service_account(namespace, account)?;
            return Ok(Rights { client, only_namespace: None, account: Some(account.to_owned()) });
        }
        let only_namespace = (!self.settings.allow_cluster_scope).then(|| namespace.to_owned());
        Ok(Rights { client: self.clients.own(), only_namespace, account: None })
    }
}

/// An object as it would be sent: in its namespace if its kind has one, with what stands in the way.
pub(super) fn desired(
    manifest: Manifest,
    kind: Result<Option<&Kind>, String>,
    namespace: &str,
    (only_namespace, is_operator): (Option<&str>, bool),
) -> Desired {
    let in_namespace = |manifest: Manifest| {
        if manifest.key.namespace.is_empty() { manifest.in_namespace(namespace) } else { manifest }
    };
    if let Err(problem) = identity::path_segment(&manifest.key.name) {
        let obstacle = (Reason::Invalid, format!("metadata.name {problem}: give it another name"));
        return of(in_namespace(manifest), Some(obstacle));
    }
    let kind = match kind {
        Ok(Some(kind)) => kind,
        Ok(None) => {
            let message = format!(
                "no {} in {} is served; applied when its CustomResourceDefinition is installed",
                manifest.key.kind,
                manifest.api_version()
            );
            return of(in_namespace(manifest), Some((Reason::NoKindMatch, message)));
        }
        Err(message) => {
            return of(in_namespace(manifest), Some((Reason::ApplyFailed, message)));
        }
    };
    let manifest = if kind.namespaced { in_namespace(manifest) } else { manifest.without_namespace() };
    let outside = only_namespace.is_some_and(|only| manifest.key.namespace != only);
    let works_on = is_operator && is_worked_on(&kind.resource.group, &kind.resource.kind);
    if let Some(of_type) = filled(&manifest).filter(|_| is_operator) {
        let message = format!(
            "Kubernetes fills a Secret of type {of_type} with rights of others: set spec.serviceAccountName to a ServiceAccount that may make it"
        );
        return of(in_namespace(manifest), Some((Reason::Forbidden, message)));
    }
    let obstacle = (outside || works_on).then(|| {
        let what = match kind.namespaced {
            _ if works_on => "the operator works on objects of this kind for others, and applies none of a release's",
            true => "it is in another namespace",
            false => "it is cluster-scoped",
        };
        let message = format!("{what}: set spec.serviceAccountName to a ServiceAccount with the rights for it");
        (Reason::Forbidden, message)
    });
    of(manifest, obstacle)
}

/// Whether the operator may write objects of a kind that others made, to work on them: a release that brought one of these would have
/// it act for whoever released it, a ClusterStack for example by any ServiceAccount of its namespace, and a Job with any Secret of it.
fn is_worked_on(group: &str, kind: &str) -> bool {
    matches!(group, GROUP | INFRASTRUCTURE_GROUP | "runtime.cluster.x-k8s.io" | "admissionregistration.k8s.io")
        || matches!((group, kind), ("cluster.x-k8s.io", "Cluster") | ("batch", "Job"))
}

/// The type of a Secret that gets what whoever makes it may not have by himself: a token of any ServiceAccount, or for new nodes.
fn filled(manifest: &Manifest) -> Option<&str> {
    let of_type = manifest.object["type"].as_str().filter(|_| manifest.key.is_secret())?;
    matches!(of_type, "kubernetes.io/service-account-token" | "bootstrap.kubernetes.io/token").then_some(of_type)
}

fn of(manifest: Manifest, obstacle: Option<(Reason, String)>) -> Desired {
    Desired { manifest, obstacle, create_only: false, replace: false, ignored: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::api::ApiResource;
    use serde_json::json;

    fn kind(namespaced: bool) -> Kind {
        let resource = ApiResource {
            group: String::new(),
            version: "v1".into(),
            api_version: "v1".into(),
            kind: "Thing".into(),
            plural: "things".into(),
        };
        Kind { resource, namespaced }
    }

    #[test]
    fn without_a_service_account_only_the_own_namespace_is_reached() {
        let object = |namespace: Option<&str>| {
            Manifest::from_value(
                json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x", "namespace": namespace}}),
            )
            .unwrap()
        };
        let (in_ns, cluster) = (kind(true), kind(false));
        for (name, manifest, served, only, expected_ns, expected) in [
            ("own namespace by default", object(None), Ok(Some(&in_ns)), Some("shop"), "shop", None),
            ("own namespace", object(Some("shop")), Ok(Some(&in_ns)), Some("shop"), "shop", None),
            (
                "another namespace",
                object(Some("bank")),
                Ok(Some(&in_ns)),
                Some("shop"),
                "bank",
                Some(Reason::Forbidden),
            ),
            ("cluster-scoped", object(Some("shop")), Ok(Some(&cluster)), Some("shop"), "", Some(Reason::Forbidden)),
            ("cluster-scoped with a ServiceAccount", object(None), Ok(Some(&cluster)), None, "", None),
            ("not served", object(None), Ok(None), Some("shop"), "shop", Some(Reason::NoKindMatch)),
            ("not known", object(None), Err("timeout".into()), None, "shop", Some(Reason::ApplyFailed)),
        ] {
            let desired = desired(manifest, served, "shop", (only, true));
            assert_eq!(desired.manifest.key.namespace, expected_ns, "{name}");
            assert_eq!(desired.obstacle.map(|(reason, _)| reason), expected, "{name}");
        }
    }

    #[test]
    fn a_name_that_is_a_path_is_invalid_and_not_looked_for() {
        for (name, expected) in [("a/b", Some(Reason::Invalid)), ("..", Some(Reason::Invalid)), ("system:node", None)] {
            let object = json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": name}});
            let manifest = Manifest::from_value(object).unwrap();
            let desired = desired(manifest, Ok(Some(&kind(true))), "shop", (None, true));
            assert_eq!(desired.obstacle.map(|(reason, _)| reason), expected, "{name}");
        }
    }

    #[test]
    fn a_secret_that_kubernetes_fills_comes_with_the_rights_of_others_alone() {
        for (of_type, expected) in [
            ("kubernetes.io/service-account-token", true),
            ("bootstrap.kubernetes.io/token", true),
            ("kubernetes.io/tls", false),
            ("", false),
        ] {
            let object = json!({"apiVersion": "v1", "kind": "Secret", "type": of_type, "metadata": {"name": "x"}});
            for is_operator in [true, false] {
                let manifest = Manifest::from_value(object.clone()).unwrap();
                let desired = desired(manifest, Ok(Some(&kind(true))), "shop", (None, is_operator));
                let refused = desired.obstacle.map(|(reason, _)| reason) == Some(Reason::Forbidden);
                assert_eq!(refused, expected && is_operator, "{of_type}");
            }
        }
    }

    #[test]
    fn what_the_operator_works_on_comes_with_the_rights_of_others_alone() {
        for (group, name, expected) in [
            ("clusterstack.x-k8s.io", "ClusterStack", true),
            ("clusterstack.x-k8s.io", "ClusterAddon", true),
            ("infrastructure.clusterstack.x-k8s.io", "ProviderNodeImageRelease", true),
            ("cluster.x-k8s.io", "Cluster", true),
            ("batch", "Job", true),
            ("cluster.x-k8s.io", "ClusterClass", false),
            ("infrastructure.cluster.x-k8s.io", "DockerClusterTemplate", false),
            ("", "ConfigMap", false),
        ] {
            let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
            let object = json!({"apiVersion": version, "kind": name, "metadata": {"name": "x"}});
            let resource = ApiResource {
                group: group.into(),
                version: "v1".into(),
                api_version: version,
                kind: name.into(),
                plural: "things".into(),
            };
            let kind = Kind { resource, namespaced: true };
            for (is_operator, only) in [(true, Some("shop")), (true, None), (false, None)] {
                let manifest = Manifest::from_value(object.clone()).unwrap();
                let desired = desired(manifest, Ok(Some(&kind)), "shop", (only, is_operator));
                assert_eq!(desired.obstacle.is_some(), expected && is_operator, "{group} {name} {only:?}");
            }
        }
    }
}
