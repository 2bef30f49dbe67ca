//! What a ClusterStack may take: the source is read, and what is found is held against the spec.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::asked::Asked;
use super::origin::Origin;
use super::{Context, cluster_stack, pokes};
use crate::api::cluster_stack::{AvailableRelease, LastPoll};
use crate::api::cluster_stack_release::Artifact;
use crate::api::condition::{self, Reason};
use crate::api::{APPROVED, ClusterStack};
use crate::core::duration::go_duration;
use crate::core::name::{PreRelease, ReleaseName, ReleaseVersion};
use crate::core::retry::ErrorClass;
use crate::core::selection::{self, Existing, Found, Gate, Offer, Selection, Wish, Withheld};
use crate::core::source::offer::can_be_taken;
use crate::core::status::{StackFacts, StepState, Trouble};
use crate::io::release::{Listed, Wanted, has_moved};
use crate::io::source::Listing;
use crate::io::source::flights::Waiter;
use crate::io::source::poller::{Age, Polled};
use crate::io::watch::Notice;

/// Releases that are looked into in one pass before they are taken, the newest ones.
const LOOKED_INTO: usize = 3;
/// When a source is read again for who asked while it was read.
pub(super) const SOON: Duration = Duration::from_secs(1);
/// Releases that a status lists as available.
const LISTED: usize = 200;

/// What a reading of the source gave.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// What may be taken, newest first; `None` where the source is not asked or can't be read.
    pub(super) open: Option<Vec<Found>>,
    /// When the next release will have been on offer for long enough.
    pub(super) next: Option<Timestamp>,
    /// When the source is to be read again for who asked, whatever stands in the way.
    pub(super) again: Option<Duration>,
    /// Where the trace of what is taken of it begins.
    pub(super) trace: Option<Arc<str>>,
}

/// The list of a source.
struct Read {
    polled: Result<Polled, Trouble>,
    /// How long it is until the source is to be read again for who asked.
    again: Option<Duration>,
    /// It answers somebody who asked from outside.
    is_poked: bool,
}

/// A release to make, and what it is made from, as far as that is known.
pub(super) struct ToMake {
    pub(super) name: ReleaseName,
    /// What its tag names; empty where that is not known.
    pub(super) revision: String,
    /// The digest of its files; empty where they were not fetched.
    pub(super) digest: String,
}

/// The pass so far.
pub(super) struct Subject<'a> {
    pub(super) stack: &'a ClusterStack,
    pub(super) wish: &'a Wish,
    pub(super) existing: &'a [Existing],
    pub(super) ctx: &'a Context,
}

impl Subject<'_> {
    /// Reads the source; what was found goes into `facts`.
    pub(super) async fn read(&self, origin: Result<&Origin, &Trouble>, facts: &mut StackFacts) -> Reading {
        let origin = match origin {
            Ok(origin) => origin,
            Err(trouble) => {
                facts.source = Some(StepState::Failed(trouble.clone()));
                return Reading::default();
            }
        };
        if let Some(suspended) = origin.suspended() {
            facts.source = Some(StepState::Remarked(suspended.reason, suspended.message));
            return Reading::default();
        }
        if !self.stack.spec.auto_subscribe {
            let again = self.look_at_what_is_there(origin, facts).await;
            if self.wish.versions.is_empty() && self.existing.is_empty() {
                let message = "spec.autoSubscribe is false and spec.versions names none, so nothing is subscribed: set one of them";
                facts.source = Some(StepState::Remarked(Reason::NothingSubscribed, message.to_owned()));
            }
            facts.available = Some(Vec::new());
            return Reading { again, ..Reading::default() };
        }
        let read = self.list(origin, facts).await;
        let again = read.again;
        match self.poll(origin, read, facts).await {
            Ok((offer, lags, trace)) => {
                let mut reading = Reading { again, trace, ..self.sift(origin, offer, facts).await };
                if let Some(left) = lags {
                    let soon = Timestamp::now() + left;
                    reading.next = Some(reading.next.map_or(soon, |next| next.min(soon)));
                }
                reading
            }
            Err(trouble) => {
                facts.source = Some(StepState::Failed(trouble));
                Reading { again, ..Reading::default() }
            }
        }
    }

    /// What the source has and offers, how long it is until what another replica found there may be asked for, and where
    /// the trace of the poll is.
    async fn poll(
        &self,
        origin: &Origin,
        read: Read,
        facts: &mut StackFacts,
    ) -> Result<(Offer, Option<Duration>, Option<Arc<str>>), Trouble> {
        let (stack, wish, ctx) = (self.stack, self.wish, self.ctx);
        let mut polled = read.polled?;
        let found =
            origin.shared.as_ref().and_then(|shared| shared.revision.as_ref()).filter(|found| !found.is_empty());
        if found.is_some_and(|found| *found != polled.listing.revision) && polled.at.elapsed() > origin.least_age {
            // Another replica polls the shared source, and found something else.
            polled = self.listing(origin, origin.least_age.into()).await.found?.0;
        }
        let Polled { listing, trace, .. } = polled;
        self.wake(&listing, read.is_poked);
        // Once for each that it found: what we have may also be newer than what it said.
        let other = found.filter(|found| **found != listing.revision);
        let lags = ctx.pokes.lags(&pokes::of(stack), other.map(String::as_str), origin.least_age);
        let tags = listing.tags.iter().map(|tag| (tag.name.as_str(), tag.revision.as_str()));
        let mut offer = selection::offer(wish, tags);
        // An object could not be called so.
        let all = offer.found.len();
        offer.found.retain(|found| can_be_taken(&found.name));
        offer.passed_over += all - offer.found.len();
        let newest = offer.found.first().map(|found| found.name.clone());
        offer.found.retain(|found| origin.refusal(&found.name).is_none());
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        facts.poll = Some(LastPoll {
            time: None,
            revision: listing.revision.clone(),
            found: count(offer.found.len()),
            passed_over: count(offer.passed_over),
        });
        if !offer.found.is_empty() {
            return Ok((offer, lags, trace));
        }
        facts.source = Some(StepState::Failed(match newest.and_then(|newest| origin.refusal(&newest)) {
            Some(refusal) => refusal,
            None => nothing_found(wish, &offer, listing.tags.len()),
        }));
        Ok((offer, lags, trace))
    }

    /// Reads the source for who asks for it where nothing is subscribed: what is there may have become something else.
    async fn look_at_what_is_there(&self, origin: &Origin, facts: &mut StackFacts) -> Option<Duration> {
        let is_asked = Asked::of(self.stack, self.handled(), self.ctx).is_any();
        if self.existing.is_empty() || !is_asked {
            return None;
        }
        let read = self.list(origin, facts).await;
        if let Ok(polled) = &read.polled {
            self.wake(&polled.listing, read.is_poked);
        }
        read.again
    }

    /// Lists the source. What is handled by that of what was asked goes into `facts`.
    async fn list(&self, origin: &Origin, facts: &mut StackFacts) -> Read {
        let asked = Asked::of(self.stack, self.handled(), self.ctx);
        // A source that failed is asked again when this pass comes, not when the interval ends.
        let listed = self.listing(origin, asked.age(origin.max_age, origin.least_age)).await;
        let polled = listed.found.map(|(polled, _)| polled);
        let again = if listed.is_late {
            // Who asked waits for what the source says now, and so do we. One that is shared is not asked by each who asks.
            self.handled().clone_into(&mut facts.reconcile_at);
            let age = polled.as_ref().map_or(Duration::MAX, |polled| polled.at.elapsed());
            let left = origin.least_age.checked_sub(age).map_or(origin.least_age, |left| left.max(SOON));
            Some(left).filter(|left| !left.is_zero())
        } else {
            asked.answered(&mut facts.reconcile_at).then_some(SOON)
        };
        Read { polled, again, is_poked: asked.is_poked && !listed.is_late }
    }

    async fn listing(&self, origin: &Origin, age: Age) -> Listed {
        let waiter = Waiter::Stack(ObjectRef::from_obj(self.stack));
        let (client, source) = (self.ctx.clients.own(), origin.source.as_ref());
        self.ctx.releases.listing(&client, &origin.namespace, source, age, &waiter, &self.ctx.cancel).await
    }

    /// The annotation that was acted on last.
    fn handled(&self) -> &str {
        self.stack.status.as_ref().map_or("", |status| &status.last_handled_reconcile_at)
    }

    /// Where the source has something new, has those of the releases looked at whose tag names something else now, or may; or all of
    /// them. A pass of theirs may come an interval later, or came before this one with an older list.
    fn wake(&self, listing: &Listing, all: bool) {
        let before = self.stack.status.as_ref().and_then(|status| status.last_poll.as_ref());
        if !all && before.is_none_or(|before| before.revision == listing.revision) {
            return;
        }
        let spec = &self.stack.spec;
        for release in cluster_stack::owned(self.stack, self.ctx) {
            let name = ReleaseName::of_stack(&release.name_any(), &spec.provider, &spec.name);
            let artifact = release.status.as_ref().and_then(|status| status.artifact.as_ref());
            let is_elsewhere = || name.zip(artifact).is_none_or(|(name, artifact)| has_moved(listing, &name, artifact));
            if all || is_elsewhere() {
                self.ctx.watches.tell(Notice::Answered(Waiter::Release(ObjectRef::from_obj(&*release))));
            }
        }
    }

    async fn sift(&self, origin: &Origin, offer: Offer, facts: &mut StackFacts) -> Reading {
        let stack = self.stack;
        let seen = stack.status.as_ref().map_or(&[][..], |status| &status.available);
        let bake = stack.spec.bake_time.as_deref().map(|text| go_duration(text).unwrap_or(Duration::MAX));
        let gate = Gate::of(&stack.spec, stack.annotations().get(APPROVED).map(String::as_str), bake);
        let mut offer = offer;
        if let Err(trouble) = self.name_revisions(origin, &gate, &mut offer.found).await {
            facts.source = Some(StepState::Failed(trouble));
            return Reading::default();
        }
        let found = offer.found.len();
        let sifted = selection::sift(&gate, self.wish, offer.found, self.existing, seen, Timestamp::now());
        if found > 0 {
            let withheld = match sifted.withheld.len() {
                0 => String::new(),
                n => format!(", {n} not taken yet"),
            };
            let releases = if found == 1 { "release" } else { "releases" };
            facts.source = Some(StepState::Done(format!("{found} {releases} found{withheld}")));
        }
        let mut available = Vec::new();
        for (place, release) in sifted.withheld.iter().take(LISTED).enumerate() {
            let row = self.available(origin, release, seen, place < LOOKED_INTO).await;
            if !seen.iter().any(|seen| (&seen.name, &seen.reason) == (&row.name, &row.reason)) && place < LOOKED_INTO {
                self.ctx.events.say(stack, release.reason, &format!("{}: {}", row.name, row.message)).await;
            }
            available.push(row);
        }
        facts.available = Some(available);
        let next = sifted.next_baked();
        Reading { open: Some(sifted.open), next, again: None, trace: None }
    }

    /// Finds out what the tags of releases name that wait for a human or for time, where a listing does not tell, as a registry's: what
    /// was looked at is then what is taken.
    async fn name_revisions(&self, origin: &Origin, gate: &Gate, found: &mut [Found]) -> Result<(), Trouble> {
        let waiter = Waiter::Stack(ObjectRef::from_obj(self.stack));
        for release in selection::unnamed(gate, self.wish, found, self.existing, LISTED) {
            let wanted = Wanted { waiter: Some(&waiter), ..origin.wanted(&release.name) };
            let named = self.ctx.releases.revision(&self.ctx.clients.own(), &wanted, &self.ctx.cancel).await;
            release.revision = named.map_err(|trouble| Trouble {
                message: format!("{}: {}", release.name.object_name(), trouble.message),
                ..trouble
            })?;
        }
        Ok(())
    }

    /// What releases that are about to be made are made from: noted at them at once, it costs no request of its own. Where a listing does
    /// not tell, the files are fetched, which the release needs anyway; of those that take longer it is noted when it has them.
    pub(super) async fn to_make(&self, origin: &Origin, create: &[ReleaseName], open: Option<&[Found]>) -> Vec<ToMake> {
        let waiter = Waiter::Stack(ObjectRef::from_obj(self.stack));
        let of = async |name: &ReleaseName| {
            let listed = open.into_iter().flatten().find(|found| found.name == *name);
            if let Some(listed) = listed.filter(|listed| !listed.revision.is_empty()) {
                return ToMake { name: name.clone(), revision: listed.revision.clone(), digest: String::new() };
            }
            let wanted = Wanted { waiter: Some(&waiter), ..origin.wanted(name) };
            let fetched = Box::pin(self.ctx.releases.fetch(&self.ctx.clients.own(), &wanted, &self.ctx.cancel)).await;
            // What stands in the way is told by the release.
            let Artifact { revision, digest, .. } = fetched.map(|fetched| fetched.artifact).unwrap_or_default();
            ToMake { name: name.clone(), revision, digest }
        };
        join_all(create.iter().map(of)).await
    }

    /// A withheld release as the status shows it, with what it contains.
    async fn available(
        &self,
        origin: &Origin,
        release: &Withheld,
        seen: &[AvailableRelease],
        look_into: bool,
    ) -> AvailableRelease {
        let object_name = release.name.object_name();
        let why = match (release.reason, release.baked) {
            (Reason::Baking, Some(baked)) => format!("taken at {baked}, when it was on offer for spec.bakeTime"),
            _ => format!(
                "approve it with `clusterstack approve {} -n {} {}`",
                self.stack.name_any(),
                self.stack.namespace().unwrap_or_default(),
                release.name.version
            ),
        };
        let contents = if look_into {
            let waiter = Waiter::Stack(ObjectRef::from_obj(self.stack));
            let (client, wanted) = (self.ctx.clients.own(), origin.wanted(&release.name));
            let wanted = Wanted { waiter: Some(&waiter), ..wanted };
            Some(self.ctx.releases.contents(&client, &wanted, &self.ctx.cancel).await)
        } else {
            None
        };
        let before = seen.iter().find(|seen| {
            (&seen.name, &seen.revision) == (&object_name, &release.revision) && seen.reason == release.reason.as_str()
        });
        let message = match contents {
            Some(Ok(contents)) => format!("{contents}; {why}"),
            Some(Err(trouble)) if trouble.class == ErrorClass::Invalid => {
                format!("it can't be used: {}", trouble.message)
            }
            // What was known stays: that it can't be looked into now says nothing about the release.
            _ => before.map(|seen| seen.message.clone()).filter(|message| !message.is_empty()).unwrap_or(why),
        };
        AvailableRelease {
            name: object_name,
            revision: release.revision.clone(),
            first_seen: Some(Time(release.first_seen)),
            reason: release.reason.as_str().to_owned(),
            message: condition::cut(&message, condition::MAX_MESSAGE),
        }
    }
}

fn nothing_found(wish: &Wish, offer: &Offer, tags: usize) -> Trouble {
    let message = if let (Some(range), 1..) = (&wish.range, offer.out_of_range) {
        format!("{} releases of this stack, none of them in versionRange {}", offer.out_of_range, range.as_str())
    } else {
        let pre = (wish.channel != "stable").then(|| PreRelease {
            channel: wish.pre_releases.first().cloned().unwrap_or_else(|| wish.channel.clone()),
            patch: "1".to_owned(),
        });
        let number = u64::from(pre.is_none());
        let example = wish.release(&ReleaseVersion { number, pre }).object_name();
        let listed = if wish.channel != "stable" && wish.pre_releases.is_empty() {
            "; spec.preReleases lists others, such as alpha or rc, that may be taken"
        } else {
            ""
        };
        format!(
            "none of the {tags} tags of the source is a release of this stack in channel {}; one is called like {example}{listed}",
            wish.channel
        )
    };
    Trouble::new(ErrorClass::Waiting, Reason::NoReleaseFound, message)
}

/// Takes out of a selection what may not be created: what is not offered, or anything while the source can't be told.
/// What stands in the way, if it is not the source itself.
pub(super) fn limit(
    selected: &mut Selection,
    origin: Result<&Origin, &Trouble>,
    stack: &ClusterStack,
    facts: &mut StackFacts,
) -> Option<Trouble> {
    let Ok(origin) = origin else {
        selected.create.clear();
        return None;
    };
    if let Some(suspended) = origin.suspended() {
        let waiting: Vec<String> = selected.create.drain(..).map(|name| name.object_name()).collect();
        let message = format!("{} wait for that: {}", waiting.join(", "), suspended.message);
        return (!waiting.is_empty()).then_some(Trouble { message, ..suspended });
    }
    let mut refused: Vec<(ReleaseName, Trouble)> = Vec::new();
    selected.create.retain(|name| match origin.refusal(name) {
        Some(trouble) => {
            refused.push((name.clone(), trouble));
            false
        }
        None => true,
    });
    if !refused.is_empty() {
        let rows = refused.iter().map(|(name, trouble)| AvailableRelease {
            name: name.object_name(),
            reason: trouble.reason.as_str().to_owned(),
            message: condition::cut(&trouble.message, condition::MAX_MESSAGE),
            ..AvailableRelease::default()
        });
        if let Some(available) = &mut facts.available {
            available.extend(rows);
            available.sort_by_cached_key(|row| Reverse(row.name.parse::<ReleaseName>().ok().map(|name| name.version)));
            available.truncate(LISTED);
        }
    }
    if !selected.create.is_empty()
        && let Err(trouble) = origin.template(stack)
    {
        selected.create.clear();
        return Some(trouble);
    }
    let first = refused.into_iter().next()?.1;
    let message = format!("{}; take it out of spec.versions, or ask who runs the source", first.message);
    Some(Trouble { message, ..first })
}
