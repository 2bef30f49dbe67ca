//! Status of a ClusterStackRelease.

use jiff::Timestamp;

use super::{StepState, Trouble, applied_state, fit, not_synced, objects, unhealthy};
use crate::api::cluster_stack_release::{Artifact, ClusterStackReleaseStatus, Resource};
use crate::api::condition::{self, Condition, ConditionType, Finding, Reason};
use crate::core::retry::ErrorClass;

/// What one pass over a ClusterStackRelease found.
#[derive(Clone, Debug, Default)]
pub struct ReleaseFacts {
    /// Generation of the object.
    pub generation: Option<i64>,
    /// Fetching and reading its files.
    pub downloaded: StepState,
    /// The provider's object; `None` with noProvider.
    pub provider: Option<StepState>,
    /// Rendering.
    pub templated: StepState,
    /// Applying, as far as `resources` does not tell it.
    pub applied: StepState,
    /// What holds the object in deletion.
    pub deletion: Option<Trouble>,
    /// The ClusterStack is suspended.
    pub suspended: bool,
    /// The release was ready, and only its files can't be had now: it is as good as it was.
    pub holds: bool,
    /// A look soon may find something else: some objects could not be looked at, so that their rows are as they were, or were refused
    /// before the API server knew a definition.
    pub unsettled: bool,
    /// Kubernetes version of the release; empty while it is not known.
    pub kubernetes_version: String,
    /// Versions of Kubernetes that its machines can run.
    pub node_versions: Vec<String>,
    /// What was fetched.
    pub artifact: Option<Artifact>,
    /// Digest of the `verify` that is asked for; `None` where none is.
    pub verify: Option<String>,
    /// What the source has under the release's name instead of what is applied.
    pub changed_upstream: Option<String>,
    /// The inventory.
    pub resources: Vec<Resource>,
    /// What is never pruned.
    pub retained: Vec<Resource>,
    /// The ServiceAccount by which objects were applied; empty with the operator's own rights.
    pub applied_as: String,
    /// The annotation that was acted on.
    pub reconcile_at: String,
    /// What the ClusterStack had handled of its annotation when the pass began; `None` where the pass is not at its end.
    pub attempted: Option<String>,
    /// When a certificate that the chart makes is to be made anew.
    pub renew: Option<Timestamp>,
}

/// The status of a ClusterStackRelease.
pub fn release_status(
    previous: &ClusterStackReleaseStatus,
    facts: ReleaseFacts,
    now: Timestamp,
) -> ClusterStackReleaseStatus {
    let applied = match facts.applied {
        StepState::Done(_) => applied_state(&facts.resources),
        ref other => other.clone(),
    };
    let ready = release_ready(&facts, &applied);
    let stalled = [Some(&facts.downloaded), facts.provider.as_ref(), Some(&facts.templated), Some(&applied)]
        .into_iter()
        .flatten()
        .find_map(|step| step.trouble().filter(|trouble| trouble.class == ErrorClass::Invalid));
    let mut findings = vec![ready.clone()];
    findings.extend(source_verified(&facts));
    if let Some(changed) = &facts.changed_upstream {
        findings.push(Finding::yes(ConditionType::ArtifactChanged, Reason::ArtifactChanged, changed));
    }
    findings.extend(facts.downloaded.finding(ConditionType::ClusterStackReleaseDownloaded));
    findings.extend(facts.provider.as_ref().and_then(|s| s.finding(ConditionType::ProviderClusterStackReleaseReady)));
    findings.extend(facts.templated.finding(ConditionType::HelmChartTemplated));
    findings.extend(applied.finding(ConditionType::HelmChartApplied));
    if let Some(trouble) = stalled {
        findings.push(Finding::yes(ConditionType::Stalled, trouble.reason, &trouble.message));
    } else if ready.status != Some(true) && !facts.suspended {
        findings.push(Finding::yes(ConditionType::Reconciling, ready.reason, ""));
    }
    let mut status = ClusterStackReleaseStatus {
        resources: facts.resources,
        retained: facts.retained,
        kubernetes_version: facts.kubernetes_version,
        node_versions: facts.node_versions,
        ready: ready.status == Some(true),
        artifact: facts.artifact,
        applied_as: facts.applied_as,
        last_handled_reconcile_at: facts.reconcile_at,
        // Of one that is Ready it tells nothing, and nothing is written for it.
        last_attempted_reconcile_at: facts
            .attempted
            .filter(|_| ready.status != Some(true) && ready.reason != Reason::Progressing)
            .unwrap_or_else(|| previous.last_attempted_reconcile_at.clone()),
        observed_generation: facts.generation,
        conditions: condition::set(&previous.conditions, &findings, facts.generation, now),
    };
    fit(&mut status, |status| [&mut status.resources, &mut status.retained]);
    status
}

/// Whether the signatures that are asked for were there, and nothing speaks against them now.
fn is_verified(facts: &ReleaseFacts) -> bool {
    let refused = facts.downloaded.trouble().is_some_and(|trouble| trouble.reason == Reason::NotVerified);
    let held = |asked: &String| facts.artifact.as_ref().is_some_and(|artifact| artifact.verify_digest == *asked);
    facts.verify.as_ref().is_none_or(|asked| held(asked) && !refused)
}

/// False where a signature is missing or not valid, or what is applied was not verified as is asked now; what else is
/// wrong with a release says nothing of its signatures.
fn source_verified(facts: &ReleaseFacts) -> Option<Finding> {
    facts.verify.as_ref()?;
    let type_ = ConditionType::SourceVerified;
    let signed = |signer: &str| Finding::yes(type_, Reason::Verified, format!("signed by {signer}"));
    let artifact = facts.artifact.as_ref();
    Some(match facts.downloaded.trouble() {
        _ if is_verified(facts) => signed(artifact.map_or("", |artifact| &artifact.verified_by)),
        Some(trouble) if !trouble.signer.is_empty() => signed(&trouble.signer),
        Some(trouble) if trouble.reason == Reason::NotVerified || artifact.is_some() => {
            Finding::no(type_, Reason::NotVerified, &trouble.message)
        }
        Some(trouble) => Finding::unknown(type_, trouble.reason, &trouble.message),
        None => Finding::unknown(type_, Reason::Progressing, "its signatures were not looked at yet"),
    })
}

fn release_ready(facts: &ReleaseFacts, applied: &StepState) -> Finding {
    let type_ = ConditionType::Ready;
    if let Some(trouble) = &facts.deletion {
        return Finding::no(type_, trouble.reason, &trouble.message);
    }
    if let (true, Some(trouble)) = (facts.holds, facts.downloaded.trouble())
        && trouble.class != ErrorClass::Invalid
        && is_verified(facts)
    {
        let message = format!("{} synced; not watched over: {}", objects(facts.resources.len()), trouble.message);
        return Finding::yes(type_, trouble.reason, message);
    }
    let steps = [Some(&facts.downloaded), facts.provider.as_ref(), Some(&facts.templated), Some(applied)];
    for step in steps.into_iter().flatten() {
        match step {
            StepState::Done(_) | StepState::Remarked(..) => {}
            StepState::Pending => return Finding::no(type_, Reason::Progressing, "waiting for its turn"),
            StepState::Running(reason, message) => return Finding::no(type_, *reason, message),
            StepState::Failed(trouble) if trouble.reason == Reason::FailedToApplyObjects => {
                // One line for `kubectl get`; HelmChartApplied and the rows say it all.
                let short = not_synced(&facts.resources, 1).unwrap_or_else(|| trouble.clone());
                return Finding::no(type_, short.reason, short.message);
            }
            StepState::Failed(trouble) => return Finding::no(type_, trouble.reason, &trouble.message),
        }
    }
    if let Some(finding) = unhealthy(&facts.resources) {
        return finding;
    }
    let is_kept = |row: &&Resource| matches!(row.reason, Some(Reason::InUse | Reason::UsageUnknown));
    let kept = match facts.retained.iter().filter(is_kept).count() {
        0 => String::new(),
        kept => format!("; {} that the chart does not render any more kept: somebody uses the release", objects(kept)),
    };
    let message = format!("{} synced{kept}", objects(facts.resources.len()));
    Finding::yes(type_, if facts.suspended { Reason::Suspended } else { Reason::Ready }, message)
}

/// The phase in the Go operator's words.
pub fn phase(status: Option<&ClusterStackReleaseStatus>) -> &'static str {
    let Some(status) = status else { return "" };
    let is = |type_| condition::find(&status.conditions, type_).map(Condition::is_true);
    if status.ready {
        "done"
    } else if is(ConditionType::ClusterStackReleaseDownloaded) != Some(true) {
        "downloading release assets"
    } else if is(ConditionType::ProviderClusterStackReleaseReady) == Some(false) {
        "provider-specific work"
    } else {
        "applying objects"
    }
}

/// Whether a definition of `group` that comes may be what a release waits for: an object of it is not synced, or the chart
/// does not render, for it may look up what is not served yet.
pub fn waits_for_kind(status: &ClusterStackReleaseStatus, group: &str) -> bool {
    let templated = condition::find(&status.conditions, ConditionType::HelmChartTemplated);
    let mut rows = status.resources.iter();
    templated.is_some_and(|condition| !condition.is_true())
        || rows.any(|row| row.group == group && row.reason.is_some())
}

/// How many seconds a release was not Ready, now that it is: since it said so. `None` where it is not, or said nothing before.
pub fn unready_for(before: &[Condition], now: &[Condition]) -> Option<f64> {
    let ready = |conditions| condition::find(conditions, ConditionType::Ready);
    let now = ready(now).filter(|now| now.is_true())?.last_transition_time.as_ref()?;
    let before = ready(before).filter(|before| !before.is_true())?.last_transition_time.as_ref()?;
    Some(now.0.duration_since(before.0).as_secs_f64().max(0.0))
}

/// The same of one that never said anything before: since it was made.
pub fn ready_after(made: Timestamp, now: &[Condition]) -> Option<f64> {
    let ready = condition::find(now, ConditionType::Ready).filter(|now| now.is_true())?;
    Some(ready.last_transition_time.as_ref()?.0.duration_since(made).as_secs_f64().max(0.0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_time_until_a_release_is_ready_is_known() {
        let at = |second: u8| format!("2026-01-01T00:00:{second:02}Z");
        let ready = |status: &str, second: u8| -> Vec<Condition> {
            vec![
                serde_json::from_value(json!({"type": "Ready", "status": status, "reason": "R", "message": "",
                "lastTransitionTime": at(second)}))
                .unwrap(),
            ]
        };
        for (before, now, expected) in [
            // Its status was lost: since when it was ready is not known.
            (vec![], ready("True", 8), None),
            (ready("False", 3), ready("True", 8), Some(5.0)),
            (ready("True", 3), ready("True", 3), None),
            (ready("True", 3), ready("False", 8), None),
            (vec![], ready("False", 8), None),
            (vec![], vec![], None),
            // A clock that went back.
            (ready("False", 9), ready("True", 8), Some(0.0)),
        ] {
            assert_eq!(unready_for(&before, &now), expected, "{before:?} {now:?}");
        }
        for (now, expected) in
            [(ready("True", 8), Some(6.0)), (ready("True", 1), Some(0.0)), (ready("False", 8), None), (vec![], None)]
        {
            assert_eq!(ready_after(at(2).parse().unwrap(), &now), expected, "{now:?}");
        }
    }
}
