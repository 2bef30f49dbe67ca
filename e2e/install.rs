//! One ClusterStack brings a release, with no further action.

use std::time::Instant;

use clusterstack::api::ConditionType;
use clusterstack::api::cluster_stack_release::ResourceStatus;
use clusterstack::api::condition::find;
use serde_json::{Value, json};

use crate::harness::{CLASS, CLUSTER_API, INFRASTRUCTURE, SETTINGS, World, skipped};

const RELEASE: &str = "docker-x-1-34-v1";

#[tokio::test]
async fn one_clusterstack_becomes_ready_and_says_what_it_brought() {
    let t = World::new("install").await;
    let repo = t.repo();
    repo.release(RELEASE, &format!("{CLASS}{SETTINGS}"));
    let _operator = t.operator(&[]);
    // A fresh API server serves the first watch of a new kind late; that is not what is measured.
    repo.release("docker-x-1-33-v1", SETTINGS);
    t.create_stack("warm-up", &repo.url(), json!({"kubernetesVersion": "1.33"})).await;
    t.ready("warm-up", "v1").await;

    let start = Instant::now();
    t.create_stack("x", &repo.url(), json!({})).await;
    let stack = t.ready("x", "v1").await;
    eprintln!("from one ClusterStack to ready: {:?}", start.elapsed());

    let status = stack.status.unwrap();
    assert_eq!(status.latest_release, "docker-x-1-34-v1 | v1.34.7");
    assert_eq!(status.observed_generation, Some(1));
    let summary: Vec<_> = status.summary.iter().map(|s| (&*s.name, s.ready, &*s.phase, &*s.kept)).collect();
    assert_eq!(summary, [(RELEASE, true, "done", "NewestFound")]);
    let poll = status.last_poll.unwrap();
    assert_eq!((poll.found, poll.passed_over), (1, 0));
    for type_ in [
        ConditionType::ReleasesSynced,
        ConditionType::AssetsClientAPIAvailable,
        ConditionType::ClusterStackReleasesSynced,
    ] {
        assert_eq!(find(&status.conditions, type_).map(|c| c.status.as_str()), Some("True"), "{type_:?}");
    }
    for type_ in [ConditionType::Stalled, ConditionType::Reconciling] {
        assert_eq!(find(&status.conditions, type_), None);
    }

    let release = t.release_ready(RELEASE).await;
    assert_eq!(release.metadata.owner_references.as_ref().map(|o| o[0].name.as_str()), Some("x"));
    let status = release.status.unwrap();
    assert_eq!(status.kubernetes_version, "v1.34.7");
    let artifact = status.artifact.unwrap();
    assert_eq!(artifact.url, repo.url());
    assert_eq!(artifact.revision.len(), 40);
    assert!(artifact.digest.starts_with("sha256:"), "{}", artifact.digest);
    assert_eq!(status.resources.len(), 4);
    for row in &status.resources {
        assert_eq!((row.status, &*row.health, &*row.error), (ResourceStatus::Synced, "Current", ""), "{row:?}");
        assert_eq!((&*row.namespace, &*row.name), (&*t.namespace, RELEASE));
    }
    for type_ in [
        ConditionType::ClusterStackReleaseDownloaded,
        ConditionType::HelmChartTemplated,
        ConditionType::HelmChartApplied,
    ] {
        assert_eq!(find(&status.conditions, type_).map(|c| c.status.as_str()), Some("True"), "{type_:?}");
    }
    assert_eq!(find(&status.conditions, ConditionType::ProviderClusterStackReleaseReady), None);
}

#[tokio::test]
async fn applied_objects_carry_their_owner_and_our_field_manager() {
    let t = World::new("owner").await;
    let repo = t.repo();
    repo.release(RELEASE, &format!("{CLASS}{SETTINGS}"));
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;

    for (version, kind) in [
        (CLUSTER_API, "ClusterClass"),
        (INFRASTRUCTURE, "DockerClusterTemplate"),
        (INFRASTRUCTURE, "DockerMachineTemplate"),
        ("v1", "ConfigMap"),
    ] {
        let object = t.get(version, kind, RELEASE).await.unwrap_or_else(|| panic!("no {kind}"));
        let labels = &object["metadata"]["labels"];
        assert_eq!(labels["app.kubernetes.io/managed-by"], "clusterstack", "{kind}");
        assert_eq!(labels["clusterstack.x-k8s.io/owner-kind"], "ClusterStackRelease", "{kind}");
        assert_eq!(labels["clusterstack.x-k8s.io/owner-namespace"], t.namespace.as_str(), "{kind}");
        assert_eq!(labels["clusterstack.x-k8s.io/owner-name"], RELEASE, "{kind}");
        let manager = object.pointer("/metadata/managedFields/0/manager").and_then(Value::as_str);
        assert_eq!(manager, Some("clusterstack"), "{kind}");
    }
    assert_eq!(t.in_config_map(RELEASE, "/data/color").await, "blue");
}

#[tokio::test]
async fn kubectl_shows_and_waits_for_it() {
    let t = World::new("kubectl").await;
    if std::process::Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        skipped("kubectl_shows_and_waits_for_it: there is no kubectl");
        return;
    }
    let repo = t.repo();
    repo.release(RELEASE, SETTINGS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.kubectl(&["wait", "--for=condition=Ready", "csk/x", "--timeout=60s"]);
    t.kubectl(&["wait", "--for=condition=Ready", "cskr", "--all", "--timeout=60s"]);

    let stacks = t.kubectl(&["get", "csk"]);
    for word in ["PROVIDER", "USABLE", "LATEST", "REASON", "docker-x-1-34-v1 | v1.34.7", "Ready"] {
        assert!(stacks.contains(word), "{stacks}");
    }
    let releases = t.kubectl(&["get", "cskr"]);
    for word in ["K8S VERSION", "READY", RELEASE, "v1.34.7", "true", "1 object synced"] {
        assert!(releases.contains(word), "{releases}");
    }
    let described = t.kubectl(&["describe", "csk", "x"]);
    assert!(described.contains("ReleaseCreated"), "{described}");
}

#[tokio::test]
async fn two_stacks_of_one_repository_come_side_by_side() {
    let t = World::new("two").await;
    let repo = t.repo();
    repo.release(RELEASE, SETTINGS).release("docker-x-1-33-v4", SETTINGS).release("docker-my-own-1-34-v2", SETTINGS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.create_stack("older", &repo.url(), json!({"kubernetesVersion": "1.33"})).await;
    t.create_stack("own", &repo.url(), json!({"name": "my-own"})).await;
    t.ready("x", "v1").await;
    t.ready("older", "v4").await;
    t.ready("own", "v2").await;
    for name in [RELEASE, "docker-x-1-33-v4", "docker-my-own-1-34-v2"] {
        assert_eq!(t.in_config_map(name, "/data/color").await, "blue", "{name}");
    }
}

#[tokio::test]
async fn a_custom_channel_and_named_versions_bring_what_they_name() {
    let t = World::new("channel").await;
    let repo = t.repo();
    repo.release("docker-x-1-34-v0-sha-abc", SETTINGS).release("docker-x-1-34-v7", SETTINGS);
    let _operator = t.operator(&[]);
    let named = json!({"channel": "custom", "autoSubscribe": false, "versions": ["v0-sha.abc"]});
    t.create_stack("custom", &repo.url(), named).await;
    t.ready("custom", "v0-sha.abc").await;
    let release = t.release_ready("docker-x-1-34-v0-sha-abc").await;
    assert_eq!(release.status.unwrap().resources[0].name, "docker-x-1-34-v0-sha.abc");
}

#[tokio::test]
async fn a_suspended_stack_does_nothing_until_it_goes_on() {
    let t = World::new("suspend").await;
    let repo = t.repo();
    repo.release(RELEASE, SETTINGS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({"suspend": true})).await;
    t.stack_says("x", ConditionType::Ready, "True", "Suspended").await;
    assert!(t.releases().get_opt(RELEASE).await.unwrap().is_none());
    t.change_stack("x", json!({"spec": {"suspend": false}})).await;
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn two_objects_for_one_stack_do_not_take_from_each_other() {
    let t = World::new("twice").await;
    let repo = t.repo();
    repo.release(RELEASE, SETTINGS);
    let _operator = t.operator(&[]);
    t.create_stack("first", &repo.url(), json!({})).await;
    t.ready("first", "v1").await;
    t.create_stack("second", &repo.url(), json!({})).await;
    let message = t.stack_says("second", ConditionType::Ready, "False", "FailedToCreateOrUpdate").await;
    assert!(message.contains(RELEASE), "{message}");
    t.delete_stack("second").await;
    t.stack_gone("second").await;
    t.ready("first", "v1").await;
    assert!(t.config_map(RELEASE).await.is_some());
}
