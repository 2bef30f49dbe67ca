//! What templates can call besides Tera's own filters: Helm's functions, by their names in Tera's spelling, where they
//! mean the same.
//!
//! A filter gets what is undefined like any value and could print nothing for it: each of these refuses it, except
//! `default` and `required`, which are made for it. A misspelt argument is refused too.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};
use tera::{Error, Kwargs, State, Tera, TeraResult, Value};

use super::{meter, session};
use crate::core::chart::Lookup;
use crate::core::chart::version::{Constraint, Version};
use crate::core::yaml;

/// How far `indent` may indent.
const MAX_INDENT: usize = 1000;

/// Makes the filters and functions known.
pub(super) fn register(tera: &mut Tera) {
    let mut filter = |name: &'static str, arguments: &'static [&'static str], filter: Filter| {
        tera.register_filter(name, move |value: Value, kwargs: Kwargs, _: &State| -> TeraResult<Value> {
            session::step().map_err(Error::message)?;
            check(&kwargs, arguments)?;
            session::takes(&value).map_err(Error::message)?;
            for (_, argument) in kwargs.iter() {
                session::takes(argument).map_err(Error::message)?;
            }
            if !matches!(name, "default" | "required") {
                check_defined(&value, name)?;
            }
            let made = filter(&value, &kwargs)?;
            session::fits(made.as_str().map_or(0, str::len)).map_err(Error::message)?;
            Ok(made)
        });
    };
    filter("default", &["value", "boolean"], default);
    filter("required", &["message"], required);
    // Tera's own print nothing for what is undefined.
    filter("safe", &[], |value, _| Ok(value.clone()));
    filter("str", &[], |value, _| Ok(Value::from(text(value)?)));
    filter("to_yaml", &[], to_yaml);
    filter("from_yaml", &[], from_yaml);
    filter("to_json", &[], |value, _| Ok(Value::from(to_json(value)?.to_string())));
    filter("to_pretty_json", &[], to_pretty_json);
    filter("from_json", &[], from_json);
    filter("indent", &["n"], |value, kwargs| Ok(Value::from(indent(value, kwargs)?)));
    filter("nindent", &["n"], |value, kwargs| Ok(Value::from(format!("\n{}", indent(value, kwargs)?))));
    filter("quote", &[], |value, _| Ok(Value::from(quote(&text(value)?))));
    filter("squote", &[], |value, _| Ok(Value::from(format!("'{}'", text(value)?.replace('\'', "''")))));
    for name in ["b64enc", "b64encode"] {
        filter(name, &[], |value, _| Ok(Value::from(STANDARD.encode(bytes(value)?))));
    }
    for name in ["b64dec", "b64decode"] {
        filter(name, &[], b64dec);
    }
    for name in ["sha256", "sha256sum"] {
        filter(name, &[], |value, _| Ok(Value::from(sha256(&bytes(value)?))));
    }
    filter("trunc", &["n"], trunc);
    filter("trim_prefix", &["pat"], |value, kwargs| trim(value, kwargs, |text, pat| text.strip_prefix(pat)));
    filter("trim_suffix", &["pat"], |value, kwargs| trim(value, kwargs, |text, pat| text.strip_suffix(pat)));
    filter("merge", &["with"], merge);
    filter("semver_compare", &["constraint"], semver_compare);
    filter("replace", &["from", "to"], |value, kwargs| {
        let (value, from, to) = (text(value)?, kwargs.must_get::<&str>("from")?, kwargs.must_get::<&str>("to")?);
        let found = if from.is_empty() { value.chars().count() + 1 } else { value.matches(from).count() };
        session::fits(value.len().saturating_add(found.saturating_mul(to.len()))).map_err(Error::message)?;
        Ok(Value::from(value.replace(from, to)))
    });
    filter("join", &["sep"], |value, kwargs| {
        let sep = kwargs.get::<&str>("sep")?.unwrap_or_default();
        let Some(items) = value.as_array() else {
            return Err(Error::message(format!("`join` takes an array, not a {}", value.name())));
        };
        let mut joined = String::new();
        for (index, item) in items.iter().enumerate() {
            joined.push_str(if index == 0 { "" } else { sep });
            joined.push_str(&item.to_string());
            session::fits(joined.len()).map_err(Error::message)?;
        }
        Ok(Value::from(joined))
    });
    tera.register_function(meter::STEP, |kwargs: Kwargs, _: &State| -> TeraResult<Value> {
        session::step().map_err(Error::message)?;
        session::captured(kwargs.get("bytes")?.unwrap_or_default()).map_err(Error::message)?;
        Ok(Value::from(""))
    });
    tera.register_filter(meter::PRINTED, |value: Value, _: Kwargs, _: &State| -> TeraResult<Value> {
        session::printed(&value).map_err(Error::message)?;
        Ok(value)
    });
    tera.register_filter(meter::BOUND, |value: Value, _: Kwargs, _: &State| -> TeraResult<Value> {
        session::bound(&value).map_err(Error::message)?;
        Ok(Value::from(""))
    });
    tera.register_function("fail", |kwargs: Kwargs, _: &State| -> TeraResult<Value> {
        check(&kwargs, &["message"])?;
        Err(Error::message(kwargs.must_get::<&str>("message")?))
    });
    tera.register_function("lookup", |kwargs: Kwargs, _: &State| lookup(&kwargs));
}

type Filter = fn(&Value, &Kwargs) -> TeraResult<Value>;

/// Refuses what is undefined, also inside of lists and maps: Tera makes null of it there.
fn check_defined(value: &Value, filter: &str) -> TeraResult<()> {
    if value.is_undefined() {
        return Err(Error::message(format!("what is given to `{filter}` is undefined, or a part of it")));
    }
    value.as_array().unwrap_or_default().iter().try_for_each(|item| check_defined(item, filter))?;
    value.as_map().into_iter().flatten().try_for_each(|(_, value)| check_defined(value, filter))
}

/// Refuses arguments that aren't known.
fn check(kwargs: &Kwargs, known: &[&str]) -> TeraResult<()> {
    match kwargs.iter().map(|(name, _)| name.to_string()).find(|name| !known.contains(&name.as_str())) {
        Some(name) if known.is_empty() => Err(Error::message(format!("unknown argument `{name}`"))),
        Some(name) => Err(Error::message(format!("unknown argument `{name}`, known: {}", known.join(", ")))),
        None => Ok(()),
    }
}

/// Text as it would be printed.
fn text(value: &Value) -> TeraResult<String> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_map() || value.is_array() => {
            Err(Error::message(format!("a {} is no text: to_yaml or to_json makes one of it", value.name())))
        }
        None => Ok(value.to_string()),
    }
}

fn bytes(value: &Value) -> TeraResult<Vec<u8>> {
    match value.as_bytes() {
        Some(bytes) => Ok(bytes.to_vec()),
        None => Ok(text(value)?.into_bytes()),
    }
}

fn to_json(value: &Value) -> TeraResult<Json> {
    serde_json::to_value(value).map_err(Error::message).map(sorted)
}

/// Go writes the keys of maps sorted.
fn sorted(value: Json) -> Json {
    match value {
        Json::Array(items) => items.into_iter().map(sorted).collect(),
        Json::Object(map) => {
            let mut entries: Vec<_> = map.into_iter().collect();
            entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            entries.into_iter().map(|(key, value)| (key, sorted(value))).collect()
        }
        other => other,
    }
}

fn from_value(value: &Json) -> TeraResult<Value> {
    Value::try_from_serializable(value)
}

/// Helm's, but for a value that is there it stays that value: `0`, `false` and `""` are no gaps, unless `boolean=true`
/// says so.
fn default(value: &Value, kwargs: &Kwargs) -> TeraResult<Value> {
    let empty = value.is_undefined()
        || value.is_none()
        || (kwargs.get::<bool>("boolean")?.unwrap_or_default() && !value.is_truthy());
    let default = kwargs.must_get::<Value>("value")?;
    Ok(if empty { default } else { value.clone() })
}

fn required(value: &Value, kwargs: &Kwargs) -> TeraResult<Value> {
    let message = kwargs.must_get::<&str>("message")?;
    if value.is_undefined() || value.is_none() || value.as_str() == Some("") {
        return Err(Error::message(message));
    }
    Ok(value.clone())
}

fn to_yaml(value: &Value, _: &Kwargs) -> TeraResult<Value> {
    let mut text = yaml::to_string(&serde_json::to_value(value).map_err(Error::message)?);
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(Value::from(text))
}

fn from_yaml(value: &Value, _: &Kwargs) -> TeraResult<Value> {
    from_value(&yaml::parse(&text(value)?).map_err(|error| Error::message(format!("no YAML: {error}")))?)
}

fn to_pretty_json(value: &Value, _: &Kwargs) -> TeraResult<Value> {
    serde_json::to_string_pretty(&to_json(value)?).map(Value::from).map_err(Error::message)
}

fn from_json(value: &Value, _: &Kwargs) -> TeraResult<Value> {
    from_value(&serde_json::from_str(&text(value)?).map_err(|error| Error::message(format!("no JSON: {error}")))?)
}

/// Indents every line, the first and empty ones too: Helm's rule, not Tera's.
fn indent(value: &Value, kwargs: &Kwargs) -> TeraResult<String> {
    let n = kwargs.must_get::<usize>("n")?;
    if n > MAX_INDENT {
        return Err(Error::message(format!("`n` is more than {MAX_INDENT}")));
    }
    let (indentation, text) = (" ".repeat(n), text(value)?);
    let lines = text.matches('\n').count() + 1;
    session::fits(text.len().saturating_add(lines.saturating_mul(n))).map_err(Error::message)?;
    Ok(format!("{indentation}{}", text.replace('\n', &format!("\n{indentation}"))))
}

/// A text in double quotes, as Go's `%q` and YAML have them.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            '\0'..=' ' | '\u{7f}' if c != ' ' => quoted.extend(escape_code('x', 2, c)),
            // Behind a byte order mark or a line end of other alphabets YAML might go wrong.
            '\u{80}'..='\u{a0}' | '\u{2028}' | '\u{2029}' | '\u{feff}' => {
                quoted.extend(escape_code('u', 4, c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn escape_code(letter: char, width: usize, c: char) -> [String; 1] {
    [format!("\\{letter}{:0width$x}", u32::from(c))]
}

fn b64dec(value: &Value, _: &Kwargs) -> TeraResult<Value> {
    let decoded = STANDARD.decode(text(value)?).map_err(|error| Error::message(format!("no base64: {error}")))?;
    String::from_utf8(decoded).map(Value::from).map_err(|_| Error::message("what is encoded is no text"))
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

/// The first `n` characters, or with a negative `n` the last.
fn trunc(value: &Value, kwargs: &Kwargs) -> TeraResult<Value> {
    let text = text(value)?;
    let n = kwargs.must_get::<i64>("n")?;
    let wanted = usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX);
    let length = text.chars().count();
    let skipped = if n < 0 { length.saturating_sub(wanted) } else { 0 };
    Ok(Value::from(text.chars().skip(skipped).take(wanted).collect::<String>()))
}

fn trim(value: &Value, kwargs: &Kwargs, strip: for<'a> fn(&'a str, &str) -> Option<&'a str>) -> TeraResult<Value> {
    let text = text(value)?;
    let pattern = kwargs.must_get::<&str>("pat")?;
    Ok(Value::from(strip(&text, pattern).unwrap_or(&text)))
}

/// Fills the gaps of a map, and of the maps in it, with what another has.
fn merge(value: &Value, kwargs: &Kwargs) -> TeraResult<Value> {
    fn fill(map: &mut serde_json::Map<String, Json>, with: serde_json::Map<String, Json>) {
        for (key, other) in with {
            match (map.get_mut(&key), other) {
                (Some(Json::Object(map)), Json::Object(other)) => fill(map, other),
                (Some(_), _) => {}
                (None, other) => {
                    map.insert(key, other);
                }
            }
        }
    }
    let with = kwargs.must_get::<Value>("with")?;
    match (serde_json::to_value(value).map_err(Error::message)?, serde_json::to_value(&with).map_err(Error::message)?) {
        (Json::Object(mut map), Json::Object(with)) => {
            fill(&mut map, with);
            from_value(&Json::Object(map))
        }
        _ => Err(Error::message(format!("only maps can be merged, not a {} with a {}", value.name(), with.name()))),
    }
}

/// Whether a version satisfies a constraint such as `>=1.30-0`, in the syntax of Helm's `kubeVersion`.
fn semver_compare(value: &Value, kwargs: &Kwargs) -> TeraResult<Value> {
    let version = Version::parse(&text(value)?).map_err(Error::message)?;
    let constraint = Constraint::parse(kwargs.must_get::<&str>("constraint")?).map_err(Error::message)?;
    Ok(Value::from(constraint.allows(&version)))
}

/// The object in the cluster, or an empty map: `lookup(api_version="v1", kind="Secret", namespace="x", name="y")`.
fn lookup(kwargs: &Kwargs) -> TeraResult<Value> {
    session::step().map_err(Error::message)?;
    check(kwargs, &["api_version", "kind", "namespace", "name"])?;
    let optional = |name| kwargs.get::<&str>(name).map(Option::unwrap_or_default).map(str::to_owned);
    let wanted = Lookup {
        api_version: kwargs.must_get::<&str>("api_version")?.to_owned(),
        kind: kwargs.must_get::<&str>("kind")?.to_owned(),
        namespace: optional("namespace")?,
        name: optional("name")?,
    };
    match session::answer(wanted) {
        Some(answer) => Ok(answer),
        None => from_value(&Json::Object(serde_json::Map::new())),
    }
}
