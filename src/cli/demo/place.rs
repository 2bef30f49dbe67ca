//! The demo's own directory: made with a lock, so that another process knows whether the demo still runs.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::cli::report::Hinted;

const PREFIX: &str = "clusterstack-demo-";
/// Holds the demo's process id, and is locked as long as the demo runs.
const LOCK: &str = "pid";
/// A directory that was not used for so long has no process that is about to lock it.
const FRESH: Duration = Duration::from_mins(1);
/// How long a demo may take to end.
const END: Duration = Duration::from_mins(2);

/// A temporary directory, removed when this is dropped.
pub(super) struct Place {
    dir: TempDir,
    path: PathBuf,
    _lock: File,
}

impl Place {
    /// Makes one, and removes those of demos that were killed.
    pub(super) fn make() -> Result<Self> {
        sweep();
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir().context("cannot make a temporary directory")?;
        let path = dir.path().canonicalize().context("the temporary directory is gone")?;
        let mut lock = File::create(path.join(LOCK)).context("cannot write to the temporary directory")?;
        lock.try_lock().context("cannot lock the temporary directory")?;
        lock.write_all(std::process::id().to_string().as_bytes()).context("cannot write to the temporary directory")?;
        Ok(Self { dir, path, _lock: lock })
    }

    /// Its absolute path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Something in it.
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Removes it.
    pub(super) fn remove(self) -> Result<()> {
        self.dir.close().with_context(|| format!("cannot remove {}", self.path.display()))
    }
}

/// Ends the demo that was left running in a directory, and waits until it is gone.
pub(super) fn stop(dir: &Path) -> Result<()> {
    let path = dir.join(LOCK);
    let no_demo = || {
        let name = dir.display();
        Hinted::new(format!("{name} is no directory of a demo"), "hack/demo --keep says which directory it uses")
    };
    let mut lock = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| no_demo().because(error))?;
    if is_locked(&lock)? {
        let mut text = String::new();
        lock.read_to_string(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
        let pid = text.trim().parse().ok().and_then(Pid::from_raw).ok_or_else(no_demo)?;
        // The lock is held, so this is the demo and no other process of this id.
        kill_process(pid, Signal::TERM).with_context(|| format!("cannot end process {text}"))?;
        let began = Instant::now();
        while is_locked(&lock)? {
            if began.elapsed() > END {
                bail!("process {text} did not end within {} s", END.as_secs());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

fn is_locked(lock: &File) -> Result<bool> {
    match lock.try_lock() {
        Ok(()) => {
            lock.unlock().context("cannot unlock")?;
            Ok(false)
        }
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error).context("cannot look at the lock"),
    }
}

/// Removes the directories of demos that were killed. Whatever can't be looked at or removed is somebody else's.
fn sweep() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)) && is_left_over(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_left_over(dir: &Path) -> bool {
    let Ok(lock) = OpenOptions::new().read(true).write(true).open(dir.join(LOCK)) else { return false };
    let age = lock.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|time| time.elapsed().ok());
    age.is_some_and(|age| age > FRESH) && is_locked(&lock).is_ok_and(|locked| !locked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_locked_while_it_is_there_and_gone_with_it() {
        let place = Place::make().unwrap();
        let path = place.path().to_owned();
        assert!(is_locked(&File::open(path.join(LOCK)).unwrap()).unwrap());
        assert!(!is_left_over(&path));
        place.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_demo_is_not_stopped() {
        let dir = tempfile::tempdir().unwrap();
        assert!(stop(dir.path()).unwrap_err().to_string().contains("is no directory of a demo"));
        assert!(dir.path().exists());
    }

    #[test]
    fn the_directory_of_a_demo_that_was_killed_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(LOCK), "1").unwrap();
        stop(dir.path()).unwrap();
        assert!(!dir.path().exists());
    }
}
