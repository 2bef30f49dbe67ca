//! `clusterstack version`: this binary, and what it was made for.

use anyhow::Result;
use clap::Args;

use super::output::{self, Format};
use crate::core::build_info::BUILD;

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack version
  clusterstack version -o json | jq -r .version";

/// Flags of `clusterstack version`.
#[derive(Args, Clone, Debug)]
pub struct VersionArgs {
    /// Form of the output for a script
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Format>,
}

/// Prints it.
///
/// # Errors
/// Standard output is closed.
pub fn run(args: &VersionArgs) -> Result<()> {
    if let Some(format) = args.output {
        return output::print(&output::format(&BUILD, format)?);
    }
    let rows = [
        ("clusterstack", BUILD.version),
        ("commit", BUILD.commit),
        ("date", BUILD.date),
        ("Kubernetes", BUILD.kubernetes),
        ("Cluster API", BUILD.cluster_api),
        ("Helm", BUILD.helm),
    ];
    output::print(&output::columns(&rows.map(|(name, value)| [name.to_owned(), value.to_owned()])))
}
