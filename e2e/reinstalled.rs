//! `clusterstack install` and `uninstall` where something of before is in the way, on a control plane without a Node: pods never
//! get ready there.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use clusterstack::core::ownership::Owner;
use serde_json::{Value, json};

use crate::harness::{World, check, wait_for};
use crate::installed::{NAMESPACE, clusterstack, succeeds};

const DEFINITION: &str = "clusterstacks.clusterstack.x-k8s.io";

/// What it says on standard error where it fails.
async fn fails(t: &World, args: &[&str]) -> String {
    let output = clusterstack(t, args).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
    said
}

fn apply(t: &World, object: &Value) {
    let file = t.dir().join("object.json");
    std::fs::write(&file, object.to_string()).unwrap();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or(&t.namespace);
    t.kubectl(&["apply", "-n", namespace, "-f", file.to_str().unwrap()]);
}

#[tokio::test]
async fn what_is_there_stays_or_is_waited_for_or_taken_over() {
    let Some(t) = World::installable("reinstalled", "what is there stays").await else { return };
    let rows = succeeds(&t, &["install", "--dry-run=server", "-o", "json"]).await;
    let rows: Vec<Value> = serde_json::from_str(&rows).unwrap();
    let of = |kind: &str| rows.iter().find(|row| row["kind"] == kind).unwrap_or_else(|| panic!("no {kind}: {rows:?}"));
    assert_eq!(of("Deployment")["change"], "created", "{rows:?}");
    succeeds(&t, &["install", "--no-wait"]).await;
    a_form_that_does_not_get_ready_replaces_nothing(&t).await;
    a_definition_that_goes_is_waited_for(&t).await;
    pods_with_tokens_of_an_account_that_is_gone_are_restarted(&t).await;
    what_flux_applied_is_left_to_flux(&t).await;
    a_line_that_can_not_be_written_stops_nothing(&t).await;
    one_that_is_alone_is_exchanged_by_itself(&t).await;
    no_key_is_left_behind(&t).await;
    what_somebody_made_by_hand_stays(&t).await;
    what_helm_left_behind_is_taken_over(&t).await;
}

async fn a_form_that_does_not_get_ready_replaces_nothing(t: &World) {
    let said = fails(t, &["install", "--set", "storage.size=1Gi", "--timeout", "1s"]).await;
    assert!(said.contains("StatefulSet clusterstack-system/clusterstack: "), "{said}");
    assert!(said.contains("Deployment clusterstack-system/clusterstack, the earlier form, stays"), "{said}");
    let left = || t.kubectl(&["get", "deployments,statefulsets", "-n", NAMESPACE, "-o", "name"]);
    assert_eq!(left(), "deployment.apps/clusterstack\nstatefulset.apps/clusterstack\n");
    let said = succeeds(t, &["install", "--set", "storage.size=1Gi", "--no-wait"]).await;
    assert!(said.contains("Deployment clusterstack-system/clusterstack removed"), "{said}");
    wait_for("the earlier form to be gone", || async {
        let left = left();
        check(left == "statefulset.apps/clusterstack\n", left)
    })
    .await;
}

async fn a_definition_that_goes_is_waited_for(t: &World) {
    let uid = || t.kubectl(&["get", "crd", DEFINITION, "-o", "jsonpath={.metadata.uid}"]);
    let before = uid();
    let finalizers = |list: Value| {
        let patch = json!({"metadata": {"finalizers": list}}).to_string();
        t.kubectl(&["patch", "crd", DEFINITION, "--type=merge", "-p", &patch]);
    };
    finalizers(json!(["example.com/hold"]));
    t.kubectl(&["delete", "crd", DEFINITION, "--wait=false"]);
    let doctor = clusterstack(t, &["doctor", "-o", "json"]).await;
    let found: Vec<Value> = serde_json::from_slice(&doctor.stdout).unwrap();
    let is_told = |one: &Value| {
        one["check"] == "definitions"
            && one["grade"] == "bad"
            && one["message"].as_str().unwrap().contains("being deleted")
    };
    assert!(found.iter().any(is_told), "{found:#?}");
    let said = fails(t, &["install", "--no-wait", "--timeout", "1s"]).await;
    assert!(said.contains(&format!("{DEFINITION} is being deleted, and after ")), "{said}");

    let mut command = Command::new(env!("CARGO_BIN_EXE_clusterstack"));
    command.args(["install", "--no-wait"]).env("KUBECONFIG", &t.plane.kubeconfig).stdout(Stdio::null());
    let mut waits = command.spawn().unwrap();
    finalizers(Value::Null);
    let code = tokio::task::spawn_blocking(move || waits.wait()).await.unwrap().unwrap();
    assert!(code.success());
    assert_ne!(uid(), before);
    assert_eq!(t.kubectl(&["get", "crd", DEFINITION, "-o", "jsonpath={.metadata.deletionTimestamp}"]), "");
}

/// What doctor finds, by its check and a part of its message.
async fn finds(t: &World, check: &str, part: &str) {
    let doctor = clusterstack(t, &["doctor", "-o", "json"]).await;
    let found: Vec<Value> = serde_json::from_slice(&doctor.stdout).unwrap();
    let is_it = |one: &Value| one["check"] == check && one["message"].as_str().unwrap().contains(part);
    assert!(found.iter().any(is_it), "{part}: {found:#?}");
}

const INSTALL: &[&str] = &["install", "--no-wait"];

async fn pods_with_tokens_of_an_account_that_is_gone_are_restarted(t: &World) {
    succeeds(t, INSTALL).await;
    let restarted = || {
        let path = r"jsonpath={.spec.template.metadata.annotations.kubectl\.kubernetes\.io/restartedAt}";
        t.kubectl(&["get", "deployment", "clusterstack", "-n", NAMESPACE, "-o", path])
    };
    assert_eq!(restarted(), "");
    t.kubectl(&["delete", "serviceaccount", "clusterstack", "-n", NAMESPACE]);
    finds(t, "rights", "works as ServiceAccount clusterstack-system/clusterstack, which is not there").await;
    let told = "Deployment clusterstack-system/clusterstack restarted, for its ServiceAccount is new";
    let said = succeeds(t, &["install", "--dry-run=server"]).await;
    assert!(said.contains(told) && restarted().is_empty(), "{said}");
    let said = succeeds(t, INSTALL).await;
    assert!(said.contains(told), "{said}");
    let at = restarted();
    assert_ne!(at, "");
    let said = succeeds(t, INSTALL).await;
    assert!(!said.contains("restarted") && restarted() == at, "{said}");
}

async fn what_flux_applied_is_left_to_flux(t: &World) {
    let label = |value: &str| t.kubectl(&["label", "deployment", "clusterstack", "-n", NAMESPACE, value]);
    label("kustomize.toolkit.fluxcd.io/name=cs");
    for args in [INSTALL, &["uninstall"], &["uninstall", "--dry-run"]] {
        let said = fails(t, args).await;
        let told = "Deployment clusterstack-system/clusterstack was installed with Flux (Kustomization)";
        assert!(said.contains(told), "{said}");
        assert_eq!(said.contains("remove it there"), args[0] == "uninstall", "{said}");
    }
    assert_ne!(t.kubectl(&["get", "service", "clusterstack-metrics", "-n", NAMESPACE, "-o", "name"]), "");
    label("kustomize.toolkit.fluxcd.io/name-");
}

async fn a_line_that_can_not_be_written_stops_nothing(t: &World) {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_clusterstack"));
    command.args(INSTALL).args(["--set", "replicas=1"]).env("KUBECONFIG", &t.plane.kubeconfig);
    command.stdout(full()).stderr(full());
    let status = tokio::task::spawn_blocking(move || command.status()).await.unwrap().unwrap();
    assert!(status.success(), "{status}");
    let path = "jsonpath={.spec.replicas}";
    assert_eq!(t.kubectl(&["get", "deployment", "clusterstack", "-n", NAMESPACE, "-o", path]), "1");
}

async fn one_that_is_alone_is_exchanged_by_itself(t: &World) {
    let strategy = || {
        let path = "jsonpath={.spec.strategy.type}";
        t.kubectl(&["get", "deployment", "clusterstack", "-n", NAMESPACE, "-o", path])
    };
    let alone = ["install", "--no-wait", "--set", "replicas=1,flags.leader-elect=false"];
    succeeds(t, &["install", "--no-wait"]).await;
    assert_eq!(strategy(), "RollingUpdate");
    succeeds(t, &alone).await;
    assert_eq!(strategy(), "Recreate");
    let said = succeeds(t, &alone).await;
    assert!(said.contains("Deployment clusterstack-system/clusterstack unchanged"), "{said}");
    let none = succeeds(t, &["install", "--set", "replicas=0", "--timeout", "30s"]).await;
    assert!(!none.contains("the operator runs") && none.contains("is to have no replica"), "{none}");
    assert_eq!(strategy(), "RollingUpdate");
}

/// Leases and words of replicas: one that died, one that gave its Lease back, one of another namespace.
fn left_by_replicas(t: &World) {
    for (name, namespace, holder) in [("dead", NAMESPACE, "a"), ("back", NAMESPACE, ""), ("other", &*t.namespace, "a")]
    {
        let member = json!({"clusterstack.x-k8s.io/member": "true"});
        let renewed = "2026-01-01T00:00:00.000000Z";
        apply(
            t,
            &json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": name, "namespace": namespace, "labels": member},
                "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed},
            }),
        );
        apply(
            t,
            &json!({
                "apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "OperatorShard", "metadata": {"name": name},
                "spec": {"leaseNamespace": namespace, "identity": name},
            }),
        );
    }
}

async fn no_key_is_left_behind(t: &World) {
    let ours = json!({"app.kubernetes.io/managed-by": "clusterstack"});
    let secret = |name: &str, labels: &Value| {
        let metadata = json!({"name": name, "namespace": NAMESPACE, "labels": labels});
        apply(t, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata}));
    };
    secret("clusterstack-hook-certificate", &ours);
    secret("clusterstack-webhook-certificate", &ours);
    secret("clusterstack-team-webhook-certificate", &ours);
    secret("theirs-hook-certificate", &json!({}));
    // A release brought it.
    let applied = Owner { kind: "ClusterStackRelease".into(), namespace: NAMESPACE.into(), name: "r".into() };
    secret("capi-webhook-certificate", &json!(BTreeMap::from(applied.labels())));
    // One that is reached by a URL is another operator's.
    apply(
        t,
        &json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "clusterstack-team", "labels": ours},
            "webhooks": [{"name": "a.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "failurePolicy": "Ignore", "clientConfig": {"url": "https://a.example.com/"}}],
        }),
    );
    let secrets = || t.kubectl(&["get", "secrets", "-n", NAMESPACE, "-o", "jsonpath={.items[*].metadata.name}"]);
    let before = secrets();
    left_by_replicas(t);
    let traces = || t.kubectl(&["get", "operatorshards", "-o", "name"]);
    let all = traces();
    let said = succeeds(t, &["uninstall", "--dry-run"]).await;
    assert!(said.contains("OperatorShard dead removed (server dry run)"), "{said}");
    assert_eq!((secrets(), traces()), (before, all));
    let output = clusterstack(t, &["uninstall"]).await;
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}");
    assert!(told.contains("waiting: Leases that were not given back, until nobody acts by them: dead"), "{told}");
    for gone in ["Lease clusterstack-system/dead", "Lease clusterstack-system/back", "OperatorShard dead"] {
        assert!(said.contains(&format!("{gone} removed")), "{gone}: {said}");
    }
    assert_eq!(traces(), "operatorshard.clusterstack.x-k8s.io/other\n");
    let leases = t.kubectl(&["get", "leases", "-A", "-l", "clusterstack.x-k8s.io/member", "-o", "name"]);
    assert_eq!(leases, "lease.coordination.k8s.io/other\n");
    t.kubectl(&["delete", "operatorshard", "other"]);
    // They ended before what they need for it went.
    let at = |what: &str| said.find(what).unwrap_or_else(|| panic!("no {what}: {said}"));
    assert!(at("Deployment clusterstack-system/clusterstack removed") < at("ServiceAccount "), "{said}");
    assert!(said.contains("Secret clusterstack-system/clusterstack-hook-certificate removed"), "{said}");
    assert_eq!(secrets(), "capi-webhook-certificate clusterstack-team-webhook-certificate theirs-hook-certificate");
    assert!(fails(t, &["uninstall", "-n", "No_Name"]).await.contains("is no name of a namespace"));
}

async fn what_somebody_made_by_hand_stays(t: &World) {
    let labels = json!({"app": "mine"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "x", "image": "x"}]}});
    apply(
        t,
        &json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "clusterstack", "namespace": NAMESPACE},
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
        }),
    );
    let said = fails(t, &["install", "--no-wait"]).await;
    assert!(said.contains("nothing was changed") && said.contains("spec.selector can't be changed"), "{said}");
    assert!(said.contains("--set fullnameOverride=NAME") && !said.contains("kubectl delete"), "{said}");
    t.kubectl(&["delete", "deployment", "clusterstack", "-n", NAMESPACE]);
}

async fn what_helm_left_behind_is_taken_over(t: &World) {
    // As the chart's CRDs are after `helm uninstall`.
    let names = t.kubectl(&["get", "crds", "-l", "app.kubernetes.io/managed-by=clusterstack-install", "-o", "name"]);
    let names: Vec<&str> = names.lines().collect();
    assert!(names.iter().any(|name| name.ends_with(DEFINITION)), "{names:?}");
    let change = |verb: &str, changes: &[&str]| {
        t.kubectl(&[&[verb, "--overwrite"], &names[..], changes].concat());
    };
    change("label", &["app.kubernetes.io/managed-by=Helm", "clusterstack.x-k8s.io/installed-in-"]);
    let namespace = format!("meta.helm.sh/release-namespace={}", t.namespace);
    change("annotate", &["helm.sh/resource-policy=keep", "meta.helm.sh/release-name=cs", &namespace]);
    // As long as Helm knows the release.
    apply(
        t,
        &json!({
            "apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1",
            "metadata": {"name": "sh.helm.release.v1.cs.v1", "namespace": t.namespace, "labels": {"owner": "helm", "name": "cs"}},
        }),
    );
    let said = fails(t, &["install", "--no-wait"]).await;
    assert!(said.contains(&format!("was installed with Helm, as release cs of namespace {}", t.namespace)), "{said}");
    assert!(said.contains("nothing was changed") && !said.contains("API server would refuse"), "{said}");
    assert!(said.contains(&format!("helm uninstall cs -n {}", t.namespace)), "{said}");
    t.kubectl(&["delete", "secret", "sh.helm.release.v1.cs.v1"]);
    succeeds(t, &["install", "--no-wait"]).await;
    let definition = t.kubectl(&["get", "crd", DEFINITION, "-o", "json"]);
    let definition: Value = serde_json::from_str(&definition).unwrap();
    let metadata = &definition["metadata"];
    assert_eq!(metadata["labels"]["app.kubernetes.io/managed-by"], "clusterstack-install", "{metadata}");
    assert_eq!(metadata["annotations"]["meta.helm.sh/release-name"], Value::Null, "{metadata}");
    assert_eq!(metadata["annotations"]["helm.sh/resource-policy"], "keep", "{metadata}");
}
