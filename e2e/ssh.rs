//! Git over ssh from servers that do what they should not: a real `sshd` runs what a test says instead of Git.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clusterstack::core::source::AllowList;
use clusterstack::io::source::git::{Git, GitSource};
use clusterstack::io::source::{Access, Credentials, Source, SourceError};
use tokio_util::sync::CancellationToken;

use crate::harness::{Repo, SETTINGS, SshServer};

const V1: &str = "docker-x-1-34-v1";

/// An executable script in `dir`, as what the server runs whatever is asked for.
fn forced(dir: &Path, script: &str) -> String {
    let path = dir.join("forced");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!("ForceCommand {}", path.display())
}

/// Sources that use one thread.
fn git(dir: &Path, hosts: &[&str]) -> Git {
    let allow = [hosts, &[dir.to_str().unwrap()]].concat();
    Git::new(AllowList::parse(allow).unwrap(), dir.join("scratch"), 1)
}

fn source(git: &Git, url: &str, server: &SshServer, known_hosts: &str) -> GitSource {
    let secret = [("identity", server.identity()), ("known_hosts", known_hosts.to_owned())];
    let credentials = Credentials::from_secret(&BTreeMap::from(secret.map(|(key, value)| (key.to_owned(), value))));
    git.source(url, None, Access { credentials: Some(credentials.unwrap()), ..Access::default() }).unwrap()
}

fn repo(dir: &Path) -> (Repo, PathBuf) {
    let repo = Repo::new(&dir.join("repo"));
    repo.release(V1, SETTINGS);
    let path = repo.dir().to_owned();
    (repo, path)
}

#[tokio::test]
async fn a_list_over_ssh_without_an_end_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    // A reference and its capabilities, then references for ever; it ends when nobody reads.
    let line = |text: &str| format!("{:04x}{text}", text.len() + 4);
    let reference = format!("{} refs/tags/x\n", "1".repeat(40));
    std::fs::write(dir.path().join("more"), line(&reference).repeat(2000)).unwrap();
    let first = line(&format!("{} HEAD+side-band-64k\n", "1".repeat(40))).replace('+', "\\000");
    let more = dir.path().join("more");
    let script = format!("printf '{}'\nwhile cat {}; do :; done", first.replace('\n', "\\n"), more.display());
    let forced = forced(dir.path(), &script);
    let test = "a_list_over_ssh_without_an_end_is_given_up";
    let Some(server) = SshServer::start_with(test, &dir.path().join("ssh"), &forced).await else { return };
    let mut git = git(dir.path(), &[&server.host()]);
    git.limits.packed_bytes = 3 << 20;
    let source = source(&git, &server.url(Path::new("/r")), &server, &server.known_hosts(true));
    let error = source.list(&CancellationToken::new()).await.unwrap_err();
    assert!(matches!(&error, SourceError::TooLarge { limit, .. } if limit.limit == 3 << 20), "{error:?}");
}

#[tokio::test]
async fn who_waits_for_an_ssh_host_in_vain_is_freed_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let forced = forced(dir.path(), "exec sleep 30");
    let test = "who_waits_for_an_ssh_host_in_vain_is_freed_at_once";
    let Some(server) = SshServer::start_with(test, &dir.path().join("ssh"), &forced).await else { return };
    let (repo, _) = repo(dir.path());
    let git = git(dir.path(), &[&server.host()]);
    let silent = source(&git, &server.url(Path::new("/r")), &server, &server.known_hosts(true));
    let cancel = CancellationToken::new();
    let waits = tokio::time::timeout(Duration::from_secs(2), silent.list(&cancel)).await;
    assert!(waits.is_err(), "{waits:?}");
    // There is one thread, and it is free again.
    let started = Instant::now();
    let local = git.source(&repo.url(), None, Access::default()).unwrap();
    assert_eq!(local.list(&cancel).await.unwrap().tags.len(), 1);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[tokio::test]
async fn an_ssh_host_is_known_by_the_name_in_the_url() {
    let dir = tempfile::tempdir().unwrap();
    let test = "an_ssh_host_is_known_by_the_name_in_the_url";
    let Some(server) = SshServer::start(test, &dir.path().join("ssh")).await else { return };
    let (_repo, path) = repo(dir.path());
    let git = git(dir.path(), &[&server.host(), &server.host().replace("127.0.0.1", "localhost")]);
    let url = server.url(&path).replace("127.0.0.1", "localhost");
    let cancel = CancellationToken::new();
    let by_address = source(&git, &url, &server, &server.known_hosts(true)).list(&cancel).await.unwrap_err();
    assert!(matches!(by_address, SourceError::Untrusted { .. }), "{by_address:?}");
    let by_name = server.known_hosts(true).replace("127.0.0.1", "localhost");
    assert_eq!(source(&git, &url, &server, &by_name).list(&cancel).await.unwrap().tags.len(), 1);
    // What goes wrong is told of the host, not of the way there.
    let missing =
        source(&git, &format!("{url}-missing"), &server, &by_name).list(&cancel).await.unwrap_err().to_string();
    assert!(missing.contains("localhost") && !missing.contains("127.0.0.1"), "{missing}");
}
