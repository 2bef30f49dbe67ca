//! `ClusterStack`: the one object that a user creates.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Deserializer, Serialize};

use super::condition::Condition;
use super::source::{Approval, Pin, Receiver, Source, SourceReference, Verify};
use super::{IMMUTABLE, INTERVAL_MESSAGE, INTERVAL_RULE, PROVIDER_REF_MESSAGE, PROVIDER_REF_RULE, TOGETHER, all_of};

/// What a ClusterStack should bring: which releases, from where, applied how.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "clusterstack.x-k8s.io",
    version = "v1alpha1",
    kind = "ClusterStack",
    namespaced,
    status = "ClusterStackStatus",
    shortname = "csk",
    category = "cluster-stack",
    category = "cluster-api",
    derive = "PartialEq",
    doc = "ClusterStack subscribes a management cluster to the releases of one cluster stack.",
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.provider"),
    printcolumn(name = "ClusterStack", type_ = "string", json_path = ".spec.name"),
    printcolumn(name = "K8s", type_ = "string", json_path = ".spec.kubernetesVersion"),
    printcolumn(name = "Channel", type_ = "string", json_path = ".spec.channel"),
    printcolumn(name = "Autosubscribe", type_ = "string", json_path = ".spec.autoSubscribe"),
    printcolumn(name = "Usable", type_ = "string", json_path = ".status.usableVersions"),
    printcolumn(name = "Latest", type_ = "string", json_path = ".status.latestRelease"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since the ClusterStack was created"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].message")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.noProvider || has(self.providerRef) || has(self.sourceRef)").message("providerRef is needed unless noProvider is true or sourceRef names a source with a provider").reason(Reason::FieldValueRequired),
    validation = all_of(&TOGETHER),
    validation = all_of(&IMMUTABLE),
)]
pub struct ClusterStackSpec {
    /// Infrastructure provider of the cluster stack, for example `openstack`.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub provider: String,

    /// Name of the cluster stack, for example `scs`.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,

    /// Kubernetes minor version, `<major>.<minor>`, for example `1.34`.
    #[schemars(length(max = 16), regex(pattern = r"^\d\.\d+$"))]
    pub kubernetes_version: String,

    /// Release channel: `stable` has versions like `v2`, `custom` those with a pre-release part.
    #[serde(default)]
    pub channel: Channel,

    /// Versions that have to be there whatever autoSubscribe finds: `v2`, in channel custom `v0-sha.abc`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[schemars(
        length(max = 128),
        inner(length(max = 64), regex(pattern = r"^v(0|[1-9][0-9]{0,17})(-[a-zA-Z0-9]+[.-][a-zA-Z0-9]+)?$"))
    )]
    pub versions: Vec<String>,

    /// Take the newest matching release of the source as soon as it is there.
    #[serde(default = "yes")]
    pub auto_subscribe: bool,

    /// There is no provider-specific work: no provider object is made or waited for.
    #[serde(default)]
    pub no_provider: bool,

    /// The provider's template (`…Template`) from which each release gets its provider object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(PROVIDER_REF_RULE).message(PROVIDER_REF_MESSAGE))]
    pub provider_ref: Option<ObjectReference>,

    /// Where releases come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,

    /// A ClusterStackSource that says where releases come from, instead of `source`. With neither, the operator's
    /// environment names the source, as it does for the Go operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ref: Option<SourceReference>,

    /// Signatures that a release must carry before anything of it is unpacked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,

    /// Only releases whose number is in this range are subscribed: comparisons such as `>=2 <5`, `||` between
    /// alternatives, in Masterminds' syntax; release `v2` counts as `2.0.0`, `v2-beta.3` as `2.0.0-beta.3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub version_range: Option<String>,

    /// In channel custom: only versions of these pre-release channels are subscribed, for example `beta`, `rc`, `sha`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63), regex(pattern = r"^[a-zA-Z0-9]+$")))]
    pub pre_releases: Vec<String>,

    /// Digests that releases must have; a release of another digest is not taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["version".into()]))]
    #[schemars(length(max = 128))]
    pub pin: Vec<Pin>,

    /// `automatic` (the default) takes a new release as it comes; `manual` shows it in `status.available` until somebody
    /// approves it with `clusterstack approve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,

    /// How long a new release must have been on offer before it is taken: a duration such as `24h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub bake_time: Option<String>,

    /// How often the source is polled: a duration such as `5m` or `1h30m`, at least 10s. Defaults to 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    #[x_kube(validation = Rule::new(INTERVAL_RULE).message(INTERVAL_MESSAGE))]
    pub interval: Option<String>,

    /// Lets the operator's receiver be told that the source has something new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiver: Option<Receiver>,

    /// Do nothing: no poll, no apply, no drift correction, no collection. Deletion still works.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,

    /// How many unused ready releases stay, the newest ready one counted. Defaults to 1; the newest ready one always stays, and while
    /// none is ready, each that was applied whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub keep: Option<u32>,

    /// Fields of applied objects that are left to others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 64))]
    pub ignore_differences: Vec<IgnoreDifference>,

    /// What happens when an applied object was changed by hand: `correct` (the default) puts it back, `warn` only says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_mode: Option<DriftMode>,

    /// ServiceAccount of this namespace with whose rights the release is applied. Without it only namespaced objects of
    /// this namespace are applied, unless the operator's flags say otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub service_account_name: Option<String>,
}

/// Release channel of a ClusterStack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Channel {
    /// Versions without a pre-release part.
    #[default]
    Stable,
    /// Versions with one.
    Custom,
}

/// What is done about drift.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DriftMode {
    /// Put back.
    #[default]
    Correct,
    /// Say so and leave it.
    Warn,
}

/// Fields that are left to others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IgnoreDifference {
    /// API group of the objects; empty is the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub group: String,
    /// Kind of the objects.
    #[schemars(length(min = 1, max = 253))]
    pub kind: String,
    /// Name of the object; every object of the kind without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// JSON pointers (RFC 6901) of the fields. A place in a list is that in the chart; a list that the API server takes as a whole
    /// (`atomic`) has to be named itself. Of `metadata`, labels and annotations of others can be left, and nothing else.
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 1024), regex(pattern = r"^/")))]
    pub json_pointers: Vec<String>,
}

/// What was found and done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStackStatus {
    /// Newest ready release and its Kubernetes version: `docker-scs-1-34-v2 | v1.34.7`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub latest_release: String,
    /// Versions of the ready releases, newest first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 16384))]
    pub usable_versions: String,
    /// A line per release.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 512))]
    pub summary: Vec<ReleaseSummary>,
    /// Releases of this stack that are on offer and not taken yet, newest first, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 200))]
    pub available: Vec<AvailableRelease>,
    /// The last successful reading of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_poll: Option<LastPoll>,
    /// Value of the annotation `clusterstack.x-k8s.io/reconcile-at` that was last acted on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub last_handled_reconcile_at: String,
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions; `Ready` sums the others up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,
}

/// A release in one line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseSummary {
    /// Name of the ClusterStackRelease.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Whether Clusters can use it.
    pub ready: bool,
    /// The phase in CSO's words: `downloading release assets`, `provider-specific work`, `applying objects`, `done`.
    #[schemars(length(max = 64))]
    pub phase: String,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// Why it stays: `InUse`, `InVersions`, `NewestFound`, `NewestReady`, `Kept`, or `Undecided`: what would decide is not known now.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub kept: String,
}

/// A release that is on offer and not taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AvailableRelease {
    /// Its name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// What its tag names.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub revision: String,
    /// When it was first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_seen: Option<Time>,
    /// Why it is not taken: `WaitsForApproval`, `Baking`, `NotOffered`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub reason: String,
    /// What it contains, or more about the reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// A successful reading of the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastPoll {
    /// When what it found was first seen. It stays while polls find the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// Digest over the tags and what they name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub revision: String,
    /// Releases of this stack, Kubernetes version and channel.
    #[serde(default)]
    pub found: u32,
    /// Tags that are no releases; they are passed over.
    #[serde(default)]
    pub passed_over: u32,
}

fn yes() -> bool {
    true
}

/// The Go operator writes an empty list as `null`.
fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
