//! Serves the logs of builds of this process to who may read the image's object.
//!
//! The API server's proxy does not say who asks. So each log has a path that can't be guessed: the operator writes it to the
//! status of the image's object, and who may read that may read the log.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use axum::Router;
use axum::extract::{Path as UrlPath, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use super::task::{self, log_path};
use crate::api::image_release::LogRecord;
use crate::core::image::log::kept;

/// Header of an answer: which file its end is in.
pub const FILE: &str = "x-log-file";
/// Header of an answer: where in that file its end is, in bytes.
pub const OFFSET: &str = "x-log-offset";
/// Header of an answer that does not begin where it was asked to: what was there is gone.
pub const ANEW: &str = "x-log-anew";

/// Bytes of an answer at most.
const PART: u64 = 256 * 1024;
/// Where a pod finds its namespace.
const NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The pod that this process runs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Pod {
    /// By the environment: `POD_NAME`, `POD_NAMESPACE`, or what every pod has. `None` outside of a cluster.
    pub fn of_environment() -> Option<Self> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let name = set("POD_NAME").or_else(|| set("KUBERNETES_SERVICE_HOST").and_then(|_| set("HOSTNAME")))?;
        let namespace = set("POD_NAMESPACE").or_else(|| fs::read_to_string(NAMESPACE).ok())?;
        Some(Self { namespace: namespace.trim().to_owned(), name })
    }
}

/// The logs of this process's builds.
pub struct Logs {
    root: PathBuf,
    pod: Option<Pod>,
    port: OnceLock<u16>,
    key: [u8; 32],
}

impl Logs {
    /// Those below the root of the work directories.
    pub fn new(root: PathBuf, pod: Option<Pod>) -> Arc<Self> {
        Arc::new(Self { root, pod, port: OnceLock::new(), key: rand::random() })
    }

    /// Says on which port they are served.
    pub fn served_at(&self, port: u16) {
        let _ = self.port.set(port);
    }

    /// Where the log of a build is read; `None` where this process is no pod or serves nothing.
    pub fn record(&self, namespace: &str, name: &str, inputs: &str) -> Option<LogRecord> {
        let (pod, port) = (self.pod.clone()?, *self.port.get()?);
        let key = URL_SAFE_NO_PAD.encode(self.mac(namespace, name, inputs)?.finalize().into_bytes());
        let query = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("inputs", inputs)
            .append_pair("key", &key)
            .finish();
        let path = format!("/images/{namespace}/{name}/log?{query}");
        Some(LogRecord { namespace: pod.namespace, pod: pod.name, port: Some(port), path })
    }

    /// Removes the log of a build, by its namespace and inputs.
    pub fn forget(&self, namespace: &str, inputs: &str) {
        let log = log_path(&self.root, namespace, inputs);
        for file in [log.with_extension("log.1"), log] {
            remove(&file);
        }
    }

    /// Removes logs that are too old, or too many: see [`kept::doomed`]. Those of `running` builds stay,
    /// which are named by namespace and inputs.
    pub fn sweep(&self, running: &HashSet<(String, String)>) {
        let Ok(entries) = fs::read_dir(task::logs(&self.root)) else { return };
        let path = |(namespace, inputs): &(String, String)| log_path(&self.root, namespace, inputs);
        let running: HashSet<PathBuf> = running.iter().map(path).collect();
        let found = entries.flatten().filter_map(|entry| {
            let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            let age = metadata.modified().ok()?.elapsed().unwrap_or_default();
            let path = entry.path();
            let is_running = running.contains(&path) || running.contains(&path.with_extension(""));
            (!is_running).then_some(kept::LogFile { path, age, size: metadata.len() })
        });
        for path in kept::doomed(found.collect()) {
            tracing::debug!(log = %path.display(), "the log of a build is removed: it is old, or there are too many");
            remove(&path);
        }
    }

    fn mac(&self, namespace: &str, name: &str, inputs: &str) -> Option<Hmac<Sha256>> {
        let text = [namespace, name, inputs].join("\0");
        Hmac::<Sha256>::new_from_slice(&self.key).ok().map(|mac| mac.chain_update(text))
    }

    fn is_allowed(&self, namespace: &str, name: &str, asked: &Asked) -> bool {
        let Ok(key) = URL_SAFE_NO_PAD.decode(&asked.key) else { return false };
        self.mac(namespace, name, &asked.inputs).is_some_and(|mac| mac.verify_slice(&key).is_ok())
    }
}

/// A log that can't be removed is removed another time.
fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(log = %path.display(), %error, "the log of a build can't be removed");
        }
        _ => {}
    }
}

/// Routes of the logs.
pub fn routes(logs: Arc<Logs>) -> Router {
    Router::new().route("/images/{namespace}/{name}/log", get(answer)).with_state(logs)
}

/// What is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    inputs: String,
    key: String,
    file: String,
    offset: u64,
}

impl Asked {
    fn of(query: &str) -> Self {
        let mut asked = Self::default();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            match name.as_ref() {
                "inputs" => asked.inputs = value.into_owned(),
                "key" => asked.key = value.into_owned(),
                "file" => asked.file = value.into_owned(),
                "offset" => asked.offset = value.parse().unwrap_or_default(),
                _ => {}
            }
        }
        asked
    }
}

type Answer = (StatusCode, HeaderMap, Vec<u8>);

async fn answer(
    State(logs): State<Arc<Logs>>,
    UrlPath((namespace, name)): UrlPath<(String, String)>,
    RawQuery(query): RawQuery,
) -> Answer {
    let asked = Asked::of(&query.unwrap_or_default());
    let refused = |code, text: &str| (code, HeaderMap::new(), text.as_bytes().to_vec());
    if !logs.is_allowed(&namespace, &name, &asked) {
        let text = "this is no path of this process: read it from status.log of the ProviderNodeImageRelease\n";
        return refused(StatusCode::GONE, text);
    }
    let path = log_path(&logs.root, &namespace, &asked.inputs);
    match tokio::task::spawn_blocking(move || part(&path, &asked.file, asked.offset)).await {
        Ok(Ok(part)) => (StatusCode::OK, part.headers(), part.bytes),
        Ok(Err(error)) => {
            tracing::warn!(%error, namespace, image = name, "a log can't be read");
            refused(StatusCode::INTERNAL_SERVER_ERROR, "the log can't be read\n")
        }
        Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "the log can't be read\n"),
    }
}

/// A part of a log, of whole lines.
#[derive(Debug, Default, PartialEq, Eq)]
struct Part {
    /// The file that its end is in; none where there is no log yet.
    file: String,
    /// Where in that file.
    next: u64,
    /// Whether it does not begin where it was asked to.
    anew: bool,
    bytes: Vec<u8>,
}

impl Part {
    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Ok(file) = HeaderValue::from_str(&self.file) {
            headers.insert(FILE, file);
        }
        headers.insert(OFFSET, HeaderValue::from(self.next));
        if self.anew {
            headers.insert(ANEW, HeaderValue::from_static("true"));
        }
        headers
    }
}

/// A file of a log.
struct Piece {
    file: File,
    id: String,
    size: u64,
}

impl Piece {
    fn open(path: &Path) -> std::io::Result<Option<Self>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        // A number is given again; the time of birth is not, where there is one.
        let born = metadata.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let id = format!("{:x}-{:x}", metadata.ino(), born.map_or(0, |at| at.as_nanos()));
        Ok(Some(Self { file, id, size: metadata.len() }))
    }

    fn read(&mut self, offset: u64) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(offset))?;
        self.file.by_ref().take(PART).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// What comes in a log behind `offset` of `file`; from its beginning where that file is none of it.
fn part(path: &Path, file: &str, offset: u64) -> std::io::Result<Part> {
    // The newer one first: what is put aside meanwhile is then seen twice, not never.
    let newer = Piece::open(path)?;
    let older = Piece::open(&path.with_extension("log.1"))?;
    let is_same = |piece: &Piece| newer.as_ref().is_some_and(|newer| newer.id == piece.id);
    let older = older.filter(|piece| !is_same(piece));
    let mut pieces: Vec<Piece> = older.into_iter().chain(newer).collect();
    let known = pieces.iter().position(|piece| piece.id == file && offset <= piece.size);
    let anew = known.is_none() && !file.is_empty();
    let (first, mut from) = known.map_or((0, 0), |at| (at, offset));
    let count = pieces.len();
    for (at, piece) in pieces.iter_mut().enumerate().skip(first) {
        let mut bytes = piece.read(from)?;
        let is_last = at + 1 == count;
        if is_last && bytes.last() != Some(&b'\n') {
            // Its end is about to be written, unless it is longer than a part.
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            bytes.truncate(if whole == 0 && bytes.len() as u64 == PART { bytes.len() } else { whole });
        }
        if is_last || !bytes.is_empty() {
            return Ok(Part { file: piece.id.clone(), next: from + bytes.len() as u64, anew, bytes });
        }
        from = 0;
    }
    Ok(Part { anew, ..Part::default() })
}

#[cfg(test)]
mod tests;
