//! Field ownership: what server-side apply recorded of us in an object (KEP-555, `metadata.managedFields`).

use serde_json::{Map, Value};

/// The entry of a field manager's apply, without a subresource.
pub fn entry<'a>(object: &'a Value, manager: &str) -> Option<&'a Value> {
    entries(object).find(|entry| {
        entry.get("manager").and_then(Value::as_str) == Some(manager)
            && entry.get("operation").and_then(Value::as_str) == Some("Apply")
            && entry.get("subresource").and_then(Value::as_str).is_none_or(str::is_empty)
    })
}

fn entries(object: &Value) -> impl Iterator<Item = &Value> {
    object.get("metadata").and_then(|m| m.get("managedFields")).and_then(Value::as_array).into_iter().flatten()
}

/// What the live object holds in the fields that `manager` owns, shaped like their field set. `None` if it owns none.
/// Two results are equal exactly when the manager owns the same fields with the same values.
pub fn owned(object: &Value, manager: &str) -> Option<Value> {
    Some(project(entry(object, manager)?.get("fieldsV1")?, Some(object)))
}

/// `live` reduced to `fields` (`FieldsV1`: `f:name`, `k:{…}` of a list item by its keys, `v:value` of a set, `i:index`, `.`).
fn project(fields: &Value, live: Option<&Value>) -> Value {
    let Some(members) = fields.as_object().filter(|members| !members.is_empty()) else {
        return live.cloned().unwrap_or(Value::Null);
    };
    let mut out = Map::new();
    for (path, below) in members {
        let value = match path.split_once(':') {
            Some(("f", name)) => project(below, live.and_then(|l| l.get(name))),
            Some(("k", keys)) => project(below, live.and_then(|l| item_with(l, keys))),
            Some(("v", wanted)) => Value::Bool(live.is_some_and(|l| contains(l, wanted))),
            Some(("i", index)) => project(below, index.parse::<usize>().ok().and_then(|i| live?.get(i))),
            // `.`: the container itself is owned; its members are listed beside it.
            _ => Value::Bool(live.is_some()),
        };
        out.insert(path.clone(), value);
    }
    Value::Object(out)
}

fn item_with<'a>(list: &'a Value, keys: &str) -> Option<&'a Value> {
    let keys: Map<String, Value> = serde_json::from_str(keys).ok()?;
    list.as_array()?.iter().find(|item| keys.iter().all(|(key, value)| item.get(key) == Some(value)))
}

fn contains(list: &Value, wanted: &str) -> bool {
    let Ok(wanted) = serde_json::from_str::<Value>(wanted) else { return false };
    list.as_array().is_some_and(|items| items.contains(&wanted))
}

/// Removes what JSON pointers (RFC 6901) name from a projection made by [`owned`] of `live`. A place in a list is that among the
/// items which the manager owns: those that others put in do not count. Of `metadata` as in [`keep_live`].
pub fn without_pointers(owned: &mut Value, live: &Value, pointers: &[String], is_ours: impl Fn(&str) -> bool) {
    let before = owned.get("f:metadata").cloned();
    for path in pointers.iter().flat_map(|pointer| left_to_others(pointer)) {
        remove(owned, Some(live), &path);
    }
    for field in METADATA_OF_OTHERS.map(|field| format!("f:{field}")) {
        let own = before.as_ref().and_then(|before| before.get(&field)).and_then(Value::as_object);
        let own = own.into_iter().flatten().filter(|(key, _)| key.strip_prefix("f:").is_some_and(&is_ours));
        for (key, value) in own {
            owned["f:metadata"][&field][key] = value.clone();
        }
    }
}

/// The paths that a pointer leaves to others: of `metadata` labels and annotations alone.
fn left_to_others(pointer: &str) -> Vec<Vec<String>> {
    let path: Vec<String> = pointer_segments(pointer).collect();
    match path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["metadata"] => METADATA_OF_OTHERS.map(|field| vec!["metadata".to_owned(), field.to_owned()]).into(),
        ["metadata", field, ..] if !METADATA_OF_OTHERS.contains(&field) => Vec::new(),
        _ => vec![path],
    }
}

fn remove(owned: &mut Value, live: Option<&Value>, path: &[String]) {
    let Some(map) = owned.as_object_mut() else { return };
    let Some((first, rest)) = path.split_first() else { return };
    let field = format!("f:{first}");
    let found = match first.parse() {
        Ok(place) if !map.contains_key(&field) => nth_owned(map, live, place),
        _ => Some((field, live.and_then(|live| live.get(first)))),
    };
    let Some((key, below)) = found else { return };
    if rest.is_empty() {
        map.remove(&key);
    } else if let Some(next) = map.get_mut(&key) {
        remove(next, below, rest);
    }
}

/// The item at a place among those of a live list that are owned, and the key by which the projection has it.
fn nth_owned<'l>(
    owned: &Map<String, Value>,
    live: Option<&'l Value>,
    place: usize,
) -> Option<(String, Option<&'l Value>)> {
    let items = live?.as_array()?.iter().enumerate();
    let key_of = |(index, item): (usize, &'l Value)| {
        let is_it = |path: &&String| match path.split_once(':') {
            Some(("k", keys)) => serde_json::from_str::<Map<String, Value>>(keys)
                .is_ok_and(|keys| keys.iter().all(|(key, value)| item.get(key) == Some(value))),
            Some(("v", wanted)) => serde_json::from_str::<Value>(wanted).is_ok_and(|wanted| wanted == *item),
            Some(("i", at)) => at.parse() == Ok(index),
            _ => false,
        };
        owned.keys().find(is_it).map(|key| (key.clone(), Some(item)))
    };
    items.filter_map(key_of).nth(place)
}

fn pointer_segments(pointer: &str) -> impl Iterator<Item = String> {
    pointer.split('/').skip(1).map(|segment| segment.replace("~1", "/").replace("~0", "~"))
}

/// Fields of `metadata` that are nobody's to leave to others: the API server's own, and by which the object is found.
const METADATA_OF_OTHERS: [&str; 2] = ["labels", "annotations"];

/// The desired object with the live value in each pointer's place, so that applying it leaves those fields to others. Of `metadata`
/// only labels and annotations can be left, and never those with a key for which `is_ours`: by them the object is found.
pub fn keep_live(desired: &mut Value, live: &Value, pointers: &[String], is_ours: impl Fn(&str) -> bool) {
    let before = desired.get("metadata").cloned();
    for path in pointers.iter().flat_map(|pointer| left_to_others(pointer)) {
        keep(desired, Some(live), &path);
    }
    for field in METADATA_OF_OTHERS {
        let own = before.as_ref().and_then(|before| before.get(field)).and_then(Value::as_object);
        for (key, value) in own.into_iter().flatten().filter(|(key, _)| is_ours(key)) {
            desired["metadata"][field][key] = value.clone();
        }
    }
}

fn keep(desired: &mut Value, live: Option<&Value>, path: &[String]) {
    let Some((first, rest)) = path.split_first() else { return };
    match desired {
        Value::Object(map) => {
            let there = live.and_then(|live| live.get(first));
            if !rest.is_empty() {
                if let Some(next) = map.get_mut(first) {
                    keep(next, there, rest);
                }
            } else if let Some(there) = there {
                map.entry(first).and_modify(|slot| *slot = there.clone());
            } else {
                map.remove(first);
            }
        }
        Value::Array(items) => {
            let Ok(place) = first.parse::<usize>() else { return };
            let others = live.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            // Without names the places tell nothing where somebody put in items of his own.
            let is_told =
                items.get(place).is_some_and(|item| item.get("name").is_some()) || items.len() == others.len();
            let Some(item) = items.get_mut(place).filter(|_| is_told) else { return };
            // An item that nobody has yet is ours to make whole.
            let Some(there) = same_item(item, others, place) else { return };
            if rest.is_empty() {
                *item = there.clone();
            } else {
                keep(item, Some(there), rest);
            }
        }
        _ => {}
    }
}

/// The item of another list that stands for this one: of the same `name`, or at the same place where it has none.
fn same_item<'l>(item: &Value, others: &'l [Value], place: usize) -> Option<&'l Value> {
    match item.get("name") {
        Some(name) => others.iter().find(|other| other.get("name") == Some(name)),
        None => others.get(place),
    }
}

/// Whether a field is one that pointers leave to others, or below one. Of `metadata` as in [`keep_live`].
pub fn is_left(field: &str, pointers: &[String], is_ours: impl Fn(&str) -> bool) -> bool {
    let path: Vec<String> = pointer_segments(field).collect();
    let is_own = matches!(&path[..], [metadata, _, key, ..] if metadata == "metadata" && is_ours(key));
    !is_own && pointers.iter().flat_map(|pointer| left_to_others(pointer)).any(|left| path.starts_with(&left))
}

/// JSON pointers of the leaves of `desired` that `live` holds otherwise; at most `limit` of them. Items of a list of
/// objects are matched by `name`, others by place.
pub fn differences(desired: &Value, live: &Value, limit: usize) -> Vec<String> {
    let mut out = Vec::new();
    collect(desired, Some(live), String::new(), limit, &mut out);
    out
}

fn collect(desired: &Value, live: Option<&Value>, at: String, limit: usize, out: &mut Vec<String>) {
    if out.len() >= limit {
        return;
    }
    match (desired, live) {
        (Value::Object(map), Some(Value::Object(_))) => {
            for (key, value) in map {
                let path = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
                collect(value, live.and_then(|l| l.get(key)), path, limit, out);
            }
        }
        (Value::Array(items), Some(Value::Array(others))) => {
            for (index, item) in items.iter().enumerate() {
                let other = same_item(item, others, index);
                collect(item, other, format!("{at}/{index}"), limit, out);
            }
        }
        // The API server leaves out empty containers and nulls.
        (Value::Null, None) => {}
        (Value::Object(map), None) if map.is_empty() => {}
        (desired, live) if live == Some(desired) => {}
        _ => out.push(at),
    }
}

/// The other field managers that own one of `pointers`, the latest writer first.
pub fn rivals(object: &Value, manager: &str, pointers: &[String]) -> Vec<String> {
    let mut found: Vec<(&str, &str)> = entries(object)
        .filter_map(|entry| {
            let name = entry.get("manager").and_then(Value::as_str).filter(|name| *name != manager)?;
            let fields = entry.get("fieldsV1")?;
            let time = entry.get("time").and_then(Value::as_str).unwrap_or_default();
            pointers.iter().any(|pointer| touches(fields, pointer)).then_some((time, name))
        })
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    let mut names: Vec<String> = found.into_iter().map(|(_, name)| name.to_owned()).collect();
    names.dedup();
    names
}

fn touches(fields: &Value, pointer: &str) -> bool {
    let mut at = fields;
    for segment in pointer_segments(pointer) {
        match at.get(format!("f:{segment}")) {
            Some(next) => at = next,
            // Below a list the place says nothing about the key: any item counts.
            None => {
                return at.as_object().is_some_and(|m| m.keys().any(|k| k.starts_with("k:") || k.starts_with("v:")));
            }
        }
    }
    true
}

/// The `managedFields` list with `from`'s apply entry renamed to `to`, for objects that another tool applied before us.
/// `None` if there is nothing to rename. An entry of `to` that is already there wins.
pub fn renamed(object: &Value, from: &str, to: &str) -> Option<Value> {
    entry(object, from)?;
    let has_target = entry(object, to).is_some();
    let list = entries(object)
        .filter_map(|item| {
            let is_source = Some(item) == entry(object, from);
            match (is_source, has_target) {
                (true, true) => None,
                (true, false) => {
                    let mut item = item.clone();
                    item["manager"] = to.into();
                    Some(item)
                }
                (false, _) => Some(item.clone()),
            }
        })
        .collect();
    Some(Value::Array(list))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn live() -> Value {
        json!({
            "metadata": {"name": "a", "labels": {"app": "x", "other": "y"}, "managedFields": [
                {"manager": "clusterstack", "operation": "Apply", "time": "2026-01-01T00:00:00Z", "fieldsV1": {
                    "f:metadata": {"f:labels": {"f:app": {}}},
                    "f:spec": {"f:replicas": {}, "f:ports": {"k:{\"port\":80}": {".": {}, "f:port": {}}}, "f:args": {"v:\"-v\"": {}}}
                }},
                {"manager": "kubectl-edit", "operation": "Update", "time": "2026-01-02T00:00:00Z", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
                {"manager": "status-writer", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}}
            ]},
            "spec": {"replicas": 3, "paused": true, "ports": [{"port": 81}, {"port": 80, "name": "web"}], "args": ["-v"]}
        })
    }

    #[test]
    fn only_our_fields_are_looked_at() {
        let before = owned(&live(), "clusterstack").unwrap();
        let mut foreign = live();
        foreign["spec"]["paused"] = false.into();
        foreign["metadata"]["labels"]["other"] = "z".into();
        foreign["spec"]["ports"][1]["name"] = "www".into();
        assert_eq!(owned(&foreign, "clusterstack").unwrap(), before);
        assert_eq!(owned(&live(), "nobody"), None);
    }

    #[test]
    fn a_change_of_an_owned_field_is_seen() {
        let before = owned(&live(), "clusterstack").unwrap();
        for (pointer, value) in [
            ("/spec/replicas", json!(4)),
            ("/metadata/labels/app", json!("changed")),
            ("/spec/ports", json!([{"port": 81}])),
            ("/spec/args", json!([])),
            ("/metadata/managedFields/0/fieldsV1/f:spec", json!({"f:replicas": {}})),
        ] {
            let mut changed = live();
            *changed.pointer_mut(pointer).unwrap() = value;
            assert_ne!(owned(&changed, "clusterstack").unwrap(), before, "{pointer}");
        }
    }

    #[test]
    fn ignored_pointers_do_not_count() {
        let pointers = vec!["/spec/replicas".to_owned()];
        let mut changed = live();
        changed["spec"]["replicas"] = 9.into();
        let (mut a, mut b) = (owned(&live(), "clusterstack").unwrap(), owned(&changed, "clusterstack").unwrap());
        without_pointers(&mut a, &live(), &pointers, |_| false);
        without_pointers(&mut b, &changed, &pointers, |_| false);
        assert_eq!(a, b);
        let mut desired = json!({"spec": {"replicas": 3, "gone": 1}});
        keep_live(&mut desired, &changed, &["/spec/replicas".to_owned(), "/spec/gone".to_owned()], |_| false);
        assert_eq!(desired, json!({"spec": {"replicas": 9}}));
    }

    #[test]
    fn a_pointer_goes_through_lists_to_the_item_that_is_ours() {
        let with = |image: &str| {
            let fields = json!({"f:containers": {"k:{\"name\":\"a\"}": {"f:image": {}}, "k:{\"name\":\"b\"}": {"f:image": {}}},
                "f:args": {"v:\"-v\"": {}, "v:\"-x\"": {}}});
            json!({
                "metadata": {"managedFields": [{"manager": "clusterstack", "operation": "Apply", "fieldsV1": fields}]},
                // Somebody put his own before ours.
                "containers": [{"name": "sidecar", "image": "s"}, {"name": "a", "image": image}, {"name": "b", "image": "2"}],
                "args": ["-v", "-x"],
            })
        };
        let pointers = ["/containers/0/image".to_owned(), "/containers/7/image".to_owned(), "/args/1".to_owned()];
        let rest = |live: &Value| {
            let mut owned = owned(live, "clusterstack").unwrap();
            without_pointers(&mut owned, live, &pointers, |_| false);
            owned
        };
        assert_eq!(rest(&with("1")), rest(&with("foreign")));
        assert_eq!(rest(&with("1"))["f:args"], json!({"v:\"-v\"": true}));
        let mut other = with("1");
        other["containers"][2]["image"] = json!("foreign");
        assert_ne!(rest(&with("1")), rest(&other));
        let mut desired = json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]});
        keep_live(&mut desired, &with("foreign"), &pointers, |_| false);
        assert_eq!(desired["containers"], json!([{"name": "a", "image": "foreign"}, {"name": "b", "image": "2"}]));
        // One that is not there yet is made whole, and of items without names none is taken for another.
        let mut renamed = json!({"containers": [{"name": "new", "image": "1"}], "args": ["-v", "-y"]});
        let mut crowded = with("1");
        crowded["args"] = json!(["-s", "-v", "-x"]);
        let before = renamed.clone();
        keep_live(&mut renamed, &crowded, &pointers, |_| false);
        assert_eq!(renamed, before);
        let is_left = |field: &str| is_left(field, &pointers, |_| false);
        assert!(is_left("/args/1") && is_left("/args/1/x") && !is_left("/args/10") && !is_left("/args"));
    }

    #[test]
    fn of_metadata_labels_and_annotations_of_others_are_left_and_nothing_else() {
        let live = json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "5", "managedFields": [],
            "labels": {"app": "theirs", "own/owner": "old", "more": "theirs"}, "annotations": {"note": "theirs"}}});
        let wanted = json!({"metadata": {"name": "a", "labels": {"app": "ours", "own/owner": "new"}}});
        for pointers in [&["/metadata"][..], &["/metadata/labels", "/metadata/managedFields", "/metadata/uid"]] {
            let pointers: Vec<String> = pointers.iter().map(ToString::to_string).collect();
            let mut desired = wanted.clone();
            keep_live(&mut desired, &live, &pointers, |key| key.starts_with("own/"));
            let expected = json!({"name": "a", "labels": {"app": "theirs", "own/owner": "new", "more": "theirs"}});
            assert_eq!(desired["metadata"], expected, "{pointers:?}");
            let is_own = |key: &str| key.starts_with("own/");
            assert!(is_left("/metadata/labels/app", &pointers, is_own), "{pointers:?}");
            for field in ["/metadata/labels/own~1owner", "/metadata/name", "/metadata/finalizers/0"] {
                assert!(!is_left(field, &pointers, is_own), "{field} {pointers:?}");
            }
            let mut owned =
                json!({"f:metadata": {"f:labels": {"f:app": "theirs", "f:own/owner": "old"}, "f:finalizers": {}}});
            without_pointers(&mut owned, &live, &pointers, is_own);
            assert_eq!(owned, json!({"f:metadata": {"f:labels": {"f:own/owner": "old"}, "f:finalizers": {}}}));
        }
        // Where nobody has any, ours stay.
        let mut desired = wanted;
        keep_live(&mut desired, &json!({}), &["/metadata/labels".to_owned()], |key| key.starts_with("own/"));
        assert_eq!(desired["metadata"], json!({"name": "a", "labels": {"own/owner": "new"}}));
    }

    #[test]
    fn differences_name_leaves_and_rivals() {
        let desired = json!({"spec": {"replicas": 2, "ports": [{"port": 80, "name": "web"}], "empty": {}}});
        let pointers = differences(&desired, &live(), 5);
        assert_eq!(pointers, ["/spec/replicas"]);
        assert_eq!(rivals(&live(), "clusterstack", &pointers), ["kubectl-edit"]);
    }

    #[test]
    fn an_entry_is_renamed_once() {
        let renamed_list = renamed(&live(), "clusterstack", "ours").unwrap();
        assert_eq!(renamed_list[0]["manager"], "ours");
        assert_eq!(renamed(&live(), "kubectl", "ours"), None);
    }
}
