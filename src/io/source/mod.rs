//! Where releases come from: one trait, an implementation per kind of source.

mod credentials;
mod error;
pub mod git;
pub mod poller;

use std::collections::BTreeMap;
use std::fmt::Write;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::core::files::FileTree;
use crate::core::name::ReleaseName;

pub use credentials::{CredentialError, Credentials, SshIdentity};
pub use error::SourceError;

/// Lists releases and fetches them.
#[async_trait]
pub trait Source: Send + Sync {
    /// What the source is, for sharing polls: the same for two sources if and only if they list the same with the same
    /// rights. Holds no secret.
    fn key(&self) -> String;

    /// Everything on offer. Cheap: nothing is downloaded but names.
    async fn list(&self, cancel: &CancellationToken) -> Result<Listing, SourceError>;

    /// The files of one release. `tag` is from a listing; what it points at must not have changed since.
    async fn fetch(&self, tag: &Tag, release: &ReleaseName, cancel: &CancellationToken)
    -> Result<Fetched, SourceError>;
}

/// A tag of a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag {
    /// Its name.
    pub name: String,
    /// Id of the commit it points at, through annotations.
    pub revision: String,
}

/// What a source offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Digest over names and revisions: the same as long as nothing changes.
    pub revision: String,
    /// The tags, by name.
    pub tags: Vec<Tag>,
}

impl Listing {
    /// A listing of these tags, in any order.
    pub fn new(mut tags: Vec<Tag>) -> Self {
        tags.sort();
        let mut digest = Sha256::new();
        for tag in &tags {
            digest.update((tag.name.len() as u64).to_be_bytes());
            digest.update(&tag.name);
            digest.update((tag.revision.len() as u64).to_be_bytes());
            digest.update(&tag.revision);
        }
        Self { revision: format!("sha256:{}", hex(&digest.finalize())), tags }
    }
}

/// A release as it was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The source's URL without user and password.
    pub url: String,
    /// Id of the commit.
    pub revision: String,
    /// The stack's directory in the tree.
    pub path: String,
    /// The files of that directory.
    pub files: FileTree,
    /// Ids of the tree objects of its components: `cluster-class`, `cluster-addon`.
    pub component_ids: BTreeMap<String, String>,
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
