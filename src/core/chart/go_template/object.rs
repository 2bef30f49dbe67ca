//! Values that are neither scalars nor lists nor maps: structs of Go, files, versions, times.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Zoned;

use super::super::version::Version;
use super::value::{Kind, Value};

/// An object of Go's side of Helm.
#[derive(Debug)]
pub(crate) enum Object {
    Struct(Struct),
    Files(Arc<BTreeMap<Arc<str>, Bytes>>),
    Version(Version),
    Time(Zoned),
    /// Nanoseconds
    Duration(i64),
    /// From 1, January, on
    Month(i64),
    /// From 0, Sunday, on
    Weekday(i64),
}

/// A Go struct.
#[derive(Clone, Debug)]
pub(crate) struct Struct {
    pub(crate) type_name: &'static str,
    pub(crate) pointer: bool,
    pub(crate) fields: Vec<Field>,
    /// As many of the fields are those of a struct that it embeds.
    pub(crate) embedded: usize,
    /// What its `String` method gives, when it has one: only where it was reached by its address, not as an argument.
    pub(crate) display: Option<Arc<str>>,
}

/// A field of a Go struct.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) json: &'static str,
    pub(crate) omit_empty: bool,
    pub(crate) value: Value,
}

impl Field {
    pub(crate) fn new(name: &'static str, json: &'static str, value: Value) -> Self {
        Self { name, json, omit_empty: true, value }
    }

    /// A field that is printed and nothing else: Go does not export it.
    pub(crate) fn hidden(name: &'static str, value: Value) -> Self {
        Self { name, json: "", omit_empty: true, value }
    }

    /// A field without a `json` tag.
    pub(crate) fn plain(name: &'static str, value: Value) -> Self {
        Self { name, json: name, omit_empty: false, value }
    }
}

impl Struct {
    pub(crate) fn new(type_name: &'static str, fields: Vec<Field>) -> Self {
        Self { type_name, pointer: false, fields, embedded: 0, display: None }
    }

    /// The fields but for hidden ones.
    pub(crate) fn exported(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|field| !field.json.is_empty())
    }

    /// The struct that it embeds: a chart's metadata.
    pub(crate) fn inner(&self) -> Self {
        Self::new("chart.Metadata", self.fields[..self.embedded].to_vec())
    }

    pub(crate) fn field(&self, name: &str) -> Option<&Value> {
        self.exported().find(|field| field.name == name).map(|field| &field.value)
    }
}

impl Object {
    /// The object as a function gets it, which has no address: what only an address offers is gone.
    pub(crate) fn by_value(object: &Rc<Self>) -> Value {
        match &**object {
            Self::Struct(inner) if inner.display.is_some() => {
                Value::object(Self::Struct(Struct { display: None, ..inner.clone() }))
            }
            _ => Value::Object(object.clone()),
        }
    }

    pub(crate) fn truth(&self) -> bool {
        match self {
            Self::Struct(_) | Self::Version(_) | Self::Time(_) => true,
            Self::Files(files) => !files.is_empty(),
            Self::Duration(number) | Self::Month(number) | Self::Weekday(number) => *number != 0,
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Struct(inner) if inner.pointer => Kind::Pointer,
            Self::Struct(_) | Self::Time(_) => Kind::Struct,
            Self::Version(_) => Kind::Pointer,
            Self::Files(_) => Kind::Map,
            Self::Duration(_) => Kind::Int64,
            Self::Month(_) | Self::Weekday(_) => Kind::Int,
        }
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Struct(inner) => inner.type_name,
            Self::Files(_) => "engine.files",
            Self::Version(_) => "*semver.Version",
            Self::Time(_) => "time.Time",
            Self::Duration(_) => "time.Duration",
            Self::Month(_) => "time.Month",
            Self::Weekday(_) => "time.Weekday",
        }
    }

    /// Another one of its type, where [`Self::integer`] is one.
    pub(crate) fn numbered(&self, number: i64) -> Self {
        match self {
            Self::Month(_) => Self::Month(number),
            Self::Weekday(_) => Self::Weekday(number),
            _ => Self::Duration(number),
        }
    }

    /// What `cast` converts to a number, which Helm's functions of numbers do to what they are given: a duration it does not know.
    pub(crate) fn cast(&self) -> i64 {
        match self {
            Self::Month(number) | Self::Weekday(number) => *number,
            _ => 0,
        }
    }

    /// The integer that it is, where its type is one with a name.
    pub(crate) fn integer(&self) -> Option<i64> {
        match self {
            Self::Duration(number) | Self::Month(number) | Self::Weekday(number) => Some(*number),
            _ => None,
        }
    }
}

/// A duration as Go prints it: `1h2m3.5s`.
pub(crate) struct GoDuration(pub(crate) i64);

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if nanos == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        if nanos < 1_000_000_000 {
            let (unit, name) = match nanos {
                0..1_000 => (1, "ns"),
                1_000..1_000_000 => (1_000, "µs"),
                _ => (1_000_000, "ms"),
            };
            return write!(f, "{}{name}", Fraction(nanos / unit, nanos % unit, unit));
        }
        let seconds = nanos / 1_000_000_000;
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{}s", Fraction(seconds % 60, nanos % 1_000_000_000, 1_000_000_000))
    }
}

/// Whole part, remainder, unit of the remainder.
struct Fraction(u64, u64, u64);

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.1 == 0 {
            return write!(f, "{}", self.0);
        }
        let width = self.2.ilog10() as usize;
        let digits = format!("{:0width$}", self.1);
        write!(f, "{}.{}", self.0, digits.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_print_as_in_go() {
        for (nanos, text) in [
            (0, "0s"),
            (1_500_000_000, "1.5s"),
            (90_000_000_000, "1m30s"),
            (3_600_000_000_000, "1h0m0s"),
            (1_500, "1.5µs"),
            (-2_000_000, "-2ms"),
        ] {
            assert_eq!(GoDuration(nanos).to_string(), text);
        }
    }
}
