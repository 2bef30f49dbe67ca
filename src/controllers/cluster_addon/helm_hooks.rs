//! Runs the Helm hooks of addon charts in a workload cluster.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use serde_json::Value;

use super::super::Error;
use super::deliver::{Chart, Want};
use super::work::{Work, of_stage};
use crate::api::cluster_addon::{ChartStatus, HelmHookPhase, HelmHookStatus};
use crate::api::condition::Reason;
use crate::api::{CSO_OWNED_LABEL, FIELD_MANAGER, RECONCILE_AT, TEST_AT};
use crate::core::addon::helm_hooks::{
    self as decide, Change, HelmHook, Policy, Step, TEST, entry, find, is_going, is_of_run, is_under_way, of_event,
    record,
};
use crate::core::inventory::was_applied;
use crate::core::manifest::label;
use crate::core::ownership::Owner;
use crate::core::plan::{Action as Act, Plan};
use crate::core::retry::ErrorClass;
use crate::core::status::{AddonFacts, StepState, Trouble};
use crate::io::apply::{self, Refusal};
use crate::io::kinds::Kind;
use crate::io::observe::{self, Live};

/// Most steps of a hook in one pass: deleted, created, looked at, and each again.
const STEPS: usize = 12;

/// What came of hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ran {
    /// All of them are done.
    Done,
    /// One is not finished; which.
    Waits(String),
    /// One failed; why.
    Failed(String),
}

/// Records which of the charts with hooks change, and how; all that do.
pub(super) fn begin(
    want: &mut Want,
    plan: &Plan,
    live: &Live,
    owner: &Owner,
    facts: &mut AddonFacts,
) -> BTreeMap<String, Change> {
    let mut changes = BTreeMap::new();
    let mut charts = std::mem::take(&mut want.charts);
    let (key, value) = CSO_OWNED_LABEL;
    for chart in &mut charts {
        let recorded = facts.charts.iter().find(|known| known.name == chart.name);
        let objects: Vec<_> = want.behind_hooks(&chart.name).collect();
        let is_ours = |object: &Value| owner.is_of(object) || label(object, key) == Some(value);
        let is_there = facts.resources.iter().any(|row| row.stage == chart.name && was_applied(row))
            || objects.iter().any(|key| live.objects.get(key).is_some_and(is_ours));
        let is_unknown = !recorded.is_some_and(decide::is_telling);
        let is_as_wanted = |step: &&crate::core::plan::Step| matches!(step.action, Act::Unchanged { .. });
        let of_chart = plan.steps.iter().filter(|step| objects.contains(&&step.manifest.key));
        // The record was lost, or never made, and nothing is to be done: that is no upgrade.
        if is_unknown && is_there && of_chart.clone().all(|step| is_as_wanted(&step)) {
            complete(chart, facts);
            // Those of a removal that was given up are of no use.
            chart_of(chart, facts).hooks.retain(|run| run.event == TEST);
            continue;
        }
        let Some(change) = decide::change(recorded, &chart.rendering, is_there) else {
            // It renders as it did before: this release has it, too.
            let release = facts.release.clone();
            chart_of(chart, facts).release = release;
            continue;
        };
        changes.insert(chart.name.clone(), change);
        if chart.hooks.is_empty() && !recorded.is_some_and(|known| known.hooks.iter().any(is_under_way)) {
            // Nothing runs: it is recorded when it is applied.
            continue;
        }
        chart.run = decide::rendering_of_run(recorded, change, &chart.inputs, &chart.rendering);
        let known = chart_of(chart, facts);
        change.as_str().clone_into(&mut known.running);
        known.begun = decide::begun(&chart.inputs, &chart.run);
        let runs = decide::runs(&chart.hooks, change, &chart.run);
        // What is under way goes to its end, whatever the chart renders to by now.
        known.hooks.retain(|run| run.event == TEST || is_under_way(run) || find(&runs, run).is_some());
    }
    want.charts = charts;
    changes
}

pub(super) fn chart_of<'a>(chart: &Chart, facts: &'a mut AddonFacts) -> &'a mut ChartStatus {
    let at = facts.charts.iter().position(|known| known.name == chart.name).unwrap_or_else(|| {
        facts.charts.push(ChartStatus { name: chart.name.clone(), ..ChartStatus::default() });
        facts.charts.len() - 1
    });
    &mut facts.charts[at]
}

/// Records that a chart is applied with all of its hooks.
pub(super) fn complete(chart: &Chart, facts: &mut AddonFacts) {
    let release = facts.release.clone();
    decide::complete(chart_of(chart, facts), (&release, &chart.rendering), &chart.hooks);
}

/// Whether the objects of a chart wait for its hooks.
pub(super) fn is_held(chart: &Chart, change: Change, facts: &AddonFacts) -> bool {
    let runs = decide::runs(&chart.hooks, change, &chart.run);
    !decide::earlier(records(chart, facts), &runs).is_empty()
        || !decide::all_done(records(chart, facts), &chart.hooks, &change.before(), &chart.run)
}

/// The charts whose objects wait for hooks, and what to say of it.
pub(super) fn held(want: &Want, changes: &BTreeMap<String, Change>, facts: &AddonFacts) -> BTreeMap<String, String> {
    let held = want.charts.iter().filter_map(|chart| {
        let change = changes.get(&chart.name)?;
        let message = format!("waiting for the {} hooks of its chart", change.before());
        is_held(chart, *change, facts).then(|| (chart.name.clone(), message))
    });
    held.collect()
}

/// What the hooks say of the whole apply.
pub(super) fn summary(hooks: &BTreeMap<String, Ran>) -> StepState {
    let mut state = StepState::Done(String::new());
    for (chart, ran) in hooks {
        match ran {
            Ran::Failed(message) => {
                let trouble = Trouble::new(ErrorClass::Invalid, Reason::HelmHookFailed, message);
                return StepState::Failed(of_stage(chart, trouble));
            }
            Ran::Waits(message) => {
                let trouble = Trouble::new(ErrorClass::Waiting, Reason::WaitingForHelmHook, message);
                state = StepState::Running(Reason::WaitingForHelmHook, of_stage(chart, trouble).message);
            }
            Ran::Done => {}
        }
    }
    state
}

pub(super) fn records<'a>(chart: &Chart, facts: &'a AddonFacts) -> &'a [HelmHookStatus] {
    facts.charts.iter().find(|known| known.name == chart.name).map(|known| known.hooks.as_slice()).unwrap_or_default()
}

impl Work<'_> {
    /// Runs the hooks of an event as far as they come now, and deletes their objects as their policies say.
    pub(super) async fn run_event(&mut self, chart: &Chart, event: &str, facts: &mut AddonFacts) -> Result<Ran, Error> {
        let hooks = of_event(&chart.hooks, event);
        let mut ran = Ran::Done;
        let mut failed = None;
        for (at, hook) in hooks.iter().enumerate() {
            ran = self.run_hook(chart, hook, event, facts).await?;
            if ran != Ran::Done {
                failed = matches!(ran, Ran::Failed(_)).then_some(at);
                break;
            }
        }
        let doomed: Vec<&HelmHook> = match (&ran, failed) {
            (Ran::Done, _) => hooks.into_iter().filter(|hook| hook.has(Policy::Succeeded)).collect(),
            (_, Some(failed)) => hooks
                .into_iter()
                .take(failed + 1)
                .enumerate()
                .filter(|(at, hook)| hook.has(if *at == failed { Policy::Failed } else { Policy::Succeeded }))
                .map(|(_, hook)| hook)
                .collect(),
            _ => Vec::new(),
        };
        for hook in doomed {
            // A hook that is finished is not run again: that it is finished is kept before its object goes.
            self.keep(facts, &chart.name, event).await?;
            let entry = entry(hook, event, &chart.run);
            let recorded = find(records(chart, facts), &entry).cloned().unwrap_or(entry);
            if let Some(refused) = self.delete_run(hook, &recorded).await
                && ran == Ran::Done
            {
                ran = Ran::Waits(refused);
            }
        }
        Ok(ran)
    }

    /// Writes how far the hooks are, if that was not written yet.
    pub(super) async fn keep(&mut self, facts: &AddonFacts, chart: &str, what: &str) -> Result<(), Error> {
        if self.kept != facts.charts {
            let mut intent = facts.clone();
            // Tests hold nothing up.
            if what != TEST {
                let message = format!("{what} hook: waiting for its objects");
                let trouble = of_stage(chart, Trouble::new(ErrorClass::Waiting, Reason::WaitingForHelmHook, message));
                intent.applied = StepState::Running(trouble.reason, trouble.message);
            }
            super::write_intent(self.pass.addon, self.pass.ctx, intent).await?;
            self.kept.clone_from(&facts.charts);
        }
        Ok(())
    }

    /// Brings a hook as far as it comes now.
    async fn run_hook(
        &mut self,
        chart: &Chart,
        hook: &HelmHook,
        event: &str,
        facts: &mut AddonFacts,
    ) -> Result<Ran, Error> {
        let new = entry(hook, event, &chart.run);
        if find(records(chart, facts), &new).is_some_and(|known| known.phase == HelmHookPhase::Succeeded) {
            return Ok(Ran::Done);
        }
        let waits = |what: &str| Ran::Waits(format!("{event} hook: waiting for {what}"));
        let (hook, kind) = match self.placed(hook).await {
            Ok(placed) => placed,
            Err(message) => return Ok(waits(&message)),
        };
        let key = &hook.manifest.key;
        let mut new = HelmHookStatus { namespace: key.namespace.clone(), ..new };
        for _ in 0..STEPS {
            let live = match self.live(&hook, &kind).await {
                Ok(live) => live,
                Err(refusal) => return Ok(waits(&format!("{key}: {}", refusal.message))),
            };
            let recorded = find(records(chart, facts), &new).cloned();
            let retry = self.asked && !self.retried.contains(&new.digest);
            match decide::next(&hook, recorded.as_ref(), live.as_ref(), retry, Timestamp::now()) {
                Step::Done => return Ok(Ran::Done),
                Step::Wait(what) => return Ok(waits(&what)),
                Step::Failed(message) => {
                    let again = if event == TEST {
                        format!("it runs again when {TEST_AT} changes (`clusterstack test`)")
                    } else {
                        format!("it runs again when the chart renders otherwise, or when {RECONCILE_AT} changes")
                    };
                    return Ok(Ran::Failed(format!("{event} hook {key} failed: {message}; {again}")));
                }
                Step::Enter(phase, message) => {
                    new = recorded.unwrap_or(new);
                    if (new.phase, phase) == (HelmHookPhase::Failed, HelmHookPhase::Creating) {
                        new.retries = new.retries.saturating_add(1);
                        self.retried.insert(new.digest.clone());
                    }
                    (new.phase, new.message) = (phase, message);
                    record(&mut chart_of(chart, facts).hooks, new.clone());
                    self.tell(&new, event, &hook).await;
                    if phase == HelmHookPhase::Creating {
                        self.keep(facts, &chart.name, event).await?;
                    }
                }
                Step::Clear => {
                    if let Some(refusal) = self.clear(&hook, &kind, live.as_ref()).await {
                        return Ok(waits(&refusal));
                    }
                }
                Step::Create => {
                    let entry = recorded.unwrap_or_else(|| new.clone());
                    let phase = match self.create(&hook, &kind, &entry).await {
                        Ok(()) => Ok(HelmHookPhase::Running),
                        Err(refusal) if refusal.exists => continue,
                        Err(refusal) if refusal.is_final() => Err(refusal.message),
                        Err(refusal) => return Ok(waits(&format!("{key}: {}", refusal.message))),
                    };
                    let (phase, message) = match phase {
                        Ok(phase) => (phase, String::new()),
                        Err(message) => (HelmHookPhase::Failed, message),
                    };
                    new = HelmHookStatus { phase, message, started: Some(Time(Timestamp::now())), ..entry };
                    record(&mut chart_of(chart, facts).hooks, new.clone());
                    self.tell(&new, event, &hook).await;
                }
            }
        }
        Ok(waits(&key.to_string()))
    }

    /// Says in events what becomes of a hook.
    async fn tell(&self, entry: &HelmHookStatus, event: &str, hook: &HelmHook) {
        let key = &hook.manifest.key;
        let (reason, note) = match entry.phase {
            HelmHookPhase::Running => (Reason::WaitingForHelmHook, format!("runs {event} hook {key}")),
            HelmHookPhase::Failed => (Reason::HelmHookFailed, format!("{event} hook {key}: {}", entry.message)),
            HelmHookPhase::Creating | HelmHookPhase::Succeeded => return,
        };
        self.pass.ctx.events.say(self.pass.addon, reason, &note).await;
    }

    /// A hook with its object where it goes, and its kind; else what it waits for.
    async fn placed(&self, hook: &HelmHook) -> Result<(HelmHook, Kind), String> {
        let (manifest, kind) = self.delivery.placed(hook.manifest.clone()).await?;
        Ok((HelmHook { manifest, ..hook.clone() }, kind))
    }

    pub(super) async fn live(&self, hook: &HelmHook, kind: &Kind) -> Result<Option<Value>, Refusal> {
        let key = &hook.manifest.key;
        let found =
            observe::api(&self.workload.client, kind, &key.namespace).get_opt(&observe::segment(&key.name)).await;
        let found = found.map_err(|error| apply::refusal(&error))?;
        Ok(found.map(|object| observe::plain(&object, kind)))
    }

    async fn create(&self, hook: &HelmHook, kind: &Kind, entry: &HelmHookStatus) -> Result<(), NotCreated> {
        let api = observe::api(&self.workload.client, kind, &hook.manifest.key.namespace);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let object = serde_json::from_value(decide::object(hook, entry));
        let created = match object {
            Ok(object) => api.create(&params, &object).await,
            Err(error) => Err(kube::Error::SerdeError(error)),
        };
        let Err(error) = created else { return Ok(()) };
        let exists = matches!(&error, kube::Error::Api(status) if status.reason == "AlreadyExists");
        let Refusal { reason, message } = apply::refusal_of(&hook.manifest, &error);
        Err(NotCreated { exists, reason, message })
    }

    /// Deletes what is in the way of a hook; why it can't be.
    pub(super) async fn clear(&self, hook: &HelmHook, kind: &Kind, live: Option<&Value>) -> Option<String> {
        let key = &hook.manifest.key;
        let deleted = apply::delete(&self.workload.client, kind, key, live?).await;
        deleted.err().map(|refusal| format!("{key} can't be deleted: {}", refusal.message))
    }

    /// Deletes the object of a run, if it is that one; why it can't be.
    async fn delete_run(&self, hook: &HelmHook, entry: &HelmHookStatus) -> Option<String> {
        let (hook, kind) = self.placed(hook).await.ok()?;
        match self.live(&hook, &kind).await {
            Ok(Some(live)) if is_of_run(&live, entry) && !is_going(&live) => {
                self.clear(&hook, &kind, Some(&live)).await
            }
            Ok(_) => None,
            Err(refusal) => Some(format!("{}: {}", hook.manifest.key, refusal.message)),
        }
    }
}

/// Why the object of a hook was not created.
struct NotCreated {
    exists: bool,
    reason: Reason,
    message: String,
}

impl NotCreated {
    /// Whether it would be so the next time, too.
    fn is_final(&self) -> bool {
        matches!(self.reason, Reason::Invalid | Reason::Forbidden)
    }
}
