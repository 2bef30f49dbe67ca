//! A document as it was written: nodes that know their places.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_path_to_error::{Path, Segment};

/// How deep collections may nest, aliases followed.
pub(super) const MAX_DEPTH: usize = 200;

/// Index of a node in its document.
pub(super) type NodeId = usize;

pub(super) struct Node<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) line: usize,
    pub(super) column: usize,
}

pub(super) enum Kind<'a> {
    Scalar {
        text: Cow<'a, str>,
        /// Without quotes and without a tag.
        plain: bool,
        /// In full, e.g. `tag:yaml.org,2002:int`.
        tag: Option<String>,
    },
    Sequence(Vec<NodeId>),
    /// Keys and values in turn.
    Mapping(Vec<NodeId>),
    Alias(NodeId),
}

/// A document; its root is node 0.
pub(super) struct Document<'a> {
    nodes: Vec<Node<'a>>,
}

impl<'a> Document<'a> {
    /// The first node is the root.
    pub(super) fn new(nodes: Vec<Node<'a>>) -> Self {
        Self { nodes }
    }

    pub(super) fn node(&self, id: NodeId) -> &Node<'a> {
        &self.nodes[id]
    }

    /// The line its content starts on.
    pub(super) fn line(&self) -> usize {
        self.nodes.first().map_or(1, |root| root.line)
    }

    /// Line and column of what a path leads to, or of the innermost node on the way to it that can be found.
    pub(super) fn locate(&self, path: &Path) -> (usize, usize) {
        let mut id = 0;
        for segment in path {
            let next = match (&self.nodes[self.follow(id)].kind, segment) {
                (Kind::Sequence(items), Segment::Seq { index }) => items.get(*index).copied(),
                (Kind::Mapping(entries), Segment::Map { key }) => self.value_of(entries, key),
                (_, Segment::Enum { .. }) => continue,
                _ => None,
            };
            match next {
                Some(next) => id = next,
                None => break,
            }
        }
        (self.nodes[id].line, self.nodes[id].column)
    }

    /// A key that a mapping has twice, with its line and column.
    pub(super) fn key_twice(&self) -> Option<(&str, usize, usize)> {
        self.nodes.iter().find_map(|node| {
            let Kind::Mapping(entries) = &node.kind else { return None };
            let mut seen = BTreeSet::new();
            entries.chunks_exact(2).find_map(|entry| {
                let key = &self.nodes[self.follow(entry[0])];
                let Kind::Scalar { text, .. } = &key.kind else { return None };
                (!seen.insert(text.as_ref())).then_some((text.as_ref(), key.line, key.column))
            })
        })
    }

    fn value_of(&self, entries: &[NodeId], wanted: &str) -> Option<NodeId> {
        entries.chunks_exact(2).rev().find_map(|entry| match &self.nodes[self.follow(entry[0])].kind {
            Kind::Scalar { text, .. } if text == wanted => Some(entry[1]),
            _ => None,
        })
    }

    fn follow(&self, id: NodeId) -> NodeId {
        if let Kind::Alias(target) = self.nodes[id].kind { target } else { id }
    }
}
