//! Releases from a forge: GitHub's, by a stand-in for its API.

use std::time::{Duration, Instant};

use clusterstack::api::ConditionType;
use serde_json::json;

use crate::harness::{GitHub, SETTINGS, World, check, wait_for};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";

async fn served() -> GitHub {
    let server = GitHub::start().await;
    server.release(V1, SETTINGS);
    server
}

#[tokio::test]
async fn releases_come_from_the_assets_of_github() {
    let t = World::new("github").await;
    let server = served().await;
    let operator = t.operator(&["--allow-source", server.host()]);
    t.create_stack("x", "", json!({"source": server.source()})).await;
    t.ready("x", "v1").await;
    assert_eq!(t.in_config_map(V1, "/data/size").await, "large");
    server.release(V2, SETTINGS);
    t.look_again("x").await;
    t.ready("x", "v2").await;

    let source = format!("source=\"{}/o/r\"", server.host());
    assert_eq!(operator.metric(&format!("clusterstack_source_quota_remaining{{{source}}}")).await, 59.0);
    assert!(operator.metric(&format!("clusterstack_source_requests_total{{{source},outcome=\"ok\"}}")).await >= 4.0);
}

#[tokio::test]
async fn fifty_stacks_of_one_repository_cost_one_poll_per_interval() {
    let t = World::new("fifty").await;
    let server = served().await;
    let _operator = t.operator(&["--allow-source", server.host()]);
    t.create_stack("x", "", json!({"source": server.source(), "interval": "10s"})).await;
    t.ready("x", "v1").await;
    for n in 0..49 {
        let minor = format!("2.{n}");
        let spec = json!({"source": server.source(), "interval": "10s", "kubernetesVersion": minor});
        t.create_stack(&format!("more-{n}"), "", spec).await;
    }
    for n in 0..49 {
        t.stack_says(&format!("more-{n}"), ConditionType::Ready, "False", "NoReleaseFound").await;
    }
    let (before, start) = (server.lists(), Instant::now());
    wait_for("three more polls", || async { check(server.lists() >= before + 3, server.lists()) }).await;
    // A listing is young for 7 of 10 seconds.
    assert!(start.elapsed() >= Duration::from_secs(14), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_limit_is_obeyed_changes_nothing_and_ends() {
    let t = World::new("limit").await;
    let server = served().await;
    let _operator = t.operator(&["--allow-source", server.host()]);
    t.create_stack("x", "", json!({"source": server.source()})).await;
    t.ready("x", "v1").await;

    server.limit(Some(20));
    server.release(V2, SETTINGS);
    t.look_again("x").await;
    let message = t.stack_says("x", ConditionType::Ready, "False", "SourceRateLimited").await;
    assert!(message.contains("secondary rate limit"), "{message}");
    server.limit(None);
    let lists = server.lists();
    for _ in 0..3 {
        t.looked_again("x").await;
    }
    assert_eq!((server.limits(), server.lists()), (1, lists));
    let stack = t.stacks().get("x").await.unwrap();
    assert_eq!(stack.status.unwrap().usable_versions, "v1");
    t.release_ready(V1).await;
    assert!(t.config_map(V1).await.is_some());

    t.ready("x", "v2").await;
}
