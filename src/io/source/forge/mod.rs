//! What GitHub and GitLab have in common: releases in pages, assets behind redirects, limits that must be obeyed.
//!
//! Guarantees: a server that says "not now" is not asked again before its time, by nobody who uses this token there; an
//! answer is an error unless it is of use, and holds no secret.

pub(super) mod download;
pub(super) mod pages;
pub(super) mod quotas;
mod rate;
pub(super) mod signed;

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::answers::{no_answer, said_there, waiting};
use super::error::NO_SECRET;
use super::http::{Http, SILENCE, redacted};
use super::meter::SourceMetrics;
use super::{SourceError, Tag};
use crate::api::cluster_stack_source::Quota;
use crate::core::limits::TooLarge;

/// How long a list may take.
pub(super) const LIST: Duration = Duration::from_mins(2);
/// How long a fetch may take.
pub(super) const FETCH: Duration = Duration::from_mins(15);
/// What is read of the text of an error.
const MESSAGE: usize = 64 << 10;
/// What is shown of it.
const SHOWN: usize = 200;

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// What an answer holds, as it comes.
pub(super) type Body = BoxBody<Bytes, BoxError>;

/// Asks a forge with the source's credentials.
#[async_trait]
pub(super) trait Ask: Send + Sync {
    /// The good answer to a GET: of status 2xx or 304.
    async fn ask(&self, action: &'static str, url: &Url, headers: HeaderMap) -> Result<Response<Body>, SourceError>;
}

/// What a forge says about one of its answers, in its own words.
pub(super) struct Hints {
    /// For 404.
    pub(super) missing: &'static str,
    /// For 401 and 403.
    pub(super) rights: &'static str,
}

/// Whose answers are judged.
pub(super) struct Subject {
    pub(super) hints: Hints,
    /// Whether it shows a token: else no Secret is to blame.
    pub(super) has_login: bool,
    /// Host and repository, for metrics.
    pub(super) source: String,
}

/// Judges the answers of one source's server.
pub(super) struct Judge {
    http: Http,
    subject: Subject,
    metrics: SourceMetrics,
    state: Arc<Mutex<State>>,
}

/// What is known of one token at one server.
#[derive(Default)]
pub(super) struct State {
    quota: Option<Quota>,
    /// Until when it must be left alone, and what it said.
    closed: Option<(Instant, String)>,
    /// Limits in a row.
    strikes: u32,
}

impl Judge {
    pub(super) fn new(http: Http, subject: Subject, metrics: SourceMetrics, state: Arc<Mutex<State>>) -> Self {
        Self { http, subject, metrics, state }
    }

    pub(super) fn quota(&self) -> Option<Quota> {
        self.state().quota.clone()
    }

    /// Fails while the server must be left alone.
    pub(super) fn admit(&self, url: &Url) -> Result<(), SourceError> {
        let now = Instant::now();
        let mut state = self.state();
        match &state.closed {
            Some((until, problem)) if now < *until => Err(SourceError::RateLimited {
                url: redacted(url),
                problem: problem.clone(),
                after: until.duration_since(now),
            }),
            _ => {
                state.closed = None;
                Ok(())
            }
        }
    }

    /// Counts an answer that did not come.
    pub(super) fn unanswered(&self, error: &SourceError) {
        if matches!(error, SourceError::Unreachable { .. }) {
            self.metrics.count(&self.subject.source, "unreachable");
        }
    }

    /// The answer if it is a good one, else the error that it says.
    pub(super) async fn settle(
        &self,
        action: &'static str,
        url: &Url,
        response: Response<Body>,
    ) -> Result<Response<Body>, SourceError> {
        if let Some(quota) = rate::quota(response.headers()) {
            self.metrics.note(&self.subject.source, &quota);
            self.state().quota = Some(quota);
        }
        let status = response.status();
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            self.state().strikes = 0;
            let outcome = if status == StatusCode::NOT_MODIFIED { "not_modified" } else { "ok" };
            self.metrics.count(&self.subject.source, outcome);
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        // What can't be read of it says nothing.
        let text = whole(body, MESSAGE).await;
        let message = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
        let (error, outcome) = self.judge(action, url, &parts, &message);
        self.metrics.count(&self.subject.source, outcome);
        Err(error)
    }

    fn judge(
        &self,
        action: &'static str,
        url: &Url,
        answer: &http::response::Parts,
        message: &str,
    ) -> (SourceError, &'static str) {
        let status = answer.status;
        let said = said(message, |text| self.http.without_secrets(text));
        let problem = if said.is_empty() { format!("HTTP {status}") } else { format!("HTTP {status}: {said}") };
        let problem = said_there(&answer.extensions, &problem);
        let url = redacted(url);
        let mut state = self.state();
        let now = Timestamp::now();
        if let Some(after) = rate::pause(status, &answer.headers, message, state.strikes, now) {
            state.strikes = state.strikes.saturating_add(1);
            let problem = waiting(&problem, after, now);
            state.closed = Some((Instant::now() + after, problem.clone()));
            return (SourceError::RateLimited { url, problem, after }, "rate_limited");
        }
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                let missing = if self.subject.has_login { "" } else { NO_SECRET };
                let rights = [&*problem, self.subject.hints.rights, missing];
                let problem = rights.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
                (SourceError::Unauthorized { action, url, problem }, "unauthorized")
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                let problem = format!("{problem}; {}", self.subject.hints.missing);
                (SourceError::NoRepository { url, problem }, "not_found")
            }
            _ => (SourceError::Unreachable { action, url, problem }, "failed"),
        }
    }

    /// What a body says that breaks off, without secrets.
    pub(super) fn without_secrets(&self, text: &str) -> String {
        self.http.without_secrets(text)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // It is whole after every statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a server says of an error: `message` or `error` of JSON, else the start of a short text. `hide` takes secrets out.
fn said(body: &str, hide: impl Fn(&str) -> String) -> String {
    let json: Option<serde_json::Value> = serde_json::from_str(body).ok();
    let field = |name: &str| json.as_ref()?.get(name)?.as_str().map(ToOwned::to_owned);
    let text = match (field("message").or_else(|| field("error")), &json) {
        (Some(text), _) => text,
        // A page of a proxy says nothing in so few words.
        (None, None) if !body.trim_start().starts_with('<') => body.to_owned(),
        _ => String::new(),
    };
    let line: Vec<&str> = text.split_whitespace().collect();
    let line: String = line.join(" ").chars().filter(|c| !c.is_control()).collect();
    // Before it is cut: the beginning of a secret is not found any more.
    hide(&line).chars().take(SHOWN).collect()
}

/// The last cause of an error: those above it repeat it, or show URLs that hold secrets. Of silence, how long it was.
pub(super) fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    loop {
        if last.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_timeout) {
            return no_answer(SILENCE);
        }
        let Some(next) = last.source() else { return last.to_string() };
        last = next;
    }
}

/// Runs `work` for at most `limit`, until it is called off.
pub(super) async fn within<T>(
    action: &'static str,
    url: &str,
    limit: Duration,
    cancel: &CancellationToken,
    work: impl Future<Output = Result<T, SourceError>> + Send,
) -> Result<T, SourceError> {
    let url = || url.to_owned();
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(SourceError::Cancelled { action, url: url() }),
        result = tokio::time::timeout(limit, work) => {
            result.unwrap_or_else(|_| Err(SourceError::TimedOut { action, url: url(), after: limit }))
        }
    }
}

/// An answer as it comes, without URLs in its errors: they may hold tokens of a store of blobs.
pub(super) fn answer(response: reqwest::Response) -> Response<Body> {
    let response: Response<reqwest::Body> = response.into();
    response.map(|body| body.map_err(|error| BoxError::from(error.without_url())).boxed())
}

/// All of a body of at most `limit` bytes, or what is wrong with it.
pub(super) async fn whole(mut body: Body, limit: usize) -> Result<Bytes, String> {
    let mut content = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| cause(error.as_ref()))?;
        let Ok(data) = frame.into_data() else { continue };
        if content.len() + data.len() > limit {
            return Err(format!("its answer is larger than {limit} bytes"));
        }
        content.extend_from_slice(&data);
    }
    Ok(content.freeze())
}

/// The tags, each name once: the first, as the server sorts.
pub(super) fn unique(tags: impl Iterator<Item = Tag>) -> Vec<Tag> {
    let mut seen = HashSet::new();
    tags.filter(|tag| seen.insert(tag.name.clone())).collect()
}

/// Whether two URLs lead to the same server.
pub(super) fn same_server(a: &Url, b: &Url) -> bool {
    a.origin() == b.origin()
}

/// `what` is larger than `limit` bytes.
pub(super) fn too_large(of: &str, what: &str, limit: u64) -> SourceError {
    SourceError::TooLarge { of: of.to_owned(), limit: TooLarge { what: what.to_owned(), limit } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_one_short_line() {
        for (body, expected) in [
            (r#"{"message":"Bad\ncredentials","documentation_url":"x"}"#, "Bad credentials"),
            (r#"{"error":"invalid_token"}"#, "invalid_token"),
            (r#"{"message":{"base":["x"]}}"#, ""),
            ("<html>guest network", ""),
            ("down for maintenance", "down for maintenance"),
            ("", ""),
        ] {
            assert_eq!(said(body, str::to_owned), expected, "{body}");
        }
        assert_eq!(said(&"x".repeat(5000), str::to_owned).len(), SHOWN);
    }

    #[test]
    fn a_token_that_is_echoed_across_the_cut_shows_nothing_of_itself() {
        let hide = |text: &str| text.replace("ghp_swordfish", "***");
        for before in [0, SHOWN - 14, SHOWN - 12, SHOWN - 5, SHOWN - 1, SHOWN] {
            let text = format!("{}ghp_swordfish is no good token", "x".repeat(before));
            for body in [text.clone(), serde_json::json!({"message": text}).to_string()] {
                let shown = said(&body, hide);
                assert!(!shown.contains("gh") && shown.chars().count() <= SHOWN, "{shown}");
            }
        }
    }
}
