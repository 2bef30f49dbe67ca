//! Runs the `test` hooks of addon charts when somebody asks for it, as `helm test` does.

use serde_json::json;

use super::super::Error;
use super::deliver::{Chart, Rendered};
use super::helm_hooks::{Ran, chart_of};
use super::work::{Work, of_stage};
use crate::api::TEST_AT;
use crate::api::cluster_addon::{TestsPhase, TestsStatus};
use crate::api::cluster_stack_release::ResourceStatus;
use crate::api::condition::{MAX_MESSAGE, Reason, cut};
use crate::core::addon::helm_hooks::{TEST, entry, find};
use crate::core::manifest::short_digest;
use crate::core::retry::ErrorClass;
use crate::core::status::{AddonFacts, StepState, Trouble};

impl Rendered {
    /// Its tests as the hooks of a chart, for one request: another one runs them anew.
    fn tested(&self, stage: &str, requested: &str) -> Chart {
        let chart = self.chart(stage);
        let run = short_digest(&json!([chart.rendering, requested]));
        Chart { run, hooks: self.tests.clone(), ..chart }
    }
}

impl Work<'_> {
    /// Runs the tests of these charts as far as they come now. They hold nothing else up.
    pub(super) async fn test(&mut self, charts: &[String], facts: &mut AddonFacts) -> Result<(), Error> {
        let annotations = self.pass.addon.metadata.annotations.as_ref();
        let Some(requested) = annotations.and_then(|all| all.get(TEST_AT)).map(|text| cut(text, MAX_MESSAGE)) else {
            return Ok(());
        };
        let known = facts.tests.as_ref().filter(|tests| tests.requested == requested);
        if known.is_some_and(|tests| tests.phase != TestsPhase::Running) {
            return Ok(());
        }
        facts.tests = Some(TestsStatus { requested: requested.clone(), ..TestsStatus::default() });
        let (phase, message) = self.run_tests(charts, &requested, facts).await?;
        if phase != TestsPhase::Running {
            let reason = if phase == TestsPhase::Failed { Reason::HelmTestFailed } else { Reason::HelmTestSucceeded };
            self.pass.ctx.events.say(self.pass.addon, reason, &message).await;
        }
        facts.tests = Some(TestsStatus { requested, phase, message: cut(&message, MAX_MESSAGE) });
        Ok(())
    }

    async fn run_tests(
        &mut self,
        charts: &[String],
        requested: &str,
        facts: &mut AddonFacts,
    ) -> Result<(TestsPhase, String), Error> {
        let is_synced = facts.resources.iter().all(|row| row.status == ResourceStatus::Synced);
        if !is_synced || !matches!(facts.applied, StepState::Done(_)) {
            return Ok((TestsPhase::Running, "waiting for what is tested to be applied".to_owned()));
        }
        let chart = |name: &String| self.rendered.get(name).map(|rendered| rendered.tested(name, requested));
        let charts: Vec<Chart> = charts.iter().filter_map(chart).filter(|chart| !chart.hooks.is_empty()).collect();
        for chart in &charts {
            let runs: Vec<_> = chart.hooks.iter().map(|hook| entry(hook, TEST, &chart.run)).collect();
            let known = &mut chart_of(chart, facts).hooks;
            known.retain(|run| run.event != TEST || find(&runs, run).is_some());
            let of_chart = |message: String| {
                of_stage(&chart.name, Trouble::new(ErrorClass::Waiting, Reason::WaitingForHelmHook, message)).message
            };
            match self.run_event(chart, TEST, facts).await? {
                Ran::Done => {}
                Ran::Waits(message) => return Ok((TestsPhase::Running, of_chart(message))),
                Ran::Failed(message) => return Ok((TestsPhase::Failed, of_chart(message))),
            }
        }
        let tests: usize = charts.iter().map(|chart| chart.hooks.len()).sum();
        let message = match tests {
            0 => "no chart has a test hook".to_owned(),
            1 => "1 test succeeded".to_owned(),
            _ => format!("{tests} tests succeeded"),
        };
        Ok((TestsPhase::Succeeded, message))
    }
}
