//! A ClusterClass with the templates that it names, in either contract of Cluster API.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::core::manifest::split_api_version;

/// The two kinds of workers of a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum WorkerKind {
    /// Machines one by one.
    MachineDeployment,
    /// Machines as a group of the infrastructure.
    MachinePool,
}

impl WorkerKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::MachineDeployment, Self::MachinePool];

    /// Its kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MachineDeployment => "MachineDeployment",
            Self::MachinePool => "MachinePool",
        }
    }

    /// Its list in topologies and classes.
    pub fn list(self) -> &'static str {
        match self {
            Self::MachineDeployment => "machineDeployments",
            Self::MachinePool => "machinePools",
        }
    }

    /// Its field in the selectors of patches.
    pub fn selector(self) -> &'static str {
        match self {
            Self::MachineDeployment => "machineDeploymentClass",
            Self::MachinePool => "machinePoolClass",
        }
    }

    /// Its builtin variable.
    pub fn builtin(self) -> &'static str {
        match self {
            Self::MachineDeployment => "machineDeployment",
            Self::MachinePool => "machinePool",
        }
    }
}

/// A template that a ClusterClass names. Its namespace is the class's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TemplateReference {
    /// API version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}

impl TemplateReference {
    /// Group, kind and name: what it is known by, in whatever version it was read.
    pub fn key(&self) -> TemplateKey {
        (split_api_version(&self.api_version).0.to_owned(), self.kind.clone(), self.name.clone())
    }
}

/// Group, kind and name of a template.
pub type TemplateKey = (String, String, String);

/// A place of a ClusterClass where a template stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// The cluster's infrastructure.
    InfrastructureCluster,
    /// The control plane.
    ControlPlane,
    /// The machines of the control plane.
    ControlPlaneMachine,
    /// How the machines of a class of workers are bootstrapped.
    Bootstrap(WorkerKind, String),
    /// The machines, or the group, of a class of workers.
    Infrastructure(WorkerKind, String),
}

/// A ClusterClass and its templates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassObjects {
    /// The ClusterClass.
    pub class: Value,
    /// The templates that are known.
    pub templates: BTreeMap<TemplateKey, Value>,
}

impl ClassObjects {
    /// The templates that the class names, by place.
    pub fn references(&self) -> Vec<(Slot, TemplateReference)> {
        references(&self.class)
    }

    /// The template in a place, if it is known.
    pub fn template(&self, reference: &TemplateReference) -> Option<&Value> {
        self.templates.get(&reference.key())
    }

    /// A class of workers.
    pub fn worker(&self, kind: WorkerKind, class: &str) -> Option<&Value> {
        worker_classes(&self.class, kind).find(|(name, _)| *name == class).map(|(_, entry)| entry)
    }
}

/// The templates that a ClusterClass names, by place.
pub fn references(class: &Value) -> Vec<(Slot, TemplateReference)> {
    let at = |pointer: &str| class.pointer(pointer);
    let mut all = Vec::new();
    let mut push = |slot, holder: Option<&Value>| all.extend(reference(holder).map(|reference| (slot, reference)));
    push(Slot::InfrastructureCluster, at("/spec/infrastructure"));
    push(Slot::ControlPlane, at("/spec/controlPlane"));
    push(Slot::ControlPlaneMachine, at("/spec/controlPlane/machineInfrastructure"));
    for kind in WorkerKind::ALL {
        for (name, entry) in worker_classes(class, kind) {
            // v1beta1 nests them in `template`.
            let part = |part: &str| entry.get(part).or_else(|| entry.get("template")?.get(part));
            push(Slot::Bootstrap(kind, name.to_owned()), part("bootstrap"));
            push(Slot::Infrastructure(kind, name.to_owned()), part("infrastructure"));
        }
    }
    all
}

fn worker_classes(class: &Value, kind: WorkerKind) -> impl Iterator<Item = (&str, &Value)> {
    let list = class.pointer(&format!("/spec/workers/{}", kind.list())).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|entry| Some((entry.get("class")?.as_str()?, entry)))
}

/// v1beta1 writes `ref`, v1beta2 `templateRef`.
fn reference(holder: Option<&Value>) -> Option<TemplateReference> {
    let reference = holder?.get("templateRef").or_else(|| holder?.get("ref"))?;
    let text = |key: &str| reference.get(key)?.as_str().filter(|text| !text.is_empty()).map(ToOwned::to_owned);
    Some(TemplateReference { api_version: text("apiVersion")?, kind: text("kind")?, name: text("name")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_contracts_name_their_templates() {
        let named = |kind: &str| json!({"apiVersion": "g.x-k8s.io/v1", "kind": kind, "name": "n"});
        let old = json!({"spec": {
            "infrastructure": {"ref": named("A")},
            "controlPlane": {"ref": named("B"), "machineInfrastructure": {"ref": named("C")}},
            "workers": {"machineDeployments": [{"class": "w", "template": {
                "bootstrap": {"ref": named("D")}, "infrastructure": {"ref": named("E")}}}]},
        }});
        let new = json!({"spec": {
            "infrastructure": {"templateRef": named("A")},
            "controlPlane": {"templateRef": named("B"), "machineInfrastructure": {"templateRef": named("C")}},
            "workers": {"machineDeployments": [{"class": "w",
                "bootstrap": {"templateRef": named("D")}, "infrastructure": {"templateRef": named("E")}}]},
        }});
        assert_eq!(references(&old), references(&new));
        let kinds: Vec<String> = references(&new).into_iter().map(|(_, reference)| reference.kind).collect();
        assert_eq!(kinds, ["A", "B", "C", "D", "E"]);
        assert_eq!(references(&json!({})), []);
    }
}
