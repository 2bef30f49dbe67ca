//! Clusters of Cluster API: those of our classes are held to their release, others never come to us.

use clusterstack::api::{ALLOW_CLASS_CHANGE, API_VERSION};
use serde_json::{Value, json};

use super::{Door, V1, ask, patch, refused, release, taken, trial, world};
use crate::cluster_api::topology;
use crate::harness::{CLASS, CLUSTER_API, IN_MEMORY, World, check, cluster, wait_for};

fn with_version(name: &str, class: &str, version: &str) -> Value {
    let mut object = cluster(name, class);
    object["spec"]["topology"]["version"] = json!(version);
    object
}

#[tokio::test]
async fn clusters_of_our_classes_are_held_to_their_release() {
    let Some(t) = world("classes").await else { return };
    let repo = t.repo();
    repo.release(V1, CLASS);
    let _door = Door::open(&t).await;
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    for name in ["docker-y-1-34-v1", "docker-x-1-33-v1", "docker-x-1-35-v1", "docker-x-1-36-v1"] {
        t.apply(&release(name)).await;
    }
    let class = json!({"apiVersion": CLUSTER_API, "kind": "ClusterClass", "metadata": {"name": "docker-x-1-36-v1"}, "spec": {}});
    t.apply(&class).await;
    // The webhook's own cache may be behind.
    let other = json!({"spec": {"topology": {"class": "docker-x-1-36-v1", "version": "v1.36.0"}}});
    wait_for("the releases to be known", || async {
        let object = with_version("probe", "docker-x-1-36-v1", "v1.35.0");
        let (is, text) = ask(&t, "alice", &["create", "--dry-run=server"], Some(&object));
        check(!is, text)
    })
    .await;
    let minor = "v1.33.1 is no version of Kubernetes 1.34, for which release docker-x-1-34-v1";
    refused(&t, &["create"], Some(&with_version("c", V1, "v1.33.1")), &[minor, "name v1.34.7, or a class for 1.33"]);
    let class = ["release docker-x-1-36-v1 of ClusterClass docker-x-1-36-v1 is not Ready"];
    taken(&t, &["create", "--dry-run=server"], Some(&with_version("c", "docker-x-1-36-v1", "v1.36.0")), &class);
    let mut paused = with_version("c", V1, "v1.33.1");
    paused["spec"]["paused"] = json!(true);
    taken(&t, &["create", "--dry-run=server"], Some(&paused), &[minor]);
    taken(&t, &["create"], Some(&with_version("c", V1, "v1.34.7")), &[]);

    let to = |class: &str, version: &str| json!({"spec": {"topology": {"class": class, "version": version}}});
    for (change, parts) in [
        (
            to("docker-y-1-34-v1", "v1.34.7"),
            &["is of stack docker-y, and the Cluster is of stack docker-x", ALLOW_CLASS_CHANGE][..],
        ),
        (to("quick-start", "v1.34.7"), &["is of no cluster stack"]),
        (to(V1, "v1.35.0"), &["v1.35.0 is no version of Kubernetes 1.34"]),
        (to("docker-x-1-35-v1", "v1.34.7"), &["v1.34.7 is no version of Kubernetes 1.35"]),
        (other, &["Kubernetes 1.35 is left out", "upgrade with the releases of the minors in between"]),
        (to("docker-x-1-33-v1", "v1.33.9"), &["can't go back from v1.34.7 to v1.33.9"]),
    ] {
        refused(&t, &trial("cluster", "c", &change), None, parts);
    }
    taken(
        &t,
        &trial("cluster", "c", &to(V1, "v1.34.9")),
        None,
        &["node images for v1.34.7 and none that it knows of for v1.34.9"],
    );
    taken(&t, &trial("cluster", "c", &to("docker-x-1-35-v1", "v1.35.2")), None, &["is not Ready"]);
    taken(&t, &trial("cluster", "c", &to("docker-x-1-34-v9", "v1.34.7")), None, &["of no release that is here"]);
    for (named, is) in [("docker-y-1-34-v2", false), ("docker-y-1-34-v1", true)] {
        let mut change = to("docker-y-1-34-v1", "v1.34.7");
        change["metadata"] = json!({"annotations": {ALLOW_CLASS_CHANGE: named}});
        assert_eq!(ask(&t, "alice", &trial("cluster", "c", &change), None).0, is, "{named}");
    }
    taken(&t, &["label", "cluster", "c", "a=b"], None, &[]);
    taken(&t, &["delete", "cluster", "c"], None, &[]);
}

#[tokio::test]
async fn a_class_with_a_name_of_its_own_is_known_too() {
    let Some(t) = world("own-class").await else { return };
    let repo = t.repo();
    repo.release(V1, &CLASS.replacen("{{ .Release.Name }}-{{ .Chart.Version }}", "own-class", 1));
    let _door = Door::open(&t).await;
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    wait_for("the API server to ask about the class", || async {
        let object = with_version("c", "own-class", "v1.33.1");
        let (is, text) = ask(&t, "alice", &["create", "--dry-run=server"], Some(&object));
        check(!is && text.contains("no version of Kubernetes 1.34"), text)
    })
    .await;
    taken(&t, &["create"], Some(&with_version("c", "own-class", "v1.34.7")), &[]);
}

#[tokio::test]
async fn a_cluster_of_another_class_does_not_come_to_us() {
    let Some(t) = world("foreign").await else { return };
    let door = Door::open(&t).await;
    taken(&t, &["create"], Some(&with_version("foreign", "quick-start", "v1.20.0")), &[]);
    let change = json!({"spec": {"topology": {"class": "quick-end", "version": "v1.34.0"}}});
    taken(&t, &patch("cluster", "foreign", &change), None, &[]);
    let mut without = cluster("without", "");
    without["spec"] = json!({"paused": true});
    taken(&t, &["create"], Some(&without), &[]);
    taken(&t, &["create"], Some(&with_version("ours", V1, "v1.34.0")), &[]);
    // What changes nothing of it does not come either.
    taken(&t, &["label", "cluster", "ours", "a=b"], None, &[]);
    let asked = |name: &str| {
        let name = format!("name=\"{}/{name}\"", t.namespace);
        door.operator.log().lines().filter(|line| line.contains("webhook was asked") && line.contains(&name)).count()
    };
    wait_for("the webhook to be asked about our own class", || async {
        check(asked("ours") == 1, door.operator.log())
    })
    .await;
    assert_eq!((asked("foreign"), asked("without")), (0, 0));
}

#[tokio::test]
async fn a_cluster_of_the_newer_contract_is_held_to_its_release_too() {
    const TEST: &str = "a_cluster_of_the_newer_contract_is_held_to_its_release_too";
    let Some(t) = World::with_cluster_api("classref", TEST).await else { return };
    let repo = t.repo();
    repo.release(V1, IN_MEMORY);
    let door = Door::open(&t).await;
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.apply(&json!({"apiVersion": API_VERSION, "kind": "ClusterStackRelease", "metadata": {"name": "docker-y-1-34-v1"}, "spec": {}}))
        .await;
    let create = ["create", "--dry-run=server"];
    refused(&t, &create, Some(&topology("c", V1, "v1.33.1")), &["v1.33.1 is no version of Kubernetes 1.34"]);
    taken(&t, &create, Some(&topology("c", V1, "v1.34.7")), &[]);
    // Cluster API warns of the class that is not there; we are not asked.
    let (is, text) = ask(&t, "alice", &create, Some(&topology("foreign", "quick-start", "v1.20.0")));
    assert!(is, "{text}");
    assert!(!door.operator.log().contains("/foreign"), "{}", door.operator.log());
}
