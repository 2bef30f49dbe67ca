//! A proxy in front of the API server that can make bad weather.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use kube::Client;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// What happens to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Nothing.
    Fair,
    /// Of 64 requests eight are too many (429), one fails (500), one is cut off in its answer, four are slow.
    Storm,
    /// Every one fails.
    Down,
    /// Objects of this resource can't be listed.
    Without(&'static str),
    /// Objects of this resource can't be read.
    Unread(&'static str),
    /// Objects of this resource are deleted, and the answer never comes.
    Unanswered(&'static str),
    /// One thing goes wrong with one in six of the requests that it can happen to, and with every second watch.
    Faulty(Fault),
}

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An answer takes a second.
    Latency,
    /// A connection ends before there is an answer, whether or not the request was carried out.
    Reset,
    /// Somebody else was faster (409).
    Conflict,
    /// What a list or watch goes on from is too old (410).
    Expired,
    /// Too many requests (429), with the time to wait.
    TooMany,
    /// 500.
    Internal,
    /// 503.
    Unavailable,
    /// A watch breaks off in the middle of an event.
    WatchCut,
    /// An object is read as it was before.
    Stale,
    /// An answer is cut, and looks complete.
    PartialJson,
}

/// A proxy that serves plain HTTP on loopback, with the rights of its client. It ends when it goes out of scope.
pub(crate) struct Proxy {
    kubeconfig: PathBuf,
    shared: Arc<Shared>,
    _end: DropGuard,
}

struct Shared {
    client: Client,
    weather: Mutex<Weather>,
    /// What comes next: a shuffled order, so that no request of a pass meets the same trouble in each.
    dice: Mutex<StdRng>,
    spoiled: AtomicUsize,
    requests: AtomicUsize,
    /// Objects as they were when they were read first, by their paths.
    before: Mutex<BTreeMap<String, Bytes>>,
    /// What was applied, by path.
    applied: Mutex<BTreeMap<String, BTreeSet<String>>>,
}

impl Shared {
    /// Whether this request is one of those that something happens to.
    fn is_hit(&self, fault: Fault) -> bool {
        // Watches are few.
        let one_in = if matches!(fault, Fault::Expired | Fault::WatchCut) { 2 } else { 6 };
        let is = self.dice.lock().unwrap().random_range(0..one_in) == 0;
        if is {
            self.spoiled.fetch_add(1, Ordering::Relaxed);
        }
        is
    }
}

impl Proxy {
    /// Starts it; its kubeconfig is written into `dir`.
    pub(crate) async fn start(client: Client, dir: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("no port");
        let server = format!("http://{}", listener.local_addr().expect("no address"));
        let kubeconfig = dir.join("proxy.kubeconfig");
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": server}}],
            "users": [{"name": "proxy", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        });
        std::fs::write(&kubeconfig, config.to_string()).expect("no kubeconfig");
        let shared = Arc::new(Shared {
            client,
            weather: Mutex::new(Weather::Fair),
            dice: Mutex::new(StdRng::seed_from_u64(42)),
            spoiled: AtomicUsize::default(),
            requests: AtomicUsize::default(),
            before: Mutex::default(),
            applied: Mutex::default(),
        });
        let routes = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let end = CancellationToken::new();
        let ended = end.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = axum::serve(listener, routes) => {}
                () = ended.cancelled() => {}
            }
        });
        Self { kubeconfig, shared, _end: end.drop_guard() }
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub(crate) fn set(&self, weather: Weather) {
        *self.shared.weather.lock().unwrap() = weather;
    }

    /// How many requests were spoiled.
    pub(crate) fn spoiled(&self) -> usize {
        self.shared.spoiled.load(Ordering::Relaxed)
    }

    /// How many requests came.
    pub(crate) fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// What was sent by server-side apply for each object, by path: each content once.
    pub(crate) fn applied(&self) -> BTreeMap<String, BTreeSet<String>> {
        self.shared.applied.lock().unwrap().clone()
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let weather = *shared.weather.lock().unwrap();
    shared.requests.fetch_add(1, Ordering::Relaxed);
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, 1 << 24).await else { return StatusCode::BAD_REQUEST.into_response() };
    if let Weather::Faulty(fault) = weather {
        return faulty(&shared, fault, parts, body).await;
    }
    if let Weather::Without(resource) = weather
        && parts.uri.path().rsplit('/').next() == Some(resource)
    {
        shared.spoiled.fetch_add(1, Ordering::Relaxed);
        return status(StatusCode::FORBIDDEN);
    }
    if let Weather::Unread(resource) = weather
        && parts.method == Method::GET
        && parts.uri.path().split('/').any(|segment| segment == resource)
    {
        shared.spoiled.fetch_add(1, Ordering::Relaxed);
        return status(StatusCode::INTERNAL_SERVER_ERROR);
    }
    if let Weather::Unanswered(resource) = weather
        && parts.method == Method::DELETE
        && parts.uri.path().split('/').any(|segment| segment == resource)
    {
        shared.spoiled.fetch_add(1, Ordering::Relaxed);
        let _ = forward(&shared, parts, body).await;
        return std::future::pending().await;
    }
    let turn = match weather {
        Weather::Fair | Weather::Without(_) | Weather::Unread(_) | Weather::Unanswered(_) | Weather::Faulty(_) => 63,
        Weather::Storm => shared.dice.lock().unwrap().random_range(0..64),
        Weather::Down => 8,
    };
    if turn < 14 {
        shared.spoiled.fetch_add(1, Ordering::Relaxed);
    }
    match turn {
        0..=7 => return too_many(),
        8 => return status(StatusCode::INTERNAL_SERVER_ERROR),
        9..=12 => tokio::time::sleep(Duration::from_millis(500)).await,
        _ => {}
    }
    let response = forward(&shared, parts, body).await;
    // The request was carried out, but its answer does not arrive.
    if turn == 13 { cut(response, "{\"kind\"") } else { response }
}

async fn forward(shared: &Shared, parts: Parts, body: Bytes) -> Response {
    let is_apply = parts.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/apply-patch+yaml");
    if is_apply && !parts.uri.path().ends_with("/status") {
        let mut object: Value = clusterstack::core::yaml::from_str(&String::from_utf8_lossy(&body)).unwrap_or_default();
        // Which version it was decided on is no content.
        object["metadata"]["resourceVersion"].take();
        let path = parts.uri.path().to_owned();
        shared.applied.lock().unwrap().entry(path).or_default().insert(object.to_string());
    }
    let forwarded = axum::http::Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
    match shared.client.send(forwarded).await {
        Ok(response) => response.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

/// The beginning of an answer, then the connection ends.
fn cut(response: Response, beginning: &'static str) -> Response {
    response.map(|_| {
        let parts = futures::stream::iter([Ok(beginning), Err(std::io::Error::other("cut"))]);
        Body::from_stream(parts.then(|part| async { part }))
    })
}

async fn faulty(shared: &Shared, fault: Fault, parts: Parts, body: Bytes) -> Response {
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let is_watch = query.split('&').any(|word| matches!(word, "watch=true" | "watch=1"));
    let (is_get, path) = (parts.method == Method::GET, parts.uri.path().to_owned());
    let is_object = is_get && !is_watch && path.contains("/namespaces/") && path.matches('/').count() >= 6;
    let can_happen = match fault {
        Fault::Conflict => !is_get,
        Fault::Expired => is_get && query.contains("resourceVersion="),
        Fault::WatchCut => is_watch,
        Fault::Stale => is_object,
        Fault::Latency | Fault::PartialJson => !is_watch,
        Fault::Reset | Fault::TooMany | Fault::Internal | Fault::Unavailable => true,
    };
    if !(can_happen && shared.is_hit(fault)) {
        let response = forward(shared, parts, body).await;
        return if fault == Fault::Stale && is_object {
            remembered(shared, path, response, false).await
        } else {
            response
        };
    }
    match fault {
        Fault::Latency => {
            tokio::time::sleep(Duration::from_secs(1)).await;
            forward(shared, parts, body).await
        }
        Fault::Reset if shared.dice.lock().unwrap().random_bool(0.5) => cut(StatusCode::OK.into_response(), ""),
        Fault::Reset => cut(forward(shared, parts, body).await, ""),
        Fault::Conflict => status(StatusCode::CONFLICT),
        Fault::Expired => status(StatusCode::GONE),
        Fault::TooMany => too_many(),
        Fault::Internal => status(StatusCode::INTERNAL_SERVER_ERROR),
        Fault::Unavailable => status(StatusCode::SERVICE_UNAVAILABLE),
        Fault::WatchCut => forward(shared, parts, body).await.map(|body| {
            let halves = body.into_data_stream().take(1).flat_map(|part| {
                let half = part.map_err(std::io::Error::other).map(|part| part.slice(..part.len() / 2));
                // At once: a watch that says no more would be noticed only by the next bookmark, a minute later.
                futures::stream::iter([half, Err(std::io::Error::other("cut"))])
            });
            Body::from_stream(halves)
        }),
        Fault::Stale => {
            let response = forward(shared, parts, body).await;
            remembered(shared, path, response, true).await
        }
        Fault::PartialJson => {
            let (mut head, body) = forward(shared, parts, body).await.into_parts();
            let whole = axum::body::to_bytes(body, 1 << 24).await.unwrap_or_default();
            whole_body(&mut head);
            Response::from_parts(head, Body::from(whole.slice(..whole.len() / 2)))
        }
    }
}

/// An object as it is, or as it was when it was read first.
async fn remembered(shared: &Shared, path: String, response: Response, before: bool) -> Response {
    if response.status() != StatusCode::OK {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let now = axum::body::to_bytes(body, 1 << 24).await.unwrap_or_default();
    whole_body(&mut head);
    let first = shared.before.lock().unwrap().entry(path).or_insert_with(|| now.clone()).clone();
    Response::from_parts(head, Body::from(if before { first } else { now }))
}

/// A body that is there as a whole tells its length itself.
fn whole_body(head: &mut axum::http::response::Parts) {
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.remove(header::TRANSFER_ENCODING);
}

fn too_many() -> Response {
    ([(header::RETRY_AFTER, "1")], status(StatusCode::TOO_MANY_REQUESTS)).into_response()
}

/// An error in the form of the API server.
fn status(code: StatusCode) -> Response {
    let reason = match code {
        StatusCode::GONE => "Expired".to_owned(),
        code => code.canonical_reason().unwrap_or_default().replace(' ', ""),
    };
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": "bad weather", "reason": reason, "code": code.as_u16(),
    });
    (code, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
