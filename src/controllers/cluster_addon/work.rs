//! The work on a workload cluster: what its stages want is applied, stage after stage; what no stage wants any more goes
//! when all are done and healthy.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;

use super::super::delivery::Delivery;
use super::super::turns::in_turn;
use super::super::{Error, reconcile_at};
use super::deliver::{Delivered, Rendered};
use super::given::Given;
use super::helm_hooks::Ran;
use super::{Pass, seed_of};
use crate::api::cluster_addon::{ChartStatus, StageAction, StagePhase};
use crate::api::cluster_stack_release::{Resource as Row, ResourceStatus};
use crate::api::condition::Reason;
use crate::core::addon::condition::ConditionError;
use crate::core::addon::helm_hooks::TEST;
use crate::core::addon::stages::{current, definition, enter, kept, start, wanted};
use crate::core::addon::values::{self, ValuesError};
use crate::core::addon_config::{AddonConfig, WaitFor};
use crate::core::manifest::short_digest;
use crate::core::plan::key_of;
use crate::core::retry::ErrorClass;
use crate::core::status::{AddonFacts, StepState, Trouble, row_name};
use crate::io::apply;
use crate::io::condition;
use crate::io::lookup::Reader;
use crate::io::observe;
use crate::io::release::{FetchedRelease, Job, Part};
use crate::io::workload::Workload;

/// What came of a stage's turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It went on: the next one may, too.
    On,
    /// It waits.
    Waits,
}

/// Whether the condition of a stage holds.
pub(super) enum Holds {
    /// It does.
    Yes,
    /// Not yet; why.
    NotYet(String),
    /// It never will as it stands; why.
    Invalid(String),
}

/// The work of one pass.
pub(super) struct Work<'a> {
    pub(super) pass: &'a Pass<'a>,
    /// Of which charts are rendered.
    pub(super) release: &'a FetchedRelease,
    pub(super) config: &'a AddonConfig,
    pub(super) workload: &'a Workload,
    pub(super) delivery: Delivery<'a>,
    pub(super) rendered: BTreeMap<String, Rendered>,
    /// What releases before it brought, by release and chart; `None` where it can't be rendered.
    pub(super) brought: BTreeMap<(String, String), Option<Rendered>>,
    /// Those releases; `None` where one can't be had.
    pub(super) earlier: BTreeMap<String, Option<FetchedRelease>>,
    given: Option<Given>,
    /// Somebody asks to look again.
    pub(super) asked: bool,
    /// The Helm hooks that were tried again in this pass, by their digests.
    pub(super) retried: BTreeSet<String>,
    /// How far the Helm hooks are, as it was written last.
    pub(super) kept: Vec<ChartStatus>,
    /// What the chart of a stage lacks that was left: it holds nobody up.
    pub(super) missing: Option<Trouble>,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        pass: &'a Pass<'a>,
        release: &'a FetchedRelease,
        config: &'a AddonConfig,
        workload: &'a Workload,
        delivery: Delivery<'a>,
    ) -> Self {
        let status = pass.addon.status.clone().unwrap_or_default();
        Self {
            pass,
            release,
            config,
            workload,
            delivery,
            rendered: BTreeMap::new(),
            brought: BTreeMap::new(),
            earlier: BTreeMap::new(),
            given: None,
            asked: reconcile_at(pass.addon) != status.last_handled_reconcile_at,
            retried: BTreeSet::new(),
            kept: status.charts,
            missing: None,
        }
    }

    /// Applies what the stages want by now, and goes on with them as far as they come.
    pub(super) async fn run(&mut self, facts: &mut AddonFacts) -> Result<(), Error> {
        self.adopt(facts).await?;
        self.pass.refuse_skips(self.config, facts).await;
        let mut delivered = None;
        let mut charts = None;
        loop {
            self.pass.skip(facts).await;
            if let Some(turn) = current(&facts.stages) {
                start(&mut facts.stages[turn], Timestamp::now());
            }
            let wanted = wanted(&facts.stages);
            let waiting: Vec<ChartStatus> =
                kept(self.config, &facts.stages, &facts.charts).into_iter().cloned().collect();
            let now = (wanted, waiting.iter().map(|chart| chart.name.clone()).collect::<Vec<_>>());
            if charts.as_ref() != Some(&now) {
                let kept = self.kept(&waiting, facts).await;
                match self.deliver((&now.0, &now.1), &kept, facts).await? {
                    Ok(done) => delivered = Some(done),
                    Err(trouble) => {
                        if let Some(turn) = current(&facts.stages) {
                            let phase = facts.stages[turn].phase;
                            enter(&mut facts.stages[turn], phase, &trouble.message, Timestamp::now());
                        }
                        if self.pass.leaves(self.config, &trouble.message, facts).await {
                            continue;
                        }
                        facts.templated = StepState::Failed(trouble);
                        return Ok(());
                    }
                }
                charts = Some(now);
            }
            let (Some(turn), Some(delivered)) = (current(&facts.stages), &delivered) else { break };
            if self.advance(turn, delivered, facts).await? == Turn::Waits {
                let why = facts.stages[turn].message.clone();
                if !self.pass.leaves(self.config, &why, facts).await {
                    break;
                }
            }
        }
        // What is missing of a chart is not known, so nothing goes.
        if let Some(trouble) = self.missing.take() {
            facts.templated = StepState::Failed(trouble);
            return Ok(());
        }
        match (current(&facts.stages), delivered) {
            (None, Some(delivered)) => {
                self.prune(&delivered, facts).await?;
                self.test(&wanted(&facts.stages), facts).await
            }
            _ => Ok(()),
        }
    }

    /// Brings a stage as far as it comes now.
    pub(super) async fn advance(
        &mut self,
        turn: usize,
        delivered: &Delivered,
        facts: &mut AddonFacts,
    ) -> Result<Turn, Error> {
        let stage = facts.stages[turn].clone();
        let found = definition(self.config, &stage);
        let (before, after) = found
            .map(|stage| (stage.wait_for_pre_condition.as_ref(), stage.wait_for_post_condition.as_ref()))
            .unwrap_or_default();
        let (holds, waiting, next) = match (stage.phase, stage.action) {
            (StagePhase::Done, _) => return Ok(Turn::On),
            (StagePhase::Pending | StagePhase::WaitingForPreCondition, _) => {
                (self.holds(before).await, StagePhase::WaitingForPreCondition, StagePhase::ApplyingOrDeleting)
            }
            (StagePhase::ApplyingOrDeleting, StageAction::Apply) => {
                (applied(&stage.name, delivered, &facts.resources), stage.phase, StagePhase::WaitingForPostCondition)
            }
            (StagePhase::ApplyingOrDeleting, StageAction::Delete) => {
                let gone = self.remove(&stage.name, delivered, facts).await?;
                (gone, stage.phase, StagePhase::WaitingForPostCondition)
            }
            (StagePhase::WaitingForPostCondition, _) => {
                // Not for health: what makes nodes ready may be of a later stage.
                (self.holds(after).await, stage.phase, StagePhase::Done)
            }
        };
        let (phase, message) = match holds {
            Holds::Yes => (next, String::new()),
            Holds::NotYet(message) => (waiting, message),
            Holds::Invalid(message) => {
                facts.stage_trouble = Some((Reason::ConditionInvalid, message.clone()));
                (waiting, message)
            }
        };
        enter(&mut facts.stages[turn], phase, &message, Timestamp::now());
        if phase == StagePhase::Done {
            let name =
                if stage.name.is_empty() { "the addon chart".to_owned() } else { format!("stage {}", stage.name) };
            let note = format!("{name} of {} is done", stage.hook);
            self.pass.ctx.events.say(self.pass.addon, Reason::StageDone, &note).await;
        }
        Ok(if phase == next { Turn::On } else { Turn::Waits })
    }

    /// Whether a condition holds over the objects of the workload cluster.
    async fn holds(&self, wait: Option<&WaitFor>) -> Holds {
        let Some(wait) = wait else { return Holds::Yes };
        let client = &self.workload.client;
        let mut objects = BTreeMap::new();
        for object in &wait.objects {
            let name = format!("{} {}/{}", object.kind, object.namespace, object.name);
            let unread = |error: &kube::Error| Holds::NotYet(format!("{name}: {}", apply::refusal(error).message));
            let kind = match self.workload.kinds.get(client, &object.api_version, &object.kind).await {
                Ok(Some(kind)) => kind,
                Ok(None) => return Holds::NotYet(format!("no {} in {} is served", object.kind, object.api_version)),
                Err(error) => return unread(&error),
            };
            match observe::api(client, &kind, &object.namespace).get_opt(&observe::segment(&object.name)).await {
                Ok(Some(found)) => objects.insert(object.key.clone(), observe::plain(&found, &kind)),
                Ok(None) => return Holds::NotYet(format!("{name} does not exist")),
                Err(error) => return unread(&error),
            };
        }
        match condition::holds(&self.pass.addon.namespace().unwrap_or_default(), wait.clone(), objects).await {
            Ok(true) => Holds::Yes,
            Ok(false) => Holds::NotYet(format!("{} is false", wait.conditions.trim())),
            // A field that is not there yet may come.
            Err(error @ ConditionError::Evaluate(_)) => Holds::NotYet(error.to_string()),
            Err(error) => Holds::Invalid(error.to_string()),
        }
    }

    /// Renders a chart, once in a pass.
    pub(super) async fn render(&mut self, stage: &str) -> Result<Rendered, Trouble> {
        if let Some(known) = self.rendered.get(stage) {
            return Ok(known.clone());
        }
        let rendered = self.render_of(self.release, self.config, stage).await?;
        self.rendered.insert(stage.to_owned(), rendered.clone());
        Ok(rendered)
    }

    /// Renders a chart of a release with the stages that it has.
    pub(super) async fn render_of(
        &mut self,
        release: &FetchedRelease,
        config: &AddonConfig,
        stage: &str,
    ) -> Result<Rendered, Trouble> {
        let pass = self.pass;
        if self.given.is_none() {
            self.given = Some(pass.given().await?);
        }
        let existing = self.drawn_by(&release.bundle.name.object_name());
        let Some(given) = &self.given else {
            return Err(Trouble::new(ErrorClass::Bug, Reason::RenderFailed, "nothing is given to the chart"));
        };
        let has_own = given.user.as_object().is_some_and(|map| !map.is_empty());
        if has_own && !config.allow_values {
            let message = ValuesError::NotAllowed.to_string();
            return Err(Trouble::new(ErrorClass::Waiting, Reason::ValuesInvalid, message));
        }
        let names: Vec<&str> = config.charts().into_iter().collect();
        let user = values::of_user(&given.user, stage, &names)
            .map_err(|error| Trouble::new(ErrorClass::Waiting, Reason::ValuesInvalid, error.to_string()))?;
        let releases = &pass.ctx.releases;
        let served = self.workload.kinds.api_versions(&self.workload.client).await.map_err(|error| {
            let message = format!("what the workload cluster serves can't be read: {}", apply::refusal(&error).message);
            Trouble::new(ErrorClass::Transient, Reason::RenderFailed, message)
        })?;
        let namespace = pass.addon.namespace().unwrap_or_default();
        let values = || releases.addon_values(release, (&namespace, stage), &given.data, user.clone(), &served);
        let values = in_turn(values).await?;
        let (client, kinds) = (self.workload.client.clone(), &self.workload.kinds);
        let reader = Reader { client, kinds, only_namespace: None, secrets_of: None };
        let job = Job {
            release,
            part: Part::Addon { stage, values: &values, secret_values: given.secret, served: &served },
            reader: &reader,
            client: &pass.ctx.clients.own(),
            seed: &seed_of(pass.addon),
            existing: &existing,
        };
        let objects = in_turn(|| releases.render(&job)).await.map_err(|trouble| of_stage(stage, trouble))?;
        for (reason, note) in &objects.told {
            pass.ctx.events.say(pass.addon, *reason, note).await;
        }
        let manifests = objects.manifests.map_err(|trouble| of_stage(stage, trouble))?;
        // A hook may be a test and something else, too.
        let tests =
            objects.hooks.iter().filter(|hook| hook.events.iter().any(|event| event == TEST)).cloned().collect();
        let hooks = objects.hooks.into_iter().filter(|hook| !hook.is_test()).collect();
        let inputs = short_digest(&json!([release.artifact.digest, stage, values]));
        let (definitions, looked_up) = (objects.definitions, objects.looked_up);
        Ok(Rendered { manifests, hooks, tests, definitions, looked_up, inputs })
    }
}

/// Whether all objects of a stage are applied, and its Helm hooks done.
fn applied(stage: &str, delivered: &Delivered, rows: &[Row]) -> Holds {
    if let Some(Ran::Waits(message) | Ran::Failed(message)) = delivered.hooks.get(stage) {
        return Holds::NotYet(message.clone());
    }
    // What it had before and can't be read may be gone since long: nobody waits for it.
    let is_wanted = |row: &&Row| !delivered.plan.prune.unread.contains(&key_of(row));
    // What others fight over is as it is wanted each time: that is told, and holds up no upgrade.
    let is_fought_over =
        |row: &Row| row.reason == Some(Reason::DriftFight) && delivered.live.objects.contains_key(&key_of(row));
    let failed: Vec<&Row> = rows
        .iter()
        .filter(|row| row.stage == stage && row.status == ResourceStatus::NotSynced)
        .filter(is_wanted)
        .filter(|row| !is_fought_over(row))
        .collect();
    match failed.first() {
        None => Holds::Yes,
        Some(row) => Holds::NotYet(format!("{} not synced, {}: {}", failed.len(), row_name(row), row.error)),
    }
}

/// Trouble with the chart of a stage, called by its name.
pub(super) fn of_stage(stage: &str, mut trouble: Trouble) -> Trouble {
    let name = if stage.is_empty() { "the addon chart".to_owned() } else { format!("the chart of stage {stage}") };
    trouble.message = format!("{name}: {}", trouble.message);
    trouble
}
