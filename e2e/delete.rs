//! Deletion: nothing that is in use, everything else, in order.

use std::time::Duration;

use clusterstack::api::cluster_stack_release::Resource;
use clusterstack::api::{API_VERSION, ConditionType, DELETION_POLICY, Reason};
use clusterstack::core::ownership::Owner;
use kube::api::{DeleteParams, Patch, PatchParams, PropagationPolicy};
use serde_json::{Value, json};

use crate::harness::{
    CLASS, CLUSTER_API, INFRASTRUCTURE, Operator, Proxy, Repo, SETTINGS, Weather, World, check, cluster, wait_for,
};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";
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

async fn are_there(t: &World, expected: bool) {
    for (version, kind) in ALL {
        assert_eq!(t.get(version, kind, V1).await.is_some(), expected, "{kind}");
    }
}

#[tokio::test]
async fn a_stack_that_nobody_uses_takes_everything_along() {
    let t = World::new("unused").await;
    let _operator = t.operator(&[]);
    ready(&t).await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    t.release_gone(V1).await;
    are_there(&t, false).await;
}

#[tokio::test]
async fn a_stack_that_is_deleted_while_it_begins_takes_everything_along() {
    let t = World::new("begins").await;
    let _operator = t.operator(&[]);
    let repo = t.repo();
    repo.release(V1, &format!("{CLASS}{}", SETTINGS.replace("size: large", "size: {{ randAlphaNum 20 }}")));
    for moment in [0, 50, 150, 300, 500, 800, 1200, 2000] {
        t.create_stack("x", &repo.url(), json!({})).await;
        tokio::time::sleep(Duration::from_millis(moment)).await;
        t.delete_stack("x").await;
        t.stack_gone("x").await;
        // A pass that had begun may make the release a moment later: it goes as its owner did.
        t.release_gone(V1).await;
        wait_for(format!("all to go that was begun for {moment} ms"), || async {
            let mut left = Vec::new();
            for (version, kind) in ALL {
                left.extend(t.get(version, kind, V1).await.map(|_| kind));
            }
            left.extend(t.get("v1", "Secret", "x-clusterstack-seed").await.map(|_| "Secret"));
            left.extend(
                t.releases().get_opt(V1).await.map_err(|error| error.to_string())?.map(|_| "ClusterStackRelease"),
            );
            check(left.is_empty(), left)
        })
        .await;
    }
}

#[tokio::test]
async fn a_stack_in_use_waits_names_the_cluster_and_goes_on_by_itself() {
    let t = World::new("inuse").await;
    let _operator = t.operator(&[]);
    ready(&t).await;
    t.apply(&cluster("shop", V1)).await;
    t.delete_stack("x").await;
    let message = t.stack_says("x", ConditionType::Ready, "False", "InUse").await;
    assert!(message.contains(&format!("Cluster {}/shop", t.namespace)), "{message}");
    t.look_again("x").await;
    are_there(&t, true).await;

    t.delete(CLUSTER_API, "Cluster", "shop").await;
    t.stack_gone("x").await;
    are_there(&t, false).await;
}

#[tokio::test]
async fn of_two_stacks_that_are_the_same_the_second_waits_until_the_first_is_gone() {
    let t = World::new("twice").await;
    let _operator = t.operator(&[]);
    let repo = ready(&t).await;
    t.create_stack("again", &repo.url(), json!({})).await;
    let message = t.stack_says("again", ConditionType::Ready, "False", "FailedToCreateOrUpdate").await;
    assert!(message.contains(&format!("{V1} is there already and belongs to ClusterStack x")), "{message}");
    assert!(!message.contains("Status"), "{message}");
    are_there(&t, true).await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    t.ready("again", "v1").await;
    are_there(&t, true).await;
}

#[tokio::test]
async fn a_release_in_use_that_is_deleted_by_hand_waits_too() {
    let t = World::new("relinuse").await;
    let _operator = t.operator(&[]);
    ready(&t).await;
    t.apply(&cluster("shop", V1)).await;
    t.delete(API_VERSION, "ClusterStackRelease", V1).await;
    let message = t.release_says(V1, ConditionType::Ready, "False", "InUse").await;
    assert!(message.contains("shop"), "{message}");
    are_there(&t, true).await;
    t.delete(CLUSTER_API, "Cluster", "shop").await;
    // It goes, and comes anew, for the ClusterStack still wants it.
    t.release(V1, "to be made anew", |release| {
        let deleting = release.metadata.deletion_timestamp.is_some();
        crate::harness::check(!deleting && release.status.as_ref().is_some_and(|s| s.ready), &release.metadata)
    })
    .await;
}

#[tokio::test]
async fn what_an_older_release_in_use_has_too_does_not_go_with_a_newer_one() {
    let t = World::new("common").await;
    let _operator = t.operator(&[]);
    let repo = t.repo();
    let with = |color: &str| {
        format!("{CLASS}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: common}}\ndata: {{color: {color}}}\n")
    };
    repo.release(V1, &with("one"));
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.apply(&cluster("shop", V1)).await;
    let uid = t.config_map("common").await.unwrap()["metadata"]["uid"].clone();
    let is = async |color: &str| {
        let what = format!("the common object to be {color}");
        wait_for(what, async || {
            let found = t.in_config_map("common", "/data/color").await;
            check(found == color, &found)
        })
        .await;
    };
    repo.release(V2, &with("two"));
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    is("two").await;
    // Nobody uses the newer one: it goes, and what the older one has stays, as the older one wants it.
    repo.release("docker-x-1-34-v3", CLASS);
    t.look_again("x").await;
    t.release_gone(V2).await;
    is("one").await;
    t.release_ready(V1).await;
    // Left behind by one that is newer and gone, it is the older one's again.
    repo.release("docker-x-1-34-v4", &with("four"));
    t.look_again("x").await;
    is("four").await;
    let four = (API_VERSION, "ClusterStackRelease", "docker-x-1-34-v4");
    t.change("e2e", four, json!({"metadata": {"annotations": {DELETION_POLICY: "orphan"}}})).await;
    t.change_stack("x", json!({"spec": {"autoSubscribe": false, "versions": ["v1"]}})).await;
    t.delete(four.0, four.1, four.2).await;
    t.release_gone(four.2).await;
    t.look_again("x").await;
    is("one").await;
    t.release_ready(V1).await;
    assert_eq!(t.config_map("common").await.unwrap()["metadata"]["uid"], uid, "it was never deleted");
    t.delete(CLUSTER_API, "Cluster", "shop").await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    assert!(t.config_map("common").await.is_none(), "nobody is left who has it");
}

#[tokio::test]
async fn a_release_that_is_deleted_while_a_cluster_uses_it_is_looked_after() {
    let t = World::new("lookafter").await;
    let _operator = t.operator(&[]);
    ready(&t).await;
    t.apply(&cluster("shop", V1)).await;
    for policy in [PropagationPolicy::Background, PropagationPolicy::Foreground] {
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        t.releases().delete(V1, &params).await.unwrap();
        t.release_says(V1, ConditionType::Ready, "False", "InUse").await;
        let template = (INFRASTRUCTURE, "DockerMachineTemplate");
        t.delete(template.0, template.1, V1).await;
        wait_for("the template to be put back", || async {
            let there = t.get(template.0, template.1, V1).await;
            check(there.is_some_and(|object| object["metadata"]["deletionTimestamp"] == Value::Null), template)
        })
        .await;
        t.event("DriftCorrected", "DockerMachineTemplate").await;
        t.release(V1, "to say that all is there", |release| {
            let status = release.status.clone().unwrap_or_default();
            let is_synced = |row: &Resource| row.reason.is_none();
            check(status.resources.len() == ALL.len() && status.resources.iter().all(is_synced), &status)
        })
        .await;
        let message = t.release_says(V1, ConditionType::Ready, "False", "InUse").await;
        assert!(message.contains("shop"), "{message}");
    }
    t.delete(CLUSTER_API, "Cluster", "shop").await;
    t.release(V1, "to be made anew", |release| {
        let is_going = release.metadata.deletion_timestamp.is_some();
        check(!is_going && release.status.as_ref().is_some_and(|status| status.ready), &release.metadata)
    })
    .await;
}

#[tokio::test]
async fn a_release_of_which_nothing_is_told_any_more_waits_for_who_uses_its_class_too() {
    let t = World::new("untold").await;
    let operator = t.operator(&[]);
    let repo = t.repo();
    // Its name is no release's, so that its inventory alone tells whose it is.
    let named = "name: {{ .Release.Name }}-{{ .Chart.Version }}";
    assert!(CLASS.contains(named), "{CLASS}");
    let (before, class) = CLASS.split_once("kind: ClusterClass").unwrap();
    repo.release(V1, &format!("{before}kind: ClusterClass{}{SETTINGS}", class.replacen(named, "name: odd", 1)));
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.apply(&cluster("shop", "odd")).await;
    operator.kill();
    let nothing = Patch::Merge(json!({"status": null}));
    t.releases().patch_status(V1, &PatchParams::default(), &nothing).await.unwrap();
    t.delete(API_VERSION, "ClusterStackRelease", V1).await;

    let _operator = t.operator(&[]);
    let message = t.release_says(V1, ConditionType::Ready, "False", "InUse").await;
    assert!(message.contains("shop"), "{message}");
    assert!(t.get(CLUSTER_API, "ClusterClass", "odd").await.is_some());
    t.delete_stack("x").await;
    t.delete(CLUSTER_API, "Cluster", "shop").await;
    t.stack_gone("x").await;
    assert!(t.get(CLUSTER_API, "ClusterClass", "odd").await.is_none());
}

#[tokio::test]
async fn cluster_classes_go_first_and_are_waited_for() {
    let t = World::new("order").await;
    let _operator = t.operator(&[]);
    ready(&t).await;
    let class = (CLUSTER_API, "ClusterClass", V1);
    t.change("guard", class, json!({"metadata": {"finalizers": ["e2e.example.com/guard"]}})).await;
    t.delete_stack("x").await;
    let message = t.release_says(V1, ConditionType::Ready, "False", "Deleting").await;
    assert!(message.contains("ClusterClass"), "{message}");
    for (version, kind) in &ALL[1..] {
        let object = t.get(version, kind, V1).await.unwrap_or_else(|| panic!("{kind} went before the ClusterClass"));
        assert_eq!(object["metadata"]["deletionTimestamp"], Value::Null, "{kind}");
    }
    t.change("guard", class, json!({"metadata": {"finalizers": null}})).await;
    t.stack_gone("x").await;
    are_there(&t, false).await;
}

#[tokio::test]
async fn a_policy_that_is_none_holds_the_deletion_until_it_is_corrected() {
    let t = World::new("oddpolicy").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let policy = |policy: &str| json!({"metadata": {"annotations": {DELETION_POLICY: policy}}});
    t.change_stack("x", policy("orphaned")).await;
    t.delete(API_VERSION, "ClusterStack", "x").await;
    let message = t.release_says(V1, ConditionType::Ready, "False", "SpecInvalid").await;
    assert!(message.contains("\"orphaned\"") && message.contains("nothing is deleted"), "{message}");
    assert!(t.config_map(V1).await.is_some());
    t.change_stack("x", policy("Orphan")).await;
    t.gone(API_VERSION, "ClusterStack", "x").await;
    assert!(t.config_map(V1).await.is_some());
}

#[tokio::test]
async fn the_orphan_policy_leaves_what_was_applied() {
    let t = World::new("orphan").await;
    let _operator = t.operator(&[]);
    ready(&t).await;
    t.apply(&cluster("shop", V1)).await;
    t.change_stack("x", json!({"metadata": {"annotations": {DELETION_POLICY: "orphan"}}})).await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    t.release_gone(V1).await;
    are_there(&t, true).await;
}

#[tokio::test]
async fn deletion_needs_neither_the_source_nor_the_store() {
    let t = World::new("nosource").await;
    let operator = t.operator(&[]);
    let repo = ready(&t).await;
    operator.kill();
    std::fs::remove_dir_all(repo.dir()).unwrap();
    std::fs::remove_dir_all(t.store()).unwrap();
    t.delete_stack("x").await;
    let _operator = t.operator(&[]);
    t.stack_gone("x").await;
    are_there(&t, false).await;
}

#[tokio::test]
async fn releases_that_never_rendered_go_by_few_searches_for_what_they_applied() {
    const STACKS: usize = 12;
    let t = World::new("never").await;
    let proxy = Proxy::start(t.client.clone(), t.dir()).await;
    proxy.set(Weather::Fair);
    let _operator = Operator::start(&t, proxy.kubeconfig(), &[]);
    let repo = t.repo();
    let names: Vec<String> = (0..STACKS).map(|n| format!("x{n}")).collect();
    for name in &names {
        repo.release(&format!("docker-{name}-1-34-v1"), "{{ fail \"on purpose\" }}");
    }
    for name in &names {
        t.create_stack(name, &repo.url(), json!({"name": name})).await;
    }
    for name in &names {
        t.stack_says(name, ConditionType::Ready, "False", "ReleaseNotReady").await;
    }
    let before = proxy.requests();
    for name in &names {
        t.delete_stack(name).await;
    }
    for name in &names {
        t.stack_gone(name).await;
        t.release_gone(&format!("docker-{name}-1-34-v1")).await;
    }
    // A search asks for each kind, of which there are more than a hundred.
    let requests = proxy.requests() - before;
    assert!(requests < STACKS * 100, "{requests} requests");
}

#[tokio::test]
async fn what_an_earlier_release_of_that_name_left_goes_with_one_that_never_rendered() {
    let t = World::new("earlier").await;
    let operator = t.operator(&[]);
    let repo = ready(&t).await;
    // As somebody does who can't wait, or a restore without the status and the release.
    operator.kill();
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    t.delete_stack("x").await;
    t.stacks().patch("x", &PatchParams::default(), &free).await.unwrap();
    t.stack_gone("x").await;
    t.delete(API_VERSION, "ClusterStackRelease", V1).await;
    t.releases().patch(V1, &PatchParams::default(), &free).await.unwrap();
    t.release_gone(V1).await;
    are_there(&t, true).await;

    let _operator = t.operator(&[]);
    repo.release(V1, "{{ fail \"on purpose\" }}");
    t.create_stack("x", &repo.url(), json!({})).await;
    t.release_says(V1, ConditionType::Ready, "False", "RenderFailed").await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    are_there(&t, false).await;
}

#[tokio::test]
async fn copies_with_our_labels_stay_where_an_inventory_was_lost() {
    let t = World::new("lostcopy").await;
    let operator = t.operator(&[]);
    ready(&t).await;
    let labels = t.get("v1", "ConfigMap", V1).await.unwrap()["metadata"]["labels"].clone();
    let copy = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "copied", "labels": labels}});
    t.apply_as("somebody", &copy).await;
    operator.kill();
    let nothing = Patch::Merge(json!({"status": null}));
    t.releases().patch_status(V1, &PatchParams::default(), &nothing).await.unwrap();
    t.delete_stack("x").await;
    // Both go before anybody looks: a pass that rebuilt the inventory would leave no doubt, and nothing to tell.
    t.delete(API_VERSION, "ClusterStackRelease", V1).await;
    let _operator = t.operator(&[]);
    t.stack_gone("x").await;
    are_there(&t, false).await;
    assert!(t.config_map("copied").await.is_some());
    t.event("Orphaned", "the operator never applied it").await;
}

#[tokio::test]
async fn what_a_release_applied_is_found_where_another_process_deletes_it_and_no_status_tells() {
    let t = World::new("lost").await;
    let operator = t.operator(&[]);
    ready(&t).await;
    operator.kill();
    let nothing = Patch::Merge(json!({"status": null}));
    t.releases().patch_status(V1, &PatchParams::default(), &nothing).await.unwrap();
    t.delete_stack("x").await;
    let _operator = t.operator(&[]);
    t.stack_gone("x").await;
    are_there(&t, false).await;
}

#[tokio::test]
async fn what_helm_would_keep_is_kept() {
    let t = World::new("keep").await;
    let _operator = t.operator(&[]);
    let repo = t.repo();
    let kept =
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: kept\n  annotations: {helm.sh/resource-policy: keep}\n---\n";
    repo.release(V1, &format!("{kept}{SETTINGS}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    assert!(t.get("v1", "Secret", "kept").await.is_some());
    assert!(t.config_map(V1).await.is_none());
}

#[tokio::test]
async fn what_was_kept_of_a_stack_is_taken_over_by_a_later_release_of_it() {
    let t = World::new("again").await;
    let _operator = t.operator(&[]);
    let repo = t.repo();
    let kept = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: kept\n  annotations: {helm.sh/resource-policy: keep}\n---\n";
    repo.release(V1, &format!("{kept}{SETTINGS}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    assert!(t.config_map("kept").await.is_some());
    repo.release(V2, &format!("{kept}{SETTINGS}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v2").await;
    let label = t.in_config_map("kept", "/metadata/labels/clusterstack.x-k8s.io~1owner-name").await;
    assert_eq!(label, V2);
}

#[tokio::test]
async fn releases_that_were_orphaned_stay_and_belong_to_the_stack_when_it_comes_again() {
    let t = World::new("orphaned").await;
    if !t.plane.collects_garbage() {
        return;
    }
    let _operator = t.operator(&[]);
    ready(&t).await;
    let uid = t.releases().get(V1).await.unwrap().metadata.uid;
    let url = t.stacks().get("x").await.unwrap().spec.source.unwrap().git.unwrap().url;
    let params = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    t.stacks().delete("x", &params).await.unwrap();
    t.stack_gone("x").await;
    t.release_says(V1, ConditionType::Ready, "False", "OwnerMissing").await;
    assert!(t.get(CLUSTER_API, "ClusterClass", V1).await.is_some());
    t.create_stack("x", &url, json!({})).await;
    t.ready("x", "v1").await;
    let release = t.releases().get(V1).await.unwrap();
    assert_eq!((release.metadata.uid, release.metadata.owner_references.map(|owners| owners.len())), (uid, Some(1)));
}

#[tokio::test]
async fn a_seed_goes_with_the_last_release_that_its_stack_left() {
    let t = World::new("leftseed").await;
    let _operator = t.operator(&[]);
    let repo = t.repo();
    let drawn = format!("{CLASS}{}", SETTINGS.replace("size: large", "size: {{ randAlphaNum 20 }}"));
    repo.release(V1, &drawn);
    // The older one stays beside the newer one.
    t.create_stack("x", &repo.url(), json!({"versions": ["v1"]})).await;
    t.ready("x", "v1").await;
    repo.release(V2, &drawn);
    t.look_again("x").await;
    t.release_ready(V2).await;
    t.stacks().delete("x", &orphaning()).await.unwrap();
    t.stack_gone("x").await;
    t.delete(API_VERSION, "ClusterStackRelease", V1).await;
    t.release_gone(V1).await;
    assert!(t.get("v1", "Secret", "x-clusterstack-seed").await.is_some());
    t.delete(API_VERSION, "ClusterStackRelease", V2).await;
    t.release_gone(V2).await;
    assert!(t.get("v1", "Secret", "x-clusterstack-seed").await.is_none());
}

#[tokio::test]
async fn a_seed_goes_when_the_last_two_releases_of_a_stack_that_is_gone_go_together() {
    let t = World::new("lasttwo").await;
    let _operator = t.operator(&[]);
    let repo = t.repo();
    let drawn = format!("{CLASS}{}", SETTINGS.replace("size: large", "size: {{ randAlphaNum 20 }}"));
    for round in 0..4 {
        repo.release(V1, &drawn);
        repo.release(V2, &drawn);
        t.create_stack("x", &repo.url(), json!({"versions": ["v1", "v2"]})).await;
        t.release_ready(V1).await;
        t.release_ready(V2).await;
        t.stacks().delete("x", &orphaning()).await.unwrap();
        t.stack_gone("x").await;
        tokio::join!(
            t.delete(API_VERSION, "ClusterStackRelease", V1),
            t.delete(API_VERSION, "ClusterStackRelease", V2)
        );
        t.release_gone(V1).await;
        t.release_gone(V2).await;
        wait_for(format!("the seed to go in round {round}"), || async {
            check(t.get("v1", "Secret", "x-clusterstack-seed").await.is_none(), "it is there")
        })
        .await;
    }
}

/// `--cascade=orphan`.
fn orphaning() -> DeleteParams {
    DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() }
}

#[tokio::test]
async fn releases_outlive_stacks_that_are_orphaned_and_made_again_at_once() {
    let t = World::new("orphans").await;
    let _operator = t.operator(&[]);
    let repo = t.repo();
    repo.release(V1, &format!("{CLASS}{SETTINGS}"));
    t.create_stack("x", &repo.url(), json!({"versions": ["v1"]})).await;
    t.ready("x", "v1").await;
    let release = t.releases().get(V1).await.unwrap().metadata.uid;
    let class = t.get(CLUSTER_API, "ClusterClass", V1).await.unwrap()["metadata"]["uid"].clone();
    for round in 0..12 {
        t.stacks().delete("x", &orphaning()).await.unwrap();
        t.stack_gone("x").await;
        t.create_stack("x", &repo.url(), json!({"versions": ["v1"]})).await;
        // Somewhere between what its watch tells and what is done about it.
        tokio::time::sleep(Duration::from_millis(12 * round)).await;
    }
    t.stacks().delete("x", &orphaning()).await.unwrap();
    t.stack_gone("x").await;
    t.release_says(V1, ConditionType::Ready, "False", "OwnerMissing").await;
    assert_eq!(t.releases().get(V1).await.unwrap().metadata.uid, release);
    assert_eq!(t.get(CLUSTER_API, "ClusterClass", V1).await.unwrap()["metadata"]["uid"], class);
}

#[tokio::test]
async fn what_somebody_took_over_is_left_when_the_stack_goes() {
    let t = World::new("taken").await;
    let operator = t.operator(&[]);
    ready(&t).await;
    operator.kill();
    let labels = json!({"metadata": {"labels": {"clusterstack.x-k8s.io/owner-name": "another"}}});
    t.change("another", ("v1", "ConfigMap", V1), labels).await;
    t.delete_stack("x").await;
    let _operator = t.operator(&[]);
    t.stack_gone("x").await;
    assert!(t.config_map(V1).await.is_some());
    assert!(t.get(CLUSTER_API, "ClusterClass", V1).await.is_none());
}

#[tokio::test]
async fn what_an_earlier_release_of_that_name_left_is_found_and_pruned() {
    let t = World::new("again").await;
    let _operator = t.operator(&[]);
    let owner = Owner { kind: "ClusterStackRelease".into(), namespace: t.namespace.clone(), name: V1.into() };
    let labels: serde_json::Map<_, _> =
        owner.labels().map(|(key, value)| (key.to_owned(), json!(value))).into_iter().collect();
    for name in [V1, "more"] {
        let left = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}});
        t.apply_as("clusterstack", &left).await;
    }
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    // The process that makes the release expects nothing to be there.
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.gone("v1", "ConfigMap", "more").await;
    t.event("Pruned", "more").await;
    assert!(t.config_map(V1).await.is_some());
}

#[tokio::test]
async fn what_could_never_be_applied_is_not_deleted() {
    let t = World::new("never").await;
    let mut theirs =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": V1}, "data": {"color": "theirs"}});
    theirs["immutable"] = true.into();
    // As `kubectl apply --server-side` does, and the Go operator did.
    t.apply_as("kubectl", &theirs).await;
    let _operator = t.operator(&[]);
    let repo = t.repo();
    repo.release(V1, &format!("{CLASS}{SETTINGS}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    t.release(V1, "to be refused its ConfigMap", |release| {
        let rows = release.status.clone().unwrap_or_default().resources;
        let is_refused = |row: &Resource| row.kind == "ConfigMap" && row.reason == Some(Reason::ImmutableField);
        check(rows.iter().any(is_refused), &rows)
    })
    .await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    assert_eq!(t.in_config_map(V1, "/data/color").await, "theirs");
    assert!(t.get(CLUSTER_API, "ClusterClass", V1).await.is_none());
}

#[tokio::test]
async fn a_suspended_stack_can_still_be_deleted() {
    let t = World::new("suspdel").await;
    let _operator = t.operator(&[]);
    ready(&t).await;
    t.change_stack("x", json!({"spec": {"suspend": true}})).await;
    t.stack_says("x", ConditionType::Ready, "True", "Suspended").await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    are_there(&t, false).await;
}
