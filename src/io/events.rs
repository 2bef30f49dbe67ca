//! Events: what happened to an object, in words. They wait in line behind all that matters more.

mod line;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::line::Said;
use crate::api::condition::{Reason, cut};
use crate::io::apply::refusal;
use crate::io::fence;

/// Longest note of an event (`events.k8s.io/v1`), in bytes.
const MAX_NOTE: usize = 1024;

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

/// The namespace of an object, where an event of something that outlives it was refused because the namespace is being deleted.
fn namespace_that_ends(
    object: &ObjectReference,
    reason: Reason,
    written: &Result<(), kube::Error>,
) -> Option<ObjectReference> {
    let Err(error) = written else { return None };
    let ends = refusal(error).reason == Reason::NamespaceTerminating;
    (ends && reason == Reason::ImageRetained).then(|| ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Namespace".to_owned()),
        name: object.namespace.clone(),
        ..ObjectReference::default()
    })
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
    line: Option<mpsc::Sender<Said>>,
}

impl Events {
    /// With the operator's name as reporter. Each is written by who says it.
    pub fn new(client: Client, instance: String) -> Self {
        let reporter = Reporter { controller: "clusterstack".into(), instance: Some(instance) };
        Self { client, reporter, recorders: Arc::default(), line: None }
    }

    /// The same, written one by one by the work that is returned, when `has_room` says that nothing waits for what an event
    /// costs; half a minute late at most. Who says something does not wait. The work ends soon after `end`, with what was
    /// said until then.
    pub fn in_line(
        self,
        has_room: impl Fn() -> bool + Send + Sync + 'static,
        end: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (line, said) = mpsc::channel(line::WAITING);
        let own = self.clone();
        let write = move |said: Said| {
            let events = own.clone();
            async move { events.write(&said.object, said.reason, &said.note).await }
        };
        (Self { line: Some(line), ..self }, line::written(said, has_room, write, end))
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
        let Some(line) = &self.line else { return self.write(object, reason, note).await };
        let said = Said { at: Instant::now(), object: object.clone(), reason, note: cut(note, MAX_NOTE) };
        // A line that is full, or at its end, makes who comes wait.
        if line.try_send(said).is_err() {
            self.write(object, reason, note).await;
        }
    }

    async fn write(&self, object: &ObjectReference, reason: Reason, note: &str) {
        let mut written = self.publish(object, reason, note).await;
        if let Some(namespace) = namespace_that_ends(object, reason, &written) {
            // An event lies where its object does (Kubernetes' validation of events): it is one of the Namespace, in `default`.
            let note = format!(
                "{} {}: {note}",
                object.kind.as_deref().unwrap_or_default(),
                object.name.as_deref().unwrap_or_default()
            );
            written = Box::pin(self.publish(&namespace, reason, &note)).await;
        }
        if let Err(error) = written {
            tracing::debug!(%error, %reason, "event not written");
        }
    }

    /// The same for what must not be lost: at once.
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
