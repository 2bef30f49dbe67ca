//! Releases from the tags of a Git repository, by https, ssh or file, with libgit2.
//!
//! A list is an ls-remote. A fetch brings one tag, shallow where the transport can, into a repository that is thrown
//! away; a repository on the operator's own disk is read where it lies.
//!
//! Guarantees: credentials go to the URL's own host only, whose key or certificate was checked; nothing of the
//! repository is executed, checked out or linked to; a call ends when its token is cancelled or its time is up.
//!
//! What comes is looked at before libgit2 makes objects of it, and each object before it is made whole: `pack`, `session`.
//!
//! An SSH host is reached by a relay of ours, at the address that was looked at, and what it sends is bounded. A thread
//! keeps its place until it ended, so that their number stays bounded, also per host.
//!
//! Caveat: a repository on the operator's own disk is looked at when it is opened: whoever swaps its `alternates` in the
//! moment behind that may have Git objects read from elsewhere.

mod pack;
mod relay;
mod remote;
mod session;
mod transport;
mod tree;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::http::Http;
use super::room::{Guest, Pace, Room, Sizes};
use super::{Access, Fetched, Listing, Source, SourceError, Wanted};
use crate::core::digest::hex;
use crate::core::limits::Limits;
use crate::core::source::{AllowList, Refused, SourceUrl, candidate_paths};

pub(crate) use remote::{name_of, set_timeouts};
use session::Session;

/// How long a server may be silent before the connection is given up.
pub const SILENCE: Duration = Duration::from_secs(20);

/// Threads that talk to one host at once.
const PER_HOST: usize = 4;

/// What the sources from Git have in common.
#[derive(Clone, Debug)]
pub struct Git {
    /// Local roots and hosts that may be used.
    pub allow: AllowList,
    /// Directory for repositories that are thrown away; made when needed.
    pub scratch: PathBuf,
    /// What a release may weigh.
    pub limits: Limits,
    /// How long a list may take.
    pub list_timeout: Duration,
    /// How long a fetch may take.
    pub fetch_timeout: Duration,
    room: Arc<Room>,
}

/// One repository.
#[derive(Clone, Debug)]
pub struct GitSource {
    git: Git,
    url: SourceUrl,
    path: Option<String>,
    access: Arc<Access>,
    /// The client for http(s), with its connections.
    http: Result<Http, SourceError>,
}

impl Git {
    /// Sources from Git that use so many threads at once, and `scratch` on the disk.
    pub fn new(allow: AllowList, scratch: PathBuf, threads: usize) -> Self {
        Self {
            allow,
            scratch,
            limits: Limits::default(),
            list_timeout: Duration::from_mins(1),
            fetch_timeout: Duration::from_mins(5),
            room: Arc::new(Room::new(Sizes { quick: threads, slow: 1, silent: 1, per_host: PER_HOST })),
        }
    }

    /// The repository at `url`, if it may be used; `path` is where the stack lies in its trees.
    pub fn source(&self, url: &str, path: Option<String>, access: Access) -> Result<GitSource, Refused> {
        let url = access.permitted(url, &self.allow)?;
        let http = Http::new(&access, &self.allow);
        Ok(GitSource { git: self.clone(), url, path, access: Arc::new(access), http })
    }
}

impl GitSource {
    /// Runs `work` on the blocking pool when a thread is free, for at most `limit`.
    async fn run<T: Send + 'static>(
        &self,
        action: &'static str,
        limit: Duration,
        cancel: &CancellationToken,
        work: impl FnOnce(&Session) -> Result<T, SourceError> + Send + 'static,
    ) -> Result<T, SourceError> {
        let url = self.url.redacted();
        let stop = cancel.child_token();
        let _stop_the_thread_in_any_case = stop.clone().drop_guard();
        let session = Session {
            action,
            url: self.url.clone(),
            access: Arc::clone(&self.access),
            allow: self.git.allow.clone(),
            scratch: self.git.scratch.clone(),
            limits: self.git.limits,
            stop,
            http: self.http.clone(),
            runtime: Handle::current(),
        };
        let failed = |problem: String| SourceError::Local { action, url: url.clone(), problem };
        let thread = async {
            let place = self.git.room.enter(Guest { tenant: "", host: &self.host() }, Pace::Quick).await;
            let task = tokio::task::spawn_blocking(move || {
                let _place = place;
                work(&session)
            });
            task.await.map_err(|error| failed(format!("the Git library gave up: {error}")))?
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(SourceError::Cancelled { action, url: url.clone() }),
            result = tokio::time::timeout(limit, thread) => {
                result.unwrap_or_else(|_| Err(SourceError::TimedOut { action, url: url.clone(), after: limit }))
            }
        }
    }
}

#[async_trait]
impl Source for GitSource {
    fn key(&self) -> String {
        let mut digest = Sha256::new();
        digest.update(self.url.secret_str());
        digest.update([0]);
        self.access.digest(&mut digest);
        format!("git {} {}", self.url.redacted(), &hex(&digest.finalize())[..16])
    }

    fn fetch_key(&self) -> String {
        format!("{} {:?}", self.key(), self.path)
    }

    fn host(&self) -> String {
        self.url.local_path().map_or_else(|| self.url.host_and_port(), |path| path.display().to_string())
    }

    async fn list(&self, cancel: &CancellationToken) -> Result<Listing, SourceError> {
        let tags = self.run("listing the tags of", self.git.list_timeout, cancel, Session::list).await?;
        Ok(Listing::new(tags))
    }

    async fn fetch(&self, wanted: &Wanted<'_>, cancel: &CancellationToken) -> Result<Fetched, SourceError> {
        let places = candidate_paths(self.path.as_deref(), wanted.release);
        let (tag, trust, by_revision) = (wanted.tag.clone(), wanted.trust.cloned(), wanted.by_revision);
        self.run("fetching a release from", self.git.fetch_timeout, cancel, move |session| {
            if by_revision {
                session.fetch_revision(&tag, &places, trust.as_ref())
            } else {
                session.fetch(&tag, &places, trust.as_ref())
            }
        })
        .await
    }

    fn keeps_revisions(&self) -> bool {
        true
    }
}
