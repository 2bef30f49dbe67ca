//! A new tag is subscribed and applied; what nobody uses any more is collected.

use clusterstack::api::ConditionType;
use serde_json::json;

use crate::harness::{
    CLASS, CLUSTER_API, INFRASTRUCTURE, Operator, Proxy, QUICK, Repo, SETTINGS, Weather, World, check, cluster,
    cluster_of, wait_for, wait_within,
};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";

fn templates() -> String {
    format!("{CLASS}{SETTINGS}")
}

/// `v1` is ready, and `v2` is tagged.
async fn with_v1_ready(t: &World) -> Repo {
    let repo = t.repo();
    repo.release(V1, &templates());
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    repo
}

/// Why a release is kept, by the summary of its ClusterStack.
async fn kept(t: &World, release: &str, why: &str) {
    t.stack("x", &format!("to keep {release}: {why}"), |stack| {
        let summary = stack.status.clone().unwrap_or_default().summary;
        check(summary.iter().any(|line| line.name == release && line.kept == why), &summary)
    })
    .await;
}

/// What Cluster API writes when the templates of a Cluster are those of its class.
pub(crate) async fn topology_reconciled(t: &World, cluster: &str) {
    let c = t.get(CLUSTER_API, "Cluster", cluster).await.unwrap();
    let done = json!({"type": "TopologyReconciled", "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"});
    let status = json!({"observedGeneration": c["metadata"]["generation"], "conditions": [done]});
    let patch = kube::api::Patch::Merge(json!({"status": status}));
    t.api(CLUSTER_API, "Cluster").patch_status(cluster, &kube::api::PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn a_new_tag_is_noticed_applied_and_the_old_release_collected() {
    let t = World::new("upgrade").await;
    let _operator = t.operator(&[]);
    let repo = with_v1_ready(&t).await;
    repo.release(V2, &templates());
    // Nobody asks: the interval of 10 s brings it.
    t.ready("x", "v2").await;
    t.release_gone(V1).await;
    for (version, kind) in
        [(CLUSTER_API, "ClusterClass"), (INFRASTRUCTURE, "DockerMachineTemplate"), ("v1", "ConfigMap")]
    {
        assert!(t.get(version, kind, V1).await.is_none(), "{kind} of v1 is left");
        assert!(t.get(version, kind, V2).await.is_some(), "{kind} of v2 is missing");
    }
    t.event("ReleaseCreated", V2).await;
    t.event("ReleaseCollected", V1).await;
}

#[tokio::test]
async fn a_release_that_a_cluster_uses_stays_and_goes_when_the_cluster_moves_on() {
    let t = World::new("used").await;
    let _operator = t.operator(&[]);
    let repo = with_v1_ready(&t).await;
    t.apply(&cluster("c", V1)).await;
    repo.release(V2, &templates());
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    kept(&t, V1, "InUse").await;

    t.apply(&cluster("c", V2)).await;
    t.ready("x", "v2").await;
    t.release_gone(V1).await;
    assert!(t.get(CLUSTER_API, "ClusterClass", V1).await.is_none());
}

#[tokio::test]
async fn a_release_whose_inventory_was_lost_stays_while_a_cluster_uses_its_class() {
    let t = World::new("untoldgc").await;
    let operator = t.operator(&[]);
    let repo = t.repo();
    // Its name is no release's, so that the inventory alone tells whose it is.
    let (before, class) = CLASS.split_once("kind: ClusterClass").unwrap();
    let class = class.replacen("name: {{ .Release.Name }}-{{ .Chart.Version }}", "name: odd", 1);
    repo.release(V1, &format!("{before}kind: ClusterClass{class}{SETTINGS}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    t.apply(&cluster("shop", "odd")).await;
    operator.kill();
    let nothing = kube::api::Patch::Merge(json!({"status": null}));
    t.releases().patch_status(V1, &kube::api::PatchParams::default(), &nothing).await.unwrap();
    // Nor can it be had again.
    repo.release(V2, &templates());
    repo.delete_tag(V1);

    let _operator = t.operator(&[]);
    t.release_ready(V2).await;
    kept(&t, V1, "InUse").await;
    t.looked_again("x").await;
    kept(&t, V1, "InUse").await;
    // Nor does anything go with the ClusterStack.
    t.delete_stack("x").await;
    let message = t.stack_says("x", ConditionType::Ready, "False", "InUse").await;
    assert!(message.contains("shop"), "{message}");
    for release in [V1, V2] {
        let release = t.releases().get(release).await.unwrap();
        assert!(release.metadata.deletion_timestamp.is_none(), "{:?}", release.metadata);
    }
    t.delete(CLUSTER_API, "Cluster", "shop").await;
    t.stack_gone("x").await;
    assert!(t.get(CLUSTER_API, "ClusterClass", "odd").await.is_none());
}

#[tokio::test]
async fn a_release_that_a_cluster_names_is_held_without_a_look_at_machines() {
    let t = World::new("named").await;
    let proxy = Proxy::start(t.client.clone(), t.dir()).await;
    proxy.set(Weather::Fair);
    let _operator = Operator::start(&t, proxy.kubeconfig(), &[]);
    let repo = with_v1_ready(&t).await;
    t.apply(&cluster("c", V1)).await;
    repo.release(V2, &templates());
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    kept(&t, V1, "InUse").await;
    proxy.set(Weather::Without("dockermachines"));
    t.looked_again("x").await;
    topology_reconciled(&t, "c").await;
    t.looked_again("x").await;
    kept(&t, V1, "InUse").await;
    assert_eq!(proxy.spoiled(), 0, "machines were asked for");
    proxy.set(Weather::Fair);
    t.delete(CLUSTER_API, "Cluster", "c").await;
    t.release_gone(V1).await;
}

#[tokio::test]
async fn a_cluster_that_still_rolls_out_holds_the_release_it_left() {
    let t = World::new("rollout").await;
    let _operator = t.operator(&[]);
    let repo = with_v1_ready(&t).await;
    t.apply(&cluster("c", V1)).await;
    // As Cluster API does it: a clone of the class's template, a machine of the clone.
    t.apply(&cluster_of("c", "DockerMachineTemplate", "c-md-old", V1)).await;
    t.apply(&cluster_of("c", "DockerMachine", "c-md-old-1", "c-md-old")).await;
    repo.release(V2, &templates());
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;

    t.apply(&cluster("c", V2)).await;
    t.apply(&cluster_of("c", "DockerMachineTemplate", "c-md-new", V2)).await;
    t.apply(&cluster_of("c", "DockerMachine", "c-md-new-1", "c-md-new")).await;
    t.looked_again("x").await;
    kept(&t, V1, "InUse").await;

    // The new machine is there, but the topology is not reconciled and the old machine still runs.
    t.delete(INFRASTRUCTURE, "DockerMachine", "c-md-old-1").await;
    t.looked_again("x").await;
    kept(&t, V1, "InUse").await;

    topology_reconciled(&t, "c").await;
    t.release_gone(V1).await;
}

#[tokio::test]
async fn the_last_old_machine_that_goes_lets_its_release_go() {
    let t = World::new("machine").await;
    let _operator = t.operator(&[]);
    let repo = with_v1_ready(&t).await;
    t.apply(&cluster("c", V1)).await;
    // The clone of v1's template is gone: Cluster API deletes a control plane's before the machines are replaced.
    let mut old = cluster_of("c", "DockerMachine", "c-cp-old", "c-cp-of-v1");
    old["metadata"]["labels"]["cluster.x-k8s.io/control-plane"] = "".into();
    t.apply(&old).await;
    let machine = json!({
        "apiVersion": CLUSTER_API, "kind": "Machine",
        "metadata": {"name": "c-cp-old", "labels": {"cluster.x-k8s.io/cluster-name": "c"}},
        "spec": {
            "clusterName": "c", "bootstrap": {"dataSecretName": "none"},
            "infrastructureRef": {"apiVersion": INFRASTRUCTURE, "kind": "DockerMachine", "name": "c-cp-old"},
        },
    });
    t.apply(&machine).await;
    repo.release(V2, &templates());
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    t.apply(&cluster("c", V2)).await;
    topology_reconciled(&t, "c").await;
    t.looked_again("x").await;
    kept(&t, V1, "InUse").await;

    t.delete(INFRASTRUCTURE, "DockerMachine", "c-cp-old").await;
    t.delete(CLUSTER_API, "Machine", "c-cp-old").await;
    t.release_gone(V1).await;
}

#[tokio::test]
async fn what_is_left_of_a_cluster_holds_releases_of_its_own_namespace_alone() {
    let t = World::new("left").await;
    let other = t.beside("others").await;
    let _operator = t.operator(&[]);
    let repo = with_v1_ready(&t).await;
    // There are Clusters.
    other.apply(&cluster("c", "of-nobody")).await;
    other.apply(&cluster_of("gone", "DockerMachine", "m", V1)).await;
    t.apply(&cluster_of("gone", "DockerMachine", "m", V1)).await;
    repo.release(V2, &templates());
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    kept(&t, V1, "InUse").await;
    t.delete(INFRASTRUCTURE, "DockerMachine", "m").await;
    t.looked_again("x").await;
    t.release_gone(V1).await;
}

#[tokio::test]
async fn releases_in_versions_stay_and_go_when_they_leave_the_spec() {
    let t = World::new("versions").await;
    let _operator = t.operator(&[]);
    let repo = t.repo();
    repo.release(V1, SETTINGS).release(V2, SETTINGS).release("docker-x-1-34-v3", SETTINGS);
    t.create_stack("x", &repo.url(), json!({"versions": ["v1"]})).await;
    t.ready("x", "v3, v1").await;
    kept(&t, V1, "InVersions").await;
    t.change_stack("x", json!({"spec": {"versions": ["v2"]}})).await;
    t.ready("x", "v3, v2").await;
    t.release_gone(V1).await;
}

#[tokio::test]
async fn keep_says_how_many_unused_releases_stay() {
    let t = World::new("keep").await;
    let _operator = t.operator(&[]);
    let repo = with_v1_ready(&t).await;
    t.change_stack("x", json!({"spec": {"keep": 2}})).await;
    repo.release(V2, &templates());
    t.look_again("x").await;
    t.ready("x", "v2, v1").await;
    kept(&t, V1, "Kept").await;
    repo.release("docker-x-1-34-v3", &templates());
    t.look_again("x").await;
    t.ready("x", "v3, v2").await;
    t.release_gone(V1).await;
    t.change_stack("x", json!({"spec": {"keep": 0}})).await;
    t.ready("x", "v3").await;
}

#[tokio::test]
async fn a_broken_new_release_never_takes_away_the_last_good_one() {
    let t = World::new("lastgood").await;
    let _operator = t.operator(&[]);
    let repo = with_v1_ready(&t).await;
    repo.release(V2, "{{ fail \"on purpose\" }}");
    t.look_again("x").await;
    t.stack_says("x", ConditionType::Stalled, "True", "RenderFailed").await;
    let message = t.stack_says("x", ConditionType::Ready, "False", "NewestReleaseNotReady").await;
    assert!(message.contains("on purpose") && message.ends_with("usable: v1"), "{message}");
    t.looked_again("x").await;
    kept(&t, V1, "NewestReady").await;
    assert!(t.config_map(V1).await.is_some());

    // Another broken one: the first broken one goes, the good one stays.
    repo.release("docker-x-1-34-v3", "{{ fail \"again\" }}");
    t.look_again("x").await;
    t.release_gone(V2).await;
    kept(&t, V1, "NewestReady").await;

    repo.release("docker-x-1-34-v4", &templates());
    t.look_again("x").await;
    t.ready("x", "v4").await;
    t.release_gone(V1).await;
}

/// Denies cluster templates in the namespace, as a provider's webhook that is down.
fn deny_templates(t: &World) {
    let (name, rule) = (
        &t.namespace,
        "{apiGroups: [infrastructure.cluster.x-k8s.io], apiVersions: ['*'], operations: [CREATE, UPDATE], resources: [dockerclustertemplates]}",
    );
    let policy = format!(
        "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nmetadata: {{name: {name}}}\n\
         spec: {{matchConstraints: {{resourceRules: [{rule}]}}, validations: [{{expression: 'false', message: not now}}]}}\n---\n\
         apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyBinding\nmetadata: {{name: {name}}}\n\
         spec: {{policyName: {name}, validationActions: [Deny], matchResources: {{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {name}}}}}}}}}\n"
    );
    let file = t.dir().join("policy.yaml");
    std::fs::write(&file, policy).unwrap();
    t.kubectl(&["apply", "-f", file.to_str().unwrap()]);
}

#[tokio::test]
async fn the_last_good_release_stays_while_a_trouble_that_passes_keeps_it_from_ready() {
    let t = World::new("awhile").await;
    let _operator = t.operator(&[]);
    let repo = with_v1_ready(&t).await;
    repo.release(V2, "{{ fail \"on purpose\" }}");
    t.look_again("x").await;
    t.stack_says("x", ConditionType::Ready, "False", "NewestReleaseNotReady").await;

    deny_templates(&t);
    // A policy counts a moment after it is there.
    let denied = || async {
        let object = json!({"apiVersion": INFRASTRUCTURE, "kind": "DockerClusterTemplate", "metadata": {"name": "other"}, "spec": {"template": {"spec": {}}}});
        let params = kube::api::PostParams { dry_run: true, ..kube::api::PostParams::default() };
        let object = serde_json::from_value(object).unwrap();
        let made = t.api(INFRASTRUCTURE, "DockerClusterTemplate").create(&params, &object).await;
        check(made.is_err(), &made)
    };
    wait_for("the policy", denied).await;
    t.delete(INFRASTRUCTURE, "DockerClusterTemplate", V1).await;
    let message = t.release_says(V1, ConditionType::Ready, "False", "FailedToApplyObjects").await;
    assert!(message.contains("not now"), "{message}");
    t.looked_again("x").await;
    kept(&t, V1, "Kept").await;
    assert!(t.config_map(V1).await.is_some());

    t.kubectl(&["delete", "validatingadmissionpolicybinding", &t.namespace]);
    t.release_ready(V1).await;
    t.there(INFRASTRUCTURE, "DockerClusterTemplate", V1).await;
    t.kubectl(&["delete", "validatingadmissionpolicy", &t.namespace]);
}

#[tokio::test]
async fn a_release_keeps_its_finalizer_whoever_takes_it() {
    let t = World::new("held").await;
    let _operator = t.operator(&[]);
    let _repo = with_v1_ready(&t).await;
    let patch = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    t.releases().patch(V1, &kube::api::PatchParams::default(), &patch).await.unwrap();
    t.release(V1, "to have its finalizer again", |release| {
        check(release.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty()), &release.metadata)
    })
    .await;
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    assert!(t.config_map(V1).await.is_none());
}

#[tokio::test]
async fn an_object_that_two_releases_have_in_common_goes_over_to_the_newer_one() {
    let t = World::new("shared").await;
    let _operator = t.operator(&[]);
    // As a node image has it that did not change: openstack-scs-1-30-v2 and v3 are such releases.
    let image = "apiVersion: v1\nkind: Secret\nmetadata: {name: image}\n---\n";
    let repo = t.repo();
    repo.release(V1, &format!("{image}{SETTINGS}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let before = t.get("v1", "Secret", "image").await.unwrap();
    repo.release(V2, &format!("{image}{SETTINGS}"));
    t.look_again("x").await;
    t.ready("x", "v2").await;
    t.release_gone(V1).await;
    let after = t.get("v1", "Secret", "image").await.expect("it went with the older release");
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
}

#[tokio::test]
async fn what_two_releases_have_is_put_back_at_once() {
    let t = World::new("both").await;
    let _operator = t.operator(&[]);
    let both = |a: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: both}}\ndata: {{a: {a}}}\n---\n{SETTINGS}")
    };
    let repo = t.repo();
    repo.release(V1, &both("old")).release(V2, &both("b"));
    t.create_stack("x", &repo.url(), json!({"versions": ["v1"], "interval": "1h"})).await;
    t.ready("x", "v2, v1").await;
    // The older one looks last, and leaves it to the newer.
    t.looked_again("x").await;
    t.looked_again("x").await;
    for _ in 0..2 {
        let changed = kube::api::Patch::Merge(json!({"data": {"a": "changed"}}));
        t.api("v1", "ConfigMap").patch("both", &kube::api::PatchParams::default(), &changed).await.unwrap();
        wait_within(QUICK, "the ConfigMap to be put back", || async {
            let map = t.get("v1", "ConfigMap", "both").await.unwrap();
            check(map["data"]["a"] == "b", &map["data"])
        })
        .await;
    }
    // What is deleted comes back as the newer one has it.
    let before = t.get("v1", "ConfigMap", "both").await.unwrap();
    t.delete("v1", "ConfigMap", "both").await;
    let back = wait_within(QUICK, "the ConfigMap to come back", || async {
        let map = t.get("v1", "ConfigMap", "both").await.unwrap_or_default();
        if map["data"]["a"].is_null() || map["metadata"]["uid"] == before["metadata"]["uid"] {
            return Err(map.to_string());
        }
        Ok(map)
    })
    .await;
    assert_eq!(back["data"]["a"], "b");
    assert_eq!(back["metadata"]["labels"], before["metadata"]["labels"]);
    // Where nothing is put back nobody does it.
    t.change_stack("x", json!({"spec": {"driftMode": "warn"}})).await;
    t.looked_again("x").await;
    t.delete("v1", "ConfigMap", "both").await;
    t.release(V2, "to say that it was deleted", |release| {
        let rows = release.status.clone().unwrap_or_default().resources;
        check(rows.iter().any(|row| row.name == "both" && row.error.contains("deleted")), &rows)
    })
    .await;
    t.looked_again("x").await;
    assert!(t.get("v1", "ConfigMap", "both").await.is_none());
}

#[tokio::test]
async fn a_release_deleted_by_hand_comes_back_while_it_is_wanted() {
    let t = World::new("byhand").await;
    let _operator = t.operator(&[]);
    with_v1_ready(&t).await;
    let before = t.release_ready(V1).await.metadata.uid;
    t.delete(clusterstack::api::API_VERSION, "ClusterStackRelease", V1).await;
    t.release(V1, "to be made anew", |release| check(release.metadata.uid != before, &release.metadata)).await;
    t.release_ready(V1).await;
    assert!(t.get(CLUSTER_API, "ClusterClass", V1).await.is_some());
}
