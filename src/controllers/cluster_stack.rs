//! `ClusterStack`: polls the source, subscribes releases, collects those that nobody uses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource, ResourceExt};
use serde_json::json;
use tracing::Instrument;

use super::changes::{AT_WORK, is_at_work};
use super::origin::{Origin, Template};
use super::release_owner::{adopt, is_left_by, is_owned};
use super::subscription::{self, Subject, ToMake};
use super::{Action, Context, Doing, Error, deletion, provider, reconcile_at, seats, spread};
use crate::api::cluster_stack_release::Resource as Row;
use crate::api::condition::{self, Reason, Reported};
use crate::api::{
    CLUSTER_STACK_FINALIZER, CLUSTER_STACK_LABEL, CLUSTER_STACK_RELEASE_FINALIZER, ClusterStack, ClusterStackRelease,
    DIGEST, FIELD_MANAGER, REVISION, SHARD_CLASS, TRACEPARENT, WATCH_LABEL,
};
use crate::core::in_use::{self, Footprint};
use crate::core::inventory;
use crate::core::manifest::label_value;
use crate::core::name::{ReleaseName, ReleaseVersion};
use crate::core::retry::{self, ErrorClass};
use crate::core::selection::{self, Existing, Kept, Selection, Wish};
use crate::core::share::handed_down;
use crate::core::status::{self, ReleaseView, StackFacts, StepState, Trouble};
use crate::io::apply::{Refusal, refusal};
use crate::io::fence::{self, Written};
use crate::io::report;
use crate::io::traces;
use crate::io::usage;

/// After a release's time has come it is taken with the next full second.
const A_MOMENT: Duration = Duration::from_secs(1);

/// One pass over a ClusterStack.
///
/// # Errors
/// What the API server refused; what a user can mend is said in conditions.
pub async fn reconcile(stack: Arc<ClusterStack>, ctx: Arc<Context>) -> Result<Action, Error> {
    if !ctx.is_ours(&*stack) {
        return Ok(Action::await_change());
    }
    if stack.metadata.deletion_timestamp.is_some() {
        return deletion::stack(&stack, &ctx).await;
    }
    ensure_finalizer(&stack, &ctx).await?;
    let mut facts = StackFacts {
        generation: stack.metadata.generation,
        suspended: stack.spec.suspend,
        reconcile_at: reconcile_at(&*stack),
        ..StackFacts::default()
    };
    let next = match Wish::of(&stack.spec) {
        Err(error) => {
            let trouble = Trouble::new(ErrorClass::Invalid, Reason::SpecInvalid, error.to_string());
            facts.releases_synced = StepState::Failed(trouble);
            facts.releases = as_they_are(&stack, &ctx);
            Action::requeue(spread(retry::STALLED))
        }
        Ok(wish) if stack.spec.suspend => {
            facts.releases = views(&wish, &ctx, &stack, &Selection::default());
            Action::await_change()
        }
        Ok(wish) => match work(&stack, &wish, &ctx, &mut facts).await? {
            Work::Done(next) => next,
            Work::JustBegun(look) => return Ok(Action::requeue(look)),
        },
    };
    write_status(&stack, &ctx, &facts).await?;
    Ok(next)
}

/// Says that nobody works on it.
pub(super) async fn unserved(stack: &ClusterStack, ctx: &Context) -> Result<Action, Error> {
    let wish = Wish::of(&stack.spec).ok();
    let facts = StackFacts {
        generation: stack.metadata.generation,
        suspended: stack.spec.suspend,
        releases_synced: StepState::Failed(seats::unserved(stack)),
        releases: wish.map(|wish| views(&wish, ctx, stack, &Selection::default())).unwrap_or_default(),
        reconcile_at: stack.status.as_ref().map(|status| status.last_handled_reconcile_at.clone()).unwrap_or_default(),
        ..StackFacts::default()
    };
    write_status(stack, ctx, &facts).await?;
    Ok(Action::await_change())
}

/// What came of a pass.
enum Work {
    /// It is told; when to come back.
    Done(Action),
    /// All has just begun, as it should: that is told when it is Ready, or after so long.
    JustBegun(Duration),
}

/// Observe, decide, act; what was found goes into `facts`.
async fn work(stack: &ClusterStack, wish: &Wish, ctx: &Context, facts: &mut StackFacts) -> Result<Work, Error> {
    let existing = existing(stack, wish, ctx);
    let origin = Origin::of(stack, ctx).await;
    let subject = Subject { stack, wish, existing: &existing, ctx };
    let reading = subject.read(origin.as_ref(), facts).await;
    let found = reading.open.as_deref();
    let mut selected = selection::select(wish, found, &existing, None);
    let open = |(_, kept): &(ReleaseName, Option<Kept>)| matches!(kept, Some(Kept::Undecided | Kept::Kept));
    if selected.keep.iter().any(open) {
        match by_use(stack, &existing, ctx, |used| selection::select(wish, found, &existing, Some(used))).await {
            Ok(by_use) => selected = by_use,
            Err(why) => facts.usage_unknown = Some(why),
        }
        facts.usage_unknown = hold_without_inventory(stack, &mut selected, ctx).await.or(facts.usage_unknown.take());
    }
    let refused = subscription::limit(&mut selected, origin.as_ref(), stack, facts);
    let to_make = match &origin {
        Ok(origin) => subject.to_make(origin, &selected.create, found).await,
        Err(_) => Vec::new(),
    };
    let template = origin.ok().and_then(|origin| origin.template(stack).ok().flatten());
    let news = (template.as_ref(), reading.trace.as_deref(), to_make.as_slice());
    facts.releases_synced = match (act(stack, &selected, news, ctx).await, refused) {
        (StepState::Done(_), Some(trouble)) => StepState::Failed(trouble),
        (state, _) => state,
    };
    facts.releases = views(wish, ctx, stack, &selected);
    let pause = ctx.interval(stack.spec.interval.as_deref());
    let uid = stack.uid().unwrap_or_default();
    let trouble =
        [facts.source.as_ref(), Some(&facts.releases_synced)].into_iter().flatten().find_map(StepState::trouble);
    let is_all = facts.available.as_ref().is_none_or(Vec::is_empty);
    let begun = if trouble.is_none() && is_all { just_begun(stack, &selected, facts, ctx) } else { None };
    let next = match trouble {
        Some(trouble) if trouble.class == ErrorClass::Transient => ctx.after(ErrorClass::Transient, &uid).min(pause),
        _ if facts.usage_unknown.is_some() => ctx.after(ErrorClass::Transient, &uid).min(pause),
        // What it waits for, as a Secret that somebody else brings, is not watched.
        Some(trouble) if trouble.class == ErrorClass::Waiting => ctx.after(ErrorClass::Waiting, &uid).min(pause),
        _ => {
            ctx.memory.succeeded(&uid);
            let left = reading.next.map(|at| at.duration_since(Timestamp::now()));
            let due = left.map(|left| Duration::try_from(left).unwrap_or_default() + A_MOMENT);
            spread(pause).min(due.unwrap_or(pause))
        }
    };
    let sooner = |next: Duration| reading.again.map_or(next, |again| next.min(again));
    Ok(begun.map_or_else(|| Work::Done(Action::requeue(sooner(next))), |look| Work::JustBegun(sooner(look))))
}

/// How long nothing is said of a ClusterStack whose releases wait in line: there is nothing to say, and many wait.
const IN_LINE: Duration = Duration::from_secs(20);

/// How long nothing is to be said of a ClusterStack, if nothing was yet, and its releases were made a moment ago and are worked
/// on or wait for it. Who asked reads in the status that it was done.
fn just_begun(stack: &ClusterStack, selected: &Selection, facts: &StackFacts, ctx: &Context) -> Option<Duration> {
    let releases = owned(stack, ctx);
    let has_some = !selected.create.is_empty() || !releases.is_empty();
    let nothing_is_said = stack.conditions().is_empty() && facts.reconcile_at.is_empty();
    if !(nothing_is_said && has_some && releases.iter().all(|release| is_at_work(release))) {
        return None;
    }
    let waits = |release: &Arc<ClusterStackRelease>| {
        release.conditions().is_empty() && ctx.memory.is_new(&release.uid().unwrap_or_default())
    };
    let within = if releases.iter().all(waits) { IN_LINE } else { AT_WORK };
    let since = ctx.memory.begun(&stack.uid().unwrap_or_default());
    // Whatever comes of the releases is told by their watch.
    within.checked_sub(since).filter(|left| !left.is_zero())
}

/// The releases of the stack that exist, as last seen.
fn existing(stack: &ClusterStack, wish: &Wish, ctx: &Context) -> Vec<Existing> {
    owned(stack, ctx)
        .iter()
        .filter_map(|release| {
            Some(Existing {
                name: of_wish(wish, &release.name_any())?,
                ready: release.status.as_ref().is_some_and(|status| status.ready),
                applied: release.status.as_ref().is_some_and(|status| inventory::is_applied(&status.resources)),
                deleting: release.metadata.deletion_timestamp.is_some(),
            })
        })
        .collect()
}

fn of_wish(wish: &Wish, name: &str) -> Option<ReleaseName> {
    ReleaseName::of_stack(name, &wish.provider, &wish.stack).filter(|release| release.kubernetes == wish.kubernetes)
}

/// The ClusterStackReleases that a ClusterStack owns: by kind and name, as the Go operator matched them, so that a
/// restored ClusterStack (with another UID) keeps its releases.
pub(super) fn owned(stack: &ClusterStack, ctx: &Context) -> Vec<Arc<ClusterStackRelease>> {
    ctx.owned.of(stack, &ctx.stack_releases)
}

/// What `select` makes of the releases in use. That a Cluster names one is taken from what the watch saw: it stays then, at worst until the
/// next event. Where another one would go, it is read afresh who uses those that no Cluster was seen to name. `Err` says why that can't
/// be known.
async fn by_use(
    stack: &ClusterStack,
    existing: &[Existing],
    ctx: &Context,
    select: impl Fn(&BTreeSet<ReleaseVersion>) -> Selection,
) -> Result<Selection, String> {
    let namespace = stack.namespace().unwrap_or_default();
    let owned = owned(stack, ctx);
    let inventories: BTreeMap<String, Vec<Row>> =
        owned.iter().map(|release| (release.name_any(), deletion::rows_of(release))).collect();
    let templates = inventories.values().flat_map(|rows| deletion::template_kinds(rows)).collect();
    let footprint = |release: &Existing| {
        let object_name = release.name.object_name();
        let rows = inventories.get(&object_name).map_or(&[][..], Vec::as_slice);
        let newer = deletion::newer(&owned, stack, &release.name.version);
        let rows = in_use::without_shared(rows, newer.iter().map(Vec::as_slice));
        (release.name.version.clone(), in_use::footprint(&object_name, &namespace, &rows))
    };
    let footprints: BTreeMap<ReleaseVersion, Footprint> = existing.iter().map(footprint).collect();
    let listed = ctx.watches.clusters_are_listed();
    let is_named = |footprint: &Footprint| listed && !ctx.watches.clusters_of(&footprint.classes).is_empty();
    let (named, open): (Vec<_>, Vec<_>) = footprints.iter().partition(|(_, footprint)| is_named(footprint));
    let mut used: BTreeSet<ReleaseVersion> = named.into_iter().map(|(version, _)| version.clone()).collect();
    let as_seen = select(&used);
    if listed && as_seen.delete.is_empty() {
        return Ok(as_seen);
    }
    let asked = open.into_iter().map(|(_, footprint)| footprint.clone()).collect();
    let read = usage::used(&ctx.clients.own(), &ctx.kinds, asked, &templates).await?;
    let is_used = |(_, footprint): &(&ReleaseVersion, &Footprint)| read.contains(&footprint.release);
    used.extend(footprints.iter().filter(is_used).map(|(version, _)| version.clone()));
    Ok(select(&used))
}

/// Keeps those of the releases that would go whose inventory was lost, so that it tells of no ClusterClass that somebody uses, and of
/// which the labels of objects say that somebody does, or can't be read. Why they can't.
async fn hold_without_inventory(stack: &ClusterStack, selected: &mut Selection, ctx: &Context) -> Option<String> {
    let mut unknown = None;
    for release in owned(stack, ctx).iter().filter(|release| deletion::lacks_inventory(release)) {
        let name = release.name_any();
        let Some(at) = selected.delete.iter().position(|goes| goes.object_name() == name) else { continue };
        let kept = match deletion::is_used_by_labels(release, stack, ctx).await {
            Ok(false) => continue,
            Ok(true) => Kept::InUse,
            Err(why) => {
                unknown = Some(format!("{name} has no inventory, and its objects can't be found: {why}"));
                Kept::Undecided
            }
        };
        selected.keep.push((selected.delete.remove(at), Some(kept)));
    }
    unknown
}

/// Creates and deletes releases. A new one goes on with the trace of the poll that found it.
async fn act(
    stack: &ClusterStack,
    selected: &Selection,
    (template, trace, to_make): (Option<&Template>, Option<&str>, &[ToMake]),
    ctx: &Context,
) -> StepState {
    let namespace = stack.namespace().unwrap_or_default();
    if let Some(held) = ctx.moves.holds(stack).filter(|_| !selected.create.is_empty()) {
        return StepState::Failed(held.trouble());
    }
    // Where a ClusterStack was made that nothing was said of yet, its namespace stood; if it goes now, the API server says so.
    let is_going = if selected.create.is_empty() || stack.conditions().is_empty() {
        Ok(false)
    } else {
        ctx.standing.is_terminating(&ctx.clients.own(), &namespace).await
    };
    match is_going {
        Ok(false) => {}
        Ok(true) => return StepState::Failed(namespace_goes(&namespace)),
        Err(error) => {
            let message = format!("namespace {namespace} can't be read: {}", refusal(&error).message);
            return StepState::Failed(Trouble::new(ErrorClass::Transient, Reason::FailedToCreateOrUpdate, message));
        }
    }
    let mut failed = Vec::new();
    let mut class = ErrorClass::Waiting;
    for made @ ToMake { name, .. } in to_make {
        let span = tracing::info_span!("subscribe", release = %name);
        if let Some(trace) = trace {
            traces::go_on(&span, trace);
        }
        match create(stack, made, template, ctx).instrument(span).await {
            Ok(None) => {}
            Ok(Some(InTheWay::Owned(owner))) => failed.push(format!(
                "{name} is there already and belongs to {owner}: a namespace has each release once; delete one of the two, \
                 or put this one into another namespace"
            )),
            Ok(Some(InTheWay::Going)) => {
                failed.push(format!("{name} is there already, and is being deleted: its own Ready says what it waits for"));
            }
            Ok(Some(InTheWay::Left(of))) => failed.push(format!(
                "{name} is there already, left by ClusterStack {of}, which is gone: create that one again, or delete the release"
            )),
            Err(error) => {
                let Refusal { reason, message } = refusal(&error);
                if reason == Reason::NamespaceTerminating {
                    return StepState::Failed(namespace_goes(&namespace));
                }
                class = ErrorClass::Transient;
                failed.push(format!("{name} can't be created: {message}"));
            }
        }
    }
    for name in &selected.delete {
        if let Err(error) = delete(stack, name, ctx).await {
            class = ErrorClass::Transient;
            failed.push(format!("{name} can't be deleted: {}", refusal(&error).message));
        }
    }
    for release in owned(stack, ctx) {
        if let Err(error) = hand_down(stack, &release, ctx).await {
            class = ErrorClass::Transient;
            failed.push(format!(
                "{} can't be labelled as its ClusterStack: {}",
                release.name_any(),
                refusal(&error).message
            ));
        }
    }
    if failed.is_empty() {
        return StepState::Done(String::new());
    }
    StepState::Failed(Trouble::new(class, Reason::FailedToCreateOrUpdate, failed.join("; ")))
}

/// Gives a release the labels of its ClusterStack by which it is worked on, where those are others now.
async fn hand_down(stack: &ClusterStack, release: &ClusterStackRelease, ctx: &Context) -> Result<(), kube::Error> {
    let labels = handed_down(stack.labels(), release.labels());
    if labels.is_empty() {
        return Ok(());
    }
    let api: Api<ClusterStackRelease> = Api::namespaced(ctx.clients.own(), &stack.namespace().unwrap_or_default());
    let patch = json!({"metadata": {"uid": release.uid(), "labels": labels}});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch_metadata(&release.name_any(), &params, &Patch::Merge(patch)).await {
        // It went meanwhile; another one of its name has its own.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other.map(|_| ()),
    }
}

fn namespace_goes(namespace: &str) -> Trouble {
    let message = format!("namespace {namespace} is being deleted: no release is created any more");
    Trouble::new(ErrorClass::Waiting, Reason::NamespaceTerminating, message)
}

/// A release of the same name that is there already.
enum InTheWay {
    /// Whose it is.
    Owned(String),
    /// It is being deleted, and nobody's.
    Going,
    /// The ClusterStack that it was of.
    Left(String),
}

/// Creates a release. `Some` where there is one of that name already.
async fn create(
    stack: &ClusterStack,
    ToMake { name, revision, digest }: &ToMake,
    template: Option<&Template>,
    ctx: &Context,
) -> Result<Option<InTheWay>, kube::Error> {
    let namespace = stack.namespace().unwrap_or_default();
    let mut labels = json!({CLUSTER_STACK_LABEL: label_value(&stack.name_any())});
    if let Some(filter) = stack.labels().get(WATCH_LABEL) {
        labels[WATCH_LABEL] = filter.clone().into();
    }
    // It is told of a ClusterStack that is gone.
    if let Some(class) = stack.labels().get(SHARD_CLASS) {
        labels[SHARD_CLASS] = class.clone().into();
    }
    let known = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let annotations =
        [(TRACEPARENT, traces::place()), (REVISION, known(revision)), (DIGEST, known(digest))].into_iter();
    let annotations: BTreeMap<_, _> = annotations.filter_map(|(key, value)| Some((key, value?))).collect();
    let release: ClusterStackRelease = serde_json::from_value(json!({
        "apiVersion": crate::api::API_VERSION,
        "kind": "ClusterStackRelease",
        "metadata": {
            "name": name.object_name(),
            "namespace": namespace,
            "labels": labels,
            "annotations": annotations,
            "finalizers": [CLUSTER_STACK_RELEASE_FINALIZER],
            "ownerReferences": [stack.controller_owner_ref(&())],
        },
        "spec": {"providerRef": template.map(|template| provider::reference(template, name, &namespace))},
    }))
    .map_err(kube::Error::SerdeError)?;
    let api: Api<ClusterStackRelease> = Api::namespaced(ctx.clients.own(), &namespace);
    let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
    // Before it is made: whoever has it after a later one may have applied it.
    let turn = ctx.seats.turn();
    match api.create(&params, &release).await {
        Ok(made) => {
            ctx.memory.made(&made.uid().unwrap_or_default(), turn);
            tell_created(stack, name, ctx).await;
            Ok(None)
        }
        Err(kube::Error::Api(error)) if error.code == 409 && error.reason == "AlreadyExists" => {
            let there = api.get(&name.object_name()).await?;
            if is_left_by(&there, stack) {
                return adopt(&there, stack, ctx.clients.own()).await.map(|_| None);
            }
            if is_owned(&there, stack) {
                return Ok(None);
            }
            let owner = there.owner_references().iter().find(|owner| owner.controller == Some(true));
            Ok(Some(match (owner, there.labels().get(CLUSTER_STACK_LABEL)) {
                (Some(owner), _) => InTheWay::Owned(format!("{} {}", owner.kind, owner.name)),
                (None, _) if there.metadata.deletion_timestamp.is_some() => InTheWay::Going,
                (None, Some(of)) => InTheWay::Left(of.clone()),
                (None, None) => InTheWay::Owned("nobody".to_owned()),
            }))
        }
        Err(error) => Err(error),
    }
}

/// Says that a release was made: of the first ones of a ClusterStack with its first status, which may say that they are Ready.
async fn tell_created(stack: &ClusterStack, name: &ReleaseName, ctx: &Context) {
    let created = name.to_string();
    if stack.conditions().is_empty() {
        ctx.memory.created(&stack.uid().unwrap_or_default(), created);
    } else {
        ctx.events.say(stack, Reason::ReleaseCreated, &status::subscribed(&[created])).await;
    }
}

async fn delete(stack: &ClusterStack, name: &ReleaseName, ctx: &Context) -> Result<(), kube::Error> {
    let object_name = name.object_name();
    let Some(release) = owned(stack, ctx).into_iter().find(|release| release.name_any() == object_name) else {
        return Ok(());
    };
    let api: Api<ClusterStackRelease> = Api::namespaced(ctx.clients.own(), &stack.namespace().unwrap_or_default());
    // What was decided of it was decided of it as it was seen: somebody may have taken it from its ClusterStack since.
    let preconditions = Some(Preconditions { uid: release.uid(), resource_version: release.resource_version() });
    match api.delete(&object_name, &DeleteParams { preconditions, ..DeleteParams::background() }).await {
        Ok(_) => {
            ctx.events
                .say(stack, Reason::ReleaseCollected, &format!("collected release {name}, which nobody uses"))
                .await;
            Ok(())
        }
        // Its change has it looked at again.
        Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The releases that a ClusterStack has of which it can't be told what it wants: what was usable stays so.
fn as_they_are(stack: &ClusterStack, ctx: &Context) -> Vec<ReleaseView> {
    let view = |release: &Arc<ClusterStackRelease>| {
        Some(ReleaseView { name: release.name_any().parse().ok()?, kept: None, status: release.status.clone() })
    };
    let mut views: Vec<ReleaseView> = owned(stack, ctx).iter().filter_map(view).collect();
    views.sort_by(|a, b| b.name.version.cmp(&a.name.version));
    views
}

/// What the summary shows: every release that exists or was just created, newest first.
pub(super) fn views(wish: &Wish, ctx: &Context, stack: &ClusterStack, selected: &Selection) -> Vec<ReleaseView> {
    let created = |name: &ReleaseName| {
        let in_versions = wish.versions.contains(&name.version);
        selected.create.contains(name).then_some(if in_versions { Kept::InVersions } else { Kept::NewestFound })
    };
    let kept = |name: &ReleaseName| {
        let decided = selected.keep.iter().find(|(n, _)| n == name);
        // What was created a moment ago may be in the cache already.
        decided.map_or_else(|| created(name), |(_, kept)| *kept)
    };
    let mut views: Vec<ReleaseView> = owned(stack, ctx)
        .iter()
        .filter_map(|release| {
            let name = of_wish(wish, &release.name_any())?;
            // Whoever deletes what is wanted leaves a ClusterStack that is not what it asks to be.
            let missed = || selected.missed.iter().find(|(missed, _)| *missed == name).map(|(_, why)| *why);
            Some(ReleaseView { kept: kept(&name).or_else(missed), name, status: release.status.clone() })
        })
        .filter(|view| !selected.delete.contains(&view.name))
        .collect();
    let is_there = |name: &ReleaseName, views: &[ReleaseView]| views.iter().any(|view| view.name == *name);
    for name in &selected.create {
        if !is_there(name, &views) {
            views.push(ReleaseView { name: name.clone(), kept: created(name), status: None });
        }
    }
    views.sort_by(|a, b| b.name.version.cmp(&a.name.version));
    views
}

async fn ensure_finalizer(stack: &ClusterStack, ctx: &Context) -> Result<(), Error> {
    if stack.finalizers().iter().any(|finalizer| finalizer == CLUSTER_STACK_FINALIZER) {
        return Ok(());
    }
    let api: Api<ClusterStack> = Api::namespaced(ctx.clients.own(), &stack.namespace().unwrap_or_default());
    let patch = json!({"apiVersion": crate::api::API_VERSION, "kind": "ClusterStack", "metadata": {"uid": stack.uid(), "finalizers": [CLUSTER_STACK_FINALIZER]}});
    let now = api
        .patch(&stack.name_any(), &PatchParams::apply(FIELD_MANAGER), &Patch::Apply(patch))
        .await
        .doing(|| format!("setting the finalizer of ClusterStack {}", stack.name_any()))?;
    if now.metadata.generation == stack.metadata.generation && now.status == stack.status {
        // Nothing but the finalizer is new: the status is written for this version, and not refused once first.
        let status = json!(now.status);
        fence::wrote(&stack.uid().unwrap_or_default(), Written { resource_version: now.resource_version(), status });
    }
    Ok(())
}

/// Writes the status if it says something new, and an event where readiness changed.
pub(super) async fn write_status(stack: &ClusterStack, ctx: &Context, facts: &StackFacts) -> Result<(), Error> {
    if ctx.cancel.is_cancelled() {
        // What a pass found that was ended from outside says nothing.
        return Ok(());
    }
    let previous = stack.status.clone().unwrap_or_default();
    let status = status::stack_status(&previous, facts, Timestamp::now());
    let written = report::status(&ctx.clients.own(), stack, stack.status.as_ref(), &status)
        .await
        .doing(|| format!("writing the status of ClusterStack {}", stack.name_any()))?;
    if !written {
        return Ok(());
    }
    let uid = stack.uid().unwrap_or_default();
    let has_more = ctx.memory.has_more_usable(&uid, status::usable(&previous), status::usable(&status));
    if let Some(now) = condition::readiness_turned(&previous.conditions, &status.conditions) {
        tracing::info!(namespace = stack.namespace().unwrap_or_default(), stack = %stack.name_any(), ready = now.status, reason = now.reason, says = now.message, "ClusterStack");
    }
    for (reason, note) in status::news(&previous, &status, &ctx.memory.takes_created(&uid), has_more) {
        ctx.events.say(stack, reason, &note).await;
    }
    Ok(())
}
