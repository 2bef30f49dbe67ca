//! The provider contract: what the operator makes of a provider's template, and what it reads of the object.
//!
//! The release controller and `clusterstack provider-check` use the same functions. `docs/provider-contract.md` says it
//! for people.

use serde_json::{Value, json};

use crate::api::{CLONED_FROM_NAME, CLONED_FROM_NAMESPACE, CLUSTER_STACK_LABEL};

pub mod checks;

/// What a provider says of its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// `status.ready` is true.
    Ready,
    /// `status.failureReason` is set.
    Failed {
        /// `status.failureReason`.
        reason: String,
        /// `status.failureMessage`; may be empty.
        message: String,
    },
    /// Neither: it is waited for.
    Preparing {
        /// What its condition `Ready` says; empty where there is none.
        message: String,
    },
}

/// What the object says. A failure counts before readiness: who says both is not ready.
pub fn state(object: &Value) -> State {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let reason = text("/status/failureReason");
    if !reason.is_empty() {
        return State::Failed { reason, message: text("/status/failureMessage") };
    }
    match object.pointer("/status/ready").and_then(Value::as_bool) {
        Some(true) => State::Ready,
        _ => State::Preparing { message: waiting(object) },
    }
}

fn waiting(object: &Value) -> String {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
    ready.and_then(|ready| ready["message"].as_str()).unwrap_or_default().to_owned()
}

/// The object that is to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance<'a> {
    /// Its group and version.
    pub api_version: &'a str,
    /// Its kind: the template's without `Template`.
    pub kind: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its namespace: that of its owner.
    pub namespace: &'a str,
    /// Value of the label that names the ClusterStack.
    pub stack: &'a str,
    /// The owner reference.
    pub owner: Value,
}

impl Instance<'_> {
    /// The object, made of `spec.template` of a template as Cluster API does it; `None` where the template has none.
    pub fn of(&self, template: &Value) -> Option<Value> {
        let inner = template.pointer("/spec/template")?;
        let fields = |pointer: &str| match inner.pointer(pointer) {
            Some(fields @ Value::Object(_)) => fields.clone(),
            _ => json!({}),
        };
        let (mut labels, mut annotations) = (fields("/metadata/labels"), fields("/metadata/annotations"));
        labels[CLUSTER_STACK_LABEL] = self.stack.into();
        annotations[CLONED_FROM_NAME] = template.pointer("/metadata/name").cloned().unwrap_or_default();
        let from = template.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or(self.namespace);
        match annotations.as_object_mut() {
            Some(annotations) if from == self.namespace => drop(annotations.remove(CLONED_FROM_NAMESPACE)),
            _ => annotations[CLONED_FROM_NAMESPACE] = from.into(),
        }
        Some(json!({
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": labels,
                "annotations": annotations,
                "ownerReferences": [self.owner],
            },
            "spec": inner.get("spec"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_object_says_how_far_it_is() {
        let preparing = |message: &str| State::Preparing { message: message.into() };
        let failed = |reason: &str, message: &str| State::Failed { reason: reason.into(), message: message.into() };
        for (status, expected) in [
            (json!({"ready": true}), State::Ready),
            (json!({"ready": false}), preparing("")),
            (json!({"ready": "true"}), preparing("")),
            (json!({"conditions": [{"type": "Ready", "status": "False", "message": "image a"}]}), preparing("image a")),
            (json!({"ready": true, "failureReason": ""}), State::Ready),
            (json!(null), preparing("")),
            (json!({"failureReason": "NoQuota", "failureMessage": "m"}), failed("NoQuota", "m")),
            (json!({"ready": true, "failureReason": "NoQuota"}), failed("NoQuota", "")),
        ] {
            assert_eq!(state(&json!({"status": status})), expected, "{status}");
        }
        assert_eq!(state(&json!({})), preparing(""));
    }

    #[test]
    fn the_object_is_the_templates_with_our_name_and_owner() {
        let instance = Instance {
            api_version: "a/v1",
            kind: "X",
            name: "n",
            namespace: "ns",
            stack: "s",
            owner: json!({"kind": "ClusterStackRelease", "uid": "u"}),
        };
        let template = json!({
            "metadata": {"name": "t", "namespace": "elsewhere", "labels": {"not": "copied"}},
            "spec": {"template": {"metadata": {"labels": {"a": "b"}, "name": "x"}, "spec": {"size": 3}}, "secret": "kept"},
        });
        assert_eq!(
            instance.of(&template).unwrap(),
            json!({
                "apiVersion": "a/v1", "kind": "X",
                "metadata": {
                    "name": "n", "namespace": "ns",
                    "labels": {"a": "b", CLUSTER_STACK_LABEL: "s"},
                    "annotations": {CLONED_FROM_NAME: "t", CLONED_FROM_NAMESPACE: "elsewhere"},
                    "ownerReferences": [{"kind": "ClusterStackRelease", "uid": "u"}],
                },
                "spec": {"size": 3},
            })
        );
        assert_eq!(instance.of(&json!({"spec": {}})), None);
        // A template says of nobody else that it is its own.
        let lies = json!({
            "metadata": {"name": "t", "namespace": "ns"},
            "spec": {"template": {"metadata": {"annotations": {CLONED_FROM_NAMESPACE: "elsewhere"}}}},
        });
        assert_eq!(instance.of(&lies).unwrap()["metadata"]["annotations"], json!({CLONED_FROM_NAME: "t"}));
        // What is no object there does no harm.
        let odd = json!({"spec": {"template": {"metadata": {"labels": [1], "annotations": "x"}}}});
        assert_eq!(instance.of(&odd).unwrap()["metadata"]["labels"], json!({CLUSTER_STACK_LABEL: "s"}));
    }
}
