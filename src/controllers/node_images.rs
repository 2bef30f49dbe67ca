//! `ProviderNodeImageRelease`: queues, starts and ends the build of one node image, and lets the image go at its end.

mod looking;
mod removal;
mod running;

pub use running::{NodeImages, Read, Writers, run};

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use self::running::template_place;
use super::{Action, Doing, Error, finalizer, spread};
use crate::api::condition::Reason;
use crate::api::image_release::{LogRecord, ProviderNodeImageRelease as Image};
use crate::api::image_template::{ExecutorKind, ProviderClusterStackReleaseTemplate as Template};
use crate::api::{
    CANCEL_AT, FIELD_MANAGER, IMAGE_DIGEST, MANAGED_BY, MANAGED_BY_LABEL, NODE_IMAGE_FINALIZER, RETRY_AT,
};
use crate::core::image::build::{Build, Command, Event, Note, Phase, SILENCE};
use crate::core::image::garbage;
use crate::core::image::grant::Grant;
use crate::core::image::pipeline::{Format, Pipeline};
use crate::core::image::record::build_of;
use crate::core::image::turn::{self, Begin, Seen};
use crate::core::image::{adoption, job, recipe};
use crate::core::retry::{self, ErrorClass};
use crate::core::status::{NodeImageFacts, Trouble};
use crate::io::fence;
use crate::io::image::destination::Claim;
use crate::io::image::executor::{Attempt, Order, Stop};
use crate::io::image::journal::{AttemptJournal, Change};
use crate::io::image::task::StepError;

/// How old an object without an owner is at least before it is taken for unused: its owner may be about to be written.
const SETTLED: Duration = Duration::from_mins(1);
/// How often an object that waits for a place is looked at without an event.
const WAITING: Duration = Duration::from_mins(5);

/// One pass over a ProviderNodeImageRelease.
///
/// # Errors
/// What the API server refused; what a user can mend is said in conditions.
pub async fn reconcile(seen: Arc<Image>, ctx: Arc<NodeImages>) -> Result<Action, Error> {
    if !ctx.is_ours(&*seen) {
        return Ok(Action::await_change());
    }
    // The cache may be behind the build's own last checkpoint.
    let api = ctx.api(&seen);
    let read = api.get_opt(&seen.name_any()).await.doing(|| format!("reading {}", named(&seen)))?;
    let Some(image) = read else {
        ctx.end(&seen).await;
        return Ok(Action::await_change());
    };
    if image.metadata.deletion_timestamp.is_some() {
        return removal::end(&image, &ctx).await;
    }
    let image = if finalizer::is_on(&image, NODE_IMAGE_FINALIZER) {
        image
    } else {
        finalizer::add(fence::guarded(&ctx.books.client), &image, NODE_IMAGE_FINALIZER).await?
    };
    if ctx.grant_of(&image) == Grant::Unknown && !was_granted(&image) {
        // The release that has it tells when it was looked at.
        return Ok(Action::requeue(spread(WAITING)));
    }
    let order = match ctx.order(&image).await? {
        Ok(order) => order,
        Err(trouble) => return refused(&image, trouble, &ctx).await,
    };
    end_jobs(&image, &order, &ctx).await?;
    let Some(change) = look(&image, &order, &ctx).await? else { return Ok(Action::await_change()) };
    obey(&change, &ctx).await;
    abandon(&change, &order, &ctx).await;
    let Some(change) = tidy(change, &order, &ctx).await? else { return Ok(Action::await_change()) };
    let unused = leave_unused(&change.image, &order, &api, &ctx).await?;
    let Some((change, look)) = Box::pin(looking::look(change, &order, &ctx)).await? else {
        return Ok(Action::await_change());
    };
    let next = Box::pin(start(change, order, &ctx)).await?;
    ctx.memory.succeeded(&image.uid().unwrap_or_default());
    Ok(Action::requeue([unused, next].into_iter().flatten().fold(look, Duration::min)))
}

fn named(image: &Image) -> String {
    format!("ProviderNodeImageRelease {}/{}", image.namespace().unwrap_or_default(), image.name_any())
}

impl NodeImages {
    fn api(&self, image: &Image) -> Api<Image> {
        Api::namespaced(fence::guarded(&self.books.client), &image.namespace().unwrap_or_default())
    }

    /// What the object and its template ask for. A template of another namespace counts once a release that may use it
    /// was seen to have the image: what was built then is looked after and removed, whatever becomes of the grant.
    async fn order(&self, image: &Image) -> Result<Result<Order, Trouble>, Error> {
        let place = template_place(image);
        let grant = self.grant_of(image);
        if grant != Grant::Given && !was_granted(image) {
            return Ok(Err(not_allowed(&place)));
        }
        let template = self.template(&place).await.doing(|| format!("reading the template of {}", named(image)))?;
        let namespace = place.namespace.unwrap_or_default();
        let Some(template) = template else {
            let message = format!(
                "ProviderClusterStackReleaseTemplate {namespace}/{} does not exist: create it again. Without it nothing is \
                 built, and nothing removed: who deletes this object leaves the image where it is",
                place.name
            );
            return Ok(Err(Trouble::new(ErrorClass::Waiting, Reason::ProviderTemplateNotFound, message)));
        };
        Ok(self.ordered(image, &template, namespace, grant))
    }

    fn ordered(&self, image: &Image, template: &Template, namespace: String, grant: Grant) -> Result<Order, Trouble> {
        let invalid = |reason, message| Trouble::new(ErrorClass::Invalid, reason, message);
        let reference = &image.spec.template_ref;
        let name = &reference.name;
        let pipeline = recipe::read(&image.spec.image).map_err(|error| {
            invalid(Reason::NodeImagesInvalid, format!("{error}; correct the release's list and publish it anew"))
        })?;
        let is_right = |pipeline: &Pipeline| pipeline.inputs(&recipe::identity(reference)) == image.spec.inputs;
        let Some(pipeline) = pipeline.filter(is_right) else {
            let message = "spec.inputs is not the digest of spec.image: delete the object, it is made anew";
            return Err(invalid(Reason::SpecInvalid, message.to_owned()));
        };
        let pipeline = match &template.spec.build.format {
            None => pipeline,
            // What goes is built no more.
            Some(format) if image.metadata.deletion_timestamp.is_some() && Format::named(format).is_none() => pipeline,
            Some(format) => pipeline.in_format(Format::named(format).ok_or_else(|| {
                let message = format!(
                    "spec.build.format of ProviderClusterStackReleaseTemplate {namespace}/{name} is {format:?}: write qcow2, raw, vmdk or vhdx"
                );
                invalid(Reason::SpecInvalid, message)
            })?),
        };
        let claim = Claim {
            object: image.uid().unwrap_or_default(),
            attempt: image.status.as_ref().map_or(0, |status| status.attempt),
            cluster: self.cluster.clone(),
        };
        let recipe = recipe::recipe(&pipeline, reference, &template.spec);
        let remembered = image.annotations().get(IMAGE_DIGEST);
        Ok(Order {
            object: image.object_ref(&()),
            known: remembered
                .and_then(|annotation| adoption::known(annotation, &recipe.inputs))
                .or_else(|| pipeline.foretold()),
            recipe,
            pipeline,
            template_name: name.clone(),
            template_namespace: namespace,
            grant,
            template: Arc::new(template.spec.clone()),
            claim,
        })
    }

    /// Removes the work directory of a build, and what it left half-made.
    async fn discard(&self, order: &Order) -> Result<(), StepError> {
        self.workshop.steps(order).await?.discard(&self.cancel).await
    }

    /// Processes that live as far as this one knows: itself, and the replicas that share the work with it.
    fn living(&self) -> Vec<String> {
        let others = self.seats.members.list().into_iter().map(|member| member.id);
        others.chain([self.identity.clone()]).collect()
    }

    /// Ends what is at work for an object, and gives its place to who is next.
    async fn end(&self, image: &Image) {
        self.running.stop(&image.uid().unwrap_or_default()).await;
        self.leave(&ObjectRef::from_obj(image));
    }
}

/// Whether it was granted to use a template of another namespace. Nobody but the operator writes a status.
fn was_granted(image: &Image) -> bool {
    let recorded = image.status.as_ref().map(|status| status.template_namespace.as_str()).unwrap_or_default();
    !recorded.is_empty() && image.spec.template_ref.namespace.as_deref() == Some(recorded)
}

fn not_allowed(place: &ObjectRef<Template>) -> Trouble {
    let message = format!(
        "ProviderClusterStackReleaseTemplate {}/{} is of another namespace, and no release that may use it lists this \
         image: a ClusterStackSource there has to name it and to allow this namespace",
        place.namespace.as_deref().unwrap_or_default(),
        place.name
    );
    Trouble::new(ErrorClass::Waiting, Reason::ProviderTemplateNotAllowed, message)
}

/// Says what stands in the way. A build that runs is left to itself: it was right when it began.
async fn refused(image: &Image, trouble: Trouble, ctx: &NodeImages) -> Result<Action, Error> {
    let uid = image.uid().unwrap_or_default();
    let class = trouble.class;
    if ctx.running.attempt(&uid).is_none() {
        ctx.leave(&ObjectRef::from_obj(image));
        let decide = |_: &Image, _: &Build| {
            Some((Vec::new(), NodeImageFacts { trouble: Some(trouble.clone()), ..NodeImageFacts::default() }))
        };
        ctx.books.change(image, decide).await.doing(|| format!("writing the status of {}", named(image)))?;
    }
    Ok(Action::requeue(retry::delay(class, 0, rand::random())))
}

/// Ends the Job of a build that is carried out by a task from now on: both would bring an image by this name.
async fn end_jobs(image: &Image, order: &Order, ctx: &NodeImages) -> Result<(), Error> {
    let status = image.status.clone().unwrap_or_default();
    let was_of_job = build_of(&status).is_of_job() && status.attempt > status.discarded_attempt;
    if !was_of_job || order.template.build.executor == ExecutorKind::Job {
        return Ok(());
    }
    ctx.running.stop(&image.uid().unwrap_or_default()).await;
    let ended = ctx.workshop.end_jobs(order).await;
    ended.map_err(|error| Error::Tidying { object: named(image), error })
}

/// Tells the build what its object and the world say.
async fn look(image: &Image, order: &Order, ctx: &NodeImages) -> Result<Option<Change>, Error> {
    let uid = image.uid().unwrap_or_default();
    let living = ctx.living();
    let decide = |now: &Image, build: &Build| {
        let state = turn::holder_state(build, (&ctx.identity, ctx.began), ctx.running.attempt(&uid), ctx.alone);
        let status = now.status.clone().unwrap_or_default();
        let (cancel_at, retry_at) = (super::asked_at(now, CANCEL_AT), super::asked_at(now, RETRY_AT));
        let recipe = turn::wanted(build, &order.recipe);
        let seen = Seen {
            recipe: &recipe,
            suspend: now.spec.suspend,
            cancel_at: (&cancel_at, &status.last_handled_cancel_at),
            retry_at: (&retry_at, &status.last_handled_retry_at),
            holder: state.among(&living, build),
            now: Timestamp::now(),
        };
        let events = turn::events(build, &seen);
        let since = status.unused_since.as_ref().map_or_else(Timestamp::now, |at| at.0);
        let facts = NodeImageFacts {
            unused_since: Some(is_unused(now).then_some(since)),
            cancel_at: Some(cancel_at),
            retry_at: Some(retry_at),
            template_namespace: now.spec.template_ref.namespace.clone(),
            trouble: (order.grant == Grant::Refused).then(|| not_allowed(&template_place(now))),
            ..NodeImageFacts::default()
        };
        Some((events, facts))
    };
    ctx.books.change(image, decide).await.doing(|| format!("writing the status of {}", named(image)))
}

/// Whether no release has it any more. One that somebody made by hand is theirs.
fn is_unused(image: &Image) -> bool {
    let is_made_by_us = image.labels().get(MANAGED_BY_LABEL).is_some_and(|value| value == MANAGED_BY);
    is_made_by_us && !image.owner_references().iter().any(|owner| owner.kind == "ProviderClusterStackRelease")
}

/// Does at once what has to be done before anything else.
async fn obey(change: &Change, ctx: &NodeImages) {
    for command in &change.commands {
        match command {
            Command::Stop { .. } => ctx.end(&change.image).await,
            Command::Dequeue => ctx.leave(&ObjectRef::from_obj(&change.image)),
            Command::Enqueue | Command::Run { .. } | Command::Tell(_) => {}
        }
    }
}

/// Removes what a build left half-made at the destination that is given up because its holders were lost: nobody of them
/// can do it. What can't be removed now goes with the object.
async fn abandon(change: &Change, order: &Order, ctx: &NodeImages) {
    if !change.commands.contains(&Command::Tell(Note::GaveUp)) {
        return;
    }
    let mut order = order.clone();
    order.claim.attempt = change.build.attempt;
    let abandoned = match ctx.workshop.steps(&order).await {
        Ok(steps) => steps.abandon(&ctx.cancel).await,
        Err(error) => Err(error),
    };
    if let Err(error) = abandoned {
        tracing::warn!(image = named(&change.image), %error, "what a build left at its destination can't be removed");
    }
}

/// Removes the work directory of a build that is at its end, and what it left half-made.
async fn tidy(change: Change, order: &Order, ctx: &NodeImages) -> Result<Option<Change>, Error> {
    let Change { image, build, commands } = change;
    let done = image.status.as_ref().map_or(0, |status| status.discarded_attempt);
    // A Job goes on until it is deleted.
    let is_held = build.phase == Phase::Suspended && order.template.build.executor == ExecutorKind::Job;
    let is_at_end = matches!(build.phase, Phase::Succeeded | Phase::Cancelled) || is_held;
    if !is_at_end || done >= build.attempt || ctx.running.attempt(&image.uid().unwrap_or_default()).is_some() {
        return Ok(Some(Change { image, build, commands }));
    }
    let mut order = order.clone();
    order.claim.attempt = build.attempt;
    let image = note_unread(remember(image, &build, ctx).await?, &order, ctx).await?;
    if let Err(error) = ctx.discard(&order).await {
        tracing::warn!(image = named(&image), %error, "what a build left can't be removed; it is tried again");
        return Err(Error::Tidying { object: named(&image), error });
    }
    let location = locate(&image, &build, &order, ctx).await;
    let decide = |_: &Image, now: &Build| {
        let location = location.clone();
        let facts = NodeImageFacts { discarded: Some(build.attempt), location, ..NodeImageFacts::default() };
        (now.attempt == build.attempt && now.phase == build.phase).then_some((Vec::new(), facts))
    };
    ctx.books.change(&image, decide).await.doing(|| format!("writing the status of {}", named(&image)))
}

/// Notes beside the status which image is at the destination: a status may be lost, and then nobody else knows.
async fn remember(image: Image, build: &Build, ctx: &NodeImages) -> Result<Image, Error> {
    let Some(last) = build.finished.last().filter(|_| build.phase == Phase::Succeeded) else { return Ok(image) };
    note(image, &adoption::written(&last.digest, &build.recipe.inputs), ctx).await
}

/// Notes what a Job made whose result nobody had read: that goes with the Job, and the image would stay for ever.
async fn note_unread(image: Image, order: &Order, ctx: &NodeImages) -> Result<Image, Error> {
    let status = image.status.clone().unwrap_or_default();
    let is_of_job = order.template.build.executor == ExecutorKind::Job && status.attempt > status.discarded_attempt;
    if !is_of_job || !status.digest.is_empty() {
        return Ok(image);
    }
    let Ok(steps) = ctx.workshop.steps(order).await else { return Ok(image) };
    match steps.made().await {
        Ok(None) => Ok(image),
        Ok(Some(digest)) => note(image, &adoption::written(&digest, &order.recipe.inputs), ctx).await,
        Err(error) => Err(Error::Tidying { object: named(&image), error }),
    }
}

async fn note(image: Image, digest: &str, ctx: &NodeImages) -> Result<Image, Error> {
    if image.annotations().get(IMAGE_DIGEST).is_some_and(|noted| noted == digest) {
        return Ok(image);
    }
    let patch = json!({"metadata": {"uid": image.uid(), "annotations": {IMAGE_DIGEST: digest}}});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
    let noted = ctx.api(&image).patch(&image.name_any(), &params, &Patch::Merge(patch)).await;
    noted.doing(|| format!("noting the digest of the image of {}", named(&image)))
}

/// Where the image is, if its build did not say it: it was published, and then its process ended.
async fn locate(image: &Image, build: &Build, order: &Order, ctx: &NodeImages) -> Option<String> {
    let is_told = image.status.as_ref().is_some_and(|status| !status.location.is_empty());
    if is_told || build.phase != Phase::Succeeded {
        return None;
    }
    let destination = ctx.workshop.destination(order).await.ok()?;
    let found = destination.find(&order.pipeline.image, &ctx.cancel).await.ok()??;
    Some(found.location)
}

/// Deletes an object that nobody has had for the time of grace; how long it still has.
async fn leave_unused(
    image: &Image,
    order: &Order,
    api: &Api<Image>,
    ctx: &NodeImages,
) -> Result<Option<Duration>, Error> {
    let Some(since) = image.status.as_ref().and_then(|status| status.unused_since.as_ref()) else { return Ok(None) };
    let grace = match garbage::grace(order.template.image_grace_period.as_deref()) {
        Ok(grace) => grace,
        Err(why) => {
            let note = format!("no release has image {} any more, and it stays: {why}", image.spec.image.name);
            ctx.books.events.say(image, Reason::ImageUnused, &note).await;
            return Ok(None);
        }
    };
    let now = Timestamp::now();
    let since_made = image.metadata.creation_timestamp.as_ref().map_or(SETTLED, |at| elapsed(at.0, now));
    let left = grace.saturating_sub(elapsed(since.0, now)).max(SETTLED.saturating_sub(since_made));
    if left > Duration::ZERO {
        return Ok(Some(left));
    }
    let preconditions = Preconditions { uid: image.uid(), resource_version: image.resource_version() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&image.name_any(), &params).await {
        Ok(_) => Ok(None),
        // Gone, or somebody has it again: its own event tells.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Some(SETTLED)),
        Err(error) => Err(error).doing(|| format!("deleting {}", named(image))),
    }
}

fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// Starts a build whose turn it is; when to look again without an event.
async fn start(change: Change, mut order: Order, ctx: &Arc<NodeImages>) -> Result<Option<Duration>, Error> {
    let Change { image, build, .. } = change;
    let (uid, me) = (image.uid().unwrap_or_default(), ObjectRef::from_obj(&image));
    let now = Timestamp::now();
    match turn::begin(&build, ctx.running.attempt(&uid).is_some(), now) {
        Begin::AtItsEnd => return Ok(None),
        Begin::AfterSilence => return Ok(Duration::try_from(SILENCE).ok()),
        Begin::At(at) => {
            ctx.leave(&me);
            return Ok(Some(elapsed(now, at) + Duration::from_millis(10)));
        }
        // The grant's return is told.
        Begin::Now if ctx.is_ending() => return Ok(None),
        Begin::Now if order.grant != Grant::Given => {
            ctx.leave(&me);
            return Ok(Some(spread(WAITING)));
        }
        Begin::Now => {}
        Begin::Never => {
            ctx.leave(&me);
            return Ok(None);
        }
    }
    if let Some(wait) = ctx.head_start(&image, &build) {
        return Ok(Some(wait));
    }
    if !ctx.queue_for(&me, &order, build.further()) {
        return Ok(Some(spread(WAITING)));
    }
    let (identity, log) = (ctx.identity.clone(), log_of(&image, &order, ctx));
    let decide = |_: &Image, build: &Build| {
        let claimed = Event::Claimed { identity: identity.clone(), now: Timestamp::now() };
        // Who looks for its log knows at once where it will be.
        let facts = NodeImageFacts { log: log.clone(), ..NodeImageFacts::default() };
        build.is_due(Timestamp::now()).then(|| (vec![claimed], facts))
    };
    let claimed = ctx.books.change(&image, decide).await.doing(|| format!("claiming {}", named(&image)));
    let claimed = claimed.inspect_err(|_| ctx.leave(&me))?;
    match claimed {
        Some(Change { image, build, commands }) if commands.iter().any(|c| matches!(c, Command::Run { .. })) => {
            order.claim.attempt = build.attempt;
            drive(image, build, order, ctx);
            Ok(None)
        }
        _ => {
            ctx.leave(&me);
            Ok(Some(Duration::ZERO))
        }
    }
}

/// Where the log of a build is read: in this pod, or in the pods of its Jobs, which are found by the object's UID.
fn log_of(image: &Image, order: &Order, ctx: &NodeImages) -> Option<LogRecord> {
    match order.template.build.executor {
        ExecutorKind::Task => {
            let namespace = image.namespace().unwrap_or_default();
            ctx.logs.record(&namespace, &image.name_any(), &order.recipe.inputs)
        }
        ExecutorKind::Job => {
            let (namespace, path) = (order.template_namespace.clone(), job::CONTAINER.to_owned());
            Some(LogRecord { namespace, path, ..LogRecord::default() })
        }
    }
}

/// Sets a claimed build to work.
fn drive(image: Image, build: Build, order: Order, ctx: &Arc<NodeImages>) {
    let (uid, me, attempt) = (image.uid().unwrap_or_default(), ObjectRef::from_obj(&image), build.attempt);
    let work = |stop: Stop| {
        let log = log_of(&image, &order, ctx);
        let journal = AttemptJournal::new(ctx.books.clone(), image, attempt, log, stop.process.clone());
        let (workshop, tasks) = (Arc::clone(&ctx.workshop), ctx.tasks.clone());
        let attempt = Attempt { order, journal: Arc::new(journal), stop, tasks };
        fence::carried(async move { attempt.drive(build, workshop.as_ref()).await })
    };
    let then = {
        let ctx = Arc::clone(ctx);
        move || {
            ctx.leave(&me);
            ctx.wake(me);
        }
    };
    // One that is at work still is looked at again when it ends.
    ctx.running.start(&uid, attempt, work, then);
}
