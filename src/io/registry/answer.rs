//! What a registry's refusals mean.

use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use reqwest::Response;
use serde::Deserialize;

use crate::io::source::SourceError;
use crate::io::source::http::{Http, retry_after};

/// Bytes of an error's body that are read.
const BODY: u64 = 64 << 10;
/// Characters of it that are shown.
const SHOWN: usize = 300;
/// When a registry is asked again that does not say when.
const LATER: Duration = Duration::from_mins(1);
/// Longest time that is waited, whatever it says.
const LATEST: Duration = Duration::from_hours(6);

#[derive(Deserialize)]
struct Errors {
    errors: Vec<Problem>,
}

#[derive(Deserialize)]
struct Problem {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// The error of an answer that is no success. `url` is where; `secrets` are cut out of what the server says.
pub(super) async fn refusal(
    http: &Http,
    action: &'static str,
    url: &str,
    response: Response,
    secrets: &[String],
) -> SourceError {
    let status = response.status();
    let after = retry_after(response.headers(), Timestamp::now()).unwrap_or(LATER).min(LATEST);
    let body = http.body(action, response, BODY).await.unwrap_or_default();
    let said = serde_json::from_slice::<Errors>(&body).map(|body| body.errors).unwrap_or_default();
    let busy = said.iter().any(|problem| problem.code == "TOOMANYREQUESTS");
    let mut problem = format!("the registry answers {status}");
    for Problem { code, message } in said.iter().take(3) {
        problem = format!("{problem}; {code}: {message}");
    }
    let problem = secrets.iter().fold(http.without_secrets(&problem), |text, secret| text.replace(secret, "***"));
    let problem: String = problem.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN).collect();
    let url = url.to_owned();
    match status {
        StatusCode::TOO_MANY_REQUESTS => SourceError::RateLimited { url, problem, after },
        _ if busy => SourceError::RateLimited { url, problem, after },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => SourceError::Unauthorized { action, url, problem },
        StatusCode::NOT_FOUND => SourceError::NoRepository { url, problem },
        _ => SourceError::Unreachable { action, url, problem },
    }
}
