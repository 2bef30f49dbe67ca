//! Tells the API server what to ask us before it is stored: a `ValidatingWebhookConfiguration`, by server-side apply.
//!
//! Guarantees: of other people's Clusters none reaches us, by conditions that the API server evaluates itself; when nobody
//! answers everything is allowed; a configuration of that name that is not ours is left alone.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use thiserror::Error;

use super::extension_config::{NAMESPACE_LABEL, Registered, holds};
use crate::api::{FIELD_MANAGER, GROUP, MANAGED_BY, MANAGED_BY_LABEL, VERSION, WATCH_LABEL};
use crate::core::admission::CONTROLLERS;
use crate::core::admission::cluster::CLASS_PATTERN;

/// How long the API server waits for an answer, in seconds.
pub const TIMEOUT_SECONDS: i32 = 5;
/// Names of ClusterClasses that a condition lists.
pub const MOST_CLASSES: usize = 64;

/// Who is asked, and about what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Name of the configuration.
    pub name: String,
    /// Where: `{"url": …}` or `{"service": {…}}`.
    pub place: Value,
    /// The only namespace it is about.
    pub namespace: Option<String>,
    /// Value of the watch filter's label.
    pub watch_filter: Option<String>,
    /// Who we are: what we delete ourselves was looked at before.
    pub operator: Option<String>,
    /// Names of ClusterClasses of releases that [`CLASS_PATTERN`] does not match.
    pub classes: Vec<String>,
}

/// Why the API server is not told.
#[derive(Debug, Error)]
pub enum ConfigurationError {
    /// It can't be read or written.
    #[error("ValidatingWebhookConfiguration {name} can't be applied, so nothing is refused at the door: {error}")]
    Api {
        /// Its name.
        name: String,
        /// What the API server said.
        error: kube::Error,
    },
    /// It belongs to somebody else.
    #[error(
        "ValidatingWebhookConfiguration {0} is not labelled {MANAGED_BY_LABEL}={MANAGED_BY}, so it is not ours: rename or delete it, nothing is refused at the door until then"
    )]
    Foreign(String),
}

/// Registers, unless it is done. `bundle` is PEM.
///
/// # Errors
/// What stands in the way.
pub async fn register(client: &Client, webhook: &Webhook, bundle: &str) -> Result<Registered, ConfigurationError> {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let failed = |error| ConfigurationError::Api { name: webhook.name.clone(), error };
    let wanted = wanted(webhook, bundle);
    if let Some(live) = api.get_opt(&webhook.name).await.map_err(failed)? {
        if !is_ours(&live) {
            return Err(ConfigurationError::Foreign(webhook.name.clone()));
        }
        if serde_json::to_value(live).is_ok_and(|live| holds(&live, &wanted)) {
            return Ok(Registered::Unchanged);
        }
    }
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(&webhook.name, &params, &Patch::Apply(&wanted)).await.map_err(failed)?;
    Ok(Registered::Written)
}

/// Removes the configuration, if it is ours: nobody is to be asked who does not answer. Whether it was there.
///
/// # Errors
/// What the API server said.
pub async fn withdraw(client: &Client, name: &str) -> Result<bool, kube::Error> {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let Some(live) = api.get_opt(name).await?.filter(is_ours) else { return Ok(false) };
    let preconditions = Some(Preconditions { uid: live.uid(), resource_version: None });
    match api.delete(name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
        other => other.map(|_| true),
    }
}

fn is_ours(live: &ValidatingWebhookConfiguration) -> bool {
    live.labels().get(MANAGED_BY_LABEL).map(String::as_str) == Some(MANAGED_BY)
}

fn wanted(webhook: &Webhook, bundle: &str) -> Value {
    let own = json!([
        rule(GROUP, VERSION, "clusterstacks", &["CREATE", "UPDATE", "DELETE"]),
        rule(GROUP, VERSION, "clusterstacksources", &["CREATE", "UPDATE"]),
        rule(GROUP, VERSION, "clusterstackreleases", &["DELETE"]),
    ]);
    let clusters = json!([rule("cluster.x-k8s.io", "*", "clusters", &["CREATE", "UPDATE"])]);
    let (for_own, for_clusters) = (conditions(webhook), cluster_conditions(webhook));
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": webhook.name, "labels": {MANAGED_BY_LABEL: MANAGED_BY}},
        "webhooks": [
            one(webhook, bundle, &format!("stacks.admission.{GROUP}"), &own, &for_own),
            one(webhook, bundle, &format!("clusters.admission.{GROUP}"), &clusters, &for_clusters),
        ],
    })
}

fn rule(group: &str, version: &str, resource: &str, operations: &[&str]) -> Value {
    json!({
        "apiGroups": [group], "apiVersions": [version], "resources": [resource], "operations": operations,
        "scope": "Namespaced",
    })
}

fn one(webhook: &Webhook, bundle: &str, name: &str, rules: &Value, conditions: &Value) -> Value {
    let mut client_config = webhook.place.clone();
    client_config["caBundle"] = json!(STANDARD.encode(bundle));
    let selected = |label: &str, value: &Option<String>| match value {
        Some(value) => json!({"matchLabels": {label: value}}),
        None => json!({}),
    };
    json!({
        "name": name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": client_config,
        // docs/decisions/0012-admission.md
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "namespaceSelector": selected(NAMESPACE_LABEL, &webhook.namespace),
        "objectSelector": selected(WATCH_LABEL, &webhook.watch_filter),
        "rules": rules,
        "matchConditions": conditions,
    })
}

/// A list of texts in CEL, whose strings JSON's are.
fn list<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    json!(texts.into_iter().collect::<Vec<_>>()).to_string()
}

fn conditions(webhook: &Webhook) -> Value {
    let free = list(CONTROLLERS.into_iter().chain(webhook.operator.as_deref()));
    json!([
        {
            "name": "deleted-by-a-user",
            "expression": format!("request.operation != 'DELETE' || !(request.userInfo.username in {free})"),
        },
        {
            "name": "changes-what-is-asked-for",
            "expression": "request.operation != 'UPDATE' || (!has(object.metadata.deletionTimestamp) && object.spec != oldObject.spec)",
        },
    ])
}

/// Those of other classes do not come to us.
fn cluster_conditions(webhook: &Webhook) -> Value {
    let changes = "has(object.spec) && has(object.spec.topology) && (oldObject == null || !has(oldObject.spec) || \
                   !has(oldObject.spec.topology) || object.spec.topology != oldObject.spec.topology)";
    let mut all = vec![json!({"name": "changes-its-topology", "expression": changes})];
    if webhook.classes.len() <= MOST_CLASSES {
        let others = list(webhook.classes.iter().map(String::as_str));
        let is = |name: &str| format!("({name}.matches('{CLASS_PATTERN}') || {name} in {others})");
        let (old, new) = (is("o.spec.topology.class"), is("o.spec.topology.classRef.name"));
        let expression = format!(
            "[object, oldObject].exists(o, o != null && has(o.spec) && has(o.spec.topology) && \
             ((has(o.spec.topology.class) && {old}) || (has(o.spec.topology.classRef) && {new})))"
        );
        all.push(json!({"name": "class-of-a-cluster-stack", "expression": expression}));
    }
    json!(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook() -> Webhook {
        Webhook {
            name: "clusterstack-team".into(),
            place: json!({"url": "https://127.0.0.1:9443/validate"}),
            namespace: Some("team".into()),
            watch_filter: Some("blue".into()),
            operator: Some("system:serviceaccount:system:clusterstack".into()),
            classes: vec!["own-name".into()],
        }
    }

    #[test]
    fn both_webhooks_let_everything_through_when_nobody_answers() {
        let wanted = wanted(&webhook(), "PEM");
        for one in wanted["webhooks"].as_array().unwrap() {
            assert_eq!((&one["failurePolicy"], &one["sideEffects"]), (&json!("Ignore"), &json!("None")), "{one:#}");
            assert_eq!(one["clientConfig"], json!({"url": "https://127.0.0.1:9443/validate", "caBundle": "UEVN"}));
            assert_eq!(one["namespaceSelector"]["matchLabels"][NAMESPACE_LABEL], "team");
            assert_eq!(one["objectSelector"]["matchLabels"][WATCH_LABEL], "blue");
        }
        let for_all = super::wanted(&Webhook { namespace: None, watch_filter: None, ..webhook() }, "PEM");
        assert_eq!(for_all.pointer("/webhooks/0/namespaceSelector"), Some(&json!({})));
    }

    #[test]
    fn it_is_written_only_where_it_differs() {
        let wanted = wanted(&webhook(), "PEM");
        let mut live = wanted.clone();
        live["metadata"]["resourceVersion"] = json!("5");
        live["webhooks"][0]["clientConfig"]["more"] = json!("of a newer version");
        assert!(holds(&live, &wanted));
        let others = Webhook { classes: vec!["own-name".into(), "other".into()], ..webhook() };
        for changed in [
            super::wanted(&webhook(), "NEW"),
            super::wanted(&others, "PEM"),
            super::wanted(&Webhook { operator: None, ..webhook() }, "PEM"),
        ] {
            assert!(!holds(&live, &changed));
        }
        let mut fewer = live.clone();
        fewer["webhooks"].as_array_mut().unwrap().pop();
        assert!(!holds(&fewer, &wanted));
    }

    #[test]
    fn too_many_classes_of_other_names_take_the_condition_away() {
        let names = |count: usize| (0..count).map(|n| format!("own-{n}")).collect::<Vec<_>>();
        let count = |names: Vec<String>| {
            let wanted = wanted(&Webhook { classes: names, ..webhook() }, "PEM");
            wanted.pointer("/webhooks/1/matchConditions").unwrap().as_array().unwrap().len()
        };
        assert_eq!((count(names(0)), count(names(MOST_CLASSES)), count(names(MOST_CLASSES + 1))), (2, 2, 1));
    }
}
