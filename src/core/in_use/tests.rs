use super::*;
use serde_json::json;

fn of_inventory() -> Footprint {
    let row = |group: &str, kind: &str, name: &str| Resource {
        group: group.into(),
        kind: kind.into(),
        namespace: "stacks".into(),
        name: name.into(),
        ..Resource::default()
    };
    footprint(
        "docker-x-1-34-v0-sha-abc",
        "stacks",
        &[
            row("cluster.x-k8s.io", "ClusterClass", "own-name"),
            row("infrastructure.cluster.x-k8s.io", "DockerMachineTemplate", "tmpl-v1"),
        ],
    )
}

fn cluster_of(topology: &Value) -> ClusterUse {
    cluster(&json!({"metadata": {"namespace": "team", "name": "c", "generation": 3}, "spec": {"topology": topology}}))
        .unwrap()
}

#[test]
fn a_cluster_of_any_namespace_counts_in_every_spelling() {
    for (topology, used) in [
        (json!({"class": "own-name", "classNamespace": "stacks"}), true),
        (json!({"classRef": {"name": "own-name", "namespace": "stacks"}}), true),
        (json!({"classRef": {"name": "docker-x-1-34-v0-sha.abc", "namespace": "stacks"}}), true),
        (json!({"class": "docker-x-1-34-v0-sha-abc", "classNamespace": "stacks"}), true),
        (json!({"class": "own-name"}), false),
        (json!({"class": "docker-x-1-34-v1", "classNamespace": "stacks"}), false),
        (json!(null), false),
    ] {
        let world = World { clusters: vec![cluster_of(&topology)], ..World::default() };
        assert_eq!(!users(&of_inventory(), &world).is_empty(), used, "{topology}");
    }
}

fn clone(base_kind: &str, name: &str, from: &str) -> Cloned {
    cloned(
        base_kind,
        &json!({"metadata": {"namespace": "team", "name": name, "labels": {CLUSTER_NAME: "c"}, "annotations": {CLONED_FROM: from}}}),
    )
    .unwrap()
}

#[test]
fn a_cluster_that_left_counts_until_its_roll_out_is_done() {
    let moved =
        |reconciled| ClusterUse { reconciled, ..cluster_of(&json!({"class": "newer", "classNamespace": "stacks"})) };
    let template = clone("DockerMachine", "c-md-0", "tmpl-v1");
    let old_machine = clone("DockerMachine", "c-md-0-abc", "c-md-0");
    let new_machine = clone("DockerMachine", "c-md-1-abc", "c-md-1");
    let lost = Cloned { control_plane: true, ..clone("DockerMachine", "c-cp-abc", "c-cp") };
    for (name, reconciled, templates, machines, used) in [
        ("template left behind, all new", true, vec![template.clone()], vec![new_machine.clone()], false),
        ("an old machine", true, vec![template.clone()], vec![old_machine.clone(), new_machine], true),
        ("topology not reconciled", false, vec![template], vec![], true),
        ("nothing of the release", false, vec![clone("DockerMachine", "c-md-1", "tmpl-v2")], vec![], false),
        ("a machine of the class's own template", true, vec![], vec![clone("DockerMachine", "m", "tmpl-v1")], true),
        ("a control plane machine whose clone is gone", true, vec![], vec![lost.clone()], true),
        (
            "a control plane machine of another clone",
            true,
            vec![clone("DockerMachine", "c-cp", "t")],
            vec![lost],
            false,
        ),
    ] {
        let world = World { clusters: vec![moved(reconciled)], templates, machines, ..World::default() };
        let expected = if used { vec![User::RollingOut("team/c".into())] } else { vec![] };
        assert_eq!(users(&of_inventory(), &world), expected, "{name}");
    }
    for (class, used) in [("newer", true), ("own-name", false)] {
        let clusters = vec![cluster_of(&json!({"class": class}))];
        let machines = vec![clone("DockerMachine", "m", "tmpl-v1")];
        let world = World { clusters, machines, ..World::default() };
        assert_eq!(!users(&of_inventory(), &world).is_empty(), used, "class {class} of another namespace");
    }
}

#[test]
fn a_clone_is_of_the_release_next_to_the_class_of_its_cluster() {
    let place: Place = ("team".into(), "DockerMachine".into(), "tmpl-v1".into());
    let machines = vec![clone("DockerMachine", "m", "tmpl-v1")];
    for (class, is_there, used) in [
        (json!({"class": "newer"}), true, false),
        // A Cluster that came from the other namespace, where no such template was ever.
        (json!({"class": "newer"}), false, true),
        (json!({"class": "newer", "classNamespace": "stacks"}), true, true),
    ] {
        let world = World { clusters: vec![cluster_of(&class)], machines: machines.clone(), ..World::default() };
        let asked = doubtful(&[of_inventory()], &world);
        let elsewhere: BTreeSet<Place> = asked.intersection(&BTreeSet::from([place.clone()])).cloned().collect();
        assert_eq!(asked.contains(&place), class.get("classNamespace").is_none(), "{class}");
        let elsewhere = if is_there { elsewhere } else { BTreeSet::new() };
        let world = World { elsewhere, ..world };
        assert_eq!(!users(&of_inventory(), &world).is_empty(), used, "{class}, there: {is_there}");
    }
}

#[test]
fn what_is_left_of_a_cluster_holds_releases_of_its_own_namespace_alone() {
    let row = |namespace: &str| Resource {
        group: "infrastructure.cluster.x-k8s.io".into(),
        kind: "DockerMachineTemplate".into(),
        namespace: namespace.into(),
        name: "tmpl-v1".into(),
        ..Resource::default()
    };
    let left = vec![clone("DockerMachine", "m", "tmpl-v1")];
    for (namespace, there, behind, expected) in [
        ("team", false, false, vec![User::Left("team/c".into())]),
        ("stacks", false, true, vec![]),
        ("stacks", true, false, vec![User::RollingOut("team/c".into())]),
    ] {
        let release = footprint("docker-x-1-34-v1", namespace, &[row(namespace)]);
        let clusters = Vec::from_iter(there.then(|| cluster_of(&json!({"class": "x", "classNamespace": namespace}))));
        let world = World { clusters, machines: left.clone(), ..World::default() };
        assert_eq!(is_behind(std::slice::from_ref(&release), &world), behind, "{namespace}");
        assert_eq!(users(&release, &world), expected, "{namespace}, there: {there}");
    }
}

#[test]
fn a_copied_class_holds_the_release_whose_templates_it_names() {
    let beta1 = |name: &str| {
        json!({"spec": {
            "infrastructure": {"ref": {"kind": "DockerClusterTemplate", "name": "other"}},
            "workers": {"machineDeployments": [
                {"template": {"infrastructure": {"ref": {"kind": "DockerMachineTemplate", "name": name}}}},
            ]},
        }})
    };
    let beta2 = json!({"spec": {
        "controlPlane": {"machineInfrastructure": {"templateRef": {"kind": "DockerMachineTemplate", "name": "tmpl-v1"}}},
        "variables": [{"ref": {"kind": "DockerMachineTemplate", "name": "no-reference"}}],
    }});
    assert_eq!(templates_of_class(&beta2), BTreeSet::from([("DockerMachine".to_owned(), "tmpl-v1".to_owned())]));
    let copied = ("stacks".to_owned(), "copied".to_owned());
    for (class, place, used) in [
        (&beta1("tmpl-v1"), "stacks", true),
        (&beta2, "stacks", true),
        (&beta1("tmpl-v2"), "stacks", false),
        (&beta1("tmpl-v1"), "elsewhere", false),
    ] {
        let clusters = vec![cluster_of(&json!({"class": "copied", "classNamespace": place}))];
        let world = World { clusters, ..World::default() };
        let asked = classes_of_others(&[of_inventory()], &world);
        assert_eq!(asked.contains(&copied), place == "stacks", "{place}");
        let classes = asked.into_iter().map(|asked| (asked, templates_of_class(class))).collect();
        let world = World { classes, ..world };
        let expected =
            used.then(|| User::OfClass { cluster: "team/c".into(), namespace: "stacks".into(), name: "copied".into() });
        assert_eq!(users(&of_inventory(), &world), Vec::from_iter(expected), "{class} in {place}");
    }
}

#[test]
fn an_addon_holds_its_release() {
    let addon = AddonUse {
        namespace: "team".into(),
        name: "a".into(),
        cluster: "c".into(),
        cluster_stack: "docker-x-1-34-v0-sha.abc".into(),
    };
    for (namespace, held) in [("stacks", true), ("team", false)] {
        let addons = vec![AddonUse { namespace: namespace.into(), ..addon.clone() }];
        let world = World { addons, ..World::default() };
        assert_eq!(!users(&of_inventory(), &world).is_empty(), held, "without a Cluster in {namespace}");
    }
    let world = World { addons: vec![addon], ..World::default() };
    // Its Cluster has left the release, whose stages were the last that were done.
    for (namespace, held) in [("stacks", true), ("team", false), ("elsewhere", false)] {
        let class = json!({"class": "newer", "classNamespace": namespace});
        let world = World { clusters: vec![cluster_of(&class)], ..world.clone() };
        assert_eq!(!users(&of_inventory(), &world).is_empty(), held, "class in {namespace}");
    }
}

#[test]
fn both_contracts_say_when_a_topology_is_reconciled() {
    let with = |status: Value| {
        cluster(&json!({"metadata": {"namespace": "t", "name": "c", "generation": 3}, "status": status}))
            .unwrap()
            .reconciled
    };
    let condition = |status: &str, observed: Value| json!([{"type": "TopologyReconciled", "status": status, "observedGeneration": observed}]);
    assert!(with(json!({"observedGeneration": 3, "conditions": condition("True", Value::Null)})));
    assert!(with(json!({"conditions": condition("True", json!(3))})));
    assert!(with(json!({"v1beta2": {"conditions": condition("True", json!(3))}})));
    assert!(!with(json!({"conditions": condition("True", json!(2))})));
    assert!(!with(json!({"observedGeneration": 2, "conditions": condition("True", Value::Null)})));
    // That of v1beta1 is of before the change, though somebody has seen it.
    for (status, observed) in [("False", 3), ("True", 2)] {
        assert!(!with(json!({
            "observedGeneration": 3, "conditions": condition("True", Value::Null),
            "v1beta2": {"conditions": condition(status, json!(observed))},
        })));
    }
    assert!(!with(json!({"conditions": condition("False", json!(3))})));
    assert!(!with(json!({})));
}

#[test]
fn a_template_that_releases_have_in_common_holds_the_newest_of_them() {
    let row = |name: &str, status| Resource {
        group: "infrastructure.cluster.x-k8s.io".into(),
        kind: "DockerMachineTemplate".into(),
        namespace: "stacks".into(),
        name: name.into(),
        status,
        ..Resource::default()
    };
    let (synced, not) = (ResourceStatus::Synced, ResourceStatus::NotSynced);
    let old = [row("both", synced), row("old", synced), row("not yet", synced)];
    let new = [row("both", synced), row("not yet", not)];
    let names = |rows: &[Resource]| rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&without_shared(&old, [&new[..]].into_iter())), ["old", "not yet"]);
    assert_eq!(without_shared(&old, std::iter::empty()), old);
    // A ClusterClass is never left out: Clusters name it.
    let class = Resource { group: "cluster.x-k8s.io".into(), kind: "ClusterClass".into(), ..row("both", synced) };
    assert_eq!(without_shared(std::slice::from_ref(&class), [std::slice::from_ref(&class)].into_iter()).len(), 1);
    let clone = Cloned {
        base_kind: "DockerMachine".into(),
        namespace: "team".into(),
        name: "clone".into(),
        cluster: "c".into(),
        from: "both".into(),
        control_plane: false,
    };
    let machine = Cloned { name: "machine".into(), from: "clone".into(), ..clone.clone() };
    let clusters = vec![cluster_of(&json!({"class": "newer", "classNamespace": "stacks"}))];
    let world = World { clusters, templates: vec![clone], machines: vec![machine], ..World::default() };
    let users_of = |rows: &[Resource]| users(&footprint("docker-x-1-34-v1", "stacks", rows), &world).len();
    assert_eq!((users_of(&old), users_of(&without_shared(&old, [&new[..]].into_iter())), users_of(&new)), (1, 0, 1));
}
