//! Conditions of stages: an expression in CEL over objects of the workload cluster.

use std::collections::BTreeMap;

use cel::{Context, ExecutionError, Program, Value as Cel};
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

/// What goes through a list or a map (CEL's specification, "Macros").
const MACROS: [&str; 5] = ["all(", "exists(", "exists_one(", "filter(", "map("];

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
        let unread = |_| ConditionError::Evaluate(format!("the object {key} can't be read"));
        context.add_variable(key.clone(), object).map_err(unread)?;
    }
    match program.execute(&context) {
        Ok(Cel::Bool(holds)) => Ok(holds),
        Ok(other) => Err(ConditionError::NotBool(kind_of(&other))),
        Err(error) => Err(ConditionError::Evaluate(why(&error, &wait.conditions))),
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
    // What reads nothing always gives the same. What goes through lists in each other may take for ever.
    let macros = MACROS.iter().map(|name| wait.conditions.matches(name).count()).sum::<usize>();
    if variables.is_empty() && macros <= 1 { holds(wait, &BTreeMap::new()).map(drop) } else { Ok(()) }
}

/// Whether a macro such as `exists(c, ...)` binds the name: the parser tells these apart from nothing else.
fn is_loop_variable(expression: &str, name: &str) -> bool {
    expression.match_indices(name).any(|(at, _)| {
        expression[..at].trim_end().ends_with('(') && expression[at + name.len()..].trim_start().starts_with(',')
    })
}

/// Why an evaluation failed, in words of our own: those of CEL quote values, and an object may be a Secret. What is
/// named stands in the expression.
fn why(error: &ExecutionError, expression: &str) -> String {
    match error {
        ExecutionError::NoSuchKey(key) if stands_in(expression, key) => format!("no such key: {key}"),
        ExecutionError::NoSuchKey(_) => "no such key: its name comes of an object, and is left out".to_owned(),
        ExecutionError::UndeclaredReference(name) if stands_in(expression, name) => {
            format!("there is no object or function called {name}")
        }
        ExecutionError::NoSuchOverload(call) if call.function() == "_._" => {
            format!("{} has no fields", call.argument_types().first().map_or("something", |name| type_named(name)))
        }
        ExecutionError::NoSuchOverload(call) => {
            let types: Vec<&str> = call.argument_types().iter().map(|name| type_named(name)).collect();
            format!("{} can't be applied to {}", function(call.function(), expression), types.join(" and "))
        }
        ExecutionError::UnsupportedBinaryOperator(operator, left, right) => {
            format!("{} can't be applied to {} and {}", sign(operator), type_of(left), type_of(right))
        }
        ExecutionError::ValuesNotComparable(left, right) => {
            format!("{} and {} can't be compared", type_of(left), type_of(right))
        }
        ExecutionError::UnsupportedIndex(index, of) => format!("{} is no index of {}", type_of(index), type_of(of)),
        ExecutionError::UnsupportedKeyType(key) => format!("{} is no key of a map", type_of(key)),
        ExecutionError::UnexpectedType { got, want } => {
            format!("there is {} where {} is wanted", type_named(got), type_named(want))
        }
        ExecutionError::NotSupportedAsMethod { method, target } => {
            format!("{} has no method {}", type_of(target), function(method, expression))
        }
        ExecutionError::UnsupportedTargetType { target } => format!("a function does not take {}", type_of(target)),
        ExecutionError::InvalidArgumentCount { expected, actual } => {
            format!("a function takes {expected} arguments and gets {actual}")
        }
        ExecutionError::MissingArgumentOrTarget => "a function lacks an argument".to_owned(),
        ExecutionError::FunctionError { function: name, .. } => {
            format!("{} fails with what it is given", function(name, expression))
        }
        ExecutionError::Overflow(operator, ..) => format!("{} gives a number that is too large", sign(operator)),
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "a division by zero".to_owned(),
        ExecutionError::IndexOutOfBounds(_) => "an index is past the end of its list".to_owned(),
        ExecutionError::DuplicateKey(_) => "a map has one key twice".to_owned(),
        _ => "an operation is not possible with what the objects hold".to_owned(),
    }
}

/// Whether a text is a whole word of the expression.
fn stands_in(expression: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    !word.is_empty()
        && expression.match_indices(word).any(|(at, _)| {
            let (before, after) = (&expression[..at], &expression[at + word.len()..]);
            !before.ends_with(is_part) && !after.starts_with(is_part)
        })
}

/// A function as the expression calls it: `_+_` is CEL's name of an operator.
fn function(name: &str, expression: &str) -> String {
    let called = name.replace('_', "");
    let is_operator = !called.is_empty() && called.chars().all(|character| character.is_ascii_punctuation());
    match name {
        "@in" => "in".to_owned(),
        _ if is_operator => called,
        _ if stands_in(expression, name) => name.to_owned(),
        _ => "a function".to_owned(),
    }
}

/// How an operator is written.
fn sign(operator: &'static str) -> &'static str {
    match operator {
        "add" => "+",
        "sub" => "-",
        "mul" => "*",
        "div" => "/",
        "rem" => "%",
        other => other,
    }
}

/// A type by CEL's name of it. Anything else may be a value: CEL puts one in the place of a type here and there.
fn type_named(name: &str) -> &'static str {
    match name {
        "bool" => "true or false",
        "string" => "a text",
        "bytes" => "bytes",
        "int" | "i64" => "a number (int)",
        "uint" | "u64" => "a number (uint)",
        "double" | "float" | "f64" => "a number (double)",
        "list" => "a list",
        "map" => "a map",
        "map key" => "a key of a map",
        "null" | "null_type" => "null",
        _ => "something else",
    }
}

/// The type of a value; CEL tells numbers apart.
fn type_of(value: &Cel) -> &'static str {
    match value {
        Cel::Int(_) => type_named("int"),
        Cel::UInt(_) => type_named("uint"),
        Cel::Float(_) => type_named("double"),
        other => kind_of(other),
    }
}

fn kind_of(value: &Cel) -> &'static str {
    match value {
        Cel::String(_) => "a text",
        Cel::Int(_) | Cel::UInt(_) | Cel::Float(_) => "a number",
        Cel::List(_) => "a list",
        Cel::Map(_) => "a map",
        Cel::Bool(_) => "true or false",
        Cel::Bytes(_) => "bytes",
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
            ("first.spec.nothing == 1", "can't be evaluated: no such key: nothing"),
            ("third.spec.replicas == 1", "there is no object or function called third"),
            ("first.spec.replicas ==", "does not compile"),
            ("first.spec.replicas == 'two' ++", "does not compile"),
        ] {
            let error = evaluate(expression).unwrap_err().to_string();
            assert!(error.contains(expected), "{expression}: {error}");
        }
        assert_eq!(evaluate(&"!".repeat(MAX_EXPRESSION + 1)), Err(ConditionError::TooLong));
    }

    #[test]
    fn nothing_that_an_object_holds_is_shown() {
        let secret = json!({"data": {"token": "aHVudGVyMg==", "pin": 48_151_623, "list": ["aHVudGVyMg=="], "no": {}}});
        for (expression, says) in [
            ("s.data.token + 1 == 2", "+ can't be applied to a text and a number"),
            ("s.data.token - s.data.pin == 2", "- can't be applied to a text and a number"),
            ("s.data.token && s.data.pin", "&& can't be applied to a text and a number"),
            ("s.data.token < 1", "a text and a number"),
            ("-s.data.token == 1", "a text"),
            ("!s.data.token", "a text"),
            ("s.data[s.data.token] == 1", "no such key: its name comes of an object, and is left out"),
            ("s.data[s.data.pin] == 1", "no such key: its name comes of an object, and is left out"),
            ("s.data['aHVudGVy'] == 1", "no such key: aHVudGVy"),
            ("s.data.phase == 1", "no such key: phase"),
            ("s.data.token.phase == 1", "a text has no fields"),
            ("s.data.list[s.data.pin] == 1", "past the end"),
            ("s.data.list[s.data.token] == 1", "[] can't be applied to a list and a text"),
            ("s.data.list[0].nothing() == 1", "nothing"),
            ("s.data.token.matches(s.data.token + '(')", "matches fails with what it is given"),
            ("int(s.data.token) == 1", "int fails with what it is given"),
            ("double(s.data.token) == 1.0", "double fails with what it is given"),
            ("bool(s.data.token)", "bool fails with what it is given"),
            ("size(s.data.pin) == 1", "size can't be applied to a number"),
            ("s.data.pin.startsWith('4')", "startsWith"),
            ("s.data.token.startsWith(s.data.pin)", "startsWith"),
            ("s.data.pin / (s.data.pin - s.data.pin) == 1", "a division by zero"),
            ("s.data.pin % (s.data.pin - s.data.pin) == 1", "a division by zero"),
            ("s.data.pin * 18446744073709551615u == 1u", "* gives a number that is too large"),
            ("s.data.pin * 2 == 1", "* can't be applied to a number (uint) and a number (int)"),
            ("s.data.token in s.data.token", "in can't be applied to a text and a text"),
            ("s.data.token.exists(c, c == 1)", ""),
            ("s.data.list.all(c, c + 1 == 1)", "can't be applied to a text and a number"),
            ("{s.data.token: 1, s.data.token: 2} == {}", ""),
            ("s.data.token ? true : false", ""),
            ("string(s.data.no) == 'a'", "string"),
            ("s.data.token", "gives a text, not true or false"),
        ] {
            let wait = WaitFor { objects: Vec::new(), conditions: expression.into() };
            let objects = BTreeMap::from([("s".to_owned(), secret.clone())]);
            let evaluation = move || holds(&wait, &objects);
            let answer = std::thread::Builder::new().stack_size(STACK).spawn(evaluation).unwrap().join().unwrap();
            let shown = answer.unwrap_err().to_string();
            assert!(shown.contains(says), "{expression}: {shown}");
            assert!(!shown.contains("aHVudGVyMg") && !shown.contains("4815"), "{expression}: {shown}");
        }
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
