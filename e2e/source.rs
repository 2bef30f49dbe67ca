//! Sources that are down, lie, change their mind, or are not allowed.

use std::time::Duration;

use clusterstack::api::ConditionType;
use clusterstack::api::condition;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::harness::{GitServer, Mood, Operator, Repo, SETTINGS, SshServer, World, check, wait_for};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";

/// A repository with `v1`, behind a server.
async fn served(t: &World) -> (Repo, GitServer, String) {
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let server = GitServer::start(repo.dir().parent().unwrap()).await;
    let url = server.url(&format!("{}/.git", repo.dir().file_name().unwrap().display()));
    (repo, server, url)
}

#[tokio::test]
async fn releases_come_from_a_git_server_over_http() {
    let t = World::new("http").await;
    let (repo, server, url) = served(&t).await;
    let _operator = t.operator(&["--allow-source", server.host()]);
    t.create_stack("x", &url, json!({})).await;
    t.ready("x", "v1").await;
    repo.release(V2, SETTINGS);
    t.look_again("x").await;
    t.ready("x", "v2").await;
}

#[tokio::test]
async fn releases_come_over_https_from_a_host_whose_certificate_is_trusted() {
    let t = World::new("https").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let (server, authority) = GitServer::start_tls(repo.dir().parent().unwrap(), t.dir()).await;
    let url = server.url(&format!("{}/.git", repo.dir().file_name().unwrap().display()));
    let flags = ["--allow-source", server.host()];
    let operator = t.operator(&flags);
    t.create_stack("x", &url, json!({})).await;
    let message = t.stack_says("x", ConditionType::Ready, "False", "SourceUnauthorized").await;
    assert!(message.contains("certificate"), "{message}");
    operator.terminate().await;
    let _operator = Operator::start_with(&t, t.plane.operator_kubeconfig(), &flags, &[("SSL_CERT_FILE", &authority)]);
    t.look_again("x").await;
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn a_source_that_is_down_says_so_keeps_what_is_there_and_recovers() {
    let t = World::new("down").await;
    let (repo, server, url) = served(&t).await;
    let _operator = t.operator(&["--allow-source", server.host()]);
    t.create_stack("x", &url, json!({})).await;
    t.ready("x", "v1").await;

    server.set(Mood::Down);
    repo.release(V2, SETTINGS);
    t.look_again("x").await;
    for type_ in [ConditionType::Ready, ConditionType::ReleasesSynced, ConditionType::AssetsClientAPIAvailable] {
        let message = t.stack_says("x", type_, "False", "SourceUnreachable").await;
        assert!(message.contains(server.host()) && message.contains("503"), "{message}");
    }
    let (stack, ()) = t
        .stack("x", "to list v1 as usable", |stack| {
            let status = stack.status.clone().unwrap_or_default();
            check(status.usable_versions == "v1", status)
        })
        .await;
    assert_eq!(stack.status.unwrap().latest_release, "docker-x-1-34-v1 | v1.34.7");
    t.release_ready(V1).await;
    assert!(t.config_map(V1).await.is_some());

    server.set(Mood::Good);
    t.ready("x", "v2").await;
}

#[tokio::test]
async fn a_source_that_is_down_from_the_start_is_tried_until_it_answers() {
    let t = World::new("later").await;
    let (_repo, server, url) = served(&t).await;
    server.set(Mood::Down);
    let _operator = t.operator(&["--allow-source", server.host()]);
    t.create_stack("x", &url, json!({})).await;
    t.stack_says("x", ConditionType::Ready, "False", "SourceUnreachable").await;
    server.set(Mood::Lying);
    t.look_again("x").await;
    t.stack_says("x", ConditionType::Ready, "False", "SourceUnreachable").await;
    server.set(Mood::Good);
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn an_operator_that_starts_with_an_empty_store_while_the_source_is_down_leaves_all_in_place() {
    let t = World::new("both").await;
    let (_repo, server, url) = served(&t).await;
    let operator = t.operator(&["--allow-source", server.host()]);
    t.create_stack("x", &url, json!({})).await;
    t.ready("x", "v1").await;
    operator.kill();
    server.set(Mood::Down);
    std::fs::remove_dir_all(t.store()).unwrap();
    let _operator = t.operator(&["--allow-source", server.host()]);
    t.stack_says("x", ConditionType::Ready, "False", "SourceUnreachable").await;
    assert!(t.config_map(V1).await.is_some());
    server.set(Mood::Good);
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn a_slow_source_is_waited_for() {
    let t = World::new("slow").await;
    let (_repo, server, url) = served(&t).await;
    server.set(Mood::Slow(Duration::from_secs(2)));
    let _operator = t.operator(&["--allow-source", server.host()]);
    t.create_stack("x", &url, json!({})).await;
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn a_look_is_handled_when_a_slow_source_has_answered() {
    let t = World::new("slowlook").await;
    let (repo, server, url) = served(&t).await;
    let _operator = t.operator(&["--allow-source", server.host()]);
    t.create_stack("x", &url, json!({"interval": "1h"})).await;
    t.ready("x", "v1").await;
    // Longer than a pass waits.
    server.set(Mood::Slow(Duration::from_secs(4)));
    for (version, found) in [("v2", 2), ("v3", 3)] {
        repo.release(&format!("docker-x-1-34-{version}"), SETTINGS);
        t.looked_again("x").await;
        let status = t.stacks().get("x").await.unwrap().status.unwrap();
        assert_eq!(
            status.last_poll.map(|poll| poll.found),
            Some(found),
            "it was handled before the source had answered"
        );
        t.ready("x", version).await;
    }
}

#[tokio::test]
async fn credentials_come_from_the_secret_that_the_source_names() {
    let t = World::new("secret").await;
    let (_repo, server, url) = served(&t).await;
    server.set(Mood::Wants("reader", "swordfish"));
    let operator = t.operator(&["--allow-source", server.host()]);
    t.create_stack("x", &url, json!({})).await;
    t.stack_says("x", ConditionType::Ready, "False", "SourceUnauthorized").await;
    t.change_stack("x", json!({"spec": {"source": {"git": {"secretRef": {"name": "login"}}}}})).await;
    t.stack_says("x", ConditionType::Ready, "False", "SecretInvalid").await;

    let secret = |password: &str| {
        let data = json!({"username": "reader", "password": password});
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": data})
    };
    t.apply(&secret("guessed")).await;
    t.look_again("x").await;
    t.stack_says("x", ConditionType::Ready, "False", "SourceUnauthorized").await;
    t.apply(&secret("swordfish")).await;
    t.look_again("x").await;
    let stack = t.ready("x", "v1").await;
    let shown = serde_json::to_string(&stack).unwrap() + &serde_json::to_string(&t.release_ready(V1).await).unwrap();
    assert!(!shown.contains("swordfish") && !operator.log().contains("swordfish"), "the password is shown");
}

#[tokio::test]
async fn a_secret_is_shown_to_no_server_that_it_is_not_for() {
    let t = World::new("secretfor").await;
    let (_repo, server, url) = served(&t).await;
    server.set(Mood::Wants("reader", "swordfish"));
    let _operator = t.operator(&["--allow-source", server.host()]);
    let data = json!({"username": "reader", "password": "swordfish"});
    let named = |name: &str, of_type: &str, host: &str| {
        let mut data = data.clone();
        data["host"] = host.into();
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": of_type, "stringData": data})
    };
    t.apply(&named("elsewhere", "Opaque", "git.example.com")).await;
    t.apply(&named("cluster", "cluster.x-k8s.io/secret", server.host())).await;
    t.apply(&named("login", "Opaque", server.host())).await;
    t.create_stack("x", &url, json!({})).await;
    for (secret, part) in
        [("elsewhere", "its key host names others"), ("cluster", "is of type cluster.x-k8s.io/secret")]
    {
        t.change_stack("x", json!({"spec": {"source": {"git": {"secretRef": {"name": secret}}}}})).await;
        t.stack("x", part, |stack| {
            let conditions = &stack.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
            let ready = condition::find(conditions, ConditionType::Ready);
            check(ready.is_some_and(|c| c.reason == "SecretInvalid" && c.message.contains(part)), conditions)
        })
        .await;
    }
    t.change_stack("x", json!({"spec": {"source": {"git": {"secretRef": {"name": "login"}}}}})).await;
    t.ready("x", "v1").await;
}

/// Waits until the ClusterStack says that the source is not trusted, with `why`.
async fn source_refused(t: &World, why: &str) {
    t.stack("x", why, |stack| {
        let status = stack.status.clone().unwrap_or_default();
        let ready = condition::find(&status.conditions, ConditionType::Ready);
        check(ready.is_some_and(|c| c.reason == "SourceUnauthorized" && c.message.contains(why)), status)
    })
    .await;
}

#[tokio::test]
async fn releases_come_over_ssh_from_a_host_whose_key_is_known() {
    let t = World::new("ssh").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let directory = t.dir().join("ssh");
    let Some(server) = SshServer::start("releases_come_over_ssh", &directory).await else { return };
    let operator = t.operator(&["--allow-source", &server.host()]);
    let secret = |known_hosts: String| {
        let data = json!({"identity": server.identity(), "known_hosts": known_hosts});
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": data})
    };
    let source = json!({"git": {"url": server.url(repo.dir()), "secretRef": {"name": "login"}}});
    let other_host = server.known_hosts(true).replacen("[127.0.0.1]", "[elsewhere.example]", 1);
    t.apply(&secret(other_host)).await;
    t.create_stack("x", &server.url(repo.dir()), json!({"source": source})).await;
    source_refused(&t, "its host key is not in known_hosts").await;
    t.apply(&secret(server.known_hosts(false))).await;
    t.look_again("x").await;
    source_refused(&t, "its host key is another than the one in known_hosts").await;

    t.apply(&secret(server.known_hosts(true))).await;
    t.look_again("x").await;
    t.ready("x", "v1").await;
    repo.release(V2, SETTINGS);
    t.look_again("x").await;
    t.ready("x", "v2").await;
    assert!(!operator.log().contains("PRIVATE KEY"));
}

#[tokio::test]
async fn a_password_in_the_url_is_shown_nowhere() {
    let t = World::new("urlpass").await;
    let (_repo, server, url) = served(&t).await;
    server.set(Mood::Wants("reader", "swordfish"));
    let operator = t.operator(&["--allow-source", server.host()]);
    let url = url.replace("http://", "http://reader:swordfish@");
    t.create_stack("x", &url, json!({})).await;
    t.ready("x", "v1").await;
    server.set(Mood::Down);
    t.look_again("x").await;
    t.stack_says("x", ConditionType::Ready, "False", "SourceUnreachable").await;
    let stack = t.stacks().get("x").await.unwrap();
    let shown =
        serde_json::to_string(&stack.status).unwrap() + &serde_json::to_string(&t.release_ready(V1).await).unwrap();
    assert!(!shown.contains("swordfish") && !operator.log().contains("swordfish"), "the password is shown");
}

#[tokio::test]
async fn a_release_that_is_refused_is_downloaded_again_when_somebody_asks_and_not_before() {
    let t = World::new("refused").await;
    let repo = t.repo();
    repo.write("README.md", "there is no stack in here");
    repo.tag(V1);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({"interval": "10s"})).await;
    t.release_says(V1, ConditionType::Stalled, "True", "ReleaseInvalid").await;
    let downloads = || operator.log().matches("fetching").count();
    operator.passes("ClusterStackRelease", 2).await;
    assert_eq!(downloads(), 1);
    t.look_again("x").await;
    wait_for("another download", || async { check(downloads() == 2, operator.log()) }).await;
}

#[tokio::test]
async fn a_tag_that_moved_is_told_and_not_followed() {
    let t = World::new("moved").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let before = t.release_ready(V1).await.status.unwrap().artifact.unwrap();

    repo.release(V1, &SETTINGS.replace("large", "huge"));
    t.look_again("x").await;
    t.event("ArtifactChanged", V1).await;
    let message = t.release_says(V1, ConditionType::ClusterStackReleaseDownloaded, "True", "ArtifactChanged").await;
    assert!(message.contains(&before.revision), "{message}");
    t.looked_again("x").await;
    assert_eq!(t.in_config_map(V1, "/data/size").await, "large");
    assert_eq!(t.release_ready(V1).await.status.unwrap().artifact.unwrap(), before);

    // Without the store what was applied comes by its commit, and is watched over as before.
    operator.kill();
    std::fs::remove_dir_all(t.store()).unwrap();
    let operator = t.operator(&[]);
    t.change("vandal", ("v1", "ConfigMap", V1), json!({"data": {"size": "spoilt"}})).await;
    wait_for("the field to be put back", || async {
        let size = t.in_config_map(V1, "/data/size").await;
        check(size == "large", size)
    })
    .await;
    t.release_says(V1, ConditionType::ArtifactChanged, "True", "ArtifactChanged").await;
    assert_eq!(t.release_ready(V1).await.status.unwrap().artifact.unwrap(), before);

    // Where the commit is gone too there is no way back: what is applied stays, and says so.
    operator.kill();
    std::fs::remove_dir_all(t.store()).unwrap();
    repo.forget();
    let _operator = t.operator(&[]);
    let message = t.release_says(V1, ConditionType::Stalled, "True", "ArtifactChanged").await;
    assert!(message.contains("has no such commit"), "{message}");
    t.stack_says("x", ConditionType::Stalled, "True", "ArtifactChanged").await;
    assert_eq!(t.in_config_map(V1, "/data/size").await, "large");
}

#[tokio::test]
async fn a_tag_that_moved_is_not_followed_where_the_status_is_lost_either() {
    let t = World::new("movedlost").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let before = t.release_ready(V1).await.status.unwrap().artifact.unwrap();
    let lose = || async {
        let patch = Patch::Merge(json!({"status": null}));
        t.releases().patch_status(V1, &PatchParams::default(), &patch).await.unwrap();
    };
    repo.release(V1, &SETTINGS.replace("large", "huge"));
    lose().await;
    t.release_says(V1, ConditionType::ArtifactChanged, "True", "ArtifactChanged").await;
    assert_eq!(t.release_ready(V1).await.status.unwrap().artifact.unwrap(), before);
    assert_eq!(t.in_config_map(V1, "/data/size").await, "large");
    // Where nothing has what was applied either.
    operator.kill();
    std::fs::remove_dir_all(t.store()).unwrap();
    repo.forget();
    lose().await;
    let operator = t.operator(&[]);
    t.release_says(V1, ConditionType::Stalled, "True", "ArtifactChanged").await;
    operator.passes("ClusterStackRelease", 2).await;
    t.release_says(V1, ConditionType::Stalled, "True", "ArtifactChanged").await;
    assert_eq!(t.in_config_map(V1, "/data/size").await, "large");
}

/// The chart of a release's ConfigMap in another directory of the same commit, with another size.
fn write_other(repo: &Repo) {
    let place = "other/cluster-class";
    repo.write("other/csctl.yaml", "config:\n  kubernetesVersion: v1.34.7\n");
    repo.write(&format!("{place}/Chart.yaml"), "apiVersion: v2\nname: docker-x-1-34-cluster-class\nversion: v0\n");
    repo.write(&format!("{place}/values.yaml"), "color: blue\n");
    repo.write(&format!("{place}/templates/objects.yaml"), &SETTINGS.replace("large", "huge"));
}

#[tokio::test]
async fn other_files_of_the_same_commit_are_told_and_not_taken_for_what_is_applied() {
    let t = World::new("otherfiles").await;
    let repo = t.repo();
    write_other(&repo);
    repo.release(V1, SETTINGS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let before = t.release_ready(V1).await.status.unwrap().artifact.unwrap();
    t.change_stack("x", json!({"spec": {"source": {"git": {"path": "other"}}}})).await;
    t.looked_again("x").await;
    t.ready("x", "v1").await;

    // Without the store the new path is all that there is.
    operator.kill();
    std::fs::remove_dir_all(t.store()).unwrap();
    let _operator = t.operator(&[]);
    let message = t.release_says(V1, ConditionType::Stalled, "True", "ArtifactChanged").await;
    assert!(message.contains("still, with other files") && message.contains(&before.digest), "{message}");
    t.stack_says("x", ConditionType::Stalled, "True", "ArtifactChanged").await;
    assert_eq!(t.in_config_map(V1, "/data/size").await, "large");
    assert_eq!(t.releases().get(V1).await.unwrap().status.unwrap().artifact.unwrap(), before);

    // Put back, it is what was applied.
    t.change_stack("x", json!({"spec": {"source": {"git": {"path": null}}}})).await;
    t.ready("x", "v1").await;
    assert_eq!(t.release_ready(V1).await.status.unwrap().artifact.unwrap(), before);
    assert_eq!(t.in_config_map(V1, "/data/size").await, "large");
}

#[tokio::test]
async fn other_files_of_the_same_commit_are_not_taken_where_the_status_is_lost_either() {
    let t = World::new("otherlost").await;
    let repo = t.repo();
    write_other(&repo);
    repo.release(V1, SETTINGS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let before = t.release_ready(V1).await.status.unwrap().artifact.unwrap();
    t.change_stack("x", json!({"spec": {"source": {"git": {"path": "other"}}}})).await;
    t.release(V1, "to note its digest", |release| {
        let noted = release.metadata.annotations.clone().unwrap_or_default();
        check(noted.get(clusterstack::api::DIGEST) == Some(&before.digest), noted)
    })
    .await;
    operator.terminate().await;
    let lose = || async {
        let lost = Patch::Merge(json!({"status": null}));
        t.releases().patch_status(V1, &PatchParams::default(), &lost).await.unwrap();
    };
    lose().await;
    let operator = t.operator(&[]);
    t.ready("x", "v1").await;
    operator.terminate().await;
    // Nor where nothing has what was applied.
    std::fs::remove_dir_all(t.store()).unwrap();
    lose().await;
    let _operator = t.operator(&[]);
    t.release_says(V1, ConditionType::Stalled, "True", "ArtifactChanged").await;
    assert_eq!(t.in_config_map(V1, "/data/size").await, "large");
    t.change_stack("x", json!({"spec": {"source": {"git": {"path": null}}}})).await;
    t.ready("x", "v1").await;
    assert_eq!(t.release_ready(V1).await.status.unwrap().artifact.unwrap().digest, before.digest);
    assert_eq!(t.in_config_map(V1, "/data/size").await, "large");
}

#[tokio::test]
async fn other_files_are_taken_where_nothing_was_applied() {
    let t = World::new("otherunapplied").await;
    let repo = t.repo();
    write_other(&repo);
    repo.release(V1, &SETTINGS.replace("data:", "data: {{ fail \"not yet\" }}"));
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.release_says(V1, ConditionType::Ready, "False", "RenderFailed").await;
    operator.kill();
    std::fs::remove_dir_all(t.store()).unwrap();
    t.change_stack("x", json!({"spec": {"source": {"git": {"path": "other"}}}})).await;
    let _operator = t.operator(&[]);
    t.ready("x", "v1").await;
    assert_eq!(t.in_config_map(V1, "/data/size").await, "huge");
}

#[tokio::test]
async fn the_same_files_under_another_commit_are_the_same_release() {
    let t = World::new("rewritten").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let before = t.release_ready(V1).await.status.unwrap().artifact.unwrap();
    // The history is written anew, and the store is lost.
    operator.kill();
    std::fs::remove_dir_all(t.store()).unwrap();
    repo.forget();
    let _operator = t.operator(&[]);
    let now = repo.commit_of(V1);
    t.release(V1, "to be of the new commit", |release| {
        let artifact = release.status.clone().unwrap_or_default().artifact.unwrap_or_default();
        check(artifact.revision == now, artifact)
    })
    .await;
    let release = t.release_ready(V1).await;
    assert_eq!(release.status.as_ref().unwrap().artifact.as_ref().unwrap().digest, before.digest);
    assert!(condition::find(&release.status.unwrap().conditions, ConditionType::ArtifactChanged).is_none());
}

#[tokio::test]
async fn a_tag_that_moved_is_not_followed_where_an_inventory_was_not_rebuilt_yet() {
    let t = World::new("movedunrendered").await;
    let repo = t.repo();
    let needy = format!(
        "{{{{ if not (lookup \"v1\" \"ConfigMap\" .Release.Namespace \"needed\") }}}}{{{{ fail \"not yet\" }}}}{{{{ end }}}}\n{SETTINGS}"
    );
    let needed = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "needed"}});
    t.apply(&needed).await;
    repo.release(V1, &needy);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let before = t.release_ready(V1).await.status.unwrap().artifact.unwrap();
    repo.release(V1, &needy.replace("large", "huge"));
    operator.terminate().await;
    // A restore without statuses, in which what is looked up comes later.
    t.delete("v1", "ConfigMap", "needed").await;
    let lost = Patch::Merge(json!({"status": null}));
    t.releases().patch_status(V1, &PatchParams::default(), &lost).await.unwrap();
    let operator = t.operator(&[]);
    t.release_says(V1, ConditionType::Ready, "False", "RenderFailed").await;
    operator.passes("ClusterStackRelease", 2).await;
    t.apply(&needed).await;
    t.look_again("x").await;
    t.release_says(V1, ConditionType::ArtifactChanged, "True", "ArtifactChanged").await;
    t.ready("x", "v1").await;
    assert_eq!(t.in_config_map(V1, "/data/size").await, "large");
    assert_eq!(t.release_ready(V1).await.status.unwrap().artifact.unwrap().revision, before.revision);
}

#[tokio::test]
async fn a_tag_that_is_deleted_upstream_leaves_what_is_applied() {
    let t = World::new("deltag").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS).release(V2, SETTINGS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v2").await;
    repo.delete_tag(V2);
    t.look_again("x").await;
    // v1 is the newest one found now; v2 stays as the newest ready one.
    t.ready("x", "v2, v1").await;
    assert!(t.config_map(V2).await.is_some());
    repo.delete_tag(V1);
    t.look_again("x").await;
    t.stack_says("x", ConditionType::Ready, "False", "NoReleaseFound").await;
    assert!(t.config_map(V2).await.is_some());
}

#[tokio::test]
async fn sources_that_the_flags_do_not_allow_are_refused() {
    let t = World::new("refused").await;
    let (_repo, server, url) = served(&t).await;
    let outside = tempfile::tempdir().unwrap();
    let repo = Repo::new(&outside.path().join("repo"));
    repo.release(V1, SETTINGS);
    let _operator = t.operator(&[]);
    let root = t.dir().canonicalize().unwrap();
    for (name, url, part) in [
        ("file", repo.url(), "--allow-source"),
        ("dots", format!("file://{}/../../etc", root.display()), "\"..\""),
        ("loopback", url.clone(), "--allow-source"),
        ("localhost", url.replace("127.0.0.1", "localhost"), "--allow-source"),
        ("metadata", "http://169.254.169.254/latest".to_owned(), "--allow-source"),
        ("scheme", "ext::sh -c true".to_owned(), ""),
    ] {
        t.create_stack(name, &url, json!({})).await;
        let message = t.stack_says(name, ConditionType::Ready, "False", "SourceRefused").await;
        assert!(message.contains(part), "{name}: {message}");
        t.stack_says(name, ConditionType::Stalled, "True", "SourceRefused").await;
    }
    assert_eq!(server.requests(), 0);
}

#[tokio::test]
async fn tags_that_are_no_releases_are_passed_over_and_counted() {
    let t = World::new("tags").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    for tag in ["v1.0.0", "docker-x-v5", "docker-x-1-34-v2-test", "docker-x-1-33-v9", "other-y-1-34-v3", "nightly"] {
        repo.tag_as(tag, V1);
    }
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    let poll = t.ready("x", "v1").await.status.unwrap().last_poll.unwrap();
    assert_eq!((poll.found, poll.passed_over), (1, 4));
}

#[tokio::test]
async fn a_repository_is_polled_once_however_many_stacks_name_it() {
    let t = World::new("once").await;
    let (_repo, server, url) = served(&t).await;
    let operator = t.operator(&["--allow-source", server.host()]);
    t.create_stack("x", &url, json!({"interval": "1h"})).await;
    t.ready("x", "v1").await;
    let before = server.requests();
    for n in 0..5 {
        let name = format!("more-{n}");
        t.create_stack(&name, &url, json!({"interval": "1h", "kubernetesVersion": format!("1.{n}")})).await;
        t.stack_says(&name, ConditionType::Ready, "False", "NoReleaseFound").await;
    }
    drop(operator);
    assert_eq!(server.requests(), before);
}
