//! One line of the text log for each event, whatever its fields hold: a chart's `fail` may print line breaks, and with them
//! lines that look like the operator's own.

use std::borrow::Cow;
use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

use crate::core::direction::turns;

/// Writes events to standard error.
pub(super) struct Lines {
    /// Whether it is written in colour, which takes escape sequences; those in fields are made harmless by the subscriber.
    pub(super) colour: bool,
}

/// Writes one event.
pub(super) struct Line {
    colour: bool,
    out: io::Stderr,
}

impl MakeWriter<'_> for Lines {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        Line { colour: self.colour, out: io::stderr() }
    }
}

impl Write for Line {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        self.out.write_all(one_line(&text, self.colour).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// An event with what would break its line, or turn the direction of it, written as an escape.
fn one_line(event: &str, colour: bool) -> Cow<'_, str> {
    let (text, end) = event.strip_suffix('\n').map_or((event, ""), |text| (text, "\n"));
    let ends_line = |c: char| matches!(c, '\u{2028}' | '\u{2029}');
    let steers = |c: char| (c.is_control() && c != '\t' && !(colour && c == '\u{1b}')) || turns(c) || ends_line(c);
    if !text.contains(steers) {
        return Cow::Borrowed(event);
    }
    let mut line = String::with_capacity(event.len() + 16);
    for c in text.chars() {
        if steers(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line.push_str(end);
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        for (event, colour, expected) in [
            ("INFO a\tb\n", false, "INFO a\tb\n"),
            ("WARN fail: x\n2026 INFO all is well\r\n", false, "WARN fail: x\\n2026 INFO all is well\\r\n"),
            ("a\0b\u{202e}c\u{9b}d\n", false, "a\\u{0}b\\u{202e}c\\u{9b}d\n"),
            ("\u{1b}[2mINFO\u{1b}[0m a\nb\n", true, "\u{1b}[2mINFO\u{1b}[0m a\\nb\n"),
            ("\u{1b}[2mINFO\n", false, "\\u{1b}[2mINFO\n"),
            ("a\u{2028}b\u{2029}c\n", false, "a\\u{2028}b\\u{2029}c\n"),
            ("no end", false, "no end"),
            ("", false, ""),
        ] {
            assert_eq!(one_line(event, colour), expected);
        }
    }
}
