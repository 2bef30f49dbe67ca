//! `ProviderClusterStackRelease`: the node images of one release, as the built-in provider brings them.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::condition::Condition;
use super::image_release::ImagePhase;

/// Nothing so far: the images come from the release, and how they are made from the template.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "infrastructure.clusterstack.x-k8s.io",
    version = "v1alpha1",
    kind = "ProviderClusterStackRelease",
    namespaced,
    status = "ProviderClusterStackReleaseStatus",
    shortname = "pcskr",
    category = "cluster-stack",
    derive = "PartialEq",
    doc = "ProviderClusterStackRelease stands for the node images of a ClusterStackRelease. It is made from a ProviderClusterStackReleaseTemplate.",
    printcolumn(name = "Ready", type_ = "boolean", json_path = ".status.ready"),
    printcolumn(name = "Images", type_ = "string", json_path = ".status.images"),
    printcolumn(name = "Waits for", type_ = "string", json_path = ".status.waitsFor"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ProviderClusterStackReleaseSpec {}

/// How far the images are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderClusterStackReleaseStatus {
    /// Whether every image is where it belongs.
    #[serde(default)]
    pub ready: bool,
    /// Why there will be no images, in one CamelCase word; somebody has to change something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub failure_reason: Option<String>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub failure_message: Option<String>,
    /// How many are there, of how many: `2/3`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    pub images: String,
    /// Images of the release that are built.
    #[serde(default)]
    pub images_total: u32,
    /// Those that are where they belong.
    #[serde(default)]
    pub images_ready: u32,
    /// Name of the image that is waited for, the first of them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub waits_for: String,
    /// The images, in the order of the release's list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["object".into()]))]
    #[schemars(length(max = 256))]
    pub node_images: Vec<ReleaseImage>,
    /// Name of the ProviderClusterStackReleaseTemplate that says how they are made; `namespace/name` of another namespace's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 317))]
    pub template: String,
    /// Digest of the release's artifact that the list was read from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub artifact: String,
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions; `Ready` sums the others up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,
}

/// An image of a release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseImage {
    /// Name of the ProviderNodeImageRelease that stands for it.
    #[schemars(length(max = 253))]
    pub object: String,
    /// What the image is called at its destination.
    #[schemars(length(max = 1024))]
    pub name: String,
    /// How far it is.
    #[serde(default)]
    pub phase: ImagePhase,
    /// Where it is, without secrets; once it is there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub location: String,
    /// What goes on, or wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
}
