//! `clusterctl move`, the real one, between two management clusters with Cluster API's own managers.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use clusterstack::api::INFRASTRUCTURE_API_VERSION;
use clusterstack::api::image_release::{ImagePhase, ProviderNodeImageRelease as Image};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use crate::cluster_api::{rolled_out, topology};
use crate::harness::{IN_MEMORY, ImageServer, Operator, World, check, clusterctl, wait_for};
use crate::image_release::{TEMPLATE, images, list, provided, sum};

const V1: &str = "docker-x-1-34-v1";
const NAMES: [&str; 2] = ["plain", "packed"];

/// An operator at work in `t` that reaches all that is in `dir`.
fn operator(t: &World, dir: &Path, server: &ImageServer) -> Operator {
    let (images, work) = (dir.join("images"), t.dir().join("work"));
    let (images, work, root, host) =
        (images.to_str().unwrap(), work.to_str().unwrap(), dir.to_str().unwrap(), server.host());
    t.operator(&[
        "--allow-source",
        root,
        "--allow-source",
        &host,
        "--image-dir",
        work,
        "--allow-image-directory",
        images,
    ])
}

/// How often a release was subscribed.
async fn subscribed(t: &World) -> usize {
    let events: Api<Event> = Api::namespaced(t.client.clone(), &t.namespace);
    let events = events.list(&ListParams::default()).await.expect("events").items;
    events.iter().filter(|event| event.reason.as_deref() == Some("ReleaseCreated")).count()
}

/// What there is of kinds of ours, and the classes.
async fn left(t: &World) -> Vec<String> {
    let (own, infrastructure) = ("clusterstack.x-k8s.io/v1alpha1", INFRASTRUCTURE_API_VERSION);
    let kinds = [
        (own, "ClusterStack"),
        (own, "ClusterStackRelease"),
        (own, "ClusterAddon"),
        (infrastructure, "ProviderClusterStackRelease"),
        (infrastructure, "ProviderNodeImageRelease"),
        ("cluster.x-k8s.io/v1beta2", "ClusterClass"),
    ];
    let mut left = Vec::new();
    for (version, kind) in kinds {
        let all = t.api(version, kind).list(&ListParams::default()).await.expect("a list").items;
        left.extend(all.into_iter().map(|one| format!("{kind}/{}", one.metadata.name.unwrap_or_default())));
    }
    left
}

#[tokio::test]
async fn clusterctl_move_takes_a_stack_with_its_clusters_and_leaves_nothing_that_would_be_deleted() {
    const TEST: &str = "clusterctl_move_takes_a_stack_with_its_clusters_and_leaves_nothing_that_would_be_deleted";
    let Some(t) = World::with_cluster_api("move", TEST).await else { return };
    let there = t.elsewhere().await;
    let content: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    let server = ImageServer::new(&content).await;
    let dir = t.dir().canonicalize().unwrap();
    let destination = dir.join("images");
    std::fs::create_dir_all(&destination).unwrap();
    let spec = json!({
        "template": {"spec": {}}, "destination": {"directory": {"path": destination}}, "imageGracePeriod": "0s",
    });
    t.apply(
        &json!({"apiVersion": INFRASTRUCTURE_API_VERSION, "kind": TEMPLATE, "metadata": {"name": "t"}, "spec": spec}),
    )
    .await;
    let (from, to) = (operator(&t, &dir, &server), operator(&there, &dir, &server));
    let repo = t.repo();
    let url = server.url("a.raw");
    let sum = sum(&content);
    // What comes of the first is known before; of the other one only its object knows it.
    let both = format!(
        "- {{name: plain, url: '{url}', checksum: 'sha256:{sum}', format: raw}}\n- name: packed\n  format: raw\n  steps:\n  \
         - download: {{url: '{url}', checksum: 'sha256:{sum}'}}\n  - compress: {{algorithm: gzip}}\n"
    );
    repo.write("stacks/docker/x/node-images.yaml", &list(&both));
    repo.release(V1, IN_MEMORY);
    t.create_stack("x", &repo.url(), provided()).await;
    t.ready("x", "v1").await;
    t.apply(&topology("shop", V1, "v1.34.7")).await;
    rolled_out(&t, "shop", "v1.34.7", V1).await;
    let inodes = || NAMES.map(|name| std::fs::metadata(destination.join(name)).expect("no image").ino());
    let (as_they_were, downloads, before) = (inodes(), server.asked().len(), subscribed(&t).await);

    // By when something was written there it is known here that it was brought: if that is a while ago.
    wait_for("the images' objects to be older", || async {
        let now = Timestamp::now();
        let young = |image: &Image| {
            let made = image.metadata.creation_timestamp.as_ref().map(|made| made.0).unwrap_or_default();
            now.duration_since(made) < SignedDuration::from_secs(40)
        };
        check(!images(&t).await.iter().any(young), "too young")
    })
    .await;
    move_to(&there, &t).await;
    there.ready("x", "v1").await;
    there.release_ready(V1).await;
    wait_for("the images to be known there", || async {
        let all = images(&there).await;
        let known = |image: &Image| image.status.as_ref().is_some_and(|status| status.phase == ImagePhase::Succeeded);
        check(all.len() == NAMES.len() && all.iter().all(known), &all)
    })
    .await;
    wait_for("all to be gone here", || async {
        let left = left(&t).await;
        check(left.is_empty(), left)
    })
    .await;
    // Whatever is made anew for what is still there has had its time.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(left(&t).await, Vec::<String>::new(), "{}", from.log());
    assert_eq!(subscribed(&t).await, before, "a release was made again: {}", from.log());
    assert_eq!(inodes(), as_they_were, "an image is another one");
    assert_eq!(server.asked().len(), downloads, "an image was downloaded again: {}", to.log());
    for name in NAMES {
        let record = std::fs::read_to_string(destination.join(format!("{name}.clusterstack.json"))).unwrap();
        assert!(record.contains(&id(&there).await), "{record}");
    }
}

/// `clusterctl move` of the namespace.
async fn move_to(there: &World, t: &World) {
    let (home, source, target, namespace) =
        (t.dir().join("home"), t.plane.kubeconfig.clone(), there.plane.kubeconfig.clone(), t.namespace.clone());
    let moved = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(clusterctl());
        command.arg("move").arg("--kubeconfig").arg(source).arg("--to-kubeconfig").arg(target);
        // It asks nobody outside whether there is a newer one.
        let environment = [("CLUSTERCTL_DISABLE_VERSIONCHECK", "true"), ("GOPROXY", "off")];
        command.args(["--namespace", &namespace]).envs(environment).env("HOME", &home).env("XDG_CONFIG_HOME", &home);
        command.output().expect("no clusterctl")
    });
    let moved = moved.await.unwrap();
    assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
}

/// The id of a management cluster.
async fn id(t: &World) -> String {
    let namespace = t.cluster_api("v1", "Namespace").get("kube-system").await.expect("kube-system");
    namespace.metadata.uid.unwrap_or_default()
}
