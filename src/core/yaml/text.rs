//! Scalars in their four styles.

use std::borrow::Cow;

use super::cursor::{Cursor, Mark};
use super::error::Error;
use super::scanner::Scanner;
use super::token::TokenKind;

/// Line ends inside a scalar that isn't a block: one is a space, of more the first doesn't count.
#[derive(Default)]
struct Folded {
    first: &'static str,
    kept: Option<char>,
    others: String,
    any: bool,
}

impl Folded {
    fn add(&mut self, line_end: &str) {
        if self.any {
            self.others.push_str(line_end);
        } else {
            self.any = true;
            // LS and PS aren't folded.
            self.first = if line_end == "\n" { "\n" } else { "" };
            self.kept = line_end.chars().next().filter(|_| line_end != "\n");
        }
    }

    /// Appends what the line ends mean.
    fn flush(&mut self, text: &mut String) {
        if self.first == "\n" && self.others.is_empty() {
            text.push(' ');
        } else {
            text.extend(self.kept);
            text.push_str(&self.others);
        }
        *self = Self::default();
    }
}

impl<'a> Scanner<'a> {
    pub(super) fn scan_plain(&mut self) -> Result<TokenKind<'a>, Error> {
        let flow = self.in_flow();
        let indent = self.indent.map_or(0, |indent| indent + 1);
        let cursor = &mut self.cursor;
        // Finished lines, and where the text of this line begins and ends.
        let mut text = Cow::Borrowed("");
        let (mut from, mut to) = (cursor.at, cursor.at);
        let mut folded = Folded::default();
        while !cursor.at_document_indicator() && cursor.peek() != b'#' {
            while !cursor.is_blank_or_end(0) {
                let byte = cursor.peek();
                if (byte == b':' && cursor.is_blank_or_end(1))
                    || (flow && matches!(byte, b',' | b'?' | b'[' | b']' | b'{' | b'}'))
                {
                    break;
                }
                if folded.any {
                    let text = text.to_mut();
                    text.push_str(&cursor.text[from..to]);
                    folded.flush(text);
                    from = cursor.at;
                }
                cursor.skip();
                cursor.skip_while(is_plain);
                to = cursor.at;
            }
            if !(cursor.at_blank() || cursor.at_break()) {
                break;
            }
            while cursor.at_blank() || cursor.at_break() {
                if cursor.at_break() {
                    folded.add(cursor.take_break());
                } else if folded.any && cursor.mark.column < indent && cursor.peek() == b'\t' {
                    return cursor.mark.error("found a tab character that violates indentation");
                } else {
                    cursor.skip();
                }
            }
            if !flow && cursor.mark.column < indent {
                break;
            }
        }
        let last = &cursor.text[from..to];
        if text.is_empty() {
            text = Cow::Borrowed(last);
        } else {
            text.to_mut().push_str(last);
        }
        if folded.any {
            self.simple_key_allowed = true;
        }
        Ok(TokenKind::Scalar { text, plain: true })
    }

    pub(super) fn scan_quoted(&mut self, quote: u8) -> Result<TokenKind<'a>, Error> {
        let cursor = &mut self.cursor;
        let start = cursor.mark;
        cursor.skip();
        if let Some(text) = simple_quoted(cursor, quote) {
            return Ok(TokenKind::Scalar { text: Cow::Borrowed(text), plain: false });
        }
        let mut text = String::new();
        let mut folded = Folded::default();
        loop {
            if cursor.at_document_indicator() {
                return start.error("found unexpected document indicator in a quoted scalar");
            }
            if cursor.at_end() {
                return start.error("found unexpected end of stream: the quote isn't closed");
            }
            let mut continued = false;
            while !cursor.is_blank_or_end(0) {
                let byte = cursor.peek();
                if quote == b'\'' && byte == b'\'' && cursor.peek_at(1) == b'\'' {
                    text.push('\'');
                    cursor.skip_many(2);
                } else if byte == quote {
                    break;
                } else if quote == b'"' && byte == b'\\' && cursor.break_length(1) > 0 {
                    cursor.skip();
                    cursor.take_break();
                    continued = true;
                    break;
                } else if quote == b'"' && byte == b'\\' {
                    text.push(escaped(cursor, start)?);
                } else {
                    let from = cursor.at;
                    cursor.skip();
                    text.push_str(cursor.since(from));
                }
            }
            if cursor.peek() == quote {
                break;
            }
            let blanks = cursor.at;
            let mut blanks_end = cursor.at;
            folded.any = continued;
            while cursor.at_blank() || cursor.at_break() {
                if cursor.at_break() {
                    folded.add(cursor.take_break());
                } else {
                    cursor.skip();
                    if !folded.any {
                        blanks_end = cursor.at;
                    }
                }
            }
            if folded.any {
                folded.flush(&mut text);
            } else {
                text.push_str(&cursor.text[blanks..blanks_end]);
            }
        }
        cursor.skip();
        Ok(TokenKind::Scalar { text: Cow::Owned(text), plain: false })
    }

    pub(super) fn scan_block(&mut self, literal: bool) -> Result<TokenKind<'a>, Error> {
        let parent = self.indent;
        let cursor = &mut self.cursor;
        let start = cursor.mark;
        cursor.skip();
        let (chomping, increment) = block_header(cursor, start)?;
        let mut indent = increment.map(|increment| parent.unwrap_or(0) + increment);
        let mut text = String::new();
        let mut line_end = "";
        let mut empty_lines = String::new();
        block_breaks(cursor, parent, &mut indent, &mut empty_lines)?;
        let mut after_blank = false;
        while Some(cursor.mark.column) == indent && !cursor.at_end() {
            let blank = cursor.at_blank();
            if !literal && line_end == "\n" && !after_blank && !blank {
                if empty_lines.is_empty() {
                    text.push(' ');
                }
            } else {
                text.push_str(line_end);
            }
            text.push_str(&empty_lines);
            empty_lines.clear();
            after_blank = blank;
            let from = cursor.at;
            cursor.skip_line();
            text.push_str(cursor.since(from));
            line_end = cursor.take_break();
            block_breaks(cursor, parent, &mut indent, &mut empty_lines)?;
        }
        if chomping != Some(b'-') {
            text.push_str(line_end);
        }
        if chomping == Some(b'+') {
            text.push_str(&empty_lines);
        }
        Ok(TokenKind::Scalar { text: Cow::Owned(text), plain: false })
    }
}

/// What can't end a plain scalar, wherever it stands.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b':' | b',' | b'?' | b'[' | b']' | b'{' | b'}')
}

/// A quoted scalar on one line without escapes, its quote closed; otherwise the cursor doesn't move.
fn simple_quoted<'a>(cursor: &mut Cursor<'a>, quote: u8) -> Option<&'a str> {
    let rest = &cursor.text[cursor.at..];
    let end = rest.bytes().position(|byte| byte == quote || matches!(byte, b'\\' | b'\r' | b'\n' | 0xc2 | 0xe2))?;
    let closed = rest.as_bytes()[end] == quote && rest.as_bytes().get(end + 1) != Some(&b'\'');
    if !closed || cursor.at_document_indicator() {
        return None;
    }
    let text = &rest[..end];
    let characters = text.chars().count() + 1;
    cursor.at += end + 1;
    cursor.mark.index += characters;
    cursor.mark.column += characters;
    Some(text)
}

/// What an escape in double quotes means.
fn escaped(cursor: &mut Cursor<'_>, start: Mark) -> Result<char, Error> {
    let (character, digits) = match cursor.peek_at(1) {
        b'0' => ('\0', 0),
        b'a' => ('\u{7}', 0),
        b'b' => ('\u{8}', 0),
        b't' | b'\t' => ('\t', 0),
        b'n' => ('\n', 0),
        b'v' => ('\u{b}', 0),
        b'f' => ('\u{c}', 0),
        b'r' => ('\r', 0),
        b'e' => ('\u{1b}', 0),
        byte @ (b' ' | b'"' | b'\'' | b'\\') => (char::from(byte), 0),
        b'N' => ('\u{85}', 0),
        b'_' => ('\u{a0}', 0),
        b'L' => ('\u{2028}', 0),
        b'P' => ('\u{2029}', 0),
        b'x' => ('x', 2),
        b'u' => ('u', 4),
        b'U' => ('U', 8),
        _ => return start.error("found unknown escape character in a quoted scalar"),
    };
    cursor.skip_many(2);
    if digits == 0 {
        return Ok(character);
    }
    let hexadecimal = cursor.text.get(cursor.at..cursor.at + digits).filter(|digits| {
        // from_str_radix would take a sign.
        digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    });
    let Some(hexadecimal) = hexadecimal else { return start.error("did not find expected hexdecimal number") };
    cursor.skip_many(digits);
    match u32::from_str_radix(hexadecimal, 16).ok().and_then(char::from_u32) {
        Some(character) => Ok(character),
        None => start.error("found invalid Unicode character escape code"),
    }
}

/// The chomping and indentation indicators of a block scalar, in either order, and the rest of that line.
fn block_header(cursor: &mut Cursor<'_>, start: Mark) -> Result<(Option<u8>, Option<usize>), Error> {
    let (mut chomping, mut increment) = (None, None);
    for _ in 0..2 {
        match cursor.peek() {
            sign @ (b'+' | b'-') if chomping.is_none() => chomping = Some(sign),
            b'0' if increment.is_none() => return start.error("found an indentation indicator equal to 0"),
            digit @ b'1'..=b'9' if increment.is_none() => increment = Some(usize::from(digit - b'0')),
            _ => break,
        }
        cursor.skip();
    }
    cursor.skip_blanks();
    cursor.skip_comment();
    if !cursor.at_line_end() {
        return start.error("did not find expected comment or line break after a block scalar's indicators");
    }
    cursor.take_break();
    Ok((chomping, increment))
}

/// Goes over indentation and empty lines in a block scalar. If its indentation isn't known yet, this finds it out.
fn block_breaks(
    cursor: &mut Cursor<'_>,
    parent: Option<usize>,
    indent: &mut Option<usize>,
    empty_lines: &mut String,
) -> Result<(), Error> {
    let mut most = 0;
    loop {
        let indenting = |cursor: &Cursor<'_>| indent.is_none_or(|indent| cursor.mark.column < indent);
        while indenting(cursor) && cursor.peek() == b' ' {
            cursor.skip();
        }
        most = most.max(cursor.mark.column);
        if indenting(cursor) && cursor.peek() == b'\t' {
            return cursor.mark.error("found a tab character where an indentation space is expected");
        }
        if !cursor.at_break() {
            break;
        }
        empty_lines.push_str(cursor.take_break());
    }
    if indent.is_none() {
        *indent = Some(most.max(parent.map_or(0, |parent| parent + 1)).max(1));
    }
    Ok(())
}
