//! Classes of errors, one policy each.

use std::time::Duration;

/// What kind of trouble an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorClass {
    /// It may go away by itself: tried again with growing pauses.
    Transient,
    /// It waits for something that will be noticed: tried again then, and rarely by the clock.
    Waiting,
    /// Only a change of the object or of the source helps: not tried in a loop.
    Invalid,
    /// A fault of ours: logged loudly, tried again rarely.
    Bug,
}

/// Shortest pause after a transient error.
pub const FIRST: Duration = Duration::from_millis(500);
/// Longest pause after a transient error.
pub const LONGEST: Duration = Duration::from_mins(5);
/// How often something that waits is looked at without an event.
pub const WAITING: Duration = Duration::from_mins(1);
/// How often what only a human can solve is looked at without an event.
pub const STALLED: Duration = Duration::from_hours(1);

/// The pause before attempt `attempt` + 1 (the first failure is attempt 0). `jitter` in 0..=1 spreads the pauses over
/// their upper half, so that many objects that failed together don't return together.
pub fn delay(class: ErrorClass, attempt: u32, jitter: f64) -> Duration {
    let base = match class {
        ErrorClass::Transient => FIRST.saturating_mul(2u32.saturating_pow(attempt.min(16))).min(LONGEST),
        ErrorClass::Waiting => WAITING,
        ErrorClass::Invalid | ErrorClass::Bug => STALLED,
    };
    base.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_cap() {
        let pauses: Vec<_> = (0..20).map(|attempt| delay(ErrorClass::Transient, attempt, 1.0)).collect();
        assert_eq!(pauses[0], FIRST);
        assert_eq!(pauses[1], FIRST * 2);
        assert_eq!(pauses[19], LONGEST);
        assert!(pauses.is_sorted());
        assert_eq!(delay(ErrorClass::Transient, u32::MAX, 0.0), LONGEST / 2);
    }

    #[test]
    fn what_is_invalid_is_not_tried_in_a_loop() {
        assert!(delay(ErrorClass::Invalid, 0, 0.0) >= Duration::from_mins(30));
    }
}
