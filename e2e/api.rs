//! What the API server takes and refuses by our CRDs alone; no operator runs.

use clusterstack::api::cluster_stack_release::{Resource, ResourceStatus};
use clusterstack::api::{API_VERSION, ClusterStackReleaseStatus, ClusterStackStatus};
use clusterstack::core::health;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::harness::World;

/// A ClusterStack that is fine; `spec` is merged over it.
fn stack(name: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": API_VERSION,
        "kind": "ClusterStack",
        "metadata": {"name": name},
        "spec": {
            "provider": "docker", "name": "x", "kubernetesVersion": "1.34", "noProvider": true,
            "source": {"git": {"url": "https://example.com/stacks.git"}},
        },
    });
    json_patch::merge(&mut object, &json!({"spec": spec}));
    object
}

/// What the API server says to a new ClusterStack; empty if it takes it.
async fn refusal(t: &World, object: Value) -> String {
    let object = serde_json::from_value(object).unwrap();
    match t.api(API_VERSION, "ClusterStack").create(&PostParams::default(), &object).await {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn specs_that_can_never_work_are_refused_with_the_reason() {
    let t = World::new("cel").await;
    let template = json!({"apiVersion": "a/v1", "kind": "XTemplate", "name": "t"});
    for (n, (spec, part)) in [
        (json!({"noProvider": false}), "providerRef is needed unless noProvider is true"),
        (
            json!({"noProvider": false, "providerRef": {"kind": "XTemplate", "name": "t"}}),
            "apiVersion, kind (one that ends in Template)",
        ),
        (
            json!({"noProvider": false, "providerRef": {"apiVersion": "a/v1", "kind": "X", "name": "t"}}),
            "ends in Template",
        ),
        (json!({"noProvider": false, "providerRef": {"apiVersion": "a/v1", "kind": "XTemplate"}}), "ends in Template"),
        (json!({"provider": ""}), "spec.provider"),
        (json!({"provider": "Docker"}), "spec.provider"),
        (json!({"name": "a_b"}), "spec.name"),
        (json!({"kubernetesVersion": "v1.34"}), "spec.kubernetesVersion"),
        (json!({"kubernetesVersion": "1.34.7"}), "spec.kubernetesVersion"),
        (json!({"channel": "beta"}), "spec.channel"),
        (json!({"versions": ["2"]}), "spec.versions"),
        (json!({"versions": ["v1", "v1"]}), "Duplicate value"),
        (json!({"versions": ["v0-sha.abc"]}), "belong to channel custom"),
        (json!({"channel": "custom", "versions": ["v2"]}), "belong to the stable channel"),
        (json!({"source": {"oci": {"repository": "r"}}}), "exactly one source"),
        (json!({"verify": {"cosign": {"secretRef": {"name": "k"}}}}), "verify.cosign is for source oci"),
        (json!({"verify": {"checksums": {"secretRef": {"name": "k"}}}}), "verify.checksums is for sources github"),
        (
            json!({"source": {"git": null, "oci": {"repository": "r"}}, "verify": {"git": {"secretRef": {"name": "k"}}}}),
            "verify.git is for source git",
        ),
        (json!({"preReleases": ["beta"]}), "preReleases is for channel custom"),
        (json!({"source": {"git": null}}), "exactly one source"),
        (json!({"interval": "5 minutes"}), "spec.interval"),
        (json!({"interval": "1s"}), "interval must be at least 10s"),
        // More than CEL's durations hold.
        (json!({"interval": "99999999999h"}), "interval must be at least 10s"),
        (json!({"interval": "1m1h"}), "interval must be at least 10s"),
        (json!({"keep": -1}), "spec.keep"),
        (json!({"driftMode": "ignore"}), "spec.driftMode"),
        (json!({"ignoreDifferences": [{"kind": "ConfigMap", "jsonPointers": ["data"]}]}), "jsonPointers"),
        (json!({"ignoreDifferences": [{"kind": "ConfigMap", "jsonPointers": []}]}), "jsonPointers"),
        (json!({"serviceAccountName": ""}), "serviceAccountName"),
    ]
    .into_iter()
    .enumerate()
    {
        let said = refusal(&t, stack(&format!("bad-{n}"), &spec)).await;
        assert!(said.contains(part), "{spec}: {said:?} does not hold {part:?}");
    }
    for (n, spec) in [
        json!({}),
        json!({"noProvider": false, "providerRef": template}),
        json!({"versions": ["v1", "v12"], "keep": 0, "interval": "1h30m", "driftMode": "warn"}),
        json!({"interval": "1.5h0.5s500ms"}),
        json!({"channel": "custom", "versions": ["v0-sha.abc", "v1-beta.2"], "preReleases": ["beta"]}),
        json!({"source": null}),
        json!({"verify": {"git": {"secretRef": {"name": "k"}}}}),
        json!({"source": null, "verify": {"checksums": {"secretRef": {"name": "k"}}}}),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(refusal(&t, stack(&format!("good-{n}"), &spec)).await, "", "{spec}");
    }
}

#[tokio::test]
async fn what_names_a_stack_can_not_be_changed() {
    let t = World::new("immutable").await;
    assert_eq!(refusal(&t, stack("x", &json!({}))).await, "");
    for (field, value) in
        [("provider", "other"), ("name", "other"), ("kubernetesVersion", "1.35"), ("channel", "custom")]
    {
        let patch = Patch::Merge(json!({"spec": {field: value}}));
        let changed = t.stacks().patch("x", &PatchParams::default(), &patch).await;
        let said = changed.expect_err(field).to_string();
        assert!(said.contains(&format!("{field} is immutable")), "{said}");
    }
    let patch = Patch::Merge(
        json!({"spec": {"versions": ["v1"], "autoSubscribe": false, "source": {"git": {"url": "https://other"}}}}),
    );
    t.stacks().patch("x", &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn what_a_release_and_an_addon_are_about_can_not_be_changed() {
    let t = World::new("about").await;
    let reference = |name: &str| json!({"apiVersion": "a/v1", "kind": "X", "name": name, "namespace": t.namespace});
    for (kind, field, message) in [
        ("ClusterStackRelease", "providerRef", "providerRef can't be changed: delete the release"),
        ("ClusterAddon", "clusterRef", "clusterRef can't be changed: each Cluster has a ClusterAddon of its own"),
    ] {
        let object = |to: &str| json!({"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "x"}, "spec": {field: reference(to)}});
        t.apply(&object("one")).await;
        t.apply(&object("one")).await;
        let patch = Patch::Merge(object("other"));
        let changed = t.api(API_VERSION, kind).patch("x", &PatchParams::default(), &patch).await;
        let said = changed.expect_err(kind).to_string();
        assert!(said.contains(message), "{said}");
    }
    let bare = json!({"apiVersion": API_VERSION, "kind": "ClusterStackRelease", "metadata": {"name": "y"}, "spec": {}});
    t.apply(&bare).await;
    let given = json!({"spec": {"providerRef": reference("one")}});
    t.change("user", (API_VERSION, "ClusterStackRelease", "y"), given).await;
}

#[tokio::test]
async fn defaults_are_those_of_the_go_operator() {
    let t = World::new("defaults").await;
    let provider = json!({"apiVersion": "a/v1", "kind": "XTemplate", "name": "t"});
    let bare = json!({
        "apiVersion": API_VERSION, "kind": "ClusterStack", "metadata": {"name": "x"},
        "spec": {"provider": "docker", "name": "x", "kubernetesVersion": "1.34", "providerRef": provider},
    });
    let stored = t.apply(&bare).await;
    let expected = json!({
        "provider": "docker", "name": "x", "kubernetesVersion": "1.34", "providerRef": provider,
        "channel": "stable", "autoSubscribe": true, "noProvider": false,
    });
    assert_eq!(stored["spec"], expected);
}

#[tokio::test]
async fn objects_as_the_go_operator_wrote_them_are_taken_and_read() {
    let t = World::new("shape").await;
    // Its empty list of versions is null.
    let mut object = stack("x", &json!({}));
    object["spec"]["versions"] = Value::Null;
    let stored = refusal(&t, object).await;
    assert_eq!(stored, "");
    let since = "2025-01-01T00:00:00Z";
    let status = json!({"status": {
        "latestRelease": "docker-x-1-34-v1 | v1.34.7",
        "usableVersions": "v1",
        "summary": [{"name": "docker-x-1-34-v1", "ready": true, "phase": "done"}],
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": since},
            {"type": "ReleasesSynced", "status": "False", "severity": "Error", "reason": "X", "lastTransitionTime": since},
        ],
    }});
    t.stacks().patch_status("x", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let read = t.stacks().get("x").await.unwrap();
    assert_eq!(read.spec.versions, Vec::<String>::new());
    assert_eq!(read.status.unwrap().conditions[1].reason, "X");
}

#[tokio::test]
async fn the_status_of_a_release_of_two_thousand_objects_fits() {
    let t = World::new("large").await;
    let release =
        json!({"apiVersion": API_VERSION, "kind": "ClusterStackRelease", "metadata": {"name": "r"}, "spec": {}});
    t.apply(&release).await;
    let row = |n: usize| Resource {
        group: "infrastructure.cluster.x-k8s.io".into(),
        version: "v1beta1".into(),
        kind: "OpenStackMachineTemplate".into(),
        namespace: t.namespace.clone(),
        name: format!("openstack-scs-1-34-v2-worker-{n:04}"),
        status: ResourceStatus::NotSynced,
        reason: Some(clusterstack::api::Reason::Invalid),
        error: "the API server said so ".repeat(40),
        digest: "0123456789abcdef.0123456789abcdef".into(),
        ..Resource::default()
    };
    let facts = clusterstack::core::status::ReleaseFacts {
        generation: Some(1),
        resources: (0..2000).map(row).collect(),
        ..Default::default()
    };
    let status = clusterstack::core::status::release_status(
        &ClusterStackReleaseStatus::default(),
        facts,
        jiff::Timestamp::now(),
    );
    let size = serde_json::to_string(&status).unwrap().len();
    assert!(size <= 512 * 1024, "{size} bytes");
    let patch = json!({"apiVersion": API_VERSION, "kind": "ClusterStackRelease", "status": status});
    t.releases().patch_status("r", &PatchParams::apply("clusterstack").force(), &Patch::Apply(patch)).await.unwrap();
    let stored = t.releases().get("r").await.unwrap().status.unwrap();
    assert_eq!(stored, status);
}

#[tokio::test]
async fn statuses_without_anything_are_read() {
    let t = World::new("nostatus").await;
    assert_eq!(refusal(&t, stack("x", &json!({}))).await, "");
    let patch = Patch::Merge(json!({"status": {"observedGeneration": null}}));
    t.stacks().patch_status("x", &PatchParams::default(), &patch).await.unwrap();
    let status = t.stacks().get("x").await.unwrap().status.unwrap_or_default();
    assert_eq!(status, ClusterStackStatus::default());
}

#[tokio::test]
async fn what_nobody_has_looked_at_is_not_taken_for_done() {
    let t = World::new("unobserved").await;
    assert_eq!(refusal(&t, stack("x", &json!({}))).await, "");
    let mut made = t.get(API_VERSION, "ClusterStack", "x").await.unwrap();
    assert_eq!(made["status"], json!({"observedGeneration": -1}));
    assert_eq!(health::of(&made).as_str(), "InProgress");
    made["status"].take();
    assert_eq!(health::of(&made).as_str(), "Current");
}
