//! What differs between two objects, field by field, and nothing of a Secret.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::core::chart::Secrets;
use crate::core::manifest::Manifest;

/// What is shown in place of a secret.
pub const MASK: &str = "***";
/// What is shown in place of a secret that differs from the one before.
pub const MASK_DIFFERS: &str = "*** (differs)";
/// `kubectl apply` keeps a copy of the whole object there.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Cluster API keeps there what a version of its API has no field for.
const CONVERTED: &str = "cluster.x-k8s.io/conversion-data";
/// Metadata that the API server writes, and who refers to what.
const SERVED: [&str; 9] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "selfLink",
    "ownerReferences",
    "finalizers",
    "deletionTimestamp",
];

/// A field that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Where: `.spec.template.spec.containers[name=app].image`.
    pub path: String,
    /// What is there now; absent where it comes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// What will be there; absent where it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// What becomes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Fate {
    /// It comes.
    Added,
    /// Its fields change.
    Changed,
    /// Another one of another name takes its place, with the same content.
    Rotated,
    /// It goes.
    Removed,
    /// No chart has it any more, and it stays: its kind is never pruned, or it is annotated to stay.
    Kept,
    /// The API server refuses it.
    Refused,
}

/// An object that is not the same afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectChange {
    /// What becomes of it.
    pub fate: Fate,
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for objects without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name; of a rotated object, the one before.
    pub name: String,
    /// The name afterwards, where it is another.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub new_name: String,
    /// The fields that differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// What else is to be said of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl ObjectChange {
    /// A change of an object without details.
    pub fn new(fate: Fate, manifest: &Manifest) -> Self {
        Self {
            fate,
            kind: manifest.key.kind.clone(),
            namespace: manifest.key.namespace.clone(),
            name: manifest.key.name.clone(),
            new_name: String::new(),
            changes: Vec::new(),
            message: String::new(),
        }
    }
}

/// The fields in which two objects differ, what the API server writes left out, Secrets masked.
pub fn of_objects(before: &Value, after: &Value) -> Vec<Change> {
    let (before, after) = masked(without_served(before), without_served(after));
    between(&before, &after)
}

/// An object without its status and what the API server writes into its metadata.
pub fn without_served(object: &Value) -> Value {
    let mut object = object.clone();
    let Some(map) = object.as_object_mut() else { return object };
    map.remove("status");
    let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) else { return object };
    metadata.retain(|key, _| !SERVED.contains(&key.as_str()));
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| key != LAST_APPLIED && key != CONVERTED);
    }
    metadata.retain(|_, value| value.as_object().is_none_or(|map| !map.is_empty()) && !value.is_null());
    object
}

/// Both with masks for what a Secret holds; a mask tells whether they differ, and nothing else.
fn masked(mut before: Value, mut after: Value) -> (Value, Value) {
    let is_secret = |object: &Value| {
        object.get("kind").and_then(Value::as_str) == Some("Secret")
            && object.get("apiVersion").and_then(Value::as_str) == Some("v1")
    };
    if !is_secret(&before) && !is_secret(&after) {
        return (before, after);
    }
    for field in ["data", "stringData"] {
        let had = before.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
        if let Some(values) = after.get_mut(field).and_then(Value::as_object_mut) {
            for (key, value) in values.iter_mut() {
                let differs = had.get(key).is_some_and(|had| had != value);
                *value = if differs { MASK_DIFFERS } else { MASK }.into();
            }
        }
        if let Some(values) = before.get_mut(field).and_then(Value::as_object_mut) {
            values.values_mut().for_each(|value| *value = MASK.into());
        }
    }
    (before, after)
}

/// The same changes with masks for what holds a secret wherever a chart puts it: a value of a Secret in a ConfigMap, an argument.
pub fn hiding(changes: Vec<Change>, secrets: &Secrets) -> Vec<Change> {
    let hide = |change: Change| match (&change.before, &change.after) {
        // The one before may be an older secret, which nobody knows as one any more.
        (Some(before), Some(after)) if holds(before, secrets) || holds(after, secrets) => {
            Change { before: Some(MASK.into()), after: Some(MASK_DIFFERS.into()), ..change }
        }
        (Some(_), Some(_)) => change,
        _ => {
            let masked = |value: Option<Value>| value.map(|value| without(value, secrets));
            Change { before: masked(change.before), after: masked(change.after), ..change }
        }
    };
    changes.into_iter().map(hide).collect()
}

/// Whether a secret is in a value.
fn holds(value: &Value, secrets: &Secrets) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(key, value)| secrets.hide(key) != *key || holds(value, secrets)),
        Value::Array(list) => list.iter().any(|value| holds(value, secrets)),
        Value::String(text) => secrets.hide(text) != *text,
        Value::Number(number) => secrets.hide(&number.to_string()) != number.to_string(),
        Value::Null | Value::Bool(_) => false,
    }
}

/// A value with masks for what in it holds a secret.
fn without(value: Value, secrets: &Secrets) -> Value {
    match value {
        Value::Object(map) => {
            Value::Object(map.into_iter().map(|(key, value)| (secrets.hide(&key), without(value, secrets))).collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(|value| without(value, secrets)).collect()),
        leaf if holds(&leaf, secrets) => MASK.into(),
        leaf => leaf,
    }
}

/// The fields in which two values differ.
pub fn between(before: &Value, after: &Value) -> Vec<Change> {
    let mut changes = Vec::new();
    compare(&mut String::new(), Some(before), Some(after), &mut changes);
    changes
}

/// Writing to a String can't fail.
fn compare(path: &mut String, before: Option<&Value>, after: Option<&Value>, changes: &mut Vec<Change>) {
    if before == after {
        return;
    }
    let length = path.len();
    match (before, after) {
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            for key in keys {
                push_key(path, key);
                compare(path, before.get(key), after.get(key), changes);
                path.truncate(length);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => compare_lists(path, before, after, changes),
        (before, after) => {
            changes.push(Change { path: path.clone(), before: before.cloned(), after: after.cloned() });
        }
    }
}

fn compare_lists(path: &mut String, before: &[Value], after: &[Value], changes: &mut Vec<Change>) {
    let length = path.len();
    if let (Some((key, old)), Some((same, new))) = (keyed(before), keyed(after))
        && key == same
    {
        let names: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
        for name in names {
            let _ = write!(path, "[{key}={name}]");
            compare(path, old.get(name).copied(), new.get(name).copied(), changes);
            path.truncate(length);
        }
        return;
    }
    for at in 0..before.len().max(after.len()) {
        let _ = write!(path, "[{at}]");
        compare(path, before.get(at), after.get(at), changes);
        path.truncate(length);
    }
}

/// The items of a list by the field that tells them apart, where they have one.
fn keyed(list: &[Value]) -> Option<(&'static str, BTreeMap<&str, &Value>)> {
    let by = |key: &'static str| {
        let items: BTreeMap<&str, &Value> =
            list.iter().filter_map(|item| Some((item.get(key)?.as_str()?, item))).collect();
        (!list.is_empty() && items.len() == list.len()).then_some((key, items))
    };
    by("name").or_else(|| by("class"))
}

fn push_key(path: &mut String, key: &str) {
    let is_plain = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') && !key.is_empty();
    if is_plain {
        path.push('.');
        path.push_str(key);
    } else {
        let _ = write!(path, "[{key:?}]");
    }
}

/// A value with every text that is a key of `names` replaced by its value.
pub fn renamed(value: &Value, names: &BTreeMap<String, String>) -> Value {
    match value {
        Value::String(text) => Value::String(names.get(text).unwrap_or(text).clone()),
        Value::Array(items) => items.iter().map(|item| renamed(item, names)).collect(),
        Value::Object(map) => {
            let map: Map<String, Value> = map.iter().map(|(key, value)| (key.clone(), renamed(value, names))).collect();
            Value::Object(map)
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn paths(changes: &[Change]) -> Vec<String> {
        let shown = |value: &Option<Value>| value.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        changes
            .iter()
            .map(|change| format!("{} {} {}", change.path, shown(&change.before), shown(&change.after)))
            .collect()
    }

    #[test]
    fn a_secret_is_shown_wherever_it_stands_as_a_mask() {
        let mut secrets = Secrets::default();
        secrets.add("Tops3cretValue");
        let shown = |before: Value, after: Value| paths(&hiding(between(&before, &after), &secrets));
        for (before, after, expected) in [
            (json!({"a": "1"}), json!({"a": "x=Tops3cretValue"}), r#".a "***" "*** (differs)""#),
            (json!({"a": "Tops3cretValue"}), json!({"a": "1"}), r#".a "***" "*** (differs)""#),
            (json!({}), json!({"b": {"c": "VG9wczNjcmV0VmFsdWU=", "d": 1}}), r#".b - {"c":"***","d":1}"#),
            (json!({"b": ["Tops3cretValue", "x"]}), json!({}), r#".b ["***","x"] -"#),
            (json!({"a": "1"}), json!({"a": "2"}), r#".a "1" "2""#),
        ] {
            assert_eq!(shown(before, after), [expected]);
        }
    }

    #[test]
    fn fields_are_named_by_what_tells_them_apart() {
        for (before, after, expected) in [
            (json!({"a": 1}), json!({"a": 1}), vec![]),
            (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": 1, "c": 3}}), vec![".a.c 2 3"]),
            (json!({"a": {}}), json!({"a": {"b": null}}), vec![".a.b - null"]),
            (json!({"x.y/z": 1}), json!({}), vec![r#"["x.y/z"] 1 -"#]),
            (
                json!([{"name": "a", "v": 1}, {"name": "b", "v": 1}]),
                json!([{"name": "b", "v": 2}, {"name": "a", "v": 1}]),
                vec!["[name=b].v 1 2"],
            ),
            (json!([1, 2]), json!([1, 3, 4]), vec!["[1] 2 3", "[2] - 4"]),
            (json!([{"name": "a"}, {"name": "a"}]), json!([{"name": "a"}]), vec![r#"[1] {"name":"a"} -"#]),
        ] {
            assert_eq!(paths(&between(&before, &after)), expected, "{before} {after}");
        }
    }

    #[test]
    fn secrets_show_only_whether_they_differ() {
        let secret =
            |data: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": data});
        let before = secret(json!({"a": "c3dvcmRmaXNo", "b": "c3dvcmRmaXNo", "c": "c3dvcmRmaXNo"}));
        let after = secret(json!({"a": "dHVuYQ==", "b": "c3dvcmRmaXNo", "d": "dHVuYQ=="}));
        let changes = of_objects(&before, &after);
        assert_eq!(paths(&changes), [r#".data.a "***" "*** (differs)""#, r#".data.c "***" -"#, r#".data.d - "***""#]);
        let mut annotated = secret(json!({}));
        annotated["metadata"]["annotations"] = json!({LAST_APPLIED: "c3dvcmRmaXNo", CONVERTED: "{}"});
        assert_eq!(of_objects(&secret(json!({})), &annotated), []);
    }

    #[test]
    fn what_the_api_server_writes_is_no_difference() {
        let before = json!({"metadata": {"name": "a", "uid": "1", "labels": {}}, "status": {"a": 1}});
        let after = json!({"metadata": {"name": "a", "uid": "2", "managedFields": []}, "status": {"a": 2}});
        assert_eq!(of_objects(&before, &after), []);
    }
}
