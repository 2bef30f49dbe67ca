//! The built-in provider: its controllers, which start when its kinds are served.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::TryStreamExt;
use futures::channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use futures::future::ready;
use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::changes::{Edits, asking, at_init_done, edit, touched};
use super::controller::{Controller, Reading};
use super::node_images::{self, NodeImages, Writers};
use super::passes::{has_read_all, seated};
use super::seats::Seat;
use super::{Action, Context, Error, Memory, handover, image_releases};
use crate::api::image_release::{ImagePhase, ProviderNodeImageRelease as Image};
use crate::api::provider_release::ProviderClusterStackRelease as Release;
use crate::api::{ClusterStackRelease, INFRASTRUCTURE_API_VERSION, INFRASTRUCTURE_GROUP};
use crate::core::image::bounds::JOBS;
use crate::core::image::leftover;
use crate::core::image::queue::Queues;
use crate::core::share::view::Role;
use crate::core::source::AllowList;
use crate::io::image::executor::Workshop;
use crate::io::image::journal::Books;
use crate::io::image::running::Running;
use crate::io::image::task;
use crate::io::image::workshop::{Local, Place};
use crate::io::stored;
use crate::settings::{Live, Settings};

/// The kinds that the built-in provider needs.
const KINDS: [&str; 3] =
    ["ProviderClusterStackRelease", "ProviderClusterStackReleaseTemplate", "ProviderNodeImageRelease"];
/// How often is looked whether they are served.
const LOOK: Duration = Duration::from_secs(10);

/// How often logs and work directories of builds are looked through.
const SWEEP: Duration = Duration::from_hours(1);

/// What starts passes over ProviderClusterStackReleases.
pub(super) type Releases = (UnboundedSender<ObjectRef<Release>>, UnboundedReceiver<ObjectRef<Release>>);

/// Runs the built-in provider until `intake` ends and its passes are done. Where its kinds are not installed it waits for
/// them: who uses another provider does not need them.
pub(super) async fn run(
    client: &Client,
    ctx: Arc<Context>,
    (to_releases, triggers): Releases,
    identity: String,
    tasks: TaskTracker,
    intake: CancellationToken,
) {
    let Some(cluster) = installed(&ctx, &intake).await else { return };
    let (image_reader, image_writer) = reflector::store();
    let (release_reader, release_writer) = reflector::store();
    let (template_reader, template_writer) = reflector::store();
    let _ = ctx.caches.images.set(image_reader.clone());
    let _ = ctx.caches.provided.set(release_reader.clone());
    let (waker, woken) = mpsc::unbounded();
    let own = ctx.clients.own();
    let workshop: Arc<dyn Workshop> = Arc::new(Local::new(own.clone(), place(&ctx.settings)));
    let images = Arc::new(NodeImages {
        books: Books { client: own, events: ctx.events.clone(), metrics: ctx.metrics.images.clone() },
        running: Running::new(tasks.clone(), intake.clone()),
        tasks,
        workshop,
        identity,
        began: jiff::Timestamp::now(),
        // An image is another's only when that one has stopped its build.
        alone: ctx.settings.lease_namespace.is_some(),
        seats: ctx.seats.clone(),
        unreadable: ctx.unreadable.clone(),
        cluster,
        logs: Arc::clone(&ctx.logs),
        watch_filter: ctx.settings.watch_filter.clone(),
        namespace: ctx.settings.namespace.clone(),
        images: image_reader,
        releases: release_reader.clone(),
        templates: template_reader,
        read: node_images::Read::default(),
        grants: Mutex::default(),
        waker,
        queue: Mutex::new(Queues::limited(places(ctx.live.borrow().image_build_concurrency), JOBS)),
        memory: Memory::default(),
        moves: ctx.moves.clone(),
        intake: ctx.intake.clone(),
        cancel: ctx.cancel.clone(),
    });
    let (owners, wakers) = (Arc::clone(&images), to_releases.clone());
    let changed = move |image: &Image| {
        let namespace = image.namespace().unwrap_or_default();
        let mut concerned: Vec<ObjectRef<Release>> = image
            .owner_references()
            .iter()
            .filter(|owner| owner.kind == "ProviderClusterStackRelease")
            .map(|owner| ObjectRef::new(&owner.name).within(&namespace))
            .collect();
        // One that was gone and is wanted has no owner yet.
        concerned.extend(
            owners
                .releases
                .state()
                .iter()
                .filter(|release| lists(release, image))
                .map(|release| ObjectRef::from_obj(&**release)),
        );
        for release in concerned {
            let _ = to_releases.unbounded_send(release);
        }
    };
    on_handover(&ctx, &images, (&release_reader, &wakers));
    let writers = Writers { images: image_writer, templates: template_writer };
    images.tasks.spawn(resize(Arc::clone(&images), ctx.live.clone(), intake.clone()));
    images.tasks.spawn(sweep(Arc::clone(&images), ctx.settings.image_dir.clone(), intake.clone()));
    let passes = node_images::run(client, Arc::clone(&images), writers, woken, changed, intake.clone());
    let (of_releases, read, reading) = (Arc::clone(&images), Arc::clone(&images), Reading::new());
    let mut seen = Edits::default();
    let events =
        stored::watch(client, ctx.settings.namespace.as_deref(), release_reader.clone(), ctx.unreadable.clone())
            .inspect_ok(ctx.moves.noted())
            .reflect(release_writer)
            .inspect_ok(at_init_done(move || read.read.releases()))
            .inspect_ok(reading.noted());
    let all = Arc::clone(&ctx);
    let events = touched(events).inspect_ok(move |touched| {
        let release: &Release = &touched.object;
        if touched.is_gone {
            all.memory.forget(&release.uid().unwrap_or_default());
        }
        // An image that goes may be wanted again.
        let has_images = release.status.as_ref().is_some_and(|status| !status.node_images.is_empty());
        if seen.is_new(touched, (edit(release), has_images)) {
            for image in of_releases.images.state().iter().filter(|image| lists(release, image)) {
                of_releases.wake(ObjectRef::from_obj(&**image));
            }
        }
    });
    let pass = move |release: Arc<Release>, ctx: Arc<Context>| timed_release(release, ctx, Arc::clone(&images));
    let on_error = |release: &Release, error: &Error, ctx: &Context| ctx.on_error(release, error);
    let cancel = ctx.cancel.clone();
    let controller = Controller { store: release_reader, reading, ctx, on_error, intake, cancel };
    let releases = controller.run(asking(events), triggers, pass);
    futures::future::join(Box::pin(passes), Box::pin(releases)).await;
}

/// How many node images may be built at once; 0 is no limit.
fn places(concurrency: u16) -> usize {
    if concurrency == 0 { usize::MAX } else { usize::from(concurrency) }
}

/// Keeps to the number of builds that the settings say, until `intake` ends.
async fn resize(images: Arc<NodeImages>, mut live: watch::Receiver<Live>, intake: CancellationToken) {
    loop {
        tokio::select! {
            () = intake.cancelled() => return,
            changed = live.changed() => if changed.is_err() { return },
        }
        let limit = places(live.borrow_and_update().image_build_concurrency);
        images.queue.lock().unwrap_or_else(PoisonError::into_inner).set_limit(limit);
        // Those who wait for a place look again.
        for image in images.images.state() {
            images.wake(ObjectRef::from_obj(&*image));
        }
    }
}

/// Starts passes over what becomes ours, and ends the builds of what was.
fn on_handover(
    ctx: &Arc<Context>,
    images: &Arc<NodeImages>,
    (releases, to_releases): (&Store<Release>, &UnboundedSender<ObjectRef<Release>>),
) {
    ctx.handover.counted("ProviderNodeImageRelease", ctx, &images.images);
    let (weak, releases, to_releases) = (Arc::downgrade(ctx), releases.clone(), to_releases.clone());
    let images = Arc::downgrade(images);
    ctx.handover.on_change(move |change| {
        let (Some(ctx), Some(images)) = (weak.upgrade(), images.upgrade()) else { return Box::pin(ready(())) };
        let gained = |release| drop(to_releases.unbounded_send(release));
        handover::of_store(&ctx, &releases, &change, gained, |release| {
            ctx.memory.forget(&release.uid().unwrap_or_default());
        });
        let lost = Mutex::new(Vec::new());
        handover::of_store(
            &ctx,
            &images.images,
            &change,
            |image| images.wake(image),
            |image| {
                lost.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(image));
            },
        );
        let lost = lost.into_inner().unwrap_or_else(PoisonError::into_inner);
        Box::pin(async move {
            futures::future::join_all(lost.iter().map(|image| images.let_go(image))).await;
        })
    });
}

/// Removes logs that are too old or too many, and work directories that nobody needs, now and then.
async fn sweep(images: Arc<NodeImages>, root: PathBuf, intake: CancellationToken) {
    let of = Arc::clone(&images);
    let goes = move |uid: &str, age: Duration| {
        let image = of.images.state().into_iter().find(|image| image.uid().as_deref() == Some(uid));
        // Who sees one namespace does not know whose the others are.
        if image.is_none() && of.namespace.is_some() {
            return false;
        }
        let build = image.map(|image| {
            let status = image.status.clone().unwrap_or_default();
            (status.phase, status.discarded_attempt >= status.attempt)
        });
        leftover::goes(build, age)
    };
    while images.has_read_all().await {
        let running = images.images.state();
        let running = running.iter().filter_map(|image| {
            let status = image.status.as_ref().filter(|status| status.phase == ImagePhase::Running)?;
            Some((image.namespace().unwrap_or_default(), status.inputs.clone()))
        });
        let (running, logs) = (running.collect(), Arc::clone(&images.logs));
        let _ = tokio::task::spawn_blocking(move || logs.sweep(&running)).await;
        task::sweep(&root, &goes, &intake).await;
        tokio::select! {
            () = intake.cancelled() => return,
            () = tokio::time::sleep(SWEEP) => {}
        }
    }
}

/// Whether a release has the image on its list.
fn lists(release: &Release, image: &Image) -> bool {
    let name = image.name_any();
    release.namespace() == image.namespace()
        && release.status.iter().flat_map(|status| &status.node_images).any(|listed| listed.object == name)
}

/// Waits until the kinds are served; the id of the management cluster. `None` where the intake ends before.
async fn installed(ctx: &Context, intake: &CancellationToken) -> Option<String> {
    let client = ctx.clients.own();
    loop {
        match look(ctx, &client).await {
            Ok(Some(cluster)) => return Some(cluster),
            Ok(None) => {}
            Err(error) => {
                let message = crate::io::apply::refusal(&error).message;
                tracing::warn!(message, "the built-in provider of node images can't start; it is tried again");
            }
        }
        tokio::select! {
            () = intake.cancelled() => return None,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// What the flags say of builds.
fn place(settings: &Settings) -> Place {
    // Flags that can't be read have ended the process before.
    let allow = AllowList::parse(settings.allow_source.iter().map(String::as_str)).unwrap_or_default();
    let launcher = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    Place {
        root: settings.image_dir.clone(),
        directories: settings.allow_image_directory.clone(),
        tools: Some(settings.allow_image_tool.clone()),
        allow,
        allowed: settings.allow_source.clone(),
        job_image: settings.image_job_image.clone(),
        launcher,
    }
}

async fn look(ctx: &Context, client: &Client) -> Result<Option<String>, kube::Error> {
    for kind in KINDS {
        if ctx.kinds.get(client, INFRASTRUCTURE_API_VERSION, kind).await?.is_none() {
            return Ok(None);
        }
    }
    let namespace = Api::<Namespace>::all(client.clone()).get("kube-system").await?;
    Ok(namespace.uid())
}

/// The provider's object of a release, if it is the built-in provider's.
pub(super) fn of_release(release: &ClusterStackRelease) -> Option<ObjectRef<Release>> {
    let reference = release.spec.provider_ref.as_ref()?;
    let is_ours = reference.kind.as_deref() == Some(KINDS[0])
        && reference.api_version.as_deref().is_some_and(|version| version.starts_with(INFRASTRUCTURE_GROUP));
    let name = reference.name.as_deref().filter(|_| is_ours)?;
    Some(ObjectRef::new(name).within(&release.namespace()?))
}

async fn timed_release(release: Arc<Release>, ctx: Arc<Context>, images: Arc<NodeImages>) -> Result<Action, Error> {
    if !has_read_all(&ctx).await || !images.has_read_all().await {
        return Ok(Action::await_change());
    }
    // It may have changed while it waited.
    let Some(release) = images.releases.get(&ObjectRef::from_obj(&*release)) else { return Ok(Action::await_change()) };
    let again = match ctx.seat_of_pass(&release) {
        Seat::Taken(Role::Works, _) => None,
        Seat::Taken(..) => Some(Action::await_change()),
        Seat::Free(next) => Some(next),
    };
    if let Some(again) = again {
        // Its images may be ours.
        return Ok(Box::pin(image_releases::look(&release, &ctx, &images)).await.or_sooner(again));
    }
    seated(&ctx, &release, |role| {
        let (release, ctx) = (Arc::clone(&release), Arc::clone(&ctx));
        let pass = async move {
            match role {
                Role::Works => image_releases::reconcile(release, ctx, images).await,
                Role::Tells | Role::Nothing => Ok(Action::await_change()),
            }
        };
        Box::pin(pass)
    })
    .await
}
