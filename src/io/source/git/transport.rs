//! Git over http(s) by our own HTTP client: libgit2's has neither an authority nor a certificate of ours per connection,
//! resolves names itself and can't be interrupted.
//!
//! libgit2 is given a URL that names a conversation of this process, and reads and writes through it: the smart protocol,
//! stateless (gitprotocol-http(5), version 0).

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use git2::transport::{Service, SmartSubtransport, SmartSubtransportStream, Transport};
use git2::{Error, ErrorClass, ErrorCode, Remote};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use jiff::Timestamp;
use reqwest::{Response, Url};
use tokio::runtime::Handle;

use super::super::answers::{HTML_PAGE, is_page, pause, said_there, waiting};
use super::super::error::NO_SECRET;
use super::super::http::{Http, Redirects};
use super::super::{Access, NO_LOGIN, SourceError};
use super::session::Session;
use crate::core::limits::TooLarge;

/// Scheme of the URLs that libgit2 is given.
const SCHEME: &str = "clusterstack";
/// What stands behind a repository's URL when its references are asked for.
const REFERENCES: &str = "info/refs";
/// Largest list of references in bytes, which libgit2 keeps in memory several times over: enough for half a million.
pub(super) const LARGEST_LIST: u64 = 64 * 1024 * 1024;

static CONVERSATIONS: Mutex<BTreeMap<u64, Arc<Conversation>>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A talk with one repository, of one session.
pub(super) struct Conversation {
    http: Http,
    action: &'static str,
    authorization: Option<HeaderValue>,
    /// Whether a Secret is named for it.
    has_secret: bool,
    /// The source's URL: its origin alone gets credentials.
    home: Url,
    /// Where the repository lies: where a redirect of the first request led.
    place: Mutex<Url>,
    limit: u64,
    received: AtomicU64,
    stop: tokio_util::sync::CancellationToken,
    runtime: Handle,
    /// What went wrong, in our own words: libgit2 has only a text for it.
    failure: Mutex<Option<SourceError>>,
}

/// A conversation that libgit2 can find until this is dropped.
pub(super) struct Open {
    id: u64,
    conversation: Arc<Conversation>,
}

impl Drop for Open {
    fn drop(&mut self) {
        lock(&CONVERSATIONS).remove(&self.id);
    }
}

impl Open {
    /// Begins a conversation with the repository of the session, over `http`.
    pub(super) fn new(session: &Session, http: &Http) -> Result<Self, SourceError> {
        register();
        let no_url = |error: url::ParseError| session.disk(&error);
        let mut place = Url::parse(session.url.secret_str()).map_err(no_url)?;
        let authorization = authorization(&place, &session.access);
        let _ = (place.set_username(""), place.set_password(None));
        if !place.path().ends_with('/') {
            place.set_path(&format!("{}/", place.path()));
        }
        let conversation = Arc::new(Conversation {
            http: http.clone(),
            action: session.action,
            authorization,
            has_secret: session.access.credentials.is_some(),
            home: place.clone(),
            place: Mutex::new(place),
            limit: session.limits.packed_bytes,
            received: AtomicU64::new(0),
            stop: session.stop.clone(),
            runtime: session.runtime.clone(),
            failure: Mutex::default(),
        });
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        lock(&CONVERSATIONS).insert(id, Arc::clone(&conversation));
        Ok(Self { id, conversation })
    }

    /// The URL for libgit2.
    pub(super) fn url(&self) -> String {
        format!("{SCHEME}://{}", self.id)
    }

    /// What went wrong, if it was on the way and not in what came.
    pub(super) fn failure(&self) -> Option<SourceError> {
        lock(&self.conversation.failure).take()
    }
}

/// The user and password of the Secret, else those of the URL, as Basic authentication. Servers of Git take a token as
/// the password, of any user; a `bearerToken` is shown as one.
fn authorization(url: &Url, access: &Access) -> Option<HeaderValue> {
    let of_secret = access.credentials.as_ref().and_then(|credentials| {
        let password = credentials.password.as_deref()?;
        Some((credentials.username.as_deref().unwrap_or("git").to_owned(), password.to_owned()))
    });
    let decoded = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    let of_url = || url.password().map(|password| (decoded(url.username()), decoded(password)));
    let (user, password) = of_secret.or_else(of_url)?;
    let is_bearer = access.credentials.as_ref().is_some_and(|credentials| credentials.bearer);
    let shown = if is_bearer {
        format!("Bearer {password}")
    } else {
        format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
    };
    let mut value = HeaderValue::from_str(&shown).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Tells libgit2 once about our scheme.
fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[allow(unsafe_code, reason = "git2 marks the registering of transports as unsafe")]
        // SAFETY: it must not run beside the creation of a transport. Every session of ours comes by here before it
        // creates one, and waits until this is done.
        let registered = unsafe { git2::transport::register(SCHEME, transport) };
        if let Err(error) = registered {
            tracing::error!(%error, "libgit2 does not take a transport: Git over https can't work");
        }
    });
}

fn transport(remote: &Remote<'_>) -> Result<Transport, Error> {
    let url = remote.url().unwrap_or_default();
    let id = url.strip_prefix(SCHEME).and_then(|rest| rest.strip_prefix("://")).and_then(|id| id.parse().ok());
    let conversation = id.and_then(|id: u64| lock(&CONVERSATIONS).get(&id).cloned());
    let conversation = conversation.ok_or_else(|| net("the conversation is over"))?;
    Transport::smart(remote, true, Subtransport(conversation))
}

struct Subtransport(Arc<Conversation>);

impl SmartSubtransport for Subtransport {
    fn action(&self, _: &str, service: Service) -> Result<Box<dyn SmartSubtransportStream>, Error> {
        let is_list = match service {
            Service::UploadPackLs => true,
            Service::UploadPack => false,
            Service::ReceivePackLs | Service::ReceivePack => return Err(net("nothing is ever pushed")),
        };
        let conversation = Arc::clone(&self.0);
        let request = Vec::new();
        Ok(Box::new(Exchange { conversation, is_list, request, response: None, begun: false, rest: Bytes::new() }))
    }

    fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// One request and its answer.
struct Exchange {
    conversation: Arc<Conversation>,
    is_list: bool,
    request: Vec<u8>,
    response: Option<Response>,
    /// Whether some of the answer came.
    begun: bool,
    rest: Bytes,
}

impl Write for Exchange {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.request.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Exchange {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let conversation = Arc::clone(&self.conversation);
        while self.rest.is_empty() {
            if self.response.is_none() {
                let request = std::mem::take(&mut self.request);
                self.response = Some(conversation.ask(self.is_list, request)?);
            }
            let Some(response) = &mut self.response else { break };
            match conversation.next(response, self.is_list)? {
                // What Git says begins with a length.
                Some(bytes) if !self.begun && is_page(&HeaderMap::new(), &bytes) => {
                    return Err(conversation.fail(conversation.page(response.extensions())));
                }
                Some(bytes) => (self.begun, self.rest) = (true, bytes),
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.rest.len());
        buffer[..length].copy_from_slice(&self.rest.split_to(length));
        Ok(length)
    }
}

impl Conversation {
    fn ask(&self, is_list: bool, body: Vec<u8>) -> io::Result<Response> {
        let answer = self.wait(self.request(is_list, body));
        answer.map_err(|error| self.fail(error))
    }

    async fn request(&self, is_list: bool, body: Vec<u8>) -> Result<Response, SourceError> {
        let place = lock(&self.place).clone();
        let unusable = |problem: String| SourceError::Unreachable {
            action: self.action,
            url: super::super::http::redacted(&place),
            problem,
        };
        let path = if is_list { REFERENCES } else { "git-upload-pack" };
        let mut url = place.join(path).map_err(|error| unusable(error.to_string()))?;
        let builder = if is_list {
            url.set_query(Some("service=git-upload-pack"));
            self.http.request(Method::GET, url)
        } else {
            let builder = self.http.request(Method::POST, url);
            let builder = builder.header(CONTENT_TYPE, "application/x-git-upload-pack-request");
            builder.header(ACCEPT, "application/x-git-upload-pack-result").body(body)
        };
        let authorization = self.authorization.iter().filter(|_| place.origin() == self.home.origin());
        let authorization = authorization.map(|value| (AUTHORIZATION, value.clone()));
        let builder = builder.headers(authorization.collect());
        let request = builder.build().map_err(|error| unusable(error.without_url().to_string()))?;
        let response = self.http.send(self.action, request, Redirects::SameHost).await?;
        self.judge(&response)?;
        if is_list {
            self.follow(&place, response.url())?;
        }
        if is_page(response.headers(), &[]) { Err(self.page(response.extensions())) } else { Ok(response) }
    }

    /// That a page for people came.
    fn page(&self, extensions: &http::Extensions) -> SourceError {
        let problem = said_there(extensions, &format!("it answers with {HTML_PAGE}"));
        let url = super::super::http::redacted(&self.home);
        SourceError::Unreachable { action: self.action, url, problem }
    }

    /// What the status of an answer means.
    fn judge(&self, response: &Response) -> Result<(), SourceError> {
        let (action, url) = (self.action, super::super::http::redacted(&lock(&self.place)));
        let status = response.status();
        let problem = said_there(response.extensions(), &format!("it answers {status}"));
        let now = Timestamp::now();
        if status.is_success() {
            return Ok(());
        }
        if let Some(after) = pause(status, response.headers(), now) {
            return Err(SourceError::RateLimited { url, problem: waiting(&problem, after, now), after });
        }
        Err(match status {
            StatusCode::UNAUTHORIZED if response.url().origin() != self.home.origin() => {
                let to = self.http.shown(response.url());
                let problem = format!(
                    "it sends on to another host or port, {to}, which gets no credentials and asks for some: set the source's URL to where the repository lies now"
                );
                SourceError::Unauthorized { action, url, problem }
            }
            StatusCode::UNAUTHORIZED if self.authorization.is_none() => {
                let none = "it asks for credentials, and the Secret holds neither password nor token";
                let problem = if self.has_secret { none } else { NO_LOGIN };
                SourceError::Unauthorized { action, url, problem: problem.to_owned() }
            }
            StatusCode::UNAUTHORIZED if self.has_secret => {
                SourceError::Unauthorized { action, url, problem: "it does not accept these credentials".to_owned() }
            }
            StatusCode::UNAUTHORIZED => {
                let problem = format!("it does not accept the user and password of the URL, and {NO_SECRET}");
                SourceError::Unauthorized { action, url, problem }
            }
            StatusCode::FORBIDDEN if self.has_secret => SourceError::Unauthorized { action, url, problem },
            StatusCode::FORBIDDEN => {
                SourceError::Unauthorized { action, url, problem: format!("{problem}; {NO_SECRET}") }
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => SourceError::NoRepository { url, problem },
            _ => SourceError::Unreachable { action, url, problem },
        })
    }

    /// Goes on where a redirect led: a server may send on to the repository's new place, but not to a page.
    fn follow(&self, asked: &Url, answered: &Url) -> Result<(), SourceError> {
        let Some(path) = answered.path().strip_suffix(REFERENCES) else {
            let problem = format!("it sends on to {}, which is none", self.http.shown(answered));
            return Err(SourceError::NoRepository { url: super::super::http::redacted(asked), problem });
        };
        let mut place = answered.clone();
        place.set_path(path);
        place.set_query(None);
        if place != *asked {
            *lock(&self.place) = place;
        }
        Ok(())
    }

    /// More of an answer.
    fn next(&self, response: &mut Response, is_list: bool) -> io::Result<Option<Bytes>> {
        let url = response.url().clone();
        let chunk =
            self.wait(async { response.chunk().await.map_err(|error| self.http.failed(self.action, &url, &error)) });
        let chunk = chunk.map_err(|error| self.fail(error))?;
        let length = chunk.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let (what, limit) = if is_list {
            ("the list of references in bytes", LARGEST_LIST.min(self.limit))
        } else {
            ("the download in bytes", self.limit)
        };
        if self.received.fetch_add(length, Ordering::Relaxed).saturating_add(length) > limit {
            let limit = TooLarge { what: what.to_owned(), limit };
            return Err(self.fail(SourceError::TooLarge { of: super::super::http::redacted(&url), limit }));
        }
        Ok(chunk)
    }

    /// Blocks this thread, which is libgit2's, until the work is done or called off.
    fn wait<T>(&self, work: impl Future<Output = Result<T, SourceError>>) -> Result<T, SourceError> {
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    let url = super::super::http::redacted(&lock(&self.place));
                    Err(SourceError::Cancelled { action: self.action, url })
                }
                result = work => result,
            }
        })
    }

    fn fail(&self, error: SourceError) -> io::Error {
        let text = error.to_string();
        *lock(&self.failure) = Some(error);
        io::Error::other(text)
    }
}

fn net(message: &str) -> Error {
    Error::new(ErrorCode::GenericError, ErrorClass::Net, message)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
