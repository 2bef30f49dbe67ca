//! `ClusterStackRelease`: one release, applied.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::condition::Condition;

/// What a ClusterStackRelease is made from. It is created by a ClusterStack and carries the release's name.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "clusterstack.x-k8s.io",
    version = "v1alpha1",
    kind = "ClusterStackRelease",
    namespaced,
    status = "ClusterStackReleaseStatus",
    shortname = "cskr",
    category = "cluster-stack",
    category = "cluster-api",
    derive = "PartialEq",
    doc = "ClusterStackRelease is one release of a cluster stack on this management cluster.",
    printcolumn(name = "K8s Version", type_ = "string", json_path = ".status.kubernetesVersion"),
    printcolumn(name = "Ready", type_ = "boolean", json_path = ".status.ready"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since the ClusterStackRelease was created"
    ),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].message")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(oldSelf.providerRef) || (has(self.providerRef) && self.providerRef == oldSelf.providerRef)").message("providerRef can't be changed: delete the release, and it is made anew from the template that the ClusterStack names. One that is in use is annotated clusterstack.x-k8s.io/deletion-policy: orphan before"),
)]
pub struct ClusterStackReleaseSpec {
    /// The provider's object of this release; absent with noProvider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_ref: Option<ObjectReference>,
}

/// What was fetched and applied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStackReleaseStatus {
    /// Every object of the release: the inventory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 10000))]
    pub resources: Vec<Resource>,
    /// Objects that the release no longer contains and that are never pruned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 10000))]
    pub retained: Vec<Resource>,
    /// Kubernetes version of the release with its patch, for example `v1.34.7`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub kubernetes_version: String,
    /// Versions of Kubernetes that machines of the release can run: its own, and those that its node images name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 256), inner(length(max = 64)))]
    pub node_versions: Vec<String>,
    /// Whether Clusters can use the release.
    #[serde(default)]
    pub ready: bool,
    /// What was fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Artifact>,
    /// The ServiceAccount by which objects were applied last; empty with the operator's own rights. What remains of a release
    /// whose ClusterStack is gone is deleted as this one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub applied_as: String,
    /// Value of the annotation `clusterstack.x-k8s.io/reconcile-at` that was last acted on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub last_handled_reconcile_at: String,
    /// What the ClusterStack had handled of its annotation `clusterstack.x-k8s.io/reconcile-at` when the last pass began that did not
    /// make the release Ready: what is said of a release that is not Ready was found after that.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub last_attempted_reconcile_at: String,
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions; `Ready` sums the others up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,
}

/// One object of a release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// API group; empty is the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub group: String,
    /// API version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub version: String,
    /// Kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub kind: String,
    /// Namespace; empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub name: String,
    /// The stage whose chart it is of, for objects of a ClusterAddon.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub stage: String,
    /// `synced` or `not-synced`.
    #[serde(default)]
    pub status: ResourceStatus,
    /// Health by kstatus rules: `Current`, `InProgress`, `Failed`, `Terminating`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    pub health: String,
    /// Why it is not synced, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<crate::api::condition::Reason>,
    /// Why it is not synced or not healthy, in the API server's own words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub error: String,
    /// Digest of what was last sent and, behind a dot, of the fields that were ours right after it. A dot alone: it was never
    /// applied. A question mark: it was about to be. `go`: the Go operator applied it, and nobody since.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub digest: String,
}

/// Whether an object is as the release wants it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum ResourceStatus {
    /// Applied.
    #[serde(rename = "synced")]
    Synced,
    /// Not applied, or not as wanted.
    #[default]
    #[serde(rename = "not-synced")]
    NotSynced,
}

/// What was fetched, and from where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// What the tag names: a commit, the digest of an OCI manifest, or a digest over assets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub revision: String,
    /// Digest of the release's files, `sha256:…`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub digest: String,
    /// The source, without credentials.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 2048))]
    pub url: String,
    /// The ClusterStackSource through which it was fetched, `namespace/name`; nothing where the ClusterStack has a source
    /// of its own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 317))]
    pub offered_by: String,
    /// Who signed it, where `verify` asked for that when it was fetched.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub verified_by: String,
    /// Digest of the `verify` that held then. With another one, the release is fetched and verified again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub verify_digest: String,
}
