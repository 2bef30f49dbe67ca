//! What the Go operator applied becomes ours, and nothing else changes.

use clusterstack::api::ConditionType;
use clusterstack::api::condition::find;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::{SETTINGS, World, leave_behind};

const V1: &str = "docker-x-1-34-v1";

/// The ConfigMap of the release as an older chart had it, with a key that the chart has no more.
fn of_go_operator(extra: &Value) -> Value {
    let mut data = json!({"color": "blue", "size": "large"});
    json_patch::merge(&mut data, extra);
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": V1}, "data": data})
}

fn managers(object: &Value) -> Vec<&str> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    entries.iter().filter_map(|entry| entry["manager"].as_str()).collect()
}

#[tokio::test]
async fn what_the_go_operator_applied_becomes_ours() {
    let t = World::new("migrate").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    leave_behind(&t, "x", &repo.url(), V1, &[of_go_operator(&json!({"gone": "from the chart"}))]).await;
    let before = t.config_map(V1).await.unwrap();
    assert_eq!(managers(&before), ["kubectl"]);

    let _operator = t.operator(&[]);
    // What the Go operator said gave no reason.
    t.release_says(V1, ConditionType::Ready, "True", "Ready").await;
    let stack = t.ready("x", "v1").await;
    let after = t.config_map(V1).await.unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(managers(&after), ["clusterstack"]);
    assert_eq!(after["data"], json!({"color": "blue", "size": "large"}), "a removed field stays for ever");
    assert_eq!(after["metadata"]["labels"]["clusterstack.x-k8s.io/owner-name"], V1);
    let release = t.release_ready(V1).await.status.unwrap();
    assert_eq!(release.resources.len(), 1);
    let ready = find(&release.conditions, ConditionType::Ready).unwrap();
    assert_eq!(ready.reason, "Ready");
    assert!(stack.status.unwrap().latest_release.starts_with(V1));
}

#[tokio::test]
async fn the_next_release_replaces_what_the_go_operator_applied() {
    let t = World::new("migrnext").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS).release("docker-x-1-34-v2", SETTINGS);
    leave_behind(&t, "x", &repo.url(), V1, &[of_go_operator(&json!({}))]).await;
    let _operator = t.operator(&[]);
    t.ready("x", "v2").await;
    t.release_gone(V1).await;
    assert!(t.config_map(V1).await.is_none());
}

#[tokio::test]
async fn a_field_that_a_user_took_from_the_go_operator_is_put_back_but_foreign_ones_stay() {
    let t = World::new("migruser").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    leave_behind(&t, "x", &repo.url(), V1, &[of_go_operator(&json!({}))]).await;
    t.change("user", ("v1", "ConfigMap", V1), json!({"data": {"color": "red", "mine": "1"}})).await;
    let _operator = t.operator(&[]);
    t.release_says(V1, ConditionType::Ready, "True", "Ready").await;
    assert_eq!(t.in_config_map(V1, "/data").await, json!({"color": "blue", "size": "large", "mine": "1"}));
}

#[tokio::test]
async fn a_deletion_that_the_go_operator_left_unfinished_is_finished() {
    let t = World::new("migrdel").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    leave_behind(&t, "x", &repo.url(), V1, &[of_go_operator(&json!({}))]).await;
    // Its ClusterStacks had a finalizer of another name or none; its releases have ours.
    let finalizers = json!({"metadata": {"finalizers": null}});
    t.stacks().patch("x", &PatchParams::default(), &Patch::Merge(finalizers)).await.unwrap();
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    let _operator = t.operator(&[]);
    t.delete(clusterstack::api::API_VERSION, "ClusterStackRelease", V1).await;
    t.release_gone(V1).await;
    assert!(t.config_map(V1).await.is_none());
}
