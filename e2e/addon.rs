//! Addons reach a workload cluster: a second API server behind the Secret that Cluster API would write.

use std::path::Path;

use clusterstack::api::cluster_addon::{StagePhase, StageStatus};
use clusterstack::api::condition::find;
use clusterstack::api::{API_VERSION, ClusterAddon, ConditionType, RECONCILE_AT};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::harness::{
    CLASS, CLUSTER_API, ControlPlane, Proxy, Repo, Weather, World, check, cluster, unique, wait_for, workload,
};

const STAGES: &str = "
apiVersion: clusteraddonconfig.x-k8s.io/v1alpha1
addonStages:
  AfterControlPlaneInitialized:
    - {name: cni, action: apply}
    - name: metrics
      action: apply
      waitForPreCondition:
        objects:
          - {key: gate, apiVersion: v1, kind: ConfigMap, name: GATE, namespace: default}
        conditions: gate.data.open == 'yes'
  BeforeClusterUpgrade:
    - {name: cni, action: apply}
    - {name: metrics, action: apply}
";

/// A workload cluster of one test: names of its own on a shared API server.
pub(crate) struct Workload {
    pub(crate) plane: &'static ControlPlane,
    pub(crate) client: Client,
    /// Begins the names of this test's objects.
    pub(crate) prefix: String,
}

impl Workload {
    pub(crate) async fn new() -> Option<Self> {
        let plane = workload().await?;
        Some(Self { plane, client: plane.client().await, prefix: unique("w") })
    }

    pub(crate) fn maps(&self, namespace: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }

    /// A ConfigMap of the workload cluster's kube-system.
    pub(crate) async fn map(&self, name: &str) -> Option<Value> {
        let found = self.maps("kube-system").get_opt(&format!("{}-{name}", self.prefix)).await.expect("API server");
        found.map(|object| serde_json::to_value(object).expect("JSON"))
    }

    pub(crate) async fn has(&self, name: &str, key: &str, value: &str) {
        wait_for(format!("{name} with {key}={value}"), || async {
            let map = self.map(name).await.unwrap_or_default();
            check(map.pointer(&format!("/data/{key}")).and_then(Value::as_str) == Some(value), &map)
        })
        .await;
    }

    pub(crate) async fn gone(&self, name: &str) {
        wait_for(format!("{name} to be gone"), || async { check(self.map(name).await.is_none(), name) }).await;
    }

    pub(crate) async fn put(&self, namespace: &str, name: &str, data: Value) {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
        let params = PatchParams::apply("somebody").force();
        self.maps(namespace).patch(name, &params, &Patch::Apply(&object)).await.expect("ConfigMap");
    }

    /// The Secret that Cluster API writes.
    pub(crate) async fn kubeconfig(&self, t: &World, cluster: &str) {
        let text = std::fs::read_to_string(&self.plane.kubeconfig).expect("kubeconfig");
        kubeconfig(t, cluster, &text).await;
    }

    /// Where its kubeconfig lies.
    pub(crate) fn kubeconfig_path(&self) -> &Path {
        &self.plane.kubeconfig
    }

    /// A chart with one ConfigMap `<prefix>-<name>`.
    pub(crate) fn chart(&self, repo: &Repo, stage: &str, names: &[&str], data: &str) {
        let dir = format!("stacks/docker/x/cluster-addon/{stage}");
        repo.write(&format!("{dir}/Chart.yaml"), &format!("apiVersion: v2\nname: addon-{stage}\nversion: v0\n"));
        repo.write(&format!("{dir}/values.yaml"), "cluster: none\n");
        let map = |name: &&str| {
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {}-{name}}}\ndata: {data}\n---\n", self.prefix)
        };
        repo.write(&format!("{dir}/templates/maps.yaml"), &names.iter().map(map).collect::<String>());
    }
}

pub(crate) async fn kubeconfig(t: &World, cluster: &str, text: &str) {
    t.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
        "metadata": {"name": format!("{cluster}-kubeconfig")}, "stringData": {"value": text},
    }))
    .await;
}

pub(crate) fn addons(t: &World) -> Api<ClusterAddon> {
    Api::namespaced(t.client.clone(), &t.namespace)
}

/// Waits until the ClusterAddon of a Cluster is as `is` says.
pub(crate) async fn addon(
    t: &World,
    cluster: &str,
    what: &str,
    is: impl Fn(&ClusterAddon) -> Result<(), String>,
) -> ClusterAddon {
    let name = format!("cluster-addon-{cluster}");
    wait_for(format!("ClusterAddon {name} {what}"), || async {
        let addon = addons(t).get_opt(&name).await.map_err(|e| e.to_string())?.ok_or("no such object")?;
        is(&addon)?;
        Ok(addon)
    })
    .await
}

/// Waits until the ClusterAddon is ready with a release.
pub(crate) async fn ready(t: &World, cluster: &str, release: &str) -> ClusterAddon {
    addon(t, cluster, &format!("to be ready with {release}"), |addon| {
        let status = addon.status.clone().unwrap_or_default();
        check(status.ready && status.release == release && addon.spec.cluster_stack == release, &status)
    })
    .await
}

/// Waits until the ClusterAddon says why it is not ready; the message.
pub(crate) async fn says(t: &World, cluster: &str, type_: ConditionType, reason: &str) -> String {
    let found = addon(t, cluster, &format!("to say {reason}"), |addon| {
        let conditions = addon.status.as_ref().map(|s| s.conditions.clone()).unwrap_or_default();
        check(find(&conditions, type_).is_some_and(|c| c.reason == reason), &conditions)
    })
    .await;
    find(&found.status.unwrap().conditions, type_).unwrap().message.clone()
}

pub(crate) async fn look_again(t: &World, cluster: &str) {
    ask(t, cluster).await;
}

/// Asks for a look, and waits until it was taken.
async fn looked_again(t: &World, cluster: &str) {
    let at = ask(t, cluster).await;
    addon(t, cluster, "to be looked at", |addon| {
        let handled = addon.status.clone().unwrap_or_default().last_handled_reconcile_at;
        check(handled == at, handled)
    })
    .await;
}

async fn ask(t: &World, cluster: &str) -> String {
    let at = unique("at");
    let change = json!({"metadata": {"annotations": {RECONCILE_AT: at}}});
    t.change("user", (API_VERSION, "ClusterAddon", &format!("cluster-addon-{cluster}")), change).await;
    at
}

fn phases(stages: &[StageStatus]) -> Vec<(&str, &str, StagePhase)> {
    stages.iter().map(|stage| (stage.hook.as_str(), stage.name.as_str(), stage.phase)).collect()
}

#[tokio::test]
async fn stages_wait_for_their_turn_and_an_upgrade_leaves_nothing_behind() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("addon").await;
    let repo = t.repo();
    let gate = format!("{}-gate", w.prefix);
    repo.write("stacks/docker/x/clusteraddon.yaml", &STAGES.replace("GATE", &gate));
    w.chart(&repo, "cni", &["cni", "moves", "old"], "{cluster: {{ .Values.cluster | quote }}, version: one}");
    repo.write(
        "stacks/docker/x/cluster-addon/cni/overwrite.yaml",
        "values: |\n  cluster: {{ .Cluster.metadata.name | upper }}\n",
    );
    w.chart(&repo, "metrics", &["metrics"], "{version: one}");
    repo.release("docker-x-1-34-v1", CLASS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;

    t.apply(&cluster("c", "docker-x-1-34-v1")).await;
    let message = says(&t, "c", ConditionType::ClusterReachable, "ClusterUnreachable").await;
    assert!(message.contains("c-kubeconfig"), "{message}");
    w.kubeconfig(&t, "c").await;
    look_again(&t, "c").await;
    w.has("cni", "cluster", "C").await;
    let message = says(&t, "c", ConditionType::Ready, "WaitingForPreCondition").await;
    assert!(
        message.contains("stage metrics of AfterControlPlaneInitialized (2 of 2)") && message.contains(&gate),
        "{message}"
    );
    assert!(w.map("metrics").await.is_none());

    // Killed in mid-stage, it goes on where it was.
    operator.kill();
    let _operator = t.operator(&[]);
    w.put("default", &gate, json!({"open": "no"})).await;
    w.put("default", &gate, json!({"open": "yes"})).await;
    w.has("metrics", "version", "one").await;
    let first = ready(&t, "c", "docker-x-1-34-v1").await;
    let status = first.status.unwrap();
    let hook = "AfterControlPlaneInitialized";
    assert_eq!(phases(&status.stages), [(hook, "cni", StagePhase::Done), (hook, "metrics", StagePhase::Done)]);
    let rows: Vec<(&str, &str)> =
        status.resources.iter().map(|row| (row.stage.as_str(), row.namespace.as_str())).collect();
    assert_eq!(rows, [("cni", "kube-system"); 3].into_iter().chain([("metrics", "kube-system")]).collect::<Vec<_>>());
    assert_eq!(first.metadata.owner_references.unwrap()[0].name, "c");

    // What is changed by hand is put back.
    w.put("kube-system", &format!("{}-cni", w.prefix), json!({"version": "mine"})).await;
    look_again(&t, "c").await;
    w.has("cni", "version", "one").await;

    // The next release has one object no more, and another one in another stage.
    w.chart(&repo, "cni", &["cni"], "{version: two}");
    w.chart(&repo, "metrics", &["metrics", "moves"], "{version: two}");
    repo.release("docker-x-1-34-v2", CLASS);
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    t.change(
        "user",
        ("cluster.x-k8s.io/v1beta1", "Cluster", "c"),
        json!({"spec": {"topology": {"class": "docker-x-1-34-v2"}}}),
    )
    .await;
    let second = ready(&t, "c", "docker-x-1-34-v2").await;
    w.has("moves", "version", "two").await;
    w.has("cni", "version", "two").await;
    w.gone("old").await;
    let status = second.status.unwrap();
    assert_eq!(status.stages[0].hook, "BeforeClusterUpgrade");
    t.event("Pruned", "-old").await;
    // Nothing holds the first release any more.
    t.release_gone("docker-x-1-34-v1").await;

    // The ClusterAddon goes with its Cluster, and asks nobody.
    kubeconfig(&t, "c", "broken").await;
    t.delete("cluster.x-k8s.io/v1beta1", "Cluster", "c").await;
    t.gone(API_VERSION, "ClusterAddon", "cluster-addon-c").await;
}

/// As where an APIService of the workload cluster is down.
#[tokio::test]
async fn what_is_left_and_cannot_be_read_holds_no_upgrade_and_is_told() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("apiservice").await;
    let proxy = Proxy::start(w.client.clone(), t.dir()).await;
    kubeconfig(&t, "c", &std::fs::read_to_string(proxy.kubeconfig()).unwrap()).await;
    let repo = t.repo();
    let stages = "addonStages:\n  AfterControlPlaneInitialized: [{name: cni, action: apply}]\n  BeforeClusterUpgrade: [{name: cni, action: apply}]\n";
    repo.write("stacks/docker/x/clusteraddon.yaml", stages);
    w.chart(&repo, "cni", &["cni"], "{version: one}");
    let file = "stacks/docker/x/cluster-addon/cni/templates/policy.yaml";
    let policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nspec: {podSelector: {}}\n";
    repo.write(file, &format!("{policy}metadata: {{name: {}-old}}\n", w.prefix));
    repo.release("docker-x-1-34-v1", CLASS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.apply(&cluster("c", "docker-x-1-34-v1")).await;
    ready(&t, "c", "docker-x-1-34-v1").await;
    // What it knew of the group goes with it.
    operator.kill();
    proxy.set(Weather::Unread("networking.k8s.io"));
    let _operator = t.operator(&[]);
    w.chart(&repo, "cni", &["cni"], "{version: two}");
    repo.write(file, "");
    repo.release("docker-x-1-34-v2", CLASS);
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    let change = json!({"spec": {"topology": {"class": "docker-x-1-34-v2"}}});
    t.change("user", ("cluster.x-k8s.io/v1beta1", "Cluster", "c"), change).await;
    w.has("cni", "version", "two").await;
    let message = says(&t, "c", ConditionType::Ready, "FailedToApplyObjects").await;
    assert!(message.contains("NetworkPolicy kube-system/") && message.contains("can't be read: "), "{message}");
    addon(&t, "c", "to have done all stages", |addon| {
        check(addon.spec.cluster_stack == "docker-x-1-34-v2", &addon.spec)
    })
    .await;
    let policies = ApiResource::from_gvk(&GroupVersionKind::gvk("networking.k8s.io", "v1", "NetworkPolicy"));
    let policies: Api<DynamicObject> = Api::namespaced_with(w.client.clone(), "kube-system", &policies);
    let name = format!("{}-old", w.prefix);
    assert!(policies.get_opt(&name).await.unwrap().is_some());
    proxy.set(Weather::Fair);
    look_again(&t, "c").await;
    ready(&t, "c", "docker-x-1-34-v2").await;
    wait_for("the NetworkPolicy to go", || async {
        let left = policies.get_opt(&name).await.map_err(|e| e.to_string())?;
        check(left.is_none(), left.map(|policy| policy.name_any()))
    })
    .await;
}

#[tokio::test]
async fn one_chart_for_everything_gets_the_values_of_its_stack() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("single").await;
    let repo = t.repo();
    let dir = "stacks/docker/x/cluster-addon";
    repo.write(&format!("{dir}/Chart.yaml"), "apiVersion: v2\nname: docker-x-1-34-cluster-addon\nversion: v0\n");
    repo.write(
        &format!("{dir}/templates/map.yaml"),
        &format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {}-single}}\ndata: {{release: {{{{ .Release.Name }}}}, class: {{{{ .Values.class }}}}, kube: {{{{ .Capabilities.KubeVersion }}}}}}\n",
            w.prefix
        ),
    );
    repo.write("stacks/docker/x/cluster-addon-values.yaml", "values: |\n  class: {{ .Cluster.spec.topology.class }}\n");
    repo.release("docker-x-1-34-v1", CLASS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    w.kubeconfig(&t, "c").await;
    t.apply(&cluster("c", "docker-x-1-34-v1")).await;
    ready(&t, "c", "docker-x-1-34-v1").await;
    let map = w.map("single").await.unwrap();
    assert_eq!(map["data"], json!({"release": "cluster-addon", "class": "docker-x-1-34-v1", "kube": "v1.34.7"}));

    // Paused in either way, nothing is written.
    let annotated = |value: Value| json!({"metadata": {"annotations": {clusterstack::api::PAUSED: value}}});
    for (pause, go_on) in [
        (json!({"spec": {"paused": true}}), json!({"spec": {"paused": false}})),
        (annotated(json!("")), annotated(Value::Null)),
    ] {
        t.change("user", ("cluster.x-k8s.io/v1beta1", "Cluster", "c"), pause).await;
        says(&t, "c", ConditionType::Ready, "Paused").await;
        w.put("kube-system", &format!("{}-single", w.prefix), json!({"class": "mine"})).await;
        looked_again(&t, "c").await;
        w.has("single", "class", "mine").await;
        t.change("user", ("cluster.x-k8s.io/v1beta1", "Cluster", "c"), go_on).await;
        w.has("single", "class", "docker-x-1-34-v1").await;
    }

    // Deleted by hand while its Cluster stays, the ClusterAddon is made anew and finds its addons.
    let before = addons(&t).get("cluster-addon-c").await.unwrap().uid();
    t.delete(API_VERSION, "ClusterAddon", "cluster-addon-c").await;
    addon(&t, "c", "to be made anew", |addon| check(addon.uid() != before, addon.uid())).await;
    ready(&t, "c", "docker-x-1-34-v1").await;
}

#[tokio::test]
async fn fields_that_a_stage_or_a_clusteraddon_leaves_to_others_stay_theirs() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("theirs").await;
    let repo = t.repo();
    let ignored = |field: &str| format!("[{{kind: ConfigMap, name: {}-a, jsonPointers: [/data/{field}]}}]", w.prefix);
    let stage =
        |hook: &str| format!("  {hook}:\n    - {{name: web, action: apply, ignoreDifferences: {}}}\n", ignored("size"));
    let stages = ["AfterControlPlaneInitialized", "BeforeClusterUpgrade"].map(stage).concat();
    repo.write("stacks/docker/x/clusteraddon.yaml", &format!("addonStages:\n{stages}"));
    w.chart(&repo, "web", &["a", "b"], "{size: small, color: blue}");
    repo.release("docker-x-1-34-v1", CLASS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    w.kubeconfig(&t, "c").await;
    t.apply(&cluster("c", "docker-x-1-34-v1")).await;
    ready(&t, "c", "docker-x-1-34-v1").await;

    for name in ["a", "b"] {
        w.put("kube-system", &format!("{}-{name}", w.prefix), json!({"size": "theirs", "color": "theirs"})).await;
    }
    w.has("a", "color", "blue").await;
    w.has("b", "size", "small").await;
    w.has("a", "size", "theirs").await;

    w.chart(&repo, "web", &["a", "b"], "{size: large, color: green}");
    repo.release("docker-x-1-34-v2", CLASS);
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    t.apply(&cluster("c", "docker-x-1-34-v2")).await;
    ready(&t, "c", "docker-x-1-34-v2").await;
    w.has("a", "color", "green").await;
    w.has("b", "size", "large").await;
    w.has("a", "size", "theirs").await;

    let give_up = |rules: Value| {
        t.change(
            "user",
            (API_VERSION, "ClusterAddon", "cluster-addon-c"),
            json!({"spec": {"ignoreDifferences": rules}}),
        )
    };
    give_up(json!([{"kind": "ConfigMap", "jsonPointers": ["/data/color"]}])).await;
    looked_again(&t, "c").await;
    w.put("kube-system", &format!("{}-a", w.prefix), json!({"color": "theirs"})).await;
    looked_again(&t, "c").await;
    w.has("a", "color", "theirs").await;
    give_up(Value::Null).await;
    w.has("a", "color", "green").await;
    w.has("a", "size", "theirs").await;
}

#[tokio::test]
async fn a_clusteraddon_that_comes_before_its_cluster_waits_with_its_values() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("earlyaddon").await;
    let repo = t.repo();
    let stages = "allowValues: true\naddonStages:\n  AfterControlPlaneInitialized: [{name: cni, action: apply}]\n";
    repo.write("stacks/docker/x/clusteraddon.yaml", stages);
    w.chart(&repo, "cni", &["cni"], "{a: {{ .Values.a | quote }}}");
    repo.write("stacks/docker/x/cluster-addon/cni/values.yaml", "{a: chart}\n");
    repo.release("docker-x-1-34-v1", CLASS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let early = json!({
        "apiVersion": API_VERSION, "kind": "ClusterAddon",
        // As a backup has it that leaves out owners and statuses.
        "metadata": {"name": "cluster-addon-c", "finalizers": [clusterstack::api::CLUSTER_ADDON_FINALIZER]},
        "spec": {"clusterRef": {"name": "c"}, "values": {"cni": {"a": "mine"}}},
    });
    t.apply(&early).await;
    let message = says(&t, "c", ConditionType::Ready, "OwnerMissing").await;
    assert!(message.contains("waiting for Cluster"), "{message}");
    w.kubeconfig(&t, "c").await;
    t.apply(&cluster("c", "docker-x-1-34-v1")).await;
    w.has("cni", "a", "mine").await;
    ready(&t, "c", "docker-x-1-34-v1").await;
    // It goes with its Cluster like any other.
    t.delete(CLUSTER_API, "Cluster", "c").await;
    t.gone(API_VERSION, "ClusterAddon", "cluster-addon-c").await;
}

#[tokio::test]
async fn values_of_users_come_last_where_the_stack_allows_them() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("values").await;
    let repo = t.repo();
    let stages = "allowValues: true\naddonStages:\n  AfterControlPlaneInitialized: [{name: cni, action: apply}]\n";
    repo.write("stacks/docker/x/clusteraddon.yaml", stages);
    w.chart(&repo, "cni", &["cni"], "{a: {{ .Values.a | quote }}, b: {{ .Values.b | quote }}, c: {{ .Values.c | quote }}, d: {{ .Values.d | quote }}}");
    repo.write("stacks/docker/x/cluster-addon/cni/values.yaml", "{a: chart, b: chart, c: chart, d: chart}\n");
    repo.write("stacks/docker/x/cluster-addon/cni/overwrite.yaml", "{b: stack, c: stack, d: stack}\n");
    repo.release("docker-x-1-34-v1", CLASS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    w.kubeconfig(&t, "c").await;
    let mut with_values = cluster("c", "docker-x-1-34-v1");
    with_values["metadata"]["annotations"] = json!({clusterstack::api::ADDON_VALUES: "ConfigMap/mine"});
    t.apply(&with_values).await;
    let message = says(&t, "c", ConditionType::HelmChartTemplated, "ValuesInvalid").await;
    assert!(message.contains("ConfigMap mine does not exist"), "{message}");
    let map = |text: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {"values.yaml": text}});
    t.apply(&map("cni: {c: map, d: map}")).await;
    t.change(
        "user",
        (API_VERSION, "ClusterAddon", "cluster-addon-c"),
        json!({"spec": {"values": {"cni": {"d": "spec"}}}}),
    )
    .await;
    w.has("cni", "d", "spec").await;
    ready(&t, "c", "docker-x-1-34-v1").await;
    assert_eq!(w.map("cni").await.unwrap()["data"], json!({"a": "chart", "b": "stack", "c": "map", "d": "spec"}));
    t.change(
        "user",
        (API_VERSION, "ClusterAddon", "cluster-addon-c"),
        json!({"spec": {"values": {"cnl": {"d": "spec"}}}}),
    )
    .await;
    let message = says(&t, "c", ConditionType::HelmChartTemplated, "ValuesInvalid").await;
    assert!(message.contains("\"cnl\""), "{message}");
}

#[tokio::test]
async fn a_kubeconfig_that_runs_programs_is_refused_and_a_dead_cluster_harms_nobody() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("refused").await;
    let repo = t.repo();
    repo.write(
        "stacks/docker/x/clusteraddon.yaml",
        "addonStages:\n  AfterControlPlaneInitialized: [{name: cni, action: apply}]\n",
    );
    w.chart(&repo, "cni", &["cni"], "{a: b}");
    repo.release("docker-x-1-34-v1", CLASS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let bad = "clusters: [{name: c, cluster: {server: https://127.0.0.1:1}}]\nusers: [{name: u, user: {exec: {command: swordfish}}}]\n";
    kubeconfig(&t, "bad", bad).await;
    t.apply(&cluster("bad", "docker-x-1-34-v1")).await;
    let dead = "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: u, user: {token: swordfish}}]}";
    kubeconfig(&t, "dead", dead).await;
    t.apply(&cluster("dead", "docker-x-1-34-v1")).await;
    let message = says(&t, "bad", ConditionType::ClusterReachable, "KubeconfigRefused").await;
    assert!(message.contains("sets exec"), "{message}");
    // What stands in a second document is read by nobody.
    let ran = repo.dir().join("ran");
    let runs = format!(
        "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: touch, args: [{}], interactiveMode: Never}}}}",
        ran.display()
    );
    let two = format!(
        "current-context: a\nclusters: [{{name: c, cluster: {{server: https://127.0.0.1:1}}}}]\n---\ncontexts: [{{name: a, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {runs}}}]\n"
    );
    kubeconfig(&t, "two", &two).await;
    t.apply(&cluster("two", "docker-x-1-34-v1")).await;
    let message = says(&t, "two", ConditionType::ClusterReachable, "KubeconfigRefused").await;
    assert!(message.contains("more than one document") && !ran.exists(), "{message}");
    says(&t, "dead", ConditionType::ClusterReachable, "ClusterUnreachable").await;
    // Another kubeconfig is taken as it comes.
    w.kubeconfig(&t, "bad").await;
    look_again(&t, "bad").await;
    ready(&t, "bad", "docker-x-1-34-v1").await;
    assert!(!operator.log().contains("swordfish"));
    for name in ["dead", "bad", "two"] {
        let text = serde_json::to_string(&addons(&t).get(&format!("cluster-addon-{name}")).await.unwrap()).unwrap();
        assert!(!text.contains("swordfish"), "{text}");
        t.delete("cluster.x-k8s.io/v1beta1", "Cluster", name).await;
        t.gone(API_VERSION, "ClusterAddon", &format!("cluster-addon-{name}")).await;
    }
}

/// The workloads of kube-system come up: what kubelets, and the controllers that this control plane lacks, would say.
async fn play_nodes(client: &Client) {
    let api = |version: &str, kind: &str| -> Api<DynamicObject> {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(client.clone(), "kube-system", &resource)
    };
    let params = PatchParams::default();
    let (sets, pods) = (api("apps/v1", "DaemonSet"), api("v1", "Pod"));
    for set in sets.list(&ListParams::default()).await.expect("API server") {
        let status = json!({
            "observedGeneration": set.metadata.generation, "desiredNumberScheduled": 0, "currentNumberScheduled": 0,
            "numberMisscheduled": 0, "numberReady": 0,
        });
        sets.patch_status(&set.name_any(), &params, &Patch::Merge(json!({"status": status}))).await.expect("status");
    }
    for pod in pods.list(&ListParams::default()).await.expect("API server") {
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let status = json!({"phase": "Running", "conditions": [ready]});
        // One that was replaced meanwhile is no loss.
        let _ = pods.patch_status(&pod.name_any(), &params, &Patch::Merge(json!({"status": status}))).await;
    }
}

#[tokio::test]
async fn real_addons_arrive_and_their_health_counts() {
    let Some(shared) = World::shared("real_addons_arrive_and_their_health_counts") else { return };
    let Some(w) = Workload::new().await else { return };
    let t = World::new("real-addons").await;
    let repo = t.repo();
    let stages = ["cni", "metrics-server", "csi", "ccm"];
    let list: String = stages.iter().map(|stage| format!("    - {{name: {stage}, action: apply}}\n")).collect();
    let hooks = format!("addonStages:\n  AfterControlPlaneInitialized:\n{list}  BeforeClusterUpgrade:\n{list}");
    repo.write("stacks/docker/x/clusteraddon.yaml", &hooks);
    for (stage, chart) in
        stages.iter().zip(["docker-scs-cni", "docker-scs-metrics-server", "openstack-scs-csi", "openstack-scs-ccm"])
    {
        let dir = repo.dir().join("stacks/docker/x/cluster-addon").join(stage);
        std::fs::create_dir_all(&dir).unwrap();
        let archive = shared.join("charts").join(chart).join("chart.tgz");
        let unpacked = std::process::Command::new("tar")
            .arg("-xzf")
            .arg(archive)
            .arg("-C")
            .arg(&dir)
            .arg("--strip-components=1")
            .status();
        assert!(unpacked.unwrap().success());
    }
    repo.release("docker-x-1-34-v1", CLASS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    w.kubeconfig(&t, "c").await;
    let mut real = cluster("c", "docker-x-1-34-v1");
    real["spec"]["controlPlaneEndpoint"] = json!({"host": "203.0.113.7", "port": 6443});
    t.apply(&real).await;
    let message = says(&t, "c", ConditionType::Ready, "ObjectsNotHealthy").await;
    assert!(message.contains("Deployment kube-system/cilium-operator"), "{message}");
    wait_for("all workloads to be up", || async {
        play_nodes(&w.client).await;
        look_again(&t, "c").await;
        let status = addons(&t).get("cluster-addon-c").await.unwrap().status.unwrap();
        check(status.ready, &status)
    })
    .await;
    let status = ready(&t, "c", "docker-x-1-34-v1").await.status.unwrap();
    for stage in stages {
        let count = status.resources.iter().filter(|row| row.stage == stage).count();
        assert!(count >= 4, "{stage}: {count}");
    }
    // A restart writes nothing: what was applied is what is wanted.
    let version = |status: &clusterstack::api::ClusterAddonStatus| {
        status.resources.iter().map(|row| row.digest.clone()).collect::<Vec<_>>()
    };
    let before = version(&status);
    drop(_operator);
    let _operator = t.operator(&[]);
    look_again(&t, "c").await;
    let again = ready(&t, "c", "docker-x-1-34-v1").await.status.unwrap();
    assert_eq!(version(&again), before);
}
