//! Which webhooks and runtime hooks are CSO's: its manifest labels them, its Helm chart does not.

use serde_json::Value;

use super::LABEL;
use crate::core::install::answered_by;

/// Whether one is: by its label, or since a Service of CSO's pods answers it.
pub fn is_theirs(registration: &Value, deployments: &[Value], services: &[Value]) -> bool {
    let is_theirs = |(namespace, name): (&str, &str)| {
        let is_it =
            |service: &&Value| service["metadata"]["namespace"] == namespace && service["metadata"]["name"] == name;
        services.iter().filter(is_it).any(|service| deployments.iter().any(|deployment| selects(service, deployment)))
    };
    registration["metadata"]["labels"][LABEL.0] == LABEL.1 || answered_by(registration).into_iter().any(is_theirs)
}

/// Whether a Service leads to the pods of a Deployment.
fn selects(service: &Value, deployment: &Value) -> bool {
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    let selector = service["spec"]["selector"].as_object().filter(|selector| !selector.is_empty());
    service["metadata"]["namespace"] == deployment["metadata"]["namespace"]
        && selector.is_some_and(|selector| selector.iter().all(|(name, value)| labels[name] == *value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_service_of_its_pods_answers_is_its_own() {
        let deployments = [json!({
            "metadata": {"name": "cso", "namespace": "cso-system"},
            "spec": {"template": {"metadata": {"labels": {"control-plane": "cso", "app": "cso"}}}},
        })];
        let service = |namespace: &str, name: &str, selector: Value| json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"selector": selector}});
        let services = [
            service("cso-system", "webhook", json!({"control-plane": "cso"})),
            service("cso-system", "other", json!({"control-plane": "cso", "app": "other"})),
            service("cso-system", "empty", json!({})),
            service("cso-system", "none", Value::Null),
            service("team", "webhook", json!({"control-plane": "cso"})),
        ];
        let of =
            |namespace: &str, name: &str| json!({"clientConfig": {"service": {"namespace": namespace, "name": name}}});
        let webhooks = |all: &[Value]| json!({"kind": "MutatingWebhookConfiguration", "webhooks": all});
        for (registration, expected) in [
            (webhooks(&[of("cso-system", "webhook")]), true),
            (json!({"kind": "ExtensionConfig", "spec": of("cso-system", "webhook")}), true),
            (webhooks(&[of("team", "x"), of("cso-system", "webhook")]), true),
            (webhooks(&[of("cso-system", "other")]), false),
            (webhooks(&[of("cso-system", "empty")]), false),
            (webhooks(&[of("cso-system", "none")]), false),
            (webhooks(&[of("cso-system", "gone")]), false),
            (webhooks(&[of("team", "webhook")]), false),
            (json!({"metadata": {"labels": {LABEL.0: LABEL.1}}}), true),
            (json!({"metadata": {"labels": {LABEL.0: "cluster-api"}}}), false),
        ] {
            assert_eq!(is_theirs(&registration, &deployments, &services), expected, "{registration}");
        }
    }
}
