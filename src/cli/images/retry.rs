//! `clusterstack images retry`: one build, or all that were given up.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{ArgGroup, Args};
use futures::{StreamExt, stream};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::ask::{self, Wish};
use super::{Image, KINDS, NameArgs, Named};
use crate::api::image_release::{ImagePhase, ProviderNodeImageReleaseStatus as Status};
use crate::cli::connection::ConnectionArgs;
use crate::cli::{output, report};
use crate::io::stored;
use crate::settings::duration;

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack images retry ubuntu-2404-kube-v1-34-0-5f0c3b2a9d8e7f61
  clusterstack images retry NAME -n team-a --wait 0s    # does not wait for the operator
  clusterstack images retry --failed -A                 # all that were given up, when what they lacked is there

Sets the annotation clusterstack.x-k8s.io/retry-at. What is finished and at hand is not done again.";

/// Builds that are asked for at once.
const TOGETHER: usize = 16;

/// Flags of `clusterstack images retry`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("which").required(true).args(["name", "failed"]))]
pub struct RetryArgs {
    /// Name of a ProviderNodeImageRelease, or of the image as its release lists it
    name: Option<String>,

    /// All builds that were given up
    #[arg(long)]
    failed: bool,

    /// Namespace; that of the kubeconfig's context by default
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// In all namespaces
    #[arg(short = 'A', long, requires = "failed", conflicts_with_all = ["namespace", "name"])]
    all_namespaces: bool,

    #[command(flatten)]
    connection: ConnectionArgs,

    /// How long to wait until the operator has acted on it
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    wait: Duration,
}

/// Asks, and tells what became of it.
///
/// # Errors
/// No such image, no right to change it, or an operator that does not hear.
pub async fn run(args: &RetryArgs) -> Result<ExitCode> {
    let Some(name) = args.name.clone() else { return all(args).await };
    let name = NameArgs { name, namespace: args.namespace.clone(), connection: args.connection.clone() };
    let (named, image) = name.find().await?;
    ask::ask(Wish::Retry, &named, &image.status.unwrap_or_default(), args.wait, json!({})).await
}

async fn all(args: &RetryArgs) -> Result<ExitCode> {
    let connection = args.connection.connect().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
    let only = (!args.all_namespaces).then_some(namespace.as_str());
    let listed = connection.answer(stored::list::<Image>(&connection.client, only, &ListParams::default())).await?;
    let (images, unread) = listed.map_err(|error| connection.refused("listed", KINDS, error))?;
    report::left_out(&unread);
    let mut failed: Vec<(Named, Status)> = images
        .into_iter()
        .filter(|image| image.status.as_ref().is_some_and(|status| status.phase == ImagePhase::Failed))
        .map(|image| {
            let (name, namespace) = (image.name_any(), image.namespace().unwrap_or_default());
            let api = Api::namespaced(connection.client.clone(), &namespace);
            let shown = if only.is_some() { name.clone() } else { format!("{namespace}/{name}") };
            let named = Named { connection: connection.clone(), api, namespace, name, shown };
            (named, image.status.unwrap_or_default())
        })
        .collect();
    failed.sort_by(|(one, _), (other, _)| one.shown.cmp(&other.shown));
    if failed.is_empty() {
        let place = only.map_or_else(|| "in any namespace".to_owned(), |only| format!("in namespace {only}"));
        output::note!("no build was given up {place}");
    }
    let begin = Instant::now();
    let asked = stream::iter(failed).map(|(named, status)| async move {
        let wait = args.wait.saturating_sub(begin.elapsed());
        let asked = ask::ask(Wish::Retry, &named, &status, wait, json!({})).await;
        let told = |error| {
            report::failure(&error);
            false
        };
        asked.map_or_else(told, |_| true)
    });
    // All of them, whatever became of one.
    let heard: Vec<bool> = asked.buffered(TOGETHER).collect().await;
    Ok(if heard.iter().all(|heard| *heard) && unread.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
