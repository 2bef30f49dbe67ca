//! What a row of an inventory tells of its object besides its state: whether it was applied, and by whom.
//!
//! A row's digest has two halves with a dot between them: what was last sent, and which fields were ours right after it. The
//! Go operator wrote rows without one.

use crate::api::cluster_stack_release::Resource;
use crate::api::condition::Reason;

/// Digest of an object that was about to be applied: nobody knows whether it was.
pub const ABOUT_TO_APPLY: &str = "?";

/// Digest of an object that we never applied: it was refused or left alone from the first.
pub const NEVER_APPLIED: &str = ".";

/// What was last sent, and what was ours right after it; each is empty where there is no record.
pub fn record(row: &Resource) -> (&str, &str) {
    match row.digest.as_str() {
        ABOUT_TO_APPLY => ("", ""),
        digest => digest.split_once('.').unwrap_or((digest, "")),
    }
}

/// Whether we applied the object at least once.
pub fn was_applied(row: &Resource) -> bool {
    !record(row).1.is_empty()
}

/// Whether the row is as the Go operator left it, of what it applied.
pub fn is_of_go_operator(row: &Resource) -> bool {
    row.digest.is_empty()
}

/// Whether the object was refused when it was to be applied for the first time, so that nothing of it is there.
pub fn was_refused_from_the_first(row: &Resource) -> bool {
    row.reason == Some(Reason::Forbidden) && row.digest != ABOUT_TO_APPLY && !was_applied(row)
}

/// Digest of the row of an object that was refused now, or left alone. An API server that did not answer may have done what
/// it was asked.
pub fn after_refusal(before: Option<&Resource>, reason: Reason) -> String {
    match before {
        Some(row) if was_applied(row) || is_of_go_operator(row) => row.digest.clone(),
        _ if reason == Reason::ApplyFailed => ABOUT_TO_APPLY.to_owned(),
        Some(row) => row.digest.clone(),
        None => NEVER_APPLIED.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(digest: &str) -> Resource {
        Resource { digest: digest.into(), ..Resource::default() }
    }

    #[test]
    fn a_row_tells_who_applied_its_object() {
        for (digest, applied, go) in [
            ("", false, true),
            (ABOUT_TO_APPLY, false, false),
            (NEVER_APPLIED, false, false),
            ("sent.", false, false),
            ("sent.owned", true, false),
        ] {
            assert_eq!((was_applied(&row(digest)), is_of_go_operator(&row(digest))), (applied, go), "{digest:?}");
        }
        assert_eq!(record(&row("sent.owned")), ("sent", "owned"));
        for digest in ["", ABOUT_TO_APPLY, NEVER_APPLIED] {
            assert_eq!(record(&row(digest)), ("", ""), "{digest:?} is no record");
        }
    }

    #[test]
    fn what_was_refused_at_first_is_told_from_what_may_have_been_applied() {
        for (reason, digest, expected) in [
            (Some(Reason::Forbidden), "", true),
            (Some(Reason::Forbidden), NEVER_APPLIED, true),
            (Some(Reason::Forbidden), "sent.", true),
            (Some(Reason::Forbidden), ABOUT_TO_APPLY, false),
            (Some(Reason::Forbidden), "sent.owned", false),
            (Some(Reason::ApplyFailed), "", false),
            (None, "", false),
        ] {
            let row = Resource { reason, ..row(digest) };
            assert_eq!(was_refused_from_the_first(&row), expected, "{reason:?} {digest}");
        }
    }

    #[test]
    fn a_refusal_forgets_nothing_that_was_applied() {
        for (before, reason, expected) in [
            (None, Reason::Forbidden, NEVER_APPLIED),
            (None, Reason::ApplyFailed, ABOUT_TO_APPLY),
            (Some(NEVER_APPLIED), Reason::ApplyFailed, ABOUT_TO_APPLY),
            (Some(NEVER_APPLIED), Reason::Forbidden, NEVER_APPLIED),
            (Some(ABOUT_TO_APPLY), Reason::Forbidden, ABOUT_TO_APPLY),
            (Some("sent.owned"), Reason::ApplyFailed, "sent.owned"),
            (Some("sent.owned"), Reason::Forbidden, "sent.owned"),
            (Some(""), Reason::ApplyFailed, ""),
        ] {
            assert_eq!(after_refusal(before.map(row).as_ref(), reason), expected, "{before:?} {reason:?}");
        }
    }
}
