//! Status and events: written only when something but time changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::condition::{ConditionType, Reason, cut, whole_seconds};
use crate::io::apply;
use crate::io::fence::{self, Written};

/// Longest note of an event (`events.k8s.io/v1`), in bytes.
const MAX_NOTE: usize = 1024;

/// Who says in a status that the operator has a fault.
const FAULT_MANAGER: &str = "clusterstack-fault";

/// How often a status is sent again that only other parts of the object overtook.
const AGAIN: usize = 4;

/// Writes a status by server-side apply, unless it is what the object has. `true` if it was written.
///
/// It is sent for the version of the object that it was decided on, or that this pass made of it: the write of a process
/// that slept meanwhile is refused. Where all but the status changed, it is sent for the version that is there now.
///
/// # Errors
/// What the API server said; a conflict where somebody else wrote the status. An object that is gone is no error.
pub async fn status<K, S>(client: &Client, object: &K, had: Option<&S>, status: &S) -> Result<bool, kube::Error>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
    S: Serialize + DeserializeOwned + PartialEq,
{
    if had == Some(status) {
        return Ok(false);
    }
    let name = object.name_any();
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let uid = object.uid();
    let own = fence::written(uid.as_deref().unwrap_or_default());
    let mut version = own.as_ref().map_or_else(|| object.resource_version(), |own| own.resource_version.clone());
    for left in (0..AGAIN).rev() {
        let metadata = json!({"name": name, "uid": uid, "resourceVersion": version});
        let patch =
            json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": metadata, "status": status});
        match api.patch_status(&name, &apply::forced(), &Patch::Apply(patch)).await {
            Ok(written) => {
                let status = status_of(&written);
                let written = Written { resource_version: written.resource_version(), status };
                fence::wrote(uid.as_deref().unwrap_or_default(), written);
                return Ok(true);
            }
            // Gone: its own event tells.
            Err(kube::Error::Api(error)) if error.code == 404 => return Ok(false),
            Err(kube::Error::Api(error)) if error.code == 409 && left > 0 => {
                let Some(now) = api.get_opt(&name).await? else { return Ok(false) };
                if now.uid() != uid {
                    // Made anew under the same name: its own event tells.
                    return Ok(false);
                }
                let found = status_of(&now);
                let is_as_decided = match &own {
                    Some(own) => own.status == found,
                    None => had.is_none() && found.is_null() || had == serde_json::from_value(found).ok().as_ref(),
                };
                if !is_as_decided {
                    return Err(kube::Error::Api(error));
                }
                version = now.resource_version();
            }
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Says that a fault of the operator ended a pass over an object: in its condition `Ready`, and nothing else.
///
/// # Errors
/// What the API server said. An object that is gone is no error.
pub async fn internal_error<K: Resource<DynamicType = ()>>(
    client: &Client,
    object: &K,
    message: &str,
) -> Result<(), kube::Error> {
    let (name, namespace) = (object.meta().name.clone().unwrap_or_default(), object.meta().namespace.clone());
    let kind = ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace.unwrap_or_default(), &kind);
    let condition = json!({
        "type": ConditionType::Ready.as_str(),
        "status": "False",
        "reason": Reason::InternalError,
        "message": message,
        "observedGeneration": object.meta().generation,
        "lastTransitionTime": Time(whole_seconds(Timestamp::now())),
    });
    let patch = json!({
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"uid": object.meta().uid},
        "status": {"conditions": [condition]},
    });
    // As somebody else: what the operator owns of the status and does not name here would go.
    let params = PatchParams::apply(FAULT_MANAGER).force();
    match api.patch_status(&name, &params, &Patch::Apply(patch)).await {
        Err(kube::Error::Api(error)) if error.code == 404 => Ok(()),
        written => written.map(drop),
    }
}

fn status_of<K: Serialize>(object: &K) -> Value {
    serde_json::to_value(object).ok().and_then(|mut object| Some(object.get_mut("status")?.take())).unwrap_or_default()
}

/// How events name any object.
pub fn reference(object: &Value) -> ObjectReference {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    ObjectReference {
        api_version: text("/apiVersion"),
        kind: text("/kind"),
        namespace: text("/metadata/namespace"),
        name: text("/metadata/name"),
        uid: text("/metadata/uid"),
        ..ObjectReference::default()
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
        self.say_of(&object.object_ref(&()), reason, note).await;
    }

    /// The same of an object that is named.
    pub async fn say_of(&self, object: &ObjectReference, reason: Reason, note: &str) {
        if !fence::holds() {
            // Who has the object now says what is so.
            return;
        }
        if let Err(error) = self.publish(object, reason, note).await {
            tracing::debug!(%error, %reason, "event not written");
        }
    }

    /// The same for what must not be lost.
    ///
    /// # Errors
    /// What the API server said.
    pub async fn publish(&self, object: &ObjectReference, reason: Reason, note: &str) -> Result<(), kube::Error> {
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
            | Reason::HookBlocked
            | Reason::DriftCorrected
            | Reason::StageDone
            | Reason::Replaced
            | Reason::WaitingForHelmHook
            | Reason::StageSkipped
            | Reason::HelmTestSucceeded
            | Reason::WaitingForPreCondition
            | Reason::WaitingForPostCondition
            | Reason::DeletingObjects
            | Reason::WaitingForImages
            | Reason::BuildQueued
            | Reason::BuildStepStarted
            | Reason::BuildStepDone
            | Reason::BuildCancelled
            | Reason::ImageReady
            | Reason::ImageMarked
            | Reason::ImageRemoved
            | Reason::ImageRetained
            | Reason::ImageUnused
            | Reason::Fetching
            | Reason::Moving
            | Reason::Deleting
            | Reason::Succeeded
            | Reason::SourceSuspended
            | Reason::Paused => EventType::Normal,
            _ => EventType::Warning,
        };
        let event = Event {
            type_,
            reason: reason.as_str().to_owned(),
            note: Some(cut(note, MAX_NOTE)),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        self.recorder(note).publish(&event, object).await
    }
}
