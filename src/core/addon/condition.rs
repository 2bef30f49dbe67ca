//! Conditions of stages: an expression in CEL over objects of the workload cluster.

use std::collections::BTreeMap;

use cel::{Context, Program, Value as Cel};
use serde_json::Value;
use thiserror::Error;

use crate::core::addon_config::WaitFor;

/// Most bytes of an expression.
pub const MAX_EXPRESSION: usize = 4096;
/// Most brackets that are open at once: parser and evaluator go down the stack with them.
const MAX_DEPTH: usize = 16;
/// Most operators and dots, for the same reason: `a.b.c` and `a + b + c` are as deep as they are long.
const MAX_OPERATORS: usize = 100;

/// What CEL itself calls by name.
const TYPES: [&str; 10] = ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];

/// Bytes of stack that parsing and evaluating take at most within these limits, several times over: more than the threads
/// of a runtime have.
pub const STACK: usize = 64 << 20;

/// Why a condition gives no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConditionError {
    /// The expression is too long.
    #[error("the expression has more than {MAX_EXPRESSION} bytes")]
    TooLong,
    /// The expression is too deep.
    #[error(
        "the expression has more than {MAX_DEPTH} open brackets or {MAX_OPERATORS} operators: split it into stages"
    )]
    TooDeep,
    /// The expression is no CEL.
    #[error("the expression does not compile: {0}")]
    Compile(String),
    /// It reads something that is no object of its own.
    #[error("the expression reads {0}, which is the key of none of its objects")]
    NoKey(String),
    /// It names what no object has, or compares what can't be compared.
    #[error("the expression can't be evaluated: {0}")]
    Evaluate(String),
    /// It was not evaluated to its end.
    #[error("the expression was not evaluated: {0}")]
    Aborted(String),
    /// It gives something else than true or false.
    #[error("the expression gives {0}, not true or false")]
    NotBool(&'static str),
}

fn compile(expression: &str) -> Result<Program, ConditionError> {
    if expression.len() > MAX_EXPRESSION {
        return Err(ConditionError::TooLong);
    }
    if is_too_deep(expression) {
        return Err(ConditionError::TooDeep);
    }
    Program::compile(expression).map_err(|error| {
        let lines: Vec<String> = error.to_string().lines().map(|line| line.trim().to_owned()).collect();
        ConditionError::Compile(lines.join(" "))
    })
}

/// Counts brackets and operators wherever they stand, in texts too: a stack overflow can't be caught.
fn is_too_deep(expression: &str) -> bool {
    let (mut depth, mut deepest, mut operators) = (0_usize, 0, 0_usize);
    for character in expression.bytes() {
        match character {
            b'(' | b'[' | b'{' => {
                depth += 1;
                operators += 1;
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'.' | b'+' | b'-' | b'*' | b'/' | b'%' | b'!' | b'?' | b'<' | b'>' | b'=' | b'&' | b'|' => operators += 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest > MAX_DEPTH || operators > MAX_OPERATORS || expression.matches(" in ").count() > MAX_DEPTH
}

/// Whether a condition holds over the objects, by their keys. Without an expression it does.
///
/// # Errors
/// What is wrong with it.
pub fn holds(wait: &WaitFor, objects: &BTreeMap<String, Value>) -> Result<bool, ConditionError> {
    if wait.conditions.trim().is_empty() {
        return Ok(true);
    }
    let program = compile(&wait.conditions)?;
    let mut context = Context::default();
    for (key, object) in objects {
        context.add_variable(key.clone(), object).map_err(|error| ConditionError::Evaluate(error.to_string()))?;
    }
    match program.execute(&context) {
        Ok(Cel::Bool(holds)) => Ok(holds),
        Ok(other) => Err(ConditionError::NotBool(kind_of(&other))),
        Err(error) => Err(ConditionError::Evaluate(error.to_string())),
    }
}

/// Looks at a condition before there are objects. It takes [`STACK`] as [`holds`] does.
///
/// # Errors
/// What is wrong with it whatever the objects hold.
pub fn check(wait: &WaitFor) -> Result<(), ConditionError> {
    if wait.conditions.trim().is_empty() {
        return Ok(());
    }
    let program = compile(&wait.conditions)?;
    let references = program.references();
    let mut variables = references.variables();
    variables.sort_unstable();
    let is_known = |name: &str| {
        wait.objects.iter().any(|object| object.key == name)
            || TYPES.contains(&name)
            || is_loop_variable(&wait.conditions, name)
    };
    if let Some(name) = variables.iter().find(|name| !is_known(name)) {
        return Err(ConditionError::NoKey((*name).to_owned()));
    }
    // What reads nothing always gives the same.
    if variables.is_empty() { holds(wait, &BTreeMap::new()).map(drop) } else { Ok(()) }
}

/// Whether a macro such as `exists(c, ...)` binds the name: the parser tells these apart from nothing else.
fn is_loop_variable(expression: &str, name: &str) -> bool {
    expression.match_indices(name).any(|(at, _)| {
        expression[..at].trim_end().ends_with('(') && expression[at + name.len()..].trim_start().starts_with(',')
    })
}

fn kind_of(value: &Cel) -> &'static str {
    match value {
        Cel::String(_) => "a text",
        Cel::Int(_) | Cel::UInt(_) | Cel::Float(_) => "a number",
        Cel::List(_) => "a list",
        Cel::Map(_) => "a map",
        Cel::Null => "null",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// On a stack of the size that is asked for.
    fn evaluate(expression: &str) -> Result<bool, ConditionError> {
        let expression = expression.to_owned();
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || evaluate_here(&expression));
        thread.unwrap().join().unwrap()
    }

    fn evaluate_here(expression: &str) -> Result<bool, ConditionError> {
        let deployment = json!({"spec": {"replicas": 2}, "status": {"readyReplicas": 2, "conditions": [
            {"type": "Available", "status": "True"}, {"type": "Progressing", "status": "False"}]}});
        let wait = WaitFor { objects: Vec::new(), conditions: expression.into() };
        holds(
            &wait,
            &[("first".to_owned(), deployment), ("second".to_owned(), json!({"spec": {"replicas": 2}}))].into(),
        )
    }

    #[test]
    fn expressions_of_real_stacks_are_evaluated() {
        for (expression, expected) in [
            ("", true),
            ("first.spec.replicas == second.spec.replicas", true),
            ("first.spec.replicas == first.status.readyReplicas && first.spec.replicas > 1", true),
            ("first.status.conditions.exists(c, c.type == 'Available' && c.status == 'True')", true),
            ("first.status.conditions.all(c, c.status == 'True')", false),
            ("has(first.status.missing)", false),
            ("has(first.status.missing) && first.status.missing == 1", false),
            ("size(first.status.conditions) == 2", true),
            ("!(first.spec.replicas == 3)", true),
        ] {
            assert_eq!(evaluate(expression), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn what_is_wrong_whatever_the_objects_hold_is_found_before() {
        for (expression, expected) in [
            ("", None),
            ("first.a == second.b", None),
            ("first.conditions.exists(c, c.type == 'Available') && type(first) == map", None),
            ("first ===", Some("does not compile")),
            ("first.a == frist.b", Some("reads frist, which is the key of none of its objects")),
            ("first.list.all(c, d == 1)", Some("reads d,")),
            ("1 + 1 == 2", None),
            ("1 + 1", Some("gives a number, not true or false")),
        ] {
            let object = |key: &str| crate::core::addon_config::WatchedObject {
                key: key.to_owned(),
                api_version: "v1".to_owned(),
                kind: "ConfigMap".to_owned(),
                name: "c".to_owned(),
                namespace: String::new(),
            };
            let wait = WaitFor { objects: vec![object("first"), object("second")], conditions: expression.to_owned() };
            let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || check(&wait));
            let problem = thread.unwrap().join().unwrap().err().map(|error| error.to_string());
            match expected {
                None => assert_eq!(problem, None, "{expression}"),
                Some(part) => {
                    assert!(problem.as_deref().is_some_and(|it| it.contains(part)), "{expression}: {problem:?}");
                }
            }
        }
    }

    #[test]
    fn what_gives_no_answer_says_why() {
        for (expression, expected) in [
            ("first.spec.replicas", "gives a number, not true or false"),
            ("first.spec.nothing == 1", "nothing"),
            ("third.spec.replicas == 1", "third"),
            ("first.spec.replicas ==", "does not compile"),
            ("first.spec.replicas == 'two' ++", "does not compile"),
        ] {
            let error = evaluate(expression).unwrap_err().to_string();
            assert!(error.contains(expected), "{expression}: {error}");
        }
        assert_eq!(evaluate(&"!".repeat(MAX_EXPRESSION + 1)), Err(ConditionError::TooLong));
    }

    #[test]
    fn no_expression_overflows_the_stack() {
        for (open, middle, close) in
            [("(", "true", ")"), ("[", "1", "]"), ("!", "true", ""), ("-", "1", ""), ("{1:", "1", "}")]
        {
            let nested = format!("{}{middle}{}", open.repeat(2000 / open.len()), close.repeat(2000 / open.len()));
            assert_eq!(evaluate(&nested), Err(ConditionError::TooDeep), "{open}");
            let n = if close.is_empty() { MAX_OPERATORS } else { MAX_DEPTH };
            let _ = evaluate(&format!("{}{middle}{}", open.repeat(n), close.repeat(n)));
        }
        for link in [".a", "+1", "&&true", "||false", "==1", "?1:1", "[0]", "()", " in [1]"] {
            let _ = evaluate(&format!("first{}", link.repeat(4000 / link.len())));
            let operators = link.bytes().filter(|b| b"([{.+-*/%!?<>=&|".contains(b)).count().max(1);
            let _ = evaluate(&format!("first{}", link.repeat((MAX_OPERATORS / operators).min(4000 / link.len()))));
        }
    }
}
