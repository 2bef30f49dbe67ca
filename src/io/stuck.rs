//! Counts the work in threads that nobody waits for any more and that goes on all the same: a thread can't be stopped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How many of a kind may go on so: then none is begun.
pub(super) const MAX_STUCK: usize = 16;
/// How many of them may be on behalf of one namespace: others have room beside it.
pub(super) const MAX_OF_ONE: usize = 4;

/// How often it is looked whether work has ended.
const GLANCE: Duration = Duration::from_millis(20);

/// What is worked on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    /// On whose behalf.
    pub(super) namespace: String,
    /// What it is, the same for all on whose behalf it is done.
    pub(super) what: String,
}

/// How many of each thing, of one kind, took too long and have not ended.
#[derive(Default)]
pub(super) struct Stuck(Mutex<HashMap<Subject, usize>>);

/// Why work is not begun.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Work on the same has not ended.
    Own,
    /// Too many on behalf of its namespace have not ended.
    Namespace,
    /// Too many have not ended.
    Full,
}

/// How far work is.
enum State {
    Awaited,
    GivenUp,
    Ended,
}

struct Work {
    kind: &'static Stuck,
    of: Subject,
    state: Arc<Mutex<State>>,
}

/// Tells when it is dropped that nobody waits any more.
pub(super) struct Awaited(Work);

/// Tells when it is dropped, also by a panic, that the work has ended.
pub(super) struct Worker(Work);

impl Stuck {
    /// Why work on that is not begun.
    pub(super) fn refused(&self, of: &Subject) -> Option<Refused> {
        refusal(&self.lock(), of)
    }

    /// The same, after what was stopped a moment ago had `time` to end.
    pub(super) async fn refused_after(&self, time: Duration, of: &Subject) -> Option<Refused> {
        let until = Instant::now() + time;
        loop {
            match self.refused(of) {
                Some(Refused::Own) if Instant::now() < until => tokio::time::sleep(GLANCE).await,
                refused => return refused,
            }
        }
    }

    /// For who waits for work, and for who does it.
    pub(super) fn begin(&'static self, of: Subject) -> (Awaited, Worker) {
        let state = Arc::new(Mutex::new(State::Awaited));
        let awaited = Awaited(Work { kind: self, of: of.clone(), state: Arc::clone(&state) });
        (awaited, Worker(Work { kind: self, of, state }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Subject, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refusal(stuck: &HashMap<Subject, usize>, of: &Subject) -> Option<Refused> {
    if stuck.keys().any(|other| other.what == of.what) {
        return Some(Refused::Own);
    }
    let of_one = stuck.iter().filter(|(other, _)| other.namespace == of.namespace).map(|(_, count)| count);
    if of_one.sum::<usize>() >= MAX_OF_ONE {
        return Some(Refused::Namespace);
    }
    (stuck.values().sum::<usize>() >= MAX_STUCK).then_some(Refused::Full)
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let Work { kind, of, state } = &self.0;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Awaited) {
            *state = State::GivenUp;
            *kind.lock().entry(of.clone()).or_default() += 1;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Work { kind, of, state } = &self.0;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::GivenUp) {
            let mut stuck = kind.lock();
            if let Some(count) = stuck.get_mut(of) {
                *count -= 1;
                if *count == 0 {
                    stuck.remove(of);
                }
            }
        }
        *state = State::Ended;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    fn subject(namespace: &str, what: &str) -> Subject {
        Subject { namespace: namespace.to_owned(), what: what.to_owned() }
    }

    #[test]
    fn what_never_ends_is_not_begun_again_and_many_stop_all() {
        let of = |counts: &[(&str, &str, usize)]| {
            counts.iter().map(|(namespace, what, count)| (subject(namespace, what), *count)).collect()
        };
        for (counts, refused) in [
            (of(&[]), None),
            (of(&[("n", "b", 1)]), None),
            (of(&[("n", "a", 1)]), Some(Refused::Own)),
            (of(&[("other", "a", 1)]), Some(Refused::Own)),
            (of(&[("other", "b", 10), ("third", "c", 6)]), Some(Refused::Full)),
            // Who has many stuck is the only one who waits for them.
            (of(&[("n", "b", 3), ("n", "c", 1)]), Some(Refused::Namespace)),
            (of(&[("other", "b", 4), ("third", "c", 4), ("n", "d", 3)]), None),
        ] {
            assert_eq!(refusal(&counts, &subject("n", "a")), refused, "{counts:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_stopped_has_a_moment_to_end() {
        static STUCK: LazyLock<Stuck> = LazyLock::new(Stuck::default);
        let (awaited, worker) = STUCK.begin(subject("n", "a"));
        drop(awaited);
        let ends = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(worker);
        };
        let begun = Instant::now();
        assert_eq!(STUCK.refused_after(Duration::from_millis(500), &subject("n", "a")).await, Some(Refused::Own));
        let same = subject("n", "a");
        let (refused, ()) = tokio::join!(STUCK.refused_after(Duration::from_secs(2), &same), ends);
        assert_eq!(refused, None);
        assert!(begun.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn what_has_ended_is_counted_no_more_in_either_order() {
        static STUCK: LazyLock<Stuck> = LazyLock::new(Stuck::default);
        let (awaited, worker) = STUCK.begin(subject("n", "a"));
        drop(awaited);
        assert_eq!(STUCK.refused(&subject("n", "a")), Some(Refused::Own));
        drop(worker);
        assert_eq!(STUCK.refused(&subject("n", "a")), None);
        let (awaited, worker) = STUCK.begin(subject("n", "a"));
        drop(worker);
        drop(awaited);
        assert_eq!(STUCK.refused(&subject("n", "a")), None);
    }
}
