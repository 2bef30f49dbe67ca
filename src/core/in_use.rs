//! Which releases are in use, and by whom.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::api::cluster_stack_release::{Resource, ResourceStatus};
use crate::core::manifest::{ObjectKey, annotation, label};
use crate::core::name::ReleaseName;

const CLUSTER_NAME: &str = crate::api::CLUSTER_NAME_LABEL;
/// Cluster API puts it on the machines of control planes and on what it clones for them.
const CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";
const CLONED_FROM: &str = crate::api::CLONED_FROM_NAME;

/// A Cluster of Cluster API, reduced to what matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterUse {
    /// Namespace of the Cluster.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Namespace and name of its ClusterClass; `None` without a topology.
    pub class: Option<(String, String)>,
    /// Whether Cluster API says that the topology of the current generation is rolled out to the objects.
    pub reconciled: bool,
}

/// Reads a Cluster of v1beta1 (`topology.class`, `classNamespace`) or v1beta2 (`topology.classRef`).
pub fn cluster(object: &Value) -> Option<ClusterUse> {
    let metadata = object.get("metadata")?;
    let text = |value: Option<&Value>| value.and_then(Value::as_str).filter(|t| !t.is_empty()).map(ToOwned::to_owned);
    let namespace = text(metadata.get("namespace"))?;
    let topology = object.pointer("/spec/topology");
    let class = topology.and_then(|topology| {
        let reference = topology.get("classRef");
        let name = text(topology.get("class")).or_else(|| text(reference?.get("name")))?;
        let of = text(topology.get("classNamespace")).or_else(|| text(reference?.get("namespace")));
        Some((of.unwrap_or_else(|| namespace.clone()), name))
    });
    Some(ClusterUse { name: text(metadata.get("name"))?, class, reconciled: topology_reconciled(object), namespace })
}

/// Cluster API: condition `TopologyReconciled`, in v1beta2 with its own observedGeneration, in v1beta1 under that of the
/// status. Others write that of the status before the topology is looked at: it counts where no condition has its own.
fn topology_reconciled(object: &Value) -> bool {
    let generation = object.pointer("/metadata/generation").and_then(Value::as_i64);
    let status_observed = object.pointer("/status/observedGeneration").and_then(Value::as_i64);
    let conditions: Vec<&Value> = ["/status/conditions", "/status/v1beta2/conditions"]
        .iter()
        .filter_map(|path| object.pointer(path)?.as_array())
        .flatten()
        .filter(|c| c.get("type").and_then(Value::as_str) == Some("TopologyReconciled"))
        .collect();
    let observed = |c: &Value| c.get("observedGeneration").and_then(Value::as_i64);
    let is_true = |c: &Value| c.get("status").and_then(Value::as_str) == Some("True");
    let has_own = conditions.iter().any(|c| observed(c).is_some());
    conditions.into_iter().filter(|c| !has_own || observed(c).is_some()).any(|c| {
        let observed = observed(c).or(status_observed);
        is_true(c) && (observed.is_none() || observed == generation)
    })
}

/// An object that Cluster API cloned from a template (annotation `cluster.x-k8s.io/cloned-from-name`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cloned {
    /// Kind of the template it was cloned from, without `Template`.
    pub base_kind: String,
    /// Namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The Cluster it belongs to.
    pub cluster: String,
    /// Name of the template it was cloned from.
    pub from: String,
    /// It belongs to a machine of the control plane.
    pub control_plane: bool,
}

/// Reads a clone from the metadata of an object of kind `base_kind` or `base_kind`Template.
pub fn cloned(base_kind: &str, object: &Value) -> Option<Cloned> {
    let get = |key: &str| object.get("metadata")?.get(key)?.as_str().map(ToOwned::to_owned);
    Some(Cloned {
        base_kind: base_kind.to_owned(),
        namespace: get("namespace")?,
        name: get("name")?,
        cluster: label(object, CLUSTER_NAME)?.to_owned(),
        from: annotation(object, CLONED_FROM)?.to_owned(),
        control_plane: label(object, CONTROL_PLANE).is_some(),
    })
}

/// A ClusterAddon and the release it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddonUse {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Name of its Cluster.
    pub cluster: String,
    /// `spec.clusterStack`: the release's name in either spelling.
    pub cluster_stack: String,
}

/// Everything that can use a release, freshly read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// All Clusters of all namespaces.
    pub clusters: Vec<ClusterUse>,
    /// Templates that Cluster API cloned for its Clusters.
    pub templates: Vec<Cloned>,
    /// Infrastructure machines and bootstrap configurations that were cloned from those.
    pub machines: Vec<Cloned>,
    /// ClusterAddons.
    pub addons: Vec<AddonUse>,
    /// Which templates the ClusterClasses refer to that Clusters name and that are of others ([`classes_of_others`]).
    pub classes: BTreeMap<(String, String), BTreeSet<(String, String)>>,
    /// Templates that were asked for ([`doubtful`]) and are there.
    pub elsewhere: BTreeSet<Place>,
}

/// A template: its namespace, its kind without `Template`, and its name.
pub type Place = (String, String, String);

/// The ClusterClasses that Clusters name and that one of these releases, in their namespace, does not have: one that somebody copied,
/// or that another release has, may refer to its templates.
pub fn classes_of_others(releases: &[Footprint], world: &World) -> BTreeSet<(String, String)> {
    let of_others = |class: &&(String, String)| releases.iter().any(|release| may_refer(class, release));
    world.clusters.iter().filter_map(|cluster| cluster.class.as_ref()).filter(of_others).cloned().collect()
}

fn may_refer(class: &(String, String), release: &Footprint) -> bool {
    is_near(class, release) && !release.classes.contains(class)
}

fn is_near(class: &(String, String), release: &Footprint) -> bool {
    release.classes.iter().any(|(namespace, _)| *namespace == class.0)
}

/// The templates that a ClusterClass refers to, by kind without `Template`, and name. They are of its namespace: `ref` in v1beta1,
/// `templateRef` in v1beta2, at the infrastructure, the control plane, and each class of workers.
pub fn templates_of_class(class: &Value) -> BTreeSet<(String, String)> {
    fn collect(value: &Value, found: &mut BTreeSet<(String, String)>) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    if matches!(key.as_str(), "ref" | "templateRef") {
                        let text = |key: &str| value.get(key).and_then(Value::as_str);
                        let base = text("kind").and_then(|kind| kind.strip_suffix("Template"));
                        found.extend(base.zip(text("name")).map(|(base, name)| (base.to_owned(), name.to_owned())));
                    }
                    collect(value, found);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    for part in ["/spec/infrastructure", "/spec/controlPlane", "/spec/workers"] {
        class.pointer(part).into_iter().for_each(|part| collect(part, &mut found));
    }
    found
}

/// Templates of which clones look as if they were of one of these releases, and may be of another release of the same name: a clone
/// names its template without a namespace. Where there is such a template in the namespace of its Cluster's class, it is that one.
pub fn doubtful(releases: &[Footprint], world: &World) -> BTreeSet<Place> {
    let clones = world.templates.iter().chain(&world.machines);
    let templates: BTreeSet<(&str, &str)> = releases
        .iter()
        .flat_map(|release| &release.templates)
        .map(|(kind, name)| (kind.as_str(), name.as_str()))
        .collect();
    let of_one = |clone: &&Cloned| templates.contains(&(clone.base_kind.as_str(), clone.from.as_str()));
    let doubtful = clones.filter(of_one).filter_map(|clone| {
        let class = class_of(clone, world)?;
        let template = (clone.base_kind.clone(), clone.from.clone());
        let may_be = |release: &Footprint| release.templates.contains(&template) && !is_near(class, release);
        releases.iter().any(may_be).then(|| (class.0.clone(), template.0, template.1))
    });
    doubtful.collect()
}

/// Whether clones look as if they were of one of these releases, in another namespace, and belong to no Cluster that was read: it may
/// have been made since then.
pub fn is_behind(releases: &[Footprint], world: &World) -> bool {
    let clones = world.templates.iter().chain(&world.machines);
    let mut foreign = clones.filter(|clone| {
        let template = (clone.base_kind.clone(), clone.from.clone());
        let is_near = |release: &Footprint| release.classes.iter().any(|(namespace, _)| *namespace == clone.namespace);
        releases.iter().any(|release| release.templates.contains(&template) && !is_near(release))
    });
    foreign.any(|clone| is_left(clone, world))
}

/// Whether the Cluster of a clone is gone.
fn is_left(clone: &Cloned, world: &World) -> bool {
    cluster_of(clone, world).is_none()
}

fn cluster_of<'a>(clone: &Cloned, world: &'a World) -> Option<&'a ClusterUse> {
    world.clusters.iter().find(|cluster| cluster.namespace == clone.namespace && cluster.name == clone.cluster)
}

fn class_of<'a>(clone: &Cloned, world: &'a World) -> Option<&'a (String, String)> {
    cluster_of(clone, world)?.class.as_ref()
}

/// What is known about use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usage {
    /// All of it was read.
    Known(World),
    /// It could not be read, with the reason: nothing may be collected.
    Unknown(String),
}

/// Who uses a release.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    /// A Cluster names one of its ClusterClasses.
    Cluster(String),
    /// A Cluster names a ClusterClass of somebody else that refers to its templates.
    OfClass {
        /// The Cluster: namespace and name.
        cluster: String,
        /// Namespace of the ClusterClass.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A Cluster has left it and still runs machines or templates of it.
    RollingOut(String),
    /// A Cluster is gone, and machines or templates of it are left that were cloned from this release.
    Left(String),
    /// A ClusterAddon holds it.
    Addon(String),
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cluster(name) => write!(f, "Cluster {name}"),
            Self::OfClass { cluster, namespace, name } => {
                write!(f, "Cluster {cluster} (its ClusterClass {namespace}/{name} refers to templates of it)")
            }
            Self::RollingOut(name) => write!(f, "Cluster {name} (still rolling out)"),
            Self::Left(name) => write!(f, "what is left of Cluster {name}, which is gone"),
            Self::Addon(name) => write!(f, "ClusterAddon {name}"),
        }
    }
}

/// What of a release others can refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Object name of the release.
    pub release: String,
    /// ClusterClasses by namespace and name: from the inventory and from the naming rule.
    pub classes: BTreeSet<(String, String)>,
    /// Templates by kind without `Template`, and name.
    pub templates: BTreeSet<(String, String)>,
}

/// The footprint of a release in `namespace` from its inventory and its name.
pub fn footprint(object_name: &str, namespace: &str, inventory: &[Resource]) -> Footprint {
    let mut classes: BTreeSet<(String, String)> = inventory
        .iter()
        .filter(|row| key(row).is_cluster_class())
        .map(|row| (row.namespace.clone(), row.name.clone()))
        .collect();
    classes.insert((namespace.to_owned(), object_name.to_owned()));
    if let Ok(name) = object_name.parse::<ReleaseName>() {
        classes.insert((namespace.to_owned(), name.to_string()));
    }
    let templates = inventory
        .iter()
        .filter(|row| row.group.ends_with("cluster.x-k8s.io"))
        .filter_map(|row| Some((row.kind.strip_suffix("Template")?.to_owned(), row.name.clone())))
        .collect();
    Footprint { release: object_name.to_owned(), classes, templates }
}

/// Whether Clusters may refer to an object of a release: a ClusterClass, or a template of Cluster API.
pub fn may_be_used(row: &Resource) -> bool {
    key(row).is_cluster_class() || is_template(row)
}

/// Whether it is a template of Cluster API.
pub fn is_template(row: &Resource) -> bool {
    row.group.ends_with("cluster.x-k8s.io") && row.kind.ends_with("Template")
}

/// The inventory of a release without the templates that newer releases of its ClusterStack (their inventories) have too, and
/// have applied: an object that several have belongs to the newest of them, which it holds. The older ones go without it.
pub fn without_shared<'a>(inventory: &[Resource], newer: impl Iterator<Item = &'a [Resource]>) -> Vec<Resource> {
    let applied = newer.flatten().filter(|row| is_template(row) && row.status == ResourceStatus::Synced);
    let taken: BTreeSet<ObjectKey> = applied.map(key).collect();
    inventory.iter().filter(|row| !(is_template(row) && taken.contains(&key(row)))).cloned().collect()
}

/// What of an inventory another release has as well, and had when it was last looked at: it is not to go with this one.
pub fn shared_with(inventory: &[Resource], other: &[Resource]) -> BTreeSet<ObjectKey> {
    let has: BTreeSet<ObjectKey> = other.iter().filter(|row| row.status == ResourceStatus::Synced).map(key).collect();
    inventory.iter().map(key).filter(|key| has.contains(key)).collect()
}

fn key(row: &Resource) -> ObjectKey {
    ObjectKey {
        group: row.group.clone(),
        kind: row.kind.clone(),
        namespace: row.namespace.clone(),
        name: row.name.clone(),
    }
}

/// Who uses the release, sorted.
pub fn users(release: &Footprint, world: &World) -> Vec<User> {
    let mut users = BTreeSet::new();
    let mut naming = BTreeSet::new();
    for cluster in &world.clusters {
        if cluster.class.as_ref().is_some_and(|class| release.classes.contains(class)) {
            naming.insert((cluster.namespace.as_str(), cluster.name.as_str()));
            users.insert(User::Cluster(format!("{}/{}", cluster.namespace, cluster.name)));
        }
        if let Some(class) = cluster.class.as_ref().filter(|class| refers_to(class, release, world)) {
            naming.insert((cluster.namespace.as_str(), cluster.name.as_str()));
            let (namespace, name) = class.clone();
            users.insert(User::OfClass { cluster: format!("{}/{}", cluster.namespace, cluster.name), namespace, name });
        }
    }
    for cluster in rolling_out(release, world) {
        if !naming.contains(&(cluster.0.as_str(), cluster.1.as_str())) {
            let is_there = world.clusters.iter().any(|c| c.namespace == cluster.0 && c.name == cluster.1);
            let user = if is_there { User::RollingOut } else { User::Left };
            users.insert(user(format!("{}/{}", cluster.0, cluster.1)));
        }
    }
    for addon in &world.addons {
        if same_release(&addon.cluster_stack, &release.release) && holds(addon, release, world) {
            users.insert(User::Addon(format!("{}/{}", addon.namespace, addon.name)));
        }
    }
    users.into_iter().collect()
}

/// Clusters with a machine of one of the release's templates, or with a clone of one while their topology is not
/// reconciled. Cluster API clones the class's templates for the Cluster, and machines from those clones; KubeadmControlPlane
/// and others may clone machines from the class's template itself.
///
/// Cluster API deletes the old clone of a control plane's template as soon as it made the new one, before the machines
/// are replaced: a control plane machine whose template is gone may be of any release with such templates.
///
/// A clone names its template without a namespace. Where the Cluster uses a class of another namespace now, and there is such a
/// release or such a template, it is that one's. Where its Cluster is gone it is taken for one of its own namespace: else anybody
/// could hold the releases of all others, by a label.
fn rolling_out(release: &Footprint, world: &World) -> BTreeSet<(String, String)> {
    let is_here = |clone: &Cloned| {
        if is_left(clone, world) {
            return release.classes.iter().any(|(namespace, _)| *namespace == clone.namespace);
        }
        class_of(clone, world).is_none_or(|class| {
            let same_name = release.classes.iter().any(|(_, name)| *name == class.1);
            let is_elsewhere =
                || world.elsewhere.contains(&(class.0.clone(), clone.base_kind.clone(), clone.from.clone()));
            is_near(class, release) || !(same_name || is_elsewhere())
        })
    };
    let in_namespace = |clone: &Cloned| {
        class_of(clone, world)
            .is_some_and(|(namespace, _)| release.classes.iter().any(|(of_release, _)| of_release == namespace))
    };
    let of_release =
        |clone: &&Cloned| release.templates.contains(&(clone.base_kind.clone(), clone.from.clone())) && is_here(clone);
    let mut clones: BTreeSet<(&str, &str, &str)> = BTreeSet::new();
    clones.extend(world.templates.iter().filter(of_release).map(id));
    let all: BTreeSet<(&str, &str, &str)> = world.templates.iter().map(id).collect();
    let kinds: BTreeSet<&str> = release.templates.iter().map(|(kind, _)| kind.as_str()).collect();
    let of_lost_template = |machine: &Cloned, template: &(&str, &str, &str)| {
        machine.control_plane
            && kinds.contains(machine.base_kind.as_str())
            && !all.contains(template)
            && in_namespace(machine)
    };
    let by_machine = world.machines.iter().filter(|machine| {
        let template = (machine.base_kind.as_str(), machine.namespace.as_str(), machine.from.as_str());
        clones.contains(&template) || of_release(machine) || of_lost_template(machine, &template)
    });
    let unreconciled = world
        .templates
        .iter()
        .filter(of_release)
        .filter(|clone| cluster_of(clone, world).is_some_and(|c| !c.reconciled));
    by_machine.chain(unreconciled).map(|clone| (clone.namespace.clone(), clone.cluster.clone())).collect()
}

fn refers_to(class: &(String, String), release: &Footprint, world: &World) -> bool {
    may_refer(class, release)
        && world.classes.get(class).is_some_and(|templates| !templates.is_disjoint(&release.templates))
}

fn id(clone: &Cloned) -> (&str, &str, &str) {
    (&clone.base_kind, &clone.namespace, &clone.name)
}

/// Whether a ClusterAddon that names a release of this name means the one of this namespace: the one that its Cluster's
/// ClusterClass is in, or its own where that is not known. Or a tenant could hold the releases of all others by a name.
fn holds(addon: &AddonUse, release: &Footprint, world: &World) -> bool {
    let cluster = world.clusters.iter().find(|c| c.namespace == addon.namespace && c.name == addon.cluster);
    let class = cluster.and_then(|cluster| cluster.class.as_ref());
    let namespace = class.map_or(&addon.namespace, |(namespace, _)| namespace);
    release.classes.iter().any(|(own, _)| own == namespace)
}

/// `docker-scs-1-31-v0-sha.abc` and `docker-scs-1-31-v0-sha-abc` are one release.
fn same_release(a: &str, b: &str) -> bool {
    let normal = |text: &str| text.replace('.', "-");
    normal(a) == normal(b)
}

#[cfg(test)]
mod tests;
