//! Watches of what was applied to a workload cluster: what somebody changes there is put back within seconds.
//!
//! One watch per kind that was applied, by metadata and with the labels of one ClusterAddon, so that nothing comes but our
//! own objects. Kept is the version of each: while all of them are watched, and in the version in which they were looked at last, a
//! pass by the clock looks at none. When a cluster does not answer its watches end, and the next pass that reaches
//! it begins them anew; meanwhile, and where there is no room for more watches, the clock sees to it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use kube::api::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::core::manifest::ObjectKey;
use crate::io::inputs::is_refused;
use crate::io::kinds::Kind;
use crate::io::patient_watch::patient;
use crate::io::watch::shown::Shown;
use crate::io::watch::{Notice, Watches};

/// Most watches of all workload clusters together. Where one knows HTTP/1.1 alone, each is a connection.
pub const MOST: usize = 10_000;
/// Most watches of one: an API server takes 100 on a connection (`http2-max-streams-per-connection`).
const EACH: usize = 64;
/// How long a watch that was refused is not tried again.
const REFUSED: Duration = Duration::from_mins(5);
/// Failures in a row after which a watch ends.
const FAILURES: u32 = 3;
/// Changes within this time lead to one pass.
const TOGETHER: Duration = Duration::from_secs(1);

/// The watches of one workload cluster. They end with it.
pub struct Drift {
    client: Client,
    room: Arc<Semaphore>,
    stop: CancellationToken,
    _end: DropGuard,
    known: Mutex<Known>,
    told: AtomicBool,
}

#[derive(Default)]
struct Known {
    kinds: HashMap<(String, String), Watched>,
    versions: HashMap<ObjectKey, String>,
    /// What changed since, and was told.
    changed: HashSet<ObjectKey>,
}

/// A kind that is watched.
#[derive(Clone)]
struct Watched {
    stop: CancellationToken,
    shown: Arc<Mutex<Shown>>,
}

/// An object as it was read or written last.
pub struct Followed {
    /// Identity.
    pub key: ObjectKey,
    /// Kind.
    pub kind: Kind,
    /// Its `resourceVersion`.
    pub version: String,
}

/// Whose objects are watched, and who is told.
#[derive(Clone)]
pub struct Follower {
    /// Namespace and name of the Cluster.
    pub cluster: (String, String),
    /// What its objects carry.
    pub selector: String,
    /// Tells of changes.
    pub watches: Arc<Watches>,
}

impl Drift {
    /// Watches with `client`, as many as there is `room` for.
    pub fn new(client: Client, room: Arc<Semaphore>) -> Self {
        let stop = CancellationToken::new();
        let end = stop.clone().drop_guard();
        Self { client, room, stop, _end: end, known: Mutex::default(), told: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are the objects from now on: another version of one, or its end, is told.
    pub fn follow(self: &Arc<Self>, follower: &Follower, objects: Vec<Followed>) {
        let place = |kind: &Kind| (kind.resource.group.clone(), kind.resource.kind.clone());
        let mut new: HashMap<(String, String), (ApiResource, Watched)> = HashMap::new();
        {
            let mut known = self.lock();
            known.versions.clear();
            known.changed.clear();
            known.versions.shrink_to_fit();
            let wanted: HashMap<(String, String), ApiResource> =
                objects.iter().map(|object| (place(&object.kind), object.kind.resource.clone())).collect();
            known.kinds.retain(|kind, watched| {
                let stays = wanted.contains_key(kind);
                if !stays {
                    watched.stop.cancel();
                }
                stays
            });
            for (kind, resource) in wanted {
                if !known.kinds.contains_key(&kind) && known.kinds.len() < EACH {
                    let watched = Watched { stop: self.stop.child_token(), shown: Arc::default() };
                    known.kinds.insert(kind.clone(), watched.clone());
                    new.insert(kind, (resource, watched));
                }
            }
            known.versions.extend(objects.into_iter().map(|object| (object.key, object.version)));
        }
        for (kind, (resource, Watched { stop, shown })) in new {
            let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
                // The next pass tries again.
                self.lock().kinds.remove(&kind);
                continue;
            };
            let (drift, client, follower) = (Arc::downgrade(self), self.client.clone(), follower.clone());
            let tasks = follower.watches.tasks().clone();
            tasks.spawn(async move {
                let ends = follower.watches.ends();
                let end = tokio::select! {
                    () = ends.cancelled() => End::Stopped,
                    () = stop.cancelled() => End::Stopped,
                    end = watch(&drift, client, (&resource, &shown), &follower) => end,
                };
                locked(&shown).list_begins();
                drop(room);
                if matches!(end, End::Refused) {
                    tokio::select! {
                        () = ends.cancelled() => return,
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(REFUSED) => {}
                    }
                }
                if let (End::Unreachable | End::Refused, Some(drift)) = (end, drift.upgrade()) {
                    drift.lock().kinds.remove(&kind);
                }
            });
        }
    }

    /// Whether each of these is known to be as it was when it was followed last, which was at this time.
    pub fn vouches<'a>(&self, looked: Instant, objects: impl IntoIterator<Item = &'a ObjectKey>) -> bool {
        let (known, now) = (self.lock(), Instant::now());
        objects.into_iter().all(|key| {
            let watched = known.kinds.get(&(key.group.clone(), key.kind.clone()));
            let version = known.versions.get(key).filter(|_| !known.changed.contains(key));
            watched.zip(version).is_some_and(|(watched, version)| {
                let shown = locked(&watched.shown);
                shown.vouches(shown.id(&key.namespace, &key.name), version, (looked, now))
            })
        })
    }

    /// Whether this is news.
    fn is_change(&self, key: &ObjectKey, version: Option<&str>) -> bool {
        let mut known = self.lock();
        let is_change = match (known.versions.get_mut(key), version) {
            (None, _) => false,
            (Some(before), Some(now)) if before == now => false,
            (Some(before), Some(now)) => {
                now.clone_into(before);
                true
            }
            (Some(before), None) => !std::mem::take(before).is_empty(),
        };
        if is_change {
            known.changed.insert(key.clone());
        }
        is_change
    }
}

enum End {
    /// It may not be, just now.
    Refused,
    /// It may be begun anew.
    Unreachable,
    /// It is not begun anew with this client.
    Stopped,
}

fn locked(shown: &Mutex<Shown>) -> MutexGuard<'_, Shown> {
    shown.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what a watch shows.
fn keep(shown: &Mutex<Shown>, event: &Event<PartialObjectMeta<DynamicObject>>) {
    let mut shown = locked(shown);
    let id = |shown: &Shown, object: &PartialObjectMeta<DynamicObject>| {
        shown.id(object.metadata.namespace.as_deref().unwrap_or_default(), &object.name_any())
    };
    let version = |object: &PartialObjectMeta<DynamicObject>| object.resource_version().unwrap_or_default();
    match event {
        Event::Init => shown.list_begins(),
        Event::InitApply(object) => {
            let id = id(&shown, object);
            shown.lists(id, &version(object));
        }
        Event::InitDone => drop(shown.list_ends()),
        Event::Apply(object) => {
            let id = id(&shown, object);
            shown.shows(id, &version(object));
        }
        Event::Delete(object) => {
            let id = id(&shown, object);
            shown.loses(id);
        }
    }
}

async fn watch(
    drift: &Weak<Drift>,
    client: Client,
    (resource, shown): (&ApiResource, &Mutex<Shown>),
    follower: &Follower,
) -> End {
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, resource);
    let config = watcher::Config::default().labels(&follower.selector);
    let mut events = patient(api, config);
    let mut failures = 0;
    let mut listed: Vec<ObjectKey> = Vec::new();
    loop {
        let event = events.try_next().await;
        let Some(drift) = drift.upgrade() else { return End::Stopped };
        let event = match event {
            Ok(Some(event)) => event,
            Ok(None) => return End::Stopped,
            Err(error) if is_refused(&error) => {
                tracing::debug!(%error, kind = resource.kind, "drift can't be watched, only looked for once a minute");
                return End::Refused;
            }
            Err(_) => {
                locked(shown).breaks(Instant::now());
                failures += 1;
                if failures >= FAILURES {
                    return End::Unreachable;
                }
                continue;
            }
        };
        failures = 0;
        keep(shown, &event);
        let is_change = match event {
            Event::Init => {
                listed.clear();
                false
            }
            Event::InitApply(object) => {
                let key = key_of(resource, &object);
                listed.push(key.clone());
                drift.is_change(&key, object.resource_version().as_deref())
            }
            Event::Apply(object) => drift.is_change(&key_of(resource, &object), object.resource_version().as_deref()),
            Event::Delete(object) => drift.is_change(&key_of(resource, &object), None),
            Event::InitDone => {
                let gone: Vec<ObjectKey> = {
                    let known = drift.lock();
                    let is_of_kind = |key: &&ObjectKey| (&key.group, &key.kind) == (&resource.group, &resource.kind);
                    known.versions.keys().filter(is_of_kind).filter(|key| !listed.contains(key)).cloned().collect()
                };
                gone.iter().filter(|key| drift.is_change(key, None)).count() > 0
            }
        };
        if is_change {
            tell(&drift, follower);
        }
    }
}

/// Tells of a change, of several in a short time once.
fn tell(drift: &Arc<Drift>, follower: &Follower) {
    if drift.told.swap(true, Ordering::Relaxed) {
        return;
    }
    let (drift, follower) = (Arc::downgrade(drift), follower.clone());
    let tasks = follower.watches.tasks().clone();
    tasks.spawn(async move {
        let ends = follower.watches.ends();
        tokio::select! {
            () = ends.cancelled() => return,
            () = tokio::time::sleep(TOGETHER) => {}
        }
        if let Some(drift) = drift.upgrade() {
            drift.told.store(false, Ordering::Relaxed);
        }
        let (namespace, name) = follower.cluster;
        follower.watches.tell(Notice::Addon(namespace, name));
    });
}

fn key_of(resource: &ApiResource, object: &PartialObjectMeta<DynamicObject>) -> ObjectKey {
    ObjectKey {
        group: resource.group.clone(),
        kind: resource.kind.clone(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::GroupVersionKind;

    use super::*;

    #[tokio::test]
    async fn what_changed_is_vouched_for_when_it_was_looked_at_again() {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        });
        let drift = Drift::new(Client::new(service, "default"), Arc::new(Semaphore::new(0)));
        let key = |name: &str| ObjectKey {
            kind: "ConfigMap".into(),
            namespace: "a".into(),
            name: name.into(),
            ..ObjectKey::default()
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        let shown = Arc::<Mutex<Shown>>::default();
        let watched = Watched { stop: CancellationToken::new(), shown: Arc::clone(&shown) };
        drift.lock().kinds.insert((String::new(), "ConfigMap".into()), watched);
        let object = |version: &str| -> PartialObjectMeta<DynamicObject> {
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "one", "namespace": "a", "resourceVersion": version},
            }))
            .unwrap()
        };
        let follow = |version: &str| {
            let mut known = drift.lock();
            known.versions.clear();
            known.changed.clear();
            known.versions.insert(key("one"), version.to_owned());
        };
        let sees = |event: Event<PartialObjectMeta<DynamicObject>>| {
            keep(&shown, &event);
            match event {
                Event::Apply(object) => {
                    drift.is_change(&key_of(&resource, &object), object.resource_version().as_deref())
                }
                Event::Delete(object) => drift.is_change(&key_of(&resource, &object), None),
                _ => false,
            }
        };
        let vouches = |names: &[&str]| {
            let keys: Vec<ObjectKey> = names.iter().map(|name| key(name)).collect();
            drift.vouches(Instant::now(), &keys)
        };
        follow("1");
        assert!(!vouches(&["one"]), "nothing is shown yet");
        sees(Event::Init);
        sees(Event::InitApply(object("1")));
        sees(Event::InitDone);
        assert!(vouches(&["one"]) && !vouches(&["one", "two"]));
        assert!(sees(Event::Apply(object("2"))) && !vouches(&["one"]));
        // Read before that came, and followed after it.
        follow("1");
        assert!(!vouches(&["one"]));
        follow("2");
        assert!(vouches(&["one"]) && !sees(Event::Apply(object("2"))) && vouches(&["one"]));
        assert!(sees(Event::Delete(object("2"))) && !vouches(&["one"]));
    }
}
