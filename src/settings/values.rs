//! What single flags take.

use std::path::PathBuf;
use std::time::Duration;

use super::SHORTEST_INTERVAL;
use crate::core::duration::go_duration;
use crate::core::identity;

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    go_duration(text).ok_or_else(|| "no duration: write 10m or 1h30m".to_owned())
}

pub(super) fn poll_interval(text: &str) -> Result<Duration, String> {
    let given = duration(text)?;
    if given < SHORTEST_INTERVAL {
        return Err("a source is asked every 10s at most: write 10s or more".to_owned());
    }
    Ok(given)
}

/// An empty one is all of them.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    identity::namespace(text).map(|()| text.to_owned()).map_err(|problem| format!("it {problem}"))
}

pub(super) fn named_namespace(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("it is empty: write the name of a namespace".to_owned()) } else { namespace(text) }
}

pub(super) fn rate(text: &str) -> Result<f32, String> {
    let rate: f32 = text.parse().map_err(|error: std::num::ParseFloatError| error.to_string())?;
    let is_rate = rate.is_finite() && rate >= 0.0;
    is_rate.then_some(rate).ok_or_else(|| "write a number of requests in a second, 0 for no limit".to_owned())
}

/// A value of a label; an empty one is none.
pub(super) fn label(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_bounded = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    if text.is_empty() || text.len() <= 63 && is_bounded(text) && text.chars().all(is_plain) {
        return Ok(text.to_owned());
    }
    Err("no value of a label: letters, digits, -, _ and ., at most 63".to_owned())
}

/// The name of an object, a DNS subdomain (RFC 1123); an empty one is none.
pub(super) fn name(text: &str) -> Result<String, String> {
    let is_part = |part: &str| !part.is_empty() && identity::namespace(part).is_ok();
    if text.is_empty() || text.len() <= 253 && text.split('.').all(is_part) {
        return Ok(text.to_owned());
    }
    Err("no name of an object: lower-case letters, digits, - and ., at most 253".to_owned())
}

/// A path from the root; an empty one is none.
pub(super) fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_one = text.is_empty() || path.is_absolute();
    is_one.then_some(path).ok_or_else(|| "no absolute path: begin it with /".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_value_of_a_flag_is_refused() {
        for (text, all, named) in [("", true, false), ("a-1", true, true), ("NotValid_x", false, false)] {
            assert_eq!((namespace(text).is_ok(), named_namespace(text).is_ok()), (all, named), "{text}");
        }
        for (text, is_label, is_name) in [
            ("", true, true),
            ("a-1", true, true),
            ("a.b", true, true),
            ("A_b", true, false),
            ("a..b", true, false),
            ("not a label", false, false),
            ("-a", false, false),
        ] {
            assert_eq!((label(text).is_ok(), name(text).is_ok()), (is_label, is_name), "{text}");
        }
        for (text, is_taken) in [("", true), ("/srv/images", true), ("images", false), ("./images", false)] {
            assert_eq!(absolute(text).is_ok(), is_taken, "{text}");
        }
        for (text, expected) in
            [("0", Some(0.0)), ("0.5", Some(0.5)), ("-1", None), ("NaN", None), ("inf", None), ("x", None)]
        {
            assert_eq!(rate(text).ok(), expected, "{text}");
        }
    }
}
