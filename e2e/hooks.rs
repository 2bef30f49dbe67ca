//! Cluster API's runtime hooks: an upgrade waits for the stages of its addons, and for nothing else.

use std::time::{Duration, Instant};

use clusterstack::api::{ADDON_VALUES, API_VERSION, ClusterAddon};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::cluster_api::{rolled_out, topology};
use crate::harness::{
    CLASS, IN_MEMORY, Operator, Proxy, Repo, Weather, World, check, cluster, free_address, unique, wait_for,
    wait_within, workload,
};

const HOOKS: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1";
const CLUSTER: &str = "cluster.x-k8s.io/v1beta1";
const CORE: &str = "cluster.x-k8s.io/v1beta2";
const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";
const V3: &str = "docker-x-1-34-v3";
/// How long Cluster API's managers may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// An operator that serves hooks, and its caller.
pub(crate) struct Extension {
    operator: Operator,
    url: String,
    client: reqwest::Client,
    bundle: String,
}

impl Extension {
    /// Starts one at an address of its own.
    pub(crate) async fn start(t: &World) -> Self {
        let free = free_address();
        Self::start_at(t, &format!("https://{free}")).await
    }

    async fn start_at(t: &World, url: &str) -> Self {
        Self::start_with(t, url, &[]).await
    }

    async fn start_with(t: &World, url: &str, more: &[&str]) -> Self {
        let address = url.trim_start_matches("https://");
        let flags =
            ["--hook-bind-address", address, "--hook-url", url, "--leader-elect-namespace", t.namespace.as_str()];
        let operator = t.operator(&[&flags[..], more].concat());
        operator.address("runtime hooks").await;
        let secrets: Api<Secret> = Api::namespaced(t.client.clone(), &t.namespace);
        let secret = secrets.get(&format!("clusterstack-{}-hook-certificate", t.namespace)).await.unwrap();
        let bundle = String::from_utf8(secret.data.unwrap()["ca.crt"].0.clone()).unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        let authority = reqwest::Certificate::from_pem(bundle.as_bytes()).unwrap();
        // A connection each: the server ends the one whose body it refused.
        let client = reqwest::Client::builder().tls_certs_only([authority]).no_proxy().pool_max_idle_per_host(0);
        let client = client.build().unwrap();
        Self { operator, url: url.to_owned(), client, bundle }
    }

    /// The status and the text of an answer.
    async fn post(&self, path: &str, body: String) -> (u16, String) {
        let start = Instant::now();
        let sent = self.client.post(format!("{}/{HOOKS}/{path}", self.url)).body(body).send().await;
        let answer = sent.expect("no answer");
        let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        // Answers take less than one second; that they take some more here is for a busy machine.
        assert!(start.elapsed() < Duration::from_secs(4), "{path} took {:?}: {text}", start.elapsed());
        (status, text)
    }

    /// Calls a hook for a Cluster; the answer.
    async fn call(&self, hook: &str, handler: &str, cluster: &Value, to: &str) -> Value {
        let mut body = json!({"apiVersion": HOOKS, "kind": format!("{hook}Request"), "cluster": cluster});
        if !to.is_empty() {
            body["fromKubernetesVersion"] = json!("v1.34.7");
            body["toKubernetesVersion"] = json!(to);
        }
        let (status, text) = self.post(&format!("{}/{handler}", hook.to_lowercase()), body.to_string()).await;
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&answer["apiVersion"], &answer["status"]), (&json!(HOOKS), &json!("Success")), "{answer}");
        assert_eq!(answer["kind"], format!("{hook}Response"));
        answer
    }

    async fn upgrade(&self, cluster: &Value, to: &str) -> Value {
        self.call("BeforeClusterUpgrade", "before-cluster-upgrade", cluster, to).await
    }

    /// Waits until an upgrade is held with these words.
    async fn held(&self, cluster: &Value, to: &str, words: &[&str]) {
        wait_for(format!("the upgrade to be held with {words:?}"), || async {
            let answer = self.upgrade(cluster, to).await;
            let message = answer["message"].as_str().unwrap_or_default();
            check(answer["retryAfterSeconds"] == 10 && words.iter().all(|word| message.contains(word)), &answer)
        })
        .await;
    }

    /// Waits until an upgrade may go on.
    async fn free(&self, cluster: &Value, to: &str) {
        wait_for("the upgrade to be free", || async {
            let answer = self.upgrade(cluster, to).await;
            check(answer["retryAfterSeconds"] == 0, &answer)
        })
        .await;
    }
}

/// A Cluster as Cluster API sends it.
fn named(t: &World, name: &str) -> Value {
    json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": name, "namespace": t.namespace}})
}

async fn addon(t: &World, cluster: &str) -> Option<ClusterAddon> {
    let api: Api<ClusterAddon> = Api::namespaced(t.client.clone(), &t.namespace);
    api.get_opt(&format!("cluster-addon-{cluster}")).await.expect("API server")
}

async fn ready(t: &World, cluster: &str, release: &str) {
    wait_for(format!("the addons of {cluster} to be ready with {release}"), || async {
        let status = addon(t, cluster).await.and_then(|addon| addon.status).unwrap_or_default();
        check(status.ready && status.release == release, &status)
    })
    .await;
}

async fn put(client: &Client, name: &str, data: Value) {
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(client.clone(), "default");
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    maps.patch(name, &PatchParams::apply("somebody").force(), &Patch::Apply(&object)).await.expect("ConfigMap");
}

#[tokio::test]
async fn an_upgrade_is_held_until_its_stages_are_done_and_others_are_not() {
    let Some(plane) = workload().await else { return };
    let (far, gate) = (plane.client().await, unique("gate"));
    let t = World::new("hooks").await;
    let repo = t.repo();
    let stages = format!(
        "addonStages:\n  AfterControlPlaneInitialized: [{{name: cni, action: apply}}]\n  BeforeClusterUpgrade:\n    \
         - name: cni\n      action: apply\n      waitForPreCondition:\n        objects:\n          \
         - {{key: gate, apiVersion: v1, kind: ConfigMap, name: {gate}, namespace: default}}\n        \
         conditions: gate.data.open == 'yes'\n"
    );
    repo.write("stacks/docker/x/clusteraddon.yaml", &stages);
    let dir = "stacks/docker/x/cluster-addon/cni";
    repo.write(&format!("{dir}/Chart.yaml"), "apiVersion: v2\nname: addon-cni\nversion: v0\n");
    let map = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {gate}-cni}}\n");
    repo.write(&format!("{dir}/templates/map.yaml"), &map);
    repo.release(V1, CLASS);
    let extension = Extension::start(&t).await;
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let kubeconfig = std::fs::read_to_string(&plane.kubeconfig).unwrap();
    t.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
        "metadata": {"name": "c-kubeconfig"}, "stringData": {"value": kubeconfig},
    }))
    .await;
    t.apply(&cluster("c", V1)).await;
    ready(&t, "c", V1).await;
    let c = named(&t, "c");
    extension.free(&c, "v1.34.7").await;

    // Another class and version: held, with the stage's own words, on the ClusterAddon and on the Cluster.
    repo.release(V2, CLASS);
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    let change = json!({"spec": {"topology": {"class": V2, "version": "v1.34.8"}}});
    t.change("user", (CLUSTER, "Cluster", "c"), change).await;
    assert_eq!(extension.upgrade(&c, "v1.34.8").await["retryAfterSeconds"], 10);
    let words = ["cluster-addon-c", "stage cni of BeforeClusterUpgrade (1 of 1)", gate.as_str()];
    extension.held(&c, "v1.34.8", &words).await;
    extension.held(&c, "v1.34.7", &["asks for Kubernetes v1.34.8 by now"]).await;
    wait_for("the hook to be recorded", || async {
        let hook = addon(&t, "c").await.unwrap().spec.hook;
        check(hook == "BeforeClusterUpgrade", hook)
    })
    .await;
    t.event("HookBlocked", "stage cni of BeforeClusterUpgrade").await;

    // Those that have nothing to do with it are not held, whatever is asked.
    t.apply(&cluster("other", "somebody-elses")).await;
    for name in ["other", "nobody"] {
        assert_eq!(extension.upgrade(&named(&t, name), "v1.34.8").await["retryAfterSeconds"], 0, "{name}");
    }
    for (hook, handler) in [
        ("AfterControlPlaneInitialized", "after-control-plane-initialized"),
        ("AfterClusterUpgrade", "after-cluster-upgrade"),
        ("BeforeClusterDelete", "before-cluster-delete"),
    ] {
        let answer = extension.call(hook, handler, &c, "").await;
        assert!(answer["retryAfterSeconds"].as_i64().unwrap_or_default() == 0, "{answer}");
    }

    // A restart forgets nothing and keeps the authority.
    let Extension { operator, url, bundle, .. } = extension;
    operator.kill();
    let extension = Extension::start_at(&t, &url).await;
    assert_eq!(extension.bundle, bundle);
    extension.held(&c, "v1.34.8", &words).await;
    put(&far, &gate, json!({"open": "no"})).await;
    extension.held(&c, "v1.34.8", &["gate.data.open == 'yes' is false"]).await;

    put(&far, &gate, json!({"open": "yes"})).await;
    extension.free(&c, "v1.34.8").await;
    ready(&t, "c", V2).await;
    wait_for("the record of the hook to go", || async {
        let hook = addon(&t, "c").await.unwrap().spec.hook;
        check(hook.is_empty(), hook)
    })
    .await;
    t.delete(CLUSTER, "Cluster", "c").await;
    t.gone(API_VERSION, "ClusterAddon", "cluster-addon-c").await;
}

/// A ConfigMap of the workload cluster's kube-system; whether it is there.
async fn is_there(client: &Client, name: &str) -> bool {
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    maps.get_opt(name).await.expect("API server").is_some()
}

/// A stack whose Clusters have three ConfigMaps, two of which go before them.
fn write_ending(repo: &Repo, prefix: &str) {
    let applied = "[{name: net, action: apply}, {name: ingress, action: apply}, {name: other, action: apply}]";
    let stages = format!(
        "allowValues: true\naddonStages:\n  AfterControlPlaneInitialized: {applied}\n  BeforeClusterUpgrade: {applied}\n  \
         BeforeClusterDelete: [{{name: net, action: delete}}, {{name: ingress, action: delete}}]\n"
    );
    repo.write("stacks/docker/x/clusteraddon.yaml", &stages);
    for chart in ["net", "ingress", "other"] {
        let dir = format!("stacks/docker/x/cluster-addon/{chart}");
        repo.write(&format!("{dir}/Chart.yaml"), &format!("apiVersion: v2\nname: addon-{chart}\nversion: v0\n"));
        let map =
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {prefix}-{chart}-{{{{ .Values.of }}}}}}\n");
        repo.write(&format!("{dir}/templates/map.yaml"), &map);
        repo.write(&format!("{dir}/overwrite.yaml"), "values: |\n  of: {{ .Cluster.metadata.name }}\n");
    }
}

#[tokio::test]
async fn a_deletion_waits_while_what_goes_before_it_cannot_be_read() {
    let Some(plane) = workload().await else { return };
    let (far, prefix) = (plane.client().await, unique("blind"));
    let t = World::new("blind").await;
    let repo = t.repo();
    write_ending(&repo, &prefix);
    repo.release(V1, CLASS);
    let free = free_address();
    let extension = Extension::start_with(&t, &format!("https://{free}"), &["--hook-deletion-deadline", "2m"]).await;
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let proxy = Proxy::start(far.clone(), t.dir()).await;
    crate::addon::kubeconfig(&t, "c", &std::fs::read_to_string(proxy.kubeconfig()).unwrap()).await;
    let mut held = cluster("c", V1);
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    t.apply(&held).await;
    crate::addon::ready(&t, "c", V1).await;
    let ask = async || extension.call("BeforeClusterDelete", "before-cluster-delete", &named(&t, "c"), "").await;
    proxy.set(Weather::Unread("configmaps"));
    t.delete(CLUSTER, "Cluster", "c").await;
    wait_for("the deletion to wait for what can't be read", || async {
        let answer = ask().await;
        let words = "nothing is deleted while ConfigMap";
        check(answer["message"].as_str().unwrap_or_default().contains(words), &answer)
    })
    .await;
    let names = ["net", "ingress"].map(|name| format!("{prefix}-{name}-c"));
    for name in &names {
        assert!(is_there(&far, name).await, "{name}");
    }
    proxy.set(Weather::Fair);
    wait_for("the deletion to be free", || async {
        let answer = ask().await;
        check(answer["retryAfterSeconds"] == 0, &answer)
    })
    .await;
    for name in &names {
        assert!(!is_there(&far, name).await, "{name}");
    }
    t.change("user", (CLUSTER, "Cluster", "c"), json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn a_deletion_waits_for_what_is_marked_for_it_and_never_for_long() {
    let Some(plane) = workload().await else { return };
    let (far, prefix) = (plane.client().await, unique("last"));
    let t = World::new("ending").await;
    let repo = t.repo();
    write_ending(&repo, &prefix);
    let network = format!(
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: {prefix}-{{{{ .Values.of }}}}}}\nspec:\n  selector: {{matchLabels: {{app: a}}}}\n  \
         template:\n    metadata: {{labels: {{app: a}}}}\n    spec:\n      containers: [{{name: a, image: a}}]\n      \
         volumes: [{{name: cni, hostPath: {{path: /etc/cni/net.d}}}}]\n"
    );
    repo.write("stacks/docker/x/cluster-addon/net/templates/set.yaml", &network);
    repo.release(V1, CLASS);
    let free = free_address();
    let extension = Extension::start_with(&t, &format!("https://{free}"), &["--hook-deletion-deadline", "20s"]).await;
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let kubeconfig = |name: &str, text: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": {"name": format!("{name}-kubeconfig")}, "stringData": {"value": text},
        })
    };
    let config = std::fs::read_to_string(&plane.kubeconfig).unwrap();
    for name in ["c", "dead"] {
        t.apply(&kubeconfig(name, &config)).await;
        let mut held = cluster(name, V1);
        held["metadata"]["finalizers"] = json!(["example.com/held"]);
        t.apply(&held).await;
    }
    let done = |name: &str| {
        let name = name.to_owned();
        let t = &t;
        async move {
            wait_for(format!("the stages of {name} to be done"), || async {
                let status = addon(t, &name).await.and_then(|addon| addon.status).unwrap_or_default();
                let is = status.stages.len() == 3 && status.hook.is_empty() && status.release == V1;
                check(is, &status)
            })
            .await;
        }
    };
    done("c").await;
    done("dead").await;
    let ask =
        async |name: &str| extension.call("BeforeClusterDelete", "before-cluster-delete", &named(&t, name), "").await;
    // Nothing is held, nor deleted, before the Cluster is.
    assert_eq!(ask("c").await["retryAfterSeconds"], 0);
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(far.clone(), "kube-system");
    let held = format!("{prefix}-ingress-c");
    let hold = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    maps.patch(&held, &PatchParams::default(), &hold(json!(["example.com/held"]))).await.unwrap();
    t.delete(CLUSTER, "Cluster", "c").await;
    let first = ask("c").await;
    assert_eq!(first["retryAfterSeconds"], 2, "{first}");
    wait_for("the deletion to wait for its stage", || async {
        let answer = ask("c").await;
        let words = "stage ingress of BeforeClusterDelete (2 of 2): waiting for ConfigMap";
        check(answer["message"].as_str().unwrap_or_default().contains(words), &answer)
    })
    .await;
    t.event("HookBlocked", "BeforeClusterDelete waits").await;
    maps.patch(&held, &PatchParams::default(), &hold(Value::Null)).await.unwrap();
    wait_for("the deletion to be free", || async {
        let answer = ask("c").await;
        check(answer["retryAfterSeconds"] == 0, &answer)
    })
    .await;
    // The network stays, and what nobody marked.
    t.event("StageRefused", "the network of the nodes (CNI)").await;
    assert!(!is_there(&far, &held).await);
    assert!(is_there(&far, &format!("{prefix}-net-c")).await && is_there(&far, &format!("{prefix}-other-c")).await);

    // A cluster that does not answer holds nothing for longer than the time that is given.
    let dead = "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: u, user: {token: swordfish}}]}";
    t.apply(&kubeconfig("dead", dead)).await;
    t.delete(CLUSTER, "Cluster", "dead").await;
    assert_eq!(ask("dead").await["retryAfterSeconds"], 2);
    wait_for("the deletion to go on", || async {
        let answer = ask("dead").await;
        check(answer["retryAfterSeconds"] == 0, &answer)
    })
    .await;
    // As Cluster API does: the one answer may have been that nothing could be looked into on a busy machine.
    let asked_on = async {
        loop {
            ask("dead").await;
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
    };
    tokio::select! {
        () = t.event("StageDeadlineExceeded", "the deletion goes on after 20s although not all was done") => {}
        () = asked_on => {}
    }
    for name in ["c", "dead"] {
        t.change("user", (CLUSTER, "Cluster", name), json!({"metadata": {"finalizers": null}})).await;
        t.gone(API_VERSION, "ClusterAddon", &format!("cluster-addon-{name}")).await;
    }
}

#[tokio::test]
async fn values_that_are_deleted_with_a_cluster_hold_nothing_that_goes_before_it() {
    let Some(plane) = workload().await else { return };
    let (far, prefix) = (plane.client().await, unique("values"));
    let t = World::new("values").await;
    let repo = t.repo();
    write_ending(&repo, &prefix);
    let hook = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {prefix}-hook, annotations: {{helm.sh/hook: pre-delete}}}}\n"
    );
    repo.write("stacks/docker/x/cluster-addon/ingress/templates/hook.yaml", &hook);
    repo.release(V1, CLASS);
    let free = free_address();
    let extension = Extension::start_with(&t, &format!("https://{free}"), &["--hook-deletion-deadline", "2m"]).await;
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    crate::addon::kubeconfig(&t, "c", &std::fs::read_to_string(&plane.kubeconfig).unwrap()).await;
    let values = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {"values.yaml": "net: {a: b}\n"}});
    t.apply(&values).await;
    let mut held = cluster("c", V1);
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    held["metadata"]["annotations"] = json!({ADDON_VALUES: "ConfigMap/mine"});
    t.apply(&held).await;
    crate::addon::ready(&t, "c", V1).await;
    t.delete("v1", "ConfigMap", "mine").await;
    t.delete(CLUSTER, "Cluster", "c").await;
    wait_for("the deletion to be free", || async {
        let answer = extension.call("BeforeClusterDelete", "before-cluster-delete", &named(&t, "c"), "").await;
        check(answer["retryAfterSeconds"] == 0, &answer)
    })
    .await;
    t.event("ValuesInvalid", "the chart of stage ingress: ConfigMap mine does not exist").await;
    for (name, expected) in [("net-c", false), ("ingress-c", false), ("other-c", true), ("hook", false)] {
        assert_eq!(is_there(&far, &format!("{prefix}-{name}")).await, expected, "{name}");
    }
    t.change("user", (CLUSTER, "Cluster", "c"), json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn a_cluster_that_is_deleted_in_the_middle_of_an_upgrade_runs_the_stages_of_both_releases() {
    let Some(plane) = workload().await else { return };
    let (far, prefix) = (plane.client().await, unique("middle"));
    let t = World::new("middle").await;
    let repo = t.repo();
    write_ending(&repo, &prefix);
    let hook = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {prefix}-hook, annotations: {{helm.sh/hook: pre-delete}}}}\n"
    );
    repo.write("stacks/docker/x/cluster-addon/ingress/templates/hook.yaml", &hook);
    repo.release(V1, CLASS);
    let free = free_address();
    let extension = Extension::start_with(&t, &format!("https://{free}"), &["--hook-deletion-deadline", "2m"]).await;
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    crate::addon::kubeconfig(&t, "c", &std::fs::read_to_string(&plane.kubeconfig).unwrap()).await;
    let mut held = cluster("c", V1);
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    t.apply(&held).await;
    crate::addon::ready(&t, "c", V1).await;

    // The new release knows nothing of the ingress, and its first stage waits.
    let waits = format!(
        "waitForPreCondition: {{objects: [{{key: gate, apiVersion: v1, kind: ConfigMap, name: {prefix}-gate, namespace: default}}], conditions: \"true\"}}"
    );
    let stages = format!(
        "addonStages:\n  BeforeClusterUpgrade: [{{name: other, action: apply, {waits}}}]\n  \
         BeforeClusterDelete: [{{name: other, action: delete}}]\n"
    );
    repo.write("stacks/docker/x/clusteraddon.yaml", &stages);
    for chart in ["net", "ingress"] {
        std::fs::remove_dir_all(repo.dir().join(format!("stacks/docker/x/cluster-addon/{chart}"))).unwrap();
    }
    repo.release(V2, CLASS);
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    t.change("user", (CLUSTER, "Cluster", "c"), json!({"spec": {"topology": {"class": V2}}})).await;
    crate::addon::addon(&t, "c", "to wait in the upgrade", |addon| {
        let status = addon.status.clone().unwrap_or_default();
        check(status.release == V2 && status.stages.len() == 1, &status)
    })
    .await;
    t.delete(CLUSTER, "Cluster", "c").await;
    wait_for("the deletion to be free", || async {
        let answer = extension.call("BeforeClusterDelete", "before-cluster-delete", &named(&t, "c"), "").await;
        check(answer["retryAfterSeconds"] == 0, &answer)
    })
    .await;
    for (name, expected) in [("net-c", false), ("ingress-c", false), ("other-c", false), ("hook", true)] {
        assert_eq!(is_there(&far, &format!("{prefix}-{name}")).await, expected, "{name}");
    }
    t.change("user", (CLUSTER, "Cluster", "c"), json!({"metadata": {"finalizers": null}})).await;
}

/// As `kubectl delete --cascade=foreground` of the Cluster does it: what the Cluster owns is deleted first.
#[tokio::test]
async fn a_cluster_addon_that_is_deleted_first_stays_for_its_stages_and_never_for_long() {
    let Some(plane) = workload().await else { return };
    let (far, prefix) = (plane.client().await, unique("first"));
    let t = World::new("first").await;
    let repo = t.repo();
    write_ending(&repo, &prefix);
    repo.release(V1, CLASS);
    let free = free_address();
    let extension = Extension::start_with(&t, &format!("https://{free}"), &["--hook-deletion-deadline", "30s"]).await;
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let config = std::fs::read_to_string(&plane.kubeconfig).unwrap();
    for name in ["c", "unasked"] {
        crate::addon::kubeconfig(&t, name, &config).await;
        let mut held = cluster(name, V1);
        held["metadata"]["finalizers"] = json!(["example.com/held"]);
        t.apply(&held).await;
    }
    for name in ["c", "unasked"] {
        crate::addon::ready(&t, name, V1).await;
        t.delete(CLUSTER, "Cluster", name).await;
        t.delete(API_VERSION, "ClusterAddon", &format!("cluster-addon-{name}")).await;
    }
    let ask = async || extension.call("BeforeClusterDelete", "before-cluster-delete", &named(&t, "c"), "").await;
    let first = ask().await;
    assert_eq!(first["retryAfterSeconds"], 2, "{first}");
    wait_for("the deletion to be free", || async {
        let answer = ask().await;
        check(answer["retryAfterSeconds"] == 0, &answer)
    })
    .await;
    for (name, expected) in [("net", false), ("ingress", false), ("other", true)] {
        assert_eq!(is_there(&far, &format!("{prefix}-{name}-c")).await, expected, "{name}");
    }
    // Neither waits for its Cluster; the other one deleted nothing, for nobody asked.
    for name in ["c", "unasked"] {
        t.gone(API_VERSION, "ClusterAddon", &format!("cluster-addon-{name}")).await;
        t.change("user", (CLUSTER, "Cluster", name), json!({"metadata": {"finalizers": null}})).await;
    }
    assert!(is_there(&far, &format!("{prefix}-ingress-unasked")).await);
}

#[tokio::test]
async fn an_upgrade_plan_goes_through_what_the_class_has_images_of() {
    let t = World::new("plan").await;
    let repo = t.repo();
    repo.write(
        "stacks/docker/x/node-images.yaml",
        "dockerImages: [\"kindest/node:v1.33.5\", \"kindest/node:v1.34.7\"]\n",
    );
    repo.release(V1, CLASS);
    let extension = Extension::start(&t).await;
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.apply(&cluster("c", V1)).await;
    t.apply(&cluster("other", "somebody-elses")).await;
    let ask = async |name: &str, from: &str, to: &str| {
        let body = json!({
            "apiVersion": HOOKS, "kind": "GenerateUpgradePlanRequest", "cluster": named(&t, name),
            "fromControlPlaneKubernetesVersion": from, "fromWorkersKubernetesVersion": from, "toKubernetesVersion": to,
        });
        let (status, text) = extension.post("generateupgradeplan/generate-upgrade-plan", body.to_string()).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let answer = ask("c", "v1.32.3", "v1.34.7").await;
    assert_eq!(answer["status"], "Success", "{answer}");
    assert_eq!(answer["controlPlaneUpgrades"], json!([{"version": "v1.33.5"}, {"version": "v1.34.7"}]));
    for (name, from, words) in [
        ("c", "v1.31.3", "no node image for Kubernetes 1.32,"),
        ("other", "v1.33.3", "of no release that clusterstack knows"),
    ] {
        let answer = ask(name, from, "v1.34.7").await;
        assert_eq!(answer["status"], "Failure");
        assert!(answer["message"].as_str().unwrap().contains(words), "{answer}");
    }
}

#[tokio::test]
async fn what_is_no_hook_is_refused_with_its_reason() {
    let t = World::new("nohook").await;
    let extension = Extension::start(&t).await;
    let (status, text) =
        extension.post("discovery", json!({"apiVersion": HOOKS, "kind": "DiscoveryRequest"}).to_string()).await;
    assert!(status == 200 && text.contains("\"hook\":\"BeforeClusterUpgrade\""), "{status} {text}");
    let path = "beforeclusterupgrade/before-cluster-upgrade";
    let request = |cluster: Value| {
        json!({"apiVersion": HOOKS, "kind": "BeforeClusterUpgradeRequest", "cluster": cluster}).to_string()
    };
    for (path, body, expected, words) in [
        (path, "swordfish".to_owned(), 400, "no BeforeClusterUpgradeRequest"),
        (path, json!({"apiVersion": HOOKS, "kind": "DiscoveryRequest"}).to_string(), 400, "\"DiscoveryRequest\""),
        (path, request(json!({"metadata": {"name": "c"}})), 400, "cluster.metadata.namespace"),
        (path, request(named(&t, "c")), 400, "toKubernetesVersion"),
        (path, "x".repeat(5 << 20), 413, "length limit"),
        ("beforeclusterupgrade/other", String::new(), 404, "no such hook"),
        ("beforeclustercreate/before-cluster-create", String::new(), 404, "no such hook"),
        (
            "generateupgradeplan/generate-upgrade-plan",
            json!({"apiVersion": HOOKS, "kind": "GenerateUpgradePlanRequest", "cluster": named(&t, "c"), "toKubernetesVersion": "v1"}).to_string(),
            400,
            "fromControlPlaneKubernetesVersion",
        ),
        ("elsewhere", String::new(), 404, ""),
    ] {
        let (status, text) = extension.post(path, body).await;
        assert!(status == expected && text.contains(words), "{path}: {status} {text}");
    }
    // Who does not trust the authority is not served.
    let stranger = reqwest::Client::builder().no_proxy().build().unwrap();
    assert!(stranger.post(&extension.url).send().await.is_err());
}

#[tokio::test]
async fn cluster_api_holds_an_upgrade_for_the_stages_of_its_addons() {
    const TEST: &str = "cluster_api_holds_an_upgrade_for_the_stages_of_its_addons";
    let Some(t) = World::with_cluster_api("hooked", TEST).await else { return };
    let repo = t.repo();
    let none = "addonStages: {}\n";
    repo.write("stacks/docker/x/clusteraddon.yaml", none);
    let name = format!("clusterstack-{}", t.namespace);
    // Cluster API asks us for the versions on the way.
    let class = IN_MEMORY.replacen(
        "spec:\n",
        &format!("spec:\n  upgrade: {{external: {{generateUpgradePlanExtension: generate-upgrade-plan.{name}}}}}\n"),
        1,
    );
    repo.release(V1, &class);
    t.remove_at_end("runtime.cluster.x-k8s.io/v1beta2", "ExtensionConfig", &name);
    let extension = Extension::start(&t).await;
    let configs = t.cluster_api("runtime.cluster.x-k8s.io/v1beta2", "ExtensionConfig");
    wait_for("Cluster API to discover the hooks", || async {
        let config = configs.get_opt(&name).await.map_err(|error| error.to_string())?.ok_or("no such object")?;
        check(config.data["status"]["handlers"].as_array().is_some_and(|all| all.len() == 5), &config.data)
    })
    .await;
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.apply(&topology("shop", V1, "v1.34.7")).await;
    rolled_out(&t, "shop", "v1.34.7", V1).await;
    ready(&t, "shop", V1).await;

    // A stage that never gets done: the API server in memory does not say its version.
    let stages = "addonStages:\n  BeforeClusterUpgrade: [{name: cni, action: apply}]\n";
    repo.write("stacks/docker/x/clusteraddon.yaml", stages);
    let dir = "stacks/docker/x/cluster-addon/cni";
    repo.write(&format!("{dir}/Chart.yaml"), "apiVersion: v2\nname: addon-cni\nversion: v0\n");
    repo.write(&format!("{dir}/templates/nothing.yaml"), "# nothing\n");
    repo.release(V2, &class);
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    t.apply(&topology("shop", V2, "v1.34.8")).await;
    wait_within(PATIENCE, "Cluster API to tell what the upgrade waits for", || async {
        let cluster = t.get(CORE, "Cluster", "shop").await.ok_or("no such object")?;
        let conditions = &cluster["status"]["conditions"];
        let told = conditions.to_string();
        let is = told.contains(
            "BeforeClusterUpgrade: ClusterAddon cluster-addon-shop: stage cni of BeforeClusterUpgrade (1 of 1)",
        );
        check(is, conditions)
    })
    .await;
    t.event("HookBlocked", "stage cni of BeforeClusterUpgrade").await;
    let planes = t.api("controlplane.cluster.x-k8s.io/v1beta2", "KubeadmControlPlane");
    let planes = planes.list(&kube::api::ListParams::default()).await.unwrap().items;
    assert_eq!(planes[0].data["spec"]["version"], "v1.34.7");

    // Lost meanwhile, the ClusterAddon is not taken for that of a new Cluster.
    let uid = addon(&t, "shop").await.unwrap().metadata.uid;
    t.delete(API_VERSION, "ClusterAddon", "cluster-addon-shop").await;
    wait_for("the ClusterAddon to be made anew, with the stages of the upgrade", || async {
        let Some(addon) = addon(&t, "shop").await else { return Err("no such object".to_owned()) };
        let stages = addon.status.unwrap_or_default().stages;
        let is = stages.iter().any(|stage| stage.hook == "BeforeClusterUpgrade");
        check(addon.metadata.uid != uid && is, &stages)
    })
    .await;

    // The release is left for one that has no such stage. The templates are alike, so its machines count as those of V3.
    repo.write("stacks/docker/x/clusteraddon.yaml", none);
    repo.release(V3, &class);
    t.look_again("x").await;
    t.release_ready(V3).await;
    t.apply(&topology("shop", V3, "v1.34.8")).await;
    rolled_out(&t, "shop", "v1.34.8", V3).await;
    ready(&t, "shop", V3).await;

    // There is no way to a version of which the class has no images.
    t.apply(&topology("shop", V3, "v1.36.0")).await;
    wait_within(PATIENCE, "Cluster API to tell that there is no way", || async {
        let cluster = t.get(CORE, "Cluster", "shop").await.ok_or("no such object")?;
        let conditions = &cluster["status"]["conditions"];
        let words = format!("release {V3} has no node image for Kubernetes 1.35, 1.36");
        check(conditions.to_string().contains(&words), conditions)
    })
    .await;
    t.delete(CORE, "Cluster", "shop").await;
    t.gone(CORE, "Cluster", "shop").await;
    drop(extension.operator);
}
