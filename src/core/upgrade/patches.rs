//! What the inline patches of a ClusterClass make of its templates for one Cluster: our own evaluation of the rules of
//! Cluster API's topology controller. External patches are asked of nobody: what they change is unknown.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::class::{ClassObjects, Slot, TemplateReference, WorkerKind};
use super::variables::{self, Definition};
use crate::core::addon::values;
use crate::core::chart::{Capabilities, render_text};
use crate::core::yaml;

/// Annotations that Cluster API does not hand to patches.
const LEFT_OUT: [&str; 2] = ["kubectl.kubernetes.io/last-applied-configuration", "cluster.x-k8s.io/conversion-data"];

/// Why a patch fails.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PatchError {
    /// A variable has no value.
    #[error("variable {0:?} has no value")]
    NoValue(String),
    /// A path of a variable can't be read.
    #[error("{0:?} is no path of a variable: write name, name.field or name[0].field")]
    Path(String),
    /// A template fails.
    #[error("its template fails: {0}")]
    Template(String),
    /// What a template gives is no YAML.
    #[error("its template gives no YAML: {0}")]
    Yaml(String),
    /// There must be exactly one of value, valueFrom.variable and valueFrom.template.
    #[error("it needs exactly one of value, valueFrom.variable and valueFrom.template")]
    Value,
    /// It can't be applied to the template.
    #[error("it can't be applied: {0}")]
    Apply(String),
}

/// What templates are evaluated for.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The Cluster.
    pub cluster: &'a Value,
    /// Its control plane, where it exists.
    pub control_plane: Option<&'a Value>,
    /// Its workers that exist, by kind and name in the topology.
    pub workers: &'a BTreeMap<(WorkerKind, String), Value>,
    /// Namespace and name of the ClusterClass.
    pub class: (&'a str, &'a str),
    /// The version of Kubernetes.
    pub version: &'a str,
}

/// Workers that the topology of a Cluster asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Their kind.
    pub kind: WorkerKind,
    /// Their name in the topology.
    pub name: String,
    /// Their class.
    pub class: String,
    /// What the topology says of them.
    pub topology: Value,
}

/// Where a template stands for one Cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The cluster's infrastructure.
    InfrastructureCluster,
    /// The control plane.
    ControlPlane,
    /// The machines of the control plane.
    ControlPlaneMachine,
    /// How workers are bootstrapped, by their name in the topology.
    Bootstrap(WorkerKind, String),
    /// The machines of workers, by their name in the topology.
    Infrastructure(WorkerKind, String),
}

/// Templates with the patches applied.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluated {
    /// The patched templates.
    pub templates: BTreeMap<Place, Value>,
    /// What stands in a place and was not read, by kind and name.
    pub unread: BTreeMap<Place, String>,
    /// Names of external patches: what they change is unknown.
    pub external: Vec<String>,
    /// What would keep Cluster API from going on.
    pub problems: Vec<String>,
    /// What is not known, but for external patches.
    pub unknown: Vec<String>,
}

/// The workers of a Cluster's topology.
pub fn workers(cluster: &Value) -> Vec<Worker> {
    let mut workers = Vec::new();
    for kind in WorkerKind::ALL {
        let list = cluster.pointer(&format!("/spec/topology/workers/{}", kind.list())).and_then(Value::as_array);
        workers.extend(list.into_iter().flatten().filter_map(|topology| {
            let text = |key: &str| topology.get(key)?.as_str().map(ToOwned::to_owned);
            Some(Worker { kind, name: text("name")?, class: text("class")?, topology: topology.clone() })
        }));
    }
    workers
}

/// Applies the inline patches of a class to its templates, in their order.
pub fn evaluate(objects: &ClassObjects, subject: &Subject<'_>) -> Evaluated {
    let mut evaluated = Evaluated::default();
    let definitions = variables::definitions(&objects.class);
    let mut items = items(objects, subject, &definitions, &mut evaluated);
    let global = global(subject, &definitions);
    for item in &mut items {
        item.variables = merged(&global, &item.variables);
    }
    for patch in objects.class.pointer("/spec/patches").and_then(Value::as_array).into_iter().flatten() {
        let name = patch.get("name").and_then(Value::as_str).unwrap_or_default();
        let definitions = patch.get("definitions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if definitions.is_empty() {
            evaluated.external.push(name.to_owned());
            continue;
        }
        for item in &mut items {
            if let Err(error) = apply(patch, definitions, item) {
                let of = format!("patch {name} of {} {}: {error}", item.reference.kind, item.reference.name);
                evaluated.problems.push(of);
            }
        }
    }
    evaluated.templates = items.into_iter().map(|item| (item.place, item.object)).collect();
    evaluated
}

/// A template on its way through the patches.
struct Item {
    place: Place,
    /// The class of its workers.
    class: String,
    reference: TemplateReference,
    object: Value,
    variables: Map<String, Value>,
}

/// The templates of the control plane, the infrastructure and each worker of the topology, with the variables that are
/// theirs alone.
fn items(
    objects: &ClassObjects,
    subject: &Subject<'_>,
    definitions: &BTreeMap<String, Definition>,
    evaluated: &mut Evaluated,
) -> Vec<Item> {
    if objects.class.is_null() {
        evaluated.unread = without_class(subject);
        return Vec::new();
    }
    let references: BTreeMap<Slot, TemplateReference> = objects.references().into_iter().collect();
    let mut items = Vec::new();
    let mut push = |slot: Slot, place: Place, class: &str, variables: &Map<String, Value>| {
        let Some(reference) = references.get(&slot) else { return };
        if let Some(object) = objects.template(reference) {
            items.push(Item {
                place,
                class: class.to_owned(),
                reference: reference.clone(),
                object: object.clone(),
                variables: variables.clone(),
            });
        } else {
            let what = format!("{} {}", reference.kind, reference.name);
            evaluated.unknown.push(format!("{what} is not known"));
            evaluated.unread.insert(place, what);
        }
    };
    push(Slot::InfrastructureCluster, Place::InfrastructureCluster, "", &Map::new());
    let control_plane = of_control_plane(subject, definitions);
    push(Slot::ControlPlane, Place::ControlPlane, "", &control_plane);
    push(Slot::ControlPlaneMachine, Place::ControlPlaneMachine, "", &control_plane);
    for Worker { kind, name, class, topology } in workers(subject.cluster) {
        if objects.worker(kind, &class).is_none() {
            let problem = format!("{} {name}: the class has no {} class {class}", kind.as_str(), kind.as_str());
            evaluated.problems.push(problem);
            continue;
        }
        let variables = of_worker(subject, kind, &topology, definitions);
        push(Slot::Bootstrap(kind, class.clone()), Place::Bootstrap(kind, name.clone()), &class, &variables);
        push(Slot::Infrastructure(kind, class.clone()), Place::Infrastructure(kind, name), &class, &variables);
    }
    items
}

/// Beside a class that was not read, nothing is known of any template that the topology asks for.
fn without_class(subject: &Subject<'_>) -> BTreeMap<Place, String> {
    let (namespace, name) = subject.class;
    let of = |worker: Worker| Place::Infrastructure(worker.kind, worker.name);
    let places = [Place::InfrastructureCluster, Place::ControlPlane].into_iter();
    let places = places.chain(workers(subject.cluster).into_iter().map(of));
    places.map(|place| (place, format!("ClusterClass {namespace}/{name}"))).collect()
}

fn text<'v>(value: &'v Value, pointer: &str) -> Option<&'v str> {
    value.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Labels and annotations as the builtin variables have them; `None` without any.
fn metadata(object: &Value) -> Option<Value> {
    let labels = object.pointer("/metadata/labels").filter(|labels| labels.is_object());
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object).map(|annotations| {
        let kept = annotations.iter().filter(|(key, _)| !LEFT_OUT.contains(&key.as_str()));
        Value::Object(kept.map(|(key, value)| (key.clone(), value.clone())).collect())
    });
    let mut metadata = Map::new();
    metadata.extend(labels.map(|labels| ("labels".to_owned(), labels.clone())));
    metadata.extend(annotations.map(|annotations| ("annotations".to_owned(), annotations)));
    (!metadata.is_empty()).then_some(Value::Object(metadata))
}

/// The variables that all templates see.
fn global(subject: &Subject<'_>, definitions: &BTreeMap<String, Definition>) -> Map<String, Value> {
    let cluster = subject.cluster;
    let mut given = variables::given(cluster.pointer("/spec/topology/variables"));
    given.remove("builtin");
    let mut all = variables::values(&given, definitions, true);
    let (namespace, name) = subject.class;
    let mut builtin = json!({
        "name": text(cluster, "/metadata/name"),
        "namespace": text(cluster, "/metadata/namespace"),
        "uid": text(cluster, "/metadata/uid"),
        "topology": {
            "version": subject.version,
            "class": name,
            "classNamespace": namespace,
            "classRef": {"name": name, "namespace": namespace},
        },
    });
    if let Some(metadata) = metadata(cluster) {
        builtin["metadata"] = metadata;
    }
    let mut network = Map::new();
    if let Some(domain) = text(cluster, "/spec/clusterNetwork/serviceDomain") {
        network.insert("serviceDomain".to_owned(), domain.into());
    }
    for part in ["services", "pods"] {
        let blocks = cluster.pointer(&format!("/spec/clusterNetwork/{part}/cidrBlocks"));
        network.extend(blocks.map(|blocks| (part.to_owned(), blocks.clone())));
    }
    if !network.is_empty() {
        builtin["network"] = Value::Object(network);
    }
    all.insert("builtin".to_owned(), json!({"cluster": builtin}));
    all
}

fn of_control_plane(subject: &Subject<'_>, definitions: &BTreeMap<String, Definition>) -> Map<String, Value> {
    let topology = subject.cluster.pointer("/spec/topology/controlPlane");
    let given = variables::given(topology.and_then(|topology| topology.pointer("/variables/overrides")));
    let mut all = variables::values(&given, definitions, false);
    let live = subject.control_plane;
    let name = live.and_then(|live| text(live, "/metadata/name"));
    let mut builtin = json!({"name": name.unwrap_or_default(), "version": subject.version});
    if let Some(replicas) =
        topology.and_then(|topology| topology.get("replicas")).filter(|replicas| replicas.is_number())
    {
        builtin["replicas"] = replicas.clone();
    }
    if let Some(metadata) = live.and_then(metadata) {
        builtin["metadata"] = metadata;
    }
    // v1beta2 nests it in `spec`.
    let machines =
        ["/spec/machineTemplate/spec/infrastructureRef/name", "/spec/machineTemplate/infrastructureRef/name"];
    if let Some(name) = live.and_then(|live| machines.iter().find_map(|pointer| text(live, pointer))) {
        builtin["machineTemplate"] = json!({"infrastructureRef": {"name": name}});
    }
    all.insert("builtin".to_owned(), json!({"controlPlane": builtin}));
    all
}

fn of_worker(
    subject: &Subject<'_>,
    kind: WorkerKind,
    topology: &Value,
    definitions: &BTreeMap<String, Definition>,
) -> Map<String, Value> {
    let given = variables::given(topology.pointer("/variables/overrides"));
    let mut all = variables::values(&given, definitions, false);
    let own = text(topology, "/name").unwrap_or_default();
    let live = subject.workers.get(&(kind, own.to_owned()));
    let mut builtin = json!({
        "version": subject.version,
        "class": text(topology, "/class"),
        "name": live.and_then(|live| text(live, "/metadata/name")).unwrap_or_default(),
        "topologyName": own,
    });
    let replicas = topology.get("replicas").or_else(|| live?.pointer("/spec/replicas"));
    if let Some(replicas) = replicas.filter(|replicas| replicas.is_number()) {
        builtin["replicas"] = replicas.clone();
    }
    if let Some(metadata) = live.and_then(metadata) {
        builtin["metadata"] = metadata;
    }
    let named = |pointer: &str| live.and_then(|live| text(live, pointer));
    if let Some(name) = named("/spec/template/spec/bootstrap/configRef/name") {
        builtin["bootstrap"] = json!({"configRef": {"name": name}});
    }
    if let Some(name) = named("/spec/template/spec/infrastructureRef/name") {
        builtin["infrastructureRef"] = json!({"name": name});
    }
    all.insert("builtin".to_owned(), json!({kind.builtin(): builtin}));
    all
}

/// The variables of one template over those of all; of the builtin ones, both.
fn merged(global: &Map<String, Value>, own: &Map<String, Value>) -> Map<String, Value> {
    let mut all = global.clone();
    for (name, value) in own {
        match (all.get_mut(name), value) {
            (Some(Value::Object(known)), Value::Object(more)) if name == "builtin" => known.extend(more.clone()),
            _ => _ = all.insert(name.clone(), value.clone()),
        }
    }
    all
}

/// Applies one patch to one template.
fn apply(patch: &Value, definitions: &[Value], item: &mut Item) -> Result<(), PatchError> {
    let matching: Vec<&Value> =
        definitions.iter().filter(|definition| selects(definition.get("selector"), item)).collect();
    if matching.is_empty() || !is_enabled(patch, &item.variables)? {
        return Ok(());
    }
    for definition in matching {
        let mut operations = Vec::new();
        for operation in definition.get("jsonPatches").and_then(Value::as_array).into_iter().flatten() {
            let word = text(operation, "/op").unwrap_or_default();
            let mut made = json!({"op": word, "path": operation.get("path")});
            if matches!(word, "add" | "replace") {
                made["value"] = value_of(operation, &item.variables)?;
            }
            operations.push(made);
        }
        let invalid = |error: String| PatchError::Apply(error);
        let operations: json_patch::Patch =
            serde_json::from_value(Value::Array(operations)).map_err(|error| invalid(error.to_string()))?;
        // It leaves the template as it was where one of its operations fails.
        json_patch::patch(&mut item.object, &operations).map_err(|error| invalid(error.to_string()))?;
    }
    Ok(())
}

/// Whether a definition is about a template: its version and kind, and where it stands.
fn selects(selector: Option<&Value>, item: &Item) -> bool {
    let Some(selector) = selector else { return false };
    if text(selector, "/apiVersion") != Some(&item.reference.api_version)
        || text(selector, "/kind") != Some(&item.reference.kind)
    {
        return false;
    }
    let is_set =
        |field: &str| selector.pointer(&format!("/matchResources/{field}")).and_then(Value::as_bool) == Some(true);
    match &item.place {
        Place::InfrastructureCluster => is_set("infrastructureCluster"),
        Place::ControlPlane | Place::ControlPlaneMachine => is_set("controlPlane"),
        Place::Bootstrap(kind, _) | Place::Infrastructure(kind, _) => {
            let names = selector.pointer(&format!("/matchResources/{}/names", kind.selector()));
            let names = names.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
            names.into_iter().any(|name| is_named(name, &item.class))
        }
    }
}

/// A name, or one with a `*` at its start or its end.
fn is_named(pattern: &str, class: &str) -> bool {
    pattern == class
        || pattern.strip_prefix('*').is_some_and(|end| class.ends_with(end))
        || pattern.strip_suffix('*').is_some_and(|start| class.starts_with(start))
}

fn is_enabled(patch: &Value, variables: &Map<String, Value>) -> Result<bool, PatchError> {
    match text(patch, "/enabledIf") {
        None => Ok(true),
        Some(template) => Ok(rendered(template, variables)? == Value::Bool(true)),
    }
}

fn value_of(operation: &Value, variables: &Map<String, Value>) -> Result<Value, PatchError> {
    let from = |key: &str| text(operation, &format!("/valueFrom/{key}"));
    // `value: null` is a value, an absent one is none.
    match (operation.get("value"), from("variable"), from("template")) {
        (Some(value), None, None) => Ok(value.clone()),
        (None, Some(path), None) => variable(path, variables).cloned(),
        (None, None, Some(template)) => rendered(template, variables),
        _ => Err(PatchError::Value),
    }
}

/// The value at a path such as `builtin.cluster.name` or `disks[0].size`.
fn variable<'v>(path: &str, variables: &'v Map<String, Value>) -> Result<&'v Value, PatchError> {
    let invalid = || PatchError::Path(path.to_owned());
    let missing = || PatchError::NoValue(path.to_owned());
    let mut found: Option<&Value> = None;
    for segment in path.split('.') {
        let (name, index) = match segment.split_once('[') {
            Some((name, rest)) => {
                let index = rest.strip_suffix(']').and_then(|index| index.parse::<usize>().ok());
                (name, Some(index.ok_or_else(invalid)?))
            }
            None if segment.contains(']') => return Err(invalid()),
            None => (segment, None),
        };
        let next = match found {
            None => variables.get(name),
            Some(value) => value.get(name),
        };
        let next = match index {
            Some(index) => next.and_then(|list| list.as_array()?.get(index)),
            None => next,
        };
        found = Some(next.ok_or_else(missing)?);
    }
    found.ok_or_else(missing)
}

/// A Go template over the variables; what it gives is read as YAML.
fn rendered(template: &str, variables: &Map<String, Value>) -> Result<Value, PatchError> {
    let capabilities = Capabilities::default();
    let root = Value::Object(variables.clone());
    let text = render_text("template", template, &root, &values::input(&capabilities))
        .map_err(|error| PatchError::Template(error.to_string()))?;
    yaml::from_str(&text).map_err(|error| PatchError::Yaml(error.to_string()))
}

#[cfg(test)]
mod tests;
