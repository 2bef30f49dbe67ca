//! Stages of addons that wait, are left, are killed in the midst, and what was reported of the Go operator.

use clusterstack::api::cluster_addon::{StageOutcome, StagePhase, StageStatus};
use clusterstack::api::condition::find;
use clusterstack::api::{API_VERSION, ConditionType, SKIP_STAGE};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::addon::{Workload, addon, addons, kubeconfig, look_again, ready, says};
use crate::harness::{CLASS, CLUSTER_API, Operator, Repo, World, check, cluster, wait_for};
use crate::upgrade::topology_reconciled;

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";
const V3: &str = "docker-x-1-34-v3";
const NEW: &str = "AfterControlPlaneInitialized";

/// A stack with these stages, released as V1 with its charts, and a Cluster that is to be made of it.
struct Scene {
    // Ends before its directory goes, with its log.
    operator: Operator,
    t: World,
    w: Workload,
    repo: Repo,
}

impl Scene {
    async fn of(name: &str, stages: impl Fn(&str) -> String, charts: &[&str]) -> Option<Self> {
        let w = Workload::new().await?;
        let t = World::new(name).await;
        let repo = t.repo();
        repo.write("stacks/docker/x/clusteraddon.yaml", &stages(&w.prefix));
        for chart in charts {
            w.chart(&repo, chart, &[chart], "{version: one}");
        }
        repo.release(V1, CLASS);
        let operator = t.operator(&[]);
        t.create_stack("x", &repo.url(), json!({})).await;
        t.ready("x", "v1").await;
        Some(Self { t, w, repo, operator })
    }

    /// Makes the Cluster, with its kubeconfig.
    async fn cluster(&self) {
        self.w.kubeconfig(&self.t, "c").await;
        self.t.apply(&cluster("c", V1)).await;
    }

    /// Makes the Cluster of a release that is tagged now, and waits until its addons are ready.
    async fn begin_with(&self, release: &str) {
        self.repo.release(release, CLASS);
        self.t.look_again("x").await;
        self.t.release_ready(release).await;
        self.w.kubeconfig(&self.t, "c").await;
        self.t.apply(&cluster("c", release)).await;
        ready(&self.t, "c", release).await;
    }

    /// The Cluster asks for another release.
    async fn move_to(&self, release: &str) {
        self.t.look_again("x").await;
        self.t.release_ready(release).await;
        self.change(json!({"spec": {"topology": {"class": release}}})).await;
    }

    async fn change(&self, change: Value) {
        self.t.change("user", (CLUSTER_API, "Cluster", "c"), change).await;
    }

    async fn skip(&self, stages: Option<String>) {
        self.change(json!({"metadata": {"annotations": {SKIP_STAGE: stages}}})).await;
    }

    /// Waits until a stage is as `is` says.
    async fn stage(&self, name: &str, what: &str, is: impl Fn(&StageStatus) -> bool) -> StageStatus {
        let found = addon(&self.t, "c", &format!("with stage {name} {what}"), |addon| {
            let stages = addon.status.as_ref().map(|status| status.stages.clone()).unwrap_or_default();
            check(stages.iter().any(|stage| stage.name == name && is(stage)), &addon.status)
        })
        .await;
        found.status.unwrap().stages.into_iter().find(|stage| stage.name == name).unwrap()
    }

    async fn in_phase(&self, name: &str, phase: StagePhase) -> StageStatus {
        self.stage(name, &format!("in {phase:?}"), |stage| stage.phase == phase).await
    }
}

/// A condition that holds when the ConfigMap `name` says so.
fn open(prefix: &str, name: &str) -> String {
    format!(
        "{{objects: [{{key: gate, apiVersion: v1, kind: ConfigMap, name: {prefix}-{name}, namespace: default}}], conditions: \"gate.data.open == 'yes'\"}}"
    )
}

#[tokio::test]
async fn a_stage_blocks_at_its_deadline_or_is_left_where_it_says_so() {
    let stages = |prefix: &str| {
        let gate = open(prefix, "gate");
        format!(
            "addonStages:\n  {NEW}:\n    - {{name: a, action: apply, deadline: 3s, waitForPreCondition: {gate}}}\n    \
             - {{name: b, action: apply, deadline: 2s, onDeadline: continue, waitForPreCondition: {}}}\n    \
             - {{name: d, action: apply}}\n",
            open(prefix, "never")
        )
    };
    let Some(s) = Scene::of("deadline", stages, &["a", "b", "d"]).await else { return };
    s.cluster().await;
    let message = says(&s.t, "c", ConditionType::Ready, "StageDeadlineExceeded").await;
    assert!(message.starts_with(&format!("stage a of {NEW} (1 of 3): not done within 3s: ConfigMap")), "{message}");
    let stage = s.stage("a", "to say so", |stage| stage.message.starts_with("not done within 3s")).await;
    assert_eq!((stage.phase, stage.outcome), (StagePhase::WaitingForPreCondition, None));
    s.t.event("StageDeadlineExceeded", "stage a of").await;
    let events =
        s.t.kubectl(&["get", "events", "-o", "jsonpath={range .items[*]}{.reason} {.involvedObject.kind} {end}"]);
    for kind in ["Cluster", "ClusterAddon"] {
        assert!(events.contains(&format!("StageDeadlineExceeded {kind} ")), "{events}");
    }
    assert!(s.w.map("a").await.is_none());

    // It goes on to be tried; the next one is left, with what it has not done.
    s.w.put("default", &format!("{}-gate", s.w.prefix), json!({"open": "yes"})).await;
    s.w.has("a", "version", "one").await;
    let done = ready(&s.t, "c", V1).await.status.unwrap();
    assert_eq!((done.stages[0].phase, done.stages[0].outcome), (StagePhase::Done, None));
    let left = &done.stages[1];
    assert_eq!(
        (left.phase, left.outcome, left.left_in),
        (StagePhase::Done, Some(StageOutcome::DeadlinePassed), Some(StagePhase::WaitingForPreCondition))
    );
    assert!(s.w.map("b").await.is_none() && s.w.map("d").await.is_some());
    let message = &find(&done.conditions, ConditionType::Ready).unwrap().message;
    assert!(message.ends_with("stages left undone: b"), "{message}");
    s.t.event("StageDeadlineExceeded", "it is left, as onDeadline says").await;
}

#[tokio::test]
async fn stages_after_an_upgrade_follow_at_once_where_the_machines_were_quicker() {
    let stages = |prefix: &str| {
        format!(
            "addonStages:\n  {NEW}: [{{name: a, action: apply}}]\n  BeforeClusterUpgrade:\n    \
             - {{name: a, action: apply, waitForPreCondition: {}}}\n  AfterClusterUpgrade: [{{name: late, action: apply}}]\n",
            open(prefix, "gate")
        )
    };
    let Some(s) = Scene::of("quicker", stages, &["a", "late"]).await else { return };
    s.cluster().await;
    ready(&s.t, "c", V1).await;
    assert!(s.w.map("late").await.is_none(), "nothing was upgraded");
    s.repo.release(V2, CLASS);
    s.move_to(V2).await;
    s.in_phase("a", StagePhase::WaitingForPreCondition).await;
    // Nothing holds Cluster API up where its runtime hooks are off.
    topology_reconciled(&s.t, "c").await;
    s.w.put("default", &format!("{}-gate", s.w.prefix), json!({"open": "yes"})).await;
    wait_for("the last stage", || async {
        let addon = s.t.get(API_VERSION, "ClusterAddon", "cluster-addon-c").await.unwrap();
        let is_ready = addon["status"]["ready"] == json!(true);
        let there = s.w.map("late").await.is_some();
        assert!(there || !is_ready, "it was ready before its last stage: {:#}", addon["status"]);
        check(there && is_ready, &addon["status"])
    })
    .await;
}

#[tokio::test]
async fn a_gate_that_closes_vanishes_and_comes_back_is_followed() {
    let stages = |prefix: &str| {
        let (before, after) = (open(prefix, "before"), open(prefix, "after"));
        format!(
            "addonStages:\n  {NEW}:\n    - {{name: a, action: apply, waitForPreCondition: {before}, waitForPostCondition: {after}}}\n    \
             - {{name: b, action: apply}}\n"
        )
    };
    let Some(s) = Scene::of("gate", stages, &["a", "b"]).await else { return };
    let gate = |name: &str| format!("{}-{name}", s.w.prefix);
    let maps: Api<DynamicObject> = {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        Api::namespaced_with(s.w.client.clone(), "default", &resource)
    };
    let away = async |name: &str| maps.delete(&gate(name), &DeleteParams::default()).await.unwrap();
    let waits = async |phase: StagePhase, words: &str| {
        let is = |stage: &StageStatus| stage.phase == phase && stage.message.contains(words);
        s.stage("a", &format!("in {phase:?}: {words}"), is).await
    };
    s.w.put("default", &gate("before"), json!({"open": "no"})).await;
    s.cluster().await;
    waits(StagePhase::WaitingForPreCondition, "is false").await;
    away("before").await;
    waits(StagePhase::WaitingForPreCondition, "does not exist").await;
    s.w.put("default", &gate("before"), json!({"other": "key"})).await;
    waits(StagePhase::WaitingForPreCondition, "open").await;
    s.w.put("default", &gate("before"), json!({"open": "yes"})).await;
    s.w.has("a", "version", "one").await;

    // A gate that was passed is not asked again.
    away("before").await;
    s.w.put("default", &gate("after"), json!({"open": "no"})).await;
    waits(StagePhase::WaitingForPostCondition, "is false").await;
    away("after").await;
    waits(StagePhase::WaitingForPostCondition, "does not exist").await;
    assert!(s.w.map("b").await.is_none());
    s.w.put("default", &gate("after"), json!({"open": "yes"})).await;
    ready(&s.t, "c", V1).await;
    away("after").await;
    look_again(&s.t, "c").await;
    ready(&s.t, "c", V1).await;
}

#[tokio::test]
async fn a_stage_whose_condition_does_not_compile_is_skipped_once_in_a_release() {
    let stages = |_: &str| {
        let stages = "    - {name: a, action: apply, waitForPreCondition: {conditions: 'gate ==='}}\n    - {name: b, action: apply}\n";
        format!("addonStages:\n  {NEW}:\n{stages}  BeforeClusterUpgrade:\n{stages}")
    };
    let Some(s) = Scene::of("skip", stages, &["a", "b"]).await else { return };
    s.cluster().await;
    let message = says(&s.t, "c", ConditionType::Ready, "ConditionInvalid").await;
    assert!(message.contains("does not compile"), "{message}");
    // What names another release, hook or stage passes nothing.
    s.skip(Some(format!("{V2}/{NEW}/a, {V1}/BeforeClusterUpgrade/a, {V1}/{NEW}/b"))).await;
    look_again(&s.t, "c").await;
    s.in_phase("a", StagePhase::WaitingForPreCondition).await;
    s.skip(Some(format!("{V1}/{NEW}/a"))).await;
    let done = ready(&s.t, "c", V1).await.status.unwrap();
    assert_eq!(done.stages[0].outcome, Some(StageOutcome::Skipped));
    assert_eq!(done.skipped, [format!("{V1}/{NEW}/a")]);
    assert!(s.w.map("a").await.is_none() && s.w.map("b").await.is_some());
    s.t.event("StageSkipped", "stage a of AfterControlPlaneInitialized").await;

    // The same release again, for another version of Kubernetes: asked for once, it counts once.
    let upgrade = format!("{V1}/BeforeClusterUpgrade/a");
    s.skip(Some(upgrade.clone())).await;
    for version in ["v1.34.8", "v1.34.9"] {
        s.change(json!({"spec": {"topology": {"version": version}}})).await;
        addon(&s.t, "c", &format!("to be at {version}"), |addon| {
            let status = addon.status.clone().unwrap_or_default();
            let is_done = status.stages.iter().all(|stage| stage.phase == StagePhase::Done);
            check(status.kubernetes_version == version && is_done == (version == "v1.34.8"), &status)
        })
        .await;
    }
    says(&s.t, "c", ConditionType::Ready, "ConditionInvalid").await;
    // Taken away and written anew, also on the ClusterAddon, it counts again.
    s.skip(None).await;
    addon(&s.t, "c", "to forget it", |addon| {
        check(addon.status.as_ref().is_some_and(|status| status.skipped.is_empty()), &addon.status)
    })
    .await;
    let change = json!({"metadata": {"annotations": {SKIP_STAGE: upgrade}}});
    s.t.change("user", (API_VERSION, "ClusterAddon", "cluster-addon-c"), change).await;
    ready(&s.t, "c", V1).await;
}

#[tokio::test]
async fn killed_in_any_phase_of_a_stage_the_next_operator_goes_on_where_it_was() {
    let stages = |prefix: &str| {
        format!(
            "addonStages:\n  {NEW}:\n    - name: a\n      action: apply\n      waitForPreCondition: {}\n      \
             waitForPostCondition: {}\n    - {{name: b, action: apply}}\n  BeforeClusterUpgrade:\n    \
             - {{name: a, action: apply}}\n    - {{name: b, action: delete}}\n    - {{name: d, action: apply}}\n",
            open(prefix, "before"),
            open(prefix, "after")
        )
    };
    let Some(mut s) = Scene::of("killed", stages, &["a", "b", "d"]).await else { return };
    // An object that can't be applied holds the stage while it applies.
    let place = format!("{}-place", s.w.prefix);
    let lost = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: lost, namespace: {place}}}\n");
    s.repo.write("stacks/docker/x/cluster-addon/a/templates/lost.yaml", &lost);
    s.repo.release(V2, CLASS);
    s.t.look_again("x").await;
    s.t.release_ready(V2).await;
    s.t.apply(&cluster("c", V2)).await;
    says(&s.t, "c", ConditionType::ClusterReachable, "ClusterUnreachable").await;

    let gate = |name: &str| format!("{}-{name}", s.w.prefix);
    let (before, after) = (gate("before"), gate("after"));
    for phase in [
        StagePhase::Pending,
        StagePhase::WaitingForPreCondition,
        StagePhase::ApplyingOrDeleting,
        StagePhase::WaitingForPostCondition,
    ] {
        let seen = s.in_phase("a", phase).await;
        s = restarted(s);
        look_again(&s.t, "c").await;
        let again = s.in_phase("a", phase).await;
        assert_eq!((again.since, again.started), (seen.since, seen.started), "{phase:?}");
        assert!(s.w.map("b").await.is_none(), "{phase:?}");
        match phase {
            StagePhase::Pending => s.w.kubeconfig(&s.t, "c").await,
            StagePhase::WaitingForPreCondition => {
                assert!(s.w.map("a").await.is_none());
                s.w.put("default", &before, json!({"open": "yes"})).await;
            }
            StagePhase::ApplyingOrDeleting => {
                s.w.has("a", "version", "one").await;
                let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place}});
                let api: Api<DynamicObject> = Api::all_with(
                    s.w.client.clone(),
                    &ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Namespace")),
                );
                api.patch(&place, &PatchParams::apply("somebody"), &Patch::Apply(&object)).await.expect("Namespace");
            }
            _ => s.w.put("default", &after, json!({"open": "yes"})).await,
        }
        look_again(&s.t, "c").await;
    }
    ready(&s.t, "c", V2).await;
    s = restarted(s);
    ready(&s.t, "c", V2).await;
    s.w.has("b", "version", "one").await;

    // Killed while a stage deletes.
    let maps = s.w.maps("kube-system");
    let held = format!("{}-b", s.w.prefix);
    let hold = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    maps.patch(&held, &PatchParams::default(), &hold(json!(["example.com/held"]))).await.expect("ConfigMap");
    s.repo.write("stacks/docker/x/cluster-addon/a/templates/lost.yaml", "");
    s.repo.release(V3, CLASS);
    s.move_to(V3).await;
    s.in_phase("b", StagePhase::ApplyingOrDeleting).await;
    s = restarted(s);
    let stage = s.stage("b", "to wait for it", |stage| stage.message.contains("to go")).await;
    assert_eq!(stage.phase, StagePhase::ApplyingOrDeleting);
    assert!(s.w.map("d").await.is_none());
    maps.patch(&held, &PatchParams::default(), &hold(Value::Null)).await.expect("ConfigMap");
    ready(&s.t, "c", V3).await;
    s.w.gone("b").await;
    s.w.has("d", "version", "one").await;
}

/// `kill -9`, and another operator.
fn restarted(scene: Scene) -> Scene {
    let Scene { t, w, repo, operator } = scene;
    operator.kill();
    let operator = t.operator(&[]);
    Scene { t, w, repo, operator }
}

const BOTH: &str = "addonStages:\n  AfterControlPlaneInitialized: [{name: a, action: apply}]\n  BeforeClusterUpgrade: [{name: a, action: apply}]\n";

#[tokio::test]
async fn a_broken_release_is_left_for_a_fixed_one_and_a_rotated_kubeconfig_is_taken() {
    let Some(s) = Scene::of("broken-addon", |_| BOTH.to_owned(), &["a"]).await else { return };
    s.cluster().await;
    ready(&s.t, "c", V1).await;
    let template = "stacks/docker/x/cluster-addon/a/templates/broken.yaml";
    s.repo.write(template, "{{ fail \"broken\" }}\n");
    s.repo.release(V2, CLASS);
    s.move_to(V2).await;
    let message = says(&s.t, "c", ConditionType::Ready, "RenderFailed").await;
    assert!(message.contains("broken"), "{message}");
    // What works goes on to work.
    s.w.has("a", "version", "one").await;
    let held = addons(&s.t).get("cluster-addon-c").await.unwrap();
    assert_eq!(held.spec.cluster_stack, V1);

    // Meanwhile the kubeconfig changes: what it names counts.
    kubeconfig(&s.t, "c", "no kubeconfig").await;
    look_again(&s.t, "c").await;
    says(&s.t, "c", ConditionType::ClusterReachable, "KubeconfigRefused").await;
    s.w.kubeconfig(&s.t, "c").await;

    s.repo.write(template, "");
    s.w.chart(&s.repo, "a", &["a"], "{version: three}");
    s.repo.release(V3, CLASS);
    s.move_to(V3).await;
    ready(&s.t, "c", V3).await;
    s.w.has("a", "version", "three").await;
}

/// Reported of the Go operator: it crashes where the ClusterAddon names no release, or one that is gone.
#[tokio::test]
async fn reported_of_the_go_operator_an_unknown_old_release_crashes_nothing_and_the_upgrade_goes_through() {
    let Some(s) = Scene::of("old-release", |_| BOTH.to_owned(), &["a"]).await else { return };
    s.cluster().await;
    ready(&s.t, "c", V1).await;
    for (round, (release, old)) in [(V2, json!("docker-x-1-33-v9")), (V3, Value::Null)].into_iter().enumerate() {
        let change = json!({"spec": {"clusterStack": old, "version": null, "hook": "BeforeClusterUpgrade"}});
        let api = addons(&s.t);
        let params = PatchParams::default();
        api.patch("cluster-addon-c", &params, &Patch::Merge(change)).await.unwrap();
        api.patch_status("cluster-addon-c", &params, &Patch::Merge(json!({"status": null}))).await.unwrap();
        s.w.chart(&s.repo, "a", &["a"], &format!("{{version: round{round}}}"));
        s.repo.release(release, CLASS);
        s.move_to(release).await;
        ready(&s.t, "c", release).await;
        s.w.has("a", "version", &format!("round{round}")).await;
    }
    assert!(!s.operator.log().contains("panicked"));
}

/// Reported of the Go operator: addons stay as they are, silently, where the version of their chart is the same, or only
/// the stages of new clusters name them.
#[tokio::test]
async fn reported_of_the_go_operator_no_addon_stays_old_in_an_upgrade() {
    let stages = "addonStages:\n  AfterControlPlaneInitialized: [{name: a, action: apply}, {name: b, action: apply}]\n  BeforeClusterUpgrade: [{name: a, action: apply}]\n";
    let Some(s) = Scene::of("same-version", |_| stages.to_owned(), &["a", "b"]).await else { return };
    // The addon's version is given, and stays.
    let metadata = |version: &str| {
        format!(
            "apiVersion: metadata.clusterstack.x-k8s.io/v1alpha1\nversions:\n  clusterStack: {version}\n  kubernetes: v1.34.7\n  components:\n    clusterAddon: v7\n"
        )
    };
    s.repo.write("stacks/docker/x/metadata.yaml", &metadata("v2"));
    s.repo.release(V2, CLASS);
    s.t.look_again("x").await;
    s.t.release_ready(V2).await;
    s.w.kubeconfig(&s.t, "c").await;
    s.t.apply(&cluster("c", V2)).await;
    let first = ready(&s.t, "c", V2).await;
    for chart in ["a", "b"] {
        s.w.chart(&s.repo, chart, &[chart], "{version: two}");
    }
    s.repo.write("stacks/docker/x/metadata.yaml", &metadata("v3"));
    s.repo.release(V3, CLASS);
    s.move_to(V3).await;
    let second = ready(&s.t, "c", V3).await;
    assert_eq!((first.spec.version.as_str(), second.spec.version.as_str()), ("v7", "v7"));
    for chart in ["a", "b"] {
        s.w.has(chart, "version", "two").await;
    }
}

/// Reported of the Go operator: the ClusterAddon is ready while the CNI does not run.
#[tokio::test]
async fn reported_of_the_go_operator_no_cluster_addon_is_ready_while_the_cni_is_broken() {
    let Some(s) = Scene::of("broken-cni", |_| BOTH.to_owned(), &["a"]).await else { return };
    let name = format!("{}-cni", s.w.prefix);
    // One Pod that its agent runs in.
    let agent = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  selector: {{matchLabels: {{app: {name}}}}}\n  \
         template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec: {{containers: [{{name: a, image: a}}]}}\n"
    );
    s.repo.write("stacks/docker/x/cluster-addon/a/templates/cni.yaml", &agent);
    s.repo.release(V2, CLASS);
    s.t.look_again("x").await;
    s.t.release_ready(V2).await;
    s.w.kubeconfig(&s.t, "c").await;
    s.t.apply(&cluster("c", V2)).await;
    let pods: Api<DynamicObject> = Api::namespaced_with(
        s.w.client.clone(),
        "kube-system",
        &ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod")),
    );
    addon(&s.t, "c", "to be there", |_| Ok(())).await;
    // Never up, up, and down again: what a kubelet would say of the Pod, and what the ClusterAddon makes of it.
    for (ready, is_up) in [(None, false), (Some("True"), true), (Some("False"), false)] {
        wait_for(format!("the addons with a CNI that is up: {is_up}"), || async {
            let of_agent = pods.list(&ListParams::default().labels(&format!("app={name}"))).await.expect("API server");
            for pod in of_agent.items.iter().filter(|_| ready.is_some()) {
                let ready = json!({"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"});
                let status = json!({"status": {"phase": "Running", "conditions": [ready]}});
                let _ = pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await;
            }
            look_again(&s.t, "c").await;
            let status =
                addons(&s.t).get("cluster-addon-c").await.map_err(|e| e.to_string())?.status.unwrap_or_default();
            let is_done =
                !status.stages.is_empty() && status.stages.iter().all(|stage| stage.phase == StagePhase::Done);
            let told = find(&status.conditions, ConditionType::Ready).is_some_and(|one| one.message.contains(&name));
            check(is_done && status.ready == is_up && told != is_up, &status)
        })
        .await;
    }
}

#[tokio::test]
async fn a_cluster_addon_that_is_deleted_again_and_again_comes_back_ready() {
    let Some(s) = Scene::of("again", |_| BOTH.to_owned(), &["a"]).await else { return };
    s.cluster().await;
    let mut uid = ready(&s.t, "c", V1).await.uid();
    for _ in 0..8 {
        s.t.delete(API_VERSION, "ClusterAddon", "cluster-addon-c").await;
        let anew = addon(&s.t, "c", "to be made anew", |addon| check(addon.uid() != uid, addon.uid())).await;
        uid = anew.uid();
        ready(&s.t, "c", V1).await;
    }
}

#[tokio::test]
async fn a_status_that_is_lost_in_an_upgrade_leaves_nothing_behind() {
    let stages = |prefix: &str| {
        let gated = format!(
            "[{{name: a, action: apply}}, {{name: b, action: apply, waitForPreCondition: {}}}]",
            open(prefix, "gate")
        );
        format!("addonStages:\n  {NEW}: {gated}\n  BeforeClusterUpgrade: {gated}\n")
    };
    let Some(s) = Scene::of("lostmid", stages, &["a", "b"]).await else { return };
    let gate = async |open: &str| s.w.put("default", &format!("{}-gate", s.w.prefix), json!({"open": open})).await;
    gate("yes").await;
    s.w.chart(&s.repo, "a", &["a", "old"], "{version: two}");
    s.repo.release(V2, CLASS);
    s.cluster().await;
    ready(&s.t, "c", V1).await;
    s.move_to(V2).await;
    ready(&s.t, "c", V2).await;
    assert!(s.w.map("old").await.is_some());
    gate("no").await;
    s.w.chart(&s.repo, "a", &["a"], "{version: three}");
    s.repo.release(V3, CLASS);
    s.move_to(V3).await;
    s.w.has("a", "version", "three").await;
    s.in_phase("b", StagePhase::WaitingForPreCondition).await;
    let uid = addons(&s.t).get("cluster-addon-c").await.unwrap().uid();
    s.t.delete(API_VERSION, "ClusterAddon", "cluster-addon-c").await;
    addon(&s.t, "c", "to be made anew, and to wait", |addon| {
        let status = addon.status.clone().unwrap_or_default();
        let waits = |stage: &StageStatus| stage.name == "b" && stage.phase == StagePhase::WaitingForPreCondition;
        check(addon.uid() != uid && status.stages.iter().any(waits), &status)
    })
    .await;
    gate("yes").await;
    ready(&s.t, "c", V3).await;
    s.w.gone("old").await;
    assert!(s.w.map("a").await.is_some() && s.w.map("b").await.is_some());
}

#[tokio::test]
async fn a_cluster_addon_that_is_lost_while_cluster_api_waits_keeps_the_gates_of_the_upgrade() {
    let stages = |prefix: &str| {
        let gated = format!("[{{name: a, action: apply, waitForPreCondition: {}}}]", open(prefix, "gate"));
        format!("addonStages:\n  {NEW}: [{{name: a, action: apply}}]\n  BeforeClusterUpgrade: {gated}\n")
    };
    let Some(s) = Scene::of("lostgate", stages, &["a"]).await else { return };
    let api_version = "controlplane.cluster.x-k8s.io/v1beta1";
    let machine =
        json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "DockerMachineTemplate", "name": "m"});
    let control_plane = json!({
        "apiVersion": api_version, "kind": "KubeadmControlPlane", "metadata": {"name": "plane"},
        "spec": {"version": "v1.34.7", "kubeadmConfigSpec": {}, "machineTemplate": {"infrastructureRef": machine}},
    });
    s.t.apply(&control_plane).await;
    s.cluster().await;
    let plane = json!({"apiVersion": api_version, "kind": "KubeadmControlPlane", "name": "plane"});
    s.change(json!({"spec": {"controlPlaneRef": plane}})).await;
    ready(&s.t, "c", V1).await;
    s.w.chart(&s.repo, "a", &["a"], "{version: two}");
    s.repo.release(V2, CLASS);
    s.change(json!({"spec": {"topology": {"version": "v1.34.8"}}})).await;
    s.move_to(V2).await;
    s.in_phase("a", StagePhase::WaitingForPreCondition).await;
    for restored in [false, true] {
        let uid = addons(&s.t).get("cluster-addon-c").await.unwrap().uid();
        if restored {
            s.t.delete(api_version, "KubeadmControlPlane", "plane").await;
        }
        s.t.delete(API_VERSION, "ClusterAddon", "cluster-addon-c").await;
        if restored {
            // It comes later than its Cluster.
            let message = says(&s.t, "c", ConditionType::Ready, "ValuesInvalid").await;
            assert!(message.contains("KubeadmControlPlane plane"), "{message}");
            s.t.apply(&control_plane).await;
        }
        addon(&s.t, "c", "to be made anew, and to wait as before", |addon| {
            let status = addon.status.clone().unwrap_or_default();
            let waits = |stage: &StageStatus| {
                stage.hook == "BeforeClusterUpgrade" && stage.phase == StagePhase::WaitingForPreCondition
            };
            check(addon.uid() != uid && status.stages.iter().all(waits) && !status.stages.is_empty(), &status)
        })
        .await;
        s.w.has("a", "version", "one").await;
    }
    s.w.put("default", &format!("{}-gate", s.w.prefix), json!({"open": "yes"})).await;
    ready(&s.t, "c", V2).await;
    s.w.has("a", "version", "two").await;
}

#[tokio::test]
async fn a_stage_that_deletes_leaves_what_a_later_stage_applies() {
    let first = |_: &str| format!("addonStages:\n  {NEW}: [{{name: old, action: apply}}]\n");
    let Some(s) = Scene::of("takesover", first, &["old"]).await else { return };
    s.w.chart(&s.repo, "old", &["moves", "goes"], "{version: one}");
    s.begin_with(V2).await;
    let uid = s.w.map("moves").await.unwrap()["metadata"]["uid"].clone();

    let stages = "addonStages:\n  BeforeClusterUpgrade: [{name: old, action: delete}, {name: new, action: apply}]\n";
    s.repo.write("stacks/docker/x/clusteraddon.yaml", stages);
    s.w.chart(&s.repo, "new", &["moves", "comes"], "{version: two}");
    s.repo.release(V3, CLASS);
    s.move_to(V3).await;
    ready(&s.t, "c", V3).await;
    s.w.gone("goes").await;
    s.w.has("comes", "version", "two").await;
    s.w.has("moves", "version", "two").await;
    assert_eq!(s.w.map("moves").await.unwrap()["metadata"]["uid"], uid, "it was deleted and made anew");
}

#[tokio::test]
async fn what_waits_for_its_stage_is_put_back_meanwhile_and_keeps_its_keys() {
    let stages = |prefix: &str| {
        format!(
            "addonStages:\n  {NEW}: [{{name: a, action: apply}}, {{name: b, action: apply}}, {{name: late, action: apply}}]\n  \
             BeforeClusterUpgrade:\n    - {{name: a, action: apply}}\n    - {{name: b, action: apply, waitForPreCondition: {}}}\n  \
             AfterClusterUpgrade: [{{name: late, action: apply}}]\n",
            open(prefix, "gate")
        )
    };
    let Some(s) = Scene::of("kept", stages, &["a", "b", "late"]).await else { return };
    let release = |version: &str| {
        for chart in ["a", "b", "late"] {
            let data = format!("\n  version: {version}\n  ca: {{{{ (genCA \"{chart}\" 365).Cert | b64enc }}}}");
            s.w.chart(&s.repo, chart, &[chart], &data);
        }
    };
    release("one");
    s.begin_with(V2).await;
    let authority = async |chart: &str| s.w.map(chart).await.unwrap()["data"]["ca"].clone();
    let before = [authority("b").await, authority("late").await];
    release("two");
    s.repo.release(V3, CLASS);
    s.move_to(V3).await;
    s.w.has("a", "version", "two").await;
    s.in_phase("b", StagePhase::WaitingForPreCondition).await;

    // One is deleted, the other changed, while the upgrade waits.
    let maps = s.w.maps("kube-system");
    let name = |chart: &str| format!("{}-{chart}", s.w.prefix);
    maps.delete(&name("b"), &DeleteParams::default()).await.unwrap();
    let change = Patch::Merge(json!({"data": {"version": "hand"}}));
    maps.patch(&name("late"), &PatchParams::default(), &change).await.unwrap();
    s.w.has("b", "version", "one").await;
    s.w.has("late", "version", "one").await;
    assert_eq!([authority("b").await, authority("late").await], before, "made anew with other keys");
    s.t.event("DriftCorrected", "was deleted").await;
    let stage = s.in_phase("b", StagePhase::WaitingForPreCondition).await;
    assert_eq!(stage.outcome, None);

    // The upgrade goes on, and what comes keeps its keys.
    s.w.put("default", &name("gate"), json!({"open": "yes"})).await;
    s.w.has("b", "version", "two").await;
    topology_reconciled(&s.t, "c").await;
    s.w.has("late", "version", "two").await;
    ready(&s.t, "c", V3).await;
    assert_eq!([authority("b").await, authority("late").await], before, "drawn anew in the upgrade");
}
