//! A proxy in front of the API server that can make bad weather.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use kube::Client;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
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
    /// Clusters can't be listed.
    NoClusters,
}

/// A proxy that serves plain HTTP on loopback, with the rights of the administrator. It ends when it goes out of scope.
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
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let weather = *shared.weather.lock().unwrap();
    if weather == Weather::NoClusters && request.uri().path().ends_with("/clusters") {
        shared.spoiled.fetch_add(1, Ordering::Relaxed);
        return status(StatusCode::FORBIDDEN);
    }
    let turn = match weather {
        Weather::Fair | Weather::NoClusters => 63,
        Weather::Storm => shared.dice.lock().unwrap().random_range(0..64),
        Weather::Down => 8,
    };
    if turn < 14 {
        shared.spoiled.fetch_add(1, Ordering::Relaxed);
    }
    match turn {
        0..=7 => return ([(header::RETRY_AFTER, "1")], status(StatusCode::TOO_MANY_REQUESTS)).into_response(),
        8 => return status(StatusCode::INTERNAL_SERVER_ERROR),
        9..=12 => tokio::time::sleep(Duration::from_millis(500)).await,
        _ => {}
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, 1 << 24).await else { return StatusCode::BAD_REQUEST.into_response() };
    let forwarded = axum::http::Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
    match shared.client.send(forwarded).await {
        // The request was carried out, but its answer does not arrive.
        Ok(response) if turn == 13 => response.map(|_| {
            let cut = futures::stream::iter([Ok("{\"kind\""), Err(std::io::Error::other("cut"))]);
            Body::from_stream(cut.then(|part| async { part }))
        }),
        Ok(response) => response.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

/// An error in the form of the API server.
fn status(code: StatusCode) -> Response {
    let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": "bad weather", "reason": reason, "code": code.as_u16(),
    });
    (code, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
