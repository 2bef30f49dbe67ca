//! Words and signs of the page: states that do not speak by colour alone, counts, times, texts of others.

use jiff::Timestamp;
use serde::Serialize;

use crate::api::Condition;
use crate::api::condition::{ConditionType, cut};
use crate::api::image_release::ImagePhase;
use crate::core::direction::turns;
use crate::core::name::ReleaseName;

/// Longest message, in bytes.
pub const MAX_TEXT: usize = 600;

/// A state: a word, a sign, and a colour on top of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Badge {
    /// Class of its colour: `good`, `bad`, `busy`, `unsure`.
    pub tone: &'static str,
    /// A sign, which screen readers pass over.
    pub sign: &'static str,
    /// The word.
    pub word: &'static str,
}

impl Badge {
    const GOOD: (&str, &str) = ("good", "✓");
    const BAD: (&str, &str) = ("bad", "✕");
    const BUSY: (&str, &str) = ("busy", "…");
    const UNSURE: (&str, &str) = ("unsure", "?");

    fn new((tone, sign): (&'static str, &'static str), word: &'static str) -> Self {
        Self { tone, sign, word }
    }

    /// Whether something is ready.
    pub fn ready(ready: Option<bool>) -> Self {
        match ready {
            Some(true) => Self::new(Self::GOOD, "Ready"),
            Some(false) => Self::new(Self::BAD, "Not ready"),
            None => Self::new(Self::UNSURE, "Unknown"),
        }
    }

    /// The status of a condition. Of some types `True` is no good news.
    pub fn condition(condition: &Condition) -> Self {
        let tells_trouble =
            |one: &ConditionType| matches!(one, ConditionType::Stalled | ConditionType::ArtifactChanged);
        let type_ = ConditionType::named(&condition.type_);
        let is_trouble = type_.as_ref().is_some_and(tells_trouble);
        let is_work = type_ == Some(ConditionType::Reconciling);
        match condition.status.as_str() {
            "True" if is_work => Self::new(Self::BUSY, "True"),
            "True" => Self::new(if is_trouble { Self::BAD } else { Self::GOOD }, "True"),
            "False" => Self::new(if is_trouble || is_work { Self::GOOD } else { Self::BAD }, "False"),
            _ => Self::new(Self::UNSURE, "Unknown"),
        }
    }

    /// How far an image is.
    pub fn phase(phase: ImagePhase) -> Self {
        match phase {
            ImagePhase::Queued => Self::new(Self::UNSURE, "Queued"),
            ImagePhase::Running => Self::new(Self::BUSY, "Running"),
            ImagePhase::Succeeded => Self::new(Self::GOOD, "Succeeded"),
            ImagePhase::Failed => Self::new(Self::BAD, "Failed"),
            ImagePhase::Cancelled => Self::new(Self::UNSURE, "Cancelled"),
            ImagePhase::Suspended => Self::new(Self::UNSURE, "Suspended"),
        }
    }
}

/// A time for people and for machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// RFC 3339, in UTC.
    pub exact: String,
    /// To the minute.
    pub text: String,
}

impl From<Timestamp> for Moment {
    fn from(time: Timestamp) -> Self {
        let whole = crate::api::condition::whole_seconds(time);
        Self { exact: whole.to_string(), text: whole.strftime("%Y-%m-%d %H:%M UTC").to_string() }
    }
}

/// A text of others: on one line, bounded, and without characters that would change what stands around it. It is not
/// escaped: that is the templates' part.
pub fn clean(text: &str) -> String {
    // What is cut off later is not looked at.
    let text = &text[..text.floor_char_boundary(MAX_TEXT * 2)];
    let plain: String = text.chars().map(|c| if c.is_control() || turns(c) { ' ' } else { c }).collect();
    let words: Vec<&str> = plain.split_whitespace().collect();
    cut(&words.join(" "), MAX_TEXT)
}

/// `1 Cluster`, `2 Clusters`.
pub fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// `v2` of a release's name; the name itself where it is none.
pub fn version(release: &str) -> String {
    release.parse::<ReleaseName>().map_or_else(|_| clean(release), |name| name.version.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_others_are_one_bounded_line() {
        for (text, expected) in [
            ("plain", "plain"),
            ("two\nlines\t and\u{0}\u{1b}[31m more ", "two lines and [31m more"),
            ("v1\u{202e}3v", "v1 3v"),
            ("<b>", "<b>"),
        ] {
            assert_eq!(clean(text), expected);
        }
        let long = clean(&"ä".repeat(100_000));
        assert!(long.len() <= MAX_TEXT && long.ends_with('…'), "{}", long.len());
    }

    #[test]
    fn a_condition_that_tells_of_trouble_is_no_good_news() {
        let tone = |type_: &str, status: &str| {
            let condition = serde_json::json!({"type": type_, "status": status});
            Badge::condition(&serde_json::from_value(condition).unwrap()).tone
        };
        for (type_, status, expected) in [
            ("Ready", "True", "good"),
            ("Ready", "False", "bad"),
            ("Ready", "Unknown", "unsure"),
            ("Stalled", "True", "bad"),
            ("Stalled", "False", "good"),
            ("Reconciling", "True", "busy"),
            ("Reconciling", "False", "good"),
            ("OfAnotherVersion", "True", "good"),
            ("Ready", "<b>", "unsure"),
        ] {
            assert_eq!(tone(type_, status), expected, "{type_} {status}");
        }
    }

    #[test]
    fn versions_counts_and_times_are_short() {
        assert_eq!([version("docker-x-1-34-v2"), version("other")], ["v2", "other"]);
        assert_eq!([counted(1, "Cluster"), counted(0, "Cluster")], ["1 Cluster", "0 Clusters"]);
        let moment = Moment::from("2026-01-02T03:04:05.678Z".parse::<Timestamp>().unwrap());
        assert_eq!([moment.exact.as_str(), moment.text.as_str()], ["2026-01-02T03:04:05Z", "2026-01-02 03:04 UTC"]);
    }
}
