//! The operator is killed fifty times while it builds twenty images: each ends right, wherever it is brought.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clusterstack::api::INFRASTRUCTURE_API_VERSION;
use clusterstack::api::image_release::{ImagePhase, ProviderNodeImageRelease as Image};
use clusterstack::core::source::AllowList;
use clusterstack::io::registry::Registry;
use clusterstack::io::source::Access;
use kube::ResourceExt;
use rand::Rng;
use serde_json::{Value, json};

use crate::harness::{CLASS, ImageServer, Operator, RegistryServer, World, check, wait_for, wait_within};
use crate::image_release::{TEMPLATE, V1, images, list, names, provided, sum};

const IMAGES: usize = 20;
const KILLS: usize = 50;
const PATIENCE: Duration = Duration::from_secs(240);
/// Bytes that the tool copies at once, of which image `n` gets 3,900 and `n`: each is another file.
const BLOCK: usize = 1000;

fn name(n: usize) -> String {
    format!("image-{n:02}")
}

/// What image `n` is made of.
fn part(content: &[u8], n: usize) -> &[u8] {
    &content[..(3900 + n) * BLOCK]
}

/// Images that are downloaded, cut by a tool and compressed.
fn recipes(server: &ImageServer, content: &[u8]) -> String {
    let (url, sum) = (server.url("a.raw"), sum(content));
    let one = |n: usize| {
        format!(
            "- name: {}\n  format: raw\n  steps:\n  - download: {{url: '{url}', checksum: 'sha256:{sum}'}}\n  \
             - build: {{command: [dd, if=a.raw, of=b.raw, bs={BLOCK}, count={}], output: b.raw}}\n  \
             - compress: {{algorithm: gzip}}\n",
            name(n),
            3900 + n
        )
    };
    list(&(0..IMAGES).map(one).collect::<String>())
}

/// One world in which images are built, and killed.
struct Killed {
    t: World,
    server: ImageServer,
    content: Vec<u8>,
    /// Flags that let the operator reach the destination.
    reach: [String; 2],
}

impl Killed {
    async fn new(name: &str) -> Self {
        let t = World::new(name).await;
        // Larger than what is kept in memory between two writes.
        let content: Vec<u8> =
            (0..4_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()[0]).collect();
        let server = ImageServer::new(&content).await;
        server.set(|mode| mode.pause = Duration::from_millis(250));
        Self { t, server, content, reach: Default::default() }
    }

    fn work(&self) -> PathBuf {
        self.t.dir().join("work")
    }

    /// Always as the same pod.
    fn operator(&self) -> Operator {
        let (work, host) = (self.work(), self.server.host());
        let flags = ["--image-dir", work.to_str().unwrap(), "--allow-source", &host, "--allow-image-tool", "/bin/dd"];
        let reach = self.reach.each_ref().map(String::as_str);
        let pod = [("POD_NAME", Path::new("builder-0"))];
        Operator::start_with(&self.t, self.t.plane.operator_kubeconfig(), &[&flags[..], &reach].concat(), &pod)
    }

    /// The versions of the images: another one tells of a write.
    async fn written(&self) -> Vec<Option<String>> {
        images(&self.t).await.iter().map(ResourceExt::resource_version).collect()
    }

    /// Waits for another download, if there is one to come: on a slow machine none would begin before the next kill.
    async fn downloads_begin(&self) {
        let asked = self.server.asked().len();
        let begun = async {
            while self.server.asked().len() == asked {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(5), begun).await;
    }

    /// Kills an operator again and again until all images are there.
    async fn build(&self, destination: Value) {
        let t = &self.t;
        let tools = json!([{"name": "dd", "path": "/bin/dd"}]);
        let spec = json!({
            "template": {"spec": {}},
            "build": {"concurrency": 4, "retries": 100, "tools": tools},
            "destination": destination,
            "imageGracePeriod": "0s",
        });
        let metadata = json!({"name": "t"});
        t.apply(
            &json!({"apiVersion": INFRASTRUCTURE_API_VERSION, "kind": TEMPLATE, "metadata": metadata, "spec": spec}),
        )
        .await;
        let repo = t.repo();
        repo.write("stacks/docker/x/node-images.yaml", &recipes(&self.server, &self.content));
        repo.release(V1, CLASS);
        t.create_stack("x", &repo.url(), provided()).await;
        let mut kills = 0;
        while kills < KILLS && !is_done(&images(t).await) {
            let before = self.written().await;
            let operator = self.operator();
            // However long it takes to start.
            wait_for("it to go on with builds", || async { check(self.written().await != before, "nothing new") })
                .await;
            if kills % 2 == 1 {
                self.downloads_begin().await;
            }
            tokio::time::sleep(Duration::from_millis(rand::rng().random_range(0..1600))).await;
            operator.kill();
            kills += 1;
        }
        let _operator = self.operator();
        wait_within(PATIENCE, "the release to be ready", || async {
            let all = images(t).await;
            let states: Vec<_> = all.iter().map(|i| i.status.as_ref().map(|s| (s.phase, s.step.clone()))).collect();
            check(is_done(&all), states)
        })
        .await;
        t.ready("x", "v1").await;
        let all = images(t).await;
        let status = |image: &Image| image.status.clone().unwrap();
        let (attempts, repeated) =
            all.iter().map(status).fold((0, 0), |(a, r), status| (a + status.attempt, r + status.repeated));
        let (begun, resumed) = self.server.asked().iter().fold((0, 0), |(begun, resumed), head| {
            if head.contains("\r\nrange: ") { (begun, resumed + 1) } else { (begun + 1, resumed) }
        });
        println!(
            "{kills} kills, {IMAGES} images: {attempts} attempts, {repeated} steps repeated, {begun} downloads begun, {resumed} gone on with"
        );
        assert!(resumed > 0, "{begun} downloads began, and none was gone on with");
        let work = self.work();
        wait_for("the work directories to go", || async { check(names(&work) == ["logs"], names(&work)) }).await;
    }

    /// Checks that a file is that of image `n`.
    fn check(&self, n: usize, packed: impl std::io::Read) {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(packed), &mut bytes).unwrap();
        assert!(bytes == part(&self.content, n), "{} is another file", name(n));
    }
}

fn is_done(images: &[Image]) -> bool {
    let succeeded = |image: &&Image| image.status.as_ref().is_some_and(|s| s.phase == ImagePhase::Succeeded);
    images.len() == IMAGES && images.iter().filter(succeeded).count() == IMAGES
}

#[tokio::test]
async fn killed_at_any_moment_builds_go_on_and_end_right() {
    let mut killed = Killed::new("killed").await;
    let directory = killed.t.dir().canonicalize().unwrap().join("images");
    std::fs::create_dir_all(&directory).unwrap();
    killed.reach = ["--allow-image-directory".to_owned(), directory.to_str().unwrap().to_owned()];
    killed.build(json!({"directory": {"path": directory}})).await;
    let is_image = |name: &String| !name.ends_with(".json") && name != ".clusterstack.lock";
    let published: Vec<_> = names(&directory).into_iter().filter(is_image).collect();
    assert_eq!(published, (0..IMAGES).map(name).collect::<Vec<_>>(), "nothing else is left at the destination");
    for n in 0..IMAGES {
        killed.check(n, std::fs::File::open(directory.join(name(n))).unwrap());
    }
}

#[tokio::test]
async fn killed_at_any_moment_builds_for_a_registry_go_on_and_end_right() {
    let mut killed = Killed::new("killed-oci").await;
    let storage = killed.t.dir().join("registry");
    let Some(registry) = RegistryServer::start(&storage, &[]) else { return };
    killed.reach = ["--allow-source".to_owned(), registry.host.clone()];
    let repository = format!("{}/images", registry.host);
    killed.build(json!({"oci": {"repository": repository, "insecure": true}})).await;
    let access = Access { insecure: true, ..Access::default() };
    let allow = AllowList::parse(["127.0.0.1"]).unwrap();
    let there = Registry::new(&repository, &access, &allow, &killed.t.dir().join("scratch")).unwrap();
    let mut published = there.tags().await.unwrap();
    published.retain(|tag| !tag.contains(".user."));
    published.sort();
    assert_eq!(published, (0..IMAGES).map(name).collect::<Vec<_>>(), "nothing else is left at the destination");
    for n in 0..IMAGES {
        let manifest: Value = serde_json::from_slice(&there.manifest_bytes(&name(n)).await.unwrap().unwrap()).unwrap();
        let layer = &manifest["layers"][0];
        let (digest, size) = (layer["digest"].as_str().unwrap().parse().unwrap(), layer["size"].as_u64().unwrap());
        killed.check(n, &there.blob(&digest, size, u64::MAX).await.unwrap()[..]);
    }
}
