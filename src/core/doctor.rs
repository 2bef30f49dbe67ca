//! What is wrong with an installation, decided from what was read of it.

mod clusters;
mod objects;
mod operator;
mod replicas;
mod serving;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::api::OperatorShard;
use crate::core::share::life::Leases;

pub use serving::{secret_of, service_of};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// As it should be.
    Good,
    /// It could not be found out.
    Unknown,
    /// Somebody should look at it.
    Warning,
    /// It does not work.
    Bad,
}

/// One thing that was looked at. The field names are API of `-o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at: `kubernetes`, `definitions`, `operator`, `replicas`, `rights`, `clusterApi`, `clusters`, `hooks`,
    /// `webhook`, or a kind of ours.
    pub check: &'static str,
    /// How it is.
    pub grade: Grade,
    /// What was found.
    pub message: String,
    /// What to do about it; empty where there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

impl Finding {
    fn new(check: &'static str, grade: Grade, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, grade, message: message.into(), remedy: remedy.into() }
    }

    fn good(check: &'static str, message: impl Into<String>) -> Self {
        Self::new(check, Grade::Good, message, "")
    }

    fn unknown(check: &'static str, why: &str) -> Self {
        Self::new(check, Grade::Unknown, why, "ask somebody who may read it")
    }
}

/// Whether neither the operator nor any object of ours could be looked at: of what is wrong with them nothing was seen.
pub fn saw_nothing(findings: &[Finding]) -> bool {
    let around = ["kubernetes", "clusterApi", "clusters", "definitions"];
    let mut ours = findings.iter().filter(|finding| !around.contains(&finding.check)).peekable();
    ours.peek().is_some() && ours.all(|finding| finding.grade == Grade::Unknown)
}

/// What is said of a question that was not answered in time.
pub const UNANSWERED: &str = "the API server gives no answer";

/// What is said where the API server does not know who asks.
pub const NO_LOGIN: &str = "the API server does not take the login of the kubeconfig";

/// What was read, or why it could not be.
pub type Read<T> = Result<T, String>;

/// A right that the operator's ServiceAccount was asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The role of ours that gives it.
    pub role: &'static str,
    /// What it is: `patch clusterclasses.cluster.x-k8s.io`.
    pub what: String,
    /// Whether its role may be bound in namespaces instead of in the whole cluster.
    pub may_be_narrow: bool,
    /// The namespace that needs it, of one that may be bound so and is not in the whole cluster.
    pub namespace: String,
    /// Whether it has it.
    pub is_allowed: bool,
}

/// A Deployment or `StatefulSet` of the operator.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// The object.
    pub object: Value,
    /// Its pods.
    pub pods: Vec<Value>,
    /// The ServiceAccount that it works as, by namespace and name, where that is not there.
    pub missing_account: Option<String>,
    /// What its ServiceAccount may do.
    pub rights: Option<Read<Vec<Asked>>>,
}

/// The certificate by which something is served, as its Secret has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The authorities to be trusted, PEM.
    pub bundle: String,
    /// Whether it lasts still, and fits its key and an authority.
    pub is_usable: bool,
}

/// What a Service leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// It is not there.
    Missing,
    /// No pod is ready behind it.
    Nobody,
    /// A pod that is ready.
    Ready,
}

/// What stands behind the webhook.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// Services, by namespace and name.
    pub services: BTreeMap<String, Read<Backing>>,
    /// Certificates by the names of their Secrets; `None` where there is no such Secret.
    pub certificates: BTreeMap<String, Read<Option<Certificate>>>,
}

/// All that is looked at.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The API server's version, as `v1.34.2`.
    pub kubernetes: Read<String>,
    /// CustomResourceDefinitions of our kinds that are there.
    pub definitions: Read<Vec<Value>>,
    /// What runs the operator.
    pub workloads: Read<Vec<Workload>>,
    /// Deployments of the Go operator.
    pub cso: Vec<Value>,
    /// What replicas say.
    pub shards: Read<Vec<OperatorShard>>,
    /// The Leases by which they live.
    pub leases: Leases,
    /// What time it is.
    pub now: Timestamp,
    /// Versions of Cluster API's Clusters that are served.
    pub cluster_api: Read<Vec<String>>,
    /// Clusters.
    pub clusters: Read<Vec<Value>>,
    /// `ClusterClasses`.
    pub classes: Read<Vec<Value>>,
    /// `ExtensionConfigs` of ours.
    pub hooks: Read<Vec<Value>>,
    /// `ValidatingWebhookConfigurations` of ours.
    pub webhooks: Read<Vec<Value>>,
    /// What stands behind them.
    pub served: Served,
    /// Our objects, by kind.
    pub objects: Vec<(&'static str, Read<Vec<Value>>)>,
}

/// What is found, in the order in which it is to be mended.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let mut all = vec![operator::kubernetes(&facts.kubernetes)];
    all.extend(operator::definitions(&facts.definitions));
    all.extend(operator::workloads(&facts.workloads));
    all.extend(operator::cso(&facts.cso));
    all.extend(replicas::check(&facts.shards, &facts.leases, facts.now));
    all.push(operator::cluster_api(&facts.cluster_api));
    all.extend(clusters::check(facts));
    all.extend(serving::hooks(facts));
    all.extend(serving::webhooks(facts));
    for (kind, found) in &facts.objects {
        all.extend(objects::check(kind, found, facts.now));
    }
    all
}

/// What is found where nobody answered.
pub fn unreachable(why: &str) -> Vec<Finding> {
    vec![operator::kubernetes(&Err(why.to_owned()))]
}

/// The worst of them.
pub fn worst(findings: &[Finding]) -> Grade {
    findings.iter().map(|finding| finding.grade).max().unwrap_or(Grade::Good)
}

/// The items of a list.
fn objects_of(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Condition of a type: its status, reason and message.
fn condition<'a>(object: &'a Value, type_: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == type_)?;
    let text = |field: &str| found[field].as_str().unwrap_or_default();
    Some((text("status"), text("reason"), text("message")))
}

/// `namespace/name` of an object.
fn named(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    if text("namespace").is_empty() {
        text("name").to_owned()
    } else {
        format!("{}/{}", text("namespace"), text("name"))
    }
}

/// The first of some names, and how many more there are.
fn some<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 5;
    let all = names.len();
    let shown: Vec<&str> = names.take(SHOWN).collect();
    let more = if all > SHOWN { format!(" and {} more", all - SHOWN) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}
