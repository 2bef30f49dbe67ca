//! What is in the way of a ClusterStack: it, its releases and their objects as a tree, what blocks in front.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::api::cluster_addon::{HelmHookPhase, HelmHookStatus, StagePhase, StageStatus};
use crate::api::cluster_stack::ReleaseSummary;
use crate::api::cluster_stack_release::{Resource, ResourceStatus};
use crate::api::condition::{self, Condition, ConditionType};
use crate::api::{ClusterAddon, ClusterStack, ClusterStackRelease};
use crate::core::addon;
use crate::core::in_use::{self, ClusterUse};
use crate::core::plan::key_of;
use crate::core::status::row_class;

/// A thing, whether it is as it should be, and what it consists of. The field names are API of `-o json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Kind.
    pub kind: String,
    /// Namespace; empty for cluster-scoped objects.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Whether it is as it should be; `None` (null) while nobody knows.
    pub ready: Option<bool>,
    /// Why, in one word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// Its parts: what blocks first.
    pub children: Vec<Node>,
}

impl Node {
    /// Whether it or a part of it is not ready.
    pub fn has_problem(&self) -> bool {
        self.ready != Some(true) || self.children.iter().any(Self::has_problem)
    }

    /// Without what is ready.
    #[must_use]
    pub fn only_problems(mut self) -> Self {
        self.children.retain(Self::has_problem);
        self.children = self.children.into_iter().map(Self::only_problems).collect();
        self
    }

    /// What it says that its parts don't: their messages are taken out of its own.
    ///
    /// Statuses repeat upward what is wrong below, so that each can be read alone; in a tree it is one line apart.
    pub fn own_message(&self) -> String {
        let mut own = self.message.clone();
        for child in self.children.iter().filter(|child| child.ready != Some(true)) {
            own = without(&own, child);
        }
        own
    }
}

/// How much of a message tells that it is the one, in bytes.
const TELLING: usize = 64;

/// `message` without the words of a part: `1 of 2 objects not synced: Image shop/x: refused` keeps what is before the
/// name of the object, `docker-x-1-34-v3: 1 of 2 …; usable: v1` keeps the release's name and what is usable.
fn without(message: &str, child: &Node) -> String {
    if child.message.is_empty() {
        return message.to_owned();
    }
    let telling = condition::cut(&child.message, TELLING);
    let telling = telling.trim_end_matches('…');
    let place = if child.namespace.is_empty() { String::new() } else { format!("{}/", child.namespace) };
    let named = format!("{} {place}{}: ", child.kind, child.name);
    for prefix in [format!(": {named}"), format!("; {named}"), ": ".to_owned()] {
        let Some(start) = message.find(&format!("{prefix}{telling}")) else { continue };
        let said = start + prefix.len();
        // The status may have cut the words.
        let end = if message[said..].starts_with(&child.message) {
            said + child.message.len()
        } else {
            match message[said..].find('…') {
                Some(cut) => said + cut + '…'.len_utf8(),
                None => continue,
            }
        };
        return format!("{}{}", &message[..start], &message[end..]);
    }
    message.to_owned()
}

/// The tree of one ClusterStack. Of `releases`, those that it owns are taken; a release that its summary names and that
/// doesn't exist (yet) is shown as the summary has it.
///
/// Below a release stand the Clusters of `clusters` whose ClusterClass is one of its own, with their addons.
pub fn tree(stack: &ClusterStack, releases: &[ClusterStackRelease], clusters: &[ClusterView]) -> Node {
    let status = stack.status.clone().unwrap_or_default();
    let name = stack.metadata.name.clone().unwrap_or_default();
    let mut parts: Vec<(Rank, Node)> = Vec::new();
    for line in &status.summary {
        let release = releases.iter().find(|release| is_of(release, stack) && named(release) == line.name);
        let node = release.map_or_else(|| announced(line, stack), |release| release_node(release, clusters));
        parts.push((Rank::of(&node, !line.kept.is_empty()), node));
    }
    let listed = |release: &ClusterStackRelease| status.summary.iter().any(|line| line.name == named(release));
    let mut others: Vec<&ClusterStackRelease> = releases.iter().filter(|r| is_of(r, stack) && !listed(r)).collect();
    others.sort_by_key(|release| {
        std::cmp::Reverse((release.metadata.creation_timestamp.as_ref().map(|t| t.0), named(release)))
    });
    parts.extend(others.into_iter().map(|release| (Rank::Leaving, release_node(release, clusters))));
    // The summary is newest first, and stays so within a rank.
    parts.sort_by_key(|(rank, _)| *rank);
    let (ready, reason, message) = verdict(&status.conditions, stack.metadata.deletion_timestamp.is_some());
    Node {
        kind: "ClusterStack".into(),
        namespace: stack.metadata.namespace.clone().unwrap_or_default(),
        name,
        ready,
        reason,
        message,
        children: parts.into_iter().map(|(_, node)| node).collect(),
    }
}

/// The order of releases below their ClusterStack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// In the way.
    Blocking,
    /// As it should be.
    Ready,
    /// Not ready, but nothing wants it: in the way of nothing.
    Leaving,
}

impl Rank {
    fn of(release: &Node, wanted: bool) -> Self {
        match (release.ready, wanted) {
            (Some(true), _) => Self::Ready,
            (_, true) => Self::Blocking,
            (_, false) => Self::Leaving,
        }
    }
}

fn named(release: &ClusterStackRelease) -> &str {
    release.metadata.name.as_deref().unwrap_or_default()
}

/// The ClusterClasses of a release, by namespace and name: those of its own namespace.
pub fn classes_of(release: &ClusterStackRelease) -> BTreeSet<(String, String)> {
    let namespace = release.metadata.namespace.clone().unwrap_or_default();
    let rows = release.status.as_ref().map(|status| status.resources.as_slice()).unwrap_or_default();
    let mut classes = in_use::footprint(named(release), &namespace, rows).classes;
    classes.retain(|class| class.0 == namespace);
    classes
}

/// Whether a release belongs to a ClusterStack.
pub fn is_of(release: &ClusterStackRelease, stack: &ClusterStack) -> bool {
    let owners = release.metadata.owner_references.iter().flatten();
    release.metadata.namespace == stack.metadata.namespace
        && owners.into_iter().any(|owner| {
            owner.kind == "ClusterStack"
                && Some(&owner.name) == stack.metadata.name.as_ref()
                && stack.metadata.uid.as_ref().is_none_or(|uid| *uid == owner.uid)
        })
}

/// A release that exists only in the summary.
fn announced(line: &ReleaseSummary, stack: &ClusterStack) -> Node {
    Node {
        kind: "ClusterStackRelease".into(),
        namespace: stack.metadata.namespace.clone().unwrap_or_default(),
        name: line.name.clone(),
        ready: None,
        reason: "NotFound".into(),
        message: if line.message.is_empty() { "the object is not there".into() } else { line.message.clone() },
        children: Vec::new(),
    }
}

/// A Cluster and what it has of addons.
#[derive(Clone, Debug)]
pub struct ClusterView {
    /// The Cluster.
    pub cluster: ClusterUse,
    /// Its ClusterAddon; `None` where there is none.
    pub addon: Option<ClusterAddon>,
}

impl ClusterView {
    fn is_of(&self, classes: &BTreeSet<(String, String)>) -> bool {
        self.cluster.class.as_ref().is_some_and(|class| classes.contains(class))
    }

    fn node(&self) -> Node {
        let addon = self.addon.as_ref().map(addon_node);
        let none = || match addon::cluster::name_problem(&self.cluster.name) {
            Some(problem) => (Some(false), "NoClusterAddon".to_owned(), problem),
            None => (None, "NoClusterAddon".to_owned(), "no operator has looked at it yet".to_owned()),
        };
        let (ready, reason, message) =
            addon.as_ref().map_or_else(none, |node| (node.ready, node.reason.clone(), node.message.clone()));
        Node {
            kind: "Cluster".into(),
            namespace: self.cluster.namespace.clone(),
            name: self.cluster.name.clone(),
            ready,
            reason,
            message,
            children: addon.map(|node| node.children).unwrap_or_default(),
        }
    }
}

/// The stages of a workload cluster with their objects.
fn addon_node(addon: &ClusterAddon) -> Node {
    let status = addon.status.clone().unwrap_or_default();
    let (ready, reason, message) = verdict(&status.conditions, addon.metadata.deletion_timestamp.is_some());
    let rows_of = |stage: &StageStatus| {
        let mut rows: Vec<Node> = status.resources.iter().filter(|row| row.stage == stage.name).map(row_node).collect();
        let charts = status.charts.iter().filter(|chart| chart.name == stage.name);
        rows.extend(charts.flat_map(|chart| &chart.hooks).map(hook_node));
        rows.sort_by_key(|row| row.ready == Some(true));
        rows
    };
    let mut children: Vec<Node> = status
        .stages
        .iter()
        .map(|stage| {
            let children = rows_of(stage);
            let is_healthy = children.iter().all(|child| child.ready == Some(true));
            let is_done = stage.phase == StagePhase::Done;
            Node {
                kind: "Stage".into(),
                name: if stage.name.is_empty() { stage.hook.clone() } else { stage.name.clone() },
                ready: Some(is_done && is_healthy),
                reason: match stage.outcome {
                    Some(outcome) => outcome.as_str().into(),
                    None if is_done && !is_healthy => "ObjectsNotHealthy".into(),
                    None => stage.phase.as_str().into(),
                },
                message: stage.message.clone(),
                children,
                ..Node::default()
            }
        })
        .collect();
    let known = |row: &&Resource| status.stages.iter().any(|stage| stage.name == row.stage);
    children.extend(status.resources.iter().filter(|row| !known(row)).map(row_node));
    Node { ready, reason, message, children, ..Node::default() }
}

/// A run of a Helm hook; it is no object that is watched over.
fn hook_node(hook: &HelmHookStatus) -> Node {
    Node {
        kind: hook.kind.clone(),
        namespace: hook.namespace.clone(),
        name: hook.name.clone(),
        ready: Some(hook.phase == HelmHookPhase::Succeeded),
        reason: hook.phase.as_str().into(),
        message: if hook.message.is_empty() {
            format!("{} hook", hook.event)
        } else {
            format!("{} hook: {}", hook.event, hook.message)
        },
        ..Node::default()
    }
}

fn release_node(release: &ClusterStackRelease, clusters: &[ClusterView]) -> Node {
    let status = release.status.clone().unwrap_or_default();
    let (ready, reason, message) = verdict(&status.conditions, release.metadata.deletion_timestamp.is_some());
    let mut children: Vec<Node> = provider_node(release, &status.conditions).into_iter().collect();
    let mut rows: Vec<&Resource> = status.resources.iter().collect();
    // What only a human can solve in front, as the status itself has it; else the order of the inventory.
    rows.sort_by_key(|row| {
        let class = (row.status == ResourceStatus::NotSynced).then(|| row_class(row));
        std::cmp::Reverse((!is_current(row), class))
    });
    children.extend(rows.into_iter().map(row_node));
    children.extend(status.retained.iter().map(|row| Node {
        ready: Some(true),
        reason: "Retained".into(),
        message: "no longer part of the release; never pruned".into(),
        ..row_node(row)
    }));
    let classes = classes_of(release);
    children.extend(clusters.iter().filter(|view| view.is_of(&classes)).map(ClusterView::node));
    // The provider's object comes first among equals: what it prepares is needed by the rest.
    children.sort_by_key(|child| child.ready == Some(true));
    Node {
        kind: "ClusterStackRelease".into(),
        namespace: release.metadata.namespace.clone().unwrap_or_default(),
        name: named(release).to_owned(),
        ready,
        reason,
        message,
        children,
    }
}

fn provider_node(release: &ClusterStackRelease, conditions: &[Condition]) -> Option<Node> {
    let reference = release.spec.provider_ref.as_ref()?;
    let condition = condition::find(conditions, ConditionType::ProviderClusterStackReleaseReady);
    let own = release.metadata.namespace.clone().unwrap_or_default();
    Some(Node {
        kind: reference.kind.clone().unwrap_or_default(),
        namespace: reference.namespace.clone().unwrap_or(own),
        name: reference.name.clone().unwrap_or_default(),
        ready: condition.and_then(state),
        reason: condition.map(|c| c.reason.clone()).unwrap_or_default(),
        message: condition.map(|c| c.message.clone()).unwrap_or_default(),
        children: Vec::new(),
    })
}

fn is_current(row: &Resource) -> bool {
    row.status == ResourceStatus::Synced && (row.health.is_empty() || row.health == "Current")
}

fn row_node(row: &Resource) -> Node {
    let key = key_of(row);
    let reason = match (row.status, row.reason) {
        (_, Some(reason)) => reason.to_string(),
        (ResourceStatus::NotSynced, None) => "NotSynced".into(),
        (ResourceStatus::Synced, None) if is_current(row) => "Synced".into(),
        (ResourceStatus::Synced, None) => row.health.clone(),
    };
    Node {
        kind: key.kind,
        namespace: key.namespace,
        name: key.name,
        ready: Some(is_current(row)),
        reason,
        message: row.error.clone(),
        children: Vec::new(),
    }
}

/// Ready, reason and message from the conditions.
pub fn verdict(conditions: &[Condition], deleting: bool) -> (Option<bool>, String, String) {
    match condition::find(conditions, ConditionType::Ready) {
        // What it said last is of before.
        Some(ready) if deleting && ready.is_true() => {
            (Some(false), "Deleting".into(), "no operator has said yet what it waits for".into())
        }
        Some(ready) => (state(ready), ready.reason.clone(), ready.message.clone()),
        None if deleting => (Some(false), "Deleting".into(), String::new()),
        None => (None, "NoStatus".into(), "no operator has looked at it yet".into()),
    }
}

fn state(condition: &Condition) -> Option<bool> {
    match condition.status.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stack(ready: (&str, &str, &str), summary: &serde_json::Value) -> ClusterStack {
        serde_json::from_value(json!({
            "apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterStack",
            "metadata": {"name": "scs", "namespace": "shop", "uid": "u1"},
            "spec": {"provider": "openstack", "name": "scs", "kubernetesVersion": "1.30", "noProvider": true},
            "status": {
                "summary": summary,
                "conditions": [{"type": "Ready", "status": ready.0, "reason": ready.1, "message": ready.2}],
            },
        }))
        .unwrap()
    }

    fn release(name: &str, ready: (&str, &str, &str), resources: &serde_json::Value) -> ClusterStackRelease {
        serde_json::from_value(json!({
            "apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterStackRelease",
            "metadata": {"name": name, "namespace": "shop", "ownerReferences": [
                {"apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterStack", "name": "scs", "uid": "u1"},
            ]},
            "spec": {},
            "status": {
                "resources": resources,
                "conditions": [{"type": "Ready", "status": ready.0, "reason": ready.1, "message": ready.2}],
            },
        }))
        .unwrap()
    }

    fn broken() -> (ClusterStack, Vec<ClusterStackRelease>) {
        let why = "1 of 2 objects not synced: Image shop/ubuntu: .spec.resource.properties.diskBus: field not declared";
        let summary = json!([
            {"name": "openstack-scs-1-30-v3", "ready": false, "phase": "applying objects", "kept": "NewestFound"},
            {"name": "openstack-scs-1-30-v2", "ready": false, "phase": "downloading release assets"},
            {"name": "openstack-scs-1-30-v1", "ready": true, "phase": "done", "kept": "InVersions"},
        ]);
        let stack =
            stack(("False", "NewestReleaseNotReady", &format!("openstack-scs-1-30-v3: {why}; usable: v1")), &summary);
        let class = json!({"group": "cluster.x-k8s.io", "version": "v1beta1", "kind": "ClusterClass", "namespace": "shop",
            "name": "c", "status": "synced", "health": "Current"});
        let image = json!({"group": "openstack.k-orc.cloud", "version": "v1alpha1", "kind": "Image", "namespace": "shop",
            "name": "ubuntu", "status": "not-synced", "reason": "Invalid",
            "error": ".spec.resource.properties.diskBus: field not declared"});
        let releases = vec![
            release("openstack-scs-1-30-v1", ("True", "Ready", "1 object synced"), &json!([class])),
            release("openstack-scs-1-30-v2", ("False", "InUse", "Cluster a/b uses it"), &json!([])),
            release("openstack-scs-1-30-v3", ("False", "FailedToApplyObjects", why), &json!([class, image])),
        ];
        (stack, releases)
    }

    fn names(node: &Node) -> Vec<&str> {
        node.children.iter().map(|child| child.name.as_str()).collect()
    }

    #[test]
    fn what_blocks_comes_first_and_what_leaves_last() {
        let (stack, releases) = broken();
        let tree = tree(&stack, &releases, &[]);
        assert_eq!(names(&tree), ["openstack-scs-1-30-v3", "openstack-scs-1-30-v1", "openstack-scs-1-30-v2"]);
        assert_eq!(names(&tree.children[0]), ["ubuntu", "c"]);
        let leaf = &tree.children[0].children[0];
        assert_eq!((leaf.ready, leaf.reason.as_str()), (Some(false), "Invalid"));
        assert_eq!(leaf.message, ".spec.resource.properties.diskBus: field not declared");
    }

    #[test]
    fn a_parent_says_only_what_its_parts_do_not() {
        let (stack, releases) = broken();
        let tree = tree(&stack, &releases, &[]);
        assert_eq!(tree.own_message(), "openstack-scs-1-30-v3; usable: v1");
        assert_eq!(tree.children[0].own_message(), "1 of 2 objects not synced");
        assert!(tree.message.contains("diskBus"), "the whole message stays in the model");
    }

    #[test]
    fn messages_that_a_status_cut_are_recognised() {
        let part = |name: &str, message: String| Node {
            kind: "Image".into(),
            name: name.into(),
            ready: Some(false),
            message,
            ..Node::default()
        };
        for (own, parts, expected) in [
            (format!("a: {}…; usable: v1", "x".repeat(90)), vec![part("a", "x".repeat(200))], "a; usable: v1"),
            (
                "2 not synced: Image a: one; Image b: two".into(),
                vec![part("a", "one".into()), part("b", "two".into())],
                "2 not synced",
            ),
            ("2 not synced: Image a: one".into(), vec![part("a", "other".into())], "2 not synced: Image a: one"),
            ("own words".into(), vec![part("a", String::new())], "own words"),
        ] {
            let node = Node { message: own, children: parts, ..Node::default() };
            assert_eq!(node.own_message(), expected);
        }
    }

    #[test]
    fn health_decides_about_what_is_synced() {
        let row = |status: &str, health: &str, reason: Option<&str>| {
            let row = json!({"kind": "Job", "name": "j", "status": status, "health": health, "reason": reason});
            let node = row_node(&serde_json::from_value(row).unwrap());
            (node.ready, node.reason)
        };
        for (status, health, reason, expected) in [
            ("synced", "Current", None, (Some(true), "Synced")),
            ("synced", "", None, (Some(true), "Synced")),
            ("synced", "InProgress", None, (Some(false), "InProgress")),
            ("synced", "Failed", None, (Some(false), "Failed")),
            ("not-synced", "", Some("NoKindMatch"), (Some(false), "NoKindMatch")),
            ("not-synced", "", None, (Some(false), "NotSynced")),
        ] {
            assert_eq!(row(status, health, reason), (expected.0, expected.1.to_owned()), "{status} {health}");
        }
    }

    #[test]
    fn foreign_releases_are_left_out_and_missing_ones_are_shown() {
        let summary = json!([{"name": "openstack-scs-1-30-v1", "ready": false, "phase": "", "kept": "NewestFound"}]);
        let stack = stack(("False", "Progressing", ""), &summary);
        let mut foreign = release("openstack-scs-1-30-v1", ("True", "Ready", ""), &json!([]));
        foreign.metadata.owner_references = None;
        let tree = tree(&stack, &[foreign], &[]);
        assert_eq!(names(&tree), ["openstack-scs-1-30-v1"]);
        assert_eq!((tree.children[0].ready, tree.children[0].reason.as_str()), (None, "NotFound"));
    }

    #[test]
    fn an_object_that_no_operator_saw_says_so() {
        let stack: ClusterStack = serde_json::from_value(json!({
            "apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterStack", "metadata": {"name": "new"},
            "spec": {"provider": "p", "name": "n", "kubernetesVersion": "1.30", "noProvider": true},
        }))
        .unwrap();
        let tree = tree(&stack, &[], &[]);
        assert_eq!((tree.ready, tree.reason.as_str()), (None, "NoStatus"));
        assert!(tree.has_problem());
    }

    #[test]
    fn what_is_being_deleted_is_not_ready_whatever_it_said_last() {
        let mut stack = stack(("True", "Ready", "usable: v2"), &json!([]));
        stack.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let told = tree(&stack, &[], &[]);
        assert_eq!((told.ready, told.reason.as_str()), (Some(false), "Deleting"));
        assert_eq!(told.message, "no operator has said yet what it waits for");
        stack.status.as_mut().unwrap().conditions[0].status = "False".into();
        stack.status.as_mut().unwrap().conditions[0].reason = "InUse".into();
        assert_eq!(tree(&stack, &[], &[]).reason, "InUse");
    }

    #[test]
    fn the_provider_object_stands_before_the_objects() {
        let (_, mut releases) = broken();
        let release = releases.last_mut().unwrap();
        release.spec.provider_ref =
            serde_json::from_value(json!({"kind": "OpenStackClusterStackRelease", "name": "p"})).ok();
        let conditions = &mut release.status.as_mut().unwrap().conditions;
        conditions.push(
            serde_json::from_value(json!({"type": "ProviderClusterStackReleaseReady", "status": "False",
                "reason": "ProcessOngoing", "message": "images are uploaded"}))
            .unwrap(),
        );
        let node = release_node(release, &[]);
        assert_eq!(names(&node), ["p", "ubuntu", "c"]);
        assert_eq!((node.children[0].ready, node.children[0].reason.as_str()), (Some(false), "ProcessOngoing"));
    }

    #[test]
    fn only_problems_leaves_the_way_to_them() {
        let (stack, releases) = broken();
        let tree = tree(&stack, &releases, &[]).only_problems();
        assert_eq!(names(&tree), ["openstack-scs-1-30-v3", "openstack-scs-1-30-v2"]);
        assert_eq!(names(&tree.children[0]), ["ubuntu"]);
    }

    #[test]
    fn a_release_shows_its_clusters_with_their_stages() {
        let owner = json!({"kind": "ClusterStack", "name": "x", "uid": "u", "apiVersion": "v"});
        let object = json!({
            "apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterStack",
            "metadata": {"name": "x", "namespace": "shop", "uid": "u"},
            "spec": {"provider": "docker", "name": "x", "kubernetesVersion": "1.34"},
        });
        let stack: ClusterStack = serde_json::from_value(object).unwrap();
        let release: ClusterStackRelease = serde_json::from_value(json!({
            "apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterStackRelease", "spec": {},
            "metadata": {"name": "docker-x-1-34-v1", "namespace": "shop", "ownerReferences": [owner]},
        }))
        .unwrap();
        let row = |name: &str, stage: &str, health: &str| json!({"version": "v1", "kind": "ConfigMap", "name": name, "stage": stage, "status": "synced", "health": health});
        let addon: ClusterAddon = serde_json::from_value(json!({
            "apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterAddon",
            "metadata": {"name": "cluster-addon-c", "namespace": "team"},
            "spec": {"clusterRef": {"name": "c"}},
            "status": {
                "stages": [
                    {"name": "cni", "action": "apply", "phase": "done"},
                    {"name": "csi", "action": "apply", "phase": "waitingForPreCondition", "message": "cni.ready is false"},
                    {"name": "ccm", "action": "apply", "phase": "done", "outcome": "Skipped", "leftIn": "Pending"},
                ],
                "charts": [{"name": "csi", "hooks": [
                    {"event": "pre-upgrade", "kind": "Job", "namespace": "kube-system", "name": "move", "phase": "Running"},
                ]}],
                "resources": [row("a", "cni", "Current"), row("b", "cni", "InProgress"), row("old", "gone", "Current")],
            },
        }))
        .unwrap();
        let view = |class: &str, addon| ClusterView {
            cluster: ClusterUse {
                namespace: "team".into(),
                name: "c".into(),
                class: Some(("shop".into(), class.into())),
                reconciled: true,
            },
            addon,
        };
        let clusters = [view("docker-x-1-34-v1", Some(addon)), view("another", None)];
        let tree = tree(&stack, &[release], &clusters);
        let clusters = &tree.children[0].children;
        assert_eq!(clusters.len(), 1);
        assert_eq!(
            (clusters[0].kind.as_str(), clusters[0].name.as_str(), clusters[0].namespace.as_str()),
            ("Cluster", "c", "team")
        );
        let shown: Vec<String> =
            clusters[0].children.iter().map(|n| format!("{} {} {:?} {}", n.kind, n.name, n.ready, n.reason)).collect();
        assert_eq!(
            shown,
            [
                "Stage cni Some(false) ObjectsNotHealthy",
                "Stage csi Some(false) waitingForPreCondition",
                "Stage ccm Some(true) Skipped",
                "ConfigMap old Some(true) Synced",
            ]
        );
        assert_eq!(clusters[0].children[0].children[0].name, "b");
        let hook = &clusters[0].children[1].children[0];
        assert_eq!((hook.name.as_str(), hook.ready, hook.reason.as_str()), ("move", Some(false), "Running"));
        assert_eq!(hook.message, "pre-upgrade hook");
    }
}
