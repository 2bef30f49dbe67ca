//! `clusterstack reconcile`: has the operator look at objects now, and waits for what it finds.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::connection;
use super::report::Hinted;
use super::settle::{Outcome, SettleArgs, Wish, settle};
use super::target::{Kind, Target, TargetArgs};
use crate::api::{CLUSTER_STACK_LABEL, RECONCILE_AT};
use crate::core::settled::{self, Asked, Rest};

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack reconcile scs                      # polls the source of ClusterStack scs, applies its releases again
  clusterstack reconcile caddon/cluster-addon-prod -n team-a
  clusterstack reconcile --all -A                 # every ClusterStack there is
  clusterstack reconcile css/shared --no-wait

Sets the annotation clusterstack.x-k8s.io/reconcile-at, and waits until the operator has acted on it and the object is at rest:
Ready, or Stalled. What was refused is sent again, what was given up is tried again.

Exit code: 0 all are Ready, 1 one is not, or not in time.";

/// Flags of `clusterstack reconcile`.
#[derive(Args, Clone, Debug)]
pub struct ReconcileArgs {
    #[command(flatten)]
    target: TargetArgs,

    #[command(flatten)]
    settle: SettleArgs,
}

/// A look now.
#[derive(Debug)]
pub(super) struct Look {
    /// What the annotation is set to.
    at: String,
}

/// Asks, and tells what the operator found.
///
/// # Errors
/// No such object, no right to change it, or nobody to print to.
pub fn run(args: &ReconcileArgs) -> Result<ExitCode> {
    connection::block_on(async {
        let targets = args.target.find(|_| None).await?;
        settle(targets, &Look::now(), &args.settle).await
    })
}

impl Wish for Look {
    const MANAGER: &'static str = "clusterstack-reconcile";

    fn refusal(&self, target: &Target, object: &Value) -> Option<Hinted> {
        let hint = "`clusterstack resume` lets the operator go on";
        let message = || format!("{} is suspended: the operator would do nothing", target.shown());
        (object["spec"]["suspend"] == true).then(|| Hinted::new(message(), hint))
    }

    fn warning(&self, _: &Value) -> Option<String> {
        None
    }

    fn patch(&self, _: &Value) -> Option<Value> {
        Some(json!({"metadata": {"annotations": {RECONCILE_AT: self.at}}}))
    }

    async fn outcome(&self, target: &Target, object: &Value) -> Result<Outcome> {
        Ok(match settled::rest(object, Asked::Look(&self.at)) {
            Rest::Under(why) => Outcome::Waits(why),
            Rest::Stalled(reason, message) => Outcome::Failed(reason, message),
            Rest::Ready(message) => match self.behind(target, object).await {
                Some(release) => Outcome::Waits(format!("ClusterStackRelease {release} is not looked at yet")),
                None => Outcome::Done(message),
            },
        })
    }

    fn asked(&self) -> &'static str {
        "asked for; the operator was not waited for"
    }
}

impl Look {
    /// One that is asked for in this moment.
    pub(super) fn now() -> Self {
        Self { at: Timestamp::now().to_string() }
    }

    /// A release of a ClusterStack that is Ready and was not looked at yet: who asks for the one asks for the other. Who may not list
    /// them takes the word of the ClusterStack.
    async fn behind(&self, target: &Target, object: &Value) -> Option<String> {
        if target.kind != Kind::ClusterStack {
            return None;
        }
        let api = Kind::ClusterStackRelease.api(target.connection.client.clone(), &target.namespace);
        let own = ListParams::default().labels(&format!("{CLUSTER_STACK_LABEL}={}", target.name));
        let releases = target.connection.answer(api.list(&own)).await.ok()?.ok()?;
        let rows = object["status"]["summary"].as_array().into_iter().flatten();
        let ready: Vec<&str> = rows.filter(|row| row["ready"] == true).filter_map(|row| row["name"].as_str()).collect();
        let is_behind = |release: &Value| !settled::is_seen(release, Asked::Look(&self.at));
        let alive = releases.items.iter().filter(|release| release.metadata.deletion_timestamp.is_none());
        alive
            .filter(|release| ready.contains(&release.name_any().as_str()))
            .find(|release| serde_json::to_value(release).is_ok_and(|release| is_behind(&release)))
            .map(ResourceExt::name_any)
    }
}
