//! Helm's own functions.

use std::sync::Arc;

use memchr::memmem;
use serde_json::Value as Json;

use super::super::super::Lookup;
use super::super::eval::{Eval, Fault};
use super::super::json::{Style, encode, from_json, to_json_within};
use super::super::print::quote_char;
use super::super::value::{ListType, MapType, Value};
use super::{Function, Out, Ty, exact, text};
use crate::core::yaml;

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("include", &[Ty::Str, Ty::Any], |eval, args| match &args[0] {
        Value::Str(name) => eval.include(name, &args[1]),
        other => Err(format!("no template {:?}", text(other)).into()),
    }),
    Function::new("tpl", &[Ty::Str, Ty::Any], |eval, args| match &args[0] {
        // Without actions it is given back as it is.
        Value::Raw(bytes) if memmem::find(bytes, b"{{").is_none() => Ok(args[0].clone()),
        source => {
            let source = exact(source)?;
            eval.tpl(&source, &args[1])
        }
    }),
    Function::new("required", &[Ty::Str, Ty::Any], |_, args| match &args[1] {
        Value::Invalid | Value::Nil => Err(text(&args[0]).as_ref().into()),
        Value::Str(given) if given.is_empty() => Err(text(&args[0]).as_ref().into()),
        given => Ok(given.clone()),
    }),
    Function::new("fail", &[Ty::Str], |_, args| Err(text(&args[0]).as_ref().into())),
    Function::new("lookup", &[Ty::Str, Ty::Str, Ty::Str, Ty::Str], lookup),
    Function::new("getHostByName", &[Ty::Str], |_, _| Ok(Value::from(""))),
    Function::new("toYaml", &[Ty::Any], |eval, args| Ok(Value::from(yaml_text(eval, &args[0])?.unwrap_or_default()))),
    Function::new("mustToYaml", &[Ty::Any], |eval, args| {
        yaml_text(eval, &args[0])?.map_or_else(|| Err("json: unsupported value".into()), |text| Ok(Value::from(text)))
    })
    .of_helm_4(),
    Function::new("toYamlPretty", &[Ty::Any], |eval, args| {
        let mut budget = eval.budget();
        let text = super::super::pretty::to_yaml(&args[0], &mut budget).unwrap_or_default();
        eval.within(&budget)?;
        Ok(Value::from(text))
    }),
    Function::new("fromYaml", &[Ty::Str], |eval, args| {
        readable(eval, &args[0])?;
        if let Value::Raw(_) = args[0] {
            return Ok(error_map(&format!("error converting YAML to JSON: {NO_YAML}")));
        }
        Ok(match yaml::parse(&text(&args[0])) {
            Ok(Json::Null) => Value::map([].into()),
            Ok(json @ Json::Object(_)) => from_json(&json),
            Ok(other) => error_map(&yaml_unfit(&other, "map[string]interface {}")),
            Err(error) => error_map(&format!("error converting YAML to JSON: {error}")),
        })
    }),
    Function::new("fromYamlArray", &[Ty::Str], |eval, args| {
        readable(eval, &args[0])?;
        if let Value::Raw(_) = args[0] {
            return Ok(Value::list(vec![format!("error converting YAML to JSON: {NO_YAML}").into()]));
        }
        Ok(match yaml::parse(&text(&args[0])) {
            Ok(Json::Null) => Value::list(Vec::new()),
            Ok(json @ Json::Array(_)) => from_json(&json),
            Ok(other) => Value::list(vec![yaml_unfit(&other, "[]interface {}").into()]),
            Err(error) => Value::list(vec![format!("error converting YAML to JSON: {error}").into()]),
        })
    }),
    Function::new("toJson", &[Ty::Any], |eval, args| {
        json_text(eval, &args[0], Style { escape_html: true, pretty: false }, false)
    }),
    Function::new("mustToJson", &[Ty::Any], |eval, args| {
        json_text(eval, &args[0], Style { escape_html: true, pretty: false }, true)
    }),
    Function::new("toPrettyJson", &[Ty::Any], |eval, args| {
        json_text(eval, &args[0], Style { escape_html: true, pretty: true }, false)
    }),
    Function::new("mustToPrettyJson", &[Ty::Any], |eval, args| {
        json_text(eval, &args[0], Style { escape_html: true, pretty: true }, true)
    }),
    Function::new("toRawJson", &[Ty::Any], |eval, args| {
        json_text(eval, &args[0], Style { escape_html: false, pretty: false }, true)
    }),
    Function::new("mustToRawJson", &[Ty::Any], |eval, args| {
        json_text(eval, &args[0], Style { escape_html: false, pretty: false }, true)
    }),
    Function::new("fromJson", &[Ty::Str], |eval, args| {
        readable(eval, &args[0])?;
        Ok(match serde_json::from_str::<Json>(&text(&args[0])) {
            Ok(Json::Null) => Value::nil_map(MapType::Any),
            Ok(json @ Json::Object(_)) => from_json(&json),
            Ok(other) => error_map(&unfit(&other, "map[string]interface {}")),
            Err(error) => error_map(&json_error(&text(&args[0]), &error)),
        })
    }),
    Function::new("mustFromJson", &[Ty::Str], |eval, args| {
        readable(eval, &args[0])?;
        match serde_json::from_str::<Json>(&text(&args[0])) {
            Ok(json) => Ok(from_json(&json)),
            Err(error) => Err(json_error(&text(&args[0]), &error).into()),
        }
    }),
    Function::new("fromJsonArray", &[Ty::Str], |eval, args| {
        readable(eval, &args[0])?;
        Ok(match serde_json::from_str::<Json>(&text(&args[0])) {
            Ok(Json::Null) => Value::nil_list(ListType::Any),
            Ok(json @ Json::Array(_)) => from_json(&json),
            Ok(other) => Value::list(vec![unfit(&other, "[]interface {}").into()]),
            Err(error) => Value::list(vec![json_error(&text(&args[0]), &error).into()]),
        })
    }),
    Function::new("toToml", &[Ty::Any], |eval, args| {
        if args[0].is_nil() {
            return Err("reflect: call of reflect.Value.Type on zero Value".into());
        }
        let text = toml(eval, &args[0])?.unwrap_or_else(|error| error);
        Ok(Value::from(text))
    }),
    Function::new("mustToToml", &[Ty::Any], |eval, args| {
        if args[0].is_nil() {
            return Err("reflect: call of reflect.Value.Type on zero Value".into());
        }
        let text = toml(eval, &args[0])??;
        Ok(Value::from(text))
    })
    .of_helm_4(),
    Function::new("fromToml", &[Ty::Str], |eval, args| {
        readable(eval, &args[0])?;
        if let Value::Raw(_) = args[0] {
            return Ok(error_map("toml: invalid UTF-8 byte"));
        }
        Ok(super::super::toml::decode(&text(&args[0])).unwrap_or_else(|message| error_map(&message)))
    }),
];

/// What Go says of a text in another encoding.
const NO_YAML: &str = "yaml: invalid leading UTF-8 octet";

/// Refuses a text of more values than a list may have, and counts it: what is made of it holds its texts.
fn readable(eval: &mut Eval<'_>, source: &Value) -> Result<(), Fault> {
    let bytes = source.bytes().unwrap_or_default();
    // What begins a value.
    let values = bytes.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{' | b'\n')).count();
    eval.items(values)?;
    eval.produce(bytes.len())
}

fn error_map(message: &str) -> Value {
    Value::map(super::super::eval::entries([("Error", Value::from(message))]))
}

/// Go's complaint about JSON of another type.
fn unfit(json: &Json, wanted: &str) -> String {
    let found = match json {
        Json::Null => "null",
        Json::Bool(_) => "bool",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    };
    format!("json: cannot unmarshal {found} into Go value of type {wanted}")
}

fn yaml_unfit(json: &Json, wanted: &str) -> String {
    format!("error unmarshaling JSON: while decoding JSON: {}", unfit(json, wanted))
}

fn json_error(text: &str, error: &serde_json::Error) -> String {
    if text.trim().is_empty() || error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    // Go looks at bytes.
    let line = text.lines().nth(error.line().saturating_sub(1)).map(str::as_bytes);
    let c = line.and_then(|line| line.get(error.column().saturating_sub(1))).map(|byte| char::from(*byte));
    let told = error.to_string();
    let place = if told.starts_with("key must be a string") {
        "looking for beginning of object key string"
    } else if told.starts_with("trailing characters") {
        "after top-level value"
    } else {
        "looking for beginning of value"
    };
    let shown = match c.unwrap_or(' ') {
        '\'' => "\\'".to_owned(),
        '"' => "\"".to_owned(),
        c => {
            let mut quoted = String::new();
            quote_char(&mut quoted, c, '"');
            quoted
        }
    };
    format!("invalid character '{shown}' {place}")
}

/// A value as YAML. `None`: it can't be marshalled.
fn yaml_text(eval: &mut Eval<'_>, value: &Value) -> Result<Option<String>, Fault> {
    let mut budget = eval.budget();
    let json = to_json_within(value, &mut budget);
    eval.within(&budget)?;
    let Some(json) = json else { return Ok(None) };
    let mut text = yaml::to_string(&json);
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(Some(text))
}

/// A value as TOML, or Go's error.
fn toml(eval: &mut Eval<'_>, value: &Value) -> Result<Result<String, String>, Fault> {
    let mut budget = eval.budget();
    let text = super::super::toml::encode(value, &mut budget);
    eval.within(&budget)?;
    Ok(text)
}

fn json_text(eval: &mut Eval<'_>, value: &Value, style: Style, strict: bool) -> Out {
    let mut budget = eval.budget();
    let text = encode(value, style, &mut budget);
    eval.within(&budget)?;
    match text {
        Ok(text) => Ok(Value::from(text)),
        Err(message) if strict => Err(message.into()),
        Err(_) => Ok(Value::from("")),
    }
}

/// What the texts of a value take.
fn json_bytes(json: &Json) -> usize {
    match json {
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(json_bytes).sum(),
        Json::Object(entries) => entries.iter().map(|(key, value)| key.len() + json_bytes(value)).sum(),
        _ => 0,
    }
}

/// Answers come with the input; what it lacks is noted and empty.
fn lookup(eval: &mut Eval<'_>, args: &[Value]) -> Result<Value, Fault> {
    let part = |index: usize| text(&args[index]).into_owned();
    let lookup = Lookup { api_version: part(0), kind: part(1), namespace: part(2), name: part(3) };
    if let Some(json) = eval.input.lookups.get(&lookup) {
        eval.answered_lookups.insert(lookup);
        eval.produce(json_bytes(json))?;
        Ok(from_json(json))
    } else {
        eval.missing_lookups.insert(lookup);
        Ok(Value::map(std::collections::BTreeMap::<Arc<str>, Value>::new()))
    }
}
