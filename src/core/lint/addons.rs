//! Addons: their stages, their values for a Cluster, what they render to. And the node images.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value};

use super::charts::{self, Wanted};
use super::{Desk, Rendered, injected, line_in, names, sample_cluster};
use crate::api::condition::cut;
use crate::core::addon::values::{self, ADDON_VALUES, OVERWRITE, Template, ValuesError};
use crate::core::addon::{condition, essential};
use crate::core::addon_config::{Action, AddonConfig, Hook};
use crate::core::bundle::CLUSTER_ADDON;
use crate::core::chart::{Capabilities, Release, RenderInput, Seed};
use crate::core::files::below;
use crate::core::image::pipeline::{Pipeline, Work};
use crate::core::image::room::MAX_IMAGES;
use crate::core::image::{command, naming};
use crate::core::manifest::ObjectKey;
use crate::core::name::ReleaseName;
use crate::core::node_images::{self, NodeImages};
use crate::core::package::Identity;

const CONFIG: &str = "clusteraddon.yaml";

/// Looks at the addons and renders them.
pub(super) fn check(desk: &mut Desk<'_>, identity: &Identity, name: &ReleaseName) -> Vec<Rendered> {
    let has_charts = desk.files.keys().any(|path| path.starts_with("cluster-addon/"));
    let Some(config) = desk.files.get(CONFIG) else {
        if has_charts {
            return single(desk, identity, name).into_iter().collect();
        }
        desk.find("no-addon", None, None, "the stack has no cluster-addon: its clusters get no network");
        return Vec::new();
    };
    let config = match std::str::from_utf8(config).map(AddonConfig::parse) {
        Ok(Ok(config)) => config,
        problem => {
            let problem = match problem {
                Ok(Err(error)) => error.to_string(),
                _ => "it is not valid UTF-8".to_owned(),
            };
            desk.find(
                "addon-config",
                Some(CONFIG),
                line_in(&problem),
                format!("clusteraddon.yaml can't be used: {problem}"),
            );
            return Vec::new();
        }
    };
    conditions(desk, &config);
    let stages = config.charts();
    if stages.is_empty() {
        desk.find("no-addon", Some(CONFIG), None, "clusteraddon.yaml names no stage: clusters get no addons");
    }
    for directory in crate::core::package::chart_directories(desk.files) {
        let stage = directory.strip_prefix("cluster-addon/").filter(|stage| !stages.contains(stage));
        if let Some(stage) = stage {
            let message = format!("no stage of clusteraddon.yaml is called {stage}: the chart is never applied");
            desk.find("chart-stage", Some(&format!("{directory}/Chart.yaml")), None, message);
        }
    }
    if let Ok(Some((file, _))) = values::template(ADDON_VALUES, |file| desk.files.get(file)) {
        let message = "no stage reads it: move what is in it to overwrite.yaml in the charts of the stages";
        desk.find("values-unread", Some(&file), None, message);
    }
    let mut all = Vec::new();
    for stage in stages {
        let directory = format!("{CLUSTER_ADDON}/{stage}");
        if !desk.files.contains_key(&format!("{directory}/Chart.yaml")) {
            let message = format!("the stage {stage} has no chart: add {directory}/Chart.yaml or remove the stage");
            desk.find("stage-chart", Some(CONFIG), names::line_of(desk.files.get(CONFIG), stage), message);
            continue;
        }
        let own = format!("{directory}/{OVERWRITE}");
        let rendered = one(desk, identity, name, (&directory, &own));
        if let (true, Some(chart)) = (is_deleted_last(&config, stage), &rendered) {
            deletion(desk, stage, chart);
        }
        all.extend(rendered);
    }
    shared(desk, &config, &all);
    all
}

/// Tells what two stages apply: in a cluster, the later one overwrites it.
fn shared(desk: &mut Desk<'_>, config: &AddonConfig, charts: &[Rendered]) {
    let mut seen: BTreeMap<&ObjectKey, &str> = BTreeMap::new();
    for chart in charts {
        let Some(stage) = chart.chart.rsplit('/').next().filter(|stage| is_applied(config, stage)) else { continue };
        for (manifest, file) in &chart.objects {
            let first = *seen.entry(&manifest.key).or_insert(stage);
            if first != stage {
                let message = format!(
                    "{} is applied by the stages {first} and {stage}: the one that comes later overwrites it",
                    manifest.key
                );
                desk.find("object-in-stages", Some(file), None, message);
            }
        }
    }
}

fn is_applied(config: &AddonConfig, name: &str) -> bool {
    config.stages.values().flatten().any(|stage| stage.name == name && stage.action == Action::Apply)
}

/// Looks at the conditions that stages wait for: a cluster would find out only at their turn.
fn conditions(desk: &mut Desk<'_>, config: &AddonConfig) {
    for stage in config.stages.values().flatten() {
        let gates = [
            ("waitForPreCondition", &stage.wait_for_pre_condition),
            ("waitForPostCondition", &stage.wait_for_post_condition),
        ];
        for (gate, wait) in gates {
            let Some(Err(error)) = wait.as_ref().map(condition::check) else { continue };
            let line = names::line_of(desk.files.get(CONFIG), &stage.name);
            desk.find("stage-condition", Some(CONFIG), line, format!("{gate} of the stage {}: {error}", stage.name));
        }
    }
}

fn is_deleted_last(config: &AddonConfig, name: &str) -> bool {
    config.of(Hook::BeforeClusterDelete).iter().any(|stage| stage.name == name)
}

/// Tells what a cluster would lack before its machines are deleted.
fn deletion(desk: &mut Desk<'_>, stage: &str, chart: &Rendered) {
    for (manifest, file) in &chart.objects {
        let Some(need) = essential::of(&manifest.object) else { continue };
        let message = format!(
            "the stage {stage} of BeforeClusterDelete would delete {}: {}; take it out of that hook",
            manifest.key,
            need.as_str()
        );
        desk.find("stage-deletion", Some(file), None, message);
    }
}

/// The addon of a stack without stages.
fn single(desk: &mut Desk<'_>, identity: &Identity, name: &ReleaseName) -> Option<Rendered> {
    if desk.files.contains_key(&format!("{CLUSTER_ADDON}/Chart.yaml")) {
        let own = format!("{CLUSTER_ADDON}/{OVERWRITE}");
        let has_values = matches!(values::template(ADDON_VALUES, |file| desk.files.get(file)), Ok(Some(_)) | Err(_));
        return one(desk, identity, name, (CLUSTER_ADDON, if has_values { ADDON_VALUES } else { &own }));
    }
    let message = "there is neither clusteraddon.yaml, which names the stages, nor cluster-addon/Chart.yaml";
    desk.find("addon-config", None, None, message);
    None
}

/// A Cluster as its addons see it: its endpoint is there by then, and in no manifest that somebody writes.
fn with_endpoint(cluster: &Value, sample: &Value) -> Value {
    let mut cluster = cluster.clone();
    if let Some(spec) = cluster.get_mut("spec").and_then(Value::as_object_mut) {
        spec.entry("controlPlaneEndpoint").or_insert_with(|| sample["spec"]["controlPlaneEndpoint"].clone());
    }
    cluster
}

/// The chart of a directory, with the values that a file gives for a Cluster.
fn one(
    desk: &mut Desk<'_>,
    identity: &Identity,
    name: &ReleaseName,
    (directory, file): (&str, &str),
) -> Option<Rendered> {
    let kubernetes = desk.options.kubernetes.unwrap_or(&identity.kubernetes_version);
    let sample = sample_cluster(name, &identity.kubernetes_version, desk.options.namespace);
    let given = desk.options.cluster.map(|cluster| with_endpoint(cluster, &sample));
    let extra = injected(given.as_ref().unwrap_or(&sample));
    let expanded = desk.expanded;
    let values = match values::template(file, |file| expanded.get(file)) {
        Ok(None) => Map::new(),
        Ok(Some((file, text))) => match for_cluster(&file, text, &extra, kubernetes, desk.options.now) {
            Ok(values) => values,
            Err((message, line)) => {
                desk.find("addon-values", Some(&file), line, message);
                return None;
            }
        },
        Err(error) => {
            desk.find("addon-values", Some(file), None, error.to_string());
            return None;
        }
    };
    let wanted = Wanted {
        directory,
        files: below(desk.expanded, directory),
        release: Release::new("cluster-addon", "kube-system"),
        values,
        extra,
        kubernetes: Some(kubernetes),
        is_addon: true,
    };
    let rendered = charts::rendered(desk, wanted)?;
    if rendered.objects.is_empty() {
        let message = "the chart renders no object for a Cluster with nothing special";
        desk.find("empty-render", Some(&format!("{directory}/Chart.yaml")), None, message);
    }
    Some(rendered)
}

/// The values that a file gives for a Cluster; a problem with its line.
fn for_cluster(
    file: &str,
    text: &Bytes,
    cluster: &BTreeMap<String, Value>,
    kubernetes: &str,
    now: jiff::Timestamp,
) -> Result<Map<String, Value>, (String, Option<usize>)> {
    let text = std::str::from_utf8(text).map_err(|_| ("it is not valid UTF-8".to_owned(), None))?;
    if file.ends_with(values::TERA) {
        return of_tera(file, text, cluster, kubernetes);
    }
    let capabilities = Capabilities::for_kube_version(kubernetes).unwrap_or_default();
    let release = Release::new("cluster-addon", "kube-system");
    let input = RenderInput { seed: Some(Seed([0; 32])), ..RenderInput::new(release, &capabilities, now) };
    let root = Value::Object(cluster.clone().into_iter().collect());
    let template = Template { file: file.to_owned(), text: text.to_owned() };
    match values::of_stack(&template, &root, &input) {
        Ok(Value::Object(map)) if is_wrapped(&map) => {
            Err(("its values are no text: write `values: |` with the template below".to_owned(), None))
        }
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Ok(Map::new()),
        Err(ValuesError::Template { error, .. }) => {
            Err((format!("its values do not render for a Cluster: {error}"), None))
        }
        Err(error) => Err((format!("once rendered, {error}"), None)),
    }
}

/// Whether somebody forgot the `|` behind `values:`: a chart would get them one level too deep.
fn is_wrapped(map: &Map<String, Value>) -> bool {
    map.len() == 1 && map.get("values").is_some_and(Value::is_object)
}

/// The values that a Tera template gives for a Cluster; the problem with its line.
fn of_tera(
    file: &str,
    text: &str,
    cluster: &BTreeMap<String, Value>,
    kubernetes: &str,
) -> Result<Map<String, Value>, (String, Option<usize>)> {
    let capabilities = Capabilities::for_kube_version(kubernetes).unwrap_or_default();
    let template = Template { file: file.to_owned(), text: text.to_owned() };
    let root = Value::Object(cluster.clone().into_iter().collect());
    match values::of_stack(&template, &root, &values::input(&capabilities)) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Ok(Map::new()),
        Err(error) => {
            let message = error.to_string();
            let place = message.rsplit_once(&format!("{file}:")).map(|(_, rest)| rest);
            let line = place.and_then(|rest| rest.split(':').next()?.parse().ok());
            let line = line.or_else(|| line_in(&message));
            Err((message, line))
        }
    }
}

/// The list of node images.
pub(super) fn images(desk: &mut Desk<'_>) {
    for file in node_images::FILES {
        let Some(text) = desk.files.get(file) else { continue };
        let problem = match std::str::from_utf8(text).map(NodeImages::parse) {
            Ok(Ok(list)) => {
                twice(desk, file, &list);
                too_many(desk, file, &list);
                for image in &list.images {
                    let line = names::line_of(desk.files.get(file), &image.name);
                    match Pipeline::of(image) {
                        Err(error) => desk.find("node-images", Some(file), line, error.to_string()),
                        Ok(Some(pipeline)) if list.api_version == node_images::API_VERSION => {
                            unverified(desk, "image-checksum", file, line, &pipeline);
                            commands(desk, file, line, &pipeline);
                            name(desk, file, line, &pipeline.image);
                        }
                        Ok(Some(pipeline)) => unverified(desk, "image-unverified", file, line, &pipeline),
                        Ok(None) => {}
                    }
                }
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it is not valid UTF-8".to_owned(),
        };
        desk.find("node-images", Some(file), line_in(&problem), format!("the list can't be read: {problem}"));
    }
}

/// Tells what executor Task refuses of any provider: only a Job could run it.
fn commands(desk: &mut Desk<'_>, file: &str, line: Option<usize>, pipeline: &Pipeline) {
    for step in &pipeline.steps {
        let Work::Build(tool) = &step.work else { continue };
        let program = command::check_tool(tool.command.first().map_or("", String::as_str));
        let arguments = command::check_arguments(tool.command.get(1..).unwrap_or_default());
        let environment = command::environment(&BTreeMap::new(), &tool.env).map(drop);
        if let Err(refused) = program.and(arguments).and(environment) {
            let message = format!("image {}, step {}: {refused}", pipeline.image, step.name);
            desk.find("image-command", Some(file), line, message);
        }
    }
}

/// Tells which destinations can't take an image's name.
fn name(desk: &mut Desk<'_>, file: &str, line: Option<usize>, name: &str) {
    let refusals = naming::refusals(name);
    let said: Vec<String> = refusals.iter().map(|(kind, what)| format!("{kind} ({what})")).collect();
    let (rule, which) = match refusals.len() {
        0 => return,
        naming::KINDS => ("image-name", "No destination takes the name"),
        _ => ("image-name-narrow", "Some destinations can't take the name"),
    };
    let message = format!("image {:?}: {which}: {}", cut(name, 128), said.join(", "));
    desk.find(rule, Some(file), line, message);
}

/// Tells of a list that no release has room for.
fn too_many(desk: &mut Desk<'_>, file: &str, list: &NodeImages) {
    let found = list.images.iter().filter(|image| matches!(Pipeline::of(image), Ok(Some(_)))).count();
    if found > MAX_IMAGES {
        let message =
            format!("{found} images are to be brought, and a release has room for {MAX_IMAGES}: make the list shorter");
        desk.find("node-images", Some(file), None, message);
    }
}

/// Tells of a download that the built-in provider refuses: a fault of a list in its own form; who has a list in another's may
/// have that provider.
fn unverified(desk: &mut Desk<'_>, rule: &'static str, file: &str, line: Option<usize>, pipeline: &Pipeline) {
    if let Some(step) = pipeline.unverified() {
        let message = format!(
            "image {}: nothing vouches for what step {} gets: give it a checksum, or put a verify step behind it",
            pipeline.image, step.name
        );
        desk.find(rule, Some(file), line, message);
    }
}

fn twice(desk: &mut Desk<'_>, file: &str, list: &NodeImages) {
    let mut seen = std::collections::BTreeSet::new();
    for image in &list.images {
        if !seen.insert(&image.name) {
            let line = names::line_of(desk.files.get(file), &image.name);
            desk.find(
                "node-images",
                Some(file),
                line,
                format!("two images are called {}: templates can't tell them apart", image.name),
            );
        }
    }
}
