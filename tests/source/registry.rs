//! A real OCI registry on loopback, `hack/registry`, and something in front of it that lies.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use clusterstack::core::artifact::{Artifact, MANIFEST};
use clusterstack::core::name::ReleaseName;
use clusterstack::io::registry::Registry;
use clusterstack::io::source::SourceError;
use clusterstack::io::store::Digest;
use clusterstack::io::unpack;
use futures::StreamExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A registry that ends with this, or with the test's process.
pub struct RegistryServer {
    /// `host:port`.
    pub host: String,
    child: Child,
}

impl Drop for RegistryServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RegistryServer {
    /// Starts one that stores in `dir`; `None`, and says so, where it can't be built.
    pub fn start(dir: &Path, flags: &[&str]) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("hack/registry/build");
        let built = Command::new(&script).stderr(Stdio::inherit()).output().expect("no hack/registry/build");
        if !built.status.success() {
            eprintln!("SKIPPED: there is no registry: {} failed", script.display());
            return None;
        }
        let program = PathBuf::from(String::from_utf8(built.stdout).expect("no path").trim());
        let mut command = Command::new(program);
        // It ends when its input does: when this process is gone.
        command.arg("-dir").arg(dir).args(flags).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("no registry");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("no output")).read_line(&mut line).expect("no line");
        let host = line.split_whitespace().next().expect("the registry did not start").to_owned();
        Some(Self { host, child })
    }
}

/// The assets of a release: a class chart with `templates`, and the metadata.
pub fn assets(tag: &str, templates: &str) -> BTreeMap<String, Bytes> {
    let name: ReleaseName = tag.parse().expect("no release name");
    let chart = format!("apiVersion: v2\nname: {}-cluster-class\nversion: {}\n", name.stem(), name.version);
    let files =
        [("Chart.yaml", chart.as_str()), ("values.yaml", "color: blue\n"), ("templates/objects.yaml", templates)];
    let root = format!("{}-cluster-class", name.stem());
    let files = files.map(|(path, text)| (format!("{root}/{path}"), Bytes::from(text.to_owned())));
    let packed = unpack::pack(&files.into_iter().collect()).expect("no archive");
    let metadata = format!(
        "apiVersion: metadata.clusterstack.x-k8s.io/v1alpha1\nversions:\n  clusterStack: {0}\n  kubernetes: v{1}.7\n  \
         components:\n    clusterAddon: {0}\n",
        name.version, name.kubernetes
    );
    BTreeMap::from([
        ("metadata.yaml".to_owned(), Bytes::from(metadata)),
        (format!("{root}-{}.tgz", name.version), packed),
    ])
}

/// Pushes files as `tag`, whatever that named before; gives the manifest's digest.
pub async fn push(registry: &Registry, tag: &str, files: &BTreeMap<String, Bytes>) -> Result<Digest, SourceError> {
    let artifact = Artifact::of_release(&"docker-x-1-34-v1".parse().expect("no name"), files);
    for content in artifact.blobs.values() {
        registry.push_blob(content).await?;
    }
    registry.push_manifest(tag, MANIFEST, artifact.manifest).await
}

/// How the liar answers.
#[derive(Clone, Debug, Default)]
pub enum Lie {
    /// As the registry does.
    #[default]
    None,
    /// With other bytes of every blob.
    Blob,
    /// With more bytes of every blob than there are.
    LongBlob,
    /// With other bytes of every manifest.
    Manifest,
    /// With this digest for every tag.
    Digest(String),
    /// As if it had no blob of this digest.
    Lost(String),
    /// With so many bytes of a blob; then it breaks off.
    Cut(usize),
    /// With so many bytes of a blob; then it says nothing any more.
    Stall(usize),
    /// Without what `Range` asks for.
    NoRange,
    /// With another range than was asked for.
    OtherRange,
    /// By sending on to another server for blobs.
    Elsewhere(String),
    /// With this status, and this header.
    Status(u16, &'static str, String),
    /// With this quota, and what is left of it.
    Quota(&'static str, &'static str),
    /// After this time.
    Slow(Duration),
    /// With this page of tags and this `Link`.
    Page(String, String),
    /// By this challenge to whoever does not show this in `Authorization`.
    Login(&'static str, &'static str),
}

/// What was asked.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Method and path.
    pub what: String,
    /// Header `Authorization`.
    pub authorization: Option<String>,
    /// Header `Range`.
    pub range: Option<String>,
}

#[derive(Clone)]
struct Shared {
    registry: String,
    lie: Arc<Mutex<Lie>>,
    asked: Arc<Mutex<Vec<Asked>>>,
    client: reqwest::Client,
}

/// A server in front of a registry. It ends when it is dropped.
pub struct Liar {
    /// `host:port`.
    pub host: String,
    shared: Shared,
    task: JoinHandle<()>,
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Liar {
    /// Stands in front of the registry at `registry`.
    pub async fn new(registry: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy();
        let client = client.build().expect("no client");
        let shared = Shared { registry: registry.to_owned(), lie: Arc::default(), asked: Arc::default(), client };
        let routes = Router::new().fallback(answer).with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("no port");
        let host = listener.local_addr().expect("no address").to_string();
        let task = tokio::spawn(async move { axum::serve(listener, routes).await.expect("no server") });
        Self { host, shared, task }
    }

    /// Changes how it answers.
    pub fn set(&self, lie: Lie) {
        *self.shared.lie.lock().expect("no lock") = lie;
    }

    /// What was asked since this was last called.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.shared.asked.lock().expect("no lock"))
    }
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let lie = shared.lie.lock().expect("no lock").clone();
    let (parts, body) = request.into_parts();
    let header = |name: HeaderName| parts.headers.get(name).and_then(|v| v.to_str().ok()).map(ToOwned::to_owned);
    let path = parts.uri.path().to_owned();
    shared.asked.lock().expect("no lock").push(Asked {
        what: format!("{} {}", parts.method, parts.uri),
        authorization: header(header::AUTHORIZATION),
        range: header(header::RANGE),
    });
    let is_blob = parts.method == Method::GET && path.contains("/blobs/");
    let mut headers = parts.headers;
    match &lie {
        Lie::Status(status, name, value) => {
            let value = HeaderValue::from_str(value).expect("no header");
            return respond(*status, &[(HeaderName::from_static(name), value)], Body::empty());
        }
        Lie::Lost(digest) if is_blob && path.ends_with(digest) => return respond(404, &[], Body::empty()),
        Lie::Elsewhere(host) if is_blob => {
            let to = HeaderValue::from_str(&format!("http://{host}{path}")).expect("no header");
            return respond(307, &[(header::LOCATION, to)], Body::empty());
        }
        Lie::Page(tags, link) if path.ends_with("/tags/list") => {
            let link = HeaderValue::from_str(link).expect("no header");
            return respond(200, &[(header::LINK, link)], Body::from(tags.clone()));
        }
        Lie::Login(challenge, expected)
            if headers.get(header::AUTHORIZATION).is_none_or(|shown| shown != *expected) =>
        {
            let challenge = HeaderValue::from_static(challenge);
            return respond(401, &[(header::WWW_AUTHENTICATE, challenge)], Body::empty());
        }
        Lie::Slow(time) => tokio::time::sleep(*time).await,
        Lie::NoRange => drop(headers.remove(header::RANGE)),
        _ => {}
    }
    // `Host` stays, so that the registry names the liar when it says where to send a blob.
    headers.remove(header::CONTENT_LENGTH);
    let body = to_bytes(body, 1 << 30).await.expect("no body");
    let url = format!("http://{}{}", shared.registry, parts.uri);
    let real = shared.client.request(parts.method, url).headers(headers).body(body).send().await.expect("no registry");
    lied(&lie, &path, is_blob, real).await
}

/// The registry's answer, bent.
async fn lied(lie: &Lie, path: &str, is_blob: bool, real: reqwest::Response) -> Response {
    let status = real.status();
    let mut headers = real.headers().clone();
    headers.remove(header::TRANSFER_ENCODING);
    if let Lie::Quota(limit, remaining) = lie {
        headers.insert("ratelimit-limit", HeaderValue::from_static(limit));
        headers.insert("ratelimit-remaining", HeaderValue::from_static(remaining));
    }
    let body = if status == StatusCode::OK && real.content_length() == Some(0) {
        // The answer to HEAD keeps its length.
        return respond_with(status.as_u16(), bent_digest(lie, headers), Body::empty());
    } else {
        real.bytes().await.expect("no body")
    };
    let mut bytes = body.to_vec();
    match lie {
        Lie::Blob if is_blob => bytes.iter_mut().for_each(|byte| *byte ^= 1),
        Lie::LongBlob if is_blob => bytes.extend_from_slice(b"and more"),
        Lie::Manifest if path.contains("/manifests/sha256:") => bytes.push(b' '),
        Lie::OtherRange if is_blob && status == StatusCode::PARTIAL_CONTENT => {
            headers.insert(header::CONTENT_RANGE, HeaderValue::from_static("bytes 1-2/3"));
        }
        Lie::Cut(length) | Lie::Stall(length) if is_blob && bytes.len() > *length => {
            let first = Bytes::copy_from_slice(&bytes[..*length]);
            let head = futures::stream::once(async { Ok::<_, std::io::Error>(first) });
            let stall = matches!(lie, Lie::Stall(_));
            let tail = futures::stream::once(async move {
                if stall {
                    tokio::time::sleep(Duration::from_secs(600)).await;
                }
                Err(std::io::Error::other("broken off"))
            });
            return respond_with(status.as_u16(), headers, Body::from_stream(head.chain(tail)));
        }
        _ => {}
    }
    headers.remove(header::CONTENT_LENGTH);
    respond_with(status.as_u16(), bent_digest(lie, headers), Body::from(bytes))
}

fn bent_digest(lie: &Lie, mut headers: HeaderMap) -> HeaderMap {
    if let Lie::Digest(digest) = lie {
        headers.insert("docker-content-digest", HeaderValue::from_str(digest).expect("no header"));
    }
    headers
}

fn respond(status: u16, headers: &[(HeaderName, HeaderValue)], body: Body) -> Response {
    respond_with(status, headers.iter().cloned().collect(), body)
}

fn respond_with(status: u16, headers: HeaderMap, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).expect("no status");
    *response.headers_mut() = headers;
    response
}
