//! Settings from a ConfigMap over those from flags: one place for all replicas.
//!
//! A key is the name of a flag without its dashes. `NAME.flag` is for the replicas alone whose pod is called `NAME` or
//! `NAME-…`: the name of a Deployment, of a `StatefulSet`, or of one pod; the longest name counts.

use std::collections::BTreeMap;

use clap::{Arg, Args, Command, FromArgMatches};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::arguments::line;
use super::{Flags, Live, SettingsError};
use crate::core::digest::hex;

/// Flags that a ConfigMap can't hold, and why.
const FIXED: [(&str, &str); 5] = [
    ("settings", "it says where the settings are"),
    ("leader-elect", "it says whether there are other replicas to agree with"),
    ("leader-elect-namespace", "it says where the settings and the other replicas are"),
    ("log-format", "who reads the log would find two forms in it"),
    ("otlp-endpoint", "traces are sent from the process's begin to its end"),
];

/// Why a ConfigMap's settings are refused, all of them.
#[derive(Debug, Error)]
pub enum OverlayError {
    /// There is no such setting.
    #[error("{0:?} is no setting: `clusterstack operator --help` lists them, without the dashes in front")]
    Unknown(String),
    /// It can only be a flag.
    #[error("{key:?} can be a flag alone: {why}")]
    Fixed {
        /// The key.
        key: String,
        /// Why.
        why: &'static str,
    },
    /// The value can't be understood.
    #[error("{key}: {error}")]
    Value {
        /// The key.
        key: String,
        /// What is wrong.
        error: String,
    },
    /// The settings don't go together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// Names what a ConfigMap holds, in 12 characters; `none` where it holds nothing.
pub fn version(data: &BTreeMap<String, String>) -> String {
    if data.is_empty() {
        return "none".to_owned();
    }
    let mut hasher = Sha256::new();
    for text in data.iter().flat_map(|(key, value)| [key, value.trim()]) {
        hasher.update(text.len().to_le_bytes());
        hasher.update(text);
    }
    hex(&hasher.finalize()[..6])
}

impl Flags {
    /// The flags of `replica`, the name of its pod, with a ConfigMap's settings in their place.
    ///
    /// # Errors
    /// A key or a value that can't be used, also where it is another replica's: all of them say the same.
    pub fn overlaid(&self, data: &BTreeMap<String, String>, replica: &str) -> Result<Self, OverlayError> {
        self.overlaid_as(data, replica, |flags| flags.clone().settings().map(drop))
    }

    /// Whether [`overlaid`](Self::overlaid) takes a ConfigMap's settings, judged where the operator does not run.
    ///
    /// # Errors
    /// A key or a value that can't be used.
    pub fn judge_overlay(&self, data: &BTreeMap<String, String>) -> Result<(), OverlayError> {
        self.overlaid_as(data, "", Self::judged_elsewhere).map(drop)
    }

    fn overlaid_as(
        &self,
        data: &BTreeMap<String, String>,
        replica: &str,
        judge: impl Fn(&Self) -> Result<(), SettingsError>,
    ) -> Result<Self, OverlayError> {
        let mut concerning = Vec::new();
        for (key, value) in data {
            let (scope, flag) = key.rsplit_once('.').unwrap_or(("", key));
            if let Some((_, why)) = FIXED.iter().find(|(fixed, _)| *fixed == flag) {
                return Err(OverlayError::Fixed { key: key.clone(), why });
            }
            let mut tried = self.clone();
            tried.set(key, flag, value)?;
            judge(&tried)?;
            let is_ours = replica.strip_prefix(scope).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
            if scope.is_empty() || is_ours {
                concerning.push((scope, key, flag, value));
            }
        }
        concerning.sort_by_key(|(scope, ..)| scope.len());
        let mut flags = self.clone();
        for (_, key, flag, value) in concerning {
            flags.set(key, flag, value)?;
        }
        judge(&flags)?;
        Ok(flags)
    }

    fn set(&mut self, key: &str, flag: &str, value: &str) -> Result<(), OverlayError> {
        let command = command();
        if !command.get_arguments().any(|arg| arg.get_long() == Some(flag)) {
            return Err(OverlayError::Unknown(key.to_owned()));
        }
        let refused = |error: clap::Error| OverlayError::Value { key: key.to_owned(), error: line(&error) };
        let matches = command.try_get_matches_from([format!("--{flag}={}", value.trim())]).map_err(refused)?;
        self.update_from_arg_matches(&matches).map_err(refused)
    }

    /// What of them can be changed while the operator works.
    pub fn live(&self) -> Live {
        Live {
            log_level: self.log_level,
            default_interval: self.default_interval,
            qps: self.qps,
            burst: self.burst,
            stack_concurrency: self.clusterstack_concurrency,
            release_concurrency: self.clusterstackrelease_concurrency,
            addon_concurrency: self.clusteraddon_concurrency,
            source_concurrency: self.clusterstacksource_concurrency,
            image_build_concurrency: self.image_build_concurrency,
            shard_classes: self.shard_class.iter().filter(|class| !class.is_empty()).cloned().collect(),
        }
    }

    /// Whether the operator has to begin anew to go over to `other`.
    pub fn needs_restart(&self, other: &Self) -> bool {
        let as_live = Self {
            log_level: self.log_level,
            default_interval: self.default_interval,
            qps: self.qps,
            burst: self.burst,
            clusterstack_concurrency: self.clusterstack_concurrency,
            clusterstackrelease_concurrency: self.clusterstackrelease_concurrency,
            clusteraddon_concurrency: self.clusteraddon_concurrency,
            clusterstacksource_concurrency: self.clusterstacksource_concurrency,
            image_build_concurrency: self.image_build_concurrency,
            shard_class: self.shard_class.clone(),
            ..other.clone()
        };
        as_live != *self
    }
}

/// The flags, of which only those count that are given.
fn command() -> Command {
    let plain = |arg: Arg| arg.default_value(None::<&str>).env(None::<&str>).required(false);
    Flags::augment_args_for_update(Command::new("settings"))
        .no_binary_name(true)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .mut_args(plain)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::settings::LogLevel;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn flags(arguments: &[&str]) -> Flags {
        Line::parse_from(["clusterstack"].iter().chain(arguments)).flags
    }

    fn data(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_the_config_map_says_counts_and_the_rest_stays() {
        let given = flags(&["--qps=7", "--shard-class=old", "--allow-source=/a", "--log-level=warn"]);
        let entries = [("qps", "9\n"), ("shard-class", "big,huge"), ("allow-cluster-scope", "true")];
        let now = given.overlaid(&data(&entries), "pod").unwrap();
        assert!((now.qps - 9.0).abs() < f32::EPSILON && now.allow_cluster_scope && !now.allow_any_kubeconfig);
        assert_eq!(
            (now.shard_class.as_slice(), now.log_level),
            (["big".into(), "huge".into()].as_slice(), LogLevel::Warn)
        );
        assert_eq!((now.allow_source.clone(), now.burst), (vec!["/a".to_owned()], 1000));
        assert_eq!(given.overlaid(&data(&[]), "pod").unwrap(), given);
        let given = flags(&["--allow-cluster-scope"]);
        for (value, expected) in [("false", false), ("yes", true), ("off", false)] {
            let now = given.overlaid(&data(&[("allow-cluster-scope", value)]), "pod").unwrap();
            assert_eq!(now.allow_cluster_scope, expected, "{value}");
        }
    }

    #[test]
    fn a_name_in_front_is_for_its_replicas_alone() {
        let entries = data(&[
            ("burst", "1"),
            ("clusterstack.burst", "2"),
            ("clusterstack-big.burst", "3"),
            ("clusterstack-big-0.burst", "4"),
        ]);
        let given = flags(&[]);
        for (replica, burst) in [
            ("other", 1),
            ("clusterstack-0", 2),
            ("clusterstack-7d9f-x2x", 2),
            ("clusterstack-big-1", 3),
            ("clusterstack-big-0", 4),
            ("clusterstack-bigger-0", 2),
        ] {
            assert_eq!(given.overlaid(&entries, replica).unwrap().burst, burst, "{replica}");
        }
    }

    #[test]
    fn one_that_is_wrong_is_refused_whoever_it_is_for() {
        for (key, value, words) in [
            ("bursts", "1", "is no setting"),
            ("burst", "many", "burst: invalid value 'many'"),
            ("else.burst", "many", "else.burst: invalid value 'many'"),
            ("clusterstack-concurrency", "0", "clusterstack-concurrency"),
            ("shard-class", "no label!", "shard-class"),
            ("metrics-bind-address", "nonsense", "--metrics-bind-address"),
            ("leader-elect-namespace", "x", "can be a flag alone"),
            ("default-interval", "soon", "default-interval"),
            ("allow-any-kubeconfig", "perhaps", "allow-any-kubeconfig"),
            ("default-interval", "1s", "10s"),
            ("allow-cluster-scope", "", "allow-cluster-scope"),
        ] {
            let error = flags(&[]).overlaid(&data(&[(key, value)]), "pod").unwrap_err().to_string();
            assert!(error.contains(words), "{key}: {error}");
        }
    }

    #[test]
    fn what_can_be_changed_at_once_needs_no_restart() {
        let given = flags(&[]);
        for (key, value, restarts) in [
            ("log-level", "debug", false),
            ("default-interval", "1m", false),
            ("qps", "1", false),
            ("burst", "1", false),
            ("clusterstack-concurrency", "1", false),
            ("clusterstackrelease-concurrency", "1", false),
            ("clusteraddon-concurrency", "1", false),
            ("clusterstacksource-concurrency", "1", false),
            ("image-build-concurrency", "1", false),
            ("shard-class", "big", false),
            ("release-dir-size", "16", true),
            ("receiver-bind-address", ":9000", true),
            ("allow-source", "/srv", true),
            ("namespace", "team", true),
        ] {
            let now = given.overlaid(&data(&[(key, value)]), "pod").unwrap();
            assert_ne!(now, given, "{key}");
            assert_eq!(given.needs_restart(&now), restarts, "{key}");
            assert_eq!(given.live() != now.live(), !restarts, "{key}");
        }
    }

    #[test]
    fn a_version_names_what_is_said() {
        let one = version(&data(&[("a", "1")]));
        assert_eq!((one.len(), version(&data(&[("a", "1\n")])) == one, version(&data(&[]))), (12, true, "none".into()));
        assert_ne!(version(&data(&[("a", "2")])), one);
    }
}
