//! What Helm's validator reads in a schema where others read something else (`santhosh-tekuri/jsonschema` v6): patterns are
//! Go's, and before 2019-09 every draft asserts every format, also those of later drafts. A size may be `1.0` in every draft.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use jsonschema::{Draft, Keyword, PatternOptions, ValidationError, ValidationOptions, Validator};
use serde_json::{Map, Value, json};

use crate::core::chart::go_template::functions::regex as go_regex;
use crate::core::chart::go_template::functions::regex::pattern;

/// The keyword that stands for `pattern` in a schema that was [adapted](adapt): no other validator has looked at it.
const PATTERN: &str = "clusterstack/pattern";

/// Formats that some drafts do not have, and Helm asserts in all.
const OF_LATER_DRAFTS: [&str; 8] = [
    "duration",
    "iri",
    "iri-reference",
    "json-pointer",
    "relative-json-pointer",
    "uri-reference",
    "uri-template",
    "uuid",
];

/// Rewrites patterns; the formats that the schema names.
///
/// # Errors
/// Go refuses a pattern, or a draft before 2019-09 a choice that is listed twice.
pub(super) fn adapt(schema: &mut Value) -> Result<BTreeSet<String>, String> {
    let is_old = matches!(Draft::default().detect(schema), Draft::Draft4 | Draft::Draft6 | Draft::Draft7);
    let mut found = Found { is_old, formats: BTreeSet::new() };
    visit(schema, &mut found)?;
    Ok(found.formats)
}

/// What is known of a schema on the way through it.
struct Found {
    /// Its draft is older than 2019-09.
    is_old: bool,
    formats: BTreeSet<String>,
}

fn visit(schema: &mut Value, found: &mut Found) -> Result<(), String> {
    match schema {
        Value::Object(keywords) => visit_keywords(keywords, found),
        Value::Array(schemas) => schemas.iter_mut().try_for_each(|schema| visit(schema, found)),
        _ => Ok(()),
    }
}

fn visit_keywords(keywords: &mut Map<String, Value>, found: &mut Found) -> Result<(), String> {
    if let Some(Value::String(pattern)) = keywords.get("pattern") {
        let pattern = pattern.clone();
        go(&pattern)?;
        keywords.remove("pattern");
        keywords.insert(PATTERN.to_owned(), pattern.into());
    }
    if let Some(Value::String(format)) = keywords.get("format") {
        found.formats.insert(format.clone());
    }
    for (keyword, value) in keywords {
        match (keyword.as_str(), value) {
            ("enum", Value::Array(choices)) if found.is_old => {
                // As texts, for a hostile schema lists a million.
                let distinct: BTreeSet<String> = choices.iter().map(ToString::to_string).collect();
                if distinct.len() < choices.len() {
                    return Err("enum: two choices are equal".to_owned());
                }
            }
            (
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties",
                Value::Number(size),
            ) => {
                if let Some(whole) = size.as_f64().filter(|size| size.fract() == 0.0 && (0.0..1e15).contains(size)) {
                    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and small")]
                    let whole = whole as u64;
                    *size = whole.into();
                }
            }
            // Values, which hold no schemas.
            ("enum" | "const" | "default" | "examples" | PATTERN, _) => {}
            ("properties" | "definitions" | "$defs" | "dependentSchemas" | "dependencies", Value::Object(schemas)) => {
                schemas.values_mut().try_for_each(|schema| visit(schema, found))?;
            }
            ("patternProperties", Value::Object(schemas)) => {
                for (pattern, mut schema) in std::mem::take(schemas) {
                    go(&pattern)?;
                    visit(&mut schema, found)?;
                    let mut key = pattern::portable(&pattern).unwrap_or(pattern);
                    while schemas.contains_key(&key) {
                        key = format!("(?:{key})");
                    }
                    schemas.insert(key, schema);
                }
            }
            (_, value) => visit(value, found)?,
        }
    }
    Ok(())
}

fn go(pattern: &str) -> Result<::regex::Regex, String> {
    go_regex::build(pattern).map_err(|problem| format!("'{pattern}' is not valid regex: {problem}"))
}

/// How a schema is compiled that was adapted and names these formats.
pub(super) fn options(formats: &BTreeSet<String>) -> Result<ValidationOptions<'static>, String> {
    let mut options = jsonschema::options()
        .with_keyword(PATTERN, |_, value, _| Ok(Box::new(Pattern::new(value)?)))
        .with_pattern_options(PatternOptions::regex())
        .with_format("regex", |text: &str| go_regex::build(text).is_ok())
        .with_format("semver", |text: &str| semver::Version::from_str(text).is_ok())
        // Annotations, which Helm does not assert.
        .without_content_encoding_support("base64")
        .without_content_media_type_support("application/json");
    for name in OF_LATER_DRAFTS.into_iter().filter(|name| formats.contains(*name)) {
        let check = later(name)?;
        options = options.with_format(name, move |text: &str| check.is_valid(&json!(text)));
    }
    if formats.contains("hostname") {
        // A name may end in a dot (RFC 1034, 3.1).
        let check = later("hostname")?;
        let is_name = move |text: &str| check.is_valid(&json!(text.strip_suffix('.').unwrap_or(text)));
        options = options.with_format("hostname", is_name);
    }
    if formats.contains("period") {
        let (time, duration) = (later("date-time")?, later("duration")?);
        let is_period = move |text: &str| {
            let Some((start, end)) = text.split_once('/') else { return false };
            let is = |check: &Validator, text: &str| check.is_valid(&json!(text));
            if start.starts_with('P') {
                is(&duration, start) && is(&time, end)
            } else {
                is(&time, start) && is(if end.starts_with('P') { &duration } else { &time }, end)
            }
        };
        options = options.with_format("period", is_period);
    }
    Ok(options)
}

/// A format as the newest draft has it.
fn later(format: &str) -> Result<Arc<Validator>, String> {
    let options = jsonschema::draft202012::options().should_validate_formats(true);
    options.build(&json!({"format": format})).map(Arc::new).map_err(|error| error.to_string())
}

/// A pattern that a text has to match somewhere.
struct Pattern {
    regex: ::regex::Regex,
    source: String,
}

impl Pattern {
    fn new(pattern: &Value) -> Result<Self, ValidationError<'static>> {
        let source = pattern.as_str().unwrap_or_default().to_owned();
        let regex = go_regex::build(&source).map_err(ValidationError::custom)?;
        Ok(Self { regex, source })
    }
}

impl<'i> Keyword<'i> for Pattern {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        if Keyword::is_valid(self, instance) {
            return Ok(());
        }
        // The value is left out, which may be a secret.
        Err(ValidationError::custom(format!("does not match {:?}", self.source)))
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        instance.as_str().is_none_or(|text| self.regex.is_match(text))
    }
}

#[cfg(test)]
mod tests {
    use super::super::compile;
    use super::*;

    const DRAFT_7: &str = "http://json-schema.org/draft-07/schema#";

    fn takes(draft: &str, schema: &Value, value: &Value) -> Result<bool, String> {
        let mut whole = json!({"properties": {"v": schema}});
        if !draft.is_empty() {
            whole["$schema"] = draft.into();
        }
        compile(whole.to_string().as_bytes()).map(|validator| validator.is_valid(&json!({"v": value})))
    }

    #[test]
    fn patterns_are_gos() {
        for (schema, value, expected) in [
            (json!({"pattern": r"^[\w-\.]+$"}), json!("a_b.c-d"), true),
            (json!({"pattern": r"^[\w-\.]+$"}), json!("a/b"), false),
            (json!({"pattern": r"^\d$"}), json!("\u{661}"), false),
            (json!({"pattern": "^a{,2}$"}), json!("a{,2}"), true),
            (json!({"pattern": "^a$"}), json!("a\n"), false),
            (json!({"pattern": "^a$"}), json!(1), true),
            (json!({"properties": {"pattern": {"pattern": "^a$"}}}), json!({"pattern": "b"}), false),
            (json!({"enum": [{"pattern": "["}]}), json!({"pattern": "["}), true),
            (
                json!({"patternProperties": {r"^[\w-\.]+$": {"type": "string"}, "^\\d": {}}, "additionalProperties": false}),
                json!({"a.b": "x"}),
                true,
            ),
            (json!({"patternProperties": {r"^[\w-\.]+$": {"type": "string"}}}), json!({"a.b": 1}), false),
            (
                json!({"patternProperties": {"^[0-9]$": {"type": "string"}, r"^\d$": {"minLength": 2}}}),
                json!({"1": "x"}),
                false,
            ),
            (json!({"patternProperties": {r"^(?i)\x41\b-?é": false}}), json!({"a-é": 1}), false),
            (json!({"propertyNames": {"pattern": r"^[\w-.]$"}}), json!({"+": 1}), false),
        ] {
            assert_eq!(takes("", &schema, &value), Ok(expected), "{schema} {value}");
        }
        for pattern in ["[", "(?!a)", r"\u0041", "a**"] {
            for schema in [json!({"pattern": pattern}), json!({"patternProperties": {pattern: {}}})] {
                let problem = takes("", &schema, &json!("a")).unwrap_err();
                assert!(problem.contains("is not valid regex: error parsing regexp: "), "{problem}");
            }
        }
    }

    #[test]
    fn old_drafts_assert_every_format_and_new_ones_none() {
        for (format, good, bad) in [
            ("duration", "P1D", "1d"),
            ("hostname", "a.b.", "-a"),
            ("iri", "http://é/", "x"),
            ("json-pointer", "/a", "a"),
            ("period", "2020-01-01T00:00:00Z/P1D", "P1D/P1D"),
            ("regex", r"[\w-\.]", "(?!a)"),
            ("relative-json-pointer", "1/a", "x"),
            ("semver", "1.2.3-a", "1.2"),
            ("uri-template", "/{a}", "{a"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "x"),
        ] {
            let schema = json!({"format": format});
            for draft in ["http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-06/schema#", DRAFT_7]
            {
                assert_eq!(takes(draft, &schema, &json!(good)), Ok(true), "{draft} {format} {good}");
                assert_eq!(takes(draft, &schema, &json!(bad)), Ok(false), "{draft} {format} {bad}");
            }
            assert_eq!(takes("", &schema, &json!(bad)), Ok(true), "{format}");
        }
    }

    #[test]
    fn what_helm_does_not_assert_is_not_asserted() {
        assert_eq!(takes(DRAFT_7, &json!({"contentEncoding": "base64"}), &json!("!!")), Ok(true));
        assert_eq!(takes(DRAFT_7, &json!({"contentMediaType": "application/json"}), &json!("{")), Ok(true));
        assert_eq!(
            takes("http://json-schema.org/draft-04/schema#", &json!({"minLength": 2.0}), &json!("a")),
            Ok(false)
        );
        assert!(takes(DRAFT_7, &json!({"enum": [1, 1]}), &json!(1)).is_err());
        assert_eq!(takes("", &json!({"enum": [1, 1]}), &json!(1)), Ok(true));
    }
}
