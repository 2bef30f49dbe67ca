//! Counts the renderings that nobody waits for any more and that go on all the same: a thread can't be stopped.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Renderings that nobody waits for any more and that go on all the same, at most: then none is begun.
pub(super) const MAX_STUCK: usize = 16;

/// How many renderings of each thing took too long and have not ended.
static STUCK: LazyLock<Mutex<HashMap<String, usize>>> = LazyLock::new(Mutex::default);

/// Why a rendering is not begun.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// One of the same has not ended.
    Own,
    /// Too many have not ended.
    Full,
}

/// How far a rendering is.
enum State {
    Awaited,
    GivenUp,
    Ended,
}

type Rendering = (String, Arc<Mutex<State>>);

/// Tells when it is dropped that nobody waits any more.
pub(super) struct Awaited(Rendering);

/// Tells when it is dropped, also by a panic, that the rendering has ended.
pub(super) struct Worker(Rendering);

/// Why a rendering of that is not begun.
pub(super) fn refused(of: &str) -> Option<Refused> {
    refusal(&stuck(), of)
}

fn refusal(stuck: &HashMap<String, usize>, of: &str) -> Option<Refused> {
    if stuck.contains_key(of) {
        return Some(Refused::Own);
    }
    (stuck.values().sum::<usize>() >= MAX_STUCK).then_some(Refused::Full)
}

/// For who waits for a rendering, and for who does it.
pub(super) fn begin(of: String) -> (Awaited, Worker) {
    let state = Arc::new(Mutex::new(State::Awaited));
    (Awaited((of.clone(), Arc::clone(&state))), Worker((of, state)))
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let (of, state) = &self.0;
        let mut state = lock(state);
        if matches!(*state, State::Awaited) {
            *state = State::GivenUp;
            *stuck().entry(of.clone()).or_default() += 1;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let (of, state) = &self.0;
        let mut state = lock(state);
        if matches!(*state, State::GivenUp) {
            let mut stuck = stuck();
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

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stuck() -> MutexGuard<'static, HashMap<String, usize>> {
    STUCK.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ends_is_not_begun_again_and_many_stop_all() {
        let of = |counts: &[(&str, usize)]| counts.iter().map(|(of, n)| ((*of).to_owned(), *n)).collect();
        for (counts, refused) in [
            (of(&[]), None),
            (of(&[("b", 1)]), None),
            (of(&[("a", 1)]), Some(Refused::Own)),
            (of(&[("b", 10), ("c", 6)]), Some(Refused::Full)),
        ] {
            assert_eq!(refusal(&counts, "a"), refused, "{counts:?}");
        }
    }

    #[test]
    fn what_has_ended_is_counted_no_more_in_either_order() {
        let of = "of a test, never rendered";
        let (awaited, worker) = begin(of.to_owned());
        drop(awaited);
        assert_eq!(refused(of), Some(Refused::Own));
        drop(worker);
        assert_eq!(refused(of), None);
        let (awaited, worker) = begin(of.to_owned());
        drop(worker);
        drop(awaited);
        assert_eq!(refused(of), None);
    }
}
