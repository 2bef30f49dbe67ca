//! What one rendering of a chart can leave to the next: patterns and texts for `tpl`, read.
//!
//! All of it follows from what it is asked for by, so no rendering can tell whether another one came before it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use regex::Regex;

use super::ast::File;
use super::parse::{ParseError, parse};

/// Texts and patterns longer than that together are forgotten.
const MAX_BYTES: usize = 1 << 20;

/// As many patterns as that are remembered: one may take megabytes.
const MAX_PATTERNS: usize = 32;

/// Patterns and parsed texts by what they were written as.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    regexes: Mutex<HashMap<Arc<str>, Regex>>,
    parsed: Mutex<Texts>,
}

#[derive(Debug, Default)]
struct Texts {
    files: HashMap<Arc<str>, Arc<File>>,
    bytes: usize,
}

impl Memo {
    /// The compiled pattern; `build` makes it when it isn't known.
    pub(crate) fn regex<E>(&self, pattern: &str, build: impl FnOnce() -> Result<Regex, E>) -> Result<Regex, E> {
        let mut known = self.regexes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(regex) = known.get(pattern) {
            return Ok(regex.clone());
        }
        let regex = build()?;
        if known.len() >= MAX_PATTERNS {
            known.clear();
        }
        known.insert(pattern.into(), regex.clone());
        Ok(regex)
    }

    /// The parsed text.
    pub(crate) fn parsed(&self, source: &str) -> Result<Arc<File>, ParseError> {
        let mut known = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = known.files.get(source) {
            return Ok(file.clone());
        }
        let file = Arc::new(parse(source)?);
        if known.bytes.saturating_add(source.len()) > MAX_BYTES {
            known.files.clear();
            known.bytes = 0;
        }
        known.bytes += source.len();
        known.files.insert(source.into(), file.clone());
        Ok(file)
    }
}
