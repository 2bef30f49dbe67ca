//! `semver` and `semverCompare`.

use super::super::super::version::{Constraint, Version};
use super::super::object::Object;
use super::super::value::Value;
use super::{Function, Ty, text};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("semver", &[Ty::Str], |_, args| Ok(Value::object(Object::Version(Version::parse(&text(&args[0]))?)))),
    Function::new("semverCompare", &[Ty::Str, Ty::Str], |_, args| {
        let constraint = Constraint::parse(&text(&args[0]))?;
        Ok(Value::Bool(constraint.allows(&Version::parse(&text(&args[1]))?)))
    }),
];
