//! With whose rights a release is applied.

use clusterstack::api::cluster_stack_release::ResourceStatus;
use clusterstack::api::{ConditionType, Reason};
use k8s_openapi::api::core::v1::{Event, Namespace};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::harness::{Operator, Repo, SETTINGS, World, check, skipped, wait_for};

const V1: &str = "docker-x-1-34-v1";

async fn allow_config_maps(t: &World, account: &str) {
    allow(t, account, &["configmaps"]).await;
}

/// A Role of the test's namespace for these resources of the core group and its binding to a ServiceAccount.
pub(crate) async fn allow(t: &World, account: &str, resources: &[&str]) {
    let rules = json!([{"apiGroups": [""], "resources": resources, "verbs": ["*"]}]);
    let rbac = "rbac.authorization.k8s.io/v1";
    t.apply(&json!({"apiVersion": rbac, "kind": "Role", "metadata": {"name": account}, "rules": rules})).await;
    t.apply(&json!({
        "apiVersion": rbac, "kind": "RoleBinding", "metadata": {"name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": t.namespace}],
    }))
    .await;
}

pub(crate) async fn service_account(t: &World, name: &str) {
    t.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})).await;
}

fn repo_with_a_role(t: &World) -> (Repo, String) {
    let role = format!("{}-role", t.namespace);
    t.remove_at_end("rbac.authorization.k8s.io/v1", "ClusterRole", &role);
    let text =
        format!("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: {role}}}\n---\n");
    let repo = t.repo();
    repo.release(V1, &format!("{text}{SETTINGS}"));
    (repo, role)
}

async fn cluster_role(t: &World, name: &str) -> Option<Value> {
    let found = t.cluster_api("rbac.authorization.k8s.io/v1", "ClusterRole").get_opt(name).await.unwrap();
    found.map(|role| serde_json::to_value(role).unwrap())
}

#[tokio::test]
async fn a_service_account_without_rights_applies_nothing_until_it_gets_them() {
    let t = World::new("rights").await;
    service_account(&t, "applier").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({"serviceAccountName": "applier"})).await;
    let (release, ()) = t
        .release(V1, "to be refused", |release| {
            let rows = release.status.clone().unwrap_or_default().resources;
            check(rows.iter().any(|row| row.reason == Some(Reason::Forbidden)), &rows)
        })
        .await;
    let row = &release.status.unwrap().resources[0];
    assert!(row.error.contains(&format!("system:serviceaccount:{}:applier", t.namespace)), "{}", row.error);
    t.stack_says("x", ConditionType::Stalled, "True", "FailedToApplyObjects").await;
    assert!(t.config_map(V1).await.is_none());

    allow_config_maps(&t, "applier").await;
    t.look_again("x").await;
    t.ready("x", "v1").await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    assert!(t.config_map(V1).await.is_none());
}

#[tokio::test]
async fn a_service_account_reaches_as_far_as_its_rights() {
    let t = World::new("reach").await;
    service_account(&t, "applier").await;
    allow_config_maps(&t, "applier").await;
    let (repo, role) = repo_with_a_role(&t);
    let _operator = t.operator(&["--default-service-account", "applier"]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.release(V1, "to have one of two objects", |release| {
        let rows = release.status.clone().unwrap_or_default().resources;
        let of = |kind: &str| rows.iter().find(|row| row.kind == kind).cloned().unwrap_or_default();
        let is =
            of("ClusterRole").reason == Some(Reason::Forbidden) && of("ConfigMap").status == ResourceStatus::Synced;
        check(is, &rows)
    })
    .await;
    assert!(cluster_role(&t, &role).await.is_none());
}

#[tokio::test]
async fn the_flag_allows_cluster_scoped_objects() {
    let t = World::new("wide").await;
    let (repo, role) = repo_with_a_role(&t);
    let _operator = t.operator(&["--allow-cluster-scope"]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let found = cluster_role(&t, &role).await.expect("no ClusterRole");
    assert_eq!(found["metadata"]["labels"]["clusterstack.x-k8s.io/owner-namespace"], t.namespace.as_str());
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    assert!(cluster_role(&t, &role).await.is_none());
}

/// A ClusterStack whose one release is applied by ServiceAccount `applier`, with rights on ConfigMaps.
async fn applied_by_an_account(t: &World) -> (Repo, Operator) {
    service_account(t, "applier").await;
    allow_config_maps(t, "applier").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({"serviceAccountName": "applier"})).await;
    t.ready("x", "v1").await;
    let release = t.releases().get(V1).await.unwrap();
    assert_eq!(release.status.unwrap().applied_as, "applier");
    (repo, operator)
}

#[tokio::test]
async fn a_service_account_that_is_gone_is_waited_for_before_anything_is_deleted() {
    let t = World::new("gone").await;
    let _running = applied_by_an_account(&t).await;
    t.delete("v1", "ServiceAccount", "applier").await;
    t.delete_stack("x").await;
    let message = t.release_says(V1, ConditionType::Ready, "False", "ServiceAccountMissing").await;
    assert!(message.contains(&format!("ServiceAccount {}/applier does not exist", t.namespace)), "{message}");
    // The operator's own rights would have been enough.
    assert!(t.config_map(V1).await.is_some());
    service_account(&t, "applier").await;
    t.stack_gone("x").await;
    assert!(t.config_map(V1).await.is_none());
}

#[tokio::test]
async fn rights_that_are_gone_are_waited_for_also_where_the_clusterstack_is_gone_by_force() {
    let t = World::new("lost").await;
    let _running = applied_by_an_account(&t).await;
    t.delete("rbac.authorization.k8s.io/v1", "RoleBinding", "applier").await;
    // In this order: one that is not deleted is given its finalizer again.
    t.delete_stack("x").await;
    t.change_stack("x", json!({"metadata": {"finalizers": null}})).await;
    if t.plane.collects_garbage() {
        t.stack_gone("x").await;
    }
    t.delete(clusterstack::api::API_VERSION, "ClusterStackRelease", V1).await;
    let message = t.release_says(V1, ConditionType::Ready, "False", "ServiceAccountMissing").await;
    assert!(message.contains("applier lacks rights on ConfigMap") && message.contains("cannot get"), "{message}");
    assert!(t.config_map(V1).await.is_some());
    allow_config_maps(&t, "applier").await;
    t.release_gone(V1).await;
    assert!(t.config_map(V1).await.is_none());
}

#[tokio::test]
async fn a_namespace_that_goes_takes_its_objects_and_those_outside_are_told_as_orphaned() {
    let t = World::new("going").await;
    if !t.plane.collects_garbage() {
        return skipped("no namespace ever goes: this control plane has no controllers");
    }
    let rbac = "rbac.authorization.k8s.io/v1";
    service_account(&t, "applier").await;
    allow_config_maps(&t, "applier").await;
    let (repo, role) = repo_with_a_role(&t);
    let wide = format!("{}-wide", t.namespace);
    for kind in ["ClusterRole", "ClusterRoleBinding"] {
        t.remove_at_end(rbac, kind, &wide);
    }
    for object in [
        json!({"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": wide},
            "rules": [{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["*"]}]}),
        json!({"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": wide},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": wide},
            "subjects": [{"kind": "ServiceAccount", "name": "applier", "namespace": t.namespace}]}),
    ] {
        let api = t.cluster_api(rbac, object["kind"].as_str().unwrap());
        let params = kube::api::PatchParams::apply("e2e").force();
        api.patch(&wide, &params, &kube::api::Patch::Apply(&object)).await.unwrap();
    }
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({"serviceAccountName": "applier"})).await;
    t.ready("x", "v1").await;
    let before = cluster_role(&t, &role).await.expect("no ClusterRole");

    t.delete("v1", "ServiceAccount", "applier").await;
    let from = t.audit_mark().await.unwrap_or_default();
    let namespaces: Api<Namespace> = Api::all(t.client.clone());
    namespaces.delete(&t.namespace, &DeleteParams::background()).await.unwrap();
    wait_for("the namespace to be gone", || async {
        let found = namespaces.get_opt(&t.namespace).await.unwrap();
        let status = found.as_ref().and_then(|namespace| namespace.status.clone());
        check(found.is_none(), status)
    })
    .await;
    let after = cluster_role(&t, &role).await.expect("the ClusterRole was deleted");
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    let events: Api<Event> = Api::namespaced(t.client.clone(), "default");
    wait_for("the event Orphaned", || async {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let is = |event: &Event| {
            event.reason.as_deref() == Some("Orphaned") && event.involved_object.name.as_deref() == Some(&role)
        };
        let of_config_map = all.iter().any(|event| {
            event.reason.as_deref() == Some("Orphaned") && event.involved_object.kind.as_deref() == Some("ConfigMap")
        });
        check(all.iter().any(is) && !of_config_map, &all)
    })
    .await;
    // Nothing was even tried to be made in the namespace.
    let to = t.audit_end();
    let made: Vec<_> = t
        .requests(from, to)
        .into_iter()
        .filter(|request| ["create", "patch"].contains(&request.verb.as_str()))
        .filter(|request| ["configmaps", "secrets", "clusterstackreleases"].contains(&request.resource.as_str()))
        .filter(|request| request.verb == "create" || request.resource == "configmaps")
        .collect();
    assert_eq!(made, []);
}
