//! A stand-in for the API of a forge on loopback: it records what is asked and answers as it is told.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use clusterstack::core::digest::hex;
use clusterstack::io::source::Access;
use clusterstack::io::source::Credentials;
use futures::StreamExt;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What was asked.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub headers: HeaderMap,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The value in the query.
    pub fn query(&self, name: &str) -> Option<&str> {
        let (_, query) = self.path.split_once('?')?;
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }
}

type Answers = Arc<Mutex<Box<dyn FnMut(&Asked) -> Response + Send>>>;

#[derive(Clone)]
struct Shared {
    answers: Answers,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// A server that ends when it is dropped.
pub struct StandIn {
    pub host: String,
    shared: Shared,
    task: JoinHandle<()>,
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl StandIn {
    pub async fn new(answers: impl FnMut(&Asked) -> Response + Send + 'static) -> Self {
        let shared = Shared { answers: Arc::new(Mutex::new(Box::new(answers))), asked: Arc::default() };
        let app = Router::new().fallback(answer).with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { host, shared, task }
    }

    /// Changes how it answers.
    pub fn answers(&self, answers: impl FnMut(&Asked) -> Response + Send + 'static) {
        *self.shared.answers.lock().unwrap() = Box::new(answers);
    }

    /// What was asked since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.shared.asked.lock().unwrap())
    }
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let path = parts.uri.path_and_query().unwrap().to_string();
    let asked = Asked { method: parts.method.to_string(), path, headers: parts.headers };
    shared.asked.lock().unwrap().push(asked.clone());
    (shared.answers.lock().unwrap())(&asked)
}

/// A page of a list of `size` items each, with an entity tag and links as GitHub and GitLab make them.
pub fn page(asked: &Asked, base: &str, items: &[Value], size: usize) -> Response {
    let number: usize = asked.query("page").map_or(1, |page| page.parse().unwrap());
    let pages = items.len().div_ceil(size).max(1);
    let body = items.chunks(size).nth(number - 1).map_or_else(Vec::new, <[Value]>::to_vec);
    let body = serde_json::to_vec(&body).unwrap();
    let etag = format!("W/\"{}\"", hex(&Sha256::digest(&body)));
    if asked.header("if-none-match") == Some(&etag) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response();
    }
    let mut links = vec![format!("<{base}&page={pages}>; rel=\"last\"")];
    if number < pages {
        links.insert(0, format!("<{base}&page={}>; rel=\"next\"", number + 1));
    }
    let headers = [(header::ETAG, etag), (header::LINK, links.join(", "))];
    (headers, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// The content of a file, or the range of it that is asked for.
pub fn content(asked: &Asked, content: &Bytes) -> Response {
    let range = asked.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
    let Some(from) = range.map(|from| from.parse::<usize>().unwrap()) else { return content.clone().into_response() };
    let told = format!("bytes {from}-{}/{}", content.len() - 1, content.len());
    (StatusCode::PARTIAL_CONTENT, [(header::CONTENT_RANGE, told)], content.slice(from..)).into_response()
}

/// A file of which only the first `bytes` come before the connection breaks.
pub fn truncated(content: &Bytes, bytes: usize) -> Response {
    let start = content.slice(..bytes);
    let cut = async {
        // What was written before is sent first.
        tokio::time::sleep(Duration::from_millis(100)).await;
        Err(std::io::Error::other("cable cut"))
    };
    let parts = futures::stream::iter([Ok(start)]).chain(futures::stream::once(cut));
    ([(header::CONTENT_LENGTH, content.len())], Body::from_stream(parts)).into_response()
}

/// No answer at all.
pub fn silent() -> Response {
    let nothing = futures::stream::pending::<Result<Bytes, Infallible>>();
    Body::from_stream(nothing).into_response()
}

/// What a Secret with these keys gives.
pub fn access(secret: &[(&str, &str)]) -> Access {
    let data = secret.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes())).collect();
    let credentials = if secret.is_empty() { None } else { Some(Credentials::from_secret(&data).unwrap()) };
    Access { credentials, insecure: true, ..Access::default() }
}

/// A class chart, packed.
pub fn chart() -> Bytes {
    let large = (0..2_000u32).map(|n| hex(&Sha256::digest(n.to_be_bytes()))[..8].to_owned()).collect::<Vec<_>>();
    let files = [
        ("x-cluster-class/Chart.yaml", "apiVersion: v2\nname: x\nversion: v1\n".to_owned()),
        ("x-cluster-class/values.yaml", format!("key: {}\n", large.join("\"\n"))),
    ];
    let files = files.into_iter().map(|(path, text)| (path.to_owned(), Bytes::from(text))).collect();
    clusterstack::io::unpack::pack(&files).unwrap()
}

/// SHA-256 of a content.
pub fn sum(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}
