//! `ProviderNodeImageRelease`: one node image that is built, or brought to where nodes boot it from.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::condition::Condition;
use super::{IMMUTABLE_IMAGE, all_of};

/// Which image, and whose settings it is made by.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "infrastructure.clusterstack.x-k8s.io",
    version = "v1alpha1",
    kind = "ProviderNodeImageRelease",
    namespaced,
    status = "ProviderNodeImageReleaseStatus",
    shortname = "pnir",
    category = "cluster-stack",
    derive = "PartialEq",
    doc = "ProviderNodeImageRelease stands for one node image: its build, and the image at its destination.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Step", type_ = "string", json_path = ".status.step"),
    printcolumn(name = "Percent", type_ = "integer", json_path = ".status.progress.percent"),
    printcolumn(name = "Bytes", type_ = "string", json_path = ".status.progress.bytes"),
    printcolumn(name = "Rate", type_ = "string", json_path = ".status.progress.rate"),
    printcolumn(name = "Left", type_ = "string", json_path = ".status.progress.left"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Attempt", type_ = "integer", json_path = ".status.attempt", priority = 1),
    printcolumn(name = "Holder", type_ = "string", json_path = ".status.holder.identity", priority = 1),
    printcolumn(name = "Location", type_ = "string", json_path = ".status.location", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = all_of(&IMMUTABLE_IMAGE))]
pub struct ProviderNodeImageReleaseSpec {
    /// The ProviderClusterStackReleaseTemplate that says how it is made and where it is brought.
    pub template_ref: TemplateReference,
    /// The image.
    pub image: NodeImageRecipe,
    /// Digest over the image and the template's name: `sha256:` and hexadecimal digits.
    #[schemars(length(max = 256))]
    pub inputs: String,
    /// Build nothing; what is done stays.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

/// Names a ProviderClusterStackReleaseTemplate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateReference {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its namespace, if it is another one: its ClusterStackSource has to share it, and a release from there has to list
    /// the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

/// How an image is made, as the release's list of images says it. It is uploaded and registered behind its last step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeImageRecipe {
    /// What it is called at its destination.
    #[schemars(length(min = 1, max = 1024))]
    pub name: String,
    /// Its steps.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(min = 1, max = 32))]
    pub steps: Vec<ImageStep>,
    /// What is said of it where it is registered.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "super::image_release::any_object")]
    pub properties: Map<String, Value>,
}

/// An object whose fields are kept as they are.
fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A step: a name and one kind of work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.download), has(self.verify), has(self.build), has(self.convert), has(self.compress)].filter(x, x).size() == 1").message("exactly one kind of work is needed: download, verify, build, convert or compress"))]
pub struct ImageStep {
    /// Its name, unique in the image.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Gets a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<DownloadStep>,
    /// Checks what is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifyStep>,
    /// Runs a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildStep>,
    /// Writes the disk in another format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub convert: Option<ConvertStep>,
    /// Compresses the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compress: Option<CompressStep>,
}

/// Gets a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DownloadStep {
    /// Where it lies, by http or https.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// Where it lies too, tried in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 32), inner(length(max = 2048)))]
    pub mirrors: Vec<String>,
    /// What it must be: `sha256:` or `sha512:` and hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub checksum: Option<String>,
}

/// Checks what is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VerifyStep {
    /// What it must be: `sha256:` or `sha512:` and hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub checksum: Option<String>,
    /// Where a detached signature lies; the template names the keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub signature: Option<String>,
}

/// Runs a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuildStep {
    /// The tool and its arguments. No shell is between.
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(min = 1, max = 1024), inner(length(max = 32768)))]
    pub command: Vec<String>,
    /// What it finds in its environment, beside what the template gives.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Where it runs, inside of the work directory.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub directory: String,
    /// The file that it makes, inside of the work directory.
    #[schemars(length(min = 1, max = 1024))]
    pub output: String,
    /// How long it may take, for example `1h30m`; an hour without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub timeout: Option<String>,
}

/// Writes the disk in another format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConvertStep {
    /// `qcow2`, `raw`, `vmdk` or `vhdx`.
    #[schemars(length(max = 16))]
    pub format: String,
}

/// Compresses the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompressStep {
    /// `zstd`, `gzip` or `xz`.
    #[schemars(length(max = 16))]
    pub algorithm: String,
}

/// How far a build is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ImagePhase {
    /// Waits for a place to build.
    #[default]
    Queued,
    /// Somebody builds.
    Running,
    /// The image is where it belongs.
    Succeeded,
    /// Given up; `retry-at` starts it anew.
    Failed,
    /// Cancelled; `retry-at` starts it anew.
    Cancelled,
    /// Held until it is resumed.
    Suspended,
}

/// A build as it was last written: who takes it over goes on from here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderNodeImageReleaseStatus {
    /// How far it is.
    #[serde(default)]
    pub phase: ImagePhase,
    /// Name of the step whose turn it is; of the last one when all are done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub step: String,
    /// All steps in their order, and what the finished ones made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 40))]
    pub steps: Vec<StepRecord>,
    /// Digest over all that the build depends on: the image, and the template's settings that change what comes out.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub inputs: String,
    /// How often a failed attempt is followed by another one.
    #[serde(default)]
    pub retries: u32,
    /// Number of the last attempt; 0 before the first.
    #[serde(default)]
    pub attempt: u32,
    /// Attempts that failed since a step was last finished.
    #[serde(default)]
    pub failures: u32,
    /// Steps that ran again because what they had made was lost.
    #[serde(default)]
    pub repeated: u32,
    /// Who builds; while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<HolderRecord>,
    /// How far the current step is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressRecord>,
    /// Not tried again before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<MicroTime>,
    /// What went wrong last; empty while nothing is wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32768))]
    pub message: String,
    /// Where the image is, without secrets; once it is there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub location: String,
    /// Digest of the image's file at its destination: `sha256:` and hexadecimal digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub digest: String,
    /// Where the log is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogRecord>,
    /// The last 2 KiB of the log, without secrets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub log_tail: String,
    /// The attempt up to which what builds leave half-made, and the work directory, was removed.
    #[serde(default)]
    pub discarded_attempt: u32,
    /// When the image was last seen at its destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<Time>,
    /// Namespace of the template, if it is another one: written once a release from there was seen to list the image.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub template_namespace: String,
    /// Since when no release has the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused_since: Option<Time>,
    /// Value of the annotation `clusterstack.x-k8s.io/cancel-at` that was last acted on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub last_handled_cancel_at: String,
    /// Value of the annotation `clusterstack.x-k8s.io/retry-at` that was last acted on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub last_handled_retry_at: String,
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions; `Ready` sums the others up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,
}

/// A step, and what it made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepRecord {
    /// Its name.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Digest of what it made; once it is finished.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub digest: String,
    /// Id of the work directory where that lies; without it, it lies at the destination.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub work_directory: String,
}

/// Who builds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HolderRecord {
    /// Identity of the process, or of the Job.
    #[schemars(length(max = 512))]
    pub identity: String,
    /// When it was last heard of.
    pub heartbeat: MicroTime,
}

/// How far a step is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgressRecord {
    /// Bytes done.
    pub done: u64,
    /// Bytes in all, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Hundredths done, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// Bytes for people: `1.2GiB/3.0GiB`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub bytes: String,
    /// Bytes in a second, for people: `12.3MiB/s`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub rate: String,
    /// Time left, for people: `2m5s`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub left: String,
}

/// Where a log is kept: in a pod, from which it is read by the user's own rights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogRecord {
    /// Namespace of the pod.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Its name; without it, it is the newest pod with the object's UID in the label `clusterstack.x-k8s.io/node-image-uid`.
    #[schemars(length(max = 253))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// Port of the pod that serves it; without it, the container's own log is it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Container of the pod whose log it is; or path at the port.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub path: String,
}
