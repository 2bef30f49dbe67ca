//! What happens when other members take what was ours, or leave us theirs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio_util::sync::CancellationToken;

use super::Context;
use super::seats::Rooted;
use crate::core::share::view::{Role, Share};

type Moves = dyn Fn(Arc<Share>, Arc<Share>) -> BoxFuture<'static, ()> + Send + Sync;

type Count = dyn Fn(&Share) -> usize + Send + Sync;

/// Those who are told, and who count what is ours, by kind.
#[derive(Default)]
pub struct Handover {
    moves: Mutex<Vec<Arc<Moves>>>,
    counts: Mutex<HashMap<&'static str, Arc<Count>>>,
}

impl Handover {
    /// `moves` is called with what was ours and what is. When it returns, what was lost has stopped.
    pub(super) fn on_change(
        &self,
        moves: impl Fn(Arc<Share>, Arc<Share>) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(moves));
    }

    fn all(&self) -> Vec<Arc<Moves>> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The objects of this store are counted.
    pub(super) fn counted<K: Rooted + Resource<DynamicType = ()> + Clone + Send + Sync + 'static>(
        &self,
        kind: &'static str,
        ctx: &Arc<Context>,
        store: &Store<K>,
    ) {
        let (weak, store) = (Arc::downgrade(ctx), store.clone());
        let count = move |share: &Share| {
            let Some(ctx) = weak.upgrade() else { return 0 };
            let is_ours = |object: &&Arc<K>| object.root(&ctx).is_some_and(|root| share.role(&root) == Role::Works);
            store.state().iter().filter(is_ours).count()
        };
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).insert(kind, Arc::new(count));
    }

    /// How many objects of a kind are of a share.
    pub(super) fn count(&self, kind: &str, share: &Share) -> usize {
        let count = self.counts.lock().unwrap_or_else(PoisonError::into_inner).get(kind).cloned();
        count.map_or(0, |count| count(share))
    }
}

/// Tells of changes until `stop`.
pub(super) async fn run(ctx: Arc<Context>, stop: CancellationToken) {
    let members = &ctx.seats.members;
    if members.is_alone() {
        ctx.metrics.leader.set(1);
        return;
    }
    let mut changes = members.changes();
    let mut before = Arc::new(Share::default());
    loop {
        let turn = changes.borrow_and_update().clone();
        ctx.metrics.leader.set(i64::from(turn.share.leads()));
        for moves in ctx.handover.all() {
            moves(Arc::clone(&before), Arc::clone(&turn.share)).await;
        }
        members.heed(turn.number);
        before = turn.share;
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// Starts passes over the objects of a store that are ours now and were not, and lets go of those that were.
pub(super) fn of_store<K>(
    ctx: &Context,
    store: &Store<K>,
    (before, now): (&Share, &Share),
    gained: impl Fn(ObjectRef<K>),
    lost: impl Fn(&Arc<K>),
) where
    K: Rooted + Resource<DynamicType = ()> + Clone + 'static,
{
    for object in store.state() {
        let Some(root) = object.root(ctx) else { continue };
        match (before.role(&root), now.role(&root)) {
            (was, is) if was == is => {}
            (Role::Works, _) => lost(&object),
            (_, Role::Nothing) => {}
            _ => gained(ObjectRef::from_obj(&*object)),
        }
    }
}
