//! An API server that refuses, fails, is slow, cuts connections, or is gone for a while.

use clusterstack::api::ConditionType;
use serde_json::json;

use crate::harness::{CLASS, CLUSTER_API, Operator, Proxy, SETTINGS, Weather, World, check, wait_for};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";

#[tokio::test]
async fn in_a_storm_everything_is_reached_all_the_same() {
    let t = World::new("storm").await;
    let repo = t.repo();
    repo.release(V1, &format!("{CLASS}{SETTINGS}"));
    let proxy = Proxy::start(t.operator_client().await, t.dir()).await;
    proxy.set(Weather::Storm);
    let _operator = Operator::start(&t, proxy.kubeconfig(), &[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    repo.release(V2, &format!("{CLASS}{SETTINGS}"));
    t.look_again("x").await;
    t.ready("x", "v2").await;
    t.release_gone(V1).await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    assert!(t.get(CLUSTER_API, "ClusterClass", V2).await.is_none());
    assert!(proxy.spoiled() > 10, "{} requests were spoiled", proxy.spoiled());
}

#[tokio::test]
async fn an_api_server_that_is_gone_for_a_while_is_waited_for() {
    let t = World::new("gone").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let proxy = Proxy::start(t.operator_client().await, t.dir()).await;
    proxy.set(Weather::Down);
    let operator = Operator::start(&t, proxy.kubeconfig(), &[]);
    operator.address("probes").await;
    wait_for("the operator to ask", || async { check(proxy.spoiled() > 1, proxy.spoiled()) }).await;
    t.create_stack("x", &repo.url(), json!({})).await;
    proxy.set(Weather::Fair);
    t.ready("x", "v1").await;

    proxy.set(Weather::Down);
    let before = proxy.spoiled();
    repo.release(V2, SETTINGS);
    t.look_again("x").await;
    wait_for("the operator to ask again", || async { check(proxy.spoiled() > before, proxy.spoiled()) }).await;
    proxy.set(Weather::Fair);
    t.ready("x", "v2").await;
}

#[tokio::test]
async fn while_clusters_can_not_be_listed_nothing_is_collected_or_deleted() {
    let t = World::new("blind").await;
    let repo = t.repo();
    repo.release(V1, &format!("{CLASS}{SETTINGS}"));
    let proxy = Proxy::start(t.operator_client().await, t.dir()).await;
    let _operator = Operator::start(&t, proxy.kubeconfig(), &[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    proxy.set(Weather::Without("clusters"));
    repo.release(V2, &format!("{CLASS}{SETTINGS}"));
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    let synced = ConditionType::ClusterStackReleasesSynced;
    let message = t.stack_says("x", synced, "True", "UsageUnknown").await;
    assert!(message.contains("nothing is collected"), "{message}");

    t.delete_stack("x").await;
    t.stack_says("x", ConditionType::Ready, "False", "UsageUnknown").await;
    t.look_again("x").await;
    for release in [V1, V2] {
        assert!(t.releases().get(release).await.unwrap().metadata.deletion_timestamp.is_none(), "{release}");
        assert!(t.get(CLUSTER_API, "ClusterClass", release).await.is_some(), "{release}");
    }
    proxy.set(Weather::Fair);
    t.stack_gone("x").await;
}
