//! What an upgrade does to the addons of a workload cluster, stage by stage.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::difference::{Fate, ObjectChange, hiding, of_objects};
use crate::api::cluster_stack_release::Resource as Row;
use crate::core::addon_config::{Action, AddonConfig, Hook};
use crate::core::manifest::{Manifest, ObjectKey};
use crate::core::plan::{is_retained, key_of};

/// Stages of a release in the order in which an upgrade runs them: those of BeforeClusterUpgrade, what only new clusters
/// name, those of AfterClusterUpgrade.
pub fn stages(config: &AddonConfig) -> Vec<(Hook, String, Action)> {
    let of = |hook: Hook| config.of(hook).iter().map(move |stage| (hook, stage.name.clone(), stage.action));
    let (before, after) = (Hook::BeforeClusterUpgrade, Hook::AfterClusterUpgrade);
    let named: BTreeSet<String> = of(before).chain(of(after)).map(|(_, name, _)| name).collect();
    let carried = of(Hook::AfterControlPlaneInitialized)
        .filter(|(_, name, action)| *action == Action::Apply && !named.contains(name))
        .map(|(_, name, action)| (before, name, action));
    of(before).chain(carried).chain(of(after)).collect()
}

/// What the objects were compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Compared {
    /// The workload cluster, by a dry run of each object.
    DryRun,
    /// The rendering of the present release: the workload cluster could not be asked.
    Rendering,
    /// Nothing: see the message.
    Nothing,
    /// There are no addons, before or afterwards.
    NoAddons,
}

/// An addon object of the new release with what was found of it.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The object as it would be sent.
    pub manifest: Manifest,
    /// The live object, or that of the present release's rendering.
    pub before: Option<Value>,
    /// The object as the API server would store it, or as it would be sent; or why it would not.
    pub after: Result<Value, Refusal>,
}

/// Why an object would not be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The API server's words.
    pub message: String,
    /// Whether they last.
    pub lasts: Lasts,
}

/// Whether a refusal is one when the upgrade is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    /// It is.
    Yes,
    /// What the object lacks, its kind or its namespace, may come with the rest.
    UntilTheRest,
    /// Nobody knows: the API server gave no answer to it.
    Unknown,
}

/// What becomes of the objects of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StageChange {
    /// The hook in which it runs.
    pub hook: String,
    /// Its name; empty where there is one chart for everything.
    pub stage: String,
    /// `apply` or `delete`.
    pub action: String,
    /// Its objects that do not stay as they are.
    pub objects: Vec<ObjectChange>,
    /// How many stay as they are.
    pub unchanged: usize,
}

/// What becomes of the addons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AddonChanges {
    /// What was compared.
    pub compared: Compared,
    /// Why not the workload cluster, or why nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The stages in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageChange>,
    /// What goes at the end, or stays although no chart has it any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pruned: Vec<ObjectChange>,
}

impl AddonChanges {
    /// Nothing is known; why.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self { compared: Compared::Nothing, message: message.into(), stages: Vec::new(), pruned: Vec::new() }
    }

    /// The same where there is no upgrade: stages that run in upgrades alone bring nothing new.
    #[must_use]
    pub fn without_upgrade(mut self, config: &AddonConfig) -> Self {
        let of_new_clusters = config.of(Hook::AfterControlPlaneInitialized);
        let is_of_upgrades = |stage: &StageChange| of_new_clusters.iter().all(|other| other.name != stage.stage);
        for stage in self.stages.iter_mut().filter(|stage| is_of_upgrades(stage)) {
            stage.objects.retain(|object| object.fate != Fate::Added);
        }
        self
    }

    /// Whether anything changes.
    pub fn is_change(&self) -> bool {
        !self.pruned.is_empty() || self.stages.iter().any(|stage| !stage.objects.is_empty())
    }
}

/// What becomes of the objects: `charts` holds those of each chart, `recorded` the inventory of the ClusterAddon, `live`
/// what is known of objects that no chart has any more.
pub fn changes(
    compared: (Compared, String),
    config: &AddonConfig,
    charts: &BTreeMap<String, Vec<Wanted>>,
    recorded: &[Row],
    live: &BTreeMap<ObjectKey, Value>,
) -> AddonChanges {
    let order = stages(config);
    let mut last: BTreeMap<&ObjectKey, &str> = BTreeMap::new();
    // The last stage that has an object has the say.
    for (_, name, _) in order.iter().filter(|(_, _, action)| *action == Action::Apply) {
        for wanted in charts.get(name).into_iter().flatten() {
            last.insert(&wanted.manifest.key, name);
        }
    }
    let mut gone: Vec<&Row> = recorded.iter().filter(|row| !last.contains_key(&key_of(row))).collect();
    let mut stages = Vec::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for (hook, name, action) in &order {
        let mut stage = StageChange {
            hook: hook.as_str().to_owned(),
            stage: name.clone(),
            action: if *action == Action::Apply { "apply" } else { "delete" }.to_owned(),
            objects: Vec::new(),
            unchanged: 0,
        };
        match action {
            // A stage that several hooks name brings its objects with the first.
            Action::Apply if seen.insert(name) => {
                let all = charts.get(name).into_iter().flatten();
                for wanted in all.filter(|wanted| last.get(&wanted.manifest.key) == Some(&name.as_str())) {
                    match change(wanted) {
                        Some(change) => stage.objects.push(change),
                        None => stage.unchanged += 1,
                    }
                }
            }
            Action::Apply => {}
            Action::Delete => {
                let (of_stage, rest): (Vec<&Row>, Vec<&Row>) = gone.iter().partition(|row| row.stage == *name);
                gone = rest;
                stage.objects = of_stage.into_iter().map(|row| leaving(row, live)).collect();
            }
        }
        stages.push(stage);
    }
    let pruned = gone.into_iter().map(|row| leaving(row, live)).collect();
    AddonChanges { compared: compared.0, message: compared.1, stages, pruned }
}

fn change(wanted: &Wanted) -> Option<ObjectChange> {
    let new = |fate| ObjectChange::new(fate, &wanted.manifest);
    match (&wanted.before, &wanted.after) {
        (before, Err(refusal)) => {
            let fate = if before.is_none() && refusal.lasts != Lasts::Yes { Fate::Added } else { Fate::Refused };
            Some(ObjectChange { message: refusal.message.clone(), ..new(fate) })
        }
        (None, Ok(_)) => Some(new(Fate::Added)),
        (Some(before), Ok(after)) => {
            let changes = hiding(of_objects(before, after), &wanted.manifest.hidden);
            (!changes.is_empty()).then(|| ObjectChange { changes, ..new(Fate::Changed) })
        }
    }
}

/// What no chart has any more.
fn leaving(row: &Row, live: &BTreeMap<ObjectKey, Value>) -> ObjectChange {
    let key = key_of(row);
    let stays = is_retained(&key, live.get(&key).unwrap_or(&Value::Null));
    ObjectChange {
        fate: if stays { Fate::Kept } else { Fate::Removed },
        kind: key.kind,
        namespace: key.namespace,
        name: key.name,
        new_name: String::new(),
        changes: Vec::new(),
        message: if stays { "no chart has it any more; it is never pruned".to_owned() } else { String::new() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::addon_config::Stage;
    use serde_json::json;

    fn config(stages: &[(Hook, &[(&str, Action)])]) -> AddonConfig {
        let stage = |(name, action): &(&str, Action)| Stage::new(name, *action);
        let stages = stages.iter().map(|(hook, stages)| (*hook, stages.iter().map(stage).collect())).collect();
        AddonConfig { stages, allow_values: false }
    }

    fn wanted(name: &str, before: Option<&str>, after: Result<&str, &str>) -> Wanted {
        let object = |value: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "kube-system"}, "data": {"v": value}});
        Wanted {
            manifest: Manifest::from_value(object("")).unwrap(),
            before: before.map(object),
            after: after.map(object).map_err(|words| Refusal {
                message: words.into(),
                lasts: if words == "no" { Lasts::Yes } else { Lasts::UntilTheRest },
            }),
        }
    }

    fn row(stage: &str, kind: &str, name: &str) -> Row {
        let namespace = if kind == "Namespace" { "" } else { "kube-system" };
        Row {
            version: "v1".into(),
            kind: kind.into(),
            namespace: namespace.into(),
            name: name.into(),
            stage: stage.into(),
            ..Row::default()
        }
    }

    #[test]
    fn without_an_upgrade_its_stages_bring_nothing() {
        use Hook::{AfterClusterUpgrade, AfterControlPlaneInitialized};
        let config = config(&[
            (AfterControlPlaneInitialized, &[("cni", Action::Apply)]),
            (AfterClusterUpgrade, &[("late", Action::Apply)]),
        ]);
        let charts: BTreeMap<String, Vec<Wanted>> = [
            ("cni".to_owned(), vec![wanted("a", None, Ok("1"))]),
            ("late".to_owned(), vec![wanted("b", None, Ok("1")), wanted("c", Some("1"), Ok("2"))]),
        ]
        .into();
        let found = changes((Compared::DryRun, String::new()), &config, &charts, &[], &BTreeMap::new());
        let names = |found: &AddonChanges| -> Vec<String> {
            found.stages.iter().flat_map(|stage| &stage.objects).map(|object| object.name.clone()).collect()
        };
        assert_eq!(names(&found), ["a", "b", "c"]);
        assert_eq!(names(&found.without_upgrade(&config)), ["a", "c"]);
    }

    #[test]
    fn stages_come_in_the_order_in_which_an_upgrade_runs_them() {
        use Hook::{AfterClusterUpgrade, AfterControlPlaneInitialized, BeforeClusterUpgrade};
        let apply = Action::Apply;
        let config = config(&[
            (AfterControlPlaneInitialized, &[("cni", apply), ("new", apply), ("late", apply)]),
            (BeforeClusterUpgrade, &[("cni", apply), ("old", Action::Delete)]),
            (AfterClusterUpgrade, &[("late", apply)]),
        ]);
        let found = stages(&config);
        let names: Vec<(&str, &str)> = found.iter().map(|(hook, name, _)| (hook.as_str(), name.as_str())).collect();
        assert_eq!(
            names,
            [
                ("BeforeClusterUpgrade", "cni"),
                ("BeforeClusterUpgrade", "old"),
                ("BeforeClusterUpgrade", "new"),
                ("AfterClusterUpgrade", "late"),
            ]
        );
    }

    #[test]
    fn objects_come_change_move_and_go() {
        let config = config(&[(
            Hook::BeforeClusterUpgrade,
            &[("a", Action::Apply), ("b", Action::Apply), ("old", Action::Delete)],
        )]);
        let charts = BTreeMap::from([
            (
                "a".to_owned(),
                vec![
                    wanted("same", Some("1"), Ok("1")),
                    wanted("changes", Some("1"), Ok("2")),
                    wanted("both", Some("1"), Ok("3")),
                    wanted("refused", Some("1"), Err("no")),
                    wanted("refused when it comes", None, Err("no")),
                    wanted("of a kind that comes", None, Err("no kind")),
                ],
            ),
            ("b".to_owned(), vec![wanted("comes", None, Ok("1")), wanted("both", Some("1"), Ok("1"))]),
        ]);
        let recorded = [
            row("a", "ConfigMap", "same"),
            row("a", "ConfigMap", "gone"),
            row("a", "Namespace", "space"),
            row("old", "ConfigMap", "doomed"),
        ];
        let found = changes((Compared::DryRun, String::new()), &config, &charts, &recorded, &BTreeMap::new());
        let shown = |all: &[ObjectChange]| all.iter().map(|c| (c.fate, c.name.clone())).collect::<Vec<_>>();
        assert_eq!(
            shown(&found.stages[0].objects),
            [
                (Fate::Changed, "changes".to_owned()),
                (Fate::Refused, "refused".to_owned()),
                (Fate::Refused, "refused when it comes".to_owned()),
                (Fate::Added, "of a kind that comes".to_owned()),
            ]
        );
        assert_eq!(found.stages[0].unchanged, 1);
        assert_eq!(shown(&found.stages[1].objects), [(Fate::Added, "comes".to_owned())]);
        assert_eq!(shown(&found.stages[2].objects), [(Fate::Removed, "doomed".to_owned())]);
        assert_eq!(shown(&found.pruned), [(Fate::Removed, "gone".to_owned()), (Fate::Kept, "space".to_owned())]);
        assert!(found.is_change());
    }
}
