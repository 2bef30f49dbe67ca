//! Clusters of Cluster API whose ClusterClass is, or was, of a release of ours.
//!
//! ```text
//! ClusterClass ─▶ another release of the same stack                       allowed
//!              ─▶ another stack, or none of ours     only with the annotation that names the class
//! Kubernetes   ─▶ the minor of the class's release                        allowed
//!              ─▶ back, or over a minor that the class can't go through   refused
//! ```

use std::collections::BTreeSet;

use semver::Version;
use serde_json::Value;

use super::Verdict;
use crate::api::ALLOW_CLASS_CHANGE;
use crate::api::runtime_hooks::RuntimeHook;
use crate::core::addon::cluster::Cluster;
use crate::core::addon::upgrade_plan::{self, version};
use crate::core::name::ReleaseName;

/// A regular expression (RE2) for the names that ClusterClasses of cluster stacks have by the naming rule.
pub const CLASS_PATTERN: &str = "-[0-9]+-[0-9]+-v[0-9]";

/// The release that a ClusterClass is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Its name.
    pub name: ReleaseName,
    /// Whether Clusters can use it.
    pub is_ready: bool,
    /// Why not, if it says so.
    pub message: String,
    /// It is being deleted.
    pub is_deleting: bool,
    /// Its version of Kubernetes with the patch; empty where it is not known yet.
    pub kubernetes: String,
    /// Versions of Kubernetes that its machines can run; none where they are not known yet.
    pub node_versions: Vec<String>,
}

/// How a ClusterClass takes a Cluster over several minors of Kubernetes (Cluster API 1.12 and newer).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chain {
    /// It says nothing of it.
    None,
    /// It asks our runtime hook, which goes by the release's node images.
    Ours,
    /// It asks somebody else's, of whom we know nothing.
    Another,
    /// `spec.kubernetesVersions` names the versions.
    Versions(Vec<String>),
    /// The ClusterClass could not be read; why.
    Unknown(String),
}

/// Reads a ClusterClass of v1beta2; older ones say nothing of it.
pub fn chain(class: &Value) -> Chain {
    let hook = class.pointer("/spec/upgrade/external/generateUpgradePlanExtension").and_then(Value::as_str);
    if let Some(hook) = hook.filter(|hook| !hook.is_empty()) {
        let ours = hook.split_once('.').is_some_and(|(handler, extension)| {
            handler == RuntimeHook::GenerateUpgradePlan.handler() && extension.starts_with("clusterstack")
        });
        return if ours { Chain::Ours } else { Chain::Another };
    }
    let versions = class.pointer("/spec/kubernetesVersions").and_then(Value::as_array);
    let versions: Vec<String> =
        versions.into_iter().flatten().filter_map(Value::as_str).map(ToOwned::to_owned).collect();
    if versions.is_empty() { Chain::None } else { Chain::Versions(versions) }
}

/// What is to become of a Cluster.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The Cluster as it is; `None` for a new one.
    pub before: Option<&'a Cluster>,
    /// As it is to be.
    pub after: &'a Cluster,
    /// The release of the class that it has, if it is one of ours.
    pub from: Option<&'a Release>,
    /// The release of the class that it gets, if it is one of ours.
    pub to: Option<&'a Release>,
    /// How the new class goes over several minors; asked where [`skips`] says so.
    pub chain: &'a Chain,
    /// The value of the annotation [`ALLOW_CLASS_CHANGE`].
    pub meant: &'a str,
    /// Stacks, as `<provider>-<name>`, that have releases in the namespace of the new class.
    pub stacks: &'a BTreeSet<String>,
}

/// Whether a Cluster's class or version changes; nothing else of it is judged.
pub fn is_judged(before: Option<&Cluster>, after: &Cluster) -> bool {
    let is_same = before
        .is_some_and(|before| (&before.class, &before.kubernetes_version) == (&after.class, &after.kubernetes_version));
    !after.deleting && after.class.is_some() && !is_same
}

/// Whether a Cluster is to leave out a minor of Kubernetes.
pub fn skips(before: Option<&Cluster>, after: &Cluster) -> bool {
    versions(before, after).is_some_and(|(from, to)| from.major == to.major && to.minor > from.minor + 1)
}

/// Whether a Cluster may be created or changed so.
pub fn write(change: &Change<'_>) -> Verdict {
    if !is_judged(change.before, change.after) {
        return Verdict::allow();
    }
    if change.from.is_none() && change.to.is_none() {
        return Verdict { refusal: None, warnings: of_no_release(change).into_iter().collect() };
    }
    let refusals = [another_stack(change), of_another_minor(change), back_or_over(change)];
    let mut warnings = warnings(change);
    // `clusterctl move`, and a restore, create Clusters paused: what is there elsewhere is not judged anew.
    if change.before.is_none() && change.after.paused {
        warnings.extend(refusals.into_iter().flatten());
        return Verdict { refusal: None, warnings };
    }
    Verdict::of(refusals, warnings)
}

/// Provider and name of the stack of a class, as `<provider>-<name>`; by its name where its release is gone.
pub fn stack_of(release: Option<&Release>, class: &str) -> Option<String> {
    let by_name = || class.parse::<ReleaseName>().ok();
    let name = release.map(|release| release.name.clone()).or_else(by_name)?;
    Some(format!("{}-{}", name.provider, name.stack))
}

fn class(cluster: &Cluster) -> &str {
    cluster.class.as_ref().map(|(_, name)| name.as_str()).unwrap_or_default()
}

fn another_stack(change: &Change<'_>) -> Option<String> {
    let before = change.before.filter(|before| before.class.is_some() && before.class != change.after.class)?;
    let new = class(change.after);
    let (from, to) = (stack_of(change.from, class(before)), stack_of(change.to, new));
    if from == to || change.meant == new {
        return None;
    }
    let shown = |stack: Option<String>| stack.map_or("no cluster stack".to_owned(), |stack| format!("stack {stack}"));
    Some(format!(
        "ClusterClass {new} is of {}, and the Cluster is of {}: name a class of the same stack, create another Cluster, or, \
         if it is meant, set the annotation {ALLOW_CLASS_CHANGE}: {new} on the Cluster",
        shown(to),
        shown(from)
    ))
}

fn of_another_minor(change: &Change<'_>) -> Option<String> {
    let release = change.to?;
    let minor = release.name.kubernetes;
    let text = change.after.kubernetes_version.as_str();
    let Some(asked) = version(text) else {
        let known = if release.kubernetes.is_empty() { format!("v{minor}.0") } else { release.kubernetes.clone() };
        let refusal = format!("topology.version {text:?} is no version of Kubernetes: write it as {known}");
        return (!text.is_empty()).then_some(refusal);
    };
    if (asked.major, asked.minor) == (minor.major.into(), minor.minor.into()) {
        return None;
    }
    let instead = match release.kubernetes.as_str() {
        "" => format!("name a version of {minor}"),
        known => format!("name {known}"),
    };
    Some(format!(
        "topology.version v{asked} is no version of Kubernetes {minor}, for which release {} of ClusterClass {} is made: \
         {instead}, or a class for {}.{}",
        release.name,
        class(change.after),
        asked.major,
        asked.minor
    ))
}

fn versions(before: Option<&Cluster>, after: &Cluster) -> Option<(Version, Version)> {
    Some((version(&before?.kubernetes_version)?, version(&after.kubernetes_version)?))
}

fn back_or_over(change: &Change<'_>) -> Option<String> {
    let (from, to) = versions(change.before, change.after)?;
    if (to.major, to.minor) < (from.major, from.minor) {
        return Some(format!(
            "Kubernetes can't go back from v{from} to v{to}: keep a class for {}.{}, or create another Cluster",
            from.major, from.minor
        ));
    }
    if !skips(change.before, change.after) {
        return None;
    }
    let between = from.minor + 1..to.minor;
    let missing = |known: &[String]| {
        let known: BTreeSet<u64> = known.iter().filter_map(|text| Some(version(text)?.minor)).collect();
        let missing = between.clone().filter(|minor| !known.contains(minor));
        missing.map(|minor| format!("{}.{minor}", to.major)).collect::<Vec<_>>()
    };
    let (missing, why) = match change.chain {
        Chain::Another | Chain::Unknown(_) => return None,
        Chain::None => (missing(&[]), "says nothing of how to go through it"),
        Chain::Versions(known) => (missing(known), "does not name it in spec.kubernetesVersions"),
        Chain::Ours => {
            let release = change.to.filter(|release| !release.node_versions.is_empty())?;
            let (from, to) = (format!("v{from}"), format!("v{to}"));
            let plan = upgrade_plan::plan(&from, &to, &release.name.object_name(), &release.node_versions);
            return plan.err().map(|error| error.to_string());
        }
    };
    if missing.is_empty() {
        return None;
    }
    Some(format!(
        "from v{from} to v{to} Kubernetes {} is left out, and ClusterClass {} {why}: upgrade with the releases of the minors \
         in between, one after the other, or use a class that goes through them (docs/addon-hooks.md)",
        missing.join(", "),
        class(change.after)
    ))
}

/// What is said of a class that is called like a release of a stack that is here.
fn of_no_release(change: &Change<'_>) -> Option<String> {
    let new = class(change.after);
    let is_called_so = stack_of(None, new).is_some_and(|stack| change.stacks.contains(&stack));
    is_called_so.then(|| format!("ClusterClass {new} is of no release that is here: is its name right?"))
}

fn warnings(change: &Change<'_>) -> Vec<String> {
    let mut said = Vec::new();
    let new = class(change.after);
    if let Some(release) = change.to {
        let why = if release.message.is_empty() { "not yet" } else { &release.message };
        if release.is_deleting {
            said.push(format!("release {} of ClusterClass {new} is being deleted: name another one", release.name));
        } else if !release.is_ready {
            said.push(format!("release {} of ClusterClass {new} is not Ready: {why}", release.name));
        }
    } else {
        said.extend(of_no_release(change));
    }
    if let Some(release) = change.to
        && !release.node_versions.is_empty()
        && let Some(asked) = version(&change.after.kubernetes_version)
    {
        let of_minor = release.node_versions.iter().filter(|known| {
            version(known).is_some_and(|known| (known.major, known.minor) == (asked.major, asked.minor))
        });
        let of_minor: Vec<&str> = of_minor.map(String::as_str).collect();
        if !of_minor.is_empty() && !of_minor.iter().any(|known| version(known).as_ref() == Some(&asked)) {
            said.push(format!(
                "release {} has node images for {} and none that it knows of for v{asked}",
                release.name,
                of_minor.join(", ")
            ));
        }
    }
    if let Chain::Unknown(why) = change.chain {
        said.push(format!("not checked how ClusterClass {new} goes over several minors of Kubernetes: {why}"));
    }
    said
}

#[cfg(test)]
mod tests;
