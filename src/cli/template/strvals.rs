//! Helm's language of `--set`: `a.b=1,list[0]=x,set={a,b},text=one\,two,gone=null`.
//!
//! The rules are Helm's, with their edges: a value is an integer, `true`, `false` or `null` where it can be and a text
//! otherwise; `{}` is a list with one empty text; a comma at the end is nothing; an empty key sets nothing.

use serde_json::{Map, Value};
use thiserror::Error;

/// Largest index of a list, as in Helm.
const MAX_INDEX: usize = 65_536;
/// Most dots in a name, as in Helm.
const MAX_DEPTH: usize = 30;

/// Why an assignment is refused, in Helm's words.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StrvalsError {
    /// A name without `=`.
    #[error("key {0:?} has no value")]
    NoValue(String),
    /// A name that a comma ends.
    #[error("key {0:?} has no value (cannot end with ,)")]
    EndsWithComma(String),
    /// A map that nothing is set in.
    #[error("key map {0:?} has no value")]
    EmptyMap(String),
    /// What is set into is something else.
    #[error("unable to parse key: {key:?} is {found}, not {wanted}")]
    Type {
        /// The name.
        key: String,
        /// What it is.
        found: &'static str,
        /// What it would have to be.
        wanted: &'static str,
    },
    /// What stands in brackets is no index.
    #[error("error parsing index: {0:?} is no number")]
    Index(String),
    /// An index below zero.
    #[error("negative {0} index not allowed")]
    NegativeIndex(i64),
    /// An index that would make a giant list.
    #[error("index of {0} is greater than maximum supported index of {MAX_INDEX}")]
    LargeIndex(i64),
    /// Something between `]` and what may follow it.
    #[error("unexpected data at end of array index: {0:?}")]
    AfterIndex(String),
    /// Too many dots.
    #[error("value name nested level is greater than maximum supported nested level of {MAX_DEPTH}")]
    Depth,
    /// `{` without `}`.
    #[error("list must terminate with '}}'")]
    OpenList,
    /// The value is no JSON.
    #[error("{0}")]
    Json(String),
    /// The value's file can't be read.
    #[error("{0}")]
    File(String),
}

/// How values are read.
pub enum Values<'a> {
    /// `--set`: integers, booleans and null are such.
    Typed,
    /// `--set-string`: all are texts.
    Text,
    /// `--set-json`: JSON.
    Json,
    /// `--set-literal`: one assignment, whose value is all that is left. A backslash is a backslash, in names too.
    Literal,
    /// `--set-file`: names of files, read by this function.
    File(&'a dyn Fn(&str) -> Result<String, String>),
}

/// Sets what `text` assigns in `into`; what is there and not assigned stays.
///
/// # Errors
/// What Helm refuses. `into` may hold a part of it then.
pub fn set(text: &str, values: &Values<'_>, into: &mut Map<String, Value>) -> Result<(), StrvalsError> {
    let mut parser = Parser { rest: text, values };
    while parser.assignment(into, 0)? == Next::More {}
    Ok(())
}

/// Whether there may be another assignment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    More,
    End,
}

struct Parser<'t, 'v> {
    rest: &'t str,
    values: &'v Values<'v>,
}

impl Parser<'_, '_> {
    /// The next character, or the end.
    fn take(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next();
        self.rest = chars.as_str();
        next
    }

    /// What stands before one of `stops`, backslashes resolved, and which one it was; `None` at the end.
    fn until(&mut self, stops: &[char]) -> (String, Option<char>) {
        let mut text = String::new();
        while let Some(c) = self.take() {
            if stops.contains(&c) {
                return (text, Some(c));
            }
            // A backslash at the very end is nothing.
            match if c == '\\' && !self.is_literal() { self.take() } else { Some(c) } {
                Some(literal) => text.push(literal),
                None => break,
            }
        }
        (text, None)
    }

    fn is_literal(&self) -> bool {
        matches!(self.values, Values::Literal)
    }

    fn assignment(&mut self, map: &mut Map<String, Value>, depth: usize) -> Result<Next, StrvalsError> {
        let stops = if self.is_literal() { ['=', '[', '.'].as_slice() } else { &['=', '[', '.', ','] };
        let (key, stop) = self.until(stops);
        match stop {
            None if key.is_empty() => Ok(Next::End),
            None => Err(StrvalsError::NoValue(key)),
            Some(',') => Err(StrvalsError::EndsWithComma(key)),
            Some('=') => {
                let (value, next) = self.value()?;
                put(map, key, value);
                Ok(next)
            }
            Some('[') => {
                let index = self.index()?;
                let mut list = match map.remove(&key) {
                    None => Vec::new(),
                    Some(Value::Array(list)) => list,
                    Some(other) => return Err(mismatch(key, &other, "a list")),
                };
                let next = self.item(&mut list, index, &key, depth)?;
                put(map, key, Value::Array(list));
                Ok(next)
            }
            Some(_) => {
                if depth == MAX_DEPTH {
                    return Err(StrvalsError::Depth);
                }
                let there = map.remove(&key);
                let was_there = there.is_some();
                let mut inner = match there {
                    None => Map::new(),
                    Some(Value::Object(inner)) => inner,
                    Some(other) => return Err(mismatch(key, &other, "a map")),
                };
                let next = self.assignment(&mut inner, depth + 1)?;
                if inner.is_empty() && next == Next::More {
                    return Err(StrvalsError::EmptyMap(key));
                }
                if was_there || !inner.is_empty() {
                    put(map, key, Value::Object(inner));
                }
                Ok(next)
            }
        }
    }

    /// What follows `name[index]`.
    fn item(&mut self, list: &mut Vec<Value>, index: usize, name: &str, depth: usize) -> Result<Next, StrvalsError> {
        let (text, stop) = self.until(&['[', '.', '=']);
        if !text.is_empty() {
            return Err(StrvalsError::AfterIndex(text));
        }
        let there = list.get(index).cloned().unwrap_or(Value::Null);
        let (value, next) = match stop {
            None => return Ok(Next::End),
            Some('=') => {
                let (value, _) = self.value()?;
                // Helm ends here only where nothing is left.
                (value, Next::More)
            }
            Some('[') => {
                if depth == MAX_DEPTH {
                    return Err(StrvalsError::Depth);
                }
                let inner_index = self.index()?;
                let mut inner = match there {
                    Value::Null => Vec::new(),
                    Value::Array(inner) => inner,
                    other => return Err(mismatch(format!("{name}[{index}]"), &other, "a list")),
                };
                let next = self.item(&mut inner, inner_index, &format!("{name}[{index}]"), depth + 1)?;
                (Value::Array(inner), next)
            }
            Some(_) => {
                if depth == MAX_DEPTH {
                    return Err(StrvalsError::Depth);
                }
                let mut inner = match there {
                    Value::Object(inner) => inner,
                    _ => Map::new(),
                };
                let next = self.assignment(&mut inner, depth + 1)?;
                (Value::Object(inner), next)
            }
        };
        if list.len() <= index {
            // A quirk of Helm's: an item whose assignment ends the text without a value (`a[0].b=`) is not made.
            if next == Next::End {
                return Ok(next);
            }
            list.resize(index + 1, Value::Null);
        }
        if let Some(place) = list.get_mut(index) {
            *place = value;
        }
        Ok(next)
    }

    fn index(&mut self) -> Result<usize, StrvalsError> {
        let (text, stop) = self.until(&[']']);
        let index: i64 = match (text.parse(), stop) {
            (Ok(index), Some(_)) => index,
            _ => return Err(StrvalsError::Index(text)),
        };
        match usize::try_from(index) {
            Err(_) => Err(StrvalsError::NegativeIndex(index)),
            Ok(large) if large > MAX_INDEX => Err(StrvalsError::LargeIndex(index)),
            Ok(index) => Ok(index),
        }
    }

    /// What follows `=`.
    fn value(&mut self) -> Result<(Value, Next), StrvalsError> {
        if matches!(self.values, Values::Json) {
            return self.json();
        }
        if self.is_literal() {
            return Ok((Value::String(std::mem::take(&mut self.rest).to_owned()), Next::More));
        }
        if self.rest.is_empty() {
            return Ok((Value::String(String::new()), Next::End));
        }
        if let Some(rest) = self.rest.strip_prefix('{') {
            self.rest = rest;
            return Ok((self.list()?, Next::More));
        }
        let (text, _) = self.until(&[',']);
        Ok((self.read(text)?, Next::More))
    }

    /// What follows `{`.
    fn list(&mut self) -> Result<Value, StrvalsError> {
        let mut list = Vec::new();
        loop {
            let (text, stop) = self.until(&[',', '}']);
            if stop.is_none() {
                return Err(StrvalsError::OpenList);
            }
            list.push(self.read(text)?);
            if stop == Some('}') {
                self.rest = self.rest.strip_prefix(',').unwrap_or(self.rest);
                return Ok(Value::Array(list));
            }
        }
    }

    /// A JSON value and the comma behind it; nothing is null.
    fn json(&mut self) -> Result<(Value, Next), StrvalsError> {
        if self.nothing_up_to_comma() {
            return Ok((Value::Null, Next::More));
        }
        let mut stream = serde_json::Deserializer::from_str(self.rest).into_iter::<Value>();
        let value = match stream.next() {
            Some(Ok(value)) => value,
            Some(Err(error)) => return Err(StrvalsError::Json(error.to_string())),
            None => Value::Null,
        };
        self.rest = self.rest.get(stream.byte_offset()..).unwrap_or_default();
        self.nothing_up_to_comma();
        Ok((value, Next::More))
    }

    /// Takes blanks and a comma; whether there was nothing else before the comma or the end.
    fn nothing_up_to_comma(&mut self) -> bool {
        self.rest = self.rest.trim_start();
        let comma = self.rest.strip_prefix(',');
        self.rest = comma.unwrap_or(self.rest);
        comma.is_some() || self.rest.is_empty()
    }

    fn read(&self, text: String) -> Result<Value, StrvalsError> {
        Ok(match self.values {
            Values::Typed => typed(text),
            Values::Text | Values::Json | Values::Literal => Value::String(text),
            Values::File(read) => Value::String(read(&text).map_err(StrvalsError::File)?),
        })
    }
}

/// Helm sets nothing for an empty name.
fn put(map: &mut Map<String, Value>, key: String, value: Value) {
    if !key.is_empty() {
        map.insert(key, value);
    }
}

fn typed(text: String) -> Value {
    for (word, value) in [("true", Value::Bool(true)), ("false", Value::Bool(false)), ("null", Value::Null)] {
        if text.eq_ignore_ascii_case(word) {
            return value;
        }
    }
    // `007` is a text: leading zeros would be lost.
    let is_number = text == "0" || !text.starts_with('0');
    match text.parse::<i64>() {
        Ok(number) if is_number => Value::from(number),
        _ => Value::String(text),
    }
}

fn mismatch(key: String, found: &Value, wanted: &'static str) -> StrvalsError {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    };
    StrvalsError::Type { key, found, wanted }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(text: &str, values: &Values<'_>, into: Value) -> Result<Value, StrvalsError> {
        let Value::Object(mut map) = into else { panic!("a map is needed") };
        set(text, values, &mut map).map(|()| Value::Object(map))
    }

    #[test]
    fn assignments_are_read_as_helm_reads_them() {
        for (text, expected) in [
            ("", json!({})),
            ("a=b", json!({"a": "b"})),
            ("a=1,b=-2,c=0,d=+3", json!({"a": 1, "b": -2, "c": 0, "d": 3})),
            ("a=00009,b=1.5,c=1e3", json!({"a": "00009", "b": "1.5", "c": "1e3"})),
            ("a=9223372036854775808", json!({"a": "9223372036854775808"})),
            ("a=true,b=False,c=NULL,d=truely", json!({"a": true, "b": false, "c": null, "d": "truely"})),
            ("a=b,", json!({"a": "b"})),
            ("a=,b=c", json!({"a": "", "b": "c"})),
            ("a=", json!({"a": ""})),
            ("a=one\\,two,b=three\\=four", json!({"a": "one,two", "b": "three=four"})),
            ("a\\.b=c,d\\[0\\]=e", json!({"a.b": "c", "d[0]": "e"})),
            ("nodeSelector.kubernetes\\.io/role=master", json!({"nodeSelector": {"kubernetes.io/role": "master"}})),
            ("a=b=c,d={x=y}", json!({"a": "b=c", "d": ["x=y"]})),
            ("a=one two,b= c ", json!({"a": "one two", "b": " c "})),
            ("a.b.c=d,a.b.e=f", json!({"a": {"b": {"c": "d", "e": "f"}}})),
            ("a.b=", json!({"a": {"b": ""}})),
            ("a={b,c},d={}", json!({"a": ["b", "c"], "d": [""]})),
            ("a={1,true,null,x\\,y}", json!({"a": [1, true, null, "x,y"]})),
            ("a={b}c=d", json!({"a": ["b"], "c": "d"})),
            ("a.b={c}", json!({"a": {"b": ["c"]}})),
            ("a[0]=b,a[1]=c,", json!({"a": ["b", "c"]})),
            ("a[0]=b,a[3]=c", json!({"a": ["b", null, null, "c"]})),
            ("a[0]={b,c}", json!({"a": [["b", "c"]]})),
            ("a[0]", json!({"a": []})),
            ("a[0]=", json!({"a": [""]})),
            ("a[0].b=", json!({"a": []})),
            ("a.", json!({})),
            ("a[1].b=c,a[0].b=d,a[0].e=f", json!({"a": [{"b": "d", "e": "f"}, {"b": "c"}]})),
            ("a[1].b=c", json!({"a": [null, {"b": "c"}]})),
            ("a[1][1]=1", json!({"a": [null, [null, 1]]})),
            ("a[0][0].b=c,a[0][0].d=e", json!({"a": [[{"b": "c", "d": "e"}]]})),
            ("a.b[0].c=d,a.b[1].c=e", json!({"a": {"b": [{"c": "d"}, {"c": "e"}]}})),
            ("=a,b=c", json!({"b": "c"})),
            ("schlüssel=größe", json!({"schlüssel": "größe"})),
            ("a=b\\", json!({"a": "b"})),
        ] {
            assert_eq!(parsed(text, &Values::Typed, json!({})), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_helm_refuses_is_refused() {
        use StrvalsError as E;
        let deep = format!("{}a=b", "a.".repeat(31));
        for (text, error) in [
            ("a", E::NoValue("a".into())),
            ("a.b", E::NoValue("b".into())),
            ("a,b=c", E::EndsWithComma("a".into())),
            ("a=b,,c=d", E::EndsWithComma(String::new())),
            ("a.=b", E::EmptyMap("a".into())),
            ("a.,b", E::EndsWithComma(String::new())),
            ("a={b,c", E::OpenList),
            ("a[-1]=b", E::NegativeIndex(-1)),
            ("a[65537]=b", E::LargeIndex(65_537)),
            ("a[b]=c", E::Index("b".into())),
            ("a[0", E::Index("0".into())),
            ("a[0]b=c", E::AfterIndex("b".into())),
            ("]={}].", E::NoValue("]".into())),
            ("a=1,a.b=2", E::Type { key: "a".into(), found: "a number", wanted: "a map" }),
            ("a=x,a[0]=y", E::Type { key: "a".into(), found: "a text", wanted: "a list" }),
            ("a[0]=x,a[0][0]=y", E::Type { key: "a[0]".into(), found: "a text", wanted: "a list" }),
            (deep.as_str(), E::Depth),
        ] {
            let result = parsed(text, &Values::Typed, json!({}));
            // The one case where Helm's tests don't say how it is refused.
            if text == "]={}]." { assert!(result.is_err()) } else { assert_eq!(result, Err(error), "{text}") }
        }
    }

    #[test]
    fn what_is_there_stays() {
        let there = json!({"outer": {"a": "old", "b": "kept"}, "list": [{"x": 1}, 2]});
        let after = parsed("outer.a=new,outer.c=4,list[0].y=5,list[1].z=6", &Values::Typed, there);
        assert_eq!(
            after,
            Ok(json!({"outer": {"a": "new", "b": "kept", "c": 4}, "list": [{"x": 1, "y": 5}, {"z": 6}]}))
        );
    }

    #[test]
    fn texts_stay_texts_with_set_string() {
        let after = parsed("a=1,b=true,c=null,d={1,2}", &Values::Text, json!({}));
        assert_eq!(after, Ok(json!({"a": "1", "b": "true", "c": "null", "d": ["1", "2"]})));
    }

    #[test]
    fn json_is_read_up_to_its_end() {
        let there = json!({"o": {"a": {"x": 1}, "b": "kept"}});
        let text = r#"o.a={"c":[1,"a,b"]} ,o.d= null,o.e=,o.f[1]="x",o.g=1.5"#;
        let expected =
            json!({"o": {"a": {"c": [1, "a,b"]}, "b": "kept", "d": null, "e": null, "f": [null, "x"], "g": 1.5}});
        assert_eq!(parsed(text, &Values::Json, there), Ok(expected));
        assert_eq!(
            parsed(r#"a={"b":1},c=[1],d="#, &Values::Json, json!({})),
            Ok(json!({"a": {"b": 1}, "c": [1], "d": null}))
        );
        assert!(parsed(r#"a={"b":1}]"#, &Values::Json, json!({})).is_err());
        assert!(parsed("a=nonsense", &Values::Json, json!({})).is_err());
    }

    #[test]
    fn a_literal_is_all_that_is_left() {
        for (text, expected) in [
            ("", json!({})),
            ("a=one,b=2", json!({"a": "one,b=2"})),
            ("a=", json!({"a": ""})),
            ("a=true", json!({"a": "true"})),
            (r"a=x\y\", json!({"a": r"x\y\"})),
            (r"a\.b={c,d}", json!({"a\\": {"b": "{c,d}"}})),
            ("a,b.c[1]=x.y[0]", json!({"a,b": {"c": [null, "x.y[0]"]}})),
            ("a[0].b=", json!({"a": [{"b": ""}]})),
            ("a[0][1]=x", json!({"a": [[null, "x"]]})),
            ("=a", json!({})),
        ] {
            assert_eq!(parsed(text, &Values::Literal, json!({})), Ok(expected), "{text}");
        }
        assert_eq!(parsed("a,b", &Values::Literal, json!({})), Err(StrvalsError::NoValue("a,b".into())));
        let kept = parsed("o.a=x", &Values::Literal, json!({"o": {"b": 1}}));
        assert_eq!(kept, Ok(json!({"o": {"a": "x", "b": 1}})));
    }

    #[test]
    fn files_give_their_content() {
        let read = |name: &str| if name == "a.txt" { Ok("text,1".to_owned()) } else { Err(format!("no {name}")) };
        assert_eq!(parsed("k=a.txt", &Values::File(&read), json!({})), Ok(json!({"k": "text,1"})));
        assert_eq!(parsed("k=b", &Values::File(&read), json!({})), Err(StrvalsError::File("no b".into())));
    }
}
