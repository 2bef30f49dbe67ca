//! Reading, first half: the events of a document become a tree of nodes that knows its places.

use std::borrow::Cow;
use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde_path_to_error::{Path, Segment};

use super::error::Error;

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
    pub(super) fn node(&self, id: NodeId) -> &Node<'a> {
        &self.nodes[id]
    }

    pub(super) fn line(&self) -> usize {
        self.nodes[0].line
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

/// The documents of a text, one after the other.
pub(super) struct Stream<'a> {
    parser: Parser<'a, StrInput<'a>>,
}

impl<'a> Stream<'a> {
    /// # Errors
    /// Characters that no YAML text may contain.
    pub(super) fn new(text: &'a str) -> Result<Self, Error> {
        check_characters(text)?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Ok(Self { parser: Parser::new_from_str(text) })
    }

    /// The next document; `None` behind the last one.
    pub(super) fn next_document(&mut self) -> Result<Option<Document<'a>>, Error> {
        let mut builder = Builder { nodes: Vec::new(), open: Vec::new(), anchors: HashMap::new() };
        while let Some(event) = self.parser.next_event() {
            let (event, span) = event.map_err(|error| scan_error(&error))?;
            match event {
                Event::DocumentEnd => return Ok(Some(Document { nodes: builder.nodes })),
                Event::StreamEnd => break,
                event => builder.take(event, span)?,
            }
        }
        Ok(None)
    }
}

struct Builder<'a> {
    nodes: Vec<Node<'a>>,
    /// The collections that aren't closed yet.
    open: Vec<NodeId>,
    anchors: HashMap<usize, NodeId>,
}

impl<'a> Builder<'a> {
    fn take(&mut self, event: Event<'a>, span: Span) -> Result<(), Error> {
        let (kind, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                (Kind::Scalar { text, plain, tag: tag.map(|tag| full_tag(&tag)) }, anchor)
            }
            Event::SequenceStart(anchor, _) => (Kind::Sequence(Vec::new()), anchor),
            Event::MappingStart(anchor, _) => (Kind::Mapping(Vec::new()), anchor),
            Event::Alias(anchor) => {
                // The parser remembers the anchors of earlier documents: those don't count.
                let target = self.anchors.get(&anchor).copied();
                (Kind::Alias(target.ok_or_else(|| error_at(span, "unknown anchor referenced"))?), 0)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.open.pop();
                return Ok(());
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {
                return Ok(());
            }
        };
        let id = self.nodes.len();
        if let Some(parent) = self.open.last()
            && let Kind::Sequence(children) | Kind::Mapping(children) = &mut self.nodes[*parent].kind
        {
            children.push(id);
        }
        if anchor > 0 {
            self.anchors.insert(anchor, id);
        }
        if matches!(kind, Kind::Sequence(_) | Kind::Mapping(_)) {
            if self.open.len() == MAX_DEPTH {
                return Err(error_at(span, format!("nested more than {MAX_DEPTH} levels deep")));
            }
            self.open.push(id);
        }
        self.nodes.push(Node { kind, line: span.start.line(), column: span.start.col() + 1 });
        Ok(())
    }
}

fn full_tag(tag: &Tag) -> String {
    format!("{}{}", tag.handle, tag.suffix)
}

fn error_at(span: Span, message: impl Into<String>) -> Error {
    Error::new(span.start.line(), span.start.col() + 1, message)
}

fn scan_error(error: &ScanError) -> Error {
    Error::new(error.marker().line(), error.marker().col() + 1, error.info())
}

/// Go refuses control characters anywhere in the text.
fn check_characters(text: &str) -> Result<(), Error> {
    let refused = |c: char| match c {
        '\t' | '\n' | '\r' | '\u{85}' => false,
        '\u{fffe}' | '\u{ffff}' => true,
        _ => c.is_control(),
    };
    let Some(at) = text.find(refused) else { return Ok(()) };
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let code = text[at..].chars().next().map_or(0, u32::from);
    Err(Error::new(line, column, format!("control characters are not allowed (U+{code:04X})")))
}
