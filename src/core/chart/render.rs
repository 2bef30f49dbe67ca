//! From a chart and its input to documents.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value as Json;

use super::dependencies::{Node, coalesce, missing, process_enabled, process_imports};
use super::engine::{Charts, Engine, GoTemplate};
use super::error::{RenderError, TemplateError};
use super::go_template::eval::{Definitions, Eval, define, locate};
use super::go_template::json::{from_json, to_json};
use super::go_template::parse::parse;
use super::go_template::value::Value;
use super::load::Chart;
use super::manifests::{self, Document};
use super::schema;
use super::scope::Tree;
use super::tera::Tera;
use super::values::new_map;
use super::version::is_compatible;
use super::{Drawn, Needs, RenderInput, Rendered};

/// Renders a chart: Go templates as `helm template` does, and Tera's.
///
/// # Errors
/// What Helm refuses, and what exceeds the input's limits.
pub fn render(chart: &Chart, input: &RenderInput<'_>) -> Result<Rendered, RenderError> {
    render_with(chart, input, &[&GoTemplate, &Tera])
}

/// Renders a chart with several engines, each of which takes its own templates.
///
/// # Errors
/// As [`render`], and what the engines refuse.
pub fn render_with(chart: &Chart, input: &RenderInput<'_>, engines: &[&dyn Engine]) -> Result<Rendered, RenderError> {
    if !matches!(chart.metadata.kind.as_str(), "" | "application") {
        return Err(RenderError::NotInstallable(chart.metadata.kind.clone()));
    }
    let missing = missing(chart);
    if !missing.is_empty() {
        return Err(RenderError::MissingDependencies(missing));
    }
    let tree = resolve(chart, input)?;
    let wanted = &chart.metadata.kube_version;
    let found = &input.capabilities.kube_version.version;
    if !wanted.is_empty() && !is_compatible(wanted, found) {
        return Err(RenderError::KubeVersion { wanted: wanted.clone(), found: found.clone() });
    }
    let mut crds = Vec::new();
    if input.include_crds {
        collect_crds(&tree.root, &mut crds)?;
    }
    let mut files = std::collections::BTreeMap::new();
    let (mut missing_lookups, mut drawn) = (BTreeSet::new(), Drawn::new());
    for engine in engines {
        let mut texts = engine.render(&Charts { tree: &tree }, input)?;
        files.append(&mut texts.files);
        missing_lookups.append(&mut texts.missing_lookups);
        drawn.append(&mut texts.drawn);
    }
    let notes_path = format!("{}/templates/NOTES.txt", chart.name());
    let notes = files.remove(&notes_path);
    files.retain(|path, _| !path.ends_with("NOTES.txt"));
    let mut documents = crds;
    documents.append(&mut manifests::sorted(&files, input.include_comments)?);
    Ok(Rendered { documents, notes, missing_lookups, drawn })
}

/// Enables subcharts, merges values and checks them.
fn resolve<'a>(chart: &'a Chart, input: &RenderInput<'_>) -> Result<Tree<'a>, RenderError> {
    let given = || match &input.values {
        Json::Null => Ok(new_map()),
        json @ Json::Object(_) => match from_json(json) {
            Value::Map(map) => Ok(map),
            _ => Ok(new_map()),
        },
        other => Err(RenderError::Values(format!("values are no map but {}", super::metadata::json_type(other)))),
    };
    let root = Node::new(chart);
    process_enabled(&root, &given()?, "", input.helm)?;
    process_imports(&root, input.helm)?;
    let values = given()?;
    coalesce(&root, &values, false, input.helm)?;
    let tree = Tree { root, values };
    schema::validate(&tree)?;
    Ok(tree)
}

/// The files in `crds/`, of the chart and then of its subcharts.
fn collect_crds(node: &Node<'_>, documents: &mut Vec<Document>) -> Result<(), RenderError> {
    let path = node.path();
    for (name, data) in &node.chart.files {
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        let manifest = ["yaml", "yml", "json"].iter().any(|known| extension.eq_ignore_ascii_case(known));
        if name.starts_with("crds/") && manifest {
            let text = String::from_utf8_lossy(data);
            manifests::crds(&format!("{path}/{name}"), &text, documents)?;
        }
    }
    for child in node.children() {
        collect_crds(&child, documents)?;
    }
    Ok(())
}

/// Renders one template text with `root` as its data: what a stack's `cluster-addon-values.yaml` is.
///
/// # Errors
/// Syntax errors, failures of the template, exceeded limits.
pub fn render_text(name: &str, template: &str, root: &Json, input: &RenderInput<'_>) -> Result<String, RenderError> {
    let parsed = parse(template).map_err(|error| {
        RenderError::Parse(Box::new(TemplateError {
            message: error.message,
            location: locate(template, error.pos, name, name),
            included_from: Vec::new(),
            lacks: Needs::default(),
        }))
    })?;
    let name: Arc<str> = name.into();
    let mut definitions = Definitions::new();
    define(&mut definitions, &name, &parsed);
    let data = from_json(root).unwrap_interface();
    let text = Eval::new(input, definitions).render(&name, &data).map_err(RenderError::Template);
    // What the template linked into the data may hold cycles.
    if let Some(map) = data.as_map() {
        map.clear();
    }
    text
}

/// The merged values of a chart as its templates see them, for those who want to look at them.
///
/// # Errors
/// Values that don't fit.
pub fn merged_values(chart: &Chart, input: &RenderInput<'_>) -> Result<Json, RenderError> {
    let tree = resolve(chart, input)?;
    Ok(to_json(&Value::Map(tree.values)).unwrap_or(Json::Null))
}
