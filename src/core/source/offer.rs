//! What a ClusterStackSource offers, and to whom.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use thiserror::Error;

use crate::api::cluster_stack::Channel;
use crate::api::cluster_stack_source::{AllowedNamespaces, OfferRules, OfferedRelease};
use crate::core::name::{KubernetesMinor, NameError, ReleaseName, ReleaseVersion};
use crate::core::version_range::{RangeError, VersionRange};

/// Releases that a status lists.
pub const LISTED: usize = 200;
/// Releases that a message names.
const NAMED: usize = 3;
/// Longest provider and name of a ClusterStack, and longest name of an object.
const LONGEST_WORD: usize = 63;
const LONGEST_OBJECT: usize = 253;

/// The rules of an offer, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    stacks: Vec<String>,
    deny_stacks: Vec<String>,
    kubernetes: Vec<KubernetesMinor>,
    deny_kubernetes: Vec<KubernetesMinor>,
    channels: Vec<Channel>,
    range: Option<VersionRange>,
    approved: BTreeSet<String>,
}

/// Why the rules can't be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RulesError {
    /// A Kubernetes version, or the name of a release.
    #[error("spec.offer: {0}")]
    Name(#[from] NameError),
    /// `versionRange`.
    #[error("spec.offer.versionRange: {0}")]
    Range(#[from] RangeError),
    /// The selector of namespaces.
    #[error("spec.allowedNamespaces.selector can't be read: {0}; correct its matchExpressions")]
    Selector(String),
}

impl Rules {
    /// Reads them.
    pub fn of(rules: &OfferRules) -> Result<Self, RulesError> {
        let minors = |list: &[String]| list.iter().map(|minor| minor.parse()).collect::<Result<Vec<_>, NameError>>();
        let release = |name: &String| name.parse::<ReleaseName>().map(|name| name.object_name());
        Ok(Self {
            stacks: rules.stacks.clone(),
            deny_stacks: rules.deny_stacks.clone(),
            kubernetes: minors(&rules.kubernetes_versions)?,
            deny_kubernetes: minors(&rules.deny_kubernetes_versions)?,
            channels: rules.channels.clone(),
            range: rules.version_range.as_deref().map(VersionRange::parse).transpose()?,
            approved: rules.approved_releases.iter().map(release).collect::<Result<_, _>>()?,
        })
    }

    /// Why a release is not on offer; `None` if it is.
    pub fn refusal(&self, release: &ReleaseName) -> Option<String> {
        let stack = format!("{}/{}", release.provider, release.stack);
        let is_of = |patterns: &[String]| patterns.iter().any(|pattern| matches_stack(pattern, release));
        if (!self.stacks.is_empty() && !is_of(&self.stacks)) || is_of(&self.deny_stacks) {
            return Some(format!("stack {stack} is not offered"));
        }
        let minor = release.kubernetes;
        if (!self.kubernetes.is_empty() && !self.kubernetes.contains(&minor)) || self.deny_kubernetes.contains(&minor) {
            return Some(format!("Kubernetes {minor} is not offered"));
        }
        let (channel, word) =
            if release.version.pre.is_some() { (Channel::Custom, "custom") } else { (Channel::Stable, "stable") };
        if !self.channels.is_empty() && !self.channels.contains(&channel) {
            return Some(format!("channel {word} is not offered"));
        }
        if let Some(range) = self.range.as_ref().filter(|range| !range.holds(&release.version)) {
            return Some(format!("only versions {} are offered", range.as_str()));
        }
        if !self.approved.is_empty() && !self.approved.contains(&release.object_name()) {
            return Some("it is not among the approved releases".to_owned());
        }
        None
    }

    /// What of these tags, names and revisions, is on offer: how many, and the first [`LISTED`] by stack and Kubernetes
    /// version, the newest of each first.
    pub fn catalogue<'a>(&self, tags: impl IntoIterator<Item = (&'a str, &'a str)>) -> Catalogue {
        let mut all = BTreeMap::new();
        let mut passed_over = 0;
        for (tag, revision) in tags {
            match tag.parse::<ReleaseName>() {
                Ok(name) if !can_be_taken(&name) => passed_over += 1,
                Ok(name) if self.refusal(&name).is_none() => {
                    // A tag may hold the dot of a pre-release: it is the same release.
                    all.insert((name.stem(), name.version.clone()), revision.to_owned());
                }
                Ok(_) => {}
                Err(_) => passed_over += 1,
            }
        }
        let found = all.len();
        Catalogue { found, releases: newest(all), passed_over }
    }
}

/// Whether a ClusterStack can take a release of this name: there can be an object that is called so, and a ClusterStack
/// with such a provider and name.
pub fn can_be_taken(release: &ReleaseName) -> bool {
    let is_name = |text: &str| {
        let known = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        known && text.len() <= LONGEST_WORD && !text.is_empty() && !text.starts_with('-') && !text.ends_with('-')
    };
    let whole = format!("{}-{}", release.provider, release.stack);
    // A tag does not tell where its provider ends.
    let is_of_some_stack = whole.match_indices('-').any(|(at, _)| is_name(&whole[..at]) && is_name(&whole[at + 1..]));
    let object = release.object_name();
    is_of_some_stack && object.len() <= LONGEST_OBJECT && !object.bytes().any(|b| b.is_ascii_uppercase())
}

/// What is said of a source that offers `found` releases. The `unusable` are those of which it is known, by whoever took
/// them, that their files can't be used; they are on offer nonetheless: their tags may be mended.
pub fn summary(found: usize, unusable: &BTreeSet<String>, passed_over: usize) -> String {
    let releases = if found == 1 { "release" } else { "releases" };
    let mut said = format!("{found} {releases} on offer");
    if !unusable.is_empty() {
        let mut names: Vec<&str> = unusable.iter().map(String::as_str).take(NAMED).collect();
        if unusable.len() > NAMED {
            names.push("…");
        }
        said = format!("{said}, {} of which can't be used: {}", unusable.len(), names.join(", "));
    }
    match passed_over {
        0 => said,
        1 => format!("{said}; 1 tag that can't be taken is passed over"),
        many => format!("{said}; {many} tags that can't be taken are passed over"),
    }
}

type ByStem = BTreeMap<(String, ReleaseVersion), String>;

/// The newest of each stack and Kubernetes version before the second newest of any, so that no stack crowds out another.
fn newest(all: ByStem) -> Vec<OfferedRelease> {
    let mut rank = 0_usize;
    let mut last: Option<String> = None;
    let mut ranked = Vec::with_capacity(all.len());
    for ((stem, version), revision) in all.into_iter().rev() {
        rank = if last.as_ref() == Some(&stem) { rank + 1 } else { 0 };
        last = Some(stem.clone());
        ranked.push((rank, stem, version, revision));
    }
    ranked.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    ranked.truncate(LISTED);
    ranked.sort_by(|a, b| (&a.1, a.0).cmp(&(&b.1, b.0)));
    let listed = |(_, stem, version, revision): (usize, String, crate::core::name::ReleaseVersion, String)| {
        OfferedRelease { name: format!("{stem}-{}", version.dashed()), revision }
    };
    ranked.into_iter().map(listed).collect()
}

/// What is on offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    /// How many releases.
    pub found: usize,
    /// The ones that a status lists, by stack and Kubernetes version, newest first.
    pub releases: Vec<OfferedRelease>,
    /// Tags that are no release of anything, or of nothing that can be taken.
    pub passed_over: usize,
}

/// Whether `<provider>/<name>`, either `*`, is the stack of a release.
///
/// A tag does not tell where its provider ends and the name begins, so both sides are compared as tags write them: who
/// spells a denied stack `my/cloud-scs` instead of `my-cloud/scs` asks for the same tag and is refused just so.
fn matches_stack(pattern: &str, release: &ReleaseName) -> bool {
    let whole = format!("{}-{}", release.provider, release.stack);
    let Some((provider, name)) = pattern.split_once('/') else { return false };
    match (provider, name) {
        ("*", "*") => true,
        ("*", name) => whole.strip_suffix(name).is_some_and(|rest| rest.ends_with('-')),
        (provider, "*") => whole.strip_prefix(provider).is_some_and(|rest| rest.starts_with('-')),
        (provider, name) => whole == format!("{provider}-{name}"),
    }
}

/// Who may use a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The namespace may.
    Yes,
    /// It may not.
    No,
    /// It depends on the Namespace's labels.
    ByLabels,
}

/// Whether `namespace` may use a source of namespace `own`, as far as names tell.
pub fn admits(allowed: Option<&AllowedNamespaces>, own: &str, namespace: &str) -> Admission {
    if own == namespace {
        return Admission::Yes;
    }
    match allowed {
        Some(allowed) if allowed.names.iter().any(|name| name == "*" || name == namespace) => Admission::Yes,
        Some(AllowedNamespaces { selector: Some(_), .. }) => Admission::ByLabels,
        _ => Admission::No,
    }
}

/// Whether labels of a Namespace are selected. An empty selector selects everything.
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> Result<bool, RulesError> {
    let selector: Selector = selector
        .clone()
        .try_into()
        .map_err(|error: kube::core::ParseExpressionError| RulesError::Selector(error.to_string()))?;
    Ok(selector.matches(labels))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rules(rules: Value) -> Rules {
        Rules::of(&serde_json::from_value(rules).unwrap()).unwrap()
    }

    #[test]
    fn rules_limit_what_is_on_offer() {
        let all = [
            "openstack-scs-1-33-v1",
            "openstack-scs-1-34-v1",
            "openstack-scs-1-34-v2",
            "openstack-scs-1-34-v3-beta-1",
            "docker-scs-1-34-v1",
            "my-cloud-a-b-1-34-v1",
        ];
        for (name, offer, expected) in [
            ("no rules", json!({}), &all[..]),
            ("a stack", json!({"stacks": ["openstack/scs"]}), &all[..4]),
            ("any name", json!({"stacks": ["openstack/*"]}), &all[..4]),
            ("any provider", json!({"stacks": ["*/scs"]}), &all[..5]),
            ("anything", json!({"stacks": ["*/*"]}), &all[..]),
            ("dashes", json!({"stacks": ["my-cloud/a-b"]}), &all[5..]),
            ("part of a provider", json!({"stacks": ["open/*", "*/cs"]}), &[]),
            ("denied", json!({"denyStacks": ["openstack/*", "my-cloud/a-b"]}), &all[4..5]),
            ("denied counts more", json!({"stacks": ["*/scs"], "denyStacks": ["openstack/scs"]}), &all[4..5]),
            ("a minor", json!({"kubernetesVersions": ["1.33"]}), &all[..1]),
            ("not a minor", json!({"denyKubernetesVersions": ["1.34"]}), &all[..1]),
            ("stable", json!({"channels": ["stable"], "stacks": ["openstack/scs"]}), &all[..3]),
            ("custom", json!({"channels": ["custom"]}), &all[3..4]),
            ("a range", json!({"versionRange": ">=2"}), &all[2..4]),
            (
                "approved",
                json!({"approvedReleases": ["openstack-scs-1-34-v3-beta.1", "docker-scs-1-34-v1"]}),
                &all[3..5],
            ),
            ("each rule holds", json!({"versionRange": ">=2", "kubernetesVersions": ["1.33"]}), &[]),
        ] {
            let rules = rules(offer);
            let offered: Vec<&str> =
                all.into_iter().filter(|tag| rules.refusal(&tag.parse().unwrap()).is_none()).collect();
            assert_eq!(offered, expected, "{name}");
        }
    }

    #[test]
    fn what_no_cluster_stack_can_take_is_not_on_offer() {
        let long = format!("{}-scs-1-34-v1", "x".repeat(64));
        let cases = [
            ("docker-scs-1-34-v1", true),
            ("my-cloud-a-b-1-34-v0-sha.abc", true),
            ("Docker-scs-1-34-v1", false),
            ("release/docker-scs-1-34-v1", false),
            ("docker-s_cs-1-34-v1", false),
            ("docker-scs--1-34-v1", false),
            ("docker-scs-1-34-v0-sha.ABC", false),
            (long.as_str(), false),
        ];
        for (tag, expected) in cases {
            assert_eq!(can_be_taken(&tag.parse().unwrap()), expected, "{tag}");
        }
        let catalogue = Rules::default().catalogue(cases.map(|(tag, _)| (tag, "r")));
        assert_eq!((catalogue.found, catalogue.passed_over, catalogue.releases.len()), (2, 6, 2));
    }

    #[test]
    fn a_summary_says_what_of_the_offer_can_not_be_used() {
        for (found, unusable, passed_over, expected) in [
            (1, &[][..], 0, "1 release on offer"),
            (3, &[], 1, "3 releases on offer; 1 tag that can't be taken is passed over"),
            (
                3,
                &["a-1-34-v3"],
                4,
                "3 releases on offer, 1 of which can't be used: a-1-34-v3; 4 tags that can't be taken are passed over",
            ),
            (9, &["a", "b", "c", "d"], 0, "9 releases on offer, 4 of which can't be used: a, b, c, …"),
        ] {
            let unusable = unusable.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(summary(found, &unusable, passed_over), expected);
        }
    }

    #[test]
    fn another_spelling_of_a_denied_stack_is_denied() {
        let rules = rules(json!({"denyStacks": ["my-cloud/a-b"]}));
        for (provider, stack) in [("my", "cloud-a-b"), ("my-cloud", "a-b"), ("my-cloud-a", "b")] {
            let release = ReleaseName::of_stack("my-cloud-a-b-1-34-v1", provider, stack).unwrap();
            assert!(rules.refusal(&release).is_some(), "{provider}/{stack}");
        }
    }

    #[test]
    fn a_refusal_says_which_rule() {
        let release: ReleaseName = "openstack-scs-1-34-v2".parse().unwrap();
        for (offer, part) in [
            (json!({"stacks": ["docker/*"]}), "stack openstack/scs"),
            (json!({"denyKubernetesVersions": ["1.34"]}), "Kubernetes 1.34"),
            (json!({"channels": ["custom"]}), "channel stable"),
            (json!({"versionRange": "<2"}), "only versions <2"),
            (json!({"approvedReleases": ["openstack-scs-1-34-v1"]}), "approved"),
        ] {
            let message = rules(offer).refusal(&release).unwrap();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn rules_that_can_not_be_read_name_the_field() {
        for (offer, part) in [
            (json!({"versionRange": "x y"}), "spec.offer.versionRange"),
            (json!({"approvedReleases": ["v1"]}), "\"v1\" is no release name"),
        ] {
            let error = Rules::of(&serde_json::from_value(offer).unwrap()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_catalogue_counts_everything_and_lists_the_newest_of_each_stack() {
        let many: Vec<String> = (0..300).map(|n| format!("docker-scs-1-34-v{n}")).collect();
        let others = ["docker-scs-1-33-v7", "nonsense", "docker-scs-1-34-v0-sha.abc"];
        let tags = many.iter().map(String::as_str).chain(others).map(|tag| (tag, "r"));
        let catalogue = Rules::default().catalogue(tags);
        assert_eq!((catalogue.found, catalogue.passed_over, catalogue.releases.len()), (302, 1, LISTED));
        let names: Vec<&str> = catalogue.releases.iter().map(|release| release.name.as_str()).collect();
        assert_eq!(names[..3], ["docker-scs-1-33-v7", "docker-scs-1-34-v299", "docker-scs-1-34-v298"]);
    }

    #[test]
    fn namespaces_are_admitted_by_name_and_by_label() {
        let shop = BTreeMap::from([("tier".to_owned(), "gold".to_owned())]);
        for (name, allowed, namespace, expected) in [
            ("its own", None, "provider", Some(true)),
            ("its own, whatever is allowed", Some(json!({"names": ["bank"]})), "provider", Some(true)),
            ("no list", None, "shop", Some(false)),
            ("an empty list", Some(json!({})), "shop", Some(false)),
            ("by name", Some(json!({"names": ["bank", "shop"]})), "shop", Some(true)),
            ("another name", Some(json!({"names": ["bank"]})), "shop", Some(false)),
            ("everyone", Some(json!({"names": ["*"]})), "shop", Some(true)),
            ("no part of a name", Some(json!({"names": ["shop*"]})), "shop", Some(false)),
            ("by label", Some(json!({"selector": {"matchLabels": {"tier": "gold"}}})), "shop", Some(true)),
            ("another label", Some(json!({"selector": {"matchLabels": {"tier": "tin"}}})), "shop", Some(false)),
            (
                "an expression",
                Some(
                    json!({"selector": {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["tin"]}]}}),
                ),
                "shop",
                Some(true),
            ),
            ("an empty selector", Some(json!({"selector": {}})), "shop", Some(true)),
            (
                "a selector that can't be read",
                Some(json!({"selector": {"matchExpressions": [{"key": "tier", "operator": "Near"}]}})),
                "shop",
                None,
            ),
        ] {
            let allowed: Option<AllowedNamespaces> = allowed.map(|allowed| serde_json::from_value(allowed).unwrap());
            let admitted = match admits(allowed.as_ref(), "provider", namespace) {
                Admission::Yes => Some(true),
                Admission::No => Some(false),
                Admission::ByLabels => selects(&allowed.unwrap().selector.unwrap(), &shop).ok(),
            };
            assert_eq!(admitted, expected, "{name}");
        }
    }
}
