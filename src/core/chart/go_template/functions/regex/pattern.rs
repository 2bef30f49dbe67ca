//! Patterns as Go's `regexp/syntax` reads them (flags `Perl`), written down as the `regex` crate reads them.
//!
//! What means something else there is written as characters by number: set operations in classes, `\<`, `\u`, a minus
//! behind a class. Classes `\d \w \s \b` are ASCII's in Go.

use std::fmt;
use std::iter;

use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// Longest repetition that Go takes.
const MAX_REPEAT: u32 = 1000;

/// Why Go refuses a pattern: its words, and the part that is meant.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    why: &'static str,
    part: String,
}

impl Refused {
    fn new(why: &'static str, part: &str) -> Self {
        Self { why, part: part.to_owned() }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`", self.why, self.part)
    }
}

const BAD_ESCAPE: &str = "invalid escape sequence";
const BAD_RANGE: &str = "invalid character class range";
const NO_ARGUMENT: &str = "missing argument to repetition operator";

/// What a repetition would repeat.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Nothing,
    Item,
    /// A repetition, which begins there.
    Repetition(usize),
}

/// Writes a pattern anew.
///
/// # Errors
/// Go refuses it. What it refuses for the size of what it means is not looked at.
pub(super) fn translate(pattern: &str) -> Result<String, Refused> {
    let out = String::with_capacity(pattern.len() + 16);
    let mut reader = Reader { pattern, at: 0, out, last: Last::Nothing, names: Vec::new() };
    let mut open = 0_usize;
    while let Some(c) = reader.peek() {
        match c {
            '(' => open += usize::from(reader.group()?),
            ')' => {
                open = open.checked_sub(1).ok_or_else(|| Refused::new("unexpected )", pattern))?;
                reader.copy(Last::Item);
            }
            '|' => reader.copy(Last::Nothing),
            '^' | '$' | '.' => reader.copy(Last::Item),
            '[' => reader.class()?,
            '*' | '+' | '?' => reader.repeat(1)?,
            '{' => match repetition(reader.rest()) {
                Some((length, is_valid)) if is_valid => reader.repeat(length)?,
                Some((length, _)) => return Err(Refused::new("invalid repeat count", &reader.rest()[..length])),
                None => reader.literal(),
            },
            '\\' => reader.escape()?,
            _ => reader.literal(),
        }
    }
    if open > 0 { Err(Refused::new("missing closing )", pattern)) } else { Ok(reader.out) }
}

/// Writes a pattern anew with nothing but what ECMA-262 and the `regex` crate read alike. `None` where it can't be done: a
/// line's begin and end in a text of many lines.
pub(crate) fn portable(pattern: &str) -> Option<String> {
    let translated = translate(pattern).ok()?;
    let mut out = String::new();
    write(&regex_syntax::parse(&translated).ok()?, &mut out)?;
    Some(out)
}

fn write(hir: &Hir, out: &mut String) -> Option<()> {
    match hir.kind() {
        HirKind::Empty => out.push_str("(?:)"),
        HirKind::Literal(literal) => {
            for c in str::from_utf8(&literal.0).ok()?.chars() {
                out.push_str(&escaped(c));
            }
        }
        HirKind::Class(Class::Unicode(class)) if class.ranges().is_empty() => out.push_str(r"[^\s\S]"),
        HirKind::Class(Class::Unicode(class)) => {
            out.push('[');
            for range in class.ranges() {
                out.push_str(&escaped(range.start()));
                if range.start() < range.end() {
                    out.push('-');
                    out.push_str(&escaped(range.end()));
                }
            }
            out.push(']');
        }
        HirKind::Look(Look::Start) => out.push('^'),
        HirKind::Look(Look::End) => out.push('$'),
        HirKind::Look(Look::WordAscii) => out.push_str(r"\b"),
        HirKind::Look(Look::WordAsciiNegate) => out.push_str(r"\B"),
        HirKind::Class(Class::Bytes(_)) | HirKind::Look(_) => return None,
        HirKind::Repetition(repeated) => {
            out.push_str("(?:");
            write(&repeated.sub, out)?;
            let most = repeated.max.map(|most| most.to_string()).unwrap_or_default();
            let lazy = if repeated.greedy { "" } else { "?" };
            out.extend([")", "{", &repeated.min.to_string(), ",", &most, "}", lazy]);
        }
        HirKind::Capture(capture) => {
            out.push('(');
            write(&capture.sub, out)?;
            out.push(')');
        }
        HirKind::Concat(parts) => parts.iter().try_for_each(|part| write(part, out))?,
        HirKind::Alternation(parts) => {
            out.push_str("(?:");
            for (at, part) in parts.iter().enumerate() {
                out.push_str(if at > 0 { "|" } else { "" });
                write(part, out)?;
            }
            out.push(')');
        }
    }
    Some(())
}

fn escaped(c: char) -> String {
    if c.is_ascii_punctuation() { format!("\\{c}") } else { c.to_string() }
}

struct Reader<'a> {
    pattern: &'a str,
    at: usize,
    out: String,
    last: Last,
    names: Vec<&'a str>,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.pattern[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    fn copy(&mut self, last: Last) {
        let c = self.next();
        self.out.extend(c);
        self.last = last;
    }

    fn literal(&mut self) {
        if let Some(c) = self.next() {
            self.push(c);
        }
    }

    fn push(&mut self, c: char) {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            self.out.push('\\');
        }
        self.out.push(c);
        self.last = Last::Item;
    }

    /// Reads `(` and what kind of group it begins; `false` where it only sets flags.
    fn group(&mut self) -> Result<bool, Refused> {
        let start = self.at;
        self.at += 1;
        if !self.take("?") {
            self.out.push('(');
            self.last = Last::Nothing;
            return Ok(true);
        }
        if self.take("P<") || self.take("<") {
            let end = self.rest().find('>').map(|end| self.at + end);
            let end = end.ok_or_else(|| Refused::new("invalid named capture", &self.pattern[start..]))?;
            let name = &self.pattern[self.at..end];
            if name.is_empty() || !name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()) {
                return Err(Refused::new("invalid named capture", &self.pattern[start..=end]));
            }
            self.at = end + 1;
            self.last = Last::Nothing;
            // The crate takes a name once, and none that begins with a digit.
            if name.starts_with(|c: char| c.is_ascii_digit()) || self.names.contains(&name) {
                self.out.push('(');
            } else {
                self.names.push(name);
                self.out.extend(["(?P<", name, ">"]);
            }
            return Ok(true);
        }
        let (mut set, mut unset, mut is_minus) = (String::new(), String::new(), false);
        loop {
            let flags = if is_minus { &mut unset } else { &mut set };
            match self.next() {
                Some(flag @ ('i' | 'm' | 's' | 'U')) => {
                    if !flags.contains(flag) {
                        flags.push(flag);
                    }
                }
                Some('-') if !is_minus => is_minus = true,
                Some(end @ (':' | ')')) if !is_minus || !unset.is_empty() => {
                    set.retain(|flag| !unset.contains(flag));
                    let minus = if is_minus { "-" } else { "" };
                    if end == ':' || !set.is_empty() || is_minus {
                        self.out.extend(["(?", &set, minus, &unset]);
                        self.out.push(end);
                    }
                    if end == ':' {
                        self.last = Last::Nothing;
                    } else if self.last != Last::Nothing {
                        self.last = Last::Item;
                    }
                    return Ok(end == ':');
                }
                None => return Err(Refused::new("missing closing )", self.pattern)),
                Some(_) => {
                    return Err(Refused::new("invalid or unsupported Perl syntax", &self.pattern[start..self.at]));
                }
            }
        }
    }

    /// Reads a repetition of so many bytes, and the `?` behind it.
    fn repeat(&mut self, length: usize) -> Result<(), Refused> {
        let start = self.at;
        let operator = &self.rest()[..length];
        self.at += length;
        self.out.push_str(operator);
        if self.take("?") {
            self.out.push('?');
        }
        match self.last {
            Last::Nothing => Err(Refused::new(NO_ARGUMENT, &self.pattern[start..self.at])),
            Last::Repetition(first) => {
                Err(Refused::new("invalid nested repetition operator", &self.pattern[first..self.at]))
            }
            Last::Item => {
                self.last = Last::Repetition(start);
                Ok(())
            }
        }
    }

    fn escape(&mut self) -> Result<(), Refused> {
        let start = self.at;
        self.at += 1;
        let written = match self.peek() {
            Some('A') => r"\A",
            Some('z') => r"\z",
            Some('b') => r"(?-u:\b)",
            Some('B') => r"(?-u:\B)",
            // Whatever the case of letters is: the sign of Kelvin is no `\w`.
            Some('w') => "(?-i:[0-9A-Za-z_])",
            Some('W') => "(?-i:[^0-9A-Za-z_])",
            Some('d') => "[0-9]",
            Some('D') => "[^0-9]",
            Some('s') => r"[\t\n\f\r ]",
            Some('S') => r"[^\t\n\f\r ]",
            Some('Q') => {
                self.at += 1;
                let (quoted, length) = match self.rest().split_once(r"\E") {
                    Some((quoted, _)) => (quoted, quoted.len() + 2),
                    None => (self.rest(), self.rest().len()),
                };
                quoted.chars().for_each(|c| self.push(c));
                self.at += length;
                return Ok(());
            }
            Some('p' | 'P') => {
                self.at = start;
                let class = self.unicode_class()?;
                self.out.push_str(&class);
                self.last = Last::Item;
                return Ok(());
            }
            _ => {
                self.at = start;
                let c = self.escaped()?;
                self.out.push_str(&numbered(c));
                self.last = Last::Item;
                return Ok(());
            }
        };
        self.at += 1;
        self.out.push_str(written);
        self.last = Last::Item;
        Ok(())
    }

    /// Reads `\pL`, `\p{Greek}`, `\P{^Greek}`.
    fn unicode_class(&mut self) -> Result<String, Refused> {
        let start = self.at;
        self.at += 1;
        let mut is_negated = self.next() == Some('P');
        let bad = |end: usize| Refused::new(BAD_RANGE, &self.pattern[start..end]);
        let name = match self.peek() {
            None => return Err(bad(self.at)),
            Some('{') => {
                let end = self.rest().find('}').map(|end| self.at + end).ok_or_else(|| bad(self.pattern.len()))?;
                let name = &self.pattern[self.at + 1..end];
                self.at = end + 1;
                name
            }
            Some(c) => {
                let name = &self.pattern[self.at..self.at + c.len_utf8()];
                self.at += c.len_utf8();
                name
            }
        };
        let bare = name.strip_prefix('^').unwrap_or(name);
        is_negated ^= bare.len() < name.len();
        if bare.is_empty() || !bare.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ' ')) {
            return Err(Refused::new(BAD_RANGE, &self.pattern[start..self.at]));
        }
        Ok(format!("\\{}{{{bare}}}", if is_negated { 'P' } else { 'p' }))
    }

    /// Reads an escaped character.
    fn escaped(&mut self) -> Result<char, Refused> {
        let start = self.at;
        self.at += 1;
        let Some(c) = self.next() else { return Err(Refused::new("trailing backslash at end of expression", "")) };
        let found = match c {
            '1'..='7' if !matches!(self.peek(), Some('0'..='7')) => None,
            '0'..='7' => {
                let mut number = c.to_digit(8).unwrap_or_default();
                for _ in 0..2 {
                    let Some(digit) = self.peek().and_then(|c| c.to_digit(8)) else { break };
                    self.at += 1;
                    number = number * 8 + digit;
                }
                char::from_u32(number)
            }
            'x' => self.hexadecimal(),
            'a' => Some('\x07'),
            'f' => Some('\x0c'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\x0b'),
            c => Some(c).filter(|c| c.is_ascii() && !c.is_ascii_alphanumeric()),
        };
        found.ok_or_else(|| Refused::new(BAD_ESCAPE, &self.pattern[start..self.at]))
    }

    fn hexadecimal(&mut self) -> Option<char> {
        if self.take("{") {
            let mut number = 0;
            let mut digits = 0;
            loop {
                match self.next()? {
                    '}' if digits > 0 => return char::from_u32(number),
                    c => number = number.checked_mul(16)?.checked_add(c.to_digit(16)?).filter(|n| *n <= 0x0010_FFFF)?,
                }
                digits += 1;
            }
        }
        let high = self.next()?.to_digit(16)?;
        let low = self.next()?.to_digit(16)?;
        char::from_u32(high * 16 + low)
    }

    fn class(&mut self) -> Result<(), Refused> {
        let start = self.at;
        self.copy(Last::Item);
        if self.peek() == Some('^') {
            self.copy(Last::Item);
        }
        let mut is_first = true;
        while is_first || self.peek() != Some(']') {
            is_first = false;
            if self.rest().starts_with("[:")
                && let Some(end) = self.rest().find(":]")
            {
                let name = &self.rest()[..end + 2];
                if !NAMED.contains(&name[2..end].trim_start_matches('^')) || name[2..end].starts_with("^^") {
                    return Err(Refused::new(BAD_RANGE, name));
                }
                self.at += name.len();
                self.out.push_str(name);
                continue;
            }
            if let Some(written) =
                iter::zip(PERL, WRITTEN).find_map(|(perl, written)| self.take(perl).then_some(written))
            {
                self.out.push_str(written);
                continue;
            }
            if self.rest().starts_with(r"\p") || self.rest().starts_with(r"\P") {
                let class = self.unicode_class()?;
                self.out.push_str(&class);
                continue;
            }
            let from = self.at;
            let low = self.character(start)?;
            self.out.push_str(&numbered(low));
            let rest = self.rest().as_bytes();
            if rest.first() == Some(&b'-') && rest.get(1).is_some_and(|next| *next != b']') {
                self.at += 1;
                let high = self.character(start)?;
                if high < low {
                    return Err(Refused::new(BAD_RANGE, &self.pattern[from..self.at]));
                }
                self.out.push('-');
                self.out.push_str(&numbered(high));
            }
        }
        self.copy(Last::Item);
        Ok(())
    }

    /// Reads a character of the class that begins at `start`.
    fn character(&mut self, start: usize) -> Result<char, Refused> {
        match self.peek() {
            Some('\\') => self.escaped(),
            _ => self.next().ok_or_else(|| Refused::new("missing closing ]", &self.pattern[start..])),
        }
    }
}

/// Classes by name.
const NAMED: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

/// Classes by letter, and what each is in another class.
const PERL: [&str; 6] = [r"\d", r"\D", r"\s", r"\S", r"\w", r"\W"];
const WRITTEN: [&str; 6] = ["0-9", "[^0-9]", r"\t\n\f\r\x20", r"[^\t\n\f\r\x20]", "0-9A-Za-z_", "[^0-9A-Za-z_]"];

fn numbered(c: char) -> String {
    if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\x{{{:X}}}", u32::from(c)) }
}

/// The bytes of a repetition by count at the beginning of a text, and whether Go takes it: `{2}`, `{2,}`, `{2,3}`.
fn repetition(text: &str) -> Option<(usize, bool)> {
    let (body, _) = text.strip_prefix('{')?.split_once('}')?;
    let (from, to) = body.split_once(',').map_or((body, None), |(from, to)| (from, Some(to)));
    let number = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
        // What is no u32 is over the limit.
        (is_number && !text.is_empty()).then(|| text.parse().unwrap_or(u32::MAX))
    };
    let least = number(from)?;
    let most = match to {
        None | Some("") => least,
        Some(to) => number(to)?,
    };
    Some((body.len() + 2, least <= most && most <= MAX_REPEAT))
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_go() {
        for (pattern, source, matched) in [
            (r"^\d+$", "12", true),
            (r"^\d+$", "١٢", false),
            (r"^[\w.-]+$", "a_b.c-d", true),
            (r"^[\w-\.]+$", "a_b.c-d", true),
            (r"^[\w-\.]+$", "a/b", false),
            (r"^[+-\]]+$", "]", true),
            (r"^[+--]+$", "+,-", true),
            (r"^[a-c-e]+$", "b-e", true),
            (r"^[a-c-e]+$", "d", false),
            (r"^[a&&b]+$", "&", true),
            (r"^[a~~b&--]+$", "~,", true),
            (r"^[\D]$", "1", false),
            (r"^[^\D]$", "1", true),
            (r"^[[:^digit:]x]$", "1", false),
            (r"a{", "a{", true),
            (r"^a{,2}$", "a{,2}", true),
            (r"^a{02}$", "a{02}", true),
            (r"^{{.*}}$", "{{ x }}", true),
            (r"^a{2,3}$", "aaa", true),
            (r"^a]$", "a]", true),
            (r"\Qa.b\E", "a.b", true),
            (r"\Qa.b\E", "axb", false),
            (r"^\Qa.b", "a.b", true),
            (r"^[[:alpha:]]+$", "abc", true),
            (r"[[]", "[", true),
            (r"[]a]", "]", true),
            (r"^[^]a]$", "b", true),
            (r"\/x\-y", "/x-y", true),
            (r"^a\<b\>$", "a<b>", true),
            (r"^a#b&c$", "a#b&c", true),
            (r"^\p{Greek}\pL$", "αα", true),
            (r"^\p{^Greek}$", "α", false),
            (r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "my-name", true),
            (r"(?i)ABC", "abc", true),
            (r"(?i:a)B", "AB", true),
            (r"(?)a", "a", true),
            (r"^(?i)\w$", "\u{212a}", false),
            (r"^\x{41}\x42\103\0$", "ABC\0", true),
            (r"^\a\v$", "\x07\x0b", true),
            (r"(?P<x>a)(?<y>b)(?P<x>c)(?P<1>d)", "abcd", true),
        ] {
            let translated = translate(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            let regex = Regex::new(&translated).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert_eq!(regex.is_match(source), matched, "{pattern} as {translated}: {source}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused_in_its_words() {
        for (pattern, expected) in [
            ("a**", "invalid nested repetition operator: `**`"),
            ("a+*?", "invalid nested repetition operator: `+*?`"),
            ("a{2}{3}", "invalid nested repetition operator: `{2}{3}`"),
            ("a{2,1}", "invalid repeat count: `{2,1}`"),
            ("a{1001}", "invalid repeat count: `{1001}`"),
            ("*a", "missing argument to repetition operator: `*`"),
            ("(+?)", "missing argument to repetition operator: `+?`"),
            ("a|?", "missing argument to repetition operator: `?`"),
            ("(a", "missing closing ): `(a`"),
            ("a)", "unexpected ): `a)`"),
            ("x[a-", "missing closing ]: `[a-`"),
            ("[z-a]", "invalid character class range: `z-a`"),
            ("[[:no:]]", "invalid character class range: `[:no:]`"),
            (r"[a-\d]", r"invalid escape sequence: `\d`"),
            (r"\u0041", r"invalid escape sequence: `\u`"),
            (r"a\E", r"invalid escape sequence: `\E`"),
            (r"\1", r"invalid escape sequence: `\1`"),
            ("a\\", "trailing backslash at end of expression: ``"),
            ("(?x)a", "invalid or unsupported Perl syntax: `(?x`"),
            ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
            ("(?P<a-b>c)", "invalid named capture: `(?P<a-b>`"),
        ] {
            assert_eq!(
                translate(pattern).map_err(|refused| refused.to_string()),
                Err(expected.to_owned()),
                "{pattern}"
            );
        }
    }
}
