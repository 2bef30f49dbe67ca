//! The management objects of two releases: what of a ClusterClass and its templates differs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::class::{TemplateKey, TemplateReference, references};
use super::difference::{Fate, ObjectChange, hiding, of_objects, renamed};
use crate::api::{MANAGED_BY_LABEL, OWNER_KIND_LABEL, OWNER_NAME_LABEL, OWNER_NAMESPACE_LABEL};
use crate::core::manifest::{Manifest, ObjectKey};

/// The objects of a release, and the release's own name.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// Object name of the release.
    pub release: String,
    /// Name of the ClusterClass.
    pub class: String,
    /// Its objects.
    pub objects: Vec<Manifest>,
}

impl Side {
    fn class(&self) -> Option<&Manifest> {
        self.objects.iter().find(|object| object.key.is_cluster_class() && object.key.name == self.class)
    }
}

/// What differs between the objects of two releases. Objects are paired by where the ClusterClass names them, by their
/// name, or by their name with the release's in it; a name that changed is no difference by itself.
pub fn compare(before: &Side, after: &Side) -> Vec<ObjectChange> {
    let pairs = pairs(before, after);
    let names: BTreeMap<String, String> = pairs
        .iter()
        .filter(|(old, new)| old.key.name != new.key.name)
        .map(|(old, new)| (old.key.name.clone(), new.key.name.clone()))
        .collect();
    let paired_old: BTreeSet<&ObjectKey> = pairs.iter().map(|(old, _)| &old.key).collect();
    let paired_new: BTreeSet<&ObjectKey> = pairs.iter().map(|(_, new)| &new.key).collect();
    let mut changes: Vec<ObjectChange> = Vec::new();
    for (old, new) in &pairs {
        let differs = of_objects(&renamed(&without_owner(&old.object), &names), &without_owner(&new.object));
        let differs = hiding(hiding(differs, &old.hidden), &new.hidden);
        let is_renamed = old.key.name != new.key.name;
        let fate = match (differs.is_empty(), is_renamed) {
            (true, false) => continue,
            (true, true) => Fate::Rotated,
            (false, _) => Fate::Changed,
        };
        let new_name = if is_renamed { new.key.name.clone() } else { String::new() };
        changes.push(ObjectChange { new_name, changes: differs, ..ObjectChange::new(fate, old) });
    }
    let gone = before.objects.iter().filter(|object| !paired_old.contains(&object.key));
    changes.extend(gone.map(|object| ObjectChange::new(Fate::Removed, object)));
    let new = after.objects.iter().filter(|object| !paired_new.contains(&object.key));
    changes.extend(new.map(|object| ObjectChange::new(Fate::Added, object)));
    changes.sort_by_key(|change| (change.kind != "ClusterClass", change.kind.clone(), change.name.clone()));
    changes
}

fn pairs<'a>(before: &'a Side, after: &'a Side) -> Vec<(&'a Manifest, &'a Manifest)> {
    let mut pairs: Vec<(&Manifest, &Manifest)> = Vec::new();
    let mut taken: BTreeSet<(bool, ObjectKey)> = BTreeSet::new();
    let mut pair = |old: &'a Manifest, new: &'a Manifest| {
        let free = !taken.contains(&(false, old.key.clone())) && !taken.contains(&(true, new.key.clone()));
        if free {
            taken.insert((false, old.key.clone()));
            taken.insert((true, new.key.clone()));
            pairs.push((old, new));
        }
        free
    };
    if let (Some(old), Some(new)) = (before.class(), after.class()) {
        pair(old, new);
        let new_slots: BTreeMap<_, _> = references(&new.object).into_iter().collect();
        for (slot, was) in references(&old.object) {
            let Some(is) = new_slots.get(&slot).map(TemplateReference::key) else { continue };
            if let (Some(old), Some(new)) = (template(before, &was.key()), template(after, &is))
                && old.key.kind == new.key.kind
            {
                pair(old, new);
            }
        }
    }
    let same_kind = |old: &Manifest, new: &Manifest| {
        (&old.key.group, &old.key.kind, &old.key.namespace) == (&new.key.group, &new.key.kind, &new.key.namespace)
    };
    for is_exact in [true, false] {
        for old in &before.objects {
            let name = if is_exact { old.key.name.clone() } else { moved(&old.key.name, before, after) };
            if let Some(new) = after.objects.iter().find(|new| same_kind(old, new) && new.key.name == name) {
                pair(old, new);
            }
        }
    }
    pairs
}

fn template<'a>(side: &'a Side, key: &TemplateKey) -> Option<&'a Manifest> {
    side.objects
        .iter()
        .find(|object| (&object.key.group, &object.key.kind, &object.key.name) == (&key.0, &key.1, &key.2))
}

/// A name with the name of one release replaced by that of the other.
fn moved(name: &str, before: &Side, after: &Side) -> String {
    let by_class = name.replace(&before.class, &after.class);
    if by_class == name { name.replace(&before.release, &after.release) } else { by_class }
}

/// Without the labels that say whose an object is: each release has its own.
fn without_owner(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(labels) = object.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        for label in [MANAGED_BY_LABEL, OWNER_KIND_LABEL, OWNER_NAMESPACE_LABEL, OWNER_NAME_LABEL] {
            labels.remove(label);
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[allow(clippy::needless_pass_by_value, reason = "`json!` reads better without a borrow")]
    fn object(kind: &str, name: &str, spec: Value) -> Manifest {
        let group = if kind == "ClusterClass" { "cluster.x-k8s.io" } else { "infrastructure.cluster.x-k8s.io" };
        Manifest::from_value(json!({
            "apiVersion": format!("{group}/v1beta1"), "kind": kind,
            "metadata": {"name": name, "namespace": "n", "labels": {OWNER_NAME_LABEL: name}}, "spec": spec,
        }))
        .unwrap()
    }

    fn side(release: &str, machine: &str, image: &str, more: Vec<Manifest>) -> Side {
        let reference =
            json!({"ref": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "T", "name": machine}});
        let mut objects = vec![
            object("ClusterClass", release, json!({"infrastructure": reference})),
            object("T", machine, json!({"template": {"spec": {"image": image}}})),
        ];
        objects.extend(more);
        Side { release: release.into(), class: release.into(), objects }
    }

    #[test]
    fn a_name_is_no_difference_by_itself() {
        let rows = |before: &Side, after: &Side| -> Vec<(Fate, String, String, Vec<String>)> {
            let row = |c: ObjectChange| {
                (c.fate, format!("{} {}", c.kind, c.name), c.new_name, c.changes.into_iter().map(|c| c.path).collect())
            };
            compare(before, after).into_iter().map(row).collect()
        };
        let v1 = side("x-v1", "x-v1-machine-abc", "a", vec![object("C", "x-v1-more", json!({}))]);
        assert_eq!(rows(&v1, &v1), []);
        let v2 = side("x-v2", "x-v2-machine-def", "a", vec![object("C", "x-v2-more", json!({}))]);
        let renamed =
            |kind: &str, old: &str, new: &str| (Fate::Rotated, format!("{kind} {old}"), new.to_owned(), vec![]);
        assert_eq!(
            rows(&v1, &v2),
            [
                renamed("ClusterClass", "x-v1", "x-v2"),
                renamed("C", "x-v1-more", "x-v2-more"),
                renamed("T", "x-v1-machine-abc", "x-v2-machine-def"),
            ]
        );
        let v3 = side("x-v3", "x-v3-machine", "b", vec![object("D", "new", json!({}))]);
        assert_eq!(
            rows(&v1, &v3),
            [
                renamed("ClusterClass", "x-v1", "x-v3"),
                (Fate::Removed, "C x-v1-more".into(), String::new(), vec![]),
                (Fate::Added, "D new".into(), String::new(), vec![]),
                (
                    Fate::Changed,
                    "T x-v1-machine-abc".into(),
                    "x-v3-machine".into(),
                    vec![".spec.template.spec.image".into()]
                ),
            ]
        );
    }
}
