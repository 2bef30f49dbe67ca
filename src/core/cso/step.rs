//! How far a migration is.

use serde_json::Value;

use super::Facts;

/// Whether a Deployment was stopped already.
pub fn is_stopped(deployment: &Value) -> bool {
    deployment["spec"]["replicas"] == 0
}

/// Whether nothing of CSO's is in the way any more, and our operator is there.
pub fn is_finished(facts: &Facts) -> bool {
    facts.webhooks.is_empty()
        && facts.extensions.is_empty()
        && facts.deployments.iter().all(is_stopped)
        && !facts.operators.is_empty()
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
        ];
        for (name, break_it) in cases {
            let mut facts = finished.clone();
            break_it(&mut facts);
            assert!(!is_finished(&facts), "{name}");
        }
    }
}
