//! `clusterstack install` on a control plane of its own, with a Node that runs the pods: from nothing to a ClusterStack that
//! is ready, scaled, upgraded, taken away.

use std::process::{Command, Output};

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::harness::{CLASS, GitServer, IMAGE, Node, World, check, wait_for};

pub(super) const NAMESPACE: &str = "clusterstack-system";
const RELEASE: &str = "docker-x-1-34-v1";

/// The program with the administrator's kubeconfig.
pub(super) async fn clusterstack(t: &World, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clusterstack"));
    command.args(args).env("KUBECONFIG", &t.plane.kubeconfig).env("NO_COLOR", "1");
    tokio::task::spawn_blocking(move || command.output().expect("no program")).await.expect("no output")
}

pub(super) async fn succeeds(t: &World, args: &[&str]) -> String {
    let output = clusterstack(t, args).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn install(t: &World, more: &[&str]) -> String {
    let (repository, tag) = IMAGE.rsplit_once(':').unwrap();
    let (repository, tag) = (format!("image.repository={repository}"), format!("image.tag={tag}"));
    // The Git server of the test is on loopback.
    let mut args =
        vec!["install", "--set", &repository, "--set", &tag, "--set-json", r#"flags.allow-source=["127.0.0.1"]"#];
    args.extend(more);
    succeeds(t, &args).await
}

/// The replicas that are ready, by `clusterstack shards`.
async fn shards(t: &World) -> Vec<String> {
    let rows: Vec<Value> = serde_json::from_str(&succeeds(t, &["shards", "-o", "json"]).await).unwrap();
    rows.iter()
        .filter(|row| row["ready"] == true)
        .map(|row| row["name"].as_str().unwrap_or_default().to_owned())
        .collect()
}

async fn share_by(t: &World, replicas: usize) {
    wait_for(format!("{replicas} replicas to share"), || async {
        let shards = shards(t).await;
        if shards.len() == replicas { Ok(()) } else { Err(format!("{shards:?}")) }
    })
    .await;
}

#[tokio::test]
async fn one_command_installs_it_and_it_is_scaled_upgraded_and_taken_away() {
    let Some(t) = World::installable("installed", "one command installs it").await else { return };
    let Some(node) = Node::start(t.plane, "one command installs it") else { return };
    let repo = t.repo();
    repo.release(RELEASE, CLASS);
    let server = GitServer::start(repo.dir().parent().unwrap()).await;

    let url = server.url(&format!("{}/.git", repo.dir().file_name().unwrap().display()));

    // What can't run says why.
    let none = ["install", "--set", "image.repository=registry.example.com/none", "--timeout", "3s"];
    let output = clusterstack(&t, &none).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("ErrImagePull") && said.contains("registry.example.com/none:0.1.0"), "{said}");

    let said = install(&t, &[]).await;
    assert!(said.contains("Deployment clusterstack-system/clusterstack configured"), "{said}");
    share_by(&t, 2).await;
    t.create_stack("x", &url, json!({})).await;
    t.ready("x", "v1").await;
    let class = t.get("cluster.x-k8s.io/v1beta1", "ClusterClass", RELEASE).await.expect("no class");

    // As a user scales it.
    t.kubectl(&["scale", "-n", NAMESPACE, "deployment/clusterstack", "--replicas", "4"]);
    share_by(&t, 4).await;
    t.kubectl(&["scale", "-n", NAMESPACE, "deployment/clusterstack", "--replicas", "1"]);
    share_by(&t, 1).await;
    // As an autoscaler does, to which their number is left.
    install(&t, &["--set", "replicas=null"]).await;
    t.kubectl(&[
        "autoscale",
        "-n",
        NAMESPACE,
        "deployment/clusterstack",
        "--min",
        "3",
        "--max",
        "4",
        "--cpu-percent",
        "80",
    ]);
    share_by(&t, 3).await;
    let said = install(&t, &["--set", "replicas=null"]).await;
    assert!(!said.contains("Deployment clusterstack-system/clusterstack configured"), "{said}");
    share_by(&t, 3).await;
    t.kubectl(&["delete", "-n", NAMESPACE, "hpa/clusterstack"]);
    install(&t, &[]).await;
    share_by(&t, 2).await;

    // The same again changes nothing.
    let said = install(&t, &[]).await;
    let changed: Vec<&str> =
        said.lines().filter(|line| line.ends_with("configured") || line.ends_with("created")).collect();
    assert!(changed.is_empty(), "{changed:#?}");

    // From Deployment to StatefulSet with a claim for each replica: what runs in clusters is not touched.
    let said = install(&t, &["--set", "storage.size=1Gi,storage.className=node"]).await;
    assert!(said.contains("Deployment clusterstack-system/clusterstack removed"), "{said}");
    share_by(&t, 2).await;
    let sets: Api<StatefulSet> = Api::namespaced(t.client.clone(), NAMESPACE);
    wait_for("two replicas that are ready", || async {
        let status = sets.get_status("clusterstack").await.unwrap().status.unwrap();
        check(status.ready_replicas == Some(2), status)
    })
    .await;
    // It goes after its pods, when the garbage collector has seen that they are gone.
    let deployments: Api<Deployment> = Api::namespaced(t.client.clone(), NAMESPACE);
    wait_for("the Deployment to be gone", || async {
        let left = deployments.get_opt("clusterstack").await.unwrap();
        check(left.is_none(), left)
    })
    .await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(t.client.clone(), NAMESPACE);
    assert_eq!(claims.list(&ListParams::default()).await.unwrap().items.len(), 2);
    t.kubectl(&["scale", "-n", NAMESPACE, "statefulset/clusterstack", "--replicas", "3"]);
    share_by(&t, 3).await;
    // A new release is still brought.
    repo.release("docker-x-1-34-v2", CLASS);
    t.look_again("x").await;
    t.ready("x", "v2").await;
    let now = t.get("cluster.x-k8s.io/v1beta1", "ClusterClass", RELEASE).await;
    if let Some(now) = now {
        assert_eq!(now["metadata"]["resourceVersion"], class["metadata"]["resourceVersion"]);
    }

    // Taken away, what it brought stays.
    let said = succeeds(&t, &["uninstall"]).await;
    assert!(said.contains("StatefulSet clusterstack-system/clusterstack removed"), "{said}");
    // They had their rights until they ended, and left nothing.
    let pods: Api<Pod> = Api::namespaced(t.client.clone(), NAMESPACE);
    assert!(pods.list(&ListParams::default()).await.unwrap().items.is_empty(), "{said}");
    assert!(!said.contains("OperatorShard"), "{said}");
    assert_eq!(t.kubectl(&["get", "operatorshards", "-o", "name"]), "");
    let leases = ["get", "leases", "-n", NAMESPACE, "-l", "clusterstack.x-k8s.io/member", "-o", "name"];
    assert_eq!(t.kubectl(&leases), "");
    // Nobody is to wait for hooks that nobody answers.
    let registered = "extensionconfigs,validatingwebhookconfigurations";
    assert_eq!(t.kubectl(&["get", registered, "-l", "app.kubernetes.io/managed-by=clusterstack", "-o", "name"]), "");
    assert!(t.get("cluster.x-k8s.io/v1beta1", "ClusterClass", "docker-x-1-34-v2").await.is_some());
    assert!(t.stacks().get_opt("x").await.unwrap().is_some());
    assert!(succeeds(&t, &["uninstall"]).await.contains("made nothing in clusterstack-system"));
    assert!(!node.logs().contains("panicked"), "{}", node.logs());
}

/// What the API server knows, without any pod: nothing is half done, and each installation keeps to itself.
#[tokio::test]
async fn what_would_be_refused_is_refused_before_anything_is_changed() {
    let Some(t) = World::installable("refused", "what would be refused").await else { return };
    let fails = async |args: &[&str]| {
        let output = clusterstack(&t, args).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        said
    };
    succeeds(&t, &["install", "--no-wait"]).await;
    let binding = || {
        t.kubectl(&["get", "clusterrolebinding", "clusterstack-operator", "-o", "jsonpath={.subjects[*].namespace}"])
    };

    // Another namespace, and the same names.
    let said = fails(&["install", "-n", "other", "--no-wait"]).await;
    assert!(said.contains("is of the installation in namespace clusterstack-system"), "{said}");
    assert!(said.contains("-n clusterstack-system") && said.contains("fullnameOverride"), "{said}");
    assert_eq!(binding(), NAMESPACE);
    assert_eq!(t.kubectl(&["get", "namespace", "other", "--ignore-not-found", "-o", "name"]), "");
    succeeds(&t, &["install", "-n", "other", "--set", "fullnameOverride=second", "--no-wait"]).await;
    // What each one's operator registers.
    let registered = |name: &str, namespace: &str| {
        let service = json!({"name": "x-hooks", "namespace": namespace, "path": "/"});
        let object = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "clusterstack"}},
            "webhooks": [{"name": "a.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "failurePolicy": "Ignore", "clientConfig": {"service": service}}],
        });
        let file = t.dir().join("webhook.json");
        std::fs::write(&file, object.to_string()).unwrap();
        t.kubectl(&["apply", "-f", file.to_str().unwrap()]);
    };
    registered("first", NAMESPACE);
    registered("second", "other");
    let webhooks = || t.kubectl(&["get", "validatingwebhookconfigurations", "-o", "name"]);
    succeeds(&t, &["uninstall", "-n", "other"]).await;
    assert!(webhooks().contains("/first") && !webhooks().contains("/second"), "{}", webhooks());
    assert_eq!(binding(), NAMESPACE);

    // One that no Service answers any more would be waited for.
    registered("hooks", NAMESPACE);
    succeeds(&t, &["install", "--no-wait"]).await;
    assert!(!webhooks().contains("/hooks"), "{}", webhooks());

    // Nothing is applied before what is refused.
    let version = || {
        t.kubectl(&[
            "get",
            "configmap",
            "-n",
            NAMESPACE,
            "clusterstack-settings",
            "-o",
            "jsonpath={.metadata.resourceVersion}",
        ])
    };
    let before = version();
    for (values, expected, hint) in [
        ("metrics.serviceMonitor=true", "does not serve this kind", "metrics.serviceMonitor=false"),
        ("rbac.secretsNamespaces={nowhere}", "nowhere", "kubectl create namespace"),
    ] {
        let said = fails(&["install", "--no-wait", "--set", values, "--set", "settings.burst=7"]).await;
        assert!(said.contains("nothing was changed") && said.contains(expected) && said.contains(hint), "{said}");
        assert_eq!(version(), before, "{values}");
    }
    succeeds(&t, &["install", "--no-wait", "--set", "storage.size=1Gi"]).await;
    let larger = ["install", "--no-wait", "--set", "storage.size=2Gi"];
    let said = fails(&larger).await;
    assert!(said.contains("spec can't be changed once it is there") && !said.contains("replace=true"), "{said}");
    let way = "kubectl delete statefulset clusterstack -n clusterstack-system --cascade=orphan";
    assert!(said.contains(way), "{said}");
    t.kubectl(&way.split(' ').skip(1).collect::<Vec<_>>());
    succeeds(&t, &larger).await;
}
