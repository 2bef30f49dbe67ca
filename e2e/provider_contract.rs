//! Kinds of other providers, served by a controller of their own, work by the contract; `clusterstack provider-check` tells
//! those that keep it from those that don't.

use std::path::Path;
use std::process::Command;

use clusterstack::api::{ConditionType, PROVIDER_CONTRACT, PROVIDER_CONTRACT_LABEL};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::harness::{OPERATOR, Operator, Repo, SETTINGS, World, check, install, skipped, wait_for};
use crate::shop::Shop;

const V1: &str = "docker-x-1-34-v1";

/// The definition of a kind of the shop, with these fields below spec.
fn definition(group: &str, kind: &str, spec: Value) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    let text = json!({"type": "string"});
    let status = json!({"type": "object", "properties": {
        "ready": {"type": "boolean"}, "failureReason": text, "failureMessage": text,
    }});
    let schema = json!({"type": "object", "properties": {"spec": spec, "status": status}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}"), "labels": {PROVIDER_CONTRACT_LABEL: PROVIDER_CONTRACT}},
        "spec": {"group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": plural}, "versions": [{
            "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": schema},
        }]},
    })
}

fn release_definition(group: &str) -> Value {
    definition(group, "ShopRelease", json!({"type": "object", "properties": {"flavor": {"type": "string"}}}))
}

/// Installs the shop with a template of this flavor: its group.
async fn shop(t: &World, flavor: &str, release: impl FnOnce(&mut Value)) -> String {
    let group = format!("{}.example.com", t.namespace);
    let mut release_kind = release_definition(&group);
    release(&mut release_kind);
    let inner = release_kind.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap().clone();
    let spec = json!({"type": "object", "properties": {
        "template": {"type": "object", "properties": {"spec": inner}},
    }});
    for kind in [release_kind, definition(&group, "ShopReleaseTemplate", spec)] {
        let kind = serde_json::from_value(kind).unwrap();
        t.remove_at_end("apiextensions.k8s.io/v1", "CustomResourceDefinition", &ResourceExt::name_any(&kind));
        install(&t.client, &kind).await;
    }
    t.apply(&json!({
        "apiVersion": format!("{group}/v1"), "kind": "ShopReleaseTemplate", "metadata": {"name": "t"},
        "spec": {"template": {"spec": {"flavor": flavor}}},
    }))
    .await;
    group
}

/// A ClusterRole of the shop, which the operator's rights are made of.
async fn grant(t: &World, group: &str) {
    let rules = json!([
        {"apiGroups": [group], "resources": ["shopreleases"], "verbs": ["get", "list", "watch", "create"]},
        {"apiGroups": [group], "resources": ["shopreleasetemplates"], "verbs": ["get"]},
    ]);
    t.add_rules(&t.namespace, &rules).await;
}

/// Runs `clusterstack provider-check ShopRelease.GROUP`: whether it passed, what it printed, and what it said beside.
async fn provider_check(t: &World, group: &str, flags: &[&str]) -> (bool, String, String) {
    provider_check_by(t, &t.plane.kubeconfig, group, flags).await
}

/// The same by the login of a kubeconfig.
async fn provider_check_by(t: &World, kubeconfig: &Path, group: &str, flags: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clusterstack"));
    command.args(["provider-check", &format!("ShopRelease.{group}"), "-n", &t.namespace]).args(flags);
    command.arg("--kubeconfig").arg(kubeconfig);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// Names of the checks with this outcome.
fn with_outcome(report: &str, outcome: &str) -> Vec<String> {
    let report: Value = serde_json::from_str(report).unwrap_or_else(|error| panic!("{error}: {report}"));
    let checks = report["checks"].as_array().unwrap().iter().filter(|check| check["outcome"] == outcome);
    checks.map(|check| check["name"].as_str().unwrap().to_owned()).collect()
}

/// A ClusterStack with the shop as its provider; the operator and its source live as long as what is returned.
async fn stack(t: &World, group: &str) -> (Operator, Repo) {
    grant(t, group).await;
    let operator = t.operator(&[]);
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let reference = json!({"apiVersion": format!("{group}/v1"), "kind": "ShopReleaseTemplate", "name": "t"});
    // Long, so that what comes quickly comes by a watch.
    let spec = json!({"noProvider": false, "providerRef": reference, "interval": "1h"});
    t.create_stack("x", &repo.url(), spec).await;
    (operator, repo)
}

#[tokio::test]
async fn a_foreign_kind_makes_a_release_ready_and_goes_with_it() {
    let t = World::new("foreign").await;
    let group = shop(&t, "small", |_| {}).await;
    let _running = stack(&t, &group).await;
    let api_version = format!("{group}/v1");
    t.there(&api_version, "ShopRelease", V1).await;
    t.release_says(V1, ConditionType::ProviderClusterStackReleaseReady, "False", "ProcessOngoing").await;
    let shop = Shop::open(&t.client, &t.namespace, &group);
    t.ready("x", "v1").await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    if t.plane.collects_garbage() {
        t.gone(&api_version, "ShopRelease", V1).await;
    } else {
        skipped("the provider's object is not awaited to go: this control plane has no garbage collector");
    }
    drop(shop);
}

#[tokio::test]
async fn what_a_foreign_kind_says_of_its_failure_is_shown_upward_until_it_is_overcome() {
    let t = World::new("foreignfail").await;
    let group = shop(&t, "greedy", |_| {}).await;
    let _shop = Shop::open(&t.client, &t.namespace, &group);
    let _running = stack(&t, &group).await;
    let step = ConditionType::ProviderClusterStackReleaseReady;
    let message = t.release_says(V1, step, "False", "ProviderFailed").await;
    assert!(message.contains("NoQuota: ask the shop for more"), "{message}");
    let message = t.stack_says("x", ConditionType::Stalled, "True", "ProviderFailed").await;
    assert!(message.contains("NoQuota"), "{message}");
    let api_version = format!("{group}/v1");
    t.change("shop", (&api_version, "ShopRelease", V1), json!({"spec": {"flavor": "small"}})).await;
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn a_provider_that_keeps_the_contract_passes_the_check() {
    let t = World::new("checked").await;
    let group = shop(&t, "small", |_| {}).await;
    let _shop = Shop::open(&t.client, &t.namespace, &group);
    grant(&t, &group).await;
    let (passed, text, said) = provider_check(&t, &group, &["--timeout", "60s"]).await;
    assert!(passed && !text.contains('✗') && !text.contains('\u{1b}'), "{text}{said}");
    assert!(text.contains("✓ becomes ready") && text.contains("✓ goes when deleted"), "{text}");
    assert!(text.ends_with("ShopRelease keeps the contract\n"), "{text}");
    let (passed, report, said) = provider_check(&t, &group, &["--timeout", "60s", "-o", "json"]).await;
    assert!(passed, "{report}{said}");
    assert!(with_outcome(&report, "Passed").len() > 10, "{report}");
    assert!(with_outcome(&report, "Failed").is_empty() && with_outcome(&report, "Advised").is_empty(), "{report}");
    // Nothing is left of it.
    assert_eq!(t.kubectl(&["get", &format!("shopreleases.{group}"), "-o", "name"]), "");
    assert!(!t.kubectl(&["get", "configmaps", "-o", "name"]).contains("provider-check"));
}

#[tokio::test]
async fn rights_on_a_foreign_kind_come_by_aggregation() {
    let t = World::new("aggregated").await;
    let group = shop(&t, "small", |_| {}).await;
    let account = format!("{}/{}", OPERATOR.0, OPERATOR.1);
    let flags = ["--without-object", "-o", "json", "--operator", &account];
    let (passed, report, said) = provider_check(&t, &group, &flags).await;
    assert!(!passed, "{report}{said}");
    assert_eq!(with_outcome(&report, "Failed"), ["rights"]);
    grant(&t, &group).await;
    wait_for("the rights to be aggregated", || async {
        let (passed, report, said) = provider_check(&t, &group, &flags).await;
        check(passed, report + &said)
    })
    .await;
}

#[tokio::test]
async fn what_may_not_be_read_is_not_said_to_keep_the_contract() {
    let t = World::new("unread").await;
    let group = shop(&t, "small", |_| {}).await;
    // Who may read the provider's objects, and no definitions.
    let role = format!("reader-{}", t.namespace);
    t.kubectl(&[
        "create",
        "clusterrole",
        &role,
        "--verb=get,list",
        &format!("--resource=shopreleasetemplates.{group}"),
    ]);
    t.kubectl(&["create", "rolebinding", "reader", "--clusterrole", &role, "--user", "reader"]);
    let login = t.kubectl(&["config", "view", "--raw", "-o", "json"]);
    let mut login: Value = serde_json::from_str(&login).unwrap();
    for user in login["users"].as_array_mut().unwrap() {
        user["user"]["as"] = "reader".into();
    }
    let kubeconfig = t.dir().join("reader");
    std::fs::write(&kubeconfig, login.to_string()).unwrap();
    let (passed, text, said) = provider_check_by(&t, &kubeconfig, &group, &["--without-object"]).await;
    assert!(passed, "{text}{said}");
    for check in ["definition", "template definition"] {
        assert!(text.contains(&format!("- {check:<23} it may not be read: ")), "{text}");
    }
    assert!(text.contains("keeps the contract as far as it was looked at; 3 not looked at"), "{text}");
    t.kubectl(&["delete", "clusterrole", &role]);
}

#[tokio::test]
async fn providers_that_break_the_contract_are_told_what_to_do() {
    let t = World::new("unchecked").await;
    let group = shop(&t, "idle", |kind| {
        kind["metadata"]["labels"] = json!({});
        let fields = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
        kind.pointer_mut(fields).unwrap().as_object_mut().unwrap().remove("failureReason");
    })
    .await;
    let _shop = Shop::open(&t.client, &t.namespace, &group);
    let api_version = format!("{group}/v1");
    for (flavor, failed) in [("idle", "becomes ready"), ("rude", "metadata kept"), ("sticky", "goes when deleted")] {
        let change = json!({"spec": {"template": {"spec": {"flavor": flavor}}}});
        t.change("user", (&api_version, "ShopReleaseTemplate", "t"), change).await;
        let (passed, report, said) = provider_check(&t, &group, &["--timeout", "5s", "-o", "json"]).await;
        assert!(!passed, "{report}{said}");
        assert_eq!(with_outcome(&report, "Failed"), ["rights", failed], "{report}");
        assert_eq!(with_outcome(&report, "Advised"), ["status.failureReason", "contract label"], "{report}");
    }
    let held = t.kubectl(&["get", &format!("shopreleases.{group}"), "-o", "name"]);
    let name = held.trim().rsplit_once('/').expect("one that is held").1;
    t.change("user", (&api_version, "ShopRelease", name), json!({"metadata": {"finalizers": null}})).await;
    let (passed, text, _) = provider_check(&t, &group, &["--template", "none"]).await;
    assert!(!passed && text.contains("✗ template  ") && text.contains("no ShopReleaseTemplate none"), "{text}");
    let (passed, text, _) = provider_check(&t, &group, &["--template", "none", "--without-object"]).await;
    assert!(!passed && text.contains("no ShopReleaseTemplate none"), "{text}");
    let (passed, text, _) = provider_check(&t, "none.example.com", &[]).await;
    assert!(!passed && text.contains("✗ served") && text.contains("→ install"), "{text}");
}
