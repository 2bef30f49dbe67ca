//! Writing: the rules of `encode.go` and `emitterc.go` of `go.yaml.in/yaml/v2`, for what JSON can hold.

use serde_json::{Map, Value};

use super::number::yaml_number;
use super::order::{Sorter, sort_by_key};
use super::scalar::{Scalar, is_base_60, resolve};

/// Lines are broken at the first single space behind this column.
const WIDTH: usize = 80;

/// The bytes that `sigs.k8s.io/yaml`'s `Marshal` writes for a value, the last line end included.
///
/// Assumes that the value isn't nested so deeply that `serde_json` itself couldn't drop it.
pub fn to_string(value: &Value) -> String {
    within(WIDTH, false, value)
}

/// As [`to_string`], with no line broken, and tabs in blocks: what the encoder of `yaml.v3` does with a scalar.
pub fn to_string_unfolded(value: &Value) -> String {
    within(usize::MAX, true, value)
}

fn within(width: usize, tabs_in_blocks: bool, value: &Value) -> String {
    let (out, indent) = (String::new(), None);
    let mut emitter = Emitter { out, column: 0, width, tabs_in_blocks, indent, whitespace: true, indention: true };
    emitter.node(value, Place::Root);
    emitter.write_indent();
    emitter.out
}

const SPACES: &str = "                                                                ";

/// Where a node stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    Item,
    /// A value of a map, or a key behind `? `.
    Entry,
    /// A key that is followed by its colon on the same line.
    SimpleKey,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    SingleQuoted,
    DoubleQuoted,
    Literal,
}

struct Emitter {
    out: String,
    /// Characters written on this line.
    column: usize,
    /// Lines are broken behind this column.
    width: usize,
    /// Tabs are as good as what is printed.
    tabs_in_blocks: bool,
    /// `None` before the first collection or scalar.
    indent: Option<usize>,
    /// Whether the last character written separates tokens.
    whitespace: bool,
    /// Whether this line holds nothing but indentation and `-`, `?`, `:` so far.
    indention: bool,
}

impl Emitter {
    fn node(&mut self, value: &Value, place: Place) {
        match value {
            Value::Null => self.plain_scalar("null"),
            Value::Bool(true) => self.plain_scalar("true"),
            Value::Bool(false) => self.plain_scalar("false"),
            Value::Number(number) => self.plain_scalar(&yaml_number(number)),
            Value::String(text) => self.string(text, place),
            Value::Array(items) => self.sequence(items, place),
            Value::Object(entries) => self.mapping(entries),
        }
    }

    fn sequence(&mut self, items: &[Value], place: Place) {
        if items.is_empty() {
            self.indicator("[", true, true, false);
            return self.indicator("]", false, false, false);
        }
        let outer = self.indent;
        // A list under a key isn't indented.
        let under_key = place == Place::Entry && !self.indention;
        self.indent = Some(outer.map_or(0, |indent| if under_key { indent } else { indent + 2 }));
        for item in items {
            self.write_indent();
            self.indicator("-", true, false, true);
            self.node(item, Place::Item);
        }
        self.indent = outer;
    }

    fn mapping(&mut self, entries: &Map<String, Value>) {
        if entries.is_empty() {
            self.indicator("{", true, true, false);
            return self.indicator("}", false, false, false);
        }
        let outer = self.indent;
        self.indent = Some(outer.map_or(0, |indent| indent + 2));
        let mut entries: Vec<_> = entries.iter().collect();
        sort_by_key(&mut entries, Sorter::V2, |(key, _)| key.as_str());
        for (key, value) in entries {
            self.write_indent();
            if key.len() <= 128 && !key.contains(is_break) {
                self.string(key, Place::SimpleKey);
                self.indicator(":", false, false, false);
            } else {
                self.indicator("?", true, false, true);
                self.string(key, Place::Entry);
                self.write_indent();
                self.indicator(":", true, false, true);
            }
            self.node(value, Place::Entry);
        }
        self.indent = outer;
    }

    fn string(&mut self, text: &str, place: Place) {
        let allowed = Allowed::of(text);
        let style = if text.contains('\n') {
            Style::Literal
        } else if resolve(text) == Scalar::String && !is_base_60(text) {
            Style::Plain
        } else {
            Style::DoubleQuoted
        };
        let may_be_block = match allowed.block {
            Block::Yes => true,
            Block::WithTabs => self.tabs_in_blocks,
            Block::No => false,
        };
        let style = match style {
            Style::Plain if allowed.plain => Style::Plain,
            Style::Plain if allowed.single_quoted => Style::SingleQuoted,
            Style::Literal if may_be_block && place != Place::SimpleKey => Style::Literal,
            _ => Style::DoubleQuoted,
        };
        let outer = self.indent;
        self.indent = Some(outer.map_or(2, |indent| indent + 2));
        let fold = place != Place::SimpleKey;
        match style {
            Style::Plain => self.plain(text, fold),
            Style::SingleQuoted => self.single_quoted(text, fold),
            Style::DoubleQuoted => self.double_quoted(text, fold),
            Style::Literal => self.literal(text),
        }
        self.indent = outer;
    }

    fn plain_scalar(&mut self, text: &str) {
        if !self.whitespace {
            self.put(' ');
        }
        self.out.push_str(text);
        self.column += text.len();
        self.whitespace = false;
        self.indention = false;
    }

    /// A scalar without quotes: no line ends in it, no space at its ends.
    fn plain(&mut self, text: &str, fold: bool) {
        if !fold || text.len() + self.column <= self.width {
            if !self.whitespace {
                self.put(' ');
            }
            self.out.push_str(text);
            self.column += text.chars().count();
        } else {
            if !self.whitespace {
                self.put(' ');
            }
            let mut spaces = false;
            for (at, c) in text.char_indices() {
                if c == ' ' && !spaces && self.column > self.width && !text[at + 1..].starts_with(' ') {
                    self.write_indent();
                } else {
                    self.put(c);
                    if c != ' ' {
                        self.indention = false;
                    }
                }
                spaces = c == ' ';
            }
        }
        self.whitespace = false;
        self.indention = false;
    }

    /// Line ends in it can only be carriage returns of other alphabets (NEL, LS, PS).
    fn single_quoted(&mut self, text: &str, fold: bool) {
        self.indicator("'", true, false, false);
        let mut spaces = false;
        let mut breaks = false;
        for (at, c) in text.char_indices() {
            if c == ' ' {
                let inner = at > 0 && at + 1 < text.len();
                if fold && !spaces && self.column > self.width && inner && !text[at + 1..].starts_with(' ') {
                    self.write_indent();
                } else {
                    self.put(c);
                }
                spaces = true;
            } else if is_break(c) {
                self.put_break(c);
                self.indention = true;
                breaks = true;
            } else {
                if breaks {
                    self.write_indent();
                }
                if c == '\'' {
                    self.put(c);
                }
                self.put(c);
                self.indention = false;
                spaces = false;
                breaks = false;
            }
        }
        self.indicator("'", false, false, false);
    }

    fn double_quoted(&mut self, text: &str, fold: bool) {
        self.indicator("\"", true, false, false);
        // A quirk: behind a byte order mark at its start Go escapes everything.
        let escape_all = text.starts_with('\u{feff}');
        let mut spaces = false;
        for (at, c) in text.char_indices() {
            if escape_all || !is_printable(c) || is_break(c) || c == '"' || c == '\\' {
                self.escape(c);
                spaces = false;
            } else if c == ' ' {
                let inner = at > 0 && at + 1 < text.len();
                if fold && !spaces && self.column > self.width && inner {
                    self.write_indent();
                    if text[at + 1..].starts_with(' ') {
                        self.put('\\');
                    }
                } else {
                    self.put(c);
                }
                spaces = true;
            } else {
                self.put(c);
                spaces = false;
            }
        }
        self.indicator("\"", false, false, false);
    }

    fn escape(&mut self, c: char) {
        let code = u32::from(c);
        let escaped = match c {
            '\0' => "\\0".to_owned(),
            '\u{7}' => "\\a".to_owned(),
            '\u{8}' => "\\b".to_owned(),
            '\t' => "\\t".to_owned(),
            '\n' => "\\n".to_owned(),
            '\u{b}' => "\\v".to_owned(),
            '\u{c}' => "\\f".to_owned(),
            '\r' => "\\r".to_owned(),
            '\u{1b}' => "\\e".to_owned(),
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\u{85}' => "\\N".to_owned(),
            '\u{a0}' => "\\_".to_owned(),
            '\u{2028}' => "\\L".to_owned(),
            '\u{2029}' => "\\P".to_owned(),
            _ if code <= 0xff => format!("\\x{code:02X}"),
            _ if code <= 0xffff => format!("\\u{code:04X}"),
            _ => format!("\\U{code:08X}"),
        };
        self.out.push_str(&escaped);
        self.column += escaped.len();
    }

    fn literal(&mut self, text: &str) {
        self.indicator("|", true, false, false);
        if text.starts_with(|c| c == ' ' || is_break(c)) {
            self.indicator("2", false, false, false);
        }
        let mut from_the_end = text.chars().rev();
        match from_the_end.next() {
            Some(last) if is_break(last) => {
                if from_the_end.next().is_none_or(is_break) {
                    self.indicator("+", false, false, false);
                }
            }
            _ => self.indicator("-", false, false, false),
        }
        self.put_break('\n');
        self.indention = true;
        self.whitespace = true;
        let mut breaks = true;
        for c in text.chars() {
            if is_break(c) {
                self.put_break(c);
                self.indention = true;
                breaks = true;
            } else {
                if breaks {
                    self.write_indent();
                }
                self.put(c);
                self.indention = false;
                breaks = false;
            }
        }
    }

    fn put(&mut self, c: char) {
        self.out.push(c);
        self.column += 1;
    }

    fn put_break(&mut self, c: char) {
        self.out.push(c);
        self.column = 0;
    }

    fn write_indent(&mut self) {
        let indent = self.indent.unwrap_or(0);
        if !self.indention || self.column > indent || (self.column == indent && !self.whitespace) {
            self.put_break('\n');
        }
        while self.column < indent {
            let count = (indent - self.column).min(SPACES.len());
            self.out.push_str(&SPACES[..count]);
            self.column += count;
        }
        self.whitespace = true;
        self.indention = true;
    }

    fn indicator(&mut self, text: &str, needs_whitespace: bool, is_whitespace: bool, is_indention: bool) {
        if needs_whitespace && !self.whitespace {
            self.put(' ');
        }
        self.out.push_str(text);
        self.column += text.len();
        self.whitespace = is_whitespace;
        self.indention = self.indention && is_indention;
    }
}

/// The styles that a string may be written in, judged by its characters alone.
#[derive(Clone, Copy)]
struct Allowed {
    plain: bool,
    single_quoted: bool,
    block: Block,
}

/// Whether a string may be a literal block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Yes,
    /// Where tabs are as good as what is printed: to `yaml.v3`.
    WithTabs,
    No,
}

impl Allowed {
    fn of(text: &str) -> Self {
        if is_word(text) {
            return Self { plain: true, single_quoted: true, block: Block::Yes };
        }
        let mut indicators = text.starts_with("---") || text.starts_with("...");
        let (mut line_breaks, mut special, mut break_space, mut space_break) = (false, false, false, false);
        let (mut previous, mut tabs) = (None, false);
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            let before_blank = || rest.clone().next().is_none_or(|next| next == ' ' || next == '\t');
            indicators |= match (c, previous) {
                (
                    '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`',
                    None,
                ) => true,
                ('?' | '-', None) | (':', _) => before_blank(),
                ('#', Some(previous)) => is_blank_or_break(previous),
                _ => false,
            };
            tabs |= c == '\t';
            special |= c != '\t' && !is_printable(c);
            line_breaks |= is_break(c);
            break_space |= c == ' ' && previous.is_some_and(is_break);
            space_break |= is_break(c) && previous == Some(' ');
            previous = Some(c);
        }
        let at_an_end = |test: fn(char) -> bool| text.starts_with(test) || text.ends_with(test);
        let edge = at_an_end(|c| c == ' ' || is_break(c));
        let unquotable = break_space || space_break || special || tabs;
        Self {
            plain: !(indicators || line_breaks || edge || unquotable),
            single_quoted: !unquotable,
            block: match tabs {
                _ if text.is_empty() || text.ends_with(' ') || space_break || special => Block::No,
                true => Block::WithTabs,
                false => Block::Yes,
            },
        }
    }
}

/// Whether a text is one of those that most scalars are: nothing in it could need quotes.
fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/'))
}

fn is_break(c: char) -> bool {
    matches!(c, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_blank_or_break(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\0') || is_break(c)
}

/// What Go writes unescaped: not tabs, and nothing beyond the basic plane (emoji).
fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}')
}
