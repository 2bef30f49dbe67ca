//! `ClusterStackRelease`: fetches, renders, applies and watches over one release.

mod again;
mod fetching;
mod reports;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::Value;
use tracing::Span;

use self::again::{may_know_more_soon, next};
use self::reports::write_status;
use super::deletion::Going;
use super::delivery::{self, Delivery, as_recorded, hold_unreadable, is_unseen, leftover, rows, tell_unread};
use super::memory::Inventory;
use super::origin::{Origin, own_demand};
use super::owned::owners;
use super::release_owner::version_in;
use super::rights::Rights;
use super::turns::beside_its_turn;
use super::{Action, Context, Doing, Error, cluster_stack, deletion, finalizer, reconcile_at, release_owner, spread};
use crate::api::cluster_stack_release::{ClusterStackReleaseStatus, Resource as Row, ResourceStatus};
use crate::api::condition::{self, ConditionType, Reason, Reported};
use crate::api::{
    CLUSTER_STACK_LABEL, CLUSTER_STACK_RELEASE_FINALIZER, ClusterStack, ClusterStackRelease, OWNER_KIND_LABEL,
    OWNER_NAME_LABEL, OWNER_NAMESPACE_LABEL, TRACEPARENT,
};
use crate::core::in_use;
use crate::core::inventory::{is_left_to_sibling, is_unproved};
use crate::core::manifest::{ObjectKey, label, label_value};
use crate::core::name::ReleaseName;
use crate::core::ownership::Owner;
use crate::core::plan::{self, Action as Act, Desired, Input, Plan, Sibling};
use crate::core::retry::{self, ErrorClass};
use crate::core::status::{ReleaseFacts, StepState, Trouble};
use crate::io::apply::{self, Outcome};
use crate::io::fence;
use crate::io::kinds::Kind;
use crate::io::observe::{self, Live};
use crate::io::release::{FetchedRelease, Wanted};
use crate::io::traces;

/// One pass over a ClusterStackRelease.
///
/// # Errors
/// What the API server refused; what a user can mend is said in conditions.
pub async fn reconcile(seen: Arc<ClusterStackRelease>, ctx: Arc<Context>) -> Result<Action, Error> {
    if !ctx.is_of_ours(&*seen) {
        return Ok(Action::await_change());
    }
    // What nothing happened to is not even read.
    if ctx.memory.takes_left(&seen.uid().unwrap_or_default(), seen.resource_version().as_deref())
        && let Some(next) = Box::pin(pass(&seen, Sight::Cached, &ctx)).await?
    {
        return Ok(next);
    }
    let Some(release) = as_written(&seen, &ctx).await? else { return Ok(Action::await_change()) };
    let next = Box::pin(pass(&release, Sight::Read, &ctx)).await?;
    Ok(next.unwrap_or_else(Action::await_change))
}

/// From where a release is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sight {
    /// The cache, which shows what the last pass left: enough to find that nothing is to be done.
    Cached,
    /// The API server.
    Read,
}

/// The pass, and when the next one comes. `None` where something may be to be done about a release that was not read, or where it
/// goes meanwhile.
async fn pass(release: &ClusterStackRelease, sight: Sight, ctx: &Arc<Context>) -> Result<Option<Action>, Error> {
    let stack = stack_of(release, ctx);
    let is_going = release.metadata.deletion_timestamp.is_some();
    if sight == Sight::Cached && (is_going || release.spec.provider_ref.is_some()) {
        return Ok(None);
    }
    let mut facts = carried_over(release, ctx);
    if is_going {
        match deletion::release(release, stack.as_deref(), ctx).await? {
            Going::On(next) => return Ok(Some(next)),
            Going::InUse(trouble) => facts.deletion = Some(trouble),
        }
    }
    if let Some(stack) = stack.is_none().then(|| left_by(release, ctx)).flatten() {
        let adopted = release_owner::adopt(release, &stack, ctx.clients.own()).await;
        if adopted.doing(|| format!("adopting {}", release.name_any()))? {
            return Ok(Some(Action::await_change()));
        }
    }
    let Some(stack) = stack else {
        let message = "the ClusterStack that owns this release does not exist; what is applied stays. Delete the release, or create the ClusterStack again";
        facts.downloaded = StepState::Failed(Trouble::new(ErrorClass::Invalid, Reason::OwnerMissing, message));
        write_status(release, ctx, facts).await?;
        return Ok(Some(Action::requeue(spread(retry::WAITING))));
    };
    if stack.spec.suspend {
        return Ok(Some(Action::await_change()));
    }
    let is_held = finalizer::is_on(release, CLUSTER_STACK_RELEASE_FINALIZER);
    if sight == Sight::Cached && !is_held {
        return Ok(None);
    }
    // Without the one that it was made with it goes before its objects, and while Clusters use them.
    let held = if is_held {
        None
    } else {
        Some(finalizer::add(ctx.clients.own(), release, CLUSTER_STACK_RELEASE_FINALIZER).await?)
    };
    let release = held.as_ref().unwrap_or(release);
    let pass = Pass { release, stack: &stack, ctx, asked: asked(release, &stack) };
    if sight == Sight::Cached && pass.asked != facts.reconcile_at {
        return Ok(None);
    }
    ctx.memory.begins_to_look(&pass.uid());
    if !pass.run(sight, &mut facts).await? {
        return Ok(None);
    }
    let next = next(&facts, &stack, release, ctx);
    facts.attempted =
        Some(stack.status.as_ref().map(|status| status.last_handled_reconcile_at.clone()).unwrap_or_default());
    pass.end(facts).await?;
    Ok(Some(next))
}

/// The release as it is: the cache may be behind our own last write, and the inventory must not be. To one that this
/// process just made nothing was written yet. `None` if it is gone.
async fn as_written(seen: &ClusterStackRelease, ctx: &Context) -> Result<Option<ClusterStackRelease>, Error> {
    if seen.conditions().is_empty() && ctx.memory.is_new(&seen.uid().unwrap_or_default()) {
        return Ok(Some(seen.clone()));
    }
    let api: Api<ClusterStackRelease> = Api::namespaced(ctx.clients.own(), &seen.namespace().unwrap_or_default());
    api.get_opt(&seen.name_any()).await.doing(|| format!("reading ClusterStackRelease {}", seen.name_any()))
}

/// The ClusterStack that owns the release, as last seen.
pub(super) fn stack_of(release: &ClusterStackRelease, ctx: &Context) -> Option<Arc<ClusterStack>> {
    owners(release).find_map(|(namespace, name)| ctx.stacks.get(&ObjectRef::new(&name).within(&namespace)))
}

/// The ClusterStack that a release without an owner was of, if it is there again.
fn left_by(release: &ClusterStackRelease, ctx: &Context) -> Option<Arc<ClusterStack>> {
    let (namespace, stack) = (release.namespace()?, release.labels().get(CLUSTER_STACK_LABEL)?);
    let stack = ctx.stacks.get(&ObjectRef::new(stack).within(&namespace))?;
    (stack.metadata.deletion_timestamp.is_none() && release_owner::is_left_by(release, &stack)).then_some(stack)
}

/// The files of a release that was fetched before, by whichever replica: from the store, or fetched as they were.
pub(super) async fn fetched(release: &ClusterStackRelease, ctx: &Context) -> Result<FetchedRelease, Trouble> {
    let unknown = |message: String| Trouble::new(ErrorClass::Waiting, Reason::ReleaseUnknown, message);
    let name = format!("{}/{}", release.namespace().unwrap_or_default(), release.name_any());
    let Some(stack) = stack_of(release, ctx) else {
        return Err(unknown(format!(
            "ClusterStackRelease {name} belongs to no ClusterStack; its addons stay as they are"
        )));
    };
    if let Some(place) = release.annotations().get(TRACEPARENT) {
        traces::refer(&Span::current(), place);
    }
    let artifact = release.status.as_ref().and_then(|status| status.artifact.as_ref());
    let Some(artifact) = artifact else {
        let why = release.ready().filter(|ready| ready.status == "False" && !ready.message.is_empty());
        let why = why.map(|ready| format!("; it says {}: {}", ready.reason, ready.message)).unwrap_or_default();
        return Err(unknown(format!("waiting for ClusterStackRelease {name} to be fetched{why}")));
    };
    let spec = &stack.spec;
    let Some(parsed) = ReleaseName::of_stack(&release.name_any(), &spec.provider, &spec.name) else {
        return Err(unknown(format!("ClusterStackRelease {name} has a name that is no release of its ClusterStack")));
    };
    let origin = Origin::of(&stack, ctx).await;
    let verify =
        origin.as_ref().map_or_else(|_| own_demand(&stack).into_iter().collect(), |origin| origin.verify.clone());
    let held = origin.as_ref().map_or_else(|trouble| Some(trouble.clone()), Origin::suspended);
    let wanted = Wanted {
        held: held.as_ref(),
        had: Some(artifact),
        verify: &verify,
        pin: &spec.pin,
        ..origin.as_ref().map_or_else(|_| Wanted::of_nowhere(&parsed), |origin| origin.wanted(&parsed))
    };
    ctx.releases.fetch(&ctx.clients.own(), &wanted, &ctx.cancel).await
}

/// What asks for another try of what was refused: an edit of the ClusterStack, or an annotation on either object.
fn asked(release: &ClusterStackRelease, stack: &ClusterStack) -> String {
    let generation = stack.metadata.generation.unwrap_or_default();
    [format!("generation {generation}"), reconcile_at(stack), reconcile_at(release)].join(" ").trim_end().to_owned()
}

/// What stays as it was unless the pass finds otherwise.
fn carried_over(release: &ClusterStackRelease, ctx: &Context) -> ReleaseFacts {
    let previous = release.status.clone().unwrap_or_default();
    let there = (previous.resources, previous.retained);
    let unwritten = ctx.memory.unwritten(&release.uid().unwrap_or_default(), &there);
    let (resources, retained) = unwritten.unwrap_or(there);
    let changed = condition::find(&previous.conditions, ConditionType::ArtifactChanged);
    ReleaseFacts {
        generation: release.metadata.generation,
        changed_upstream: changed.filter(|c| c.is_true()).map(|c| c.message.clone()),
        kubernetes_version: previous.kubernetes_version,
        node_versions: previous.node_versions,
        artifact: previous.artifact,
        resources,
        retained,
        applied_as: previous.applied_as,
        reconcile_at: previous.last_handled_reconcile_at,
        ..ReleaseFacts::default()
    }
}

/// One pass with all it needs.
struct Pass<'a> {
    release: &'a ClusterStackRelease,
    stack: &'a ClusterStack,
    ctx: &'a Context,
    asked: String,
}

impl Pass<'_> {
    /// source → release → chart → apply; a step in trouble ends the pass. Whether it came to an end: not where something may be to be
    /// done about a release that was not read, nor where it goes meanwhile.
    async fn run(&self, sight: Sight, facts: &mut ReleaseFacts) -> Result<bool, Error> {
        let Some(manifests) = self.fetch_and_render(facts).await else { return Ok(true) };
        let namespace = self.release.namespace().unwrap_or_default();
        let rights = self.ctx.rights(&namespace, Some(&self.stack.spec))?;
        let owner = deletion::owner_of(self.release);
        let delivery = Delivery {
            client: rights.client.clone(),
            discovery: self.ctx.clients.own(),
            watching: self.ctx.clients.watching(),
            kinds: &self.ctx.kinds,
            owner,
            namespace,
            only_namespace: rights.only_namespace.clone(),
            is_operator: rights.account.is_none(),
        };
        let (desired, kinds) = delivery.desired(manifests).await;
        let is_new = facts.resources.is_empty() && facts.retained.is_empty();
        if let Some(message) = is_new.then(|| plan::unusable(&desired, self.other_with_class().as_deref())).flatten() {
            facts.applied = StepState::Failed(Trouble::new(ErrorClass::Invalid, Reason::EmptyRender, message));
            return Ok(true);
        }
        if self.is_as_left((&desired, &kinds), &rights, facts) {
            facts.applied = StepState::Done(String::new());
            return Ok(true);
        }
        if sight == Sight::Cached {
            return Ok(false);
        }
        self.ctx.memory.begins_look(&self.uid());
        self.deliver(&delivery, (desired, kinds), &rights, facts).await
    }

    /// Another release of the ClusterStack that has a ClusterClass.
    fn other_with_class(&self) -> Option<String> {
        let has_class = |release: &ClusterStackRelease| {
            let rows = release.status.iter().flat_map(|status| &status.resources);
            rows.map(plan::key_of).any(|key| key.is_cluster_class())
        };
        let mut all = cluster_stack::owned(self.stack, self.ctx).into_iter();
        all.find(|other| other.uid() != self.release.uid() && has_class(other)).map(|other| other.name_any())
    }

    /// Writes what the pass found; where that fails, the next one goes on from its inventory.
    async fn end(&self, facts: ReleaseFacts) -> Result<(), Error> {
        let (memory, uid) = (&self.ctx.memory, self.uid());
        let inventory = (facts.resources.clone(), facts.retained.clone());
        if let Err(error) = write_status(self.release, self.ctx, facts).await {
            memory.could_not_write(&uid, self.written_inventory(), inventory);
            return Err(error);
        }
        memory.wrote(&uid);
        let written = fence::written(&uid).map(|written| written.resource_version);
        memory.leaves(&uid, written.unwrap_or_else(|| self.release.resource_version()));
        Ok(())
    }

    /// The inventory that is in the status: the one that was read, or that this pass wrote before it sent anything.
    fn written_inventory(&self) -> Inventory {
        let written = fence::written(&self.uid()).and_then(|written| serde_json::from_value(written.status).ok());
        let status: ClusterStackReleaseStatus = written.or_else(|| self.release.status.clone()).unwrap_or_default();
        (status.resources, status.retained)
    }

    /// Looks at what lives there, applies, and prunes. Whether it came to an end: not where the release goes meanwhile.
    async fn deliver(
        &self,
        delivery: &Delivery<'_>,
        (mut desired, kinds): delivery::Wanted,
        rights: &Rights,
        facts: &mut ReleaseFacts,
    ) -> Result<bool, Error> {
        let looked = self.observe(delivery, (&desired, &kinds), facts).await?;
        // A moment ago the release could be made, so its namespace does not end; if it does now, the API server says so.
        let may_end = looked.is_some();
        let mut live = looked.unwrap_or_default();
        let recorded: Vec<Row> = facts.resources.iter().chain(&facts.retained).cloned().collect();
        let retries = self.retries_refused(facts);
        let gone = self.newer_gone(&live).await?;
        let decide = |desired: &mut [Desired], live: &Live| {
            self.plan(&delivery.owner, desired, live, (&recorded, retries), delivery.is_operator, &gone)
        };
        let mut plan = decide(&mut desired, &live);
        if plan.empty_render {
            let message = "the chart renders no object, although it did before; what is applied is held. Publish a release with objects, or delete this one";
            facts.applied = StepState::Failed(Trouble::new(ErrorClass::Invalid, Reason::EmptyRender, message));
            return Ok(true);
        }
        if may_end
            && plan.steps.iter().any(|step| matches!(step.action, Act::Apply { .. }))
            && self
                .ctx
                .standing
                .is_terminating(&self.ctx.clients.own(), &delivery.namespace)
                .await
                .doing(|| format!("reading namespace {}", delivery.namespace))?
        {
            let message = format!("namespace {} is being deleted: nothing is applied any more", delivery.namespace);
            facts.applied = StepState::Failed(Trouble::new(ErrorClass::Waiting, Reason::NamespaceTerminating, message));
            return Ok(true);
        }
        if !self.is_still_wanted() {
            // The pass over its deletion comes next, and says what it waits for; or one when it is resumed.
            return Ok(false);
        }
        facts.applied_as = rights.account.clone().unwrap_or_default();
        let intent = Self::intent(&plan, facts);
        let sending = Box::pin(delivery.apply_and_look((&mut plan, &mut live), (&desired, &kinds), decide));
        let outcomes = match intent {
            None => sending.await,
            // What a process leaves behind that dies before it has said anything is found by its labels, with rights of our own.
            Some(intent) if is_unproved(&recorded) && rights.account.is_none() => {
                self.telling_of(intent, sending).await
            }
            Some(intent) => {
                write_status(self.release, self.ctx, intent).await?;
                sending.await
            }
        };
        if is_unproved(&recorded) && delivery.find_lost(&mut live, (&self.ctx.memory, &self.uid())).await? {
            plan.prune = decide(&mut desired, &live).prune;
        }
        self.watch(&plan, &outcomes, &kinds, &live);
        self.ctx.memory.looked(&self.uid());
        self.note(&plan, &outcomes).await;
        facts.unsettled = plan.steps.iter().any(is_unseen);
        if may_know_more_soon(&outcomes) {
            self.ctx.memory.definition_changed(&self.uid());
            facts.unsettled = true;
        }
        facts.resources = rows(&plan, outcomes, &live, &facts.resources);
        facts.applied = StepState::Done(String::new());
        facts.reconcile_at.clone_from(&self.asked);
        self.prune((&plan, &recorded), &live, rights, facts).await?;
        Ok(true)
    }

    /// Whether nothing is to be done, which takes no look: nobody asked for one, the inventory is what is wanted, and the watches
    /// vouch for each object. What watches can't see is found by a look once an hour.
    fn is_as_left(
        &self,
        (desired, kinds): (&[Desired], &BTreeMap<ObjectKey, Kind>),
        rights: &Rights,
        facts: &ReleaseFacts,
    ) -> bool {
        let Some(looked) = self.ctx.memory.last_look(&self.uid()) else { return false };
        self.asked == facts.reconcile_at
            && facts.retained.is_empty()
            && facts.applied_as == rights.account.as_deref().unwrap_or_default()
            && plan::is_settled(&facts.resources, desired)
            // Each of them has a kind, or an obstacle stood in its way.
            && self.ctx.watches.vouch(&ObjectRef::from_obj(self.release), looked, kinds)
    }

    /// What lives there. `None` of a release that this process just made: nothing does, or it is met when it is to be made.
    async fn observe(
        &self,
        delivery: &Delivery<'_>,
        desired: (&[Desired], &BTreeMap<ObjectKey, Kind>),
        facts: &ReleaseFacts,
    ) -> Result<Option<Live>, Error> {
        let uid = self.uid();
        let recorded = (facts.resources.as_slice(), facts.retained.as_slice());
        if recorded.0.is_empty() && recorded.1.is_empty() && self.ctx.memory.takes_new(&uid) {
            return Ok(None);
        }
        delivery.observe(desired, recorded, Some((&self.ctx.memory, &uid))).await.map(Some)
    }

    /// Whether the release is still there, and stays, and its ClusterStack was not suspended or deleted: fetching and rendering take their
    /// time. One that is deleted while somebody uses it stays for now.
    fn is_still_wanted(&self) -> bool {
        let goes_now = |stack: &ClusterStack| {
            stack.metadata.deletion_timestamp.is_some() && self.stack.metadata.deletion_timestamp.is_none()
        };
        let stack = self.ctx.stacks.get(&ObjectRef::from_obj(self.stack));
        if stack.is_some_and(|stack| stack.spec.suspend || goes_now(&stack)) {
            return false;
        }
        let is_going = |release: &ClusterStackRelease| release.metadata.deletion_timestamp.is_some();
        let now = self.ctx.stack_releases.get(&ObjectRef::from_obj(self.release));
        now.is_some_and(|now| now.uid() == self.release.uid() && (is_going(self.release) || !is_going(&now)))
    }

    fn uid(&self) -> String {
        self.release.uid().unwrap_or_default()
    }

    fn plan(
        &self,
        owner: &Owner,
        desired: &mut [Desired],
        live: &Live,
        (recorded, retry_refused): (&[Row], bool),
        is_operator: bool,
        gone: &BTreeSet<String>,
    ) -> Plan {
        hold_unreadable(desired, live);
        plan::plan(&Input {
            owner,
            desired,
            recorded,
            live: &live.objects,
            unread: &live.unread(),
            ignore: &self.stack.spec.ignore_differences,
            drift: self.stack.spec.drift_mode.unwrap_or_default(),
            fights: &self.ctx.memory.fights(&self.uid(), Timestamp::now()),
            retry_refused,
            siblings: &self.siblings(live, gone),
            of_newer: &self.of_newer(recorded),
            leaves_secrets: is_operator,
        })
    }

    /// What newer releases of the ClusterStack have, as last seen; nothing where nothing was left to one of them.
    fn of_newer(&self, recorded: &[Row]) -> BTreeSet<ObjectKey> {
        let Some(own) = version_in(&self.release.name_any(), self.stack) else { return BTreeSet::new() };
        if !recorded.iter().any(is_left_to_sibling) {
            return BTreeSet::new();
        }
        let newer = deletion::newer(&cluster_stack::owned(self.stack, self.ctx), self.stack, &own);
        newer.iter().flatten().map(plan::key_of).collect()
    }

    /// The releases of the ClusterStack that live objects say they are of, and that are not there as last seen.
    fn unseen<'l>(&self, live: &'l Live) -> BTreeSet<&'l str> {
        let namespace = self.release.namespace().unwrap_or_default();
        let owner = |object: &'l Value| {
            let of_release = label(object, OWNER_KIND_LABEL) == Some("ClusterStackRelease");
            let is_here = label(object, OWNER_NAMESPACE_LABEL) == Some(&namespace);
            label(object, OWNER_NAME_LABEL).filter(|_| of_release && is_here)
        };
        let is_unseen = |name: &&str| {
            let place = ObjectRef::new(name).within(&namespace);
            version_in(name, self.stack).is_some() && self.ctx.stack_releases.get(&place).is_none()
        };
        live.objects.values().filter_map(owner).filter(is_unseen).collect()
    }

    /// Those of them that are newer and are gone: the API server is asked, for they may just not have been seen.
    async fn newer_gone(&self, live: &Live) -> Result<BTreeSet<String>, Error> {
        let own = version_in(&self.release.name_any(), self.stack);
        let releases: Api<ClusterStackRelease> =
            Api::namespaced(self.ctx.clients.own(), &self.release.namespace().unwrap_or_default());
        let mut gone = BTreeSet::new();
        for name in self.unseen(live).into_iter().filter(|name| version_in(name, self.stack) > own) {
            let found = releases.get_metadata_opt(&observe::segment(name)).await;
            if found.doing(|| format!("reading ClusterStackRelease {name}"))?.is_none() {
                gone.insert(name.to_owned());
            }
        }
        Ok(gone)
    }

    /// The other releases of the ClusterStack, as last seen, by the value of their owner label; and those that are gone, of which something
    /// is still there, for it was kept or left behind. `gone` are those of them that are newer.
    fn siblings(&self, live: &Live, gone: &BTreeSet<String>) -> BTreeMap<String, Sibling> {
        let Some(own) = version_in(&self.release.name_any(), self.stack) else { return BTreeMap::new() };
        let is_gone =
            |name: &&str| gone.contains(*name) || version_in(name, self.stack).is_some_and(|version| version < own);
        let gone = self.unseen(live).into_iter().filter(is_gone);
        let mut siblings: BTreeMap<_, _> = gone.map(|name| (name.to_owned(), Sibling::Older)).collect();
        let there = cluster_stack::owned(self.stack, self.ctx);
        siblings.extend(there.iter().filter_map(|other| {
            let name = other.name_any();
            let sibling = match version_in(&name, self.stack)?.cmp(&own) {
                std::cmp::Ordering::Less => Sibling::Older,
                std::cmp::Ordering::Greater => Sibling::Newer,
                std::cmp::Ordering::Equal => return None,
            };
            Some((label_value(&name), sibling))
        }));
        siblings
    }

    /// Watches the objects from the version on in which they are now.
    fn watch(
        &self,
        plan: &Plan,
        outcomes: &BTreeMap<ObjectKey, Outcome>,
        kinds: &BTreeMap<ObjectKey, Kind>,
        live: &Live,
    ) {
        let owner = ObjectRef::from_obj(self.release);
        for step in &plan.steps {
            let key = &step.manifest.key;
            let now =
                outcomes.get(key).and_then(|outcome| outcome.result.as_ref().ok()).or_else(|| live.objects.get(key));
            let version = now.and_then(|object| object.pointer("/metadata/resourceVersion")).and_then(Value::as_str);
            if let Some(kind) = kinds.get(key) {
                self.ctx.watches.remember(&owner, kind, key, version.unwrap_or_default());
            }
        }
    }

    /// What of this may be deleted: no ClusterClass and no template as long as somebody uses the release. A chart may render less
    /// than it did, by what it looks up or by another version of the operator.
    async fn without_used(&self, waiting: Vec<Row>, recorded: &[Row], facts: &mut ReleaseFacts) -> Vec<Row> {
        if !waiting.iter().any(in_use::may_be_used) {
            return waiting;
        }
        let Some(Trouble { reason, message, .. }) = deletion::holds(self.release, recorded, self.ctx).await else {
            return waiting;
        };
        let (used, free): (Vec<Row>, Vec<Row>) = waiting.into_iter().partition(in_use::may_be_used);
        let is_known =
            |row: &Row| recorded.iter().any(|old| plan::key_of(old) == plan::key_of(row) && old.reason == Some(reason));
        for row in used.iter().filter(|row| !is_known(row)) {
            let note = format!("kept {}, which the chart does not render any more: {message}", plan::key_of(row));
            self.ctx.events.say(self.release, reason, &note).await;
        }
        let kept = used.into_iter().map(|row| Row { reason: Some(reason), error: message.clone(), ..row });
        facts.retained.extend(kept);
        free
    }

    /// Deletes what no longer belongs to the release, once all that does is applied.
    async fn prune(
        &self,
        (plan, recorded): (&Plan, &[Row]),
        live: &Live,
        rights: &Rights,
        facts: &mut ReleaseFacts,
    ) -> Result<(), Error> {
        facts.retained = leftover(&plan.prune.retain, live, recorded);
        facts.retained.extend(as_recorded(&plan.prune.unread, recorded));
        tell_unread(&mut facts.retained, live);
        let all_synced = facts.resources.iter().all(|row| row.status == ResourceStatus::Synced);
        let waiting = leftover(&plan.prune.delete, live, recorded);
        if waiting.is_empty() {
            return Ok(());
        }
        if !all_synced {
            facts.retained.extend(waiting);
            return Ok(());
        }
        let waiting = self.without_used(waiting, recorded, facts).await;
        for target in deletion::targets(&waiting, self.ctx).await? {
            let Some(object) = live.objects.get(&target.key) else { continue };
            match beside_its_turn(apply::delete(&rights.client, &target.kind, &target.key, object)).await {
                Ok(()) => {
                    self.ctx.metrics.count("pruned", 1);
                    self.ctx.events.say(self.release, Reason::Pruned, &format!("pruned {}", target.key)).await;
                }
                Err(refusal) => {
                    let mut row =
                        waiting.iter().find(|row| plan::key_of(row) == target.key).cloned().unwrap_or_default();
                    row.reason = Some(Reason::FailedToDeleteObjects);
                    row.error = refusal.message;
                    facts.retained.push(row);
                }
            }
        }
        Ok(())
    }
}
