//! Finalizers: what keeps an object until the operator has ended what it made of it.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{Doing, Error};
use crate::api::FIELD_MANAGER;

/// How often one is set on an object that others change meanwhile.
const OVERTAKEN: usize = 4;

/// Whether an object has a finalizer.
pub(super) fn is_on<K: ResourceExt>(object: &K, finalizer: &str) -> bool {
    object.finalizers().iter().any(|name| name == finalizer)
}

/// Sets a finalizer; the object as it is with it.
///
/// # Errors
/// What the API server refused; also that the object is gone, or being deleted.
pub(super) async fn add<K>(client: Client, object: &K, finalizer: &str) -> Result<K, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let (api, name) = (api::<K>(client, object), object.name_any());
    let doing = || format!("setting the finalizer of {} {name}", K::kind(&()));
    let mut now = object.clone();
    for left in (0..OVERTAKEN).rev() {
        let all: Vec<&str> = now.finalizers().iter().map(String::as_str).chain([finalizer]).collect();
        match api.patch(&name, &as_us(), &patched(&now, &all)).await {
            Err(kube::Error::Api(error)) if error.code == 409 && left > 0 => {
                let found = api.get(&name).await.doing(doing)?;
                if found.uid() != object.uid() {
                    return Err(kube::Error::Api(error)).doing(doing);
                }
                if is_on(&found, finalizer) {
                    return Ok(found);
                }
                now = found;
            }
            other => return other.doing(doing),
        }
    }
    Ok(now)
}

/// Takes a finalizer from an object as it was when that was decided on. One that is gone has none.
///
/// # Errors
/// What the API server refused; a conflict where the object changed meanwhile.
pub(super) async fn remove<K>(client: Client, object: &K, finalizer: &str) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let rest: Vec<&str> = object.finalizers().iter().map(String::as_str).filter(|name| *name != finalizer).collect();
    match api::<K>(client, object).patch(&object.name_any(), &as_us(), &patched(object, &rest)).await {
        Err(kube::Error::Api(error)) if error.code == 404 => Ok(()),
        other => other.map(drop).doing(|| format!("removing the finalizer of {} {}", K::kind(&()), object.name_any())),
    }
}

fn api<K>(client: Client, object: &K) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced(client, &object.namespace().unwrap_or_default())
}

fn as_us() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// These finalizers and no others, for this version of the object: one that came meanwhile is not lost.
fn patched<K: ResourceExt>(object: &K, finalizers: &[&str]) -> Patch<serde_json::Value> {
    let metadata = json!({"uid": object.uid(), "resourceVersion": object.resource_version(), "finalizers": finalizers});
    Patch::Merge(json!({"metadata": metadata}))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::Value;

    use super::*;
    use crate::api::ClusterStackRelease;

    fn release(version: &str, finalizers: &[&str]) -> Value {
        json!({
            "apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterStackRelease", "spec": {},
            "metadata": {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": version, "finalizers": finalizers},
        })
    }

    /// An API server that has this object, and what was sent to it.
    fn serving(object: Value) -> (Client, Arc<Mutex<Vec<Value>>>) {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&sent);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (seen, object) = (Arc::clone(&seen), object.clone());
            async move {
                let is_patch = request.method() == Method::PATCH;
                let body = request.into_body().collect_bytes().await.unwrap();
                let patch: Value = serde_json::from_slice(&body).unwrap_or_default();
                let is_for_it = patch["metadata"]["resourceVersion"] == object["metadata"]["resourceVersion"];
                if is_patch {
                    seen.lock().unwrap().push(patch["metadata"]["finalizers"].clone());
                }
                let conflict =
                    json!({"kind": "Status", "status": "Failure", "message": "m", "reason": "Conflict", "code": 409});
                let mut changed = object.clone();
                if is_patch {
                    json_patch::merge(&mut changed, &patch);
                }
                let (code, answer) = if !is_patch || is_for_it { (200, changed) } else { (409, conflict) };
                let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        (Client::new(service, "b"), sent)
    }

    #[tokio::test]
    async fn one_that_came_meanwhile_stays() {
        let seen: ClusterStackRelease = serde_json::from_value(release("1", &[])).unwrap();
        let (client, sent) = serving(release("2", &["theirs"]));
        let held = add(client.clone(), &seen, "ours").await.unwrap();
        assert_eq!(held.finalizers(), ["theirs", "ours"]);
        assert_eq!(*sent.lock().unwrap(), [json!(["ours"]), json!(["theirs", "ours"])]);

        // What was decided on another version is not done.
        assert!(remove(client.clone(), &seen, "ours").await.is_err());
        remove(client, &held, "ours").await.unwrap();
        assert_eq!(sent.lock().unwrap().last(), Some(&json!(["theirs"])));
    }

    #[tokio::test]
    async fn one_that_somebody_set_meanwhile_is_not_set_again() {
        let seen: ClusterStackRelease = serde_json::from_value(release("1", &[])).unwrap();
        let (client, sent) = serving(release("2", &["ours"]));
        assert_eq!(add(client, &seen, "ours").await.unwrap().finalizers(), ["ours"]);
        assert_eq!(sent.lock().unwrap().len(), 1);
    }
}
