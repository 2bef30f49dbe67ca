//! Status and events: written only when something but time changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::api::{Api, Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::api::condition::{Reason, cut};
use crate::api::{API_VERSION, FIELD_MANAGER};

/// Longest note of an event (`events.k8s.io/v1`), in bytes.
const MAX_NOTE: usize = 1024;

/// Writes a status by server-side apply, unless it is what the object has. `true` if it was written.
///
/// # Errors
/// What the API server said. An object that is gone is no error.
pub async fn status<K, S>(client: &Client, object: &K, had: Option<&S>, status: &S) -> Result<bool, kube::Error>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
    S: Serialize + PartialEq,
{
    if had == Some(status) {
        return Ok(false);
    }
    let name = object.name_any();
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let patch = json!({"apiVersion": API_VERSION, "kind": K::kind(&()), "metadata": {"name": name, "uid": object.uid()}, "status": status});
    match api.patch_status(&name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(patch)).await {
        Ok(_) => Ok(true),
        // Gone, or made anew under the same name: its own event tells.
        Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Notes of which it is remembered that they were said.
const REMEMBERED: usize = 512;

/// Publishes events of the operator. The same note on the same object is one event with a count.
#[derive(Clone)]
pub struct Events {
    client: Client,
    reporter: Reporter,
    /// A recorder takes events that differ in their note alone for one and drops the second note, so each note has its own.
    recorders: Arc<Mutex<HashMap<String, Recorder>>>,
}

impl Events {
    /// With the operator's name as reporter.
    pub fn new(client: Client, instance: String) -> Self {
        let reporter = Reporter { controller: "clusterstack".into(), instance: Some(instance) };
        Self { client, reporter, recorders: Arc::default() }
    }

    fn recorder(&self, note: &str) -> Recorder {
        let mut recorders = self.recorders.lock().unwrap_or_else(PoisonError::into_inner);
        if recorders.len() >= REMEMBERED {
            recorders.clear();
        }
        let make = || Recorder::new(self.client.clone(), self.reporter.clone());
        recorders.entry(note.to_owned()).or_insert_with(make).clone()
    }

    /// Says that something happened to an object. An event that can't be written is logged: it stops nothing.
    pub async fn say<K: Resource<DynamicType = ()>>(&self, object: &K, reason: Reason, note: &str) {
        let type_ = match reason {
            Reason::ReleaseCreated
            | Reason::ReleaseCollected
            | Reason::Pruned
            | Reason::Ready
            | Reason::WaitsForApproval
            | Reason::Baking
            | Reason::Suspended
            | Reason::Progressing
            | Reason::SeedCreated
            | Reason::CertificateRenewed
            | Reason::ProcessOngoing
            | Reason::DriftCorrected => EventType::Normal,
            _ => EventType::Warning,
        };
        let event = Event {
            type_,
            reason: reason.as_str().to_owned(),
            note: Some(cut(note, MAX_NOTE)),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder(note).publish(&event, &object.object_ref(&())).await {
            tracing::debug!(%error, %reason, "event not written");
        }
    }
}
