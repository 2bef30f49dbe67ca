//! From rendered texts to documents in the order in which they are installed.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::error::RenderError;
use super::metadata::{json_type, string, string_map};
use super::{LeftOut, Needs};
use crate::core::yaml;

/// A rendered object.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The template it came from: `chart/templates/x.yaml`.
    pub source: String,
    /// The object.
    pub object: Json,
    /// The text as rendered.
    pub text: String,
    /// When it is no part of the release itself.
    pub hook: Option<Hook>,
    /// From a chart's `crds/`.
    pub is_crd: bool,
}

/// When and how a hook runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hook {
    /// `pre-install`, `test`, and so on.
    pub events: Vec<String>,
    /// Lower ones run first.
    pub weight: i64,
    /// `hook-succeeded`, `before-hook-creation`, and so on.
    pub delete_policies: Vec<String>,
}

const EVENTS: [&str; 9] = [
    "pre-install",
    "post-install",
    "pre-delete",
    "post-delete",
    "pre-upgrade",
    "post-upgrade",
    "pre-rollback",
    "post-rollback",
    "test",
];

/// Kinds in the order of installation; others follow in alphabetical order.
const ORDER: [&str; 36] = [
    "PriorityClass",
    "Namespace",
    "NetworkPolicy",
    "ResourceQuota",
    "LimitRange",
    "PodSecurityPolicy",
    "PodDisruptionBudget",
    "ServiceAccount",
    "Secret",
    "SecretList",
    "ConfigMap",
    "StorageClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleList",
    "ClusterRoleBinding",
    "ClusterRoleBindingList",
    "Role",
    "RoleList",
    "RoleBinding",
    "RoleBindingList",
    "Service",
    "DaemonSet",
    "Pod",
    "ReplicationController",
    "ReplicaSet",
    "Deployment",
    "HorizontalPodAutoscaler",
    "StatefulSet",
    "Job",
    "CronJob",
    "IngressClass",
    "Ingress",
    "APIService",
];

/// What a document is to the release.
enum Role {
    Part,
    Hook(Hook),
    /// A hook that Helm doesn't know: the document is dropped.
    Unknown(String),
}

/// What Helm looks at in a document.
#[derive(Debug, Default)]
struct Head {
    kind: String,
    annotations: Vec<(String, String)>,
}

impl Head {
    fn read(json: &Json) -> Result<Self, String> {
        let map = match json {
            Json::Null => return Ok(Self::default()),
            Json::Object(map) => map,
            other => {
                return Err(format!(
                    "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into Go value of type releaseutil.SimpleHead",
                    json_type(other)
                ));
            }
        };
        let text = |json: Option<&Json>, field: &str| json.map_or(Ok(String::new()), |json| string(json, field));
        text(map.get("apiVersion"), "SimpleHead.apiVersion")?;
        let kind = text(map.get("kind"), "SimpleHead.kind")?;
        let annotations = match map.get("metadata") {
            None | Some(Json::Null) => Vec::new(),
            Some(Json::Object(metadata)) => {
                text(metadata.get("name"), "SimpleHead.metadata.name")?;
                let annotations = metadata.get("annotations").unwrap_or(&Json::Null);
                string_map(annotations, "SimpleHead.metadata.annotations")?
            }
            Some(other) => {
                return Err(format!(
                    "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into Go struct field SimpleHead.metadata",
                    json_type(other)
                ));
            }
        };
        Ok(Self { kind, annotations })
    }

    fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn role(&self) -> Role {
        let words = |text: &str| -> Vec<String> { text.split(',').map(|word| word.trim().to_lowercase()).collect() };
        let Some(events) = self.annotation("helm.sh/hook") else { return Role::Part };
        let mut events = words(events);
        for event in &mut events {
            if event == "test-success" {
                "test".clone_into(event);
            }
            if !EVENTS.contains(&event.as_str()) {
                return Role::Unknown(std::mem::take(event));
            }
        }
        let weight = self.annotation("helm.sh/hook-weight").and_then(|weight| weight.parse().ok()).unwrap_or(0);
        let delete_policies = self.annotation(crate::api::HELM_HOOK_DELETE_POLICY).map(words).unwrap_or_default();
        Role::Hook(Hook { events, weight, delete_policies })
    }
}

/// Splits a stream of YAML as Helm does: at lines that start with `---`.
fn split(text: &str) -> Vec<&str> {
    const BLANKS: [char; 5] = [' ', '\t', '\n', '\r', '\u{c}'];
    let text = text.trim();
    let mut parts = Vec::new();
    let mut start = 0;
    let mut from = 0;
    while let Some(at) = text[from..].find("---").map(|found| from + found) {
        let line_start = at == 0 || (at > start && text.as_bytes()[at - 1] == b'\n');
        if !line_start {
            from = at + 1;
            continue;
        }
        parts.push(text[start..at].trim_end_matches(BLANKS));
        let rest = &text[at + 3..];
        start = text.len() - rest.trim_start_matches(BLANKS).len();
        from = start;
    }
    parts.push(&text[start..]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// Reads a document as it stands in Helm's output, with a line break behind it: a block scalar at its end keeps one.
fn parse(part: &str) -> Result<Json, yaml::Error> {
    yaml::parse(&format!("{part}\n"))
}

/// Characters that are shown of a line.
const SHOWN: usize = 300;

/// What is wrong, and the rendered line that it was noticed in.
fn not_yaml(part: &str, error: &yaml::Error) -> String {
    let line = part.lines().nth(error.line().saturating_sub(1)).unwrap_or_default().trim_end();
    let rest = if line.chars().nth(SHOWN).is_some() { "…" } else { "" };
    let line: String = line.chars().take(SHOWN).collect();
    let shown = if line.trim().is_empty() { String::new() } else { format!("\n  | {line}{rest}") };
    format!("error converting YAML to JSON: {error}{shown}")
}

/// The documents of rendered files, in Helm's order: by kind, hooks last; and those that are hooks of nothing.
pub(super) fn sorted(
    files: &BTreeMap<String, String>,
    comments: bool,
) -> Result<(Vec<Document>, Vec<LeftOut>), RenderError> {
    let (mut documents, mut left_out): (Vec<(bool, usize, String, Document)>, _) = (Vec::new(), Vec::new());
    for (path, text) in files {
        for part in split(text) {
            let bad = |message: String| RenderError::Manifest { path: path.clone(), message, lacks: Needs::default() };
            let object = parse(part).map_err(|error| bad(not_yaml(part, &error)))?;
            let head = Head::read(&object).map_err(bad)?;
            let hook = match head.role() {
                Role::Part => None,
                Role::Hook(hook) => Some(hook),
                Role::Unknown(hook) => {
                    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                    left_out.push(LeftOut { source: path.clone(), kind: head.kind, name, hook });
                    continue;
                }
            };
            if object.is_null() && !comments {
                continue;
            }
            let rank = ORDER.iter().position(|kind| *kind == head.kind).unwrap_or(ORDER.len());
            let document = Document { source: path.clone(), object, text: part.to_owned(), hook, is_crd: false };
            documents.push((document.hook.is_some(), rank, head.kind, document));
        }
    }
    documents.sort_by(|a, b| {
        (a.0, a.1, if a.1 == ORDER.len() { &a.2 } else { "" }).cmp(&(
            b.0,
            b.1,
            if b.1 == ORDER.len() { &b.2 } else { "" },
        ))
    });
    Ok((documents.into_iter().map(|(_, _, _, document)| document).collect(), left_out))
}

/// A file in `crds/` as one document, whatever it holds.
pub(super) fn unread_crds(source: String, text: String) -> Document {
    Document { source, object: Json::Null, text, hook: None, is_crd: true }
}

/// The documents of a file in `crds/`.
pub(super) fn crds(path: &str, text: &str, documents: &mut Vec<Document>) -> Result<(), RenderError> {
    for part in split(text) {
        let object = parse(part).map_err(|error| RenderError::Manifest {
            path: path.to_owned(),
            message: format!("error converting YAML to JSON: {error}"),
            lacks: Needs::default(),
        })?;
        if !object.is_null() {
            let (source, text) = (path.to_owned(), part.to_owned());
            documents.push(Document { source, object, text, hook: None, is_crd: true });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_the_rendered_line() {
        let files = BTreeMap::from([("x.yaml".to_owned(), "a: b\n---\nc: d\n  e: [f\n".to_owned())]);
        let error = sorted(&files, false).unwrap_err().to_string();
        assert!(error.contains("line 2, column 4") && error.ends_with("\n  |   e: [f"), "{error}");
    }

    #[test]
    fn of_a_long_line_an_error_shows_the_beginning() {
        let files = BTreeMap::from([("x.yaml".to_owned(), format!("a: b\n  c: {}\n", "ä".repeat(100_000)))]);
        let error = sorted(&files, false).unwrap_err().to_string();
        assert!(error.contains("\n  |   c: ää") && error.ends_with("ä…") && error.chars().count() < 600, "{error}");
    }

    #[test]
    fn streams_are_split_as_in_helm() {
        assert_eq!(split("---\na: 1\n---\n\n---\nb: 2\n"), ["a: 1", "---\nb: 2"]);
        assert_eq!(split("a: |\n  ---\nb: 1"), ["a: |\n  ---\nb: 1"]);
        assert_eq!(split("\n\n"), Vec::<&str>::new());
        assert_eq!(split("a: 1\n--- # x\nb: 2"), ["a: 1", "# x\nb: 2"]);
    }

    #[test]
    fn documents_come_by_kind_and_hooks_last() {
        let files = BTreeMap::from([(
            "c/templates/x.yaml".to_owned(),
            [
                "kind: Zebra",
                "kind: Deployment",
                "kind: Job\nmetadata: {annotations: {helm.sh/hook: 'pre-install, test-success', helm.sh/hook-weight: '-5'}}",
                "kind: Pod\nmetadata: {annotations: {helm.sh/hook: crd-install}}",
                "kind: Apple",
                "kind: Namespace",
                "# nothing",
            ]
            .join("\n---\n"),
        )]);
        let (documents, left_out) = sorted(&files, false).unwrap();
        let kinds: Vec<_> = documents.iter().map(|document| document.object["kind"].as_str().unwrap()).collect();
        let left_out: Vec<_> = left_out.iter().map(ToString::to_string).collect();
        assert_eq!(left_out, ["Pod  is left out: its helm.sh/hook \"crd-install\" is none that Helm knows"]);
        assert_eq!(kinds, ["Namespace", "Deployment", "Apple", "Zebra", "Job"]);
        let hook = documents[4].hook.as_ref().unwrap();
        assert_eq!(
            (hook.events.as_slice(), hook.weight),
            (["pre-install".to_owned(), "test".to_owned()].as_slice(), -5)
        );
    }
}
