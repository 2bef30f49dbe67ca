//! Turns of passes: who waits longest is next.
//!
//! A pass begins for all that is due (see [`super::controller`]) and waits here. An object is in the line once: what comes back
//! goes to its end, so that nobody waits for ever while others are passed over and over.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
    /// Of those whose charts take long to render, or whose objects long to apply.
    slow: Arc<Slow>,
}

/// How many passes at once wait for workload clusters that did not answer well last time.
const DOUBTFUL: u16 = 4;

/// How many passes at once wait for renderings that take long.
const SLOW: u16 = 4;

/// How many passes at once may go on beside them with requests that were sent already.
const OVERRUN: u16 = 64;

/// How long a rendering, or a wave of requests, may take before its pass goes over to those that take long.
const QUICK: Duration = Duration::from_secs(5);

/// Objects at most of which it is remembered that their charts take long.
const REMEMBERED: usize = 4096;

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
            slow: Arc::new(Slow { line: line(SLOW), overrun: line(OVERRUN), known: Mutex::default() }),
        }
    }

    /// Waits for the turn of an object in `line`, or among those that take long if it did; `None` where nothing new is taken in any
    /// more.
    pub(super) async fn turn(&self, line: &Turns, of: String) -> Option<Turn> {
        let is_slow = self.slow.known().contains(&of);
        let held = if is_slow { self.slow.line.next().await? } else { line.next().await? };
        let (slow, took_long) = (Arc::clone(&self.slow), AtomicBool::new(false));
        Some(Turn { slow, of, is_quick: AtomicBool::new(!is_slow), took_long, held: Mutex::new(Some(held)) })
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

/// Those that take long: many charts of one user, renderings that never end and admission webhooks that don't answer would leave no
/// turn to others.
#[derive(Debug)]
struct Slow {
    line: Turns,
    /// Of those whose requests are under way, for whom `line` had no room.
    overrun: Turns,
    known: Mutex<HashSet<String>>,
}

impl Slow {
    fn known(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, of: &str) {
        let mut known = self.known();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(of.to_owned());
    }
}

tokio::task_local! {
    /// The turn of the pass that runs.
    static TURN: Turn;
}

/// The turn of a pass.
#[derive(Debug)]
pub(super) struct Turn {
    slow: Arc<Slow>,
    /// Whose it is.
    of: String,
    /// Whether it is in the line of its controller.
    is_quick: AtomicBool,
    took_long: AtomicBool,
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Turn {
    /// The pass whose turn it is.
    pub(super) async fn within<F: Future>(self, pass: F) -> F::Output {
        TURN.scope(self, pass).await
    }

    /// Leaves the line of its controller, where there is room for what it does.
    fn overrun(&self) {
        self.slow.note(&self.of);
        self.took_long.store(true, Ordering::Relaxed);
        if let Some(held) = self.slow.line.free().or_else(|| self.slow.overrun.free()) {
            self.is_quick.store(false, Ordering::Relaxed);
            self.hold(Some(held));
        }
    }

    fn hold(&self, held: Option<OwnedSemaphorePermit>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_quick.load(Ordering::Relaxed) && !self.took_long.load(Ordering::Relaxed) {
            self.slow.known().remove(&self.of);
        }
    }
}

/// Does what may take long, a rendering, in the turn of the pass that it is of. Where it takes too long for the line of its controller
/// it goes on in a turn of those that take long; where none of these is free it is ended, and done again when one is.
pub(super) async fn in_turn<F: Future>(work: impl Fn() -> F) -> F::Output {
    let is_quick = TURN.try_with(|turn| turn.is_quick.load(Ordering::Relaxed)).unwrap_or_default();
    if is_quick {
        let mut begun = Box::pin(work());
        if let Ok(done) = tokio::time::timeout(QUICK, &mut begun).await {
            return done;
        }
        let line = TURN.with(|turn| {
            turn.slow.note(&turn.of);
            turn.is_quick.store(false, Ordering::Relaxed);
            turn.took_long.store(true, Ordering::Relaxed);
            turn.hold(None);
            turn.slow.line.clone()
        });
        if let Some(held) = line.free() {
            TURN.with(|turn| turn.hold(Some(held)));
            return begun.await;
        }
        drop(begun);
        // Where nothing new is taken in any more, this is no more than is under way.
        let held = line.next().await;
        TURN.with(|turn| turn.hold(held));
    }
    timed(work()).await
}

/// Does what others may hold up and what can't be begun anew, a wave of requests that pass admission webhooks, in the turn of the
/// pass that it is of. Where it takes too long for the line of its controller it goes on beside it.
pub(super) async fn beside_its_turn<F: Future>(work: F) -> F::Output {
    let mut work = std::pin::pin!(work);
    if TURN.try_with(|turn| turn.is_quick.load(Ordering::Relaxed)).unwrap_or_default() {
        if let Ok(done) = tokio::time::timeout(QUICK, &mut work).await {
            return done;
        }
        TURN.with(Turn::overrun);
        return work.await;
    }
    timed(work).await
}

/// Does what is done among those that take long, and tells whether it did.
async fn timed<F: Future>(work: F) -> F::Output {
    let begun = tokio::time::Instant::now();
    let done = work.await;
    if begun.elapsed() > QUICK {
        // Outside of a pass nobody asks.
        let _ = TURN.try_with(|turn| turn.took_long.store(true, Ordering::Relaxed));
    }
    done
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

    /// A turn, if nobody has to be waited for.
    fn free(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.at_once).try_acquire_owned().ok()
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
    use std::sync::atomic::AtomicUsize;
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

    fn lines() -> Lines {
        let intake = CancellationToken::new();
        let line = |at_once| Turns::new(at_once, intake.clone());
        let slow = Arc::new(Slow { line: line(SLOW), overrun: line(OVERRUN), known: Mutex::default() });
        Lines { stacks: line(1), releases: line(2), sources: line(1), addons: line(1), doubtful_addons: line(1), slow }
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_leaves_its_turn_to_others() {
        let lines = Arc::new(lines());
        let render = async |of: &str, seconds: u64| {
            let turn = lines.turn(&lines.releases, of.to_owned()).await.unwrap();
            let work = || async move { tokio::time::sleep(Duration::from_secs(seconds)).await };
            turn.within(in_turn(work)).await;
        };
        let slow = futures::future::join_all((0..40).map(|at| {
            let render = &render;
            async move { render(&format!("slow-{at}"), 60).await }
        }));
        let begun = tokio::time::Instant::now();
        let others = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            render("quick", 1).await;
            let first = begun.elapsed();
            // Now that all are known, none of them is in the way.
            tokio::time::sleep(Duration::from_mins(1)).await;
            let before = begun.elapsed();
            render("quick", 1).await;
            (first, begun.elapsed().saturating_sub(before))
        };
        let ((), (first, then)) = tokio::join!(async { drop(slow.await) }, others);
        assert!(first <= QUICK * 21, "{first:?}");
        assert_eq!(then, Duration::from_secs(1));
        assert!(lines.releases.has_room());
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_goes_on_where_there_is_a_turn_for_it() {
        let lines = Arc::new(lines());
        let begun = Arc::new(AtomicUsize::new(0));
        let render = async |of: String| {
            let turn = lines.turn(&lines.releases, of).await.unwrap();
            let work = || async {
                begun.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(30)).await;
            };
            turn.within(in_turn(work)).await;
        };
        let all = tokio::time::Instant::now();
        render("one".to_owned()).await;
        assert_eq!((begun.load(Ordering::Relaxed), all.elapsed().as_secs()), (1, 30));
        // Six more, two at once: the last two find no turn.
        futures::future::join_all((0..6).map(|at| render(format!("slow-{at}")))).await;
        assert!(begun.load(Ordering::Relaxed) > 7, "{begun:?}");
        assert_eq!(lines.slow.known().len(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_are_held_up_go_on_beside_the_line() {
        let lines = Arc::new(lines());
        let sent = Arc::new(AtomicUsize::new(0));
        let apply = async |of: String, seconds: u64| {
            let turn = lines.turn(&lines.releases, of).await.unwrap();
            let waves = async {
                for _wave in 0..4 {
                    sent.fetch_add(1, Ordering::Relaxed);
                    beside_its_turn(tokio::time::sleep(Duration::from_secs(seconds))).await;
                }
            };
            turn.within(waves).await;
        };
        let begun = tokio::time::Instant::now();
        let held_up = futures::future::join_all((0..40).map(|at| apply(format!("held-up-{at}"), 30)));
        let other = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            apply("other".to_owned(), 1).await;
            begun.elapsed()
        };
        let (_, waited) = tokio::join!(held_up, other);
        assert!(waited <= QUICK * 21, "{waited:?}");
        // Nothing is sent twice for it, and all have gone on at the same time.
        assert_eq!(sent.load(Ordering::Relaxed), 41 * 4);
        assert!(begun.elapsed() <= QUICK * 20 + Duration::from_mins(2), "{:?}", begun.elapsed());
        assert!(lines.slow.known().len() == 40 && lines.releases.has_room());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_go_on_beside_the_line_than_there_is_room_for() {
        let lines = lines();
        let filled: Vec<_> =
            std::iter::from_fn(|| lines.slow.line.free().or_else(|| lines.slow.overrun.free())).collect();
        assert_eq!(filled.len(), usize::from(SLOW + OVERRUN));
        let turn = lines.turn(&lines.stacks, "a".to_owned()).await.unwrap();
        let within = turn.within(beside_its_turn(tokio::time::sleep(QUICK * 3)));
        let looks = async {
            tokio::time::sleep(QUICK * 2).await;
            lines.stacks.has_room()
        };
        assert!(!tokio::join!(within, looks).1);
        assert!(lines.stacks.has_room() && lines.slow.known().contains("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_quick_again_comes_back() {
        let lines = lines();
        lines.slow.note("a");
        for (of, seconds, is_known) in [("a", 60, true), ("a", 1, false)] {
            let turn = lines.turn(&lines.releases, of.to_owned()).await.unwrap();
            assert!(lines.releases.has_room());
            let work = || async move { tokio::time::sleep(Duration::from_secs(seconds)).await };
            turn.within(in_turn(work)).await;
            assert_eq!(lines.slow.known().contains(of), is_known, "{seconds}");
        }
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
