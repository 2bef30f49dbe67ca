//! Deletes what a release applied, with the rights that it was applied with and no others.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use kube::runtime::reflector::ObjectRef;
use serde_json::{Value, json};

use super::super::rights::Rights;
use super::super::turns::beside_its_turn;
use super::super::{Context, Doing, Error};
use super::{lacks_inventory, owner_of, rows_of, search, targets};
use crate::api::cluster_stack_release::Resource as Row;
use crate::api::condition::Reason;
use crate::api::{ClusterStackRelease, FIELD_MANAGER, OWNER_NAME_LABEL};
use crate::core::fields;
use crate::core::inventory::was_refused_from_the_first;
use crate::core::manifest::{ObjectKey, label_value};
use crate::core::ownership::Owner;
use crate::core::plan::{self, deletion_order};
use crate::core::removal::{self, Account, Obstacle, Situation, Verdict};
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;
use crate::io::observe::{self, Lists, Target};
use crate::io::watch::Notice;
use crate::io::{apply, events, place};

/// Who is told to have changed the label of an object that goes from one release to another.
const HANDS_OVER: &str = "clusterstack-handover";

/// What came of a pass over the objects of a release that goes.
pub(super) enum Removal {
    /// All of it is gone, or goes with the namespace, but for these.
    Done {
        /// Left where they are.
        orphaned: Vec<Target>,
        /// Left too: they carry the labels of the release, and the operator never applied them.
        copies: Vec<Target>,
    },
    /// Something has to be waited for.
    Held(Trouble),
}

/// What the release applied: by its inventory, and where that tells only what was about to be applied, or nothing, by the labels of
/// objects, too. Who may not list a kind may still be told of what the inventory names.
pub(super) async fn targets_of(
    release: &ClusterStackRelease,
    rights: &Rights,
    ctx: &Context,
) -> Result<Vec<Target>, Error> {
    let mut all = targets(&rows_of(release), ctx).await?;
    if lacks_inventory(release) {
        let named: BTreeSet<ObjectKey> = all.iter().map(|target| target.key.clone()).collect();
        let found = search::labelled(release, rights, ctx).await?;
        all.extend(found.into_iter().filter(|target| !named.contains(&target.key)));
    }
    Ok(all)
}

/// Deletes what the release applied, as far as it may go now.
pub(super) async fn remove(
    (release, targets): (&ClusterStackRelease, &[Target]),
    rights: &Rights,
    ctx: &Context,
) -> Result<Removal, Error> {
    let owner = owner_of(release);
    let account = account_of(rights, &owner.namespace, ctx).await?;
    let found = match found(targets, &rows_of(release), &account, rights, &owner).await {
        Ok(found) => found,
        Err(trouble) => return Ok(Removal::Held(trouble)),
    };
    let mut removing = Removing { release, rights, ctx, account: &account, owner: &owner, obstacles: found.obstacles };
    let mut orphaned = match removing.decide().await? {
        Verdict::Wait(trouble) => return Ok(Removal::Held(trouble)),
        verdict => given_up(verdict),
    };
    let mut left: Vec<(&Target, &Value)> = targets
        .iter()
        .filter(|target| !removing.obstacles.contains_key(&target.key))
        .filter_map(|target| Some((target, found.left.get(&target.key)?)))
        .collect();
    left.sort_by_cached_key(|(target, _)| deletion_order(&target.key));
    let classes = left.iter().filter(|(target, _)| target.key.is_cluster_class()).count();
    // ClusterClasses go first and are waited for: a refusal there (somebody uses one after all) saves the templates.
    let (first, rest) = left.split_at(classes);
    for now in [first, rest] {
        let mut waiting = Vec::new();
        for (target, object) in now {
            match beside_its_turn(removing.delete(target, object)).await? {
                None => waiting.push(target.key.to_string()),
                Some(Verdict::Wait(trouble)) => return Ok(Removal::Held(trouble)),
                Some(verdict) => orphaned.extend(given_up(verdict)),
            }
        }
        if !waiting.is_empty() {
            waiting.truncate(10);
            let message = format!("waiting for {} to go", waiting.join(", "));
            return Ok(Removal::Held(Trouble::new(ErrorClass::Waiting, Reason::Deleting, message)));
        }
    }
    let of = |keys: &BTreeSet<ObjectKey>| targets.iter().filter(|target| keys.contains(&target.key)).cloned().collect();
    Ok(Removal::Done { orphaned: of(&orphaned), copies: of(&found.copies) })
}

/// Gives an object that another release has as well, and that stays, to that release by its label; `Some` where that can't be done yet. Its
/// next pass, which is begun, sends what it wants of it. An object that is not ours any more is passed over.
pub(super) async fn hand_over(
    target: &Target,
    release: &ClusterStackRelease,
    heir: &ClusterStackRelease,
    rights: &Rights,
    ctx: &Context,
) -> Option<Trouble> {
    let Target { key, kind } = target;
    let api = observe::api(&rights.client, kind, &key.namespace);
    let failed = |error: &kube::Error| {
        let why = apply::refusal(error).message;
        let message =
            format!("{key} can't be given to ClusterStackRelease {}, which has it too: {why}", heir.name_any());
        Trouble::new(ErrorClass::Waiting, Reason::FailedToDeleteObjects, message)
    };
    let object = match api.get_opt(&observe::segment(&key.name)).await {
        Ok(Some(object)) => observe::plain(&object, kind),
        Ok(None) => return None,
        Err(error) => return Some(failed(&error)),
    };
    if !owner_of(release).is_of(&object) {
        return None;
    }
    let version = object.pointer("/metadata/resourceVersion");
    let labels = BTreeMap::from([(OWNER_NAME_LABEL, label_value(&heir.name_any()))]);
    let patch = json!({"metadata": {"resourceVersion": version, "labels": labels}});
    let params = PatchParams { field_manager: Some(HANDS_OVER.to_owned()), ..PatchParams::default() };
    match api.patch(&observe::segment(&key.name), &params, &Patch::Merge(patch)).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => return None,
        Err(error) => return Some(failed(&error)),
    }
    ctx.watches.tell(Notice::Applied(ObjectRef::from_obj(heir)));
    None
}

/// Says of each object with the labels of a release whose inventory was lost that it is left, for somebody else made it.
pub(super) async fn leave(release: &ClusterStackRelease, copies: &[Target], ctx: &Context) -> Result<(), Error> {
    let (namespace, name) = (release.namespace().unwrap_or_default(), release.name_any());
    let note = format!(
        "left where it is: it has the labels of ClusterStackRelease {namespace}/{name}, which is gone, but the operator never applied it. Delete it if nobody needs it"
    );
    tell_left(release, &note, copies, ctx).await
}

/// Says of each object that is left where it is whose it was, and why. The events are about the objects, not about the
/// release: in a namespace that goes none can be written.
pub(super) async fn orphan(
    release: &ClusterStackRelease,
    rights: &Rights,
    orphaned: &[Target],
    ctx: &Context,
) -> Result<(), Error> {
    let (namespace, name) = (release.namespace().unwrap_or_default(), release.name_any());
    let whose = match &rights.account {
        Some(account) => format!("ServiceAccount {namespace}/{account} or its rights were gone before it"),
        None => "the operator's own rights are not used there".to_owned(),
    };
    let note = format!(
        "left where it is: ClusterStackRelease {namespace}/{name}, which applied it, went with its namespace, and {whose}. Delete it if nobody needs it"
    );
    tell_left(release, &note, orphaned, ctx).await
}

async fn tell_left(release: &ClusterStackRelease, note: &str, left: &[Target], ctx: &Context) -> Result<(), Error> {
    for Target { key, kind } in left {
        let (namespace, name) = (release.namespace().unwrap_or_default(), release.name_any());
        tracing::warn!(object = %key, release = format!("{namespace}/{name}"), "left where it is");
        let object = json!({"apiVersion": kind.resource.api_version, "kind": key.kind,
            "metadata": {"name": key.name, "namespace": Some(&key.namespace).filter(|namespace| !namespace.is_empty())}});
        match ctx.events.publish(&events::reference(&object), Reason::Orphaned, note).await {
            // Its own namespace goes, too.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {
                tracing::warn!(error = status.message, object = %key, "the event Orphaned can't be written");
            }
            other => other.doing(|| format!("writing the event Orphaned of {key}"))?,
        }
    }
    Ok(())
}

async fn account_of(rights: &Rights, namespace: &str, ctx: &Context) -> Result<Account, Error> {
    let Some(name) = &rights.account else { return Ok(Account::Own) };
    let there = place::has_service_account(&ctx.clients.own(), namespace, name).await;
    let there = there.doing(|| format!("reading ServiceAccount {namespace}/{name}"))?;
    Ok(if there { Account::Named(name.clone()) } else { Account::Missing(name.clone()) })
}

/// What was found of the objects.
#[derive(Default)]
struct Found {
    /// To be deleted.
    left: BTreeMap<ObjectKey, Value>,
    /// Out of reach.
    obstacles: BTreeMap<ObjectKey, Obstacle>,
    /// Nothing but their labels says that they are ours.
    copies: BTreeSet<ObjectKey>,
}

/// Reads the objects; `Err` where something else than rights stands in the way.
async fn found(
    targets: &[Target],
    rows: &[Row],
    account: &Account,
    rights: &Rights,
    owner: &Owner,
) -> Result<Found, Trouble> {
    let mut found = Found::default();
    let never = |key: &ObjectKey| rows.iter().any(|row| plan::key_of(row) == *key && was_refused_from_the_first(row));
    if let Account::Missing(name) = account {
        let words = format!("ServiceAccount {}/{name} does not exist", owner.namespace);
        let out = targets.iter().filter(|target| !never(&target.key) && !plan::is_retained(&target.key, &Value::Null));
        found.obstacles = out.map(|target| (target.key.clone(), Obstacle::Denied(words.clone()))).collect();
        return Ok(found);
    }
    let outside = |key: &ObjectKey| rights.only_namespace.as_ref().is_some_and(|only| key.namespace != *only);
    let live = observe::live(&rights.client, owner, targets, Lists::OfSeveral).await;
    for (key, error) in &live.unreadable {
        let words = apply::refusal(error).message;
        if !removal::is_denied(&words) {
            let message = format!("{key} can't be read: {words}");
            return Err(Trouble::new(ErrorClass::Waiting, Reason::FailedToDeleteObjects, message));
        }
        if !never(key) {
            let obstacle = if outside(key) { Obstacle::Outside } else { Obstacle::Denied(words) };
            found.obstacles.insert(key.clone(), obstacle);
        }
    }
    for target in targets {
        let Some(object) = live.objects.get(&target.key) else { continue };
        if !plan::is_applied_by(owner, &target.key, object, rows) || plan::is_retained(&target.key, object) {
            continue;
        }
        let is_named = rows.iter().any(|row| plan::key_of(row) == target.key);
        if !is_named && fields::entry(object, FIELD_MANAGER).is_none() {
            // Others copy labels: what only they tell of is ours if we applied it.
            found.copies.insert(target.key.clone());
        } else if outside(&target.key) {
            found.obstacles.insert(target.key.clone(), Obstacle::Outside);
        } else {
            found.left.insert(target.key.clone(), object.clone());
        }
    }
    Ok(found)
}

/// A release while its objects go.
struct Removing<'a> {
    release: &'a ClusterStackRelease,
    rights: &'a Rights,
    ctx: &'a Context,
    account: &'a Account,
    owner: &'a Owner,
    obstacles: BTreeMap<ObjectKey, Obstacle>,
}

impl Removing<'_> {
    async fn decide(&self) -> Result<Verdict, Error> {
        let namespace = self.owner.namespace.as_str();
        let terminating = !self.obstacles.is_empty()
            && place::is_terminating(&self.ctx.clients.own(), namespace)
                .await
                .doing(|| format!("reading namespace {namespace}"))?;
        let Self { account, obstacles, .. } = self;
        Ok(removal::decide(&Situation { namespace, terminating, account, obstacles }))
    }

    /// Deletes one; `None` while it is waited for.
    async fn delete(&mut self, target: &Target, object: &Value) -> Result<Option<Verdict>, Error> {
        let key = &target.key;
        self.ctx.watches.remember(&ObjectRef::from_obj(self.release), &target.kind, key, "");
        if object.pointer("/metadata/deletionTimestamp").is_some() {
            return Ok(None);
        }
        let Err(refusal) = apply::delete(&self.rights.client, &target.kind, key, object).await else {
            return Ok(None);
        };
        if removal::is_denied(&refusal.message) {
            self.obstacles.insert(key.clone(), Obstacle::Denied(refusal.message));
            return self.decide().await.map(Some);
        }
        let message = format!("{key} can't be deleted: {}; the rest is left until it can", refusal.message);
        let trouble = Trouble::new(ErrorClass::Waiting, Reason::FailedToDeleteObjects, message);
        Ok(Some(Verdict::Wait(trouble)))
    }
}

fn given_up(verdict: Verdict) -> BTreeSet<ObjectKey> {
    match verdict {
        Verdict::GiveUp { orphaned } => orphaned,
        Verdict::GoOn | Verdict::Wait(_) => BTreeSet::new(),
    }
}
