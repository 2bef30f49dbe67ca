//! Whether an image that was brought to its destination is still there.

use std::time::Duration;

use jiff::Timestamp;

/// How often is looked, unless the template says.
pub const INTERVAL: Duration = Duration::from_hours(6);
/// How often at most, whatever the template says.
pub const SHORTEST: Duration = Duration::from_secs(1);
/// How soon is looked again where the destination did not answer.
pub const AGAIN: Duration = Duration::from_mins(10);

/// What a look at the destination comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is there for us.
    Kept,
    /// It is there, but says no more that we use it: another management cluster may remove it.
    Unmarked,
    /// It is not there, for this reason.
    Lost(String),
}

/// What was `found` under the image's name (its digest, and the ids of who uses it) comes to.
pub fn presence(found: Option<(&str, &[String])>, digest: &str, cluster: &str) -> Presence {
    match found {
        None => Presence::Lost("it is not there any more".to_owned()),
        Some((other, _)) if other != digest => Presence::Lost(format!("an image of {other} has its name")),
        Some((_, users)) if users.iter().any(|user| user == cluster) => Presence::Kept,
        Some(_) => Presence::Unmarked,
    }
}

/// How long until the next look is due.
pub fn left(looked: Timestamp, interval: Duration, now: Timestamp) -> Duration {
    let since = Duration::try_from(now.duration_since(looked)).unwrap_or_default();
    interval.saturating_sub(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_there_for_us_or_not() {
        let us = ["them".to_owned(), "us".to_owned()];
        for (found, expected) in [
            (Some(("sha256:1", us.as_slice())), Presence::Kept),
            (Some(("sha256:1", &us[..1])), Presence::Unmarked),
            (Some(("sha256:1", &[])), Presence::Unmarked),
            (Some(("sha256:2", us.as_slice())), Presence::Lost("an image of sha256:2 has its name".into())),
            (None, Presence::Lost("it is not there any more".into())),
        ] {
            assert_eq!(presence(found, "sha256:1", "us"), expected, "{found:?}");
        }
    }

    #[test]
    fn a_look_is_due_after_its_interval() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let hour = Duration::from_hours(1);
        for (looked, now, seconds) in [(0, 0, 3600), (0, 3000, 600), (0, 3600, 0), (0, 9000, 0), (100, 0, 3600)] {
            assert_eq!(left(at(looked), hour, at(now)).as_secs(), seconds, "{looked} {now}");
        }
    }
}
