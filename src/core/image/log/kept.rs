//! Which logs of builds are kept.

use std::path::PathBuf;
use std::time::Duration;

/// How long a log is kept that nobody writes to.
pub const AGE: Duration = Duration::from_hours(7 * 24);
/// Bytes of all logs that nobody writes to.
pub const SIZE: u64 = 256 << 20;

/// A log that nobody writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// Where it is.
    pub path: PathBuf,
    /// Since it was last written to.
    pub age: Duration,
    /// In bytes.
    pub size: u64,
}

/// The logs that go: those older than [`AGE`], and the oldest of what is more than [`SIZE`].
pub fn doomed(mut logs: Vec<LogFile>) -> Vec<PathBuf> {
    logs.sort_by_key(|log| log.age);
    let mut room = SIZE;
    let mut gone = Vec::new();
    for log in logs {
        let left = room.checked_sub(log.size).filter(|_| log.age <= AGE);
        // What is older than one that has no room has none either.
        room = left.unwrap_or_default();
        if left.is_none() {
            gone.push(log.path);
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_logs_go_and_the_oldest_where_there_are_too_many() {
        let log =
            |name: &str, hours: u64, size: u64| LogFile { path: name.into(), age: Duration::from_hours(hours), size };
        for (logs, expected) in [
            (vec![], vec![]),
            (vec![log("new", 0, 1), log("week", 168, 1), log("old", 169, 1)], vec!["old"]),
            (vec![log("b", 2, SIZE / 2), log("c", 3, SIZE / 2), log("a", 1, SIZE / 2)], vec!["c"]),
            // One that is too large does not make room for what is older.
            (vec![log("a", 1, SIZE - 1), log("b", 2, 2), log("c", 3, 1)], vec!["b", "c"]),
            (vec![log("large", 1, SIZE + 1)], vec!["large"]),
        ] {
            let names: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(doomed(logs.clone()), names, "{logs:?}");
        }
    }
}
