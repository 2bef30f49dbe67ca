//! Carries a build out, from its current step to its end, and tells of it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::task::JoinError;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::destination::{Claim, Destination, DestinationError, Image};
use super::task::{Report, StepError, Steps};
use crate::api::image_template::ProviderClusterStackReleaseTemplateSpec as Template;
use crate::core::image::build::{Build, Event, Hope, Output, Phase, Progress, Recipe};
use crate::core::image::grant::Grant;
use crate::core::image::pipeline::Pipeline;
use crate::io::fence;

/// How often a running step is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long a step may take to end after it was stopped; then it is left to itself.
const GRACE: Duration = Duration::from_secs(15);

/// What is to be built, by which settings, and who asks.
#[derive(Clone, Debug)]
pub struct Order {
    /// The image's object.
    pub object: ObjectReference,
    /// How the image is made.
    pub pipeline: Pipeline,
    /// The same as the build knows it.
    pub recipe: Recipe,
    /// Name of the template.
    pub template_name: String,
    /// Its namespace: the Secrets that it names are there, and Jobs run there.
    pub template_namespace: String,
    /// Whether it may be used for a build now; it always may where it is of the object's namespace.
    pub grant: Grant,
    /// The provider's settings.
    pub template: Arc<Template>,
    /// The attempt; before the first claim that of the build as it stands.
    pub claim: Claim,
    /// Digest of the image that is taken if it is at the destination: see [`crate::core::image::adoption`].
    pub known: Option<String>,
}

impl Order {
    /// The image as it is at its destination already: it is not described anew.
    pub fn published(&self, digest: &str) -> Image {
        Image {
            name: self.pipeline.image.clone(),
            digest: digest.to_owned(),
            size: 0,
            format: self.pipeline.final_format(),
            properties: self.pipeline.description(),
            origins: Vec::new(),
        }
    }
}

/// Makes what builds work with: by the executor and the Secrets that the template names, of the template's namespace.
#[async_trait]
pub trait Workshop: Send + Sync {
    /// What carries the steps out. It bounds their time, also that without progress.
    ///
    /// # Errors
    /// A Secret is missing, or the template can't be followed.
    async fn steps(&self, order: &Order) -> Result<Arc<dyn Steps>, StepError>;

    /// Where the image is brought.
    ///
    /// # Errors
    /// A Secret is missing, or the template can't be followed.
    async fn destination(&self, order: &Order) -> Result<Arc<dyn Destination>, StepError>;

    /// Ends the Jobs of an object.
    ///
    /// # Errors
    /// They can't be deleted, or do not go.
    async fn end_jobs(&self, _order: &Order) -> Result<(), StepError> {
        Ok(())
    }
}

/// Why a build is to stop in this process.
#[derive(Clone, Debug)]
pub struct Stop {
    /// Somebody cancels or holds it, or it is another's now. A child of `process`.
    pub build: CancellationToken,
    /// The process ends.
    pub process: CancellationToken,
}

/// What became of something that was told.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// It is written, and the build is this now.
    Written(Box<Build>),
    /// The build is another's, or its object is gone: whoever told it stops, and leaves everything as it is.
    NotOurs,
}

impl Told {
    /// The build, where this attempt goes on with it.
    pub fn going(self, attempt: u32) -> Option<Build> {
        match self {
            Self::Written(build) if build.holder.is_some() && build.attempt == attempt => Some(*build),
            _ => None,
        }
    }
}

/// Where a build is written down.
#[async_trait]
pub trait Journal: Report {
    /// Writes what happened, and says it in events where that is due. Tries until it is written, or until the process
    /// has to end.
    async fn tell(&self, event: Event) -> Told;

    /// Writes that the build is alive and how far it is, if that is due. An API server that does not answer is no
    /// trouble.
    async fn beat(&self) -> Told;
}

/// One attempt at a build.
pub struct Attempt {
    /// What is to be built.
    pub order: Order,
    /// Where it is written down.
    pub journal: Arc<dyn Journal>,
    /// Why it is to stop.
    pub stop: Stop,
    /// Where steps run.
    pub tasks: TaskTracker,
}

/// How a step ended.
enum End {
    Finished(Output),
    Failed(StepError),
    /// It was stopped from outside.
    Stopped,
    /// The build is another's.
    NotOurs,
}

impl Attempt {
    /// Carries a claimed build out from its current step on, and tells of it. Returns when it is at its end, when the
    /// attempt failed, and soon after it is to stop. Where the process ends, the build goes back into the queue.
    pub async fn drive(&self, build: Build, workshop: &dyn Workshop) {
        let attempt = build.attempt;
        if let Err(StepError { hope, message }) = self.all(build, workshop).await {
            let told = self.journal.tell(Event::StepFailed { attempt, hope, message, now: Timestamp::now() }).await;
            if matches!(told, Told::Written(build) if build.phase == Phase::Failed) {
                self.abandon(workshop).await;
            }
        }
    }

    /// A build that is given up leaves nothing half-made at the destination. What can't be removed now goes with the object.
    async fn abandon(&self, workshop: &dyn Workshop) {
        let cancel = &self.stop.build;
        let abandoned = match workshop.steps(&self.order).await {
            Ok(steps) => steps.abandon(cancel).await,
            Err(error) => Err(error),
        };
        if let Err(error) = abandoned {
            let image = &self.order.pipeline.image;
            tracing::warn!(image, %error, "what a build left at its destination can't be removed");
        }
    }

    /// `Err` is why the attempt failed; `Ok` where there is nothing more to do for it.
    async fn all(&self, mut build: Build, workshop: &dyn Workshop) -> Result<(), StepError> {
        let attempt = build.attempt;
        let steps = tokio::select! {
            steps = workshop.steps(&self.order) => steps?,
            () = self.stop.build.cancelled() => return self.stopped(attempt).await,
        };
        if let Some(digest) = self.found(workshop).await? {
            self.journal.tell(Event::Found { attempt, digest }).await;
            return Ok(());
        }
        match self.at_hand(&mut build, steps.as_ref()).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(_) if self.stop.build.is_cancelled() => return self.stopped(attempt).await,
            Err(error) => return Err(error),
        }
        while build.step() < build.recipe.steps.len() {
            let step = build.step();
            match self.step(&steps, step, build.finished.clone()).await {
                End::Finished(output) => {
                    let event = Event::StepFinished { attempt, step, output, now: Timestamp::now() };
                    match self.journal.tell(event).await.going(attempt) {
                        Some(next) => build = next,
                        None => break,
                    }
                }
                End::Failed(error) => return Err(error),
                End::Stopped => return self.stopped(attempt).await,
                End::NotOurs => break,
            }
        }
        Ok(())
    }

    /// The image that is known to be ours, if it is at the destination; our id is on it then.
    async fn found(&self, workshop: &dyn Workshop) -> Result<Option<String>, StepError> {
        let Some(known) = &self.order.known else { return Ok(None) };
        let cancel = &self.stop.build;
        let destination = workshop.destination(&self.order).await?;
        match destination.find(&self.order.pipeline.image, cancel).await {
            Ok(Some(found)) if found.digest == *known => {}
            // The build meets it at its end, and says so.
            Ok(_) | Err(DestinationError::Conflict { .. }) => return Ok(None),
            Err(_) if cancel.is_cancelled() => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        match destination.register(&self.order.published(known), &self.order.claim, cancel).await {
            Ok(published) => {
                self.journal.published(&published.location);
                Ok(Some(known.clone()))
            }
            Err(_) if cancel.is_cancelled() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the build goes on in this attempt: not where an output is lost, for it is claimed anew then, from that step
    /// on. What is at hand although nobody wrote it down is finished too.
    async fn at_hand(&self, build: &mut Build, steps: &dyn Steps) -> Result<bool, StepError> {
        if let Some(step) = steps.lost(&build.finished, &self.stop.build).await? {
            self.journal.tell(Event::OutputLost { step }).await;
            return Ok(false);
        }
        // Also where some are known: a process that was killed may have ended a step that it did not tell of.
        for output in steps.recover(&build.finished, &self.stop.build).await? {
            let step = build.step();
            let event = Event::StepFinished { attempt: build.attempt, step, output, now: Timestamp::now() };
            match self.journal.tell(event).await.going(build.attempt) {
                Some(next) => *build = next,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Where the process ends, the build goes back into the queue; otherwise who stopped it has said so.
    async fn stopped(&self, attempt: u32) -> Result<(), StepError> {
        if self.stop.process.is_cancelled() {
            self.journal.tell(Event::ShutDown { attempt }).await;
        }
        Ok(())
    }

    /// Runs one step, in a task of its own: an API server that is slow to answer does not hold it up.
    async fn step(&self, steps: &Arc<dyn Steps>, step: usize, finished: Vec<Output>) -> End {
        let cancel = self.stop.build.child_token();
        let mut run = {
            let (steps, report, cancel) = (Arc::clone(steps), Forward(Arc::clone(&self.journal)), cancel.clone());
            self.tasks.spawn(fence::carried(async move { steps.run(step, &finished, &report, &cancel).await }))
        };
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut is_ours, mut ends) = (true, None::<Instant>);
        loop {
            tokio::select! {
                ended = &mut run => return self.end(ended, is_ours),
                () = self.stop.build.cancelled(), if ends.is_none() => {}
                _ = look.tick() => {}
            }
            match ends {
                Some(ends) if Instant::now() >= ends => {
                    run.abort();
                    return if is_ours { End::Stopped } else { End::NotOurs };
                }
                Some(_) => continue,
                None if self.stop.build.is_cancelled() => {}
                None => is_ours = self.journal.beat().await.going(self.order.claim.attempt).is_some(),
            }
            if !is_ours || self.stop.build.is_cancelled() {
                cancel.cancel();
                ends = Some(Instant::now() + GRACE);
            }
        }
    }

    /// What is done is done, whoever wanted it to stop meanwhile.
    fn end(&self, ended: Result<Result<Output, StepError>, JoinError>, is_ours: bool) -> End {
        match ended {
            _ if !is_ours => End::NotOurs,
            Ok(Ok(output)) => End::Finished(output),
            Ok(Err(_)) if self.stop.build.is_cancelled() => End::Stopped,
            Ok(Err(error)) => End::Failed(error),
            Err(error) => {
                tracing::error!(%error, "a step of a build broke off");
                let message = "the step broke off, which is a fault of the operator".to_owned();
                End::Failed(StepError { hope: Hope::Retry, message })
            }
        }
    }
}

/// A journal as who runs a step sees it.
struct Forward(Arc<dyn Journal>);

impl Report for Forward {
    fn progress(&self, progress: Progress) {
        self.0.progress(progress);
    }

    fn line(&self, line: &str) {
        self.0.line(line);
    }

    fn published(&self, location: &str) {
        self.0.published(location);
    }
}

#[cfg(test)]
mod tests;
