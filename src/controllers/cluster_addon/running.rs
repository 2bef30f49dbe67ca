//! Runs the controller: which changes lead to a pass.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use futures::TryStreamExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender};
use futures::future::ready;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::super::changes::{self, Touched, asking_by, touched};
use super::super::controller::{Controller, Reading};
use super::super::passes::{has_read_all, seated};
use super::super::seats::Seat;
use super::super::{Action, Context, Error, handover};
use crate::api::{ClusterAddon, ClusterAddonSpec, ClusterStackRelease};
use crate::core::in_use;
use crate::core::share::view::Role;
use crate::io::stored;
use crate::io::watch::{Notice, Watches};

/// Runs the controller until the intake ends.
pub(in crate::controllers) async fn run(
    client: &Client,
    ctx: Arc<Context>,
    (to_addons, triggers): (UnboundedSender<ObjectRef<ClusterAddon>>, UnboundedReceiver<ObjectRef<ClusterAddon>>),
    intake: CancellationToken,
) {
    let (reader, writer) = reflector::store::<ClusterAddon>();
    let reading = Reading::new();
    let namespace = ctx.settings.namespace.clone();
    let changes = stored::watch(client, namespace.as_deref(), reader.clone(), ctx.unreadable.clone())
        .inspect_ok(ctx.moves.noted())
        .reflect(writer)
        .inspect_ok(reading.noted());
    let watches = Arc::clone(&ctx.watches);
    let mut held = Held::default();
    let changes = touched(changes).inspect_ok(move |addon| {
        if held.left(addon) {
            let class = class_seen(&addon.object, &watches).map(|(namespace, _)| namespace);
            watches.tell(Notice::Cluster(addon.object.namespace().into_iter().chain(class).collect()));
        }
    });
    let addons = reader.clone();
    let _ = ctx.caches.addons.set(reader.clone());
    on_handover(&ctx, &reader, to_addons);
    let pass = move |addon: Arc<ClusterAddon>, ctx: Arc<Context>| timed_addon(addon, addons.clone(), ctx);
    let on_error = |addon: &ClusterAddon, error: &Error, ctx: &Context| ctx.on_error(addon, error);
    let cancel = ctx.cancel.clone();
    let controller = Controller { store: reader, reading, ctx, on_error, intake, cancel };
    controller.run(asking_by(changes, edit), triggers, pass).await;
}

/// The releases that ClusterAddons hold, as last seen: a Cluster that has moved on uses one until its addons have too, and a ClusterAddon
/// may outlive its Cluster.
#[derive(Default)]
struct Held(HashMap<ObjectRef<ClusterAddon>, String>);

impl Held {
    /// Whether a ClusterAddon has left the release that it held.
    fn left(&mut self, addon: &Touched<ClusterAddon>) -> bool {
        let id = ObjectRef::from_obj(&addon.object);
        let before =
            if addon.is_gone { self.0.remove(&id) } else { self.0.insert(id, addon.object.spec.cluster_stack.clone()) };
        before.is_some_and(|before| !before.is_empty() && (addon.is_gone || before != addon.object.spec.cluster_stack))
    }
}

/// The ClusterClass of an addon's Cluster, as last seen.
fn class_seen(addon: &ClusterAddon, watches: &Watches) -> Option<Class> {
    let cluster = addon.spec.cluster_ref.name.as_deref()?;
    watches.cluster_seen(&addon.namespace()?, cluster)?.class
}

/// What of a ClusterAddon asks for a pass: all but what the operator reports, and notes itself when all stages are done.
fn edit(addon: &ClusterAddon) -> u64 {
    let noted = ClusterAddonSpec { cluster_stack: String::new(), version: String::new(), ..addon.spec.clone() };
    let mut object = addon.clone();
    // It counts what the operator notes, too.
    object.metadata.generation = None;
    let mut hasher = DefaultHasher::new();
    (changes::edit(&object), json!(noted).to_string()).hash(&mut hasher);
    hasher.finish()
}

/// Starts passes over what becomes ours, and lets the watches go of what was.
fn on_handover(ctx: &Arc<Context>, addons: &Store<ClusterAddon>, to_addons: UnboundedSender<ObjectRef<ClusterAddon>>) {
    ctx.handover.counted("ClusterAddon", ctx, addons);
    let (weak, addons) = (Arc::downgrade(ctx), addons.clone());
    ctx.handover.on_change(move |change| {
        if let Some(ctx) = weak.upgrade() {
            let gained = |addon| drop(to_addons.unbounded_send(addon));
            handover::of_store(&ctx, &addons, &change, gained, |addon| super::let_go(addon, &ctx));
            // Who had a Cluster may have gone before its ClusterAddon was made.
            for cluster in ctx.watches.clusters_seen() {
                let root = super::root_of(&cluster, &ctx);
                let was_ours = change.before.role(&root) == Role::Works && !change.skips;
                if !was_ours && change.now.role(&root) == Role::Works {
                    ctx.watches.tell(Notice::Addons(cluster.namespace, cluster.name));
                }
            }
        }
        Box::pin(ready(()))
    });
}

async fn timed_addon(
    addon: Arc<ClusterAddon>,
    addons: Store<ClusterAddon>,
    ctx: Arc<Context>,
) -> Result<Action, Error> {
    if !has_read_all(&ctx).await {
        return Ok(Action::await_change());
    }
    if let Seat::Free(next) = ctx.seat_of_pass(&addon) {
        return Ok(next);
    }
    let namespace = addon.namespace().unwrap_or_default();
    let cluster = addon.spec.cluster_ref.name.as_deref().unwrap_or_default();
    let is_doubtful = ctx.workloads.circuits().is_doubtful(&namespace, cluster);
    let line = if is_doubtful { &ctx.lines.doubtful_addons } else { &ctx.lines.addons };
    let of = ObjectRef::from_obj(&*addon).to_string();
    let Some(turn) = ctx.lines.turn(line, of).await else { return Ok(Action::await_change()) };
    // It may have changed while it waited, or be another one of the same name.
    let Some(addon) = addons.get(&ObjectRef::from_obj(&*addon)) else { return Ok(Action::await_change()) };
    let pass = seated(&ctx, &addon, |role| {
        let (addon, ctx) = (Arc::clone(&addon), Arc::clone(&ctx));
        let pass = async move {
            match role {
                Role::Works => super::reconcile(addon, ctx).await,
                Role::Tells | Role::Nothing => super::unserved(&addon, &ctx).await,
            }
        };
        Box::pin(pass)
    });
    turn.within(pass).await
}

/// Which releases were fetched: the Clusters of their classes may have waited for it.
#[derive(Default)]
pub(in crate::controllers) struct Fetched(HashMap<ObjectRef<ClusterStackRelease>, (String, BTreeSet<Class>)>);

/// Namespace and name of a ClusterClass.
type Class = (String, String);

impl Fetched {
    /// Tells of the Clusters of a release that was fetched, or that has other files now.
    pub(in crate::controllers) fn tell(&mut self, release: &ClusterStackRelease, watches: &Watches) {
        let Some(status) = &release.status else { return };
        let Some(digest) = status.artifact.as_ref().map(|artifact| artifact.digest.clone()) else { return };
        let namespace = release.namespace().unwrap_or_default();
        let classes = in_use::footprint(&release.name_any(), &namespace, &status.resources).classes;
        let now = (digest, classes.clone());
        if self.0.insert(ObjectRef::from_obj(release), now.clone()) == Some(now) {
            return;
        }
        for (namespace, cluster) in watches.clusters_of(&classes) {
            watches.tell(Notice::Addons(namespace, cluster));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_operator_notes_itself_asks_for_no_pass() {
        let addon = |spec: serde_json::Value, generation: i64| -> ClusterAddon {
            serde_json::from_value(json!({
                "metadata": {"name": "a", "uid": "u", "generation": generation},
                "spec": serde_json::Value::Object([
                    json!({"clusterRef": {"name": "c"}}).as_object().unwrap().clone(),
                    spec.as_object().unwrap().clone(),
                ].into_iter().flatten().collect()),
            }))
            .unwrap()
        };
        let before = edit(&addon(json!({}), 1));
        for (spec, asks) in [
            (json!({"clusterStack": "r1", "version": "v1"}), false),
            (json!({"hook": "BeforeClusterDelete"}), true),
            (json!({"suspend": true}), true),
            (json!({"values": {"a": 1}}), true),
        ] {
            assert_eq!(edit(&addon(spec.clone(), 2)) != before, asks, "{spec}");
        }
    }

    #[test]
    fn who_leaves_a_release_is_told_of() {
        let addon = |release: &str, is_gone: bool| {
            Touched {
            object: serde_json::from_value(json!({
                "metadata": {"name": "a", "namespace": "n"}, "spec": {"clusterRef": {"name": "c"}, "clusterStack": release},
            }))
            .unwrap(),
            is_gone,
        }
        };
        let mut held = Held::default();
        for (what, release, is_gone, left) in [
            ("it is seen first", "v1", false, false),
            ("it stays", "v1", false, false),
            ("it moves on", "v2", false, true),
            ("it goes", "v2", true, true),
            ("it holds none yet", "", false, false),
            ("it holds one", "v3", false, false),
        ] {
            assert_eq!(held.left(&addon(release, is_gone)), left, "{what}");
        }
    }
}
