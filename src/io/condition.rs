//! Evaluates conditions of stages, on a stack of their own and for a limited time.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;

use crate::core::addon::condition::{self, ConditionError, STACK};
use crate::core::addon_config::WaitFor;
use crate::io::stuck::{MAX_OF_ONE, MAX_STUCK, Refused, Stuck, Subject};

/// Longest time for evaluating a condition.
const EVALUATE: Duration = Duration::from_secs(5);

/// Evaluations of each condition that took too long and have not ended.
static STUCK: LazyLock<Stuck> = LazyLock::new(Stuck::default);

/// Whether a condition of somebody in `namespace` holds over these objects, by their keys.
///
/// # Errors
/// What is wrong with it, or that it took too long. One that took too long is not begun again before that has ended.
pub async fn holds(namespace: &str, wait: WaitFor, objects: BTreeMap<String, Value>) -> Result<bool, ConditionError> {
    let failed = |why: &str| ConditionError::Aborted(why.to_owned());
    let subject = Subject { namespace: namespace.to_owned(), what: wait.conditions.clone() };
    STUCK.refused(&subject).map_or(Ok(()), |why| Err(failed(&told_why(&why))))?;
    let (tell, told) = tokio::sync::oneshot::channel();
    let (awaited, worker) = STUCK.begin(subject);
    let work = move || {
        let _ended = worker;
        // Nobody waits any more if it took too long.
        let _ = tell.send(condition::holds(&wait, &objects));
    };
    let thread = std::thread::Builder::new().name("condition".to_owned()).stack_size(STACK).spawn(work);
    thread.map_err(|error| failed(&error.to_string()))?;
    let answer = match tokio::time::timeout(EVALUATE, told).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(failed("its evaluation ended without an answer")),
        Err(_) => Err(failed(&format!("it took more than {} s", EVALUATE.as_secs()))),
    };
    drop(awaited);
    answer
}

/// Why a condition is not begun.
fn told_why(why: &Refused) -> String {
    let seconds = EVALUATE.as_secs();
    match why {
        Refused::Own => {
            format!("it took more than {seconds} s, and that evaluation has not ended yet: let it read less")
        }
        Refused::Namespace => {
            format!(
                "{MAX_OF_ONE} evaluations of conditions for this namespace took more than {seconds} s and have not ended yet"
            )
        }
        Refused::Full => {
            format!("{MAX_STUCK} evaluations of conditions took more than {seconds} s and have not ended yet")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_condition_is_not_begun_is_told() {
        assert!(told_why(&Refused::Own).contains("has not ended yet: let it read less"));
        assert!(told_why(&Refused::Full).contains("16 evaluations"));
    }
}
