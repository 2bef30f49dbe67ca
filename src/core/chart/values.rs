//! Merging of values, by the rules of Helm 3.
//!
//! Maps are shared between the merged values and changed in place, as in Helm: what `set` changes in one template is
//! seen in another chart where Helm's own merge left the same map in two places.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::HelmVersion;
use super::go_template::value::{Map, MapType, Value};
use super::misfit::{Misfit, Misfits, Place};

pub(super) const GLOBAL: &str = "global";

/// A new empty map.
pub(super) fn new_map() -> Rc<Map> {
    Rc::new(Map::new(MapType::Any, BTreeMap::new()))
}

fn is_table(value: &Value) -> bool {
    matches!(value, Value::Map(_))
}

/// Merges `src` into `dst`, whose values win. Unless merging, a null in `dst` deletes a default of `src`.
pub(super) fn coalesce_tables(dst: &Map, src: &Map, merge: bool) {
    coalesce_tables_at(dst, src, merge, Place::ROOT, &mut Misfits::new());
}

fn coalesce_tables_at(dst: &Map, src: &Map, merge: bool, place: Place<'_>, misfits: &mut Misfits) {
    if std::ptr::eq(dst, src) {
        return;
    }
    let defaults: Vec<(Arc<str>, bool)> =
        src.entries().into_iter().map(|(key, value)| (key, !value.is_nil())).collect();
    for (key, value) in dst.entries() {
        if value.is_nil() {
            src.insert(key, Value::Nil);
        }
    }
    let had_value =
        |key: &str| defaults.binary_search_by(|(known, _)| (**known).cmp(key)).is_ok_and(|at| defaults[at].1);
    for (key, value) in src.entries() {
        match dst.get(&key) {
            None => dst.insert(key, value),
            Some(Value::Nil | Value::Invalid) if !merge && had_value(&key) => dst.remove(&key),
            Some(Value::Map(old)) => match value {
                Value::Map(new) => coalesce_tables_at(&old, &new, merge, place.at(&key), misfits),
                Value::Nil | Value::Invalid => {}
                _ => _ = misfits.insert(Misfit::Map(place.at(&key).path())),
            },
            Some(_) if is_table(&value) => _ = misfits.insert(Misfit::NoMap(place.at(&key).path())),
            Some(_) => {}
        }
    }
}

/// Removes what is null, at any depth: Helm 4 does it to a chart's defaults.
fn drop_nulls(map: &Map) {
    for (key, value) in map.entries() {
        match value {
            Value::Nil | Value::Invalid => map.remove(&key),
            Value::Map(inner) => drop_nulls(&inner),
            _ => {}
        }
    }
}

/// How values are merged.
#[derive(Clone, Copy)]
pub(super) struct Merging {
    /// Nulls are kept.
    pub(super) merge: bool,
    /// Whose rules they are.
    pub(super) helm: HelmVersion,
}

/// Merges a chart's defaults into the values given for it, which are at `place`. `children` are the names of its subcharts.
/// `defaults` are the caller's to be changed.
pub(super) fn coalesce_values(
    defaults: &Map,
    values: &Map,
    children: &[String],
    Merging { merge, helm }: Merging,
    place: Place<'_>,
    misfits: &mut Misfits,
) {
    let drops = |merge: bool| !merge && helm == HelmVersion::V4;
    for (key, default) in defaults.entries() {
        match values.get(&key) {
            None => {
                if drops(merge) {
                    if default.is_nil() {
                        continue;
                    }
                    if let Value::Map(default) = &default {
                        drop_nulls(default);
                    }
                }
                values.insert(key, default);
            }
            Some(Value::Nil | Value::Invalid) => {
                if !merge {
                    values.remove(&key);
                }
            }
            Some(Value::Map(given)) => match default {
                Value::Map(default) => {
                    // A subchart's nulls are needed when its own defaults are merged.
                    let merge = merge || children.iter().any(|child| **child == *key);
                    if drops(merge) {
                        drop_nulls(&default);
                    }
                    coalesce_tables_at(&given, &default, merge, place.at(&key), misfits);
                }
                Value::Nil | Value::Invalid => {}
                _ => _ = misfits.insert(Misfit::Map(place.at(&key).path())),
            },
            Some(_) => {}
        }
    }
}

/// Hands `global` of a chart, which is at `parent`, on to the subchart `child`.
pub(super) fn coalesce_globals(dst: &Map, src: &Map, parent: Place<'_>, child: &str, misfits: &mut Misfits) {
    let at_child = parent.at(child);
    let here = at_child.at(GLOBAL);
    let own = match dst.get(GLOBAL) {
        None => new_map(),
        Some(Value::Map(map)) => map,
        Some(_) => {
            misfits.insert(Misfit::OwnGlobals(here.path()));
            return;
        }
    };
    let given = match src.get(GLOBAL) {
        None => new_map(),
        Some(Value::Map(map)) => map,
        Some(_) => {
            misfits.insert(Misfit::Globals(parent.at(GLOBAL).path()));
            return;
        }
    };
    for (key, value) in given.entries() {
        if let Value::Map(table) = &value {
            let copy = Rc::new(Map::new(MapType::Any, table.entries().into_iter().collect()));
            match own.get(&key) {
                None => own.insert(key, Value::Map(copy)),
                Some(Value::Map(old)) => {
                    coalesce_tables_at(&copy, &old, true, here.at(&key), misfits);
                    own.insert(key, Value::Map(copy));
                }
                Some(_) => _ = misfits.insert(Misfit::OwnGlobals(here.at(&key).path())),
            }
        } else if !own.get(&key).is_some_and(|old| is_table(&old)) {
            own.insert(key, value);
        }
    }
    dst.insert(GLOBAL.into(), Value::Map(own));
}

/// The table at a dotted path.
pub(super) fn table(map: &Rc<Map>, path: &str) -> Option<Rc<Map>> {
    path.split('.').try_fold(map.clone(), |at, name| match at.get(name) {
        Some(Value::Map(next) | Value::Values(next)) => Some(next),
        _ => None,
    })
}

/// The value at a dotted path, unless it is a table.
pub(super) fn path_value(map: &Rc<Map>, path: &str) -> Option<Value> {
    let (parent, name) = match path.rsplit_once('.') {
        Some((parent, name)) => (table(map, parent)?, name),
        None => (map.clone(), path),
    };
    parent.get(name).filter(|value| !is_table(value))
}

/// A map with `map` at the dotted path.
pub(super) fn at_path(path: &str, map: Rc<Map>) -> Rc<Map> {
    if path == "." {
        return map;
    }
    path.rsplit('.')
        .fold(map, |inner, name| Rc::new(Map::new(MapType::Any, [(Arc::from(name), Value::Map(inner))].into())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::go_template::json::{from_json, to_json};
    use super::*;

    fn map(json: &serde_json::Value) -> Rc<Map> {
        match from_json(json) {
            Value::Map(map) => map,
            _ => panic!("not a map"),
        }
    }

    fn json_of(map: &Rc<Map>) -> serde_json::Value {
        to_json(&Value::Map(map.clone())).unwrap()
    }

    fn merged(
        defaults: &serde_json::Value,
        values: &Map,
        children: &[String],
        merge: bool,
        helm: HelmVersion,
    ) -> Misfits {
        let mut misfits = Misfits::new();
        coalesce_values(&map(defaults), values, children, Merging { merge, helm }, Place::ROOT, &mut misfits);
        misfits
    }

    #[test]
    fn null_deletes_a_default_and_stays_without_one() {
        let values = map(&json!({"a": {"x": null, "new": null}, "b": null, "c": null}));
        merged(&json!({"a": {"x": 1, "y": 2}, "b": 3}), &values, &[], false, HelmVersion::V3);
        assert_eq!(json_of(&values), json!({"a": {"y": 2, "new": null}, "c": null}));
    }

    #[test]
    fn helm_4_drops_defaults_that_are_null() {
        let defaults = json!({"n": null, "t": {"n": null, "x": 1, "u": {"n": null}}, "given": {"n": null, "y": 2}, "sub": {"n": null}});
        for (helm, merge, expected) in [
            (
                HelmVersion::V3,
                false,
                json!({"n": null, "t": {"n": null, "x": 1, "u": {"n": null}}, "given": {"n": null, "y": 2, "own": null}, "sub": {"n": null}}),
            ),
            (
                HelmVersion::V4,
                false,
                json!({"t": {"x": 1, "u": {}}, "given": {"y": 2, "own": null}, "sub": {"n": null}}),
            ),
            (
                HelmVersion::V4,
                true,
                json!({"n": null, "t": {"n": null, "x": 1, "u": {"n": null}}, "given": {"n": null, "y": 2, "own": null}, "sub": {"n": null}}),
            ),
        ] {
            let values = map(&json!({"given": {"own": null}, "sub": {}}));
            merged(&defaults, &values, &["sub".to_owned()], merge, helm);
            assert_eq!(json_of(&values), expected, "{helm:?} {merge}");
        }
    }

    #[test]
    fn a_scalar_does_not_replace_a_table() {
        let values = map(&json!({"a": 1, "b": {"x": 1}}));
        merged(&json!({"a": {"x": 1}, "b": 2}), &values, &[], false, HelmVersion::V3);
        assert_eq!(json_of(&values), json!({"a": 1, "b": {"x": 1}}));
    }

    #[test]
    fn globals_of_the_parent_win() {
        let child = map(&json!({"global": {"a": 1, "t": {"x": 1, "y": 2}}}));
        let given = map(&json!({"global": {"a": 2, "t": {"x": 9}}}));
        coalesce_globals(&child, &given, Place::ROOT, "sub", &mut Misfits::new());
        assert_eq!(json_of(&child), json!({"global": {"a": 2, "t": {"x": 9, "y": 2}}}));
    }
}
