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
/// How long a server may take nothing of a file, and how long a login may take. What lies in buffers on the way counts as
/// taken, and they are filled anew only when much of them is empty: a slow server needs a while for that.
pub(super) const PIECE_PATIENCE: Duration = Duration::from_mins(2);
/// How long the client itself waits for an answer, which it does from the first byte of a body on. All that is sent here has
/// a shorter time of its own, and a step has one too.
const LONGEST: Duration = Duration::from_hours(24);
/// Bytes of an answer that is read.
const ANSWER: u64 = 8 << 20;
/// Bytes of an error's body that are read.
const BODY: u64 = 64 << 10;
/// Characters of it that are shown.
const SHOWN: usize = 300;
/// Bytes that are read at once.
const PIECE: usize = 256 << 10;
/// Bytes that are handed over at once: the client takes some of these together, and no more before all of them are gone.
const SLICE: usize = 16 << 10;

/// Words of the client that name a field, and what is said instead: it knows those of sources.
pub(super) type Fields = &'static [(&'static str, &'static str)];

/// Those of destinations with `certSecretRef`.
pub(super) const FIELDS: Fields = &[];

/// No destination has a proxy of its own.
const PROXY: Fields = &[
    (", or name a Secret with address, username and password in proxySecretRef", ""),
    ("name a Secret with address, username and password in proxySecretRef", "set the operator's HTTPS_PROXY with it"),
];

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
    let url = Url::parse(text).map_err(|error| refused(format!("it is no URL ({error}): write https://host/path")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refused("it is no https URL: write https://host/path".to_owned()));
    }
    access.permitted(text, allow).map_err(|error| refused(error.to_string()))?;
    Ok(url)
}

/// A client for one destination.
pub(super) struct Web {
    http: Http,
    fields: Fields,
}

impl Web {
    /// A client that reaches servers as `access` says, within what `allow` permits; `fields` are the destination's.
    ///
    /// # Errors
    /// A certificate can't be used.
    pub fn new(access: &Access, allow: &AllowList, fields: Fields) -> Result<Self, DestinationError> {
        let http = Http::patient(access, allow, LONGEST).map_err(|error| of_source("using", "", &error, fields))?;
        Ok(Self { http, fields })
    }

    fn failed(&self, action: &'static str, url: &Url, error: &SourceError) -> DestinationError {
        of_source(action, &redacted(url), error, self.fields)
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
            Ok(answer) => answer.map_err(|error| self.failed(action, &url, &error)),
            Err(_) => Err(silent(action, &url, time)),
        }
    }

    /// Sends a file as the body of a request, however long that takes; it counts as silence if the server takes nothing of
    /// it.
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
        let feed = feed(sender, file, meter, |problem| DestinationError::Unreachable {
            action,
            location: redacted(&url),
            problem,
        });
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
        answer.map_err(|error| self.failed(action, &url, &error))
    }

    /// The body of an answer.
    pub async fn body(&self, action: &'static str, response: Response) -> Result<Bytes, DestinationError> {
        let url = response.url().clone();
        match timeout(PATIENCE, self.http.body(action, response, ANSWER)).await {
            Ok(body) => body.map_err(|error| self.failed(action, &url, &error)),
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

/// Hands a file over, piece by piece; `failed` makes an error of what went wrong.
async fn feed(
    sender: mpsc::Sender<io::Result<Bytes>>,
    file: &mut Reader,
    meter: &dyn Meter,
    failed: impl Fn(String) -> DestinationError,
) -> Result<(), DestinationError> {
    let mut done = 0;
    loop {
        // Without its end the server does not take it for whole: the request ends with this error.
        let Some(mut piece) = file.next(PIECE).await? else { return Ok(()) };
        while !piece.is_empty() {
            let slice = piece.split_to(SLICE.min(piece.len()));
            let length = slice.len() as u64;
            match timeout(PIECE_PATIENCE, sender.send(Ok(slice))).await {
                Err(_) => return Err(failed(format!("it took nothing for {} s", PIECE_PATIENCE.as_secs()))),
                // The answer is there, or the connection is gone.
                Ok(Err(_)) => {
                    tokio::time::sleep(PATIENCE).await;
                    return Err(failed(format!("it took no more, and gave no answer in {} s", PATIENCE.as_secs())));
                }
                Ok(Ok(())) => {}
            }
            done += length;
            meter.done(done);
        }
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

/// Our error for one of the client, with the destination's own fields in it.
pub(super) fn of_source(action: &'static str, location: &str, error: &SourceError, fields: Fields) -> DestinationError {
    // A connection that the kernel gave up is a timeout too, of which the client tells its own.
    let late = (format!("no answer for {} s", LONGEST.as_secs()), "no answer any more");
    let own = |text: &str| {
        let text = text.replace(&late.0, late.1);
        fields.iter().chain(PROXY).fold(text, |text, (theirs, ours)| text.replace(theirs, ours))
    };
    match error {
        SourceError::Unreachable { url, problem, .. } | SourceError::RateLimited { url, problem, .. } => {
            DestinationError::Unreachable { action, location: url.clone(), problem: own(problem) }
        }
        SourceError::Unauthorized { url, problem, .. } | SourceError::Untrusted { url, problem } => {
            DestinationError::Refused { action, location: url.clone(), problem: own(problem) }
        }
        other => DestinationError::Refused { action, location: location.to_owned(), problem: own(&other.to_string()) },
    }
}

#[cfg(test)]
mod tests;
