//! When a release is looked at again, and when what was refused is sent again.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use super::super::{Action, Context, spread};
use super::Pass;
use crate::api::cluster_stack_release::ResourceStatus;
use crate::api::condition::Reason;
use crate::api::{ClusterStack, ClusterStackRelease};
use crate::core::manifest::ObjectKey;
use crate::core::plan::Plan;
use crate::core::retry::{self, ErrorClass};
use crate::core::status::{ReleaseFacts, StepState, row_class};
use crate::io::apply::Outcome;

/// Shortest pause before a certificate that is due is made anew.
const SOONEST_RENEWAL: Duration = Duration::from_secs(10);

impl Pass<'_> {
    /// Whether what was refused before is sent again: somebody asks for it, which ends fights too, or it is due.
    pub(super) fn retries_refused(&self, facts: &ReleaseFacts) -> bool {
        let asked = self.asked != facts.reconcile_at;
        if asked {
            self.ctx.memory.end_fights(&self.uid());
        }
        self.ctx.memory.retries_refused(&self.uid()) || asked
    }
}

/// Whether objects were refused by what the API server knew of kinds of which this pass has changed definitions: it may take a
/// moment to know more, and tells nobody when it does.
pub(super) fn may_know_more_soon(plan: &Plan, outcomes: &BTreeMap<ObjectKey, Outcome>) -> bool {
    let is_definition = |key: &ObjectKey| plan.steps.iter().any(|step| step.manifest.key == *key && step.wave == 0);
    let defined = outcomes.values().any(|outcome| outcome.result.is_ok() && is_definition(&outcome.key));
    let by_kind = |outcome: &Outcome| {
        outcome.result.as_ref().is_err_and(|refusal| matches!(refusal.reason, Reason::Invalid | Reason::NoKindMatch))
    };
    defined && outcomes.values().any(by_kind)
}

/// When to come back without an event.
pub(super) fn next(facts: &ReleaseFacts, stack: &ClusterStack, release: &ClusterStackRelease, ctx: &Context) -> Action {
    let pause = ctx.interval(stack.spec.interval.as_deref());
    let steps = [Some(&facts.downloaded), facts.provider.as_ref(), Some(&facts.templated), Some(&facts.applied)];
    let trouble = steps.into_iter().flatten().find_map(StepState::trouble).map(|trouble| trouble.class);
    let rows = facts.resources.iter().filter(|row| row.status == ResourceStatus::NotSynced).map(row_class).min();
    let uid = release.uid().unwrap_or_default();
    let unsettled = facts.unsettled.then_some(ErrorClass::Transient);
    match trouble.or(unsettled).or(rows) {
        Some(ErrorClass::Transient) => Action::requeue(ctx.after(ErrorClass::Transient, &uid)),
        Some(ErrorClass::Waiting) => Action::requeue(spread(retry::WAITING.min(pause))),
        _ => {
            ctx.memory.succeeded(&uid);
            let due = facts.renew.map(|at| at.duration_since(Timestamp::now()));
            match due.map(|left| Duration::try_from(left).unwrap_or_default().max(SOONEST_RENEWAL)) {
                Some(left) if left < pause => Action::requeue(left),
                _ => Action::requeue(spread(pause)),
            }
        }
    }
}
