//! Where releases come from: one trait, an implementation per kind of source.

pub mod access;
pub mod answers;
pub mod assets;
mod credentials;
pub mod directory;
mod error;
pub mod flights;
mod forge;
pub mod git;
pub mod github;
pub mod gitlab;
pub mod http;
pub mod meter;
pub mod oci;
pub mod of_default;
pub mod open;
pub mod poller;
pub mod room;
pub(in crate::io) mod rooted;
pub(in crate::io) mod tls;
pub mod trust;

use std::collections::BTreeMap;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::api::cluster_stack_source::Quota;
use crate::core::digest::hex;
use crate::core::files::FileTree;
use crate::core::name::ReleaseName;
use crate::core::verification::{Signer, Trust};

pub use access::Access;
pub(crate) use credentials::spellings;
pub use credentials::{CredentialError, Credentials, GithubApp, Login, SshIdentity};
pub(in crate::io) use error::NO_REGISTRY_LOGIN;
pub use error::{NO_LOGIN, SourceError, trouble};
pub use forge::quotas::Quotas;

/// Lists releases and fetches them.
#[async_trait]
pub trait Source: Send + Sync {
    /// What the source is, for sharing polls: the same for two sources if and only if they list the same with the same
    /// rights. Holds no secret.
    fn key(&self) -> String;

    /// [`Source::key`] with all else that decides which files a tag gives.
    fn fetch_key(&self) -> String {
        self.key()
    }

    /// The host that is asked, with its port: of one host, few are asked at once.
    fn host(&self) -> String;

    /// Everything on offer. Cheap: nothing is downloaded but names.
    async fn list(&self, cancel: &CancellationToken) -> Result<Listing, SourceError>;

    /// The tag with what it names now, for sources whose listing does not tell (`tag.revision` is empty there).
    async fn resolve(&self, tag: &Tag, _cancel: &CancellationToken) -> Result<Tag, SourceError> {
        Ok(tag.clone())
    }

    /// The files of one release. Its tag is from a listing, and resolved; what it points at must not have changed since.
    async fn fetch(&self, wanted: &Wanted<'_>, cancel: &CancellationToken) -> Result<Fetched, SourceError>;

    /// Whether a revision may be there still when its tag names another one. It is a digest of its content then.
    fn keeps_revisions(&self) -> bool {
        false
    }

    /// What is left of the server's quota of requests, where it tells.
    fn quota(&self) -> Option<Quota> {
        None
    }
}

/// What to fetch.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The tag as it was listed or resolved.
    pub tag: &'a Tag,
    /// The release that it names.
    pub release: &'a ReleaseName,
    /// Signatures that must hold before anything is unpacked.
    pub trust: Option<&'a Trust>,
    /// The tag is known to name something else now, or nothing: its revision is fetched itself, where
    /// [`Source::keeps_revisions`].
    pub by_revision: bool,
}

/// A tag of a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag {
    /// Its name.
    pub name: String,
    /// What it points at: the id of a commit, through annotations; the digest of a manifest; a digest over assets. Empty
    /// where a listing does not tell.
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
    /// What the tag points at, as in [`Tag::revision`].
    pub revision: String,
    /// The stack's directory in the tree; empty where there is none.
    pub path: String,
    /// The files of that directory.
    pub files: FileTree,
    /// Ids of the tree objects of its components: `cluster-class`, `cluster-addon`; empty where there are none.
    pub component_ids: BTreeMap<String, String>,
    /// Who signed it, where that was asked for.
    pub signer: Option<Signer>,
}
