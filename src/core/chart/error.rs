//! What can go wrong with a chart.

use std::fmt;

use thiserror::Error;

use super::{Needs, Secrets};

/// A chart that can't be loaded.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChartError {
    /// There is no `Chart.yaml`.
    #[error("Chart.yaml file is missing")]
    NoMetadata,
    /// A file can't be read as what it should be.
    #[error("cannot load {file}: {message}")]
    File {
        /// The file's path in its chart.
        file: String,
        /// Why not.
        message: String,
    },
    /// `Chart.yaml` says something that Helm refuses.
    #[error("validation: {0}")]
    Metadata(String),
    /// A chart below `charts/` can't be loaded.
    #[error("error unpacking subchart {name} in {parent}: {source}")]
    Subchart {
        /// Its folder below `charts/`.
        name: String,
        /// The chart it belongs to.
        parent: String,
        /// What is wrong with it.
        source: Box<ChartError>,
    },
    /// Charts are nested too deeply.
    #[error("charts are nested more than {0} deep")]
    TooDeep(usize),
}

/// A chart that can't be rendered with the given input.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RenderError {
    /// A template doesn't parse.
    #[error("parse error at {0}")]
    Parse(Box<TemplateError>),
    /// A template fails.
    #[error("{0}")]
    Template(Box<TemplateError>),
    /// The chart says that it can't be installed.
    #[error("{0} charts are not installable")]
    NotInstallable(String),
    /// Charts that `Chart.yaml` names are not below `charts/`.
    #[error("found in Chart.yaml, but missing in charts/ directory: {}", .0.join(", "))]
    MissingDependencies(Vec<String>),
    /// The chart wants another Kubernetes.
    #[error("chart requires kubeVersion: {wanted} which is incompatible with Kubernetes {found}")]
    KubeVersion {
        /// The chart's constraint.
        wanted: String,
        /// The version there is.
        found: String,
    },
    /// The values can't be merged.
    #[error("{0}")]
    Values(String),
    /// The values are not what `values.schema.json` wants.
    #[error("values don't meet the specifications of the schema(s) in the following chart(s):\n{0}")]
    Schema(String),
    /// A rendered document is no YAML, or no Kubernetes object.
    #[error("YAML parse error on {path}: {message}")]
    Manifest {
        /// The template it came from.
        path: String,
        /// What is wrong.
        message: String,
        /// What was asked for in vain: with it the document may be another.
        lacks: Needs,
    },
}

impl RenderError {
    /// With secrets hidden in all that is shown.
    pub(crate) fn hiding(mut self, secrets: &Secrets) -> Self {
        match &mut self {
            Self::Template(error) | Self::Parse(error) => {
                error.message = secrets.hide(&error.message);
                for location in std::iter::once(&mut error.location).chain(&mut error.included_from) {
                    location.text = secrets.hide(&location.text);
                }
            }
            Self::Manifest { message, .. } => *message = secrets.hide(message),
            _ => {}
        }
        self
    }

    /// What was asked for in vain when the error occurred: with it the chart may render.
    pub fn lacks(&self) -> Needs {
        match self {
            Self::Template(error) => error.lacks.clone(),
            Self::Manifest { lacks, .. } => lacks.clone(),
            _ => Needs::default(),
        }
    }
}

/// A place in a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file, as `chart/templates/x.yaml`.
    pub file: String,
    /// The template that was executed: the file itself or what `define` named.
    pub template: String,
    /// From 1; 0 if only the file is known.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The line's text.
    pub text: String,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if self.template != self.file {
            write!(f, " in {:?}", self.template)?;
        }
        Ok(())
    }
}

/// A failure in a template.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub struct TemplateError {
    /// What happened, in Go's words.
    pub message: String,
    /// Where.
    pub location: Location,
    /// The places that included it, innermost first.
    pub included_from: Vec<Location>,
    /// What was asked for in vain up to then.
    pub lacks: Needs,
}

/// How many places of a chain of includes are shown.
const SHOWN: usize = 12;

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.location.line == 0 {
            return write!(f, "{}: {}", self.location, self.message);
        }
        let text = self.location.text.trim_end();
        let indent = text.len() - text.trim_start().len();
        let text = &text[indent..];
        let caret = self.location.column.saturating_sub(1).saturating_sub(indent).min(text.chars().count());
        write!(f, "{}: {}\n  | {text}\n  | {:caret$}^", self.location, self.message, "")?;
        for location in self.included_from.iter().take(SHOWN) {
            write!(f, "\n  included from {location}")?;
        }
        if self.included_from.len() > SHOWN {
            write!(f, "\n  and {} more", self.included_from.len() - SHOWN)?;
        }
        Ok(())
    }
}
