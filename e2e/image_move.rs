//! Builds that another operator takes over, on another node: nothing of the first one's disk is at hand.

use std::path::PathBuf;

use clusterstack::api::image_release::{ImagePhase, ProviderNodeImageReleaseStatus as Status};
use serde_json::{Value, json};

use crate::harness::{ImageServer, Images, Operator, PutServer, TOKEN, World, check, names, sum, wait_for};

const IMAGE: &str = "moved";
const STEPS: [&str; 4] = ["download", "compress", "upload", "register"];

/// An image whose first upload stops in the middle.
struct Nodes<'t> {
    images: Images<'t>,
    disks: ImageServer,
    shelf: PutServer,
    flags: Vec<String>,
}

impl<'t> Nodes<'t> {
    async fn new(t: &'t World, flags: &[&str]) -> Self {
        let content = b"a disk ".repeat(10_000);
        let (images, disks, shelf) = (Images::of(t), ImageServer::new(&content).await, PutServer::new(true).await);
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shelf"}, "stringData": {"token": TOKEN},
        });
        t.apply(&secret).await;
        let http =
            json!({"url": format!("http://{}/images", shelf.host), "insecure": true, "secretRef": {"name": "shelf"}});
        images.template(json!({"destination": {"directory": null, "http": http}})).await;
        shelf.held.lock().unwrap().push("PUT *.1.part".into());
        let mut all = images.flags(&disks.host());
        all.drain(0..2);
        all.extend(["--allow-source".into(), shelf.host.clone()]);
        all.extend(flags.iter().map(ToString::to_string));
        let nodes = Self { images, disks, shelf, flags: all };
        let checksum = format!("sha256:{}", sum(&content));
        let steps = json!([
            {"download": {"url": nodes.disks.url("disk.raw"), "checksum": checksum}}, {"compress": {"algorithm": "gzip"}},
        ]);
        nodes.images.make(&json!({"name": IMAGE, "format": "raw", "steps": steps})).await;
        nodes
    }

    fn disk(&self, node: &str) -> PathBuf {
        self.images.work().with_file_name(format!("work-of-{node}"))
    }

    /// An operator on a node, with a disk of its own.
    fn operator(&self, node: &str) -> Operator {
        let disk = ["--image-dir".to_owned(), self.disk(node).display().to_string()];
        self.images.operator_under(node, &[&disk[..], &self.flags].concat(), &[])
    }

    fn files(&self) -> Vec<String> {
        self.shelf.files.lock().unwrap().keys().cloned().collect()
    }

    async fn half_uploaded(&self) {
        wait_for("half of the image to be there", || async {
            let files = self.files();
            check(files.len() == 1 && files[0].ends_with(".1.part"), files)
        })
        .await;
        self.images.status_is(IMAGE, "to be uploaded", |status| status.step == "upload").await;
    }

    /// The build as the second node brought it to its end.
    async fn taken_over(&self, t: &World) -> Status {
        // It is looked at once more after its end, which is written down too.
        let done = |status: &Status| {
            let is_over = status.phase == ImagePhase::Succeeded && status.discarded_attempt == status.attempt;
            is_over && status.looked_at.is_some()
        };
        let status = self.images.status_is(IMAGE, "to be at its end", done).await;
        assert_eq!((status.attempt, status.failures, status.repeated), (3, 0, 2), "{status:?}");
        t.event("BuildStepRepeated", "what step download (1 of 4) had made is lost: it runs again").await;
        let done: Vec<&str> = status.steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(done, STEPS);
        assert_eq!(self.disks.asked().len(), 2, "downloaded once by each node");
        self.is_clean().await;
        status
    }

    async fn is_clean(&self) {
        let expected = [format!("/images/{IMAGE}"), format!("/images/{IMAGE}.clusterstack.json")];
        wait_for("what was half-made to go", || async {
            let (files, work) = (self.files(), names(&self.disk("b")));
            check(files == expected && work == ["logs"], (files, work))
        })
        .await;
    }

    async fn object(&self, t: &World) -> Value {
        let kind = "ProviderNodeImageRelease";
        let mut object = t.get(clusterstack::api::INFRASTRUCTURE_API_VERSION, kind, IMAGE).await.unwrap();
        object["metadata"]["managedFields"].take();
        object
    }
}

#[tokio::test]
async fn a_build_moves_to_the_node_of_the_new_leader() {
    let t = World::new("imglead").await;
    let nodes = Nodes::new(&t, &["--leader-elect", "--leader-elect-namespace", &t.namespace]).await;
    let first = nodes.operator("a");
    nodes.half_uploaded().await;
    first.signal("STOP");
    let _second = nodes.operator("b");
    let status = nodes.taken_over(&t).await;
    println!("moved by the lease: attempt {}, {} steps repeated", status.attempt, status.repeated);
    let before = nodes.object(&t).await;
    first.signal("CONT");
    // What it had is another's: it lets go of its upload, and comes back as another member.
    wait_for("the first one to come back", || async {
        let log = first.log();
        check(log.contains("left to others") && log.matches("joining").count() == 2, log)
    })
    .await;
    wait_for("the first one to stand down", || async {
        let metrics = first.get("metrics", "/metrics").await;
        let running = metrics.lines().find(|line| line.starts_with("clusterstack_node_images_running"));
        check(running == Some("clusterstack_node_images_running 0"), running)
    })
    .await;
    assert_eq!(nodes.object(&t).await, before, "it wrote something when it came back");
    nodes.is_clean().await;
}

#[tokio::test]
async fn a_silent_holder_is_replaced_and_stands_down_when_it_comes_back() {
    let t = World::new("imgsilent").await;
    let nodes = Nodes::new(&t, &[]).await;
    let first = nodes.operator("a");
    nodes.half_uploaded().await;
    first.signal("STOP");
    let _second = nodes.operator("b");
    let status = nodes.taken_over(&t).await;
    t.event("BuildHolderLost", "is gone; another one goes on with step upload").await;
    println!("moved after silence: attempt {}, {} steps repeated", status.attempt, status.repeated);
    let before = nodes.object(&t).await;
    first.signal("CONT");
    // It learns that the build is another's, and lets go of its upload.
    wait_for("the first one to stand down", || async {
        let metrics = first.get("metrics", "/metrics").await;
        let running = metrics.lines().find(|line| line.starts_with("clusterstack_node_images_running"));
        check(running == Some("clusterstack_node_images_running 0"), running)
    })
    .await;
    assert_eq!(nodes.object(&t).await, before, "it wrote something when it came back");
    nodes.is_clean().await;
}
