//! `clusteraddon.yaml`: which addon charts a cluster gets when.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use thiserror::Error;

use crate::core::yaml;

/// When in a cluster's life stages run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub enum Hook {
    /// A new cluster's API server answers.
    AfterControlPlaneInitialized,
    /// The cluster is to get another Kubernetes version or release.
    BeforeClusterUpgrade,
    /// The cluster has got it.
    AfterClusterUpgrade,
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

/// An object that a condition reads, called by `key` there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
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
#[serde(rename_all = "camelCase")]
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
}

/// `clusteraddon.yaml`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddonConfig {
    /// The stages of each hook, in order.
    pub stages: BTreeMap<Hook, Vec<Stage>>,
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
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(default)]
    addon_stages: Option<BTreeMap<Hook, Option<Vec<Stage>>>>,
}

impl AddonConfig {
    /// Reads the text of a `clusteraddon.yaml`.
    pub fn parse(text: &str) -> Result<Self, AddonConfigError> {
        let raw: Raw = yaml::from_str(text).map_err(|error| AddonConfigError::Form(error.to_string()))?;
        let stages: BTreeMap<_, _> = raw
            .addon_stages
            .unwrap_or_default()
            .into_iter()
            .map(|(hook, stages)| (hook, stages.unwrap_or_default()))
            .collect();
        for (&hook, stages) in &stages {
            check(hook, stages)?;
        }
        Ok(Self { stages })
    }

    /// The names of all stages, each once.
    pub fn charts(&self) -> BTreeSet<&str> {
        self.stages.values().flatten().map(|stage| stage.name.as_str()).collect()
    }
}

fn check(hook: Hook, stages: &[Stage]) -> Result<(), AddonConfigError> {
    let mut seen = BTreeSet::new();
    for stage in stages {
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
    fn stages_and_their_conditions_are_read() {
        let config = AddonConfig::parse(CONFIG).unwrap();
        assert_eq!(config.charts().into_iter().collect::<Vec<_>>(), ["metrics-server", "nginx"]);
        let stage = &config.stages[&Hook::BeforeClusterUpgrade][0];
        assert_eq!(stage.action, Action::Delete);
        let wait = stage.wait_for_post_condition.as_ref().unwrap();
        assert_eq!(wait.objects[1].key, "second");
        assert_eq!(wait.conditions, "first.spec.replicas == second.spec.replicas");
        assert_eq!(stage.wait_for_pre_condition, None);
    }

    #[test]
    fn one_broken_thing_is_one_error() {
        for (good, bad, expected) in [
            ("BeforeClusterUpgrade", "BeforeUpgrade", "unknown variant `BeforeUpgrade`"),
            ("action: delete", "action: remove", "unknown variant `remove`"),
            ("name: nginx\n      action", "name: ../nginx\n      action", "names no directory"),
            ("key: second", "key: first", "two objects with the key \"first\""),
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
    fn no_stages_are_no_error() {
        assert_eq!(AddonConfig::parse("apiVersion: x"), Ok(AddonConfig::default()));
        assert!(AddonConfig::parse("addonStages: {AfterClusterUpgrade: }").is_ok());
    }
}
