//! A build inside of a pod: the steps of its recipe, by the template's settings and Secrets that are mounted.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;

use serde::de::DeserializeOwned;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::destination::Claim;
use super::task::{Assignment, Report, StepError, Steps};
use super::workshop::{Bench, Place, SecretSource};
use crate::api::image_template::ProviderClusterStackReleaseTemplateSpec as Template;
use crate::core::image::build::{Output, Progress};
use crate::core::image::job::pod::PodSettings;
use crate::core::image::job::sight::JobResult;
use crate::core::image::job::{FILE, SETTINGS_FILE};
use crate::core::image::pipeline::Pipeline;
use crate::core::source::AllowList;

/// How often progress is told.
const TELL: Duration = Duration::from_secs(1);

/// Where a pod finds what it works with.
#[derive(Clone, Debug)]
pub struct Mounts {
    /// Recipe and settings.
    pub recipe: PathBuf,
    /// Secrets, a directory each.
    pub secrets: PathBuf,
    /// Where it works.
    pub work: PathBuf,
}

/// Carries all steps out; what is at the destination then. What went before in the same work directory is gone on with.
///
/// # Errors
/// What can't be read, or the step that failed.
pub async fn build(
    mounts: &Mounts,
    claim: Claim,
    inputs: String,
    tell: &(dyn Fn(&str) + Send + Sync),
    cancel: &CancellationToken,
) -> Result<JobResult, StepError> {
    let pipeline: Pipeline = read(&mounts.recipe.join(FILE))?;
    let settings: PodSettings = read(&mounts.recipe.join(SETTINGS_FILE))?;
    let allow = AllowList::parse(settings.allow.iter().map(String::as_str));
    let allow = allow.map_err(|error| StepError::hopeless(format!("the operator's --allow-source: {error}")))?;
    let launcher = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let place = Place {
        root: mounts.work.clone(),
        directories: Vec::new(),
        tools: None,
        allow,
        allowed: Vec::new(),
        job_image: String::new(),
        launcher,
    };
    let bench = Bench::new(SecretSource::Mounted(mounts.secrets.clone()), place);
    let template = Template { destination: settings.destination, build: settings.build, ..Template::default() };
    let assignment = Assignment {
        root: mounts.work.clone(),
        // The volume is the pod's own.
        namespace: String::new(),
        claim,
        inputs,
        pipeline: pipeline.clone(),
    };
    let task = bench.task(&template, "", assignment).await?;
    let mut finished: Vec<Output> = task.recover(&[], cancel).await?;
    for (number, step) in pipeline.steps.iter().enumerate().skip(finished.len()) {
        let report = Told { step: &step.name, tell, last: Mutex::new(None) };
        finished.push(task.run(number, &finished, &report, cancel).await?);
    }
    let digest = finished.last().map(|output| output.digest.clone()).unwrap_or_default();
    // Where it is, the operator asks the destination.
    Ok(JobResult { digest, size: task.size().unwrap_or_default(), location: String::new() })
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, StepError> {
    let wrong =
        |error: &dyn std::fmt::Display| StepError::hopeless(format!("{} can't be read: {error}", path.display()));
    let text = std::fs::read(path).map_err(|error| wrong(&error))?;
    serde_json::from_slice(&text).map_err(|error| wrong(&error))
}

/// Tells by lines, which the operator reads in the log.
struct Told<'a> {
    step: &'a str,
    tell: &'a (dyn Fn(&str) + Send + Sync),
    last: Mutex<Option<Instant>>,
}

impl Report for Told<'_> {
    fn progress(&self, progress: Progress) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|at| at.elapsed() < TELL) {
            return;
        }
        *last = Some(Instant::now());
        let total = progress.total.map(|total| format!("/{total}")).unwrap_or_default();
        (self.tell)(&format!("clusterstack-progress {}{total} {}", progress.done, self.step));
    }

    fn line(&self, line: &str) {
        (self.tell)(line);
    }
}
