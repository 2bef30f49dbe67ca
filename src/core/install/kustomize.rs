//! An installation as a base of kustomize, with overlays: each is what the chart gives by other values, told as the difference
//! from the base.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::order::key;
use crate::core::yaml;

/// An overlay: the objects that the chart gives by its values.
#[derive(Clone, Debug)]
pub struct Overlay {
    /// Its directory's name.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// All objects, also those that the base has.
    pub objects: Vec<Value>,
}

/// Files by their paths: `base/` and a directory for each overlay.
pub fn files(base: &[Value], overlays: &[Overlay]) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut resources: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for object in base {
        resources.entry(file_of(object)).or_default().push(object);
    }
    let names: Vec<&str> = resources.keys().copied().collect();
    for (name, objects) in &resources {
        files.insert(format!("base/{name}"), documents(objects));
    }
    files.insert(
        "base/kustomization.yaml".to_owned(),
        kustomization("The operator as `clusterstack install` has it.", &json!({"resources": names})),
    );
    for overlay in overlays {
        for (name, text) in overlay_files(base, overlay) {
            files.insert(format!("overlays/{}/{name}", overlay.name), text);
        }
    }
    files
}

fn overlay_files(base: &[Value], overlay: &Overlay) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let at = |objects: &[Value], one: &Value| objects.iter().position(|other| key(other) == key(one));
    let added: Vec<&Value> = overlay.objects.iter().filter(|object| at(base, object).is_none()).collect();
    let mut patches = Vec::new();
    for object in base {
        let target = json!({
            "group": key(object).group, "version": version(object), "kind": object["kind"],
            "name": object["metadata"]["name"], "namespace": object["metadata"]["namespace"],
        });
        let target: Value = target
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !value.is_null() && **value != "")
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        match at(&overlay.objects, object).and_then(|at| overlay.objects.get(at)) {
            None => patches.push(json!({"patch": yaml::to_string(&json!({
                "$patch": "delete", "apiVersion": object["apiVersion"], "kind": object["kind"],
                "metadata": {"name": object["metadata"]["name"], "namespace": object["metadata"]["namespace"]},
            }))})),
            Some(wanted) if wanted != object => {
                let difference = json_patch::diff(object, wanted);
                let text = yaml::to_string(&serde_json::to_value(difference).unwrap_or_default());
                patches.push(json!({"target": target, "patch": text}));
            }
            Some(_) => {}
        }
    }
    let mut resources = vec![json!("../../base")];
    if !added.is_empty() {
        files.insert("added.yaml".to_owned(), documents(&added));
        resources.push(json!("added.yaml"));
    }
    let mut content = json!({"resources": resources});
    if !patches.is_empty() {
        content["patches"] = patches.into();
    }
    files.insert("kustomization.yaml".to_owned(), kustomization(overlay.about, &content));
    files
}

fn kustomization(about: &str, content: &Value) -> String {
    let mut whole = json!({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"});
    for (key, value) in content.as_object().into_iter().flatten() {
        whole[key] = value.clone();
    }
    format!("# {about}\n{}", yaml::to_string(&whole))
}

fn documents(objects: &[&Value]) -> String {
    objects.iter().flat_map(|object| ["---\n".to_owned(), yaml::to_string(object)]).collect()
}

/// The file of the base that an object is in.
fn file_of(object: &Value) -> &'static str {
    match object["kind"].as_str().unwrap_or_default() {
        "CustomResourceDefinition" => "crds.yaml",
        "Namespace" => "namespace.yaml",
        "ServiceAccount" | "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" => "rights.yaml",
        "Service" | "ServiceMonitor" => "services.yaml",
        _ => "operator.yaml",
    }
}

fn version(object: &Value) -> &str {
    object["apiVersion"].as_str().map_or("", |text| text.split_once('/').map_or(text, |(_, version)| version))
}
