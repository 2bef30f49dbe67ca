//! What an answer over HTTP says beside its content: when to come again, that a redirect led to it, that it is a page for
//! people.

use std::fmt::Display;
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{Extensions, HeaderMap, StatusCode};
use jiff::{SignedDuration, Timestamp};
use reqwest::Url;

use super::error::SourceError;
use super::http::redacted;

/// When a server is asked again that wants fewer requests and does not say when.
const LATER: Duration = Duration::from_mins(1);
/// Longest time that is waited, whatever it says.
const LATEST: Duration = Duration::from_hours(6);

/// What is said of a page for people where something for machines should be.
pub const HTML_PAGE: &str = "an HTML page, as a proxy or a login page answers";

/// How long a server wants to be left alone: its `Retry-After`, in seconds or as a date.
pub fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    Some(Duration::try_from(at.duration_since(now)).unwrap_or_default())
}

/// For how long a server is left alone after an answer that asks for fewer requests.
pub fn rest(headers: &HeaderMap, now: Timestamp) -> Duration {
    retry_after(headers, now).unwrap_or(LATER).min(LATEST)
}

/// The same of any answer; `None` if it asks for no pause: 429 does, and 503 that says for how long.
pub fn pause(status: StatusCode, headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    match status {
        StatusCode::TOO_MANY_REQUESTS => Some(rest(headers, now)),
        StatusCode::SERVICE_UNAVAILABLE => retry_after(headers, now).map(|_| rest(headers, now)),
        _ => None,
    }
}

/// What a server said, and until when it is left alone.
pub fn waiting(problem: &str, after: Duration, now: Timestamp) -> String {
    let until = SignedDuration::try_from(after).ok().and_then(|after| now.checked_add(after).ok());
    until.map_or_else(|| problem.to_owned(), |until| format!("{problem}; wait until {until:.0}"))
}

/// Whether it is a page for people, by its type or by how its body begins.
pub fn is_page(headers: &HeaderMap, body: &[u8]) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if ["text/html", "application/xhtml+xml"].contains(&kind.as_str()) {
        return true;
    }
    // `<<` begins what csctl fills in, or a merge of YAML.
    matches!(body.trim_ascii_start(), [b'<', second, ..] if *second == b'!' || second.is_ascii_alphabetic())
}

/// What is wrong with a body that can't be read: that it is a page, else what its parser says.
pub fn unreadable(headers: &HeaderMap, body: &[u8], problem: &dyn Display) -> String {
    if is_page(headers, body) { HTML_PAGE.to_owned() } else { problem.to_string() }
}

/// That nothing came for so long.
pub fn no_answer(silence: Duration) -> String {
    if silence.subsec_millis() == 0 {
        format!("no answer for {} s", silence.as_secs())
    } else {
        format!("no answer for {} ms", silence.as_millis())
    }
}

/// That redirects led to an answer: noted with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirected {
    /// What was asked.
    from: Url,
    /// Who answered, as it may be shown: a path may repeat a login.
    to: String,
}

impl Redirected {
    /// From `from` to `to`; `without_secrets` takes the logins out of what is shown.
    pub(super) fn new(from: &Url, to: &Url, without_secrets: impl Fn(&str) -> String) -> Self {
        Self { from: from.clone(), to: without_secrets(&redacted(to)) }
    }

    /// An error on the way there, said of what was asked.
    pub(super) fn explain(&self, error: SourceError) -> SourceError {
        let url = redacted(&self.from);
        let led = |problem: &str| led_to(&self.to, problem);
        match error {
            SourceError::Unreachable { action, problem, .. } => {
                SourceError::Unreachable { action, url, problem: led(&problem) }
            }
            SourceError::Unauthorized { action, problem, .. } => {
                SourceError::Unauthorized { action, url, problem: led(&problem) }
            }
            SourceError::Untrusted { problem, .. } => SourceError::Untrusted { url, problem: led(&problem) },
            SourceError::Led { action, refused, .. } => SourceError::Led { action, url, refused },
            other => other,
        }
    }
}

fn led_to(place: &str, problem: &str) -> String {
    format!("a redirect led to {place}: {problem}")
}

/// What an answer says, with where a redirect led if one did.
pub fn said_there(extensions: &Extensions, problem: &str) -> String {
    match extensions.get::<Redirected>() {
        Some(redirected) => led_to(&redirected.to, problem),
        None => problem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-21T11:00:00Z";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn when_to_come_again_is_read() {
        for (text, seconds) in [
            ("17", Some(17)),
            ("Sat, 21 Nov 2026 11:01:00 GMT", Some(60)),
            ("Sat, 21 Nov 2026 10:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ] {
            let found = retry_after(&headers(&[("retry-after", text)]), NOW.parse().unwrap());
            assert_eq!(found, seconds.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn a_pause_is_asked_for_in_two_ways_and_said_with_its_end() {
        for (status, told, seconds) in [
            (429, None, Some(60)),
            (429, Some("17"), Some(17)),
            (429, Some("99999999"), Some(6 * 3600)),
            (503, Some("17"), Some(17)),
            (503, None, None),
            (500, Some("17"), None),
            (200, Some("17"), None),
        ] {
            let headers = headers(told.map(|told| ("retry-after", told)).as_slice());
            let found = pause(StatusCode::from_u16(status).unwrap(), &headers, NOW.parse().unwrap());
            assert_eq!(found, seconds.map(Duration::from_secs), "{status} {told:?}");
        }
        let said = waiting("it answers 429", Duration::from_secs(90), NOW.parse().unwrap());
        assert_eq!(said, "it answers 429; wait until 2026-11-21T11:01:30Z");
    }

    #[test]
    fn a_page_for_people_is_known_by_its_type_or_its_beginning() {
        for (kind, body, expected) in [
            ("text/html; charset=utf-8", "", true),
            ("Text/HTML", "x", true),
            ("application/json", "\r\n <!DOCTYPE html>", true),
            ("", "<html>welcome to the guest network", true),
            ("application/json", "[]", false),
            ("text/plain", "<< .ClusterAddonVersion >>", false),
            ("", "<", false),
            ("", "", false),
        ] {
            assert_eq!(is_page(&headers(&[("content-type", kind)]), body.as_bytes()), expected, "{kind:?} {body:?}");
        }
        assert_eq!(unreadable(&HeaderMap::new(), b"<html>", &"expected value"), HTML_PAGE);
        assert_eq!(unreadable(&HeaderMap::new(), b"[1", &"EOF"), "EOF");
    }

    #[test]
    fn silence_is_said_with_its_length() {
        for (millis, expected) in [(20_000, "no answer for 20 s"), (300, "no answer for 300 ms")] {
            assert_eq!(no_answer(Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn what_failed_behind_a_redirect_is_said_of_what_was_asked() {
        let [from, to] = ["https://git.example.com/r?token=hunter2", "https://login.example.com/x?next=hunter2"];
        let redirected = Redirected::new(&from.parse().unwrap(), &to.parse().unwrap(), ToOwned::to_owned);
        let (action, url) = ("listing the tags of", "https://login.example.com/x".to_owned());
        let problem = "connection refused".to_owned();
        for error in [
            SourceError::Unreachable { action, url: url.clone(), problem: problem.clone() },
            SourceError::Unauthorized { action, url: url.clone(), problem: problem.clone() },
            SourceError::Untrusted { url: url.clone(), problem },
        ] {
            let said = redirected.explain(error).to_string();
            assert!(said.contains("https://git.example.com/r"), "{said}");
            assert!(said.contains("a redirect led to https://login.example.com/x: connection refused"), "{said}");
            assert!(!said.contains("hunter2"), "{said}");
        }
        let to = "https://login.example.com/hunter2/x".parse().unwrap();
        let repeats = Redirected::new(&from.parse().unwrap(), &to, |text| text.replace("hunter2", "***"));
        assert_eq!(repeats.to, "https://login.example.com/***/x");
        let mut extensions = Extensions::new();
        assert_eq!(said_there(&extensions, "it answers 404"), "it answers 404");
        extensions.insert(redirected);
        let said = said_there(&extensions, "it answers 404");
        assert_eq!(said, "a redirect led to https://login.example.com/x: it answers 404");
    }
}
