//! Who asked for a source to be read now: by the annotation of an object, or from outside. That is handled when the source has said
//! something since then, however long it takes.

use std::time::Duration;

use kube::{Resource, ResourceExt};
use tokio::time::Instant;

use super::pokes::{self, Poked};
use super::{Context, reconcile_at};
use crate::io::source::poller::Age;

/// What is asked of the source of an object.
pub(super) struct Asked<'a> {
    ctx: &'a Context,
    uid: String,
    object: Poked,
    /// The annotation as it is, where that is not handled yet.
    annotation: Option<String>,
    /// Somebody asked from outside.
    pub(super) is_poked: bool,
    /// What is heard since then is an answer to all of it; `None` where nobody asks.
    since: Option<Instant>,
}

impl<'a> Asked<'a> {
    /// What is asked of an object whose status says that `handled` was.
    pub(super) fn of<K: Resource<DynamicType = ()>>(object: &K, handled: &str, ctx: &'a Context) -> Self {
        let (uid, place, now) = (object.uid().unwrap_or_default(), pokes::of(object), reconcile_at(object));
        let annotation = (now != handled).then_some(now);
        let noted = annotation.as_ref().map(|now| ctx.memory.asked_since(&uid, now));
        if noted.is_none() {
            ctx.memory.asks_no_more(&uid);
        }
        let poked = ctx.pokes.since(&place);
        Self { ctx, uid, object: place, annotation, is_poked: poked.is_some(), since: noted.max(poked) }
    }

    /// Whether somebody asks.
    pub(super) fn is_any(&self) -> bool {
        self.since.is_some()
    }

    /// How old a list may be: `max`, but `least` for who asks, or from after that.
    pub(super) fn age(&self, max: Duration, least: Duration) -> Age {
        Age { max: if self.is_any() { least } else { max }, since: self.since }
    }

    /// Notes that the source answered, and sets what was handled by that. Whether somebody asked for more meanwhile.
    pub(super) fn answered(&self, handled: &mut String) -> bool {
        let has_more = self.is_poked && self.ctx.pokes.answered(&self.object);
        let Some(now) = &self.annotation else { return has_more };
        if let Some(heard) = self.ctx.memory.answered(&self.uid) {
            *handled = heard;
        }
        has_more || handled != now
    }
}
