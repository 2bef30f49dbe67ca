//! What has to be done with each object: apply it, leave it, hold it; and what to prune.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::api::cluster_stack::{DriftMode, IgnoreDifference};
use crate::api::cluster_stack_release::Resource;
use crate::api::condition::Reason;
use crate::api::{
    FIELD_MANAGER, GROUP, HELM_RESOURCE_POLICY, MANAGED_BY_LABEL, OWNER_KIND_LABEL, OWNER_NAME_LABEL,
    OWNER_NAMESPACE_LABEL, PRUNE, REPLACE,
};
use crate::core::fields;
use crate::core::inventory::{
    NEVER_APPLIED, is_left_to_sibling, is_of_go_operator, kept, left_to_sibling, record, was_applied,
    was_refused_from_the_first, was_synced,
};
use crate::core::manifest::{Manifest, ObjectKey, annotation, label, short_digest, wave};
use crate::core::ownership::{self, Owner, Ownership};

/// An object as the release wants it, and whether it may be sent at all.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The object, in its namespace and with its owner's labels.
    pub manifest: Manifest,
    /// Why it can't be sent: its kind is not served, or the rights do not reach.
    pub obstacle: Option<(Reason, String)>,
    /// Created where it does not exist, and otherwise left as it is.
    pub create_only: bool,
    /// Deleted and made anew where a field that can't be changed did.
    pub replace: bool,
    /// JSON pointers of fields that are left to others, beside those of [`Input::ignore`].
    pub ignored: Vec<String>,
}

/// What a plan is made from.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    /// Who applies.
    pub owner: &'a Owner,
    /// What is wanted, in the order of applying.
    pub desired: &'a [Desired],
    /// The inventory of the last pass.
    pub recorded: &'a [Resource],
    /// The live objects among `desired` and the inventory.
    pub live: &'a BTreeMap<ObjectKey, Value>,
    /// Those that could not be read: whether they are there is not known.
    pub unread: &'a BTreeSet<ObjectKey>,
    /// Fields that are left to others.
    pub ignore: &'a [IgnoreDifference],
    /// What to do about drift.
    pub drift: DriftMode,
    /// Objects that are left for a while because somebody fights over them; with the message.
    pub fights: &'a BTreeMap<ObjectKey, String>,
    /// Send again what the API server refused before.
    pub retry_refused: bool,
    /// The other releases of the same ClusterStack, by the value of their owner label. An object that two of them have
    /// in common belongs to the newest one that has it.
    pub siblings: &'a BTreeMap<String, Sibling>,
    /// What newer releases that stay have: what was left to one of them and is deleted is theirs to put back, or to leave so.
    pub of_newer: &'a BTreeSet<ObjectKey>,
    /// Secrets that others made stay theirs: whose rights apply is not who brought the chart.
    pub leaves_secrets: bool,
}

/// How another release of the same ClusterStack stands to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sibling {
    /// An older release: what it has in common with this one is taken over.
    Older,
    /// A newer release: what it has in common with this one is left to it, and counts as applied.
    Newer,
}

/// The sibling that applied a live object.
fn sibling(input: &Input<'_>, live: &Value) -> Option<Sibling> {
    let of_kind = label(live, OWNER_KIND_LABEL) == Some(&input.owner.kind);
    let of_namespace = label(live, OWNER_NAMESPACE_LABEL) == Some(&input.owner.namespace);
    let name = label(live, OWNER_NAME_LABEL).filter(|_| of_kind && of_namespace)?;
    input.siblings.get(name).copied()
}

/// Why an object is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It does not exist and never did.
    New,
    /// The release wants it otherwise than it was last applied.
    Changed,
    /// It was deleted behind our back.
    Deleted,
    /// Fields of ours were changed behind our back.
    Drifted {
        /// JSON pointers, a few of them.
        fields: Vec<String>,
        /// The field managers that own them now, the latest first.
        rivals: Vec<String>,
    },
}

/// What to do with an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send it.
    Apply {
        /// Why.
        why: Why,
        /// The managed fields of the Go operator become ours first.
        migrate: bool,
    },
    /// Send nothing; the digest to record.
    Unchanged {
        /// For the next pass.
        digest: String,
    },
    /// Don't touch it; why.
    Hold {
        /// In one word.
        reason: Reason,
        /// For people.
        message: String,
        /// For the next pass.
        digest: String,
    },
}

impl Action {
    /// Whether an object is left as somebody changed it, and not because it is refused.
    pub fn is_left_changed(&self) -> bool {
        matches!(self, Self::Hold { reason: Reason::Drifted | Reason::DriftFight, .. })
    }
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The object to send, with the live values of ignored fields.
    pub manifest: Manifest,
    /// What to do.
    pub action: Action,
    /// Digest of the object as the release wants it.
    pub wanted: String,
    /// JSON pointers of fields that are left to others.
    pub ignored: Vec<String>,
    /// It may be deleted and made anew where a field that can't be changed did.
    pub replace: bool,
    /// Wave of the apply: a wave is done before the next one starts.
    pub wave: u8,
}

/// What no longer belongs to the release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prune {
    /// To delete, in the order of deleting.
    pub delete: Vec<ObjectKey>,
    /// Never deleted; they stay in the inventory as retained.
    pub retain: Vec<ObjectKey>,
    /// They belong to somebody else now, or are gone: forgotten.
    pub forget: Vec<ObjectKey>,
    /// They could not be read: they stay in the inventory until it is known what becomes of them.
    pub unread: Vec<ObjectKey>,
}

/// The whole plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// A step per object, in the order of applying.
    pub steps: Vec<Step>,
    /// What goes after every step succeeded.
    pub prune: Prune,
    /// The render is empty although there were objects: nothing is pruned.
    pub empty_render: bool,
}

/// Makes the plan.
pub fn plan(input: &Input<'_>) -> Plan {
    let recorded: BTreeMap<ObjectKey, &Resource> = input.recorded.iter().map(|row| (key_of(row), row)).collect();
    let steps: Vec<Step> = input.desired.iter().map(|desired| step(input, desired, &recorded)).collect();
    let empty_render = input.desired.is_empty() && !(recorded.is_empty() && input.live.is_empty());
    let prune = if empty_render { Prune::default() } else { unwanted(input) };
    Plan { steps, prune, empty_render }
}

/// Why nothing is applied of a release of which nothing ever was: Clusters could not use it. `other` is a release of its ClusterStack
/// that has a ClusterClass.
pub fn unusable(desired: &[Desired], other: Option<&str>) -> Option<String> {
    if desired.is_empty() {
        return Some("the chart renders no object: publish a release with objects".to_owned());
    }
    let has_class = desired.iter().any(|desired| desired.manifest.key.is_cluster_class());
    let other = other.filter(|_| !has_class)?;
    Some(format!(
        "the chart renders no ClusterClass, and that of {other} does: Clusters could not use the release, and nothing of it is applied. Publish one with a ClusterClass"
    ))
}

/// What of the inventory nobody wants any more, also where nothing at all is wanted: for who knows that this is no mistake.
pub fn unwanted(input: &Input<'_>) -> Prune {
    let recorded: Vec<ObjectKey> = input.recorded.iter().map(key_of).collect();
    let wanted: BTreeSet<&ObjectKey> = input.desired.iter().map(|desired| &desired.manifest.key).collect();
    // Others copy labels: what only they tell of is ours if we applied it.
    let found = input.live.iter().filter(|(_, live)| fields::entry(live, FIELD_MANAGER).is_some()).map(|(key, _)| key);
    let inventory: BTreeSet<&ObjectKey> = recorded.iter().chain(found).collect();
    let gone = inventory.into_iter().filter(|key| !wanted.contains(key));
    prune(input.owner, (input.live, input.unread), input.recorded, gone)
}

/// Whether the inventory says that all is applied just as it is wanted, by us, and nothing else is there. What became of the
/// objects since then is another question.
pub fn is_settled(rows: &[Resource], desired: &[Desired]) -> bool {
    let rows: BTreeMap<ObjectKey, &Resource> = rows.iter().map(|row| (key_of(row), row)).collect();
    let is_done = |object: &Desired| {
        let row = rows.get(&object.manifest.key);
        let is_synced = |row: &&Resource| was_applied(row) && was_synced(row, &object.manifest.digest());
        object.obstacle.is_none() && row.is_some_and(is_synced)
    };
    // Without any there is nothing that a watch could tell of.
    !desired.is_empty() && rows.len() == desired.len() && desired.iter().all(is_done)
}

/// The identity of an inventory row.
pub fn key_of(row: &Resource) -> ObjectKey {
    ObjectKey {
        group: row.group.clone(),
        kind: row.kind.clone(),
        namespace: row.namespace.clone(),
        name: row.name.clone(),
    }
}

fn step(input: &Input<'_>, desired: &Desired, recorded: &BTreeMap<ObjectKey, &Resource>) -> Step {
    let manifest = &desired.manifest;
    let row = recorded.get(&manifest.key).copied();
    let live = input.live.get(&manifest.key);
    let mut ignored = ignored_pointers(input.ignore, &manifest.key);
    ignored.extend_from_slice(&desired.ignored);
    let action = decide(input, desired, row, live, &ignored);
    let mut sent = manifest.clone();
    if let (Action::Apply { .. }, Some(live)) = (&action, live) {
        fields::keep_live(&mut sent.object, live, &ignored, is_own_key);
    }
    let replace = may_be_replaced(input, desired, live);
    Step { wave: wave(&sent.key), wanted: manifest.digest(), manifest: sent, action, ignored, replace }
}

fn decide(
    input: &Input<'_>,
    desired: &Desired,
    row: Option<&Resource>,
    live: Option<&Value>,
    ignored: &[String],
) -> Action {
    let manifest = &desired.manifest;
    let wanted = manifest.digest();
    let hold = |reason, message: String| {
        let digest = if row.is_some_and(is_of_go_operator) { kept(row) } else { NEVER_APPLIED.to_owned() };
        Action::Hold { reason, message, digest }
    };
    if let Some((reason, message)) = &desired.obstacle {
        // What was recorded stays: it tells later whether the object was changed or deleted meanwhile.
        return Action::Hold { reason: *reason, message: message.clone(), digest: kept(row) };
    }
    if desired.create_only && live.is_some() {
        return Action::Unchanged { digest: kept(row) };
    }
    if live.is_none() && row.is_some_and(is_left_to_sibling) && input.of_newer.contains(&manifest.key) {
        return Action::Unchanged { digest: left_to_sibling(&wanted) };
    }
    let mut migrate = false;
    if let Some(live) = live {
        match ownership::of(live, input.owner, row.is_some_and(is_of_go_operator)) {
            Ownership::Nobodys if input.leaves_secrets && manifest.key.is_secret() => {
                let message = "left alone, somebody else made it, and the chart's author may not have the rights to change it: rename it in the \
                               release, or set spec.serviceAccountName to a ServiceAccount that has them";
                return hold(Reason::OwnedByOther, message.to_owned());
            }
            Ownership::Ours | Ownership::Nobodys => {}
            Ownership::OfGoOperator => migrate = true,
            Ownership::Other(_) if sibling(input, live) == Some(Sibling::Older) => {}
            Ownership::Other(_) if sibling(input, live) == Some(Sibling::Newer) => {
                return Action::Unchanged { digest: left_to_sibling(&wanted) };
            }
            Ownership::Other(who) => {
                return hold(
                    Reason::OwnedByOther,
                    format!(
                        "left alone, it belongs to somebody else: {who}; rename it in the release or give it up there"
                    ),
                );
            }
        }
    }
    if let Some(row) = row
        && let Some(reason @ (Reason::Invalid | Reason::ImmutableField)) = row.reason
        && record(row).0 == wanted
        && !(input.retry_refused || is_made_anew(reason, input, desired, live))
    {
        return Action::Hold { reason, message: row.error.clone(), digest: row.digest.clone() };
    }
    let why = match difference(manifest, &wanted, row, live, ignored) {
        Ok(digest) => return Action::Unchanged { digest },
        Err(why) => why,
    };
    if matches!(why, Why::Drifted { .. } | Why::Deleted) {
        if let Some(message) = input.fights.get(&manifest.key) {
            return Action::Hold { reason: Reason::DriftFight, message: message.clone(), digest: kept(row) };
        }
        if input.drift == DriftMode::Warn {
            return Action::Hold { reason: Reason::Drifted, message: drift_message(&why), digest: kept(row) };
        }
    }
    Action::Apply { why, migrate }
}

/// `Ok` with the digest to record if nothing differs, else why the object has to be sent.
fn difference(
    manifest: &Manifest,
    wanted: &str,
    row: Option<&Resource>,
    live: Option<&Value>,
    ignored: &[String],
) -> Result<String, Why> {
    let (applied, owned_then) = row.map(record).unwrap_or_default();
    let Some(live) = live else {
        return Err(if owned_then.is_empty() { Why::New } else { Why::Deleted });
    };
    let Some(owned_now) = owned_digest(live, ignored) else {
        return Err(if owned_then.is_empty() { Why::New } else { drift(manifest, live, ignored) });
    };
    if applied.is_empty() {
        // No record (a lost status): what is live may be just what is wanted.
        return if holds(live, manifest, ignored) { Ok(format!("{wanted}.{owned_now}")) } else { Err(Why::Changed) };
    }
    if applied != wanted {
        return Err(Why::Changed);
    }
    let rule = |owned: &str| owned.split_once(OF_RULES).map(|(_, rules)| rules.to_owned());
    if rule(owned_then).is_some_and(|then| rule(&owned_now) != Some(then)) {
        // What others took meanwhile is ours again, and its absence among our fields is no news.
        return Err(Why::Changed);
    }
    // Earlier versions recorded no rules.
    let is_same = owned_now == owned_then || owned_now.split_once(OF_RULES).is_some_and(|(now, _)| now == owned_then);
    if is_same { Ok(format!("{wanted}.{owned_then}")) } else { Err(drift(manifest, live, ignored)) }
}

fn drift(manifest: &Manifest, live: &Value, ignored: &[String]) -> Why {
    let mut fields = fields::differences(&manifest.object, live, 5);
    fields.retain(|field| !fields::is_left(field, ignored, is_own_key));
    let rivals = fields::rivals(live, FIELD_MANAGER, &fields);
    Why::Drifted { fields, rivals }
}

/// What happened to an object, for a message.
pub fn drift_message(why: &Why) -> String {
    match why {
        Why::Deleted => "deleted".to_owned(),
        Why::Drifted { fields, rivals } => {
            let by = if rivals.is_empty() { String::new() } else { format!(" by {}", rivals.join(", ")) };
            let what = if fields.is_empty() { "owned fields".to_owned() } else { fields.join(", ") };
            format!("changed{by}: {what}")
        }
        Why::New | Why::Changed => String::new(),
    }
}

/// Whether the live object already is what is wanted: every field of ours has the wanted value, and none is missing.
fn holds(live: &Value, manifest: &Manifest, ignored: &[String]) -> bool {
    let Some(entry) = fields::entry(live, FIELD_MANAGER) else { return false };
    let mut as_if_applied = manifest.object.clone();
    if let Some(metadata) = as_if_applied.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("managedFields".into(), Value::Array(vec![entry.clone()]));
    }
    let differs = fields::differences(&manifest.object, live, usize::MAX);
    differs.iter().all(|field| fields::is_left(field, ignored, is_own_key))
        && owned_digest(&as_if_applied, ignored) == owned_digest(live, ignored)
}

/// Between the digest of fields and that of what was ignored.
const OF_RULES: char = '-';

/// Changes where pointers mean other fields than before: what was recorded under the earlier meaning is no drift then.
const HOW_RULES_ARE_READ: u8 = 2;

/// Digest over the fields that are ours in a live object, and over which of them are left to others, if any are. `None` if none are
/// ours.
pub fn owned_digest(live: &Value, ignored: &[String]) -> Option<String> {
    let mut owned = fields::owned(live, FIELD_MANAGER)?;
    fields::without_pointers(&mut owned, live, ignored, is_own_key);
    let digest = short_digest(&owned);
    if ignored.is_empty() {
        return Some(digest);
    }
    let ignored: BTreeSet<&String> = ignored.iter().collect();
    Some(format!("{digest}{OF_RULES}{}", short_digest(&serde_json::json!([HOW_RULES_ARE_READ, ignored]))))
}

/// Whether a label or annotation is one by which the operator finds its objects: it is left to nobody.
pub fn is_own_key(key: &str) -> bool {
    key == MANAGED_BY_LABEL || key.split_once('/').is_some_and(|(prefix, _)| prefix == GROUP)
}

/// The pointers that `ignoreDifferences` names for an object.
pub fn ignored_pointers(ignore: &[IgnoreDifference], key: &ObjectKey) -> Vec<String> {
    ignore
        .iter()
        .filter(|rule| rule.group == key.group && rule.kind == key.kind)
        .filter(|rule| rule.name.as_ref().is_none_or(|name| *name == key.name))
        .flat_map(|rule| rule.json_pointers.iter().cloned())
        .collect()
}

/// Kinds whose objects hold more than themselves: never pruned unless the object opts in.
const RETAINED_KINDS: &[(&str, &str)] = &[
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("", "Namespace"),
    ("", "PersistentVolume"),
    ("", "PersistentVolumeClaim"),
];

/// Whether a live object is never pruned.
pub fn is_retained(key: &ObjectKey, live: &Value) -> bool {
    let prune = |value: &str| annotation(live, PRUNE).is_some_and(|given| given.eq_ignore_ascii_case(value));
    let keeps = annotation(live, HELM_RESOURCE_POLICY) == Some("keep") || prune("disabled");
    let kind = RETAINED_KINDS.contains(&(key.group.as_str(), key.kind.as_str()));
    keeps || (kind && !prune("enabled"))
}

/// Whether what was refused for a field that can't be changed may be sent again: somebody deleted the object, as he was told to, or we
/// may.
fn is_made_anew(reason: Reason, input: &Input<'_>, desired: &Desired, live: Option<&Value>) -> bool {
    reason == Reason::ImmutableField && (live.is_none() || may_be_replaced(input, desired, live))
}

/// Whether an object may be deleted and made anew: the stack says so, it is of no kind that is never pruned, and we or an older
/// release applied it. What nobody of ours applied is not deleted.
fn may_be_replaced(input: &Input<'_>, desired: &Desired, live: Option<&Value>) -> bool {
    let key = &desired.manifest.key;
    let allowed = desired.replace || desired.manifest.annotation(REPLACE) == Some("true");
    let is_ours = |live: &Value| {
        is_applied_by(input.owner, key, live, input.recorded) || sibling(input, live) == Some(Sibling::Older)
    };
    allowed && live.is_none_or(|live| !is_retained(key, live) && is_ours(live))
}

/// What becomes of objects of `owner` that nobody wants any more, in the order of their deletion: of those that live, and of
/// those that could not be read. `recorded` is its inventory.
pub fn prune<'a>(
    owner: &Owner,
    (live, unread): (&BTreeMap<ObjectKey, Value>, &BTreeSet<ObjectKey>),
    recorded: &[Resource],
    gone: impl IntoIterator<Item = &'a ObjectKey>,
) -> Prune {
    let mut prune = Prune::default();
    let never = |key: &ObjectKey| recorded.iter().any(|row| key_of(row) == *key && was_refused_from_the_first(row));
    for key in gone {
        match live.get(key) {
            Some(live) if !is_applied_by(owner, key, live, recorded) => prune.forget.push(key.clone()),
            Some(live) if is_retained(key, live) => prune.retain.push(key.clone()),
            Some(_) => prune.delete.push(key.clone()),
            None if unread.contains(key) && !never(key) => prune.unread.push(key.clone()),
            None => prune.forget.push(key.clone()),
        }
    }
    prune.delete.sort_by_cached_key(deletion_order);
    prune
}

/// Whether a live object was applied by `owner`, by us or the Go operator, and nobody else has it: it may be deleted.
pub fn is_applied_by(owner: &Owner, key: &ObjectKey, live: &Value, recorded: &[Resource]) -> bool {
    let by_go_operator = recorded.iter().any(|row| is_of_go_operator(row) && key_of(row) == *key);
    matches!(ownership::of(live, owner, by_go_operator), Ownership::Ours | Ownership::OfGoOperator)
}

/// Reverse of the install order; ClusterClasses come first.
pub fn deletion_order(key: &ObjectKey) -> (std::cmp::Reverse<usize>, ObjectKey) {
    (std::cmp::Reverse(crate::core::manifest::install_rank(key)), key.clone())
}

/// How often an object may be put back within [`FIGHT_WINDOW`] before it is left alone.
pub const FIGHT_ROUNDS: usize = 5;
/// Over how long corrections count, and how long a fought-over object is left alone.
pub const FIGHT_WINDOW: SignedDuration = SignedDuration::from_mins(10);

/// Whether the corrections so far (their times) are a fight.
pub fn is_fight(corrections: &[Timestamp], now: Timestamp) -> bool {
    corrections.iter().filter(|at| now.duration_since(**at) < FIGHT_WINDOW).count() >= FIGHT_ROUNDS
}

#[cfg(test)]
mod tests;
