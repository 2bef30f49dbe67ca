//! What is wrong with a template, and where.

use std::collections::BTreeMap;
use std::fmt;

use tera::ErrorKind;

use super::meter::Metered;
use crate::core::chart::{Location, RenderError, TemplateError};

/// Why templates can't be parsed or rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeraError {
    /// When it was noticed.
    pub kind: TeraErrorKind,
    /// What and where, the message in Tera's words. Without a place the line is 0.
    pub details: Box<TemplateError>,
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
    pub(in crate::core::chart) fn new(kind: TeraErrorKind, file: &str, message: impl Into<String>) -> Self {
        let location = location(file, 0, 0, "");
        let (included_from, lacks) = Default::default();
        Self {
            kind,
            details: Box::new(TemplateError { message: message.into(), location, included_from, lacks, quotes: true }),
        }
    }

    /// Takes Tera's error apart. `file` counts where Tera tells none.
    pub(super) fn from_tera(kind: TeraErrorKind, error: &tera::Error, file: &str) -> Self {
        let mut located = Self::from_report(kind, &error.to_string(), file);
        if let ErrorKind::SyntaxError(report) | ErrorKind::RenderingError(report) = error.kind() {
            report.message().clone_into(&mut located.details.message);
        }
        located
    }

    /// Most errors Tera tells in text only. Its reports look like this; of several the first counts.
    ///
    /// ```text
    /// error: Unknown filter `nope`
    ///  --> templates/x.yaml.tera:1:10
    ///   |
    /// 1 | {{ 'x' | nope }}
    ///   |          ^^^^
    ///
    /// note: called from templates/y.yaml.tera:2:6
    ///   |
    /// 2 | ...
    /// ```
    fn from_report(kind: TeraErrorKind, report: &str, file: &str) -> Self {
        let mut places = Vec::new();
        let mut lines = report.lines();
        let message = lines.next().unwrap_or_default();
        while let Some(line) = lines.next() {
            if line.starts_with("error: ") {
                break;
            }
            let place = line.trim_start().strip_prefix("--> ").or_else(|| line.strip_prefix("note: "));
            let Some((name, line, column)) = place.and_then(place_of) else { continue };
            let text = lines.nth(1).and_then(|text| text.split_once(" | ")).map_or("", |(_, text)| text);
            places.push(location(name.rsplit(' ').next().unwrap_or(name), line, column, text));
        }
        if places.is_empty() {
            return Self::new(kind, file, report);
        }
        let mut located = Self::new(kind, "", message.strip_prefix("error: ").unwrap_or(message));
        located.details.location = places.remove(0);
        located.details.included_from = places;
        located
    }

    /// With places as in the templates that were metered.
    pub(super) fn located(mut self, metered: &BTreeMap<String, Metered>) -> Self {
        let details = &mut self.details;
        for location in std::iter::once(&mut details.location).chain(&mut details.included_from) {
            if let Some(metered) = metered.get(&location.file) {
                metered.locate(location);
            }
        }
        self
    }

    /// Names the files as they are called in the whole chart.
    pub(super) fn in_chart(mut self, path: &str) -> Self {
        let details = &mut self.details;
        for location in std::iter::once(&mut details.location).chain(&mut details.included_from) {
            if !location.file.is_empty() {
                location.file = format!("{path}/{}", location.file);
                location.template.clone_from(&location.file);
            }
        }
        self
    }
}

/// `file:line:column`
fn place_of(text: &str) -> Option<(&str, usize, usize)> {
    let (text, column) = text.rsplit_once(':')?;
    let (file, line) = text.rsplit_once(':')?;
    Some((file, line.parse().ok()?, column.parse().ok()?))
}

fn location(file: &str, line: usize, column: usize, text: &str) -> Location {
    Location { file: file.to_owned(), template: file.to_owned(), line, column, text: text.to_owned() }
}

impl fmt::Display for TeraError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.details.fmt(f)
    }
}

impl std::error::Error for TeraError {}

impl From<TeraError> for RenderError {
    fn from(error: TeraError) -> Self {
        match error.kind {
            TeraErrorKind::Parse => Self::Parse(error.details),
            TeraErrorKind::Render | TeraErrorKind::Limit => Self::Template(error.details),
        }
    }
}
