//! Our objects, by what they say of themselves.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Finding, Grade, Read, condition, named, some};
use crate::api::condition::Reason;
use crate::api::{ClusterAddon, ClusterStack, ClusterStackRelease, ClusterStackSource, ProviderNodeImageRelease};

/// What is said of an object that says nothing.
const NOT_LOOKED_AT: &str = "NotLookedAt";

/// What is said of an object that is being deleted, and goes on saying that it is as it should be.
const DELETION_NOT_SEEN: &str = "DeletionNotSeen";
/// How long an operator may take to say that it saw it.
const SEES: SignedDuration = SignedDuration::from_secs(60);

/// Whether an object is being deleted for so long that an operator would have said something of it.
fn is_unseen(object: &Value, now: Timestamp) -> bool {
    let since = object["metadata"]["deletionTimestamp"].as_str().and_then(|since| since.parse::<Timestamp>().ok());
    since.is_some_and(|since| now.duration_since(since) > SEES)
}

/// Whether this version can read an object: one that it can't is left alone, whatever it said before.
fn is_readable(kind: &str, object: &Value) -> bool {
    fn is<K: DeserializeOwned>(object: &Value) -> bool {
        serde_json::from_value::<K>(object.clone()).is_ok()
    }
    match kind {
        "ClusterStackSource" => is::<ClusterStackSource>(object),
        "ClusterStack" => is::<ClusterStack>(object),
        "ClusterStackRelease" => is::<ClusterStackRelease>(object),
        "ProviderNodeImageRelease" => is::<ProviderNodeImageRelease>(object),
        "ClusterAddon" => is::<ClusterAddon>(object),
        _ => true,
    }
}

/// How an object says that it is.
fn grade(kind: &str, object: &Value, now: Timestamp) -> Option<(Grade, String)> {
    if !is_readable(kind, object) {
        return Some((Grade::Bad, Reason::Unreadable.as_str().to_owned()));
    }
    if object["spec"]["suspend"] == true {
        return None;
    }
    if let Some(("True", reason, _)) = condition(object, "Stalled") {
        return Some((Grade::Bad, reason.to_owned()));
    }
    let ready = condition(object, "Ready");
    let reason = |word: &str| if word.is_empty() { "NotReady".to_owned() } else { word.to_owned() };
    if object["status"]["phase"] == "Failed" {
        return Some((Grade::Bad, ready.map_or_else(|| "Failed".to_owned(), |(_, word, _)| reason(word))));
    }
    match ready {
        Some(("True", ..)) => is_unseen(object, now).then(|| (Grade::Warning, DELETION_NOT_SEEN.to_owned())),
        Some((_, word, _)) => Some((Grade::Warning, reason(word))),
        None => Some((Grade::Warning, NOT_LOOKED_AT.to_owned())),
    }
}

/// What to do about objects that say this.
fn remedy(reason: &str) -> String {
    match Reason::named(reason) {
        None if reason == DELETION_NOT_SEEN => {
            "no operator has seen that they are being deleted: what is said of operators tells why".to_owned()
        }
        None if reason == NOT_LOOKED_AT => {
            "no operator has said anything of them yet: what is said of operators tells why".to_owned()
        }
        Some(Reason::Progressing | Reason::Fetching | Reason::Deleting) => {
            "nothing, it goes on by itself; clusterstack tree shows how far it is".to_owned()
        }
        Some(_) => format!("docs/operations.md tells what {reason} means; clusterstack tree shows more"),
        None => "clusterstack tree shows more".to_owned(),
    }
}

/// How those of a kind are.
pub(super) fn check(kind: &'static str, found: &Read<Vec<Value>>, now: Timestamp) -> Vec<Finding> {
    let found = match found {
        Ok(found) => found,
        Err(why) => return vec![Finding::unknown(kind, why)],
    };
    let mut by_reason: BTreeMap<(std::cmp::Reverse<Grade>, String), Vec<&Value>> = BTreeMap::new();
    for object in found {
        if let Some((grade, reason)) = grade(kind, object, now) {
            by_reason.entry((std::cmp::Reverse(grade), reason)).or_default().push(object);
        }
    }
    if by_reason.is_empty() {
        // A cluster without any is no news.
        return if found.is_empty() {
            Vec::new()
        } else {
            vec![Finding::good(kind, format!("all {} are as they should be", found.len()))]
        };
    }
    let of_reason = |((grade, reason), objects): (&(std::cmp::Reverse<Grade>, String), &Vec<&Value>)| {
        let names: Vec<String> = objects.iter().map(|object| named(object)).collect();
        // What it said last is of before.
        let is_untold = *reason == Reason::Unreadable.as_str() || reason == DELETION_NOT_SEEN;
        let told = objects.first().filter(|_| !is_untold);
        let message = told.and_then(|first| condition(first, "Ready")).map_or("", |(_, _, message)| message);
        let names = some(names.iter().map(String::as_str));
        let told = if message.is_empty() { String::new() } else { format!(": {message}") };
        let message = format!("{} of {} {reason}: {names}{told}", objects.len(), found.len());
        Finding::new(kind, grade.0, message, remedy(reason))
    };
    by_reason.iter().map(of_reason).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:02:00Z".parse().unwrap()
    }

    #[test]
    fn what_goes_on_to_be_ready_while_it_is_deleted_is_seen_by_nobody() {
        let ready = |since: &str, spec: Value| {
            json!({"metadata": {"name": "a", "namespace": "t", "deletionTimestamp": since}, "spec": spec,
                "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": "usable: v2"}]}})
        };
        let old = ready("2026-01-01T00:00:59Z", json!({}));
        let found = check("X", &Ok(vec![old]), now());
        let [only] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((only.grade, only.message.as_str()), (Grade::Warning, "1 of 1 DeletionNotSeen: t/a"));
        assert!(only.remedy.contains("no operator has seen"), "{only:?}");
        for object in
            [ready("2026-01-01T00:01:30Z", json!({})), ready("2026-01-01T00:00:00Z", json!({"suspend": true}))]
        {
            assert_eq!(grade("X", &object, now()), None, "{object}");
        }
    }

    #[test]
    fn an_object_that_fails_says_why() {
        let failed = |ready: Value| json!({"status": {"phase": "Failed", "conditions": [ready]}});
        for (object, expected) in [
            (
                failed(json!({"type": "Ready", "status": "False", "reason": "BuildFailed"})),
                Some((Grade::Bad, "BuildFailed")),
            ),
            (json!({"status": {"phase": "Failed"}}), Some((Grade::Bad, "Failed"))),
            (
                json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
                Some((Grade::Warning, "NotReady")),
            ),
            (json!({}), Some((Grade::Warning, NOT_LOOKED_AT))),
            (json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Ready"}]}}), None),
        ] {
            let expected = expected.map(|(grade, reason)| (grade, reason.to_owned()));
            assert_eq!(grade("X", &object, now()), expected, "{object}");
        }
    }

    #[test]
    fn what_this_version_cannot_read_is_told_whatever_it_said() {
        let conditions = json!([{"type": "Ready", "status": "True", "reason": "Ready", "message": "usable: v1"}]);
        let mut addon = json!({"metadata": {"name": "a"}, "spec": {"clusterRef": {"name": "c"}},
            "status": {"conditions": conditions, "stages": []}});
        assert_eq!(grade("ClusterAddon", &addon, now()), None);
        addon["status"]["stages"] = "junk".into();
        let found = check("ClusterAddon", &Ok(vec![addon]), now());
        let [only] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((only.grade, only.message.as_str()), (Grade::Bad, "1 of 1 Unreadable: a"));
        assert!(only.remedy.contains("docs/operations.md"), "{only:?}");
    }

    #[test]
    fn what_operations_are_told_to_read_is_there() {
        let book = include_str!("../../../docs/operations.md");
        for reason in ["SourceUnreachable", "BuildFailed", "SpecInvalid", "NoReleaseFound", "FailedToApplyObjects"] {
            assert!(remedy(reason).contains("docs/operations.md") && book.contains(&format!("`{reason}`")), "{reason}");
        }
        for reason in ["Progressing", "Fetching", "Deleting", "NotReady", "Failed", NOT_LOOKED_AT, DELETION_NOT_SEEN] {
            assert!(!remedy(reason).contains("docs/operations.md"), "{reason}");
        }
    }
}
