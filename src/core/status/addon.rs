//! The status of a ClusterAddon.

use jiff::Timestamp;

use super::{StepState, applied_state, fit, not_synced, objects, unhealthy};
use crate::api::ClusterAddonStatus;
use crate::api::cluster_addon::{ChartStatus, StageAction, StagePhase, StageStatus, TestsStatus};
use crate::api::cluster_stack_release::Resource;
use crate::api::condition::{self, ConditionType, Finding, Reason};
use crate::core::addon::stages::{current, title, wanted};
use crate::core::addon_config::Hook;
use crate::core::retry::ErrorClass;

/// What one pass over a ClusterAddon found.
#[derive(Clone, Debug, Default)]
pub struct AddonFacts {
    /// Generation of the object.
    pub generation: Option<i64>,
    /// Why nothing is written to the workload cluster, if nothing is.
    pub held: Option<(Reason, String)>,
    /// The release of the Cluster's class: known, fetched, understood.
    pub downloaded: StepState,
    /// The workload cluster's API server.
    pub reachable: StepState,
    /// Values and charts.
    pub templated: StepState,
    /// Applying, as far as `resources` does not tell it.
    pub applied: StepState,
    /// A condition of a stage that can't be evaluated, and the like.
    pub stage_trouble: Option<(Reason, String)>,
    /// The release of the stages.
    pub release: String,
    /// Version of Kubernetes of the stages.
    pub kubernetes_version: String,
    /// The stages with their progress.
    pub stages: Vec<StageStatus>,
    /// When the time of the stage whose turn it is is over.
    pub due: Option<Timestamp>,
    /// The inventory.
    pub resources: Vec<Resource>,
    /// What is no longer part of the release and still there.
    pub retained: Vec<Resource>,
    /// How far the Helm hooks of the charts are.
    pub charts: Vec<ChartStatus>,
    /// Stages that were passed because somebody asked for it.
    pub skipped: Vec<String>,
    /// The tests that somebody asked for.
    pub tests: Option<TestsStatus>,
    /// The annotation that was acted on.
    pub reconcile_at: String,
}

/// The status of a ClusterAddon.
pub fn addon_status(previous: &ClusterAddonStatus, facts: AddonFacts, now: Timestamp) -> ClusterAddonStatus {
    let applied = match facts.applied {
        StepState::Done(_) => applied_state(&of_this_turn(&facts)),
        ref other => other.clone(),
    };
    let done = stages_done(&facts);
    let ready = ready(&facts, &applied, &done);
    let steps = [&facts.downloaded, &facts.reachable, &facts.templated, &applied];
    let stalled = steps.into_iter().filter_map(StepState::trouble).find(|trouble| trouble.class == ErrorClass::Invalid);
    let mut findings = vec![ready.clone()];
    findings.extend(facts.downloaded.finding(ConditionType::ClusterStackReleaseDownloaded));
    findings.extend(facts.reachable.finding(ConditionType::ClusterReachable));
    findings.extend(facts.templated.finding(ConditionType::HelmChartTemplated));
    findings.extend(applied.finding(ConditionType::HelmChartApplied));
    findings.push(done);
    if let Some(trouble) = stalled {
        findings.push(Finding::yes(ConditionType::Stalled, trouble.reason, &trouble.message));
    } else if ready.status != Some(true) && facts.held.is_none() {
        findings.push(Finding::yes(ConditionType::Reconciling, ready.reason, ""));
    }
    let hook = current(&facts.stages).map(|turn| facts.stages[turn].hook.clone()).unwrap_or_default();
    let mut status = ClusterAddonStatus {
        resources: facts.resources,
        retained: facts.retained,
        release: facts.release,
        kubernetes_version: facts.kubernetes_version,
        hook,
        stages: facts.stages,
        charts: facts.charts,
        skipped: facts.skipped,
        tests: facts.tests,
        ready: ready.status == Some(true),
        last_handled_reconcile_at: facts.reconcile_at,
        observed_generation: facts.generation,
        conditions: condition::set(&previous.conditions, &findings, facts.generation, now),
    };
    fit(&mut status, |status| [&mut status.resources, &mut status.retained]);
    status
}

/// Whether a pass that ended in an error is told. One that was ready is as good as it was, unless another release or version
/// is asked for by now, or its Cluster is being deleted: of that its status would tell nothing.
pub fn tells_of_failure(previous: &ClusterAddonStatus, facts: &AddonFacts) -> bool {
    let target = (&facts.release, &facts.kubernetes_version);
    let is_last = matches!(facts.held, Some((Reason::Deleting, _)));
    !previous.ready || is_last || target != (&previous.release, &previous.kubernetes_version)
}

fn stages_done(facts: &AddonFacts) -> Finding {
    let type_ = ConditionType::StagesDone;
    let Some(turn) = current(&facts.stages) else {
        if facts.release.is_empty() {
            return Finding::no(type_, Reason::Progressing, "waiting for its turn");
        }
        let left = facts.stages.iter().filter(|stage| stage.outcome.is_some()).count();
        let done = format!("{} done", count(facts.stages.len() - left, "stage"));
        let left = if left == 0 { String::new() } else { format!(", {left} left undone") };
        return Finding::yes(type_, Reason::Succeeded, format!("{done}{left}"));
    };
    let stage = &facts.stages[turn];
    let reason = match (stage.phase, stage.action) {
        (StagePhase::WaitingForPreCondition, _) => Reason::WaitingForPreCondition,
        (StagePhase::WaitingForPostCondition, _) => Reason::WaitingForPostCondition,
        (StagePhase::ApplyingOrDeleting, StageAction::Delete) => Reason::DeletingObjects,
        _ => Reason::Progressing,
    };
    let (reason, why) = facts.stage_trouble.clone().unwrap_or((reason, stage.message.clone()));
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    Finding::no(type_, reason, format!("{}{why}", title(&facts.stages, turn)))
}

/// The rows by which the apply is judged: while stages run, of what they brought alone. The rest waits for its own.
fn of_this_turn(facts: &AddonFacts) -> Vec<Resource> {
    if current(&facts.stages).is_none() {
        return facts.resources.clone();
    }
    let wanted = wanted(&facts.stages);
    facts.resources.iter().filter(|row| wanted.contains(&row.stage)).cloned().collect()
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

fn ready(facts: &AddonFacts, applied: &StepState, done: &Finding) -> Finding {
    let type_ = ConditionType::Ready;
    if let Some((reason, message)) = &facts.held {
        let healthy = done.status == Some(true) && not_synced(&facts.resources, 1).is_none();
        let is_last = |turn: usize| facts.stages[turn].hook == Hook::BeforeClusterDelete.as_str();
        if *reason == Reason::Deleting && current(&facts.stages).is_some_and(is_last) {
            return Finding::no(type_, *reason, format!("{message}; {}", done.message));
        }
        return if healthy { Finding::yes(type_, *reason, message) } else { Finding::no(type_, *reason, message) };
    }
    // What comes first may never have its turn.
    let steps = [&facts.downloaded, &facts.reachable, &facts.templated, applied];
    let first = steps.iter().find(|step| !matches!(step, StepState::Done(_) | StepState::Remarked(..)));
    if matches!(first, Some(StepState::Pending))
        && let Some(trouble) = steps.iter().find_map(|step| step.trouble())
    {
        return Finding::no(type_, trouble.reason, &trouble.message);
    }
    // It says what is in the way, too.
    if done.reason == Reason::StageDeadlineExceeded {
        return Finding::no(type_, done.reason, &done.message);
    }
    for step in steps {
        match step {
            StepState::Done(_) | StepState::Remarked(..) => {}
            StepState::Pending => return Finding::no(type_, Reason::Progressing, "waiting for its turn"),
            StepState::Running(reason, message) => return Finding::no(type_, *reason, message),
            StepState::Failed(trouble) if trouble.reason == Reason::FailedToApplyObjects => {
                let short = not_synced(&of_this_turn(facts), 1).unwrap_or_else(|| trouble.clone());
                return Finding::no(type_, short.reason, short.message);
            }
            StepState::Failed(trouble) => return Finding::no(type_, trouble.reason, &trouble.message),
        }
    }
    if done.status != Some(true) {
        let others = not_synced(&facts.resources, 1).map(|trouble| format!("; {}", trouble.message));
        return Finding::no(type_, done.reason, format!("{}{}", done.message, others.unwrap_or_default()));
    }
    if let Some(finding) = unhealthy(&facts.resources) {
        return finding;
    }
    let left: Vec<&str> =
        facts.stages.iter().filter(|stage| stage.outcome.is_some()).map(|stage| stage.name.as_str()).collect();
    let left = if left.is_empty() { String::new() } else { format!("; stages left undone: {}", left.join(", ")) };
    Finding::yes(type_, Reason::Ready, format!("{} synced{left}", objects(facts.resources.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster_addon::StageOutcome;
    use crate::api::cluster_stack_release::ResourceStatus;
    use crate::core::status::Trouble;

    fn facts() -> AddonFacts {
        let done = || StepState::Done(String::new());
        let stage = |name: &str| StageStatus {
            name: name.into(),
            hook: "BeforeClusterUpgrade".into(),
            phase: StagePhase::Done,
            ..StageStatus::default()
        };
        AddonFacts {
            downloaded: done(),
            reachable: done(),
            templated: done(),
            applied: done(),
            release: "docker-x-1-34-v2".into(),
            stages: vec![stage("cni"), stage("csi")],
            resources: vec![Resource {
                kind: "ConfigMap".into(),
                name: "a".into(),
                status: ResourceStatus::Synced,
                health: "Current".into(),
                ..Resource::default()
            }],
            ..AddonFacts::default()
        }
    }

    fn waiting(phase: StagePhase, message: &str) -> AddonFacts {
        let mut facts = facts();
        facts.stages[1].phase = phase;
        facts.stages[1].message = message.into();
        facts
    }

    #[test]
    fn what_waits_for_its_stage_is_told_beside_what_the_stage_waits_for() {
        let of = |stage: &str| {
            let mut facts = waiting(StagePhase::WaitingForPreCondition, "nodes");
            facts.resources[0].stage = stage.into();
            facts.resources[0].status = ResourceStatus::NotSynced;
            facts.resources[0].error = "gone".into();
            let status = addon_status(&ClusterAddonStatus::default(), facts, Timestamp::UNIX_EPOCH);
            let ready = condition::find(&status.conditions, ConditionType::Ready).unwrap().clone();
            (ready.reason, ready.message)
        };
        let (reason, message) = of("csi");
        assert_eq!(reason, "WaitingForPreCondition");
        assert!(message.ends_with("(2 of 2): nodes; 1 of 1 object not synced: ConfigMap a: gone"), "{message}");
        assert_eq!(of("cni").0, "FailedToApplyObjects", "its stage had its turn");
    }

    #[test]
    fn ready_sums_it_up() {
        let unreachable = Trouble::new(ErrorClass::Transient, Reason::ClusterUnreachable, "no answer");
        let unhealthy = |health: &str| {
            let mut facts = facts();
            facts.resources[0].health = health.into();
            facts
        };
        for (name, facts, ready, reason, message) in [
            ("all done", facts(), true, "Ready", "1 object synced"),
            (
                "waits for a condition",
                waiting(StagePhase::WaitingForPreCondition, "nodes"),
                false,
                "WaitingForPreCondition",
                "stage csi of BeforeClusterUpgrade (2 of 2): nodes",
            ),
            ("health counts", unhealthy("InProgress"), false, "ObjectsNotHealthy", "ConfigMap a"),
            ("failure counts", unhealthy("Failed"), false, "ObjectsFailed", "ConfigMap a"),
            (
                "its deadline passed, whatever the reason",
                AddonFacts {
                    stage_trouble: Some((Reason::StageDeadlineExceeded, "not done within 30m: no answer".into())),
                    reachable: StepState::Failed(unreachable.clone()),
                    ..waiting(StagePhase::WaitingForPreCondition, "nodes")
                },
                false,
                "StageDeadlineExceeded",
                "stage csi of BeforeClusterUpgrade (2 of 2): not done within 30m: no answer",
            ),
            (
                "a stage was left",
                {
                    let mut facts = facts();
                    facts.stages[0].outcome = Some(StageOutcome::Skipped);
                    facts
                },
                true,
                "Ready",
                "1 object synced; stages left undone: cni",
            ),
            (
                "unreachable",
                AddonFacts { reachable: StepState::Failed(unreachable), ..facts() },
                false,
                "ClusterUnreachable",
                "no answer",
            ),
            (
                "paused when all was well",
                AddonFacts { held: Some((Reason::Paused, "paused".into())), ..facts() },
                true,
                "Paused",
                "paused",
            ),
            (
                "refused before its turn",
                AddonFacts {
                    downloaded: StepState::Pending,
                    applied: StepState::Failed(Trouble::new(
                        ErrorClass::Invalid,
                        Reason::SpecInvalid,
                        "delete this one",
                    )),
                    ..facts()
                },
                false,
                "SpecInvalid",
                "delete this one",
            ),
            (
                "a stage of its deletion waits",
                {
                    let mut facts = waiting(StagePhase::ApplyingOrDeleting, "for ConfigMap edge to go");
                    facts.stages[1].hook = "BeforeClusterDelete".into();
                    facts.held = Some((Reason::Deleting, "the Cluster is being deleted".into()));
                    facts
                },
                false,
                "Deleting",
                "the Cluster is being deleted; stage csi of BeforeClusterDelete (2 of 2): for ConfigMap edge to go",
            ),
            (
                "paused half way",
                AddonFacts {
                    held: Some((Reason::Paused, "paused".into())),
                    ..waiting(StagePhase::ApplyingOrDeleting, "")
                },
                false,
                "Paused",
                "paused",
            ),
        ] {
            let status = addon_status(&ClusterAddonStatus::default(), facts, Timestamp::UNIX_EPOCH);
            let condition = condition::find(&status.conditions, ConditionType::Ready).unwrap();
            assert_eq!((status.ready, condition.reason.as_str()), (ready, reason), "{name}");
            assert!(condition.message.contains(message), "{name}: {}", condition.message);
        }
    }

    #[test]
    fn a_pass_that_failed_is_told_unless_all_that_is_wanted_was_ready() {
        let ready = addon_status(&ClusterAddonStatus::default(), facts(), Timestamp::UNIX_EPOCH);
        assert!(ready.ready);
        let held = |reason| AddonFacts { held: Some((reason, "held".into())), ..facts() };
        for (name, previous, facts, expected) in [
            ("as good as it was", ready.clone(), facts(), false),
            ("it was not ready", ClusterAddonStatus { ready: false, ..ready.clone() }, facts(), true),
            ("another release", ready.clone(), AddonFacts { release: "docker-x-1-34-v3".into(), ..facts() }, true),
            ("another version", ready.clone(), AddonFacts { kubernetes_version: "v1.34.9".into(), ..facts() }, true),
            ("the Cluster goes", ready.clone(), held(Reason::Deleting), true),
            ("it is new", ClusterAddonStatus::default(), facts(), true),
        ] {
            assert_eq!(tells_of_failure(&previous, &facts), expected, "{name}");
        }
    }

    #[test]
    fn the_hook_is_that_of_the_stage_whose_turn_it_is() {
        let status = |facts| addon_status(&ClusterAddonStatus::default(), facts, Timestamp::UNIX_EPOCH);
        assert_eq!(status(facts()).hook, "");
        assert_eq!(status(waiting(StagePhase::Pending, "")).hook, "BeforeClusterUpgrade");
    }
}
