//! Whether the place of an object still stands: its namespace, and the ServiceAccount that acts there.

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{Api, Client};

/// Whether a namespace is being deleted, or is gone: nothing may be made in it.
///
/// # Errors
/// What the API server said.
pub async fn is_terminating(client: &Client, namespace: &str) -> Result<bool, kube::Error> {
    let found = Api::<Namespace>::all(client.clone()).get_metadata_opt(namespace).await?;
    Ok(found.is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some()))
}

/// Whether a ServiceAccount is there and stays.
///
/// # Errors
/// What the API server said.
pub async fn has_service_account(client: &Client, namespace: &str, name: &str) -> Result<bool, kube::Error> {
    let found = Api::<ServiceAccount>::namespaced(client.clone(), namespace).get_metadata_opt(name).await?;
    Ok(found.is_some_and(|account| account.metadata.deletion_timestamp.is_none()))
}
