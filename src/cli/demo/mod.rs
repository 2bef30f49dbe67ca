//! `clusterstack demo`: what the operator does, shown on a real API server in half a minute. `hack/demo` builds what it
//! needs and calls it.

mod cluster;
mod drift;
mod place;
mod process;
mod promise;
mod repository;
mod rows;
mod screen;
mod stage;
mod story;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

/// Flags of `clusterstack demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// Leave everything running at the end, and say how to use and stop it
    #[arg(long)]
    keep: bool,

    /// Show the sample stack with Tera templates instead of the one with Helm's
    #[arg(long)]
    tera: bool,

    /// Root of the sources
    #[arg(long, value_name = "DIR", default_value = ".")]
    root: PathBuf,

    /// Directory with `<provider>/<name>/` instead of `stacks/` of the sources
    #[arg(long, value_name = "DIR")]
    stacks: Option<PathBuf>,

    /// End a demo that was left running in this directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["keep", "tera", "stacks"])]
    stop: Option<PathBuf>,
}

/// Shows it, or ends one that was kept.
///
/// # Errors
/// What kept the demo from being shown to its end.
pub fn run(args: &DemoArgs) -> Result<ExitCode> {
    if let Some(dir) = &args.stop {
        place::stop(dir)?;
        return Ok(ExitCode::SUCCESS);
    }
    // On one thread: the operator gets a signal when the thread that started it ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(stage::perform(args))
}
