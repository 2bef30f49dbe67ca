//! What charts rendered: each object for itself, and together.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::schemas::{Known, Schemas};
use super::{Desk, Rendered};
use crate::core::manifest::Manifest;
use crate::core::name::ReleaseName;

/// How many problems of one object are told.
const SHOWN: usize = 10;

/// Looks at all objects.
pub(super) fn check(desk: &mut Desk<'_>, name: &ReleaseName, rendered: &[Rendered]) {
    for chart in rendered {
        twice(desk, chart);
        if !chart.is_addon {
            class(desk, name, chart);
            namespaces(desk, chart);
        }
    }
    let Some(given) = desk.options.schemas else { return };
    // What a stack brings along counts as known.
    let mut schemas = given.clone();
    for (manifest, _) in rendered.iter().flat_map(|chart| &chart.objects) {
        schemas.add(&manifest.object);
    }
    for chart in rendered {
        for (manifest, file) in &chart.objects {
            against(desk, &schemas, chart.is_addon, manifest, file);
        }
    }
}

fn twice(desk: &mut Desk<'_>, chart: &Rendered) {
    let mut seen: BTreeMap<_, &str> = BTreeMap::new();
    for (manifest, file) in &chart.objects {
        if let Some(first) = seen.insert(&manifest.key, file) {
            let message =
                format!("{} is rendered twice, first by {first}: one would overwrite the other", manifest.key);
            desk.find("object-twice", Some(file), None, message);
        }
    }
}

fn class(desk: &mut Desk<'_>, name: &ReleaseName, chart: &Rendered) {
    let classes: Vec<_> = chart.objects.iter().filter(|(manifest, _)| manifest.key.is_cluster_class()).collect();
    if classes.is_empty() {
        desk.find("class", Some("cluster-class/Chart.yaml"), None, "the chart renders no ClusterClass");
    }
    for (class, file) in classes {
        // Both spellings of a version with a dot are the release's.
        if class.key.name != name.to_string() && class.key.name != name.object_name() {
            let message = format!(
                "the ClusterClass is called {:?}, a release of this stack {:?}: name it {{{{ .Release.Name }}}}-{{{{ .Chart.Version }}}}",
                class.key.name,
                name.to_string()
            );
            desk.find("class-name", Some(file), None, message);
        }
        let mut found = BTreeSet::new();
        references(&class.object, &mut found);
        for (api_version, kind, template) in found {
            let group = api_version.split_once('/').map_or("", |(group, _)| group);
            let there = chart
                .objects
                .iter()
                .any(|(other, _)| other.key.kind == kind && other.key.name == template && other.key.group == group);
            if !there {
                let message = format!(
                    "the ClusterClass refers to {kind} {template} ({api_version}), which the chart does not render"
                );
                desk.find("class-reference", Some(file), None, message);
            }
        }
    }
}

/// Every `ref` (v1beta1) and `templateRef` (v1beta2) in a ClusterClass.
fn references(value: &Value, found: &mut BTreeSet<(String, String, String)>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Object(map) => {
            for (key, value) in map {
                let text = |field: &str| value.get(field).and_then(Value::as_str).map(ToOwned::to_owned);
                if key == "ref" || key == "templateRef" {
                    if let (Some(version), Some(kind), Some(name)) = (text("apiVersion"), text("kind"), text("name")) {
                        found.insert((version, kind, name));
                    }
                } else if key != "patches" && key != "variables" {
                    references(value, found);
                }
            }
        }
        _ => {}
    }
}

fn namespaces(desk: &mut Desk<'_>, chart: &Rendered) {
    for (manifest, file) in &chart.objects {
        let key = &manifest.key;
        if !key.namespace.is_empty() && key.namespace != desk.options.namespace {
            let message = format!(
                "{key} is in a namespace of its own: a ClusterStack applies it only with a serviceAccountName that may"
            );
            desk.find("object-namespace", Some(file), None, message);
        }
    }
}

fn against(desk: &mut Desk<'_>, schemas: &Schemas, is_addon: bool, manifest: &Manifest, file: &str) {
    let of = format!("{} ({})", manifest.key, manifest.api_version());
    match schemas.check(&manifest.api_version(), &manifest.key.kind, &manifest.object) {
        Known::Fits => {}
        Known::Problems(problems) => {
            for problem in problems.iter().take(SHOWN) {
                desk.find("object-schema", Some(file), None, format!("{of}: {problem}"));
            }
            if problems.len() > SHOWN {
                desk.find("object-schema", Some(file), None, format!("{of}: and {} more", problems.len() - SHOWN));
            }
        }
        Known::OtherVersions(served) => {
            let message = format!("{of}: this version is not served, but {}", served.join(", "));
            desk.find("kind-version", Some(file), None, message);
        }
        // Clusters of users have other kinds than the management cluster.
        Known::Not if is_addon || is_own(&manifest.key.group) => {}
        Known::Not => {
            let message = format!("{of}: none of the CRDs defines it: is it misspelt, or is a CRD missing in --crds?");
            desk.find("kind-unknown", Some(file), None, message);
        }
    }
}

/// Kubernetes' own groups have no dot, or end so; CRDs of its projects are called `*.x-k8s.io`.
fn is_own(group: &str) -> bool {
    !group.contains('.') || (group.ends_with(".k8s.io") && !group.ends_with(".x-k8s.io"))
}
