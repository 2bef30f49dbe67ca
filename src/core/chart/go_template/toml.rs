//! TOML as the Go library `BurntSushi/toml` writes and reads it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::functions::date;
use super::json::Budget;
use super::object::Object;
use super::value::Value;

/// The caller says what is too long.
const TOO_LONG: &str = "toml: value is too long";

/// TOML text of a value. The error is Go's.
pub(crate) fn encode(value: &Value, budget: &mut Budget) -> Result<String, String> {
    if let Value::Object(object) = value
        && let Object::Files(files) = &**object
    {
        if !budget.has_room(files.values().map(bytes::Bytes::len).sum()) {
            return Err(TOO_LONG.into());
        }
        let numbers = |data: &[u8]| Value::list(data.iter().map(|byte| Value::Uint(u64::from(*byte))).collect());
        return encode(&Value::map(files.iter().map(|(name, data)| (name.clone(), numbers(data))).collect()), budget);
    }
    let Some(map) = value.as_map() else {
        let mut out = String::new();
        return match value {
            Value::Object(object) if !matches!(**object, Object::Time(_) | Object::Version(_)) => {
                Err("toml: top-level values must be Go maps or structs".into())
            }
            Value::List(list) if tables(value).is_some() || list.nil => {
                Err("toml: top-level values must be Go maps or structs".into())
            }
            _ => scalar(&mut out, value, 0, budget).map(|()| out),
        };
    };
    let mut out = String::new();
    table(&mut out, &map.entries(), &[], budget)?;
    Ok(out)
}

fn is_table(value: &Value) -> bool {
    value.as_map().is_some() || tables(value).is_some()
}

/// The tables of a list that holds nothing else.
fn tables(value: &Value) -> Option<&[Value]> {
    match value {
        Value::List(list) if !list.items.is_empty() && list.items.iter().all(|item| item.as_map().is_some()) => {
            Some(&list.items)
        }
        _ => None,
    }
}

fn table(out: &mut String, entries: &[(Arc<str>, Value)], path: &[String], budget: &mut Budget) -> Result<(), String> {
    if !budget.spend(path.len()) {
        return Err("toml: value is nested too deeply".into());
    }
    let pad = "  ".repeat(path.len());
    for (name, value) in entries.iter().filter(|(_, value)| !value.is_null() && !is_table(value)) {
        budget.text(pad.len() + name.len());
        _ = write!(out, "{pad}{} = ", key(name));
        scalar(out, value, 0, budget)?;
        out.push('\n');
    }
    for (name, value) in entries.iter().filter(|(_, value)| !value.is_null() && is_table(value)) {
        // What its line holds, twice where it is in a list.
        if !budget.has_room(path.iter().map(String::len).sum::<usize>() + name.len()) {
            return Err(TOO_LONG.into());
        }
        let mut path = path.to_vec();
        path.push(key(name));
        let line: usize = path.iter().map(|name| name.len() + 3).sum();
        let pad = "  ".repeat(path.len() - 1);
        if let Some(map) = value.as_map() {
            if path.len() == 1 && !out.is_empty() {
                out.push('\n');
            }
            budget.text(line);
            _ = writeln!(out, "{pad}[{}]", path.join("."));
            table(out, &map.entries(), &path, budget)?;
        } else {
            for item in tables(value).unwrap_or_default() {
                if !out.is_empty() {
                    out.push('\n');
                }
                budget.text(line);
                _ = writeln!(out, "{pad}[[{}]]", path.join("."));
                if let Some(map) = item.as_map() {
                    table(out, &map.entries(), &path, budget)?;
                }
            }
        }
    }
    Ok(())
}

fn key(name: &str) -> String {
    let bare = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if bare {
        return name.to_owned();
    }
    let mut out = String::new();
    string(&mut out, name);
    out
}

fn string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || c == '\u{7f}' => _ = write!(out, "\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
}

fn scalar(out: &mut String, value: &Value, depth: usize, budget: &mut Budget) -> Result<(), String> {
    if !budget.spend(depth) {
        return Err("toml: value is nested too deeply".into());
    }
    match value {
        Value::Invalid | Value::Nil => return Err("toml: cannot encode array with nil element".into()),
        Value::Bool(value) => _ = write!(out, "{value}"),
        Value::Int(value) | Value::Int64(value) => _ = write!(out, "{value}"),
        Value::Uint(value) => _ = write!(out, "{value}"),
        Value::Float(value) if value.is_nan() => out.push_str("nan"),
        Value::Float(value) if value.is_infinite() => out.push_str(if *value > 0.0 { "inf" } else { "-inf" }),
        Value::Float(value) => {
            let text = super::print::float(*value);
            out.push_str(&text);
            if !text.contains(['.', 'e']) {
                out.push_str(".0");
            }
        }
        Value::List(list) => {
            out.push('[');
            for (index, item) in list.items.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                scalar(out, item, depth + 1, budget)?;
            }
            out.push(']');
        }
        Value::Map(map) | Value::Values(map) => {
            out.push('{');
            for (index, (name, item)) in map.entries().iter().filter(|(_, item)| !item.is_null()).enumerate() {
                budget.text(name.len());
                if index > 0 {
                    out.push_str(", ");
                }
                _ = write!(out, "{} = ", key(name));
                scalar(out, item, depth + 1, budget)?;
            }
            out.push('}');
        }
        Value::Object(object) => match &**object {
            Object::Time(time) => out.push_str(&date::rfc3339_nano(time)),
            Object::Month(number) | Object::Weekday(number) => _ = write!(out, "{number}"),
            _ => string(out, &super::print::text_within(value, budget)),
        },
        Value::Str(_) | Value::Raw(_) | Value::Bytes(_) => {
            let bytes = value.bytes().unwrap_or_default();
            budget.text(bytes.len());
            string(out, &String::from_utf8_lossy(bytes));
        }
    }
    Ok(())
}

/// Reads a TOML document.
pub(crate) fn decode(text: &str) -> Result<Value, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| format!("toml: {}", error.message()))?;
    Ok(from_table(table))
}

fn from_table(table: toml::Table) -> Value {
    let entries: BTreeMap<Arc<str>, Value> =
        table.into_iter().map(|(key, value)| (key.into(), from_toml(value))).collect();
    Value::map(entries)
}

fn from_toml(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::from(text),
        toml::Value::Integer(number) => Value::Int64(number),
        toml::Value::Float(number) => Value::Float(number),
        toml::Value::Boolean(value) => Value::Bool(value),
        toml::Value::Datetime(time) => {
            let text = time.to_string();
            match text.parse::<jiff::Timestamp>() {
                Ok(stamp) => date::time(stamp.to_zoned(jiff::tz::TimeZone::UTC)),
                Err(_) => Value::from(text),
            }
        }
        toml::Value::Array(items) => Value::list(items.into_iter().map(from_toml).collect()),
        toml::Value::Table(table) => from_table(table),
    }
}
