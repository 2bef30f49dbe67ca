//! Requests to destinations over HTTP: our client, with the time that large bodies need, and with our errors.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::header::CONTENT_LENGTH;
use http::{Method, StatusCode};
use reqwest::{Body, RequestBuilder, Response, Url};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::reader::Reader;
use super::{DestinationError, Meter};
use crate::core::source::AllowList;
use crate::io::source::http::{Http, Redirects, SILENCE, redacted};
use crate::io::source::{Access, SourceError};

/// How long a server may put together what it took, or copy it.
pub(super) const PATIENCE: Duration = Duration::from_mins(10);
/// How long a body of a few megabytes may take.
pub(super) const PIECE_PATIENCE: Duration = Duration::from_mins(2);
/// Bytes of an answer that is read.
const ANSWER: u64 = 8 << 20;
/// Bytes of an error's body that are read.
const BODY: u64 = 64 << 10;
/// Characters of it that are shown.
const SHOWN: usize = 300;
/// Bytes that are handed over at once.
const PIECE: usize = 256 << 10;

/// The server that a spec names, if it may be used.
///
/// # Errors
/// It is no URL for us, or a flag would have to name it.
pub(super) fn endpoint(
    action: &'static str,
    text: &str,
    access: &Access,
    allow: &AllowList,
) -> Result<Url, DestinationError> {
    let refused =
        |problem: String| DestinationError::Refused { action, location: crate::core::source::redact(text), problem };
    access.permitted(text, allow).map_err(|error| refused(error.to_string()))?;
    let url = Url::parse(text).map_err(|error| refused(error.to_string()))?;
    if matches!(url.scheme(), "http" | "https") { Ok(url) } else { Err(refused("it is no https URL".to_owned())) }
}

/// A client for one destination.
pub(super) struct Web {
    http: Http,
}

impl Web {
    /// A client that reaches servers as `access` says, within what `allow` permits.
    ///
    /// # Errors
    /// A certificate can't be used.
    pub fn new(access: &Access, allow: &AllowList) -> Result<Self, DestinationError> {
        let http = Http::patient(access, allow, PATIENCE).map_err(|error| of_source("using", "", &error))?;
        Ok(Self { http })
    }

    pub fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.http.request(method, url)
    }

    /// Sends a small request. An answer of any status is an answer.
    pub async fn send(&self, action: &'static str, request: RequestBuilder) -> Result<Response, DestinationError> {
        self.send_within(action, request, SILENCE).await
    }

    /// The same, with the time that it may take.
    pub async fn send_within(
        &self,
        action: &'static str,
        request: RequestBuilder,
        time: Duration,
    ) -> Result<Response, DestinationError> {
        let request = request.build().map_err(|error| unbuilt(action, &error))?;
        let url = request.url().clone();
        match timeout(time, self.http.send(action, request, Redirects::SameHost)).await {
            Ok(answer) => answer.map_err(|error| of_source(action, &redacted(&url), &error)),
            Err(_) => Err(silent(action, &url, time)),
        }
    }

    /// Sends a file as the body of a request; it counts as silence if the server takes nothing of it.
    pub async fn send_file(
        &self,
        action: &'static str,
        request: RequestBuilder,
        file: &mut Reader,
        meter: &dyn Meter,
        cancel: &CancellationToken,
    ) -> Result<Response, DestinationError> {
        let (sender, pieces) = mpsc::channel::<io::Result<Bytes>>(1);
        let pieces = stream::unfold(pieces, |mut pieces| async { pieces.recv().await.map(|piece| (piece, pieces)) });
        let request = request.header(CONTENT_LENGTH, file.size()).body(Body::wrap_stream(pieces));
        let request = request.build().map_err(|error| unbuilt(action, &error))?;
        let url = request.url().clone();
        let answer = self.http.send(action, request, Redirects::SameHost);
        let feed = feed(sender, file, meter, || silent(action, &url, SILENCE));
        tokio::pin!(answer, feed);
        let answer = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(DestinationError::Cancelled),
            // Who answers before it has all does not want it.
            answer = &mut answer => answer.map(|mut answer| {
                answer.extensions_mut().insert(Early);
                answer
            }),
            fed = &mut feed => {
                fed?;
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => return Err(DestinationError::Cancelled),
                    answer = timeout(PATIENCE, &mut answer) => answer.map_err(|_| silent(action, &url, PATIENCE))?,
                }
            }
        };
        answer.map_err(|error| of_source(action, &redacted(&url), &error))
    }

    /// The body of an answer.
    pub async fn body(&self, action: &'static str, response: Response) -> Result<Bytes, DestinationError> {
        let url = response.url().clone();
        match timeout(PATIENCE, self.http.body(action, response, ANSWER)).await {
            Ok(body) => body.map_err(|error| of_source(action, &redacted(&url), &error)),
            Err(_) => Err(silent(action, &url, PATIENCE)),
        }
    }

    /// The error of an answer that is no success; `said` finds in its body what is said in it.
    pub async fn refusal(
        &self,
        action: &'static str,
        response: Response,
        said: impl FnOnce(&str) -> Option<String>,
    ) -> DestinationError {
        let (status, location) = (response.status(), redacted(response.url()));
        let early = response.extensions().get::<Early>().is_some();
        let body = timeout(SILENCE, self.http.body(action, response, BODY)).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        let body = String::from_utf8_lossy(&body);
        let said = said(&body);
        // Without a word it means what arrived of the request: a connection that something on the way cut.
        let cut = early && status == StatusCode::BAD_REQUEST && said.is_none();
        let said = said.map(|said| format!(": {said}")).unwrap_or_default();
        let problem = self.http.without_secrets(&format!("it answers {status}{said}"));
        let problem: String = problem.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN).collect();
        if cut || is_passing(status) {
            return DestinationError::Unreachable { action, location, problem };
        }
        let hint = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "; check the Secret of secretRef, and what it may do",
            StatusCode::NOT_FOUND => "; check where images are to be brought",
            _ => "",
        };
        DestinationError::Refused { action, location, problem: format!("{problem}{hint}") }
    }
}

/// Marks an answer that came before all of the file was sent.
#[derive(Clone)]
struct Early;

/// Whether an answer may be another one later.
fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT
                | StatusCode::CONFLICT
                | StatusCode::PRECONDITION_FAILED
                | StatusCode::LOCKED
                | StatusCode::TOO_EARLY
                | StatusCode::TOO_MANY_REQUESTS
        )
}

/// Hands a file over, piece by piece.
async fn feed(
    sender: mpsc::Sender<io::Result<Bytes>>,
    file: &mut Reader,
    meter: &dyn Meter,
    silent: impl Fn() -> DestinationError,
) -> Result<(), DestinationError> {
    let mut done = 0;
    loop {
        // Without its end the server does not take it for whole: the request ends with this error.
        let Some(piece) = file.next(PIECE).await? else { return Ok(()) };
        let length = piece.len() as u64;
        match timeout(SILENCE, sender.send(Ok(piece))).await {
            Err(_) => return Err(silent()),
            // The answer is there, or the connection is gone.
            Ok(Err(_)) => return std::future::pending().await,
            Ok(Ok(())) => {}
        }
        done += length;
        meter.done(done);
    }
}

fn unbuilt(action: &'static str, error: &reqwest::Error) -> DestinationError {
    let problem =
        std::error::Error::source(error).map_or_else(|| "the request can't be made".to_owned(), ToString::to_string);
    DestinationError::Refused { action, location: String::new(), problem }
}

fn silent(action: &'static str, url: &Url, time: Duration) -> DestinationError {
    let problem = format!("no answer in {} s", time.as_secs());
    DestinationError::Unreachable { action, location: redacted(url), problem }
}

/// Our error for one of the client.
pub(super) fn of_source(action: &'static str, location: &str, error: &SourceError) -> DestinationError {
    match error {
        SourceError::Unreachable { url, problem, .. } | SourceError::RateLimited { url, problem, .. } => {
            DestinationError::Unreachable { action, location: url.clone(), problem: problem.clone() }
        }
        SourceError::Unauthorized { url, problem, .. } | SourceError::Untrusted { url, problem } => {
            DestinationError::Refused { action, location: url.clone(), problem: problem.clone() }
        }
        SourceError::Refused(refused) => {
            let problem = refused.to_string();
            DestinationError::Refused { action, location: location.to_owned(), problem }
        }
        other => DestinationError::Refused { action, location: location.to_owned(), problem: other.to_string() },
    }
}
