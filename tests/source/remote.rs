//! Repositories behind a server.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use clusterstack::api::condition::Reason;
use clusterstack::core::name::ReleaseName;
use clusterstack::core::retry::ErrorClass;
use clusterstack::io::source::git::GitSource;
use clusterstack::io::source::poller::Poller;
use clusterstack::io::source::{Access, Credentials, Listing, Source, SourceError, Tag, Wanted};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::repository::{self, Repository};
use super::server::{Mode, Server};
use super::{git, wanted};

const TAG: &str = "docker-scs-1-30-v1";

/// A repository with one release and its server.
struct World {
    directory: TempDir,
    repository: Repository,
    server: Server,
    cancel: CancellationToken,
}

impl World {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let repository = Repository::new(directory.path().join("repos/r"));
        repository.write("old", "history").commit();
        repository.write_stack("stacks/docker/scs").commit();
        repository.tag(TAG);
        let server = Server::new(directory.path().join("repos")).await;
        Self { directory, repository, server, cancel: CancellationToken::new() }
    }

    fn source_with(&self, credentials: Option<Credentials>) -> GitSource {
        let root = self.directory.path().to_str().unwrap();
        let mut git = git(self.directory.path(), &[&self.server.host, root]);
        git.list_timeout = Duration::from_secs(5);
        git.source(&self.server.url("r/.git"), None, Access { credentials, ..Access::default() }).unwrap()
    }

    fn source(&self) -> GitSource {
        self.source_with(None)
    }

    fn local(&self) -> GitSource {
        let git = git(self.directory.path(), &[self.directory.path().to_str().unwrap()]);
        git.source(&self.repository.url(), None, Access::default()).unwrap()
    }

    async fn list(&self) -> Result<Listing, SourceError> {
        self.source().list(&self.cancel).await
    }

    async fn tag(&self) -> Tag {
        let listing = self.list().await.unwrap();
        listing.tags.into_iter().find(|tag| tag.name == TAG).unwrap()
    }

    async fn fetch(&self, tag: &Tag) -> Result<clusterstack::io::source::Fetched, SourceError> {
        self.source().fetch(&wanted(tag, &release()), &self.cancel).await
    }
}

fn release() -> ReleaseName {
    TAG.parse().unwrap()
}

#[tokio::test]
async fn references_whose_names_are_no_text_are_passed_over() {
    let t = World::new().await;
    let name = std::ffi::OsStr::from_bytes(b"refs/heads/f\xfcr-hans");
    let made = std::process::Command::new("git")
        .current_dir(&t.repository.path)
        .args(["update-ref".as_ref(), name, "HEAD".as_ref()])
        .status()
        .unwrap();
    assert!(made.success());
    let tags = async || t.list().await.unwrap().tags.into_iter().map(|tag| tag.name).collect::<Vec<_>>();
    assert_eq!(tags().await, [TAG]);
    t.server.answers(Mode::Text(not_utf8()));
    assert!(tags().await.is_empty());
}

fn login(user: &str, password: &str) -> (Mode, Credentials) {
    let text = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    let credentials =
        Credentials { username: Some(user.to_owned()), password: Some(password.to_owned()), ..Credentials::default() };
    (Mode::Login(format!("Basic {text}")), credentials)
}

#[tokio::test]
async fn a_list_asks_once_and_downloads_nothing() {
    let world = World::new().await;
    repository::git(&world.repository.path, &["tag", "-a", "-m", "annotated", "docker-scs-1-30-v2"]);
    let listing = world.list().await.unwrap();
    let head = repository::git(&world.repository.path, &["rev-parse", "HEAD"]);
    let names: Vec<_> = listing.tags.iter().map(|tag| (tag.name.as_str(), tag.revision == head)).collect();
    assert_eq!(names, [(TAG, true), ("docker-scs-1-30-v2", true)]);
    let asked: Vec<_> = world.server.asked().into_iter().map(|asked| asked.what).collect();
    assert_eq!(asked, ["GET /r/.git/info/refs?service=git-upload-pack"]);
    assert_eq!(world.local().list(&world.cancel).await.unwrap(), listing);
}

#[tokio::test]
async fn a_fetch_brings_one_tag_without_history() {
    let world = World::new().await;
    let tag = world.tag().await;
    let fetched = world.fetch(&tag).await.unwrap();
    assert_eq!(fetched.path, "stacks/docker/scs");
    assert_eq!(fetched.revision, tag.revision);
    assert_eq!(fetched.url, world.server.url("r/.git"));
    let tree = repository::git(&world.repository.path, &["rev-parse", "HEAD:stacks/docker/scs/cluster-addon"]);
    assert_eq!(fetched.component_ids["cluster-addon"], tree);
    let wants: Vec<_> = world.server.asked().into_iter().filter(|asked| asked.what.starts_with("POST")).collect();
    assert!(wants.iter().any(|asked| String::from_utf8_lossy(&asked.body).contains("deepen 1")), "{wants:?}");
    let local = world.local().fetch(&wanted(&tag, &release()), &world.cancel).await.unwrap();
    assert_eq!((local.files, local.component_ids), (fetched.files, fetched.component_ids));
    let left = std::fs::read_dir(world.directory.path().join("scratch")).unwrap().count();
    assert_eq!(left, 0, "nothing is left of repositories that were thrown away");
}

#[tokio::test]
async fn a_tag_that_moved_or_went_is_said_so() {
    let world = World::new().await;
    let tag = world.tag().await;
    let before = world.list().await.unwrap().revision;
    world.repository.write("new", "x");
    let found = world.repository.commit();
    world.repository.tag(TAG);
    assert_ne!(world.list().await.unwrap().revision, before);
    let moved = SourceError::TagMoved { tag: TAG.to_owned(), expected: tag.revision.clone(), found };
    assert_eq!(world.fetch(&tag).await, Err(moved.clone()));
    assert_eq!(world.local().fetch(&wanted(&tag, &release()), &world.cancel).await, Err(moved));

    repository::git(&world.repository.path, &["tag", "-d", TAG]);
    assert!(matches!(world.fetch(&tag).await, Err(SourceError::NotFound { .. })));
    let local = world.local().fetch(&wanted(&tag, &release()), &world.cancel).await;
    assert!(matches!(local, Err(SourceError::NotFound { .. })));
}

#[tokio::test]
async fn a_commit_that_its_tag_left_comes_by_its_id_where_the_server_gives_it() {
    let world = World::new().await;
    let tag = world.tag().await;
    let before = world.fetch(&tag).await.unwrap();
    world.repository.write("stacks/docker/scs/cluster-class/values.yaml", "new: true");
    world.repository.commit();
    world.repository.tag(TAG);
    let by_revision = async |source: GitSource| {
        let (release, trust) = (release(), None);
        source.fetch(&Wanted { tag: &tag, release: &release, trust, by_revision: true }, &world.cancel).await
    };
    let gone = |result: Result<_, SourceError>, part: &str| {
        let error = result.unwrap_err();
        assert!(matches!(&error, SourceError::RevisionGone { problem, .. } if problem.contains(part)), "{error:?}");
    };
    assert_eq!(by_revision(world.local()).await.unwrap().files, before.files);
    gone(by_revision(world.source()).await, "gives no commits by their ids");
    let path = &world.repository.path;
    repository::git(path, &["config", "uploadpack.allowReachableSHA1InWant", "true"]);
    assert_eq!(by_revision(world.source()).await.unwrap(), before);
    // Without the tag as well.
    repository::git(path, &["tag", "-d", TAG]);
    assert_eq!(by_revision(world.source()).await.unwrap(), before);
    // What nothing leads to any more is not given.
    repository::git(path, &["checkout", "--quiet", "--orphan", "anew"]);
    world.repository.commit();
    repository::git(path, &["branch", "-D", "main"]);
    gone(by_revision(world.source()).await, "does not give this commit");
}

#[tokio::test]
async fn credentials_are_asked_for_and_never_shown() {
    let world = World::new().await;
    let (mode, right) = login("user", "hunter2");
    let (_, wrong) = login("user", "hunter3");
    world.server.answers(mode);
    let error = world.list().await.unwrap_err();
    assert!(matches!(error, SourceError::Unauthorized { .. }) && error.to_string().contains("secretRef"), "{error}");
    assert!(error.to_string().ends_with("name a Secret with credentials in secretRef"), "{error}");
    let error = world.source_with(Some(wrong.clone())).list(&world.cancel).await.unwrap_err();
    assert!(matches!(error, SourceError::Unauthorized { .. }), "{error}");
    assert!(error.to_string().ends_with("check the Secret that secretRef names, and its rights"), "{error}");
    assert!(!error.is_transient() && !format!("{error} {error:?}").contains("hunter"), "{error}");
    let source = world.source_with(Some(right));
    let listing = source.list(&world.cancel).await.unwrap();
    source.fetch(&wanted(&listing.tags[0], &release()), &world.cancel).await.unwrap();
    assert!(!format!("{source:?} {}", source.key()).contains("hunter"));
    assert_ne!(source.key(), world.source_with(Some(wrong)).key());
    assert_ne!(source.key(), world.source().key());
}

#[tokio::test]
async fn a_bearer_token_is_shown_as_one() {
    let world = World::new().await;
    world.server.answers(Mode::Login("Bearer hunter2".to_owned()));
    let secret = |key: &str| Credentials::from_secret(&[(key.to_owned(), "hunter2\n")].into()).unwrap();
    world.source_with(Some(secret("bearerToken"))).list(&world.cancel).await.unwrap();
    let error = world.source_with(Some(secret("token"))).list(&world.cancel).await.unwrap_err();
    assert!(matches!(error, SourceError::Unauthorized { .. }), "{error}");
    let keys = ["bearerToken", "token"].map(|key| world.source_with(Some(secret(key))).key());
    assert_ne!(keys[0], keys[1]);
}

#[tokio::test]
async fn credentials_do_not_follow_to_another_server() {
    let world = World::new().await;
    let other = Server::new(world.directory.path().join("repos")).await;
    let (mode, credentials) = login("user", "hunter2");
    other.answers(mode);
    let tag = Tag { name: TAG.to_owned(), revision: "0".repeat(40) };

    // Another host is not even asked.
    world.server.answers(Mode::Elsewhere(other.host.replace("127.0.0.1", "localhost")));
    let source = world.source_with(Some(credentials.clone()));
    source.list(&world.cancel).await.unwrap_err();
    source.fetch(&wanted(&tag, &release()), &world.cancel).await.unwrap_err();
    assert_eq!(other.asked().len(), 0);

    // Nor is another port of the host, unless the flags allow it.
    world.server.answers(Mode::Elsewhere(other.host.clone()));
    let error = source.list(&world.cancel).await.unwrap_err();
    assert!(matches!(error, SourceError::Led { .. }), "{error}");
    // It is the source's to mend, so it is looked at again.
    let trouble = clusterstack::io::source::trouble(&error);
    assert_eq!((trouble.class, trouble.reason), (ErrorClass::Waiting, Reason::SourceRefused));
    assert_eq!(other.asked().len(), 0);

    // If they do, it gets no credentials.
    let git = git(world.directory.path(), &[&world.server.host, &other.host]);
    let access = Access { credentials: Some(credentials), ..Access::default() };
    let source = git.source(&world.server.url("r/.git"), None, access).unwrap();
    let error = source.list(&world.cancel).await.unwrap_err();
    assert!(matches!(error, SourceError::Unauthorized { .. }), "{error}");
    assert_eq!(other.asked().len(), 1);
    source.fetch(&wanted(&tag, &release()), &world.cancel).await.unwrap_err();
    assert!(other.asked().iter().all(|asked| asked.authorization.is_none()));
}

#[tokio::test]
async fn what_a_server_answers_is_classed() {
    let world = World::new().await;
    type Check = fn(&SourceError) -> bool;
    let cases: [(Mode, Check, bool); 7] = [
        (Mode::Status(500), |error| matches!(error, SourceError::Unreachable { .. }), true),
        (Mode::Status(503), |error| matches!(error, SourceError::Unreachable { .. }), true),
        (Mode::Status(403), |error| matches!(error, SourceError::Unauthorized { .. }), false),
        (Mode::Status(404), |error| matches!(error, SourceError::NoRepository { .. }), false),
        (Mode::Text(b"hello".to_vec()), |error| matches!(error, SourceError::Unreachable { .. }), true),
        (Mode::Text(Vec::new()), |error| matches!(error, SourceError::Unreachable { .. }), true),
        (Mode::Text(b"ffff# service=".to_vec()), |error| matches!(error, SourceError::Unreachable { .. }), true),
    ];
    for (mode, is_expected, transient) in cases {
        world.server.answers(mode.clone());
        let error = world.list().await.expect_err(&format!("{mode:?}"));
        assert!(is_expected(&error) && error.is_transient() == transient, "{mode:?}: {error:?}");
    }
}

#[tokio::test]
async fn who_names_no_secret_is_not_sent_to_one() {
    let world = World::new().await;
    let (_, credentials) = login("user", "hunter2");
    world.server.answers(Mode::Status(403));
    for (credentials, expected) in [
        (None, "there is no secretRef: name a Secret with credentials in secretRef"),
        (Some(credentials), "check the Secret that secretRef names, and its rights"),
    ] {
        let said = world.source_with(credentials).list(&world.cancel).await.unwrap_err().to_string();
        assert!(said.ends_with(expected), "{said}");
    }
}

#[tokio::test]
async fn a_list_without_an_end_is_given_up_before_it_fills_the_memory() {
    let world = World::new().await;
    let reference = b"0050cafebabecafebabecafebabecafebabecafebabe refs/tags/docker-scs-1-30-v1234567\n";
    let begin = b"001e# service=git-upload-pack\n0000".to_vec();
    world.server.answers(Mode::Text([begin, reference.repeat(65 * 1024 * 1024 / reference.len())].concat()));
    // It is the size that ends it, on a busy machine too.
    let mut git = git(world.directory.path(), &[&world.server.host]);
    git.list_timeout = Duration::from_mins(5);
    let source = git.source(&world.server.url("r/.git"), None, Access::default()).unwrap();
    let error = source.list(&world.cancel).await.unwrap_err();
    assert!(matches!(&error, SourceError::TooLarge { limit, .. } if limit.limit == 64 << 20), "{error:?}");
}

/// A list with a tag whose name is not UTF-8.
fn not_utf8() -> Vec<u8> {
    let line = |text: &[u8]| [format!("{:04x}", text.len() + 4).as_bytes(), text].concat();
    let name = [b"1111111111111111111111111111111111111111 refs/tags/".as_slice(), b"\xff\0side-band-64k\n"].concat();
    [line(b"# service=git-upload-pack\n"), b"0000".to_vec(), line(&name), b"0000".to_vec()].concat()
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable() {
    let directory = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    drop(listener);
    let git = git(directory.path(), &["127.0.0.1"]);
    let source = git.source(&format!("http://user:hunter2@{host}/r"), None, Access::default()).unwrap();
    let error = source.list(&CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, SourceError::Unreachable { .. }) && error.is_transient(), "{error:?}");
    assert!(error.to_string().contains(&host) && !format!("{error:?}").contains("hunter2"), "{error:?}");
    let source = git.source("https://no-such-host.invalid/r", None, Access::default()).unwrap();
    let error = source.list(&CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, SourceError::Unreachable { .. }), "{error:?}");
    // By us, so that what was looked at is what is connected to.
    let source = git.source("ssh://git@no-such-host.invalid/r", None, Access::default()).unwrap();
    let error = source.list(&CancellationToken::new()).await.unwrap_err();
    let is_ours = |problem: &str| problem.contains("failed to lookup address information");
    assert!(matches!(&error, SourceError::Unreachable { problem, .. } if is_ours(problem)), "{error:?}");
}

#[tokio::test]
async fn a_silent_server_ends_by_cancel_and_by_time() {
    let world = World::new().await;
    let tag = world.tag().await;
    world.server.answers(Mode::Silent);
    for fetch in [false, true] {
        let cancel = CancellationToken::new();
        let source = world.source();
        let started = Instant::now();
        let soon = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            cancel.cancel();
        };
        let work = async {
            if fetch {
                source.fetch(&wanted(&tag, &release()), &cancel).await.map(drop)
            } else {
                source.list(&cancel).await.map(drop)
            }
        };
        let (result, ()) = tokio::join!(work, soon);
        assert!(matches!(result, Err(SourceError::Cancelled { .. })), "{result:?}");
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
    let mut git = git(world.directory.path(), &[&world.server.host]);
    git.list_timeout = Duration::from_millis(200);
    let source = git.source(&world.server.url("r/.git"), None, Access::default()).unwrap();
    let error = source.list(&world.cancel).await.unwrap_err();
    assert!(matches!(error, SourceError::TimedOut { .. }) && error.is_transient(), "{error}");
}

#[tokio::test]
async fn many_stacks_of_one_repository_are_one_list() {
    let world = World::new().await;
    let poller = Poller::new();
    let git = git(world.directory.path(), &[&world.server.host]);
    let url = world.server.url("r/.git");
    let source = |n| Arc::new(git.source(&url, Some(format!("stack-{n}")), Access::default()).unwrap());
    let polls = (0..20).map(|n| poller.poll(source(n), Duration::from_mins(5), None, &world.cancel));
    let polled = futures::future::join_all(polls).await;
    assert!(polled.iter().all(Result::is_ok));
    assert_eq!(world.server.asked().len(), 1);
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_told_from_one_that_is_away() {
    let world = World::new().await;
    let git = git(world.directory.path(), &[&world.server.host]);
    let url = world.server.url("r/.git").replacen("http://", "https://", 1);
    let error = git.source(&url, None, Access::default()).unwrap().list(&world.cancel).await.unwrap_err().to_string();
    assert!(error.contains("it speaks no TLS there") && error.contains("insecure"), "{error}");
}
