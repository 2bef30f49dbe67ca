//! `ProviderClusterStackReleaseTemplate`: how and where to the built-in provider brings node images.
//!
//! What a provider decides (destination, credentials, executor, tools) stands beside `spec.template`, so that it is never
//! cloned into an object that users hold.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::image_destination::Destination;
use super::source::SecretReference;

/// What objects of a release are cloned from, and how the images of these releases are made.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "infrastructure.clusterstack.x-k8s.io",
    version = "v1alpha1",
    kind = "ProviderClusterStackReleaseTemplate",
    namespaced,
    shortname = "pcskrt",
    category = "cluster-stack",
    derive = "PartialEq",
    doc = "ProviderClusterStackReleaseTemplate tells the built-in provider how node images are made, and where they are brought.",
    printcolumn(name = "Executor", type_ = "string", json_path = ".spec.build.executor"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ProviderClusterStackReleaseTemplateSpec {
    /// What the object of a release is made from.
    #[serde(default)]
    pub template: ReleaseTemplate,
    /// How images are made.
    #[serde(default)]
    pub build: ImageBuild,
    /// Where they are brought.
    pub destination: Destination,
    /// Whether an image that no release has any more is removed from its destination. It is, unless this says `Retain`.
    #[serde(default)]
    pub image_deletion_policy: ImageDeletionPolicy,
    /// How long an image that no release has any more is kept, for example `24h`; an hour without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+([.][0-9]+)?(ms|s|m|h))+$"))]
    pub image_grace_period: Option<String>,
    /// How often is looked whether an image that was built is still at its destination, for example `30m`; every 6 hours
    /// without it. One that is gone is built again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+([.][0-9]+)?(ms|s|m|h))+$"))]
    pub image_check_interval: Option<String>,
    /// Only tell, by events and status, what would be removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deletion_dry_run: bool,
}

/// Metadata and spec of what is cloned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseTemplate {
    /// Labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Nothing so far: the object's images come from its release.
    #[serde(default)]
    #[schemars(schema_with = "super::image_template::empty_object")]
    pub spec: BTreeMap<String, Value>,
}

/// An object without fields of its own.
pub(super) fn empty_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object"})
}

/// Labels and annotations of what is cloned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMetadata {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// What happens to an image at its destination when no release has it any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImageDeletionPolicy {
    /// It is removed.
    #[default]
    Delete,
    /// It stays.
    Retain,
}

/// By what images are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExecutorKind {
    /// A task of the operator.
    #[default]
    Task,
    /// A Kubernetes Job.
    Job,
}

/// How images are made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.job) || self.executor == 'Job'").message("job is for executor Job"))]
pub struct ImageBuild {
    /// By what.
    #[serde(default)]
    pub executor: ExecutorKind,
    /// How many builds of this template run at once; 4 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub concurrency: Option<u16>,
    /// How often a failed attempt is followed by another one; 5 times without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: Option<u32>,
    /// How long a step may take, for example `2h`; as long as the step itself says, or an hour, without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub step_timeout: Option<String>,
    /// How long a step may go without any progress, for example `15m`; ten minutes without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub no_progress_timeout: Option<String>,
    /// Format that the destination takes; what an image is in without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub format: Option<String>,
    /// Tools that commands of a release may run as a task; none without it. One named `qemu-img` carries out `convert`, too;
    /// that is `/usr/bin/qemu-img` without it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    #[schemars(length(max = 32))]
    pub tools: Vec<AllowedTool>,
    /// What the tools find in their environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What a tool may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ToolLimits>,
    /// Secret of this namespace with keys by which signatures of downloads are checked: of cosign, SSH or minisign under
    /// keys that end in `.pub`, `allowed_signers` (ssh-keygen(1)), and OpenPGP keys (`*.asc`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys_secret_ref: Option<SecretReference>,
    /// Secret of this namespace with the access to where images are downloaded: `username` and `password`, or `token`,
    /// and the one host they are for in `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Secret of this namespace with `ca.crt`, and `tls.crt` and `tls.key`, for downloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<SecretReference>,
    /// Secret of this namespace with `address` of a proxy, and its `username` and `password`, for downloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_secret_ref: Option<SecretReference>,
    /// The Job, for executor Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobTemplate>,
}

/// A tool that commands of a release may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowedTool {
    /// What the first word of `command` is, for example `virt-customize`.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// Its executable, an absolute path in the operator's container.
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
}

/// What a tool may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolLimits {
    /// Processor time in seconds, of each process; 6 hours without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub cpu_seconds: Option<u64>,
    /// Address space of each process, for example `4Gi`; 8Gi without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
    /// What the work directory may hold, and the largest file, for example `40Gi`; 64Gi without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Quantity>,
    /// Open files of each process; 1024 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 16))]
    pub open_files: Option<u64>,
}

/// The Job of a build.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.image) || !has(self.template)").message("image is for a Job without template: name the image in the template's containers"))]
pub struct JobTemplate {
    /// A `PodTemplateSpec` of `core/v1`, kept as it is. The container named `build` makes the image; the others are sidecars.
    /// Without it a small pod runs `clusterstack`, which carries the steps out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::pod_template::schema")]
    pub template: Option<Value>,
    /// What that small pod runs: an image that holds `clusterstack` and the tools that commands may run; the one of the
    /// operator's flag `--image-job-image` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// How long a Job may take, in seconds; 24 hours without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<i64>,
    /// How long a Job that ended is kept for its log when its build was given up, in seconds; an hour without it. One that made its
    /// image goes as soon as that was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
}
