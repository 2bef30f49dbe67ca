//! Starts the controllers, connects their watches, and ends them in order.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::channel::mpsc::{self, UnboundedSender};
use futures::future::ready;
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

use super::receiver::{self, Bucket, Hooks};
use super::{
    Context, Error, FirstRead, Memory, PASS, Pokes, cluster_stack, cluster_stack_release, cluster_stack_source, origin,
};
use crate::api::condition::{self, ConditionType};
use crate::api::{ClusterStack, ClusterStackRelease, ClusterStackSource};
use crate::io::client::{ClientError, Clients};
use crate::io::kinds::Kinds;
use crate::io::lease;
use crate::io::release::{Releases, ReleasesError};
use crate::io::report::Events;
use crate::io::telemetry::{self, ByController, Metrics, Readiness};
use crate::io::watch::{Notice, Watches};
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
        address: std::net::SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// The CRDs are missing.
    #[error(
        "the API server does not serve {0}: install the CRDs with `clusterstack crds | kubectl apply --server-side -f -`"
    )]
    Crds(&'static str),
    /// Another replica took over.
    #[error("the lease was lost to another replica; ending, so that it can start anew as a follower")]
    LeaseLost,
}

/// How long passes may go on after the intake ended.
const DRAIN: Duration = Duration::from_secs(20);

/// Runs the operator until `stop`; then takes in nothing new, finishes what is under way and returns.
///
/// # Errors
/// What keeps it from starting, or the loss of its lease.
pub async fn run(settings: Settings, stop: CancellationToken) -> Result<(), RunError> {
    let metrics = Metrics::default();
    let readiness = Readiness::default();
    // Ends after the controllers, so that probes and metrics answer while they drain.
    let servers = CancellationToken::new();
    let _end = servers.clone().drop_guard();
    serve("metrics", settings.metrics, telemetry::metrics_routes(metrics.clone()), &servers).await?;
    serve("probes", settings.probes, telemetry::probe_routes(readiness.clone()), &servers).await?;
    let clients = Clients::infer(settings.rate).await?;
    let kinds = Arc::new(Kinds::default());
    for kind in ["ClusterStack", "ClusterStackRelease", "ClusterStackSource"] {
        wait_for_kind(&clients.own(), &kinds, kind, &stop).await?;
    }
    // A follower is ready too: it takes over when the leader goes.
    readiness.set(true);
    let instance = lease::identity();
    let Some(lost) = lease::lead(&clients.own(), settings.lease_namespace.as_deref(), &instance, &stop).await else {
        return Ok(());
    };
    metrics.leader.set(1);
    let work = stop.child_token();
    let tasks = TaskTracker::new();
    let (notices, noticed) = unbounded_channel();
    let watches = Watches::new(clients.watching(), notices, work.clone(), tasks.clone());
    let releases = Releases::open(&settings, &metrics).await?.counted_in(metrics.sources.clone());
    // Passes under way may end by themselves for a while after the intake ended.
    let abort = CancellationToken::new();
    let (intake, cancel) = (work.clone(), abort.clone());
    let parts = Parts { clients, kinds, watches, metrics, releases, settings, instance, intake, cancel };
    let drained = controllers(parts, noticed, &tasks);
    tokio::pin!(drained);
    let result = tokio::select! {
        result = &mut drained => result,
        () = lost.cancelled() => {
            tracing::error!("lease lost: stopping at once");
            work.cancel();
            Err(RunError::LeaseLost)
        }
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
    lost.release().await;
    tracing::info!("stopped");
    result
}

async fn serve(
    what: &'static str,
    address: Option<std::net::SocketAddr>,
    routes: axum::Router,
    cancel: &CancellationToken,
) -> Result<(), RunError> {
    let Some(address) = address else { return Ok(()) };
    let bound = telemetry::serve(address, routes, cancel.clone()).await.map_err(|error| RunError::Serve {
        what,
        address,
        error,
    })?;
    tracing::info!(%bound, "serving {what}");
    Ok(())
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
    instance: String,
    /// Ends the intake of work.
    intake: CancellationToken,
    /// Ends work.
    cancel: CancellationToken,
}

/// Runs the controllers until they have drained.
async fn controllers(parts: Parts, noticed: UnboundedReceiver<Notice>, tasks: &TaskTracker) -> Result<(), RunError> {
    let client = parts.clients.watching();
    let namespace = parts.settings.namespace.clone();
    let (stack_reader, stack_writer) = reflector::store();
    let (release_reader, release_writer) = reflector::store();
    let (source_reader, source_writer) = reflector::store();
    let (to_stacks, stack_triggers) = mpsc::unbounded();
    let (to_releases, release_triggers) = mpsc::unbounded();
    let (to_sources, source_triggers) = mpsc::unbounded();
    let context = Arc::new(Context {
        events: Events::new(parts.clients.own(), parts.instance),
        clients: parts.clients,
        kinds: Arc::clone(&parts.kinds),
        watches: Arc::clone(&parts.watches),
        metrics: parts.metrics,
        releases: parts.releases,
        settings: parts.settings,
        stacks: stack_reader.clone(),
        stack_releases: release_reader.clone(),
        sources: source_reader.clone(),
        pokes: Pokes::default(),
        first_read: FirstRead::default(),
        memory: Memory::default(),
        cancel: parts.cancel.clone(),
    });
    parts.watches.watch_definitions(parts.kinds);
    let hooks = Arc::new(Hooks {
        ctx: Arc::clone(&context),
        to_stacks: to_stacks.clone(),
        to_sources,
        tasks: tasks.clone(),
        intake: parts.intake.clone(),
        bucket: Bucket::full(),
        told: Mutex::default(),
    });
    serve("receiver", context.settings.receiver, receiver::routes(hooks), &parts.intake).await?;
    tasks.spawn(route(noticed, Arc::clone(&context), parts.intake.clone(), to_stacks.clone(), to_releases.clone()));

    let (to_stacks_of_source, to_releases_of_source) = (to_stacks.clone(), to_releases.clone());
    let mut edited = Edits::default();
    let of_stack = Arc::clone(&context);
    let stack_events =
        watcher::watcher(scoped::<ClusterStack>(&client, namespace.as_deref()), watcher::Config::default())
            .default_backoff()
            .reflect(stack_writer)
            .inspect_ok(at_init_done({
                let context = Arc::clone(&context);
                move || drop(context.first_read.stacks.set(()))
            }))
            .touched_objects()
            .inspect_ok(move |stack| {
                // An edit of a ClusterStack concerns its releases too.
                if edited.is_new(ObjectRef::from_obj(stack).erase(), edit(stack, true)) {
                    for release in of_stack.stack_releases.state().iter().filter(|r| cluster_stack::is_owned(r, stack))
                    {
                        let _ = to_releases.unbounded_send(ObjectRef::from_obj(&**release));
                    }
                }
            });
    let release_events =
        watcher::watcher(scoped::<ClusterStackRelease>(&client, namespace.as_deref()), watcher::Config::default())
            .default_backoff()
            .reflect(release_writer)
            .inspect_ok(at_init_done({
                let context = Arc::clone(&context);
                move || drop(context.first_read.releases.set(()))
            }))
            .touched_objects()
            .inspect_ok(move |release| {
                let owners = release.owner_references().iter().filter(|owner| owner.kind == "ClusterStack");
                for owner in owners {
                    let stack = ObjectRef::new(&owner.name).within(&release.namespace().unwrap_or_default());
                    let _ = to_stacks.unbounded_send(stack);
                }
            });

    let source_events = source_events(&client, &context, source_writer, to_stacks_of_source, to_releases_of_source);

    let once = PredicateConfig::default();
    let stacks = Controller::for_stream(stack_events.predicate_filter(stack_edit, once.clone()), stack_reader)
        .with_config(Config::default().concurrency(context.settings.stack_concurrency))
        .reconcile_on(stack_triggers)
        .graceful_shutdown_on(parts.intake.clone().cancelled_owned())
        .run(timed_stack, |object, error, ctx| ctx.on_error(&*object, error), Arc::clone(&context))
        .for_each(|_| ready(()));
    let releases = Controller::for_stream(release_events.predicate_filter(release_edit, once.clone()), release_reader)
        .with_config(Config::default().concurrency(context.settings.release_concurrency))
        .reconcile_on(release_triggers)
        .graceful_shutdown_on(parts.intake.clone().cancelled_owned())
        .run(timed_release, |object, error, ctx| ctx.on_error(&*object, error), Arc::clone(&context))
        .for_each(|_| ready(()));
    let sources = Controller::for_stream(source_events.predicate_filter(source_edit, once), source_reader)
        .with_config(Config::default().concurrency(context.settings.source_concurrency))
        .reconcile_on(source_triggers)
        .graceful_shutdown_on(parts.intake.cancelled_owned())
        .run(timed_source, |object, error, ctx| ctx.on_error(&*object, error), context)
        .for_each(|_| ready(()));
    tokio::join!(stacks, releases, sources);
    Ok(())
}

/// ClusterStackSources as they change. What changes of one concerns the ClusterStacks that name it, and an edit their
/// releases too.
fn source_events(
    client: &Client,
    context: &Arc<Context>,
    writer: Writer<ClusterStackSource>,
    to_stacks: UnboundedSender<ObjectRef<ClusterStack>>,
    to_releases: UnboundedSender<ObjectRef<ClusterStackRelease>>,
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
                }
            }
        })
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
fn at_init_done<K>(then: impl Fn()) -> impl FnMut(&watcher::Event<K>) {
    move |event| {
        if matches!(event, watcher::Event::InitDone) {
            then();
        }
    }
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
{
    namespace.map_or_else(|| Api::all(client.clone()), |namespace| Api::namespaced(client.clone(), namespace))
}

/// What of an object asks for a pass when it changes: all but our own reports. That a status was lost is seen too.
fn edit<K: ResourceExt>(object: &K, has_status: bool) -> u64 {
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

/// The last edit of each object.
#[derive(Default)]
struct Edits(std::collections::HashMap<ObjectRef<DynamicObject>, u64>);

impl Edits {
    fn is_new(&mut self, object: ObjectRef<DynamicObject>, now: u64) -> bool {
        self.0.insert(object, now) != Some(now)
    }
}

/// Turns notices of the watches into passes.
async fn route(
    mut noticed: UnboundedReceiver<Notice>,
    ctx: Arc<Context>,
    intake: CancellationToken,
    to_stacks: UnboundedSender<ObjectRef<ClusterStack>>,
    to_releases: UnboundedSender<ObjectRef<ClusterStackRelease>>,
) {
    loop {
        let notice = tokio::select! {
            () = intake.cancelled() => return,
            notice = noticed.recv() => notice,
        };
        match notice {
            None => return,
            Some(Notice::Applied(release)) => {
                let _ = to_releases.unbounded_send(release);
            }
            Some(Notice::Definition(group)) => {
                let waits = |release: &ClusterStackRelease| {
                    let rows = release.status.iter().flat_map(|status| &status.resources);
                    rows.into_iter().any(|row| row.group == group && row.reason.is_some())
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

async fn timed_stack(stack: Arc<ClusterStack>, ctx: Arc<Context>) -> Result<Action, Error> {
    if !has_read_all(&ctx).await {
        return Ok(Action::await_change());
    }
    timed("ClusterStack", Arc::clone(&ctx), Box::pin(cluster_stack::reconcile(stack, ctx))).await
}

async fn timed_release(release: Arc<ClusterStackRelease>, ctx: Arc<Context>) -> Result<Action, Error> {
    if !has_read_all(&ctx).await {
        return Ok(Action::await_change());
    }
    timed("ClusterStackRelease", Arc::clone(&ctx), Box::pin(cluster_stack_release::reconcile(release, ctx))).await
}

async fn timed_source(source: Arc<ClusterStackSource>, ctx: Arc<Context>) -> Result<Action, Error> {
    if !has_read_all(&ctx).await {
        return Ok(Action::await_change());
    }
    timed("ClusterStackSource", Arc::clone(&ctx), cluster_stack_source::reconcile(source, ctx)).await
}

/// Waits for the first reading of all kinds; `false` if the process ends before.
async fn has_read_all(ctx: &Context) -> bool {
    tokio::select! {
        () = ctx.first_read.done() => true,
        () = ctx.cancel.cancelled() => false,
    }
}

/// Measures a pass and bounds its time.
async fn timed(
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
