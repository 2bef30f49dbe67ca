//! What the API server says of the ClusterStack and its releases, watched.

use std::collections::BTreeMap;
use std::fmt::Debug;

use futures::StreamExt;
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher::watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api::{ClusterStack, ClusterStackRelease};

/// The objects by name.
#[derive(Clone, Debug, Default)]
pub(super) struct World {
    /// ClusterStacks.
    pub(super) stacks: BTreeMap<String, ClusterStack>,
    /// ClusterStackReleases.
    pub(super) releases: BTreeMap<String, ClusterStackRelease>,
}

/// Watches a namespace in two tasks of `tasks`.
pub(super) fn watch(client: &Client, namespace: &str, tasks: &mut JoinSet<()>) -> watch::Receiver<World> {
    let (worlds, receiver) = watch::channel(World::default());
    tasks.spawn(follow(Api::namespaced(client.clone(), namespace), worlds.clone(), |world| &mut world.stacks));
    tasks.spawn(follow(Api::namespaced(client.clone(), namespace), worlds, |world| &mut world.releases));
    receiver
}

async fn follow<K>(api: Api<K>, worlds: watch::Sender<World>, of: fn(&mut World) -> &mut BTreeMap<String, K>)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    let mut listed = BTreeMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = BTreeMap::new(),
            Ok(Event::InitApply(object)) => {
                listed.insert(object.name_any(), object);
            }
            Ok(Event::InitDone) => worlds.send_modify(|world| *of(world) = std::mem::take(&mut listed)),
            Ok(Event::Apply(object)) => worlds.send_modify(|world| {
                of(world).insert(object.name_any(), object);
            }),
            Ok(Event::Delete(object)) => worlds.send_modify(|world| {
                of(world).remove(&object.name_any());
            }),
            // It is tried again.
            Err(error) => tracing::debug!(%error, "watching"),
        }
    }
}
