//! Starts the controllers, connects their watches, and ends them in order.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::channel::mpsc::{self, UnboundedSender};
use futures::future::{BoxFuture, ready};
use futures::{Stream, StreamExt, TryStreamExt};
use kube::api::DynamicObject;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::{PredicateConfig, WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::receiver::{self, Bucket, Hooks, Tokens};
use super::seats::{Rooted, Seat};
use super::{
    Context, Error, FirstRead, Handover, Lines, Memory, PASS, Pokes, Seats, admission, cluster_addon, cluster_stack,
    cluster_stack_release, cluster_stack_source, handover, image_provider, origin, runtime_hooks, shard, upgrade_plans,
};
use crate::api::condition::{self, ConditionType};
use crate::api::{ClusterAddon, ClusterStack, ClusterStackRelease, ClusterStackSource, ProviderClusterStackRelease};
use crate::core::addon::cluster::addon_name;
use crate::core::share::Reach;
use crate::core::share::view::Role;
use crate::core::status;
use crate::io::client::{ClientError, Clients};
use crate::io::fence;
use crate::io::image::log_server::{self, Logs, Pod};
use crate::io::inputs::Inputs;
use crate::io::kinds::Kinds;
use crate::io::members::{self, Members, Membership};
use crate::io::release::{Releases, ReleasesError};
use crate::io::report::Events;
use crate::io::source::flights::{Ground, Waiter};
use crate::io::telemetry::{self, ByController, Metrics, Readiness};
use crate::io::watch::{Notice, Watches};
use crate::io::workload::Workloads;
use crate::settings::Settings;

/// Why the operator ends other than on request.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No way to the API server.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The store of releases can't be used.
    #[error(transparent)]
    Releases(#[from] ReleasesError),
    /// An address can't be bound.
    #[error("{what} can't be served on {address}: {error}; choose another address with the flag of that name")]
    Serve {
        /// Metrics, probes or the receiver.
        what: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// The CRDs are missing.
    #[error(
        "the API server does not serve {0}: install the CRDs with `clusterstack crds | kubectl apply --server-side -f -`"
    )]
    Crds(&'static str),
}

/// How long passes may go on after the intake ended.
const DRAIN: Duration = Duration::from_secs(20);

/// How long answers to hooks may go on at the end.
const ANSWERING: Duration = Duration::from_secs(2);

/// Runs the operator until `stop`; then takes in nothing new, finishes what is under way and returns.
///
/// # Errors
/// What keeps it from starting.
pub async fn run(settings: Settings, stop: CancellationToken) -> Result<(), RunError> {
    let metrics = Metrics::default();
    let readiness = Readiness::default();
    // Ends after the controllers, so that probes and metrics answer while they drain.
    let servers = CancellationToken::new();
    let _end = servers.clone().drop_guard();
    serve("metrics", settings.metrics, telemetry::metrics_routes(metrics.clone()), &servers).await?;
    let logs = Logs::new(settings.image_dir.clone(), Pod::of_environment());
    let probes = telemetry::probe_routes(readiness.clone()).merge(log_server::routes(Arc::clone(&logs)));
    if let Some(bound) = serve("probes", settings.probes, probes, &servers).await? {
        logs.served_at(bound.port());
    }
    let instance = members::identity();
    let clients = Clients::infer(settings.rate, &instance).await?;
    let kinds = Arc::new(Kinds::default());
    for kind in ["ClusterStack", "ClusterStackRelease", "ClusterStackSource", "ClusterAddon"] {
        wait_for_kind(&clients.own(), &kinds, kind, &stop).await?;
    }
    let answering = TaskTracker::new();
    let (members, membership) = join(&settings, &clients, &instance);
    runtime_hooks::start(&settings, &clients, (&members, instance.clone()), &servers, &answering)?;
    admission::start(&settings, &clients, &members, &servers, &answering)?;
    readiness.set(true);
    let work = stop.child_token();
    let tasks = TaskTracker::new();
    let (notices, noticed) = unbounded_channel();
    let answered = notices.clone();
    // The channel ends with the controllers.
    let tell = Arc::new(move |waiter| drop(answered.send(Notice::Answered(waiter))));
    let ground = Ground { tasks: tasks.clone(), tell };
    let watches = Watches::new(clients.watching(), notices, work.clone(), tasks.clone());
    let releases = Releases::open(&settings, &metrics).await?.counted_in(metrics.sources.clone()).on(&ground);
    // Passes under way may end by themselves for a while after the intake ended.
    let abort = CancellationToken::new();
    let (intake, cancel) = (work.clone(), abort.clone());
    let parts = Parts { clients, kinds, watches, metrics, releases, settings, members, instance, logs, intake, cancel };
    let drained = controllers(parts, noticed, &tasks);
    tokio::pin!(drained);
    let result = tokio::select! {
        result = &mut drained => result,
        () = stop.cancelled() => {
            tracing::info!("stopping: taking in nothing new, finishing what is under way");
            readiness.set(false);
            if tokio::time::timeout(DRAIN, &mut drained).await.is_err() {
                tracing::warn!("passes are still under way after {} s: ending them", DRAIN.as_secs());
                abort.cancel();
            }
            Ok(())
        }
    };
    work.cancel();
    abort.cancel();
    tasks.close();
    tasks.wait().await;
    membership.release().await;
    servers.cancel();
    answering.close();
    // What is reported of a hook may be lost: it is reported anew at the next call.
    let _ = tokio::time::timeout(ANSWERING, answering.wait()).await;
    tracing::info!("stopped");
    result
}

/// Joins the other replicas, where there may be some.
fn join(settings: &Settings, clients: &Clients, instance: &str) -> (Members, Membership) {
    let Some(namespace) = &settings.lease_namespace else { return (Members::alone(), Membership::none()) };
    let reach = Reach {
        namespace: settings.namespace.clone(),
        watch_filter: settings.watch_filter.clone(),
        classes: settings.shard_classes.iter().cloned().collect(),
    };
    // Without a limit on requests: a Lease has to be renewed in time.
    Members::join(clients.watching(), namespace, instance, reach)
}

async fn serve(
    what: &'static str,
    address: Option<SocketAddr>,
    routes: axum::Router,
    cancel: &CancellationToken,
) -> Result<Option<SocketAddr>, RunError> {
    let Some(address) = address else { return Ok(None) };
    let bound = telemetry::serve(address, routes, cancel.clone()).await.map_err(|error| RunError::Serve {
        what,
        address,
        error,
    })?;
    tracing::info!(%bound, "serving {what}");
    Ok(Some(bound))
}

/// The CRDs may be installed at the same time as the operator: they are waited for, for a while.
async fn wait_for_kind(
    client: &Client,
    kinds: &Kinds,
    kind: &'static str,
    stop: &CancellationToken,
) -> Result<(), RunError> {
    let mut waited = 0_u32;
    loop {
        match kinds.get(client, crate::api::API_VERSION, kind).await {
            Ok(Some(_)) => return Ok(()),
            Ok(None) if waited >= 60 => return Err(RunError::Crds(kind)),
            Ok(None) if waited == 0 => tracing::warn!(kind, "waiting for the CRD to be installed"),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "the API server does not answer; trying again"),
        }
        waited += 1;
        kinds.forget(crate::api::GROUP);
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}

struct Parts {
    clients: Clients,
    kinds: Arc<Kinds>,
    watches: Arc<Watches>,
    metrics: Metrics,
    releases: Releases,
    settings: Settings,
    members: Members,
    instance: String,
    /// Logs of node images' builds.
    logs: Arc<Logs>,
    /// Ends the intake of work.
    intake: CancellationToken,
    /// Ends work.
    cancel: CancellationToken,
}

/// Runs the controllers until they have drained.
async fn controllers(parts: Parts, noticed: UnboundedReceiver<Notice>, tasks: &TaskTracker) -> Result<(), RunError> {
    let client = parts.clients.watching();
    let (stack_reader, stack_writer) = reflector::store();
    let (release_reader, release_writer) = reflector::store();
    let (source_reader, source_writer) = reflector::store();
    let existing = release_reader.clone();
    parts.releases.keep(move || artifacts_of(&existing.state()));
    let (to_stacks, stack_triggers) = mpsc::unbounded();
    let (to_releases, release_triggers) = mpsc::unbounded();
    let (to_sources, source_triggers) = mpsc::unbounded();
    let (to_addons, addon_triggers) = mpsc::unbounded();
    let (to_provided, provided_triggers) = mpsc::unbounded();
    let (workloads, inputs) = workloads(&parts, tasks);
    let identity = parts.instance.clone();
    let context = Arc::new(Context {
        events: Events::new(parts.clients.own(), parts.instance),
        clients: parts.clients,
        kinds: Arc::clone(&parts.kinds),
        watches: Arc::clone(&parts.watches),
        metrics: parts.metrics,
        releases: parts.releases,
        logs: parts.logs,
        lines: Lines::new(&parts.settings, &parts.intake),
        settings: parts.settings,
        stacks: stack_reader.clone(),
        stack_releases: release_reader.clone(),
        sources: source_reader.clone(),
        workloads,
        inputs,
        pokes: Pokes::default(),
        first_read: FirstRead::default(),
        seats: Seats::new(parts.members),
        handover: Handover::default(),
        memory: Memory::default(),
        cancel: parts.cancel.clone(),
    });
    on_handover(&context, (&to_stacks, &to_releases, &to_sources));
    parts.watches.watch_definitions(parts.kinds);
    let hooks = hooks(&context, (&to_stacks, &to_sources), tasks, &parts.intake);
    tasks.spawn(Arc::clone(&hooks).listen());
    serve("receiver", context.settings.receiver, receiver::routes(hooks), &parts.intake).await?;
    let routes = Routes {
        to_stacks: to_stacks.clone(),
        to_releases: to_releases.clone(),
        to_addons: to_addons.clone(),
        to_sources,
        tasks: tasks.clone(),
        intake: parts.intake.clone(),
    };
    tasks.spawn(route(noticed, Arc::clone(&context), routes));
    tasks.spawn(shard::run(Arc::clone(&context), identity.clone(), parts.intake.clone()));
    tasks.spawn(handover::run(Arc::clone(&context), parts.intake.clone()));
    tasks.spawn(upgrade_plans::run(Arc::clone(&context), parts.intake.clone()));

    let stack_events = stack_events(&client, &context, stack_writer, (to_releases.clone(), to_provided.clone()));
    let concerned = (to_stacks.clone(), to_releases, to_provided.clone());
    let release_events = release_events(&client, &context, release_writer, to_stacks, to_provided.clone());
    let source_events = source_events(&client, &context, source_writer, concerned);

    let (addons_context, addons_intake) = (Arc::clone(&context), parts.intake.clone());
    let provided = (to_provided, provided_triggers);
    let provider =
        image_provider::run(&client, Arc::clone(&context), provided, identity, tasks.clone(), parts.intake.clone());
    let before_any_pass = ends_before_any_pass(parts.intake.clone(), Arc::clone(&context));
    let once = PredicateConfig::default();
    let stacks = Controller::for_stream(stack_events.predicate_filter(stack_edit, once.clone()), stack_reader)
        .with_config(every_due())
        .reconcile_on(stack_triggers)
        .graceful_shutdown_on(parts.intake.clone().cancelled_owned())
        .run(timed_stack, |object, error, ctx| ctx.on_error(&*object, error), Arc::clone(&context))
        .for_each(|_| ready(()));
    let releases = Controller::for_stream(release_events.predicate_filter(release_edit, once.clone()), release_reader)
        .with_config(every_due())
        .reconcile_on(release_triggers)
        .graceful_shutdown_on(parts.intake.clone().cancelled_owned())
        .run(timed_release, |object, error, ctx| ctx.on_error(&*object, error), Arc::clone(&context))
        .for_each(|_| ready(()));
    let sources = Controller::for_stream(source_events.predicate_filter(source_edit, once), source_reader)
        .with_config(every_due())
        .reconcile_on(source_triggers)
        .graceful_shutdown_on(parts.intake.cancelled_owned())
        .run(timed_source, |object, error, ctx| ctx.on_error(&*object, error), context)
        .for_each(|_| ready(()));
    let addons = cluster_addon::run(&client, addons_context, (to_addons, addon_triggers), addons_intake);
    tokio::select! {
        _ = futures::future::join5(stacks, releases, sources, addons, provider) => {}
        () = before_any_pass => {}
    }
    Ok(())
}

/// Start passes over ClusterStacks, ClusterStackReleases and ClusterStackSources.
type Wakers<'a> = (
    &'a UnboundedSender<ObjectRef<ClusterStack>>,
    &'a UnboundedSender<ObjectRef<ClusterStackRelease>>,
    &'a UnboundedSender<ObjectRef<ClusterStackSource>>,
);

/// Starts passes over what becomes ours.
fn on_handover(context: &Arc<Context>, (to_stacks, to_releases, to_sources): Wakers<'_>) {
    let (to_stacks, to_releases, to_sources) = (to_stacks.clone(), to_releases.clone(), to_sources.clone());
    let weak = Arc::downgrade(context);
    context.handover.counted("ClusterStack", context, &context.stacks);
    context.handover.counted("ClusterStackRelease", context, &context.stack_releases);
    context.handover.counted("ClusterStackSource", context, &context.sources);
    context.handover.on_change(move |before, now| {
        if let Some(ctx) = weak.upgrade() {
            let turn = (&*before, &*now);
            let forget = |uid: Option<String>| ctx.memory.forget(&uid.unwrap_or_default());
            let to = |stack| drop(to_stacks.unbounded_send(stack));
            handover::of_store(&ctx, &ctx.stacks, turn, to, |stack| forget(stack.uid()));
            let to = |release| drop(to_releases.unbounded_send(release));
            handover::of_store(&ctx, &ctx.stack_releases, turn, to, |release| {
                forget(release.uid());
                ctx.watches.forget(&ObjectRef::from_obj(&**release));
            });
            let to = |source| drop(to_sources.unbounded_send(source));
            handover::of_store(&ctx, &ctx.sources, turn, to, |source| forget(source.uid()));
        }
        Box::pin(ready(()))
    });
}

/// What the receiver of hooks works with.
fn hooks(
    context: &Arc<Context>,
    (to_stacks, to_sources): (
        &UnboundedSender<ObjectRef<ClusterStack>>,
        &UnboundedSender<ObjectRef<ClusterStackSource>>,
    ),
    tasks: &TaskTracker,
    intake: &CancellationToken,
) -> Arc<Hooks> {
    Arc::new(Hooks {
        ctx: Arc::clone(context),
        to_stacks: to_stacks.clone(),
        to_sources: to_sources.clone(),
        tasks: tasks.clone(),
        intake: intake.clone(),
        bucket: Bucket::full(),
        tokens: Tokens::default(),
        told: Mutex::default(),
    })
}

/// Returns where the intake ends before there was a pass: a controller waits for its first reading, whatever ends it.
async fn ends_before_any_pass(intake: CancellationToken, ctx: Arc<Context>) {
    intake.cancelled().await;
    if ctx.first_read.is_done() {
        std::future::pending::<()>().await;
    }
}

/// Clients of workload clusters, and the watches of what addons are made from.
fn workloads(parts: &Parts, tasks: &TaskTracker) -> (Workloads, Arc<Inputs>) {
    let workloads = Workloads::new(parts.settings.allow_any_kubeconfig);
    let circuits = Arc::clone(workloads.circuits());
    let watched = (parts.clients.watching(), parts.settings.namespace.clone());
    let inputs = Inputs::new(watched, Arc::clone(&parts.watches), circuits, (parts.intake.clone(), tasks.clone()));
    (workloads, inputs)
}

/// ClusterStacks as they change. An edit of one concerns its releases too, and what their provider makes of them.
fn stack_events(
    client: &Client,
    context: &Arc<Context>,
    writer: Writer<ClusterStack>,
    (to_releases, to_provided): (
        UnboundedSender<ObjectRef<ClusterStackRelease>>,
        UnboundedSender<ObjectRef<ProviderClusterStackRelease>>,
    ),
) -> impl Stream<Item = Result<ClusterStack, watcher::Error>> + Send + use<> {
    let namespace = context.settings.namespace.as_deref();
    let (ctx, context) = (Arc::clone(context), Arc::clone(context));
    let mut edited = Edits::default();
    watcher::watcher(scoped::<ClusterStack>(client, namespace), watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .inspect_ok(at_init_done(move || drop(context.first_read.stacks.set(()))))
        .touched_objects()
        .inspect_ok(move |stack| {
            if !edited.is_new(ObjectRef::from_obj(stack).erase(), edit(stack, true)) {
                return;
            }
            for release in ctx.stack_releases.state().iter().filter(|r| cluster_stack::is_owned(r, stack)) {
                let _ = to_releases.unbounded_send(ObjectRef::from_obj(&**release));
                provided_of(release, &to_provided);
            }
        })
}

/// ClusterStackReleases as they change. What changes of one concerns its ClusterStack, and what was fetched the Clusters
/// of its classes.
fn release_events(
    client: &Client,
    context: &Arc<Context>,
    writer: Writer<ClusterStackRelease>,
    to_stacks: UnboundedSender<ObjectRef<ClusterStack>>,
    to_provided: UnboundedSender<ObjectRef<ProviderClusterStackRelease>>,
) -> impl Stream<Item = Result<ClusterStackRelease, watcher::Error>> + Send + use<> {
    let namespace = context.settings.namespace.as_deref();
    let (mut fetched, watches, context) =
        (cluster_addon::Fetched::default(), Arc::clone(&context.watches), Arc::clone(context));
    watcher::watcher(scoped::<ClusterStackRelease>(client, namespace), watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .inspect_ok(at_init_done(move || drop(context.first_read.releases.set(()))))
        .touched_objects()
        .inspect_ok(move |release| {
            fetched.tell(release, &watches);
            provided_of(release, &to_provided);
            for owner in release.owner_references().iter().filter(|owner| owner.kind == "ClusterStack") {
                let stack = ObjectRef::new(&owner.name).within(&release.namespace().unwrap_or_default());
                let _ = to_stacks.unbounded_send(stack);
            }
        })
}

/// Start passes over what a ClusterStackSource concerns.
type Concerned = (
    UnboundedSender<ObjectRef<ClusterStack>>,
    UnboundedSender<ObjectRef<ClusterStackRelease>>,
    UnboundedSender<ObjectRef<ProviderClusterStackRelease>>,
);

/// ClusterStackSources as they change. What changes of one concerns the ClusterStacks that name it, and an edit their
/// releases too.
fn source_events(
    client: &Client,
    context: &Arc<Context>,
    writer: Writer<ClusterStackSource>,
    (to_stacks, to_releases, to_provided): Concerned,
) -> impl Stream<Item = Result<ClusterStackSource, watcher::Error>> + Send + use<> {
    let namespace = context.settings.namespace.as_deref();
    let (mut edited, mut changed) = (Edits::default(), Edits::default());
    let (ctx, context) = (Arc::clone(context), Arc::clone(context));
    watcher::watcher(scoped::<ClusterStackSource>(client, namespace), watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .inspect_ok(at_init_done(move || drop(context.first_read.sources.set(()))))
        .touched_objects()
        .inspect_ok(move |source| {
            let place = ObjectRef::from_obj(source);
            let is_edit = edited.is_new(place.clone().erase(), edit(source, true));
            if !changed.is_new(place.clone().erase(), source_change(source)) {
                return;
            }
            for stack in ctx.stacks.state() {
                let own = stack.namespace().unwrap_or_default();
                if stack.spec.source_ref.as_ref().is_none_or(|named| origin::place(named, &own) != place) {
                    continue;
                }
                let _ = to_stacks.unbounded_send(ObjectRef::from_obj(&*stack));
                let owned = |release: &&Arc<ClusterStackRelease>| cluster_stack::is_owned(release, &stack);
                for release in ctx.stack_releases.state().iter().filter(|release| is_edit && owned(release)) {
                    let _ = to_releases.unbounded_send(ObjectRef::from_obj(&**release));
                    // It may have been allowed to use the provider's template, or be so no more.
                    provided_of(release, &to_provided);
                }
            }
        })
}

/// Starts a pass over the provider's object of a release, if it is the built-in provider's.
fn provided_of(release: &ClusterStackRelease, to_provided: &UnboundedSender<ObjectRef<ProviderClusterStackRelease>>) {
    if let Some(provided) = image_provider::of_release(release) {
        let _ = to_provided.unbounded_send(provided);
    }
}

/// What of a ClusterStackSource concerns those who use it.
fn source_change(source: &ClusterStackSource) -> u64 {
    let status = source.status.as_ref();
    let ready = status.and_then(|status| condition::find(&status.conditions, ConditionType::Ready));
    let poll = status.and_then(|status| status.last_poll.as_ref());
    let mut hasher = DefaultHasher::new();
    (source.uid(), edit(source, true), poll.map(|poll| &poll.revision)).hash(&mut hasher);
    ready.map(|ready| (&ready.status, &ready.reason)).hash(&mut hasher);
    hasher.finish()
}

/// Runs `then` when a watch has read all there is.
pub(super) fn at_init_done<K>(then: impl Fn()) -> impl FnMut(&watcher::Event<K>) {
    move |event| {
        if matches!(event, watcher::Event::InitDone) {
            then();
        }
    }
}

pub(super) fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
{
    namespace.map_or_else(|| Api::all(client.clone()), |namespace| Api::namespaced(client.clone(), namespace))
}

/// What of an object asks for a pass when it changes: all but our own reports. That a status was lost is seen too.
pub(super) fn edit<K: ResourceExt>(object: &K, has_status: bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    (object.meta().generation, object.annotations(), object.labels(), object.finalizers(), has_status)
        .hash(&mut hasher);
    object.meta().deletion_timestamp.is_some().hash(&mut hasher);
    hasher.finish()
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a predicate")]
fn stack_edit(stack: &ClusterStack) -> Option<u64> {
    Some(edit(stack, stack.status.as_ref().is_some_and(|status| !status.conditions.is_empty())))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a predicate")]
fn source_edit(source: &ClusterStackSource) -> Option<u64> {
    Some(edit(source, source.status.as_ref().is_some_and(|status| !status.conditions.is_empty())))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a predicate")]
fn release_edit(release: &ClusterStackRelease) -> Option<u64> {
    Some(edit(release, release.status.as_ref().is_some_and(|status| !status.conditions.is_empty())))
}

/// The digests of the artifacts that these releases were made from.
fn artifacts_of(releases: &[Arc<ClusterStackRelease>]) -> HashSet<String> {
    releases.iter().filter_map(|release| Some(release.status.as_ref()?.artifact.as_ref()?.digest.clone())).collect()
}

/// The last edit of each object.
#[derive(Default)]
struct Edits(std::collections::HashMap<ObjectRef<DynamicObject>, u64>);

impl Edits {
    fn is_new(&mut self, object: ObjectRef<DynamicObject>, now: u64) -> bool {
        self.0.insert(object, now) != Some(now)
    }
}

/// Where notices go.
struct Routes {
    to_stacks: UnboundedSender<ObjectRef<ClusterStack>>,
    to_releases: UnboundedSender<ObjectRef<ClusterStackRelease>>,
    to_addons: UnboundedSender<ObjectRef<ClusterAddon>>,
    to_sources: UnboundedSender<ObjectRef<ClusterStackSource>>,
    tasks: TaskTracker,
    intake: CancellationToken,
}

/// Turns notices of the watches into passes.
async fn route(mut noticed: UnboundedReceiver<Notice>, ctx: Arc<Context>, routes: Routes) {
    let Routes { to_stacks, to_releases, to_addons, to_sources, tasks, intake } = routes;
    loop {
        let notice = tokio::select! {
            () = intake.cancelled() => return,
            notice = noticed.recv() => notice,
        };
        match notice {
            None => return,
            Some(Notice::Answered(waiter)) => {
                let _ = match waiter {
                    Waiter::Stack(stack) => to_stacks.unbounded_send(stack).is_ok(),
                    Waiter::Release(release) => to_releases.unbounded_send(release).is_ok(),
                    Waiter::Source(source) => to_sources.unbounded_send(source).is_ok(),
                };
            }
            Some(Notice::Applied(release)) => {
                let _ = to_releases.unbounded_send(release);
            }
            Some(Notice::Addons(namespace, cluster)) => {
                let addon = ObjectRef::new(&addon_name(&cluster)).within(&namespace);
                let _ = to_addons.unbounded_send(addon);
                tasks.spawn(cluster_addon::make(namespace, cluster, Arc::clone(&ctx), intake.clone()));
            }
            Some(Notice::Addon(namespace, cluster)) => {
                let _ = to_addons.unbounded_send(ObjectRef::new(&addon_name(&cluster)).within(&namespace));
            }
            Some(Notice::Definition(group)) => {
                let waits = |release: &ClusterStackRelease| {
                    release.status.as_ref().is_some_and(|status| status::waits_for_kind(status, &group))
                };
                for release in ctx.stack_releases.state().iter().filter(|release| waits(release)) {
                    ctx.memory.definition_changed(&release.uid().unwrap_or_default());
                    let _ = to_releases.unbounded_send(ObjectRef::from_obj(&**release));
                }
            }
            Some(Notice::Cluster(namespaces)) => {
                let is_there = |namespace: Option<String>| namespace.is_some_and(|n| namespaces.contains(&n));
                for stack in ctx.stacks.state().iter().filter(|stack| is_there(stack.namespace())) {
                    let _ = to_stacks.unbounded_send(ObjectRef::from_obj(&**stack));
                }
                // A Cluster may have come from a class of another namespace, and hold the release it left.
                let goes = |release: &ClusterStackRelease| release.metadata.deletion_timestamp.is_some();
                for release in ctx.stack_releases.state().iter().filter(|release| goes(release)) {
                    let _ = to_releases.unbounded_send(ObjectRef::from_obj(&**release));
                }
            }
        }
    }
}

/// Starts a pass for all that is due: the passes wait in lines of ours, see [`super::turns`].
pub(super) fn every_due() -> Config {
    Config::default().concurrency(0)
}

async fn timed_stack(stack: Arc<ClusterStack>, ctx: Arc<Context>) -> Result<Action, Error> {
    if !has_read_all(&ctx).await {
        return Ok(Action::await_change());
    }
    if let Seat::Free(next) = ctx.seat(&stack) {
        return Ok(next);
    }
    let Some(_turn) = ctx.lines.stacks.next().await else { return Ok(Action::await_change()) };
    // It may have changed while it waited.
    let Some(stack) = ctx.stacks.get(&ObjectRef::from_obj(&*stack)) else { return Ok(Action::await_change()) };
    seated(&ctx, &stack, |role| {
        let (stack, ctx) = (Arc::clone(&stack), Arc::clone(&ctx));
        let pass = async move {
            match role {
                Role::Works => cluster_stack::reconcile(stack, ctx).await,
                Role::Tells | Role::Nothing => cluster_stack::unserved(&stack, &ctx).await,
            }
        };
        Box::pin(pass)
    })
    .await
}

async fn timed_release(release: Arc<ClusterStackRelease>, ctx: Arc<Context>) -> Result<Action, Error> {
    if !has_read_all(&ctx).await {
        return Ok(Action::await_change());
    }
    if let Seat::Free(next) = ctx.seat(&release) {
        return Ok(next);
    }
    let Some(_turn) = ctx.lines.releases.next().await else { return Ok(Action::await_change()) };
    // It may have changed while it waited.
    let Some(release) = ctx.stack_releases.get(&ObjectRef::from_obj(&*release)) else {
        return Ok(Action::await_change());
    };
    seated(&ctx, &release, |role| {
        let (release, ctx) = (Arc::clone(&release), Arc::clone(&ctx));
        let pass = async move {
            match role {
                Role::Works => cluster_stack_release::reconcile(release, ctx).await,
                // Its ClusterStack says it.
                Role::Tells | Role::Nothing => Ok(Action::await_change()),
            }
        };
        Box::pin(pass)
    })
    .await
}

async fn timed_source(source: Arc<ClusterStackSource>, ctx: Arc<Context>) -> Result<Action, Error> {
    if !has_read_all(&ctx).await {
        return Ok(Action::await_change());
    }
    if let Seat::Free(next) = ctx.seat(&source) {
        return Ok(next);
    }
    let Some(_turn) = ctx.lines.sources.next().await else { return Ok(Action::await_change()) };
    // It may have changed while it waited.
    let Some(source) = ctx.sources.get(&ObjectRef::from_obj(&*source)) else { return Ok(Action::await_change()) };
    seated(&ctx, &source, |role| {
        let (source, ctx) = (Arc::clone(&source), Arc::clone(&ctx));
        let pass = async move {
            match role {
                Role::Works => cluster_stack_source::reconcile(source, ctx).await,
                Role::Tells | Role::Nothing => cluster_stack_source::unserved(&source, &ctx).await,
            }
        };
        Box::pin(pass)
    })
    .await
}

/// Makes a pass over an object in its role, inside of its fence, if it is ours.
pub(super) async fn seated<K: Rooted + Resource<DynamicType = ()> + Send + Sync + 'static>(
    ctx: &Arc<Context>,
    object: &Arc<K>,
    pass: impl FnOnce(Role) -> BoxFuture<'static, Result<Action, Error>>,
) -> Result<Action, Error> {
    match ctx.seat(object) {
        Seat::Free(next) => Ok(next),
        Seat::Taken(role, fence) => {
            let pass = fence::within(fence, pass(role));
            timed(kind_of::<K>(), Arc::clone(ctx), pass).await
        }
    }
}

/// The kind, as metrics name it.
fn kind_of<K: Resource<DynamicType = ()>>() -> &'static str {
    match K::kind(&()) {
        Cow::Borrowed(kind) => kind,
        Cow::Owned(_) => "",
    }
}

/// Waits for the first reading of all kinds; `false` if the process ends before.
pub(super) async fn has_read_all(ctx: &Context) -> bool {
    tokio::select! {
        () = ctx.first_read.done() => true,
        () = ctx.cancel.cancelled() => false,
    }
}

/// Measures a pass and bounds its time.
pub(super) async fn timed(
    controller: &'static str,
    ctx: Arc<Context>,
    pass: impl Future<Output = Result<Action, Error>>,
) -> Result<Action, Error> {
    let start = Instant::now();
    let result = tokio::time::timeout(PASS, pass).await.unwrap_or(Err(Error::TimedOut));
    let labels = ByController { controller, result: if result.is_ok() { "success" } else { "error" } };
    ctx.metrics.reconcile_seconds.get_or_create(&labels).observe(start.elapsed().as_secs_f64());
    ctx.metrics.reconciles.get_or_create(&labels).inc();
    result
}
