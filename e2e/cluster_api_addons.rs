//! The whole life of a Cluster with Cluster API's own managers and our addons on a real API server: made, upgraded when
//! its addons let it, and deleted when those are gone that are marked for it.

use clusterstack::api::{API_VERSION, ConditionType, WATCH_LABEL};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::addon::{Workload, ready, says};
use crate::cluster_api::{rolled_out, topology};
use crate::harness::{Front, IN_MEMORY, World, check, unique, wait_within};
use crate::hooks::{Extension, PATIENCE};

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";

/// Puts a front before the Cluster's API server as soon as Cluster API made its kubeconfig.
async fn front(t: &World, w: &Workload, cluster: &str) -> Front {
    let secrets: Api<Secret> = Api::namespaced(t.client.clone(), &t.namespace);
    let name = format!("{cluster}-kubeconfig");
    let text = wait_within(PATIENCE, "the kubeconfig of the Cluster", || async {
        let secret = secrets.get_opt(&name).await.map_err(|error| error.to_string())?.ok_or("no Secret")?;
        let data = secret.data.unwrap_or_default();
        String::from_utf8(data.get("value").ok_or("no value")?.0.clone()).map_err(|error| error.to_string())
    })
    .await;
    let front = Front::new(&text, w.kubeconfig_path()).await;
    let patch = Patch::Merge(json!({"stringData": {"value": front.kubeconfig()}}));
    secrets.patch(&name, &PatchParams::default(), &patch).await.expect("Secret");
    front
}

#[tokio::test]
async fn a_cluster_lives_with_its_addons_from_its_making_to_its_end() {
    const TEST: &str = "a_cluster_lives_with_its_addons_from_its_making_to_its_end";
    let Some(w) = Workload::new().await else { return };
    let Some(t) = World::with_cluster_api("life", TEST).await else { return };
    let repo = t.repo();
    let prefix = &w.prefix;
    repo.write(
        "stacks/docker/x/clusteraddon.yaml",
        &format!(
            "addonStages:\n  AfterControlPlaneInitialized: [{{name: cni, action: apply}}, {{name: edge, action: apply}}]\n  \
             BeforeClusterUpgrade:\n    - {{name: cni, action: apply, waitForPostCondition: {{objects: [{{key: gate, apiVersion: v1, \
             kind: ConfigMap, name: {prefix}-gate, namespace: default}}], conditions: \"gate.data.open == 'yes'\"}}}}\n    \
             - {{name: edge, action: apply}}\n  BeforeClusterDelete: [{{name: edge, action: delete}}]\n"
        ),
    );
    w.chart(&repo, "cni", &["cni"], "{version: one}");
    w.chart(&repo, "edge", &["edge"], "{version: one}");
    repo.release(V1, IN_MEMORY);
    t.remove_at_end("runtime.cluster.x-k8s.io/v1beta2", "ExtensionConfig", &format!("clusterstack-{}", t.namespace));
    let extension = Extension::start(&t).await;
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.apply(&topology("shop", V1, "v1.34.7")).await;
    let _front = front(&t, &w, "shop").await;
    w.has("cni", "version", "one").await;
    rolled_out(&t, "shop", "v1.34.7", V1).await;
    ready(&t, "shop", V1).await;

    // What an upgrade would do is told before, by the managers' own admission too.
    w.chart(&repo, "cni", &["cni"], "{version: two}");
    repo.release(V2, &IN_MEMORY.replace("startupDuration: 1s", "startupDuration: 2s"));
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    let plan = diff(&t, "shop", "v2").await;
    assert_eq!(plan["acceptance"]["state"], "accepted", "{plan:#}");
    let rolls = plan["rollouts"].as_array().unwrap().iter().filter(|one| one["verdict"] == "rolls").count();
    assert_eq!(rolls, 2, "{:#}", plan["rollouts"]);
    let changed = plan["addons"].to_string();
    assert!(changed.contains(&format!("{prefix}-cni")) && !changed.contains(&format!("{prefix}-edge")), "{changed}");

    // The addons go first: the machines wait for them.
    t.apply(&topology("shop", V2, "v1.34.8")).await;
    w.has("cni", "version", "two").await;
    says(&t, "shop", ConditionType::StagesDone, "WaitingForPostCondition").await;
    t.event("HookBlocked", "stage cni of BeforeClusterUpgrade").await;
    let machines = t.api(CORE, "Machine").list(&ListParams::default()).await.unwrap().items;
    assert!(machines.iter().all(|machine| machine.data["spec"]["version"] == "v1.34.7"), "{machines:#?}");
    w.put("default", &format!("{prefix}-gate"), json!({"open": "yes"})).await;
    rolled_out(&t, "shop", "v1.34.8", V1).await;
    ready(&t, "shop", V2).await;
    t.release_gone(V1).await;

    // What is marked goes before the machines; the rest goes with them.
    assert!(w.map("edge").await.is_some());
    t.delete(CORE, "Cluster", "shop").await;
    w.gone("edge").await;
    assert!(w.map("cni").await.is_some());
    wait_within(PATIENCE, "the Cluster to be gone", || async {
        check(t.get(CORE, "Cluster", "shop").await.is_none(), "it is there")
    })
    .await;
    drop(extension);
}

#[tokio::test]
async fn a_class_of_another_namespace_brings_its_addons() {
    const TEST: &str = "a_class_of_another_namespace_brings_its_addons";
    let Some(w) = Workload::new().await else { return };
    let Some(t) = World::with_cluster_api("classes", TEST).await else { return };
    let Some(user) = World::with_cluster_api("clusters", TEST).await else { return };
    let repo = t.repo();
    let stages = "addonStages:\n  AfterControlPlaneInitialized: [{name: cni, action: apply}]\n";
    repo.write("stacks/docker/x/clusteraddon.yaml", stages);
    w.chart(&repo, "cni", &["cni"], "{version: one}");
    repo.release(V1, IN_MEMORY);
    let ours = unique("ours");
    let labels = json!({"metadata": {"labels": {WATCH_LABEL: ours}}});
    let _operator = t.operator(&["--watch-filter", &ours]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.change_stack("x", labels.clone()).await;
    t.ready("x", "v1").await;

    let mut cluster = topology("shop", V1, "v1.34.7");
    json_patch::merge(&mut cluster, &labels);
    cluster["spec"]["topology"]["classRef"]["namespace"] = json!(t.namespace);
    user.apply(&cluster).await;
    let _front = front(&user, &w, "shop").await;
    w.has("cni", "version", "one").await;
    ready(&user, "shop", V1).await;

    // It holds its release as a Cluster of the same namespace does, and gets the next one.
    w.chart(&repo, "cni", &["cni"], "{version: two}");
    repo.release(V2, IN_MEMORY);
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    cluster["spec"]["topology"]["classRef"]["name"] = json!(V2);
    user.apply(&cluster).await;
    w.has("cni", "version", "two").await;
    ready(&user, "shop", V2).await;
    t.release_gone(V1).await;
    user.delete(CORE, "Cluster", "shop").await;
    wait_within(PATIENCE, "the Cluster to be gone", || async {
        check(user.get(CORE, "Cluster", "shop").await.is_none(), "it is there")
    })
    .await;
    user.gone(API_VERSION, "ClusterAddon", "cluster-addon-shop").await;
}

/// What `clusterstack diff` tells.
async fn diff(t: &World, cluster: &str, to: &str) -> Value {
    let root = t.dir().canonicalize().unwrap();
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_clusterstack"));
    command.args(["diff", cluster, "--to", to, "-o", "json", "-n", &t.namespace, "--kubeconfig"]);
    command.arg(&t.plane.kubeconfig).arg("--allow-source").arg(root);
    let output = command.kill_on_drop(true).output().await.unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}
