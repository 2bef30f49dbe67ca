//! Floats that are not negative as Go's `strconv` writes them.

use super::super::super::print;

/// `%.3e`
pub(super) fn scientific(value: f64, precision: usize) -> String {
    let precision = precision.min(10_000);
    let text = format!("{value:.precision$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => print::exponential(mantissa, exponent.parse().unwrap_or_default()),
        None => text,
    }
}

/// Bits of a float64 behind the first.
const FRACTION: u32 = 52;

/// A float that is not negative as a whole number and the power of two that it is multiplied by.
fn parts(value: f64) -> (u64, i64) {
    let bits = value.to_bits();
    let (exponent, fraction) = (i64::try_from(bits >> FRACTION).unwrap_or(0), bits & ((1 << FRACTION) - 1));
    let whole = if exponent == 0 { fraction } else { fraction | 1 << FRACTION };
    (whole, exponent.max(1) - 1023 - i64::from(FRACTION))
}

/// `%b` of a float that is not negative: `6755399441055744p-52`.
pub(super) fn binary(value: f64) -> String {
    let (whole, exponent) = parts(value);
    format!("{whole}p{exponent:+}")
}

/// `%x` of a float that is not negative: `0x1.8p+01`, with as many digits as wanted, or as it has.
pub(super) fn hexadecimal(value: f64, precision: Option<usize>) -> String {
    /// Where the digit before the point stands.
    const ONE: u32 = 60;
    let (whole, exponent) = parts(value);
    let shift = whole.leading_zeros().saturating_sub(63 - ONE);
    let (mut mantissa, mut exponent) =
        if whole == 0 { (0, 0) } else { (whole << shift, exponent + i64::from(ONE) - i64::from(shift)) };
    let kept = precision.and_then(|digits| u32::try_from(digits).ok()).filter(|digits| *digits < ONE / 4);
    if let Some(digits) = kept {
        // To the nearest, and of two that are equally near to the even one.
        let dropped = ONE - 4 * digits;
        let half = 1u64 << (dropped - 1);
        let rest = mantissa & ((1 << dropped) - 1);
        mantissa >>= dropped;
        mantissa += u64::from(rest > half || rest == half && mantissa & 1 == 1);
        mantissa <<= dropped;
        if mantissa >> (ONE + 1) > 0 {
            mantissa >>= 1;
            exponent += 1;
        }
    }
    let all = format!("{:015x}", mantissa & ((1 << ONE) - 1));
    let digits = match precision {
        None => all.trim_end_matches('0').to_owned(),
        Some(precision) => format!("{all:0<precision$.precision$}"),
    };
    let point = if digits.is_empty() { "" } else { "." };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("0x{}{point}{digits}p{sign}{:02}", mantissa >> ONE, exponent.abs())
}

/// With a point and as many digits: what `#` asks for.
pub(super) fn padded(text: &str, digits: usize) -> String {
    let at = text.find('p').or_else(|| text.find('e').filter(|_| !text.starts_with("0x"))).unwrap_or(text.len());
    let (mantissa, tail) = text.split_at(at);
    let counted = mantissa.trim_start_matches(['0', '.']).bytes().filter(|byte| *byte != b'.').count();
    let counted = if mantissa == "0" { 1 } else { counted };
    let point = if mantissa.contains('.') { "" } else { "." };
    format!("{mantissa}{point}{}{tail}", "0".repeat(digits.saturating_sub(counted)))
}

/// `%.3g`
pub(super) fn general(value: f64, precision: usize, sharp: bool) -> String {
    let precision = precision.clamp(1, 10_000);
    let text = format!("{value:.*e}", precision - 1);
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let trim = |text: &str| {
        if text.contains('.') && !sharp {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text.to_owned()
        }
    };
    if exponent < -4 || exponent >= i32::try_from(precision).unwrap_or(i32::MAX) {
        return print::exponential(&trim(mantissa), exponent);
    }
    let decimals = usize::try_from(i32::try_from(precision).unwrap_or(i32::MAX) - 1 - exponent).unwrap_or(0);
    trim(&format!("{value:.decimals$}"))
}
