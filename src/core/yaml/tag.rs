//! Anchors, tags and directives.

use super::cursor::{Cursor, Mark};
use super::error::Error;
use super::scanner::Scanner;
use super::token::TokenKind;

impl<'a> Scanner<'a> {
    pub(super) fn scan_anchor(&mut self) -> Result<TokenKind<'a>, Error> {
        let cursor = &mut self.cursor;
        let (start, alias) = (cursor.mark, cursor.peek() == b'*');
        cursor.skip();
        let name = word(cursor);
        let followed = matches!(cursor.peek(), b'?' | b':' | b',' | b']' | b'}' | b'%' | b'@' | b'`');
        if name.is_empty() || !(followed || cursor.is_blank_or_end(0)) {
            return start.error("did not find expected alphabetic or numeric character in the name of an anchor");
        }
        Ok(if alias { TokenKind::Alias(name) } else { TokenKind::Anchor(name) })
    }

    pub(super) fn scan_tag(&mut self) -> Result<TokenKind<'a>, Error> {
        let cursor = &mut self.cursor;
        let start = cursor.mark;
        let (handle, suffix) = if cursor.peek_at(1) == b'<' {
            cursor.skip_many(2);
            let suffix = tag_uri(cursor, "", start)?;
            if suffix.is_empty() {
                return start.error("did not find expected tag URI");
            }
            if cursor.peek() != b'>' {
                return start.error("did not find the expected '>'");
            }
            cursor.skip();
            ("", suffix)
        } else {
            let handle = tag_handle(cursor);
            if handle.len() > 1 && handle.ends_with('!') {
                let suffix = tag_uri(cursor, "", start)?;
                if suffix.is_empty() {
                    return start.error("did not find expected tag URI");
                }
                (handle, suffix)
            } else {
                let suffix = tag_uri(cursor, &handle[1..], start)?;
                if suffix.is_empty() { ("", "!".to_owned()) } else { ("!", suffix) }
            }
        };
        if !cursor.is_blank_or_end(0) {
            return start.error("did not find expected whitespace or line break after a tag");
        }
        Ok(TokenKind::Tag(handle, suffix))
    }

    pub(super) fn scan_directive(&mut self) -> Result<TokenKind<'a>, Error> {
        let cursor = &mut self.cursor;
        let start = cursor.mark;
        cursor.skip();
        let kind = match word(cursor) {
            "YAML" => {
                cursor.skip_blanks();
                let major = version_number(cursor, start)?;
                if cursor.peek() != b'.' {
                    return start.error("did not find expected digit or '.' character in a version");
                }
                cursor.skip();
                TokenKind::Version(major, version_number(cursor, start)?)
            }
            "TAG" => {
                cursor.skip_blanks();
                if cursor.peek() != b'!' {
                    return start.error("did not find expected '!'");
                }
                let handle = tag_handle(cursor);
                if handle != "!" && (handle.len() == 1 || !handle.ends_with('!')) {
                    return start.error("did not find expected '!'");
                }
                if !cursor.at_blank() {
                    return start.error("did not find expected whitespace");
                }
                cursor.skip_blanks();
                let prefix = tag_uri(cursor, "", start)?;
                if prefix.is_empty() {
                    return start.error("did not find expected tag URI");
                }
                TokenKind::TagDirective(handle, prefix)
            }
            "" => return start.error("could not find expected directive name"),
            _ => return start.error("found unknown directive name"),
        };
        if !cursor.is_blank_or_end(0) {
            return start.error("did not find expected whitespace or line break");
        }
        cursor.skip_blanks();
        cursor.skip_comment();
        if !cursor.at_line_end() {
            return start.error("did not find expected comment or line break");
        }
        cursor.take_break();
        Ok(kind)
    }
}

/// Letters, digits, `_` and `-`.
fn word<'a>(cursor: &mut Cursor<'a>) -> &'a str {
    let from = cursor.at;
    while is_word(cursor.peek()) {
        cursor.skip();
    }
    cursor.since(from)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// `!`, `!!`, `!name!` or the beginning of a tag without a handle.
fn tag_handle<'a>(cursor: &mut Cursor<'a>) -> &'a str {
    let from = cursor.at;
    cursor.skip();
    word(cursor);
    if cursor.peek() == b'!' {
        cursor.skip();
    }
    cursor.since(from)
}

/// The URI of a tag, `%` escapes decoded.
fn tag_uri(cursor: &mut Cursor<'_>, head: &str, start: Mark) -> Result<String, Error> {
    let mut uri = head.as_bytes().to_vec();
    loop {
        match cursor.peek() {
            b'%' => {
                let digits = cursor.text.get(cursor.at + 1..cursor.at + 3);
                let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
                let octet = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                let Some(octet) = octet else { return start.error("did not find URI escaped octet") };
                uri.push(octet);
                cursor.skip_many(3);
            }
            b';' | b'/' | b'?' | b':' | b'@' | b'&' | b'=' | b'+' | b'$' | b',' | b'.' | b'!' | b'~' | b'*' | b'\''
            | b'(' | b')' | b'[' | b']' => {
                uri.push(cursor.peek());
                cursor.skip();
            }
            byte if is_word(byte) => {
                uri.push(byte);
                cursor.skip();
            }
            _ => break,
        }
    }
    match String::from_utf8(uri) {
        Ok(uri) => Ok(uri),
        Err(_) => start.error("found an incorrect UTF-8 octet"),
    }
}

fn version_number(cursor: &mut Cursor<'_>, start: Mark) -> Result<u32, Error> {
    let from = cursor.at;
    while cursor.peek().is_ascii_digit() {
        cursor.skip();
    }
    match cursor.since(from) {
        "" => start.error("did not find expected version number"),
        digits if digits.len() > 2 => start.error("found extremely long version number"),
        digits => Ok(digits.parse().unwrap_or(0)),
    }
}
