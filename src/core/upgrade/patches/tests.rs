#![allow(clippy::needless_pass_by_value, reason = "`json!` reads better without a borrow")]

use super::super::class::TemplateKey;
use super::*;

const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io/v1beta2";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io/v1beta2";
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io/v1beta2";

fn template(api_version: &str, kind: &str, name: &str, spec: Value) -> (TemplateKey, Value) {
    let reference =
        TemplateReference { api_version: api_version.to_owned(), kind: kind.to_owned(), name: name.to_owned() };
    let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": {"template": {"spec": spec}}});
    (reference.key(), object)
}

/// A class with two classes of workers, whose patches are given.
fn class(variables: Value, patches: Value) -> ClassObjects {
    let named = |api_version: &str, kind: &str, name: &str| json!({"templateRef": {"apiVersion": api_version, "kind": kind, "name": name}});
    let worker = |class: &str| {
        json!({
            "class": class,
            "bootstrap": named(BOOTSTRAP, "KubeadmConfigTemplate", "worker"),
            "infrastructure": named(INFRASTRUCTURE, "MachineTemplate", "worker"),
        })
    };
    let mut control_plane = named(CONTROL_PLANE, "KubeadmControlPlaneTemplate", "control");
    control_plane["machineInfrastructure"] = named(INFRASTRUCTURE, "MachineTemplate", "control");
    let pool = json!({
        "class": "pool",
        "bootstrap": named(BOOTSTRAP, "KubeadmConfigTemplate", "worker"),
        "infrastructure": named(INFRASTRUCTURE, "MachinePoolTemplate", "pool"),
    });
    let class = json!({"spec": {
        "infrastructure": named(INFRASTRUCTURE, "ClusterTemplate", "cluster"),
        "controlPlane": control_plane,
        "workers": {"machineDeployments": [worker("default-worker"), worker("gpu")], "machinePools": [pool]},
        "variables": variables,
        "patches": patches,
    }});
    let templates = [
        template(INFRASTRUCTURE, "ClusterTemplate", "cluster", json!({"x": "-"})),
        template(CONTROL_PLANE, "KubeadmControlPlaneTemplate", "control", json!({"x": "-", "files": [{"path": "/a"}]})),
        template(INFRASTRUCTURE, "MachineTemplate", "control", json!({"x": "-"})),
        template(INFRASTRUCTURE, "MachineTemplate", "worker", json!({"x": "-"})),
        template(BOOTSTRAP, "KubeadmConfigTemplate", "worker", json!({"x": "-"})),
        template(INFRASTRUCTURE, "MachinePoolTemplate", "pool", json!({"x": "-"})),
    ];
    ClassObjects { class, templates: templates.into() }
}

fn cluster(variables: Value) -> Value {
    json!({
        "metadata": {"name": "c", "namespace": "team", "uid": "u", "labels": {"a": "b"}},
        "spec": {
            "clusterNetwork": {"serviceDomain": "local", "pods": {"cidrBlocks": ["10.0.0.0/8", "fd00::/64"]}},
            "topology": {
                "variables": variables,
                "controlPlane": {"replicas": 3},
                "workers": {
                    "machineDeployments": [
                        {"class": "default-worker", "name": "md-0", "replicas": 2},
                        {"class": "gpu", "name": "md-gpu", "variables": {"overrides": [{"name": "size", "value": "huge"}]}},
                    ],
                    "machinePools": [{"class": "pool", "name": "mp-0"}],
                },
            },
        },
    })
}

fn selector(api_version: &str, kind: &str, resources: Value) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "matchResources": resources})
}

/// A patch that sets `x` of what its selector takes.
fn patch(selector: Value, operation: Value) -> Value {
    let mut made = json!({"op": "replace", "path": "/spec/template/spec/x"});
    json_patch::merge(&mut made, &operation);
    json!({"name": "p", "definitions": [{"selector": selector, "jsonPatches": [made]}]})
}

fn run(objects: &ClassObjects, cluster: &Value) -> Evaluated {
    let control_plane = json!({
        "metadata": {"name": "c-cp", "labels": {"l": "v"}},
        "spec": {"machineTemplate": {"spec": {"infrastructureRef": {"name": "c-cp-infra"}}}},
    });
    let md = json!({
        "metadata": {"name": "c-md-0"},
        "spec": {"replicas": 5, "template": {"spec": {"bootstrap": {"configRef": {"name": "c-boot"}}, "infrastructureRef": {"name": "c-machines"}}}},
    });
    let workers = BTreeMap::from([((WorkerKind::MachineDeployment, "md-0".to_owned()), md)]);
    let subject = Subject {
        cluster,
        control_plane: Some(&control_plane),
        workers: &workers,
        class: ("stacks", "the-class"),
        version: "v1.34.7",
    };
    evaluate(objects, &subject)
}

/// What `x` is in each place after one patch.
fn set(evaluated: &Evaluated) -> Vec<(&'static str, Value)> {
    use WorkerKind::{MachineDeployment, MachinePool};
    let name = |place: &Place| match place {
        Place::InfrastructureCluster => "cluster",
        Place::ControlPlane => "control plane",
        Place::ControlPlaneMachine => "control plane machine",
        Place::Bootstrap(MachineDeployment, name) if name == "md-0" => "bootstrap",
        Place::Infrastructure(MachineDeployment, name) if name == "md-0" => "machine",
        Place::Bootstrap(MachineDeployment, _) => "gpu bootstrap",
        Place::Infrastructure(MachineDeployment, _) => "gpu machine",
        Place::Bootstrap(MachinePool, _) => "pool bootstrap",
        Place::Infrastructure(MachinePool, _) => "pool",
    };
    let x = |object: &Value| object.pointer("/spec/template/spec/x").cloned().unwrap_or_default();
    let all = evaluated.templates.iter().map(|(place, object)| (name(place), x(object)));
    all.filter(|(_, value)| *value != json!("-")).collect()
}

fn names(evaluated: &Evaluated) -> Vec<&'static str> {
    set(evaluated).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn selectors_take_what_they_name() {
    let deployments = |names: Value| json!({"machineDeploymentClass": {"names": names}});
    let pools = |names: Value| json!({"machinePoolClass": {"names": names}});
    let machine = |resources: Value| selector(INFRASTRUCTURE, "MachineTemplate", resources);
    let config = |resources: Value| selector(BOOTSTRAP, "KubeadmConfigTemplate", resources);
    for (selector, expected) in [
        (selector(INFRASTRUCTURE, "ClusterTemplate", json!({"infrastructureCluster": true})), vec!["cluster"]),
        (selector(INFRASTRUCTURE, "ClusterTemplate", json!({"controlPlane": true})), vec![]),
        (
            selector(
                "infrastructure.cluster.x-k8s.io/v1beta1",
                "ClusterTemplate",
                json!({"infrastructureCluster": true}),
            ),
            vec![],
        ),
        (selector(CONTROL_PLANE, "KubeadmControlPlaneTemplate", json!({"controlPlane": true})), vec!["control plane"]),
        (selector(CONTROL_PLANE, "KubeadmControlPlaneTemplate", json!({"controlPlane": false})), vec![]),
        (machine(json!({"controlPlane": true})), vec!["control plane machine"]),
        (machine(deployments(json!(["default-worker"]))), vec!["machine"]),
        (machine(deployments(json!(["gpu", "default-worker"]))), vec!["machine", "gpu machine"]),
        (machine(deployments(json!(["*"]))), vec!["machine", "gpu machine"]),
        (machine(deployments(json!(["*-worker"]))), vec!["machine"]),
        (machine(deployments(json!(["default-*"]))), vec!["machine"]),
        (machine(deployments(json!(["other"]))), vec![]),
        (machine(deployments(json!([]))), vec![]),
        (machine(pools(json!(["*"]))), vec![]),
        (config(deployments(json!(["default-worker"]))), vec!["bootstrap"]),
        (config(pools(json!(["pool"]))), vec!["pool bootstrap"]),
        (config(json!({})), vec![]),
    ] {
        let objects = class(json!([]), json!([patch(selector.clone(), json!({"value": "set"}))]));
        let evaluated = run(&objects, &cluster(json!([])));
        assert_eq!(evaluated.problems, Vec::<String>::new(), "{selector}");
        let mut found = names(&evaluated);
        found.sort_by_key(|name| expected.iter().position(|other| other == name));
        assert_eq!(found, expected, "{selector}");
    }
}

#[test]
fn values_come_from_variables_and_templates() {
    let variables = json!([
        {"name": "size", "schema": {"openAPIV3Schema": {"type": "string", "default": "small"}}},
        {"name": "disks", "schema": {"openAPIV3Schema": {"type": "array", "items": {"type": "object", "properties": {"gb": {"type": "integer", "default": 10}}}}}},
        {"name": "count", "schema": {"openAPIV3Schema": {"type": "integer"}}},
        {"name": "unset", "schema": {"openAPIV3Schema": {"type": "string"}}},
    ]);
    let given = json!([
        {"name": "disks", "value": [{"name": "a"}, {"name": "b", "gb": 20}]},
        {"name": "count", "value": 4},
        {"name": "undefined", "value": "x"},
    ]);
    let from = |key: &str, text: &str| json!({"valueFrom": {key: text}});
    let control_plane = selector(CONTROL_PLANE, "KubeadmControlPlaneTemplate", json!({"controlPlane": true}));
    let ok = |value: Value| Ok::<Value, &str>(value);
    for (operation, expected) in [
        (json!({"value": {"a": [1]}}), ok(json!({"a": [1]}))),
        (from("variable", "size"), ok(json!("small"))),
        (from("variable", "count"), ok(json!(4))),
        (from("variable", "disks[1].gb"), ok(json!(20))),
        (from("variable", "disks[0].gb"), ok(json!(10))),
        (from("variable", "disks[0]"), ok(json!({"name": "a", "gb": 10}))),
        (from("variable", "disks[2]"), Err("has no value")),
        (from("variable", "disks[x]"), Err("no path")),
        (from("variable", "unset"), Err("variable \"unset\" has no value")),
        (from("variable", "undefined"), Err("variable \"undefined\" has no value")),
        (from("variable", "builtin.cluster.name"), ok(json!("c"))),
        (from("variable", "builtin.cluster.namespace"), ok(json!("team"))),
        (from("variable", "builtin.cluster.uid"), ok(json!("u"))),
        (from("variable", "builtin.cluster.topology.version"), ok(json!("v1.34.7"))),
        (from("variable", "builtin.cluster.topology.class"), ok(json!("the-class"))),
        (from("variable", "builtin.cluster.topology.classNamespace"), ok(json!("stacks"))),
        (from("variable", "builtin.cluster.topology.classRef.name"), ok(json!("the-class"))),
        (from("variable", "builtin.cluster.metadata.labels.a"), ok(json!("b"))),
        (from("variable", "builtin.cluster.network.serviceDomain"), ok(json!("local"))),
        (from("variable", "builtin.cluster.network.pods[1]"), ok(json!("fd00::/64"))),
        (from("variable", "builtin.cluster.network.services"), Err("has no value")),
        (from("variable", "builtin.controlPlane.version"), ok(json!("v1.34.7"))),
        (from("variable", "builtin.controlPlane.replicas"), ok(json!(3))),
        (from("variable", "builtin.controlPlane.name"), ok(json!("c-cp"))),
        (from("variable", "builtin.controlPlane.machineTemplate.infrastructureRef.name"), ok(json!("c-cp-infra"))),
        (from("variable", "builtin.machineDeployment.class"), Err("has no value")),
        (from("template", "{{ .size | upper }}-{{ .count }}"), ok(json!("SMALL-4"))),
        (
            from("template", "a: {{ .builtin.controlPlane.version }}\nb: [{{ range .disks }}{{ .name }},{{ end }}]"),
            ok(json!({"a": "v1.34.7", "b": ["a", "b"]})),
        ),
        (
            from(
                "template",
                "{{ if .unset }}a{{ else }}{{ semver .builtin.controlPlane.version | toString }}{{ end }}",
            ),
            ok(json!("1.34.7")),
        ),
        (from("template", "{{ .size"), Err("its template fails")),
        (from("template", "{{ fail \"no\" }}"), Err("its template fails")),
        (from("template", "a: b: c"), Err("gives no YAML")),
        (json!({"value": 1, "valueFrom": {"variable": "size"}}), Err("exactly one")),
        (json!({}), Err("exactly one")),
        (json!({"path": "/spec/template/spec/none/y", "value": 1}), Err("can't be applied")),
    ] {
        let objects = class(variables.clone(), json!([patch(control_plane.clone(), operation.clone())]));
        let evaluated = run(&objects, &cluster(given.clone()));
        match expected {
            Ok(value) => {
                assert_eq!(evaluated.problems, Vec::<String>::new(), "{operation}");
                assert_eq!(set(&evaluated), [("control plane", value)], "{operation}");
            }
            Err(part) => {
                assert!(
                    evaluated.problems.len() == 1 && evaluated.problems[0].contains(part),
                    "{operation}: {:?}",
                    evaluated.problems
                );
                assert_eq!(set(&evaluated), [], "{operation}");
            }
        }
    }
}

#[test]
fn workers_see_their_own_variables() {
    let variables = json!([{"name": "size", "schema": {"openAPIV3Schema": {"type": "string", "default": "small"}}}]);
    let machines = selector(INFRASTRUCTURE, "MachineTemplate", json!({"machineDeploymentClass": {"names": ["*"]}}));
    for (path, md, gpu) in [
        ("size", json!("small"), json!("huge")),
        ("builtin.machineDeployment.class", json!("default-worker"), json!("gpu")),
        ("builtin.machineDeployment.topologyName", json!("md-0"), json!("md-gpu")),
        ("builtin.machineDeployment.version", json!("v1.34.7"), json!("v1.34.7")),
        ("builtin.cluster.name", json!("c"), json!("c")),
    ] {
        let objects =
            class(variables.clone(), json!([patch(machines.clone(), json!({"valueFrom": {"variable": path}}))]));
        let evaluated = run(&objects, &cluster(json!([])));
        assert_eq!(set(&evaluated), [("machine", md), ("gpu machine", gpu)], "{path}");
    }
    for (path, expected) in [
        ("builtin.machineDeployment.name", json!("c-md-0")),
        ("builtin.machineDeployment.replicas", json!(2)),
        ("builtin.machineDeployment.bootstrap.configRef.name", json!("c-boot")),
        ("builtin.machineDeployment.infrastructureRef.name", json!("c-machines")),
    ] {
        let only = selector(
            INFRASTRUCTURE,
            "MachineTemplate",
            json!({"machineDeploymentClass": {"names": ["default-worker"]}}),
        );
        let objects = class(json!([]), json!([patch(only, json!({"valueFrom": {"variable": path}}))]));
        assert_eq!(set(&run(&objects, &cluster(json!([])))), [("machine", expected)], "{path}");
    }
}

#[test]
fn patches_are_applied_in_order_where_they_are_enabled() {
    let variables = json!([{"name": "on", "schema": {"openAPIV3Schema": {"type": "boolean", "default": false}}}]);
    let control_plane = selector(CONTROL_PLANE, "KubeadmControlPlaneTemplate", json!({"controlPlane": true}));
    for (enabled_if, given, expected) in [
        ("true", json!([]), true),
        ("false", json!([]), false),
        ("yes it is", json!([]), false),
        ("{{ .on }}", json!([]), false),
        ("{{ .on }}", json!([{"name": "on", "value": true}]), true),
        ("{{ eq .builtin.cluster.name \"c\" }}", json!([]), true),
        ("\"true\"", json!([]), false),
    ] {
        let mut conditional = patch(control_plane.clone(), json!({"value": "set"}));
        conditional["enabledIf"] = enabled_if.into();
        let objects = class(variables.clone(), json!([conditional]));
        let evaluated = run(&objects, &cluster(given));
        assert_eq!(!set(&evaluated).is_empty(), expected, "{enabled_if}");
    }
    let add = json!({"name": "a", "definitions": [{"selector": control_plane, "jsonPatches": [
        {"op": "add", "path": "/spec/template/spec/files/-", "value": {"path": "/b"}},
        {"op": "remove", "path": "/spec/template/spec/x"},
    ]}]});
    let after = patch(control_plane.clone(), json!({"op": "add", "value": "last"}));
    let external = json!({"name": "theirs", "external": {"generatePatchesExtension": "x.y"}});
    let evaluated = run(&class(json!([]), json!([add, external, after])), &cluster(json!([])));
    assert_eq!(evaluated.problems, Vec::<String>::new());
    assert_eq!(evaluated.external, ["theirs"]);
    let spec = &evaluated.templates[&Place::ControlPlane]["spec"]["template"]["spec"];
    assert_eq!(*spec, json!({"x": "last", "files": [{"path": "/a"}, {"path": "/b"}]}));
}

#[test]
fn what_is_missing_is_said() {
    let mut objects = class(json!([]), json!([]));
    objects.templates.retain(|(_, kind, _), _| kind != "ClusterTemplate");
    let mut cluster = cluster(json!([]));
    cluster["spec"]["topology"]["workers"]["machineDeployments"][0]["class"] = "none".into();
    let evaluated = run(&objects, &cluster);
    assert_eq!(evaluated.unknown, ["ClusterTemplate cluster is not known"]);
    assert_eq!(evaluated.problems, ["MachineDeployment md-0: the class has no MachineDeployment class none"]);
}
