//! Wire types of `clusterstack.x-k8s.io/v1alpha1`: serde and schema only, no decisions.
//!
//! Wire-compatible with the Go cluster-stack-operator: same JSON names, defaults and meanings; every field that it does
//! not know is optional. Each literal of the API (group, finalizers, labels, annotations) exists once, here.

pub mod cluster_addon;
pub mod cluster_stack;
pub mod cluster_stack_release;
pub mod cluster_stack_source;
pub mod cluster_upgrade_plan;
pub mod condition;
pub mod image_destination;
pub mod image_release;
pub mod image_template;
pub mod operator_shard;
mod pod_template;
pub mod provider_release;
pub mod runtime_hooks;
pub mod source;

pub use cluster_addon::{ClusterAddon, ClusterAddonSpec, ClusterAddonStatus};
pub use cluster_stack::{ClusterStack, ClusterStackSpec, ClusterStackStatus};
pub use cluster_stack_release::{ClusterStackRelease, ClusterStackReleaseSpec, ClusterStackReleaseStatus};
pub use cluster_stack_source::{ClusterStackSource, ClusterStackSourceSpec, ClusterStackSourceStatus};
pub use cluster_upgrade_plan::{ClusterUpgradePlan, ClusterUpgradePlanSpec, ClusterUpgradePlanStatus};
pub use condition::{Condition, ConditionType, Reason};
pub use image_release::{ProviderNodeImageRelease, ProviderNodeImageReleaseSpec, ProviderNodeImageReleaseStatus};
pub use image_template::{ProviderClusterStackReleaseTemplate, ProviderClusterStackReleaseTemplateSpec};
pub use operator_shard::{OperatorShard, OperatorShardSpec, OperatorShardStatus};
pub use provider_release::{
    ProviderClusterStackRelease, ProviderClusterStackReleaseSpec, ProviderClusterStackReleaseStatus,
};

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::core::{Message, Rule};
use kube::{CustomResourceExt, ResourceExt};
use serde_json::json;

/// API group of our objects.
pub const GROUP: &str = "clusterstack.x-k8s.io";
/// Served and stored version.
pub const VERSION: &str = "v1alpha1";
/// Group and version as objects write them.
pub const API_VERSION: &str = "clusterstack.x-k8s.io/v1alpha1";
/// API group of the kinds of the built-in provider.
pub const INFRASTRUCTURE_GROUP: &str = "infrastructure.clusterstack.x-k8s.io";
/// Group and version of the built-in provider's kinds as objects write them.
pub const INFRASTRUCTURE_API_VERSION: &str = "infrastructure.clusterstack.x-k8s.io/v1alpha1";
/// Field manager of every server-side apply of ours.
pub const FIELD_MANAGER: &str = "clusterstack";
/// Field manager by which the Go operator applied (and `kubectl` by default).
pub const CSO_FIELD_MANAGER: &str = "kubectl";

/// Holds a ClusterStack until its releases are gone.
pub const CLUSTER_STACK_FINALIZER: &str = "clusterstack.clusterstack.x-k8s.io";
/// Holds a ClusterStackRelease until what it applied is gone. The Go operator's own name for it.
pub const CLUSTER_STACK_RELEASE_FINALIZER: &str = "clusterstackrelease.clusterstack.x-k8s.io";

/// Holds a ClusterAddon until the seed of its Cluster is gone. The Go operator's own name for it.
pub const CLUSTER_ADDON_FINALIZER: &str = "clusteraddon.clusterstack.x-k8s.io";

/// Holds a ProviderNodeImageRelease until its build has ended and its image is removed, or may stay.
pub const NODE_IMAGE_FINALIZER: &str = "providernodeimagerelease.infrastructure.clusterstack.x-k8s.io";

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

/// Annotation on a ClusterStackRelease: where the trace of OpenTelemetry is in which it was found, in W3C's form.
pub const TRACEPARENT: &str = "clusterstack.x-k8s.io/traceparent";

/// Annotation of a ClusterStackRelease: what its tag named when it was made. It outlives a status that is lost.
pub const REVISION: &str = "clusterstack.x-k8s.io/revision";

/// Annotation of a ClusterStackRelease: the digest of its files, where its ClusterStack was edited since, or its source tells no
/// revisions. It outlives a status that is lost, as [`REVISION`] does.
pub const DIGEST: &str = "clusterstack.x-k8s.io/digest";

/// Annotation that asks to look again now; its value (a time, say) only has to change.
pub const RECONCILE_AT: &str = "clusterstack.x-k8s.io/reconcile-at";
/// Annotation on a ProviderNodeImageRelease that cancels its build; its value (a time, say) only has to change.
pub const CANCEL_AT: &str = "clusterstack.x-k8s.io/cancel-at";
/// Annotation on a ProviderNodeImageRelease that starts another try; its value (a time, say) only has to change.
pub const RETRY_AT: &str = "clusterstack.x-k8s.io/retry-at";
/// Annotation on a ProviderNodeImageRelease: the image at its destination, and what it was made of, so that it is found
/// again where the status was lost; or one that is to be taken as it is.
pub const IMAGE_DIGEST: &str = "clusterstack.x-k8s.io/image-digest";
/// Annotation on a ClusterStack with `approval: manual`: versions that may be taken, separated by commas.
pub const APPROVED: &str = "clusterstack.x-k8s.io/approved";
/// Annotation on a ClusterStack or ClusterStackRelease: `orphan` leaves what was applied when the object is deleted.
pub const DELETION_POLICY: &str = "clusterstack.x-k8s.io/deletion-policy";
/// Annotation on an applied object: `disabled` never prunes it, `enabled` opts a retained kind in.
pub const PRUNE: &str = "clusterstack.x-k8s.io/prune";
/// Helm's annotation: `keep` never prunes the object.
pub const HELM_RESOURCE_POLICY: &str = "helm.sh/resource-policy";
/// Annotation on an object of a chart: `"true"` lets it be deleted and made anew where a field that can't be changed did.
pub const REPLACE: &str = "clusterstack.x-k8s.io/replace";
/// Helm's annotation on a hook: its events.
pub const HELM_HOOK: &str = "helm.sh/hook";
/// Annotation on the object of a Helm hook: when it is deleted.
pub const HELM_HOOK_DELETE_POLICY: &str = "helm.sh/hook-delete-policy";
/// Annotation on the object of a Helm hook: the run that made it.
pub const HOOK_RUN: &str = "clusterstack.x-k8s.io/hook-run";
/// Annotation on a Cluster: names of ConfigMaps and Secrets with values for its addons, as `ConfigMap/name` or
/// `Secret/name`, separated by commas.
pub const ADDON_VALUES: &str = "clusterstack.x-k8s.io/addon-values";
/// Annotation on a Cluster: the ClusterClass of another cluster stack that it may change to; its name.
pub const ALLOW_CLASS_CHANGE: &str = "clusterstack.x-k8s.io/allow-class-change";
/// Label by which the Go operator marks what it applied, and its value.
pub const CSO_OWNED_LABEL: (&str, &str) = ("clusterstack.x-k8s.io/instance", "owned");
/// Annotation on a Cluster or its ClusterAddon: stages to pass, as `<release>/<hook>/<stage>`, separated by commas.
pub const SKIP_STAGE: &str = "clusterstack.x-k8s.io/skip-stage";
/// Annotation on a ClusterAddon: runs the `test` hooks of its charts; its value (a time, say) only has to change.
pub const TEST_AT: &str = "clusterstack.x-k8s.io/test-at";
/// Annotation on a Helm hook: how long it may take, for example `30m`; Helm's five minutes without it.
pub const HOOK_TIMEOUT: &str = "clusterstack.x-k8s.io/hook-timeout";
/// Annotation on a ClusterAddon by the Go operator: `created`, or `upgraded` once an upgrade went through.
pub const CSO_STAGE_ANNOTATION: &str = "ClusterAddonStage";
/// Cluster API's annotation: nothing is to be done with the object.
pub const PAUSED: &str = "cluster.x-k8s.io/paused";
/// Annotation that `clusterctl move` puts on what it deletes because it is elsewhere now.
pub const DELETE_FOR_MOVE: &str = "clusterctl.cluster.x-k8s.io/delete-for-move";
/// Whether `clusterctl move` deletes an object here because it is elsewhere now: what it stands for stays.
pub fn is_moved<K: kube::ResourceExt>(object: &K) -> bool {
    object.annotations().contains_key(DELETE_FOR_MOVE)
}
/// Cluster API's label that `--watch-filter` matches.
pub const WATCH_LABEL: &str = "cluster.x-k8s.io/watch-filter";
/// Label on a Job, its pod and its recipe: UID of the object that stands for the node image.
pub const IMAGE_UID_LABEL: &str = "clusterstack.x-k8s.io/node-image-uid";
/// Label beside [`IMAGE_UID_LABEL`]: number of the attempt.
pub const IMAGE_ATTEMPT_LABEL: &str = "clusterstack.x-k8s.io/attempt";
/// Annotation beside [`IMAGE_UID_LABEL`]: digest over all that the build depends on.
pub const IMAGE_INPUTS: &str = "clusterstack.x-k8s.io/inputs";
/// Annotation that the pod of a build sets on itself: how far it is, as `done[/total] [step]`.
pub const IMAGE_PROGRESS: &str = "clusterstack.x-k8s.io/progress";
/// Label on the CustomResourceDefinition of a provider's kind: the contract that it follows.
pub const PROVIDER_CONTRACT_LABEL: &str = "clusterstack.x-k8s.io/provider-contract";
/// Value of [`PROVIDER_CONTRACT_LABEL`]: the contract of this version.
pub const PROVIDER_CONTRACT: &str = "v1alpha1";
/// Label on a role of the cluster, with value `true`: its rules become rights of the operator.
pub const AGGREGATE_LABEL: &str = "clusterstack.x-k8s.io/aggregate-to-operator";
/// Cluster API's annotation: who gave an object its form.
pub const CLONED_FROM_NAME: &str = "cluster.x-k8s.io/cloned-from-name";
/// Annotation with the namespace of the template that an object was made of, where it is another one.
pub const CLONED_FROM_NAMESPACE: &str = "clusterstack.x-k8s.io/cloned-from-namespace";
/// Label on the Lease of a replica of the operator, with value `true`.
pub const MEMBER_LABEL: &str = "clusterstack.x-k8s.io/member";
/// Annotation on the Lease of a replica: by which members it acts.
pub const MEMBERS: &str = "clusterstack.x-k8s.io/members";
/// Annotation on the Lease of a replica: what it takes, as JSON.
pub const REACH: &str = "clusterstack.x-k8s.io/reach";
/// Annotation on the Lease of a replica: objects of others that it was told to look at, as JSON.
pub const TOLD: &str = "clusterstack.x-k8s.io/told";
/// Annotation of the ConfigMap with the operator's settings: what it held when they were last good.
pub const SETTINGS_BEFORE: &str = "clusterstack.x-k8s.io/last-good-settings";
/// Label on a ClusterStack, ClusterStackSource or Cluster: which replicas work on it, by `--shard-class`.
pub const SHARD_CLASS: &str = "clusterstack.x-k8s.io/shard-class";
/// What an interval has to be, in CEL: never an error of CEL itself, of which a stored object could not be rid.
const INTERVAL_RULE: &str = "self != '' && self.matches('^([0-9]{1,5}([.][0-9]{1,6})?h)?([0-9]{1,7}([.][0-9]{1,6})?m)?([0-9]{1,9}([.][0-9]{1,6})?s)?([0-9]{1,9}ms)?$') && duration(self) >= duration('10s')";
/// What is said of an interval that is none.
const INTERVAL_MESSAGE: &str = "interval must be at least 10s, in hours, minutes and seconds such as 1h30m";
/// What a reference to a provider's template has to be, in CEL.
const PROVIDER_REF_RULE: &str = "has(self.kind) && self.kind.endsWith('Template') && has(self.name) && self.name != '' && has(self.apiVersion) && self.apiVersion != ''";
/// What is said of a reference to something else.
const PROVIDER_REF_MESSAGE: &str = "providerRef must name apiVersion, kind (one that ends in Template) and name";
/// Which verification a source can have, in CEL. One rule for all, for every write of an object weighs each rule.
const VERIFY_RULE: &str = "!has(self.verify) || !has(self.source) || ((!has(self.verify.git) || has(self.source.git)) && (!has(self.verify.cosign) || has(self.source.oci)) && (!has(self.verify.checksums) || !(has(self.source.git) || has(self.source.oci))))";
/// What is said of a verification that its source can't have.
const VERIFY_MESSAGE: &str = "verify.git is for source git, verify.cosign is for source oci, and verify.checksums is for sources github, gitlab and directory";
/// Which fields of a ClusterStack belong together, in CEL, each with what is said where they don't.
const TOGETHER: [(&str, &str); 4] = [
    ("!(has(self.source) && has(self.sourceRef))", "source and sourceRef exclude each other: set one"),
    (
        "!has(self.versions) || self.versions.all(v, v.contains('-') == (self.channel == 'custom'))",
        "versions like v2 belong to the stable channel, versions like v0-sha.abc belong to channel custom",
    ),
    (
        "!has(self.preReleases) || self.preReleases.size() == 0 || self.channel == 'custom'",
        "preReleases is for channel custom: the stable channel has none",
    ),
    (VERIFY_RULE, VERIFY_MESSAGE),
];
/// What of a ClusterStack is never changed, in CEL, each with what is said of a change.
const IMMUTABLE: [(&str, &str); 4] = [
    ("self.provider == oldSelf.provider", "provider is immutable: create another ClusterStack"),
    ("self.name == oldSelf.name", "name is immutable: create another ClusterStack"),
    (
        "self.kubernetesVersion == oldSelf.kubernetesVersion",
        "kubernetesVersion is immutable: create another ClusterStack",
    ),
    ("self.channel == oldSelf.channel", "channel is immutable: create another ClusterStack"),
];
/// The same of a node image's object.
const IMMUTABLE_IMAGE: [(&str, &str); 3] = [
    ("self.templateRef == oldSelf.templateRef", "templateRef can't be changed: make another object"),
    ("self.image == oldSelf.image", "image can't be changed: make another object"),
    ("self.inputs == oldSelf.inputs", "inputs can't be changed: make another object"),
];
/// Cluster API's label: the Cluster an object belongs to.
pub const CLUSTER_NAME_LABEL: &str = "cluster.x-k8s.io/cluster-name";

/// One rule of CEL for several, told in the words of the first that does not hold: an API server weighs every rule at every write of an
/// object, that of a status too. (To tell of all of them, texts would be joined, which it takes to cost without a bound.)
fn all_of(rules: &[(&str, &str)]) -> Rule {
    let rule: Vec<String> = rules.iter().map(|(rule, _)| format!("({rule})")).collect();
    let (last, others) = rules.split_last().map_or(("", rules), |((_, message), others)| (*message, others));
    let told = others
        .iter()
        .rev()
        .fold(format!("{last:?}"), |told, (rule, message)| format!("!({rule}) ? {message:?} : {told}"));
    Rule::new(rule.join(" && ")).message(Message::Expression(told))
}

/// Every CustomResourceDefinition of ours, in the order in which they are printed and installed.
pub fn custom_resource_definitions() -> Vec<CustomResourceDefinition> {
    vec![
        finished(ClusterStack::crd()),
        finished(ClusterStackRelease::crd()),
        finished(ClusterStackSource::crd()),
        finished(ClusterAddon::crd()),
        finished(ClusterUpgradePlan::crd()),
        unmoved(finished(OperatorShard::crd())),
        providing(finished(ProviderClusterStackRelease::crd())),
        finished(ProviderClusterStackReleaseTemplate::crd()),
        finished(ProviderNodeImageRelease::crd()),
    ]
}

/// Says which contract the built-in provider follows.
fn providing(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let labels = crd.metadata.labels.get_or_insert_default();
    labels.insert(PROVIDER_CONTRACT_LABEL.into(), PROVIDER_CONTRACT.into());
    crd
}

/// Adds what the derive can't say: labels that `clusterctl move` and selectors use, and the status of what nobody has looked at
/// yet; and takes away formats that the API server does not know and warns of.
fn finished(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for schema in
        crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut())
    {
        without_unsigned(schema);
        not_observed(schema);
    }
    let labels = crd.metadata.labels.get_or_insert_default();
    labels.insert("app.kubernetes.io/name".into(), "clusterstack".into());
    // It looks at kinds with the first alone, and takes what the second says with all that it owns.
    labels.insert("clusterctl.cluster.x-k8s.io".into(), String::new());
    labels.insert("clusterctl.cluster.x-k8s.io/move-hierarchy".into(), String::new());
    crd
}

/// `clusterctl move` leaves it: it is about the management cluster that it is in.
fn unmoved(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for label in ["clusterctl.cluster.x-k8s.io", "clusterctl.cluster.x-k8s.io/move-hierarchy"] {
        crd.labels_mut().remove(label);
    }
    crd
}

/// What has no status yet was observed in no generation: kstatus takes an object that says nothing for one that is done, and
/// who waits for it would go on before anybody has looked at it.
fn not_observed(schema: &mut JSONSchemaProps) {
    let status = schema.properties.as_mut().and_then(|properties| properties.get_mut("status"));
    let reports = |status: &&mut JSONSchemaProps| {
        status.properties.as_ref().is_some_and(|properties| properties.contains_key("observedGeneration"))
    };
    if let Some(status) = status.filter(reports) {
        status.default = Some(JSON(json!({"observedGeneration": -1})));
    }
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
