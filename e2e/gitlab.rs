//! Releases from GitLab, by a stand-in for its API that does what GitLab documents.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use clusterstack::api::condition::find;
use clusterstack::api::{Condition, ConditionType};
use clusterstack::core::name::ReleaseName;
use serde_json::{Value, json};

use crate::harness::{Asked, CLUSTER_API, Repo, SETTINGS, StandIn, World, assets, check, content, page, sum};

const TOKEN: &str = "glpat-swordfish";
const API: &str = "/api/v4/projects/group%2Fname";
const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";

/// The project `group/name`, private, with its packages in a store of blobs on another host.
#[derive(Default)]
struct Project {
    releases: Vec<Value>,
    packages: Vec<Value>,
    /// Files of packages, by the number of the package.
    files: BTreeMap<u64, Vec<(String, Bytes)>>,
    store: String,
    host: String,
    /// What it says instead.
    refuses: Option<(u16, &'static str)>,
}

struct GitLab {
    api: StandIn,
    store: StandIn,
    project: Arc<Mutex<Project>>,
}

fn says(status: u16, message: &str) -> Response {
    (StatusCode::from_u16(status).unwrap(), json!({"message": message}).to_string()).into_response()
}

fn answer(project: &Project, asked: &Asked) -> Response {
    if let Some((status, header)) = project.refuses {
        let mut response = says(status, "no");
        if let Some((name, value)) = header.split_once(": ") {
            response.headers_mut().insert(header::HeaderName::from_static(name), value.parse().unwrap());
        }
        return response;
    }
    // A private project is not there for who may not see it.
    if asked.header("private-token") != Some(TOKEN) {
        return says(404, "404 Project Not Found");
    }
    let path = asked.path.split('?').next().unwrap();
    let base = format!("http://{}{path}?per_page=100", project.host);
    let Some(path) = path.strip_prefix(API) else { return says(404, "404 Not Found") };
    if let Some(file) = path.strip_prefix("/packages/generic/stacks/") {
        let location = format!("http://{}/{file}?signature=hunter2", project.store);
        return (StatusCode::FOUND, [(header::LOCATION, location)]).into_response();
    }
    let package = path.strip_prefix("/packages/").and_then(|rest| rest.strip_suffix("/package_files"));
    match (path, package.and_then(|id| id.parse().ok()).and_then(|id: u64| project.files.get(&id))) {
        ("/releases", _) => page(asked, &base, &project.releases, 2),
        ("/packages", _) => page(asked, &base, &project.packages, 2),
        (_, Some(files)) => {
            let file = |(n, (name, content)): (usize, &(String, Bytes))| json!({"id": n, "file_name": name, "size": content.len(), "file_sha256": sum(content)});
            page(asked, &base, &files.iter().enumerate().map(file).collect::<Vec<_>>(), 2)
        }
        _ => says(404, "404 Not Found"),
    }
}

fn stored(project: &Project, asked: &Asked) -> Response {
    let path = asked.path.split('?').next().unwrap();
    let (tag, name) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    let package = project.packages.iter().find(|package| package["version"] == tag);
    let files = package.and_then(|package| project.files.get(&package["id"].as_u64()?));
    let found = files.and_then(|files| files.iter().find(|(known, _)| known == name));
    found.map_or_else(|| StatusCode::NOT_FOUND.into_response(), |(_, found)| content(asked, found))
}

impl GitLab {
    async fn start() -> Self {
        let project: Arc<Mutex<Project>> = Arc::default();
        let (of_api, of_store) = (Arc::clone(&project), Arc::clone(&project));
        let api = StandIn::new(move |asked| answer(&of_api.lock().unwrap(), asked)).await;
        let store = StandIn::new(move |asked| stored(&of_store.lock().unwrap(), asked)).await;
        {
            let mut project = project.lock().unwrap();
            project.host.clone_from(&api.host);
            project.store.clone_from(&store.host);
        }
        Self { api, store, project }
    }

    /// Publishes a release whose assets are a generic package.
    fn release(&self, tag: &str, files: &BTreeMap<String, Bytes>) {
        let mut project = self.project.lock().unwrap();
        let id = project.packages.len() as u64 + 1;
        project.packages.insert(0, json!({"id": id, "name": "stacks", "version": tag, "package_type": "generic"}));
        project.files.insert(id, files.iter().map(|(name, content)| (name.clone(), content.clone())).collect());
        let assets = json!({"count": 0, "sources": [], "links": []});
        let release = json!({"tag_name": tag, "name": null, "released_at": "2026-01-01T00:00:00Z", "upcoming_release": false, "assets": assets});
        project.releases.insert(0, release);
    }

    fn refuses(&self, with: Option<(u16, &'static str)>) {
        self.project.lock().unwrap().refuses = with;
    }

    fn flags(&self) -> [&str; 4] {
        ["--allow-source", &self.api.host, "--allow-source", &self.store.host]
    }

    /// `spec.source`, with the token in a Secret.
    async fn source(&self, t: &World) -> Value {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "gitlab"}, "stringData": {"token": TOKEN}});
        t.apply(&secret).await;
        let url = format!("http://{}", self.api.host);
        json!({"git": null, "gitlab": {"url": url, "project": "group/name", "insecure": true, "secretRef": {"name": "gitlab"}}})
    }
}

/// The assets of a real stack at a tag: its charts packed as they are, for what they depend on lies elsewhere.
pub(crate) fn packed(t: &World, repo: &Repo, tag: &str, path: &str) -> BTreeMap<String, Bytes> {
    let tree = t.dir().join(format!("tree-{tag}"));
    std::fs::create_dir_all(&tree).unwrap();
    let done = Command::new("git")
        .arg("--git-dir")
        .arg(repo.dir())
        .arg("--work-tree")
        .arg(&tree)
        .args(["checkout", "-f", tag, "--", path])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let files = clusterstack::io::stack::read(&tree.join(path)).unwrap().files;
    let release: ReleaseName = tag.parse().unwrap();
    let root = |(name, content): (&String, &Bytes)| (!name.contains('/')).then(|| (name.clone(), content.clone()));
    let mut assets: BTreeMap<String, Bytes> = files.iter().filter_map(root).collect();
    for component in ["cluster-class", "cluster-addon"] {
        let inside = files.iter().filter_map(|(name, content)| {
            Some((name.strip_prefix(component)?.strip_prefix('/')?.to_owned(), content.clone()))
        });
        let chart = clusterstack::io::unpack::pack(&inside.collect()).unwrap();
        assets.insert(format!("{}-{component}-{}.tgz", release.stem(), release.version), chart);
    }
    assets
}

#[tokio::test]
async fn a_real_stack_comes_from_the_packages_of_gitlab() {
    let t = World::new("gitlab").await;
    let Some(shared) = World::shared("a_real_stack_comes_from_the_packages_of_gitlab") else { return };
    let repo = Repo::mirror(&shared.join("stacks/cluster-stacks.bundle"), &t.dir().join("cluster-stacks.git"));
    let server = GitLab::start().await;
    // More than a page of others.
    for n in 0..5 {
        server.release(&format!("docker-other-1-34-v{n}"), &BTreeMap::new());
    }
    let release = |version: &str| {
        let tag = format!("openstack-scs2-1-34-{version}");
        server.release(&tag, &packed(&t, &repo, &tag, "providers/openstack/scs2"));
    };
    release("v1");
    let operator = t.operator(&server.flags());
    let spec = json!({"provider": "openstack", "name": "scs2", "source": server.source(&t).await});
    t.create_stack("scs2", "", spec).await;
    t.ready("scs2", "v1").await;
    assert!(t.get(CLUSTER_API, "ClusterClass", "openstack-scs2-1-34-v1").await.is_some());
    let rows = t.release_ready("openstack-scs2-1-34-v1").await.status.unwrap().resources.len();
    assert_eq!(rows, 6);
    release("v2");
    t.look_again("scs2").await;
    t.ready("scs2", "v2").await;

    let by_api = server.api.asked();
    assert!(by_api.iter().any(|asked| asked.query("page") == Some("3")), "it has more than two pages");
    let stored = server.store.asked();
    let without = |asked: &Asked| asked.header("private-token").is_none() && asked.header("authorization").is_none();
    assert!(!stored.is_empty() && stored.iter().all(without), "the token went to another host");
    assert!(!operator.log().contains("swordfish") && !operator.log().contains("hunter2"), "a secret is in the log");
}

#[tokio::test]
async fn what_gitlab_refuses_is_said_changes_nothing_and_ends() {
    let t = World::new("gitlab-no").await;
    let server = GitLab::start().await;
    server.release(V1, &assets(V1, SETTINGS));
    let _operator = t.operator(&server.flags());
    t.create_stack("x", "", json!({"source": server.source(&t).await})).await;
    t.ready("x", "v1").await;
    server.release(V2, &assets(V2, SETTINGS));
    for (status, header, reason) in [
        (401, "", "SourceUnauthorized"),
        (403, "", "SourceUnauthorized"),
        (404, "", "SourceUnreachable"),
        (500, "", "SourceUnreachable"),
        (429, "retry-after: 5", "SourceRateLimited"),
    ] {
        server.refuses(Some((status, header)));
        t.look_again("x").await;
        let says = |c: &&Condition| c.reason == reason && c.message.contains(&format!("HTTP {status}"));
        t.stack("x", &format!("to say {reason} and {status}"), |stack| {
            let conditions = stack.status.clone().unwrap_or_default().conditions;
            let said = find(&conditions, ConditionType::Ready).filter(says).map(|c| c.message.clone());
            check(said.is_some_and(|message| !message.contains("swordfish")), conditions)
        })
        .await;
        assert!(t.config_map(V1).await.is_some() && t.config_map(V2).await.is_none(), "{status}");
        t.release_ready(V1).await;
    }
    server.refuses(None);
    t.ready("x", "v2").await;

    // Another token is another question.
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "gitlab"}, "stringData": {"token": "glpat-other"}});
    t.apply(&secret).await;
    t.look_again("x").await;
    let message = t.stack_says("x", ConditionType::Ready, "False", "SourceUnreachable").await;
    assert!(message.contains("404") && message.contains("rights of the token"), "{message}");
}
