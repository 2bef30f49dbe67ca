//! `ClusterStackSource`: a source that a provider shares with many ClusterStacks.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::cluster_stack::{Channel, LastPoll};
use super::condition::Condition;
use super::source::{Receiver, Source, Verify};
use super::{INTERVAL_MESSAGE, INTERVAL_RULE, PROVIDER_REF_MESSAGE, PROVIDER_REF_RULE, VERIFY_MESSAGE, VERIFY_RULE};

/// Where releases come from, how it is polled, and what of it is on offer to whom.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "clusterstack.x-k8s.io",
    version = "v1alpha1",
    kind = "ClusterStackSource",
    namespaced,
    status = "ClusterStackSourceStatus",
    shortname = "css",
    category = "cluster-stack",
    category = "cluster-api",
    derive = "PartialEq",
    doc = "ClusterStackSource shares a source of releases, and its credentials, with ClusterStacks.",
    printcolumn(name = "URL", type_ = "string", json_path = ".status.url"),
    printcolumn(name = "Releases", type_ = "integer", json_path = ".status.releasesFound"),
    printcolumn(name = "Newest", type_ = "string", json_path = ".status.releases[0].name"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Next poll", type_ = "string", json_path = ".status.nextPoll", priority = 1),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since the ClusterStackSource was created"
    ),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].message")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(VERIFY_RULE).message(VERIFY_MESSAGE))]
pub struct ClusterStackSourceSpec {
    /// Where releases come from.
    pub source: Source,

    /// How often the source is polled: a duration such as `5m` or `1h30m`, at least 10s. Defaults to 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    #[x_kube(validation = Rule::new(INTERVAL_RULE).message(INTERVAL_MESSAGE))]
    pub interval: Option<String>,

    /// Lets the operator's receiver be told that the source has something new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiver: Option<Receiver>,

    /// Don't poll, and subscribe nothing new from it. What is applied stays.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,

    /// Signatures that a release must carry before anything of it is unpacked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,

    /// Which other namespaces may use it; its own always may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,

    /// What is on offer; everything without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<OfferRules>,

    /// The provider's template (`…Template`) for ClusterStacks that name none; of this object's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(PROVIDER_REF_RULE).message(PROVIDER_REF_MESSAGE))]
    pub provider_ref: Option<ObjectReference>,
}

/// Namespaces, by name or by label. Either is enough.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowedNamespaces {
    /// Names; `*` is every namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 63)))]
    pub names: Vec<String>,
    /// Labels of the Namespace. Empty matches every namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// What of a source is on offer. Each rule that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OfferRules {
    /// Only these stacks: `<provider>/<name>`, either may be `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[schemars(length(max = 256), inner(length(min = 1, max = 128), regex(pattern = r"^[^/]+/[^/]+$")))]
    pub stacks: Vec<String>,
    /// None of these stacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[schemars(length(max = 256), inner(length(min = 1, max = 128), regex(pattern = r"^[^/]+/[^/]+$")))]
    pub deny_stacks: Vec<String>,
    /// Only these minor versions of Kubernetes, for example `1.34`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[schemars(length(max = 64), inner(length(max = 16), regex(pattern = r"^\d\.\d+$")))]
    pub kubernetes_versions: Vec<String>,
    /// None of these minor versions of Kubernetes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[schemars(length(max = 64), inner(length(max = 16), regex(pattern = r"^\d\.\d+$")))]
    pub deny_kubernetes_versions: Vec<String>,
    /// Only these channels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[schemars(length(max = 2))]
    pub channels: Vec<Channel>,
    /// Only release versions in this range, as in `versionRange` of a ClusterStack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub version_range: Option<String>,
    /// Only these releases, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 253)))]
    pub approved_releases: Vec<String>,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStackSourceStatus {
    /// The source, without credentials.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 2048))]
    pub url: String,
    /// Releases that are on offer.
    #[serde(default)]
    pub releases_found: u32,
    /// The newest 200 of them, newest first within each stack.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 200))]
    pub releases: Vec<OfferedRelease>,
    /// The last successful reading of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_poll: Option<LastPoll>,
    /// When it is read again, about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_poll: Option<Time>,
    /// What is left of the server's quota of requests, where it tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
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

/// A release on offer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OfferedRelease {
    /// Its name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// What its tag names, where the listing tells.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub revision: String,
}

/// A server's quota of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Quota {
    /// Requests in a period.
    pub limit: u64,
    /// Requests left in this one.
    pub remaining: u64,
    /// When the next period begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<Time>,
}
