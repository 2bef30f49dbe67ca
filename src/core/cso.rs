//! What an installation of the Go operator (cluster-stack-operator, CSO) means for ours, decided from what was read of it.

mod arguments;
mod backup;
mod keeper;
mod registered;
mod step;

pub use backup::{BackupError, backup};
pub use keeper::{HELM, applied_by, release, taken};
pub use registered::is_theirs;
pub use step::{is_finished, is_stopped, runs, unready};

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::api::{AGGREGATE_LABEL, ClusterStack, INFRASTRUCTURE_GROUP};
use crate::core::manifest::split_api_version;
use crate::core::rights::Role;

/// Label of all that CSO's manifest installs, and its value.
pub const LABEL: (&str, &str) = ("cluster.x-k8s.io/provider", "cluster-stack-operator");

/// Variables of CSO's container that name its one source, and that our operator reads, too.
const SOURCE: &[&str] = &["GIT_PROVIDER", "OCI_REGISTRY"];

/// Variables that our chart gives the container itself.
const OWN_VARIABLES: &[&str] = &["POD_NAME", "POD_NAMESPACE"];

/// The template of the built-in provider.
const OWN_TEMPLATE: &str = "ProviderClusterStackReleaseTemplate";

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Deployments with CSO's label.
    pub deployments: Vec<Value>,
    /// Its validating and mutating webhook configurations.
    pub webhooks: Vec<Value>,
    /// Its `ExtensionConfigs`.
    pub extensions: Vec<Value>,
    /// Kinds of objects in which Helm keeps its release, as kubectl names them; none where Helm knows of none.
    pub records: Vec<&'static str>,
    /// CRDs, of which their metadata.
    pub definitions: Vec<Value>,
    /// Our own operators, by kind, namespace and name.
    pub operators: Vec<String>,
    /// What is not as far as it has to be: pods of ours that are not ready, and pods of CSO that are left.
    pub unfinished: Vec<String>,
    /// ClusterStacks.
    pub stacks: Vec<Value>,
    /// ClusterStackReleases.
    pub releases: Vec<Value>,
    /// ClusterAddons.
    pub addons: Vec<Value>,
}

/// Something that a migration has to know. The field names are API of `-o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// Of which object.
    pub object: String,
    /// Whether nothing is migrated before it is solved.
    pub blocks: bool,
    /// What is so.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl Note {
    fn new(object: String, blocks: bool, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { object, blocks, message: message.into(), remedy: remedy.into() }
    }
}

/// `Kind namespace/name` of an object.
pub fn named(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default();
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let (namespace, name) = (text("namespace"), text("name"));
    if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") }
}

/// What has to be known before a migration; what blocks it comes first.
pub fn notes(facts: &Facts) -> Vec<Note> {
    let mut notes = keeper::notes(facts);
    if facts.deployments.is_empty() {
        let (message, remedy) = if facts.operators.is_empty() {
            let remedy = "nothing has to be migrated where it never ran; where it was renamed, stop it and remove its webhooks by hand";
            ("no CSO is found by its label", remedy)
        } else {
            ("no CSO is found by its label, and the operator is there", "nothing is left to migrate")
        };
        notes.push(Note::new("Deployment".into(), true, message, remedy));
    }
    if facts.deployments.len() > 1 {
        let message = format!("{} Deployments have CSO's label", facts.deployments.len());
        notes.push(Note::new("Deployment".into(), true, message, "remove the one that does nothing"));
    }
    // What an object brings is not looked into.
    let has_default = environment(facts).iter().any(|variable| SOURCE.iter().any(|name| variable["name"] == *name))
        || !list_of(facts, "envFrom").is_empty();
    let mut kinds = BTreeSet::new();
    for stack in &facts.stacks {
        let name = named(stack);
        if let Err(error) = serde_json::from_value::<ClusterStack>(stack.clone()) {
            notes.push(Note::new(name, true, format!("it can't be read: {error}"), "correct it"));
            continue;
        }
        let has_source = ["source", "sourceRef"].iter().any(|field| !stack["spec"][*field].is_null());
        if !has_source && !has_default {
            let message = "it names no source, and CSO's environment names none";
            notes.push(Note::new(name, true, message, "give it spec.source or spec.sourceRef, which CSO passes over"));
        }
        let provider = &stack["spec"]["providerRef"];
        let (group, _) = split_api_version(provider["apiVersion"].as_str().unwrap_or_default());
        let kind = provider["kind"].as_str().unwrap_or_default();
        // Providers of CSO have the group of ours.
        if !kind.is_empty() && (group, kind) != (INFRASTRUCTURE_GROUP, OWN_TEMPLATE) {
            kinds.insert(format!("{kind}.{group}"));
        }
    }
    for kind in kinds {
        let message = "a provider of others: the operator needs rights on its kinds";
        let remedy = format!("a ClusterRole with the label {AGGREGATE_LABEL}=true: docs/provider-contract.md");
        notes.push(Note::new(kind, false, message, remedy));
    }
    for kind in foreign_kinds(facts) {
        let message = "what releases brought: the operator needs rights on its kind";
        let remedy = format!("a ClusterRole with the label {AGGREGATE_LABEL}=true: docs/rights.md");
        notes.push(Note::new(kind, false, message, remedy));
    }
    for addon in facts.addons.iter().filter(|addon| addon["status"]["ready"] != true) {
        let message = "its addons are not ready: an upgrade may be under way";
        let remedy = "let it come to its end where it can; our operator goes on where CSO is stuck";
        notes.push(Note::new(named(addon), false, message, remedy));
    }
    notes.sort_by_key(|note| !note.blocks);
    notes
}

/// Kinds that releases brought, of groups that the operator has no right on.
fn foreign_kinds(facts: &Facts) -> BTreeSet<String> {
    let rows = facts.releases.iter().filter_map(|release| release["status"]["resources"].as_array()).flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kinds = rows.map(|row| (text(&row["group"]), text(&row["kind"])));
    let is_foreign = |group: &str| !Role::Operator.rights().any(|right| right.group == group);
    kinds.filter(|(group, _)| is_foreign(group)).map(|(group, kind)| format!("{kind}.{group}")).collect()
}

fn container(facts: &Facts) -> Option<&Value> {
    let containers = facts.deployments.first()?.pointer("/spec/template/spec/containers")?.as_array()?;
    containers.iter().find(|container| container["name"] == "manager").or_else(|| containers.first())
}

/// The variables that CSO's container has, but for those that our chart gives itself, and for its own resources.
fn environment(facts: &Facts) -> Vec<Value> {
    let mut all = list_of(facts, "env");
    all.retain(|variable| {
        let is_ours = OWN_VARIABLES.iter().any(|name| variable["name"] == *name);
        !is_ours && variable.pointer("/valueFrom/resourceFieldRef").is_none()
    });
    all
}

fn list_of(facts: &Facts, field: &str) -> Vec<Value> {
    container(facts).and_then(|container| container[field].as_array()).cloned().unwrap_or_default()
}

/// An object that variables are read from: its kind, `Secret` or `ConfigMap`, and its name.
pub type Origin = (&'static str, String);

/// The Secrets and ConfigMaps that its variables are read from.
pub fn origins(facts: &Facts) -> BTreeSet<Origin> {
    const FIELDS: [(&str, &str); 4] = [
        ("Secret", "/valueFrom/secretKeyRef/name"),
        ("ConfigMap", "/valueFrom/configMapKeyRef/name"),
        ("Secret", "/secretRef/name"),
        ("ConfigMap", "/configMapRef/name"),
    ];
    let all = environment(facts).into_iter().chain(list_of(facts, "envFrom"));
    let named = |variable: Value| {
        FIELDS.into_iter().filter_map(move |(kind, field)| Some((kind, variable.pointer(field)?.as_str()?.to_owned())))
    };
    all.flat_map(named).collect()
}

/// CSO's manifest fills what was not given with nothing, and runs without.
fn optional(mut variable: Value) -> Value {
    for field in ["/valueFrom/secretKeyRef", "/valueFrom/configMapKeyRef", "/secretRef", "/configMapRef"] {
        if let Some(reference) = variable.pointer_mut(field) {
            reference["optional"] = true.into();
        }
    }
    variable
}

/// Values of our chart that make our operator work as CSO did: its source, and the flags that mean the same.
pub fn values(facts: &Facts) -> Map<String, Value> {
    let mut flags = container(facts).map(arguments::flags).unwrap_or_default();
    let mut values = Map::new();
    for (name, variables) in [("env", environment(facts)), ("envFrom", list_of(facts, "envFrom"))] {
        if !variables.is_empty() {
            values.insert(name.to_owned(), variables.into_iter().map(optional).collect());
        }
    }
    // Settings of all replicas go to their ConfigMap.
    if let Some(level) = flags.remove("log-level") {
        values.insert("settings".to_owned(), json!({"log-level": level}));
    }
    if !flags.is_empty() {
        values.insert("flags".to_owned(), flags.into());
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let variable = |name: &str, key: &str| json!({"name": name, "valueFrom": {"secretKeyRef": {"name": "cso-cluster-stack-variables", "key": key}}});
        Facts {
            deployments: vec![json!({
                "metadata": {"name": "cso-controller-manager", "namespace": "cso-system"},
                "spec": {"template": {"spec": {"containers": [{
                    "name": "manager",
                    "args": ["--leader-elect=true", "--log-level=info", "--watch-filter=blue", "--source=github", "--qps=50"],
                    "env": [variable("GIT_PROVIDER", "git-provider"), variable("GIT_ACCESS_TOKEN", "git-access-token")],
                }]}}},
            })],
            stacks: vec![json!({
                "apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterStack",
                "metadata": {"name": "x", "namespace": "team"},
                "spec": {"provider": "docker", "name": "x", "kubernetesVersion": "1.34", "channel": "stable", "autoSubscribe": true},
            })],
            addons: vec![
                json!({"metadata": {"name": "cluster-addon-c", "namespace": "team"}, "status": {"ready": true}}),
            ],
            ..Facts::default()
        }
    }

    #[test]
    fn a_usual_installation_is_taken_over_with_its_source_and_flags() {
        let facts = facts();
        assert_eq!(notes(&facts), []);
        let mut empty = facts.clone();
        empty.stacks[0]["spec"]["providerRef"] = json!({});
        assert_eq!(notes(&empty), [], "no provider is none of others");
        assert_eq!(origins(&facts), BTreeSet::from([("Secret", "cso-cluster-stack-variables".to_owned())]));
        let key =
            |key: &str| json!({"secretKeyRef": {"name": "cso-cluster-stack-variables", "key": key, "optional": true}});
        let expected = json!({
            "env": [
                {"name": "GIT_PROVIDER", "valueFrom": key("git-provider")},
                {"name": "GIT_ACCESS_TOKEN", "valueFrom": key("git-access-token")},
            ],
            "settings": {"log-level": "info"},
            "flags": {"watch-filter": "blue", "source": "github"},
        });
        assert_eq!(Value::Object(values(&facts)), expected);
    }

    #[test]
    fn variables_of_every_kind_are_taken_over_but_those_that_the_chart_gives() {
        let mut facts = facts();
        let container = &mut facts.deployments[0]["spec"]["template"]["spec"]["containers"][0];
        container["env"] = json!([
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "GOMEMLIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
            {"name": "HTTPS_PROXY", "value": "http://proxy.example.com"},
            {"name": "GIT_PROVIDER", "valueFrom": {"configMapKeyRef": {"name": "plain", "key": "git-provider"}}},
        ]);
        container["envFrom"] = json!([
            {"secretRef": {"name": "more"}}, {"prefix": "GIT_", "configMapRef": {"name": "plain", "optional": false}},
        ]);
        let named = |kind: &'static str, name: &str| (kind, name.to_owned());
        assert_eq!(origins(&facts), BTreeSet::from([named("ConfigMap", "plain"), named("Secret", "more")]));
        let values = values(&facts);
        assert_eq!(
            values["env"],
            json!([
                {"name": "HTTPS_PROXY", "value": "http://proxy.example.com"},
                {"name": "GIT_PROVIDER",
                    "valueFrom": {"configMapKeyRef": {"name": "plain", "key": "git-provider", "optional": true}}},
            ])
        );
        assert_eq!(
            values["envFrom"],
            json!([
                {"secretRef": {"name": "more", "optional": true}},
                {"prefix": "GIT_", "configMapRef": {"name": "plain", "optional": true}},
            ])
        );
        assert_eq!(notes(&facts), []);
    }

    #[test]
    fn what_stands_in_the_way_is_told_first() {
        type Break = fn(&mut Facts);
        let cases: &[(Break, bool, &str)] = &[
            (|f| f.deployments.clear(), true, "no CSO is found"),
            (
                |f| {
                    f.deployments.clear();
                    f.operators.push("Deployment clusterstack-system/clusterstack".into());
                },
                true,
                "and the operator is there",
            ),
            (|f| f.deployments.push(json!({})), true, "2 Deployments"),
            (|f| f.stacks[0]["spec"]["autoSubscribe"] = json!("often"), true, "can't be read"),
            (
                |f| f.deployments[0]["spec"]["template"]["spec"]["containers"][0]["env"] = json!([]),
                true,
                "names no source",
            ),
            (
                |f| {
                    f.stacks[0]["spec"]["providerRef"] = json!({"apiVersion": "infrastructure.clusterstack.x-k8s.io/v1alpha1", "kind": "OpenStackClusterStackReleaseTemplate", "name": "m"});
                },
                false,
                "a provider of others",
            ),
            (|f| f.addons[0]["status"]["ready"] = json!(false), false, "not ready"),
            (
                |f| {
                    let row = |group: &str, kind: &str| json!({"group": group, "kind": kind, "name": "x"});
                    let rows = [
                        row("cluster.x-k8s.io", "ClusterClass"),
                        row("", "ConfigMap"),
                        row("openstack.k-orc.cloud", "Image"),
                    ];
                    f.releases = vec![json!({"status": {"resources": rows}}), json!({})];
                },
                false,
                "what releases brought",
            ),
        ];
        for (break_it, blocks, part) in cases {
            let mut facts = facts();
            break_it(&mut facts);
            let notes = notes(&facts);
            assert!(notes[0].blocks == *blocks && notes[0].message.contains(part), "{part}: {notes:#?}");
            assert!(!notes[0].remedy.is_empty());
        }
    }
}
