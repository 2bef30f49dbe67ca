//! Fields, methods and functions, with Go's checks of their arguments.

use std::sync::Arc;

use smallvec::SmallVec;

use super::super::ast::{Expr, Operand, Pos};
use super::super::functions::{Function, Run, Ty, methods};
use super::super::object::Object;
use super::super::print;
use super::super::value::{ListType, MapType, Value};
use super::{Eval, Frame, Res, constant_value};

impl Eval<'_> {
    /// `.a.b.c`; arguments go to the last name, which must then be a method.
    #[allow(clippy::too_many_arguments, reason = "the whole state of a call, passed on the stack")]
    pub(super) fn chain(
        &mut self,
        frame: &mut Frame<'_>,
        dot: &Value,
        receiver: Value,
        names: &[Arc<str>],
        pos: Pos,
        args: &[Operand],
        last: Option<Value>,
    ) -> Res<Value> {
        let mut value = receiver;
        let mut last = last;
        for (index, name) in names.iter().enumerate() {
            let end = index + 1 == names.len();
            value = match &value {
                Value::Invalid => Value::Invalid,
                Value::Map(map) => {
                    if end && (!args.is_empty() || last.is_some()) {
                        return Err(Self::error(frame, pos, format!("{name} is not a method but has arguments")));
                    }
                    map.get(name).unwrap_or_else(|| map.zero())
                }
                Value::Nil => {
                    let path = names[..index].join(".");
                    let message = format!("nil pointer evaluating interface {{}}.{name}");
                    let message = if path.is_empty() { message } else { format!("{message} (.{path} is nil)") };
                    return Err(Self::error(frame, pos, message));
                }
                other => {
                    if let Some(method) = methods::find(other, name) {
                        let (args, last) = if end { (args, last.take()) } else { (&[] as &[Operand], None) };
                        let receiver = other.clone();
                        self.call(frame, dot, method, pos, Some(receiver), args, last)?
                    } else {
                        let has_args = end && (!args.is_empty() || last.is_some());
                        field(other, name, has_args).map_err(|message| Self::error(frame, pos, message))?
                    }
                }
            };
        }
        Ok(value)
    }

    #[allow(clippy::too_many_arguments, reason = "the whole state of a call, passed on the stack")]
    pub(super) fn call(
        &mut self,
        frame: &mut Frame<'_>,
        dot: &Value,
        function: &'static Function,
        pos: Pos,
        receiver: Option<Value>,
        args: &[Operand],
        last: Option<Value>,
    ) -> Res<Value> {
        let hidden = usize::from(receiver.is_some());
        let given = args.len() + usize::from(last.is_some());
        let wanted = function.params.len() - hidden;
        if function.variadic.is_some() {
            if given < wanted {
                let message = format!("wrong number of args for {}: want at least {wanted} got {given}", function.name);
                return Err(Self::error(frame, pos, message));
            }
        } else if given != wanted {
            let message = format!("wrong number of args for {}: want {wanted} got {given}", function.name);
            return Err(Self::error(frame, pos, message));
        }
        let body = match function.run {
            Run::And => return self.short_circuit(frame, dot, args, last, false),
            Run::Or => return self.short_circuit(frame, dot, args, last, true),
            Run::Native(body) => body,
        };
        let mut values: SmallVec<[Value; 4]> = SmallVec::with_capacity(given + hidden);
        values.extend(receiver);
        for (index, arg) in args.iter().enumerate() {
            let value = self.argument(frame, dot, function.param(index + hidden), arg)?;
            values.push(value);
        }
        if let Some(last) = last {
            let ty = function.param(values.len());
            values.push(check(last, ty).map_err(|message| Self::error(frame, pos, message))?);
        }
        self.step(frame, pos)?;
        if !Arc::ptr_eq(&self.site.0, frame.file) {
            self.site.0 = frame.file.clone();
        }
        if !Arc::ptr_eq(&self.site_source, &frame.body.source) {
            self.site_source = frame.body.source.clone();
        }
        self.site.1 = pos;
        let result = self.go_on().and_then(|()| body(self, &values));
        let result = result.and_then(|value| self.count(&value).map(|()| value));
        result.map_err(|fault| Self::fault(frame, pos, function, fault))
    }

    fn short_circuit(
        &mut self,
        frame: &mut Frame<'_>,
        dot: &Value,
        args: &[Operand],
        last: Option<Value>,
        until: bool,
    ) -> Res<Value> {
        let mut value = Value::Invalid;
        for arg in args {
            value = self.argument(frame, dot, Ty::Reflect, arg)?;
            if value.truth() == until {
                return Ok(value);
            }
        }
        Ok(last.unwrap_or(value))
    }

    /// An argument, checked against the parameter's type.
    fn argument(&mut self, frame: &mut Frame<'_>, dot: &Value, ty: Ty, operand: &Operand) -> Res<Value> {
        let result = match &operand.expr {
            Expr::Nil => match ty {
                Ty::Any | Ty::Map | Ty::List | Ty::Version => Ok(Value::Nil),
                Ty::Reflect => Ok(Value::Invalid),
                _ => Err(format!("cannot assign nil to {}", ty.name())),
            },
            Expr::Bool(_) | Expr::Int(_) | Expr::Float(..) | Expr::Str(_) | Expr::Raw(_) => {
                constant_as(&operand.expr, ty)
            }
            _ => {
                let value = self.operand(frame, dot, operand)?;
                check(value, ty)
            }
        };
        result.map_err(|message| Self::error(frame, operand.pos, message))
    }
}

/// A constant where a type is wanted: `5.0` is an int, `5` is a float.
fn constant_as(expr: &Expr, ty: Ty) -> Result<Value, String> {
    #[allow(clippy::cast_precision_loss, reason = "as Go converts")]
    let value = match (ty, expr) {
        (Ty::Any | Ty::Reflect, _)
        | (Ty::Str, Expr::Str(_) | Expr::Raw(_))
        | (Ty::Bool, Expr::Bool(_))
        | (Ty::Float, Expr::Float(..))
        | (Ty::Int, Expr::Int(_)) => constant_value(expr),
        (Ty::Int, Expr::Float(_, Some(value))) => Value::Int(*value),
        (Ty::Uint32, Expr::Int(value) | Expr::Float(_, Some(value))) if u32::try_from(*value).is_ok() => {
            Value::Int(*value)
        }
        (Ty::Float, Expr::Int(value)) => Value::Float(*value as f64),
        (Ty::Map | Ty::List | Ty::Time | Ty::Certificate | Ty::Version, _) => {
            return Err(format!("can't handle {} for arg of type {}", print::text(&constant_value(expr)), ty.name()));
        }
        _ => return Err(format!("expected {}; found {}", ty.name(), print::text(&constant_value(expr)))),
    };
    Ok(value)
}

/// Go's check whether a value can be assigned to a parameter.
fn check(value: Value, ty: Ty) -> Result<Value, String> {
    #[allow(clippy::match_same_arms, reason = "in the order of types")]
    let fits = match (ty, &value) {
        (Ty::Any, Value::Invalid) => return Ok(Value::Nil),
        (Ty::Any, Value::Object(object)) => return Ok(Object::by_value(object)),
        (Ty::Any | Ty::Reflect, _)
        | (Ty::Str, Value::Str(_) | Value::Raw(_))
        | (Ty::Int, Value::Int(_))
        | (Ty::Float, Value::Float(_))
        | (Ty::Bool, Value::Bool(_)) => true,
        (Ty::Map | Ty::List | Ty::Version, Value::Invalid) => return Ok(Value::Nil),
        (Ty::Map, Value::Map(map)) => map.ty != MapType::Str,
        (Ty::Map, Value::Values(map)) => return Ok(Value::Map(map.clone())),
        (Ty::List, Value::List(list)) => list.ty == ListType::Any,
        (Ty::Time, Value::Object(object)) => matches!(**object, Object::Time(_)),
        (Ty::Version, Value::Object(object)) => matches!(**object, Object::Version(_)),
        (Ty::Certificate, Value::Object(object)) => {
            matches!(&**object, Object::Struct(inner) if inner.type_name == Ty::Certificate.name())
        }
        (_, Value::Invalid) => return Err(format!("invalid value; expected {}", ty.name())),
        _ => false,
    };
    if fits {
        return Ok(value);
    }
    Err(format!("wrong type for value; expected {}; got {}", ty.name(), value.type_name()))
}

/// A field that is no method.
fn field(value: &Value, name: &str, has_args: bool) -> Result<Value, String> {
    match value {
        Value::Values(map) => {
            if has_args {
                return Err(format!("{name} is not a method but has arguments"));
            }
            Ok(map.get(name).unwrap_or_else(|| map.zero()))
        }
        Value::Object(object) => match &**object {
            Object::Struct(inner) => match inner.field(name) {
                Some(_) if has_args => Err(format!("{name} has arguments but cannot be invoked as function")),
                Some(value) => Ok(value.clone()),
                None if name == "Metadata" && inner.embedded > 0 && !has_args => {
                    Ok(Value::object(Object::Struct(inner.inner())))
                }
                None => Err(format!("can't evaluate field {name} in type {}", value.type_name())),
            },
            Object::Files(files) => {
                Ok(files.get(name).map_or_else(|| Value::Bytes([].into()), |data| Value::Bytes(data.as_ref().into())))
            }
            _ => Err(format!("can't evaluate field {name} in type {}", value.type_name())),
        },
        _ => Err(format!("can't evaluate field {name} in type {}", value.type_name())),
    }
}
