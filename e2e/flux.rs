//! A stack whose addons Flux holds: the release brings Flux's objects and waits for them, or lets an addon go that Flux takes
//! over. Flux's controllers are played: what they write, as whom, is theirs.

use clusterstack::api::ConditionType;
use clusterstack::api::cluster_addon::{StagePhase, StageStatus};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde_json::json;

use crate::addon::{Workload, addon, look_again, ready, says};
use crate::harness::{CLASS, CLUSTER_API, World, check, cluster};
use crate::upgrade::topology_reconciled;

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";
const HELM_CONTROLLER: &str = "helm-controller";
/// Of Flux's definition what concerns us.
const DEFINITION: &str = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: helmreleases.helm.toolkit.fluxcd.io}
spec:
  group: helm.toolkit.fluxcd.io
  names: {kind: HelmRelease, listKind: HelmReleaseList, plural: helmreleases, singular: helmrelease}
  scope: Namespaced
  versions:
  - name: v2
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

fn stages(prefix: &str) -> String {
    format!(
        "addonStages:
  AfterControlPlaneInitialized:
    - {{name: flux, action: apply}}
    - name: ingress
      action: apply
      waitForPostCondition:
        objects:
          - {{key: ingress, apiVersion: helm.toolkit.fluxcd.io/v2, kind: HelmRelease, name: {prefix}-ingress, namespace: kube-system}}
        conditions: ingress.status.conditions.exists(c, c.type == \"Ready\" && c.status == \"True\")
    - {{name: last, action: apply}}
"
    )
}

/// What the helm-controller says of a HelmRelease.
async fn helm_controller_says(releases: &Api<DynamicObject>, name: &str, status: &str, reason: &str, message: &str) {
    let generation = releases.get(name).await.unwrap().metadata.generation;
    let condition = json!({
        "type": "Ready", "status": status, "reason": reason, "message": message,
        "observedGeneration": generation, "lastTransitionTime": "2025-01-01T00:00:00Z",
    });
    let params = PatchParams { field_manager: Some(HELM_CONTROLLER.to_owned()), ..PatchParams::default() };
    let patch = json!({"status": {"observedGeneration": generation, "conditions": [condition]}});
    releases.patch_status(name, &params, &Patch::Merge(patch)).await.unwrap();
}

#[tokio::test]
async fn flux_installs_what_a_stage_brings_and_takes_over_what_a_release_lets_go() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("flux").await;
    let repo = t.repo();
    let ingress = format!("{}-ingress", w.prefix);
    repo.write("stacks/docker/x/clusteraddon.yaml", &stages(&w.prefix));
    for chart in ["flux", "ingress", "last"] {
        w.chart(&repo, chart, &[chart], "{version: one}");
    }
    repo.write("stacks/docker/x/cluster-addon/flux/crds/helmreleases.yaml", DEFINITION);
    repo.write(
        "stacks/docker/x/cluster-addon/ingress/templates/release.yaml",
        &format!(
            "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {{name: {ingress}}}\n\
             spec: {{interval: 10m, chart: {{spec: {{chart: ingress-nginx, version: 4.x}}}}}}\n"
        ),
    );
    repo.release(V1, CLASS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    w.kubeconfig(&t, "c").await;
    t.apply(&cluster("c", V1)).await;

    // The stage waits for what Flux makes of it.
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("helm.toolkit.fluxcd.io", "v2", "HelmRelease"));
    let releases: Api<DynamicObject> = Api::namespaced_with(w.client.clone(), "kube-system", &resource);
    addon(&t, "c", "that waits for Flux", |addon| {
        let stages = addon.status.as_ref().map(|status| status.stages.clone()).unwrap_or_default();
        let waits = |stage: &StageStatus| stage.name == "ingress" && stage.phase == StagePhase::WaitingForPostCondition;
        check(stages.iter().any(waits), &stages)
    })
    .await;
    assert!(w.map("last").await.is_none(), "the next stage did not wait");
    // Flux begins with a finalizer of its own.
    let params = PatchParams { field_manager: Some(HELM_CONTROLLER.to_owned()), ..PatchParams::default() };
    let finalizers = json!({"metadata": {"finalizers": ["finalizers.fluxcd.io"]}});
    releases.patch(&ingress, &params, &Patch::Merge(finalizers)).await.unwrap();
    helm_controller_says(&releases, &ingress, "True", "InstallSucceeded", "installed").await;
    ready(&t, "c", V1).await;
    w.has("last", "version", "one").await;
    look_again(&t, "c").await;
    let held = releases.get(&ingress).await.unwrap();
    assert_eq!(held.metadata.finalizers.as_deref(), Some(&["finalizers.fluxcd.io".to_owned()][..]));

    // Its health counts.
    helm_controller_says(&releases, &ingress, "False", "UpgradeFailed", "the image is not there").await;
    look_again(&t, "c").await;
    let message = says(&t, "c", ConditionType::Ready, "ObjectsNotHealthy").await;
    assert!(message.contains(&ingress) && message.contains("UpgradeFailed: the image is not there"), "{message}");
    helm_controller_says(&releases, &ingress, "True", "UpgradeSucceeded", "upgraded").await;
    look_again(&t, "c").await;
    ready(&t, "c", V1).await;

    // An addon of the release is handed over to Flux: it stays where it is all the time.
    let map = format!("{}-last", w.prefix);
    let maps = w.maps("kube-system");
    let uid = maps.get(&map).await.unwrap().metadata.uid;
    let keep = json!({"metadata": {"annotations": {"clusterstack.x-k8s.io/prune": "disabled"}}});
    maps.patch(&map, &PatchParams::default(), &Patch::Merge(keep)).await.unwrap();
    repo.write(
        "stacks/docker/x/clusteraddon.yaml",
        &stages(&w.prefix).replace("    - {name: last, action: apply}\n", ""),
    );
    repo.release(V2, CLASS);
    t.look_again("x").await;
    t.release_ready(V2).await;
    t.change("user", (CLUSTER_API, "Cluster", "c"), json!({"spec": {"topology": {"class": V2}}})).await;
    topology_reconciled(&t, "c").await;
    let after = ready(&t, "c", V2).await;
    let retained: Vec<_> = after.status.unwrap().retained.into_iter().map(|row| row.name).collect();
    assert_eq!(retained, [map.as_str()]);
    let taken = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": map, "labels": {"helm.toolkit.fluxcd.io/name": "last"}}, "data": {"version": "of Flux"},
    });
    maps.patch(&map, &PatchParams::apply(HELM_CONTROLLER).force(), &Patch::Apply(&taken)).await.unwrap();
    look_again(&t, "c").await;
    ready(&t, "c", V2).await;
    w.has("last", "version", "of Flux").await;
    assert_eq!(maps.get(&map).await.unwrap().metadata.uid, uid, "it was made anew");
}
