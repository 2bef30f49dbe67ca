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

/// Lets go of the objects of a store that were ours, and starts passes over those that are ours now and were not. Who has begun one
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
        let moved = moved(change.before.role(&root), change.now.role(&root), change.skips);
        if moved.is_lost {
            lost(&object);
        }
        if moved.is_gained && !ctx.memory.has_begun(&object.uid().unwrap_or_default(), change.number) {
            gained(ObjectRef::from_obj(&*object));
        }
    }
}

/// What a change does to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moved {
    /// What was begun or remembered of it ends.
    is_lost: bool,
    /// It needs a pass.
    is_gained: bool,
}

/// What an object is to us now, by its roles. Where changes were skipped it may have been anything meanwhile: something was begun,
/// or a pass ended that should not have.
fn moved(before: Role, now: Role, skips: bool) -> Moved {
    let turned = before != now || skips;
    let had_nothing = before == Role::Nothing && !skips;
    Moved { is_lost: turned && now != Role::Works && !had_nothing, is_gained: turned && now != Role::Nothing }
}

#[cfg(test)]
mod tests {
    use super::Role::{Nothing, Tells, Works};
    use super::*;

    #[test]
    fn what_becomes_ours_is_gained_and_what_was_is_lost() {
        const NOT: (bool, bool) = (false, false);
        const GAINED: (bool, bool) = (false, true);
        const LOST: (bool, bool) = (true, false);
        const BOTH: (bool, bool) = (true, true);
        for (before, now, expected, with_skips) in [
            (Nothing, Nothing, NOT, LOST),
            (Nothing, Tells, GAINED, BOTH),
            (Nothing, Works, GAINED, GAINED),
            (Tells, Nothing, LOST, LOST),
            (Tells, Tells, NOT, BOTH),
            (Tells, Works, GAINED, GAINED),
            (Works, Nothing, LOST, LOST),
            (Works, Tells, BOTH, BOTH),
            (Works, Works, NOT, GAINED),
        ] {
            let of = |skips| {
                let Moved { is_lost, is_gained } = moved(before, now, skips);
                (is_lost, is_gained)
            };
            assert_eq!((of(false), of(true)), (expected, with_skips), "{before:?} {now:?}");
        }
    }
}
