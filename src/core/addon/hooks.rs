//! What Cluster API is answered when it calls a runtime hook.
//!
//! A hook runs nothing: stages run because the Cluster asks for another release or version, and the answer is read from
//! what the ClusterAddon says of them. An answer is never taken from a status that is about something else.

use std::time::Duration;

use jiff::Timestamp;

use crate::api::cluster_addon::StagePhase;
use crate::api::condition::{ConditionType, MAX_MESSAGE, Reason, cut, find};
use crate::api::runtime_hooks::RuntimeHook;
use crate::api::{ClusterAddon, ClusterAddonStatus};
use crate::core::addon::cluster::{Cluster, addon_name};
use crate::core::addon::stages::{self, title};
use crate::core::addon_config::{AddonConfig, Hook};
use crate::core::duration::spoken;

/// What is known when a hook is called.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The Cluster as it is now; `None` when it is gone or left to others.
    pub cluster: Option<Cluster>,
    /// The release of its ClusterClass; `None` where it is of none.
    pub release: Option<String>,
    /// Its ClusterAddon.
    pub addon: Option<ClusterAddon>,
}

/// The answer to a hook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// What it waits for; `None` goes on.
    pub wait: Option<String>,
    /// The hook is written into the ClusterAddon: what it asks for is not done.
    pub record: bool,
    /// It goes on although it is not done, for its time is over; what it waited for.
    pub gave_up: Option<String>,
}

/// The answer to a hook; `to` is the version of Kubernetes that BeforeClusterUpgrade names.
pub fn answer(hook: RuntimeHook, to: &str, seen: &Seen) -> Answer {
    let (Some(cluster), Some(release)) = (&seen.cluster, &seen.release) else { return Answer::default() };
    if cluster.deleting {
        return Answer::default();
    }
    match hook {
        // To wait in AfterClusterUpgrade would be to wait for itself: its stages start when the topology is reconciled,
        // which it is not while this hook waits.
        RuntimeHook::AfterClusterUpgrade | RuntimeHook::BeforeClusterDelete | RuntimeHook::GenerateUpgradePlan => {
            Answer::default()
        }
        RuntimeHook::AfterControlPlaneInitialized => {
            let open = open(cluster, release, seen.addon.as_ref());
            Answer { record: open.is_some() && has_to_record(hook, seen), ..Answer::default() }
        }
        RuntimeHook::BeforeClusterUpgrade if cluster.kubernetes_version != to => {
            let asks = &cluster.kubernetes_version;
            // Nobody knows who asks: an event says nothing in their words.
            let wait =
                format!("the Cluster asks for Kubernetes {asks} by now, no longer for the version of this question");
            Answer { wait: Some(wait), ..Answer::default() }
        }
        RuntimeHook::BeforeClusterUpgrade => {
            let wait = open(cluster, release, seen.addon.as_ref());
            Answer { record: wait.is_some() && has_to_record(hook, seen), wait, gave_up: None }
        }
    }
}

/// The answer before a Cluster is deleted: it waits for the stages of BeforeClusterDelete, for `limit` after its deletion
/// was asked for and no longer; where a pause kept the stages from starting, after they did. Nothing else holds a deletion: not a
/// pause, and not what was never applied.
pub fn before_deletion(seen: &Seen, limit: Duration, now: Timestamp) -> Answer {
    let is_paused = seen.cluster.as_ref().is_some_and(|cluster| cluster.paused);
    if is_paused { Answer::default() } else { of_deletion(seen, limit, now) }
}

/// The same whether the Cluster is paused or not.
fn of_deletion(seen: &Seen, limit: Duration, now: Timestamp) -> Answer {
    let (Some(cluster), Some(_), Some(addon)) = (&seen.cluster, &seen.release, &seen.addon) else {
        return Answer::default();
    };
    let Some(since) = cluster.deleting_since else { return Answer::default() };
    let status = addon.status.clone().unwrap_or_default();
    // One that is going stays for its stages: what deletes a Cluster with all that it owns deletes the ClusterAddon first.
    if addon.spec.suspend || status.resources.is_empty() {
        return Answer::default();
    }
    let hook = Hook::BeforeClusterDelete.as_str();
    let is_recorded = addon.spec.hook == hook;
    let is_seen = is_recorded && status.observed_generation == addon.metadata.generation;
    // Before the stages of the deletion are known, those of another hook stand there.
    let is_of_deletion = status.stages.iter().all(|stage| stage.hook == hook);
    let turn = stages::current(&status.stages).filter(|_| is_of_deletion);
    if is_seen && is_of_deletion && turn.is_none() {
        return Answer::default();
    }
    let place = turn.filter(|_| is_seen).map(|turn| (title(&status.stages, turn), status.stages[turn].message.clone()));
    let (place, why) =
        place.unwrap_or_else(|| ("the stages of BeforeClusterDelete have not started".into(), hurdle(&status)));
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    let message = cut(&format!("ClusterAddon {}: {place}{why}", addon_name(&cluster.name)), MAX_MESSAGE);
    if stages::is_within(since_a_pause(&status, since, now), limit, now) {
        return Answer { wait: Some(message), record: !is_recorded, gave_up: None };
    }
    let gave_up = format!("the deletion goes on after {} although not all was done: {message}", spoken(limit));
    Answer { gave_up: Some(cut(&gave_up, MAX_MESSAGE)), ..Answer::default() }
}

/// From when on the time of a deletion counts: while the ClusterAddon says that its Cluster is paused, and until its stages start
/// after that, none of it goes by.
fn since_a_pause(status: &ClusterAddonStatus, deleting: Timestamp, now: Timestamp) -> Timestamp {
    let is_paused =
        find(&status.conditions, ConditionType::Ready).is_some_and(|ready| ready.reason == Reason::Paused.as_str());
    if is_paused {
        return now;
    }
    let of_deletion = status.stages.iter().filter(|stage| stage.hook == Hook::BeforeClusterDelete.as_str());
    let started = of_deletion.filter_map(|stage| stage.started.as_ref()).map(|started| started.0).min();
    started.map_or(deleting, |started| started.max(deleting))
}

/// Whether a ClusterAddon that is being deleted stays until the stages of BeforeClusterDelete are done, as long as the
/// deletion of its Cluster waits for them, or is paused. `config` is the release's; `None` where it can't be read yet.
pub fn stays(seen: &Seen, config: Option<&AddonConfig>, limit: Duration, now: Timestamp) -> bool {
    let has_stages = config.is_none_or(|config| !config.of(Hook::BeforeClusterDelete).is_empty());
    // Cluster API does nothing about a Cluster that is paused, so nobody waits for it meanwhile.
    let is_paused = seen.cluster.as_ref().is_some_and(|cluster| cluster.paused);
    let answer = of_deletion(seen, limit, now);
    has_stages && (answer.wait.is_some() || is_paused && answer.gave_up.is_some())
}

/// The answer before a Cluster is deleted when `why` kept the rest from being read: stages may be to run, and what they
/// would delete is left behind for ever if the deletion goes on. `cluster` is what was sent; `None` when it is not ours.
pub fn unread_deletion(cluster: Option<&Cluster>, why: &str, limit: Duration, now: Timestamp) -> Answer {
    let Some(cluster) = cluster.filter(|cluster| !cluster.paused) else { return Answer::default() };
    let Some(since) = cluster.deleting_since else { return Answer::default() };
    let message = cut(&format!("clusterstack can't tell yet whether stages are to run: {why}"), MAX_MESSAGE);
    if stages::is_within(since, limit, now) {
        return Answer { wait: Some(message), ..Answer::default() };
    }
    let gave_up = format!("the deletion goes on after {}: {message}", spoken(limit));
    Answer { gave_up: Some(cut(&gave_up, MAX_MESSAGE)), ..Answer::default() }
}

/// What keeps the stages of a deletion from being known.
fn hurdle(status: &ClusterAddonStatus) -> String {
    let types = [ConditionType::ClusterStackReleaseDownloaded, ConditionType::ClusterReachable];
    let found = types.into_iter().filter_map(|type_| find(&status.conditions, type_)).find(|one| !one.is_true());
    found.map(|one| one.message.clone()).unwrap_or_default()
}

/// An upgrade that waits stays recorded whatever else is called.
fn has_to_record(hook: RuntimeHook, seen: &Seen) -> bool {
    let has_room = |recorded: &str| hook == RuntimeHook::BeforeClusterUpgrade || recorded.is_empty();
    let is_new = |addon: &ClusterAddon| addon.spec.hook != hook.as_str() && has_room(&addon.spec.hook);
    seen.addon.as_ref().is_some_and(|addon| is_new(addon) && !is_going(addon))
}

fn is_going(addon: &ClusterAddon) -> bool {
    addon.metadata.deletion_timestamp.is_some()
}

/// What has to be done before the Cluster gets what it asks for; `None` when all is.
fn open(cluster: &Cluster, release: &str, addon: Option<&ClusterAddon>) -> Option<String> {
    let name = addon_name(&cluster.name);
    let says = |why: &str| Some(cut(&format!("ClusterAddon {name}: {why}"), MAX_MESSAGE));
    let Some(addon) = addon.filter(|addon| !is_going(addon)) else { return says("it is not there yet") };
    let status = addon.status.clone().unwrap_or_default();
    let version = &cluster.kubernetes_version;
    let is_of_target = status.release == release && status.kubernetes_version == *version;
    let place = if is_of_target {
        title(&status.stages, turn(&status)?)
    } else {
        format!("the stages of {release} for Kubernetes {version} have not started")
    };
    let why = if cluster.paused {
        "the Cluster is paused".to_owned()
    } else if addon.spec.suspend {
        "its spec.suspend is set".to_owned()
    } else {
        trouble(&status, is_of_target)
    };
    match why.as_str() {
        "" => says(&place),
        // It names the stage itself.
        why if why.starts_with(&place) => says(why),
        why => says(&format!("{place}: {why}")),
    }
}

/// The first stage that is not done of those that come before the upgrade.
fn turn(status: &ClusterAddonStatus) -> Option<usize> {
    let before = |hook: &str| hook != Hook::AfterClusterUpgrade.as_str();
    status.stages.iter().position(|stage| stage.phase != StagePhase::Done && before(&stage.hook))
}

/// What the ClusterAddon itself says is in the way; stages that it has left say nothing.
fn trouble(status: &ClusterAddonStatus, is_of_target: bool) -> String {
    let message = |type_| find(&status.conditions, type_).filter(|one| !one.is_true()).map(|one| one.message.clone());
    let ready = message(ConditionType::Ready).unwrap_or_default();
    if !is_of_target && message(ConditionType::StagesDone).is_some_and(|stages| stages == ready) {
        return String::new();
    }
    ready
}

#[cfg(test)]
mod tests;
