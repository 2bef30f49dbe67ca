//! How far a migration is.

use serde_json::Value;

use super::{Facts, named};
use crate::core::install::not_ended;

/// Whether a Deployment was stopped already.
pub fn is_stopped(deployment: &Value) -> bool {
    deployment["spec"]["replicas"] == 0
}

/// Whether nothing of CSO's is in the way any more, and our operator runs.
pub fn is_finished(facts: &Facts) -> bool {
    facts.webhooks.is_empty()
        && facts.extensions.is_empty()
        && facts.deployments.iter().all(is_stopped)
        && !facts.operators.is_empty()
        && facts.unfinished.is_empty()
}

/// What of our operator's Deployment or `StatefulSet` is not ready, or not of its latest form.
pub fn unready(workload: &Value) -> Option<String> {
    let number = |value: &Value| value.as_i64().unwrap_or_default();
    let (seen, made) = (&workload["status"]["observedGeneration"], &workload["metadata"]["generation"]);
    if number(seen) < number(made) {
        return Some(format!("{}: its controller has not seen it yet", named(workload)));
    }
    let wanted = workload["spec"]["replicas"].as_i64().unwrap_or(1);
    let status = |field: &str| number(&workload["status"][field]);
    let there = status("readyReplicas").min(status("updatedReplicas"));
    (there < wanted).then(|| format!("{}: {there} of {wanted} replicas are ready", named(workload)))
}

/// What of a Deployment that was scaled to nothing still runs; `pods` are those of its selector. Its status does not count pods
/// that are ending, and those work on until they have ended.
pub fn runs(deployment: &Value, pods: &[Value]) -> Option<String> {
    if let Some(left) = not_ended(pods) {
        return Some(left);
    }
    let (seen, wanted) = (&deployment["status"]["observedGeneration"], &deployment["metadata"]["generation"]);
    if seen.as_i64() < wanted.as_i64() {
        return Some("its controller has not seen yet that it is to end".to_owned());
    }
    let replicas = deployment["status"]["replicas"].as_i64().unwrap_or_default();
    (replicas > 0).then(|| format!("{replicas} replicas"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    type Break = fn(&mut Facts);

    #[test]
    fn it_is_finished_when_ours_is_there_and_nothing_of_theirs_is_in_the_way() {
        let finished = Facts {
            deployments: vec![json!({"spec": {"replicas": 0}})],
            operators: vec!["Deployment clusterstack-system/clusterstack".to_owned()],
            ..Facts::default()
        };
        assert!(is_finished(&finished));
        let cases: &[(&str, Break)] = &[
            ("runs", |f| f.deployments[0]["spec"]["replicas"] = json!(1)),
            ("says no number, which is one", |f| f.deployments[0] = json!({"spec": {}})),
            ("a webhook", |f| f.webhooks.push(json!({}))),
            ("a hook", |f| f.extensions.push(json!({}))),
            ("ours is not there", |f| f.operators.clear()),
            ("ours is not ready", |f| f.unfinished.push("Deployment x: 0 of 1 replicas are ready".to_owned())),
        ];
        for (name, break_it) in cases {
            let mut facts = finished.clone();
            break_it(&mut facts);
            assert!(!is_finished(&facts), "{name}");
        }
    }

    #[test]
    fn ours_is_ready_when_all_replicas_of_its_latest_form_are() {
        let workload = |replicas: Value, status: Value| json!({"kind": "Deployment", "metadata": {"name": "x", "generation": 2}, "spec": {"replicas": replicas}, "status": status});
        let status = |seen: i64, updated: i64, ready: i64| json!({"observedGeneration": seen, "updatedReplicas": updated, "readyReplicas": ready});
        for (workload, expected) in [
            (workload(json!(2), status(2, 2, 2)), None),
            (workload(json!(0), status(2, 0, 0)), None),
            (workload(json!(2), status(2, 1, 2)), Some("Deployment x: 1 of 2 replicas are ready")),
            (workload(Value::Null, json!({"observedGeneration": 2})), Some("Deployment x: 0 of 1 replicas are ready")),
            (workload(json!(1), status(1, 1, 1)), Some("Deployment x: its controller has not seen it yet")),
        ] {
            assert_eq!(unready(&workload).as_deref(), expected, "{workload}");
        }
    }

    #[test]
    fn it_has_ended_when_no_pod_of_it_is_left() {
        let pod = |name: &str, node: Option<&str>, phase: &str| json!({"metadata": {"name": name}, "spec": {"nodeName": node}, "status": {"phase": phase}});
        let mut ending = pod("c", Some("n"), "Running");
        ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let deployment = |seen: i64, replicas: i64| json!({"metadata": {"generation": 2}, "status": {"observedGeneration": seen, "replicas": replicas}});
        for (deployment, pods, expected) in [
            (deployment(2, 0), vec![], None),
            (deployment(2, 0), vec![pod("a", Some("n"), "Succeeded"), pod("b", None, "Failed")], None),
            (deployment(2, 0), vec![ending, pod("d", None, "Pending")], Some("pod c on node n, pod d")),
            (deployment(1, 0), vec![], Some("its controller has not seen yet that it is to end")),
            (deployment(2, 1), vec![], Some("1 replicas")),
        ] {
            assert_eq!(runs(&deployment, &pods).as_deref(), expected, "{deployment} {pods:?}");
        }
    }
}
