//! Builds of node images as tasks: real files, real processes, a server on loopback that fails as servers do.

mod command;
mod disk;
mod download;
mod resume;
mod server;
mod shelf;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clusterstack::core::image::build::{Output, Progress};
use clusterstack::core::image::pipeline::Pipeline;
use clusterstack::core::node_images::{API_VERSION, NodeImages};
use clusterstack::core::source::AllowList;
use clusterstack::io::image::destination::Claim;
use clusterstack::io::image::task::{Assignment, Report, Settings, StepError, Steps, Task, log_path};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

pub use server::Server;
pub use shelf::Shelf;

/// What a step told.
#[derive(Default)]
pub struct Told {
    pub lines: Mutex<Vec<String>>,
    pub progress: Mutex<Vec<Progress>>,
}

impl Report for Told {
    fn progress(&self, progress: Progress) {
        self.progress.lock().unwrap().push(progress);
    }

    fn line(&self, line: &str) {
        self.lines.lock().unwrap().push(line.to_owned());
    }
}

impl Told {
    pub fn text(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }
}

/// A build in a directory of its own.
pub struct Site {
    pub root: TempDir,
    pub shelf: Arc<Shelf>,
    pub settings: Settings,
    pub told: Told,
    pub cancel: CancellationToken,
    pub attempt: u32,
}

impl Site {
    pub fn new() -> Self {
        let mut settings = Settings::new(PathBuf::from(env!("CARGO_BIN_EXE_clusterstack")));
        settings.allow = AllowList::parse(["127.0.0.1"]).unwrap();
        settings.grace = Duration::from_millis(500);
        settings.tools = [("sh", "/bin/sh"), ("env", "/usr/bin/env")].map(|(n, p)| (n.to_owned(), p.into())).into();
        Self {
            root: TempDir::new().unwrap(),
            shelf: Arc::default(),
            settings,
            told: Told::default(),
            cancel: CancellationToken::new(),
            attempt: 1,
        }
    }

    pub fn task(&self, pipeline: &Pipeline) -> Task {
        let claim = Claim { object: "uid-1".into(), attempt: self.attempt, cluster: "cluster".into() };
        let assignment = Assignment {
            root: self.root.path().to_owned(),
            namespace: "shop".into(),
            claim,
            inputs: pipeline.inputs(&serde_json::Value::Null),
            pipeline: pipeline.clone(),
        };
        Task::new(assignment, self.settings.clone(), self.shelf.clone())
    }

    /// Runs the steps behind those that are finished.
    pub async fn go_on(&self, pipeline: &Pipeline, finished: &mut Vec<Output>) -> Result<(), StepError> {
        let task = self.task(pipeline);
        while finished.len() < pipeline.steps.len() {
            let output = task.run(finished.len(), finished, &self.told, &self.cancel).await?;
            finished.push(output);
        }
        Ok(())
    }

    /// Runs all steps.
    pub async fn build(&self, pipeline: &Pipeline) -> Result<Vec<Output>, StepError> {
        let mut finished = Vec::new();
        self.go_on(pipeline, &mut finished).await?;
        Ok(finished)
    }

    pub fn directory(&self) -> PathBuf {
        self.root.path().join("uid-1")
    }

    pub fn log(&self, pipeline: &Pipeline) -> PathBuf {
        log_path(self.root.path(), "shop", &pipeline.inputs(&serde_json::Value::Null))
    }

    /// A build by a script that lies beside the work directory: what it holds is no argument.
    pub fn scripted(&self, script: &str) -> Pipeline {
        let path = self.root.path().join("script");
        std::fs::write(&path, script).unwrap();
        steps(&serde_json::json!([{"build": {"command": ["sh", path], "output": "out.raw", "env": {"STEP": "2"}}}]))
    }

    /// The one file of this name below the work directory.
    pub fn file(&self, name: &str) -> PathBuf {
        let found = files(&self.directory());
        found.into_iter().find(|path| path.file_name().unwrap() == name).unwrap_or_else(|| panic!("no file {name}"))
    }
}

pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

/// An image as its list has it.
pub fn pipeline(entry: &str) -> Pipeline {
    let list = NodeImages::parse(&format!("apiVersion: {API_VERSION}\nimages:\n- {entry}")).unwrap();
    Pipeline::of(&list.images[0]).unwrap().unwrap()
}

/// An image of steps, in JSON.
pub fn steps(steps: &serde_json::Value) -> Pipeline {
    pipeline(&serde_json::json!({"name": "image", "steps": steps}).to_string())
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that are the same each time, and don't repeat soon.
pub fn bytes(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..size.div_ceil(8)).flat_map(|_| next()).take(size).collect()
}

/// Waits for a condition, ten seconds at most.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..500 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what}: not after ten seconds");
}
