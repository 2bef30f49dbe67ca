//! How addon charts are brought: their definitions, fields that can't be changed, what is served, and what was there before.

use clusterstack::api::condition::Reason;
use clusterstack::api::{API_VERSION, CLUSTER_ADDON_FINALIZER, ClusterAddon, ConditionType, REPLACE};
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use crate::addon::{Workload, addon, addons, look_again, ready, says};
use crate::harness::{CLASS, Repo, World, check, cluster, wait_for};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";

fn stages(more: &str) -> String {
    let stage = format!("[{{name: cni, action: apply{more}}}]");
    format!("addonStages:\n  AfterControlPlaneInitialized: {stage}\n  BeforeClusterUpgrade: {stage}\n")
}

fn write(repo: &Repo, file: &str, text: &str) {
    repo.write(&format!("stacks/docker/x/cluster-addon/cni/{file}"), text);
}

fn api(w: &Workload, version: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(w.client.clone(), namespace, &resource),
        None => Api::all_with(w.client.clone(), &resource),
    }
}

async fn moves(t: &World, class: &str) {
    t.change("user", ("cluster.x-k8s.io/v1beta1", "Cluster", "c"), json!({"spec": {"topology": {"class": class}}}))
        .await;
}

/// Publishes the second release, and moves the Cluster to it.
async fn upgrade(t: &World, repo: &Repo) {
    repo.release(V2, CLASS);
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    moves(t, V2).await;
}

async fn start(t: &World, repo: &Repo, w: &Workload) {
    repo.release(V1, CLASS);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    w.kubeconfig(t, "c").await;
    t.apply(&cluster("c", V1)).await;
}

fn definition(group: &str, kind: &str, columns: &str) -> String {
    let lower = kind.to_lowercase();
    format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: {lower}s.{group}}}\n\
         spec:\n  group: {group}\n  scope: Namespaced\n  names: {{kind: {kind}, plural: {lower}s, shortNames: [{columns}]}}\n  \
         versions: [{{name: v1, served: true, storage: true, schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}}}]\n"
    )
}

async fn short_name(w: &Workload, group: &str, kind: &str) -> Option<String> {
    let name = format!("{}s.{group}", kind.to_lowercase());
    let found = api(w, "apiextensions.k8s.io/v1", "CustomResourceDefinition", None).get_opt(&name).await.unwrap()?;
    found.data.pointer("/spec/names/shortNames/0").and_then(Value::as_str).map(ToOwned::to_owned)
}

#[tokio::test]
async fn definitions_of_charts_come_by_the_policy_of_their_stage() {
    for (policy, after) in [("", "two"), (", crds: Create", "one"), (", crds: Skip", "")] {
        let Some(w) = Workload::new().await else { return };
        let t = World::new("crds").await;
        let group = format!("{}.example.com", w.prefix);
        let repo = t.repo();
        repo.write("stacks/docker/x/clusteraddon.yaml", &stages(policy));
        w.chart(&repo, "cni", &["cni"], "{version: one}");
        write(&repo, "crds/things.yaml", &definition(&group, "Thing", "one"));
        let _operator = t.operator(&[]);
        start(&t, &repo, &w).await;
        ready(&t, "c", V1).await;
        let first = short_name(&w, &group, "Thing").await;
        assert_eq!(first.as_deref(), (!after.is_empty()).then_some("one"), "{policy}");
        write(&repo, "crds/things.yaml", &definition(&group, "Thing", "two"));
        w.chart(&repo, "cni", &["cni"], "{version: two}");
        upgrade(&t, &repo).await;
        let status = ready(&t, "c", V2).await.status.unwrap();
        assert_eq!(short_name(&w, &group, "Thing").await.unwrap_or_default(), after, "{policy}");
        assert_eq!(status.resources.len(), if after.is_empty() { 1 } else { 2 }, "{policy}");
        assert_eq!(status.retained, [], "{policy}");
        remove_definition(&w, &group, "Thing").await;
    }
}

async fn remove_definition(w: &Workload, group: &str, kind: &str) {
    let name = format!("{}s.{group}", kind.to_lowercase());
    let definitions = api(w, "apiextensions.k8s.io/v1", "CustomResourceDefinition", None);
    let _ = definitions.delete(&name, &DeleteParams::default()).await;
}

#[tokio::test]
async fn charts_are_told_what_the_cluster_serves_and_rendered_again_when_that_changes() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("served").await;
    let group = format!("{}.example.com", w.prefix);
    let repo = t.repo();
    repo.write("stacks/docker/x/clusteraddon.yaml", &stages(""));
    let has = |what: &str| format!("{{{{ .Capabilities.APIVersions.Has \"{what}\" | quote }}}}");
    let data = format!(
        "{{core: {}, own: {}, kind: {}, scale: {}}}",
        has("v1/ConfigMap"),
        has(&format!("{group}/v1")),
        has(&format!("{group}/v1/Thing")),
        has("apps/v1/Scale")
    );
    w.chart(&repo, "cni", &["cni"], &data);
    let _operator = t.operator(&[]);
    start(&t, &repo, &w).await;
    ready(&t, "c", V1).await;
    let map = w.map("cni").await.unwrap();
    assert_eq!(map["data"], json!({"core": "true", "own": "false", "kind": "false", "scale": "true"}));
    // A definition comes with the next release, in the same chart: it is told to the templates by the next pass.
    write(&repo, "crds/things.yaml", &definition(&group, "Thing", "one"));
    let thing = format!("apiVersion: {group}/v1\nkind: Thing\nmetadata: {{name: {}-thing}}\n", w.prefix);
    write(&repo, "templates/thing.yaml", &thing);
    upgrade(&t, &repo).await;
    ready(&t, "c", V2).await;
    look_again(&t, "c").await;
    w.has("cni", "own", "true").await;
    w.has("cni", "kind", "true").await;
    let name = format!("{}-thing", w.prefix);
    let things = api(&w, &format!("{group}/v1"), "Thing", Some("kube-system"));
    assert!(things.get_opt(&name).await.unwrap().is_some());
    remove_definition(&w, &group, "Thing").await;
}

#[tokio::test]
async fn a_definition_that_somebody_deletes_takes_its_objects_and_is_told() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("undefined").await;
    let group = format!("{}.example.com", w.prefix);
    let definitions = api(&w, "apiextensions.k8s.io/v1", "CustomResourceDefinition", None);
    let text = definition(&group, "Thing", "one");
    let define = async || {
        let wanted: Value = serde_yaml::from_str(&text).unwrap();
        let name = wanted["metadata"]["name"].as_str().unwrap().to_owned();
        let sent = definitions.patch(&name, &PatchParams::apply("user").force(), &Patch::Apply(&wanted)).await;
        sent.unwrap();
    };
    define().await;
    let repo = t.repo();
    repo.write("stacks/docker/x/clusteraddon.yaml", &stages(""));
    w.chart(&repo, "cni", &["cni"], "{version: one}");
    let thing = format!("apiVersion: {group}/v1\nkind: Thing\nmetadata: {{name: {}-thing}}\n", w.prefix);
    write(&repo, "templates/thing.yaml", &thing);
    let _operator = t.operator(&[]);
    start(&t, &repo, &w).await;
    ready(&t, "c", V1).await;
    remove_definition(&w, &group, "Thing").await;
    let is_told = |addon: &ClusterAddon| {
        let status = addon.status.clone().unwrap_or_default();
        let row = status.resources.iter().find(|row| row.kind == "Thing");
        check(!status.ready && row.is_some_and(|row| row.reason == Some(Reason::NoKindMatch)), &status.resources)
    };
    addon(&t, "c", "to miss the definition", is_told).await;
    define().await;
    ready(&t, "c", V1).await;
    let things = api(&w, &format!("{group}/v1"), "Thing", Some("kube-system"));
    assert!(things.get_opt(&format!("{}-thing", w.prefix)).await.unwrap().is_some());
    remove_definition(&w, &group, "Thing").await;
}

/// A Deployment whose selector is `app: <value>`.
fn deployment(w: &Workload, value: &str, annotations: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {}-d, annotations: {{{annotations}}}}}\nspec:\n  replicas: 0\n  \
         selector: {{matchLabels: {{app: {value}}}}}\n  template:\n    metadata: {{labels: {{app: {value}}}}}\n    \
         spec: {{containers: [{{name: a, image: none}}]}}\n",
        w.prefix
    )
}

#[tokio::test]
async fn a_field_that_cannot_be_changed_is_told_and_made_anew_where_the_stack_says_so() {
    for (stage, annotation) in [("", ""), (", replace: true", ""), ("", "replace")] {
        let Some(w) = Workload::new().await else { return };
        let t = World::new("immutable").await;
        let repo = t.repo();
        repo.write("stacks/docker/x/clusteraddon.yaml", &stages(stage));
        w.chart(&repo, "cni", &["cni"], "{version: one}");
        write(&repo, "templates/deployment.yaml", &deployment(&w, "one", ""));
        let _operator = t.operator(&[]);
        start(&t, &repo, &w).await;
        ready(&t, "c", V1).await;
        let deployments = api(&w, "apps/v1", "Deployment", Some("kube-system"));
        let name = format!("{}-d", w.prefix);
        let before = deployments.get(&name).await.unwrap().uid();
        let annotation = if annotation.is_empty() { String::new() } else { format!("{REPLACE}: 'true'") };
        write(&repo, "templates/deployment.yaml", &deployment(&w, "two", &annotation));
        upgrade(&t, &repo).await;
        if stage.is_empty() && annotation.is_empty() {
            let message = says(&t, "c", ConditionType::HelmChartApplied, "FailedToApplyObjects").await;
            assert!(
                message.contains("spec.selector can't be changed") && message.contains("replace: true"),
                "{message}"
            );
            let status = addons(&t).get("cluster-addon-c").await.unwrap().status.unwrap();
            let reasons: Vec<_> = status.resources.iter().filter_map(|row| row.reason).map(|r| r.as_str()).collect();
            assert_eq!(reasons, ["ImmutableField"]);
            assert_eq!(deployments.get(&name).await.unwrap().uid(), before);
            // Deleted by hand, as it says, it is made anew.
            deployments.delete(&name, &DeleteParams::background()).await.unwrap();
        } else {
            t.event("Replaced", &name).await;
        }
        ready(&t, "c", V2).await;
        let after = deployments.get(&name).await.unwrap();
        assert_ne!(after.uid(), before);
        assert_eq!(after.data.pointer("/spec/selector/matchLabels/app"), Some(&json!("two")));
    }
}

#[tokio::test]
async fn killed_between_the_first_apply_and_its_record_nothing_is_orphaned() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("intent").await;
    let repo = t.repo();
    repo.write("stacks/docker/x/clusteraddon.yaml", &stages(""));
    w.chart(&repo, "cni", &["cni"], "{version: one}");
    repo.release(V1, CLASS);
    let secret = |name: &str| {
        format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: {}-{name}}}\nstringData: {{a: b}}\n", w.prefix)
    };
    // The second release has a kind that none of the others has.
    write(&repo, "templates/secret.yaml", &secret("secret"));
    repo.release(V2, CLASS);
    std::fs::remove_file(repo.dir().join("stacks/docker/x/cluster-addon/cni/templates/secret.yaml")).unwrap();
    w.chart(&repo, "cni", &["cni"], "{version: three}");
    repo.release("docker-x-1-34-v3", CLASS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({"versions": ["v1", "v2", "v3"], "autoSubscribe": false})).await;
    t.ready("x", "v3, v2, v1").await;
    w.kubeconfig(&t, "c").await;
    t.apply(&cluster("c", V1)).await;
    ready(&t, "c", V1).await;
    moves(&t, V2).await;
    let secrets = api(&w, "v1", "Secret", Some("kube-system"));
    let name = format!("{}-secret", w.prefix);
    wait_for("the Secret to be intended or applied", || async {
        let status = addons(&t).get("cluster-addon-c").await.map_err(|e| e.to_string())?.status.unwrap_or_default();
        let is_known = status.resources.iter().any(|row| row.kind == "Secret");
        let is_there = secrets.get_opt(&name).await.map_err(|e| e.to_string())?.is_some();
        // What is there is known: the record comes first.
        assert!(is_known || !is_there || addons_know(&t, "Secret").await);
        check(is_known || is_there, status)
    })
    .await;
    operator.kill();
    moves(&t, "docker-x-1-34-v3").await;
    let _operator = t.operator(&[]);
    ready(&t, "c", "docker-x-1-34-v3").await;
    w.has("cni", "version", "three").await;
    wait_for("the Secret to go", || async {
        let left = secrets.get_opt(&name).await.map_err(|e| e.to_string())?;
        check(left.is_none(), left.map(|secret| secret.name_any()))
    })
    .await;
}

async fn addons_know(t: &World, kind: &str) -> bool {
    let status = addons(t).get("cluster-addon-c").await.unwrap().status.unwrap_or_default();
    status.resources.iter().any(|row| row.kind == kind)
}

#[tokio::test]
async fn what_the_go_operator_left_goes_with_the_first_upgrade() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("migraddon").await;
    let repo = t.repo();
    repo.write("stacks/docker/x/clusteraddon.yaml", &stages(""));
    w.chart(&repo, "cni", &["cni"], "{version: one}");
    let applied = async |manager: &str, name: &str, more: Value| {
        let mut map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": format!("{}-{name}", w.prefix), "labels": {"clusterstack.x-k8s.io/instance": "owned"}},
            "data": {"version": "zero", "gone": "from the chart"},
        });
        json_patch::merge(&mut map, &more);
        let name = map["metadata"]["name"].as_str().unwrap().to_owned();
        let params = PatchParams::apply(manager).force();
        w.maps("kube-system").patch(&name, &params, &Patch::Apply(&map)).await.unwrap();
    };
    applied("kubectl", "cni", json!({})).await;
    applied("kubectl", "old", json!({})).await;
    applied("kubectl", "hook", json!({"metadata": {"annotations": {"helm.sh/hook": "pre-install"}}})).await;
    applied("somebody", "foreign", json!({})).await;
    applied("kubectl", "unmarked", json!({"metadata": {"labels": null}})).await;
    // What it had under way is in its inventory.
    applied("kubectl", "recorded", json!({"metadata": {"labels": null}})).await;

    // The release is there, and nobody looks after the Cluster by then.
    let operator = t.operator(&[]);
    repo.release(V1, CLASS);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    operator.kill();
    let owner = t.apply(&cluster("c", V1)).await;
    let uid = &owner["metadata"]["uid"];
    let addon = json!({
        "apiVersion": API_VERSION, "kind": "ClusterAddon",
        "metadata": {
            "name": "cluster-addon-c", "finalizers": [CLUSTER_ADDON_FINALIZER],
            "annotations": {"ClusterAddonStage": "created"},
            "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster", "name": "c", "uid": uid}],
        },
        "spec": {
            "clusterStack": "docker-x-1-34-v0", "version": "v0",
            "clusterRef": {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster", "name": "c", "namespace": t.namespace},
        },
    });
    addons(&t).create(&PostParams::default(), &serde_json::from_value(addon).unwrap()).await.unwrap();
    let row = json!({
        "version": "v1", "kind": "ConfigMap", "namespace": "kube-system", "name": format!("{}-recorded", w.prefix), "status": "synced",
    });
    let status = json!({"status": {"ready": true, "resources": [row], "stages": [], "conditions": []}});
    addons(&t).patch_status("cluster-addon-c", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    w.kubeconfig(&t, "c").await;
    let _operator = t.operator(&[]);
    ready(&t, "c", V1).await;
    let cni = w.map("cni").await.unwrap();
    assert_eq!(cni["data"], json!({"version": "one"}), "a removed field stays for ever");
    w.gone("old").await;
    w.gone("recorded").await;
    for name in ["hook", "foreign", "unmarked"] {
        assert!(w.map(name).await.is_some(), "{name}");
    }
}
