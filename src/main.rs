//! Command line of `clusterstack`.

use std::process::ExitCode;

use clap::Parser;
use clusterstack::cli::{Cli, report};

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
