//! Room for work on sources: how much of it runs at once, in all, per host and per tenant.
//!
//! Guarantees: who waits gets in by turns. A host that never answers takes its own places and no others'. Work that takes
//! longer than a pass waits gives its place back as soon as there is one for slow work, and sources that were slow or
//! silent the last time begin there: they hold up each other, not those that answer, of the same host neither. Some places
//! are left by each namespace to others, in all and with a host: who sends a byte in a second holds up no other namespace.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::flights::PATIENCE;

/// How much runs at once.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// In all, of sources that answer in time, as far as is known.
    pub quick: usize,
    /// In all, of those that are slow.
    pub slow: usize,
    /// In all, of those that failed without having answered in time.
    pub silent: usize,
    /// With one host.
    pub per_host: usize,
}

/// How a source answered the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pace {
    /// While a pass waits ([`PATIENCE`]); also one that was never asked.
    #[default]
    Quick,
    /// Later than that.
    Slow,
    /// Not at all: it failed later than that.
    Silent,
}

impl Pace {
    /// That of work which took this long.
    pub fn of(took: Duration, failed: bool) -> Self {
        match (took > PATIENCE, failed) {
            (false, _) => Self::Quick,
            (true, false) => Self::Slow,
            (true, true) => Self::Silent,
        }
    }

    /// For how long a pass waits for it: for nobody who let it wait the last time.
    pub const fn patience(self) -> Duration {
        match self {
            Self::Quick => PATIENCE,
            Self::Slow | Self::Silent => Duration::ZERO,
        }
    }
}

/// Whose work it is, and with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest<'a> {
    /// The namespace for which it is done; empty where that is not known.
    pub tenant: &'a str,
    /// The host that is asked.
    pub host: &'a str,
}

/// The room.
#[derive(Debug)]
pub struct Room {
    quick: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    silent: Arc<Semaphore>,
    /// Places of a tenant, with a host, and of a tenant with a host.
    apart: Mutex<HashMap<Kept, Arc<Semaphore>>>,
    sizes: Sizes,
}

/// For whom, and for which host, places are counted; `None` is any.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kept {
    pace: Pace,
    tenant: Option<String>,
    host: Option<String>,
}

/// A place in the room, until it is dropped.
#[derive(Debug)]
pub struct Place {
    in_all: InAll,
    _with_host: Vec<OwnedSemaphorePermit>,
}

/// A place among all of a pace, and among those of the tenant.
#[derive(Debug)]
struct InAll(#[expect(dead_code, reason = "held until it is dropped")] [Option<OwnedSemaphorePermit>; 2]);

/// How many of so many places one tenant may have: some are left to others.
fn share(places: usize) -> usize {
    places.saturating_sub((places / 4).max(1)).max(1)
}

impl Room {
    /// An empty room.
    pub fn new(sizes: Sizes) -> Self {
        let places = |size: usize| Arc::new(Semaphore::new(size.max(1)));
        Self {
            quick: places(sizes.quick),
            slow: places(sizes.slow),
            silent: places(sizes.silent),
            apart: Mutex::default(),
            sizes,
        }
    }

    /// Does `work` when there is a place for it; one of the slow where it takes longer than a pass waits.
    pub async fn run<T>(&self, guest: Guest<'_>, pace: Pace, work: impl Future<Output = T>) -> T {
        let mut place = self.enter(guest, pace).await;
        let mut work = pin!(work);
        if pace == Pace::Quick {
            let slow = async {
                tokio::time::sleep(PATIENCE).await;
                self.among_all(guest.tenant, Pace::Slow).await
            };
            tokio::select! {
                biased;
                result = &mut work => return result,
                slow = slow => place.in_all = slow,
            }
        }
        work.await
    }

    /// Waits for a place. Who waits for its like holds nothing that others wait for.
    pub async fn enter(&self, guest: Guest<'_>, pace: Pace) -> Place {
        let Guest { tenant, host } = guest;
        let mut with_host = Vec::with_capacity(2);
        let per_host = self.sizes.per_host;
        if !tenant.is_empty() {
            with_host.extend(self.apart(pace, Some(tenant), Some(host), share(per_host)).acquire_owned().await.ok());
        }
        let of_tenant = self.of_tenant(tenant, pace).await;
        with_host.extend(self.apart(pace, None, Some(host), per_host).acquire_owned().await.ok());
        let in_all = InAll([of_tenant, self.pool(pace).0.acquire_owned().await.ok()]);
        Place { in_all, _with_host: with_host }
    }

    /// These semaphores are never closed: there is a permit in any case.
    async fn among_all(&self, tenant: &str, pace: Pace) -> InAll {
        let of_tenant = self.of_tenant(tenant, pace).await;
        InAll([of_tenant, self.pool(pace).0.acquire_owned().await.ok()])
    }

    async fn of_tenant(&self, tenant: &str, pace: Pace) -> Option<OwnedSemaphorePermit> {
        if tenant.is_empty() {
            return None;
        }
        self.apart(pace, Some(tenant), None, share(self.pool(pace).1)).acquire_owned().await.ok()
    }

    /// The places of a pace, and how many there are.
    fn pool(&self, pace: Pace) -> (Arc<Semaphore>, usize) {
        let Sizes { quick, slow, silent, .. } = self.sizes;
        let (places, size) = match pace {
            Pace::Quick => (&self.quick, quick),
            Pace::Slow => (&self.slow, slow),
            Pace::Silent => (&self.silent, silent),
        };
        (Arc::clone(places), size)
    }

    fn apart(&self, pace: Pace, tenant: Option<&str>, host: Option<&str>, size: usize) -> Arc<Semaphore> {
        let mut apart = self.apart.lock().unwrap_or_else(PoisonError::into_inner);
        apart.retain(|_, places| Arc::strong_count(places) > 1);
        let kept = Kept { pace, tenant: tenant.map(ToOwned::to_owned), host: host.map(ToOwned::to_owned) };
        Arc::clone(apart.entry(kept).or_insert_with(|| Arc::new(Semaphore::new(size.max(1)))))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const SIZES: Sizes = Sizes { quick: 3, slow: 1, silent: 1, per_host: 2 };

    /// When work with these hosts that takes so many seconds ends, in seconds.
    async fn ends(work: &[(&str, Pace, u64)]) -> Vec<u64> {
        let work: Vec<_> = work.iter().map(|(host, pace, seconds)| ("", *host, *pace, *seconds)).collect();
        ends_of(SIZES, &work).await
    }

    /// The same of tenants.
    async fn ends_of(sizes: Sizes, work: &[(&str, &str, Pace, u64)]) -> Vec<u64> {
        let (room, start) = (Room::new(sizes), Instant::now());
        let each = work.iter().map(async |&(tenant, host, pace, seconds)| {
            let work = async { tokio::time::sleep(Duration::from_secs(seconds)).await };
            room.run(Guest { tenant, host }, pace, work).await;
            start.elapsed().as_secs()
        });
        futures::future::join_all(each).await
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_holds_up_no_other_tenant() {
        use Pace::{Quick, Slow};
        let sizes = Sizes { quick: 4, slow: 2, silent: 1, per_host: 2 };
        // Of so many hosts as one likes.
        let many = [
            ("evil", "a", Quick, 90),
            ("evil", "b", Quick, 90),
            ("evil", "c", Quick, 90),
            ("evil", "d", Slow, 90),
            ("evil", "e", Slow, 90),
            ("good", "f", Quick, 1),
            ("good", "g", Quick, 1),
            ("good", "h", Slow, 9),
        ];
        assert_eq!(ends_of(sizes, &many).await[5..], [1, 2, 9]);
        // Sources without a host, as directories are.
        let here = ["x"; 9].map(|tenant| (tenant, "", Quick, 1));
        assert_eq!(ends_of(sizes, &here).await.last(), Some(&9));
        // Of the host of somebody else.
        let one = [
            ("evil", "a", Quick, 90),
            ("evil", "a", Quick, 90),
            ("evil", "a", Slow, 90),
            ("good", "a", Quick, 1),
            ("good", "a", Quick, 1),
        ];
        assert_eq!(ends_of(sizes, &one).await[3..], [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_holds_up_its_like() {
        use Pace::{Quick, Silent, Slow};
        // A host takes its own places and no others.
        let quick =
            [("dead", Quick, 1), ("dead", Quick, 1), ("dead", Quick, 1), ("good", Quick, 1), ("third", Quick, 1)];
        assert_eq!(ends(&quick).await, [1, 1, 2, 1, 2]);
        // Who was slow or silent has places apart.
        let apart = [("a", Silent, 9), ("b", Silent, 9), ("c", Slow, 9), ("d", Slow, 9), ("good", Quick, 1)];
        assert_eq!(ends(&apart).await, [9, 18, 9, 18, 1]);
        // Who turns out to be slow goes over to them, one after the other.
        let becoming = [("a", Quick, 60), ("b", Quick, 90), ("c", Quick, 90), ("d", Quick, 1), ("e", Quick, 1)];
        assert_eq!(ends(&becoming).await, [60, 90, 90, 3, 4]);
        let behind = [("a", Quick, 60), ("b", Quick, 90), ("c", Quick, 90), ("d", Slow, 1), ("e", Slow, 1)];
        assert_eq!(ends(&behind).await, [60, 90, 90, 1, 2]);
    }

    #[test]
    fn a_pace_is_told_by_the_last_answer() {
        let late = PATIENCE + Duration::from_millis(1);
        for (took, failed, pace) in [
            (PATIENCE, false, Pace::Quick),
            (PATIENCE, true, Pace::Quick),
            (late, false, Pace::Slow),
            (late, true, Pace::Silent),
        ] {
            assert_eq!(Pace::of(took, failed), pace);
        }
    }
}
