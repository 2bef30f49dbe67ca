//! What has to be done with each object: apply it, leave it, hold it; and what to prune.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::api::cluster_stack::{DriftMode, IgnoreDifference};
use crate::api::cluster_stack_release::Resource;
use crate::api::condition::Reason;
use crate::api::{
    FIELD_MANAGER, HELM_RESOURCE_POLICY, OWNER_KIND_LABEL, OWNER_NAME_LABEL, OWNER_NAMESPACE_LABEL, PRUNE, REPLACE,
};
use crate::core::fields;
use crate::core::inventory::{NEVER_APPLIED, is_of_go_operator, kept, record};
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

/// What of the inventory nobody wants any more, also where nothing at all is wanted: for who knows that this is no mistake.
pub fn unwanted(input: &Input<'_>) -> Prune {
    let recorded: Vec<ObjectKey> = input.recorded.iter().map(key_of).collect();
    let wanted: BTreeSet<&ObjectKey> = input.desired.iter().map(|desired| &desired.manifest.key).collect();
    // Others copy labels: what only they tell of is ours if we applied it.
    let found = input.live.iter().filter(|(_, live)| fields::entry(live, FIELD_MANAGER).is_some()).map(|(key, _)| key);
    let inventory: BTreeSet<&ObjectKey> = recorded.iter().chain(found).collect();
    prune(input.owner, input.live, input.recorded, inventory.into_iter().filter(|key| !wanted.contains(key)))
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
    let ignored = ignored_pointers(input.ignore, &manifest.key);
    let action = decide(input, desired, row, live, &ignored);
    let mut sent = manifest.clone();
    if let (Action::Apply { .. }, Some(live)) = (&action, live) {
        fields::keep_live(&mut sent.object, live, &ignored);
    }
    let replace = may_be_replaced(desired, live);
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
    let mut migrate = false;
    if let Some(live) = live {
        match ownership::of(live, input.owner, row.is_some_and(is_of_go_operator)) {
            Ownership::Ours | Ownership::Nobodys => {}
            Ownership::OfGoOperator => migrate = true,
            Ownership::Other(_) if sibling(input, live) == Some(Sibling::Older) => {}
            Ownership::Other(_) if sibling(input, live) == Some(Sibling::Newer) => {
                return Action::Unchanged { digest: format!("{wanted}.") };
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
        && !(input.retry_refused || (reason == Reason::ImmutableField && may_be_replaced(desired, live)))
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
    if owned_now == owned_then { Ok(format!("{wanted}.{owned_now}")) } else { Err(drift(manifest, live, ignored)) }
}

fn drift(manifest: &Manifest, live: &Value, ignored: &[String]) -> Why {
    let mut fields = fields::differences(&manifest.object, live, 5);
    fields.retain(|field| !ignored.contains(field));
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
    differs.iter().all(|field| ignored.contains(field))
        && owned_digest(&as_if_applied, ignored) == owned_digest(live, ignored)
}

/// Digest over the fields that are ours in a live object. `None` if none are.
pub fn owned_digest(live: &Value, ignored: &[String]) -> Option<String> {
    let mut owned = fields::owned(live, FIELD_MANAGER)?;
    fields::without_pointers(&mut owned, ignored);
    Some(short_digest(&owned))
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
    let keeps = annotation(live, HELM_RESOURCE_POLICY) == Some("keep") || annotation(live, PRUNE) == Some("disabled");
    let kind = RETAINED_KINDS.contains(&(key.group.as_str(), key.kind.as_str()));
    keeps || (kind && annotation(live, PRUNE) != Some("enabled"))
}

/// Whether an object may be deleted and made anew: the stack says so, and it is of no kind that is never pruned.
fn may_be_replaced(desired: &Desired, live: Option<&Value>) -> bool {
    let allowed = desired.replace || desired.manifest.annotation(REPLACE) == Some("true");
    allowed && live.is_none_or(|live| !is_retained(&desired.manifest.key, live))
}

/// What becomes of objects of `owner` that nobody wants any more, in the order of their deletion; `recorded` is its
/// inventory.
pub fn prune<'a>(
    owner: &Owner,
    live: &BTreeMap<ObjectKey, Value>,
    recorded: &[Resource],
    gone: impl IntoIterator<Item = &'a ObjectKey>,
) -> Prune {
    let mut prune = Prune::default();
    for key in gone {
        match live.get(key) {
            Some(live) if !is_applied_by(owner, key, live, recorded) => prune.forget.push(key.clone()),
            Some(live) if is_retained(key, live) => prune.retain.push(key.clone()),
            Some(_) => prune.delete.push(key.clone()),
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
mod tests {
    use super::*;
    use serde_json::json;

    static NO_SIBLINGS: BTreeMap<String, Sibling> = BTreeMap::new();

    fn owner() -> Owner {
        Owner { kind: "ClusterStackRelease".into(), namespace: "shop".into(), name: "docker-x-1-34-v1".into() }
    }

    fn desired(value: &str) -> Desired {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "shop"}, "data": {"k": value}});
        let manifest = Manifest::from_value(object).unwrap().with_labels(owner().labels());
        Desired { manifest, obstacle: None, create_only: false, replace: false }
    }

    /// The live object after `value` was applied, `data.k` then changed to `now`.
    fn live(value: &str, now: &str) -> Value {
        let mut object = desired(value).manifest.object;
        object["data"]["k"] = now.into();
        let labels: serde_json::Map<String, Value> =
            owner().labels().iter().map(|(key, _)| (format!("f:{key}"), json!({}))).collect();
        object["metadata"]["managedFields"] = json!([
            {"manager": "clusterstack", "operation": "Apply", "fieldsV1": {"f:data": {"f:k": {}}, "f:metadata": {"f:labels": labels}}},
            {"manager": "vandal", "operation": "Update", "fieldsV1": {"f:data": {"f:k": {}}}},
        ]);
        object
    }

    fn row(value: &str) -> Resource {
        let digest =
            format!("{}.{}", desired(value).manifest.digest(), owned_digest(&live(value, value), &[]).unwrap());
        Resource {
            version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: "shop".into(),
            name: "a".into(),
            digest,
            ..Resource::default()
        }
    }

    fn action(
        desired: &Desired,
        recorded: &[Resource],
        live: Option<Value>,
        change: impl FnOnce(&mut Input<'_>),
    ) -> Action {
        let live = live.map(|live| (desired.manifest.key.clone(), live)).into_iter().collect();
        let (owner, fights) = (owner(), BTreeMap::new());
        let mut input = Input {
            owner: &owner,
            desired: std::slice::from_ref(desired),
            recorded,
            live: &live,
            ignore: &[],
            drift: DriftMode::Correct,
            fights: &fights,
            retry_refused: false,
            siblings: &NO_SIBLINGS,
        };
        change(&mut input);
        plan(&input).steps.remove(0).action
    }

    fn shown(action: &Action) -> String {
        match action {
            Action::Apply { why, migrate } => format!("apply {why:?}{}", if *migrate { " migrate" } else { "" }),
            Action::Unchanged { .. } => "unchanged".into(),
            Action::Hold { reason, .. } => format!("hold {reason}"),
        }
    }

    #[test]
    fn what_is_created_only_is_left_as_it_is_once_it_is_there() {
        let only = Desired { create_only: true, ..desired("2") };
        let mut foreign = live("1", "1");
        foreign["metadata"]["labels"] = json!({crate::api::OWNER_NAME_LABEL: "other"});
        for (name, live, expected) in [
            ("missing", None, "apply New"),
            ("otherwise", Some(live("1", "1")), "unchanged"),
            ("somebody else's", Some(foreign), "unchanged"),
        ] {
            assert_eq!(shown(&action(&only, &[], live, |_| {})), expected, "{name}");
        }
    }

    #[test]
    fn an_immutable_field_is_tried_again_only_where_the_object_may_be_replaced() {
        let mut refused = row("2");
        refused.reason = Some(Reason::ImmutableField);
        refused.digest = format!("{}.", desired("2").manifest.digest());
        let annotated = |key: &str, value: &str| {
            let mut live = live("1", "1");
            live["metadata"]["annotations"] = json!({key: value});
            live
        };
        let replaced = Desired { replace: true, ..desired("2") };
        for (name, desired, live, expected) in [
            ("not allowed", desired("2"), live("1", "1"), "hold"),
            ("allowed by the stage", replaced.clone(), live("1", "1"), "apply"),
            ("never deleted", replaced, annotated(HELM_RESOURCE_POLICY, "keep"), "hold"),
        ] {
            let shown = shown(&action(&desired, std::slice::from_ref(&refused), Some(live), |_| {}));
            assert!(shown.starts_with(expected), "{name}: {shown}");
        }
        let volume = ObjectKey { kind: "PersistentVolumeClaim".into(), ..ObjectKey::default() };
        let mut claim = Desired { replace: true, ..desired("2") };
        claim.manifest.key = volume;
        assert!(!may_be_replaced(&claim, Some(&live("1", "1"))));
        let mut object = desired("2").manifest.object;
        object["metadata"]["annotations"] = json!({REPLACE: "true"});
        let own = Desired { manifest: Manifest::from_value(object).unwrap(), ..desired("2") };
        assert!(may_be_replaced(&own, Some(&live("1", "1"))));
    }

    #[test]
    fn an_empty_render_prunes_nothing_unless_it_is_known_to_be_none() {
        let (owner, fights) = (owner(), BTreeMap::new());
        let live = BTreeMap::from([(desired("1").manifest.key, live("1", "1"))]);
        let input = Input {
            owner: &owner,
            desired: &[],
            recorded: &[row("1")],
            live: &live,
            ignore: &[],
            drift: DriftMode::Correct,
            fights: &fights,
            retry_refused: false,
            siblings: &NO_SIBLINGS,
        };
        assert_eq!(plan(&input), Plan { empty_render: true, ..Plan::default() });
        assert_eq!(unwanted(&input).delete, [desired("1").manifest.key]);
    }

    #[test]
    fn an_object_is_sent_only_if_something_differs() {
        let drifted = r#"apply Drifted { fields: ["/data/k"], rivals: ["vandal"] }"#;
        let mut foreign = live("1", "1");
        foreign["metadata"]["labels"] = json!({crate::api::OWNER_NAME_LABEL: "other"});
        let mut refused = row("1");
        refused.reason = Some(Reason::Invalid);
        for (name, recorded, live, expected) in [
            ("new", vec![], None, "apply New"),
            ("unchanged", vec![row("1")], Some(live("1", "1")), "unchanged"),
            ("another value is wanted", vec![row("0")], Some(live("0", "0")), "apply Changed"),
            ("changed by hand", vec![row("1")], Some(live("1", "2")), drifted),
            ("deleted by hand", vec![row("1")], None, "apply Deleted"),
            ("status lost, nothing changed", vec![], Some(live("1", "1")), "unchanged"),
            ("status lost, changed by hand", vec![], Some(live("1", "2")), "apply Changed"),
            ("somebody else's", vec![row("1")], Some(foreign), "hold OwnedByOther"),
            ("refused before", vec![refused], None, "hold Invalid"),
        ] {
            assert_eq!(shown(&action(&desired("1"), &recorded, live, |_| {})), expected, "{name}");
        }
    }

    #[test]
    fn what_two_releases_of_a_stack_have_in_common_belongs_to_the_newer_one() {
        let mut common = live("1", "1");
        common["metadata"]["labels"][OWNER_NAME_LABEL] = "docker-x-1-34-v9".into();
        for (sibling, expected) in
            [(None, "hold OwnedByOther"), (Some(Sibling::Older), "apply Changed"), (Some(Sibling::Newer), "unchanged")]
        {
            let siblings = sibling.map(|sibling| ("docker-x-1-34-v9".to_owned(), sibling)).into_iter().collect();
            let (owner, wanted, fights) = (owner(), desired("1"), BTreeMap::new());
            let live = [(wanted.manifest.key.clone(), common.clone())].into();
            let input = Input {
                owner: &owner,
                desired: std::slice::from_ref(&wanted),
                recorded: &[],
                live: &live,
                ignore: &[],
                drift: DriftMode::Correct,
                fights: &fights,
                retry_refused: false,
                siblings: &siblings,
            };
            assert_eq!(shown(&plan(&input).steps[0].action), expected, "{sibling:?}");
        }
    }

    #[test]
    fn what_was_refused_is_sent_again_when_asked_or_changed() {
        let mut refused = row("1");
        refused.reason = Some(Reason::Invalid);
        let recorded = [refused];
        assert_ne!(shown(&action(&desired("1"), &recorded, None, |input| input.retry_refused = true)), "hold Invalid");
        assert_ne!(shown(&action(&desired("2"), &recorded, None, |_| {})), "hold Invalid");
    }

    #[test]
    fn drift_is_corrected_warned_of_or_left_to_a_rival() {
        let live = || Some(live("1", "2"));
        let recorded = [row("1")];
        assert_eq!(shown(&action(&desired("1"), &recorded, live(), |i| i.drift = DriftMode::Warn)), "hold Drifted");
        let fights = [(desired("1").manifest.key, "fought over".to_owned())].into();
        let (owner, desired_one) = (owner(), desired("1"));
        let live_map = [(desired_one.manifest.key.clone(), live().unwrap())].into();
        let input = Input {
            owner: &owner,
            desired: std::slice::from_ref(&desired_one),
            recorded: &recorded,
            live: &live_map,
            ignore: &[],
            drift: DriftMode::Correct,
            fights: &fights,
            retry_refused: false,
            siblings: &NO_SIBLINGS,
        };
        assert_eq!(shown(&plan(&input).steps[0].action), "hold DriftFight");
    }

    #[test]
    fn ignored_fields_are_left_to_others() {
        let ignore = [IgnoreDifference {
            kind: "ConfigMap".into(),
            json_pointers: vec!["/data/k".into()],
            ..IgnoreDifference::default()
        }];
        let digest = format!(
            "{}.{}",
            desired("1").manifest.digest(),
            owned_digest(&live("1", "1"), &["/data/k".into()]).unwrap()
        );
        let recorded = [Resource { digest, ..row("1") }];
        let (owner, wanted, fights) = (owner(), desired("1"), BTreeMap::new());
        let live = [(wanted.manifest.key.clone(), live("1", "2"))].into();
        let input = Input {
            owner: &owner,
            desired: std::slice::from_ref(&wanted),
            recorded: &recorded,
            live: &live,
            ignore: &ignore,
            drift: DriftMode::Correct,
            fights: &fights,
            retry_refused: false,
            siblings: &NO_SIBLINGS,
        };
        assert_eq!(shown(&plan(&input).steps[0].action), "unchanged");
    }

    #[test]
    fn pruning_spares_what_holds_more_than_itself() {
        let object = |api: &str, kind: &str, name: &str, metadata: Value| {
            let mut object = json!({"apiVersion": api, "kind": kind, "metadata": metadata});
            object["metadata"]["name"] = name.into();
            let labels: serde_json::Map<_, _> =
                owner().labels().iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
            let given = object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
            object["metadata"]["labels"] = Value::Object(labels.into_iter().chain(given).collect());
            object
        };
        let mut theirs = object("v1", "ConfigMap", "theirs", json!({}));
        theirs["metadata"]["labels"].take();
        theirs["metadata"]["managedFields"] =
            json!([{"manager": "kubectl-create", "operation": "Update", "fieldsV1": {}}]);
        let objects = [
            theirs,
            object("v1", "ConfigMap", "goes", json!({})),
            object("v1", "ConfigMap", "helm-keep", json!({"annotations": {"helm.sh/resource-policy": "keep"}})),
            object("v1", "ConfigMap", "disabled", json!({"annotations": {"clusterstack.x-k8s.io/prune": "disabled"}})),
            object("v1", "ConfigMap", "taken", json!({"labels": {crate::api::OWNER_NAME_LABEL: "other"}})),
            object("v1", "Namespace", "stays", json!({})),
            object("v1", "Namespace", "opted-in", json!({"annotations": {"clusterstack.x-k8s.io/prune": "enabled"}})),
            object("cluster.x-k8s.io/v1beta1", "ClusterClass", "class", json!({})),
            object("v1", "PersistentVolumeClaim", "data", json!({})),
        ];
        let live: BTreeMap<_, _> =
            objects.into_iter().map(|o| (Manifest::from_value(o.clone()).unwrap().key, o)).collect();
        let recorded: Vec<Resource> = live
            .keys()
            .map(|k| Resource {
                group: k.group.clone(),
                kind: k.kind.clone(),
                name: k.name.clone(),
                ..Resource::default()
            })
            .collect();
        let (owner, keeps, fights) = (owner(), desired("1"), BTreeMap::new());
        let mut input = Input {
            owner: &owner,
            desired: std::slice::from_ref(&keeps),
            recorded: &recorded,
            live: &live,
            ignore: &[],
            drift: DriftMode::Correct,
            fights: &fights,
            retry_refused: false,
            siblings: &NO_SIBLINGS,
        };
        let names = |keys: &[ObjectKey]| keys.iter().map(|k| k.name.clone()).collect::<Vec<_>>();
        let prune = plan(&input).prune;
        assert_eq!(names(&prune.delete), ["class", "goes", "opted-in"]);
        assert_eq!(names(&prune.retain), ["disabled", "helm-keep", "stays", "data"]);
        assert_eq!(names(&prune.forget), ["taken", "theirs"]);

        input.desired = &[];
        let held = plan(&input);
        assert!(held.empty_render && held.prune == Prune::default());
    }

    #[test]
    fn five_corrections_in_ten_minutes_are_a_fight() {
        let at = |minute: i64| Timestamp::from_second(minute * 60).unwrap();
        let five: Vec<_> = (0..5).map(at).collect();
        assert!(is_fight(&five, at(5)));
        assert!(!is_fight(&five[1..], at(5)));
        assert!(!is_fight(&five, at(10)));
    }
}
