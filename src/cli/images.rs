//! `clusterstack images`: how far node images are; their logs, and a word to their builds.

mod adopt;
mod ask;
mod list;
mod logs;
mod render;
mod retry;
mod row;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::connection::{self, Connection, ConnectionArgs};
use super::report::Hinted;
use crate::api::ProviderNodeImageRelease as Image;
use crate::io::stored;

/// What is asked of the API server.
const KINDS: &str = "ProviderNodeImageReleases";

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack images                     # every node image of the current namespace
  clusterstack images -A --watch          # drawn again until all builds are at an end
  clusterstack images -A -o json | jq '.[] | select(.phase == \"Failed\")'
  clusterstack images logs -f NAME        # the log of a build, over restarts of who builds
  clusterstack images cancel NAME         # stops a build; nothing half-made is left
  clusterstack images retry NAME          # starts a failed or cancelled one again
  clusterstack images retry --failed -A   # the same with all that were given up
  clusterstack images adopt NAME DIGEST   # takes an image that is at the destination as it is

Exit code of --watch: 0 all succeeded, 1 some did not, 2 there are none.";

/// Flags of `clusterstack images`.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ImagesArgs {
    #[command(subcommand)]
    action: Option<Action>,

    #[command(flatten)]
    list: list::ListArgs,
}

/// What is wanted of one image.
#[derive(Subcommand, Clone, Debug)]
enum Action {
    /// Print the log of a build
    #[command(after_help = logs::EXAMPLES)]
    Logs(logs::LogsArgs),

    /// Stop a build; what it left half-made is removed
    #[command(after_help = "\
Examples:
  clusterstack images cancel ubuntu-2404-kube-v1-34-0-5f0c3b2a9d8e7f61
  clusterstack images cancel NAME -n team-a --wait 1m

Sets the annotation clusterstack.x-k8s.io/cancel-at. `retry` starts the build again.")]
    Cancel(ask::AskArgs),

    /// Start a failed or cancelled build again; one that pauses is tried at once
    #[command(after_help = retry::EXAMPLES)]
    Retry(retry::RetryArgs),

    /// Take an image that has the name at the destination already, as it is
    #[command(after_help = adopt::EXAMPLES)]
    Adopt(adopt::AdoptArgs),
}

/// Which image.
#[derive(Args, Clone, Debug)]
struct NameArgs {
    /// Name of a ProviderNodeImageRelease, or of the image as its release lists it
    name: String,

    /// Namespace; that of the kubeconfig's context by default
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Does what is asked for.
///
/// # Errors
/// No way to the API server, no such image, no right to it, or nobody to print to.
pub fn run(args: &ImagesArgs) -> Result<ExitCode> {
    match &args.action {
        None => connection::block_on(list::run(&args.list)),
        Some(Action::Logs(args)) => connection::block_on(logs::run(args)),
        Some(Action::Cancel(args)) => connection::block_on(ask::cancel(args)),
        Some(Action::Retry(args)) => connection::block_on(retry::run(args)),
        Some(Action::Adopt(args)) => connection::block_on(adopt::run(args)),
    }
}

/// An image that is looked at again and again.
struct Named {
    connection: Connection,
    api: Api<Image>,
    namespace: String,
    name: String,
    /// How it is called in what is printed.
    shown: String,
}

impl NameArgs {
    /// The image of this name as it is now, and what is needed to look at it again.
    async fn find(&self) -> Result<(Named, Image)> {
        let connection = self.connection.connect().await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
        let api = Api::namespaced(connection.client.clone(), &namespace);
        let (name, shown) = (self.name.clone(), self.name.clone());
        let mut named = Named { connection, api, namespace, name, shown };
        if let Some(image) = named.get().await? {
            return Ok((named, image));
        }
        let list = ListParams::default();
        let listed = stored::list(&named.connection.client, Some(&named.namespace), &list);
        let listed = named.connection.answer(listed).await?;
        let (images, _) = listed.map_err(|error| named.connection.refused("listed", KINDS, error))?;
        let image = called(images, &self.name, &named.namespace)?;
        named.name = image.name_any();
        named.shown.clone_from(&named.name);
        Ok((named, image))
    }
}

/// The one image that its release calls so.
fn called(images: Vec<Image>, name: &str, namespace: &str) -> Result<Image, Hinted> {
    let mut found: Vec<Image> = images.into_iter().filter(|image| image.spec.image.name == name).collect();
    match (found.pop(), found.as_slice()) {
        (None, _) => Err(missing(name, namespace)),
        (Some(image), []) => Ok(image),
        (Some(last), others) => {
            let names: Vec<String> = others.iter().chain([&last]).map(ResourceExt::name_any).collect();
            let what = format!("{} builds in namespace {namespace} are of image {name:?}", names.len());
            Err(Hinted::new(what, format!("name one of {}", names.join(", "))))
        }
    }
}

impl Named {
    /// The image as it is now.
    async fn read(&self) -> Result<Image> {
        Ok(self.get().await?.ok_or_else(|| missing(&self.name, &self.namespace))?)
    }

    /// The same, if it is there.
    async fn get(&self) -> Result<Option<Image>> {
        let found = self.connection.answer(self.api.get_opt(&self.name)).await?;
        Ok(found.map_err(|error| self.connection.refused("read", KINDS, error))?)
    }
}

fn missing(name: &str, namespace: &str) -> Hinted {
    let hint = "see what there is with `clusterstack images -A`";
    Hinted::new(format!("no ProviderNodeImageRelease or image {name:?} in namespace {namespace}"), hint)
}

#[cfg(test)]
mod tests;
