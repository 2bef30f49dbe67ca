//! Git repositories by https, ssh and file: listed without a clone, a release fetched as one shallow tag.

use std::fmt;
use std::net::ToSocketAddrs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use bytes::Bytes;
use git2::{
    CertificateCheckStatus, Cred, CredentialType, Direction, ErrorClass as GitClass, ErrorCode, FetchOptions,
    ObjectType, Oid, RemoteCallbacks, Repository, Tree,
};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{Fetched, Listing, Source, SourceError, Tag};
use crate::core::files::FileTree;
use crate::core::name::ReleaseName;
use crate::core::source::{Allowed, candidate_paths, is_stack, redacted};

/// Longest time for a listing.
const LIST: Duration = Duration::from_mins(1);
/// Longest time for a fetch.
const FETCH: Duration = Duration::from_mins(5);
/// Repositories talked to at once; libgit2 blocks a thread each.
const AT_ONCE: usize = 8;
/// Most files of one stack.
const MAX_FILES: usize = 10_000;
/// Most bytes of one stack.
const MAX_BYTES: usize = 256 * 1024 * 1024;
/// Longest path of a file of a stack.
const MAX_PATH: usize = 1024;
/// Deepest directory of a stack.
const MAX_DEPTH: usize = 32;

static WORKERS: Semaphore = Semaphore::const_new(AT_ONCE);

/// Credentials for a repository. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// User for https.
    pub username: Option<String>,
    /// Password or token for https; passphrase of the key for ssh.
    pub password: Option<String>,
    /// Private key for ssh, in PEM or OpenSSH form.
    pub identity: Option<String>,
    /// Host keys that ssh trusts, in the form of `known_hosts`.
    pub known_hosts: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// A Git repository as source.
#[derive(Clone, Debug)]
pub struct Git {
    url: Url,
    path: Option<String>,
    credentials: Credentials,
    allowed: Arc<Allowed>,
}

impl Git {
    /// A repository at `url`, checked against what the operator allows.
    ///
    /// # Errors
    /// The URL is refused.
    pub fn new(
        url: &str,
        path: Option<String>,
        credentials: Credentials,
        allowed: &Arc<Allowed>,
    ) -> Result<Self, SourceError> {
        let url = allowed.check(url)?;
        Ok(Self { url, path, credentials, allowed: Arc::clone(allowed) })
    }

    /// The URL without what may be a secret.
    pub fn shown(&self) -> String {
        redacted(self.url.as_str())
    }

    /// Runs blocking Git work on its own thread, bounded in number and time. The thread sees `cancel` at its next
    /// progress report.
    async fn blocking<T: Send + 'static>(
        &self,
        limit: Duration,
        cancel: &CancellationToken,
        work: impl FnOnce(&Self, &CancellationToken) -> Result<T, SourceError> + Send + 'static,
    ) -> Result<T, SourceError> {
        let stop = cancel.child_token();
        let _stop_at_end = stop.clone().drop_guard();
        let this = self.clone();
        let run = async {
            let _permit = WORKERS.acquire().await.map_err(|_| SourceError::Cancelled)?;
            let task = tokio::task::spawn_blocking(move || {
                this.check_address()?;
                work(&this, &stop)
            });
            task.await.unwrap_or_else(|error| Err(this_failed(&error)))
        };
        tokio::select! {
            () = cancel.cancelled() => Err(SourceError::Cancelled),
            result = tokio::time::timeout(limit, run) => {
                result.unwrap_or_else(|_| Err(SourceError::TimedOut { url: self.shown(), seconds: limit.as_secs() }))
            }
        }
    }

    /// A name may resolve to a local address that the flags don't allow.
    fn check_address(&self) -> Result<(), SourceError> {
        let (Some(host), Some(port)) = (self.url.host_str(), self.url.port_or_known_default().or(Some(22))) else {
            return Ok(());
        };
        let host = host.trim_matches(['[', ']']);
        let addresses = (host, port)
            .to_socket_addrs()
            .map_err(|error| SourceError::Unreachable { url: self.shown(), error: error.to_string() })?;
        for address in addresses {
            if !self.allowed.allows_address(&self.url, address.ip()) {
                return Err(crate::core::source::Refused::LocalHost(host.to_owned()).into());
            }
        }
        Ok(())
    }

    fn callbacks<'a>(&'a self, cancel: &'a CancellationToken) -> RemoteCallbacks<'a> {
        let mut callbacks = RemoteCallbacks::new();
        let mut tries = 0;
        callbacks.credentials(move |_, user, kinds| {
            tries += 1;
            if tries > 2 {
                // libgit2 asks again for ever when the server refuses.
                return Err(git2::Error::new(ErrorCode::Auth, GitClass::Http, "the server refused them"));
            }
            self.credential(user, kinds)
        });
        callbacks.certificate_check(|certificate, host| match certificate.as_hostkey() {
            Some(key) => self.check_host_key(key.hostkey().unwrap_or_default(), host),
            None => Ok(CertificateCheckStatus::CertificatePassthrough),
        });
        callbacks.transfer_progress(|progress| !cancel.is_cancelled() && progress.received_bytes() <= 4 * MAX_BYTES);
        callbacks.sideband_progress(|_| !cancel.is_cancelled());
        callbacks
    }

    fn credential(&self, user: Option<&str>, kinds: CredentialType) -> Result<Cred, git2::Error> {
        let given = &self.credentials;
        if kinds.contains(CredentialType::SSH_KEY)
            && let Some(key) = &given.identity
        {
            return Cred::ssh_key_from_memory(user.unwrap_or("git"), None, key, given.password.as_deref());
        }
        if kinds.contains(CredentialType::USERNAME) {
            return Cred::username(user.or(given.username.as_deref()).unwrap_or("git"));
        }
        if kinds.contains(CredentialType::USER_PASS_PLAINTEXT)
            && let Some(password) = &given.password
        {
            return Cred::userpass_plaintext(given.username.as_deref().unwrap_or("git"), password);
        }
        Err(git2::Error::new(ErrorCode::Auth, GitClass::Http, "the server wants credentials and there are none"))
    }

    /// An ssh host is trusted only by `known_hosts` of the Secret.
    fn check_host_key(&self, key: &[u8], host: &str) -> Result<CertificateCheckStatus, git2::Error> {
        let known = self.credentials.known_hosts.as_deref().unwrap_or_default();
        if is_known(known, host, self.url.port(), key) {
            return Ok(CertificateCheckStatus::CertificateOk);
        }
        let message = format!("the key of host {host} is not in known_hosts of the Secret");
        Err(git2::Error::new(ErrorCode::Certificate, GitClass::Ssh, message))
    }

    fn list_now(&self, cancel: &CancellationToken) -> Result<Listing, SourceError> {
        let url = self.url.as_str();
        let mut remote = git2::Remote::create_detached(url).map_err(|error| self.failed(&error))?;
        let connection = remote
            .connect_auth(Direction::Fetch, Some(self.callbacks(cancel)), None)
            .map_err(|error| self.failed(&error))?;
        let heads = connection.list().map_err(|error| self.failed(&error))?;
        let mut tags = std::collections::BTreeMap::new();
        for head in heads {
            let Some(name) = head.name().strip_prefix("refs/tags/") else { continue };
            // An annotated tag comes twice: itself, then `name^{}`, the commit it names.
            match name.strip_suffix("^{}") {
                Some(name) => tags.insert(name.to_owned(), head.oid().to_string()),
                None => Some(tags.entry(name.to_owned()).or_insert_with(|| head.oid().to_string()).clone()),
            };
        }
        Ok(Listing::new(tags.into_iter().map(|(name, revision)| Tag { name, revision }).collect()))
    }

    fn fetch_now(&self, tag: &Tag, release: &ReleaseName, cancel: &CancellationToken) -> Result<Fetched, SourceError> {
        if self.url.scheme() == "file" {
            let path =
                self.url.to_file_path().map_err(|()| SourceError::Spec(format!("{} is no path", self.shown())))?;
            let repository = Repository::open(&path).map_err(|error| self.failed(&error))?;
            return self.read(&repository, tag, release);
        }
        let dir = tempfile::tempdir().map_err(|error| SourceError::Unreachable {
            url: self.shown(),
            error: format!("no room for a temporary repository: {error}"),
        })?;
        let repository = self.fetch_into(dir.path(), tag, cancel)?;
        self.read(&repository, tag, release)
    }

    fn fetch_into(&self, dir: &Path, tag: &Tag, cancel: &CancellationToken) -> Result<Repository, SourceError> {
        let repository = Repository::init_bare(dir).map_err(|error| self.failed(&error))?;
        let reference = format!("+refs/tags/{0}:refs/tags/{0}", tag.name);
        let mut options = FetchOptions::new();
        options.remote_callbacks(self.callbacks(cancel)).download_tags(git2::AutotagOption::None).depth(1);
        {
            let mut remote = repository.remote_anonymous(self.url.as_str()).map_err(|error| self.failed(&error))?;
            remote.fetch(&[reference.as_str()], Some(&mut options), None).map_err(|error| self.failed(&error))?;
        }
        Ok(repository)
    }

    /// The stack's files in the tree of the tag.
    fn read(&self, repository: &Repository, tag: &Tag, release: &ReleaseName) -> Result<Fetched, SourceError> {
        let gone = |_| SourceError::NoTag { url: self.shown(), release: release.object_name() };
        let reference = repository.find_reference(&format!("refs/tags/{}", tag.name)).map_err(gone)?;
        let commit = reference.peel_to_commit().map_err(|error| self.failed(&error))?;
        if commit.id().to_string() != tag.revision {
            return Err(SourceError::TagMoved {
                url: self.shown(),
                tag: tag.name.clone(),
                expected: tag.revision.clone(),
                found: commit.id().to_string(),
            });
        }
        let tree = commit.tree().map_err(|error| self.failed(&error))?;
        let candidates = candidate_paths(self.path.as_deref(), release);
        for path in &candidates {
            let Some(stack) = subtree(repository, &tree, path) else { continue };
            let mut stack_files = Collected { repository, tag, files: FileTree::new(), bytes: 0 };
            stack_files.add(&stack, "", 0)?;
            if is_stack(&stack_files.files) {
                return Ok(Fetched { path: path.clone(), files: stack_files.files });
            }
        }
        Err(SourceError::NoStack {
            tag: tag.name.clone(),
            stack: format!("{}/{}", release.provider, release.stack),
            tried: candidates.join(", "),
        })
    }

    fn failed(&self, error: &git2::Error) -> SourceError {
        let (url, text) = (self.shown(), error.message().to_owned());
        match (error.code(), error.class()) {
            (ErrorCode::User, _) => SourceError::Cancelled,
            (ErrorCode::Auth | ErrorCode::Certificate, _) => SourceError::Unauthorized { url, error: text },
            _ if text.contains("401") || text.contains("403") => SourceError::Unauthorized { url, error: text },
            _ => SourceError::Unreachable { url, error: text },
        }
    }
}

fn this_failed(error: &tokio::task::JoinError) -> SourceError {
    SourceError::Unreachable { url: "the Git library".into(), error: error.to_string() }
}

fn subtree<'r>(repository: &'r Repository, root: &Tree<'_>, path: &str) -> Option<Tree<'r>> {
    if path.is_empty() {
        return repository.find_tree(root.id()).ok();
    }
    let entry = root.get_path(Path::new(path)).ok()?;
    repository.find_tree(entry.id()).ok()
}

/// Collects the files of a tree within limits.
struct Collected<'r> {
    repository: &'r Repository,
    tag: &'r Tag,
    files: FileTree,
    bytes: usize,
}

/// File mode of a symbolic link in a tree.
const LINK: i32 = 0o120_000;

impl Collected<'_> {
    fn refused(&self, why: String) -> SourceError {
        SourceError::Files { tag: self.tag.name.clone(), why }
    }

    fn add(&mut self, tree: &Tree<'_>, prefix: &str, depth: usize) -> Result<(), SourceError> {
        if depth > MAX_DEPTH {
            return Err(self.refused(format!("{prefix} is nested deeper than {MAX_DEPTH} directories")));
        }
        for entry in tree {
            let name = entry.name().ok().ok_or_else(|| self.refused(format!("a name below {prefix} is no UTF-8")))?;
            let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
            if path.len() > MAX_PATH || name == ".." || name.contains(['/', '\\', '\0']) {
                return Err(self.refused(format!("{path:?} is no usable path")));
            }
            match entry.kind() {
                Some(ObjectType::Tree) => {
                    let below =
                        self.repository.find_tree(entry.id()).map_err(|e| self.refused(e.message().to_owned()))?;
                    self.add(&below, &path, depth + 1)?;
                }
                Some(ObjectType::Blob) if entry.filemode() == LINK => {
                    return Err(self.refused(format!("{path} is a symbolic link; replace it by what it names")));
                }
                Some(ObjectType::Blob) => self.add_blob(entry.id(), path)?,
                Some(ObjectType::Commit) => {
                    return Err(self.refused(format!("{path} is a submodule; vendor its files instead")));
                }
                _ => return Err(self.refused(format!("{path} is of an unknown kind"))),
            }
        }
        Ok(())
    }

    fn add_blob(&mut self, id: Oid, path: String) -> Result<(), SourceError> {
        let blob = self.repository.find_blob(id).map_err(|e| self.refused(e.message().to_owned()))?;
        self.bytes += blob.size();
        if self.bytes > MAX_BYTES || self.files.len() >= MAX_FILES {
            return Err(self.refused(format!("more than {MAX_FILES} files or {} MiB", MAX_BYTES / 1024 / 1024)));
        }
        self.files.insert(path, Bytes::copy_from_slice(blob.content()));
        Ok(())
    }
}

#[async_trait]
impl Source for Git {
    fn key(&self) -> String {
        let Credentials { username, password, identity, known_hosts } = &self.credentials;
        let mut hash = Sha256::new();
        for part in [username, password, identity, known_hosts] {
            hash.update(part.as_deref().unwrap_or_default().as_bytes());
            hash.update([0]);
        }
        format!("git {} {:x}", self.url, hash.finalize())
    }

    async fn list(&self, cancel: &CancellationToken) -> Result<Listing, SourceError> {
        self.blocking(LIST, cancel, Self::list_now).await
    }

    async fn fetch(
        &self,
        tag: &Tag,
        release: &ReleaseName,
        cancel: &CancellationToken,
    ) -> Result<Fetched, SourceError> {
        let (tag, release) = (tag.clone(), release.clone());
        self.blocking(FETCH, cancel, move |this, cancel| this.fetch_now(&tag, &release, cancel)).await
    }
}

/// Whether `known_hosts` (sshd(8)) lists this key for this host. Hashed host names are not understood.
fn is_known(known_hosts: &str, host: &str, port: Option<u16>, key: &[u8]) -> bool {
    let with_port = format!("[{host}]:{}", port.unwrap_or(22));
    known_hosts.lines().filter(|line| !line.starts_with(['#', '@'])).any(|line| {
        let mut fields = line.split_whitespace();
        let (Some(hosts), Some(_kind), Some(encoded)) = (fields.next(), fields.next(), fields.next()) else {
            return false;
        };
        let names_host =
            hosts.split(',').any(|name| name == with_port || (name == host && matches!(port, None | Some(22))));
        names_host && base64::engine::general_purpose::STANDARD.decode(encoded).is_ok_and(|known| known == key)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_host_keys_are_trusted() {
        let known = "# c\nexample.com,example.org ssh-ed25519 AAAA\n[example.net]:2222 ssh-rsa BBBB\n";
        let key = |text: &str| base64::engine::general_purpose::STANDARD.decode(text).unwrap();
        for (host, port, encoded, expected) in [
            ("example.com", None, "AAAA", true),
            ("example.org", Some(22), "AAAA", true),
            ("example.com", None, "BBBB", false),
            ("example.com", Some(2222), "AAAA", false),
            ("example.net", Some(2222), "BBBB", true),
            ("example.net", None, "BBBB", false),
            ("other", None, "AAAA", false),
        ] {
            assert_eq!(is_known(known, host, port, &key(encoded)), expected, "{host} {port:?} {encoded}");
        }
        assert!(!is_known("", "example.com", None, &key("AAAA")));
    }

    #[test]
    fn credentials_are_never_printed() {
        let credentials = Credentials { password: Some("s3cret".into()), ..Credentials::default() };
        let git = Git::new("https://u:s3cret@example.com/a", None, credentials, &Arc::default()).unwrap();
        assert!(!git.shown().contains("s3cret"));
        assert!(!format!("{:?}", git.credentials).contains("s3cret"));
    }
}
