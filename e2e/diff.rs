//! `clusterstack diff`: what an upgrade would do is told before it happens, and nothing happens by telling.

use std::path::Path;
use std::process::Command;

use clusterstack::api::{API_VERSION, ClusterAddon, GROUP};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::harness::{Repo, World, check, cluster, unique, wait_for, workload};

/// A ClusterClass whose inline patch brings a variable to the machines.
const CLASS: &str = r#"
{{- $name := printf "%s-%s" .Release.Name .Chart.Version }}
apiVersion: cluster.x-k8s.io/v1beta1
kind: ClusterClass
metadata: {name: {{ $name }}}
spec:
  infrastructure:
    ref: {apiVersion: infrastructure.cluster.x-k8s.io/v1beta1, kind: DockerClusterTemplate, name: {{ $name }}}
  controlPlane:
    ref: {apiVersion: controlplane.cluster.x-k8s.io/v1beta1, kind: KubeadmControlPlaneTemplate, name: {{ $name }}}
    machineInfrastructure:
      ref: {apiVersion: infrastructure.cluster.x-k8s.io/v1beta1, kind: DockerMachineTemplate, name: {{ $name }}-control}
  workers:
    machineDeployments:
    - class: default
      template:
        bootstrap:
          ref: {apiVersion: bootstrap.cluster.x-k8s.io/v1beta1, kind: KubeadmConfigTemplate, name: {{ $name }}}
        infrastructure:
          ref: {apiVersion: infrastructure.cluster.x-k8s.io/v1beta1, kind: DockerMachineTemplate, name: {{ $name }}-worker}
  variables:
  - name: image
    required: false
    schema: {openAPIV3Schema: {type: string, default: {{ .Values.image }}}}
  {{- range .Values.variables }}
  - {name: {{ . }}, required: false, schema: {openAPIV3Schema: {type: string}}}
  {{- end }}
  patches:
  - name: image
    enabledIf: '{{ `{{ if .image }}true{{ end }}` }}'
    definitions:
    - selector:
        apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
        kind: DockerMachineTemplate
        matchResources: {machineDeploymentClass: {names: [default]}}
      jsonPatches:
      - op: add
        path: /spec/template/spec/customImage
        valueFrom: {template: '{{ `kindest/node:{{ .image }}-{{ .builtin.machineDeployment.topologyName }}` }}'}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: DockerClusterTemplate
metadata: {name: {{ $name }}}
spec: {template: {spec: {}}}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: DockerMachineTemplate
metadata: {name: {{ $name }}-control}
spec: {template: {spec: {customImage: fixed}}}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: DockerMachineTemplate
metadata: {name: {{ $name }}-worker}
spec: {template: {spec: {}}}
---
apiVersion: controlplane.cluster.x-k8s.io/v1beta1
kind: KubeadmControlPlaneTemplate
metadata: {name: {{ $name }}}
spec: {template: {spec: {kubeadmConfigSpec: {clusterConfiguration: {apiServer: {certSANs: [localhost]}}}}}}
---
apiVersion: bootstrap.cluster.x-k8s.io/v1beta1
kind: KubeadmConfigTemplate
metadata: {name: {{ $name }}}
spec: {template: {spec: {files: [{path: /a, content: "{{ .Values.content }}"}]}}}
---
"#;

/// Base64 of `swordfish` and `tuna`.
const SECRETS: [&str; 4] = ["swordfish", "c3dvcmRmaXNo", "tuna", "dHVuYQ=="];

/// What one run gave.
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

fn diff(t: &World, args: &[&str]) -> Run {
    let root = t.dir().canonicalize().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_clusterstack"))
        .args(["diff", "-n", &t.namespace, "--kubeconfig"])
        .arg(&t.plane.kubeconfig)
        .arg("--allow-source")
        .arg(&root)
        .args(args)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let run = Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) };
    for secret in SECRETS {
        assert!(!run.out.contains(secret) && !run.err.contains(secret), "a secret is told: {}{}", run.out, run.err);
    }
    run
}

fn plan(t: &World, code: i32, args: &[&str]) -> Value {
    let run = diff(t, &[args, &["-o", "json"]].concat());
    assert_eq!(run.code, Some(code), "{}{}", run.out, run.err);
    serde_json::from_str(&run.out).unwrap()
}

/// The addon of a release: one stage with these objects.
fn stack(repo: &Repo, prefix: &str, addon: &[(&str, &str)]) {
    let dir = "stacks/docker/x";
    repo.write(
        &format!("{dir}/clusteraddon.yaml"),
        "addonStages:\n  AfterControlPlaneInitialized: [{name: cni, action: apply}]\n  BeforeClusterUpgrade: [{name: cni, action: apply}]\n",
    );
    repo.write(&format!("{dir}/cluster-addon/cni/Chart.yaml"), "apiVersion: v2\nname: cni\nversion: v0\n");
    let object = |(name, text): &(&str, &str)| {
        let kind = if name.starts_with("key") { "Secret" } else { "ConfigMap" };
        let field = if kind == "Secret" { "stringData" } else { "data" };
        format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: {prefix}-{name}}}\n{field}: {{v: {text}}}\n---\n")
    };
    let objects: String = addon.iter().map(object).collect();
    repo.write(&format!("{dir}/cluster-addon/cni/templates/objects.yaml"), &objects);
}

/// The class with values in their place: the harness writes the chart's own.
fn class(image: &str, content: &str, variables: &str) -> String {
    CLASS
        .replace("{{ .Values.image }}", image)
        .replace("{{ .Values.content }}", content)
        .replace("{{- range .Values.variables }}", &format!("{{{{- range list {variables} }}}}"))
}

async fn workload_map(client: &Client, name: &str) -> Option<Value> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "kube-system", &resource);
    api.get_opt(name).await.unwrap().map(|object| serde_json::to_value(object).unwrap())
}

async fn kubeconfig(t: &World, text: &str) {
    t.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
        "metadata": {"name": "c-kubeconfig"}, "stringData": {"value": text},
    }))
    .await;
}

async fn addon_ready(t: &World, release: &str) {
    let api: Api<ClusterAddon> = Api::namespaced(t.client.clone(), &t.namespace);
    wait_for(format!("the ClusterAddon to be ready with {release}"), || async {
        let addon = api.get_opt("cluster-addon-c").await.map_err(|error| error.to_string())?.ok_or("no such object")?;
        let status = addon.status.unwrap_or_default();
        check(status.ready && status.release == release, &status)
    })
    .await;
}

fn object<'a>(objects: &'a Value, kind: &str, end: &str) -> &'a Value {
    let all = objects.as_array().unwrap();
    let is_it =
        |object: &&Value| object["kind"] == kind && object["name"].as_str().is_some_and(|name| name.ends_with(end));
    all.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} …{end} in {objects:#}"))
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn an_upgrade_is_told_before_it_happens() {
    let Some(plane) = workload().await else { return };
    let client = plane.client().await;
    let prefix = unique("d");
    let t = World::new("diff").await;
    let repo = t.repo();
    stack(&repo, &prefix, &[("same", "a"), ("changes", "one"), ("old", "a"), ("key", "swordfish")]);
    repo.release("docker-x-1-34-v1", &class("one", "same", "\"zone\" \"size\""));
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let alive = std::fs::read_to_string(&plane.kubeconfig).unwrap();
    kubeconfig(&t, &alive).await;
    let mut object_of_cluster = cluster("c", "docker-x-1-34-v1");
    object_of_cluster["spec"]["topology"]["version"] = "v1.34.7".into();
    object_of_cluster["spec"]["topology"]["variables"] = json!([{"name": "zone", "value": "north"}]);
    object_of_cluster["spec"]["topology"]["workers"] =
        json!({"machineDeployments": [{"class": "default", "name": "md-0", "replicas": 1}]});
    t.apply(&object_of_cluster).await;
    addon_ready(&t, "docker-x-1-34-v1").await;

    // The newest release is the one that it has.
    let run = diff(&t, &["c"]);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{}", run.out);
    assert!(
        run.out.contains("docker-x-1-34-v1, Kubernetes v1.34.7") && run.out.contains("nothing changes"),
        "{}",
        run.out
    );

    stack(&repo, &prefix, &[("same", "a"), ("changes", "two"), ("new", "a"), ("key", "tuna"), ("key-new", "tuna")]);
    repo.release("docker-x-1-34-v2", &class("two", "same", "\"size\" \"extra\""));
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    let found = plan(&t, 2, &["c"]);
    assert_eq!(found["to"]["release"], "docker-x-1-34-v2");
    assert_eq!(found["acceptance"]["state"], "accepted", "{found:#}");
    assert_eq!(found["unknown"], json!([]));
    // Named anew, with the same content.
    assert_eq!(object(&found["objects"], "KubeadmConfigTemplate", "v1")["fate"], "rotated");
    assert_eq!(object(&found["objects"], "DockerMachineTemplate", "v1-worker")["newName"], "docker-x-1-34-v2-worker");
    assert_eq!(object(&found["objects"], "ClusterClass", "v1")["fate"], "changed");
    // The variable's default reaches the workers by the patch, and nobody else.
    let of = |kind: &str| found["rollouts"].as_array().unwrap().iter().find(|r| r["kind"] == kind).unwrap().clone();
    assert_eq!(of("ControlPlane")["verdict"], "unchanged", "{found:#}");
    let workers = of("MachineDeployment");
    assert_eq!((&workers["name"], &workers["verdict"]), (&json!("md-0"), &json!("rolls")));
    assert_eq!(
        workers["reasons"][0]["fields"],
        json!([{"path": ".spec.template.spec.customImage", "before": "kindest/node:one-md-0", "after": "kindest/node:two-md-0"}])
    );
    let fates: Vec<(&str, &str, bool)> = found["variables"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| (v["name"].as_str().unwrap(), v["change"].as_str().unwrap(), v.get("blocks").is_some()))
        .collect();
    assert_eq!(fates, [("extra", "added", false), ("image", "default", false), ("zone", "removed", true)]);
    // Addons: tried in the workload cluster.
    assert_eq!(found["addons"]["compared"], "dryRun", "{found:#}");
    let stage = &found["addons"]["stages"][0];
    assert_eq!(
        (&stage["stage"], &stage["hook"], &stage["unchanged"]),
        (&json!("cni"), &json!("BeforeClusterUpgrade"), &json!(1))
    );
    let changes = object(&stage["objects"], "ConfigMap", "-changes");
    assert_eq!(changes["changes"], json!([{"path": ".data.v", "before": "one", "after": "two"}]));
    let secret = object(&stage["objects"], "Secret", "-key");
    assert_eq!(secret["changes"], json!([{"path": ".data.v", "before": "***", "after": "*** (differs)"}]));
    assert_eq!(object(&stage["objects"], "ConfigMap", "-new")["fate"], "added");
    assert_eq!(object(&found["addons"]["pruned"], "ConfigMap", "-old")["fate"], "removed");
    let text = diff(&t, &["c", "--to", "v2"]);
    assert_eq!(text.code, Some(2), "{}", text.err);
    for part in [
        "docker-x-1-34-v1 → docker-x-1-34-v2, Kubernetes v1.34.7\n",
        "Cluster API would take it",
        "MachineDeployment md-0  rolls",
        "ControlPlane            stays as it is",
        "cni (BeforeClusterUpgrade): 4 to change, 1 stay",
        "*** (differs)",
        "zone: removed; the new class has no such variable",
    ] {
        assert!(text.out.contains(part), "{part}: {}", text.out);
    }
    assert!(!text.out.contains('\u{1b}'), "no colour in a pipe");
    // A version of one's own.
    let found = plan(&t, 2, &["c", "--kubernetes-version", "v1.34.8"]);
    let verdicts: Vec<&Value> = found["rollouts"].as_array().unwrap().iter().map(|r| &r["verdict"]).collect();
    assert_eq!(verdicts, ["unchanged", "rolls", "rolls"]);

    // What was told did not happen.
    assert_eq!(workload_map(&client, &format!("{prefix}-changes")).await.unwrap()["data"], json!({"v": "one"}));
    assert!(workload_map(&client, &format!("{prefix}-new")).await.is_none());
    let of_cluster = t.get("cluster.x-k8s.io/v1beta1", "Cluster", "c").await.unwrap();
    assert_eq!(of_cluster["spec"]["topology"]["class"], "docker-x-1-34-v1");

    // One that nobody has subscribed, from a directory.
    stack(&repo, &prefix, &[("same", "a"), ("changes", "one"), ("old", "a"), ("key", "swordfish")]);
    repo.release("docker-x-1-34-v0", &class("one", "other", "\"zone\" \"size\""));
    copy(&repo.dir().join("stacks/docker/x"), &t.dir().join("docker-x-1-34-v3"));
    let directory = t.dir().join("docker-x-1-34-v3").display().to_string();
    let found = plan(&t, 2, &["c", "--to", &directory]);
    assert_eq!(
        (&found["to"]["release"], &found["acceptance"]["state"]),
        (&json!("docker-x-1-34-v3"), &json!("unknown"))
    );
    assert_eq!(object(&found["objects"], "KubeadmConfigTemplate", "v1")["fate"], "changed", "{found:#}");
    let of = |kind: &str| found["rollouts"].as_array().unwrap().iter().find(|r| r["kind"] == kind).unwrap().clone();
    assert_eq!(of("MachineDeployment")["reasons"][0]["what"], "KubeadmConfigTemplate rotates");
    assert_eq!(found["addons"]["stages"][0]["objects"], json!([]));
    assert!(t.get("cluster.x-k8s.io/v1beta1", "ClusterClass", "docker-x-1-34-v3").await.is_none());

    // A workload cluster that does not answer: renderings are compared.
    let dead = "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: u, user: {token: swordfish}}]}";
    kubeconfig(&t, dead).await;
    let found = plan(&t, 2, &["c"]);
    assert_eq!(found["addons"]["compared"], "rendering", "{found:#}");
    assert!(found["addons"]["message"].as_str().unwrap().contains("can't be reached"));
    let stage = &found["addons"]["stages"][0];
    assert_eq!(object(&stage["objects"], "Secret", "-key")["changes"][0]["after"], "*** (differs)");
    assert_eq!(object(&found["addons"]["pruned"], "ConfigMap", "-old")["fate"], "removed");

    for (args, part) in [
        (&["c", "--to", "v9"][..], "release \"v9\" is neither taken nor available"),
        (&["nobody"], "no Cluster \"nobody\""),
        (&["c", "--to", "./nowhere"], "cannot read ./nowhere"),
    ] {
        let run = diff(&t, args);
        assert_eq!(run.code, Some(1), "{args:?}: {}", run.out);
        assert!(run.err.contains(part) && run.err.contains("hint"), "{args:?}: {}", run.err);
    }
}

/// The kubeconfig of somebody who may read all that an upgrade is about, but for one kind of templates.
async fn without_machine_templates(t: &World) -> std::path::PathBuf {
    const RBAC: &str = "rbac.authorization.k8s.io";
    let name = format!("alice-{}", t.namespace);
    let api_version = format!("{RBAC}/v1");
    let read = |groups: &[&str], resources: &[&str]| json!({"apiGroups": groups, "resources": resources, "verbs": ["get", "list"]});
    t.apply(&json!({"apiVersion": api_version, "kind": "Role", "metadata": {"name": "reads"}, "rules": [
        read(&[GROUP, "cluster.x-k8s.io", "controlplane.cluster.x-k8s.io", "bootstrap.cluster.x-k8s.io"], &["*"]),
        read(&["infrastructure.cluster.x-k8s.io"], &["dockerclustertemplates"]),
    ]}))
    .await;
    t.apply(&json!({"apiVersion": api_version, "kind": "RoleBinding", "metadata": {"name": "reads"},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "reads"},
        "subjects": [{"kind": "User", "name": name, "apiGroup": RBAC}]}))
        .await;
    let mut config = kube::config::Kubeconfig::read_from(&t.plane.kubeconfig).unwrap();
    for user in &mut config.auth_infos {
        user.auth_info.as_mut().unwrap().impersonate = Some(name.clone());
    }
    let path = t.dir().join("alice.kubeconfig");
    std::fs::write(&path, serde_json::to_string(&config).unwrap()).unwrap();
    path
}

#[tokio::test]
async fn what_may_not_be_read_is_not_said_to_stay() {
    let t = World::new("unread").await;
    let repo = t.repo();
    repo.release("docker-x-1-34-v1", &class("one", "same", "\"zone\""));
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let mut object = cluster("c", "docker-x-1-34-v1");
    object["spec"]["topology"]["workers"] =
        json!({"machineDeployments": [{"class": "default", "name": "md-0", "replicas": 1}]});
    t.apply(&object).await;
    repo.release("docker-x-1-34-v2", &class("two", "same", "\"zone\""));
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    let alice = without_machine_templates(&t).await;
    let of = |text: &str, kind: &str| -> Value {
        let plan: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"));
        let found = plan["rollouts"].as_array().unwrap().iter().find(|one| one["kind"] == kind).cloned();
        found.unwrap_or_else(|| panic!("{plan:#}"))
    };
    let version = object["spec"]["topology"]["version"].as_str().unwrap().to_owned();
    let output = Command::new(env!("CARGO_BIN_EXE_clusterstack"))
        .args(["diff", "c", "-n", &t.namespace, "-o", "json", "--kubernetes-version", &version, "--kubeconfig"])
        .arg(&alice)
        .arg("--allow-source")
        .arg(t.dir().canonicalize().unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}{said}");
    for kind in ["ControlPlane", "MachineDeployment"] {
        let rollout = of(&text, kind);
        assert_eq!(rollout["verdict"], "unknown", "{rollout:#}");
        let why = rollout["reasons"][0]["what"].as_str().unwrap();
        assert!(why.starts_with("DockerMachineTemplate ") && why.ends_with(" was not read"), "{why}");
    }
    assert_eq!(of(&text, "InfrastructureCluster")["verdict"], "unchanged", "{text}");
}

#[tokio::test]
async fn definitions_are_told_by_the_policy_of_their_stage() {
    let Some(plane) = workload().await else { return };
    let client = plane.client().await;
    for (policy, told) in [("", true), (", crds: Create", false), (", crds: Skip", false)] {
        let prefix = unique("d");
        let t = World::new("diffcrds").await;
        let repo = t.repo();
        let write = |short: &str| {
            stack(&repo, &prefix, &[("map", short)]);
            let stage = format!("[{{name: cni, action: apply{policy}}}]");
            let stages =
                format!("addonStages:\n  AfterControlPlaneInitialized: {stage}\n  BeforeClusterUpgrade: {stage}\n");
            repo.write("stacks/docker/x/clusteraddon.yaml", &stages);
            let definition = format!(
                "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: things.{prefix}.example.com}}\n\
                 spec:\n  group: {prefix}.example.com\n  scope: Namespaced\n  names: {{kind: Thing, plural: things, shortNames: [{short}]}}\n  \
                 versions: [{{name: v1, served: true, storage: true, schema: {{openAPIV3Schema: {{type: object}}}}}}]\n"
            );
            repo.write("stacks/docker/x/cluster-addon/cni/crds/things.yaml", &definition);
        };
        write("one");
        repo.release("docker-x-1-34-v1", &class("one", "same", "\"zone\""));
        let _operator = t.operator(&[]);
        t.create_stack("x", &repo.url(), json!({})).await;
        t.ready("x", "v1").await;
        kubeconfig(&t, &std::fs::read_to_string(&plane.kubeconfig).unwrap()).await;
        t.apply(&cluster("c", "docker-x-1-34-v1")).await;
        addon_ready(&t, "docker-x-1-34-v1").await;
        write("two");
        repo.release("docker-x-1-34-v2", &class("one", "same", "\"zone\""));
        t.look_again("x").await;
        t.ready("x", "v2, v1").await;
        let stage = plan(&t, 2, &["c"])["addons"]["stages"][0].clone();
        let objects = stage["objects"].as_array().unwrap();
        assert_eq!(object(&stage["objects"], "ConfigMap", "-map")["fate"], "changed");
        let is_told = objects.iter().any(|object| object["kind"] == "CustomResourceDefinition");
        assert_eq!(is_told, told, "{policy}: {stage:#}");
        let definitions = kube::core::GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let definitions: Api<kube::api::DynamicObject> =
            Api::all_with(client.clone(), &kube::api::ApiResource::from_gvk(&definitions));
        let _ = definitions.delete(&format!("things.{prefix}.example.com"), &kube::api::DeleteParams::default()).await;
    }
}

#[tokio::test]
async fn an_upgrade_that_waits_for_approval_is_planned_for_kubectl() {
    let t = World::new("cup").await;
    let repo = t.repo();
    stack(&repo, "cup", &[("changes", "one"), ("key", "swordfish")]);
    repo.release("docker-x-1-34-v1", &class("one", "same", "\"zone\""));
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({"approval": "manual", "versions": ["v1"]})).await;
    t.ready("x", "v1").await;
    let mut object = cluster("c", "docker-x-1-34-v1");
    object["spec"]["topology"]["workers"] =
        json!({"machineDeployments": [{"class": "default", "name": "md-0", "replicas": 1}]});
    t.apply(&object).await;
    stack(&repo, "cup", &[("changes", "two"), ("new", "a"), ("key", "tuna")]);
    repo.release("docker-x-1-34-v2", &class("two", "same", "\"zone\""));
    t.look_again("x").await;

    let of = (clusterstack::api::API_VERSION, "ClusterUpgradePlan", "c-docker-x-1-34-v2");
    let plan = wait_for("the plan".to_owned(), || async {
        let plan = t.get(of.0, of.1, of.2).await.ok_or("no such object")?;
        check(plan["status"]["clusterGeneration"].is_number(), &plan)?;
        Ok::<Value, String>(plan)
    })
    .await;
    let status = &plan["status"];
    assert_eq!((&status["from"], &plan["spec"]["cluster"]), (&json!("docker-x-1-34-v1"), &json!("c")), "{plan:#}");
    assert_eq!(status["rolls"], json!(["MachineDeployment md-0"]), "{plan:#}");
    assert_eq!(status["counts"]["addonsChanged"], 2, "{plan:#}");
    assert_eq!(status["counts"]["addonsAdded"], 1, "{plan:#}");
    assert_eq!(plan["metadata"]["ownerReferences"][0]["kind"], "Cluster");
    let text = status.to_string();
    assert!(text.contains("cni: ~ Secret kube-system/cup-key (.stringData.v)"), "{plan:#}");
    assert!(SECRETS.iter().all(|secret| !text.contains(secret)), "{plan:#}");
    // Once it is taken, nobody waits for it.
    t.change_stack("x", json!({"spec": {"versions": ["v1", "v2"]}})).await;
    t.ready("x", "v2, v1").await;
    t.gone(of.0, of.1, of.2).await;
}

/// The operator may read more than who brings a release: a plan is no way to it.
#[tokio::test]
async fn a_plan_reads_no_foreign_source_and_no_secret_that_is_not_its_own() {
    let (t, provider) = (World::new("cupreads").await, World::new("cupprivate").await);
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "prod-db"}, "stringData": {"p": "hunter2"}});
    t.apply(&secret).await;
    let repo = t.repo();
    repo.release("docker-x-1-34-v1", &class("one", "same", "\"zone\""));
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({"approval": "manual", "versions": ["v1"]})).await;
    t.ready("x", "v1").await;
    let account = json!({"metadata": {"name": "ghost"}, "apiVersion": "v1", "kind": "ServiceAccount"});
    t.apply(&account).await;
    t.change_stack("x", json!({"spec": {"serviceAccountName": "ghost"}})).await;
    t.apply(&cluster("c", "docker-x-1-34-v1")).await;
    let looks = "{{ $found := lookup \"v1\" \"Secret\" .Release.Namespace \"prod-db\" }}apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 'read-{{ dig \"data\" \"p\" \"nothing\" $found | lower | trimSuffix \"=\" }}'}\n---\n";
    repo.release("docker-x-1-34-v2", &format!("{looks}{}", class("two", "same", "\"zone\"")));
    t.look_again("x").await;
    let plan = wait_for("the plan", || async {
        let plan = t.get(API_VERSION, "ClusterUpgradePlan", "c-docker-x-1-34-v2").await.ok_or("no such object")?;
        check(plan["status"]["clusterGeneration"].is_number(), &plan)?;
        Ok::<Value, String>(plan)
    })
    .await;
    let text = plan.to_string();
    // By the rights that it would be applied with, of which there are none.
    assert!(text.contains("prod-db") && text.contains("forbidden"), "{plan:#}");
    assert!(!text.to_lowercase().contains("ahvudgvymg"), "{plan:#}");
    // Another namespace's source that does not allow this one.
    let private = provider.repo();
    private.release("docker-x-1-34-v1", &class("one", "same", "\"zone\""));
    private.release("docker-x-1-34-v2", &class("private", "same", "\"zone\""));
    let source = json!({"apiVersion": API_VERSION, "kind": "ClusterStackSource", "metadata": {"name": "private"},
        "spec": {"source": {"git": {"url": private.url()}}}});
    provider.apply(&source).await;
    let reference = json!({"name": "private", "namespace": provider.namespace});
    t.change_stack("x", json!({"spec": {"source": null, "sourceRef": reference}})).await;
    let run = diff(&t, &["--allow-source", private.dir().to_str().unwrap(), "c", "--to", "docker-x-1-34-v2"]);
    assert!(run.err.contains("does not exist or does not allow namespace"), "{}{}", run.out, run.err);
    assert!(!run.out.contains("private"), "{}", run.out);
    let allowed = json!({"spec": {"allowedNamespaces": {"names": [t.namespace]}}});
    provider.change("provider", (API_VERSION, "ClusterStackSource", "private"), allowed).await;
    let run = diff(&t, &["--allow-source", private.dir().to_str().unwrap(), "c", "--to", "docker-x-1-34-v2"]);
    assert!(run.out.contains("private"), "{}{}", run.out, run.err);
}

/// As one in a namespace that is going would be refused.
#[tokio::test]
async fn a_plan_that_is_refused_keeps_no_other_one_from_being_made() {
    let t = World::new("cuprefused").await;
    let rule = json!({"apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["clusterupgradeplans"]});
    let here = json!({"matchLabels": {"kubernetes.io/metadata.name": t.namespace}});
    refuse(
        &t,
        "ValidatingAdmissionPolicy",
        &json!({
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "!object.metadata.name.startsWith('a-')"}],
        }),
    )
    .await;
    refuse(
        &t,
        "ValidatingAdmissionPolicyBinding",
        &json!({
            "policyName": t.namespace, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": here},
        }),
    )
    .await;
    let repo = t.repo();
    stack(&repo, "cuprefused", &[("changes", "one"), ("key", "swordfish")]);
    repo.release("docker-x-1-34-v1", &class("one", "same", "\"zone\""));
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({"approval": "manual", "versions": ["v1"]})).await;
    t.ready("x", "v1").await;
    for name in ["a", "b", "c"] {
        let mut object = cluster(name, "docker-x-1-34-v1");
        object["metadata"]["finalizers"] = json!(["example.com/held"]);
        t.apply(&object).await;
    }
    t.delete("cluster.x-k8s.io/v1beta1", "Cluster", "b").await;
    stack(&repo, "cuprefused", &[("changes", "two"), ("key", "tuna")]);
    repo.release("docker-x-1-34-v2", &class("two", "same", "\"zone\""));
    t.look_again("x").await;
    t.there(API_VERSION, "ClusterUpgradePlan", "c-docker-x-1-34-v2").await;
    for name in ["a", "b"] {
        let plan = format!("{name}-docker-x-1-34-v2");
        assert!(t.get(API_VERSION, "ClusterUpgradePlan", &plan).await.is_none(), "{plan}");
    }
    for name in ["a", "b", "c"] {
        let free = json!({"metadata": {"finalizers": null}});
        t.change("user", ("cluster.x-k8s.io/v1beta1", "Cluster", name), free).await;
    }
}

/// Makes an object of admission that is called as the test's namespace.
async fn refuse(t: &World, kind: &str, spec: &Value) {
    let api_version = "admissionregistration.k8s.io/v1";
    let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    let api: Api<DynamicObject> = Api::all_with(t.client.clone(), &ApiResource::from_gvk(&gvk));
    let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": t.namespace}, "spec": spec});
    api.patch(&t.namespace, &PatchParams::apply("e2e"), &Patch::Apply(&object)).await.expect(kind);
}
