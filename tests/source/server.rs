//! A real Git server on loopback: `git http-backend`, and what may go wrong with one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use futures::{StreamExt, stream};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How the server answers.
#[derive(Clone, Debug, Default)]
pub enum Mode {
    /// As a Git server does.
    #[default]
    Good,
    /// As a Git server does for who knows the header `Authorization`.
    Login(String),
    /// Never.
    Silent,
    /// With this status.
    Status(u16),
    /// With this status and this `Retry-After`.
    Later(u16, &'static str),
    /// With a page for people.
    Page,
    /// By sending on to another server.
    Elsewhere(String),
    /// By sending on to what begins so.
    To(String),
    /// The pack ends in the middle, in good order or not.
    Half(bool),
    /// The pack stops in the middle, and the connection stays.
    Stalls,
    /// The pack is preceded by words without end.
    Endless,
    /// The pack says that it holds so many objects.
    Claims(u32),
    /// With this text to whatever is asked.
    Text(Vec<u8>),
}

/// What was asked.
#[derive(Clone, Debug)]
pub struct Asked {
    pub what: String,
    pub authorization: Option<String>,
    pub body: Bytes,
}

#[derive(Clone)]
struct Shared {
    root: PathBuf,
    mode: Arc<Mutex<Mode>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// A server that ends when it is dropped.
pub struct Server {
    scheme: &'static str,
    pub host: String,
    shared: Shared,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Serves the repositories in `root`.
    pub async fn new(root: PathBuf) -> Self {
        let shared = Shared { root, mode: Arc::default(), asked: Arc::default() };
        let app = Router::new().fallback(answer).with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { scheme: "http", host, shared, task }
    }

    /// The same over TLS.
    pub async fn with_tls(root: PathBuf, acceptor: TlsAcceptor) -> Self {
        let shared = Shared { root, mode: Arc::default(), asked: Arc::default() };
        let app = Router::new().fallback(answer).with_state(shared.clone());
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = tcp.local_addr().unwrap().to_string();
        let task = tokio::spawn(async move { axum::serve(Tls { tcp, acceptor }, app).await.unwrap() });
        Self { scheme: "https", host, shared, task }
    }

    /// URL of a repository.
    pub fn url(&self, repository: &str) -> String {
        format!("{}://{}/{repository}", self.scheme, self.host)
    }

    /// Changes how it answers.
    pub fn answers(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap() = mode;
    }

    /// What was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let authorization = parts.headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
    let asked = Asked {
        what: format!("{} {}", parts.method, parts.uri),
        authorization: authorization.clone(),
        body: body.clone(),
    };
    shared.asked.lock().unwrap().push(asked);
    let mode = shared.mode.lock().unwrap().clone();
    match mode {
        Mode::Good => {}
        Mode::Login(expected) if authorization.as_deref() == Some(&expected) => {}
        Mode::Login(_) => {
            return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Basic realm=\"git\"")]).into_response();
        }
        Mode::Silent => tokio::time::sleep(Duration::from_secs(3600)).await,
        Mode::Status(code) => return StatusCode::from_u16(code).unwrap().into_response(),
        Mode::Later(code, told) => {
            return (StatusCode::from_u16(code).unwrap(), [(header::RETRY_AFTER, told)]).into_response();
        }
        Mode::Page => return ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], "Sign in").into_response(),
        Mode::Elsewhere(host) => {
            let location = format!("http://{host}{}", parts.uri);
            return (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, location)]).into_response();
        }
        Mode::To(place) => {
            let location = format!("{place}{}", parts.uri);
            return (StatusCode::FOUND, [(header::LOCATION, location)]).into_response();
        }
        Mode::Half(_) | Mode::Stalls | Mode::Endless | Mode::Claims(_) if parts.method == Method::GET => {}
        Mode::Half(in_order) => {
            let whole = backend(&shared.root, parts.method.as_ref(), &parts.uri, &parts.headers, &body).await;
            return half(whole, Some(in_order)).await;
        }
        Mode::Stalls => {
            let whole = backend(&shared.root, parts.method.as_ref(), &parts.uri, &parts.headers, &body).await;
            return half(whole, None).await;
        }
        Mode::Claims(count) => {
            let whole = backend(&shared.root, parts.method.as_ref(), &parts.uri, &parts.headers, &body).await;
            let (parts, body) = whole.into_parts();
            let mut body = to_bytes(body, 1 << 24).await.unwrap().to_vec();
            if let Some(at) = body.windows(8).position(|bytes| bytes == b"PACK\0\0\0\x02") {
                body[at + 8..at + 12].copy_from_slice(&count.to_be_bytes());
            }
            return Response::from_parts(parts, Body::from(body));
        }
        Mode::Endless => {
            let words = format!("{:04x}\x02{}", 1005, "x".repeat(1000)).into_bytes();
            // First it is told what is shallow, then it asks again and says that it is done.
            let done = body.ends_with(b"0009done\n");
            let start = if done { Bytes::from_static(b"0008NAK\n") } else { Bytes::from_static(b"0000") };
            let start = stream::once(async { start });
            let body = start.chain(stream::repeat(Bytes::from(words))).map(Ok::<_, std::io::Error>);
            let kind = "application/x-git-upload-pack-result";
            return ([(header::CONTENT_TYPE, kind)], Body::from_stream(body)).into_response();
        }
        Mode::Text(text) => {
            let kind = "application/x-git-upload-pack-advertisement";
            return ([(header::CONTENT_TYPE, kind)], text).into_response();
        }
    }
    backend(&shared.root, parts.method.as_ref(), &parts.uri, &parts.headers, &body).await
}

/// The first half of an answer, then its end: in order, or not, or never.
async fn half(whole: Response, in_order: Option<bool>) -> Response {
    let (parts, body) = whole.into_parts();
    let body = to_bytes(body, 1 << 24).await.unwrap();
    let first = stream::once({
        let half = body.slice(..body.len() / 2);
        async { Ok::<_, std::io::Error>(half) }
    });
    let body = match in_order {
        Some(true) => Body::from_stream(first),
        Some(false) => Body::from_stream(first.chain(stream::once(async { Err(std::io::Error::other("broken")) }))),
        None => Body::from_stream(first.chain(stream::pending())),
    };
    Response::from_parts(parts, body)
}

/// Connections of TLS.
struct Tls {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let Ok((stream, address)) = self.tcp.accept().await else { continue };
            // Who does not trust us hangs up here.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// Git's own server side, by CGI.
async fn backend(root: &PathBuf, method: &str, uri: &axum::http::Uri, headers: &HeaderMap, body: &[u8]) -> Response {
    let header = |name: &str| headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    let mut child = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .env("PATH_INFO", uri.path())
        .env("QUERY_STRING", uri.query().unwrap_or_default())
        .env("REQUEST_METHOD", method)
        .env("CONTENT_TYPE", header("content-type"))
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("HTTP_GIT_PROTOCOL", header("git-protocol"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(body).await.unwrap();
    drop(input);
    let output = child.wait_with_output().await.unwrap().stdout;
    let end = output.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let mut response = Response::builder();
    for line in std::str::from_utf8(&output[..end]).unwrap().lines() {
        let (name, value) = line.split_once(": ").unwrap();
        response = match name {
            "Status" => response.status(value[..3].parse::<u16>().unwrap()),
            _ => response.header(name, value),
        };
    }
    response.body(Body::from(output[end + 4..].to_vec())).unwrap()
}
