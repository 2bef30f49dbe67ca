//! How much work a schema makes where each of its references is followed: a chain of a few definitions that each name the next twice
//! is as large as two to the power of its length, for the validator and, with `unevaluatedProperties`, for its compiler.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// How many places a schema may have with its references followed. Kubernetes' own definitions of a Pod have some ten thousand.
const MOST: u64 = 2_000_000;
/// The same where properties or items are looked for that nothing evaluated: the compiler makes each place anew for these.
const MOST_UNEVALUATED: u64 = 50_000;

/// Refuses a schema that is too large.
///
/// # Errors
/// It is, in a sentence.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut sizes = Sizes { root: schema, named: HashMap::new(), known: HashMap::new(), unevaluated: false };
    sizes.name(schema, 0);
    let size = sizes.of(schema, 0);
    let most = if sizes.unevaluated { MOST_UNEVALUATED } else { MOST };
    if size <= most {
        return Ok(());
    }
    Err(format!("with each $ref followed it has more than {most} places: let definitions name each other less often"))
}

/// How deep a schema is followed: deeper ones are refused when they are read.
const DEEP: usize = 512;

struct Sizes<'s> {
    root: &'s Value,
    /// By `$id` and `$anchor`.
    named: HashMap<&'s str, &'s Value>,
    /// By the address of a schema; `None` while it is being counted.
    known: HashMap<*const Value, Option<u64>>,
    unevaluated: bool,
}

impl<'s> Sizes<'s> {
    fn name(&mut self, schema: &'s Value, depth: usize) {
        if depth > DEEP {
            return;
        }
        match schema {
            Value::Object(keywords) => {
                for key in ["$id", "id", "$anchor", "$dynamicAnchor"] {
                    if let Some(Value::String(name)) = keywords.get(key) {
                        self.named.insert(name.trim_matches('#'), schema);
                    }
                }
                keywords.values().for_each(|value| self.name(value, depth + 1));
            }
            Value::Array(values) => values.iter().for_each(|value| self.name(value, depth + 1)),
            _ => {}
        }
    }

    /// The size of a schema, or of what holds schemas.
    fn of(&mut self, schema: &'s Value, depth: usize) -> u64 {
        if depth > DEEP {
            return 1;
        }
        match schema {
            Value::Object(keywords) => {
                if let Some(known) = self.known.get(&std::ptr::from_ref(schema)) {
                    return known.unwrap_or(1);
                }
                self.known.insert(schema, None);
                let size = self.keywords(keywords, depth);
                self.known.insert(schema, Some(size));
                size
            }
            Value::Array(schemas) => self.all(schemas, depth),
            _ => 0,
        }
    }

    fn all(&mut self, schemas: impl IntoIterator<Item = &'s Value>, depth: usize) -> u64 {
        schemas.into_iter().fold(0, |size, schema| size.saturating_add(self.of(schema, depth + 1)))
    }

    fn keywords(&mut self, keywords: &'s Map<String, Value>, depth: usize) -> u64 {
        let mut size: u64 = 1;
        for (keyword, value) in keywords {
            let more = match (keyword.as_str(), value) {
                ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(to)) => {
                    self.target(to).map_or(1, |target| self.of(target, depth + 1))
                }
                // What is only named, and values.
                ("definitions" | "$defs", Value::Object(_)) | ("enum" | "const" | "default" | "examples", _) => 0,
                (name, value) => {
                    self.unevaluated |= name.starts_with("unevaluated");
                    self.of(value, depth + 1)
                }
            };
            size = size.saturating_add(more);
        }
        size
    }

    fn target(&self, to: &str) -> Option<&'s Value> {
        let (base, fragment) = to.split_once('#').unwrap_or((to, ""));
        let resource = if base.is_empty() { self.root } else { self.by_name(base)? };
        let fragment = percent_encoding::percent_decode_str(fragment).decode_utf8().ok()?;
        match fragment.strip_prefix('/') {
            None if fragment.is_empty() => Some(resource),
            None => self.named.get(fragment.as_ref()).copied(),
            Some(_) => resource.pointer(&fragment),
        }
    }

    fn by_name(&self, base: &str) -> Option<&'s Value> {
        let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
        let named = self.named.get(base).copied();
        named.or_else(|| self.named.iter().find(|(name, _)| last(name) == last(base)).map(|(_, schema)| *schema))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Definitions that each name the next one twice.
    fn chain(length: usize, reference: impl Fn(usize) -> String, more: &Value) -> Value {
        let mut definitions = Map::new();
        for n in 0..length {
            let next = json!({"$ref": reference(n + 1)});
            let mut schema = json!({"allOf": [next, next], "$anchor": format!("d{n}")});
            json_patch::merge(&mut schema, more);
            definitions.insert(format!("d{n}"), schema);
        }
        definitions.insert(format!("d{length}"), json!({"type": "object", "$anchor": format!("d{length}")}));
        json!({"$id": "https://example.com/x.json", "$ref": reference(0), "$defs": definitions})
    }

    #[test]
    fn definitions_that_double_each_other_are_refused() {
        let ways: [fn(usize) -> String; 3] =
            [|n| format!("#/$defs/d{n}"), |n| format!("#d{n}"), |n| format!("x.json#/%24defs/d{n}")];
        for way in ways {
            assert!(check(&chain(40, way, &json!({}))).is_err(), "{}", way(0));
            assert!(check(&chain(25, way, &json!({}))).is_err());
            assert_eq!(check(&chain(10, way, &json!({}))), Ok(()));
            assert!(check(&chain(18, way, &json!({"unevaluatedProperties": false}))).is_err());
            assert_eq!(check(&chain(8, way, &json!({"unevaluatedProperties": false}))), Ok(()));
        }
    }

    #[test]
    fn what_refers_to_itself_ends() {
        let tree = json!({"$defs": {"node": {"properties": {"left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}}}},
            "$ref": "#/$defs/node"});
        assert_eq!(check(&tree), Ok(()));
        assert_eq!(check(&json!({"items": {"$ref": "#"}})), Ok(()));
        assert_eq!(check(&json!(true)), Ok(()));
    }
}
