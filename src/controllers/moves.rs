//! What `clusterctl move` takes elsewhere, and what it brings here.
//!
//! Where it takes from, it deletes objects one by one, those that are owned before their owners, and takes their finalizers
//! away itself. What is gone must not be made again for an owner that is still there: it would be deleted as if nobody had
//! moved it. Where it brings to, it creates owners first. What they own comes with all that was noted on it, and must not be
//! made before without.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use thiserror::Error;
use tokio::time::Instant;

use crate::api::condition::Reason;
use crate::api::is_moved;
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;

/// How long nothing is made anew for an owner after the last of its objects was taken. A move that broke off is over then.
const LASTS: Duration = Duration::from_mins(10);
/// How long what an object owns is waited for that was brought.
const COMES: Duration = Duration::from_mins(2);
/// How much older than an object a note of who wrote it is at least that came with it. A new object is noted first, and gets
/// its time after admission, where a webhook may take 30 s.
const OLDER: SignedDuration = SignedDuration::from_secs(35);
/// The field manager of `clusterctl`, until it has noted who had written what: the first word of its `User-Agent`.
const CLUSTERCTL: &str = "clusterctl";

/// UIDs of the owners of objects that were taken, with when that was. All clones know the same.
#[derive(Clone, Debug, Default)]
pub struct Moves(Arc<Mutex<HashMap<String, Instant>>>);

/// Why nothing is made for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum Move {
    /// It is taken elsewhere.
    #[error("clusterctl move takes it to another management cluster: nothing is made for it here meanwhile")]
    Takes,
    /// It was brought here a moment ago.
    #[error("clusterctl move brought it here: what belongs to it is waited for until two minutes later")]
    Brings,
}

impl Move {
    /// What a condition says of it.
    pub(super) fn trouble(self) -> Trouble {
        Trouble::new(ErrorClass::Waiting, Reason::Moving, self.to_string())
    }
}

impl Moves {
    /// Why nothing is made for an object that lacks something of its own; mostly nothing stands in the way.
    pub(super) fn holds(&self, owner: &impl ResourceExt) -> Option<Move> {
        if self.takes(&owner.uid().unwrap_or_default()) {
            return Some(Move::Takes);
        }
        let made = owner.creation_timestamp()?.0;
        // It notes who had written what, and when: that is older than the object is here.
        let is_brought = |entry: &ManagedFieldsEntry| {
            entry.manager.as_deref() == Some(CLUSTERCTL)
                || entry.time.as_ref().is_some_and(|time| made.duration_since(time.0) > OLDER)
        };
        let is_young = Timestamp::now().duration_since(made).unsigned_abs() < COMES;
        (is_young && owner.managed_fields().iter().any(is_brought)).then_some(Move::Brings)
    }

    /// Whether an object is being taken elsewhere with all that it owns: nothing is made for it.
    pub(super) fn takes(&self, owner: &str) -> bool {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.get(owner).is_some_and(|at| at.elapsed() < LASTS)
    }

    fn note(&self, object: &impl ResourceExt) {
        if !is_moved(object) {
            return;
        }
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|_, at| at.elapsed() < LASTS);
        for owner in object.owner_references() {
            taken.insert(owner.uid.clone(), Instant::now());
        }
    }

    /// Notes what a watch sees: it has to come before the cache, so that nobody misses an object without knowing why.
    pub(super) fn noted<K: ResourceExt>(&self) -> impl FnMut(&Event<K>) + Send + use<K> {
        let moves = self.clone();
        move |event| match event {
            Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) => moves.note(object),
            Event::Init | Event::InitDone => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::DELETE_FOR_MOVE;

    fn object(annotations: &Value) -> ConfigMap {
        let owner = json!({"apiVersion": "v1", "kind": "X", "name": "x", "uid": "owner"});
        let metadata = json!({"name": "a", "annotations": annotations, "ownerReferences": [owner]});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_made_for_the_owner_of_what_was_taken_for_a_while() {
        let moves = Moves::default();
        let mut noted = moves.noted();
        noted(&Event::Delete(object(&json!({}))));
        noted(&Event::InitDone);
        assert!(!moves.takes("owner"));
        for event in [Event::Apply, Event::InitApply, Event::Delete] {
            noted(&event(object(&json!({DELETE_FOR_MOVE: ""}))));
            assert!(moves.takes("owner") && !moves.takes("other"));
            tokio::time::advance(LASTS).await;
            assert!(!moves.takes("owner"));
        }
        noted(&Event::Delete(object(&json!({DELETE_FOR_MOVE: ""}))));
        assert_eq!(moves.0.lock().unwrap().len(), 1, "what is over is forgotten");
    }

    #[tokio::test]
    async fn what_belongs_to_an_object_that_was_brought_is_waited_for() {
        let moves = Moves::default();
        let now = Timestamp::now();
        let made_of = |manager: &str, ago: Duration, before: Duration| -> ConfigMap {
            let written = (now - ago - before).to_string();
            let entry = json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "time": written});
            let at = (now - ago).to_string();
            serde_json::from_value(json!({"metadata": {"uid": "u", "managedFields": [entry], "creationTimestamp": at}}))
                .unwrap()
        };
        let made = |manager: &str, ago: Duration| made_of(manager, ago, Duration::ZERO);
        let soon = Duration::from_secs(30);
        for (object, expected) in [
            (made("clusterctl", soon), Some(Move::Brings)),
            (made("clusterctl", COMES + soon), None),
            (made("kubectl", soon), None),
            (made_of("clusterstack", soon, soon), None),
            (made_of("clusterstack", soon, COMES), Some(Move::Brings)),
            (made_of("clusterstack", COMES + soon, COMES), None),
        ] {
            assert_eq!(moves.holds(&object), expected);
        }
        moves.noted()(&Event::Delete(object(&json!({DELETE_FOR_MOVE: ""}))));
        let mut taken = made("clusterctl", soon);
        taken.metadata.uid = Some("owner".to_owned());
        assert_eq!(moves.holds(&taken), Some(Move::Takes));
    }
}
