//! A real Git server over HTTP (`git http-backend`) that can be told to misbehave.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};

/// How the server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// As it should.
    Good,
    /// As it should, after a while.
    Slow(Duration),
    /// With HTTP 503.
    Down,
    /// It says which tags there are, and gives nothing of them.
    Listing,
    /// With a page of a proxy instead of what was asked for.
    Lying,
    /// Only to this user and password.
    Wants(&'static str, &'static str),
}

/// A server of all repositories below a directory. It ends when it goes out of scope.
pub(crate) struct GitServer {
    scheme: &'static str,
    host: String,
    shared: Arc<Shared>,
    _end: DropGuard,
}

struct Shared {
    root: PathBuf,
    mood: Mutex<Mood>,
    requests: Mutex<usize>,
}

impl GitServer {
    /// Serves on a free port of loopback.
    pub(crate) async fn start(root: &Path) -> Self {
        Self::serve("http", root, |listener| listener).await
    }

    /// Serves over TLS, with a certificate that is its own authority; its path is returned too.
    pub(crate) async fn start_tls(root: &Path, dir: &Path) -> (Self, PathBuf) {
        let authority = dir.join("authority.pem");
        let tls = Tls::acceptor(&authority);
        (Self::serve("https", root, |tcp| Tls { tcp, acceptor: tls }).await, authority)
    }

    async fn serve<L>(scheme: &'static str, root: &Path, over: impl FnOnce(TcpListener) -> L) -> Self
    where
        L: Listener<Addr = SocketAddr>,
    {
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("no port");
        let host = tcp.local_addr().expect("no address").to_string();
        let shared =
            Arc::new(Shared { root: root.to_owned(), mood: Mutex::new(Mood::Good), requests: Mutex::default() });
        let routes = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let end = CancellationToken::new();
        let ended = end.clone();
        let listener = over(tcp);
        tokio::spawn(async move {
            tokio::select! {
                _ = axum::serve(listener, routes) => {}
                () = ended.cancelled() => {}
            }
        });
        Self { scheme, host, shared, _end: end.drop_guard() }
    }

    /// `host:port`, for `--allow-source`.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The URL of a repository in a directory below the root.
    pub(crate) fn url(&self, directory: &str) -> String {
        format!("{}://{}/{directory}", self.scheme, self.host)
    }

    /// Changes how it answers.
    pub(crate) fn set(&self, mood: Mood) {
        *self.shared.mood.lock().unwrap() = mood;
    }

    /// How many requests it got.
    pub(crate) fn requests(&self) -> usize {
        *self.shared.requests.lock().unwrap()
    }
}

/// Connections of TLS.
pub(crate) struct Tls {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl Tls {
    /// What comes there.
    pub(crate) fn over(tcp: TcpListener, acceptor: TlsAcceptor) -> Self {
        Self { tcp, acceptor }
    }

    /// For 127.0.0.1; writes the certificate to `authority`.
    fn acceptor(authority: &Path) -> TlsAcceptor {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("no certificate");
        std::fs::write(authority, made.cert.pem()).expect("no file");
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("no TLS").with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key);
        TlsAcceptor::from(Arc::new(config.expect("no TLS")))
    }
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

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    *shared.requests.lock().unwrap() += 1;
    let mood = shared.mood.lock().unwrap().clone();
    match mood {
        Mood::Good => {}
        Mood::Listing if request.method() == Method::GET => {}
        Mood::Slow(pause) => tokio::time::sleep(pause).await,
        Mood::Down | Mood::Listing => return (StatusCode::SERVICE_UNAVAILABLE, "down for maintenance").into_response(),
        Mood::Lying => {
            return ([(header::CONTENT_TYPE, "text/html")], "<html>Welcome to the guest network").into_response();
        }
        Mood::Wants(user, password) => {
            use base64::Engine;
            let token = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
            if given != Some(&format!("Basic {token}")) {
                let realm = [(header::WWW_AUTHENTICATE, "Basic realm=\"git\"")];
                return (StatusCode::UNAUTHORIZED, realm, "who are you?").into_response();
            }
        }
    }
    backend(&shared.root, request)
        .await
        .unwrap_or_else(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response())
}

/// Asks `git http-backend`, a CGI program.
async fn backend(root: &Path, request: Request) -> Result<Response, Box<dyn std::error::Error + Send + Sync>> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 24).await?;
    let text = |name: header::HeaderName| parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let mut child = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .env("REQUEST_METHOD", parts.method.as_str())
        .env("PATH_INFO", parts.uri.path())
        .env("QUERY_STRING", parts.uri.query().unwrap_or_default())
        .env("CONTENT_TYPE", text(header::CONTENT_TYPE))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", text(header::CONTENT_ENCODING))
        .env("REMOTE_ADDR", "127.0.0.1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    let (output, written) = tokio::join!(child.wait_with_output(), async move { stdin.write_all(&body).await });
    // It need not read all that it is given.
    drop(written);
    let output = output?.stdout;
    let end = output.windows(4).position(|four| four == b"\r\n\r\n").ok_or("no end of headers")?;
    let mut response = Response::builder();
    for line in std::str::from_utf8(&output[..end])?.lines() {
        let (name, value) = line.split_once(": ").ok_or("no header")?;
        response = match name {
            "Status" => response.status(value.split(' ').next().unwrap_or_default().parse::<u16>()?),
            _ => response.header(name, value),
        };
    }
    Ok(response.body(Body::from(output[end + 4..].to_vec()))?)
}
