//! The PodTemplateSpec in a provider's template is the API server's own: each field, list and map is of the same kind.

use std::process::Command;

use clusterstack::api::{INFRASTRUCTURE_API_VERSION, custom_resource_definitions};
use http::Request;
use serde_json::{Value, json};

use crate::harness::World;

/// What says how lists and maps are merged.
const KINDS: [&str; 3] = ["x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"];

fn own() -> Value {
    let definitions = custom_resource_definitions();
    let named = definitions.iter().find(|one| one.spec.names.kind == "ProviderClusterStackReleaseTemplate").unwrap();
    let schema = serde_json::to_value(&named.spec.versions[0].schema).unwrap();
    let path = ["spec", "build", "job", "template"].map(|field| format!("/properties/{field}")).concat();
    schema.pointer(&format!("/openAPIV3Schema{path}")).unwrap().clone()
}

/// A schema of the API server without references.
fn resolved(schema: &Value, all: &Value) -> Value {
    let mut found = schema.clone();
    loop {
        let reference = found.get("$ref").or(found.pointer("/allOf/0/$ref")).and_then(Value::as_str).map(str::to_owned);
        let Some(reference) = reference else { return found };
        let mut next = all[reference.rsplit('/').next().unwrap()].clone();
        for kind in KINDS {
            if let Some(value) = found.get(kind) {
                next[kind] = value.clone();
            }
        }
        found = next;
    }
}

fn compare(theirs: &Value, ours: &Value, all: &Value, path: &str, wrong: &mut Vec<String>) {
    let theirs = resolved(theirs, all);
    for kind in KINDS {
        if theirs.get(kind) != ours.get(kind) {
            wrong.push(format!("{path}: {kind} is {:?} there, {:?} here", theirs.get(kind), ours.get(kind)));
        }
    }
    let none = serde_json::Map::new();
    let fields = |schema: &Value| schema["properties"].as_object().unwrap_or(&none).clone();
    let (their_fields, our_fields) = (fields(&theirs), fields(ours));
    for (name, field) in &their_fields {
        match our_fields.get(name) {
            Some(own) => compare(field, own, all, &format!("{path}.{name}"), wrong),
            None => wrong.push(format!("{path}.{name} is missing here")),
        }
    }
    wrong.extend(
        our_fields
            .keys()
            .filter(|name| !their_fields.contains_key(*name))
            .map(|name| format!("{path}.{name} is ours alone")),
    );
    for part in ["items", "additionalProperties"] {
        if theirs[part].is_object() {
            compare(&theirs[part], &ours[part], all, &format!("{path}[]"), wrong);
        }
    }
}

#[tokio::test]
async fn the_pod_template_is_the_api_servers() {
    let t = World::new("podtmpl").await;
    let request = Request::get("/openapi/v3/api/v1").body(Vec::new()).unwrap();
    let text = t.client.request_text(request).await.unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let all = &document["components"]["schemas"];
    let mut wrong = Vec::new();
    compare(&all["io.k8s.api.core.v1.PodTemplateSpec"], &own(), all, "", &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn whatever_a_pod_can_have_is_kept_and_what_it_can_t_have_is_refused() {
    let t = World::new("podkeep").await;
    let template = |pod: Value| {
        json!({
            "apiVersion": INFRASTRUCTURE_API_VERSION, "kind": "ProviderClusterStackReleaseTemplate", "metadata": {"name": "t"},
            "spec": {
                "destination": {"directory": {"path": "/images"}},
                "build": {"executor": "Job", "job": {"template": pod}},
            },
        })
    };
    let pod = json!({
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {
            "serviceAccountName": "builder", "restartPolicy": "Never", "imagePullSecrets": [{"name": "pull"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "kvm", "operator": "Exists"}]}]}}},
            "tolerations": [{"key": "build", "operator": "Exists", "tolerationSeconds": 30}],
            "volumes": [
                {"name": "work", "emptyDir": {"sizeLimit": "40Gi"}},
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 600}}]}},
            ],
            "containers": [
                {"name": "build", "image": "registry.example.org/build:1", "ports": [{"containerPort": 80, "protocol": "UDP"}],
                 "resources": {"limits": {"cpu": 2, "memory": "4Gi"}}, "volumeMounts": [{"name": "work", "mountPath": "/work"}],
                 "livenessProbe": {"httpGet": {"path": "/", "port": "http"}}},
                {"name": "sidecar", "image": "registry.example.org/log:1", "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
            ],
        },
    });
    t.apply(&template(pod.clone())).await;
    let kept = t.get(INFRASTRUCTURE_API_VERSION, "ProviderClusterStackReleaseTemplate", "t").await.unwrap();
    assert_eq!(kept["spec"]["build"]["job"]["template"], pod);
    let mut wrong = pod;
    wrong["spec"]["containers"][0]["image"] = json!(7);
    let api = t.api(INFRASTRUCTURE_API_VERSION, "ProviderClusterStackReleaseTemplate");
    let refused = serde_json::from_value(template(wrong)).unwrap();
    let refused = api.replace("t", &kube::api::PostParams::default(), &refused).await;
    assert!(refused.is_err(), "{refused:?}");
}

/// Plain `kubectl apply` keeps what it applied in an annotation, which holds 256 KiB at most.
#[tokio::test]
async fn plain_kubectl_apply_takes_every_definition() {
    let t = World::new("plainapply").await;
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/crds");
    let applied = Command::new("kubectl")
        .args(["apply", "--dry-run=server", "-f", directory])
        .env("KUBECONFIG", &t.plane.kubeconfig)
        .output();
    let Ok(applied) = applied else { return crate::harness::skipped("kubectl is not installed") };
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
}
