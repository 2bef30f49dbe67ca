//! Reads a chart from its files.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use memchr::memmem;
use rayon::prelude::*;
use serde_json::{Map, Value as Json};

use super::engine::Engine as _;
use super::error::ChartError;
use super::go_template::ast::File;
use super::go_template::memo::Memo;
use super::go_template::parse::{ParseError, parse};
use super::go_template::shared::{SharedMap, shared};
use super::ignore;
use super::metadata::{Dependency, Metadata};
use super::schema::Schema;
use super::tera::{Tera, TeraError, TeraErrorKind, TeraTemplates};
use crate::core::files::{FileTree, below};
use crate::core::yaml;

/// A chart, parsed: it can be shared and rendered any number of times.
#[derive(Clone, Debug)]
pub struct Chart {
    pub(crate) metadata: Arc<Metadata>,
    pub(crate) values: Map<String, Json>,
    /// All documents of `values.yaml`, merged, where it has several: Helm 4 takes them all.
    pub(crate) all_values: Option<Arc<Result<Map<String, Json>, ChartError>>>,
    /// The values as templates see them.
    pub(crate) defaults: SharedMap,
    pub(crate) schema: Option<Arc<Schema>>,
    pub(crate) templates: Vec<Template>,
    pub(crate) files: Arc<BTreeMap<Arc<str>, Bytes>>,
    /// What one rendering can leave to the next.
    pub(crate) memo: Arc<Memo>,
    pub(crate) dependencies: Vec<Arc<Chart>>,
    /// Its Tera templates, if it has any. An error counts only when the chart is enabled.
    pub(crate) tera: Option<Arc<Result<TeraTemplates, TeraError>>>,
}

/// A file below `templates/`.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    /// `templates/x.yaml`
    pub(crate) path: String,
    pub(crate) data: Bytes,
    /// An error counts only when the chart is enabled.
    pub(crate) parsed: Result<Arc<File>, ParseError>,
}

/// The suffix of a packaged chart.
const ARCHIVE: &str = ".tgz";

/// The suffix of the signature that lies beside a packaged chart.
const PROVENANCE: &str = ".prov";

/// The folder of templates.
const TEMPLATES: &str = "templates/";

/// From how many bytes on a chart is read on several cores.
const MANY: usize = 64 << 10;

/// Charts may be nested that deep.
const MAX_DEPTH: usize = 32;

impl Chart {
    /// Reads a packaged chart: every file counts, as with Helm's archives.
    ///
    /// Subcharts are unpacked below `charts/`, as `charts/x/Chart.yaml` or as `charts/x-1.2.3.tgz/x/Chart.yaml`.
    pub fn load(files: &FileTree) -> Result<Self, ChartError> {
        Self::load_at(files, 0)
    }

    /// Reads a chart's directory: what `.helmignore` names is left out.
    pub fn load_directory(files: &FileTree) -> Result<Self, ChartError> {
        Self::load_at(&ignore::filter(files)?, 0)
    }

    /// The chart's name.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// The chart's version.
    pub fn version(&self) -> &str {
        &self.metadata.version
    }

    /// What `Chart.yaml` says.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The chart's default values, without those of its subcharts.
    pub fn values(&self) -> &Map<String, Json> {
        &self.values
    }

    /// The charts below `charts/`.
    pub fn dependencies(&self) -> impl Iterator<Item = &Chart> {
        self.dependencies.iter().map(AsRef::as_ref)
    }

    /// What `Chart.yaml` names and `charts/` lacks.
    pub fn missing_dependencies(&self) -> impl Iterator<Item = &Dependency> {
        let has = |name: &str| self.dependencies().any(|found| found.name() == name);
        self.metadata.dependencies.iter().filter(move |dependency| !has(&dependency.name))
    }

    /// The files that are neither templates nor charts nor values.
    pub fn files(&self) -> &BTreeMap<Arc<str>, Bytes> {
        &self.files
    }

    fn load_at(files: &FileTree, depth: usize) -> Result<Self, ChartError> {
        if depth > MAX_DEPTH {
            return Err(ChartError::TooDeep(MAX_DEPTH));
        }
        let files = &without_marks(files);
        let metadata = metadata(files)?;
        let mut chart = Self {
            values: Map::new(),
            all_values: None,
            defaults: Arc::new([]),
            schema: files.get("values.schema.json").map(|text| Arc::new(Schema::new(text.clone()))),
            templates: Vec::new(),
            files: Arc::default(),
            memo: Arc::default(),
            dependencies: Vec::new(),
            tera: None,
            metadata: Arc::new(metadata),
        };
        let (templates, read) = both(
            files,
            || read_templates(files),
            || {
                let values = values(files)?;
                let defaults = shared(&values);
                // A subchart may be disabled, and its schema never be asked.
                if let (0, Some(schema)) = (depth, &chart.schema) {
                    schema.compile_early();
                }
                Ok((values, defaults))
            },
        );
        (chart.values, chart.defaults) = read?;
        chart.templates = templates;
        chart.all_values = files.get("values.yaml").and_then(several).map(Arc::new);
        let mut others = BTreeMap::new();
        for (path, data) in files {
            match path.as_str() {
                "Chart.yaml" | "values.yaml" | "values.schema.json" | "Chart.lock" => {}
                "requirements.yaml" | "requirements.lock" if chart.metadata.api_version != "v1" => {}
                path if path.starts_with(TEMPLATES) => {}
                path if path.starts_with("charts/") && path.strip_suffix(PROVENANCE).is_none() => {}
                path => _ = others.insert(path.into(), data.clone()),
            }
        }
        chart.files = Arc::new(others);
        chart.tera = tera(&chart.templates);
        chart.load_dependencies(files, depth)?;
        Ok(chart)
    }

    fn load_dependencies(&mut self, files: &FileTree, depth: usize) -> Result<(), ChartError> {
        let charts = below(files, "charts");
        let mut names: Vec<&str> = Vec::new();
        for path in charts.keys() {
            let (name, is_file) = path.split_once('/').map_or((path.as_str(), true), |(name, _)| (name, false));
            if name.starts_with(['_', '.']) || is_file && name.ends_with(PROVENANCE) {
                continue;
            }
            if is_file {
                // As in Helm, a file directly below `charts/` has to be a chart.
                let source = if name.ends_with(ARCHIVE) {
                    ChartError::File { file: path.clone(), message: "archive is not unpacked".into() }
                } else {
                    ChartError::NoMetadata
                };
                return Err(self.bad_subchart(name, source));
            }
            if names.last() != Some(&name) {
                names.push(name);
            }
        }
        for name in names {
            let folder = below(&charts, name);
            let root = if folder.contains_key("Chart.yaml") {
                folder
            } else if let Some(inner) = unpacked(name, &folder) {
                below(&folder, inner)
            } else {
                folder
            };
            let chart = Self::load_at(&root, depth + 1).map_err(|source| self.bad_subchart(name, source))?;
            self.dependencies.push(Arc::new(chart));
        }
        Ok(())
    }

    fn bad_subchart(&self, name: &str, source: ChartError) -> ChartError {
        ChartError::Subchart { name: name.into(), parent: self.name().into(), source: Box::new(source) }
    }
}

/// The files that take long to read.
fn is_read(path: &str) -> bool {
    path.starts_with(TEMPLATES) || matches!(path, "values.yaml" | "values.schema.json")
}

/// Both results, found at the same time if the chart is large.
fn both<A: Send, B: Send>(files: &FileTree, a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
    let bytes: usize = files.iter().filter(|(path, _)| is_read(path)).map(|(_, data)| data.len()).sum();
    if bytes < MANY { (a(), b()) } else { rayon::join(a, b) }
}

/// The default values.
fn values(files: &FileTree) -> Result<Map<String, Json>, ChartError> {
    let Some(data) = files.get("values.yaml") else { return Ok(Map::new()) };
    table(read("values.yaml", data, yaml::parse)?)
}

/// The templates, in the order of their paths.
fn read_templates(files: &FileTree) -> Vec<Template> {
    let read = |(path, data): (&String, &Bytes)| Template {
        path: path.clone(),
        data: data.clone(),
        // Tera's are no Go templates: an empty one stands in.
        parsed: template_text(if Tera.handles(path) { &[] } else { data }).and_then(|text| parse(&text)).map(Arc::new),
    };
    let templates: Vec<_> = files.iter().filter(|(path, _)| path.starts_with(TEMPLATES)).collect();
    let bytes: usize = templates.iter().map(|(_, data)| data.len()).sum();
    if bytes < MANY { templates.into_iter().map(read).collect() } else { templates.into_par_iter().map(read).collect() }
}

/// What is said of a file that has to be one.
pub(super) const NO_TEXT: &str = "it is no text: it is not in UTF-8";

/// A template's text. What stood for bytes that are no UTF-8 would reach the cluster; in a comment they are left out.
fn template_text(data: &[u8]) -> Result<Cow<'_, str>, ParseError> {
    // Checking is faster than looking for comments.
    if let Ok(text) = std::str::from_utf8(data) {
        return Ok(Cow::Borrowed(text));
    }
    String::from_utf8(without_letters_in_comments(data)).map(Cow::Owned).map_err(|error| ParseError {
        pos: u32::try_from(error.utf8_error().valid_up_to()).unwrap_or(u32::MAX),
        message: NO_TEXT.to_owned(),
    })
}

/// The text that [`template_text`] reads, for errors: places in it are those that they tell.
pub(super) fn shown(data: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(data) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(String::from_utf8_lossy(&without_letters_in_comments(data)).into_owned()),
    }
}

/// The same text, as long, with nothing but ASCII in its comments.
fn without_letters_in_comments(data: &[u8]) -> Vec<u8> {
    let mut text = data.to_vec();
    let mut at = 0;
    while let Some(open) = memmem::find(&data[at..], b"{{") {
        at += open + 2;
        let inside = data[at..].strip_prefix(b"-").map_or(&data[at..], <[u8]>::trim_ascii_start);
        if !inside.starts_with(b"/*") {
            continue;
        }
        let end = memmem::find(&data[at..], b"*/").map_or(data.len(), |end| at + end);
        text[at..end].iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'?');
        at = end;
    }
    text
}

/// The Tera templates among a chart's templates, if there are any.
fn tera(templates: &[Template]) -> Option<Arc<Result<TeraTemplates, TeraError>>> {
    let tera = templates.iter().filter(|template| Tera.handles(&template.path));
    let tera: Vec<_> = tera.collect();
    if tera.is_empty() {
        return None;
    }
    let texts = tera.into_iter().map(|template| match std::str::from_utf8(&template.data) {
        Ok(text) => Ok((template.path.as_str(), text)),
        Err(_) => Err(TeraError::new(TeraErrorKind::Parse, &template.path, NO_TEXT)),
    });
    let texts: Result<Vec<_>, _> = texts.collect();
    Some(Arc::new(texts.and_then(TeraTemplates::parse)))
}

/// Helm drops the byte order mark that some editors put before a text.
fn without_marks(files: &FileTree) -> FileTree {
    let without = |data: &Bytes| if data.starts_with(b"\xef\xbb\xbf") { data.slice(3..) } else { data.clone() };
    files.iter().map(|(path, data)| (path.clone(), without(data))).collect()
}

/// The only folder of an unpacked archive.
fn unpacked<'f>(name: &str, folder: &'f FileTree) -> Option<&'f str> {
    name.strip_suffix(ARCHIVE)?;
    folder.keys().find_map(|path| path.strip_suffix("/Chart.yaml").filter(|inner| !inner.contains('/')))
}

fn read(file: &str, data: &Bytes, parse: impl FnOnce(&str) -> Result<Json, yaml::Error>) -> Result<Json, ChartError> {
    let bad = |message: String| ChartError::File { file: file.into(), message };
    let text = std::str::from_utf8(data).map_err(|error| bad(error.to_string()))?;
    parse(text).map_err(|error| bad(error.to_string()))
}

/// The map that `values.yaml` has to be.
fn table(values: Json) -> Result<Map<String, Json>, ChartError> {
    match values {
        Json::Null => Ok(Map::new()),
        Json::Object(map) => Ok(map),
        other => {
            let found = super::metadata::json_type(&other);
            let message = format!(
                "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
            );
            Err(ChartError::File { file: "values.yaml".into(), message })
        }
    }
}

/// The documents of `values.yaml` merged, if it has several: a later one wins.
fn several(data: &Bytes) -> Option<Result<Map<String, Json>, ChartError>> {
    let text = std::str::from_utf8(data).ok().filter(|text| text.contains("\n---"))?;
    let bad = |error: yaml::Error| ChartError::File { file: "values.yaml".into(), message: error.to_string() };
    Some(yaml::parse_all(text).map_err(bad).and_then(|documents| {
        documents.into_iter().try_fold(Map::new(), |mut merged, document| {
            merge(&mut merged, table(document.value)?);
            Ok(merged)
        })
    }))
}

fn merge(into: &mut Map<String, Json>, from: Map<String, Json>) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Json::Object(into)), Json::Object(from)) => merge(into, from),
            (_, value) => _ = into.insert(key, value),
        }
    }
}

fn metadata(files: &FileTree) -> Result<Metadata, ChartError> {
    let mut metadata = Metadata::default();
    let mut found = false;
    for file in ["Chart.yaml", "requirements.yaml"] {
        let Some(data) = files.get(file) else { continue };
        found |= file == "Chart.yaml";
        let json = read(file, data, yaml::parse_with_floats)?;
        metadata.read(&json).map_err(|message| ChartError::File { file: file.into(), message })?;
        if metadata.api_version.is_empty() {
            metadata.api_version = "v1".into();
        }
    }
    if !found {
        return Err(ChartError::NoMetadata);
    }
    metadata.validate().map_err(ChartError::Metadata)?;
    Ok(metadata)
}
