use super::*;
use StageAction::{Apply, Delete};
use StagePhase::{ApplyingOrDeleting, Done, Pending, WaitingForPreCondition};

const CONFIG: &str = "
addonStages:
  AfterControlPlaneInitialized:
    - {name: cni, action: apply}
    - {name: metrics, action: apply}
    - {name: csi, action: apply}
  BeforeClusterUpgrade:
    - {name: cni, action: apply}
    - {name: old, action: delete}
  AfterClusterUpgrade:
    - {name: csi, action: apply}
";

fn now() -> Timestamp {
    Timestamp::from_second(100).unwrap()
}

fn target(release: &str, version: &str, rolled_out: bool) -> Target {
    Target { release: release.into(), kubernetes_version: version.into(), rolled_out, is_held: false }
}

fn names(stages: &[StageStatus]) -> Vec<String> {
    let short = |hook: &str| hook.chars().filter(char::is_ascii_uppercase).collect::<String>();
    stages.iter().map(|s| format!("{} {} {:?}", short(&s.hook), s.name, s.phase)).collect()
}

fn all_done(mut stages: Vec<StageStatus>) -> Vec<StageStatus> {
    for stage in &mut stages {
        enter(stage, StagePhase::Done, "", now());
    }
    stages
}

fn status(release: &str, version: &str, stages: Vec<StageStatus>) -> ClusterAddonStatus {
    ClusterAddonStatus { release: release.into(), kubernetes_version: version.into(), stages, ..Default::default() }
}

fn spec(done: &str) -> ClusterAddonSpec {
    ClusterAddonSpec { cluster_stack: done.into(), ..Default::default() }
}

#[test]
fn a_life_of_a_cluster() {
    let config = AddonConfig::parse(CONFIG).unwrap();
    let one = target("r1", "v1.33.0", true);
    let stages = progress(&spec(""), &ClusterAddonStatus::default(), &one, &config, now());
    assert_eq!(names(&stages), ["ACPI cni Pending", "ACPI metrics Pending", "ACPI csi Pending"]);
    // Half way, the process dies: it goes on where it was.
    let mut half = stages.clone();
    enter(&mut half[0], StagePhase::Done, "", now());
    enter(&mut half[1], StagePhase::WaitingForPostCondition, "metrics-server", now());
    let again = progress(&spec(""), &status("r1", "v1.33.0", half.clone()), &one, &config, now());
    assert_eq!(again, half);
    assert_eq!(current(&again), Some(1));
    // Done: it stays as it is, whatever spec.clusterStack says by then.
    let done = all_done(stages);
    assert_eq!(progress(&spec("r1"), &status("r1", "v1.33.0", done.clone()), &one, &config, now()), done);
    // Another release: those of the upgrade, and metrics behind them, which no upgrade names.
    let two = target("r2", "v1.34.0", false);
    let upgrade = progress(&spec("r1"), &status("r1", "v1.33.0", done), &two, &config, now());
    assert_eq!(names(&upgrade), ["BCU cni Pending", "BCU old Pending", "BCU metrics Pending"]);
    assert_eq!(definition(&config, &upgrade[2]).unwrap().name, "metrics");
    // Not yet rolled out: nothing more. Rolled out: AfterClusterUpgrade, once.
    let upgrade = all_done(upgrade);
    assert_eq!(progress(&spec("r2"), &status("r2", "v1.34.0", upgrade.clone()), &two, &config, now()), upgrade);
    let rolled = target("r2", "v1.34.0", true);
    let after = progress(&spec("r2"), &status("r2", "v1.34.0", upgrade), &rolled, &config, now());
    assert_eq!(names(&after)[3..], ["ACU csi Pending"]);
    assert_eq!(progress(&spec("r2"), &status("r2", "v1.34.0", after.clone()), &two, &config, now()), after);
}

#[test]
fn what_was_lost_in_an_upgrade_goes_on_with_the_upgrade() {
    let config = AddonConfig::parse(CONFIG).unwrap();
    let held = |release: &str, is_held: bool| Target { is_held, ..target(release, "v1.34.0", false) };
    let upgrade = ["BCU cni Pending", "BCU old Pending", "BCU metrics Pending"];
    let first = ["ACPI cni Pending", "ACPI metrics Pending", "ACPI csi Pending"];
    let of =
        |name: &str, spec: &ClusterAddonSpec, status: &ClusterAddonStatus, target: &Target, expected: [&str; 3]| {
            let stages = progress(spec, status, target, &config, now());
            assert_eq!(names(&stages), expected, "{name}");
            stages
        };
    let new = ClusterAddonStatus::default();
    of("of a new Cluster", &spec(""), &new, &held("r2", false), first);
    let lost = of("lost, Cluster API waits", &spec(""), &new, &held("r2", true), upgrade);
    // What was begun is gone on with, whatever becomes of the control plane.
    let begun = status("r2", "v1.34.0", lost);
    of("the control plane goes on", &spec(""), &begun, &held("r2", false), upgrade);
    let of_new = status("r1", "v1.33.0", progress(&spec(""), &new, &target("r1", "v1.33.0", false), &config, now()));
    of("a new Cluster asks for another version before it is there", &spec(""), &of_new, &held("r2", true), first);
    of("the Go operator's, in its first stages", &spec(""), &status("", "", of_new.stages), &held("r2", true), first);
}

#[test]
fn a_broken_release_can_be_left() {
    let config = AddonConfig::parse(CONFIG).unwrap();
    let mut stuck =
        progress(&spec("r1"), &ClusterAddonStatus::default(), &target("r2", "v1.34.0", false), &config, now());
    enter(&mut stuck[0], StagePhase::ApplyingOrDeleting, "refused", now());
    let fixed = target("r3", "v1.34.0", false);
    let stages = progress(&spec("r1"), &status("r2", "v1.34.0", stuck.clone()), &fixed, &config, now());
    assert_eq!(current(&stages), Some(0));
    assert_eq!(stages[0].phase, StagePhase::Pending);
    // A new Cluster whose first release is broken gets the first stages of the fixed one.
    let first = progress(&spec(""), &status("r2", "v1.34.0", stuck), &fixed, &config, now());
    assert_eq!(first[0].hook, "AfterControlPlaneInitialized");
    // Another version of Kubernetes within one release is an upgrade too.
    let patch =
        progress(&spec("r1"), &status("r1", "v1.33.0", Vec::new()), &target("r1", "v1.33.1", false), &config, now());
    assert_eq!(patch[0].hook, "BeforeClusterUpgrade");
}

#[test]
fn charts_come_and_go_in_the_order_of_stages() {
    let stage = |name: &str, action, phase| StageStatus { name: name.into(), action, phase, ..Default::default() };
    for (stages, expected) in [
        (
            vec![stage("a", Apply, Done), stage("b", Apply, ApplyingOrDeleting), stage("c", Apply, Pending)],
            vec!["a", "b"],
        ),
        (vec![stage("a", Apply, Done), stage("a", Delete, ApplyingOrDeleting)], vec![]),
        (vec![stage("a", Delete, Done), stage("a", Apply, Done)], vec!["a"]),
        (vec![stage("a", Apply, WaitingForPreCondition)], vec![]),
    ] {
        assert_eq!(wanted(&stages), expected, "{stages:?}");
    }
}

#[test]
fn what_some_hook_applies_is_not_pruned() {
    let config = AddonConfig::parse(CONFIG).unwrap();
    let upgrade =
        progress(&spec("r1"), &ClusterAddonStatus::default(), &target("r2", "v1.34.0", false), &config, now());
    assert_eq!(
        applied_by_some_hook(&config, &all_done(upgrade)).into_iter().collect::<Vec<_>>(),
        ["cni", "csi", "metrics"]
    );
}

#[test]
fn one_chart_for_everything_is_one_stage() {
    let config = of_charts(Some(&AddonCharts::Single(std::collections::BTreeMap::new())));
    for (done, hook) in [("", "AfterControlPlaneInitialized"), ("r0", "BeforeClusterUpgrade")] {
        let stages = progress(&spec(done), &ClusterAddonStatus::default(), &target("r1", "v1", true), &config, now());
        assert_eq!((stages.len(), stages[0].hook.as_str(), stages[0].name.as_str()), (1, hook, ""));
    }
    assert!(
        progress(&spec(""), &ClusterAddonStatus::default(), &target("r1", "v1", true), &of_charts(None), now())
            .is_empty()
    );
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn a_stage_has_its_time_from_its_turn_on() {
    let text = "addonStages: {BeforeClusterUpgrade: [{name: a, action: apply, deadline: 10m}, {name: b, action: apply, deadline: 10m, onDeadline: continue}]}";
    let config = AddonConfig::parse(text).unwrap();
    let stage = |name: &str, started: Option<i64>| StageStatus {
        name: name.into(),
        hook: "BeforeClusterUpgrade".into(),
        started: started.map(|second| Time(at(second))),
        ..Default::default()
    };
    let late = || "not done within 10m: nodes".to_owned();
    for (name, stage, now, expected) in [
        ("its turn has not come", stage("a", None), 100_000, AtDeadline::InTime),
        ("in time", stage("a", Some(100)), 699, AtDeadline::InTime),
        ("late", stage("a", Some(100)), 700, AtDeadline::Blocks(late())),
        ("late, and it may be left", stage("b", Some(100)), 700, AtDeadline::Passes(late())),
        ("a clock that went back", stage("b", Some(100)), 0, AtDeadline::InTime),
        ("no stage of this release", stage("c", Some(100)), 700, AtDeadline::InTime),
    ] {
        assert_eq!(at_deadline(&stage, definition(&config, &stage), "nodes", at(now)), expected, "{name}");
    }
    let mut started = stage("a", None);
    start(&mut started, at(5));
    start(&mut started, at(9));
    assert_eq!(started.started, Some(Time(at(5))));
}

#[test]
fn what_can_never_be_skipped_is_said() {
    let config = AddonConfig::parse(CONFIG).unwrap();
    let begun = StageStatus { name: "moved".into(), hook: "BeforeClusterUpgrade".into(), ..StageStatus::default() };
    for (text, why) in [
        ("r2/BeforeClusterUpgrade/cni", None),
        ("r2/BeforeClusterUpgrade/moved", None),
        ("r1/BeforeClusterUpgrade/gone", None),
        ("r2/BeforeClusterUpgrade/gone", Some("the stages of BeforeClusterUpgrade of r2 are: cni, moved, old")),
        ("r2/BeforeUpgrade/cni", Some("is none of the hooks AfterControlPlaneInitialized, BeforeClusterUpgrade")),
        ("cni", Some("not of the form <release>/<hook>/<stage>")),
        ("a/r2/BeforeClusterUpgrade/cni", Some("not of the form")),
    ] {
        let unfit = unfit_skips(&asked_to_skip([text]), ("r2", std::slice::from_ref(&begun)), &config);
        match (&unfit[..], why) {
            ([], None) => {}
            ([(word, said)], Some(words)) => assert!(word == text && said.contains(words), "{text}: {said}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn a_stage_is_skipped_once_in_a_release() {
    let config = AddonConfig::parse(CONFIG).unwrap();
    let fresh =
        || progress(&spec("r1"), &ClusterAddonStatus::default(), &target("r2", "v1.34.0", false), &config, now());
    let skipping = |text: &str, release: &str, before: &[&str]| {
        let (mut stages, mut skipped) = (fresh(), before.iter().map(|&name| name.to_owned()).collect());
        let passed = skip(&mut stages, release, &asked_to_skip([text]), &mut skipped, now());
        (passed.len(), current(&stages), skipped)
    };
    let (cni, old) = ("r2/BeforeClusterUpgrade/cni", "r2/BeforeClusterUpgrade/old");
    for (name, text, release, before, passed, turn) in [
        ("nothing asked", String::new(), "r2", &[][..], 0, 0),
        ("the one whose turn it is", cni.to_owned(), "r2", &[], 1, 1),
        ("two", format!("{cni}, {old}"), "r2", &[], 2, 2),
        ("one whose turn has not come", old.to_owned(), "r2", &[], 0, 0),
        ("another release", cni.to_owned(), "r3", &[], 0, 0),
        ("another hook", "r2/AfterClusterUpgrade/cni".to_owned(), "r2", &[], 0, 0),
        ("it was skipped before", cni.to_owned(), "r2", &[cni], 0, 0),
        ("no name of a stage", "cni,,/".to_owned(), "r2", &[], 0, 0),
    ] {
        let (count, current, skipped) = skipping(&text, release, before);
        assert_eq!((count, current), (passed, Some(turn)), "{name}");
        assert_eq!(skipped.len(), before.len() + passed, "{name}");
    }
    // One chart for everything has no name.
    assert!(
        asked_to_skip(["r1/BeforeClusterUpgrade"])
            .contains(&skip_name("r1", &StageStatus { hook: "BeforeClusterUpgrade".into(), ..Default::default() }))
    );
}

#[test]
fn a_stage_that_was_left_keeps_what_it_applied_and_applies_nothing_more() {
    for (phase, is_wanted) in [
        (Pending, false),
        (WaitingForPreCondition, false),
        (ApplyingOrDeleting, true),
        (StagePhase::WaitingForPostCondition, true),
    ] {
        let mut stage = StageStatus { name: "a".into(), phase, ..Default::default() };
        leave(&mut stage, StageOutcome::Skipped, "", now());
        let stages = [stage];
        assert_eq!(current(&stages), None);
        assert_eq!(!wanted(&stages).is_empty(), is_wanted, "{phase:?}");
        assert_eq!(untouched(&stages).contains("a"), !is_wanted, "{phase:?}");
        assert!(is_left(&stages, "a"));
    }
    // A deletion that was left deleted nothing: what a hook applies stays.
    let mut stage = StageStatus { name: "csi".into(), action: Delete, ..Default::default() };
    leave(&mut stage, StageOutcome::Skipped, "", now());
    let config = AddonConfig::parse(CONFIG).unwrap();
    assert!(applied_by_some_hook(&config, &[stage]).contains("csi"));
}

#[test]
fn the_stages_of_a_deletion_are_its_own_and_go_on_where_they_were() {
    let text = format!(
        "{CONFIG}  BeforeClusterDelete:\n    - {{name: ingress, action: delete}}\n    - {{name: csi, action: delete}}\n"
    );
    let config = AddonConfig::parse(&text).unwrap();
    let mut half = progress(&spec("r1"), &ClusterAddonStatus::default(), &target("r2", "v1", false), &config, now());
    enter(&mut half[0], ApplyingOrDeleting, "", now());
    let mut stages = before_deletion(&status("r2", "v1", half), &config, now());
    assert_eq!(names(&stages), ["BCD ingress Pending", "BCD csi Pending"]);
    enter(&mut stages[0], Done, "", now());
    let again = before_deletion(&status("r2", "v1", stages.clone()), &config, now());
    assert_eq!(again, stages);
    assert_eq!(definition(&config, &again[1]).unwrap().name, "csi");
    // In no other hook they run.
    let upgrade = progress(&spec("r1"), &ClusterAddonStatus::default(), &target("r2", "v1", true), &config, now());
    assert!(upgrade.iter().all(|stage| stage.name != "ingress"));
}

#[test]
fn what_an_upgrade_left_behind_is_deleted_before_its_cluster_too() {
    for (name, release, spec_of, status_of, expected) in [
        ("all is of one release", "r2", "r2", "r2", vec![]),
        ("in the middle of an upgrade", "r2", "r1", "r2", vec!["r1"]),
        ("moved on before the upgrade was done", "r3", "r1", "r2", vec!["r2", "r1"]),
        ("moved back", "r1", "r1", "r2", vec!["r2"]),
        ("new", "r1", "", "", vec![]),
        ("the Go operator's spelling", "r-v0-sha-a", "r-v0-sha.a", "r-v0-sha-a", vec![]),
    ] {
        assert_eq!(left_behind(release, &spec(spec_of), &status(status_of, "v1", vec![])), expected, "{name}");
    }
    let config =
        |stages: &str| AddonConfig::parse(&format!("addonStages:\n  BeforeClusterDelete: {stages}\n")).unwrap();
    let new = config("[{name: ingress, action: delete, deadline: 1m}]");
    let old = config("[{name: ingress, action: delete}, {name: database, action: delete}]");
    let all = with_deletions_of(&new, [&old]);
    let names: Vec<_> = all.of(Hook::BeforeClusterDelete).iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, ["ingress", "database"]);
    assert_eq!(all.of(Hook::BeforeClusterDelete)[0], new.of(Hook::BeforeClusterDelete)[0]);
    assert_eq!(with_deletions_of(&new, []), new);
}

#[test]
fn what_waits_for_its_stage_is_kept_until_it_comes() {
    let config = AddonConfig::parse(CONFIG).unwrap();
    let chart = |name: &str, digest: &str, running: &str| ChartStatus {
        name: name.into(),
        digest: digest.into(),
        running: running.into(),
        ..ChartStatus::default()
    };
    let all = ["cni", "metrics", "csi", "old", "removed"].map(|name| chart(name, "d", ""));
    let kept = |stages: &[StageStatus]| -> Vec<String> {
        super::kept(&config, stages, &all).into_iter().map(|chart| chart.name.clone()).collect()
    };
    let upgrade = target("r2", "v1.34.0", false);
    let mut stages = progress(&spec("r1"), &status("r1", "v1.33.0", vec![]), &upgrade, &config, now());
    assert_eq!(names(&stages), ["BCU cni Pending", "BCU old Pending", "BCU metrics Pending"]);
    assert_eq!(kept(&stages), ["cni", "metrics", "csi"], "nothing came yet");
    enter(&mut stages[0], ApplyingOrDeleting, "", now());
    assert_eq!(kept(&stages), ["metrics", "csi"]);
    enter(&mut stages[0], Done, "", now());
    enter(&mut stages[1], Done, "", now());
    // Who left it has it as it is.
    leave(&mut stages[2], StageOutcome::Skipped, "", now());
    assert_eq!(kept(&stages), ["csi"], "the machines are not all new");
    stages.extend(
        progress(&spec("r2"), &status("r2", "v1.34.0", stages.clone()), &target("r2", "v1.34.0", true), &config, now())
            .split_off(3),
    );
    enter(&mut stages[3], ApplyingOrDeleting, "", now());
    assert!(kept(&stages).is_empty());

    // What never came as a whole is nothing that could be kept.
    for chart in [chart("csi", "", ""), chart("csi", "d", "upgrade")] {
        let begun = progress(&spec("r1"), &status("r1", "v1.33.0", vec![]), &upgrade, &config, now());
        assert!(super::kept(&config, &begun, &[chart]).is_empty());
    }
}

#[test]
fn a_stage_is_due_once() {
    let config = AddonConfig::parse(CONFIG).unwrap();
    let mut stages = progress(&spec(""), &ClusterAddonStatus::default(), &target("r1", "v1", true), &config, now());
    assert_eq!(due(&stages, &config), None, "it has not begun");
    start(&mut stages[0], now());
    let deadline = SignedDuration::try_from(definition(&config, &stages[0]).unwrap().deadline).unwrap();
    assert_eq!(due(&stages, &config), Some(now() + deadline));
    let AtDeadline::Blocks(message) = at_deadline(&stages[0], definition(&config, &stages[0]), "", now() + deadline)
    else {
        panic!("it is over")
    };
    enter(&mut stages[0], Pending, &message, now());
    assert_eq!(due(&stages, &config), None, "it was told");
    assert_eq!(due(&all_done(stages), &config), None);
}
