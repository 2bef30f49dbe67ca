//! Stages that are left although they are not done: somebody asked for it, or their deadline passed.

use jiff::Timestamp;

use super::Pass;
use crate::api::SKIP_STAGE;
use crate::api::cluster_addon::StageOutcome;
use crate::api::condition::Reason;
use crate::core::addon::stages::{self, AtDeadline};
use crate::core::addon_config::AddonConfig;
use crate::core::status::AddonFacts;
use crate::io::events::reference;

/// Longest entry of `status.skipped`, in bytes.
const LONGEST_WORD: usize = 1024;
/// Words of the annotation that are told of, and remembered, at most: `status.skipped` has room for 256.
const MOST_WORDS: usize = 64;

impl Pass<'_> {
    /// Passes the stages whose turn it is and that an annotation names, each once in a release.
    pub(super) async fn skip(&self, facts: &mut AddonFacts) {
        let of_addon = self.addon.metadata.annotations.as_ref().and_then(|all| all.get(SKIP_STAGE));
        let asked =
            stages::asked_to_skip([self.cluster.skips.as_str()].into_iter().chain(of_addon.map(String::as_str)));
        // What is no longer asked for may be asked for anew.
        facts.skipped.retain(|name| asked.contains(name));
        let AddonFacts { stages, release, skipped, .. } = facts;
        for title in stages::skip(stages, release, &asked, skipped, Timestamp::now()) {
            self.tell(Reason::StageSkipped, &format!("{title} of {release} was skipped, as {SKIP_STAGE} asks")).await;
        }
    }

    /// Tells, once, of what an annotation asks to pass and nobody ever can.
    pub(super) async fn refuse_skips(&self, config: &AddonConfig, facts: &mut AddonFacts) {
        let of_addon = self.addon.metadata.annotations.as_ref().and_then(|all| all.get(SKIP_STAGE));
        let asked =
            stages::asked_to_skip([self.cluster.skips.as_str()].into_iter().chain(of_addon.map(String::as_str)));
        for (word, why) in stages::unfit_skips(&asked, (&facts.release, &facts.stages), config) {
            if facts.skipped.len() >= MOST_WORDS {
                return;
            }
            if word.len() <= LONGEST_WORD && !facts.skipped.contains(&word) {
                self.tell(Reason::StageUnknown, &format!("{SKIP_STAGE} names {word:?}: {why}")).await;
                facts.skipped.push(word);
            }
        }
    }

    /// Looks at the deadline of the stage whose turn it is and that waits for `why`; whether it is left.
    pub(super) async fn leaves(&self, config: &AddonConfig, why: &str, facts: &mut AddonFacts) -> bool {
        let Some(turn) = stages::current(&facts.stages) else { return false };
        let now = Timestamp::now();
        let stage = &facts.stages[turn];
        let title = stages::title(&facts.stages, turn);
        match stages::at_deadline(stage, stages::definition(config, stage), why, now) {
            AtDeadline::InTime => false,
            AtDeadline::Blocks(message) => {
                let before = self.addon.status.as_ref().and_then(|status| status.stages.get(turn));
                if !before.is_some_and(stages::is_told_overdue) {
                    self.tell_cluster(Reason::StageDeadlineExceeded, &format!("{title}: {message}")).await;
                }
                let phase = stage.phase;
                stages::enter(&mut facts.stages[turn], phase, &message, now);
                facts.stage_trouble = Some((Reason::StageDeadlineExceeded, message));
                false
            }
            AtDeadline::Passes(message) => {
                stages::leave(&mut facts.stages[turn], StageOutcome::DeadlinePassed, &message, now);
                facts.stage_trouble = None;
                let note = format!("{title}: {message}; it is left, as onDeadline says");
                self.tell(Reason::StageDeadlineExceeded, &note).await;
                true
            }
        }
    }

    /// Tells on the ClusterAddon and on its Cluster.
    pub(super) async fn tell(&self, reason: Reason, note: &str) {
        self.ctx.events.say(self.addon, reason, note).await;
        self.tell_cluster(reason, note).await;
    }

    async fn tell_cluster(&self, reason: Reason, note: &str) {
        self.ctx.events.say_of(&reference(self.object), reason, note).await;
    }
}
