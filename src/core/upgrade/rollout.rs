//! Which machines are replaced: what of a patched template makes a control plane or workers roll, by the rules of Cluster
//! API 1.14.
//!
//! - A template of machines or of their bootstrap configuration whose `spec` differs is cloned anew, and what names the
//!   clone replaces its machines. A template of another name with the same `spec` does nothing.
//! - Of a `KubeadmControlPlane`, the version, `kubeadmConfigSpec` and the template of its machines count; DNS, discovery
//!   tokens and the timeout of health checks don't, the rest is changed in place.
//! - Of a `MachineDeployment`, the version, both templates and the failure domain count.
//! - What a class says of control plane and workers beside their templates (health checks, timeouts) is changed in place, but for
//!   the failure domain, and counts where the Cluster's topology does not say it itself.
//! - Of a template that counts and was not read, nothing is known: that is said, and never that all stays.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::class::{ClassObjects, WorkerKind};
use super::difference::{Change, between};
use super::patches::{Evaluated, Place, Worker};

/// Paths below a `KubeadmControlPlaneTemplate`'s `spec.template.spec` that roll nothing although they are in
/// `kubeadmConfigSpec`.
const QUIET: [&str; 6] = [
    ".kubeadmConfigSpec.clusterConfiguration.dns",
    ".kubeadmConfigSpec.clusterConfiguration.controlPlaneEndpoint",
    ".kubeadmConfigSpec.clusterConfiguration.apiServer.timeoutForControlPlane",
    ".kubeadmConfigSpec.joinConfiguration.discovery",
    ".kubeadmConfigSpec.joinConfiguration.timeouts.controlPlaneComponentHealthCheckSeconds",
    ".kubeadmConfigSpec.initConfiguration.timeouts.controlPlaneComponentHealthCheckSeconds",
];
/// Counts for the machine that `kubeadm init` made, if join says something else.
const INIT: &str = ".kubeadmConfigSpec.initConfiguration";
/// The topology's word that workers keep their version for now.
const HOLDS: [&str; 2] = ["topology.cluster.x-k8s.io/defer-upgrade", "topology.cluster.x-k8s.io/hold-upgrade-sequence"];

/// What becomes of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Nothing.
    Unchanged,
    /// They stay; what differs is changed on them.
    InPlace,
    /// They may be replaced: it is for another controller to say.
    MayRoll,
    /// They may be replaced: a template that counts was not read.
    Unknown,
    /// They are replaced.
    Rolls,
}

/// Why machines roll, or what is changed in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// In words.
    pub what: String,
    /// The fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Change>,
}

/// What becomes of the machines of a control plane or of workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// `InfrastructureCluster`, `ControlPlane`, `MachineDeployment` or `MachinePool`.
    pub kind: String,
    /// Name in the topology; empty where there is one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What becomes of them.
    pub verdict: Verdict,
    /// Why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Reason>,
}

/// A Cluster as a release has it, or would have it.
#[derive(Clone, Copy, Debug)]
pub struct Topology<'a> {
    /// The class with its templates.
    pub objects: &'a ClassObjects,
    /// The patched templates.
    pub evaluated: &'a Evaluated,
    /// The version of Kubernetes.
    pub version: &'a str,
}

/// What becomes of the infrastructure, the control plane and all workers; `control_plane` is what the Cluster's topology says
/// of it.
pub fn rollouts(before: Topology<'_>, after: Topology<'_>, control_plane: &Value, workers: &[Worker]) -> Vec<Rollout> {
    let mut all = Vec::new();
    let pair = Pair { before, after };
    let changed = "the infrastructure is changed in place";
    let infrastructure =
        pair.looked_at(&Place::InfrastructureCluster, |spec| of(Verdict::InPlace, changed, spec.changes));
    all.extend(collected("InfrastructureCluster", "", infrastructure));
    all.extend(collected("ControlPlane", "", pair.control_plane(control_plane)));
    for worker in workers {
        all.extend(collected(worker.kind.as_str(), &worker.name, pair.worker(worker)));
    }
    all
}

type Found = Vec<(Verdict, Reason)>;

fn collected(kind: &str, name: &str, found: Option<Found>) -> Option<Rollout> {
    let found = found?;
    let verdict = found.iter().map(|(verdict, _)| *verdict).max().unwrap_or(Verdict::Unchanged);
    let mut reasons: Vec<(Verdict, Reason)> = found;
    reasons.sort_by_key(|(verdict, _)| std::cmp::Reverse(*verdict));
    let reasons = reasons.into_iter().map(|(_, reason)| reason).collect();
    Some(Rollout { kind: kind.to_owned(), name: name.to_owned(), verdict, reasons })
}

fn reason(what: impl Into<String>, fields: Vec<Change>) -> Reason {
    Reason { what: what.into(), fields }
}

/// Found only if fields differ.
fn of(verdict: Verdict, what: &str, fields: Vec<Change>) -> Found {
    if fields.is_empty() { Vec::new() } else { vec![(verdict, reason(what, fields))] }
}

/// How the `spec` of a template differs.
struct Spec {
    /// Its kind afterwards.
    kind: String,
    /// The fields; below `.spec`.
    changes: Vec<Change>,
}

struct Pair<'a> {
    before: Topology<'a>,
    after: Topology<'a>,
}

impl Pair<'_> {
    /// What a template does, or that it was not read; `None` where the template is of neither side.
    fn looked_at(&self, place: &Place, does: impl FnOnce(Spec) -> Found) -> Option<Found> {
        let mut unread: Vec<&str> = Vec::new();
        for side in [self.before, self.after] {
            unread.extend(side.evaluated.unread.get(place).map(String::as_str));
        }
        unread.dedup();
        if unread.is_empty() {
            return self.spec(place).map(does);
        }
        Some(vec![(Verdict::Unknown, reason(format!("{} was not read", unread.join(" and ")), Vec::new()))])
    }

    /// `None` where the template is of neither side.
    fn spec(&self, place: &Place) -> Option<Spec> {
        let (old, new) = (self.before.evaluated.templates.get(place), self.after.evaluated.templates.get(place));
        let of = |object: &Value, field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let kind = of(new.or(old)?, "kind");
        let kinds = (old.map(|old| of(old, "kind")), new.map(|new| of(new, "kind")));
        if kinds.0 != kinds.1 {
            let change =
                Change { path: ".kind".to_owned(), before: kinds.0.map(Value::from), after: kinds.1.map(Value::from) };
            return Some(Spec { kind, changes: vec![change] });
        }
        let spec = |object: Option<&Value>| object.and_then(|object| object.get("spec")).cloned().unwrap_or_default();
        let mut changes = between(&spec(old), &spec(new));
        for change in &mut changes {
            change.path.insert_str(0, ".spec");
        }
        Some(Spec { kind, changes })
    }

    fn version(&self) -> Option<Reason> {
        let (old, new) = (self.before.version, self.after.version);
        (old != new).then(|| reason(format!("Kubernetes {old} → {new}"), Vec::new()))
    }

    fn control_plane(&self, topology: &Value) -> Option<Found> {
        let mut found: Found = self.version().map(|reason| (Verdict::Rolls, reason)).into_iter().collect();
        found.extend(self.looked_at(&Place::ControlPlane, of_control_plane)?);
        let rotate = |machines: Spec| of(Verdict::Rolls, &rotates(&machines.kind), machines.changes);
        found.extend(self.looked_at(&Place::ControlPlaneMachine, rotate).unwrap_or_default());
        found.extend(self.class_control_plane(topology));
        Some(found)
    }

    /// Whether both classes were read: beside one that was not, all that the other one says would seem to differ.
    fn has_both_classes(&self) -> bool {
        self.before.objects.class.is_null() == self.after.objects.class.is_null()
    }

    /// What the class itself says of the control plane.
    fn class_control_plane(&self, topology: &Value) -> Found {
        if !self.has_both_classes() {
            return Vec::new();
        }
        let entry = |objects: &ClassObjects| {
            let mut entry = objects.class.pointer("/spec/controlPlane").cloned().unwrap_or_default();
            if let Some(map) = entry.as_object_mut() {
                // Templates are compared by what is in them, whatever they are called.
                for part in ["templateRef", "ref", "machineInfrastructure"] {
                    map.remove(part);
                }
                leave_out(map, topology);
            }
            entry
        };
        of(Verdict::InPlace, "changed in place", between(&entry(self.before.objects), &entry(self.after.objects)))
    }

    fn worker(&self, worker: &Worker) -> Option<Found> {
        let mut found = Vec::new();
        if let Some(version) = self.version() {
            let held = HOLDS.iter().find(|hold| {
                worker.topology.pointer("/metadata/annotations").and_then(|all| all.get(**hold)).is_some()
            });
            found.push(match held {
                Some(hold) => (Verdict::MayRoll, reason(format!("{}, held back by {hold}", version.what), Vec::new())),
                None => (Verdict::Rolls, version),
            });
        }
        // Machines of a pool are the infrastructure's to replace.
        let replaced = if worker.kind == WorkerKind::MachinePool { Verdict::MayRoll } else { Verdict::Rolls };
        let mut is_there = false;
        for place in [
            Place::Bootstrap(worker.kind, worker.name.clone()),
            Place::Infrastructure(worker.kind, worker.name.clone()),
        ] {
            if let Some(rotated) = self.looked_at(&place, |spec| of(replaced, &rotates(&spec.kind), spec.changes)) {
                is_there = true;
                found.extend(rotated);
            }
        }
        if self.has_both_classes() {
            found.extend(self.class_entry(worker));
        }
        (is_there || !found.is_empty()).then_some(found)
    }

    /// What the class itself says of the workers.
    fn class_entry(&self, worker: &Worker) -> Found {
        let entry = |objects: &ClassObjects| {
            let mut entry = objects.worker(worker.kind, &worker.class).cloned().unwrap_or_default();
            if let Some(map) = entry.as_object_mut() {
                for part in ["bootstrap", "infrastructure"] {
                    map.remove(part);
                    if let Some(template) = map.get_mut("template").and_then(Value::as_object_mut) {
                        template.remove(part);
                    }
                }
                leave_out(map, &worker.topology);
            }
            entry
        };
        let changes = between(&entry(self.before.objects), &entry(self.after.objects));
        let (domain, rest): (Vec<Change>, Vec<Change>) =
            changes.into_iter().partition(|change| change.path == ".failureDomain");
        let mut found = of(Verdict::Rolls, "its failure domain differs", domain);
        found.extend(of(Verdict::InPlace, "changed in place", rest));
        found
    }
}

/// Takes what the topology says itself out of what a class says of a control plane or of workers: its word counts.
fn leave_out(entry: &mut Map<String, Value>, topology: &Value) {
    for (field, said) in topology.as_object().into_iter().flatten() {
        match field.as_str() {
            // Both count.
            "metadata" => {}
            "deletion" => {
                let parts = said.as_object().into_iter().flatten();
                if let Some(entry) = entry.get_mut(field).and_then(Value::as_object_mut) {
                    parts.for_each(|(part, _)| drop(entry.remove(part)));
                }
            }
            // That there is to be one says nothing of how it is.
            "machineHealthCheck" | "healthCheck" => {
                let switch = |name: &str| name == "enable" || name == "enabled";
                let only = said
                    .as_object()
                    .is_none_or(|said| said.iter().all(|(name, value)| switch(name) && *value != Value::Bool(false)));
                if !only {
                    entry.remove(field);
                }
            }
            _ => drop(entry.remove(field)),
        }
    }
}

fn of_control_plane(spec: Spec) -> Found {
    if spec.kind != "KubeadmControlPlaneTemplate" {
        let what = format!("{} differs: its own controller says what that does", spec.kind);
        return of(Verdict::MayRoll, &what, spec.changes);
    }
    let mut by: BTreeMap<Verdict, Vec<Change>> = BTreeMap::new();
    for change in spec.changes {
        by.entry(of_kubeadm(&change.path)).or_default().push(change);
    }
    let told = |(verdict, changes)| {
        let what = match verdict {
            Verdict::Rolls => "its kubeadm configuration differs",
            Verdict::MayRoll => "only machines that kubeadm init made are compared with it",
            Verdict::InPlace | Verdict::Unchanged | Verdict::Unknown => "changed in place",
        };
        of(verdict, what, changes)
    };
    by.into_iter().flat_map(told).collect()
}

fn rotates(kind: &str) -> String {
    format!("{kind} rotates")
}

/// What a field of a `KubeadmControlPlaneTemplate` does.
fn of_kubeadm(path: &str) -> Verdict {
    if path == ".kind" {
        return Verdict::Rolls;
    }
    let Some(path) = path.strip_prefix(".spec.template.spec") else { return Verdict::InPlace };
    let below =
        |field: &str| path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    if !below(".kubeadmConfigSpec") || QUIET.iter().any(|field| below(field)) {
        Verdict::InPlace
    } else if below(INIT) {
        Verdict::MayRoll
    } else {
        Verdict::Rolls
    }
}

#[cfg(test)]
mod tests;
