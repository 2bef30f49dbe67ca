//! Whether a stack is fit to be published: what would go wrong in a subscriber's cluster, found on the desk.
//!
//! ```text
//! Stack ─names, charts, addons, images→ findings, [Rendered] ─objects, schemas→ findings
//! ```

mod addons;
mod charts;
mod names;
mod objects;
pub mod report;
mod rules;
pub mod schemas;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use crate::core::files::FileTree;
use crate::core::manifest::Manifest;
use crate::core::name::ReleaseName;
use crate::core::package::{Hashes, Identity, Versions};

pub use rules::{RULES, Rule, Severity};
pub use schemas::Schemas;

/// Something that is wrong, or odd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule that found it.
    pub rule: &'static Rule,
    /// What was found and what to do.
    pub message: String,
    /// The file, from the stack's directory, where known.
    pub file: Option<String>,
    /// The line, from 1, where known.
    pub line: Option<usize>,
}

/// What a stack is looked at with.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// Schemas of custom resources; without them objects are not held against any.
    pub schemas: Option<&'a Schemas>,
    /// Kubernetes that addons see instead of the stack's, as `1.34` or `v1.34.2`.
    pub kubernetes: Option<&'a str>,
    /// The Cluster that addons are rendered for instead of [`sample_cluster`].
    pub cluster: Option<&'a Value>,
    /// Namespace that the class is rendered for.
    pub namespace: &'a str,
    /// What `now` gives in charts.
    pub now: Timestamp,
}

/// What a chart rendered to.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// Directory of the chart.
    pub chart: String,
    /// Whether it is for clusters of users, not for the management cluster.
    pub is_addon: bool,
    /// Its objects with the templates they came from.
    pub objects: Vec<(Manifest, String)>,
}

/// What looking at a stack gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Looked {
    /// What was found, by file.
    pub findings: Vec<Finding>,
    /// What rendered.
    pub rendered: Vec<Rendered>,
}

/// What is collected on the way.
struct Desk<'a> {
    files: &'a FileTree,
    expanded: &'a FileTree,
    options: &'a Options<'a>,
    findings: Vec<Finding>,
}

/// Looks at a stack. `expanded` are its files with the archives below `charts/` unpacked. Conditions of
/// stages take [`STACK`](crate::core::addon::condition::STACK) of the thread's stack.
pub fn lint(files: &FileTree, expanded: &FileTree, options: &Options<'_>) -> Looked {
    // As packaging does: a chart's own version may be `<< .ClusterAddonVersion >>`.
    let version = Identity::of(files).ok().and_then(|identity| release(&identity, files)).map(|name| name.version);
    let filled = version.map(|version| Versions::all(&version).filled_in(expanded));
    let expanded = filled.as_ref().unwrap_or(expanded);
    let mut desk = Desk { files, expanded, options, findings: Vec::new() };
    let identity = names::check(&mut desk);
    let name = identity.as_ref().and_then(|identity| release(identity, files));
    cases(&mut desk);
    charts::dependencies(&mut desk);
    let mut rendered = Vec::new();
    if let (Some(identity), Some(name)) = (&identity, &name) {
        rendered.extend(charts::class(&mut desk, name));
        rendered.extend(addons::check(&mut desk, identity, name));
        objects::check(&mut desk, name, &rendered);
    }
    addons::images(&mut desk);
    let mut findings = desk.findings;
    findings.sort_by(|a, b| (&a.file, a.line, a.rule.id, &a.message).cmp(&(&b.file, b.line, b.rule.id, &b.message)));
    findings.dedup();
    Looked { findings, rendered }
}

/// Finds files that are at one place where case does not count; archives of a release refuse them.
fn cases(desk: &mut Desk<'_>) {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    let paths: Vec<&str> = desk.files.keys().map(String::as_str).collect();
    for path in paths {
        if let Some(first) = seen.insert(path.to_lowercase(), path) {
            desk.find("file-case", Some(path), None, format!("{first:?} and {path:?} are at one place: remove one"));
        }
    }
}

/// The release that the stack would be with a version by its content: not one that is there already.
fn release(identity: &Identity, files: &FileTree) -> Option<ReleaseName> {
    let version = format!("v0-sha.{}", Hashes::of(files).version_letters());
    Some(identity.release(version.parse().ok()?))
}

impl Desk<'_> {
    fn find(&mut self, rule: &str, file: Option<&str>, line: Option<usize>, message: impl Into<String>) {
        // Rules are called by name where they are used; a test holds that each exists.
        let Some(rule) = RULES.iter().find(|known| known.id == rule) else { return };
        self.findings.push(Finding {
            rule,
            message: message.into(),
            file: file.map(ToOwned::to_owned),
            line: line.filter(|line| *line > 0),
        });
    }
}

/// A finding of a rule that is looked at elsewhere.
pub fn finding(rule: &'static str, file: Option<&str>, message: impl Into<String>) -> Option<Finding> {
    let rule = RULES.iter().find(|known| known.id == rule)?;
    Some(Finding { rule, message: message.into(), file: file.map(ToOwned::to_owned), line: None })
}

/// The line that a message begins with: `line 3, column 5: …`.
fn line_in(message: &str) -> Option<usize> {
    let rest = &message[message.find("line ")? + 5..];
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// A Cluster as Cluster API has it while addons are applied.
pub fn sample_cluster(name: &ReleaseName, kubernetes: &str, namespace: &str) -> Value {
    serde_json::json!({
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "Cluster",
        "metadata": {"name": "sample", "namespace": namespace, "labels": {}, "annotations": {}},
        "spec": {
            "clusterNetwork": {
                "pods": {"cidrBlocks": ["192.168.0.0/16"]},
                "services": {"cidrBlocks": ["10.96.0.0/12"]},
                "serviceDomain": "cluster.local",
            },
            "controlPlaneEndpoint": {"host": "192.0.2.1", "port": 6443},
            "controlPlaneRef": {"apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "KubeadmControlPlane", "name": "sample", "namespace": namespace},
            "infrastructureRef": {"name": "sample", "namespace": namespace},
            "topology": {
                "class": name.to_string(),
                "version": kubernetes,
                "controlPlane": {"replicas": 1},
                "workers": {"machineDeployments": [{"class": "default-worker", "name": "workers", "replicas": 1}]},
                "variables": [],
            },
        },
        "status": {"phase": "Provisioned", "controlPlaneReady": true, "infrastructureReady": true},
    })
}

/// What addons' templates see beside their values.
fn injected(cluster: &Value) -> BTreeMap<String, Value> {
    let namespaced = |kind: &str| {
        serde_json::json!({
            "kind": kind,
            "metadata": cluster.get("metadata").cloned().unwrap_or_default(),
            "spec": {"version": cluster.pointer("/spec/topology/version").cloned().unwrap_or_default()},
            "status": {},
        })
    };
    BTreeMap::from([
        ("Cluster".to_owned(), cluster.clone()),
        ("ControlPlane".to_owned(), namespaced("ControlPlane")),
        ("InfraCluster".to_owned(), namespaced("InfraCluster")),
    ])
}

#[cfg(test)]
mod tests;
