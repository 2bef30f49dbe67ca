//! Whether the place of an object still stands: its namespace, and the ServiceAccount that acts there.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{Api, Client};

/// How long a namespace that stands is taken to stand: the API server refuses by itself what is made in one that goes.
const STANDS: Duration = Duration::from_secs(1);

/// The namespaces that were seen to stand a moment ago: many releases of one are looked at in one go.
#[derive(Default)]
pub struct Standing(Mutex<HashMap<String, Instant>>);

impl Standing {
    /// As [`is_terminating`], asked at most once a second for each namespace that stands.
    ///
    /// # Errors
    /// What the API server said.
    pub async fn is_terminating(&self, client: &Client, namespace: &str) -> Result<bool, kube::Error> {
        if self.lock().get(namespace).is_some_and(|seen| seen.elapsed() < STANDS) {
            return Ok(false);
        }
        let asked = Instant::now();
        let is_terminating = is_terminating(client, namespace).await?;
        let mut seen = self.lock();
        seen.retain(|_, seen| seen.elapsed() < STANDS);
        if !is_terminating {
            seen.insert(namespace.to_owned(), asked);
        }
        Ok(is_terminating)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
