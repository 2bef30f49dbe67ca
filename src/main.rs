//! Command line of `clusterstack`.

use std::process::ExitCode;

use clap::Parser;
use clusterstack::cli::{Cli, report};
use mimalloc::MiMalloc;

// It asks the kernel for large pages: touching small ones for the first time takes longer than rendering most charts.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nobody is left to tell when standard output or error is closed.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match cli.run() {
        Ok(code) => code,
        Err(error) => report::failure(&error),
    }
}
