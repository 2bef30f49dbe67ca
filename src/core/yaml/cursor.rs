//! A place in a text, and what stands there.

use super::error::Error;

/// A place: how many characters came before it, the line and the column, all counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) index: usize,
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Mark {
    /// An error at this place.
    pub(super) fn error<T>(self, message: impl Into<String>) -> Result<T, Error> {
        Err(Error::new(self.line + 1, self.column + 1, message))
    }
}

fn is_printable_ascii(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// Goes through a text character by character. Behind its end stands `'\0'`, which no YAML text contains.
pub(super) struct Cursor<'a> {
    pub(super) text: &'a str,
    /// Where the cursor stands, in bytes.
    pub(super) at: usize,
    pub(super) mark: Mark,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, mark: Mark { index: 0, line: 0, column: 0 } }
    }

    pub(super) fn peek(&self) -> u8 {
        self.peek_at(0)
    }

    /// The byte that many bytes ahead.
    pub(super) fn peek_at(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    pub(super) fn at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    pub(super) fn at_blank(&self) -> bool {
        matches!(self.peek(), b' ' | b'\t')
    }

    pub(super) fn at_break(&self) -> bool {
        self.break_length(0) > 0
    }

    /// Whether a space, a tab, a line end or the end of the text is that many bytes ahead.
    pub(super) fn is_blank_or_end(&self, ahead: usize) -> bool {
        matches!(self.peek_at(ahead), b' ' | b'\t' | 0) || self.break_length(ahead) > 0
    }

    /// Whether a line end or the end of the text is here.
    pub(super) fn at_line_end(&self) -> bool {
        self.peek() == 0 || self.at_break()
    }

    /// How many bytes the line end takes that stands that many bytes ahead; 0 if none does. YAML 1.1 has more of them
    /// than one would think: NEL, LS and PS.
    pub(super) fn break_length(&self, ahead: usize) -> usize {
        match self.peek_at(ahead) {
            b'\r' if self.peek_at(ahead + 1) == b'\n' => 2,
            b'\r' | b'\n' => 1,
            0xc2 if self.peek_at(ahead + 1) == 0x85 => 2,
            0xe2 if self.peek_at(ahead + 1) == 0x80 && matches!(self.peek_at(ahead + 2), 0xa8 | 0xa9) => 3,
            _ => 0,
        }
    }

    /// Whether a line starts here with `---` or `...`.
    pub(super) fn at_document_indicator(&self) -> bool {
        self.mark.column == 0
            && matches!(self.text.as_bytes().get(self.at..self.at + 3), Some(b"---" | b"..."))
            && self.is_blank_or_end(3)
    }

    /// Goes over one character that is no line end.
    pub(super) fn skip(&mut self) {
        let length = match self.peek() {
            _ if self.at_end() => return,
            0..0xc0 => 1,
            0xc0..0xe0 => 2,
            0xe0..0xf0 => 3,
            _ => 4,
        };
        self.at += length;
        self.mark.index += 1;
        self.mark.column += 1;
    }

    /// [`skip`](Self::skip), as often as that.
    pub(super) fn skip_many(&mut self, count: usize) {
        for _ in 0..count {
            self.skip();
        }
    }

    /// Goes over ASCII characters that pass the test and are no line ends.
    pub(super) fn skip_while(&mut self, test: impl Fn(u8) -> bool) {
        let rest = &self.text.as_bytes()[self.at..];
        let count = rest.iter().position(|byte| !test(*byte)).unwrap_or(rest.len());
        self.at += count;
        self.mark.index += count;
        self.mark.column += count;
    }

    /// Goes over spaces and tabs.
    pub(super) fn skip_blanks(&mut self) {
        while self.at_blank() {
            self.skip();
        }
    }

    /// Goes over a comment, if one is here, up to the end of the line.
    pub(super) fn skip_comment(&mut self) {
        if self.peek() == b'#' {
            self.skip_line();
        }
    }

    /// Goes to the end of the line.
    pub(super) fn skip_line(&mut self) {
        self.skip_while(is_printable_ascii);
        while !self.at_line_end() {
            self.skip();
            self.skip_while(is_printable_ascii);
        }
    }

    /// Goes over a line end, if one is here, and gives what it means in a scalar.
    pub(super) fn take_break(&mut self) -> &'a str {
        let length = self.break_length(0);
        if length == 0 {
            return "";
        }
        let written = &self.text[self.at..self.at + length];
        self.at += length;
        self.mark.index += written.chars().count();
        self.mark.column = 0;
        self.mark.line += 1;
        if length == 3 { written } else { "\n" }
    }

    /// What stands between a place passed before, in bytes, and here.
    pub(super) fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or_default()
    }
}
