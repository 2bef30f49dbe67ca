//! The Tera engine: templates named `*.tera`, in the language of the `tera` crate, version 2.
//!
//! Guarantees: what is undefined is an error with line and column where it is printed, looped over, looked into or
//! given to a filter; nothing is escaped for HTML; maps are written in the order that Helm writes them in.
//!
//! Caveats: joined with `~` what is undefined counts as an empty text, in a condition as false. Tera itself bounds the
//! nesting of expressions (40), of components (20) and the length of a range (100,000) and refuses circular includes.
//! It offers no way to count what a template does, so tags that count are added to its loops and variables, and what is
//! written and each call of one of our filters is counted too. Components that multiply what they are given, inside of each
//! other and never written themselves, are bounded by the nesting of components alone.

mod engine;
mod error;
mod filters;
mod meter;
mod nesting;
mod session;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use serde_json::Value;

use super::engine::Texts;
use super::{Limits, Lookup};
pub use engine::Tera;
pub use error::{TeraError, TeraErrorKind};
use meter::Metered;
use session::Session;

/// How many times the output may be printed on the way to it: a text within a component within another is printed thrice.
const AGAIN: usize = 4;

/// The Tera templates of a chart, parsed once and rendered any number of times, by any number of threads.
pub struct TeraTemplates {
    tera: tera::Tera,
    metered: BTreeMap<String, Metered>,
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
    /// `kube_version {version, major, minor}`, `api_versions`, `helm_version`.
    pub capabilities: Value,
    /// The chart's other files by their path: texts, or bytes for `b64enc`.
    pub files: BTreeMap<Arc<str>, Bytes>,
    /// The Cluster of an addon.
    pub cluster: Value,
    /// The Cluster's control plane.
    pub control_plane: Value,
    /// The Cluster's infrastructure.
    pub infra_cluster: Value,
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
        let mut metered = BTreeMap::new();
        for (name, text) in &templates {
            metered.insert((*name).to_owned(), Metered::new(name, text)?);
        }
        let added = tera.add_raw_templates(metered.iter().map(|(name, metered)| (name, &metered.text)));
        added.map_err(|error| TeraError::from_tera(TeraErrorKind::Parse, &error, "").located(&metered))?;
        let names = templates.into_keys().filter(|name| !is_partial(name)).map(str::to_owned).collect();
        Ok(Self { tera, metered, names })
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
        let texts = self.render_with(context, &BTreeMap::new(), &Limits::default(), None)?;
        Ok(texts.files.into_iter().collect())
    }

    /// [`render`](Self::render) with answers to lookups, with limits (output counts for all templates together, a step
    /// is a write or the call of a filter), and with a flag to stop it.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_with(
        &self,
        context: &TeraContext,
        lookups: &BTreeMap<Lookup, Value>,
        limits: &Limits,
        stop: Option<&Arc<AtomicBool>>,
    ) -> Result<Texts, TeraError> {
        let context = context.to_tera()?;
        let (output, steps, stop) = (limits.output, limits.steps, stop.cloned());
        let captured = output.saturating_mul(AGAIN);
        let mut session = Session { steps, output, whole_output: output, captured, stop, ..Session::default() };
        for (lookup, answer) in lookups {
            session.answers.insert(lookup.clone(), to_tera(answer)?);
        }
        let render_all = || self.names.iter().map(|name| self.render_one(name, &context)).collect();
        let (result, session) = nesting::with_room(|| session.run(render_all))?;
        let missing_lookups = session.missing;
        match result {
            Ok(files) => Ok(Texts { files, missing_lookups, answered_lookups: session.answered, ..Texts::default() }),
            Err(error) => {
                let mut error: TeraError = error;
                error.details.lacks.lookups = missing_lookups;
                if let Some(limit) = session.limit {
                    error.kind = TeraErrorKind::Limit;
                    limit.clone_into(&mut error.details.message);
                }
                Err(error)
            }
        }
    }

    fn render_one(&self, name: &str, context: &tera::Context) -> Result<(String, String), TeraError> {
        let mut writer = Writer(Vec::new());
        let rendered = self.tera.render_to(name, context, &mut writer);
        rendered.map_err(|error| TeraError::from_tera(TeraErrorKind::Render, &error, name).located(&self.metered))?;
        match String::from_utf8(writer.0) {
            Ok(text) => Ok((name.to_owned(), text)),
            Err(_) => Err(TeraError::new(TeraErrorKind::Render, name, "writes bytes that are no text")),
        }
    }
}

impl fmt::Debug for TeraTemplates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TeraTemplates").field("names", &self.names).finish_non_exhaustive()
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
        let files = self.files.iter().map(|(path, data)| {
            let text = std::str::from_utf8(data);
            (path.to_string(), text.map_or_else(|_| tera::Value::bytes(data.to_vec()), tera::Value::from))
        });
        let files: BTreeMap<String, tera::Value> = files.collect();
        context.insert_value("files", tera::Value::from(files));
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
