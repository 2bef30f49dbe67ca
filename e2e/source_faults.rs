//! One thing after the other goes wrong between operator and its sources: a Git server, the API of GitHub, a registry.
//! Whatever it is: each release arrives whole and once, what was usable stays so meanwhile, nobody asks without a pause,
//! and no restart is needed.

use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{
    BadLine, GitHub, GitServer, Mishap, RegistryServer, Repo, SETTINGS, World, assets, check, push, wait_for,
};
use clusterstack::core::source::AllowList;
use clusterstack::io::registry::Registry;
use clusterstack::io::source::Access;

/// Requests for two releases, and more in a second of waiting: a source that is asked without a pause gets hundreds.
const MOST: (f64, f64) = (120.0, 5.0);

/// The three sources, and how a release is published in each.
struct Sources {
    repo: Repo,
    _git: GitServer,
    github: GitHub,
    registry: Registry,
    _registry: RegistryServer,
}

impl Sources {
    async fn publish(&self, version: &str) {
        self.repo.release(&format!("docker-git-1-34-{version}"), SETTINGS);
        let tag = format!("docker-hub-1-34-{version}");
        self.github.publish(&tag, &assets(&tag, SETTINGS));
        let tag = format!("docker-oci-1-34-{version}");
        push(&self.registry, &tag, &assets(&tag, SETTINGS)).await.unwrap();
    }
}

async fn is_overcome(name: &str, mishap: Mishap) {
    let t = World::new(name).await;
    let Some(registry_server) = RegistryServer::start(&t.dir().join("registry"), &[]) else { return };
    let repo = t.repo();
    let git = GitServer::start(repo.dir().parent().unwrap()).await;
    let github = GitHub::start().await;
    let access = Access { insecure: true, ..Access::default() };
    let allow = AllowList::parse(["127.0.0.1"]).unwrap();
    let stacks = format!("{}/stacks", registry_server.host);
    let registry = Registry::new(&stacks, &access, &allow, &t.dir().join("scratch")).unwrap();
    let url = git.url(&format!("{}/.git", repo.dir().file_name().unwrap().display()));
    let lines = [
        BadLine::start(git.host(), mishap).await,
        BadLine::start(github.host(), mishap).await,
        BadLine::start(&registry_server.host, mishap).await,
    ];
    let through = |line: usize, text: &str, backend: &str| text.replace(backend, lines[line].host());
    let hub: Value = serde_json::from_str(&through(1, &github.source().to_string(), github.host())).unwrap();
    let repository = through(2, &stacks, &registry_server.host);
    let git_url = through(0, &url, git.host());
    let sources = Sources { repo, _git: git, github, registry, _registry: registry_server };
    sources.publish("v1").await;

    let began = Instant::now();
    let mut operator = t.operator(&["--allow-source", "127.0.0.1"]);
    let named = |name: &str, source: Value| json!({"name": name, "interval": "10s", "source": source});
    t.create_stack("git", &git_url, json!({"name": "git", "interval": "10s"})).await;
    t.create_stack("hub", "", named("hub", hub)).await;
    let oci = json!({"git": null, "oci": {"repository": repository, "insecure": true}});
    t.create_stack("oci", "", named("oci", oci)).await;
    for stack in ["git", "hub", "oci"] {
        t.ready(stack, "v1").await;
    }
    let mut before = Vec::new();
    for stack in ["git", "hub", "oci"] {
        before.push(
            t.config_map(&format!("docker-{stack}-1-34-v1")).await.expect("its ConfigMap")["metadata"]["uid"].clone(),
        );
    }
    sources.publish("v2").await;
    for (stack, uid) in ["git", "hub", "oci"].into_iter().zip(before) {
        // What is usable stays so until the next one is.
        let (old, new) = (format!("docker-{stack}-1-34-v1"), format!("docker-{stack}-1-34-v2"));
        wait_for(format!("{stack} to get to v2"), || async {
            let stack = t.stacks().get(stack).await.unwrap();
            let usable = stack.status.clone().unwrap_or_default().usable_versions;
            assert!(!usable.is_empty(), "{mishap:?}: nothing is usable: {:?}", stack.status);
            if usable.contains("v1") && !usable.contains("v2") {
                let there = t.config_map(&old).await.map(|map| map["metadata"]["uid"].clone());
                assert_eq!(there, Some(uid.clone()), "{mishap:?}: {old} was made anew");
            }
            check(usable == "v2", &stack.status)
        })
        .await;
        assert_eq!(t.in_config_map(&new, "/data/size").await, "large");
    }
    let elapsed = began.elapsed();
    for (line, stack) in lines.iter().zip(["git", "hub", "oci"]) {
        let (requests, spoiled) = line.requests();
        println!("{mishap:?}, {stack}: {requests} requests in {elapsed:?}, {spoiled} of them went wrong");
        assert!(spoiled > 1, "{mishap:?} came to {spoiled} of {requests} requests of {stack}");
        assert!(
            (requests as f64) < MOST.0 + MOST.1 * elapsed.as_secs_f64(),
            "{mishap:?}, {stack}: {requests} requests in {elapsed:?}"
        );
    }

    // When it is over, the same process goes on as ever.
    lines.iter().for_each(BadLine::is_mended);
    sources.publish("v3").await;
    for stack in ["git", "hub", "oci"] {
        t.ready(stack, "v3").await;
    }
    assert!(operator.is_running(), "{mishap:?} ended it");
}

macro_rules! overcome {
    ($($test:ident: $name:literal, $mishap:expr;)*) => {
        $(#[tokio::test]
        async fn $test() {
            is_overcome($name, $mishap).await;
        })*
    };
}

overcome! {
    late_answers_are_overcome: "srclate", Mishap::Late;
    connections_that_end_are_overcome: "srcreset", Mishap::Reset;
    answers_that_break_off_are_overcome: "srccut", Mishap::Cut;
    answers_that_are_too_short_are_overcome: "srcshort", Mishap::Short;
    answers_with_other_bytes_are_overcome: "srcgarbled", Mishap::Garbled;
    pages_of_a_proxy_are_overcome: "srcpage", Mishap::Page;
    limits_are_overcome: "srctoomany", Mishap::TooMany;
    internal_errors_are_overcome: "srcinternal", Mishap::Internal;
    an_unavailable_source_is_overcome: "srcunavail", Mishap::Unavailable;
}
