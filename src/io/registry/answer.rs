//! What a registry's refusals mean.

use http::StatusCode;
use jiff::Timestamp;
use reqwest::Response;
use serde::Deserialize;

use crate::io::source::SourceError;
use crate::io::source::answers::{pause, rest, said_there, waiting};
use crate::io::source::http::Http;

/// Bytes of an error's body that are read.
const BODY: u64 = 64 << 10;
/// Characters of it that are shown.
const SHOWN: usize = 300;

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
    let now = Timestamp::now();
    let (told, busy_for) = (pause(status, response.headers(), now), rest(response.headers(), now));
    let mut problem = said_there(response.extensions(), &format!("the registry answers {status}"));
    let body = http.body(action, response, BODY).await.unwrap_or_default();
    let said = serde_json::from_slice::<Errors>(&body).map(|body| body.errors).unwrap_or_default();
    let busy = said.iter().any(|problem| problem.code == "TOOMANYREQUESTS");
    for Problem { code, message } in said.iter().take(3) {
        problem = format!("{problem}; {code}: {message}");
    }
    let problem = secrets.iter().fold(http.without_secrets(&problem), |text, secret| text.replace(secret, "***"));
    let problem: String = problem.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN).collect();
    let url = url.to_owned();
    if let Some(after) = told.or_else(|| busy.then_some(busy_for)) {
        return SourceError::RateLimited { url, problem: waiting(&problem, after, now), after };
    }
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => SourceError::Unauthorized { action, url, problem },
        StatusCode::NOT_FOUND => SourceError::NoRepository { url, problem },
        _ => SourceError::Unreachable { action, url, problem },
    }
}
