//! With whose rights a release is applied.

use clusterstack::api::cluster_stack_release::ResourceStatus;
use clusterstack::api::{ConditionType, Reason};
use serde_json::{Value, json};

use crate::harness::{Repo, SETTINGS, World, check};

const V1: &str = "docker-x-1-34-v1";

/// A Role of the test's namespace for configmaps and its binding to a ServiceAccount.
async fn allow_config_maps(t: &World, account: &str) {
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]);
    let rbac = "rbac.authorization.k8s.io/v1";
    t.apply(&json!({"apiVersion": rbac, "kind": "Role", "metadata": {"name": account}, "rules": rules})).await;
    t.apply(&json!({
        "apiVersion": rbac, "kind": "RoleBinding", "metadata": {"name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": t.namespace}],
    }))
    .await;
}

async fn service_account(t: &World, name: &str) {
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
