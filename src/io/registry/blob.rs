//! Blobs: downloaded to a file that outlives the process, so that a download that broke off goes on where it ended.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::StreamExt;
use http::header::{CONTENT_RANGE, HeaderValue, RANGE};
use http::{Method, StatusCode};
use reqwest::Response;
use tokio::sync::mpsc;

use super::{Ask, Registry};
use crate::core::limits::TooLarge;
use crate::io::source::SourceError;
use crate::io::store::Digest;

const ACTION: &str = "downloading from";
/// How often in a row a download may break off without a byte more.
const STUCK: usize = 3;
/// How often a blob is begun anew that turned out wrong.
const ANEW: usize = 1;
/// From which age on a part that nobody writes is left over.
const STALE: Duration = Duration::from_hours(24);
/// Bytes of all parts, where nobody says otherwise.
pub(super) const PARTS: u64 = 512 << 20;
/// How often a part that somebody else writes is looked at.
const BUSY: Duration = Duration::from_millis(100);
/// Pieces that may wait for the disk.
const PIECES: usize = 16;

/// The part of a blob that is there. It is locked, so that one process and one task write it.
struct Part {
    file: File,
    path: PathBuf,
    length: u64,
}

/// How one request ended.
enum Ended {
    /// The server has no more.
    Whole,
    /// It broke off.
    Broken(SourceError),
    /// What is there does not fit, and must go.
    Wrong(String),
}

impl Registry {
    /// The blob `digest` of `size` bytes, both checked.
    ///
    /// # Errors
    /// It is not there, is another one, or the registry does not answer as it should. What was downloaded stays, and the
    /// next call goes on there.
    pub async fn blob(&self, digest: &Digest, size: u64, limit: u64) -> Result<Bytes, SourceError> {
        if size > limit {
            let limit = TooLarge { what: "its size in bytes".to_owned(), limit };
            return Err(SourceError::TooLarge { of: format!("blob {digest}"), limit });
        }
        let mut part = self.part(digest, size).await?;
        let (mut stuck, mut anew) = (0, 0);
        loop {
            let begun_at = part.length;
            let ended = match part.length.cmp(&size) {
                Ordering::Equal => Ended::Whole,
                Ordering::Greater => Ended::Wrong(longer(size)),
                Ordering::Less => self.download(&mut part, digest, size).await?,
            };
            let problem = match ended {
                Ended::Whole if part.length < size => {
                    let problem = format!("it ends after {} of {size} bytes", part.length);
                    let error = SourceError::Unreachable { action: ACTION, url: self.repository.to_string(), problem };
                    stuck = if part.length > begun_at { 0 } else { stuck + 1 };
                    if stuck >= STUCK {
                        return Err(error);
                    }
                    continue;
                }
                Ended::Broken(error) => {
                    stuck = if part.length > begun_at { 0 } else { stuck + 1 };
                    if stuck >= STUCK {
                        return Err(error);
                    }
                    continue;
                }
                Ended::Wrong(problem) => problem,
                Ended::Whole => {
                    let (back, bytes) = self.local(part, Part::read).await?;
                    part = back;
                    let found = Digest::of(&bytes);
                    if found == *digest && bytes.len() as u64 == size {
                        // It is in memory now; the store keeps what is made of it.
                        let _ = fs::remove_file(&part.path);
                        return Ok(bytes);
                    }
                    format!("its digest is {found}, not {digest}")
                }
            };
            (part, ()) = self.local(part, Part::clear).await?;
            anew += 1;
            if anew > ANEW {
                let _ = fs::remove_file(&part.path);
                return Err(self.damaged(&format!("blob {digest}"), problem));
            }
        }
    }

    /// Opens what is there of a blob of `size` bytes, when nobody else writes it.
    async fn part(&self, digest: &Digest, size: u64) -> Result<Part, SourceError> {
        let room = self.parts.saturating_sub(size);
        // Who has the rights to one repository has none to what was downloaded of another.
        let name = format!("{}-{}", digest.to_string().trim_start_matches("sha256:"), self.id);
        loop {
            let (scratch, name) = (self.scratch.clone(), name.clone());
            let opened = tokio::task::spawn_blocking(move || Part::open(&scratch, &name, room)).await;
            let opened = opened.map_err(|error| self.disk(&error.to_string()))?;
            match opened.map_err(|error| self.disk(&error.to_string()))? {
                Some(part) => return Ok(part),
                None => tokio::time::sleep(BUSY).await,
            }
        }
    }

    /// One request for the rest of a blob.
    async fn download(&self, part: &mut Part, digest: &Digest, size: u64) -> Result<Ended, SourceError> {
        let mut ask = Ask::get(ACTION, self.url(&format!("blobs/{digest}"))?);
        if part.length > 0 {
            let range = format!("bytes={}-", part.length);
            ask.headers.insert(RANGE, HeaderValue::from_str(&range).map_err(|error| self.disk(&error.to_string()))?);
        }
        let response = match self.ask(&ask).await {
            Err(error @ SourceError::Unreachable { .. }) => return Ok(Ended::Broken(error)),
            other => other?,
        };
        match response.status() {
            StatusCode::PARTIAL_CONTENT if continues(&response, part.length, size) => {}
            StatusCode::PARTIAL_CONTENT if part.length > 0 => {
                return Ok(Ended::Wrong("the registry sends another range than was asked for".to_owned()));
            }
            StatusCode::OK => part.clear().map_err(|error| self.disk(&error.to_string()))?,
            StatusCode::RANGE_NOT_SATISFIABLE => {
                return Ok(Ended::Wrong("the registry has no more than what is there already".to_owned()));
            }
            StatusCode::NOT_FOUND => {
                return Err(self.damaged(&format!("blob {digest}"), "the registry has no such blob".to_owned()));
            }
            status if status.is_server_error() => {
                return match self.refusal(ACTION, response).await {
                    // It says when it may be asked again.
                    error @ SourceError::RateLimited { .. } => Err(error),
                    error => Ok(Ended::Broken(error)),
                };
            }
            _ => return Err(self.refusal(ACTION, response).await),
        }
        self.receive(part, response, size).await
    }

    /// Writes an answer's body behind what is there, on a thread of its own.
    async fn receive(&self, part: &mut Part, response: Response, size: u64) -> Result<Ended, SourceError> {
        let url = response.url().clone();
        let mut file = part.file.try_clone().map_err(|error| self.disk(&error.to_string()))?;
        let (sender, mut pieces) = mpsc::channel::<Bytes>(PIECES);
        let writer = tokio::task::spawn_blocking(move || -> io::Result<()> {
            // The clone keeps the lock until the last piece is written, also when nobody waits for this any more.
            while let Some(piece) = pieces.blocking_recv() {
                file.write_all(&piece)?;
            }
            Ok(())
        });
        let mut stream = response.bytes_stream();
        let mut ended = Ended::Whole;
        while let Some(piece) = stream.next().await {
            match piece {
                Err(error) => {
                    ended = Ended::Broken(self.http.failed(ACTION, &url, &error));
                    break;
                }
                Ok(piece) if part.length + piece.len() as u64 > size => {
                    ended = Ended::Wrong(longer(size));
                    break;
                }
                Ok(piece) => {
                    part.length += piece.len() as u64;
                    if sender.send(piece).await.is_err() {
                        break;
                    }
                }
            }
        }
        drop(sender);
        let written = writer.await.map_err(|error| self.disk(&error.to_string()))?;
        written.map_err(|error| self.disk(&error.to_string()))?;
        Ok(ended)
    }

    /// Does something with the file on a thread where it may block.
    async fn local<T: Send + 'static>(
        &self,
        mut part: Part,
        work: impl FnOnce(&mut Part) -> io::Result<T> + Send + 'static,
    ) -> Result<(Part, T), SourceError> {
        let done = tokio::task::spawn_blocking(move || work(&mut part).map(|result| (part, result))).await;
        let done = done.map_err(|error| self.disk(&error.to_string()))?;
        done.map_err(|error| self.disk(&error.to_string()))
    }

    fn disk(&self, problem: &str) -> SourceError {
        let problem = format!("{}: {problem}", self.scratch.display());
        SourceError::Local { action: ACTION, url: self.repository.to_string(), problem }
    }

    /// Whether the registry has the blob, for pushing.
    pub async fn has_blob(&self, action: &'static str, digest: &Digest) -> Result<bool, SourceError> {
        let url = self.url(&format!("blobs/{digest}"))?;
        let response = self.ask(&Ask::write(action, Method::HEAD, url, None)).await?;
        Ok(response.status() == StatusCode::OK)
    }
}

impl Part {
    /// `None` if somebody else has it. The others are left in `room` bytes.
    fn open(scratch: &Path, name: &str, room: u64) -> io::Result<Option<Self>> {
        fs::create_dir_all(scratch)?;
        let path = scratch.join(name);
        sweep(scratch, &path, room);
        let mut file = File::options().read(true).append(true).create(true).open(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Ok(None),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        // Who had it before may have removed it meanwhile.
        if file.metadata()?.nlink() == 0 {
            return Ok(None);
        }
        let length = file.seek(SeekFrom::End(0))?;
        Ok(Some(Self { file, path, length }))
    }

    fn read(&mut self) -> io::Result<Bytes> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(0))?;
        Read::by_ref(&mut self.file).take(self.length).read_to_end(&mut bytes)?;
        Ok(Bytes::from(bytes))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.length = 0;
        self.file.set_len(0)
    }
}

/// Removes parts that nobody went on with, and the oldest of those that nobody writes until all but `keep` fit in `room`.
fn sweep(scratch: &Path, keep: &Path, room: u64) {
    let entries = fs::read_dir(scratch).into_iter().flatten().flatten().filter(|entry| entry.path() != keep);
    let part = |entry: fs::DirEntry| {
        let metadata = entry.metadata().ok()?;
        Some((metadata.modified().ok()?, metadata.len(), entry.path()))
    };
    let mut parts: Vec<_> = entries.filter_map(part).collect();
    parts.sort();
    let mut bytes: u64 = parts.iter().map(|(_, length, _)| length).sum();
    for (written, length, path) in parts {
        let old = SystemTime::now().duration_since(written).is_ok_and(|age| age > STALE);
        if !old && bytes <= room {
            continue;
        }
        // Whoever writes it holds its lock.
        if File::open(&path).is_ok_and(|file| file.try_lock().is_ok() && fs::remove_file(&path).is_ok()) {
            bytes -= length;
        }
    }
}

fn longer(size: u64) -> String {
    format!("it has more than the {size} bytes that the manifest says")
}

/// Whether an answer begins where the part ends, and ends where the blob does.
fn continues(response: &Response, offset: u64, size: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    range.and_then(read_range).is_some_and(|(start, total)| start == offset && total.is_none_or(|total| total == size))
}

/// First byte and total of `bytes 5-9/10`.
fn read_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(total.trim().parse().ok()?) };
    Some((start.trim().parse().ok()?, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        for (text, range) in [
            ("bytes 5-9/10", Some((5, Some(10)))),
            ("bytes 5-9/*", Some((5, None))),
            ("bytes */10", None),
            ("lines 5-9/10", None),
            ("bytes 5-9", None),
        ] {
            assert_eq!(read_range(text), range, "{text}");
        }
    }

    #[test]
    fn a_part_has_one_writer_and_survives_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut part = Part::open(dir.path(), "a", 0).unwrap().unwrap();
        assert!(Part::open(dir.path(), "a", 0).unwrap().is_none());
        part.file.write_all(b"half").unwrap();
        drop(part);
        let mut part = Part::open(dir.path(), "a", 0).unwrap().unwrap();
        assert_eq!((part.length, part.read().unwrap()), (4, Bytes::from_static(b"half")));
        part.clear().unwrap();
        part.file.write_all(b"new").unwrap();
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"new");
    }

    #[test]
    fn parts_that_nobody_writes_make_room_the_oldest_first() {
        let dir = tempfile::tempdir().unwrap();
        let left = |room: u64| {
            Part::open(dir.path(), "new", room).unwrap().unwrap();
            let mut names: Vec<String> = fs::read_dir(dir.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| name != "new")
                .collect();
            names.sort();
            names.join(" ")
        };
        let mut parts = Vec::new();
        for (name, minutes) in [("a", 3), ("b", 4), ("c", 1), ("d", 2)] {
            let mut part = Part::open(dir.path(), name, u64::MAX).unwrap().unwrap();
            part.file.write_all(b"ten bytes.").unwrap();
            part.file.set_modified(SystemTime::now() - Duration::from_mins(minutes)).unwrap();
            parts.push(part);
        }
        // They are all written.
        assert_eq!(left(0), "a b c d");
        // Still: the oldest.
        parts.retain(|part| part.path.ends_with("b"));
        assert_eq!(left(40), "a b c d");
        assert_eq!(left(39), "b c d");
        assert_eq!(left(20), "b c");
        drop(parts);
        assert_eq!(left(10), "c");
        fs::File::options()
            .append(true)
            .open(dir.path().join("c"))
            .unwrap()
            .set_modified(SystemTime::now() - STALE * 2)
            .unwrap();
        assert_eq!(left(u64::MAX), "");
    }
}
