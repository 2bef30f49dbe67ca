//! Users and pods of images' builds: who may not create Pods gets none through us, and the provider's runs on a Node.

use clusterstack::api::{API_VERSION, ConditionType, INFRASTRUCTURE_API_VERSION, Reason, WATCH_LABEL};
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::harness::{IMAGE, ImageServer, Operator, RegistryServer, SETTINGS, World, check, wait_for};

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

#[tokio::test]
async fn a_user_who_may_not_create_pods_gets_none_through_us_and_the_providers_runs_at_level_restricted() {
    const TEST: &str = "a user who may not create pods gets none";
    let Some(provider) = World::with_pods("imgpods", TEST).await else { return };
    let user = provider.beside("imgnopods").await;
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
    let more = ["--allow-source", &server.host(), "--allow-source", &registry.host, "--image-job-image", IMAGE];
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
    server.set(|mode| mode.held = vec!["a.raw".into()]);
    create("x", json!({"sourceRef": {"name": "shared", "namespace": provider.namespace}})).await;
    let pod =
        wait_for("the provider's pod", || async { pods(&provider).await.pop().ok_or_else(|| "none".to_owned()) }).await;
    assert_eq!(pod["spec"]["containers"][0]["image"], IMAGE);
    assert_eq!(pod["spec"]["serviceAccountName"], "default");
    assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
    let text = pod.to_string();
    assert!(!text.contains("hunter2") && !text.contains(&server.host()), "{text}");
    server.set(|mode| mode.held.clear());
    user.ready("x", "v1").await;
    assert_eq!(pods(&user).await.len(), 0, "a pod in the user's namespace");
    assert_eq!(user.api("batch/v1", "Job").list(&ListParams::default()).await.unwrap().items.len(), 0);
    for map in user.api("v1", "ConfigMap").list(&ListParams::default()).await.unwrap().items {
        assert!(!serde_json::to_string(&map).unwrap().contains("recipe.json"), "{map:?}");
    }
}
