//! The circuit breaker of a workload cluster: after some failures in a row nobody asks it for a while.
//!
//! ```text
//! closed ─FAILURES in a row→ open ─pause over→ half open ─answers→ closed
//!                             ↑──────fails, longer pause──┘
//! ```

use std::time::Duration;

use jiff::Timestamp;

use crate::api::condition::whole_seconds;

/// Failures in a row that open the circuit.
pub const FAILURES: u32 = 3;
/// The first pause.
pub const FIRST: Duration = Duration::from_secs(10);
/// The longest pause.
pub const LONGEST: Duration = Duration::from_mins(5);

/// How a workload cluster answered of late.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Circuit {
    failures: u32,
    since: Option<Timestamp>,
    next: Option<Timestamp>,
    why: String,
}

/// Whether a cluster may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It answered last time, or nothing is known of it.
    Closed,
    /// It did not answer last time; it may be asked whether it does now.
    HalfOpen,
    /// It is left alone until then.
    Open(Timestamp),
}

impl Circuit {
    /// Whether the cluster may be asked now.
    pub fn gate(&self, now: Timestamp) -> Gate {
        match self.next {
            Some(next) if next > now => Gate::Open(next),
            _ if self.failures > 0 => Gate::HalfOpen,
            _ => Gate::Closed,
        }
    }

    /// It did not answer; why. `jitter` in 0..=1 spreads the pauses over their upper half.
    pub fn failed(&mut self, why: &str, jitter: f64, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        self.since.get_or_insert(whole_seconds(now));
        why.clone_into(&mut self.why);
        self.next = self.failures.checked_sub(FAILURES).map(|more| {
            let pause = FIRST.saturating_mul(2_u32.saturating_pow(more.min(16))).min(LONGEST);
            let pause = pause.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0));
            now.saturating_add(pause).unwrap_or(now)
        });
    }

    /// It answered.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// It may be asked once more before the pause is over: somebody wishes it.
    pub fn half_open(&mut self) {
        self.next = None;
    }

    /// What is said of it: why, since when, and when it is asked again.
    pub fn message(&self) -> String {
        let since = self.since.map(|since| format!("; so since {since}")).unwrap_or_default();
        let next = self.next.map(|next| format!(", asked again at {}", whole_seconds(next))).unwrap_or_default();
        format!("the workload cluster can't be reached: {}{since}{next}", self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn it_opens_after_some_failures_with_growing_pauses_and_closes_at_the_first_answer() {
        let mut circuit = Circuit::default();
        assert_eq!(circuit.gate(at(0)), Gate::Closed);
        for second in 0..2 {
            circuit.failed("timeout", 1.0, at(second));
            assert_eq!(circuit.gate(at(second)), Gate::HalfOpen);
        }
        let mut now = 2;
        for pause in [10, 20, 40, 80, 160, 300, 300] {
            circuit.failed("timeout", 1.0, at(now));
            assert_eq!(circuit.gate(at(now + pause - 1)), Gate::Open(at(now + pause)));
            now += pause;
            assert_eq!(circuit.gate(at(now)), Gate::HalfOpen);
        }
        circuit.succeeded();
        assert_eq!(circuit.gate(at(now)), Gate::Closed);
    }

    #[test]
    fn pauses_are_spread_and_wishes_are_heard() {
        let mut circuit = Circuit::default();
        for _ in 0..3 {
            circuit.failed("timeout", 0.0, at(0));
        }
        assert_eq!(circuit.gate(at(0)), Gate::Open(at(5)));
        circuit.half_open();
        assert_eq!(circuit.gate(at(0)), Gate::HalfOpen);
    }

    #[test]
    fn it_says_since_when_and_when_it_is_asked_again() {
        let mut circuit = Circuit::default();
        for second in [7, 8, 9] {
            circuit.failed("connection refused", 1.0, at(second));
        }
        assert_eq!(
            circuit.message(),
            "the workload cluster can't be reached: connection refused; so since 1970-01-01T00:00:07Z, \
             asked again at 1970-01-01T00:00:19Z"
        );
    }
}
