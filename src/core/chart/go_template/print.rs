//! Printing as Go's `fmt` does with `%v`.

use std::fmt::Write as _;

use super::functions::date::{month_name, weekday_name};
use super::json::Budget;
use super::object::{GoDuration, Object, Struct};
use super::value::{Value, lossy};

/// Appends what `{{ value }}` prints.
pub(crate) fn write_action(out: &mut Vec<u8>, value: &Value, budget: &mut Budget) {
    match value {
        Value::Invalid => out.extend_from_slice(b"<no value>"),
        Value::Str(text) => out.extend_from_slice(text.as_bytes()),
        Value::Object(object) => match &**object {
            // Only an action can take the address that a method `String` needs.
            Object::Struct(Struct { display: Some(text), .. }) => out.extend_from_slice(text.as_bytes()),
            // An action follows the pointer.
            Object::Struct(inner) => write_struct(out, inner, 0, budget),
            _ => write(out, value, budget),
        },
        _ => write(out, value, budget),
    }
}

/// Appends `%v` of a value.
pub(crate) fn write(out: &mut Vec<u8>, value: &Value, budget: &mut Budget) {
    write_at(out, value, 0, budget);
}

/// `%v` of a value as text; bytes that are no UTF-8 are replaced.
pub(crate) fn text(value: &Value) -> String {
    text_within(value, &mut Budget::default())
}

/// [`text`] with a bound.
pub(crate) fn text_within(value: &Value, budget: &mut Budget) -> String {
    let mut out = Vec::new();
    write(&mut out, value, budget);
    match String::from_utf8(out) {
        Ok(text) => text,
        Err(error) => lossy(error.as_bytes()).into_owned(),
    }
}

fn write_at(out: &mut Vec<u8>, value: &Value, depth: usize, budget: &mut Budget) {
    use std::io::Write as _;
    if !budget.spend(depth) {
        out.extend_from_slice(b"...");
        return;
    }
    match value {
        Value::Invalid | Value::Nil => out.extend_from_slice(b"<nil>"),
        Value::Bool(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
        Value::Int(value) | Value::Int64(value) => _ = write!(out, "{value}"),
        Value::Uint(value) => _ = write!(out, "{value}"),
        Value::Float(value) => out.extend_from_slice(float(*value).as_bytes()),
        Value::Str(text) => {
            budget.text(text.len());
            out.extend_from_slice(text.as_bytes());
        }
        Value::Raw(bytes) => {
            budget.text(bytes.len());
            out.extend_from_slice(bytes);
        }
        Value::Bytes(bytes) => write_bytes(out, bytes, budget),
        Value::List(list) => {
            out.push(b'[');
            for (index, item) in list.items.iter().enumerate() {
                if index > 0 {
                    out.push(b' ');
                }
                write_at(out, item, depth + 1, budget);
            }
            out.push(b']');
        }
        Value::Map(map) | Value::Values(map) => {
            out.extend_from_slice(b"map[");
            for (index, (key, item)) in map.entries().iter().enumerate() {
                if index > 0 {
                    out.push(b' ');
                }
                budget.text(key.len());
                out.extend_from_slice(key.as_bytes());
                out.push(b':');
                write_at(out, item, depth + 1, budget);
            }
            out.push(b']');
        }
        Value::Object(object) => write_object(out, object, depth, budget),
    }
}

fn write_bytes(out: &mut Vec<u8>, bytes: &[u8], budget: &mut Budget) {
    use std::io::Write as _;
    // A digit and a space, at least.
    budget.text(2 * bytes.len());
    out.push(b'[');
    for (index, byte) in bytes.iter().enumerate() {
        _ = write!(out, "{}{byte}", if index > 0 { " " } else { "" });
    }
    out.push(b']');
}

fn write_struct(out: &mut Vec<u8>, inner: &Struct, depth: usize, budget: &mut Budget) {
    out.push(b'{');
    if inner.embedded > 0 {
        out.push(b'{');
    }
    for (index, field) in inner.fields.iter().enumerate() {
        if inner.embedded > 0 && index == inner.embedded {
            out.push(b'}');
        }
        if index > 0 {
            out.push(b' ');
        }
        write_at(out, &field.value, depth + 1, budget);
    }
    out.push(b'}');
}

fn write_object(out: &mut Vec<u8>, object: &Object, depth: usize, budget: &mut Budget) {
    use std::io::Write as _;
    match object {
        Object::Struct(inner) => {
            if inner.pointer {
                out.push(b'&');
            }
            write_struct(out, inner, depth, budget);
        }
        Object::Files(files) => {
            out.extend_from_slice(b"map[");
            for (index, (name, data)) in files.iter().enumerate() {
                if budget.is_out_of_text() {
                    break;
                }
                if index > 0 {
                    out.push(b' ');
                }
                out.extend_from_slice(name.as_bytes());
                out.push(b':');
                write_bytes(out, data, budget);
            }
            out.push(b']');
        }
        Object::Version(version) => _ = write!(out, "{version}"),
        Object::Time(time) => out.extend_from_slice(super::functions::date::go_string(time).as_bytes()),
        Object::Duration(nanos) => _ = write!(out, "{}", GoDuration(*nanos)),
        Object::Month(number) => out.extend_from_slice(month_name(*number).as_bytes()),
        Object::Weekday(number) => out.extend_from_slice(weekday_name(*number).as_bytes()),
    }
}

/// `%v` of a float64: the shortest digits, with an exponent below 1e-4 and from 1e6 on.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if !(-4..6).contains(&exponent) {
        return exponential(mantissa, exponent);
    }
    format!("{value}")
}

/// `1.5` and 7 as `1.5e+07`: the exponent has a sign and two digits at least.
pub(crate) fn exponential(mantissa: &str, exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// `%q` of a string: Go's `strconv.Quote`.
pub(crate) fn quote(out: &mut String, bytes: &[u8]) {
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            quote_char(out, c, '"');
        }
        for byte in chunk.invalid() {
            _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push('"');
}

/// One character of a quoted string.
pub(crate) fn quote_char(out: &mut String, c: char, delimiter: char) {
    match c {
        '\\' => out.push_str("\\\\"),
        '\u{7}' => out.push_str("\\a"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{b}' => out.push_str("\\v"),
        c if c == delimiter => {
            out.push('\\');
            out.push(c);
        }
        c if is_print(c) => out.push(c),
        c if (c as u32) < 0x80 => _ = write!(out, "\\x{:02x}", c as u32),
        c if (c as u32) < 0x1_0000 => _ = write!(out, "\\u{:04x}", c as u32),
        c => _ = write!(out, "\\U{:08x}", c as u32),
    }
}

/// Go's `unicode.IsPrint`.
pub(crate) fn is_print(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    // `str::escape_debug` leaves exactly the printable characters alone; a combining one only when it isn't first.
    let mut buffer = [b'a'; 5];
    let end = 1 + c.encode_utf8(&mut buffer[1..]).len();
    std::str::from_utf8(&buffer[..end]).is_ok_and(|text| text.escape_debug().nth(1) == Some(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_go() {
        for (value, expected) in [
            (80.0, "80"),
            (999_999.0, "999999"),
            (1_000_000.0, "1e+06"),
            (1_234_567.0, "1.234567e+06"),
            (123_456_789.0, "1.23456789e+08"),
            (1_234_567.5, "1.2345675e+06"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (0.1, "0.1"),
            (1e21, "1e+21"),
            (-0.0, "-0"),
            (100_000.5, "100000.5"),
            (21.0, "21"),
        ] {
            assert_eq!(float(value), expected, "{value}");
        }
    }

    #[test]
    fn strings_are_quoted_as_in_go() {
        let mut out = String::new();
        quote(&mut out, "a\"b\\\n\u{7f}é\u{200b}\u{301}".as_bytes());
        quote(&mut out, b"\xff");
        assert_eq!(out, "\"a\\\"b\\\\\\n\\x7fé\\u200b\u{301}\"\"\\xff\"");
    }
}
