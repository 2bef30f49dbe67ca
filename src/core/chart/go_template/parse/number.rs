//! Constants that are numbers in Go.

use super::super::ast::Expr;
use super::super::lex::{Escaped, escape};

/// A number: `1`, `-0x1F`, `1_000`, `0b11`, `0o17`, `017`, `1e3`, `1.5`.
pub(super) fn number(text: &str) -> Result<Expr, String> {
    let bad = || format!("bad number syntax: {text:?}");
    let (sign, digits) = match text.as_bytes().first() {
        Some(b'-') => (-1, &text[1..]),
        Some(b'+') => (1, &text[1..]),
        _ => (1, text),
    };
    if !underscores_are_good(digits) {
        return Err(bad());
    }
    let plain: String = digits.chars().filter(|c| *c != '_').collect();
    let lower = plain.to_ascii_lowercase();
    let radix = |radix: u32, skip: usize| i128::from_str_radix(&lower[skip..], radix).ok();
    let integer = match lower.as_bytes() {
        [b'0', b'x', ..] if !lower.contains(['.', 'p']) => Some(radix(16, 2).ok_or_else(bad)?),
        [b'0', b'b', ..] => Some(radix(2, 2).ok_or_else(bad)?),
        [b'0', b'o', ..] => Some(radix(8, 2).ok_or_else(bad)?),
        [b'0', rest @ ..] if !rest.is_empty() && rest.iter().all(u8::is_ascii_digit) => {
            Some(radix(8, 1).ok_or_else(bad)?)
        }
        all if !all.is_empty() && all.iter().all(u8::is_ascii_digit) => radix(10, 0).or(Some(i128::MAX)),
        _ => None,
    };
    if let Some(integer) = integer {
        let value = integer.checked_mul(sign).and_then(|value| i64::try_from(value).ok());
        return value.map(Expr::Int).ok_or_else(|| format!("{text} overflows int"));
    }
    let value = match lower.strip_prefix("0x") {
        Some(hex) => hex_float(hex),
        None => lower.parse::<f64>().ok(),
    };
    #[allow(clippy::cast_precision_loss)]
    let value = value.filter(|value| value.is_finite()).ok_or_else(bad)? * sign as f64;
    #[allow(clippy::cast_possible_truncation)]
    let integer = (value.fract() == 0.0 && value.abs() < 9.2e18).then_some(value as i64);
    Ok(Expr::Float(value, integer))
}

/// Underscores stand between digits, or between a prefix and a digit.
fn underscores_are_good(digits: &str) -> bool {
    let bytes = digits.as_bytes();
    let prefixed = bytes.len() > 1 && bytes[0] == b'0' && !bytes[1].is_ascii_digit();
    bytes.iter().enumerate().filter(|(_, byte)| **byte == b'_').all(|(at, _)| {
        let before = at > 0 && (bytes[at - 1].is_ascii_hexdigit() || (prefixed && at == 2));
        before && bytes.get(at + 1).is_some_and(u8::is_ascii_hexdigit)
    })
}

fn hex_float(text: &str) -> Option<f64> {
    let (mantissa, exponent) = text.split_once('p')?;
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut value = 0.0_f64;
    for c in whole.chars().chain(fraction.chars()) {
        value = value * 16.0 + f64::from(c.to_digit(16)?);
    }
    let shift = i32::try_from(fraction.len()).ok()?.checked_mul(4)?;
    Some(value * 2.0_f64.powi(exponent.checked_sub(shift)?))
}

/// The code point of a character constant: `'a'`, `'\n'`.
pub(super) fn character(text: &str) -> Option<u32> {
    let inner = text.strip_prefix('\'')?.strip_suffix('\'')?;
    if inner.starts_with('\\') {
        let (decoded, length) = escape(inner, b'\'')?;
        return (length == inner.len()).then_some(match decoded {
            Escaped::Byte(byte) => u32::from(byte),
            Escaped::Char(c) => c as u32,
        });
    }
    let mut chars = inner.chars();
    let c = chars.next()?;
    chars.next().is_none().then_some(c as u32)
}
