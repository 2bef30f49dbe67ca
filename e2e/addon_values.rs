//! What the values of addons are made of, layer by layer, and that a change of any of it arrives within seconds.

use clusterstack::api::{API_VERSION, ConditionType};
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use crate::addon::{Workload, ready, says};
use crate::harness::{CLASS, INFRASTRUCTURE, Operator, QUICK, Repo, World, check, cluster, wait_within};

const CLUSTER: (&str, &str, &str) = ("cluster.x-k8s.io/v1beta1", "Cluster", "c");
const ADDON: (&str, &str, &str) = (API_VERSION, "ClusterAddon", "cluster-addon-c");
const STAGES: &str = "allowValues: true\naddonStages:\n  AfterControlPlaneInitialized: [{name: cni, action: apply}]\n";

/// Well below the minute after which a workload cluster is looked at without an event.
async fn soon(w: &Workload, name: &str, key: &str, value: &str) {
    wait_within(QUICK, format!("{name} with {key}={value} within seconds"), || async {
        let map = w.map(name).await.unwrap_or_default();
        check(map.pointer(&format!("/data/{key}")).and_then(Value::as_str) == Some(value), &map)
    })
    .await;
}

async fn values(t: &World, kind: &str, name: &str, key: &str, text: &str) {
    let field = if kind == "Secret" { "stringData" } else { "data" };
    t.apply(&json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, field: {key: text}})).await;
}

async fn start(t: &World, repo: &Repo) -> Operator {
    repo.release("docker-x-1-34-v1", CLASS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    operator
}

const APPLIED: &str = "clusterstack_objects_total{action=\"applied\"}";
const PASSES: &str = "clusterstack_reconciles_total{controller=\"ClusterAddon\",result=\"success\"}";

/// What was applied, in how many passes, when none is under way any more: an object is seen before its pass has counted it.
async fn at_rest(operator: &Operator) -> (f64, f64) {
    let counts = async || (operator.metric(APPLIED).await, operator.metric(PASSES).await);
    loop {
        let before = counts().await;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let after = counts().await;
        if [before.0.to_bits(), before.1.to_bits()] == [after.0.to_bits(), after.1.to_bits()] {
            return after;
        }
    }
}

#[tokio::test]
async fn each_layer_of_values_wins_over_the_one_before_and_a_change_of_it_arrives_within_seconds() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("layers").await;
    let repo = t.repo();
    repo.write("stacks/docker/x/clusteraddon.yaml", STAGES);
    let layers = ["chart", "stack", "map", "secret", "from", "spec"];
    let data: Vec<String> = layers.iter().map(|l| format!("{l}: {{{{ .Values.{l} | quote }}}}")).collect();
    w.chart(&repo, "cni", &["cni"], &format!("{{{}}}", data.join(", ")));
    // Each layer writes over what all those before it wrote.
    let from = |layer: &str| {
        let place = layers.iter().position(|l| *l == layer).unwrap();
        let all: Vec<String> = layers[place..].iter().map(|l| format!("{l}: {layer}")).collect();
        format!("{{{}}}", all.join(", "))
    };
    let dir = "stacks/docker/x/cluster-addon/cni";
    repo.write(&format!("{dir}/values.yaml"), &from("chart"));
    repo.write(&format!("{dir}/overwrite.yaml"), &format!("values: |\n  {}\n", from("stack")));
    let operator = start(&t, &repo).await;
    w.kubeconfig(&t, "c").await;
    values(&t, "ConfigMap", "mine", "values.yaml", &format!("cni: {}", from("map"))).await;
    values(&t, "Secret", "more", "values.yaml", &format!("cni: {}", from("secret"))).await;
    values(&t, "ConfigMap", "other", "prod", &format!("cni: {}", from("from"))).await;
    let mut object = cluster("c", "docker-x-1-34-v1");
    object["metadata"]["annotations"] = json!({clusterstack::api::ADDON_VALUES: "ConfigMap/mine, Secret/more"});
    t.apply(&object).await;
    t.there(ADDON.0, ADDON.1, ADDON.2).await;
    let spec = json!({"spec": {
        "valuesFrom": [
            {"kind": "ConfigMap", "name": "nothing", "optional": true},
            {"kind": "ConfigMap", "name": "other", "key": "prod"},
        ],
        "values": {"cni": {"spec": "spec"}},
    }});
    t.change("user", ADDON, spec).await;
    w.has("cni", "spec", "spec").await;
    ready(&t, "c", "docker-x-1-34-v1").await;
    let expected: serde_json::Map<String, Value> = layers.iter().map(|l| ((*l).to_owned(), json!(l))).collect();
    assert_eq!(w.map("cni").await.unwrap()["data"], Value::Object(expected));

    values(&t, "ConfigMap", "mine", "values.yaml", "cni: {map: edited}").await;
    soon(&w, "cni", "map", "edited").await;
    values(&t, "Secret", "more", "values.yaml", "cni: {secret: edited}").await;
    soon(&w, "cni", "secret", "edited").await;
    values(&t, "ConfigMap", "other", "prod", "cni: {from: edited}").await;
    soon(&w, "cni", "from", "edited").await;
    // One that was optional comes.
    values(&t, "ConfigMap", "nothing", "values.yaml", "cni: {chart: optional}").await;
    soon(&w, "cni", "chart", "optional").await;
    t.delete("v1", "ConfigMap", "nothing").await;
    soon(&w, "cni", "chart", "chart").await;

    // What changes nothing of the objects is looked at, and nothing is written.
    let (applied, passes) = at_rest(&operator).await;
    values(&t, "ConfigMap", "mine", "values.yaml", "cni: {map: edited, unused: true}").await;
    wait_within(QUICK, "a pass", || async { check(operator.metric(PASSES).await > passes, passes) }).await;
    assert_eq!(operator.metric(APPLIED).await.to_bits(), applied.to_bits());
    // Secrets stay where they are.
    let secrets: kube::Api<Secret> = kube::Api::namespaced(t.client.clone(), &t.namespace);
    assert!(secrets.get("more").await.is_ok());

    // What Cluster API keeps of another Cluster is shown to no chart of this one.
    let kept = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
        "metadata": {"name": "d-kubeconfig", "labels": {"cluster.x-k8s.io/cluster-name": "d"}},
        "stringData": {"value": "cni: {from: stolen}"},
    });
    t.apply(&kept).await;
    let named = json!([{"kind": "Secret", "name": "d-kubeconfig", "key": "value"}]);
    t.change("user", ADDON, json!({"spec": {"valuesFrom": named}})).await;
    wait_within(QUICK, "a refusal", || async {
        let message = says(&t, "c", ConditionType::Ready, "ValuesInvalid").await;
        check(message.contains("Secret d-kubeconfig is of type cluster.x-k8s.io/secret"), message)
    })
    .await;
    assert_eq!(w.map("cni").await.unwrap()["data"]["from"], "edited");
}

#[tokio::test]
async fn a_tera_template_sees_the_clusters_objects_and_follows_their_content() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("tera-values").await;
    let repo = t.repo();
    let dir = "stacks/docker/x/cluster-addon";
    repo.write(&format!("{dir}/Chart.yaml"), "apiVersion: v2\nname: docker-x-1-34-cluster-addon\nversion: v0\n");
    repo.write(
        &format!("{dir}/templates/map.yaml"),
        &format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {}-tera}}\ndata: {{tier: {{{{ .Values.tier }}}}, zone: {{{{ .Values.zone }}}}}}\n",
            w.prefix
        ),
    );
    repo.write(
        "stacks/docker/x/cluster-addon-values.yaml.tera",
        "values: |\n  tier: {{ cluster.metadata.labels.tier }}\n  zone: {{ infra_cluster.metadata.labels.zone | upper }}\n",
    );
    let operator = start(&t, &repo).await;
    w.kubeconfig(&t, "c").await;
    let zone = |zone: &str| json!({"apiVersion": INFRASTRUCTURE, "kind": "DockerCluster", "metadata": {"name": "c", "labels": {"zone": zone}}, "spec": {}});
    t.apply(&zone("north")).await;
    let mut object = cluster("c", "docker-x-1-34-v1");
    object["metadata"]["labels"] = json!({"tier": "front"});
    object["spec"]["infrastructureRef"] = json!({"apiVersion": INFRASTRUCTURE, "kind": "DockerCluster", "name": "c"});
    t.apply(&object).await;
    w.has("tera", "zone", "NORTH").await;
    ready(&t, "c", "docker-x-1-34-v1").await;

    t.apply(&zone("south")).await;
    soon(&w, "tera", "zone", "SOUTH").await;
    t.change("user", CLUSTER, json!({"metadata": {"labels": {"tier": "back"}}})).await;
    soon(&w, "tera", "tier", "back").await;

    // Who manages a field is no content: nobody looks.
    ready(&t, "c", "docker-x-1-34-v1").await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let passes = operator.metric(PASSES).await;
    t.apply_as("another", &zone("south")).await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(operator.metric(PASSES).await.to_bits(), passes.to_bits());

    // Who may make Clusters gets no Secret read by calling it an infrastructure.
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "name": "c-kubeconfig"});
    t.change("user", CLUSTER, json!({"spec": {"infrastructureRef": secret}})).await;
    let message = says(&t, "c", ConditionType::Ready, "ValuesInvalid").await;
    assert!(message.contains("Secret c-kubeconfig is of no provider of Cluster API"), "{message}");
}
