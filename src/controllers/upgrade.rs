//! What the upgrade of a Cluster would do: read, rendered and tried in dry runs; nothing is written anywhere.

mod addons;
mod management;
mod releases;

use std::collections::BTreeSet;
use std::path::PathBuf;

use kube::{Client, ResourceExt};
use serde_json::Value;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use self::management::{Parts, Reading};
use super::Context;
use super::cluster_addon::read_cluster;
use crate::core::addon::cluster::Cluster;
use crate::core::status::Trouble;
use crate::core::upgrade::class::ClassObjects;
use crate::core::upgrade::objects::{self, Side};
use crate::core::upgrade::patches::{self, Subject};
use crate::core::upgrade::rollout::{self, Topology};
use crate::core::upgrade::{Plan, State, images, variables, version};
use crate::io::kinds::Kinds;
use crate::io::release::Releases;
use crate::io::usage::CLUSTER_API;
use crate::io::workload::Workloads;

/// Where an upgrade goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The newest usable release of the same ClusterStack.
    Newest,
    /// A release by its name, or by its version in the same ClusterStack.
    Named(String),
    /// A release that lies in a directory of its name.
    Directory(PathBuf),
}

/// Why there is no plan.
#[derive(Debug, Error)]
pub enum UpgradeError {
    /// The API server did not do what was asked.
    #[error("{doing}: {error}")]
    Api {
        /// What was tried, on what.
        doing: String,
        /// What it said.
        error: kube::Error,
    },
    /// There is no Cluster API.
    #[error("the API server serves no Clusters of Cluster API")]
    NotServed,
    /// There is no such Cluster.
    #[error("no Cluster {name:?} in namespace {namespace}")]
    NoCluster {
        /// Where it was looked for.
        namespace: String,
        /// What was looked for.
        name: String,
    },
    /// The Cluster has no class of ours.
    #[error("{0}")]
    NotOurs(String),
    /// There is no such release.
    #[error("release {name:?} is neither taken nor available: there are {there}")]
    NoRelease {
        /// What was asked for.
        name: String,
        /// What there is.
        there: String,
    },
    /// The release can't be had.
    #[error("release {name} can't be had: {}", trouble.message)]
    Fetch {
        /// Its name.
        name: String,
        /// What stands in the way.
        trouble: Trouble,
    },
}

/// What it takes to plan an upgrade.
pub struct Planner<'a> {
    /// Reads the management cluster, and tries what is to be applied there.
    pub client: Client,
    /// The operator, if it plans: its rights may reach further than those of who brings the release.
    pub operator: Option<&'a Context>,
    /// The kinds that it serves.
    pub kinds: &'a Kinds,
    /// Fetches and renders releases.
    pub releases: &'a Releases,
    /// Reaches workload clusters.
    pub workloads: &'a Workloads,
    /// Ends what takes long.
    pub cancel: CancellationToken,
}

impl Planner<'_> {
    /// Plans the upgrade of a Cluster to a release, and to `kubernetes_version` instead of the release's own where given.
    ///
    /// # Errors
    /// There is no such Cluster or release, or the API server does not answer. What else is not known is said in the plan.
    pub async fn plan(
        &self,
        namespace: &str,
        name: &str,
        goal: &Goal,
        kubernetes_version: Option<&str>,
    ) -> Result<Plan, UpgradeError> {
        let (cluster, object) = self.cluster(namespace, name).await?;
        let present = self.present(&cluster).await?;
        let target = self.target(&present, goal).await?;
        let from = State {
            release: present.release.name_any(),
            class: format!("{}/{}", present.class.0, present.class.1),
            kubernetes_version: cluster.kubernetes_version.clone(),
        };
        let reading = Reading { planner: self, class_namespace: &present.class.0 };
        let mut unknown = Vec::new();
        let new = reading.target(&target, &present, &mut unknown).await?;
        let old = reading.present(&present, &new.objects, &mut unknown).await?;
        let to = State {
            release: target.name.object_name(),
            class: format!("{}/{}", present.class.0, new.class),
            kubernetes_version: kubernetes_version
                .map_or_else(|| version(&cluster.kubernetes_version, &target.kubernetes_version()), ToOwned::to_owned),
        };
        let parts = reading.parts(&cluster, &mut unknown).await;
        let mut plan = decide(&object, (&from, &old), (&to, &new), &parts);
        plan.unknown = each_once(unknown.into_iter().chain(plan.unknown));
        plan.acceptance = reading.try_cluster(&object, &target, &to).await;
        plan.addons = self.addons(&cluster, &object, (&present, &target), &to).await;
        if let (Some(before), Some(after)) = (&present.fetched, &target.fetched) {
            plan.images = images(&before.bundle.node_images, &after.bundle.node_images);
        }
        Ok(plan)
    }

    async fn cluster(&self, namespace: &str, name: &str) -> Result<(Cluster, Value), UpgradeError> {
        let read = read_cluster(&self.client, self.kinds, namespace, name).await;
        let found = read.map_err(|error| api(format!("reading Cluster {namespace}/{name}"), error))?;
        if let Some(found) = found {
            return Ok(found);
        }
        let kind = self.kinds.preferred(&self.client, CLUSTER_API, "Cluster").await;
        match kind.map_err(|error| api("asking for kind Cluster".to_owned(), error))? {
            Some(_) => Err(UpgradeError::NoCluster { namespace: namespace.to_owned(), name: name.to_owned() }),
            None => Err(UpgradeError::NotServed),
        }
    }
}

/// What is not known, each said once: both releases may lack the same, and what can't be read is not known.
fn each_once(notes: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut once: Vec<String> = Vec::new();
    for note in notes {
        let unread = note.strip_suffix(" is not known").and_then(|what| what.split_once(' '));
        let is_told = unread.is_some_and(|(kind, name)| {
            let known = |told: &String| {
                told.starts_with(&format!("{kind} ")) && told.contains(&format!("{name} can't be read"))
            };
            once.iter().any(known)
        });
        if !is_told && seen.insert(note.clone()) {
            once.push(note);
        }
    }
    once
}

fn api(doing: String, error: kube::Error) -> UpgradeError {
    UpgradeError::Api { doing, error }
}

/// What follows from the objects alone.
fn decide(cluster: &Value, (from, old): (&State, &Side), (to, new): (&State, &Side), parts: &Parts) -> Plan {
    let (before, after) = (class_objects(old), class_objects(new));
    let subject = |state: &'_ State, objects: &ClassObjects| {
        let (namespace, name) = state.class.split_once('/').unwrap_or_default();
        patches::evaluate(
            objects,
            &Subject {
                cluster,
                control_plane: parts.control_plane.as_ref(),
                workers: &parts.workers,
                class: (namespace, name),
                version: &state.kubernetes_version,
            },
        )
    };
    // Beside a class that can't be read, all of the other would seem to come or to go.
    let is_read = !before.class.is_null() && !after.class.is_null();
    let (patched_before, patched_after) = (subject(from, &before), subject(to, &after));
    let workers = patches::workers(cluster);
    let control_plane = cluster.pointer("/spec/topology/controlPlane").unwrap_or(&Value::Null);
    let rollouts = rollout::rollouts(
        Topology { objects: &before, evaluated: &patched_before, version: &from.kubernetes_version },
        Topology { objects: &after, evaluated: &patched_after, version: &to.kubernetes_version },
        control_plane,
        &workers,
    );
    let given = variables::given(cluster.pointer("/spec/topology/variables"));
    let (defined, will_be) = (variables::definitions(&before.class), variables::definitions(&after.class));
    let mut external = patched_before.external;
    external.extend(patched_after.external.into_iter().filter(|name| !external.contains(name)).collect::<Vec<_>>());
    let mut unknown = patched_before.unknown;
    unknown.extend(patched_after.unknown.into_iter().filter(|note| !unknown.contains(note)).collect::<Vec<_>>());
    Plan {
        cluster: cluster_name(cluster),
        from: from.clone(),
        to: to.clone(),
        objects: if is_read { objects::compare(old, new) } else { Vec::new() },
        rollouts,
        external_patches: external,
        problems: patched_after.problems,
        unknown,
        acceptance: crate::core::upgrade::Acceptance::unknown("not asked"),
        addons: crate::core::upgrade::addons::AddonChanges::unknown("not asked"),
        variables: if is_read { variables::changes(&defined, &will_be, &given) } else { Vec::new() },
        images: Vec::new(),
    }
}

fn cluster_name(cluster: &Value) -> String {
    let text = |pointer: &str| cluster.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    format!("{}/{}", text("/metadata/namespace"), text("/metadata/name"))
}

fn class_objects(side: &Side) -> ClassObjects {
    let is_class =
        |object: &&crate::core::manifest::Manifest| object.key.is_cluster_class() && object.key.name == side.class;
    let class = side.objects.iter().find(is_class).map(|class| class.object.clone()).unwrap_or_default();
    let key = |object: &crate::core::manifest::Manifest| {
        (object.key.group.clone(), object.key.kind.clone(), object.key.name.clone())
    };
    let templates = side.objects.iter().map(|object| (key(object), object.object.clone())).collect();
    ClassObjects { class, templates }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_class_that_can_not_be_read_is_not_taken_for_one_that_goes() {
        let class = json!({"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "ClusterClass", "metadata": {"name": "a", "namespace": "t"},
            "spec": {"variables": [{"name": "x", "schema": {"openAPIV3Schema": {"type": "string"}}}]}});
        let class = crate::core::manifest::Manifest::from_value(class).unwrap();
        let old = Side { release: "a".into(), class: "a".into(), objects: vec![class] };
        let new = Side { release: "b".into(), class: "b".into(), objects: vec![] };
        let cluster = json!({"metadata": {"name": "c", "namespace": "t"}, "spec": {"topology": {}}});
        let plan = decide(&cluster, (&State::default(), &old), (&State::default(), &new), &Parts::default());
        assert!(plan.objects.is_empty() && plan.variables.is_empty(), "{plan:#?}");
    }

    #[test]
    fn what_is_not_known_is_said_once() {
        let notes = [
            "KubeadmConfigTemplate default/none can't be read: forbidden",
            "KubeadmConfigTemplate default/none can't be read: forbidden",
            "KubeadmConfigTemplate none is not known",
            "KubeadmConfigTemplate other is not known",
            "KubeadmConfigTemplate other is not known",
            "DockerMachineTemplate none is not known",
        ];
        let once = each_once(notes.into_iter().map(ToOwned::to_owned));
        assert_eq!(once, [notes[0], notes[3], notes[5]]);
    }
}
