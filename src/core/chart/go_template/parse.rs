//! Parses Go's template language, as `text/template/parse` does.

mod number;
mod pipe;

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::super::HelmVersion;
use super::ast::{Body, Branch, File, Node, Pipe, Pos, Slot, Span};
use super::eval::with_stack;
use super::lex::{Lexer, Token};

/// Deeper nesting of blocks and parentheses is refused.
const MAX_DEPTH: usize = 400;

/// Helm refuses larger files: its tree is many times as large as a text.
const MAX_SOURCE: usize = 5 << 20;

/// A syntax error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParseError {
    pub(crate) pos: Pos,
    pub(crate) message: String,
}

type Parsed<T> = Result<T, ParseError>;

/// Parses a file.
pub(crate) fn parse(source: &str) -> Parsed<File> {
    if source.len() > MAX_SOURCE {
        return fail(0, format!("template is larger than {MAX_SOURCE} bytes"));
    }
    let shared: Arc<str> = source.into();
    let mut parser = Parser {
        source,
        shared: shared.clone(),
        at: 0,
        trim: false,
        defines: HashMap::new(),
        depth: 0,
        of_helm_4: None,
    };
    let mut scope = Scope::new();
    let mut nodes = Vec::new();
    let (end, _) = parser.list(&mut scope, &mut nodes, true)?;
    if let Some((pos, word)) = end.keyword() {
        return Err(ParseError { pos, message: format!("unexpected {{{{{word}}}}}") });
    }
    let main = Arc::new(body(&shared, nodes, &scope));
    Ok(File { main, defines: parser.defines, of_helm_4: parser.of_helm_4 })
}

impl File {
    /// Refuses what that Helm does not know.
    pub(crate) fn check(&self, helm: HelmVersion) -> Parsed<()> {
        match self.of_helm_4 {
            Some((pos, name)) if helm == HelmVersion::V3 => fail(pos, format!("function {name:?} not defined")),
            _ => Ok(()),
        }
    }
}

fn body(source: &Arc<str>, nodes: Vec<Node>, scope: &Scope<'_>) -> Body {
    let empty = nodes.iter().all(|node| matches!(node, Node::Text(span) if span.of(source).trim().is_empty()));
    Body { source: source.clone(), nodes, slots: scope.slots, empty }
}

/// The variables that can be seen, and where they live.
struct Scope<'s> {
    /// Where each lives; nowhere what only looks as if it were declared: its value is missing when it is needed.
    visible: Vec<(&'s str, Slot)>,
    slots: usize,
    ranges: usize,
}

impl<'s> Scope<'s> {
    fn new() -> Self {
        Self { visible: vec![("$", Some(0))], slots: 1, ranges: 0 }
    }

    fn find(&self, name: &str) -> Option<Slot> {
        self.visible.iter().rev().find(|(visible, _)| *visible == name).map(|(_, slot)| *slot)
    }

    fn declare(&mut self, name: &'s str) -> Option<u16> {
        let slot = u16::try_from(self.slots).ok()?;
        self.slots += 1;
        self.visible.push((name, Some(slot)));
        Some(slot)
    }

    /// Of a body that was not run its variables are still to be seen in the `else`, as in Go.
    fn left_body(&mut self, declared: usize) {
        self.visible[declared..].iter_mut().for_each(|(_, slot)| *slot = None);
    }
}

/// What ended a list of nodes.
enum End {
    File,
    Block(Pos),
    Else(Pos),
}

impl End {
    fn keyword(&self) -> Option<(Pos, &'static str)> {
        match self {
            Self::File => None,
            Self::Block(pos) => Some((*pos, "end")),
            Self::Else(pos) => Some((*pos, "else")),
        }
    }
}

struct Parser<'s> {
    source: &'s str,
    /// The same, to be kept by what is parsed.
    shared: Arc<str>,
    /// Behind what has been parsed.
    at: usize,
    /// The last action asked for the blanks behind it to be dropped.
    trim: bool,
    defines: HashMap<Arc<str>, Arc<Body>>,
    depth: usize,
    /// The first function of Helm 4 alone.
    of_helm_4: Option<(Pos, &'static str)>,
}

/// The words of one action with one word of look-ahead, spaces included.
struct Words<'s> {
    lexer: Lexer<'s>,
    ahead: SmallVec<[(Pos, Token<'s>); 4]>,
}

impl<'s> Words<'s> {
    fn new(source: &'s str, at: usize) -> Self {
        Self { lexer: Lexer::new(source, at), ahead: SmallVec::new() }
    }

    fn next(&mut self) -> Parsed<(Pos, Token<'s>)> {
        if let Some(word) = self.ahead.pop() {
            return Ok(word);
        }
        self.lexer.next().map_err(|(pos, message)| ParseError { pos, message })
    }

    fn back(&mut self, word: (Pos, Token<'s>)) {
        self.ahead.push(word);
    }

    fn next_word(&mut self) -> Parsed<(Pos, Token<'s>)> {
        loop {
            let word = self.next()?;
            if word.1 != Token::Space {
                return Ok(word);
            }
        }
    }

    fn peek_word(&mut self) -> Parsed<(Pos, Token<'s>)> {
        let word = self.next_word()?;
        self.back(word.clone());
        Ok(word)
    }

    fn peek(&mut self) -> Parsed<(Pos, Token<'s>)> {
        let word = self.next()?;
        self.back(word.clone());
        Ok(word)
    }
}

fn fail<T>(pos: Pos, message: impl Into<String>) -> Parsed<T> {
    Err(ParseError { pos, message: message.into() })
}

fn unexpected<T>(word: &(Pos, Token<'_>), context: &str) -> Parsed<T> {
    fail(word.0, format!("unexpected {} in {context}", word.1))
}

#[allow(clippy::cast_possible_truncation)]
fn pos(at: usize) -> Pos {
    at as Pos
}

const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

impl<'s> Parser<'s> {
    fn deeper(&mut self, at: Pos) -> Parsed<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { fail(at, "template is nested too deeply") } else { Ok(()) }
    }

    /// Parses up to the file's end or an `end` or `else`. Gives back the words behind `else`.
    fn list(&mut self, scope: &mut Scope<'s>, nodes: &mut Vec<Node>, top: bool) -> Parsed<(End, usize)> {
        let source = self.source;
        loop {
            let Some(open) = source[self.at..].find("{{").map(|found| self.at + found) else {
                self.text(nodes, self.at, source.len(), false);
                self.at = source.len();
                return Ok((End::File, self.at));
            };
            let mut start = open + 2;
            let marked =
                source[start..].starts_with('-') && source[start + 1..].starts_with(|c: char| BLANKS.contains(&c));
            self.text(nodes, self.at, open, marked);
            if marked {
                start += 2;
            }
            if source[start..].starts_with("/*") {
                self.comment(source, start)?;
                continue;
            }
            let mut words = Words::new(source, start);
            let word = words.next_word()?;
            if let Token::Identifier(name) = &word.1 {
                match *name {
                    "end" => {
                        self.close(&mut words, "end")?;
                        return Ok((End::Block(word.0), self.at));
                    }
                    "else" => {
                        // What follows decides: `else`, `else if`, `else with`.
                        if let (_, Token::Close { trim }) = words.peek_word()? {
                            words.next_word()?;
                            self.finish(&words, trim);
                        } else {
                            self.at = words.lexer.at();
                            let (at, _) = words.peek_word()?;
                            self.at = at as usize;
                            self.trim = false;
                            return Ok((End::Else(word.0), at as usize));
                        }
                        return Ok((End::Else(word.0), usize::MAX));
                    }
                    "define" if top => {
                        self.define(&mut words, word.0)?;
                        continue;
                    }
                    _ => {}
                }
            }
            words.back(word);
            let node = self.action(scope, &mut words)?;
            nodes.push(node);
        }
    }

    fn text(&mut self, nodes: &mut Vec<Node>, start: usize, end: usize, trim_end: bool) {
        let mut text = &self.source[start..end];
        if std::mem::take(&mut self.trim) {
            text = text.trim_start_matches(BLANKS);
        }
        let start = end - text.len();
        if trim_end {
            text = text.trim_end_matches(BLANKS);
        }
        if !text.is_empty() {
            nodes.push(Node::Text(Span { start: pos(start), end: pos(start + text.len()) }));
        }
    }

    fn comment(&mut self, source: &str, start: usize) -> Parsed<()> {
        let Some(end) = source[start..].find("*/").map(|found| start + found + 2) else {
            return fail(pos(start), "unclosed comment");
        };
        let rest = &source[end..];
        if rest.starts_with("}}") {
            self.at = end + 2;
        } else if rest.starts_with(BLANKS) && rest[1..].starts_with("-}}") {
            self.at = end + 4;
            self.trim = true;
        } else {
            return fail(pos(start), "comment ends before closing delimiter");
        }
        Ok(())
    }

    /// The action is read: go on behind it.
    fn finish(&mut self, words: &Words<'_>, trim: bool) {
        self.at = words.lexer.at();
        self.trim = trim;
    }

    fn close(&mut self, words: &mut Words<'s>, context: &str) -> Parsed<()> {
        match words.next_word()? {
            (_, Token::Close { trim }) => {
                self.finish(words, trim);
                Ok(())
            }
            word => unexpected(&word, context),
        }
    }

    fn define(&mut self, words: &mut Words<'s>, at: Pos) -> Parsed<()> {
        let name = Self::name(words, "define clause")?;
        self.close(words, "define clause")?;
        self.definition(name, at, "define clause")
    }

    /// The body of `define` or `block`, up to its `end`.
    fn definition(&mut self, name: Arc<str>, at: Pos, context: &str) -> Parsed<()> {
        let mut scope = Scope::new();
        let mut nodes = Vec::new();
        self.deeper(at)?;
        match self.list(&mut scope, &mut nodes, false)? {
            (End::Block(_), _) => {}
            // Said where it began: its `end` is what is missing.
            (End::File, _) => return fail(at, "unexpected EOF"),
            (End::Else(pos), _) => return fail(pos, format!("unexpected {{{{else}}}} in {context}")),
        }
        self.depth -= 1;
        let body = body(&self.shared, nodes, &scope);
        match self.defines.get(&name) {
            Some(old) if !old.empty => {
                if !body.empty {
                    return fail(at, format!("multiple definition of template {name:?}"));
                }
            }
            _ => _ = self.defines.insert(name, Arc::new(body)),
        }
        Ok(())
    }

    fn name(words: &mut Words<'s>, context: &str) -> Parsed<Arc<str>> {
        match words.next_word()? {
            (pos, Token::Str(name)) => match std::str::from_utf8(&name) {
                Ok(name) => Ok(name.into()),
                Err(_) => fail(pos, "a template's name must be UTF-8"),
            },
            word => unexpected(&word, context),
        }
    }

    fn action(&mut self, scope: &mut Scope<'s>, words: &mut Words<'s>) -> Parsed<Node> {
        let word = words.next_word()?;
        if let Token::Identifier(name) = &word.1 {
            match *name {
                "if" => return Ok(Node::If(self.control(scope, words, "if", word.0)?)),
                "with" => return Ok(Node::With(self.control(scope, words, "with", word.0)?)),
                "range" => return Ok(Node::Range(self.control(scope, words, "range", word.0)?)),
                "break" | "continue" => {
                    if scope.ranges == 0 {
                        return fail(word.0, format!("{{{{{name}}}}} outside {{{{range}}}}"));
                    }
                    self.close(words, &format!("{{{{{name}}}}}"))?;
                    return Ok(if *name == "break" { Node::Break } else { Node::Continue });
                }
                "template" => {
                    let name = Self::name(words, "template clause")?;
                    let pipe = self.optional_pipe(scope, words, "template clause")?;
                    return Ok(Node::Template { name, pipe, pos: word.0 });
                }
                "block" => {
                    let name = Self::name(words, "block clause")?;
                    let pipe = self.pipe(scope, words, "block clause")?;
                    self.end_of_pipe(words)?;
                    self.definition(name.clone(), word.0, "block clause")?;
                    return Ok(Node::Template { name, pipe: Some(pipe), pos: word.0 });
                }
                _ => {}
            }
        }
        words.back(word);
        let pipe = self.pipe(scope, words, "command")?;
        self.end_of_pipe(words)?;
        Ok(Node::Action(pipe))
    }

    fn optional_pipe(&mut self, scope: &mut Scope<'s>, words: &mut Words<'s>, context: &str) -> Parsed<Option<Pipe>> {
        if let (_, Token::Close { trim }) = words.peek_word()? {
            words.next_word()?;
            self.finish(words, trim);
            return Ok(None);
        }
        let pipe = self.pipe(scope, words, context)?;
        self.end_of_pipe(words)?;
        Ok(Some(pipe))
    }

    fn end_of_pipe(&mut self, words: &mut Words<'s>) -> Parsed<()> {
        self.close(words, "command")
    }

    fn control(&mut self, scope: &mut Scope<'s>, words: &mut Words<'s>, context: &str, at: Pos) -> Parsed<Branch> {
        with_stack(|| self.branch(scope, words, context, at))
    }

    fn branch(&mut self, scope: &mut Scope<'s>, words: &mut Words<'s>, context: &str, at: Pos) -> Parsed<Branch> {
        self.deeper(at)?;
        let visible = scope.visible.len();
        let pipe = self.pipe(scope, words, context)?;
        self.end_of_pipe(words)?;
        let in_range = usize::from(context == "range");
        let declared = scope.visible.len();
        scope.ranges += in_range;
        let mut nodes = Vec::new();
        let mut end = self.list(scope, &mut nodes, false)?;
        scope.ranges -= in_range;
        scope.left_body(declared);
        let mut otherwise = Vec::new();
        if let (End::Else(pos), behind) = end {
            if behind == usize::MAX {
                end = self.list(scope, &mut otherwise, false)?;
            } else {
                // `else if` is an `if` in the `else` that shares its `end`.
                let mut words = Words::new(self.source, behind);
                let word = words.next_word()?;
                match &word.1 {
                    Token::Identifier(name) if *name == context && context != "range" => {
                        let branch = self.control(scope, &mut words, context, pos)?;
                        otherwise.push(if context == "if" { Node::If(branch) } else { Node::With(branch) });
                        end = (End::Block(pos), behind);
                    }
                    _ => return unexpected(&word, "else"),
                }
            }
        }
        match end {
            (End::Block(_), _) => {}
            // Said where it began: its `end` is what is missing.
            (End::File, _) => return fail(at, "unexpected EOF"),
            (End::Else(pos), _) => return fail(pos, "expected end; found {{else}}"),
        }
        scope.visible.truncate(visible);
        self.depth -= 1;
        Ok(Branch { pipe, body: nodes, otherwise })
    }
}
