//! The end of an image's object: its build ends first, then the image goes where nobody has it any more.

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::Api;
use std::time::Duration;

use super::super::Action;
use super::running::{NodeImages, template_place};
use super::{elapsed, named, was_granted};
use crate::api::ProviderClusterStackRelease as Release;
use crate::api::condition::Reason;
use crate::api::image_release::{ProviderNodeImageRelease as Image, ProviderNodeImageReleaseStatus};
use crate::api::image_template::ImageDeletionPolicy;
use crate::api::{ClusterStackRelease, IMAGE_DIGEST, NODE_IMAGE_FINALIZER, is_moved};
use crate::controllers::{Doing, Error, finalizer};
use crate::core::duration::spoken;
use crate::core::image::adoption;
use crate::core::image::build::{Hope, Phase};
use crate::core::image::garbage::{self, Case, Fate, Held, Place};
use crate::core::image::record::build_of;
use crate::core::retry::{self, ErrorClass};
use crate::io::fence;
use crate::io::image::destination::Removal;
use crate::io::image::executor::Order;
use crate::io::image::task::StepError;

/// How often an image whose time of grace runs is looked at.
const GRACE_LOOK: Duration = Duration::from_mins(5);

/// How often one is looked at of which nobody knows yet whether it is wanted.
const UNKNOWN_LOOK: Duration = Duration::from_secs(20);

/// Ends an object that is being deleted.
pub(super) async fn end(image: &Image, ctx: &NodeImages) -> Result<Action, Error> {
    ctx.end(image).await;
    if !finalizer::is_on(image, NODE_IMAGE_FINALIZER) {
        ctx.memory.forget(&image.uid().unwrap_or_default());
        return Ok(Action::await_change());
    }
    if is_moved(image) {
        // The mark of this management cluster stays at the image, too: it is never removed before somebody takes that away.
        return release(image, ctx).await;
    }
    let order = match ctx.order(image).await? {
        Ok(order) => order,
        // It never got to anything.
        Err(_) if image.status.as_ref().is_none_or(|status| status.attempt == 0) => return release(image, ctx).await,
        Err(trouble) => {
            let note = format!("{} can't be removed: {}", left_there(image), trouble.message);
            // Where its namespace goes no event can be written.
            tracing::warn!(object = super::named(image), "{note}");
            ctx.books.events.say(image, Reason::ImageRetained, &note).await;
            return release(image, ctx).await;
        }
    };
    let image = &super::note_unread(image.clone(), &order, ctx).await?;
    if let Some(later) = discard(image, &order, ctx).await {
        return Ok(Action::requeue(later));
    }
    let held = held(image, &order);
    let unlisted = ctx.unlisted(image).await?;
    let since = image.status.as_ref().and_then(|status| status.unused_since.as_ref().map(|at| at.0));
    let case = Case {
        held: &held,
        policy: order.template.image_deletion_policy,
        grace: garbage::grace(order.template.image_grace_period.as_deref()),
        since: since.or(image.metadata.deletion_timestamp.as_ref().map(|at| at.0)).unwrap_or_default(),
        wanted: ctx.is_still_wanted(image).await?,
        unlisted: unlisted.as_deref(),
        now: Timestamp::now(),
    };
    let others = ctx.others(image, &held.place);
    match garbage::fate(&case, &others) {
        Fate::Nothing => {}
        Fate::Stays(why) => {
            let note = format!("image {} stays at its destination: {why}", held.image);
            ctx.books.events.say(image, Reason::ImageRetained, &note).await;
        }
        Fate::Later(until) => {
            let note = format!(
                "no release has image {} any more; it is removed in {} after {}",
                held.image,
                case.grace.map(spoken).unwrap_or_default(),
                case.since.strftime("%FT%TZ"),
            );
            ctx.books.events.say(image, Reason::ImageUnused, &note).await;
            return Ok(Action::requeue(elapsed(case.now, until).min(GRACE_LOOK) + Duration::from_millis(10)));
        }
        Fate::Unknown(why) => {
            let note = format!("image {} stays at its destination for now: {why}", held.image);
            ctx.books.events.say(image, Reason::ImageUnused, &note).await;
            return Ok(Action::requeue(UNKNOWN_LOOK));
        }
        Fate::Removed => {
            if let Err(error) = remove(image, &held, &order, ctx).await {
                let note = format!(
                    "image {} can't be removed: {}; it is tried again. Set imageDeletionPolicy: Retain in the template to leave it",
                    held.image, error.message
                );
                ctx.books.events.say(image, Reason::ImageRemovalFailed, &note).await;
                return Ok(Action::requeue(pause(image, &error, ctx)));
            }
        }
    }
    release(image, ctx).await
}

/// What stays, for who removes it by hand.
fn left_there(image: &Image) -> String {
    let status = image.status.clone().unwrap_or_default();
    let name = &image.spec.image.name;
    if status.digest.is_empty() {
        return format!("what a build of image {name} left half-made at its destination, if anything,");
    }
    format!("image {name} ({}) at {}", status.digest, status.location)
}

/// Removes what the build left half-made; when to try again where that failed.
async fn discard(image: &Image, order: &Order, ctx: &NodeImages) -> Option<Duration> {
    let status = image.status.as_ref()?;
    if status.discarded_attempt >= status.attempt {
        return None;
    }
    let error = ctx.discard(order).await.err()?;
    let note = format!("what the build left half-made can't be removed: {error}");
    ctx.books.events.say(image, Reason::ImageRemovalFailed, &note).await;
    // What can't ever be removed does not hold the object, nor what is to be left.
    let is_left = error.hope == Hope::None || order.template.image_deletion_policy == ImageDeletionPolicy::Retain;
    (!is_left).then(|| pause(image, &error, ctx))
}

fn pause(image: &Image, error: &StepError, ctx: &NodeImages) -> Duration {
    let class = if error.hope == Hope::None { ErrorClass::Waiting } else { ErrorClass::Transient };
    retry::delay(class, ctx.memory.failed(&image.uid().unwrap_or_default()), rand::random())
}

/// Takes the image from its destination, as far as it is ours alone.
async fn remove(image: &Image, held: &Held, order: &Order, ctx: &NodeImages) -> Result<(), StepError> {
    let destination = ctx.workshop.destination(order).await?;
    let dry_run = order.template.deletion_dry_run;
    let removed = destination.remove(&held.image, &held.digest, &ctx.cluster, dry_run, &ctx.cancel).await;
    let removed = removed.map_err(|error| StepError {
        hope: if error.is_transient() { Hope::Retry } else { Hope::None },
        message: error.to_string(),
    })?;
    let place = destination.name();
    let (reason, note) = match removed {
        Removal::Removed if dry_run => (
            Reason::ImageRetained,
            format!("image {} would be removed from {place}, but deletionDryRun is set", held.image),
        ),
        Removal::Removed => (Reason::ImageRemoved, format!("image {} was removed from {place}", held.image)),
        Removal::Absent => (Reason::ImageRemoved, format!("image {} is not at {place} any more", held.image)),
        Removal::UsedBy(others) => (
            Reason::ImageRetained,
            format!("image {} stays at {place}: the management clusters {} use it", held.image, others.join(", ")),
        ),
        Removal::Protected => {
            (Reason::ImageRetained, format!("image {} stays at {place}: it is protected", held.image))
        }
        Removal::Foreign => {
            (Reason::ImageRetained, format!("image {} stays at {place}: somebody else brought it", held.image))
        }
    };
    if reason == Reason::ImageRemoved {
        ctx.books.metrics.count("removed");
    }
    tracing::info!(image = named(image), note, "node image");
    ctx.books.events.say(image, reason, &note).await;
    Ok(())
}

/// Lets the object go.
async fn release(image: &Image, ctx: &NodeImages) -> Result<Action, Error> {
    ctx.memory.forget(&image.uid().unwrap_or_default());
    ctx.forget_log(image);
    finalizer::remove(fence::guarded(&ctx.books.client), image, NODE_IMAGE_FINALIZER).await?;
    // Who waits for the name may have it now.
    Ok(Action::await_change())
}

/// What an object holds at its destination: the image that it published, or may have without having written it down.
fn held(image: &Image, order: &Order) -> Held {
    let status = image.status.clone().unwrap_or_default();
    let noted = image.annotations().get(IMAGE_DIGEST);
    let noted = noted.and_then(|annotation| adoption::known(annotation, &order.recipe.inputs));
    Held {
        object: format!("{}/{}", image.namespace().unwrap_or_default(), image.name_any()),
        place: garbage::place(&order.template.destination),
        image: image.spec.image.name.clone(),
        // What a Job made whose result nobody had read is noted beside the status.
        digest: Some(digest_of(&status)).filter(|digest| !digest.is_empty()).or(noted).unwrap_or_default(),
        location: status.location,
    }
}

/// Digest of the image that is at the destination, or may be there soon; empty where that is not known.
fn digest_of(status: &ProviderNodeImageReleaseStatus) -> String {
    let build = build_of(status);
    let may_be_there = build.phase == Phase::Succeeded || build.finished.len() + 1 >= build.recipe.steps.len();
    let digest = build.finished.last().filter(|_| may_be_there).map(|output| output.digest.clone());
    digest.unwrap_or_else(|| status.digest.clone())
}

/// Whether an object may have an image at the destination of its template.
fn may_hold(image: &Image) -> bool {
    image.spec.template_ref.namespace.is_none() || was_granted(image)
}

/// Whether a release has the image on its list, as last seen.
fn wants(release: &Release, image: &Image) -> bool {
    let (name, mut images) = (image.name_any(), release.status.iter().flat_map(|status| &status.node_images));
    release.namespace() == image.namespace()
        && release.metadata.deletion_timestamp.is_none()
        && images.any(|image| image.object == name)
}

impl NodeImages {
    /// Whether a release of its namespace has the image on its list.
    pub(in crate::controllers) fn is_wanted(&self, image: &Image) -> bool {
        self.releases.state().iter().any(|release| wants(release, image))
    }

    /// The same, of releases that are there: what a cache has may have gone with the image a moment ago.
    async fn is_still_wanted(&self, image: &Image) -> Result<bool, Error> {
        let api: Api<Release> = Api::namespaced(self.books.client.clone(), &image.namespace().unwrap_or_default());
        for release in self.releases.state().iter().filter(|release| wants(release, image)) {
            let now = api.get_opt(&release.name_any()).await;
            let now = now.doing(|| format!("reading ProviderClusterStackRelease {}", release.name_any()))?;
            if now.is_some_and(|now| now.uid() == release.uid() && now.metadata.deletion_timestamp.is_none()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The ClusterStackRelease that the image was made for, where it is there and its list of images is not: somebody deleted its
    /// ProviderClusterStackRelease, which is made anew.
    async fn unlisted(&self, image: &Image) -> Result<Option<String>, Error> {
        let (client, namespace) = (&self.books.client, image.namespace().unwrap_or_default());
        let kind = "ProviderClusterStackRelease";
        for owner in image.owner_references().iter().filter(|owner| owner.kind == kind) {
            let releases: Api<ClusterStackRelease> = Api::namespaced(client.clone(), &namespace);
            let release = releases.get_opt(&owner.name).await;
            let release = release.doing(|| format!("reading ClusterStackRelease {}", owner.name))?;
            let is_ours = |release: &ClusterStackRelease| {
                let of = release.spec.provider_ref.as_ref().and_then(|reference| reference.kind.as_deref());
                release.metadata.deletion_timestamp.is_none() && of == Some(kind)
            };
            if !release.as_ref().is_some_and(is_ours) {
                continue;
            }
            let lists: Api<Release> = Api::namespaced(client.clone(), &namespace);
            let list = lists.get_opt(&owner.name).await;
            let list = list.doing(|| format!("reading ProviderClusterStackRelease {}", owner.name))?;
            let list = list.filter(|list| list.metadata.deletion_timestamp.is_none());
            if list.and_then(|list| list.status).is_none_or(|status| status.artifact.is_empty()) {
                return Ok(Some(owner.name.clone()));
            }
        }
        Ok(None)
    }

    /// Removes the log of its builds, if no other object of its namespace has the same.
    fn forget_log(&self, image: &Image) {
        let inputs = |image: &Image| image.status.as_ref().map(|status| status.inputs.clone()).unwrap_or_default();
        let own = inputs(image);
        let is_shared = |other: &std::sync::Arc<Image>| {
            other.uid() != image.uid() && other.namespace() == image.namespace() && inputs(other) == own
        };
        if !own.is_empty() && !self.images.state().iter().any(is_shared) {
            self.logs.forget(&image.namespace().unwrap_or_default(), &own);
        }
    }

    /// What other objects hold, of all namespaces. One that goes, and that nobody wants again, holds nothing.
    fn others(&self, of: &Image, place: &Place) -> Vec<Held> {
        let images = self.images.state();
        let stays =
            |image: &&std::sync::Arc<Image>| image.metadata.deletion_timestamp.is_none() || self.is_wanted(image);
        let held = |image: &std::sync::Arc<Image>| {
            let template = template_place(image);
            let status = image.status.clone().unwrap_or_default();
            let digest = digest_of(&status);
            let place = match self.templates.get(&template) {
                // One that is not allowed to use the template holds nothing of it.
                _ if !may_hold(image) => return None,
                Some(template) => garbage::place(&template.spec.destination),
                // Templates of other namespaces may not be watched.
                None if template == template_place(of) => place.clone(),
                // It built nothing, and without its template it never will.
                None if digest.is_empty() => return None,
                // Nobody knows any more where it brought its image: it may have been here.
                None => place.clone(),
            };
            Some(Held {
                object: format!("{}/{}", image.namespace().unwrap_or_default(), image.name_any()),
                place,
                image: image.spec.image.name.clone(),
                digest,
                location: status.location,
            })
        };
        images.iter().filter(stays).filter_map(held).collect()
    }
}
