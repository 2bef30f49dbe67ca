//! A directory: the file under its name, its record beside it, uploads under names that begin with a dot.
//!
//! Guarantees: below the roots that flags allow only, and by handles, so that a name that is exchanged for a link meanwhile
//! leads nowhere; a file gets its name by one rename that replaces nothing, after it is on the disk; a record changes under
//! a lock of the directory, which other processes and machines heed too where the file system has locks.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::reader::Reader;
use super::record::{LARGEST, Record, SUFFIX};
use super::shelf::{Placed, Shelf, Version, attempt_of, staged};
use super::{Claim, DestinationError, Image, Meter};
use crate::api::image_destination::DirectoryDestination;
use crate::io::source::rooted::{Directory as Handle, Entry};

/// Bytes that are written at once.
const PIECE: usize = 1 << 20;
/// Whoever changes a record holds its lock.
const LOCK: &str = ".clusterstack.lock";
/// End of a staged file's name that is all there.
const WHOLE: &str = ".whole";
/// Everybody may read an image; we write it.
const MODE: Mode = Mode::from_raw_mode(0o644);
const ACTION: &str = "writing to";

/// A directory of images.
pub(super) struct Directory {
    root: PathBuf,
    /// Below the root.
    below: PathBuf,
}

impl Directory {
    /// The directory that a spec names, which lies in one of the `roots`.
    ///
    /// # Errors
    /// No root holds it.
    pub fn new(spec: &DirectoryDestination, roots: &[PathBuf]) -> Result<Self, DestinationError> {
        let path = Path::new(&spec.path);
        let plain = path.is_absolute() && !path.components().any(|part| part.as_os_str() == "..");
        let root =
            roots.iter().filter(|root| plain && path.starts_with(root)).max_by_key(|root| root.as_os_str().len());
        let refused = || DestinationError::Refused {
            action: "using directory",
            location: spec.path.clone(),
            problem: "no --allow-image-directory flag of the operator holds it: name another one, or ask who runs it"
                .to_owned(),
        };
        let root = root.ok_or_else(refused)?;
        let below = path.strip_prefix(root).map_err(|_| refused())?.to_owned();
        Ok(Self { root: root.clone(), below })
    }

    fn path(&self) -> PathBuf {
        self.root.join(&self.below)
    }

    /// Copies a file, until it is whole and on the disk.
    async fn copy(
        &self,
        part: &str,
        file: &mut Reader,
        meter: &dyn Meter,
        cancel: &CancellationToken,
    ) -> Result<(), DestinationError> {
        let name = part.to_owned();
        let to = Arc::new(self.local(ACTION, move |directory| create(directory, &name)).await?);
        let mut done = 0;
        loop {
            if cancel.is_cancelled() {
                return Err(DestinationError::Cancelled);
            }
            let Some(piece) = file.next(PIECE).await? else { break };
            done += piece.len() as u64;
            let to = Arc::clone(&to);
            self.local(ACTION, move |_| (&*to).write_all(&piece)).await?;
            meter.done(done);
        }
        let part = part.to_owned();
        self.local(ACTION, move |directory| {
            to.sync_all()?;
            rustix::fs::renameat(directory.handle(), &part, directory.handle(), whole(&part))?;
            Ok(rustix::fs::fsync(directory.handle())?)
        })
        .await
    }

    /// Does something in the directory on a thread where it may block.
    async fn local<T: Send + 'static>(
        &self,
        action: &'static str,
        work: impl FnOnce(&Handle) -> io::Result<T> + Send + 'static,
    ) -> Result<T, DestinationError> {
        let (root, below) = (self.root.clone(), self.below.clone());
        let done = tokio::task::spawn_blocking(move || work(&Handle::open(&root, &below)?)).await;
        let problem = match done {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(error)) => error,
            Err(error) => io::Error::other(error),
        };
        Err(self.failed(action, &problem))
    }

    fn failed(&self, action: &'static str, problem: &io::Error) -> DestinationError {
        let location = self.path().display().to_string();
        let hint = match problem.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                ": it must be there, be a directory and lie behind no link"
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                ": the operator's user must be able to write there"
            }
            io::ErrorKind::InvalidData => "",
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                let problem = "the disk there is full: make room, or give it more".to_owned();
                return DestinationError::Unreachable { action, location, problem };
            }
            _ if problem.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => ": no link may be on the way",
            _ => return DestinationError::Unreachable { action, location, problem: problem.to_string() },
        };
        DestinationError::Refused { action, location, problem: format!("{problem}{hint}") }
    }
}

#[async_trait]
impl Shelf for Directory {
    type Version = Vec<u8>;

    fn name(&self) -> String {
        format!("directory {}", self.path().display())
    }

    fn location(&self, file: &str) -> String {
        self.path().join(file).display().to_string()
    }

    async fn file_name(&self, image: &str, _claim: &Claim) -> Result<String, DestinationError> {
        Ok(image.to_owned())
    }

    async fn record(&self, image: &str) -> Result<Option<Version<Vec<u8>>>, DestinationError> {
        let name = format!("{image}{SUFFIX}");
        self.local("reading from", move |directory| {
            let Some(version) = content(directory, &name)? else { return Ok(None) };
            let record = serde_json::from_slice(&version).map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{name} is no record of an image: {error}"))
            })?;
            Ok(Some(Version { record, version }))
        })
        .await
    }

    async fn write(&self, image: &str, record: &Record, instead: Option<&Vec<u8>>) -> Result<bool, DestinationError> {
        let name = format!("{image}{SUFFIX}");
        let problem = |error: serde_json::Error| self.failed(ACTION, &error.into());
        let (bytes, instead) = (serde_json::to_vec_pretty(record).map_err(problem)?, instead.cloned());
        self.local(ACTION, move |directory| {
            let _lock = lock(directory)?;
            if content(directory, &name)? != instead {
                return Ok(false);
            }
            let next = format!(".{name}.next");
            let mut file = create(directory, &next)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            rustix::fs::renameat(directory.handle(), &next, directory.handle(), &name)?;
            rustix::fs::fsync(directory.handle())?;
            Ok(true)
        })
        .await
    }

    async fn erase(&self, image: &str, version: &Vec<u8>) -> Result<(), DestinationError> {
        let (name, version) = (format!("{image}{SUFFIX}"), version.clone());
        self.local("removing from", move |directory| {
            let _lock = lock(directory)?;
            if content(directory, &name)? == Some(version) { unlink(directory, &name) } else { Ok(()) }
        })
        .await
    }

    async fn size(&self, file: &str) -> Result<Option<u64>, DestinationError> {
        let file = file.to_owned();
        self.local("reading from", move |directory| match directory.entry(OsStr::new(&file)) {
            Ok(Entry::File(file)) => Ok(Some(file.metadata()?.len())),
            // Whatever it is, the name is taken.
            Ok(_) => Ok(Some(u64::MAX)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        })
        .await
    }

    async fn stage(
        &self,
        image: &Image,
        mut file: Reader,
        claim: &Claim,
        meter: &dyn Meter,
        cancel: &CancellationToken,
    ) -> Result<(), DestinationError> {
        // What an earlier attempt left is of no use, and takes room.
        let earlier = Claim { attempt: claim.attempt.saturating_sub(1), ..claim.clone() };
        self.discard(&image.name, &earlier, None).await?;
        let part = staged(&image.name, claim);
        let staged = self.copy(&part, &mut file, meter, cancel).await;
        if staged.as_ref().is_err_and(|error| !matches!(error, DestinationError::Cancelled)) {
            // It may be what fills the disk. What can't be removed now is removed with the next attempt.
            let _ = self.local("removing from", move |directory| unlink(directory, &part)).await;
        }
        staged
    }

    async fn adopt(&self, image: &Image, claim: &Claim, earlier: &Claim) -> Result<bool, DestinationError> {
        let (from, to) = (whole(&staged(&image.name, earlier)), whole(&staged(&image.name, claim)));
        if self.size(&from).await? != Some(image.size) {
            return Ok(false);
        }
        self.local(ACTION, move |directory| {
            match rustix::fs::renameat(directory.handle(), &from, directory.handle(), &to) {
                Ok(()) => rustix::fs::fsync(directory.handle()).map(|()| true).map_err(Into::into),
                Err(Errno::NOENT) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    async fn place(&self, image: &Image, file: &str, claim: &Claim) -> Result<Placed, DestinationError> {
        let (from, file) = (whole(&staged(&image.name, claim)), file.to_owned());
        self.local("publishing in", move |directory| {
            let at = directory.handle();
            let renamed = match rustix::fs::renameat_with(at, &from, at, &file, RenameFlags::NOREPLACE) {
                // Not every file system can; a link replaces nothing either.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    rustix::fs::linkat(at, &from, at, &file, AtFlags::empty())
                        .and_then(|()| rustix::fs::unlinkat(at, &from, AtFlags::empty()))
                }
                other => other,
            };
            match renamed {
                Ok(()) => rustix::fs::fsync(at).map(|()| Placed::Done).map_err(Into::into),
                Err(Errno::EXIST) => Ok(Placed::Taken),
                Err(Errno::NOENT) => Ok(Placed::Nothing),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    async fn delete(&self, file: &str) -> Result<(), DestinationError> {
        let file = file.to_owned();
        self.local("removing from", move |directory| unlink(directory, &file)).await
    }

    async fn discard(&self, image: &str, claim: &Claim, _keep: Option<&str>) -> Result<(), DestinationError> {
        let (image, claim) = (image.to_owned(), claim.clone());
        self.local("removing from", move |directory| {
            for name in directory.names()? {
                let name = name?;
                let Some(name) = name.to_str() else { continue };
                let part = name.strip_suffix(WHOLE).unwrap_or(name);
                if attempt_of(part, &image, &claim.object).is_some_and(|attempt| attempt <= claim.attempt) {
                    unlink(directory, name)?;
                }
            }
            Ok(())
        })
        .await
    }
}

fn whole(part: &str) -> String {
    format!("{part}{WHOLE}")
}

/// A new file, in place of one that was left over.
fn create(directory: &Handle, name: &str) -> io::Result<File> {
    unlink(directory, name)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(directory.handle(), name, flags, MODE)?))
}

/// Held until it is dropped.
fn lock(directory: &Handle) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(directory.handle(), LOCK, flags, MODE)?);
    rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// What a small file holds.
fn content(directory: &Handle, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match directory.entry(OsStr::new(name)) {
        Ok(Entry::File(file)) => file.take(LARGEST + 1).read_to_end(&mut bytes)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{name} is no file"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{name} is too large for a record of an image"),
        ));
    }
    Ok(Some(bytes))
}

/// Nothing there is as good.
fn unlink(directory: &Handle, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(directory.handle(), name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
