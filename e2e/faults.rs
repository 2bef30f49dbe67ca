//! One thing after the other goes wrong between operator and API server. Whatever it is: all is reached, nothing is lost or
//! applied twice with another content, nobody asks without a pause, and no restart is needed.

use std::time::Instant;

use serde_json::json;

use crate::harness::{CLASS, CLUSTER_API, Fault, Operator, Proxy, SETTINGS, Weather, World, check, wait_for};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";
const V3: &str = "docker-x-1-34-v3";

/// Requests for a whole life of a ClusterStack with four objects in a release, and more in a second of waiting: an operator
/// that asks without a pause makes hundreds.
const MOST: (f64, f64) = (400.0, 20.0);

async fn is_overcome(name: &str, fault: Fault) {
    let t = World::new(name).await;
    let repo = t.repo();
    repo.release(V1, &format!("{CLASS}{SETTINGS}"));
    let proxy = Proxy::start(t.client.clone(), t.dir()).await;
    proxy.set(Weather::Faulty(fault));
    let (began, mut operator) = (Instant::now(), Operator::start(&t, proxy.kubeconfig(), &[]));
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    // From one release to the next, with the one before collected.
    repo.release(V2, &format!("{CLASS}{SETTINGS}"));
    t.look_again("x").await;
    t.ready("x", "v2").await;
    t.release_gone(V1).await;
    // What somebody changes is put back.
    let mine = json!({"data": {"size": "mine"}});
    t.change("somebody", ("v1", "ConfigMap", V2), mine).await;
    t.look_again("x").await;
    wait_for("what was changed to be put back", || async {
        let size = t.in_config_map(V2, "/data/size").await;
        check(size == "large", size)
    })
    .await;
    assert!(proxy.spoiled() > 3, "{fault:?} came to {} of {} requests", proxy.spoiled(), proxy.requests());
    let (requests, elapsed) = (proxy.requests(), began.elapsed());
    assert!(
        (requests as f64) < MOST.0 + MOST.1 * elapsed.as_secs_f64(),
        "{fault:?}: {requests} requests in {elapsed:?}"
    );
    println!("{fault:?}: {requests} requests in {elapsed:?}, {} of them went wrong", proxy.spoiled());

    // When it is over, the same process goes on as ever.
    proxy.set(Weather::Fair);
    repo.release(V3, &format!("{CLASS}{SETTINGS}"));
    t.look_again("x").await;
    t.ready("x", "v3").await;
    t.release_gone(V2).await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    assert!(t.get(CLUSTER_API, "ClusterClass", V3).await.is_none() && t.config_map(V3).await.is_none());
    for (path, contents) in proxy.applied() {
        assert_eq!(contents.len(), 1, "{fault:?}: {path} was applied with more than one content: {contents:#?}");
    }
    assert!(operator.is_running(), "{fault:?} ended it");
}

macro_rules! overcome {
    ($($test:ident: $name:literal, $fault:expr;)*) => {
        $(#[tokio::test]
        async fn $test() {
            is_overcome($name, $fault).await;
        })*
    };
}

overcome! {
    slow_answers_are_overcome: "latency", Fault::Latency;
    connections_that_end_are_overcome: "reset", Fault::Reset;
    conflicts_are_overcome: "conflict", Fault::Conflict;
    versions_that_are_too_old_are_overcome: "expired", Fault::Expired;
    limits_are_overcome: "toomany", Fault::TooMany;
    internal_errors_are_overcome: "internal", Fault::Internal;
    an_unavailable_api_server_is_overcome: "unavailable", Fault::Unavailable;
    watches_cut_in_the_middle_of_an_event_are_overcome: "watchcut", Fault::WatchCut;
    stale_reads_are_overcome: "stale", Fault::Stale;
    cut_json_is_overcome: "partial", Fault::PartialJson;
}
