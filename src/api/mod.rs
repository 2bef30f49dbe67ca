//! Wire types of `clusterstack.x-k8s.io/v1alpha1`: serde and schema only, no decisions.
//!
//! Wire-compatible with the Go cluster-stack-operator: same JSON names, defaults and meanings; every field that it does
//! not know is optional. Each literal of the API (group, finalizers, labels, annotations) exists once, here.

pub mod cluster_stack;
pub mod cluster_stack_release;
pub mod cluster_stack_source;
pub mod condition;
pub mod source;

pub use cluster_stack::{ClusterStack, ClusterStackSpec, ClusterStackStatus};
pub use cluster_stack_release::{ClusterStackRelease, ClusterStackReleaseSpec, ClusterStackReleaseStatus};
pub use cluster_stack_source::{ClusterStackSource, ClusterStackSourceSpec, ClusterStackSourceStatus};
pub use condition::{Condition, ConditionType, Reason};

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;

/// API group of our objects.
pub const GROUP: &str = "clusterstack.x-k8s.io";
/// Served and stored version.
pub const VERSION: &str = "v1alpha1";
/// Group and version as objects write them.
pub const API_VERSION: &str = "clusterstack.x-k8s.io/v1alpha1";
/// Field manager of every server-side apply of ours.
pub const FIELD_MANAGER: &str = "clusterstack";
/// Field manager by which the Go operator applied (and `kubectl` by default).
pub const CSO_FIELD_MANAGER: &str = "kubectl";

/// Holds a ClusterStack until its releases are gone.
pub const CLUSTER_STACK_FINALIZER: &str = "clusterstack.clusterstack.x-k8s.io";
/// Holds a ClusterStackRelease until what it applied is gone. The Go operator's own name for it.
pub const CLUSTER_STACK_RELEASE_FINALIZER: &str = "clusterstackrelease.clusterstack.x-k8s.io";

/// Recommended label: what manages an object.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY_LABEL`] on what we apply.
pub const MANAGED_BY: &str = "clusterstack";
/// Label on an applied object: kind of its owner.
pub const OWNER_KIND_LABEL: &str = "clusterstack.x-k8s.io/owner-kind";
/// Label on an applied object: namespace of its owner.
pub const OWNER_NAMESPACE_LABEL: &str = "clusterstack.x-k8s.io/owner-namespace";
/// Label on an applied object: name of its owner (shortened with a digest where longer than a label value may be).
pub const OWNER_NAME_LABEL: &str = "clusterstack.x-k8s.io/owner-name";
/// Label on a ClusterStackRelease: the ClusterStack that subscribed it.
pub const CLUSTER_STACK_LABEL: &str = "clusterstack.x-k8s.io/cluster-stack";

/// Annotation that asks to look again now; its value (a time, say) only has to change.
pub const RECONCILE_AT: &str = "clusterstack.x-k8s.io/reconcile-at";
/// Annotation on a ClusterStack with `approval: manual`: versions that may be taken, separated by commas.
pub const APPROVED: &str = "clusterstack.x-k8s.io/approved";
/// Annotation on a ClusterStack or ClusterStackRelease: `orphan` leaves what was applied when the object is deleted.
pub const DELETION_POLICY: &str = "clusterstack.x-k8s.io/deletion-policy";
/// Annotation on an applied object: `disabled` never prunes it, `enabled` opts a retained kind in.
pub const PRUNE: &str = "clusterstack.x-k8s.io/prune";
/// Helm's annotation: `keep` never prunes the object.
pub const HELM_RESOURCE_POLICY: &str = "helm.sh/resource-policy";
/// Cluster API's label that `--watch-filter` matches.
pub const WATCH_LABEL: &str = "cluster.x-k8s.io/watch-filter";
/// Cluster API's annotation: who gave an object its form.
pub const CLONED_FROM_NAME: &str = "cluster.x-k8s.io/cloned-from-name";
/// Cluster API's label: the Cluster an object belongs to.
pub const CLUSTER_NAME_LABEL: &str = "cluster.x-k8s.io/cluster-name";

/// Every CustomResourceDefinition of ours, in the order in which they are printed and installed.
pub fn custom_resource_definitions() -> Vec<CustomResourceDefinition> {
    vec![finished(ClusterStack::crd()), finished(ClusterStackRelease::crd()), finished(ClusterStackSource::crd())]
}

/// Adds what the derive can't say: labels that `clusterctl move` and selectors use; and takes away formats that the API
/// server does not know and warns of.
fn finished(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for schema in
        crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut())
    {
        without_unsigned(schema);
    }
    let labels = crd.metadata.labels.get_or_insert_default();
    labels.insert("app.kubernetes.io/name".into(), "clusterstack".into());
    labels.insert("clusterctl.cluster.x-k8s.io/move-hierarchy".into(), String::new());
    crd
}

fn without_unsigned(schema: &mut JSONSchemaProps) {
    if schema.format.as_deref().is_some_and(|format| format.starts_with("uint")) {
        schema.format = None;
    }
    for property in schema.properties.iter_mut().flat_map(BTreeMap::values_mut) {
        without_unsigned(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        without_unsigned(items);
    }
}
