//! Digests of files, and the work with files that may take long: off the threads of others, and stopped in the middle.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256, Sha512};
use tokio_util::sync::CancellationToken;

use super::error::StepError;
use crate::core::digest::hex;
use crate::core::image::pipeline::Checksum;

/// Bytes that are read at once.
pub(super) const CHUNK: usize = 1 << 20;

/// SHA-256 of what is fed, and SHA-512 where that is asked for.
#[derive(Clone)]
pub(super) struct Sums {
    sha256: Sha256,
    sha512: Option<Sha512>,
}

impl Sums {
    /// What `checksum` needs, beside SHA-256.
    pub(super) fn for_checksum(checksum: Option<&Checksum>) -> Self {
        let sha512 = matches!(checksum, Some(Checksum::Sha512(_))).then(Sha512::new);
        Self { sha256: Sha256::new(), sha512 }
    }

    /// As if nothing was fed.
    pub(super) fn reset(&mut self) {
        self.sha256 = Sha256::new();
        self.sha512 = self.sha512.is_some().then(Sha512::new);
    }

    /// Feeds bytes.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        if let Some(sha512) = &mut self.sha512 {
            sha512.update(bytes);
        }
    }

    /// `sha256:` and hex digits.
    pub(super) fn digest(&self) -> String {
        format!("sha256:{}", hex(&self.sha256.clone().finalize()))
    }

    /// The digest of the checksum's kind, if it is another one.
    pub(super) fn differs(&self, checksum: &Checksum) -> Option<String> {
        let (wanted, found) = match (checksum, &self.sha512) {
            (Checksum::Sha256(wanted), _) => (wanted, hex(&self.sha256.clone().finalize())),
            (Checksum::Sha512(wanted), Some(sha512)) => (wanted, hex(&sha512.clone().finalize())),
            (Checksum::Sha512(wanted), None) => (wanted, String::new()),
        };
        (*wanted != found).then_some(found)
    }
}

/// Does what may take long on a thread for that. `work` looks at the token it is given.
///
/// # Errors
/// What `work` says; that it was cancelled.
pub(super) async fn blocking<T: Send + 'static>(
    cancel: &CancellationToken,
    work: impl FnOnce(&CancellationToken) -> Result<T, StepError> + Send + 'static,
) -> Result<T, StepError> {
    let token = cancel.clone();
    let done = tokio::task::spawn_blocking(move || work(&token)).await;
    done.unwrap_or_else(|error| Err(StepError::transient(format!("a thread ended early: {error}"))))
}

/// Reads a file to its end; `take` is called with each piece.
///
/// # Errors
/// It can't be read, or `cancel` is cancelled.
pub(super) fn read_all(
    path: &Path,
    cancel: &CancellationToken,
    mut take: impl FnMut(&[u8]) -> Result<(), StepError>,
) -> Result<u64, StepError> {
    let failed = |error: &io::Error| StepError::file("reading", path, error);
    let mut file = File::open(path).map_err(|error| failed(&error))?;
    let mut buffer = vec![0; CHUNK];
    let mut total = 0;
    loop {
        if cancel.is_cancelled() {
            return Err(StepError::cancelled());
        }
        let read = match file.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(&error)),
        };
        take(&buffer[..read])?;
        total += read as u64;
    }
}

/// Digests of a file; `seen` is told how far it is.
///
/// # Errors
/// It can't be read, or `cancel` is cancelled.
pub(super) async fn of_file(
    path: PathBuf,
    sums: Sums,
    cancel: &CancellationToken,
    seen: impl Fn(u64) + Send + 'static,
) -> Result<(Sums, u64), StepError> {
    blocking(cancel, move |cancel| {
        let (mut sums, mut done) = (sums, 0);
        let size = read_all(&path, cancel, |bytes| {
            sums.update(bytes);
            done += bytes.len() as u64;
            seen(done);
            Ok(())
        })?;
        Ok((sums, size))
    })
    .await
}
