//! The status of a ClusterStackSource.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{StepState, since};
use crate::api::cluster_stack::LastPoll;
use crate::api::cluster_stack_source::{ClusterStackSourceStatus, OfferedRelease, Quota};
use crate::api::condition::{self, ConditionType, Finding, Reason};
use crate::core::retry::ErrorClass;

/// What one pass over a ClusterStackSource found.
#[derive(Clone, Debug, Default)]
pub struct SourceFacts {
    /// Generation of the object.
    pub generation: Option<i64>,
    /// Where the source is.
    pub url: String,
    /// Reading it.
    pub source: StepState,
    /// `spec.suspend`.
    pub suspended: bool,
    /// What was polled, and what of it is on offer; `None` keeps what stands there.
    pub poll: Option<(LastPoll, Vec<OfferedRelease>)>,
    /// What is left of the server's quota; `None` keeps what stands there.
    pub quota: Option<Quota>,
    /// When it is read again; `None` while nothing is planned.
    pub next_poll: Option<Timestamp>,
    /// The annotation that was acted on.
    pub reconcile_at: String,
}

/// The status of a ClusterStackSource.
pub fn source_status(
    previous: &ClusterStackSourceStatus,
    facts: &SourceFacts,
    now: Timestamp,
) -> ClusterStackSourceStatus {
    let ready = ready(previous, facts);
    let mut findings = vec![ready.clone()];
    match facts.source.trouble() {
        Some(trouble) if trouble.class == ErrorClass::Invalid => {
            findings.push(Finding::yes(ConditionType::Stalled, trouble.reason, &trouble.message));
        }
        _ if ready.status != Some(true) => {
            findings.push(Finding::yes(ConditionType::Reconciling, ready.reason, ""));
        }
        _ => {}
    }
    let (last_poll, releases_found, releases) = match &facts.poll {
        Some((poll, releases)) => (Some(since(poll, previous.last_poll.as_ref(), now)), poll.found, releases.clone()),
        None => (previous.last_poll.clone(), previous.releases_found, previous.releases.clone()),
    };
    ClusterStackSourceStatus {
        url: facts.url.clone(),
        releases_found,
        releases,
        last_poll,
        next_poll: facts.next_poll.map(|at| Time(condition::whole_seconds(at))),
        quota: facts.quota.clone().or_else(|| previous.quota.clone()),
        last_handled_reconcile_at: facts.reconcile_at.clone(),
        observed_generation: facts.generation,
        conditions: condition::set(&previous.conditions, &findings, facts.generation, now),
    }
}

fn ready(previous: &ClusterStackSourceStatus, facts: &SourceFacts) -> Finding {
    let type_ = ConditionType::Ready;
    if facts.suspended {
        return Finding::yes(
            type_,
            Reason::Suspended,
            "spec.suspend is set: it is not polled, and nothing new is taken",
        );
    }
    match &facts.source {
        StepState::Failed(trouble) => {
            let known = match previous.releases_found {
                _ if trouble.class == ErrorClass::Invalid => String::new(),
                0 => String::new(),
                found => format!("; {found} known"),
            };
            Finding::no(type_, trouble.reason, format!("{}{known}", trouble.message))
        }
        StepState::Done(message) => Finding::yes(type_, Reason::Ready, message),
        StepState::Remarked(reason, message) => Finding::yes(type_, *reason, message),
        StepState::Running(reason, message) => Finding::no(type_, *reason, message),
        StepState::Pending => Finding::no(type_, Reason::Progressing, "not read yet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::status::Trouble;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn good() -> SourceFacts {
        let release = OfferedRelease { name: "docker-x-1-34-v1".into(), revision: "r".into() };
        SourceFacts {
            generation: Some(1),
            url: "https://git.example.com/x".into(),
            source: StepState::Done("1 release on offer".into()),
            poll: Some((LastPoll { revision: "a".into(), found: 1, ..LastPoll::default() }, vec![release])),
            next_poll: Some(at(400)),
            ..SourceFacts::default()
        }
    }

    fn shown(status: &ClusterStackSourceStatus) -> String {
        let conditions = status.conditions.iter().map(|c| format!("{}={} {}", c.type_, c.status, c.reason));
        conditions.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn conditions_say_what_a_source_has_come_to() {
        let failed = |class, reason| SourceFacts {
            source: StepState::Failed(Trouble::new(class, reason, "because")),
            poll: None,
            ..good()
        };
        for (name, facts, expected) in [
            ("good", good(), "Ready=True Ready"),
            ("suspended", SourceFacts { suspended: true, ..good() }, "Ready=True Suspended"),
            (
                "down",
                failed(ErrorClass::Transient, Reason::SourceUnreachable),
                "Ready=False SourceUnreachable, Reconciling=True SourceUnreachable",
            ),
            (
                "refused",
                failed(ErrorClass::Invalid, Reason::SourceRefused),
                "Ready=False SourceRefused, Stalled=True SourceRefused",
            ),
            ("new", SourceFacts::default(), "Ready=False Progressing, Reconciling=True Progressing"),
        ] {
            assert_eq!(
                shown(&source_status(&ClusterStackSourceStatus::default(), &facts, at(100))),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn what_was_found_stays_while_the_source_is_down() {
        let first = source_status(&ClusterStackSourceStatus::default(), &good(), at(100));
        let down = SourceFacts {
            source: StepState::Failed(Trouble::new(ErrorClass::Transient, Reason::SourceUnreachable, "no route")),
            poll: None,
            ..good()
        };
        let second = source_status(&first, &down, at(200));
        assert_eq!(
            (second.releases_found, &second.releases, &second.last_poll),
            (1, &first.releases, &first.last_poll)
        );
        assert_eq!(second.conditions[0].message, "no route; 1 known");
    }

    #[test]
    fn a_poll_that_finds_the_same_keeps_its_time() {
        let first = source_status(&ClusterStackSourceStatus::default(), &good(), at(100));
        let second = source_status(&first, &good(), at(200));
        assert_eq!(first, second);
        let third = source_status(&second, &SourceFacts { next_poll: Some(at(700)), ..good() }, at(500));
        assert_eq!(third.last_poll.unwrap().time, Some(Time(at(100))));
        assert_eq!(third.next_poll, Some(Time(at(700))));
    }
}
