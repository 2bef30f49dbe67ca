//! Values that never change: a chart's defaults. All its renderings share them, and take a copy of a map of their own
//! when they first look into it.

use std::sync::Arc;

use serde_json::{Map as JsonMap, Value as Json};

use super::value::{Map, Value};

/// A map, sorted by key.
pub(crate) type SharedMap = Arc<[(Arc<str>, Shared)]>;

/// A value as it comes from JSON.
#[derive(Debug)]
pub(crate) enum Shared {
    Nil,
    Bool(bool),
    Float(f64),
    Str(Arc<str>),
    List(Box<[Shared]>),
    Map(SharedMap),
}

impl From<&Json> for Shared {
    /// As Go decodes it into `interface{}`: every number is a float64.
    fn from(json: &Json) -> Self {
        match json {
            Json::Null => Self::Nil,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => Self::Float(number.as_f64().unwrap_or_default()),
            Json::String(text) => Self::Str(text.as_str().into()),
            Json::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Json::Object(map) => Self::Map(shared(map)),
        }
    }
}

impl Shared {
    /// The value as one rendering sees it.
    pub(crate) fn value(&self) -> Value {
        match self {
            Self::Nil => Value::Nil,
            Self::Bool(value) => Value::Bool(*value),
            Self::Float(value) => Value::Float(*value),
            Self::Str(text) => Value::Str(text.clone()),
            Self::List(items) => Value::list(items.iter().map(Self::value).collect()),
            Self::Map(map) => Value::Map(Map::shared(map.clone()).into()),
        }
    }
}

/// A map of JSON, to be shared.
pub(crate) fn shared(map: &JsonMap<String, Json>) -> SharedMap {
    let mut entries: Vec<(Arc<str>, Shared)> =
        map.iter().map(|(key, value)| (Arc::from(key.as_str()), Shared::from(value))).collect();
    entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    entries.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::json::{from_json, to_json};
    use super::*;

    #[test]
    fn what_is_shared_is_what_json_says_and_a_change_stays_with_who_made_it() {
        let json = json!({"b": [1, {"x": "y"}], "a": {"deep": {"n": null, "t": true}}, "c": 0.5, "": {}});
        let Json::Object(map) = &json else { panic!("no map") };
        let defaults = shared(map);
        let own = Map::shared(defaults.clone());
        assert_eq!(to_json(&Value::Map(Map::shared(defaults.clone()).into())), to_json(&from_json(&json)));

        let deep = |map: &Map| map.get("a").unwrap().as_map().unwrap().get("deep").unwrap().as_map().unwrap().clone();
        deep(&own).insert("n".into(), Value::Bool(true));
        assert!(deep(&own).get("n").unwrap().truth(), "the same map is found again");
        assert!(deep(&Map::shared(defaults)).get("n").unwrap().is_nil());
    }
}
