//! A server that takes files by PUT: with MOVE and entity tags, as `WebDAV` servers have them, and without.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Who may use it.
pub const TOKEN: &str = "quite-a-secret";

/// Its files, by their path.
pub type Files = Arc<Mutex<BTreeMap<String, Bytes>>>;

#[derive(Clone)]
struct Server {
    files: Files,
    held: Arc<Mutex<Vec<String>>>,
    holding: Arc<AtomicUsize>,
    /// Whether it knows MOVE, and conditions.
    dav: bool,
}

/// A server on loopback, which ends when it is dropped.
pub struct PutServer {
    pub files: Files,
    /// Requests that are like one of these, as `PUT /path` with one `*` in it, stop until they are not among these. Half of
    /// what is put is there already, as with a server that writes to the file itself.
    pub held: Arc<Mutex<Vec<String>>>,
    pub host: String,
    holding: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for PutServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl PutServer {
    /// One that is empty.
    pub async fn new(dav: bool) -> Self {
        let server = Server { files: Files::default(), held: Arc::default(), holding: Arc::default(), dav };
        let (files, held, holding) = (Arc::clone(&server.files), Arc::clone(&server.held), Arc::clone(&server.holding));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let app = Router::new().fallback(serve).with_state(server);
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { files, held, host, holding, task }
    }

    /// How many requests it holds now.
    pub fn holding(&self) -> usize {
        self.holding.load(Ordering::SeqCst)
    }
}

/// A request that is held, also one whose client goes away.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn etag(bytes: &Bytes) -> String {
    let digest = Sha256::digest(bytes);
    format!("\"{}\"", digest[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

impl Server {
    /// Whether the conditions hold.
    fn permits(&self, headers: &HeaderMap, there: Option<&Bytes>) -> bool {
        let get = |name: &str| headers.get(name).map(|value| value.to_str().unwrap());
        let absent = get("if-none-match") != Some("*") || there.is_none();
        let same = get("if-match").is_none_or(|tag| there.is_some_and(|bytes| etag(bytes) == tag));
        !self.dav || absent && same
    }

    fn answer(&self, method: &str, path: &str, headers: &HeaderMap, body: Bytes) -> Response {
        let mut files = self.files.lock().unwrap();
        let there = files.get(path).cloned();
        let plain = |status: StatusCode| status.into_response();
        match method {
            "OPTIONS" if self.dav => (StatusCode::OK, [("allow", "GET, HEAD, PUT, DELETE, MOVE")]).into_response(),
            "GET" | "HEAD" => match there {
                None => plain(StatusCode::NOT_FOUND),
                Some(bytes) if self.dav => ([("etag", etag(&bytes))], bytes).into_response(),
                Some(bytes) => bytes.into_response(),
            },
            "PUT" | "DELETE" if !self.permits(headers, there.as_ref()) => plain(StatusCode::PRECONDITION_FAILED),
            "PUT" => {
                files.insert(path.to_owned(), body);
                plain(StatusCode::CREATED)
            }
            "DELETE" if there.is_none() => plain(StatusCode::NOT_FOUND),
            "DELETE" => {
                files.remove(path);
                plain(StatusCode::NO_CONTENT)
            }
            "MOVE" if self.dav => {
                let to = headers["destination"].to_str().unwrap().splitn(4, '/').nth(3).unwrap();
                let to = format!("/{to}");
                assert_eq!(headers["overwrite"], "F");
                match there {
                    None => plain(StatusCode::NOT_FOUND),
                    Some(_) if files.contains_key(&to) => plain(StatusCode::PRECONDITION_FAILED),
                    Some(bytes) => {
                        files.remove(path);
                        files.insert(to, bytes);
                        plain(StatusCode::CREATED)
                    }
                }
            }
            _ => plain(StatusCode::METHOD_NOT_ALLOWED),
        }
    }

    fn holds(&self, request: &str) -> bool {
        let is_like = |like: &String| {
            let (head, tail) = like.split_once('*').unwrap();
            request.starts_with(head) && request.ends_with(tail)
        };
        self.held.lock().unwrap().iter().any(is_like)
    }
}

async fn serve(State(server): State<Server>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if parts.headers.get("authorization").is_none_or(|value| value != &format!("Bearer {TOKEN}")) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let Ok(body) = to_bytes(body, usize::MAX).await else { return StatusCode::BAD_REQUEST.into_response() };
    let asked = format!("{} {}", parts.method, parts.uri.path());
    if server.holds(&asked) {
        if parts.method == "PUT" {
            server.files.lock().unwrap().insert(parts.uri.path().to_owned(), body.slice(..body.len() / 2));
        }
        let _counted = Counted::new(&server.holding);
        while server.holds(&asked) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let mut answer = server.answer(parts.method.as_str(), parts.uri.path(), &parts.headers, body);
    if parts.method == "HEAD" {
        let body = std::mem::replace(answer.body_mut(), Body::empty());
        let length = to_bytes(body, usize::MAX).await.unwrap().len();
        answer.headers_mut().insert("content-length", length.into());
    }
    answer
}
