//! The functions that Go's `text/template` brings: comparison, `index`, `len`, `print`, escaping.

use std::cmp::Ordering;
use std::rc::Rc;

use super::super::eval::{Eval, Fault};
use super::super::object::Object;
use super::super::print;
use super::super::value::{Value, lossy};
use super::{Function, Out, Run, Ty, printf};

pub(super) const FUNCTIONS: &[Function] = &[
    Function { name: "and", params: &[Ty::Reflect], variadic: Some(Ty::Reflect), run: Run::And, of_helm_4: false },
    Function { name: "or", params: &[Ty::Reflect], variadic: Some(Ty::Reflect), run: Run::Or, of_helm_4: false },
    Function::new("not", &[Ty::Reflect], |_, args| Ok(Value::Bool(!args[0].truth()))),
    Function::variadic("eq", &[Ty::Reflect], Ty::Reflect, eq),
    Function::new("ne", &[Ty::Reflect, Ty::Reflect], |_, args| Ok(Value::Bool(!equal(&args[0], &args[1])?))),
    Function::new("lt", &[Ty::Reflect, Ty::Reflect], |_, args| order(args, |o| o == Ordering::Less, false)),
    Function::new("le", &[Ty::Reflect, Ty::Reflect], |_, args| order(args, |o| o != Ordering::Greater, true)),
    Function::new("gt", &[Ty::Reflect, Ty::Reflect], |_, args| order(args, |o| o == Ordering::Greater, false)),
    Function::new("ge", &[Ty::Reflect, Ty::Reflect], |_, args| order(args, |o| o != Ordering::Less, true)),
    Function::variadic("index", &[Ty::Reflect], Ty::Reflect, index),
    Function::new("len", &[Ty::Reflect], len),
    Function::variadic("call", &[Ty::Reflect], Ty::Reflect, |_, args| {
        Err(match &args[0] {
            Value::Invalid | Value::Nil => Fault::from("call of nil"),
            other => Fault::from(format!("non-function of type {}", other.type_name())),
        })
    }),
    Function::variadic("print", &[], Ty::Any, |eval, args| {
        Ok(Value::from_bytes(printf::sprint(args, &mut eval.budget())))
    }),
    Function::variadic("println", &[], Ty::Any, |eval, args| {
        Ok(Value::from_bytes(printf::sprintln(args, &mut eval.budget())))
    }),
    Function::variadic("printf", &[Ty::Str], Ty::Any, |eval, args| {
        let text =
            printf::sprintf(args[0].bytes().unwrap_or_default(), &args[1..], eval.input.limits.output, eval.input.helm);
        Ok(Value::from_bytes(text))
    }),
    Function::variadic("html", &[], Ty::Any, |eval, args| escaped(eval, args, html)),
    Function::variadic("js", &[], Ty::Any, |eval, args| escaped(eval, args, js)),
    Function::variadic("urlquery", &[], Ty::Any, urlquery),
];

#[derive(PartialEq, Eq)]
enum Basic {
    Bool,
    Float,
    Int,
    Uint,
    Str,
    Other,
}

fn basic(value: &Value) -> Basic {
    match value {
        Value::Bool(_) => Basic::Bool,
        Value::Float(_) => Basic::Float,
        Value::Int(_) | Value::Int64(_) => Basic::Int,
        Value::Uint(_) => Basic::Uint,
        Value::Str(_) | Value::Raw(_) => Basic::Str,
        Value::Object(object) if object.integer().is_some() => Basic::Int,
        _ => Basic::Other,
    }
}

fn integer(value: &Value) -> i128 {
    match value {
        Value::Int(value) | Value::Int64(value) => i128::from(*value),
        Value::Uint(value) => i128::from(*value),
        Value::Object(object) => object.integer().map_or(0, i128::from),
        _ => 0,
    }
}

fn incompatible(a: &Value, b: &Value) -> Fault {
    format!("incompatible types for comparison: {} and {}", a.type_name(), b.type_name()).into()
}

fn eq(_: &mut Eval<'_>, args: &[Value]) -> Out {
    if args.len() < 2 {
        return Err("missing argument for comparison".into());
    }
    for other in &args[1..] {
        if equal(&args[0], other)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn equal(a: &Value, b: &Value) -> Result<bool, Fault> {
    let (kind_a, kind_b) = (basic(a), basic(b));
    Ok(match (&kind_a, &kind_b) {
        (Basic::Int | Basic::Uint, Basic::Int | Basic::Uint) => integer(a) == integer(b),
        (Basic::Bool, Basic::Bool) => matches!((a, b), (Value::Bool(a), Value::Bool(b)) if a == b),
        #[allow(clippy::float_cmp, reason = "Go compares exactly")]
        (Basic::Float, Basic::Float) => matches!((a, b), (Value::Float(a), Value::Float(b)) if a == b),
        (Basic::Str, Basic::Str) => a.bytes() == b.bytes(),
        (Basic::Other, Basic::Other) => {
            if !a.is_nil() && !b.is_nil() && a.kind() != b.kind() {
                return Err(incomparable(a, b));
            }
            if a.is_null() || b.is_null() {
                return Ok(a.is_null() && b.is_null());
            }
            match (a, b) {
                (Value::Object(a), Value::Object(b)) => match (&**a, &**b) {
                    (Object::Time(a), Object::Time(b)) => a == b,
                    _ => Rc::ptr_eq(a, b),
                },
                _ => return Err(incomparable(a, b)),
            }
        }
        _ if a.is_nil() || b.is_nil() => false,
        _ => return Err(incompatible(a, b)),
    })
}

fn incomparable(a: &Value, b: &Value) -> Fault {
    let types = (a.type_name(), b.type_name());
    format!("non-comparable types {}: {}, {}: {}", print::text(a), types.0, types.1, print::text(b)).into()
}

fn order(args: &[Value], test: fn(Ordering) -> bool, or_equal: bool) -> Out {
    let (a, b) = (&args[0], &args[1]);
    let unordered = |value: &Value| matches!(basic(value), Basic::Other);
    if unordered(a) || unordered(b) {
        return Err("invalid type for comparison".into());
    }
    let ordering = match (basic(a), basic(b)) {
        (Basic::Int | Basic::Uint, Basic::Int | Basic::Uint) => integer(a).cmp(&integer(b)),
        (Basic::Str, Basic::Str) => a.bytes().cmp(&b.bytes()),
        (Basic::Float, Basic::Float) => match (a, b) {
            (Value::Float(x), Value::Float(y)) => match x.partial_cmp(y) {
                Some(ordering) => ordering,
                None => return Ok(Value::Bool(false)),
            },
            _ => return Ok(Value::Bool(false)),
        },
        (Basic::Bool, Basic::Bool) => {
            let same = matches!((a, b), (Value::Bool(a), Value::Bool(b)) if a == b);
            if or_equal && same {
                return Ok(Value::Bool(true));
            }
            return Err("invalid type for comparison".into());
        }
        _ => return Err(incompatible(a, b)),
    };
    Ok(Value::Bool(test(ordering)))
}

fn position(index: &Value, length: usize) -> Result<usize, Fault> {
    let at = match index {
        Value::Int(_) | Value::Int64(_) | Value::Uint(_) => integer(index),
        Value::Object(object) if object.integer().is_some() => integer(index),
        Value::Invalid | Value::Nil => return Err("cannot index slice/array with nil".into()),
        other => return Err(format!("cannot index slice/array with type {}", other.type_name()).into()),
    };
    usize::try_from(at).ok().filter(|at| *at < length).ok_or_else(|| Fault::from(format!("index out of range: {at}")))
}

fn index(_: &mut Eval<'_>, args: &[Value]) -> Out {
    let mut item = args[0].clone();
    if item.is_nil() {
        return Err("index of untyped nil".into());
    }
    for index in &args[1..] {
        item = match &item {
            Value::Invalid | Value::Nil => return Err("index of nil pointer".into()),
            Value::List(list) => list.items[position(index, list.items.len())?].clone(),
            Value::Str(_) | Value::Raw(_) | Value::Bytes(_) => {
                let bytes = item.bytes().unwrap_or_default();
                Value::Uint(u64::from(bytes[position(index, bytes.len())?]))
            }
            Value::Map(map) | Value::Values(map) => match index {
                Value::Str(key) => map.get(key).unwrap_or_else(|| map.zero()),
                Value::Raw(_) => map.zero(),
                Value::Invalid | Value::Nil => return Err("value is nil; should be of type string".into()),
                other => return Err(format!("value has type {}; should be string", other.type_name()).into()),
            },
            Value::Object(object) => match (&**object, index) {
                (Object::Files(files), Value::Str(key)) => {
                    Value::Bytes(files.get(key).map(std::convert::AsRef::as_ref).unwrap_or_default().into())
                }
                _ => return Err(format!("can't index item of type {}", item.type_name()).into()),
            },
            other => return Err(format!("can't index item of type {}", other.type_name()).into()),
        };
    }
    Ok(item)
}

fn len(_: &mut Eval<'_>, args: &[Value]) -> Out {
    let length = match &args[0] {
        Value::Invalid | Value::Nil => return Err("len of nil pointer".into()),
        Value::Str(_) | Value::Raw(_) | Value::Bytes(_) => args[0].bytes().map_or(0, <[u8]>::len),
        Value::List(list) => list.items.len(),
        Value::Map(map) | Value::Values(map) => map.len(),
        Value::Object(object) => match &**object {
            Object::Files(files) => files.len(),
            _ => return Err(format!("len of type {}", args[0].type_name()).into()),
        },
        other => return Err(format!("len of type {}", other.type_name()).into()),
    };
    Ok(Value::Int(i64::try_from(length).unwrap_or(i64::MAX)))
}

fn escaped(eval: &mut Eval<'_>, args: &[Value], escape: fn(&str) -> String) -> Out {
    if let [Value::Str(text)] = args {
        return Ok(Value::from(escape(text)));
    }
    // Go makes a text of each argument as an action would, so nil is `<no value>`.
    let printable = |arg: &Value| if arg.is_nil() { Value::from("<no value>") } else { arg.clone() };
    let args: Vec<Value> = args.iter().map(printable).collect();
    let mut budget = eval.budget();
    let text = printf::sprint(&args, &mut budget);
    eval.within(&budget)?;
    Ok(Value::from(escape(&lossy(&text))))
}

/// As [`escaped`], but bytes that are no UTF-8 stay themselves.
fn urlquery(eval: &mut Eval<'_>, args: &[Value]) -> Out {
    let [Value::Raw(bytes)] = args else { return escaped(eval, args, super::url::query_escape) };
    let chunk = |chunk: std::str::Utf8Chunk<'_>| {
        let invalid = super::encoding::hex(chunk.invalid()).to_uppercase();
        let invalid = invalid.as_bytes().chunks(2).map(|pair| format!("%{}", String::from_utf8_lossy(pair)));
        super::url::query_escape(chunk.valid()) + &invalid.collect::<Vec<_>>().concat()
    };
    Ok(Value::from(bytes.utf8_chunks().map(chunk).collect::<String>()))
}

fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0' => out.push('\u{fffd}'),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
    out
}

fn js(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\'' => out.push_str("\\'"),
            '"' => out.push_str("\\\""),
            '<' => out.push_str("\\u003C"),
            '>' => out.push_str("\\u003E"),
            '&' => out.push_str("\\u0026"),
            '=' => out.push_str("\\u003D"),
            c if (c as u32) < 0x20 || (!c.is_ascii() && !print::is_print(c)) => _ = write!(out, "\\u{:04X}", c as u32),
            c => out.push(c),
        }
    }
    out
}
