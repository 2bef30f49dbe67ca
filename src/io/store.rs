//! A content-addressed store on disk: what was fetched, kept by its SHA-256.
//!
//! Guarantees: what is given out has the digest it was asked by; an entry is whole or not there, also after a crash
//! or a power cut; two processes may use one directory. It is a cache: any entry may go at any time.
//!
//! Caveats: the bound counts whole entries and is kept after each write, so that it may be passed for a moment.

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
}

struct Found {
    path: PathBuf,
    size: u64,
    used: SystemTime,
}

impl Store {
    /// Opens the store in `directory`, which is made if needed, with at most `limit` bytes.
    pub async fn open(directory: PathBuf, limit: u64) -> Result<Self, StoreError> {
        let inner = Arc::new(Inner { directory, limit });
        let store = Self { inner };
        store.run(Inner::open).await?;
        Ok(store)
    }

    /// Puts an entry.
    pub async fn put(&self, bytes: Bytes) -> Result<Digest, StoreError> {
        self.run(move |inner| inner.put(&bytes)).await
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
        self.evict(None)
    }

    fn put(&self, bytes: &[u8]) -> Result<Digest, StoreError> {
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
        self.evict(Some(&path))?;
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
        // When it was used, for eviction. Not worth an error.
        let now = FileTimes::new().set_modified(SystemTime::now());
        let _ = File::options().append(true).open(&path).and_then(|file| file.set_times(now));
        Ok(Some(Bytes::from(bytes)))
    }

    /// Removes what was not used for the longest time until the rest fits; never `keep`.
    fn evict(&self, keep: Option<&Path>) -> Result<(), StoreError> {
        let mut found = self.found(|name| name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit()))?;
        found.sort_by_key(|found| found.used);
        let mut size: u64 = found.iter().map(|found| found.size).sum();
        for found in found.iter().filter(|found| Some(found.path.as_path()) != keep) {
            if size <= self.limit {
                break;
            }
            if_there(fs::remove_file(&found.path)).map_err(failed("removing", &found.path))?;
            size -= found.size;
        }
        Ok(())
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
mod tests {
    use super::*;

    async fn store(limit: u64) -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("store"), limit).await.unwrap();
        (directory, store)
    }

    fn age(path: &Path, by: Duration) {
        let file = File::options().append(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - by).unwrap();
    }

    fn names(store: &Store) -> Vec<String> {
        let entries = fs::read_dir(&store.inner.directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[tokio::test]
    async fn what_is_put_can_be_got_also_by_another_process() {
        let (_directory, store) = store(100).await;
        let digest = store.put(Bytes::from_static(b"hello")).await.unwrap();
        assert_eq!(digest.to_string(), "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!(store.put(Bytes::from_static(b"hello")).await.unwrap(), digest);
        let other = Store::open(store.inner.directory.clone(), 100).await.unwrap();
        assert_eq!(other.get(&digest).await.unwrap().unwrap(), "hello");
        assert_eq!(other.get(&Digest::of(b"other")).await.unwrap(), None);
        assert_eq!(names(&store).len(), 1);
    }

    #[tokio::test]
    async fn a_damaged_entry_is_removed_and_can_be_put_again() {
        for damage in [&b""[..], b"hell", b"jello", b"hello, and more"] {
            let (_directory, store) = store(100).await;
            let digest = store.put(Bytes::from_static(b"hello")).await.unwrap();
            fs::write(store.inner.entry(digest), damage).unwrap();
            assert_eq!(store.get(&digest).await.unwrap(), None);
            assert_eq!(names(&store), Vec::<String>::new());
            store.put(Bytes::from_static(b"hello")).await.unwrap();
            fs::write(store.inner.entry(digest), damage).unwrap();
            store.put(Bytes::from_static(b"hello")).await.unwrap();
            assert_eq!(store.get(&digest).await.unwrap().unwrap(), "hello");
        }
    }

    #[tokio::test]
    async fn what_was_used_least_goes_first() {
        let (_directory, store) = store(10).await;
        let mut digests = Vec::new();
        for (text, minutes) in [("aaaa", 3), ("bbbb", 2)] {
            let digest = store.put(Bytes::from_static(text.as_bytes())).await.unwrap();
            age(&store.inner.entry(digest), Duration::from_mins(minutes));
            digests.push(digest);
        }
        assert!(store.get(&digests[0]).await.unwrap().is_some());
        let third = store.put(Bytes::from_static(b"cccc")).await.unwrap();
        assert!(store.get(&digests[0]).await.unwrap().is_some());
        assert_eq!(store.get(&digests[1]).await.unwrap(), None);
        assert!(store.get(&third).await.unwrap().is_some());
        assert!(matches!(store.put(Bytes::from(vec![0; 11])).await, Err(StoreError::TooLarge { size: 11, limit: 10 })));
    }

    #[tokio::test]
    async fn left_over_files_go_and_those_being_written_stay() {
        let (_directory, store) = store(100).await;
        let path = |name: &str| store.inner.directory.join(name);
        for name in ["tmp-old", "tmp-new", "tmp-locked", "notes.txt"] {
            fs::write(path(name), "x").unwrap();
        }
        age(&path("tmp-old"), Duration::from_mins(2));
        age(&path("tmp-locked"), Duration::from_mins(2));
        let writer = File::open(path("tmp-locked")).unwrap();
        writer.lock().unwrap();
        Store::open(store.inner.directory.clone(), 100).await.unwrap();
        let mut names = names(&store);
        names.sort();
        assert_eq!(names, ["notes.txt", "tmp-locked", "tmp-new"]);
    }

    #[tokio::test]
    async fn many_writers_and_readers_of_two_stores_get_along() {
        let (_directory, first) = store(400).await;
        let second = Store::open(first.inner.directory.clone(), 400).await.unwrap();
        let work = (0..200u8).map(|n| {
            let store = if n % 2 == 0 { first.clone() } else { second.clone() };
            async move {
                let bytes = Bytes::from(vec![n / 8; 40]);
                let digest = store.put(bytes.clone()).await.unwrap();
                assert!(store.get(&digest).await.unwrap().is_none_or(|got| got == bytes));
            }
        });
        futures::future::join_all(work).await;
        assert!(names(&first).iter().all(|name| name.len() == 64));
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        let good = Digest::of(b"x").to_string();
        for text in ["", "sha256:", "sha512:00", &good[..70], &good.to_uppercase(), &good.replace(':', "/../")] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
