//! `ClusterStackSource`: polls a shared source and shows what of it is on offer. Those who use it read what it found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::asked::Asked;
use super::release_owner::is_owned;
use super::subscription::SOON;
use super::{Action, Context, Doing, Error, origin, reconcile_at, seats, spread};
use crate::api::cluster_stack::LastPoll;
use crate::api::condition::{self, ConditionType, Reason};
use crate::api::{ClusterStack, ClusterStackRelease, ClusterStackSource};
use crate::core::retry::{self, ErrorClass};
use crate::core::source;
use crate::core::source::offer::{self, Catalogue};
use crate::core::status::{self, SourceFacts, StepState, Trouble};
use crate::io::report;
use crate::io::source::flights::Waiter;
use crate::io::source::poller::Polled;

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
    let handled = source.status.as_ref().map_or("", |status| &status.last_handled_reconcile_at);
    let asked = Asked::of(source, handled, ctx);
    let age = asked.age(every.mul_f64(0.7), Duration::ZERO);
    let mut again = false;
    let selector = source.spec.allowed_namespaces.as_ref().and_then(|allowed| allowed.selector.as_ref());
    let readable = selector.map_or(Ok(true), |selector| offer::selects(selector, &BTreeMap::new()));
    let rules = readable.and_then(|_| source.spec.offer.as_ref().map(offer::Rules::of).transpose());
    let spec = Some(&source.spec.source);
    let (client, waiter) = (ctx.clients.own(), Waiter::Source(ObjectRef::from_obj(source)));
    (facts.source, facts.poll) = match rules {
        Err(error) => failed(Trouble::new(ErrorClass::Invalid, Reason::SpecInvalid, error.to_string())),
        Ok(rules) => {
            let listed = ctx.releases.listing(&client, &namespace, spec, age, &waiter, &ctx.cancel).await;
            if listed.is_late {
                // Who asked waits for what the source says now.
                handled.clone_into(&mut facts.reconcile_at);
            } else {
                again = asked.answered(&mut facts.reconcile_at);
            }
            match listed.found {
                Err(trouble) => failed(trouble),
                Ok((Polled { listing, .. }, quota)) => {
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
                    (judged(&catalogue, &unusable(source, ctx), listing.tags.len()), Some((poll, catalogue.releases)))
                }
            }
        }
    };
    let uid = source.uid().unwrap_or_default();
    let next = match facts.source.trouble().map(|trouble| trouble.class) {
        Some(ErrorClass::Transient) => ctx.after(ErrorClass::Transient, &uid).min(every),
        Some(ErrorClass::Waiting) => retry::WAITING.min(every),
        _ => {
            ctx.memory.succeeded(&uid);
            spread(every)
        }
    };
    if again { next.min(SOON) } else { next }
}

/// What a catalogue says about its source; `unusable` are releases of it that were taken and can't be used.
fn judged(catalogue: &Catalogue, unusable: &BTreeSet<String>, tags: usize) -> StepState {
    if catalogue.found == 0 {
        let message = format!("none of the {tags} tags of the source is a release that is on offer");
        return StepState::Remarked(Reason::NoReleaseFound, message);
    }
    let listed = |name: &&String| catalogue.releases.iter().any(|release| release.name == **name);
    let unusable = unusable.iter().filter(listed).cloned().collect();
    StepState::Done(offer::summary(catalogue.found, &unusable, catalogue.passed_over))
}

/// The releases that ClusterStacks took from the source, and whose files can't be used.
fn unusable(source: &ClusterStackSource, ctx: &Context) -> BTreeSet<String> {
    let own = ObjectRef::from_obj(source);
    let is_of_source = |stack: &ClusterStack| {
        let reference = stack.spec.source_ref.as_ref();
        let place = reference.map(|reference| origin::place(reference, &stack.namespace().unwrap_or_default()));
        place.is_some_and(|place| (&place.name, &place.namespace) == (&own.name, &own.namespace))
    };
    let stacks = ctx.stacks.state();
    let stacks: Vec<_> = stacks.iter().filter(|stack| is_of_source(stack)).collect();
    let releases = ctx.stack_releases.state();
    let broken = releases.iter().filter(|release| is_unusable(release));
    let owned = |release: &ClusterStackRelease| stacks.iter().any(|stack| is_owned(release, stack));
    broken.filter(|release| owned(release)).map(|release| release.name_any()).collect()
}

/// Whether nothing but another release under its name helps.
fn is_unusable(release: &ClusterStackRelease) -> bool {
    let conditions = release.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let downloaded = condition::find(conditions, ConditionType::ClusterStackReleaseDownloaded);
    downloaded.is_some_and(|downloaded| !downloaded.is_true() && downloaded.reason == Reason::ReleaseInvalid.as_str())
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
    let turned = condition::readiness_turned(&previous.conditions, &status.conditions);
    if let Some(now) = turned.filter(|_| written) {
        tracing::info!(namespace = source.namespace().unwrap_or_default(), source = %source.name_any(), ready = now.status, reason = now.reason, says = now.message, "ClusterStackSource");
        let reason = Reason::named(&now.reason);
        if let Some(reason) = reason.filter(|reason| *reason != Reason::Progressing) {
            ctx.events.say(source, reason, &now.message).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::cluster_stack_source::OfferedRelease;

    fn release(name: &str, status: &str, reason: &str) -> ClusterStackRelease {
        let condition = json!({"type": "ClusterStackReleaseDownloaded", "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {}, "status": {"conditions": [condition]}}))
            .unwrap()
    }

    #[test]
    fn what_is_known_to_be_unusable_is_told_with_what_is_on_offer() {
        let releases = [
            ("docker-x-1-34-v1", "True", "Succeeded"),
            ("docker-x-1-34-v2", "False", "ReleaseInvalid"),
            ("docker-x-1-34-v3", "False", "SourceUnreachable"),
            // Its tag is gone, or not on offer.
            ("docker-x-1-34-v9", "False", "ReleaseInvalid"),
        ];
        let unusable = releases.iter().map(|(name, status, reason)| release(name, status, reason));
        let unusable: BTreeSet<_> = unusable.filter(is_unusable).map(|release| release.name_any()).collect();
        assert_eq!(unusable.iter().collect::<Vec<_>>(), ["docker-x-1-34-v2", "docker-x-1-34-v9"]);
        let listed = |name: &&str| OfferedRelease { name: (*name).to_owned(), revision: String::new() };
        let names = ["docker-x-1-34-v1", "docker-x-1-34-v2", "docker-x-1-34-v3"];
        let catalogue = Catalogue { found: 3, releases: names.iter().map(listed).collect(), passed_over: 2 };
        let said = "3 releases on offer, 1 of which can't be used: docker-x-1-34-v2; 2 tags that can't be taken are passed over";
        assert_eq!(judged(&catalogue, &unusable, 5), StepState::Done(said.to_owned()));
        assert!(matches!(judged(&Catalogue::default(), &unusable, 5), StepState::Remarked(Reason::NoReleaseFound, _)));
    }
}
