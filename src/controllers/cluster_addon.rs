//! `ClusterAddon`: brings a release's addons to one workload cluster, stage by stage.

mod adoption;
mod creation;
mod deliver;
mod drift;
mod earlier_hooks;
mod ending;
mod given;
mod helm_hooks;
mod helm_tests;
mod keeping;
mod leaving;
mod removal;
mod running;
mod work;

pub(super) use creation::make;
pub(super) use given::Asked;
pub(super) use running::{Fetched, run};

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::reflector::Store;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use self::work::Work;
use super::delivery::Delivery;
use super::{Action, Context, Doing, Error, cluster_stack_release, finalizer, reconcile_at, seats, spread};
use crate::api::cluster_addon::{StageAction, StagePhase, StageStatus, TestsPhase};
use crate::api::cluster_stack_release::ResourceStatus;
use crate::api::condition::{self, Reason, Reported};
use crate::api::{CLUSTER_ADDON_FINALIZER, ClusterAddon, ClusterAddonStatus, ClusterStackRelease, FIELD_MANAGER};
use crate::core::addon::cluster::{self, Cluster, addon_name};
use crate::core::addon::stages::{self, Target};
use crate::core::addon_config::{AddonConfig, Hook};
use crate::core::in_use;
use crate::core::ownership::Owner;
use crate::core::retry::{self, ErrorClass};
use crate::core::share::Root;
use crate::core::status::{AddonFacts, StepState, Trouble, addon_status, row_class, tells_of_failure};
use crate::io::inputs::{self, kubeconfig_name};
use crate::io::kinds::Kinds;
use crate::io::release::FetchedRelease;
use crate::io::usage::CLUSTER_API;
use crate::io::watch::Notice;
use crate::io::workload::Workload;
use crate::io::{observe, report, seed};

/// How often a stage that waits is looked at.
const STAGE: Duration = Duration::from_secs(3);
/// How often a workload cluster is looked at without an event: what was changed there by hand is put back.
const INTERVAL: Duration = Duration::from_mins(1);

/// Whether it is the one that is worked on for its Cluster: of two, each would undo the other's work.
fn is_of_its_cluster(addon: &ClusterAddon, cluster: &str) -> bool {
    let namespace = addon.spec.cluster_ref.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    addon.name_any() == addon_name(cluster) && namespace.is_none_or(|of| Some(of) == addon.namespace().as_deref())
}

/// One pass over a ClusterAddon.
///
/// # Errors
/// What the API server refused; what a user can mend is said in conditions.
pub async fn reconcile(seen: Arc<ClusterAddon>, ctx: Arc<Context>) -> Result<Action, Error> {
    if !ctx.is_ours(&*seen) {
        return Ok(Action::await_change());
    }
    let (namespace, name) = (seen.namespace().unwrap_or_default(), seen.name_any());
    // The cache may be behind our own last write, and the inventory must not be.
    let api: Api<ClusterAddon> = Api::namespaced(ctx.clients.own(), &namespace);
    let read = api.get_opt(&name).await.doing(|| format!("reading ClusterAddon {name}"))?;
    let Some(addon) = read else { return Ok(Action::await_change()) };
    let named = addon.spec.cluster_ref.name.as_deref().unwrap_or_default();
    let cluster = if named.is_empty() { None } else { cluster_of(&namespace, named, &ctx).await? };
    let is_going = addon.metadata.deletion_timestamp.is_some();
    if is_going && !stays(&addon, cluster.as_ref(), &ctx).await {
        return delete(&addon, cluster.map(|(cluster, _)| cluster), &ctx).await;
    }
    if let Some((cluster, _)) = &cluster
        && !is_going
        && is_handed_over(&addon, cluster, &api).await?
    {
        return Ok(Action::await_change());
    }
    let mut facts = carried_over(&addon);
    match &cluster {
        None if is_early(&addon) => {
            let message = if named.is_empty() {
                "spec.clusterRef.name is missing: name the Cluster, or delete this one".to_owned()
            } else {
                format!(
                    "waiting for Cluster {namespace}/{named}, which is not there; delete this one if none is to come"
                )
            };
            facts.applied = StepState::Failed(Trouble::new(ErrorClass::Waiting, Reason::OwnerMissing, message));
            write_status(&addon, &ctx, facts).await?;
            return Ok(Action::requeue(spread(retry::WAITING)));
        }
        // Its owner reference says so too, where somebody collects garbage.
        None => return go(&addon, &api).await,
        Some((cluster, _)) if !is_of_its_cluster(&addon, &cluster.name) => {
            let message = format!(
                "a Cluster has one ClusterAddon, {}, which the operator makes, of the Cluster's own namespace: delete this one",
                addon_name(&cluster.name)
            );
            facts.applied = StepState::Failed(Trouble::new(ErrorClass::Invalid, Reason::SpecInvalid, message));
            write_status(&addon, &ctx, facts).await?;
            return Ok(Action::await_change());
        }
        Some((cluster, object)) => {
            // It stays until the seed of its Cluster is gone.
            if !finalizer::is_on(&addon, CLUSTER_ADDON_FINALIZER) {
                let held = finalizer::add(ctx.clients.own(), &addon, CLUSTER_ADDON_FINALIZER).await?;
                report::changed(&addon, &held);
            }
            let pass = Pass { addon: &addon, cluster, object, ctx: &ctx };
            ctx.memory.begins_to_look(&addon.uid().unwrap_or_default());
            if let Err(error) = Box::pin(pass.run(&mut facts)).await {
                let status = addon.status.clone().unwrap_or_default();
                // Who asked for a look is told what came of it.
                if tells_of_failure(&status, &facts) || status.last_handled_reconcile_at != reconcile_at(&addon) {
                    if let Some(turn) = stages::current(&facts.stages) {
                        let phase = facts.stages[turn].phase;
                        stages::enter(&mut facts.stages[turn], phase, &error.message(), Timestamp::now());
                    }
                    let trouble = Trouble::new(ErrorClass::Transient, Reason::ApplyFailed, error.message());
                    facts.applied = StepState::Failed(trouble);
                    write_status(&addon, &ctx, facts).await?;
                }
                return Err(error);
            }
        }
    }
    let next = next(&facts, &addon, &ctx);
    write_status(&addon, &ctx, facts).await?;
    ctx.memory.wrote(&addon.uid().unwrap_or_default());
    Ok(next)
}

/// Says that nobody works on it. Its Cluster may have another class by now.
async fn unserved(addon: &ClusterAddon, ctx: &Context) -> Result<Action, Error> {
    let namespace = addon.namespace().unwrap_or_default();
    let api: Api<ClusterAddon> = Api::namespaced(ctx.clients.own(), &namespace);
    let named = addon.spec.cluster_ref.name.as_deref().unwrap_or_default();
    let cluster = if named.is_empty() { None } else { cluster_of(&namespace, named, ctx).await? };
    match &cluster {
        Some((cluster, _)) if is_handed_over(addon, cluster, &api).await? => return Ok(Action::await_change()),
        Some(_) if addon.metadata.deletion_timestamp.is_none() => {}
        None if is_early(addon) => {}
        // It goes whoever takes it.
        _ => return delete_unserved(addon, cluster.map(|(cluster, _)| cluster), ctx, &api).await,
    }
    let trouble = seats::unserved(addon);
    let mut facts = carried_over(addon);
    facts.held = Some((trouble.reason, trouble.message));
    write_status(addon, ctx, facts).await?;
    Ok(Action::await_change())
}

async fn delete_unserved(
    addon: &ClusterAddon,
    cluster: Option<Cluster>,
    ctx: &Context,
    api: &Api<ClusterAddon>,
) -> Result<Action, Error> {
    if addon.metadata.deletion_timestamp.is_none() {
        return go(addon, api).await;
    }
    delete(addon, cluster, ctx).await
}

/// Gives the object the labels of its Cluster by which it is worked on; whether it had others, so that somebody else may have it
/// now.
async fn is_handed_over(addon: &ClusterAddon, cluster: &Cluster, api: &Api<ClusterAddon>) -> Result<bool, Error> {
    let labels = creation::handed_down(cluster, addon.labels());
    if labels.is_empty() {
        return Ok(false);
    }
    let metadata = json!({"resourceVersion": addon.resource_version(), "labels": labels});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let name = addon.name_any();
    let patched = api.patch_metadata(&name, &params, &Patch::Merge(json!({"metadata": metadata}))).await;
    patched.map(|_| true).doing(|| format!("labelling ClusterAddon {name} as its Cluster"))
}

/// Another replica has it now.
fn let_go(addon: &ClusterAddon, ctx: &Context) {
    let seed = seed_of(addon);
    ctx.workloads.forget(&seed.namespace, &seed.name);
    ctx.inputs.settle(&(seed.namespace, seed.name), &BTreeSet::new());
    ctx.memory.forget(&addon.uid().unwrap_or_default());
}

/// Whether it came before its Cluster: applied by a tool that keeps no order, or restored from a backup. One whose Cluster is gone has
/// an owner, or was worked on.
fn is_early(addon: &ClusterAddon) -> bool {
    let is_unworked = addon.conditions().is_empty()
        || addon.ready().is_some_and(|ready| ready.reason == Reason::OwnerMissing.as_str());
    addon.metadata.deletion_timestamp.is_none() && addon.owner_references().is_empty() && is_unworked
}

/// Deletes a ClusterAddon whose Cluster is gone.
async fn go(addon: &ClusterAddon, api: &Api<ClusterAddon>) -> Result<Action, Error> {
    let name = addon.name_any();
    let preconditions = Some(Preconditions { uid: addon.uid(), resource_version: None });
    match api.delete(&name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        other => other.map(|_| ()).doing(|| format!("deleting ClusterAddon {name}"))?,
    }
    Ok(Action::await_change())
}

/// The Cluster of that name, in the version that the API server prefers, and what matters of it.
pub(super) async fn cluster_of(namespace: &str, name: &str, ctx: &Context) -> Result<Option<(Cluster, Value)>, Error> {
    let read = read_cluster(&ctx.clients.own(), &ctx.kinds, namespace, name).await;
    read.doing(|| format!("reading Cluster {namespace}/{name}"))
}

/// The same with any client.
pub(super) async fn read_cluster(
    client: &Client,
    kinds: &Kinds,
    namespace: &str,
    name: &str,
) -> Result<Option<(Cluster, Value)>, kube::Error> {
    let Some(kind) = kinds.certain(client, CLUSTER_API, "Cluster").await? else { return Ok(None) };
    let found = observe::api(client, &kind, namespace).get_opt(&observe::segment(name)).await?;
    let object = found.map(|object| observe::plain(&object, &kind));
    Ok(object.and_then(|object| Some((cluster::read(&object)?, object))))
}

/// What decides who works on a Cluster, as it was last seen.
fn root_of(cluster: &Cluster, ctx: &Context) -> Root {
    Root {
        uid: cluster.uid.clone(),
        namespace: cluster.namespace.clone(),
        watch_filter: ctx.settings.watch_filter.clone().unwrap_or_default(),
        class: cluster.shard_class.clone(),
    }
}

/// The release that a ClusterClass is of.
pub(super) fn release_of(class: &(String, String), ctx: &Context) -> Option<Arc<ClusterStackRelease>> {
    release_among(class, &ctx.stack_releases)
}

/// The release of these that a ClusterClass is of.
pub(super) fn release_among(
    class: &(String, String),
    releases: &Store<ClusterStackRelease>,
) -> Option<Arc<ClusterStackRelease>> {
    let is_it = |release: &Arc<ClusterStackRelease>| {
        let namespace = release.namespace().unwrap_or_default();
        let rows = release.status.as_ref().map(|status| status.resources.as_slice()).unwrap_or_default();
        namespace == class.0 && in_use::footprint(&release.name_any(), &namespace, rows).classes.contains(class)
    };
    releases.state().into_iter().find(is_it)
}

/// The target whose seed the addon charts of a Cluster draw from.
fn seed_of(addon: &ClusterAddon) -> Owner {
    let name = addon.spec.cluster_ref.name.as_deref().unwrap_or_default();
    seed_of_cluster(&addon.namespace().unwrap_or_default(), name)
}

/// The same by the Cluster's name.
pub(super) fn seed_of_cluster(namespace: &str, name: &str) -> Owner {
    Owner { kind: "Cluster".to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
}

/// Whose the objects of a ClusterAddon are.
pub(super) fn owner_named(namespace: &str, name: &str) -> Owner {
    Owner { kind: "ClusterAddon".to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
}

/// Whether a ClusterAddon that goes stays for what is to be done before its Cluster goes, which is there yet.
async fn stays(addon: &ClusterAddon, cluster: Option<&(Cluster, Value)>, ctx: &Context) -> bool {
    let Some((cluster, object)) = cluster else { return false };
    Pass { addon, cluster, object, ctx }.stays().await
}

/// A ClusterAddon that goes. The workload cluster is not asked: it may be gone, and nothing may wait for it. Where its
/// Cluster stays, the object is made anew and finds its addons by their labels.
async fn delete(addon: &ClusterAddon, cluster: Option<Cluster>, ctx: &Context) -> Result<Action, Error> {
    let seed = seed_of(addon);
    ctx.workloads.forget(&seed.namespace, &seed.name);
    ctx.inputs.settle(&(seed.namespace.clone(), seed.name.clone()), &BTreeSet::new());
    if finalizer::is_on(addon, CLUSTER_ADDON_FINALIZER) {
        if cluster.is_none_or(|cluster| cluster.deleting) {
            seed::delete(&ctx.clients.own(), &seed)
                .await
                .doing(|| format!("deleting the seed of Cluster {}", seed.name))?;
        }
        finalizer::remove(ctx.clients.own(), addon, CLUSTER_ADDON_FINALIZER).await?;
        ctx.watches.tell(Notice::Addons(seed.namespace, seed.name));
    }
    // Not before: of what fails it is remembered how often it did.
    ctx.memory.forget(&addon.uid().unwrap_or_default());
    Ok(Action::await_change())
}

/// What stays as it was unless the pass finds otherwise.
fn carried_over(addon: &ClusterAddon) -> AddonFacts {
    let previous = addon.status.clone().unwrap_or_default();
    AddonFacts {
        generation: addon.metadata.generation,
        release: previous.release,
        kubernetes_version: previous.kubernetes_version,
        stages: previous.stages,
        resources: previous.resources,
        retained: previous.retained,
        charts: previous.charts,
        skipped: previous.skipped,
        tests: previous.tests,
        reconcile_at: previous.last_handled_reconcile_at,
        ..AddonFacts::default()
    }
}

/// One pass with all it needs.
struct Pass<'a> {
    addon: &'a ClusterAddon,
    cluster: &'a Cluster,
    object: &'a Value,
    ctx: &'a Context,
}

impl Pass<'_> {
    /// release → stages → workload cluster; a step in trouble ends the pass.
    async fn run(&self, facts: &mut AddonFacts) -> Result<(), Error> {
        facts.held = self.held();
        if facts.held.is_some() {
            return if self.is_before_deletion() { self.before_deletion(facts).await } else { Ok(()) };
        }
        let release = match self.release().await {
            Ok(release) => release,
            Err(trouble) => {
                facts.downloaded = StepState::Failed(trouble);
                return Ok(());
            }
        };
        facts.downloaded = StepState::Done(String::new());
        let config = stages::of_charts(release.bundle.addon.as_ref());
        let previous = self.addon.status.clone().unwrap_or_default();
        let target = match self.target(&release, &previous, &config).await {
            Ok(target) => target,
            Err(trouble) => {
                facts.templated = StepState::Failed(trouble);
                return Ok(());
            }
        };
        facts.stages = stages::progress(&self.addon.spec, &previous, &target, &config, Timestamp::now());
        facts.release.clone_from(&target.release);
        facts.kubernetes_version.clone_from(&target.kubernetes_version);
        self.skip(facts).await;
        let nothing = facts.stages.is_empty() && facts.resources.is_empty() && facts.retained.is_empty();
        let workload = match self.workload(nothing).await {
            Ok(workload) => workload,
            Err(trouble) => {
                while self.leaves(&config, &trouble.message, facts).await {}
                facts.reachable = StepState::Failed(trouble);
                return Ok(());
            }
        };
        facts.reachable = StepState::Done(String::new());
        facts.templated = StepState::Done(String::new());
        facts.applied = StepState::Done(String::new());
        if let Some(workload) = &workload {
            let delivery = self.delivery(workload);
            let done = Work::new(self, &release, &config, workload, delivery).run(facts).await;
            facts.due = stages::due(&facts.stages, &config);
            if let Err(trouble) = self.ctx.workloads.settle(&self.cluster.namespace, &self.cluster.name, workload) {
                facts.reachable = StepState::Failed(trouble);
                return Ok(());
            }
            done?;
        }
        if stages::current(&facts.stages).is_none() && facts.templated.trouble().is_none() {
            // The last stage before the upgrade may have ended after the last machine came.
            let now = ClusterAddonStatus {
                release: target.release.clone(),
                kubernetes_version: target.kubernetes_version.clone(),
                stages: facts.stages.clone(),
                ..ClusterAddonStatus::default()
            };
            facts.stages = stages::progress(&self.addon.spec, &now, &target, &config, Timestamp::now());
        }
        if stages::current(&facts.stages).is_none() && facts.templated.trouble().is_none() {
            self.complete(&release, facts).await?;
        }
        Ok(())
    }

    /// Why nothing is written to the workload cluster.
    fn held(&self) -> Option<(Reason, String)> {
        if self.cluster.deleting {
            return Some((Reason::Deleting, "the Cluster is being deleted: its addons go with it".to_owned()));
        }
        if self.cluster.paused {
            return Some((Reason::Paused, "the Cluster is paused: its addons are left as they are".to_owned()));
        }
        self.addon
            .spec
            .suspend
            .then(|| (Reason::Suspended, "spec.suspend is set: addons are left as they are".to_owned()))
    }

    /// The release of the Cluster's ClusterClass, from the store.
    async fn release(&self) -> Result<FetchedRelease, Trouble> {
        let unknown = |message: String| Trouble::new(ErrorClass::Waiting, Reason::ReleaseUnknown, message);
        let Some(class) = &self.cluster.class else {
            return Err(unknown("the Cluster names no ClusterClass any more; its addons stay".to_owned()));
        };
        let name = format!("{}/{}", class.0, class.1);
        let Some(release) = release_of(class, self.ctx) else {
            return Err(unknown(format!(
                "ClusterClass {name} is of no ClusterStackRelease; its addons stay as they are"
            )));
        };
        cluster_stack_release::fetched(&release, self.ctx).await
    }

    /// What the Cluster asks for.
    async fn target(
        &self,
        release: &FetchedRelease,
        previous: &ClusterAddonStatus,
        config: &AddonConfig,
    ) -> Result<Target, Trouble> {
        let may_have_been_lost = stages::is_without_a_past(previous) && !config.stages.is_empty();
        Ok(Target {
            release: release.bundle.name.object_name(),
            kubernetes_version: self.cluster.kubernetes_version.clone(),
            rolled_out: self.cluster.rolled_out,
            is_held: may_have_been_lost && self.is_held().await?,
        })
    }

    /// The workload cluster; it is not asked for where there is nothing to bring.
    async fn workload(&self, nothing: bool) -> Result<Option<Workload>, Trouble> {
        if nothing {
            return Ok(None);
        }
        let Cluster { namespace, name, .. } = self.cluster;
        let secret = given::key_of("", "Secret", namespace, &kubeconfig_name(name));
        self.ctx.inputs.uses(&self.place(), &secret, None);
        let asked = reconcile_at(self.addon)
            != self.addon.status.as_ref().map(|status| status.last_handled_reconcile_at.clone()).unwrap_or_default();
        let workload = self.ctx.workloads.begin(&self.ctx.clients.own(), (namespace, name), asked).await?;
        self.ctx.inputs.read(&self.place(), &secret, Some(inputs::version(workload.secret_version.as_deref())));
        Ok(Some(workload))
    }

    fn delivery<'w>(&self, workload: &'w Workload) -> Delivery<'w> {
        Delivery::to_workload(
            workload,
            owner_named(&self.addon.namespace().unwrap_or_default(), &self.addon.name_any()),
        )
    }

    /// All stages are done: the Go operator's fields say which release it was, and hold it.
    async fn complete(&self, release: &FetchedRelease, facts: &mut AddonFacts) -> Result<(), Error> {
        let version = release.bundle.addon_version.clone().unwrap_or_default();
        let spec = &self.addon.spec;
        if spec.cluster_stack == facts.release && spec.version == version && spec.hook.is_empty() {
            return Ok(());
        }
        let patch = json!({"spec": {"clusterStack": facts.release, "version": version, "hook": null}});
        let name = self.addon.name_any();
        let api: Api<ClusterAddon> =
            Api::namespaced(self.ctx.clients.own(), &self.addon.namespace().unwrap_or_default());
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let now = api.patch(&name, &params, &Patch::Merge(patch)).await;
        let now: ClusterAddon = now.doing(|| format!("writing ClusterAddon {name}"))?;
        report::changed(self.addon, &now);
        // Where it is another one, somebody else has changed something, too.
        if now.metadata.generation == self.addon.metadata.generation.map(|before| before + 1) {
            facts.generation = now.metadata.generation;
        }
        let done = format!("all stages of {} are done", facts.release);
        self.ctx.events.say(self.addon, Reason::StageDone, &done).await;
        Ok(())
    }
}

/// When to come back without an event.
fn next(facts: &AddonFacts, addon: &ClusterAddon, ctx: &Context) -> Action {
    let uid = addon.uid().unwrap_or_default();
    let steps = [&facts.downloaded, &facts.reachable, &facts.templated, &facts.applied];
    let trouble = steps.into_iter().find_map(StepState::trouble);
    let rows = facts.resources.iter().filter(|row| row.status == ResourceStatus::NotSynced).map(row_class).min();
    if facts.held.is_some() {
        let has_turn = stages::current(&facts.stages).is_some();
        // One that stays for its stages goes when they are done, or their time is over.
        let is_under_way = addon.metadata.deletion_timestamp.is_some()
            || addon.spec.hook == Hook::BeforeClusterDelete.as_str() && has_turn;
        return Action::requeue(spread(if is_under_way { STAGE } else { retry::WAITING }));
    }
    let is_tested = facts.tests.as_ref().is_some_and(|tests| tests.phase == TestsPhase::Running);
    if is_tested || matches!(facts.applied, StepState::Running(Reason::WaitingForHelmHook, _)) {
        return Action::requeue(spread(STAGE));
    }
    let cluster = addon.spec.cluster_ref.name.as_deref().unwrap_or_default();
    let open = ctx.workloads.circuits().next(&addon.namespace().unwrap_or_default(), cluster);
    if let Some(next) = open.filter(|_| facts.reachable.trouble().is_some()) {
        let pause = Duration::try_from(next.duration_since(Timestamp::now())).unwrap_or_default();
        return Action::requeue(pause + Duration::from_millis(100));
    }
    let pace = pace(facts, rows.is_some());
    let next = match (trouble.map(|trouble| trouble.class), rows) {
        (Some(ErrorClass::Transient), _) => ctx.after(ErrorClass::Transient, &uid),
        (Some(_), _) => spread(INTERVAL),
        // What is refused for now holds up no condition for long.
        (None, Some(ErrorClass::Transient)) => ctx.after(ErrorClass::Transient, &uid).min(spread(INTERVAL)),
        (None, Some(_)) => spread(pace),
        (None, None) => {
            ctx.memory.succeeded(&uid);
            spread(pace)
        }
    };
    let left = facts.due.map(|due| Duration::try_from(due.duration_since(Timestamp::now())).unwrap_or_default());
    Action::requeue(left.map_or(next, |left| next.min(left + Duration::from_millis(100))))
}

/// How often it is looked whether a stage can go on. What keeps objects from being applied has a pace of its own.
fn pace(facts: &AddonFacts, has_unsynced: bool) -> Duration {
    let Some(turn) = stages::current(&facts.stages) else { return INTERVAL };
    let StageStatus { phase, action, .. } = &facts.stages[turn];
    let applies = (*phase, *action) == (StagePhase::ApplyingOrDeleting, StageAction::Apply);
    if applies && has_unsynced { INTERVAL } else { STAGE }
}

async fn put_status(addon: &ClusterAddon, status: &ClusterAddonStatus, ctx: &Context) -> Result<bool, Error> {
    report::status(&ctx.clients.own(), addon, addon.status.as_ref(), status)
        .await
        .doing(|| format!("writing the status of ClusterAddon {}", addon.name_any()))
}

/// Writes in the middle of a pass what is about to be done: what somebody asked for is not done by then.
async fn write_intent(addon: &ClusterAddon, ctx: &Context, facts: AddonFacts) -> Result<(), Error> {
    let status = addon_status(&addon.status.clone().unwrap_or_default(), facts, Timestamp::now());
    put_status(addon, &status, ctx).await.map(|_| ())
}

/// Writes the status if it says something new, and an event where readiness changed.
async fn write_status(addon: &ClusterAddon, ctx: &Context, mut facts: AddonFacts) -> Result<(), Error> {
    if ctx.cancel.is_cancelled() {
        return Ok(());
    }
    facts.reconcile_at = reconcile_at(addon);
    let previous = addon.status.clone().unwrap_or_default();
    let status = addon_status(&previous, facts, Timestamp::now());
    let written = put_status(addon, &status, ctx).await?;
    let turned = condition::readiness_turned(&previous.conditions, &status.conditions);
    if let Some(now) = turned.filter(|_| written) {
        tracing::info!(namespace = addon.namespace().unwrap_or_default(), addon = %addon.name_any(), ready = now.status, reason = now.reason, says = now.message, "ClusterAddon");
        let word = Reason::named(&now.reason);
        if let Some(word) = word.filter(|word| *word != Reason::Progressing) {
            ctx.events.say(addon, word, &now.message).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_synced_elsewhere_slows_no_stage() {
        let of = |phase, action| {
            let stage = StageStatus { action, phase, ..StageStatus::default() };
            AddonFacts { stages: vec![stage], ..AddonFacts::default() }
        };
        let (apply, delete) = (StageAction::Apply, StageAction::Delete);
        for (facts, has_unsynced, expected) in [
            (of(StagePhase::WaitingForPreCondition, apply), true, STAGE),
            (of(StagePhase::WaitingForPostCondition, apply), true, STAGE),
            (of(StagePhase::ApplyingOrDeleting, delete), true, STAGE),
            (of(StagePhase::ApplyingOrDeleting, apply), false, STAGE),
            // It waits for what is refused.
            (of(StagePhase::ApplyingOrDeleting, apply), true, INTERVAL),
            (of(StagePhase::Done, apply), true, INTERVAL),
        ] {
            assert_eq!(pace(&facts, has_unsynced), expected, "{:?}", facts.stages);
        }
    }
}
