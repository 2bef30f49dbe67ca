//! `.Files`: the files of a chart that are neither templates nor charts.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value as Json};

use super::functions::url::base;
use crate::core::yaml;

/// The files as entries of a `ConfigMap`'s data.
pub(crate) fn as_config(files: &BTreeMap<Arc<str>, Bytes>) -> String {
    to_yaml(files, |data| String::from_utf8_lossy(data).into_owned())
}

/// The files as entries of a `Secret`'s data.
pub(crate) fn as_secrets(files: &BTreeMap<Arc<str>, Bytes>) -> String {
    to_yaml(files, |data| STANDARD.encode(data))
}

fn to_yaml(files: &BTreeMap<Arc<str>, Bytes>, encode: impl Fn(&[u8]) -> String) -> String {
    let entries: Map<String, Json> =
        files.iter().map(|(name, data)| (base(name), Json::String(encode(data)))).collect();
    let mut text = yaml::to_string(&Json::Object(entries));
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

/// A pattern of `.Files.Glob`, as the Go library `gobwas/glob` reads it with `/` as separator.
pub(crate) struct Glob {
    /// The alternatives that braces stand for.
    patterns: Vec<Vec<Part>>,
}

#[derive(Clone, Debug)]
enum Part {
    Char(char),
    /// `?`: not a separator
    Any,
    /// `*`
    Star,
    /// `**`: separators too
    Deep,
    Set {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

/// More alternatives than that are cut off.
const MAX_ALTERNATIVES: usize = 256;

impl Glob {
    pub(crate) fn new(pattern: &str) -> Self {
        let mut alternatives = vec![String::new()];
        expand(&pattern.chars().collect::<Vec<_>>(), &mut alternatives, 0);
        Self { patterns: alternatives.iter().map(|pattern| parts(pattern)).collect() }
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        let path: Vec<char> = path.chars().collect();
        self.patterns.iter().any(|pattern| matches(pattern, &path))
    }
}

/// Multiplies the alternatives out.
fn expand(pattern: &[char], alternatives: &mut Vec<String>, depth: usize) {
    let mut at = 0;
    while at < pattern.len() {
        match pattern[at] {
            '\\' if at + 1 < pattern.len() => {
                for alternative in &mut *alternatives {
                    alternative.push('\\');
                    alternative.push(pattern[at + 1]);
                }
                at += 2;
            }
            '{' if depth < 16 => {
                let Some((choices, end)) = choices(pattern, at) else {
                    for alternative in &mut *alternatives {
                        alternative.push('{');
                    }
                    at += 1;
                    continue;
                };
                let mut next = Vec::new();
                for choice in choices {
                    let mut branch = alternatives.clone();
                    expand(choice, &mut branch, depth + 1);
                    next.append(&mut branch);
                    next.truncate(MAX_ALTERNATIVES);
                }
                *alternatives = next;
                at = end + 1;
            }
            c => {
                for alternative in &mut *alternatives {
                    alternative.push(c);
                }
                at += 1;
            }
        }
    }
}

/// The choices of `{a,b}` at `start`, and where it ends.
fn choices(pattern: &[char], start: usize) -> Option<(Vec<&[char]>, usize)> {
    let mut depth = 0;
    let mut from = start + 1;
    let mut choices = Vec::new();
    let mut at = start;
    while at < pattern.len() {
        match pattern[at] {
            '\\' => at += 1,
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    choices.push(&pattern[from..at]);
                    return Some((choices, at));
                }
            }
            ',' if depth == 1 => {
                choices.push(&pattern[from..at]);
                from = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

fn parts(pattern: &str) -> Vec<Part> {
    let mut chars = pattern.chars().peekable();
    let mut parts = Vec::new();
    while let Some(c) = chars.next() {
        parts.push(match c {
            '\\' => Part::Char(chars.next().unwrap_or('\\')),
            '?' => Part::Any,
            '*' => {
                let mut deep = false;
                while chars.next_if_eq(&'*').is_some() {
                    deep = true;
                }
                if deep { Part::Deep } else { Part::Star }
            }
            '[' => {
                let negated = chars.next_if_eq(&'!').is_some();
                let mut ranges = Vec::new();
                while let Some(low) = chars.next().filter(|c| *c != ']') {
                    if chars.next_if_eq(&'-').is_some() {
                        let high = chars.next().unwrap_or(low);
                        ranges.push((low, high));
                    } else {
                        ranges.push((low, low));
                    }
                }
                Part::Set { negated, ranges }
            }
            c => Part::Char(c),
        });
    }
    parts
}

/// Matches with one point to come back to per kind of star: no exponential search.
fn matches(parts: &[Part], path: &[char]) -> bool {
    let mut reachable = vec![false; path.len() + 1];
    reachable[0] = true;
    for part in parts {
        let mut next = vec![false; path.len() + 1];
        match part {
            Part::Star | Part::Deep => {
                let mut open = false;
                for at in 0..=path.len() {
                    open |= reachable[at];
                    next[at] = open;
                    if matches!(part, Part::Star) && path.get(at) == Some(&'/') {
                        open = false;
                    }
                }
            }
            single => {
                for (at, c) in path.iter().enumerate().filter(|(at, _)| reachable[*at]) {
                    next[at + 1] = match single {
                        Part::Char(wanted) => wanted == c,
                        Part::Set { negated, ranges } => {
                            ranges.iter().any(|(low, high)| (low..=high).contains(&c)) != *negated
                        }
                        _ => *c != '/',
                    };
                }
            }
        }
        reachable = next;
    }
    reachable[path.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_go() {
        for (pattern, path, matched) in [
            ("config/*", "config/a.yaml", true),
            ("config/*", "config/sub/a.yaml", false),
            ("config/**", "config/sub/a.yaml", true),
            ("**.yaml", "config/sub/a.yaml", true),
            ("*.yaml", "config/a.yaml", false),
            ("dash{boards,es}/*.json", "dashes/x.json", true),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("[a-c].txt", "b.txt", true),
            ("[!a-c].txt", "b.txt", false),
            ("{a,b{c,d}}", "bd", true),
        ] {
            assert_eq!(Glob::new(pattern).matches(path), matched, "{pattern} {path}");
        }
    }
}
