//! Signatures and pins: what is not signed by somebody who is trusted is not applied, and what was stays.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use clusterstack::api::ConditionType;
use clusterstack::core::digest::hex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::harness::{GitHub, Repo, SETTINGS, World, assets, check, skipped, wait_for};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";

/// A new SSH key in the test's directory; `None`, and a visible word, without ssh-keygen.
fn key(t: &World, name: &str) -> Option<PathBuf> {
    let path = t.dir().join(name);
    let comment = format!("{name}@example.com");
    let made =
        Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", &comment, "-f"]).arg(&path).output();
    match made {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => {
            skipped(format_args!("signatures: ssh-keygen: {error}"));
            return None;
        }
    }
    Some(path)
}

/// Puts public keys into the Secret `keys`.
async fn trust(t: &World, keys: &[&Path]) {
    let name = |key: &Path| format!("{}.pub", key.file_name().unwrap().display());
    let data: serde_json::Map<String, Value> = keys
        .iter()
        .map(|key| (name(key), std::fs::read_to_string(key.with_extension("pub")).unwrap().into()))
        .collect();
    t.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": data})).await;
}

fn verify() -> Value {
    json!({"verify": {"git": {"secretRef": {"name": "keys"}}}})
}

fn signed(repo: &Repo, tag: &str, size: &str, key: &Path) {
    repo.release(tag, &SETTINGS.replace("large", size));
    repo.sign_tag(tag, key);
}

#[tokio::test]
async fn only_releases_whose_tag_a_trusted_key_signed_are_applied() {
    let t = World::new("trust").await;
    let Some((ours, theirs)) = key(&t, "ours").zip(key(&t, "theirs")) else { return };
    let repo = t.repo();
    signed(&repo, V1, "large", &ours);
    trust(&t, &[&ours]).await;
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), verify()).await;
    t.ready("x", "v1").await;
    let message = t.release_says(V1, ConditionType::SourceVerified, "True", "Verified").await;
    assert!(message.contains("SSH key SHA256:") && message.contains("ours@example.com"), "{message}");

    // A newer one that nobody signed, then one that somebody else signed.
    repo.release(V2, SETTINGS);
    t.look_again("x").await;
    let message = t.release_says(V2, ConditionType::SourceVerified, "False", "NotVerified").await;
    assert!(message.contains("not signed"), "{message}");
    t.stack_says("x", ConditionType::Ready, "False", "NewestReleaseNotReady").await;
    signed(&repo, V2, "large", &theirs);
    t.look_again("x").await;
    t.release(V2, "to name who signed it", |release| {
        let conditions = release.status.clone().unwrap_or_default().conditions;
        let found = clusterstack::api::condition::find(&conditions, ConditionType::SourceVerified).cloned();
        found.filter(|c| c.message.contains("is signed by SSH key SHA256:")).ok_or_else(|| format!("{conditions:#?}"))
    })
    .await;
    assert!(t.config_map(V2).await.is_none(), "what nobody trusted signed was applied");
    assert!(t.config_map(V1).await.is_some() && t.release_ready(V1).await.status.unwrap().ready);

    // Their key is trusted from now on.
    trust(&t, &[&ours, &theirs]).await;
    t.look_again("x").await;
    t.ready("x", "v2").await;
    let message = t.release_says(V2, ConditionType::SourceVerified, "True", "Verified").await;
    assert!(message.contains("theirs@example.com"), "{message}");

    // Their tag moves, and is signed by them: that is told, and not followed.
    let before = t.release_ready(V2).await.status.unwrap().artifact;
    signed(&repo, V2, "huge", &theirs);
    t.look_again("x").await;
    t.event("ArtifactChanged", V2).await;
    t.release_says(V2, ConditionType::ArtifactChanged, "True", "ArtifactChanged").await;
    t.ready("x", "v2").await;
    assert_eq!(t.in_config_map(V2, "/data/size").await, "large");

    // What was verified stays so over a restart, with nothing to verify it by.
    operator.terminate().await;
    t.delete("v1", "Secret", "keys").await;
    let _operator = t.operator(&[]);
    t.looked_again("x").await;
    t.release_says(V2, ConditionType::SourceVerified, "True", "Verified").await;
    let after = t.release_ready(V2).await.status.unwrap().artifact;
    assert!(after == before && after.is_some_and(|artifact| artifact.verified_by.contains("theirs@example.com")));
    assert_eq!(t.in_config_map(V2, "/data/size").await, "large");
}

#[tokio::test]
async fn what_was_verified_is_had_again_by_its_digest_after_its_key_was_taken_out() {
    let t = World::new("keygone").await;
    let (Some(ours), Some(theirs)) = (key(&t, "ours"), key(&t, "theirs")) else { return };
    let repo = t.repo();
    signed(&repo, V1, "large", &ours);
    trust(&t, &[&ours]).await;
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), verify()).await;
    t.ready("x", "v1").await;
    let before = t.release_ready(V1).await.status.unwrap().artifact.unwrap();

    operator.kill();
    std::fs::remove_dir_all(t.store()).unwrap();
    t.delete("v1", "Secret", "keys").await;
    trust(&t, &[&theirs]).await;
    let operator = t.operator(&[]);
    t.change("vandal", ("v1", "ConfigMap", V1), json!({"data": {"size": "spoilt"}})).await;
    wait_for("the field to be put back", || async {
        let size = t.in_config_map(V1, "/data/size").await;
        check(size == "large", size)
    })
    .await;
    t.release_says(V1, ConditionType::SourceVerified, "True", "Verified").await;
    assert_eq!(t.release_ready(V1).await.status.unwrap().artifact.unwrap(), before);

    // With another verify it has to be signed by them, whatever its tag names meanwhile.
    operator.kill();
    repo.release(V1, &SETTINGS.replace("large", "huge"));
    t.change_stack("x", json!({"spec": {"verify": {"git": {"mode": "Commit"}}}})).await;
    let _operator = t.operator(&[]);
    let message = t.release_says(V1, ConditionType::Ready, "False", "NotVerified").await;
    assert!(message.contains(&before.revision) && !message.contains("delete this release"), "{message}");
    assert_eq!(t.in_config_map(V1, "/data/size").await, "large");
}

#[tokio::test]
async fn a_release_that_is_there_is_verified_when_signatures_are_asked_for_later() {
    let t = World::new("later-trust").await;
    let Some(ours) = key(&t, "ours") else { return };
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    trust(&t, &[&ours]).await;
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;

    t.change_stack("x", json!({"spec": verify()})).await;
    t.release_says(V1, ConditionType::SourceVerified, "False", "NotVerified").await;
    t.release_says(V1, ConditionType::Ready, "False", "NotVerified").await;
    assert_eq!(t.in_config_map(V1, "/data/size").await, "large");

    repo.sign_tag(V1, &ours);
    t.look_again("x").await;
    t.ready("x", "v1").await;
    t.release_says(V1, ConditionType::SourceVerified, "True", "Verified").await;
}

/// Assets with their sums, signed by `key`.
fn summed(t: &World, mut files: BTreeMap<String, Bytes>, key: &Path) -> BTreeMap<String, Bytes> {
    let line = |(name, content): (&String, &Bytes)| format!("{}  {name}\n", hex(&Sha256::digest(content)));
    let sums = files.iter().map(line).collect::<String>();
    let (path, signature) = (t.dir().join("SHA256SUMS"), t.dir().join("SHA256SUMS.sig"));
    std::fs::write(&path, &sums).unwrap();
    let _ = std::fs::remove_file(&signature);
    let signed = Command::new("ssh-keygen").args(["-q", "-Y", "sign", "-n", "file", "-f"]).arg(key).arg(&path).output();
    assert!(signed.unwrap().status.success());
    files.insert("SHA256SUMS".into(), sums.into());
    files.insert("SHA256SUMS.sig".into(), std::fs::read(&signature).unwrap().into());
    files
}

#[tokio::test]
async fn assets_of_github_count_when_a_trusted_key_signed_their_checksums() {
    let t = World::new("sums").await;
    let Some((ours, theirs)) = key(&t, "ours").zip(key(&t, "theirs")) else { return };
    let server = GitHub::start().await;
    let files = assets(V1, SETTINGS);
    server.publish(V1, &files);
    trust(&t, &[&ours]).await;
    let _operator = t.operator(&["--allow-source", server.host()]);
    let verify = json!({"checksums": {"secretRef": {"name": "keys"}}});
    t.create_stack("x", "", json!({"source": server.source(), "verify": verify})).await;
    let refused = async |release: &str, part: &str| {
        t.release(release, &format!("to say {part:?}"), |found| {
            let conditions = found.status.clone().unwrap_or_default().conditions;
            let said = clusterstack::api::condition::find(&conditions, ConditionType::SourceVerified).cloned();
            said.filter(|c| c.reason == "NotVerified" && c.message.contains(part)).ok_or(format!("{conditions:#?}"))
        })
        .await;
        t.release_says(release, ConditionType::Ready, "False", "NotVerified").await;
        assert!(t.config_map(release).await.is_none(), "what nobody trusted signed was applied");
    };
    refused(V1, "SHA256SUMS is not signed").await;
    assert_eq!(server.downloads(), 0, "what nobody signed was downloaded");

    server.publish(V1, &summed(&t, files.clone(), &theirs));
    t.look_again("x").await;
    refused(V1, "is signed by SSH key SHA256:").await;
    // The sums are ours, and the chart is another than was summed.
    let mut changed = summed(&t, files.clone(), &ours);
    let class = files.keys().find(|name| name.ends_with(".tgz")).unwrap();
    changed.insert(class.clone(), assets(V1, &SETTINGS.replace("large", "small"))[class].clone());
    server.publish(V1, &changed);
    t.look_again("x").await;
    refused(V1, "it has another SHA-256 than the signed file says").await;

    server.publish(V1, &summed(&t, files, &ours));
    t.look_again("x").await;
    t.ready("x", "v1").await;
    let message = t.release_says(V1, ConditionType::SourceVerified, "True", "Verified").await;
    assert!(message.contains("SSH key SHA256:") && message.contains("ours@example.com"), "{message}");
    assert_eq!(t.in_config_map(V1, "/data/size").await, "large");

    // A newer one that nobody signed leaves it alone.
    server.release(V2, SETTINGS);
    t.look_again("x").await;
    refused(V2, "is not signed").await;
    t.release_ready(V1).await;
}

#[tokio::test]
async fn a_pinned_release_is_taken_with_its_digest_only() {
    let t = World::new("pin").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let _operator = t.operator(&[]);
    let pin = |digest: &str| json!({"pin": [{"version": "v1", "digest": digest}]});
    t.create_stack("x", &repo.url(), pin(&"0".repeat(40))).await;
    let message = t.release_says(V1, ConditionType::Stalled, "True", "DigestMismatch").await;
    assert!(message.contains(&repo.commit_of(V1)), "{message}");
    assert!(t.config_map(V1).await.is_none(), "a release of another digest was applied");

    t.change_stack("x", json!({"spec": pin(&repo.commit_of(V1))})).await;
    t.ready("x", "v1").await;
    let digest = t.release_ready(V1).await.status.unwrap().artifact.unwrap().digest;
    t.change_stack("x", json!({"spec": pin(&digest)})).await;
    t.looked_again("x").await;
    t.ready("x", "v1").await;
}
