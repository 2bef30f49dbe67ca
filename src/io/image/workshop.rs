//! What builds of this operator work with.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use kube::Client;
use sha2::{Digest, Sha256};

use super::destination::{Destination, Reach, open};
use super::executor::{Order, Workshop};
use super::job::{JobSteps, Jobs};
use super::task::{Assignment, Settings as TaskSettings, StepError, Steps, Task};
use crate::api::image_destination::Destination as Spec;
use crate::api::image_template::{ExecutorKind, ImageBuild, ProviderClusterStackReleaseTemplateSpec as Template};
use crate::api::source::SecretReference;
use crate::core::image::bounds::Bounds;
use crate::core::image::build::Hope;
use crate::core::image::job::pod::{self, DefaultPod, destination_references};
use crate::core::image::job::{ImageObject, JobRequest};
use crate::core::image::log::Redactor;
use crate::core::retry::ErrorClass;
use crate::core::source::AllowList;
use crate::core::status::Trouble;
use crate::core::verification::Keys;
use crate::io::apply::refusal;
use crate::io::source::access::{Proxy, Tls};
use crate::io::source::open::secret_data;
use crate::io::source::{Access, Credentials};

/// How long a tool may take to end when it is told to.
const GRACE: Duration = Duration::from_secs(10);
/// The tool by which disks are converted, where a template says where it is.
const QEMU_IMG: &str = "qemu-img";
/// Destinations that are kept open: an upload to a registry goes on only within one.
const OPEN: usize = 64;

type Data = BTreeMap<String, Vec<u8>>;

/// By Secrets of the management cluster and the operator's flags.
pub struct Local {
    jobs: Jobs,
    bench: Bench,
}

/// What the operator's flags say of builds.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where work directories and logs lie.
    pub root: PathBuf,
    /// Below which directories images may be brought.
    pub directories: Vec<PathBuf>,
    /// Below which paths a tool of a template may be; `None` where a pod of its own holds them.
    pub tools: Option<Vec<PathBuf>>,
    /// Which local hosts may be reached.
    pub allow: AllowList,
    /// The same as it was written, for pods of ours.
    pub allowed: Vec<String>,
    /// The image of pods of ours; empty where there is none.
    pub job_image: String,
    /// Our own executable.
    pub launcher: PathBuf,
}

/// Where Secrets are.
pub enum SecretSource {
    /// At the API server.
    Api(Client),
    /// In a directory, one for each field that names a Secret.
    Mounted(PathBuf),
}

impl SecretSource {
    async fn read(&self, namespace: &str, reference: &SecretReference, field: &str) -> Result<Data, StepError> {
        match self {
            Self::Api(client) => secret_data(client, namespace, reference, field).await.map_err(of_trouble),
            Self::Mounted(directory) => mounted(&directory.join(pod::folder(field))),
        }
    }
}

/// The keys of a Secret that is mounted. What begins with two dots is the kubelet's.
fn mounted(directory: &Path) -> Result<Data, StepError> {
    let failed =
        |error: std::io::Error| StepError::transient(format!("reading {} failed: {error}", directory.display()));
    let mut data = Data::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("..") {
            data.insert(name, std::fs::read(entry.path()).map_err(failed)?);
        }
    }
    Ok(data)
}

/// Keys of Secrets whose values anybody may see: without them messages could not be read.
const PLAIN_KEYS: [&str; 4] = ["host", "ca.crt", "tls.crt", "known_hosts"];

/// The data of the Secrets that a template names, by field.
struct Secrets<'a> {
    source: &'a SecretSource,
    namespace: &'a str,
    values: Vec<String>,
}

impl Secrets<'_> {
    async fn read(&mut self, reference: Option<&SecretReference>, field: &str) -> Result<Option<Data>, StepError> {
        let Some(reference) = reference else { return Ok(None) };
        let data = self.source.read(self.namespace, reference, field).await?;
        let secret = data.iter().filter(|(key, _)| !PLAIN_KEYS.contains(&key.as_str()));
        self.values.extend(secret.filter_map(|(_, value)| String::from_utf8(value.clone()).ok()));
        Ok(Some(data))
    }

    /// The same, understood.
    async fn parsed<T, E: std::fmt::Display>(
        &mut self,
        reference: Option<&SecretReference>,
        field: &str,
        parse: impl FnOnce(&Data) -> Result<T, E>,
    ) -> Result<Option<T>, StepError> {
        let Some(data) = self.read(reference, field).await? else { return Ok(None) };
        let name = reference.map(|reference| reference.name.as_str()).unwrap_or_default();
        let place = format!("{}/{name}", self.namespace);
        let unusable =
            |error: E| StepError::hopeless(format!("Secret {place} of {field} can't be used: {error}; correct it"));
        parse(&data).map(Some).map_err(unusable)
    }
}

/// Makes tasks and opens destinations, by Secrets that it reads.
pub struct Bench {
    secrets: SecretSource,
    place: Place,
    open: Mutex<HashMap<[u8; 32], Arc<dyn Destination>>>,
}

impl Bench {
    /// With nothing open.
    pub fn new(secrets: SecretSource, place: Place) -> Self {
        Self { secrets, place, open: Mutex::default() }
    }

    fn secrets<'a>(&'a self, namespace: &'a str) -> Secrets<'a> {
        Secrets { source: &self.secrets, namespace, values: Vec::new() }
    }

    /// What carries the steps out, as a task of this process; Secrets are of `namespace`.
    ///
    /// # Errors
    /// A Secret is missing, or the template can't be followed.
    pub async fn task(&self, template: &Template, namespace: &str, assignment: Assignment) -> Result<Task, StepError> {
        let mut secrets = self.secrets(namespace);
        let destination = self.open(&template.destination, &mut secrets).await?;
        self.task_at(&template.build, secrets, assignment, destination).await
    }

    async fn open(&self, spec: &Spec, secrets: &mut Secrets<'_>) -> Result<Arc<dyn Destination>, StepError> {
        let (secret, certificate) = destination_references(spec);
        let reach = Reach {
            secret: secrets.read(secret, "spec.destination.secretRef").await?,
            certificate: secrets.read(certificate, "spec.destination.certSecretRef").await?,
            allow: self.place.allow.clone(),
            directories: self.place.directories.clone(),
        };
        let key: [u8; 32] = Sha256::digest(format!("{spec:?}{:?}{:?}", reach.secret, reach.certificate)).into();
        let mut known = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(destination) = known.get(&key) {
            return Ok(Arc::clone(destination));
        }
        let destination = open(spec, &reach)?;
        if known.len() >= OPEN {
            known.clear();
        }
        known.insert(key, Arc::clone(&destination));
        Ok(destination)
    }

    async fn task_at(
        &self,
        build: &ImageBuild,
        mut secrets: Secrets<'_>,
        assignment: Assignment,
        destination: Arc<dyn Destination>,
    ) -> Result<Task, StepError> {
        let host =
            |data: &Data| Ok::<_, String>(data.get("host").map(|host| String::from_utf8_lossy(host).into_owned()));
        let access = Access {
            credentials: secrets.parsed(build.secret_ref.as_ref(), "secretRef", Credentials::from_secret).await?,
            tls: secrets
                .parsed(build.cert_secret_ref.as_ref(), "certSecretRef", Tls::from_secret)
                .await?
                .unwrap_or_default(),
            proxy: secrets.parsed(build.proxy_secret_ref.as_ref(), "proxySecretRef", Proxy::from_secret).await?,
            // What is downloaded counts by its digest.
            insecure: true,
        };
        let download_host = secrets.parsed(build.secret_ref.as_ref(), "secretRef", host).await?.flatten();
        let keys = secrets.read(build.keys_secret_ref.as_ref(), "keysSecretRef").await?.unwrap_or_default();
        let defaults = TaskSettings::new(self.place.launcher.clone());
        let mut confined = BTreeSet::new();
        if let Some(allowed) = &self.place.tools {
            let defaults = std::slice::from_ref(&defaults.qemu_img);
            check_tools(build, &[allowed, defaults].concat())?;
            let is_named = |path: &str| allowed.iter().any(|root| Path::new(path).starts_with(root));
            let unnamed = build.tools.iter().filter(|tool| !is_named(&tool.path));
            confined.extend(unnamed.map(|tool| tool.name.clone()));
        }
        let qemu_img = build.tools.iter().find(|tool| tool.name == QEMU_IMG);
        let settings = TaskSettings {
            qemu_img: qemu_img.map_or(defaults.qemu_img, |tool| PathBuf::from(&tool.path)),
            tools: build.tools.iter().map(|tool| (tool.name.clone(), PathBuf::from(&tool.path))).collect(),
            env: build.env.clone(),
            bounds: bounds(build)?,
            grace: GRACE,
            keys: Keys(keys),
            access,
            download_host,
            allow: self.place.allow.clone(),
            redactor: Redactor::new(secrets.values.iter().map(String::as_str)),
            confined,
            ..defaults
        };
        Ok(Task::new(assignment, settings, destination))
    }
}

/// Whether all tools of a template are where the operator lets tools be: they run as its own user, beside its credentials.
fn check_tools(build: &ImageBuild, allowed: &[PathBuf]) -> Result<(), StepError> {
    let is_plain =
        |path: &Path| path.components().all(|part| !matches!(part, Component::ParentDir | Component::CurDir));
    let may_run = |path: &Path| is_plain(path) && allowed.iter().any(|root| path.starts_with(root));
    match build.tools.iter().find(|tool| !may_run(Path::new(&tool.path))) {
        None => Ok(()),
        Some(tool) => Err(StepError::hopeless(format!(
            "build.tools: the operator runs no {:?} for templates, for a tool runs with its rights: use executor Job, or ask who runs the \
             operator for --allow-image-tool",
            tool.path
        ))),
    }
}

impl Local {
    /// By the operator's own rights.
    pub fn new(client: Client, place: Place) -> Self {
        Self { jobs: Jobs::new(client.clone()), bench: Bench::new(SecretSource::Api(client), place) }
    }

    fn job(
        &self,
        order: &Order,
        secrets: &Secrets<'_>,
        destination: Arc<dyn Destination>,
    ) -> Result<JobSteps, StepError> {
        let build = &order.template.build;
        let job = build.job.clone().unwrap_or_default();
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let object = &order.object;
        let recipe = serde_json::to_value(&order.pipeline);
        let redactor = Redactor::new(secrets.values.iter().map(String::as_str));
        let (bounds, place) = (bounds(build)?, &self.bench.place);
        let default_pod = DefaultPod::of(&order.template, &place.job_image, &place.allowed, bounds.disk);
        let unwritten = |error: serde_json::Error| StepError::hopeless(format!("settings can't be written: {error}"));
        Ok(JobSteps {
            jobs: self.jobs.clone(),
            request: JobRequest {
                object: ImageObject {
                    api_version: text(&object.api_version),
                    kind: text(&object.kind),
                    namespace: text(&object.namespace),
                    name: text(&object.name),
                    uid: text(&object.uid),
                },
                namespace: order.template_namespace.clone(),
                template: job.template,
                default_pod: default_pod.map_err(unwritten)?,
                active_deadline_seconds: job.active_deadline_seconds,
                ttl_seconds_after_finished: job.ttl_seconds_after_finished,
                image: order.pipeline.image.clone(),
                inputs: order.recipe.inputs.clone(),
                attempt: order.claim.attempt,
                cluster: order.claim.cluster.clone(),
                recipe: recipe.map_err(|error| StepError::hopeless(format!("the recipe can't be written: {error}")))?,
                operator: None,
            },
            destination,
            format: order.pipeline.final_format(),
            properties: order.pipeline.description(),
            no_progress: bounds.no_progress,
            mask: Arc::new(move |text| redactor.piece(text)),
        })
    }
}

#[async_trait]
impl Workshop for Local {
    async fn steps(&self, order: &Order) -> Result<Arc<dyn Steps>, StepError> {
        let mut secrets = self.bench.secrets(&order.template_namespace);
        let destination = self.bench.open(&order.template.destination, &mut secrets).await?;
        Ok(match order.template.build.executor {
            ExecutorKind::Task => {
                let assignment = Assignment {
                    root: self.bench.place.root.clone(),
                    namespace: order.object.namespace.clone().unwrap_or_default(),
                    claim: order.claim.clone(),
                    inputs: order.recipe.inputs.clone(),
                    pipeline: order.pipeline.clone(),
                };
                Arc::new(self.bench.task_at(&order.template.build, secrets, assignment, destination).await?)
            }
            ExecutorKind::Job => Arc::new(self.job(order, &secrets, destination)?),
        })
    }

    async fn destination(&self, order: &Order) -> Result<Arc<dyn Destination>, StepError> {
        let mut secrets = self.bench.secrets(&order.template_namespace);
        self.bench.open(&order.template.destination, &mut secrets).await
    }

    async fn end_jobs(&self, order: &Order) -> Result<(), StepError> {
        let uid = order.object.uid.as_deref().unwrap_or_default();
        let left = self.jobs.stop(&order.template_namespace, uid, None).await;
        let failed = |error| {
            StepError::transient(format!(
                "the Job of a build that is a task by now can't be deleted: {}",
                refusal(&error).message
            ))
        };
        match left.map_err(failed)?.as_slice() {
            [] => Ok(()),
            left => Err(StepError::transient(format!(
                "the Job of a build that is a task by now does not go: {}",
                left.join(", ")
            ))),
        }
    }
}

fn bounds(build: &ImageBuild) -> Result<Bounds, StepError> {
    Bounds::of(build).map_err(|error| StepError::hopeless(error.to_string()))
}

/// A Secret that is missing may come.
fn of_trouble(trouble: Trouble) -> StepError {
    let hope =
        if matches!(trouble.class, ErrorClass::Transient | ErrorClass::Waiting) { Hope::Retry } else { Hope::None };
    StepError { hope, message: trouble.message }
}
