//! Which ClusterStackReleases a ClusterStack has: found by its name, and not by a look at those of all others.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;

use super::release_owner::is_owned;
use crate::api::{ClusterStack, ClusterStackRelease};

/// Names of releases, by namespace and name of the ClusterStack that owns them.
type Names = HashMap<(String, String), BTreeSet<String>>;

/// The releases of each ClusterStack. It may hold names of releases that are gone: the cache tells.
#[derive(Clone, Debug, Default)]
pub struct Owned(Arc<Mutex<Names>>);

impl Owned {
    fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a watch sees: it has to come before the cache, so that no release is there that nobody owns.
    pub(super) fn noted(&self) -> impl FnMut(&Event<ClusterStackRelease>) + Send + use<> {
        let owned = self.clone();
        // What a watch that begins anew has read so far.
        let mut read = Names::new();
        move |event| match event {
            Event::Apply(release) => add(&mut owned.lock(), release),
            Event::InitApply(release) => add(&mut read, release),
            Event::Delete(release) => {
                for stack in owners(release) {
                    let mut owned = owned.lock();
                    let Some(names) = owned.get_mut(&stack) else { continue };
                    names.remove(&release.name_any());
                    if names.is_empty() {
                        owned.remove(&stack);
                    }
                }
            }
            Event::Init => read.clear(),
            // What went while nobody watched is not in it.
            Event::InitDone => *owned.lock() = std::mem::take(&mut read),
        }
    }

    /// The releases of a ClusterStack as `cache` has them, by name.
    pub(super) fn of(&self, stack: &ClusterStack, cache: &Store<ClusterStackRelease>) -> Vec<Arc<ClusterStackRelease>> {
        let namespace = stack.namespace().unwrap_or_default();
        let names = self.lock().get(&(namespace.clone(), stack.name_any())).cloned().unwrap_or_default();
        let releases = names.iter().filter_map(|name| cache.get(&ObjectRef::new(name).within(&namespace)));
        releases.filter(|release| is_owned(release, stack)).collect()
    }
}

fn add(names: &mut Names, release: &ClusterStackRelease) {
    for stack in owners(release) {
        names.entry(stack).or_default().insert(release.name_any());
    }
}

/// Namespace and name of each ClusterStack that owns a release.
pub(super) fn owners(release: &ClusterStackRelease) -> impl Iterator<Item = (String, String)> {
    let namespace = release.namespace().unwrap_or_default();
    let stacks = release.owner_references().iter().filter(|owner| owner.kind == "ClusterStack");
    stacks.map(move |owner| (namespace.clone(), owner.name.clone()))
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector;
    use serde_json::json;

    use super::*;

    fn release(namespace: &str, name: &str, owner: &str) -> ClusterStackRelease {
        let owner = json!({"apiVersion": crate::api::API_VERSION, "kind": "ClusterStack", "name": owner, "uid": "u"});
        let metadata = json!({"name": name, "namespace": namespace, "ownerReferences": [owner]});
        serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap()
    }

    fn stack(namespace: &str, name: &str) -> ClusterStack {
        let spec = json!({"provider": "docker", "name": "x", "kubernetesVersion": "1.34"});
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_stack_has_its_own_releases_and_none_of_anothers() {
        let (cache, mut writer) = reflector::store();
        let owned = Owned::default();
        let mut noted = owned.noted();
        let mut see = |event: Event<ClusterStackRelease>| {
            noted(&event);
            writer.apply_watcher_event(&event);
        };
        see(Event::Init);
        for (namespace, name, owner) in [
            ("a", "docker-x-1-34-v2", "x"),
            ("a", "docker-x-1-34-v1", "x"),
            ("a", "docker-y-1-34-v1", "y"),
            ("b", "docker-x-1-34-v1", "x"),
        ] {
            see(Event::InitApply(release(namespace, name, owner)));
        }
        see(Event::InitDone);
        see(Event::Apply(release("a", "docker-x-1-34-v3", "x")));
        see(Event::Delete(release("a", "docker-x-1-34-v1", "x")));
        let names = |namespace: &str, name: &str| {
            owned.of(&stack(namespace, name), &cache).iter().map(|release| release.name_any()).collect::<Vec<_>>()
        };
        assert_eq!(names("a", "x"), ["docker-x-1-34-v2", "docker-x-1-34-v3"]);
        assert_eq!(names("a", "y"), ["docker-y-1-34-v1"]);
        assert_eq!(names("b", "x"), ["docker-x-1-34-v1"]);
        assert_eq!(names("b", "y"), [""; 0]);
    }

    #[test]
    fn what_went_while_nobody_watched_is_not_there() {
        let (cache, mut writer) = reflector::store();
        let owned = Owned::default();
        let mut noted = owned.noted();
        for there in [&["docker-x-1-34-v1", "docker-x-1-34-v2"][..], &["docker-x-1-34-v2"]] {
            let events = there.iter().map(|name| Event::InitApply(release("a", name, "x")));
            for event in std::iter::once(Event::Init).chain(events).chain([Event::InitDone]) {
                noted(&event);
                writer.apply_watcher_event(&event);
            }
        }
        let left: Vec<String> = owned.of(&stack("a", "x"), &cache).iter().map(|release| release.name_any()).collect();
        assert_eq!(left, ["docker-x-1-34-v2"]);
        assert_eq!(owned.lock().values().flatten().collect::<Vec<_>>(), ["docker-x-1-34-v2"]);
    }
}
