//! Node images of a release, from its list to their destination, by the operator itself: with real files and steps, killed
//! in between.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clusterstack::api::image_release::ProviderNodeImageRelease as Image;
use clusterstack::api::{
    CLONED_FROM_NAME, CLONED_FROM_NAMESPACE, ConditionType, INFRASTRUCTURE_API_VERSION, RETRY_AT, WATCH_LABEL,
};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::harness::{CLASS, ImageServer, Operator, World, check, wait_for, wait_within};

pub(super) const TEMPLATE: &str = "ProviderClusterStackReleaseTemplate";
pub(super) const V1: &str = "docker-x-1-34-v1";

fn destination(t: &World) -> PathBuf {
    t.dir().canonicalize().unwrap().join("images")
}

fn work(t: &World) -> PathBuf {
    t.dir().join("work")
}

/// An operator that may reach the server, always as the same pod.
fn operator(t: &World, server: &ImageServer) -> Operator {
    let (images, work) = (destination(t), work(t));
    let flags = [
        "--image-dir",
        work.to_str().unwrap(),
        "--allow-image-directory",
        images.to_str().unwrap(),
        "--allow-source",
        &server.host(),
        "--allow-image-tool",
        "/bin/cp",
    ];
    Operator::start_with(t, t.plane.operator_kubeconfig(), &flags, &[("POD_NAME", Path::new("builder-0"))])
}

async fn template(t: &World) {
    std::fs::create_dir_all(destination(t)).unwrap();
    let spec = json!({
        "template": {"spec": {}},
        "build": {"concurrency": 4, "retries": 100, "tools": [{"name": "copy", "path": "/bin/cp"}]},
        "destination": {"directory": {"path": destination(t)}},
        "imageGracePeriod": "0s",
    });
    t.apply(
        &json!({"apiVersion": INFRASTRUCTURE_API_VERSION, "kind": TEMPLATE, "metadata": {"name": "t"}, "spec": spec}),
    )
    .await;
}

pub(super) fn provided() -> Value {
    json!({"noProvider": false, "providerRef": {"apiVersion": INFRASTRUCTURE_API_VERSION, "kind": TEMPLATE, "name": "t"}})
}

pub(super) fn sum(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An image that is downloaded, changed by a tool and compressed.
fn made(server: &ImageServer, name: &str, content: &[u8]) -> String {
    format!(
        "- name: {name}\n  format: raw\n  steps:\n  - download: {{url: '{}', checksum: 'sha256:{}'}}\n  \
         - build: {{command: [copy, a.raw, b.raw], output: b.raw}}\n  - compress: {{algorithm: gzip}}\n",
        server.url("a.raw"),
        sum(content)
    )
}

pub(super) fn list(images: &str) -> String {
    format!("apiVersion: nodeimages.clusterstack.x-k8s.io/v1alpha1\nimages:\n{images}")
}

pub(super) async fn images(t: &World) -> Vec<Image> {
    Api::namespaced(t.client.clone(), &t.namespace).list(&ListParams::default()).await.expect("images").items
}

/// Names of what lies in a directory, hidden or not.
pub(super) fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .map(|all| all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

/// What is at the destination but for what describes it.
fn published(t: &World) -> Vec<String> {
    let is_image = |name: &String| !name.ends_with(".json") && name != ".clusterstack.lock";
    names(&destination(t)).into_iter().filter(is_image).collect()
}

#[tokio::test]
async fn a_release_waits_for_its_images_and_they_go_with_it() {
    let t = World::new("imaged").await;
    let content: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    let server = ImageServer::new(&content).await;
    server.set(|mode| mode.pause = Duration::from_millis(400));
    template(&t).await;
    let repo = t.repo();
    let plain = format!(
        "- {{name: plain, url: '{}', checksum: 'sha256:{}', format: raw}}\n",
        server.url("a.raw"),
        sum(&content)
    );
    repo.write("stacks/docker/x/node-images.yaml", &list(&(plain.clone() + &made(&server, "made", &content))));
    repo.release(V1, CLASS);
    let _operator = operator(&t, &server);
    t.create_stack("x", &repo.url(), provided()).await;
    let message = t.stack_says("x", ConditionType::Ready, "False", "Progressing").await;
    assert!(message.contains(V1), "{message}");
    let waits = wait_for("the release to say which image it waits for", || async {
        let release = t.releases().get_opt(V1).await.map_err(|e| e.to_string())?.ok_or("no release")?;
        let ready = release.status.unwrap_or_default().conditions;
        let message = ready.iter().find(|c| c.type_ == "Ready").map(|c| c.message.clone()).unwrap_or_default();
        check(message.contains("plain") || message.contains("made"), &message).map(|()| message)
    })
    .await;
    assert!(waits.contains("ProviderClusterStackRelease"), "{waits}");
    assert!(t.get("cluster.x-k8s.io/v1beta1", "ClusterClass", V1).await.is_none(), "it is applied before its images");
    t.ready("x", "v1").await;
    assert_eq!(published(&t), ["made", "plain"]);
    assert_eq!(std::fs::read(destination(&t).join("plain")).unwrap(), content);

    // A release that shares an image does not make it anew.
    let asked = server.asked().len();
    repo.write("stacks/docker/x/node-images.yaml", &list(&plain));
    repo.release("docker-x-1-34-v2", CLASS);
    t.look_again("x").await;
    t.ready("x", "v2").await;
    assert_eq!(server.asked().len(), asked);
    wait_for("the image that nobody has to go", || async { check(published(&t) == ["plain"], published(&t)) }).await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    wait_for("all images to go", || async { check(published(&t).is_empty(), published(&t)) }).await;
    assert_eq!(names(&work(&t)), ["logs"]);
    let logs = || names(&work(&t).join("logs"));
    wait_for("the logs to go with the images", || async { check(logs().is_empty(), logs()) }).await;
}

/// Denies images of a name in the namespace, as somebody's admission webhook may.
fn deny_images(t: &World, image: &str) -> PathBuf {
    let name = &t.namespace;
    let rule = "{apiGroups: [infrastructure.clusterstack.x-k8s.io], apiVersions: ['*'], operations: [CREATE], resources: [providernodeimagereleases]}";
    let policy = format!(
        "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nmetadata: {{name: {name}}}\n\
         spec: {{matchConstraints: {{resourceRules: [{rule}]}}, validations: [{{expression: \"object.spec.image.name != '{image}'\", message: no such image here}}]}}\n---\n\
         apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyBinding\nmetadata: {{name: {name}}}\n\
         spec: {{policyName: {name}, validationActions: [Deny], matchResources: {{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {name}}}}}}}}}\n"
    );
    let file = t.dir().join("policy.yaml");
    std::fs::write(&file, policy).unwrap();
    t.kubectl(&["apply", "-f", file.to_str().unwrap()]);
    file
}

#[tokio::test]
async fn an_image_whose_object_is_refused_is_told_and_keeps_no_other_from_being_made() {
    let t = World::new("imgrefused").await;
    let content = vec![7; 1000];
    let server = ImageServer::new(&content).await;
    template(&t).await;
    let policy = deny_images(&t, "second");
    // A policy counts a moment after it is there.
    wait_for("the policy to count", || async {
        let image = json!({"name": "second", "steps": [{"name": "a", "compress": {"algorithm": "gzip"}}]});
        let object: Image = serde_json::from_value(json!({
            "apiVersion": INFRASTRUCTURE_API_VERSION, "kind": "ProviderNodeImageRelease", "metadata": {"name": "try"},
            "spec": {"templateRef": {"name": "t"}, "image": image, "inputs": "i"},
        }))
        .unwrap();
        let api: Api<Image> = Api::namespaced(t.client.clone(), &t.namespace);
        let tried = api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object).await;
        let said = tried.err().map(|error| error.to_string()).unwrap_or_default();
        check(said.contains("no such image here"), said)
    })
    .await;
    let one = |name: &str| {
        let (url, sum) = (server.url("a.raw"), sum(&content));
        format!("- {{name: {name}, url: '{url}', checksum: 'sha256:{sum}', format: raw}}\n")
    };
    let repo = t.repo();
    repo.write("stacks/docker/x/node-images.yaml", &list(&["first", "second", "third"].map(one).concat()));
    repo.release(V1, CLASS);
    let _operator = operator(&t, &server);
    t.create_stack("x", &repo.url(), provided()).await;
    let message = ready_says(&t, "ProviderClusterStackRelease", V1, "Forbidden").await;
    assert!(message.contains("image second: creating") && message.contains("no such image here"), "{message}");
    wait_for("all others to be there", || async { check(published(&t) == ["first", "third"], published(&t)) }).await;
    t.kubectl(&["delete", "-f", policy.to_str().unwrap()]);
    t.ready("x", "v1").await;
    assert_eq!(published(&t), ["first", "second", "third"]);
}

#[tokio::test]
async fn an_image_that_vanished_from_its_destination_is_built_again_and_told() {
    let t = World::new("imglost").await;
    let content = b"an image".repeat(1000);
    let server = ImageServer::new(&content).await;
    template(&t).await;
    let often = json!({"spec": {"imageCheckInterval": "1s"}});
    t.change("provider", (INFRASTRUCTURE_API_VERSION, TEMPLATE, "t"), often).await;
    let repo = t.repo();
    let plain = format!(
        "- {{name: plain, url: '{}', checksum: 'sha256:{}', format: raw}}\n",
        server.url("a.raw"),
        sum(&content)
    );
    repo.write("stacks/docker/x/node-images.yaml", &list(&plain));
    repo.release(V1, CLASS);
    let _operator = operator(&t, &server);
    t.create_stack("x", &repo.url(), provided()).await;
    t.ready("x", "v1").await;

    // Our mark is taken off: it is put back.
    let record = destination(&t).join("plain.clusterstack.json");
    let mut marked: Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    let users = marked["users"].take();
    assert_eq!(users.as_array().map(Vec::len), Some(1));
    marked["users"] = json!(["another-cluster"]);
    std::fs::write(&record, marked.to_string()).unwrap();
    t.event("ImageMarked", "plain").await;
    let marked: Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    let marked = marked["users"].as_array().unwrap();
    assert!(
        marked.len() == 2 && marked.contains(&users[0]) && marked.contains(&json!("another-cluster")),
        "{marked:?}"
    );

    // It is removed behind our back.
    server.set(|mode| mode.status = Some(503));
    std::fs::remove_file(destination(&t).join("plain")).unwrap();
    std::fs::remove_file(&record).unwrap();
    t.event("ImageLost", "plain").await;
    let image = images(&t).await[0].metadata.name.clone().unwrap();
    wait_for("the image to be no longer ready", || async {
        let object = t.get(INFRASTRUCTURE_API_VERSION, "ProviderNodeImageRelease", &image).await.ok_or("nothing")?;
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready").cloned().unwrap_or_default();
        check(ready["status"] == "False", &conditions)
    })
    .await;
    t.release(V1, "to say that it waits for its image", |release| {
        check(release.status.as_ref().is_some_and(|status| !status.ready), &release.status)
    })
    .await;
    // What the ClusterStack says comes a moment later.
    t.stack("x", "to wait for its release", |stack| {
        let conditions = stack.status.clone().unwrap_or_default().conditions;
        check(conditions.iter().any(|c| c.type_ == "Ready" && c.status == "False"), &conditions)
    })
    .await;
    server.set(|mode| mode.status = None);
    let again = json!({"metadata": {"annotations": {RETRY_AT: "now"}}});
    t.change("user", (INFRASTRUCTURE_API_VERSION, "ProviderNodeImageRelease", &image), again).await;
    t.ready("x", "v1").await;
    assert_eq!(std::fs::read(destination(&t).join("plain")).unwrap(), content);

    // Without its template it stays, and says what is to be done.
    t.delete(INFRASTRUCTURE_API_VERSION, TEMPLATE, "t").await;
    wait_for("the image to say that its template is gone", || async {
        let object = t.get(INFRASTRUCTURE_API_VERSION, "ProviderNodeImageRelease", &image).await.ok_or("nothing")?;
        let message = object["status"]["conditions"][0]["message"].as_str().unwrap_or_default().to_owned();
        check(message.contains("the image is at") && message.contains("create it again"), &message)
    })
    .await;
}

#[tokio::test]
async fn an_object_of_an_image_that_is_deleted_while_a_release_wants_it_is_made_again_at_once() {
    let t = World::new("imggone").await;
    let content = b"an image".repeat(1000);
    let server = ImageServer::new(&content).await;
    template(&t).await;
    let repo = t.repo();
    let plain = format!(
        "- {{name: plain, url: '{}', checksum: 'sha256:{}', format: raw}}\n",
        server.url("a.raw"),
        sum(&content)
    );
    repo.write("stacks/docker/x/node-images.yaml", &list(&plain));
    repo.release(V1, CLASS);
    let _operator = operator(&t, &server);
    t.create_stack("x", &repo.url(), provided()).await;
    t.ready("x", "v1").await;
    let before = images(&t).await[0].metadata.clone();
    t.delete(INFRASTRUCTURE_API_VERSION, "ProviderNodeImageRelease", before.name.as_deref().unwrap()).await;
    wait_within(Duration::from_secs(60), "the image's object to be there again", || async {
        let now = images(&t).await;
        check(now.iter().any(|image| image.metadata.uid != before.uid), &now)
    })
    .await;
    t.ready("x", "v1").await;
    assert_eq!(std::fs::read(destination(&t).join("plain")).unwrap(), content);
}

#[tokio::test]
async fn a_template_lists_no_tool_that_the_operator_does_not_allow() {
    let t = World::new("imgtool").await;
    let content = b"an image".repeat(1000);
    let server = ImageServer::new(&content).await;
    template(&t).await;
    let tools =
        json!({"spec": {"build": {"tools": [{"name": "copy", "path": "/bin/cp"}, {"name": "sh", "path": "/bin/sh"}]}}});
    t.change("provider", (INFRASTRUCTURE_API_VERSION, TEMPLATE, "t"), tools).await;
    let repo = t.repo();
    repo.write("stacks/docker/x/node-images.yaml", &list(&made(&server, "made", &content)));
    repo.release(V1, CLASS);
    let _operator = operator(&t, &server);
    t.create_stack("x", &repo.url(), provided()).await;
    wait_for("the image to say why it is not built", || async {
        let all =
            serde_json::to_string(&images(&t).await.iter().map(|image| &image.status).collect::<Vec<_>>()).unwrap();
        check(all.contains("the operator runs no \\\"/bin/sh\\\" for templates"), all)
    })
    .await;
    assert!(published(&t).is_empty());
}

const STACK: &str = clusterstack::api::API_VERSION;

/// The object with the label that the operator goes by.
fn labelled(t: &World, mut object: Value) -> Value {
    object["metadata"]["labels"] = json!({WATCH_LABEL: t.namespace});
    object
}

/// Waits for the condition Ready of an object to have a reason; its message.
async fn ready_says(t: &World, kind: &str, name: &str, reason: &str) -> String {
    wait_for(format!("{kind} {name} to say {reason}"), || async {
        let object = t.get(INFRASTRUCTURE_API_VERSION, kind, name).await.ok_or("nothing")?;
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready").cloned().unwrap_or_default();
        check(ready["reason"] == reason, &conditions).map(|()| ready["message"].as_str().unwrap_or_default().to_owned())
    })
    .await
}

#[tokio::test]
async fn images_of_a_shared_source_are_made_by_the_template_that_it_names_and_by_nobody_elses_word() {
    let (provider, user) = (World::new("imglend").await, World::new("imguse").await);
    let content = b"an image".repeat(1000);
    let server = ImageServer::new(&content).await;
    let (images, work) = (destination(&provider), work(&provider));
    std::fs::create_dir_all(&images).unwrap();
    let flags = ["--watch-filter", &provider.namespace, "--image-dir", work.to_str().unwrap()];
    let more = ["--allow-image-directory", images.to_str().unwrap(), "--allow-source", &server.host()];
    let login = json!({"token": "swordfish", "host": server.host()});
    provider
        .apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": login}))
        .await;
    let template = json!({
        "apiVersion": INFRASTRUCTURE_API_VERSION, "kind": TEMPLATE, "metadata": {"name": "t"},
        "spec": {
            "template": {"metadata": {"labels": {WATCH_LABEL: provider.namespace}}, "spec": {}},
            "build": {"secretRef": {"name": "login"}},
            "destination": {"directory": {"path": images}}, "imageGracePeriod": "0s",
        },
    });
    provider.apply(&template).await;
    let repo = provider.repo();
    let plain = format!(
        "- {{name: plain, url: '{}', checksum: 'sha256:{}', format: raw}}\n",
        server.url("a.raw"),
        sum(&content)
    );
    repo.write("stacks/docker/x/node-images.yaml", &list(&plain));
    repo.release(V1, CLASS);
    let reference = json!({"apiVersion": INFRASTRUCTURE_API_VERSION, "kind": TEMPLATE, "name": "t"});
    let source = json!({"apiVersion": STACK, "kind": "ClusterStackSource", "metadata": {"name": "shared"}, "spec": {
        "interval": "10s", "source": {"git": {"url": repo.url()}}, "providerRef": reference,
        "allowedNamespaces": {"names": [user.namespace]},
    }});
    provider.apply(&labelled(&provider, source)).await;
    let operator =
        Operator::start(&provider, provider.plane.operator_kubeconfig(), &[flags.as_slice(), &more].concat());

    // The same release, from a source of the user's own: it does not get to the provider's template by naming it.
    let own = json!({"apiVersion": STACK, "kind": "ClusterStack", "metadata": {"name": "x"}, "spec": {
        "provider": "docker", "name": "x", "kubernetesVersion": "1.34", "interval": "10s",
        "source": {"git": {"url": repo.url()}}, "noProvider": true,
    }});
    user.apply(&labelled(&provider, own)).await;
    let release = user.release_ready(V1).await;
    let forged = json!({
        "apiVersion": INFRASTRUCTURE_API_VERSION, "kind": "ProviderClusterStackRelease",
        "metadata": {
            "name": "forged",
            "annotations": {CLONED_FROM_NAME: "t", CLONED_FROM_NAMESPACE: provider.namespace},
            "ownerReferences": [{"apiVersion": STACK, "kind": "ClusterStackRelease", "name": V1,
                "uid": release.metadata.uid}],
        },
        "spec": {},
    });
    user.apply(&labelled(&provider, forged)).await;
    let why = ready_says(&user, "ProviderClusterStackRelease", "forged", "ProviderTemplateNotAllowed").await;
    assert!(why.contains("a source of its own"), "{why}");
    // Nor does it when the ClusterStack names the shared source now: what was fetched came from elsewhere.
    let shared = json!({"spec": {"source": null, "noProvider": false,
        "sourceRef": {"name": "shared", "namespace": provider.namespace}}});
    user.change_stack("x", shared).await;
    wait_for("the word of where it was fetched", || async {
        let why = ready_says(&user, "ProviderClusterStackRelease", "forged", "ProviderTemplateNotAllowed").await;
        check(why.contains("fetched from elsewhere"), &why)
    })
    .await;
    // An object that somebody wrote by hand is nobody's.
    let recipe = json!({"name": "theirs", "steps": [{"name": "download", "download": {"url": server.url("a.raw")}}]});
    let theirs = json!({
        "apiVersion": INFRASTRUCTURE_API_VERSION, "kind": "ProviderNodeImageRelease", "metadata": {"name": "theirs"},
        "spec": {"templateRef": {"name": "t", "namespace": provider.namespace}, "image": recipe, "inputs": "sha256:0"},
    });
    user.apply(&labelled(&provider, theirs)).await;
    ready_says(&user, "ProviderNodeImageRelease", "theirs", "ProviderTemplateNotAllowed").await;
    assert_eq!((published(&provider), server.asked().len()), (vec![], 0));

    // Fetched through the source it is.
    user.delete_stack("x").await;
    user.stack_gone("x").await;
    let spec = json!({"provider": "docker", "name": "x", "kubernetesVersion": "1.34", "interval": "10s",
        "sourceRef": {"name": "shared", "namespace": provider.namespace}});
    let stack = json!({"apiVersion": STACK, "kind": "ClusterStack", "metadata": {"name": "x"}, "spec": spec});
    user.apply(&labelled(&provider, stack)).await;
    user.ready("x", "v1").await;
    assert_eq!(published(&provider), ["plain"]);
    let asked = server.asked();
    assert!(asked[0].to_ascii_lowercase().contains("authorization: bearer swordfish"), "{asked:?}");
    let release = user.get(INFRASTRUCTURE_API_VERSION, "ProviderClusterStackRelease", V1).await.unwrap();
    assert_eq!(release["status"]["template"], format!("{}/t", provider.namespace));
    assert!(user.get("v1", "Secret", "login").await.is_none());
    assert!(user.get(INFRASTRUCTURE_API_VERSION, TEMPLATE, "t").await.is_none());
    for object in [images_of(&user).await, vec![release]].concat() {
        let text = object.to_string();
        assert!(!text.contains("swordfish") && !text.contains("\"login\""), "{text}");
    }

    // What was made while it was allowed is removed when nobody has it any more, allowed or not.
    let nobody = json!({"spec": {"allowedNamespaces": null}});
    provider.change("provider", (STACK, "ClusterStackSource", "shared"), nobody).await;
    user.stack_says("x", ConditionType::Ready, "False", "SourceNotAllowed").await;
    assert_eq!(published(&provider), ["plain"]);
    user.delete_stack("x").await;
    user.stack_gone("x").await;
    wait_for("the image to go", || async { check(published(&provider).is_empty(), published(&provider)) }).await;
    assert!(!operator.log().contains("swordfish"), "the token is shown");
}

async fn images_of(t: &World) -> Vec<Value> {
    images(t).await.iter().map(|image| serde_json::to_value(image).unwrap()).collect()
}
