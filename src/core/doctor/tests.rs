use super::*;
use crate::api;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use serde_json::json;
use std::collections::BTreeMap;

/// When replicas renewed their Leases.
const RENEWED: &str = "2026-01-01T00:00:01.000000Z";

fn definitions() -> Vec<Value> {
    let established = json!({"conditions": [{"type": "Established", "status": "True"}]});
    let all = api::custom_resource_definitions();
    all.iter()
        .map(|one| {
            let mut spec = serde_json::to_value(&one.spec).unwrap();
            spec["conversion"] = json!({"strategy": "None"});
            json!({"metadata": {"name": one.name_any()}, "spec": spec, "status": established})
        })
        .collect()
}

fn shard(name: &str, status: &Value) -> OperatorShard {
    let mut whole = json!({"ready": true, "leader": false, "version": env!("CARGO_PKG_VERSION")});
    for (field, value) in status.as_object().unwrap() {
        whole[field] = value.clone();
    }
    serde_json::from_value(json!({
        "apiVersion": api::API_VERSION, "kind": "OperatorShard", "metadata": {"name": name},
        "spec": {"leaseNamespace": "cs", "identity": name}, "status": whole,
    }))
    .unwrap()
}

fn lease(name: &str, renewed: &str) -> Lease {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 15, "renewTime": renewed},
    }))
    .unwrap()
}

fn deployment(ready: i64) -> Workload {
    let object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "clusterstack", "namespace": "cs", "generation": 1},
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": ready, "availableReplicas": ready},
    });
    let asked = Asked { role: "r", what: "list clusters.cluster.x-k8s.io".into(), is_allowed: true };
    Workload { object, pods: Vec::new(), rights: Some(Ok(vec![asked])) }
}

fn healthy() -> Facts {
    let stack = json!({"metadata": {"name": "a", "namespace": "t"}, "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    Facts {
        kubernetes: Ok(format!("v{}.1", crate::core::build_info::BUILD.kubernetes)),
        definitions: Ok(definitions()),
        workloads: Ok(vec![deployment(2)]),
        shards: Ok(vec![shard("a", &json!({"leader": true})), shard("b", &json!({}))]),
        leases: BTreeMap::from([("cs".into(), Ok(["a", "b"].map(|name| lease(name, RENEWED)).to_vec()))]),
        now: "2026-01-01T00:00:10Z".parse().unwrap(),
        cluster_api: Ok(vec!["v1beta2".into()]),
        hooks: Ok(vec![
            json!({"metadata": {"name": "h"}, "status": {"conditions": [{"type": "Discovered", "status": "True"}]}}),
        ]),
        webhooks: Ok(vec![json!({"metadata": {"name": "w"}, "webhooks": [{"clientConfig": {"caBundle": "x"}}]})]),
        objects: vec![("ClusterStack", Ok(vec![stack]))],
    }
}

/// What breaks an installation, and what is found then: its check, how bad it is, and a part of its message.
type Case = (fn(&mut Facts), &'static str, Grade, &'static str);

fn found_alone(cases: &[Case]) {
    for (break_it, check, grade, part) in cases {
        let mut facts = healthy();
        break_it(&mut facts);
        let found = findings(&facts);
        let wrong: Vec<&Finding> = found.iter().filter(|finding| finding.grade != Grade::Good).collect();
        let [only] = wrong.as_slice() else { panic!("{check} {part}: {wrong:#?}") };
        assert!(only.check == *check && only.grade == *grade && only.message.contains(part), "{part}: {only:#?}");
        assert!(!only.remedy.is_empty(), "{only:#?}");
    }
}

#[test]
fn a_healthy_installation_has_nothing_to_mend() {
    let found = findings(&healthy());
    assert_eq!(worst(&found), Grade::Good, "{found:#?}");
    assert!(found.iter().all(|finding| finding.remedy.is_empty()), "{found:#?}");
}

#[test]
fn each_fault_is_found_alone_and_told_what_to_do() {
    let cases: &[Case] = &[
        (|f| f.kubernetes = Err("no answer".into()), "kubernetes", Grade::Bad, "no answer"),
        (|f| f.kubernetes = Ok("v1.99.0".into()), "kubernetes", Grade::Warning, "v1.99.0"),
        (|f| f.kubernetes = Ok("v1.20.0".into()), "kubernetes", Grade::Warning, "v1.20.0"),
        (
            |f| drop(f.definitions.as_mut().unwrap().remove(0)),
            "definitions",
            Grade::Bad,
            "not installed: clusterstacks.",
        ),
        (
            |f| f.definitions.as_mut().unwrap()[0]["status"] = json!({}),
            "definitions",
            Grade::Bad,
            "not established: clusterstacks.",
        ),
        (
            |f| f.definitions.as_mut().unwrap()[0]["spec"]["versions"][0]["schema"] = json!({}),
            "definitions",
            Grade::Warning,
            "of another version than this binary: clusterstacks.",
        ),
        (|f| f.workloads = Ok(vec![]), "operator", Grade::Warning, "neither a Deployment"),
        (|f| f.workloads = Ok(vec![deployment(1)]), "operator", Grade::Bad, "1 of 2"),
        (
            |f| {
                let asked = Asked { role: "r", what: "list nodes".into(), is_allowed: false };
                f.workloads.as_mut().unwrap()[0].rights = Some(Ok(vec![asked]));
            },
            "rights",
            Grade::Bad,
            "may not list nodes (role r)",
        ),
        (|f| f.shards = Ok(vec![]), "replicas", Grade::Bad, "no replica"),
        (
            |f| f.shards.as_mut().unwrap()[1] = shard("b", &json!({"ready": false})),
            "replicas",
            Grade::Bad,
            "not at work: b",
        ),
        (
            |f| f.shards.as_mut().unwrap()[1] = shard("b", &json!({"leader": true})),
            "replicas",
            Grade::Bad,
            "2 of those",
        ),
        (
            |f| f.shards.as_mut().unwrap()[1] = shard("b", &json!({"version": "0.0.9"})),
            "replicas",
            Grade::Warning,
            "versions 0.0.9, ",
        ),
        (
            |f| {
                let settings = json!({"running": "1", "wanted": "2", "refused": ""});
                f.shards.as_mut().unwrap()[1] = shard("b", &json!({"settings": settings}));
            },
            "replicas",
            Grade::Warning,
            "settings not taken yet: b",
        ),
        (
            |f| {
                let settings = json!({"running": "1", "wanted": "2", "refused": "interval is none"});
                f.shards.as_mut().unwrap()[1] = shard("b", &json!({"settings": settings}));
            },
            "replicas",
            Grade::Bad,
            "settings refused (interval is none): b",
        ),
        (|f| f.cluster_api = Ok(vec![]), "clusterApi", Grade::Warning, "no Clusters"),
        (|f| f.cluster_api = Ok(vec!["v1alpha3".into()]), "clusterApi", Grade::Bad, "v1alpha3"),
        (|f| f.hooks = Ok(vec![json!({"metadata": {"name": "h"}})]), "hooks", Grade::Warning, "has not looked at"),
        (
            |f| f.webhooks = Ok(vec![json!({"metadata": {"name": "w"}, "webhooks": [{"clientConfig": {}}]})]),
            "webhook",
            Grade::Bad,
            "no authority",
        ),
        (|f| f.objects[0].1 = Err("forbidden".into()), "ClusterStack", Grade::Unknown, "forbidden"),
    ];
    found_alone(cases);
}

#[test]
fn whether_it_runs_is_found_whatever_it_says() {
    found_alone(&[
        (
            |f| f.workloads.as_mut().unwrap()[0].object["spec"]["replicas"] = json!(0),
            "operator",
            Grade::Bad,
            "is to have no replica",
        ),
        (
            |f| f.now = "2026-01-01T00:01:13Z".parse().unwrap(),
            "replicas",
            Grade::Bad,
            "whatever they said last: a (its Lease of 15 s was renewed 72 s ago), b (",
        ),
        (
            |f| {
                f.leases.get_mut("cs").unwrap().as_mut().unwrap().pop();
            },
            "replicas",
            Grade::Bad,
            "whatever they said last: b (its Lease is gone)",
        ),
        (
            |f| drop(f.leases.insert("cs".into(), Err("Leases can't be listed: forbidden".into()))),
            "replicas",
            Grade::Unknown,
            "whether they live is not known: Leases can't be listed: forbidden",
        ),
    ]);
}

#[test]
fn objects_are_told_by_what_they_say() {
    let stack = |facts: &mut Facts, ready: Value| {
        facts.objects = vec![(
            "ClusterStack",
            Ok(vec![json!({"metadata": {"name": "a", "namespace": "t"}, "status": {"conditions": ready}})]),
        )];
    };
    for (ready, grade, part) in [
        (
            json!([{"type": "Ready", "status": "False", "reason": "SourceUnreachable", "message": "m"}]),
            Grade::Warning,
            "1 of 1 SourceUnreachable: t/a: m",
        ),
        (
            json!([{"type": "Ready", "status": "False", "reason": "SpecInvalid"}, {"type": "Stalled", "status": "True", "reason": "SpecInvalid"}]),
            Grade::Bad,
            "1 of 1 SpecInvalid: t/a",
        ),
        (json!([]), Grade::Warning, "NotLookedAt"),
    ] {
        let mut facts = healthy();
        stack(&mut facts, ready);
        let found = findings(&facts);
        assert_eq!(worst(&found), grade, "{found:#?}");
        assert!(found.iter().any(|finding| finding.message.contains(part)), "{part}: {found:#?}");
    }
}
