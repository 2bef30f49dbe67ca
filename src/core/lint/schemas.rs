//! Schemas of custom resources, as the API server holds objects against them.
//!
//! Checked: types, required fields, formats of values (`enum`, `pattern`, bounds), and fields that the schema does not
//! declare, which server-side apply refuses. Defaults are filled in first there, so that a field with one is never
//! missing. Not checked: rules in CEL (`x-kubernetes-validations`), list types, and `format`; the API server judges
//! those, see `--server`.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use jsonschema::Validator;
use serde_json::{Map, Value, json};

/// Schemas by group and kind, then by version.
#[derive(Clone, Debug, Default)]
pub struct Schemas {
    kinds: BTreeMap<(String, String), BTreeMap<String, Arc<Schema>>>,
}

/// A version's schema, compiled when it is first needed.
#[derive(Debug)]
struct Schema {
    served: bool,
    raw: Value,
    compiled: OnceLock<Result<Validator, String>>,
}

/// What is known of an object's kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// The object meets its schema.
    Fits,
    /// It does not.
    Problems(Vec<String>),
    /// The kind is known, and served in these versions.
    OtherVersions(Vec<String>),
    /// Nothing.
    Not,
}

impl Schemas {
    /// How many kinds are known.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Takes what a CustomResourceDefinition, or a list of some, defines; anything else is passed over.
    pub fn add(&mut self, object: &Value) {
        if let Some(items) = object.get("items").and_then(Value::as_array) {
            for item in items {
                self.add(item);
            }
        }
        if object.get("kind").and_then(Value::as_str) != Some("CustomResourceDefinition") {
            return;
        }
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(ToOwned::to_owned);
        let (Some(group), Some(kind)) = (text("/spec/group"), text("/spec/names/kind")) else { return };
        let versions = object.pointer("/spec/versions").and_then(Value::as_array).cloned().unwrap_or_default();
        let known = self.kinds.entry((group, kind)).or_default();
        for version in versions {
            let Some(name) = version.get("name").and_then(Value::as_str) else { continue };
            let schema = Schema {
                served: version.get("served").and_then(Value::as_bool).unwrap_or(true),
                raw: version.pointer("/schema/openAPIV3Schema").cloned().unwrap_or(json!({})),
                compiled: OnceLock::new(),
            };
            known.insert(name.to_owned(), Arc::new(schema));
        }
    }

    /// Holds an object against the schema of its kind.
    pub fn check(&self, api_version: &str, kind: &str, object: &Value) -> Known {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let Some(versions) = self.kinds.get(&(group.to_owned(), kind.to_owned())) else { return Known::Not };
        let Some(schema) = versions.get(version).filter(|schema| schema.served) else {
            let served = versions.iter().filter(|(_, schema)| schema.served).map(|(name, _)| name.clone());
            return Known::OtherVersions(served.collect());
        };
        match schema.compiled.get_or_init(|| schema.compile()) {
            Err(problem) => Known::Problems(vec![format!("its CRD has a schema that can't be read: {problem}")]),
            Ok(validator) => {
                let problem = |error: jsonschema::ValidationError<'_>| {
                    let at = error.instance_path().to_string();
                    let at = if at.is_empty() { "the object".to_owned() } else { dotted(&at) };
                    format!("{at}: {}", short(&error.to_string()))
                };
                let problems: Vec<String> = validator.iter_errors(object).map(problem).collect();
                if problems.is_empty() { Known::Fits } else { Known::Problems(problems) }
            }
        }
    }
}

/// `/spec/a/0/b` as `.spec.a[0].b`.
fn dotted(pointer: &str) -> String {
    let part = |part: &str| if part.parse::<usize>().is_ok() { format!("[{part}]") } else { format!(".{part}") };
    pointer.split('/').skip(1).map(|text| part(&text.replace("~1", "/").replace("~0", "~"))).collect()
}

/// Messages quote the value, which may be long.
fn short(message: &str) -> String {
    const MAX: usize = 300;
    if message.chars().count() <= MAX {
        return message.to_owned();
    }
    let end: String = message.chars().rev().take(MAX / 2).collect::<Vec<_>>().into_iter().rev().collect();
    format!("{}…{end}", message.chars().take(MAX / 2).collect::<String>())
}

impl Schema {
    fn compile(&self) -> Result<Validator, String> {
        let mut schema = self.raw.clone();
        strict(&mut schema, true);
        if let Value::Object(map) = &mut schema {
            let properties = map.entry("properties").or_insert_with(|| json!({}));
            if let Value::Object(properties) = properties {
                properties.insert("metadata".to_owned(), json!({"type": "object"}));
                for field in ["apiVersion", "kind"] {
                    properties.entry(field).or_insert_with(|| json!({"type": "string"}));
                }
            }
        }
        jsonschema::draft202012::options().build(&schema).map_err(|error| error.to_string())
    }
}

/// A structural schema as JSON Schema: the words of `OpenAPI` and Kubernetes that it lacks, put in its own.
fn strict(schema: &mut Value, structural: bool) {
    let Value::Object(map) = schema else { return };
    let is = |map: &Map<String, Value>, key: &str| map.get(key) == Some(&Value::Bool(true));
    let open = is(map, "x-kubernetes-preserve-unknown-fields");
    let embedded = is(map, "x-kubernetes-embedded-resource");
    if structural {
        let has_rest = map.contains_key("additionalProperties");
        if map.contains_key("properties") && !open && !has_rest {
            if embedded && let Some(Value::Object(properties)) = map.get_mut("properties") {
                for field in ["apiVersion", "kind", "metadata"] {
                    properties.entry(field).or_insert_with(|| json!({}));
                }
            }
            map.insert("additionalProperties".to_owned(), json!(false));
        }
    }
    // The API server fills defaults in before it looks at what is required.
    let with_default: Vec<String> = map
        .get("properties")
        .and_then(Value::as_object)
        .map(|properties| {
            properties.iter().filter(|(_, of)| of.get("default").is_some()).map(|(key, _)| key.clone()).collect()
        })
        .unwrap_or_default();
    if let Some(Value::Array(required)) = map.get_mut("required") {
        required.retain(|field| field.as_str().is_none_or(|field| !with_default.iter().any(|key| key == field)));
    }
    if is(map, "x-kubernetes-int-or-string") {
        map.insert("type".to_owned(), json!(["integer", "string"]));
        map.remove("anyOf");
    }
    if let Some(Value::String(kind)) = map.get("type").cloned()
        // A null where there is a default is dropped for it.
        && (is(map, "nullable") || map.contains_key("default"))
    {
        map.insert("type".to_owned(), json!([kind, "null"]));
        if let Some(Value::Array(values)) = map.get_mut("enum") {
            values.push(Value::Null);
        }
    }
    // Draft 4 has a flag where later ones have a number.
    for (flag, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        if let Some(Value::Bool(exclusive)) = map.get(flag).cloned() {
            map.remove(flag);
            if exclusive && let Some(value) = map.remove(bound) {
                map.insert(flag.to_owned(), value);
            }
        }
    }
    map.remove("format");
    map.remove("example");
    for key in ["properties", "patternProperties", "definitions"] {
        if let Some(Value::Object(children)) = map.get_mut(key) {
            children.values_mut().for_each(|child| strict(child, structural));
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = map.get_mut(key) {
            strict(child, structural);
        }
    }
    // In these only values are judged; fields are declared outside.
    if let Some(child) = map.get_mut("not") {
        strict(child, false);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        if let Some(Value::Array(children)) = map.get_mut(key) {
            for child in children {
                strict(child, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schemas() -> Schemas {
        let mut schemas = Schemas::default();
        schemas.add(&json!({
            "kind": "CustomResourceDefinition",
            "spec": {"group": "x.io", "names": {"kind": "Thing"}, "versions": [
                {"name": "v1", "served": true, "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {
                    "spec": {"type": "object", "required": ["size", "port"], "properties": {
                        "size": {"type": "integer", "minimum": 0, "exclusiveMinimum": true},
                        "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                        "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
                        "maybe": {"type": "string", "nullable": true},
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}},
                        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                        "either": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                                   "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
                        "inner": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object", "properties": {}}}},
                        "with": {"type": "object", "required": ["mode"], "properties": {"mode": {"type": "string", "default": "x"}}},
                    }},
                }}}},
                {"name": "v1alpha1", "served": false, "schema": {"openAPIV3Schema": {"type": "object"}}},
            ]},
        }));
        schemas
    }

    fn problems(change: &Value) -> Vec<String> {
        let mut spec = json!({"size": 1, "port": "http"});
        spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let object = json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": spec});
        match schemas().check("x.io/v1", "Thing", &object) {
            Known::Problems(problems) => problems,
            Known::Fits => Vec::new(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn objects_that_the_api_server_takes_fit() {
        for change in [
            json!({}),
            json!({"port": 80, "mode": "b", "maybe": null, "free": {"a": "b", "other": 1}}),
            json!({"mode": null, "with": {}}),
            json!({"labels": {"a": "b"}, "either": {"a": "x"}}),
            json!({"inner": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {}}}),
        ] {
            assert_eq!(problems(&change), Vec::<String>::new(), "{change}");
        }
    }

    #[test]
    fn one_broken_field_is_one_problem() {
        for (change, expected) in [
            (json!({"size": "1"}), ".spec.size: "),
            (json!({"size": 0}), ".spec.size: "),
            (json!({"port": true}), ".spec.port: "),
            (json!({"mode": "c"}), ".spec.mode: "),
            (json!({"sizes": 1}), ".spec: Additional properties are not allowed ('sizes' was unexpected)"),
            (json!({"free": {"a": 1}}), ".spec.free.a: "),
            (json!({"labels": {"a": 1}}), ".spec.labels.a: "),
            (json!({"either": {"a": "x", "b": "y"}}), ".spec.either: "),
            (json!({"with": {"mode": 1}}), ".spec.with.mode: "),
        ] {
            let found = problems(&change);
            assert_eq!(found.len(), 1, "{change}: {found:?}");
            assert!(found[0].starts_with(expected), "{change}: {found:?}");
        }
    }

    #[test]
    fn kinds_and_versions_are_told_apart() {
        let object = json!({});
        assert_eq!(schemas().check("x.io/v1alpha1", "Thing", &object), Known::OtherVersions(vec!["v1".to_owned()]));
        assert_eq!(schemas().check("x.io/v2", "Thing", &object), Known::OtherVersions(vec!["v1".to_owned()]));
        assert_eq!(schemas().check("y.io/v1", "Thing", &object), Known::Not);
    }
}
