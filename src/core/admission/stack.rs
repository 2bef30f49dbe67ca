//! ClusterStacks and ClusterStackSources that are created or changed.

use std::collections::{BTreeMap, BTreeSet};

use super::{Verdict, listed, source};
use crate::api::cluster_stack::Channel;
use crate::api::source::{Approval, SourceReference};
use crate::api::{ClusterStackSourceSpec, ClusterStackSpec};
use crate::core::in_use::User;
use crate::core::name::ReleaseVersion;
use crate::core::source::AllowList;

/// A ClusterStack, reduced to what matters here.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// What it asks for.
    pub spec: ClusterStackSpec,
    /// It is being deleted.
    pub is_deleting: bool,
}

/// The ClusterStackSource that a ClusterStack names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// It names none, or the same as before.
    Nothing,
    /// It may be used.
    Allowed,
    /// There is none of the ClusterStack's own namespace.
    Missing,
    /// There is none, or it does not allow the namespace: which one is not told.
    NotAllowed,
    /// It could not be looked at; why.
    Unknown(String),
}

/// What was read for a verdict.
#[derive(Clone, Debug)]
pub struct Around {
    /// All ClusterStacks of the namespace; read where [`is_new`] asks.
    pub stacks: Vec<Stack>,
    /// The source that it names; read where [`reference`] asks.
    pub source: Named,
    /// Who uses versions that it no longer names, and why that is not known; read where [`dropped`] asks.
    pub users: Result<BTreeMap<String, BTreeSet<User>>, String>,
}

/// Whether a ClusterStack comes to a cluster stack in which others may be: an update can't change that.
pub fn is_new(before: Option<&ClusterStackSpec>, after: &ClusterStackSpec) -> bool {
    before.is_none_or(|before| identity(before) != identity(after))
}

/// The ClusterStackSource that has to be looked at.
pub fn reference<'a>(before: Option<&ClusterStackSpec>, after: &'a ClusterStackSpec) -> Option<&'a SourceReference> {
    let is_same = before.is_some_and(|before| before.source_ref == after.source_ref);
    after.source_ref.as_ref().filter(|_| !is_same)
}

/// The versions that an update takes out of `spec.versions`. Both spellings are one version.
pub fn dropped(before: Option<&ClusterStackSpec>, after: &ClusterStackSpec) -> Vec<ReleaseVersion> {
    let versions = |spec: &ClusterStackSpec| -> Vec<ReleaseVersion> {
        spec.versions.iter().filter_map(|version| version.parse().ok()).collect()
    };
    let kept = versions(after);
    before.map(versions).unwrap_or_default().into_iter().filter(|version| !kept.contains(version)).collect()
}

/// Whether a ClusterStack may be created (`before` is `None`) or changed so.
pub fn write(before: Option<&ClusterStackSpec>, after: &Stack, around: &Around, allow: &AllowList) -> Verdict {
    if after.is_deleting || before == Some(&after.spec) {
        return Verdict::allow();
    }
    let pair = if is_new(before, &after.spec) { twin(after, &around.stacks) } else { None };
    let is_same_source = before.is_some_and(|before| before.source == after.spec.source);
    let own = after.spec.source.as_ref().filter(|_| !is_same_source).and_then(|own| source::refused(own, allow));
    let mut warnings = warnings(after);
    warnings.extend(unknown(around));
    if around.source == Named::Missing {
        let name = after.spec.source_ref.as_ref().map(|named| named.name.as_str()).unwrap_or_default();
        warnings.push(format!(
            "ClusterStackSource {}/{name} does not exist: create it, or correct spec.sourceRef",
            after.namespace
        ));
    }
    Verdict::of([pair, own, not_allowed(after, &around.source), in_use(around)], warnings)
}

/// Whether a ClusterStackSource may be created or changed so.
pub fn write_source(
    before: Option<&ClusterStackSourceSpec>,
    after: &ClusterStackSourceSpec,
    allow: &AllowList,
) -> Verdict {
    if before == Some(after) {
        return Verdict::allow();
    }
    let is_same = before.is_some_and(|before| before.source == after.source);
    let refused = if is_same { None } else { source::refused(&after.source, allow) };
    Verdict::of([refused], source::warnings(&after.source, after.verify.as_ref(), false))
}

fn identity(spec: &ClusterStackSpec) -> (&str, &str, &str, Channel) {
    (&spec.provider, &spec.name, &spec.kubernetes_version, spec.channel)
}

/// A second ClusterStack of the same releases: both would make the same objects.
fn twin(stack: &Stack, others: &[Stack]) -> Option<String> {
    let is_twin = |other: &&Stack| other.name != stack.name && identity(&other.spec) == identity(&stack.spec);
    let twin = others.iter().find(is_twin)?;
    let (provider, name, kubernetes, channel) = identity(&stack.spec);
    let channel = if channel == Channel::Stable { "stable" } else { "custom" };
    let instead = if twin.is_deleting {
        "it is being deleted: wait until it is gone"
    } else {
        "change that one, or create this one in another namespace"
    };
    Some(format!(
        "ClusterStack {}/{} has the releases of provider {provider}, name {name}, Kubernetes {kubernetes} and channel \
         {channel} already, and a release belongs to one ClusterStack: {instead}",
        twin.namespace, twin.name
    ))
}

fn not_allowed(stack: &Stack, named: &Named) -> Option<String> {
    let reference = stack.spec.source_ref.as_ref().filter(|_| *named == Named::NotAllowed)?;
    let own = reference.namespace.as_deref().unwrap_or(&stack.namespace);
    Some(format!(
        "ClusterStackSource {own}/{} does not exist or does not allow namespace {} in spec.allowedNamespaces: correct \
         spec.sourceRef, or ask who runs the source",
        reference.name, stack.namespace
    ))
}

fn in_use(around: &Around) -> Option<String> {
    let used = around.users.as_ref().ok()?.iter().find(|(_, users)| !users.is_empty())?;
    let (version, users) = used;
    Some(format!(
        "version {version} can't be taken out of spec.versions: its release is in use by {}. Move them to another \
         ClusterClass first",
        listed(users)
    ))
}

fn unknown(around: &Around) -> Vec<String> {
    let mut said = Vec::new();
    if let Named::Unknown(why) = &around.source {
        said.push(format!("not checked whether the source is allowed: {why}"));
    }
    if let Err(why) = &around.users {
        said.push(format!("not checked whether the dropped versions are in use: {why}"));
    }
    said
}

fn warnings(stack: &Stack) -> Vec<String> {
    let spec = &stack.spec;
    let mut said = spec
        .source
        .as_ref()
        .map_or_else(Vec::new, |own| source::warnings(own, spec.verify.as_ref(), !spec.pin.is_empty()));
    if !spec.auto_subscribe && spec.versions.is_empty() {
        said.push("no release will be taken: name some in spec.versions, or set autoSubscribe".to_owned());
    }
    let takes_all = spec.auto_subscribe && spec.approval.unwrap_or_default() == Approval::Automatic;
    if takes_all && spec.channel == Channel::Custom {
        let text = if spec.pre_releases.iter().any(|channel| channel == "sha") {
            "versions of channel sha are hashes, of which none is the newest: name versions in spec.versions and set \
             autoSubscribe: false"
        } else {
            "autoSubscribe takes each new pre-release as soon as it is there: set approval: manual, or name versions in \
             spec.versions and set autoSubscribe: false"
        };
        said.push(text.to_owned());
    }
    said
}

#[cfg(test)]
mod tests;
