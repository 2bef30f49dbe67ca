//! Watches of what was applied to a workload cluster: what somebody changes there is put back within seconds.
//!
//! One watch per kind that was applied, by metadata and with the labels of one ClusterAddon, so that nothing comes but our
//! own objects. Kept is the version of each. When a cluster does not answer its watches end, and the next pass that reaches
//! it begins them anew; meanwhile, and where there is no room for more watches, the clock sees to it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

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
use crate::io::watch::{Notice, Watches};

/// Most watches of all workload clusters together: each is a connection.
pub const MOST: usize = 2000;
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
    kinds: HashMap<(String, String), CancellationToken>,
    versions: HashMap<ObjectKey, String>,
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
        let mut new: HashMap<(String, String), (ApiResource, CancellationToken)> = HashMap::new();
        {
            let mut known = self.lock();
            known.versions.clear();
            known.versions.shrink_to_fit();
            let wanted: HashMap<(String, String), ApiResource> =
                objects.iter().map(|object| (place(&object.kind), object.kind.resource.clone())).collect();
            known.kinds.retain(|kind, stop| {
                let stays = wanted.contains_key(kind);
                if !stays {
                    stop.cancel();
                }
                stays
            });
            for (kind, resource) in wanted {
                if !known.kinds.contains_key(&kind) {
                    let stop = self.stop.child_token();
                    known.kinds.insert(kind.clone(), stop.clone());
                    new.insert(kind, (resource, stop));
                }
            }
            known.versions.extend(objects.into_iter().map(|object| (object.key, object.version)));
        }
        for (kind, (resource, stop)) in new {
            let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
                // The next pass tries again.
                self.lock().kinds.remove(&kind);
                continue;
            };
            let (drift, client, follower) = (Arc::downgrade(self), self.client.clone(), follower.clone());
            let tasks = follower.watches.tasks().clone();
            tasks.spawn(async move {
                let _room = room;
                let ends = follower.watches.ends();
                let end = tokio::select! {
                    () = ends.cancelled() => End::Stopped,
                    () = stop.cancelled() => End::Stopped,
                    end = watch(&drift, client, &resource, &follower) => end,
                };
                if let (End::Unreachable, Some(drift)) = (end, drift.upgrade()) {
                    drift.lock().kinds.remove(&kind);
                }
            });
        }
    }

    /// Whether this is news.
    fn is_change(&self, key: &ObjectKey, version: Option<&str>) -> bool {
        let mut known = self.lock();
        match (known.versions.get_mut(key), version) {
            (None, _) => false,
            (Some(before), Some(now)) if before == now => false,
            (Some(before), Some(now)) => {
                now.clone_into(before);
                true
            }
            (Some(before), None) => !std::mem::take(before).is_empty(),
        }
    }
}

enum End {
    /// It may be begun anew.
    Unreachable,
    /// It is not begun anew with this client.
    Stopped,
}

async fn watch(drift: &Weak<Drift>, client: Client, resource: &ApiResource, follower: &Follower) -> End {
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
                return End::Stopped;
            }
            Err(_) => {
                failures += 1;
                if failures >= FAILURES {
                    return End::Unreachable;
                }
                continue;
            }
        };
        failures = 0;
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
