//! The file that is uploaded: read once, its digest checked on the way.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use sha2::{Digest, Sha256, Sha512};

use super::{DestinationError, Image};
use crate::core::digest::hex;

/// Bytes read at once where nobody wants another number.
const PIECE: usize = 1 << 20;

/// A file whose last piece is given out only if all of it is the image.
pub(super) struct Reader {
    name: String,
    path: PathBuf,
    size: u64,
    digest: String,
    /// `None` while a piece is read, and at the end.
    state: Option<State>,
    /// Hex digits of the other digest, at the end.
    sha512: Option<String>,
}

struct State {
    file: File,
    hasher: Sha256,
    /// For a destination that tells this one.
    other: Option<Sha512>,
    read: u64,
}

impl Reader {
    /// Opens the file of an image.
    ///
    /// # Errors
    /// It can't be read, or has another size.
    pub async fn open(path: &Path, image: &Image) -> Result<Self, DestinationError> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let path = path.to_owned();
        let opening = path.clone();
        let opened =
            tokio::task::spawn_blocking(move || File::open(opening).and_then(|file| Ok((file.metadata()?, file))));
        let (metadata, file) = match opened.await {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return Err(DestinationError::File { file: name, problem: error.to_string() }),
            Err(error) => return Err(DestinationError::File { file: name, problem: error.to_string() }),
        };
        let state = Some(State { file, hasher: Sha256::new(), other: None, read: 0 });
        let reader = Self { name, path, size: image.size, digest: image.digest.clone(), state, sha512: None };
        if !metadata.is_file() || metadata.len() != image.size {
            return Err(reader.wrong(&format!("it has {} bytes instead of {}", metadata.len(), image.size)));
        }
        if image.size == 0 {
            return Err(reader.wrong("it is empty"));
        }
        Ok(reader)
    }

    /// The same, which finds out the SHA-512 too.
    #[must_use]
    pub fn with_sha512(mut self) -> Self {
        if let Some(state) = &mut self.state {
            state.other = Some(Sha512::new());
        }
        self
    }

    /// Hex digits of its SHA-512, once all of it was read.
    pub fn sha512(&self) -> Option<String> {
        self.sha512.clone()
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads all of it, for its SHA-512 in hex digits where that was asked for.
    ///
    /// # Errors
    /// It can't be read, or is not the image.
    pub async fn sums(mut self) -> Result<Option<String>, DestinationError> {
        while self.next(PIECE).await?.is_some() {}
        Ok(self.sha512)
    }

    /// Bytes of all of it.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The next piece, of `most` bytes but for the last one; `None` after that.
    ///
    /// # Errors
    /// It can't be read, or is not the image.
    pub async fn next(&mut self, most: usize) -> Result<Option<Bytes>, DestinationError> {
        let Some(mut state) = self.state.take() else { return Ok(None) };
        let size = self.size;
        let reading = tokio::task::spawn_blocking(move || {
            let mut piece = Vec::new();
            let length = Read::by_ref(&mut state.file).take(most as u64).read_to_end(&mut piece)?;
            state.read += length as u64;
            state.hasher.update(&piece);
            if let Some(other) = &mut state.other {
                other.update(&piece);
            }
            // A file that grew is another one.
            let more = state.read >= size && state.file.read(&mut [0])? > 0;
            Ok::<_, std::io::Error>((state, Bytes::from(piece), more))
        });
        let (state, piece, more) = match reading.await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => return Err(self.wrong(&error.to_string())),
            Err(error) => return Err(self.wrong(&error.to_string())),
        };
        if more || piece.is_empty() {
            return Err(self.wrong("its size changed while it was read"));
        }
        if state.read < size {
            self.state = Some(state);
            return Ok(Some(piece));
        }
        self.sha512 = state.other.map(|other| hex(&other.finalize()));
        let found = format!("sha256:{}", hex(&state.hasher.finalize()));
        if found != self.digest {
            return Err(self.wrong(&format!("its digest is {found} instead of {}", self.digest)));
        }
        Ok(Some(piece))
    }

    fn wrong(&self, problem: &str) -> DestinationError {
        DestinationError::File { file: self.name.clone(), problem: problem.to_owned() }
    }
}
