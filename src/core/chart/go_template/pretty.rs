//! `toYamlPretty`: YAML with lists indented below their keys.

use std::sync::Arc;

use serde_json::Value as Json;

use super::json::Budget;
use super::object::Object;
use super::value::Value;
use super::{json, print};
use crate::core::yaml;

/// The text without a line break at its end. `None`: the value is nested too deeply, or the text too long.
pub(crate) fn to_yaml(value: &Value, budget: &mut Budget) -> Option<String> {
    let mut lines = Vec::new();
    write(&mut lines, value, 0, budget)?;
    Some(lines.join("\n"))
}

/// Whether a value takes lines of its own.
fn is_block(value: &Value) -> bool {
    match value {
        Value::List(list) => !list.items.is_empty(),
        Value::Bytes(data) => !data.is_empty(),
        other => entries(other).is_some_and(|entries| !entries.is_empty()),
    }
}

/// The entries of a map, in order, or the fields of a struct under the names that `yaml.v3` gives them.
fn entries(value: &Value) -> Option<Vec<(Arc<str>, Value)>> {
    if let Value::Object(object) = value
        && let Object::Struct(inner) = &**object
    {
        return Some(inner.exported().map(|f| (f.name.to_lowercase().into(), f.value.clone())).collect());
    }
    if let Value::Object(object) = value
        && let Object::Files(files) = &**object
    {
        let entries: Vec<_> = files.iter().map(|(name, data)| (name.clone(), bytes(data))).collect();
        return Some(sorted(&entries));
    }
    value.as_map().map(|map| sorted(&map.entries()))
}

/// In the order of `yaml.v3`.
fn sorted(entries: &[(Arc<str>, Value)]) -> Vec<(Arc<str>, Value)> {
    let mut places: Vec<&(Arc<str>, Value)> = entries.iter().collect();
    yaml::sort_by_key(&mut places, yaml::Sorter::V3, |(key, _)| key);
    places.into_iter().cloned().collect()
}

/// How many bytes of files a value is: each becomes a line.
fn file_bytes(value: &Value) -> usize {
    match value {
        Value::Object(object) => match &**object {
            Object::Files(files) => files.values().map(bytes::Bytes::len).sum(),
            _ => 0,
        },
        _ => 0,
    }
}

/// Bytes are a list of numbers to `yaml.v3`.
fn bytes(data: &[u8]) -> Value {
    Value::list(data.iter().map(|byte| Value::Uint(u64::from(*byte))).collect())
}

fn write(lines: &mut Vec<String>, value: &Value, depth: usize, budget: &mut Budget) -> Option<()> {
    if !budget.spend(depth) {
        return None;
    }
    match value {
        Value::Bytes(data) => {
            if !budget.has_room(data.len()) {
                return None;
            }
            write(lines, &bytes(data), depth, budget)?;
        }
        Value::List(list) if !list.items.is_empty() => {
            for item in &list.items {
                let mut inner = Vec::new();
                write(&mut inner, item, depth + 1, budget)?;
                budget.text(2 * inner.len());
                // The lines of a text are below the dash already.
                let below = if is_block(item) { "  " } else { "" };
                for (index, line) in inner.iter().enumerate() {
                    lines.push(indented(if index == 0 { "- " } else { below }, line));
                }
            }
        }
        other if !budget.has_room(file_bytes(other)) => return None,
        other => match entries(other) {
            Some(entries) if !entries.is_empty() => {
                for (key, value) in entries {
                    budget.text(key.len());
                    let is_simple = is_simple(&key);
                    let key = scalar(&Value::Str(key))?;
                    let mut inner = Vec::new();
                    write(&mut inner, &value, depth + 1, budget)?;
                    if !is_simple {
                        // The lines of a text are indented already.
                        let below = if is_block(&value) { "  " } else { "" };
                        let lead = |index: usize, first: &'static str, below: &'static str| {
                            if index == 0 { first } else { below }
                        };
                        lines.extend(key.iter().enumerate().map(|(index, line)| indented(lead(index, "? ", ""), line)));
                        lines.extend(
                            inner.iter().enumerate().map(|(index, line)| indented(lead(index, ": ", below), line)),
                        );
                        continue;
                    }
                    let key = key.join("");
                    if is_block(&value) {
                        budget.text(2 * inner.len());
                        lines.push(format!("{key}:"));
                        lines.extend(inner.iter().map(|line| indented("  ", line)));
                    } else {
                        let mut inner = inner.into_iter();
                        lines.push(format!("{key}: {}", inner.next().unwrap_or_default()));
                        lines.extend(inner);
                    }
                }
            }
            _ => {
                let mut scalar = scalar(other)?;
                budget.text(scalar.iter().map(|line| line.len() + 1).sum());
                lines.append(&mut scalar);
            }
        },
    }
    Some(())
}

/// Whether a key stands before its colon on one line (`yaml_emitter_check_simple_key`).
fn is_simple(key: &str) -> bool {
    key.len() <= 128 && !key.contains(['\r', '\n', '\u{85}', '\u{2028}', '\u{2029}'])
}

fn indented(by: &str, line: &str) -> String {
    if line.is_empty() { String::new() } else { format!("{by}{line}") }
}

/// The lines of a scalar, or of an empty list or map.
fn scalar(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Float(number) => return Some(vec![print::float(*number)]),
        // A nil one too.
        Value::List(_) => return Some(vec!["[]".into()]),
        Value::Map(_) | Value::Values(_) => return Some(vec!["{}".into()]),
        Value::Object(object) if let Object::Time(time) = &**object => {
            return Some(vec![super::functions::date::rfc3339_nano(time)]);
        }
        _ => {}
    }
    let json: Json = json::to_json(value)?;
    Some(yaml::to_string_unfolded(&json).lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_indented() {
        let value = json::from_json(&serde_json::json!({"a": [1, {"b": [2], "c": {}}], "d": "x"}));
        assert_eq!(to_yaml(&value, &mut Budget::default()).unwrap(), "a:\n  - 1\n  - b:\n      - 2\n    c: {}\nd: x");
    }
}
