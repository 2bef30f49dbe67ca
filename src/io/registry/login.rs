//! How a registry lets us in: nobody asks, Basic, or a token of the server that the registry names.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use reqwest::Url;
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::io::source::answers::unreadable;
use crate::io::source::http::{Http, Redirects, redacted};
use crate::io::source::{Login, SourceError};

/// What is asked of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Right {
    /// To read.
    Pull,
    /// To read and write.
    Push,
}

/// Life of a token that does not say: as the distribution project has it.
const LIFE: Duration = Duration::from_mins(1);
/// Longest life that is believed.
const LONGEST: Duration = Duration::from_hours(12);
/// How long before its end a token is not used any more: a request takes its time.
const MARGIN: Duration = Duration::from_secs(5);
/// Bytes of a token server's answer.
const ANSWER: u64 = 1 << 20;
const ACTION: &str = "logging in to";

/// Logs in, and remembers how.
pub(super) struct Logins {
    login: Option<Login>,
    known: Mutex<HashMap<Right, Known>>,
}

struct Known {
    header: HeaderValue,
    until: Option<Instant>,
}

impl Known {
    fn is_fresh(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }
}

/// What a registry wants, from `WWW-Authenticate`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
    /// A number; some servers write it as a text.
    expires_in: Option<serde_json::Value>,
}

impl Answer {
    /// How long its token lives.
    fn life(&self) -> Duration {
        let told = self.expires_in.as_ref();
        let seconds = told.and_then(|told| told.as_u64().or_else(|| told.as_str()?.trim().parse().ok()));
        seconds.map_or(LIFE, Duration::from_secs).min(LONGEST)
    }
}

impl Logins {
    pub(super) fn new(login: Option<Login>) -> Self {
        Self { login, known: Mutex::default() }
    }

    /// Whether there is anything to log in with.
    pub(super) fn has_login(&self) -> bool {
        self.login.is_some()
    }

    /// The header that let us in last time.
    pub(super) async fn known(&self, right: Right) -> Option<HeaderValue> {
        let known = self.known.lock().await;
        known.get(&right).filter(|known| known.is_fresh()).map(|known| known.header.clone())
    }

    /// The texts that must not appear in a message.
    pub(super) async fn secrets(&self) -> Vec<String> {
        let known = self.known.lock().await;
        let headers = known.values().filter_map(|known| known.header.to_str().ok());
        let tokens = headers.filter_map(|header| header.split_once(' ')).map(|(_, secret)| secret.to_owned());
        tokens.chain(self.words()).filter(|secret| !secret.is_empty()).collect()
    }

    /// The header to try after a refusal of `refused`; `None` where there is nothing to try. `base` is the repository's API.
    pub(super) async fn answer(
        &self,
        http: &Http,
        base: &Url,
        right: Right,
        headers: &HeaderMap,
        refused: Option<&HeaderValue>,
    ) -> Result<Option<HeaderValue>, SourceError> {
        let mut known = self.known.lock().await;
        // Somebody else may have logged in meanwhile.
        if let Some(newer) = known.get(&right).filter(|known| known.is_fresh() && Some(&known.header) != refused) {
            return Ok(Some(newer.header.clone()));
        }
        known.remove(&right);
        let found = match (challenge(headers), &self.login) {
            (
                Some(Challenge::Basic),
                Some(Login::Basic { username, password } | Login::BearerOrBasic { username, password, .. }),
            ) => {
                let header = secret(&format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))));
                header.map(|header| Known { header, until: None })
            }
            (Some(_), Some(Login::Bearer(token) | Login::BearerOrBasic { token, .. })) => {
                let header = secret(&format!("Bearer {token}")).ok_or_else(|| SourceError::Unusable {
                    what: format!("the token for {}", redacted(base)),
                    problem: "it holds a line break, or what else no header may hold".to_owned(),
                })?;
                Some(Known { header, until: None })
            }
            (Some(Challenge::Bearer { realm, service, scope }), _) => {
                let scope = scope.unwrap_or_else(|| own_scope(base, right));
                Some(self.token(http, base, &realm, service.as_deref(), &scope).await?)
            }
            _ => None,
        };
        let Some(found) = found.filter(|found| Some(&found.header) != refused) else { return Ok(None) };
        let header = found.header.clone();
        known.insert(right, found);
        Ok(Some(header))
    }

    /// A token of the server at `realm`.
    async fn token(
        &self,
        http: &Http,
        base: &Url,
        realm: &str,
        service: Option<&str>,
        scope: &str,
    ) -> Result<Known, SourceError> {
        let untrusted = |problem: String| SourceError::Untrusted { url: redacted(base), problem };
        let mut url =
            Url::parse(realm).map_err(|error| untrusted(format!("it names no token server but {realm:?}: {error}")))?;
        let same_host = url.host_str() == base.host_str();
        if url.scheme() != "https" && (base.scheme() == "https" || !same_host) {
            return Err(untrusted(format!("it sends us to {} to log in, in the clear", redacted(&url))));
        }
        let mut fields: Vec<(&str, &str)> = service.map(|service| ("service", service)).into_iter().collect();
        fields.push(("scope", scope));
        let request = if let Some(Login::Identity(token)) = &self.login {
            fields.extend([("grant_type", "refresh_token"), ("client_id", "clusterstack"), ("refresh_token", token)]);
            let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
            let request = http.request(http::Method::POST, url.clone());
            request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form)
        } else {
            url.query_pairs_mut().extend_pairs(fields);
            let request = http.request(http::Method::GET, url.clone());
            match &self.login {
                Some(Login::Basic { username, password }) => request.basic_auth(username, Some(password)),
                _ => request,
            }
        };
        let request = request.build().map_err(|error| http.failed(ACTION, &url, &error))?;
        let response = http.send(ACTION, request, Redirects::Anywhere).await?;
        let status = response.status();
        if !status.is_success() {
            return Err(super::answer::refusal(http, ACTION, &redacted(&url), response, &self.words()).await);
        }
        let body = http.body(ACTION, response, ANSWER).await?;
        let damaged = |problem: &str| SourceError::Unreachable {
            action: ACTION,
            url: redacted(&url),
            problem: problem.to_owned(),
        };
        // The parser's own words may quote the token.
        let none = "its answer holds no token";
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|_| damaged(&unreadable(&HeaderMap::new(), &body, &none)))?;
        let life = answer.life();
        let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty());
        let header = token.and_then(|token| secret(&format!("Bearer {token}")));
        let header = header.ok_or_else(|| damaged(none))?;
        Ok(Known { header, until: Some(Instant::now() + life.saturating_sub(MARGIN)) })
    }

    /// The login's own texts that must not appear in a message.
    fn words(&self) -> Vec<String> {
        match &self.login {
            Some(Login::Basic { username, password }) => {
                vec![STANDARD.encode(format!("{username}:{password}")), password.clone()]
            }
            Some(Login::BearerOrBasic { token, username, password }) => {
                vec![STANDARD.encode(format!("{username}:{password}")), password.clone(), token.clone()]
            }
            Some(Login::Identity(token) | Login::Bearer(token)) => vec![token.clone()],
            None => Vec::new(),
        }
    }
}

/// Puts a header into a request's.
pub(super) fn put(headers: &mut HeaderMap, header: Option<HeaderValue>) {
    if let Some(header) = header {
        headers.insert(AUTHORIZATION, header);
    }
}

fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn own_scope(base: &Url, right: Right) -> String {
    let path = base.path().trim_start_matches("/v2/").trim_end_matches('/');
    let actions = match right {
        Right::Pull => "pull",
        Right::Push => "pull,push",
    };
    format!("repository:{path}:{actions}")
}

/// The challenge to answer: a token is preferred to a password.
fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    let texts = headers.get_all(WWW_AUTHENTICATE).into_iter().filter_map(|value| value.to_str().ok());
    let mut basic = None;
    for text in texts {
        for challenge in http_auth::parse_challenges(text).unwrap_or_default() {
            if challenge.scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Challenge::Basic);
            }
            let get = |name: &str| {
                let mut found = challenge.params.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
                found.next().map(|(_, value)| value.to_unescaped())
            };
            if challenge.scheme.eq_ignore_ascii_case("bearer")
                && let Some(realm) = get("realm")
            {
                return Some(Challenge::Bearer { realm, service: get("service"), scope: get("scope") });
            }
        }
    }
    basic
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(WWW_AUTHENTICATE, HeaderValue::from_str(value).unwrap());
        }
        challenge(&headers)
    }

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let bearer = |scope: Option<&str>| {
            let (realm, service) = ("https://auth.docker.io/token".to_owned(), Some("registry.docker.io".to_owned()));
            Some(Challenge::Bearer { realm, service, scope: scope.map(ToOwned::to_owned) })
        };
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io""#;
        assert_eq!(read(&[hub]), bearer(None));
        let scope = "repository:a/b:pull,push";
        assert_eq!(read(&[&format!(r#"{hub},scope="{scope}",error="invalid_token""#)]), bearer(Some(scope)));
        assert_eq!(read(&["Basic realm=\"x, Bearer\"", hub]), bearer(None));
        assert_eq!(read(&["basic realm=x"]), Some(Challenge::Basic));
        for nothing in [&[][..], &["Bearer"], &["Negotiate"], &["Bearer realm=\"unfinished"]] {
            assert_eq!(read(nothing), None);
        }
    }

    #[test]
    fn a_token_lives_as_long_as_its_server_says() {
        for (told, seconds) in [
            ("{}", 60),
            (r#"{"expires_in":300}"#, 300),
            (r#"{"expires_in":"300"}"#, 300),
            (r#"{"expires_in":null}"#, 60),
            (r#"{"expires_in":"soon"}"#, 60),
            (r#"{"expires_in":-1}"#, 60),
            (r#"{"expires_in":99999999999}"#, LONGEST.as_secs()),
        ] {
            let answer: Answer = serde_json::from_str(told).unwrap();
            assert_eq!(answer.life(), Duration::from_secs(seconds), "{told}");
        }
    }

    #[test]
    fn the_scope_is_the_repository() {
        let base = Url::parse("https://r.example.com/v2/a/b/").unwrap();
        assert_eq!(own_scope(&base, Right::Push), "repository:a/b:pull,push");
    }
}
