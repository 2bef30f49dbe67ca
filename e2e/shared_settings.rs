//! Settings from one ConfigMap, which every replica watches.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use clusterstack::api::operator_shard::ShardSettings;
use clusterstack::api::{API_VERSION, ConditionType, OperatorShard, SHARD_CLASS, WATCH_LABEL};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::harness::{CLASS, CLUSTER_API, Operator, SETTINGS, World, check, cluster, wait_for};

const NAME: &str = "clusterstack-settings";

/// A replica whose pod has this name.
fn replica(t: &World, name: &str) -> Operator {
    let store = t.dir().join(format!("store-{name}"));
    let flags = ["--leader-elect", "--leader-elect-namespace", &t.namespace, "--settings", NAME];
    let flags: Vec<&str> = flags.into_iter().chain(["--release-dir", store.to_str().unwrap()]).collect();
    Operator::start_with(t, t.plane.operator_kubeconfig(), &flags, &[("POD_NAME", Path::new(name))])
}

/// Puts settings into the ConfigMap, in the place of those before.
async fn put(t: &World, data: &Value) {
    let api: Api<ConfigMap> = Api::namespaced(t.client.clone(), &t.namespace);
    if api.get_opt(NAME).await.unwrap().is_none() {
        let object = json!({"metadata": {"name": NAME}, "data": data});
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        return;
    }
    let patch = json!([{"op": "add", "path": "/data", "value": data}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
    api.patch(NAME, &PatchParams::default(), &patch).await.unwrap();
}

/// Waits until the replicas say this of their settings; their shard classes.
async fn said(
    t: &World,
    what: &str,
    names: &[&str],
    is_so: impl Fn(&str, &ShardSettings) -> bool,
) -> BTreeMap<String, Vec<String>> {
    let api: Api<OperatorShard> = Api::all(t.client.clone());
    wait_for(what, || async {
        let all = api.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let ours: Vec<OperatorShard> =
            all.into_iter().filter(|shard| shard.spec.lease_namespace == t.namespace).collect();
        let mut found = BTreeMap::new();
        for shard in &ours {
            let (name, status) =
                (shard.spec.identity.rsplit_once('_').unwrap().0, shard.status.clone().unwrap_or_default());
            if status.ready && status.settings.as_ref().is_some_and(|settings| is_so(name, settings)) {
                found.insert(name.to_owned(), status.shard_classes);
            }
        }
        check(names.iter().all(|name| found.contains_key(*name)), &ours).map(|()| found)
    })
    .await
}

/// In force, with nothing refused.
fn is_in_force(settings: &ShardSettings) -> bool {
    settings.running == settings.wanted && settings.refused.is_empty()
}

/// How often a replica began to work.
fn starts(operator: &Operator) -> usize {
    operator.log().matches("serving probes").count()
}

#[tokio::test]
async fn settings_are_in_force_within_seconds_and_bad_ones_are_refused() {
    let t = World::new("settings").await;
    let repo = t.repo();
    repo.release("docker-x-1-34-v1", SETTINGS);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.change_stack("x", json!({"metadata": {"labels": {SHARD_CLASS: "big"}}})).await;
    let (mut a, mut b) = (replica(&t, "a"), replica(&t, "b"));
    let both = ["a", "b"];
    said(&t, "both to work without settings", &both, |_, s| is_in_force(s) && s.running == "none").await;

    // What can be changed at once is, for the replicas that are named.
    put(&t, &json!({"burst": "70", "default-interval": "1m", "a.shard-class": "big"})).await;
    let classes = said(&t, "other settings to be in force", &both, |_, s| is_in_force(s) && s.running != "none").await;
    assert_eq!((classes["a"].clone(), classes["b"].clone()), (vec!["big".to_owned()], vec![]));
    t.ready("x", "v1").await;
    assert_eq!((starts(&a), starts(&b)), (1, 1));

    // What can't be used is refused, and what was stays.
    put(&t, &json!({"burst": "many", "a.shard-class": "small"})).await;
    let refused = |s: &ShardSettings| s.running != s.wanted && s.refused.contains("burst");
    let classes = said(&t, "settings to be refused", &both, |_, s| refused(s)).await;
    assert_eq!(classes["a"], ["big"]);
    t.event("SettingsInvalid", "burst: invalid value 'many'").await;
    // Who begins now takes what was good last.
    let c = replica(&t, "c");
    said(&t, "the third one to refuse them too", &["c"], |_, s| refused(s) && s.running.len() == 12).await;
    c.kill();

    // What can't be changed at once lets those begin anew that it concerns.
    put(&t, &json!({"a.shard-class": "big", "b.receiver-bind-address": "127.0.0.1:0"})).await;
    wait_for("one to begin anew", || async { check(starts(&b) == 2, b.log()) }).await;
    said(&t, "all to have them", &both, |_, s| is_in_force(s)).await;
    b.address("receiver").await;
    // One with which it can't work is given up.
    let before = starts(&b);
    put(&t, &json!({"a.shard-class": "big", "b.receiver-bind-address": "192.0.2.1:1"})).await;
    said(&t, "it to be given up", &both, |name, s| {
        if name == "a" { is_in_force(s) } else { s.running != s.wanted && s.refused.contains("receiver") }
    })
    .await;
    assert_eq!((starts(&a), starts(&b)), (1, before + 2));
    assert!(a.is_running() && b.is_running());
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn nothing_is_done_before_the_first_settings_can_be_used() {
    let t = World::new("held").await;
    let repo = t.repo();
    repo.release("docker-x-1-34-v1", SETTINGS);
    t.create_stack("x", &repo.url(), json!({})).await;
    put(&t, &json!({"watch-filter": "blue", "qsp": "100"})).await;
    let mut a = replica(&t, "a");
    t.event("SettingsInvalid", "nothing is done before they are corrected").await;
    let answer = a.get("probes", "/readyz").await;
    assert!(answer.contains(" 503 ") && answer.contains("the settings are refused: the log says why"), "{answer}");
    let answer = a.get("metrics", "/metrics").await;
    assert!(answer.contains("clusterstack_settings_refused 1"), "{answer}");
    let leases: Api<Lease> = Api::namespaced(t.client.clone(), &t.namespace);
    assert!(leases.list(&ListParams::default()).await.unwrap().items.is_empty());
    // Corrected: it works on what the settings leave to it, in the same process.
    put(&t, &json!({"watch-filter": "blue", "qps": "100"})).await;
    said(&t, "the corrected settings to be in force", &["a"], |_, s| is_in_force(s)).await;
    assert!(a.is_running());
    t.change_stack("x", json!({"metadata": {"labels": {WATCH_LABEL: "blue"}}})).await;
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn an_object_that_cannot_be_read_is_left_alone_and_all_others_go_on() {
    let t = World::new("unreadable").await;
    let repo = t.repo();
    for (n, name) in ["x", "y"].into_iter().enumerate() {
        repo.release(&format!("docker-x-1-{n}-v1"), SETTINGS);
        t.create_stack(name, &repo.url(), json!({"kubernetesVersion": format!("1.{n}")})).await;
    }
    let operator = t.operator(&[]);
    t.ready("x", "v1").await;
    t.ready("y", "v1").await;
    operator.kill();

    // The API server takes this offset for one of a date, and nobody else does.
    let stacks = t.api(API_VERSION, "ClusterStack");
    let planted = json!({"status": {"conditions": [
        {"type": "Ready", "status": "True", "reason": "Ready", "lastTransitionTime": "2026-01-01T00:00:00+99:00"},
    ]}});
    stacks.patch_status("x", &PatchParams::default(), &Patch::Merge(&planted)).await.unwrap();
    repo.release("docker-x-1-0-v2", SETTINGS);
    repo.release("docker-x-1-1-v2", SETTINGS);
    let operator = t.operator(&[]);
    t.ready("y", "v2").await;
    t.event("Unreadable", "can't be read by this version of the operator and is left alone").await;
    let tree = Command::new(env!("CARGO_BIN_EXE_clusterstack"))
        .args(["tree", "-n", &t.namespace])
        .env("KUBECONFIG", &t.plane.kubeconfig)
        .output()
        .unwrap();
    let (shown, said) = (String::from_utf8(tree.stdout).unwrap(), String::from_utf8(tree.stderr).unwrap());
    assert!(tree.status.success() && shown.contains("/y"), "{shown}{said}");
    assert!(said.contains(&format!("ClusterStack {}/x can't be read by this version", t.namespace)), "{said}");
    // What belongs to it stays, and nothing is made or collected.
    let releases = t.releases();
    assert!(
        releases.get_opt("docker-x-1-0-v1").await.unwrap().is_some_and(|one| one.metadata.deletion_timestamp.is_none())
    );
    assert!(releases.get_opt("docker-x-1-0-v2").await.unwrap().is_none());

    // It can be read again.
    let mended = json!({"status": {"conditions": []}});
    stacks.patch_status("x", &PatchParams::default(), &Patch::Merge(&mended)).await.unwrap();
    t.ready("x", "v2").await;
    drop(operator);
}

/// Text of JSON so deep that a usual parser refuses it.
fn deep() -> String {
    format!("{}1{}", r#"{"a":"#.repeat(200), "}".repeat(200))
}

/// Sends a text as it is: no client of ours reads what it gets back.
async fn send(t: &World, method: &str, path: &str, text: String) {
    let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
    t.client.request_text(request.body(text.into_bytes()).unwrap()).await.unwrap();
}

#[tokio::test]
async fn an_object_that_is_nested_too_deep_is_left_alone_and_all_others_go_on() {
    let t = World::new("deep").await;
    let repo = t.repo();
    repo.release("docker-x-1-34-v1", &format!("{CLASS}{SETTINGS}"));
    t.create_stack("signed", &repo.url(), json!({"kubernetesVersion": "1.0", "suspend": true})).await;
    let of = |group: &str, kind: &str| format!("/apis/{group}/namespaces/{}/{kind}", t.namespace);

    // Who writes may say which fields are whose, and nest a value as deep as they like.
    let stacks = of(API_VERSION, "clusterstacks");
    let request = http::Request::get(format!("{stacks}/signed")).body(Vec::new()).unwrap();
    let mut stack: Value = serde_json::from_str(&t.client.request_text(request).await.unwrap()).unwrap();
    stack["metadata"]["managedFields"] = json!([{
        "manager": "x", "operation": "Update", "apiVersion": API_VERSION, "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": "DEEP",
    }]);
    send(&t, "PUT", &format!("{stacks}/signed"), stack.to_string().replace("\"DEEP\"", &deep())).await;
    let mut user = cluster("shop", "docker-x-1-34-v1");
    user["metadata"]["namespace"] = json!(t.namespace);
    user["spec"]["topology"]["variables"] = json!([{"name": "v", "value": "DEEP"}]);
    let clusters = of(CLUSTER_API, "clusters");
    send(&t, "POST", &clusters, user.to_string().replace("\"DEEP\"", &deep())).await;
    let addon = json!({
        "apiVersion": API_VERSION, "kind": "ClusterAddon", "metadata": {"name": "far", "namespace": t.namespace},
        "spec": {"clusterRef": {"name": "far"}, "clusterStack": "docker-x-1-34-v9", "values": "DEEP"},
    });
    let addons = of(API_VERSION, "clusteraddons");
    send(&t, "POST", &addons, addon.to_string().replace("\"DEEP\"", &deep())).await;

    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.event("Unreadable", "it is nested deeper than 100 levels").await;
    t.delete_stack("x").await;
    let message = t.stack_says("x", ConditionType::Ready, "False", "InUse").await;
    assert!(message.contains(&format!("Cluster {}/shop", t.namespace)), "{message}");
    wait_for("the one of deep fields to be worked on", || async {
        let request = http::Request::get(format!("{stacks}/signed")).body(Vec::new()).unwrap();
        let text = t.client.request_text(request).await.map_err(|error| error.to_string())?;
        check(text.contains("\"type\":\"Ready\""), text)
    })
    .await;

    for path in [format!("{clusters}/shop"), format!("{addons}/far")] {
        send(&t, "DELETE", &path, String::new()).await;
    }
    t.stack_gone("x").await;
}
