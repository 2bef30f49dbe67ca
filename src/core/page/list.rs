//! The list of ClusterStacks: a line for each, a hundred to a page.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::asked::Asked;
use super::words::{Badge, Moment, clean, counted, version};
use crate::api::cluster_stack::Channel;
use crate::api::condition::Reason;
use crate::api::{ClusterAddon, ClusterStack, ClusterStackRelease};
use crate::core::tree::{classes_of, is_of, verdict};

/// ClusterStacks of a page.
pub const PER_PAGE: usize = 100;
/// Releases in use that a line names.
const NAMED: usize = 4;

/// A Cluster, and whether its addons are as they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSeen {
    /// Namespace and name of its ClusterClass; `None` without a topology.
    pub class: Option<(String, String)>,
    /// Whether its ClusterAddon is ready; `None` while nobody knows.
    pub ready: Option<bool>,
}

impl ClusterSeen {
    /// A Cluster of a class, with its ClusterAddon where there is one.
    pub fn new(class: Option<(String, String)>, addon: Option<&ClusterAddon>) -> Self {
        let conditions = addon.and_then(|addon| addon.status.as_ref()).map(|status| status.conditions.as_slice());
        Self { class, ready: conditions.and_then(|conditions| verdict(conditions, false).0) }
    }
}

/// What is said behind the summary while Clusters can't be read.
const UNREAD: &str = " Clusters can't be read: which releases they use is not known.";

/// What the operator sees.
#[derive(Clone, Debug, Default)]
pub struct ListSeen {
    /// ClusterStacks.
    pub stacks: Vec<Arc<ClusterStack>>,
    /// ClusterStackReleases.
    pub releases: Vec<Arc<ClusterStackRelease>>,
    /// Clusters.
    pub clusters: Vec<ClusterSeen>,
    /// They could not be read yet.
    pub clusters_unread: bool,
}

/// A page of the list, for the template.
#[derive(Debug, Serialize)]
pub struct ListView {
    title: String,
    summary: String,
    namespace: String,
    not_ready: bool,
    rows: Vec<Row>,
    shown: String,
    previous: Option<String>,
    next: Option<String>,
    all: String,
    refresh: Option<u16>,
    turn: String,
    as_of: Moment,
}

#[derive(Debug, Serialize)]
struct Row {
    namespace: String,
    name: String,
    href: String,
    of: String,
    badge: Badge,
    reason: String,
    message: String,
    newest: String,
    used: Vec<Used>,
    waiting: Vec<String>,
}

/// A release that Clusters use.
#[derive(Debug, Serialize)]
struct Used {
    version: String,
    clusters: String,
    /// Whether a newer one is ready.
    old: bool,
}

/// A ClusterStack with what is counted for it.
struct Line<'a> {
    stack: &'a ClusterStack,
    ready: Option<bool>,
    reason: String,
    message: String,
    /// Clusters by release, newest release first.
    used: Vec<(String, usize)>,
    unready_clusters: usize,
}

impl Line<'_> {
    fn is_well(&self) -> bool {
        self.ready == Some(true) && self.unready_clusters == 0
    }
}

/// Namespace and name.
type Place<'a> = (&'a str, &'a str);

/// What is shown of what is seen.
pub fn view(asked: &Asked, seen: &ListSeen, now: Timestamp) -> ListView {
    let of = |stack: &&ClusterStack| asked.namespace.is_empty() || namespace(stack) == asked.namespace;
    let mut stacks: Vec<&ClusterStack> = seen.stacks.iter().map(Arc::as_ref).filter(of).collect();
    stacks.sort_by_key(|stack| (namespace(stack), name(stack)));
    let releases = releases_by_stack(seen);
    let clusters = clusters_by_class(seen);
    let all: Vec<Line<'_>> = stacks.into_iter().map(|stack| line(stack, &releases, &clusters)).collect();
    let mut summary = summary(&all);
    if seen.clusters_unread {
        summary.push_str(UNREAD);
    }
    let lines: Vec<&Line<'_>> = all.iter().filter(|line| !asked.not_ready || !line.is_well()).collect();
    let pages = lines.len().div_ceil(PER_PAGE).max(1);
    let page = asked.page.clamp(1, pages);
    let first = (page - 1) * PER_PAGE;
    let rows: Vec<Row> = lines.iter().skip(first).take(PER_PAGE).map(|line| row(line)).collect();
    let to = |page: usize| Asked { page, ..asked.clone() }.link();
    ListView {
        title: "Cluster stacks".into(),
        summary,
        namespace: clean(&asked.namespace),
        not_ready: asked.not_ready,
        shown: match rows.len() {
            0 => String::new(),
            shown => format!("{}–{} of {}, page {page} of {pages}", first + 1, first + shown, lines.len()),
        },
        rows,
        previous: (page > 1).then(|| to(page - 1)),
        next: (page < pages).then(|| to(page + 1)),
        all: Asked { not_ready: false, page: 1, ..asked.clone() }.link(),
        refresh: asked.refresh,
        turn: asked.turned().link(),
        as_of: now.into(),
    }
}

fn namespace(stack: &ClusterStack) -> &str {
    stack.metadata.namespace.as_deref().unwrap_or_default()
}

fn name(stack: &ClusterStack) -> &str {
    stack.metadata.name.as_deref().unwrap_or_default()
}

fn releases_by_stack(seen: &ListSeen) -> HashMap<Place<'_>, Vec<&ClusterStackRelease>> {
    let mut all: HashMap<Place<'_>, Vec<&ClusterStackRelease>> = HashMap::new();
    for release in &seen.releases {
        let namespace = release.metadata.namespace.as_deref().unwrap_or_default();
        let owners = release.metadata.owner_references.iter().flatten();
        for owner in owners.filter(|owner| owner.kind == "ClusterStack") {
            all.entry((namespace, owner.name.as_str())).or_default().push(release);
        }
    }
    all
}

/// How many Clusters have a class, and how many of them are not ready.
fn clusters_by_class(seen: &ListSeen) -> HashMap<&(String, String), (usize, usize)> {
    let mut all: HashMap<&(String, String), (usize, usize)> = HashMap::new();
    for cluster in &seen.clusters {
        let Some(class) = &cluster.class else { continue };
        let counts = all.entry(class).or_default();
        counts.0 += 1;
        counts.1 += usize::from(cluster.ready == Some(false));
    }
    all
}

fn line<'a>(
    stack: &'a ClusterStack,
    releases: &HashMap<Place<'_>, Vec<&ClusterStackRelease>>,
    clusters: &HashMap<&(String, String), (usize, usize)>,
) -> Line<'a> {
    let conditions = stack.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let (ready, reason, message) = verdict(conditions, stack.metadata.deletion_timestamp.is_some());
    let (mut used, mut unready_clusters) = (Vec::new(), 0);
    let of = releases.get(&(namespace(stack), name(stack))).map(Vec::as_slice).unwrap_or_default();
    // Most have none, and their inventories need not be looked through.
    let of = if clusters.is_empty() { &[] } else { of };
    for release in of.iter().filter(|release| is_of(release, stack)) {
        let classes = classes_of(release);
        let counts = classes.iter().filter_map(|class| clusters.get(class)).copied();
        let (number, unready) = counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        unready_clusters += unready;
        if number > 0 {
            used.push((release.metadata.name.clone().unwrap_or_default(), number));
        }
    }
    let order = |release: &str| {
        let summary = stack.status.iter().flat_map(|status| &status.summary);
        summary.into_iter().position(|line| line.name == release).unwrap_or(usize::MAX)
    };
    used.sort_by_key(|(release, _)| order(release));
    Line { stack, ready, reason, message, used, unready_clusters }
}

fn summary(all: &[Line<'_>]) -> String {
    if all.is_empty() {
        return "No ClusterStack is here.".into();
    }
    let unwell = all.iter().filter(|line| !line.is_well()).count();
    let waiting: usize = all.iter().map(|line| waiting(line.stack).count()).sum();
    let mut parts = vec![counted(all.len(), "ClusterStack")];
    parts.push(if unwell == 0 { "all ready".into() } else { format!("{unwell} not ready") });
    if waiting > 0 {
        parts.push(format!("{} waiting for approval", counted(waiting, "release")));
    }
    format!("{}.", parts.join(", "))
}

/// Releases that wait for somebody's approval.
pub(super) fn waiting(stack: &ClusterStack) -> impl Iterator<Item = &str> {
    let available = stack.status.iter().flat_map(|status| &status.available);
    available.filter(|one| one.reason == Reason::WaitsForApproval.as_str()).map(|one| one.name.as_str())
}

/// Name of the newest release that is ready; empty where none is.
pub(super) fn newest_ready(stack: &ClusterStack) -> &str {
    let latest = stack.status.as_ref().map(|status| status.latest_release.as_str()).unwrap_or_default();
    latest.split(" | ").next().unwrap_or_default()
}

/// What a ClusterStack subscribes to: `openstack/scs 1.34`.
pub(super) fn subscription(stack: &ClusterStack) -> String {
    let spec = &stack.spec;
    let channel = match spec.channel {
        Channel::Stable => "",
        Channel::Custom => ", channel custom",
    };
    clean(&format!("{}/{} for Kubernetes {}{channel}", spec.provider, spec.name, spec.kubernetes_version))
}

fn row(line: &Line<'_>) -> Row {
    let stack = line.stack;
    let newest = newest_ready(stack);
    let used = line.used.iter().take(NAMED).map(|(release, number)| Used {
        version: version(release),
        clusters: counted(*number, "Cluster"),
        old: !newest.is_empty() && release != newest,
    });
    let mut message = line.message.clone();
    if line.unready_clusters > 0 {
        let told = format!("{} not ready", counted(line.unready_clusters, "Cluster"));
        message = if message.is_empty() { told } else { format!("{told}; {message}") };
    }
    let ready = if line.unready_clusters > 0 && line.ready == Some(true) { Some(false) } else { line.ready };
    Row {
        namespace: clean(namespace(stack)),
        name: clean(name(stack)),
        href: format!("namespaces/{}/clusterstacks/{}", segment(namespace(stack)), segment(name(stack))),
        of: subscription(stack),
        badge: Badge::ready(ready),
        reason: if stack.spec.suspend { "Suspended".into() } else { clean(&line.reason) },
        message: clean(&message),
        newest: if newest.is_empty() { String::new() } else { version(newest) },
        used: used.collect(),
        waiting: waiting(stack).take(NAMED).map(version).collect(),
    }
}

/// A part of a path.
fn segment(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string().replace("%2D", "-")
}
