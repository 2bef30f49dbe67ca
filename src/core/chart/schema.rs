//! `values.schema.json`

use std::fmt::Write as _;

use super::dependencies::Node;
use super::error::RenderError;
use super::go_template::json::to_json;
use super::go_template::value::Value;
use super::scope::Tree;

/// Checks the values of a chart and its subcharts against their schemas.
pub(super) fn validate(tree: &Tree<'_>) -> Result<(), RenderError> {
    let mut problems = String::new();
    check(&tree.root, &Value::Map(tree.values.clone()), &mut problems);
    if problems.is_empty() { Ok(()) } else { Err(RenderError::Schema(problems)) }
}

fn check(node: &Node<'_>, values: &Value, problems: &mut String) {
    if let Some(schema) = &node.chart.schema
        && let Err(problem) = check_one(schema, values)
    {
        problems.push_str(&node.name);
        problems.push_str(":\n");
        problems.push_str(&problem);
    }
    for child in node.children() {
        if let Some(own @ Value::Map(_)) = values.as_map().and_then(|map| map.get(&child.name)) {
            check(&child, &own, problems);
        }
    }
}

fn check_one(schema: &[u8], values: &Value) -> Result<(), String> {
    let schema: serde_json::Value = serde_json::from_slice(schema).map_err(|error| error.to_string())?;
    let values = to_json(values).unwrap_or_default();
    let validator = jsonschema::options().build(&schema).map_err(|error| error.to_string())?;
    let mut problems = String::new();
    for error in validator.iter_errors(&values) {
        _ = writeln!(problems, "- at '{}': {error}", error.instance_path());
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}
