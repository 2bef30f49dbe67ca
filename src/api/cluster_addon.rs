//! `ClusterAddon`: the addons of one workload cluster.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::cluster_stack::IgnoreDifference;
use super::cluster_stack_release::Resource;
use super::condition::Condition;

/// Which addons a workload cluster has. It is created for each Cluster whose ClusterClass is of a cluster stack, with the
/// name `cluster-addon-<cluster>`, and goes with it.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "clusterstack.x-k8s.io",
    version = "v1alpha1",
    kind = "ClusterAddon",
    namespaced,
    status = "ClusterAddonStatus",
    shortname = "caddon",
    category = "cluster-stack",
    category = "cluster-api",
    derive = "PartialEq",
    doc = "ClusterAddon brings the addons of a cluster stack to one workload cluster.",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterRef.name"),
    printcolumn(name = "Release", type_ = "string", json_path = ".status.release"),
    printcolumn(
        name = "Hook",
        type_ = "string",
        json_path = ".status.hook",
        description = "The hook whose stages run"
    ),
    printcolumn(name = "Ready", type_ = "boolean", json_path = ".status.ready"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since the ClusterAddon was created"
    ),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].message")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(oldSelf.clusterRef.name) || (has(self.clusterRef.name) && self.clusterRef.name == oldSelf.clusterRef.name)").message("clusterRef can't be changed: each Cluster has a ClusterAddon of its own, which the operator makes"),
)]
pub struct ClusterAddonSpec {
    /// The release whose stages were all done last. The operator writes it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub cluster_stack: String,
    /// Version of the addon charts of that release. The operator writes it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub version: String,
    /// The hook that Cluster API called and that is not done. The operator writes it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub hook: String,
    /// The Cluster.
    pub cluster_ref: ObjectReference,
    /// Nothing is written to the workload cluster while this is true.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// Values of your own for the addon charts, merged last, where the stack's `clusteraddon.yaml` allows it: by the names of
    /// its stages, or for the one chart where there are no stages.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "any_object")]
    pub values: Map<String, Value>,
    /// ConfigMaps and Secrets of the same namespace that hold more of them; later ones win, and `values` over all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 32))]
    pub values_from: Vec<ValuesReference>,
    /// Fields of applied objects that are left to others, beside those that the stages leave to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 64))]
    pub ignore_differences: Vec<IgnoreDifference>,
}

/// Where values are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValuesReference {
    /// `ConfigMap` or `Secret`.
    pub kind: ValuesKind,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key that holds the values as YAML.
    #[serde(default = "values_yaml")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// No error if it does not exist, or has no such key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// What can hold values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum ValuesKind {
    /// A ConfigMap.
    #[default]
    ConfigMap,
    /// A Secret.
    Secret,
}

fn values_yaml() -> String {
    "values.yaml".to_owned()
}

fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// How far the addons of the cluster are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterAddonStatus {
    /// Every object in the workload cluster: the inventory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 10000))]
    pub resources: Vec<Resource>,
    /// Objects that the release no longer contains: those that are never pruned, and those that go when all is healthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 10000))]
    pub retained: Vec<Resource>,
    /// The release that the stages are of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub release: String,
    /// Kubernetes version that the Cluster asked for when they started.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub kubernetes_version: String,
    /// The hook whose stages run; empty when all are done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub hook: String,
    /// The stages that were started for this release, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 256))]
    pub stages: Vec<StageStatus>,
    /// The charts that are applied, and how far their Helm hooks are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 256))]
    pub charts: Vec<ChartStatus>,
    /// What the annotation `clusterstack.x-k8s.io/skip-stage` asked for and was done, so that it counts once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 256), inner(length(max = 1024)))]
    pub skipped: Vec<String>,
    /// Whether all stages are done and all objects healthy.
    #[serde(default)]
    pub ready: bool,
    /// The `test` hooks of the charts, where somebody asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests: Option<TestsStatus>,
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

/// A stage and how far it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageStatus {
    /// Its name: that of its chart; empty where the release has one chart without stages.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub name: String,
    /// `apply` or `delete`.
    #[serde(default)]
    pub action: StageAction,
    /// How far it is.
    #[serde(default)]
    pub phase: StagePhase,
    /// The hook it belongs to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub hook: String,
    /// Since when it is in this phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// When its turn came and the workload cluster answered: its deadline counts from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// How it ended, where it did not end by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<StageOutcome>,
    /// The phase in which it was left, where it did not end by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_in: Option<StagePhase>,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// A chart with Helm hooks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChartStatus {
    /// The stage that it is of; empty where the release has one chart without stages.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub name: String,
    /// What its hooks run for: `install`, `upgrade` or `delete`; empty when all of them are done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 16))]
    pub running: String,
    /// What `running` began with: digests of the release with the values, and of the rendering. A chart renders once for a
    /// change.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub begun: String,
    /// Digest of the rendering that was applied with all of its hooks; empty before the first one was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub digest: String,
    /// The release whose rendering that is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub release: String,
    /// That rendering had no hooks: the chart is recorded so that hooks which come to it later are those of an upgrade.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_hooks: bool,
    /// The hooks that were run last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 256))]
    pub hooks: Vec<HelmHookStatus>,
}

/// A run of a Helm hook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HelmHookStatus {
    /// `pre-install`, `post-upgrade` and so on.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub event: String,
    /// Kind of the hook's object.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub kind: String,
    /// Its namespace; empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Its name.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub name: String,
    /// Digest of the hook and of the rendering that it was run for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub digest: String,
    /// How far it is.
    #[serde(default)]
    pub phase: HelmHookPhase,
    /// When its object was created: its time limit counts from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// How often it was tried again.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub retries: i32,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// The `test` hooks of the charts, as `helm test` runs them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestsStatus {
    /// Value of the annotation `clusterstack.x-k8s.io/test-at` that asked for them.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub requested: String,
    /// How far they are.
    #[serde(default)]
    pub phase: TestsPhase,
    /// What they wait for, what failed, or how many succeeded.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// How far the tests of the charts are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum TestsPhase {
    /// One runs, or what they test is not applied yet.
    #[default]
    Running,
    /// All of them did.
    Succeeded,
    /// One did not; those behind it were not run.
    Failed,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// How far a Helm hook is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum HelmHookPhase {
    /// Its object is about to be created.
    #[default]
    Creating,
    /// Its object is there and not finished.
    Running,
    /// It did what it is for.
    Succeeded,
    /// It failed: it runs again with another rendering, or when somebody asks.
    Failed,
}

impl HelmHookPhase {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "Creating",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// What a stage does with its chart.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum StageAction {
    /// Apply its objects.
    #[default]
    Apply,
    /// Delete its objects.
    Delete,
}

/// How far a stage is, in the Go operator's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
pub enum StagePhase {
    /// Its turn has not come.
    #[default]
    #[serde(rename = "Pending", alias = "")]
    Pending,
    /// Its pre-condition does not hold yet.
    #[serde(rename = "waitingForPreCondition")]
    WaitingForPreCondition,
    /// Its objects are applied or deleted.
    #[serde(rename = "applyingOrDeleting")]
    ApplyingOrDeleting,
    /// Its post-condition does not hold yet.
    #[serde(rename = "waitingForPostCondition")]
    WaitingForPostCondition,
    /// It is done.
    #[serde(rename = "done")]
    Done,
}

/// How a stage ended that was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
pub enum StageOutcome {
    /// The annotation `clusterstack.x-k8s.io/skip-stage` named it.
    Skipped,
    /// Its deadline passed, and it says `onDeadline: continue`.
    DeadlinePassed,
    /// It would delete what the cluster needs to its end.
    Refused,
}

impl StageOutcome {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skipped => "Skipped",
            Self::DeadlinePassed => "DeadlinePassed",
            Self::Refused => "Refused",
        }
    }
}

impl StageStatus {
    /// The phase that it came to by itself.
    pub fn reached(&self) -> StagePhase {
        self.left_in.unwrap_or(self.phase)
    }
}

impl StagePhase {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::WaitingForPreCondition => "waitingForPreCondition",
            Self::ApplyingOrDeleting => "applyingOrDeleting",
            Self::WaitingForPostCondition => "waitingForPostCondition",
            Self::Done => "done",
        }
    }
}
