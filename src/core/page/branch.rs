//! A tree as it is shown: bounded, what is not ready open, what is well folded.

use serde::Serialize;

use super::words::{Badge, clean, counted};
use crate::core::tree::Node;

/// Bytes of the texts of a tree.
const TREE_TEXT: usize = 512 << 10;
/// What a node costs beside its texts.
const NODE: usize = 128;
/// Children of a node.
const CHILDREN: usize = 200;
/// More objects that are as they should be than these are folded, where there is something else beside them.
const FOLD: usize = 5;

/// A node, and what is shown below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Branch {
    /// Kind; empty for what only gathers others.
    pub kind: String,
    /// Name, with the namespace where it is another one than above.
    pub name: String,
    /// Its state.
    pub badge: Badge,
    /// Why, in one word.
    pub reason: String,
    /// What it says that its parts don't.
    pub message: String,
    /// Whether its parts are to be seen at first.
    pub open: bool,
    /// Its parts.
    pub children: Vec<Branch>,
    /// What is said of parts that are left out; empty where all are there.
    pub more: String,
}

impl Branch {
    fn of(node: &Node, above: &str) -> Self {
        let is_elsewhere = !node.namespace.is_empty() && node.namespace != above;
        let name = if is_elsewhere { format!("{}/{}", node.namespace, node.name) } else { node.name.clone() };
        Self {
            kind: clean(&node.kind),
            name: clean(&name),
            badge: Badge::ready(node.ready),
            reason: clean(&node.reason),
            message: clean(&node.own_message()),
            // Where Clusters are, people look.
            open: node.has_problem() || node.children.iter().any(|child| child.kind == "Cluster"),
            children: Vec::new(),
            more: String::new(),
        }
    }

    fn cost(&self) -> usize {
        NODE + self.kind.len() + self.name.len() + self.reason.len() + self.message.len()
    }

    /// An object of which nothing has to be said.
    fn is_quiet(&self) -> bool {
        self.badge.tone == "good" && self.children.is_empty() && self.more.is_empty()
    }

    /// Gathers the quiet ones among its parts behind the others.
    fn fold(&mut self) {
        let quiet = self.children.iter().filter(|child| child.is_quiet()).count();
        if quiet <= FOLD || quiet == self.children.len() {
            return;
        }
        let (quiet, mut others): (Vec<Self>, Vec<Self>) = self.children.drain(..).partition(Self::is_quiet);
        others.push(Self {
            kind: String::new(),
            name: format!("{} as they should be", counted(quiet.len(), "object")),
            badge: Badge::ready(Some(true)),
            reason: String::new(),
            message: String::new(),
            open: false,
            children: quiet,
            more: String::new(),
        });
        self.children = others;
    }
}

/// A node that was taken, and where its children begin.
struct Taken<'a> {
    node: &'a Node,
    branch: Branch,
    parent: usize,
}

/// What is shown of a tree. Level by level, so that what is near the root is there whatever is below it; what blocks comes
/// first in each, so that it is what is kept.
pub fn bounded(root: &Node) -> Branch {
    let mut room = TREE_TEXT;
    let mut taken = vec![Taken { node: root, branch: Branch::of(root, ""), parent: 0 }];
    let mut next = 0;
    while let Some(node) = taken.get(next).map(|one| one.node) {
        let mut left = node.children.as_slice();
        for child in node.children.iter().take(CHILDREN) {
            let branch = Branch::of(child, &node.namespace);
            let Some(rest) = room.checked_sub(branch.cost()) else { break };
            room = rest;
            left = left.get(1..).unwrap_or_default();
            taken.push(Taken { node: child, branch, parent: next });
        }
        if let (Some(one), false) = (taken.get_mut(next), left.is_empty()) {
            let unready = left.iter().filter(|child| child.ready != Some(true)).count();
            let told = if unready > 0 { format!(", {unready} of them not ready") } else { String::new() };
            one.branch.more = format!("and {} more{told}", left.len());
        }
        next += 1;
    }
    // Children stand behind their parents, so each is whole when it is moved into its own.
    while taken.len() > 1 {
        let Some(Taken { mut branch, parent, .. }) = taken.pop() else { break };
        branch.children.reverse();
        branch.fold();
        if let Some(parent) = taken.get_mut(parent) {
            parent.branch.children.push(branch);
        }
    }
    let mut root = taken.pop().map_or_else(|| Branch::of(root, ""), |one| one.branch);
    root.children.reverse();
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(name: &str, ready: bool) -> Node {
        Node { kind: "Pod".into(), name: name.into(), ready: Some(ready), ..Node::default() }
    }

    fn node(name: &str, children: Vec<Node>) -> Node {
        Node { children, ..leaf(name, true) }
    }

    fn size(branch: &Branch) -> usize {
        1 + branch.children.iter().map(size).sum::<usize>()
    }

    #[test]
    fn a_tree_keeps_its_order_and_its_levels() {
        let root =
            node("r", vec![node("a", vec![leaf("a1", true), leaf("a2", true)]), node("b", vec![leaf("b1", false)])]);
        let shown = bounded(&root);
        let names: Vec<&str> = shown.children.iter().map(|child| child.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let below: Vec<&str> = shown.children[0].children.iter().map(|child| child.name.as_str()).collect();
        assert_eq!(below, ["a1", "a2"]);
        assert_eq!([shown.open, shown.children[0].open, shown.children[1].open], [true, false, true]);
    }

    #[test]
    fn what_is_well_is_folded_beside_what_is_not() {
        let mut children = vec![leaf("bad", false)];
        children.extend((0..=FOLD).map(|n| leaf(&n.to_string(), true)));
        let shown = bounded(&node("root", vec![node("release", children.clone())]));
        let release = &shown.children[0];
        assert_eq!(release.children.len(), 2);
        assert_eq!(
            (release.children[1].name.as_str(), release.children[1].open),
            ("6 objects as they should be", false)
        );
        let all_well = bounded(&node("root", vec![node("release", children[1..].to_vec())]));
        assert_eq!(all_well.children[0].children.len(), FOLD + 1);
    }

    #[test]
    fn many_children_are_counted() {
        let children = (0..CHILDREN + 10).map(|n| leaf(&n.to_string(), n >= CHILDREN + 3)).collect();
        let shown = bounded(&node("root", vec![node("release", children)]));
        assert_eq!(shown.children[0].more, "and 10 more, 3 of them not ready");
    }

    #[test]
    fn a_huge_tree_is_bounded_and_every_release_stands_in_it() {
        let wordy = |n: usize| Node { message: "x".repeat(2000), ..leaf(&n.to_string(), false) };
        let release = |n: usize| node(&format!("release-{n}"), (0..1000).map(wordy).collect());
        let shown = bounded(&node("root", (0..50).map(release).collect()));
        assert_eq!(shown.children.len(), 50);
        assert!(size(&shown) * NODE <= TREE_TEXT, "{}", size(&shown));
        assert!(shown.children.iter().all(|child| child.more.starts_with("and ")));
    }
}
