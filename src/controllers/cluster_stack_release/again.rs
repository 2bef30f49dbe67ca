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
use crate::core::manifest::{DEFINITIONS, ObjectKey, wave};
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

/// Whether objects were refused by what the API server knew of kinds while this pass changed definitions: it may take a moment to
/// know more, and tells nobody when it does.
pub(super) fn may_know_more_soon(outcomes: &BTreeMap<ObjectKey, Outcome>) -> bool {
    let has_defined = |outcome: &Outcome| outcome.result.is_ok() && wave(&outcome.key) == DEFINITIONS;
    let refuses = |outcome: &Outcome| {
        outcome.result.as_ref().is_err_and(|refusal| matches!(refusal.reason, Reason::Invalid | Reason::NoKindMatch))
    };
    outcomes.values().any(has_defined) && outcomes.values().any(refuses)
}

/// When to come back without an event.
pub(super) fn next(facts: &ReleaseFacts, stack: &ClusterStack, release: &ClusterStackRelease, ctx: &Context) -> Action {
    let interval = ctx.interval(stack.spec.interval.as_deref());
    // Not everything that uses a release tells when it does no more.
    let pause = if facts.deletion.is_some() { interval.min(retry::WAITING) } else { interval };
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::core::manifest::Manifest;
    use crate::io::apply::Refusal;

    #[test]
    fn what_is_refused_while_definitions_change_is_tried_once_more() {
        let definition = ("apiextensions.k8s.io/v1", "CustomResourceDefinition");
        let (class, namespace) = (("cluster.x-k8s.io/v1beta1", "ClusterClass"), ("v1", "Namespace"));
        let (done, invalid, unknown) = (None, Some(Reason::Invalid), Some(Reason::NoKindMatch));
        for (outcomes, expected) in [
            (vec![], false),
            (vec![(definition, done)], false),
            (vec![(class, invalid)], false),
            (vec![(definition, done), (class, done)], false),
            (vec![(definition, done), (class, invalid)], true),
            (vec![(definition, done), (class, unknown)], true),
            (vec![(definition, done), (class, Some(Reason::Forbidden))], false),
            (vec![(definition, invalid), (class, invalid)], false),
            (vec![(namespace, done), (class, invalid)], false),
        ] {
            let said = format!("{outcomes:?}");
            let outcome = |((version, kind), refused): ((&str, &str), Option<Reason>)| {
                let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}});
                let key = Manifest::from_value(object.clone()).unwrap().key;
                let refusal = |reason| Refusal { reason, message: String::new() };
                let result = refused.map_or(Ok(object), |reason| Err(refusal(reason)));
                (key.clone(), Outcome { key, result, replaced: false, is_there: false })
            };
            let outcomes = outcomes.into_iter().map(outcome).collect();
            assert_eq!(may_know_more_soon(&outcomes), expected, "{said}");
        }
    }
}
