//! The process: probes, metrics, signals, and one active replica.

use std::collections::BTreeSet;

use clusterstack::api::condition::Reported;
use clusterstack::api::{API_VERSION, WATCH_LABEL};
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::harness::{CLASS, CLUSTER_API, Operator, Proxy, SETTINGS, Weather, World, check, cluster, wait_for};

const V1: &str = "docker-x-1-34-v1";

#[tokio::test]
async fn probes_and_metrics_answer() {
    let t = World::new("probes").await;
    let operator = t.operator(&[]);
    wait_for("/readyz", || async {
        let answer = operator.get("probes", "/readyz").await;
        check(answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"), answer)
    })
    .await;
    assert!(operator.get("probes", "/healthz").await.contains(" 200 "));
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    assert!(operator.metric("clusterstack_objects_total{action=\"applied\"}").await >= 1.0);
    assert!(operator.metric("clusterstack_source_polls_total").await >= 1.0);
    let metrics = operator.get("metrics", "/metrics").await;
    assert!(
        metrics.contains("clusterstack_reconcile_seconds_bucket") && metrics.trim_end().ends_with("# EOF"),
        "{metrics}"
    );
}

#[tokio::test]
async fn sigterm_ends_it_with_success() {
    let t = World::new("term").await;
    let operator = t.operator(&[]);
    operator.address("probes").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let status = operator.terminate().await;
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn sigterm_at_the_start_ends_it_with_success_and_at_once() {
    let t = World::new("termstart").await;
    for _ in 0..5 {
        let operator = t.operator(&[]);
        operator.address("probes").await;
        let log = operator.log_file();
        let status = operator.terminate().await;
        assert!(status.success(), "{status}");
        let log = std::fs::read_to_string(log).unwrap();
        assert!(!log.contains("still under way"), "{log}");
    }
}

#[tokio::test]
async fn sigterm_while_a_kind_can_not_be_read_ends_it_with_success_and_at_once() {
    let t = World::new("termunread").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    t.create_stack("x", &repo.url(), json!({})).await;
    let proxy = Proxy::start(t.operator_client().await, t.dir()).await;
    proxy.set(Weather::Without("clusterstacksources"));
    let operator = Operator::start(&t, proxy.kubeconfig(), &[]);
    wait_for("it to ask in vain", || async { check(proxy.spoiled() > 1, proxy.spoiled()) }).await;
    let log = operator.log_file();
    let status = operator.terminate().await;
    assert!(status.success(), "{status}");
    let log = std::fs::read_to_string(log).unwrap();
    assert!(!log.contains("still under way"), "{log}");
    assert!(t.config_map(V1).await.is_none());
    // What could not be read may be read again: one that waits for it goes on.
    let _operator = Operator::start(&t, proxy.kubeconfig(), &[]);
    let before = proxy.spoiled();
    wait_for("it to ask in vain", || async { check(proxy.spoiled() > before, before) }).await;
    proxy.set(Weather::Fair);
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn sigterm_in_the_middle_of_work_ends_it_with_success() {
    let t = World::new("termwork").await;
    let repo = t.repo();
    for n in 0..8 {
        repo.release(&format!("docker-x-1-{n}-v1"), SETTINGS);
    }
    let operator = t.operator(&[]);
    for n in 0..8 {
        let version = json!({"kubernetesVersion": format!("1.{n}")});
        t.create_stack(&format!("x-{n}"), &repo.url(), version).await;
    }
    t.there("v1", "ConfigMap", "docker-x-1-0-v1").await;
    let status = operator.terminate().await;
    assert!(status.success(), "{status}");
    let _operator = t.operator(&[]);
    for n in 0..8 {
        t.ready(&format!("x-{n}"), "v1").await;
    }
}

#[tokio::test]
async fn what_waits_to_be_told_is_told_before_it_ends() {
    let t = World::new("termtold").await;
    let repo = t.repo();
    let names: BTreeSet<String> = (0..12).map(|n| format!("x-{n}")).collect();
    for n in 0..names.len() {
        repo.release(&format!("docker-x-1-{n}-v1"), SETTINGS);
    }
    // Something waits for its turn nearly all the time: so events wait longer.
    let one = ["--clusterstack-concurrency", "1", "--clusterstackrelease-concurrency", "1"];
    let operator = t.operator(&one);
    for (n, name) in (0..names.len()).map(|n| (n, format!("x-{n}"))) {
        t.create_stack(&name, &repo.url(), json!({"kubernetesVersion": format!("1.{n}")})).await;
    }
    for name in &names {
        t.ready(name, "v1").await;
    }
    assert!(operator.terminate().await.success());
    let events: Api<Event> = Api::namespaced(t.client.clone(), &t.namespace);
    let told = events.list(&ListParams::default()).await.unwrap().items.into_iter();
    let told = told.map(|event| event.involved_object).filter(|object| object.kind.as_deref() == Some("ClusterStack"));
    assert_eq!(told.filter_map(|object| object.name).collect::<BTreeSet<_>>(), names);
}

#[tokio::test]
async fn a_follower_takes_over_when_the_leader_goes() {
    let t = World::new("leader").await;
    let flags = ["--leader-elect", "--leader-elect-namespace", &t.namespace];
    let is_leader = "clusterstack_leader";
    let first = t.operator(&flags);
    wait_for("the first to lead", || async { check(first.metric(is_leader).await > 0.5, "it does not") }).await;
    let second = t.operator(&flags);
    wait_for("the second to be ready", || async {
        check(second.get("probes", "/readyz").await.contains(" 200 "), "it is not")
    })
    .await;
    assert!(second.metric(is_leader).await < 0.5);
    assert!(first.terminate().await.success());
    wait_for("the second to lead", || async { check(second.metric(is_leader).await > 0.5, "it does not") }).await;
    // A leader that is killed does not give its lease back: it has to run out.
    let third = t.operator(&flags);
    second.kill();
    wait_for("the third to lead", || async { check(third.metric(is_leader).await > 0.5, "it does not") }).await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn the_watch_filter_leaves_other_objects_alone() {
    let t = World::new("filter").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS).release("docker-y-1-34-v1", SETTINGS);
    let _operator = t.operator(&["--watch-filter", "mine"]);
    t.create_stack("other", &repo.url(), json!({})).await;
    t.create_stack("mine", &repo.url(), json!({"name": "y"})).await;
    t.change_stack("mine", json!({"metadata": {"labels": {"cluster.x-k8s.io/watch-filter": "mine"}}})).await;
    t.ready("mine", "v1").await;
    let other = t.stacks().get("other").await.unwrap();
    assert!(other.conditions().is_empty() && other.metadata.finalizers.is_none(), "{other:?}");
}

#[tokio::test]
async fn what_is_given_to_another_operator_goes_with_all_that_belongs_to_it() {
    const ADDON: &str = "cluster-addon-shop";
    let t = World::new("handed").await;
    let repo = t.repo();
    repo.release(V1, CLASS);
    let (blue, green) = (format!("{}-blue", t.namespace), format!("{}-green", t.namespace));
    let label = |value: &str| json!({"metadata": {"labels": {WATCH_LABEL: value}}});
    let old = t.operator(&["--watch-filter", &blue]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.change_stack("x", label(&blue)).await;
    t.ready("x", "v1").await;
    let mut shop = cluster("shop", V1);
    json_patch::merge(&mut shop, &label(&blue));
    t.apply(&shop).await;
    let is_of = |kind: &'static str, name: &'static str, whose: String| {
        let t = &t;
        wait_for(format!("{kind} {name} to be of {whose}"), move || {
            let whose = whose.clone();
            async move {
                let found = t.get(API_VERSION, kind, name).await.unwrap_or_default();
                check(found["metadata"]["labels"][WATCH_LABEL] == whose.as_str(), &found)
            }
        })
    };
    is_of("ClusterStackRelease", V1, blue.clone()).await;
    is_of("ClusterAddon", ADDON, blue.clone()).await;

    let new = t.operator(&["--watch-filter", &green]);
    wait_for("the other one to be ready", || async {
        check(new.get("probes", "/readyz").await.contains(" 200 "), "it is not")
    })
    .await;
    t.change_stack("x", label(&green)).await;
    is_of("ClusterStackRelease", V1, green.clone()).await;
    // Nobody is there to hand it over.
    old.kill();
    json_patch::merge(&mut shop, &label(&green));
    t.apply(&shop).await;
    is_of("ClusterAddon", ADDON, green.clone()).await;
    // The other one does the work, and deletes what there is.
    let uid = |object: Option<Value>| object.unwrap_or_default()["metadata"]["uid"].as_str().map(ToOwned::to_owned);
    let before = uid(t.get(CLUSTER_API, "ClusterClass", V1).await);
    t.delete(CLUSTER_API, "ClusterClass", V1).await;
    wait_for("the ClusterClass to be made again", || async {
        let now = uid(t.get(CLUSTER_API, "ClusterClass", V1).await);
        check(now.is_some() && now != before, "it is gone, or going")
    })
    .await;
    t.delete(CLUSTER_API, "Cluster", "shop").await;
    t.gone(API_VERSION, "ClusterAddon", ADDON).await;
    t.delete_stack("x").await;
    t.release_gone(V1).await;
    t.stack_gone("x").await;
}
