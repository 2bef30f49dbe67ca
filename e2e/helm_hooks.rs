//! Helm hooks of addon charts run once, in order, and hold what comes behind them. The Jobs are run by Kubernetes' own
//! controller; their Pods are played, for there is no kubelet.

use std::process::Output;

use clusterstack::api::cluster_addon::{HelmHookPhase, HelmHookStatus, TestsPhase};
use clusterstack::api::{API_VERSION, ConditionType, SKIP_STAGE};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::addon::{Workload, addon, addons, kubeconfig, look_again, ready, says};
use crate::harness::{CLASS, Operator, Proxy, Repo, Weather, World, check, cluster, wait_for};

const STAGES: &str = "
addonStages:
  AfterControlPlaneInitialized: [{name: cni, action: apply}]
  BeforeClusterUpgrade: [{name: cni, action: apply}]
";

fn api(w: &Workload, version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(w.client.clone(), "kube-system", &resource)
}

fn hook(w: &Workload, kind: &str, name: &str, events: &str, more: &str) -> String {
    let spec = match kind {
        "Job" => {
            "apiVersion: batch/v1\nkind: Job\nspec: {backoffLimit: 0, template: {spec: {restartPolicy: Never, containers: [{name: a, image: none}]}}}\n"
        }
        "Pod" => "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, image: none}]}\n",
        _ => "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n",
    };
    format!("{spec}metadata: {{name: {}-{name}, annotations: {{helm.sh/hook: '{events}'{more}}}}}\n---\n", w.prefix)
}

fn write(repo: &Repo, name: &str, text: &str) {
    repo.write(&format!("stacks/docker/x/cluster-addon/cni/templates/{name}.yaml"), text);
}

async fn job(w: &Workload, name: &str) -> Option<DynamicObject> {
    api(w, "batch/v1", "Job").get_opt(&format!("{}-{name}", w.prefix)).await.unwrap()
}

/// Waits until a Job is there that is not `old`; its UID.
async fn starts(w: &Workload, name: &str, old: &str) -> String {
    wait_for(format!("Job {name}"), || async {
        let uid = job(w, name).await.ok_or("no Job")?.uid().unwrap();
        check(uid != old, &uid)?;
        Ok(uid)
    })
    .await
}

/// The Pod of a Job ends.
async fn ends(w: &Workload, name: &str, uid: &str, phase: &str) {
    let pods = api(w, "v1", "Pod");
    wait_for(format!("a Pod of Job {name}"), || async {
        let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/controller-uid={uid}"));
        let found = pods.list(&of_job).await.map_err(|e| e.to_string())?;
        let pod = found.items.first().ok_or("no Pod")?.name_any();
        let status = json!({"status": {"phase": phase}});
        pods.patch_status(&pod, &PatchParams::default(), &Patch::Merge(status)).await.map_err(|e| e.to_string())?;
        Ok(())
    })
    .await;
}

async fn runs(t: &World, cluster: &str) -> Vec<HelmHookStatus> {
    let addon = addons(t).get(&format!("cluster-addon-{cluster}")).await.unwrap();
    addon.status.unwrap().charts.into_iter().flat_map(|chart| chart.hooks).collect()
}

/// A stack of one chart with these hooks, of version v1, and the Cluster `c` that has it.
async fn released(w: &Workload, name: &str, hooks: &str) -> (World, Repo, Operator) {
    let t = World::new(name).await;
    w.kubeconfig(&t, "c").await;
    let (repo, operator) = released_in(&t, w, hooks).await;
    (t, repo, operator)
}

/// The same where the Secret of the workload cluster is there.
async fn released_in(t: &World, w: &Workload, hooks: &str) -> (Repo, Operator) {
    let repo = t.repo();
    repo.write("stacks/docker/x/clusteraddon.yaml", STAGES);
    w.chart(&repo, "cni", &["cni"], "{version: one}");
    write(&repo, "hooks", hooks);
    repo.release("docker-x-1-34-v1", CLASS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.apply(&cluster("c", "docker-x-1-34-v1")).await;
    (repo, operator)
}

/// Releases v2, and the Cluster moves to it.
async fn upgrades(t: &World, repo: &Repo) {
    repo.release("docker-x-1-34-v2", CLASS);
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    t.change(
        "user",
        ("cluster.x-k8s.io/v1beta1", "Cluster", "c"),
        json!({"spec": {"topology": {"class": "docker-x-1-34-v2"}}}),
    )
    .await;
}

#[tokio::test]
async fn hooks_of_charts_run_once_and_hold_what_is_behind_them() {
    let Some(w) = Workload::new().await else { return };
    let tidy = ", helm.sh/hook-delete-policy: 'before-hook-creation,hook-succeeded', helm.sh/hook-weight: '-5'";
    let hooks = [
        hook(&w, "ConfigMap", "conf", "pre-install", ", helm.sh/hook-weight: '-10'"),
        hook(&w, "Job", "pre", "pre-install,pre-upgrade", tidy),
        hook(&w, "Job", "post", "post-install,post-upgrade", ""),
        hook(&w, "Pod", "test", "test", ""),
    ];
    let (t, repo, operator) = released(&w, "helm", &hooks.concat()).await;

    // Killed while a hook runs, it waits for that very one.
    let pre = starts(&w, "pre", "").await;
    let message = says(&t, "c", ConditionType::Ready, "WaitingForHelmHook").await;
    assert!(message.starts_with("the chart of stage cni: pre-install hook: waiting for "), "{message}");
    assert!(w.map("conf").await.is_some() && w.map("cni").await.is_none());
    operator.kill();
    ends(&w, "pre", &pre, "Succeeded").await;
    let operator = t.operator(&[]);
    w.has("cni", "version", "one").await;
    let post = starts(&w, "post", "").await;
    assert!(job(&w, "pre").await.is_none(), "it is deleted when it succeeded");
    operator.kill();
    ends(&w, "post", &post, "Succeeded").await;
    let operator = t.operator(&[]);
    let status = ready(&t, "c", "docker-x-1-34-v1").await.status.unwrap();
    assert_eq!(status.resources.len(), 1, "{:?}", status.resources);
    let done: Vec<_> = runs(&t, "c").await.into_iter().map(|run| (run.event, run.kind, run.phase)).collect();
    let succeeded = |event: &str, kind: &str| (event.to_owned(), kind.to_owned(), HelmHookPhase::Succeeded);
    assert_eq!(
        done,
        [succeeded("pre-install", "ConfigMap"), succeeded("pre-install", "Job"), succeeded("post-install", "Job")]
    );

    // What a hook made is nobody's to put back, and nothing runs again.
    assert_eq!(starts(&w, "post", "").await, post);
    let post_job = format!("{}-post", w.prefix);
    api(&w, "batch/v1", "Job").delete(&post_job, &kube::api::DeleteParams::background()).await.unwrap();
    operator.kill();
    let operator = t.operator(&[]);
    look_again(&t, "c").await;
    operator.passes("ClusterAddon", 2).await;
    assert!(job(&w, "post").await.is_none() && job(&w, "pre").await.is_none());
    assert!(api(&w, "v1", "Pod").get_opt(&format!("{}-test", w.prefix)).await.unwrap().is_none());

    // A hook that fails holds the upgrade, until somebody asks to try again.
    w.chart(&repo, "cni", &["cni"], "{version: two}");
    upgrades(&t, &repo).await;
    let failing = starts(&w, "pre", &pre).await;
    ends(&w, "pre", &failing, "Failed").await;
    let message = says(&t, "c", ConditionType::Ready, "HelmHookFailed").await;
    assert!(message.contains("pre-upgrade hook Job") && message.contains("BackoffLimitExceeded"), "{message}");
    t.event("HelmHookFailed", "pre-upgrade").await;
    w.has("cni", "version", "one").await;
    operator.passes("ClusterAddon", 1).await;
    assert_eq!(starts(&w, "pre", "").await, failing, "nobody asked");
    look_again(&t, "c").await;
    let again = starts(&w, "pre", &failing).await;
    ends(&w, "pre", &again, "Succeeded").await;
    w.has("cni", "version", "two").await;
    let post = starts(&w, "post", &post).await;
    ends(&w, "post", &post, "Succeeded").await;
    ready(&t, "c", "docker-x-1-34-v2").await;
    assert!(w.map("conf").await.is_some(), "no upgrade has it, and a hook is never pruned");
    assert_eq!(runs(&t, "c").await[0].retries, 1);
}

#[tokio::test]
async fn a_chart_that_goes_runs_its_hooks_too() {
    let Some(w) = Workload::new().await else { return };
    let hooks = [hook(&w, "Job", "before", "pre-delete", ""), hook(&w, "ConfigMap", "after", "post-delete", "")];
    let generated = hook(&w, "ConfigMap", "made-", "pre-install", "").replace("{name: ", "{generateName: ");
    let (t, repo, _operator) = released(&w, "helmgo", &(hooks.concat() + &generated)).await;
    ready(&t, "c", "docker-x-1-34-v1").await;
    let made = w.maps("kube-system").list(&ListParams::default()).await.unwrap();
    let start = format!("{}-made-", w.prefix);
    assert_eq!(made.items.iter().filter(|map| map.name_any().starts_with(&start)).count(), 1);
    assert!(job(&w, "before").await.is_none());

    let stages = "addonStages:\n  BeforeClusterUpgrade: [{name: cni, action: delete}]\n";
    repo.write("stacks/docker/x/clusteraddon.yaml", stages);
    upgrades(&t, &repo).await;
    let before = starts(&w, "before", "").await;
    assert!(w.map("cni").await.is_some());
    ends(&w, "before", &before, "Succeeded").await;
    w.gone("cni").await;
    w.has("after", "a", "b").await;
    let status = ready(&t, "c", "docker-x-1-34-v2").await.status.unwrap();
    assert_eq!(status.charts, []);
    t.delete("cluster.x-k8s.io/v1beta1", "Cluster", "c").await;
    t.gone(API_VERSION, "ClusterAddon", "cluster-addon-c").await;
}

#[tokio::test]
async fn a_chart_of_nothing_but_hooks_runs_those_of_its_removal() {
    let Some(w) = Workload::new().await else { return };
    let hooks = [hook(&w, "ConfigMap", "came", "post-install", ""), hook(&w, "ConfigMap", "went", "pre-delete", "")];
    let t = World::new("helmonly").await;
    w.kubeconfig(&t, "c").await;
    let repo = t.repo();
    repo.write("stacks/docker/x/clusteraddon.yaml", STAGES);
    w.chart(&repo, "cni", &[], "{}");
    write(&repo, "hooks", &hooks.concat());
    repo.release("docker-x-1-34-v1", CLASS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.apply(&cluster("c", "docker-x-1-34-v1")).await;
    ready(&t, "c", "docker-x-1-34-v1").await;
    w.has("came", "a", "b").await;
    assert!(w.map("went").await.is_none());

    let stages = "addonStages:\n  BeforeClusterUpgrade: [{name: cni, action: delete}]\n";
    repo.write("stacks/docker/x/clusteraddon.yaml", stages);
    upgrades(&t, &repo).await;
    let status = ready(&t, "c", "docker-x-1-34-v2").await.status.unwrap();
    assert_eq!(status.charts, []);
    w.has("went", "a", "b").await;
}

#[tokio::test]
async fn a_chart_whose_objects_are_gone_when_the_operator_is_killed_runs_its_hooks_all_the_same() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("helmkill").await;
    let proxy = Proxy::start(w.client.clone(), t.dir()).await;
    kubeconfig(&t, "c", &std::fs::read_to_string(proxy.kubeconfig()).unwrap()).await;
    let (repo, operator) = released_in(&t, &w, &hook(&w, "ConfigMap", "after", "post-delete", "")).await;
    ready(&t, "c", "docker-x-1-34-v1").await;
    proxy.set(Weather::Unanswered("configmaps"));
    let stages = "addonStages:\n  BeforeClusterUpgrade: [{name: cni, action: delete}]\n";
    repo.write("stacks/docker/x/clusteraddon.yaml", stages);
    upgrades(&t, &repo).await;
    w.gone("cni").await;
    operator.kill();
    proxy.set(Weather::Fair);
    let _operator = t.operator(&[]);
    w.has("after", "a", "b").await;
    let status = ready(&t, "c", "docker-x-1-34-v2").await.status.unwrap();
    assert_eq!(status.charts, []);
}

async fn pod_ends(w: &Workload, name: &str, phase: &str) {
    let pods = api(w, "v1", "Pod");
    let name = format!("{}-{name}", w.prefix);
    wait_for(format!("Pod {name}"), || async {
        let status = json!({"status": {"phase": phase}});
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.map_err(|e| e.to_string())
    })
    .await;
}

async fn asks_for_tests(t: &World) -> Output {
    let args = ["test", "c", "-n", &t.namespace, "--timeout", "90s"];
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_clusterstack"));
    command.args(args).env("KUBECONFIG", &t.plane.kubeconfig).kill_on_drop(true).output().await.unwrap()
}

#[tokio::test]
async fn tests_of_charts_run_when_somebody_asks() {
    let Some(w) = Workload::new().await else { return };
    let weight = ", helm.sh/hook-weight: '5'";
    let hooks = [hook(&w, "Pod", "first", "test", ""), hook(&w, "Pod", "second", "test-success", weight)];
    let (t, repo, operator) = released(&w, "helmtest", &hooks.concat()).await;
    ready(&t, "c", "docker-x-1-34-v1").await;
    assert_eq!(addons(&t).get("cluster-addon-c").await.unwrap().status.unwrap().tests, None);
    assert!(api(&w, "v1", "Pod").get_opt(&format!("{}-first", w.prefix)).await.unwrap().is_none());

    let run = || asks_for_tests(&t);
    // The first fails: the second is not run, and the addons stay ready.
    let (said, ()) = tokio::join!(run(), pod_ends(&w, "first", "Failed"));
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(text.contains("✗ Pod kube-system/") && text.contains("the Pod failed"), "{text}");
    let status = ready(&t, "c", "docker-x-1-34-v1").await.status.unwrap();
    assert_eq!(status.tests.unwrap().phase, TestsPhase::Failed);
    t.event("HelmTestFailed", "test hook Pod").await;
    assert!(api(&w, "v1", "Pod").get_opt(&format!("{}-second", w.prefix)).await.unwrap().is_none());

    // Both succeed, the operator killed in between.
    let ends = async {
        // The failed one is in the way and goes first.
        let first = format!("{}-first", w.prefix);
        wait_for("a new first test".to_owned(), || async {
            let pod = api(&w, "v1", "Pod").get(&first).await.map_err(|e| e.to_string())?;
            check(pod.data.pointer("/status/phase").is_some_and(|phase| phase != "Failed"), &pod.data)
        })
        .await;
        operator.kill();
        pod_ends(&w, "first", "Succeeded").await;
        let operator = t.operator(&[]);
        pod_ends(&w, "second", "Succeeded").await;
        operator
    };
    let (said, _operator) = tokio::join!(run(), ends);
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert!(String::from_utf8_lossy(&said.stdout).ends_with("2 tests succeeded\n"), "{said:?}");
    look_again(&t, "c").await;
    let runs: Vec<_> = runs(&t, "c").await.into_iter().map(|run| (run.event, run.phase)).collect();
    assert_eq!(runs, vec![("test".to_owned(), HelmHookPhase::Succeeded); 2]);

    // Its tests are all that is recorded of the chart, which is installed all the same.
    w.chart(&repo, "cni", &["cni"], "{version: two}");
    let hooks = [hook(&w, "ConfigMap", "new", "pre-install", ""), hook(&w, "ConfigMap", "old", "pre-upgrade", "")];
    write(&repo, "hooks", &hooks.concat());
    upgrades(&t, &repo).await;
    ready(&t, "c", "docker-x-1-34-v2").await;
    assert!(w.map("old").await.is_some() && w.map("new").await.is_none());
}

#[tokio::test]
async fn a_hook_that_does_not_end_in_time_and_a_skip_that_names_nothing_are_told() {
    let Some(w) = Workload::new().await else { return };
    let limit = ", clusterstack.x-k8s.io/hook-timeout: 2s";
    let (t, _, _operator) = released(&w, "helmtime", &hook(&w, "Job", "slow", "pre-install", limit)).await;
    let message = says(&t, "c", ConditionType::Ready, "HelmHookFailed").await;
    assert!(message.contains("not finished within 2s, waiting for Job"), "{message}");
    assert!(w.map("cni").await.is_none());

    let skip = json!({"metadata": {"annotations": {SKIP_STAGE: "docker-x-1-34-v1/AfterControlPlaneInitialised/cni"}}});
    t.change("user", ("cluster.x-k8s.io/v1beta1", "Cluster", "c"), skip).await;
    t.event("StageUnknown", "\"AfterControlPlaneInitialised\" is none of the hooks").await;
}

#[tokio::test]
async fn a_chart_is_rendered_behind_its_definitions_and_runs_its_hooks_once() {
    let Some(w) = Workload::new().await else { return };
    let group = format!("{}.example.com", w.prefix);
    let t = World::new("helmcrds").await;
    w.kubeconfig(&t, "c").await;
    let repo = t.repo();
    let definition = format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: things.{group}}}\n\
         spec:\n  group: {group}\n  scope: Namespaced\n  names: {{kind: Thing, plural: things}}\n  \
         versions: [{{name: v1, served: true, storage: true, schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}}}]\n"
    );
    repo.write("stacks/docker/x/cluster-addon/cni/crds/things.yaml", &definition);
    let has = format!("{{{{ .Capabilities.APIVersions.Has \"{group}/v1\" | quote }}}}");
    w.chart(&repo, "cni", &["cni"], &format!("{{served: {has}}}"));
    write(&repo, "hooks", &hook(&w, "Job", "pre", "pre-install", ", helm.sh/hook-delete-policy: hook-succeeded"));
    repo.write("stacks/docker/x/clusteraddon.yaml", STAGES);
    repo.release("docker-x-1-34-v1", CLASS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.apply(&cluster("c", "docker-x-1-34-v1")).await;

    let pre = starts(&w, "pre", "").await;
    look_again(&t, "c").await;
    operator.passes("ClusterAddon", 2).await;
    assert_eq!(starts(&w, "pre", "").await, pre, "it is killed by nobody");
    ends(&w, "pre", &pre, "Succeeded").await;
    ready(&t, "c", "docker-x-1-34-v1").await;
    assert_eq!(w.map("cni").await.unwrap()["data"], json!({"served": "true"}));
    assert!(job(&w, "pre").await.is_none(), "it ran once");
    let definitions =
        ApiResource::from_gvk(&GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
    let definitions: Api<DynamicObject> = Api::all_with(w.client.clone(), &definitions);
    definitions.delete(&format!("things.{group}"), &kube::api::DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn what_runs_when_its_chart_changes_goes_to_its_end_first() {
    let Some(w) = Workload::new().await else { return };
    let policy = ", helm.sh/hook-delete-policy: hook-succeeded";
    let slow = |limit: &str| hook(&w, "Job", "pre", "pre-upgrade", &format!("{policy}{limit}"));
    let (t, repo, operator) = released(&w, "helmmeanwhile", &slow("")).await;
    ready(&t, "c", "docker-x-1-34-v1").await;
    w.chart(&repo, "cni", &["cni"], "{version: two}");
    upgrades(&t, &repo).await;
    let second = starts(&w, "pre", "").await;

    // The user goes on to another release meanwhile: the hook is not killed, and the operator may be.
    let class = |name: &str| json!({"spec": {"topology": {"class": name}}});
    let cluster = ("cluster.x-k8s.io/v1beta1", "Cluster", "c");
    w.chart(&repo, "cni", &["cni"], "{version: three}");
    write(&repo, "hooks", &slow(", clusterstack.x-k8s.io/hook-timeout: 3s"));
    repo.release("docker-x-1-34-v3", CLASS);
    t.look_again("x").await;
    t.ready("x", "v3, v2, v1").await;
    t.change("user", cluster, class("docker-x-1-34-v3")).await;
    let waits = "pre-upgrade hook, begun before the chart changed: waiting for Job";
    addon(&t, "c", "to wait for the hook of v2", |addon| {
        let status = addon.status.clone().unwrap_or_default();
        let message = status.stages.first().map(|stage| stage.message.clone()).unwrap_or_default();
        check(status.release == "docker-x-1-34-v3" && message.contains(waits), message)
    })
    .await;
    operator.kill();
    let operator = t.operator(&[]);
    operator.passes("ClusterAddon", 1).await;
    assert_eq!(starts(&w, "pre", "").await, second);
    ends(&w, "pre", &second, "Succeeded").await;
    let third = starts(&w, "pre", &second).await;
    w.has("cni", "version", "one").await;

    // The hook of v3 hangs: its time passes, and the next release goes on, over what it left.
    w.chart(&repo, "cni", &["cni"], "{version: four}");
    repo.release("docker-x-1-34-v4", CLASS);
    t.look_again("x").await;
    t.change("user", cluster, class("docker-x-1-34-v4")).await;
    let fourth = starts(&w, "pre", &third).await;
    ends(&w, "pre", &fourth, "Succeeded").await;
    ready(&t, "c", "docker-x-1-34-v4").await;
    w.has("cni", "version", "four").await;
}

#[tokio::test]
async fn hooks_that_come_to_a_chart_without_any_are_those_of_an_upgrade() {
    let Some(w) = Workload::new().await else { return };
    let (t, repo, operator) = released(&w, "helmfirst", "").await;
    ready(&t, "c", "docker-x-1-34-v1").await;
    // Of an operator that recorded no such chart: nothing is done, and nothing runs.
    operator.kill();
    let lost = json!({"status": {"charts": null}});
    addons(&t).patch_status("cluster-addon-c", &PatchParams::default(), &Patch::Merge(lost)).await.unwrap();
    let operator = t.operator(&[]);
    addon(&t, "c", "to be recorded", |addon| {
        let charts = addon.status.clone().unwrap_or_default().charts;
        check(charts.iter().any(|chart| chart.without_hooks && chart.running.is_empty()), charts)
    })
    .await;
    let events = [("pre-install", "no"), ("pre-upgrade", "before"), ("post-upgrade", "after")];
    write(&repo, "hooks", &events.map(|(event, name)| hook(&w, "ConfigMap", name, event, "")).concat());
    upgrades(&t, &repo).await;
    ready(&t, "c", "docker-x-1-34-v2").await;
    w.has("before", "a", "b").await;
    w.has("after", "a", "b").await;
    assert!(w.map("no").await.is_none());
    let chart = addons(&t).get("cluster-addon-c").await.unwrap().status.unwrap().charts.remove(0);
    assert!(!chart.without_hooks && chart.hooks.len() == 2, "{chart:?}");
    drop(operator);
}

#[tokio::test]
async fn what_a_chart_makes_once_stays_and_its_hooks_run_once_for_it() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("helmonce").await;
    w.kubeconfig(&t, "c").await;
    let repo = t.repo();
    repo.write("stacks/docker/x/clusteraddon.yaml", STAGES);
    w.chart(&repo, "cni", &["cni"], "{version: one}");
    let lookup = |name: &str| format!("(lookup \"v1\" \"ConfigMap\" .Release.Namespace \"{}-{name}\")", w.prefix);
    let map = |name: &str, data: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {}-{name}}}\ndata: {{{data}}}\n---\n", w.prefix)
    };
    let once = format!("{{{{- if not {} }}}}\n{}{{{{- end }}}}\n", lookup("once"), map("once", "a: b"));
    let taken = format!("{{{{ dig \"data\" \"word\" \"new\" {} }}}}", lookup("kept"));
    write(&repo, "once", &(once + &map("kept", &format!("word: {taken}"))));
    let tidy = ", helm.sh/hook-delete-policy: hook-succeeded";
    let hooks = [hook(&w, "Job", "pre", "pre-install", tidy), hook(&w, "Job", "post", "post-install", tidy)];
    write(&repo, "hooks", &hooks.concat());
    repo.release("docker-x-1-34-v1", CLASS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.apply(&cluster("c", "docker-x-1-34-v1")).await;
    let pre = starts(&w, "pre", "").await;
    ends(&w, "pre", &pre, "Succeeded").await;
    let post = starts(&w, "post", "").await;
    let uid = w.map("once").await.unwrap()["metadata"]["uid"].clone();
    // By now the chart renders it no more.
    look_again(&t, "c").await;
    operator.passes("ClusterAddon", 2).await;
    assert!(job(&w, "pre").await.is_none(), "it ran already");
    ends(&w, "post", &post, "Succeeded").await;
    ready(&t, "c", "docker-x-1-34-v1").await;
    for _ in 0..3 {
        look_again(&t, "c").await;
        operator.passes("ClusterAddon", 1).await;
    }
    assert!(job(&w, "pre").await.is_none() && job(&w, "post").await.is_none());
    assert_eq!(w.map("once").await.unwrap()["metadata"]["uid"], uid, "it went and came back");
    w.has("kept", "word", "new").await;

    // Deleted by hand it comes back; a release that does not know it takes it away.
    let maps = w.maps("kube-system");
    maps.delete(&format!("{}-once", w.prefix), &kube::api::DeleteParams::default()).await.unwrap();
    look_again(&t, "c").await;
    w.has("once", "a", "b").await;
    write(&repo, "once", &map("kept", &format!("word: {taken}")));
    upgrades(&t, &repo).await;
    ready(&t, "c", "docker-x-1-34-v2").await;
    w.gone("once").await;
    w.has("kept", "word", "new").await;
}
