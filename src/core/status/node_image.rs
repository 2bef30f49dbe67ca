//! The status of a ProviderNodeImageRelease.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Trouble;
use crate::api::condition::{self, ConditionType, Finding, Reason};
use crate::api::image_release::{LogRecord, ProviderNodeImageReleaseStatus as Status};
use crate::core::image::build::{Build, Phase};
use crate::core::image::pace::Pace;
use crate::core::image::record::record;
use crate::core::retry::ErrorClass;

/// What a look at an image's object found, or its build told; `None` keeps what stands there.
#[derive(Clone, Debug, Default)]
pub struct NodeImageFacts {
    /// Generation of the object.
    pub generation: Option<i64>,
    /// The build.
    pub build: Build,
    /// How fast its step goes.
    pub pace: Option<Pace>,
    /// Where the image is.
    pub location: Option<String>,
    /// Where the log is kept.
    pub log: Option<LogRecord>,
    /// The last lines of the log.
    pub log_tail: Option<String>,
    /// Since when no release has the image; `Some(None)` where one has.
    pub unused_since: Option<Option<Timestamp>>,
    /// When the image was last seen at its destination; `Some(None)` where it is gone.
    pub looked_at: Option<Option<Timestamp>>,
    /// The annotation that cancels, as it was acted on.
    pub cancel_at: Option<String>,
    /// The annotation that asks for another try, as it was acted on.
    pub retry_at: Option<String>,
    /// The attempt up to which what was left half-made was removed.
    pub discarded: Option<u32>,
    /// Namespace of the template, once it was granted.
    pub template_namespace: Option<String>,
    /// What stands in the way beside the build itself.
    pub trouble: Option<Trouble>,
}

/// How the line of a log begins that says what a Job's pod waits for.
pub const WAITING: &str = "waiting: ";

/// The status of a ProviderNodeImageRelease.
pub fn node_image_status(previous: &Status, facts: &NodeImageFacts, now: Timestamp) -> Status {
    let mut status = previous.clone();
    record(&facts.build, facts.pace.as_ref(), &mut status);
    if let Some(location) = facts.location.as_ref().filter(|_| facts.build.phase == Phase::Succeeded) {
        status.location.clone_from(location);
    }
    if let Some(since) = facts.unused_since {
        status.unused_since = since.map(|at| Time(condition::whole_seconds(at)));
    }
    if let Some(looked) = facts.looked_at {
        status.looked_at = looked.map(|at| Time(condition::whole_seconds(at)));
    }
    for (field, value) in [
        (&mut status.log_tail, &facts.log_tail),
        (&mut status.last_handled_cancel_at, &facts.cancel_at),
        (&mut status.last_handled_retry_at, &facts.retry_at),
        (&mut status.template_namespace, &facts.template_namespace),
    ] {
        if let Some(value) = value {
            field.clone_from(value);
        }
    }
    status.discarded_attempt = facts.discarded.unwrap_or(status.discarded_attempt);
    status.log = facts.log.clone().or(status.log);
    status.observed_generation = facts.generation;
    let waits = waits(&status.log_tail);
    let findings = findings(&facts.build, facts.trouble.as_ref(), &status.location, waits);
    status.conditions = condition::set(&previous.conditions, &findings, facts.generation, now);
    status
}

/// What a Job's pod waits for to start: the last line that was written of it.
pub fn waits(log_tail: &str) -> Option<&str> {
    log_tail.lines().next_back().filter(|line| line.starts_with(WAITING))
}

fn findings(build: &Build, trouble: Option<&Trouble>, location: &str, waits: Option<&str>) -> Vec<Finding> {
    let ready = ready(build, trouble, location, waits);
    let published = match build.phase {
        Phase::Succeeded => Finding::yes(ConditionType::ImagePublished, Reason::Succeeded, location),
        _ => Finding::no(ConditionType::ImagePublished, ready.reason, ""),
    };
    let is_stuck = matches!(build.phase, Phase::Failed | Phase::Cancelled)
        || trouble.is_some_and(|trouble| trouble.class == ErrorClass::Invalid);
    let mut findings = vec![ready.clone(), published];
    if ready.status == Some(true) || build.phase == Phase::Suspended {
        return findings;
    }
    findings.push(if is_stuck {
        Finding::yes(ConditionType::Stalled, ready.reason, &ready.message)
    } else {
        Finding::yes(ConditionType::Reconciling, ready.reason, "")
    });
    findings
}

fn ready(build: &Build, trouble: Option<&Trouble>, location: &str, waits: Option<&str>) -> Finding {
    let no = |reason, message: String| Finding::no(ConditionType::Ready, reason, message);
    if let Some(trouble) = trouble.filter(|_| build.phase != Phase::Succeeded) {
        return no(trouble.reason, trouble.message.clone());
    }
    let steps = &build.recipe.steps;
    let step = || {
        let name = steps.get(build.step()).map_or("", String::as_str);
        format!("step {name} ({} of {})", build.step() + 1, steps.len())
    };
    match build.phase {
        Phase::Succeeded => {
            let there = if location.is_empty() { String::new() } else { format!("the image is at {location}") };
            let message = match trouble {
                None => there,
                Some(trouble) => format!("{there}; but {}", trouble.message).trim_start_matches("; ").to_owned(),
            };
            Finding::yes(ConditionType::Ready, Reason::ImageReady, message)
        }
        // Another process is at work.
        Phase::Queued if build.not_before.is_some() && build.failures == 0 => {
            no(Reason::BuildRetried, format!("{} waits: {}", step(), build.message))
        }
        Phase::Queued if build.not_before.is_some() => {
            let message = format!("{} failed {} times, and is tried again: {}", step(), build.failures, build.message);
            no(Reason::BuildRetried, message)
        }
        Phase::Queued => no(Reason::BuildQueued, "waits for a place to build".to_owned()),
        Phase::Running => {
            let waits = waits.map(|waits| format!(": {waits}")).unwrap_or_default();
            no(Reason::Progressing, step() + &waits)
        }
        Phase::Failed => no(Reason::BuildFailed, format!("{} failed: {}", step(), build.message)),
        Phase::Cancelled => {
            no(Reason::BuildCancelled, "cancelled; `clusterstack images retry` starts it anew".to_owned())
        }
        Phase::Suspended => no(Reason::Suspended, "spec.suspend is set: nothing is built".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::image::build::Recipe;

    fn facts(phase: Phase) -> NodeImageFacts {
        let recipe = Recipe { inputs: "i".into(), steps: vec!["download".into(), "register".into()], retries: 1 };
        NodeImageFacts { build: Build { recipe, phase, ..Build::default() }, ..NodeImageFacts::default() }
    }

    fn shown(facts: &NodeImageFacts) -> String {
        let status = node_image_status(&Status::default(), facts, Timestamp::from_second(1).unwrap());
        let conditions = status.conditions.iter().map(|c| format!("{}={} {}", c.type_, c.status, c.reason));
        conditions.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn conditions_say_how_far_an_image_is() {
        let refused = Trouble::new(ErrorClass::Invalid, Reason::SpecInvalid, "m");
        let mut paused = facts(Phase::Queued);
        paused.build.not_before = Some(Timestamp::from_second(9).unwrap());
        for (facts, expected) in [
            (
                facts(Phase::Queued),
                "Ready=False BuildQueued, ImagePublished=False BuildQueued, Reconciling=True BuildQueued",
            ),
            (paused, "Ready=False BuildRetried, ImagePublished=False BuildRetried, Reconciling=True BuildRetried"),
            (
                facts(Phase::Running),
                "Ready=False Progressing, ImagePublished=False Progressing, Reconciling=True Progressing",
            ),
            (facts(Phase::Succeeded), "Ready=True ImageReady, ImagePublished=True Succeeded"),
            (
                facts(Phase::Failed),
                "Ready=False BuildFailed, ImagePublished=False BuildFailed, Stalled=True BuildFailed",
            ),
            (
                facts(Phase::Cancelled),
                "Ready=False BuildCancelled, ImagePublished=False BuildCancelled, Stalled=True BuildCancelled",
            ),
            (facts(Phase::Suspended), "Ready=False Suspended, ImagePublished=False Suspended"),
            (
                NodeImageFacts { trouble: Some(refused.clone()), ..facts(Phase::Queued) },
                "Ready=False SpecInvalid, ImagePublished=False SpecInvalid, Stalled=True SpecInvalid",
            ),
            // An image that is there is there, whatever became of its template.
            (
                NodeImageFacts { trouble: Some(refused), ..facts(Phase::Succeeded) },
                "Ready=True ImageReady, ImagePublished=True Succeeded",
            ),
        ] {
            assert_eq!(shown(&facts), expected);
        }
    }

    #[test]
    fn what_a_pod_waits_for_is_said() {
        for (tail, expected) in [
            ("one\nwaiting: Unschedulable: no nodes\n", "step download (1 of 2): waiting: Unschedulable: no nodes"),
            ("waiting: Unschedulable\nstarts", "step download (1 of 2)"),
            ("", "step download (1 of 2)"),
        ] {
            let facts = NodeImageFacts { log_tail: Some(tail.into()), ..facts(Phase::Running) };
            let status = node_image_status(&Status::default(), &facts, Timestamp::UNIX_EPOCH);
            assert_eq!(status.conditions[0].message, expected, "{tail:?}");
        }
    }

    #[test]
    fn why_a_build_pauses_is_said() {
        for (failures, expected) in [
            (0, "step download (1 of 2) waits: why"),
            (2, "step download (1 of 2) failed 2 times, and is tried again: why"),
        ] {
            let mut facts = facts(Phase::Queued);
            (facts.build.failures, facts.build.message) = (failures, "why".into());
            facts.build.not_before = Some(Timestamp::from_second(9).unwrap());
            let status = node_image_status(&Status::default(), &facts, Timestamp::UNIX_EPOCH);
            assert_eq!(status.conditions[0].message, expected);
        }
    }

    #[test]
    fn what_is_not_told_stays() {
        let first = NodeImageFacts {
            log_tail: Some("line".into()),
            location: Some("dir/x".into()),
            cancel_at: Some("1".into()),
            ..facts(Phase::Succeeded)
        };
        let now = Timestamp::from_second(1).unwrap();
        let status = node_image_status(&Status::default(), &first, now);
        assert_eq!(node_image_status(&status, &facts(Phase::Succeeded), now), status);
        assert_eq!(status.conditions[0].message, "the image is at dir/x");
        // What it is to be done about is said although it is there.
        let gone = Trouble::new(ErrorClass::Waiting, Reason::ProviderTemplateNotFound, "t does not exist");
        let troubled = NodeImageFacts { trouble: Some(gone), ..facts(Phase::Succeeded) };
        let troubled = node_image_status(&status, &troubled, now);
        assert_eq!(troubled.conditions[0].message, "the image is at dir/x; but t does not exist");
        assert!(troubled.conditions[0].is_true());
    }
}
