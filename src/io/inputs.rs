//! Watches of what the addons of Clusters are made from: ConfigMaps and Secrets with values, kubeconfigs, control planes
//! and infrastructures.
//!
//! One watch per kind, however many Clusters there are, begun when the first one needs it: in all namespaces, or in the one
//! that the operator is confined to. ConfigMaps and Secrets come by metadata alone. Of what comes nothing is kept but a hash
//! for each use of an object by a Cluster. Where the operator may not watch, this is said once, and the clock sees to it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::api::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::core::{DynamicResourceScope, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::core::addon::cluster;
use crate::core::manifest::ObjectKey;
use crate::io::kinds::Kind;
use crate::io::observe::plain;
use crate::io::patient_watch::patient;
use crate::io::watch::{Notice, Watches};
use crate::io::workload::Circuits;

/// How long a watch that was refused is not tried again.
const REFUSED: Duration = Duration::from_mins(5);

/// Namespace and name of a Cluster.
pub type Place = (String, String);

/// What of an object counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    /// Any change; only its metadata is asked for.
    Version,
    /// A change of what templates see.
    Content,
}

/// The watches.
pub struct Inputs {
    client: Client,
    namespace: Option<String>,
    watches: Arc<Watches>,
    circuits: Arc<Circuits>,
    cancel: CancellationToken,
    tasks: TaskTracker,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    kinds: HashSet<(String, String)>,
    /// The objects in use: by whom, with a hash of what each read last or was told of; `None` where it was not there, or
    /// not read yet.
    used: HashMap<ObjectKey, BTreeMap<Place, Option<u64>>>,
    by_cluster: HashMap<Place, BTreeSet<ObjectKey>>,
}

impl Inputs {
    /// Watches with `client`, in `namespace` alone if there is one, until `cancel`. What changes is told by `watches`.
    pub fn new(
        (client, namespace): (Client, Option<String>),
        watches: Arc<Watches>,
        circuits: Arc<Circuits>,
        (cancel, tasks): (CancellationToken, TaskTracker),
    ) -> Arc<Self> {
        Arc::new(Self { client, namespace, watches, circuits, cancel, tasks, known: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pass over a Cluster's addons begins: what it uses is told anew with [`Self::uses`] before it is read, and
    /// [`Self::settle`] forgets the rest.
    pub fn uses(self: &Arc<Self>, cluster: &Place, key: &ObjectKey, kind: Option<&Kind>) {
        let is_new = {
            let mut known = self.lock();
            known.used.entry(key.clone()).or_default().entry(cluster.clone()).or_default();
            known.by_cluster.entry(cluster.clone()).or_default().insert(key.clone());
            known.kinds.insert((key.group.clone(), key.kind.clone()))
        };
        if is_new {
            let (resource, depth) = match kind {
                Some(kind) => (kind.resource.clone(), Depth::Content),
                None => (ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", &key.kind)), Depth::Version),
            };
            let inputs = Arc::clone(self);
            self.tasks.spawn(async move { inputs.watch(resource, depth).await });
        }
    }

    /// What a pass over a Cluster's addons read, as [`version`] or [`cluster::content`] of it: the same is no news to it.
    pub fn read(&self, cluster: &Place, key: &ObjectKey, seen: Option<u64>) {
        if let Some(of_cluster) = self.lock().used.get_mut(key).and_then(|by| by.get_mut(cluster)) {
            *of_cluster = seen;
        }
    }

    /// A Cluster uses these alone.
    pub fn settle(&self, cluster: &Place, keys: &BTreeSet<ObjectKey>) {
        let mut known = self.lock();
        let before = known.by_cluster.remove(cluster).unwrap_or_default();
        for key in before.difference(keys) {
            if let Some(by) = known.used.get_mut(key) {
                by.remove(cluster);
                if by.is_empty() {
                    known.used.remove(key);
                }
            }
        }
        if !keys.is_empty() {
            known.by_cluster.insert(cluster.clone(), keys.clone());
        }
    }

    /// Watches a kind until the end.
    async fn watch(&self, resource: ApiResource, depth: Depth) {
        let mut told = false;
        while self.watch_while_allowed(&resource, depth).await {
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(
                    kind = resource.kind,
                    "the operator may not list and watch this kind: changes that concern addons are seen once a minute"
                );
            }
            tokio::select! {
                () = self.cancel.cancelled() => return,
                () = tokio::time::sleep(REFUSED) => {}
            }
        }
    }

    fn api<K>(&self, resource: &ApiResource) -> Api<K>
    where
        K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        }
    }

    /// `true` when it was refused, `false` at the end.
    async fn watch_while_allowed(&self, resource: &ApiResource, depth: Depth) -> bool {
        let mut events = match depth {
            Depth::Content => {
                let kind = Kind { resource: resource.clone(), namespaced: true };
                let seen = move |object: DynamicObject| -> Seen {
                    (object.namespace(), object.name_any(), cluster::content(&plain(&object, &kind)))
                };
                let events = patient(self.api(resource), watcher::Config::default());
                events.map_ok(move |event| mapped(event, &seen)).boxed()
            }
            Depth::Version => {
                let seen = |object: PartialObjectMeta<DynamicObject>| -> Seen {
                    (object.namespace(), object.name_any(), version(object.resource_version().as_deref()))
                };
                let events = patient(self.api(resource), watcher::Config::default());
                events.map_ok(move |event| mapped(event, seen)).boxed()
            }
        };
        let mut listed: HashSet<ObjectKey> = HashSet::new();
        loop {
            let event = tokio::select! {
                () = self.cancel.cancelled() => return false,
                event = events.try_next() => event,
            };
            let (seen, is_there) = match event {
                Ok(Some(Event::Init)) => {
                    listed.clear();
                    continue;
                }
                Ok(Some(Event::InitDone)) => {
                    self.missing(resource, &listed);
                    continue;
                }
                Ok(Some(Event::Delete(seen))) => (seen, false),
                Ok(Some(Event::InitApply(seen) | Event::Apply(seen))) => (seen, true),
                Ok(None) => return false,
                Err(error) if is_refused(&error) => return true,
                Err(_) => continue,
            };
            let (namespace, name, hash) = seen;
            let (group, kind) = (resource.group.clone(), resource.kind.clone());
            let key = ObjectKey { group, kind, namespace: namespace.unwrap_or_default(), name };
            self.changed(&key, is_there.then_some(hash));
            if self.lock().used.contains_key(&key) {
                listed.insert(key);
            }
        }
    }

    /// What was there and is not in the new list was deleted while nobody watched.
    fn missing(&self, resource: &ApiResource, listed: &HashSet<ObjectKey>) {
        let is_gone =
            |key: &&ObjectKey| (&key.group, &key.kind) == (&resource.group, &resource.kind) && !listed.contains(*key);
        let gone: Vec<ObjectKey> = self.lock().used.keys().filter(is_gone).cloned().collect();
        for key in gone {
            self.changed(&key, None);
        }
    }

    fn changed(&self, key: &ObjectKey, seen: Option<u64>) {
        let clusters: Vec<Place> = {
            let mut known = self.lock();
            let Some(by) = known.used.get_mut(key) else { return };
            let news = by.iter_mut().filter(|(_, of_cluster)| **of_cluster != seen);
            news.map(|(cluster, of_cluster)| {
                *of_cluster = seen;
                cluster.clone()
            })
            .collect()
        };
        for (namespace, name) in clusters {
            if key.kind == "Secret" && key.name == kubeconfig_name(&name) {
                self.circuits.close(&namespace, &name);
            }
            self.watches.tell(Notice::Addon(namespace, name));
        }
    }
}

/// The Secret in which Cluster API keeps the kubeconfig of a Cluster.
pub fn kubeconfig_name(cluster: &str) -> String {
    format!("{cluster}-kubeconfig")
}

type Seen = (Option<String>, String, u64);

fn mapped<K>(event: Event<K>, seen: impl Fn(K) -> Seen) -> Event<Seen> {
    match event {
        Event::Apply(object) => Event::Apply(seen(object)),
        Event::Delete(object) => Event::Delete(seen(object)),
        Event::InitApply(object) => Event::InitApply(seen(object)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}

/// What counts of an object that is watched by its metadata.
pub fn version(resource_version: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    resource_version.hash(&mut hasher);
    hasher.finish()
}

/// Whether a watch fails for lack of rights, or because its kind is not served any more.
pub(super) fn is_refused(error: &watcher::Error) -> bool {
    let code = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.code,
        _ => return false,
    };
    (403..=405).contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    /// Its API server refuses everything.
    fn inputs() -> (Arc<Inputs>, UnboundedReceiver<Notice>) {
        let (notices, told) = unbounded_channel();
        let (cancel, tasks) = (CancellationToken::new(), TaskTracker::new());
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            let status =
                r#"{"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403}"#;
            let body = kube::client::Body::from(status.as_bytes().to_vec());
            http::Response::builder().status(403).body(body)
        });
        let client = Client::new(service, "default");
        let watches = Watches::new(client.clone(), notices, cancel.clone(), tasks.clone());
        (Inputs::new((client, None), watches, Arc::default(), (cancel, tasks)), told)
    }

    fn key(kind: &str, name: &str) -> ObjectKey {
        ObjectKey { kind: kind.into(), namespace: "team".into(), name: name.into(), ..ObjectKey::default() }
    }

    fn told(notices: &mut UnboundedReceiver<Notice>) -> Vec<String> {
        let mut names = Vec::new();
        while let Ok(notice) = notices.try_recv() {
            let Notice::Addon(namespace, name) = notice else { panic!("{notice:?}") };
            names.push(format!("{namespace}/{name}"));
        }
        names
    }

    #[tokio::test]
    async fn a_change_is_told_to_each_cluster_that_did_not_read_it_itself() {
        let (inputs, mut notices) = inputs();
        let (a, b) = (("team".to_owned(), "a".to_owned()), ("team".to_owned(), "b".to_owned()));
        let (map, other) = (key("ConfigMap", "mine"), key("ConfigMap", "other"));
        inputs.uses(&a, &map, None);
        inputs.uses(&b, &map, None);
        inputs.read(&a, &map, Some(1));
        inputs.read(&b, &map, Some(1));
        inputs.changed(&map, Some(1));
        inputs.changed(&other, Some(1));
        assert!(told(&mut notices).is_empty());
        // One read it before the watch brought it.
        inputs.read(&a, &map, Some(2));
        inputs.changed(&map, Some(2));
        assert_eq!(told(&mut notices), ["team/b"]);
        inputs.changed(&map, None);
        assert_eq!(told(&mut notices), ["team/a", "team/b"]);
        inputs.settle(&b, &BTreeSet::new());
        inputs.changed(&map, Some(3));
        assert_eq!(told(&mut notices), ["team/a"]);
        inputs.settle(&a, &BTreeSet::new());
        assert!(inputs.lock().used.is_empty() && inputs.lock().by_cluster.is_empty());
    }

    #[tokio::test]
    async fn what_went_while_nobody_watched_is_told() {
        let (inputs, mut notices) = inputs();
        let a = ("team".to_owned(), "a".to_owned());
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        for name in ["stays", "goes", "never"] {
            inputs.uses(&a, &key("ConfigMap", name), None);
        }
        inputs.read(&a, &key("ConfigMap", "stays"), Some(1));
        inputs.read(&a, &key("ConfigMap", "goes"), Some(1));
        inputs.missing(&resource, &HashSet::from([key("ConfigMap", "stays")]));
        assert_eq!(told(&mut notices), ["team/a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_not_be_watched_is_tried_again_from_time_to_time() {
        let (inputs, _notices) = inputs();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Secret"));
        assert!(inputs.watch_while_allowed(&resource, Depth::Version).await);
        let watch = inputs.watch(resource, Depth::Version);
        assert!(tokio::time::timeout(REFUSED * 3, watch).await.is_err());
    }

    #[tokio::test]
    async fn a_changed_kubeconfig_closes_the_circuit() {
        let (inputs, mut notices) = inputs();
        let a = ("team".to_owned(), "a".to_owned());
        inputs.uses(&a, &key("Secret", "a-kubeconfig"), None);
        for _ in 0..3 {
            inputs.circuits.failed("team", "a", "timeout");
        }
        assert!(inputs.circuits.next("team", "a").is_some());
        inputs.changed(&key("Secret", "a-kubeconfig"), Some(1));
        assert!(inputs.circuits.next("team", "a").is_none() && !inputs.circuits.is_doubtful("team", "a"));
        assert_eq!(told(&mut notices), ["team/a"]);
    }
}
