//! A content-addressed store on disk: what was fetched, kept by its SHA-256.
//!
//! Guarantees: what is given out has the digest it was asked by; an entry is whole or not there, also after a crash
//! or a power cut; two processes may use one directory. It is a cache: any entry may go at any time.
//!
//! Caveats: the bound counts whole entries and is kept after each write, so that it may be passed for a moment.

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File, FileTimes};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::core::digest::hex;

/// From which age on a temporary file that nobody writes is left over.
const STALE: Duration = Duration::from_mins(1);
const TEMPORARY: &str = "tmp-";

/// The SHA-256 of an entry, printed `sha256:<hex>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// A text is no digest.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no digest: expected sha256: and 64 hexadecimal digits")]
pub struct DigestError(String);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    fn hex(self) -> String {
        hex(&self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let error = || DigestError(text.chars().take(80).collect());
        let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64).ok_or_else(error)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| error())?;
            if !pair.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
                return Err(error());
            }
            *byte = u8::from_str_radix(pair, 16).map_err(|_| error())?;
        }
        Ok(Self(bytes))
    }
}

/// What goes wrong with the store. All of it is the operator's own disk.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The disk says no.
    #[error("{action} {path} failed: {error}; check the volume of --release-dir: its space, its rights")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What happened.
        error: io::Error,
    },
    /// An entry is larger than the whole store may be.
    #[error("an entry of {size} bytes does not fit into the store, which may hold {limit}: raise its bound")]
    TooLarge {
        /// Size of the entry.
        size: u64,
        /// Bound of the store.
        limit: u64,
    },
    /// The thread went.
    #[error("the store's thread ended: {0}")]
    Thread(String),
}

/// The store. Clones are the same store.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    limit: u64,
    /// A directory of others whose files count.
    beside: Option<PathBuf>,
}

struct Found {
    path: PathBuf,
    size: u64,
    used: SystemTime,
}

impl Store {
    /// Opens the store in `directory`, which is made if needed, with at most `limit` bytes.
    pub async fn open(directory: PathBuf, limit: u64) -> Result<Self, StoreError> {
        Self::open_beside(directory, limit, None).await
    }

    /// The same, in which the files of the directory `beside` count, up to half of it: it is others' to keep them few, and
    /// what is there is not given up for them.
    pub async fn open_beside(directory: PathBuf, limit: u64, beside: Option<PathBuf>) -> Result<Self, StoreError> {
        let inner = Arc::new(Inner { directory, limit, beside });
        let store = Self { inner };
        store.run(Inner::open).await?;
        Ok(store)
    }

    /// Puts an entry.
    pub async fn put(&self, bytes: Bytes) -> Result<Digest, StoreError> {
        self.put_beside(bytes, HashSet::new()).await
    }

    /// Puts an entry. If that takes more room than there is, what is `in_use` goes after all others.
    pub async fn put_beside(&self, bytes: Bytes, in_use: HashSet<Digest>) -> Result<Digest, StoreError> {
        self.run(move |inner| inner.put(&bytes, &in_use)).await
    }

    /// Notes that an entry is in use, without reading it: other processes see that too.
    pub async fn used(&self, digest: &Digest) {
        let digest = *digest;
        let noted = self.run(move |inner| Ok(note_use(&inner.entry(digest)))).await;
        // What is not there is fetched when it is read.
        drop(noted);
    }

    /// The entry with this digest; `None` if it is not there or was damaged.
    pub async fn get(&self, digest: &Digest) -> Result<Option<Bytes>, StoreError> {
        let digest = *digest;
        self.run(move |inner| inner.get(digest)).await
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.inner);
        let task = tokio::task::spawn_blocking(move || work(&inner));
        task.await.map_err(|error| StoreError::Thread(error.to_string()))?
    }
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> StoreError {
    let path = path.to_owned();
    move |error| StoreError::Io { action, path: path.clone(), error }
}

/// `None` where there is nothing, which another process may have removed.
fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// When it was used, for eviction.
fn note_use(path: &Path) -> io::Result<()> {
    let now = FileTimes::new().set_modified(SystemTime::now());
    File::options().append(true).open(path).and_then(|file| file.set_times(now))
}

impl Inner {
    fn entry(&self, digest: Digest) -> PathBuf {
        self.directory.join(digest.hex())
    }

    fn open(&self) -> Result<(), StoreError> {
        fs::create_dir_all(&self.directory).map_err(failed("making the directory", &self.directory))?;
        for found in self.found(|name| name.starts_with(TEMPORARY))? {
            let old = found.used.elapsed().is_ok_and(|age| age > STALE);
            // Whoever writes it holds its lock.
            let abandoned = || File::open(&found.path).is_ok_and(|file| file.try_lock().is_ok());
            if old && abandoned() {
                if_there(fs::remove_file(&found.path)).map_err(failed("removing", &found.path))?;
            }
        }
        self.evict(None, &HashSet::new())
    }

    fn put(&self, bytes: &[u8], in_use: &HashSet<Digest>) -> Result<Digest, StoreError> {
        let size = bytes.len() as u64;
        if size > self.limit {
            return Err(StoreError::TooLarge { size, limit: self.limit });
        }
        let digest = Digest::of(bytes);
        if self.get(digest)?.is_some() {
            return Ok(digest);
        }
        let path = self.entry(digest);
        let action = "writing";
        // It may have been lost since it was opened.
        fs::create_dir_all(&self.directory).map_err(failed("making the directory", &self.directory))?;
        let mut file = tempfile::Builder::new()
            .prefix(TEMPORARY)
            .tempfile_in(&self.directory)
            .map_err(failed(action, &self.directory))?;
        file.as_file().try_lock().map_err(|error| failed(action, file.path())(error.into()))?;
        file.write_all(bytes).map_err(failed(action, file.path()))?;
        file.as_file().sync_all().map_err(failed(action, file.path()))?;
        file.persist(&path).map_err(|error| failed(action, &path)(error.error))?;
        // The name is on the disk only when its directory is.
        File::open(&self.directory).and_then(|file| file.sync_all()).map_err(failed(action, &self.directory))?;
        self.evict(Some(&path), in_use)?;
        Ok(digest)
    }

    fn get(&self, digest: Digest) -> Result<Option<Bytes>, StoreError> {
        let path = self.entry(digest);
        let Some(bytes) = if_there(fs::read(&path)).map_err(failed("reading", &path))? else { return Ok(None) };
        if Digest::of(&bytes) != digest {
            tracing::warn!(path = %path.display(), "a damaged entry of the store is removed; it will be fetched again");
            if_there(fs::remove_file(&path)).map_err(failed("removing", &path))?;
            return Ok(None);
        }
        // Not worth an error.
        let _ = note_use(&path);
        Ok(Some(Bytes::from(bytes)))
    }

    /// Removes what is not in use and was not used for the longest time until the rest fits, then what is; never `keep`.
    fn evict(&self, keep: Option<&Path>, in_use: &HashSet<Digest>) -> Result<(), StoreError> {
        let in_use: HashSet<PathBuf> = in_use.iter().map(|digest| self.entry(*digest)).collect();
        let mut found = self.found(|name| name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit()))?;
        found.sort_by_key(|found| (in_use.contains(&found.path), found.used));
        let entries: u64 = found.iter().map(|found| found.size).sum();
        let mut size = entries.saturating_add(self.beside().min(self.limit / 2));
        for found in found.iter().filter(|found| Some(found.path.as_path()) != keep) {
            if size <= self.limit {
                break;
            }
            if_there(fs::remove_file(&found.path)).map_err(failed("removing", &found.path))?;
            size -= found.size;
        }
        Ok(())
    }

    /// Bytes of the files beside the store.
    fn beside(&self) -> u64 {
        let files = self.beside.iter().flat_map(fs::read_dir).flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
    }

    fn found(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<Found>, StoreError> {
        let error = failed("reading the directory", &self.directory);
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(&error)? {
            let entry = entry.map_err(&error)?;
            if !entry.file_name().to_str().is_some_and(&wanted) {
                continue;
            }
            let Some(metadata) = if_there(entry.metadata()).map_err(&error)? else { continue };
            let used = metadata.modified().map_err(&error)?;
            all.push(Found { path: entry.path(), size: metadata.len(), used });
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests;
