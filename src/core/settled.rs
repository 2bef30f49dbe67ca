//! Whether an object has come to rest after something was asked of it: as kstatus reads `Reconciling` and `Stalled`, and Flux its
//! `lastHandledReconcileAt`.

use serde_json::Value;

use crate::api::RECONCILE_AT;
use crate::api::condition::{self, Condition, ConditionType};

/// How far the operator is with what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It has not come to it, or is still at it: why.
    Under(String),
    /// It is done, and in order: what the object says of itself.
    Ready(String),
    /// It is done, and goes no further until somebody changes something: reason and message.
    Stalled(String, String),
}

/// What is asked of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    /// To be looked at anew: the value of [`RECONCILE_AT`].
    Look(&'a str),
    /// To be as its spec says.
    Spec,
}

/// Whether the operator has seen what is asked: the generation of the object as it is, and the annotation. Who asked later asked for
/// this, too.
pub fn is_seen(object: &Value, asked: Asked<'_>) -> bool {
    let status = &object["status"];
    let is_observed = status["observedGeneration"].as_i64() >= object["metadata"]["generation"].as_i64();
    let Asked::Look(asked) = asked else { return is_observed };
    let latest = object["metadata"]["annotations"][RECONCILE_AT].as_str().unwrap_or(asked);
    // A release repeats what its ClusterStack was asked as well.
    let mut handled = status["lastHandledReconcileAt"].as_str().unwrap_or_default().split(' ');
    is_observed && handled.any(|word| word == asked || word == latest)
}

/// How far the operator is with an object.
pub fn rest(object: &Value, asked: Asked<'_>) -> Rest {
    let conditions: Vec<Condition> = serde_json::from_value(object["status"]["conditions"].clone()).unwrap_or_default();
    let said = |type_| condition::find(&conditions, type_);
    let ready = said(ConditionType::Ready);
    if !is_seen(object, asked) {
        let not_ready = ready.filter(|ready| !ready.is_true());
        let why = not_ready.map(|ready| format!("; it says {}", spoken(ready))).unwrap_or_default();
        return Rest::Under(format!("waiting for the operator{why}"));
    }
    if let Some(stalled) = said(ConditionType::Stalled).filter(|stalled| stalled.is_true()) {
        let reason = ready.filter(|ready| !ready.is_true()).unwrap_or(stalled);
        return Rest::Stalled(reason.reason.clone(), reason.message.clone());
    }
    let is_at_it = said(ConditionType::Reconciling).is_some_and(Condition::is_true);
    match ready {
        Some(ready) if ready.is_true() && !is_at_it => Rest::Ready(ready.message.clone()),
        Some(ready) => Rest::Under(spoken(ready)),
        None => Rest::Under("it says nothing yet".to_owned()),
    }
}

fn spoken(condition: &Condition) -> String {
    match condition.message.as_str() {
        "" => condition.reason.clone(),
        message => format!("{}: {message}", condition.reason),
    }
}

/// Who else applies a field of the spec, by the managers of its fields: what is set beside them may be put back.
pub fn others_set<'o>(object: &'o Value, field: &str, own: &str) -> Vec<&'o str> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let sets = |entry: &&Value| entry["fieldsV1"]["f:spec"].get(format!("f:{field}")).is_some();
    entries.filter(sets).filter_map(|entry| entry["manager"].as_str()).filter(|manager| *manager != own).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(observed: i64, handled: &str, conditions: &[(&str, &str)]) -> Value {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, status)| {
                json!({"type": type_, "status": status, "reason": format!("{type_}Reason"), "message": "m",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        json!({"metadata": {"generation": 2, "annotations": {RECONCILE_AT: "now"}},
            "status": {"observedGeneration": observed, "lastHandledReconcileAt": handled, "conditions": conditions}})
    }

    #[test]
    fn what_was_asked_before_counts_when_what_was_asked_later_is_seen() {
        for (handled, asked, expected) in [
            ("now", Asked::Look("now"), true),
            ("before", Asked::Look("now"), false),
            // Somebody else asked after us.
            ("now", Asked::Look("before"), true),
            ("generation 2 now", Asked::Look("now"), true),
            ("generation 2 now later", Asked::Look("now"), true),
            ("generation 2", Asked::Look("now"), false),
            ("", Asked::Look("now"), false),
            ("", Asked::Spec, true),
        ] {
            assert_eq!(is_seen(&object(2, handled, &[]), asked), expected, "{handled} {asked:?}");
            assert!(!is_seen(&object(1, handled, &[]), asked), "an edit that is not seen yet");
        }
        assert!(!is_seen(&json!({"metadata": {"generation": 1}}), Asked::Spec));
    }

    #[test]
    fn an_object_is_at_rest_when_it_is_ready_or_goes_no_further() {
        let under = |why: &str| Rest::Under(why.to_owned());
        let stalled = |reason: &str| Rest::Stalled(reason.to_owned(), "m".to_owned());
        for (handled, conditions, expected) in [
            ("now", &[("Ready", "True")][..], Rest::Ready("m".to_owned())),
            ("now", &[("Ready", "False"), ("Reconciling", "True")], under("ReadyReason: m")),
            ("now", &[("Ready", "True"), ("Reconciling", "True")], under("ReadyReason: m")),
            ("now", &[("Ready", "False"), ("Stalled", "True")], stalled("ReadyReason")),
            // What stays is applied, and what comes can't be.
            ("now", &[("Ready", "True"), ("Stalled", "True")], stalled("StalledReason")),
            ("now", &[("Ready", "True"), ("Stalled", "False")], Rest::Ready("m".to_owned())),
            ("now", &[("Ready", "Unknown")], under("ReadyReason: m")),
            ("now", &[], under("it says nothing yet")),
            ("old", &[("Ready", "True")], under("waiting for the operator")),
            (
                "old",
                &[("Ready", "False"), ("Stalled", "True")],
                under("waiting for the operator; it says ReadyReason: m"),
            ),
        ] {
            assert_eq!(rest(&object(2, handled, conditions), Asked::Look("now")), expected, "{handled} {conditions:?}");
        }
    }

    #[test]
    fn who_else_sets_a_field_is_known() {
        let entry = |manager: &str, field: &str| json!({"manager": manager, "fieldsV1": {"f:spec": {field: {}}}});
        let object = json!({"metadata": {"managedFields": [
            entry("kustomize-controller", "f:suspend"), entry("kubectl", "f:interval"), entry("own", "f:suspend"),
            {"manager": "status", "fieldsV1": {"f:status": {}}},
        ]}});
        assert_eq!(others_set(&object, "suspend", "own"), ["kustomize-controller"]);
        assert!(others_set(&json!({"metadata": {}}), "suspend", "own").is_empty());
    }
}
