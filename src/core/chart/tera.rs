//! The Tera engine: templates named `*.tera`, in the language of the `tera` crate, version 2.
//!
//! Guarantees: what is undefined is an error with line and column where it is printed, looped over, looked into or
//! given to a filter; nothing is escaped for HTML; maps are written in the order that Helm writes them in.
//!
//! Caveats: joined with `~` what is undefined counts as an empty text, in a condition as false. Tera itself bounds the
//! nesting of expressions (40), of components (20) and the length of a range (100,000) and refuses circular includes.
//! It offers no way to count what a template does, so this engine counts what it writes and how often it calls
//! filters; a loop that does neither, or a variable that doubles over and over, isn't stopped.

mod engine;
mod error;
mod filters;
mod nesting;
mod session;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::Value;

pub use engine::Tera;
pub use error::{TeraError, TeraErrorKind};
use session::Session;

/// The Tera templates of a chart, parsed once and rendered any number of times, by any number of threads.
pub struct TeraTemplates {
    tera: tera::Tera,
    /// The templates that are rendered, sorted.
    names: Vec<String>,
}

/// What templates see. What is null isn't defined for them.
#[derive(Debug, Clone, Default)]
pub struct TeraContext {
    /// The chart's values, merged.
    pub values: Value,
    /// `name`, `namespace`, `service`, `revision`, `is_install`, `is_upgrade`.
    pub release: Value,
    /// `Chart.yaml`, its fields as they are written there.
    pub chart: Value,
    /// `kube_version {version, major, minor}`, `api_versions`.
    pub capabilities: Value,
    /// The chart's other files: path to text.
    pub files: Value,
    /// The Cluster of an addon.
    pub cluster: Value,
    /// The Cluster's control plane.
    pub control_plane: Value,
    /// The Cluster's infrastructure.
    pub infra_cluster: Value,
}

/// What a template asks the API server for; a name that is empty asks for a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TeraLookup {
    /// `v1`, `apps/v1`
    pub api_version: String,
    /// `Secret`
    pub kind: String,
    /// Empty for cluster-scoped objects or all namespaces.
    pub namespace: String,
    /// Empty for a list.
    pub name: String,
}

/// What a rendering may use.
#[derive(Debug, Clone)]
pub struct TeraLimits {
    /// Bytes that all templates together may write.
    pub output: usize,
    /// Writes, and calls of filters and functions.
    pub steps: u64,
    /// Set from outside to stop.
    pub stop: Option<Arc<AtomicBool>>,
}

impl Default for TeraLimits {
    /// 64 MiB and ten million steps.
    fn default() -> Self {
        Self { output: 64 << 20, steps: 10_000_000, stop: None }
    }
}

/// What templates rendered to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TeraTexts {
    /// The template's path and its text, sorted by path.
    pub files: Vec<(String, String)>,
    /// Lookups that had no answer: with answers the templates may render otherwise.
    pub missing_lookups: BTreeSet<TeraLookup>,
}

impl TeraTemplates {
    /// Parses templates, given by path and text. Those whose file name starts with `_` aren't rendered themselves but
    /// included, extended or used for their components.
    ///
    /// # Errors
    /// Syntax, and names of filters, tests, functions, components and templates that don't exist.
    pub fn parse<'a>(templates: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, TeraError> {
        let mut tera = tera::Tera::default();
        tera.autoescape_on(Vec::<&str>::new());
        filters::register(&mut tera);
        let templates: BTreeMap<_, _> = templates.into_iter().collect();
        nesting::check(&templates)?;
        let added = tera.add_raw_templates(templates.iter().map(|(name, text)| (*name, *text)));
        added.map_err(|error| TeraError::from_tera(TeraErrorKind::Parse, &error, ""))?;
        let names = templates.into_keys().filter(|name| !is_partial(name)).map(str::to_owned).collect();
        Ok(Self { tera, names })
    }

    /// Whether there is nothing to render.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Renders all templates but the partial ones: path and text, sorted by path. Each lookup finds nothing.
    ///
    /// # Errors
    /// The first failure, with file, line and column; a limit that was reached.
    pub fn render(&self, context: &TeraContext) -> Result<Vec<(String, String)>, TeraError> {
        self.render_with(context, &BTreeMap::new(), &TeraLimits::default()).map(|texts| texts.files)
    }

    /// [`render`](Self::render) with answers to lookups and limits of one's own.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_with(
        &self,
        context: &TeraContext,
        lookups: &BTreeMap<TeraLookup, Value>,
        limits: &TeraLimits,
    ) -> Result<TeraTexts, TeraError> {
        let context = context.to_tera()?;
        let mut session = Session { output: limits.output, steps: limits.steps, ..Session::default() };
        session.stop.clone_from(&limits.stop);
        for (lookup, answer) in lookups {
            session.answers.insert(lookup.clone(), to_tera(answer)?);
        }
        let (result, session) = nesting::with_room(|| {
            session.run(|| self.names.iter().map(|name| self.render_one(name, &context)).collect::<Result<Vec<_>, _>>())
        })?;
        match (result, session.limit) {
            (Ok(files), _) => Ok(TeraTexts { files, missing_lookups: session.missing }),
            (Err(error), None) => Err(TeraError { missing_lookups: session.missing, ..error }),
            (Err(error), Some(limit)) => Err(TeraError { kind: TeraErrorKind::Limit, message: limit.into(), ..error }),
        }
    }

    fn render_one(&self, name: &str, context: &tera::Context) -> Result<(String, String), TeraError> {
        let mut writer = Writer(Vec::new());
        let rendered = self.tera.render_to(name, context, &mut writer);
        rendered.map_err(|error| TeraError::from_tera(TeraErrorKind::Render, &error, name))?;
        match String::from_utf8(writer.0) {
            Ok(text) => Ok((name.to_owned(), text)),
            Err(_) => Err(TeraError::new(TeraErrorKind::Render, name, "writes bytes that are no text")),
        }
    }
}

/// Whether a template is only there for others: its file name starts with `_`.
fn is_partial(path: &str) -> bool {
    path.rsplit('/').next().unwrap_or(path).starts_with('_')
}

impl TeraContext {
    fn to_tera(&self) -> Result<tera::Context, TeraError> {
        let variables = [
            ("values", &self.values),
            ("release", &self.release),
            ("chart", &self.chart),
            ("capabilities", &self.capabilities),
            ("files", &self.files),
            ("cluster", &self.cluster),
            ("control_plane", &self.control_plane),
            ("infra_cluster", &self.infra_cluster),
        ];
        let mut context = tera::Context::new();
        for (name, value) in variables {
            if !value.is_null() {
                context.insert_value(name, to_tera(value)?);
            }
        }
        Ok(context)
    }
}

fn to_tera(value: &Value) -> Result<tera::Value, TeraError> {
    let value = tera::Value::try_from_serializable(value);
    value.map_err(|error| TeraError::from_tera(TeraErrorKind::Render, &error, ""))
}

/// Collects what a template writes, as far as the session allows.
struct Writer(Vec<u8>);

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        session::write(bytes.len()).map_err(io::Error::other)?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
