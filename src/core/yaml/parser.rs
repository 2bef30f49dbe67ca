//! Puts tokens together to documents, by libyaml's grammar.

use std::borrow::Cow;
use std::collections::HashMap;

use super::cursor::Mark;
use super::error::Error;
use super::node::{Document, Kind, MAX_DEPTH, Node, NodeId};
use super::scanner::Scanner;
use super::token::TokenKind;

/// The documents of a text, one after the other.
pub(super) struct Stream<'a> {
    scanner: Scanner<'a>,
    first: bool,
    /// Handles and what they stand for.
    tags: Vec<(&'a str, Cow<'a, str>)>,
    nodes: Vec<Node<'a>>,
    anchors: HashMap<&'a str, NodeId>,
    depth: usize,
}

/// What may stand at a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Context {
    Flow,
    Block,
    /// Also a list that isn't indented, as under a key.
    BlockOrIndentless,
}

impl<'a> Stream<'a> {
    /// # Errors
    /// Characters that no YAML text may contain.
    pub(super) fn new(text: &'a str) -> Result<Self, Error> {
        check_characters(text)?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Ok(Self {
            scanner: Scanner::new(text),
            first: true,
            tags: Vec::new(),
            nodes: Vec::new(),
            anchors: HashMap::new(),
            depth: 0,
        })
    }

    /// The next document; `None` behind the last one.
    pub(super) fn next_document(&mut self) -> Result<Option<Document<'a>>, Error> {
        if !self.first {
            while self.at(&TokenKind::DocumentEnd)? {
                self.scanner.take();
            }
        }
        if self.at(&TokenKind::StreamEnd)? {
            return Ok(None);
        }
        let explicit = self.directives()? || self.at(&TokenKind::DocumentStart)?;
        if explicit || !self.first {
            if !self.at(&TokenKind::DocumentStart)? {
                return self.fail("did not find expected <document start>");
            }
            self.scanner.take();
        }
        self.first = false;
        let empty = explicit && self.at_document_boundary()?;
        let _root = if empty { self.push_empty()? } else { self.node(Context::Block)? };
        if self.at(&TokenKind::DocumentEnd)? {
            self.scanner.take();
        }
        self.anchors.clear();
        Ok(Some(Document::new(std::mem::take(&mut self.nodes))))
    }

    /// Reads the directives in front of a document; whether there are any.
    fn directives(&mut self) -> Result<bool, Error> {
        self.tags.clear();
        let (mut any, mut version) = (false, false);
        loop {
            let token = self.scanner.peek()?;
            let mark = token.mark;
            match &token.kind {
                TokenKind::Version(..) if version => return mark.error("found duplicate %YAML directive"),
                TokenKind::Version(1, 1) => version = true,
                TokenKind::Version(..) => return mark.error("found incompatible YAML document"),
                TokenKind::TagDirective(handle, prefix) => {
                    let (handle, prefix) = (*handle, prefix.clone());
                    if self.tags.iter().any(|(known, _)| *known == handle) {
                        return mark.error("found duplicate %TAG directive");
                    }
                    self.tags.push((handle, Cow::Owned(prefix)));
                }
                _ => break,
            }
            any = true;
            self.scanner.take();
        }
        for (handle, prefix) in [("!", "!"), ("!!", "tag:yaml.org,2002:")] {
            if !self.tags.iter().any(|(known, _)| *known == handle) {
                self.tags.push((handle, Cow::Borrowed(prefix)));
            }
        }
        Ok(any)
    }

    fn at(&mut self, kind: &TokenKind<'_>) -> Result<bool, Error> {
        Ok(self.scanner.peek()?.kind == *kind)
    }

    /// Takes the next token if it is of that kind.
    fn skip(&mut self, kind: &TokenKind<'_>) -> Result<bool, Error> {
        let found = self.at(kind)?;
        if found {
            self.scanner.take();
        }
        Ok(found)
    }

    fn at_document_boundary(&mut self) -> Result<bool, Error> {
        Ok(matches!(
            self.scanner.peek()?.kind,
            TokenKind::Version(..)
                | TokenKind::TagDirective(..)
                | TokenKind::DocumentStart
                | TokenKind::DocumentEnd
                | TokenKind::StreamEnd
        ))
    }

    fn fail<T>(&mut self, message: &str) -> Result<T, Error> {
        self.scanner.peek()?.mark.error(message)
    }

    fn push(&mut self, kind: Kind<'a>, mark: Mark) -> NodeId {
        self.nodes.push(Node { kind, line: mark.line + 1, column: mark.column + 1 });
        self.nodes.len() - 1
    }

    fn push_empty(&mut self) -> Result<NodeId, Error> {
        let mark = self.scanner.peek()?.mark;
        Ok(self.push(Kind::Scalar { text: Cow::Borrowed(""), plain: true, tag: None }, mark))
    }

    fn node(&mut self, context: Context) -> Result<NodeId, Error> {
        let mut mark = self.scanner.peek()?.mark;
        if let TokenKind::Alias(name) = self.scanner.peek()?.kind {
            self.scanner.take();
            return match self.anchors.get(name) {
                Some(target) => Ok(self.push(Kind::Alias(*target), mark)),
                None => mark.error(format!("unknown anchor '{name}' referenced")),
            };
        }
        let (anchor, tag) = self.properties()?;
        let token = self.scanner.peek()?;
        let collection = match (&token.kind, context) {
            (TokenKind::BlockEntry, Context::BlockOrIndentless)
            | (TokenKind::FlowSequenceStart, _)
            | (TokenKind::BlockSequenceStart, Context::Block | Context::BlockOrIndentless) => {
                Kind::Sequence(Vec::new())
            }
            (TokenKind::FlowMappingStart, _)
            | (TokenKind::BlockMappingStart, Context::Block | Context::BlockOrIndentless) => Kind::Mapping(Vec::new()),
            (TokenKind::Scalar { .. }, _) => {
                let Some(token) = self.scanner.take() else { return mark.error("internal: token lost") };
                let TokenKind::Scalar { text, plain } = token.kind else { return mark.error("internal: token lost") };
                let plain = plain && tag.is_none() || tag.as_deref() == Some("!");
                return Ok(self.push_anchored(Kind::Scalar { text, plain, tag }, token.mark, anchor));
            }
            _ if anchor.is_some() || tag.is_some() => {
                let kind = Kind::Scalar { text: Cow::Borrowed(""), plain: tag.is_none(), tag };
                return Ok(self.push_anchored(kind, mark, anchor));
            }
            _ => return token.mark.error("did not find expected node content"),
        };
        mark = token.mark;
        if self.depth == MAX_DEPTH {
            return mark.error(format!("nested more than {MAX_DEPTH} levels deep"));
        }
        let id = self.push_anchored(collection, mark, anchor);
        self.depth += 1;
        let children = self.children()?;
        self.depth -= 1;
        if let Kind::Sequence(nodes) | Kind::Mapping(nodes) = &mut self.nodes[id].kind {
            *nodes = children;
        }
        Ok(id)
    }

    fn push_anchored(&mut self, kind: Kind<'a>, mark: Mark, anchor: Option<&'a str>) -> NodeId {
        let id = self.push(kind, mark);
        if let Some(anchor) = anchor {
            self.anchors.insert(anchor, id);
        }
        id
    }

    /// Anchor and tag in front of a node, in either order.
    fn properties(&mut self) -> Result<(Option<&'a str>, Option<String>), Error> {
        let (mut anchor, mut tag) = (None, None);
        loop {
            let token = self.scanner.peek()?;
            match &token.kind {
                TokenKind::Anchor(name) if anchor.is_none() => anchor = Some(*name),
                TokenKind::Tag(handle, suffix) if tag.is_none() => {
                    let (handle, mark, mut full) = (*handle, token.mark, suffix.clone());
                    if !handle.is_empty() {
                        match self.tags.iter().find(|(known, _)| *known == handle) {
                            Some((_, prefix)) => full.insert_str(0, prefix),
                            None => return mark.error("found undefined tag handle"),
                        }
                    }
                    tag = Some(full);
                }
                _ => return Ok((anchor, tag)),
            }
            self.scanner.take();
        }
    }

    /// The nodes of the collection that starts with the next token.
    fn children(&mut self) -> Result<Vec<NodeId>, Error> {
        let kind = &self.scanner.peek()?.kind;
        match kind {
            TokenKind::BlockEntry => self.indentless_sequence(),
            TokenKind::BlockSequenceStart => self.block_sequence(),
            TokenKind::FlowSequenceStart => self.flow_sequence(),
            TokenKind::BlockMappingStart => self.block_mapping(),
            _ => self.flow_mapping(),
        }
    }

    fn block_sequence(&mut self) -> Result<Vec<NodeId>, Error> {
        self.scanner.take();
        let mut items = Vec::new();
        while self.skip(&TokenKind::BlockEntry)? {
            items.push(match self.scanner.peek()?.kind {
                TokenKind::BlockEntry | TokenKind::BlockEnd => self.push_empty()?,
                _ => self.node(Context::Block)?,
            });
        }
        if self.skip(&TokenKind::BlockEnd)? { Ok(items) } else { self.fail("did not find expected '-' indicator") }
    }

    fn indentless_sequence(&mut self) -> Result<Vec<NodeId>, Error> {
        let mut items = Vec::new();
        while self.skip(&TokenKind::BlockEntry)? {
            items.push(match self.scanner.peek()?.kind {
                TokenKind::BlockEntry | TokenKind::Key | TokenKind::Value | TokenKind::BlockEnd => self.push_empty()?,
                _ => self.node(Context::Block)?,
            });
        }
        Ok(items)
    }

    fn block_mapping(&mut self) -> Result<Vec<NodeId>, Error> {
        self.scanner.take();
        let mut entries = Vec::new();
        while self.skip(&TokenKind::Key)? {
            entries.push(self.block_mapping_node()?);
            entries.push(if self.skip(&TokenKind::Value)? { self.block_mapping_node()? } else { self.push_empty()? });
        }
        if self.skip(&TokenKind::BlockEnd)? { Ok(entries) } else { self.fail("did not find expected key") }
    }

    fn block_mapping_node(&mut self) -> Result<NodeId, Error> {
        match self.scanner.peek()?.kind {
            TokenKind::Key | TokenKind::Value | TokenKind::BlockEnd => self.push_empty(),
            _ => self.node(Context::BlockOrIndentless),
        }
    }

    fn flow_sequence(&mut self) -> Result<Vec<NodeId>, Error> {
        self.scanner.take();
        let mut items = Vec::new();
        while !self.at(&TokenKind::FlowSequenceEnd)? {
            if !items.is_empty() {
                if !self.skip(&TokenKind::FlowEntry)? {
                    return self.fail("did not find expected ',' or ']'");
                }
                if self.at(&TokenKind::FlowSequenceEnd)? {
                    break;
                }
            }
            items.push(if self.at(&TokenKind::Key)? { self.pair()? } else { self.node(Context::Flow)? });
        }
        self.scanner.take();
        Ok(items)
    }

    /// `[a: b]` is a list that holds a map of one entry.
    fn pair(&mut self) -> Result<NodeId, Error> {
        let mark = self.scanner.peek()?.mark;
        self.scanner.take();
        let id = self.push(Kind::Mapping(Vec::new()), mark);
        let key = match self.scanner.peek()?.kind {
            TokenKind::Value | TokenKind::FlowEntry | TokenKind::FlowSequenceEnd => {
                // As in libyaml, the token is swallowed.
                let empty = self.push_empty()?;
                self.scanner.take();
                empty
            }
            _ => self.node(Context::Flow)?,
        };
        let value = if self.skip(&TokenKind::Value)? {
            match self.scanner.peek()?.kind {
                TokenKind::FlowEntry | TokenKind::FlowSequenceEnd => self.push_empty()?,
                _ => self.node(Context::Flow)?,
            }
        } else {
            self.push_empty()?
        };
        self.nodes[id].kind = Kind::Mapping(vec![key, value]);
        Ok(id)
    }

    fn flow_mapping(&mut self) -> Result<Vec<NodeId>, Error> {
        self.scanner.take();
        let mut entries = Vec::new();
        while !self.at(&TokenKind::FlowMappingEnd)? {
            if !entries.is_empty() {
                if !self.skip(&TokenKind::FlowEntry)? {
                    return self.fail("did not find expected ',' or '}'");
                }
                if self.at(&TokenKind::FlowMappingEnd)? {
                    break;
                }
            }
            if self.skip(&TokenKind::Key)? {
                entries.push(match self.scanner.peek()?.kind {
                    TokenKind::Value | TokenKind::FlowEntry | TokenKind::FlowMappingEnd => self.push_empty()?,
                    _ => self.node(Context::Flow)?,
                });
                let value = self.skip(&TokenKind::Value)?
                    && !matches!(self.scanner.peek()?.kind, TokenKind::FlowEntry | TokenKind::FlowMappingEnd);
                entries.push(if value { self.node(Context::Flow)? } else { self.push_empty()? });
            } else {
                entries.push(self.node(Context::Flow)?);
                entries.push(self.push_empty()?);
            }
        }
        self.scanner.take();
        Ok(entries)
    }
}

/// Whether no refused character begins in these bytes. Those beyond ASCII begin with 0xc2 or 0xef.
fn are_harmless(bytes: &[u8]) -> bool {
    const HARMFUL: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0;
        while byte < 0x20 {
            table[byte] = !matches!(byte, 0x09 | 0x0a | 0x0d);
            byte += 1;
        }
        table[0x7f] = true;
        table[0xc2] = true;
        table[0xef] = true;
        table
    };
    !bytes.iter().any(|byte| HARMFUL[usize::from(*byte)])
}

/// Go refuses control characters anywhere in the text.
fn check_characters(text: &str) -> Result<(), Error> {
    let refused = |c: char| match c {
        '\t' | '\n' | '\r' | '\u{85}' => false,
        '\u{fffe}' | '\u{ffff}' => true,
        _ => c.is_control(),
    };
    if are_harmless(text.as_bytes()) {
        return Ok(());
    }
    let Some(at) = text.find(refused) else { return Ok(()) };
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let code = text[at..].chars().next().map_or(0, u32::from);
    Err(Error::new(line, column, format!("control characters are not allowed (U+{code:04X})")))
}
