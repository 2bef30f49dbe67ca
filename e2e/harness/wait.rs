//! Waiting for conditions.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine. What works is much faster.
pub(crate) const LONG: Duration = Duration::from_mins(5);
/// What a person calls "within seconds", on a machine that starts several API servers beside it: well below the minute after
/// which it would be noticed without a watch.
pub(crate) const QUICK: Duration = Duration::from_secs(30);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// Looks until `look` gives `Ok`; its `Err` says what was seen instead.
pub(crate) async fn wait_for<T, F>(what: impl Display, look: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    wait_within(LONG, what, look).await
}

/// [`wait_for`] with a limit of its own.
pub(crate) async fn wait_within<T, F>(limit: Duration, what: impl Display, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let start = Instant::now();
    loop {
        match look().await {
            Ok(value) => return value,
            Err(seen) if start.elapsed() > limit => {
                panic!("waited {} s in vain for {what}; last seen: {seen}", limit.as_secs())
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Says, also where the output of tests is captured, that a test is skipped.
pub(crate) fn skipped(what: impl Display) {
    use std::io::Write;
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
}

/// `Ok` if it is true, else what was seen.
pub(crate) fn check(is: bool, seen: impl std::fmt::Debug) -> Result<(), String> {
    if is { Ok(()) } else { Err(format!("{seen:#?}")) }
}
