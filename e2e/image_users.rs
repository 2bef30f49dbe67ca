//! Users and pods of images' builds: who may not create Pods gets none through us. The pod that a Job makes where the
//! template brings none is run here as a kubelet would run it.

use std::path::{Path, PathBuf};
use std::process::Command;

use clusterstack::api::{API_VERSION, ConditionType, INFRASTRUCTURE_API_VERSION, Reason, WATCH_LABEL};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::harness::{ImageServer, Operator, RegistryServer, SETTINGS, World, check, wait_for};

const TEMPLATE: &str = "ProviderClusterStackReleaseTemplate";
const V1: &str = "docker-x-1-34-v1";
const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// A client of somebody else.
async fn client_of(t: &World, user: &str) -> Client {
    let kubeconfig = Kubeconfig::read_from(&t.plane.kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info.impersonate = Some(user.to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:authenticated".into()]);
    Client::try_from(config).unwrap()
}

/// A Role of a namespace, and who has it.
async fn allow(t: &World, name: &str, subject: Value, rules: Value) {
    t.apply(&json!({"apiVersion": RBAC, "kind": "Role", "metadata": {"name": name}, "rules": rules})).await;
    t.apply(&json!({
        "apiVersion": RBAC, "kind": "RoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}, "subjects": [subject],
    }))
    .await;
}

fn labelled(t: &World, mut object: Value) -> Value {
    object["metadata"]["labels"] = json!({WATCH_LABEL: t.namespace});
    object
}

async fn pods(t: &World) -> Vec<Value> {
    let found = t.api("v1", "Pod").list(&ListParams::default()).await.unwrap().items;
    found.iter().map(|pod| serde_json::to_value(pod).unwrap()).collect()
}

/// What a user may not create is refused by the API server.
async fn refused(client: &Client, namespace: &str, object: &Value) {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
    let (api_version, kind) = (text("/apiVersion"), text("/kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let created = api.create(&PostParams::default(), &serde_json::from_value(object.clone()).unwrap()).await;
    match created {
        Err(kube::Error::Api(status)) if status.code == 403 => {}
        other => panic!("{kind} in {namespace}: {other:?}"),
    }
}

/// Runs container `build` of a pod as a kubelet would: what is mounted lies in a directory, what it wrote at its end is its
/// termination message. Its exit code and output.
async fn run(t: &World, pod: &Value) -> (i32, String) {
    let root = t.dir().join("pod");
    let container = &pod["spec"]["containers"][0];
    let mut places: Vec<(String, PathBuf)> = Vec::new();
    for (number, mount) in container["volumeMounts"].as_array().unwrap().iter().enumerate() {
        let path = mount["mountPath"].as_str().unwrap().to_owned();
        let own = root.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(&own).unwrap();
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap_or_else(|| {
            panic!("mount {number} of no volume: {pod:#}");
        });
        let mut files: Vec<(String, Vec<u8>)> = Vec::new();
        if let Some(map) = volume.pointer("/configMap/name").and_then(Value::as_str) {
            let map = t.get("v1", "ConfigMap", map).await.unwrap();
            let text = |value: &Value| value.as_str().unwrap().as_bytes().to_vec();
            files = map["data"].as_object().unwrap().iter().map(|(key, value)| (key.clone(), text(value))).collect();
        } else if let Some(secret) = volume.pointer("/secret/secretName").and_then(Value::as_str) {
            let api: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(t.client.clone(), &t.namespace);
            let data = api.get(secret).await.unwrap().data.unwrap_or_default();
            files = data.into_iter().map(|(key, value)| (key, value.0)).collect();
        }
        for (name, content) in files {
            std::fs::write(own.join(name), content).unwrap();
        }
        places.push((path, own));
    }
    let here = |text: &str| -> String {
        // The longest path first: one may be within another.
        let mut places: Vec<_> = places.iter().collect();
        places.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        let found = places.iter().find(|(path, _)| path == text);
        let within = |path: &Path| root.join(path.strip_prefix("/").unwrap()).to_str().unwrap().to_owned();
        found.map_or_else(
            || if text.starts_with('/') { within(Path::new(text)) } else { text.to_owned() },
            |(_, own)| own.to_str().unwrap().to_owned(),
        )
    };
    let words = |field: &str| -> Vec<String> {
        container[field].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let command = words("command");
    assert_eq!(command[0], "clusterstack");
    let result = root.join("termination-log");
    let env = container["env"].as_array().unwrap().iter();
    let env = env.map(|one| (one["name"].as_str().unwrap(), one["value"].as_str().unwrap_or_default()));
    let mut process = Command::new(env!("CARGO_BIN_EXE_clusterstack"));
    process.args(&command[1..]).args(words("args").iter().map(|word| here(word)));
    process.arg("--result").arg(&result).env_clear().envs(env);
    let output = tokio::task::spawn_blocking(move || process.output().unwrap()).await.unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap_or(-1), std::fs::read_to_string(result).unwrap_or(said))
}

#[tokio::test]
async fn a_user_who_may_not_create_pods_gets_none_through_us_and_the_providers_runs_at_level_restricted() {
    let (provider, user) = (World::new("imgpods").await, World::new("imgnopods").await);
    let content = b"an image".repeat(100_000);
    let server = ImageServer::new(&content).await;
    let login = ["-login", "basic", "-user", "robot", "-password", "hunter2"];
    let Some(registry) = RegistryServer::start(&provider.dir().join("registry"), &login) else { return };
    let level = "pod-security.kubernetes.io/enforce=restricted";
    provider.kubectl(&["label", "namespace", &provider.namespace, level]);
    let secret = json!({"username": "robot", "password": "hunter2"});
    provider
        .apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": secret}))
        .await;
    let template = json!({
        "apiVersion": INFRASTRUCTURE_API_VERSION, "kind": TEMPLATE, "metadata": {"name": "t"},
        "spec": {
            "template": {"metadata": {"labels": {WATCH_LABEL: provider.namespace}}, "spec": {}},
            "build": {"executor": "Job"}, "imageGracePeriod": "0s",
            "destination": {"oci": {
                "repository": format!("{}/images", registry.host), "insecure": true, "secretRef": {"name": "login"},
            }},
        },
    });
    provider.apply(&template).await;
    provider.allow_image_jobs().await;
    let repo = provider.repo();
    let digest: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    repo.write(
        "stacks/docker/x/node-images.yaml",
        &format!(
            "apiVersion: nodeimages.clusterstack.x-k8s.io/v1alpha1\nimages:\n- name: made\n  format: raw\n  steps:\n  \
             - download: {{url: '{}', checksum: 'sha256:{digest}'}}\n  - compress: {{algorithm: gzip}}\n",
            server.url("a.raw")
        ),
    );
    repo.release(V1, SETTINGS);
    let reference = json!({"apiVersion": INFRASTRUCTURE_API_VERSION, "kind": TEMPLATE, "name": "t"});
    let source = json!({"apiVersion": API_VERSION, "kind": "ClusterStackSource", "metadata": {"name": "shared"},
        "spec": {"interval": "10s", "source": {"git": {"url": repo.url()}}, "providerRef": reference,
            "allowedNamespaces": {"names": [user.namespace]}}});
    provider.apply(&labelled(&provider, source)).await;

    // What alice has, and what her releases are applied with.
    let stacks = json!([
        {"apiGroups": ["clusterstack.x-k8s.io"], "resources": ["clusterstacks"], "verbs": ["*"]},
        {"apiGroups": ["clusterstack.x-k8s.io", "infrastructure.clusterstack.x-k8s.io"], "resources": ["*"],
            "verbs": ["get", "list", "watch"]},
    ]);
    allow(&user, "alice", json!({"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}), stacks)
        .await;
    user.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "applier"}})).await;
    let account = json!({"kind": "ServiceAccount", "name": "applier", "namespace": user.namespace});
    allow(&user, "applier", account, json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}])).await;
    let flags = ["--watch-filter", &provider.namespace, "--default-service-account", "applier"];
    let more = ["--allow-source", &server.host(), "--allow-source", &registry.host, "--image-job-image", "operator:1"];
    let root = user.dir().canonicalize().unwrap();
    let hers = ["--allow-source", root.to_str().unwrap()];
    let _operator =
        Operator::start(&provider, provider.plane.operator_kubeconfig(), &[flags.as_slice(), &more, &hers].concat());

    // By herself she gets nowhere.
    let alice = client_of(&user, "alice").await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "build", "image": "evil:1"}]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "build", "image": "evil:1"}]}}}});
    let image = json!({"apiVersion": INFRASTRUCTURE_API_VERSION, "kind": "ProviderNodeImageRelease",
        "metadata": {"name": "i"},
        "spec": {"templateRef": {"name": "t", "namespace": provider.namespace}, "inputs": "sha256:0",
            "image": {"name": "i", "steps": [{"name": "download", "download": {"url": server.url("a.raw")}}]}}});
    for namespace in [&user.namespace, &provider.namespace] {
        for object in [&pod, &job, &template, &image] {
            refused(&alice, namespace, object).await;
        }
    }

    // A release of hers that brings a Pod, and names a template that she would have to have.
    let own = user.repo();
    let evil = "apiVersion: v1\nkind: Pod\nmetadata: {name: evil}\nspec: {containers: [{name: build, image: 'evil:1'}]}\n---\n";
    own.release("docker-y-1-34-v1", &format!("{evil}{SETTINGS}"));
    let create = async |name: &str, spec: Value| {
        let mut all = json!({"provider": "docker", "name": name, "kubernetesVersion": "1.34", "interval": "10s"});
        json_patch::merge(&mut all, &spec);
        let stack = json!({"apiVersion": API_VERSION, "kind": "ClusterStack", "metadata": {"name": name}, "spec": all});
        let stack = serde_json::from_value(labelled(&provider, stack)).unwrap();
        let api: Api<clusterstack::api::ClusterStack> = Api::namespaced(alice.clone(), &user.namespace);
        api.create(&PostParams::default(), &stack).await.expect("alice may have ClusterStacks");
    };
    create("y", json!({"source": {"git": {"url": own.url()}}, "noProvider": true})).await;
    user.release("docker-y-1-34-v1", "to be refused a Pod", |release| {
        let rows = release.status.clone().unwrap_or_default().resources;
        check(rows.iter().any(|row| row.kind == "Pod" && row.reason == Some(Reason::Forbidden)), &rows)
    })
    .await;
    own.release("docker-z-1-34-v1", SETTINGS);
    create("z", json!({"source": {"git": {"url": own.url()}}, "providerRef": reference})).await;
    user.release_says(
        "docker-z-1-34-v1",
        ConditionType::ProviderClusterStackReleaseReady,
        "False",
        "ProviderTemplateNotFound",
    )
    .await;
    assert_eq!(pods(&provider).await.len(), 0);

    // What the provider offers is built, where the provider is.
    create("x", json!({"sourceRef": {"name": "shared", "namespace": provider.namespace}})).await;
    let pod =
        wait_for("the provider's pod", || async { pods(&provider).await.pop().ok_or_else(|| "none".to_owned()) }).await;
    assert_eq!(pod["spec"]["containers"][0]["image"], "operator:1");
    assert_eq!(pod["spec"]["serviceAccountName"], "default");
    assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
    let text = pod.to_string();
    assert!(!text.contains("hunter2") && !text.contains(&server.host()), "{text}");
    let (code, said) = run(&provider, &pod).await;
    assert_eq!(code, 0, "{said}");
    let status = json!({"status": {"phase": "Succeeded", "containerStatuses": [{
        "name": "build", "image": "operator:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 0, "message": said}},
    }]}});
    let name = pod["metadata"]["name"].as_str().unwrap();
    provider.api("v1", "Pod").patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    user.ready("x", "v1").await;
    assert_eq!(pods(&user).await.len(), 0, "a pod in the user's namespace");
    assert_eq!(user.api("batch/v1", "Job").list(&ListParams::default()).await.unwrap().items.len(), 0);
    for map in user.api("v1", "ConfigMap").list(&ListParams::default()).await.unwrap().items {
        assert!(!serde_json::to_string(&map).unwrap().contains("recipe.json"), "{map:?}");
    }
}
