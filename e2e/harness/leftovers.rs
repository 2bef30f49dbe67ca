//! What another operator, or an older one, left in the cluster.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::control_plane::install;
use super::world::World;

/// A kind with free spec and status, of version `v1` unless `group` says another.
pub(crate) fn small_kind(group: &str, kind: &str) -> CustomResourceDefinition {
    let (group, version) = group.split_once('/').unwrap_or((group, "v1"));
    let plural = format!("{}s", kind.to_lowercase());
    let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{
                "name": version, "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": free, "status": free}}},
            }],
        },
    });
    serde_json::from_value(definition).expect("no CRD")
}

/// Installs a small kind; it is removed with the world.
pub(crate) async fn install_small_kind(t: &World, group: &str, kind: &str) {
    let definition = small_kind(group, kind);
    t.remove_at_end("apiextensions.k8s.io/v1", "CustomResourceDefinition", &definition.name_any());
    // First, so that nobody finds the kind and may not use it.
    t.add_rights(&definition.spec.group, &[&definition.spec.names.plural]).await;
    install(&t.client, &definition).await;
}

/// A ClusterStack with one release as the Go operator leaves them: objects applied by field manager `kubectl`, without
/// labels, and an inventory without digests.
pub(crate) async fn leave_behind(t: &World, stack: &str, url: &str, release: &str, objects: &[Value]) {
    t.create_stack(stack, url, json!({})).await;
    let mut rows = Vec::new();
    for object in objects {
        let applied = t.apply_as("kubectl", object).await;
        let text = |pointer: &str| applied.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let api_version = text("/apiVersion");
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        rows.push(json!({
            "group": group, "version": version, "kind": text("/kind"),
            "namespace": t.namespace, "name": text("/metadata/name"), "status": "synced",
        }));
    }
    let owner = t.stacks().get(stack).await.expect("no ClusterStack");
    let made = serde_json::from_value(json!({
        "apiVersion": clusterstack::api::API_VERSION,
        "kind": "ClusterStackRelease",
        "metadata": {
            "name": release,
            "finalizers": [clusterstack::api::CLUSTER_STACK_RELEASE_FINALIZER],
            "ownerReferences": [{
                "apiVersion": clusterstack::api::API_VERSION, "kind": "ClusterStack",
                "name": stack, "uid": owner.metadata.uid,
            }],
        },
        "spec": {},
    }));
    t.releases().create(&PostParams::default(), &made.expect("no release")).await.expect("release");
    let since = "2025-01-01T00:00:00Z";
    let status = json!({"status": {
        "ready": true,
        "kubernetesversion": "v1.34.7",
        "resources": rows,
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": since},
            {"type": "HelmChartApplied", "status": "True", "lastTransitionTime": since},
        ],
    }});
    t.releases().patch_status(release, &PatchParams::default(), &Patch::Merge(status)).await.expect("status");
}
