//! Runs whose chart renders to something else by now. Helm renders once: what runs goes to its end as it began, within its
//! time, and what the chart renders to by then is judged after it. Its object tells all that its run needs.

use jiff::Timestamp;
use serde_json::Value;

use super::{Change, HelmHook, Policy, Step, TEST, entry, find, is_of_run, next};
use crate::api::HELM_HOOK_DELETE_POLICY;
use crate::api::cluster_addon::{HelmHookPhase, HelmHookStatus};
use crate::core::manifest::{Manifest, annotation};

/// Whether a hook may be at work in the cluster. Tests hold nothing up.
pub fn is_under_way(run: &HelmHookStatus) -> bool {
    matches!(run.phase, HelmHookPhase::Creating | HelmHookPhase::Running) && run.event != TEST
}

/// All that runs for a change of a chart, as it is recorded before it does.
pub fn runs(hooks: &[HelmHook], change: Change, rendering: &str) -> Vec<HelmHookStatus> {
    let events = [change.before(), change.after()];
    events.iter().flat_map(|event| hooks.iter().map(|hook| entry(hook, event, rendering))).collect()
}

/// The runs that are under way and none of these: they began with another rendering, or for another change.
pub fn earlier(records: &[HelmHookStatus], runs: &[HelmHookStatus]) -> Vec<HelmHookStatus> {
    records.iter().filter(|run| is_under_way(run) && find(runs, run).is_none()).cloned().collect()
}

/// How the object of an earlier run is asked for; `None` where it is of no kind that is waited for.
pub fn api_version(run: &HelmHookStatus) -> Option<&'static str> {
    match run.kind.as_str() {
        "Job" => Some("batch/v1"),
        "Pod" => Some("v1"),
        _ => None,
    }
}

/// What became of an earlier run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It is not finished; what is waited for.
    NotYet(String),
    /// It is over: whether its object is to be deleted, and why it failed if it did.
    Over {
        /// As its delete policies say.
        delete: bool,
        /// Why it failed.
        failed: Option<String>,
    },
}

/// What became of an earlier run, by what is in the cluster by its name.
pub fn ended(run: &HelmHookStatus, live: Option<&Value>, now: Timestamp) -> Ended {
    let nothing = Ended::Over { delete: false, failed: None };
    let Some(hook) = live.filter(|live| is_of_run(live, run)).and_then(as_live) else { return nothing };
    match next(&hook, Some(run), live, false, now) {
        Step::Wait(what) => Ended::NotYet(what),
        Step::Enter(HelmHookPhase::Failed, message) => {
            Ended::Over { delete: hook.has(Policy::Failed), failed: Some(message) }
        }
        _ => Ended::Over { delete: hook.has(Policy::Succeeded), failed: None },
    }
}

/// A hook as its live object tells of it.
fn as_live(live: &Value) -> Option<HelmHook> {
    let words = annotation(live, HELM_HOOK_DELETE_POLICY).unwrap_or_default().split(',').map(str::trim);
    let policies = words.filter(|word| !word.is_empty()).map(str::to_owned).collect();
    let manifest = Manifest::from_value(live.clone()).ok()?;
    Some(HelmHook { manifest, events: Vec::new(), weight: 0, policies })
}
