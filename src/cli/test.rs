//! `clusterstack test`: runs the `test` hooks of a Cluster's addon charts, as `helm test` does.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::connection::{self, Connection, ConnectionArgs};
use super::output;
use super::report::Hinted;
use crate::api::cluster_addon::{ChartStatus, HelmHookPhase, TestsPhase};
use crate::api::condition::{self, ConditionType};
use crate::api::{ClusterAddon, TEST_AT};
use crate::core::addon::helm_hooks::TEST;
use crate::settings::duration;

/// How often the ClusterAddon is looked at.
const PAUSE: Duration = Duration::from_secs(1);

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack test prod                        # runs the tests, and waits for them
  clusterstack test prod -n team-a --timeout 30m

Exit code: 0 all tests succeeded, 1 one failed, or they did not end in time.";

/// Flags of `clusterstack test`.
#[derive(Args, Clone, Debug)]
pub struct TestArgs {
    /// Name of a Cluster
    cluster: String,

    /// Namespace of the Cluster; that of the kubeconfig's context by default
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// How long to wait; each test has the time limit of its hook besides
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = duration)]
    timeout: Duration,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Asks for the tests, and shows how they end.
///
/// # Errors
/// No such ClusterAddon, no right to change it, or no end in time.
pub fn run(args: &TestArgs) -> Result<ExitCode> {
    connection::block_on(test(args))
}

async fn test(args: &TestArgs) -> Result<ExitCode> {
    let connection = args.connection.connect().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
    let api: Api<ClusterAddon> = Api::namespaced(connection.client.clone(), &namespace);
    let name = format!("cluster-addon-{}", args.cluster);
    let asked = Timestamp::now().to_string();
    request(&connection, &api, (&namespace, &name), &asked).await?;
    let mut waits = String::new();
    let waited = tokio::time::timeout(args.timeout, follow(&connection, &api, (&name, &asked), &mut waits)).await;
    let Ok(ended) = waited else {
        let message = format!("the tests of Cluster {} did not end in time: {waits}", args.cluster);
        let hint =
            format!("ClusterAddon {namespace}/{name} says more; the tests run when they can, for they were asked for");
        return Err(Hinted::new(message, hint).into());
    };
    let (phase, message) = ended?;
    output::print(&format!("{}\n", output::one_line(&message)))?;
    Ok(if phase == TestsPhase::Succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn request(
    connection: &Connection,
    api: &Api<ClusterAddon>,
    (namespace, name): (&str, &str),
    asked: &str,
) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {TEST_AT: asked}}});
    let params = PatchParams { field_manager: Some("clusterstack-test".to_owned()), ..PatchParams::default() };
    match connection.answer(api.patch(name, &params, &Patch::Merge(patch))).await? {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status))
            if status.code == 404 && status.details.as_ref().is_some_and(|of| of.name == name) =>
        {
            let hint =
                "addons come with a Cluster whose ClusterClass is of one of our releases: see `clusterstack tree`";
            Err(Hinted::new(format!("there is no ClusterAddon {namespace}/{name}"), hint).into())
        }
        Err(error) => Err(connection.refused("changed", "ClusterAddons", error).into()),
    }
}

/// Tells of each test that ends, until all are done.
async fn follow(
    connection: &Connection,
    api: &Api<ClusterAddon>,
    (name, asked): (&str, &str),
    waits: &mut String,
) -> Result<(TestsPhase, String)> {
    let mut told = BTreeSet::new();
    loop {
        let found = connection.answer(api.get(name)).await?;
        let found = found.map_err(|error| connection.refused("read", "ClusterAddons", error))?;
        let status = found.status.unwrap_or_default();
        let tests = status.tests.filter(|tests| tests.requested == asked);
        if let Some(tests) = tests {
            for line in ended(&status.charts).into_iter().filter(|line| !told.contains(line)).collect::<Vec<_>>() {
                output::print(&format!("{}\n", output::one_line(&line)))?;
                told.insert(line);
            }
            if tests.phase != TestsPhase::Running {
                return Ok((tests.phase, tests.message));
            }
            say(waits, tests.message);
        } else {
            let not_ready = condition::find(&status.conditions, ConditionType::Ready).filter(|ready| !ready.is_true());
            let why =
                not_ready.map(|ready| format!("; the ClusterAddon is not Ready ({}): {}", ready.reason, ready.message));
            say(waits, format!("waiting for the operator{}", why.unwrap_or_default()));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Tells what is waited for, where that is something else than before.
fn say(waits: &mut String, now: String) {
    if *waits != now {
        output::note!("{}", output::one_line(&now));
        *waits = now;
    }
}

/// The tests that ended, a line each.
fn ended(charts: &[ChartStatus]) -> Vec<String> {
    let runs = charts.iter().flat_map(|chart| &chart.hooks).filter(|run| run.event == TEST);
    let is_over = |phase| matches!(phase, HelmHookPhase::Succeeded | HelmHookPhase::Failed);
    runs.filter(|run| is_over(run.phase))
        .map(|run| {
            let mark = if run.phase == HelmHookPhase::Succeeded { "✓" } else { "✗" };
            format!("{mark} {} {}/{}", run.kind, run.namespace, run.name)
        })
        .collect()
}
