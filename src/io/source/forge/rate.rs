//! What a forge says of its limits: how much is left, and how long to leave it alone.

use std::time::Duration;

use http::header::DATE;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::answers::retry_after;
use crate::api::cluster_stack_source::Quota;

/// Pause after a limit of which nothing is told, the first time; it doubles from there.
const UNTOLD: Duration = Duration::from_mins(1);
/// Longest pause of that kind.
const LONGEST_UNTOLD: Duration = Duration::from_hours(1);
/// Longest pause in any case: a server's clock may be wrong by years.
const LONGEST: Duration = Duration::from_hours(24);

/// GitHub's headers, and GitLab's.
const PREFIXES: [&str; 2] = ["x-ratelimit", "ratelimit"];

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn number(headers: &HeaderMap, what: &str) -> Option<u64> {
    PREFIXES.iter().find_map(|prefix| text(headers, &format!("{prefix}-{what}"))?.parse().ok())
}

/// What is left of the quota, where the answer tells.
pub(super) fn quota(headers: &HeaderMap) -> Option<Quota> {
    let reset = number(headers, "reset").and_then(|at| Timestamp::from_second(i64::try_from(at).ok()?).ok());
    Some(Quota { limit: number(headers, "limit")?, remaining: number(headers, "remaining")?, reset: reset.map(Time) })
}

/// For how long the server must be left alone after this answer; `None` if it says nothing of limits. `message` is its
/// body, `strikes` how many such answers came in a row before.
pub(super) fn pause(
    status: StatusCode,
    headers: &HeaderMap,
    message: &str,
    strikes: u32,
    now: Timestamp,
) -> Option<Duration> {
    let limited = matches!(status, StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS);
    let busy = status == StatusCode::SERVICE_UNAVAILABLE;
    if !limited && !busy {
        return None;
    }
    // By the server's clock where it shows it: ours may be wrong.
    let now = text(headers, DATE.as_str()).and_then(date).unwrap_or(now);
    let until = |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default();
    let told = retry_after(headers, now);
    let used_up = || {
        let reset = Timestamp::from_second(i64::try_from(number(headers, "reset")?).ok()?).ok()?;
        // A second more: the server's clock shows whole ones.
        (number(headers, "remaining") == Some(0)).then(|| until(reset) + Duration::from_secs(1))
    };
    let message = message.to_ascii_lowercase();
    let secondary = || {
        let named = ["secondary rate limit", "abuse detection", "rate limit exceeded"];
        let is = status == StatusCode::TOO_MANY_REQUESTS || named.iter().any(|name| message.contains(name));
        is.then(|| UNTOLD.saturating_mul(2u32.saturating_pow(strikes.min(16))).min(LONGEST_UNTOLD))
    };
    let pause = if busy { told } else { told.or_else(used_up).or_else(secondary) };
    pause.map(|pause| pause.clamp(Duration::from_secs(1), LONGEST))
}

fn date(text: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    const NOW: i64 = 1_800_000_000;
    const DATE_OF_SERVER: &str = "Fri, 15 Jan 2027 08:10:00 GMT";

    #[test]
    fn the_quota_is_read_in_both_spellings() {
        for prefix in ["x-ratelimit", "ratelimit"] {
            let mut headers = HeaderMap::new();
            for (what, value) in [("limit", "5000"), ("remaining", "4999"), ("reset", "1800000000")] {
                headers.insert(http::HeaderName::try_from(format!("{prefix}-{what}")).unwrap(), value.parse().unwrap());
            }
            let quota = quota(&headers).unwrap();
            assert_eq!((quota.limit, quota.remaining), (5000, 4999));
            assert_eq!(quota.reset.unwrap().0.as_second(), NOW);
        }
        assert_eq!(quota(&headers(&[("x-ratelimit-limit", "many")])), None);
    }

    #[test]
    fn limits_are_told_in_many_ways() {
        let used_up = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1800000090")];
        let with_date = [used_up[0], used_up[1], ("date", DATE_OF_SERVER)];
        for (status, pairs, message, strikes, seconds) in [
            (200, &used_up[..], "", 0, None),
            (403, &used_up, "API rate limit exceeded", 0, Some(91)),
            // The server's clock is ten minutes ahead of ours: the period is over for it.
            (429, &with_date, "", 0, Some(1)),
            (403, &[("retry-after", "30")], "", 0, Some(30)),
            (429, &[("retry-after", "Fri, 15 Jan 2027 08:01:00 GMT")], "", 0, Some(60)),
            (429, &[("retry-after", "0")], "", 0, Some(1)),
            (429, &[("retry-after", "999999999")], "", 0, Some(86400)),
            (403, &[], "You have exceeded a secondary rate limit.", 0, Some(60)),
            (403, &[], "You have exceeded a secondary rate limit.", 2, Some(240)),
            (429, &[], "", 30, Some(3600)),
            (403, &[("x-ratelimit-remaining", "12")], "Resource not accessible by integration", 0, None),
            (404, &used_up, "", 0, None),
            (503, &[("retry-after", "7")], "", 0, Some(7)),
            (503, &used_up, "", 0, None),
            (500, &[("retry-after", "7")], "", 0, None),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let found = pause(status, &headers(pairs), message, strikes, Timestamp::from_second(NOW).unwrap());
            assert_eq!(found, seconds.map(Duration::from_secs), "{status} {pairs:?} {message}");
        }
    }
}
