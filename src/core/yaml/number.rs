//! Numbers printed as Go prints them.

/// `strconv.FormatFloat(number, 'g', -1, 64)`: the shortest digits, with an exponent below 1e-4 and from 1e6 on.
/// Infinite ones are `+Inf`, `-Inf`, no number is `NaN`.
pub(crate) fn format_g(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    layout_g(&shortest(number))
}

/// The shortest digits that give the number again, as `1.25e-7`. Of two that are equally near Go takes the even one,
/// Rust the larger one, but Rust is right when told how many digits are wanted.
fn shortest(number: f64) -> String {
    let shortest = format!("{number:e}");
    let decimals = shortest.find('e').map_or(0, |end| end.saturating_sub(usize::from(number < 0.0) + 2));
    let nearest = format!("{number:.decimals$e}");
    if nearest.parse() == Ok(number) { nearest } else { shortest }
}

/// `strconv.FormatFloat(number, 'g', -1, 32)` with YAML's names of what isn't finite: how Go prints a float that is a
/// key of a map.
#[expect(clippy::cast_possible_truncation, reason = "Go prints such keys with the precision of 32 bits")]
pub(super) fn format_key(number: f64) -> String {
    let number = number as f32;
    match number {
        _ if number.is_nan() => ".nan".to_owned(),
        f32::INFINITY => ".inf".to_owned(),
        f32::NEG_INFINITY => "-.inf".to_owned(),
        _ => layout_g(&format!("{number:e}")),
    }
}

/// Lays out what Rust prints as `1.25e-7` as Go's verb `g` does.
fn layout_g(scientific: &str) -> String {
    let (digits, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return plain(scientific);
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// Writes `1.25e-2` as `0.0125`.
fn plain(scientific: &str) -> String {
    let (number, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, number) = number.strip_prefix('-').map_or(("", number), |number| ("-", number));
    let digits = number.replace('.', "");
    match usize::try_from(exponent) {
        Ok(exponent) if digits.len() > exponent + 1 => {
            let (whole, fraction) = digits.split_at(exponent + 1);
            format!("{sign}{whole}.{fraction}")
        }
        Ok(exponent) => format!("{sign}{digits:0<width$}", width = exponent + 1),
        Err(_) => format!("{sign}0.{:0>width$}", digits, width = digits.len() + exponent.unsigned_abs() as usize - 1),
    }
}

/// The JSON number that Go's `encoding/json` makes of a float: one without a fraction is written as an integer, and
/// whoever reads it finds an integer if it fits. `None` if JSON has no such number.
pub(super) fn json_number(number: f64) -> Option<serde_json::Number> {
    // From 1e21 on Go writes an exponent. A negative zero stays a float.
    let integral = number.fract() == 0.0 && number.abs() < 1e21 && !(number == 0.0 && number.is_sign_negative());
    if integral {
        // The shortest digits, filled up with zeros: not always the number's exact value, but what Go writes.
        let text = plain(&shortest(number));
        if let Ok(integer) = text.parse::<i64>() {
            return Some(integer.into());
        }
        if let Ok(integer) = text.parse::<u64>() {
            return Some(integer.into());
        }
    }
    serde_json::Number::from_f64(number)
}

/// The YAML that Go writes for a JSON number.
pub(super) fn yaml_number(number: &serde_json::Number) -> String {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else { return number.to_string() };
    if float == 0.0 {
        return "0".to_owned();
    }
    match json_number(float) {
        Some(number) if !number.is_f64() => number.to_string(),
        _ => format_g(float),
    }
}
