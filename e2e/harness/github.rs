//! A stand-in for GitHub's API: one repository with releases made as `csctl` makes them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use clusterstack::core::digest::hex;
use clusterstack::core::name::ReleaseName;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

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
        let name: ReleaseName = tag.parse().expect("no release name");
        let directory = format!("{}-cluster-class", name.stem());
        let chart = format!("apiVersion: v2\nname: {directory}\nversion: {}\n", name.version);
        let files =
            [("Chart.yaml", chart.as_str()), ("values.yaml", "color: blue\n"), ("templates/objects.yaml", templates)];
        let files: BTreeMap<_, _> =
            files.iter().map(|(path, text)| (format!("{directory}/{path}"), Bytes::from((*text).to_owned()))).collect();
        let metadata = format!(
            "apiVersion: metadata.clusterstack.x-k8s.io/v1alpha1\nversions:\n  clusterStack: {0}\n  kubernetes: v{1}.7\n  components:\n    clusterAddon: {0}\n    nodeImage: {0}\n",
            name.version, name.kubernetes
        );
        let class =
            (format!("{directory}-{}.tgz", name.version), clusterstack::io::unpack::pack(&files).expect("no chart"));
        let assets = [class, ("metadata.yaml".to_owned(), Bytes::from(metadata))].map(|(name, content)| {
            let mut all = self.shared.assets.lock().unwrap();
            let (size, digest) = (content.len(), format!("sha256:{}", hex(&Sha256::digest(&content))));
            all.push(content);
            json!({"id": all.len() - 1, "name": name, "state": "uploaded", "size": size, "digest": digest, "updated_at": "2026-01-01T00:00:00Z"})
        });
        let release = json!({"tag_name": tag, "name": null, "draft": false, "prerelease": false, "assets": assets});
        self.shared.releases.lock().unwrap().insert(0, release);
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

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if let Some(seconds) = *shared.limited.lock().unwrap() {
        *shared.limits.lock().unwrap() += 1;
        let text = r#"{"message":"You have exceeded a secondary rate limit."}"#;
        return (StatusCode::FORBIDDEN, [(header::RETRY_AFTER, seconds)], text).into_response();
    }
    let path = request.uri().path();
    if let Some(id) = path.strip_prefix("/repos/o/r/releases/assets/") {
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
