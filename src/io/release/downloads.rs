//! What is asked of a source about one release, shared: who asks for the same meanwhile, or again, gets the same.
//!
//! Guarantees: of one release of one source, with the same rights and the same keys, one download runs at a time, in a
//! task of its own: who asks waits for it as long as a pass waits, then gets the last failure or [`Reason::Progressing`], and is
//! told when it ends. What was refused is not downloaded again before [`HOLDS`] is over, unless somebody insists. How
//! many run at once is bounded, in all and per host.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::api::condition::Reason;
use crate::core::retry::{ErrorClass, STALLED};
use crate::core::status::Trouble;
use crate::io::source::flights::{Flights, Ground, LONGEST, Waiter};
use crate::io::source::room::{Guest, Pace, Room, Sizes};

/// For how long a refusal holds, and a signature that was checked: keys expire.
const HOLDS: Duration = STALLED;
/// Downloads that are remembered.
const REMEMBERED: usize = 512;
/// Downloads at once.
const ROOM: Sizes = Sizes { quick: 8, slow: 4, silent: 2, per_host: 4 };

/// All that decides what comes of a download.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// Of the source, [`crate::io::source::Source::fetch_key`].
    pub(super) source: String,
    /// Name and revision of the tag.
    pub(super) tag: (String, String),
    /// Whether the revision is fetched whatever the tag names now.
    pub(super) by_revision: bool,
    /// Name of the release.
    pub(super) release: String,
    /// What must be signed by which keys; empty where nothing is.
    pub(super) trust: String,
}

/// Who asks for what.
pub(super) struct Ask<'a, K> {
    /// All that decides what comes of it.
    pub(super) place: K,
    /// The host that is asked.
    pub(super) host: String,
    /// For people: what is done.
    pub(super) doing: String,
    /// What is known is asked for again in any case.
    pub(super) insists: bool,
    /// What is known is known for an hour only.
    pub(super) expires: bool,
    /// Who is told when it ends later.
    pub(super) waiter: Option<&'a Waiter>,
}

/// What came of a download.
#[derive(Clone)]
struct Ended<V> {
    at: Instant,
    took: Duration,
    result: Result<V, Trouble>,
}

impl<V> Ended<V> {
    /// Whether the same would be said again: nothing but another release helps, or those who waited for it were not told
    /// yet.
    fn holds(&self, trouble: &Trouble) -> bool {
        let longest = match trouble.class {
            ErrorClass::Invalid => HOLDS,
            _ if self.pace() == Pace::Silent => self.took,
            _ => Duration::ZERO,
        };
        self.at.elapsed() < longest
    }

    fn pace(&self) -> Pace {
        Pace::of(self.took, self.result.is_err())
    }
}

/// What came of the last downloads.
pub(super) struct Downloads<K, V> {
    ended: Arc<Mutex<HashMap<K, Ended<V>>>>,
    flights: Flights<K>,
    room: Arc<Room>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K, V> Downloads<K, V>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + 'static,
{
    /// None yet.
    pub(super) fn on(ground: Ground) -> Self {
        Self { ended: Arc::default(), flights: Flights::on(ground), room: Arc::new(Room::new(ROOM)) }
    }

    /// What is at the place: known, or by `download`. What is known may be gone from the store: `is_there` says whether
    /// it is.
    pub(super) async fn once<D, I>(
        &self,
        ask: Ask<'_, K>,
        is_there: impl Fn(V) -> I,
        download: impl Fn() -> D + Send + Sync,
    ) -> Result<V, Trouble>
    where
        D: Future<Output = Result<V, Trouble>> + Send + 'static,
        I: Future<Output = bool>,
    {
        let asked = Instant::now();
        for round in 0..3 {
            let known = lock(&self.ended).get(&ask.place).cloned();
            let is_new = |ended: &&Ended<V>| round > 0 && ended.at >= asked;
            match known.as_ref().filter(|ended| is_new(ended) || !ask.insists) {
                Some(ended) if is_new(&ended) => return ended.result.clone(),
                Some(ended @ Ended { result: Err(trouble), .. }) if ended.holds(trouble) => {
                    return Err(trouble.clone());
                }
                Some(Ended { result: Ok(value), at, .. })
                    if (!ask.expires || at.elapsed() < HOLDS) && is_there(value.clone()).await =>
                {
                    return Ok(value.clone());
                }
                _ => {}
            }
            let pace = known.as_ref().map_or_else(Pace::default, Ended::pace);
            let work = || self.work(&ask, pace, download());
            if !self.flights.join(ask.place.clone(), pace.patience(), ask.waiter, work).await {
                // What went wrong the last time is more than that it is tried again.
                let failed = known.and_then(|ended| ended.result.err());
                return Err(failed.unwrap_or_else(|| under_way(&ask.doing)));
            }
        }
        Err(under_way(&ask.doing))
    }

    fn work(
        &self,
        ask: &Ask<'_, K>,
        pace: Pace,
        download: impl Future<Output = Result<V, Trouble>> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (ended, room) = (Arc::clone(&self.ended), Arc::clone(&self.room));
        let (place, host, doing) = (ask.place.clone(), ask.host.clone(), ask.doing.clone());
        let tenant = ask.waiter.map_or("", Waiter::namespace).to_owned();
        async move {
            let timed = async {
                let start = Instant::now();
                let result = tokio::time::timeout(LONGEST, download).await.unwrap_or_else(|_| {
                    let message = format!("{doing} took longer than {} s; it is tried again", LONGEST.as_secs());
                    Err(Trouble::new(ErrorClass::Transient, Reason::SourceUnreachable, message))
                });
                (result, start.elapsed())
            };
            let (result, took) = room.run(Guest { tenant: &tenant, host: &host }, pace, timed).await;
            let mut ended = lock(&ended);
            if ended.len() >= REMEMBERED {
                ended.clear();
            }
            ended.insert(place, Ended { at: Instant::now(), took, result });
        }
    }
}

fn under_way(doing: &str) -> Trouble {
    Trouble::new(ErrorClass::Transient, Reason::Progressing, format!("{doing} is under way"))
}

#[cfg(test)]
mod tests;
