//! Where releases come from.

pub mod git;
pub mod poller;

use async_trait::async_trait;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::api::condition::Reason;
use crate::core::files::FileTree;
use crate::core::name::ReleaseName;
use crate::core::retry::ErrorClass;
use crate::core::source::Refused;
use crate::core::status::Trouble;

/// A place that offers releases.
#[async_trait]
pub trait Source: Send + Sync {
    /// What tells this source from others: equal keys share a poll. Holds a digest of the credentials, not them.
    fn key(&self) -> String;

    /// Everything on offer, cheaply.
    async fn list(&self, cancel: &CancellationToken) -> Result<Listing, SourceError>;

    /// The files of one release.
    async fn fetch(&self, tag: &Tag, release: &ReleaseName, cancel: &CancellationToken)
    -> Result<Fetched, SourceError>;
}

/// A tag and what it names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag {
    /// Name.
    pub name: String,
    /// Object id of the commit, in hex.
    pub revision: String,
}

/// All tags of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Digest over names and revisions: equal listings have equal revisions.
    pub revision: String,
    /// The tags, sorted by name.
    pub tags: Vec<Tag>,
}

impl Listing {
    /// Sorts tags and computes their digest.
    pub fn new(mut tags: Vec<Tag>) -> Self {
        use sha2::{Digest, Sha256};
        tags.sort();
        let mut hash = Sha256::new();
        for tag in &tags {
            hash.update(tag.name.as_bytes());
            hash.update([0]);
            hash.update(tag.revision.as_bytes());
            hash.update([0]);
        }
        let digest = format!("{:x}", hash.finalize());
        Self { revision: digest[..32].to_owned(), tags }
    }

    /// The tag of a release, in either spelling of a pre-release version.
    pub fn tag_of(&self, release: &ReleaseName) -> Option<&Tag> {
        let is_it =
            |tag: &&Tag| ReleaseName::of_stack(&tag.name, &release.provider, &release.stack).as_ref() == Some(release);
        self.tags.iter().find(is_it)
    }
}

/// A fetched release.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetched {
    /// Where in the source its stack lies.
    pub path: String,
    /// Its files, relative to `path`.
    pub files: FileTree,
}

/// Why a source gave nothing. No message holds a credential.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SourceError {
    /// The flags or the rules forbid it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The spec names no source that can be used.
    #[error("{0}")]
    Spec(String),
    /// The Secret is missing or lacks its keys.
    #[error("{0}")]
    Secret(String),
    /// It does not answer.
    #[error("{url} can't be reached: {error}")]
    Unreachable {
        /// The source, without credentials.
        url: String,
        /// What was said.
        error: String,
    },
    /// It wants other credentials.
    #[error("{url} refuses the credentials: {error}; check the Secret that secretRef names")]
    Unauthorized {
        /// The source, without credentials.
        url: String,
        /// What was said.
        error: String,
    },
    /// The tag is gone.
    #[error("{url} has no tag of release {release}")]
    NoTag {
        /// The source.
        url: String,
        /// The release.
        release: String,
    },
    /// The tag names another commit than it did.
    #[error("tag {tag} of {url} names {found} now, not {expected} as listed; it is listed again")]
    TagMoved {
        /// The source.
        url: String,
        /// The tag.
        tag: String,
        /// The revision that was listed.
        expected: String,
        /// The revision that came.
        found: String,
    },
    /// The tree of the tag holds no such stack.
    #[error("the tree of tag {tag} holds no cluster stack {stack}: no cluster-class/Chart.yaml in any of {tried}")]
    NoStack {
        /// The tag.
        tag: String,
        /// `<provider>/<name>`.
        stack: String,
        /// The directories that were looked at.
        tried: String,
    },
    /// The files break a rule or a limit.
    #[error("the files of tag {tag} are refused: {why}")]
    Files {
        /// The tag.
        tag: String,
        /// Which rule.
        why: String,
    },
    /// It took too long.
    #[error("{url} did not answer within {seconds} s")]
    TimedOut {
        /// The source.
        url: String,
        /// The limit.
        seconds: u64,
    },
    /// The process is ending.
    #[error("cancelled")]
    Cancelled,
}

impl SourceError {
    /// What stands in the way, for a condition.
    pub fn trouble(&self) -> Trouble {
        let (class, reason) = match self {
            Self::Refused(_) => (ErrorClass::Invalid, Reason::SourceRefused),
            Self::Spec(_) => (ErrorClass::Invalid, Reason::SourceInvalid),
            Self::Secret(_) => (ErrorClass::Waiting, Reason::SecretInvalid),
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Cancelled => {
                (ErrorClass::Transient, Reason::SourceUnreachable)
            }
            Self::Unauthorized { .. } => (ErrorClass::Waiting, Reason::SourceUnauthorized),
            Self::NoTag { .. } => (ErrorClass::Waiting, Reason::ReleaseNotFound),
            Self::TagMoved { .. } => (ErrorClass::Transient, Reason::FetchFailed),
            Self::NoStack { .. } | Self::Files { .. } => (ErrorClass::Invalid, Reason::ReleaseInvalid),
        };
        Trouble::new(class, reason, self.to_string())
    }
}
