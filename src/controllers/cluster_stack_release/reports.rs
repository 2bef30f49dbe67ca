//! What is said of a release: its status, events and metrics.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;

use super::super::changes::AT_WORK;
use super::super::delivery::about_to_apply;
use super::super::{Context, Doing, Error};
use super::Pass;
use crate::api::ClusterStackRelease;
use crate::api::condition::{self, Reason};
use crate::core::manifest::ObjectKey;
use crate::core::plan::{self, Action as Act, Plan, Step, Why};
use crate::core::status::{self, ReleaseFacts, StepState};
use crate::io::apply::Outcome;
use crate::io::report;

impl Pass<'_> {
    /// The inventory with what is about to be applied for the first time, so that a process that dies meanwhile leaves
    /// nothing behind that nobody knows of. `None` if there is nothing of that kind.
    pub(super) fn intent(plan: &Plan, facts: &ReleaseFacts) -> Option<ReleaseFacts> {
        let known = |key: &ObjectKey| facts.resources.iter().any(|row| plan::key_of(row) == *key);
        let new: Vec<&Step> =
            plan.steps.iter().filter(|s| matches!(s.action, Act::Apply { .. }) && !known(&s.manifest.key)).collect();
        if new.is_empty() {
            return None;
        }
        let mut intent = facts.clone();
        intent.resources.extend(new.into_iter().map(|step| about_to_apply(&step.manifest)));
        intent.applied = StepState::Running(Reason::Progressing, "applying objects".into());
        Some(intent)
    }

    /// Says what is being applied where that takes more than a moment.
    pub(super) async fn telling_of<T>(&self, intent: ReleaseFacts, mut sending: impl Future<Output = T> + Unpin) -> T {
        if let Ok(sent) = tokio::time::timeout(AT_WORK, &mut sending).await {
            return sent;
        }
        let (told, sent) = tokio::join!(write_status(self.release, self.ctx, intent), sending);
        if let Err(error) = told {
            // What came of it is told next, and that must not fail.
            tracing::debug!(release = %self.release.name_any(), %error, "it is not told that objects are being applied");
        }
        sent
    }

    /// Events, metrics and the memory of corrections.
    pub(super) async fn note(&self, plan: &Plan, outcomes: &BTreeMap<ObjectKey, Outcome>) {
        let (mut applied, mut failed, mut corrected, mut held) = (0, 0, 0, 0);
        let mut put_back = Vec::new();
        for step in &plan.steps {
            let key = &step.manifest.key;
            match (&step.action, outcomes.get(key)) {
                (action, _) if action.is_left_changed() => held += 1,
                (Act::Apply { why, .. }, Some(Outcome { result: Ok(_), .. })) => {
                    applied += 1;
                    if matches!(why, Why::Drifted { .. } | Why::Deleted) {
                        corrected += 1;
                        let what = plan::drift_message(why);
                        let uid = self.uid();
                        self.ctx.memory.corrected(&uid, key, &what, Timestamp::now());
                        put_back.push(format!("{key} was {what}"));
                    }
                }
                (Act::Apply { .. } | Act::Hold { .. }, _) => failed += 1,
                (Act::Unchanged { .. }, _) => {}
            }
        }
        for (action, count) in [("applied", applied), ("failed", failed), ("corrected", corrected), ("held", held)] {
            self.ctx.metrics.count(action, count);
        }
        for key in outcomes.values().filter(|outcome| outcome.replaced).map(|outcome| &outcome.key) {
            let note = format!("made anew: {key}, of which a field that can't be changed did");
            self.ctx.events.say(self.release, Reason::Replaced, &note).await;
        }
        for what in put_back {
            tracing::info!(release = %self.release.name_any(), what, "put back");
            self.ctx.events.say(self.release, Reason::DriftCorrected, &format!("put back: {what}")).await;
        }
    }
}

/// Writes the status if it says something new, and an event where readiness changed.
pub(super) async fn write_status(
    release: &ClusterStackRelease,
    ctx: &Context,
    facts: ReleaseFacts,
) -> Result<(), Error> {
    if ctx.cancel.is_cancelled() {
        // What a pass found that was ended from outside says nothing.
        return Ok(());
    }
    let previous = release.status.clone().unwrap_or_default();
    let status = status::release_status(&previous, facts, Timestamp::now());
    let written = report::status(&ctx.clients.own(), release, release.status.as_ref(), &status)
        .await
        .doing(|| format!("writing the status of ClusterStackRelease {}", release.name_any()))?;
    // The definition gives a new one a status without conditions.
    let unready = match (previous.conditions.is_empty(), release.creation_timestamp()) {
        (true, Some(made)) => status::ready_after(made.0, &status.conditions),
        _ => status::unready_for(&previous.conditions, &status.conditions),
    };
    if let (true, Some(unready)) = (written, unready) {
        ctx.metrics.release_unready_seconds.observe(unready);
    }
    let turned = condition::readiness_turned(&previous.conditions, &status.conditions);
    if let Some(now) = turned.filter(|_| written) {
        tracing::info!(namespace = release.namespace().unwrap_or_default(), release = %release.name_any(), ready = now.status, reason = now.reason, says = now.message, "ClusterStackRelease");
        let word = Reason::named(&now.reason);
        // The first word, if it is a good one, is said by the ClusterStack.
        let is_told = previous.conditions.is_empty() && now.is_true();
        if let Some(word) = word.filter(|word| *word != Reason::Progressing && !is_told) {
            ctx.events.say(release, word, &now.message).await;
        }
    }
    Ok(())
}
