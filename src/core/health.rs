//! Health of an object by the rules of kstatus (`sigs.k8s.io/cli-utils/pkg/kstatus/status`).

use serde_json::Value;

/// What kstatus says of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// As its spec wants it.
    Current,
    /// On the way; why.
    InProgress(String),
    /// Failed; why.
    Failed(String),
    /// Being deleted.
    Terminating,
}

impl Health {
    /// The word of kstatus.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Current => "Current",
            Self::InProgress(_) => "InProgress",
            Self::Failed(_) => "Failed",
            Self::Terminating => "Terminating",
        }
    }

    /// Why it is not current; empty where it is.
    pub fn message(&self) -> &str {
        match self {
            Self::InProgress(why) | Self::Failed(why) => why,
            Self::Current => "",
            Self::Terminating => "being deleted",
        }
    }
}

/// The health of a live object.
pub fn of(object: &Value) -> Health {
    if object.pointer("/metadata/deletionTimestamp").is_some() {
        return Health::Terminating;
    }
    let generation = number(object, "/metadata/generation");
    let observed = number(object, "/status/observedGeneration");
    if let (Some(generation), Some(observed)) = (generation, observed)
        && generation != observed
    {
        return Health::InProgress(format!("generation {generation} is not observed yet (observed: {observed})"));
    }
    if let Some(health) = generic(object) {
        return health;
    }
    let group = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    match (group, kind) {
        ("apps/v1", "Deployment") => deployment(object),
        ("apps/v1", "StatefulSet" | "ReplicaSet") => replicas(object),
        ("apps/v1", "DaemonSet") => daemon_set(object),
        ("batch/v1", "Job") => job(object),
        ("v1", "PersistentVolumeClaim") => phase(object, "Bound"),
        ("v1", "Namespace") => phase(object, "Active"),
        ("v1", "Pod") => pod(object),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition") => established(object),
        ("policy/v1", "PodDisruptionBudget") => Health::Current,
        _ if group.split('/').next().is_some_and(|group| group.ends_with(ORC)) => by_available(object),
        _ => by_ready(object),
    }
}

/// End of the API groups of the OpenStack resource controller.
const ORC: &str = ".k-orc.cloud";

/// By the conditions of the OpenStack resource controller (its API conventions): available or not, and whether it still
/// works on it.
fn by_available(object: &Value) -> Health {
    let (available, progressing) = (condition(object, "Available"), condition(object, "Progressing"));
    let generation = number(object, "/metadata/generation");
    let is_old = |condition: Option<&Value>| {
        let observed = condition.and_then(|condition| number(condition, "/observedGeneration"));
        observed.zip(generation).is_some_and(|(observed, generation)| observed < generation)
    };
    if is_old(available) || is_old(progressing) {
        return Health::InProgress("its last change is not observed yet".to_owned());
    }
    if is(available, "True") {
        return Health::Current;
    }
    let why = [text(progressing), text(available)].into_iter().find(|why| !why.is_empty());
    let why = why.unwrap_or_else(|| "no OpenStack resource controller has looked at it yet".to_owned());
    if is(progressing, "False") { Health::Failed(why) } else { Health::InProgress(why) }
}

fn number(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}

fn condition<'a>(object: &'a Value, type_: &str) -> Option<&'a Value> {
    object
        .pointer("/status/conditions")?
        .as_array()?
        .iter()
        .find(|condition| condition.get("type").and_then(Value::as_str) == Some(type_))
}

fn is(condition: Option<&Value>, status: &str) -> bool {
    condition.and_then(|c| c.get("status")).and_then(Value::as_str) == Some(status)
}

fn text(condition: Option<&Value>) -> String {
    let get = |key| condition.and_then(|c| c.get(key)).and_then(Value::as_str).unwrap_or_default();
    match (get("reason"), get("message")) {
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

/// The conditions `Reconciling` and `Stalled`, which any kind may have.
fn generic(object: &Value) -> Option<Health> {
    let (reconciling, stalled) = (condition(object, "Reconciling"), condition(object, "Stalled"));
    if is(reconciling, "True") {
        return Some(Health::InProgress(text(reconciling)));
    }
    is(stalled, "True").then(|| Health::Failed(text(stalled)))
}

/// Kinds without rules of their own: what their `Ready` condition says, and current without one. A Cluster API object
/// that has none says `Available` (v1beta2) or nothing.
fn by_ready(object: &Value) -> Health {
    match condition(object, "Ready") {
        ready @ Some(_) if is(ready, "False") || is(ready, "Unknown") => Health::InProgress(text(ready)),
        _ => Health::Current,
    }
}

fn deployment(object: &Value) -> Health {
    let progressing = condition(object, "Progressing");
    if is(progressing, "False") && text(progressing).starts_with("ProgressDeadlineExceeded") {
        return Health::Failed(text(progressing));
    }
    let failure = condition(object, "ReplicaFailure");
    if is(failure, "True") {
        return Health::Failed(text(failure));
    }
    let wanted = number(object, "/spec/replicas").unwrap_or(1);
    let has = |field: &str| number(object, &format!("/status/{field}")).unwrap_or(0);
    let (updated, available, ready, total) =
        (has("updatedReplicas"), has("availableReplicas"), has("readyReplicas"), has("replicas"));
    if updated < wanted {
        return Health::InProgress(format!("{updated} of {wanted} replicas are updated"));
    }
    if total > updated {
        return Health::InProgress(format!("{} old replicas are still there", total - updated));
    }
    if available < wanted || ready < wanted {
        return Health::InProgress(format!("{} of {wanted} replicas are available", available.min(ready)));
    }
    Health::Current
}

fn replicas(object: &Value) -> Health {
    let wanted = number(object, "/spec/replicas").unwrap_or(1);
    let ready = number(object, "/status/readyReplicas").unwrap_or(0);
    if ready < wanted {
        return Health::InProgress(format!("{ready} of {wanted} replicas are ready"));
    }
    Health::Current
}

fn daemon_set(object: &Value) -> Health {
    let has = |field: &str| number(object, &format!("/status/{field}")).unwrap_or(0);
    if number(object, "/status/observedGeneration").is_none() {
        return Health::InProgress("not observed yet".into());
    }
    let wanted = has("desiredNumberScheduled");
    let (updated, available) = (has("updatedNumberScheduled"), has("numberAvailable"));
    if updated < wanted || available < wanted {
        return Health::InProgress(format!("{} of {wanted} pods are available", updated.min(available)));
    }
    Health::Current
}

fn job(object: &Value) -> Health {
    let failed = condition(object, "Failed");
    if is(failed, "True") {
        return Health::Failed(text(failed));
    }
    if is(condition(object, "Complete"), "True") {
        return Health::Current;
    }
    match object.pointer("/status/startTime") {
        Some(_) => Health::Current,
        None => Health::InProgress("not started yet".into()),
    }
}

fn phase(object: &Value, wanted: &str) -> Health {
    let phase = object.pointer("/status/phase").and_then(Value::as_str).unwrap_or("unknown");
    if phase == wanted { Health::Current } else { Health::InProgress(format!("phase is {phase}, not {wanted}")) }
}

fn pod(object: &Value) -> Health {
    match object.pointer("/status/phase").and_then(Value::as_str) {
        Some("Succeeded") => Health::Current,
        Some("Failed") => Health::Failed("the pod failed".into()),
        _ if is(condition(object, "Ready"), "True") => Health::Current,
        phase => Health::InProgress(format!("pod is {}", phase.unwrap_or("unknown"))),
    }
}

fn established(object: &Value) -> Health {
    let names = condition(object, "NamesAccepted");
    if is(names, "False") {
        return Health::Failed(text(names));
    }
    if is(condition(object, "Established"), "True") {
        Health::Current
    } else {
        Health::InProgress("not established yet".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn health_follows_kstatus() {
        let cond =
            |type_: &str, status: &str| json!([{"type": type_, "status": status, "reason": "R", "message": "m"}]);
        for (name, object, expected) in [
            ("a kind without status", json!({"apiVersion": "x/v1", "kind": "Y"}), "Current"),
            ("deleted", json!({"metadata": {"deletionTimestamp": "now"}}), "Terminating"),
            (
                "old generation",
                json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 1}}),
                "InProgress",
            ),
            ("ready false", json!({"status": {"conditions": cond("Ready", "False")}}), "InProgress"),
            ("ready", json!({"status": {"conditions": cond("Ready", "True")}}), "Current"),
            ("stalled", json!({"status": {"conditions": cond("Stalled", "True")}}), "Failed"),
            (
                "new deployment",
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 1}}),
                "InProgress",
            ),
            (
                "full deployment",
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 1},
                    "status": {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1, "readyReplicas": 1}}),
                "Current",
            ),
            (
                "unbound claim",
                json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "status": {"phase": "Pending"}}),
                "InProgress",
            ),
            (
                "failed job",
                json!({"apiVersion": "batch/v1", "kind": "Job", "status": {"conditions": cond("Failed", "True")}}),
                "Failed",
            ),
            (
                "established",
                json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "status": {"conditions": cond("Established", "True")}}),
                "Current",
            ),
        ] {
            assert_eq!(of(&object).as_str(), expected, "{name}");
        }
    }

    #[test]
    fn an_image_of_the_openstack_resource_controller_is_waited_for() {
        let of_orc = |conditions: Value| {
            of(&json!({"apiVersion": "openstack.k-orc.cloud/v1alpha1", "kind": "Image", "metadata": {"generation": 2},
                "status": {"conditions": conditions}}))
        };
        let cond = |type_: &str, status: &str, message: &str, generation: u64| json!({"type": type_, "status": status, "reason": "R", "message": message, "observedGeneration": generation});
        let waits = |why: &str| Health::InProgress(why.to_owned());
        for (conditions, expected) in [
            (json!([]), waits("no OpenStack resource controller has looked at it yet")),
            (
                json!([
                    cond("Available", "False", "not yet", 2),
                    cond("Progressing", "True", "glance downloads it", 2)
                ]),
                waits("R: glance downloads it"),
            ),
            (
                json!([cond("Available", "False", "no", 2), cond("Progressing", "False", "no such project", 2)]),
                Health::Failed("R: no such project".to_owned()),
            ),
            (json!([cond("Available", "True", "", 1)]), waits("its last change is not observed yet")),
            (json!([cond("Available", "True", "", 2), cond("Progressing", "False", "", 2)]), Health::Current),
        ] {
            assert_eq!(of_orc(conditions.clone()), expected, "{conditions}");
        }
    }
}
