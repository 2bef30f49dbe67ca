//! A line to a source of releases on which one thing after the other goes wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// What goes wrong with one request of three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// The answer takes a second.
    Late,
    /// The connection ends without an answer.
    Reset,
    /// The connection ends in the middle of the answer.
    Cut,
    /// The answer is shorter than it should be, and seems to be whole.
    Short,
    /// Some of its bytes are others.
    Garbled,
    /// A page of a proxy comes instead of it, with 200.
    Page,
    /// 429 with `Retry-After`.
    TooMany,
    /// 500.
    Internal,
    /// 503.
    Unavailable,
}

/// A line in front of a server. It ends when it goes out of scope.
pub(crate) struct BadLine {
    host: String,
    shared: Arc<Shared>,
    _end: DropGuard,
}

struct Shared {
    backend: String,
    http: reqwest::Client,
    mishap: Mishap,
    is_fair: AtomicBool,
    requests: AtomicUsize,
    spoiled: AtomicUsize,
}

impl BadLine {
    /// In front of `host:port`.
    pub(crate) async fn start(backend: &str, mishap: Mishap) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("no port");
        let host = listener.local_addr().expect("no address").to_string();
        let shared = Arc::new(Shared {
            backend: backend.to_owned(),
            http: reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap(),
            mishap,
            is_fair: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
            spoiled: AtomicUsize::new(0),
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
        Self { host, shared, _end: end.drop_guard() }
    }

    /// `host:port`.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Nothing goes wrong any more.
    pub(crate) fn is_mended(&self) {
        self.shared.is_fair.store(true, SeqCst);
    }

    /// Requests until now, and how many of them went wrong.
    pub(crate) fn requests(&self) -> (usize, usize) {
        (self.shared.requests.load(SeqCst), self.shared.spoiled.load(SeqCst))
    }
}

/// One of three, without a period that a conversation could fall in with; the first one too: nothing was right before.
fn is_hit(number: usize) -> bool {
    let mixed = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33 & 0xffff < 0x5555 || number == 0
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let number = shared.requests.fetch_add(1, SeqCst);
    if shared.is_fair.load(SeqCst) || !is_hit(number) {
        return forward(&shared, request).await;
    }
    shared.spoiled.fetch_add(1, SeqCst);
    match shared.mishap {
        Mishap::Late => {
            tokio::time::sleep(Duration::from_secs(1)).await;
            forward(&shared, request).await
        }
        Mishap::Reset => ends(StatusCode::OK, HeaderMap::new(), Bytes::new()),
        Mishap::Cut => {
            let (head, body) = whole(forward(&shared, request).await).await;
            ends(head.status, head.headers, body.slice(..body.len() / 2))
        }
        Mishap::Short => {
            let (mut head, body) = whole(forward(&shared, request).await).await;
            head.headers.remove(header::CONTENT_LENGTH);
            Response::from_parts(head, Body::from(body.slice(..body.len() / 2)))
        }
        Mishap::Garbled => {
            let (head, body) = whole(forward(&shared, request).await).await;
            let mut bytes = body.to_vec();
            for at in [bytes.len() / 3, bytes.len() / 2] {
                bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 0x15);
            }
            Response::from_parts(head, Body::from(bytes))
        }
        Mishap::Page => ([(header::CONTENT_TYPE, "text/html")], "<html><h1>Please log in</h1></html>").into_response(),
        Mishap::TooMany => (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")], "slowly").into_response(),
        Mishap::Internal => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Mishap::Unavailable => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

async fn forward(shared: &Shared, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 26).await.unwrap_or_default();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let sent = shared.http.request(parts.method, format!("http://{}{path}", shared.backend)).headers(parts.headers);
    match sent.body(body).send().await {
        Ok(response) => {
            let (status, headers) = (response.status(), response.headers().clone());
            let mut answer = Response::new(Body::from(response.bytes().await.unwrap_or_default()));
            *answer.status_mut() = status;
            *answer.headers_mut() = headers;
            answer.headers_mut().remove(header::TRANSFER_ENCODING);
            answer
        }
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

async fn whole(response: Response) -> (axum::http::response::Parts, Bytes) {
    let (head, body) = response.into_parts();
    (head, axum::body::to_bytes(body, 1 << 26).await.unwrap_or_default())
}

/// These bytes, then the connection ends.
fn ends(status: StatusCode, headers: HeaderMap, bytes: Bytes) -> Response {
    let parts = futures::stream::iter([Ok(bytes), Err(std::io::Error::other("cut"))]);
    let mut response = Response::new(Body::from_stream(parts.then(|part| async { part })));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response.headers_mut().remove(header::CONTENT_LENGTH);
    response
}
