//! `clusterstack reconcile`, `suspend` and `resume`: what is asked is waited for, and told.

use std::process::Output;

use clusterstack::api::ConditionType;
use serde_json::{Value, json};

use crate::harness::{CLASS, SETTINGS, World};

const HOURLY: &str = "1h";

fn clusterstack(t: &World, words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_clusterstack"));
    let Output { status, stdout, stderr } =
        command.args(words).args(["-n", &t.namespace]).env("KUBECONFIG", &t.plane.kubeconfig).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// The command in a thread of its own: the operator of the test lives beside it.
async fn told(t: &World, words: &[&str]) -> (Option<i32>, String, String) {
    tokio::task::block_in_place(|| clusterstack(t, words))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_is_asked_for_is_waited_for() {
    let t = World::new("reconcile").await;
    let repo = t.repo();
    repo.release("docker-x-1-34-v1", &format!("{CLASS}{SETTINGS}"));
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({"interval": HOURLY})).await;
    t.ready("x", "v1").await;

    repo.release("docker-x-1-34-v2", &format!("{CLASS}{SETTINGS}"));
    let (code, out, err) = told(&t, &["reconcile", "x", "--timeout", "90s"]).await;
    let expected = format!("✓ ClusterStack {}/x: usable: v2\n", t.namespace);
    assert_eq!((code, &*out), (Some(0), &*expected), "{err}");
    assert!(err.contains("waiting for the operator"), "{err}");

    let (code, out, err) = told(&t, &["reconcile", "x", "-o", "json", "--timeout", "90s"]).await;
    let rows: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!((code, &rows[0]["outcome"], &rows[0]["name"]), (Some(0), &json!("done"), &json!("x")));

    repo.release("docker-x-1-34-v3", "a: {{ required \"no size\" .Values.size }}\n");
    let (code, out, err) = told(&t, &["reconcile", "clusterstack.clusterstack.x-k8s.io/x", "--timeout", "90s"]).await;
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("✗ ") && out.contains("no size") && out.contains("usable: v2"), "{out}{err}");

    let (code, out, err) = told(&t, &["reconcile", "gone"]).await;
    assert_eq!((code, &*out), (Some(1), ""), "{err}");
    assert!(err.contains("no ClusterStack \"gone\"") && err.contains("hint"), "{err}");
    // One that is not there stops no other.
    let (code, out, err) = told(&t, &["reconcile", "gone", "x", "--timeout", "90s"]).await;
    assert_eq!(code, Some(1), "{err}");
    assert!(out.contains("/gone: no ClusterStack") && out.contains("/x: ") && out.contains("no size"), "{out}{err}");
    // The failure of before is not what comes of the correction, though it still stands when the operator has seen the request.
    let again = repo.commit_of("docker-x-1-34-v2");
    repo.delete_tag("docker-x-1-34-v3");
    repo.tag_as("docker-x-1-34-v3", &again);
    let (code, out, err) = told(&t, &["reconcile", "x", "--timeout", "90s"]).await;
    assert!(code == Some(0) && out.contains("usable: v3"), "{out}{err}");
    let (code, _, err) = told(&t, &["reconcile", "cskr/docker-x-1-34-v2"]).await;
    assert!(code == Some(1) && err.contains("name its ClusterStack"), "{err}");
    let (code, _, err) = told(&t, &["reconcile", "pod/x"]).await;
    assert!(code != Some(0) && err.contains("csk (ClusterStack)"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_release_that_was_corrected_is_taken_by_who_asks() {
    let t = World::new("corrected").await;
    let repo = t.repo();
    repo.release("docker-x-1-34-v1", "a: {{ required \"no size\" .Values.size }}\n");
    let _operator = t.operator(&[]);
    let spec = json!({"interval": HOURLY, "autoSubscribe": false, "versions": ["v1"]});
    t.create_stack("x", &repo.url(), spec).await;
    t.release_says("docker-x-1-34-v1", ConditionType::Ready, "False", "RenderFailed").await;

    repo.release("docker-x-1-34-v2", &format!("{CLASS}{SETTINGS}"));
    let corrected = repo.commit_of("docker-x-1-34-v2");
    repo.delete_tag("docker-x-1-34-v1");
    repo.tag_as("docker-x-1-34-v1", &corrected);
    let (code, out, err) = told(&t, &["reconcile", "x", "--timeout", "90s"]).await;
    assert!(code == Some(0) && out.contains("usable: v1"), "{out}{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_are_asked_before_any_is_waited_for() {
    let t = World::new("brake").await;
    let repo = t.repo();
    for n in 0..40 {
        t.create_stack(&format!("x{n}"), &repo.url(), json!({"name": format!("x{n}")})).await;
    }
    // Nobody is there to see it, and nobody reads what is said.
    let command = format!(
        "{} suspend --all -n {} --timeout 3s 2>/dev/null | head -0; test ${{PIPESTATUS[0]}} != 101",
        env!("CARGO_BIN_EXE_clusterstack"),
        t.namespace
    );
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", &command]).env("KUBECONFIG", &t.plane.kubeconfig);
    assert!(tokio::task::block_in_place(|| shell.status()).unwrap().success());
    let stacks = t.stacks().list(&kube::api::ListParams::default()).await.unwrap();
    assert_eq!(stacks.items.iter().filter(|stack| stack.spec.suspend).count(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_suspended_is_left_alone_until_it_is_resumed() {
    let t = World::new("holds").await;
    let repo = t.repo();
    repo.release("docker-x-1-34-v1", SETTINGS);
    repo.release("docker-x-1-33-v1", SETTINGS);
    // Nobody is there to see it: it counts all the same.
    t.create_stack("x", &repo.url(), json!({"interval": HOURLY})).await;
    t.create_stack("y", &repo.url(), json!({"interval": HOURLY, "kubernetesVersion": "1.33"})).await;
    let (code, out, err) = told(&t, &["suspend", "x", "--timeout", "1s"]).await;
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("did not come to rest in time: waiting for the operator to see it"), "{out}{err}");
    let (code, out, err) = told(&t, &["resume", "x", "--no-wait"]).await;
    assert_eq!(code, Some(0), "{out}{err}");
    let stack = t.get(clusterstack::api::API_VERSION, "ClusterStack", "x").await.unwrap();
    assert_ne!(stack["spec"]["suspend"], true, "{stack:#}");

    let _operator = t.operator(&[]);
    t.ready("x", "v1").await;
    t.ready("y", "v1").await;
    let (code, out, err) = told(&t, &["suspend", "--all", "-o", "json", "--timeout", "60s"]).await;
    let rows: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    let names: Vec<_> = rows.as_array().unwrap().iter().map(|row| (&row["name"], &row["outcome"])).collect();
    let done = json!("done");
    assert_eq!((code, names), (Some(0), vec![(&json!("x"), &done), (&json!("y"), &done)]), "{err}");
    t.stack_says("x", ConditionType::Ready, "True", "Suspended").await;

    repo.release("docker-x-1-34-v2", SETTINGS);
    let (code, out, err) = told(&t, &["reconcile", "--all"]).await;
    assert!(
        code == Some(0) && out.contains("- ClusterStack") && out.contains("left out: it is suspended"),
        "{out}{err}"
    );
    let (code, out, err) = told(&t, &["reconcile", "x"]).await;
    assert_eq!((code, &*out), (Some(1), ""), "{err}");
    assert!(err.contains("is suspended") && err.contains("clusterstack resume"), "{err}");
    assert!(t.releases().get_opt("docker-x-1-34-v2").await.unwrap().is_none());
    let (code, out, err) = told(&t, &["suspend", "cskr/docker-x-1-34-v1"]).await;
    assert_eq!((code, &*out), (Some(1), ""), "{err}");
    assert!(err.contains("name its ClusterStack"), "{err}");

    let (code, out, err) = told(&t, &["resume", "x", "y", "--timeout", "90s"]).await;
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains("/x: usable: v2") && out.contains("/y: usable: v1"), "{out}{err}");
}
