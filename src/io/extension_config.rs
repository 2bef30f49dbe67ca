//! Tells Cluster API whom to call for its runtime hooks: an `ExtensionConfig`, by server-side apply.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use crate::api::runtime_hooks::{EXTENSION_GROUP, EXTENSION_KIND};
use crate::api::{FIELD_MANAGER, MANAGED_BY, MANAGED_BY_LABEL, WATCH_LABEL};
use crate::io::kinds::Kinds;

/// The label that every namespace has: its name.
pub(super) const NAMESPACE_LABEL: &str = "kubernetes.io/metadata.name";

/// Whom Cluster API calls, and for which Clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Name of the `ExtensionConfig`.
    pub name: String,
    /// Where: `{"url": …}` or `{"service": {…}}`.
    pub place: Value,
    /// The only namespace whose Clusters it is about.
    pub namespace: Option<String>,
    /// Value of the watch filter's label, by which Cluster API's managers find it too.
    pub watch_filter: Option<String>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// Cluster API's runtime extensions are not served.
    NotServed,
    /// It is as it has to be.
    Unchanged,
    /// It was written.
    Written,
}

/// Registers, unless it is done. `bundle` is PEM.
///
/// # Errors
/// What the API server said.
pub async fn register(
    client: &Client,
    kinds: &Kinds,
    extension: &Extension,
    bundle: &str,
) -> Result<Registered, kube::Error> {
    let Some(kind) = kinds.preferred(client, EXTENSION_GROUP, EXTENSION_KIND).await? else {
        return Ok(Registered::NotServed);
    };
    let wanted = wanted(extension, &kind.resource.api_version, bundle);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource);
    let live = api.get_opt(&extension.name).await?;
    if live.is_some_and(|live| serde_json::to_value(live).is_ok_and(|live| holds(&live, &wanted))) {
        return Ok(Registered::Unchanged);
    }
    api.patch(&extension.name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&wanted)).await?;
    Ok(Registered::Written)
}

fn wanted(extension: &Extension, api_version: &str, bundle: &str) -> Value {
    let mut object = json!({
        "apiVersion": api_version,
        "kind": EXTENSION_KIND,
        "metadata": {"name": extension.name, "labels": {MANAGED_BY_LABEL: MANAGED_BY}},
        "spec": {"clientConfig": extension.place},
    });
    object["spec"]["clientConfig"]["caBundle"] = json!(STANDARD.encode(bundle));
    if let Some(namespace) = &extension.namespace {
        object["spec"]["namespaceSelector"] = json!({"matchLabels": {NAMESPACE_LABEL: namespace}});
    }
    if let Some(filter) = &extension.watch_filter {
        object["metadata"]["labels"][WATCH_LABEL] = json!(filter);
    }
    object
}

/// Whether an object has every field of another one, with its value; lists item by item.
pub(super) fn holds(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| key == "apiVersion" || live.get(key).is_some_and(|live| holds(live, wanted))),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| holds(live, wanted))
        }
        _ => live == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_only_where_it_differs() {
        let extension = Extension {
            name: "clusterstack-team".into(),
            place: json!({"url": "https://127.0.0.1:9442"}),
            namespace: Some("team".into()),
            watch_filter: Some("blue".into()),
        };
        let wanted = wanted(&extension, "runtime.cluster.x-k8s.io/v1beta2", "PEM");
        assert_eq!(wanted["spec"]["clientConfig"], json!({"url": "https://127.0.0.1:9442", "caBundle": "UEVN"}));
        assert_eq!(wanted["metadata"]["labels"][WATCH_LABEL], "blue");
        let mut live = wanted.clone();
        live["status"] = json!({"handlers": []});
        live["metadata"]["resourceVersion"] = json!("5");
        live["apiVersion"] = json!("runtime.cluster.x-k8s.io/v1alpha1");
        assert!(holds(&live, &wanted));
        for (path, value) in [
            ("/spec/clientConfig/caBundle", json!("AAAA")),
            ("/spec/clientConfig/url", json!("https://127.0.0.1:1")),
            ("/spec/namespaceSelector", json!({})),
        ] {
            let mut changed = live.clone();
            *changed.pointer_mut(path).unwrap() = value;
            assert!(!holds(&changed, &wanted), "{path}");
        }
    }
}
