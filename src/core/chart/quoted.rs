//! What an API server quotes of an object that it refuses.
//!
//! Kubernetes writes a refused value as Go's `%q`, as JSON or as Go's `%#v` (`field.Error` of `k8s.io/apimachinery`), and
//! server-side apply as Go's `%v` (`typed.ValidationError` of `sigs.k8s.io/structured-merge-diff`).

use std::fmt::Write as _;

use super::secrets::HIDDEN;

/// What stands before a value.
const BEFORE: &[&str] =
    &["Invalid value: ", "Unsupported value: ", "Duplicate value: ", "Not found: ", "Too long: ", "{Value:", "got &{"];

/// What stands before words in quotes that are the API server's own: names of fields, webhooks, users and kinds.
const OWN: &[&str] =
    &["field ", "webhook ", "User ", "resource ", "group ", "namespace ", "kind ", "version ", "supported values: "];

/// The text without the values in it, but for those in `known`.
pub(super) fn without_values(text: &str, known: &[&str]) -> String {
    // A difference of two objects takes lines.
    let (text, more) = text.split_once('\n').unwrap_or((text, ""));
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    loop {
        let next = BEFORE.iter().filter_map(|before| Some((rest.find(before)?, before.len()))).min();
        let Some((at, length)) = next else { break };
        let (head, tail) = rest.split_at(at + length);
        out.push_str(head);
        rest = without_value(tail, head.ends_with("{Value:") || head.ends_with("&{"), known, &mut out);
    }
    out.push_str(rest);
    let mut out = without_quotes(&out, known);
    if !more.trim().is_empty() {
        out.push(' ');
        out.push_str(HIDDEN);
    }
    out
}

/// The text without what stands in quotes, as in `parsing time "x"`, but for names, what is known, and what was hidden before.
fn without_quotes(text: &str, known: &[&str]) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut was_own) = (text, false);
    while let Some(at) = rest.find('"') {
        let (head, tail) = rest.split_at(at);
        out.push_str(head);
        let (quoted, after) = tail.split_at(end_of_quoted(tail));
        let is_key = after.strip_prefix(':').is_some_and(|value| !value.starts_with(' ') && !value.is_empty());
        let is_own = OWN.iter().any(|own| head.ends_with(own)) || (was_own && head == ", ");
        let inner = quoted.trim_matches('"');
        if is_own || is_key || inner.is_empty() || inner.contains(HIDDEN) || known.contains(&inner) {
            out.push_str(quoted);
        } else {
            let _ = write!(out, "\"{HIDDEN}\"");
        }
        (rest, was_own) = (after, is_own);
    }
    out.push_str(rest);
    out
}

/// Writes what may be told of the value that `text` begins with; what follows it.
fn without_value<'a>(text: &'a str, braced: bool, known: &[&str], out: &mut String) -> &'a str {
    let (value, rest) = if braced {
        text.split_at(end_of_braces(text))
    } else if text.starts_with('"') {
        text.split_at(end_of_quoted(text))
    } else {
        text.split_at(end_of_bare(text))
    };
    let inner = value.trim_matches('"');
    // A word of the API server's own, as in `Too long: may not be more than 63 bytes`.
    let is_own = value.starts_with("may not be ") || value.starts_with("must have ");
    if is_own || known.contains(&inner) {
        out.push_str(value);
    } else if value.starts_with('"') {
        let is_ended = value.len() > 1 && value.ends_with('"');
        let _ = write!(out, "\"{HIDDEN}{}", if is_ended { "\"" } else { "" });
    } else {
        out.push_str(HIDDEN);
    }
    rest
}

/// Where a value ends that stands in no quotes: before what is said of it, behind its last bracket where it is JSON or Go's `%#v`.
fn end_of_bare(text: &str) -> usize {
    let word = text.find(": ").unwrap_or(text.len());
    let opened = text.find(['{', '[']).filter(|opened| *opened < word && !text[..*opened].contains(' '));
    let Some(opened) = opened else { return word };
    let (mut depth, mut is_quoted, mut is_escaped) = (0_usize, false, false);
    for (at, c) in text.char_indices().skip_while(|(at, _)| *at < opened) {
        match c {
            '\\' if is_quoted => {
                is_escaped = !is_escaped;
                continue;
            }
            '"' if !is_escaped => is_quoted = !is_quoted,
            '{' | '[' if !is_quoted => depth += 1,
            '}' | ']' if !is_quoted => {
                depth = depth.saturating_sub(1);
                let rest = &text[at + c.len_utf8()..];
                // `map[string]string{` and `[]core.EnvVar{` go on.
                if depth == 0 && (rest.is_empty() || rest.starts_with([':', ',', ']', ' ', ')'])) {
                    return at + c.len_utf8();
                }
            }
            _ => {}
        }
        is_escaped = false;
    }
    text.len()
}

/// Where a text in quotes ends, behind its closing quote.
fn end_of_quoted(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !is_escaped => return at + 1,
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    text.len()
}

/// Where the brace closes that was opened right before.
fn end_of_braces(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return at,
            '}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// The text without these numbers, however they are written: Go writes `1234567` of a chart as `1.234567e+06`.
pub(super) fn without_numbers(text: &str, numbers: &[f64]) -> String {
    if numbers.is_empty() {
        return text.to_owned();
    }
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(is_part) {
        let (head, tail) = rest.split_at(at);
        let (token, after) = tail.split_at(tail.find(|c| !is_part(c)).unwrap_or(tail.len()));
        let bare = token.trim_end_matches(['.', '-', '+', 'e', 'E']);
        let is_one =
            bare.parse::<f64>().is_ok_and(|number| numbers.iter().any(|one| one.to_bits() == number.to_bits()));
        out.push_str(head);
        if is_one {
            out.push_str(HIDDEN);
            out.push_str(&token[bare.len()..]);
        } else {
            out.push_str(token);
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// A text as Go's `%q`, JSON, and Go's JSON write it between the quotes.
pub(super) fn escaped(text: &str) -> [String; 3] {
    let mut go = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => go.push_str("\\\""),
            '\\' => go.push_str("\\\\"),
            '\u{7}' => go.push_str("\\a"),
            '\u{8}' => go.push_str("\\b"),
            '\u{c}' => go.push_str("\\f"),
            '\n' => go.push_str("\\n"),
            '\r' => go.push_str("\\r"),
            '\t' => go.push_str("\\t"),
            '\u{b}' => go.push_str("\\v"),
            c if c.is_ascii_control() => {
                let _ = write!(go, "\\x{:02x}", u32::from(c));
            }
            c => go.push(c),
        }
    }
    let json = serde_json::Value::from(text).to_string();
    let json = json.get(1..json.len().saturating_sub(1)).unwrap_or_default().to_owned();
    let of_go = json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    [go, json, of_go]
}
