//! Reading, second half: nodes become values, as `decode.go` of `go.yaml.in/yaml/v2` and the conversion to JSON of
//! `sigs.k8s.io/yaml` make them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::error::Error;
use super::node::{Document, Kind, MAX_DEPTH, Node, NodeId};
use super::number::{format_key, json_number};
use super::scalar::{Scalar, resolve, resolve_as};

const TAG: &str = "tag:yaml.org,2002:";

/// How many bytes of text aliases may repeat. Go shares those texts, we copy them.
const MAX_ALIASED_BYTES: usize = 32 << 20;

/// The value of a document.
pub(super) fn of(document: &Document<'_>) -> Result<Value, Error> {
    Decoder::new(document, false).value(0)
}

/// The same, with floats that stay floats though they have no fraction.
pub(super) fn with_floats(document: &Document<'_>) -> Result<Value, Error> {
    Decoder::new(document, true).value(0)
}

struct Decoder<'d, 'a> {
    document: &'d Document<'a>,
    /// Nodes decoded so far, and how many of them were reached by an alias.
    decoded: usize,
    aliased: usize,
    aliased_bytes: usize,
    /// The aliases that are being followed.
    aliases: Vec<NodeId>,
    depth: usize,
    keeps_floats: bool,
}

impl<'d, 'a> Decoder<'d, 'a> {
    fn new(document: &'d Document<'a>, keeps_floats: bool) -> Self {
        Self { document, decoded: 0, aliased: 0, aliased_bytes: 0, aliases: Vec::new(), depth: 0, keeps_floats }
    }

    fn value(&mut self, id: NodeId) -> Result<Value, Error> {
        let node = self.enter(id)?;
        match &node.kind {
            Kind::Scalar { text, .. } => {
                self.count_bytes(node, text.len())?;
                scalar_value(node, self.keeps_floats)
            }
            Kind::Sequence(items) => self.nested(node, |decoder| {
                items.iter().map(|item| decoder.value(*item)).collect::<Result<_, _>>().map(Value::Array)
            }),
            Kind::Mapping(entries) => self.nested(node, |decoder| {
                let mut map = Map::new();
                decoder.entries(entries, &mut map)?;
                Ok(Value::Object(map))
            }),
            Kind::Alias(target) => self.alias(id, |decoder| decoder.value(*target)),
        }
    }

    fn entries(&mut self, entries: &'d [NodeId], map: &mut Map<String, Value>) -> Result<(), Error> {
        for entry in entries.chunks_exact(2) {
            if is_merge(self.document.node(entry[0])) {
                // Merged where it stands: it replaces what came before and is replaced by what comes after.
                self.merge(entry[1], map)?;
            } else {
                let key = self.key(entry[0])?;
                let value = self.value(entry[1])?;
                map.insert(key, value);
            }
        }
        Ok(())
    }

    fn merge(&mut self, id: NodeId, map: &mut Map<String, Value>) -> Result<(), Error> {
        match &self.document.node(id).kind {
            // Backwards: the first in the list takes precedence.
            Kind::Sequence(items) => items.iter().rev().try_for_each(|item| self.merge_one(*item, map)),
            _ => self.merge_one(id, map),
        }
    }

    fn merge_one(&mut self, id: NodeId, map: &mut Map<String, Value>) -> Result<(), Error> {
        let node = self.enter(id)?;
        match &node.kind {
            Kind::Mapping(entries) => self.nested(node, |decoder| decoder.entries(entries, map)),
            Kind::Alias(target) if matches!(self.document.node(*target).kind, Kind::Mapping(_)) => {
                self.alias(id, |decoder| decoder.merge_one(*target, map))
            }
            _ => Err(error(node, "map merge requires map or sequence of maps as the value")),
        }
    }

    /// A key, which JSON wants to be a string.
    fn key(&mut self, id: NodeId) -> Result<String, Error> {
        let node = self.enter(id)?;
        match &node.kind {
            Kind::Alias(target) => self.alias(id, |decoder| decoder.key(*target)),
            Kind::Scalar { text, .. } => {
                self.count_bytes(node, text.len())?;
                match scalar(node)? {
                    Decoded::Text(text) => Ok(text),
                    Decoded::Plain(Scalar::Bool(key)) => Ok(key.to_string()),
                    Decoded::Plain(Scalar::Int(key)) => Ok(key.to_string()),
                    Decoded::Plain(Scalar::Float(key)) => Ok(format_key(key)),
                    Decoded::Plain(_) => Err(error(node, format!("unsupported map key: {text:?}"))),
                }
            }
            Kind::Sequence(_) | Kind::Mapping(_) => Err(error(node, "invalid map key: a list or a map")),
        }
    }

    /// Counts a node. Go's measure against bombs: from some size on only a part of a document may come from aliases.
    fn enter(&mut self, id: NodeId) -> Result<&'d Node<'a>, Error> {
        let node = self.document.node(id);
        self.decoded += 1;
        self.aliased += usize::from(!self.aliases.is_empty());
        if self.aliased > 100 && self.decoded > 1000 && self.aliased > allowed_aliased(self.decoded) {
            return Err(error(node, "document contains excessive aliasing"));
        }
        Ok(node)
    }

    fn count_bytes(&mut self, node: &Node<'_>, bytes: usize) -> Result<(), Error> {
        if !self.aliases.is_empty() {
            self.aliased_bytes += bytes;
        }
        if self.aliased_bytes > MAX_ALIASED_BYTES {
            return Err(error(node, format!("aliases expand to more than {MAX_ALIASED_BYTES} bytes")));
        }
        Ok(())
    }

    fn nested<T>(&mut self, node: &Node<'_>, inner: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.depth == MAX_DEPTH {
            return Err(error(node, format!("nested more than {MAX_DEPTH} levels deep")));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    fn alias<T>(&mut self, id: NodeId, inner: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        // Followed aliases are never more than the nesting is deep: a short list.
        if self.aliases.contains(&id) {
            return Err(error(self.document.node(id), "anchor's value contains itself"));
        }
        self.aliases.push(id);
        let result = inner(self);
        self.aliases.pop();
        result
    }
}

/// 99 % of up to 400,000 nodes, 10 % of 4,000,000 and more, evenly in between.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of nodes in memory"
)]
fn allowed_aliased(decoded: usize) -> usize {
    let over = (decoded as f64 - 400_000.0) / 3_600_000.0;
    let ratio = 0.99 - 0.89 * over.clamp(0.0, 1.0);
    (decoded as f64 * ratio) as usize
}

enum Decoded {
    Text(String),
    Plain(Scalar),
}

fn scalar_value(node: &Node<'_>, keeps_floats: bool) -> Result<Value, Error> {
    Ok(match scalar(node)? {
        Decoded::Text(text) => Value::String(text),
        Decoded::Plain(Scalar::Null | Scalar::Timestamp | Scalar::String) => Value::Null,
        Decoded::Plain(Scalar::Bool(value)) => Value::Bool(value),
        Decoded::Plain(Scalar::Int(value)) => value.into(),
        Decoded::Plain(Scalar::Uint(value)) => value.into(),
        Decoded::Plain(Scalar::Float(value)) => match json_number(value)
            .map(|number| if keeps_floats { serde_json::Number::from_f64(value).unwrap_or(number) } else { number })
        {
            Some(number) => Value::Number(number),
            None => return Err(error(node, "JSON has no infinite numbers and no .nan")),
        },
    })
}

fn scalar(node: &Node<'_>) -> Result<Decoded, Error> {
    let Kind::Scalar { text, plain, tag } = &node.kind else { return Ok(Decoded::Plain(Scalar::Null)) };
    let tag = match tag {
        Some(tag) => tag.strip_prefix(TAG).unwrap_or(""),
        None if *plain => {
            return Ok(match resolve(text) {
                Scalar::String | Scalar::Timestamp => Decoded::Text(text.to_string()),
                scalar => Decoded::Plain(scalar),
            });
        }
        None => return Ok(Decoded::Text(text.to_string())),
    };
    let resolved = match tag {
        "binary" => return binary(node, text).map(Decoded::Text),
        "bool" | "int" | "float" | "null" | "timestamp" => resolve_as(text, tag == "timestamp"),
        // `!!str` and all tags that Go doesn't know.
        _ => return Ok(Decoded::Text(text.to_string())),
    };
    match (tag, resolved) {
        ("timestamp", Scalar::Timestamp) => Ok(Decoded::Text(text.to_string())),
        ("bool", Scalar::Bool(_))
        | ("int", Scalar::Int(_) | Scalar::Uint(_))
        | ("float", Scalar::Float(_))
        | ("null", Scalar::Null) => Ok(Decoded::Plain(resolved)),
        #[expect(clippy::cast_precision_loss, reason = "as in Go")]
        ("float", Scalar::Int(value)) => Ok(Decoded::Plain(Scalar::Float(value as f64))),
        _ => Err(error(node, format!("cannot decode {text:?} as a !!{tag}"))),
    }
}

/// The decoded bytes; those that are no UTF-8 become U+FFFD, one by one.
fn binary(node: &Node<'_>, text: &str) -> Result<String, Error> {
    let encoded: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let bytes = STANDARD.decode(encoded).map_err(|_| error(node, "!!binary value contains invalid base64 data"))?;
    let mut decoded = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        decoded.push_str(chunk.valid());
        decoded.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    Ok(decoded)
}

fn is_merge(node: &Node<'_>) -> bool {
    match &node.kind {
        Kind::Scalar { text, plain, tag } => {
            text == "<<" && (*plain || tag.as_ref().is_some_and(|tag| tag.strip_prefix(TAG) == Some("merge")))
        }
        _ => false,
    }
}

fn error(node: &Node<'_>, message: impl Into<String>) -> Error {
    Error::new(node.line, node.column, message)
}
