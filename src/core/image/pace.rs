//! How fast a step goes, and what is left of it.

use std::collections::VecDeque;
use std::time::Duration;

use super::build::Progress;
use crate::core::duration::spoken;

/// How far back is looked for the rate.
const WINDOW: Duration = Duration::from_secs(30);

/// How long nothing is told at the begin of a step: what goes then goes into buffers.
const SETTLES: Duration = Duration::from_secs(2);

/// Bytes done over the last while.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    noted: VecDeque<(Duration, u64)>,
    began: Option<Duration>,
}

impl Pace {
    /// `done` bytes are there at `at`, a time since any fixed one that only grows.
    pub fn note(&mut self, at: Duration, done: u64) {
        if self.noted.back().is_some_and(|(_, last)| *last > done) {
            // Another step, or another try.
            *self = Self::default();
        }
        let began = *self.began.get_or_insert(at);
        if at.saturating_sub(began) < SETTLES {
            self.noted.clear();
        }
        while self.noted.len() > 1 && self.noted.front().is_some_and(|(first, _)| at.saturating_sub(*first) > WINDOW) {
            self.noted.pop_front();
        }
        self.noted.push_back((at, done));
    }

    /// Bytes in a second; `None` before there is anything to tell from.
    fn rate(&self) -> Option<u64> {
        let ((first, before), (last, done)) = (self.noted.front()?, self.noted.back()?);
        let millis = u64::try_from(last.checked_sub(*first)?.as_millis()).ok()?;
        (done - before).checked_mul(1000)?.checked_div(millis)
    }

    /// `12.3MiB/s`; empty before there is anything to tell from.
    pub fn shown(&self) -> String {
        self.rate().map(|rate| format!("{}/s", bytes(rate))).unwrap_or_default()
    }

    /// `2m5s`, where it can be told.
    pub fn left(&self, progress: Progress) -> Option<String> {
        let seconds = progress.total?.checked_sub(progress.done)?.checked_div(self.rate()?)?;
        Some(spoken(Duration::from_secs(seconds)))
    }
}

/// Hundredths done.
pub fn percent(progress: Progress) -> Option<u8> {
    let total = u128::from(progress.total.filter(|total| *total > 0)?);
    u8::try_from((u128::from(progress.done) * 100 / total).min(100)).ok()
}

/// `512.0MiB/3.0GiB`, or what is done where nobody knows how much there is.
pub fn shown(progress: Progress) -> String {
    match progress.total {
        Some(total) => format!("{}/{}", bytes(progress.done), bytes(total)),
        None => bytes(progress.done),
    }
}

/// `1.5GiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let Some(power) = count.checked_ilog2().map(|log| log / 10).filter(|power| *power > 0) else {
        return format!("{count}B");
    };
    // Tenths, in whole numbers.
    let tenths = (u128::from(count) * 10) >> (10 * power);
    format!("{}.{}{}", tenths / 10, tenths % 10, UNITS[power as usize - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_with_a_unit() {
        for (count, expected) in
            [(0, "0B"), (1023, "1023B"), (1024, "1.0KiB"), (1536, "1.5KiB"), (3 << 30, "3.0GiB"), (u64::MAX, "15.9EiB")]
        {
            assert_eq!(bytes(count), expected);
        }
        assert_eq!(shown(Progress { done: 512, total: Some(1024) }), "512B/1.0KiB");
        assert_eq!(shown(Progress { done: 512, total: None }), "512B");
    }

    #[test]
    fn hundredths_are_told_where_there_is_a_whole() {
        for (done, total, expected) in [
            (0, Some(10), Some(0)),
            (5, Some(10), Some(50)),
            (11, Some(10), Some(100)),
            (5, None, None),
            (0, Some(0), None),
        ] {
            assert_eq!(percent(Progress { done, total }), expected);
        }
    }

    #[test]
    fn the_rate_is_that_of_the_last_while() {
        let mut pace = Pace::default();
        let at = Duration::from_secs;
        pace.note(at(0), 0);
        assert_eq!((pace.shown(), pace.left(Progress { done: 0, total: Some(100) })), (String::new(), None));
        pace.note(at(10), 10 << 20);
        assert_eq!(pace.shown(), "1.0MiB/s");
        assert_eq!(pace.left(Progress { done: 10 << 20, total: Some(75 << 20) }).unwrap(), "1m5s");
        // What was long ago counts no more.
        pace.note(at(100), 100 << 20);
        pace.note(at(110), 100 << 20);
        assert_eq!(pace.shown(), "0B/s");
        assert_eq!(pace.left(Progress { done: 1, total: Some(2) }), None);
        // Another step begins.
        pace.note(at(120), 5);
        assert_eq!(pace.shown(), "");
        // What goes into buffers at once says nothing of what comes.
        pace.note(at(121), 8 << 20);
        assert_eq!(pace.shown(), "");
        pace.note(at(131), 18 << 20);
        assert_eq!(pace.shown(), "1.0MiB/s");
    }
}
