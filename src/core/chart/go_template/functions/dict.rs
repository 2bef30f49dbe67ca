//! Maps. `set`, `unset`, `merge` and `mergeOverwrite` change the map they are given, as in sprig.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::super::super::version::Version;
use super::super::eval::{Eval, Fault};
use super::super::json::Budget;
use super::super::object::Object;
use super::super::value::{List, ListType, Map, MapType, Value};
use super::{Function, Out, Ty, text, to_text};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::variadic("dict", &[], Ty::Any, dict),
    Function::new("get", &[Ty::Map, Ty::Str], |_, args| {
        Ok(map(&args[0]).and_then(|map| map.get(&text(&args[1]))).unwrap_or_else(|| Value::from("")))
    }),
    Function::new("set", &[Ty::Map, Ty::Str, Ty::Any], |eval, args| {
        let Some(map) = map(&args[0]).filter(|map| !map.nil) else {
            return Err("assignment to entry in nil map".into());
        };
        eval.link(&args[2]);
        map.insert(key(eval, &args[1])?, args[2].clone());
        Ok(args[0].clone())
    }),
    Function::new("unset", &[Ty::Map, Ty::Str], |_, args| {
        if let Some(map) = map(&args[0]) {
            map.remove(&text(&args[1]));
        }
        Ok(args[0].clone())
    }),
    Function::new("hasKey", &[Ty::Map, Ty::Str], |_, args| {
        Ok(Value::Bool(map(&args[0]).is_some_and(|map| map.contains(&text(&args[1])))))
    }),
    Function::variadic("pluck", &[Ty::Str], Ty::Map, |_, args| {
        let key = text(&args[0]);
        Ok(Value::list(args[1..].iter().filter_map(|arg| map(arg)?.get(&key)).collect()))
    }),
    Function::variadic("keys", &[], Ty::Map, |_, args| {
        Ok(Value::strings(args.iter().filter_map(map).flat_map(|map| map.keys())))
    }),
    Function::new("values", &[Ty::Map], |_, args| {
        Ok(Value::list(
            map(&args[0]).map(|map| map.entries()).unwrap_or_default().into_iter().map(|(_, v)| v).collect(),
        ))
    }),
    Function::variadic("pick", &[Ty::Map], Ty::Str, |eval, args| {
        let mut picked = BTreeMap::new();
        for name in &args[1..] {
            let key = key(eval, name)?;
            if let Some(value) = map(&args[0]).and_then(|map| map.get(&key)) {
                picked.insert(key, value);
            }
        }
        Ok(Value::map(picked))
    }),
    Function::variadic("omit", &[Ty::Map], Ty::Str, |_, args| {
        let mut left: BTreeMap<Arc<str>, Value> =
            map(&args[0]).map(|map| map.entries()).unwrap_or_default().into_iter().collect();
        for key in &args[1..] {
            left.remove(&*text(key));
        }
        Ok(Value::map(left))
    }),
    Function::variadic("merge", &[Ty::Map], Ty::Map, |eval, args| merge_all(eval, args, false)),
    Function::variadic("mustMerge", &[Ty::Map], Ty::Map, |eval, args| merge_all(eval, args, false)),
    Function::variadic("mergeOverwrite", &[Ty::Map], Ty::Map, |eval, args| merge_all(eval, args, true)),
    Function::variadic("mustMergeOverwrite", &[Ty::Map], Ty::Map, |eval, args| merge_all(eval, args, true)),
    Function::new("deepCopy", &[Ty::Any], |_, args| copied(&args[0])),
    Function::new("mustDeepCopy", &[Ty::Any], |_, args| copied(&args[0])),
    Function::variadic("dig", &[], Ty::Any, dig),
];

/// The map of an argument that was checked to be one; a nil one is empty.
pub(crate) fn map(value: &Value) -> Option<&Rc<Map>> {
    value.as_map()
}

/// A key as text: any value can be one.
fn key(eval: &mut Eval<'_>, value: &Value) -> Result<Arc<str>, Fault> {
    if let Value::Str(text) = value {
        return Ok(text.clone());
    }
    let mut budget = eval.budget();
    let key = to_text(value, &mut budget);
    eval.within(&budget)?;
    eval.produce(key.len())?;
    Ok(key)
}

fn dict(eval: &mut Eval<'_>, args: &[Value]) -> Out {
    let mut entries = BTreeMap::new();
    for pair in args.chunks(2) {
        entries.insert(key(eval, &pair[0])?, pair.get(1).cloned().unwrap_or_else(|| Value::from("")));
    }
    Ok(Value::map(entries))
}

fn merge_all(eval: &mut Eval<'_>, args: &[Value], overwrite: bool) -> Out {
    let target = match map(&args[0]) {
        Some(map) => map.clone(),
        None => Rc::new(Map::new(MapType::Any, BTreeMap::new())),
    };
    for source in args[1..].iter().filter_map(map) {
        merge(eval, &target, source, overwrite, (0, &mut Budget::default()))?;
    }
    Ok(Value::Map(target))
}

/// What `mergo` counts as empty.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(_) => false,
        other => !other.truth(),
    }
}

/// Merges as the Go library `mergo` does, in place.
fn merge(
    eval: &mut Eval<'_>,
    target: &Rc<Map>,
    source: &Rc<Map>,
    overwrite: bool,
    (depth, budget): (usize, &mut Budget),
) -> Result<(), Fault> {
    if Rc::ptr_eq(target, source) {
        return Ok(());
    }
    for (key, new) in source.entries() {
        if !budget.spend(depth) {
            return Err("maps are nested too deeply".into());
        }
        let old = target.get(&key);
        if new.is_nil() {
            if overwrite {
                target.insert(key, Value::Nil);
            }
            continue;
        }
        let new_list = matches!(new, Value::List(_) | Value::Bytes(_));
        // Values of a chart are a map too; what is merged into keeps its type.
        let maps = old.as_ref().and_then(Value::as_map).zip(new.as_map());
        match maps {
            Some((old, new)) => merge(eval, old, new, overwrite, (depth + 1, &mut *budget))?,
            None if new_list && overwrite => target.insert(key.clone(), new.clone()),
            None => {}
        }
        let filled = old.as_ref().is_some_and(|old| !is_empty(old));
        if filled && (new_list || maps.is_some()) {
            continue;
        }
        if overwrite || !filled {
            eval.link(&new);
            target.insert(key, new);
        }
    }
    Ok(())
}

fn copied(value: &Value) -> Out {
    if value.is_nil() {
        return Err("reflect: call of reflect.Value.Type on zero Value".into());
    }
    deep_copy(value).ok_or_else(|| "values are nested too deeply".into())
}

/// A copy that shares no map with the original.
pub(crate) fn deep_copy(value: &Value) -> Option<Value> {
    copy_at(value, 0, &mut Budget::default())
}

fn copy_at(value: &Value, depth: usize, budget: &mut Budget) -> Option<Value> {
    if !budget.spend(depth) {
        return None;
    }
    Some(match value {
        Value::Map(map) | Value::Values(map) => {
            let copy = if let Some(untouched) = map.untouched() {
                untouched
            } else {
                let mut entries = BTreeMap::new();
                for (key, value) in map.entries() {
                    entries.insert(key, copy_at(&value, depth + 1, budget)?);
                }
                if map.nil { Map::nil(map.ty) } else { Map::new(map.ty, entries) }
            };
            let copy = Rc::new(copy);
            if let Value::Values(_) = value { Value::Values(copy) } else { Value::Map(copy) }
        }
        Value::List(list) if list.ty == ListType::Any || list.ty == ListType::Lists => {
            let items = list.items.iter().map(|item| copy_at(item, depth + 1, budget)).collect::<Option<Vec<_>>>()?;
            Value::List(Rc::new(List::new(list.ty, list.nil, items)))
        }
        // What Go does not export is not copied: of a version nothing is left.
        Value::Object(object) => match &**object {
            Object::Version(_) => Value::object(Object::Version(Version::default())),
            Object::Struct(inner) => {
                let mut copy = inner.clone();
                for field in &mut copy.fields {
                    let hidden = field.json.is_empty();
                    field.value = if hidden { Value::from("") } else { copy_at(&field.value, depth + 1, budget)? };
                }
                Value::object(Object::Struct(copy))
            }
            _ => value.clone(),
        },
        other => other.clone(),
    })
}

fn dig(_: &mut Eval<'_>, args: &[Value]) -> Out {
    let [keys @ .., default, root] = args else { return Err("dig needs at least three arguments".into()) };
    if keys.is_empty() {
        return Err("dig needs at least three arguments".into());
    }
    if let Some(key) = keys.iter().find(|key| !matches!(key, Value::Str(_) | Value::Raw(_))) {
        return Err(format!("interface conversion: interface {{}} is {}, not string", name(key)).into());
    }
    let mut at = root.clone();
    for key in keys {
        let Value::Map(map) = &at else {
            return Err(format!(
                "interface conversion: interface {{}} is {}, not map[string]interface {{}}",
                name(&at)
            )
            .into());
        };
        if map.ty != MapType::Any {
            return Err(format!(
                "interface conversion: interface {{}} is {}, not map[string]interface {{}}",
                name(&at)
            )
            .into());
        }
        let Some(key) = key.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok()) else {
            return Err(format!("interface conversion: interface {{}} is {}, not string", name(key)).into());
        };
        match map.get(key) {
            Some(next) => at = next,
            None => return Ok(default.clone()),
        }
    }
    Ok(at)
}

fn name(value: &Value) -> &'static str {
    if value.is_nil() { "nil" } else { value.type_name() }
}
