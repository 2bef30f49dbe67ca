//! octocrab over our own edge.

use std::sync::OnceLock;
use std::task::{Context, Poll};

use async_trait::async_trait;
use futures::future::BoxFuture;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};
use octocrab::service::middleware::base_uri::BaseUriLayer;
use octocrab::{AuthState, OctoBody, Octocrab, OctocrabBuilder};
use serde::Deserialize;
use tower::Service;
use url::Url;

use super::super::SourceError;
use super::super::answers;
use super::super::credentials::Credentials;
use super::super::forge::{Ask, Body, BoxError, Judge, answer, cause, whole};
use super::super::http::{Http, Redirects, redacted};
use super::app::App;
use super::place::Place;

const LOGIN: &str = "getting a token of the GitHub App from";
/// A token is not used any more so long before it ends.
const SPARE: SignedDuration = SignedDuration::from_mins(5);
/// Bytes of the answer that holds a token.
const TOKEN: usize = 1 << 20;

/// Asks GitHub's API.
pub(super) struct Client {
    pub(super) judge: Judge,
    edge: Edge,
    api: Url,
    login: Login,
    /// Made with the first request: it needs the runtime.
    octocrab: OnceLock<Octocrab>,
}

enum Login {
    Nobody,
    Token(String),
    App(Box<App>, tokio::sync::Mutex<Option<Installation>>),
}

/// What stands for an App's installation, for an hour.
#[derive(Clone, Deserialize)]
struct Installation {
    token: String,
    expires_at: Timestamp,
}

impl Client {
    pub(super) fn new(
        http: Http,
        judge: Judge,
        place: &Place,
        credentials: Option<&Credentials>,
    ) -> Result<Self, SourceError> {
        let login = match credentials {
            None => Login::Nobody,
            Some(Credentials { github_app: Some(app), .. }) => {
                Login::App(Box::new(App::new(app)?), tokio::sync::Mutex::default())
            }
            Some(Credentials { password: Some(token), .. }) => Login::Token(token.clone()),
            Some(_) => {
                let problem = "it has neither token nor githubAppID".to_owned();
                return Err(SourceError::Unusable { what: "secretRef".to_owned(), problem });
            }
        };
        Ok(Self { judge, edge: Edge { http }, api: place.api.clone(), login, octocrab: OnceLock::new() })
    }

    /// octocrab for who shows `token`.
    fn octocrab(&self, token: Option<&str>) -> Result<Octocrab, SourceError> {
        let local = |problem: String| SourceError::Local { action: "asking", url: redacted(&self.api), problem };
        let base: Uri = self.api.as_str().parse().map_err(|error: http::uri::InvalidUri| local(error.to_string()))?;
        let octocrab = self.octocrab.get_or_init(|| {
            let builder = OctocrabBuilder::new_empty().with_service(self.edge.clone());
            let Ok(octocrab) = builder.with_layer(&BaseUriLayer::new(base)).with_auth(AuthState::None).build();
            octocrab
        });
        match token {
            None => Ok(octocrab.clone()),
            Some(token) => octocrab.user_access_token(token.to_owned()).map_err(|error| local(error.to_string())),
        }
    }

    async fn send(
        &self,
        action: &'static str,
        method: Method,
        url: &Url,
        headers: HeaderMap,
        token: Option<&str>,
    ) -> Result<Response<Body>, SourceError> {
        self.judge.admit(url)?;
        let octocrab = self.octocrab(token)?;
        // Without a host: octocrab shows the token to its base alone.
        let path = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
        let mut builder = Request::builder().method(method).uri(path).extension(Action(action));
        if let Some(all) = builder.headers_mut() {
            all.extend(headers);
        }
        let local = |error: octocrab::Error| SourceError::Local { action, url: redacted(url), problem: cause(&error) };
        let request = octocrab.build_request(builder, None::<&()>).map_err(local)?;
        match octocrab.execute(request).await {
            Ok(response) => {
                let response = response.map(|body| body.map_err(BoxError::from).boxed());
                self.judge.settle(action, url, response).await
            }
            Err(error) => {
                let error = self.failed(action, url, &error);
                self.judge.unanswered(&error);
                Err(error)
            }
        }
    }

    /// The edge's own error, which octocrab carries.
    fn failed(&self, action: &'static str, url: &Url, error: &octocrab::Error) -> SourceError {
        if let octocrab::Error::Service { source, .. } = error
            && let Some(error) = source.downcast_ref::<SourceError>()
        {
            return error.clone();
        }
        let problem = self.judge.without_secrets(&cause(error));
        SourceError::Unreachable { action, url: redacted(url), problem }
    }

    /// The token to show, if there is one.
    async fn token(&self) -> Result<Option<String>, SourceError> {
        let (app, kept) = match &self.login {
            Login::Nobody => return Ok(None),
            Login::Token(token) => return Ok(Some(token.clone())),
            Login::App(app, kept) => (app, kept),
        };
        let mut kept = kept.lock().await;
        let now = Timestamp::now();
        if let Some(known) = kept.as_ref().filter(|known| known.expires_at.duration_since(now) > SPARE) {
            return Ok(Some(known.token.clone()));
        }
        let made = self.log_in(app, now).await?;
        let token = made.token.clone();
        *kept = Some(made);
        Ok(Some(token))
    }

    async fn log_in(&self, app: &App, now: Timestamp) -> Result<Installation, SourceError> {
        let mut url = self.api.clone();
        let base = self.api.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}/app/installations/{}/access_tokens", app.installation));
        let response = self.send(LOGIN, Method::POST, &url, HeaderMap::new(), Some(&app.token(now)?)).await;
        let response = response.map_err(|error| match error {
            SourceError::NoRepository { url, problem } => {
                let problem = format!("{problem}; check githubAppInstallationID");
                SourceError::Unauthorized { action: LOGIN, url, problem }
            }
            other => other,
        })?;
        let unreadable = |problem: String| SourceError::Unreachable { action: LOGIN, url: redacted(&url), problem };
        let body = whole(response.into_body(), TOKEN).await.map_err(unreadable)?;
        // The error of the parser might show the token.
        let none: &dyn std::fmt::Display = &"its answer holds no token";
        serde_json::from_slice(&body).map_err(|_| unreadable(answers::unreadable(&HeaderMap::new(), &body, none)))
    }

    /// Forgets a token that is not taken any more; whether there was one.
    async fn forget(&self, token: Option<&str>) -> bool {
        let Login::App(_, kept) = &self.login else { return false };
        let mut kept = kept.lock().await;
        if kept.as_ref().map(|kept| kept.token.as_str()) == token {
            *kept = None;
        }
        true
    }
}

#[async_trait]
impl Ask for Client {
    async fn ask(&self, action: &'static str, url: &Url, headers: HeaderMap) -> Result<Response<Body>, SourceError> {
        let token = self.token().await?;
        let answer = self.send(action, Method::GET, url, headers.clone(), token.as_deref()).await;
        // An App's token may be taken back before it ends.
        if matches!(answer, Err(SourceError::Unauthorized { .. })) && self.forget(token.as_deref()).await {
            let token = self.token().await?;
            return self.send(action, Method::GET, url, headers, token.as_deref()).await;
        }
        answer
    }
}

/// What a request is for.
#[derive(Clone, Copy)]
struct Action(&'static str);

/// Our own HTTP, as octocrab wants it.
#[derive(Clone)]
struct Edge {
    http: Http,
}

impl Service<Request<OctoBody>> for Edge {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<OctoBody>) -> Self::Future {
        let http = self.http.clone();
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let Action(action) = parts.extensions.get().copied().unwrap_or(Action("asking"));
            let url = Url::parse(&parts.uri.to_string())?;
            let body = body.collect().await?.to_bytes();
            // The client below counts for itself.
            parts.headers.remove(CONTENT_LENGTH);
            let request = http.request(parts.method, url).headers(parts.headers).body(body).build();
            let request = request.map_err(reqwest::Error::without_url)?;
            Ok(answer(http.send(action, request, Redirects::Anywhere).await?))
        })
    }
}
