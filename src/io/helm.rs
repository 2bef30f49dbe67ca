//! What Helm remembers of its releases. What stands in it is nobody's business.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use kube::api::{Api, ListParams};

/// Kinds of objects in which Helm keeps a release, as kubectl names them; none where it has forgotten it.
///
/// # Errors
/// A refusal.
pub async fn records(client: &Client, namespace: &str, release: &str) -> Result<Vec<&'static str>, kube::Error> {
    let params = ListParams::default().labels(&format!("owner=helm,name={release}"));
    let mut records = Vec::new();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    if !secrets.list_metadata(&params.clone().fields("type=helm.sh/release.v1")).await?.items.is_empty() {
        records.push("secret");
    }
    // With HELM_DRIVER=configmap.
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    if !maps.list_metadata(&params).await?.items.is_empty() {
        records.push("configmap");
    }
    Ok(records)
}
