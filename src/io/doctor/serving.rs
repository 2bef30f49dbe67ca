//! What stands behind the admission webhook: its Service, and the certificate by which it is served.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::Client;
use kube::api::Api;
use serde_json::Value;

use super::told;
use crate::api::OperatorShard;
use crate::core::doctor::{Certificate, Read, Served, secret_of, service_of};
use crate::io::hook_certificate;

/// Looks at what these configurations name. The Secret is beside the Service; without one, where the Leases are.
pub(super) async fn of_webhooks(
    client: &Client,
    configurations: &[Value],
    shards: &[OperatorShard],
    now: Timestamp,
) -> Served {
    let (mut services, mut certificates) = (BTreeMap::new(), BTreeMap::new());
    for configuration in configurations {
        let mut namespace = shards.first().map(|shard| shard.spec.lease_namespace.clone());
        for webhook in configuration["webhooks"].as_array().into_iter().flatten() {
            let Some((of, name)) = service_of(webhook) else { continue };
            let key = format!("{of}/{name}");
            if let Entry::Vacant(place) = services.entry(key) {
                place.insert(service(client, &of, &name).await);
            }
            namespace = Some(of);
        }
        if let Some(namespace) = namespace {
            let secret = secret_of(configuration);
            let found = certificate(client, (&namespace, &secret), now).await;
            certificates.insert(secret, found);
        }
    }
    Served { services, certificates }
}

async fn service(client: &Client, namespace: &str, name: &str) -> Read<bool> {
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    let found = api.get_metadata_opt(name).await;
    found.map(|found| found.is_some()).map_err(told(format!("Service {namespace}/{name} can't be read")))
}

async fn certificate(client: &Client, (namespace, name): (&str, &str), now: Timestamp) -> Read<Option<Certificate>> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let found = api.get_opt(name).await.map_err(told(format!("Secret {namespace}/{name} can't be read")))?;
    Ok(found.map(|secret| {
        let (bundle, is_usable) = hook_certificate::look(&secret, now);
        Certificate { bundle, is_usable }
    }))
}
