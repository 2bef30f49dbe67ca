//! The build of a node image, as a value: everything that happens is an event, and what is to be done comes out.
//!
//! ```text
//!            wanted           claimed             last step finished
//! (nothing) ───────▶ Queued ─────────▶ Running ──────────────────────▶ Succeeded
//!                     ▲  ▲                │ │
//!                     │  └── retries left ┘ └─ no retries left, or hopeless ──▶ Failed ── retry ──▶ Queued
//!                     └──── holder lost, shut down, output lost
//!
//! A holder that was lost without a word counts as a failure of its attempt: what it builds may be what kills it.
//!
//! from any of them:  cancel ──▶ Cancelled ── retry ──▶ Queued       suspend ──▶ Suspended ── resume ──▶ Queued
//! ```
//!
//! The value is what stands in the object's status, so a restart needs nothing else. Who builds is said by the attempt: its
//! number only grows, each claim takes the next one, and an event of another attempt than the current one changes nothing.
//! A step counts as finished while its output is at hand; an output that is lost is an event too.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::job;

pub use crate::api::image_release::ImagePhase as Phase;

/// How long a holder may be silent before another one may take the build over.
pub const SILENCE: SignedDuration = SignedDuration::from_secs(60);
/// First pause after a failed attempt; it doubles with each, up to [`LONGEST_PAUSE`].
pub const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(10);
/// Longest pause after a failed attempt.
pub const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(10);
/// Pause before an attempt that found another process at its work is made again.
pub const OTHERS_PAUSE: SignedDuration = SignedDuration::from_mins(1);

/// How messages of failures end that pass: of the last attempt it is not true.
const TRIED_AGAIN: &str = "; it is tried again";

/// Where an output lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// In the work directory of this id.
    WorkDirectory(String),
    /// At the destination.
    Destination,
}

/// What a step made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// `sha256:` and hex digits.
    pub digest: String,
    /// Where it lies.
    pub place: Place,
}

/// Bytes done of those there are, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Bytes done.
    pub done: u64,
    /// Bytes in all; `None` while it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

/// Who builds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Identity of the process, or of the Job.
    pub identity: String,
    /// When it was last heard of.
    pub heartbeat: Timestamp,
}

/// What is to be built.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recipe {
    /// Digest over all that the build depends on.
    pub inputs: String,
    /// Names of the steps, in their order; at least one.
    pub steps: Vec<String>,
    /// How often a failed attempt is followed by another one.
    pub retries: u32,
}

/// A build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Build {
    /// What is built.
    pub recipe: Recipe,
    /// How far it is.
    pub phase: Phase,
    /// What the finished steps made, in their order.
    #[serde(default)]
    pub finished: Vec<Output>,
    /// Number of the last claim; 0 before the first.
    #[serde(default)]
    pub attempt: u32,
    /// Attempts that failed since a step was last finished, or since somebody asked for another try.
    #[serde(default)]
    pub failures: u32,
    /// Steps that ran again because their output was lost.
    #[serde(default)]
    pub repeated: u32,
    /// Who builds; while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// Of the current step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Not to be claimed before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// What went wrong last, for people; empty while nothing is wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hope {
    /// It can: a network, a full disk, an evicted pod.
    Retry,
    /// It can't before somebody changes something: a wrong digest, a tool that is not allowed.
    None,
    /// Nothing was tried: another process is at work there. It ends, so this is waited for and counts as no failure.
    Later,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This is what is wanted now: the first event, and each change of the image's description or settings.
    Wanted(Recipe),
    /// A process has a place for it.
    Claimed {
        /// Its identity.
        identity: String,
        /// Now.
        now: Timestamp,
    },
    /// The holder is alive.
    Beat {
        /// Its attempt.
        attempt: u32,
        /// How far the current step is.
        progress: Progress,
        /// Now.
        now: Timestamp,
    },
    /// The current step is done.
    StepFinished {
        /// The attempt that did it.
        attempt: u32,
        /// Number of the step, from 0.
        step: usize,
        /// What it made.
        output: Output,
        /// Now.
        now: Timestamp,
    },
    /// The current step failed.
    StepFailed {
        /// The attempt that failed.
        attempt: u32,
        /// Whether trying again can help.
        hope: Hope,
        /// Why, for people.
        message: String,
        /// Now.
        now: Timestamp,
    },
    /// The image is at its destination already: nothing is to be made.
    Found {
        /// The attempt that found it.
        attempt: u32,
        /// Digest of its file.
        digest: String,
    },
    /// The output of a finished step is not at hand, or has another digest.
    OutputLost {
        /// Number of the step, from 0.
        step: usize,
    },
    /// The holder may be gone.
    Looked {
        /// Now.
        now: Timestamp,
    },
    /// The holder ends, and has stopped building.
    ShutDown {
        /// Its attempt.
        attempt: u32,
    },
    /// The holder is surely gone, and did not say so.
    Lost {
        /// Its attempt.
        attempt: u32,
    },
    /// Somebody cancels it.
    Cancel,
    /// Somebody wants another try.
    Retry,
    /// Somebody holds it.
    Suspend,
    /// Nobody holds it any more.
    Resume,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Take a place in the queue.
    Enqueue,
    /// Run a step, and those behind it.
    Run {
        /// As this attempt.
        attempt: u32,
        /// Number of the step, from 0.
        step: usize,
    },
    /// Stop what this attempt does, and remove what it left half-made.
    Stop {
        /// The attempt.
        attempt: u32,
    },
    /// Leave the queue.
    Dequeue,
    /// Tell of it, by an event on the object.
    Tell(Note),
}

/// What is told of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A step begins.
    StepStarted(usize),
    /// A step is done.
    StepFinished(usize),
    /// A step runs again, for what it made is lost.
    StepRepeated(usize),
    /// An attempt failed, and there will be another one.
    WillRetry,
    /// An attempt failed, and there will be none.
    GaveUp,
    /// The holder was silent for too long.
    HolderLost(String),
    /// It was cancelled.
    Cancelled,
    /// The image is where it belongs.
    Done,
}

impl Build {
    /// Number of the step whose turn it is; the number of steps when all are done.
    pub fn step(&self) -> usize {
        self.finished.len()
    }

    /// How far it is, for who builds next: a Job that was begun goes on meanwhile, with or without a place.
    pub fn further(&self) -> usize {
        self.step() + usize::from(self.is_of_job() && self.attempt > 0)
    }

    /// Whether it was to be carried out by a Job when it was last looked at.
    pub fn is_of_job(&self) -> bool {
        matches!(self.recipe.steps.as_slice(), [step] if *step == job::STEP)
    }

    /// Whether it may be claimed at `now`.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.phase == Phase::Queued && self.not_before.is_none_or(|at| at <= now)
    }

    /// What the build is after an event, and what is to be done. An event that does not fit changes nothing.
    #[must_use]
    pub fn after(&self, event: &Event) -> (Self, Vec<Command>) {
        let mut next = self.clone();
        let commands = next.take(event);
        (next, commands)
    }

    fn take(&mut self, event: &Event) -> Vec<Command> {
        match event {
            Event::Wanted(recipe) => self.wanted(recipe),
            Event::Claimed { identity, now } if self.is_due(*now) && !self.recipe.steps.is_empty() => {
                self.claimed(identity, *now)
            }
            Event::Beat { attempt, progress, now } if self.is_held_by(*attempt) => {
                self.beat(*now);
                self.progress = Some(*progress);
                Vec::new()
            }
            Event::StepFinished { attempt, step, output, now }
                if self.is_held_by(*attempt) && *step == self.step() && *step < self.recipe.steps.len() =>
            {
                self.beat(*now);
                self.step_finished(output)
            }
            Event::StepFailed { attempt, hope, message, now } if self.is_held_by(*attempt) => {
                self.step_failed(*hope, message, *now)
            }
            Event::Found { attempt, digest } if self.is_held_by(*attempt) => self.found(digest),
            Event::OutputLost { step } if *step < self.step() => self.output_lost(*step),
            Event::Looked { now } => self.looked(*now),
            Event::ShutDown { attempt } if self.is_held_by(*attempt) => {
                self.queue();
                vec![Command::Enqueue]
            }
            Event::Lost { attempt } if self.is_held_by(*attempt) => self.lost(),
            Event::Cancel if matches!(self.phase, Phase::Queued | Phase::Running | Phase::Suspended) => {
                let mut commands = self.leave(Phase::Cancelled);
                commands.push(Command::Tell(Note::Cancelled));
                commands
            }
            Event::Suspend if matches!(self.phase, Phase::Queued | Phase::Running) => self.leave(Phase::Suspended),
            Event::Retry if self.phase == Phase::Failed => self.anew(),
            Event::Retry if self.phase == Phase::Cancelled => {
                // What it had made was removed; what is there nevertheless is found again.
                self.finished.clear();
                self.anew()
            }
            Event::Resume if self.phase == Phase::Suspended => self.anew(),
            // A holder that pauses between attempts is asked for at once.
            Event::Retry if self.phase == Phase::Queued && self.not_before.is_some() => self.anew(),
            _ => Vec::new(),
        }
    }

    fn is_held_by(&self, attempt: u32) -> bool {
        self.phase == Phase::Running && self.attempt == attempt
    }

    fn beat(&mut self, now: Timestamp) {
        if let Some(holder) = &mut self.holder {
            holder.heartbeat = holder.heartbeat.max(now);
        }
    }

    /// What was made for other inputs counts no more.
    fn wanted(&mut self, recipe: &Recipe) -> Vec<Command> {
        let is_new = self.recipe.steps.is_empty();
        if self.recipe.inputs == recipe.inputs && self.recipe.steps == recipe.steps {
            self.recipe.retries = recipe.retries;
            return Vec::new();
        }
        let mut commands = self.leave(self.phase);
        self.recipe = recipe.clone();
        self.finished.clear();
        if !matches!(self.phase, Phase::Cancelled | Phase::Suspended) || is_new {
            commands.retain(|command| *command != Command::Dequeue);
            commands.extend(self.anew());
        }
        commands
    }

    fn claimed(&mut self, identity: &str, now: Timestamp) -> Vec<Command> {
        self.phase = Phase::Running;
        self.attempt = self.attempt.saturating_add(1);
        self.holder = Some(Holder { identity: identity.to_owned(), heartbeat: now });
        (self.not_before, self.progress) = (None, None);
        let step = self.step();
        vec![Command::Run { attempt: self.attempt, step }, Command::Tell(Note::StepStarted(step))]
    }

    fn step_finished(&mut self, output: &Output) -> Vec<Command> {
        let done = self.step();
        self.finished.push(output.clone());
        (self.failures, self.progress) = (0, None);
        self.message.clear();
        let mut commands = vec![Command::Tell(Note::StepFinished(done))];
        if self.step() == self.recipe.steps.len() {
            self.phase = Phase::Succeeded;
            self.holder = None;
            commands.push(Command::Tell(Note::Done));
        } else {
            commands.push(Command::Tell(Note::StepStarted(self.step())));
        }
        commands
    }

    fn found(&mut self, digest: &str) -> Vec<Command> {
        let output = Output { digest: digest.to_owned(), place: Place::Destination };
        self.finished = vec![output; self.recipe.steps.len()];
        (self.phase, self.holder, self.failures, self.progress) = (Phase::Succeeded, None, 0, None);
        self.message.clear();
        vec![Command::Tell(Note::Done)]
    }

    fn step_failed(&mut self, hope: Hope, message: &str, now: Timestamp) -> Vec<Command> {
        let attempt = self.attempt;
        message.clone_into(&mut self.message);
        let mut commands = vec![Command::Stop { attempt }];
        if hope == Hope::Later {
            // Its place is another's meanwhile.
            self.queue();
            self.not_before = now.checked_add(OTHERS_PAUSE).ok();
            commands.push(Command::Enqueue);
            return commands;
        }
        self.failures = self.failures.saturating_add(1);
        if hope == Hope::Retry && self.failures <= self.recipe.retries {
            self.queue();
            self.not_before = now.checked_add(pause(self.failures)).ok();
            commands.extend([Command::Enqueue, Command::Tell(Note::WillRetry)]);
        } else {
            self.leave(Phase::Failed);
            if let Some(message) = self.message.strip_suffix(TRIED_AGAIN) {
                self.message = message.to_owned();
            }
            commands.push(Command::Tell(Note::GaveUp));
        }
        commands
    }

    /// What the steps behind it made was made of what is lost, and may be at hand; but the order of steps is kept simple.
    fn output_lost(&mut self, step: usize) -> Vec<Command> {
        let lost = self.step() - step;
        self.finished.truncate(step);
        self.repeated = self.repeated.saturating_add(u32::try_from(lost).unwrap_or(u32::MAX));
        let told = Command::Tell(Note::StepRepeated(step));
        match self.phase {
            Phase::Running => {
                let attempt = self.attempt;
                self.queue();
                vec![Command::Stop { attempt }, Command::Enqueue, told]
            }
            Phase::Succeeded => {
                self.queue();
                vec![Command::Enqueue, told]
            }
            _ => vec![told],
        }
    }

    /// Whether its holder said nothing for too long.
    pub fn is_silent(&self, now: Timestamp) -> bool {
        self.holder.as_ref().is_some_and(|holder| now.duration_since(holder.heartbeat) > SILENCE)
    }

    fn looked(&mut self, now: Timestamp) -> Vec<Command> {
        if self.is_silent(now) { self.lost() } else { Vec::new() }
    }

    /// Another one goes on, as long as there are retries; the first that is lost in a step always finds one. A Job goes on
    /// without its holder, and tells by itself how it ends.
    fn lost(&mut self) -> Vec<Command> {
        let lost = self.holder.as_ref().map(|holder| holder.identity.clone()).unwrap_or_default();
        if !self.is_of_job() {
            self.failures = self.failures.saturating_add(1);
            self.message = format!("{lost}, which built it, is gone without a word{TRIED_AGAIN}");
            if self.failures > self.recipe.retries.max(1) {
                self.message = format!(
                    "{lost}, which built it, is gone without a word, and this was attempt {} of this step that failed: if it was killed for its memory, give it more or let less be built at once; then `clusterstack images retry` tries it again",
                    self.failures
                );
                // Nobody is left who could be told to stop.
                self.leave(Phase::Failed);
                return vec![Command::Tell(Note::GaveUp)];
            }
        }
        self.queue();
        vec![Command::Enqueue, Command::Tell(Note::HolderLost(lost))]
    }

    /// Back into the queue, with what is finished.
    fn queue(&mut self) {
        self.phase = Phase::Queued;
        (self.holder, self.progress, self.not_before) = (None, None, None);
    }

    /// Another try, as if nothing had failed.
    fn anew(&mut self) -> Vec<Command> {
        self.queue();
        self.failures = 0;
        self.message.clear();
        vec![Command::Enqueue]
    }

    /// Into a phase in which nobody builds.
    fn leave(&mut self, phase: Phase) -> Vec<Command> {
        let commands = match self.phase {
            Phase::Running => vec![Command::Stop { attempt: self.attempt }],
            Phase::Queued => vec![Command::Dequeue],
            _ => Vec::new(),
        };
        self.queue();
        self.phase = phase;
        // It told of an attempt that would be made.
        if phase != Phase::Failed {
            self.message.clear();
        }
        commands
    }
}

/// How long to wait after so many failed attempts in a row, of which there is at least one.
fn pause(failures: u32) -> SignedDuration {
    let doubled = 2_i32.saturating_pow(failures.saturating_sub(1).min(16));
    FIRST_PAUSE.checked_mul(doubled).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests;
