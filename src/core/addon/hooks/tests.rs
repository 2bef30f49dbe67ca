use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;
use crate::api::cluster_addon::StageStatus;
use crate::api::condition::Reason;
use crate::core::addon::cluster;
use crate::core::retry::ErrorClass;
use crate::core::status::{AddonFacts, StepState, Trouble, addon_status};

const RELEASE: &str = "docker-x-1-34-v2";
const VERSION: &str = "v1.34.8";

fn stage(hook: Hook, name: &str, phase: StagePhase, message: &str) -> StageStatus {
    StageStatus {
        name: name.into(),
        hook: hook.as_str().into(),
        phase,
        message: message.into(),
        ..StageStatus::default()
    }
}

/// A Cluster in the midst of an upgrade: one stage is done, the next one waits.
fn upgrading() -> Seen {
    let stages = vec![
        stage(Hook::BeforeClusterUpgrade, "cni", StagePhase::Done, ""),
        stage(Hook::BeforeClusterUpgrade, "csi", StagePhase::WaitingForPreCondition, "gate is false"),
    ];
    seen(AddonFacts { stages, ..facts() })
}

fn facts() -> AddonFacts {
    let done = || StepState::Done(String::new());
    AddonFacts {
        downloaded: done(),
        reachable: done(),
        templated: done(),
        applied: done(),
        release: RELEASE.into(),
        kubernetes_version: VERSION.into(),
        ..AddonFacts::default()
    }
}

fn seen(facts: AddonFacts) -> Seen {
    let cluster = cluster::read(&json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"namespace": "team", "name": "c", "uid": "u"},
        "spec": {"topology": {"classRef": {"name": RELEASE}, "version": VERSION}},
    }));
    let mut addon = ClusterAddon::new("cluster-addon-c", crate::api::ClusterAddonSpec::default());
    addon.spec.cluster_stack = "docker-x-1-34-v1".into();
    addon.status = Some(addon_status(&ClusterAddonStatus::default(), facts, Timestamp::UNIX_EPOCH));
    Seen { cluster, release: Some(RELEASE.into()), addon: Some(addon) }
}

fn done() -> Seen {
    let stages = vec![
        stage(Hook::BeforeClusterUpgrade, "cni", StagePhase::Done, ""),
        stage(Hook::BeforeClusterUpgrade, "csi", StagePhase::Done, ""),
    ];
    seen(AddonFacts { stages, ..facts() })
}

fn stages(seen: &mut Seen) -> &mut Vec<StageStatus> {
    &mut status(seen).stages
}

fn status(seen: &mut Seen) -> &mut ClusterAddonStatus {
    addon(seen).status.as_mut().unwrap()
}

fn addon(seen: &mut Seen) -> &mut ClusterAddon {
    seen.addon.as_mut().unwrap()
}

fn with(mut seen: Seen, change: impl FnOnce(&mut Seen)) -> Seen {
    change(&mut seen);
    seen
}

#[test]
fn an_upgrade_goes_on_when_nothing_is_left_to_do() {
    for (name, seen) in [
        ("all stages are done", done()),
        ("the release has no stages", seen(facts())),
        ("not ours: no release", with(upgrading(), |seen| seen.release = None)),
        ("not ours: left to others", with(upgrading(), |seen| seen.cluster = None)),
        ("nothing is known", Seen::default()),
        ("it is being deleted", with(upgrading(), |seen| seen.cluster.as_mut().unwrap().deleting = true)),
        ("paused, all done", with(done(), |seen| seen.cluster.as_mut().unwrap().paused = true)),
        ("suspended, all done", with(done(), |seen| addon(seen).spec.suspend = true)),
        (
            "stages of AfterClusterUpgrade don't count",
            with(done(), |seen| {
                stages(seen).push(stage(Hook::AfterClusterUpgrade, "late", StagePhase::Pending, ""));
            }),
        ),
    ] {
        assert_eq!(answer(RuntimeHook::BeforeClusterUpgrade, VERSION, &seen), Answer::default(), "{name}");
    }
}

#[test]
fn an_upgrade_waits_and_says_for_what() {
    let unreachable = Trouble::new(ErrorClass::Transient, Reason::ClusterUnreachable, "no answer from 10.0.0.1");
    let unfetched = Trouble::new(ErrorClass::Transient, Reason::FetchFailed, "no such tag");
    let pending = || vec![stage(Hook::BeforeClusterUpgrade, "cni", StagePhase::Pending, "")];
    let first = vec![stage(Hook::AfterControlPlaneInitialized, "cni", StagePhase::ApplyingOrDeleting, "1 not synced")];
    let stale = "the stages of docker-x-1-34-v2 for Kubernetes v1.34.8 have not started";
    for (name, seen, expected) in vec![
        ("a condition", upgrading(), "stage csi of BeforeClusterUpgrade (2 of 2): gate is false"),
        (
            "the workload cluster",
            seen(AddonFacts { stages: pending(), reachable: StepState::Failed(unreachable), ..facts() }),
            "stage cni of BeforeClusterUpgrade (1 of 1): no answer from 10.0.0.1",
        ),
        (
            "the first stages of a new Cluster",
            seen(AddonFacts { stages: first, ..facts() }),
            "stage cni of AfterControlPlaneInitialized (1 of 1): 1 not synced",
        ),
        ("a status of another release", with(done(), |seen| status(seen).release = "docker-x-1-34-v1".into()), stale),
        ("a status of another version", with(done(), |seen| status(seen).kubernetes_version = "v1.34.7".into()), stale),
        (
            "half way of another release",
            with(upgrading(), |seen| status(seen).release = "docker-x-1-34-v1".into()),
            stale,
        ),
        (
            "a release that can't be fetched",
            seen(AddonFacts {
                downloaded: StepState::Failed(unfetched),
                release: "docker-x-1-34-v1".into(),
                ..facts()
            }),
            "the stages of docker-x-1-34-v2 for Kubernetes v1.34.8 have not started: no such tag",
        ),
        ("no status", with(done(), |seen| addon(seen).status = None), stale),
        (
            "a status of the Go operator",
            with(done(), |seen| addon(seen).status = Some(ClusterAddonStatus { ready: true, ..Default::default() })),
            stale,
        ),
        ("no ClusterAddon", with(done(), |seen| seen.addon = None), "it is not there yet"),
        (
            "one that goes",
            with(done(), |seen| addon(seen).metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH))),
            "it is not there yet",
        ),
        (
            "paused",
            with(upgrading(), |seen| seen.cluster.as_mut().unwrap().paused = true),
            "stage csi of BeforeClusterUpgrade (2 of 2): the Cluster is paused",
        ),
        (
            "suspended",
            with(upgrading(), |seen| addon(seen).spec.suspend = true),
            "stage csi of BeforeClusterUpgrade (2 of 2): its spec.suspend is set",
        ),
    ] {
        let message = answer(RuntimeHook::BeforeClusterUpgrade, VERSION, &seen).wait.unwrap_or_default();
        assert_eq!(message, format!("ClusterAddon cluster-addon-c: {expected}"), "{name}");
    }
}

#[test]
fn a_request_that_was_overtaken_waits_and_records_nothing() {
    let Answer { wait, record, .. } = answer(RuntimeHook::BeforeClusterUpgrade, "v1.34.7", &done());
    assert!(wait.unwrap().contains("v1.34.8 by now, no longer for the version of this question"));
    assert!(!record);
}

#[test]
fn the_other_hooks_never_wait() {
    for hook in
        [RuntimeHook::AfterControlPlaneInitialized, RuntimeHook::AfterClusterUpgrade, RuntimeHook::BeforeClusterDelete]
    {
        for seen in [upgrading(), done(), Seen::default()] {
            assert_eq!(answer(hook, "", &seen).wait, None, "{hook:?}");
        }
    }
}

#[test]
fn what_is_not_done_is_recorded_once() {
    let recorded = |hook: &str| with(upgrading(), |seen| addon(seen).spec.hook = hook.to_owned());
    let (first, before, after) = (
        RuntimeHook::AfterControlPlaneInitialized,
        RuntimeHook::BeforeClusterUpgrade,
        RuntimeHook::AfterClusterUpgrade,
    );
    for (name, hook, seen, expected) in [
        ("an upgrade", before, upgrading(), true),
        ("over another one", before, recorded("AfterControlPlaneInitialized"), true),
        ("it is recorded", before, recorded("BeforeClusterUpgrade"), false),
        ("done", before, done(), false),
        ("no object", before, with(upgrading(), |seen| seen.addon = None), false),
        ("a new Cluster", first, upgrading(), true),
        ("not over an upgrade", first, recorded("BeforeClusterUpgrade"), false),
        ("a new Cluster, done", first, done(), false),
        ("after an upgrade", after, upgrading(), false),
    ] {
        assert_eq!(answer(hook, VERSION, &seen).record, expected, "{name}");
    }
}

/// A Cluster that is deleted since second 0, and the ClusterAddon that was told of it.
fn deleting(stages: Vec<StageStatus>) -> Seen {
    with(seen(AddonFacts { stages, held: Some((Reason::Deleting, "goes".into())), ..facts() }), |seen| {
        let cluster = seen.cluster.as_mut().unwrap();
        (cluster.deleting, cluster.deleting_since) = (true, Some(Timestamp::UNIX_EPOCH));
        addon(seen).spec.hook = "BeforeClusterDelete".into();
        addon(seen).metadata.generation = Some(3);
        status(seen).observed_generation = Some(3);
        status(seen).resources = vec![crate::api::cluster_stack_release::Resource::default()];
    })
}

fn ingress(phase: StagePhase) -> Vec<StageStatus> {
    vec![stage(Hook::BeforeClusterDelete, "ingress", phase, "waiting for Service a to go")]
}

#[test]
fn a_deletion_waits_for_its_own_stages_and_for_nothing_else() {
    let open = || deleting(ingress(StagePhase::ApplyingOrDeleting));
    let waits =
        "ClusterAddon cluster-addon-c: stage ingress of BeforeClusterDelete (1 of 1): waiting for Service a to go";
    let unknown = "ClusterAddon cluster-addon-c: the stages of BeforeClusterDelete have not started";
    let cases = vec![
        ("a stage", open(), Some(waits)),
        ("done", deleting(ingress(StagePhase::Done)), None),
        ("no stages", deleting(Vec::new()), None),
        ("not told yet", with(open(), |seen| addon(seen).spec.hook = "BeforeClusterUpgrade".into()), Some(unknown)),
        ("told, not looked at", with(open(), |seen| status(seen).observed_generation = Some(2)), Some(unknown)),
        (
            "the stages of an upgrade stand there",
            deleting(vec![stage(Hook::BeforeClusterUpgrade, "cni", StagePhase::Done, "")]),
            Some(unknown),
        ),
        (
            "deleted before its Cluster",
            with(open(), |seen| addon(seen).metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH))),
            Some(waits),
        ),
        ("paused", with(open(), |seen| seen.cluster.as_mut().unwrap().paused = true), None),
        ("suspended", with(open(), |seen| addon(seen).spec.suspend = true), None),
        ("nothing applied", with(open(), |seen| status(seen).resources.clear()), None),
        ("no ClusterAddon", with(open(), |seen| seen.addon = None), None),
        ("of no release", with(open(), |seen| seen.release = None), None),
        ("not deleted", with(open(), |seen| seen.cluster.as_mut().unwrap().deleting_since = None), None),
        ("gone", Seen::default(), None),
    ];
    let limit = Duration::from_mins(10);
    let at = |second| Timestamp::from_second(second).unwrap();
    for (name, seen, expected) in cases {
        let answer = before_deletion(&seen, limit, at(599));
        assert_eq!(answer.wait.as_deref(), expected, "{name}");
        assert_eq!(answer.gave_up, None, "{name}");
        assert_eq!(answer.record, name == "not told yet", "{name}");
        let late = before_deletion(&seen, limit, at(600));
        assert_eq!((late.wait, late.record), (None, false), "{name}");
        assert_eq!(late.gave_up.is_some(), expected.is_some(), "{name}");
    }
    let told = before_deletion(&open(), limit, at(600)).gave_up.unwrap();
    assert_eq!(told, format!("the deletion goes on after 10m although not all was done: {waits}"));
}

#[test]
fn a_cluster_addon_that_is_deleted_stays_while_its_cluster_waits_for_stages() {
    let open = || deleting(ingress(StagePhase::ApplyingOrDeleting));
    let staged =
        AddonConfig::parse("addonStages:\n  BeforeClusterDelete: [{name: ingress, action: delete}]\n").unwrap();
    let bare = AddonConfig::parse("addonStages:\n  BeforeClusterUpgrade: [{name: ingress, action: apply}]\n").unwrap();
    let limit = Duration::from_mins(10);
    for (name, seen, config, second, expected) in vec![
        ("a stage is open", open(), Some(&staged), 599, true),
        ("Cluster API did not ask yet", with(open(), |seen| addon(seen).spec.hook.clear()), Some(&staged), 599, true),
        ("the release can't be read", open(), None, 599, true),
        ("their time is over", open(), Some(&staged), 600, false),
        ("paused", with(open(), |seen| seen.cluster.as_mut().unwrap().paused = true), Some(&staged), 599, true),
        (
            "paused for long",
            with(open(), |seen| seen.cluster.as_mut().unwrap().paused = true),
            Some(&staged),
            9999,
            true,
        ),
        ("paused, none", with(open(), |seen| seen.cluster.as_mut().unwrap().paused = true), Some(&bare), 599, false),
        (
            "paused, all done",
            with(deleting(ingress(StagePhase::Done)), |seen| seen.cluster.as_mut().unwrap().paused = true),
            Some(&staged),
            599,
            false,
        ),
        (
            "paused until now",
            with(open(), |seen| {
                let paused = json!({"type": "Ready", "status": "False", "reason": "Paused", "message": ""});
                status(seen).conditions = vec![serde_json::from_value(paused).unwrap()];
            }),
            Some(&staged),
            9999,
            true,
        ),
        (
            "paused until a moment ago",
            with(open(), |seen| status(seen).stages[0].started = Some(Time(Timestamp::from_second(9000).unwrap()))),
            Some(&staged),
            9599,
            true,
        ),
        (
            "paused until long ago",
            with(open(), |seen| status(seen).stages[0].started = Some(Time(Timestamp::from_second(9000).unwrap()))),
            Some(&staged),
            9600,
            false,
        ),
        ("all are done", deleting(ingress(StagePhase::Done)), Some(&staged), 599, false),
        ("the release has none", with(open(), |seen| addon(seen).spec.hook.clear()), Some(&bare), 599, false),
        (
            "deleted by hand",
            with(open(), |seen| seen.cluster.as_mut().unwrap().deleting_since = None),
            Some(&staged),
            599,
            false,
        ),
        ("the Cluster is gone", with(open(), |seen| seen.cluster = None), Some(&staged), 599, false),
    ] {
        assert_eq!(stays(&seen, config, limit, Timestamp::from_second(second).unwrap()), expected, "{name}");
    }
}

#[test]
fn a_deletion_of_which_nothing_can_be_read_waits_as_long_as_stages_may_take() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let limit = Duration::from_mins(10);
    let going = || deleting(Vec::new()).cluster.unwrap();
    let why = "the API server did not answer within 800 ms";
    let waits = Some(format!("clusterstack can't tell yet whether stages are to run: {why}"));
    for (name, cluster, expected) in [
        ("ours", Some(going()), waits.clone()),
        ("paused", Some(Cluster { paused: true, ..going() }), None),
        ("not deleted", Some(Cluster { deleting_since: None, ..going() }), None),
        ("left to others", None, None),
    ] {
        let answer = unread_deletion(cluster.as_ref(), why, limit, at(599));
        assert_eq!((answer.wait, answer.record, answer.gave_up), (expected.clone(), false, None), "{name}");
        let late = unread_deletion(cluster.as_ref(), why, limit, at(600));
        assert_eq!((late.wait, late.gave_up.is_some()), (None, expected.is_some()), "{name}");
    }
}

/// Reported of the Go operator: the upgrade is blocked for ever while the ClusterAddon says Ready.
#[test]
fn an_upgrade_never_waits_for_a_cluster_addon_that_says_ready() {
    let pending = |hook, name: &str| stage(hook, name, StagePhase::Pending, "");
    for (name, stages) in [
        ("all done", vec![stage(Hook::BeforeClusterUpgrade, "cni", StagePhase::Done, "")]),
        ("none", Vec::new()),
        ("open", vec![pending(Hook::BeforeClusterUpgrade, "cni")]),
        ("open, new", vec![pending(Hook::AfterControlPlaneInitialized, "cni")]),
        (
            "left",
            vec![StageStatus {
                outcome: Some(crate::api::cluster_addon::StageOutcome::DeadlinePassed),
                ..stage(Hook::BeforeClusterUpgrade, "cni", StagePhase::Done, "late")
            }],
        ),
    ] {
        let seen = seen(AddonFacts { stages, ..facts() });
        let is_ready = seen.addon.as_ref().unwrap().status.as_ref().unwrap().ready;
        let waits = answer(RuntimeHook::BeforeClusterUpgrade, VERSION, &seen).wait.is_some();
        assert_eq!(is_ready, !waits, "{name}");
    }
}
