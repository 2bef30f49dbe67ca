//! Charts: whether they load and render, and the one of the ClusterClass.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::names::line_of;
use super::{Desk, Rendered, line_in};
use crate::core::addon::helm_hooks::with_name;
use crate::core::bundle::{Bundle, BundleError, CLUSTER_CLASS};
use crate::core::chart::{Capabilities, Chart, ChartError, Document, Release, RenderError, RenderInput, Seed, render};
use crate::core::files::{FileTree, below};
use crate::core::manifest::{Manifest, without_lists};
use crate::core::name::ReleaseName;
use crate::core::package;

/// A chart with how to render it.
pub(super) struct Wanted<'a> {
    /// Its directory in the stack.
    pub(super) directory: &'a str,
    /// Its files, archives below `charts/` unpacked.
    pub(super) files: FileTree,
    /// Name and namespace.
    pub(super) release: Release,
    /// Over its defaults.
    pub(super) values: Map<String, Value>,
    /// More names for templates.
    pub(super) extra: BTreeMap<String, Value>,
    /// The Kubernetes that it sees; the usual one without.
    pub(super) kubernetes: Option<&'a str>,
    /// Whether it is for clusters of users.
    pub(super) is_addon: bool,
}

/// Dependencies that are not there.
pub(super) fn dependencies(desk: &mut Desk<'_>) {
    for directory in package::chart_directories(desk.expanded) {
        let file = format!("{directory}/Chart.yaml");
        match Chart::load_directory(&below(desk.expanded, &directory)) {
            Err(error) => {
                let message = format!("the chart can't be loaded: {error}");
                let broken = match &error {
                    ChartError::File { file, .. } => format!("{directory}/{file}"),
                    _ => file,
                };
                desk.find("chart-load", Some(&broken), line_in(&message), message);
            }
            Ok(chart) => {
                for missing in chart.missing_dependencies() {
                    let (name, version) = (&missing.name, &missing.version);
                    let message = format!(
                        "{name} {version} from {} is not in charts/: run `helm dependency build {directory}`",
                        missing.repository
                    );
                    let line = line_of(desk.files.get(&file), &format!("name: {name}"));
                    desk.find("dependency", Some(&file), line, message);
                }
            }
        }
    }
}

/// The class chart, rendered.
pub(super) fn class(desk: &mut Desk<'_>, name: &ReleaseName) -> Option<Rendered> {
    let file = format!("{CLUSTER_CLASS}/Chart.yaml");
    if !desk.files.contains_key(&file) {
        desk.find("class-chart", None, None, format!("there is no {file}: add the chart of the ClusterClass"));
        return None;
    }
    let directory = below(desk.expanded, CLUSTER_CLASS);
    let chart = Chart::load_directory(&directory).ok()?;
    let expected = format!("{}-{CLUSTER_CLASS}", name.stem());
    if chart.name() != expected {
        let message = format!("the chart is called {:?}, csctl.yaml makes it {expected:?}", chart.name());
        desk.find("chart-name", Some(&file), line_of(desk.files.get(&file), "name:"), message);
    }
    let files = match versioned(desk, name) {
        Ok(files) => files,
        Err(error @ BundleError::ChartVersion { .. }) => {
            desk.find("chart-version", Some(&file), line_of(desk.files.get(&file), "version:"), error.to_string());
            return None;
        }
        // What else is wrong has rules of its own.
        Err(_) => directory,
    };
    let wanted = Wanted {
        directory: CLUSTER_CLASS,
        files,
        release: Release::new(name.stem(), desk.options.namespace),
        values: Map::new(),
        extra: BTreeMap::new(),
        kubernetes: None,
        is_addon: false,
    };
    rendered(desk, wanted)
}

/// The class chart as a release has it.
fn versioned(desk: &Desk<'_>, name: &ReleaseName) -> Result<FileTree, BundleError> {
    // Only what is needed for the class: a broken addon has findings of its own.
    let own = |path: &str| path.starts_with("cluster-class/");
    let files = desk.expanded.iter().filter(|(path, _)| own(path)).map(|(path, file)| (path.clone(), file.clone()));
    Ok(Bundle::from_files(name, &files.collect(), &BTreeMap::new())?.class_chart)
}

/// Renders a chart; what goes wrong is found.
pub(super) fn rendered(desk: &mut Desk<'_>, wanted: Wanted<'_>) -> Option<Rendered> {
    let directory = wanted.directory;
    let chart = Chart::load_directory(&wanted.files).ok()?;
    let has_values = wanted.files.contains_key("values.yaml");
    // Their absence was found; Helm would not render either.
    if chart.missing_dependencies().next().is_some() {
        return None;
    }
    let usual = Capabilities::default();
    let capabilities = match wanted.kubernetes.map(Capabilities::for_kube_version) {
        Some(Ok(capabilities)) => capabilities,
        _ => usual,
    };
    let input = RenderInput {
        values: Value::Object(wanted.values),
        extra: wanted.extra,
        // The same each time: a report should not differ by what was drawn.
        seed: Some(Seed([0; 32])),
        include_crds: wanted.is_addon,
        ..RenderInput::new(wanted.release, &capabilities, desk.options.now)
    };
    let documents = match render(&chart, &input) {
        Ok(rendered) => {
            for misfit in &rendered.misfits {
                let file = if has_values { "values.yaml" } else { "Chart.yaml" };
                let file = format!("{directory}/{file}");
                desk.find("value-misfit", Some(&file), None, misfit.to_string());
            }
            for left_out in rendered.left_out {
                let file = in_stack(directory, chart.name(), &left_out.source);
                desk.find("hook-unknown", Some(&file), None, left_out.to_string());
            }
            rendered.documents
        }
        Err(error) => {
            refused(desk, directory, chart.name(), &error);
            return None;
        }
    };
    let is_test = |document: &Document| {
        document.hook.as_ref().is_some_and(|hook| hook.events.iter().all(|event| event.starts_with("test")))
    };
    let mut objects = Vec::new();
    for document in documents.into_iter().filter(|document| !is_test(document)) {
        let file = in_stack(directory, chart.name(), &document.source);
        let is_addon_hook = wanted.is_addon && document.hook.is_some();
        for object in without_lists(document.object) {
            match Manifest::from_value(if is_addon_hook { with_name(object) } else { object }) {
                Ok(manifest) => objects.push((manifest, file.clone())),
                Err(error) => desk.find("object", Some(&file), None, error.to_string()),
            }
        }
    }
    Some(Rendered { chart: directory.to_owned(), is_addon: wanted.is_addon, objects })
}

fn refused(desk: &mut Desk<'_>, directory: &str, chart: &str, error: &RenderError) {
    match error {
        RenderError::Parse(at) | RenderError::Template(at) => {
            let file = in_stack(directory, chart, &at.location.file);
            desk.find("render", Some(&file), Some(at.location.line), at.message.clone());
        }
        RenderError::Manifest { path, message, .. } => {
            let file = in_stack(directory, chart, path);
            desk.find("render", Some(&file), None, format!("what it renders to can't be read: {message}"));
        }
        RenderError::Schema(_) => {
            desk.find("values-schema", Some(&format!("{directory}/values.schema.json")), None, error.to_string());
        }
        other => desk.find("render", Some(&format!("{directory}/Chart.yaml")), None, other.to_string()),
    }
}

/// `<directory>/templates/x.yaml` of `<chart>/templates/x.yaml`.
fn in_stack(directory: &str, chart: &str, source: &str) -> String {
    let path = source.strip_prefix(chart).and_then(|rest| rest.strip_prefix('/'));
    format!("{directory}/{}", path.unwrap_or(source))
}
