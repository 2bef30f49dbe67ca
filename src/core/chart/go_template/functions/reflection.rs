//! Types and deep comparison.

use super::super::eval::{Eval, Fault};
use super::super::json::Budget;
use super::super::object::Object;
use super::super::value::Value;
use super::{Function, Ty, text};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("typeOf", &[Ty::Any], |eval, args| Ok(Value::from(type_of(eval, &args[0])))),
    Function::new("typeIs", &[Ty::Str, Ty::Any], |eval, args| {
        Ok(Value::Bool(text(&args[0]) == type_of(eval, &args[1])))
    }),
    Function::new("typeIsLike", &[Ty::Str, Ty::Any], |eval, args| {
        let (target, found) = (text(&args[0]), type_of(eval, &args[1]));
        Ok(Value::Bool(target == found || found.strip_prefix('*') == Some(&*target)))
    }),
    Function::new("kindOf", &[Ty::Any], |_, args| Ok(Value::from(args[0].kind().name()))),
    Function::new("kindIs", &[Ty::Str, Ty::Any], |_, args| Ok(Value::Bool(text(&args[0]) == args[1].kind().name()))),
    Function::new("deepEqual", &[Ty::Any, Ty::Any], |eval, args| {
        Ok(Value::Bool(deep_equal(eval, &args[0], &args[1])?))
    }),
];

fn type_of(eval: &Eval<'_>, value: &Value) -> &'static str {
    if value.is_nil() { "<nil>" } else { value.type_name_in(eval.input.helm) }
}

/// Go's `reflect.DeepEqual`: types must be the same, so 1 is not 1.0.
pub(crate) fn deep_equal(eval: &Eval<'_>, a: &Value, b: &Value) -> Result<bool, Fault> {
    eval.go_on()?;
    let mut budget = Budget::new(eval.input.limits.output.saturating_mul(64));
    let equal = equal(a, b, 0, &mut budget);
    eval.within(&budget)?;
    Ok(equal)
}

/// Compares texts; the same text that is held twice is not read.
fn same(a: &[u8], b: &[u8], budget: &mut Budget) -> bool {
    if a.len() != b.len() || std::ptr::eq(a, b) {
        return a.len() == b.len();
    }
    budget.text(a.len());
    a == b
}

fn equal(a: &Value, b: &Value, depth: usize, budget: &mut Budget) -> bool {
    if !budget.spend(depth) {
        return false;
    }
    if a.is_null() != b.is_null() {
        return false;
    }
    match (a, b) {
        (Value::Invalid | Value::Nil, Value::Invalid | Value::Nil) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) | (Value::Int64(a), Value::Int64(b)) => a == b,
        (Value::Uint(a), Value::Uint(b)) => a == b,
        #[allow(clippy::float_cmp, reason = "Go compares exactly")]
        (Value::Float(a), Value::Float(b)) => a == b,
        (Value::Str(a), Value::Str(b)) => same(a.as_bytes(), b.as_bytes(), budget),
        (Value::Raw(a), Value::Raw(b)) | (Value::Bytes(a), Value::Bytes(b)) => same(a, b, budget),
        (Value::List(a), Value::List(b)) => {
            a.ty == b.ty
                && a.items.len() == b.items.len()
                && a.items.iter().zip(&b.items).all(|(a, b)| equal(a, b, depth + 1, budget))
        }
        (Value::Map(a), Value::Map(b)) | (Value::Values(a), Value::Values(b)) => {
            if std::rc::Rc::ptr_eq(a, b) {
                return true;
            }
            a.ty == b.ty
                && a.len() == b.len()
                && a.entries()
                    .iter()
                    .zip(b.entries())
                    .all(|((key, a), (other, b))| *key == other && equal(a, &b, depth + 1, budget))
        }
        (Value::Object(a), Value::Object(b)) => match (&**a, &**b) {
            (Object::Time(a), Object::Time(b)) => a == b,
            (Object::Duration(a), Object::Duration(b))
            | (Object::Month(a), Object::Month(b))
            | (Object::Weekday(a), Object::Weekday(b)) => a == b,
            (Object::Files(a), Object::Files(b)) => a == b,
            (Object::Version(a), Object::Version(b)) => a == b,
            (Object::Struct(a), Object::Struct(b)) => {
                a.type_name == b.type_name
                    && a.fields.iter().zip(&b.fields).all(|(a, b)| equal(&a.value, &b.value, depth + 1, budget))
            }
            _ => false,
        },
        _ => false,
    }
}
