//! Looks whether an image that was built is still at its destination.

use std::time::Duration;

use jiff::Timestamp;

use super::named;
use super::running::NodeImages;
use crate::api::condition::Reason;
use crate::api::image_release::ProviderNodeImageRelease as Image;
use crate::controllers::{Doing, Error, spread};
use crate::core::duration::go_duration;
use crate::core::image::build::{Build, Event, Phase};
use crate::core::image::presence::{AGAIN, INTERVAL, Presence, SHORTEST, left, presence};
use crate::core::status::NodeImageFacts;
use crate::io::image::destination::DestinationError;
use crate::io::image::executor::Order;
use crate::io::image::journal::Change;
use crate::io::image::task::StepError;

/// What came of a look.
enum Look {
    Presence(Presence),
    /// The destination did not answer, or refuses us: what is there is not known.
    Blind(String),
}

/// Looks, where that is due; the build as it is then, and when to look next. One whose image is gone is queued again.
pub(super) async fn look(change: Change, order: &Order, ctx: &NodeImages) -> Result<Option<(Change, Duration)>, Error> {
    let Change { image, build, commands } = change;
    let every = order.template.image_check_interval.as_deref().and_then(go_duration).unwrap_or(INTERVAL);
    let every = every.max(SHORTEST);
    let status = image.status.clone().unwrap_or_default();
    let looked = status.looked_at.as_ref().map(|at| at.0);
    let is_settled = build.phase == Phase::Succeeded && !image.spec.suspend;
    let due = looked.map_or(Duration::ZERO, |looked| left(looked, every, Timestamp::now()));
    if !is_settled || due > Duration::ZERO {
        return Ok(Some((Change { image, build, commands }, if is_settled { due } else { every })));
    }
    let found = match looked {
        // It was brought a moment ago.
        None => Look::Presence(Presence::Kept),
        Some(_) => find(&status.digest, order, ctx).await,
    };
    let place = order.template_name.as_str();
    match &found {
        Look::Presence(Presence::Kept) => {}
        Look::Presence(Presence::Unmarked) => {
            if let Err(error) = mark(&status.digest, order, ctx).await {
                tracing::warn!(image = named(&image), %error, "an image can't be marked as used; it is tried again");
                return Ok(Some((Change { image, build, commands }, spread(AGAIN))));
            }
            let note = format!("image {} did not say any more that we use it: it does again", order.pipeline.image);
            ctx.books.events.say(&image, Reason::ImageMarked, &note).await;
        }
        Look::Presence(Presence::Lost(why)) => {
            let note = format!(
                "image {} is lost at the destination of template {place}: {why}; it is built again",
                order.pipeline.image
            );
            tracing::warn!(image = named(&image), note, "node image");
            ctx.books.events.say(&image, Reason::ImageLost, &note).await;
        }
        Look::Blind(error) => {
            tracing::warn!(image = named(&image), error, "its destination can't be looked at; it is tried again");
            return Ok(Some((Change { image, build, commands }, spread(AGAIN.min(every)))));
        }
    }
    let is_lost = matches!(found, Look::Presence(Presence::Lost(_)));
    let decide = |now: &Image, build: &Build| {
        let is_same = build.phase == Phase::Succeeded && now.status.as_ref().map(|s| &s.digest) == Some(&status.digest);
        let lost = Event::OutputLost { step: build.step().saturating_sub(1) };
        let facts = NodeImageFacts { looked_at: Some((!is_lost).then(Timestamp::now)), ..NodeImageFacts::default() };
        is_same.then(|| (is_lost.then_some(lost).into_iter().collect(), facts))
    };
    let changed = ctx.books.change(&image, decide).await;
    let changed = changed.doing(|| format!("writing the status of {}", named(&image)))?;
    Ok(changed.map(|change| (change, spread(every))))
}

async fn find(digest: &str, order: &Order, ctx: &NodeImages) -> Look {
    let destination = match ctx.workshop.destination(order).await {
        Ok(destination) => destination,
        Err(error) => return Look::Blind(error.message),
    };
    match destination.find(&order.pipeline.image, &ctx.cancel).await {
        Ok(found) => {
            let found = found.as_ref().map(|found| (found.digest.as_str(), found.users.as_slice()));
            Look::Presence(presence(found, digest, &ctx.cluster))
        }
        Err(error @ DestinationError::Conflict { .. }) => Look::Presence(Presence::Lost(error.to_string())),
        Err(error) => Look::Blind(error.to_string()),
    }
}

/// Adds our id to an image that is there.
async fn mark(digest: &str, order: &Order, ctx: &NodeImages) -> Result<(), StepError> {
    let destination = ctx.workshop.destination(order).await?;
    destination.register(&order.published(digest), &order.claim, &ctx.cancel).await?;
    Ok(())
}
