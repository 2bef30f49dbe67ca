//! A build as it stands in the status of its object.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::build::{Build, Holder, Output, Phase, Place, Progress, Recipe};
use super::pace::{self, Pace};
use crate::api::condition::{MAX_MESSAGE, cut};
use crate::api::image_release::{HolderRecord, ProgressRecord, ProviderNodeImageReleaseStatus as Status, StepRecord};

/// The build that a status holds. What stands behind a step that is not finished is not taken for finished.
pub fn build_of(status: &Status) -> Build {
    let finished = status.steps.iter().take_while(|step| !step.digest.is_empty()).map(output_of);
    Build {
        recipe: Recipe {
            inputs: status.inputs.clone(),
            steps: status.steps.iter().map(|step| step.name.clone()).collect(),
            retries: status.retries,
        },
        phase: status.phase,
        finished: finished.collect(),
        attempt: status.attempt,
        failures: status.failures,
        repeated: status.repeated,
        holder: status
            .holder
            .as_ref()
            .map(|holder| Holder { identity: holder.identity.clone(), heartbeat: holder.heartbeat.0 }),
        progress: status.progress.as_ref().map(|progress| Progress { done: progress.done, total: progress.total }),
        not_before: status.not_before.as_ref().map(|at| at.0),
        message: status.message.clone(),
    }
}

fn output_of(step: &StepRecord) -> Output {
    let place = match step.work_directory.as_str() {
        "" => Place::Destination,
        directory => Place::WorkDirectory(directory.to_owned()),
    };
    Output { digest: step.digest.clone(), place }
}

/// Writes a build into a status; `pace` is how fast its step goes, where that is known.
pub fn record(build: &Build, pace: Option<&Pace>, status: &mut Status) {
    let made = |number: usize| match build.finished.get(number) {
        Some(Output { digest, place: Place::WorkDirectory(id) }) => (digest.clone(), id.clone()),
        Some(Output { digest, place: Place::Destination }) => (digest.clone(), String::new()),
        None => Default::default(),
    };
    let steps = build.recipe.steps.iter().enumerate().map(|(number, name)| {
        let (digest, work_directory) = made(number);
        StepRecord { name: name.clone(), digest, work_directory }
    });
    status.steps = steps.collect();
    status.step = build.recipe.steps.get(build.step()).or(build.recipe.steps.last()).cloned().unwrap_or_default();
    status.inputs.clone_from(&build.recipe.inputs);
    status.retries = build.recipe.retries;
    status.phase = build.phase;
    (status.attempt, status.failures, status.repeated) = (build.attempt, build.failures, build.repeated);
    status.holder = build
        .holder
        .as_ref()
        .map(|holder| HolderRecord { identity: holder.identity.clone(), heartbeat: micro(holder.heartbeat) });
    status.progress = build.progress.map(|progress| progress_of(progress, pace));
    status.not_before = build.not_before.map(micro);
    status.message = cut(&build.message, MAX_MESSAGE);
    if build.phase != Phase::Succeeded {
        (status.location, status.digest) = (String::new(), String::new());
    } else if let Some(last) = build.finished.last() {
        status.digest.clone_from(&last.digest);
    }
}

fn progress_of(progress: Progress, pace: Option<&Pace>) -> ProgressRecord {
    ProgressRecord {
        done: progress.done,
        total: progress.total,
        percent: pace::percent(progress),
        bytes: pace::shown(progress),
        rate: pace.map(Pace::shown).unwrap_or_default(),
        left: pace.and_then(|pace| pace.left(progress)).unwrap_or_default(),
    }
}

/// `MicroTime` has a resolution of microseconds; more would differ after a round trip.
fn micro(at: Timestamp) -> MicroTime {
    MicroTime(Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Build {
        let output = |digest: &str, place| Output { digest: digest.into(), place };
        Build {
            recipe: Recipe {
                inputs: "sha256:in".into(),
                steps: ["download", "upload", "register"].map(str::to_owned).to_vec(),
                retries: 5,
            },
            phase: Phase::Running,
            finished: vec![
                output("sha256:a", Place::WorkDirectory("w-1".into())),
                output("sha256:b", Place::Destination),
            ],
            attempt: 3,
            failures: 1,
            repeated: 2,
            holder: Some(Holder {
                identity: "pod_1".into(),
                heartbeat: Timestamp::from_microsecond(1_500_001).unwrap(),
            }),
            progress: Some(Progress { done: 512, total: Some(1024) }),
            not_before: Some(Timestamp::from_second(9).unwrap()),
            message: "went wrong".into(),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for build in [full(), Build::default(), Build { phase: Phase::Failed, holder: None, ..full() }] {
            let mut status = Status::default();
            record(&build, None, &mut status);
            let json = serde_json::to_value(&status).unwrap();
            assert_eq!(build_of(&serde_json::from_value(json).unwrap()), build);
        }
        let mut status = Status::default();
        record(&full(), None, &mut status);
        assert_eq!((status.step.as_str(), status.progress.unwrap().percent), ("register", Some(50)));
    }

    #[test]
    fn a_step_behind_one_that_is_not_finished_is_none_either() {
        let mut status = Status::default();
        record(&full(), None, &mut status);
        status.steps[0].digest.clear();
        assert_eq!(build_of(&status).finished, []);
    }

    #[test]
    fn only_an_image_that_is_there_has_a_place() {
        let mut status = Status { location: "dir/x".into(), ..Status::default() };
        let mut build = Build { phase: Phase::Succeeded, ..full() };
        record(&build, None, &mut status);
        assert_eq!((status.location.as_str(), status.digest.as_str()), ("dir/x", "sha256:b"));
        build.phase = Phase::Queued;
        record(&build, None, &mut status);
        assert_eq!((status.location.as_str(), status.digest.as_str()), ("", ""));
    }
}
