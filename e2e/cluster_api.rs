//! With Cluster API's own managers: Clusters of our ClusterClasses, which they make, upgrade and delete.

use std::time::Duration;

use clusterstack::api::{ConditionType, OWNER_NAME_LABEL, RECONCILE_AT};
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::{IN_MEMORY, World, check, listeners, wait_within};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";
const CORE: &str = "cluster.x-k8s.io/v1beta2";
/// How long the managers may take on a busy machine; alone, it is one minute.
const PATIENCE: Duration = Duration::from_secs(300);

/// A Cluster with one machine for the control plane and one worker.
pub(crate) fn topology(name: &str, class: &str, version: &str) -> Value {
    json!({
        "apiVersion": CORE,
        "kind": "Cluster",
        "metadata": {"name": name},
        "spec": {
            "clusterNetwork": {"pods": {"cidrBlocks": ["192.168.0.0/16"]}, "services": {"cidrBlocks": ["10.128.0.0/12"]}},
            "topology": {
                "classRef": {"name": class},
                "version": version,
                "controlPlane": {"replicas": 1},
                "workers": {"machineDeployments": [{"class": "default", "name": "default", "replicas": 1}]},
            },
        },
    })
}

/// What a condition of the current generation says.
fn condition<'a>(object: &'a Value, type_: &str) -> &'a str {
    let all = object.pointer("/status/conditions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let found = all.iter().find(|one| one["type"] == type_);
    let current = found.filter(|one| one["observedGeneration"] == object["metadata"]["generation"]);
    current.and_then(|one| one["status"].as_str()).unwrap_or_default()
}

/// Whether Cluster API has yet to call a hook; until then it takes no other version.
fn is_pending(cluster: &Value, hook: &str) -> bool {
    let pending = &cluster["metadata"]["annotations"]["runtime.cluster.x-k8s.io/pending-hooks"];
    pending.as_str().is_some_and(|hooks| hooks.split(',').any(|one| one == hook))
}

/// Waits until a Cluster is as its topology says: all of its machines of that version, and available. Until the machines
/// of another one are on their way out, the release `before` stays.
pub(crate) async fn rolled_out(t: &World, name: &str, version: &str, before: &str) {
    wait_within(PATIENCE, format!("Cluster {name} to be available with {version}"), || async {
        let freed = t.releases().get_opt(before).await.map_err(|error| error.to_string())?.is_none();
        let cluster = t.get(CORE, "Cluster", name).await.ok_or("no such object")?;
        let is = condition(&cluster, "Available") == "True"
            && condition(&cluster, "TopologyReconciled") == "True"
            && condition(&cluster, "RollingOut") == "False"
            && !is_pending(&cluster, "AfterClusterUpgrade");
        let machines = t.api(CORE, "Machine").list(&ListParams::default()).await;
        let machines = machines.map_err(|error| error.to_string())?.items;
        let of_version = |machine: &DynamicObject| machine.data["spec"]["version"] == version;
        let stays = |machine: &DynamicObject| machine.metadata.deletion_timestamp.is_none();
        let old = machines.iter().find(|machine| !of_version(machine) && stays(machine));
        assert!(!freed || old.is_none(), "{before} is gone before {old:#?}");
        let seen =
            || (machines.iter().map(|one| &one.data["spec"]).collect::<Vec<_>>(), &cluster["status"]["conditions"]);
        check(is && machines.len() == 2 && machines.iter().all(of_version), seen())
    })
    .await;
}

/// The templates that Cluster API made for a Cluster from those of its class: they carry our labels, for it copies them.
async fn copies(t: &World) -> Vec<String> {
    let mut names = Vec::new();
    for (api_version, kind) in [
        ("infrastructure.cluster.x-k8s.io/v1beta2", "DevMachineTemplate"),
        ("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfigTemplate"),
    ] {
        let labelled = ListParams::default().labels(&format!("{OWNER_NAME_LABEL}={V1}"));
        let all = t.api(api_version, kind).list(&labelled).await.unwrap();
        let is_copy = |one: &DynamicObject| one.annotations().contains_key("cluster.x-k8s.io/cloned-from-name");
        names.extend(all.into_iter().filter(is_copy).map(|one| one.name_any()));
    }
    names.sort();
    names
}

/// They are not ours to prune, whatever the labels say.
async fn its_copies_stay(t: &World) {
    let before = copies(t).await;
    assert_eq!(before.len(), 3, "two for machines, one for their configuration: {before:?}");
    t.looked_again("x").await;
    let asked = t.stacks().get("x").await.unwrap().annotations()[RECONCILE_AT].clone();
    t.release(V1, "to be looked at", |release| {
        let status = release.status.clone().unwrap_or_default();
        check(status.last_handled_reconcile_at.contains(&asked), &status)
    })
    .await;
    // Of a status that is lost the inventory is rebuilt from labels.
    let none = json!({"status": null});
    t.releases().patch_status(V1, &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    t.release_ready(V1).await;
    assert_eq!(copies(t).await, before);
}

#[tokio::test]
async fn a_cluster_gets_available_and_its_upgrade_to_the_next_release_frees_the_one_before() {
    const TEST: &str = "a_cluster_gets_available_and_its_upgrade_to_the_next_release_frees_the_one_before";
    let Some(t) = World::with_cluster_api("capi", TEST).await else { return };
    let operator = t.operator(&[]);
    let repo = t.repo();
    repo.release(V1, IN_MEMORY);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.apply(&topology("shop", V1, "v1.34.7")).await;
    rolled_out(&t, "shop", "v1.34.7", V1).await;
    its_copies_stay(&t).await;

    // Cluster API replaces the templates that it cloned.
    repo.release(V2, &IN_MEMORY.replace("startupDuration: 1s", "startupDuration: 2s"));
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    t.stack("x", "to keep what is in use", |stack| {
        let summary = stack.status.clone().unwrap_or_default().summary;
        check(summary.iter().any(|line| line.name == V1 && line.kept == "InUse"), &summary)
    })
    .await;
    operator.passes("ClusterStack", 2).await;
    t.release_ready(V1).await;

    t.apply(&topology("shop", V2, "v1.34.8")).await;
    rolled_out(&t, "shop", "v1.34.8", V1).await;
    t.release_gone(V1).await;
    t.ready("x", "v2").await;

    let open: Vec<_> = listeners().into_iter().filter(|address| !address.is_loopback()).collect();
    assert!(!listeners().is_empty() && open.is_empty(), "a manager listens on {open:?}");

    t.delete_stack("x").await;
    let message = t.stack_says("x", ConditionType::Ready, "False", "InUse").await;
    assert!(message.contains("shop"), "{message}");
    t.delete(CORE, "Cluster", "shop").await;
    t.gone(CORE, "Cluster", "shop").await;
    t.stack_gone("x").await;
}
