//! What a plain scalar means in YAML 1.1, as `resolve.go` of `go.yaml.in/yaml/v2` has it.

use super::time::is_timestamp;

/// The meaning of a scalar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    /// An integer that is larger than the largest `i64`.
    Uint(u64),
    Float(f64),
    /// Read as the string it is.
    Timestamp,
    String,
}

/// What `text` without quotes and without a tag means.
pub(super) fn resolve(text: &str) -> Scalar {
    resolve_as(text, true)
}

/// [`resolve`]; dates are looked for only `with_timestamps`, since a tag such as `!!int` rules them out.
pub(super) fn resolve_as(text: &str, with_timestamps: bool) -> Scalar {
    let Some(first) = text.bytes().next() else { return Scalar::Null };
    match first {
        b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~' => word(text),
        b'.' => match text {
            ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
            ".inf" | ".Inf" | ".INF" => Scalar::Float(f64::INFINITY),
            _ => dotted(text).map_or(Scalar::String, Scalar::Float),
        },
        b'+' | b'-' | b'0'..=b'9' => match text {
            "+.inf" | "+.Inf" | "+.INF" => Scalar::Float(f64::INFINITY),
            "-.inf" | "-.Inf" | "-.INF" => Scalar::Float(f64::NEG_INFINITY),
            _ if with_timestamps && is_timestamp(text) => Scalar::Timestamp,
            _ => number(text),
        },
        _ => Scalar::String,
    }
}

fn word(text: &str) -> Scalar {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Scalar::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Scalar::Bool(false),
        "~" | "null" | "Null" | "NULL" => Scalar::Null,
        _ => Scalar::String,
    }
}

fn number(text: &str) -> Scalar {
    let without;
    let text = if text.contains('_') {
        without = text.replace('_', "");
        &without
    } else {
        text
    };
    let (negative, magnitude) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if let Some(magnitude) = unsigned(magnitude) {
        if negative {
            if let Some(integer) = 0_i64.checked_sub_unsigned(magnitude) {
                return Scalar::Int(integer);
            }
        } else if let Ok(integer) = i64::try_from(magnitude) {
            return Scalar::Int(integer);
        } else if !text.starts_with('+') {
            // Go's ParseUint knows no sign.
            return Scalar::Uint(magnitude);
        }
    }
    if is_decimal(magnitude) {
        return float(text).map_or(Scalar::String, Scalar::Float);
    }
    // A quirk: after `0b` Go's reader takes a sign again.
    let binary = text.strip_prefix("0b").filter(|rest| rest.starts_with(['+', '-']));
    match binary.and_then(|rest| i64::from_str_radix(rest, 2).ok()) {
        Some(integer) => Scalar::Int(integer),
        None => quirky_negative_binary(text).map_or(Scalar::String, Scalar::Int),
    }
}

/// `-0b` takes the digits as they are: the smallest `i64` is in range there too.
fn quirky_negative_binary(text: &str) -> Option<i64> {
    let digits = text.strip_prefix("-0b").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    i64::from_str_radix(&format!("-{digits}"), 2).ok()
}

/// An integer without a sign in any of Go's bases: `0x1F`, `0o17`, `0b1`, `017`, `17`.
fn unsigned(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let (digits, radix) = match bytes {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', b'o' | b'O', ..] => (&text[2..], 8),
        [b'0', b'b' | b'B', ..] => (&text[2..], 2),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    // from_str_radix takes a sign of its own.
    let first = digits.bytes().next()?;
    if first == b'+' || first == b'-' {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// Whether the text (its sign taken off) is `.5`, `1`, `1.`, `1.5` with an exponent or without.
fn is_decimal(text: &str) -> bool {
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mantissa = match mantissa.split_once('.') {
        Some(("", fraction)) => digits(fraction),
        Some((whole, fraction)) => digits(whole) && (fraction.is_empty() || digits(fraction)),
        None => digits(mantissa),
    };
    mantissa && exponent.is_none_or(|exponent| digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent)))
}

/// A decimal float; `None` if it is too large, which is a string to Go.
fn float(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// What starts with a dot goes to Go's `ParseFloat` as it is, underscores between digits included.
fn dotted(text: &str) -> Option<f64> {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let misplaced = |at: usize| bytes[at] == b'_' && !(at > 0 && digit(at - 1) && digit(at + 1));
    if (0..bytes.len()).any(misplaced) {
        return None;
    }
    let text = text.replace('_', "");
    if is_decimal(&text) { float(&text) } else { None }
}

/// Whether the text is a number in base 60 (`1:20`), as YAML 1.1 has them. Go doesn't read those, but writes strings
/// that look like them in quotes.
pub(super) fn is_base_60(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !text.as_bytes().first().is_some_and(u8::is_ascii_digit) {
        return false;
    }
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, fraction),
        None => (text, ""),
    };
    let digit_or_underscore = |byte: u8| byte.is_ascii_digit() || byte == b'_';
    let mut parts = whole.split(':');
    let leading = parts.next().is_some_and(|part| part.bytes().all(digit_or_underscore));
    let mut sixtieths = 0;
    for part in parts {
        sixtieths += 1;
        if !matches!(part.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9']) {
            return false;
        }
    }
    leading && sixtieths > 0 && fraction.bytes().all(digit_or_underscore)
}
