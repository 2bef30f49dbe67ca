//! Makes an object anew where a field that can't be changed did.

use std::time::Duration;

use kube::Client;
use serde_json::Value;

use crate::api::condition::Reason;
use crate::core::manifest::{Manifest, ObjectKey};
use crate::io::apply::{self, Over, Refusal, Send};
use crate::io::kinds::Kind;
use crate::io::observe::{api, segment};

/// How long the old object is waited for until it is gone.
const GONE: Duration = Duration::from_secs(20);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// Deletes the object that was last seen as `live`, and only that one, and applies `manifest` when it is gone. What depends
/// on it goes in the background, as with `kubectl replace --force`.
///
/// # Errors
/// What the API server refused, or that the old object is not gone yet: the next pass goes on.
pub async fn replace(client: &Client, manifest: &Manifest, kind: &Kind, live: &Value) -> Result<Value, Refusal> {
    let key = &manifest.key;
    apply::delete(client, kind, key, live).await?;
    let uid = live.pointer("/metadata/uid").and_then(Value::as_str);
    let gone = tokio::time::timeout(GONE, gone(client, kind, key, uid)).await;
    gone.unwrap_or_else(|_| {
        let message = "deleted to be made anew, for a field that can't be changed did; it is not gone yet".to_owned();
        Err(Refusal { reason: Reason::ImmutableField, message })
    })?;
    apply::send_one(client, Send { manifest, kind, migrate: None, over: Over::Nothing }).await.result
}

async fn gone(client: &Client, kind: &Kind, key: &ObjectKey, uid: Option<&str>) -> Result<(), Refusal> {
    let api = api(client, kind, &key.namespace);
    loop {
        let found = api.get_metadata_opt(&segment(&key.name)).await.map_err(|error| apply::refusal(&error))?;
        if found.is_none_or(|found| found.metadata.uid.as_deref() != uid) {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}
