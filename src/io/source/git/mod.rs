//! Releases from the tags of a Git repository, by https, ssh or file, with libgit2.
//!
//! A list is an ls-remote. A fetch brings one tag, shallow where the transport can, into a repository that is thrown
//! away; a repository on the operator's own disk is read where it lies.
//!
//! Guarantees: credentials go to the URL's own host only, whose key or certificate was checked; nothing of the
//! repository is executed, checked out or linked to; a call ends when its token is cancelled or its time is up.
//!
//! Caveats: over SSH libgit2 can't be interrupted while it waits for a server. Its thread is then left behind and ends by
//! itself when the server was silent for [`SILENCE`]; it keeps its permit until then, so that the number of threads stays
//! bounded. An SSH host's name is resolved for the check and again by libgit2: a name server that lies may tell them two
//! things; the host's key is checked in any case.

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
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::http::Http;
use super::{Access, Fetched, Listing, Source, SourceError, Wanted};
use crate::core::digest::hex;
use crate::core::limits::Limits;
use crate::core::source::{AllowList, Refused, SourceUrl, candidate_paths, permitted};

use session::Session;

/// How long a server may be silent before the connection is given up.
pub const SILENCE: Duration = Duration::from_secs(20);

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
    permits: Arc<Semaphore>,
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
    /// Sources from Git that use `concurrency` threads at once, and `scratch` on the disk.
    pub fn new(allow: AllowList, scratch: PathBuf, concurrency: usize) -> Self {
        Self {
            allow,
            scratch,
            limits: Limits::default(),
            list_timeout: Duration::from_mins(1),
            fetch_timeout: Duration::from_mins(5),
            permits: Arc::new(Semaphore::new(concurrency.max(1))),
        }
    }

    /// The repository at `url`, if it may be used; `path` is where the stack lies in its trees.
    pub fn source(&self, url: &str, path: Option<String>, access: Access) -> Result<GitSource, Refused> {
        let allow = if access.insecure { self.allow.with_plain_http() } else { self.allow.clone() };
        let url = permitted(url, &allow)?;
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
            let permit = Arc::clone(&self.git.permits).acquire_owned().await;
            let permit = permit.map_err(|error| failed(error.to_string()))?;
            let task = tokio::task::spawn_blocking(move || {
                let _permit = permit;
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

    async fn list(&self, cancel: &CancellationToken) -> Result<Listing, SourceError> {
        let tags = self.run("listing the tags of", self.git.list_timeout, cancel, Session::list).await?;
        Ok(Listing::new(tags))
    }

    async fn fetch(&self, wanted: &Wanted<'_>, cancel: &CancellationToken) -> Result<Fetched, SourceError> {
        let places = candidate_paths(self.path.as_deref(), wanted.release);
        let (tag, trust) = (wanted.tag.clone(), wanted.trust.cloned());
        self.run("fetching a release from", self.git.fetch_timeout, cancel, move |session| {
            session.fetch(&tag, &places, trust.as_ref())
        })
        .await
    }
}
