use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kube::client::Body;
use kube::core::GroupVersionKind;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;

/// An API server that has two objects, says nothing of the deletion of one because what a watch goes on from is too old, and lists
/// the other one then.
fn forgetful(lists: Arc<AtomicUsize>) -> Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
        let before = if is_watch { lists.load(Ordering::SeqCst) } else { lists.fetch_add(1, Ordering::SeqCst) };
        async move {
            let object = |name: &str| {
                let metadata = json!({"name": name, "namespace": "n", "resourceVersion": "1"});
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
            };
            let answer = match (is_watch, before) {
                (false, 0) => json!({"metadata": {"resourceVersion": "5"}, "items": [object("a"), object("b")]}),
                (false, _) => json!({"metadata": {"resourceVersion": "9"}, "items": [object("b")]}),
                (true, 1) => {
                    let status = json!({"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410});
                    json!({"type": "ERROR", "object": status})
                }
                (true, _) => std::future::pending().await,
            };
            http::Response::builder().body(Body::from(format!("{answer}\n").into_bytes()))
        }
    });
    Client::new(service, "default")
}

fn watches(client: Client) -> (Arc<Watches>, UnboundedReceiver<Notice>, CancellationToken) {
    let (notices, told) = unbounded_channel();
    let cancel = CancellationToken::new();
    (Watches::new(client, notices, cancel.clone(), TaskTracker::new()), told, cancel)
}

fn map(name: &str) -> ObjectKey {
    ObjectKey { kind: "ConfigMap".into(), namespace: "n".into(), name: name.into(), ..ObjectKey::default() }
}

#[tokio::test]
async fn a_deletion_that_no_watch_showed_is_told_when_all_is_listed_again() {
    let lists = Arc::new(AtomicUsize::new(0));
    let (watches, mut told, cancel) = watches(forgetful(Arc::clone(&lists)));
    let kind =
        Kind { resource: ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap")), namespaced: true };
    let owner = |name: &str| ObjectRef::new(name).within("n");
    for name in ["a", "b"] {
        watches.remember(&owner(name), &kind, &map(name), "1");
    }
    let told = tokio::time::timeout(Duration::from_secs(30), told.recv()).await;
    assert_eq!(told.unwrap(), Some(Notice::Applied(owner("a"))));
    assert_eq!(lists.load(Ordering::SeqCst), 2);
    // It was interrupted a moment ago.
    assert!(!watches.vouch(&owner("b"), Instant::now(), [(&map("b"), &kind)]));
    cancel.cancel();
}

#[tokio::test]
async fn only_the_owners_objects_in_the_version_that_was_shown_are_vouched_for() {
    let (watches, _told, _cancel) = watches(forgetful(Arc::default()));
    let kind =
        Kind { resource: ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap")), namespaced: true };
    let (owner, other) = (ObjectRef::new("o").within("n"), ObjectRef::new("p").within("n"));
    let watched = watched(&kind.resource, OWNER_KIND_LABEL);
    watches.lock().kinds.insert(watched.clone(), Shown::default());
    for name in ["a", "b", "c"] {
        watches.remember(&owner, &kind, &map(name), "1");
    }
    let event = |name: &str, version: &str| {
        let metadata = json!({"name": name, "namespace": "n", "resourceVersion": version});
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})).unwrap()
    };
    for event in [Event::InitApply(event("a", "1")), Event::InitApply(event("b", "1")), Event::InitDone] {
        watches.take(&kind.resource, &watched, event);
    }
    let vouched = |owner: &ObjectRef<ClusterStackRelease>, names: &[&str]| {
        let keys: Vec<ObjectKey> = names.iter().map(|name| map(name)).collect();
        watches.vouch(owner, Instant::now(), keys.iter().map(|key| (key, &kind)))
    };
    assert!(vouched(&owner, &["a", "b"]) && vouched(&owner, &[]));
    assert!(!vouched(&owner, &["a", "c"]), "it was never shown");
    assert!(!vouched(&other, &["a"]), "it is another's");
    watches.take(&kind.resource, &watched, Event::Apply(event("a", "2")));
    assert!(!vouched(&owner, &["a"]) && vouched(&owner, &["b"]));
    watches.remember(&owner, &kind, &map("a"), "2");
    assert!(vouched(&owner, &["a", "b"]));
    watches.take(&kind.resource, &watched, Event::Delete(event("b", "3")));
    assert!(!vouched(&owner, &["b"]));
}

/// A Cluster of a class as an API server has it.
fn cluster(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": name, "namespace": "n", "uid": name}, "spec": {"topology": {"classRef": {"name": class}}},
    })
}

#[tokio::test]
async fn a_cluster_that_went_while_nobody_watched_is_forgotten_and_told() {
    let (watches, mut told, _cancel) = watches(forgetful(Arc::default()));
    let mut known = Uses { listed: Some(HashSet::new()), ..Uses::default() };
    for name in ["a", "b"] {
        watches.cluster(&cluster(name, "v1"), false, &mut known);
    }
    watches.clusters_are_gone(known.end_list());
    watches.cluster(&cluster("c", "v1"), false, &mut known);
    let classes = BTreeSet::from([("n".to_owned(), "v1".to_owned())]);
    let seen =
        |watches: &Watches| watches.clusters_of(&classes).into_iter().map(|(_, name)| name).collect::<BTreeSet<_>>();
    assert_eq!(seen(&watches), ["a", "b", "c"].map(ToOwned::to_owned).into());
    while told.try_recv().is_ok() {}
    known.listed = Some(HashSet::new());
    watches.cluster(&cluster("b", "v1"), false, &mut known);
    watches.clusters_are_gone(known.end_list());
    assert_eq!(seen(&watches), ["b".to_owned()].into());
    let mut gone = BTreeSet::new();
    while let Ok(notice) = told.try_recv() {
        match notice {
            Notice::Addons(namespace, name) => drop(gone.insert((namespace, name))),
            notice => assert_eq!(notice, Notice::Cluster(["n".to_owned()].into())),
        }
    }
    assert_eq!(gone, [("n".to_owned(), "a".to_owned()), ("n".to_owned(), "c".to_owned())].into());
}

#[tokio::test]
async fn what_two_releases_have_is_told_to_each_that_did_not_see_it_so() {
    let (watches, mut told, _cancel) = watches(forgetful(Arc::default()));
    let kind =
        Kind { resource: ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap")), namespaced: true };
    let watched = watched(&kind.resource, OWNER_KIND_LABEL);
    watches.lock().kinds.insert(watched.clone(), Shown::default());
    let owner = |name: &str| ObjectRef::new(name).within("n");
    for (owner, version) in [(owner("new"), "2"), (owner("old"), "1")] {
        watches.remember(&owner, &kind, &map("a"), version);
    }
    let mut is_told = |event: Event<Metadata>| {
        watches.take(&kind.resource, &watched, event);
        let told = std::iter::from_fn(|| told.try_recv().ok());
        told.map(|notice| match notice {
            Notice::Applied(owner) => owner.name,
            other => panic!("{other:?}"),
        })
        .collect::<Vec<_>>()
    };
    let event = |version: &str| {
        let metadata = json!({"name": "a", "namespace": "n", "resourceVersion": version});
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})).unwrap()
    };
    assert_eq!(is_told(Event::Apply(event("2"))), ["old"]);
    assert_eq!(is_told(Event::Apply(event("3"))), ["new", "old"]);
    watches.forget(&owner("old"));
    assert_eq!(is_told(Event::Delete(event("3"))), ["new"]);
}

#[tokio::test]
async fn the_last_machine_tells_of_the_class_of_its_cluster_or_of_its_own_namespace() {
    let (watches, mut told, _cancel) = watches(forgetful(Arc::default()));
    let mut of_other = cluster("there", "v1");
    of_other["spec"]["topology"]["classRef"]["namespace"] = "stacks".into();
    watches.cluster(&of_other, false, &mut Uses::default());
    // As a watch begins that takes over from another one.
    let mut known = Uses::of(std::mem::take(&mut *watches.lock_clusters()));
    while told.try_recv().is_ok() {}
    for (of_cluster, namespace) in [("there", "stacks"), ("gone", "n")] {
        let labels = json!({CLUSTER_NAME_LABEL: of_cluster});
        let machine = json!({"metadata": {"name": "m", "namespace": "n", "labels": labels}});
        watches.machine_is_gone(&serde_json::from_value(machine).unwrap(), &known);
        assert_eq!(told.try_recv(), Ok(Notice::Cluster([namespace.to_owned()].into())), "{of_cluster}");
    }
    watches.clusters_are_gone(known.end_list());
    assert_eq!(told.try_recv(), Ok(Notice::Addons("n".into(), "there".into())));
    assert_eq!(told.try_recv(), Ok(Notice::Cluster(["stacks".to_owned()].into())));
}
