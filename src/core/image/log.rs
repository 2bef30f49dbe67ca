//! What of a build's output is kept: lines of a bounded length, without secrets, and the last of them.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use crate::core::yaml;

pub mod kept;

/// Bytes of a line that are kept.
pub const LINE: usize = 1024;
/// Bytes of a line that are looked at for secrets; what is behind them is left out.
const LOOKED_AT: usize = 16 * 1024;
/// Bytes of the tail.
pub const TAIL: usize = 2048;
/// Shorter texts are no secrets: to replace them would spoil each line.
const SHORTEST_SECRET: usize = 4;

/// Takes secrets out of texts. Debug shows none.
#[derive(Clone, Default)]
pub struct Redactor {
    /// The longest first: one may be a part of another.
    secrets: Vec<String>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

impl Redactor {
    /// Of the values of all Secrets that the build was given. Of one with several lines (a key) each line is one; of one that is a
    /// file of settings (`clouds.yaml`, `.dockerconfigjson`) what its passwords and tokens are. Each also as Base64 and in URLs.
    pub fn new<'s>(values: impl IntoIterator<Item = &'s str>) -> Self {
        let is_long = |text: &&str| text.len() >= SHORTEST_SECRET && !text.starts_with("-----");
        let mut secrets: Vec<String> = Vec::new();
        for value in values {
            let mut parts = vec![value.to_owned()];
            within(value, &mut parts);
            for part in &parts {
                secrets
                    .extend(part.lines().chain([part.as_str()]).map(str::trim).filter(is_long).map(ToOwned::to_owned));
            }
        }
        let forms = |secret: &String| {
            let in_url: String = url::form_urlencoded::byte_serialize(secret.as_bytes()).collect();
            [BASE64_STANDARD.encode(secret), in_url]
        };
        let others: Vec<String> = secrets.iter().flat_map(forms).collect();
        secrets.extend(others);
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
        Self { secrets }
    }

    /// `text` with `***` for each secret.
    pub fn redacted(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| {
            if text.contains(secret.as_str()) { text.replace(secret.as_str(), "***") } else { text }
        })
    }

    /// A text without the end of a secret that it begins with and the beginning of one that it ends with: whoever handed it on may
    /// have cut it there, as a kubelet cuts what a container said last.
    fn whole<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let (bytes, mut head, mut tail) = (text.as_bytes(), 0, 0);
        for secret in self.secrets.iter().map(String::as_bytes) {
            let longest = secret.len().min(bytes.len() + 1);
            let lengths = || (SHORTEST_SECRET..longest).rev();
            head = head.max(lengths().find(|n| bytes.starts_with(&secret[secret.len() - n..])).unwrap_or_default());
            tail = tail.max(lengths().find(|n| bytes.ends_with(&secret[..*n])).unwrap_or_default());
        }
        if head + tail == 0 {
            return Cow::Borrowed(text);
        }
        let middle = String::from_utf8_lossy(bytes.get(head..bytes.len() - tail).unwrap_or_default());
        let hidden = |length: usize| if length > 0 { "***" } else { "" };
        Cow::Owned(format!("{}{middle}{}", hidden(head), hidden(tail)))
    }

    /// A line to be kept: without secrets and control characters, of at most [`LINE`] bytes.
    pub fn line(&self, bytes: &[u8]) -> String {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(LOOKED_AT)]);
        kept(&self.redacted(&text))
    }

    /// The same of a text that others may have cut.
    pub fn piece(&self, text: &str) -> String {
        kept(&self.redacted(&self.whole(&text[..ceiling(text, text.len().min(LOOKED_AT))])))
    }
}

/// A line without control characters, of at most [`LINE`] bytes.
fn kept(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c });
    let mut line = String::new();
    for c in plain {
        if line.len() + c.len_utf8() > LINE {
            line.push('…');
            break;
        }
        line.push(c);
    }
    line.truncate(line.trim_end().len());
    line
}

/// The secrets within a file of settings, in YAML or JSON: what stands by a name that tells of one, decoded where it is
/// `user:password` as Docker writes it.
fn within(text: &str, secrets: &mut Vec<String>) {
    let Ok(file) = yaml::parse(text) else { return };
    let mut todo = vec![(false, &file)];
    while let Some((is_secret, value)) = todo.pop() {
        match value {
            Value::Object(map) => todo.extend(map.iter().map(|(name, value)| (tells_of_secret(name), value))),
            Value::Array(items) => todo.extend(items.iter().map(|item| (is_secret, item))),
            Value::String(text) if is_secret => {
                let decoded = BASE64_STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
                secrets.extend(decoded.iter().filter_map(|login| Some(login.split_once(':')?.1.to_owned())));
                secrets.extend(decoded);
                secrets.push(text.clone());
            }
            Value::Number(number) if is_secret => secrets.push(number.to_string()),
            _ => {}
        }
    }
}

fn tells_of_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    ["pass", "secret", "token", "credential", "private"].iter().any(|part| name.contains(part))
        || name == "auth"
        || name.ends_with("key")
}

/// Splits a stream into lines; a carriage return ends one too, as bars of progress write it.
#[derive(Debug, Default)]
pub struct Lines {
    open: Vec<u8>,
}

impl Lines {
    /// Takes some bytes; `line` is called with each line that ended, but for empty ones.
    pub fn take(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        for part in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let (text, ended) = match part.split_last() {
                Some((b'\n' | b'\r', text)) => (text, true),
                _ => (part, false),
            };
            let room = LOOKED_AT.saturating_sub(self.open.len());
            self.open.extend_from_slice(&text[..text.len().min(room)]);
            if ended {
                self.end(&mut line);
            }
        }
    }

    /// What is left is a line too.
    pub fn end(&mut self, mut line: impl FnMut(&[u8])) {
        if !self.open.is_empty() {
            line(&self.open);
            self.open.clear();
        }
    }
}

/// The last lines, of at most [`TAIL`] bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail(String);

impl Tail {
    /// Adds a line at the end.
    pub fn push(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
        let over = self.0.len().saturating_sub(TAIL);
        if over > 0 {
            // The first whole line that fits; a line that is longer than all is cut.
            let cut = self.0[ceiling(&self.0, over - 1)..].find('\n').map(|at| ceiling(&self.0, over - 1) + at + 1);
            let from = cut.filter(|from| *from < self.0.len()).unwrap_or_else(|| ceiling(&self.0, over));
            self.0.drain(..from);
        }
    }

    /// The lines.
    pub fn text(&self) -> &str {
        &self.0
    }
}

fn ceiling(text: &str, at: usize) -> usize {
    (at..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests;
