//! What templates see: `.Values`, `.Chart`, `.Release` and the rest, for a chart and its subcharts.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value as Json;

use super::dependencies::{Node, import_paths};
use super::engine::{Path, Scope, Texts};
use super::error::{RenderError, TemplateError};
use super::go_template::eval::{Definitions, Eval, define, entries, locate};
use super::go_template::json::{from_json, to_json};
use super::go_template::object::{Field, Object, Struct};
use super::go_template::value::{ListType, Map, MapType, Value};
use super::load::{Template, shown};
use super::metadata::Metadata;
use super::misfit::Misfits;
use super::values::new_map;
use super::{HelmVersion, Needs, RenderInput};

/// A chart with its enabled subcharts and merged values.
pub(crate) struct Tree<'a> {
    pub(crate) root: Rc<Node<'a>>,
    pub(crate) values: Rc<Map>,
    pub(crate) misfits: Misfits,
}

/// A template and what it is executed with.
struct Renderable<'a> {
    template: &'a Template,
    data: Rc<Map>,
    base: String,
}

impl<'a> Tree<'a> {
    /// For engines that are not Go's.
    pub(super) fn scopes(&self, handles: &dyn Fn(&str) -> bool) -> Vec<Scope<'a>> {
        let mut scopes = Vec::new();
        collect(&self.root, &self.values, handles, &mut scopes);
        scopes
    }

    /// Renders the Go templates.
    pub(super) fn render_go(
        &self,
        input: &RenderInput<'_>,
        handles: &dyn Fn(&str) -> bool,
    ) -> Result<Texts, RenderError> {
        let mut renderables = BTreeMap::new();
        let common = Common { release: release(input), capabilities: capabilities(input) };
        gather(&self.root, Some(&self.values), input, &common, handles, &mut renderables);
        let mut order: Vec<&Path> = renderables.keys().collect();
        // The deepest path first, then in reverse order.
        order.sort_by(|a, b| {
            let depth = |path: &str| path.bytes().filter(|byte| *byte == b'/').count();
            (depth(b), b).cmp(&(depth(a), a))
        });
        let mut definitions = Definitions::new();
        for path in &order {
            let Some(renderable) = renderables.get(*path) else { continue };
            let parsed = renderable.template.parsed.as_ref().map_err(Clone::clone);
            match parsed.and_then(|parsed| parsed.check(input.helm).map(|()| parsed)) {
                Ok(parsed) => define(&mut definitions, path, parsed),
                Err(error) => {
                    let source = shown(&renderable.template.data);
                    return Err(RenderError::Parse(Box::new(TemplateError {
                        message: error.message.clone(),
                        location: locate(&source, error.pos, path, path),
                        included_from: Vec::new(),
                        lacks: Needs::default(),
                        quotes: false,
                    })));
                }
            }
        }
        let mut eval = Eval::new(input, &self.root.chart.memo, definitions);
        let (mut files, mut not_text) = (BTreeMap::new(), BTreeMap::new());
        for path in order {
            let Some(renderable) = renderables.get(path) else { continue };
            if path.rsplit('/').next().is_some_and(|name| name.starts_with('_')) {
                continue;
            }
            let template = entries([("Name", path.clone().into()), ("BasePath", renderable.base.as_str().into())]);
            let template = Value::Values(Rc::new(Map::new(MapType::Any, template)));
            renderable.data.insert("Template".into(), template);
            let text = eval
                .render(path, &Value::Values(renderable.data.clone()))
                .map_err(|error| RenderError::Template(error).hiding(&eval.secrets))?;
            if let Some(line) = eval.not_text {
                not_text.insert(path.to_string(), line);
            }
            files.insert(path.to_string(), text);
        }
        let missing_lookups = std::mem::take(&mut eval.missing_lookups);
        let drawn = std::mem::take(&mut eval.drawn);
        // `.Subcharts` and `.Values` may hold cycles.
        for renderable in renderables.values() {
            renderable.data.clear();
        }
        let (answered_lookups, secrets) =
            (std::mem::take(&mut eval.answered_lookups), std::mem::take(&mut eval.secrets));
        let asked_time = eval.asked_time;
        Ok(Texts { files, not_text, missing_lookups, answered_lookups, secrets, drawn, asked_time })
    }
}

fn is_library(node: &Node<'_>) -> bool {
    node.chart.metadata.kind.eq_ignore_ascii_case("library")
}

/// Library charts offer only their partial templates.
fn is_valid(node: &Node<'_>, template: &str) -> bool {
    !is_library(node) || template.rsplit('/').next().is_some_and(|name| name.starts_with('_'))
}

fn collect<'a>(node: &Rc<Node<'a>>, values: &Rc<Map>, handles: &dyn Fn(&str) -> bool, out: &mut Vec<Scope<'a>>) {
    let path = node.path();
    let templates = node.chart.templates.iter().filter(|template| handles(&template.path));
    out.push(Scope {
        chart: node.chart,
        name: node.name.clone(),
        values: to_json(&Value::Map(values.clone())).unwrap_or(Json::Null),
        is_root: node.is_root(),
        templates: templates.map(|template| (format!("{path}/{}", template.path), &template.data)).collect(),
        path,
    });
    for child in node.children() {
        if let Some(Value::Map(values)) = values.get(&child.name) {
            collect(&child, &values, handles, out);
        }
    }
}

/// What all charts of a tree share.
struct Common {
    release: Value,
    capabilities: Value,
}

fn gather<'a>(
    node: &Rc<Node<'a>>,
    values: Option<&Rc<Map>>,
    input: &RenderInput<'_>,
    common: &Common,
    handles: &dyn Fn(&str) -> bool,
    out: &mut BTreeMap<Path, Renderable<'a>>,
) -> Rc<Map> {
    let values = values.cloned().unwrap_or_else(new_map);
    let subcharts = new_map();
    let data = Rc::new(Map::new(
        MapType::Any,
        entries([
            ("Chart", chart_value(node, input.helm)),
            ("Files", Value::object(Object::Files(node.chart.files.clone()))),
            ("Release", common.release.clone()),
            ("Capabilities", common.capabilities.clone()),
            ("Values", Value::Values(values.clone())),
            ("Subcharts", Value::Map(subcharts.clone())),
        ]),
    ));
    for (name, json) in &input.extra {
        data.insert(name.as_str().into(), from_json(json));
    }
    for child in node.children() {
        let own = match values.get(&child.name) {
            Some(Value::Map(own)) => Some(own),
            _ => None,
        };
        let inner = gather(&child, own.as_ref(), input, common, handles, out);
        subcharts.insert(child.name.as_str().into(), Value::Map(inner));
    }
    let path = node.path();
    for template in node.chart.templates.iter().filter(|template| handles(&template.path)) {
        if is_valid(node, &template.path) {
            let name: Path = super::go_template::functions::url::clean(&format!("{path}/{}", template.path)).into();
            let base = format!("{path}/templates");
            out.insert(name, Renderable { template, data: data.clone(), base });
        }
    }
    data
}

fn release(input: &RenderInput<'_>) -> Value {
    let release = &input.release;
    Value::map(entries([
        ("Name", release.name.as_str().into()),
        ("Namespace", release.namespace.as_str().into()),
        ("IsUpgrade", release.is_upgrade.into()),
        ("IsInstall", (!release.is_upgrade).into()),
        ("Revision", Value::Int(release.revision)),
        ("Service", "Helm".into()),
    ]))
}

/// What Helm 4.3 says that it was built with.
const KUBE_CLIENT: &str = "v1.37";

fn capabilities(input: &RenderInput<'_>) -> Value {
    let capabilities = input.capabilities;
    let kube = &capabilities.kube_version;
    let mut fields = vec![
        Field::plain("Version", kube.version.as_str().into()),
        Field::plain("Major", kube.major.as_str().into()),
        Field::plain("Minor", kube.minor.as_str().into()),
    ];
    if input.helm == HelmVersion::V4 {
        fields.insert(1, Field::hidden("normalizedVersion", kube.normalized().into()));
    }
    let mut kube_version = Struct::new("chartutil.KubeVersion", fields);
    kube_version.display = Some(match input.helm {
        HelmVersion::V3 => kube.version.as_str().into(),
        HelmVersion::V4 => kube.normalized().into(),
    });
    let mut fields = vec![
        Field::new("Version", "version", capabilities.helm_version.as_str().into()),
        Field::new("GitCommit", "git_commit", "".into()),
        Field::new("GitTreeState", "git_tree_state", "".into()),
        Field::new("GoVersion", "go_version", "".into()),
    ];
    if input.helm == HelmVersion::V4 {
        let json = "kube_client_version";
        fields.push(Field { json, ..Field::plain("KubeClientVersion", KUBE_CLIENT.into()) });
    }
    let helm_version = Struct::new("version.BuildInfo", fields);
    let versions = capabilities.api_versions.iter().map(|version| Value::from(version.as_str())).collect();
    let mut all = Struct::new(
        "*chartutil.Capabilities",
        vec![
            Field::plain("KubeVersion", Value::object(Object::Struct(kube_version))),
            Field::plain("APIVersions", Value::typed_list(ListType::Versions, versions)),
            Field::plain("HelmVersion", Value::object(Object::Struct(helm_version))),
        ],
    );
    all.pointer = true;
    Value::object(Object::Struct(all))
}

fn chart_value(node: &Node<'_>, helm: HelmVersion) -> Value {
    let metadata = metadata(node);
    match helm {
        HelmVersion::V3 => Value::object(Object::Struct(metadata)),
        HelmVersion::V4 => as_map(&metadata),
    }
}

/// Helm 4 makes a map of what `Chart.yaml` says: what is missing in it is nil, no error.
fn as_map(fields: &Struct) -> Value {
    let value = |value: &Value| match value {
        Value::List(list) => Value::list(list.items.iter().map(element).collect()),
        other => other.clone(),
    };
    Value::map(fields.fields.iter().map(|field| (field.name.into(), value(&field.value))).collect())
}

fn element(value: &Value) -> Value {
    match value {
        Value::Object(object) if let Object::Struct(fields) = &**object => as_map(fields),
        other => other.clone(),
    }
}

fn metadata(node: &Node<'_>) -> Struct {
    let read: &Metadata = &node.chart.metadata;
    let text = |text: &str| Value::from(text);
    // What Chart.yaml does not say is nil.
    let texts = |texts: &[String]| match texts {
        [] => Value::nil_list(ListType::Str),
        texts => Value::strings(texts.iter().map(String::as_str)),
    };
    let all = |ty, items: Vec<Value>| if items.is_empty() { Value::nil_list(ty) } else { Value::typed_list(ty, items) };
    let maintainers = read.maintainers.iter().map(|maintainer| {
        pointer(
            "*chart.Maintainer",
            vec![
                Field::new("Name", "name", text(&maintainer.name)),
                Field::new("Email", "email", text(&maintainer.email)),
                Field::new("URL", "url", text(&maintainer.url)),
            ],
        )
    });
    let wanted = node.wanted.borrow().clone();
    let dependencies = wanted.iter().map(|wanted| {
        let dependency = &wanted.dependency;
        let required = |name, json, value| Field { name, json, omit_empty: false, value };
        // Helm writes them out when it takes the values over.
        let imports = dependency.import_values.iter().filter_map(import_paths).map(|(child, parent)| {
            Value::typed_map(MapType::Str, entries([("child", child.into()), ("parent", parent.into())]))
        });
        pointer(
            "*chart.Dependency",
            vec![
                required("Name", "name", text(&wanted.name.borrow())),
                Field::new("Version", "version", text(&dependency.version)),
                required("Repository", "repository", text(&dependency.repository)),
                Field::new("Condition", "condition", text(&dependency.condition)),
                Field::new("Tags", "tags", texts(&dependency.tags)),
                Field::new("Enabled", "enabled", true.into()),
                Field::new("ImportValues", "import-values", all(ListType::Any, imports.collect())),
                Field::new("Alias", "alias", text(&dependency.alias)),
            ],
        )
    });
    let annotations: BTreeMap<Arc<str>, Value> =
        read.annotations.iter().map(|(key, value)| (key.as_str().into(), text(value))).collect();
    let annotations = match annotations.len() {
        0 => Value::nil_map(MapType::Str),
        _ => Value::typed_map(MapType::Str, annotations),
    };
    let mut metadata = Struct::new(
        "struct { chart.Metadata; IsRoot bool }",
        vec![
            Field::new("Name", "name", text(&node.name)),
            Field::new("Home", "home", text(&read.home)),
            Field::new("Sources", "sources", texts(&read.sources)),
            Field::new("Version", "version", text(&read.version)),
            Field::new("Description", "description", text(&read.description)),
            Field::new("Keywords", "keywords", texts(&read.keywords)),
            Field::new("Maintainers", "maintainers", all(ListType::Maintainers, maintainers.collect())),
            Field::new("Icon", "icon", text(&read.icon)),
            Field::new("APIVersion", "apiVersion", text(&read.api_version)),
            Field::new("Condition", "condition", text(&read.condition)),
            Field::new("Tags", "tags", text(&read.tags)),
            Field::new("AppVersion", "appVersion", text(&read.app_version)),
            Field::new("Deprecated", "deprecated", read.deprecated.into()),
            Field::new("Annotations", "annotations", annotations),
            Field::new("KubeVersion", "kubeVersion", text(&read.kube_version)),
            Field::new("Dependencies", "dependencies", all(ListType::Dependencies, dependencies.collect())),
            Field::new("Type", "type", text(&read.kind)),
            Field::plain("IsRoot", node.is_root().into()),
        ],
    );
    metadata.embedded = metadata.fields.len() - 1;
    metadata
}

fn pointer(type_name: &'static str, fields: Vec<Field>) -> Value {
    let mut inner = Struct::new(type_name, fields);
    inner.pointer = true;
    Value::object(Object::Struct(inner))
}
