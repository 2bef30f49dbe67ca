//! Watches of our own kinds, which one object that can't be read does not end for all others.
//!
//! An object is unreadable when it was stored under another schema than ours: by a later version, or around the API. It is
//! left alone, with an event and a line in the log, and stays in the store as it was last read, so that nobody takes it for
//! deleted; when it can be read again, it comes as a change.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DynamicObject, ListParams};
use kube::core::error_boundary::{DeserializeGuard, InvalidObject};
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::task::TaskTracker;

use crate::api::condition::Reason;
use crate::io::client::shallow::{LEVELS, is_cut};
use crate::io::events::Events;
use crate::io::patient_watch::patient;

/// Objects of which it is remembered that they can't be read; more are skipped all the same.
const REMEMBERED: usize = 4096;

/// Objects that can't be read.
#[derive(Clone)]
pub struct Unreadable(Arc<Shared>);

struct Shared {
    /// With the version that was told of.
    known: Mutex<HashMap<ObjectRef<DynamicObject>, Option<String>>>,
    /// Who is told, and where; nobody without.
    told: Option<(Events, TaskTracker)>,
}

impl Unreadable {
    /// None yet; they are told of by `events`, in `tasks`.
    pub fn new(events: Events, tasks: TaskTracker) -> Self {
        Self(Arc::new(Shared { known: Mutex::default(), told: Some((events, tasks)) }))
    }

    /// The same where somebody else tells of them.
    pub fn silent() -> Self {
        Self(Arc::new(Shared { known: Mutex::default(), told: None }))
    }

    /// Whether an object is one of them.
    pub fn holds<K: Resource<DynamicType = ()>>(&self, namespace: &str, name: &str) -> bool {
        let known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        // As a rule there are none.
        !known.is_empty() && known.contains_key(&ObjectRef::<K>::new(name).within(namespace).erase())
    }

    fn forget(&self, object: &ObjectRef<DynamicObject>) {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner).remove(object);
    }

    /// Tells of one, once for each version of it.
    fn tell<K: Resource<DynamicType = ()>>(&self, object: &ObjectRef<DynamicObject>, invalid: &InvalidObject) {
        let version = invalid.metadata.resource_version.clone();
        {
            let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
            let is_full = known.len() >= REMEMBERED;
            match known.entry(object.clone()) {
                Entry::Occupied(mut told) if *told.get() != version => {
                    told.insert(version);
                }
                Entry::Vacant(free) if !is_full => {
                    free.insert(version);
                }
                _ => return,
            }
        }
        let Some((events, tasks)) = &self.0.told else { return };
        let note = format!(
            "it can't be read by this version of the operator and is left alone, with all that belongs to it: {}. Correct \
             it, or run the version that wrote it",
            without_values(&invalid.error)
        );
        tracing::error!(kind = %K::kind(&()), %object, "{note}");
        let (events, metadata) = (events.clone(), invalid.metadata.clone());
        let reference = ObjectReference {
            api_version: Some(K::api_version(&()).into_owned()),
            kind: Some(K::kind(&()).into_owned()),
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            ..ObjectReference::default()
        };
        tasks.spawn(async move { events.say_of(&reference, Reason::Unreadable, &note).await });
    }
}

/// What serde says of an object, without the values that it quotes: they may be anybody's secrets.
pub(crate) fn without_values(error: &str) -> String {
    let Some((found, expected)) = error.split_once(", expected ") else { return error.to_owned() };
    let kept = match found.split_once(": ") {
        Some((what @ ("invalid type" | "invalid value"), found)) => {
            format!("{what}: {}", found.split_whitespace().next().unwrap_or_default())
        }
        _ if found.starts_with("unknown variant") => "unknown variant".to_owned(),
        _ => found.to_owned(),
    };
    format!("{kept}, expected {expected}")
}

/// The objects of a kind as they change, in one namespace or all.
pub fn watch<K>(
    client: &Client,
    namespace: Option<&str>,
    known: Store<K>,
    unreadable: Unreadable,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + use<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + DeserializeOwned
        + Serialize
        + Clone
        + Debug
        + Send
        + Sync
        + 'static,
{
    let api: Api<DeserializeGuard<K>> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let events = patient(api, watcher::Config::default());
    events.filter_map(move |event| {
        let kept = event.map(|event| readable(event, &known, &unreadable)).transpose();
        std::future::ready(kept)
    })
}

/// The objects of a list that can be read; of the others where they are and why, for people.
///
/// # Errors
/// What the API server said.
pub async fn list<K>(
    client: &Client,
    namespace: Option<&str>,
    params: &ListParams,
) -> Result<(Vec<K>, Vec<String>), kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Serialize + Clone + Debug,
{
    let (objects, unread) = list_all(client, namespace, params).await?;
    Ok((objects, unread.into_iter().map(|unread| unread.why).collect()))
}

/// The same; of the others their metadata, too.
///
/// # Errors
/// What the API server said.
pub async fn list_all<K>(
    client: &Client,
    namespace: Option<&str>,
    params: &ListParams,
) -> Result<(Vec<K>, Vec<Unread>), kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Serialize + Clone + Debug,
{
    let api: Api<DeserializeGuard<K>> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    Ok(sorted_out(api.list(params).await?.items))
}

/// An object that can't be read.
#[derive(Clone, Debug)]
pub struct Unread {
    /// What can be read of it.
    pub metadata: ObjectMeta,
    /// Where it is and why, for people.
    pub why: String,
}

/// The same of a kind that is in no namespace.
///
/// # Errors
/// What the API server said.
pub async fn list_cluster_wide<K>(client: &Client, params: &ListParams) -> Result<(Vec<K>, Vec<String>), kube::Error>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + DeserializeOwned + Serialize + Clone + Debug,
{
    let api: Api<DeserializeGuard<K>> = Api::all(client.clone());
    let (objects, unread) = sorted_out(api.list(params).await?.items);
    Ok((objects, unread.into_iter().map(|unread| unread.why).collect()))
}

/// An object that was read whole.
fn whole<K: Resource<DynamicType = ()> + Serialize>(object: DeserializeGuard<K>) -> Result<K, Box<InvalidObject>> {
    let object = object.0.map_err(Box::new)?;
    if !is_cut(&object) {
        return Ok(object);
    }
    let error = format!("it is nested deeper than {LEVELS} levels");
    Err(Box::new(InvalidObject { error, metadata: object.meta().clone() }))
}

fn sorted_out<K: Resource<DynamicType = ()> + Serialize>(items: Vec<DeserializeGuard<K>>) -> (Vec<K>, Vec<Unread>) {
    let (mut objects, mut left_out) = (Vec::new(), Vec::new());
    for object in items {
        match whole(object) {
            Ok(object) => objects.push(object),
            Err(invalid) => {
                let InvalidObject { metadata, error } = *invalid;
                let namespace =
                    metadata.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
                let name = metadata.name.clone().unwrap_or_default();
                let kind = K::kind(&());
                let why = without_values(&error);
                let why = format!("{kind} {namespace}{name} can't be read by this version and is left out: {why}");
                left_out.push(Unread { metadata, why });
            }
        }
    }
    (objects, left_out)
}

/// Leaves out which fields each writer has, which is much of what is kept of an object and is read of none. Who wrote, and
/// when, stays. So what is kept must not be sent back with its `managedFields`.
fn lighten(metadata: &mut ObjectMeta) {
    for entry in metadata.managed_fields.iter_mut().flatten() {
        entry.fields_v1 = None;
    }
}

/// The same event, if its object can be read; with the object as it was last read where it must not seem to be gone.
fn readable<K>(event: Event<DeserializeGuard<K>>, known: &Store<K>, unreadable: &Unreadable) -> Option<Event<K>>
where
    K: Resource<DynamicType = ()> + Serialize + Clone + 'static,
{
    let place = |object: &DeserializeGuard<K>| {
        let meta = object.meta();
        let place = ObjectRef::<K>::new(meta.name.as_deref().unwrap_or_default());
        place.within(meta.namespace.as_deref().unwrap_or_default())
    };
    let read = |object: DeserializeGuard<K>| {
        let place = place(&object);
        match whole(object) {
            Ok(mut object) => {
                unreadable.forget(&place.erase());
                lighten(object.meta_mut());
                Ok(object)
            }
            Err(invalid) => {
                unreadable.tell::<K>(&place.clone().erase(), &invalid);
                Err(known.get(&place))
            }
        }
    };
    match event {
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
        Event::Apply(object) => read(object).ok().map(Event::Apply),
        Event::InitApply(object) => match read(object) {
            Ok(object) => Some(Event::InitApply(object)),
            Err(before) => before.map(|before| Event::InitApply((*before).clone())),
        },
        Event::Delete(object) => {
            let place = place(&object);
            unreadable.forget(&place.clone().erase());
            object.0.ok().or_else(|| known.get(&place).map(|before| (*before).clone())).map(Event::Delete)
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use kube::runtime::reflector;
    use serde_json::{Value, json};
    use tower::BoxError;

    use super::*;
    use crate::api::ClusterStackSource;

    type Guarded = DeserializeGuard<ClusterStackSource>;

    fn stored(name: &str, version: &str, spec: &Value) -> Guarded {
        let metadata = json!({"name": name, "namespace": "team", "resourceVersion": version});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    #[test]
    fn values_are_not_told() {
        for (error, told) in [
            ("invalid type: string \"hunter2\", expected u32", "invalid type: string, expected u32"),
            ("invalid value: integer `-5`, expected u16", "invalid value: integer, expected u16"),
            ("unknown variant `hunter2`, expected `a` or `b`", "unknown variant, expected `a` or `b`"),
            ("missing field `provider`", "missing field `provider`"),
        ] {
            assert_eq!(without_values(error), told);
        }
    }

    #[test]
    fn who_wrote_is_kept_and_not_what() {
        let entry = json!({"manager": "kubectl", "operation": "Apply", "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:interval": {}}}});
        let mut metadata = serde_json::from_value(json!({"managedFields": [entry]})).unwrap();
        lighten(&mut metadata);
        let expected = json!({"managedFields": [{"manager": "kubectl", "operation": "Apply",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1"}]});
        assert_eq!(serde_json::to_value(metadata).unwrap(), expected);
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_left_alone_and_told_once() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let service = tower::service_fn(move |request: Request<Body>| {
            let heard = Arc::clone(&heard);
            async move {
                let body = request.into_body().collect_bytes().await?;
                let event: Value = serde_json::from_slice(&body)?;
                heard.lock().unwrap().push((event["reason"].clone(), event["regarding"]["name"].clone()));
                Ok::<_, BoxError>(Response::new(Body::from(body.to_vec())))
            }
        });
        let tasks = TaskTracker::new();
        let events = Events::new(Client::new(service, "default"), "x".into());
        let unreadable = Unreadable::new(events, tasks.clone());
        let (known, mut writer) = reflector::store();
        let git = json!({"git": {"url": "https://git.example.com/x.git"}});
        let good = json!({"source": git, "interval": "5m"});
        let bad = json!({"source": git, "interval": {"minutes": 5}});
        let holds = || unreadable.holds::<ClusterStackSource>("team", "a");

        let Some(Event::Apply(first)) = readable(Event::Apply(stored("a", "1", &good)), &known, &unreadable) else {
            panic!("it was not let through")
        };
        writer.apply_watcher_event(&Event::Apply(first));
        assert!(readable(Event::Apply(stored("a", "2", &bad)), &known, &unreadable).is_none());
        assert!(holds());
        // A new reading of all finds it again: it stays as it was.
        let Some(Event::InitApply(kept)) = readable(Event::InitApply(stored("a", "2", &bad)), &known, &unreadable)
        else {
            panic!("it seems to be gone")
        };
        assert_eq!(kept.metadata.resource_version.as_deref(), Some("1"));
        assert!(readable(Event::InitApply(stored("b", "3", &bad)), &known, &unreadable).is_none());

        assert!(matches!(readable(Event::Apply(stored("a", "4", &good)), &known, &unreadable), Some(Event::Apply(_))));
        assert!(!holds());
        assert!(readable(Event::Apply(stored("a", "5", &bad)), &known, &unreadable).is_none());
        assert!(matches!(readable(Event::Delete(stored("a", "6", &bad)), &known, &unreadable), Some(Event::Delete(_))));
        assert!(!holds());

        tasks.close();
        tasks.wait().await;
        let mut said = said.lock().unwrap().clone();
        said.sort_by_key(|(_, name)| name.to_string());
        assert_eq!(said, ["a", "a", "b"].map(|name| (json!("Unreadable"), json!(name))));
    }
}
