//! What is wrong with a template, and where.

use std::collections::BTreeSet;
use std::fmt;

use tera::ErrorKind;

use super::TeraLookup;

/// Why templates can't be parsed or rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeraError {
    /// When it was noticed.
    pub kind: TeraErrorKind,
    /// The template's path; empty if the failure belongs to none.
    pub file: String,
    /// From 1; 0 if it isn't known.
    pub line: usize,
    /// From 1, in characters; 0 if it isn't known.
    pub column: usize,
    /// What is wrong, in Tera's words.
    pub message: String,
    /// The line of the template, with what is wrong in it underlined, and the places it was called from.
    pub report: String,
    /// Lookups that had no answer up to then: with answers the template may render.
    pub missing_lookups: BTreeSet<TeraLookup>,
}

/// When a failure was noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TeraErrorKind {
    /// While the templates were parsed.
    Parse,
    /// While one was rendered.
    Render,
    /// A rendering wanted more than it may have.
    Limit,
}

impl TeraError {
    pub(super) fn new(kind: TeraErrorKind, file: &str, message: impl Into<String>) -> Self {
        let (file, message) = (file.to_owned(), message.into());
        Self { kind, file, line: 0, column: 0, message, report: String::new(), missing_lookups: BTreeSet::new() }
    }

    /// Takes Tera's error apart. `file` counts where Tera tells none.
    pub(super) fn from_tera(kind: TeraErrorKind, error: &tera::Error, file: &str) -> Self {
        match error.kind() {
            ErrorKind::SyntaxError(report) | ErrorKind::RenderingError(report) => {
                let span = report.span();
                let mut located = Self::new(kind, report.filename(), report.message());
                // Lines count from 1 there, columns from 0.
                (located.line, located.column) = (span.start_line, span.start_col + 1);
                located.report = excerpt(&error.to_string());
                located
            }
            _ => Self::from_report(kind, &error.to_string(), file),
        }
    }

    /// What Tera finds when it joins templates it tells in text only: the first of several reports.
    fn from_report(kind: TeraErrorKind, text: &str, file: &str) -> Self {
        let mut lines = text.lines();
        let message = lines.next().unwrap_or_default();
        let place = lines.next().and_then(|line| line.trim_start().strip_prefix("--> "));
        let place = place.and_then(|place| {
            let (place, column) = place.rsplit_once(':')?;
            let (file, line) = place.rsplit_once(':')?;
            Some((file, line.parse().ok()?, column.parse().ok()?))
        });
        let Some((file, line, column)) = place else { return Self::new(kind, file, text) };
        let mut located = Self::new(kind, file, message.strip_prefix("error: ").unwrap_or(message));
        (located.line, located.column) = (line, column);
        located.report = excerpt(text);
        located
    }
}

/// A report of Tera's without its first two lines, the message and the place.
fn excerpt(report: &str) -> String {
    report.lines().skip(2).collect::<Vec<_>>().join("\n")
}

impl fmt::Display for TeraError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            f.write_str(&self.file)?;
            if self.line > 0 {
                write!(f, ":{}:{}", self.line, self.column)?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.message)?;
        if !self.report.is_empty() {
            write!(f, "\n{}", self.report)?;
        }
        Ok(())
    }
}

impl std::error::Error for TeraError {}
