//! Which changes start passes: the watches of our kinds, and what those of other objects tell.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc::UnboundedSender;
use futures::future::ready;
use futures::{Stream, TryStreamExt};
use kube::api::DynamicObject;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::controller::Reading;
use super::{Context, cluster_addon, cluster_stack, deletion, image_provider, origin};
use crate::api::condition::{Reason, Reported};
use crate::api::{ClusterAddon, ClusterStack, ClusterStackRelease, ClusterStackSource, ProviderClusterStackRelease};
use crate::core::addon::cluster::addon_name;
use crate::core::status;
use crate::io::source::flights::Waiter;
use crate::io::stored;
use crate::io::watch::Notice;

/// ClusterStacks as they change. An edit of one concerns its releases too, and what their provider makes of them; and that its source
/// was read because somebody asked for it: a release that somebody asked for may have been looked at before, with what was read earlier.
pub(super) fn stack_events(
    client: &Client,
    context: &Arc<Context>,
    (writer, reading): (Writer<ClusterStack>, &Reading),
    (to_releases, to_provided): (
        UnboundedSender<ObjectRef<ClusterStackRelease>>,
        UnboundedSender<ObjectRef<ProviderClusterStackRelease>>,
    ),
) -> impl Stream<Item = Result<Touched<ClusterStack>, watcher::Error>> + Send + use<> {
    let namespace = context.settings.namespace.as_deref();
    let (ctx, context) = (Arc::clone(context), Arc::clone(context));
    let mut edited = Edits::default();
    let (known, unreadable) = (context.stacks.clone(), context.unreadable.clone());
    let noting = Arc::clone(&context);
    let events = stored::watch(client, namespace, known, unreadable)
        .inspect_ok(move |event| note_orphaning(event, &noting))
        .reflect(writer)
        .inspect_ok(at_init_done(move || drop(context.first_read.stacks.set(()))))
        .inspect_ok(reading.noted());
    touched(events).inspect_ok(move |stack| {
        if stack.is_gone {
            ctx.memory.forget(&stack.object.uid().unwrap_or_default());
        }
        // Each release has its first pass by itself: those that are known by now would have two.
        let handled =
            stack.object.status.as_ref().map(|status| status.last_handled_reconcile_at.clone()).unwrap_or_default();
        if !edited.is_new(stack, (edit(&stack.object), handled)) || !ctx.first_read.stacks.initialized() {
            return;
        }
        for release in &cluster_stack::owned(&stack.object, &ctx) {
            let _ = to_releases.unbounded_send(ObjectRef::from_obj(&**release));
            provided_of(release, &to_provided);
        }
    })
}

/// Notes ClusterStacks whose releases are to stay. No pass may see it: Kubernetes' collector of garbage takes the mark away when it has
/// taken the releases that it knows of.
fn note_orphaning(event: &watcher::Event<ClusterStack>, ctx: &Context) {
    let (watcher::Event::Apply(stack) | watcher::Event::InitApply(stack)) = event else { return };
    if deletion::is_orphaning(stack) {
        ctx.memory.orphans(&stack.uid().unwrap_or_default());
    }
}

/// ClusterStackReleases as they change. What changes of one concerns its ClusterStack, and what was fetched the Clusters
/// of its classes.
pub(super) fn release_events(
    client: &Client,
    context: &Arc<Context>,
    (writer, reading): (Writer<ClusterStackRelease>, &Reading),
    to_stacks: UnboundedSender<ObjectRef<ClusterStack>>,
    to_provided: UnboundedSender<ObjectRef<ProviderClusterStackRelease>>,
) -> impl Stream<Item = Result<Touched<ClusterStackRelease>, watcher::Error>> + Send + use<> {
    let namespace = context.settings.namespace.as_deref();
    let (mut fetched, watches, context) =
        (cluster_addon::Fetched::default(), Arc::clone(&context.watches), Arc::clone(context));
    let (known, unreadable) = (context.stack_releases.clone(), context.unreadable.clone());
    let events = stored::watch(client, namespace, known, unreadable)
        .inspect_ok(context.moves.noted())
        .inspect_ok(context.owned.noted())
        .reflect(writer)
        .inspect_ok(at_init_done(move || drop(context.first_read.releases.set(()))))
        .inspect_ok(reading.noted());
    touched(events).inspect_ok(move |Touched { object: release, is_gone }| {
        fetched.tell(release, &watches);
        provided_of(release, &to_provided);
        for owner in release.owner_references().iter().filter(|owner| owner.kind == "ClusterStack") {
            let stack = ObjectRef::new(&owner.name).within(&release.namespace().unwrap_or_default());
            tell(stack, !is_gone && is_at_work(release), &to_stacks);
        }
    })
}

/// An object that an event of a watch is about.
pub(super) struct Touched<K> {
    /// As it is now, or was when it was last stored.
    pub(super) object: K,
    /// It was deleted. The object itself may not tell: the API server sends what it had stored, finalizers and all.
    pub(super) is_gone: bool,
}

/// The objects of a watch's events.
pub(super) fn touched<K, E>(
    events: impl Stream<Item = Result<watcher::Event<K>, E>>,
) -> impl Stream<Item = Result<Touched<K>, E>> {
    events.try_filter_map(|event| {
        ready(Ok(match event {
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) => {
                Some(Touched { object, is_gone: false })
            }
            watcher::Event::Delete(object) => Some(Touched { object, is_gone: true }),
            watcher::Event::Init | watcher::Event::InitDone => None,
        }))
    })
}

/// How long nothing is said of a release that is being worked on in its ClusterStack: mostly it is Ready before.
pub(super) const AT_WORK: Duration = Duration::from_secs(1);

/// Starts a pass over a ClusterStack: at once, or after [`AT_WORK`] where `later`.
fn tell(stack: ObjectRef<ClusterStack>, later: bool, to_stacks: &UnboundedSender<ObjectRef<ClusterStack>>) {
    let to_stacks = to_stacks.clone();
    if later {
        tokio::spawn(async move {
            tokio::time::sleep(AT_WORK).await;
            let _ = to_stacks.unbounded_send(stack);
        });
    } else {
        let _ = to_stacks.unbounded_send(stack);
    }
}

/// Whether all that a release says is that it is being worked on; or nothing yet.
pub(super) fn is_at_work(release: &ClusterStackRelease) -> bool {
    let ready = release.ready();
    release.metadata.deletion_timestamp.is_none()
        && ready.is_none_or(|ready| ready.reason == Reason::Progressing.as_str())
}

/// Start passes over what a ClusterStackSource concerns.
type Concerned = (
    UnboundedSender<ObjectRef<ClusterStack>>,
    UnboundedSender<ObjectRef<ClusterStackRelease>>,
    UnboundedSender<ObjectRef<ProviderClusterStackRelease>>,
);

/// ClusterStackSources as they change. What changes of one concerns the ClusterStacks that name it, and an edit their
/// releases too.
pub(super) fn source_events(
    client: &Client,
    context: &Arc<Context>,
    (writer, reading): (Writer<ClusterStackSource>, &Reading),
    (to_stacks, to_releases, to_provided): Concerned,
) -> impl Stream<Item = Result<Touched<ClusterStackSource>, watcher::Error>> + Send + use<> {
    let namespace = context.settings.namespace.as_deref();
    let (mut edited, mut changed) = (Edits::default(), Edits::default());
    let (ctx, context) = (Arc::clone(context), Arc::clone(context));
    let (known, unreadable) = (context.sources.clone(), context.unreadable.clone());
    let events = stored::watch(client, namespace, known, unreadable)
        .reflect(writer)
        .inspect_ok(at_init_done(move || drop(context.first_read.sources.set(()))))
        .inspect_ok(reading.noted());
    touched(events).inspect_ok(move |source| {
        if source.is_gone {
            ctx.memory.forget(&source.object.uid().unwrap_or_default());
        }
        let place = ObjectRef::from_obj(&source.object);
        let is_edit = edited.is_new(source, edit(&source.object));
        if !changed.is_new(source, source_change(&source.object)) || !ctx.first_read.sources.initialized() {
            return;
        }
        for stack in ctx.stacks.state() {
            let own = stack.namespace().unwrap_or_default();
            if stack.spec.source_ref.as_ref().is_none_or(|named| origin::place(named, &own) != place) {
                continue;
            }
            let _ = to_stacks.unbounded_send(ObjectRef::from_obj(&*stack));
            if !is_edit {
                continue;
            }
            for release in &cluster_stack::owned(&stack, &ctx) {
                let _ = to_releases.unbounded_send(ObjectRef::from_obj(&**release));
                // It may have been allowed to use the provider's template, or be so no more.
                provided_of(release, &to_provided);
            }
        }
    })
}

/// Starts a pass over the provider's object of a release, if it is the built-in provider's.
fn provided_of(release: &ClusterStackRelease, to_provided: &UnboundedSender<ObjectRef<ProviderClusterStackRelease>>) {
    if let Some(provided) = image_provider::of_release(release) {
        let _ = to_provided.unbounded_send(provided);
    }
}

/// What of a ClusterStackSource concerns those who use it.
fn source_change(source: &ClusterStackSource) -> u64 {
    let poll = source.status.as_ref().and_then(|status| status.last_poll.as_ref());
    let mut hasher = DefaultHasher::new();
    (source.uid(), edit(source), poll.map(|poll| &poll.revision)).hash(&mut hasher);
    source.ready().map(|ready| (&ready.status, &ready.reason)).hash(&mut hasher);
    hasher.finish()
}

/// Runs `then` when a watch has read all there is.
pub(super) fn at_init_done<K>(then: impl Fn()) -> impl FnMut(&watcher::Event<K>) {
    move |event| {
        if matches!(event, watcher::Event::InitDone) {
            then();
        }
    }
}

/// What of an object asks for a pass when it changes: all but our own reports.
pub(super) fn edit<K: ResourceExt>(object: &K) -> u64 {
    let mut hasher = DefaultHasher::new();
    let metadata = object.meta();
    (&metadata.uid, metadata.generation, object.annotations(), object.labels(), object.finalizers()).hash(&mut hasher);
    metadata.deletion_timestamp.is_some().hash(&mut hasher);
    // Who was left without an owner, and has one again, is looked at anew.
    for owner in object.owner_references() {
        owner.uid.hash(&mut hasher);
    }
    hasher.finish()
}

/// Lets those through that ask for a pass: what was edited since it was last seen, or has lost its status. A status that
/// appears is our own report of a pass.
pub(super) fn asking<K: ResourceExt<DynamicType = ()> + Reported, E>(
    events: impl Stream<Item = Result<Touched<K>, E>>,
) -> impl Stream<Item = Result<K, E>> {
    asking_by(events, edit)
}

/// The same, where `edit_of` tells one edit from another.
pub(super) fn asking_by<K: ResourceExt<DynamicType = ()> + Reported, E>(
    events: impl Stream<Item = Result<Touched<K>, E>>,
    edit_of: impl Fn(&K) -> u64,
) -> impl Stream<Item = Result<K, E>> {
    let mut seen = Seen::default();
    events.try_filter_map(move |touched| {
        let asks = seen.asks(&touched, edit_of(&touched.object));
        ready(Ok(asks.then_some(touched.object)))
    })
}

/// The edits of objects that were let through, by UID, and whether there was a status then.
#[derive(Default)]
struct Seen(HashMap<String, (u64, bool)>);

impl Seen {
    fn asks(&mut self, Touched { object, is_gone }: &Touched<impl ResourceExt + Reported>, now: u64) -> bool {
        let Some(uid) = object.uid() else { return true };
        if *is_gone {
            self.0.remove(&uid);
            return true;
        }
        let has_status = !object.conditions().is_empty();
        let before = self.0.insert(uid, (now, has_status));
        before.is_none_or(|(edit, had_status)| edit != now || had_status && !has_status)
    }
}

/// The digests of the artifacts that these releases were made from.
pub(super) fn artifacts_of(releases: &[Arc<ClusterStackRelease>]) -> HashSet<String> {
    releases.iter().filter_map(|release| Some(release.status.as_ref()?.artifact.as_ref()?.digest.clone())).collect()
}

/// The last edit of each object.
#[derive(Default)]
pub(super) struct Edits<E>(HashMap<ObjectRef<DynamicObject>, E>);

impl<E: PartialEq> Edits<E> {
    /// Whether this is another edit than the one before. What goes is news, and forgotten.
    pub(super) fn is_new<K: Resource<DynamicType = ()>>(&mut self, touched: &Touched<K>, now: E) -> bool {
        let place = ObjectRef::from_obj(&touched.object).erase();
        if touched.is_gone {
            self.0.remove(&place);
            return true;
        }
        let is_same = self.0.get(&place) == Some(&now);
        if !is_same {
            self.0.insert(place, now);
        }
        !is_same
    }
}

/// Where notices go.
pub(super) struct Routes {
    pub(super) to_stacks: UnboundedSender<ObjectRef<ClusterStack>>,
    pub(super) to_releases: UnboundedSender<ObjectRef<ClusterStackRelease>>,
    pub(super) to_addons: UnboundedSender<ObjectRef<ClusterAddon>>,
    pub(super) to_sources: UnboundedSender<ObjectRef<ClusterStackSource>>,
    pub(super) tasks: TaskTracker,
    pub(super) intake: CancellationToken,
}

/// Turns notices of the watches into passes.
pub(super) async fn route(mut noticed: UnboundedReceiver<Notice>, ctx: Arc<Context>, routes: Routes) {
    let Routes { to_stacks, to_releases, to_addons, to_sources, tasks, intake } = routes;
    loop {
        let notice = tokio::select! {
            () = intake.cancelled() => return,
            notice = noticed.recv() => notice,
        };
        match notice {
            None => return,
            Some(Notice::Answered(waiter)) => {
                let _ = match waiter {
                    Waiter::Stack(stack) => to_stacks.unbounded_send(stack).is_ok(),
                    Waiter::Release(release) => to_releases.unbounded_send(release).is_ok(),
                    Waiter::Source(source) => to_sources.unbounded_send(source).is_ok(),
                };
            }
            Some(Notice::Applied(release)) => {
                let _ = to_releases.unbounded_send(release);
            }
            Some(Notice::Addons(namespace, cluster)) => {
                let addon = ObjectRef::new(&addon_name(&cluster)).within(&namespace);
                let _ = to_addons.unbounded_send(addon);
                tasks.spawn(cluster_addon::make(namespace, cluster, Arc::clone(&ctx), intake.clone()));
            }
            Some(Notice::Addon(namespace, cluster)) => {
                let _ = to_addons.unbounded_send(ObjectRef::new(&addon_name(&cluster)).within(&namespace));
            }
            Some(Notice::Definition(group)) => {
                // What it has now of fields that are no longer defined tells no watch.
                let has_any = |release: &ClusterStackRelease| {
                    release.status.as_ref().is_some_and(|status| status.resources.iter().any(|row| row.group == group))
                };
                for release in ctx.stack_releases.state().iter().filter(|release| has_any(release)) {
                    ctx.memory.look_again(&release.uid().unwrap_or_default());
                }
                let waits = |release: &ClusterStackRelease| {
                    release.status.as_ref().is_some_and(|status| status::waits_for_kind(status, &group))
                };
                for release in ctx.stack_releases.state().iter().filter(|release| waits(release)) {
                    ctx.memory.definition_changed(&release.uid().unwrap_or_default());
                    let _ = to_releases.unbounded_send(ObjectRef::from_obj(&**release));
                }
            }
            Some(Notice::Cluster(namespaces)) => {
                let is_there = |namespace: Option<String>| namespace.is_some_and(|n| namespaces.contains(&n));
                for stack in ctx.stacks.state().iter().filter(|stack| is_there(stack.namespace())) {
                    let _ = to_stacks.unbounded_send(ObjectRef::from_obj(&**stack));
                }
                // A Cluster may have come from a class of another namespace, and hold the release it left.
                let goes = |release: &ClusterStackRelease| release.metadata.deletion_timestamp.is_some();
                for release in ctx.stack_releases.state().iter().filter(|release| goes(release)) {
                    let _ = to_releases.unbounded_send(ObjectRef::from_obj(&**release));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn stack(change: &Value) -> ClusterStack {
        let mut object = json!({
            "apiVersion": crate::api::API_VERSION, "kind": "ClusterStack",
            "metadata": {"name": "s", "namespace": "a", "uid": "1", "generation": 1},
            "spec": {"provider": "docker", "name": "s", "kubernetesVersion": "1.34", "channel": "stable"},
        });
        json_patch::merge(&mut object, change);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_pass_is_asked_for_by_edits_and_by_a_status_that_is_lost() {
        let reported = |reason: &str| {
            let at = "2026-01-01T00:00:00Z";
            let ready =
                json!({"type": "Ready", "status": "False", "reason": reason, "message": "", "lastTransitionTime": at});
            json!({"status": {"conditions": [ready]}})
        };
        let owned =
            || json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "9"}]}});
        let mut seen = Seen::default();
        for (what, change, expected) in [
            ("it is new", json!({}), true),
            ("it is told again", json!({}), false),
            ("our own report", reported("Progressing"), false),
            ("another one", reported("Ready"), false),
            ("an annotation", json!({"metadata": {"annotations": {"a": "b"}}}), true),
            ("that is gone, and the status there again", reported("Ready"), true),
            ("the status is lost", json!({}), true),
            ("it stays lost", json!({}), false),
            ("it has an owner again", owned(), true),
            ("its owner is told again", owned(), false),
            ("it is edited", json!({"metadata": {"generation": 2}}), true),
            ("it is another one", json!({"metadata": {"uid": "2"}}), true),
            ("it goes", going(), true),
            ("it is gone", going(), true),
        ] {
            let touched = Touched { object: stack(&change), is_gone: what == "it is gone" };
            assert_eq!(seen.asks(&touched, edit(&touched.object)), expected, "{what}");
        }
        assert_eq!(seen.0.len(), 1, "what is gone is forgotten");
    }

    /// As the API server has it until the last finalizer is gone, and sends it when the object is.
    fn going() -> Value {
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x"]}})
    }

    #[test]
    fn an_edit_is_new_once_and_what_is_gone_is_forgotten() {
        let mut edits = Edits::default();
        for (what, change, expected) in [
            ("it is new", json!({}), true),
            ("it is told again", json!({}), false),
            ("it is edited", json!({"metadata": {"generation": 2}}), true),
            ("it goes", going(), true),
            ("it is told again that it goes", going(), false),
            ("it is gone", going(), true),
            ("another is made", json!({"metadata": {"uid": "2"}}), true),
            ("another one with the same name, by a new reading", json!({"metadata": {"uid": "3"}}), true),
            ("it is gone", json!({"metadata": {"uid": "3"}}), true),
        ] {
            let touched = Touched { object: stack(&change), is_gone: what == "it is gone" };
            assert_eq!(edits.is_new(&touched, edit(&touched.object)), expected, "{what}");
        }
        assert!(edits.0.is_empty());
    }
}
