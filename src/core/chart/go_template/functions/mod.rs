//! The functions of templates: Go's own, sprig's and Helm's.

#![allow(clippy::unnecessary_wraps, reason = "functions of one table have one signature")]

use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use super::super::HelmVersion;
use super::eval::{Eval, Fault};
use super::json::Budget;
use super::value::{Value, lossy};

pub(crate) mod builtin;
pub(crate) mod crypto;
pub(crate) mod date;
pub(crate) mod dict;
mod duration;
pub(crate) mod encoding;
pub(crate) mod helm;
pub(crate) mod list;
pub(crate) mod math;
pub(crate) mod methods;
mod prime;
pub(crate) mod printf;
pub(crate) mod random;
pub(crate) mod reflection;
pub(crate) mod regex;
pub(crate) mod strings;
pub(crate) mod url;
pub(crate) mod version;

/// The Go type of a parameter: arguments are checked against it before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ty {
    /// `interface {}`
    Any,
    /// `reflect.Value`: like `Any`, but tells no value from nil.
    Reflect,
    Str,
    Int,
    Uint32,
    Float,
    Bool,
    /// `map[string]interface {}`; a nil one arrives as `Nil`.
    Map,
    /// `[]interface {}`; a nil one arrives as `Nil`.
    List,
    Time,
    Certificate,
    Version,
}

impl Ty {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Any => "interface {}",
            Self::Reflect => "reflect.Value",
            Self::Str => "string",
            Self::Int => "int",
            Self::Uint32 => "uint32",
            Self::Float => "float64",
            Self::Bool => "bool",
            Self::Map => "map[string]interface {}",
            Self::List => "[]interface {}",
            Self::Time => "time.Time",
            Self::Certificate => "sprig.certificate",
            Self::Version => "*semver.Version",
        }
    }
}

/// What a function gives back.
pub(crate) type Out = Result<Value, Fault>;

/// A function's body.
pub(crate) type Body = fn(&mut Eval<'_>, &[Value]) -> Out;

/// A function of templates.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) params: &'static [Ty],
    pub(crate) variadic: Option<Ty>,
    pub(crate) run: Run,
    /// Helm 3 does not know it.
    pub(crate) of_helm_4: bool,
}

/// How a function is called.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    Native(Body),
    /// Evaluates its arguments only up to the first that is false.
    And,
    /// Evaluates its arguments only up to the first that is true.
    Or,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Function {
    pub(crate) const fn new(name: &'static str, params: &'static [Ty], body: Body) -> Self {
        Self { name, params, variadic: None, run: Run::Native(body), of_helm_4: false }
    }

    pub(crate) const fn variadic(name: &'static str, params: &'static [Ty], rest: Ty, body: Body) -> Self {
        Self { name, params, variadic: Some(rest), run: Run::Native(body), of_helm_4: false }
    }

    /// The same, for Helm 4 alone.
    const fn of_helm_4(self) -> Self {
        Self { of_helm_4: true, ..self }
    }

    /// The type of the argument at `index`.
    pub(crate) fn param(&self, index: usize) -> Ty {
        self.params.get(index).copied().or(self.variadic).unwrap_or(Ty::Any)
    }
}

static TABLE: LazyLock<HashMap<&'static str, &'static Function>> = LazyLock::new(|| {
    [
        builtin::FUNCTIONS,
        crypto::FUNCTIONS,
        date::FUNCTIONS,
        dict::FUNCTIONS,
        duration::FUNCTIONS,
        encoding::FUNCTIONS,
        helm::FUNCTIONS,
        list::FUNCTIONS,
        math::FUNCTIONS,
        random::FUNCTIONS,
        reflection::FUNCTIONS,
        regex::FUNCTIONS,
        strings::FUNCTIONS,
        url::FUNCTIONS,
        version::FUNCTIONS,
    ]
    .into_iter()
    .flatten()
    .map(|function| (function.name, function))
    .collect()
});

/// The function of that name.
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    TABLE.get(name).copied()
}

/// The names of all functions of that Helm, sorted.
pub(crate) fn names(helm: HelmVersion) -> Vec<&'static str> {
    let known = TABLE.values().filter(|function| helm == HelmVersion::V4 || !function.of_helm_4);
    let mut names: Vec<_> = known.map(|function| function.name).collect();
    names.sort_unstable();
    names
}

/// The text of an argument that was checked to be a string; bytes that are no UTF-8 are replaced.
pub(crate) fn text(value: &Value) -> std::borrow::Cow<'_, str> {
    match value {
        Value::Str(text) => std::borrow::Cow::Borrowed(text),
        other => lossy(other.bytes().unwrap_or_default()),
    }
}

/// The same of an argument that is given back, as a whole or in part. Bytes that are no UTF-8 are refused: what stood for them
/// would be something else.
pub(crate) fn exact(value: &Value) -> Result<std::borrow::Cow<'_, str>, Fault> {
    match value {
        Value::Str(text) => Ok(std::borrow::Cow::Borrowed(text)),
        other => match std::str::from_utf8(other.bytes().unwrap_or_default()) {
            Ok(text) => Ok(std::borrow::Cow::Borrowed(text)),
            Err(_) => Err("what is given is no text: it is not in UTF-8".into()),
        },
    }
}

/// sprig's `strval`: strings and bytes as they are, everything else as `%v`, of which no more is written than the budget
/// allows.
pub(crate) fn to_text(value: &Value, budget: &mut Budget) -> std::sync::Arc<str> {
    match value {
        Value::Str(text) => text.clone(),
        Value::Raw(bytes) | Value::Bytes(bytes) => {
            budget.text(bytes.len());
            lossy(bytes).into()
        }
        other => super::print::text_within(other, budget).into(),
    }
}
