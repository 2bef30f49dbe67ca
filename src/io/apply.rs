//! Carries out a plan: server-side apply of each object, one outcome each, never stopping at the first error.

use futures::{StreamExt, stream};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, ValidationDirective};
use kube::core::ObjectMeta;
use kube::core::response::Status;
use serde_json::{Value, json};
use tracing::Span;

use crate::api::condition::Reason;
use crate::api::{CSO_FIELD_MANAGER, FIELD_MANAGER};
use crate::core::chart::Secrets;
use crate::core::manifest::{Manifest, ObjectKey};
use crate::core::{fields, immutable, manifest, ownership};
use crate::io::kinds::Kind;
use crate::io::observe::{api, plain, segment};

/// How many objects are sent at once.
const AT_ONCE: usize = 8;

/// How often an object is sent that others change meanwhile, for the version that is there; then for any.
const OVERTAKEN: usize = 4;

/// An object to send.
pub struct Send<'a> {
    /// The object.
    pub manifest: &'a Manifest,
    /// Its kind.
    pub kind: &'a Kind,
    /// The live object whose managed fields of the Go operator become ours first.
    pub migrate: Option<&'a Value>,
    /// What it is sent over.
    pub over: Over<'a>,
}

/// What an object is sent over.
#[derive(Clone, Copy, Debug)]
pub enum Over<'a> {
    /// The live object that it was decided on, or nothing where that is gone. What has become another's meanwhile is left as
    /// it is ([`Outcome::is_there`]).
    Live(&'a Value),
    /// Nothing: it is made where there is none, and else left as it is ([`Outcome::is_there`]).
    Nothing,
}

/// A version that no object has: etcd's first revision is an empty store's. Server-side apply for it makes an object where
/// there is none, and is refused as a conflict where there is one.
const NO_VERSION: &str = "1";

/// What the API server said to an object. Only [`send`] makes it.
#[derive(Debug)]
pub struct Outcome {
    /// The object.
    pub key: ObjectKey,
    /// The object as it is now, or the error.
    pub result: Result<Value, Refusal>,
    /// It was deleted and made anew.
    pub replaced: bool,
    /// There is one that it was not decided on, made or taken meanwhile: nothing was sent.
    pub is_there: bool,
}

/// An error of the API server about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// In one word.
    pub reason: Reason,
    /// Its own words.
    pub message: String,
}

/// Sends objects of one wave, each tried; the outcomes in the order given.
pub async fn send(client: &Client, objects: Vec<Send<'_>>) -> Vec<Outcome> {
    let sends: Vec<_> = objects.into_iter().map(|object| send_one(client, object)).collect();
    stream::iter(sends).buffered(AT_ONCE).collect().await
}

#[tracing::instrument(name = "apply", skip_all, fields(object = %object.manifest.key, otel.status_code, otel.status_description))]
pub(super) async fn send_one(client: &Client, object: Send<'_>) -> Outcome {
    let key = object.manifest.key.clone();
    let sent = patch(client, &object).await;
    let is_there = matches!(sent, Err(Unsent::IsThere));
    let result = sent.map(|live| plain(&live, object.kind)).map_err(|unsent| match unsent {
        Unsent::IsThere => Refusal {
            reason: Reason::ApplyFailed,
            message: "somebody else made or took it meanwhile; whose it is is looked at before it is applied"
                .to_owned(),
        },
        Unsent::Refused(error) => refusal_of(object.manifest, &error),
    });
    if let Err(refusal) = &result {
        Span::current().record("otel.status_code", "ERROR").record("otel.status_description", &refusal.message);
    }
    Outcome { key, result, replaced: false, is_there }
}

/// Why an object was not applied.
enum Unsent {
    Refused(kube::Error),
    IsThere,
}

impl From<kube::Error> for Unsent {
    fn from(error: kube::Error) -> Self {
        Self::Refused(error)
    }
}

async fn patch(client: &Client, object: &Send<'_>) -> Result<DynamicObject, Unsent> {
    let key = &object.manifest.key;
    let api = api(client, object.kind, &key.namespace);
    let before = match object.over {
        Over::Nothing => return make(&api, object.manifest).await,
        Over::Live(live) => live,
    };
    let mut over = before.pointer("/metadata/resourceVersion").and_then(Value::as_str).map(ToOwned::to_owned);
    if let Some(list) = object.migrate.and_then(|live| fields::renamed(live, CSO_FIELD_MANAGER, FIELD_MANAGER)) {
        let version = object.migrate.and_then(|live| live.pointer("/metadata/resourceVersion")).cloned();
        let patch = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "replace", "path": "/metadata/managedFields", "value": list},
        ]);
        let patch: json_patch::Patch = serde_json::from_value(patch).map_err(kube::Error::SerdeError)?;
        let migrated = api.patch(&segment(&key.name), &PatchParams::default(), &Patch::Json::<Value>(patch)).await?;
        over = migrated.metadata.resource_version;
    }
    for _ in 0..OVERTAKEN {
        // Sent for what was there when it was decided on: what a process sends that slept meanwhile is refused.
        let Some(version) = over else { break };
        match apply(&api, object.manifest, Some(&version)).await {
            Err(kube::Error::Api(error)) if error.code == 409 => match found(&api, key).await? {
                Some(now) if !ownership::is_unchanged(before, &json!({"metadata": now})) => {
                    return Err(Unsent::IsThere);
                }
                Some(now) => over = now.resource_version,
                None => return make(&api, object.manifest).await,
            },
            done => return Ok(done?),
        }
    }
    Ok(apply(&api, object.manifest, None).await?)
}

/// Makes an object where there is none.
async fn make(api: &Api<DynamicObject>, manifest: &Manifest) -> Result<DynamicObject, Unsent> {
    let mut tries = 1;
    loop {
        let refused = match apply(api, manifest, Some(NO_VERSION)).await {
            Err(kube::Error::Api(refused)) => refused,
            done => return Ok(done?),
        };
        let look = may_be_there(&refused);
        if look == MayBeThere::No {
            return Err(kube::Error::Api(refused).into());
        }
        match found(api, &manifest.key).await {
            Ok(Some(_)) => return Err(Unsent::IsThere),
            Ok(None) if look == MayBeThere::NoVersionTaken => return Ok(apply(api, manifest, None).await?),
            // The conflict was over something else, a quota for example.
            Ok(None) if look == MayBeThere::Yes && tries < OVERTAKEN => tries += 1,
            _ => return Err(kube::Error::Api(refused).into()),
        }
    }
}

/// What a refusal to make an object says of one that may be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MayBeThere {
    /// A conflict is what the API server says where it is.
    Yes,
    /// The change of what is there may be refused for what it is, by its kind's rules or a webhook, before its version is.
    Perhaps,
    /// An API server beside the real one (`APIService`) may have a store of its own that takes no version for a new object.
    NoVersionTaken,
    No,
}

fn may_be_there(refused: &Status) -> MayBeThere {
    let message = refused.message.to_lowercase();
    match reason_of(refused) {
        _ if refused.code == 409 => MayBeThere::Yes,
        _ if message.contains("resourceversion") || message.contains("resource version") => MayBeThere::NoVersionTaken,
        Reason::Invalid | Reason::Forbidden if refused.code != 401 => MayBeThere::Perhaps,
        _ => MayBeThere::No,
    }
}

/// What is there by now.
async fn found(api: &Api<DynamicObject>, key: &ObjectKey) -> Result<Option<ObjectMeta>, kube::Error> {
    Ok(api.get_metadata_opt(&segment(&key.name)).await?.map(|now| now.metadata))
}

/// How the operator applies what is its own: by force, and without `fieldValidation`. Server-side apply refuses a field that the
/// schema lacks whatever that says, and the API server reads all that is sent twice to warn of them besides.
pub fn forced() -> PatchParams {
    let params = PatchParams::apply(FIELD_MANAGER).force();
    PatchParams { field_validation: Some(ValidationDirective::Ignore), ..params }
}

/// Sends an object, for a version of the one that is there if there is one.
async fn apply(
    api: &Api<DynamicObject>,
    manifest: &Manifest,
    version: Option<&str>,
) -> Result<DynamicObject, kube::Error> {
    let params = forced();
    let name = segment(&manifest.key.name);
    let Some(version) = version else { return api.patch(&name, &params, &Patch::Apply(&manifest.object)).await };
    let mut wanted = manifest.object.clone();
    wanted["metadata"]["resourceVersion"] = version.into();
    api.patch(&name, &params, &Patch::Apply(&wanted)).await
}

/// Sorts an error of the API server to an object that was sent, without what nobody may read: who refuses may quote it.
pub fn refusal_of(manifest: &Manifest, error: &kube::Error) -> Refusal {
    let refused = refusal(error);
    let mut own = Secrets::default();
    own.add_object(&manifest.object);
    let ObjectKey { group, kind, namespace, name } = &manifest.key;
    let known = [group.as_str(), kind, namespace, name];
    let message = manifest.hidden.hide_answer(&own.hide_answer(&refused.message, &known), &known);
    Refusal { message, ..refused }
}

/// Sorts an error of the API server.
pub fn refusal(error: &kube::Error) -> Refusal {
    match error {
        kube::Error::Api(status) => {
            let causes = status.details.iter().flat_map(|details| &details.causes);
            let causes = causes.map(|cause| (cause.field.as_str(), cause.message.as_str()));
            match immutable::fields(causes).filter(|_| status.code == 422) {
                Some(fields) => {
                    let message = immutable::advice(&fields, &words(status));
                    Refusal { reason: Reason::ImmutableField, message }
                }
                None => Refusal { reason: reason_of(status), message: words(status) },
            }
        }
        // Its text may quote what could not be read.
        kube::Error::SerdeError(_) => {
            let message = "the API server's answer could not be read".to_owned();
            Refusal { reason: Reason::ApplyFailed, message }
        }
        other => Refusal {
            reason: Reason::ApplyFailed,
            message: format!("the API server did not answer: {}", causes(other)),
        },
    }
}

/// An error with what caused it, down to the first cause: that says what to mend.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        // Many repeat what caused them.
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}

fn words(status: &Status) -> String {
    if status.message.is_empty() { format!("{} (HTTP {})", status.reason, status.code) } else { status.message.clone() }
}

/// Whether an admission webhook or a `ValidatingAdmissionPolicy` refused it, by the words of the API server
/// (`k8s.io/apiserver/pkg/admission/plugin`).
fn is_judged(message: &str) -> bool {
    message.contains("admission webhook \"") && message.contains(" denied the request")
        || message.contains("ValidatingAdmissionPolicy '") && message.contains(" denied request")
}

fn reason_of(status: &Status) -> Reason {
    let terminating = status.details.iter().flat_map(|d| &d.causes).any(|c| c.reason == "NamespaceTerminating")
        || status.message.contains("because it is being terminated");
    match status.code {
        403 if terminating => Reason::NamespaceTerminating,
        401 | 403 => Reason::Forbidden,
        // Whatever code a policy or a webhook gives: the object may be right, and they may think otherwise tomorrow.
        _ if is_judged(&status.message) => Reason::Forbidden,
        400 | 413 | 415 | 422 => Reason::Invalid,
        // The schema's refusal of server-side apply comes as an internal error.
        500 if status.message.contains("failed to create typed patch object") => Reason::Invalid,
        404 if status.message.contains("could not find the requested resource") => Reason::NoKindMatch,
        _ => Reason::ApplyFailed,
    }
}

/// Deletes an object that was last seen as `live`: only that very one, and only as long as it has not become another's since; its
/// dependents in the background. `Ok` also where it is gone already.
///
/// # Errors
/// What the API server refused, or that the object is another's now.
pub async fn delete(client: &Client, kind: &Kind, key: &ObjectKey, live: &Value) -> Result<(), Refusal> {
    let api = api(client, kind, &key.namespace);
    let of = |name: &str| live.pointer(name).and_then(Value::as_str).map(ToOwned::to_owned);
    let (mut version, mut left) = (of("/metadata/resourceVersion"), OVERTAKEN);
    loop {
        let preconditions = Preconditions { uid: of("/metadata/uid"), resource_version: version.take() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        match api.delete(&segment(&key.name), &params).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 && left > 0 => {
                let Some(now) = found(&api, key).await.map_err(|error| refusal(&error))? else { return Ok(()) };
                left -= 1;
                // Sent for what was there when it was decided on; one that others keep changing goes in any version.
                version = now.resource_version.clone().filter(|_| left > 0);
                if !ownership::is_unchanged(live, &json!({"metadata": now})) {
                    let message = "it was made anew or became another's meanwhile, and is looked at again".to_owned();
                    return Err(Refusal { reason: Reason::ApplyFailed, message });
                }
            }
            Err(error) => return Err(refusal(&error)),
        }
    }
}

/// Waits until CustomResourceDefinitions are established, so that the next wave finds their kinds; at most `limit`.
pub async fn established(client: &Client, names: &[String], limit: std::time::Duration) {
    use kube::runtime::wait::{await_condition, conditions::is_crd_established};
    let api = kube::Api::all(client.clone());
    let waits = names.iter().map(|name| await_condition(api.clone(), name, is_crd_established()));
    // What is not established in time shows in the health of its row.
    let _ = tokio::time::timeout(limit, futures::future::join_all(waits)).await;
}

/// Whether a wave holds CustomResourceDefinitions: their names.
pub fn definitions(objects: &[Send<'_>]) -> Vec<String> {
    let is_definition = |key: &ObjectKey| manifest::wave(key) == 0;
    objects.iter().filter(|o| is_definition(&o.manifest.key)).map(|o| o.manifest.key.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::client::Body;
    use kube::core::ApiResource;
    use kube::core::response::{StatusCause, StatusDetails};

    use super::*;
    use crate::core::ownership::Owner;

    #[test]
    fn errors_are_sorted_by_what_helps() {
        let status = |code: u16, message: &str| Status { code, message: message.into(), ..Status::success() };
        let terminating = StatusDetails {
            causes: vec![StatusCause {
                reason: "NamespaceTerminating".into(),
                message: String::new(),
                field: String::new(),
            }],
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            retry_after_seconds: 0,
        };
        for (status, expected) in [
            (status(422, "is invalid"), Reason::Invalid),
            (
                status(
                    422,
                    "configmaps \"x\" is forbidden: ValidatingAdmissionPolicy 'a' with binding 'b' denied request: c",
                ),
                Reason::Forbidden,
            ),
            (status(400, "admission webhook \"x\" denied the request: no"), Reason::Forbidden),
            (
                status(500, "failed to create typed patch object (a/b): .spec.x: field not declared in schema"),
                Reason::Invalid,
            ),
            (status(500, "etcd leader changed"), Reason::ApplyFailed),
            (status(403, "forbidden"), Reason::Forbidden),
            (Status { details: Some(terminating), ..status(403, "is going") }, Reason::NamespaceTerminating),
            (
                status(403, "unable to create new content in namespace x because it is being terminated"),
                Reason::NamespaceTerminating,
            ),
            (status(404, "the server could not find the requested resource"), Reason::NoKindMatch),
            (status(404, "namespaces \"x\" not found"), Reason::ApplyFailed),
            (status(409, "conflict"), Reason::ApplyFailed),
            (status(429, "too many requests"), Reason::ApplyFailed),
        ] {
            let message = status.message.clone();
            assert_eq!(refusal(&kube::Error::Api(Box::new(status))), Refusal { reason: expected, message });
        }
    }

    #[test]
    fn what_may_be_there_already_is_looked_for() {
        let status = |code: u16, message: &str| Status { code, message: message.into(), ..Status::success() };
        for (refused, expected) in [
            (
                status(409, "the object has been modified; please apply your changes to the latest version"),
                MayBeThere::Yes,
            ),
            (status(409, "Operation cannot be fulfilled on resourcequotas \"q\""), MayBeThere::Yes),
            (status(422, "admission webhook \"w\" denied the request"), MayBeThere::Perhaps),
            (status(403, "ConfigMap \"x\" is forbidden"), MayBeThere::Perhaps),
            (
                status(500, "failed to create typed patch object (a/b): .x: field not declared in schema"),
                MayBeThere::Perhaps,
            ),
            (status(400, "Rejecting Create request with non-empty resource version"), MayBeThere::NoVersionTaken),
            (status(422, "metadata.resourceVersion: Invalid value: must not be set"), MayBeThere::NoVersionTaken),
            (status(403, "unable to create new content in namespace x because it is being terminated"), MayBeThere::No),
            (status(401, "Unauthorized"), MayBeThere::No),
            (status(404, "namespaces \"x\" not found"), MayBeThere::No),
            (status(500, "etcd leader changed"), MayBeThere::No),
            (status(429, "too many requests"), MayBeThere::No),
        ] {
            assert_eq!(may_be_there(&refused), expected, "{}", refused.message);
        }
    }

    type Requests = Arc<Mutex<Vec<String>>>;

    /// An API server that has `now`, and refuses what is for another version than 9; what it is asked.
    fn serving(now: Value) -> (Client, Requests) {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (now, seen) = (now.clone(), Arc::clone(&seen));
            async move {
                let (parts, body) = request.into_parts();
                let sent: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
                let of = ["/metadata/resourceVersion", "/preconditions/resourceVersion"];
                let version = of.iter().find_map(|version| sent.pointer(version)?.as_str()).unwrap_or_default();
                seen.lock().unwrap().push(format!("{} {version}", parts.method));
                let is_refused = parts.method != Method::GET && version != "9";
                let conflict = json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409});
                let (code, answer) = if is_refused { (409, conflict) } else { (200, now) };
                let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, tower::BoxError>(answer?)
            }
        });
        (Client::new(service, "default"), requests)
    }

    fn config_map() -> (Manifest, Kind) {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "shop"}});
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::ConfigMap>(&());
        (Manifest::from_value(object).unwrap(), Kind { resource, namespaced: true })
    }

    /// What is sent of an object that was decided on in version 1, to an API server that has `now`.
    async fn sent_over(now: Value) -> (Outcome, Vec<String>) {
        let ((client, requests), (manifest, kind)) = (serving(now), config_map());
        let live = json!({"metadata": {"uid": "1", "resourceVersion": "1"}});
        let send = Send { manifest: &manifest, kind: &kind, migrate: None, over: Over::Live(&live) };
        let outcome = send_one(&client, send).await;
        let requests = requests.lock().unwrap().clone();
        (outcome, requests)
    }

    /// An object in version 9.
    fn now(metadata: &Value) -> Value {
        let mut now =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"uid": "1", "resourceVersion": "9"}});
        json_patch::merge(&mut now["metadata"], metadata);
        now
    }

    #[tokio::test]
    async fn what_has_become_anothers_is_not_deleted() {
        let other = Owner { kind: "ClusterStackRelease".into(), namespace: "shop".into(), name: "v2".into() };
        let labels: BTreeMap<_, _> = other.labels().into_iter().collect();
        for (case, version, metadata, asked) in [
            ("as it was seen", "9", json!({}), &["DELETE 9"][..]),
            ("changed", "1", json!({"labels": {"tier": "a"}}), &["DELETE 1", "GET ", "DELETE 9"]),
            ("another object", "1", json!({"uid": "2"}), &["DELETE 1", "GET "]),
            ("a newer release has it", "1", json!({"labels": labels}), &["DELETE 1", "GET "]),
            ("Helm has it", "1", json!({"annotations": {"meta.helm.sh/release-name": "r"}}), &["DELETE 1", "GET "]),
        ] {
            let ((client, requests), (manifest, kind)) = (serving(now(&metadata)), config_map());
            let live = json!({"metadata": {"uid": "1", "resourceVersion": version}});
            let deleted = delete(&client, &kind, &manifest.key, &live).await;
            assert_eq!(deleted.is_ok(), asked.last().is_some_and(|last| *last == "DELETE 9"), "{case}: {deleted:?}");
            assert_eq!(*requests.lock().unwrap(), asked, "{case}");
        }
    }

    #[tokio::test]
    async fn what_has_become_anothers_is_not_written_over() {
        let (outcome, requests) = sent_over(now(&json!({"labels": {"tier": "a"}}))).await;
        assert!(outcome.result.is_ok() && !outcome.is_there, "{outcome:?}");
        assert_eq!(requests, ["PATCH 1", "GET ", "PATCH 9"]);
        for (case, metadata) in [
            ("another object", json!({"uid": "2"})),
            ("Helm has it", json!({"annotations": {"meta.helm.sh/release-name": "r"}})),
        ] {
            let (outcome, requests) = sent_over(now(&metadata)).await;
            assert!(outcome.is_there && outcome.result.unwrap_err().message.contains("somebody else"), "{case}");
            assert_eq!(requests, ["PATCH 1", "GET "], "{case}");
        }
    }

    #[test]
    fn a_cause_is_told_once() {
        let refused = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "Connection refused (os error 111)");
        let error = kube::Error::Service(Box::new(kube::Error::Service(Box::new(refused))));
        let message = super::refusal(&error).message;
        assert_eq!(message.matches("Connection refused").count(), 1, "{message}");
        assert!(message.starts_with("the API server did not answer: "), "{message}");
    }

    #[test]
    fn a_field_that_cannot_be_changed_has_a_reason_of_its_own() {
        let cause = StatusCause {
            reason: "FieldValueInvalid".into(),
            message: "Invalid value: {}: field is immutable".into(),
            field: "spec.selector".into(),
        };
        let details = StatusDetails {
            causes: vec![cause],
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            retry_after_seconds: 0,
        };
        let status = Status { code: 422, message: "is invalid".into(), details: Some(details), ..Status::success() };
        let Refusal { reason, message } = refusal(&kube::Error::Api(Box::new(status)));
        assert_eq!(reason, Reason::ImmutableField);
        assert!(message.starts_with("spec.selector can't be changed") && message.ends_with("is invalid"), "{message}");
    }
}
