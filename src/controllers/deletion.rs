//! Deletion: nothing while somebody uses a release; then in order, ClusterClasses first, each waited for.

mod removal;
mod search;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::json;

use self::removal::Removal;
pub use self::search::Searches;
use super::cluster_stack::{self, views, write_status};
use super::delivery;
use super::release_owner::{self, is_left_by, is_owned, version_in};
use super::{Action, Context, Doing, Error, finalizer, reconcile_at};
use crate::api::cluster_stack_release::Resource as Row;
use crate::api::condition::Reason;
use crate::api::{
    CLUSTER_STACK_FINALIZER, CLUSTER_STACK_LABEL, CLUSTER_STACK_RELEASE_FINALIZER, ClusterStack, ClusterStackRelease,
    ClusterStackReleaseSpec, ClusterStackReleaseStatus, DELETION_POLICY, is_moved,
};
use crate::core::in_use::{self, Footprint, Usage, User};
use crate::core::inventory::is_unproved;
use crate::core::manifest::ObjectKey;
use crate::core::name::ReleaseVersion;
use crate::core::ownership::Owner;
use crate::core::plan::key_of;
use crate::core::retry::{self, ErrorClass};
use crate::core::selection::{Selection, Wish};
use crate::core::status::{ReleaseFacts, StackFacts, StepState, Trouble, release_status};
use crate::io::observe::Target;
use crate::io::stored::{self, Unread};
use crate::io::{place, report, seed, usage};

/// Values of the annotation that says what becomes of what was applied: it stays, or goes, as without it.
const ORPHAN: &str = "orphan";
const DELETE: &str = "delete";

/// Finalizer of what is deleted with `--cascade=orphan`.
const ORPHANING: &str = "orphan";
/// How often what is being deleted is looked at; its watch tells earlier.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// When to look again at what is being deleted, unless a watch tells earlier. What the API server refused or did not
/// answer is tried again soon, then with growing pauses.
fn pause(trouble: &Trouble, uid: &str, ctx: &Context) -> Duration {
    match trouble.reason {
        Reason::UsageUnknown | Reason::FailedToDeleteObjects => ctx.after(ErrorClass::Transient, uid),
        // Nobody tells when it is back.
        Reason::ServiceAccountMissing => ctx.after(ErrorClass::Transient, uid).min(retry::WAITING),
        reason => {
            ctx.memory.succeeded(uid);
            if reason == Reason::Deleting { LOOK_AGAIN } else { retry::WAITING }
        }
    }
}

/// The target whose seed the class charts of a ClusterStack draw from.
pub(super) fn seed_of(stack: &ClusterStack) -> Owner {
    seed_named(stack.namespace().unwrap_or_default(), stack.name_any())
}

/// The same by the ClusterStack's name.
fn seed_named(namespace: String, name: String) -> Owner {
    Owner { kind: "ClusterStack".to_owned(), namespace, name }
}

/// Whether Kubernetes' collector of garbage is to take its releases from a ClusterStack, and has not told yet that it did.
pub(super) fn is_orphaning(stack: &ClusterStack) -> bool {
    stack.metadata.deletion_timestamp.is_some() && finalizer::is_on(stack, ORPHANING)
}

/// One pass over a ClusterStack that is being deleted.
pub(super) async fn stack(stack: &ClusterStack, ctx: &Context) -> Result<Action, Error> {
    // Kubernetes' collector of garbage takes its releases from it first (`--cascade=orphan`): they stay.
    if !finalizer::is_on(stack, CLUSTER_STACK_FINALIZER) || is_orphaning(stack) {
        return Ok(Action::await_change());
    }
    let api: Api<ClusterStackRelease> = Api::namespaced(ctx.clients.own(), &stack.namespace().unwrap_or_default());
    let (all, unread) = releases_beside(stack, ctx).await?;
    let mut lives_on = is_orphan(stack) || all.iter().any(|release| is_left_by(release, stack));
    let mut releases: Vec<ClusterStackRelease> = all.into_iter().filter(|release| is_owned(release, stack)).collect();
    if ctx.memory.is_orphaning(&stack.uid().unwrap_or_default()) {
        // What was made, or given back to it, while the collector did not look.
        for release in releases.extract_if(.., |release| release.metadata.deletion_timestamp.is_none()) {
            lives_on = true;
            release_owner::disown(&release, stack, ctx.clients.own())
                .await
                .doing(|| format!("leaving ClusterStackRelease {} behind", release.name_any()))?;
        }
    }
    if releases.is_empty() && unread.is_none() {
        // What lives on has the passwords of the seed.
        if !lives_on {
            seed::delete(&ctx.clients.own(), &seed_of(stack))
                .await
                .doing(|| format!("deleting the seed of ClusterStack {}", stack.name_any()))?;
        }
        finalizer::remove(ctx.clients.own(), stack, CLUSTER_STACK_FINALIZER).await?;
        ctx.memory.forget(&stack.uid().unwrap_or_default());
        return Ok(Action::await_change());
    }
    let orphan = is_orphan(stack);
    let mut prints = Vec::new();
    for release in &releases {
        let mut rows = rows_of(release);
        let is_new = ctx.memory.is_new(&release.uid().unwrap_or_default());
        if !orphan && lacks_inventory(release) && !is_new && release.metadata.deletion_timestamp.is_none() {
            // Where that fails its own pass looks once more, before anything of it goes. That is enough for one that never came to be
            // applied.
            rows.extend(rows_by_labels(release, stack, ctx).await.unwrap_or_default());
        }
        prints.push(Print::of(release, &rows));
    }
    let unread = unread.map(|why| {
        let message = format!("nothing is deleted: {why}; correct it, or delete it and what it applied");
        Trouble::new(ErrorClass::Waiting, Reason::UsageUnknown, message)
    });
    let trouble = match unread {
        None if !orphan => users_of(&prints, ctx).await,
        unread => unread,
    };
    if trouble.is_none() {
        for release in &releases {
            delete_release(&api, release, orphan).await?;
        }
    }
    let (pause, trouble) = if let Some(trouble) = trouble {
        (pause(&trouble, &stack.uid().unwrap_or_default(), ctx), trouble)
    } else {
        let names: Vec<String> = releases.iter().map(ResourceExt::name_any).collect();
        let message = format!("waiting for its releases to go: {}", names.join(", "));
        (LOOK_AGAIN, Trouble::new(ErrorClass::Waiting, Reason::Deleting, message))
    };
    let facts = StackFacts {
        generation: stack.metadata.generation,
        deletion: Some(trouble),
        releases_synced: StepState::Done(String::new()),
        reconcile_at: reconcile_at(stack),
        releases: Wish::of(&stack.spec).map(|wish| views(&wish, ctx, stack, &Selection::default())).unwrap_or_default(),
        ..StackFacts::default()
    };
    write_status(stack, ctx, &facts).await?;
    Ok(Action::requeue(pause))
}

/// The releases in the namespace of a ClusterStack. Of those that can't be read only its own matter: why that is.
async fn releases_beside(
    stack: &ClusterStack,
    ctx: &Context,
) -> Result<(Vec<ClusterStackRelease>, Option<String>), Error> {
    let namespace = stack.namespace().unwrap_or_default();
    let listed = stored::list_all(&ctx.clients.own(), Some(&namespace), &ListParams::default()).await;
    let (releases, unread) = listed.doing(|| "listing ClusterStackReleases".to_owned())?;
    let is_its_own = |unread: &Unread| {
        let release = ClusterStackRelease {
            metadata: unread.metadata.clone(),
            ..ClusterStackRelease::new("", ClusterStackReleaseSpec::default())
        };
        is_owned(&release, stack) || is_left_by(&release, stack)
    };
    Ok((releases, unread.into_iter().find(is_its_own).map(|unread| unread.why)))
}

async fn delete_release(
    api: &Api<ClusterStackRelease>,
    release: &ClusterStackRelease,
    orphan: bool,
) -> Result<(), Error> {
    let name = release.name_any();
    if orphan && !is_orphan(release) {
        let patch = json!({"metadata": {"annotations": {DELETION_POLICY: ORPHAN}}});
        match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(kube::Error::Api(error)) if error.code == 404 => return Ok(()),
            other => other.map(drop).doing(|| format!("orphaning {name}"))?,
        }
    }
    if release.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let preconditions = Some(Preconditions { uid: release.uid(), resource_version: None });
    match api.delete(&name, &DeleteParams { preconditions, ..DeleteParams::background() }).await {
        Err(kube::Error::Api(error)) if error.code == 404 => Ok(()),
        other => other.map(|_| ()).doing(|| format!("deleting ClusterStackRelease {name}")),
    }
}

/// What of a release others can refer to, and of which kinds its templates are.
struct Print(Footprint, Vec<(String, String)>);

impl Print {
    fn of(release: &ClusterStackRelease, rows: &[Row]) -> Self {
        let namespace = release.namespace().unwrap_or_default();
        Self(in_use::footprint(&release.name_any(), &namespace, rows), template_kinds(rows))
    }
}

/// Why releases can't be deleted: who uses them, or that it is not known. Always read afresh.
async fn users_of(releases: &[Print], ctx: &Context) -> Option<Trouble> {
    let templates = releases.iter().flat_map(|Print(_, templates)| templates.clone()).collect();
    let prints: Vec<Footprint> = releases.iter().map(|Print(footprint, _)| footprint.clone()).collect();
    let world = match usage::read(&ctx.clients.own(), &ctx.kinds, &prints, &templates).await {
        Usage::Known(world) => world,
        Usage::Unknown(why) => {
            let message = format!("nothing is deleted: {why}");
            return Some(Trouble::new(ErrorClass::Waiting, Reason::UsageUnknown, message));
        }
    };
    let users: BTreeSet<User> = prints.iter().flat_map(|footprint| in_use::users(footprint, &world)).collect();
    if users.is_empty() {
        return None;
    }
    let names: Vec<String> = users.iter().take(10).map(ToString::to_string).collect();
    let more =
        if users.len() > names.len() { format!(" and {} more", users.len() - names.len()) } else { String::new() };
    let message = format!(
        "in use by {}{more}: nothing is deleted; it goes on by itself when they have moved to another ClusterClass or are gone",
        names.join(", ")
    );
    Some(Trouble::new(ErrorClass::Waiting, Reason::InUse, message))
}

/// Why a release's objects can't be deleted although the release stays: somebody uses it, or that is not known.
pub(super) async fn holds(release: &ClusterStackRelease, rows: &[Row], ctx: &Context) -> Option<Trouble> {
    users_of(&[Print::of(release, rows)], ctx).await
}

/// The inventory of a release: what it has, and what is no longer part of it and still there.
pub(super) fn rows_of(release: &ClusterStackRelease) -> Vec<Row> {
    let Some(status) = &release.status else { return Vec::new() };
    let is_part = |row: &&Row| status.resources.iter().any(|part| key_of(part) == key_of(row));
    let retained = status.retained.iter().filter(|row| !is_part(row));
    status.resources.iter().chain(retained).cloned().collect()
}

/// The inventory of a release without what a newer one has too, and holds: read afresh where there seems to be something.
async fn own_rows(
    release: &ClusterStackRelease,
    stack: Option<&ClusterStack>,
    ctx: &Context,
) -> Result<Vec<Row>, Error> {
    let rows = rows_of(release);
    let Some(stack) = stack else { return Ok(rows) };
    let Some(version) = version_in(&release.name_any(), stack) else { return Ok(rows) };
    let own = |owned: &[Arc<ClusterStackRelease>]| {
        in_use::without_shared(&rows, newer(owned, stack, &version).iter().map(Vec::as_slice))
    };
    of_owned(stack, ctx, own, |own| *own == rows).await
}

/// The inventories of those of a ClusterStack's releases that are newer than a version, and stay.
pub(super) fn newer(
    owned: &[Arc<ClusterStackRelease>],
    stack: &ClusterStack,
    version: &ReleaseVersion,
) -> Vec<Vec<Row>> {
    let is_newer = |release: &&Arc<ClusterStackRelease>| {
        release.metadata.deletion_timestamp.is_none()
            && version_in(&release.name_any(), stack).is_some_and(|of| of > *version)
    };
    let rows = |release: &Arc<ClusterStackRelease>| release.status.as_ref().map(|status| status.resources.clone());
    owned.iter().filter(is_newer).filter_map(rows).collect()
}

/// What of a release's inventory another one has too that stays, with the newest of those: read afresh where there seems to be something.
/// Nothing where the ClusterStack itself goes.
async fn shared(
    release: &ClusterStackRelease,
    stack: Option<&ClusterStack>,
    ctx: &Context,
) -> Result<BTreeMap<ObjectKey, Arc<ClusterStackRelease>>, Error> {
    let Some(stack) = stack.filter(|stack| stack.metadata.deletion_timestamp.is_none()) else {
        return Ok(BTreeMap::new());
    };
    let rows = rows_of(release);
    let shared = |owned: &[Arc<ClusterStackRelease>]| {
        let stays = |other: &&Arc<ClusterStackRelease>| {
            other.metadata.deletion_timestamp.is_none() && other.uid() != release.uid()
        };
        let mut others: Vec<_> = owned.iter().filter(stays).collect();
        others.sort_by_cached_key(|other| version_in(&other.name_any(), stack));
        let mut shared = BTreeMap::new();
        for other in others {
            let has = other.status.as_ref().map(|status| status.resources.as_slice()).unwrap_or_default();
            shared.extend(in_use::shared_with(&rows, has).into_iter().map(|key| (key, Arc::clone(other))));
        }
        shared
    };
    of_owned(stack, ctx, shared, BTreeMap::is_empty).await
}

/// What `find` makes of the releases of a ClusterStack: as last seen if that `is_nothing`, else of what is read afresh.
async fn of_owned<T>(
    stack: &ClusterStack,
    ctx: &Context,
    find: impl Fn(&[Arc<ClusterStackRelease>]) -> T,
    is_nothing: impl FnOnce(&T) -> bool,
) -> Result<T, Error> {
    let seen = find(&cluster_stack::owned(stack, ctx));
    if is_nothing(&seen) {
        return Ok(seen);
    }
    let (all, unread) = releases_beside(stack, ctx).await?;
    if let Some(why) = unread {
        // It may have what would go.
        return Err(Error::Unreadable(why));
    }
    let owned: Vec<_> = all.into_iter().filter(|release| is_owned(release, stack)).map(Arc::new).collect();
    Ok(find(&owned))
}

/// Whether nothing says what a release applied. That is so too where this process made it and never came to sending anything for it:
/// one of that name may have been there before, whose finalizer somebody took away, or which a restore of a backup left out.
pub(super) fn lacks_inventory(release: &ClusterStackRelease) -> bool {
    release.status.as_ref().is_none_or(|status| is_unproved(&status.resources))
}

/// Group and kind of the Cluster API templates of an inventory.
pub(super) fn template_kinds(rows: &[Row]) -> Vec<(String, String)> {
    rows.iter().filter(|row| in_use::is_template(row)).map(|row| (row.group.clone(), row.kind.clone())).collect()
}

/// What a pass over a release that is being deleted comes to.
pub(super) enum Going {
    /// All is said; when to look again.
    On(Action),
    /// Somebody uses it. It stays until nobody does, and is looked after meanwhile.
    InUse(Trouble),
}

/// One pass over a ClusterStackRelease that is being deleted.
pub(super) async fn release(
    release: &ClusterStackRelease,
    stack: Option<&ClusterStack>,
    ctx: &Context,
) -> Result<Going, Error> {
    if !finalizer::is_on(release, CLUSTER_STACK_RELEASE_FINALIZER) {
        return Ok(Going::On(Action::await_change()));
    }
    if is_orphan(release) || stack.is_some_and(|stack| stack.metadata.deletion_timestamp.is_some() && is_orphan(stack))
    {
        return finish(release, ctx).await.map(Going::On);
    }
    let rows = own_rows(release, stack, ctx).await?;
    if let Some(trouble) = users_of(&[Print::of(release, &rows)], ctx).await {
        return held_by_users(release, stack, trouble, ctx).await;
    }
    if let Some(trouble) = odd_policy(release).or_else(|| stack.and_then(odd_policy)) {
        return held(release, ctx, trouble).await.map(Going::On);
    }
    let namespace = release.namespace().unwrap_or_default();
    // Where the ClusterStack names nobody (any more), or is gone, the status tells who applied it.
    let applied_as = release.status.as_ref().map(|status| status.applied_as.as_str()).filter(|name| !name.is_empty());
    let named = stack.and_then(|stack| stack.spec.service_account_name.as_deref());
    let client = ctx.clients.own();
    let rights = match (stack, applied_as) {
        (Some(stack), Some(account)) if named.is_none() => {
            // One that was taken away with its name leaves it to who is named now.
            let is_there = place::has_service_account(&client, &namespace, account).await.unwrap_or(true);
            if is_there {
                ctx.rights_as(&namespace, Some(account))?
            } else {
                ctx.rights(&namespace, Some(&stack.spec))?
            }
        }
        _ => ctx.rights_as(&namespace, named.or(applied_as))?,
    };
    let targets = match removal::targets_of(release, &rights, ctx).await {
        Ok(targets) => targets,
        // Half of it is not enough.
        Err(error) => {
            let message = format!("nothing is deleted: {}", error.message());
            let trouble = Trouble::new(ErrorClass::Waiting, Reason::UsageUnknown, message);
            return held(release, ctx, trouble).await.map(Going::On);
        }
    };
    if lacks_inventory(release) {
        // An inventory that was lost tells of no ClusterClass that somebody uses: what was found by its labels does.
        let found: Vec<Row> = rows.into_iter().chain(targets.iter().map(row_of_target)).collect();
        if let Some(trouble) = users_of(&[Print::of(release, &found)], ctx).await {
            return held_by_users(release, stack, trouble, ctx).await;
        }
    }
    let shared = shared(release, stack, ctx).await?;
    let (common, targets): (Vec<Target>, Vec<Target>) =
        targets.into_iter().partition(|target| shared.contains_key(&target.key));
    for target in &common {
        let Some(heir) = shared.get(&target.key) else { continue };
        if let Some(trouble) = removal::hand_over(target, release, heir, &rights, ctx).await {
            return held(release, ctx, trouble).await.map(Going::On);
        }
    }
    match removal::remove((release, &targets), &rights, ctx).await? {
        Removal::Done { orphaned, copies } => {
            removal::orphan(release, &rights, &orphaned, ctx).await?;
            removal::leave(release, &copies, ctx).await?;
            if stack.is_some() {
                return finish(release, ctx).await.map(Going::On);
            }
            end_seed(release, ctx).await?;
            let next = finish(release, ctx).await?;
            // Of two that go together each saw the other until now.
            end_seed(release, ctx).await?;
            Ok(Going::On(next))
        }
        Removal::Held(trouble) => held(release, ctx, trouble).await.map(Going::On),
    }
}

/// Who uses a release holds it, and wants its objects as they are.
async fn held_by_users(
    release: &ClusterStackRelease,
    stack: Option<&ClusterStack>,
    trouble: Trouble,
    ctx: &Context,
) -> Result<Going, Error> {
    if trouble.reason == Reason::InUse && stack.is_some_and(|stack| !stack.spec.suspend) {
        return Ok(Going::InUse(trouble));
    }
    held(release, ctx, trouble).await.map(Going::On)
}

/// The seed of a ClusterStack that is gone, and left its releases behind, goes with the last of them.
async fn end_seed(release: &ClusterStackRelease, ctx: &Context) -> Result<(), Error> {
    let namespace = release.namespace().unwrap_or_default();
    let Some(name) = release.labels().get(CLUSTER_STACK_LABEL) else { return Ok(()) };
    let stacks: Api<ClusterStack> = Api::namespaced(ctx.clients.own(), &namespace);
    if stacks.get_opt(name).await.doing(|| format!("reading ClusterStack {name}"))?.is_some() {
        return Ok(());
    }
    let of_stack = ListParams::default().labels(&format!("{CLUSTER_STACK_LABEL}={name}"));
    let left = stored::list_all::<ClusterStackRelease>(&ctx.clients.own(), Some(&namespace), &of_stack).await;
    let (left, unread) = left.doing(|| format!("listing the releases of ClusterStack {name}"))?;
    if !unread.is_empty() || left.iter().any(|other| other.uid() != release.uid()) {
        return Ok(());
    }
    seed::delete(&ctx.clients.own(), &seed_named(namespace, name.clone()))
        .await
        .doing(|| format!("deleting the seed of ClusterStack {name}"))
}

/// Says what holds a release, and comes back.
async fn held(release: &ClusterStackRelease, ctx: &Context, trouble: Trouble) -> Result<Action, Error> {
    let pause = pause(&trouble, &release.uid().unwrap_or_default(), ctx);
    say(release, ctx, trouble).await?;
    Ok(Action::requeue(pause))
}

/// The applied objects of a release, its owner and how to find them again.
pub(super) fn owner_of(release: &ClusterStackRelease) -> Owner {
    Owner {
        kind: "ClusterStackRelease".into(),
        namespace: release.namespace().unwrap_or_default(),
        name: release.name_any(),
    }
}

/// Whether somebody uses what the labels of objects say that a release applied. `Err` says why that can't be known.
pub(super) async fn is_used_by_labels(
    release: &ClusterStackRelease,
    stack: &ClusterStack,
    ctx: &Context,
) -> Result<bool, String> {
    let rows = rows_by_labels(release, stack, ctx).await.map_err(|error| error.message())?;
    match users_of(&[Print::of(release, &rows)], ctx).await {
        None => Ok(false),
        Some(trouble) if trouble.reason == Reason::InUse => Ok(true),
        Some(trouble) => Err(trouble.message),
    }
}

/// What the labels of objects say that a release applied.
pub(super) async fn rows_by_labels(
    release: &ClusterStackRelease,
    stack: &ClusterStack,
    ctx: &Context,
) -> Result<Vec<Row>, Error> {
    let rights = ctx.rights(&release.namespace().unwrap_or_default(), Some(&stack.spec))?;
    Ok(search::labelled(release, &rights, ctx).await?.iter().map(row_of_target).collect())
}

fn row_of_target(target: &Target) -> Row {
    delivery::row_named(&target.key, &target.kind.resource.version)
}

/// How to ask for the objects of an inventory on the management cluster.
pub(super) async fn targets(rows: &[Row], ctx: &Context) -> Result<Vec<Target>, Error> {
    let (targets, unasked) = delivery::targets(rows, &ctx.clients.own(), &ctx.kinds).await;
    match unasked.into_iter().next() {
        Some((key, error)) => Err(error).doing(|| format!("asking for the kind of {key}")),
        None => Ok(targets),
    }
}

async fn say(release: &ClusterStackRelease, ctx: &Context, trouble: Trouble) -> Result<(), Error> {
    let previous: ClusterStackReleaseStatus = release.status.clone().unwrap_or_default();
    let facts = ReleaseFacts {
        generation: release.metadata.generation,
        deletion: Some(trouble),
        kubernetes_version: previous.kubernetes_version.clone(),
        artifact: previous.artifact.clone(),
        resources: previous.resources.clone(),
        retained: previous.retained.clone(),
        applied_as: previous.applied_as.clone(),
        reconcile_at: previous.last_handled_reconcile_at.clone(),
        ..ReleaseFacts::default()
    };
    let status = release_status(&previous, facts, Timestamp::now());
    report::status(&ctx.clients.own(), release, release.status.as_ref(), &status)
        .await
        .doing(|| format!("writing the status of ClusterStackRelease {}", release.name_any()))?;
    Ok(())
}

async fn finish(release: &ClusterStackRelease, ctx: &Context) -> Result<Action, Error> {
    finalizer::remove(ctx.clients.own(), release, CLUSTER_STACK_RELEASE_FINALIZER).await?;
    ctx.watches.forget(&ObjectRef::from_obj(release));
    ctx.memory.forget(&release.uid().unwrap_or_default());
    tracing::info!(namespace = release.namespace().unwrap_or_default(), release = %release.name_any(), "ClusterStackRelease is gone");
    Ok(Action::await_change())
}

/// Whether what an object applied stays where it is.
fn is_orphan<K: ResourceExt>(object: &K) -> bool {
    is_moved(object)
        || object.annotations().get(DELETION_POLICY).is_some_and(|policy| policy.eq_ignore_ascii_case(ORPHAN))
}

/// A policy that is none, of an object that is being deleted: what is deleted by a slip of the pen comes back by none.
fn odd_policy<K: ResourceExt>(object: &K) -> Option<Trouble> {
    let policy = object.annotations().get(DELETION_POLICY)?;
    let is_known = [ORPHAN, DELETE, ""].iter().any(|known| policy.eq_ignore_ascii_case(known));
    (!is_known && object.meta().deletion_timestamp.is_some()).then(|| {
        let message = format!(
            "nothing is deleted: annotation {DELETION_POLICY} of {} is {policy:?}; make it {ORPHAN}, or {DELETE}, or take it off",
            object.name_any()
        );
        Trouble::new(ErrorClass::Waiting, Reason::SpecInvalid, message)
    })
}
