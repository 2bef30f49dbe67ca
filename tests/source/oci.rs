//! Releases from a real OCI registry.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clusterstack::core::artifact::{INDEX, MANIFEST};
use clusterstack::core::files::FileTree;
use clusterstack::core::limits::Limits;
use clusterstack::core::name::ReleaseName;
use clusterstack::core::source::AllowList;
use clusterstack::core::verification::{CosignTrust, Keys, NotVerified, Trust};
use clusterstack::io::registry::Registry;
use clusterstack::io::source::oci::OciSource;
use clusterstack::io::source::{Access, Fetched, Source, SourceError, Tag, Wanted};
use clusterstack::io::store::Digest;
use clusterstack::io::unpack;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::sign::Signer;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::registry::{Liar, Lie, RegistryServer, assets, push};

pub const TAG: &str = "docker-scs-1-30-v1";

/// A registry, a liar in front of it, and how it is reached.
pub struct World {
    pub directory: TempDir,
    _registry: RegistryServer,
    pub liar: Liar,
    pub access: Access,
    pub allow: AllowList,
}

impl World {
    pub async fn new(flags: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let registry = RegistryServer::start(&directory.path().join("registry"), flags)?;
        let liar = Liar::new(&registry.host).await;
        let allow = AllowList::parse(["127.0.0.1"]).unwrap();
        let access = Access { insecure: true, ..Access::default() };
        Some(Self { directory, _registry: registry, liar, access, allow })
    }

    pub fn scratch(&self) -> PathBuf {
        self.directory.path().join("scratch")
    }

    /// The repository `stacks/scs`, through the liar.
    pub fn repository(&self) -> Registry {
        self.repository_at(&self.name())
    }

    pub fn repository_at(&self, name: &str) -> Registry {
        Registry::new(name, &self.access, &self.allow, &self.scratch()).unwrap()
    }

    pub fn name(&self) -> String {
        format!("{}/stacks/scs", self.liar.host)
    }

    pub fn source(&self) -> OciSource {
        self.source_at(&self.name())
    }

    pub fn source_at(&self, name: &str) -> OciSource {
        OciSource::new(name, &self.access, &self.allow, &self.scratch(), Limits::default()).unwrap()
    }

    /// Pushes a release past the liar's eyes, and forgets that.
    pub async fn release(&self, tag: &str, templates: &str) -> Digest {
        let digest = push(&self.repository(), tag, &assets(tag, templates)).await.unwrap();
        self.liar.asked();
        digest
    }

    pub async fn resolved(&self, name: &str) -> Result<Tag, SourceError> {
        resolved(&self.source(), name).await
    }

    pub async fn fetch(&self, tag: &Tag) -> Result<Fetched, SourceError> {
        fetch(&self.source(), tag, None).await
    }

    pub async fn get(&self, name: &str) -> Result<Fetched, SourceError> {
        self.fetch(&self.resolved(name).await?).await
    }
}

pub async fn resolved(source: &OciSource, name: &str) -> Result<Tag, SourceError> {
    let tag = Tag { name: name.to_owned(), revision: String::new() };
    source.resolve(&tag, &CancellationToken::new()).await
}

pub async fn fetch(source: &OciSource, tag: &Tag, trust: Option<&Trust>) -> Result<Fetched, SourceError> {
    let release: ReleaseName = tag.name.parse().unwrap();
    source.fetch(&Wanted { tag, release: &release, trust, by_revision: false }, &CancellationToken::new()).await
}

async fn names(source: &OciSource) -> Vec<String> {
    let listing = source.list(&CancellationToken::new()).await.unwrap();
    listing.tags.into_iter().map(|tag| tag.name).collect()
}

/// Puts a manifest by hand.
async fn put(registry: &Registry, reference: &str, manifest: &Value) -> Digest {
    let kind = if manifest.get("manifests").is_some() { INDEX } else { MANIFEST };
    registry.push_manifest(reference, kind, Bytes::from(manifest.to_string())).await.unwrap()
}

async fn layer(registry: &Registry, media_type: &str, content: Bytes, annotations: Value) -> Value {
    let digest = registry.push_blob(&content).await.unwrap().to_string();
    json!({"mediaType": media_type, "digest": digest, "size": content.len(), "annotations": annotations})
}

#[tokio::test]
async fn a_pushed_release_is_listed_and_fetched() {
    let Some(t) = World::new(&[]).await else { return };
    let custom = "docker-scs-1-30-v0-sha.abc";
    let digest = t.release(TAG, "a: 1").await;
    t.release(custom, "a: 2").await;
    assert_eq!(names(&t.source()).await, [custom, TAG]);
    let tag = t.resolved(TAG).await.unwrap();
    assert_eq!(tag.revision, digest.to_string());
    let fetched = t.fetch(&tag).await.unwrap();
    assert_eq!(fetched.revision, digest.to_string());
    assert_eq!(fetched.url, format!("oci://{}", t.name()));
    assert_eq!(fetched.files["cluster-class/templates/objects.yaml"], "a: 1");
    assert!(fetched.files.contains_key("metadata.yaml") && fetched.signer.is_none());
    assert_eq!(t.get(custom).await.unwrap().files["cluster-class/templates/objects.yaml"], "a: 2");
    let left = std::fs::read_dir(t.scratch()).unwrap().count();
    assert_eq!(left, 0, "parts are left over");
    let gone = t.resolved("docker-scs-1-30-v9").await;
    assert!(matches!(gone, Err(SourceError::NotFound { .. })), "{gone:?}");
}

#[tokio::test]
async fn the_same_release_pushed_again_has_the_same_digest_and_sends_no_blob() {
    let Some(t) = World::new(&[]).await else { return };
    let first = t.release(TAG, "a: 1").await;
    let again = push(&t.repository(), "other", &assets(TAG, "a: 1")).await.unwrap();
    assert_eq!(first, again);
    let sent: Vec<String> = t.liar.asked().into_iter().map(|asked| asked.what).collect();
    assert!(!sent.iter().any(|what| what.starts_with("POST")), "{sent:?}");
    let refused = push(&t.repository(), "a/b", &assets(TAG, "a: 1")).await;
    assert!(refused.unwrap_err().to_string().contains("no tag"));
}

#[tokio::test]
async fn tags_come_in_pages() {
    let Some(t) = World::new(&["-max-tags", "3"]).await else { return };
    let mut expected = Vec::new();
    for version in 1..=8 {
        expected.push(format!("docker-scs-1-30-v{version}"));
        t.release(&expected[version - 1], "a: 1").await;
    }
    assert_eq!(names(&t.source()).await, expected);
    let pages = t.liar.asked().len();
    assert!((3..=4).contains(&pages), "{pages}");
}

#[tokio::test]
async fn a_chart_that_helm_pushed_is_the_class() {
    let Some(t) = World::new(&[]).await else { return };
    let name = format!("{}/charts/docker-scs-1-30-cluster-class", t.liar.host);
    let registry = t.repository_at(&name);
    let chart = assets(TAG, "a: 1").remove("docker-scs-1-30-cluster-class-v1.tgz").unwrap();
    let none = json!({});
    let config = layer(&registry, "application/vnd.cncf.helm.config.v1+json", Bytes::from("{}"), none.clone()).await;
    let chart = layer(&registry, "application/vnd.cncf.helm.chart.content.v1.tar+gzip", chart, none).await;
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": [chart]});
    for tag in ["v1", "latest"] {
        put(&registry, tag, &manifest).await;
    }
    let source = t.source_at(&name);
    assert_eq!(names(&source).await, [TAG]);
    let fetched = fetch(&source, &resolved(&source, TAG).await.unwrap(), None).await.unwrap();
    assert_eq!(fetched.files["cluster-class/templates/objects.yaml"], "a: 1");
}

#[tokio::test]
async fn what_is_no_release_is_said_to_be_none() {
    let Some(t) = World::new(&[]).await else { return };
    let one = t.release(TAG, "a: 1").await;
    let registry = t.repository();
    let size = {
        let all = assets(TAG, "a: 1");
        all.values().map(Bytes::len).sum::<usize>()
    };
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": []});
    put(&registry, "docker-scs-1-30-v2", &index).await;
    let error = t.get("docker-scs-1-30-v2").await.unwrap_err().to_string();
    assert!(error.contains("an index") && !error.contains(&one.to_string()), "{error}");

    let config = layer(&registry, "application/x", Bytes::from("{}"), json!({})).await;
    let title = json!({"org.opencontainers.image.title": "../../etc/cron.d/docker-scs-1-30-cluster-class-v3.tgz"});
    let hostile = layer(&registry, "application/x", Bytes::from(vec![0; size]), title).await;
    put(&registry, "docker-scs-1-30-v3", &json!({"schemaVersion": 2, "config": config, "layers": [hostile]})).await;
    let error = t.get("docker-scs-1-30-v3").await.unwrap_err().to_string();
    assert!(error.contains("there is no docker-scs-1-30-cluster-class-v3.tgz"), "{error}");

    let title = json!({"org.opencontainers.image.title": "docker-scs-1-30-cluster-class-v4.tgz"});
    let noise = layer(&registry, "application/x", Bytes::from("no archive"), title).await;
    put(&registry, "docker-scs-1-30-v4", &json!({"schemaVersion": 2, "config": config, "layers": [noise]})).await;
    let error = t.get("docker-scs-1-30-v4").await;
    assert!(matches!(error, Err(SourceError::Layout { .. })), "{error:?}");
}

#[tokio::test]
async fn a_repository_that_is_not_there_is_said_to_be_missing() {
    let Some(t) = World::new(&[]).await else { return };
    let error = t.source().list(&CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, SourceError::NoRepository { .. }), "{error}");
    assert!(error.to_string().contains("NAME_UNKNOWN"), "{error}");
}

#[tokio::test]
async fn signatures_are_looked_for_before_a_layer_is_downloaded() {
    let Some(t) = World::new(&[]).await else { return };
    let digest = t.release(TAG, "a: 1").await;
    let keys = Keys::default();
    let trust = Trust { cosign: Some(CosignTrust { keys, identities: Vec::new() }), ..Trust::default() };
    let tag = t.resolved(TAG).await.unwrap();
    let error = fetch(&t.source(), &tag, Some(&trust)).await.unwrap_err();
    let SourceError::NotVerified { problem: NotVerified::Unsigned { what }, .. } = &error else { panic!("{error}") };
    assert!(what.contains(&digest.to_string()), "{error}");

    let registry = t.repository();
    let (stem, none) = (digest.to_string().replace(':', "-"), json!({}));
    let config = layer(&registry, "application/x", Bytes::from("{}"), none.clone()).await;
    let old = json!({"dev.cosignproject.cosign/signature": "MEU="});
    let old = layer(&registry, "application/vnd.dev.cosign.simplesigning.v1+json", Bytes::from("old"), old).await;
    let signature = json!({"schemaVersion": 2, "config": config, "layers": [old]});
    put(&registry, &format!("{stem}.sig"), &signature).await;
    let bundle = "application/vnd.dev.sigstore.bundle.v0.3+json";
    let new = layer(&registry, bundle, Bytes::from("new"), none).await;
    let manifest = json!({"schemaVersion": 2, "artifactType": bundle, "config": config, "layers": [new]});
    let referrer = Digest::of(manifest.to_string().as_bytes());
    put(&registry, &referrer.to_string(), &manifest).await;
    let entry = json!({"mediaType": MANIFEST, "digest": referrer.to_string(), "size": manifest.to_string().len(), "artifactType": bundle});
    put(&registry, &stem, &json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})).await;

    t.liar.asked();
    let error = fetch(&t.source(), &tag, Some(&trust)).await.unwrap_err();
    assert!(matches!(error, SourceError::NotVerified { .. }), "{error}");
    let asked: Vec<String> = t.liar.asked().into_iter().map(|asked| asked.what).collect();
    let blobs = |part: &str| asked.iter().filter(|what| what.contains("/blobs/") && what.contains(part)).count();
    let of = |layer: &Value| blobs(layer["digest"].as_str().unwrap());
    assert_eq!((of(&old), of(&new), blobs("")), (1, 1, 2), "{asked:?}");
}

/// What signs artifacts as cosign does.
struct Cosign(PKey<Private>);

impl Cosign {
    fn new() -> Self {
        let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        Self(PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap())
    }

    fn trust(&self) -> Trust {
        let keys = Keys([("cosign.pub".to_owned(), self.0.public_key_to_pem().unwrap())].into());
        Trust { cosign: Some(CosignTrust { keys, identities: Vec::new() }), ..Trust::default() }
    }

    /// The layer with a signature of the manifest `digest`.
    async fn sign(&self, registry: &Registry, digest: &Digest) -> Value {
        let image = json!({"docker-manifest-digest": digest.to_string()});
        let critical = json!({"identity": {}, "image": image, "type": "cosign container image signature"});
        let payload = json!({"critical": critical, "optional": null}).to_string().into_bytes();
        let mut signing = Signer::new(MessageDigest::sha256(), &self.0).unwrap();
        let signature = STANDARD.encode(signing.sign_oneshot_to_vec(&payload).unwrap());
        layer(registry, SIMPLE_SIGNING, payload.into(), json!({SIGNATURE: signature})).await
    }
}

const SIMPLE_SIGNING: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";

#[tokio::test]
async fn signatures_are_checked_as_they_come_and_one_that_can_t_be_read_voids_none() {
    let Some(t) = World::new(&[]).await else { return };
    let digest = t.release(TAG, "a: 1").await;
    let tag = t.resolved(TAG).await.unwrap();
    let (registry, ours, theirs) = (t.repository(), Cosign::new(), Cosign::new());
    let (good, unknown) = (ours.sign(&registry, &digest).await, theirs.sign(&registry, &digest).await);
    let other = ours.sign(&registry, &Digest::of(b"another release")).await;
    let absent = layer(&registry, SIMPLE_SIGNING, Bytes::from("absent"), json!({})).await;
    let lost = absent["digest"].as_str().unwrap();
    t.liar.set(Lie::Lost(lost.to_owned()));
    let junk = layer(&registry, SIMPLE_SIGNING, Bytes::from(vec![b'x'; 60_000]), json!({})).await;
    let large = layer(&registry, SIMPLE_SIGNING, Bytes::from(vec![b'x'; 4 << 20]), json!({})).await;
    let copies = |of: &Value, number: usize| -> Vec<Value> {
        let copy = |n| {
            let mut copy = of.clone();
            copy["annotations"] = json!({SIGNATURE: format!("{n}")});
            copy
        };
        (0..number).map(copy).collect()
    };
    let mut many = Vec::new();
    for n in 0..150_u32 {
        let content = [&n.to_be_bytes()[..], &[b'x'; 60_000]].concat();
        many.push(layer(&registry, SIMPLE_SIGNING, content.into(), json!({})).await);
    }
    let with = |first: Vec<Value>, last: &[&Value]| [first, last.iter().map(|&layer| layer.clone()).collect()].concat();
    let config = layer(&registry, "application/x", Bytes::from("{}"), json!({})).await;
    for (case, layers, verified, downloads) in [
        ("the first that is good ends it", with(vec![good.clone()], &[&other, &absent]), Ok(()), 1),
        ("one that is not there", with(vec![absent.clone()], &[&good]), Ok(()), 1),
        ("one payload of many is brought once", with(copies(&junk, 200), &[&good]), Ok(()), 2),
        ("what is no signature for its size", with(copies(&large, 250), &[&good]), Ok(()), 1),
        (
            "which is said where there is none",
            with(copies(&large, 250), &[]),
            Err("too large or too much to be looked at) is not signed"),
            0,
        ),
        ("more than there may be together", with(many, &[&good]), Err("can't be read"), 139),
        ("signed by others", with(vec![unknown.clone()], &[]), Err("signed by a key of cosign"), 1),
        ("perhaps the good one is not there", with(vec![unknown], &[&absent]), Err("has no such blob"), 1),
    ] {
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
        put(&registry, &format!("{}.sig", digest.to_string().replace(':', "-")), &manifest).await;
        t.liar.asked();
        let fetched = fetch(&t.source(), &tag, Some(&ours.trust())).await;
        match (fetched, verified) {
            (Ok(fetched), Ok(())) => assert!(fetched.signer.is_some(), "{case}"),
            (Err(error), Err(part)) => {
                assert!(error.to_string().contains(part), "{case}: {error}");
                assert_eq!(error.is_transient(), part == "has no such blob", "{case}: {error}");
            }
            (found, _) => panic!("{case}: {found:?}"),
        }
        let signatures: Vec<&str> = layers.iter().map(|layer| layer["digest"].as_str().unwrap()).collect();
        let asked = t.liar.asked().into_iter().map(|asked| asked.what);
        let brought = asked.filter(|what| what.contains("/blobs/") && signatures.iter().any(|it| what.contains(it)));
        let brought = brought.filter(|what| !what.contains(lost));
        assert_eq!(brought.count(), downloads, "{case}");
    }
}

/// A stack's directory as the files that are published of it.
fn published(release: &ReleaseName, files: &FileTree) -> BTreeMap<String, Bytes> {
    let mut assets = BTreeMap::new();
    for component in ["cluster-class", "cluster-addon"] {
        let inside = files.iter().filter_map(|(path, content)| {
            Some((path.strip_prefix(component)?.strip_prefix('/')?.to_owned(), content.clone()))
        });
        let packed = unpack::pack(&inside.collect()).unwrap();
        assets.insert(format!("{}-{component}-{}.tgz", release.stem(), release.version), packed);
    }
    assets.extend(
        files.iter().filter(|(path, _)| !path.contains('/')).map(|(path, content)| (path.clone(), content.clone())),
    );
    assets
}

#[tokio::test]
async fn what_is_about_another_artifact_is_listed_there_by_a_registry_without_a_list_of_its_own() {
    let Some(t) = World::new(&[]).await else { return };
    let digest = t.release(TAG, "a: 1").await;
    let registry = t.repository();
    let config = layer(&registry, "application/x", Bytes::from("{}"), json!({})).await;
    let mut listed = Vec::new();
    for name in ["one", "two", "two"] {
        let content = layer(&registry, "application/x", Bytes::from(name), json!({})).await;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "artifactType": "application/x.about", "config": config,
            "layers": [content], "subject": {"mediaType": MANIFEST, "digest": digest.to_string(), "size": 1},
        });
        let referrer = Digest::of(manifest.to_string().as_bytes());
        put(&registry, &referrer.to_string(), &manifest).await;
        listed.push(referrer.to_string());
    }
    listed.dedup();
    let found = registry.referrers(&digest).await.unwrap();
    assert_eq!(found.iter().map(|found| found.digest.clone()).collect::<Vec<_>>(), listed);
    assert!(found.iter().all(|found| found.artifact_type.as_deref() == Some("application/x.about")), "{found:?}");
    // An attestation that is larger than any signature hides none.
    let large =
        layer(&registry, "application/vnd.dev.sigstore.bundle.v0.3+json", Bytes::from(vec![b'x'; 5 << 20]), json!({}))
            .await;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "artifactType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "config": config, "layers": [large], "subject": {"mediaType": MANIFEST, "digest": digest.to_string(), "size": 1},
    });
    let referrer = Digest::of(manifest.to_string().as_bytes());
    put(&registry, &referrer.to_string(), &manifest).await;
    let trust =
        Trust { cosign: Some(CosignTrust { keys: Keys::default(), identities: Vec::new() }), ..Trust::default() };
    let error = fetch(&t.source(), &t.resolved(TAG).await.unwrap(), Some(&trust)).await.unwrap_err();
    assert!(matches!(&error, SourceError::NotVerified { problem: NotVerified::Unsigned { .. }, .. }), "{error}");
}

#[tokio::test]
async fn a_real_stack_is_the_same_from_a_registry_as_from_git() {
    let Some(shared) = super::shared() else { return };
    let Some(t) = World::new(&[]).await else { return };
    let clone = super::repository::real(&shared, t.directory.path());
    let git = super::git(t.directory.path(), &[t.directory.path().to_str().unwrap()]);
    let git = git.source(&format!("file://{}", clone.display()), None, Access::default()).unwrap();
    let cancel = CancellationToken::new();
    let tags = git.list(&cancel).await.unwrap().tags;
    for name in ["openstack-scs2-1-34-v2", "openstack-scs-1-30-v1"] {
        let release: ReleaseName = name.parse().unwrap();
        let Some(tag) = tags.iter().find(|tag| tag.name == name) else { panic!("no tag {name} among {tags:?}") };
        let from_git = git.fetch(&super::wanted(tag, &release), &cancel).await.unwrap().files;
        let assets = published(&release, &from_git);
        push(&t.repository(), name, &assets).await.unwrap();
        let known: Vec<&String> = from_git.keys().filter(|path| belongs(path)).collect();
        let fetched = t.get(name).await.unwrap().files;
        assert_eq!(fetched.keys().collect::<Vec<_>>(), known);
        assert!(fetched.iter().all(|(path, content)| from_git[path] == *content));
    }
}

fn belongs(path: &str) -> bool {
    path.starts_with("cluster-class/")
        || path.starts_with("cluster-addon/")
        || ["metadata.yaml", "csctl.yaml", "clusteraddon.yaml", "cluster-addon-values.yaml", "node-images.yaml"]
            .contains(&path)
}
