//! Room for work on sources: how much of it runs at once, in all, per host and per tenant.
//!
//! Guarantees: who waits gets in by turns. A host that never answers takes its own places and no others'. Work that takes
//! longer than a pass waits gives its place back as soon as there is one for slow work, and sources that were slow or
//! silent the last time begin there: they hold up each other, not those that answer, of the same host neither. A namespace has at
//! most half of the places, in all and with a host: who sends a byte in a second holds up no other namespace.

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
    /// Places that were asked for by pace, tenant and host; empty is any.
    apart: Mutex<HashMap<(Pace, String, String), Arc<Semaphore>>>,
    sizes: Sizes,
}

/// A place in the room, until it is dropped.
#[derive(Debug)]
pub struct Place {
    in_all: Option<OwnedSemaphorePermit>,
    _apart: Vec<OwnedSemaphorePermit>,
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
                Arc::clone(&self.slow).acquire_owned().await.ok()
            };
            tokio::select! {
                biased;
                result = &mut work => return result,
                slow = slow => place.in_all = slow,
            }
        }
        work.await
    }

    /// Waits for a place.
    pub async fn enter(&self, Guest { tenant, host }: Guest<'_>, pace: Pace) -> Place {
        let Sizes { quick, slow, silent, per_host } = self.sizes;
        let (of_all, size) = match pace {
            Pace::Quick => (&self.quick, quick),
            Pace::Slow => (&self.slow, slow),
            Pace::Silent => (&self.silent, silent),
        };
        let mut asked = Vec::with_capacity(3);
        // Who waits for its like holds nothing that others wait for.
        if !tenant.is_empty() {
            asked.push(self.apart(pace, tenant, "", size.div_ceil(2)));
            asked.push(self.apart(pace, tenant, host, per_host.div_ceil(2)));
        }
        asked.push(self.apart(pace, "", host, per_host));
        let mut apart = Vec::with_capacity(asked.len());
        for places in asked {
            // These semaphores are never closed: there is a permit in any case.
            apart.extend(places.acquire_owned().await.ok());
        }
        Place { in_all: Arc::clone(of_all).acquire_owned().await.ok(), _apart: apart }
    }

    fn apart(&self, pace: Pace, tenant: &str, host: &str, size: usize) -> Arc<Semaphore> {
        let mut apart = self.apart.lock().unwrap_or_else(PoisonError::into_inner);
        apart.retain(|_, places| Arc::strong_count(places) > 1);
        let places = apart
            .entry((pace, tenant.to_owned(), host.to_owned()))
            .or_insert_with(|| Arc::new(Semaphore::new(size.max(1))));
        Arc::clone(places)
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
            room.run(Guest { tenant, host }, pace, tokio::time::sleep(Duration::from_secs(seconds))).await;
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
        assert_eq!(ends_of(sizes, &many).await[5..], [1, 1, 9]);
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
