//! An HTTP server on loopback that can Range, and what may go wrong with one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// How the server behaves.
#[derive(Clone, Debug)]
pub struct Mode {
    pub content: Vec<u8>,
    /// Other contents, by what their path ends with.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Answers to requests for paths that hold one of these only trickle from their middle on, until they are not among these.
    pub held: Vec<String>,
    pub etag: Option<String>,
    pub ranges: bool,
    /// Connections end after so many bytes of the body.
    pub breaks_after: Option<usize>,
    /// The length that is announced, where it is another one.
    pub announced: Option<usize>,
    pub status: Option<u16>,
    /// Between two pieces of a tenth of the content.
    pub pause: Duration,
    pub wants: Option<String>,
}

impl Mode {
    pub fn of(content: &[u8]) -> Self {
        Self {
            content: content.to_vec(),
            files: BTreeMap::new(),
            held: Vec::new(),
            etag: Some("\"1\"".into()),
            ranges: true,
            breaks_after: None,
            announced: None,
            status: None,
            pause: Duration::ZERO,
            wants: None,
        }
    }
}

pub struct Server {
    address: SocketAddr,
    mode: Arc<Mutex<Mode>>,
    asked: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub async fn new(content: &[u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mode = Arc::new(Mutex::new(Mode::of(content)));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (modes, log) = (mode.clone(), asked.clone());
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let (mode, log) = (modes.clone(), log.clone());
                tokio::spawn(async move {
                    let _ = answer(stream, &mode, &log).await;
                });
            }
        });
        Self { address, mode, asked, task }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    pub fn host(&self) -> String {
        self.address.to_string()
    }

    pub fn set(&self, change: impl FnOnce(&mut Mode)) {
        change(&mut self.mode.lock().unwrap());
    }

    /// Requests so far, each with its headers in lower case.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn answer(mut stream: TcpStream, mode: &Mutex<Mode>, log: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    log.lock().unwrap().push(head.clone());
    let path = head.split_whitespace().nth(1).unwrap().to_owned();
    let is_held = || mode.lock().unwrap().held.iter().any(|part| path.contains(part.as_str()));
    let mut own = mode.lock().unwrap().clone();
    if let Some(content) = own.files.iter().find(|(end, _)| path.ends_with(end.as_str())).map(|(_, c)| c.clone()) {
        own.content = content;
    }
    let mode = own;
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")).map(str::to_owned));
    if let Some(status) = mode.status {
        return stream.write_all(format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n").as_bytes()).await;
    }
    if mode.wants.is_some() && header("authorization") != mode.wants {
        return stream.write_all(b"HTTP/1.1 401 X\r\ncontent-length: 0\r\n\r\n").await;
    }
    let size = mode.content.len();
    let is_same = header("if-range").is_none_or(|tag| Some(tag) == mode.etag);
    let from: Option<usize> =
        header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let from = from.filter(|_| mode.ranges && is_same);
    let etag = mode.etag.as_ref().map(|tag| format!("etag: {tag}\r\n")).unwrap_or_default();
    if from.is_some_and(|from| from >= size) {
        let answer = format!("HTTP/1.1 416 X\r\ncontent-range: bytes */{size}\r\ncontent-length: 0\r\n\r\n");
        return stream.write_all(answer.as_bytes()).await;
    }
    let rest = &mode.content[from.unwrap_or(0)..];
    let length = mode.announced.unwrap_or(rest.len());
    let status = match from {
        Some(from) => format!("206 X\r\ncontent-range: bytes {from}-{}/{size}", size - 1),
        None => "200 X".to_owned(),
    };
    let answer = format!("HTTP/1.1 {status}\r\n{etag}content-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).await?;
    let rest = &rest[..mode.breaks_after.unwrap_or(rest.len()).min(rest.len())];
    let piece = (size / 10).max(1);
    let mut sent = 0;
    while sent < rest.len() {
        let trickles = sent > size / 2 && is_held();
        let (length, pause) = if trickles { (1, Duration::from_millis(500)) } else { (piece, mode.pause) };
        if trickles && sent + 1 == rest.len() {
            // The last byte would end it.
            tokio::time::sleep(pause).await;
            continue;
        }
        let end = (sent + length).min(rest.len());
        stream.write_all(&rest[sent..end]).await?;
        sent = end;
        tokio::time::sleep(pause).await;
    }
    stream.shutdown().await
}
