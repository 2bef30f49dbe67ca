//! The page of one ClusterStack: its tree, conditions, what is newer, and its node images.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::asked::Asked;
use super::branch::{Branch, bounded};
use super::images::{self, ImageRow};
use super::list::{newest_ready, subscription, waiting};
use super::words::{Badge, Moment, clean, counted, version};
use crate::api::condition::Reason;
use crate::api::image_release::ProviderNodeImageRelease;
use crate::api::{ClusterStack, ClusterStackRelease, Condition, ProviderClusterStackRelease};
use crate::core::tree::{ClusterView, Node, tree};

/// Releases whose conditions are shown; those of all are in the tree, summed up.
const CONDITIONS_OF: usize = 8;
/// Releases that the table of versions has.
const VERSIONS: usize = 100;
/// Releases on offer that are listed.
const OFFERS: usize = 50;

/// What is said while Clusters can't be read.
const UNREAD: &str = "Clusters can't be read: which of them use its releases is not known.";

/// What the operator sees of a ClusterStack.
#[derive(Clone, Debug)]
pub struct StackSeen {
    /// It.
    pub stack: Arc<ClusterStack>,
    /// Its releases.
    pub releases: Vec<ClusterStackRelease>,
    /// Clusters of its classes, with their addons.
    pub clusters: Vec<ClusterView>,
    /// They could not be read yet.
    pub clusters_unread: bool,
    /// Objects of the built-in provider.
    pub provided: Vec<Arc<ProviderClusterStackRelease>>,
    /// Node images of the built-in provider.
    pub images: Vec<Arc<ProviderNodeImageRelease>>,
}

/// The page of a ClusterStack, for the template.
#[derive(Debug, Serialize)]
pub struct StackView {
    title: String,
    namespace: String,
    name: String,
    badge: Badge,
    reason: String,
    message: String,
    facts: Vec<Fact>,
    news: Vec<String>,
    offers: Vec<Offer>,
    more_offers: usize,
    approve: String,
    versions: Vec<VersionRow>,
    more_versions: usize,
    tree: Branch,
    conditions: Vec<ConditionGroup>,
    images: Vec<ImageRow>,
    more_images: usize,
    refresh: Option<u16>,
    turn: String,
    as_of: Moment,
}

#[derive(Debug, Serialize)]
struct Fact {
    label: &'static str,
    value: String,
}

#[derive(Debug, Serialize)]
struct Offer {
    version: String,
    reason: String,
    since: Option<Moment>,
    message: String,
}

#[derive(Debug, Serialize)]
struct VersionRow {
    version: String,
    badge: Badge,
    kubernetes: String,
    clusters: usize,
    kept: String,
}

#[derive(Debug, Serialize)]
struct ConditionGroup {
    of: String,
    rows: Vec<ConditionRow>,
}

#[derive(Debug, Serialize)]
struct ConditionRow {
    type_: String,
    badge: Badge,
    reason: String,
    message: String,
    since: Option<Moment>,
}

/// What is shown of what is seen.
pub fn view(asked: &Asked, seen: &StackSeen, now: Timestamp) -> StackView {
    let stack = &*seen.stack;
    let root = tree(stack, &seen.releases, &seen.clusters);
    let (images, more_images) = images::rows(&seen.releases, &seen.provided, &seen.images);
    let (offers, more_offers) = offers(stack);
    let (versions, more_versions) = versions(stack, &seen.releases, &root);
    let approve = waiting(stack)
        .next()
        .map(|newest| format!("clusterstack approve {} {} -n {}", root.name, version(newest), root.namespace));
    let unread = seen.clusters_unread.then(|| UNREAD.to_owned());
    StackView {
        title: clean(&format!("{}, {}", root.name, root.namespace)),
        namespace: clean(&root.namespace),
        name: clean(&root.name),
        badge: Badge::ready(root.ready),
        reason: clean(&root.reason),
        message: clean(&root.own_message()),
        facts: facts(stack),
        news: unread.into_iter().chain(news(stack, &root)).collect(),
        offers,
        more_offers,
        approve: clean(&approve.unwrap_or_default()),
        versions,
        more_versions,
        tree: bounded(&root),
        conditions: conditions(stack, &seen.releases, &root),
        images,
        more_images,
        refresh: asked.refresh,
        turn: Asked { refresh: asked.refresh, ..Asked::default() }.turned().link(),
        as_of: now.into(),
    }
}

fn facts(stack: &ClusterStack) -> Vec<Fact> {
    let status = stack.status.clone().unwrap_or_default();
    let mut facts = vec![("Subscribes to", subscription(stack)), ("Newest ready release", status.latest_release)];
    facts.push(("Usable versions", status.usable_versions));
    if let Some(poll) = &status.last_poll {
        let since = poll.time.as_ref().map(|time| format!(", the same since {}", Moment::from(time.0).text));
        facts.push(("Source", format!("{} found{}", counted_releases(poll.found), since.unwrap_or_default())));
    }
    if stack.spec.suspend {
        facts.push(("Suspended", "nothing is done until spec.suspend is false".into()));
    }
    let known = facts.into_iter().filter(|(_, value)| !value.is_empty());
    known.map(|(label, value)| Fact { label, value: clean(&value) }).collect()
}

fn counted_releases(number: u32) -> String {
    counted(usize::try_from(number).unwrap_or(usize::MAX), "release")
}

fn clusters_of(release: &Node) -> usize {
    release.children.iter().filter(|child| child.kind == "Cluster").count()
}

/// What is newer than what is used, in sentences.
fn news(stack: &ClusterStack, root: &Node) -> Vec<String> {
    let newest = newest_ready(stack);
    let mut news = Vec::new();
    if newest.is_empty() {
        news.push("No release is ready yet.".to_owned());
    } else {
        news.push(format!("{} is the newest release that is ready.", version(newest)));
    }
    let first = stack.status.iter().flat_map(|status| &status.summary).next();
    if let Some(line) = first.filter(|line| line.name != newest && !line.ready) {
        news.push(format!("{} is newer and not ready.", version(&line.name)));
    }
    let using: Vec<(&str, usize)> = root
        .children
        .iter()
        .map(|release| (release.name.as_str(), clusters_of(release)))
        .filter(|(_, n)| *n > 0)
        .collect();
    let old: Vec<String> = using
        .iter()
        .filter(|(release, _)| *release != newest)
        .map(|(release, number)| format!("{} ({number})", version(release)))
        .take(8)
        .collect();
    let all: usize = using.iter().map(|(_, number)| number).sum();
    let behind: usize = using.iter().filter(|(release, _)| *release != newest).map(|(_, number)| number).sum();
    if !newest.is_empty() && all > 0 {
        news.push(if behind == 0 {
            format!(
                "{} it: none is behind.",
                if all == 1 { "1 Cluster uses".into() } else { format!("{all} Clusters use") }
            )
        } else {
            format!("{behind} of {} still on another release: {}.", counted(all, "Cluster"), old.join(", "))
        });
    }
    match waiting(stack).count() {
        0 => {}
        1 => news.push("1 release waits for approval.".into()),
        number => news.push(format!("{number} releases wait for approval.")),
    }
    news
}

fn offers(stack: &ClusterStack) -> (Vec<Offer>, usize) {
    let all = stack.status.as_ref().map(|status| status.available.as_slice()).unwrap_or_default();
    let offer = |one: &crate::api::cluster_stack::AvailableRelease| Offer {
        version: version(&one.name),
        reason: match one.reason.as_str() {
            reason if reason == Reason::WaitsForApproval.as_str() => "waits for approval".into(),
            reason => clean(reason),
        },
        since: one.first_seen.as_ref().map(|time| time.0.into()),
        message: clean(&one.message),
    };
    (all.iter().take(OFFERS).map(offer).collect(), all.len().saturating_sub(OFFERS))
}

fn versions(stack: &ClusterStack, releases: &[ClusterStackRelease], root: &Node) -> (Vec<VersionRow>, usize) {
    let summary = stack.status.as_ref().map(|status| status.summary.as_slice()).unwrap_or_default();
    let row = |line: &crate::api::cluster_stack::ReleaseSummary| {
        let release = releases.iter().find(|one| one.metadata.name.as_deref() == Some(&line.name));
        let node = root.children.iter().find(|node| node.name == line.name);
        VersionRow {
            version: version(&line.name),
            badge: Badge::ready(node.map_or(Some(line.ready), |node| node.ready)),
            kubernetes: clean(release.and_then(|one| one.status.as_ref()).map_or("", |s| &s.kubernetes_version)),
            clusters: node.map_or(0, clusters_of),
            kept: clean(&line.kept),
        }
    };
    (summary.iter().take(VERSIONS).map(row).collect(), summary.len().saturating_sub(VERSIONS))
}

/// Conditions of the ClusterStack, then of its releases in the order of the tree: what blocks first.
fn conditions(stack: &ClusterStack, releases: &[ClusterStackRelease], root: &Node) -> Vec<ConditionGroup> {
    let rows = |conditions: &[Condition]| conditions.iter().map(condition).collect();
    let own = stack.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let mut groups = vec![ConditionGroup { of: "ClusterStack".into(), rows: rows(own) }];
    for node in root.children.iter().take(CONDITIONS_OF) {
        let release = releases.iter().find(|one| one.metadata.name.as_deref() == Some(&node.name));
        if let Some(status) = release.and_then(|release| release.status.as_ref()) {
            groups
                .push(ConditionGroup { of: clean(&format!("Release {}", node.name)), rows: rows(&status.conditions) });
        }
    }
    groups.retain(|group| !group.rows.is_empty());
    groups
}

fn condition(condition: &Condition) -> ConditionRow {
    ConditionRow {
        type_: clean(&condition.type_),
        badge: Badge::condition(condition),
        reason: clean(&condition.reason),
        message: clean(&condition.message),
        since: condition.last_transition_time.as_ref().map(|time| time.0.into()),
    }
}
