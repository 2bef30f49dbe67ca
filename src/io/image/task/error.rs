//! Why a step failed, from what went wrong.

use std::io;
use std::path::Path;

use crate::core::image::build::Hope;
use crate::io::image::destination::DestinationError;
use crate::io::source::SourceError;

/// What is said of a disk without room.
const FULL: &str = "the disk of the work directories is full: make room there, or give it more";

/// Why a step failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StepError {
    /// Whether trying again can help.
    pub hope: Hope,
    /// What was tried, on what, and what to do; without secrets.
    pub message: String,
}

impl StepError {
    /// Trying again can help.
    pub fn transient(message: impl Into<String>) -> Self {
        Self { hope: Hope::Retry, message: message.into() }
    }

    /// Somebody has to change something first.
    pub fn hopeless(message: impl Into<String>) -> Self {
        Self { hope: Hope::None, message: message.into() }
    }

    /// Another process is at work there, and is waited for.
    pub fn later(message: impl Into<String>) -> Self {
        Self { hope: Hope::Later, message: message.into() }
    }

    /// It was called off.
    pub fn cancelled() -> Self {
        Self::transient("cancelled")
    }

    /// Whether it says that the disk was full.
    pub(super) fn is_of_full_disk(&self) -> bool {
        self.message.contains(FULL)
    }

    /// The same on a full disk, which tools say in their own ways, if at all. There may be room later.
    pub(super) fn on_full_disk(self) -> Self {
        let said = self.is_of_full_disk();
        Self::transient(if said { self.message } else { format!("{}; {FULL}", self.message) })
    }

    /// What was tried with a file of the work directory; a full disk is said as such.
    pub(super) fn file(action: &str, file: &Path, error: &io::Error) -> Self {
        let file = file.display();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::transient(format!("{action} {file} failed, for {FULL}; it is tried again"))
            }
            _ => Self::transient(format!("{action} {file} failed: {error}; it is tried again")),
        }
    }
}

impl From<SourceError> for StepError {
    fn from(error: SourceError) -> Self {
        let hope = if error.is_transient() { Hope::Retry } else { Hope::None };
        Self { hope, message: error.to_string() }
    }
}

impl From<DestinationError> for StepError {
    fn from(error: DestinationError) -> Self {
        let hope = if error.is_transient() { Hope::Retry } else { Hope::None };
        Self { hope, message: error.to_string() }
    }
}
