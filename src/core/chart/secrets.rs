//! Texts that no error may show, and how they are hidden.

use std::collections::BTreeSet;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::quoted;
use crate::core::spelled::spelled;

/// Texts that no error may show: what was drawn, and what Secrets hold that were looked up. Debug does not show them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(BTreeSet<String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

/// What stands for a secret.
pub(super) const HIDDEN: &str = "[secret]";

/// Shorter texts are no secrets, and hiding them would make a message unreadable.
const SHORTEST_SECRET: usize = 6;

/// Longest text, in bytes, whose every form is remembered, and how many texts there may be for it.
const LONGEST_SPELLED: usize = 1024;
const MOST_SPELLED: usize = 4096;

impl Secrets {
    /// Remembers a text, its lines, and its forms in base64 and in URLs.
    pub fn add(&mut self, text: &str) {
        let lines = text.lines().map(str::trim).filter(|line| line.len() >= SHORTEST_SECRET);
        self.0.extend(lines.map(str::to_owned));
        if text.len() >= SHORTEST_SECRET {
            self.0.insert(text.to_owned());
            self.0.insert(STANDARD.encode(text));
            // What somebody puts into a URL is short; all forms of all that Secrets may hold would take much memory.
            if text.len() <= LONGEST_SPELLED && self.0.len() < MOST_SPELLED {
                self.0.extend(spelled(text));
            }
        }
    }

    /// Remembers what a Secret holds, whole and by what stands in it: the leaves of JSON, and what is behind the first `=` or `:`
    /// of a line, as settings, `.env` and YAML have it. Nothing of any other object.
    pub fn add_object(&mut self, object: &Value) {
        if (object["apiVersion"].as_str(), object["kind"].as_str()) != (Some("v1"), Some("Secret")) {
            return;
        }
        let fields = ["data", "stringData"].iter().filter_map(|field| object[*field].as_object());
        for value in fields.flat_map(|map| map.values()) {
            // A value that is no text may be the mistake.
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let decoded = STANDARD.decode(&text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            self.add(&text);
            let decoded = decoded.unwrap_or_default();
            self.add(&decoded);
            self.add_parts(&decoded);
            self.add_parts(&text);
        }
    }

    fn add_parts(&mut self, text: &str) {
        if let Ok(json @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text) {
            self.add_values(&json);
        }
        for line in text.lines() {
            let Some((_, value)) = line.split_once(['=', ':']) else { continue };
            self.add(value.trim().trim_matches(['"', '\'', ',']));
        }
    }

    /// Remembers every value below `values`.
    pub fn add_values(&mut self, values: &Value) {
        match values {
            Value::Object(map) => map.values().for_each(|value| self.add_values(value)),
            Value::Array(list) => list.iter().for_each(|value| self.add_values(value)),
            Value::String(text) => self.add(text),
            Value::Number(number) => self.add(&number.to_string()),
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// Takes in those of another.
    pub fn append(&mut self, other: &mut Self) {
        self.0.append(&mut other.0);
    }

    /// The text with every secret in it hidden.
    pub fn hide(&self, text: &str) -> String {
        // The longest first: one may be a part of another.
        let mut secrets: Vec<&String> = self.0.iter().filter(|secret| text.contains(secret.as_str())).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.into_iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), HIDDEN))
    }

    /// What an API server says to an object, with every secret in it hidden, and where there are secrets also each value that it
    /// quotes: it may be a part of one, or written otherwise. What is in `known` is told anyway, as the object's name.
    pub fn hide_answer(&self, text: &str, known: &[&str]) -> String {
        if self.0.is_empty() {
            return text.to_owned();
        }
        let numbers: Vec<f64> = self.0.iter().filter_map(|secret| secret.parse().ok()).collect();
        let text = self.hide(text);
        let text = if text.contains('\\') { self.hide_escaped(text) } else { text };
        quoted::without_values(&quoted::without_numbers(&text, &numbers), known)
    }

    /// The same for secrets as Go and JSON write them within quotes.
    fn hide_escaped(&self, text: String) -> String {
        let forms =
            self.0.iter().flat_map(|secret| quoted::escaped(secret).into_iter().map(move |form| (form, secret)));
        let mut forms: Vec<String> = forms.filter(|(form, secret)| form != *secret).map(|(form, _)| form).collect();
        forms.sort_by_key(|form| std::cmp::Reverse(form.len()));
        forms.iter().fold(text, |text, form| text.replace(form.as_str(), HIDDEN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_in_each_form() {
        let mut secrets = Secrets::default();
        secrets.add("swordfish");
        secrets.add("swordfish and chips");
        secrets.add("ab");
        let shown = secrets.hide("ab: swordfish and chips, c3dvcmRmaXNo, *swordfish");
        assert_eq!(shown, "ab: [secret], [secret], *[secret]");
    }

    #[test]
    fn what_a_secret_and_values_hold_is_hidden() {
        let mut object = serde_json::json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"a": "swordfish"}, "data": {"b": 123_456}});
        let text = "Invalid value: \"swordfish\", c3dvcmRmaXNo, json: cannot unmarshal number 123456";
        let hidden = |object: &Value| {
            let mut secrets = Secrets::default();
            secrets.add_object(object);
            secrets.hide(text)
        };
        assert_eq!(hidden(&object), "Invalid value: \"[secret]\", [secret], json: cannot unmarshal number [secret]");
        object["kind"] = "ConfigMap".into();
        assert_eq!(hidden(&object), text);
        let mut secrets = Secrets::default();
        secrets.add_values(&serde_json::json!({"a": [{"pin": 4_815_162_342_u64}, "swordfish"], "short": "ab"}));
        assert_eq!(secrets.hide("ab 4815162342 swordfish"), "ab [secret] [secret]");
    }

    #[test]
    fn what_an_api_server_quotes_of_a_secret_is_hidden() {
        let mut secrets = Secrets::default();
        let json = r#"{"user": "ann", "pin": "hunter22"}"#;
        let data = serde_json::json!({"a": "pa\"ss\nword\u{7}x", "b": "1234567", "c": json, "d": "token: tok-en-1\nother=swordfish"});
        secrets.add_object(&serde_json::json!({"apiVersion": "v1", "kind": "Secret", "stringData": data}));
        for (text, expected) in [
            (r#"spec.x: Invalid value: "pa\"ss\nword\ax": no"#, r#"spec.x: Invalid value: "[secret]": no"#),
            (r#"webhook says "pa\"ss\nword\ax!" is bad"#, r#"webhook says "[secret]!" is bad"#),
            (r#"webhook says {"a":"pa\"ss\nword\u0007x"}"#, r#"webhook says {"a":"[secret]"}"#),
            ("got 1.234567e+06, want text", "got [secret], want text"),
            ("spec.x: Invalid value: 1.234567e+06: no", "spec.x: Invalid value: [secret]: no"),
            ("no hunter22, tok-en-1, swordfish", "no [secret], [secret], [secret]"),
            (r#"metadata.name: Invalid value: "Web": no"#, r#"metadata.name: Invalid value: "Web": no"#),
            (
                r#"x: Unsupported value: "half": supported values: "a", "b""#,
                r#"x: Unsupported value: "[secret]": supported values: "a", "b""#,
            ),
            (r#"x: Duplicate value: {"name":"half"}"#, "x: Duplicate value: [secret]"),
            (
                "x: expected string, got &value.valueUnstructured{Value:12}",
                "x: expected string, got &value.valueUnstructured{Value:[secret]}",
            ),
            (
                r#"spec.template: Invalid value: {"a":"half: of: it","b":{"c":["}"]}}: field is immutable"#,
                "spec.template: Invalid value: [secret]: field is immutable",
            ),
            (
                r#"spec.t: Invalid value: core.PodSpec{Env:[]core.EnvVar{core.EnvVar{Value:"a: b"}}, M:map[string]string{"c":"d: e"}}: no, x: Required value"#,
                "spec.t: Invalid value: [secret]: no, x: Required value",
            ),
            (
                "spec: Forbidden: pod updates may not change fields other than `spec.x`\n  core.PodSpec{\n- \tV: \"half\",",
                "spec: Forbidden: pod updates may not change fields other than `spec.x` [secret]",
            ),
            (
                r#"parsing time "half" as "2006": cannot parse"#,
                r#"parsing time "[secret]" as "[secret]": cannot parse"#,
            ),
            (r#"duplicate entries for key [name="half"]"#, r#"duplicate entries for key [name="[secret]"]"#),
            (
                r#"strict decoding error: unknown field "spec.foo""#,
                r#"strict decoding error: unknown field "spec.foo""#,
            ),
            (
                r#"secrets "x" is forbidden: User "system:x" cannot patch resource "secrets" in API group "" in the namespace "shop""#,
                r#"secrets "[secret]" is forbidden: User "system:x" cannot patch resource "secrets" in API group "" in the namespace "shop""#,
            ),
            ("webhook says pa%22ss%0aword%07x and pa%22ss%0Aword%07x", "webhook says [secret] and [secret]"),
            (r#"x: Invalid value: "half" and no end"#, r#"x: Invalid value: "[secret]" and no end"#),
            (r#"x: Invalid value: "half"#, r#"x: Invalid value: "[secret]"#),
            ("x: Too many: 70: must have at most 3 items", "x: Too many: 70: must have at most 3 items"),
        ] {
            assert_eq!(secrets.hide_answer(text, &["Web", "shop"]), expected);
            assert_eq!(Secrets::default().hide_answer(text, &[]), text, "without secrets all is told");
        }
    }
}
