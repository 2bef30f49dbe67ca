//! The hidden subcommand under which tools of image builds run.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::io::image::task::supervisor;

/// What the operator hands over.
#[derive(Args, Debug)]
pub struct ImageToolArgs {
    /// Limits, a tool and its arguments, of the process that becomes the tool
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Looks after a tool until all that it started has ended.
///
/// # Errors
/// Standard input holds no order.
pub fn run(args: &ImageToolArgs) -> Result<ExitCode> {
    supervisor::run(&args.arguments).context("cannot look after a tool")
}
