//! A release's files, checked and versioned: what is rendered.
//!
//! The files are the directory of a stack as it lies in Git. A release made of them is what `csctl create` makes of the
//! directory: `<< .ClusterClassVersion >>` and its kin are filled in, the cluster-class chart gets the release's
//! version, the addon chart the addon's. With the Helm release name `<provider>-<name>-<major>-<minor>` the ClusterClass
//! is so called by the release's own name, whatever version the sources carry.
//!
//! Rules where sources contradict each other, read from the tags of the repository of cluster-stacks:
//! - The Kubernetes minor in `metadata.yaml` and in `csctl.yaml`, and the version in `metadata.yaml`, must be the tag's.
//!   Such a release was tagged in the wrong place or the file was forgotten; clusters would get another Kubernetes than
//!   its name says, so that it is refused rather than guessed about.
//! - Names in `csctl.yaml` and in `Chart.yaml` need not be the tag's: stacks are copied and renamed, the directory says
//!   which stack it is, and nothing is built from these names. It is remarked.

mod contents;
mod version;

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::core::addon::upgrade_plan;
use crate::core::addon::values::{self, ADDON_VALUES, Template, ValuesError};
use crate::core::addon_config::{AddonConfig, AddonConfigError};
use crate::core::files::{FileTree, below};
use crate::core::metadata::{Csctl, Metadata, MetadataError};
use crate::core::name::{ReleaseName, ReleaseVersion};
use crate::core::node_images::{self, NodeImages, NodeImagesError};

/// Directory of the chart with the ClusterClass.
pub const CLUSTER_CLASS: &str = "cluster-class";
/// Directory of the addon charts.
pub const CLUSTER_ADDON: &str = "cluster-addon";
const METADATA: &str = "metadata.yaml";
const CSCTL: &str = "csctl.yaml";
const ADDON_CONFIG: &str = "clusteraddon.yaml";
const ADDON_VALUES_TERA: &str = "cluster-addon-values.yaml.tera";
const CHART: &str = "Chart.yaml";

/// A release ready to be rendered.
#[derive(Clone, Debug, PartialEq)]
pub struct Bundle {
    /// Its name.
    pub name: ReleaseName,
    /// Version of Kubernetes as the Go operator shows it: `v1.34.7`; `v1.34` if no file tells the patch.
    pub kubernetes_version: String,
    /// Files of the cluster-class chart from its root, `Chart.yaml` carrying [`Bundle::class_version`].
    pub class_chart: FileTree,
    /// Version of the cluster-class chart: the release's, for example `v3` or `v0-sha.e21ba15`.
    pub class_version: String,
    /// The addon charts, if the release has any.
    pub addon: Option<AddonCharts>,
    /// Version of the addon charts with their values: from `metadata.yaml`, or made of the tree's object id, so that it
    /// changes when they do.
    pub addon_version: Option<String>,
    /// `cluster-addon-values.yaml` or `cluster-addon-values.yaml.tera`: a template of values for a single addon chart.
    pub addon_values: Option<Template>,
    /// The node images.
    pub node_images: NodeImages,
    /// What is odd but does no harm, for a human.
    pub remarks: Vec<String>,
}

/// The addon charts of a release.
#[derive(Clone, Debug, PartialEq)]
pub enum AddonCharts {
    /// One chart for everything.
    Single(FileTree),
    /// A chart per stage.
    Stages {
        /// What runs when.
        config: AddonConfig,
        /// The charts by the name of their stage. A stage's `overwrite.yaml` is among its files.
        charts: BTreeMap<String, FileTree>,
    },
}

/// Why files are no release of that name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BundleError {
    /// A file must be there.
    #[error("the stack has no {0}: add it and publish a new version")]
    Missing(String),
    /// A file is no text.
    #[error("{0} is not valid UTF-8: save it as UTF-8 and publish a new version")]
    NoText(String),
    /// `metadata.yaml` or `csctl.yaml` can't be read.
    #[error("{file} can't be used: {error}")]
    Metadata {
        /// The file.
        file: &'static str,
        /// What is wrong.
        error: MetadataError,
    },
    /// A version contradicts the tag.
    #[error(
        "{file} says {field} {found}, but the release is named {release}: publish it under the name that fits, or correct the file and publish a new version"
    )]
    Contradiction {
        /// The file.
        file: &'static str,
        /// Where in it.
        field: &'static str,
        /// What stands there.
        found: String,
        /// The release.
        release: String,
    },
    /// A chart can't be versioned.
    #[error("{file} can't be given the version {version}: {problem}")]
    ChartVersion {
        /// The chart's `Chart.yaml`.
        file: String,
        /// The version.
        version: String,
        /// What is wrong.
        problem: String,
    },
    /// `clusteraddon.yaml` can't be used.
    #[error("clusteraddon.yaml can't be used: {0}")]
    AddonConfig(#[from] AddonConfigError),
    /// The template of values can't be told.
    #[error(transparent)]
    AddonValues(#[from] ValuesError),
    /// A stage has no chart.
    #[error(
        "clusteraddon.yaml names the stage {0:?}, but there is no cluster-addon/{0}/Chart.yaml: add the chart or remove the stage"
    )]
    StageWithoutChart(String),
    /// The list of node images can't be used.
    #[error("{file} can't be used: {error}")]
    NodeImages {
        /// The file.
        file: &'static str,
        /// What is wrong.
        error: NodeImagesError,
    },
}

impl Bundle {
    /// Makes a release of the files of a stack's directory. `component_ids` holds the object ids of `cluster-class` and
    /// `cluster-addon` where the source knows them; where not, their contents take the ids' place.
    pub fn from_files(
        name: &ReleaseName,
        files: &FileTree,
        component_ids: &BTreeMap<String, String>,
    ) -> Result<Self, BundleError> {
        let metadata = read(files, METADATA, Metadata::parse)?;
        let csctl = read(files, CSCTL, Csctl::parse)?;
        let kubernetes_version = kubernetes_version(name, metadata.as_ref(), csctl.as_ref())?;
        let class_version = name.version.to_string();
        let addon_version = if below(files, CLUSTER_ADDON).is_empty() && !files.contains_key(ADDON_CONFIG) {
            None
        } else {
            let given = metadata.as_ref().and_then(|metadata| metadata.cluster_addon.as_ref()).map(ToString::to_string);
            let values = [ADDON_CONFIG, ADDON_VALUES, ADDON_VALUES_TERA];
            Some(given.unwrap_or_else(|| version::of_component(files, CLUSTER_ADDON, &values, component_ids)))
        };
        let node_image = metadata.as_ref().and_then(|metadata| metadata.node_image.as_ref()).map(ToString::to_string);
        let filled = fill_in(files, &class_version, addon_version.as_ref(), node_image.as_ref());
        let files = filled.as_ref().unwrap_or(files);

        let mut class_chart = below(files, CLUSTER_CLASS);
        version::set(&mut class_chart, CLUSTER_CLASS, &class_version)?;
        let addon = addon_version.as_ref().map(|version| addon_charts(files, version)).transpose()?;
        Ok(Self {
            remarks: remarks(name, metadata.as_ref(), csctl.as_ref(), &class_chart, addon.as_ref()),
            name: name.clone(),
            kubernetes_version,
            class_chart,
            class_version,
            addon,
            addon_version,
            addon_values: addon_values(files)?,
            node_images: images(files)?,
        })
    }

    /// Versions of Kubernetes that machines of the release can run: its own, and those that its node images name.
    pub fn node_versions(&self) -> Vec<String> {
        let images = self.node_images.images.iter().filter_map(|image| upgrade_plan::version_in(&image.name));
        let named: BTreeSet<_> = images.collect();
        let mut all: Vec<String> = named.into_iter().map(|version| format!("v{version}")).collect();
        if !all.contains(&self.kubernetes_version) {
            all.push(self.kubernetes_version.clone());
        }
        all
    }
}

/// Holds signed files against the release that they are shown as, where no name of an archive tells of which they are. The
/// chart must name the stack; the version stands there too, or in `metadata.yaml`, which [`Bundle::from_files`] holds
/// against the name.
///
/// # Errors
/// They could be another release's, for a human.
pub fn of_release(name: &ReleaseName, files: &FileTree) -> Result<(), String> {
    let chart = below(files, CLUSTER_CLASS);
    let says = |field: &str, expected: &str| match version::chart_says(&chart, field) {
        Some(found) if found == expected => Ok(()),
        found => Err(format!(
            "nothing that is signed says that it is {name}, so it may be another release's: {CLUSTER_CLASS}/{CHART} has the {field} {:?}, not {expected}",
            found.unwrap_or_default()
        )),
    };
    says("name", &format!("{}-{CLUSTER_CLASS}", name.stem()))?;
    if files.contains_key(METADATA) { Ok(()) } else { says("version", &name.version.to_string()) }
}

/// The files with `<< .ClusterClassVersion >>` and its kin filled in, as csctl does.
pub(in crate::core) fn filled_in(
    files: &FileTree,
    class: &ReleaseVersion,
    addon: Option<&ReleaseVersion>,
    node_image: Option<&ReleaseVersion>,
) -> FileTree {
    let [addon, node_image] = [addon, node_image].map(|version| version.map(ToString::to_string));
    let filled = fill_in(files, &class.to_string(), addon.as_ref(), node_image.as_ref());
    filled.unwrap_or_else(|| files.clone())
}

fn fill_in(files: &FileTree, class: &String, addon: Option<&String>, node_image: Option<&String>) -> Option<FileTree> {
    version::fill_in(
        files,
        &[(".ClusterClassVersion", Some(class)), (".ClusterAddonVersion", addon), (".NodeImageVersion", node_image)],
    )
}

fn text<'a>(files: &'a FileTree, file: &str) -> Result<Option<&'a str>, BundleError> {
    let decode = |bytes| std::str::from_utf8(bytes).map_err(|_| BundleError::NoText(file.to_owned()));
    files.get(file).map(|bytes| decode(bytes)).transpose()
}

fn read<T>(
    files: &FileTree,
    file: &'static str,
    parse: impl FnOnce(&str) -> Result<T, MetadataError>,
) -> Result<Option<T>, BundleError> {
    text(files, file)?.map(parse).transpose().map_err(|error| BundleError::Metadata { file, error })
}

/// The version of Kubernetes; nothing that says one may contradict the release's name.
fn kubernetes_version(
    name: &ReleaseName,
    metadata: Option<&Metadata>,
    csctl: Option<&Csctl>,
) -> Result<String, BundleError> {
    let contradiction =
        |file, field, found: String| Err(BundleError::Contradiction { file, field, found, release: name.to_string() });
    if let Some(metadata) = metadata {
        if metadata.cluster_stack != name.version {
            return contradiction(METADATA, "versions.clusterStack", metadata.cluster_stack.to_string());
        }
        if metadata.kubernetes.minor != name.kubernetes {
            return contradiction(METADATA, "versions.kubernetes", metadata.kubernetes.to_string());
        }
    }
    if let Some(csctl) = csctl
        && csctl.kubernetes.minor != name.kubernetes
    {
        return contradiction(CSCTL, "config.kubernetesVersion", csctl.kubernetes.to_string());
    }
    let version = metadata.map(|metadata| &metadata.kubernetes).or(csctl.map(|csctl| &csctl.kubernetes));
    Ok(version.map_or_else(|| format!("v{}", name.kubernetes), ToString::to_string))
}

fn addon_charts(files: &FileTree, version: &str) -> Result<AddonCharts, BundleError> {
    let mut all = below(files, CLUSTER_ADDON);
    let Some(config) = text(files, ADDON_CONFIG)? else {
        version::set(&mut all, CLUSTER_ADDON, version)?;
        return Ok(AddonCharts::Single(all));
    };
    let config = AddonConfig::parse(config)?;
    let mut charts = BTreeMap::new();
    for stage in config.charts() {
        let chart = below(&all, stage);
        if !chart.contains_key(CHART) {
            return Err(BundleError::StageWithoutChart(stage.to_owned()));
        }
        charts.insert(stage.to_owned(), chart);
    }
    Ok(AddonCharts::Stages { config, charts })
}

fn addon_values(files: &FileTree) -> Result<Option<Template>, BundleError> {
    let Some((file, _)) = values::template(ADDON_VALUES, |file| files.get(file))? else { return Ok(None) };
    let text = text(files, &file)?.unwrap_or_default().to_owned();
    Ok(Some(Template { file, text }))
}

fn images(files: &FileTree) -> Result<NodeImages, BundleError> {
    for file in node_images::FILES {
        if let Some(text) = text(files, file)? {
            return NodeImages::parse(text).map_err(|error| BundleError::NodeImages { file, error });
        }
    }
    Ok(NodeImages::default())
}

fn remarks(
    name: &ReleaseName,
    metadata: Option<&Metadata>,
    csctl: Option<&Csctl>,
    class_chart: &FileTree,
    addon: Option<&AddonCharts>,
) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut differs = |what: &str, found: Option<&str>, expected: &str| {
        if let Some(found) = found
            && found != expected
        {
            remarks.push(format!("{what} is {found:?}, the release's is {expected:?}"));
        }
    };
    differs("csctl.yaml: provider.type", csctl.and_then(|csctl| csctl.provider.as_deref()), &name.provider);
    differs("csctl.yaml: clusterStackName", csctl.and_then(|csctl| csctl.cluster_stack.as_deref()), &name.stack);
    let chart = format!("{}-{CLUSTER_CLASS}", name.stem());
    differs("cluster-class/Chart.yaml: name", version::chart_says(class_chart, "name").as_deref(), &chart);
    if metadata.is_none() && csctl.is_none() {
        remarks.push("neither metadata.yaml nor csctl.yaml tells the patch version of Kubernetes".to_owned());
    }
    if addon.is_none() {
        remarks.push("the release has no cluster-addon: its clusters get no addons".to_owned());
    }
    remarks
}

#[cfg(test)]
mod tests;
