use serde_json::json;

use super::*;

fn worker(kind: WorkerKind, topology: Value) -> Worker {
    Worker { kind, name: "w".into(), class: "c".into(), topology }
}

/// One template on each side.
fn evaluated(place: &Place, kind: &str, spec: Option<&Value>) -> Evaluated {
    let mut evaluated = Evaluated::default();
    if let Some(spec) = spec {
        evaluated.templates.insert(place.clone(), json!({"kind": kind, "spec": {"template": {"spec": spec}}}));
        // A control plane has machines; what they are made of is the same here.
        if *place == Place::ControlPlaneMachine {
            let control_plane = json!({"kind": "KubeadmControlPlaneTemplate", "spec": {}});
            evaluated.templates.insert(Place::ControlPlane, control_plane);
        }
    }
    evaluated
}

fn verdict(place: &Place, kind: &str, before: &Value, after: &Value) -> Rollout {
    let (old, new) = (evaluated(place, kind, Some(before)), evaluated(place, kind, Some(after)));
    let objects = ClassObjects::default();
    let side = |evaluated| Topology { objects: &objects, evaluated, version: "v1.34.1" };
    let kind = match place {
        Place::Bootstrap(kind, _) | Place::Infrastructure(kind, _) => *kind,
        _ => WorkerKind::MachineDeployment,
    };
    let all = rollouts(side(&old), side(&new), &Value::Null, &[worker(kind, json!({}))]);
    let of = match place {
        Place::InfrastructureCluster => "InfrastructureCluster",
        Place::ControlPlane | Place::ControlPlaneMachine => "ControlPlane",
        _ => kind.as_str(),
    };
    all.into_iter().find(|rollout| rollout.kind == of).unwrap()
}

#[test]
fn fields_decide_whether_machines_are_replaced() {
    use Verdict::{InPlace, MayRoll, Rolls, Unchanged};
    let kubeadm = "KubeadmControlPlaneTemplate";
    let configuration = |part: Value| json!({"kubeadmConfigSpec": part});
    let bootstrap = |kind| Place::Bootstrap(kind, "w".to_owned());
    let machines = |kind| Place::Infrastructure(kind, "w".to_owned());
    let (deployment, pool) = (WorkerKind::MachineDeployment, WorkerKind::MachinePool);
    for (name, place, kind, before, after, expected) in [
        ("same", Place::ControlPlane, kubeadm, json!({"a": 1}), json!({"a": 1}), Unchanged),
        (
            "kubeadm",
            Place::ControlPlane,
            kubeadm,
            configuration(json!({"files": []})),
            configuration(json!({"files": [{"path": "/a"}]})),
            Rolls,
        ),
        (
            "api server",
            Place::ControlPlane,
            kubeadm,
            configuration(json!({"clusterConfiguration": {"apiServer": {"certSANs": ["a"]}}})),
            configuration(json!({"clusterConfiguration": {"apiServer": {"certSANs": ["b"]}}})),
            Rolls,
        ),
        (
            "dns",
            Place::ControlPlane,
            kubeadm,
            configuration(json!({"clusterConfiguration": {"dns": {"imageTag": "1"}}})),
            configuration(json!({"clusterConfiguration": {"dns": {"imageTag": "2"}}})),
            InPlace,
        ),
        (
            "discovery",
            Place::ControlPlane,
            kubeadm,
            configuration(json!({"joinConfiguration": {"discovery": {"a": 1}}})),
            configuration(json!({"joinConfiguration": {"discovery": {"a": 2}}})),
            InPlace,
        ),
        (
            "join",
            Place::ControlPlane,
            kubeadm,
            configuration(json!({"joinConfiguration": {"skipPhases": ["a"]}})),
            configuration(json!({"joinConfiguration": {"skipPhases": ["b"]}})),
            Rolls,
        ),
        (
            "init",
            Place::ControlPlane,
            kubeadm,
            configuration(json!({"initConfiguration": {"skipPhases": ["a"]}})),
            configuration(json!({"initConfiguration": {"skipPhases": ["b"]}})),
            MayRoll,
        ),
        (
            "drain timeout",
            Place::ControlPlane,
            kubeadm,
            json!({"machineTemplate": {"nodeDrainTimeout": "1m"}}),
            json!({"machineTemplate": {"nodeDrainTimeout": "2m"}}),
            InPlace,
        ),
        (
            "strategy",
            Place::ControlPlane,
            kubeadm,
            json!({}),
            json!({"rollout": {"strategy": {"type": "RollingUpdate"}}}),
            InPlace,
        ),
        (
            "another control plane",
            Place::ControlPlane,
            "KamajiControlPlaneTemplate",
            json!({"a": 1}),
            json!({"a": 2}),
            MayRoll,
        ),
        (
            "its machines",
            Place::ControlPlaneMachine,
            "MachineTemplate",
            json!({"image": "1"}),
            json!({"image": "2"}),
            Rolls,
        ),
        ("infrastructure", Place::InfrastructureCluster, "ClusterTemplate", json!({"a": 1}), json!({"a": 2}), InPlace),
        ("bootstrap", bootstrap(deployment), "KubeadmConfigTemplate", json!({"a": 1}), json!({"a": 2}), Rolls),
        ("machines", machines(deployment), "MachineTemplate", json!({"image": "1"}), json!({"image": "2"}), Rolls),
        ("machines of a pool", machines(pool), "PoolTemplate", json!({"image": "1"}), json!({"image": "2"}), MayRoll),
    ] {
        let rollout = verdict(&place, kind, &before, &after);
        assert_eq!(rollout.verdict, expected, "{name}: {rollout:?}");
    }
    let rollout = verdict(&machines(deployment), "MachineTemplate", &json!({"image": "1"}), &json!({"image": "2"}));
    assert_eq!(rollout.reasons[0].what, "MachineTemplate rotates");
    assert_eq!(rollout.reasons[0].fields[0].path, ".spec.template.spec.image");
}

#[test]
fn another_version_rolls_all_but_what_is_held_back() {
    let place = Place::Infrastructure(WorkerKind::MachineDeployment, "w".to_owned());
    let same = evaluated(&place, "MachineTemplate", Some(&json!({})));
    let objects = ClassObjects::default();
    let side = |version| Topology { objects: &objects, evaluated: &same, version };
    for (topology, expected) in [
        (json!({}), Verdict::Rolls),
        (json!({"metadata": {"annotations": {"topology.cluster.x-k8s.io/defer-upgrade": ""}}}), Verdict::MayRoll),
    ] {
        let workers = [worker(WorkerKind::MachineDeployment, topology)];
        let all = rollouts(side("v1.34.1"), side("v1.34.2"), &Value::Null, &workers);
        assert_eq!((all[0].verdict, all[0].reasons.len()), (expected, 1));
        assert!(all[0].reasons[0].what.starts_with("Kubernetes v1.34.1 → v1.34.2"));
    }
}

#[test]
fn the_class_of_workers_counts_where_the_topology_says_nothing() {
    let class = |domain: &str, seconds: u32| ClassObjects {
        class: json!({"spec": {"workers": {"machineDeployments": [{"class": "c", "failureDomain": domain, "minReadySeconds": seconds}]}}}),
        ..ClassObjects::default()
    };
    let none = Evaluated::default();
    for (topology, before, after, expected) in [
        (json!({}), class("a", 1), class("a", 1), None),
        (json!({}), class("a", 1), class("b", 1), Some(Verdict::Rolls)),
        (json!({"failureDomain": "z"}), class("a", 1), class("b", 1), None),
        (json!({}), class("a", 1), class("a", 2), Some(Verdict::InPlace)),
    ] {
        let side = |objects| Topology { objects, evaluated: &none, version: "v1.34.1" };
        let workers = [worker(WorkerKind::MachineDeployment, topology.clone())];
        let all = rollouts(side(&before), side(&after), &Value::Null, &workers);
        assert_eq!(all.first().map(|rollout| rollout.verdict), expected, "{topology}");
    }
}

#[test]
fn the_class_of_the_control_plane_counts_where_the_topology_says_nothing() {
    let class = |more: Value| {
        let mut control_plane = json!({
            "templateRef": {"name": "x"}, "machineInfrastructure": {"templateRef": {"name": "x"}},
            "deletion": {"nodeDrainTimeoutSeconds": 60}, "healthCheck": {"checks": {"nodeStartupTimeoutSeconds": 60}},
        });
        json_patch::merge(&mut control_plane, &more);
        ClassObjects { class: json!({"spec": {"controlPlane": control_plane}}), ..ClassObjects::default() }
    };
    let none = evaluated(&Place::ControlPlane, "KubeadmControlPlaneTemplate", Some(&json!({})));
    let check = || json!({"healthCheck": {"checks": {"nodeStartupTimeoutSeconds": 90}}});
    let drain = || json!({"deletion": {"nodeDrainTimeoutSeconds": 90}});
    let names = json!({"templateRef": {"name": "y"}, "machineInfrastructure": {"templateRef": {"name": "y"}}});
    for (name, topology, after, expected) in [
        ("names of templates", json!({}), names, Verdict::Unchanged),
        ("health check", json!({"replicas": 1}), check(), Verdict::InPlace),
        ("health check, switched on", json!({"healthCheck": {"enabled": true}}), check(), Verdict::InPlace),
        ("health check, switched off", json!({"healthCheck": {"enabled": false}}), check(), Verdict::Unchanged),
        ("health check of the topology", json!({"healthCheck": {"checks": {}}}), check(), Verdict::Unchanged),
        ("drain timeout", json!({"deletion": {"nodeDeletionTimeoutSeconds": 1}}), drain(), Verdict::InPlace),
        ("drain timeout of the topology", drain(), drain(), Verdict::Unchanged),
        ("labels", json!({"metadata": {"labels": {}}}), json!({"metadata": {"labels": {"a": "b"}}}), Verdict::InPlace),
    ] {
        let (before, after) = (class(json!({})), class(after));
        let side = |objects| Topology { objects, evaluated: &none, version: "v1.34.1" };
        let all = rollouts(side(&before), side(&after), &topology, &[]);
        assert_eq!(all[0].verdict, expected, "{name}: {all:?}");
    }
    // A class that was not read says nothing.
    let (before, after) = (class(json!({})), ClassObjects::default());
    let side = |objects| Topology { objects, evaluated: &none, version: "v1.34.1" };
    assert_eq!(rollouts(side(&before), side(&after), &json!({}), &[])[0].verdict, Verdict::Unchanged);
}

#[test]
fn what_was_not_read_is_never_said_to_stay() {
    use Verdict::{InPlace, Rolls, Unchanged, Unknown};
    let deployment = WorkerKind::MachineDeployment;
    let machines = Place::Infrastructure(deployment, "w".to_owned());
    let bootstrap = Place::Bootstrap(deployment, "w".to_owned());
    let template = |kind: &str, value: u32| json!({"kind": kind, "spec": {"template": {"spec": {"x": value}}}});
    let side = |value: u32, unread: &[&Place]| {
        let mut evaluated = Evaluated::default();
        for (place, kind) in [
            (&Place::InfrastructureCluster, "ClusterTemplate"),
            (&Place::ControlPlane, "KubeadmControlPlaneTemplate"),
            (&Place::ControlPlaneMachine, "MachineTemplate"),
            (&bootstrap, "ConfigTemplate"),
            (&machines, "MachineTemplate"),
        ] {
            if unread.contains(&place) {
                evaluated.unread.insert(place.clone(), format!("{kind} m{value}"));
            } else {
                evaluated.templates.insert(place.clone(), template(kind, value));
            }
        }
        evaluated
    };
    let objects = ClassObjects::default();
    let workers = [worker(deployment, json!({}))];
    let all = |before: &Evaluated, after: &Evaluated, version: &str| -> Vec<Rollout> {
        let of = |evaluated, version| Topology { objects: &objects, evaluated, version };
        rollouts(of(before, "v1.34.1"), of(after, version), &Value::Null, &workers)
    };
    for (unread, after, version, expected) in [
        (vec![&Place::ControlPlaneMachine, &machines], 1, "v1.34.1", [Unchanged, Unknown, Unknown]),
        (vec![&Place::ControlPlane, &bootstrap], 1, "v1.34.1", [Unchanged, Unknown, Unknown]),
        (vec![&Place::InfrastructureCluster], 1, "v1.34.1", [Unknown, Unchanged, Unchanged]),
        // What was read differs, and says more or less than what was not.
        (vec![&Place::ControlPlaneMachine, &machines], 2, "v1.34.1", [InPlace, Unknown, Rolls]),
        (vec![&Place::ControlPlane, &machines], 1, "v1.34.2", [Unchanged, Rolls, Rolls]),
    ] {
        // A template that one side alone could read did not come or go.
        for (old, new) in [(&unread[..], &unread[..]), (&unread[..], &[]), (&[], &unread[..])] {
            let all = all(&side(1, old), &side(after, new), version);
            let verdicts: Vec<Verdict> = all.iter().map(|rollout| rollout.verdict).collect();
            assert_eq!(verdicts, expected, "{unread:?}: {all:#?}");
        }
    }
    let all = all(&side(1, &[]), &side(1, &[&machines]), "v1.34.1");
    assert_eq!(all[2].reasons[0].what, "MachineTemplate m1 was not read");
}

#[test]
fn beside_a_class_that_was_not_read_nothing_is_known() {
    let class = json!({"spec": {"workers": {"machineDeployments": [{"class": "c", "failureDomain": "a"}]}}});
    let known = ClassObjects { class, ..ClassObjects::default() };
    let unread = ClassObjects::default();
    let cluster = json!({"spec": {"topology": {"workers": {"machineDeployments": [{"class": "c", "name": "w"}]}}}});
    let subject = super::super::patches::Subject {
        cluster: &cluster,
        control_plane: None,
        workers: &BTreeMap::new(),
        class: ("team", "x-v2"),
        version: "v1.34.1",
    };
    let of = |objects| super::super::patches::evaluate(objects, &subject);
    let (before, after) = (of(&known), of(&unread));
    assert_eq!(after.problems, Vec::<String>::new());
    let workers = super::super::patches::workers(&cluster);
    let all = rollouts(
        Topology { objects: &known, evaluated: &before, version: "v1.34.1" },
        Topology { objects: &unread, evaluated: &after, version: "v1.34.1" },
        &Value::Null,
        &workers,
    );
    let told: Vec<(&str, Verdict, &str)> =
        all.iter().map(|one| (one.kind.as_str(), one.verdict, one.reasons[0].what.as_str())).collect();
    let why = "ClusterClass team/x-v2 was not read";
    let kinds = ["InfrastructureCluster", "ControlPlane", "MachineDeployment"];
    assert_eq!(told, kinds.map(|kind| (kind, Verdict::Unknown, why)));
}
