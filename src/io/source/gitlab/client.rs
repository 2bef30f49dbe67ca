//! GitLab's API with the source's token.

use async_trait::async_trait;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Response};
use url::Url;

use super::super::SourceError;
use super::super::credentials::Credentials;
use super::super::error::NO_SECRET;
use super::super::forge::{Ask, Body, Judge, answer, same_server};
use super::super::http::{Http, Redirects, redacted};

/// Asks GitLab.
pub(super) struct Client {
    pub(super) judge: Judge,
    http: Http,
    server: Url,
    /// What shows who we are.
    login: Option<(HeaderName, HeaderValue)>,
}

impl Client {
    pub(super) fn new(
        http: Http,
        judge: Judge,
        server: Url,
        credentials: Option<&Credentials>,
    ) -> Result<Self, SourceError> {
        let login = match credentials {
            None => None,
            Some(Credentials { username, password: Some(token), .. }) => Some(login(username.as_deref(), token)?),
            Some(_) => return Err(unusable("it has no token")),
        };
        Ok(Self { judge, http, server, login })
    }

    pub(super) fn has_token(&self) -> bool {
        self.login.is_some()
    }
}

fn unusable(problem: &str) -> SourceError {
    SourceError::Unusable { what: "token of secretRef".to_owned(), problem: problem.to_owned() }
}

/// The header for a token, by its kind: GitLab's users of job tokens, deploy tokens and OAuth are called so in Git, too.
fn login(username: Option<&str>, token: &str) -> Result<(HeaderName, HeaderValue), SourceError> {
    let (name, value) = match username {
        Some("oauth2") => (AUTHORIZATION, format!("Bearer {token}")),
        Some("gitlab-ci-token") => (HeaderName::from_static("job-token"), token.to_owned()),
        Some(user) if user.starts_with("gitlab+deploy-token") => {
            (HeaderName::from_static("deploy-token"), token.to_owned())
        }
        _ if token.starts_with("gldt-") => (HeaderName::from_static("deploy-token"), token.to_owned()),
        _ => (HeaderName::from_static("private-token"), token.to_owned()),
    };
    let mut value = HeaderValue::try_from(value).map_err(|_| unusable("it holds characters that no token has"))?;
    value.set_sensitive(true);
    Ok((name, value))
}

#[async_trait]
impl Ask for Client {
    async fn ask(&self, action: &'static str, url: &Url, headers: HeaderMap) -> Result<Response<Body>, SourceError> {
        self.judge.admit(url)?;
        let own = same_server(url, &self.server);
        let mut request = self.http.request(Method::GET, url.clone()).headers(headers);
        if let Some((name, value)) = self.login.as_ref().filter(|_| own) {
            request = request.header(name, value);
        }
        let request = request.build().map_err(|error| self.http.failed(action, url, &error))?;
        let response = self
            .http
            .send(action, request, Redirects::Anywhere)
            .await
            .inspect_err(|error| self.judge.unanswered(error))?;
        // It sends people whom it does not know to a page for them.
        if same_server(response.url(), &self.server) && response.url().path().ends_with("/users/sign_in") {
            let why = if self.has_token() { "and the token does not count for it" } else { NO_SECRET };
            let problem = format!("a redirect led to where people sign in: the file is not public, {why}");
            return Err(SourceError::Unauthorized { action, url: redacted(url), problem });
        }
        self.judge.settle(action, url, answer(response)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_all_kinds_have_their_header() {
        for (user, token, header, value) in [
            (None, "glpat-x", "private-token", "glpat-x"),
            (Some("somebody"), "glpat-x", "private-token", "glpat-x"),
            (Some("oauth2"), "x", "authorization", "Bearer x"),
            (Some("gitlab-ci-token"), "x", "job-token", "x"),
            (Some("gitlab+deploy-token-7"), "x", "deploy-token", "x"),
            (None, "gldt-x", "deploy-token", "gldt-x"),
        ] {
            let (name, found) = login(user, token).unwrap();
            assert_eq!((name.as_str(), found.to_str().unwrap()), (header, value));
        }
        assert!(login(None, "a\nb").is_err());
    }
}
