//! Releases from a directory: real ones, unpacked from Git, and what happens when one changes in its place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clusterstack::api::{ConditionType, DIGEST, REVISION};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::{Repo, Request, SETTINGS, World};

/// The directory of a stack at a tag of a repository, put where a release of a directory lies.
fn publish(repo: &Path, tag: &str, path: &str, releases: &Path) {
    let to = releases.join(tag);
    fs::create_dir_all(&to).unwrap();
    let script = format!("git -C '{}' archive '{tag}:{path}' | tar -x -C '{}'", repo.display(), to.display());
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
}

fn source(directory: &Path) -> Value {
    json!({"source": {"directory": {"path": directory}, "git": null}})
}

fn releases(t: &World) -> PathBuf {
    let releases = t.dir().join("releases");
    fs::create_dir_all(&releases).unwrap();
    releases
}

#[tokio::test]
async fn a_real_release_comes_from_a_directory() {
    let t = World::new("directory").await;
    let Some(shared) = World::shared("a_real_release_comes_from_a_directory") else { return };
    let repo = Repo::mirror(&shared.join("stacks/cluster-stacks.bundle"), &t.dir().join("cluster-stacks.git"));
    let releases = releases(&t);
    publish(repo.dir(), "openstack-scs2-1-34-v1", "providers/openstack/scs2", &releases);
    let _operator = t.operator(&[]);
    let mut spec = source(&releases);
    spec["provider"] = "openstack".into();
    spec["name"] = "scs2".into();
    t.create_stack("x", "", spec).await;
    t.ready("x", "v1").await;
    publish(repo.dir(), "openstack-scs2-1-34-v2", "providers/openstack/scs2", &releases);
    t.look_again("x").await;
    t.ready("x", "v2").await;
}

#[tokio::test]
async fn a_release_that_changes_in_its_place_is_told_and_not_applied() {
    const V1: &str = "docker-x-1-34-v1";
    let t = World::new("replaced").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let releases = releases(&t);
    publish(repo.dir(), V1, "stacks/docker/x", &releases);
    let _operator = t.operator(&[]);
    t.create_stack("x", "", source(&releases)).await;
    t.ready("x", "v1").await;
    let before = t.config_map(V1).await;
    let chart = releases.join(V1).join("cluster-class/values.yaml");
    fs::write(chart, "color: red\n").unwrap();
    t.look_again("x").await;
    let message = t.release_says(V1, ConditionType::ClusterStackReleaseDownloaded, "True", "ArtifactChanged").await;
    assert!(message.contains("stays"), "{message}");
    assert_eq!(t.config_map(V1).await, before);
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn a_release_is_made_with_what_it_is_made_from_where_no_list_tells_it() {
    const V1: &str = "docker-x-1-34-v1";
    let t = World::new("made").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let releases = releases(&t);
    publish(repo.dir(), V1, "stacks/docker/x", &releases);
    let _operator = t.operator(&[]);
    let named = json!({"autoSubscribe": false, "versions": ["v1"]});
    let mut of_directory = source(&releases);
    json_patch::merge(&mut of_directory, &named);
    for (what, url, spec) in [
        ("listed by a directory", String::new(), source(&releases)),
        ("named, of a directory", String::new(), of_directory),
        ("named, of Git", repo.url(), named),
    ] {
        let from = t.audit_mark().await;
        t.create_stack("x", &url, spec).await;
        let release = t.release_ready(V1).await;
        let noted = release.annotations();
        let artifact = release.status.clone().unwrap().artifact.unwrap();
        assert_eq!(
            (noted.get(REVISION), noted.get(DIGEST)),
            (Some(&artifact.revision), Some(&artifact.digest)),
            "{what}"
        );
        if let Some((from, to)) = from.zip(t.audit_mark().await) {
            let all = t.requests(from, to);
            // A second pass may come before the watch shows what the first one made.
            let is_change = |request: &&Request| {
                request.is_write() && request.is_done() && request.resource == "clusterstackreleases"
            };
            let changes: Vec<&Request> = all.iter().filter(is_change).collect();
            assert!(matches!(changes[..], [one] if one.verb == "create"), "{what}: {changes:?}");
        }
        t.delete_stack("x").await;
        t.stack_gone("x").await;
    }
}

#[tokio::test]
async fn a_release_that_changed_in_its_place_is_not_taken_where_its_status_is_lost() {
    const V1: &str = "docker-x-1-34-v1";
    let t = World::new("replacedlost").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let releases = releases(&t);
    publish(repo.dir(), V1, "stacks/docker/x", &releases);
    let operator = t.operator(&[]);
    t.create_stack("x", "", source(&releases)).await;
    t.ready("x", "v1").await;
    let before = t.config_map(V1).await;
    operator.terminate().await;
    let chart = releases.join(V1).join("cluster-class/values.yaml");
    fs::write(&chart, "color: red\n").unwrap();
    let lose = || async {
        let lost = Patch::Merge(json!({"status": null}));
        t.releases().patch_status(V1, &PatchParams::default(), &lost).await.unwrap();
    };
    lose().await;
    let operator = t.operator(&[]);
    t.release_says(V1, ConditionType::ArtifactChanged, "True", "ArtifactChanged").await;
    t.ready("x", "v1").await;
    assert_eq!(t.config_map(V1).await, before);
    // Nor where nothing has what was applied.
    operator.terminate().await;
    fs::remove_dir_all(t.store()).unwrap();
    lose().await;
    let _operator = t.operator(&[]);
    let message = t.release_says(V1, ConditionType::Stalled, "True", "ArtifactChanged").await;
    assert!(message.contains("what is applied stays"), "{message}");
    assert_eq!(t.config_map(V1).await, before);
    // Put back, it is what was applied.
    fs::write(&chart, "color: blue\n").unwrap();
    t.look_again("x").await;
    t.ready("x", "v1").await;
    assert_eq!(t.config_map(V1).await.unwrap()["data"], before.unwrap()["data"]);
}
