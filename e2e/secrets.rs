//! Secrets never show: a secret of its own is planted in every place where one may come in, a life cycle with failures is
//! gone through, and each place where something is told is searched for all of them, in each form.

use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use clusterstack::api::{ADDON_VALUES, API_VERSION, ConditionType, INFRASTRUCTURE_API_VERSION};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::addon::{Workload, kubeconfig, look_again, ready, says};
use crate::harness::{CLASS, GitServer, ImageServer, Mood, Operator, SETTINGS, World, check, cluster, sum, wait_for};

const V1: &str = "docker-x-1-34-v1";
const TEMPLATE: &str = "ProviderClusterStackReleaseTemplate";
const CONTENT: &[u8] = b"an image";

/// The secrets, each where it is planted.
const GIT_PASSWORD: &str = "plantedGitPassword1f";
const GIT_TOKEN: &str = "plantedGitToken2e";
const URL_PASSWORD: &str = "plantedUrlPassword3d";
const PROXY_PASSWORD: &str = "plantedProxyPassword4c";
const PROXY_URL: &str = "plantedProxyUrlPassword5b";
const SSH_KEY: &str = "plantedSshKey6a";
const TLS_KEY: &str = "plantedTlsKey7f";
const VERIFY_KEY: &str = "plantedVerifyKey8e";
const COSIGN_KEY: &str = "plantedCosignKey9d";
const REGISTRY_PASSWORD: &str = "plantedRegistryPassword0c";
const FORGE_TOKEN: &str = "plantedForgeToken1b";
const HOOK_TOKEN: &str = "plantedHookToken2a";
const ENVIRONMENT: &str = "plantedEnvironment3f";
const KUBE_TOKEN: &str = "plantedKubeToken4e";
const KUBE_TEXT: &str = "plantedKubeText5d";
const VALUE: &str = "plantedValue6c";
const UPLOAD_PASSWORD: &str = "plantedUploadPassword7b";
const DOWNLOAD_TOKEN: &str = "plantedDownloadToken8a";
const S3_KEY: &str = "plantedS3Key9f";
const GLANCE_PASSWORD: &str = "plantedGlancePassword0e";

const PLANTED: &[&str] = &[
    GIT_PASSWORD,
    GIT_TOKEN,
    URL_PASSWORD,
    PROXY_PASSWORD,
    PROXY_URL,
    SSH_KEY,
    TLS_KEY,
    VERIFY_KEY,
    COSIGN_KEY,
    REGISTRY_PASSWORD,
    FORGE_TOKEN,
    HOOK_TOKEN,
    ENVIRONMENT,
    KUBE_TOKEN,
    KUBE_TEXT,
    VALUE,
    UPLOAD_PASSWORD,
    DOWNLOAD_TOKEN,
    S3_KEY,
    GLANCE_PASSWORD,
];

/// A secret in the forms in which it may show: as it is, in base64 wherever it begins, in hexadecimal.
fn forms(secret: &str) -> Vec<String> {
    let mut forms = vec![secret.to_owned(), secret.bytes().map(|byte| format!("{byte:02x}")).collect()];
    for before in 0..3 {
        let text = STANDARD_NO_PAD.encode([&vec![0; before], secret.as_bytes()].concat());
        // What is made of other bytes, too, is left out.
        let from = [0, 2, 3][before];
        forms.push(text[from..text.len() - 2].to_owned());
    }
    forms
}

/// Fails if a text holds one of them.
fn search(place: &str, text: &str, planted: &[String]) {
    for secret in planted {
        for form in forms(secret) {
            if let Some(at) = text.find(&form) {
                let from = (at.saturating_sub(300)..=at).find(|from| text.is_char_boundary(*from)).unwrap();
                panic!("{place} shows {secret} as {form}: …{}", &text[from..at + form.len()]);
            }
        }
    }
}

async fn secret(t: &World, name: &str, data: Value) {
    t.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data})).await;
}

/// ClusterStacks that come to nothing, each for a secret that is of no use; their names.
async fn failing(t: &World, server: &GitServer, url: &str) -> Vec<&'static str> {
    let dead = "127.0.0.1:1";
    let key = format!("-----BEGIN OPENSSH PRIVATE KEY-----\n{SSH_KEY}\n-----END OPENSSH PRIVATE KEY-----\n");
    let tls = format!("-----BEGIN PRIVATE KEY-----\n{TLS_KEY}\n-----END PRIVATE KEY-----\n");
    let auth = base64::engine::general_purpose::STANDARD.encode(format!("robot:{REGISTRY_PASSWORD}"));
    let auths = json!({"auths": {dead: {"auth": auth}}}).to_string();
    for (name, data) in [
        ("token", json!({"token": GIT_TOKEN})),
        ("ssh", json!({"identity": key, "known_hosts": format!("{dead} ssh-ed25519 {SSH_KEY}")})),
        (
            "proxy",
            json!({"address": format!("http://u:{PROXY_URL}@{dead}"), "username": "u", "password": PROXY_PASSWORD}),
        ),
        ("tls", json!({"ca.crt": TLS_KEY, "tls.crt": TLS_KEY, "tls.key": tls})),
        ("verify", json!({"a.pub": format!("ssh-ed25519 {VERIFY_KEY}"), "b.asc": VERIFY_KEY})),
        ("cosign", json!({"c.pub": format!("-----BEGIN PUBLIC KEY-----\n{COSIGN_KEY}\n-----END PUBLIC KEY-----\n")})),
        ("forge", json!({"token": FORGE_TOKEN})),
        ("registry", json!({"username": "robot", "password": REGISTRY_PASSWORD})),
    ] {
        secret(t, name, data).await;
    }
    let config = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
        "metadata": {"name": "docker"}, "stringData": {".dockerconfigjson": auths}});
    t.apply(&config).await;
    let git = |more: Value| {
        let mut source = json!({"git": {"url": url}});
        json_patch::merge(&mut source["git"], &more);
        json!({"source": source})
    };
    let of = |secret: &str| json!({"name": secret});
    let oci = |secret: &str| json!({"source": {"git": null, "oci": {"repository": format!("{dead}/x"), "insecure": true, "secretRef": of(secret)}}});
    let in_url = format!("http://u:{URL_PASSWORD}@{}/none/.git", server.host());
    let specs = [
        ("token", git(json!({"secretRef": of("token")}))),
        ("url", git(json!({"url": in_url}))),
        ("ssh", git(json!({"url": format!("ssh://git@{dead}/x.git"), "secretRef": of("ssh")}))),
        ("proxy", git(json!({"url": format!("https://{dead}/x.git"), "proxySecretRef": of("proxy")}))),
        ("tls", git(json!({"url": format!("https://{dead}/x.git"), "certSecretRef": of("tls")}))),
        ("unsigned", {
            let mut spec = git(json!({"secretRef": of("login")}));
            spec["verify"] = json!({"git": {"secretRef": of("verify")}});
            spec["name"] = json!("y");
            spec
        }),
        ("cosign", {
            let mut spec = oci("registry");
            spec["verify"] = json!({"cosign": {"secretRef": of("cosign")}});
            spec
        }),
        ("docker", oci("docker")),
        (
            "forge",
            json!({"source": {"git": null, "gitlab": {
            "url": format!("http://{dead}"), "project": "a/b", "secretRef": of("forge")}}}),
        ),
        ("default", json!({"source": null})),
    ];
    let mut names = Vec::new();
    for (name, spec) in specs {
        t.create_stack(name, url, spec).await;
        names.push(name);
    }
    names
}

/// A provider's templates whose credentials are of no use, and images by them.
async fn images(t: &World, server: &ImageServer) {
    let dead = "127.0.0.1:1";
    let clouds = format!(
        "clouds: {{openstack: {{auth: {{auth_url: 'https://{dead}', username: u, password: {GLANCE_PASSWORD}, \
         project_name: p, user_domain_name: d, project_domain_name: d}}}}}}"
    );
    secret(t, "download", json!({"token": DOWNLOAD_TOKEN, "host": server.host()})).await;
    secret(t, "upload", json!({"username": "u", "password": UPLOAD_PASSWORD})).await;
    secret(t, "s3", json!({"accessKeyId": "id", "secretAccessKey": S3_KEY})).await;
    secret(t, "glance", json!({"clouds.yaml": clouds})).await;
    for (name, destination) in [
        (
            "http",
            json!({"http": {"url": format!("http://{dead}/"), "insecure": true, "secretRef": {"name": "upload"}}}),
        ),
        (
            "s3",
            json!({"s3": {"endpoint": format!("http://{dead}"), "insecure": true, "bucket": "b", "region": "r",
            "secretRef": {"name": "s3"}}}),
        ),
        ("glance", json!({"glance": {"cloud": "openstack", "secretRef": {"name": "glance"}}})),
    ] {
        t.apply(
            &json!({"apiVersion": INFRASTRUCTURE_API_VERSION, "kind": TEMPLATE, "metadata": {"name": name}, "spec": {
                "template": {"spec": {}}, "build": {"retries": 0, "secretRef": {"name": "download"}},
                "destination": destination, "imageGracePeriod": "0s",
            }}),
        )
        .await;
        let image = json!({"name": name, "format": "raw", "url": server.url("a.raw"), "checksum": format!("sha256:{}", sum(CONTENT))});
        crate::harness::Images::of(t).make_by(name, &image).await;
    }
}

/// An addon whose chart fails with what it was given, until it is told not to.
fn chart(w: &Workload, repo: &crate::harness::Repo) {
    repo.write(
        "stacks/docker/x/clusteraddon.yaml",
        "apiVersion: clusteraddonconfig.x-k8s.io/v1alpha1\nallowValues: true\naddonStages:\n  AfterControlPlaneInitialized:\n    - {name: cni, action: apply}\n",
    );
    w.chart(repo, "cni", &["cni"], "{color: {{ .Values.color | quote }}}");
    let body = "{{ if eq .Values.color \"red\" }}{{ fail .Values.password }}{{ end }}\napiVersion: v1\nkind: Secret\nmetadata: {name: NAME}\nstringData: {password: {{ .Values.password | quote }}, color: {{ .Values.color | quote }}}\n";
    let dir = "stacks/docker/x/cluster-addon/cni";
    repo.write(&format!("{dir}/templates/secret.yaml"), &body.replace("NAME", &format!("{}-secret", w.prefix)));
}

async fn values(t: &World, color: &str) {
    secret(t, "values", json!({"values.yaml": format!("cni: {{color: {color}, password: {VALUE}}}")})).await;
}

/// Those that are no YAML.
async fn broken_values(t: &World) {
    secret(t, "values", json!({"values.yaml": format!("cni: {{password: {VALUE}")})).await;
}

/// What all our objects say, without what people wrote into them.
async fn told(t: &World) -> Vec<(String, String)> {
    let mut told = Vec::new();
    for (api_version, kind) in [
        (API_VERSION, "ClusterStack"),
        (API_VERSION, "ClusterStackRelease"),
        (API_VERSION, "ClusterStackSource"),
        (API_VERSION, "ClusterAddon"),
        (API_VERSION, "ClusterUpgradePlan"),
        (INFRASTRUCTURE_API_VERSION, "ProviderClusterStackRelease"),
        (INFRASTRUCTURE_API_VERSION, "ProviderNodeImageRelease"),
    ] {
        for object in t.api(api_version, kind).list(&ListParams::default()).await.unwrap().items {
            let name = object.metadata.name.clone().unwrap_or_default();
            told.push((format!("{kind} {name}"), object.data["status"].to_string()));
        }
    }
    let events: Api<Event> = Api::namespaced(t.client.clone(), &t.namespace);
    for event in events.list(&ListParams::default()).await.unwrap().items {
        told.push(("an event".to_owned(), serde_json::to_string(&event).unwrap()));
    }
    told
}

/// What a command prints, also where it fails.
fn printed(t: &World, server: &GitServer, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clusterstack"));
    command.args(args).args(["--namespace", &t.namespace]).env("KUBECONFIG", &t.plane.kubeconfig);
    if args[0] == "diff" {
        command.args(["--allow-source", server.host()]);
    }
    let output = command.output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[tokio::test]
async fn planted_secrets_are_found_nowhere() {
    let Some(w) = Workload::new().await else { return };
    let t = World::new("planted").await;
    let repo = t.repo();
    chart(&w, &repo);
    repo.release(V1, CLASS);
    repo.release("docker-y-1-34-v1", SETTINGS);
    let server = GitServer::start(repo.dir().parent().unwrap()).await;
    server.set(Mood::Wants("reader", GIT_PASSWORD));
    let url = server.url(&format!("{}/.git", repo.dir().file_name().unwrap().display()));
    let download = ImageServer::new(CONTENT).await;
    let (images_host, work) = (download.host(), t.dir().join("work"));
    let flags = [
        "--allow-source",
        server.host(),
        "--allow-source",
        &images_host,
        "--allow-source",
        "127.0.0.1:1",
        "--receiver-bind-address",
        "127.0.0.1:0",
        "--image-dir",
        work.to_str().unwrap(),
    ];
    let env = [
        ("RUST_LOG", "trace"),
        ("OCI_REGISTRY", "http://127.0.0.1:1"),
        ("OCI_REPOSITORY", "x"),
        ("OCI_USERNAME", "u"),
        ("OCI_PASSWORD", ENVIRONMENT),
    ]
    .map(|(name, value)| (name, Path::new(value)));
    let operator = Operator::start_with(&t, t.plane.operator_kubeconfig(), &flags, &env);

    secret(&t, "login", json!({"username": "reader", "password": GIT_PASSWORD})).await;
    let login = json!({"source": {"git": {"secretRef": {"name": "login"}}}});
    t.create_stack("x", &url, login).await;
    secret(&t, "hook", json!({"token": HOOK_TOKEN})).await;
    t.apply(&json!({"apiVersion": API_VERSION, "kind": "ClusterStackSource", "metadata": {"name": "shared"}, "spec": {
        "interval": "10s", "receiver": {"secretRef": {"name": "hook"}},
        "source": {"git": {"url": url, "secretRef": {"name": "login"}}},
    }}))
    .await;
    let failing = failing(&t, &server, &url).await;
    images(&t, &download).await;

    // The way of a Cluster, with what goes wrong on it.
    broken_values(&t).await;
    w.kubeconfig(&t, "c").await;
    let lost = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "a", "user": {"token": KUBE_TOKEN}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]});
    kubeconfig(&t, "lost", &lost.to_string()).await;
    kubeconfig(&t, "odd", &format!("users: [{KUBE_TEXT}\n{KUBE_TEXT}: {{")).await;
    t.ready("x", "v1").await;
    for name in ["c", "lost", "odd"] {
        let mut object = cluster(name, V1);
        object["metadata"]["annotations"] = json!({ADDON_VALUES: "Secret/values"});
        t.apply(&object).await;
    }
    says(&t, "c", ConditionType::Ready, "ValuesInvalid").await;
    values(&t, "red").await;
    let message = says(&t, "c", ConditionType::Ready, "RenderFailed").await;
    assert!(message.contains("fail"), "{message}");
    says(&t, "lost", ConditionType::ClusterReachable, "ClusterUnreachable").await;
    wait_for("the odd kubeconfig to be told", || async {
        let found = t.get(API_VERSION, "ClusterAddon", "cluster-addon-odd").await.unwrap_or_default();
        check(found["status"]["conditions"].to_string().contains("kubeconfig"), &found["status"])
    })
    .await;
    values(&t, "blue").await;
    look_again(&t, "c").await;
    ready(&t, "c", V1).await;
    for name in failing {
        t.stack(name, "to be in trouble", |stack| {
            let status = stack.status.clone().unwrap_or_default();
            let ready = clusterstack::api::condition::find(&status.conditions, ConditionType::Ready);
            check(ready.is_some_and(|ready| !ready.is_true() && ready.reason != "Progressing"), &status)
        })
        .await;
    }
    for name in ["http", "s3", "glance"] {
        crate::harness::Images::of(&t).status_is(name, "to fail", |status| !status.message.is_empty()).await;
    }
    for token in ["guessed", HOOK_TOKEN] {
        let path = format!("/hook/{}/shared", t.namespace);
        operator.post("receiver", &path, &[("X-Gitlab-Token", token)], "{}").await;
    }
    // The kubeconfig that is of use holds a key.
    let config = std::fs::read_to_string(w.kubeconfig_path()).unwrap();
    let config: Value = clusterstack::core::yaml::from_str(&config).unwrap();
    let user = &config["users"][0]["user"];
    let key = user["client-key-data"].as_str().or(user["token"].as_str()).expect("a key or a token");
    let mut planted: Vec<String> = PLANTED.iter().map(|secret| (*secret).to_owned()).collect();
    planted.push(key[key.len() / 2..][..40.min(key.len() / 2)].to_owned());

    // A chart with another Secret, as it would be after an upgrade.
    w.chart(
        &repo,
        "cni",
        &["cni"],
        "{color: {{ .Values.color | quote }}, password: {{ .Values.password | sha256sum }}}",
    );
    repo.release("docker-x-1-34-v2", CLASS);
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    let all: [&[&str]; 7] = [
        &["tree"],
        &["tree", "-o", "json"],
        &["releases"],
        &["images"],
        &["images", "-o", "json"],
        &["diff", "c", "--to", "docker-x-1-34-v2"],
        &["diff", "c", "--to", "docker-x-1-34-v2", "-o", "json"],
    ];
    for args in all {
        let text = printed(&t, &server, args);
        assert!(text.len() > 20, "{args:?}: {text}");
        search(&format!("clusterstack {}", args.join(" ")), &text, &planted);
    }
    for (what, path) in [("metrics", "/metrics"), ("probes", "/readyz")] {
        search(path, &operator.get(what, path).await, &planted);
    }
    for (place, text) in told(&t).await {
        search(&place, &text, &planted);
    }
    t.delete("cluster.x-k8s.io/v1beta1", "Cluster", "c").await;
    t.gone(API_VERSION, "ClusterAddon", "cluster-addon-c").await;
    let log = operator.log();
    assert!(log.contains("TRACE") && log.contains("docker-x-1-34-v1"), "{} bytes of log", log.len());
    search("the log", &log, &planted);
    // That they would have been found.
    assert!(std::panic::catch_unwind(|| search("a text", &forms(VALUE)[3], &planted)).is_err());
}
