//! `ClusterUpgradePlan`: what the upgrade of a Cluster to a release that waits for approval would do.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// Which upgrade it is about. Made by the operator, owned by the Cluster.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "clusterstack.x-k8s.io",
    version = "v1alpha1",
    kind = "ClusterUpgradePlan",
    namespaced,
    status = "ClusterUpgradePlanStatus",
    shortname = "cup",
    category = "cluster-stack",
    category = "cluster-api",
    derive = "PartialEq",
    doc = "ClusterUpgradePlan tells what the upgrade of a Cluster to a release that waits for approval would do.",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.cluster"),
    printcolumn(name = "From", type_ = "string", json_path = ".status.from"),
    printcolumn(name = "To", type_ = "string", json_path = ".spec.release"),
    printcolumn(name = "Kubernetes", type_ = "string", json_path = ".status.kubernetesVersion"),
    printcolumn(name = "Rolls", type_ = "integer", json_path = ".status.counts.rolling"),
    printcolumn(name = "Unknown", type_ = "integer", json_path = ".status.counts.unknown"),
    printcolumn(name = "Added", type_ = "integer", json_path = ".status.counts.addonsAdded"),
    printcolumn(name = "Changed", type_ = "integer", json_path = ".status.counts.addonsChanged"),
    printcolumn(name = "Removed", type_ = "integer", json_path = ".status.counts.addonsRemoved"),
    printcolumn(name = "Refusals", type_ = "string", json_path = ".status.refusals[0]"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message")
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterUpgradePlanSpec {
    /// Name of the Cluster, of the same namespace.
    #[schemars(length(min = 1, max = 253))]
    pub cluster: String,
    /// Name of the release.
    #[schemars(length(min = 1, max = 253))]
    pub release: String,
}

/// What the upgrade would do, in bounds; `clusterstack diff` tells all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterUpgradePlanStatus {
    /// The release that the Cluster has.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub from: String,
    /// The version of Kubernetes that it goes to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub kubernetes_version: String,
    /// How much changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<PlannedCounts>,
    /// Whose machines are replaced: `ControlPlane`, `MachineDeployment <name in the topology>`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 64))]
    pub rolls: Vec<String>,
    /// What would keep the upgrade from being done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 64))]
    pub refusals: Vec<String>,
    /// What changes, a line each; without values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 4096))]
    pub summary: Vec<String>,
    /// There are more lines than fit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Why it, or what becomes of the addons, is not known; empty where it is. It is tried again after ten minutes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// Generation of the Cluster that it was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_generation: Option<i64>,
    /// What the release's tag named when it was computed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub revision: String,
}

/// How much an upgrade changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedCounts {
    /// Control planes and workers whose machines are replaced.
    pub rolling: u32,
    /// Control planes, workers and infrastructures of which it is not known: a template that counts was not read.
    #[serde(default)]
    pub unknown: u32,
    /// Addon objects that come.
    pub addons_added: u32,
    /// Addon objects that change.
    pub addons_changed: u32,
    /// Addon objects that go.
    pub addons_removed: u32,
    /// Variables of the class that change.
    pub variables: u32,
    /// Node images that have to be built.
    pub images: u32,
}
