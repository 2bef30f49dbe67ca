//! Between JSON and the values of templates, and JSON text as Go's `encoding/json` writes it.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map as JsonMap, Number, Value as Json};

use super::object::Object;
use super::value::{Map, Value, lossy};

/// Deeper values are refused: they can only be made to exhaust the stack.
pub(crate) const MAX_DEPTH: usize = 500;

/// How much of a value is visited: maps that hold each other twice have no end that could be reached. And how much text is
/// made of it: a text that a value holds many times takes no room until then.
#[derive(Debug)]
pub(crate) struct Budget {
    visits: usize,
    bytes: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(64 << 20)
    }
}

impl Budget {
    /// For a text of less than `bytes`.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { visits: 1_000_000, bytes }
    }

    /// Whether a value at that depth may be visited.
    pub(crate) fn spend(&mut self, depth: usize) -> bool {
        self.visits = self.visits.saturating_sub(1);
        self.visits > 0 && self.bytes > 0 && depth <= MAX_DEPTH
    }

    /// Counts text that is written, or a part of it: when nothing is left, more than allowed was.
    pub(crate) fn text(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Whether so much text may still be made.
    pub(crate) fn has_room(&mut self, bytes: usize) -> bool {
        if bytes >= self.bytes {
            self.bytes = 0;
        }
        self.bytes > 0
    }

    /// Whether more text was wanted than is allowed.
    pub(crate) fn is_out_of_text(&self) -> bool {
        self.bytes == 0
    }

    /// How much text may still be made.
    pub(crate) fn left(&self) -> usize {
        self.bytes
    }
}

/// JSON as Go decodes it into `interface{}`: every number is a float64.
pub(crate) fn from_json(json: &Json) -> Value {
    read(json, &|number| Value::Float(number.as_f64().unwrap_or_default()))
}

/// [`from_json`], but a number without a fraction is an int64.
pub(crate) fn from_json_with_int64(json: &Json) -> Value {
    read(json, &|number| match number.as_i64() {
        Some(whole) => Value::Int64(whole),
        None => Value::Float(number.as_f64().unwrap_or_default()),
    })
}

fn read(json: &Json, number: &dyn Fn(&serde_json::Number) -> Value) -> Value {
    match json {
        Json::Null => Value::Nil,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(value) => number(value),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::list(items.iter().map(|item| read(item, number)).collect()),
        Json::Object(map) => {
            Value::map(map.iter().map(|(key, value)| (key.as_str().into(), read(value, number))).collect())
        }
    }
}

/// What Go's `json.Marshal` makes of a value, as a tree. `None`: it can't be marshalled.
pub(crate) fn to_json(value: &Value) -> Option<Json> {
    to_json_within(value, &mut Budget::new(usize::MAX))
}

/// [`to_json`] for what is then written as YAML, with a bound on its text.
pub(crate) fn to_json_within(value: &Value, budget: &mut Budget) -> Option<Json> {
    convert(value, 0, budget)
}

/// A lower bound of what a text takes as YAML at that depth: each of its lines is indented, and a long one is broken where
/// it has a space. Indentation counts by a quarter: not every level has one, and not every line of text becomes a line.
fn lines(text: &str, depth: usize) -> usize {
    const WIDTH: usize = 80;
    let indentation = 2 * depth;
    let all = |wanted: u8| text.bytes().filter(|byte| *byte == wanted).count();
    let breaks = if indentation < WIDTH / 2 { text.len() / (WIDTH / 2) } else { all(b' ') };
    text.len().saturating_add(indentation.saturating_mul(all(b'\n') + breaks) / 4)
}

fn convert(value: &Value, depth: usize, budget: &mut Budget) -> Option<Json> {
    if !budget.spend(depth) {
        return None;
    }
    budget.text(depth / 2);
    Some(match value {
        Value::Invalid | Value::Nil => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(value) | Value::Int64(value) => Json::Number((*value).into()),
        Value::Uint(value) => Json::Number((*value).into()),
        Value::Float(value) => Json::Number(number(*value)?),
        Value::Str(text) => {
            budget.text(lines(text, depth));
            Json::String(text.to_string())
        }
        Value::Raw(bytes) => {
            let text = lossy(bytes).into_owned();
            budget.text(lines(&text, depth));
            Json::String(text)
        }
        Value::Bytes(bytes) => {
            budget.text(bytes.len());
            Json::String(STANDARD.encode(bytes))
        }
        value if value.is_null() => Json::Null,
        Value::List(list) => {
            Json::Array(list.items.iter().map(|item| convert(item, depth + 1, budget)).collect::<Option<Vec<_>>>()?)
        }
        Value::Map(map) | Value::Values(map) => Json::Object(convert_map(map, depth, budget)?),
        Value::Object(object) => convert_object(object, depth, budget)?,
    })
}

fn convert_map(map: &Map, depth: usize, budget: &mut Budget) -> Option<JsonMap<String, Json>> {
    let mut json = JsonMap::new();
    map.try_each(|key, value| {
        budget.text(key.len());
        json.insert(key.to_string(), convert(value, depth + 1, budget)?);
        Some(())
    })?;
    Some(json)
}

fn convert_object(object: &Object, depth: usize, budget: &mut Budget) -> Option<Json> {
    Some(match object {
        Object::Struct(fields) => {
            let mut map = JsonMap::new();
            for field in fields.exported() {
                if field.omit_empty && !field.value.truth() {
                    continue;
                }
                map.insert(field.json.to_owned(), convert(&field.value, depth + 1, budget)?);
            }
            Json::Object(map)
        }
        Object::Files(files) => {
            if !budget.has_room(files.values().map(bytes::Bytes::len).sum()) {
                return None;
            }
            let encoded = files.iter().map(|(name, data)| {
                budget.text(data.len());
                (name.to_string(), Json::String(STANDARD.encode(data)))
            });
            Json::Object(encoded.collect())
        }
        Object::Version(version) => Json::String(version.to_string()),
        Object::Time(time) => Json::String(super::functions::date::rfc3339_nano(time)),
        Object::Duration(number) | Object::Month(number) | Object::Weekday(number) => Json::Number((*number).into()),
    })
}

/// A float as JSON: whole numbers become integers, as they do on the way through `json.Marshal` and back.
fn number(value: f64) -> Option<Number> {
    if value.fract() == 0.0 && value.abs() < 1.8e19 && !(value == 0.0 && value.is_sign_negative()) {
        // Go writes the shortest digits that mean this float, and noughts behind them.
        let text = format!("{value}");
        let whole = text.parse::<i64>().map(Number::from);
        if let Ok(whole) = whole.or_else(|_| text.parse::<u64>().map(Number::from)) {
            return Some(whole);
        }
    }
    Number::from_f64(value)
}

/// How JSON text is written.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    pub(crate) escape_html: bool,
    pub(crate) pretty: bool,
}

/// JSON text as Go writes it. The error is Go's.
pub(crate) fn encode(value: &Value, style: Style, budget: &mut Budget) -> Result<String, String> {
    let mut out = String::new();
    write(&mut out, value, style, 0, budget)?;
    Ok(out)
}

fn newline(out: &mut String, style: Style, depth: usize, budget: &mut Budget) {
    if style.pretty {
        budget.text(2 * depth);
        out.push('\n');
        for _ in 0..depth {
            out.push_str("  ");
        }
    }
}

fn write(out: &mut String, value: &Value, style: Style, depth: usize, budget: &mut Budget) -> Result<(), String> {
    if !budget.spend(depth) {
        return Err(String::from("json: unsupported value: nested too deep or encountered a cycle"));
    }
    match value {
        Value::Invalid | Value::Nil => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Int(value) | Value::Int64(value) => _ = write!(out, "{value}"),
        Value::Uint(value) => _ = write!(out, "{value}"),
        Value::Float(value) => out.push_str(&float(*value)?),
        Value::Str(text) => {
            budget.text(text.len());
            string(out, text, style);
        }
        Value::Raw(bytes) => {
            budget.text(bytes.len());
            out.push('"');
            for chunk in bytes.utf8_chunks() {
                characters(out, chunk.valid(), style);
                out.push_str(&"\\ufffd".repeat(chunk.invalid().len()));
            }
            out.push('"');
        }
        Value::Bytes(bytes) => {
            budget.text(bytes.len());
            string(out, &STANDARD.encode(bytes), style);
        }
        value if value.is_null() => out.push_str("null"),
        Value::List(list) => {
            out.push('[');
            for (index, item) in list.items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                newline(out, style, depth + 1, budget);
                write(out, item, style, depth + 1, budget)?;
            }
            if !list.items.is_empty() {
                newline(out, style, depth, budget);
            }
            out.push(']');
        }
        Value::Map(map) | Value::Values(map) => object(out, &map.entries(), style, depth, budget)?,
        Value::Object(inner) => match &**inner {
            Object::Struct(fields) => {
                let entries: Vec<(std::sync::Arc<str>, Value)> = fields
                    .exported()
                    .filter(|field| !field.omit_empty || field.value.truth())
                    .map(|field| (field.json.into(), field.value.clone()))
                    .collect();
                object(out, &entries, style, depth, budget)?;
            }
            other => match convert_object(other, depth, budget) {
                Some(json) => write(out, &from_json(&json), style, depth, &mut Budget::new(usize::MAX))?,
                None => return Err(String::from("json: unsupported value")),
            },
        },
    }
    Ok(())
}

fn object(
    out: &mut String,
    entries: &[(std::sync::Arc<str>, Value)],
    style: Style,
    depth: usize,
    budget: &mut Budget,
) -> Result<(), String> {
    out.push('{');
    for (index, (key, item)) in entries.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        newline(out, style, depth + 1, budget);
        budget.text(key.len());
        string(out, key, style);
        out.push(':');
        if style.pretty {
            out.push(' ');
        }
        write(out, item, style, depth + 1, budget)?;
    }
    if !entries.is_empty() {
        newline(out, style, depth, budget);
    }
    out.push('}');
    Ok(())
}

/// `encoding/json` writes floats like ES6: exponents from 1e21 on and below 1e-6.
fn float(value: f64) -> Result<String, String> {
    if !value.is_finite() {
        return Err(format!("json: unsupported value: {}", super::print::float(value)));
    }
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
        let text = format!("{value:e}");
        return Ok(match text.split_once('e') {
            Some((digits, exponent)) if !exponent.starts_with('-') => format!("{digits}e+{exponent}"),
            _ => text,
        });
    }
    Ok(format!("{value}"))
}

fn string(out: &mut String, text: &str, style: Style) {
    out.push('"');
    characters(out, text, style);
    out.push('"');
}

fn characters(out: &mut String, text: &str, style: Style) {
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' if style.escape_html => _ = write!(out, "\\u{:04x}", c as u32),
            '\u{2028}' | '\u{2029}' => _ = write!(out, "\\u{:04x}", c as u32),
            c if (c as u32) < 0x20 => _ = write!(out, "\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_go_writes_them() {
        for (value, text) in [
            (1_000_000.0, "1000000"),
            (0.5, "0.5"),
            (1e21, "1e+21"),
            (1e-7, "1e-7"),
            (123_456_789_012.5, "123456789012.5"),
            (-0.0, "-0"),
        ] {
            assert_eq!(float(value).unwrap(), text);
        }
    }

    #[test]
    fn html_is_escaped_unless_raw() {
        let value = Value::from("<a&b>\u{1}");
        assert_eq!(
            encode(&value, Style { escape_html: true, pretty: false }, &mut Budget::default()).unwrap(),
            r#""\u003ca\u0026b\u003e\u0001""#
        );
        assert_eq!(
            encode(&value, Style { escape_html: false, pretty: false }, &mut Budget::default()).unwrap(),
            r#""<a&b>\u0001""#
        );
    }
}
