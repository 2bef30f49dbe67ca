//! A repository of a real OCI registry, `hack/registry`.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use clusterstack::api::image_destination::{Destination as Spec, OciDestination};
use clusterstack::api::source::SecretReference;
use clusterstack::core::artifact::{Document, MANIFEST};
use clusterstack::core::source::AllowList;
use clusterstack::io::image::destination::{Destination, Published, Reach, open};
use clusterstack::io::registry::Registry;
use clusterstack::io::source::{Access, Credentials};
use tempfile::TempDir;

use super::Server;
use super::conformance::{World, conforms};
use super::wire::Wire;

const SECRET: &str = "quite-a-secret";

struct Oci {
    directory: TempDir,
    _server: Server,
    wire: Wire,
}

impl Oci {
    async fn new() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start("registry", |command| {
            command.arg("-dir").arg(directory.path().join("registry"));
            command.args(["-login", "basic", "-user", "operator", "-password", SECRET]);
        })?;
        let wire = Wire::to(&server.words[0]).await;
        Some(Self { directory, _server: server, wire })
    }

    fn with(&self, secret: &str) -> Arc<dyn Destination> {
        let oci = OciDestination {
            repository: format!("{}/node/images", self.wire.host),
            secret_ref: Some(SecretReference { name: "registry".to_owned() }),
            insecure: true,
            ..OciDestination::default()
        };
        let data = [("username", "operator"), ("password", secret)];
        let data = data.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
        let reach = Reach {
            secret: Some(data.into_iter().collect()),
            allow: AllowList::parse(["127.0.0.1"]).unwrap(),
            ..Reach::default()
        };
        open(&Spec { oci: Some(oci), ..Spec::default() }, &reach).unwrap()
    }

    fn registry(&self) -> Registry {
        let credentials = Credentials {
            username: Some("operator".to_owned()),
            password: Some(SECRET.to_owned()),
            ..Credentials::default()
        };
        let access = Access { credentials: Some(credentials), insecure: true, ..Access::default() };
        let name = format!("{}/node/images", self.wire.host);
        let scratch = self.directory.path().join("scratch");
        Registry::new(&name, &access, &AllowList::parse(["127.0.0.1"]).unwrap(), &scratch).unwrap()
    }

    fn uploads(&self) -> PathBuf {
        self.directory.path().join("registry/docker/registry/v2/repositories/node/images/_uploads")
    }
}

#[async_trait]
impl World for Oci {
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
        let (_, tag) = image.location.rsplit_once(':').unwrap();
        let registry = self.registry();
        let Document::Manifest(manifest) = registry.manifest(tag).await.unwrap().unwrap().document else {
            panic!("no manifest")
        };
        assert_eq!(manifest.layers[0].digest, image.digest);
        let digest = manifest.layers[0].digest.parse().unwrap();
        registry.blob(&digest, manifest.layers[0].size, u64::MAX).await.unwrap().to_vec()
    }

    async fn bring(&self, name: &str) {
        let registry = self.registry();
        let config = registry.push_blob(&Bytes::from_static(b"{}")).await.unwrap();
        let text = format!(
            r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{config}","size":2}},"layers":[]}}"#
        );
        registry.push_manifest(name, MANIFEST, Bytes::from(text)).await.unwrap();
    }

    async fn has_brought(&self, name: &str) -> bool {
        self.registry().digest(name).await.unwrap().is_some()
    }

    async fn protect(&self, name: &str) {
        let registry = self.registry();
        let manifest = registry.manifest_bytes(name).await.unwrap().unwrap();
        registry.push_manifest(&format!("{name}.protected"), MANIFEST, manifest).await.unwrap();
    }

    /// Uploads with bytes in them: of one that was cancelled the registry leaves an empty directory for its hash.
    async fn litter(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.uploads()).into_iter().flatten().flatten();
        let left = names.filter(|entry| entry.path().join("data").exists());
        left.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    fn resumes(&self) -> bool {
        true
    }

    fn shares_uploads(&self) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_conforms() {
    let Some(world) = Oci::new().await else { return };
    conforms(&world).await;
}
