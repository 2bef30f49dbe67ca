//! Watches beside those of the controllers: applied objects, CustomResourceDefinitions, Clusters.

pub(super) mod shown;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::shown::{Id, Shown};
use crate::api::{CLUSTER_NAME_LABEL, CLUSTER_STACK_LABEL, ClusterStackRelease, OWNER_KIND_LABEL};
use crate::core::addon::cluster::{self, Cluster};
use crate::core::in_use::{self, ClusterUse};
use crate::core::manifest::ObjectKey;
use crate::io::kinds::{Kind, Kinds};
use crate::io::observe::plain;
use crate::io::patient_watch::{patient, patient_from};
use crate::io::source::flights::Waiter;
use crate::io::usage::CLUSTER_API;

type Metadata = PartialObjectMeta<DynamicObject>;

/// What a watch noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An applied object of a release changed.
    Applied(ObjectRef<ClusterStackRelease>),
    /// A CustomResourceDefinition of this group came, changed or went.
    Definition(String),
    /// A Cluster came, changed what its addons depend on, or went: its namespace and name.
    Addons(String, String),
    /// Something changed that the addons of a Cluster are made from, or one of their objects: its namespace and name.
    Addon(String, String),
    /// A Cluster changed what it uses, or lost a Machine or its ClusterAddon: the namespaces of its ClusterClass, before and after.
    Cluster(BTreeSet<String>),
    /// A source answered for which a pass did not wait.
    Answered(Waiter),
}

/// The watches. Each kind that is applied is watched once, by metadata alone.
pub struct Watches {
    client: Client,
    notices: UnboundedSender<Notice>,
    cancel: CancellationToken,
    tasks: TaskTracker,
    applied: Mutex<Applied>,
    /// Clusters as last seen.
    clusters: Mutex<HashMap<(String, String), Seen>>,
    /// Clusters are served, and were never listed whole.
    clusters_unread: AtomicBool,
    /// Clusters were listed whole, and are watched since then.
    clusters_listed: AtomicBool,
}

/// A Cluster as last seen: what matters of it, and a hash of what templates of values see.
type Seen = (Cluster, u64);

/// What Clusters use, as last seen.
#[derive(Default)]
struct Uses {
    all: HashMap<(String, String), ClusterUse>,
    /// While all are listed: those that were.
    listed: Option<HashSet<(String, String)>>,
}

impl Uses {
    /// What an earlier watch saw: all are to be listed.
    fn of(seen: HashMap<(String, String), Seen>) -> Self {
        let of = |Cluster { namespace, name, class, rolled_out: reconciled, .. }| ClusterUse {
            namespace,
            name,
            class,
            reconciled,
        };
        let all = seen.into_iter().map(|(id, (cluster, _))| (id, of(cluster))).collect();
        Self { all, listed: Some(HashSet::new()) }
    }

    /// Takes down one, or that it is gone. What was known of it.
    fn take(&mut self, cluster: &ClusterUse, deleted: bool) -> Option<ClusterUse> {
        let id = (cluster.namespace.clone(), cluster.name.clone());
        if deleted {
            return self.all.remove(&id);
        }
        if let Some(listed) = &mut self.listed {
            listed.insert(id.clone());
        }
        self.all.insert(id, cluster.clone())
    }

    /// All are listed: takes out those that were not.
    fn end_list(&mut self) -> Vec<ClusterUse> {
        let Some(listed) = self.listed.take() else { return Vec::new() };
        self.all.extract_if(|id, _| !listed.contains(id)).map(|(_, cluster)| cluster).collect()
    }
}

#[derive(Default)]
struct Applied {
    /// What the watches have shown.
    kinds: HashMap<Watched, Shown>,
    objects: HashMap<ObjectKey, Known>,
}

/// What one watch is of: group, version and kind, and the label that its objects carry.
type Watched = (String, &'static str);

/// An applied object: the releases that have it (two of a ClusterStack may), each with the version in which it saw it last.
#[derive(Default)]
struct Known(Vec<(ObjectRef<ClusterStackRelease>, String)>);

impl Known {
    fn version(&self, owner: &ObjectRef<ClusterStackRelease>) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == owner).map(|(_, version)| version.as_str())
    }

    fn set(&mut self, owner: &ObjectRef<ClusterStackRelease>, version: &str) {
        match self.0.iter_mut().find(|(known, _)| known == owner) {
            Some((_, known)) => version.clone_into(known),
            None => self.0.push((owner.clone(), version.to_owned())),
        }
    }

    /// Those to whom it is news that it has this version now; `None` if it is gone.
    fn told(&self, version: Option<&str>) -> impl Iterator<Item = &ObjectRef<ClusterStackRelease>> {
        self.0.iter().filter(move |(_, known)| version != Some(known.as_str())).map(|(owner, _)| owner)
    }
}

/// The end of a watch, also where it panics: it vouches for nothing any more.
struct End(Box<dyn Fn() + Send>);

impl Drop for End {
    fn drop(&mut self) {
        self.0();
    }
}

fn watched(resource: &ApiResource, label: &'static str) -> Watched {
    (resource.api_version.clone() + "/" + &resource.kind, label)
}

impl Watches {
    /// Watches report to `notices` until `cancel`; their tasks are in `tasks`.
    pub fn new(
        client: Client,
        notices: UnboundedSender<Notice>,
        cancel: CancellationToken,
        tasks: TaskTracker,
    ) -> Arc<Self> {
        let (applied, clusters) = (Mutex::default(), Mutex::default());
        let (clusters_unread, clusters_listed) = Default::default();
        Arc::new(Self { client, notices, cancel, tasks, applied, clusters, clusters_unread, clusters_listed })
    }

    fn lock(&self) -> MutexGuard<'_, Applied> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers an object of `owner` in the version in which it was read or written; changes to another version are
    /// noticed from now on.
    pub fn remember(
        self: &Arc<Self>,
        owner: &ObjectRef<ClusterStackRelease>,
        kind: &Kind,
        key: &ObjectKey,
        version: &str,
    ) {
        self.remember_labelled(owner, kind, key, version, OWNER_KIND_LABEL);
    }

    /// Remembers the provider's object of `owner`, likewise.
    pub fn remember_provided(
        self: &Arc<Self>,
        owner: &ObjectRef<ClusterStackRelease>,
        kind: &Kind,
        key: &ObjectKey,
        version: &str,
    ) {
        self.remember_labelled(owner, kind, key, version, CLUSTER_STACK_LABEL);
    }

    fn remember_labelled(
        self: &Arc<Self>,
        owner: &ObjectRef<ClusterStackRelease>,
        kind: &Kind,
        key: &ObjectKey,
        version: &str,
        label: &'static str,
    ) {
        let is_new = {
            let mut applied = self.lock();
            applied.objects.entry(key.clone()).or_default().set(owner, version);
            let watched = watched(&kind.resource, label);
            let is_new = !applied.kinds.contains_key(&watched);
            if is_new {
                applied.kinds.insert(watched, Shown::default());
            }
            is_new
        };
        if is_new {
            let watches = Arc::clone(self);
            let resource = kind.resource.clone();
            self.tasks.spawn(async move { watches.watch_kind(resource, label).await });
        }
    }

    /// Whether all of these objects are known to be as they were when `owner` `looked` at them, without asking the API server: their
    /// watches are well, were so since then, and the last that they showed of each is the version that was remembered.
    pub fn vouch<'a>(
        &self,
        owner: &ObjectRef<ClusterStackRelease>,
        looked: Instant,
        objects: impl IntoIterator<Item = (&'a ObjectKey, &'a Kind)>,
    ) -> bool {
        let (applied, now) = (self.lock(), Instant::now());
        objects.into_iter().all(|(key, kind)| {
            let version = applied.objects.get(key).and_then(|known| known.version(owner));
            let shown = applied.kinds.get(&watched(&kind.resource, OWNER_KIND_LABEL));
            version.zip(shown).is_some_and(|(version, shown)| {
                shown.vouches(shown.id(&key.namespace, &key.name), version, (looked, now))
            })
        })
    }

    /// Forgets the objects of a release that is gone.
    pub fn forget(&self, owner: &ObjectRef<ClusterStackRelease>) {
        self.lock().objects.retain(|_, known| {
            known.0.retain(|(known, _)| known != owner);
            !known.0.is_empty()
        });
    }

    async fn watch_kind(self: Arc<Self>, resource: ApiResource, label: &'static str) {
        let api: Api<Metadata> = Api::all_with(self.client.clone(), &resource);
        let watched = watched(&resource, label);
        let begins = {
            let (watches, watched) = (Arc::clone(&self), watched.clone());
            move || watches.shown(&watched, Shown::list_begins)
        };
        let _end = End(Box::new(begins.clone()));
        let mut events = patient_from(api, watcher::Config::default().labels(label), begins);
        loop {
            let event = tokio::select! {
                () = self.cancel.cancelled() => return,
                event = events.try_next() => event,
            };
            match event {
                Ok(Some(event)) => self.take(&resource, &watched, event),
                Ok(None) => return,
                Err(_) => {
                    self.shown(&watched, |shown| shown.breaks(Instant::now()));
                }
            }
        }
    }

    /// Changes what a watch has shown.
    fn shown<T: Default>(&self, watched: &Watched, change: impl FnOnce(&mut Shown) -> T) -> T {
        self.lock().kinds.get_mut(watched).map(change).unwrap_or_default()
    }

    /// Takes down what an event shows, and tells of what changed.
    fn take(&self, resource: &ApiResource, watched: &Watched, event: Event<Metadata>) {
        let note = |object: &Metadata, note: fn(&mut Shown, Id, &str)| {
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            let Metadata { metadata, .. } = object;
            let (namespace, name) = (text(&metadata.namespace), text(&metadata.name));
            self.shown(watched, |shown| note(shown, shown.id(&namespace, &name), &text(&metadata.resource_version)));
        };
        match event {
            Event::Apply(object) => {
                note(&object, Shown::shows);
                self.changed(resource, &object, false);
            }
            Event::InitApply(object) => {
                note(&object, Shown::lists);
                self.changed(resource, &object, false);
            }
            Event::Delete(object) => {
                note(&object, |shown, id, _| shown.loses(id));
                self.changed(resource, &object, true);
            }
            Event::Init => {}
            Event::InitDone => {
                let gone = self.shown(watched, Shown::list_ends);
                self.are_gone(resource, watched, &gone);
            }
        }
    }

    /// Tells whose objects went while nobody watched.
    fn are_gone(&self, resource: &ApiResource, watched: &Watched, gone: &HashSet<Id>) {
        if gone.is_empty() {
            return;
        }
        let owners: HashSet<ObjectRef<ClusterStackRelease>> = {
            let applied = self.lock();
            let Some(shown) = applied.kinds.get(watched) else { return };
            let is_gone = |key: &ObjectKey| {
                (&key.group, &key.kind) == (&resource.group, &resource.kind)
                    && gone.contains(&shown.id(&key.namespace, &key.name))
            };
            applied
                .objects
                .iter()
                .filter(|(key, _)| is_gone(key))
                .flat_map(|(_, known)| known.told(None).cloned())
                .collect()
        };
        for owner in owners {
            self.tell(Notice::Applied(owner));
        }
    }

    /// The next event; errors are waited out by the stream's own back-off. `None` at the end.
    async fn next<K>(&self, events: &mut BoxStream<'_, Result<Event<K>, watcher::Error>>) -> Option<Event<K>> {
        loop {
            let event = tokio::select! {
                () = self.cancel.cancelled() => return None,
                event = events.try_next() => event,
            };
            if let Ok(event) = event {
                return event;
            }
        }
    }

    fn changed(&self, resource: &ApiResource, object: &PartialObjectMeta<DynamicObject>, deleted: bool) {
        let key = ObjectKey {
            group: resource.group.clone(),
            kind: resource.kind.clone(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        };
        let version = object.resource_version().filter(|_| !deleted);
        let owners: Vec<ObjectRef<ClusterStackRelease>> = {
            let applied = self.lock();
            let Some(known) = applied.objects.get(&key) else { return };
            known.told(version.as_deref()).cloned().collect()
        };
        for owner in owners {
            self.tell(Notice::Applied(owner));
        }
    }

    /// Where their tasks are.
    pub fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// When they end.
    pub fn ends(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Tells those who listen.
    pub fn tell(&self, notice: Notice) {
        // Nobody listens any more: the process is ending.
        let _ = self.notices.send(notice);
    }

    /// Watches CustomResourceDefinitions; as soon as Clusters are served, those too.
    pub fn watch_definitions(self: &Arc<Self>, kinds: Arc<Kinds>) {
        let watches = Arc::clone(self);
        self.tasks.spawn(async move { watches.definitions(kinds).await });
    }

    async fn definitions(self: &Arc<Self>, kinds: Arc<Kinds>) {
        let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(self.client.clone());
        let mut events = patient(api, watcher::Config::default());
        let mut settled: HashMap<String, String> = HashMap::new();
        let mut all_known = false;
        let mut clusters: Option<CancellationToken> = None;
        while let Some(event) = self.next(&mut events).await {
            let (object, deleted) = match event {
                Event::InitApply(object) | Event::Apply(object) => (object, false),
                Event::Delete(object) => (object, true),
                Event::Init => continue,
                Event::InitDone => {
                    all_known = true;
                    continue;
                }
            };
            let name = object.name_any();
            let version = if deleted { "deleted".to_owned() } else { object.resource_version().unwrap_or_default() };
            if settled.insert(name.clone(), version.clone()).as_deref() == Some(&version) {
                continue;
            }
            let Some((plural, group)) = name.split_once('.') else { continue };
            kinds.forget(group);
            // What was there before us is no news.
            if all_known {
                self.tell(Notice::Definition(group.to_owned()));
            }
            if group == CLUSTER_API && (plural == "clusters" || plural == "machines") {
                // Also when its versions changed: the one that is preferred may be another now.
                if let Some(running) = clusters.take() {
                    running.cancel();
                }
                let stop = self.cancel.child_token();
                clusters = Some(stop.clone());
                let (watches, kinds) = (Arc::clone(self), Arc::clone(&kinds));
                self.tasks.spawn(async move { watches.clusters(kinds, stop).await });
            }
        }
    }

    async fn clusters(&self, kinds: Arc<Kinds>, stop: CancellationToken) {
        let found = self.cluster_kind(&kinds, &stop).await;
        if stop.is_cancelled() {
            return;
        }
        self.clusters_listed.store(false, Ordering::Relaxed);
        let mut known = Uses::of(std::mem::take(&mut *self.lock_clusters()));
        let Some(kind) = found else { return self.clusters_are_gone(known.end_list()) };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind.resource);
        let mut events = patient(api, watcher::Config::default());
        let mut machines = self.machines(&kinds).await;
        if stop.is_cancelled() {
            return;
        }
        self.clusters_unread.store(true, Ordering::Relaxed);
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return,
                event = self.next(&mut events) => event,
                event = self.next(&mut machines) => {
                    if let Some(Event::Delete(machine)) = event {
                        self.machine_is_gone(&machine, &known);
                    }
                    continue;
                }
            };
            match event {
                Some(Event::Apply(object) | Event::InitApply(object)) => {
                    self.cluster(&plain(&object, &kind), false, &mut known);
                }
                Some(Event::Delete(object)) => self.cluster(&plain(&object, &kind), true, &mut known),
                Some(Event::Init) => known.listed = Some(HashSet::new()),
                Some(Event::InitDone) => {
                    self.clusters_unread.store(false, Ordering::Relaxed);
                    self.clusters_listed.store(true, Ordering::Relaxed);
                    self.clusters_are_gone(known.end_list());
                }
                None => return,
            }
        }
    }

    /// Tells whose release may have been used by a Machine last: that of its Cluster's ClusterClass, or, of a Cluster that is gone, one
    /// of its own namespace.
    fn machine_is_gone(&self, machine: &Metadata, known: &Uses) {
        let Some(cluster) = machine.labels().get(CLUSTER_NAME_LABEL) else { return };
        let namespace = machine.namespace().unwrap_or_default();
        let namespaces = match known.all.get(&(namespace.clone(), cluster.clone())) {
            Some(cluster) => namespaces_of_classes([Some(cluster), None]),
            None => BTreeSet::from([namespace]),
        };
        self.tell(Notice::Cluster(namespaces));
    }

    /// Takes down what a Cluster uses, and tells of what changed.
    fn cluster(&self, object: &Value, deleted: bool, known: &mut Uses) {
        self.addons(object, deleted);
        let Some(cluster) = in_use::cluster(object) else { return };
        let before = known.take(&cluster, deleted);
        if deleted || before.as_ref() != Some(&cluster) {
            self.tell(Notice::Cluster(namespaces_of_classes([Some(&cluster), before.as_ref()])));
        }
    }

    /// Forgets Clusters that went while nobody watched, and tells of them.
    fn clusters_are_gone(&self, gone: Vec<ClusterUse>) {
        for cluster in gone {
            let namespaces = namespaces_of_classes([Some(&cluster), None]);
            let ClusterUse { namespace, name, .. } = cluster;
            self.lock_clusters().remove(&(namespace.clone(), name.clone()));
            self.tell(Notice::Addons(namespace, name));
            self.tell(Notice::Cluster(namespaces));
        }
    }

    /// Tells of what matters to the addons of a Cluster.
    fn addons(&self, object: &Value, deleted: bool) {
        let Some(cluster) = cluster::read(object) else { return };
        let id = (cluster.namespace.clone(), cluster.name.clone());
        let mut clusters = self.lock_clusters();
        let content = cluster::content(object);
        let before =
            if deleted { clusters.remove(&id) } else { clusters.insert(id.clone(), (cluster.clone(), content)) };
        drop(clusters);
        match before {
            Some((before, _)) if deleted || before != cluster => self.tell(Notice::Addons(id.0, id.1)),
            Some((_, before)) if before != content => self.tell(Notice::Addon(id.0, id.1)),
            Some(_) => {}
            None => self.tell(Notice::Addons(id.0, id.1)),
        }
    }

    /// The Clusters with one of these ClusterClasses, as last seen: namespace and name.
    pub fn clusters_of(&self, classes: &BTreeSet<(String, String)>) -> Vec<(String, String)> {
        let of_one = |cluster: &&Cluster| cluster.class.as_ref().is_some_and(|class| classes.contains(class));
        let clusters = self.lock_clusters();
        let all = clusters.values().map(|(cluster, _)| cluster);
        all.filter(of_one).map(|c| (c.namespace.clone(), c.name.clone())).collect()
    }

    /// A Cluster, as last seen.
    pub fn cluster_seen(&self, namespace: &str, name: &str) -> Option<Cluster> {
        self.lock_clusters().get(&(namespace.to_owned(), name.to_owned())).map(|(cluster, _)| cluster.clone())
    }

    /// All Clusters, as last seen.
    pub fn clusters_seen(&self) -> Vec<Cluster> {
        self.lock_clusters().values().map(|(cluster, _)| cluster.clone()).collect()
    }

    /// Whether all Clusters were listed, and are watched: what is seen of them is what they are, or were a moment ago.
    pub fn clusters_are_listed(&self) -> bool {
        self.clusters_listed.load(Ordering::Relaxed)
    }

    /// Whether Clusters are served and could not be listed yet, as while nobody converts them: none seen is no word of them.
    pub fn clusters_are_unread(&self) -> bool {
        self.clusters_unread.load(Ordering::Relaxed)
    }

    fn lock_clusters(&self) -> MutexGuard<'_, HashMap<(String, String), Seen>> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The Machines of all Clusters, by metadata alone; none where they are not served.
    async fn machines(&self, kinds: &Kinds) -> BoxStream<'static, Result<Event<Metadata>, watcher::Error>> {
        for pause in [0_u64, 1, 3, 10] {
            tokio::time::sleep(std::time::Duration::from_secs(pause)).await;
            match kinds.preferred(&self.client, CLUSTER_API, "Machine").await {
                Ok(Some(kind)) => {
                    let api: Api<Metadata> = Api::all_with(self.client.clone(), &kind.resource);
                    let config = watcher::Config::default().labels(CLUSTER_NAME_LABEL);
                    return patient(api, config);
                }
                Ok(None) => break,
                Err(error) => tracing::debug!(%error, "Machines can't be watched yet"),
            }
        }
        // Without them a release goes at the next pass after the last machine.
        futures::stream::pending().boxed()
    }

    /// The served version of Clusters, waiting for a new CustomResourceDefinition to be established.
    async fn cluster_kind(&self, kinds: &Kinds, stop: &CancellationToken) -> Option<Kind> {
        for pause in [0_u64, 100, 300, 1000, 3000, 10_000] {
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(std::time::Duration::from_millis(pause)) => {}
            }
            kinds.forget(CLUSTER_API);
            if let Ok(Some(kind)) = kinds.preferred(&self.client, CLUSTER_API, "Cluster").await {
                return Some(kind);
            }
        }
        None
    }
}

fn namespaces_of_classes(clusters: [Option<&ClusterUse>; 2]) -> BTreeSet<String> {
    clusters.into_iter().flatten().filter_map(|cluster| Some(cluster.class.as_ref()?.0.clone())).collect()
}

#[cfg(test)]
mod tests;
