//! Status: written only when something but time changed.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::condition::{ConditionType, Reason, whole_seconds};
use crate::io::apply;
use crate::io::extension_config::holds;
use crate::io::fence::{self, Written};

/// Who says in a status that the operator has a fault.
const FAULT_MANAGER: &str = "clusterstack-fault";

/// How often a status is sent again that only other parts of the object overtook.
const AGAIN: usize = 4;

/// Writes a status by server-side apply, unless it is what the object has. `true` if it was written.
///
/// It is sent for the version of the object that it was decided on, or that this pass made of it: the write of a process
/// that slept meanwhile is refused. Where all but the status changed, it is sent for the version that is there now.
///
/// # Errors
/// What the API server said; a conflict where somebody else wrote the status. An object that is gone is no error.
pub async fn status<K, S>(client: &Client, object: &K, had: Option<&S>, status: &S) -> Result<bool, kube::Error>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
    S: Serialize + DeserializeOwned + PartialEq,
{
    if had == Some(status) || had.is_some_and(|had| without_foreign(had) == serde_json::to_value(status).ok()) {
        return Ok(false);
    }
    let name = object.name_any();
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let uid = object.uid();
    let own = fence::written(uid.as_deref().unwrap_or_default());
    let mut version = own.as_ref().map_or_else(|| object.resource_version(), |own| own.resource_version.clone());
    for left in (0..AGAIN).rev() {
        let metadata = json!({"name": name, "uid": uid, "resourceVersion": version});
        let patch =
            json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": metadata, "status": status});
        match api.patch_status(&name, &apply::forced(), &Patch::Apply(patch)).await {
            Ok(written) => {
                let written = without_left(&api, written, status).await?;
                let status = status_of(&written);
                let written = Written { resource_version: written.resource_version(), status };
                fence::wrote(uid.as_deref().unwrap_or_default(), written);
                return Ok(true);
            }
            // Gone: its own event tells.
            Err(kube::Error::Api(error)) if error.code == 404 => return Ok(false),
            Err(kube::Error::Api(error)) if error.code == 409 && left > 0 => {
                let Some(now) = api.get_opt(&name).await? else { return Ok(false) };
                if now.uid() != uid {
                    // Made anew under the same name: its own event tells.
                    return Ok(false);
                }
                let found = status_of(&now);
                let is_as_decided = match &own {
                    Some(own) => own.status == found,
                    None => had.is_none() && found.is_null() || had == serde_json::from_value(found).ok().as_ref(),
                };
                if !is_as_decided {
                    return Err(kube::Error::Api(error));
                }
                version = now.resource_version();
            }
            Err(error) => {
                if let Some(why) = is_unwritable(&error) {
                    // Whoever waits for it would wait for ever, and never know.
                    internal_error(client, object, &format!("its status can't be written: {why}")).await?;
                }
                return Err(error);
            }
        }
    }
    Ok(false)
}

/// Notes that this pass changed an object beside its status: what is said of it next is said for the version that came of it, unless
/// somebody else said something meanwhile.
pub fn changed<K: Resource + Serialize>(before: &K, now: &K) {
    let uid = before.uid().unwrap_or_default();
    let said = fence::written(&uid).map_or_else(|| status_of(before), |written| written.status);
    if before.uid() == now.uid() && status_of(now) == said {
        fence::wrote(&uid, Written { resource_version: now.resource_version(), status: said });
    }
}

/// Takes out what others said that is the operator's to say, and that it does not say: a restore, or who was there before us.
/// Server-side apply leaves it.
async fn without_left<K>(api: &Api<K>, written: K, wanted: &impl Serialize) -> Result<K, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let wanted = serde_json::to_value(wanted).unwrap_or_default();
    let left = surplus(&status_of(&written), &wanted);
    if left.is_empty() {
        return Ok(written);
    }
    let version = json!({"op": "test", "path": "/metadata/resourceVersion", "value": written.resource_version()});
    let removals = left.iter().map(|at| json!({"op": "remove", "path": format!("/status{at}")}));
    let patch = std::iter::once(version).chain(removals).collect();
    let patch: json_patch::Patch = serde_json::from_value(patch).map_err(kube::Error::SerdeError)?;
    let params = PatchParams { field_manager: apply::forced().field_manager, ..PatchParams::default() };
    match api.patch_status(&written.name_any(), &params, &Patch::Json::<Value>(patch)).await {
        // Changed or gone meanwhile: its own event tells.
        Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409 | 422) => Ok(written),
        done => done,
    }
}

/// Conditions of the Go operator (CSO) that ours does not know: nobody says them any more (its `conditions_const.go`).
const OF_CSO: &[&str] = &[
    "ClusterAddonConfigValidated",
    "ClusterReady",
    "ClusterStackReleaseAvailable",
    "EvaluatedCEL",
    "GitAPIAvailable",
    "GitReleasesSynced",
    "HelmChartDeleted",
    "HelmChartFound",
    "HookServerReady",
    "ProviderClusterStackReleasesSynced",
];

/// Whether a condition is the operator's to say, or that of who was there before it.
fn is_own(type_: &str) -> bool {
    ConditionType::named(type_).is_some() || OF_CSO.contains(&type_)
}

/// Where in a status there are conditions of the operator's types that it does not say.
fn left(found: &Value, wanted: &Value) -> Vec<usize> {
    let types = |status: &Value| -> Vec<String> {
        let conditions = status.get("conditions").and_then(Value::as_array).into_iter().flatten();
        conditions.map(|condition| condition["type"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let wanted = types(wanted);
    let is_left = |type_: &String| is_own(type_) && !wanted.contains(type_);
    types(found).iter().enumerate().filter(|(_, type_)| is_left(type_)).map(|(at, _)| at).collect()
}

/// JSON pointers to what a status holds beyond what is `wanted`, in the order in which they can be removed. All of it is the
/// operator's to say, but for conditions of types that it does not know.
fn surplus(found: &Value, wanted: &Value) -> Vec<String> {
    let mut all = Vec::new();
    for (field, value) in found.as_object().into_iter().flatten() {
        match (field.as_str(), wanted.get(field)) {
            ("conditions", _) => all.extend(left(found, wanted).iter().rev().map(|at| format!("/conditions/{at}"))),
            (_, None) => all.push(format!("/{}", escaped(field))),
            (_, Some(wanted)) => beyond(value, wanted, &format!("/{}", escaped(field)), &mut all),
        }
    }
    all
}

fn beyond(found: &Value, wanted: &Value, at: &str, all: &mut Vec<String>) {
    if found == wanted {
        return;
    }
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            for (key, value) in found {
                let at = format!("{at}/{}", escaped(key));
                match wanted.get(key) {
                    Some(wanted) => beyond(value, wanted, &at, all),
                    None => all.push(at),
                }
            }
        }
        (Value::Array(found), Value::Array(wanted)) => {
            let twin = |(index, item): (usize, &Value)| {
                let here = wanted.get(index).filter(|wanted| holds(item, wanted));
                here.or_else(|| wanted.iter().find(|wanted| holds(item, wanted)))
            };
            let twins: Vec<Option<&Value>> = found.iter().enumerate().map(twin).collect();
            let alone = twins.iter().filter(|twin| twin.is_none()).count();
            if found.len() != wanted.len() + alone {
                // Which of them is whose can't be told.
                return;
            }
            // From the last, so that the places of those before it stay what they are.
            for (index, (item, twin)) in found.iter().zip(twins).enumerate().rev() {
                match twin {
                    Some(wanted) => beyond(item, wanted, &format!("{at}/{index}"), all),
                    None => all.push(format!("{at}/{index}")),
                }
            }
        }
        _ => {}
    }
}

/// A key as a part of a JSON pointer (RFC 6901).
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// What is said of a field that a definition does not have (`structured-merge-diff`).
const UNDECLARED: &str = "field not declared in schema";

/// Why a status will be refused however often it is sent: it is not what its definition takes, or too large (etcd takes 1.5 MiB).
fn is_unwritable(error: &kube::Error) -> Option<String> {
    let kube::Error::Api(status) = error else { return None };
    let message = &status.message;
    if message.contains(UNDECLARED) {
        return Some(of_another_version(message));
    }
    let is_too_large = message.contains("request is too large") || message.contains("Too long");
    (matches!(status.code, 413 | 422) || is_too_large).then(|| message.clone())
}

fn of_another_version(why: &str) -> String {
    format!(
        "its definition is not the one of this operator, {}: clusterstack crds | kubectl apply --server-side -f - \
         with the same version brings it ({why})",
        env!("CARGO_PKG_VERSION")
    )
}

/// What was sent of a status and is not in the answer: its definition does not have the fields, and the API server leaves them out
/// without a word. What to do about it.
pub fn dropped<S: Serialize>(sent: &S, found: &S) -> Option<String> {
    let json = |status: &S| serde_json::to_value(status).unwrap_or_default();
    let (sent, found) = (json(sent), json(found));
    let fields = sent.as_object()?.keys().filter(|field| found.get(field.as_str()).is_none());
    let fields: Vec<String> = fields.map(|field| format!("status.{field}")).collect();
    (!fields.is_empty()).then(|| of_another_version(&format!("it drops {}", fields.join(", "))))
}

/// Says that a fault of the operator ended a pass over an object: in its condition `Ready`, and nothing else.
///
/// # Errors
/// What the API server said. An object that is gone is no error.
pub async fn internal_error<K: Resource<DynamicType = ()>>(
    client: &Client,
    object: &K,
    message: &str,
) -> Result<(), kube::Error> {
    let (name, namespace) = (object.meta().name.clone().unwrap_or_default(), object.meta().namespace.clone());
    let kind = ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace.unwrap_or_default(), &kind);
    let condition = json!({
        "type": ConditionType::Ready.as_str(),
        "status": "False",
        "reason": Reason::InternalError,
        "message": message,
        "observedGeneration": object.meta().generation,
        "lastTransitionTime": Time(whole_seconds(Timestamp::now())),
    });
    let patch = json!({
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"uid": object.meta().uid},
        "status": {"conditions": [condition]},
    });
    // As somebody else: what the operator owns of the status and does not name here would go.
    let params = PatchParams::apply(FAULT_MANAGER).force();
    match api.patch_status(&name, &params, &Patch::Apply(patch)).await {
        Err(kube::Error::Api(error)) if error.code == 404 => Ok(()),
        written => written.map(drop),
    }
}

/// A status without the conditions that others wrote into it, which stay there whatever is sent.
fn without_foreign(status: &impl Serialize) -> Option<Value> {
    let mut status = serde_json::to_value(status).ok()?;
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        let is_known = |type_: &Value| type_.as_str().is_some_and(is_own);
        conditions.retain(|condition| condition.get("type").is_none_or(is_known));
    }
    Some(status)
}

fn status_of<K: Serialize>(object: &K) -> Value {
    serde_json::to_value(object).ok().and_then(|mut object| Some(object.get_mut("status")?.take())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_status_that_can_not_be_written_says_so_in_ready() {
        use std::sync::{Arc, Mutex};

        use http::{Request, Response};
        use kube::client::Body;

        for (code, message, is_told) in [
            (422, "status.resources[0].name: Too long", true),
            (413, "too large", true),
            (500, "etcdserver: request is too large", true),
            (500, "failed to create typed patch object: .status.new: field not declared in schema", true),
            (500, "etcdserver: leader changed", false),
            (403, "no", false),
        ] {
            let sent = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&sent);
            let service = tower::service_fn(move |request: Request<Body>| {
                let seen = Arc::clone(&seen);
                async move {
                    let body = request.into_body().collect_bytes().await.unwrap();
                    let patch: Value = serde_json::from_slice(&body).unwrap();
                    let is_first = seen.lock().unwrap().is_empty();
                    seen.lock().unwrap().push(patch);
                    let refused =
                        json!({"kind": "Status", "status": "Failure", "message": message, "reason": "x", "code": code});
                    let taken = json!({"apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterStackRelease", "metadata": {"name": "a"}, "spec": {}});
                    let (code, answer) = if is_first { (code, refused) } else { (200, taken) };
                    let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                    Ok::<_, std::convert::Infallible>(answer.unwrap())
                }
            });
            let client = Client::new(service, "shop");
            let release: crate::api::ClusterStackRelease =
                serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "shop"}, "spec": {}})).unwrap();
            let new = crate::api::cluster_stack_release::ClusterStackReleaseStatus::default();
            status(&client, &release, None, &new).await.unwrap_err();
            let sent = sent.lock().unwrap();
            let told = sent.get(1).map(|patch| patch["status"]["conditions"][0]["message"].to_string());
            assert_eq!(told.is_some_and(|told| told.contains(message)), is_told, "{code} {message}");
        }
    }

    #[test]
    fn what_a_definition_drops_is_named() {
        for (sent, found, expected) in [
            (json!({"a": 1, "holder": {}}), json!({"a": 1}), Some("status.holder")),
            (json!({"a": 1, "b": 2}), json!({}), Some("status.a, status.b")),
            (json!({"a": 1}), json!({"a": 1, "others": 2}), None),
            (json!({}), json!({}), None),
        ] {
            let told = dropped(&sent, &found);
            assert_eq!(told.is_some(), expected.is_some(), "{told:?}");
            assert!(told.unwrap_or_default().contains(expected.unwrap_or_default()));
        }
    }

    #[test]
    fn conditions_of_ours_that_others_wrote_are_left() {
        let status =
            |types: &[&str]| json!({"conditions": types.iter().map(|of| json!({"type": of})).collect::<Vec<_>>()});
        for (found, wanted, expected) in [
            (&["Ready", "Stalled", "example.org/Audited", "Reconciling"][..], &["Ready"][..], &[1, 3][..]),
            (&["Ready", "example.org/Audited"], &["Ready"], &[]),
            (&["Ready"], &["Ready", "Stalled"], &[]),
            (&["Ready", "ClusterStackReleaseAvailable", "HookServerReady"], &["Ready"], &[1, 2]),
            (&[], &["Ready"], &[]),
        ] {
            assert_eq!(left(&status(found), &status(wanted)), expected, "{found:?} {wanted:?}");
        }
        assert!(left(&json!({}), &json!({})).is_empty());
    }

    #[test]
    fn what_others_wrote_beyond_a_status_is_surplus() {
        let offer = |name: &str| json!({"name": name, "reason": "Baking"});
        let wanted = json!({"ready": false, "available": [offer("v2")], "lastPoll": {"found": 1}, "conditions": []});
        let found = json!({
            "ready": false, "usableVersions": "v2", "latest/release": "v1",
            "available": [offer("v9"), {"name": "v2", "reason": "Baking", "firstSeen": "then"}, offer("v1")],
            "lastPoll": {"found": 1, "time": "then"},
            "conditions": [{"type": "example.org/Audited"}, {"type": "Stalled"}, {"type": "Ready"}],
        });
        let mut all = surplus(&found, &wanted);
        // Those of one list go from its end; of several fields any may be the first.
        let places: Vec<_> = all.iter().filter(|at| at.starts_with("/available")).cloned().collect();
        assert_eq!(places, ["/available/2", "/available/1/firstSeen", "/available/0"]);
        all.sort();
        assert_eq!(
            all,
            [
                "/available/0",
                "/available/1/firstSeen",
                "/available/2",
                "/conditions/1",
                "/conditions/2",
                "/lastPoll/time",
                "/latest~1release",
                "/usableVersions",
            ]
        );
        assert!(surplus(&wanted, &wanted).is_empty());
    }

    #[test]
    fn conditions_of_others_are_no_difference() {
        let ready = json!({"type": "Ready", "status": "True"});
        let own = json!({"conditions": [ready], "observedGeneration": 1});
        let foreign = json!({"conditions": [{"type": "example.org/Audited"}, ready], "observedGeneration": 1});
        assert_eq!(without_foreign(&foreign), Some(own.clone()));
        assert_eq!(without_foreign(&own), Some(own.clone()));
        // One of ours that is no longer said has to go.
        for type_ in ["Stalled", "ClusterStackReleaseAvailable"] {
            let stale = json!({"conditions": [ready, {"type": type_}], "observedGeneration": 1});
            assert_ne!(without_foreign(&stale), Some(own.clone()));
        }
        assert_eq!(without_foreign(&json!({})), Some(json!({})));
    }
}
