//! Evaluates conditions of stages, on a stack of their own and for a limited time.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::core::addon::condition::{self, ConditionError, STACK};
use crate::core::addon_config::WaitFor;

/// Longest time for evaluating a condition.
const EVALUATE: Duration = Duration::from_secs(5);

/// Whether a condition holds over these objects, by their keys.
///
/// # Errors
/// What is wrong with it, or that it took too long.
pub async fn holds(wait: WaitFor, objects: BTreeMap<String, Value>) -> Result<bool, ConditionError> {
    let failed = |why: &str| ConditionError::Aborted(why.to_owned());
    let (tell, told) = tokio::sync::oneshot::channel();
    let work = move || {
        // Nobody waits any more if it took too long.
        let _ = tell.send(condition::holds(&wait, &objects));
    };
    let thread = std::thread::Builder::new().name("condition".to_owned()).stack_size(STACK).spawn(work);
    thread.map_err(|error| failed(&error.to_string()))?;
    match tokio::time::timeout(EVALUATE, told).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(failed("its evaluation ended without an answer")),
        Err(_) => Err(failed(&format!("it took more than {} s", EVALUATE.as_secs()))),
    }
}
