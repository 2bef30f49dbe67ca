//! Releases taken to where they are found: a directory, a registry, a Git repository.
//!
//! Guarantees: a release is there whole or not at all; one that is there with other content is never overwritten; what
//! is published makes a [`Bundle`], so that no subscriber finds a broken one.

pub mod directory;
pub mod git;
pub mod registry;
pub mod remote;
pub mod target;

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::Bytes;
use thiserror::Error;

use super::source::{SourceError, Tag, assets};
use crate::core::artifact::{Artifact, ArtifactError};
use crate::core::bundle::{Bundle, BundleError};
use crate::core::files::FileTree;
use crate::core::limits::{Limits, TooLarge};
use crate::core::name::ReleaseName;
use crate::core::verification::checksums::{self, CHECKSUMS};
use crate::io::unpack::UnpackError;

/// The assets of one release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Its name.
    pub name: ReleaseName,
    /// Its assets, with signatures.
    pub assets: BTreeMap<String, Bytes>,
}

/// What publishing came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// It was not there before.
    New {
        /// Digest or commit.
        revision: String,
    },
    /// It was there, the same.
    Unchanged {
        /// Digest or commit.
        revision: String,
    },
}

/// Why a release is not published.
#[derive(Debug, Error)]
pub enum PublishError {
    /// The disk says no.
    #[error("{action} {path} failed: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What happened.
        error: std::io::Error,
    },
    /// A directory is no release.
    #[error("{path} is no release: {problem}")]
    NoRelease {
        /// Which.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
    /// The assets are no release.
    #[error("release {release} is broken: {problem}")]
    Broken {
        /// Which.
        release: String,
        /// What is wrong.
        problem: String,
    },
    /// It is there with other content.
    #[error(
        "{target} has a release {release} with other content ({found}): a release never changes, publish a new version"
    )]
    Differs {
        /// Which.
        release: String,
        /// Where.
        target: String,
        /// What is there.
        found: String,
    },
    /// A limit was passed.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// An archive is refused.
    #[error("the archive is refused: {0}")]
    Archive(#[from] UnpackError),
    /// Content is not what its digest says.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// A target that is none.
    #[error("{target:?} is no target: {problem}")]
    Target {
        /// As written.
        target: String,
        /// What is wrong.
        problem: String,
    },
    /// A registry or repository says no.
    #[error("{action} {target} failed: {problem}")]
    Remote {
        /// What was tried.
        action: &'static str,
        /// On what, without secrets.
        target: String,
        /// What it said.
        problem: String,
    },
}

impl Release {
    /// The stack's directory made of the assets, which must make a release, and be those that its checksums are of.
    pub fn stack(&self) -> Result<FileTree, PublishError> {
        let broken = |problem: String| PublishError::Broken { release: self.name.object_name(), problem };
        let tag = Tag { name: self.name.object_name(), revision: String::new() };
        let names: Vec<String> = self.assets.keys().cloned().collect();
        let of_source = |error: SourceError| broken(error.to_string());
        if let Some(sums) = self.assets.get(CHECKSUMS) {
            let files = self.assets.iter().map(|(name, content)| (name.as_str(), content.as_ref()));
            checksums::agrees(sums, files).map_err(|problem| broken(format!("{CHECKSUMS}: {problem}")))?;
        }
        let wanted = assets::wanted(&tag, &self.name, &names).map_err(of_source)?;
        let wanted: BTreeMap<String, Bytes> =
            wanted.into_iter().filter_map(|name| Some((name.clone(), self.assets.get(&name)?.clone()))).collect();
        let files = assets::stack(&tag, &self.name, &wanted, &Limits::default()).map_err(of_source)?;
        Bundle::from_files(&self.name, &files, &BTreeMap::new())
            .map_err(|error: BundleError| broken(error.to_string()))?;
        Ok(files)
    }

    /// As an OCI artifact.
    pub fn artifact(&self) -> Artifact {
        Artifact::of_release(&self.name, &self.assets)
    }
}

/// Digest over all assets.
fn digest(assets: &BTreeMap<String, Bytes>) -> String {
    use sha2::{Digest as _, Sha256};
    let mut digest = Sha256::new();
    for (name, content) in assets {
        digest.update((name.len() as u64).to_be_bytes());
        digest.update(name);
        digest.update(Sha256::digest(content));
    }
    format!("sha256:{}", crate::core::digest::hex(&digest.finalize()))
}
