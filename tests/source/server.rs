//! A real Git server on loopback: `git http-backend`, and what may go wrong with one.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinHandle;

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
    /// By sending on to another server.
    Elsewhere(String),
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
        Self { host, shared, task }
    }

    /// URL of a repository.
    pub fn url(&self, repository: &str) -> String {
        format!("http://{}/{repository}", self.host)
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
        Mode::Elsewhere(host) => {
            let location = format!("http://{host}{}", parts.uri);
            return (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, location)]).into_response();
        }
        Mode::Text(text) => {
            let kind = "application/x-git-upload-pack-advertisement";
            return ([(header::CONTENT_TYPE, kind)], text).into_response();
        }
    }
    backend(&shared.root, parts.method.as_ref(), &parts.uri, &parts.headers, &body).await
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
