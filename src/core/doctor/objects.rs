//! Our objects, by what they say of themselves.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Finding, Grade, Read, condition, named, some};

/// How an object says that it is.
fn grade(object: &Value) -> Option<(Grade, String)> {
    if object["spec"]["suspend"] == true {
        return None;
    }
    if let Some(("True", reason, _)) = condition(object, "Stalled") {
        return Some((Grade::Bad, reason.to_owned()));
    }
    if object["status"]["phase"] == "Failed" {
        return Some((Grade::Bad, "Failed".to_owned()));
    }
    match condition(object, "Ready") {
        Some(("True", ..)) => None,
        Some((_, reason, _)) => Some((Grade::Warning, reason.to_owned())),
        None => Some((Grade::Warning, "NotLookedAt".to_owned())),
    }
}

/// How those of a kind are.
pub(super) fn check(kind: &'static str, found: &Read<Vec<Value>>) -> Vec<Finding> {
    let found = match found {
        Ok(found) => found,
        Err(why) => return vec![Finding::unknown(kind, why)],
    };
    let mut by_reason: BTreeMap<(std::cmp::Reverse<Grade>, String), Vec<&Value>> = BTreeMap::new();
    for object in found {
        if let Some((grade, reason)) = grade(object) {
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
        let message = objects.first().and_then(|first| condition(first, "Ready")).map_or("", |(_, _, message)| message);
        let names = some(names.iter().map(String::as_str));
        let told = if message.is_empty() { String::new() } else { format!(": {message}") };
        let message = format!("{} of {} {reason}: {names}{told}", objects.len(), found.len());
        Finding::new(
            kind,
            grade.0,
            message,
            format!("docs/operations.md tells what {reason} means; clusterstack tree shows more"),
        )
    };
    by_reason.iter().map(of_reason).collect()
}
