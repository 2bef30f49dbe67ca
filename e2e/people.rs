//! The two people of the design, with the roles that `deploy/people-rights.yaml` ships: the provider holds sources,
//! templates and credentials, the user holds ClusterStacks and Clusters.

use std::path::PathBuf;

use clusterstack::api::{API_VERSION, INFRASTRUCTURE_API_VERSION, WATCH_LABEL};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::Kubeconfig;
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::harness::{
    CLASS, CLUSTER_API, ImageServer, Operator, Repo, World, check, client_of, cluster, may, sum, wait_for,
};

const TEMPLATE: &str = "ProviderClusterStackReleaseTemplate";
const V1: &str = "docker-x-1-34-v1";
const CONTENT: &[u8] = b"an image";
const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// Somebody, known to the API server by name alone.
struct Person {
    client: Client,
    kubeconfig: PathBuf,
}

impl Person {
    /// One with a role in the world's namespace.
    async fn new(t: &World, name: &str, role: &str) -> Self {
        let name = format!("{name}-{}", t.namespace);
        t.apply(&json!({
            "apiVersion": RBAC, "kind": "RoleBinding", "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}],
        }))
        .await;
        let mut config = Kubeconfig::read_from(&t.plane.kubeconfig).unwrap();
        for user in &mut config.auth_infos {
            user.auth_info.as_mut().unwrap().impersonate = Some(name.clone());
        }
        let kubeconfig = t.dir().join(format!("{name}.kubeconfig"));
        std::fs::write(&kubeconfig, serde_json::to_string(&config).unwrap()).unwrap();
        Self { client: client_of(&kubeconfig).await, kubeconfig }
    }

    fn api(&self, namespace: &str, api_version: &str, kind: &str) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }

    /// Makes or changes an object as this person.
    async fn put(&self, namespace: &str, object: &Value) -> Result<(), kube::Error> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap();
        let api = self.api(namespace, text("/apiVersion"), text("/kind"));
        let params = PatchParams::apply("person").force();
        api.patch(text("/metadata/name"), &params, &Patch::Apply(object)).await.map(drop)
    }

    /// What `clusterstack` prints, and whether it was content.
    fn clusterstack(&self, namespace: &str, args: &[&str]) -> (bool, String) {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_clusterstack"))
            .args(args)
            .args(["--namespace", namespace])
            .env("KUBECONFIG", &self.kubeconfig)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }
}

/// RBAC said no.
fn is_refused<T: std::fmt::Debug>(what: &str, result: Result<T, kube::Error>) {
    match result {
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains("cannot") => {}
        other => panic!("{what}: {other:?}"),
    }
}

/// What the provider holds: credentials, a template, a source for the user's namespace.
async fn provide(person: &Person, provider: &World, user: &World, server: &ImageServer, url: &str) {
    let label = json!({WATCH_LABEL: provider.namespace});
    let login = json!({"token": "swordfish", "host": server.host()});
    let images = provider.dir().canonicalize().unwrap().join("images");
    std::fs::create_dir_all(&images).unwrap();
    for object in [
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": login}),
        json!({"apiVersion": INFRASTRUCTURE_API_VERSION, "kind": TEMPLATE, "metadata": {"name": "t"}, "spec": {
            "template": {"metadata": {"labels": label}, "spec": {}}, "build": {"secretRef": {"name": "login"}},
            "destination": {"directory": {"path": images}}, "imageGracePeriod": "0s",
        }}),
        json!({"apiVersion": API_VERSION, "kind": "ClusterStackSource",
            "metadata": {"name": "shared", "labels": label}, "spec": {
                "interval": "10s", "source": {"git": {"url": url}},
                "providerRef": {"apiVersion": INFRASTRUCTURE_API_VERSION, "kind": TEMPLATE, "name": "t"},
                "allowedNamespaces": {"names": [user.namespace]},
        }}),
    ] {
        person.put(&provider.namespace, &object).await.unwrap_or_else(|error| panic!("{object}: {error}"));
    }
}

fn repo_with_an_image(t: &World, server: &ImageServer) -> Repo {
    let repo = t.repo();
    let image =
        format!("{{name: plain, url: '{}', checksum: 'sha256:{}', format: raw}}", server.url("a.raw"), sum(CONTENT));
    let list = format!("apiVersion: nodeimages.clusterstack.x-k8s.io/v1alpha1\nimages:\n- {image}\n");
    repo.write("stacks/docker/x/node-images.yaml", &list);
    repo.release(V1, CLASS);
    repo
}

/// What the user is refused, in the own namespace and in the provider's.
async fn refused(alice: &Person, provider: &World, user: &World) {
    let (theirs, own) = (provider.namespace.as_str(), user.namespace.as_str());
    is_refused("credentials", alice.api(theirs, "v1", "Secret").get("login").await);
    is_refused("list of credentials", alice.api(theirs, "v1", "Secret").list(&ListParams::default()).await);
    is_refused("own Secrets", alice.api(own, "v1", "Secret").list(&ListParams::default()).await);
    is_refused("source", alice.api(theirs, API_VERSION, "ClusterStackSource").get("shared").await);
    let source = |name: &str| {
        json!({"apiVersion": API_VERSION, "kind": "ClusterStackSource", "metadata": {"name": name},
            "spec": {"source": {"git": {"url": "https://evil.example.org/x"}}}})
    };
    let template = |name: &str| {
        json!({"apiVersion": INFRASTRUCTURE_API_VERSION, "kind": TEMPLATE, "metadata": {"name": name},
            "spec": {"template": {"spec": {}}, "destination": {"directory": {"path": "/evil"}}}})
    };
    let image = json!({"apiVersion": INFRASTRUCTURE_API_VERSION, "kind": "ProviderNodeImageRelease",
        "metadata": {"name": "i"}, "spec": {"templateRef": {"name": "t", "namespace": theirs}, "inputs": "sha256:0",
            "image": {"name": "i", "steps": [{"name": "download", "download": {"url": "https://evil.example.org/a"}}]}}});
    for namespace in [theirs, own] {
        for object in [source("shared"), source("new"), template("t"), template("new"), image.clone()] {
            is_refused(&object.to_string(), alice.put(namespace, &object).await);
        }
    }
    let merge = |change: Value| Patch::Merge(change);
    let params = PatchParams::default();
    let releases = alice.api(own, API_VERSION, "ClusterStackRelease");
    let note = json!({"metadata": {"annotations": {"a": "b"}}});
    is_refused("release", releases.patch(V1, &params, &merge(note)).await);
    is_refused("its deletion", releases.delete(V1, &Default::default()).await);
    let ready = json!({"status": {"ready": true}});
    for kind in ["ClusterStackRelease", "ClusterStack", "ClusterAddon"] {
        let api = alice.api(own, API_VERSION, kind);
        is_refused(kind, api.patch_status(V1, &params, &merge(ready.clone())).await);
    }
    for kind in ["ProviderClusterStackRelease", "ProviderNodeImageRelease"] {
        let api = alice.api(own, INFRASTRUCTURE_API_VERSION, kind);
        is_refused(kind, api.patch_status(V1, &params, &merge(ready.clone())).await);
    }
}

#[tokio::test]
async fn a_user_gets_a_cluster_of_what_a_provider_offers_and_never_what_is_the_providers() {
    let (provider, user) = (World::new("peopleprov").await, World::new("peopleuser").await);
    let server = ImageServer::new(CONTENT).await;
    let repo = repo_with_an_image(&provider, &server);
    let root = provider.dir().canonicalize().unwrap();
    let (images, work) = (root.join("images"), root.join("work"));
    let host = server.host();
    let flags = [
        "--watch-filter",
        &provider.namespace,
        "--allow-source",
        &host,
        "--image-dir",
        work.to_str().unwrap(),
        "--allow-image-directory",
        images.to_str().unwrap(),
    ];
    let _operator = Operator::start(&provider, provider.plane.operator_kubeconfig(), &flags);
    let paul = Person::new(&provider, "paul", "clusterstack-provider").await;
    let alice = Person::new(&user, "alice", "clusterstack-user").await;
    provide(&paul, &provider, &user, &server, &repo.url()).await;
    wait_for("the provider to see what is offered", || async {
        let source = paul.api(&provider.namespace, API_VERSION, "ClusterStackSource").get("shared").await.unwrap();
        let source = source.data;
        check(source["status"]["releases"][0]["name"] == V1, &source)
    })
    .await;

    let label = json!({WATCH_LABEL: provider.namespace});
    let stack = json!({"apiVersion": API_VERSION, "kind": "ClusterStack", "metadata": {"name": "x", "labels": label},
        "spec": {"provider": "docker", "name": "x", "kubernetesVersion": "1.34", "interval": "10s",
            "sourceRef": {"name": "shared", "namespace": provider.namespace}}});
    alice.put(&user.namespace, &stack).await.unwrap();
    user.ready("x", "v1").await;
    let mut shop = cluster("shop", "docker-x-1-34-v1");
    shop["metadata"]["labels"] = label;
    alice.put(&user.namespace, &shop).await.unwrap();
    user.there(API_VERSION, "ClusterAddon", "cluster-addon-shop").await;

    // She sees how all of it is.
    for (api_version, kind) in [
        (API_VERSION, "ClusterStack"),
        (API_VERSION, "ClusterStackRelease"),
        (API_VERSION, "ClusterAddon"),
        (INFRASTRUCTURE_API_VERSION, "ProviderClusterStackRelease"),
        (INFRASTRUCTURE_API_VERSION, "ProviderNodeImageRelease"),
    ] {
        wait_for(format!("the status of a {kind}"), || async {
            let all = alice.api(&user.namespace, api_version, kind).list(&ListParams::default()).await.unwrap().items;
            check(all.len() == 1 && all[0].data["status"].is_object(), &all)
        })
        .await;
    }
    let events = alice.api(&user.namespace, "events.k8s.io/v1", "Event").list(&ListParams::default()).await.unwrap();
    assert!(events.items.iter().any(|event| event.data["reason"] == "ReleaseCreated"), "{events:?}");
    for args in [["tree"].as_slice(), &["releases"], &["images"]] {
        let (content, text) = alice.clusterstack(&user.namespace, args);
        assert!(content && text.contains("docker-x-1-34-v1") && !text.contains("forbidden"), "{args:?}: {text}");
    }
    refused(&alice, &provider, &user).await;

    // The provider has no say in the user's namespace.
    is_refused("her ClusterStack", paul.api(&user.namespace, API_VERSION, "ClusterStack").get("x").await);
    is_refused("one of his own", paul.put(&provider.namespace, &stack).await);
    let clusters = alice.api(&user.namespace, CLUSTER_API, "Cluster");
    clusters.delete("shop", &Default::default()).await.unwrap();
    alice.api(&user.namespace, API_VERSION, "ClusterStack").delete("x", &Default::default()).await.unwrap();
    user.stack_gone("x").await;
}

#[tokio::test]
async fn the_roles_for_people_are_part_of_kubernetes_own() {
    let t = World::new("peopleown").await;
    if !t.plane.collects_garbage() {
        return crate::harness::skipped("roles are not gathered: this control plane has no controllers");
    }
    for role in ["view", "edit", "admin"] {
        let subjects = json!([{"kind": "User", "name": format!("{role}-{}", t.namespace), "apiGroup": "rbac.authorization.k8s.io"}]);
        t.apply(&json!({"apiVersion": RBAC, "kind": "RoleBinding", "metadata": {"name": role}, "subjects": subjects,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}}))
            .await;
    }
    let (ours, infrastructure) = (clusterstack::api::GROUP, clusterstack::api::INFRASTRUCTURE_GROUP);
    for (role, group, resource, verb, expected) in [
        ("view", ours, "clusterstacks", "watch", true),
        ("view", infrastructure, "providernodeimagereleases", "list", true),
        ("view", ours, "clusterstacks", "create", false),
        ("edit", ours, "clusterstacks", "create", true),
        ("edit", "cluster.x-k8s.io", "clusters", "create", true),
        ("edit", ours, "clusterstacksources", "create", false),
        ("edit", ours, "clusterstackreleases", "patch", false),
        ("admin", ours, "clusterstacksources", "create", true),
        ("admin", infrastructure, "providerclusterstackreleasetemplates", "patch", true),
        ("admin", ours, "clusterstackreleases/status", "patch", false),
    ] {
        wait_for(format!("{role}: {verb} {resource} is {expected}"), || async {
            let user = format!("{role}-{}", t.namespace);
            check(may(&t.client, &user, (&t.namespace, group, resource), verb).await == expected, "it is not so")
        })
        .await;
    }
}
