//! What stands behind the admission webhook: its Service, and the certificate by which it is served.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::Value;

use super::told;
use crate::api::OperatorShard;
use crate::core::doctor::{Backing, Certificate, Read, Served, secret_of, service_of};
use crate::io::hook_certificate;

/// The Service that an `EndpointSlice` is of (`discovery.k8s.io/v1`, `LabelServiceName`).
const SERVICE_NAME: &str = "kubernetes.io/service-name";

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

async fn service(client: &Client, namespace: &str, name: &str) -> Read<Backing> {
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    let found = api.get_metadata_opt(name).await;
    if found.map_err(told(format!("Service {namespace}/{name} can't be read")))?.is_none() {
        return Ok(Backing::Missing);
    }
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let slices = api.list(&ListParams::default().labels(&format!("{SERVICE_NAME}={name}"))).await;
    let slices = slices.map_err(told(format!("what is behind Service {namespace}/{name} can't be listed")))?;
    // One whose state is not known is to be taken for ready (`discovery.k8s.io/v1`).
    let is_ready = |endpoint: &Endpoint| endpoint.conditions.as_ref().is_none_or(|now| now.ready != Some(false));
    let is_ready = slices.items.iter().flat_map(|slice| slice.endpoints.iter().flatten()).any(is_ready);
    Ok(if is_ready { Backing::Ready } else { Backing::Nobody })
}

async fn certificate(client: &Client, (namespace, name): (&str, &str), now: Timestamp) -> Read<Option<Certificate>> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let found = api.get_opt(name).await.map_err(told(format!("Secret {namespace}/{name} can't be read")))?;
    Ok(found.map(|secret| {
        let (bundle, is_usable) = hook_certificate::look(&secret, now);
        Certificate { bundle, is_usable }
    }))
}
