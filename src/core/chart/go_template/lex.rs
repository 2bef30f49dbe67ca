//! Words of Go's templates.

use std::borrow::Cow;

use super::ast::Pos;

/// A word inside `{{ }}`, a part of the source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token<'s> {
    Space,
    /// End of the action; with a trim marker, the text that follows loses its leading blanks.
    Close {
        trim: bool,
    },
    /// `.name`
    Field(&'s str),
    /// `$name`, its sign included
    Variable(&'s str),
    Identifier(&'s str),
    Dot,
    Nil,
    Bool(bool),
    Number(&'s str),
    Char(&'s str),
    Str(Cow<'s, [u8]>),
    Pipe,
    Comma,
    Declare,
    Assign,
    OpenParen,
    CloseParen,
}

impl std::fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Space => f.write_str("space"),
            Self::Close { .. } => f.write_str("\"}}\""),
            Self::Field(name) => write!(f, "<.{name}>"),
            Self::Variable(name) | Self::Identifier(name) => write!(f, "<{name}>"),
            Self::Dot => f.write_str("<.>"),
            Self::Nil => f.write_str("<nil>"),
            Self::Bool(value) => write!(f, "<{value}>"),
            Self::Number(text) | Self::Char(text) => write!(f, "\"{text}\""),
            Self::Str(bytes) => write!(f, "{:?}", String::from_utf8_lossy(bytes)),
            Self::Pipe => f.write_str("\"|\""),
            Self::Comma => f.write_str("\",\""),
            Self::Declare => f.write_str("\":=\""),
            Self::Assign => f.write_str("\"=\""),
            Self::OpenParen => f.write_str("\"(\""),
            Self::CloseParen => f.write_str("\")\""),
        }
    }
}

/// A syntax error and where it is.
pub(crate) type LexError = (Pos, String);

/// Reads the words of one action; `at` is behind the opening `{{` and its trim marker.
pub(crate) struct Lexer<'s> {
    source: &'s str,
    at: usize,
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn is_alphanumeric(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

impl<'s> Lexer<'s> {
    pub(crate) fn new(source: &'s str, at: usize) -> Self {
        Self { source, at }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn pos(&self) -> Pos {
        self.at as Pos
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T, LexError> {
        Err((self.pos(), message.into()))
    }

    /// Whether `{{`'s or `}}`'s neighbour is a trim marker: `- ` and ` -`.
    fn closing(&self) -> Option<bool> {
        let rest = self.rest().as_bytes();
        if rest.starts_with(b"}}") {
            return Some(false);
        }
        (rest.len() >= 4 && is_space(rest[0]) && &rest[1..4] == b"-}}").then_some(true)
    }

    /// The next word and where it starts.
    pub(crate) fn next(&mut self) -> Result<(Pos, Token<'s>), LexError> {
        let pos = self.pos();
        if let Some(trim) = self.closing() {
            self.at += if trim { 4 } else { 2 };
            return Ok((pos, Token::Close { trim }));
        }
        let Some(c) = self.peek() else { return self.error("unclosed action") };
        let single = |lexer: &mut Self, token| {
            lexer.at += 1;
            Ok((pos, token))
        };
        match c {
            ' ' | '\t' | '\r' | '\n' => {
                while self.closing().is_none() && self.rest().bytes().next().is_some_and(is_space) {
                    self.at += 1;
                }
                Ok((pos, Token::Space))
            }
            '=' => single(self, Token::Assign),
            ':' => {
                if !self.rest().starts_with(":=") {
                    return self.error("expected :=");
                }
                self.at += 2;
                Ok((pos, Token::Declare))
            }
            '|' => single(self, Token::Pipe),
            ',' => single(self, Token::Comma),
            '(' => single(self, Token::OpenParen),
            ')' => single(self, Token::CloseParen),
            '"' => Ok((pos, Token::Str(self.quoted()?))),
            '`' => Ok((pos, Token::Str(self.raw()?))),
            '\'' => Ok((pos, Token::Char(self.character()?))),
            '$' => {
                let start = self.at;
                self.at += 1;
                self.name();
                self.terminated()?;
                Ok((pos, Token::Variable(&self.source[start..self.at])))
            }
            '.' if !self.rest()[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                self.at += 1;
                let name = self.name();
                self.terminated()?;
                Ok((pos, if name.is_empty() { Token::Dot } else { Token::Field(name) }))
            }
            '.' | '+' | '-' | '0'..='9' => Ok((pos, Token::Number(self.number()?))),
            c if is_alphanumeric(c) => {
                let word = self.name();
                self.terminated()?;
                let token = match word {
                    "true" => Token::Bool(true),
                    "false" => Token::Bool(false),
                    "nil" => Token::Nil,
                    _ => Token::Identifier(word),
                };
                Ok((pos, token))
            }
            c => self.error(format!("unexpected bad character {} in action", unicode(c))),
        }
    }

    fn name(&mut self) -> &'s str {
        let rest = self.rest();
        let end = rest.find(|c| !is_alphanumeric(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// A name must be followed by something that can end it.
    fn terminated(&self) -> Result<(), LexError> {
        match self.peek() {
            None | Some(' ' | '\t' | '\r' | '\n' | '.' | ',' | '|' | ':' | ')' | '(') => Ok(()),
            _ if self.rest().starts_with("}}") => Ok(()),
            Some(c) => self.error(format!("bad character {}", unicode(c))),
        }
    }

    fn number(&mut self) -> Result<&'s str, LexError> {
        let start = self.at;
        let bytes = self.source.as_bytes();
        let accept = |at: &mut usize, set: &[u8]| -> bool {
            let found = bytes.get(*at).is_some_and(|byte| set.contains(byte));
            *at += usize::from(found);
            found
        };
        let run = |at: &mut usize, set: &[u8]| while accept(at, set) {};
        let at = &mut self.at;
        accept(at, b"+-");
        let mut digits: &[u8] = b"0123456789_";
        if accept(at, b"0") {
            if accept(at, b"xX") {
                digits = b"0123456789abcdefABCDEF_";
            } else if accept(at, b"oO") {
                digits = b"01234567_";
            } else if accept(at, b"bB") {
                digits = b"01_";
            }
        }
        run(at, digits);
        if accept(at, b".") {
            run(at, digits);
        }
        if digits.len() == 11 && accept(at, b"eE") {
            accept(at, b"+-");
            run(at, b"0123456789_");
        }
        if digits.len() == 23 && accept(at, b"pP") {
            accept(at, b"+-");
            run(at, b"0123456789_");
        }
        accept(at, b"i");
        if self.peek().is_some_and(is_alphanumeric) {
            let end = self.rest().find(|c| !is_alphanumeric(c)).unwrap_or(self.rest().len());
            let text = &self.source[start..self.at + end];
            self.at = start;
            return self.error(format!("bad number syntax: {text:?}"));
        }
        Ok(&self.source[start..self.at])
    }

    fn raw(&mut self) -> Result<Cow<'s, [u8]>, LexError> {
        let Some(end) = self.rest()[1..].find('`') else { return self.error("unterminated raw quoted string") };
        let text = &self.rest()[1..=end];
        self.at += end + 2;
        // Go leaves carriage returns out of them.
        Ok(if text.contains('\r') { text.replace('\r', "").into_bytes().into() } else { text.as_bytes().into() })
    }

    fn quoted(&mut self) -> Result<Cow<'s, [u8]>, LexError> {
        let start = self.at;
        let bytes = self.source.as_bytes();
        let mut at = start + 1;
        while bytes.get(at).is_some_and(|byte| !matches!(byte, b'\n' | b'"' | b'\\')) {
            at += 1;
        }
        let plain = &bytes[start + 1..at];
        if bytes.get(at) == Some(&b'"') {
            self.at = at + 1;
            return Ok(plain.into());
        }
        let mut out = plain.to_vec();
        loop {
            match bytes.get(at) {
                None | Some(b'\n') => return self.error("unterminated quoted string"),
                Some(b'"') => {
                    self.at = at + 1;
                    return Ok(out.into());
                }
                Some(b'\\') => match escape(&self.source[at..], b'"') {
                    Some((decoded, length)) => {
                        decoded.append_to(&mut out);
                        at += length;
                    }
                    None => return self.error("invalid syntax"),
                },
                Some(byte) => {
                    out.push(*byte);
                    at += 1;
                }
            }
        }
    }

    /// The text of a character constant, quotes included; its meaning is found later.
    fn character(&mut self) -> Result<&'s str, LexError> {
        let bytes = self.source.as_bytes();
        let start = self.at;
        let mut at = start + 1;
        loop {
            match bytes.get(at) {
                None | Some(b'\n') => return self.error("unterminated character constant"),
                Some(b'\'') => {
                    self.at = at + 1;
                    return Ok(&self.source[start..self.at]);
                }
                Some(b'\\') => at += 2,
                Some(_) => at += 1,
            }
        }
    }
}

/// `U+0021 '!'`
fn unicode(c: char) -> String {
    format!("U+{:04X} '{c}'", c as u32)
}

/// What an escape sequence stands for.
pub(crate) enum Escaped {
    Byte(u8),
    Char(char),
}

impl Escaped {
    fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Self::Byte(byte) => out.push(*byte),
            Self::Char(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Decodes the escape sequence that `text` starts with, and its length.
pub(crate) fn escape(text: &str, quote: u8) -> Option<(Escaped, usize)> {
    let bytes = text.as_bytes();
    let hex = |length: usize| -> Option<(Escaped, usize)> {
        let digits = text.get(2..2 + length)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let code = u32::from_str_radix(digits, 16).ok()?;
        let decoded = match (length, u8::try_from(code)) {
            (2, Ok(byte)) => Escaped::Byte(byte),
            _ => Escaped::Char(char::from_u32(code)?),
        };
        Some((decoded, 2 + length))
    };
    let byte = |byte| Some((Escaped::Byte(byte), 2));
    match *bytes.get(1)? {
        b'a' => byte(7),
        b'b' => byte(8),
        b'f' => byte(12),
        b'n' => byte(b'\n'),
        b'r' => byte(b'\r'),
        b't' => byte(b'\t'),
        b'v' => byte(11),
        b'\\' => byte(b'\\'),
        other if other == quote => byte(quote),
        b'x' => hex(2),
        b'u' => hex(4),
        b'U' => hex(8),
        b'0'..=b'7' => {
            let digits = text.get(1..4)?;
            let code = u16::from_str_radix(digits, 8).ok()?;
            Some((Escaped::Byte(u8::try_from(code).ok()?), 4))
        }
        _ => None,
    }
}
