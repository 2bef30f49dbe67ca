//! Evaluates conditions of stages, on a stack of their own and for a limited time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::core::addon::condition::{self, ConditionError, STACK};
use crate::core::addon_config::WaitFor;

/// Longest time for evaluating a condition.
const EVALUATE: Duration = Duration::from_secs(5);

/// Evaluations that nobody waits for any more and that go on all the same, at most: then no condition is begun.
const MAX_STUCK: usize = 16;

/// How many evaluations of each condition took too long and have not ended: a thread can't be stopped.
static STUCK: LazyLock<Mutex<HashMap<String, usize>>> = LazyLock::new(Mutex::default);

/// Whether a condition holds over these objects, by their keys.
///
/// # Errors
/// What is wrong with it, or that it took too long. One that took too long is not begun again before that has ended.
pub async fn holds(wait: WaitFor, objects: BTreeMap<String, Value>) -> Result<bool, ConditionError> {
    let failed = |why: &str| ConditionError::Aborted(why.to_owned());
    let text = wait.conditions.clone();
    refused(&stuck(), &text).map_or(Ok(()), |why| Err(failed(&why)))?;
    let (tell, told) = tokio::sync::oneshot::channel();
    let evaluation = Arc::new(Mutex::new(Evaluation::Awaited));
    let watched = Evaluated(text.clone(), Arc::clone(&evaluation));
    let work = move || {
        let _ended = watched;
        // Nobody waits any more if it took too long.
        let _ = tell.send(condition::holds(&wait, &objects));
    };
    let thread = std::thread::Builder::new().name("condition".to_owned()).stack_size(STACK).spawn(work);
    thread.map_err(|error| failed(&error.to_string()))?;
    match tokio::time::timeout(EVALUATE, told).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(failed("its evaluation ended without an answer")),
        Err(_) => {
            give_up(text, &evaluation);
            Err(failed(&format!("it took more than {} s", EVALUATE.as_secs())))
        }
    }
}

/// How far an evaluation is.
enum Evaluation {
    Awaited,
    GivenUp,
    Ended,
}

/// Tells at its end, also at a panic, that the evaluation has ended.
struct Evaluated(String, Arc<Mutex<Evaluation>>);

impl Drop for Evaluated {
    fn drop(&mut self) {
        let mut evaluation = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*evaluation, Evaluation::GivenUp) {
            let mut stuck = stuck();
            if let Some(count) = stuck.get_mut(&self.0) {
                *count -= 1;
                if *count == 0 {
                    stuck.remove(&self.0);
                }
            }
        }
        *evaluation = Evaluation::Ended;
    }
}

fn give_up(text: String, evaluation: &Mutex<Evaluation>) {
    let mut evaluation = evaluation.lock().unwrap_or_else(PoisonError::into_inner);
    if matches!(*evaluation, Evaluation::Awaited) {
        *evaluation = Evaluation::GivenUp;
        *stuck().entry(text).or_default() += 1;
    }
}

fn stuck() -> MutexGuard<'static, HashMap<String, usize>> {
    STUCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a condition is not begun.
fn refused(stuck: &HashMap<String, usize>, text: &str) -> Option<String> {
    let is_its_own = stuck.contains_key(text);
    let seconds = EVALUATE.as_secs();
    if is_its_own {
        return Some(format!("it took more than {seconds} s, and that evaluation has not ended yet: let it read less"));
    }
    (stuck.values().sum::<usize>() >= MAX_STUCK)
        .then(|| format!("{MAX_STUCK} evaluations of conditions took more than {seconds} s and have not ended yet"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_never_ends_is_not_begun_again_and_many_stop_all() {
        let of = |counts: &[(&str, usize)]| counts.iter().map(|(text, n)| ((*text).to_owned(), *n)).collect();
        assert_eq!(refused(&of(&[]), "a"), None);
        assert_eq!(refused(&of(&[("b", 1)]), "a"), None);
        assert!(refused(&of(&[("a", 1)]), "a").unwrap().contains("has not ended yet: let it read less"));
        assert!(refused(&of(&[("b", 10), ("c", 6)]), "a").unwrap().contains("16 evaluations"));
    }

    #[test]
    fn what_has_ended_is_counted_no_more_in_either_order() {
        let text = "of a test, never evaluated";
        let begin = || Arc::new(Mutex::new(Evaluation::Awaited));
        let late = begin();
        give_up(text.to_owned(), &late);
        assert_eq!(stuck().get(text), Some(&1));
        drop(Evaluated(text.to_owned(), late));
        assert_eq!(stuck().get(text), None);
        let early = begin();
        drop(Evaluated(text.to_owned(), Arc::clone(&early)));
        give_up(text.to_owned(), &early);
        assert_eq!(stuck().get(text), None);
    }
}
