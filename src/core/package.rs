//! A stack's directory as the assets of a release, as `csctl create` makes them.
//!
//! ```text
//! FileTree ─hashes→ versions ─fill in→ files + archives ─checked as a Bundle→ Package
//! ```
//!
//! Differences from csctl, on purpose:
//! - What changed since the last release is looked for in every component. csctl leaves the cluster class out, and calls
//!   a stack unchanged whose class is another.
//! - Archives are called by the release's name, also where `Chart.yaml` carries another: the Go operator looks for them
//!   by that.
//! - With the mode `hash` an addon has the hash of its own content, so that it stays the same where only the class
//!   changed.
//! - `cluster-addon-values.yaml` (or `.yaml.tera`) is published beside `clusteraddon.yaml` too.

mod hashes;
mod versions;

use std::collections::BTreeMap;

use bytes::Bytes;
use thiserror::Error;

use crate::core::bundle::{self, Bundle, BundleError, CLUSTER_ADDON, CLUSTER_CLASS};
use crate::core::chart::{Chart, ChartError, without_ignored};
use crate::core::files::{FileTree, below};
use crate::core::image::pipeline::Pipeline;
use crate::core::metadata::{Csctl, Metadata, MetadataError};
use crate::core::name::{KubernetesMinor, ReleaseName, ReleaseVersion, is_label};
use crate::core::node_images;

pub use hashes::Hashes;
pub use versions::{Mode, Previous, Versions, VersionsError};

/// What the stack is.
pub const CSCTL: &str = "csctl.yaml";
/// When addons run.
const ADDON_CONFIG: &str = "clusteraddon.yaml";
/// Values of addons.
const ADDON_VALUES: &str = "cluster-addon-values.yaml";
/// The same in the language of Tera.
const ADDON_VALUES_TERA: &str = "cluster-addon-values.yaml.tera";
/// Versions of a release.
pub const METADATA: &str = "metadata.yaml";
/// Hashes of a release's components.
pub const HASHES: &str = "hashes.json";

/// The assets of a release, before its archives are written.
#[derive(Clone, Debug, PartialEq)]
pub struct Package {
    /// The release.
    pub name: ReleaseName,
    /// Versions of its components.
    pub versions: Versions,
    /// The assets that are files.
    pub files: BTreeMap<String, Bytes>,
    /// The assets that are archives, by what they hold.
    pub archives: BTreeMap<String, FileTree>,
    /// What is odd but does no harm, for a human.
    pub remarks: Vec<String>,
}

/// Why a directory gives no release.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PackageError {
    /// There is no `csctl.yaml`.
    #[error(
        "the directory has no csctl.yaml: name one with config.provider.type, config.clusterStackName and config.kubernetesVersion"
    )]
    NoCsctl,
    /// `csctl.yaml` can't be used.
    #[error("csctl.yaml can't be used: {0}")]
    Csctl(#[from] MetadataError),
    /// `csctl.yaml` lacks a name.
    #[error("csctl.yaml has no {0}: a release is named by it")]
    NoName(&'static str),
    /// A name can't be part of a release's.
    #[error("csctl.yaml: {field} is {found:?}: use lowercase letters and digits, with dashes between them")]
    BadName {
        /// Where it stands.
        field: &'static str,
        /// What stands there.
        found: String,
    },
    /// No version can be given.
    #[error(transparent)]
    Versions(#[from] VersionsError),
    /// A chart can't be read.
    #[error("the chart in {chart} can't be loaded: {error}")]
    Chart {
        /// Its directory.
        chart: String,
        /// Why not.
        error: ChartError,
    },
    /// Charts lack what they depend on.
    #[error("dependencies are not vendored: {}; run `helm dependency build` there", list(.0))]
    NotVendored(Vec<MissingDependency>),
    /// What was made is no release.
    #[error(transparent)]
    Bundle(#[from] BundleError),
}

/// A chart that another one depends on and that is not in its `charts/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingDependency {
    /// Directory of the chart that depends on it.
    pub chart: String,
    /// Its name.
    pub name: String,
    /// The versions that would do.
    pub version: String,
    /// Where it comes from.
    pub repository: String,
}

fn list(missing: &[MissingDependency]) -> String {
    let one = |missing: &MissingDependency| {
        let MissingDependency { chart, name, version, repository } = missing;
        format!("{chart} needs {name} {version} from {repository}")
    };
    missing.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Who a stack is, by its `csctl.yaml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its provider.
    pub provider: String,
    /// Its name.
    pub stack: String,
    /// Its version of Kubernetes as `v1.34.7`.
    pub kubernetes_version: String,
    /// The minor of that.
    pub kubernetes: KubernetesMinor,
}

impl Identity {
    /// Reads the `csctl.yaml` of a stack.
    pub fn of(files: &FileTree) -> Result<Self, PackageError> {
        let bytes = files.get(CSCTL).ok_or(PackageError::NoCsctl)?;
        let text = std::str::from_utf8(bytes).map_err(|_| BundleError::NoText(CSCTL.to_owned()))?;
        let csctl = Csctl::parse(text)?;
        let name = |field, found: Option<String>| {
            let found = found.ok_or(PackageError::NoName(field))?;
            if is_label(&found) { Ok(found) } else { Err(PackageError::BadName { field, found }) }
        };
        Ok(Self {
            provider: name("config.provider.type", csctl.provider)?,
            stack: name("config.clusterStackName", csctl.cluster_stack)?,
            kubernetes_version: csctl.kubernetes.to_string(),
            kubernetes: csctl.kubernetes.minor,
        })
    }

    /// The name of its release of a version.
    pub fn release(&self, version: ReleaseVersion) -> ReleaseName {
        let (provider, stack) = (self.provider.clone(), self.stack.clone());
        ReleaseName { provider, stack, kubernetes: self.kubernetes, version }
    }
}

/// The directories of a stack that hold charts: the class's, the addon's, or those of its stages.
pub fn chart_directories(files: &FileTree) -> Vec<String> {
    let is_chart = |directory: &str| {
        directory == CLUSTER_CLASS
            || directory == CLUSTER_ADDON
            || directory.strip_prefix("cluster-addon/").is_some_and(|stage| !stage.contains('/'))
    };
    let charts = files.keys().filter_map(|path| path.strip_suffix("/Chart.yaml"));
    charts.filter(|directory| is_chart(directory)).map(ToOwned::to_owned).collect()
}

/// What charts depend on and don't have. `expanded` are the stack's files with the archives below `charts/` unpacked.
pub fn missing_dependencies(expanded: &FileTree) -> Result<Vec<MissingDependency>, PackageError> {
    let mut missing = Vec::new();
    for directory in chart_directories(expanded) {
        let chart = Chart::load_directory(&below(expanded, &directory))
            .map_err(|error| PackageError::Chart { chart: directory.clone(), error })?;
        missing.extend(chart.missing_dependencies().map(|dependency| MissingDependency {
            chart: directory.clone(),
            name: dependency.name.clone(),
            version: dependency.version.clone(),
            repository: dependency.repository.clone(),
        }));
    }
    Ok(missing)
}

/// Makes a release of a stack's directory. `expanded` are its files with the archives below `charts/` unpacked.
pub fn package(
    files: &FileTree,
    expanded: &FileTree,
    mode: &Mode,
    previous: Option<&Previous>,
) -> Result<Package, PackageError> {
    let identity = Identity::of(files)?;
    let hashes = Hashes::of(files);
    let versions = versions::decide(files, &hashes, identity.kubernetes, mode, previous)?;
    let name = identity.release(versions.cluster_stack.clone());
    // Filled in first: a chart's own version may be `<< .ClusterAddonVersion >>`.
    let missing = missing_dependencies(&versions.filled_in(expanded))?;
    if !missing.is_empty() {
        return Err(PackageError::NotVendored(missing));
    }

    let mut stack = files.clone();
    stack.insert(METADATA.to_owned(), versions.metadata(&identity.kubernetes_version).into());
    // Refused here, it is refused before somebody subscribes to it.
    let checked = Bundle::from_files(&name, &stack, &BTreeMap::new())?;
    let stack = versions.filled_in(&stack);

    let mut assets: BTreeMap<String, Bytes> = [METADATA, ADDON_CONFIG, ADDON_VALUES, ADDON_VALUES_TERA]
        .into_iter()
        .filter_map(|file| Some((file.to_owned(), stack.get(file)?.clone())))
        .collect();
    if let Some(images) = node_images::FILES.iter().find_map(|file| stack.get(*file)) {
        assets.insert(node_images::FILES[0].to_owned(), images.clone());
    }
    assets.insert(HASHES.to_owned(), hashes.to_json().into());

    let mut archives = BTreeMap::new();
    let packed = |chart: &str, files: &FileTree| {
        without_ignored(files).map_err(|error| PackageError::Chart { chart: chart.to_owned(), error })
    };
    let class = format!("{}-{CLUSTER_CLASS}", name.stem());
    archives.insert(
        format!("{class}-{}.tgz", versions.cluster_stack),
        inside(&class, &packed(CLUSTER_CLASS, &checked.class_chart)?),
    );
    let addon = format!("{}-{CLUSTER_ADDON}", name.stem());
    let addon_files = match &checked.addon {
        None => None,
        Some(bundle::AddonCharts::Single(chart)) => Some(inside(&addon, &packed(CLUSTER_ADDON, chart)?)),
        // The directory as it is: what `.helmignore` names is left out when a stage is rendered.
        Some(bundle::AddonCharts::Stages { .. }) => Some(below(&stack, CLUSTER_ADDON)),
    };
    if let Some(addon_files) = addon_files.filter(|files| !files.is_empty()) {
        archives.insert(format!("{addon}-{}.tgz", versions.cluster_addon), addon_files);
    }
    let mut remarks = checked.remarks;
    // Not refused: the release may be for another provider.
    remarks.extend(checked.node_images.images.iter().find_map(|image| Pipeline::of(image).err()).map(|error| {
        format!(
            "the built-in provider will refuse the list of node images: {error}; `clusterstack lint` looks at all of it"
        )
    }));
    Ok(Package { name, versions, files: assets, archives, remarks })
}

/// The files of a chart in a directory of that name, as in what `helm package` makes.
fn inside(directory: &str, files: &FileTree) -> FileTree {
    files.iter().map(|(path, content)| (format!("{directory}/{path}"), content.clone())).collect()
}

impl Previous {
    /// Reads the assets of a release that was published before.
    pub fn read(assets: &BTreeMap<String, Bytes>) -> Result<Self, VersionsError> {
        let text = |file: &'static str| {
            let bytes = assets.get(file).map(|bytes| std::str::from_utf8(bytes));
            bytes.transpose().map_err(|error| VersionsError::Previous { file, problem: error.to_string() })
        };
        let metadata = text(METADATA)?
            .ok_or_else(|| VersionsError::Previous { file: METADATA, problem: "there is none".to_owned() })?;
        let metadata = Metadata::parse(metadata)
            .map_err(|error| VersionsError::Previous { file: METADATA, problem: error.to_string() })?;
        let hashes = text(HASHES)?.map(Hashes::parse).transpose();
        let hashes = hashes.map_err(|problem| VersionsError::Previous { file: HASHES, problem })?;
        Ok(Self { metadata, hashes: hashes.map(|hashes| hashes.with_config(assets.get(ADDON_CONFIG))) })
    }
}

#[cfg(test)]
mod tests;
