//! What `clusterstack provider-check` finds in a provider's definitions, roles and objects.

use serde::Serialize;
use serde_json::Value;

use super::{State, state};
use crate::api::{AGGREGATE_LABEL, PROVIDER_CONTRACT, PROVIDER_CONTRACT_LABEL};

#[cfg(test)]
mod tests;

/// What came of a check. The words are API of `-o json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// As the contract asks.
    Passed,
    /// Against the contract.
    Failed,
    /// It works, and could be better.
    Advised,
    /// It could not be looked at.
    Skipped,
}

/// One check. The field names are API of `-o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// What came of it.
    pub outcome: Outcome,
    /// What was found.
    pub message: String,
    /// What to do; empty where nothing is to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub todo: String,
}

impl Check {
    /// As the contract asks.
    pub fn passed(name: &'static str, message: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Passed, message: message.into(), todo: String::new() }
    }

    /// Against the contract, and what to do.
    pub fn failed(name: &'static str, message: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Failed, message: message.into(), todo: todo.into() }
    }

    /// Works, and could be better.
    pub fn advised(name: &'static str, message: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Advised, message: message.into(), todo: todo.into() }
    }

    /// Could not be looked at, and why.
    pub fn skipped(name: &'static str, message: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Skipped, message: message.into(), todo: String::new() }
    }
}

/// The version of a CustomResourceDefinition that is looked at.
fn version<'a>(definition: &'a Value, version: &str) -> Option<&'a Value> {
    let versions = definition.pointer("/spec/versions").and_then(Value::as_array)?;
    versions.iter().find(|one| one["name"] == version)
}

/// What becomes of a field at a path of a schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    /// The schema has it, with this type.
    Declared,
    /// The schema has it, with another type.
    Mistyped,
    /// The schema keeps what it does not know.
    Kept,
    /// The API server throws it away.
    Pruned,
}

fn field(schema: &Value, path: &[&str], type_: &str) -> Field {
    let mut at = schema;
    for name in path {
        match at.pointer("/properties").and_then(|properties| properties.get(name)) {
            Some(next) => at = next,
            None if at["x-kubernetes-preserve-unknown-fields"] == true => return Field::Kept,
            None if at["additionalProperties"].is_object() || at["additionalProperties"] == true => return Field::Kept,
            None => return Field::Pruned,
        }
    }
    match at["type"].as_str() {
        Some(found) if found == type_ => Field::Declared,
        None if at["x-kubernetes-preserve-unknown-fields"] == true => Field::Kept,
        _ => Field::Mistyped,
    }
}

/// The fields that the operator reads, and what they are.
const STATUS: [(&str, &str); 3] = [("ready", "boolean"), ("failureReason", "string"), ("failureMessage", "string")];

/// What the definition of a provider's kind says against the contract; `served` is the version that the operator uses.
pub fn of_definition(definition: &Value, served: &str) -> Vec<Check> {
    let Some(version) = version(definition, served) else {
        return vec![Check::skipped(
            "definition",
            format!("it is not defined by a CustomResourceDefinition in {served}"),
        )];
    };
    let schema = version.pointer("/schema/openAPIV3Schema").unwrap_or(&Value::Null);
    let mut checks = vec![scope(definition, "scope")];
    checks.push(if version.pointer("/subresources/status").is_some() {
        Check::passed("status subresource", "it has one")
    } else {
        let todo = format!("give version {served} of the definition `subresources: {{status: {{}}}}`");
        Check::failed("status subresource", "it has none: who may write the spec could write the status", todo)
    });
    for (name, type_) in STATUS {
        checks.push(status_field(schema, name, type_));
    }
    checks.push(contract_label(definition));
    checks
}

fn status_field(schema: &Value, name: &str, type_: &str) -> Check {
    let of = |found: &Field| *found == Field::Declared || *found == Field::Kept;
    let found = field(schema, &["status", name], type_);
    let check = match name {
        "ready" => "status.ready",
        "failureReason" => "status.failureReason",
        _ => "status.failureMessage",
    };
    if of(&found) {
        return Check::passed(check, format!("a {type_}"));
    }
    let message = if found == Field::Pruned {
        "the schema has no such field, so it is thrown away"
    } else {
        "it has another type"
    };
    let todo = format!("declare `{name}: {{type: {type_}}}` below status");
    // Who never fails needs no word for it; but who fails without one is waited for without end.
    if name == "ready" || found == Field::Mistyped {
        Check::failed(check, message, todo)
    } else {
        Check::advised(check, format!("{message}: a failure could not be told"), todo)
    }
}

fn scope(definition: &Value, name: &'static str) -> Check {
    if definition.pointer("/spec/scope").and_then(Value::as_str) == Some("Namespaced") {
        return Check::passed(name, "its objects live in namespaces");
    }
    let todo = "make the definition `scope: Namespaced`: an object belongs to the release of its namespace";
    Check::failed(name, "its objects live in no namespace", todo)
}

fn contract_label(definition: &Value) -> Check {
    let label = definition.pointer("/metadata/labels").and_then(|labels| labels.get(PROVIDER_CONTRACT_LABEL));
    match label.and_then(Value::as_str) {
        Some(value) if value == PROVIDER_CONTRACT => Check::passed("contract label", format!("contract {value}")),
        Some(value) => {
            let todo = format!("label the definition {PROVIDER_CONTRACT_LABEL}={PROVIDER_CONTRACT} if it follows that");
            Check::advised("contract label", format!("it says contract {value}, this is {PROVIDER_CONTRACT}"), todo)
        }
        None => {
            let todo = format!("label the definition {PROVIDER_CONTRACT_LABEL}={PROVIDER_CONTRACT}");
            Check::advised("contract label", "nothing says which contract it follows", todo)
        }
    }
}

/// What the definition of a provider's template says against the contract.
pub fn of_template_definition(definition: &Value, served: &str) -> Vec<Check> {
    let Some(version) = version(definition, served) else {
        let message = format!("it is not defined by a CustomResourceDefinition in {served}");
        return vec![Check::skipped("template definition", message)];
    };
    let schema = version.pointer("/schema/openAPIV3Schema").unwrap_or(&Value::Null);
    let spec = field(schema, &["spec", "template", "spec"], "object");
    let mut checks = vec![scope(definition, "template scope")];
    checks.push(match spec {
        Field::Declared | Field::Kept => {
            Check::passed("spec.template.spec", "an object, from which the spec is cloned")
        }
        Field::Mistyped | Field::Pruned => Check::failed(
            "spec.template.spec",
            "the schema has no such object",
            "declare spec.template.spec in the definition of the template; it is cloned into each release's object",
        ),
    });
    checks
}

/// A right that the operator needs: on which resource, and to do what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// API group.
    pub group: String,
    /// Resource, in the plural.
    pub resource: String,
    /// Verbs.
    pub verbs: &'static [&'static str],
}

/// What the operator does with a provider's objects, and with its templates.
pub fn needs(group: &str, objects: &str, templates: &str) -> [Need; 2] {
    let need = |resource: &str, verbs| Need { group: group.to_owned(), resource: resource.to_owned(), verbs };
    [need(objects, &["get", "list", "watch", "create"]), need(templates, &["get"])]
}

/// What of it these roles do not grant, as `verb resource.group`.
pub fn not_granted(roles: &[Value], needs: &[Need]) -> Vec<String> {
    let rules = || roles.iter().flat_map(|role| role["rules"].as_array().into_iter().flatten());
    let holds = |rule: &Value, list: &str, value: &str| {
        rule[list].as_array().into_iter().flatten().any(|one| one == value || one == "*")
    };
    let grants = |rule: &Value, need: &Need, verb: &str| {
        let all = rule["resourceNames"].as_array().is_none_or(Vec::is_empty);
        all && holds(rule, "apiGroups", &need.group)
            && holds(rule, "resources", &need.resource)
            && holds(rule, "verbs", verb)
    };
    let mut missing = Vec::new();
    for need in needs {
        for verb in need.verbs {
            if !rules().any(|rule| grants(rule, need, verb)) {
                missing.push(format!("{verb} {}.{}", need.resource, need.group));
            }
        }
    }
    missing
}

/// What is missing of the rights of the operator.
pub fn of_rights(missing: &[String], who: &str) -> Check {
    if missing.is_empty() {
        return Check::passed("rights", format!("{who} what the operator does with them"));
    }
    let todo = format!(
        "ship a ClusterRole labelled {AGGREGATE_LABEL}=true with get, list, watch, create on the objects and get on the \
         templates (docs/provider-contract.md); name the operator's account with --operator where it has its rights otherwise"
    );
    Check::failed("rights", format!("the operator may not: {}", missing.join(", ")), todo)
}

/// What is found in the object once its provider has answered.
pub fn of_answer(object: &Value, made: &Value) -> Vec<Check> {
    let mut checks = Vec::new();
    let ready = object.pointer("/status/ready").and_then(Value::as_bool);
    match state(object) {
        State::Ready => checks.push(Check::passed("becomes ready", "status.ready is true")),
        State::Failed { reason, message } => {
            let both = if ready == Some(true) { ", and says ready at once" } else { "" };
            let todo = "read the provider's message and log; a release that uses this template stays unready";
            checks.push(Check::failed("becomes ready", format!("it failed{both}: {reason}: {message}"), todo));
            if message.is_empty() {
                let todo = "say in status.failureMessage what went wrong and what to do";
                checks.push(Check::advised("failure message", "it is empty", todo));
            }
        }
        State::Preparing { .. } => checks.push(Check::failed(
            "becomes ready",
            "it says neither status.ready nor status.failureReason",
            "see that the provider's controller runs and watches this namespace; raise --timeout if it only takes long",
        )),
    }
    let lost = lost(object, made);
    checks.push(if lost.is_empty() {
        Check::passed("metadata kept", "owner reference, labels and annotations are as they were made")
    } else {
        let todo =
            "change only metadata of your own: patch, and never write lists or maps that others share as a whole";
        Check::failed("metadata kept", format!("the provider took away {}", lost.join(", ")), todo)
    });
    checks
}

/// What of the metadata that we made is gone.
fn lost(object: &Value, made: &Value) -> Vec<String> {
    let mut lost = Vec::new();
    let owner = made.pointer("/metadata/ownerReferences/0/uid");
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    if !owners.into_iter().flatten().any(|one| Some(&one["uid"]) == owner) {
        lost.push("the owner reference".to_owned());
    }
    for map in ["labels", "annotations"] {
        let pointer = format!("/metadata/{map}");
        for (key, value) in made.pointer(&pointer).and_then(Value::as_object).into_iter().flatten() {
            if object.pointer(&pointer).and_then(|there| there.get(key)) != Some(value) {
                lost.push(format!("{} {key}", map.trim_end_matches('s')));
            }
        }
    }
    lost
}

/// What came of the deletion: `left` is the object as it was last seen, if it is still there.
pub fn of_deletion(left: Option<&Value>) -> Check {
    let Some(left) = left else { return Check::passed("goes when deleted", "it is gone") };
    let finalizers = left.pointer("/metadata/finalizers").and_then(Value::as_array);
    let names: Vec<&str> = finalizers.into_iter().flatten().filter_map(Value::as_str).collect();
    let message =
        if names.is_empty() { "it is still there".to_owned() } else { format!("{} hold it", names.join(", ")) };
    let todo = "remove your finalizer once what the object stands for is gone; a release can't go before its object";
    Check::failed("goes when deleted", message, todo)
}
