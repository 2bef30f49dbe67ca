//! Work on sources that outlives those who wait for it.
//!
//! Guarantees: of one key, one piece of work runs at a time, in a task of its own; who asks for it waits for it only for a
//! while, and is told when it ends if that was not enough. The work goes on when those who wait go. Its tasks are in a
//! tracker; they end by themselves or with the token that the work was given.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::api::{ClusterStack, ClusterStackRelease, ClusterStackSource};

/// For how long a pass waits for a source, from the moment on when it is asked.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How long any work on a source may take, whatever its own limits are.
pub const LONGEST: Duration = Duration::from_mins(15);

/// Whose pass did not wait for the end of the work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Waiter {
    /// That of a ClusterStack.
    Stack(ObjectRef<ClusterStack>),
    /// That of a ClusterStackRelease.
    Release(ObjectRef<ClusterStackRelease>),
    /// That of a ClusterStackSource.
    Source(ObjectRef<ClusterStackSource>),
}

impl Waiter {
    /// Its namespace.
    pub fn namespace(&self) -> &str {
        let namespace = match self {
            Self::Stack(object) => &object.namespace,
            Self::Release(object) => &object.namespace,
            Self::Source(object) => &object.namespace,
        };
        namespace.as_deref().unwrap_or_default()
    }
}

/// Where the tasks are, and who is told when they end.
#[derive(Clone)]
pub struct Ground {
    /// The tasks.
    pub tasks: TaskTracker,
    /// Tells a waiter.
    pub tell: Arc<dyn Fn(Waiter) + Send + Sync>,
}

impl Default for Ground {
    /// Nobody waits for the tasks, and nobody is told.
    fn default() -> Self {
        Self { tasks: TaskTracker::new(), tell: Arc::new(drop) }
    }
}

impl fmt::Debug for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ground").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}

/// Work that is under way, by key.
#[derive(Debug)]
pub struct Flights<K> {
    ground: Ground,
    under_way: Arc<UnderWay<K>>,
}

#[derive(Debug)]
struct UnderWay<K>(Mutex<HashMap<K, Flight>>);

#[derive(Debug)]
struct Flight {
    began: Instant,
    ended: CancellationToken,
    waiting: HashSet<Waiter>,
}

impl<K> UnderWay<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Flight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a flight, also when its work panics.
struct Landing<K: Eq + Hash> {
    key: K,
    under_way: Arc<UnderWay<K>>,
    tell: Arc<dyn Fn(Waiter) + Send + Sync>,
}

impl<K: Eq + Hash> Drop for Landing<K> {
    fn drop(&mut self) {
        let flight = self.under_way.lock().remove(&self.key);
        let Some(flight) = flight else { return };
        flight.ended.cancel();
        for waiter in flight.waiting {
            (self.tell)(waiter);
        }
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Flights<K> {
    /// None under way.
    pub fn on(ground: Ground) -> Self {
        Self { ground, under_way: Arc::new(UnderWay(Mutex::default())) }
    }

    /// Waits for the work at `key` until `patience` after its begin; begins it if it is not under way. Whether it ended;
    /// if not, `waiter` is told when it does.
    pub async fn join<W>(
        &self,
        key: K,
        patience: Duration,
        waiter: Option<&Waiter>,
        work: impl FnOnce() -> W + Send,
    ) -> bool
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let (began, ended) = {
            let mut under_way = self.under_way.lock();
            let flight = under_way.entry(key.clone()).or_insert_with(|| {
                let landing = Landing {
                    key: key.clone(),
                    under_way: Arc::clone(&self.under_way),
                    tell: Arc::clone(&self.ground.tell),
                };
                let work = work();
                let flight = async move {
                    let _landing = landing;
                    work.await;
                };
                self.ground.tasks.spawn(flight.in_current_span());
                Flight { began: Instant::now(), ended: CancellationToken::new(), waiting: HashSet::new() }
            });
            (flight.began, flight.ended.clone())
        };
        if tokio::time::timeout_at(began + patience, ended.cancelled()).await.is_ok() {
            return true;
        }
        let mut under_way = self.under_way.lock();
        // It may have ended this moment.
        let flight = under_way.get_mut(&key).filter(|flight| flight.began == began);
        match (flight, waiter) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(flight), Some(waiter)) => {
                flight.waiting.insert(waiter.clone());
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Clone, Default)]
    struct World {
        begun: Arc<AtomicUsize>,
        told: Arc<Mutex<Vec<Waiter>>>,
        tasks: TaskTracker,
    }

    impl World {
        fn flights(&self) -> Flights<&'static str> {
            let told = Arc::clone(&self.told);
            let tell = Arc::new(move |waiter| told.lock().unwrap().push(waiter));
            Flights::on(Ground { tasks: self.tasks.clone(), tell })
        }

        async fn join(&self, flights: &Flights<&'static str>, takes: u64, who: Option<&Waiter>) -> bool {
            let work = || {
                self.begun.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_secs(takes))
            };
            flights.join("x", PATIENCE, who, work).await
        }
    }

    fn stack(name: &str) -> Waiter {
        Waiter::Stack(ObjectRef::new(name).within("n"))
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_meanwhile_shares_the_work_and_waits_no_longer_than_the_first() {
        let world = World::default();
        let flights = world.flights();
        let start = Instant::now();
        let (a, b) = (stack("a"), stack("b"));
        let late = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            world.join(&flights, 20, Some(&b)).await
        };
        let (first, second) = tokio::join!(world.join(&flights, 20, Some(&a)), late);
        assert!(!first && !second);
        assert_eq!(start.elapsed(), PATIENCE);
        // Who comes when it is known to be slow does not wait at all.
        assert!(!world.join(&flights, 20, Some(&a)).await);
        assert_eq!((start.elapsed(), world.begun.load(Ordering::SeqCst)), (PATIENCE, 1));
        assert!(world.told.lock().unwrap().is_empty());
        world.tasks.close();
        world.tasks.wait().await;
        assert_eq!(start.elapsed(), Duration::from_secs(20));
        let told: HashSet<Waiter> = world.told.lock().unwrap().drain(..).collect();
        assert_eq!(told, HashSet::from([a, b]));
    }

    #[tokio::test(start_paused = true)]
    async fn who_got_the_answer_is_not_told() {
        let world = World::default();
        let flights = world.flights();
        assert!(world.join(&flights, 1, Some(&stack("a"))).await);
        assert!(world.join(&flights, 1, Some(&stack("a"))).await);
        assert_eq!(world.begun.load(Ordering::SeqCst), 2);
        assert!(world.told.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_work_goes_on_when_who_asked_goes_and_a_panic_ends_it() {
        let world = World::default();
        let flights = world.flights();
        let gone = tokio::time::timeout(Duration::from_millis(100), world.join(&flights, 1, None)).await;
        assert!(gone.is_err());
        assert!(world.join(&flights, 1, None).await);
        assert_eq!(world.begun.load(Ordering::SeqCst), 1);
        let broken = async || panic!("broken");
        assert!(flights.join("x", PATIENCE, None, broken).await);
        assert!(world.join(&flights, 1, None).await);
    }
}
