//! The provider contract: an object per release from a template, waited for.

use clusterstack::api::ConditionType;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::{Operator, SETTINGS, World, check, install_small_kind, skipped};

const V1: &str = "docker-x-1-34-v1";
const STEP: ConditionType = ConditionType::ProviderClusterStackReleaseReady;

/// A ClusterStack with a provider whose group is the test's own; the operator, and API version of the provider's kinds.
async fn with_provider(t: &World, template: Option<Value>) -> (Operator, String) {
    let group = format!("{}.example.com", t.namespace);
    let api_version = format!("{group}/v1");
    install_small_kind(t, &group, "ShopRelease").await;
    install_small_kind(t, &group, "ShopReleaseTemplate").await;
    if let Some(spec) = template {
        t.apply(
            &json!({"apiVersion": api_version, "kind": "ShopReleaseTemplate", "metadata": {"name": "t"}, "spec": spec}),
        )
        .await;
    }
    let operator = t.operator(&[]);
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let reference = json!({"apiVersion": api_version, "kind": "ShopReleaseTemplate", "name": "t"});
    t.create_stack("x", &repo.url(), json!({"noProvider": false, "providerRef": reference})).await;
    (operator, api_version)
}

async fn set_status(t: &World, api_version: &str, status: Value) {
    let patch = Patch::Merge(json!({"status": status}));
    t.api(api_version, "ShopRelease").patch_status(V1, &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn the_providers_object_is_made_from_its_template_and_waited_for() {
    let t = World::new("provider").await;
    let template = json!({"template": {"metadata": {"labels": {"tier": "gold"}}, "spec": {"flavor": "m1"}}});
    let (_operator, api_version) = with_provider(&t, Some(template)).await;

    let object = t.there(&api_version, "ShopRelease", V1).await;
    assert_eq!(object["spec"]["flavor"], "m1");
    assert_eq!(object["metadata"]["labels"]["tier"], "gold");
    let owner = &object["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["name"]), (&json!("ClusterStackRelease"), &json!(V1)));
    let reference = t
        .release(V1, "to name it", |release| release.spec.provider_ref.clone().ok_or_else(|| "nothing".to_owned()))
        .await
        .1;
    assert_eq!((reference.kind.as_deref(), reference.name.as_deref()), (Some("ShopRelease"), Some(V1)));

    t.release_says(V1, STEP, "False", "ProcessOngoing").await;
    t.release_says(V1, ConditionType::Ready, "False", "ProcessOngoing").await;
    assert!(t.config_map(V1).await.is_none(), "applied before the provider was ready");
    t.stack("x", "to show the phase", |stack| {
        let summary = stack.status.clone().unwrap_or_default().summary;
        check(summary.iter().any(|line| line.phase == "provider-specific work"), &summary)
    })
    .await;

    set_status(&t, &api_version, json!({"ready": true})).await;
    t.ready("x", "v1").await;
    t.release_says(V1, STEP, "True", "Succeeded").await;
    assert!(t.config_map(V1).await.is_some());

    t.delete_stack("x").await;
    t.stack_gone("x").await;
    if t.plane.collects_garbage() {
        t.gone(&api_version, "ShopRelease", V1).await;
    } else {
        skipped("the provider's object is not awaited to go: this control plane has no garbage collector");
    }
}

#[tokio::test]
async fn a_failure_of_the_provider_is_shown_upward_and_can_be_overcome() {
    let t = World::new("provfail").await;
    let (_operator, api_version) = with_provider(&t, Some(json!({"template": {"spec": {}}}))).await;
    t.there(&api_version, "ShopRelease", V1).await;
    set_status(&t, &api_version, json!({"ready": false, "failureReason": "NoQuota", "failureMessage": "ask for more"}))
        .await;
    let message = t.release_says(V1, STEP, "False", "ProviderFailed").await;
    assert!(message.contains("NoQuota") && message.contains("ask for more"), "{message}");
    let message = t.stack_says("x", ConditionType::Stalled, "True", "ProviderFailed").await;
    assert!(message.contains("NoQuota"), "{message}");
    set_status(&t, &api_version, json!({"ready": true, "failureReason": null, "failureMessage": null})).await;
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn a_missing_template_is_told_and_waited_for() {
    let t = World::new("provtmpl").await;
    let (_operator, api_version) = with_provider(&t, None).await;
    let message = t.release_says(V1, STEP, "False", "ProviderTemplateNotFound").await;
    assert!(message.contains(&format!("{}/t", t.namespace)), "{message}");
    t.apply(&json!({
        "apiVersion": api_version, "kind": "ShopReleaseTemplate", "metadata": {"name": "t"},
        "spec": {"template": {"spec": {}}},
    }))
    .await;
    t.look_again("x").await;
    t.there(&api_version, "ShopRelease", V1).await;
    set_status(&t, &api_version, json!({"ready": true})).await;
    t.ready("x", "v1").await;
}
