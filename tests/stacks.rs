//! The stacks in `stacks/`: both dialects give the same objects, which Cluster API's own schemas accept.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clusterstack::core::addon_config::AddonConfig;
use clusterstack::core::bundle::Bundle;
use clusterstack::core::chart::{Capabilities, Chart, Release, RenderInput, render, render_text};
use clusterstack::core::files::{FileTree, below};
use clusterstack::core::image::pipeline::Pipeline;
use clusterstack::core::name::ReleaseName;
use clusterstack::core::node_images::NodeImages;
use clusterstack::core::yaml;
use serde_json::{Value, json};

/// The files of a stack.
fn stack(name: &str) -> FileTree {
    fn read(dir: &Path, root: &Path, files: &mut FileTree) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, root, files);
            } else {
                let relative = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                files.insert(relative, Bytes::from(fs::read(&path).unwrap()));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("stacks/docker").join(name);
    let mut files = FileTree::new();
    read(&root, &root, &mut files);
    files
}

const STACKS: [(&str, &str); 2] = [("hello", "docker-hello-1-34-v1"), ("hello-tera", "docker-hello-tera-1-34-v1")];

fn objects(chart: &Chart, release: &str, values: Value) -> Vec<Value> {
    let capabilities = Capabilities::for_kube_version("v1.34.0").unwrap();
    let release = Release::new(release, "org");
    let mut input = RenderInput::new(release, &capabilities, jiff::Timestamp::UNIX_EPOCH);
    input.values = values;
    let rendered = render(chart, &input).unwrap_or_else(|error| panic!("{error}"));
    rendered.documents.into_iter().map(|document| document.object).collect()
}

/// The objects of a stack's class chart.
fn class(stack_name: &str, release: &str, values: Value) -> Vec<Value> {
    let name = ReleaseName::of_stack(release, "docker", stack_name).unwrap();
    let bundle = Bundle::from_files(&name, &stack(stack_name), &BTreeMap::new()).unwrap();
    assert_eq!(bundle.remarks, Vec::<String>::new());
    assert_eq!(bundle.node_images.images.len(), 1);
    assert_eq!(bundle.kubernetes_version, "v1.34.0");
    objects(&Chart::load(&bundle.class_chart).unwrap(), &name.stem(), values)
}

fn cluster() -> Value {
    json!({
        "metadata": {"name": "demo", "namespace": "org"},
        "spec": {
            "controlPlaneEndpoint": {"host": "172.18.0.3", "port": 6443},
            "clusterNetwork": {"pods": {"cidrBlocks": ["192.168.0.0/16"]}},
        },
    })
}

/// The values that a template file gives for [`cluster`].
fn values(files: &FileTree, path: &str) -> Value {
    let Some(file) = files.get(path) else { return json!({}) };
    let file = yaml::parse(std::str::from_utf8(file).unwrap()).unwrap();
    let capabilities = Capabilities::for_kube_version("v1.34.0").unwrap();
    let release = Release::new("cluster-addon", "kube-system");
    let input = RenderInput::new(release, &capabilities, jiff::Timestamp::UNIX_EPOCH);
    let root = json!({"Cluster": cluster()});
    let text = render_text(path, file["values"].as_str().unwrap(), &root, &input);
    yaml::parse(&text.unwrap_or_else(|error| panic!("{error}"))).unwrap()
}

/// The objects of each addon stage, in the order of `clusteraddon.yaml`.
fn addons(stack_name: &str) -> Vec<(String, Vec<Value>)> {
    let files = stack(stack_name);
    let config = yaml::parse(std::str::from_utf8(&files["clusteraddon.yaml"]).unwrap()).unwrap();
    let stages = config["addonStages"]["AfterControlPlaneInitialized"].as_array().unwrap().clone();
    assert_eq!(config["addonStages"]["BeforeClusterUpgrade"].as_array(), Some(&stages));
    let stage = |stage: &Value| {
        let name = stage["name"].as_str().unwrap();
        let chart = below(&files, &format!("cluster-addon/{name}"));
        let own = values(&chart, "overwrite.yaml");
        (name.to_owned(), objects(&Chart::load(&chart).unwrap(), "cluster-addon", own))
    };
    stages.iter().map(stage).collect()
}

/// Objects by kind and name, with the name of the Helm stack in place of the Tera stack's.
fn by_key(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let rename = |object: Value| -> Value {
        serde_json::from_str(&object.to_string().replace("docker-hello-tera-", "docker-hello-")).unwrap()
    };
    let key = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
    objects.into_iter().map(rename).map(|object| (key(&object), object)).collect()
}

fn assert_same(tera: &BTreeMap<String, Value>, helm: &BTreeMap<String, Value>) {
    assert_eq!(tera.keys().collect::<Vec<_>>(), helm.keys().collect::<Vec<_>>());
    for (key, object) in tera {
        assert_eq!(*object, helm[key], "{key}");
    }
}

#[test]
fn the_class_is_called_like_the_release_and_refers_to_what_is_there() {
    for (stack, release) in STACKS {
        let objects = class(stack, release, json!({}));
        assert_eq!(objects.len(), 6, "{stack}");
        let class = objects.iter().find(|object| object["kind"] == "ClusterClass").unwrap();
        assert_eq!(class["metadata"]["name"], release);
        let spec = &class["spec"];
        let worker = &spec["workers"]["machineDeployments"][0]["template"];
        for part in [
            &spec["infrastructure"],
            &spec["controlPlane"],
            &spec["controlPlane"]["machineInfrastructure"],
            &worker["bootstrap"],
            &worker["infrastructure"],
        ] {
            let is_meant = |object: &&Value| {
                ["apiVersion", "kind"].iter().all(|field| object[*field] == part["ref"][*field])
                    && ["name", "namespace"].iter().all(|field| object["metadata"][*field] == part["ref"][*field])
            };
            assert_eq!(objects.iter().filter(is_meant).count(), 1, "{stack}: {part}");
        }
    }
}

#[test]
fn both_dialects_give_the_same_objects() {
    for values in [json!({}), json!({"nodeImage": "kindest/node:v1.34.0", "kubeletExtraArgs": {"v": "2"}})] {
        let [helm, tera] = STACKS.map(|(stack, release)| by_key(class(stack, release, values.clone())));
        assert_same(&tera, &helm);
    }
    let [helm, tera] = STACKS.map(|(stack, _)| addons(stack));
    for ((stage, helm), (_, tera)) in helm.into_iter().zip(tera) {
        assert!(!helm.is_empty(), "{stage}");
        assert_same(&by_key(tera), &by_key(helm));
    }
}

#[test]
fn addons_know_their_cluster() {
    for (stack, _) in STACKS {
        let addons = addons(stack);
        assert_eq!(addons.iter().map(|(stage, _)| stage.as_str()).collect::<Vec<_>>(), ["cni", "metrics"]);
        let all: Vec<_> = addons.into_iter().flat_map(|(_, objects)| objects).collect();
        let find = |kind: &str| all.iter().find(|object| object["kind"] == kind).unwrap();
        let env = find("DaemonSet")["spec"]["template"]["spec"]["containers"][0]["env"].clone();
        assert_eq!(env[2], json!({"name": "POD_SUBNET", "value": "192.168.0.0/16"}));
        assert_eq!(env[3], json!({"name": "CONTROL_PLANE_ENDPOINT", "value": "172.18.0.3:6443"}));
        assert_eq!(find("Deployment")["spec"]["template"]["metadata"]["labels"]["cluster"], "demo");
        let dashboard: Value =
            serde_json::from_str(find("ConfigMap")["data"]["cluster.json"].as_str().unwrap()).unwrap();
        assert_eq!(dashboard["title"], "Cluster demo");
    }
}

#[test]
fn the_files_beside_the_charts_are_understood() {
    for (name, _) in STACKS {
        let files = stack(name);
        let text = |path: &str| std::str::from_utf8(&files[path]).unwrap().to_owned();
        let images = NodeImages::parse(&text("node-images.yaml")).unwrap().images;
        let [image] = &images[..] else { panic!("{images:?}") };
        // Each kind of step, once.
        let steps = Pipeline::of(image).unwrap().unwrap().steps;
        let kinds: Vec<&str> = steps.iter().map(|step| step.work.kind()).collect();
        assert_eq!(kinds, ["download", "verify", "build", "convert", "compress", "upload", "register"]);
        let stages = AddonConfig::parse(&text("clusteraddon.yaml")).unwrap().stages;
        assert_eq!(stages.values().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
    }
}

fn crds() -> Option<PathBuf> {
    let root = std::env::var_os("CLUSTERSTACK_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    Some(root.join("crds")).filter(|dir| dir.is_dir())
}

/// A schema of a CRD which refuses fields that the API server would drop.
fn strict(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    if map.contains_key("properties") && map.get("x-kubernetes-preserve-unknown-fields") != Some(&json!(true)) {
        map.insert("additionalProperties".into(), json!(false));
    }
    if map.remove("x-kubernetes-int-or-string") == Some(json!(true)) {
        map.insert("type".into(), json!(["integer", "string"]));
    }
    for value in map.values_mut() {
        match value {
            Value::Array(items) => items.iter_mut().for_each(strict),
            other => strict(other),
        }
    }
}

#[test]
fn cluster_api_accepts_the_class_objects() {
    let Some(dir) = crds() else {
        println!(
            "stacks: SKIPPED: no shared/crds beside the project; set CLUSTERSTACK_SHARED to check against the CRDs"
        );
        return;
    };
    let mut schemas = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let crd = yaml::parse(&fs::read_to_string(entry.unwrap().path()).unwrap()).unwrap();
        let mut version =
            crd["spec"]["versions"].as_array().unwrap().iter().find(|version| version["name"] == "v1beta1");
        if let Some(version) = version.take() {
            let mut schema = version["schema"]["openAPIV3Schema"].clone();
            strict(&mut schema);
            schema["properties"]["metadata"] = json!({"type": "object"});
            let group = crd["spec"]["group"].as_str().unwrap();
            schemas.insert((format!("{group}/v1beta1"), crd["spec"]["names"]["kind"].clone().to_string()), schema);
        }
    }
    for (stack, release) in STACKS {
        for object in class(stack, release, json!({"nodeImage": "kindest/node:v1.34.0"})) {
            let key = (object["apiVersion"].as_str().unwrap().to_owned(), object["kind"].to_string());
            let schema = schemas.get(&key).unwrap_or_else(|| panic!("no CRD for {key:?}"));
            let validator = jsonschema::draft202012::new(schema).unwrap();
            let errors: Vec<_> =
                validator.iter_errors(&object).map(|error| format!("{}: {error}", error.instance_path())).collect();
            assert!(errors.is_empty(), "{stack} {key:?}:\n{}", errors.join("\n"));
        }
    }
}
