//! Which objects are this replica's: the root of the work that each belongs to, and the fence around a pass over it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use tokio::time::Instant;

use super::{Action, Context, cluster_stack_release};
use crate::api::condition::Reason;
use crate::api::provider_release::ProviderClusterStackRelease;
use crate::api::{
    ClusterAddon, ClusterStack, ClusterStackRelease, ClusterStackSource, ProviderNodeImageRelease, SHARD_CLASS,
    TRACEPARENT, WATCH_LABEL,
};
use crate::core::retry::{ErrorClass, WAITING};
use crate::core::share::Root;
use crate::core::share::view::{LEASE, Role};
use crate::core::status::Trouble;
use crate::io::fence::Fence;
use crate::io::members::Members;

/// Roots of which the class is remembered at most; then it begins anew.
const REMEMBERED: usize = 65_536;

/// The classes of roots as last seen: one that was changed is taken a Lease's time later, when everybody has seen it.
#[derive(Debug, Default)]
pub struct Classes(Mutex<HashMap<String, (String, Option<Instant>)>>);

impl Classes {
    /// How long it still is until a root is taken.
    fn wait(&self, root: &Root) -> Duration {
        let mut classes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if classes.len() >= REMEMBERED {
            classes.clear();
        }
        let known = classes.entry(root.uid.clone()).or_insert_with(|| (root.class.clone(), None));
        if known.0 != root.class {
            *known = (root.class.clone(), Some(Instant::now()));
        }
        known.1.map_or(Duration::ZERO, |since| LEASE.saturating_sub(since.elapsed()))
    }
}

/// Who works on what.
#[derive(Clone)]
pub struct Seats {
    /// The replicas.
    pub members: Members,
    classes: Arc<Classes>,
}

/// What a replica does about an object.
pub(super) enum Seat {
    /// A pass in this role, inside of the fence.
    Taken(Role, Fence),
    /// Nothing now; it looks again where that says when.
    Free(Action),
}

impl Seats {
    /// As these members share the work.
    pub fn new(members: Members) -> Self {
        Self { members, classes: Arc::default() }
    }

    /// The number of our share: another one after each change of who shares the work.
    pub(super) fn turn(&self) -> u64 {
        self.members.number()
    }

    /// What is to be done about a root; `root` is asked for anew before each write.
    pub(super) fn of(&self, root: impl Fn() -> Option<Root> + Send + Sync + 'static) -> Seat {
        let Some(now) = root() else { return Seat::Free(Action::await_change()) };
        if !self.members.is_alone() {
            let wait = self.classes.wait(&now);
            if wait > Duration::ZERO {
                return Seat::Free(Action::requeue(wait + Duration::from_millis(100)));
            }
        }
        match self.members.role(&now) {
            Role::Nothing => Seat::Free(Action::await_change()),
            role => Seat::Taken(role, Fence::new(&self.members, role, root)),
        }
    }
}

/// An object that belongs to a root of work.
pub(super) trait Rooted: ResourceExt + Resource<DynamicType = ()> + Sized {
    /// Whether what the object is worked on for can be read as it is stored now.
    fn has_readable_owners(&self, _ctx: &Context) -> bool {
        true
    }

    /// The root; `None` where it is not known yet.
    fn root(&self, ctx: &Context) -> Option<Root>;

    /// The object as it was last seen.
    fn latest(&self, _ctx: &Context) -> Option<Arc<Self>> {
        None
    }

    /// The trace in which it was found.
    fn found_in(&self) -> Option<Trace<'_>> {
        None
    }
}

/// The trace in which an object was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trace<'a> {
    /// A pass over the object is part of it.
    GoesOn(&'a str),
    /// It is at its end: a pass only refers to it.
    Ended(&'a str),
}

/// How long a trace goes on at most, until what was found is Ready.
const TRACED: Duration = Duration::from_hours(1);

/// The object is a root itself, or stands for the one with this UID.
pub(super) fn root_with<K: ResourceExt>(object: &K, uid: Option<String>) -> Root {
    let label = |key: &str| object.labels().get(key).cloned().unwrap_or_default();
    Root {
        uid: uid.or_else(|| object.uid()).unwrap_or_default(),
        namespace: object.namespace().unwrap_or_default(),
        watch_filter: label(WATCH_LABEL),
        class: label(SHARD_CLASS),
    }
}

impl Rooted for ClusterStack {
    fn root(&self, _ctx: &Context) -> Option<Root> {
        Some(root_with(self, None))
    }

    fn latest(&self, ctx: &Context) -> Option<Arc<Self>> {
        ctx.stacks.get(&ObjectRef::from_obj(self))
    }
}

impl Rooted for ClusterStackSource {
    fn root(&self, _ctx: &Context) -> Option<Root> {
        Some(root_with(self, None))
    }

    fn latest(&self, ctx: &Context) -> Option<Arc<Self>> {
        ctx.sources.get(&ObjectRef::from_obj(self))
    }
}

/// Whether the object itself and what it is worked on for can be read as they are stored now.
fn is_readable<K: Rooted>(object: &K, ctx: &Context) -> bool {
    let itself = ctx.unreadable.holds::<K>(&object.namespace().unwrap_or_default(), &object.name_any());
    !itself && object.has_readable_owners(ctx)
}

/// Whether the owners of this kind can be read.
fn are_owners_readable<K: Resource<DynamicType = ()>>(object: &impl ResourceExt, ctx: &Context) -> bool {
    let namespace = object.namespace().unwrap_or_default();
    let mut owners = object.owner_references().iter().filter(|owner| owner.kind == K::kind(&()));
    !owners.any(|owner| ctx.unreadable.holds::<K>(&namespace, &owner.name))
}

impl Rooted for ClusterStackRelease {
    fn has_readable_owners(&self, ctx: &Context) -> bool {
        are_owners_readable::<ClusterStack>(self, ctx)
    }

    /// That of its ClusterStack; where that is gone, what it was.
    fn root(&self, ctx: &Context) -> Option<Root> {
        if let Some(stack) = cluster_stack_release::stack_of(self, ctx) {
            return stack.root(ctx);
        }
        let owner = self.owner_references().iter().find(|owner| owner.kind == "ClusterStack");
        Some(root_with(self, owner.map(|owner| owner.uid.clone())))
    }

    fn latest(&self, ctx: &Context) -> Option<Arc<Self>> {
        ctx.stack_releases.get(&ObjectRef::from_obj(self))
    }

    fn found_in(&self) -> Option<Trace<'_>> {
        let place = self.annotations().get(TRACEPARENT)?;
        let is_young = self
            .creation_timestamp()
            .is_some_and(|made| Timestamp::now().duration_since(made.0).unsigned_abs() < TRACED);
        let is_ready = self.status.as_ref().is_some_and(|status| status.ready);
        Some(if is_young && !is_ready { Trace::GoesOn(place) } else { Trace::Ended(place) })
    }
}

impl Rooted for ProviderClusterStackRelease {
    fn has_readable_owners(&self, ctx: &Context) -> bool {
        are_owners_readable::<ClusterStackRelease>(self, ctx)
    }

    /// That of its ClusterStackRelease, once that was seen.
    fn root(&self, ctx: &Context) -> Option<Root> {
        match self.owner_references().iter().find(|owner| owner.kind == "ClusterStackRelease") {
            Some(owner) => {
                let place = ObjectRef::new(&owner.name).within(&self.namespace().unwrap_or_default());
                ctx.stack_releases.get(&place)?.root(ctx)
            }
            None => Some(root_with(self, None)),
        }
    }
}

impl Rooted for ClusterAddon {
    /// Its Cluster.
    fn root(&self, _ctx: &Context) -> Option<Root> {
        let owner = self.owner_references().iter().find(|owner| owner.kind == "Cluster");
        let uid = owner.map(|owner| owner.uid.clone()).or_else(|| self.spec.cluster_ref.uid.clone());
        Some(root_with(self, uid.filter(|uid| !uid.is_empty())))
    }
}

impl Rooted for ProviderNodeImageRelease {
    fn root(&self, _ctx: &Context) -> Option<Root> {
        Some(root_with(self, None))
    }
}

/// Why nothing is done about an object whose class nobody takes.
pub(super) fn unserved<K: ResourceExt>(object: &K) -> Trouble {
    let class = object.labels().get(SHARD_CLASS).cloned().unwrap_or_default();
    let message = if class.is_empty() {
        format!(
            "it has no label {SHARD_CLASS}, and every replica of the operator takes objects with one alone: start one without --shard-class, or set the label"
        )
    } else {
        format!(
            "no replica of the operator takes shard class {class:?}, so nothing is done about it: start one with --shard-class {class}, or correct the label {SHARD_CLASS}"
        )
    };
    Trouble::new(ErrorClass::Waiting, Reason::ShardClassUnserved, message)
}

impl Context {
    /// The same where a pass over the object begins.
    pub(super) fn seat_of_pass<K: Rooted + Send + Sync + 'static>(self: &Arc<Self>, object: &Arc<K>) -> Seat {
        // Before the seat, so that it is none that came after.
        let turn = self.seats.turn();
        let seat = self.seat(object);
        if matches!(seat, Seat::Taken(..)) && !self.seats.members.is_alone() {
            self.memory.begins(&object.uid().unwrap_or_default(), turn);
        }
        seat
    }

    /// What is to be done about an object.
    pub(super) fn seat<K: Rooted + Send + Sync + 'static>(self: &Arc<Self>, object: &Arc<K>) -> Seat {
        if !is_readable(&**object, self) {
            return Seat::Free(Action::requeue(WAITING));
        }
        let (ctx, object) = (Arc::clone(self), Arc::clone(object));
        self.seats.of(move || {
            let latest = object.latest(&ctx);
            let latest = latest.as_ref().unwrap_or(&object);
            if is_readable(&**latest, &ctx) { latest.root(&ctx) } else { None }
        })
    }
}
