//! Takes a text apart into tokens by the rules of libyaml, which Go's `yaml.v2` follows.
//!
//! Those are YAML 1.1's with leniencies that real charts rely on: a closing bracket or the next line of a quoted
//! scalar may stand at any column. Parsers of YAML 1.2 refuse both.

use std::collections::VecDeque;

use super::cursor::{Cursor, Mark};
use super::error::Error;
use super::node::MAX_DEPTH;
use super::token::{Token, TokenKind};

/// How long a key without `?` may be, in characters.
const MAX_SIMPLE_KEY: usize = 1024;

/// A place where a key may have begun that is known as one only when its `:` is met.
#[derive(Clone, Copy)]
struct SimpleKey {
    /// The number of its first token in the stream.
    token: usize,
    mark: Mark,
    /// Nothing but a key can stand there.
    required: bool,
}

pub(super) struct Scanner<'a> {
    pub(super) cursor: Cursor<'a>,
    tokens: VecDeque<Token<'a>>,
    /// How many tokens have been handed out.
    taken: usize,
    /// The column of the innermost block collection.
    pub(super) indent: Option<usize>,
    indents: Vec<Option<usize>>,
    /// One for the block context and one for each open flow collection.
    simple_keys: Vec<Option<SimpleKey>>,
    pub(super) simple_key_allowed: bool,
    ended: bool,
    /// Whether the first of the tokens is known to be the next one.
    ready: bool,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            cursor: Cursor::new(text),
            tokens: VecDeque::new(),
            taken: 0,
            indent: None,
            indents: Vec::new(),
            simple_keys: vec![None],
            simple_key_allowed: true,
            ended: false,
            ready: false,
        }
    }

    /// The next token, which stays.
    pub(super) fn peek(&mut self) -> Result<&Token<'a>, Error> {
        if self.ready {
            return Ok(&self.tokens[0]);
        }
        while !self.ended && self.needs_more()? {
            self.fetch()?;
        }
        let mark = self.cursor.mark;
        if self.tokens.is_empty() {
            self.tokens.push_back(Token { kind: TokenKind::StreamEnd, mark });
        }
        self.ready = true;
        Ok(&self.tokens[0])
    }

    /// Takes the token that was peeked at.
    pub(super) fn take(&mut self) -> Option<Token<'a>> {
        self.taken += 1;
        self.ready = false;
        self.tokens.pop_front()
    }

    pub(super) fn in_flow(&self) -> bool {
        self.simple_keys.len() > 1
    }

    /// Whether more has to be read before it is known what the next token is: it may turn out to be a key.
    fn needs_more(&mut self) -> Result<bool, Error> {
        if self.tokens.is_empty() {
            return Ok(true);
        }
        let taken = self.taken;
        match self.simple_keys.iter().position(|key| key.is_some_and(|key| key.token == taken)) {
            Some(level) => self.is_key_possible(level),
            None => Ok(false),
        }
    }

    fn is_key_possible(&mut self, level: usize) -> Result<bool, Error> {
        let Some(key) = self.simple_keys[level] else { return Ok(false) };
        if key.mark.line == self.cursor.mark.line && key.mark.index + MAX_SIMPLE_KEY >= self.cursor.mark.index {
            return Ok(true);
        }
        self.remove_simple_key(level)?;
        Ok(false)
    }

    fn save_simple_key(&mut self) -> Result<(), Error> {
        if self.simple_key_allowed {
            let level = self.simple_keys.len() - 1;
            self.remove_simple_key(level)?;
            let mark = self.cursor.mark;
            let required = !self.in_flow() && self.indent == Some(mark.column);
            self.simple_keys[level] = Some(SimpleKey { token: self.taken + self.tokens.len(), mark, required });
        }
        Ok(())
    }

    fn remove_simple_key(&mut self, level: usize) -> Result<(), Error> {
        match self.simple_keys[level].take() {
            Some(key) if key.required => key.mark.error("could not find expected ':'"),
            _ => Ok(()),
        }
    }

    fn remove_current_key(&mut self) -> Result<(), Error> {
        self.remove_simple_key(self.simple_keys.len() - 1)
    }

    fn fetch(&mut self) -> Result<(), Error> {
        self.skip_to_token();
        self.unroll_indent(Some(self.cursor.mark.column));
        let (byte, next_blank) = (self.cursor.peek(), self.cursor.is_blank_or_end(1));
        let flow = self.in_flow();
        if self.cursor.at_end() {
            return self.fetch_stream_end();
        }
        if self.cursor.mark.column == 0 && byte == b'%' {
            return self.fetch_directive();
        }
        if self.cursor.at_document_indicator() {
            let kind = if byte == b'-' { TokenKind::DocumentStart } else { TokenKind::DocumentEnd };
            return self.fetch_document_indicator(kind);
        }
        match byte {
            b'[' => self.fetch_flow_start(TokenKind::FlowSequenceStart),
            b'{' => self.fetch_flow_start(TokenKind::FlowMappingStart),
            b']' => self.fetch_flow_end(TokenKind::FlowSequenceEnd),
            b'}' => self.fetch_flow_end(TokenKind::FlowMappingEnd),
            b',' => {
                self.remove_current_key()?;
                self.simple_key_allowed = true;
                self.push_indicator(TokenKind::FlowEntry);
                Ok(())
            }
            b'-' if next_blank => self.fetch_block_entry(),
            b'?' if flow || next_blank => self.fetch_key(),
            b':' if flow || next_blank => self.fetch_value(),
            b'*' | b'&' | b'!' | b'\'' | b'"' => {
                self.save_simple_key()?;
                self.simple_key_allowed = false;
                let mark = self.cursor.mark;
                let kind = match byte {
                    b'*' | b'&' => self.scan_anchor()?,
                    b'!' => self.scan_tag()?,
                    _ => self.scan_quoted(byte)?,
                };
                self.push(kind, mark);
                Ok(())
            }
            b'|' | b'>' if !flow => {
                self.remove_current_key()?;
                self.simple_key_allowed = true;
                let mark = self.cursor.mark;
                let kind = self.scan_block(byte == b'|')?;
                self.push(kind, mark);
                Ok(())
            }
            b'\t' | b'#' | b'|' | b'>' | b'%' | b'@' | b'`' => {
                let character = char::from(byte);
                self.cursor.mark.error(format!("found character {character:?} that cannot start any token"))
            }
            _ => {
                self.save_simple_key()?;
                self.simple_key_allowed = false;
                let mark = self.cursor.mark;
                let kind = self.scan_plain()?;
                self.push(kind, mark);
                Ok(())
            }
        }
    }

    fn skip_to_token(&mut self) {
        loop {
            self.cursor.skip_while(|byte| byte == b' ');
            while self.cursor.peek() == b' '
                || (self.cursor.peek() == b'\t' && (self.in_flow() || !self.simple_key_allowed))
            {
                self.cursor.skip();
            }
            self.cursor.skip_comment();
            if self.cursor.take_break().is_empty() {
                return;
            }
            if !self.in_flow() {
                self.simple_key_allowed = true;
            }
        }
    }

    fn push(&mut self, kind: TokenKind<'a>, mark: Mark) {
        self.tokens.push_back(Token { kind, mark });
    }

    /// A token of one character.
    fn push_indicator(&mut self, kind: TokenKind<'a>) {
        let mark = self.cursor.mark;
        self.cursor.skip();
        self.push(kind, mark);
    }

    /// Opens a block collection if its column is further to the right than the open ones. Its start goes before the
    /// token with that number, or behind all.
    fn roll_indent(&mut self, mark: Mark, before: Option<usize>, kind: TokenKind<'a>) -> Result<(), Error> {
        if self.in_flow() || self.indent >= Some(mark.column) {
            return Ok(());
        }
        self.indents.push(self.indent);
        self.indent = Some(mark.column);
        if self.indents.len() > MAX_DEPTH {
            return mark.error(format!("nested more than {MAX_DEPTH} levels deep"));
        }
        let at = before.map_or(self.tokens.len(), |token| token.saturating_sub(self.taken));
        self.tokens.insert(at.min(self.tokens.len()), Token { kind, mark });
        Ok(())
    }

    fn unroll_indent(&mut self, column: Option<usize>) {
        while !self.in_flow() && self.indent > column {
            self.push(TokenKind::BlockEnd, self.cursor.mark);
            self.indent = self.indents.pop().flatten();
        }
    }

    fn fetch_stream_end(&mut self) -> Result<(), Error> {
        self.unroll_indent(None);
        self.remove_current_key()?;
        self.push(TokenKind::StreamEnd, self.cursor.mark);
        self.ended = true;
        Ok(())
    }

    fn fetch_directive(&mut self) -> Result<(), Error> {
        self.unroll_indent(None);
        self.remove_current_key()?;
        self.simple_key_allowed = false;
        let mark = self.cursor.mark;
        let kind = self.scan_directive()?;
        self.push(kind, mark);
        Ok(())
    }

    fn fetch_document_indicator(&mut self, kind: TokenKind<'a>) -> Result<(), Error> {
        self.unroll_indent(None);
        self.remove_current_key()?;
        self.simple_key_allowed = false;
        let mark = self.cursor.mark;
        self.cursor.skip_many(3);
        self.push(kind, mark);
        Ok(())
    }

    fn fetch_flow_start(&mut self, kind: TokenKind<'a>) -> Result<(), Error> {
        self.save_simple_key()?;
        self.simple_keys.push(None);
        if self.simple_keys.len() > MAX_DEPTH {
            return self.cursor.mark.error(format!("nested more than {MAX_DEPTH} levels deep"));
        }
        self.simple_key_allowed = true;
        self.push_indicator(kind);
        Ok(())
    }

    fn fetch_flow_end(&mut self, kind: TokenKind<'a>) -> Result<(), Error> {
        self.remove_current_key()?;
        if self.in_flow() {
            self.simple_keys.pop();
        }
        self.simple_key_allowed = false;
        self.push_indicator(kind);
        Ok(())
    }

    fn fetch_block_entry(&mut self) -> Result<(), Error> {
        if !self.in_flow() {
            if !self.simple_key_allowed {
                return self.cursor.mark.error("block sequence entries are not allowed in this context");
            }
            self.roll_indent(self.cursor.mark, None, TokenKind::BlockSequenceStart)?;
        }
        self.remove_current_key()?;
        self.simple_key_allowed = true;
        self.push_indicator(TokenKind::BlockEntry);
        Ok(())
    }

    fn fetch_key(&mut self) -> Result<(), Error> {
        if !self.in_flow() {
            if !self.simple_key_allowed {
                return self.cursor.mark.error("mapping keys are not allowed in this context");
            }
            self.roll_indent(self.cursor.mark, None, TokenKind::BlockMappingStart)?;
        }
        self.remove_current_key()?;
        self.simple_key_allowed = !self.in_flow();
        self.push_indicator(TokenKind::Key);
        Ok(())
    }

    fn fetch_value(&mut self) -> Result<(), Error> {
        let level = self.simple_keys.len() - 1;
        let possible = self.is_key_possible(level)?;
        if let Some(key) = self.simple_keys[level].take().filter(|_| possible) {
            // What was read since the key began belongs to the key.
            let at = key.token.saturating_sub(self.taken).min(self.tokens.len());
            self.tokens.insert(at, Token { kind: TokenKind::Key, mark: key.mark });
            self.roll_indent(key.mark, Some(key.token), TokenKind::BlockMappingStart)?;
            self.simple_key_allowed = false;
        } else {
            if !self.in_flow() {
                if !self.simple_key_allowed {
                    return self.cursor.mark.error("mapping values are not allowed in this context");
                }
                self.roll_indent(self.cursor.mark, None, TokenKind::BlockMappingStart)?;
            }
            self.simple_key_allowed = !self.in_flow();
        }
        self.push_indicator(TokenKind::Value);
        Ok(())
    }
}
