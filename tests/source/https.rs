//! Repositories behind TLS: who is trusted, who we are, which way it goes, and what a server may do to us.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clusterstack::core::name::ReleaseName;
use clusterstack::core::source::AllowList;
use clusterstack::io::source::access::{Proxy, Tls};
use clusterstack::io::source::git::{Git, GitSource};
use clusterstack::io::source::{Access, Credentials, Fetched, Source, SourceError, Tag};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::certificates::Authority;
use super::connect_proxy::ConnectProxy;
use super::repository::Repository;
use super::server::{Mode, Server};
use super::wanted;

const TAG: &str = "docker-scs-1-30-v1";

/// A repository with one release, and an authority for its servers.
struct World {
    directory: TempDir,
    authority: Authority,
    commit: String,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let repository = Repository::new(directory.path().join("repos/r"));
        repository.write("old", "history").commit();
        let commit = repository.write_stack("stacks/docker/scs").commit();
        repository.tag(TAG);
        Self { directory, authority: Authority::new(), commit }
    }

    fn repositories(&self) -> PathBuf {
        self.directory.path().join("repos")
    }

    async fn server(&self) -> Server {
        Server::with_tls(self.repositories(), self.authority.server("127.0.0.1", None)).await
    }

    fn git(&self) -> Git {
        let allow = AllowList::parse(["127.0.0.1", "localhost"]).unwrap();
        let mut git = Git::new(allow, self.directory.path().join("scratch"), 1);
        git.list_timeout = Duration::from_secs(10);
        git.fetch_timeout = Duration::from_secs(10);
        git
    }

    /// We trust the authority.
    fn access(&self) -> Access {
        Access { tls: Tls { authorities: Some(self.authority.pem()), identity: None }, ..Access::default() }
    }

    fn source(&self, server: &Server, access: Access) -> GitSource {
        self.git().source(&server.url("r/.git"), None, access).unwrap()
    }

    fn tag(&self) -> Tag {
        Tag { name: TAG.to_owned(), revision: self.commit.clone() }
    }
}

fn login(password: &str) -> Option<Credentials> {
    Some(Credentials { password: Some(password.to_owned()), ..Credentials::default() })
}

async fn list(source: &GitSource) -> Result<Vec<Tag>, SourceError> {
    source.list(&CancellationToken::new()).await.map(|listing| listing.tags)
}

async fn fetch(source: &GitSource, tag: &Tag, cancel: &CancellationToken) -> Result<Fetched, SourceError> {
    let release: ReleaseName = TAG.parse().unwrap();
    source.fetch(&wanted(tag, &release), cancel).await
}

#[tokio::test]
async fn an_authority_of_our_own_is_trusted_where_it_is_named() {
    let world = World::new();
    let server = world.server().await;
    let source = world.source(&server, world.access());
    assert_eq!(list(&source).await.unwrap(), [world.tag()]);
    let fetched = fetch(&source, &world.tag(), &CancellationToken::new()).await.unwrap();
    assert_eq!(fetched.revision, world.commit);
    let deepened = server.asked().iter().any(|asked| String::from_utf8_lossy(&asked.body).contains("deepen 1"));
    assert!(deepened, "not shallow");

    let error = list(&world.source(&server, Access::default())).await.unwrap_err();
    assert!(matches!(error, SourceError::Untrusted { .. }) && error.to_string().contains("certSecretRef"), "{error}");
    let other = Authority::new();
    let access = Access { tls: Tls { authorities: Some(other.pem()), identity: None }, ..Access::default() };
    let error = list(&world.source(&server, access)).await.unwrap_err();
    assert!(matches!(error, SourceError::Untrusted { .. }) && !error.is_transient(), "{error}");
}

#[tokio::test]
async fn a_certificate_of_another_name_is_not_trusted() {
    let world = World::new();
    let server = Server::with_tls(world.repositories(), world.authority.server("git.example.com", None)).await;
    let error = list(&world.source(&server, world.access())).await.unwrap_err();
    assert!(matches!(error, SourceError::Untrusted { .. }), "{error}");
    assert_eq!(server.asked().len(), 0);
}

#[tokio::test]
async fn a_server_that_wants_a_certificate_of_ours_gets_it() {
    let world = World::new();
    let clients = Authority::new();
    let server = Server::with_tls(world.repositories(), world.authority.server("127.0.0.1", Some(&clients))).await;
    let mut access = world.access();
    access.tls.identity = Some(clients.identity("operator"));
    let source = world.source(&server, access);
    assert_eq!(list(&source).await.unwrap(), [world.tag()]);
    fetch(&source, &world.tag(), &CancellationToken::new()).await.unwrap();

    let asked = server.asked().len();
    let error = list(&world.source(&server, world.access())).await.unwrap_err();
    assert!(matches!(error, SourceError::Unauthorized { .. }) && error.to_string().contains("tls.crt"), "{error}");
    let mut access = world.access();
    access.tls.identity = Some((clients.identity("operator").0, "no key".to_owned()));
    let error = list(&world.source(&server, access)).await.unwrap_err();
    assert!(matches!(error, SourceError::Unusable { .. }) && error.to_string().contains("tls.key"), "{error}");
    assert_eq!(server.asked().len(), asked);
}

#[tokio::test]
async fn the_proxy_that_the_source_names_is_used() {
    let world = World::new();
    let server = world.server().await;
    let proxy = ConnectProxy::new("user", "hunter2").await;
    let through = |password: &str| {
        let login = Some(("user".to_owned(), password.to_owned()));
        let mut access = world.access();
        access.proxy = Some(Proxy { address: format!("http://{}", proxy.host), login });
        world.source(&server, access)
    };
    let source = through("hunter2");
    assert_eq!(list(&source).await.unwrap(), [world.tag()]);
    fetch(&source, &world.tag(), &CancellationToken::new()).await.unwrap();
    assert!(!proxy.asked().is_empty() && proxy.asked().iter().all(|target| *target == server.host));

    let error = list(&through("hunter3")).await.unwrap_err();
    assert!(
        matches!(error, SourceError::Unauthorized { .. }) && error.to_string().contains("proxySecretRef"),
        "{error}"
    );
    assert!(!format!("{error:?}").contains("hunter"), "{error:?}");
}

#[tokio::test]
async fn a_proxy_on_our_own_machine_needs_a_flag() {
    let world = World::new();
    let git = Git::new(AllowList::default(), world.directory.path().join("scratch"), 1);
    let proxy = Proxy { address: "http://127.0.0.1:1".to_owned(), login: None };
    let access = Access { proxy: Some(proxy), ..Access::default() };
    let error = list(&git.source("https://git.example.com/r", None, access).unwrap()).await.unwrap_err();
    assert!(matches!(error, SourceError::Refused(_)), "{error}");
}

#[tokio::test]
async fn a_redirect_never_leaves_tls() {
    let world = World::new();
    let server = world.server().await;
    let plain = Server::new(world.repositories()).await;
    server.answers(Mode::To(format!("http://{}", plain.host)));
    let source = world.source(&server, world.access());
    let error = list(&source).await.unwrap_err();
    assert!(matches!(error, SourceError::Untrusted { .. }), "{error}");
    fetch(&source, &world.tag(), &CancellationToken::new()).await.unwrap_err();
    assert_eq!(plain.asked().len(), 0);
}

#[tokio::test]
async fn a_redirect_moves_the_whole_conversation_without_credentials() {
    let world = World::new();
    let server = world.server().await;
    let other = world.server().await;
    server.answers(Mode::To(format!("https://{}", other.host)));
    let access = Access { credentials: login("hunter2"), ..world.access() };
    let source = world.source(&server, access);
    assert_eq!(list(&source).await.unwrap(), [world.tag()]);
    fetch(&source, &world.tag(), &CancellationToken::new()).await.unwrap();
    assert!(server.asked().iter().all(|asked| asked.what.starts_with("GET") && asked.authorization.is_some()));
    let posted = other.asked().iter().filter(|asked| asked.what.starts_with("POST")).count();
    assert!(posted > 0 && other.asked().iter().all(|asked| asked.authorization.is_none()));

    other.answers(Mode::Login("Basic x".to_owned()));
    let error = list(&source).await.unwrap_err();
    assert!(matches!(error, SourceError::Unauthorized { .. }) && error.to_string().contains("another host"), "{error}");
}

#[tokio::test]
async fn credentials_in_the_url_are_sent() {
    let world = World::new();
    let server = world.server().await;
    server.answers(Mode::Login("Basic Z2l0Omh1bnRlcjI=".to_owned()));
    let url = server.url("r/.git").replace("https://", "https://git:hunter2@");
    let source = world.git().source(&url, None, world.access()).unwrap();
    assert_eq!(list(&source).await.unwrap(), [world.tag()]);
    fetch(&source, &world.tag(), &CancellationToken::new()).await.unwrap();
}

#[tokio::test]
async fn a_page_for_people_is_no_answer_of_git() {
    let world = World::new();
    let (server, other) = (world.server().await, world.server().await);
    let source = world.source(&server, world.access());
    for (mode, led) in [
        (Mode::Text(b"<!DOCTYPE html><title>Welcome".to_vec()), false),
        (Mode::Page, false),
        (Mode::To(format!("https://{}", other.host)), true),
    ] {
        other.answers(Mode::Page);
        server.answers(mode.clone());
        let error = list(&source).await.unwrap_err();
        assert!(matches!(error, SourceError::Unreachable { .. }) && error.is_transient(), "{mode:?}: {error}");
        let said = error.to_string();
        assert!(said.contains("an HTML page, as a proxy or a login page answers"), "{mode:?}: {said}");
        assert_eq!(said.contains(&format!("a redirect led to https://{}", other.host)), led, "{mode:?}: {said}");
    }
}

#[tokio::test]
async fn a_redirect_to_a_page_is_no_repository() {
    let world = World::new();
    let server = world.server().await;
    let other = world.server().await;
    other.answers(Mode::Text(b"<html>".to_vec()));
    server.answers(Mode::To(format!("https://{}/login?next=", other.host)));
    let error = list(&world.source(&server, world.access())).await.unwrap_err();
    assert!(matches!(error, SourceError::NoRepository { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_is_busy_is_asked_later() {
    let world = World::new();
    let server = world.server().await;
    for (status, told, seconds) in [(429, None, 60), (429, Some("17"), 17), (503, Some("17"), 17)] {
        server.answers(told.map_or(Mode::Status(status), |told| Mode::Later(status, told)));
        let error = list(&world.source(&server, world.access())).await.unwrap_err();
        let SourceError::RateLimited { after, .. } = &error else { panic!("{status}: {error}") };
        assert!(after.as_secs() == seconds && error.is_transient(), "{status}: {error}");
        assert!(error.to_string().contains("; wait until 2"), "{status}: {error}");
    }
    server.answers(Mode::Status(503));
    let error = list(&world.source(&server, world.access())).await.unwrap_err();
    assert!(matches!(error, SourceError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_pack_that_ends_in_the_middle_is_fetched_again() {
    let world = World::new();
    let server = world.server().await;
    let source = world.source(&server, world.access());
    for in_order in [true, false] {
        server.answers(Mode::Half(in_order));
        let error = fetch(&source, &world.tag(), &CancellationToken::new()).await.unwrap_err();
        assert!(matches!(error, SourceError::Unreachable { .. }) && error.is_transient(), "{in_order}: {error}");
    }
    server.answers(Mode::Good);
    fetch(&source, &world.tag(), &CancellationToken::new()).await.unwrap();
}

#[tokio::test]
async fn what_is_received_is_bounded() {
    let world = World::new();
    let server = world.server().await;
    let mut git = world.git();
    git.limits.packed_bytes = 1 << 20;
    let source = git.source(&server.url("r/.git"), None, world.access()).unwrap();
    fetch(&source, &world.tag(), &CancellationToken::new()).await.unwrap();
    server.answers(Mode::Endless);
    let error = fetch(&source, &world.tag(), &CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, SourceError::TooLarge { .. }), "{error}");
    server.answers(Mode::Good);
    git.limits.packed_bytes = 600;
    let source = git.source(&server.url("r/.git"), None, world.access()).unwrap();
    let error = fetch(&source, &world.tag(), &CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, SourceError::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn a_pack_that_claims_too_much_is_refused_for_good() {
    let world = World::new();
    let server = world.server().await;
    let source = world.source(&server, world.access());
    for count in [500_001, 100_000_000, u32::MAX] {
        server.answers(Mode::Claims(count));
        let error = fetch(&source, &world.tag(), &CancellationToken::new()).await.unwrap_err();
        let told = "the number of objects is over the limit of 500000";
        assert!(matches!(error, SourceError::TooLarge { .. }) && error.to_string().contains(told), "{count}: {error}");
    }
}

#[tokio::test]
async fn what_a_pack_unpacks_to_is_bounded() {
    let mut world = World::new();
    let repository = Repository { path: world.repositories().join("r") };
    let text: String = (0..2000).map(|line| format!("{line}\n")).collect();
    world.commit = repository.write("else/a", &text).write("else/b", &format!("{text}more")).commit();
    repository.tag(TAG);
    let server = world.server().await;
    let mut git = world.git();
    for (largest, is_good) in [(10_000, true), (5000, false)] {
        git.limits.file_bytes = largest;
        let source = git.source(&server.url("r/.git"), None, world.access()).unwrap();
        let fetched = fetch(&source, &world.tag(), &CancellationToken::new()).await;
        assert_eq!(fetched.is_ok(), is_good, "{largest}: {:?}", fetched.err());
        if let Err(error) = fetched {
            assert!(matches!(error, SourceError::TooLarge { .. }), "{error}");
            assert!(error.to_string().contains("a change, or what it changes"), "{error}");
        }
    }
}

#[tokio::test]
async fn who_waits_in_vain_is_freed_at_once() {
    let world = World::new();
    let server = world.server().await;
    let git = world.git();
    let source = git.source(&server.url("r/.git"), None, world.access()).unwrap();
    for mode in [Mode::Silent, Mode::Stalls] {
        server.answers(mode.clone());
        let cancel = CancellationToken::new();
        let soon = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            cancel.cancel();
        };
        let (tag, started) = (world.tag(), Instant::now());
        let (result, ()) = tokio::join!(fetch(&source, &tag, &cancel), soon);
        assert!(matches!(result, Err(SourceError::Cancelled { .. })), "{mode:?}: {result:?}");
        // There is one thread: it must be free again.
        server.answers(Mode::Good);
        list(&source).await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(5), "{mode:?}: {:?}", started.elapsed());
    }
    let mut git = git;
    git.fetch_timeout = Duration::from_millis(300);
    let hasty = git.source(&server.url("r/.git"), None, world.access()).unwrap();
    server.answers(Mode::Stalls);
    let error = fetch(&hasty, &world.tag(), &CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, SourceError::TimedOut { .. }), "{error}");
    server.answers(Mode::Good);
    list(&source).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_without_authorities_reaches_plain_http_and_what_its_own_authority_signs() {
    let world = World::new();
    let (plain, secure) = (Server::new(world.repositories()).await, world.server().await);
    let place = |name: &str| world.directory.path().join(name).to_str().unwrap().to_owned();
    let (assets, authority) = (place("assets"), place("ca.pem"));
    std::fs::write(&authority, world.authority.pem()).unwrap();
    let stack = concat!(env!("CARGO_MANIFEST_DIR"), "/stacks/docker/hello");
    crate::cli::clusterstack(&["package", stack, "--out", &assets]).succeeds();
    let push = |host: &str, flags: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_clusterstack"))
            .args(["push", &assets, &format!("oci://{host}/x")])
            .args(flags)
            .env("SSL_CERT_FILE", "/nonexistent")
            .env("SSL_CERT_DIR", "/nonexistent")
            .env("HOME", "/nonexistent")
            .output()
            .unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    // It is no registry, but it was reached.
    for (host, flags) in [(&plain.host, ["--plain-http"].as_slice()), (&secure.host, &["--ca-file", &authority])] {
        let error = push(host, flags);
        assert!(error.contains("404"), "{error}");
    }
    assert!(!plain.asked().is_empty() && !secure.asked().is_empty());
    let error = push(&secure.host, &[]);
    assert!(error.contains("is not trusted") && error.contains("UnknownIssuer"), "{error}");
}
