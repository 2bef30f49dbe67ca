//! Brings objects to an API server: which of their kinds it serves, what lives there, what is sent, and the inventory
//! after it. Releases are delivered to the management cluster, addons to workload clusters.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Client;
use serde_json::Value;

use super::turns::beside_its_turn;
use super::{Doing, Error, Memory, rights};
use crate::api::cluster_stack_release::{Resource as Row, ResourceStatus};
use crate::api::condition::{self, Reason};
use crate::core::addon::cluster::HELM_NAMESPACE;
use crate::core::health;
use crate::core::inventory::{ABOUT_TO_APPLY, after_refusal, is_of_go_operator, is_unproved, kept, was_synced};
use crate::core::manifest::{Manifest, ObjectKey, join_api_version};
use crate::core::ownership::Owner;
use crate::core::plan::{self, Action as Act, Desired, Plan, Step, key_of};
use crate::io::apply::{self, Outcome, Over, Refusal, Send};
use crate::io::kinds::{Kind, Kinds, is_unserved};
use crate::io::observe::{self, Lists, Live, Target};
use crate::io::replace::replace;
use crate::io::workload::Workload;

/// Longest time that new CustomResourceDefinitions are waited for.
const ESTABLISHED: Duration = Duration::from_secs(30);

/// The waves of an apply: one is done before the next one starts.
const WAVES: std::ops::RangeInclusive<u8> = 0..=3;

/// Where objects go, and as whose.
pub(super) struct Delivery<'a> {
    /// Applies.
    pub(super) client: Client,
    /// Asks which kinds are served, and finds lost inventories.
    pub(super) discovery: Client,
    /// Waits for CustomResourceDefinitions.
    pub(super) watching: Client,
    /// The kinds that are served.
    pub(super) kinds: &'a Kinds,
    /// Whose the objects are.
    pub(super) owner: Owner,
    /// The namespace of objects that name none.
    pub(super) namespace: String,
    /// The only namespace that may be written to.
    pub(super) only_namespace: Option<String>,
    /// With the operator's own rights, which are for its own work too.
    pub(super) is_operator: bool,
}

/// Objects as they would be sent, and the kinds that are served.
pub(super) type Wanted = (Vec<Desired>, BTreeMap<ObjectKey, Kind>);

impl<'a> Delivery<'a> {
    /// Of addons, to their workload cluster.
    pub(super) fn to_workload(workload: &'a Workload, owner: Owner) -> Self {
        Self {
            client: workload.client.clone(),
            discovery: workload.client.clone(),
            watching: workload.client.clone(),
            kinds: &workload.kinds,
            owner,
            namespace: HELM_NAMESPACE.to_owned(),
            only_namespace: None,
            is_operator: false,
        }
    }

    /// The objects as they would be sent, and the kinds that are served.
    pub(super) async fn desired(&self, manifests: Vec<Manifest>) -> Wanted {
        let mut desired = Vec::with_capacity(manifests.len());
        let mut kinds = BTreeMap::new();
        for manifest in manifests {
            let (object, kind) = self.in_place(manifest.with_labels(self.owner.labels())).await;
            if let Some(kind) = kind {
                kinds.insert(object.manifest.key.clone(), kind);
            }
            desired.push(object);
        }
        (desired, kinds)
    }

    /// An object in its namespace, and its kind if that is served.
    async fn in_place(&self, manifest: Manifest) -> (Desired, Option<Kind>) {
        let served = self.kinds.get(&self.discovery, &manifest.api_version(), &manifest.key.kind).await;
        let served = served.map_err(|error| apply::refusal(&error).message);
        let kind = served.as_ref().map(Option::as_ref).map_err(Clone::clone);
        let reach = (self.only_namespace.as_deref(), self.is_operator);
        let mut object = rights::desired(manifest, kind, &self.namespace, reach);
        if let Some((Reason::NoKindMatch, message)) = &mut object.obstacle
            && let Some(other) = self.in_another_version(&object.manifest.key).await
        {
            *message = other;
        }
        (object, served.ok().flatten())
    }

    /// What to do where the kind of an object is served in another version than its own.
    async fn in_another_version(&self, key: &ObjectKey) -> Option<String> {
        // Who can't be asked again said already that it is not served.
        let served = self.kinds.preferred(&self.discovery, &key.group, &key.kind).await.ok()??;
        let version = served.resource.api_version;
        Some(format!(
            "{} is served in {version} here: use a release whose charts have it in a version that is served",
            key.kind
        ))
    }

    /// An object that no owner's labels are put on, in its namespace, and its kind; else why it can't be sent.
    pub(super) async fn placed(&self, manifest: Manifest) -> Result<(Manifest, Kind), String> {
        match self.in_place(manifest).await {
            (Desired { obstacle: Some((_, message)), manifest, .. }, _) => Err(format!("{}: {message}", manifest.key)),
            (Desired { manifest, .. }, Some(kind)) => Ok((manifest, kind)),
            (Desired { manifest, .. }, None) => Err(format!("{}: its kind is not known", manifest.key)),
        }
    }

    /// Reads the live objects among the desired ones and the inventory. A lost inventory is rebuilt first, once per
    /// process, if `memory` is there, with the UID of the object whose inventory it is.
    pub(super) async fn observe(
        &self,
        (desired, kinds): (&[Desired], &BTreeMap<ObjectKey, Kind>),
        (recorded, retained): (&[Row], &[Row]),
        memory: Option<(&Memory, &str)>,
    ) -> Result<Live, Error> {
        let is_allowed = |d: &&Desired| d.obstacle.is_none();
        let mut targets: Vec<Target> = desired.iter().filter(is_allowed).filter_map(|d| target(d, kinds)).collect();
        let rest: Vec<Row> = recorded
            .iter()
            .chain(retained)
            .filter(|row| !desired.iter().any(|d| d.manifest.key == key_of(row)))
            .cloned()
            .collect();
        let (known, unasked) = self::targets(&rest, &self.discovery, self.kinds).await;
        targets.extend(known);
        let without_inventory = is_unproved(recorded);
        let lists = if without_inventory { Lists::All } else { Lists::OfSeveral };
        let mut live = observe::live(&self.client, &self.owner, &targets, lists).await;
        for (key, _) in live.unreadable.iter().filter(|(_, error)| is_unserved(error)) {
            self.kinds.forget(&key.group);
        }
        live.unreadable.extend(unasked);
        if let (Some(memory), true) = (memory, without_inventory) {
            self.find_lost(&mut live, memory).await?;
        }
        Ok(live)
    }

    /// Where objects of the owner are there that no inventory holds, the rest of them is looked for by labels: once per
    /// process, for the object with this UID. Whether it was.
    pub(super) async fn find_lost(&self, live: &mut Live, (memory, uid): (&Memory, &str)) -> Result<bool, Error> {
        let owner = &self.owner;
        if memory.has_rebuilt(uid) || !live.objects.values().any(|object| owner.is_of(object)) {
            return Ok(false);
        }
        tracing::info!(owner = %owner.name, "the inventory was lost: rebuilding it from labels");
        let found = observe::rebuild_as(&self.discovery, (&self.client, Some(&owner.name)), self.kinds, owner)
            .await
            .doing(|| format!("finding the objects of {} {}", owner.kind, owner.name))?;
        let unknown: Vec<Target> = found.into_iter().filter(|target| !live.objects.contains_key(&target.key)).collect();
        let more = observe::live(&self.client, owner, &unknown, Lists::OfSeveral).await;
        let is_away = |(_, error): &(ObjectKey, kube::Error)| apply::refusal(error).reason != Reason::Forbidden;
        if let Some((key, error)) = more.unreadable.into_iter().find(is_away) {
            // Once there is an inventory again nobody looks for what it lacks.
            return Err(error).doing(|| format!("reading {key}, which {} {} may have applied", owner.kind, owner.name));
        }
        live.objects.extend(more.objects);
        memory.rebuilt(uid);
        Ok(true)
    }

    /// Sends what has to be sent, wave by wave. Where nothing lives an object is made, and nothing is sent over what is there
    /// after all ([`Outcome::is_there`]).
    pub(super) async fn apply(
        &self,
        plan: &Plan,
        kinds: &BTreeMap<ObjectKey, Kind>,
        live: &Live,
    ) -> BTreeMap<ObjectKey, Outcome> {
        let mut outcomes = BTreeMap::new();
        for wave in WAVES {
            outcomes.extend(self.apply_wave(wave, plan, kinds, live).await);
            if self.is_over(&outcomes) {
                break;
            }
        }
        outcomes
    }

    /// The same. What was to be made and is there already is looked at before the next wave, decided on with `decide`, and
    /// sent if that is the decision; `plan` and `live` tell afterwards what came of both.
    pub(super) async fn apply_and_look(
        &self,
        (plan, live): (&mut Plan, &mut Live),
        (desired, kinds): (&[Desired], &BTreeMap<ObjectKey, Kind>),
        decide: impl Fn(&mut [Desired], &Live) -> Plan,
    ) -> BTreeMap<ObjectKey, Outcome> {
        let mut outcomes = BTreeMap::new();
        for wave in WAVES {
            let mut sent = self.apply_wave(wave, plan, kinds, live).await;
            let is_there = |object: &&Desired| sent.get(&object.manifest.key).is_some_and(|outcome| outcome.is_there);
            let mut there: Vec<Desired> = desired.iter().filter(is_there).cloned().collect();
            if !there.is_empty() {
                let targets = there.iter().filter_map(|object| target(object, kinds)).collect::<Vec<_>>();
                let found = observe::live(&self.client, &self.owner, &targets, Lists::None).await;
                let anew = decide(&mut there, &found);
                sent.retain(|_, outcome| !outcome.is_there);
                sent.extend(self.apply_wave(wave, &anew, kinds, &found).await);
                live.extend(found);
                for step in anew.steps {
                    let before = plan.steps.iter_mut().find(|before| before.manifest.key == step.manifest.key);
                    if let Some(before) = before {
                        *before = step;
                    }
                }
            }
            outcomes.extend(sent);
            if self.is_over(&outcomes) {
                break;
            }
        }
        outcomes
    }

    /// Whether the namespace that objects go to ends: nothing more can be made there.
    fn is_over(&self, outcomes: &BTreeMap<ObjectKey, Outcome>) -> bool {
        outcomes.values().any(|outcome| {
            let ends = outcome.result.as_ref().is_err_and(|refusal| refusal.reason == Reason::NamespaceTerminating);
            ends && outcome.key.namespace == self.namespace
        })
    }

    /// Sends the objects of one wave, and waits until its definitions are served.
    async fn apply_wave(
        &self,
        wave: u8,
        plan: &Plan,
        kinds: &BTreeMap<ObjectKey, Kind>,
        live: &Live,
    ) -> BTreeMap<ObjectKey, Outcome> {
        let objects: Vec<Send<'_>> = plan
            .steps
            .iter()
            .filter(|step| step.wave == wave)
            .filter_map(|step| {
                let Act::Apply { migrate, .. } = step.action else { return None };
                let kind = kinds.get(&step.manifest.key)?;
                let there = live.objects.get(&step.manifest.key);
                let over = there.map_or(Over::Nothing, Over::Live);
                Some(Send { manifest: &step.manifest, kind, migrate: there.filter(|_| migrate), over })
            })
            .collect();
        if objects.is_empty() {
            return BTreeMap::new();
        }
        let definitions = apply::definitions(&objects);
        let wave = async {
            let mut sent = apply::send(&self.client, objects).await;
            self.replace(plan, kinds, live, &mut sent).await;
            apply::established(&self.watching, &definitions, ESTABLISHED).await;
            sent
        };
        let sent = beside_its_turn(wave).await;
        sent.into_iter().map(|outcome| (outcome.key.clone(), outcome)).collect()
    }

    /// Makes those anew that were refused for a field that can't be changed, where that is allowed.
    async fn replace(&self, plan: &Plan, kinds: &BTreeMap<ObjectKey, Kind>, live: &Live, sent: &mut [Outcome]) {
        let is_immutable = |outcome: &&mut Outcome| {
            outcome.result.as_ref().is_err_and(|refusal| refusal.reason == Reason::ImmutableField)
        };
        for outcome in sent.iter_mut().filter(is_immutable) {
            let key = &outcome.key;
            let step = plan.steps.iter().find(|step| step.replace && step.manifest.key == *key);
            let (Some(step), Some(kind), Some(live)) = (step, kinds.get(key), live.objects.get(key)) else { continue };
            outcome.result = replace(&self.client, &step.manifest, kind, live).await;
            outcome.replaced = outcome.result.is_ok();
        }
    }
}

/// How to ask for an object that is wanted; `None` where its kind is not served.
fn target(object: &Desired, kinds: &BTreeMap<ObjectKey, Kind>) -> Option<Target> {
    let key = &object.manifest.key;
    Some(Target { key: key.clone(), kind: kinds.get(key)?.clone() })
}

/// Objects that can't be read hold what is wanted of them.
pub(super) fn hold_unreadable(desired: &mut [Desired], live: &Live) {
    for object in desired {
        if let Some(error) = live.unreadable.get(&object.manifest.key) {
            let Refusal { reason, message } = apply::refusal(error);
            object.obstacle = Some((reason, message));
        }
    }
}

/// How to ask for the objects of an inventory, and why that is not known of the others: what serves their kind is down. A kind
/// that is no longer served has no objects, if that is certain.
pub(super) async fn targets(
    rows: &[Row],
    client: &Client,
    kinds: &Kinds,
) -> (Vec<Target>, BTreeMap<ObjectKey, kube::Error>) {
    let (mut targets, mut unasked) = (Vec::with_capacity(rows.len()), BTreeMap::new());
    for row in rows {
        match kind_of(row, client, kinds).await {
            Ok(Some(kind)) => targets.push(Target { key: key_of(row), kind }),
            Ok(None) => {}
            Err(error) => {
                unasked.insert(key_of(row), error);
            }
        }
    }
    (targets, unasked)
}

async fn kind_of(row: &Row, client: &Client, kinds: &Kinds) -> Result<Option<Kind>, kube::Error> {
    if let Some(kind) = kinds.get(client, &join_api_version(&row.group, &row.version), &row.kind).await? {
        return Ok(Some(kind));
    }
    // The version in which it was applied may be gone, the kind still served.
    match kinds.certain(client, &row.group, &row.kind).await {
        // Who may not see definitions takes discovery's word.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        found => found,
    }
}

/// What the rows of objects say that nobody wants any more and that can't be read.
const UNREAD: &str = "can't be read: ";

/// Says in the rows of such objects why, and no longer of those that can be read. They stay until it is known what became of
/// them.
pub(super) fn tell_unread(rows: &mut [Row], live: &Live) {
    for row in rows {
        let key = key_of(row);
        if let Some(error) = live.unreadable.get(&key) {
            refused(row, Reason::ApplyFailed, &format!("{UNREAD}{}", apply::refusal(error).message));
            row.health.clear();
        } else if row.error.starts_with(UNREAD) {
            (row.reason, row.error) = (None, String::new());
            healthy(row, live.objects.get(&key));
        }
    }
}

/// Inventory rows of live objects that nobody wants any more. Each tells of its object what `recorded` does: a row that says
/// nothing would be the Go operator's.
pub(super) fn leftover(keys: &[ObjectKey], live: &Live, recorded: &[Row]) -> Vec<Row> {
    let row = |key: &ObjectKey| {
        let live = live.objects.get(key)?;
        let before = recorded.iter().find(|row| key_of(row) == *key);
        let found = || format!(".{}", plan::owned_digest(live, &[]).unwrap_or_default());
        let digest = before.map_or_else(found, |row| kept(Some(row)));
        Some(Row { digest, ..row_of(&Manifest::from_value(live.clone()).ok()?) })
    };
    keys.iter().filter_map(row).collect()
}

/// The rows of these objects, as they were.
pub(super) fn as_recorded(keys: &[ObjectKey], recorded: &[Row]) -> Vec<Row> {
    keys.iter().filter_map(|key| recorded.iter().find(|row| key_of(row) == *key)).cloned().collect()
}

/// An inventory row of an object, not synced yet.
pub(super) fn row_of(manifest: &Manifest) -> Row {
    row_named(&manifest.key, &manifest.version)
}

/// The same by its name, and the version of its kind.
pub(super) fn row_named(key: &ObjectKey, version: &str) -> Row {
    Row {
        group: key.group.clone(),
        version: version.to_owned(),
        kind: key.kind.clone(),
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        ..Row::default()
    }
}

/// The inventory row of an object that is about to be applied for the first time.
pub(super) fn about_to_apply(manifest: &Manifest) -> Row {
    Row { error: "about to be applied".to_owned(), digest: ABOUT_TO_APPLY.to_owned(), ..row_of(manifest) }
}

/// The inventory after a pass: a row per object, in the order of applying.
pub(super) fn rows(plan: &Plan, mut outcomes: BTreeMap<ObjectKey, Outcome>, live: &Live, before: &[Row]) -> Vec<Row> {
    plan.steps
        .iter()
        .map(|step| {
            let key = &step.manifest.key;
            let mut row = row_of(&step.manifest);
            let previous = before.iter().find(|row| plan::key_of(row) == *key);
            match (&step.action, outcomes.remove(key).map(|outcome| outcome.result)) {
                (Act::Unchanged { digest }, _) => {
                    row.digest.clone_from(digest);
                    healthy(&mut row, live.objects.get(key));
                }
                (Act::Apply { .. }, Some(Ok(object))) => {
                    let owned = plan::owned_digest(&object, &step.ignored).unwrap_or_default();
                    row.digest = format!("{}.{owned}", step.wanted);
                    healthy(&mut row, Some(&object));
                }
                (Act::Apply { .. }, Some(Err(Refusal { reason, message }))) => {
                    let is_absent = !live.objects.contains_key(key) && !live.unreadable.contains_key(key);
                    refused(&mut row, reason, &message);
                    row.digest = after_refusal(previous, reason, is_absent);
                    let is_of_go = previous.is_some_and(is_of_go_operator);
                    if matches!(reason, Reason::Invalid | Reason::ImmutableField) && !is_of_go {
                        row.digest = format!("{}.", step.wanted);
                    }
                }
                (Act::Apply { .. }, None) => {
                    refused(&mut row, Reason::ApplyFailed, "not sent");
                    row.digest = kept(previous);
                }
                (Act::Hold { .. }, _)
                    if is_unseen(step) && previous.is_some_and(|row| was_synced(row, &step.wanted)) =>
                {
                    // Nothing says that it is worse than it was when it was last seen.
                    row = previous.cloned().unwrap_or_default();
                }
                (Act::Hold { reason, message, digest }, _) => {
                    refused(&mut row, *reason, message);
                    row.digest.clone_from(digest);
                }
            }
            row
        })
        .collect()
}

/// Whether an object could not be looked at: the API server did not answer about it.
pub(super) fn is_unseen(step: &Step) -> bool {
    matches!(step.action, Act::Hold { reason: Reason::ApplyFailed, .. })
}

fn healthy(row: &mut Row, live: Option<&Value>) {
    row.status = ResourceStatus::Synced;
    if let Some(live) = live {
        let health = health::of(live);
        health.as_str().clone_into(&mut row.health);
        row.error = condition::cut(health.message(), condition::MAX_MESSAGE);
    }
}

fn refused(row: &mut Row, reason: Reason, message: &str) {
    row.status = ResourceStatus::NotSynced;
    row.reason = Some(reason);
    row.error = condition::cut(message, condition::MAX_MESSAGE);
}
