//! What the passes over node images share, and the watches that start them.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender};
use futures::future::ready;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, ResourceExt};
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::changes::{Edits, Touched, asking_by, at_init_done, edit, touched};
use super::super::controller::{Controller, Reading};
use super::super::passes::{caught, span_of, traced};
use super::super::seats::{Seat, root_with};
use super::super::{Action, Error, Memory, Moves, Seats};
use crate::api::WATCH_LABEL;
use crate::api::condition::{self, ConditionType};
use crate::api::image_release::{ProviderNodeImageRelease as Image, TemplateReference};
use crate::api::image_template::{ExecutorKind, ProviderClusterStackReleaseTemplate as Template};
use crate::api::provider_release::ProviderClusterStackRelease as Release;
use crate::core::image::bounds::CONCURRENCY;
use crate::core::image::build::{Build, Phase};
use crate::core::image::grant::{Grant, Granted, Grants};
use crate::core::image::queue::{Queues, head_start};
use crate::core::image::record::build_of;
use crate::core::retry;
use crate::core::share::view::Role;
use crate::io::fence;
use crate::io::image::executor::{Order, Workshop};
use crate::io::image::journal::Books;
use crate::io::image::log_server::Logs;
use crate::io::image::running::Running;
use crate::io::stored::{self, Unreadable};

/// What the passes over node images share.
pub struct NodeImages {
    /// Where builds are written down.
    pub books: Books,
    /// Builds at work.
    pub running: Running,
    /// Where steps run.
    pub tasks: TaskTracker,
    /// What builds work with.
    pub workshop: Arc<dyn Workshop>,
    /// Who this process is.
    pub identity: String,
    /// Since when it is at work.
    pub began: Timestamp,
    /// Whether no other process may be at work: this one holds the lease.
    pub alone: bool,
    /// Which images are ours.
    pub seats: Seats,
    /// Objects that can't be read.
    pub unreadable: Unreadable,
    /// Id of the management cluster: UID of its namespace `kube-system`.
    pub cluster: String,
    /// Logs of this process's builds.
    pub logs: Arc<Logs>,
    /// The only value of the watch filter's label worked on.
    pub watch_filter: Option<String>,
    /// The only namespace worked on.
    pub namespace: Option<String>,
    /// Images as last seen.
    pub images: Store<Image>,
    /// ProviderClusterStackReleases as last seen.
    pub releases: Store<Release>,
    /// Templates as last seen.
    pub templates: Store<Template>,
    /// Whether the three were read once.
    pub read: Read,
    /// Which images may be made by templates of other namespaces.
    pub grants: Mutex<Grants>,
    /// Starts passes.
    pub waker: UnboundedSender<ObjectRef<Image>>,
    /// Who builds next.
    pub queue: Mutex<Queues<(String, String), ObjectRef<Image>>>,
    /// What is remembered between passes.
    pub memory: Memory,
    /// What is taken to another management cluster.
    pub moves: Moves,
    /// Ends the intake of work: nothing begins any more.
    pub intake: CancellationToken,
    /// Ends what takes long when the process ends.
    pub cancel: CancellationToken,
}

/// Whether the kinds were read once: a pass must not take for missing what was not read yet.
#[derive(Default)]
pub struct Read {
    images: SetOnce<()>,
    releases: SetOnce<()>,
    templates: SetOnce<()>,
}

impl Read {
    async fn done(&self) {
        self.images.wait().await;
        self.releases.wait().await;
        self.templates.wait().await;
    }

    /// ProviderClusterStackReleases were read.
    pub fn releases(&self) {
        let _ = self.releases.set(());
    }
}

impl NodeImages {
    /// Whether the flags leave this object to us.
    pub(super) fn is_ours<K: ResourceExt>(&self, object: &K) -> bool {
        self.watch_filter.as_ref().is_none_or(|value| object.labels().get(WATCH_LABEL) == Some(value))
    }

    /// Waits for the first reading of its kinds; `false` if the process ends before.
    pub(in crate::controllers) async fn has_read_all(&self) -> bool {
        tokio::select! {
            () = self.read.done() => true,
            () = self.intake.cancelled() => false,
        }
    }

    /// Whether nothing new begins, for the process ends.
    pub(super) fn is_ending(&self) -> bool {
        self.running.is_ending()
    }

    /// Starts a pass over an object.
    pub(in crate::controllers) fn wake(&self, image: ObjectRef<Image>) {
        // Nobody listens at the end.
        let _ = self.waker.unbounded_send(image);
    }

    /// How long a build lets others of its line ask for a place first: after a restart all ask at once.
    pub(super) fn head_start(&self, image: &Image, build: &Build) -> Option<Duration> {
        let (place, now) = (template_place(image), Timestamp::now());
        let began = Duration::try_from(now.duration_since(self.began)).unwrap_or_default();
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let others = std::iter::once_with(|| self.images.state()).flatten();
        let others =
            others.filter(|other| template_place(other) == place && !queue.holds(&ObjectRef::from_obj(&**other)));
        let finished = others.filter_map(|other| {
            let other = build_of(other.status.as_ref()?);
            (other.phase == Phase::Running || other.is_due(now)).then(|| other.further())
        });
        head_start(began, build.further(), finished)
    }

    /// Asks for a place to build, with so many steps that are finished.
    pub(super) fn queue_for(&self, image: &ObjectRef<Image>, order: &Order, finished: usize) -> bool {
        let places = order.template.build.concurrency.unwrap_or(CONCURRENCY);
        let line = (order.template_namespace.clone(), order.template_name.clone());
        let is_job = order.template.build.executor == ExecutorKind::Job;
        let (has_place, next) = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let asked = queue.ask(is_job, &line, image, usize::from(places), finished);
            self.books.metrics.set(queue.counts());
            asked
        };
        for image in next {
            self.wake(image);
        }
        has_place
    }

    /// Gives a place up, and tells who is next.
    pub(super) fn leave(&self, image: &ObjectRef<Image>) {
        let next = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let next = queue.leave(image);
            self.books.metrics.set(queue.counts());
            next
        };
        for image in next {
            self.wake(image);
        }
    }

    /// Writes down which images a release grants, of the template of another namespace, and tells them.
    pub(in crate::controllers) fn grant(&self, release: &Release, images: BTreeSet<Granted>) {
        let releases = self.releases.state();
        let concerned = {
            let mut grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
            grants.retain(|uid| releases.iter().any(|release| release.uid().as_deref() == Some(uid)));
            grants.set(&release.uid().unwrap_or_default(), images)
        };
        for (namespace, name, _) in concerned {
            self.wake(ObjectRef::new(&name).within(&namespace));
        }
    }

    /// Whether an image may be made by its template.
    pub(super) fn grant_of(&self, image: &Image) -> Grant {
        let namespace = image.namespace().unwrap_or_default();
        if image.spec.template_ref.namespace.as_ref().is_none_or(|of| *of == namespace) {
            return Grant::Given;
        }
        let releases = self.releases.state();
        let owners = image.owner_references().iter().map(|owner| owner.uid.as_str());
        let owners = owners.filter(|uid| releases.iter().any(|release| release.uid().as_deref() == Some(uid)));
        let granted = (namespace, image.name_any(), image.spec.inputs.clone());
        self.grants.lock().unwrap_or_else(PoisonError::into_inner).judge(&granted, owners)
    }

    /// The template of an image, wherever it is; `None` if it does not exist.
    pub(super) async fn template(&self, place: &ObjectRef<Template>) -> Result<Option<Arc<Template>>, kube::Error> {
        let namespace = place.namespace.as_deref().unwrap_or_default();
        if self.namespace.as_deref().is_none_or(|only| only == namespace) {
            return Ok(self.templates.get(place));
        }
        let api: Api<Template> = Api::namespaced(self.books.client.clone(), namespace);
        Ok(api.get_opt(&place.name).await?.map(Arc::new))
    }

    /// Ends the build of an image that another replica has now.
    pub(in crate::controllers) async fn let_go(&self, image: &Image) {
        let uid = image.uid().unwrap_or_default();
        self.running.stop(&uid).await;
        self.leave(&ObjectRef::from_obj(image));
        self.memory.forget(&uid);
    }

    fn on_error(&self, image: &Image, error: &Error) -> Action {
        if error.is_not_ours() {
            return Action::await_change();
        }
        tracing::warn!(object = super::named(image), %error, "pass ended early; it is tried again");
        let failures = self.memory.failed(&image.uid().unwrap_or_default());
        Action::requeue(retry::delay(error.class(), failures, rand::random()))
    }
}

/// Where the watches write what they see.
pub struct Writers {
    /// Images.
    pub images: Writer<Image>,
    /// Templates.
    pub templates: Writer<Template>,
}

/// Runs the controller until `intake` ends and its passes are done. `changed` is told of an object that changed in a way
/// that concerns its owners.
pub async fn run(
    client: &Client,
    ctx: Arc<NodeImages>,
    writers: Writers,
    triggers: UnboundedReceiver<ObjectRef<Image>>,
    changed: impl Fn(&Image) + Send + 'static,
    intake: CancellationToken,
) {
    let (namespace, reading) = (ctx.namespace.clone(), Reading::new());
    let mut said = Edits::default();
    let events = stored::watch(client, namespace.as_deref(), ctx.images.clone(), ctx.unreadable.clone())
        .inspect_ok(ctx.moves.noted())
        .reflect(writers.images)
        .inspect_ok(at_init_done({
            let ctx = Arc::clone(&ctx);
            move || drop(ctx.read.images.set(()))
        }))
        .inspect_ok(reading.noted());
    let events = touched(events).inspect_ok(move |image| {
        if said.is_new(image, concern(&image.object)) {
            changed(&image.object);
        }
    });
    let templates = templates(client, &ctx, writers.templates);
    let on_error = |image: &Image, error: &Error, ctx: &NodeImages| ctx.on_error(image, error);
    let cancel = ctx.cancel.clone();
    let controller = Controller { store: ctx.images.clone(), reading, ctx: Arc::clone(&ctx), on_error, intake, cancel };
    let images = controller.run(asking_by(events, image_edit), triggers, timed);
    tokio::select! {
        () = images => {}
        () = templates => {}
    }
}

/// Watches templates: what changes of one concerns its images.
async fn templates(client: &Client, ctx: &Arc<NodeImages>, writer: Writer<Template>) {
    let ctx = Arc::clone(ctx);
    let mut known = Edits::default();
    let events = stored::watch(client, ctx.namespace.as_deref(), ctx.templates.clone(), ctx.unreadable.clone())
        .reflect(writer)
        .inspect_ok(at_init_done({
            let ctx = Arc::clone(&ctx);
            move || drop(ctx.read.templates.set(()))
        }));
    let tell = move |template: Result<Touched<Template>, _>| {
        if let Ok(touched) = template
            && known.is_new(&touched, edit(&touched.object))
        {
            let of_it = |image: &&Arc<Image>| template_place(image) == ObjectRef::from_obj(&touched.object);
            for image in ctx.images.state().iter().filter(of_it) {
                ctx.wake(ObjectRef::from_obj(&**image));
            }
        }
        ready(())
    };
    touched(events).for_each(tell).await;
}

/// Where the template of an image is.
pub(super) fn template_place(image: &Image) -> ObjectRef<Template> {
    let TemplateReference { name, namespace } = &image.spec.template_ref;
    ObjectRef::new(name).within(&namespace.clone().or_else(|| image.namespace()).unwrap_or_default())
}

/// What of an image concerns its owners.
fn concern(image: &Image) -> u64 {
    let mut hasher = DefaultHasher::new();
    (image.uid(), image.metadata.deletion_timestamp.is_some()).hash(&mut hasher);
    if let Some(status) = &image.status {
        let ready = condition::find(&status.conditions, ConditionType::Ready);
        (status.phase, &status.location, ready.map(|ready| (&ready.reason, &ready.message))).hash(&mut hasher);
    }
    hasher.finish()
}

/// What of an image asks for a pass: all but what its build reports.
fn image_edit(image: &Image) -> u64 {
    let owners: Vec<&str> = image.owner_references().iter().map(|owner| owner.uid.as_str()).collect();
    let mut hasher = DefaultHasher::new();
    (edit(image), owners).hash(&mut hasher);
    hasher.finish()
}

async fn timed(image: Arc<Image>, ctx: Arc<NodeImages>) -> Result<Action, Error> {
    if !ctx.has_read_all().await {
        return Ok(Action::await_change());
    }
    // It may have changed while it waited.
    let Some(image) = ctx.images.get(&ObjectRef::from_obj(&*image)) else {
        // One that is gone gives its place up.
        ctx.end(&image).await;
        return Ok(Action::await_change());
    };
    if ctx.unreadable.holds::<Image>(&image.namespace().unwrap_or_default(), &image.name_any()) {
        return Ok(Action::requeue(retry::WAITING));
    }
    let (seen, of) = (Arc::clone(&image), Arc::clone(&ctx));
    let latest = move || of.images.get(&ObjectRef::from_obj(&*seen)).unwrap_or_else(|| Arc::clone(&seen));
    match ctx.seats.of(move || Some(root_with(&*latest(), None))) {
        Seat::Taken(Role::Works, fence) => {
            let pass = Box::pin(super::reconcile(Arc::clone(&image), Arc::clone(&ctx)));
            traced(span_of(&*image), Box::pin(fence::within(fence, caught(&*image, &ctx.books.client, pass)))).await
        }
        // Its ClusterStack says it.
        Seat::Taken(..) => Ok(Action::await_change()),
        Seat::Free(next) => Ok(next),
    }
}
