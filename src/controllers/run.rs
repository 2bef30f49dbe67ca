//! Starts the controllers, connects their watches, and ends them in order.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::channel::mpsc::{self, UnboundedSender};
use futures::future::ready;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::{Client, Resource, ResourceExt};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::changes::{Routes, artifacts_of, asking, release_events, route, source_events, stack_events};
use super::controller::{Controller, Reading};
use super::faults::Faults;
use super::passes::{has_read_all, timed_release, timed_source, timed_stack};
use super::receiver::{self, Bucket, Hooks, Tokens};
use super::shared_settings::Ongoing;
use super::{
    Caches, Context, FirstRead, Handover, Lines, Memory, Moves, Owned, Pokes, Searches, Seats, admission,
    cluster_addon, handover, image_provider, page, runtime_hooks, served, shard, upgrade_plans,
};
use crate::api::operator_shard::ShardSettings;
use crate::api::{ClusterStack, ClusterStackRelease, ClusterStackSource};
use crate::core::page::PageError;
use crate::core::share::Reach;
use crate::io::client::{ClientError, Clients};
use crate::io::events::Events;
use crate::io::executable;
use crate::io::image::log_server::{self, Logs, Pod};
use crate::io::inputs::Inputs;
use crate::io::kinds::Kinds;
use crate::io::members::{self, Members, Membership};
use crate::io::place::Standing;
use crate::io::plain_server;
use crate::io::release::{Releases, ReleasesError};
use crate::io::source::flights::Ground;
use crate::io::stored::Unreadable;
use crate::io::telemetry::{self, Metrics, Readiness};
use crate::io::watch::{Notice, Watches};
use crate::io::workload::Workloads;
use crate::settings::{Live, Settings, SettingsError};

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
        /// Metrics, probes, the receiver or the web page.
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
    /// The web page can't be made.
    #[error(transparent)]
    Page(#[from] PageError),
    /// Flags, or settings, that can't be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A part that all objects need ended by a fault.
    #[error("a fault in the operator itself ended {0}: the log says where. Please report it")]
    Fault(&'static str),
    /// What is known is of a time that never was.
    #[error(
        "the API server has an older state than it had, as after a restore of a backup: what this process knows is wrong. Start it again"
    )]
    Rewound,
}

/// How long passes may go on after the intake ended.
const DRAIN: Duration = Duration::from_secs(20);

/// How long passes may take to stop when they are ended.
pub(super) const ENDING: Duration = Duration::from_secs(5);

/// How long an address may still be taken by what ended just before.
const GIVEN_BACK: Duration = Duration::from_secs(1);

/// How long answers to hooks may go on at the end.
const ANSWERING: Duration = Duration::from_secs(2);

/// Runs the operator until `stop`; then takes in nothing new, finishes what is under way and returns.
///
/// # Errors
/// What keeps it from starting.
pub(super) async fn run(settings: Settings, ongoing: Ongoing, stop: CancellationToken) -> Result<(), RunError> {
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
    let clients = Clients::infer(ongoing.live.borrow().rate(), &instance).await?;
    let kinds = Arc::new(Kinds::default());
    for kind in ["ClusterStack", "ClusterStackRelease", "ClusterStackSource", "ClusterAddon"] {
        wait_for_kind(&clients.own(), &kinds, kind, &stop).await?;
    }
    let answering = TaskTracker::new();
    let (reach, reached) = watch::channel(reach(&settings, &ongoing.live.borrow()));
    let (members, membership) = join(&settings, &clients, &instance, reached);
    runtime_hooks::start(&settings, &clients, (&members, instance.clone()), &servers, &answering)?;
    admission::start(&settings, &clients, &members, &servers, &answering)?;
    let work = stop.child_token();
    let tasks = TaskTracker::new();
    tasks.spawn({
        let (members, readiness, end) = (members.clone(), readiness.clone(), work.clone());
        let started = Arc::clone(&ongoing.started);
        // A roll-out must not replace all replicas by some that never come to work: that can't bind an address, say.
        async move {
            let works = async {
                members.joined().await;
                started.wait().await;
            };
            if end.run_until_cancelled(works).await.is_some() {
                readiness.set(true);
            }
        }
    });
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
    tasks.spawn(refusing(metrics.settings_refused.clone(), ongoing.said.clone(), work.clone()));
    tasks.spawn(reaching(settings.clone(), ongoing.live.clone(), reach, work.clone()));
    let parts = Parts {
        clients,
        kinds,
        watches,
        metrics,
        releases,
        settings,
        ongoing,
        members,
        instance,
        logs,
        intake,
        cancel,
    };
    let drained = controllers(parts, noticed, &tasks);
    tokio::pin!(drained);
    let mut is_cut = false;
    let result = tokio::select! {
        result = &mut drained => {
            is_cut = matches!(result, Err(RunError::Fault(_) | RunError::Rewound));
            result
        }
        () = stop.cancelled() => {
            tracing::info!("stopping: taking in nothing new, finishing what is under way");
            readiness.set(false);
            if tokio::time::timeout(DRAIN, &mut drained).await.is_err() {
                tracing::warn!("passes are still under way after {} s: ending them", DRAIN.as_secs());
                is_cut = true;
                abort.cancel();
                // A pass that does not even stop is not waited for: its term ends.
                let _ = tokio::time::timeout(ENDING, &mut drained).await;
            }
            Ok(())
        }
    };
    work.cancel();
    abort.cancel();
    tasks.close();
    tasks.wait().await;
    if is_cut {
        membership.abandon().await;
    } else {
        membership.release().await;
    }
    servers.cancel();
    answering.close();
    // What is reported of a hook may be lost: it is reported anew at the next call.
    let _ = tokio::time::timeout(ANSWERING, answering.wait()).await;
    tracing::info!("stopped");
    result
}

/// What this replica takes and serves.
fn reach(settings: &Settings, live: &Live) -> Reach {
    Reach {
        namespace: settings.namespace.clone(),
        watch_filter: settings.watch_filter.clone(),
        classes: live.shard_classes.iter().cloned().collect(),
        serves: served::all_served(settings),
        ..Reach::default()
    }
}

/// Tells what this replica takes when the settings say something else, until `end`.
async fn reaching(
    settings: Settings,
    mut live: watch::Receiver<Live>,
    told: watch::Sender<Reach>,
    end: CancellationToken,
) {
    loop {
        tokio::select! {
            () = end.cancelled() => return,
            changed = live.changed() => if changed.is_err() { return },
        }
        let now = reach(&settings, &live.borrow_and_update());
        told.send_if_modified(|before| {
            let is_new = *before != now;
            *before = now;
            is_new
        });
    }
}

/// Joins the other replicas, where there may be some.
fn join(
    settings: &Settings,
    clients: &Clients,
    instance: &str,
    reach: watch::Receiver<Reach>,
) -> (Members, Membership) {
    let Some(namespace) = &settings.lease_namespace else { return (Members::alone(), Membership::none()) };
    // Without a limit on requests: a Lease has to be renewed in time.
    Members::join(clients.watching(), namespace, instance, reach)
}

/// Answers probes, as not ready, and metrics where the settings are refused and none were good before.
///
/// # Errors
/// They can't be served.
pub(super) async fn idle(settings: &Settings, end: &CancellationToken) -> Result<(), RunError> {
    let metrics = Metrics::default();
    metrics.settings_refused.set(1);
    serve("metrics", settings.metrics, telemetry::metrics_routes(metrics), end).await?;
    let readiness = Readiness::because("the settings are refused: the log says why");
    serve("probes", settings.probes, telemetry::probe_routes(readiness), end).await?;
    Ok(())
}

/// Tells whether settings are refused, until `end`.
async fn refusing(gauge: Gauge, mut said: watch::Receiver<Option<ShardSettings>>, end: CancellationToken) {
    loop {
        let is_refused = said.borrow_and_update().as_ref().is_some_and(|settings| !settings.refused.is_empty());
        gauge.set(i64::from(is_refused));
        tokio::select! {
            () = end.cancelled() => return,
            changed = said.changed() => if changed.is_err() { return },
        }
    }
}

async fn serve(
    what: &'static str,
    address: Option<SocketAddr>,
    routes: axum::Router,
    cancel: &CancellationToken,
) -> Result<Option<SocketAddr>, RunError> {
    let Some(address) = address else { return Ok(None) };
    let patient = Instant::now();
    let bound = loop {
        match plain_server::serve(address, routes.clone(), cancel.clone()) {
            // The server from before the settings changed gives it back.
            Err(error) if error.kind() == ErrorKind::AddrInUse && patient.elapsed() < GIVEN_BACK => {
                tokio::time::sleep(GIVEN_BACK / 50).await;
            }
            result => break result.map_err(|error| RunError::Serve { what, address, error })?,
        }
    };
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
            Err(kube::Error::Api(status)) if matches!(status.code, 401 | 403) => tracing::warn!(
                error = status.message,
                "the API server refuses us; trying again: check the kubeconfig, or the operator's ServiceAccount and its \
                 rights (deploy/operator-rights.yaml)"
            ),
            Err(error) => {
                let error = crate::io::apply::causes(&error);
                tracing::warn!(error, "the API server does not answer; trying again");
            }
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
    ongoing: Ongoing,
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
    let lines = Lines::new(&parts.ongoing.live.borrow(), &parts.intake);
    let events = Events::new(parts.clients.own(), parts.instance);
    let (events, said) = events.in_line(lines.have_room(), parts.cancel.clone());
    tasks.spawn(said);
    let context = Arc::new(Context {
        unreadable: Unreadable::new(events.clone(), tasks.clone()),
        events,
        clients: parts.clients,
        kinds: Arc::clone(&parts.kinds),
        watches: Arc::clone(&parts.watches),
        metrics: parts.metrics,
        releases: parts.releases,
        logs: parts.logs,
        lines,
        settings: parts.settings,
        live: parts.ongoing.live.clone(),
        said: parts.ongoing.said,
        stacks: stack_reader.clone(),
        stack_releases: release_reader.clone(),
        owned: Owned::default(),
        sources: source_reader.clone(),
        caches: Caches::default(),
        workloads,
        inputs,
        pokes: Pokes::default(),
        first_read: FirstRead::default(),
        seats: Seats::new(parts.members),
        handover: Handover::default(),
        memory: Memory::default(),
        searches: Searches::default(),
        moves: Moves::default(),
        standing: Standing::default(),
        intake: parts.intake.clone(),
        cancel: parts.cancel.clone(),
    });
    on_handover(&context, (&to_stacks, &to_releases, &to_sources));
    parts.watches.watch_definitions(parts.kinds);
    let hooks = hooks(&context, (&to_stacks, &to_sources), tasks, &parts.intake);
    let faults = Faults::default();
    tasks.spawn(faults.rewound(context.seats.members.clone(), parts.intake.clone()));
    tasks.spawn(faults.watched("the words of other replicas", Arc::clone(&hooks).listen()));
    serve("receiver", context.settings.receiver, receiver::routes(hooks), &parts.intake).await?;
    serve_page(&context, &identity, &parts.intake).await?;
    // Nothing that the settings say stands in the way any more. Nobody else sets it.
    let _ = parts.ongoing.started.set(());
    let resized = (to_stacks.clone(), to_sources.clone());
    let routes = Routes {
        to_stacks: to_stacks.clone(),
        to_releases: to_releases.clone(),
        to_addons: to_addons.clone(),
        to_sources,
        tasks: tasks.clone(),
        intake: parts.intake.clone(),
    };
    let (ctx, intake) = (|| Arc::clone(&context), || parts.intake.clone());
    tasks.spawn(keep_small(ctx(), intake()));
    tasks.spawn(faults.watched("the settings", resizing(ctx(), parts.ongoing.live, resized, intake())));
    tasks.spawn(faults.watched("the watches' notices", route(noticed, ctx(), routes)));
    tasks.spawn(faults.watched("OperatorShards", shard::run(ctx(), identity.clone(), intake())));
    tasks.spawn(faults.watched("the hand-over", handover::run(ctx(), intake())));
    tasks.spawn(faults.watched("ClusterUpgradePlans", upgrade_plans::run(ctx(), intake())));

    let controllers = (
        controller(&context, stack_reader, &parts.intake),
        controller(&context, release_reader, &parts.intake),
        controller(&context, source_reader, &parts.intake),
    );
    let (stack_writer, release_writer, source_writer) = (
        (stack_writer, &controllers.0.reading),
        (release_writer, &controllers.1.reading),
        (source_writer, &controllers.2.reading),
    );
    let stack_events = stack_events(&client, &context, stack_writer, (to_releases.clone(), to_provided.clone()));
    let concerned = (to_stacks.clone(), to_releases, to_provided.clone());
    let release_events = release_events(&client, &context, release_writer, to_stacks, to_provided.clone());
    let source_events = source_events(&client, &context, source_writer, concerned);

    let (addons_context, addons_intake) = (ctx(), intake());
    let provided = (to_provided, provided_triggers);
    let provider = image_provider::run(&client, ctx(), provided, identity, tasks.clone(), intake());
    let stacks = controllers.0.run(asking(stack_events), stack_triggers, timed_stack);
    let releases = controllers.1.run(asking(release_events), release_triggers, timed_release);
    let sources = controllers.2.run(asking(source_events), source_triggers, timed_source);
    let addons = cluster_addon::run(&client, addons_context, (to_addons, addon_triggers), addons_intake);
    let work = futures::future::join5(stacks, releases, sources, addons, provider);
    faults.end(Box::pin(work), (&parts.intake, &parts.cancel)).await
}

/// Keeps what the start alone needed out of memory, once all is read.
async fn keep_small(ctx: Arc<Context>, intake: CancellationToken) {
    if has_read_all(&ctx).await {
        executable::keep_small(intake).await;
    }
}

/// The web page, if an address is given.
async fn serve_page(ctx: &Arc<Context>, replica: &str, intake: &CancellationToken) -> Result<(), RunError> {
    let Some(address) = ctx.settings.page else { return Ok(()) };
    let pages = page::Pages::new(Arc::clone(ctx), address, replica.to_owned())?;
    serve("page", Some(address), page::routes(pages), intake).await?;
    Ok(())
}

/// Works as fast as the settings say, until `intake` ends.
async fn resizing(
    ctx: Arc<Context>,
    mut live: watch::Receiver<Live>,
    (to_stacks, to_sources): (UnboundedSender<ObjectRef<ClusterStack>>, UnboundedSender<ObjectRef<ClusterStackSource>>),
    intake: CancellationToken,
) {
    loop {
        tokio::select! {
            () = intake.cancelled() => return,
            changed = live.changed() => if changed.is_err() { return },
        }
        let now = live.borrow_and_update().clone();
        ctx.clients.set_rate(now.rate());
        ctx.lines.resize(&now);
        // Who polls seldom would hear of another interval late.
        for stack in ctx.stacks.state() {
            let _ = to_stacks.unbounded_send(ObjectRef::from_obj(&*stack));
        }
        for source in ctx.sources.state() {
            let _ = to_sources.unbounded_send(ObjectRef::from_obj(&*source));
        }
    }
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
    context.handover.on_change(move |change| {
        if let Some(ctx) = weak.upgrade() {
            let forget = |uid: Option<String>| ctx.memory.forget(&uid.unwrap_or_default());
            let to = |stack| drop(to_stacks.unbounded_send(stack));
            handover::of_store(&ctx, &ctx.stacks, &change, to, |stack| forget(stack.uid()));
            let to = |release| drop(to_releases.unbounded_send(release));
            handover::of_store(&ctx, &ctx.stack_releases, &change, to, |release| {
                ctx.watches.forget(&ObjectRef::from_obj(&**release));
                // Last: a pass that begins after it watches anew.
                forget(release.uid());
            });
            let to = |source| drop(to_sources.unbounded_send(source));
            handover::of_store(&ctx, &ctx.sources, &change, to, |source| forget(source.uid()));
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

/// The controller of a kind, which ends with the intake.
fn controller<K>(ctx: &Arc<Context>, store: Store<K>, intake: &CancellationToken) -> Controller<K, Context>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    Controller {
        store,
        reading: Reading::new(),
        ctx: Arc::clone(ctx),
        on_error: |object, error, ctx| ctx.on_error(object, error),
        intake: intake.clone(),
        cancel: ctx.cancel.clone(),
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
