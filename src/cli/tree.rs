//! `clusterstack tree`: what every ClusterStack has come to, and what is in the way.

mod render;

use anyhow::Result;
use clap::{Args, ValueEnum};
use kube::api::ListParams;
use kube::{Client, ResourceExt};

use super::connection::{self, ConnectionArgs};
use super::output::{self, Format};
use super::report::{self, Hinted};
use crate::api::{ClusterAddon, ClusterStack, ClusterStackRelease};
use crate::core::in_use::ClusterUse;
use crate::core::tree::{ClusterView, Node, tree};
use crate::io::apply::refusal;
use crate::io::kinds::Kinds;
use crate::io::{stored, usage};

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack tree                            # every ClusterStack of the current namespace
  clusterstack tree openstack -n team-a        # one of them
  clusterstack tree -A --only-problems         # whatever is not ready, anywhere
  clusterstack tree -A -o json | jq '.[].children[] | select(.ready | not)'";

/// Flags of `clusterstack tree`.
#[derive(Args, Clone, Debug)]
pub struct TreeArgs {
    /// Name of a ClusterStack; all without it
    name: Option<String>,

    /// Namespace; that of the kubeconfig's context by default
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// In all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    #[command(flatten)]
    connection: ConnectionArgs,

    /// Form of the output; JSON and YAML are a list of trees with whole messages
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: TreeFormat,

    /// Only what is not ready, with what it belongs to
    #[arg(long)]
    only_problems: bool,
}

/// Forms of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TreeFormat {
    /// For people.
    Text,
    /// A list of trees.
    Json,
    /// A list of trees.
    Yaml,
}

/// Prints the trees.
///
/// # Errors
/// No way to the API server, no such ClusterStack, or nobody to print to.
pub fn run(args: &TreeArgs) -> Result<()> {
    let found = connection::block_on(read(args))?;
    let problems = |node: Node| if args.only_problems { node.only_problems() } else { node };
    let wanted = |node: &Node| !args.only_problems || node.has_problem();
    let nodes: Vec<Node> = found.nodes.into_iter().filter(wanted).map(problems).collect();
    match args.output {
        TreeFormat::Json => output::print(&output::format(&nodes, Format::Json)?),
        TreeFormat::Yaml => output::print(&output::format(&nodes, Format::Yaml)?),
        TreeFormat::Text if nodes.is_empty() => {
            let all = if args.only_problems { "nothing is in the way" } else { "no ClusterStack" };
            output::note!("{all} {}", found.place);
            Ok(())
        }
        TreeFormat::Text => output::print(&render::text(&nodes, render::terminal_width())),
    }
}

/// The trees, and where they were looked for.
struct Found {
    nodes: Vec<Node>,
    place: String,
}

async fn read(args: &TreeArgs) -> Result<Found> {
    let connection = args.connection.connect().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
    let client = connection.client.clone();
    let all = args.all_namespaces.then_some(());
    let place = all.map_or_else(|| format!("in namespace {namespace}"), |()| "in any namespace".to_owned());
    let only = all.map_or(Some(namespace.as_str()), |()| None);
    let list = ListParams::default();
    let both = async {
        tokio::join!(
            stored::list::<ClusterStack>(&client, only, &list),
            stored::list::<ClusterStackRelease>(&client, only, &list)
        )
    };
    let (stacks, releases) = connection.answer(both).await?;
    let unlisted = |error| connection.refused("listed", "ClusterStacks and ClusterStackReleases", error);
    let (mut stacks, unread) = stacks.map_err(unlisted)?;
    let (releases, more) = releases.map_err(unlisted)?;
    report::left_out(unread.iter().chain(&more));
    stacks.sort_by_key(|stack| (stack.namespace(), stack.name_any()));
    if let Some(name) = &args.name {
        let there: Vec<String> = stacks.iter().map(ResourceExt::name_any).collect();
        stacks.retain(|stack| stack.name_any() == *name);
        if stacks.is_empty() {
            return Err(unknown(name, &there, &place).into());
        }
    }
    let clusters = connection.answer(clusters(&connection.client, only)).await?;
    Ok(Found { nodes: stacks.iter().map(|stack| tree(stack, &releases, &clusters)).collect(), place })
}

/// The Clusters of all namespaces with their addons; of `namespace` alone for who may not list the others'. What can't be listed is
/// said.
async fn clusters(client: &Client, namespace: Option<&str>) -> Vec<ClusterView> {
    let kinds = Kinds::default();
    let list = ListParams::default();
    let (mut clusters, mut addons) =
        tokio::join!(usage::clusters(client, &kinds), stored::list::<ClusterAddon>(client, None, &list));
    if let Some(own) = namespace {
        if is_forbidden(&clusters) {
            clusters = usage::clusters_in(client, &kinds, own).await;
        }
        if is_forbidden(&addons) {
            addons = stored::list(client, Some(own), &list).await;
        }
    }
    let mut notes = Vec::new();
    let clusters = clusters.unwrap_or_else(|error| {
        notes.push(format!("Clusters can't be listed, and none is shown: {}", refusal(&error).message));
        Vec::new()
    });
    let (addons, unread) = addons.unwrap_or_else(|error| {
        notes.push(format!("ClusterAddons can't be listed, and none is shown: {}", refusal(&error).message));
        (Vec::new(), Vec::new())
    });
    report::left_out(notes.iter().chain(&unread));
    let of = |cluster: &ClusterUse| {
        let is_it = |addon: &&ClusterAddon| {
            addon.namespace().as_deref() == Some(&cluster.namespace)
                && addon.spec.cluster_ref.name.as_deref() == Some(&cluster.name)
        };
        addons.iter().find(is_it).cloned()
    };
    let view = |cluster: ClusterUse| ClusterView { addon: of(&cluster), cluster };
    clusters.into_iter().map(view).collect()
}

fn is_forbidden<T>(listed: &Result<T, kube::Error>) -> bool {
    matches!(listed, Err(kube::Error::Api(status)) if status.code == 403)
}

fn unknown(name: &str, there: &[String], place: &str) -> Hinted {
    let hint = if there.is_empty() {
        "there is none; look in all namespaces with -A".to_owned()
    } else {
        format!("there are: {}", there.join(", "))
    };
    Hinted::new(format!("no ClusterStack {name:?} {place}"), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_there_lists_the_ones_that_are() {
        let error = anyhow::Error::new(unknown("scx", &["scs".into(), "scs2".into()], "in namespace shop"));
        let text = anstream::adapter::strip_str(&super::super::report::text(&error)).to_string();
        insta::assert_snapshot!(text, @r#"
        error: no ClusterStack "scx" in namespace shop
        hint: there are: scs, scs2
        "#);
    }
}
