//! What is refused at the door, and warned of, as a user of `kubectl` sees it.
//!
//! Whoever may do everything is somebody whose rights are not the point here: a user of the tests is somebody else, by
//! impersonation.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::io::Write;
use std::process::{Command, Stdio};

use clusterstack::api::{API_VERSION, DELETE_FOR_MOVE, DELETION_POLICY};
use serde_json::{Value, json};

use crate::harness::{CLASS, Operator, SETTINGS, World, check, cluster, free_address, skipped, wait_for};

mod clusters;
mod server;

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";
const CONFIGURATION: (&str, &str) = ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration");

/// A world whose API server can call the operator; `None`, and a visible word, elsewhere.
async fn world(name: &str) -> Option<World> {
    if std::env::var("CLUSTERSTACK_USE_KUBECONFIG").is_ok_and(|given| given == "1") {
        skipped(format_args!("admission of {name}: the API server of KUBECONFIG can't call this machine"));
        return None;
    }
    Some(World::new(name).await)
}

/// An operator with its webhook.
struct Door {
    operator: Operator,
}

impl Door {
    /// Starts one, and waits until the API server asks it.
    async fn open(t: &World) -> Self {
        let free = free_address();
        Self::open_at(t, &free, &["--webhook-url", &format!("https://{free}")]).await
    }

    async fn open_at(t: &World, address: &str, place: &[&str]) -> Self {
        t.remove_at_end(CONFIGURATION.0, CONFIGURATION.1, &configuration(t));
        let flags = ["--webhook-bind-address", address, "--leader-elect-namespace", &t.namespace];
        let operator = t.operator(&[&flags[..], place].concat());
        let door = Self { operator };
        door.is_open(t).await;
        door
    }

    /// Waits until the API server asks it.
    async fn is_open(&self, t: &World) {
        let bad = stack("knock", "file:///etc", &json!({}));
        wait_for("the API server to ask the webhook", || async {
            let (taken, text) = ask(t, "alice", &["create", "--dry-run=server"], Some(&bad));
            check(!taken && text.contains("denied the request"), text)
        })
        .await;
    }
}

/// The name of the configuration of an operator of the test's namespace.
fn configuration(t: &World) -> String {
    format!("clusterstack-{}", t.namespace)
}

/// Whether the API server takes what a user asks `kubectl` for, and all that it prints.
fn ask(t: &World, user: &str, args: &[impl AsRef<OsStr>], object: Option<&Value>) -> (bool, String) {
    let mut command = Command::new("kubectl");
    command.arg("--kubeconfig").arg(&t.plane.kubeconfig).args(["--namespace", &t.namespace]);
    command.args(["--as", user, "--as-group", "system:masters"]).args(args);
    command.args(object.map(|_| ["--filename", "-"]).into_iter().flatten());
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = piped.expect("no kubectl");
    let text = object.map(Value::to_string).unwrap_or_default();
    child.stdin.take().expect("no input").write_all(text.as_bytes()).expect("kubectl ended");
    let output = child.wait_with_output().expect("no output");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// What the API server prints when it refuses this.
#[track_caller]
fn refused(t: &World, args: &[impl AsRef<OsStr> + Debug], object: Option<&Value>, parts: &[&str]) {
    let (taken, text) = ask(t, "alice", args, object);
    assert!(!taken && text.contains("denied the request"), "{args:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{args:?}: no {part:?} in {text}");
    }
}

/// It takes this, with exactly these warnings.
#[track_caller]
fn taken(t: &World, args: &[impl AsRef<OsStr> + Debug], object: Option<&Value>, warnings: &[&str]) {
    let (taken, text) = ask(t, "alice", args, object);
    assert!(taken, "{args:?}: {text}");
    let told: Vec<&str> = text.lines().filter(|line| line.starts_with("Warning:")).collect();
    let is = told.len() == warnings.len() && warnings.iter().all(|part| told.iter().any(|line| line.contains(part)));
    assert!(is, "{args:?}: {told:?} instead of {warnings:?}");
}

/// The words of a change.
fn patch(kind: &str, name: &str, change: &Value) -> Vec<String> {
    let words = ["patch", kind, name, "--type=merge", "--patch"].map(str::to_owned);
    words.into_iter().chain([change.to_string()]).collect()
}

/// The same, tried and not made.
fn trial(kind: &str, name: &str, change: &Value) -> Vec<String> {
    patch(kind, name, change).into_iter().chain(["--dry-run=server".to_owned()]).collect()
}

fn stack(name: &str, url: &str, change: &Value) -> Value {
    let mut object = json!({
        "apiVersion": API_VERSION, "kind": "ClusterStack", "metadata": {"name": name},
        "spec": {
            "provider": "docker", "name": "x", "kubernetesVersion": "1.34", "noProvider": true, "interval": "10s",
            "source": {"git": {"url": url}},
        },
    });
    json_patch::merge(&mut object, &json!({"spec": change}));
    object
}

fn source(name: &str, url: &str) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "ClusterStackSource", "metadata": {"name": name},
        "spec": {"source": {"git": {"url": url}}},
    })
}

/// A release that nobody subscribed: it is one by its name.
fn release(name: &str) -> Value {
    json!({"apiVersion": API_VERSION, "kind": "ClusterStackRelease", "metadata": {"name": name}, "spec": {}})
}

#[tokio::test]
async fn a_second_stack_of_the_same_releases_is_refused_and_a_stored_pair_stays() {
    let Some(t) = world("pairs").await else { return };
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let url = repo.url();
    for name in ["x", "y"] {
        t.create_stack(name, &url, json!({})).await;
    }
    let _door = Door::open(&t).await;
    let words =
        ["has the releases of provider docker, name x, Kubernetes 1.34 and channel stable", "another namespace"];
    refused(&t, &["create"], Some(&stack("z", &url, &json!({}))), &words);
    for (name, change) in [
        ("name", json!({"name": "other"})),
        ("minor", json!({"kubernetesVersion": "1.33"})),
        ("channel", json!({"channel": "custom", "approval": "manual"})),
    ] {
        taken(&t, &["create"], Some(&stack(name, &url, &change)), &[]);
    }
    taken(&t, &patch("csk", "y", &json!({"spec": {"versions": ["v1"]}})), None, &[]);
    taken(&t, &["label", "csk", "y", "a=b"], None, &[]);
    taken(&t, &["delete", "csk", "y", "--wait=false"], None, &[]);
    t.stack_gone("y").await;
    refused(&t, &["create"], Some(&stack("y", &url, &json!({}))), &words);
}

#[tokio::test]
async fn a_source_that_is_not_allowed_here_is_refused() {
    let Some(t) = world("sources").await else { return };
    let shop = World::new("shop").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    t.create_stack("stored", "file:///root", json!({"name": "stored"})).await;
    let _door = Door::open(&t).await;
    let create = &["create", "--dry-run=server"][..];
    for (url, part) in [
        ("file:///etc", "is a local path, and no --allow-source"),
        ("https://127.0.0.1/x.git", "is a loopback"),
        ("http://git.example.com/x.git", "plain http"),
    ] {
        refused(&t, create, Some(&stack("x", url, &json!({}))), &[part]);
        refused(&t, create, Some(&source("s", url)), &[part]);
    }
    // What is stored may be mended, in any order, but not for the worse.
    let change = |spec: Value| patch("csk", "stored", &json!({"spec": spec}));
    refused(&t, &change(json!({"source": {"git": {"url": "file:///etc"}}})), None, &["file:///etc"]);
    taken(&t, &change(json!({"keep": 3})), None, &[]);
    taken(&t, &change(json!({"source": {"git": {"url": repo.url()}}})), None, &[]);

    // Of another namespace: whether it is there is not told.
    let shared =
        |namespace: &str| stack("x", "", &json!({"source": null, "sourceRef": {"namespace": namespace, "name": "s"}}));
    let part = format!("{}/s does not exist or does not allow namespace {}", shop.namespace, t.namespace);
    refused(&t, create, Some(&shared(&shop.namespace)), &[&part]);
    shop.apply(&source("s", &repo.url())).await;
    refused(&t, create, Some(&shared(&shop.namespace)), &[&part]);
    for allowed in [
        json!({"names": [t.namespace]}),
        json!({"names": null, "selector": {"matchLabels": {"kubernetes.io/metadata.name": t.namespace}}}),
    ] {
        let change = json!({"spec": {"allowedNamespaces": allowed}});
        shop.change("provider", (API_VERSION, "ClusterStackSource", "s"), change).await;
        taken(&t, create, Some(&shared(&shop.namespace)), &[]);
    }
    let change =
        json!({"spec": {"allowedNamespaces": {"selector": {"matchLabels": {"kubernetes.io/metadata.name": "x"}}}}});
    shop.change("provider", (API_VERSION, "ClusterStackSource", "s"), change).await;
    refused(&t, create, Some(&shared(&shop.namespace)), &[&part]);
    taken(&t, create, Some(&shared(&t.namespace)), &["does not exist: create it, or correct spec.sourceRef"]);
}

#[tokio::test]
async fn what_is_unwise_is_warned_of() {
    let Some(t) = world("unwise").await else { return };
    let _door = Door::open(&t).await;
    let far = "https://git.example.com/x.git";
    let create = &["create", "--dry-run=server"][..];
    let key = json!({"git": {"secretRef": {"name": "keys"}}});
    for (change, warnings) in [
        (json!({}), &["nobody checks who made these releases"][..]),
        (json!({"verify": key}), &[]),
        (json!({"verify": key, "autoSubscribe": false}), &["no release will be taken"]),
        (json!({"verify": key, "channel": "custom"}), &["as soon as it is there: set approval: manual"]),
        (json!({"verify": key, "channel": "custom", "preReleases": ["sha"]}), &["none is the newest"]),
        (json!({"source": {"git": {"insecure": true}}}), &["insecure", "nobody checks"]),
    ] {
        taken(&t, create, Some(&stack("x", far, &change)), warnings);
    }
    taken(&t, create, Some(&source("s", far)), &["nobody checks who made these releases"]);
}

#[tokio::test]
async fn what_a_cluster_uses_is_not_deleted_and_not_dropped() {
    let Some(t) = world("used").await else { return };
    let repo = t.repo();
    repo.release(V1, CLASS);
    let door = Door::open(&t).await;
    t.create_stack("x", &repo.url(), json!({"versions": ["v1"], "autoSubscribe": false})).await;
    t.ready("x", "v1").await;
    let users = format!("in use by Cluster {}/c", t.namespace);
    let drop = trial("csk", "x", &json!({"spec": {"versions": ["v2"]}}));
    let delete = ["delete", "cskr", V1, "--dry-run=server"];
    taken(&t, &drop, None, &[]);
    taken(&t, &delete, None, &[]);
    taken(&t, &["create"], Some(&cluster("c", V1)), &[]);
    refused(&t, &delete, None, &[&users, "move them to another ClusterClass, or delete them"]);
    refused(&t, &drop, None, &["version v1 can't be taken out of spec.versions", &users]);
    taken(&t, &trial("csk", "x", &json!({"spec": {"versions": ["v1", "v3"]}})), None, &[]);
    taken(&t, &["delete", "csk", "x", "--dry-run=server"], None, &[&users]);

    // Those who delete for others are let through, and the operator itself.
    let (gc, stranger) = ("system:serviceaccount:kube-system:generic-garbage-collector", "system:serviceaccount:a:b");
    for (user, is) in [
        (gc, true),
        ("system:serviceaccount:kube-system:namespace-controller", true),
        ("system:kube-controller-manager", true),
        (stranger, false),
    ] {
        assert_eq!(ask(&t, user, &delete, None).0, is, "{user}");
    }
    let releases: kube::Api<clusterstack::api::ClusterStackRelease> =
        kube::Api::namespaced(t.operator_client().await, &t.namespace);
    let own = releases.delete(V1, &kube::api::DeleteParams::default().dry_run()).await;
    assert!(own.is_ok(), "{own:?}");
    for (annotation, value) in [(DELETION_POLICY, "orphan"), (DELETE_FOR_MOVE, "")] {
        taken(&t, &["annotate", "cskr", V1, &format!("{annotation}={value}")], None, &[]);
        taken(&t, &delete, None, &[]);
        taken(&t, &["annotate", "cskr", V1, &format!("{annotation}-")], None, &[]);
        refused(&t, &delete, None, &[&users]);
    }

    // A deletion of the ClusterStack waits, and can be asked for again.
    taken(&t, &["delete", "csk", "x", "--wait=false"], None, &[&users]);
    t.stack_says("x", clusterstack::api::ConditionType::Ready, "False", "InUse").await;
    taken(&t, &["delete", "csk", "x", "--wait=false"], None, &[]);
    refused(&t, &delete, None, &[&users]);
    taken(&t, &["delete", "cluster", "c"], None, &[]);
    t.stack_gone("x").await;
    door.operator.kill();
}

#[tokio::test]
async fn the_garbage_collector_and_the_end_of_a_namespace_are_not_held_up() {
    let Some(t) = world("collected").await else { return };
    if !t.plane.collects_garbage() {
        return skipped("admission: nobody collects garbage on this API server");
    }
    let door = Door::open(&t).await;
    let owner = t.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}})).await;
    let owned = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]});
    let mut object = release(V2);
    object["metadata"]["ownerReferences"] = json!([owned]);
    t.apply(&object).await;
    t.apply(&release(V1)).await;
    for (name, class) in [("a", V1), ("b", V2)] {
        t.apply(&cluster(name, class)).await;
    }
    let in_use = format!("in use by Cluster {}/b", t.namespace);
    refused(&t, &["delete", "cskr", V2], None, &[&in_use]);
    t.delete("v1", "ConfigMap", "owner").await;
    wait_for("the garbage collector to delete the release", || async {
        let found = t.get(API_VERSION, "ClusterStackRelease", V2).await;
        let is = found.as_ref().is_none_or(|found| found["metadata"]["deletionTimestamp"].is_string());
        check(is, found)
    })
    .await;
    refused(&t, &["delete", "cskr", V1], None, &["in use by Cluster"]);
    let namespaces = t.cluster_api("v1", "Namespace");
    namespaces.delete(&t.namespace, &kube::api::DeleteParams::default()).await.unwrap();
    wait_for("the namespace to be gone", || async {
        let found = namespaces.get_opt(&t.namespace).await.map_err(|error| error.to_string())?;
        check(found.is_none(), found.map(|found| found.data))
    })
    .await;
    door.operator.kill();
}
