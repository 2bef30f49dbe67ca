//! Lists, and the functions that choose among their arguments.

use super::super::eval::{Eval, Fault};
use super::super::value::{ListType, Value};
use super::math::{int, to_int};
use super::reflection::deep_equal;
use super::strings::strings;
use super::{Function, Out, Ty};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::variadic("list", &[], Ty::Any, |_, args| Ok(Value::list(args.to_vec()))),
    Function::variadic("tuple", &[], Ty::Any, |_, args| Ok(Value::list(args.to_vec()))),
    Function::new("append", &[Ty::Any, Ty::Any], push),
    Function::new("push", &[Ty::Any, Ty::Any], push),
    Function::new("mustAppend", &[Ty::Any, Ty::Any], push),
    Function::new("mustPush", &[Ty::Any, Ty::Any], push),
    Function::new("prepend", &[Ty::Any, Ty::Any], prepend),
    Function::new("mustPrepend", &[Ty::Any, Ty::Any], prepend),
    Function::new("first", &[Ty::Any], first),
    Function::new("mustFirst", &[Ty::Any], first),
    Function::new("last", &[Ty::Any], last),
    Function::new("mustLast", &[Ty::Any], last),
    Function::new("rest", &[Ty::Any], |_, args| part(&args[0], "rest", |items| &items[1..])),
    Function::new("mustRest", &[Ty::Any], |_, args| part(&args[0], "rest", |items| &items[1..])),
    Function::new("initial", &[Ty::Any], |_, args| part(&args[0], "initial", |items| &items[..items.len() - 1])),
    Function::new("mustInitial", &[Ty::Any], |_, args| part(&args[0], "initial", |items| &items[..items.len() - 1])),
    Function::new("reverse", &[Ty::Any], reverse),
    Function::new("mustReverse", &[Ty::Any], reverse),
    Function::new("compact", &[Ty::Any], compact),
    Function::new("mustCompact", &[Ty::Any], compact),
    Function::new("uniq", &[Ty::Any], uniq),
    Function::new("mustUniq", &[Ty::Any], uniq),
    Function::variadic("without", &[Ty::Any], Ty::Any, without),
    Function::variadic("mustWithout", &[Ty::Any], Ty::Any, without),
    Function::new("has", &[Ty::Any, Ty::Any], has),
    Function::new("mustHas", &[Ty::Any, Ty::Any], has),
    Function::variadic("slice", &[Ty::Any], Ty::Any, slice),
    Function::variadic("mustSlice", &[Ty::Any], Ty::Any, slice),
    Function::variadic("concat", &[], Ty::Any, |eval, args| {
        let mut items = Vec::new();
        for arg in args {
            items.extend(elements(arg, "concat type", " as list")?);
            eval.items(items.len())?;
        }
        eval.produce(items.len().saturating_mul(24))?;
        Ok(list_or_nil(items))
    }),
    Function::new("chunk", &[Ty::Int, Ty::Any], chunk),
    Function::new("mustChunk", &[Ty::Int, Ty::Any], chunk),
    Function::new("sortAlpha", &[Ty::Any], |eval, args| {
        // What is no list is a list of one, nil too.
        let mut sorted = if args[0].is_nil() { vec!["<nil>".into()] } else { strings(eval, &args[0])? };
        sorted.sort_unstable_by(|a, b| a.bytes().cmp(&b.bytes()));
        Ok(Value::strings(sorted))
    }),
    Function::variadic("default", &[Ty::Any], Ty::Any, |_, args| {
        Ok(match args.get(1) {
            Some(given) if !empty(given) => given.clone(),
            _ => args[0].clone(),
        })
    }),
    Function::new("empty", &[Ty::Any], |_, args| Ok(Value::Bool(empty(&args[0])))),
    Function::variadic("coalesce", &[], Ty::Any, |_, args| {
        Ok(args.iter().find(|arg| !empty(arg)).cloned().unwrap_or(Value::Nil))
    }),
    Function::variadic("all", &[], Ty::Any, |_, args| Ok(Value::Bool(!args.iter().any(empty)))),
    Function::variadic("any", &[], Ty::Any, |_, args| Ok(Value::Bool(!args.iter().all(empty)))),
    Function::new("ternary", &[Ty::Any, Ty::Any, Ty::Bool], |_, args| {
        Ok(if args[2].truth() { args[0].clone() } else { args[1].clone() })
    }),
];

/// sprig's idea of an empty value is Go's idea of a false one.
pub(crate) fn empty(value: &Value) -> bool {
    !value.truth()
}

/// The elements of a list; anything else is an error in sprig's words.
fn elements(value: &Value, what: &str, tail: &str) -> Result<Vec<Value>, Fault> {
    match value {
        Value::List(list) => Ok(list.items.clone()),
        Value::Bytes(bytes) => Ok(bytes.iter().map(|byte| Value::Uint(u64::from(*byte))).collect()),
        other => Err(not_a_list(other, what, tail)),
    }
}

fn not_a_list(value: &Value, what: &str, tail: &str) -> Fault {
    if value.is_nil() {
        return "runtime error: invalid memory address or nil pointer dereference".into();
    }
    format!("Cannot {what} {}{tail}", value.kind().name()).into()
}

/// sprig appends to a nil list.
fn list_or_nil(items: Vec<Value>) -> Value {
    if items.is_empty() { Value::nil_list(ListType::Any) } else { Value::list(items) }
}

fn push(_: &mut Eval<'_>, args: &[Value]) -> Out {
    let mut items = elements(&args[0], "push on type", "")?;
    items.reserve_exact(1);
    items.push(args[1].clone());
    Ok(Value::list(items))
}

fn prepend(_: &mut Eval<'_>, args: &[Value]) -> Out {
    let mut items = elements(&args[0], "prepend on type", "")?;
    items.reserve_exact(1);
    items.insert(0, args[1].clone());
    Ok(Value::list(items))
}

fn first(_: &mut Eval<'_>, args: &[Value]) -> Out {
    match &args[0] {
        Value::List(list) => Ok(list.items.first().cloned().unwrap_or(Value::Nil)),
        other => Ok(elements(other, "find first on type", "")?.first().cloned().unwrap_or(Value::Nil)),
    }
}

fn last(_: &mut Eval<'_>, args: &[Value]) -> Out {
    match &args[0] {
        Value::List(list) => Ok(list.items.last().cloned().unwrap_or(Value::Nil)),
        other => Ok(elements(other, "find last on type", "")?.last().cloned().unwrap_or(Value::Nil)),
    }
}

fn part(value: &Value, name: &str, cut: fn(&[Value]) -> &[Value]) -> Out {
    let items = elements(value, &format!("find {name} on type"), "")?;
    Ok(if items.is_empty() { Value::nil_list(ListType::Any) } else { Value::list(cut(&items).to_vec()) })
}

fn reverse(_: &mut Eval<'_>, args: &[Value]) -> Out {
    let mut items = elements(&args[0], "find reverse on type", "")?;
    items.reverse();
    Ok(Value::list(items))
}

fn compact(_: &mut Eval<'_>, args: &[Value]) -> Out {
    let mut items = elements(&args[0], "compact on type", "")?;
    items.retain(|item| !empty(item));
    Ok(Value::list(items))
}

fn uniq(eval: &mut Eval<'_>, args: &[Value]) -> Out {
    let mut unique: Vec<Value> = Vec::new();
    for item in elements(&args[0], "find uniq on type", "")? {
        eval.produce(unique.len())?;
        if !holds(eval, &unique, &item)? {
            unique.push(item);
        }
    }
    Ok(Value::list(unique))
}

fn without(eval: &mut Eval<'_>, args: &[Value]) -> Out {
    let items = elements(&args[0], "find without on type", "")?;
    eval.produce(items.len().saturating_mul(args.len()))?;
    let mut kept = Vec::with_capacity(items.len());
    for item in items {
        if !holds(eval, &args[1..], &item)? {
            kept.push(item);
        }
    }
    Ok(Value::list(kept))
}

fn has(eval: &mut Eval<'_>, args: &[Value]) -> Out {
    Ok(Value::Bool(match &args[1] {
        haystack if haystack.is_nil() => false,
        Value::List(list) => holds(eval, &list.items, &args[0])?,
        other => holds(eval, &elements(other, "find has on type", "")?, &args[0])?,
    }))
}

fn holds(eval: &Eval<'_>, items: &[Value], wanted: &Value) -> Result<bool, Fault> {
    for item in items {
        if deep_equal(eval, item, wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn slice(_: &mut Eval<'_>, args: &[Value]) -> Out {
    let (items, ty): (Vec<Value>, ListType) = match &args[0] {
        Value::List(list) => (list.items.clone(), list.ty),
        Value::Bytes(_) => (elements(&args[0], "", "")?, ListType::Any),
        other if other.is_nil() => return Err(not_a_list(other, "", "")),
        other => return Err(format!("list should be type of slice or array but {}", other.kind().name()).into()),
    };
    if items.is_empty() {
        return Ok(Value::Nil);
    }
    let start = args.get(1).map_or(0, to_int);
    let end = args.get(2).map_or_else(|| i64::try_from(items.len()).unwrap_or(i64::MAX), to_int);
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    match range.and_then(|(start, end)| items.get(start..end)) {
        Some(part) => Ok(Value::typed_list(ty, part.to_vec())),
        None => Err("reflect.Value.Slice: slice index out of bounds".into()),
    }
}

fn chunk(_: &mut Eval<'_>, args: &[Value]) -> Out {
    let items = elements(&args[1], "chunk type", "")?;
    let Some(size) = usize::try_from(int(&args[0])).ok().filter(|size| *size > 0) else {
        let last = i64::try_from(items.len()).unwrap_or(i64::MAX) - 1;
        // sprig computes how many chunks there are, and a small negative size gives none.
        if int(&args[0]) < 0 && last > 0 && last <= int(&args[0]).saturating_neg() {
            return Ok(Value::typed_list(ListType::Lists, Vec::new()));
        }
        if int(&args[0]) < -1 && last == 0 {
            return Ok(Value::typed_list(ListType::Lists, vec![Value::list(items)]));
        }
        return Err("chunk needs a positive size".into());
    };
    Ok(Value::typed_list(ListType::Lists, items.chunks(size).map(|chunk| Value::list(chunk.to_vec())).collect()))
}
