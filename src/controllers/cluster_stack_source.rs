//! `ClusterStackSource`: polls a shared source and shows what of it is on offer. Those who use it read what it found.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;

use super::{Context, Doing, Error, pokes, reconcile_at, seats, spread};
use crate::api::ClusterStackSource;
use crate::api::cluster_stack::LastPoll;
use crate::api::condition::{self, ConditionType, Reason};
use crate::core::retry::{self, ErrorClass};
use crate::core::source::{self, offer};
use crate::core::status::{self, SourceFacts, StepState, Trouble};
use crate::io::report;
use crate::io::source::flights::Waiter;

/// One pass over a ClusterStackSource.
///
/// # Errors
/// What the API server refused; what a user can mend is said in conditions.
pub async fn reconcile(source: Arc<ClusterStackSource>, ctx: Arc<Context>) -> Result<Action, Error> {
    if !ctx.is_ours(&*source) {
        return Ok(Action::await_change());
    }
    if source.metadata.deletion_timestamp.is_some() {
        ctx.memory.forget(&source.uid().unwrap_or_default());
        return Ok(Action::await_change());
    }
    let mut facts = SourceFacts {
        generation: source.metadata.generation,
        url: condition::cut(&source::place(&source.spec.source), condition::MAX_MESSAGE),
        suspended: source.spec.suspend,
        reconcile_at: reconcile_at(&*source),
        ..SourceFacts::default()
    };
    let next = if source.spec.suspend {
        None
    } else {
        let pause = poll(&source, &ctx, &mut facts).await;
        facts.next_poll = Timestamp::now().checked_add(pause).ok();
        Some(pause)
    };
    write_status(&source, &ctx, &facts).await?;
    Ok(next.map_or_else(Action::await_change, Action::requeue))
}

/// Says that nobody works on it.
pub(super) async fn unserved(source: &ClusterStackSource, ctx: &Context) -> Result<Action, Error> {
    let status = source.status.clone().unwrap_or_default();
    let facts = SourceFacts {
        generation: source.metadata.generation,
        url: status.url,
        suspended: source.spec.suspend,
        source: StepState::Failed(seats::unserved(source)),
        reconcile_at: status.last_handled_reconcile_at,
        ..SourceFacts::default()
    };
    write_status(source, ctx, &facts).await?;
    Ok(Action::await_change())
}

/// Polls, and says when to do it again.
async fn poll(source: &ClusterStackSource, ctx: &Context, facts: &mut SourceFacts) -> Duration {
    let failed = |trouble: Trouble| (StepState::Failed(trouble), None);
    let namespace = source.namespace().unwrap_or_default();
    let every = ctx.interval(source.spec.interval.as_deref());
    let poked = ctx.pokes.take(&pokes::of(source));
    let asked = source.status.as_ref().map_or("", |status| &status.last_handled_reconcile_at) != facts.reconcile_at;
    let max_age = if asked || poked { Duration::ZERO } else { every.mul_f64(0.7) };
    let rules = source.spec.offer.as_ref().map(offer::Rules::of).transpose();
    let spec = Some(&source.spec.source);
    let (client, waiter) = (ctx.clients.own(), Waiter::Source(ObjectRef::from_obj(source)));
    (facts.source, facts.poll) = match rules {
        Err(error) => failed(Trouble::new(ErrorClass::Invalid, Reason::SpecInvalid, error.to_string())),
        Ok(rules) => match ctx.releases.listing(&client, &namespace, spec, max_age, &waiter, &ctx.cancel).await {
            Err(trouble) => failed(trouble),
            Ok((listing, quota)) => {
                facts.quota = quota;
                let tags = listing.tags.iter().map(|tag| (tag.name.as_str(), tag.revision.as_str()));
                let catalogue = rules.unwrap_or_default().catalogue(tags);
                let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
                let poll = LastPoll {
                    time: None,
                    revision: listing.revision.clone(),
                    found: count(catalogue.found),
                    passed_over: count(catalogue.passed_over),
                };
                (judged(catalogue.found, listing.tags.len()), Some((poll, catalogue.releases)))
            }
        },
    };
    let uid = source.uid().unwrap_or_default();
    match facts.source.trouble().map(|trouble| trouble.class) {
        Some(ErrorClass::Transient) => ctx.after(ErrorClass::Transient, &uid).min(every),
        Some(ErrorClass::Waiting) => retry::WAITING.min(every),
        _ => {
            ctx.memory.succeeded(&uid);
            spread(every)
        }
    }
}

/// What a catalogue says about its source.
fn judged(offered: usize, tags: usize) -> StepState {
    match offered {
        0 => {
            let message = format!("none of the {tags} tags of the source is a release that is on offer");
            StepState::Remarked(Reason::NoReleaseFound, message)
        }
        1 => StepState::Done("1 release on offer".to_owned()),
        many => StepState::Done(format!("{many} releases on offer")),
    }
}

/// Writes the status if it says something new, and an event where readiness changed.
async fn write_status(source: &ClusterStackSource, ctx: &Context, facts: &SourceFacts) -> Result<(), Error> {
    if ctx.cancel.is_cancelled() {
        // What a pass found that was ended from outside says nothing.
        return Ok(());
    }
    let previous = source.status.clone().unwrap_or_default();
    let status = status::source_status(&previous, facts, Timestamp::now());
    let written = report::status(&ctx.clients.own(), source, source.status.as_ref(), &status)
        .await
        .doing(|| format!("writing the status of ClusterStackSource {}", source.name_any()))?;
    let ready =
        |conditions| condition::find(conditions, ConditionType::Ready).map(|c| (c.status.clone(), c.reason.clone()));
    let now = condition::find(&status.conditions, ConditionType::Ready);
    if let (true, Some(now)) = (written && ready(&previous.conditions) != ready(&status.conditions), now) {
        tracing::info!(namespace = source.namespace().unwrap_or_default(), source = %source.name_any(), ready = now.status, reason = now.reason, message = now.message, "ClusterStackSource");
        let reason = Reason::named(&now.reason);
        if let Some(reason) = reason.filter(|reason| *reason != Reason::Progressing) {
            ctx.events.say(source, reason, &now.message).await;
        }
    }
    Ok(())
}
