//! Releases from a stand-in for GitHub's API that does what GitHub documents.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clusterstack::api::source::GithubSource as Spec;
use clusterstack::core::limits::Limits;
use clusterstack::core::name::ReleaseName;
use clusterstack::core::source::AllowList;
use clusterstack::core::verification::{ChecksumTrust, GitTrust, Keys, NotVerified, Trust};
use clusterstack::io::source::github::GithubSource;
use clusterstack::io::source::meter::{ByOutcome, BySource, SourceMetrics};
use clusterstack::io::source::{Listing, Quotas, Source, SourceError, Tag, Wanted};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::forge::{Asked, StandIn, access, chart, content, page, silent, sum, truncated};
use super::signed;

const TOKEN: &str = "ghp_swordfish";
const CLASS: &str = "docker-x-1-34-cluster-class-v1.tgz";

/// A repository as GitHub keeps it.
#[derive(Default)]
struct Repository {
    releases: Vec<Value>,
    files: Vec<(u64, Bytes)>,
    /// Where assets are sent to.
    blobs: Option<String>,
    /// Requests that counted.
    used: u64,
    host: String,
}

type Shared = Arc<Mutex<Repository>>;

/// GitHub, another host with its blobs, and the repository.
struct World {
    api: StandIn,
    blobs: StandIn,
    repository: Shared,
    metrics: SourceMetrics,
}

fn asset(id: u64, name: &str, content: &[u8]) -> Value {
    json!({"id": id, "name": name, "label": null, "state": "uploaded", "size": content.len(),
        "digest": format!("sha256:{}", sum(content)), "updated_at": "2026-01-01T00:00:00Z", "uploader": null})
}

fn release(tag: &str, assets: &[Value]) -> Value {
    json!({"id": 1, "tag_name": tag, "name": null, "body": null, "author": null, "draft": false, "prerelease": false,
        "created_at": "2026-01-01T00:00:00Z", "published_at": null, "assets": assets})
}

fn limits(response: &mut Response, remaining: u64) {
    for (name, value) in [("limit", 5000), ("remaining", remaining), ("reset", 1_900_000_000)] {
        let name = header::HeaderName::try_from(format!("x-ratelimit-{name}")).unwrap();
        response.headers_mut().insert(name, value.into());
    }
}

fn github(shared: &Shared, asked: &Asked) -> Response {
    let mut repository = shared.lock().unwrap();
    let base = format!("http://{}/api/v3/repositories/7/releases?per_page=100", repository.host);
    let path = asked.path.split('?').next().unwrap();
    let mut response = if path.ends_with("/repos/o/r/releases") || path.ends_with("/repositories/7/releases") {
        page(asked, &base, &repository.releases, 2)
    } else if let Some(id) = path.strip_prefix("/api/v3/repos/o/r/releases/assets/") {
        assert_eq!(asked.header("accept"), Some("application/octet-stream"));
        match &repository.blobs {
            Some(host) => {
                let location = format!("http://{host}/blob/{id}?sig=hunter2");
                (StatusCode::FOUND, [(header::LOCATION, location)]).into_response()
            }
            None => blob(&repository, asked, id),
        }
    } else {
        (StatusCode::NOT_FOUND, r#"{"message":"Not Found"}"#).into_response()
    };
    if response.status() != StatusCode::NOT_MODIFIED {
        repository.used += 1;
    }
    limits(&mut response, 5000 - repository.used);
    response
}

fn blob(repository: &Repository, asked: &Asked, id: &str) -> Response {
    let found = repository.files.iter().find(|(known, _)| known.to_string() == id);
    found.map_or_else(|| StatusCode::NOT_FOUND.into_response(), |(_, file)| content(asked, file))
}

impl World {
    async fn new() -> Self {
        let repository: Shared = Arc::default();
        let (of_api, of_blobs) = (Arc::clone(&repository), Arc::clone(&repository));
        let api = StandIn::new(move |asked| github(&of_api, asked)).await;
        let blobs = StandIn::new(move |asked| {
            let id = asked.path.split('?').next().unwrap().trim_start_matches("/blob/").to_owned();
            blob(&of_blobs.lock().unwrap(), asked, &id)
        })
        .await;
        let chart = chart();
        {
            let mut repository = repository.lock().unwrap();
            repository.host.clone_from(&api.host);
            repository.blobs = Some(blobs.host.clone());
            repository.releases = vec![release("docker-x-1-34-v1", &[asset(1, CLASS, &chart)])];
            repository.files = vec![(1, chart)];
        }
        Self { api, blobs, repository, metrics: SourceMetrics::default() }
    }

    fn source_as(&self, secret: &[(&str, &str)]) -> GithubSource {
        self.source_of("r", secret, &Quotas::default())
    }

    fn source_of(&self, repo: &str, secret: &[(&str, &str)], quotas: &Quotas) -> GithubSource {
        let spec = Spec {
            owner: "o".into(),
            repo: repo.into(),
            api_url: Some(format!("http://{}/api/v3", self.api.host)),
            ..Spec::default()
        };
        let allow = AllowList::parse([self.api.host.as_str(), self.blobs.host.as_str()]).unwrap();
        GithubSource::new(&spec, &access(secret), &allow, Limits::default(), self.metrics.clone(), quotas).unwrap()
    }

    fn source(&self) -> GithubSource {
        self.source_as(&[("token", TOKEN)])
    }

    fn change(&self, change: impl FnOnce(&mut Repository)) {
        change(&mut self.repository.lock().unwrap());
    }

    fn used(&self) -> u64 {
        self.repository.lock().unwrap().used
    }

    /// The API answers so, whatever is asked.
    fn api_says(&self, status: u16, headers: &'static [(&'static str, &'static str)], body: &'static str) {
        self.api.answers(move |_| {
            let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
            for (name, value) in headers {
                response.headers_mut().insert(*name, value.parse().unwrap());
            }
            response
        });
    }

    fn api_is_good(&self) {
        let repository = Arc::clone(&self.repository);
        self.api.answers(move |asked| github(&repository, asked));
    }
}

async fn list(source: &GithubSource) -> Result<Listing, SourceError> {
    source.list(&CancellationToken::new()).await
}

fn name() -> ReleaseName {
    "docker-x-1-34-v1".parse().unwrap()
}

async fn fetch(source: &GithubSource, tag: &Tag, trust: Option<&Trust>) -> Result<Vec<String>, SourceError> {
    let wanted = Wanted { tag, release: &name(), trust, by_revision: false };
    let fetched = source.fetch(&wanted, &CancellationToken::new()).await?;
    assert_eq!(fetched.revision, tag.revision);
    Ok(fetched.files.into_keys().collect())
}

fn names(listing: &Listing) -> Vec<&str> {
    listing.tags.iter().map(|tag| tag.name.as_str()).collect()
}

#[tokio::test]
async fn all_pages_are_read_without_drafts_and_an_unchanged_list_costs_nothing() {
    let world = World::new().await;
    let tags = ["docker-x-1-34-v1", "docker-x-1-34-v2", "docker-x-1-34-v3", "docker-x-1-34-v4", "docker-x-1-34-v5"];
    world.change(|r| {
        r.releases = tags.iter().map(|tag| release(tag, &[asset(1, CLASS, b"x")])).collect();
        r.releases[1]["draft"] = true.into();
        r.releases[2]["prerelease"] = true.into();
    });
    let source = world.source();
    let first = list(&source).await.unwrap();
    assert_eq!(names(&first), [tags[0], tags[2], tags[3], tags[4]]);
    assert_eq!(world.used(), 3);
    let asked = world.api.asked();
    assert!(asked.iter().all(|asked| asked.header("authorization") == Some(&format!("Bearer {TOKEN}"))));
    assert_eq!(asked[0].path, "/api/v3/repos/o/r/releases?per_page=100");

    assert_eq!(list(&source).await.unwrap(), first);
    assert_eq!(world.used(), 3);
    assert_eq!(world.api.asked().len(), 3);

    // A change on the second page alone is seen.
    world.change(|r| r.releases[3]["assets"][0]["id"] = 99.into());
    let changed = list(&source).await.unwrap();
    assert_eq!(world.used(), 4);
    let moved: Vec<_> = first.tags.iter().zip(&changed.tags).filter(|(a, b)| a != b).map(|(a, _)| &a.name).collect();
    assert_eq!(moved, [tags[3]]);

    let quota = source.quota().unwrap();
    assert_eq!((quota.limit, quota.remaining, quota.reset.unwrap().0.as_second()), (5000, 4996, 1_900_000_000));
    let label = format!("{}/o/r", world.api.host);
    let count = |outcome| world.metrics.requests.get_or_create(&ByOutcome { source: label.clone(), outcome }).get();
    assert_eq!((count("ok"), count("not_modified")), (4, 3 + 3 + 5));
    assert_eq!(world.metrics.quota_remaining.get_or_create(&BySource { source: label.clone() }).get(), 4996);
}

#[tokio::test]
async fn a_release_that_moves_to_another_page_while_pages_are_read_is_not_missed() {
    let world = World::new().await;
    let tags = ["docker-x-1-34-v4", "docker-x-1-34-v3", "docker-x-1-34-v2", "docker-x-1-34-v1"];
    world.change(|r| r.releases = tags.iter().map(|tag| release(tag, &[asset(1, CLASS, b"x")])).collect());
    let (repository, mut requests) = (Arc::clone(&world.repository), 0);
    world.api.answers(move |asked| {
        let response = github(&repository, asked);
        requests += 1;
        if requests == 1 {
            repository.lock().unwrap().releases.remove(0);
        }
        response
    });
    let listing = list(&world.source()).await.unwrap();
    assert_eq!(names(&listing), ["docker-x-1-34-v1", "docker-x-1-34-v2", "docker-x-1-34-v3"]);
}

#[tokio::test]
async fn a_list_is_not_followed_to_another_host() {
    let world = World::new().await;
    let elsewhere = format!("<http://{}/steal?page=2>; rel=\"next\"", world.blobs.host);
    world.api.answers(move |_| ([(header::LINK, elsewhere.clone())], "[]").into_response());
    assert!(matches!(list(&world.source()).await, Err(SourceError::Untrusted { .. })));
    assert!(world.blobs.asked().is_empty());
}

#[tokio::test]
async fn a_list_without_end_is_given_up_and_a_long_one_is_read() {
    let world = World::new().await;
    let many = |item: &str, bytes: usize| format!("[{}]", vec![item; bytes / (item.len() + 1)].join(","));
    let assets = many(r#"{"id":1,"name":"","size":0}"#, 60_000);
    let name = "x".repeat(3 << 20);
    for (case, body, most, part) in [
        ("releases of nothing", many(r#"{"tag_name":""}"#, (8 << 20) - 2), 1, "kept of the list in bytes is over"),
        ("a page of any size", many(r#"{"tag_name":""}"#, 25 << 20), 1, "larger than 25165824 bytes"),
        ("pages of nothing", "[]".to_owned(), 100, "the number of its pages is over the limit of 100"),
        ("names of any length", format!(r#"[{{"tag_name":"{name}"}}]"#), 6, "kept of the list in bytes is over"),
        ("assets", format!(r#"[{{"tag_name":"x","assets":{assets}}}]"#), 1, "more in it than is read"),
    ] {
        let (mut number, body) = (1, Bytes::from(body));
        world.api.answers(move |_| {
            number += 1;
            let next = format!("</api/v3/repos/o/r/releases?page={number}>; rel=\"next\"");
            ([(header::LINK, next)], body.clone()).into_response()
        });
        let error = list(&world.source()).await.unwrap_err();
        assert!(error.to_string().contains(part), "{case}: {error}");
        assert_eq!(world.api.asked().len(), most, "{case}");
    }

    let assets: Vec<Value> = (0..8).map(|n| asset(n, &format!("docker-x-1-34-cluster-class-v{n}.tgz"), b"x")).collect();
    let releases: Vec<Value> = (0..2_000).map(|n| release(&format!("docker-x-1-34-v{n}"), &assets)).collect();
    let base = format!("http://{}/api/v3/repos/o/r/releases?per_page=100", world.api.host);
    world.api.answers(move |asked| page(asked, &base, &releases, 100));
    let source = world.source();
    assert_eq!(list(&source).await.unwrap().tags.len(), 2_000);
    assert_eq!(list(&source).await.unwrap().tags.len(), 2_000, "what did not change was not counted anew");
}

#[tokio::test]
async fn assets_come_from_another_host_without_the_token() {
    let world = World::new().await;
    let source = world.source();
    let listing = list(&source).await.unwrap();
    let files = fetch(&source, &listing.tags[0], None).await.unwrap();
    assert_eq!(files, ["cluster-class/Chart.yaml", "cluster-class/values.yaml"]);
    let asked = world.blobs.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].header("authorization"), asked[0].query("sig")), (None, Some("hunter2")));
}

#[tokio::test]
async fn a_download_that_breaks_off_goes_on_where_it_stopped() {
    let world = World::new().await;
    let source = world.source();
    let listing = list(&source).await.unwrap();
    let (repository, mut requests) = (Arc::clone(&world.repository), 0);
    world.blobs.answers(move |asked| {
        requests += 1;
        let file = repository.lock().unwrap().files[0].1.clone();
        match requests {
            1 => truncated(&file, 1000),
            2 => StatusCode::BAD_GATEWAY.into_response(),
            _ => content(asked, &file),
        }
    });
    fetch(&source, &listing.tags[0], None).await.unwrap();
    let ranges: Vec<_> = world.blobs.asked().iter().map(|asked| asked.header("range").map(str::to_owned)).collect();
    assert_eq!(ranges[0], None);
    let from = ranges[1].clone().unwrap();
    assert!(from == "bytes=1000-" && ranges[2].as_ref() == Some(&from), "{ranges:?}");

    // Who never gets further says so in the end, without the signature of the URL.
    let file = world.repository.lock().unwrap().files[0].1.clone();
    world.blobs.answers(move |_| truncated(&file, 1000));
    let error = fetch(&source, &listing.tags[0], None).await.unwrap_err();
    assert!(matches!(error, SourceError::Unreachable { .. }) && !error.to_string().contains("hunter2"), "{error}");
}

#[tokio::test]
async fn what_is_not_what_was_announced_is_not_taken() {
    let world = World::new().await;
    let source = world.source();
    let listing = list(&source).await.unwrap();
    let good = world.repository.lock().unwrap().files[0].1.clone();
    let mut other = good.to_vec();
    other[100] ^= 1;
    for (file, part) in [(Bytes::from(other), "SHA-256"), (Bytes::from([&good[..], b"!"].concat()), "more came")] {
        world.change(|r| r.files = vec![(1, file)]);
        let error = fetch(&source, &listing.tags[0], None).await.unwrap_err();
        assert!(matches!(error, SourceError::Damaged { .. }) && error.to_string().contains(part), "{error}");
    }
    world.change(|r| r.files.clear());
    assert!(matches!(fetch(&source, &listing.tags[0], None).await, Err(SourceError::Damaged { .. })));
}

#[tokio::test]
async fn a_release_whose_assets_were_replaced_has_moved() {
    let world = World::new().await;
    let listing = list(&world.source()).await.unwrap();
    world.change(|r| r.releases[0]["assets"][0]["updated_at"] = "2026-02-02T00:00:00Z".into());
    let error = fetch(&world.source(), &listing.tags[0], None).await.unwrap_err();
    assert!(matches!(error, SourceError::TagMoved { .. }), "{error}");
    world.change(|r| r.releases.clear());
    let error = fetch(&world.source(), &listing.tags[0], None).await.unwrap_err();
    assert!(matches!(error, SourceError::NotFound { .. }), "{error}");
}

#[tokio::test]
async fn a_used_up_quota_is_not_asked_again_before_its_time() {
    let limited: &[(&str, &str)] =
        &[("x-ratelimit-limit", "60"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "4000000000")];
    let secondary = r#"{"message":"You have exceeded a secondary rate limit. Please wait."}"#;
    for (status, headers, body, seconds) in [
        (403, limited, r#"{"message":"API rate limit exceeded for 192.0.2.1"}"#, 24 * 3600),
        (429, &[("retry-after", "40")][..], "{}", 40),
        (403, &[("retry-after", "30")][..], secondary, 30),
        (403, &[][..], secondary, 60),
    ] {
        let world = World::new().await;
        let source = world.source();
        let listing = list(&source).await.unwrap();
        world.api.asked();
        world.api_says(status, headers, body);
        let error = list(&source).await.unwrap_err();
        let SourceError::RateLimited { after, .. } = &error else { panic!("{error:?}") };
        assert_eq!(after.as_secs(), seconds, "{error}");
        world.api_is_good();
        assert!(matches!(list(&source).await, Err(SourceError::RateLimited { .. })));
        assert!(matches!(fetch(&source, &listing.tags[0], None).await, Err(SourceError::RateLimited { .. })));
        assert_eq!(world.api.asked().len(), 1, "{status} {headers:?}");
    }
    let world = World::new().await;
    let source = world.source();
    world.api_says(429, &[("retry-after", "1")], "");
    list(&source).await.unwrap_err();
    world.api_is_good();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    list(&source).await.unwrap();
}

#[tokio::test]
async fn errors_say_what_to_do_and_hold_no_token() {
    let world = World::new().await;
    type Is = fn(&SourceError) -> bool;
    let cases: [(u16, &str, Is, &str); 6] = [
        (
            401,
            r#"{"message":"Bad credentials ghp_swordfish"}"#,
            |e| matches!(e, SourceError::Unauthorized { .. }),
            "Bad credentials ***",
        ),
        (
            403,
            r#"{"message":"Resource not accessible"}"#,
            |e| matches!(e, SourceError::Unauthorized { .. }),
            "read the contents",
        ),
        (404, r#"{"message":"Not Found"}"#, |e| matches!(e, SourceError::NoRepository { .. }), "private repository"),
        (500, "", |e| matches!(e, SourceError::Unreachable { .. }), "500"),
        (502, "<html>bad gateway", |e| matches!(e, SourceError::Unreachable { .. }), "502"),
        (
            200,
            "<html>welcome to the guest network",
            |e| matches!(e, SourceError::Unreachable { .. }),
            "no list in JSON: an HTML page, as a proxy or a login page answers",
        ),
    ];
    for (status, body, is, part) in cases {
        world.api_says(status, &[], body);
        let error = list(&world.source()).await.unwrap_err();
        assert!(is(&error) && error.to_string().contains(part), "{status}: {error}");
        assert!(!error.to_string().contains("swordfish"), "{error}");
    }
    world.api_is_good();
    list(&world.source()).await.unwrap();
}

#[tokio::test]
async fn a_list_that_breaks_off_is_no_list() {
    let world = World::new().await;
    let source = world.source();
    let before = list(&source).await.unwrap();
    let body = Bytes::from(serde_json::to_vec(&world.repository.lock().unwrap().releases).unwrap());
    world.api.answers(move |_| truncated(&body, body.len() - 1));
    assert!(matches!(list(&source).await, Err(SourceError::Unreachable { .. })));
    world.api_is_good();
    assert_eq!(list(&source).await.unwrap(), before);
}

#[tokio::test]
async fn a_silent_server_is_given_up_when_it_is_called_off() {
    let world = World::new().await;
    let source = world.source();
    world.api.answers(|_| silent());
    let (cancel, started) = (CancellationToken::new(), Instant::now());
    let soon = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(source.list(&cancel), soon);
    assert!(matches!(result, Err(SourceError::Cancelled { .. })), "{result:?}");
    assert!(started.elapsed() < Duration::from_secs(2));
}

fn trust(git: bool) -> Trust {
    let keys = Keys::default();
    let git = git.then(|| GitTrust { mode: Default::default(), keys: keys.clone(), ..GitTrust::default() });
    Trust {
        git,
        cosign: None,
        checksums: Some(ChecksumTrust { file: "SHA256SUMS".into(), keys, ..ChecksumTrust::default() }),
    }
}

#[tokio::test]
async fn what_should_be_signed_and_is_not_is_refused_before_it_is_unpacked() {
    let world = World::new().await;
    let garbage = Bytes::from_static(b"no archive");
    world.change(|r| {
        r.releases[0]["assets"] = json!([asset(1, CLASS, &garbage)]);
        r.files = vec![(1, garbage.clone())];
    });
    let source = world.source();
    let listing = list(&source).await.unwrap();
    let refused = |error: SourceError| match error {
        SourceError::NotVerified { problem, .. } => problem,
        other => panic!("{other:?}"),
    };
    let unsigned = refused(fetch(&source, &listing.tags[0], Some(&trust(false))).await.unwrap_err());
    assert!(matches!(unsigned, NotVerified::Unsigned { .. }), "{unsigned}");
    let wrong = refused(fetch(&source, &listing.tags[0], Some(&trust(true))).await.unwrap_err());
    assert!(matches!(wrong, NotVerified::WrongKind(_)), "{wrong}");
    assert!(world.blobs.asked().is_empty());

    let (sums, signature) = (Bytes::from_static(b"sums"), Bytes::from_static(b"no signature"));
    world.change(|r| {
        let assets = [asset(1, CLASS, &garbage), asset(2, "SHA256SUMS", &sums), asset(3, "SHA256SUMS.asc", &signature)];
        r.releases[0]["assets"] = assets.to_vec().into();
        r.files.extend([(2, sums), (3, signature)]);
    });
    let listing = list(&source).await.unwrap();
    refused(fetch(&source, &listing.tags[0], Some(&trust(false))).await.unwrap_err());
}

#[tokio::test]
async fn signed_assets_count_whole_and_under_the_name_that_they_were_signed_for() {
    let directory = tempfile::tempdir().unwrap();
    let Some(key) = signed::key(directory.path(), "ours") else { return };
    let (world, trust) = (World::new().await, signed::summed_by(key));
    let (old, addon) = ("docker-x-1-34-cluster-class-v0-sha.old.tgz", "docker-x-1-34-cluster-addon-v1.tgz");
    let metadata = "metadata.yaml";
    for (case, signed, left_out, problem) in [
        ("genuine", &[CLASS, addon, metadata, "disk.qcow2"][..], "disk.qcow2", None),
        ("genuine, without metadata", &[CLASS, addon], "", None),
        ("genuine, an archive that keeps its version", &[old, metadata], "", None),
        ("rollback", &[old, addon, metadata], metadata, Some("with metadata.yaml, which is not there")),
        ("rollback to a release without metadata", &[old], "", Some("it may be another version's")),
        ("an addon is left out", &[CLASS, addon, metadata], addon, Some(addon)),
        ("images are left out", &[CLASS, metadata, "node-images.yaml"], "node-images.yaml", Some("node-images.yaml")),
    ] {
        let content = |name: &str| if name.ends_with(".tgz") { chart() } else { Bytes::from("a: 1\n") };
        let files = signed.iter().map(|name| ((*name).to_owned(), content(name))).collect();
        let mut files = signed::summed(directory.path(), "ours", &files);
        files.remove(left_out);
        world.change(|r| {
            let assets = (1..).zip(&files).map(|(id, (name, content))| asset(id, name, content));
            r.releases[0]["assets"] = assets.collect::<Vec<_>>().into();
            r.files = (1..).zip(files.into_values()).collect();
        });
        let source = world.source();
        let listing = list(&source).await.unwrap();
        match (fetch(&source, &listing.tags[0], Some(&trust)).await, problem) {
            (Ok(_), None) => {}
            (Err(error @ SourceError::NotVerified { .. }), Some(part)) => {
                assert!(error.to_string().contains(part), "{case}: {error}");
            }
            (found, _) => panic!("{case}: {found:?}"),
        }
    }
}

#[tokio::test]
async fn a_signature_that_can_t_be_read_voids_none_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let Some(key) = signed::key(directory.path(), "ours") else { return };
    let (world, trust) = (World::new().await, signed::summed_by(key));
    let files = signed::summed(directory.path(), "ours", &[(CLASS.to_owned(), chart())].into());
    let (asc, sig) = ("SHA256SUMS.asc", "SHA256SUMS.sig");
    let (page, large) = (Bytes::from_static(b"no signature"), Bytes::from(vec![b'x'; 512 * 1024]));
    for (case, beside, without, problem) in [
        ("no signature", Some(&page), None, None),
        ("one that is too large", Some(&large), None, None),
        ("one that is not there", None, None, None),
        ("no signature alone", Some(&page), Some(sig), Some((false, "it is no signature"))),
        ("one alone that is not there", None, Some(sig), Some((true, asc))),
        ("one alone that is too large", Some(&large), Some(sig), Some((false, "too large"))),
    ] {
        let mut files = files.clone();
        without.map(|name| files.remove(name));
        world.change(|r| {
            let mut assets: Vec<Value> =
                (1..).zip(&files).map(|(id, (name, content))| asset(id, name, content)).collect();
            r.files = (1..).zip(files.clone().into_values()).collect();
            assets.push(asset(99, asc, beside.unwrap_or(&page)));
            r.files.extend(beside.map(|content| (99, content.clone())));
            r.releases[0]["assets"] = assets.into();
        });
        let source = world.source();
        let listing = list(&source).await.unwrap();
        match (fetch(&source, &listing.tags[0], Some(&trust)).await, problem) {
            (Ok(fetched), None) => assert!(!fetched.is_empty(), "{case}"),
            (Err(error), Some((transient, part))) => {
                assert!(error.to_string().contains(part), "{case}: {error}");
                assert_eq!(error.is_transient(), transient, "{case}: {error}");
            }
            (found, _) => panic!("{case}: {found:?}"),
        }
    }
}

/// The claims of a JSON Web Token whose signature is of the key.
fn claims(token: &str, public_key: &[u8]) -> Value {
    let (message, signature) = token.rsplit_once('.').unwrap();
    let key = ring::signature::UnparsedPublicKey::new(&ring::signature::RSA_PKCS1_2048_8192_SHA256, public_key);
    key.verify(message.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
    let part =
        |n| serde_json::from_slice(&URL_SAFE_NO_PAD.decode(message.split('.').nth(n).unwrap()).unwrap()).unwrap();
    let header: Value = part(0);
    assert_eq!(header["alg"], "RS256");
    part(1)
}

#[tokio::test]
async fn a_github_app_gets_a_token_and_keeps_it_until_it_ends() {
    let world = World::new().await;
    let key = openssl::rsa::Rsa::generate(2048).unwrap();
    let public = key.public_key_to_der_pkcs1().unwrap();
    let pkcs1 = String::from_utf8(key.private_key_to_pem().unwrap()).unwrap();
    let pkcs8 = openssl::pkey::PKey::from_rsa(key).unwrap().private_key_to_pem_pkcs8().unwrap();
    for pem in [pkcs1, String::from_utf8(pkcs8).unwrap()] {
        let (repository, public, tokens) = (Arc::clone(&world.repository), public.clone(), Arc::new(Mutex::new(0)));
        let (made, life) = (Arc::clone(&tokens), Arc::new(Mutex::new(3600)));
        let lives = Arc::clone(&life);
        let good = Arc::new(Mutex::new(String::new()));
        world.api.answers(move |asked| {
            let shown = asked.header("authorization").unwrap().strip_prefix("Bearer ").unwrap().to_owned();
            if asked.path == "/api/v3/app/installations/34/access_tokens" {
                assert_eq!(asked.method, "POST");
                let (claims, now) = (claims(&shown, &public), Timestamp::now().as_second());
                assert_eq!(claims["iss"], "12");
                assert!(claims["iat"].as_i64().unwrap() <= now - 30 && claims["exp"].as_i64().unwrap() <= now + 600);
                *made.lock().unwrap() += 1;
                let token = format!("ghs_{}", made.lock().unwrap());
                good.lock().unwrap().clone_from(&token);
                let expires = Timestamp::from_second(now + *lives.lock().unwrap()).unwrap().to_string();
                return (StatusCode::CREATED, json!({"token": token, "expires_at": expires}).to_string())
                    .into_response();
            }
            if shown == *good.lock().unwrap() {
                return github(&repository, asked);
            }
            (StatusCode::UNAUTHORIZED, r#"{"message":"Bad credentials"}"#).into_response()
        });
        let secret = [("githubAppID", "12"), ("githubAppInstallationID", "34"), ("githubAppPrivateKey", pem.as_str())];
        let source = world.source_as(&secret);
        let listing = list(&source).await.unwrap();
        fetch(&source, &listing.tags[0], None).await.unwrap();
        assert_eq!(*tokens.lock().unwrap(), 1);
        // One that ends soon is not used for long.
        *life.lock().unwrap() = 60;
        let source = world.source_as(&secret);
        list(&source).await.unwrap();
        list(&source).await.unwrap();
        assert_eq!(*tokens.lock().unwrap(), 3);
    }
    world.api_says(401, &[], r#"{"message":"'Issuer' claim must be an Integer"}"#);
}

#[tokio::test]
async fn an_app_whose_token_was_taken_back_gets_another() {
    let world = World::new().await;
    let key = openssl::rsa::Rsa::generate(2048).unwrap();
    let pem = String::from_utf8(key.private_key_to_pem().unwrap()).unwrap();
    let repository = Arc::clone(&world.repository);
    let mut tokens = 0;
    world.api.answers(move |asked| {
        if asked.path.ends_with("/access_tokens") {
            tokens += 1;
            let body = json!({"token": format!("ghs_{tokens}"), "expires_at": "2100-01-01T00:00:00Z"});
            return body.to_string().into_response();
        }
        if asked.header("authorization") == Some("Bearer ghs_2") {
            return github(&repository, asked);
        }
        StatusCode::UNAUTHORIZED.into_response()
    });
    let secret = [("githubAppID", "12"), ("githubAppInstallationID", "34"), ("githubAppPrivateKey", pem.as_str())];
    list(&world.source_as(&secret)).await.unwrap();
}

#[tokio::test]
async fn sources_are_other_ones_by_place_and_by_who_asks() {
    let world = World::new().await;
    let (a, b, same) = (world.source(), world.source_as(&[("token", "other")]), world.source());
    assert_eq!(a.key(), same.key());
    assert_ne!(a.key(), b.key());
    assert!(!a.key().contains("swordfish"));
}

#[tokio::test]
async fn a_limit_holds_for_all_repositories_that_a_token_reads() {
    let world = World::new().await;
    let quotas = Quotas::default();
    let of = |repo: &str, token: &str| world.source_of(repo, &[("token", token)], &quotas);
    let (first, second, other) = (of("r", TOKEN), of("another", TOKEN), of("r", "ghp_other"));
    let secondary = r#"{"message":"You have exceeded a secondary rate limit."}"#;
    world.api_says(403, &[("retry-after", "300")], secondary);
    list(&first).await.unwrap_err();
    let asked = world.api.asked().len();
    let error = list(&second).await.unwrap_err();
    let SourceError::RateLimited { after, .. } = &error else { panic!("{error}") };
    assert!(asked == 1 && world.api.asked().is_empty() && after.as_secs() > 290, "{error}");
    assert!(!format!("{error:?}").contains(TOKEN), "{error:?}");
    // Who has another token is served.
    let repository = Arc::clone(&world.repository);
    world.api.answers(move |asked| github(&repository, asked));
    list(&other).await.unwrap();
    assert!(matches!(list(&first).await, Err(SourceError::RateLimited { .. })));
    assert_eq!((first.quota(), other.quota().unwrap().limit), (None, 5000));
}
