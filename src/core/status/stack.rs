//! Status of a ClusterStack.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{StepState, Trouble, phase, since};
use crate::api::cluster_stack::{AvailableRelease, ClusterStackStatus, LastPoll, ReleaseSummary};
use crate::api::cluster_stack_release::ClusterStackReleaseStatus;
use crate::api::condition::{self, ConditionType, Finding, MAX_MESSAGE, Reason, cut};
use crate::core::name::ReleaseName;
use crate::core::retry::ErrorClass;
use crate::core::selection::Kept;

/// A release of a ClusterStack, for its summary.
#[derive(Clone, Debug)]
pub struct ReleaseView {
    /// Its name.
    pub name: ReleaseName,
    /// Why it stays.
    pub kept: Option<Kept>,
    /// Its status; `None` if it was only just created.
    pub status: Option<ClusterStackReleaseStatus>,
}

/// What one pass over a ClusterStack found.
#[derive(Clone, Debug, Default)]
pub struct StackFacts {
    /// Generation of the object.
    pub generation: Option<i64>,
    /// The source; `None` where it is not asked (no subscription).
    pub source: Option<StepState>,
    /// Creating and deleting ClusterStackReleases.
    pub releases_synced: StepState,
    /// Why collection is held, if it is.
    pub usage_unknown: Option<String>,
    /// What holds the object in deletion.
    pub deletion: Option<Trouble>,
    /// `spec.suspend`.
    pub suspended: bool,
    /// What was polled; `None` keeps what stands there.
    pub poll: Option<LastPoll>,
    /// All releases, newest first.
    pub releases: Vec<ReleaseView>,
    /// Releases on offer that are not taken; `None` keeps what stands there, for it knows since when they are.
    pub available: Option<Vec<AvailableRelease>>,
    /// The annotation that was acted on.
    pub reconcile_at: String,
}

/// The status of a ClusterStack.
pub fn stack_status(previous: &ClusterStackStatus, facts: &StackFacts, now: Timestamp) -> ClusterStackStatus {
    let ready = stack_ready(facts, facts.available.as_ref().unwrap_or(&previous.available));
    let mut findings = vec![ready.clone()];
    if let Some(source) = &facts.source {
        findings.extend(source.finding(ConditionType::ReleasesSynced));
        findings.extend(api_available(source));
    }
    if let StepState::Done(message) = &facts.releases_synced {
        let message =
            facts.usage_unknown.as_ref().map_or(message.clone(), |why| format!("nothing is collected: {why}"));
        let reason = if facts.usage_unknown.is_some() { Reason::UsageUnknown } else { Reason::Succeeded };
        findings.push(Finding::yes(ConditionType::ClusterStackReleasesSynced, reason, message));
    } else {
        findings.extend(facts.releases_synced.finding(ConditionType::ClusterStackReleasesSynced));
    }
    if let Some(stalled) = stack_stalled(facts) {
        findings.push(stalled);
    } else if ready.status != Some(true) && !facts.suspended {
        findings.push(Finding::yes(ConditionType::Reconciling, ready.reason, ""));
    }
    let usable: Vec<&ReleaseView> = facts.releases.iter().filter(|r| is_ready(r)).collect();
    let latest = usable.first().map(|r| {
        let kubernetes = r.status.as_ref().map(|s| s.kubernetes_version.as_str()).unwrap_or_default();
        format!("{} | {kubernetes}", r.name)
    });
    let versions: Vec<String> = usable.iter().map(|r| r.name.version.to_string()).collect();
    ClusterStackStatus {
        latest_release: latest.unwrap_or_default(),
        usable_versions: versions.join(", "),
        summary: facts.releases.iter().map(summary).collect(),
        available: facts.available.clone().unwrap_or_else(|| previous.available.clone()),
        last_poll: facts
            .poll
            .as_ref()
            .map(|poll| since(poll, previous.last_poll.as_ref(), now))
            .or(previous.last_poll.clone()),
        last_handled_reconcile_at: facts.reconcile_at.clone(),
        observed_generation: facts.generation,
        conditions: condition::set(&previous.conditions, &findings, facts.generation, now),
    }
}

/// Names of the releases that a status says are usable.
pub fn usable(status: &ClusterStackStatus) -> BTreeSet<String> {
    status.summary.iter().filter(|release| release.ready).map(|release| release.name.clone()).collect()
}

/// The events that a new status is worth: reasons and notes. `created` are the releases that were subscribed and not told of yet,
/// `has_more` says whether some are usable that were not before.
///
/// What is Ready by the time it is told of is told with it: one event, where a thousand ClusterStacks would have two each.
pub fn news(
    previous: &ClusterStackStatus,
    status: &ClusterStackStatus,
    created: &[String],
    has_more: bool,
) -> Vec<(Reason, String)> {
    let turned = condition::readiness_turned(&previous.conditions, &status.conditions)
        .and_then(|now| Some((Reason::named(&now.reason)?, now.message.as_str())))
        .filter(|(reason, _)| !matches!(reason, Reason::Progressing | Reason::ReleaseNotReady));
    let is_told = turned.is_some_and(|(_, message)| message.contains(&status.usable_versions));
    let mut news = Vec::new();
    match ((!created.is_empty()).then(|| subscribed(created)), turned) {
        (Some(subscribed), Some((Reason::Ready, message))) => {
            news.push((Reason::ReleaseCreated, format!("{subscribed}; {message}")));
        }
        (subscribed, turned) => {
            news.extend(subscribed.map(|note| (Reason::ReleaseCreated, note)));
            news.extend(turned.map(|(reason, message)| (reason, message.to_owned())));
        }
    }
    if !is_told && has_more {
        news.push((Reason::Ready, format!("usable: {}", status.usable_versions)));
    }
    news
}

/// What is said of releases that were subscribed.
pub fn subscribed(created: &[String]) -> String {
    let releases = if created.len() == 1 { "release" } else { "releases" };
    format!("subscribed {releases} {}", created.join(", "))
}

fn is_ready(release: &ReleaseView) -> bool {
    release.status.as_ref().is_some_and(|status| status.ready)
}

/// Nothing has gone wrong so far: a release just subscribed is no trouble.
fn is_under_way(release: &ReleaseView) -> bool {
    let Some(status) = &release.status else { return true };
    let ready = condition::find(&status.conditions, ConditionType::Ready);
    ready.is_none_or(|c| [Reason::Progressing, Reason::ProcessOngoing].iter().any(|reason| reason.as_str() == c.reason))
}

pub(super) fn summary(release: &ReleaseView) -> ReleaseSummary {
    let ready = is_ready(release);
    let said = |type_| release.status.as_ref().and_then(|status| condition::find(&status.conditions, type_));
    // What is applied is in order, but its source is not.
    let changed = said(ConditionType::ArtifactChanged).filter(|condition| condition.is_true());
    let why = if ready { changed } else { said(ConditionType::Ready) };
    ReleaseSummary {
        name: release.name.object_name(),
        ready,
        phase: phase(release.status.as_ref()).to_owned(),
        message: why.map(|condition| cut(&condition.message, MAX_MESSAGE)).unwrap_or_default(),
        kept: release.kept.map(|kept| kept.as_str().to_owned()).unwrap_or_default(),
    }
}

fn api_available(source: &StepState) -> Option<Finding> {
    let type_ = ConditionType::AssetsClientAPIAvailable;
    match source {
        StepState::Done(_) => Some(Finding::yes(type_, Reason::Succeeded, "")),
        StepState::Remarked(..) => None,
        StepState::Failed(trouble) if matches!(trouble.reason, Reason::SourceNotAllowed | Reason::SpecInvalid) => None,
        StepState::Failed(trouble) if matches!(trouble.reason, Reason::NoReleaseFound | Reason::NotOffered) => {
            Some(Finding::yes(type_, Reason::Succeeded, ""))
        }
        other => other.finding(type_),
    }
}

fn stack_ready(facts: &StackFacts, available: &[AvailableRelease]) -> Finding {
    let no = |reason, message: String| Finding::no(ConditionType::Ready, reason, message);
    if let Some(trouble) = &facts.deletion {
        return no(trouble.reason, trouble.message.clone());
    }
    let usable: Vec<String> =
        facts.releases.iter().filter(|r| is_ready(r)).map(|r| r.name.version.to_string()).collect();
    let usable_text = if usable.is_empty() { String::new() } else { format!("; usable: {}", usable.join(", ")) };
    if let Some(StepState::Failed(trouble)) = &facts.source {
        return no(trouble.reason, format!("{}{usable_text}", trouble.message));
    }
    if let StepState::Failed(trouble) = &facts.releases_synced {
        return no(trouble.reason, trouble.message.clone());
    }
    let blocking = facts.releases.iter().find(|r| !is_ready(r) && r.kept.is_some_and(|k| k != Kept::Undecided));
    if let Some(release) = blocking {
        let reason = match (release.kept, usable.is_empty()) {
            _ if is_under_way(release) => Reason::Progressing,
            (Some(Kept::NewestFound), false) => Reason::NewestReleaseNotReady,
            _ => Reason::ReleaseNotReady,
        };
        let why = summary(release).message;
        let why = if why.is_empty() { "not ready yet".to_owned() } else { why };
        // The tail names what works: it must survive the cut.
        let room = MAX_MESSAGE.saturating_sub(usable_text.len() + release.name.object_name().len() + 2);
        return no(reason, format!("{}: {}{usable_text}", release.name.object_name(), cut(&why, room)));
    }
    if facts.suspended && usable.is_empty() && !facts.releases.is_empty() {
        return no(Reason::Suspended, "spec.suspend is set: nothing is done, and no release is usable".to_owned());
    }
    if facts.suspended {
        return Finding::yes(ConditionType::Ready, Reason::Suspended, "spec.suspend is set: nothing is done");
    }
    let waiting: Vec<&AvailableRelease> =
        available.iter().filter(|release| release.reason != Reason::NotOffered.as_str()).collect();
    let remark = match &facts.source {
        Some(StepState::Remarked(reason, message)) => Some((*reason, message.clone())),
        _ => None,
    };
    if usable.is_empty() {
        if let Some((reason, message)) = remark {
            return no(reason, format!("no release is usable yet: {message}"));
        }
        if let Some(first) = waiting.first() {
            let reason = Reason::named(&first.reason).unwrap_or(Reason::Progressing);
            return no(reason, format!("no release is usable yet: {}: {}", first.name, first.message));
        }
        return no(Reason::Progressing, "no release is usable yet".to_owned());
    }
    let usable = format!("usable: {}", usable.join(", "));
    if let Some((reason, message)) = remark {
        return Finding::yes(ConditionType::Ready, reason, format!("{usable}; {message}"));
    }
    let more = match waiting.as_slice() {
        [] => String::new(),
        [first] => format!("; available: {}", first.name),
        [first, rest @ ..] => format!("; available: {} and {} more", first.name, rest.len()),
    };
    Finding::yes(ConditionType::Ready, Reason::Ready, format!("{usable}{more}"))
}

fn stack_stalled(facts: &StackFacts) -> Option<Finding> {
    let invalid = |step: &StepState| step.trouble().filter(|t| t.class == ErrorClass::Invalid).cloned();
    let own = facts.source.as_ref().and_then(invalid).or_else(|| invalid(&facts.releases_synced));
    if let Some(trouble) = own {
        return Some(Finding::yes(ConditionType::Stalled, trouble.reason, trouble.message));
    }
    facts.releases.iter().filter(|r| r.kept.is_some()).find_map(|release| {
        let stalled = condition::find(&release.status.as_ref()?.conditions, ConditionType::Stalled)?;
        let name = release.name.object_name();
        stalled.is_true().then(|| {
            let reason = Reason::named(&stalled.reason).unwrap_or(Reason::ReleaseNotReady);
            Finding::yes(ConditionType::Stalled, reason, format!("{name}: {}", stalled.message))
        })
    })
}
