//! Carries the steps of a build out, in a work directory of its own.
//!
//! Guarantees: one process at a time works in a directory, and what a tool left running there is ended before anything else
//! is done; a step's output has its name only when it is whole; after an error and after a cancellation nothing runs any more.

mod command;
mod compress;
mod convert;
mod digest;
mod download;
mod error;
mod processes;
pub mod supervisor;
mod tool;
mod tree;
mod verify;
mod watch;
mod work_dir;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::destination::{Claim, Destination, Image};
use crate::core::image::bounds::Bounds;
use crate::core::image::build::{Output, Place, Progress};
use crate::core::image::log::Redactor;
use crate::core::image::pipeline::{Pipeline, Work};
use crate::core::source::AllowList;
use crate::core::verification::Keys;
use crate::io::source::Access;

pub use error::StepError;

use digest::{Sums, of_file};
use tree::Modes;
use watch::{Patience, Upload, Watch};
use work_dir::WorkDir;

/// Who wants to know how a step goes. Called often; it must not block.
pub trait Report: Send + Sync {
    /// The current step is this far.
    fn progress(&self, progress: Progress);
    /// A line of the log, without secrets.
    fn line(&self, line: &str);
    /// The image is published there: a path, a URL, a reference or an id, without secrets.
    fn published(&self, _location: &str) {}
}

/// Carries out the steps of one build.
#[async_trait]
pub trait Steps: Send + Sync {
    /// Of the `finished` outputs, the number of the first that is not at hand or has another digest; `None` if all are.
    async fn lost(&self, finished: &[Output], cancel: &CancellationToken) -> Result<Option<usize>, StepError>;

    /// Carries out a step, whose inputs are the outputs before it. What is there already of the step is used: a part of a
    /// download, an upload of the same attempt.
    ///
    /// # Errors
    /// What failed, and whether trying again can help. After a cancellation nothing runs any more.
    async fn run(
        &self,
        step: usize,
        finished: &[Output],
        report: &dyn Report,
        cancel: &CancellationToken,
    ) -> Result<Output, StepError>;

    /// Removes the work directory, and what attempts up to this one left half-made at the destination.
    ///
    /// # Errors
    /// What can't be removed.
    async fn discard(&self, cancel: &CancellationToken) -> Result<(), StepError>;

    /// Removes what attempts up to this one left half-made at the destination, and keeps what is at hand here: the build is
    /// given up, and somebody may have it tried again.
    ///
    /// # Errors
    /// What can't be removed.
    async fn abandon(&self, _cancel: &CancellationToken) -> Result<(), StepError> {
        Ok(())
    }

    /// Outputs behind those that are known to be finished which are at hand too, in the order of the steps: a checkpoint that
    /// was lost, or was not written any more.
    ///
    /// # Errors
    /// The work directory can't be read, or the destination does not answer.
    async fn recover(&self, _finished: &[Output], _cancel: &CancellationToken) -> Result<Vec<Output>, StepError> {
        Ok(Vec::new())
    }

    /// Digest of what was brought to the destination by somebody who goes on without us, and whose result is there to be read.
    ///
    /// # Errors
    /// It can't be read.
    async fn made(&self) -> Result<Option<String>, StepError> {
        Ok(None)
    }
}

/// What is built, by whom, where.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// Where work directories and logs lie.
    pub root: PathBuf,
    /// Namespace of the object.
    pub namespace: String,
    /// Object and attempt.
    pub claim: Claim,
    /// Digest over all that the build depends on: what was made of others is not used.
    pub inputs: String,
    /// The steps.
    pub pipeline: Pipeline,
}

/// What the provider's template says, with its Secrets read. Debug shows none of them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Executables of the tools that commands may run, by name.
    pub tools: BTreeMap<String, PathBuf>,
    /// What tools find in their environment.
    pub env: BTreeMap<String, String>,
    /// What a build may use, and how long it may take.
    pub bounds: Bounds,
    /// How long a tool may take to end when it is told to.
    pub grace: Duration,
    /// Keys for signatures of downloads.
    pub keys: Keys,
    /// How servers of downloads are reached.
    pub access: Access,
    /// The one host, or `host:port`, that the credentials of `access` are for.
    pub download_host: Option<String>,
    /// Which addresses downloads may come from.
    pub allow: AllowList,
    /// Values of all Secrets that the build was given: none of them gets into a log.
    pub redactor: Redactor,
    /// The executable that knows the subcommand of [`supervisor`]: our own.
    pub launcher: PathBuf,
    /// The executable of `qemu-img`.
    pub qemu_img: PathBuf,
    /// Names of tools that may be run without a flag of the operator: they are kept to their work directories.
    pub confined: BTreeSet<String>,
}

impl Settings {
    /// Without tools, keys and credentials, within the default bounds.
    pub fn new(launcher: PathBuf) -> Self {
        Self {
            tools: BTreeMap::new(),
            env: BTreeMap::new(),
            bounds: Bounds::default(),
            grace: Duration::from_secs(10),
            keys: Keys::default(),
            access: Access::default(),
            download_host: None,
            allow: AllowList::default(),
            redactor: Redactor::default(),
            launcher,
            qemu_img: PathBuf::from("/usr/bin/qemu-img"),
            confined: BTreeSet::new(),
        }
    }
}

/// The log of a build of these inputs, below the root of the work directories; an older part lies beside it, as `.log.1`.
/// Each namespace has its own: who may read its objects may read it.
pub fn log_path(root: &Path, namespace: &str, inputs: &str) -> PathBuf {
    let kept = |text: &str| -> String { text.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect() };
    logs(root).join(format!("{}.{}.log", kept(namespace), kept(inputs.trim_start_matches("sha256:"))))
}

/// The directory of all logs.
pub(super) fn logs(root: &Path) -> PathBuf {
    root.join("logs")
}

/// Removes work directories below `root` that nobody needs: `goes` is asked with an object's UID and the time since
/// something was last noted there. One in which somebody works stays.
pub async fn sweep(root: &Path, goes: &(dyn Fn(&str, Duration) -> bool + Send + Sync), cancel: &CancellationToken) {
    WorkDir::sweep(root, goes, Duration::from_secs(10), cancel).await;
}

/// Carries out the steps of a build as a task of this process.
pub struct Task {
    assignment: Assignment,
    settings: Settings,
    destination: Arc<dyn Destination>,
    files: Vec<String>,
}

/// A file that a step works on.
struct Input {
    path: PathBuf,
    digest: String,
}

impl Input {
    /// Removes the file, so that it is made anew: it is not what it should be.
    fn forget(&self) -> Result<(), StepError> {
        fs::remove_file(&self.path).map_err(|error| StepError::file("removing", &self.path, &error))
    }

    fn size(&self) -> Result<u64, StepError> {
        let metadata = fs::metadata(&self.path);
        metadata.map(|metadata| metadata.len()).map_err(|error| StepError::file("reading", &self.path, &error))
    }
}

/// A file that a step made, still under another name.
struct Made {
    path: PathBuf,
    digest: String,
}

/// A step that is under way.
struct Site<'s> {
    settings: &'s Settings,
    pipeline: &'s Pipeline,
    files: &'s [String],
    directory: &'s WorkDir,
    number: usize,
    name: &'s str,
    watch: &'s Watch<'s>,
    cancel: &'s CancellationToken,
}

impl Site<'_> {
    /// The files that the steps before made, with their names.
    fn earlier_files(&self) -> impl Iterator<Item = (PathBuf, &str)> {
        let steps = self.pipeline.steps[..self.number].iter().zip(self.files).enumerate();
        let making = steps.filter(|(_, (step, _))| step.work.makes_a_file());
        making.map(|(at, (step, file))| (self.directory.output(at, &step.name, file), file.as_str()))
    }
}

impl Task {
    /// Of a build.
    pub fn new(assignment: Assignment, settings: Settings, destination: Arc<dyn Destination>) -> Self {
        let files = assignment.pipeline.files();
        Self { assignment, settings, destination, files }
    }

    fn path(&self) -> PathBuf {
        // An object's UID is a UUID; whatever it is, it is one part of a path.
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        self.assignment.root.join(self.assignment.claim.object.chars().map(plain).collect::<String>())
    }

    /// Bytes of the file that all steps made; `None` where it is not in the work directory.
    pub fn size(&self) -> Option<u64> {
        let maker = self.maker(self.assignment.pipeline.steps.len())?;
        let name = &self.assignment.pipeline.steps[maker].name;
        let path = work_dir::output_path(&self.path(), maker, name, &self.files[maker]);
        fs::metadata(path).ok().map(|metadata| metadata.len())
    }

    async fn open(&self, cancel: &CancellationToken) -> Result<WorkDir, StepError> {
        WorkDir::open(&self.path(), &self.assignment.inputs, self.settings.grace, cancel).await
    }

    /// The step that made the file which lies there before `step`.
    fn maker(&self, step: usize) -> Option<usize> {
        self.assignment.pipeline.steps[..step].iter().rposition(|step| step.work.makes_a_file())
    }

    fn input(&self, directory: &WorkDir, step: usize, finished: &[Output]) -> Result<Input, StepError> {
        let maker = self.maker(step).and_then(|maker| Some((maker, finished.get(maker)?)));
        let (maker, output) = maker.ok_or_else(|| StepError::hopeless("there is no file before this step"))?;
        let name = &self.assignment.pipeline.steps[maker].name;
        Ok(Input { path: directory.output(maker, name, &self.files[maker]), digest: output.digest.clone() })
    }

    /// What is brought to the destination.
    fn image(&self, digest: &str, size: u64) -> Image {
        let pipeline = &self.assignment.pipeline;
        let mut properties = pipeline.description();
        if let Some(compression) = pipeline.compression() {
            let named = properties.entry("compression");
            named.or_insert_with(|| Value::from(format!("{compression:?}").to_ascii_lowercase()));
        }
        let (name, format) = (pipeline.image.clone(), pipeline.final_format());
        let origins = pipeline.origins().into_iter().cloned().collect();
        Image { name, digest: digest.to_owned(), size, format, properties, origins }
    }

    /// The published image of our name, if it is this one.
    async fn is_published(&self, digest: &str, cancel: &CancellationToken) -> Result<bool, StepError> {
        let found = self.destination.find(&self.assignment.pipeline.image, cancel).await?;
        Ok(found.is_some_and(|found| found.digest == digest))
    }

    /// Whether a file of the work directory is what its step made.
    async fn is_whole(
        &self,
        directory: &WorkDir,
        step: usize,
        digest: &str,
        cancel: &CancellationToken,
    ) -> Result<bool, StepError> {
        let Some(maker) = self.maker(step + 1) else { return Ok(false) };
        let path = directory.output(maker, &self.assignment.pipeline.steps[maker].name, &self.files[maker]);
        if !path.is_file() {
            return Ok(false);
        }
        let (sums, _) = of_file(path, Sums::for_checksum(None), cancel, |_| ()).await?;
        Ok(sums.digest() == digest)
    }

    /// Whether the destination has the upload of this attempt, or has it now: what an earlier one finished is taken over.
    async fn has_upload(
        &self,
        directory: &mut WorkDir,
        at: usize,
        output: &Output,
        cancel: &CancellationToken,
    ) -> Result<bool, StepError> {
        let claim = &self.assignment.claim;
        let own = directory.entries().get(at).filter(|own| own.output == *output).map(|own| own.attempt);
        match (own, self.size()) {
            (Some(attempt), _) if attempt == claim.attempt => Ok(true),
            (Some(earlier), Some(size)) if earlier < claim.attempt => {
                let image = self.image(&output.digest, size);
                let adopted = self.destination.adopt(&image, claim, earlier, cancel).await?;
                if adopted {
                    directory.record(at, output, claim.attempt)?;
                }
                Ok(adopted)
            }
            _ => Ok(false),
        }
    }

    /// The number of the first output that is not at hand, of those from `from` on: those before were looked at.
    async fn first_lost(
        &self,
        directory: &mut WorkDir,
        outputs: &[Output],
        from: usize,
        cancel: &CancellationToken,
    ) -> Result<Option<usize>, StepError> {
        let steps = &self.assignment.pipeline.steps;
        let last = outputs.last().filter(|_| outputs.len() == steps.len());
        if let Some(last) = last
            && self.is_published(&last.digest, cancel).await?
        {
            return Ok(None);
        }
        let mut whole: Option<(usize, &str)> = None;
        for (at, output) in outputs.iter().enumerate().skip(from) {
            let is_at_hand = match (&output.place, steps.get(at).map(|step| &step.work)) {
                (_, None | Some(Work::Register)) => false,
                (Place::Destination, _) => {
                    self.has_upload(directory, at, output, cancel).await?
                        || self.is_published(&output.digest, cancel).await?
                }
                (Place::WorkDirectory(id), _) if id == directory.id() => {
                    // What only looks at a file shares it with the step that made it.
                    let maker = self.maker(at + 1).map(|maker| (maker, output.digest.as_str()));
                    let seen = whole.is_some() && whole == maker;
                    let is_whole = seen || self.is_whole(directory, at, &output.digest, cancel).await?;
                    whole = maker.filter(|_| is_whole);
                    is_whole
                }
                (Place::WorkDirectory(_), _) => false,
            };
            if !is_at_hand {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn patience(&self, work: &Work) -> Patience {
        let bounds = &self.settings.bounds;
        Patience {
            deadline: bounds.deadline(work),
            silence: bounds.no_progress,
            grace: self.settings.grace,
            disk: bounds.disk,
        }
    }

    async fn carry_out(&self, site: &Site<'_>, finished: &[Output]) -> Result<Output, StepError> {
        let (directory, number) = (site.directory, site.number);
        let step = &self.assignment.pipeline.steps[number];
        let file = self.files[number].as_str();
        let input = || self.input(directory, number, finished);
        let made = match &step.work {
            Work::Download(download) => download::run(site, download).await?,
            Work::Verify(verify) => {
                let input = input()?;
                verify::run(site, verify, &input).await?;
                return Ok(Output { digest: input.digest, place: Place::WorkDirectory(directory.id().to_owned()) });
            }
            Work::Build(tool) => command::run(site, tool, file).await?,
            Work::Convert { format } => {
                let from = self.assignment.pipeline.format_before(number);
                convert::run(site, *format, from, &input()?).await?
            }
            Work::Compress { algorithm } => compress::run(site, *algorithm, &input()?).await?,
            Work::Upload => return self.upload(site, &input()?).await,
            Work::Register => return self.register(site, finished).await,
        };
        if let Some(full) = watch::over_the_disk(directory.path(), self.settings.bounds.disk, Modes::Given).await {
            return Err(full);
        }
        if site.cancel.is_cancelled() {
            return Err(StepError::cancelled());
        }
        directory.finish(number, &step.name, &made.path, file)?;
        Ok(Output { digest: made.digest, place: Place::WorkDirectory(directory.id().to_owned()) })
    }

    async fn upload(&self, site: &Site<'_>, input: &Input) -> Result<Output, StepError> {
        let size = input.size()?;
        let image = self.image(&input.digest, size);
        if self.is_published(&image.digest, site.cancel).await? {
            site.watch.line(format!("{} is at {} already", image.name, self.destination.name()).as_bytes());
        } else {
            let meter = Upload { watch: site.watch, size };
            let claim = &self.assignment.claim;
            self.destination.upload(&image, &input.path, claim, &meter, site.cancel).await?;
        }
        Ok(Output { digest: image.digest, place: Place::Destination })
    }

    async fn register(&self, site: &Site<'_>, finished: &[Output]) -> Result<Output, StepError> {
        let input = self.input(site.directory, site.number, finished)?;
        let image = self.image(&input.digest, input.size()?);
        let published = self.destination.register(&image, &self.assignment.claim, site.cancel).await?;
        if published.digest != image.digest {
            return Err(StepError::transient(format!(
                "{} published {} where {} was uploaded; it is tried again",
                published.location, published.digest, image.digest
            )));
        }
        site.watch.published(&published.location);
        Ok(Output { digest: image.digest, place: Place::Destination })
    }

    /// What is wrong with the build before anything is done.
    fn check(&self, number: usize, finished: &[Output]) -> Result<(), StepError> {
        let pipeline = &self.assignment.pipeline;
        if let Some(step) = pipeline.unverified() {
            return Err(StepError::hopeless(format!(
                "step {} names no checksum, and is followed by no verify: what is downloaded counts only by its digest; add a checksum to the list of images",
                step.name
            )));
        }
        if number >= pipeline.steps.len() || finished.len() < number {
            return Err(StepError::hopeless(format!(
                "there is no step {number} after {} finished ones",
                finished.len()
            )));
        }
        Ok(())
    }
}

#[async_trait]
impl Steps for Task {
    async fn lost(&self, finished: &[Output], cancel: &CancellationToken) -> Result<Option<usize>, StepError> {
        if finished.is_empty() {
            return Ok(None);
        }
        let mut directory = self.open(cancel).await?;
        self.first_lost(&mut directory, finished, 0, cancel).await
    }

    async fn run(
        &self,
        number: usize,
        finished: &[Output],
        report: &dyn Report,
        cancel: &CancellationToken,
    ) -> Result<Output, StepError> {
        self.check(number, finished)?;
        let mut directory = self.open(cancel).await?;
        let log = log_path(&self.assignment.root, &self.assignment.namespace, &self.assignment.inputs);
        let watch = Watch::new(report, &self.settings.redactor, log);
        let pipeline = &self.assignment.pipeline;
        let step = &pipeline.steps[number];
        watch.line(format!("step {} begins, attempt {}", step.name, self.assignment.claim.attempt).as_bytes());
        let path = directory.path().to_owned();
        let done = watch
            .over(self.patience(&step.work), &path, cancel, async |cancel: &CancellationToken| {
                let site = Site {
                    settings: &self.settings,
                    pipeline,
                    files: &self.files,
                    directory: &directory,
                    number,
                    name: &step.name,
                    watch: &watch,
                    cancel,
                };
                self.carry_out(&site, finished).await
            })
            .await;
        match done {
            Ok(output) => {
                directory.record(number, &output, self.assignment.claim.attempt)?;
                watch.line(format!("step {} is done: {}", step.name, output.digest).as_bytes());
                Ok(output)
            }
            Err(error) => {
                let mut error = watch.redacted(&error);
                // Another build may have made room meanwhile.
                if !cancel.is_cancelled() && (error.is_of_full_disk() || directory.is_full()) {
                    error = error.on_full_disk();
                    // Other builds need what is left of the disk more than this one needs its part.
                    directory.give_up(number, &step.name)?;
                }
                watch.line(format!("step {} failed: {error}", step.name).as_bytes());
                Err(error)
            }
        }
    }

    async fn discard(&self, cancel: &CancellationToken) -> Result<(), StepError> {
        if self.path().exists() {
            let directory = self.open(cancel).await?;
            digest::blocking(cancel, move |_| directory.remove()).await?;
        }
        self.abandon(cancel).await
    }

    async fn abandon(&self, cancel: &CancellationToken) -> Result<(), StepError> {
        let image = &self.assignment.pipeline.image;
        Ok(self.destination.abandon(image, &self.assignment.claim, cancel).await?)
    }

    async fn recover(&self, finished: &[Output], cancel: &CancellationToken) -> Result<Vec<Output>, StepError> {
        let mut directory = self.open(cancel).await?;
        let mut outputs: Vec<Output> = directory.entries().iter().map(|entry| entry.output.clone()).collect();
        outputs.truncate(self.assignment.pipeline.steps.len());
        if outputs.len() <= finished.len() || !outputs.starts_with(finished) {
            return Ok(Vec::new());
        }
        if let Some(lost) = self.first_lost(&mut directory, &outputs, finished.len(), cancel).await? {
            outputs.truncate(lost);
        }
        Ok(outputs.split_off(finished.len().min(outputs.len())))
    }
}
