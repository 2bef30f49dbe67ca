//! `clusterstack migrate-from-cso`: an installation of the Go operator is looked at, then replaced, and nothing that it
//! brought changes hands twice.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use clusterstack::api::ConditionType;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use serde_json::{Value, json};

use crate::harness::{GitServer, IMAGE, Node, SETTINGS, SHELL, World, leave_behind};

const V1: &str = "docker-x-1-34-v1";
const NAMESPACE: &str = "clusterstack-system";
const TOKEN: &str = "swordfish";

/// What CSO's manifest brings that concerns us: its Deployment with the Secret of its variables, and a webhook. Nobody answers
/// that, so nobody can change a ClusterStack while it is there.
fn manifest(release_namespace: &str) -> Value {
    let labels = json!({"cluster.x-k8s.io/provider": "cluster-stack-operator"});
    let variable = |name: &str, key: &str| json!({"name": name, "valueFrom": {"secretKeyRef": {"name": "cso-cluster-stack-variables", "key": key}}});
    let container = json!({
        "name": "manager", "image": "registry.example.com/cso:v0.1.0", "args": ["--leader-elect=true", "--log-level=debug"],
        "env": [
            variable("GIT_PROVIDER", "git-provider"), variable("GIT_ORG_NAME", "git-org-name"),
            {"name": "GIT_REPOSITORY_NAME", "valueFrom": {"configMapKeyRef": {"name": "cso-plain", "key": "git-repo-name"}}},
            variable("GIT_ACCESS_TOKEN", "git-access-token"),
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        ],
        "envFrom": [{"configMapRef": {"name": "cso-more"}}],
    });
    let pods = json!({"control-plane": "cso-controller-manager"});
    let webhook = json!({
        "name": "validation.clusterstack.x-k8s.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "failurePolicy": "Fail", "matchPolicy": "Equivalent",
        "clientConfig": {"service": {"name": "cso-webhook-service", "namespace": "cso-system", "path": "/validate"}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": release_namespace}},
        "rules": [{"apiGroups": ["clusterstack.x-k8s.io"], "apiVersions": ["v1alpha1"],
            "operations": ["CREATE", "UPDATE"], "resources": ["clusterstacks"]}],
    });
    let list = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cso-system", "labels": labels}}),
        json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "cso-cluster-stack-variables", "namespace": "cso-system"},
            "stringData": {"git-provider": "github", "git-org-name": "example", "git-access-token": TOKEN}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cso-plain", "namespace": "cso-system"},
            "data": {"git-repo-name": "stacks"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cso-more", "namespace": "cso-system"},
            "data": {"NO_PROXY": "127.0.0.1"}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "cso-controller-manager", "namespace": "cso-system", "labels": labels},
            "spec": {"replicas": 1, "selector": {"matchLabels": pods},
                "template": {"metadata": {"labels": pods}, "spec": {"containers": [container]}}}}),
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "cso-validating-webhook-configuration", "labels": labels}, "webhooks": [webhook]}),
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": list})
}

async fn migrate(t: &World, more: &[&str]) -> (Output, String) {
    let backup = t.dir().join("backup.yaml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_clusterstack"));
    command.args(["migrate-from-cso", "--backup", backup.to_str().unwrap()]).args(more);
    command.env("KUBECONFIG", &t.plane.kubeconfig).env("NO_COLOR", "1");
    let output = tokio::task::spawn_blocking(move || command.output().expect("no program")).await.expect("no output");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, said)
}

#[tokio::test]
async fn one_command_puts_the_operator_in_the_go_operators_place() {
    const TEST: &str = "one_command_puts_the_operator_in_the_go_operators_place";
    let Some(t) = World::installable("migrated", TEST).await else { return };
    let Some(node) = Node::start(t.plane, TEST) else { return };
    let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/crds");
    t.kubectl(&["apply", "--server-side", "-f", crds]);
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let server = GitServer::start(repo.dir().parent().unwrap()).await;
    let url = server.url(&format!("{}/.git", repo.dir().file_name().unwrap().display()));
    let brought = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": V1}, "data": {"color": "blue", "size": "large"},
    });
    leave_behind(&t, "x", &url, V1, &[brought]).await;
    let before = t.config_map(V1).await.unwrap();
    let file = t.dir().join("cso.json");
    std::fs::write(&file, manifest(&t.namespace).to_string()).unwrap();
    t.kubectl(&["apply", "-n", "cso-system", "-f", file.to_str().unwrap()]);

    // Looking changes nothing.
    let (output, said) = migrate(&t, &[]).await;
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 ClusterStacks") && said.contains("1 webhook configurations"), "{said}");
    let deployments: Api<Deployment> = Api::namespaced(t.client.clone(), "cso-system");
    let replicas = async || deployments.get("cso-controller-manager").await.unwrap().spec.unwrap().replicas;
    assert_eq!(replicas().await, Some(1));
    let rows: Value = serde_json::from_slice(&migrate(&t, &["-o", "json"]).await.0.stdout).unwrap();
    assert!(rows.as_array().unwrap().iter().all(|row| row["blocks"] == false), "{rows}");
    assert!(!t.dir().join("backup.yaml").exists());

    let (repository, tag) = IMAGE.rsplit_once(':').unwrap();
    let (repository, tag) = (format!("image.repository={repository}"), format!("image.tag={tag}"));
    // The Git server of the test is on loopback.
    let allow = r#"flags.allow-source=["127.0.0.1"]"#;
    let (output, said) =
        migrate(&t, &["--yes", "--timeout", "90s", "--set", &repository, "--set", &tag, "--set-json", allow]).await;
    assert!(output.status.success(), "{said}");
    for step in [
        "ValidatingWebhookConfiguration cso-validating-webhook-configuration removed",
        "Deployment cso-system/cso-controller-manager stopped",
        "Secret clusterstack-system/cso-cluster-stack-variables copied",
        "ConfigMap clusterstack-system/cso-plain copied",
        "ConfigMap clusterstack-system/cso-more copied",
    ] {
        assert!(said.contains(step), "{step}: {said}");
    }
    assert_eq!(replicas().await, Some(0));
    let secrets: Api<Secret> = Api::namespaced(t.client.clone(), NAMESPACE);
    let copied = secrets.get("cso-cluster-stack-variables").await.unwrap().data.unwrap_or_default();
    assert_eq!(copied["git-access-token"].0, TOKEN.as_bytes());
    let kept = std::fs::read_to_string(t.dir().join("backup.yaml")).unwrap();
    assert!(kept.contains("cso-validating-webhook-configuration") && kept.contains("cso-controller-manager"), "{kept}");
    assert!(!said.contains(TOKEN) && !kept.contains(TOKEN) && !node.logs().contains(TOKEN), "the token is shown");

    let values = std::fs::read_to_string(t.dir().join("clusterstack-values.yaml")).unwrap();
    assert!(
        said.contains("clusterstack-values.yaml") && values.contains("tag:") && !values.contains(TOKEN),
        "{values}"
    );
    assert!(values.contains("cso-more") && !values.contains("POD_NAMESPACE"), "{values}");

    // A second run has nothing to take away, and keeps what the first one wrote.
    let (_, said) = migrate(&t, &[]).await;
    assert!(said.contains("the migration is finished"), "{said}");
    assert_eq!(std::fs::metadata(t.dir().join("backup.yaml")).unwrap().permissions().mode() & 0o777, 0o600);

    // What it brought is the operator's now, as it was. What the Go operator said of it gave no reason.
    t.release_says(V1, ConditionType::Ready, "True", "Ready").await;
    t.ready("x", "v1").await;
    let after = t.config_map(V1).await.unwrap();
    assert_eq!((&after["metadata"]["uid"], &after["data"]), (&before["metadata"]["uid"], &before["data"]));
    let managers: Vec<_> =
        after["metadata"]["managedFields"].as_array().unwrap().iter().map(|entry| &entry["manager"]).collect();
    assert_eq!(managers, ["clusterstack"]);
    let level = t.kubectl(&["get", "configmap", "-n", NAMESPACE, "-o", "jsonpath={.items[*].data.log-level}"]);
    assert!(level.contains("debug"), "its level of logs is taken over: {level}");
    // A change of it is judged by nobody who is gone.
    t.change_stack("x", json!({"spec": {"interval": "20s"}})).await;
}

/// What Helm left of CSO's chart: no label on its webhooks, Helm's names on the CRDs, and a record of the release.
async fn left_by_helm(t: &World) {
    let helm = json!({"meta.helm.sh/release-name": "cso", "meta.helm.sh/release-namespace": "cso-system"});
    let mut manifest = manifest(&t.namespace);
    for object in manifest["items"].as_array_mut().unwrap() {
        if object["kind"] == "ValidatingWebhookConfiguration" {
            object["kind"] = "MutatingWebhookConfiguration".into();
            object["metadata"].as_object_mut().unwrap().remove("labels");
        }
        if object["kind"] == "Deployment" {
            object["metadata"]["annotations"] = helm.clone();
            // It takes its time to end.
            let pod = &mut object["spec"]["template"]["spec"];
            pod["terminationGracePeriodSeconds"] = 8.into();
            pod["containers"][0]["image"] = SHELL.into();
            pod["containers"][0]["command"] = json!(["bash", "-c", "trap : TERM; while :; do sleep 1; done"]);
            pod["containers"][0]["args"] = json!([]);
        }
    }
    manifest["items"].as_array_mut().unwrap().extend([
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "cso-webhook-service", "namespace": "cso-system"},
            "spec": {"ports": [{"port": 443}], "selector": {"control-plane": "cso-controller-manager"}}}),
        json!({"apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1",
            "metadata": {"name": "sh.helm.release.v1.cso.v1", "namespace": "cso-system", "labels": {"owner": "helm", "name": "cso"}}}),
    ]);
    let file = t.dir().join("cso.json");
    std::fs::write(&file, manifest.to_string()).unwrap();
    t.kubectl(&["apply", "-n", "cso-system", "-f", file.to_str().unwrap()]);
    t.kubectl(&["label", "crds", "--overwrite", CRD, OTHER_CRD, "app.kubernetes.io/managed-by=Helm"]);
    for crd in [CRD, OTHER_CRD] {
        let names = ["meta.helm.sh/release-name=cso", "meta.helm.sh/release-namespace=cso-system"];
        t.kubectl(&["annotate", "crd", crd, names[0], names[1]]);
    }
}

const CRD: &str = "clusterstacks.clusterstack.x-k8s.io";
const PODS: &str = "control-plane=cso-controller-manager";
const OTHER_CRD: &str = "clusteraddons.clusterstack.x-k8s.io";

#[tokio::test]
async fn what_helm_installed_is_taken_over_when_helm_has_forgotten_it() {
    const TEST: &str = "what_helm_installed_is_taken_over_when_helm_has_forgotten_it";
    let Some(t) = World::installable("helm", TEST).await else { return };
    let Some(_node) = Node::start(t.plane, TEST) else { return };
    t.kubectl(&["apply", "--server-side", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/crds")]);
    left_by_helm(&t).await;
    let webhooks = || t.kubectl(&["get", "mutatingwebhookconfigurations", "-o", "name"]);
    let replicas = || t.kubectl(&["get", "deployment", "-n", "cso-system", "-o", "jsonpath={.items[*].spec.replicas}"]);

    // Helm would take the CRDs along.
    let (output, said) = migrate(&t, &["--yes"]).await;
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Helm keeps it as release cso of namespace cso-system"), "{said}");
    assert!(said.contains("kubectl delete secret -n cso-system -l owner=helm,name=cso"), "{said}");
    t.kubectl(&["delete", "secret", "-n", "cso-system", "-l", "owner=helm,name=cso"]);

    // One of another release is another's: the dry run says so before anything is touched.
    t.kubectl(&["annotate", "--overwrite", "crd", OTHER_CRD, "meta.helm.sh/release-name=other"]);
    let (output, said) = migrate(&t, &["--yes"]).await;
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing was changed") && said.contains("was installed with Helm"), "{said}");
    assert!(webhooks().contains("cso-validating-webhook-configuration") && replicas() == "1", "{said}");
    assert!(!t.dir().join("backup.yaml").exists());
    t.kubectl(&["annotate", "--overwrite", "crd", OTHER_CRD, "meta.helm.sh/release-name=cso"]);

    let (repository, tag) = IMAGE.rsplit_once(':').unwrap();
    let (repository, tag) = (format!("image.repository={repository}"), format!("image.tag={tag}"));
    t.kubectl(&["wait", "-n", "cso-system", "--for=condition=Ready", "pod", "-l", PODS, "--timeout=60s"]);
    // A pod that is ending works on.
    let (output, said) = migrate(&t, &["--yes", "--timeout", "1s"]).await;
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("MutatingWebhookConfiguration cso-validating-webhook-configuration removed"), "{said}");
    assert!(said.contains("pod cso-controller-manager-") && said.contains(" on node "), "{said}");
    assert!(!said.contains("cso-controller-manager stopped"), "{said}");
    let (_, said) = migrate(&t, &[]).await;
    assert!(said.contains("cso-controller-manager is stopped already"), "{said}");

    let yes = ["--yes", "--timeout", "90s", "--set", &repository, "--set", &tag];
    let (output, said) = migrate(&t, &yes).await;
    assert!(output.status.success(), "{said}");
    assert!(said.contains("Deployment cso-system/cso-controller-manager stopped"), "{said}");
    assert_eq!(t.kubectl(&["get", "pod", "-n", "cso-system", "-l", PODS, "-o", "name"]), "");
    assert!(!webhooks().contains("cso-validating-webhook-configuration") && replicas() == "0", "{said}");
    let kept = std::fs::read_to_string(t.dir().join("backup.yaml")).unwrap();
    assert!(kept.contains("kind: MutatingWebhookConfiguration"), "{kept}");
    let (output, said) = migrate(&t, &yes).await;
    assert!(output.status.success(), "{said}");
    assert_eq!(std::fs::read_to_string(t.dir().join("backup.yaml")).unwrap(), kept);
    std::fs::write(t.dir().join("backup.yaml"), "a: b").unwrap();
    let (output, said) = migrate(&t, &yes).await;
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("is no backup of this command") && said.contains("--backup"), "{said}");
    let taken = t.kubectl(&["get", "crd", CRD, OTHER_CRD, "-o", "yaml"]);
    assert!(!taken.contains("meta.helm.sh") && !taken.contains("managed-by: Helm"), "{taken}");
}
