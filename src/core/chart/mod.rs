//! Charts: load, merge values, render with one of the engines.
//!
//! ```text
//! FileTree ─load→ Chart ─render(input)→ per engine: file → text ─split, sort→ [Document]
//! ```
//!
//! A [`Chart`] is parsed once, can be shared between threads and rendered any number of times; all that may differ
//! between two renderings is in [`RenderInput`]. There is no clock, no network and no randomness in here: the time
//! and the seed of random functions come with the input, and so do the answers to `lookup`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use serde_json::Value as Json;

use crate::core::manifest::{ObjectKey, split_api_version};
use crate::core::name::is_label;

mod capabilities;
mod dependencies;
mod engine;
mod error;
mod function_table;
mod go_template;
#[cfg(test)]
mod helm_versions;
mod ignore;
mod keyring;
mod load;
mod manifests;
mod metadata;
mod misfit;
mod quoted;
mod render;
mod schema;
mod scope;
mod secrets;
pub mod tera;
mod times;
mod values;
mod version;

pub use capabilities::{Capabilities, KubeVersion};
pub use engine::{Charts, Engine, GoTemplate, Scope, Texts};
pub use error::{ChartError, Location, RenderError, TemplateError};
pub use function_table::{FunctionState, Origin, State, function_states};
pub use ignore::filter as without_ignored;
pub use keyring::{Drawn, Kept, Keyring, Needs, Seed};
pub use load::Chart;
pub use manifests::{Document, Hook};
pub use metadata::{Dependency, Maintainer, Metadata};
pub use misfit::Misfit;
pub use render::{merged_values, render, render_text, render_texts, render_with};
pub use secrets::Secrets;
pub use tera::{Tera, TeraContext, TeraError, TeraErrorKind, TeraTemplates};
pub use times::{InputDigest, Times};
pub use version::{Constraint, Version};

/// The names of all template functions of that Helm, sorted.
pub fn function_names(helm: HelmVersion) -> Vec<&'static str> {
    go_template::functions::names(helm)
}

/// The release that a chart is rendered for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Its name.
    pub name: String,
    /// The namespace it is installed in.
    pub namespace: String,
    /// Counts from 1.
    pub revision: i64,
    /// Whether an earlier revision exists.
    pub is_upgrade: bool,
}

impl Release {
    /// Longest name, in bytes: what charts append to it has to fit into the 63 of a label (Helm's `ValidateReleaseName`).
    pub const MAX_NAME: usize = 53;

    /// Whether Helm takes it for the name of a release.
    pub fn is_name(name: &str) -> bool {
        name.len() <= Self::MAX_NAME && name.split('.').all(is_label)
    }

    /// The first revision.
    pub fn new(name: impl Into<String>, namespace: impl Into<String>) -> Self {
        Self { name: name.into(), namespace: namespace.into(), revision: 1, is_upgrade: false }
    }
}

/// What a template asks the API server for; a name that is empty asks for a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lookup {
    /// `v1`, `apps/v1`
    pub api_version: String,
    /// `Secret`
    pub kind: String,
    /// Empty for cluster-scoped objects or all namespaces.
    pub namespace: String,
    /// Empty for a list.
    pub name: String,
}

impl Lookup {
    /// The object that it asks for; `None` where it asks for a list.
    pub fn key(&self) -> Option<ObjectKey> {
        let Self { api_version, kind, namespace, name } = self.clone();
        let (group, _) = split_api_version(&api_version);
        (!name.is_empty()).then(|| ObjectKey { group: group.to_owned(), kind, namespace, name })
    }
}

/// What one rendering may use. A template that wants more fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How deep templates may include each other.
    pub include_depth: usize,
    /// Bytes that one file may render to, and sixteen times that for all intermediate texts.
    pub output: usize,
    /// Pipelines, calls and iterations.
    pub steps: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { include_depth: 1000, output: 32 << 20, steps: 50_000_000 }
    }
}

/// The Helm that charts are rendered like, where its versions differ.
///
/// | | [`V3`](Self::V3) | [`V4`](Self::V4) |
/// |---|---|---|
/// | a default of the chart that is null, and no value given | the key is there, with nil | the key is missing |
/// | two aliases of one chart | share its subcharts: what disables one disables both | have their own |
/// | several documents in `values.yaml` | the first counts | they are merged |
/// | `.Chart` | a struct: a field that is missing is an error | a map: what is missing is nil |
/// | functions for durations, `mustToYaml`, `mustToToml` | unknown | known |
/// | the types of `.Values`, `.Capabilities` and their parts | `chartutil.Values` | `common.Values` |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HelmVersion {
    /// Helm 3.21
    #[default]
    V3,
    /// Helm 4.3
    V4,
}

/// What a number without a fraction is to templates, by Go's types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeNumbers {
    /// `float64`, as every number that Helm reads as YAML.
    Float64,
    /// `int64`, as a number of Helm's `--set`.
    Int64,
}

/// What is done with the schemas of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schemas {
    /// Values that one refuses make no rendering, nor do schemas that can't be read.
    #[default]
    Checked,
    /// They are not even read, as with Helm's `--skip-schema-validation`.
    PassedOver,
}

/// Everything that a rendering depends on besides the chart.
#[derive(Clone, Debug)]
pub struct RenderInput<'a> {
    /// The release.
    pub release: Release,
    /// The user's values: they win over the chart's, and null deletes a default.
    pub values: Json,
    /// What their whole numbers are.
    pub whole_numbers: WholeNumbers,
    /// The cluster.
    pub capabilities: &'a Capabilities,
    /// The Helm to render like.
    pub helm: HelmVersion,
    /// What `now` gives. Without it `now` fails, and the error says that it is needed.
    pub now: Option<Timestamp>,
    /// What random functions draw from. Without one they fail, and the error says that one is needed.
    pub seed: Option<Seed>,
    /// Keys and certificates that were made before.
    pub drawn: &'a Drawn,
    /// The time that decides whether a certificate is to be made anew; none ever is without it.
    pub clock: Option<Timestamp>,
    /// What may be used.
    pub limits: Limits,
    /// Answers to `lookup`. A lookup without an answer gives an empty map and is reported.
    pub lookups: &'a BTreeMap<Lookup, Json>,
    /// What is done with the charts' `values.schema.json`.
    pub schemas: Schemas,
    /// Whether the files in `crds/` are among the documents.
    pub include_crds: bool,
    /// Whether those stay unread: their objects are null then. Helm prints them so, without a look inside.
    pub crds_as_text: bool,
    /// Whether documents of comments alone are among the documents, as null: Helm prints them.
    pub include_comments: bool,
    /// More top-level names for templates: `Cluster`, `ControlPlane`, `InfraCluster`.
    pub extra: BTreeMap<String, Json>,
    /// Set from outside to stop.
    pub stop: Option<Arc<AtomicBool>>,
}

impl<'a> RenderInput<'a> {
    /// An input with no values, no answers and default limits.
    pub fn new(release: Release, capabilities: &'a Capabilities, now: Timestamp) -> Self {
        static NONE: BTreeMap<Lookup, Json> = BTreeMap::new();
        static NOTHING: Drawn = Drawn::new();
        Self {
            release,
            values: Json::Object(serde_json::Map::new()),
            whole_numbers: WholeNumbers::Float64,
            capabilities,
            helm: HelmVersion::default(),
            now: Some(now),
            seed: None,
            drawn: &NOTHING,
            clock: None,
            limits: Limits::default(),
            lookups: &NONE,
            schemas: Schemas::Checked,
            include_crds: true,
            crds_as_text: false,
            include_comments: false,
            extra: BTreeMap::new(),
            stop: None,
        }
    }
}

/// An object that is a hook (`helm.sh/hook`) of an event that Helm does not know: it is part of nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The file, as `chart/templates/x.yaml`.
    pub source: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The event.
    pub hook: String,
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, name, hook, .. } = self;
        write!(f, "{kind} {name} is left out: its helm.sh/hook {hook:?} is none that Helm knows")
    }
}

/// What a chart rendered to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    /// The objects in Helm's order: CRDs, then by kind, then hooks.
    pub documents: Vec<Document>,
    /// What is left out, as Helm does.
    pub left_out: Vec<LeftOut>,
    /// Values that did not fit, of which Helm warns.
    pub misfits: BTreeSet<Misfit>,
    /// What `NOTES.txt` says.
    pub notes: Option<String>,
    /// Lookups that had no answer: with answers the chart may render otherwise.
    pub missing_lookups: BTreeSet<Lookup>,
    /// Lookups that had an answer.
    pub answered_lookups: BTreeSet<Lookup>,
    /// Keys and certificates that were used: those to keep for the next rendering.
    pub drawn: Drawn,
    /// It asked for the time.
    pub asked_time: bool,
    /// What no message about the objects may show.
    pub secrets: Secrets,
}
