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

fn compile(text: &[u8]) -> Result<Validator, String> {
    let mut schema: serde_json::Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    size::check(&schema)?;
    let formats = dialect::adapt(&mut schema)?;
    dialect::options(&formats)?.with_retriever(Refused).build(&schema).map_err(|error| error.to_string())
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
    let values = to_json(values).unwrap_or_default();
    if validator.is_valid(&values) {
        return Ok(());
    }
    let mut problems = Told::default();
    for error in validator.iter_errors(&values) {
        let said = |what: &str| format!("- at '{}': {what}\n", error.instance_path());
        problems.append(&Told::new(said(&broken(&error, None)), said(&broken(&error, Some("value")))));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// The rule that is broken, with what breaks it, or something in place of it.
fn broken(error: &ValidationError<'_>, mask: Option<&str>) -> String {
    match (error.kind(), mask) {
        // What masks values does not reach the error in here.
        (ValidationErrorKind::PropertyNames { error }, _) => broken(error, mask.map(|_| "a key")),
        // Ours alone, which say nothing of what breaks them.
        (ValidationErrorKind::Custom { message, .. }, None) => format!("{} {message}", error.instance()),
        (ValidationErrorKind::Custom { message, .. }, Some(mask)) => format!("{mask} {message}"),
        // The engine's words may quote what it read.
        (ValidationErrorKind::RegexEngineFailure { .. }, Some(mask)) => {
            format!("{mask} can't be matched with its pattern")
        }
        (_, None) => error.to_string(),
        (_, Some(mask)) => error.masked_with(mask).to_string(),
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
}
