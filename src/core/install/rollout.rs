//! Whether a workload runs as it was applied, and what it waits for: as `kubectl rollout status` tells it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::core::manifest::ObjectKey;

/// What a `Deployment` or `StatefulSet` waits for; `None` if every replica is of its last form and ready.
pub fn waits_for(workload: &Value) -> Option<String> {
    let (status, spec) = (&workload["status"], &workload["spec"]);
    let number = |name: &str| status[name].as_i64().unwrap_or_default();
    if number("observedGeneration") < workload["metadata"]["generation"].as_i64().unwrap_or(1) {
        return Some("its controller has not seen it yet".to_owned());
    }
    let wanted = spec["replicas"].as_i64().unwrap_or(1);
    let (updated, ready, all) = (number("updatedReplicas"), number("readyReplicas"), number("replicas"));
    if updated < wanted {
        return Some(format!("{updated} of {wanted} replicas are of the new form"));
    }
    if ready < wanted {
        return Some(format!("{ready} of {wanted} replicas are ready"));
    }
    (all > wanted).then(|| format!("{} replicas of the old form are ending", all - wanted))
}

/// Why an object that is being deleted is still there; `None` if it is to stay.
pub fn leaving(live: &Value) -> Option<String> {
    let metadata = &live["metadata"];
    if metadata["deletionTimestamp"].is_null() {
        return None;
    }
    let conditions = live["status"]["conditions"].as_array().into_iter().flatten();
    let told = conditions.filter(|one| one["type"] == "Terminating").find_map(|one| one["message"].as_str());
    let finalizers = metadata["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let held = || format!("{} has to let it go", finalizers.collect::<Vec<_>>().join(", "));
    Some(told.filter(|told| !told.is_empty()).map_or_else(held, str::to_owned))
}

/// What of a workload that is being deleted still runs; `pods` are those of its selector. It may be there without: claims may take
/// longer.
pub fn ending(name: &str, pods: &[Value]) -> Option<String> {
    not_ended(pods).map(|left| format!("{name} to end: {left}"))
}

/// Those of the pods that work still, with their nodes: one that is ending works on until it has ended.
pub fn not_ended(pods: &[Value]) -> Option<String> {
    let has_ended = |pod: &&Value| pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed";
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let told = |pod: &Value| {
        let node = pod["spec"]["nodeName"].as_str().map_or_else(String::new, |node| format!(" on node {node}"));
        format!("pod {}{node}", text(&pod["metadata"]["name"]))
    };
    let left: Vec<String> = pods.iter().filter(|pod| !has_ended(pod)).map(told).collect();
    (!left.is_empty()).then(|| left.join(", "))
}

/// Whether the pods of a workload that was `before` work on with tokens of a `ServiceAccount` that is gone: one of its name was `made`,
/// and nothing else has them exchanged.
pub fn has_old_account(before: &Value, after: &Value, made: &[ObjectKey]) -> bool {
    let (template, namespace) = (&after["spec"]["template"], &after["metadata"]["namespace"]);
    let is_its = |account: &ObjectKey| {
        account.kind == "ServiceAccount"
            && *namespace == account.namespace.as_str()
            && template["spec"]["serviceAccountName"] == account.name.as_str()
    };
    before["spec"]["template"] == *template && made.iter().any(is_its)
}

/// What is waited for, with the reasons of the pods that are in the way.
pub fn told(name: &str, waits: &str, pods: &[Value]) -> String {
    let mut by_reason: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, reason) in pods.iter().filter_map(reason) {
        by_reason.entry(reason).or_default().push(name);
    }
    let reasons: Vec<String> = by_reason
        .into_iter()
        .map(|(reason, pods)| match pods[..] {
            [one] => format!("pod {one}: {reason}"),
            _ => format!("{} pods: {reason}", pods.len()),
        })
        .collect();
    let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
    format!("{name}: {waits}{reasons}")
}

/// Why a pod is not ready, where it says so.
fn reason(pod: &Value) -> Option<(&str, String)> {
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return None;
    }
    let name = pod["metadata"]["name"].as_str()?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let waiting = list(&pod["status"]["containerStatuses"]).into_iter().find_map(|one| {
        let waiting = &one["state"]["waiting"];
        let reason = waiting["reason"].as_str().filter(|reason| *reason != "ContainerCreating")?;
        Some((reason.to_owned(), waiting["message"].as_str().unwrap_or_default().to_owned()))
    });
    let scheduled = || {
        list(&pod["status"]["conditions"]).into_iter().find_map(|one| {
            let is_stuck = one["type"] == "PodScheduled" && one["status"] == "False";
            is_stuck.then(|| {
                let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
                (text("reason"), text("message"))
            })
        })
    };
    let (reason, message) = waiting.or_else(scheduled)?;
    Some((name, if message.is_empty() { reason } else { format!("{reason}: {message}") }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rollout_is_waited_for_as_kubectl_does() {
        let workload = |seen: i64, updated: i64, ready: i64, all: i64| {
            json!({
                "metadata": {"generation": 2}, "spec": {"replicas": 2},
                "status": {"observedGeneration": seen, "updatedReplicas": updated, "readyReplicas": ready, "replicas": all},
            })
        };
        for (workload, expected) in [
            (workload(1, 2, 2, 2), Some("its controller has not seen it yet")),
            (workload(2, 1, 2, 3), Some("1 of 2 replicas are of the new form")),
            (workload(2, 2, 1, 2), Some("1 of 2 replicas are ready")),
            (workload(2, 2, 2, 3), Some("1 replicas of the old form are ending")),
            (workload(2, 2, 2, 2), None),
            (json!({}), Some("its controller has not seen it yet")),
            (
                json!({"spec": {"replicas": 0}, "metadata": {"generation": 1}, "status": {"observedGeneration": 1}}),
                None,
            ),
        ] {
            assert_eq!(waits_for(&workload).as_deref(), expected, "{workload}");
        }
    }

    #[test]
    fn what_is_being_deleted_says_what_holds_it() {
        let metadata = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]});
        let terminating =
            json!([{"type": "Established", "message": "m"}, {"type": "Terminating", "message": "2 left"}]);
        for (live, expected) in [
            (json!({"metadata": {"finalizers": ["a"]}}), None),
            (json!({"metadata": metadata}), Some("foregroundDeletion has to let it go")),
            (json!({"metadata": metadata, "status": {"conditions": terminating}}), Some("2 left")),
        ] {
            assert_eq!(leaving(&live).as_deref(), expected, "{live}");
        }
    }

    #[test]
    fn what_ends_names_its_pods() {
        let pod = |name: &str, node: Option<&str>, phase: &str| json!({"metadata": {"name": name}, "spec": {"nodeName": node}, "status": {"phase": phase}});
        for (pods, expected) in [
            (vec![], None),
            (vec![pod("a", Some("n"), "Failed"), pod("b", None, "Succeeded")], None),
            (vec![pod("a", Some("n"), "Running"), pod("b", None, "Pending")], Some("X to end: pod a on node n, pod b")),
        ] {
            assert_eq!(ending("X", &pods).as_deref(), expected, "{pods:?}");
        }
    }

    #[test]
    fn pods_of_an_account_that_was_made_anew_are_restarted_unless_they_are_exchanged() {
        let workload = |namespace: &str, account: &str, image: &str| {
            let pod = json!({"serviceAccountName": account, "image": image});
            json!({"metadata": {"namespace": namespace}, "spec": {"template": {"spec": pod}}})
        };
        let key = |kind: &str| ObjectKey {
            kind: kind.into(),
            namespace: "ns".into(),
            name: "x".into(),
            ..ObjectKey::default()
        };
        let before = workload("ns", "x", "1");
        for (after, made, expected) in [
            (workload("ns", "x", "1"), vec![key("Role"), key("ServiceAccount")], true),
            (workload("ns", "x", "1"), vec![key("Role")], false),
            (workload("ns", "x", "2"), vec![key("ServiceAccount")], false),
        ] {
            assert_eq!(has_old_account(&before, &after, &made), expected, "{after}");
        }
        for other in [workload("ns", "y", "1"), workload("other", "x", "1")] {
            assert!(!has_old_account(&other, &other, &[key("ServiceAccount")]), "{other}");
        }
    }

    #[test]
    fn pods_say_why_they_are_not_ready() {
        let pulls = json!({"metadata": {"name": "a"}, "status": {"containerStatuses": [
            {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}},
        ]}});
        let nowhere = json!({"metadata": {"name": "b"}, "status": {"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no nodes"},
        ]}});
        let starts = json!({"metadata": {"name": "c"}, "status": {"containerStatuses": [
            {"state": {"waiting": {"reason": "ContainerCreating"}}},
        ]}});
        assert_eq!(
            told("Deployment x", "0 of 4 replicas are ready", &[starts, nowhere, pulls.clone(), pulls]),
            "Deployment x: 0 of 4 replicas are ready (2 pods: ErrImagePull: no such image; pod b: Unschedulable: no nodes)"
        );
        assert_eq!(told("x", "waits", &[]), "x: waits");
    }
}
