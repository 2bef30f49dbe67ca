//! Who was told from outside to look at its source now.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::{Resource, ResourceExt};
use tokio::time::Instant;

/// An object of ours: kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Poked {
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The name of an object among the poked.
pub(super) fn of<K: Resource<DynamicType = ()>>(object: &K) -> Poked {
    Poked {
        kind: K::kind(&()).into_owned(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    }
}

/// The objects whose next pass polls whatever the interval says. May be lost: then the interval does it.
#[derive(Debug, Default)]
pub struct Pokes {
    poked: Mutex<HashMap<Poked, Poke>>,
    /// The revision of its shared source that each waits for, and when it may ask for it.
    lagging: Mutex<HashMap<Poked, (String, Instant)>>,
}

/// One that its source has not answered yet.
#[derive(Debug)]
struct Poke {
    since: Instant,
    /// There was another one after it.
    again: bool,
}

impl Pokes {
    /// The next pass over it polls.
    pub fn add(&self, object: Poked) {
        let mut poked = self.poked.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Poke { since: Instant::now(), again: false };
        poked.entry(object).and_modify(|poke| poke.again = true).or_insert(new);
    }

    /// Since when a poke waits for an answer.
    pub(super) fn since(&self, object: &Poked) -> Option<Instant> {
        self.poked.lock().unwrap_or_else(PoisonError::into_inner).get(object).map(|poke| poke.since)
    }

    /// Notes that the source answered. Whether there was another poke meanwhile, which waits for an answer of its own.
    pub(super) fn answered(&self, object: &Poked) -> bool {
        let mut poked = self.poked.lock().unwrap_or_else(PoisonError::into_inner);
        let again = poked.remove(object).is_some_and(|poke| poke.again);
        if again {
            poked.insert(object.clone(), Poke { since: Instant::now(), again: false });
        }
        again
    }

    /// Remembers the revision that another replica found and this one did not, `None` when they agree. How long it is until
    /// the source may be asked for it, `after` it was first missed; `None` when it was asked.
    pub(super) fn lags(&self, object: &Poked, revision: Option<&str>, after: Duration) -> Option<Duration> {
        let mut lagging = self.lagging.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(revision) = revision else {
            lagging.remove(object);
            return None;
        };
        let now = Instant::now();
        let missed = lagging.entry(object.clone()).or_insert_with(|| (revision.to_owned(), now + after));
        if missed.0 != revision {
            *missed = (revision.to_owned(), now + after);
        }
        // Each pass until then says so: the last one's word counts.
        missed.1.checked_duration_since(now).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_poke_waits_for_an_answer_and_one_that_comes_meanwhile_for_its_own() {
        let object = Poked { kind: "ClusterStack".into(), namespace: "team".into(), name: "x".into() };
        let pokes = Pokes::default();
        assert_eq!((pokes.since(&object), pokes.answered(&object)), (None, false));
        pokes.add(object.clone());
        let first = pokes.since(&object).unwrap();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(pokes.since(&object), Some(first));
        pokes.add(object.clone());
        assert_eq!(pokes.since(&object), Some(first), "who pokes again and again is answered too");
        assert!(pokes.answered(&object));
        assert_eq!(pokes.since(&object), Some(first + Duration::from_secs(3)));
        assert!(!pokes.answered(&object));
        assert_eq!(pokes.since(&object), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_revision_that_was_missed_is_waited_for_once_by_however_many_passes() {
        let object = Poked { kind: "ClusterStack".into(), namespace: "team".into(), name: "x".into() };
        let pokes = Pokes::default();
        let mut told = Vec::new();
        for (seconds, revision) in [
            (0, None),
            (0, Some("b")),
            (1, Some("b")),
            (3, Some("b")),
            (1, Some("b")),
            (0, Some("c")),
            (9, Some("c")),
            (0, None),
            (0, Some("c")),
        ] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            told.push(pokes.lags(&object, revision, Duration::from_secs(5)).map(|left| left.as_secs()));
        }
        assert_eq!(told, [None, Some(5), Some(4), Some(1), None, Some(5), None, None, Some(5)]);
    }
}
