//! Repositories on other machines: connections, logins, who is trusted, and what errors mean.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use git2::cert::Cert;
use git2::{
    AutotagOption, CertificateCheckStatus, Cred, CredentialType, Direction, Error, ErrorClass, ErrorCode, FetchOptions,
    Remote, RemoteCallbacks, RemoteHead, RemoteRedirect, Repository, RepositoryInitOptions,
};
use tempfile::TempDir;

use super::super::answers::no_answer;
use super::super::error::NO_SECRET;
use super::super::{NO_LOGIN, SourceError};
use super::SILENCE;
use super::pack::{Bad, Bounds, Inspector, MAX_OBJECTS, MAX_UNPACKED};
use super::relay::Relay;
use super::session::Session;
use super::transport::{self, LARGEST_LIST};
use crate::core::limits::TooLarge;
use crate::core::source::{HostKey, Scheme, SourceUrl};
use crate::io::telemetry::unless_it_panics;

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
    bad_pack: RefCell<Option<Bad>>,
}

/// All references of the repository with the ids of their objects.
pub(super) fn list(session: &Session) -> Result<Vec<(String, String)>, SourceError> {
    set_timeouts();
    let talk = Talk::new(session, Wants::References)?;
    let fail = |error: Error| talk.explain(session, &error);
    let mut remote = Remote::create_detached(talk.url.as_str()).map_err(fail)?;
    let connection =
        remote.connect_auth(Direction::Fetch, Some(callbacks(session, &talk, None)), None).map_err(fail)?;
    let heads = connection.list().map_err(fail)?;
    Ok(heads.iter().filter_map(|head| Some((name_of(head)?, head.oid().to_string()))).collect())
}

/// What a server is asked for.
#[derive(Clone, Copy)]
enum Wants {
    References,
    /// The references, and what some of them name.
    Pack,
}

impl Wants {
    /// How many bytes a server may send, and what they are.
    fn bound(self, session: &Session) -> (&'static str, u64) {
        let packed = session.limits.packed_bytes;
        match self {
            Self::References => ("the list of references in bytes", LARGEST_LIST.min(packed)),
            Self::Pack => ("the download in bytes", LARGEST_LIST.saturating_add(packed)),
        }
    }
}

/// How libgit2 reaches the repository: over our HTTP, or by our relay over SSH.
enum Way {
    Http(transport::Open),
    Ssh(Relay),
    File,
}

/// A conversation of libgit2.
struct Talk {
    url: String,
    way: Way,
    wants: Wants,
    seen: Seen,
}

impl Talk {
    fn new(session: &Session, wants: Wants) -> Result<Self, SourceError> {
        let (url, way) = match session.url.scheme() {
            Scheme::Https | Scheme::Http => {
                let open = transport::Open::new(session, session.http()?)?;
                (open.url(), Way::Http(open))
            }
            Scheme::Ssh => {
                let relay = Relay::open(session, &session.addresses()?, wants.bound(session).1)?;
                let url = session.url.by_way_of(relay.address);
                (url.ok_or_else(|| session.disk(&"the URL can't be used"))?, Way::Ssh(relay))
            }
            Scheme::File => (session.url.secret_str().to_owned(), Way::File),
        };
        Ok(Self { url, way, wants, seen: Seen::default() })
    }

    /// Whether libgit2 talks to `host` as it should, which a redirect may have changed, and to its `port` where that is
    /// known.
    fn is_with(&self, session: &Session, host: &str, port: Option<u16>) -> bool {
        let host = host.trim_matches(['[', ']']);
        match &self.way {
            Way::Ssh(relay) => {
                host == relay.address.ip().to_string() && port.is_none_or(|port| port == relay.address.port())
            }
            Way::Http(_) | Way::File => {
                let own = session.url.host().trim_matches(['[', ']']);
                host == own && port.is_none_or(|port| port == session.url.port())
            }
        }
    }

    /// What an error means: what went wrong on the way, if it was that.
    fn explain(&self, session: &Session, error: &Error) -> SourceError {
        let on_the_way = match &self.way {
            Way::Http(open) => open.failure(),
            Way::Ssh(relay) if relay.is_over() => {
                let (what, limit) = self.wants.bound(session);
                let limit = TooLarge { what: what.to_owned(), limit };
                Some(SourceError::TooLarge { of: session.url.redacted(), limit })
            }
            Way::Ssh(_) | Way::File => None,
        };
        on_the_way
            .unwrap_or_else(|| explain(session, &self.seen, &self.without_secrets(session, error.message()), error))
    }

    /// A message of libgit2 with the source's name for where it talks to.
    fn without_secrets(&self, session: &Session, message: &str) -> String {
        let mut message = message.replace(session.url.secret_str(), &session.url.redacted());
        if let Way::Ssh(relay) = &self.way {
            message = message.replace(&self.url, &session.url.redacted());
            message = message.replace(&relay.address.to_string(), &session.url.host_and_port());
            message = message.replace(&relay.address.ip().to_string(), session.url.host());
        }
        for secret in session.access.secrets().into_iter().chain(session.url.secrets()) {
            message = message.replace(&secret, "***");
        }
        // A server's own words may be among them.
        message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

/// The name of a reference; `None` where it is no UTF-8: none of ours is called so, and anybody may push one. git2 panics then, and
/// has no other way to the name.
pub(crate) fn name_of(head: &RemoteHead<'_>) -> Option<String> {
    unless_it_panics(|| head.name().to_owned())
}

/// The one reference `from`, or the commit of that id, as `to`; without its history where the server can.
pub(super) fn fetch(session: &Session, from: &str, to: &str) -> Result<Scratch, SourceError> {
    set_timeouts();
    let shallow = fetch_once(session, from, to, 1);
    match shallow {
        Err(SourceError::Unreachable { problem, .. }) if problem.contains("shallow") => {
            fetch_once(session, from, to, 0)
        }
        other => other,
    }
}

fn fetch_once(session: &Session, from: &str, to: &str, depth: i32) -> Result<Scratch, SourceError> {
    let scratch = scratch(session)?;
    let talk = Talk::new(session, Wants::Pack)?;
    let fail = |error: Error| talk.explain(session, &error);
    let bounds = Bounds { objects: MAX_OBJECTS, object: session.limits.file_bytes, work: MAX_UNPACKED };
    let inspector = Inspector::new(scratch.repository.path().join("objects/pack"), bounds);
    let mut options = FetchOptions::new();
    options
        .remote_callbacks(callbacks(session, &talk, Some(inspector)))
        .follow_redirects(RemoteRedirect::None)
        .download_tags(AutotagOption::None)
        .update_fetchhead(false);
    if depth > 0 {
        options.depth(depth);
    }
    let mut remote = scratch.repository.remote_anonymous(&talk.url).map_err(fail)?;
    remote.fetch(&[format!("+{from}:{to}")], Some(&mut options), None).map_err(fail)?;
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

/// What libgit2 asks and tells. `inspector` looks at a pack while it comes, and ends the transfer of one that is bad.
fn callbacks<'a>(session: &'a Session, talk: &'a Talk, mut inspector: Option<Inspector>) -> RemoteCallbacks<'a> {
    let seen = &talk.seen;
    let mut callbacks = RemoteCallbacks::new();
    callbacks.credentials(move |url, user, allowed| login(session, talk, url, user, allowed));
    callbacks.certificate_check(move |certificate, host| trust(session, talk, certificate, host));
    callbacks.sideband_progress(move |_| !session.stop.is_cancelled());
    callbacks.transfer_progress(move |progress| {
        let received = u64::try_from(progress.received_bytes()).unwrap_or(u64::MAX);
        seen.too_large.set(received > session.limits.packed_bytes);
        if session.stop.is_cancelled() || seen.too_large.get() || seen.bad_pack.borrow().is_some() {
            return false;
        }
        let Some(inspector) = &mut inspector else { return true };
        let looked = inspector.look(progress.received_objects(), progress.total_objects());
        *seen.bad_pack.borrow_mut() = looked.err();
        seen.bad_pack.borrow().is_none()
    });
    callbacks
}

fn refuse(class: ErrorClass, message: &str) -> Error {
    Error::new(ErrorCode::Auth, class, message)
}

fn login(
    session: &Session,
    talk: &Talk,
    url: &str,
    user: Option<&str>,
    allowed: CredentialType,
) -> Result<Cred, Error> {
    let seen = &talk.seen;
    seen.logins.set(seen.logins.get().saturating_add(1));
    // A redirect may lead to another port of the host.
    let own = |asking: &SourceUrl| talk.is_with(session, asking.host(), Some(asking.port()));
    if !SourceUrl::parse(url).is_ok_and(|asking| own(&asking)) {
        return Err(refuse(ErrorClass::Net, "another host asks for credentials"));
    }
    let Some(credentials) = &session.access.credentials else {
        return Err(refuse(ErrorClass::Net, NO_LOGIN));
    };
    if seen.logins.get() > MAX_LOGINS {
        return Err(refuse(ErrorClass::Net, "it does not accept these credentials"));
    }
    // libgit2 takes no other user than the URL's.
    let user = user.or(credentials.username.as_deref()).unwrap_or("git");
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

/// Whether the host is who the URL says: an SSH host by the Secret's `known_hosts` under the name in the source's URL, a TLS
/// host by its certificate, and by its name, which a redirect may have changed.
fn trust(session: &Session, talk: &Talk, certificate: &Cert<'_>, host: &str) -> Result<CertificateCheckStatus, Error> {
    let refuse = |problem: String| {
        let error = Error::new(ErrorCode::Certificate, ErrorClass::Ssl, &problem);
        *talk.seen.untrusted.borrow_mut() = Some(problem);
        Err(error)
    };
    if !talk.is_with(session, host, None) {
        return refuse(format!("it sends on to {host}: set source.git.url to where the repository lies now"));
    }
    let Some(key) = certificate.as_hostkey() else { return Ok(CertificateCheckStatus::CertificatePassthrough) };
    let known = match (&session.access.credentials, key.hostkey()) {
        (Some(credentials), Some(key)) => credentials.known_hosts.check(session.url.host(), session.url.port(), key),
        _ => HostKey::Unknown,
    };
    match distrust(known, session.access.credentials.is_some()) {
        None => Ok(CertificateCheckStatus::CertificateOk),
        Some(problem) => refuse(problem),
    }
}

/// Why a host key is not trusted, if so.
fn distrust(known: HostKey, has_secret: bool) -> Option<String> {
    let problem = match known {
        HostKey::Known => return None,
        HostKey::Unknown if has_secret => "its host key is not in known_hosts of the Secret: add it there".to_owned(),
        HostKey::Unknown => format!(
            "its host key is not known, and {NO_SECRET}: name a Secret with known_hosts and identity in secretRef"
        ),
        HostKey::Changed => {
            "its host key is another than the one in known_hosts of the Secret: somebody may be in between; if the key was changed on purpose, put the new one there".to_owned()
        }
        HostKey::Revoked => "its host key is revoked in known_hosts of the Secret".to_owned(),
    };
    Some(problem)
}

/// What an error of libgit2 means.
fn explain(session: &Session, seen: &Seen, problem: &str, error: &Error) -> SourceError {
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
    match seen.bad_pack.take() {
        Some(Bad::TooLarge(limit)) => return SourceError::TooLarge { of: url, limit },
        Some(Bad::Unread(error)) => return session.disk(&format!("the pack that comes can't be read: {error}")),
        Some(broken @ Bad::Broken(_)) => {
            return SourceError::Unreachable { action, url, problem: broken.to_string() };
        }
        None => {}
    }
    if error.class() == ErrorClass::NoMemory {
        // libgit2 makes room for as many objects as a pack says that it holds before it asks anybody; nothing else of it is that large.
        let limit = TooLarge { what: "the number of objects".to_owned(), limit: MAX_OBJECTS as u64 };
        return SourceError::TooLarge { of: url, limit };
    }
    let problem = problem.to_owned();
    let says = |text: &str| problem.contains(text);
    match error.code() {
        ErrorCode::Auth => SourceError::Unauthorized { action, url, problem },
        ErrorCode::Certificate => SourceError::Untrusted { url, problem },
        // libssh2's words for a key that it can't open: with another passphrase, or with none.
        _ if says("Unable to extract public key") || says("Unsupported private key") => {
            let problem =
                format!("{problem}: identity is no private key that can be read, or password is not its passphrase");
            SourceError::Unauthorized { action, url, problem }
        }
        _ if says("authentication") => SourceError::Unauthorized { action, url, problem },
        _ if says("not found") => SourceError::NoRepository { url, problem },
        // The second is libssh2's word for it.
        code if code == ErrorCode::Timeout || says("Timed out") => {
            let problem = format!("{}: {problem}", no_answer(SILENCE));
            SourceError::Unreachable { action, url, problem }
        }
        _ => SourceError::Unreachable { action, url, problem },
    }
}

/// Lets libgit2 give up servers that are silent; without it, it waits for ever.
pub(crate) fn set_timeouts() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_key_is_looked_for_where_there_is_a_secret() {
        for (known, has_secret, expected) in [
            (HostKey::Known, true, None),
            (HostKey::Unknown, true, Some("add it there")),
            (HostKey::Unknown, false, Some("name a Secret with known_hosts and identity in secretRef")),
            (HostKey::Changed, true, Some("put the new one there")),
            (HostKey::Revoked, true, Some("is revoked")),
        ] {
            let found = distrust(known, has_secret);
            assert_eq!(found.is_some(), expected.is_some(), "{known:?}");
            let is = |found: &String| found.ends_with(expected.unwrap_or_default()) || found.contains("is revoked in");
            assert!(found.as_ref().is_none_or(is), "{found:?}");
        }
    }
}
