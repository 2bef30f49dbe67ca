//! What a render no longer contains goes, but for what is never pruned.

use clusterstack::api::condition::{Reason, Reported};
use serde_json::{Value, json};

use crate::harness::{CLASS, CLUSTER_API, SETTINGS, World, check, cluster, leave_behind, wait_for};

const V1: &str = "docker-x-1-34-v1";

fn object(kind: &str, name: &str, metadata: &Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
    json_patch::merge(&mut object, &json!({"metadata": metadata}));
    if kind == "PersistentVolumeClaim" {
        object["spec"] = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
    }
    object
}

#[tokio::test]
async fn what_others_made_of_ours_with_our_labels_is_not_pruned() {
    let t = World::new("copies").await;
    let _operator = t.operator(&[]);
    let repo = t.repo();
    // Where there are several of a kind they are read by one list of what carries the labels.
    let second = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: second}\n";
    repo.release(V1, &format!("{SETTINGS}{second}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let labels = t.get("v1", "ConfigMap", V1).await.unwrap()["metadata"]["labels"].clone();
    let cloned = json!({"labels": labels, "annotations": {"cluster.x-k8s.io/cloned-from-name": V1}});
    t.apply_as("capi-topology", &object("ConfigMap", "cloned", &cloned)).await;
    t.apply_as("somebody", &object("ConfigMap", "copied", &json!({"labels": labels}))).await;
    // A pass that puts something back has pruned at its end.
    for size in ["1", "2"] {
        t.change("vandal", ("v1", "ConfigMap", V1), json!({"data": {"size": size}})).await;
        t.looked_again("x").await;
        wait_for("what was changed to be put back", || async {
            let size = t.in_config_map(V1, "/data/size").await;
            check(size == "large", size)
        })
        .await;
    }
    for name in ["cloned", "copied", "second"] {
        assert!(t.config_map(name).await.is_some(), "{name} was pruned");
    }
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    assert!(t.config_map("second").await.is_none());
    for name in ["cloned", "copied"] {
        assert!(t.config_map(name).await.is_some(), "{name} was deleted");
    }
}

#[tokio::test]
async fn no_class_and_no_template_is_pruned_while_somebody_uses_the_release() {
    let t = World::new("used").await;
    let repo = t.repo();
    let cloud = "{{- if lookup \"v1\" \"ConfigMap\" .Release.Namespace \"cloud\" }}";
    let passing = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: passing}\n---\n";
    repo.release(V1, &format!("{SETTINGS}\n{cloud}\n{CLASS}\n---\n{passing}{{{{- end }}}}\n"));
    let cloud = object("ConfigMap", "cloud", &json!({}));
    t.apply(&cloud).await;
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.apply(&cluster("shop", V1)).await;
    let uid = || async { t.get(CLUSTER_API, "ClusterClass", V1).await.map(|class| class["metadata"]["uid"].clone()) };
    let before = uid().await;
    assert!(before.is_some());

    // Somebody rotates it by deleting it.
    t.delete("v1", "ConfigMap", "cloud").await;
    t.looked_again("x").await;
    t.gone("v1", "ConfigMap", "passing").await;
    t.release(V1, "to keep what is used", |release| {
        let status = release.status.clone().unwrap_or_default();
        let kept = status.retained.iter().filter(|row| row.reason == Some(Reason::InUse)).count();
        let message = release.ready().map(|ready| ready.message.clone()).unwrap_or_default();
        check(kept >= 2 && status.ready && message.contains("kept: somebody uses the release"), &release.status)
    })
    .await;
    assert_eq!(uid().await, before);
    t.event("InUse", "does not render any more").await;
    // It comes back, and all is as it was.
    t.apply(&cloud).await;
    t.looked_again("x").await;
    t.release(V1, "to have all again", |release| {
        let status = release.status.clone().unwrap_or_default();
        check(status.retained.is_empty() && status.resources.len() > 3, &release.status)
    })
    .await;
    assert_eq!(uid().await, before);
    // Nobody uses it any more.
    t.delete("v1", "ConfigMap", "cloud").await;
    t.delete(CLUSTER_API, "Cluster", "shop").await;
    t.gone(CLUSTER_API, "Cluster", "shop").await;
    t.looked_again("x").await;
    t.gone(CLUSTER_API, "ClusterClass", V1).await;
}

#[tokio::test]
async fn what_the_chart_no_longer_contains_is_pruned_and_what_must_stay_is_retained() {
    let t = World::new("prune").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let keep = json!({"annotations": {"helm.sh/resource-policy": "keep"}});
    let disabled = json!({"annotations": {"clusterstack.x-k8s.io/prune": "disabled"}});
    let enabled = json!({"annotations": {"clusterstack.x-k8s.io/prune": "enabled"}});
    let other = json!({"labels": {"clusterstack.x-k8s.io/owner-name": "another"}});
    let left = [
        object("ConfigMap", "old", &json!({})),
        object("Secret", "old", &json!({})),
        object("ConfigMap", "kept-by-helm", &keep),
        object("ConfigMap", "kept-by-us", &disabled),
        object("PersistentVolumeClaim", "volume", &json!({})),
        object("PersistentVolumeClaim", "volume-opted-in", &enabled),
        object("ConfigMap", "of-another", &other),
    ];
    leave_behind(&t, "x", &repo.url(), V1, &left).await;
    let _operator = t.operator(&[]);
    t.ready("x", "v1").await;
    for (kind, name) in [("ConfigMap", "old"), ("Secret", "old")] {
        t.gone("v1", kind, name).await;
        t.event("Pruned", &format!("{kind} {}/{name}", t.namespace)).await;
    }
    // The claim's own protection holds it while no controller for claims runs; it is on its way.
    let claim = t.get("v1", "PersistentVolumeClaim", "volume-opted-in").await;
    assert!(claim.is_none_or(|claim| claim["metadata"]["deletionTimestamp"].is_string()), "the claim was not deleted");
    let (release, ()) = t
        .release(V1, "to list what is retained", |release| {
            let status = release.status.clone().unwrap_or_default();
            let mut retained: Vec<&str> = status.retained.iter().map(|row| row.name.as_str()).collect();
            retained.retain(|name| *name != "volume-opted-in");
            retained.sort_unstable();
            check(retained == ["kept-by-helm", "kept-by-us", "volume"], &status.retained)
        })
        .await;
    assert_eq!(release.status.unwrap().resources.len(), 1);
    for (kind, name) in [
        ("ConfigMap", "kept-by-helm"),
        ("ConfigMap", "kept-by-us"),
        ("ConfigMap", "of-another"),
        ("PersistentVolumeClaim", "volume"),
    ] {
        let object = t.get("v1", kind, name).await.unwrap_or_else(|| panic!("{kind} {name} was pruned"));
        assert_eq!(object["metadata"]["deletionTimestamp"], Value::Null, "{kind} {name}");
    }
}

#[tokio::test]
async fn nothing_is_pruned_before_everything_new_is_applied() {
    let t = World::new("prunelast").await;
    let repo = t.repo();
    let bad = "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: [{port: 99999999}]}\n---\n";
    repo.release(V1, &format!("{bad}{SETTINGS}"));
    leave_behind(&t, "x", &repo.url(), V1, &[object("ConfigMap", "old", &json!({}))]).await;
    let _operator = t.operator(&[]);
    t.release(V1, "to have applied the rest", |release| {
        let status = release.status.clone().unwrap_or_default();
        check(!status.ready && status.resources.len() == 2, &status)
    })
    .await;
    t.looked_again("x").await;
    assert!(t.config_map("old").await.is_some());
    t.release(V1, "to remember what waits", |release| {
        let status = release.status.clone().unwrap_or_default();
        check(status.retained.iter().any(|row| row.name == "old"), &status.retained)
    })
    .await;
    // It goes with its release.
    t.delete(clusterstack::api::API_VERSION, "ClusterStack", "x").await;
    t.gone(clusterstack::api::API_VERSION, "ClusterStackRelease", V1).await;
    assert_eq!(t.config_map("old").await, None);
}
