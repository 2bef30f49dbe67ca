//! `clusterstack releases`: the catalogue: what is subscribed, what is available and why it is not taken, what is on offer.

use anyhow::Result;
use clap::{Args, ValueEnum};
use kube::ResourceExt;
use kube::api::ListParams;
use serde::Serialize;

use super::connection::{self, ConnectionArgs};
use super::output::{self, Format};
use super::report::{self, Hinted};
use crate::api::{ClusterStack, ClusterStackSource};
use crate::io::stored;

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack releases                  # of every ClusterStack and ClusterStackSource of the current namespace
  clusterstack releases scs -n team-a    # of those called scs
  clusterstack releases -A -o json | jq '.[] | select(.state == \"available\")'";

/// Flags of `clusterstack releases`.
#[derive(Args, Clone, Debug)]
pub struct ReleasesArgs {
    /// Name of a ClusterStack or ClusterStackSource; all without it
    name: Option<String>,

    /// Namespace; that of the kubeconfig's context by default
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// In all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    #[command(flatten)]
    connection: ConnectionArgs,

    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: ReleasesFormat,
}

/// Forms of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReleasesFormat {
    /// For people.
    Text,
    /// A list of releases.
    Json,
    /// A list of releases.
    Yaml,
}

/// A release of somebody. The field names are API of `-o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    namespace: String,
    kind: &'static str,
    name: String,
    release: String,
    /// `subscribed`, `available` or `offered`.
    state: &'static str,
    reason: String,
    message: String,
}

/// Prints the catalogue.
///
/// # Errors
/// No way to the API server, nothing of that name, or nobody to print to.
pub fn run(args: &ReleasesArgs) -> Result<()> {
    let Found { rows, cut, unread } = connection::block_on(read(args))?;
    match args.output {
        ReleasesFormat::Json => output::print(&output::format(&rows, Format::Json)?)?,
        ReleasesFormat::Yaml => output::print(&output::format(&rows, Format::Yaml)?)?,
        ReleasesFormat::Text if rows.is_empty() => output::note!("no releases"),
        ReleasesFormat::Text => output::print(&table(&rows))?,
    }
    for note in cut {
        output::note!("{}", output::one_line(&note));
    }
    report::left_out(&unread);
    Ok(())
}

/// The catalogue as it is known.
struct Found {
    rows: Vec<Row>,
    /// What is not among them, for it is too much.
    cut: Vec<String>,
    /// Who may have others, and why they are not known.
    unread: Vec<String>,
}

async fn read(args: &ReleasesArgs) -> Result<Found> {
    let connection = args.connection.connect().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
    let client = connection.client.clone();
    let only = (!args.all_namespaces).then_some(namespace.as_str());
    let list = ListParams::default();
    let both = async {
        tokio::join!(
            stored::list::<ClusterStack>(&client, only, &list),
            stored::list::<ClusterStackSource>(&client, only, &list)
        )
    };
    let answers = connection.answer(both).await?;
    let kinds = "ClusterStacks and ClusterStackSources";
    let (mut stacks, unread) = answers.0.map_err(|error| connection.refused("listed", kinds, error))?;
    let (mut sources, more) = answers.1.map_err(|error| connection.refused("listed", kinds, error))?;
    report::left_out(unread.iter().chain(&more));
    if let Some(name) = &args.name {
        stacks.retain(|stack| stack.name_any() == *name);
        sources.retain(|source| source.name_any() == *name);
        if stacks.is_empty() && sources.is_empty() {
            let place = if args.all_namespaces { "any namespace".to_owned() } else { format!("namespace {namespace}") };
            let hint = "leave the name out to see all, or look in all namespaces with -A";
            return Err(Hinted::new(format!("no ClusterStack or ClusterStackSource {name:?} in {place}"), hint).into());
        }
    }
    stacks.sort_by_key(|stack| (stack.namespace(), stack.name_any()));
    sources.sort_by_key(|source| (source.namespace(), source.name_any()));
    let cut = sources.iter().filter_map(not_listed).collect();
    let stacks: Vec<(&ClusterStack, Vec<Row>)> = stacks.iter().map(|stack| (stack, of_stack(stack))).collect();
    let unread =
        stacks.iter().filter_map(|(stack, rows)| report::may_have_more("ClusterStack", *stack, rows.is_empty()));
    // What keeps a source from being ready keeps its releases from being known.
    let more = sources.iter().filter_map(|source| report::may_have_more("ClusterStackSource", source, true));
    let unread = unread.chain(more).collect();
    let rows = stacks.into_iter().flat_map(|(_, rows)| rows).chain(sources.iter().flat_map(of_source)).collect();
    Ok(Found { rows, cut, unread })
}

fn of_stack(stack: &ClusterStack) -> Vec<Row> {
    let row = |release: &str, state, reason: &str, message: &str| Row {
        namespace: stack.namespace().unwrap_or_default(),
        kind: "ClusterStack",
        name: stack.name_any(),
        release: release.to_owned(),
        state,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let status = stack.status.clone().unwrap_or_default();
    let available = status.available.iter().map(|r| row(&r.name, "available", &r.reason, &r.message));
    let subscribed = status.summary.iter().map(|r| {
        let message = if r.message.is_empty() { &r.phase } else { &r.message };
        row(&r.name, "subscribed", &r.kept, message)
    });
    available.chain(subscribed).collect()
}

fn of_source(source: &ClusterStackSource) -> Vec<Row> {
    let status = source.status.clone().unwrap_or_default();
    let row = |release: crate::api::cluster_stack_source::OfferedRelease| Row {
        namespace: source.namespace().unwrap_or_default(),
        kind: "ClusterStackSource",
        name: source.name_any(),
        release: release.name,
        state: "offered",
        reason: String::new(),
        message: release.revision,
    };
    status.releases.into_iter().map(row).collect()
}

fn not_listed(source: &ClusterStackSource) -> Option<String> {
    let status = source.status.as_ref()?;
    let listed = u32::try_from(status.releases.len()).unwrap_or(u32::MAX);
    let more = status.releases_found.checked_sub(listed).filter(|more| *more > 0)?;
    let name = format!("{}/{}", source.namespace().unwrap_or_default(), source.name_any());
    Some(format!("ClusterStackSource {name} offers {more} older releases more"))
}

fn table(rows: &[Row]) -> String {
    let head = ["NAMESPACE", "OF", "RELEASE", "STATE", "REASON", "MESSAGE"].map(str::to_owned);
    let cells = |row: &Row| {
        let of = format!("{}/{}", row.kind, row.name);
        [&row.namespace, &of, &row.release, row.state, &row.reason, &row.message].map(str::to_owned)
    };
    let lines: Vec<[String; 6]> = std::iter::once(head).chain(rows.iter().map(cells)).collect();
    output::columns(&lines)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_catalogue_shows_what_is_subscribed_available_and_offered() {
        let stack: ClusterStack = serde_json::from_value(json!({
            "metadata": {"name": "scs", "namespace": "team-a"},
            "spec": {"provider": "docker", "name": "scs", "kubernetesVersion": "1.34"},
            "status": {
                "summary": [{"name": "docker-scs-1-34-v1", "ready": true, "phase": "done", "kept": "NewestFound"}],
                "available": [{"name": "docker-scs-1-34-v2", "reason": "Baking", "message": "taken at noon"}],
            },
        }))
        .unwrap();
        let source: ClusterStackSource = serde_json::from_value(json!({
            "metadata": {"name": "shared", "namespace": "provider"},
            "spec": {"source": {}},
            "status": {"releasesFound": 3, "releases": [{"name": "docker-scs-1-34-v2", "revision": "abc"}]},
        }))
        .unwrap();
        let rows: Vec<Row> = of_stack(&stack).into_iter().chain(of_source(&source)).collect();
        insta::assert_snapshot!(table(&rows), @r"
        NAMESPACE  OF                         RELEASE             STATE       REASON       MESSAGE
        team-a     ClusterStack/scs           docker-scs-1-34-v2  available   Baking       taken at noon
        team-a     ClusterStack/scs           docker-scs-1-34-v1  subscribed  NewestFound  done
        provider   ClusterStackSource/shared  docker-scs-1-34-v2  offered                  abc
        ");
        let note = "ClusterStackSource provider/shared offers 2 older releases more";
        assert_eq!(not_listed(&source).as_deref(), Some(note));
    }
}
