//! Whether the place of an object still stands: its namespace, and the ServiceAccount that acts there.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{Api, Client};

use crate::core::identity;

/// How long a namespace that stands is taken to stand: the API server refuses by itself what is made in one that goes.
const STANDS: Duration = Duration::from_secs(1);

/// For how long that a namespace stood is remembered at all.
const REMEMBERED: Duration = Duration::from_secs(10);

/// The namespaces that were seen to stand a moment ago: many releases of one are looked at in one go.
#[derive(Default)]
pub struct Standing(Mutex<HashMap<String, Instant>>);

impl Standing {
    /// As [`is_terminating`], asked at most once a second for each namespace that stands.
    ///
    /// # Errors
    /// What the API server said.
    pub async fn is_terminating(&self, client: &Client, namespace: &str) -> Result<bool, kube::Error> {
        if self.is_told(namespace) {
            return Ok(false);
        }
        let asked = Instant::now();
        let is_terminating = is_terminating(client, namespace).await;
        let mut seen = self.lock();
        seen.retain(|_, seen| seen.elapsed() < REMEMBERED);
        match is_terminating {
            Ok(false) => drop(seen.insert(namespace.to_owned(), asked)),
            Ok(true) | Err(_) => drop(seen.remove(namespace)),
        }
        is_terminating
    }

    /// Whether a namespace stood a moment ago. Of those who come after that moment one asks, and the others go by what was
    /// so until it knows.
    fn is_told(&self, namespace: &str) -> bool {
        let mut seen = self.lock();
        let Some(seen) = seen.get_mut(namespace).filter(|seen| seen.elapsed() < REMEMBERED) else { return false };
        let is_told = seen.elapsed() < STANDS;
        if !is_told {
            *seen = Instant::now();
        }
        is_told
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
    // No object has such a name, and a path with it would lead elsewhere.
    if identity::subdomain(name).is_err() {
        return Ok(false);
    }
    let found = Api::<ServiceAccount>::namespaced(client.clone(), namespace).get_metadata_opt(name).await?;
    Ok(found.is_some_and(|account| account.metadata.deletion_timestamp.is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_those_who_come_after_a_moment_one_asks() {
        let standing = Standing::default();
        assert!(!standing.is_told("a"), "nobody has asked yet");
        assert!(!standing.is_told("a"), "nor is it known to stand");
        for (seconds, expected) in [(0, [true, true]), (2, [false, true]), (11, [false, false])] {
            let seen = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
            standing.lock().insert("a".to_owned(), seen);
            assert_eq!([standing.is_told("a"), standing.is_told("a")], expected, "{seconds} s later");
        }
    }
}
