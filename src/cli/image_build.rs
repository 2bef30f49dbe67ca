//! The hidden subcommand that builds an image inside of a Job's pod.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::core::image::build::Hope;
use crate::io::image::destination::Claim;
use crate::io::image::inside::{Mounts, build};

/// Of `sysexits.h`: the operator does not try again.
const HOPELESS: u8 = 65;
/// Of `sysexits.h`: it does.
const TRANSIENT: u8 = 75;

/// What the Job hands over.
#[derive(Args, Debug)]
pub struct ImageBuildArgs {
    /// Where the recipe and the settings lie
    #[arg(long, value_name = "DIR")]
    recipe_dir: PathBuf,
    /// Where Secrets lie, a directory each
    #[arg(long, value_name = "DIR")]
    secrets_dir: PathBuf,
    /// Where it works
    #[arg(long, value_name = "DIR")]
    work_dir: PathBuf,
    /// Where the result is written
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log")]
    result: PathBuf,
    /// Digest over all that the build depends on
    #[arg(long, env = "CLUSTERSTACK_INPUTS", hide = true)]
    inputs: String,
    /// UID of the image's object
    #[arg(long, env = "CLUSTERSTACK_UID", hide = true)]
    uid: String,
    /// Number of the attempt
    #[arg(long, env = "CLUSTERSTACK_ATTEMPT", hide = true)]
    attempt: u32,
    /// Id of the management cluster
    #[arg(long, env = "CLUSTERSTACK_CLUSTER", hide = true)]
    cluster: String,
}

/// Carries the steps out and writes what it made to where the kubelet finds it.
///
/// # Errors
/// It can't start, or the result can't be written.
pub fn run(args: &ImageBuildArgs) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(carry_out(args))
}

async fn carry_out(args: &ImageBuildArgs) -> Result<ExitCode> {
    let cancel = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let asked = cancel.clone();
    let listening = tokio::spawn(async move {
        terminate.recv().await;
        asked.cancel();
    });
    let mounts =
        Mounts { recipe: args.recipe_dir.clone(), secrets: args.secrets_dir.clone(), work: args.work_dir.clone() };
    let claim = Claim { object: args.uid.clone(), attempt: args.attempt, cluster: args.cluster.clone() };
    // Whoever reads the log may be gone.
    let tell = |line: &str| drop(writeln!(std::io::stdout(), "{line}"));
    let built = build(&mounts, claim, args.inputs.clone(), &tell, &cancel).await;
    listening.abort();
    match built {
        Ok(result) => {
            let text = serde_json::to_string(&result)?;
            std::fs::write(&args.result, text).with_context(|| format!("cannot write {}", args.result.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            tell(&error.message);
            Ok(ExitCode::from(if error.hope == Hope::None { HOPELESS } else { TRANSIENT }))
        }
    }
}
