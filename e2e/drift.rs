//! What is changed by hand is put back, unless the spec or a fight says otherwise.

use clusterstack::api::cluster_stack_release::Resource;
use clusterstack::api::{API_VERSION, ConditionType, Reason};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::{CLASS, CLUSTER_API, INFRASTRUCTURE, Operator, QUICK, SETTINGS, World, check, wait_within};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";
const MAP: (&str, &str, &str) = ("v1", "ConfigMap", V1);

async fn ready(t: &World, spec: Value) -> Operator {
    let operator = t.operator(&[]);
    let repo = t.repo();
    repo.release(V1, &format!("{CLASS}{SETTINGS}"));
    t.create_stack("x", &repo.url(), spec).await;
    t.ready("x", "v1").await;
    operator
}

/// Waits, for some seconds, until a value of the ConfigMap is as it should be.
async fn back(t: &World, pointer: &str, value: impl Into<Value>) {
    let value = value.into();
    wait_within(QUICK, format!("{pointer} to be {value}"), || async {
        let seen = t.in_config_map(V1, pointer).await;
        check(seen == value, seen)
    })
    .await;
}

/// Waits until the row of the ConfigMap is as `is` says.
async fn row(t: &World, what: &str, is: impl Fn(&Resource) -> bool) -> Resource {
    let found = t.release(V1, what, |release| {
        let rows = release.status.clone().unwrap_or_default().resources;
        rows.iter().find(|row| row.kind == "ConfigMap" && is(row)).cloned().ok_or_else(|| format!("{rows:#?}"))
    });
    found.await.1
}

#[tokio::test]
async fn a_change_by_hand_is_undone_within_seconds() {
    let t = World::new("changed").await;
    let _operator = ready(&t, json!({})).await;
    t.change("vandal", MAP, json!({"data": {"color": "red"}})).await;
    back(&t, "/data/color", "blue").await;
    t.event("DriftCorrected", "changed by vandal: /data/color").await;
    // A field that is removed, and a label.
    t.change("vandal", MAP, json!({"data": {"size": null}})).await;
    back(&t, "/data/size", "large").await;
    t.change("vandal", MAP, json!({"metadata": {"labels": null}})).await;
    back(&t, "/metadata/labels/clusterstack.x-k8s.io~1owner-name", V1).await;
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn a_change_made_by_kubectl_apply_is_undone() {
    let t = World::new("stolen").await;
    let _operator = ready(&t, json!({})).await;
    // Server-side apply by force takes the field from us.
    let stolen = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": V1}, "data": {"color": "red"}});
    t.apply_as("thief", &stolen).await;
    back(&t, "/data/color", "blue").await;
    t.event("DriftCorrected", "thief").await;
}

#[tokio::test]
async fn what_is_deleted_by_hand_comes_back_within_seconds() {
    let t = World::new("deleted").await;
    let _operator = ready(&t, json!({})).await;
    for (version, kind) in
        [("v1", "ConfigMap"), (INFRASTRUCTURE, "DockerMachineTemplate"), (CLUSTER_API, "ClusterClass")]
    {
        let before = t.get(version, kind, V1).await.unwrap();
        t.delete(version, kind, V1).await;
        wait_within(QUICK, format!("{kind} to come back"), || async {
            let now = t.get(version, kind, V1).await.unwrap_or_default();
            check(now["metadata"]["uid"].is_string() && now["metadata"]["uid"] != before["metadata"]["uid"], now)
        })
        .await;
        t.event("DriftCorrected", &format!("{kind} {}/{V1} was deleted", t.namespace)).await;
    }
}

#[tokio::test]
async fn fields_that_are_not_ours_are_left_to_others() {
    let t = World::new("others").await;
    let _operator = ready(&t, json!({})).await;
    t.change("neighbour", MAP, json!({"data": {"theirs": "1"}, "metadata": {"annotations": {"note": "mine"}}})).await;
    // A later drift of ours is put back; what is theirs survives that.
    t.change("vandal", MAP, json!({"data": {"color": "red"}})).await;
    back(&t, "/data/color", "blue").await;
    assert_eq!(t.in_config_map(V1, "/data/theirs").await, "1");
    assert_eq!(t.in_config_map(V1, "/metadata/annotations/note").await, "mine");
}

#[tokio::test]
async fn ignored_differences_are_left_and_the_rest_is_put_back() {
    let t = World::new("ignore").await;
    let ignore = json!([{"kind": "ConfigMap", "jsonPointers": ["/data/color"]}]);
    let _operator = ready(&t, json!({"ignoreDifferences": ignore})).await;
    t.change("painter", MAP, json!({"data": {"color": "red"}})).await;
    t.looked_again("x").await;
    t.change("vandal", MAP, json!({"data": {"size": "small"}})).await;
    back(&t, "/data/size", "large").await;
    assert_eq!(t.in_config_map(V1, "/data/color").await, "red");
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn ignored_differences_lead_through_lists_and_never_to_what_an_object_is_found_by() {
    const WEB: (&str, &str, &str) = ("apps/v1", "Deployment", "web");
    let t = World::new("ignorelist").await;
    t.add_rights("apps", &["deployments"]).await;
    let repo = t.repo();
    let container = "{name: web, image: web:v1, env: [{name: A, value: ours}]}";
    let web = format!(
        "{CLASS}{SETTINGS}---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, labels: {{tier: ours}}}}\nspec:\n  replicas: 0\n  \
         selector: {{matchLabels: {{app: web}}}}\n  template:\n    metadata: {{labels: {{app: web}}}}\n    spec: {{containers: [{container}]}}\n"
    );
    repo.release(V1, &web).release(V2, &web);
    let pointers = json!(["/spec/template/spec/containers/0/image", "/metadata"]);
    let ignore = json!([{"group": "apps", "kind": "Deployment", "jsonPointers": pointers}]);
    let operator = t.operator(&[]);
    let spec = json!({"ignoreDifferences": ignore, "autoSubscribe": false, "versions": ["v1"]});
    t.create_stack("x", &repo.url(), spec).await;
    t.ready("x", "v1").await;
    let uid = t.get(WEB.0, WEB.1, WEB.2).await.unwrap()["metadata"]["uid"].clone();
    // More often than a fight lasts.
    for round in 0..7 {
        let images =
            json!([{"name": "sidecar", "image": "s"}, {"name": "web", "image": format!("web:theirs-{round}")}]);
        let change = json!({"metadata": {"labels": {"tier": format!("theirs-{round}")}}, "spec": {"template": {"spec": {"containers": images}}}});
        let api = t.api(WEB.0, WEB.1);
        api.patch(WEB.2, &PatchParams::default(), &Patch::Strategic(change)).await.unwrap();
        operator.passes("ClusterStackRelease", 1).await;
    }
    // What is not ignored is put back, and nothing else.
    let change = json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "env": [{"name": "A", "value": "theirs"}]}]}}}});
    t.api(WEB.0, WEB.1).patch(WEB.2, &PatchParams::default(), &Patch::Strategic(change)).await.unwrap();
    let live = wait_within(QUICK, "the variable to be put back", || async {
        let live = t.get(WEB.0, WEB.1, WEB.2).await.unwrap();
        let all = live["spec"]["template"]["spec"]["containers"].as_array().cloned().unwrap_or_default();
        let web = all.iter().find(|one| one["name"] == "web").cloned().unwrap_or_default();
        check(web["env"][0]["value"] == "ours", &web)?;
        Ok((web, live))
    })
    .await;
    assert_eq!((&live.0["image"], &live.1["metadata"]["labels"]["tier"]), (&json!("web:theirs-6"), &json!("theirs-6")));
    t.ready("x", "v1").await;
    // A release that has the same object takes it over, and keeps it when the other one goes.
    t.change_stack("x", json!({"spec": {"versions": ["v1", "v2"]}})).await;
    t.ready("x", "v2, v1").await;
    t.change_stack("x", json!({"spec": {"versions": ["v2"]}})).await;
    t.release_gone(V1).await;
    t.ready("x", "v2").await;
    let live = t.get(WEB.0, WEB.1, WEB.2).await.unwrap();
    assert_eq!(live["metadata"]["uid"], uid);
    assert_eq!(live["metadata"]["labels"]["clusterstack.x-k8s.io/owner-name"], V2);
    assert_eq!(live["metadata"]["labels"]["tier"], "theirs-6");
}

#[tokio::test]
async fn what_a_restore_wrote_into_a_status_goes() {
    let t = World::new("restored").await;
    let _operator = ready(&t, json!({})).await;
    let offer = json!({"name": "docker-x-1-34-v9", "reason": "Baking", "revision": "r", "firstSeen": "2026-01-01T00:00:00Z", "message": "m"});
    let said = json!({
        "apiVersion": API_VERSION, "kind": "ClusterStack",
        "status": {"available": [offer], "conditions": [{
            "type": "ClusterStackReleaseAvailable", "status": "True", "reason": "Odd", "message": "of CSO",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    });
    t.stacks().patch_status("x", &PatchParams::apply("restore").force(), &Patch::Apply(said)).await.unwrap();
    t.looked_again("x").await;
    t.stack("x", "to say no more than what is so", |stack| {
        let status = stack.status.clone().unwrap_or_default();
        let of_cso = status.conditions.iter().any(|condition| condition.type_ == "ClusterStackReleaseAvailable");
        check(status.available.is_empty() && !of_cso, &status)
    })
    .await;
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn drift_mode_warn_says_so_and_leaves_it() {
    let t = World::new("warn").await;
    let _operator = ready(&t, json!({"driftMode": "warn"})).await;
    t.change("vandal", MAP, json!({"data": {"color": "red"}})).await;
    let drifted = row(&t, "to say Drifted", |row| row.reason == Some(Reason::Drifted)).await;
    assert!(drifted.error.contains("vandal") && drifted.error.contains("/data/color"), "{}", drifted.error);
    assert_eq!(t.in_config_map(V1, "/data/color").await, "red");
    t.change_stack("x", json!({"spec": {"driftMode": "correct"}})).await;
    back(&t, "/data/color", "blue").await;
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn a_fight_is_given_up_after_five_rounds_with_the_rival_named() {
    let t = World::new("fight").await;
    let _operator = ready(&t, json!({})).await;
    for _ in 0..5 {
        t.change("rival", MAP, json!({"data": {"color": "red"}})).await;
        back(&t, "/data/color", "blue").await;
    }
    t.change("rival", MAP, json!({"data": {"color": "red"}})).await;
    let fought = row(&t, "to say DriftFight", |row| row.reason == Some(Reason::DriftFight)).await;
    assert!(fought.error.contains("rival") && fought.error.contains("/data/color"), "{}", fought.error);
    assert_eq!(t.in_config_map(V1, "/data/color").await, "red");
    t.stack_says("x", ConditionType::Stalled, "True", "FailedToApplyObjects").await;
    // As the message advises.
    let ignore = json!([{"kind": "ConfigMap", "jsonPointers": ["/data/color"]}]);
    t.change_stack("x", json!({"spec": {"ignoreDifferences": ignore}})).await;
    t.ready("x", "v1").await;
    assert_eq!(t.in_config_map(V1, "/data/color").await, "red");
}

#[tokio::test]
async fn what_others_say_in_conditions_of_the_operator_is_taken_out() {
    let t = World::new("stalled").await;
    let _operator = ready(&t, json!({})).await;
    let condition = |type_: &str| {
        json!({
            "type": type_, "status": "True", "reason": "Odd", "message": "somebody else's",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let said = json!({
        "apiVersion": API_VERSION, "kind": "ClusterStack",
        "status": {"conditions": [condition("Stalled"), condition("example.org/Audited"), condition("Reconciling")]},
    });
    t.stacks().patch_status("x", &PatchParams::apply("somebody").force(), &Patch::Apply(said)).await.unwrap();
    t.looked_again("x").await;
    t.stack("x", "to say no more than what is so", |stack| {
        let conditions = stack.status.clone().unwrap_or_default().conditions;
        let types: Vec<_> = conditions.iter().map(|condition| condition.type_.as_str()).collect();
        let is_said = |type_: &str| types.contains(&type_);
        check(
            is_said("Ready") && is_said("example.org/Audited") && !is_said("Stalled") && !is_said("Reconciling"),
            &types,
        )
    })
    .await;
}
