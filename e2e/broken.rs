//! What is broken says why, upward to the ClusterStack, and goes on by itself or by the next tag.

use clusterstack::api::cluster_stack_release::{Resource, ResourceStatus};
use clusterstack::api::{ConditionType, Reason};
use serde_json::json;

use crate::harness::{
    CLASS, CLUSTER_API, SETTINGS, World, check, install_small_kind, leave_behind, small_kind, unique,
};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";

/// Waits until the row of an object of `kind` says `reason`, and gives it.
async fn row_says(t: &World, kind: &str, reason: Option<Reason>) -> Resource {
    let what = format!("to say {reason:?} of its {kind}");
    let found = t.release(V1, &what, |release| {
        let rows = release.status.clone().unwrap_or_default().resources;
        rows.iter().find(|row| row.kind == kind && row.reason == reason).cloned().ok_or_else(|| format!("{rows:#?}"))
    });
    found.await.1
}

/// Waits until the row of an object of `kind` is synced.
async fn synced(t: &World, kind: &str) {
    t.release(V1, &format!("to have synced its {kind}"), |release| {
        let rows = release.status.clone().unwrap_or_default().resources;
        check(rows.iter().any(|row| row.kind == kind && row.status == ResourceStatus::Synced), &rows)
    })
    .await;
}

#[tokio::test]
async fn a_chart_that_does_not_render_is_stalled_until_a_fixed_release_comes() {
    let t = World::new("render").await;
    let _operator = t.operator(&[]);
    for (templates, part) in [
        ("{{ fail \"no such flavor\" }}", "no such flavor"),
        ("kind: ConfigMap\n  name: {{ .Values.nothing.here }}", "nothing"),
        ("{{ if }}", "objects.yaml"),
        // What is applied is read as YAML, which refuses such a character where it stands as it is.
        ("{{ fail \"del\\x7f\" }}", "del"),
        ("just: {{ \"a: b: c\" }}\n- x", "objects.yaml"),
        (
            "apiVersion: coordination.k8s.io/v1/leases?watch=true&x=0\nkind: Lease\nmetadata: {name: x}",
            "apiVersion is no group and version",
        ),
        (
            "{{ lookup \"coordination.k8s.io/v1/leases?watch=true&x=0\" \"Lease\" .Release.Namespace \"x\" }}",
            "apiVersion is no group and version",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ repeat 254 \"x\" }}}",
            "metadata.name has more than 253 characters",
        ),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: 5}", "metadata.namespace is no text"),
    ] {
        let name = unique("broken");
        let repo = t.repo();
        repo.release("docker-y-1-34-v1", templates);
        t.create_stack(&name, &repo.url(), json!({"name": "y"})).await;
        let message = t.release_says("docker-y-1-34-v1", ConditionType::Stalled, "True", "RenderFailed").await;
        assert!(message.contains(part), "{message}");
        t.delete_stack(&name).await;
        t.stack_gone(&name).await;
    }
    let repo = t.repo();
    repo.release(V1, "{{ fail \"no such flavor\" }}");
    t.create_stack("x", &repo.url(), json!({})).await;
    t.release_says(V1, ConditionType::HelmChartTemplated, "False", "RenderFailed").await;
    t.release_says(V1, ConditionType::Ready, "False", "RenderFailed").await;
    let message = t.stack_says("x", ConditionType::Stalled, "True", "RenderFailed").await;
    assert!(message.contains(V1) && message.contains("no such flavor"), "{message}");
    t.stack_says("x", ConditionType::Ready, "False", "ReleaseNotReady").await;

    repo.release(V2, SETTINGS);
    t.look_again("x").await;
    t.ready("x", "v2").await;
    t.release_gone(V1).await;
}

#[tokio::test]
async fn characters_that_yaml_refuses_or_takes_for_ends_of_lines_arrive_as_they_are() {
    let t = World::new("characters").await;
    let _operator = t.operator(&[]);
    let repo = t.repo();
    let map =
        r#"{apiVersion: v1, kind: ConfigMap, metadata: {name: odd}, data: {text: "a\x7fb\Nc\Ld\Pe\uFEFFf\x9bg"}}"#;
    repo.release(V1, map);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    assert_eq!(t.in_config_map("odd", "/data/text").await, "a\u{7f}b\u{85}c\u{2028}d\u{2029}e\u{feff}f\u{9b}g");
}

#[tokio::test]
async fn an_object_that_the_api_server_refuses_stops_no_other() {
    let t = World::new("invalid").await;
    let _operator = t.operator(&[]);
    let repo = t.repo();
    let bad = "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: [{port: 99999999}]}\n---\n";
    let unknown = "apiVersion: v1\nkind: Secret\nmetadata: {name: odd}\ncolour: green\n---\n";
    let path = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a/b}\n---\n";
    repo.release(V1, &format!("{bad}{unknown}{path}{SETTINGS}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    let map = row_says(&t, "ConfigMap", Some(Reason::Invalid)).await;
    assert!(map.error.contains("metadata.name holds /"), "{}", map.error);
    let service = row_says(&t, "Service", Some(Reason::Invalid)).await;
    assert!(service.error.contains("99999999"), "{}", service.error);
    let secret = row_says(&t, "Secret", Some(Reason::Invalid)).await;
    assert!(secret.error.contains("colour"), "{}", secret.error);
    synced(&t, "ConfigMap").await;
    let message = t.release_says(V1, ConditionType::Ready, "False", "FailedToApplyObjects").await;
    assert!(message.starts_with("3 of 4 objects not synced"), "{message}");
    t.stack_says("x", ConditionType::Stalled, "True", "FailedToApplyObjects").await;
}

#[tokio::test]
async fn an_object_of_a_kind_that_is_missing_is_applied_when_its_definition_comes() {
    let t = World::new("kind").await;
    let _operator = t.operator(&[]);
    let group = format!("{}.example.com", t.namespace);
    let repo = t.repo();
    let gadget = format!("apiVersion: {group}/v1\nkind: Gadget\nmetadata: {{name: g}}\nspec: {{size: 3}}\n---\n");
    repo.release(V1, &format!("{gadget}{SETTINGS}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    let row = row_says(&t, "Gadget", Some(Reason::NoKindMatch)).await;
    assert!(row.error.contains(&group), "{}", row.error);
    synced(&t, "ConfigMap").await;
    t.stack_says("x", ConditionType::Ready, "False", "ReleaseNotReady").await;

    install_small_kind(&t, &group, "Gadget").await;
    t.ready("x", "v1").await;
    assert_eq!(t.get(&format!("{group}/v1"), "Gadget", "g").await.unwrap()["spec"]["size"], 3);
}

#[tokio::test]
async fn a_definition_of_the_release_itself_is_waited_for() {
    let t = World::new("owncrd").await;
    let _operator = t.operator(&["--allow-cluster-scope"]);
    let group = format!("{}.example.com", t.namespace);
    t.add_rights(&group, &["widgets"]).await;
    let definition = serde_json::to_string(&small_kind(&group, "Widget")).unwrap();
    let widget = format!("apiVersion: {group}/v1\nkind: Widget\nmetadata: {{name: w}}\n");
    t.remove_at_end("apiextensions.k8s.io/v1", "CustomResourceDefinition", &format!("widgets.{group}"));
    let repo = t.repo();
    repo.release(V1, &format!("{definition}\n---\n{widget}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    assert!(t.get(&format!("{group}/v1"), "Widget", "w").await.is_some());
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    // CustomResourceDefinitions stay: other objects may live by them.
    let api = t.cluster_api("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    assert!(api.get_opt(&format!("widgets.{group}")).await.unwrap().is_some());
}

#[tokio::test]
async fn a_definition_that_two_releases_share_is_changed_before_what_needs_it() {
    let t = World::new("sharedcrd").await;
    let _operator = t.operator(&["--allow-cluster-scope"]);
    let group = format!("{}.example.com", t.namespace);
    t.add_rights(&group, &["widgets"]).await;
    t.remove_at_end("apiextensions.k8s.io/v1", "CustomResourceDefinition", &format!("widgets.{group}"));
    let release = |fields: &[&str]| {
        let mut definition = serde_json::to_value(small_kind(&group, "Widget")).unwrap();
        let known: serde_json::Map<_, _> =
            fields.iter().map(|field| ((*field).to_owned(), json!({"type": "integer"}))).collect();
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] =
            json!({"type": "object", "properties": known});
        let spec = fields.iter().map(|field| format!("{field}: 1")).collect::<Vec<_>>().join(", ");
        let name = fields.join("-");
        format!(
            "{definition}\n---\napiVersion: {group}/v1\nkind: Widget\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
        )
    };
    let repo = t.repo();
    repo.release(V1, &release(&["a"]));
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    repo.release(V2, &release(&["a", "b"]));
    t.look_again("x").await;
    t.ready("x", "v2").await;
    assert_eq!(t.get(&format!("{group}/v1"), "Widget", "a-b").await.unwrap()["spec"]["b"], 1);
}

#[tokio::test]
async fn without_rights_only_objects_of_the_own_namespace_are_applied() {
    let t = World::new("scope").await;
    let _operator = t.operator(&[]);
    let role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: e2e-too-much}\n---\n";
    let elsewhere = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: kube-system}\n---\n";
    let repo = t.repo();
    t.remove_at_end("rbac.authorization.k8s.io/v1", "ClusterRole", "e2e-too-much");
    repo.release(V1, &format!("{role}{elsewhere}{SETTINGS}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    for kind in ["ClusterRole", "Secret"] {
        let row = row_says(&t, kind, Some(Reason::Forbidden)).await;
        assert!(row.error.contains("serviceAccountName"), "{}", row.error);
    }
    synced(&t, "ConfigMap").await;
    let roles = t.cluster_api("rbac.authorization.k8s.io/v1", "ClusterRole");
    assert!(roles.get_opt("e2e-too-much").await.unwrap().is_none());
}

#[tokio::test]
async fn a_release_writes_nothing_that_the_operator_works_on_by_its_rights() {
    let t = World::new("ownkinds").await;
    let _operator = t.operator(&[]);
    let repo = t.repo();
    let account = "serviceAccountName: admin";
    let stack = format!(
        "apiVersion: clusterstack.x-k8s.io/v1alpha1\nkind: ClusterStack\nmetadata: {{name: x}}\nspec: {{provider: docker, name: x, kubernetesVersion: \"1.34\", noProvider: true, {account}}}\n---\n"
    );
    let cluster =
        "apiVersion: cluster.x-k8s.io/v1beta1\nkind: Cluster\nmetadata: {name: c}\nspec: {paused: true}\n---\n";
    repo.release(V1, &format!("{stack}{cluster}{SETTINGS}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    for kind in ["ClusterStack", "Cluster"] {
        let row = row_says(&t, kind, Some(Reason::Forbidden)).await;
        assert!(row.error.contains("serviceAccountName"), "{}", row.error);
    }
    synced(&t, "ConfigMap").await;
    assert_eq!(t.stacks().get("x").await.unwrap().spec.service_account_name, None);
}

#[tokio::test]
async fn what_belongs_to_somebody_else_is_left_alone() {
    let t = World::new("other").await;
    let map = |annotations: serde_json::Value, labels: serde_json::Value| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": V1, "annotations": annotations, "labels": labels},
            "data": {"color": "theirs"},
        })
    };
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    t.apply(&map(json!({"meta.helm.sh/release-name": "shop"}), json!({}))).await;
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    let row = row_says(&t, "ConfigMap", Some(Reason::OwnedByOther)).await;
    assert!(row.error.contains("meta.helm.sh/release-name=shop"), "{}", row.error);
    t.stack_says("x", ConditionType::Stalled, "True", "FailedToApplyObjects").await;

    t.apply(&map(json!({}), json!({"clusterstack.x-k8s.io/owner-name": "another"}))).await;
    t.looked_again("x").await;
    t.release(V1, "to name the other release", |release| {
        let rows = release.status.clone().unwrap_or_default().resources;
        check(rows[0].reason == Some(Reason::OwnedByOther) && rows[0].error.contains("another"), &rows)
    })
    .await;
    assert_eq!(t.in_config_map(V1, "/data/color").await, "theirs");

    t.apply(&map(json!({}), json!({}))).await;
    t.look_again("x").await;
    t.ready("x", "v1").await;
    assert_eq!(t.in_config_map(V1, "/data/color").await, "blue");
}

#[tokio::test]
async fn what_nobody_marked_is_taken_over_after_a_look_at_it() {
    let t = World::new("found").await;
    let repo = t.repo();
    repo.release(V1, &format!("{SETTINGS}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: new}}\n"));
    t.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": V1}, "data": {"color": "old", "kept": "8"},
    }))
    .await;
    let _operator = t.operator(&[]);
    let from = t.audit_mark().await;
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    assert_eq!(t.in_config_map(V1, "/data/color").await, "blue");
    assert_eq!(t.in_config_map(V1, "/data/kept").await, "8");
    if let (Some(from), Some(to)) = (from, t.audit_mark().await) {
        let of = |name: &str| -> Vec<(String, u64)> {
            let all = t.requests(from, to).into_iter().filter(|r| r.resource == "configmaps" && r.name == name);
            all.map(|request| (request.verb, request.code)).collect()
        };
        let expected = [("patch", 409), ("get", 200), ("get", 200), ("patch", 200)];
        assert_eq!(of(V1), expected.map(|(verb, code)| (verb.to_owned(), code)));
        // What a new release makes is not looked for.
        assert_eq!(of("new"), [("patch".to_owned(), 201)]);
    }
}

#[tokio::test]
async fn a_chart_that_renders_nothing_any_more_is_held() {
    let t = World::new("empty").await;
    let repo = t.repo();
    repo.release(V1, "# nothing\n");
    // As an older renderer left it: an object is applied and stands in the inventory.
    leave_behind(
        &t,
        "x",
        &repo.url(),
        V1,
        &[json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "old"}, "data": {"color": "blue"},
        })],
    )
    .await;
    let _operator = t.operator(&[]);
    t.release_says(V1, ConditionType::Stalled, "True", "EmptyRender").await;
    t.stack_says("x", ConditionType::Stalled, "True", "EmptyRender").await;
    assert!(t.config_map("old").await.is_some());
    t.release(V1, "to keep its inventory", |release| {
        let rows = release.status.clone().unwrap_or_default().resources;
        check(rows.len() == 1, &rows)
    })
    .await;
}

#[tokio::test]
async fn an_unhealthy_object_keeps_its_release_from_being_ready() {
    let t = World::new("health").await;
    let _operator = t.operator(&[]);
    let group = format!("{}.example.com", t.namespace);
    install_small_kind(&t, &group, "Engine").await;
    let repo = t.repo();
    repo.release(V1, &format!("apiVersion: {group}/v1\nkind: Engine\nmetadata: {{name: e}}\n"));
    let api_version = format!("{group}/v1");
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let api = t.api(&api_version, "Engine");
    let status = |ready: &str| {
        let condition = json!({"type": "Ready", "status": ready, "reason": "Cold", "message": "too cold"});
        kube::api::Patch::Merge(json!({"status": {"conditions": [condition]}}))
    };
    api.patch_status("e", &kube::api::PatchParams::default(), &status("False")).await.unwrap();
    let message = t.release_says(V1, ConditionType::Ready, "False", "ObjectsNotHealthy").await;
    assert!(message.contains("Engine") && message.contains("too cold"), "{message}");
    api.patch_status("e", &kube::api::PatchParams::default(), &status("True")).await.unwrap();
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn a_chart_of_more_objects_than_a_status_holds_is_refused_before_any_is_applied() {
    let t = World::new("many").await;
    let repo = t.repo();
    let many = "{{- range $n := until 4001 }}\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: map-{{ $n }}}\n---\n{{- end }}\n";
    repo.release(V1, many);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    let message = t.release_says(V1, ConditionType::HelmChartTemplated, "False", "RenderFailed").await;
    assert!(message.contains("renders 4001 objects, and a status has room for 4000"), "{message}");
    assert!(t.config_map("map-0").await.is_none());
}

#[tokio::test]
async fn a_chart_that_takes_longer_than_a_turn_in_line_is_rendered_all_the_same() {
    let t = World::new("takeslong").await;
    let _operator = t.operator(&[]);
    let repo = t.repo();
    // Some seconds of an idle core in a build that is not optimised.
    let long = "{{- range $i := until 7000 }}{{ range until 1000 }}{{ $x := add $i . }}{{ end }}{{ end }}\n";
    repo.release(V1, &format!("{long}{SETTINGS}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
}

#[tokio::test]
async fn a_release_that_clusters_could_not_use_does_not_push_out_the_one_before() {
    let t = World::new("unusable").await;
    let repo = t.repo();
    repo.release(V1, CLASS);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    for (tag, templates, part) in [
        ("docker-x-1-34-v2", SETTINGS, format!("that of {V1} does")),
        ("docker-x-1-34-v3", "# nothing\n", "renders no object".to_owned()),
    ] {
        repo.release(tag, templates);
        t.look_again("x").await;
        let message = t.release_says(tag, ConditionType::Stalled, "True", "EmptyRender").await;
        assert!(message.contains(&part), "{message}");
        t.stack_says("x", ConditionType::Ready, "False", "NewestReleaseNotReady").await;
        assert!(t.config_map(tag).await.is_none());
        assert!(t.get(CLUSTER_API, "ClusterClass", V1).await.is_some());
    }
    repo.release("docker-x-1-34-v4", CLASS);
    t.look_again("x").await;
    t.ready("x", "v4").await;
}
