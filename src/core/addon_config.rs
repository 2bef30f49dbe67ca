//! `clusteraddon.yaml`: which addon charts a cluster gets when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::de::{IgnoredAny, IntoDeserializer};
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::api::cluster_stack::IgnoreDifference;
use crate::core::duration::go_duration;
use crate::core::yaml;

/// The time that a stage has where it says nothing of it: new nodes come up in it, with room to spare.
pub const DEADLINE: Duration = Duration::from_mins(30);

/// When in a cluster's life stages run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub enum Hook {
    /// A new cluster's API server answers.
    AfterControlPlaneInitialized,
    /// The cluster is to get another Kubernetes version or release.
    BeforeClusterUpgrade,
    /// The cluster has got it.
    AfterClusterUpgrade,
    /// The cluster is to be deleted, and its machines are still there.
    BeforeClusterDelete,
}

impl Hook {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::AfterControlPlaneInitialized,
        Self::BeforeClusterUpgrade,
        Self::AfterClusterUpgrade,
        Self::BeforeClusterDelete,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AfterControlPlaneInitialized => "AfterControlPlaneInitialized",
            Self::BeforeClusterUpgrade => "BeforeClusterUpgrade",
            Self::AfterClusterUpgrade => "AfterClusterUpgrade",
            Self::BeforeClusterDelete => "BeforeClusterDelete",
        }
    }
}

/// What a stage does with its chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Apply its objects.
    Apply,
    /// Delete its objects.
    Delete,
}

/// What is done with the definitions in a chart's `crds/`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum CrdPolicy {
    /// New ones are created, those that exist stay as they are.
    Create,
    /// New ones are created, those that exist are brought to what the chart has.
    #[default]
    CreateReplace,
    /// They are left out.
    Skip,
}

/// An object that a condition reads, called by `key` there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WatchedObject {
    /// Its name in the condition.
    pub key: String,
    /// Its API version, for example `apps/v1`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its namespace; empty for objects without one.
    #[serde(default)]
    pub namespace: String,
}

/// A condition in CEL over objects of the workload cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitFor {
    /// The objects it reads.
    #[serde(default)]
    pub objects: Vec<WatchedObject>,
    /// The expression; empty is always true.
    #[serde(default)]
    pub conditions: String,
}

/// One step of a hook: a chart applied or deleted, between two conditions.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
// A misspelt gate must not go unnoticed.
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stage {
    /// Directory of its chart under `cluster-addon`.
    pub name: String,
    /// What is done with the chart.
    pub action: Action,
    /// Waited for before it starts.
    #[serde(default)]
    pub wait_for_pre_condition: Option<WaitFor>,
    /// Waited for before the next stage starts.
    #[serde(default)]
    pub wait_for_post_condition: Option<WaitFor>,
    /// What is done with the definitions in the chart's `crds/`.
    #[serde(default)]
    pub crds: CrdPolicy,
    /// Whether objects are deleted and made anew where a field that can't be changed did.
    #[serde(default)]
    pub replace: bool,
    /// Fields of its objects that are left to others.
    #[serde(default, deserialize_with = "ignore_differences")]
    pub ignore_differences: Vec<IgnoreDifference>,
    /// The time that it has from its turn on.
    #[serde(default = "default_deadline", deserialize_with = "deadline")]
    pub deadline: Duration,
    /// What happens when that time is over.
    #[serde(default)]
    pub on_deadline: OnDeadline,
}

impl Stage {
    /// One of which nothing else is said.
    pub fn new(name: &str, action: Action) -> Self {
        Self {
            name: name.to_owned(),
            action,
            wait_for_pre_condition: None,
            wait_for_post_condition: None,
            crds: CrdPolicy::default(),
            replace: false,
            ignore_differences: Vec::new(),
            deadline: DEADLINE,
            on_deadline: OnDeadline::default(),
        }
    }
}

/// What happens at the deadline of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDeadline {
    /// It goes on to be tried, and the next ones wait.
    #[default]
    Block,
    /// It is left, and the next one starts.
    Continue,
}

fn default_deadline() -> Duration {
    DEADLINE
}

fn deadline<'de, D: Deserializer<'de>>(text: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(text)?;
    let given = go_duration(&text).filter(|given| *given >= Duration::from_secs(1));
    let problem = || format!("the deadline {text:?} is no duration of a second or more: write 30m or 1h30m");
    given.ok_or_else(|| serde::de::Error::custom(problem()))
}

/// The same as a ClusterStack's. A misspelt `name` would leave fields of all objects to others.
fn ignore_differences<'de, D: Deserializer<'de>>(given: D) -> Result<Vec<IgnoreDifference>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Given {
        #[serde(default)]
        group: String,
        kind: String,
        #[serde(default)]
        name: Option<String>,
        json_pointers: Vec<String>,
    }
    let given = Vec::<Given>::deserialize(given)?;
    if let Some(pointer) = given.iter().flat_map(|one| &one.json_pointers).find(|pointer| !pointer.starts_with('/')) {
        let problem =
            format!("{pointer:?} is no JSON pointer: write one with a slash before each step, as /spec/replicas");
        return Err(serde::de::Error::custom(problem));
    }
    let ignored = |Given { group, kind, name, json_pointers }| IgnoreDifference { group, kind, name, json_pointers };
    Ok(given.into_iter().map(ignored).collect())
}

/// `clusteraddon.yaml`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddonConfig {
    /// The stages of each hook, in order.
    pub stages: BTreeMap<Hook, Vec<Stage>>,
    /// Whether users may give the charts values of their own.
    pub allow_values: bool,
}

/// Why a `clusteraddon.yaml` can't be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddonConfigError {
    /// It is no YAML, or not of the expected form.
    #[error("{0}")]
    Form(String),
    /// A stage's name is no name of a directory.
    #[error("stage {0:?} names no directory of cluster-addon: write the plain name of one")]
    StageName(String),
    /// A hook holds a stage twice.
    #[error("hook {hook:?} holds the stage {stage:?} twice: remove one")]
    StageTwice {
        /// The hook.
        hook: Hook,
        /// The stage.
        stage: String,
    },
    /// Two objects of a condition have one key.
    #[error("stage {stage:?} waits for two objects with the key {key:?}: give each its own key")]
    KeyTwice {
        /// The stage.
        stage: String,
        /// The key.
        key: String,
    },
    /// A stage would apply something to a cluster that goes.
    #[error(
        "stage {0:?} of BeforeClusterDelete has the action apply: nothing is brought to a cluster that goes; write action: delete, or move it to another hook"
    )]
    ApplyBeforeDelete(String),
    /// A stage would take the network or the cloud away from a cluster whose machines are still to be deleted.
    #[error(
        "stage {0:?} of BeforeClusterDelete is called like what the cluster needs to its end (cni, ccm): its nodes would be lost before their machines are deleted; remove it"
    )]
    NeededToTheEnd(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "addonStages with its hooks")]
struct Raw {
    #[serde(default, rename = "apiVersion")]
    _api_version: IgnoredAny,
    #[serde(default, rename = "kind")]
    _kind: IgnoredAny,
    #[serde(default, rename = "metadata")]
    _metadata: IgnoredAny,
    #[serde(default, rename = "clusterAddonVersion")]
    _cluster_addon_version: IgnoredAny,
    #[serde(default)]
    addon_stages: Option<BTreeMap<HookName, Option<Vec<Stage>>>>,
    #[serde(default)]
    allow_values: bool,
}

/// A hook as a key: read as text, or the path of an error below it would not name it.
#[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
struct HookName(Hook);

impl TryFrom<String> for HookName {
    type Error = serde::de::value::Error;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        Hook::deserialize(name.into_deserializer()).map(Self)
    }
}

impl AddonConfig {
    /// Reads the text of a `clusteraddon.yaml`.
    pub fn parse(text: &str) -> Result<Self, AddonConfigError> {
        // A list would be read as fields in their order.
        if yaml::parse(text).is_ok_and(|value| !value.is_object() && !value.is_null()) {
            return Err(AddonConfigError::Form("it is no map".to_owned()));
        }
        let raw: Raw = yaml::from_str_once(text).map_err(|error| AddonConfigError::Form(error.to_string()))?;
        let stages: BTreeMap<_, _> = raw
            .addon_stages
            .unwrap_or_default()
            .into_iter()
            .map(|(HookName(hook), stages)| (hook, stages.unwrap_or_default()))
            .collect();
        for (&hook, stages) in &stages {
            check(hook, stages)?;
        }
        Ok(Self { stages, allow_values: raw.allow_values })
    }

    /// The stages of a hook, in order.
    pub fn of(&self, hook: Hook) -> &[Stage] {
        self.stages.get(&hook).map(Vec::as_slice).unwrap_or_default()
    }

    /// What an upgrade does with the definitions of a chart: of several stages that apply it, the one that changes most.
    pub fn crds_of_upgrade(&self, chart: &str) -> CrdPolicy {
        let of = |hook: Hook| {
            let is_it = move |stage: &&Stage| stage.name == chart && stage.action == Action::Apply;
            self.of(hook).iter().filter(is_it).map(|stage| stage.crds)
        };
        let upgrade: Vec<CrdPolicy> = of(Hook::BeforeClusterUpgrade).chain(of(Hook::AfterClusterUpgrade)).collect();
        // What only new clusters name is carried into the upgrade.
        let all = if upgrade.is_empty() { of(Hook::AfterControlPlaneInitialized).collect() } else { upgrade };
        let has = |policy| all.contains(&policy);
        let by_strength = [CrdPolicy::CreateReplace, CrdPolicy::Create, CrdPolicy::Skip];
        by_strength.into_iter().find(|policy| has(*policy)).unwrap_or_default()
    }

    /// The fields of a chart's objects that any stage which applies it leaves to others.
    pub fn ignored(&self, chart: &str) -> Vec<IgnoreDifference> {
        let is_it = |stage: &&Stage| stage.name == chart && stage.action == Action::Apply;
        self.stages.values().flatten().filter(is_it).flat_map(|stage| stage.ignore_differences.clone()).collect()
    }

    /// The names of all stages, each once.
    pub fn charts(&self) -> BTreeSet<&str> {
        self.stages.values().flatten().map(|stage| stage.name.as_str()).collect()
    }
}

fn check(hook: Hook, stages: &[Stage]) -> Result<(), AddonConfigError> {
    let mut seen = BTreeSet::new();
    for stage in stages {
        if hook == Hook::BeforeClusterDelete {
            if stage.action == Action::Apply {
                return Err(AddonConfigError::ApplyBeforeDelete(stage.name.clone()));
            }
            if is_needed_to_the_end(&stage.name) {
                return Err(AddonConfigError::NeededToTheEnd(stage.name.clone()));
            }
        }
        if stage.name.is_empty() || stage.name.starts_with('.') || stage.name.contains(['/', '\\']) {
            return Err(AddonConfigError::StageName(stage.name.clone()));
        }
        if !seen.insert((&stage.name, stage.action == Action::Apply)) {
            return Err(AddonConfigError::StageTwice { hook, stage: stage.name.clone() });
        }
        for wait in [&stage.wait_for_pre_condition, &stage.wait_for_post_condition].into_iter().flatten() {
            let mut keys = BTreeSet::new();
            if let Some(twice) = wait.objects.iter().find(|object| !keys.insert(&object.key)) {
                return Err(AddonConfigError::KeyTwice { stage: stage.name.clone(), key: twice.key.clone() });
            }
        }
    }
    Ok(())
}

/// Whether a stage is called like a CNI or a cloud controller manager. What a chart holds is looked at when it is deleted.
fn is_needed_to_the_end(name: &str) -> bool {
    name.contains("cloud-controller-manager")
        || name.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| matches!(part, "cni" | "ccm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "
apiVersion: clusteraddonconfig.x-k8s.io/v1alpha1
clusterAddonVersion: clusteraddons.clusterstack.x-k8s.io/v1alpha1
addonStages:
  AfterControlPlaneInitialized:
    - {name: metrics-server, action: apply}
  BeforeClusterUpgrade:
    - name: nginx
      action: delete
      waitForPostCondition:
        objects:
          - {key: first, apiVersion: apps/v1, kind: Deployment, name: metrics-server, namespace: kube-system}
          - {key: second, apiVersion: apps/v1, kind: Deployment, name: nginx, namespace: kube-system}
        conditions: first.spec.replicas == second.spec.replicas
";

    #[test]
    fn what_is_misspelt_is_refused() {
        for (from, to, word) in [
            ("waitForPostCondition", "waitForPostCondtion", "waitForPostCondtion"),
            ("addonStages", "addonStage", "addonStage"),
            ("conditions:", "condtions:", "condtions"),
            ("namespace: kube-system", "namspace: kube-system", "namspace"),
            ("{name: metrics-server, action: apply}", "{name: metrics-server, action: apply, replce: true}", "replce"),
        ] {
            let error = AddonConfig::parse(&CONFIG.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(&format!("unknown field `{word}`")), "{error}");
        }
    }

    #[test]
    fn what_is_there_twice_is_refused() {
        for (from, to, word) in [
            (
                "action: delete",
                "action: delete\n      action: apply",
                "line 10, column 7: the key \"action\" is there twice",
            ),
            (
                "  BeforeClusterUpgrade:",
                "  AfterControlPlaneInitialized: []\n  BeforeClusterUpgrade:",
                "is there twice",
            ),
        ] {
            let error = AddonConfig::parse(&CONFIG.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn stages_and_their_conditions_are_read() {
        let config = AddonConfig::parse(CONFIG).unwrap();
        assert_eq!(config.charts().into_iter().collect::<Vec<_>>(), ["metrics-server", "nginx"]);
        let stage = &config.stages[&Hook::BeforeClusterUpgrade][0];
        assert_eq!(stage.action, Action::Delete);
        let wait = stage.wait_for_post_condition.as_ref().unwrap();
        assert_eq!(wait.objects[1].key, "second");
        assert_eq!(wait.conditions, "first.spec.replicas == second.spec.replicas");
        assert_eq!(stage.wait_for_pre_condition, None);
        assert_eq!((stage.crds, stage.replace), (CrdPolicy::CreateReplace, false));
        let with = CONFIG.replace("action: apply}", "action: apply, crds: Create, replace: true}");
        let stage = &AddonConfig::parse(&with).unwrap().stages[&Hook::AfterControlPlaneInitialized][0];
        assert_eq!((stage.crds, stage.replace), (CrdPolicy::Create, true));
        let ignored = "ignoreDifferences: [{group: apps, kind: Deployment, name: web, jsonPointers: [/spec/replicas]}]";
        let config =
            AddonConfig::parse(&CONFIG.replace("action: apply}", &format!("action: apply, {ignored}}}"))).unwrap();
        let [only] = &config.ignored("metrics-server")[..] else { panic!("{config:?}") };
        assert_eq!((only.kind.as_str(), only.name.as_deref()), ("Deployment", Some("web")));
        assert_eq!(config.ignored("nginx"), []);
    }

    #[test]
    fn one_broken_thing_is_one_error() {
        for (good, bad, expected) in [
            ("BeforeClusterUpgrade", "BeforeUpgrade", "unknown variant `BeforeUpgrade`"),
            ("action: delete", "action: remove", "unknown variant `remove`"),
            ("name: nginx\n      action", "name: ../nginx\n      action", "names no directory"),
            ("action: delete", "action: delete\n      crds: Replace", "unknown variant `Replace`"),
            ("key: second", "key: first", "two objects with the key \"first\""),
            ("action: delete", "action: delete\n      deadline: soon", "the deadline \"soon\" is no duration"),
            ("action: delete", "action: delete\n      deadline: 0s", "the deadline \"0s\" is no duration"),
            (
                "action: delete",
                "action: delete\n      ignoreDifferences: [{kind: Deployment, nam: web, jsonPointers: [/spec/replicas]}]",
                "unknown field `nam`",
            ),
            (
                "action: delete",
                "action: delete\n      ignoreDifferences: [{kind: Deployment, jsonPointers: [spec.replicas]}]",
                "\"spec.replicas\" is no JSON pointer",
            ),
            ("action: delete", "action: delete\n      onDeadline: give-up", "unknown variant `give-up`"),
            (
                "AfterControlPlaneInitialized",
                "BeforeClusterDelete",
                "stage \"metrics-server\" of BeforeClusterDelete has the action apply",
            ),
            (
                "    - {name: metrics-server, action: apply}",
                "    - {name: a, action: apply}\n    - {name: a, action: apply}",
                "holds the stage \"a\" twice",
            ),
        ] {
            assert!(CONFIG.contains(good), "{good}");
            let error = AddonConfig::parse(&CONFIG.replace(good, bad)).unwrap_err().to_string();
            assert!(error.contains(expected), "{bad}: {error}");
        }
    }

    #[test]
    fn a_stage_has_half_an_hour_and_blocks_unless_it_says_otherwise() {
        let of = |more: &str| {
            let config = CONFIG.replace("action: delete", &format!("action: delete\n{more}"));
            let stage = AddonConfig::parse(&config).unwrap().stages[&Hook::BeforeClusterUpgrade][0].clone();
            (stage.deadline.as_secs(), stage.on_deadline)
        };
        assert_eq!(of(""), (1800, OnDeadline::Block));
        assert_eq!(of("      deadline: 1h30m\n      onDeadline: continue"), (5400, OnDeadline::Continue));
        assert_eq!(of("      onDeadline: block"), (1800, OnDeadline::Block));
    }

    #[test]
    fn what_a_cluster_needs_to_its_end_is_in_no_stage_of_its_deletion() {
        for (name, is_taken) in [
            ("ingress", true),
            ("concierge", true),
            ("cni", false),
            ("docker-cni", false),
            ("ccm", false),
            ("openstack-ccm", false),
            ("cloud-controller-manager", false),
        ] {
            let text = format!("addonStages: {{BeforeClusterDelete: [{{name: {name}, action: delete}}]}}");
            assert_eq!(AddonConfig::parse(&text).is_ok(), is_taken, "{name}");
        }
    }

    #[test]
    fn no_stages_are_no_error() {
        assert_eq!(AddonConfig::parse("apiVersion: x"), Ok(AddonConfig::default()));
        for text in ["- a\n- b", "a", "5"] {
            assert_eq!(AddonConfig::parse(text), Err(AddonConfigError::Form("it is no map".to_owned())), "{text}");
        }
        assert!(AddonConfig::parse("addonStages: {AfterClusterUpgrade: }").is_ok());
    }

    #[test]
    fn an_upgrade_does_with_definitions_what_its_stages_say() {
        let (new, before, after) = ("AfterControlPlaneInitialized", "BeforeClusterUpgrade", "AfterClusterUpgrade");
        for (stages, expected) in [
            (vec![(before, "")], CrdPolicy::CreateReplace),
            (vec![(new, ""), (before, ", crds: Create")], CrdPolicy::Create),
            (vec![(new, ", crds: Skip")], CrdPolicy::Skip),
            (vec![(before, ", crds: Skip"), (after, ", crds: Create")], CrdPolicy::Create),
            (vec![(before, ", crds: CreateReplace"), (after, ", crds: Skip")], CrdPolicy::CreateReplace),
        ] {
            let hook = |(hook, more): &(&str, &str)| format!("  {hook}: [{{name: cni, action: apply{more}}}]\n");
            let text = format!("addonStages:\n{}", stages.iter().map(hook).collect::<String>());
            assert_eq!(AddonConfig::parse(&text).unwrap().crds_of_upgrade("cni"), expected, "{text}");
        }
    }
}
