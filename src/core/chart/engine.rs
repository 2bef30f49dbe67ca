//! The seam between charts and the template languages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value as Json;

use super::error::RenderError;
use super::scope::Tree;
use super::{Drawn, Lookup, RenderInput, Secrets};

/// What one chart of a tree of charts offers to its templates.
pub struct Scope<'a> {
    /// The chart's path: `parent/charts/child`.
    pub path: String,
    /// The chart itself. An alias is in `path` and `name`.
    pub chart: &'a super::Chart,
    /// The name it goes by.
    pub name: String,
    /// Its values, merged.
    pub values: Json,
    /// Whether it is the chart that is rendered.
    pub is_root: bool,
    /// Its templates: the path in the whole (`parent/charts/child/templates/x.yaml`) and the text.
    pub templates: Vec<(String, &'a Bytes)>,
}

/// Texts by the template they came from.
#[derive(Debug, Default)]
pub struct Texts {
    /// The path in the whole, and what the template rendered to.
    pub files: BTreeMap<String, String>,
    /// Of those that are not in UTF-8, the first line that is not; it holds U+FFFD in place of what is no character.
    pub not_text: BTreeMap<String, usize>,
    /// Lookups that had no answer.
    pub missing_lookups: BTreeSet<Lookup>,
    /// Lookups that had an answer.
    pub answered_lookups: BTreeSet<Lookup>,
    /// What no error may show.
    pub secrets: Secrets,
    /// Keys and certificates that were used.
    pub drawn: Drawn,
    /// The time was asked for.
    pub asked_time: bool,
}

/// A template language. Each template of a chart belongs to exactly one engine.
pub trait Engine: Sync {
    /// Whether a template (`templates/x.yaml`) is this engine's.
    fn handles(&self, template: &str) -> bool;

    /// Renders the templates of a chart and its subcharts.
    fn render(&self, charts: &Charts<'_>, input: &RenderInput<'_>) -> Result<Texts, RenderError>;
}

/// A chart with its enabled subcharts and merged values, ready for engines.
pub struct Charts<'a> {
    pub(crate) tree: &'a Tree<'a>,
}

impl<'a> Charts<'a> {
    /// The charts, parents first, with those templates that `engine` handles.
    pub fn scopes(&self, engine: &dyn Engine) -> Vec<Scope<'a>> {
        self.tree.scopes(&|template| engine.handles(template))
    }
}

/// The suffix of templates that are no Go templates.
const TERA: &str = ".tera";

/// Go's template language with sprig's and Helm's functions.
#[derive(Clone, Copy, Debug, Default)]
pub struct GoTemplate;

impl Engine for GoTemplate {
    fn handles(&self, template: &str) -> bool {
        !template.ends_with(TERA)
    }

    fn render(&self, charts: &Charts<'_>, input: &RenderInput<'_>) -> Result<Texts, RenderError> {
        charts.tree.render_go(input, &|template| self.handles(template))
    }
}

/// A path's text, shared.
pub(crate) type Path = Arc<str>;
