//! Repositories on other machines: connections, logins, who is trusted, and what errors mean.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use git2::cert::Cert;
use git2::{
    AutotagOption, CertificateCheckStatus, Cred, CredentialType, Direction, Error, ErrorClass, ErrorCode, FetchOptions,
    Remote, RemoteCallbacks, RemoteRedirect, Repository, RepositoryInitOptions,
};
use tempfile::TempDir;

use super::super::SourceError;
use super::SILENCE;
use super::session::Session;
use super::transport;
use crate::core::limits::TooLarge;
use crate::core::source::{HostKey, Scheme, SourceUrl};

/// How often a server may ask in one conversation: for a user, and for a key or a password.
const MAX_LOGINS: u8 = 3;

/// How names of repositories that are thrown away begin.
const SCRATCH: &str = "fetch-";
/// From which age on such a repository is left over: no fetch takes so long.
const LEFT_OVER: Duration = Duration::from_hours(1);

/// A repository that goes when it is dropped.
pub(super) struct Scratch {
    pub(super) repository: Repository,
    _directory: TempDir,
}

/// What the callbacks saw, which libgit2's error does not tell.
#[derive(Default)]
struct Seen {
    logins: Cell<u8>,
    untrusted: RefCell<Option<String>>,
    too_large: Cell<bool>,
}

/// All references of the repository with the ids of their objects.
pub(super) fn list(session: &Session) -> Result<Vec<(String, String)>, SourceError> {
    set_timeouts();
    let talk = Talk::new(session)?;
    let fail = |error: Error| talk.explain(session, &error);
    let mut remote = Remote::create_detached(talk.url.as_str()).map_err(fail)?;
    let connection = remote.connect_auth(Direction::Fetch, Some(callbacks(session, &talk.seen)), None).map_err(fail)?;
    let heads = connection.list().map_err(fail)?;
    Ok(heads.iter().map(|head| (head.name().to_owned(), head.oid().to_string())).collect())
}

/// How libgit2 reaches the repository: over our HTTP, or by itself over SSH.
struct Talk {
    url: String,
    http: Option<transport::Open>,
    seen: Seen,
}

impl Talk {
    fn new(session: &Session) -> Result<Self, SourceError> {
        let http = match session.url.scheme() {
            Scheme::Https | Scheme::Http => Some(transport::Open::new(session, session.http()?)?),
            Scheme::Ssh | Scheme::File => None,
        };
        let url = http.as_ref().map_or_else(|| session.url.secret_str().to_owned(), transport::Open::url);
        Ok(Self { url, http, seen: Seen::default() })
    }

    /// What an error means: what went wrong on the way, if it was that.
    fn explain(&self, session: &Session, error: &Error) -> SourceError {
        let on_the_way = self.http.as_ref().and_then(transport::Open::failure);
        on_the_way.unwrap_or_else(|| explain(session, &self.seen, error))
    }
}

/// The one reference, without its history where the server can.
pub(super) fn fetch(session: &Session, name: &str) -> Result<Scratch, SourceError> {
    set_timeouts();
    let shallow = fetch_once(session, name, 1);
    match shallow {
        Err(SourceError::Unreachable { problem, .. }) if problem.contains("shallow") => fetch_once(session, name, 0),
        other => other,
    }
}

fn fetch_once(session: &Session, name: &str, depth: i32) -> Result<Scratch, SourceError> {
    let scratch = scratch(session)?;
    let talk = Talk::new(session)?;
    let fail = |error: Error| talk.explain(session, &error);
    let mut options = FetchOptions::new();
    options
        .remote_callbacks(callbacks(session, &talk.seen))
        .follow_redirects(RemoteRedirect::None)
        .download_tags(AutotagOption::None)
        .update_fetchhead(false);
    if depth > 0 {
        options.depth(depth);
    }
    let mut remote = scratch.repository.remote_anonymous(&talk.url).map_err(fail)?;
    remote.fetch(&[format!("+{name}:{name}")], Some(&mut options), None).map_err(fail)?;
    drop(remote);
    drop(options);
    Ok(scratch)
}

fn scratch(session: &Session) -> Result<Scratch, SourceError> {
    let disk = |error: std::io::Error| session.disk(&error);
    fs::create_dir_all(&session.scratch).map_err(disk)?;
    clear(&session.scratch);
    let directory = tempfile::Builder::new().prefix(SCRATCH).tempdir_in(&session.scratch).map_err(disk)?;
    let mut options = RepositoryInitOptions::new();
    options.bare(true).external_template(false);
    let local = |error: Error| session.local(&error);
    let repository = Repository::init_opts(directory.path(), &options).map_err(local)?;
    Ok(Scratch { repository, _directory: directory })
}

/// Removes what a process left that was killed during a fetch. What can't be removed is no reason to fetch nothing.
fn clear(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let old = modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > LEFT_OVER));
        if old && entry.file_name().to_string_lossy().starts_with(SCRATCH) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn callbacks<'a>(session: &'a Session, seen: &'a Seen) -> RemoteCallbacks<'a> {
    let mut callbacks = RemoteCallbacks::new();
    callbacks.credentials(move |url, user, allowed| login(session, seen, url, user, allowed));
    callbacks.certificate_check(move |certificate, host| trust(session, seen, certificate, host));
    callbacks.sideband_progress(move |_| !session.stop.is_cancelled());
    callbacks.transfer_progress(move |progress| {
        let received = u64::try_from(progress.received_bytes()).unwrap_or(u64::MAX);
        seen.too_large.set(received > session.limits.packed_bytes);
        !session.stop.is_cancelled() && !seen.too_large.get()
    });
    callbacks
}

fn refuse(class: ErrorClass, message: &str) -> Error {
    Error::new(ErrorCode::Auth, class, message)
}

fn login(
    session: &Session,
    seen: &Seen,
    url: &str,
    user: Option<&str>,
    allowed: CredentialType,
) -> Result<Cred, Error> {
    seen.logins.set(seen.logins.get().saturating_add(1));
    // A redirect may lead to another port of the host.
    let own = |asking: &SourceUrl| (asking.host(), asking.port()) == (session.url.host(), session.url.port());
    if !SourceUrl::parse(url).is_ok_and(|asking| own(&asking)) {
        return Err(refuse(ErrorClass::Net, "another host asks for credentials"));
    }
    let Some(credentials) = &session.access.credentials else {
        return Err(refuse(ErrorClass::Net, "it asks for credentials, and there is no secretRef"));
    };
    if seen.logins.get() > MAX_LOGINS {
        return Err(refuse(ErrorClass::Net, "it does not accept these credentials"));
    }
    let user = credentials.username.as_deref().or(user).unwrap_or("git");
    if allowed.contains(CredentialType::SSH_KEY)
        && let Some(ssh) = &credentials.ssh
    {
        return Cred::ssh_key_from_memory(user, None, &ssh.private_key, ssh.passphrase.as_deref());
    }
    if allowed.contains(CredentialType::USER_PASS_PLAINTEXT)
        && let Some(password) = &credentials.password
    {
        return Cred::userpass_plaintext(user, password);
    }
    if allowed.contains(CredentialType::USERNAME) {
        return Cred::username(user);
    }
    Err(refuse(ErrorClass::Net, "the Secret holds none of the kinds of credentials that it accepts"))
}

/// Whether the host is who the URL says: an SSH host by the Secret's `known_hosts`, a TLS host by its certificate, and
/// by its name, which a redirect may have changed.
fn trust(session: &Session, seen: &Seen, certificate: &Cert<'_>, host: &str) -> Result<CertificateCheckStatus, Error> {
    let refuse = |problem: String| {
        let error = Error::new(ErrorCode::Certificate, ErrorClass::Ssl, &problem);
        *seen.untrusted.borrow_mut() = Some(problem);
        Err(error)
    };
    if host.trim_matches(['[', ']']) != session.url.host().trim_matches(['[', ']']) {
        return refuse(format!("it sends on to {host}: set source.git.url to where the repository lies now"));
    }
    let Some(key) = certificate.as_hostkey() else { return Ok(CertificateCheckStatus::CertificatePassthrough) };
    let known = match (&session.access.credentials, key.hostkey()) {
        (Some(credentials), Some(key)) => credentials.known_hosts.check(host, session.url.port(), key),
        _ => HostKey::Unknown,
    };
    match known {
        HostKey::Known => Ok(CertificateCheckStatus::CertificateOk),
        HostKey::Unknown => refuse("its host key is not in known_hosts of the Secret: add it there".to_owned()),
        HostKey::Changed => refuse(
            "its host key is another than the one in known_hosts of the Secret: somebody may be in between; if the key was changed on purpose, put the new one there"
                .to_owned(),
        ),
        HostKey::Revoked => refuse("its host key is revoked in known_hosts of the Secret".to_owned()),
    }
}

/// What an error of libgit2 means.
fn explain(session: &Session, seen: &Seen, error: &Error) -> SourceError {
    let (action, url) = (session.action, session.url.redacted());
    if let Err(cancelled) = session.go_on() {
        return cancelled;
    }
    if let Some(problem) = seen.untrusted.take() {
        return SourceError::Untrusted { url, problem };
    }
    if seen.too_large.get() {
        let limit = session.limits.packed_bytes;
        let limit = TooLarge { what: "the download in bytes".to_owned(), limit };
        return SourceError::TooLarge { of: url, limit };
    }
    let problem = without_secrets(session, error.message());
    let says = |text: &str| problem.contains(text);
    match error.code() {
        ErrorCode::Auth => SourceError::Unauthorized { action, url, problem },
        ErrorCode::Certificate => SourceError::Untrusted { url, problem },
        _ if says("authentication") => SourceError::Unauthorized { action, url, problem },
        _ if says("not found") => SourceError::NoRepository { url, problem },
        ErrorCode::Timeout => {
            let problem = format!("{problem} (silent for {} s)", SILENCE.as_secs());
            SourceError::Unreachable { action, url, problem }
        }
        _ => SourceError::Unreachable { action, url, problem },
    }
}

fn without_secrets(session: &Session, message: &str) -> String {
    let mut message = message.replace(session.url.secret_str(), &session.url.redacted());
    let credentials = session.access.secrets().into_iter();
    for secret in credentials.chain(session.url.secrets()) {
        message = message.replace(secret, "***");
    }
    message
}

/// Lets libgit2 give up servers that are silent; without it, it waits for ever.
fn set_timeouts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let millis = i32::try_from(SILENCE.as_millis()).unwrap_or(i32::MAX);
        #[allow(unsafe_code, reason = "libgit2's only way to set these is a global that git2 marks as unsafe")]
        // SAFETY: the globals are plain integers that libgit2 reads when it opens a socket; they are written here only,
        // once, before this process opens its first one.
        let results = unsafe {
            [
                git2::opts::set_server_connect_timeout_in_milliseconds(millis),
                git2::opts::set_server_timeout_in_milliseconds(millis),
            ]
        };
        for error in results.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "libgit2 does not take a timeout");
        }
    });
}
