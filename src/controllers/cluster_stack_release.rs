//! `ClusterStackRelease`: fetches, renders, applies and watches over one release.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::Value;

use super::origin::{Origin, own_demand};
use super::rights::{self, Rights};
use super::{Context, Doing, Error, cluster_stack, deletion, provider, reconcile_at, spread};
use crate::api::cluster_stack_release::{Artifact, Resource as Row, ResourceStatus};
use crate::api::condition::{self, ConditionType, Reason};
use crate::api::{ClusterStack, ClusterStackRelease};
use crate::core::health;
use crate::core::manifest::{Manifest, ObjectKey, label_value};
use crate::core::name::ReleaseName;
use crate::core::ownership::Owner;
use crate::core::plan::{self, Action as Act, Desired, Input, Plan, Sibling, Step, Why};
use crate::core::retry::{self, ErrorClass};
use crate::core::status::{self, ReleaseFacts, StepState, Trouble, row_class};
use crate::io::apply::{self, Outcome, Refusal, Send};
use crate::io::kinds::Kind;
use crate::io::lookup::Reader;
use crate::io::observe::{self, Live, Target};
use crate::io::release::{FetchedRelease, Job, Objects, Upstream, Wanted};
use crate::io::report;
use crate::io::source::trust::{Demand, asked_of};
use crate::settings::interval;

/// Shortest pause before a certificate that is due is made anew.
const SOONEST_RENEWAL: Duration = Duration::from_secs(10);

/// One pass over a ClusterStackRelease.
///
/// # Errors
/// What the API server refused; what a user can mend is said in conditions.
pub async fn reconcile(seen: Arc<ClusterStackRelease>, ctx: Arc<Context>) -> Result<Action, Error> {
    if !ctx.is_ours(&*seen) {
        return Ok(Action::await_change());
    }
    // The cache may be behind our own last write, and the inventory must not be.
    let api: Api<ClusterStackRelease> = Api::namespaced(ctx.clients.own(), &seen.namespace().unwrap_or_default());
    let read =
        api.get_opt(&seen.name_any()).await.doing(|| format!("reading ClusterStackRelease {}", seen.name_any()))?;
    let Some(release) = read else { return Ok(Action::await_change()) };
    let stack = stack_of(&release, &ctx);
    if release.metadata.deletion_timestamp.is_some() {
        return deletion::release(&release, stack.as_deref(), &ctx).await;
    }
    let mut facts = carried_over(&release);
    let Some(stack) = stack else {
        let message = "the ClusterStack that owns this release does not exist; what is applied stays. Delete the release, or create the ClusterStack again";
        facts.downloaded = StepState::Failed(Trouble::new(ErrorClass::Invalid, Reason::OwnerMissing, message));
        write_status(&release, &ctx, facts).await?;
        return Ok(Action::requeue(spread(retry::WAITING)));
    };
    if stack.spec.suspend {
        return Ok(Action::await_change());
    }
    let pass = Pass { release: &release, stack: &stack, ctx: &ctx, asked: asked(&release, &stack) };
    pass.run(&mut facts).await?;
    let next = next(&facts, &stack, &release, &ctx);
    write_status(&release, &ctx, facts).await?;
    Ok(next)
}

/// The ClusterStack that owns the release, as last seen.
fn stack_of(release: &ClusterStackRelease, ctx: &Context) -> Option<Arc<ClusterStack>> {
    ctx.stacks.state().into_iter().find(|stack| cluster_stack::is_owned(release, stack))
}

/// What asks for another try of what was refused: an edit of the ClusterStack, or an annotation on either object.
fn asked(release: &ClusterStackRelease, stack: &ClusterStack) -> String {
    let generation = stack.metadata.generation.unwrap_or_default();
    [format!("generation {generation}"), reconcile_at(stack), reconcile_at(release)].join(" ").trim_end().to_owned()
}

/// What stays as it was unless the pass finds otherwise.
fn carried_over(release: &ClusterStackRelease) -> ReleaseFacts {
    let previous = release.status.clone().unwrap_or_default();
    let changed = condition::find(&previous.conditions, ConditionType::ArtifactChanged);
    ReleaseFacts {
        generation: release.metadata.generation,
        changed_upstream: changed.filter(|c| c.is_true()).map(|c| c.message.clone()),
        kubernetes_version: previous.kubernetes_version,
        artifact: previous.artifact,
        resources: previous.resources,
        retained: previous.retained,
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
    /// source → release → chart → apply; a step in trouble ends the pass.
    async fn run(&self, facts: &mut ReleaseFacts) -> Result<(), Error> {
        let Some(manifests) = self.fetch_and_render(facts).await else { return Ok(()) };
        let namespace = self.release.namespace().unwrap_or_default();
        let rights = self.ctx.rights(&namespace, Some(&self.stack.spec))?;
        let owner = deletion::owner_of(self.release);
        let (desired, kinds) = self.desired(manifests, &owner, &rights, &namespace).await;
        let live = self.observe(&owner, &rights, &desired, &kinds, facts).await?;
        let plan = self.plan(&owner, desired, &live, facts);
        if plan.empty_render {
            let message = "the chart renders no object, although it did before; what is applied is held. Publish a release with objects, or delete this one";
            facts.applied = StepState::Failed(Trouble::new(ErrorClass::Invalid, Reason::EmptyRender, message));
            return Ok(());
        }
        self.record_intent(&plan, facts).await?;
        let outcomes = self.apply(&plan, &kinds, &live, &rights).await;
        self.note(&plan, &outcomes).await;
        facts.unseen = plan.steps.iter().any(is_unseen);
        facts.resources = rows(&plan, outcomes, &live, facts);
        facts.applied = StepState::Done(String::new());
        facts.reconcile_at.clone_from(&self.asked);
        self.prune(&plan, &live, &rights, facts).await
    }

    /// Fetches, verifies, reads and renders the release; waits for its provider. `None` where the pass ends there.
    async fn fetch_and_render(&self, facts: &mut ReleaseFacts) -> Option<Vec<Manifest>> {
        let Some(name) =
            ReleaseName::of_stack(&self.release.name_any(), &self.stack.spec.provider, &self.stack.spec.name)
        else {
            let message = "its name is no release of its ClusterStack; delete it";
            facts.downloaded = StepState::Failed(Trouble::new(ErrorClass::Invalid, Reason::SpecInvalid, message));
            return None;
        };
        let origin = Origin::of(self.stack, self.ctx).await;
        facts.verify = asked_of(&self.demands(origin.as_ref().ok()));
        let fetched = match self.fetch(&name, origin.as_ref(), facts.artifact.as_ref()).await {
            Ok(fetched) => fetched,
            Err(trouble) => {
                // What was applied does not get worse because its source is away and the store was lost.
                facts.holds = self.release.status.as_ref().is_some_and(|status| status.ready);
                if trouble.reason == Reason::ArtifactChanged {
                    facts.changed_upstream = Some(trouble.message.clone());
                }
                facts.downloaded = StepState::Failed(trouble);
                return None;
            }
        };
        match &fetched.upstream {
            Upstream::Changed(changed) => {
                if facts.changed_upstream.as_ref() != Some(changed) {
                    self.ctx.events.say(self.release, Reason::ArtifactChanged, changed).await;
                }
                facts.changed_upstream = Some(changed.clone());
            }
            Upstream::Same => facts.changed_upstream = None,
            // It was so when the source last answered.
            Upstream::Unknown => {}
        }
        facts.downloaded = match &facts.changed_upstream {
            Some(changed) => StepState::Remarked(Reason::ArtifactChanged, changed.clone()),
            None => StepState::Done(fetched.bundle.remarks.join("; ")),
        };
        facts.kubernetes_version.clone_from(&fetched.bundle.kubernetes_version);
        facts.artifact = Some(fetched.artifact.clone());
        if let Some(reference) = &self.release.spec.provider_ref {
            let template = origin.and_then(|origin| origin.template(self.stack));
            let state = provider::ensure(self.release, template, reference, self.ctx).await;
            let done = matches!(state, StepState::Done(_));
            facts.provider = Some(state);
            if !done {
                return None;
            }
        }
        let rendered = match self.render(&fetched).await {
            Ok(objects) => {
                for (reason, note) in &objects.told {
                    self.ctx.events.say(self.release, *reason, note).await;
                }
                facts.renew = objects.renew;
                objects.manifests
            }
            Err(trouble) => Err(trouble),
        };
        match rendered {
            Ok(manifests) => {
                facts.templated = StepState::Done(String::new());
                Some(manifests)
            }
            Err(trouble) => {
                facts.templated = StepState::Failed(trouble);
                None
            }
        }
    }

    /// Signatures that are asked for; the ClusterStack's own where its source is not known.
    fn demands(&self, origin: Option<&Origin>) -> Vec<Demand> {
        origin.map_or_else(|| own_demand(self.stack).into_iter().collect(), |origin| origin.verify.clone())
    }

    /// The release's files: from the store if they were there before, whatever has become of the source.
    async fn fetch(
        &self,
        name: &ReleaseName,
        origin: Result<&Origin, &Trouble>,
        had: Option<&Artifact>,
    ) -> Result<FetchedRelease, Trouble> {
        let client = self.ctx.clients.own();
        let held = match origin {
            Err(trouble) => Some(trouble.clone()),
            // What was taken once may be fetched again: it may be in use.
            Ok(origin) => origin.suspended().or_else(|| origin.refusal(name).filter(|_| had.is_none())),
        };
        let verify = self.demands(origin.ok());
        let wanted = Wanted {
            held: held.as_ref(),
            had,
            verify: &verify,
            pin: &self.stack.spec.pin,
            ..origin.map_or_else(|_| Wanted::of_nowhere(name), |origin| origin.wanted(name))
        };
        self.ctx.releases.fetch(&client, &wanted, &self.ctx.cancel).await
    }

    async fn render(&self, fetched: &FetchedRelease) -> Result<Objects, Trouble> {
        let namespace = self.release.namespace().unwrap_or_default();
        let rights = self.ctx.rights(&namespace, Some(&self.stack.spec));
        let rights =
            rights.map_err(|error| Trouble::new(ErrorClass::Transient, Reason::RenderFailed, error.to_string()))?;
        let reader = Reader { client: rights.client, kinds: &self.ctx.kinds, only_namespace: rights.only_namespace };
        let releases = self.ctx.stack_releases.state();
        let existing = releases.iter().filter(|release| cluster_stack::is_owned(release, self.stack));
        let job = Job {
            release: fetched,
            reader: &reader,
            client: &self.ctx.clients.own(),
            seed: &deletion::seed_of(self.stack),
            existing: &existing.map(|release| release.name_any()).collect(),
        };
        self.ctx.releases.render(&job).await
    }

    /// The objects as they would be sent, and the kinds that are served.
    async fn desired(
        &self,
        manifests: Vec<Manifest>,
        owner: &Owner,
        rights: &Rights,
        namespace: &str,
    ) -> (Vec<Desired>, BTreeMap<ObjectKey, Kind>) {
        let mut desired = Vec::with_capacity(manifests.len());
        let mut kinds = BTreeMap::new();
        for manifest in manifests {
            let served = self.ctx.kinds.get(&self.ctx.clients.own(), &manifest.api_version(), &manifest.key.kind).await;
            let served = served.map_err(|error| apply::refusal(&error).message);
            let kind = served.as_ref().map(Option::as_ref).map_err(Clone::clone);
            let only = rights.only_namespace.as_deref();
            let object = rights::desired(manifest.with_labels(owner.labels()), kind, namespace, only);
            if let Ok(Some(kind)) = served {
                kinds.insert(object.manifest.key.clone(), kind);
            }
            desired.push(object);
        }
        (desired, kinds)
    }

    /// Reads the live objects among the desired ones and the inventory; rebuilds a lost inventory first.
    async fn observe(
        &self,
        owner: &Owner,
        rights: &Rights,
        desired: &[Desired],
        kinds: &BTreeMap<ObjectKey, Kind>,
        facts: &ReleaseFacts,
    ) -> Result<Live, Error> {
        let is_allowed = |d: &&Desired| d.obstacle.is_none();
        let mut targets: Vec<Target> = desired
            .iter()
            .filter(is_allowed)
            .filter_map(|d| Some(Target { key: d.manifest.key.clone(), kind: kinds.get(&d.manifest.key)?.clone() }))
            .collect();
        let rest: Vec<Row> = facts
            .resources
            .iter()
            .chain(&facts.retained)
            .filter(|row| !desired.iter().any(|d| d.manifest.key == plan::key_of(row)))
            .cloned()
            .collect();
        targets.extend(deletion::targets(&rest, self.ctx).await?);
        let without_inventory = facts.resources.is_empty();
        let mut live = observe::live(&rights.client, owner, &targets, without_inventory).await;
        let was_applied = without_inventory && live.objects.values().any(|object| owner.is_of(object));
        if was_applied && self.ctx.memory.rebuilds(&self.release.uid().unwrap_or_default()) {
            tracing::info!(release = %owner.name, "the inventory was lost: rebuilding it from labels");
            let found = observe::rebuild(&self.ctx.clients.own(), &self.ctx.kinds, owner)
                .await
                .doing(|| format!("finding the objects of ClusterStackRelease {}", owner.name))?;
            let unknown: Vec<Target> =
                found.into_iter().filter(|target| !live.objects.contains_key(&target.key)).collect();
            let more = observe::live(&rights.client, owner, &unknown, false).await;
            live.objects.extend(more.objects);
        }
        Ok(live)
    }

    fn plan(&self, owner: &Owner, mut desired: Vec<Desired>, live: &Live, facts: &ReleaseFacts) -> Plan {
        for object in &mut desired {
            if let Some(error) = live.unreadable.get(&object.manifest.key) {
                let Refusal { reason, message } = apply::refusal(error);
                object.obstacle = Some((reason, message));
            }
        }
        let uid = self.release.uid().unwrap_or_default();
        let asked = self.asked != facts.reconcile_at;
        if asked {
            self.ctx.memory.end_fights(&uid);
        }
        let retries = self.ctx.memory.retries_refused(&uid);
        let recorded: Vec<Row> = facts.resources.iter().chain(&facts.retained).cloned().collect();
        plan::plan(&Input {
            owner,
            desired: &desired,
            recorded: &recorded,
            live: &live.objects,
            ignore: &self.stack.spec.ignore_differences,
            drift: self.stack.spec.drift_mode.unwrap_or_default(),
            fights: &self.ctx.memory.fights(&uid, Timestamp::now()),
            retry_refused: retries || asked,
            siblings: &self.siblings(),
        })
    }

    /// The other releases of the ClusterStack, as last seen, by the value of their owner label.
    fn siblings(&self) -> BTreeMap<String, Sibling> {
        let spec = &self.stack.spec;
        let version = |name: &str| ReleaseName::of_stack(name, &spec.provider, &spec.name).map(|name| name.version);
        let Some(own) = version(&self.release.name_any()) else { return BTreeMap::new() };
        let others = self.ctx.stack_releases.state();
        let others = others.iter().filter(|other| cluster_stack::is_owned(other, self.stack));
        others
            .filter_map(|other| {
                let name = other.name_any();
                let sibling = match version(&name)?.cmp(&own) {
                    std::cmp::Ordering::Less => Sibling::Older,
                    std::cmp::Ordering::Greater => Sibling::Newer,
                    std::cmp::Ordering::Equal => return None,
                };
                Some((label_value(&name), sibling))
            })
            .collect()
    }

    /// Writes what is about to be applied for the first time into the inventory, so that a process that dies meanwhile
    /// leaves nothing behind that nobody knows of.
    async fn record_intent(&self, plan: &Plan, facts: &ReleaseFacts) -> Result<(), Error> {
        let known = |key: &ObjectKey| facts.resources.iter().any(|row| plan::key_of(row) == *key);
        let new: Vec<&Step> =
            plan.steps.iter().filter(|s| matches!(s.action, Act::Apply { .. }) && !known(&s.manifest.key)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut intent = facts.clone();
        intent
            .resources
            .extend(new.into_iter().map(|step| Row { error: "about to be applied".into(), ..row_of(&step.manifest) }));
        intent.applied = StepState::Running(Reason::Progressing, "applying objects".into());
        write_status(self.release, self.ctx, intent).await
    }

    /// Sends what has to be sent, wave by wave.
    async fn apply(
        &self,
        plan: &Plan,
        kinds: &BTreeMap<ObjectKey, Kind>,
        live: &Live,
        rights: &Rights,
    ) -> BTreeMap<ObjectKey, Outcome> {
        let mut outcomes = BTreeMap::new();
        for wave in 0..=3 {
            let objects: Vec<Send<'_>> = plan
                .steps
                .iter()
                .filter(|step| step.wave == wave)
                .filter_map(|step| {
                    let Act::Apply { migrate, .. } = step.action else { return None };
                    let kind = kinds.get(&step.manifest.key)?;
                    let migrate = live.objects.get(&step.manifest.key).filter(|_| migrate);
                    Some(Send { manifest: &step.manifest, kind, migrate })
                })
                .collect();
            if objects.is_empty() {
                continue;
            }
            let definitions = apply::definitions(&objects);
            let sent = apply::send(&rights.client, objects).await;
            apply::established(&self.ctx.clients.watching(), &definitions, std::time::Duration::from_secs(30)).await;
            outcomes.extend(sent.into_iter().map(|outcome| (outcome.key.clone(), outcome)));
        }
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
        outcomes
    }

    /// Events, metrics and the memory of corrections.
    async fn note(&self, plan: &Plan, outcomes: &BTreeMap<ObjectKey, Outcome>) {
        let (mut applied, mut failed, mut corrected, mut held) = (0, 0, 0, 0);
        let mut put_back = Vec::new();
        for step in &plan.steps {
            let key = &step.manifest.key;
            match (&step.action, outcomes.get(key)) {
                (Act::Hold { .. }, _) => held += 1,
                (Act::Apply { why, .. }, Some(Outcome { result: Ok(_), .. })) => {
                    applied += 1;
                    if matches!(why, Why::Drifted { .. } | Why::Deleted) {
                        corrected += 1;
                        let what = plan::drift_message(why);
                        let uid = self.release.uid().unwrap_or_default();
                        self.ctx.memory.corrected(&uid, key, &what, Timestamp::now());
                        put_back.push(format!("{key} was {what}"));
                    }
                }
                (Act::Apply { .. }, _) => failed += 1,
                (Act::Unchanged { .. }, _) => {}
            }
        }
        for (action, count) in [("applied", applied), ("failed", failed), ("corrected", corrected), ("held", held)] {
            self.ctx.metrics.count(action, count);
        }
        for what in put_back {
            tracing::info!(release = %self.release.name_any(), what, "put back");
            self.ctx.events.say(self.release, Reason::DriftCorrected, &format!("put back: {what}")).await;
        }
    }

    /// Deletes what no longer belongs to the release, once all that does is applied.
    async fn prune(&self, plan: &Plan, live: &Live, rights: &Rights, facts: &mut ReleaseFacts) -> Result<(), Error> {
        let leftover = |keys: &[ObjectKey]| -> Vec<Row> {
            keys.iter()
                .filter_map(|key| Some(row_of(&Manifest::from_value(live.objects.get(key)?.clone()).ok()?)))
                .collect()
        };
        facts.retained = leftover(&plan.prune.retain);
        let all_synced = facts.resources.iter().all(|row| row.status == ResourceStatus::Synced);
        let waiting = leftover(&plan.prune.delete);
        if waiting.is_empty() {
            return Ok(());
        }
        if !all_synced {
            facts.retained.extend(waiting);
            return Ok(());
        }
        for target in deletion::targets(&waiting, self.ctx).await? {
            let Some(object) = live.objects.get(&target.key) else { continue };
            match apply::delete(&rights.client, &target.kind, &target.key, object).await {
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

/// An inventory row of an object, not synced yet.
fn row_of(manifest: &Manifest) -> Row {
    Row {
        group: manifest.key.group.clone(),
        version: manifest.version.clone(),
        kind: manifest.key.kind.clone(),
        namespace: manifest.key.namespace.clone(),
        name: manifest.key.name.clone(),
        ..Row::default()
    }
}

/// The inventory after a pass: a row per object, in the order of applying.
fn rows(plan: &Plan, mut outcomes: BTreeMap<ObjectKey, Outcome>, live: &Live, before: &ReleaseFacts) -> Vec<Row> {
    plan.steps
        .iter()
        .map(|step| {
            let key = &step.manifest.key;
            let mut row = row_of(&step.manifest);
            let previous = before.resources.iter().find(|row| plan::key_of(row) == *key);
            match (&step.action, outcomes.remove(key).map(|outcome| outcome.result)) {
                (Act::Unchanged { digest }, _) => {
                    row.digest.clone_from(digest);
                    healthy(&mut row, live.objects.get(key));
                }
                (Act::Apply { .. }, Some(Ok(object))) => {
                    let owned = plan::owned_digest(&object, &step.ignored).unwrap_or_default();
                    row.digest = format!("{}.{owned}", step.wanted);
                    healthy(&mut row, Some(&object));
                }
                (Act::Apply { .. }, Some(Err(Refusal { reason, message }))) => {
                    refused(&mut row, reason, &message, previous);
                    if reason == Reason::Invalid {
                        row.digest = format!("{}.", step.wanted);
                    }
                }
                (Act::Apply { .. }, None) => refused(&mut row, Reason::ApplyFailed, "not sent", previous),
                (Act::Hold { .. }, _)
                    if is_unseen(step) && previous.is_some_and(|row| was_synced(row, &step.wanted)) =>
                {
                    // Nothing says that it is worse than it was when it was last seen.
                    row = previous.cloned().unwrap_or_default();
                }
                (Act::Hold { reason, message, digest }, _) => {
                    refused(&mut row, *reason, message, previous);
                    row.digest.clone_from(digest);
                }
            }
            row
        })
        .collect()
}

/// Whether an object could not be looked at: the API server did not answer about it.
fn is_unseen(step: &Step) -> bool {
    matches!(step.action, Act::Hold { reason: Reason::ApplyFailed, .. })
}

/// Whether an object was as this release wants it when it was last seen.
fn was_synced(row: &Row, wanted: &str) -> bool {
    let sent = row.digest.split_once('.').map(|(sent, _)| sent);
    row.status == ResourceStatus::Synced && sent == Some(wanted)
}

fn healthy(row: &mut Row, live: Option<&Value>) {
    row.status = ResourceStatus::Synced;
    if let Some(live) = live {
        let health = health::of(live);
        health.as_str().clone_into(&mut row.health);
        row.error = condition::cut(health.message(), condition::MAX_MESSAGE);
    }
}

fn refused(row: &mut Row, reason: Reason, message: &str, previous: Option<&Row>) {
    row.status = ResourceStatus::NotSynced;
    row.reason = Some(reason);
    row.error = condition::cut(message, condition::MAX_MESSAGE);
    row.digest = previous.map(|row| row.digest.clone()).unwrap_or_default();
}

/// When to come back without an event.
fn next(facts: &ReleaseFacts, stack: &ClusterStack, release: &ClusterStackRelease, ctx: &Context) -> Action {
    let pause = interval(stack.spec.interval.as_deref());
    let steps = [Some(&facts.downloaded), facts.provider.as_ref(), Some(&facts.templated), Some(&facts.applied)];
    let trouble = steps.into_iter().flatten().find_map(StepState::trouble).map(|trouble| trouble.class);
    let rows = facts.resources.iter().filter(|row| row.status == ResourceStatus::NotSynced).map(row_class).min();
    let uid = release.uid().unwrap_or_default();
    let unseen = facts.unseen.then_some(ErrorClass::Transient);
    match trouble.or(unseen).or(rows) {
        Some(ErrorClass::Transient) => Action::requeue(ctx.after(ErrorClass::Transient, &uid)),
        Some(ErrorClass::Waiting) => Action::requeue(spread(retry::WAITING.min(pause))),
        _ => {
            ctx.memory.succeeded(&uid);
            let due = facts.renew.map(|at| at.duration_since(Timestamp::now()));
            match due.map(|left| Duration::try_from(left).unwrap_or_default().max(SOONEST_RENEWAL)) {
                Some(left) if left < pause => Action::requeue(left),
                _ => Action::requeue(spread(pause)),
            }
        }
    }
}

/// Writes the status if it says something new, and an event where readiness changed.
async fn write_status(release: &ClusterStackRelease, ctx: &Context, facts: ReleaseFacts) -> Result<(), Error> {
    if ctx.cancel.is_cancelled() {
        // What a pass found that was ended from outside says nothing.
        return Ok(());
    }
    let previous = release.status.clone().unwrap_or_default();
    let status = status::release_status(&previous, facts, Timestamp::now());
    let written = report::status(&ctx.clients.own(), release, release.status.as_ref(), &status)
        .await
        .doing(|| format!("writing the status of ClusterStackRelease {}", release.name_any()))?;
    let reason = |conditions| condition::find(conditions, ConditionType::Ready).map(|c| c.reason.clone());
    let now = condition::find(&status.conditions, ConditionType::Ready);
    if let (true, Some(now)) = (written && reason(&previous.conditions) != reason(&status.conditions), now) {
        tracing::info!(release = %release.name_any(), ready = now.status, reason = now.reason, message = now.message, "ClusterStackRelease");
        let word = Reason::ALL.iter().copied().find(|reason| reason.as_str() == now.reason);
        if let Some(word) = word.filter(|word| *word != Reason::Progressing) {
            ctx.events.say(release, word, &now.message).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_synced_as_wanted_is_taken_as_it_was() {
        let row = |status, digest: &str| Row { status, digest: digest.into(), ..Row::default() };
        assert!(was_synced(&row(ResourceStatus::Synced, "want.owned"), "want"));
        assert!(!was_synced(&row(ResourceStatus::Synced, "other.owned"), "want"));
        assert!(!was_synced(&row(ResourceStatus::NotSynced, "want.owned"), "want"));
        assert!(!was_synced(&row(ResourceStatus::Synced, ""), "want"));
    }
}
