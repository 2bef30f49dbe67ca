use super::*;
use crate::api;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use serde_json::json;
use std::collections::BTreeMap;

/// Where the webhook's certificate is.
const SECRET: &str = "w-webhook-certificate";
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

fn asked(what: &str, is_allowed: bool) -> Asked {
    Asked { role: "r", what: what.into(), may_be_narrow: false, namespace: String::new(), is_allowed }
}

/// One that may be bound in namespaces.
fn narrow(namespace: &str, is_allowed: bool) -> Asked {
    Asked { may_be_narrow: true, namespace: namespace.into(), ..asked("get secrets", is_allowed) }
}

fn deployment(ready: i64) -> Workload {
    let object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "clusterstack", "namespace": "cs", "generation": 1},
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": ready, "availableReplicas": ready},
    });
    let asked = asked("list clusters.cluster.x-k8s.io", true);
    Workload { object, pods: Vec::new(), rights: Some(Ok(vec![asked])), ..Workload::default() }
}

fn certificate(bundle: &str, is_usable: bool) -> Certificate {
    Certificate { bundle: bundle.into(), is_usable }
}

/// Has the operator serve something.
fn serve(facts: &mut Facts, argument: &str) {
    let containers = json!([{"args": ["operator", argument]}]);
    facts.workloads.as_mut().unwrap()[0].object["spec"]["template"] = json!({"spec": {"containers": containers}});
}

pub(super) fn healthy() -> Facts {
    let stack = json!({"metadata": {"name": "a", "namespace": "t"}, "spec": {"provider": "p", "name": "a", "kubernetesVersion": "1.34"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    Facts {
        kubernetes: Ok(format!("v{}.1", crate::core::build_info::BUILD.kubernetes)),
        definitions: Ok(definitions()),
        workloads: Ok(vec![deployment(2)]),
        cso: Vec::new(),
        shards: Ok(vec![shard("a", &json!({"leader": true})), shard("b", &json!({}))]),
        leases: BTreeMap::from([("cs".into(), Ok(["a", "b"].map(|name| lease(name, RENEWED)).to_vec()))]),
        now: "2026-01-01T00:00:10Z".parse().unwrap(),
        cluster_api: Ok(vec!["v1beta2".into()]),
        clusters: Ok(Vec::new()),
        classes: Ok(Vec::new()),
        hooks: Ok(vec![
            json!({"metadata": {"name": "h"}, "status": {"conditions": [{"type": "Discovered", "status": "True"}]}}),
        ]),
        webhooks: Ok(vec![json!({"metadata": {"name": "w"}, "webhooks": [{"clientConfig": {
            "caBundle": "UEVN", "service": {"namespace": "cs", "name": "s"},
        }}]})]),
        served: Served {
            services: BTreeMap::from([("cs/s".into(), Ok(Backing::Ready))]),
            certificates: BTreeMap::from([("w-webhook-certificate".into(), Ok(Some(certificate("PEM\n", true))))]),
        },
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
        (|f| f.kubernetes = Err(format!("{NO_LOGIN}: Unauthorized")), "kubernetes", Grade::Bad, "Unauthorized"),
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
            |f| f.definitions.as_mut().unwrap()[0]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
            "definitions",
            Grade::Bad,
            "being deleted, with all their objects: clusterstacks.",
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
                f.workloads.as_mut().unwrap()[0].rights = Some(Ok(vec![asked("list nodes", false)]));
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
        (|f| f.clusters = Err("Clusters can't be listed: forbidden".into()), "clusters", Grade::Unknown, "forbidden"),
        (
            |f| f.clusters = Err("Clusters can't be listed: storage is (re)initializing".into()),
            "clusters",
            Grade::Bad,
            "(re)initializing",
        ),
    ];
    found_alone(cases);
}

#[test]
fn what_keeps_the_operator_from_its_work_is_found_alone() {
    found_alone(&[
        (
            |f| f.definitions.as_mut().unwrap()[0]["spec"]["versions"][0]["served"] = json!(false),
            "definitions",
            Grade::Bad,
            "not served in the version that this binary works with: clusterstacks.",
        ),
        // What else is said of it, and of what it serves, is no fault.
        (
            |f| {
                serve(f, "--hook-bind-address=:1");
                f.hooks = Ok(vec![]);
                let workload = &mut f.workloads.as_mut().unwrap()[0];
                workload.object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                workload.object["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
                workload.object["status"] = json!({});
                workload.rights = Some(Ok(vec![asked("list nodes", false)]));
            },
            "operator",
            Grade::Warning,
            "Deployment cs/clusterstack is being deleted: foregroundDeletion has to let it go",
        ),
        (
            |f| f.workloads.as_mut().unwrap()[0].missing_account = Some("cs/clusterstack".into()),
            "rights",
            Grade::Bad,
            "works as ServiceAccount cs/clusterstack, which is not there",
        ),
        (
            |f| f.cso = vec![json!({"metadata": {"name": "cso", "namespace": "cso-system"}, "spec": {"replicas": 1}})],
            "operator",
            Grade::Bad,
            "Deployment cso-system/cso, the Go operator (CSO), works on the same objects",
        ),
    ]);
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
            |f| {
                f.shards = Ok(["a", "b"].map(|name| shard(name, &json!({"ready": false, "version": ""}))).to_vec());
                f.leases.insert("cs".into(), Ok(vec![]));
            },
            "replicas",
            Grade::Bad,
            "no replica is at work; these have ended: a (its Lease is gone), b (",
        ),
        (
            |f| drop(f.leases.insert("cs".into(), Err("Leases can't be listed: forbidden".into()))),
            "replicas",
            Grade::Unknown,
            "whether they live is not known: Leases can't be listed: forbidden",
        ),
    ]);
}

/// As a loop of crashes leaves them, and an operator of another namespace that is gone.
#[test]
fn replicas_that_ended_count_for_nothing() {
    let mut facts = healthy();
    let shards = facts.shards.as_mut().unwrap();
    shards.push(shard("c", &json!({"ready": false, "version": ""})));
    shards.push(came("d", "2026-01-01T00:00:05Z"));
    let mut other = shard("e", &json!({"ready": false, "version": "0.0.9"}));
    other.spec.lease_namespace = "other".into();
    shards.push(other);
    let back = Lease { metadata: lease("c", RENEWED).metadata, ..Lease::default() };
    facts.leases.get_mut("cs").unwrap().as_mut().unwrap().push(back);
    facts.leases.insert("other".into(), Ok(vec![]));
    let found = findings(&facts);
    assert_eq!(worst(&found), Grade::Good, "{found:#?}");
    assert!(found.iter().any(|one| one.message == "2 at work, one leads"), "{found:#?}");
    // One that lives and has not said its version is no other version.
    let mut facts = healthy();
    facts.shards.as_mut().unwrap()[1] = shard("b", &json!({"version": ""}));
    assert_eq!(worst(&findings(&facts)), Grade::Good);
    // What is dead and said that it worked.
    facts.leases.insert("cs".into(), Ok(vec![lease("a", RENEWED)]));
    let found = findings(&facts);
    assert!(found.iter().any(|one| one.remedy.contains("kubectl delete operatorshard NAME")), "{found:#?}");
}

/// One that has said nothing yet.
fn came(name: &str, made: &str) -> OperatorShard {
    let mut shard = shard(name, &json!({}));
    shard.status = None;
    shard.metadata.creation_timestamp = Some(serde_json::from_value(json!(made)).unwrap());
    shard
}

#[test]
fn replicas_that_have_just_come_may_settle() {
    found_alone(&[
        (
            |f| f.shards.as_mut().unwrap()[1] = came("b", "2026-01-01T00:00:05Z"),
            "replicas",
            Grade::Unknown,
            "not settled yet: b",
        ),
        (
            |f| f.shards = Ok(["a", "b"].map(|name| came(name, "2026-01-01T00:00:05Z")).to_vec()),
            "replicas",
            Grade::Unknown,
            "not settled yet: a, b",
        ),
        // The one before it has ended, and led.
        (
            |f| {
                let shards = f.shards.as_mut().unwrap();
                shards[0] = shard("a", &json!({}));
                shards[1] = came("b", "2026-01-01T00:00:05Z");
                shards[1].status = shard("b", &json!({"ready": false})).status;
            },
            "replicas",
            Grade::Unknown,
            "not settled yet: b",
        ),
    ]);
    // One that says nothing for longer is not at work.
    let mut facts = healthy();
    facts.shards.as_mut().unwrap()[1] = came("b", "2025-12-31T23:59:00Z");
    assert_eq!(worst(&findings(&facts)), Grade::Bad);
}

#[test]
fn rights_hooks_and_webhooks_that_do_not_work_are_found() {
    found_alone(&[
        (
            |f| {
                let rights = vec![narrow("", false), narrow("team", true), narrow("shop", false)];
                f.workloads.as_mut().unwrap()[0].rights = Some(Ok(rights));
            },
            "rights",
            Grade::Bad,
            "may not get secrets in shop (role r)",
        ),
        (
            |f| f.workloads.as_mut().unwrap()[0].rights = Some(Ok(vec![narrow("", false)])),
            "rights",
            Grade::Warning,
            "may not, in the whole cluster, get secrets (role r)",
        ),
        (
            |f| {
                f.hooks = Ok(vec![]);
                serve(f, "--hook-bind-address=:9442");
            },
            "hooks",
            Grade::Warning,
            "Deployment cs/clusterstack serves runtime hooks, and no ExtensionConfig",
        ),
        (
            |f| {
                f.webhooks = Ok(vec![]);
                serve(f, "--webhook-bind-address=:9443");
            },
            "webhook",
            Grade::Warning,
            "serves an admission webhook, and none of ours is registered",
        ),
        (
            |f| drop(f.served.services.insert("cs/s".into(), Ok(Backing::Missing))),
            "webhook",
            Grade::Bad,
            "names Service cs/s, which is not there",
        ),
        (
            |f| drop(f.served.services.insert("cs/s".into(), Ok(Backing::Nobody))),
            "webhook",
            Grade::Bad,
            "names Service cs/s, behind which no pod is ready",
        ),
        (
            |f| {
                f.webhooks.as_mut().unwrap()[0]["webhooks"][0]["clientConfig"] =
                    json!({"caBundle": "UEVN", "url": "https://x:1/y"});
            },
            "webhook",
            Grade::Unknown,
            "whether the API server reaches https://x:1/y",
        ),
        (
            |f| drop(f.served.certificates.insert(SECRET.into(), Ok(Some(certificate("OTHER", true))))),
            "webhook",
            Grade::Bad,
            "trusts another authority than that of Secret w-webhook-certificate",
        ),
        (
            |f| drop(f.served.certificates.insert(SECRET.into(), Ok(Some(certificate("PEM", false))))),
            "webhook",
            Grade::Bad,
            "that has ended",
        ),
        (
            |f| drop(f.served.certificates.insert(SECRET.into(), Err("forbidden".into()))),
            "webhook",
            Grade::Unknown,
            "whether it can be asked is not known: forbidden",
        ),
    ]);
}

#[test]
fn objects_are_told_by_what_they_say() {
    let stack = |facts: &mut Facts, ready: Value| {
        facts.objects = vec![(
            "ClusterStack",
            Ok(vec![
                json!({"metadata": {"name": "a", "namespace": "t"}, "spec": {"provider": "p", "name": "a", "kubernetesVersion": "1.34"},
                "status": {"conditions": ready}}),
            ]),
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

#[test]
fn what_is_bound_or_registered_where_it_is_needed_is_no_fault() {
    type Change = fn(&mut Facts);
    let cases: &[Change] = &[
        |f| {
            let rights = vec![narrow("", false), narrow("team", true), narrow("shop", true)];
            f.workloads.as_mut().unwrap()[0].rights = Some(Ok(rights));
        },
        |f| f.hooks = Ok(vec![]),
        |f| f.cso = vec![json!({"metadata": {"name": "cso", "namespace": "cso-system"}, "spec": {"replicas": 0}})],
        |f| {
            f.hooks = Ok(vec![]);
            serve(f, "--hook-bind-address=0");
        },
        |f| {
            f.webhooks = Ok(vec![]);
            serve(f, "--hook-bind-address=:1");
        },
        // Without Cluster API there is nowhere to register hooks.
        |f| {
            (f.hooks, f.cluster_api) = (Ok(vec![]), Ok(vec![]));
            serve(f, "--hook-bind-address=:1");
        },
    ];
    for (at, change) in cases.iter().enumerate() {
        let mut facts = healthy();
        change(&mut facts);
        let found = findings(&facts);
        let wrong: Vec<&Finding> =
            found.iter().filter(|one| one.grade != Grade::Good && one.check != "clusterApi").collect();
        assert!(wrong.is_empty(), "{at}: {wrong:#?}");
    }
}
