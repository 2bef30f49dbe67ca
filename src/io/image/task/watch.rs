//! Watches a step: tells how far it is, keeps its log, and stops it when it takes too long, stands still, or fills the disk.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::StepError;
use super::tree::{self, Modes};
use super::{Report, work_dir};
use crate::core::duration::spoken;
use crate::core::image::build::Progress;
use crate::core::image::log::Redactor;
use crate::io::image::destination::Meter;

/// How often is looked.
const LOOK: Duration = Duration::from_millis(200);
/// How often the disk is looked at.
const DISK: Duration = Duration::from_secs(1);
/// How long a step that was told to end is waited for, beyond the grace of a tool.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes of a log before it is put aside; one older is kept.
const LARGEST_LOG: u64 = 4 << 20;
const UNKNOWN: u64 = u64::MAX;

/// How far a step is; clones count together.
#[derive(Clone, Debug)]
pub(super) struct Gauge(Arc<(AtomicU64, AtomicU64)>);

impl Gauge {
    fn new() -> Self {
        Self(Arc::new((AtomicU64::new(0), AtomicU64::new(UNKNOWN))))
    }

    /// `done` bytes of `total`, as far as that is known.
    pub(super) fn set(&self, done: u64, total: Option<u64>) {
        self.0.1.store(total.unwrap_or(UNKNOWN), Ordering::Relaxed);
        self.0.0.store(done, Ordering::Relaxed);
    }

    fn get(&self) -> Progress {
        let total = self.0.1.load(Ordering::Relaxed);
        Progress { done: self.0.0.load(Ordering::Relaxed), total: (total != UNKNOWN).then_some(total) }
    }
}

/// An upload's progress.
pub(super) struct Upload<'w> {
    pub(super) watch: &'w Watch<'w>,
    pub(super) size: u64,
}

impl Meter for Upload<'_> {
    fn done(&self, done: u64) {
        self.watch.gauge.set(done.min(self.size), Some(self.size));
    }

    fn says(&self, line: &str) {
        self.watch.line(line.as_bytes());
    }
}

/// How long a step may take, and how much it may write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// From its start.
    pub(super) deadline: Duration,
    /// Without progress or output.
    pub(super) silence: Duration,
    /// From the moment it is told to end.
    pub(super) grace: Duration,
    /// Bytes of the work directory.
    pub(super) disk: u64,
}

/// A step that is under way.
pub(super) struct Watch<'r> {
    report: &'r dyn Report,
    redactor: &'r Redactor,
    log: Mutex<Log>,
    gauge: Gauge,
    lines: AtomicU64,
}

impl<'r> Watch<'r> {
    pub(super) fn new(report: &'r dyn Report, redactor: &'r Redactor, log: PathBuf) -> Self {
        let log = Mutex::new(Log { path: log, file: None, size: 0 });
        Self { report, redactor, log, gauge: Gauge::new(), lines: AtomicU64::new(0) }
    }

    /// How far the step is.
    pub(super) fn gauge(&self) -> &Gauge {
        &self.gauge
    }

    /// A line of a tool, or of ours, as it came.
    pub(super) fn line(&self, bytes: &[u8]) {
        let line = self.redactor.line(bytes);
        self.lines.fetch_add(1, Ordering::Relaxed);
        self.log.lock().unwrap_or_else(PoisonError::into_inner).write(&line);
        self.report.line(&line);
    }

    /// Where the image is now.
    pub(super) fn published(&self, location: &str) {
        self.report.published(location);
        self.line(format!("published as {location}").as_bytes());
    }

    /// `error` without secrets.
    pub(super) fn redacted(&self, error: &StepError) -> StepError {
        StepError { message: self.redactor.redacted(&error.message), hope: error.hope }
    }

    /// Carries a step out that works below `directory`. It is given a token that it has to look at.
    ///
    /// # Errors
    /// What the step says; that it took too long, stood still, filled the disk, or was cancelled.
    pub(super) async fn over<T>(
        &self,
        patience: Patience,
        directory: &Path,
        cancel: &CancellationToken,
        step: impl AsyncFnOnce(&CancellationToken) -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        let stop = cancel.child_token();
        let mut why = None;
        let step = step(&stop);
        tokio::pin!(step);
        let started = Instant::now();
        let (mut last, mut moved, mut told, mut looked) = ((0, 0), started, None, started);
        loop {
            tokio::select! {
                done = &mut step => {
                    self.tell(&mut told);
                    return match (done, why) {
                        (Err(_), Some(why)) => Err(why),
                        (Err(_), None) if cancel.is_cancelled() => Err(StepError::cancelled()),
                        (done, _) => done,
                    };
                }
                () = tokio::time::sleep(LOOK) => {}
            }
            self.tell(&mut told);
            let now = (self.gauge.get().done, self.lines.load(Ordering::Relaxed));
            if now != last {
                (last, moved) = (now, Instant::now());
            }
            if stop.is_cancelled() {
                if moved_on(&mut looked, patience.grace + PATIENCE, why.is_some() || cancel.is_cancelled()) {
                    return Err(why.unwrap_or_else(StepError::cancelled));
                }
                continue;
            }
            why = if started.elapsed() > patience.deadline {
                Some(StepError::transient(format!(
                    "it took longer than {} and was stopped; if that is too short, set the step's timeout or build.stepTimeout of the provider's template",
                    spoken(patience.deadline)
                )))
            } else if moved.elapsed() > patience.silence {
                Some(StepError::transient(format!(
                    "it made no progress and wrote nothing for {} and was stopped; if that is too short, set build.noProgressTimeout of the provider's template",
                    spoken(patience.silence)
                )))
            } else if looked.elapsed() > DISK {
                looked = Instant::now();
                over_the_disk(directory, patience.disk, Modes::Kept).await
            } else {
                None
            };
            if why.is_some() {
                stop.cancel();
            }
            if stop.is_cancelled() {
                looked = Instant::now();
            }
        }
    }

    fn tell(&self, told: &mut Option<Progress>) {
        let now = self.gauge.get();
        if *told != Some(now) {
            *told = Some(now);
            self.report.progress(now);
        }
    }
}

/// Whether so long passed since the step was told to end.
fn moved_on(since: &mut Instant, patience: Duration, is_told: bool) -> bool {
    is_told && since.elapsed() > patience
}

/// That a work directory holds more than it may. What a tool that runs keeps from us counts when it has ended, by `modes`.
pub(super) async fn over_the_disk(directory: &Path, limit: u64, modes: Modes) -> Option<StepError> {
    let path = directory.to_owned();
    let usage = tokio::task::spawn_blocking(move || tree::usage(&path, modes)).await.unwrap_or(0);
    (usage > limit).then(|| {
        StepError::hopeless(format!(
            "the work directory holds {usage} bytes, and build.limits.disk of the provider's template allows {limit}: allow more, or make smaller images"
        ))
    })
}

/// A log of a bounded size.
struct Log {
    path: PathBuf,
    file: Option<File>,
    size: u64,
}

impl Log {
    /// Adds a line. A log that can't be written must not stop a build.
    fn write(&mut self, line: &str) {
        if self.size >= LARGEST_LOG {
            self.file = None;
            let _ = fs::rename(&self.path, self.path.with_extension("log.1"));
        }
        if self.file.is_none() {
            let made = self.path.parent().is_none_or(|parent| work_dir::make(parent).is_ok());
            let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path);
            let Some(file) = file.ok().filter(|_| made) else { return };
            self.size = file.metadata().map_or(0, |metadata| metadata.len());
            self.file = Some(file);
        }
        let text = format!("{line}\n");
        if let Some(file) = &mut self.file
            && file.write_all(text.as_bytes()).is_ok()
        {
            self.size += text.len() as u64;
        }
    }
}
