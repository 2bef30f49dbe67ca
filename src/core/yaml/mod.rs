//! YAML as Helm and Kubernetes read and write it: the rules of Go's `sigs.k8s.io/yaml`.
//!
//! That library reads YAML 1.1 scalars (`yes` is a boolean, `0777` is 511), makes JSON of them, and writes JSON in
//! the style of `go.yaml.in/yaml/v2`. Charts hash such texts into annotations, so the bytes written matter as much
//! as the types read. No crate does either, hence this module. Reading follows libyaml's rules from the scanner on
//! (`cursor`, `scanner`, `text`, `tag` → `parser` → `node` → `value`): parsers of YAML 1.2 refuse what real charts
//! contain, such as a bracket closed at the left margin. Writing (`emit`, `order`, `number`) follows its emitter.
//!
//! Guarantees: hostile input ends in an [`Error`], never in a stack overflow, in exhausted memory or in a panic. What
//! is written reads back equal but for two things that Go doesn't quote either: `-0.0` becomes `0`, and the key `<<`
//! reads as a merge.
//!
//! Differences from Go, on purpose: an infinite number is an error even where a later duplicate of its key replaces
//! it; something behind a root like `{}` is an error, where Go overlooks it; characters which Go can't write (DEL:
//! there `toYaml` prints nothing) are written escaped; nesting ends at 200 levels, not at 10,000.

mod cursor;
mod emit;
mod error;
mod node;
mod number;
mod order;
mod parser;
mod scalar;
mod scanner;
mod tag;
mod text;
mod time;
mod token;
mod value;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use emit::{to_string, to_string_unfolded};
pub use error::Error;
#[allow(unused_imports, reason = "the template engine prints floats with it")]
pub(crate) use number::format_g;
pub use order::{Sorter, sort_by_key};

/// One document of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// What the document holds; never null.
    pub value: Value,
    /// The line its content starts on, counted from 1.
    pub line: usize,
}

/// Reads the first document of `text`; an empty text is null.
///
/// Integers that fit 64 bits stay integers, everything else numeric is a float, as after Go's way through JSON.
///
/// # Errors
/// What is no YAML, what JSON can't hold (an infinite float, a map as a key), what nests or expands too far.
/// What follows the first document isn't looked at, as in Go.
pub fn parse(text: &str) -> Result<Value, Error> {
    let mut stream = parser::Stream::new(text)?;
    match stream.next_document()? {
        Some(document) => value::of(&document),
        None => Ok(Value::Null),
    }
}

/// As [`parse`], of what is read into texts: floats stay floats though they have no fraction, for Go writes `1e6` into a text as
/// `1e+06` ([`float_text`]).
///
/// # Errors
/// As [`parse`].
pub fn parse_with_floats(text: &str) -> Result<Value, Error> {
    let mut stream = parser::Stream::new(text)?;
    match stream.next_document()? {
        Some(document) => value::with_floats(&document),
        None => Ok(Value::Null),
    }
}

/// A float where a text is wanted, as `sigs.k8s.io/yaml` writes it: with the precision of 32 bits.
pub fn float_text(number: f64) -> String {
    match number::format_key(number).as_str() {
        ".inf" => "+Inf".to_owned(),
        "-.inf" => "-Inf".to_owned(),
        text => text.to_owned(),
    }
}

/// Reads all documents of `text`; those that are null are left out.
///
/// # Errors
/// As [`parse`], for any of the documents.
pub fn parse_all(text: &str) -> Result<Vec<Document>, Error> {
    let mut stream = parser::Stream::new(text)?;
    let mut documents = Vec::new();
    while let Some(document) = stream.next_document()? {
        let value = value::of(&document)?;
        if !value.is_null() {
            documents.push(Document { value, line: document.line() });
        }
    }
    Ok(documents)
}

/// As [`from_str`], of what holds decisions: a key that is there twice is an error, where YAML for Kubernetes takes the
/// last one.
///
/// # Errors
/// As [`from_str`]; a key that is there twice.
pub fn from_str_once<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    let document = parser::Stream::new(text)?.next_document()?;
    if let Some((key, line, column)) = document.as_ref().and_then(node::Document::key_twice) {
        return Err(Error::new(line, column, format!("the key {key:?} is there twice: remove one")));
    }
    from_str(text)
}

/// Reads the first document of `text` into a type.
///
/// # Errors
/// As [`parse`]; where the document doesn't fit the type, the error names the field and the line it stands on.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    let mut stream = parser::Stream::new(text)?;
    let Some(document) = stream.next_document()? else {
        return serde_json::from_value(Value::Null).map_err(|error| Error::new(1, 1, error.to_string()));
    };
    let value = value::of(&document)?;
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (line, column) = document.locate(error.path());
        Error::at_path(line, column, error.path().to_string(), error.inner().to_string())
    })
}

#[cfg(test)]
mod tests;
