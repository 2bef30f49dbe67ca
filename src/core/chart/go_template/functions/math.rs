//! Arithmetic. Integers are int64 and wrap; what is no number counts as 0.

use super::super::eval::Eval;
use super::super::print;
use super::super::value::{ListType, Value};
use super::{Function, Out, Ty};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("int", &[Ty::Any], |_, args| Ok(Value::Int(to_int(&args[0])))),
    Function::new("int64", &[Ty::Any], |_, args| Ok(Value::Int64(to_int(&args[0])))),
    Function::new("float64", &[Ty::Any], |_, args| Ok(Value::Float(to_float(&args[0])))),
    Function::new("atoi", &[Ty::Str], |_, args| {
        Ok(Value::Int(super::text(&args[0]).parse().unwrap_or_else(
            |error: std::num::ParseIntError| match error.kind() {
                std::num::IntErrorKind::PosOverflow => i64::MAX,
                std::num::IntErrorKind::NegOverflow => i64::MIN,
                _ => 0,
            },
        )))
    }),
    Function::new("toDecimal", &[Ty::Any], |_, args| {
        Ok(Value::Int64(i64::from_str_radix(&print::text(&args[0]), 8).unwrap_or(0)))
    }),
    Function::new("add1", &[Ty::Any], |_, args| Ok(Value::Int64(to_int(&args[0]).wrapping_add(1)))),
    Function::variadic("add", &[], Ty::Any, |_, args| {
        Ok(Value::Int64(args.iter().fold(0, |sum, arg| sum.wrapping_add(to_int(arg)))))
    }),
    Function::new("sub", &[Ty::Any, Ty::Any], |_, args| {
        Ok(Value::Int64(to_int(&args[0]).wrapping_sub(to_int(&args[1]))))
    }),
    Function::variadic("mul", &[Ty::Any], Ty::Any, |_, args| {
        Ok(Value::Int64(args.iter().fold(1, |product, arg| product.wrapping_mul(to_int(arg)))))
    }),
    Function::new("div", &[Ty::Any, Ty::Any], |_, args| divide(args, i64::wrapping_div)),
    Function::new("mod", &[Ty::Any, Ty::Any], |_, args| divide(args, i64::wrapping_rem)),
    Function::variadic("max", &[Ty::Any], Ty::Any, max),
    Function::variadic("biggest", &[Ty::Any], Ty::Any, max),
    Function::variadic("min", &[Ty::Any], Ty::Any, |_, args| {
        Ok(Value::Int64(args.iter().map(to_int).min().unwrap_or_default()))
    }),
    Function::variadic("maxf", &[Ty::Any], Ty::Any, |_, args| Ok(Value::Float(extreme(args, f64::max)))),
    Function::variadic("minf", &[Ty::Any], Ty::Any, |_, args| Ok(Value::Float(extreme(args, f64::min)))),
    Function::new("floor", &[Ty::Any], |_, args| Ok(Value::Float(to_float(&args[0]).floor()))),
    Function::new("ceil", &[Ty::Any], |_, args| Ok(Value::Float(to_float(&args[0]).ceil()))),
    Function::variadic("round", &[Ty::Any, Ty::Int], Ty::Float, round),
    Function::new("add1f", &[Ty::Any], |_, args| {
        decimal(to_float(&args[0]), &[Value::Int(1)], Decimal::add, |a, b| a + b)
    }),
    Function::variadic("addf", &[], Ty::Any, |_, args| decimal(0.0, args, Decimal::add, |a, b| a + b)),
    Function::variadic("subf", &[Ty::Any], Ty::Any, |_, args| {
        decimal(to_float(&args[0]), &args[1..], Decimal::sub, |a, b| a - b)
    }),
    Function::variadic("mulf", &[Ty::Any], Ty::Any, |_, args| {
        decimal(to_float(&args[0]), &args[1..], Decimal::mul, |a, b| a * b)
    }),
    Function::variadic("divf", &[Ty::Any], Ty::Any, |_, args| {
        if args[1..].iter().any(|arg| to_float(arg) == 0.0) {
            return Err("decimal division by 0".into());
        }
        decimal(to_float(&args[0]), &args[1..], Decimal::div, |a, b| a / b)
    }),
    Function::new("until", &[Ty::Int], |eval, args| {
        let count = int(&args[0]);
        range(eval, 0, count, if count < 0 { -1 } else { 1 })
    }),
    Function::new("untilStep", &[Ty::Int, Ty::Int, Ty::Int], |eval, args| {
        range(eval, int(&args[0]), int(&args[1]), int(&args[2]))
    }),
    Function::variadic("seq", &[], Ty::Int, seq),
];

/// The integer of an argument that was checked to be one.
pub(crate) fn int(value: &Value) -> i64 {
    match value {
        Value::Int(value) | Value::Int64(value) => *value,
        _ => 0,
    }
}

/// Go's conversion of a float to an integer on amd64.
#[allow(clippy::cast_possible_truncation, reason = "as Go converts")]
fn truncate(value: f64) -> i64 {
    if (-9.223_372_036_854_776e18..9.223_372_036_854_776e18).contains(&value) { value as i64 } else { i64::MIN }
}

/// `cast.ToInt64`
pub(crate) fn to_int(value: &Value) -> i64 {
    match value {
        Value::Int(value) | Value::Int64(value) => *value,
        #[allow(clippy::cast_possible_wrap, reason = "as Go converts")]
        Value::Uint(value) => *value as i64,
        Value::Float(value) => truncate(*value),
        Value::Bool(value) => i64::from(*value),
        Value::Str(text) => parse_int(without_zero_decimals(text)).unwrap_or(0),
        Value::Object(object) => object.cast(),
        _ => 0,
    }
}

/// `8.00` without the zeros behind the point.
fn without_zero_decimals(text: &str) -> &str {
    match text.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => whole,
        _ => text,
    }
}

/// Go's `strconv.ParseInt(text, 0, 64)`.
pub(crate) fn parse_int(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = if let Some(rest) = lower.strip_prefix("0x") {
        (16, rest)
    } else if let Some(rest) = lower.strip_prefix("0b") {
        (2, rest)
    } else if let Some(rest) = lower.strip_prefix("0o") {
        (8, rest)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    let prefixed = radix != 10;
    if body.ends_with('_') || body.contains("__") || (body.starts_with('_') && !prefixed) {
        return None;
    }
    let plain: String = body.chars().filter(|c| *c != '_').collect();
    if plain.starts_with(['+', '-']) {
        return None;
    }
    let value = i128::from_str_radix(&plain, radix).ok()?;
    i64::try_from(if negative { -value } else { value }).ok()
}

/// `cast.ToFloat64`
pub(crate) fn to_float(value: &Value) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "as Go converts")]
    match value {
        Value::Int(value) | Value::Int64(value) => *value as f64,
        Value::Uint(value) => *value as f64,
        Value::Float(value) => *value,
        Value::Bool(value) => f64::from(u8::from(*value)),
        Value::Str(text) => parse_float(text).unwrap_or(0.0),
        Value::Object(object) => object.cast() as f64,
        _ => 0.0,
    }
}

/// Go's `strconv.ParseFloat`.
pub(crate) fn parse_float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if let Some(hex) = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X")) {
        let magnitude = hex_float(hex)?;
        return Some(if text.starts_with('-') { -magnitude } else { magnitude });
    }
    if unsigned.starts_with(|c: char| c.is_ascii_alphabetic()) {
        // NaN has no sign.
        return text.parse().ok().filter(|value: &f64| !value.is_nan() || unsigned.len() == text.len());
    }
    let value: f64 = without_underscores(text, false)?.parse().ok()?;
    value.is_finite().then_some(value)
}

/// Digits without the `_` between them; one that is not between digits makes it no number. A `0x` before is a digit.
fn without_underscores(text: &str, hexadecimal: bool) -> Option<std::borrow::Cow<'_, str>> {
    if !text.contains('_') {
        return Some(text.into());
    }
    let mut previous = hexadecimal.then_some('0');
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let digit = |c: Option<char>| c.is_some_and(|c| c.is_digit(if hexadecimal { 16 } else { 10 }));
        if c == '_' && !(digit(previous) && digit(chars.peek().copied())) {
            return None;
        }
        previous = Some(c);
    }
    Some(text.replace('_', "").into())
}

/// The digits of a hexadecimal float behind `0x`: the exponent must be there.
fn hex_float(text: &str) -> Option<f64> {
    let text = without_underscores(text, true)?;
    let (mantissa, exponent) = text.split_once(['p', 'P'])?;
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.len() + fraction.len() == 0 {
        return None;
    }
    let digits = whole.chars().chain(fraction.chars());
    let mantissa =
        digits.map(|c| c.to_digit(16)).try_fold(0.0_f64, |sum, digit| Some(sum * 16.0 + f64::from(digit?)))?;
    let value = mantissa * 2.0_f64.powi(exponent.checked_sub(i32::try_from(fraction.len()).ok()?.checked_mul(4)?)?);
    value.is_finite().then_some(value)
}

fn divide(args: &[Value], operation: fn(i64, i64) -> i64) -> Out {
    match to_int(&args[1]) {
        0 => Err("runtime error: integer divide by zero".into()),
        divisor => Ok(Value::Int64(operation(to_int(&args[0]), divisor))),
    }
}

fn max(_: &mut Eval<'_>, args: &[Value]) -> Out {
    Ok(Value::Int64(args.iter().map(to_int).max().unwrap_or_default()))
}

fn extreme(args: &[Value], choose: fn(f64, f64) -> f64) -> f64 {
    args[1..].iter().map(to_float).fold(to_float(&args[0]), |best, next| {
        if best.is_nan() || next.is_nan() { f64::NAN } else { choose(best, next) }
    })
}

fn round(_: &mut Eval<'_>, args: &[Value]) -> Out {
    let value = to_float(&args[0]);
    let threshold = args.get(2).map_or(0.5, to_float);
    let power = 10.0_f64.powi(i32::try_from(int(&args[1])).unwrap_or(i32::MAX));
    let digit = power * value;
    let rounded = if digit.fract() >= threshold { digit.ceil() } else { digit.floor() };
    Ok(Value::Float(rounded / power))
}

fn range(eval: &mut Eval<'_>, start: i64, end: i64, step: i64) -> Out {
    let down = end < start;
    if step == 0 || down != (step < 0) || start == end {
        return Ok(Value::typed_list(ListType::Int, Vec::new()));
    }
    let count = (i128::from(end) - i128::from(start)).unsigned_abs().div_ceil(u128::from(step.unsigned_abs()));
    eval.produce(usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(24))?;
    let mut items = Vec::new();
    let mut at = start;
    for _ in 0..count {
        items.push(Value::Int(at));
        at = at.wrapping_add(step);
    }
    Ok(Value::typed_list(ListType::Int, items))
}

fn seq(eval: &mut Eval<'_>, args: &[Value]) -> Out {
    let (start, limit, by) = match args {
        [end] => {
            let step = if int(end) < 1 { -1 } else { 1 };
            (1, int(end).wrapping_add(step), step)
        }
        [start, end] => {
            let step = if int(end) < int(start) { -1 } else { 1 };
            (int(start), int(end).wrapping_add(step), step)
        }
        [start, step, end] => {
            let down = int(end) < int(start);
            if down && int(step) > 0 {
                return Ok(Value::from(""));
            }
            (int(start), int(end).wrapping_add(if down { -1 } else { 1 }), int(step))
        }
        _ => return Ok(Value::from("")),
    };
    let numbers = range(eval, start, limit, by)?;
    let text = print::text(&numbers);
    Ok(Value::from(text.trim_matches(['[', ']'])))
}

/// A decimal number: digits times ten to the power of the exponent.
#[derive(Clone, Copy)]
struct Decimal {
    digits: i128,
    exponent: i32,
}

impl Decimal {
    /// The shortest decimal that the float is read from.
    fn from_float(value: f64) -> Option<Self> {
        let text = format!("{value:e}");
        let (mantissa, exponent) = text.split_once('e')?;
        let exponent: i32 = exponent.parse().ok()?;
        let decimals = mantissa.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        let digits = mantissa.replace('.', "").parse().ok()?;
        Some(Self { digits, exponent: exponent.checked_sub(i32::try_from(decimals).ok()?)? })
    }

    fn to_float(self) -> f64 {
        format!("{}e{}", self.digits, self.exponent).parse().unwrap_or_default()
    }

    fn at_exponent(self, exponent: i32) -> Option<i128> {
        let shift = u32::try_from(self.exponent.checked_sub(exponent)?).ok()?;
        self.digits.checked_mul(10_i128.checked_pow(shift)?)
    }

    fn add(self, other: Self) -> Option<Self> {
        let exponent = self.exponent.min(other.exponent);
        let digits = self.at_exponent(exponent)?.checked_add(other.at_exponent(exponent)?)?;
        Some(Self { digits, exponent })
    }

    fn sub(self, other: Self) -> Option<Self> {
        self.add(Self { digits: -other.digits, ..other })
    }

    fn mul(self, other: Self) -> Option<Self> {
        Some(Self {
            digits: self.digits.checked_mul(other.digits)?,
            exponent: self.exponent.checked_add(other.exponent)?,
        })
    }

    /// To sixteen places behind the point, rounded half away from zero.
    fn div(self, other: Self) -> Option<Self> {
        const PLACES: i32 = 16;
        let shift = self.exponent.checked_sub(other.exponent)?.checked_add(PLACES)?;
        let (mut numerator, mut denominator) = (self.digits, other.digits);
        let power = 10_i128.checked_pow(shift.unsigned_abs())?;
        if shift >= 0 {
            numerator = numerator.checked_mul(power)?;
        } else {
            denominator = denominator.checked_mul(power)?;
        }
        let (quotient, remainder) = (numerator.checked_div(denominator)?, numerator.checked_rem(denominator)?);
        let up = remainder.unsigned_abs().checked_mul(2)? >= denominator.unsigned_abs();
        let away = if (numerator < 0) == (denominator < 0) { 1 } else { -1 };
        Some(Self { digits: if up { quotient + away } else { quotient }, exponent: -PLACES })
    }
}

/// Sums and products of decimals, so that 0.1 and 0.2 make 0.3; too large ones are done with floats.
fn decimal(
    first: f64,
    rest: &[Value],
    exact: fn(Decimal, Decimal) -> Option<Decimal>,
    rough: fn(f64, f64) -> f64,
) -> Out {
    if let Some(endless) = std::iter::once(first).chain(rest.iter().map(to_float)).find(|value| !value.is_finite()) {
        return Err(format!("Cannot create a Decimal from {}", print::float(endless)).into());
    }
    let precise = rest.iter().try_fold(Decimal::from_float(first), |sum, next| {
        let sum = sum?;
        Some(Some(exact(sum, Decimal::from_float(to_float(next))?)?))
    });
    Ok(Value::Float(match precise.flatten() {
        Some(sum) => sum.to_float(),
        // There is no negative nought.
        None => rest.iter().fold(first, |sum, next| rough(sum, to_float(next))) + 0.0,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_become_integers_as_with_cast() {
        for (text, number) in [
            ("12", 12),
            ("0x1F", 31),
            ("010", 8),
            ("8.0", 8),
            ("8.5", 0),
            ("", 0),
            ("1_000", 1000),
            ("abc", 0),
            ("-3", -3),
        ] {
            assert_eq!(to_int(&Value::from(text)), number, "{text}");
        }
    }

    #[test]
    fn decimals_add_exactly() {
        let sum = decimal(0.1, &[Value::Float(0.2)], Decimal::add, |a, b| a + b).unwrap_or_default();
        assert!(matches!(sum, Value::Float(value) if value.to_bits() == 0.3_f64.to_bits()));
        let quotient = decimal(10.0, &[Value::Int(3)], Decimal::div, |a, b| a / b).unwrap_or_default();
        assert!(matches!(quotient, Value::Float(value) if (value - 3.333_333_333_333_333_5).abs() < 1e-12));
    }
}
