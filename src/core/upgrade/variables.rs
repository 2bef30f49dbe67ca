//! The variables of a ClusterClass, and what an upgrade does to them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value};

/// A variable as a ClusterClass defines it inline.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// Whether a Cluster has to set it.
    pub required: bool,
    /// Its schema (`openAPIV3Schema`).
    pub schema: Value,
}

impl Definition {
    fn default(&self) -> Option<&Value> {
        self.schema.get("default")
    }
}

/// The inline variables of a ClusterClass of either contract. Those that external patches define are not among them:
/// inline patches don't see them.
pub fn definitions(class: &Value) -> BTreeMap<String, Definition> {
    let all = class.pointer("/spec/variables").and_then(Value::as_array).into_iter().flatten();
    all.filter_map(|variable| {
        let name = variable.get("name")?.as_str()?.to_owned();
        let required = variable.get("required").and_then(Value::as_bool) == Some(true);
        let schema = variable.pointer("/schema/openAPIV3Schema").cloned().unwrap_or_default();
        Some((name, Definition { required, schema }))
    })
    .collect()
}

/// The values by name of a list of variables as Clusters hold them (`[{name, value}]`).
pub fn given(list: Option<&Value>) -> BTreeMap<String, Value> {
    let all = list.and_then(Value::as_array).into_iter().flatten();
    all.filter_map(|variable| {
        Some((variable.get("name")?.as_str()?.to_owned(), variable.get("value").cloned().unwrap_or_default()))
    })
    .collect()
}

/// What inline patches see: the Cluster's values of defined variables, completed by defaults as Cluster API's webhook
/// does. With `creates`, variables that the Cluster does not set get their default; overrides of a control plane or of
/// workers are completed only.
pub fn values(
    given: &BTreeMap<String, Value>,
    definitions: &BTreeMap<String, Definition>,
    creates: bool,
) -> Map<String, Value> {
    let mut values = Map::new();
    for (name, definition) in definitions {
        let value = match given.get(name) {
            Some(value) => Some(value.clone()),
            None if creates => definition.default().cloned(),
            None => None,
        };
        if let Some(mut value) = value {
            complete(&mut value, &definition.schema);
            values.insert(name.clone(), value);
        }
    }
    values
}

/// Defaults of nested fields, as Kubernetes' structural schemas give them: of the properties of objects that are there,
/// of the items of lists and of the values of maps.
fn complete(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            for (name, schema) in properties.into_iter().flatten() {
                if let (false, Some(default)) = (map.contains_key(name), schema.get("default")) {
                    map.insert(name.clone(), default.clone());
                }
                if let Some(value) = map.get_mut(name) {
                    complete(value, schema);
                }
            }
            if let Some(schema) = schema.get("additionalProperties").filter(|schema| schema.is_object()) {
                let is_property = |name: &str| properties.is_some_and(|properties| properties.contains_key(name));
                for (_, value) in map.iter_mut().filter(|(name, _)| !is_property(name)) {
                    complete(value, schema);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for item in items {
                    complete(item, schema);
                }
            }
        }
        _ => {}
    }
}

/// What becomes of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum VariableFate {
    /// The class has it newly.
    Added,
    /// The class has it no more.
    Removed,
    /// Clusters have to set it now.
    Required,
    /// Its default is another.
    Default,
    /// What it takes is another.
    Schema,
}

/// A variable that is not the same afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VariableChange {
    /// Its name.
    pub name: String,
    /// What becomes of it.
    pub change: VariableFate,
    /// The default before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// The default afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
    /// Whether the Cluster sets it.
    pub set: bool,
    /// Why the Cluster can't be upgraded before it is set or taken out; empty where it can.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub blocks: String,
}

/// What becomes of the variables, for a Cluster that sets those of `given`.
pub fn changes(
    before: &BTreeMap<String, Definition>,
    after: &BTreeMap<String, Definition>,
    given: &BTreeMap<String, Value>,
) -> Vec<VariableChange> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let mut changes = Vec::new();
    for name in names {
        let set = given.contains_key(name);
        let mut push = |change, before: Option<&Value>, after: Option<&Value>, blocks: &str| {
            changes.push(VariableChange {
                name: name.clone(),
                change,
                before: before.cloned(),
                after: after.cloned(),
                set,
                blocks: blocks.to_owned(),
            });
        };
        let lacks = |definition: &Definition| {
            let is_needed = definition.required && !set && definition.default().is_none();
            if is_needed { "the new class requires it: set it in spec.topology.variables" } else { "" }
        };
        match (before.get(name), after.get(name)) {
            (None, Some(new)) => push(VariableFate::Added, None, new.default(), lacks(new)),
            (Some(old), None) => {
                let why = "the new class has no such variable: take it out of spec.topology.variables";
                push(VariableFate::Removed, old.default(), None, if set { why } else { "" });
            }
            (Some(old), Some(new)) => {
                if new.required && !old.required {
                    push(VariableFate::Required, old.default(), new.default(), lacks(new));
                }
                if old.default() != new.default() {
                    push(VariableFate::Default, old.default(), new.default(), "");
                }
                if without_default(&old.schema) != without_default(&new.schema) {
                    push(VariableFate::Schema, None, None, "");
                }
            }
            (None, None) => {}
        }
    }
    changes
}

/// A schema but for its default, and for what is only told to people.
fn without_default(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(map) = schema.as_object_mut() {
        map.retain(|key, _| !["default", "description", "example", "x-metadata"].contains(&key.as_str()));
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[allow(clippy::needless_pass_by_value, reason = "`json!` reads better without a borrow")]
    fn class(variables: Value) -> BTreeMap<String, Definition> {
        definitions(&json!({"spec": {"variables": variables}}))
    }

    #[allow(clippy::needless_pass_by_value, reason = "`json!` reads better without a borrow")]
    fn variable(name: &str, required: bool, schema: Value) -> Value {
        json!({"name": name, "required": required, "schema": {"openAPIV3Schema": schema}})
    }

    #[test]
    fn defaults_complete_what_a_cluster_sets() {
        let nested = json!({
            "type": "object",
            "properties": {
                "size": {"type": "integer", "default": 3},
                "deep": {"type": "object", "properties": {"on": {"type": "boolean", "default": true}}},
            },
        });
        let with_default =
            json!({"type": "object", "default": {}, "properties": {"a": {"type": "string", "default": "x"}}});
        let list = json!({"type": "array", "items": {"type": "object", "properties": {"a": {"default": 1}}}});
        let map =
            json!({"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"default": 1}}}});
        for (schema, set, creates, expected) in [
            (json!({"type": "string", "default": "d"}), None, true, Some(json!("d"))),
            (json!({"type": "string", "default": "d"}), None, false, None),
            (json!({"type": "string", "default": "d"}), Some(json!("s")), true, Some(json!("s"))),
            (json!({"type": "string"}), None, true, None),
            (nested.clone(), Some(json!({})), true, Some(json!({"size": 3}))),
            (
                nested.clone(),
                Some(json!({"size": 1, "deep": {}})),
                false,
                Some(json!({"size": 1, "deep": {"on": true}})),
            ),
            (nested, None, true, None),
            (with_default, None, true, Some(json!({"a": "x"}))),
            (list, Some(json!([{}, {"a": 2}])), true, Some(json!([{"a": 1}, {"a": 2}]))),
            (map, Some(json!({"k": {}})), true, Some(json!({"k": {"a": 1}}))),
        ] {
            let definitions = class(json!([variable("v", false, schema.clone())]));
            let given = set.clone().map(|value| ("v".to_owned(), value)).into_iter().collect();
            let values = values(&given, &definitions, creates);
            assert_eq!(values.get("v"), expected.as_ref(), "{schema} {set:?} {creates}");
        }
        let unknown = BTreeMap::from([("other".to_owned(), json!(1))]);
        assert!(values(&unknown, &class(json!([])), true).is_empty(), "an undefined variable is not seen");
    }

    type Row = (&'static str, Value, Value, bool, Vec<(VariableFate, bool)>);

    #[test]
    fn what_becomes_of_variables_is_told_with_what_is_in_the_way() {
        let text = json!({"type": "string"});
        let with = |default: &str| json!({"type": "string", "default": default});
        let rows: [Row; 9] = [
            (
                "same",
                json!([variable("v", true, text.clone())]),
                json!([variable("v", true, text.clone())]),
                true,
                vec![],
            ),
            (
                "added",
                json!([]),
                json!([variable("v", false, text.clone())]),
                false,
                vec![(VariableFate::Added, false)],
            ),
            (
                "added, required",
                json!([]),
                json!([variable("v", true, text.clone())]),
                false,
                vec![(VariableFate::Added, true)],
            ),
            (
                "added, required with a default",
                json!([]),
                json!([variable("v", true, with("a"))]),
                false,
                vec![(VariableFate::Added, false)],
            ),
            (
                "removed",
                json!([variable("v", false, text.clone())]),
                json!([]),
                false,
                vec![(VariableFate::Removed, false)],
            ),
            (
                "removed and set",
                json!([variable("v", false, text.clone())]),
                json!([]),
                true,
                vec![(VariableFate::Removed, true)],
            ),
            (
                "required now",
                json!([variable("v", false, text.clone())]),
                json!([variable("v", true, text.clone())]),
                false,
                vec![(VariableFate::Required, true)],
            ),
            (
                "another default",
                json!([variable("v", false, with("a"))]),
                json!([variable("v", false, with("b"))]),
                false,
                vec![(VariableFate::Default, false)],
            ),
            (
                "another schema",
                json!([variable("v", false, text.clone())]),
                json!([variable("v", false, json!({"type": "integer"}))]),
                false,
                vec![(VariableFate::Schema, false)],
            ),
        ];
        for (name, before, after, set, expected) in rows {
            let given = set.then(|| ("v".to_owned(), json!("x"))).into_iter().collect();
            let changes = changes(&class(before), &class(after), &given);
            let found: Vec<_> = changes.iter().map(|change| (change.change, !change.blocks.is_empty())).collect();
            assert_eq!(found, expected, "{name}");
        }
    }
}
