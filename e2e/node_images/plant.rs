//! Steps and a destination in memory, and a process that builds with them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use clusterstack::api::image_release::{
    ProviderNodeImageRelease as Image, ProviderNodeImageReleaseSpec, TemplateReference,
};
use clusterstack::controllers::node_images::{self, NodeImages, Read, Writers};
use clusterstack::controllers::{Memory, Moves, Seats};
use clusterstack::core::image::build::{Hope, Output, Place, Progress};
use clusterstack::core::image::pipeline::Pipeline;
use clusterstack::core::image::recipe;
use clusterstack::core::node_images::NodeImages as List;
use clusterstack::io::events::Events;
use clusterstack::io::image::destination::{
    Claim, Destination, DestinationError, Image as Brought, Meter, Published, Removal,
};
use clusterstack::io::image::executor::{Order, Workshop};
use clusterstack::io::image::journal::Books;
use clusterstack::io::image::meter::BuildMetrics;
use clusterstack::io::image::running::Running;
use clusterstack::io::image::task::{Report, StepError, Steps};
use clusterstack::io::members::Members;
use clusterstack::io::stored::Unreadable;
use futures::channel::mpsc;
use kube::runtime::reflector;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::harness::World;

/// An image's object, by a download.
pub(super) fn image(name: &str, template: &str) -> Image {
    let text = format!(
        "apiVersion: nodeimages.clusterstack.x-k8s.io/v1alpha1\nimages: [{{name: {name}, url: 'https://x.example.org/{name}', format: raw}}]"
    );
    let pipeline = Pipeline::of(&List::parse(&text).unwrap().images[0]).unwrap().unwrap();
    let reference = TemplateReference { name: template.to_owned(), namespace: None };
    let spec = ProviderNodeImageReleaseSpec {
        template_ref: reference.clone(),
        image: recipe::written(&pipeline).unwrap(),
        inputs: pipeline.inputs(&recipe::identity(&reference)),
        suspend: false,
    };
    Image::new(name, spec)
}

#[derive(Default)]
struct Shop {
    /// How often each step ended, by object and step.
    ran: HashMap<(String, usize), u32>,
    /// What lies in work directories.
    made: HashMap<String, Vec<Output>>,
    published: HashMap<String, String>,
    at_once: usize,
    most: usize,
    fails: bool,
}

/// What survives processes: work directories and the destination.
#[derive(Clone)]
pub(super) struct Plant {
    pace: Duration,
    shop: Arc<Mutex<Shop>>,
    /// The step that waits.
    held: Arc<watch::Sender<Option<usize>>>,
}

impl Plant {
    /// One where a step takes this long.
    pub(super) fn new(pace: Duration) -> Self {
        Self { pace, shop: Arc::default(), held: Arc::new(watch::channel(None).0) }
    }

    /// Holds builds in a step.
    pub(super) fn hold(&self, step: usize) {
        self.held.send_replace(Some(step));
    }

    /// Lets them go on.
    pub(super) fn release(&self) {
        self.held.send_replace(None);
    }

    /// Whether steps fail.
    pub(super) fn fail(&self, fails: bool) {
        self.shop.lock().unwrap().fails = fails;
    }

    /// How many steps ended so often.
    pub(super) fn runs(&self) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        self.shop.lock().unwrap().ran.values().for_each(|runs| *counts.entry(*runs).or_default() += 1);
        counts
    }

    pub(super) fn most_at_once(&self) -> usize {
        self.shop.lock().unwrap().most
    }

    pub(super) fn published(&self, name: &str) -> Option<String> {
        self.shop.lock().unwrap().published.get(name).cloned()
    }

    pub(super) fn work_directories(&self) -> usize {
        self.shop.lock().unwrap().made.len()
    }
}

#[async_trait]
impl Workshop for Plant {
    async fn steps(&self, order: &Order) -> Result<Arc<dyn Steps>, StepError> {
        Ok(Arc::new(Bench {
            plant: self.clone(),
            uid: order.claim.object.clone(),
            image: order.pipeline.image.clone(),
        }))
    }

    async fn destination(&self, _: &Order) -> Result<Arc<dyn Destination>, StepError> {
        Ok(Arc::new(self.clone()))
    }
}

/// Counts a build that is at work, also where it is killed.
struct AtWork(Plant);

impl AtWork {
    fn new(plant: &Plant) -> Self {
        let mut shop = plant.shop.lock().unwrap();
        shop.at_once += 1;
        shop.most = shop.most.max(shop.at_once);
        Self(plant.clone())
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.shop.lock().unwrap().at_once -= 1;
    }
}

struct Bench {
    plant: Plant,
    uid: String,
    image: String,
}

fn digest(image: &str) -> String {
    let hex: String = image.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex:0>64}")
}

#[async_trait]
impl Steps for Bench {
    async fn lost(&self, finished: &[Output], _: &CancellationToken) -> Result<Option<usize>, StepError> {
        let made = self.plant.shop.lock().unwrap().made.get(&self.uid).cloned().unwrap_or_default();
        Ok((0..finished.len()).find(|step| made.get(*step) != finished.get(*step)))
    }

    async fn run(
        &self,
        step: usize,
        _: &[Output],
        report: &dyn Report,
        cancel: &CancellationToken,
    ) -> Result<Output, StepError> {
        let _at_work = AtWork::new(&self.plant);
        let cancelled = || StepError { hope: Hope::Retry, message: "cancelled".into() };
        let made = self.plant.shop.lock().unwrap().made.get(&self.uid).and_then(|made| made.get(step).cloned());
        if let Some(made) = made {
            // As a real step does with what is there.
            return Ok(made);
        }
        report.line(&format!("step {step} of {}", self.image));
        for part in 0..10 {
            report.progress(Progress { done: part, total: Some(10) });
            tokio::select! {
                () = tokio::time::sleep(self.plant.pace / 10) => {}
                () = cancel.cancelled() => return Err(cancelled()),
            }
        }
        let mut held = self.plant.held.subscribe();
        tokio::select! {
            released = held.wait_for(|held| *held != Some(step)) => drop(released),
            () = cancel.cancelled() => return Err(cancelled()),
        }
        let mut shop = self.plant.shop.lock().unwrap();
        if shop.fails {
            return Err(StepError { hope: Hope::Retry, message: "it failed on purpose".into() });
        }
        let place = if step == 0 { Place::WorkDirectory(self.uid.clone()) } else { Place::Destination };
        let output = Output { digest: digest(&self.image), place };
        *shop.ran.entry((self.uid.clone(), step)).or_default() += 1;
        shop.made.entry(self.uid.clone()).or_default().push(output.clone());
        if step == 2 {
            shop.published.insert(self.image.clone(), output.digest.clone());
            report.published(&format!("memory/{}", self.image));
        }
        Ok(output)
    }

    async fn discard(&self, _: &CancellationToken) -> Result<(), StepError> {
        self.plant.shop.lock().unwrap().made.remove(&self.uid);
        Ok(())
    }

    async fn recover(&self, finished: &[Output], _: &CancellationToken) -> Result<Vec<Output>, StepError> {
        let made = self.plant.shop.lock().unwrap().made.get(&self.uid).cloned().unwrap_or_default();
        Ok(made.into_iter().skip(finished.len()).collect())
    }
}

#[async_trait]
impl Destination for Plant {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    async fn find(&self, name: &str, _: &CancellationToken) -> Result<Option<Published>, DestinationError> {
        let found = self.published(name);
        Ok(found.map(|digest| Published { location: format!("memory/{name}"), digest, users: Vec::new() }))
    }

    async fn upload(
        &self,
        _: &Brought,
        _: &Path,
        _: &Claim,
        _: &dyn Meter,
        _: &CancellationToken,
    ) -> Result<(), DestinationError> {
        Ok(())
    }

    async fn register(&self, image: &Brought, _: &Claim, _: &CancellationToken) -> Result<Published, DestinationError> {
        Ok(Published { location: image.name.clone(), digest: image.digest.clone(), users: Vec::new() })
    }

    async fn abandon(&self, _: &str, _: &Claim, _: &CancellationToken) -> Result<(), DestinationError> {
        Ok(())
    }

    async fn remove(
        &self,
        image: &str,
        digest: &str,
        cluster: &str,
        dry_run: bool,
        _: &CancellationToken,
    ) -> Result<Removal, DestinationError> {
        assert_eq!(cluster, "management-cluster");
        let mut shop = self.shop.lock().unwrap();
        match shop.published.get(image) {
            None => Ok(Removal::Absent),
            Some(there) if there != digest => Ok(Removal::Foreign),
            Some(_) if dry_run => Ok(Removal::Removed),
            Some(_) => {
                shop.published.remove(image);
                Ok(Removal::Removed)
            }
        }
    }
}

/// A process that builds, with a runtime of its own.
pub(super) struct Process {
    runtime: tokio::runtime::Runtime,
    stop: CancellationToken,
    tasks: TaskTracker,
    ended: tokio::task::JoinHandle<()>,
}

impl Process {
    /// Starts one for the namespace of `t`.
    pub(super) async fn start(t: &World, plant: &Plant, identity: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (kubeconfig, namespace) = (t.plane.kubeconfig.clone(), t.namespace.clone());
        let (workshop, identity) = (Arc::new(plant.clone()), identity.to_owned());
        let (intake, tracked) = (stop.clone(), tasks.clone());
        let ended = runtime.spawn(async move {
            let config = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
            let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
            let client = kube::Client::try_from(config).unwrap();
            let ((images, image_writer), (templates, template_writer)) = (reflector::store(), reflector::store());
            let (releases, _releases) = reflector::store();
            let (waker, woken) = mpsc::unbounded();
            let events = Events::new(client.clone(), identity.clone());
            let ctx = Arc::new(NodeImages {
                books: Books { client: client.clone(), events, metrics: BuildMetrics::default() },
                running: Running::new(tracked.clone(), intake.clone()),
                tasks: tracked,
                workshop,
                identity,
                began: jiff::Timestamp::now(),
                alone: false,
                unreadable: Unreadable::silent(),
                seats: Seats::new(Members::alone()),
                cluster: "management-cluster".to_owned(),
                logs: clusterstack::io::image::log_server::Logs::new(std::path::PathBuf::new(), None),
                watch_filter: None,
                namespace: Some(namespace),
                images,
                releases,
                templates,
                read: Read::default(),
                grants: Mutex::default(),
                waker,
                queue: Mutex::default(),
                memory: Memory::default(),
                moves: Moves::default(),
                intake: intake.clone(),
                cancel: CancellationToken::new(),
            });
            ctx.read.releases();
            let writers = Writers { images: image_writer, templates: template_writer };
            node_images::run(&client, ctx, writers, woken, |_| (), intake).await;
        });
        Self { runtime, stop, tasks, ended }
    }

    /// Ends it as a signal would.
    pub(super) async fn end(self) {
        self.stop.cancel();
        self.ended.await.unwrap();
        self.tasks.close();
        self.tasks.wait().await;
        self.runtime.shutdown_background();
    }

    /// Ends it with no chance to say anything.
    pub(super) fn kill(self) {
        self.runtime.shutdown_background();
    }
}
