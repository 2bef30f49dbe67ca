//! Signed tags, fetched from a server without history and read from the disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use clusterstack::core::name::ReleaseName;
use clusterstack::core::verification::{ChecksumTrust, GitTrust, Keys, NotVerified, Trust};
use clusterstack::io::source::git::GitSource;
use clusterstack::io::source::{Access, Fetched, Source, SourceError, Wanted};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::forge::sum;
use super::git;
use super::repository::{self, Repository};
use super::server::Server;

/// A new SSH key; `None`, and says so, without ssh-keygen.
pub fn key(directory: &Path, name: &str) -> Option<Vec<u8>> {
    let path = directory.join(name);
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]).arg(&path).output();
    let Ok(output) = made else {
        eprintln!("SKIPPED: ssh-keygen is not here");
        return None;
    };
    assert!(output.status.success());
    Some(std::fs::read(path.with_extension("pub")).unwrap())
}

/// The files with their sums, which the key `name` in `directory` signed.
pub fn summed(directory: &Path, name: &str, files: &BTreeMap<String, Bytes>) -> BTreeMap<String, Bytes> {
    let sums: String = files.iter().map(|(name, content)| format!("{}  {name}\n", sum(content))).collect();
    let (path, signature) = (directory.join("SHA256SUMS"), directory.join("SHA256SUMS.sig"));
    std::fs::write(&path, &sums).unwrap();
    let _ = std::fs::remove_file(&signature);
    let mut command = Command::new("ssh-keygen");
    command.args(["-q", "-Y", "sign", "-n", "file", "-f"]).arg(directory.join(name)).arg(&path);
    assert!(command.output().unwrap().status.success());
    let signature = Bytes::from(std::fs::read(signature).unwrap());
    let beside = [("SHA256SUMS".to_owned(), Bytes::from(sums)), ("SHA256SUMS.sig".to_owned(), signature)];
    files.clone().into_iter().chain(beside).collect()
}

/// Whose signed sums count.
pub fn summed_by(key: Vec<u8>) -> Trust {
    let keys = Keys([("ours.pub".to_owned(), key)].into());
    let checksums = ChecksumTrust { file: "SHA256SUMS".into(), keys, now: Timestamp::now() };
    Trust { checksums: Some(checksums), ..Trust::default() }
}

fn sign(repository: &Repository, key: &Path, tag: &str, of: &str) {
    let key = format!("user.signingKey={}", key.display());
    let format = ["-c", "gpg.format=ssh", "-c", &key];
    repository::git(&repository.path, &[&format[..], &["tag", "-f", "-s", "-m", tag, tag, of]].concat());
}

async fn fetch(source: &GitSource, name: &str, trust: &Trust) -> Result<Fetched, SourceError> {
    let cancel = CancellationToken::new();
    let release: ReleaseName = name.parse().unwrap();
    let listing = source.list(&cancel).await.unwrap();
    let tag = listing.tags.iter().find(|tag| tag.name == name).unwrap();
    source.fetch(&Wanted { tag, release: &release, trust: Some(trust), by_revision: false }, &cancel).await
}

fn refusal(result: Result<Fetched, SourceError>) -> NotVerified {
    match result {
        Err(SourceError::NotVerified { problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn signatures_of_tags_are_checked_before_anything_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let Some((ours, _)) = key(directory.path(), "ours").zip(key(directory.path(), "theirs")) else { return };
    let repository = Repository::new(directory.path().join("repos/r"));
    repository.write("old", "history").commit();
    repository.write_stack("stacks/docker/scs").commit();
    let path = |name: &str| directory.path().join(name);
    sign(&repository, &path("ours"), "docker-scs-1-30-v1", "HEAD");
    sign(&repository, &path("theirs"), "docker-scs-1-30-v2", "HEAD");
    repository.tag("docker-scs-1-30-v3");
    repository::git(&repository.path, &["tag", "docker-scs-1-30-v4", "docker-scs-1-30-v1"]);
    repository::git(&repository.path, &["tag", "-a", "-m", "inner", "inner", "HEAD"]);
    sign(&repository, &path("ours"), "docker-scs-1-30-v5", "inner");

    let server = Server::new(directory.path().join("repos")).await;
    let local = directory.path().to_str().unwrap();
    let git = git(directory.path(), &[&server.host, local]);
    let keys = Keys([("ours.pub".to_owned(), ours)].into());
    let trust =
        Trust { git: Some(GitTrust { keys, now: Timestamp::now(), ..GitTrust::default() }), ..Trust::default() };
    for url in [server.url("r/.git"), repository.url()] {
        let source = git.source(&url, None, Access::default()).unwrap();
        for name in ["docker-scs-1-30-v1", "docker-scs-1-30-v5"] {
            let fetched = fetch(&source, name, &trust).await.unwrap();
            assert!(fetched.signer.unwrap().0.ends_with("(ours)"), "{url} {name}");
        }
        let of = async |name| refusal(fetch(&source, name, &trust).await);
        assert!(matches!(of("docker-scs-1-30-v2").await, NotVerified::UnknownSigner { .. }), "{url}");
        assert!(matches!(of("docker-scs-1-30-v3").await, NotVerified::Unsigned { .. }), "{url}");
        let renamed = of("docker-scs-1-30-v4").await.to_string();
        assert!(renamed.contains("it was made for tag docker-scs-1-30-v1"), "{url}: {renamed}");
        let both = Trust { checksums: Some(ChecksumTrust::default()), ..trust.clone() };
        let kind = refusal(fetch(&source, "docker-scs-1-30-v1", &both).await);
        assert!(matches!(kind, NotVerified::WrongKind(_)), "{url}: {kind}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_release_that_is_signed_is_said_with_who_signed_it() {
    let directory = tempfile::tempdir().unwrap();
    let Some(ours) = key(directory.path(), "ours") else { return };
    let repository = Repository::new(directory.path().join("repos/r"));
    repository.write("readme", "no stack").commit();
    let name = "docker-scs-1-30-v1";
    sign(&repository, &directory.path().join("ours"), name, "HEAD");
    let git = git(directory.path(), &[directory.path().to_str().unwrap()]);
    let keys = Keys([("ours.pub".to_owned(), ours)].into());
    let trust =
        Trust { git: Some(GitTrust { keys, now: Timestamp::now(), ..GitTrust::default() }), ..Trust::default() };
    let source = git.source(&repository.url(), None, Access::default()).unwrap();
    let error = fetch(&source, name, &trust).await.unwrap_err();
    let trouble = clusterstack::io::source::trouble(&error);
    assert_eq!(trouble.reason, clusterstack::api::condition::Reason::ReleaseInvalid, "{error}");
    assert!(trouble.signer.ends_with("(ours)") && !error.is_transient(), "{trouble:?}");
}
