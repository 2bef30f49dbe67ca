//! Methods of the objects that Helm hands to templates. The receiver is the first argument.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::super::version::Version;
use super::super::files;
use super::super::glob::Glob;
use super::super::object::Object;
use super::super::print;
use super::super::value::{ListType, Value};
use super::dict::map;
use super::duration::units;
use super::math::int;
use super::{Function, Out, Ty, date, text};

/// The method of that name.
pub(crate) fn find(receiver: &Value, name: &str) -> Option<&'static Function> {
    let methods = match receiver {
        Value::Values(_) => VALUES,
        Value::List(list) if list.ty == ListType::Versions => VERSIONS,
        Value::Object(object) => match &**object {
            Object::Files(_) => FILES,
            Object::Version(_) => VERSION,
            Object::Time(_) => TIME,
            Object::Duration(_) => DURATION,
            Object::Month(_) | Object::Weekday(_) => NAMED,
            // Its methods want its address.
            Object::Struct(inner) if inner.display.is_some() => KUBE_VERSION,
            Object::Struct(inner) if inner.type_name == "*chartutil.Capabilities" => CAPABILITIES,
            Object::Struct(_) => &[],
        },
        _ => &[],
    };
    methods.iter().find(|method| method.name == name)
}

const VALUES: &[Function] = &[
    Function::new("AsMap", &[Ty::Reflect], |_, args| match &args[0] {
        Value::Values(map) => Ok(Value::Map(map.clone())),
        other => Ok(other.clone()),
    }),
    Function::new("YAML", &[Ty::Reflect], |eval, args| {
        let mut budget = eval.budget();
        let json = super::super::json::to_json_within(&args[0], &mut budget).unwrap_or_default();
        eval.within(&budget)?;
        Ok(Value::from(crate::core::yaml::to_string(&json)))
    }),
    Function::new("Table", &[Ty::Reflect, Ty::Str], |_, args| {
        let mut at = args[0].clone();
        for name in text(&args[1]).split('.') {
            at = match map(&at).and_then(|map| map.get(name)) {
                Some(Value::Map(table) | Value::Values(table)) => Value::Values(table),
                _ => return Err(format!("{name:?} is not a table").into()),
            };
        }
        Ok(at)
    }),
    Function::new("PathValue", &[Ty::Reflect, Ty::Str], |_, args| {
        let path = text(&args[1]);
        let mut at = args[0].clone();
        for name in path.split('.') {
            at = match map(&at).and_then(|map| map.get(name)) {
                Some(value) => value,
                None => return Err(format!("{name:?} is not a value").into()),
            };
        }
        match at {
            Value::Map(_) => Err(format!("{:?} is not a value", path.rsplit('.').next().unwrap_or_default()).into()),
            value => Ok(value),
        }
    }),
];

const VERSIONS: &[Function] = &[Function::new("Has", &[Ty::Reflect, Ty::Str], |_, args| {
    let wanted = args[1].bytes();
    Ok(Value::Bool(matches!(&args[0], Value::List(list) if list.items.iter().any(|item| item.bytes() == wanted))))
})];

fn field(args: &[Value], name: &str) -> Out {
    match &args[0] {
        Value::Object(object) => match &**object {
            Object::Struct(inner) => Ok(inner.field(name).cloned().unwrap_or_default()),
            _ => Ok(Value::Invalid),
        },
        _ => Ok(Value::Invalid),
    }
}

fn display(value: &Value) -> Out {
    match value {
        Value::Object(object) if let Object::Struct(inner) = &**object => {
            Ok(inner.display.clone().map_or(Value::Invalid, Value::Str))
        }
        _ => Ok(Value::Invalid),
    }
}

const KUBE_VERSION: &[Function] = &[
    Function::new("String", &[Ty::Reflect], |_, args| display(&args[0])),
    Function::new("GitVersion", &[Ty::Reflect], |_, args| field(args, "Version")),
];

const CAPABILITIES: &[Function] = &[Function::new("Copy", &[Ty::Reflect], |_, args| Ok(args[0].clone()))];

fn file(args: &[Value]) -> Option<&bytes::Bytes> {
    match (&args[0], args.get(1)) {
        (Value::Object(object), Some(name)) => match &**object {
            Object::Files(files) => files.get(&*text(name)),
            _ => None,
        },
        _ => None,
    }
}

fn files(args: &[Value]) -> Option<&BTreeMap<Arc<str>, bytes::Bytes>> {
    match &args[0] {
        Value::Object(object) => match &**object {
            Object::Files(files) => Some(files),
            _ => None,
        },
        _ => None,
    }
}

const FILES: &[Function] = &[
    Function::new("Get", &[Ty::Reflect, Ty::Str], |_, args| {
        Ok(Value::from_bytes(file(args).map(|data| data.to_vec()).unwrap_or_default()))
    }),
    Function::new("GetBytes", &[Ty::Reflect, Ty::Str], |_, args| {
        Ok(Value::Bytes(file(args).map(std::convert::AsRef::as_ref).unwrap_or_default().into()))
    }),
    Function::new("Lines", &[Ty::Reflect, Ty::Str], |eval, args| {
        let data = file(args).map(std::convert::AsRef::as_ref).unwrap_or_default();
        if data.is_empty() {
            return Ok(Value::strings(Vec::<Value>::new()));
        }
        let data = data.strip_suffix(b"\n").unwrap_or(data);
        eval.texts(data.split(|byte| *byte == b'\n').count(), data.len())?;
        Ok(Value::strings(data.split(|byte| *byte == b'\n').map(|line| Value::from_bytes(line.to_vec()))))
    }),
    Function::new("Glob", &[Ty::Reflect, Ty::Str], |eval, args| {
        let pattern = text(&args[1]);
        // Each of its parts is held against each place of each path.
        eval.fits(pattern.len().saturating_mul(1 << 13))?;
        let glob = Glob::new(&pattern);
        let mut found = BTreeMap::new();
        for (name, data) in files(args).into_iter().flatten() {
            eval.go_on()?;
            if glob.matches(name) {
                found.insert(name.clone(), data.clone());
            }
        }
        eval.texts(found.len(), 0)?;
        Ok(Value::object(Object::Files(Arc::new(found))))
    }),
    Function::new("AsConfig", &[Ty::Reflect], |eval, args| {
        eval.fits(files(args).map_or(0, |files| files.values().map(bytes::Bytes::len).sum()))?;
        Ok(Value::from(files(args).map_or_else(String::new, files::as_config)))
    }),
    Function::new("AsSecrets", &[Ty::Reflect], |eval, args| {
        eval.fits(files(args).map_or(0, |files| files.values().map(bytes::Bytes::len).sum()))?;
        Ok(Value::from(files(args).map_or_else(String::new, files::as_secrets)))
    }),
];

fn version(value: &Value) -> Result<&Version, String> {
    match value {
        Value::Object(object) => match &**object {
            Object::Version(version) => Ok(version),
            _ => Err("not a version".into()),
        },
        _ => Err("invalid memory address or nil pointer dereference".into()),
    }
}

fn compared(args: &[Value], test: fn(std::cmp::Ordering) -> bool) -> Out {
    Ok(Value::Bool(test(version(&args[0])?.compare(version(&args[1])?))))
}

fn next(args: &[Value], (major, minor, patch): (u64, u64, u64)) -> Out {
    let own = version(&args[0])?;
    // A pre-release comes before its release: incrementing the patch gives the release.
    let patch = if patch > own.patch && !own.pre.is_empty() { own.patch } else { patch };
    let original = if own.original.starts_with('v') { "v" } else { "" };
    Ok(Value::object(Object::Version(Version {
        major,
        minor,
        patch,
        pre: String::new(),
        metadata: String::new(),
        original: format!("{original}{major}.{minor}.{patch}"),
    })))
}

const VERSION: &[Function] = &[
    Function::new("Major", &[Ty::Reflect], |_, args| Ok(Value::Uint(version(&args[0])?.major))),
    Function::new("Minor", &[Ty::Reflect], |_, args| Ok(Value::Uint(version(&args[0])?.minor))),
    Function::new("Patch", &[Ty::Reflect], |_, args| Ok(Value::Uint(version(&args[0])?.patch))),
    Function::new("Prerelease", &[Ty::Reflect], |_, args| Ok(Value::from(version(&args[0])?.pre.as_str()))),
    Function::new("Metadata", &[Ty::Reflect], |_, args| Ok(Value::from(version(&args[0])?.metadata.as_str()))),
    Function::new("Original", &[Ty::Reflect], |_, args| Ok(Value::from(version(&args[0])?.original.as_str()))),
    Function::new("String", &[Ty::Reflect], |_, args| Ok(Value::from(version(&args[0])?.to_string()))),
    Function::new("Compare", &[Ty::Reflect, Ty::Version], |_, args| {
        Ok(Value::Int(version(&args[0])?.compare(version(&args[1])?) as i64))
    }),
    Function::new("Equal", &[Ty::Reflect, Ty::Version], |_, args| compared(args, std::cmp::Ordering::is_eq)),
    Function::new("LessThan", &[Ty::Reflect, Ty::Version], |_, args| compared(args, std::cmp::Ordering::is_lt)),
    Function::new("LessThanEqual", &[Ty::Reflect, Ty::Version], |_, args| compared(args, std::cmp::Ordering::is_le)),
    Function::new("GreaterThan", &[Ty::Reflect, Ty::Version], |_, args| compared(args, std::cmp::Ordering::is_gt)),
    Function::new("GreaterThanEqual", &[Ty::Reflect, Ty::Version], |_, args| compared(args, std::cmp::Ordering::is_ge)),
    Function::new("IncMajor", &[Ty::Reflect], |_, args| {
        let own = version(&args[0])?;
        next(args, (own.major.saturating_add(1), 0, 0))
    }),
    Function::new("IncMinor", &[Ty::Reflect], |_, args| {
        let own = version(&args[0])?;
        next(args, (own.major, own.minor.saturating_add(1), 0))
    }),
    Function::new("IncPatch", &[Ty::Reflect], |_, args| {
        let own = version(&args[0])?;
        next(args, (own.major, own.minor, own.patch.saturating_add(1)))
    }),
];

fn at(args: &[Value], read: impl FnOnce(&jiff::Zoned) -> i64) -> Out {
    Ok(Value::Int(date::as_time(&args[0]).map_or(0, read)))
}

fn at64(args: &[Value], read: impl FnOnce(&jiff::Zoned) -> i64) -> Out {
    Ok(Value::Int64(date::as_time(&args[0]).map_or(0, read)))
}

fn times(args: &[Value], test: fn(std::cmp::Ordering) -> bool) -> Out {
    let ordering =
        date::as_time(&args[0]).map(jiff::Zoned::timestamp).cmp(&date::as_time(&args[1]).map(jiff::Zoned::timestamp));
    Ok(Value::Bool(test(ordering)))
}

const TIME: &[Function] = &[
    Function::new("Format", &[Ty::Reflect, Ty::Str], |_, args| {
        Ok(Value::from(date::as_time(&args[0]).map_or_else(String::new, |time| date::format(time, &text(&args[1])))))
    }),
    Function::new("String", &[Ty::Reflect], |_, args| Ok(Value::from(print::text(&args[0])))),
    Function::new("Unix", &[Ty::Reflect], |_, args| at64(args, |time| time.timestamp().as_second())),
    Function::new("UnixMilli", &[Ty::Reflect], |_, args| at64(args, |time| time.timestamp().as_millisecond())),
    Function::new("UnixMicro", &[Ty::Reflect], |_, args| at64(args, |time| time.timestamp().as_microsecond())),
    Function::new("UnixNano", &[Ty::Reflect], |_, args| {
        at64(args, |time| i64::try_from(time.timestamp().as_nanosecond()).unwrap_or(i64::MAX))
    }),
    Function::new("Year", &[Ty::Reflect], |_, args| at(args, |time| time.year().into())),
    Function::new("Day", &[Ty::Reflect], |_, args| at(args, |time| time.day().into())),
    Function::new("YearDay", &[Ty::Reflect], |_, args| at(args, |time| time.day_of_year().into())),
    Function::new("Hour", &[Ty::Reflect], |_, args| at(args, |time| time.hour().into())),
    Function::new("Minute", &[Ty::Reflect], |_, args| at(args, |time| time.minute().into())),
    Function::new("Second", &[Ty::Reflect], |_, args| at(args, |time| time.second().into())),
    Function::new("Nanosecond", &[Ty::Reflect], |_, args| at(args, |time| time.subsec_nanosecond().into())),
    Function::new("Month", &[Ty::Reflect], |_, args| {
        Ok(date::as_time(&args[0]).map_or(Value::Invalid, |time| Value::object(Object::Month(time.month().into()))))
    }),
    Function::new("Weekday", &[Ty::Reflect], |_, args| {
        let weekday = |time: &jiff::Zoned| Object::Weekday(time.weekday().to_sunday_zero_offset().into());
        Ok(date::as_time(&args[0]).map_or(Value::Invalid, |time| Value::object(weekday(time))))
    }),
    Function::new("UTC", &[Ty::Reflect], |_, args| Ok(in_utc(&args[0]))),
    Function::new("Local", &[Ty::Reflect], |_, args| Ok(in_utc(&args[0]))),
    Function::new("IsZero", &[Ty::Reflect], |_, args| {
        Ok(Value::Bool(date::as_time(&args[0]).is_some_and(|time| time.timestamp().as_second() == -62_135_596_800)))
    }),
    // Helm's times are in UTC, or in a zone that is named.
    Function::new("IsDST", &[Ty::Reflect], |_, args| {
        let info = |time: &jiff::Zoned| time.time_zone().to_offset_info(time.timestamp()).dst().is_dst();
        Ok(Value::Bool(date::as_time(&args[0]).is_some_and(info)))
    }),
    Function::new("Compare", &[Ty::Reflect, Ty::Time], |_, args| {
        let ordering = date::as_time(&args[0])
            .map(jiff::Zoned::timestamp)
            .cmp(&date::as_time(&args[1]).map(jiff::Zoned::timestamp));
        Ok(Value::Int(ordering as i64))
    }),
    Function::new("Before", &[Ty::Reflect, Ty::Time], |_, args| times(args, std::cmp::Ordering::is_lt)),
    Function::new("After", &[Ty::Reflect, Ty::Time], |_, args| times(args, std::cmp::Ordering::is_gt)),
    Function::new("Equal", &[Ty::Reflect, Ty::Time], |_, args| times(args, std::cmp::Ordering::is_eq)),
    Function::new("AddDate", &[Ty::Reflect, Ty::Int, Ty::Int, Ty::Int], |_, args| {
        let Some(time) = date::as_time(&args[0]) else { return Ok(Value::Invalid) };
        let span = jiff::Span::new()
            .try_years(int(&args[1]))
            .and_then(|span| span.try_months(int(&args[2])))
            .and_then(|span| span.try_days(int(&args[3])))
            .map_err(|error| error.to_string())?;
        Ok(date::time(time.checked_add(span).map_err(|error| error.to_string())?))
    }),
    Function::new("Sub", &[Ty::Reflect, Ty::Time], |_, args| {
        let (Some(a), Some(b)) = (date::as_time(&args[0]), date::as_time(&args[1])) else { return Ok(Value::Invalid) };
        let nanos = a.timestamp().duration_since(b.timestamp()).as_nanos();
        Ok(Value::object(Object::Duration(i64::try_from(nanos).unwrap_or(i64::MAX))))
    }),
];

fn in_utc(value: &Value) -> Value {
    date::as_time(value).map_or(Value::Invalid, |time| date::time(time.with_time_zone(jiff::tz::TimeZone::UTC)))
}

fn nanos(value: &Value) -> i64 {
    match value {
        Value::Object(object) => match **object {
            Object::Duration(nanos) => nanos,
            _ => 0,
        },
        _ => 0,
    }
}

fn float(args: &[Value], seconds: i64) -> Out {
    Ok(Value::Float(units(nanos(&args[0]), seconds * 1_000_000_000)))
}

/// Of months and days of the week.
const NAMED: &[Function] = &[Function::new("String", &[Ty::Reflect], |_, args| Ok(Value::from(print::text(&args[0]))))];

const DURATION: &[Function] = &[
    Function::new("Hours", &[Ty::Reflect], |_, args| float(args, 3600)),
    Function::new("Minutes", &[Ty::Reflect], |_, args| float(args, 60)),
    Function::new("Seconds", &[Ty::Reflect], |_, args| float(args, 1)),
    Function::new("Milliseconds", &[Ty::Reflect], |_, args| Ok(Value::Int64(nanos(&args[0]) / 1_000_000))),
    Function::new("Nanoseconds", &[Ty::Reflect], |_, args| Ok(Value::Int64(nanos(&args[0])))),
    Function::new("String", &[Ty::Reflect], |_, args| Ok(Value::from(print::text(&args[0])))),
    Function::new("Abs", &[Ty::Reflect], |_, args| {
        Ok(Value::object(Object::Duration(nanos(&args[0]).checked_abs().unwrap_or(i64::MAX))))
    }),
];
