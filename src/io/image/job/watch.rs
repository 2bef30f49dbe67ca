//! One waiting for a Job: what is seen of it is told, until it has ended or shows no sign any more.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{JobSteps, QUICK, SLOW, again};
use crate::core::image::build::Progress;
use crate::core::image::job::sight::{JobResult, PodProgress, Sight, progress_in};
use crate::core::status::WAITING;
use crate::io::apply::refusal;
use crate::io::image::task::{Report, StepError};

/// How long a failed reading of the cluster is tried again before the attempt is given up.
const BLIND: Duration = Duration::from_mins(10);

/// One waiting for a Job.
pub(super) struct Watch<'a> {
    steps: &'a JobSteps,
    report: &'a dyn Report,
    name: String,
    /// What was told last of what it waits for, or of its step.
    told: String,
    progress: Option<PodProgress>,
    /// The log as it was last read.
    log: String,
    /// When it last showed a sign.
    sign: Instant,
    /// Since when the cluster can't be read.
    blind: Option<Instant>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(steps: &'a JobSteps, report: &'a dyn Report, name: String) -> Self {
        let (told, log) = (String::new(), String::new());
        Self { steps, report, name, told, progress: None, log, sign: Instant::now(), blind: None }
    }

    pub(super) async fn run(mut self) -> Result<JobResult, StepError> {
        let mut pause = QUICK;
        loop {
            if let Some(ended) = self.look().await? {
                return Ok(ended);
            }
            tokio::time::sleep(pause).await;
            pause = pause.mul_f64(1.5).min(SLOW);
        }
    }

    /// One look: what was made, if it has ended.
    async fn look(&mut self) -> Result<Option<JobResult>, StepError> {
        let namespace = &self.steps.request.namespace;
        let seen = match self.steps.jobs.see(namespace, &self.name).await {
            Ok(seen) => seen.masked(&*self.steps.mask),
            // It goes on without us.
            Err(error) if self.blind.get_or_insert_with(Instant::now).elapsed() < BLIND => {
                tracing::warn!(namespace, job = self.name, error = refusal(&error).message, "a Job can't be looked at");
                return Ok(None);
            }
            Err(error) => return Err(self.steps.refused("looking at the Job of", &error)),
        };
        self.blind = None;
        let pod =
            seen.pod().and_then(|pod| pod.pointer("/metadata/name")).and_then(Value::as_str).map(ToOwned::to_owned);
        let sight = seen.judge();
        let may_come = sight.may_come();
        match sight {
            Sight::Gone => Err(again(format!("Job {namespace}/{} was deleted by somebody else", self.name))),
            Sight::Waiting { reason, message } => {
                let colon = if message.is_empty() { "" } else { ": " };
                let what = format!("{reason}{colon}{message}");
                self.tell(&format!("{WAITING}{what}"));
                if may_come {
                    self.sign = Instant::now();
                }
                self.check_signs(|| format!("has no pod: {}; correct what it says", (self.steps.mask)(&what))).await?;
                Ok(None)
            }
            Sight::Running(progress) => {
                if self.told.starts_with(WAITING) {
                    self.tell("the container runs");
                }
                self.follow(pod.as_deref()).await;
                self.progressed(progress);
                let silent = || "showed no progress: neither by its annotation nor by a line of its log".to_owned();
                self.check_signs(silent).await?;
                Ok(None)
            }
            Sight::Succeeded(result) => {
                self.follow(pod.as_deref()).await;
                Ok(Some(result))
            }
            Sight::Failed { hope, message } => {
                self.follow(pod.as_deref()).await;
                Err(StepError { hope, message: (self.steps.mask)(&message) })
            }
        }
    }

    /// Hands on the lines of the log that are new.
    async fn follow(&mut self, pod: Option<&str>) {
        let Some(pod) = pod else { return };
        let log = self.steps.jobs.log(&self.steps.request.namespace, pod).await;
        for line in new_lines(&self.log, &log) {
            self.sign = Instant::now();
            self.report.line(&(self.steps.mask)(line));
        }
        if !log.is_empty() {
            self.log = log;
        }
    }

    /// By the pod's annotation, or by its log where it can't annotate itself.
    fn progressed(&mut self, annotated: Option<PodProgress>) {
        let now = annotated.or_else(|| progress_in(&self.log));
        if now == self.progress {
            return;
        }
        self.sign = Instant::now();
        if let Some(PodProgress { progress, step }) = &now {
            if !step.is_empty() {
                self.tell(&format!("step {step}"));
            }
            self.report.progress(*progress);
        } else {
            self.report.progress(Progress::default());
        }
        self.progress = now;
    }

    /// Gives up where nothing showed for too long; `what` is said then. The next attempt would take the Job over, and wait for it again.
    async fn check_signs(&self, what: impl FnOnce() -> String) -> Result<(), StepError> {
        let silent = self.sign.elapsed();
        if silent < self.steps.no_progress {
            return Ok(());
        }
        let (namespace, name) = (&self.steps.request.namespace, &self.name);
        self.steps.jobs.end(namespace, name).await;
        Err(again(format!("since {} s Job {namespace}/{name} {}", silent.as_secs(), what())))
    }

    /// Says something once.
    fn tell(&mut self, what: &str) {
        if self.told != what {
            self.report.line(&(self.steps.mask)(what));
            what.clone_into(&mut self.told);
        }
    }
}

/// The lines of `now` behind those of `before`, of which the first may have left the window that is read.
pub fn new_lines<'a>(before: &str, now: &'a str) -> Vec<&'a str> {
    let (before, now): (Vec<&str>, Vec<&str>) = (before.lines().collect(), now.lines().collect());
    // The longest end of what was read that what is read now begins with.
    let longest = before.len().min(now.len());
    let common = (0..=longest).rev().find(|n| before[before.len() - n..] == now[..*n]).unwrap_or_default();
    now[common..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_handed_on_once() {
        for (before, now, expected) in [
            ("", "a\nb\n", vec!["a", "b"]),
            ("a\nb\n", "a\nb\n", vec![]),
            ("a\nb\n", "a\nb\nc\n", vec!["c"]),
            ("a\nb\nc\n", "b\nc\nd\ne\n", vec!["d", "e"]),
            ("a\nb\n", "x\ny\n", vec!["x", "y"]),
            ("a\na\n", "a\na\na\n", vec!["a"]),
            ("a\n", "", vec![]),
        ] {
            assert_eq!(new_lines(before, now), expected, "{before:?} {now:?}");
        }
    }
}
