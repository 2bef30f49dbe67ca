//! Where images are brought: one trait, an implementation per kind of destination.
//!
//! An upload goes to a name that holds its attempt, where nobody looks for images; [`Destination::register`] publishes it by
//! one atomic step. What is published carries the digest of its file and the ids of the management clusters that use it.

mod directory;
mod glance;
mod http;
pub mod oci;
mod open;
mod reader;
mod record;
mod s3;
mod shelf;
mod web;

use std::path::Path;

use async_trait::async_trait;
use reqwest::Url;
use serde_json::{Map, Value};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

pub use open::{Reach, SecretData, open};

/// An image as its destination knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// What it is called there.
    pub name: String,
    /// `sha256:` and hex digits, of the file.
    pub digest: String,
    /// Of the file, in bytes.
    pub size: u64,
    /// `qcow2`, `raw`, …; empty where nobody said.
    pub format: String,
    /// What is said of it.
    pub properties: Map<String, Value>,
    /// Where the very same file may lie for all to read; the digest decides whether it does.
    pub origins: Vec<Url>,
}

/// Who asks, and for which attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// UID of the object that stands for the image.
    pub object: String,
    /// Number of the attempt; an upload of another one is never touched while it may run.
    pub attempt: u32,
    /// Id of the management cluster: UID of its namespace `kube-system`.
    pub cluster: String,
}

/// An image that lies at its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Where: a path, a URL, a reference or an id, without secrets.
    pub location: String,
    /// `sha256:` and hex digits, of the file.
    pub digest: String,
    /// Ids of the management clusters that use it.
    pub users: Vec<String>,
}

/// What came of removing an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is gone.
    Removed,
    /// There was none.
    Absent,
    /// It stays, for these other management clusters use it; our id is gone from it.
    UsedBy(Vec<String>),
    /// It stays, for it is protected there.
    Protected,
    /// It stays, for it carries no id of ours: somebody else brought it.
    Foreign,
}

/// What went wrong at a destination.
#[derive(Debug, Error)]
pub enum DestinationError {
    /// It can't be reached, or is out of order: tried again.
    #[error("{action} {location} failed: {problem}; it is tried again")]
    Unreachable {
        /// What was tried: `uploading to`.
        action: &'static str,
        /// Where, without secrets.
        location: String,
        /// What it says, without secrets.
        problem: String,
    },
    /// It refuses us, for good.
    #[error("{action} {location} is refused: {problem}")]
    Refused {
        /// What was tried.
        action: &'static str,
        /// Where, without secrets.
        location: String,
        /// Why, and what to do.
        problem: String,
    },
    /// Something else than our image has its name.
    #[error(
        "{location} is another image ({found} instead of {wanted}): give ours another name, or remove that one{}",
        to_adopt(found)
    )]
    Conflict {
        /// Where.
        location: String,
        /// Its digest, or what it is.
        found: String,
        /// Digest of ours.
        wanted: String,
    },
    /// The file at hand can't be read, or is not what it should be.
    #[error("{file} can't be uploaded: {problem}")]
    File {
        /// The file's name.
        file: String,
        /// Why.
        problem: String,
    },
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

/// What else can be done where the other one may have been made of the same.
fn to_adopt(found: &str) -> String {
    let is_one_of_ours = crate::core::image::adoption::is_digest(found);
    let how = || format!("; if it is made of the same, `clusterstack images adopt NAME {found}` takes it as it is");
    is_one_of_ours.then(how).unwrap_or_default()
}

impl DestinationError {
    /// Whether trying again can help.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Cancelled)
    }
}

/// Who wants to know how far an upload is. Called often; it must not block.
pub trait Meter: Send + Sync {
    /// `done` bytes of the file are there, counted from its beginning.
    fn done(&self, done: u64);

    /// Somebody else works on it, or what was tried did not help: for the log.
    fn says(&self, _line: &str) {}
}

/// A place for images.
#[async_trait]
pub trait Destination: Send + Sync {
    /// What it is, for messages: `directory /srv/images`.
    fn name(&self) -> String;

    /// The published image of this name, if one is there.
    ///
    /// # Errors
    /// The destination does not answer, refuses us, or something that is no image of ours has the name.
    async fn find(&self, name: &str, cancel: &CancellationToken) -> Result<Option<Published>, DestinationError>;

    /// Brings the file there, under a name of this claim's attempt; goes on with what is there of the same attempt and
    /// digest where the destination can. The file's digest is checked on the way.
    ///
    /// # Errors
    /// The destination does not answer or refuses us, the file changed.
    async fn upload(
        &self,
        image: &Image,
        file: &Path,
        claim: &Claim,
        meter: &dyn Meter,
        cancel: &CancellationToken,
    ) -> Result<(), DestinationError>;

    /// Takes over what an earlier attempt of the object uploaded wholly, so that this one need not; whether it did. An
    /// attempt that still goes on finds nothing to publish then.
    ///
    /// # Errors
    /// The destination does not answer or refuses us.
    async fn adopt(
        &self,
        _image: &Image,
        _claim: &Claim,
        _earlier: u32,
        _cancel: &CancellationToken,
    ) -> Result<bool, DestinationError> {
        Ok(false)
    }

    /// Publishes what was uploaded, by one atomic step, and adds our id to it. One that is published already, with this
    /// digest, only gets our id.
    ///
    /// # Errors
    /// Nothing was uploaded, another image has the name, or the destination does not answer or refuses us.
    async fn register(
        &self,
        image: &Image,
        claim: &Claim,
        cancel: &CancellationToken,
    ) -> Result<Published, DestinationError>;

    /// Removes what attempts up to this one of this object left half-made. Nothing there is no error.
    ///
    /// # Errors
    /// The destination does not answer or refuses us.
    async fn abandon(&self, image: &str, claim: &Claim, cancel: &CancellationToken) -> Result<(), DestinationError>;

    /// Takes our id from the published image, and removes it if that was the last one; `dry_run` only says what would be.
    /// An image of another digest than `digest` is foreign.
    ///
    /// # Errors
    /// The destination does not answer or refuses us.
    async fn remove(
        &self,
        image: &str,
        digest: &str,
        cluster: &str,
        dry_run: bool,
        cancel: &CancellationToken,
    ) -> Result<Removal, DestinationError>;
}
