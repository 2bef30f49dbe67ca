//! What the addon charts are given: the stack's template of values over the Cluster's objects, then the user's own.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::core::chart::{Capabilities, Release, RenderInput, TeraContext, TeraTemplates, render_text};
use crate::core::yaml;

/// File of a stage's chart with its template of values.
pub const OVERWRITE: &str = "overwrite.yaml";
/// File of a stack with the template of values of its only addon chart.
pub const ADDON_VALUES: &str = "cluster-addon-values.yaml";
/// How a template of values in the language of Tera ends.
pub const TERA: &str = ".tera";

/// A template of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Its file; one that ends with [`TERA`] is written in the language of Tera, any other is a Go template.
    pub file: String,
    /// What stands in it.
    pub text: String,
}

/// Why values can't be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ValuesError {
    /// The stack's template of values fails.
    #[error("{file} can't be rendered: {error}")]
    Template {
        /// The file.
        file: String,
        /// What is wrong.
        error: String,
    },
    /// There are two of them.
    #[error("{0} and {0}.tera are both there: keep one")]
    Both(String),
    /// What it gives is no map of values.
    #[error("{file} gives no map of values: {error}")]
    Form {
        /// The file or object.
        file: String,
        /// What is wrong.
        error: String,
    },
    /// The user has values for a stage that the release does not have.
    #[error("there are values for {0:?}, but the release has no such stage: correct the key or take it out")]
    NoSuchStage(String),
    /// The user's values for a stage are no map.
    #[error("the values for stage {0:?} are no map: write them as the values.yaml of its chart")]
    NoMap(String),
    /// The stack takes no values of users.
    #[error(
        "the release takes no values of its users: take them out, or ask its publisher to set allowValues in clusteraddon.yaml"
    )]
    NotAllowed,
}

/// The data that the stack's template of values sees: `Cluster`, and where the Cluster has them `ControlPlane` and
/// `InfraCluster`, as they stand in the API.
pub fn data(cluster: &Value, control_plane: Option<&Value>, infrastructure: Option<&Value>) -> Value {
    let mut data = Map::from_iter([("Cluster".to_owned(), cluster.clone())]);
    data.extend(control_plane.map(|object| ("ControlPlane".to_owned(), object.clone())));
    data.extend(infrastructure.map(|object| ("InfraCluster".to_owned(), object.clone())));
    Value::Object(data)
}

/// The template called `file`, or `file.tera`, among files that `read` gives.
///
/// # Errors
/// Both are there.
pub fn template<T>(file: &str, read: impl Fn(&str) -> Option<T>) -> Result<Option<(String, T)>, ValuesError> {
    let tera = format!("{file}{TERA}");
    match (read(file), read(&tera)) {
        (Some(_), Some(_)) => Err(ValuesError::Both(file.to_owned())),
        (Some(text), None) => Ok(Some((file.to_owned(), text))),
        (None, text) => Ok(text.map(|text| (tera, text))),
    }
}

/// The values that a template of a stack gives. The Go operator's rule: where the result has a key `values` that holds a
/// text, that text are the values.
///
/// # Errors
/// The template fails, or gives no map.
pub fn of_stack(template: &Template, data: &Value, input: &RenderInput<'_>) -> Result<Value, ValuesError> {
    let Template { file, text } = template;
    let failed = |error: String| ValuesError::Template { file: file.clone(), error };
    let text = if file.ends_with(TERA) {
        tera(file, text, data, input).map_err(failed)?
    } else {
        render_text(file, text, data, input).map_err(|error| failed(error.to_string()))?
    };
    let values = map(file, &text)?;
    match values.get("values") {
        Some(Value::String(text)) => map(file, text).map(Value::Object),
        _ => Ok(Value::Object(values)),
    }
}

/// Renders a Tera template over `cluster`, `control_plane` and `infra_cluster`.
pub(in crate::core) fn tera(file: &str, text: &str, data: &Value, input: &RenderInput<'_>) -> Result<String, String> {
    let of = |key: &str| data.get(key).cloned().unwrap_or_default();
    let context = TeraContext {
        cluster: of("Cluster"),
        control_plane: of("ControlPlane"),
        infra_cluster: of("InfraCluster"),
        ..TeraContext::default()
    };
    let templates = TeraTemplates::parse([(file, text)]).map_err(|error| error.to_string())?;
    let texts = templates.render_with(&context, &BTreeMap::new(), &input.limits, input.stop.as_ref());
    let mut texts = texts.map_err(|error| error.to_string())?;
    Ok(texts.files.remove(file).unwrap_or_default())
}

/// The input of a template of values: it knows no chart and no cluster but what its data holds.
pub fn input(capabilities: &Capabilities) -> RenderInput<'_> {
    RenderInput::new(Release::new("", ""), capabilities, jiff::Timestamp::UNIX_EPOCH)
}

fn map(file: &str, text: &str) -> Result<Map<String, Value>, ValuesError> {
    let form = |error: String| ValuesError::Form { file: file.to_owned(), error };
    match parse(text).map_err(|error| form(error.to_string()))? {
        Value::Null => Ok(Map::new()),
        Value::Object(map) => Ok(map),
        _ => Err(form("its top is no map".to_owned())),
    }
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, yaml::Error> {
    yaml::from_str(text)
}

/// Values of a ConfigMap or Secret. Nothing of them gets into the error.
///
/// # Errors
/// They are no map.
pub fn of_object(name: &str, text: &str) -> Result<Map<String, Value>, ValuesError> {
    let form = |error: &str| ValuesError::Form { file: name.to_owned(), error: error.to_owned() };
    match parse(text).map_err(|_| form("it is no YAML"))? {
        Value::Null => Ok(Map::new()),
        Value::Object(map) => Ok(map),
        _ => Err(form("its top is no map")),
    }
}

/// Layers of values, later ones over earlier ones: maps are merged, all else is replaced, as Helm does with several files.
pub fn merged(layers: impl IntoIterator<Item = Value>) -> Value {
    let mut result = Value::Object(Map::new());
    for layer in layers.into_iter().filter(|layer| !layer.is_null()) {
        merge(&mut result, layer);
    }
    result
}

fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                match base.get_mut(&key) {
                    Some(known) => merge(known, value),
                    None => {
                        base.insert(key, value);
                    }
                }
            }
        }
        (base, over) => *base = over,
    }
}

/// The user's values for a stage; all of them where there are no stages.
///
/// # Errors
/// They name a stage that the release does not have, or are no map for this one.
pub fn of_user(values: &Value, stage: &str, stages: &[&str]) -> Result<Value, ValuesError> {
    if stage.is_empty() {
        return Ok(values.clone());
    }
    let Some(map) = values.as_object() else { return Ok(Value::Null) };
    if let Some(unknown) = map.keys().find(|key| !stages.contains(&key.as_str())) {
        return Err(ValuesError::NoSuchStage(unknown.clone()));
    }
    match map.get(stage) {
        None | Some(Value::Null) => Ok(Value::Object(Map::new())),
        Some(Value::Object(of_stage)) => Ok(Value::Object(of_stage.clone())),
        Some(_) => Err(ValuesError::NoMap(stage.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(template: &str) -> Result<Value, ValuesError> {
        of_file(OVERWRITE, template)
    }

    fn of_file(file: &str, template: &str) -> Result<Value, ValuesError> {
        let cluster = json!({"metadata": {"name": "c", "namespace": "team"}, "spec": {"clusterNetwork": {"pods": {"cidrBlocks": ["10.0.0.0/8"]}}}});
        let infrastructure = json!({"spec": {"region": "north"}});
        let capabilities = Capabilities::default();
        let template = Template { file: file.to_owned(), text: template.to_owned() };
        let mut input = input(&capabilities);
        input.limits.steps = 100_000;
        of_stack(&template, &data(&cluster, None, Some(&infrastructure)), &input)
    }

    #[test]
    fn templates_see_the_objects_of_the_cluster() {
        for (template, expected) in [
            (
                "name: {{ .Cluster.metadata.name | upper }}\nregion: {{ .InfraCluster.spec.region }}\n",
                json!({"name": "C", "region": "north"}),
            ),
            (
                "values: |\n  a:\n    cidr: {{ index .Cluster.spec.clusterNetwork.pods.cidrBlocks 0 }}\n",
                json!({"a": {"cidr": "10.0.0.0/8"}}),
            ),
            ("values: {a: 1}\n", json!({"values": {"a": 1}})),
            ("{{ with .ControlPlane }}b: {{ .spec }}{{ end }}", json!({})),
            ("# nothing\n", json!({})),
        ] {
            assert_eq!(of(template), Ok(expected), "{template}");
        }
    }

    #[test]
    fn tera_templates_see_the_same_objects() {
        let of = |template: &str| of_file("overwrite.yaml.tera", template);
        for (template, expected) in [
            (
                "name: {{ cluster.metadata.name | upper }}\nregion: {{ infra_cluster.spec.region }}\n",
                json!({"name": "C", "region": "north"}),
            ),
            ("values: |\n  a: {{ cluster.spec.clusterNetwork.pods.cidrBlocks[0] }}\n", json!({"a": "10.0.0.0/8"})),
            ("{% if control_plane %}b: 1{% endif %}", json!({})),
        ] {
            assert_eq!(of(template), Ok(expected), "{template}");
        }
        for (template, expected) in [
            ("a: {{ cluster.spec.nothing.here }}\n", "overwrite.yaml.tera"),
            ("a: 1\nb: {{ cluster.\n", "overwrite.yaml.tera:2"),
            ("{% for a in range(end=100000) %}{% for b in range(end=100000) %}x{% endfor %}{% endfor %}", "overwrite"),
            ("- a\n", "its top is no map"),
        ] {
            let error = of(template).unwrap_err().to_string();
            assert!(error.contains(expected), "{template}: {error}");
        }
    }

    #[test]
    fn there_is_one_template_of_values() {
        let read = |there: &'static [&'static str]| move |file: &str| there.contains(&file).then_some(1);
        assert_eq!(template("a", read(&["a"])), Ok(Some(("a".to_owned(), 1))));
        assert_eq!(template("a", read(&["a.tera"])), Ok(Some(("a.tera".to_owned(), 1))));
        assert_eq!(template("a", read(&[])), Ok(None));
        assert_eq!(template("a", read(&["a", "a.tera"])), Err(ValuesError::Both("a".to_owned())));
    }

    #[test]
    fn what_gives_no_values_says_so() {
        for (template, expected) in [
            ("{{ fail \"no region\" }}", "no region"),
            ("{{ .Cluster.spec.", "can't be rendered"),
            ("- a\n- b\n", "its top is no map"),
            ("a: b: c\n", "gives no map"),
        ] {
            let error = of(template).unwrap_err().to_string();
            assert!(error.contains(expected), "{template}: {error}");
        }
        let error = of_object("Secret/x", "swordfish: : {").unwrap_err().to_string();
        assert!(!error.contains("swordfish") && error.contains("Secret/x"), "{error}");
    }

    #[test]
    fn later_layers_win_and_maps_are_merged() {
        let merged = merged([
            json!({"a": {"b": 1, "c": [1, 2]}, "d": 1}),
            json!({"a": {"c": [3], "e": null}}),
            json!({"d": {"f": 1}}),
        ]);
        assert_eq!(merged, json!({"a": {"b": 1, "c": [3], "e": null}, "d": {"f": 1}}));
    }

    #[test]
    fn a_user_names_stages() {
        let values = json!({"cni": {"a": 1}});
        assert_eq!(of_user(&values, "cni", &["cni", "csi"]), Ok(json!({"a": 1})));
        assert_eq!(of_user(&values, "csi", &["cni", "csi"]), Ok(json!({})));
        assert_eq!(of_user(&json!({"cni": null}), "cni", &["cni"]), Ok(json!({})));
        assert_eq!(of_user(&json!({"cni": "hello"}), "cni", &["cni"]), Err(ValuesError::NoMap("cni".into())));
        assert_eq!(of_user(&values, "", &[""]), Ok(values.clone()));
        assert_eq!(of_user(&values, "csi", &["csi"]), Err(ValuesError::NoSuchStage("cni".into())));
    }
}
