//! `clusterstack diff`: what the upgrade of a Cluster would do, before it happens.

mod render;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tokio_util::sync::CancellationToken;

use super::connection::{self, Connection, ConnectionArgs};
use super::output::{self, Format};
use super::report::Hinted;
use crate::controllers::upgrade::{Goal, Planner, UpgradeError};
use crate::core::chart::Capabilities;
use crate::core::source::AllowList;
use crate::core::upgrade::Plan;
use crate::io::kinds::Kinds;
use crate::io::release::Releases;
use crate::io::workload::Workloads;

/// Exit code where something would change.
const CHANGES: u8 = 2;
/// Largest size of the releases that are fetched, in bytes.
const STORE: u64 = 2 << 30;

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack diff prod                              # to the newest usable release of its ClusterStack
  clusterstack diff prod -n team-a --to v7            # to a release that is taken or available
  clusterstack diff prod --to ./.release/docker-scs-1-34-v8
  clusterstack diff prod -o json | jq '.rollouts[] | select(.verdict == \"rolls\")'

Exit code: 0 nothing changes, 2 something changes, 1 it could not be found out. Nothing is written: what has to be tried
is tried by dry runs.";

/// Flags of `clusterstack diff`.
#[derive(Args, Clone, Debug)]
pub struct DiffArgs {
    /// Name of a Cluster
    cluster: String,

    /// The release: its name, its version, or a directory of its name with its assets or its stack; the newest usable one
    /// of the same ClusterStack by default
    #[arg(long, value_name = "RELEASE|DIR")]
    to: Option<String>,

    /// Version of Kubernetes; by default the release's, or the Cluster's where that is newer
    #[arg(long, value_name = "VERSION")]
    kubernetes_version: Option<String>,

    /// Namespace of the Cluster; that of the kubeconfig's context by default
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: DiffFormat,

    /// A local source that the operator allows and that can be read from here, as in `clusterstack operator`
    #[arg(long, value_name = "ROOT|HOST", env = "CLUSTERSTACK_ALLOW_SOURCE", value_delimiter = ',')]
    allow_source: Vec<String>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Forms of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DiffFormat {
    /// For people.
    Text,
    /// The plan.
    Json,
    /// The plan.
    Yaml,
}

/// Prints the plan.
///
/// # Errors
/// No way to the API server, no such Cluster or release, or nobody to print to.
pub fn run(args: &DiffArgs) -> Result<ExitCode> {
    let plan = connection::block_on(read(args))?;
    match args.output {
        DiffFormat::Json => output::print(&output::format(&plan, Format::Json)?)?,
        DiffFormat::Yaml => output::print(&output::format(&plan, Format::Yaml)?)?,
        DiffFormat::Text => output::print(&render::text(&plan))?,
    }
    Ok(match (plan.is_change(), plan.is_known()) {
        (true, _) => ExitCode::from(CHANGES),
        (false, true) => ExitCode::SUCCESS,
        // Who waits for "nothing changes" must not take it for that.
        (false, false) => ExitCode::FAILURE,
    })
}

async fn read(args: &DiffArgs) -> Result<Plan> {
    if let Some(version) = &args.kubernetes_version {
        Capabilities::for_kube_version(version)
            .map_err(|error| Hinted::new(format!("--kubernetes-version: {error}"), "write it as v1.34.2"))?;
    }
    let connection = args.connection.connect().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
    let goal = goal(args.to.as_deref())?;
    // A variable without a value names none.
    let mut allow: Vec<String> = args.allow_source.iter().filter(|place| !place.is_empty()).cloned().collect();
    if let Goal::Directory(path) = &goal {
        allow.extend(path.parent().map(|parent| parent.display().to_string()));
    }
    let allow = AllowList::parse(allow.iter().map(String::as_str)).context("--allow-source")?;
    let directory = tempfile::tempdir().context("no directory for what is fetched")?;
    let releases = Releases::at(directory.path(), STORE, allow).await.context("no directory for what is fetched")?;
    let planner = Planner {
        client: connection.client.clone(),
        operator: None,
        kinds: &Kinds::default(),
        releases: &releases,
        workloads: &Workloads::new(false),
        cancel: CancellationToken::new(),
    };
    let plan = planner.plan(&namespace, &args.cluster, &goal, args.kubernetes_version.as_deref()).await;
    plan.map_err(|error| told(error, &connection))
}

/// What `--to` means: something with a slash is a directory.
fn goal(to: Option<&str>) -> Result<Goal> {
    let Some(to) = to else { return Ok(Goal::Newest) };
    if !to.contains('/') {
        return Ok(Goal::Named(to.to_owned()));
    }
    let path: PathBuf = Path::new(to).canonicalize().map_err(|error| {
        Hinted::new(format!("cannot read {to}"), "name a directory of a release, or a release without a slash")
            .because(error)
    })?;
    Ok(Goal::Directory(path))
}

fn told(error: UpgradeError, connection: &Connection) -> anyhow::Error {
    match error {
        UpgradeError::Api { doing, error } => connection.refused("read", &format!("objects ({doing})"), error).into(),
        UpgradeError::NotServed => {
            let hint = "check --kubeconfig and --context: Clusters are in the management cluster, where Cluster API is installed";
            Hinted::new(error.to_string(), hint).into()
        }
        UpgradeError::NoCluster { .. } => Hinted::new(error.to_string(), "name another namespace with -n").into(),
        UpgradeError::NoRelease { .. } => {
            let hint = "give one of them with --to, or a directory of a release";
            Hinted::new(error.to_string(), hint).into()
        }
        UpgradeError::Fetch { .. } => {
            let hint = "its source must be reachable from here; a local one is allowed by --allow-source";
            Hinted::new(error.to_string(), hint).into()
        }
        UpgradeError::NotOurs(_) => error.into(),
    }
}
