//! Durations as Helm 4 has them. Helm 3 knows none of these functions.

use super::super::object::Object;
use super::super::value::Value;
use super::math::parse_float;
use super::{Function, Out, Ty, date, text};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("mustToDuration", &[Ty::Any], |_, args| Ok(duration(nanos(&args[0])?))).of_helm_4(),
    Function::new("durationNanoseconds", &[Ty::Any], |_, args| whole(args, 1)).of_helm_4(),
    Function::new("durationMicroseconds", &[Ty::Any], |_, args| whole(args, 1_000)).of_helm_4(),
    Function::new("durationMilliseconds", &[Ty::Any], |_, args| whole(args, 1_000_000)).of_helm_4(),
    Function::new("durationSeconds", &[Ty::Any], |_, args| counted(args, SECOND, 1.0)).of_helm_4(),
    Function::new("durationMinutes", &[Ty::Any], |_, args| counted(args, 60 * SECOND, 1.0)).of_helm_4(),
    Function::new("durationHours", &[Ty::Any], |_, args| counted(args, 3600 * SECOND, 1.0)).of_helm_4(),
    Function::new("durationDays", &[Ty::Any], |_, args| counted(args, 3600 * SECOND, 24.0)).of_helm_4(),
    Function::new("durationWeeks", &[Ty::Any], |_, args| match counted(args, 3600 * SECOND, 24.0)? {
        Value::Float(days) => Ok(Value::Float(days / 7.0)),
        other => Ok(other),
    })
    .of_helm_4(),
    Function::new("durationRoundTo", &[Ty::Any, Ty::Any], |_, args| multiple(args, rounded)).of_helm_4(),
    Function::new("durationTruncateTo", &[Ty::Any, Ty::Any], |_, args| multiple(args, |nanos, to| nanos - nanos % to))
        .of_helm_4(),
];

const SECOND: i64 = 1_000_000_000;

fn duration(nanos: i64) -> Value {
    Value::object(Object::Duration(nanos))
}

/// How many units of that many nanoseconds a duration has, as Go's `Duration.Hours` and its like count.
#[allow(clippy::cast_precision_loss, reason = "as Go converts")]
pub(super) fn units(nanos: i64, unit: i64) -> f64 {
    (nanos / unit) as f64 + (nanos % unit) as f64 / unit as f64
}

/// What is no duration counts as none.
fn counted(args: &[Value], unit: i64, of: f64) -> Out {
    Ok(Value::Float(units(nanos(&args[0]).unwrap_or(0), unit) / of))
}

fn whole(args: &[Value], unit: i64) -> Out {
    Ok(Value::Int64(nanos(&args[0]).unwrap_or(0) / unit))
}

/// A duration brought to a multiple of another.
fn multiple(args: &[Value], change: fn(i64, i64) -> i64) -> Out {
    let Ok(value) = nanos(&args[0]) else { return Ok(duration(0)) };
    let to = nanos(&args[1]).ok().filter(|to| *to > 0);
    Ok(duration(to.map_or(value, |to| change(value, to))))
}

/// Half way it goes away from zero.
fn rounded(nanos: i64, to: i64) -> i64 {
    let rest = (nanos % to).unsigned_abs();
    let down = nanos - nanos % to;
    if rest.saturating_mul(2) < to.unsigned_abs() { down } else { down.saturating_add(to * nanos.signum()) }
}

/// A duration, a text such as `1h30m`, or a number of seconds.
fn nanos(value: &Value) -> Result<i64, String> {
    match value {
        Value::Object(object) if let Object::Duration(nanos) = **object => Ok(nanos),
        Value::Str(_) | Value::Raw(_) => {
            let given = text(value);
            let trimmed = given.trim();
            if trimmed.is_empty() {
                return Err("empty duration".into());
            }
            match date::parse_duration(trimmed) {
                Some(nanos) => Ok(nanos),
                None => match parse_float(trimmed) {
                    Some(seconds) => from_float(seconds),
                    None => Err(format!("could not parse duration {given:?}")),
                },
            }
        }
        Value::Invalid | Value::Nil => Err("invalid duration".into()),
        Value::Int(seconds) | Value::Int64(seconds) => {
            seconds.checked_mul(SECOND).ok_or_else(|| format!("duration seconds overflow: {seconds}"))
        }
        Value::Uint(seconds) => i64::try_from(*seconds)
            .ok()
            .and_then(|seconds| seconds.checked_mul(SECOND))
            .ok_or_else(|| format!("duration seconds overflow: {seconds}")),
        Value::Float(seconds) => from_float(*seconds),
        other => Err(format!("unsupported duration type {}", other.type_name())),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "checked just before")]
fn from_float(seconds: f64) -> Result<i64, String> {
    let nanos = seconds * SECOND as f64;
    if nanos.is_finite() && nanos.abs() <= i64::MAX as f64 {
        return Ok(nanos as i64);
    }
    Err(format!("duration seconds overflow: {seconds}"))
}
