//! What goes from a workload cluster: the charts of delete stages, and what no stage wants any more.

use std::collections::BTreeSet;

use super::super::Error;
use super::super::delivery::{leftover, targets};
use super::super::turns::beside_its_turn;
use super::deliver::{Chart, Delivered};
use super::helm_hooks::Ran;
use super::work::{Holds, Work, of_stage};
use crate::api::cluster_addon::{ChartStatus, HelmHookStatus};
use crate::api::cluster_stack_release::{Resource as Row, ResourceStatus};
use crate::api::condition::Reason;
use crate::core::addon::helm_hooks::{
    Change, begun, is_going, is_hook, is_under_way, may_have_hooks, rendering_of_run,
};
use crate::core::addon::stages::{applied_by_some_hook, untouched, wanted};
use crate::core::manifest::ObjectKey;
use crate::core::plan::{self, key_of};
use crate::core::retry::ErrorClass;
use crate::core::status::{AddonFacts, StepState, Trouble, row_name};
use crate::io::apply;
use crate::io::observe::Live;

impl Work<'_> {
    /// Deletes the objects of a stage that no other one wants, between its Helm hooks; whether they are gone.
    pub(super) async fn remove(
        &mut self,
        stage: &str,
        delivered: &Delivered,
        facts: &mut AddonFacts,
    ) -> Result<Holds, Error> {
        let of_stage: Vec<Row> = facts.resources.iter().filter(|row| row.stage == stage).cloned().collect();
        let is_of_stage = |key: &&ObjectKey| of_stage.iter().any(|row| key_of(row) == **key);
        if let Some(key) = delivered.plan.prune.unread.iter().find(is_of_stage) {
            // It may be what the rest is needed for.
            let error = delivered.live.unreadable.get(key).map(|error| apply::refusal(error).message);
            let message = format!("nothing is deleted while {key} can't be read: {}", error.unwrap_or_default());
            return Ok(Holds::NotYet(message));
        }
        let mut doomed: Vec<ObjectKey> = delivered.plan.prune.delete.iter().filter(is_of_stage).cloned().collect();
        if let (false, Some(trouble)) = (doomed.is_empty(), &self.missing) {
            // They may have moved to it.
            return Ok(Holds::NotYet(format!("nothing is deleted while {}", trouble.message)));
        }
        // Before the Cluster goes nothing is applied any more.
        if !doomed.is_empty() && !self.pass.cluster.deleting {
            match self.held_by_others(Some(stage), facts).await {
                Ok(kept) => doomed.retain(|key| !kept.contains(key)),
                Err(trouble) => {
                    return Ok(Holds::NotYet(format!("nothing is deleted while {}", trouble.message)));
                }
            }
        }
        let deletes = Change::Delete.as_str();
        let recorded = facts.charts.iter().find(|chart| chart.name == stage);
        let has_begun = recorded.is_some_and(|chart| chart.running == deletes);
        // A chart may have nothing but hooks.
        if doomed.is_empty() && !may_have_hooks(recorded) {
            facts.charts.retain(|chart| chart.name != stage);
            return Ok(Holds::Yes);
        }
        let mut chart = match self.chart_with_hooks(stage, facts).await {
            Ok(chart) => chart,
            Err(trouble) => return Ok(Holds::NotYet(trouble.message)),
        };
        // Before the Cluster goes there is no time to wait for what runs for a change of the chart.
        let is_end = self.pass.cluster.deleting;
        let recorded = facts.charts.iter().find(|chart| chart.name == stage);
        chart.run = rendering_of_run(recorded, Change::Delete, &chart.inputs, &chart.rendering);
        let begun = begun(&chart.inputs, &chart.run);
        let hooks = recorded.filter(|_| !is_end).map(|chart| chart.hooks.iter().filter(|run| is_under_way(run)));
        let hooks: Vec<HelmHookStatus> = hooks.into_iter().flatten().cloned().collect();
        if (!chart.hooks.is_empty() || !hooks.is_empty()) && !has_begun {
            facts.charts.retain(|chart| chart.name != stage);
            let (name, running) = (stage.to_owned(), deletes.to_owned());
            facts.charts.push(ChartStatus { name, running, begun, hooks, ..ChartStatus::default() });
        }
        if !is_end && let Some(Ran::Waits(message)) = self.finish_earlier(&chart, Change::Delete, facts).await? {
            return Ok(Holds::NotYet(message));
        }
        if let Some(holds) = self.run_for_removal(&chart, &Change::Delete.before(), facts).await? {
            return Ok(holds);
        }
        if !doomed.is_empty() {
            let rows: Vec<Row> = of_stage.into_iter().filter(|row| doomed.contains(&key_of(row))).collect();
            if !chart.hooks.is_empty() {
                // Once the objects are gone, the record alone tells that hooks are to run.
                self.keep(facts, stage, &Change::Delete.after()).await?;
            }
            // What comes back is new.
            facts.charts.retain(|chart| chart.name != stage || !chart.running.is_empty());
            let failed = self.delete(&rows, &delivered.live).await;
            let names: Vec<String> = rows.iter().take(5).map(row_name).collect();
            return Ok(Holds::NotYet(match failed {
                Some(refusal) => refusal,
                None => format!("waiting for {} to go", names.join(", ")),
            }));
        }
        if let Some(holds) = self.run_for_removal(&chart, &Change::Delete.after(), facts).await? {
            return Ok(holds);
        }
        facts.charts.retain(|chart| chart.name != stage);
        Ok(Holds::Yes)
    }

    /// The chart of a stage, for the hooks around its removal alone. Before its Cluster goes its objects go in any case: what
    /// it is rendered from may have been deleted together with the Cluster.
    async fn chart_with_hooks(&mut self, stage: &str, facts: &mut AddonFacts) -> Result<Chart, Trouble> {
        let is_end = self.pass.cluster.deleting;
        let (name, rendering, inputs, run) = (stage.to_owned(), String::new(), String::new(), String::new());
        let without = Chart { name, rendering, inputs, run, hooks: Vec::new() };
        if is_end && !may_have_hooks(facts.charts.iter().find(|chart| chart.name == stage)) {
            return Ok(without);
        }
        match self.render(stage).await {
            Ok(rendered) => Ok(rendered.chart(stage)),
            Err(trouble) if is_end && trouble.class != ErrorClass::Transient => {
                let Trouble { reason, message, .. } = of_stage(stage, trouble);
                let note = format!("{message}; its objects are deleted before the Cluster without its Helm hooks");
                self.pass.tell(reason, &note).await;
                // Without a record it is not asked for again.
                facts.charts.retain(|chart| chart.name != stage);
                Ok(without)
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// What the charts hold that stages apply whose turn was not yet, or is in another hook, but for this one. What is wanted
    /// by now the plan knows.
    async fn held_by_others(&mut self, but: Option<&str>, facts: &AddonFacts) -> Result<BTreeSet<ObjectKey>, Trouble> {
        let applied = wanted(&facts.stages);
        let mut kept = BTreeSet::new();
        for chart in applied_by_some_hook(self.config, &facts.stages) {
            if but == Some(chart) || applied.iter().any(|name| name == chart) {
                continue;
            }
            let rendered = self.render(chart).await?;
            let (desired, _) = self.delivery.desired(rendered.manifests).await;
            kept.extend(desired.into_iter().map(|object| object.manifest.key));
        }
        Ok(kept)
    }

    /// Runs the hooks of an event; what stands in the way.
    async fn run_for_removal(
        &mut self,
        chart: &Chart,
        event: &str,
        facts: &mut AddonFacts,
    ) -> Result<Option<Holds>, Error> {
        Ok(match self.run_event(chart, event, facts).await? {
            Ran::Done => None,
            Ran::Waits(message) => Some(Holds::NotYet(message)),
            Ran::Failed(message) => {
                facts.stage_trouble = Some((Reason::HelmHookFailed, message.clone()));
                Some(Holds::NotYet(message))
            }
        })
    }

    /// Deletes objects; the first refusal.
    async fn delete(&self, rows: &[Row], live: &Live) -> Option<String> {
        let client = &self.workload.client;
        let (targets, unasked) = targets(rows, client, &self.workload.kinds).await;
        let unasked = unasked.iter().next();
        let mut refused = unasked.map(|(key, error)| format!("{key}: {}", apply::refusal(error).message));
        for target in targets {
            let Some(object) = live.objects.get(&target.key).filter(|object| !is_going(object)) else { continue };
            match beside_its_turn(apply::delete(client, &target.kind, &target.key, object)).await {
                Ok(()) => {
                    self.pass.ctx.metrics.count("pruned", 1);
                    let note = format!("pruned {}", target.key);
                    self.pass.ctx.events.say(self.pass.addon, Reason::Pruned, &note).await;
                }
                Err(refusal) => refused = refused.or(Some(format!("{}: {}", target.key, refusal.message))),
            }
        }
        refused
    }

    /// Deletes what no stage of any hook has any more, once all that the release has is applied and healthy.
    pub(super) async fn prune(&mut self, delivered: &Delivered, facts: &mut AddonFacts) -> Result<(), Error> {
        let plan::Prune { delete, retain, unread, .. } = &delivered.plan.prune;
        let recorded: Vec<Row> = facts.resources.iter().chain(&facts.retained).cloned().collect();
        // What was refused before, or can't be read, stays known until it is gone.
        facts.retained.retain(|row| delete.contains(&key_of(row)) || unread.contains(&key_of(row)));
        facts.retained.extend(leftover(retain, &delivered.live, &recorded));
        facts.resources.retain(|row| !retain.contains(&key_of(row)));
        let by_some_hook = applied_by_some_hook(self.config, &facts.stages);
        facts.charts.retain(|chart| by_some_hook.contains(chart.name.as_str()));
        if delete.is_empty() || !delivered.hooks.is_empty() {
            return Ok(());
        }
        let is_wanted = |row: &&Row| !delete.contains(&key_of(row)) && !unread.contains(&key_of(row));
        let settled = |row: &Row| row.status == ResourceStatus::Synced && row.health == "Current";
        if !facts.resources.iter().filter(is_wanted).all(settled) {
            return Ok(());
        }
        let mut kept = match self.held_by_others(None, facts).await {
            Ok(kept) => kept,
            // What it holds is not known: nothing goes.
            Err(trouble) => {
                facts.templated = StepState::Failed(trouble);
                return Ok(());
            }
        };
        let (untouched, applied) = (untouched(&facts.stages), wanted(&facts.stages));
        let of_untouched = facts.resources.iter().filter(|row| untouched.contains(row.stage.as_str()));
        kept.extend(of_untouched.map(key_of));
        // What a chart makes where a lookup finds none is found by the same lookup from then on.
        let is_looked_up = |row: &&Row| {
            let chart = self.rendered.get(&row.stage).filter(|_| applied.contains(&row.stage));
            chart.is_some_and(|rendered| rendered.looked_up.contains(&key_of(row)))
        };
        kept.extend(facts.resources.iter().filter(is_looked_up).map(key_of));
        // What became a hook is of no inventory any more.
        let is_of_hook = |key: &ObjectKey| delivered.live.objects.get(key).is_some_and(is_hook);
        let became_hook = |row: &Row| delete.contains(&key_of(row)) && is_of_hook(&key_of(row));
        facts.resources.retain(|row| !became_hook(row));
        facts.retained.retain(|row| !became_hook(row));
        let doomed: Vec<Row> = leftover(delete, &delivered.live, &recorded)
            .into_iter()
            .filter(|row| !kept.contains(&key_of(row)) && !is_of_hook(&key_of(row)))
            .collect();
        let refused = self.delete(&doomed, &delivered.live).await;
        let is_doomed = |row: &Row| doomed.iter().any(|gone| key_of(gone) == key_of(row));
        facts.resources.retain(|row| !is_doomed(row));
        facts.retained.retain(|row| !is_doomed(row));
        if let Some(refused) = refused {
            let row =
                |row: &Row| Row { reason: Some(Reason::FailedToDeleteObjects), error: refused.clone(), ..row.clone() };
            facts.retained.extend(doomed.iter().map(row));
        }
        Ok(())
    }
}
