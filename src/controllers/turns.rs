//! Turns of passes: who waits longest is next.
//!
//! A pass begins for all that is due (see [`super::controller`]) and waits here. An object is in the line once: what comes back
//! goes to its end, so that nobody waits for ever while others are passed over and over.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::settings::Live;

/// The lines of the controllers.
#[derive(Debug)]
pub struct Lines {
    /// Of ClusterStacks.
    pub(super) stacks: Turns,
    /// Of ClusterStackReleases.
    pub(super) releases: Turns,
    /// Of ClusterStackSources.
    pub(super) sources: Turns,
    /// Of ClusterAddons.
    pub(super) addons: Turns,
    /// Of ClusterAddons whose workload cluster did not answer well last time: they wait for each other alone.
    pub(super) doubtful_addons: Turns,
}

/// How many passes at once wait for workload clusters that did not answer well last time.
const DOUBTFUL: u16 = 4;

impl Lines {
    /// Lines with as many passes at once as the settings say, which end with `intake`.
    pub(super) fn new(live: &Live, intake: &CancellationToken) -> Self {
        let line = |at_once| Turns::new(at_once, intake.clone());
        Self {
            stacks: line(live.stack_concurrency),
            releases: line(live.release_concurrency),
            sources: line(live.source_concurrency),
            addons: line(live.addon_concurrency),
            doubtful_addons: line(DOUBTFUL),
        }
    }

    /// Whether a ClusterStack and a release that are due would not wait.
    pub(super) fn have_room(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let (stacks, releases) = (self.stacks.clone(), self.releases.clone());
        move || stacks.has_room() && releases.has_room()
    }

    /// As many at once as these settings say, from now on.
    pub(super) fn resize(&self, live: &Live) {
        self.stacks.resize(live.stack_concurrency);
        self.releases.resize(live.release_concurrency);
        self.sources.resize(live.source_concurrency);
        self.addons.resize(live.addon_concurrency);
    }
}

/// The line of one controller.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    at_once: Arc<Semaphore>,
    size: Arc<Mutex<usize>>,
    intake: CancellationToken,
}

impl Turns {
    /// A line for `at_once` passes at once, which ends with `intake`.
    pub(super) fn new(at_once: u16, intake: CancellationToken) -> Self {
        let size = usize::from(at_once.max(1));
        Self { at_once: Arc::new(Semaphore::new(size)), size: Arc::new(Mutex::new(size)), intake }
    }

    /// So many at once from now on; those under way end first.
    fn resize(&self, at_once: u16) {
        let mut size = self.size.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *size, usize::from(at_once.max(1)));
        self.at_once.add_permits(size.saturating_sub(before));
        let surplus = before.saturating_sub(*size);
        let surplus = surplus - self.at_once.forget_permits(surplus);
        let Ok(surplus @ 1..) = u32::try_from(surplus) else { return };
        let line = Arc::clone(&self.at_once);
        tokio::spawn(async move {
            if let Ok(permits) = line.acquire_many_owned(surplus).await {
                permits.forget();
            }
        });
    }

    fn has_room(&self) -> bool {
        self.at_once.available_permits() > 0
    }

    /// Waits in line; `None` where nothing new is taken in any more.
    pub(super) async fn next(&self) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            () = self.intake.cancelled() => None,
            turn = Arc::clone(&self.at_once).acquire_owned() => turn.ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_line_gets_longer_and_shorter() {
        let turns = Turns::new(1, CancellationToken::new());
        let free = async || tokio::time::timeout(Duration::from_secs(1), turns.next()).await.ok().flatten();
        let first = free().await;
        assert!(first.is_some() && free().await.is_none() && !turns.has_room());
        turns.resize(3);
        assert!(turns.has_room());
        let (second, third) = (free().await, free().await);
        assert!(second.is_some() && third.is_some() && free().await.is_none());
        turns.resize(1);
        tokio::task::yield_now().await;
        drop((first, second));
        assert!(free().await.is_none());
        drop(third);
        let only = free().await;
        assert!(only.is_some() && free().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_line_ends_with_the_intake() {
        let intake = CancellationToken::new();
        let turns = Turns::new(1, intake.clone());
        let turn = turns.next().await;
        assert!(turn.is_some());
        let ends = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            intake.cancel();
        };
        let (waits, ()) = tokio::join!(turns.next(), ends);
        assert!(waits.is_none());
    }
}
