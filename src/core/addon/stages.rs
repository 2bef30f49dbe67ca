//! Which stages run, and what of the release belongs into the cluster by now.
//!
//! ```text
//! Pending ─turn→ waitingForPreCondition ─holds→ applyingOrDeleting ─synced / gone→ waitingForPostCondition ─holds→ done
//!    └────────────────────┴──── skipped, or left at its deadline ────┴──────────────────────┴──────────────────────→ done
//! ```
//!
//! A stage does not wait for the health of its objects unless its post-condition says so: nodes may become ready only with
//! what a later stage brings.
//!
//! The stages of a target (a release and a version of Kubernetes) run once, in their order. A new Cluster gets those of
//! AfterControlPlaneInitialized, one that had a release before those of BeforeClusterUpgrade, and those of
//! AfterClusterUpgrade when all of its machines run the new version. An addon that a release has for new Clusters alone is
//! brought to the others behind their last stage, or it would stay as old as it was.
//!
//! A ClusterAddon that was lost is made anew without a word of what was. Where Cluster API holds the control plane at another
//! version, the Cluster is none that is new: the stages of BeforeClusterUpgrade are what it waits for.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::cluster_addon::{ChartStatus, StageAction, StageOutcome, StagePhase, StageStatus};
use crate::api::condition::{MAX_MESSAGE, cut, whole_seconds};
use crate::api::{ClusterAddonSpec, ClusterAddonStatus};
use crate::core::addon_config::{Action, AddonConfig, Hook, OnDeadline, Stage};
use crate::core::bundle::AddonCharts;
use crate::core::duration::spoken;

/// What a Cluster asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the release of its ClusterClass.
    pub release: String,
    /// Version of Kubernetes.
    pub kubernetes_version: String,
    /// All of its machines run it.
    pub rolled_out: bool,
    /// Cluster API has not let its control plane go on to that version yet.
    pub is_held: bool,
}

/// The stages of a release. A release with one chart for everything has one, without a name, that is applied in
/// AfterControlPlaneInitialized and BeforeClusterUpgrade.
pub fn of_charts(charts: Option<&AddonCharts>) -> AddonConfig {
    match charts {
        None => AddonConfig::default(),
        Some(AddonCharts::Stages { config, .. }) => config.clone(),
        Some(AddonCharts::Single(_)) => {
            let stage = Stage::new("", Action::Apply);
            let hooks = [Hook::AfterControlPlaneInitialized, Hook::BeforeClusterUpgrade];
            AddonConfig { stages: hooks.map(|hook| (hook, vec![stage.clone()])).into(), allow_values: false }
        }
    }
}

/// The stages of the target with their progress: what was recorded if it is of this target, else all from the start.
pub fn progress(
    spec: &ClusterAddonSpec,
    status: &ClusterAddonStatus,
    target: &Target,
    config: &AddonConfig,
    now: Timestamp,
) -> Vec<StageStatus> {
    let is_of_target = status.release == target.release && status.kubernetes_version == target.kubernetes_version;
    let recorded: &[StageStatus] = if is_of_target { &status.stages } else { &[] };
    let is_first = match recorded.first() {
        Some(stage) => stage.hook == Hook::AfterControlPlaneInitialized.as_str(),
        // One that was lost knows of no release.
        None => spec.cluster_stack.is_empty() && !(is_without_a_past(status) && target.is_held),
    };
    let mut stages = if is_first {
        entries(config.of(Hook::AfterControlPlaneInitialized), Hook::AfterControlPlaneInitialized, recorded, now)
    } else {
        let upgrade = config.of(Hook::BeforeClusterUpgrade).iter().chain(carried(config));
        entries(upgrade, Hook::BeforeClusterUpgrade, recorded, now)
    };
    let has_begun = recorded.iter().any(|stage| stage.hook == Hook::AfterClusterUpgrade.as_str());
    if !is_first && (has_begun || (target.rolled_out && current(&stages).is_none())) {
        let hook = Hook::AfterClusterUpgrade;
        stages.extend(entries(config.of(hook), hook, recorded, now));
    }
    stages
}

/// Whether a ClusterAddon says nothing yet, as one of a new Cluster does, and one that was made anew.
pub fn is_without_a_past(status: &ClusterAddonStatus) -> bool {
    status.release.is_empty() && status.stages.is_empty()
}

/// What new Clusters get and no upgrade names: it runs behind the stages of BeforeClusterUpgrade.
fn carried(config: &AddonConfig) -> impl Iterator<Item = &Stage> {
    let upgrades = [Hook::BeforeClusterUpgrade, Hook::AfterClusterUpgrade];
    let named: BTreeSet<&str> =
        upgrades.iter().flat_map(|hook| config.of(*hook)).map(|stage| stage.name.as_str()).collect();
    let first = config.of(Hook::AfterControlPlaneInitialized).iter();
    first.filter(move |stage| stage.action == Action::Apply && !named.contains(stage.name.as_str()))
}

/// The stages before a Cluster is deleted with their progress.
pub fn before_deletion(status: &ClusterAddonStatus, config: &AddonConfig, now: Timestamp) -> Vec<StageStatus> {
    let hook = Hook::BeforeClusterDelete;
    entries(config.of(hook), hook, &status.stages, now)
}

/// The releases of which something may be in the cluster beside what this one brought: those that an upgrade came from which was
/// not done yet, the latest first.
pub fn left_behind(release: &str, spec: &ClusterAddonSpec, status: &ClusterAddonStatus) -> Vec<String> {
    let plain = |name: &str| name.replace('.', "-");
    let mut names: Vec<String> = Vec::new();
    for name in [&status.release, &spec.cluster_stack].map(|name| plain(name)) {
        if !name.is_empty() && name != plain(release) && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// What a release says, and behind it the stages before a deletion that only releases before it have: what they brought may be
/// there yet. Of a stage that several have the first one has the say.
pub fn with_deletions_of<'a>(config: &AddonConfig, before: impl IntoIterator<Item = &'a AddonConfig>) -> AddonConfig {
    let mut all = config.clone();
    let stages = all.stages.entry(Hook::BeforeClusterDelete).or_default();
    for stage in before.into_iter().flat_map(|config| config.of(Hook::BeforeClusterDelete)) {
        if !stages.iter().any(|known| known.name == stage.name) {
            stages.push(stage.clone());
        }
    }
    all
}

fn entries<'a>(
    stages: impl IntoIterator<Item = &'a Stage>,
    hook: Hook,
    recorded: &[StageStatus],
    now: Timestamp,
) -> Vec<StageStatus> {
    let entry = |stage: &Stage| {
        let action = action_of(stage);
        let is_it =
            |known: &&StageStatus| known.hook == hook.as_str() && known.name == stage.name && known.action == action;
        recorded.iter().find(is_it).cloned().unwrap_or_else(|| StageStatus {
            name: stage.name.clone(),
            action,
            hook: hook.as_str().to_owned(),
            since: Some(Time(whole_seconds(now))),
            ..StageStatus::default()
        })
    };
    stages.into_iter().map(entry).collect()
}

fn action_of(stage: &Stage) -> StageAction {
    match stage.action {
        Action::Apply => StageAction::Apply,
        Action::Delete => StageAction::Delete,
    }
}

/// The stage whose turn it is; `None` when all are done.
pub fn current(stages: &[StageStatus]) -> Option<usize> {
    stages.iter().position(|stage| stage.phase != StagePhase::Done)
}

/// How a stage is called in messages, with its place.
pub fn title(stages: &[StageStatus], turn: usize) -> String {
    let Some(stage) = stages.get(turn) else { return String::new() };
    let name =
        if stage.name.is_empty() { stage.hook.clone() } else { format!("stage {} of {}", stage.name, stage.hook) };
    format!("{name} ({} of {})", turn + 1, stages.len())
}

/// What the release says of a stage.
pub fn definition<'a>(config: &'a AddonConfig, entry: &StageStatus) -> Option<&'a Stage> {
    let hooks = [
        Hook::AfterControlPlaneInitialized,
        Hook::BeforeClusterUpgrade,
        Hook::AfterClusterUpgrade,
        Hook::BeforeClusterDelete,
    ];
    let own = hooks.iter().filter(|hook| hook.as_str() == entry.hook);
    // A carried stage is defined by another hook than the one that it runs in.
    own.chain(&hooks)
        .flat_map(|hook| config.of(*hook))
        .find(|stage| stage.name == entry.name && action_of(stage) == entry.action)
}

/// The charts whose objects belong into the cluster by now, in the order of their stages.
pub fn wanted(stages: &[StageStatus]) -> Vec<String> {
    let mut charts: Vec<String> = Vec::new();
    for stage in stages.iter().filter(|stage| stage.reached() >= StagePhase::ApplyingOrDeleting) {
        charts.retain(|chart| *chart != stage.name);
        if stage.action == StageAction::Apply {
            charts.push(stage.name.clone());
        }
    }
    charts
}

/// The charts of `charts` whose stages have not come yet: what they brought is kept as it is until then. One that was left, or that
/// is to go, stays as whoever has it.
pub fn kept<'a>(config: &AddonConfig, stages: &[StageStatus], charts: &'a [ChartStatus]) -> Vec<&'a ChartStatus> {
    let come = |stage: &&StageStatus| stage.reached() >= StagePhase::ApplyingOrDeleting || stage.outcome.is_some();
    let come: BTreeSet<&str> = stages.iter().filter(come).map(|stage| stage.name.as_str()).collect();
    let to_come = applied_by_some_hook(config, stages);
    let is_kept = |chart: &&ChartStatus| {
        let is_brought = !chart.digest.is_empty() && chart.running.is_empty();
        is_brought && !come.contains(chart.name.as_str()) && to_come.contains(chart.name.as_str())
    };
    charts.iter().filter(is_kept).collect()
}

/// The charts that some hook of the release applies: what they hold is not pruned, for its stage may come later.
pub fn applied_by_some_hook<'a>(config: &'a AddonConfig, stages: &[StageStatus]) -> BTreeSet<&'a str> {
    let deleted: BTreeSet<&str> = stages
        .iter()
        .filter(|stage| stage.action == StageAction::Delete && stage.reached() == StagePhase::Done)
        .map(|stage| stage.name.as_str())
        .collect();
    let all = config.stages.values().flatten().filter(|stage| stage.action == Action::Apply);
    let wanted = wanted(stages);
    all.map(|stage| stage.name.as_str())
        .filter(|name| !deleted.contains(name) || wanted.iter().any(|chart| chart == name))
        .collect()
}

/// Brings a stage into a phase, with what it waits for.
pub fn enter(stage: &mut StageStatus, phase: StagePhase, message: &str, now: Timestamp) {
    if stage.phase != phase {
        stage.phase = phase;
        stage.since = Some(Time(whole_seconds(now)));
    }
    stage.message = cut(message, MAX_MESSAGE);
}

/// Starts the time of a stage: its turn has come, and the workload cluster answers.
pub fn start(stage: &mut StageStatus, now: Timestamp) {
    stage.started.get_or_insert_with(|| Time(whole_seconds(now)));
}

/// What the deadline of a stage says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AtDeadline {
    /// It has time, or did not begin.
    InTime,
    /// It stays, with this said of it.
    Blocks(String),
    /// It is left, with this said of it.
    Passes(String),
}

/// Whether the time of a stage that waits for `why` is over, and what then.
pub fn at_deadline(stage: &StageStatus, definition: Option<&Stage>, why: &str, now: Timestamp) -> AtDeadline {
    let (Some(started), Some(definition)) = (&stage.started, definition) else { return AtDeadline::InTime };
    if is_within(started.0, definition.deadline, now) {
        return AtDeadline::InTime;
    }
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    let message = format!("{OVERDUE} {}{why}", spoken(definition.deadline));
    match definition.on_deadline {
        OnDeadline::Block => AtDeadline::Blocks(message),
        OnDeadline::Continue => AtDeadline::Passes(message),
    }
}

/// What the message of a stage begins with whose deadline passed.
const OVERDUE: &str = "not done within";

/// When the time of the stage whose turn it is will be over; `None` where it never is, or that was told.
pub fn due(stages: &[StageStatus], config: &AddonConfig) -> Option<Timestamp> {
    let stage = &stages[current(stages)?];
    let deadline = SignedDuration::try_from(definition(config, stage)?.deadline).ok()?;
    let started = stage.started.as_ref().filter(|_| !is_told_overdue(stage))?;
    started.0.checked_add(deadline).ok()
}

/// Whether the deadline of a stage was told already.
pub fn is_told_overdue(stage: &StageStatus) -> bool {
    stage.message.starts_with(OVERDUE)
}

/// Whether `limit` has not passed since.
pub fn is_within(since: Timestamp, limit: Duration, now: Timestamp) -> bool {
    // One that is too long to count never passes.
    SignedDuration::try_from(limit).map_or(true, |limit| now.duration_since(since) < limit)
}

/// Ends a stage that was not done.
pub fn leave(stage: &mut StageStatus, outcome: StageOutcome, message: &str, now: Timestamp) {
    stage.left_in = Some(stage.phase);
    stage.outcome = Some(outcome);
    enter(stage, StagePhase::Done, message, now);
}

/// The stages that annotations ask to pass, each as `<release>/<hook>/<stage>`; the stage is empty where a release has one
/// chart for everything.
pub fn asked_to_skip<'a>(annotations: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    let words = annotations.into_iter().flat_map(|text| text.split(',')).map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| if word.matches('/').count() == 1 { format!("{word}/") } else { word.to_owned() }).collect()
}

/// What is asked to be passed and is no stage: not of the form, of no hook, or of none of this release's stages. Another
/// release may have it.
pub fn unfit_skips(
    asked: &BTreeSet<String>,
    (release, begun): (&str, &[StageStatus]),
    config: &AddonConfig,
) -> Vec<(String, String)> {
    let why = |word: &str| {
        let parts: Vec<&str> = word.split('/').collect();
        let [of, hook, stage] = parts[..] else {
            return Some("it is not of the form <release>/<hook>/<stage>".to_owned());
        };
        let Some(known) = Hook::ALL.into_iter().find(|known| known.as_str() == hook) else {
            let all = Hook::ALL.map(Hook::as_str).join(", ");
            return Some(format!("{hook:?} is none of the hooks {all}"));
        };
        let begun = begun.iter().filter(|stage| stage.hook == hook).map(|stage| stage.name.as_str());
        let names: BTreeSet<&str> = config.of(known).iter().map(|stage| stage.name.as_str()).chain(begun).collect();
        let is_missing = of == release && !names.contains(stage);
        let names: Vec<&str> = names.into_iter().collect();
        is_missing.then(|| format!("the stages of {hook} of {release} are: {}", names.join(", ")))
    };
    asked.iter().filter_map(|word| Some((word.clone(), why(word)?))).collect()
}

/// How a stage is called to be passed.
pub fn skip_name(release: &str, stage: &StageStatus) -> String {
    format!("{release}/{}/{}", stage.hook, stage.name)
}

/// Passes the stages whose turn it is as long as they are asked to be passed and were not yet; what was passed.
pub fn skip(
    stages: &mut [StageStatus],
    release: &str,
    asked: &BTreeSet<String>,
    skipped: &mut Vec<String>,
    now: Timestamp,
) -> Vec<String> {
    let mut passed = Vec::new();
    while let Some(turn) = current(stages) {
        let name = skip_name(release, &stages[turn]);
        if !asked.contains(&name) || skipped.contains(&name) {
            break;
        }
        passed.push(title(stages, turn));
        let message = cut(&stages[turn].message, MAX_MESSAGE);
        leave(&mut stages[turn], StageOutcome::Skipped, &message, now);
        skipped.push(name);
    }
    passed
}

/// The stages that were left before they applied anything: what they brought in another release stays as it is.
pub fn untouched(stages: &[StageStatus]) -> BTreeSet<&str> {
    let is = |stage: &&StageStatus| {
        stage.action == StageAction::Apply && stage.left_in.is_some_and(|phase| phase < StagePhase::ApplyingOrDeleting)
    };
    stages.iter().filter(is).map(|stage| stage.name.as_str()).collect()
}

/// Whether the last stage of a chart was left, so that what its chart lacks holds nobody up.
pub fn is_left(stages: &[StageStatus], chart: &str) -> bool {
    stages.iter().rfind(|stage| stage.name == chart).is_some_and(|stage| stage.outcome.is_some())
}

#[cfg(test)]
mod tests;
