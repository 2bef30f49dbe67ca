//! The time by which terms end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// A clock that never goes back, and does not stand still while the machine sleeps: Linux' monotonic one does, and who wakes up
/// would go on with a term that is long over for everybody else. A wall clock that somebody sets ahead ends a term early, which
/// harms nobody; one that is set back is not believed.
#[derive(Debug)]
pub(super) struct Clock {
    origin: (Instant, SystemTime),
    /// By how much the wall clock was ahead at most, in milliseconds.
    ahead: AtomicU64,
}

impl Clock {
    /// One that begins now.
    pub(super) fn new() -> Self {
        Self { origin: (Instant::now(), SystemTime::now()), ahead: AtomicU64::new(0) }
    }

    /// How long ago it began.
    pub(super) fn now(&self) -> Duration {
        let (origin, wall) = self.origin;
        self.at(origin.elapsed(), SystemTime::now().duration_since(wall).unwrap_or_default())
    }

    fn at(&self, awake: Duration, wall: Duration) -> Duration {
        let ahead = u64::try_from(wall.saturating_sub(awake).as_millis()).unwrap_or(u64::MAX);
        awake + Duration::from_millis(self.ahead.fetch_max(ahead, Ordering::AcqRel).max(ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_while_the_machine_sleeps_and_never_back() {
        let clock = Clock::new();
        for (awake, wall, now) in [
            (1, 1, 1),
            // It slept for thirty seconds.
            (2, 32, 32),
            (3, 33, 33),
            // Somebody set the wall clock back, and on again.
            (4, 0, 34),
            (5, 20, 35),
            (6, 100, 100),
            (7, 8, 101),
        ] {
            assert_eq!(clock.at(Duration::from_secs(awake), Duration::from_secs(wall)), Duration::from_secs(now));
        }
    }
}
