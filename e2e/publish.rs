//! A stack before its tag exists: what an API server says to it in a dry run, and a subscription from a directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{CLUSTER_API, RegistryServer, World};

/// A copy of a stack that may be changed.
fn copy(t: &World) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("stacks/docker/hello");
    let to = t.dir().join("stack");
    for (path, content) in clusterstack::io::stack::read(&from).expect("no stack").files {
        let path = to.join(path);
        std::fs::create_dir_all(path.parent().expect("no parent")).expect("no directory");
        std::fs::write(path, content).expect("no file");
    }
    to
}

fn run(args: &[&str]) -> (Option<i32>, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_clusterstack")).args(args).args(["-o", "json"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), serde_json::from_str(&text).unwrap_or_else(|_| panic!("{args:?}: {text}{error}")))
}

/// Runs the command line, which must go well; what it prints.
fn done(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_clusterstack")).args(args).output().unwrap();
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}: {text}{error}");
    text.into_owned()
}

#[tokio::test]
async fn a_release_is_pushed_bundled_over_an_air_gap_and_subscribed_from_a_registry() {
    const V1: &str = "docker-hello-1-34-v1";
    let t = World::new("pushed").await;
    let place = |name: &str| t.dir().join(name).to_str().unwrap().to_owned();
    let Some(outside) = RegistryServer::start(&t.dir().join("outside"), &[]) else { return };
    let login = ["-login", "basic", "-user", "robot", "-password", "hunter2"];
    let Some(inside) = RegistryServer::start(&t.dir().join("inside"), &login) else { return };
    let (there, here) = (format!("oci://{}/platform/stacks", outside.host), format!("oci://{}/mirror", inside.host));
    let (releases, archive, config) = (place("releases"), place("releases.tar"), place("config.json"));
    let docker = json!({"auths": {&inside.host: {"username": "robot", "password": "hunter2"}}}).to_string();
    std::fs::write(&config, &docker).unwrap();
    let stack = copy(&t);
    done(&["package", stack.to_str().unwrap(), "--out", &releases]);

    let push = |target: &str, state: &str| {
        let (code, rows) = run(&["push", &releases, target, "--plain-http", "--registry-config", &config]);
        assert_eq!((code, rows[0]["state"].as_str()), (Some(0), Some(state)), "{rows}");
        rows[0]["revision"].as_str().unwrap().to_owned()
    };
    let digest = push(&there, "pushed");
    assert_eq!(push(&there, "unchanged"), digest);
    done(&["bundle", V1, "--source", &there, "--plain-http", "-f", &archive]);
    drop(outside);
    std::fs::remove_dir_all(&releases).unwrap();
    let import = ["bundle", "import", &archive, &here, "--plain-http", "--registry-config", &config];
    assert_eq!(done(&import), format!("{V1} imported {digest}\n"));
    assert_eq!(done(&import), format!("{V1} unchanged {digest}\n"));
    let refused =
        Command::new(env!("CARGO_BIN_EXE_clusterstack")).args(&import[..5]).env("HOME", "/nonexistent").output();
    let error = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(error.contains("401") && error.contains("there is no login for"), "{error}");

    t.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "registry"},
        "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": docker},
    }))
    .await;
    let _operator = t.operator(&["--allow-source", &inside.host]);
    let repository = format!("{}/mirror", inside.host);
    let source =
        json!({"git": null, "oci": {"repository": repository, "insecure": true, "secretRef": {"name": "registry"}}});
    t.create_stack("hello", "", json!({"name": "hello", "source": source})).await;
    t.ready("hello", "v1").await;
    assert!(t.get(CLUSTER_API, "ClusterClass", V1).await.is_some());
    let artifact = t.release_ready(V1).await.status.unwrap().artifact.unwrap();
    assert_eq!((artifact.revision, artifact.url), (digest, here.clone()));

    // The next one is pushed to where the first is.
    done(&["package", stack.to_str().unwrap(), "--out", &releases, "--version", "v2"]);
    push(&here, "pushed");
    t.look_again("hello").await;
    t.ready("hello", "v2").await;
}

#[tokio::test]
async fn a_dry_run_says_what_the_api_server_would_refuse_and_stores_nothing() {
    let t = World::new("lint").await;
    let stack = copy(&t);
    let kubeconfig = t.plane.kubeconfig.to_str().unwrap().to_owned();
    let lint = |stack: &Path| run(&["lint", stack.to_str().unwrap(), "--server", &kubeconfig, "-n", &t.namespace]);
    assert_eq!(lint(&stack), (Some(0), json!({"stack": stack, "findings": []})));

    let template = stack.join("cluster-class/templates/docker-cluster-template.yaml");
    let text = std::fs::read_to_string(&template).unwrap();
    let more = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: Wrong_Name}\n---\napiVersion: x.example.com/v1\nkind: Thing\nmetadata: {name: a}\n";
    std::fs::write(&template, text.replace("spec: {}", "spec: {notThere: true}") + more).unwrap();
    let crd = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: nets.y.example.com}\nspec:\n  group: y.example.com\n  scope: Namespaced\n  names: {kind: Net, plural: nets}\n  versions:\n  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}\n";
    std::fs::create_dir_all(stack.join("cluster-addon/cni/crds")).unwrap();
    std::fs::write(stack.join("cluster-addon/cni/crds/net.yaml"), crd).unwrap();
    let net = "apiVersion: y.example.com/v1\nkind: Net\nmetadata: {name: a, namespace: kube-system}\n";
    std::fs::write(stack.join("cluster-addon/cni/templates/net.yaml"), net).unwrap();
    let (code, report) = lint(&stack);
    assert_eq!(code, Some(1));
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 4, "{report}");
    for (rule, part) in [
        ("server", ".spec.template.spec.notThere: field not declared in schema"),
        ("server", "Wrong_Name"),
        ("server", "Thing a (x.example.com/v1): the API server does not serve this kind"),
        ("server-later", "Net kube-system/a (y.example.com/v1): its CRD is in the stack"),
    ] {
        let is_meant = |found: &&Value| found["rule"] == rule && found["message"].as_str().unwrap().contains(part);
        assert_eq!(findings.iter().filter(is_meant).count(), 1, "{part}: {report}");
    }
    assert!(t.get("infrastructure.cluster.x-k8s.io/v1beta1", "DockerClusterTemplate", "x").await.is_none());
    let stored = t.kubectl(&["get", "clusterclasses,dockerclustertemplates,secrets", "-o", "name"]);
    assert_eq!(stored.trim(), "", "a dry run stored something");
}

#[tokio::test]
async fn a_version_by_content_is_subscribed_from_a_directory() {
    let t = World::new("untagged").await;
    let releases = t.dir().join("releases");
    let stack = copy(&t);
    let package = || {
        let args = ["package", stack.to_str().unwrap(), "--mode", "hash", "--out", releases.to_str().unwrap()];
        let (code, made) = run(&args);
        assert_eq!(code, Some(0), "{made}");
        made["versions"]["clusterStack"].as_str().unwrap().to_owned()
    };
    let first = package();
    let _operator = t.operator(&[]);
    t.apply(&json!({
        "apiVersion": "clusterstack.x-k8s.io/v1alpha1",
        "kind": "ClusterStack",
        "metadata": {"name": "hello", "namespace": t.namespace},
        "spec": {
            "provider": "docker", "name": "hello", "kubernetesVersion": "1.34", "channel": "custom",
            "autoSubscribe": false, "versions": [first], "noProvider": true, "interval": "10s",
            "source": {"directory": {"path": releases}},
        },
    }))
    .await;
    t.ready("hello", &first).await;
    assert!(t.get(CLUSTER_API, "ClusterClass", &format!("docker-hello-1-34-{first}")).await.is_some());

    let values = stack.join("cluster-class/values.yaml");
    let text = std::fs::read_to_string(&values).unwrap();
    std::fs::write(&values, text.replace("timeout: 300s", "timeout: 301s")).unwrap();
    let second = package();
    assert_ne!(second, first);
    t.change_stack("hello", json!({"spec": {"versions": [second]}})).await;
    t.look_again("hello").await;
    t.ready("hello", &second).await;
}
