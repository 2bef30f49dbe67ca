//! Builds written down: in the status of their object, by events and by metrics.
//!
//! A status is replaced in the version that was read, so that of two who write at once one learns of the other. What is
//! told is decided on what was read, so that an event of an attempt that is over changes nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::core::response::Status;
use kube::{Client, Resource, ResourceExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::executor::{Journal, Told};
use super::meter::BuildMetrics;
use super::task::Report;
use crate::api::FIELD_MANAGER;
use crate::api::condition::Reason;
use crate::api::image_release::{LogRecord, ProviderNodeImageRelease as Image};
use crate::core::image::build::{Build, Command, Event, Note, Phase, Progress};
use crate::core::image::pace::Pace;
use crate::core::image::record::build_of;
use crate::core::status::{NodeImageFacts, node_image_status};
use crate::io::events::Events;
use crate::io::fence;
use crate::io::report;

/// How often progress is written at most.
const CHECKPOINT: Duration = Duration::from_secs(3);
/// How often a heartbeat is written where nothing else is.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// First pause before what could not be written is tried again; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long is tried to write the last words while the process ends.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Bytes of the log that stay in status.
const TAIL: usize = 2048;

/// Where builds are written down.
#[derive(Clone)]
pub struct Books {
    /// To the API server.
    pub client: Client,
    /// Events on the objects.
    pub events: Events,
    /// Metrics.
    pub metrics: BuildMetrics,
}

/// An object as it is now, and what is to be done.
#[derive(Debug)]
pub struct Change {
    /// The object, in the version that was written.
    pub image: Image,
    /// Its build.
    pub build: Build,
    /// What is to be done; it was told already.
    pub commands: Vec<Command>,
}

impl Books {
    fn api(&self, image: &Image) -> Api<Image> {
        Api::namespaced(fence::guarded(&self.client), &image.namespace().unwrap_or_default())
    }

    /// Lets events happen to the build of an object, and writes what it is then. `decide` sees the object as it is now and
    /// its build; it may be asked several times, and says `None` to leave all as it is. `None` if the object is gone, or
    /// was made anew.
    ///
    /// # Errors
    /// What the API server said.
    pub async fn change(
        &self,
        seen: &Image,
        mut decide: impl FnMut(&Image, &Build) -> Option<(Vec<Event>, NodeImageFacts)>,
    ) -> Result<Option<Change>, kube::Error> {
        let api = self.api(seen);
        let mut image = seen.clone();
        loop {
            let had = image.status.clone().unwrap_or_default();
            let before = build_of(&had);
            let Some((events, facts)) = decide(&image, &before) else {
                return Ok(Some(Change { image, build: before, commands: Vec::new() }));
            };
            let (mut build, mut commands) = (before, Vec::new());
            for event in &events {
                let (next, more) = build.after(event);
                build = next;
                commands.extend(more);
            }
            let facts = NodeImageFacts { build: build.clone(), generation: image.metadata.generation, ..facts };
            let status = node_image_status(&had, &facts, Timestamp::now());
            if image.status.as_ref() == Some(&status) {
                return Ok(Some(Change { image, build, commands }));
            }
            let mut next = image.clone();
            next.status = Some(status);
            // What is kept of an object says not which fields each writer has: the API server's own word stays.
            next.metadata.managed_fields = None;
            let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
            match api.replace_status(&image.name_any(), &params, &next).await {
                Ok(image) => {
                    // A build whose holder is not kept would be taken for nobody's, and begun again and again.
                    let kept = next.status.as_ref().zip(image.status.as_ref());
                    if let Some(why) = kept.and_then(|(sent, found)| report::dropped(sent, found)) {
                        let message = format!("its status can't be written: {why}");
                        report::internal_error(&self.client, &image, &message).await?;
                        return Err(kube::Error::Api(Status::failure(&message, "Invalid").with_code(422).boxed()));
                    }
                    self.tell(&image, &build, &commands).await;
                    return Ok(Some(Change { image, build, commands }));
                }
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
                Err(kube::Error::Api(status)) if status.code == 409 => match api.get_opt(&seen.name_any()).await? {
                    Some(now) if now.uid() == seen.uid() => image = now,
                    _ => return Ok(None),
                },
                Err(error) => return Err(error),
            }
        }
    }

    /// Says in events and metrics what is to be told.
    async fn tell(&self, image: &Image, build: &Build, commands: &[Command]) {
        for command in commands {
            if let Command::Run { .. } = command {
                self.metrics.count("claimed");
            }
            let Command::Tell(note) = command else { continue };
            let (reason, metric, text) = said(note, build);
            if let Some(metric) = metric {
                self.metrics.count(metric);
            }
            let name = image.name_any();
            tracing::info!(namespace = image.namespace().unwrap_or_default(), image = name, %reason, text, "node image");
            self.events.say_of(&image.object_ref(&()), reason, &text).await;
        }
    }
}

/// What is said of a note: the event's reason, what is counted, and the words.
fn said(note: &Note, build: &Build) -> (Reason, Option<&'static str>, String) {
    let steps = &build.recipe.steps;
    let step = |number: &usize| {
        let name = steps.get(*number).map_or("", String::as_str);
        format!("step {name} ({} of {})", number + 1, steps.len())
    };
    let attempt = build.attempt;
    match note {
        Note::StepStarted(number) => {
            (Reason::BuildStepStarted, None, format!("{} begins, attempt {attempt}", step(number)))
        }
        Note::StepFinished(number) => {
            (Reason::BuildStepDone, Some("step_finished"), format!("{} is done", step(number)))
        }
        Note::StepRepeated(number) => (
            Reason::BuildStepRepeated,
            Some("step_repeated"),
            format!("what {} had made is lost: it runs again", step(number)),
        ),
        Note::WillRetry => (
            Reason::BuildRetried,
            Some("retried"),
            format!("{} failed, and is tried again: {}", step(&build.step()), build.message),
        ),
        Note::GaveUp => {
            (Reason::BuildFailed, Some("failed"), format!("{} failed: {}", step(&build.step()), build.message))
        }
        Note::HolderLost(holder) => (
            Reason::BuildHolderLost,
            Some("holder_lost"),
            format!("{holder} is gone; another one goes on with {}", step(&build.step())),
        ),
        Note::Cancelled => (Reason::BuildCancelled, Some("cancelled"), "the build was cancelled".to_owned()),
        Note::Done => (Reason::ImageReady, Some("succeeded"), "the image is at its destination".to_owned()),
    }
}

/// The journal of one attempt.
pub struct AttemptJournal {
    books: Books,
    attempt: u32,
    process: CancellationToken,
    page: Mutex<Page>,
}

/// What is known and not written yet.
struct Page {
    image: Image,
    progress: Option<Progress>,
    written_progress: Option<Progress>,
    pace: Pace,
    tail: String,
    location: Option<String>,
    log: Option<LogRecord>,
    began: Instant,
    written: Instant,
}

impl AttemptJournal {
    /// Of an attempt that was claimed; `image` is its object as it was written then. `process` ends with the process.
    pub fn new(books: Books, image: Image, attempt: u32, log: Option<LogRecord>, process: CancellationToken) -> Self {
        let now = Instant::now();
        let page = Page {
            image,
            progress: None,
            written_progress: None,
            pace: Pace::default(),
            tail: String::new(),
            location: None,
            log,
            began: now,
            written: now,
        };
        Self { books, attempt, process, page: Mutex::new(page) }
    }

    fn lock(&self) -> MutexGuard<'_, Page> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an event, once.
    async fn write(&self, event: &Event) -> Result<Told, kube::Error> {
        let (image, facts) = {
            let mut page = self.lock();
            page.written = Instant::now();
            page.written_progress = page.progress;
            let tail = (!page.tail.is_empty()).then(|| page.tail.clone());
            let facts = NodeImageFacts {
                pace: Some(page.pace.clone()),
                location: page.location.clone(),
                log: page.log.clone(),
                log_tail: tail,
                ..NodeImageFacts::default()
            };
            (page.image.clone(), facts)
        };
        let mut is_ours = true;
        let decide = |_: &Image, build: &Build| {
            is_ours = build.phase == Phase::Running && build.attempt == self.attempt;
            is_ours.then(|| (vec![event.clone()], facts.clone()))
        };
        let Some(change) = self.books.change(&image, decide).await? else { return Ok(Told::NotOurs) };
        let mut page = self.lock();
        page.image = change.image;
        if matches!(event, Event::StepFinished { .. }) {
            (page.progress, page.written_progress, page.pace) = (None, None, Pace::default());
        }
        Ok(if is_ours { Told::Written(Box::new(change.build)) } else { Told::NotOurs })
    }
}

impl Report for AttemptJournal {
    fn progress(&self, progress: Progress) {
        let mut page = self.lock();
        if page.progress != Some(progress) {
            let at = page.began.elapsed();
            page.pace.note(at, progress.done);
            page.progress = Some(progress);
        }
    }

    fn line(&self, line: &str) {
        push(&mut self.lock().tail, line);
    }

    fn published(&self, location: &str) {
        self.lock().location = Some(location.to_owned());
    }
}

/// Adds a line to the end of the log, of which the last lines stay.
fn push(tail: &mut String, line: &str) {
    let mut from = line.len().saturating_sub(TAIL - 1);
    while !line.is_char_boundary(from) {
        from += 1;
    }
    tail.push_str(&line[from..]);
    tail.push('\n');
    while tail.len() > TAIL {
        let end = tail.find('\n').map_or(tail.len(), |at| at + 1);
        tail.drain(..end);
    }
}

#[async_trait]
impl Journal for AttemptJournal {
    async fn tell(&self, event: Event) -> Told {
        let mut pause = FIRST_PAUSE;
        let last_words = async {
            self.process.cancelled().await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::pin!(last_words);
        loop {
            let error = tokio::select! {
                told = self.write(&event) => match told {
                    Ok(told) => return told,
                    Err(error) if fence::is_not_ours(&error) => return Told::NotOurs,
                    Err(error) => error,
                },
                () = &mut last_words => return Told::NotOurs,
            };
            tracing::warn!(
                error = crate::io::apply::refusal(&error).message,
                "a build could not be written down; it is tried again"
            );
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                () = &mut last_words => return Told::NotOurs,
            }
        }
    }

    async fn beat(&self) -> Told {
        let (progress, build) = {
            let page = self.lock();
            let is_new = page.progress != page.written_progress;
            let is_due = page.written.elapsed() >= if is_new { CHECKPOINT } else { HEARTBEAT };
            let build = build_of(&page.image.status.clone().unwrap_or_default());
            if !is_due {
                return Told::Written(Box::new(build));
            }
            (page.progress.unwrap_or_default(), build)
        };
        let event = Event::Beat { attempt: self.attempt, progress, now: Timestamp::now() };
        // Who can't be told learns it from the next beat.
        match self.write(&event).await {
            Err(error) if fence::is_not_ours(&error) => Told::NotOurs,
            told => told.unwrap_or_else(|_| Told::Written(Box::new(build))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_stay() {
        let mut tail = String::new();
        for number in 0..1000 {
            push(&mut tail, &format!("line {number}"));
        }
        assert!(tail.len() <= TAIL && tail.starts_with("line ") && tail.ends_with("line 999\n"), "{tail}");
        push(&mut tail, &"ä".repeat(5000));
        assert!(tail.len() <= TAIL && tail.len() > TAIL - 4, "{}", tail.len());
    }

    #[test]
    fn every_note_is_said_in_words() {
        let recipe = crate::core::image::build::Recipe {
            steps: vec!["download".into(), "register".into()],
            ..Default::default()
        };
        let build = Build { recipe, attempt: 2, message: "no route".into(), ..Build::default() };
        for (note, expected) in [
            (Note::StepStarted(0), "step download (1 of 2) begins, attempt 2"),
            (Note::WillRetry, "step download (1 of 2) failed, and is tried again: no route"),
            (Note::HolderLost("a_1".into()), "a_1 is gone; another one goes on with step download (1 of 2)"),
            (Note::StepRepeated(1), "what step register (2 of 2) had made is lost: it runs again"),
        ] {
            assert_eq!(said(&note, &build).2, expected);
        }
    }
}
