//! A plan in lines, bounded: for a status that `kubectl` can read. Names and fields, no values.

use super::Plan;
use super::addons::Compared;
use super::difference::{Fate, ObjectChange};
use super::rollout::Verdict;
use crate::api::cluster_upgrade_plan::{ClusterUpgradePlanStatus, PlannedCounts};
use crate::api::condition::{MAX_MESSAGE, cut};

/// Most bytes of all lines together.
pub const MAX_BYTES: usize = 32 << 10;
/// Most bytes of one line.
const MAX_LINE: usize = 512;
/// Most names in a list.
const MAX_NAMES: usize = 64;
/// Most fields that a line names.
const FIELDS: usize = 5;

/// What the status of a ClusterUpgradePlan says of a plan. What it was computed from is for the caller to add.
pub fn status(plan: &Plan) -> ClusterUpgradePlanStatus {
    let all = lines(plan);
    let mut bytes = 0;
    let kept: Vec<String> = all
        .iter()
        .map(|line| cut(line, MAX_LINE))
        .take_while(|line| {
            bytes += line.len();
            bytes <= MAX_BYTES
        })
        .collect();
    let rolls = plan.rollouts.iter().filter(|rollout| rollout.verdict == Verdict::Rolls);
    let rolls = rolls.map(|rollout| format!("{} {}", rollout.kind, rollout.name).trim_end().to_owned());
    ClusterUpgradePlanStatus {
        from: plan.from.release.clone(),
        kubernetes_version: plan.to.kubernetes_version.clone(),
        rolls: rolls.take(MAX_NAMES).collect(),
        counts: Some(counts(plan)),
        refusals: refusals(plan).into_iter().map(|line| cut(&line, MAX_LINE)).take(MAX_NAMES).collect(),
        truncated: kept.len() < all.len(),
        message: cut(&untried(plan), MAX_MESSAGE),
        summary: kept,
        ..ClusterUpgradePlanStatus::default()
    }
}

/// Why what becomes of the addons was not found out in the workload cluster: it is tried again.
fn untried(plan: &Plan) -> String {
    match plan.addons.compared {
        Compared::Nothing => unknown_addons(plan),
        Compared::Rendering => format!("addons by their renderings alone: {}", plan.addons.message),
        Compared::DryRun if !plan.addons.message.is_empty() => format!("addons in part: {}", plan.addons.message),
        Compared::DryRun | Compared::NoAddons => String::new(),
    }
}

fn counts(plan: &Plan) -> PlannedCounts {
    let addons: Vec<&ObjectChange> =
        plan.addons.stages.iter().flat_map(|stage| &stage.objects).chain(&plan.addons.pruned).collect();
    let number = |objects: &[&ObjectChange], fate| {
        u32::try_from(objects.iter().filter(|object| object.fate == fate).count()).unwrap_or(u32::MAX)
    };
    let size = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    let with = |verdict| size(plan.rollouts.iter().filter(|rollout| rollout.verdict == verdict).count());
    PlannedCounts {
        addons_added: number(&addons, Fate::Added),
        addons_changed: number(&addons, Fate::Changed),
        addons_removed: number(&addons, Fate::Removed),
        rolling: with(Verdict::Rolls),
        unknown: with(Verdict::Unknown),
        variables: size(plan.variables.len()),
        images: size(plan.images.len()),
    }
}

/// What would keep the upgrade from being done.
fn refusals(plan: &Plan) -> Vec<String> {
    let variables = plan.variables.iter().filter(|variable| !variable.blocks.is_empty());
    let variables = variables.map(|variable| format!("variable {}: {}", variable.name, variable.blocks));
    let refused = plan.addons.stages.iter().flat_map(|stage| &stage.objects).filter(|o| o.fate == Fate::Refused);
    let refused = refused.map(|object| format!("{} {}: {}", object.kind, object.name, object.message));
    // Nobody knows of what can't be rendered whether it can be applied.
    let unknown = (plan.addons.compared == Compared::Nothing).then(|| unknown_addons(plan));
    plan.problems.iter().cloned().chain(variables).chain(unknown).chain(refused).collect()
}

fn unknown_addons(plan: &Plan) -> String {
    format!("addons are not known: {}", plan.addons.message)
}

fn lines(plan: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    for rollout in &plan.rollouts {
        let word = match rollout.verdict {
            Verdict::Unchanged => continue,
            Verdict::InPlace => "changed in place",
            Verdict::MayRoll => "may roll",
            Verdict::Unknown => "is not known",
            Verdict::Rolls => "rolls",
        };
        let why: Vec<String> = rollout
            .reasons
            .iter()
            .map(|reason| match fields(reason.fields.iter().map(|field| field.path.as_str())) {
                fields if fields.is_empty() => reason.what.clone(),
                fields => format!("{} ({fields})", reason.what),
            })
            .collect();
        let title = format!("{} {}", rollout.kind, rollout.name);
        lines.push(format!("{} {word}: {}", title.trim_end(), why.join("; ")));
    }
    let external = plan.external_patches.iter();
    lines.extend(external.map(|patch| format!("what the external patch {patch} changes is not known")));
    lines.extend(plan.objects.iter().filter(|object| object.fate != Fate::Rotated).map(|o| object(o, "")));
    match plan.addons.compared {
        Compared::Nothing => lines.push(unknown_addons(plan)),
        Compared::Rendering => lines.push(format!("addons by their renderings, for {}", plan.addons.message)),
        Compared::DryRun | Compared::NoAddons => {}
    }
    for stage in &plan.addons.stages {
        let of = if stage.stage.is_empty() { String::new() } else { format!("{}: ", stage.stage) };
        lines.extend(stage.objects.iter().map(|change| object(change, &of)));
    }
    lines.extend(plan.addons.pruned.iter().map(|change| object(change, "pruned: ")));
    lines.extend(plan.variables.iter().map(|variable| {
        let word = serde_json::to_value(variable.change).ok().and_then(|word| word.as_str().map(str::to_owned));
        format!("variable {}: {}", variable.name, word.unwrap_or_default())
    }));
    lines.extend(plan.images.iter().map(|image| format!("node image to build: {}", image.name)));
    lines.extend(plan.unknown.iter().map(|note| format!("not known: {note}")));
    lines
}

fn object(change: &ObjectChange, of: &str) -> String {
    let sign = match change.fate {
        Fate::Added => '+',
        Fate::Changed => '~',
        Fate::Rotated => '=',
        Fate::Removed => '-',
        Fate::Kept | Fate::Refused => '!',
    };
    let place = if change.namespace.is_empty() { String::new() } else { format!("{}/", change.namespace) };
    let fields = fields(change.changes.iter().map(|field| field.path.as_str()));
    let fields = if fields.is_empty() { fields } else { format!(" ({fields})") };
    let why = if change.message.is_empty() { String::new() } else { format!(": {}", change.message) };
    format!("{of}{sign} {} {place}{}{fields}{why}", change.kind, change.name)
}

fn fields<'a>(paths: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<&str> = paths.collect();
    let shown = all.iter().take(FIELDS).copied().collect::<Vec<_>>().join(", ");
    if all.len() > FIELDS { format!("{shown} and {} more", all.len() - FIELDS) } else { shown }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::core::upgrade::addons::{AddonChanges, StageChange};
    use crate::core::upgrade::difference::Change;
    use crate::core::upgrade::rollout::{Reason, Rollout};
    use crate::core::upgrade::{Acceptance, State};

    fn plan(objects: usize) -> Plan {
        let change = |name: String| ObjectChange {
            fate: Fate::Changed,
            kind: "ConfigMap".into(),
            namespace: "kube-system".into(),
            name,
            new_name: String::new(),
            changes: vec![Change {
                path: ".data.v".into(),
                before: Some(json!("swordfish")),
                after: Some(json!("tuna")),
            }],
            message: String::new(),
        };
        let stage = StageChange {
            hook: "BeforeClusterUpgrade".into(),
            stage: "cni".into(),
            action: "apply".into(),
            objects: (0..objects).map(|n| change(format!("m{n}"))).collect(),
            unchanged: 0,
        };
        let rollout = Rollout {
            kind: "ControlPlane".into(),
            name: String::new(),
            verdict: Verdict::Rolls,
            reasons: vec![Reason { what: "Kubernetes v1 → v2".into(), fields: vec![] }],
        };
        Plan {
            cluster: "team/c".into(),
            from: State { release: "x-v1".into(), ..State::default() },
            to: State { kubernetes_version: "v1.34.7".into(), ..State::default() },
            objects: vec![],
            rollouts: vec![rollout],
            external_patches: vec![],
            problems: vec!["patch p fails".into()],
            unknown: vec![],
            acceptance: Acceptance::unknown(""),
            addons: AddonChanges { compared: Compared::DryRun, stages: vec![stage], ..AddonChanges::unknown("") },
            variables: vec![],
            images: vec![],
        }
    }

    #[test]
    fn a_status_names_fields_and_no_values() {
        let status = status(&plan(1));
        assert_eq!(
            status.summary,
            ["ControlPlane rolls: Kubernetes v1 → v2", "cni: ~ ConfigMap kube-system/m0 (.data.v)"]
        );
        assert_eq!((status.rolls.as_slice(), status.truncated), (&["ControlPlane".to_owned()][..], false));
        assert_eq!(status.refusals, ["patch p fails"]);
        let counts = status.counts.unwrap();
        assert_eq!((counts.rolling, counts.addons_changed, counts.addons_added), (1, 1, 0));
    }

    #[test]
    fn a_status_tells_whose_machines_are_not_known() {
        let mut plan = plan(0);
        plan.rollouts[0].verdict = Verdict::Unknown;
        plan.rollouts[0].reasons[0].what = "DockerMachineTemplate m was not read".into();
        let status = status(&plan);
        assert_eq!(status.summary, ["ControlPlane is not known: DockerMachineTemplate m was not read"]);
        let counts = status.counts.unwrap();
        assert_eq!((status.rolls.len(), counts.rolling, counts.unknown), (0, 0, 1));
    }

    #[test]
    fn addons_that_are_not_known_are_told_where_people_look() {
        let with = |compared| {
            let mut plan = plan(0);
            plan.addons = AddonChanges { compared, ..AddonChanges::unknown("chart cni: boom") };
            let status = status(&plan);
            (status.refusals, status.message)
        };
        let unknown = "addons are not known: chart cni: boom";
        assert_eq!(with(Compared::Nothing), (vec!["patch p fails".to_owned(), unknown.to_owned()], unknown.to_owned()));
        let (refusals, message) = with(Compared::Rendering);
        assert_eq!((refusals.len(), message.as_str()), (1, "addons by their renderings alone: chart cni: boom"));
        assert_eq!(with(Compared::DryRun).1, "addons in part: chart cni: boom");
        assert_eq!(with(Compared::NoAddons).1, "");
    }

    #[test]
    fn what_is_refused_is_told_with_its_reason() {
        let mut plan = plan(1);
        plan.addons.stages[0].objects[0].fate = Fate::Refused;
        plan.addons.stages[0].objects[0].message = "port 99999 is out of range".into();
        let status = status(&plan);
        assert_eq!(status.refusals, ["patch p fails", "ConfigMap m0: port 99999 is out of range"]);
        assert!(
            status.summary.iter().any(|line| line.ends_with(": port 99999 is out of range")),
            "{:?}",
            status.summary
        );
    }

    #[test]
    fn a_status_has_bounds() {
        let status = status(&plan(5000));
        assert!(status.truncated);
        assert!(status.summary.iter().map(String::len).sum::<usize>() <= MAX_BYTES);
        assert!(serde_json::to_vec(&status).unwrap().len() < 64 << 10);
        assert_eq!(status.counts.unwrap().addons_changed, 5000);
    }
}
