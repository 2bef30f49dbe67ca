//! Room for work on sources: how much of it runs at once, in all and per host.
//!
//! Guarantees: who waits gets in by turns. A host that never answers takes its own places and no others'; sources that
//! were silent before have a few places of their own, so that many dead hosts don't take the places of those that answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How much runs at once.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// In all, of sources that were not silent before.
    pub all: usize,
    /// In all, of sources that were.
    pub silent: usize,
    /// With one host.
    pub per_host: usize,
}

/// The room.
#[derive(Debug)]
pub struct Room {
    all: Arc<Semaphore>,
    silent: Arc<Semaphore>,
    hosts: Mutex<HashMap<String, Arc<Semaphore>>>,
    per_host: usize,
}

/// A place in the room, until it is dropped.
#[derive(Debug)]
pub struct Place {
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl Room {
    /// An empty room.
    pub fn new(sizes: Sizes) -> Self {
        Self {
            all: Arc::new(Semaphore::new(sizes.all.max(1))),
            silent: Arc::new(Semaphore::new(sizes.silent.max(1))),
            hosts: Mutex::default(),
            per_host: sizes.per_host.max(1),
        }
    }

    /// Waits for a place with `host`; `was_silent` tells that the source did not answer in time when it was last asked.
    pub async fn enter(&self, host: &str, was_silent: bool) -> Place {
        // These semaphores are never closed: there is a permit in any case.
        let with_host = self.host(host).acquire_owned().await.ok();
        let all = if was_silent { &self.silent } else { &self.all };
        Place { _permits: [with_host, Arc::clone(all).acquire_owned().await.ok()] }
    }

    fn host(&self, host: &str) -> Arc<Semaphore> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.retain(|_, places| Arc::strong_count(places) > 1);
        let places = hosts.entry(host.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.per_host)));
        Arc::clone(places)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn gets_in(room: &Room, host: &str, was_silent: bool) -> Option<Place> {
        tokio::time::timeout(Duration::from_secs(1), room.enter(host, was_silent)).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_takes_its_own_places_and_no_others() {
        let room = Room::new(Sizes { all: 3, silent: 1, per_host: 2 });
        let dead = [gets_in(&room, "dead", false).await, gets_in(&room, "dead", false).await];
        assert!(dead.iter().all(Option::is_some));
        assert!(gets_in(&room, "dead", false).await.is_none());
        let good = gets_in(&room, "good", false).await;
        assert!(good.is_some());
        assert!(gets_in(&room, "third", false).await.is_none());
        drop(dead);
        assert!(gets_in(&room, "dead", false).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_silent_has_places_apart() {
        let room = Room::new(Sizes { all: 1, silent: 2, per_host: 2 });
        let dead = [gets_in(&room, "a", true).await, gets_in(&room, "b", true).await];
        assert!(dead.iter().all(Option::is_some));
        assert!(gets_in(&room, "c", true).await.is_none());
        assert!(gets_in(&room, "good", false).await.is_some());
    }
}
