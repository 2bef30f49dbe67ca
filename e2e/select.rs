//! Which releases are taken: by approval, in time, from a shared source, and when somebody says that there is a new one.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use clusterstack::api::condition::{self, Condition, ConditionType};
use clusterstack::api::{API_VERSION, ClusterStackSource, WATCH_LABEL};
use hmac::{Hmac, Mac};
use kube::Api;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::harness::{GitServer, Mood, Repo, SETTINGS, World, check, install_small_kind, unique, wait_for};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";
const V3: &str = "docker-x-1-34-v3";

/// Runs the binary for the test's API server.
fn clusterstack(t: &World, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clusterstack"))
        .args(args)
        .args(["--kubeconfig".as_ref(), t.plane.kubeconfig.as_os_str()])
        .args(["--namespace", &t.namespace])
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Waits until a ClusterStack lists exactly these as available; the first one's message.
async fn available(t: &World, stack: &str, expected: &[(&str, &str)]) -> String {
    let what = format!("to list {expected:?} as available");
    let (stack, ()) = t
        .stack(stack, &what, |stack| {
            let rows = stack.status.clone().unwrap_or_default().available;
            let shown: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.reason.as_str())).collect();
            check(shown == expected, rows)
        })
        .await;
    stack.status.unwrap().available.first().map(|row| row.message.clone()).unwrap_or_default()
}

/// A ClusterStackSource of a Git URL; `spec` goes over it.
fn source(name: &str, url: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": API_VERSION,
        "kind": "ClusterStackSource",
        "metadata": {"name": name},
        "spec": {"interval": "10s", "source": {"git": {"url": url}}},
    });
    json_patch::merge(&mut object, &json!({"spec": spec}));
    object
}

/// A ClusterStack's spec with a `sourceRef` and no source.
fn of_source(name: &str, namespace: Option<&str>) -> Value {
    json!({"source": null, "sourceRef": {"name": name, "namespace": namespace}})
}

/// Waits until a ClusterStackSource has a status that is as `is` says.
async fn source_status<T>(t: &World, name: &str, is: impl Fn(&ClusterStackSource) -> Result<T, String>) -> T {
    let api: Api<ClusterStackSource> = Api::namespaced(t.client.clone(), &t.namespace);
    wait_for(format!("ClusterStackSource {name}"), || async { is(&api.get(name).await.map_err(|e| e.to_string())?) })
        .await
}

fn is_found(releases: u32) -> impl Fn(&ClusterStackSource) -> Result<(), String> {
    move |source| {
        let status = source.status.clone().unwrap_or_default();
        let is = condition::find(&status.conditions, ConditionType::Ready).is_some_and(Condition::is_true);
        check(is && status.releases_found == releases, &status)
    }
}

/// A repository with these releases, behind a server.
async fn served(t: &World, releases: &[&str]) -> (Repo, GitServer, String) {
    let repo = t.repo();
    for release in releases {
        repo.release(release, SETTINGS);
    }
    let server = GitServer::start(repo.dir().parent().unwrap()).await;
    let url = server.url(&format!("{}/.git", repo.dir().file_name().unwrap().display()));
    (repo, server, url)
}

#[tokio::test]
async fn a_shared_source_that_is_deleted_is_missed_at_once_and_so_is_one_in_its_place() {
    let t = World::new("srcgone").await;
    let (_repo, server, url) = served(&t, &[V1]).await;
    let _operator = t.operator(&["--allow-source", server.host()]);
    t.apply(&source("s", &url, json!({}))).await;
    // The interval is no help.
    let mut spec = of_source("s", None);
    spec["interval"] = "1h".into();
    t.create_stack("x", "", spec).await;
    t.ready("x", "v1").await;
    t.delete(API_VERSION, "ClusterStackSource", "s").await;
    let missed = t.stack_says("x", ConditionType::ReleasesSynced, "False", "SourceNotAllowed").await;
    assert!(missed.contains("does not exist"), "{missed}");
    t.apply(&source("s", &url, json!({}))).await;
    t.stack_says("x", ConditionType::ReleasesSynced, "True", "Succeeded").await;
}

#[tokio::test]
async fn releases_wait_for_a_human() {
    let t = World::new("approve").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({"approval": "manual"})).await;
    let message = available(&t, "x", &[(V1, "WaitsForApproval")]).await;
    assert!(message.starts_with("Kubernetes v1.34.7, cluster class v1; approve it with"), "{message}");
    t.stack_says("x", ConditionType::Ready, "False", "WaitsForApproval").await;
    t.event("WaitsForApproval", V1).await;

    let shown = said(&clusterstack(&t, &["approve", "x"]));
    assert!(shown.contains(V1) && shown.contains("Kubernetes v1.34.7"), "{shown}");
    let refused = clusterstack(&t, &["approve", "x", "v7"]);
    assert!(!refused.status.success() && said(&refused).contains("available are: v1"), "{}", said(&refused));
    let approved = clusterstack(&t, &["approve", "x", "v1"]);
    assert!(approved.status.success(), "{}", said(&approved));
    t.ready("x", "v1").await;
    available(&t, "x", &[]).await;

    repo.release(V2, SETTINGS).release(V3, SETTINGS);
    t.look_again("x").await;
    available(&t, "x", &[(V3, "WaitsForApproval"), (V2, "WaitsForApproval")]).await;
    t.ready("x", "v1").await;
    let listed = said(&clusterstack(&t, &["releases"]));
    for line in [V1, V2, V3] {
        assert!(listed.contains(line), "{listed}");
    }
    assert!(said(&clusterstack(&t, &["approve", "x", "v2"])).contains("v1,v2"));
    t.ready("x", "v2").await;
    available(&t, "x", &[(V3, "WaitsForApproval")]).await;
}

#[tokio::test]
async fn what_was_approved_and_moved_before_it_was_taken_has_to_be_approved_again() {
    let t = World::new("swapped").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({"approval": "manual", "bakeTime": "5s"})).await;
    available(&t, "x", &[(V1, "WaitsForApproval")]).await;
    assert!(clusterstack(&t, &["approve", "x", "v1"]).status.success());
    available(&t, "x", &[(V1, "Baking")]).await;
    repo.write("README.md", "another one");
    repo.tag("later");
    repo.tag_as(V1, "later");
    t.look_again("x").await;
    available(&t, "x", &[(V1, "WaitsForApproval")]).await;
    // Its time comes, and nothing is taken.
    tokio::time::sleep(Duration::from_secs(6)).await;
    t.looked_again("x").await;
    available(&t, "x", &[(V1, "WaitsForApproval")]).await;
    assert!(clusterstack(&t, &["approve", "x", "v1"]).status.success());
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn nothing_else_is_taken_for_what_was_approved_where_its_tag_moved_before_it_was_fetched() {
    let t = World::new("approvedthen").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let server = GitServer::start(repo.dir().parent().unwrap()).await;
    let url = server.url(&format!("{}/.git", repo.dir().file_name().unwrap().display()));
    let _operator = t.operator(&["--allow-source", server.host()]);
    server.set(Mood::Listing);
    t.create_stack("x", &url, json!({"approval": "manual"})).await;
    available(&t, "x", &[(V1, "WaitsForApproval")]).await;
    assert!(clusterstack(&t, &["approve", "x", "v1"]).status.success());
    t.release_says(V1, ConditionType::ClusterStackReleaseDownloaded, "False", "SourceUnreachable").await;
    repo.release(V1, &SETTINGS.replace("large", "huge"));
    t.looked_again("x").await;
    server.set(Mood::Good);
    // The server gives no commits by their ids.
    let message = t.release_says(V1, ConditionType::Stalled, "True", "ArtifactChanged").await;
    assert!(message.contains("was chosen and can't be had"), "{message}");
    t.looked_again("x").await;
    assert!(t.config_map(V1).await.is_none());
}

#[tokio::test]
async fn releases_bake_before_they_are_taken_the_first_one_too() {
    let t = World::new("bake").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let _operator = t.operator(&[]);
    let began = Instant::now();
    t.create_stack("x", &repo.url(), json!({"bakeTime": "6s", "interval": "1h"})).await;
    let message = available(&t, "x", &[(V1, "Baking")]).await;
    assert!(message.contains("cluster class v1; taken at 20"), "{message}");
    t.stack_says("x", ConditionType::Ready, "False", "Baking").await;
    // Nobody asks for another look: it comes by itself.
    t.ready("x", "v1").await;
    assert!(began.elapsed() >= Duration::from_secs(5), "{:?}", began.elapsed());

    repo.release(V2, SETTINGS);
    t.look_again("x").await;
    available(&t, "x", &[(V2, "Baking")]).await;
    t.ready("x", "v1").await;
    t.change_stack("x", json!({"spec": {"versions": ["v2"]}})).await;
    t.ready("x", "v2").await;
}

#[tokio::test]
async fn a_range_holds_new_releases_back() {
    let t = World::new("range").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS).release(V2, SETTINGS).release(V3, SETTINGS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({"versionRange": "<3"})).await;
    t.ready("x", "v2").await;
    t.change_stack("x", json!({"spec": {"versionRange": "newest"}})).await;
    let message = t.stack_says("x", ConditionType::Ready, "False", "SpecInvalid").await;
    assert!(message.contains("versionRange"), "{message}");
    t.stack_says("x", ConditionType::Stalled, "True", "SpecInvalid").await;
    t.change_stack("x", json!({"spec": {"versionRange": ">7"}})).await;
    let message = t.stack_says("x", ConditionType::Ready, "False", "NoReleaseFound").await;
    assert!(message.contains("3 releases of this stack") && message.contains("usable: v2"), "{message}");
    t.change_stack("x", json!({"spec": {"versionRange": null}})).await;
    t.ready("x", "v3").await;
}

#[tokio::test]
async fn a_source_shows_what_it_offers_and_those_who_ask_for_more_are_told() {
    let t = World::new("offer").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS).release(V2, SETTINGS).release(V3, SETTINGS);
    let _operator = t.operator(&[]);
    t.apply(&source("shared", &repo.url(), json!({"offer": {"versionRange": "<3"}}))).await;
    let status = source_status(&t, "shared", |source| {
        is_found(2)(source)?;
        Ok(source.status.clone().unwrap())
    })
    .await;
    assert_eq!(status.releases.iter().map(|release| release.name.as_str()).collect::<Vec<_>>(), [V2, V1]);
    assert!(status.next_poll.is_some() && status.url == repo.url(), "{status:?}");
    let table = t.kubectl(&["get", "css", "shared"]);
    assert!(table.contains(V2) && table.contains("2 releases on offer"), "{table}");

    t.create_stack("x", "", of_source("shared", None)).await;
    t.ready("x", "v2").await;
    t.change_stack("x", json!({"spec": {"versions": ["v3"]}})).await;
    let message = t.stack_says("x", ConditionType::Ready, "False", "NotOffered").await;
    assert!(message.contains("only versions <3 are offered"), "{message}");
    available(&t, "x", &[(V3, "NotOffered")]).await;
    assert!(t.config_map(V3).await.is_none());
    // What the source offers from now on is taken without anybody asking.
    let object = (API_VERSION, "ClusterStackSource", "shared");
    t.change("user", object, json!({"spec": {"offer": null}})).await;
    t.ready("x", "v3").await;

    // What it offers no longer stays where it is, and is not taken anew.
    t.change("user", object, json!({"spec": {"offer": {"denyStacks": ["docker/*"]}}})).await;
    t.change_stack("x", json!({"spec": {"versions": null}})).await;
    let message = t.stack_says("x", ConditionType::Ready, "False", "NotOffered").await;
    assert!(message.contains("stack docker/x is not offered; usable: v3"), "{message}");
    assert!(t.config_map(V3).await.is_some());

    t.change("user", object, json!({"spec": {"offer": null, "suspend": true}})).await;
    t.stack_says("x", ConditionType::Ready, "True", "SourceSuspended").await;
    repo.release("docker-x-1-34-v4", SETTINGS);
    t.looked_again("x").await;
    t.stack_says("x", ConditionType::Ready, "True", "SourceSuspended").await;
    t.change("user", object, json!({"spec": {"suspend": false}})).await;
    t.ready("x", "v4").await;
}

#[tokio::test]
async fn a_source_is_shared_with_the_namespaces_that_it_allows_and_so_is_its_provider() {
    let (provider, user) = (World::new("provider-ns").await, World::new("user-ns").await);
    let repo = provider.repo();
    repo.release(V1, SETTINGS);
    let server = GitServer::start(repo.dir().parent().unwrap()).await;
    server.set(crate::harness::Mood::Wants("reader", "swordfish"));
    let url = server.url(&format!("{}/.git", repo.dir().file_name().unwrap().display()));
    let ours = unique("ours");
    let labelled = |mut object: Value| {
        object["metadata"]["labels"] = json!({WATCH_LABEL: ours});
        object
    };
    let operator = provider.operator(&["--watch-filter", &ours, "--allow-source", server.host()]);
    let data = json!({"username": "reader", "password": "swordfish"});
    let login = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": data});
    provider.apply(&login).await;
    let group = format!("{}.example.com", provider.namespace);
    let api_version = format!("{group}/v1");
    install_small_kind(&provider, &group, "ShopRelease").await;
    install_small_kind(&provider, &group, "ShopReleaseTemplate").await;
    let template = json!({"apiVersion": api_version, "kind": "ShopReleaseTemplate", "metadata": {"name": "t"},
        "spec": {"template": {"spec": {"flavor": "m1"}}}});
    provider.apply(&template).await;
    let shared = source(
        "shared",
        &url,
        json!({
            "source": {"git": {"secretRef": {"name": "login"}}},
            "providerRef": {"apiVersion": api_version, "kind": "ShopReleaseTemplate", "name": "t"},
            "allowedNamespaces": {"names": ["somebody-else"]},
        }),
    );
    provider.apply(&labelled(shared)).await;
    source_status(&provider, "shared", is_found(1)).await;

    let stack = json!({"apiVersion": API_VERSION, "kind": "ClusterStack", "metadata": {"name": "x"},
        "spec": {"provider": "docker", "name": "x", "kubernetesVersion": "1.34", "interval": "10s",
            "sourceRef": {"name": "shared", "namespace": provider.namespace}}});
    user.apply(&labelled(stack)).await;
    let refused = user.stack_says("x", ConditionType::Ready, "False", "SourceNotAllowed").await;
    user.change_stack("x", json!({"spec": {"sourceRef": {"name": "nobody"}}})).await;
    let (_, ()) = user
        .stack("x", "to name another source", |stack| {
            let status = stack.status.clone().unwrap_or_default();
            let ready = condition::find(&status.conditions, ConditionType::Ready);
            let hidden = refused.replace("/shared", "/nobody");
            check(ready.is_some_and(|ready| ready.message == hidden), (&hidden, &status))
        })
        .await;
    user.change_stack("x", json!({"spec": {"sourceRef": {"name": "shared"}}})).await;

    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": user.namespace}});
    let allowed = json!({"spec": {"allowedNamespaces": {"selector": selector}}});
    provider.change("provider", (API_VERSION, "ClusterStackSource", "shared"), allowed).await;
    // The user's namespace gets the provider's object, and nothing else of the provider.
    let object = user.there(&api_version, "ShopRelease", V1).await;
    assert_eq!(object["spec"]["flavor"], "m1");
    let ready = kube::api::Patch::Merge(json!({"status": {"ready": true}}));
    user.api(&api_version, "ShopRelease").patch_status(V1, &kube::api::PatchParams::default(), &ready).await.unwrap();
    user.ready("x", "v1").await;
    assert!(user.get("v1", "Secret", "login").await.is_none());

    // When the permission goes, what runs stays.
    let allowed = json!({"spec": {"allowedNamespaces": null}});
    provider.change("provider", (API_VERSION, "ClusterStackSource", "shared"), allowed).await;
    let message = user.stack_says("x", ConditionType::Ready, "False", "SourceNotAllowed").await;
    assert!(message.contains("usable: v1"), "{message}");
    assert!(user.config_map(V1).await.is_some());
    assert!(!operator.log().contains("swordfish"), "the password is shown");
    user.delete_stack("x").await;
    user.stack_gone("x").await;
}

#[tokio::test]
async fn two_hundred_stacks_of_one_repository_are_one_poll_an_interval() {
    const STACKS: u32 = 200;
    let t = World::new("many").await;
    let (_repo, server, url) = served(&t, &[V1]).await;
    let operator = t.operator(&["--allow-source", server.host()]);
    for n in 0..STACKS {
        t.create_stack(&format!("many-{n}"), &url, json!({"kubernetesVersion": format!("1.{}", 100 + n)})).await;
    }
    for n in [0, STACKS - 1] {
        t.stack_says(&format!("many-{n}"), ConditionType::Ready, "False", "NoReleaseFound").await;
    }
    // The time that it takes to read the number counts too.
    let began = Instant::now();
    let before = operator.metric("clusterstack_source_polls_total").await;
    operator.passes("ClusterStack", 3 * STACKS).await;
    let polls = operator.metric("clusterstack_source_polls_total").await - before;
    // A pass comes after three quarters of the interval at the earliest, and takes a listing of up to 7 s.
    let most = began.elapsed().as_secs_f64() / 7.0 + 1.0;
    assert!((1.0..=most).contains(&polls), "{polls} polls in {:?}", began.elapsed());
}

#[tokio::test]
async fn a_hook_that_is_signed_has_the_source_read_at_once() {
    let t = World::new("hook").await;
    let (repo, server, url) = served(&t, &[V1]).await;
    let operator = t.operator(&["--allow-source", server.host(), "--receiver-bind-address", "127.0.0.1:0"]);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hook"}, "stringData": {"token": "swordfish"}});
    t.apply(&secret).await;
    let receiver = json!({"interval": "1h", "receiver": {"secretRef": {"name": "hook"}}});
    t.apply(&source("shared", &url, receiver)).await;
    source_status(&t, "shared", is_found(1)).await;
    let mut spec = of_source("shared", None);
    spec["interval"] = json!("1h");
    t.create_stack("x", "", spec).await;
    t.ready("x", "v1").await;

    repo.release(V2, SETTINGS);
    let path = format!("/hook/{}/shared", t.namespace);
    let body = r#"{"ref": "refs/tags/docker-x-1-34-v2"}"#;
    let before = server.requests();
    let sum = Hmac::<Sha256>::new_from_slice(b"swordfish").unwrap().chain_update(body).finalize().into_bytes();
    let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    let signature = format!("sha256={sum}");
    let unknown = format!("/hook/{}/nobody", t.namespace);
    for (path, headers) in [
        (&path, vec![]),
        (&path, vec![("X-Gitlab-Token", "guessed")]),
        (&path, vec![("X-Hub-Signature-256", "sha256=00")]),
        (&unknown, vec![("X-Gitlab-Token", "swordfish")]),
    ] {
        let asked = Instant::now();
        let answer = operator.post("receiver", path, &headers, body).await;
        assert!(answer.contains(" 401 "), "{path} {headers:?}: {answer}");
        // The time tells nothing: no answer comes before a Secret could have been read.
        assert!(asked.elapsed() >= Duration::from_millis(200), "{path} {headers:?}: {:?}", asked.elapsed());
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(server.requests(), before);

    let answer = operator.post("receiver", &path, &[("X-Hub-Signature-256", &signature)], body).await;
    let told = Instant::now();
    assert!(answer.contains(" 202 "), "{answer}");
    while server.requests() == before {
        assert!(told.elapsed() < Duration::from_secs(1), "the source was not read");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    t.ready("x", "v2").await;

    // What other senders show of the token counts as well.
    let generic = [("X-Signature", signature.as_str())];
    for headers in [&generic[..], &[("X-Gitlab-Token", "swordfish")], &[("Authorization", "Bearer swordfish")]] {
        let answer = operator.post("receiver", &path, headers, body).await;
        assert!(answer.contains(" 202 "), "{headers:?}: {answer}");
    }

    // Strangers keep nobody out, however many they are.
    let stranger = async || {
        let mut answers = Vec::new();
        for _ in 0..3 {
            answers.push(operator.post("receiver", &path, &[("X-Gitlab-Token", "guessed")], body).await);
        }
        answers
    };
    let strangers = futures::future::join_all((0..100).map(|_| stranger()));
    let known = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        operator.post("receiver", &path, &[("X-Hub-Signature-256", &signature)], body).await
    };
    let (refused, answer) = tokio::join!(strangers, known);
    assert!(answer.contains(" 202 "), "{answer}");
    let refused = refused.concat();
    assert!(refused.iter().all(|answer| answer.contains(" 401 ") || answer.contains(" 429 ")), "{refused:?}");
    assert!(refused.iter().any(|answer| answer.contains(" 429 ")), "{refused:?}");

    let large = "x".repeat(2 * 1024 * 1024);
    let answer = operator.post("receiver", &path, &[("X-Gitlab-Token", "swordfish")], &large).await;
    assert!(answer.contains(" 413 "), "{answer}");
    assert!(!operator.log().contains("swordfish"));
}
