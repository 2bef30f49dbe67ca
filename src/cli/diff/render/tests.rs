use serde_json::json;

use super::*;
use crate::core::upgrade::addons::StageChange;
use crate::core::upgrade::rollout::Reason;
use crate::core::upgrade::{Acceptance, ImageChange, State};

fn change(path: &str, before: Value, after: Value) -> Change {
    let some = |value: Value| (!value.is_null()).then_some(value);
    Change { path: path.into(), before: some(before), after: some(after) }
}

fn object(fate: Fate, kind: &str, name: &str, new_name: &str, changes: Vec<Change>) -> ObjectChange {
    ObjectChange {
        fate,
        kind: kind.into(),
        namespace: "kube-system".into(),
        name: name.into(),
        new_name: new_name.into(),
        changes,
        message: String::new(),
    }
}

fn state(release: &str, version: &str) -> State {
    State { release: release.into(), class: format!("team/{release}"), kubernetes_version: version.into() }
}

fn plan() -> Plan {
    let image = |name: &str, replaces| ImageChange { name: name.into(), url: "https://x/y".into(), replaces };
    let rollout = |kind: &str, name: &str, verdict, what: &str, fields| Rollout {
        kind: kind.into(),
        name: name.into(),
        verdict,
        reasons: if what.is_empty() { vec![] } else { vec![Reason { what: what.into(), fields }] },
    };
    let variable = |name: &str, fate, before: Value, after: Value, blocks: &str| VariableChange {
        name: name.into(),
        change: fate,
        before: Some(before),
        after: Some(after),
        set: false,
        blocks: blocks.into(),
    };
    Plan {
        cluster: "team/c".into(),
        from: state("docker-x-1-34-v1", "v1.34.1"),
        to: state("docker-x-1-34-v2", "v1.34.7"),
        objects: vec![
            object(Fate::Rotated, "ClusterClass", "docker-x-1-34-v1", "docker-x-1-34-v2", vec![]),
            object(Fate::Changed, "MachineTemplate", "v1", "v2", vec![change(".spec.image", json!("a"), json!("b"))]),
        ],
        rollouts: vec![
            rollout("InfrastructureCluster", "", Verdict::Unchanged, "", vec![]),
            rollout("ControlPlane", "", Verdict::Rolls, "Kubernetes v1.34.1 → v1.34.7", vec![]),
            rollout(
                "MachineDeployment",
                "md-0",
                Verdict::Rolls,
                "MachineTemplate rotates",
                vec![change(".spec.image", json!("a"), json!("b"))],
            ),
        ],
        external_patches: vec!["theirs".into()],
        problems: vec![],
        unknown: vec!["Secret x can't be read".into()],
        acceptance: Acceptance { state: AcceptanceState::Accepted, message: String::new() },
        addons: AddonChanges {
            compared: Compared::DryRun,
            message: String::new(),
            stages: vec![StageChange {
                hook: "BeforeClusterUpgrade".into(),
                stage: "cni".into(),
                action: "apply".into(),
                objects: vec![
                    object(
                        Fate::Changed,
                        "ConfigMap",
                        "cni",
                        "",
                        vec![change(".data.conf", json!("a\nb\nc\n"), json!("a\nB\nc\n"))],
                    ),
                    object(
                        Fate::Changed,
                        "Secret",
                        "key",
                        "",
                        vec![change(".data.key", json!("***"), json!("*** (differs)"))],
                    ),
                    object(Fate::Added, "ConfigMap", "new", "", vec![]),
                ],
                unchanged: 3,
            }],
            pruned: vec![object(Fate::Removed, "ConfigMap", "old", "", vec![])],
        },
        variables: vec![
            variable("size", VariableFate::Default, json!("small"), json!("large"), ""),
            variable("zone", VariableFate::Removed, json!(null), json!(null), "take it out"),
        ],
        images: vec![image("ubuntu-v1.34.7", false)],
    }
}

fn plain(plan: &Plan) -> String {
    anstream::adapter::strip_str(&text(plan)).to_string()
}

#[test]
fn a_plan_steers_no_terminal() {
    let evil = "a\u{1b}]0;x\u{7}b\rc\u{9b}d\u{202e}e";
    let mut plan = plan();
    plan.cluster = evil.into();
    (plan.problems, plan.unknown, plan.external_patches) = (vec![evil.into()], vec![evil.into()], vec![evil.into()]);
    plan.acceptance = Acceptance { state: AcceptanceState::Refused, message: evil.into() };
    (plan.rollouts[1].name, plan.rollouts[1].reasons[0].what) = (evil.into(), evil.into());
    plan.objects[1] = object(Fate::Changed, evil, evil, evil, vec![change(evil, json!(evil), json!([evil, "f"]))]);
    plan.objects[1].message = evil.into();
    plan.addons.stages[0].stage = evil.into();
    plan.addons.stages[0].objects[0].fate = Fate::Refused;
    plan.addons.stages[0].objects[0].message = evil.into();
    plan.addons.stages[0].objects[0].namespace = evil.into();
    (plan.variables[0].name, plan.variables[0].blocks) = (evil.into(), evil.into());
    (plan.images[0].name, plan.images[0].url) = (evil.into(), evil.into());
    let shown = text(&plan);
    // What is left are our own colours.
    let ours = shown.replace("\u{1b}[", "").replace('\n', "");
    assert!(!ours.chars().any(|c| c.is_control() || c == '\u{202e}'), "{ours:?}");
}

#[test]
fn a_plan_reads_from_top_to_bottom() {
    insta::assert_snapshot!(plain(&plan()), @r#"
    Cluster team/c: docker-x-1-34-v1 → docker-x-1-34-v2, Kubernetes v1.34.1 → v1.34.7
    Cluster API would take it

    ClusterClass and templates
    = ClusterClass docker-x-1-34-v1 → docker-x-1-34-v2: rotates, nothing but its name differs
    ~ MachineTemplate v1 → v2
        .spec.image: "a" → "b"

    Machines
    InfrastructureCluster   stays as it is
    ControlPlane            rolls
      Kubernetes v1.34.1 → v1.34.7
    MachineDeployment md-0  rolls
      MachineTemplate rotates
        .spec.image: "a" → "b"
    what the external patch theirs changes is not known

    Addons, tried by a dry run in the workload cluster
    cni (BeforeClusterUpgrade): 3 to change, 3 stay
      ~ ConfigMap kube-system/cni
          .data.conf: line 2: "b" → line 2: "B"
      ~ Secret kube-system/key
          .data.key: "***" → "*** (differs)"
      + ConfigMap kube-system/new
    when all stages are done and healthy:
      - ConfigMap kube-system/old

    Variables of the class
    ~ size: default "small" → "large"
    - zone: removed; take it out

    Node images to build
    + ubuntu-v1.34.7  https://x/y

    Not known
    Secret x can't be read
    "#);
}

#[test]
fn long_values_and_long_lists_are_cut() {
    let mut plan = plan();
    let fields = (0..30).map(|n| change(&format!(".f{n}"), json!(null), json!("x".repeat(300)))).collect();
    plan.objects = vec![object(Fate::Changed, "ConfigMap", "big", "", fields)];
    let text = plain(&plan);
    assert!(text.contains("and 10 fields more: -o json shows all"));
    assert!(text.lines().all(|line| line.chars().count() < 130), "{text}");
}
