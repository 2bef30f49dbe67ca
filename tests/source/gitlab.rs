//! Releases from a stand-in for GitLab's API that does what GitLab documents.

use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use clusterstack::api::source::GitlabSource as Spec;
use clusterstack::core::limits::Limits;
use clusterstack::core::name::ReleaseName;
use clusterstack::core::source::AllowList;
use clusterstack::io::source::gitlab::GitlabSource;
use clusterstack::io::source::meter::SourceMetrics;
use clusterstack::io::source::{Listing, Quotas, Source, SourceError, Tag, Wanted};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::forge::{Asked, StandIn, access, chart, content, page, sum, truncated};

const TOKEN: &str = "glpat-swordfish";
const CLASS: &str = "docker-x-1-34-cluster-class-v1.tgz";
const V1: &str = "docker-x-1-34-v1";
const API: &str = "/api/v4/projects/group%2Fname";

#[derive(Default)]
struct Project {
    releases: Vec<Value>,
    packages: Vec<Value>,
    package_files: Vec<Value>,
    /// Answers that held a body.
    full: u64,
    host: String,
    chart: Bytes,
}

struct World {
    api: StandIn,
    elsewhere: StandIn,
    project: Arc<Mutex<Project>>,
}

fn release(tag: &str, links: &[Value]) -> Value {
    json!({"tag_name": tag, "name": null, "description": null, "released_at": "2026-01-01T00:00:00Z",
        "upcoming_release": false, "assets": {"count": links.len(), "sources": [], "links": links}})
}

fn gitlab(project: &Arc<Mutex<Project>>, asked: &Asked) -> Response {
    let mut project = project.lock().unwrap();
    let path = asked.path.split('?').next().unwrap();
    let base = |path: &str| format!("http://{}{path}?per_page=100", project.host);
    let Some(of_project) = path.strip_prefix(API) else { return StatusCode::NOT_FOUND.into_response() };
    let mut response = match of_project {
        "/releases" => page(asked, &base(path), &project.releases, 2),
        "/packages" => page(asked, &base(path), &project.packages, 2),
        "/packages/5/package_files" => page(asked, &base(path), &project.package_files, 2),
        "/packages/generic/stacks/docker-x-1-34-v1/docker-x-1-34-cluster-class-v1.tgz"
        | "/releases/docker-x-1-34-v1/downloads/class.tgz" => content(asked, &project.chart),
        _ => (StatusCode::NOT_FOUND, r#"{"message":"404 Not Found"}"#).into_response(),
    };
    if response.status() != StatusCode::NOT_MODIFIED {
        project.full += 1;
    }
    for (name, value) in [("ratelimit-limit", 600), ("ratelimit-remaining", 500), ("ratelimit-reset", 1_900_000_000)] {
        response.headers_mut().insert(name, value.into());
    }
    response
}

impl World {
    async fn new() -> Self {
        let project = Arc::new(Mutex::new(Project { chart: chart(), ..Project::default() }));
        let (of_api, of_elsewhere) = (Arc::clone(&project), Arc::clone(&project));
        let api = StandIn::new(move |asked| gitlab(&of_api, asked)).await;
        let elsewhere = StandIn::new(move |asked| content(asked, &of_elsewhere.lock().unwrap().chart)).await;
        project.lock().unwrap().host.clone_from(&api.host);
        let world = Self { api, elsewhere, project };
        let url = format!("http://{}/store/{CLASS}?sig=hunter2", world.elsewhere.host);
        world.change(|p| p.releases = vec![release(V1, &[json!({"id": 1, "name": CLASS, "url": url})])]);
        world
    }

    /// With one release without links, whose generic package is the one of its name.
    async fn of_packages() -> Self {
        let world = Self::new().await;
        world.change(|p| {
            p.releases = vec![release(V1, &[])];
            let package = |id: u64, version: &str| json!({"id": id, "name": "stacks", "version": version});
            p.packages = vec![package(7, "docker-x-1-34-v3"), package(6, "docker-x-1-34-v2"), package(5, V1)];
            let file = json!({"id": 50, "file_name": CLASS, "size": p.chart.len(), "file_sha256": sum(&p.chart)});
            p.package_files = vec![file];
        });
        world
    }

    fn source_as(&self, secret: &[(&str, &str)]) -> GitlabSource {
        let url = Some(format!("http://{}", self.api.host));
        let spec = Spec { url, project: "group/name".into(), ..Spec::default() };
        let allow = AllowList::parse([self.api.host.as_str(), self.elsewhere.host.as_str()]).unwrap();
        let (limits, metrics) = (Limits::default(), SourceMetrics::default());
        GitlabSource::new(&spec, &access(secret), &allow, limits, metrics, &Quotas::default()).unwrap()
    }

    fn source(&self) -> GitlabSource {
        self.source_as(&[("token", TOKEN)])
    }

    fn change(&self, change: impl FnOnce(&mut Project)) {
        change(&mut self.project.lock().unwrap());
    }

    fn full(&self) -> u64 {
        self.project.lock().unwrap().full
    }
}

async fn list(source: &GitlabSource) -> Result<Listing, SourceError> {
    source.list(&CancellationToken::new()).await
}

async fn resolved(source: &GitlabSource) -> Tag {
    let listing = list(source).await.unwrap();
    let tag = listing.tags.iter().find(|tag| tag.name == V1).unwrap();
    if tag.revision.is_empty() { source.resolve(tag, &CancellationToken::new()).await.unwrap() } else { tag.clone() }
}

async fn fetch(source: &GitlabSource, tag: &Tag) -> Result<Vec<String>, SourceError> {
    let release: ReleaseName = V1.parse().unwrap();
    let wanted = Wanted { tag, release: &release, trust: None, by_revision: false };
    Ok(source.fetch(&wanted, &CancellationToken::new()).await?.files.into_keys().collect())
}

const FILES: [&str; 2] = ["cluster-class/Chart.yaml", "cluster-class/values.yaml"];

#[tokio::test]
async fn all_pages_are_read_and_an_unchanged_one_is_not_sent_again() {
    let world = World::new().await;
    let link = json!({"id": 1, "name": CLASS, "url": "https://store.example/x"});
    world.change(|p| {
        p.releases = (1..=5).map(|n| release(&format!("docker-x-1-34-v{n}"), std::slice::from_ref(&link))).collect();
        p.releases[1]["upcoming_release"] = true.into();
        p.releases[2]["tag_name"] = Value::Null;
    });
    let source = world.source();
    let first = list(&source).await.unwrap();
    let names: Vec<_> = first.tags.iter().map(|tag| tag.name.as_str()).collect();
    assert_eq!(names, [V1, "docker-x-1-34-v4", "docker-x-1-34-v5"]);
    assert_eq!(world.full(), 3);
    assert_eq!(list(&source).await.unwrap(), first);
    assert_eq!(world.full(), 3);
    world.change(|p| p.releases[4]["assets"]["links"][0]["id"] = 9.into());
    assert_ne!(list(&source).await.unwrap().revision, first.revision);
    assert_eq!(world.full(), 4);
    let quota = source.quota().unwrap();
    assert_eq!((quota.limit, quota.remaining), (600, 500));
    assert!(world.api.asked().iter().all(|asked| asked.header("private-token") == Some(TOKEN)));
}

#[tokio::test]
async fn links_to_other_hosts_are_followed_without_the_token() {
    for (secret, header) in [
        (&[("token", TOKEN)][..], "private-token"),
        (&[("username", "gitlab-ci-token"), ("password", "t")][..], "job-token"),
        (&[("username", "oauth2"), ("token", "t")][..], "authorization"),
    ] {
        let world = World::new().await;
        let source = world.source_as(secret);
        let tag = resolved(&source).await;
        assert!(world.api.asked().iter().all(|asked| asked.header(header).is_some()));
        assert_eq!(fetch(&source, &tag).await.unwrap(), FILES);
        let asked = world.elsewhere.asked();
        assert!(asked.len() == 1 && asked[0].header(header).is_none(), "{header}: {asked:?}");
    }
}

#[tokio::test]
async fn a_redirect_to_another_host_leads_there_without_the_token() {
    let world = World::new().await;
    let (api, elsewhere) = (world.api.host.clone(), world.elsewhere.host.clone());
    let direct = format!("http://{api}/group/name/-/releases/{V1}/downloads/class.tgz");
    let link = json!({"id": 1, "name": CLASS, "url": "https://store.example/x", "direct_asset_url": direct});
    world.change(|p| p.releases = vec![release(V1, &[link])]);
    let project = Arc::clone(&world.project);
    world.api.answers(move |asked| {
        if asked.path.ends_with("/downloads/class.tgz") {
            let location = format!("http://{elsewhere}/store/x?sig=hunter2");
            return (StatusCode::FOUND, [(header::LOCATION, location)]).into_response();
        }
        gitlab(&project, asked)
    });
    for (secret, header) in [
        (&[("token", TOKEN)][..], "private-token"),
        (&[("username", "gitlab-ci-token"), ("password", "t")][..], "job-token"),
        (&[("username", "gitlab+deploy-token-1"), ("password", "t")][..], "deploy-token"),
    ] {
        let source = world.source_as(secret);
        let tag = resolved(&source).await;
        assert_eq!(fetch(&source, &tag).await.unwrap(), FILES);
        let by_api = world.api.asked().pop().unwrap();
        assert_eq!(by_api.path, format!("{API}/releases/{V1}/downloads/class.tgz"));
        assert!(by_api.header(header).is_some());
        assert!(world.elsewhere.asked().iter().all(|asked| asked.header(header).is_none()));
    }
}

#[tokio::test]
async fn a_release_without_links_is_the_generic_package_of_its_name() {
    let world = World::of_packages().await;
    let source = world.source();
    let tag = resolved(&source).await;
    assert_eq!(fetch(&source, &tag).await.unwrap(), FILES);
    // A file that is uploaded again makes another revision.
    world.change(|p| {
        let mut again = p.package_files[0].clone();
        again["id"] = 51.into();
        p.package_files.push(again);
    });
    assert!(matches!(fetch(&source, &tag).await, Err(SourceError::TagMoved { .. })));
    let moved = resolved(&source).await;
    assert_ne!(moved.revision, tag.revision);
    fetch(&source, &moved).await.unwrap();
    world.change(|p| p.chart = Bytes::from_static(b"something else"));
    assert!(fetch(&source, &moved).await.is_err());

    world.change(|p| p.packages.clear());
    let error = source.resolve(&tag, &CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, SourceError::Layout { .. }) && error.to_string().contains(V1), "{error}");
}

#[tokio::test]
async fn a_package_of_another_digest_is_not_taken() {
    let world = World::of_packages().await;
    let source = world.source();
    let tag = resolved(&source).await;
    world.change(|p| {
        let mut other = p.chart.to_vec();
        other[100] ^= 1;
        p.chart = other.into();
    });
    let error = fetch(&source, &tag).await.unwrap_err();
    assert!(matches!(error, SourceError::Damaged { .. }) && error.to_string().contains("SHA-256"), "{error}");
}

#[tokio::test]
async fn a_download_that_breaks_off_goes_on_where_it_stopped() {
    let world = World::of_packages().await;
    let source = world.source();
    let tag = resolved(&source).await;
    let (project, mut broken) = (Arc::clone(&world.project), false);
    world.api.answers(move |asked| {
        if asked.path.ends_with(".tgz") && !broken {
            broken = true;
            return truncated(&project.lock().unwrap().chart, 1000);
        }
        gitlab(&project, asked)
    });
    assert_eq!(fetch(&source, &tag).await.unwrap(), FILES);
    assert_eq!(world.api.asked().pop().unwrap().header("range"), Some("bytes=1000-"));
}

#[tokio::test]
async fn errors_say_what_to_do_and_a_limit_is_obeyed() {
    let world = World::new().await;
    type Is = fn(&SourceError) -> bool;
    let cases: [(u16, &str, Is, &str); 5] = [
        (
            401,
            r#"{"message":"401 Unauthorized glpat-swordfish"}"#,
            |e| matches!(e, SourceError::Unauthorized { .. }),
            "read_api",
        ),
        (403, r#"{"message":"403 Forbidden"}"#, |e| matches!(e, SourceError::Unauthorized { .. }), "role Reporter"),
        (
            404,
            r#"{"message":"404 Project Not Found"}"#,
            |e| matches!(e, SourceError::NoRepository { .. }),
            "private project",
        ),
        (502, "<html>", |e| matches!(e, SourceError::Unreachable { .. }), "502"),
        (200, "<html>", |e| matches!(e, SourceError::Unreachable { .. }), "an HTML page, as a proxy"),
    ];
    for (status, body, is, part) in cases {
        world.api.answers(move |_| (StatusCode::from_u16(status).unwrap(), body).into_response());
        let error = list(&world.source()).await.unwrap_err();
        assert!(is(&error) && error.to_string().contains(part), "{status}: {error}");
        assert!(!error.to_string().contains("swordfish"), "{error}");
    }
    let source = world.source();
    world
        .api
        .answers(|_| (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "60")], "Retry later").into_response());
    world.api.asked();
    for _ in 0..3 {
        let error = list(&source).await.unwrap_err();
        assert!(
            matches!(error, SourceError::RateLimited { .. }) && error.to_string().contains("wait until"),
            "{error}"
        );
    }
    assert_eq!(world.api.asked().len(), 1);
}

#[tokio::test]
async fn a_page_for_signing_in_is_no_asset() {
    let world = World::new().await;
    let direct = format!("http://{}/group/name/-/releases/{V1}/downloads/class.tgz", world.api.host);
    world.change(|p| {
        p.releases = vec![release(V1, &[json!({"id": 1, "name": CLASS, "url": direct, "direct_asset_url": direct})])]
    });
    let project = Arc::clone(&world.project);
    world.api.answers(move |asked| match asked.path.as_str() {
        "/users/sign_in" => "<html>who are you?".into_response(),
        path if path.starts_with("/group") => {
            (StatusCode::FOUND, [(header::LOCATION, "/users/sign_in")]).into_response()
        }
        _ => gitlab(&project, asked),
    });
    let source = world.source_as(&[]);
    let tag = resolved(&source).await;
    let error = fetch(&source, &tag).await.unwrap_err();
    assert!(matches!(error, SourceError::Unauthorized { .. }), "{error}");
    assert!(error.to_string().contains("a redirect led to where people sign in"), "{error}");
}
