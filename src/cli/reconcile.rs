//! `clusterstack reconcile`: has the operator look at objects now, and waits for what it finds.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::connection;
use super::report::Hinted;
use super::settle::{Outcome, SettleArgs, Wish, settle};
use super::target::{Kind, Target, TargetArgs};
use crate::api::{CLUSTER_STACK_LABEL, RECONCILE_AT};
use crate::core::manifest::label_value;
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
        let targets = args.target.find(of_a_stack).await?;
        settle(targets, &Look::now(), &args.settle).await
    })
}

impl Wish for Look {
    const MANAGER: &'static str = "clusterstack-reconcile";

    fn refusal(&self, object: &Value) -> Option<Hinted> {
        let hint = "`clusterstack resume` lets the operator go on";
        let is_suspended = object["spec"]["suspend"] == true;
        is_suspended.then(|| Hinted::new("is suspended: the operator would do nothing", hint))
    }

    fn warning(&self, _: &Value) -> Option<String> {
        None
    }

    fn patch(&self, _: &Value) -> Option<Value> {
        Some(json!({"metadata": {"annotations": {RECONCILE_AT: self.at}}}))
    }

    async fn outcome(&self, target: &Target, before: &Value, now: &Value) -> Result<Outcome> {
        let asked = Asked::Look { at: &self.at, before: settled::asked_before(before) };
        Ok(match settled::rest(now, asked) {
            Rest::Unseen(says) => Outcome::Unseen(says),
            Rest::Under(why) => Outcome::Waits(why),
            Rest::Held(reason, message) => Outcome::Failed(reason, message),
            Rest::Stalled(reason, message) => match settled::older(now, &releases(target).await?) {
                Some(why) => Outcome::Waits(why),
                None => Outcome::Failed(reason, message),
            },
            Rest::Ready(message) => match settled::behind(now, &releases(target).await?, &self.at) {
                Some(why) => Outcome::Waits(why),
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
}

/// The releases of a ClusterStack; none of another kind. Who may not list them takes its word.
async fn releases(target: &Target) -> Result<Vec<Value>> {
    if target.kind != Kind::ClusterStack {
        return Ok(Vec::new());
    }
    let connection = &target.connection;
    let api = Kind::ClusterStackRelease.api(connection.client.clone(), &target.namespace);
    let own = ListParams::default().labels(&format!("{CLUSTER_STACK_LABEL}={}", label_value(&target.name)));
    let releases = match connection.answer(api.list(&own)).await? {
        Ok(releases) => releases,
        Err(kube::Error::Api(status)) if status.code == 403 => return Ok(Vec::new()),
        Err(error) => return Err(connection.refused("listed", &Kind::ClusterStackRelease.many(), error).into()),
    };
    Ok(releases.items.iter().map(serde_json::to_value).collect::<Result<Vec<Value>, _>>()?)
}

/// Why a kind is not looked at by itself.
pub(super) fn of_a_stack(kind: Kind) -> Option<Hinted> {
    let hint = "name its ClusterStack: what is asked of one is asked of its releases too";
    (kind == Kind::ClusterStackRelease).then(|| Hinted::new("ClusterStackReleases go with their ClusterStack", hint))
}
