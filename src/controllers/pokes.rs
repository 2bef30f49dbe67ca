//! Who was told from outside to look at its source now.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use kube::{Resource, ResourceExt};

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
    poked: Mutex<HashSet<Poked>>,
    /// The revision of its shared source that each waits for.
    lagging: Mutex<HashMap<Poked, String>>,
}

impl Pokes {
    /// The next pass over it polls.
    pub fn add(&self, object: Poked) {
        self.poked.lock().unwrap_or_else(PoisonError::into_inner).insert(object);
    }

    /// Whether it was poked since the last time.
    pub(super) fn take(&self, object: &Poked) -> bool {
        self.poked.lock().unwrap_or_else(PoisonError::into_inner).remove(object)
    }

    /// Remembers the revision that another replica found and this one did not, `None` when they agree; whether it is a new
    /// one.
    pub(super) fn lags(&self, object: &Poked, revision: Option<&str>) -> bool {
        let mut lagging = self.lagging.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(revision) = revision else {
            lagging.remove(object);
            return false;
        };
        lagging.insert(object.clone(), revision.to_owned()).as_deref() != Some(revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_that_was_missed_is_waited_for_once() {
        let object = Poked { kind: "ClusterStack".into(), namespace: "team".into(), name: "x".into() };
        let pokes = Pokes::default();
        let told =
            [None, Some("b"), Some("b"), None, Some("b"), Some("c"), Some("c")].map(|one| pokes.lags(&object, one));
        assert_eq!(told, [false, true, false, false, true, true, false]);
    }
}
