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

type Moves = dyn Fn(Change) -> BoxFuture<'static, ()> + Send + Sync;

type Count = dyn Fn(&Share) -> usize + Send + Sync;

/// A change of what is ours.
#[derive(Clone, Debug)]
pub struct Change {
    /// What was ours.
    pub before: Arc<Share>,
    /// What is.
    pub now: Arc<Share>,
    /// Its number.
    pub number: u64,
    /// There were others between the two, that nobody was told of.
    pub skips: bool,
}

/// Those who are told, and who count what is ours, by kind.
#[derive(Default)]
pub struct Handover {
    moves: Mutex<Vec<Arc<Moves>>>,
    counts: Mutex<HashMap<&'static str, Arc<Count>>>,
}

impl Handover {
    /// `moves` is called at each change. When it returns, what was lost has stopped.
    pub(super) fn on_change(&self, moves: impl Fn(Change) -> BoxFuture<'static, ()> + Send + Sync + 'static) {
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
    let (mut before, mut last) = (Arc::new(Share::default()), 0);
    loop {
        let turn = changes.borrow_and_update().clone();
        ctx.metrics.leader.set(i64::from(turn.share.leads()));
        let skips = turn.number > last + 1;
        let change = Change { before, now: Arc::clone(&turn.share), number: turn.number, skips };
        for moves in ctx.handover.all() {
            moves(change.clone()).await;
        }
        members.heed(turn.number);
        (before, last) = (turn.share, turn.number);
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// Starts passes over the objects of a store that are ours now and were not, and lets go of those that were. Who has begun a pass
/// since, which may be before this is told, needs no other.
pub(super) fn of_store<K>(
    ctx: &Context,
    store: &Store<K>,
    change: &Change,
    gained: impl Fn(ObjectRef<K>),
    lost: impl Fn(&Arc<K>),
) where
    K: Rooted + Resource<DynamicType = ()> + Clone + 'static,
{
    for object in store.state() {
        let Some(root) = object.root(ctx) else { continue };
        match moved(change.before.role(&root), change.now.role(&root), change.skips) {
            Moved::Not => {}
            Moved::Lost => lost(&object),
            Moved::Gained => {
                if !ctx.memory.has_begun(&object.uid().unwrap_or_default(), change.number) {
                    gained(ObjectRef::from_obj(&*object));
                }
            }
        }
    }
}

/// What a change does to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    Not,
    Lost,
    Gained,
}

/// What an object is to us now, by its roles. Where changes were skipped it may have been nothing meanwhile, and a pass ended for
/// that.
fn moved(before: Role, now: Role, skips: bool) -> Moved {
    match (before, now) {
        (was, is) if was == is && !(skips && is != Role::Nothing) => Moved::Not,
        (Role::Works, is) if is != Role::Works => Moved::Lost,
        (_, Role::Nothing) => Moved::Not,
        _ => Moved::Gained,
    }
}

#[cfg(test)]
mod tests {
    use super::Role::{Nothing, Tells, Works};
    use super::*;

    #[test]
    fn what_becomes_ours_is_gained_and_what_was_is_lost() {
        for (before, now, skips, expected) in [
            (Nothing, Nothing, false, Moved::Not),
            (Nothing, Tells, false, Moved::Gained),
            (Nothing, Works, false, Moved::Gained),
            (Tells, Nothing, false, Moved::Not),
            (Tells, Tells, false, Moved::Not),
            (Tells, Works, false, Moved::Gained),
            (Works, Nothing, false, Moved::Lost),
            (Works, Tells, false, Moved::Lost),
            (Works, Works, false, Moved::Not),
            (Nothing, Nothing, true, Moved::Not),
            (Tells, Tells, true, Moved::Gained),
            (Works, Works, true, Moved::Gained),
            (Works, Nothing, true, Moved::Lost),
            (Works, Tells, true, Moved::Lost),
            (Tells, Nothing, true, Moved::Not),
        ] {
            assert_eq!(moved(before, now, skips), expected, "{before:?} {now:?} {skips}");
        }
    }
}
