//! Content-addressed files on disk. A cache, never state: it may be lost or damaged at any time.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use sha2::{Digest, Sha256};

/// Temporary files older than this belong to nobody.
const STALE: Duration = Duration::from_hours(1);

/// The store: `<dir>/sha256/<hex>`. Several processes may share a directory.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
    max_bytes: u64,
}

impl Store {
    /// Opens or makes a store, and clears what a process left that died while writing.
    ///
    /// # Errors
    /// The directory can't be made or written.
    pub fn open(dir: &Path, max_bytes: u64) -> io::Result<Self> {
        let dir = dir.join("sha256");
        fs::create_dir_all(&dir)?;
        let store = Self { dir, max_bytes };
        // Also proves that the directory can be written.
        tempfile::NamedTempFile::new_in(&store.dir)?;
        for (path, metadata) in store.entries()? {
            let old = metadata.modified().ok().and_then(|at| at.elapsed().ok()).is_some_and(|age| age > STALE);
            if old && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".tmp")) {
                let _ = fs::remove_file(path);
            }
        }
        Ok(store)
    }

    /// Stores content; its digest, `sha256:<hex>`. Written to a temporary name, synced, renamed.
    ///
    /// # Errors
    /// The disk is full or not writable.
    pub fn put(&self, content: &[u8]) -> io::Result<String> {
        let hex = hex_digest(content);
        let mut file = tempfile::Builder::new().prefix(".tmp").tempfile_in(&self.dir)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(self.dir.join(&hex)).map_err(|error| error.error)?;
        File::open(&self.dir)?.sync_all()?;
        self.evict(&hex);
        Ok(format!("sha256:{hex}"))
    }

    /// The content of a digest, verified. `None` if it is not there; what is damaged is removed and not there.
    pub fn get(&self, digest: &str) -> Option<Bytes> {
        let hex = digest
            .strip_prefix("sha256:")
            .filter(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))?;
        let path = self.dir.join(hex);
        let content = fs::read(&path).ok()?;
        if hex_digest(&content) != hex {
            tracing::warn!(digest, "a stored release is damaged: removed, it is fetched again");
            let _ = fs::remove_file(&path);
            return None;
        }
        // The time of the last use, for eviction.
        if let Ok(file) = File::options().append(true).open(&path) {
            let _ = file.set_modified(SystemTime::now());
        }
        Some(Bytes::from(content))
    }

    fn entries(&self) -> io::Result<Vec<(PathBuf, fs::Metadata)>> {
        Ok(fs::read_dir(&self.dir)?
            .flatten()
            .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
            .collect())
    }

    /// Removes what was used longest ago until the size fits; never `keep`.
    fn evict(&self, keep: &str) {
        let Ok(mut entries) = self.entries() else { return };
        let mut size: u64 = entries.iter().map(|(_, metadata)| metadata.len()).sum();
        entries.sort_by_key(|(_, metadata)| metadata.modified().ok());
        for (path, metadata) in entries {
            if size <= self.max_bytes {
                return;
            }
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if name != keep && !name.starts_with(".tmp") && fs::remove_file(&path).is_ok() {
                size -= metadata.len();
            }
        }
    }
}

fn hex_digest(content: &[u8]) -> String {
    format!("{:x}", Sha256::digest(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(max: u64) -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), max).unwrap();
        (dir, store)
    }

    #[test]
    fn content_comes_back_by_its_digest() {
        let (_dir, store) = store(1000);
        let digest = store.put(b"hello").unwrap();
        assert_eq!(store.get(&digest).unwrap(), "hello");
        assert_eq!(store.put(b"hello").unwrap(), digest);
        assert_eq!(store.get("sha256:../../etc/passwd"), None);
        assert_eq!(store.get(&digest.replace('a', "b")), None);
    }

    #[test]
    fn damaged_content_is_not_there() {
        let (dir, store) = store(1000);
        let digest = store.put(b"hello").unwrap();
        fs::write(dir.path().join("sha256").join(&digest[7..]), "hell").unwrap();
        assert_eq!(store.get(&digest), None);
        assert_eq!(store.put(b"hello").unwrap(), digest);
        assert!(store.get(&digest).is_some());
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let (dir, store) = store(25);
        let (old, new) = (store.put(&[1; 10]).unwrap(), store.put(&[2; 10]).unwrap());
        let age = |digest: &str, seconds| {
            let file = File::options().append(true).open(dir.path().join("sha256").join(&digest[7..])).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        age(&old, 100);
        age(&new, 50);
        assert!(store.get(&old).is_some());
        let newest = store.put(&[3; 10]).unwrap();
        assert!(store.get(&old).is_some() && store.get(&newest).is_some());
        assert_eq!(store.get(&new), None);
    }

    #[test]
    fn leftovers_of_a_killed_process_are_cleared() {
        let (dir, _store) = store(1000);
        let left = dir.path().join("sha256/.tmpabc");
        fs::write(&left, "half").unwrap();
        File::options().append(true).open(&left).unwrap().set_modified(SystemTime::now() - STALE * 2).unwrap();
        Store::open(dir.path(), 1000).unwrap();
        assert!(!left.exists());
    }
}
