//! The Leases of replicas as who is none of them reads them, and the time by which they are looked at.

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams};
use kube::client::{Body, Client};

use super::apply::refusal;
use crate::api::{MEMBER_LABEL, OperatorShard};
use crate::core::share::life::Leases;

/// Reads the Leases of the namespaces where these replicas keep theirs.
pub async fn of_replicas(client: &Client, shards: &[OperatorShard]) -> Leases {
    let mut leases = Leases::new();
    for shard in shards {
        let namespace = &shard.spec.lease_namespace;
        if !leases.contains_key(namespace) {
            let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
            let listed = api.list(&ListParams::default().labels(MEMBER_LABEL)).await;
            let listed = listed.map(|list| list.items);
            let listed = listed.map_err(|error| {
                format!("Leases of namespace {namespace} can't be listed: {}", refusal(&error).message)
            });
            leases.insert(namespace.clone(), listed);
        }
    }
    leases
}

/// What time it is by the API server's clock; by ours where it does not say so.
pub async fn now(client: &Client) -> Timestamp {
    server_time(client).await.unwrap_or_else(Timestamp::now)
}

async fn server_time(client: &Client) -> Option<Timestamp> {
    let question = http::Request::get("/version").body(Body::empty()).ok()?;
    let answer = client.send(question).await.ok()?;
    let date = answer.headers().get(http::header::DATE)?.to_str().ok()?;
    rfc2822::DateTimeParser::new().parse_timestamp(date).ok()
}
