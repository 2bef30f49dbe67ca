//! Findings for pipelines: `JUnit` and SARIF.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Finding, RULES, Rule, Severity};

/// `error` or `warning`.
pub fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

/// Where a finding is: `file:line`, as far as it is known.
pub fn place(finding: &Finding) -> Option<String> {
    let file = finding.file.as_ref()?;
    Some(finding.line.map_or_else(|| file.clone(), |line| format!("{file}:{line}")))
}

/// Findings as a list.
pub fn to_json(stack: &str, findings: &[Finding]) -> Value {
    let one = |finding: &Finding| {
        json!({
            "rule": finding.rule.id,
            "severity": level(finding.rule.severity),
            "file": finding.file,
            "line": finding.line,
            "message": finding.message,
        })
    };
    json!({"stack": stack, "findings": findings.iter().map(one).collect::<Vec<_>>()})
}

/// Findings as `JUnit`: a test for each rule, which fails by what it found. Warnings fail only if they count.
/// Rules by the ids in `skipped` were not looked at.
pub fn junit(stack: &str, findings: &[Finding], strict: bool, skipped: &[&str]) -> String {
    let counts = |finding: &&Finding| strict || finding.rule.severity == Severity::Error;
    let failed = RULES.iter().filter(|rule| findings.iter().filter(counts).any(|found| found.rule == *rule)).count();
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    let is_skipped = |rule: &Rule| skipped.contains(&rule.id) && !findings.iter().any(|found| found.rule == rule);
    let skips = RULES.iter().filter(|rule| is_skipped(rule)).count();
    let (name, tests) = (escaped(stack), RULES.len());
    _ = writeln!(
        text,
        "  <testsuite name=\"clusterstack lint {name}\" tests=\"{tests}\" failures=\"{failed}\" errors=\"0\" skipped=\"{skips}\">"
    );
    for rule in RULES {
        let own: Vec<&Finding> = findings.iter().filter(|finding| finding.rule == rule).collect();
        _ = write!(text, "    <testcase classname=\"{name}\" name=\"{}\"", escaped(rule.id));
        if is_skipped(rule) {
            text.push_str("><skipped/></testcase>\n");
            continue;
        }
        if own.is_empty() {
            text.push_str("/>\n");
            continue;
        }
        text.push_str(">\n");
        let line = |finding: &&Finding| {
            let place = place(finding).map(|place| format!("{place}: ")).unwrap_or_default();
            escaped(&format!("{place}{}", finding.message))
        };
        let lines = own.iter().map(line).collect::<Vec<_>>().join("\n");
        let failing = own.iter().any(counts);
        if failing {
            let (level, about) = (level(rule.severity), escaped(rule.about));
            _ = writeln!(text, "      <failure type=\"{level}\" message=\"{about}\">{lines}</failure>");
        } else {
            _ = writeln!(text, "      <system-out>{lines}</system-out>");
        }
        text.push_str("    </testcase>\n");
    }
    text.push_str("  </testsuite>\n</testsuites>\n");
    text
}

/// Text in XML. Characters that XML can't hold are left out.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || c == '\u{fffe}' || c == '\u{ffff}' => {}
            c => out.push(c),
        }
    }
    out
}

/// Findings as SARIF 2.1.0, their files below `stack`.
pub fn sarif(stack: &str, findings: &[Finding]) -> Value {
    let rules: Vec<Value> = RULES
        .iter()
        .map(|rule| {
            json!({
                "id": rule.id,
                "shortDescription": {"text": rule.about},
                "defaultConfiguration": {"level": level(rule.severity)},
            })
        })
        .collect();
    let results: Vec<Value> = findings
        .iter()
        .map(|finding| {
            let mut result = json!({
                "ruleId": finding.rule.id,
                "ruleIndex": RULES.iter().position(|rule| rule == finding.rule),
                "level": level(finding.rule.severity),
                "message": {"text": finding.message},
            });
            // GitHub shows only what has a place: without a file it is the stack's own description.
            let file = finding.file.as_deref().unwrap_or("csctl.yaml");
            let mut place =
                json!({"artifactLocation": {"uri": uri(&format!("{}/{file}", stack.trim_end_matches('/')))}});
            if let Some(line) = finding.line {
                place["region"] = json!({"startLine": line});
            }
            result["locations"] = json!([{"physicalLocation": place}]);
            result
        })
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "clusterstack lint", "rules": rules}},
            "results": results,
        }],
    })
}

/// A path as a relative URI.
fn uri(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.trim_start_matches("./").bytes().fold(String::new(), |mut text, byte| {
        if plain(byte) {
            text.push(char::from(byte));
        } else {
            _ = write!(text, "%{byte:02X}");
        }
        text
    })
}
