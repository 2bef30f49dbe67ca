//! `OperatorShard`: what one replica of the operator has of the work.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// Which replica it is about. Made by that replica, and removed when its Lease is gone; nothing depends on it.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "clusterstack.x-k8s.io",
    version = "v1alpha1",
    kind = "OperatorShard",
    status = "OperatorShardStatus",
    shortname = "oshard",
    category = "cluster-stack",
    derive = "PartialEq",
    doc = "OperatorShard tells what one replica of the operator has of the work. It has the name of the replica's Lease.",
    printcolumn(name = "Ready", type_ = "boolean", json_path = ".status.ready"),
    printcolumn(name = "Leader", type_ = "boolean", json_path = ".status.leader"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Stacks", type_ = "integer", json_path = ".status.share.clusterStacks"),
    printcolumn(name = "Clusters", type_ = "integer", json_path = ".status.share.clusters"),
    printcolumn(name = "Images", type_ = "integer", json_path = ".status.share.nodeImages"),
    printcolumn(name = "Builds", type_ = "integer", json_path = ".status.load.buildsRunning"),
    printcolumn(name = "Classes", type_ = "string", json_path = ".status.shardClasses", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct OperatorShardSpec {
    /// Namespace of the replica's Lease.
    #[schemars(length(min = 1, max = 63))]
    pub lease_namespace: String,
    /// Pod or host of the replica, with a tail of its own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 300))]
    pub identity: String,
}

/// What the replica has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperatorShardStatus {
    /// All replicas act by the same members, and this one works.
    #[serde(default)]
    pub ready: bool,
    /// It does what one alone does.
    #[serde(default)]
    pub leader: bool,
    /// Version of the operator.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub version: String,
    /// The shard classes that it takes; none for objects without a class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 64))]
    pub shard_classes: Vec<String>,
    /// The replicas that it sees, itself too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 256))]
    pub members: Vec<String>,
    /// What it works on.
    #[serde(default)]
    pub share: ShardShare,
    /// How much it has to do.
    #[serde(default)]
    pub load: ShardLoad,
    /// Which version of the settings from the ConfigMap it runs with; none without `--settings`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<ShardSettings>,
    /// When its members last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_change: Option<Time>,
}

/// Objects by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShardShare {
    /// ClusterStacks.
    #[serde(default)]
    pub cluster_stacks: u32,
    /// ClusterStackReleases, which go with their ClusterStack.
    #[serde(default)]
    pub releases: u32,
    /// ClusterStackSources.
    #[serde(default)]
    pub sources: u32,
    /// Clusters, with their addons.
    #[serde(default)]
    pub clusters: u32,
    /// Node images, with their builds.
    #[serde(default)]
    pub node_images: u32,
}

/// Versions of the settings that all replicas share, by the digest of what the ConfigMap holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShardSettings {
    /// The one that it runs with.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub running: String,
    /// The one that the ConfigMap holds.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub wanted: String,
    /// Why that one is refused.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub refused: String,
}

/// What is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShardLoad {
    /// Builds of node images that have a place.
    #[serde(default)]
    pub builds_running: u32,
    /// Builds of node images that wait for one.
    #[serde(default)]
    pub builds_queued: u32,
}
