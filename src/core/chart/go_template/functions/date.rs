//! Dates. The local time zone is UTC: a rendering must not depend on where it happens.

use std::borrow::Cow;
use std::fmt::Write as _;

use jiff::civil::{Date, Time};
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp, Zoned};

use super::super::eval::{Eval, Fault};
use super::super::object::{GoDuration, Object};
use super::super::value::Value;
use super::{Function, Out, Ty, text};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("now", &[], |eval, _| Ok(time(now(eval)?))),
    Function::new("date", &[Ty::Str, Ty::Any], |eval, args| in_zone(eval, &text(&args[0]), &args[1], "Local")),
    Function::new("dateInZone", &[Ty::Str, Ty::Any, Ty::Str], |eval, args| {
        in_zone(eval, &text(&args[0]), &args[1], &text(&args[2]))
    }),
    Function::new("date_in_zone", &[Ty::Str, Ty::Any, Ty::Str], |eval, args| {
        in_zone(eval, &text(&args[0]), &args[1], &text(&args[2]))
    }),
    Function::new("htmlDate", &[Ty::Any], |eval, args| in_zone(eval, "2006-01-02", &args[0], "Local")),
    Function::new("htmlDateInZone", &[Ty::Any, Ty::Str], |eval, args| {
        in_zone(eval, "2006-01-02", &args[0], &text(&args[1]))
    }),
    Function::new("dateModify", &[Ty::Str, Ty::Time], |_, args| modify(args, false)),
    Function::new("date_modify", &[Ty::Str, Ty::Time], |_, args| modify(args, false)),
    Function::new("mustDateModify", &[Ty::Str, Ty::Time], |_, args| modify(args, true)),
    Function::new("must_date_modify", &[Ty::Str, Ty::Time], |_, args| modify(args, true)),
    Function::new("toDate", &[Ty::Str, Ty::Str], |_, args| {
        Ok(time(parse(&text(&args[0]), &text(&args[1])).unwrap_or_else(zero)))
    }),
    Function::new("mustToDate", &[Ty::Str, Ty::Str], |_, args| {
        let (layout, source) = (text(&args[0]), text(&args[1]));
        match parse(&layout, &source) {
            Some(parsed) => Ok(time(parsed)),
            None => Err(format!("parsing time {source:?} as {layout:?}: cannot parse").into()),
        }
    }),
    Function::new("unixEpoch", &[Ty::Time], |_, args| {
        Ok(Value::from(as_time(&args[0]).map_or(0, |time| time.timestamp().as_second()).to_string()))
    }),
    Function::new("ago", &[Ty::Any], |eval, args| {
        let then = instant(eval, &args[0])?;
        let nanos = eval.now()?.duration_since(then.timestamp()).as_nanos();
        let seconds = i64::try_from((nanos + nanos.signum() * 500_000_000) / 1_000_000_000).unwrap_or(0);
        Ok(Value::from(GoDuration(seconds.saturating_mul(1_000_000_000)).to_string()))
    }),
    Function::new("duration", &[Ty::Any], |_, args| {
        let seconds = match &args[0] {
            Value::Str(text) => text.parse::<i64>().unwrap_or(0),
            Value::Int64(seconds) => *seconds,
            _ => 0,
        };
        Ok(Value::from(GoDuration(seconds.wrapping_mul(1_000_000_000)).to_string()))
    }),
    Function::new("durationRound", &[Ty::Any], |eval, args| {
        let nanos = match &args[0] {
            Value::Str(text) => parse_duration(text).unwrap_or(0),
            Value::Int64(nanos) => *nanos,
            other => match as_time(other) {
                Some(then) => {
                    i64::try_from(eval.now()?.duration_since(then.timestamp()).as_nanos()).unwrap_or(i64::MAX)
                }
                None => 0,
            },
        };
        Ok(Value::from(rounded(nanos.unsigned_abs())))
    }),
];

const SECOND: u64 = 1_000_000_000;

fn rounded(nanos: u64) -> String {
    let hour = 3600 * SECOND;
    for (unit, name) in [
        (hour * 24 * 365, "y"),
        (hour * 24 * 30, "mo"),
        (hour * 24, "d"),
        (hour, "h"),
        (60 * SECOND, "m"),
        (SECOND, "s"),
    ] {
        if nanos > unit {
            return format!("{}{name}", nanos / unit);
        }
    }
    "0s".into()
}

pub(crate) fn time(time: Zoned) -> Value {
    Value::object(Object::Time(time))
}

fn now(eval: &mut Eval<'_>) -> Result<Zoned, Fault> {
    Ok(eval.now()?.to_zoned(TimeZone::UTC))
}

/// Go's zero time.
fn zero() -> Zoned {
    Timestamp::from_second(-62_135_596_800).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(TimeZone::UTC)
}

pub(crate) fn as_time(value: &Value) -> Option<&Zoned> {
    match value {
        Value::Object(object) => match &**object {
            Object::Time(time) => Some(time),
            _ => None,
        },
        _ => None,
    }
}

/// What sprig takes for a date: a time, seconds since 1970, anything else is now.
fn instant(eval: &mut Eval<'_>, value: &Value) -> Result<Zoned, Fault> {
    if let Some(time) = as_time(value) {
        return Ok(time.clone());
    }
    Ok(match value {
        Value::Int(seconds) | Value::Int64(seconds) => {
            Timestamp::from_second(*seconds).map_or_else(|_| zero(), |time| time.to_zoned(TimeZone::UTC))
        }
        _ => now(eval)?,
    })
}

fn in_zone(eval: &mut Eval<'_>, layout: &str, date: &Value, zone: &str) -> Out {
    let zone = match zone {
        "" | "UTC" | "Local" => TimeZone::UTC,
        name => TimeZone::get(name).unwrap_or(TimeZone::UTC),
    };
    Ok(Value::from(format(&instant(eval, date)?.with_time_zone(zone), layout)))
}

fn modify(args: &[Value], strict: bool) -> Out {
    let source = text(&args[0]);
    match (parse_duration(&source), as_time(&args[1])) {
        (Some(nanos), Some(start)) => match start.checked_add(SignedDuration::from_nanos(nanos)) {
            Ok(moved) => Ok(time(moved)),
            Err(error) => Err(error.to_string().into()),
        },
        (None, _) if strict => Err(format!("time: invalid duration {source:?}").into()),
        _ => Ok(args[1].clone()),
    }
}

/// Go's `time.ParseDuration`.
pub(crate) fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0_i128;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, behind) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let end = behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        let unit: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        total = total.checked_add(whole.checked_mul(unit)?)?;
        let fraction = &fraction[..fraction.len().min(18)];
        if !fraction.is_empty() {
            let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
            total = total.checked_add(fraction.parse::<i128>().ok()?.checked_mul(unit)? / scale)?;
        }
        rest = behind;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// The parts that Go's layouts are made of; the longer of two that begin alike comes first.
const PARTS: [&str; 33] = [
    "January",
    "Jan",
    "Monday",
    "Mon",
    "MST",
    "2006",
    "-07:00:00",
    "-070000",
    "-07:00",
    "-0700",
    "-07",
    "Z07:00:00",
    "Z070000",
    "Z07:00",
    "Z0700",
    "Z07",
    "002",
    "01",
    "02",
    "03",
    "04",
    "05",
    "06",
    "15",
    "PM",
    "pm",
    "__2",
    "_2",
    "1",
    "2",
    "3",
    "4",
    "5",
];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The English name of a month, counted from 1, as Go prints it.
pub(crate) fn month_name(number: i64) -> Cow<'static, str> {
    let place = number.checked_sub(1).and_then(|place| usize::try_from(place).ok());
    let name = place.and_then(|place| MONTHS.get(place));
    name.map_or_else(|| Cow::Owned(format!("%!Month({number})")), |name| Cow::Borrowed(*name))
}

/// The English name of a day of the week, counted from 0, as Go prints it.
pub(crate) fn weekday_name(number: i64) -> Cow<'static, str> {
    let name = usize::try_from(number).ok().and_then(|at| DAYS.get(at));
    name.map_or_else(|| Cow::Owned(format!("%!Weekday({number})")), |name| Cow::Borrowed(*name))
}

/// The next part of a layout: the text before it, the part, the text behind it.
fn next_part(layout: &str) -> (&str, &str, &str) {
    for (at, _) in layout.char_indices() {
        let rest = &layout[at..];
        if let Some(part) = fraction_part(layout, at) {
            return (&layout[..at], part, &rest[part.len()..]);
        }
        for part in PARTS {
            if let Some(behind) = rest.strip_prefix(part) {
                // `January` is a month, `Janet` is not; `_2006` is `_` and a year.
                if part == "Jan" && behind.starts_with(|c: char| c.is_ascii_lowercase())
                    || part == "Mon" && behind.starts_with(|c: char| c.is_ascii_lowercase())
                    || part == "_2" && rest.starts_with("_2006")
                {
                    continue;
                }
                return (&layout[..at], part, behind);
            }
        }
    }
    (layout, "", "")
}

/// `.000` or `.999` behind the seconds.
fn fraction_part(layout: &str, at: usize) -> Option<&str> {
    let rest = &layout[at..];
    let digit = match rest.as_bytes() {
        [b'.' | b',', digit @ (b'0' | b'9'), ..] => *digit,
        _ => return None,
    };
    let end = 1 + rest.as_bytes()[1..].iter().take_while(|byte| **byte == digit).count();
    (!rest.as_bytes().get(end).is_some_and(u8::is_ascii_digit)).then(|| &rest[..end])
}

/// Go's `Time.Format`.
pub(crate) fn format(time: &Zoned, layout: &str) -> String {
    let mut out = String::new();
    let mut rest = layout;
    loop {
        let (before, part, behind) = next_part(rest);
        out.push_str(before);
        if part.is_empty() {
            return out;
        }
        write_part(&mut out, time, part);
        rest = behind;
    }
}

fn write_part(out: &mut String, time: &Zoned, part: &str) {
    let month = MONTHS[usize::try_from(time.month() - 1).unwrap_or(0) % 12];
    let day = DAYS[usize::try_from(time.weekday().to_sunday_zero_offset()).unwrap_or(0) % 7];
    let hour12 = if time.hour() % 12 == 0 { 12 } else { time.hour() % 12 };
    let offset = time.offset().seconds();
    _ = match part {
        "January" => write!(out, "{month}"),
        "Jan" => write!(out, "{}", &month[..3]),
        "Monday" => write!(out, "{day}"),
        "Mon" => write!(out, "{}", &day[..3]),
        "MST" => write!(out, "{}", zone_name(time)),
        "2006" => write!(out, "{:04}", time.year()),
        "06" => write!(out, "{:02}", time.year().rem_euclid(100)),
        "01" => write!(out, "{:02}", time.month()),
        "1" => write!(out, "{}", time.month()),
        "02" => write!(out, "{:02}", time.day()),
        "_2" => write!(out, "{:2}", time.day()),
        "2" => write!(out, "{}", time.day()),
        "002" => write!(out, "{:03}", time.day_of_year()),
        "__2" => write!(out, "{:3}", time.day_of_year()),
        "15" => write!(out, "{:02}", time.hour()),
        "03" => write!(out, "{hour12:02}"),
        "3" => write!(out, "{hour12}"),
        "04" => write!(out, "{:02}", time.minute()),
        "4" => write!(out, "{}", time.minute()),
        "05" => write!(out, "{:02}", time.second()),
        "5" => write!(out, "{}", time.second()),
        "PM" => write!(out, "{}", if time.hour() >= 12 { "PM" } else { "AM" }),
        "pm" => write!(out, "{}", if time.hour() >= 12 { "pm" } else { "am" }),
        _ if part.starts_with('Z') && offset == 0 => write!(out, "Z"),
        _ if part.starts_with(['Z', '-']) => {
            let sign = if offset < 0 { '-' } else { '+' };
            let offset = offset.unsigned_abs();
            let (hours, minutes, seconds) = (offset / 3600, offset / 60 % 60, offset % 60);
            match &part[1..] {
                "07" => write!(out, "{sign}{hours:02}"),
                "0700" => write!(out, "{sign}{hours:02}{minutes:02}"),
                "07:00" => write!(out, "{sign}{hours:02}:{minutes:02}"),
                "070000" => write!(out, "{sign}{hours:02}{minutes:02}{seconds:02}"),
                _ => write!(out, "{sign}{hours:02}:{minutes:02}:{seconds:02}"),
            }
        }
        fraction => {
            let digits = format!("{:09}", time.subsec_nanosecond());
            let digits = &digits[..(fraction.len() - 1).min(9)];
            if fraction.as_bytes().get(1) == Some(&b'0') {
                write!(out, "{}{digits}", &fraction[..1])
            } else {
                let digits = digits.trim_end_matches('0');
                if digits.is_empty() { Ok(()) } else { write!(out, "{}{digits}", &fraction[..1]) }
            }
        }
    };
}

fn zone_name(time: &Zoned) -> String {
    let name = time.time_zone().to_offset_info(time.timestamp()).abbreviation().to_owned();
    let offset = time.offset().seconds();
    if name.is_empty() {
        return "UTC".into();
    }
    // An offset without a name, as it is read from a text.
    if offset != 0 && time.time_zone().iana_name().is_none() {
        let minutes = offset.unsigned_abs() / 60;
        return format!("{}{:02}{:02}", if offset < 0 { '-' } else { '+' }, minutes / 60, minutes % 60);
    }
    name
}

/// Go's `Time.String`.
pub(crate) fn go_string(time: &Zoned) -> String {
    format(time, "2006-01-02 15:04:05.999999999 -0700 MST")
}

/// Go's `time.RFC3339Nano`.
pub(crate) fn rfc3339_nano(time: &Zoned) -> String {
    format(time, "2006-01-02T15:04:05.999999999Z07:00")
}

/// Go's `time.ParseInLocation` with UTC as the location.
#[allow(clippy::too_many_lines, reason = "one arm for each part of a layout")]
fn parse(layout: &str, source: &str) -> Option<Zoned> {
    let (mut year, mut month, mut day) = (0_i16, 1_i8, 1_i8);
    let mut day_of_year = None;
    let (mut hour, mut minute, mut second, mut nanos) = (0_i8, 0_i8, 0_i8, 0_i32);
    let (mut afternoon, mut twelve) = (None, false);
    let mut offset = 0_i32;
    let (mut layout, mut rest) = (layout, source);
    loop {
        let (before, part, behind) = next_part(layout);
        rest = rest.strip_prefix(before)?;
        layout = behind;
        match part {
            "" => break,
            "January" | "Jan" => {
                let short = part == "Jan";
                let index = MONTHS.iter().position(|name| begins(rest, if short { &name[..3] } else { name }))?;
                rest = &rest[if short { 3 } else { MONTHS[index].len() }..];
                month = i8::try_from(index).ok()? + 1;
            }
            "Monday" | "Mon" => {
                let short = part == "Mon";
                let name = DAYS.iter().find(|name| begins(rest, if short { &name[..3] } else { name }))?;
                rest = &rest[if short { 3 } else { name.len() }..];
            }
            "MST" => {
                let end = rest.find(|c: char| !c.is_ascii_uppercase()).unwrap_or(rest.len());
                if end < 3 {
                    return None;
                }
                rest = &rest[end..];
            }
            "2006" => year = i16::try_from(number(&mut rest, 4, 4)?).ok()?,
            "06" => {
                let short = i16::try_from(number(&mut rest, 2, 2)?).ok()?;
                year = if short >= 69 { 1900 + short } else { 2000 + short };
            }
            "01" => month = i8::try_from(number(&mut rest, 2, 2)?).ok()?,
            "1" => month = i8::try_from(number(&mut rest, 1, 2)?).ok()?,
            "02" => day = i8::try_from(number(&mut rest, 2, 2)?).ok()?,
            "2" | "_2" => {
                rest = if part == "_2" { rest.strip_prefix(' ').unwrap_or(rest) } else { rest };
                day = i8::try_from(number(&mut rest, 1, 2)?).ok()?;
            }
            "002" => day_of_year = Some(i16::try_from(number(&mut rest, 3, 3)?).ok()?),
            "15" => hour = i8::try_from(number(&mut rest, 1, 2)?).ok()?,
            "03" | "3" => {
                hour = i8::try_from(number(&mut rest, if part == "3" { 1 } else { 2 }, 2)?).ok()?;
                twelve = true;
                if hour > 12 {
                    return None;
                }
            }
            "04" | "4" => minute = i8::try_from(number(&mut rest, if part == "4" { 1 } else { 2 }, 2)?).ok()?,
            "05" | "5" => {
                second = i8::try_from(number(&mut rest, if part == "5" { 1 } else { 2 }, 2)?).ok()?;
                // A fraction is read even if the layout has none.
                if rest.starts_with(['.', ',']) && fraction_part(layout, 0).is_none() {
                    nanos = fraction(&mut rest).unwrap_or(0);
                }
            }
            "PM" | "pm" => {
                let upper = part == "PM";
                afternoon = Some(match rest.get(..2)? {
                    "PM" if upper => true,
                    "AM" if upper => false,
                    "pm" if !upper => true,
                    "am" if !upper => false,
                    _ => return None,
                });
                rest = &rest[2..];
            }
            _ if part.starts_with('Z') && rest.starts_with('Z') => rest = &rest[1..],
            _ if part.starts_with(['Z', '-']) => {
                let sign = if rest.starts_with('-') { -1 } else { 1 };
                rest = rest.strip_prefix(['+', '-'])?;
                let mut seconds = 0;
                for (index, unit) in [3600, 60, 1].into_iter().enumerate().take(part.matches('0').count().div_ceil(2)) {
                    if index > 0 && part.contains(':') {
                        rest = rest.strip_prefix(':')?;
                    }
                    let number = number(&mut rest, 2, 2)?;
                    if number > if unit == 3600 { 24 } else { 60 } {
                        return None;
                    }
                    seconds += number * unit;
                }
                offset = sign * seconds;
            }
            wanted => match fraction(&mut rest) {
                Some(read) => nanos = read,
                None if wanted.as_bytes().get(1) == Some(&b'9') => {}
                None => return None,
            },
        }
    }
    if !rest.is_empty() {
        return None;
    }
    if twelve || afternoon.is_some() {
        match afternoon {
            Some(true) if hour < 12 => hour += 12,
            Some(false) if hour == 12 => hour = 0,
            _ => {}
        }
    }
    let mut date = Date::new(year, month, day).ok()?;
    if let Some(day) = day_of_year {
        date = date.with().day_of_year(day).build().ok()?;
    }
    let zone = if offset == 0 { TimeZone::UTC } else { TimeZone::fixed(Offset::from_seconds(offset).ok()?) };
    date.to_datetime(Time::new(hour, minute, second, nanos).ok()?).to_zoned(zone).ok()
}

/// Whether a text begins with a name, in letters of any case.
fn begins(text: &str, name: &str) -> bool {
    text.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name))
}

fn number(rest: &mut &str, least: usize, most: usize) -> Option<i32> {
    let digits = rest.bytes().take(most).take_while(u8::is_ascii_digit).count();
    if digits < least {
        return None;
    }
    let (number, behind) = rest.split_at(digits);
    *rest = behind;
    number.parse().ok()
}

fn fraction(rest: &mut &str) -> Option<i32> {
    let behind = rest.strip_prefix(['.', ','])?;
    let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return None;
    }
    let text = format!("{:0<9}", &behind[..digits.min(9)]);
    *rest = &behind[digits..];
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_print_as_in_go() {
        let time = parse("2006-01-02T15:04:05Z07:00", "2024-02-09T13:04:05.120+01:00").unwrap();
        for (layout, text) in [
            ("2006-01-02", "2024-02-09"),
            ("Mon Jan _2 15:04:05 2006", "Fri Feb  9 13:04:05 2024"),
            ("Monday, 02-Jan-06 3:04PM", "Friday, 09-Feb-24 1:04PM"),
            ("2006-01-02T15:04:05Z07:00", "2024-02-09T13:04:05+01:00"),
            ("15:04:05.000", "13:04:05.120"),
            ("15:04:05.999", "13:04:05.12"),
            ("20060102150405", "20240209130405"),
            ("002", "040"),
        ] {
            assert_eq!(format(&time, layout), text, "{layout}");
        }
    }

    #[test]
    fn durations_are_read_as_in_go() {
        for (text, nanos) in [
            ("1h30m", Some(5_400_000_000_000)),
            ("-1.5h", Some(-5_400_000_000_000)),
            ("100ms", Some(100_000_000)),
            ("1d", None),
            ("", None),
            ("0", Some(0)),
            (".5s", Some(500_000_000)),
        ] {
            assert_eq!(parse_duration(text), nanos, "{text}");
        }
    }
}
