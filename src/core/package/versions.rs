//! Which versions a release and its components get.

use thiserror::Error;

use super::Hashes;
use crate::core::bundle;
use crate::core::files::FileTree;
use crate::core::metadata::Metadata;
use crate::core::name::{KubernetesMinor, PreRelease, ReleaseVersion};

/// Channel of versions by content.
const SHA: &str = "sha";

/// How a release gets its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `vN`: the given one, the one after the previous release, or `v1`.
    Stable(Option<ReleaseVersion>),
    /// `v0-sha.<hash>`, from the content.
    Hash,
    /// The given ones; a component without one has that of the previous release if it is the same, else the release's.
    Custom {
        /// Of the release.
        version: ReleaseVersion,
        /// Of the addon.
        addon: Option<ReleaseVersion>,
        /// Of the node images.
        node_image: Option<ReleaseVersion>,
    },
}

/// The release before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Previous {
    /// Its versions.
    pub metadata: Metadata,
    /// Hashes of its components, if it was published with them.
    pub hashes: Option<Hashes>,
}

/// The versions in `metadata.yaml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Of the release and its class chart.
    pub cluster_stack: ReleaseVersion,
    /// Of the addon charts.
    pub cluster_addon: ReleaseVersion,
    /// Of the node images; the Go operator wants one also where there is none.
    pub node_image: ReleaseVersion,
}

/// Why no version can be given.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum VersionsError {
    /// A stable version with a pre-release part.
    #[error("{0} is no stable version: write v<number>, or use --mode custom")]
    NotStable(ReleaseVersion),
    /// The release before says nothing.
    #[error("the previous release can't be used, {file}: {problem}")]
    Previous {
        /// The file.
        file: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The release before is one of another line.
    #[error(
        "the previous release is made for Kubernetes {previous}, this one for {this}: versions begin anew with each minor"
    )]
    OtherMinor {
        /// Minor of the release before.
        previous: KubernetesMinor,
        /// Minor of this one.
        this: KubernetesMinor,
    },
    /// There is nothing to release.
    #[error("nothing changed since {0}: there is nothing to release")]
    Unchanged(ReleaseVersion),
    /// The version is not above the last.
    #[error("{version} does not follow {previous}: give a higher version")]
    NotAbove {
        /// The one that was asked for.
        version: ReleaseVersion,
        /// The one before.
        previous: ReleaseVersion,
    },
    /// There is no number left.
    #[error("no version follows {0}")]
    Last(ReleaseVersion),
}

impl Versions {
    /// One version for everything.
    pub(in crate::core) fn all(version: &ReleaseVersion) -> Self {
        let [cluster_stack, cluster_addon, node_image] = [(); 3].map(|()| version.clone());
        Self { cluster_stack, cluster_addon, node_image }
    }

    /// The files with `<< .ClusterClassVersion >>` and its kin filled in.
    pub(in crate::core) fn filled_in(&self, files: &FileTree) -> FileTree {
        bundle::filled_in(files, &self.cluster_stack, Some(&self.cluster_addon), Some(&self.node_image))
    }

    /// The text of `metadata.yaml`.
    pub(super) fn metadata(&self, kubernetes: &str) -> String {
        let Self { cluster_stack, cluster_addon, node_image } = self;
        format!(
            "apiVersion: metadata.clusterstack.x-k8s.io/v1alpha1
versions:
  clusterStack: {cluster_stack}
  kubernetes: {kubernetes}
  components:
    clusterAddon: {cluster_addon}
    nodeImage: {node_image}
"
        )
    }
}

/// Decides the versions.
pub(super) fn decide(
    files: &FileTree,
    hashes: &Hashes,
    kubernetes: KubernetesMinor,
    mode: &Mode,
    previous: Option<&Previous>,
) -> Result<Versions, VersionsError> {
    if let Some(previous) = previous {
        check(hashes, kubernetes, mode, previous)?;
    }
    let before = previous.map(|previous| &previous.metadata);
    let cluster_stack = match mode {
        Mode::Stable(version) => stable(version.as_ref(), before)?,
        Mode::Hash => sha(hashes.version_letters()),
        Mode::Custom { version, .. } => version.clone(),
    };
    // An addon that names the class's version is another one with each release, whatever its files say.
    let named = files.iter().any(|(path, content)| path.starts_with("cluster-addon") && names_class(content));
    let kept = previous.and_then(|previous| previous.hashes.as_ref());
    let same_addon = kept.is_some_and(|kept| kept.same_addon(hashes)) && !named;
    let same_image = kept.is_some_and(|kept| kept.node_image_dir == hashes.node_image_dir);
    // A stable release has no component of a pre-release.
    let may_stay = |version: &&ReleaseVersion| version.pre.is_none() || !matches!(mode, Mode::Stable(_));
    let addon = before.and_then(|before| before.cluster_addon.as_ref()).filter(may_stay);
    let image = before.and_then(|before| before.node_image.as_ref()).filter(may_stay);
    let (fresh_addon, fresh_image) = match mode {
        Mode::Stable(_) => (bumped(addon, &cluster_stack)?, bumped(image, &cluster_stack)?),
        Mode::Hash => {
            let own_addon = if named { cluster_stack.clone() } else { sha(hashes.addon_letters()) };
            (own_addon, hashes.node_image_letters().map_or_else(|| cluster_stack.clone(), sha))
        }
        Mode::Custom { .. } => (cluster_stack.clone(), cluster_stack.clone()),
    };
    let (given_addon, given_image) = match mode {
        Mode::Custom { addon, node_image, .. } => (addon.clone(), node_image.clone()),
        _ => (None, None),
    };
    Ok(Versions {
        cluster_addon: given_addon.or_else(|| addon.filter(|_| same_addon).cloned()).unwrap_or(fresh_addon),
        node_image: given_image.or_else(|| image.filter(|_| same_image).cloned()).unwrap_or(fresh_image),
        cluster_stack,
    })
}

fn check(hashes: &Hashes, kubernetes: KubernetesMinor, mode: &Mode, previous: &Previous) -> Result<(), VersionsError> {
    let before = &previous.metadata;
    if before.kubernetes.minor != kubernetes {
        return Err(VersionsError::OtherMinor { previous: before.kubernetes.minor, this: kubernetes });
    }
    // Over all components: csctl does not look at the class.
    let same = previous.hashes.as_ref().is_some_and(|kept| kept.cluster_stack == hashes.cluster_stack);
    // What was tried as a pre-release becomes a release as it is.
    let is_promoted = matches!(mode, Mode::Stable(_)) && before.cluster_stack.pre.is_some();
    if same && !is_promoted { Err(VersionsError::Unchanged(before.cluster_stack.clone())) } else { Ok(()) }
}

fn names_class(content: &[u8]) -> bool {
    std::str::from_utf8(content).is_ok_and(|text| text.contains("<< .ClusterClassVersion >>"))
}

fn stable(version: Option<&ReleaseVersion>, before: Option<&Metadata>) -> Result<ReleaseVersion, VersionsError> {
    let before = before.map(|before| &before.cluster_stack);
    match (version, before) {
        (Some(version), _) if version.pre.is_some() => Err(VersionsError::NotStable(version.clone())),
        (Some(version), Some(previous)) if version <= previous => {
            Err(VersionsError::NotAbove { version: version.clone(), previous: previous.clone() })
        }
        (Some(version), _) => Ok(version.clone()),
        (None, Some(previous)) => next(previous),
        (None, None) => Ok(plain(1)),
    }
}

/// The version of a component that changed.
fn bumped(before: Option<&ReleaseVersion>, release: &ReleaseVersion) -> Result<ReleaseVersion, VersionsError> {
    match before {
        Some(before) if before.pre.is_none() => next(before),
        _ => Ok(release.clone()),
    }
}

fn next(version: &ReleaseVersion) -> Result<ReleaseVersion, VersionsError> {
    version.number.checked_add(1).map(plain).ok_or_else(|| VersionsError::Last(version.clone()))
}

fn plain(number: u64) -> ReleaseVersion {
    ReleaseVersion { number, pre: None }
}

fn sha(letters: String) -> ReleaseVersion {
    ReleaseVersion { number: 0, pre: Some(PreRelease { channel: SHA.to_owned(), patch: letters }) }
}
