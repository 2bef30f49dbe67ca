//! `values.schema.json`

mod dialect;
mod size;

use std::sync::OnceLock;

use bytes::Bytes;
use jsonschema::error::ValidationErrorKind;
use jsonschema::{Retrieve, Uri, ValidationError, Validator};

use super::dependencies::Node;
use super::error::{RenderError, Told};
use super::go_template::json::to_json;
use super::go_template::value::Value;
use super::scope::Tree;

/// Its name in a chart.
const FILE: &str = "values.schema.json";
/// Rules of a chart that are told.
const TOLD: usize = 50;
/// Rules that are told of the alternatives of one, and how deep.
const OF_ALTERNATIVES: usize = 8;
const DEPTH: usize = 2;
/// Characters of what is told of a rule.
const LONGEST: usize = 400;

/// A chart's schema. It is compiled when it is first needed, which takes longer than most renderings.
#[derive(Debug)]
pub(crate) struct Schema {
    text: Bytes,
    compiled: OnceLock<Result<Validator, String>>,
}

impl Schema {
    pub(crate) fn new(text: Bytes) -> Self {
        Self { text, compiled: OnceLock::new() }
    }

    /// Compiles it now: somebody has time.
    pub(crate) fn compile_early(&self) {
        _ = self.compiled.get_or_init(|| compile(&self.text));
    }

    fn validator(&self) -> Result<&Validator, String> {
        self.compiled.get_or_init(|| compile(&self.text)).as_ref().map_err(Clone::clone)
    }
}

/// What is wrong with the schema itself is said of its file, with the place where it is known.
fn compile(text: &[u8]) -> Result<Validator, String> {
    let mut schema: serde_json::Value =
        serde_json::from_slice(text).map_err(|error| format!("{FILE} is no JSON: {error}"))?;
    let usable = |problem: String| format!("{FILE} can't be used: {problem}");
    size::check(&schema).map_err(usable)?;
    let formats = dialect::adapt(&mut schema).map_err(usable)?;
    let options = dialect::options(&formats).map_err(usable)?;
    options.with_retriever(Refused).build(&schema).map_err(|error| {
        let place = error.instance_path().as_str();
        let place = if place.is_empty() { String::new() } else { format!(" at '{place}'") };
        format!("{FILE} is no valid schema{place}: {}", quoting(&error))
    })
}

/// Nothing is fetched for a schema: neither files nor anything from the network.
struct Refused;

impl Retrieve for Refused {
    fn retrieve(&self, _: &Uri<String>) -> Result<serde_json::Value, Box<dyn std::error::Error + Send + Sync>> {
        Err("a schema may refer to itself alone, copy into it what it refers to".into())
    }
}

/// Checks the values of a chart and its subcharts against their schemas.
pub(super) fn validate(tree: &Tree<'_>) -> Result<(), RenderError> {
    let mut problems = Told::default();
    check(&tree.root, &Value::Map(tree.values.clone()), &mut problems);
    if problems.is_empty() { Ok(()) } else { Err(RenderError::Schema(problems)) }
}

fn check(node: &Node<'_>, values: &Value, problems: &mut Told) {
    if let Some(schema) = &node.chart.schema
        && let Err(problem) = check_one(schema, values)
    {
        problems.append(&Told::bare(format!("{}:\n", node.name)));
        problems.append(&problem);
    }
    for child in node.children() {
        if let Some(own @ Value::Map(_)) = values.as_map().and_then(|map| map.get(&child.name)) {
            check(&child, &own, problems);
        }
    }
}

fn check_one(schema: &Schema, values: &Value) -> Result<(), Told> {
    let validator = schema.validator().map_err(Told::bare)?;
    // Values that are not looked at would pass whatever the schema says.
    let values = to_json(values).ok_or_else(|| {
        Told::bare("- the values hold more than can be checked by a schema: let them hold less\n".to_owned())
    })?;
    if validator.is_valid(&values) {
        return Ok(());
    }
    let mut problems = Told::default();
    let mut errors = validator.iter_errors(&values);
    for error in errors.by_ref().take(TOLD) {
        problems.append(&Told::new(lines(&error, None, 0), lines(&error, Some("value"), 0)));
    }
    match errors.count() {
        0 => {}
        more => problems.append(&Told::bare(format!("- and {more} more\n"))),
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// A rule that is broken, and below it those of its alternatives: none holds.
fn lines(error: &ValidationError<'_>, mask: Option<&str>, depth: usize) -> String {
    let mut text = format!("{}- at '{}': {}\n", "  ".repeat(depth), error.instance_path(), broken(error, mask));
    if let ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } = error.kind()
        && depth < DEPTH
    {
        let below = context.iter().flatten().take(OF_ALTERNATIVES);
        text.extend(below.map(|error| lines(error, mask, depth + 1)));
    }
    text
}

/// The rule that is broken, with what breaks it, or something in place of it.
fn broken(error: &ValidationError<'_>, mask: Option<&str>) -> String {
    match (error.kind(), mask) {
        // What masks values does not reach the error in here.
        (ValidationErrorKind::PropertyNames { error }, _) => broken(error, mask.map(|_| "a key")),
        // Ours alone, which say nothing of what breaks them.
        (ValidationErrorKind::Custom { message, .. }, None) => cut(&format!("{} {message}", error.instance())),
        (ValidationErrorKind::Custom { message, .. }, Some(mask)) => format!("{mask} {message}"),
        // The engine's words may quote what it read.
        (ValidationErrorKind::RegexEngineFailure { .. }, Some(mask)) => {
            format!("{mask} can't be matched with its pattern")
        }
        (_, None) => quoting(error),
        (_, Some(mask)) => error.masked_with(mask).to_string(),
    }
}

/// The rule that is broken, with what breaks it where that is a single value: of a whole map or list, which may hold passwords and be
/// long, what it is.
fn quoting(error: &ValidationError<'_>) -> String {
    use ValidationErrorKind::{
        AdditionalItems, AdditionalProperties, Required, UnevaluatedItems, UnevaluatedProperties,
    };
    let is_of_parts = matches!(
        error.kind(),
        AdditionalItems { .. }
            | AdditionalProperties { .. }
            | Required { .. }
            | UnevaluatedItems { .. }
            | UnevaluatedProperties { .. }
    );
    cut(&match &**error.instance() {
        serde_json::Value::Object(_) if !is_of_parts => error.masked_with("a map").to_string(),
        serde_json::Value::Array(_) if !is_of_parts => error.masked_with("a list").to_string(),
        _ => error.to_string(),
    })
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_draft_counts_and_nothing_is_fetched() {
        for draft in [
            "http://json-schema.org/draft-04/schema#",
            "http://json-schema.org/draft-06/schema#",
            "http://json-schema.org/draft-07/schema#",
            "https://json-schema.org/draft/2019-09/schema",
            "https://json-schema.org/draft/2020-12/schema",
        ] {
            let text = format!(r#"{{"$schema":"{draft}","properties":{{"a":{{"type":"integer"}}}}}}"#);
            let validator = compile(text.as_bytes()).unwrap();
            let fits = |a: serde_json::Value| validator.is_valid(&serde_json::json!({ "a": a }));
            assert!(fits(1.into()) && !fits("x".into()), "{draft}");
        }
        for place in ["http://127.0.0.1:9/s.json", "https://example.com/s.json", "file:///etc/hostname"] {
            let text = format!(r#"{{"properties":{{"a":{{"$ref":"{place}"}}}}}}"#);
            let problem = compile(text.as_bytes()).unwrap_err();
            assert!(problem.contains("refer to itself alone"), "{place}: {problem}");
        }
        assert!(compile(br#"{"properties":{"a":{"$ref":"other.json"}}}"#).is_err());
    }

    #[test]
    fn what_is_no_schema_is_told_with_its_place() {
        for (text, expected) in [
            (
                r#"{"properties":{"a":{"properties":{"b":{"type":"strng"}}}}}"#,
                "no valid schema at '/properties/a/properties/b/type'",
            ),
            (r#"{"properties":"#, "values.schema.json is no JSON: EOF"),
        ] {
            let problem = compile(text.as_bytes()).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
    }

    #[test]
    fn a_map_is_not_quoted_and_alternatives_are_told() {
        let told = |schema: &str, values: serde_json::Value| {
            let values = super::super::go_template::json::from_json(&values);
            check_one(&Schema::new(Bytes::copy_from_slice(schema.as_bytes())), &values).unwrap_err().to_string()
        };
        let either = r#"{"properties":{"auth":{"oneOf":[{"required":["existingSecret"]},{"required":["user"],"properties":{"user":{"type":"string"}}}]}}}"#;
        let said = told(either, serde_json::json!({"auth": {"password": "s3cr3t", "user": 5}}));
        assert_eq!(
            said,
            "- at '/auth': a map is not valid under any of the schemas listed in the 'oneOf' keyword\n  \
             - at '/auth': \"existingSecret\" is a required property\n  - at '/auth/user': 5 is not of type \"string\"\n"
        );
        let many: serde_json::Map<String, serde_json::Value> =
            (0..3000).map(|n| (format!("key-{n}"), "s3cr3t".into())).collect();
        for schema in [
            r#"{"properties":{"a":{"type":"string"}}}"#,
            r#"{"properties":{"a":{"additionalProperties":false}}}"#,
            r#"{"properties":{"a":{"additionalProperties":{"type":"integer"}}}}"#,
        ] {
            let said = told(schema, serde_json::json!({"a": many}));
            assert!(said.len() < 8000, "{} bytes", said.len());
        }
    }
}
