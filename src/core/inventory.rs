//! What a row of an inventory tells of its object besides its state: whether it was applied, and by whom.
//!
//! A row's digest has two halves with a dot between them: what was last sent, and which fields were ours right after it. The
//! Go operator wrote rows without one.

use crate::api::cluster_stack_release::{Resource, ResourceStatus};
use crate::api::condition::Reason;

/// Digest of an object that was about to be applied: nobody knows whether it was.
pub const ABOUT_TO_APPLY: &str = "?";

/// Digest of an object that we never applied: it was refused or left alone from the first.
pub const NEVER_APPLIED: &str = ".";

/// Digest of an object that the Go operator applied and we did not yet.
pub const OF_GO_OPERATOR: &str = "go";

/// Second half of the digest of an object that a newer release of the same ClusterStack has as well, and applies: it is there, and nothing
/// of it is recorded as ours.
const OF_SIBLING: &str = "sibling";

/// Digest of an object that is left to a newer release; `wanted` is the digest of what would be sent.
pub fn left_to_sibling(wanted: &str) -> String {
    format!("{wanted}.{OF_SIBLING}")
}

/// Whether an object was left to a newer release when it was looked at last.
pub fn is_left_to_sibling(row: &Resource) -> bool {
    row.digest.split_once('.').is_some_and(|(_, owned)| owned == OF_SIBLING)
}

/// What was last sent, and what was ours right after it; each is empty where there is no record.
pub fn record(row: &Resource) -> (&str, &str) {
    match row.digest.as_str() {
        ABOUT_TO_APPLY | OF_GO_OPERATOR => ("", ""),
        _ if is_left_to_sibling(row) => ("", ""),
        digest => digest.split_once('.').unwrap_or((digest, "")),
    }
}

/// Whether we applied the object at least once.
pub fn was_applied(row: &Resource) -> bool {
    !record(row).1.is_empty()
}

/// Whether all of a release was applied at least once, by us or by the Go operator, or is by a newer release that has it as well.
pub fn is_applied(rows: &[Resource]) -> bool {
    let is_there = |row: &Resource| was_applied(row) || is_of_go_operator(row) || is_left_to_sibling(row);
    !rows.is_empty() && rows.iter().all(is_there)
}

/// Whether the Go operator applied the object and we did not yet. It knew no reasons: a row without a digest that has one is ours.
pub fn is_of_go_operator(row: &Resource) -> bool {
    row.digest == OF_GO_OPERATOR || (row.digest.is_empty() && row.reason.is_none())
}

/// Whether nobody knows if any of these objects was applied; also where there is none.
pub fn is_unproved(rows: &[Resource]) -> bool {
    rows.iter().all(|row| row.digest == ABOUT_TO_APPLY)
}

/// Whether an object was as it is wanted when it was last seen; `wanted` is the digest of what would be sent.
pub fn was_synced(row: &Resource, wanted: &str) -> bool {
    let sent = row.digest.split_once('.').map(|(sent, _)| sent);
    row.status == ResourceStatus::Synced && sent == Some(wanted)
}

/// Whether the object was refused when it was to be applied for the first time, so that nothing of it is there.
pub fn was_refused_from_the_first(row: &Resource) -> bool {
    let may_be_there = row.digest == ABOUT_TO_APPLY || was_applied(row) || is_of_go_operator(row);
    row.reason == Some(Reason::Forbidden) && !may_be_there
}

/// Digest of the row of an object that is left as it is.
pub fn kept(before: Option<&Resource>) -> String {
    match before {
        None => NEVER_APPLIED.to_owned(),
        Some(row) if is_of_go_operator(row) => OF_GO_OPERATOR.to_owned(),
        Some(row) => row.digest.clone(),
    }
}

/// Digest of the row of an object that was refused now. An API server that did not answer may have done what it was asked; what it
/// refused for good is not there if it was not there before (`is_absent`).
pub fn after_refusal(before: Option<&Resource>, reason: Reason, is_absent: bool) -> String {
    match before {
        Some(row) if was_applied(row) || is_of_go_operator(row) => kept(before),
        _ if reason == Reason::ApplyFailed => ABOUT_TO_APPLY.to_owned(),
        Some(row) if row.digest == ABOUT_TO_APPLY && is_absent => NEVER_APPLIED.to_owned(),
        _ => kept(before),
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
            (OF_GO_OPERATOR, false, true),
            (ABOUT_TO_APPLY, false, false),
            (NEVER_APPLIED, false, false),
            ("sent.", false, false),
            ("sent.owned", true, false),
        ] {
            assert_eq!((was_applied(&row(digest)), is_of_go_operator(&row(digest))), (applied, go), "{digest:?}");
        }
        assert_eq!(record(&row("sent.owned")), ("sent", "owned"));
        for digest in ["", ABOUT_TO_APPLY, NEVER_APPLIED, OF_GO_OPERATOR] {
            assert_eq!(record(&row(digest)), ("", ""), "{digest:?} is no record");
        }
        let ours_without = Resource { reason: Some(Reason::Forbidden), ..row("") };
        assert!(!is_of_go_operator(&ours_without), "the Go operator knew no reasons");
        assert!(is_unproved(&[]) && is_unproved(&[row(ABOUT_TO_APPLY)]));
        assert!(!is_unproved(&[row(ABOUT_TO_APPLY), row(NEVER_APPLIED)]));
    }

    #[test]
    fn what_a_newer_release_has_as_well_counts_as_applied_and_is_no_record_of_ours() {
        let left = row(&left_to_sibling("sent"));
        assert!(is_applied(&[left.clone(), row("sent.owned")]) && !is_applied(&[left.clone(), row("sent.")]));
        assert!(!was_applied(&left) && !is_unproved(std::slice::from_ref(&left)));
        assert_eq!(record(&left), ("", ""));
        assert!(was_synced(&Resource { status: ResourceStatus::Synced, ..left }, "sent"));
    }

    #[test]
    fn only_what_was_synced_as_wanted_is_taken_as_it_was() {
        let row = |status, digest: &str| Resource { status, ..row(digest) };
        assert!(was_synced(&row(ResourceStatus::Synced, "want.owned"), "want"));
        assert!(!was_synced(&row(ResourceStatus::Synced, "other.owned"), "want"));
        assert!(!was_synced(&row(ResourceStatus::NotSynced, "want.owned"), "want"));
        assert!(!was_synced(&row(ResourceStatus::Synced, ""), "want"));
    }

    #[test]
    fn what_was_refused_at_first_is_told_from_what_may_have_been_applied() {
        for (reason, digest, expected) in [
            (Some(Reason::Forbidden), "", true),
            (Some(Reason::Forbidden), NEVER_APPLIED, true),
            (Some(Reason::Forbidden), "sent.", true),
            (Some(Reason::Forbidden), ABOUT_TO_APPLY, false),
            (Some(Reason::Forbidden), OF_GO_OPERATOR, false),
            (Some(Reason::Forbidden), "sent.owned", false),
            (Some(Reason::ApplyFailed), NEVER_APPLIED, false),
            (None, "", false),
        ] {
            let row = Resource { reason, ..row(digest) };
            assert_eq!(was_refused_from_the_first(&row), expected, "{reason:?} {digest}");
        }
    }

    #[test]
    fn a_refusal_forgets_nothing_that_was_applied() {
        for (before, reason, is_absent, expected) in [
            (None, Reason::Forbidden, true, NEVER_APPLIED),
            (None, Reason::ApplyFailed, true, ABOUT_TO_APPLY),
            (Some(NEVER_APPLIED), Reason::ApplyFailed, true, ABOUT_TO_APPLY),
            (Some(NEVER_APPLIED), Reason::Forbidden, false, NEVER_APPLIED),
            (Some(ABOUT_TO_APPLY), Reason::Forbidden, false, ABOUT_TO_APPLY),
            (Some(ABOUT_TO_APPLY), Reason::Forbidden, true, NEVER_APPLIED),
            (Some("sent.owned"), Reason::ApplyFailed, true, "sent.owned"),
            (Some("sent.owned"), Reason::Forbidden, true, "sent.owned"),
            (Some(""), Reason::ApplyFailed, false, OF_GO_OPERATOR),
            (Some(OF_GO_OPERATOR), Reason::Forbidden, true, OF_GO_OPERATOR),
        ] {
            let after = after_refusal(before.map(row).as_ref(), reason, is_absent);
            assert_eq!(after, expected, "{before:?} {reason:?} {is_absent}");
        }
    }
}
