//! A bucket of a real S3 gateway, `hack/s3`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use clusterstack::api::image_destination::{Destination as Spec, S3Destination};
use clusterstack::api::source::SecretReference;
use clusterstack::core::source::AllowList;
use clusterstack::io::image::destination::{Destination, Published, Reach, open};
use tempfile::TempDir;

use super::Server;
use super::conformance::{World, conforms};
use super::wire::Wire;

const SECRET: &str = "quite-a-secret";

struct S3 {
    directory: TempDir,
    _server: Server,
    wire: Wire,
}

impl S3 {
    async fn new() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start("s3", |command| {
            command.arg("-dir").arg(directory.path()).args(["-access", "operator", "-secret", SECRET]);
        })?;
        let wire = Wire::to(&server.words[0]).await;
        Some(Self { directory, _server: server, wire })
    }

    fn with(&self, secret: &str) -> Arc<dyn Destination> {
        let s3 = S3Destination {
            endpoint: format!("http://{}", self.wire.host),
            bucket: "images".to_owned(),
            prefix: "node/".to_owned(),
            secret_ref: Some(SecretReference { name: "s3".to_owned() }),
            insecure: true,
            ..S3Destination::default()
        };
        let data = [("accessKeyId", "operator"), ("secretAccessKey", secret)];
        let data = data.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
        let reach = Reach {
            secret: Some(data.into_iter().collect()),
            allow: AllowList::parse(["127.0.0.1"]).unwrap(),
            ..Reach::default()
        };
        open(&Spec { s3: Some(s3), ..Spec::default() }, &reach).unwrap()
    }

    fn bucket(&self) -> PathBuf {
        self.directory.path().join("data/images")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.bucket().join("node").join(name)
    }
}

fn files(below: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(below).into_iter().flatten().flatten() {
        if entry.path().is_dir() { files(&entry.path(), found) } else { found.push(entry.path().display().to_string()) }
    }
}

#[async_trait]
impl World for S3 {
    fn open(&self) -> Arc<dyn Destination> {
        self.with(SECRET)
    }

    fn open_wrong(&self) -> Option<(Arc<dyn Destination>, &'static str)> {
        Some((self.with("wrong-secret"), "wrong-secret"))
    }

    fn wire(&self) -> Option<&Wire> {
        Some(&self.wire)
    }

    async fn content(&self, image: &Published) -> Vec<u8> {
        let name = image.location.rsplit('/').next().unwrap();
        assert_eq!(image.location, format!("http://{}/images/node/{name}", self.wire.host));
        std::fs::read(self.file(name)).unwrap()
    }

    async fn bring(&self, name: &str) {
        std::fs::write(self.file(name), "theirs").unwrap();
    }

    async fn has_brought(&self, name: &str) -> bool {
        let record = self.file(&format!("{name}.clusterstack.json"));
        std::fs::read(self.file(name)).unwrap() == b"theirs" && !record.exists()
    }

    async fn protect(&self, name: &str) {
        let record = self.file(&format!("{name}.clusterstack.json"));
        let text = std::fs::read_to_string(&record).unwrap();
        std::fs::write(record, text.replacen('{', "{\"protected\": true,", 1)).unwrap();
    }

    /// Notes of uploads, and parts.
    async fn litter(&self) -> Vec<String> {
        let mut found = Vec::new();
        files(&self.file(".clusterstack"), &mut found);
        files(&self.bucket().join(".sgwtmp/multipart"), &mut found);
        found
    }

    fn resumes(&self) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_conforms() {
    let Some(world) = S3::new().await else { return };
    conforms(&world).await;
}
