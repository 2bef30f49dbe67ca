//! An operator that is killed at any moment is replaced by one that goes on, and does nothing where nothing is to do.

use clusterstack::api::API_VERSION;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::{
    CLASS, CLUSTER_API, INFRASTRUCTURE, Operator, Repo, Request, SETTINGS, World, check, skipped, wait_for,
};

const V1: &str = "docker-x-1-34-v1";
const ALL: [(&str, &str); 4] = [
    (CLUSTER_API, "ClusterClass"),
    (INFRASTRUCTURE, "DockerClusterTemplate"),
    (INFRASTRUCTURE, "DockerMachineTemplate"),
    ("v1", "ConfigMap"),
];

async fn ready(t: &World) -> Repo {
    let repo = t.repo();
    repo.release(V1, &format!("{CLASS}{SETTINGS}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    repo
}

/// UIDs and versions of all that was applied.
async fn versions(t: &World) -> Vec<(Value, Value)> {
    let mut all = Vec::new();
    for (version, kind) in ALL {
        let object = t.get(version, kind, V1).await.unwrap_or_default();
        all.push((object["metadata"]["uid"].clone(), object["metadata"]["resourceVersion"].clone()));
    }
    all
}

/// Two passes over each of our objects: the first ones after a start, and those of an interval later.
async fn settled(operator: &Operator) {
    tokio::join!(operator.passes("ClusterStack", 2), operator.passes("ClusterStackRelease", 2));
}

/// Runs `operator` until it is settled; what it wrote meanwhile. `None` without an audit log.
async fn writes_until_settled(t: &World, start: impl AsyncFnOnce() -> Operator) -> (Operator, Option<Vec<Request>>) {
    let from = t.audit_mark().await;
    let operator = start().await;
    settled(&operator).await;
    let to = t.audit_mark().await;
    let writes = from.zip(to).map(|(from, to)| {
        // Where nothing happens, nothing is asked for: what was before shows that requests are found.
        assert!(!t.requests(0, to).is_empty(), "the audit log holds no request of the operator");
        let mut all = t.requests(from, to);
        all.retain(Request::is_write);
        all
    });
    if writes.is_none() {
        skipped("writes are not counted, this API server's audit log is not at hand");
    }
    (operator, writes)
}

#[tokio::test]
async fn killed_at_any_moment_the_next_one_finishes_the_work() {
    let t = World::new("kill").await;
    let repo = t.repo();
    // The moments, as they can be seen from outside; each kill comes right after one.
    for (round, moment) in ["finalizer", "release", "intent", "object", "class", "status", "ready"].iter().enumerate() {
        let version = round + 1;
        let name = format!("docker-x-1-34-v{version}");
        repo.release(&name, &format!("{CLASS}{SETTINGS}"));
        let operator = t.operator(&[]);
        if round == 0 {
            t.create_stack("x", &repo.url(), json!({})).await;
        } else {
            t.look_again("x").await;
        }
        wait_for(format!("the moment {moment} of {name}"), || async {
            let stack = t.stacks().get("x").await.map_err(|e| e.to_string())?;
            let release = t.releases().get_opt(&name).await.map_err(|e| e.to_string())?;
            let status = release.as_ref().and_then(|release| release.status.clone()).unwrap_or_default();
            let is = match *moment {
                "finalizer" => !stack.finalizers().is_empty(),
                "release" => release.is_some(),
                "intent" => !status.resources.is_empty(),
                "object" => t.config_map(&name).await.is_some(),
                "class" => t.get(CLUSTER_API, "ClusterClass", &name).await.is_some(),
                "status" => status.resources.iter().any(|row| !row.digest.is_empty()),
                _ => status.ready,
            };
            check(is, status)
        })
        .await;
        operator.kill();
        let operator = t.operator(&[]);
        t.ready("x", &format!("v{version}")).await;
        let release = t.release_ready(&name).await;
        assert_eq!(release.status.unwrap().resources.len(), 4, "{moment}");
        operator.kill();
    }
    // Killed while it deletes.
    let operator = t.operator(&[]);
    t.delete_stack("x").await;
    wait_for("the deletion to begin", || async {
        check(t.get(CLUSTER_API, "ClusterClass", "docker-x-1-34-v7").await.is_none(), "the ClusterClass is there")
    })
    .await;
    operator.kill();
    let _operator = t.operator(&[]);
    t.stack_gone("x").await;
    for (version, kind) in ALL {
        let left = t.api(version, kind).list(&kube::api::ListParams::default()).await.unwrap();
        let ours: Vec<String> =
            left.items.iter().map(ResourceExt::name_any).filter(|name| name.starts_with("docker-x")).collect();
        assert!(ours.is_empty(), "{kind}: {ours:?}");
    }
}

#[tokio::test]
async fn a_restart_with_nothing_changed_writes_nothing_but_leases() {
    let t = World::new("quiet").await;
    let operator = t.operator(&[]);
    ready(&t).await;
    settled(&operator).await;
    operator.kill();
    let before = versions(&t).await;
    let flags = ["--leader-elect", "--leader-elect-namespace", &t.namespace];
    let (_operator, writes) = writes_until_settled(&t, async || t.operator(&flags)).await;
    if let Some(writes) = writes {
        let others: Vec<_> = writes.iter().filter(|request| request.resource != "leases").collect();
        assert!(others.is_empty(), "{others:#?}");
        assert!(!writes.is_empty(), "not even the lease was seen");
    }
    assert_eq!(versions(&t).await, before);
}

#[tokio::test]
async fn a_quiet_stack_is_not_written_to() {
    let t = World::new("still").await;
    let operator = t.operator(&[]);
    ready(&t).await;
    settled(&operator).await;
    let (_operator, writes) = writes_until_settled(&t, async || operator).await;
    assert_eq!(writes.unwrap_or_default(), []);
}

#[tokio::test]
async fn a_quiet_release_is_not_read_either() {
    let t = World::new("unread").await;
    let operator = t.operator(&[]);
    ready(&t).await;
    settled(&operator).await;
    let from = t.audit_mark().await;
    // Passes by the clock.
    settled(&operator).await;
    let Some((from, to)) = from.zip(t.audit_mark().await) else {
        return skipped("reads are not counted, this API server's audit log is not at hand");
    };
    let reads: Vec<Request> = t.requests(from, to).into_iter().filter(|request| request.verb != "watch").collect();
    assert_eq!(reads, []);
    // What happens then is noticed all the same.
    let before = versions(&t).await;
    for (version, kind) in ALL {
        t.delete(version, kind, V1).await;
    }
    wait_for("all to be back", || async {
        let now = versions(&t).await;
        check(now.iter().zip(&before).all(|(now, before)| now.0.is_string() && now.0 != before.0), now)
    })
    .await;
    // Whoever asks has all of it looked at.
    let from = t.audit_mark().await.unwrap_or_default();
    t.look_again("x").await;
    wait_for("a look", || async {
        let requests = t.requests(from, t.audit_end());
        check(requests.iter().any(|request| request.verb == "get" && request.resource == "configmaps"), requests)
    })
    .await;
}

/// Clears the status of the release, as a move or a restore does.
async fn clear_status(t: &World) {
    let patch = Patch::Merge(json!({"status": null}));
    t.releases().patch_status(V1, &PatchParams::default(), &patch).await.unwrap();
    t.release(V1, "to have no status", |release| {
        check(release.status.as_ref().is_none_or(|s| s.resources.is_empty()), &release.status)
    })
    .await;
}

#[tokio::test]
async fn a_lost_status_is_rebuilt_and_nothing_is_applied_anew() {
    let t = World::new("status").await;
    let operator = t.operator(&[]);
    ready(&t).await;
    let before = versions(&t).await;
    let resources = t.release_ready(V1).await.status.unwrap().resources;
    operator.kill();
    clear_status(&t).await;
    let (_operator, writes) = writes_until_settled(&t, async || t.operator(&[])).await;
    t.ready("x", "v1").await;
    assert_eq!(t.release_ready(V1).await.status.unwrap().resources, resources);
    assert_eq!(versions(&t).await, before);
    let is_ours = |request: &&Request| request.resource.starts_with("clusterstack") || request.resource == "events";
    let others: Vec<_> = writes.iter().flatten().filter(|request| !is_ours(request)).collect();
    assert!(others.is_empty(), "{others:#?}");
}

#[tokio::test]
async fn a_status_lost_while_the_operator_runs_is_rebuilt_each_time() {
    let t = World::new("again").await;
    let _operator = t.operator(&[]);
    ready(&t).await;
    let before = versions(&t).await;
    for _ in 0..2 {
        let patch = Patch::Merge(json!({"status": null}));
        t.releases().patch_status(V1, &PatchParams::default(), &patch).await.unwrap();
        let release = t.release_ready(V1).await;
        assert_eq!(release.status.unwrap().resources.len(), 4);
        assert_eq!(versions(&t).await, before);
    }
}

#[tokio::test]
async fn a_release_without_status_is_deleted_with_all_it_applied() {
    let t = World::new("lostdel").await;
    let operator = t.operator(&[]);
    ready(&t).await;
    operator.kill();
    clear_status(&t).await;
    t.delete_stack("x").await;
    let _operator = t.operator(&[]);
    t.stack_gone("x").await;
    for (version, kind) in ALL {
        assert!(t.get(version, kind, V1).await.is_none(), "{kind} is left");
    }
}

#[tokio::test]
async fn a_lost_store_is_filled_again() {
    let t = World::new("store").await;
    let operator = t.operator(&[]);
    ready(&t).await;
    operator.kill();
    let before = versions(&t).await;
    std::fs::remove_dir_all(t.store()).unwrap();
    let operator = t.operator(&[]);
    settled(&operator).await;
    t.ready("x", "v1").await;
    assert_eq!(versions(&t).await, before);
    // And a file of it that is damaged.
    operator.kill();
    damage(&t.store());
    let operator = t.operator(&[]);
    settled(&operator).await;
    t.ready("x", "v1").await;
    assert_eq!(versions(&t).await, before);
}

/// Cuts every file of a directory in half.
fn damage(dir: &std::path::Path) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.path().is_dir() {
            damage(&entry.path());
        } else {
            let content = std::fs::read(entry.path()).unwrap();
            let _ = std::fs::remove_file(entry.path());
            std::fs::write(entry.path(), &content[..content.len() / 2]).unwrap();
        }
    }
}

#[tokio::test]
async fn a_stack_that_was_made_anew_keeps_its_releases() {
    let t = World::new("restore").await;
    let operator = t.operator(&[]);
    let repo = ready(&t).await;
    operator.kill();
    let before = versions(&t).await;
    // As a restore does: the same objects with other UIDs, without status.
    let old = t.get(API_VERSION, "ClusterStackRelease", V1).await.unwrap();
    for kind in ["ClusterStackRelease", "ClusterStack"] {
        let name = if kind == "ClusterStack" { "x" } else { V1 };
        t.change("restore", (API_VERSION, kind, name), json!({"metadata": {"finalizers": null}})).await;
        t.delete(API_VERSION, kind, name).await;
        t.gone(API_VERSION, kind, name).await;
    }
    t.create_stack("x", &repo.url(), json!({})).await;
    let owner = t.stacks().get("x").await.unwrap().metadata.uid;
    let mut reference = old["metadata"]["ownerReferences"][0].clone();
    reference["uid"] = json!(owner);
    let restored = json!({
        "apiVersion": API_VERSION, "kind": "ClusterStackRelease",
        "metadata": {"name": V1, "ownerReferences": [reference], "finalizers": old["metadata"]["finalizers"]},
        "spec": old["spec"],
    });
    t.apply(&restored).await;
    let _operator = t.operator(&[]);
    t.ready("x", "v1").await;
    assert_eq!(versions(&t).await, before);
}
