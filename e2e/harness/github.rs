//! A stand-in for GitHub's API: one repository with releases made as `csctl` makes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clusterstack::core::digest::hex;
use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Public};
use openssl::rsa::Rsa;
use openssl::sign::Verifier;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::registry::assets;

/// A server of the repository `o/r`. It ends when it goes out of scope.
pub(crate) struct GitHub {
    host: String,
    shared: Arc<Shared>,
    _end: DropGuard,
}

#[derive(Default)]
struct Shared {
    releases: Mutex<Vec<Value>>,
    assets: Mutex<Vec<Bytes>>,
    /// Seconds for which it wants to be left alone.
    limited: Mutex<Option<u64>>,
    lists: Mutex<usize>,
    limits: Mutex<usize>,
    downloads: Mutex<usize>,
    logins: Mutex<BTreeSet<String>>,
    /// The public key of the App that alone may read, and how many tokens it got.
    app: Mutex<Option<(Rsa<Public>, usize)>>,
}

impl GitHub {
    /// Serves on a free port of loopback.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("no port");
        let host = listener.local_addr().expect("no address").to_string();
        let shared = Arc::<Shared>::default();
        let routes = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let end = CancellationToken::new();
        let ended = end.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = axum::serve(listener, routes) => {}
                () = ended.cancelled() => {}
            }
        });
        Self { host, shared, _end: end.drop_guard() }
    }

    /// `host:port`, for `--allow-source`.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// `spec.source` of a ClusterStack.
    pub(crate) fn source(&self) -> Value {
        json!({"git": null, "github": {"owner": "o", "repo": "r", "apiUrl": format!("http://{}", self.host), "insecure": true}})
    }

    /// Publishes a release with `templates` as its class chart.
    pub(crate) fn release(&self, tag: &str, templates: &str) {
        self.publish(tag, &assets(tag, templates));
    }

    /// Publishes a release with these assets, in the place of what was there.
    pub(crate) fn publish(&self, tag: &str, files: &BTreeMap<String, Bytes>) {
        let mut all = self.shared.assets.lock().unwrap();
        let assets = files.iter().map(|(name, content)| {
            let (size, digest) = (content.len(), format!("sha256:{}", hex(&Sha256::digest(content))));
            all.push(content.clone());
            json!({"id": all.len() - 1, "name": name, "state": "uploaded", "size": size, "digest": digest, "updated_at": "2026-01-01T00:00:00Z"})
        });
        let assets: Vec<Value> = assets.collect();
        let release = json!({"tag_name": tag, "name": null, "draft": false, "prerelease": false, "assets": assets});
        let mut releases = self.shared.releases.lock().unwrap();
        releases.retain(|known| known["tag_name"] != tag);
        releases.insert(0, release);
    }

    /// From now on only installation 34 of App 12 may read, which proves itself by this key.
    pub(crate) fn only_app(&self, key: Rsa<Public>) {
        *self.shared.app.lock().unwrap() = Some((key, 0));
    }

    /// How many tokens the App got.
    pub(crate) fn tokens(&self) -> usize {
        self.shared.app.lock().unwrap().as_ref().map_or(0, |(_, tokens)| *tokens)
    }

    /// What requests showed of who sends them.
    pub(crate) fn logins(&self) -> BTreeSet<String> {
        self.shared.logins.lock().unwrap().clone()
    }

    /// How often one of the assets was asked for.
    pub(crate) fn downloads(&self) -> usize {
        *self.shared.downloads.lock().unwrap()
    }

    /// Answers with a limit from now on, or as it should.
    pub(crate) fn limit(&self, seconds: Option<u64>) {
        *self.shared.limited.lock().unwrap() = seconds;
    }

    /// How often the releases were listed.
    pub(crate) fn lists(&self) -> usize {
        *self.shared.lists.lock().unwrap()
    }

    /// How often it said that it wants to be left alone.
    pub(crate) fn limits(&self) -> usize {
        *self.shared.limits.lock().unwrap()
    }
}

/// Whose token it is, if this key signed it (RS256).
fn issuer(token: &str, key: &Rsa<Public>) -> Option<String> {
    let (message, signature) = token.rsplit_once('.')?;
    let key = PKey::from_rsa(key.clone()).expect("no key");
    let mut verifier = Verifier::new(MessageDigest::sha256(), &key).expect("no verifier");
    let is_valid = verifier.verify_oneshot(&URL_SAFE_NO_PAD.decode(signature).ok()?, message.as_bytes()).ok()?;
    let claims = URL_SAFE_NO_PAD.decode(message.split_once('.')?.1).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    claims["iss"].as_str().filter(|_| is_valid).map(ToOwned::to_owned)
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let login = request.headers().get(header::AUTHORIZATION).and_then(|login| login.to_str().ok());
    shared.logins.lock().unwrap().insert(login.unwrap_or_default().to_owned());
    if let Some(seconds) = *shared.limited.lock().unwrap() {
        *shared.limits.lock().unwrap() += 1;
        let text = r#"{"message":"You have exceeded a secondary rate limit."}"#;
        return (StatusCode::FORBIDDEN, [(header::RETRY_AFTER, seconds)], text).into_response();
    }
    let path = request.uri().path();
    if let Some((key, tokens)) = &mut *shared.app.lock().unwrap() {
        let shown = login.and_then(|login| login.strip_prefix("Bearer ")).unwrap_or_default();
        let is_app = path == "/app/installations/34/access_tokens" && request.method() == "POST";
        if is_app && issuer(shown, key).as_deref() == Some("12") {
            *tokens += 1;
            let token = json!({"token": format!("ghs_{tokens}"), "expires_at": "2100-01-01T00:00:00Z"});
            return (StatusCode::CREATED, token.to_string()).into_response();
        }
        if shown != format!("ghs_{tokens}") {
            return (StatusCode::UNAUTHORIZED, r#"{"message":"Bad credentials"}"#).into_response();
        }
    }
    if let Some(id) = path.strip_prefix("/repos/o/r/releases/assets/") {
        *shared.downloads.lock().unwrap() += 1;
        let asset = id.parse().ok().and_then(|id: usize| shared.assets.lock().unwrap().get(id).cloned());
        return asset.map_or_else(|| StatusCode::NOT_FOUND.into_response(), IntoResponse::into_response);
    }
    if path != "/repos/o/r/releases" {
        return StatusCode::NOT_FOUND.into_response();
    }
    *shared.lists.lock().unwrap() += 1;
    let body = serde_json::to_vec(&*shared.releases.lock().unwrap()).expect("JSON");
    let etag = format!("\"{}\"", hex(&Sha256::digest(&body)));
    if request.headers().get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == etag.as_bytes()) {
        return StatusCode::NOT_MODIFIED.into_response();
    }
    ([(header::ETAG, etag)], [("x-ratelimit-limit", "60"), ("x-ratelimit-remaining", "59")], body).into_response()
}
