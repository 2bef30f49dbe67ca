//! What is touched of CSO, as it was, for `kubectl apply`: a second run adds to it, and never takes the place of the first.

use serde_json::{Value, json};
use thiserror::Error;

use super::Facts;
use crate::core::install::key;
use crate::core::yaml;

/// A file that is no backup.
#[derive(Debug, Error)]
pub enum BackupError {
    /// It is no YAML.
    #[error("it is no YAML: {0}")]
    Yaml(#[from] yaml::Error),
    /// It holds something else.
    #[error("it is no List of Kubernetes objects")]
    NoList,
}

/// The text of the file; `there` is what it holds already, which was read when less had been touched.
///
/// # Errors
/// What is there is no backup.
pub fn backup(facts: &Facts, there: Option<&str>) -> Result<String, BackupError> {
    let mut items = there.map(items).transpose()?.unwrap_or_default();
    for object in facts.webhooks.iter().chain(&facts.extensions).chain(&facts.deployments) {
        if !items.iter().any(|item| key(item) == key(object)) {
            items.push(plain(object));
        }
    }
    Ok(yaml::to_string(&json!({"apiVersion": "v1", "kind": "List", "items": items})))
}

fn items(text: &str) -> Result<Vec<Value>, BackupError> {
    let mut list = yaml::parse(text)?;
    let is_list = list["apiVersion"] == "v1" && list["kind"] == "List";
    // No map at all may be there.
    match list.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) if is_list && items.iter().all(|item| item["kind"].is_string()) => Ok(items),
        _ => Err(BackupError::NoList),
    }
}

fn plain(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(map) = object.as_object_mut() {
        map.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| ["name", "namespace", "labels", "annotations"].contains(&field.as_str()));
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(replicas: u8) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "cso", "namespace": "ns", "uid": "u"}, "spec": {"replicas": replicas}, "status": {},
        })
    }

    #[test]
    fn what_the_first_run_found_stays_and_what_is_new_is_added() {
        let hook = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "hook"}});
        let first = Facts { webhooks: vec![hook.clone()], deployments: vec![deployment(1)], ..Facts::default() };
        let first = backup(&first, None).unwrap();
        let late = json!({"apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig", "metadata": {"name": "late"}});
        let second = Facts { extensions: vec![late.clone()], deployments: vec![deployment(0)], ..Facts::default() };
        let both = yaml::parse(&backup(&second, Some(&first)).unwrap()).unwrap();
        let mut one = deployment(1);
        one.as_object_mut().unwrap().remove("status");
        one["metadata"].as_object_mut().unwrap().remove("uid");
        assert_eq!(both["items"], json!([hook, one, late]));
    }

    #[test]
    fn what_is_no_backup_is_refused() {
        for (text, part) in [
            ("a: b", "no List"),
            ("", "no List"),
            ("hello", "no List"),
            ("- a\n- b", "no List"),
            ("3", "no List"),
            ("true", "no List"),
            ("kind: List", "no List"),
            ("apiVersion: v1\nkind: List\nitems: [1]", "no List"),
            ("apiVersion: v1\nkind: Secret\nitems: []", "no List"),
            ("{", "no YAML"),
        ] {
            let error = backup(&Facts::default(), Some(text)).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
