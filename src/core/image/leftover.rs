//! Work directories that nobody needs: a build that went on at another place leaves its first one there.

use std::time::Duration;

use super::build::Phase;

/// How long the directory of an object that is not there is kept: it may be of another management cluster.
pub const AGE: Duration = Duration::from_hours(24);

/// Whether a work directory goes. `build` is the phase of its object and whether what its attempts left was removed,
/// `None` where there is no such object; `age` is the time since something was last noted in the directory.
pub fn goes(build: Option<(Phase, bool)>, age: Duration) -> bool {
    match build {
        // Where it was built is tidied up by then.
        Some((phase, is_tidy)) => matches!(phase, Phase::Succeeded | Phase::Cancelled) && is_tidy,
        None => age >= AGE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_go_on_stays() {
        for (build, hours, expected) in [
            (Some((Phase::Succeeded, true)), 0, true),
            (Some((Phase::Cancelled, true)), 0, true),
            (Some((Phase::Succeeded, false)), 99, false),
            (Some((Phase::Running, true)), 99, false),
            (Some((Phase::Queued, true)), 99, false),
            (Some((Phase::Failed, true)), 99, false),
            (Some((Phase::Suspended, true)), 99, false),
            (None, 23, false),
            (None, 24, true),
        ] {
            assert_eq!(goes(build, Duration::from_hours(hours)), expected, "{build:?} {hours}");
        }
    }
}
