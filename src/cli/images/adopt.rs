//! An image that is at its destination already, taken as it is.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::NameArgs;
use super::ask::{self, Wish};
use crate::api::IMAGE_DIGEST;
use crate::cli::report::Hinted;
use crate::core::image::adoption;
use crate::settings::duration;

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack images adopt NAME sha256:23ae…    # the digest that the failed build met there

For a build that does not make the same bytes twice and whose object was made anew: what it made before has the name at
the destination, and `… is another image` is the end of each attempt. Nobody compares what is in it: look first.
Sets the annotations clusterstack.x-k8s.io/image-digest and clusterstack.x-k8s.io/retry-at.";

/// Flags of `clusterstack images adopt`.
#[derive(Args, Clone, Debug)]
pub struct AdoptArgs {
    #[command(flatten)]
    image: NameArgs,

    /// Digest of the file at the destination: sha256: and 64 hexadecimal digits
    digest: String,

    /// How long to wait until the operator has acted on it
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    wait: Duration,
}

/// Notes the digest and asks for another try.
///
/// # Errors
/// The digest is none, there is no such image, no right to change it, or an operator that does not hear.
pub async fn run(args: &AdoptArgs) -> Result<ExitCode> {
    let digest = args.digest.to_ascii_lowercase();
    if !adoption::is_digest(&digest) {
        let hint = "write sha256: and 64 hexadecimal digits, as the message of the failed build has it";
        return Err(Hinted::new(format!("{:?} is no digest of a file", args.digest), hint).into());
    }
    let (named, image) = args.image.find().await?;
    let status = image.status.unwrap_or_default();
    if status.inputs.is_empty() {
        let hint = "is the operator running, and does it work on this namespace?";
        return Err(Hinted::new(format!("no build of {} was asked for yet", named.name), hint).into());
    }
    let beside = json!({IMAGE_DIGEST: adoption::written(&digest, &status.inputs)});
    ask::ask(Wish::Retry, &named, &status, args.wait, beside).await
}
