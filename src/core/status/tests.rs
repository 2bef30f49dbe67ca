use super::stack::summary;
use super::*;
use crate::api::cluster_stack::ClusterStackStatus;
use crate::api::cluster_stack_release::{Artifact, ClusterStackReleaseStatus};
use crate::core::name::ReleaseName;
use crate::core::selection::Kept;

fn now() -> Timestamp {
    Timestamp::from_second(1_000).unwrap()
}

fn row(name: &str, reason: Option<Reason>, error: &str) -> Resource {
    Resource {
        version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "shop".into(),
        name: name.into(),
        status: if reason.is_some() { ResourceStatus::NotSynced } else { ResourceStatus::Synced },
        health: if reason.is_some() { String::new() } else { "Current".into() },
        reason,
        error: error.into(),
        digest: "0123456789abcdef.0123456789abcdef".into(),
        ..Resource::default()
    }
}

fn facts(resources: Vec<Resource>) -> ReleaseFacts {
    ReleaseFacts {
        generation: Some(1),
        downloaded: StepState::Done(String::new()),
        templated: StepState::Done(String::new()),
        applied: StepState::Done(String::new()),
        resources,
        ..ReleaseFacts::default()
    }
}

fn ready(status: &ClusterStackReleaseStatus) -> (bool, &str, &str) {
    let ready = condition::find(&status.conditions, ConditionType::Ready).unwrap();
    assert_eq!(ready.is_true(), status.ready);
    (status.ready, &ready.reason, &ready.message)
}

#[test]
fn a_release_that_changed_upstream_is_ready_and_says_so_in_the_summary() {
    let mut facts = facts(vec![row("a", None, "")]);
    facts.changed_upstream = Some("tag v1 names b now".into());
    let status = release_status(&ClusterStackReleaseStatus::default(), facts, now());
    assert!(status.ready);
    let name = "docker-hello-1-34-v1".parse().unwrap();
    let row = summary(&ReleaseView { name, kept: Some(Kept::NewestReady), status: Some(status) });
    assert_eq!((row.ready, row.message.as_str()), (true, "tag v1 names b now"));
}

#[test]
fn a_release_is_ready_when_every_step_is_done_and_every_object_is_synced() {
    let status = release_status(&ClusterStackReleaseStatus::default(), facts(vec![row("a", None, "")]), now());
    assert_eq!(ready(&status), (true, "Ready", "1 object synced"));
    assert_eq!(phase(Some(&status)), "done");
}

#[test]
fn what_was_attempted_is_said_of_what_is_not_ready() {
    let previous = ClusterStackReleaseStatus {
        last_attempted_reconcile_at: "before".into(),
        ..ClusterStackReleaseStatus::default()
    };
    let failed = StepState::Failed(Trouble::new(ErrorClass::Invalid, Reason::RenderFailed, "because"));
    for (templated, attempted, expected) in [
        (&failed, Some("now"), "now"),
        (&failed, Some(""), ""),
        // The pass is not at its end.
        (&failed, None, "before"),
        (&StepState::Done(String::new()), Some("now"), "before"),
        (&StepState::Running(Reason::Progressing, "on its way".into()), Some("now"), "before"),
    ] {
        let facts = ReleaseFacts {
            templated: templated.clone(),
            attempted: attempted.map(ToOwned::to_owned),
            ..facts(vec![row("a", None, "")])
        };
        let status = release_status(&previous, facts, now());
        assert_eq!(status.last_attempted_reconcile_at, expected, "{templated:?} {attempted:?}");
    }
}

#[test]
fn the_first_step_in_trouble_is_the_reason() {
    let trouble = |reason, class| StepState::Failed(Trouble::new(class, reason, "because"));
    for (name, facts, reason, stalled) in [
        (
            "download",
            ReleaseFacts { downloaded: trouble(Reason::FetchFailed, ErrorClass::Transient), ..facts(vec![]) },
            "FetchFailed",
            false,
        ),
        (
            "no stack",
            ReleaseFacts { downloaded: trouble(Reason::ReleaseInvalid, ErrorClass::Invalid), ..facts(vec![]) },
            "ReleaseInvalid",
            true,
        ),
        (
            "render",
            ReleaseFacts { templated: trouble(Reason::RenderFailed, ErrorClass::Invalid), ..facts(vec![]) },
            "RenderFailed",
            true,
        ),
        (
            "provider",
            ReleaseFacts {
                provider: Some(StepState::Running(Reason::ProcessOngoing, "building".into())),
                ..facts(vec![])
            },
            "ProcessOngoing",
            false,
        ),
        (
            "not synced",
            facts(vec![row("a", None, ""), row("b", Some(Reason::Invalid), "no such field")]),
            "FailedToApplyObjects",
            true,
        ),
        ("no kind", facts(vec![row("b", Some(Reason::NoKindMatch), "not served")]), "FailedToApplyObjects", false),
        (
            "in use",
            ReleaseFacts {
                deletion: Some(Trouble::new(ErrorClass::Waiting, Reason::InUse, "Cluster a/b")),
                ..facts(vec![])
            },
            "InUse",
            false,
        ),
    ] {
        let status = release_status(&ClusterStackReleaseStatus::default(), facts, now());
        let (is_ready, found, _) = ready(&status);
        assert!(!is_ready, "{name}");
        assert_eq!(found, reason, "{name}");
        let is_stalled = condition::find(&status.conditions, ConditionType::Stalled).is_some();
        assert_eq!(is_stalled, stalled, "{name}");
    }
}

#[test]
fn a_ready_release_stays_ready_while_its_files_can_not_be_had() {
    for (class, expected) in [(ErrorClass::Transient, true), (ErrorClass::Waiting, true), (ErrorClass::Invalid, false)]
    {
        let downloaded = StepState::Failed(Trouble::new(class, Reason::SourceUnreachable, "no route"));
        let away = ReleaseFacts { downloaded, holds: true, ..facts(vec![row("a", None, "")]) };
        let status = release_status(&ClusterStackReleaseStatus::default(), away, now());
        assert_eq!(status.ready, expected, "{class:?}");
        let downloaded = condition::find(&status.conditions, ConditionType::ClusterStackReleaseDownloaded).unwrap();
        assert_eq!(downloaded.status, "False");
    }
}

#[test]
fn source_verified_is_said_where_signatures_are_asked_for_and_only_what_is_verified_counts() {
    let failed = |reason, class| StepState::Failed(Trouble::new(class, reason, "because"));
    let artifact =
        |digest: &str| Some(Artifact { verified_by: "A".into(), verify_digest: digest.into(), ..Artifact::default() });
    let done = || StepState::Done(String::new());
    let refused = || failed(Reason::NotVerified, ErrorClass::Waiting);
    let away = || failed(Reason::SourceUnreachable, ErrorClass::Transient);
    let other = || failed(Reason::SecretInvalid, ErrorClass::Waiting);
    let broken = || failed(Reason::ReleaseInvalid, ErrorClass::Invalid);
    let signed_and_broken = || {
        let trouble = Trouble::new(ErrorClass::Invalid, Reason::ReleaseInvalid, "metadata.yaml can't be used");
        StepState::Failed(trouble.signed_by("B"))
    };
    for (case, asked, artifact, downloaded, says, ready) in [
        ("not asked", None, artifact(""), done(), None, true),
        ("verified", Some("v"), artifact("v"), done(), Some(("True", "Verified", "signed by A")), true),
        ("refused", Some("v"), None, refused(), Some(("False", "NotVerified", "because")), false),
        ("asked later", Some("v"), artifact(""), away(), Some(("False", "NotVerified", "because")), false),
        ("asked otherwise", Some("w"), artifact("v"), refused(), Some(("False", "NotVerified", "because")), false),
        (
            "refused when fetched again",
            Some("v"),
            artifact("v"),
            refused(),
            Some(("False", "NotVerified", "because")),
            false,
        ),
        ("without keys", Some("v"), None, other(), Some(("Unknown", "SecretInvalid", "because")), false),
        (
            "signed, and no release",
            Some("v"),
            None,
            signed_and_broken(),
            Some(("True", "Verified", "signed by B")),
            false,
        ),
        (
            "applied unsigned, now signed, and no release",
            Some("v"),
            artifact(""),
            signed_and_broken(),
            Some(("True", "Verified", "signed by B")),
            false,
        ),
        ("no release, unlooked at", Some("v"), None, broken(), Some(("Unknown", "ReleaseInvalid", "because")), false),
        ("source away", Some("v"), artifact("v"), away(), Some(("True", "Verified", "signed by A")), true),
        ("first pass", Some("v"), None, StepState::Pending, Some(("Unknown", "Progressing", "not looked at")), false),
    ] {
        let verify = asked.map(ToOwned::to_owned);
        let facts = ReleaseFacts { verify, artifact, downloaded, holds: true, ..facts(vec![row("a", None, "")]) };
        let status = release_status(&ClusterStackReleaseStatus::default(), facts, now());
        assert_eq!(status.ready, ready, "{case}");
        let found = condition::find(&status.conditions, ConditionType::SourceVerified);
        assert_eq!(found.is_some(), says.is_some(), "{case}");
        if let (Some(found), Some((is, reason, message))) = (found, says) {
            assert_eq!((found.status.as_str(), found.reason.as_str()), (is, reason), "{case}");
            assert!(found.message.contains(message), "{case}: {}", found.message);
        }
    }
}

#[test]
fn artifact_changed_is_said_while_the_source_has_something_else_and_readiness_stays() {
    for changed in [None, Some("tag moved".to_owned())] {
        let facts = ReleaseFacts { changed_upstream: changed.clone(), ..facts(vec![row("a", None, "")]) };
        let status = release_status(&ClusterStackReleaseStatus::default(), facts, now());
        let found = condition::find(&status.conditions, ConditionType::ArtifactChanged);
        assert!(status.ready);
        assert_eq!(found.map(|c| (c.status.clone(), c.message.clone())), changed.map(|m| ("True".to_owned(), m)));
    }
}

#[test]
fn the_message_names_the_object_and_the_servers_words() {
    let status = release_status(
        &ClusterStackReleaseStatus::default(),
        facts(vec![row("a", None, ""), row("b", Some(Reason::Invalid), ".spec.x: field not declared in schema")]),
        now(),
    );
    assert_eq!(ready(&status).2, "1 of 2 objects not synced: ConfigMap shop/b: .spec.x: field not declared in schema");
}

#[test]
fn an_unhealthy_object_keeps_the_release_from_ready() {
    let mut waiting = row("a", None, "0 of 1 replicas are available");
    waiting.health = "InProgress".into();
    let status = release_status(&ClusterStackReleaseStatus::default(), facts(vec![waiting]), now());
    assert_eq!(ready(&status).1, "ObjectsNotHealthy");
}

#[test]
fn two_thousand_failing_objects_fit_with_the_inventory_complete() {
    let long = "x".repeat(4000);
    let rows =
        (0..2000).map(|i| row(&format!("a-rather-long-object-name-{i:05}"), Some(Reason::Invalid), &long)).collect();
    let status = release_status(&ClusterStackReleaseStatus::default(), facts(rows), now());
    assert_eq!(status.resources.len(), 2000);
    assert!(serde_json::to_string(&status).unwrap().len() <= MAX_STATUS);
    assert!(status.conditions.iter().all(|c| c.message.len() <= MAX_MESSAGE));
    let few = release_status(
        &ClusterStackReleaseStatus::default(),
        facts(vec![row("a", Some(Reason::Invalid), &long)]),
        now(),
    );
    assert_eq!(few.resources[0].error.len(), MAX_MESSAGE);
}

fn view(version: &str, kept: Kept, rows: Vec<Resource>) -> ReleaseView {
    let name: ReleaseName = format!("docker-x-1-34-{version}").parse().unwrap();
    let mut facts = facts(rows);
    facts.kubernetes_version = "v1.34.7".into();
    ReleaseView {
        name,
        kept: Some(kept),
        status: Some(release_status(&ClusterStackReleaseStatus::default(), facts, now())),
    }
}

fn stack(releases: Vec<ReleaseView>, source: StepState) -> ClusterStackStatus {
    let facts = StackFacts {
        source: Some(source),
        releases_synced: StepState::Done(String::new()),
        releases,
        ..StackFacts::default()
    };
    stack_status(&ClusterStackStatus::default(), &facts, now())
}

fn stack_condition(status: &ClusterStackStatus, type_: ConditionType) -> (String, String, String) {
    let c = condition::find(&status.conditions, type_).unwrap();
    (c.status.clone(), c.reason.clone(), c.message.clone())
}

#[test]
fn what_is_ready_at_once_is_told_by_one_event() {
    type Case<'a> = (&'a str, &'a ClusterStackStatus, &'a ClusterStackStatus, &'a [&'a str], &'a [(Reason, &'a str)]);
    let done = || StepState::Done(String::new());
    let good = |version| view(version, Kept::InVersions, vec![row("a", None, "")]);
    let begun = |version| ReleaseView { status: None, ..good(version) };
    let broken = view("v2", Kept::NewestFound, vec![row("b", Some(Reason::Invalid), "no such field")]);
    let dead = Trouble::new(ErrorClass::Transient, Reason::SourceUnreachable, "no answer");
    let (none, one, two) =
        (stack(vec![], done()), stack(vec![good("v1")], done()), stack(vec![good("v2"), good("v1")], done()));
    let blank = ClusterStackStatus::default();
    let cases: &[Case<'_>] = &[
        ("one", &blank, &one, &["v1"], &[(Reason::ReleaseCreated, "subscribed release v1; usable: v1")]),
        ("two", &blank, &two, &["v2", "v1"], &[(Reason::ReleaseCreated, "subscribed releases v2, v1; usable: v2, v1")]),
        ("by another process", &blank, &one, &[], &[(Reason::Ready, "usable: v1")]),
        (
            "under way",
            &blank,
            &stack(vec![begun("v1")], done()),
            &["v1"],
            &[(Reason::ReleaseCreated, "subscribed release v1")],
        ),
        ("then Ready", &stack(vec![begun("v1")], done()), &one, &[], &[(Reason::Ready, "usable: v1")]),
        ("a newer one", &one, &two, &[], &[(Reason::Ready, "usable: v2, v1")]),
        (
            "one of two",
            &blank,
            &stack(vec![broken, good("v1")], done()),
            &["v2", "v1"],
            &[
                (Reason::ReleaseCreated, "subscribed releases v2, v1"),
                (
                    Reason::NewestReleaseNotReady,
                    "docker-x-1-34-v2: 1 of 1 object not synced: ConfigMap shop/b: no such field; usable: v1",
                ),
            ],
        ),
        ("nothing", &blank, &none, &[], &[]),
        (
            "no source",
            &blank,
            &stack(vec![], StepState::Failed(dead)),
            &[],
            &[(Reason::SourceUnreachable, "no answer")],
        ),
        ("the same", &two, &two, &[], &[]),
    ];
    for (name, before, now, created, expected) in cases {
        let created: Vec<String> = created.iter().map(|&version| version.to_owned()).collect();
        let news = news(before, now, &created, !usable(now).is_subset(&usable(before)));
        let expected: Vec<_> = expected.iter().map(|&(reason, note)| (reason, note.to_owned())).collect();
        assert_eq!(news, expected, "{name}");
    }
}

#[test]
fn a_broken_newest_release_is_said_beside_the_usable_one() {
    let broken = view("v3", Kept::NewestFound, vec![row("b", Some(Reason::Invalid), "no such field")]);
    let status =
        stack(vec![broken, view("v1", Kept::InVersions, vec![row("a", None, "")])], StepState::Done(String::new()));
    let (is, reason, message) = stack_condition(&status, ConditionType::Ready);
    assert_eq!((is.as_str(), reason.as_str()), ("False", "NewestReleaseNotReady"));
    assert!(
        message.contains("docker-x-1-34-v3: 1 of 1 object not synced") && message.ends_with("; usable: v1"),
        "{message}"
    );
    assert_eq!(stack_condition(&status, ConditionType::Stalled).0, "True");
    assert_eq!(status.latest_release, "docker-x-1-34-v1 | v1.34.7");
    assert_eq!(status.usable_versions, "v1");
}

#[test]
fn a_newest_release_under_way_is_progress_and_no_trouble() {
    let mut new = view("v2", Kept::NewestFound, vec![]);
    new.status = None;
    let status =
        stack(vec![new, view("v1", Kept::NewestReady, vec![row("a", None, "")])], StepState::Done(String::new()));
    let (is, reason, message) = stack_condition(&status, ConditionType::Ready);
    assert_eq!((is.as_str(), reason.as_str()), ("False", "Progressing"));
    assert_eq!(message, "docker-x-1-34-v2: not ready yet; usable: v1");
}

#[test]
fn a_failing_source_says_so_and_keeps_what_is_usable() {
    let down = StepState::Failed(Trouble::new(ErrorClass::Transient, Reason::SourceUnreachable, "no route"));
    let status = stack(vec![view("v1", Kept::NewestReady, vec![row("a", None, "")])], down);
    for type_ in [ConditionType::Ready, ConditionType::ReleasesSynced, ConditionType::AssetsClientAPIAvailable] {
        let (is, reason, _) = stack_condition(&status, type_);
        assert_eq!((is.as_str(), reason.as_str()), ("False", "SourceUnreachable"));
    }
    assert_eq!(status.usable_versions, "v1");
    assert!(condition::find(&status.conditions, ConditionType::Stalled).is_none());
}

#[test]
fn a_poll_that_finds_the_same_changes_nothing() {
    let facts = |revision: &str| StackFacts {
        poll: Some(LastPoll { revision: revision.into(), found: 2, ..LastPoll::default() }),
        ..StackFacts::default()
    };
    let first = stack_status(&ClusterStackStatus::default(), &facts("a"), now());
    let later = Timestamp::from_second(9_999).unwrap();
    assert_eq!(stack_status(&first, &facts("a"), later), first);
    assert_ne!(stack_status(&first, &facts("b"), later).last_poll, first.last_poll);
}

#[test]
fn a_definition_concerns_those_who_lack_a_kind() {
    let of_group = |reason| Resource { group: "x.io".into(), ..row("a", reason, "") };
    let failed = Trouble::new(ErrorClass::Waiting, Reason::RenderFailed, "no such kind is served");
    let cases = [
        (vec![of_group(None)], StepState::Done(String::new()), false),
        (vec![of_group(Some(Reason::NoKindMatch))], StepState::Done(String::new()), true),
        (vec![row("a", Some(Reason::NoKindMatch), "")], StepState::Done(String::new()), false),
        (Vec::new(), StepState::Failed(failed), true),
        (Vec::new(), StepState::Pending, false),
    ];
    for (rows, templated, waits) in cases {
        let facts = ReleaseFacts { templated: templated.clone(), ..facts(rows.clone()) };
        let status = release_status(&ClusterStackReleaseStatus::default(), facts, now());
        assert_eq!(waits_for_kind(&status, "x.io"), waits, "{rows:?} {templated:?}");
    }
}
