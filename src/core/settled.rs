//! Whether an object has come to rest after something was asked of it: as kstatus reads `Reconciling` and `Stalled`, and Flux its
//! `lastHandledReconcileAt`.

use serde_json::Value;

use crate::api::RECONCILE_AT;
use crate::api::condition::{self, Condition, ConditionType, Reason};

/// Bytes of an annotation that a status repeats at least.
const REPEATED: usize = 800;

/// How far the operator is with what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It has not come to it: what the object says of itself meanwhile, empty where that is nothing bad.
    Unseen(String),
    /// It is still at it: why.
    Under(String),
    /// It is done, and in order: what the object says of itself.
    Ready(String),
    /// It is done, and goes no further until somebody changes something: reason and message.
    Stalled(String, String),
    /// Nobody is to work on it: reason and message.
    Held(String, String),
}

/// What is asked of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    /// To be looked at anew.
    Look {
        /// The value of [`RECONCILE_AT`] that asks.
        at: &'a str,
        /// Its value before that, empty where it had none.
        before: &'a str,
    },
    /// To be as its spec says.
    Spec,
}

/// The annotation that asks for a look; empty without it.
pub fn asked_before(object: &Value) -> &str {
    object["metadata"]["annotations"][RECONCILE_AT].as_str().unwrap_or_default()
}

/// Whether the operator has seen what is asked: the generation of the object as it is, and the annotation. Who asks later asks for
/// this, too.
///
/// # Errors
/// Somebody took the annotation back, so it will not be seen.
pub fn is_seen(object: &Value, asked: Asked<'_>) -> Result<bool, &'static str> {
    let status = &object["status"];
    let is_observed = status["observedGeneration"].as_i64() >= object["metadata"]["generation"].as_i64();
    let Asked::Look { at, before } = asked else { return Ok(is_observed) };
    let handled = status["lastHandledReconcileAt"].as_str().unwrap_or_default();
    let latest = asked_before(object);
    if is_observed && handled == at {
        return Ok(true);
    }
    if latest == before || latest.is_empty() {
        return Err("somebody put the annotation back by which it was asked: ask again, or see who writes it");
    }
    // A status repeats the beginning of a long one.
    let is_latest = handled == latest || (handled.len() >= REPEATED && latest.starts_with(handled));
    Ok(is_observed && !handled.is_empty() && is_latest)
}

/// How far the operator is with an object.
pub fn rest(object: &Value, asked: Asked<'_>) -> Rest {
    /// Reasons of what is at rest because nobody is to work on it.
    const HELD: [Reason; 3] = [Reason::Suspended, Reason::Paused, Reason::Deleting];
    let conditions: Vec<Condition> = serde_json::from_value(object["status"]["conditions"].clone()).unwrap_or_default();
    let said = |type_| condition::find(&conditions, type_);
    let ready = said(ConditionType::Ready);
    match is_seen(object, asked) {
        Ok(true) => {}
        Ok(false) => {
            let not_ready = ready.filter(|ready| !ready.is_true());
            return Rest::Unseen(not_ready.map(spoken).unwrap_or_default());
        }
        Err(why) => return Rest::Held(String::new(), why.to_owned()),
    }
    if let Some(held) = ready.filter(|ready| HELD.iter().any(|reason| reason.as_str() == ready.reason)) {
        return Rest::Held(held.reason.clone(), held.message.clone());
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

/// What a ClusterStack that is Ready still waits for: releases of it that are Ready and were not looked at since. Who asks for the one
/// asks for the others. `None` where there is nothing.
///
/// One whose source is away says so by the reason of its `Ready`, and is not looked at before it is back.
pub fn behind(stack: &Value, releases: &[Value], at: &str) -> Option<String> {
    let latest = asked_before(stack);
    let is_listed = |name: &Value| {
        let mut rows = stack["status"]["summary"].as_array().into_iter().flatten();
        rows.any(|row| row["ready"] == true && row["name"] == *name)
    };
    releases.iter().find_map(|release| {
        let (metadata, status) = (&release["metadata"], &release["status"]);
        if is_going(release) || !is_listed(&metadata["name"]) {
            return None;
        }
        let name = metadata["name"].as_str().unwrap_or_default();
        let conditions: Vec<Condition> = serde_json::from_value(status["conditions"].clone()).unwrap_or_default();
        let ready = condition::find(&conditions, ConditionType::Ready);
        if let Some(ready) = ready.filter(|ready| !ready.is_true()) {
            return Some(format!("ClusterStackRelease {name}: {}", spoken(ready)));
        }
        let is_watched = ready.is_some_and(|ready| ready.reason == Reason::Ready.as_str());
        // A release repeats what its ClusterStack was asked between its generation and what it was asked itself.
        let handled = status["lastHandledReconcileAt"].as_str().unwrap_or_default();
        let is_handled = [at, latest].iter().any(|asked| !asked.is_empty() && handled.contains(asked));
        (is_watched && !is_handled).then(|| format!("ClusterStackRelease {name} is not looked at yet"))
    })
}

/// Why what a ClusterStack says that goes no further may be older than the request: a release of it was not looked at since, or is Ready
/// by now. `None` where it is not.
pub fn older(stack: &Value, releases: &[Value]) -> Option<String> {
    let handled = stack["status"]["lastHandledReconcileAt"].as_str().unwrap_or_default();
    let rows = stack["status"]["summary"].as_array().into_iter().flatten();
    rows.filter(|row| row["ready"] != true).find_map(|row| {
        let release = releases.iter().find(|release| release["metadata"]["name"] == row["name"])?;
        if is_going(release) {
            return None;
        }
        let (name, status) = (row["name"].as_str().unwrap_or_default(), &release["status"]);
        if status["ready"] == true {
            return Some(format!("ClusterStackRelease {name} is Ready, and the ClusterStack does not say so yet"));
        }
        let attempted = status["lastAttemptedReconcileAt"].as_str().unwrap_or_default();
        (attempted != handled).then(|| format!("ClusterStackRelease {name} is not looked at yet"))
    })
}

fn is_going(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

fn spoken(condition: &Condition) -> String {
    match condition.message.as_str() {
        "" => condition.reason.clone(),
        message => format!("{}: {message}", condition.reason),
    }
}

/// Who else applies a field of the spec again and again, by the managers of its fields: what is set beside them may be put back. Who
/// changed it once, as `kubectl patch` does, puts nothing back.
pub fn others_apply<'o>(object: &'o Value, field: &str) -> Vec<&'o str> {
    const UPDATERS: [&str; 2] = ["argocd-controller", "kubectl-client-side-apply"];
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let sets = |entry: &&Value| {
        let manager = entry["manager"].as_str().unwrap_or_default();
        let applies = entry["operation"] == "Apply" || UPDATERS.contains(&manager);
        applies && entry["fieldsV1"]["f:spec"].get(format!("f:{field}")).is_some()
    };
    entries.filter(sets).filter_map(|entry| entry["manager"].as_str()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn conditions(conditions: &[(&str, &str, &str)]) -> Vec<Value> {
        let one = |(type_, status, reason): &(&str, &str, &str)| {
            json!({"type": type_, "status": status, "reason": reason, "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        conditions.iter().map(one).collect()
    }

    fn object(observed: i64, annotation: &str, handled: &str, said: &[(&str, &str, &str)]) -> Value {
        json!({"metadata": {"generation": 2, "annotations": {RECONCILE_AT: annotation}},
            "status": {"observedGeneration": observed, "lastHandledReconcileAt": handled, "conditions": conditions(said)}})
    }

    const LOOK: Asked<'_> = Asked::Look { at: "now", before: "before" };

    #[test]
    fn a_look_is_seen_when_it_or_a_later_one_is_handled() {
        for (annotation, handled, expected) in [
            ("now", "now", Ok(true)),
            ("now", "before", Ok(false)),
            ("now", "", Ok(false)),
            // Somebody asked after us.
            ("Sun Nov 29 2026", "Sun Nov 29 2026", Ok(true)),
            ("Sun Nov 29 2026", "now", Ok(true)),
            ("Sun Nov 29 2026", "before", Ok(false)),
            ("later", "late", Ok(false)),
            (&"x".repeat(1000), &"x".repeat(900), Ok(true)),
            // It was seen before somebody put the old one back.
            ("before", "now", Ok(true)),
            ("before", "before", Err(())),
            // Somebody took it away.
            ("", "before", Err(())),
        ] {
            let seen = is_seen(&object(2, annotation, handled, &[]), LOOK).map_err(|_| ());
            assert_eq!(seen, expected, "{annotation} {handled}");
        }
        assert_eq!(is_seen(&object(1, "now", "now", &[]), LOOK), Ok(false), "an edit that is not seen yet");
        assert_eq!(is_seen(&object(2, "", "", &[]), Asked::Spec), Ok(true));
        assert_eq!(is_seen(&object(1, "", "", &[]), Asked::Spec), Ok(false));
        assert_eq!(is_seen(&json!({"metadata": {"generation": 1}}), Asked::Spec), Ok(false));
    }

    #[test]
    fn an_object_is_at_rest_when_it_is_ready_or_goes_no_further() {
        let under = |why: &str| Rest::Under(why.to_owned());
        let unseen = |says: &str| Rest::Unseen(says.to_owned());
        let stalled = |reason: &str| Rest::Stalled(reason.to_owned(), "m".to_owned());
        let held = |reason: &str| Rest::Held(reason.to_owned(), "m".to_owned());
        for (handled, said, expected) in [
            ("now", &[("Ready", "True", "Ready")][..], Rest::Ready("m".to_owned())),
            ("now", &[("Ready", "True", "SourceSuspended")], Rest::Ready("m".to_owned())),
            ("now", &[("Ready", "False", "A"), ("Reconciling", "True", "A")], under("A: m")),
            ("now", &[("Ready", "True", "A"), ("Reconciling", "True", "A")], under("A: m")),
            ("now", &[("Ready", "False", "A"), ("Stalled", "True", "B")], stalled("A")),
            // What stays is applied, and what comes can't be.
            ("now", &[("Ready", "True", "A"), ("Stalled", "True", "B")], stalled("B")),
            ("now", &[("Ready", "True", "A"), ("Stalled", "False", "B")], Rest::Ready("m".to_owned())),
            // Nobody is to work on it.
            ("now", &[("Ready", "True", "Suspended")], held("Suspended")),
            ("now", &[("Ready", "False", "Paused")], held("Paused")),
            ("now", &[("Ready", "Unknown", "A")], under("A: m")),
            ("now", &[], under("it says nothing yet")),
            ("old", &[("Ready", "True", "A")], unseen("")),
            ("old", &[("Ready", "False", "A"), ("Stalled", "True", "A")], unseen("A: m")),
        ] {
            assert_eq!(rest(&object(2, "now", handled, said), LOOK), expected, "{handled} {said:?}");
        }
    }

    #[test]
    fn releases_that_are_ready_have_to_be_looked_at_too() {
        let stack = json!({"metadata": {"annotations": {RECONCILE_AT: "later"}},
            "status": {"summary": [{"name": "v2", "ready": true}, {"name": "v1", "ready": false}]}});
        let release = |name: &str, handled: &str, ready: (&str, &str)| {
            json!({"metadata": {"name": name, "annotations": {RECONCILE_AT: "own"}},
                "status": {"lastHandledReconcileAt": handled, "conditions": conditions(&[("Ready", ready.0, ready.1)])}})
        };
        let yes = ("True", "Ready");
        for (name, handled, ready, expected) in [
            ("v2", "generation 1 now", yes, None),
            ("v2", "generation 1 later", yes, None),
            ("v2", "generation 1 now own", yes, None),
            // What it was asked itself, long ago.
            ("v2", "generation 1 own", yes, Some("ClusterStackRelease v2 is not looked at yet")),
            ("v2", "", yes, Some("ClusterStackRelease v2 is not looked at yet")),
            ("v2", "", ("True", "SourceUnreachable"), None),
            ("v2", "generation 1 now", ("False", "A"), Some("ClusterStackRelease v2: A: m")),
            // The ClusterStack says of it what it is.
            ("v1", "", yes, None),
            ("v0", "", yes, None),
        ] {
            let found = behind(&stack, &[release(name, handled, ready)], "now");
            assert_eq!(found.as_deref(), expected, "{name} {handled} {ready:?}");
        }
        let mut going = release("v2", "", yes);
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(behind(&stack, &[going], "now"), None);
    }

    #[test]
    fn a_failure_that_may_be_older_than_the_request_is_not_believed() {
        let stack = json!({"status": {"lastHandledReconcileAt": "now",
            "summary": [{"name": "v2", "ready": false}, {"name": "v1", "ready": true}]}});
        for (name, ready, attempted, going, expected) in [
            ("v2", false, "now", None, None),
            ("v2", false, "before", None, Some("ClusterStackRelease v2 is not looked at yet")),
            ("v2", false, "", None, Some("ClusterStackRelease v2 is not looked at yet")),
            ("v2", true, "", None, Some("ClusterStackRelease v2 is Ready, and the ClusterStack does not say so yet")),
            // It says what holds it.
            ("v2", false, "before", Some("2026-01-01T00:00:00Z"), None),
            ("v1", false, "before", None, None),
            ("v0", false, "before", None, None),
        ] {
            let release = json!({"metadata": {"name": name, "deletionTimestamp": going},
                "status": {"ready": ready, "lastAttemptedReconcileAt": attempted}});
            assert_eq!(older(&stack, &[release]).as_deref(), expected, "{name} {ready} {attempted} {going:?}");
        }
        assert_eq!(older(&stack, &[]), None);
    }

    #[test]
    fn who_else_applies_a_field_is_known() {
        let entry = |manager: &str, operation: &str, field: &str| json!({"manager": manager, "operation": operation, "fieldsV1": {"f:spec": {field: {}}}});
        let object = json!({"metadata": {"managedFields": [
            entry("kustomize-controller", "Apply", "f:suspend"), entry("kubectl", "Apply", "f:interval"),
            entry("kubectl-patch", "Update", "f:suspend"), entry("argocd-controller", "Update", "f:suspend"),
            {"manager": "status", "operation": "Apply", "fieldsV1": {"f:status": {}}},
        ]}});
        assert_eq!(others_apply(&object, "suspend"), ["kustomize-controller", "argocd-controller"]);
        assert!(others_apply(&json!({"metadata": {}}), "suspend").is_empty());
    }
}
