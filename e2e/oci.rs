//! Releases from a real OCI registry, also when it lies or the operator dies while it downloads.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clusterstack::api::ConditionType;
use clusterstack::api::condition::find;
use clusterstack::core::artifact::{Descriptor, MANIFEST, Manifest, signature_tag};
use clusterstack::core::source::AllowList;
use clusterstack::io::registry::Registry;
use clusterstack::io::source::Access;
use clusterstack::io::store::Digest;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::sign::Signer;
use serde_json::{Value, json};

use crate::harness::{
    DURING, ISSUER, Liar, Lie, RegistryServer, SETTINGS, SUBJECT, Sigstore, World, assets, check, push, wait_for,
};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";

struct Served {
    t: World,
    liar: Liar,
    _registry: RegistryServer,
}

impl Served {
    /// A registry behind something that lies; `None` where there is no registry.
    async fn new(name: &str) -> Option<Self> {
        let t = World::new(name).await;
        let registry = RegistryServer::start(&t.dir().join("registry"), &[])?;
        let liar = Liar::new(&registry.host).await;
        Some(Self { t, liar, _registry: registry })
    }

    fn registry(&self) -> Registry {
        let allow = AllowList::parse(["127.0.0.1"]).unwrap();
        let access = Access { insecure: true, ..Access::default() };
        Registry::new(&self.repository(), &access, &allow, &self.t.dir().join("scratch")).unwrap()
    }

    async fn push(&self, tag: &str, templates: &str) -> Digest {
        let digest = push(&self.registry(), tag, &assets(tag, templates)).await.unwrap();
        self.liar.asked();
        digest
    }

    /// Puts signatures of a manifest where cosign puts them, in its form.
    async fn sign(&self, digest: &Digest, keys: &[&PKey<Private>]) {
        let payload = self.payload(digest);
        let layers = keys.iter().map(|key| {
            let mut signer = Signer::new(MessageDigest::sha256(), key).unwrap();
            let signature = STANDARD.encode(signer.sign_oneshot_to_vec(&payload).unwrap());
            BTreeMap::from([("dev.cosignproject.cosign/signature".to_owned(), signature)])
        });
        self.signed(digest, &payload, layers.collect()).await;
    }

    /// The same with certificates that lived for a day, and a log that saw it.
    async fn sign_keyless(&self, digest: &Digest, sigstore: &Sigstore) {
        let payload = self.payload(digest);
        let annotations = sigstore.annotations(&sigstore.certificate(), &payload, DURING);
        self.signed(digest, &payload, vec![annotations]).await;
    }

    fn payload(&self, digest: &Digest) -> Bytes {
        let payload = json!({
            "critical": {
                "identity": {"docker-reference": self.repository()},
                "image": {"docker-manifest-digest": digest.to_string()},
                "type": "cosign container image signature",
            },
            "optional": null,
        });
        Bytes::from(payload.to_string())
    }

    async fn signed(&self, digest: &Digest, payload: &Bytes, layers: Vec<BTreeMap<String, String>>) {
        let registry = self.registry();
        let config = Bytes::from(r#"{"architecture":"","os":"","rootfs":{"type":"layers","diff_ids":[]},"config":{}}"#);
        let blob = |media_type: &str, content: &Bytes| Descriptor {
            media_type: media_type.to_owned(),
            digest: Digest::of(content).to_string(),
            size: content.len() as u64,
            ..Descriptor::default()
        };
        let layers = layers.into_iter().map(|annotations| Descriptor {
            annotations,
            ..blob("application/vnd.dev.cosign.simplesigning.v1+json", payload)
        });
        let manifest = Manifest {
            schema_version: 2,
            media_type: MANIFEST.to_owned(),
            config: blob("application/vnd.oci.image.config.v1+json", &config),
            layers: layers.collect(),
            ..Manifest::default()
        };
        for content in [payload, &config] {
            registry.push_blob(content).await.unwrap();
        }
        let manifest = Bytes::from(serde_json::to_vec(&manifest).unwrap());
        registry.push_manifest(&signature_tag(&digest.to_string(), "sig"), MANIFEST, manifest).await.unwrap();
        self.liar.asked();
    }

    /// Whether blobs of a release were downloaded since the last push, beside signatures.
    fn downloaded(&self, assets: &BTreeMap<String, Bytes>) -> bool {
        let asked = self.liar.asked();
        let of = |content: &Bytes| format!("/blobs/{}", Digest::of(content));
        assets.values().any(|content| asked.iter().any(|asked| asked.what.contains(&of(content))))
    }

    fn repository(&self) -> String {
        format!("{}/stacks/x", self.liar.host)
    }

    async fn create_stack(&self) {
        self.create_stack_with(json!({})).await;
    }

    async fn create_stack_with(&self, more: Value) {
        let mut spec = json!({"source": {"git": null, "oci": {"repository": self.repository(), "insecure": true}}});
        json_patch::merge(&mut spec, &more);
        self.t.create_stack("x", "", spec).await;
    }
}

fn key() -> PKey<Private> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
}

#[tokio::test]
async fn only_releases_that_cosign_signed_with_a_trusted_key_are_unpacked() {
    let Some(s) = Served::new("cosign").await else { return };
    let (ours, theirs) = (key(), key());
    let public = String::from_utf8(ours.public_key_to_pem().unwrap()).unwrap();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"cosign.pub": public}});
    s.t.apply(&secret).await;
    let first = s.push(V1, SETTINGS).await;
    let _operator = s.t.operator(&["--allow-source", &s.liar.host]);
    s.create_stack_with(json!({"verify": {"cosign": {"secretRef": {"name": "keys"}}}})).await;

    let not_verified = async |release: &str, part: &str| {
        s.t.release(release, &format!("to say {part:?}"), |found| {
            let conditions = found.status.clone().unwrap_or_default().conditions;
            let said = find(&conditions, ConditionType::SourceVerified).cloned();
            let is = said.as_ref().is_some_and(|c| c.reason == "NotVerified" && c.message.contains(part));
            check(is, conditions)
        })
        .await;
        s.t.release_says(release, ConditionType::Ready, "False", "NotVerified").await;
        assert!(s.t.config_map(release).await.is_none(), "what nobody trusted signed was applied");
        assert!(!s.downloaded(&assets(release, SETTINGS)), "what nobody trusted signed was downloaded");
    };
    not_verified(V1, "is not signed").await;
    s.sign(&first, &[&theirs]).await;
    s.t.look_again("x").await;
    not_verified(V1, "a key of cosign").await;
    // A signature of something else is none.
    let other = Digest::of(b"other");
    s.sign(&other, &[&ours]).await;
    let registry = s.registry();
    let stray = registry.manifest_bytes(&signature_tag(&other.to_string(), "sig")).await.unwrap().unwrap();
    registry.push_manifest(&signature_tag(&first.to_string(), "sig"), MANIFEST, stray).await.unwrap();
    s.t.look_again("x").await;
    not_verified(V1, "it is for sha256:").await;
    s.sign(&first, &[&theirs, &ours]).await;
    s.t.look_again("x").await;
    s.t.ready("x", "v1").await;
    let message = s.t.release_says(V1, ConditionType::SourceVerified, "True", "Verified").await;
    assert!(message.contains("cosign key cosign.pub (SHA256:"), "{message}");

    // A new one that nobody signed leaves what runs alone.
    let second = s.push(V2, SETTINGS).await;
    s.t.look_again("x").await;
    not_verified(V2, "is not signed").await;
    assert!(s.t.release_ready(V1).await.status.unwrap().ready && s.t.config_map(V1).await.is_some());
    s.sign(&second, &[&ours]).await;
    s.t.look_again("x").await;
    s.t.ready("x", "v2").await;
    let artifact = s.t.release_ready(V2).await.status.unwrap().artifact.unwrap();
    assert!(artifact.revision == second.to_string() && artifact.verified_by.contains("cosign.pub"), "{artifact:?}");
}

#[tokio::test]
async fn only_releases_that_cosign_signed_for_a_trusted_identity_are_unpacked() {
    let Some(s) = Served::new("keyless").await else { return };
    let (ours, theirs) = (Sigstore::new(), Sigstore::new());
    let root = String::from_utf8(ours.root()).unwrap();
    s.t.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "trust"}, "stringData": {"trusted_root.json": root}}))
        .await;
    let first = s.push(V1, SETTINGS).await;
    let _operator = s.t.operator(&["--allow-source", &s.liar.host]);
    let by = |subject: &str| {
        let identity = json!([{"issuer": format!("^{ISSUER}$"), "subject": subject}]);
        json!({"verify": {"cosign": {"secretRef": {"name": "trust"}, "matchOIDCIdentity": identity}}})
    };
    s.create_stack_with(by("^somebody@")).await;
    let not_verified = async |part: &str| {
        s.t.release(V1, &format!("to say {part:?}"), |found| {
            let conditions = found.status.clone().unwrap_or_default().conditions;
            let said = find(&conditions, ConditionType::SourceVerified).cloned();
            check(said.is_some_and(|c| c.reason == "NotVerified" && c.message.contains(part)), conditions)
        })
        .await;
        assert!(!s.downloaded(&assets(V1, SETTINGS)), "what nobody trusted signed was downloaded");
    };
    not_verified("is not signed").await;
    s.sign_keyless(&first, &theirs).await;
    s.t.look_again("x").await;
    not_verified("does not hold").await;
    s.sign_keyless(&first, &ours).await;
    s.t.look_again("x").await;
    not_verified(SUBJECT).await;
    s.t.change("user", (clusterstack::api::API_VERSION, "ClusterStack", "x"), json!({"spec": by("^release@")})).await;
    s.t.ready("x", "v1").await;
    let message = s.t.release_says(V1, ConditionType::SourceVerified, "True", "Verified").await;
    assert!(message.contains(SUBJECT) && message.contains(ISSUER), "{message}");
}

#[tokio::test]
async fn a_registry_that_tells_of_a_push_has_the_source_read_at_once() {
    let t = World::new("told").await;
    let operator = t.operator(&["--allow-source", "127.0.0.1", "--receiver-bind-address", "127.0.0.1:0"]);
    let token = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hook"}, "stringData": {"token": "swordfish"}});
    t.apply(&token).await;
    for (stack, authorization) in [("x", "Bearer swordfish"), ("y", "swordfish")] {
        let hook = format!("http://{}/hook/{}/{stack}", operator.address("receiver").await, t.namespace);
        let flags = ["-notify", &hook, "-notify-authorization", authorization];
        let Some(server) = RegistryServer::start(&t.dir().join(stack), &flags) else { return };
        let repository = format!("{}/stacks/{stack}", server.host);
        let allow = AllowList::parse(["127.0.0.1"]).unwrap();
        let access = Access { insecure: true, ..Access::default() };
        let registry = Registry::new(&repository, &access, &allow, &t.dir().join("scratch")).unwrap();
        let release = |version: &str| format!("docker-{stack}-1-34-{version}");
        push(&registry, &release("v1"), &assets(&release("v1"), SETTINGS)).await.unwrap();
        let source = json!({"git": null, "oci": {"repository": repository, "insecure": true}});
        let receiver = json!({"secretRef": {"name": "hook"}});
        t.create_stack(stack, "", json!({"name": stack, "interval": "24h", "source": source, "receiver": receiver}))
            .await;
        t.ready(stack, "v1").await;
        // Nobody asks: the registry says so.
        push(&registry, &release("v2"), &assets(&release("v2"), SETTINGS)).await.unwrap();
        t.ready(stack, "v2").await;
    }
    assert!(!operator.log().contains("swordfish"));
}

#[tokio::test]
async fn what_was_refused_for_its_signature_is_not_fetched_again_before_something_changed() {
    let Some(s) = Served::new("refused").await else { return };
    let (ours, theirs) = (key(), key());
    let trust = async |key: &PKey<Private>| {
        let public = String::from_utf8(key.public_key_to_pem().unwrap()).unwrap();
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"cosign.pub": public}});
        s.t.apply(&secret).await;
    };
    trust(&ours).await;
    let digest = s.push(V1, SETTINGS).await;
    let operator = s.t.operator(&["--allow-source", &s.liar.host]);
    let verify = json!({"cosign": {"secretRef": {"name": "keys"}}});
    s.create_stack_with(json!({"interval": "1h", "verify": verify})).await;
    s.t.release_says(V1, ConditionType::SourceVerified, "False", "NotVerified").await;
    s.t.stack_says("x", ConditionType::Ready, "False", "ReleaseNotReady").await;
    // Whatever looks at it, the registry is not asked.
    s.liar.asked();
    for n in 0..3 {
        let touch = json!({"metadata": {"annotations": {"example.com/touched": n.to_string()}}});
        let object = (clusterstack::api::API_VERSION, "ClusterStackRelease", V1);
        tokio::join!(operator.passes("ClusterStackRelease", 1), s.t.change("user", object, touch));
    }
    assert_eq!(s.liar.asked().len(), 0);
    // Who asks gets an answer.
    s.sign(&digest, &[&theirs]).await;
    s.t.look_again("x").await;
    s.t.release(V1, "to name the stranger", |release| {
        let conditions = release.status.clone().unwrap_or_default().conditions;
        check(conditions.iter().any(|c| c.message.contains("a key of cosign")), conditions)
    })
    .await;
    // Another key is another question.
    trust(&theirs).await;
    let touch = json!({"metadata": {"annotations": {"example.com/touched": "again"}}});
    s.t.change("user", (clusterstack::api::API_VERSION, "ClusterStackRelease", V1), touch).await;
    s.t.ready("x", "v1").await;
}

#[tokio::test]
async fn releases_come_from_a_registry() {
    let Some(s) = Served::new("oci").await else { return };
    s.push(V1, SETTINGS).await;
    let _operator = s.t.operator(&["--allow-source", &s.liar.host]);
    s.create_stack().await;
    s.t.ready("x", "v1").await;
    assert_eq!(s.t.in_config_map(V1, "/data/color").await, "blue");
    let artifact = s.t.release_ready(V1).await.status.unwrap().artifact.unwrap();
    assert_eq!(artifact.url, format!("oci://{}", s.repository()));
    assert!(artifact.revision.starts_with("sha256:"), "{artifact:?}");
    s.push(V2, SETTINGS).await;
    s.t.look_again("x").await;
    s.t.ready("x", "v2").await;
}

#[tokio::test]
async fn a_tag_of_a_registry_that_moves_while_it_waits_has_to_be_approved_and_baked_anew() {
    let Some(s) = Served::new("oci-moved").await else { return };
    let t = &s.t;
    s.push(V1, SETTINGS).await;
    let _operator = t.operator(&["--allow-source", &s.liar.host]);
    s.create_stack_with(json!({"approval": "manual", "bakeTime": "12s"})).await;
    let waits = |reason: &'static str| async move {
        t.stack("x", &format!("{V1} to wait: {reason}"), |stack| {
            let rows = stack.status.clone().unwrap_or_default().available;
            check(rows.iter().any(|row| row.name == V1 && row.reason == reason), rows)
        })
        .await;
    };
    let approve = || {
        let kubeconfig = t.plane.kubeconfig.to_str().unwrap();
        let args = ["approve", "x", V1, "--namespace", &t.namespace, "--kubeconfig", kubeconfig];
        let done = std::process::Command::new(env!("CARGO_BIN_EXE_clusterstack")).args(args).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    waits("WaitsForApproval").await;
    approve();
    waits("Baking").await;
    s.push(V1, &SETTINGS.replace("large", "small")).await;
    t.look_again("x").await;
    waits("WaitsForApproval").await;
    // Its time comes, and nothing is taken.
    tokio::time::sleep(Duration::from_secs(13)).await;
    t.looked_again("x").await;
    waits("WaitsForApproval").await;
    assert!(t.config_map(V1).await.is_none());
    approve();
    t.ready("x", "v1").await;
    assert_eq!(t.in_config_map(V1, "/data/size").await, "small");
}

#[tokio::test]
async fn a_registry_that_lies_changes_nothing_that_runs_and_is_forgiven() {
    let Some(s) = Served::new("oci-lies").await else { return };
    s.push(V1, SETTINGS).await;
    let _operator = s.t.operator(&["--allow-source", &s.liar.host]);
    s.create_stack().await;
    s.t.ready("x", "v1").await;
    // A new release with other bytes than its manifest says.
    s.push(V2, SETTINGS).await;
    s.liar.set(Lie::Blob);
    s.t.look_again("x").await;
    let message = s.t.release_says(V2, ConditionType::Ready, "False", "FetchFailed").await;
    assert!(message.contains("its digest is") && message.contains("nothing of it is used"), "{message}");
    // The tag of what runs is moved.
    s.push(V1, &SETTINGS.replace("large", "small")).await;
    s.t.looked_again("x").await;
    assert_eq!(s.t.in_config_map(V1, "/data/size").await, "large");
    assert!(s.t.config_map(V2).await.is_none());
    s.liar.set(Lie::None);
    s.t.ready("x", "v2").await;
}

#[tokio::test]
async fn what_is_applied_is_fetched_by_its_digest_when_the_store_is_lost_and_the_tag_moved() {
    let Some(s) = Served::new("oci-lost").await else { return };
    let digest = s.push(V1, SETTINGS).await;
    let operator = s.t.operator(&["--allow-source", &s.liar.host]);
    s.create_stack().await;
    s.t.ready("x", "v1").await;
    let before = s.t.release_ready(V1).await.status.unwrap().artifact.unwrap();
    assert_eq!(before.revision, digest.to_string());
    operator.kill();
    std::fs::remove_dir_all(s.t.store()).unwrap();
    s.push(V1, &SETTINGS.replace("large", "small")).await;
    let _operator = s.t.operator(&["--allow-source", &s.liar.host]);
    s.t.release_says(V1, ConditionType::ArtifactChanged, "True", "ArtifactChanged").await;
    s.t.change("vandal", ("v1", "ConfigMap", V1), json!({"data": {"size": "spoilt"}})).await;
    wait_for("the field to be put back", || async {
        let size = s.t.in_config_map(V1, "/data/size").await;
        check(size == "large", size)
    })
    .await;
    assert_eq!(s.t.release_ready(V1).await.status.unwrap().artifact.unwrap(), before);
}

#[tokio::test]
async fn an_operator_that_is_killed_goes_on_with_a_download_where_it_ended() {
    let Some(s) = Served::new("oci-killed").await else { return };
    let filler = "# much to download\n".repeat(50_000);
    s.push(V1, &format!("{filler}{SETTINGS}")).await;
    s.liar.set(Lie::Stall(500_000));
    let flags = ["--allow-source", s.liar.host.as_str()];
    let operator = s.t.operator(&flags);
    s.create_stack().await;
    wait_for("half a blob", || async {
        let parts = std::fs::read_dir(s.t.store().join("scratch/blobs")).map_err(|error| error.to_string())?;
        let sizes: Vec<u64> = parts.flatten().filter_map(|part| Some(part.metadata().ok()?.len())).collect();
        if sizes.contains(&500_000) { Ok(()) } else { Err(format!("{sizes:?}")) }
    })
    .await;
    operator.kill();
    s.liar.set(Lie::None);
    s.liar.asked();
    let _operator = s.t.operator(&flags);
    s.t.ready("x", "v1").await;
    let ranges: Vec<String> = s.liar.asked().into_iter().filter_map(|asked| asked.range).collect();
    assert_eq!(ranges, ["bytes=500000-"]);
}
