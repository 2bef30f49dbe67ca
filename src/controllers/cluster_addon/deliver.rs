//! Brings what the stages want by now to a workload cluster, the Helm hooks of its charts around it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::super::Error;
use super::super::delivery::{about_to_apply, hold_unreadable, leftover, rows, tell_unread};
use super::helm_hooks::{self, Ran};
use super::keeping::Kept;
use super::work::{Work, of_stage};
use crate::api::cluster_addon::{ChartStatus, StageAction, StagePhase, StageStatus};
use crate::api::cluster_stack::DriftMode;
use crate::api::cluster_stack_release::{Resource as Row, ResourceStatus};
use crate::api::condition::Reason;
use crate::core::addon::helm_hooks::{Change, HelmHook, change, rendering};
use crate::core::addon::stages::{self, definition, is_left};
use crate::core::addon_config::{Action, CrdPolicy, Stage};
use crate::core::inventory::{record, was_applied};
use crate::core::manifest::{Manifest, ObjectKey};
use crate::core::plan::{self, Action as Act, Desired, Input, Plan, Prune, Why, key_of};
use crate::core::retry::ErrorClass;
use crate::core::status::{AddonFacts, StepState, Trouble};
use crate::io::apply::Outcome;
use crate::io::kinds::Kind;
use crate::io::observe::Live;

/// What a chart rendered to.
#[derive(Clone)]
pub(super) struct Rendered {
    /// Its objects.
    pub(super) manifests: Vec<Manifest>,
    /// Its Helm hooks but for its tests.
    pub(super) hooks: Vec<HelmHook>,
    /// Its tests.
    pub(super) tests: Vec<HelmHook>,
    /// Those of the objects that come from its `crds/`.
    pub(super) definitions: BTreeSet<ObjectKey>,
    /// The objects that it looked up by their names.
    pub(super) looked_up: BTreeSet<ObjectKey>,
    /// Digest of the release and the values that it was rendered with.
    pub(super) inputs: String,
}

impl Rendered {
    /// As a chart of that stage.
    pub(super) fn chart(&self, stage: &str) -> Chart {
        let rendering = rendering(&self.manifests, &self.hooks);
        let (run, inputs) = (rendering.clone(), self.inputs.clone());
        Chart { name: stage.to_owned(), rendering, inputs, run, hooks: self.hooks.clone() }
    }
}

/// A chart with its Helm hooks.
pub(super) struct Chart {
    /// The stage; empty where the release has one chart for everything.
    pub(super) name: String,
    /// Digest of what it renders to.
    pub(super) rendering: String,
    /// Digest of the release and the values that it was rendered with.
    pub(super) inputs: String,
    /// Digest of the rendering that its hooks run for.
    pub(super) run: String,
    /// Its hooks.
    pub(super) hooks: Vec<HelmHook>,
}

/// An object of a chart.
struct Item {
    chart: String,
    object: Desired,
    is_definition: bool,
}

/// What is wanted by now.
pub(super) struct Want {
    items: Vec<Item>,
    kinds: BTreeMap<ObjectKey, Kind>,
    /// The charts, with their Helm hooks.
    pub(super) charts: Vec<Chart>,
}

impl Want {
    /// Whether there are objects of kinds that are not served.
    fn lacks_kinds(&self) -> bool {
        self.items.iter().any(|item| matches!(item.object.obstacle, Some((Reason::NoKindMatch, _))))
    }

    /// The charts, each with what it renders to.
    fn renderings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.charts.iter().map(|chart| (chart.name.as_str(), chart.rendering.as_str()))
    }

    /// The objects of a chart, but for definitions, which come before its hooks.
    pub(super) fn behind_hooks<'a>(&'a self, chart: &'a str) -> impl Iterator<Item = &'a ObjectKey> {
        let of_chart = self.items.iter().filter(move |item| item.chart == chart && !item.is_definition);
        of_chart.map(|item| &item.object.manifest.key)
    }
}

/// What lives in the workload cluster, and what was decided about it.
pub(super) struct Delivered {
    /// What was decided.
    pub(super) plan: Plan,
    /// What was there.
    pub(super) live: Live,
    /// The charts whose hooks are not done, and what they wait for.
    pub(super) hooks: BTreeMap<String, Ran>,
    /// Definitions were sent.
    has_definitions: bool,
}

impl Delivered {
    /// Where nothing is brought: what was there, and what nobody wants of it.
    pub(super) fn nothing(prune: Prune, live: Live) -> Self {
        Self { plan: Plan { prune, ..Plan::default() }, live, hooks: BTreeMap::new(), has_definitions: false }
    }
}

impl Work<'_> {
    /// Applies what these charts hold, as far as it differs from what is there, and puts back what those hold that are `kept`: of
    /// the charts that wait for their stages.
    pub(super) async fn deliver(
        &mut self,
        (charts, waiting): (&[String], &[String]),
        kept: &[Kept],
        facts: &mut AddonFacts,
    ) -> Result<Result<Delivered, Trouble>, Error> {
        let mut want = match self.want(charts, kept, facts).await {
            Ok(want) => want,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let mut asks_again = true;
        loop {
            let (mut delivered, changes) = self.bring(&mut want, waiting, facts).await?;
            if delivered.has_definitions && std::mem::take(&mut asks_again) {
                // What is served is another by now. Helm renders a chart when its definitions are there, before its hooks.
                self.rendered.clear();
                let again = match self.want(charts, kept, facts).await {
                    Ok(want) => want,
                    Err(trouble) => return Ok(Err(trouble)),
                };
                if want.lacks_kinds() || again.renderings().ne(want.renderings()) {
                    want = again;
                    continue;
                }
            }
            // Each chart is held at most once: behind its hooks it is brought.
            if !self.run_hooks(&want, &changes, &mut delivered, facts).await? {
                facts.applied = helm_hooks::summary(&delivered.hooks);
                return Ok(Ok(delivered));
            }
        }
    }

    /// What the charts hold. Of an object that several have, the last one has the say.
    async fn want(&mut self, charts: &[String], kept: &[Kept], facts: &AddonFacts) -> Result<Want, Trouble> {
        let mut items: BTreeMap<ObjectKey, (usize, Item)> = BTreeMap::new();
        let mut want = Want { items: Vec::new(), kinds: BTreeMap::new(), charts: Vec::new() };
        // Before the others: what moved to a chart that came is that chart's.
        for Kept { stage, rendered } in kept {
            self.add(&mut want, &mut items, (stage, rendered.clone())).await;
        }
        items.retain(|key, (_, item)| is_as_sent(&facts.resources, key, &item.object));
        for chart in charts {
            let rendered = match self.render(chart).await {
                Ok(rendered) => rendered,
                Err(trouble) if is_left(&facts.stages, chart) => {
                    self.missing = Some(trouble);
                    continue;
                }
                Err(trouble) => return Err(trouble),
            };
            let was_there = |row: &Row| row.stage == *chart && !rendered.looked_up.contains(&key_of(row));
            if rendered.manifests.is_empty() && facts.resources.iter().any(was_there) {
                let message = "the chart renders no object, although it did before; what is applied is held";
                let trouble = of_stage(chart, Trouble::new(ErrorClass::Invalid, Reason::EmptyRender, message));
                if is_left(&facts.stages, chart) {
                    self.missing = Some(trouble);
                    continue;
                }
                return Err(trouble);
            }
            want.charts.push(rendered.chart(chart));
            let stage = self.applies(chart, facts);
            self.add(&mut want, &mut items, (&stage, rendered)).await;
        }
        let mut all: Vec<(usize, Item)> = items.into_values().collect();
        all.sort_by_key(|(place, _)| *place);
        want.items = all.into_iter().map(|(_, item)| item).collect();
        Ok(want)
    }

    /// Adds what a chart renders to.
    async fn add(
        &self,
        want: &mut Want,
        items: &mut BTreeMap<ObjectKey, (usize, Item)>,
        (stage, rendered): (&Stage, Rendered),
    ) {
        let (objects, kinds) = self.delivery.desired(rendered.manifests).await;
        want.kinds.extend(kinds);
        for object in objects {
            let key = object.manifest.key.clone();
            let is_it =
                |known: &ObjectKey| (&known.group, &known.kind, &known.name) == (&key.group, &key.kind, &key.name);
            let is_definition = rendered.definitions.iter().any(is_it);
            if is_definition && stage.crds == CrdPolicy::Skip {
                continue;
            }
            let create_only = is_definition && stage.crds == CrdPolicy::Create;
            let ignored = plan::ignored_pointers(&stage.ignore_differences, &key);
            let object = Desired { create_only, replace: stage.replace, ignored, ..object };
            let place = items.len();
            items.insert(key, (place, Item { chart: stage.name.clone(), object, is_definition }));
        }
    }

    /// One round: what lives is read, what differs is sent. What each chart with hooks changes, too.
    async fn bring(
        &mut self,
        want: &mut Want,
        waiting: &[String],
        facts: &mut AddonFacts,
    ) -> Result<(Delivered, BTreeMap<String, Change>), Error> {
        let mut desired: Vec<Desired> = want.items.iter().map(|item| item.object.clone()).collect();
        let memory = &self.pass.ctx.memory;
        let uid = self.pass.addon.metadata.uid.clone().unwrap_or_default();
        if self.is_as_left(want, &desired, facts) {
            return Ok((Delivered::nothing(Prune::default(), Live::default()), BTreeMap::new()));
        }
        memory.begins_look(&uid);
        let recorded = (facts.resources.as_slice(), facts.retained.as_slice());
        let live = self.delivery.observe((&desired, &want.kinds), recorded, Some((memory, &uid))).await?;
        hold_unreadable(&mut desired, &live);
        let unread = live.unread();
        let fights = memory.fights(&uid, Timestamp::now());
        let retry_refused = memory.retries_refused(&uid) || self.asked;
        let recorded: Vec<Row> = facts.resources.iter().chain(&facts.retained).cloned().collect();
        let decide = |desired: &[Desired]| {
            let input = Input {
                owner: &self.delivery.owner,
                desired,
                recorded: &recorded,
                live: &live.objects,
                unread: &unread,
                ignore: &self.pass.addon.spec.ignore_differences,
                drift: DriftMode::default(),
                fights: &fights,
                retry_refused,
                siblings: &BTreeMap::new(),
                of_newer: &BTreeSet::new(),
                // The rights are the workload cluster's own.
                leaves_secrets: false,
            };
            // A chart that renders nothing is met before: where nothing is wanted, all stages delete.
            Plan { prune: plan::unwanted(&input), ..plan::plan(&input) }
        };
        let mut plan = decide(&desired);
        let before = facts.clone();
        let changes = helm_hooks::begin(want, &plan, &live, &self.delivery.owner, facts);
        let held = helm_hooks::held(want, &changes, facts);
        if !held.is_empty() {
            for (item, object) in want.items.iter().zip(&mut desired).filter(|(item, _)| !item.is_definition) {
                if let Some(message) = held.get(&item.chart) {
                    object.obstacle = object.obstacle.take().or(Some((Reason::WaitingForHelmHook, message.clone())));
                }
            }
            plan = decide(&desired);
        }
        self.record_intent(&plan, &before, facts).await?;
        let outcomes = self.delivery.apply(&plan, &want.kinds, &live).await;
        let has_definitions = self.forget_kinds(&plan, &outcomes);
        self.note(&plan, &outcomes, &want.kinds).await;
        self.pass.follow((self.workload, &self.delivery.owner), (&plan, &outcomes), (&want.kinds, &live));
        memory.looked(&uid);
        let mut carried = carried(&facts.resources, waiting, &plan, &live);
        tell_unread(&mut carried, &live);
        tell_unread(&mut facts.retained, &live);
        facts.resources = rows(&plan, outcomes, &live, &facts.resources);
        let chart_of: BTreeMap<&ObjectKey, &str> =
            want.items.iter().map(|item| (&item.object.manifest.key, item.chart.as_str())).collect();
        for row in &mut facts.resources {
            chart_of.get(&key_of(row)).copied().unwrap_or_default().clone_into(&mut row.stage);
        }
        facts.resources.extend(carried);
        // What labels alone told of: the inventory is not rebuilt a second time.
        let is_new = |key: &&ObjectKey| !recorded.iter().any(|row| key_of(row) == **key);
        let found: Vec<ObjectKey> =
            plan.prune.delete.iter().chain(&plan.prune.retain).filter(is_new).cloned().collect();
        facts.retained.extend(leftover(&found, &live, &recorded));
        Ok((Delivered { plan, live, hooks: BTreeMap::new(), has_definitions }, changes))
    }

    /// Whether nothing is to be done, which takes no look: all stages are done and nobody asked for one, charts and inventory are what
    /// is wanted, and the watches of the workload cluster vouch for each object. What watches can't see is found by a look once an hour.
    fn is_as_left(&self, want: &Want, desired: &[Desired], facts: &AddonFacts) -> bool {
        let addon = self.pass.addon;
        let looked = self.pass.ctx.memory.last_look(addon.metadata.uid.as_deref().unwrap_or_default());
        let said = addon.status.as_ref();
        let is_recorded = |chart: &Chart| {
            let known = facts.charts.iter().find(|known| known.name == chart.name);
            known.is_some_and(|known| change(Some(known), &chart.rendering, true).is_none())
        };
        stages::current(&facts.stages).is_none()
            && !self.asked
            && said.is_some_and(|said| said.observed_generation == addon.metadata.generation)
            && facts.retained.is_empty()
            && want.charts.iter().all(is_recorded)
            && plan::is_settled(&facts.resources, desired)
            && looked.is_some_and(|looked| {
                self.workload.drift.vouches(looked, desired.iter().map(|object| &object.manifest.key))
            })
    }

    /// Forgets what is served of the groups whose definitions were sent; whether there are any.
    fn forget_kinds(&self, plan: &Plan, outcomes: &BTreeMap<ObjectKey, Outcome>) -> bool {
        let is_sent = |key: &ObjectKey| outcomes.get(key).is_some_and(|outcome| outcome.result.is_ok());
        let sent = plan.steps.iter().filter(|step| step.wave == 0 && is_sent(&step.manifest.key));
        let mut has_some = false;
        for group in sent.filter_map(|step| step.manifest.object.pointer("/spec/group")?.as_str()) {
            self.workload.kinds.forget(group);
            has_some = true;
        }
        has_some
    }

    /// Writes what is about to be applied for the first time into the inventory, so that a process that dies meanwhile
    /// leaves nothing behind that nobody knows of; and no longer that the release before is ready.
    async fn record_intent(&self, plan: &Plan, before: &AddonFacts, facts: &AddonFacts) -> Result<(), Error> {
        let known = |key: &ObjectKey| facts.resources.iter().any(|row| key_of(row) == *key);
        let is_new = |step: &&plan::Step| matches!(step.action, Act::Apply { .. }) && !known(&step.manifest.key);
        let new: Vec<Row> = plan.steps.iter().filter(is_new).map(|step| about_to_apply(&step.manifest)).collect();
        let running = |facts: &AddonFacts| -> Vec<ChartStatus> {
            facts.charts.iter().filter(|chart| !chart.running.is_empty()).cloned().collect()
        };
        let begins = self.pass.addon.status.as_ref().is_some_and(|said| said.ready && said.release != facts.release)
            && plan.steps.iter().any(|step| matches!(step.action, Act::Apply { .. }));
        if new.is_empty() && !begins && running(before) == running(facts) {
            return Ok(());
        }
        let mut intent = facts.clone();
        intent.resources.extend(new);
        intent.applied = StepState::Running(Reason::Progressing, "applying objects".into());
        super::write_intent(self.pass.addon, self.pass.ctx, intent).await
    }

    /// Runs the hooks of the charts whose turn it is; whether a chart that was held can be brought now.
    async fn run_hooks(
        &mut self,
        want: &Want,
        changes: &BTreeMap<String, Change>,
        delivered: &mut Delivered,
        facts: &mut AddonFacts,
    ) -> Result<bool, Error> {
        let mut is_free = false;
        for chart in &want.charts {
            let Some(change) = changes.get(&chart.name) else { continue };
            let was_held = helm_hooks::is_held(chart, *change, facts);
            let mut ran = match self.finish_earlier(chart, *change, facts).await? {
                Some(waits) => waits,
                None => self.run_event(chart, &change.before(), facts).await?,
            };
            if ran == Ran::Done && was_held {
                is_free = true;
                continue;
            }
            let unread = &delivered.plan.prune.unread;
            let is_synced = |row: &Row| row.stage != chart.name || row.status == ResourceStatus::Synced;
            let is_synced = |row: &Row| is_synced(row) || unread.contains(&key_of(row));
            if ran == Ran::Done {
                if !facts.resources.iter().all(is_synced) {
                    continue;
                }
                ran = self.run_event(chart, &change.after(), facts).await?;
            }
            if ran == Ran::Done {
                helm_hooks::complete(chart, facts);
            } else {
                delivered.hooks.insert(chart.name.clone(), ran);
            }
        }
        Ok(is_free)
    }

    /// Events, metrics and the memory of corrections.
    async fn note(&self, plan: &Plan, outcomes: &BTreeMap<ObjectKey, Outcome>, kinds: &BTreeMap<ObjectKey, Kind>) {
        let pass = self.pass;
        let uid = pass.addon.metadata.uid.clone().unwrap_or_default();
        for step in plan.steps.iter().filter(|step| kinds.contains_key(&step.manifest.key)) {
            let key = &step.manifest.key;
            let sent = outcomes.get(key).map(|outcome| outcome.result.is_ok());
            if outcomes.get(key).is_some_and(|outcome| outcome.replaced) {
                let note = format!("made anew: {key}, of which a field that can't be changed did");
                pass.ctx.events.say(pass.addon, Reason::Replaced, &note).await;
            }
            match (&step.action, sent) {
                (Act::Apply { why, .. }, Some(true)) => {
                    pass.ctx.metrics.count("applied", 1);
                    if matches!(why, Why::Drifted { .. } | Why::Deleted) {
                        pass.ctx.metrics.count("corrected", 1);
                        let what = plan::drift_message(why);
                        pass.ctx.memory.corrected(&uid, key, &what, Timestamp::now());
                        let note = format!("put back: {key} was {what}");
                        pass.ctx.events.say(pass.addon, Reason::DriftCorrected, &note).await;
                    }
                }
                (action, _) if action.is_left_changed() => pass.ctx.metrics.count("held", 1),
                (Act::Apply { .. }, Some(false)) | (Act::Hold { .. }, _) => pass.ctx.metrics.count("failed", 1),
                _ => {}
            }
        }
    }

    /// What the release says of the stage that applies a chart now.
    fn applies(&self, chart: &str, facts: &AddonFacts) -> Stage {
        let applies = |stage: &&StageStatus| {
            stage.name == chart && stage.action == StageAction::Apply && stage.phase >= StagePhase::ApplyingOrDeleting
        };
        let entry = facts.stages.iter().rev().find(applies);
        let stage = entry.and_then(|entry| definition(self.config, entry));
        stage.cloned().unwrap_or_else(|| Stage::new(chart, Action::Apply))
    }
}

/// Whether an object that waits for its stage is as it was sent last, and can be sent again.
fn is_as_sent(recorded: &[Row], key: &ObjectKey, object: &Desired) -> bool {
    let sent = recorded.iter().find(|row| key_of(row) == *key).map(|row| record(row).0);
    object.obstacle.is_none() && sent == Some(object.manifest.digest().as_str())
}

/// Rows of objects that are there and that no chart wants yet, or any more: they stay as they were. One that is gone of a chart that
/// is `waiting` for its stage is told: nobody has brought it back.
fn carried(recorded: &[Row], waiting: &[String], plan: &Plan, live: &Live) -> Vec<Row> {
    let wanted: BTreeSet<&ObjectKey> = plan.steps.iter().map(|step| &step.manifest.key).collect();
    let is_there = |key: &ObjectKey| live.objects.contains_key(key) || live.unreadable.contains_key(key);
    let carry = |row: &Row| {
        let key = key_of(row);
        if wanted.contains(&key) {
            return None;
        }
        let was_missed = row.reason == Some(Reason::Drifted);
        let row = row.clone();
        match (is_there(&key), waiting.contains(&row.stage)) {
            (true, _) if plan.prune.forget.contains(&key) => None,
            (true, _) if was_missed => {
                Some(Row { status: ResourceStatus::Synced, reason: None, error: String::new(), ..row })
            }
            (true, _) => Some(row),
            (false, true) if was_applied(&row) => Some(Row {
                status: ResourceStatus::NotSynced,
                reason: Some(Reason::Drifted),
                error: "it was deleted, and comes back with its stage".to_owned(),
                health: String::new(),
                ..row
            }),
            (false, _) => None,
        }
    };
    recorded.iter().filter_map(carry).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_another_release_sent_since_is_not_sent_back() {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
        let object = Desired {
            manifest: Manifest::from_value(object).unwrap(),
            obstacle: None,
            create_only: false,
            replace: false,
            ignored: Vec::new(),
        };
        let key = object.manifest.key.clone();
        let row = |digest: &str| Row {
            version: "v1".into(),
            kind: "ConfigMap".into(),
            name: "a".into(),
            digest: digest.into(),
            ..Row::default()
        };
        let sent = object.manifest.digest();
        let unserved = Desired { obstacle: Some((Reason::NoKindMatch, String::new())), ..object.clone() };
        for (recorded, object, expected) in [
            (vec![row(&format!("{sent}.ours"))], &object, true),
            (vec![row("other.ours")], &object, false),
            (vec![], &object, false),
            (vec![row(&format!("{sent}.ours"))], &unserved, false),
        ] {
            assert_eq!(is_as_sent(&recorded, &key, object), expected, "{recorded:?}");
        }
    }

    #[test]
    fn what_is_gone_of_a_chart_that_waits_is_told_until_it_is_back() {
        let row = |stage: &str| Row {
            version: "v1".into(),
            kind: "ConfigMap".into(),
            name: stage.into(),
            stage: stage.into(),
            status: ResourceStatus::Synced,
            digest: "sent.ours".into(),
            ..Row::default()
        };
        let (recorded, waiting) = ([row("waits"), row("dropped")], ["waits".to_owned()]);
        let plan = Plan::default();
        let gone = carried(&recorded, &waiting, &plan, &Live::default());
        let told: Vec<_> = gone.iter().map(|row| (row.name.as_str(), row.status, row.reason)).collect();
        assert_eq!(told, [("waits", ResourceStatus::NotSynced, Some(Reason::Drifted))]);
        let mut live = Live::default();
        live.objects.insert(key_of(&recorded[0]), json!({}));
        assert_eq!(carried(&gone, &waiting, &plan, &live), recorded[..1]);
        assert_eq!(carried(&recorded[..1], &[], &plan, &live), recorded[..1]);
    }
}
