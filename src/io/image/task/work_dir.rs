//! The work directory of a build: who may work in it, what lies in it, and what each step made.
//!
//! ```text
//! <root>/<uid>/lock        held by the process that carries out a step
//!              tool.lock   held by a tool and all that it started, also when we are gone
//!              journal     id of the directory, digest of the inputs, outputs of the steps
//!              out/<n>-<step>/<file>   what a step made, under its name when it is whole
//!              part/<n>-<step>/…       what a step is about to make
//! <root>/logs/<namespace>.<inputs>.log and .log.1
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::digest::blocking;
use super::error::StepError;
use super::{processes, tree};
use crate::core::digest::hex;
use crate::core::image::build::Output;

/// How long another process is waited for that works in the same directory.
const WAIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that are free on a disk that is not full.
const ROOM: u64 = 1 << 20;
/// The lock of a tool.
pub(super) const TOOL_LOCK: &str = "tool.lock";
const LOCK: &str = "lock";
const JOURNAL: &str = "journal";

/// What is known of a directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Journal {
    /// Random, so that a directory that was lost and made anew is another one.
    id: String,
    /// Digest over all that the build depends on.
    inputs: String,
    /// What the steps made, in their order.
    entries: Vec<Entry>,
}

/// What a step made, and in which attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) output: Output,
    pub(super) attempt: u32,
}

/// A work directory that is locked for us until this is dropped.
pub(super) struct WorkDir {
    path: PathBuf,
    journal: Journal,
    _lock: File,
}

impl WorkDir {
    /// Locks the directory, and makes it where it is not there. What a tool left running is ended first. What was made of
    /// other inputs is removed.
    ///
    /// # Errors
    /// Another process works in it and does not end, or it can't be written.
    pub(super) async fn open(
        path: &Path,
        inputs: &str,
        grace: Duration,
        cancel: &CancellationToken,
    ) -> Result<Self, StepError> {
        let lock = lock(path, cancel).await?;
        end_tools(path, grace).await?;
        let journal = match read(path)? {
            Some(journal) if journal.inputs == inputs => journal,
            other => {
                if other.is_some() {
                    let path = path.to_owned();
                    blocking(cancel, move |_| clear(&path)).await?;
                }
                Journal { id: hex(&rand::random::<[u8; 16]>()), inputs: inputs.to_owned(), entries: Vec::new() }
            }
        };
        let directory = Self { path: path.to_owned(), journal, _lock: lock };
        directory.write()?;
        Ok(directory)
    }

    /// Its id.
    pub(super) fn id(&self) -> &str {
        &self.journal.id
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What the steps made.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.journal.entries
    }

    /// The lock for a tool.
    pub(super) fn tool_lock(&self) -> PathBuf {
        self.path.join(TOOL_LOCK)
    }

    /// Where the output of a step lies: `file` is its path within.
    pub(super) fn output(&self, step: usize, name: &str, file: &str) -> PathBuf {
        output_path(&self.path, step, name, file)
    }

    /// Where a step makes its output; made where it is not there.
    ///
    /// # Errors
    /// It can't be made.
    pub(super) fn part(&self, step: usize, name: &str) -> Result<PathBuf, StepError> {
        let path = self.path.join("part").join(format!("{step}-{name}"));
        make(&path)?;
        Ok(path)
    }

    /// The same, empty.
    ///
    /// # Errors
    /// It can't be emptied.
    pub(super) fn empty_part(&self, step: usize, name: &str) -> Result<PathBuf, StepError> {
        let path = self.part(step, name)?;
        remove(&path)?;
        make(&path)?;
        Ok(path)
    }

    /// Whether its disk is full.
    pub(super) fn is_full(&self) -> bool {
        rustix::fs::statvfs(&self.path).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < ROOM)
    }

    /// Removes what a step was about to make.
    ///
    /// # Errors
    /// Something can't be removed.
    pub(super) fn give_up(&self, step: usize, name: &str) -> Result<(), StepError> {
        remove(&self.path.join("part").join(format!("{step}-{name}")))
    }

    /// Makes what lies in a part the output of its step, by one atomic step, and removes the rest of the part.
    ///
    /// # Errors
    /// The disk is full, or the like.
    pub(super) fn finish(&self, step: usize, name: &str, made: &Path, file: &str) -> Result<PathBuf, StepError> {
        let output = self.output(step, name, file);
        let parent = output.parent().unwrap_or(&self.path);
        make(parent)?;
        let synced = File::open(made).and_then(|file| file.sync_all());
        synced.map_err(|error| StepError::file("writing", made, &error))?;
        fs::rename(made, &output).map_err(|error| StepError::file("renaming", made, &error))?;
        let synced = File::open(parent).and_then(|directory| directory.sync_all());
        synced.map_err(|error| StepError::file("writing", parent, &error))?;
        self.give_up(step, name)?;
        Ok(output)
    }

    /// Notes what a step made; what was noted of it and of those behind it is forgotten.
    ///
    /// # Errors
    /// The disk is full, or the like.
    pub(super) fn record(&mut self, step: usize, output: &Output, attempt: u32) -> Result<(), StepError> {
        self.journal.entries.truncate(step);
        // A journal that is behind (its last write was lost) can't say what is ahead of it.
        if self.journal.entries.len() == step {
            self.journal.entries.push(Entry { output: output.clone(), attempt });
        }
        self.write()
    }

    /// Removes all of it.
    ///
    /// # Errors
    /// Something can't be removed.
    pub(super) fn remove(self) -> Result<(), StepError> {
        clear(&self.path)?;
        for file in [TOOL_LOCK, LOCK] {
            remove(&self.path.join(file))?;
        }
        fs::remove_dir(&self.path).map_err(|error| StepError::file("removing", &self.path, &error))
    }

    /// Removes directories below `root` that nobody needs: `goes` is asked with an object's UID and the time since
    /// something was last noted there, once nobody works in it. What can't be removed is removed another time.
    pub(super) async fn sweep(
        root: &Path,
        goes: &(dyn Fn(&str, Duration) -> bool + Send + Sync),
        grace: Duration,
        cancel: &CancellationToken,
    ) {
        for (uid, path) in directories(root) {
            if !goes(&uid, age(&path)) {
                continue;
            }
            let Ok(Some(lock)) = try_lock(&path) else { continue };
            if !goes(&uid, age(&path)) || end_tools(&path, grace).await.is_err() {
                continue;
            }
            let journal = Journal { id: String::new(), inputs: String::new(), entries: Vec::new() };
            let directory = Self { path: path.clone(), journal, _lock: lock };
            match blocking(cancel, move |_| directory.remove()).await {
                Ok(()) => tracing::info!(directory = %path.display(), "a work directory that nobody needs was removed"),
                Err(error) => tracing::warn!(directory = %path.display(), %error, "a work directory can't be removed"),
            }
        }
    }

    fn write(&self) -> Result<(), StepError> {
        let path = self.path.join(JOURNAL);
        let text = serde_json::to_string(&self.journal).map_err(|error| StepError::transient(error.to_string()))?;
        let new = self.path.join("journal.new");
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)
        });
        written.map_err(|error| StepError::file("writing", &path, &error))
    }
}

/// The work directories below a root: those that are called by a UID.
fn directories(root: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    let is_uid =
        |name: &str| name.len() == 36 && name.bytes().all(|letter| letter.is_ascii_hexdigit() || letter == b'-');
    let named = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let named = named.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
    named.filter(|(name, _)| is_uid(name)).collect()
}

/// Since something was last noted in a work directory; nothing where that can't be told.
fn age(path: &Path) -> Duration {
    let noted = fs::metadata(path.join(JOURNAL)).or_else(|_| fs::metadata(path));
    noted.and_then(|metadata| metadata.modified()).ok().and_then(|at| at.elapsed().ok()).unwrap_or_default()
}

/// Where the output of a step lies in a work directory.
pub(super) fn output_path(directory: &Path, step: usize, name: &str, file: &str) -> PathBuf {
    directory.join("out").join(format!("{step}-{name}")).join(file)
}

/// Makes a directory that is ours alone, with those above it.
///
/// # Errors
/// It can't be made.
pub(super) fn make(path: &Path) -> Result<(), StepError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| StepError::file("making", path, &error))
}

/// Removes a directory with all that is in it, if it is there.
///
/// # Errors
/// Something can't be removed.
pub(super) fn remove(path: &Path) -> Result<(), StepError> {
    tree::remove(path).map_err(|error| StepError::file("removing", path, &error))
}

async fn lock(path: &Path, cancel: &CancellationToken) -> Result<File, StepError> {
    let until = tokio::time::Instant::now() + WAIT;
    loop {
        if let Some(lock) = try_lock(path)? {
            return Ok(lock);
        }
        if tokio::time::Instant::now() > until {
            let path = path.display();
            return Err(StepError::later(format!("another process works in {path}, and is waited for")));
        }
        tokio::select! {
            () = cancel.cancelled() => return Err(StepError::cancelled()),
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// The lock of a directory, which is made where it is not there; `None` while another process has it.
fn try_lock(path: &Path) -> Result<Option<File>, StepError> {
    let file = path.join(LOCK);
    let failed = |error: io::Error| StepError::file("locking", &file, &error);
    loop {
        make(path)?;
        // A tool may have taken our rights over it; what can't be done there says so.
        let _ = tree::give_way(path, Path::new(""));
        let lock = match OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&file) {
            Ok(lock) => lock,
            // Whoever had the lock removed the directory meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(error)),
        };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_file(&lock, &file) => return Ok(Some(lock)),
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => return Ok(None),
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// Whether an open file is the one that has this name now.
fn is_file(open: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (open.metadata(), fs::metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// Ends a tool, and all that it started, which an operator that is gone left running.
async fn end_tools(path: &Path, grace: Duration) -> Result<(), StepError> {
    let lock = path.join(TOOL_LOCK);
    let Ok(file) = OpenOptions::new().write(true).open(&lock) else { return Ok(()) };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        return Ok(());
    }
    tracing::info!(directory = %path.display(), "a tool of an earlier process still runs: it is ended");
    if processes::end_holders(path, &file, grace).await {
        return Ok(());
    }
    let path = path.display();
    Err(StepError::later(format!(
        "a tool that an earlier process started still works in {path}, and can't be ended from here: it is waited for"
    )))
}

fn read(path: &Path) -> Result<Option<Journal>, StepError> {
    let file = path.join(JOURNAL);
    let unknown = || Journal { id: String::new(), inputs: String::new(), entries: Vec::new() };
    match fs::read(&file) {
        // One that can't be read is of a disk that lost it, or of a tool: nothing in the directory is known.
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).unwrap_or_else(|_| unknown()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory) => {
            Ok(Some(unknown()))
        }
        Err(error) => Err(StepError::file("reading", &file, &error)),
    }
}

/// Removes what is in a directory but for its locks.
fn clear(path: &Path) -> Result<(), StepError> {
    let entries = fs::read_dir(path).map_err(|error| StepError::file("removing", path, &error))?;
    for entry in entries.flatten() {
        if entry.file_name() == LOCK || entry.file_name() == TOOL_LOCK {
            continue;
        }
        remove(&entry.path())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::image::build::Hope;

    #[tokio::test(start_paused = true)]
    async fn another_process_is_waited_for_and_is_no_failure() {
        let (root, cancel) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let path = root.path().join("build");
        let held = WorkDir::open(&path, "sha256:in", Duration::ZERO, &cancel).await.unwrap();
        let error = WorkDir::open(&path, "sha256:in", Duration::ZERO, &cancel).await.err().unwrap();
        assert_eq!(error.hope, Hope::Later, "{error}");
        assert!(error.message.contains(path.to_str().unwrap()), "{error}");
        drop(held);
        WorkDir::open(&path, "sha256:in", Duration::ZERO, &cancel).await.unwrap();
    }

    #[tokio::test]
    async fn only_directories_of_builds_that_nobody_works_in_are_swept() {
        let (root, cancel) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let path = |name: &str| root.path().join(name);
        let (done, here, busy) = (
            "00000000-0000-0000-0000-000000000001",
            "00000000-0000-0000-0000-000000000002",
            "00000000-0000-0000-0000-000000000003",
        );
        for uid in [done, here] {
            let directory = WorkDir::open(&path(uid), "sha256:in", Duration::ZERO, &cancel).await.unwrap();
            fs::write(directory.part(0, "download").unwrap().join("file"), "part").unwrap();
        }
        let _held = WorkDir::open(&path(busy), "sha256:in", Duration::ZERO, &cancel).await.unwrap();
        fs::create_dir(path("logs")).unwrap();
        WorkDir::sweep(root.path(), &|uid, _| uid != here, Duration::ZERO, &cancel).await;
        let mut left: Vec<_> =
            fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, [here, busy, "logs"]);
    }
}
