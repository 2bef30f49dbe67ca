//! Durations as users write them.

use std::time::Duration;

/// `1h30m`, `500ms`, `1.5s` as Go's `time.ParseDuration` reads them.
pub fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let (seconds, unit) = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)]
            .into_iter()
            .find_map(|(unit, seconds)| rest.starts_with(unit).then_some((seconds, unit)))?;
        total += number * seconds;
        rest = &rest[unit.len()..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(total).ok())?
}

/// A duration as users would write it: `30m`, `1h30m`, `90s`; parts of a second are left out.
pub fn spoken(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let some: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect();
    if some.is_empty() { "0s".to_owned() } else { some.concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_was_written() {
        for text in ["30m", "1h30m", "1h0m", "90s", "1h5s", "10s", "500ms", ""] {
            let spoken = go_duration(text).map(spoken);
            let expected = match text {
                "1h0m" => Some("1h"),
                "90s" => Some("1m30s"),
                "500ms" => Some("0s"),
                "" => None,
                same => Some(same),
            };
            assert_eq!(spoken.as_deref(), expected, "{text}");
        }
        for text in ["5", "m", "1d", "-1m", "1 m"] {
            assert_eq!(go_duration(text), None, "{text}");
        }
    }
}
