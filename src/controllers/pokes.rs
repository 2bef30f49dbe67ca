//! Who was told from outside to look at its source now.

use std::collections::HashSet;
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
pub struct Pokes(Mutex<HashSet<Poked>>);

impl Pokes {
    /// The next pass over it polls.
    pub fn add(&self, object: Poked) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(object);
    }

    /// Whether it was poked since the last time.
    pub(super) fn take(&self, object: &Poked) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(object)
    }
}
