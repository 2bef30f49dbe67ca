//! `clusterstack suspend` and `clusterstack resume`: hold the operator's hand over objects, and let it go on.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::connection;
use super::reconcile::{Look, of_a_stack};
use super::report::Hinted;
use super::settle::{Outcome, SettleArgs, Wish, settle};
use super::target::{Target, TargetArgs};
use crate::core::settled::{self, Asked};

/// Examples in the help of `suspend`.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack suspend scs                        # nothing new is taken, applied or collected
  clusterstack suspend caddon/cluster-addon-prod -n team-a
  clusterstack suspend --all caddon -A            # no workload cluster is written to any more

Sets spec.suspend of all of them, then waits until the operator has seen it. What is applied stays. What is under way in that
moment is finished: a release whose objects are being sent gets all of them, and a deletion goes on. `clusterstack resume` takes it
back.

Exit code: 0 the operator has seen it of all, 1 not of one, or not in time.";

/// Examples in the help of `resume`.
pub const RESUME_EXAMPLES: &str = "\
Examples:
  clusterstack resume scs
  clusterstack resume --all caddon -A

Takes spec.suspend away, has the operator look at once, and waits until the object is at rest: Ready, or Stalled.

Exit code: 0 all are Ready, 1 one is not, or not in time.";

/// Flags of `clusterstack suspend` and `clusterstack resume`.
#[derive(Args, Clone, Debug)]
pub struct SuspendArgs {
    #[command(flatten)]
    target: TargetArgs,

    #[command(flatten)]
    settle: SettleArgs,
}

/// That objects are left as they are, or no more.
#[derive(Debug)]
enum Hold {
    Suspend,
    Resume(Look),
}

/// Suspends, and tells when the operator has seen it.
///
/// # Errors
/// No such object, no right to change it, or nobody to print to.
pub fn suspend(args: &SuspendArgs) -> Result<ExitCode> {
    run(args, &Hold::Suspend)
}

/// Lets the operator go on, and tells what became of it.
///
/// # Errors
/// As [`suspend`].
pub fn resume(args: &SuspendArgs) -> Result<ExitCode> {
    run(args, &Hold::Resume(Look::now()))
}

fn run(args: &SuspendArgs, hold: &Hold) -> Result<ExitCode> {
    connection::block_on(async { settle(args.target.find(of_a_stack).await?, hold, &args.settle).await })
}

impl Wish for Hold {
    const MANAGER: &'static str = "clusterstack-suspend";

    fn refusal(&self, object: &Value) -> Option<Hinted> {
        let is_going = !object["metadata"]["deletionTimestamp"].is_null();
        let hint = "spec.suspend holds no deletion; see what it waits for with `clusterstack tree`";
        (is_going && matches!(self, Self::Suspend)).then(|| Hinted::new("is being deleted, which goes on", hint))
    }

    fn warning(&self, object: &Value) -> Option<String> {
        let others = settled::others_apply(object, "suspend");
        let is_changed = (object["spec"]["suspend"] == true) != matches!(self, Self::Suspend);
        let is_kept = is_changed && !others.is_empty();
        is_kept.then(|| format!("{} sets spec.suspend too, and may put it back: change it there", others.join(", ")))
    }

    fn patch(&self, object: &Value) -> Option<Value> {
        let is_suspended = object["spec"]["suspend"] == true;
        match self {
            Self::Suspend => (!is_suspended).then(|| json!({"spec": {"suspend": true}})),
            Self::Resume(look) => {
                let mut patch = look.patch(object).unwrap_or_else(|| json!({}));
                if is_suspended {
                    patch["spec"] = json!({"suspend": null});
                }
                Some(patch)
            }
        }
    }

    async fn outcome(&self, target: &Target, before: &Value, now: &Value) -> Result<Outcome> {
        match self {
            Self::Suspend if settled::is_seen(now, Asked::Spec) == Ok(true) => {
                Ok(Outcome::Done("suspended; the operator begins nothing new with it".to_owned()))
            }
            Self::Suspend => Ok(Outcome::Unseen(String::new())),
            Self::Resume(look) => look.outcome(target, before, now).await,
        }
    }

    fn asked(&self) -> &'static str {
        match self {
            Self::Suspend => "suspended; the operator was not waited for",
            Self::Resume(_) => "resumed; the operator was not waited for",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_so_already_is_not_changed() {
        let object = |suspend: Value| json!({"spec": {"suspend": suspend}});
        let resume = || Hold::Resume(Look::now());
        for (hold, before, expected) in [
            (Hold::Suspend, json!(null), json!(true)),
            (Hold::Suspend, json!(false), json!(true)),
            (Hold::Suspend, json!(true), json!("unchanged")),
            (resume(), json!(true), json!(null)),
            (resume(), json!(false), json!("unchanged")),
            (resume(), json!(null), json!("unchanged")),
        ] {
            let patch = hold.patch(&object(before.clone())).unwrap_or_default();
            let spec = patch.get("spec").map_or(json!("unchanged"), |spec| spec["suspend"].clone());
            assert_eq!(spec, expected, "{hold:?} {before}");
            // Who goes on looks at once.
            let asks = patch["metadata"]["annotations"][crate::api::RECONCILE_AT].is_string();
            assert_eq!(asks, matches!(hold, Hold::Resume(_)), "{hold:?} {before}");
        }
    }

    #[test]
    fn who_would_put_it_back_is_told_of() {
        let managed = json!([{"manager": "kustomize-controller", "operation": "Apply", "fieldsV1": {"f:spec": {"f:suspend": {}}}}]);
        let object = |suspend: bool| json!({"metadata": {"managedFields": managed}, "spec": {"suspend": suspend}});
        let warning = Hold::Suspend.warning(&object(false)).unwrap();
        assert!(warning.starts_with("kustomize-controller sets spec.suspend too"), "{warning}");
        assert_eq!(Hold::Suspend.warning(&object(true)), None);
        assert_eq!(Hold::Suspend.warning(&json!({"spec": {}})), None);
    }
}
