//! What is wrong with a YAML text, and where.

use std::fmt;

/// Why a text can't be read, with the place it was noticed at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    line: usize,
    column: usize,
    path: Option<String>,
    message: String,
}

impl Error {
    pub(super) fn new(line: usize, column: usize, message: impl Into<String>) -> Self {
        Self { line, column, path: None, message: message.into() }
    }

    pub(super) fn at_path(line: usize, column: usize, path: String, message: String) -> Self {
        // The path of the whole document is written `.`: it says nothing.
        Self { line, column, path: Some(path).filter(|path| path != "."), message }
    }

    /// The line, counted from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The column, counted from 1 in characters.
    pub fn column(&self) -> usize {
        self.column
    }

    /// The field that doesn't fit, e.g. `addonStages.AfterControlPlaneInitialized[0].name`; only of
    /// [`from_str`](super::from_str).
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// What is wrong, without the place.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: ", self.line, self.column)?;
        if let Some(path) = &self.path {
            write!(f, "{path}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
