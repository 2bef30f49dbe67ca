use proptest::prelude::*;

use super::*;

const STEPS: [&str; 3] = ["download", "verify", "upload"];

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn recipe(inputs: &str) -> Recipe {
    Recipe { inputs: inputs.into(), steps: STEPS.map(ToOwned::to_owned).to_vec(), retries: 2 }
}

fn output(step: usize) -> Output {
    let place = if step == 2 { Place::Destination } else { Place::WorkDirectory("w".into()) };
    Output { digest: format!("sha256:{step}"), place }
}

fn claimed(now: i64) -> Event {
    Event::Claimed { identity: "a".into(), now: at(now) }
}

fn finished(attempt: u32, step: usize) -> Event {
    Event::StepFinished { attempt, step, output: output(step), now: at(2) }
}

fn failed(attempt: u32, hope: Hope) -> Event {
    Event::StepFailed { attempt, hope, message: "the network".into(), now: at(2) }
}

fn build(events: &[Event]) -> (Build, Vec<Command>) {
    let first = Build::default().after(&Event::Wanted(recipe("i"))).0;
    events.iter().fold((first, Vec::new()), |(build, _), event| build.after(event))
}

/// Phase, finished steps, attempt, failures and commands after events.
type End = (Phase, usize, u32, u32, Vec<Command>);

fn ends(events: &[Event]) -> End {
    let (build, commands) = build(events);
    (build.phase, build.step(), build.attempt, build.failures, commands)
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn each_event_does_what_the_diagram_says() {
    use Command::{Dequeue, Enqueue, Run, Stop, Tell};
    let cases: Vec<(&str, Vec<Event>, End)> = vec![
        ("it is not claimed before it is wanted anew", vec![], (Phase::Queued, 0, 0, 0, vec![])),
        (
            "a claim starts the first step",
            vec![claimed(1)],
            (Phase::Running, 0, 1, 0, vec![Run { attempt: 1, step: 0 }, Tell(Note::StepStarted(0))]),
        ),
        ("what runs is not claimed again", vec![claimed(1), claimed(1)], (Phase::Running, 0, 1, 0, vec![])),
        (
            "a step leads to the next one",
            vec![claimed(1), finished(1, 0)],
            (Phase::Running, 1, 1, 0, vec![Tell(Note::StepFinished(0)), Tell(Note::StepStarted(1))]),
        ),
        (
            "the last step ends it",
            vec![claimed(1), finished(1, 0), finished(1, 1), finished(1, 2)],
            (Phase::Succeeded, 3, 1, 0, vec![Tell(Note::StepFinished(2)), Tell(Note::Done)]),
        ),
        ("a step out of order is none", vec![claimed(1), finished(1, 1)], (Phase::Running, 0, 1, 0, vec![])),
        ("an attempt that is over has no say", vec![claimed(1), finished(7, 0)], (Phase::Running, 0, 1, 0, vec![])),
        (
            "a failure is tried again after a pause",
            vec![claimed(1), failed(1, Hope::Retry)],
            (Phase::Queued, 0, 1, 1, vec![Stop { attempt: 1 }, Enqueue, Tell(Note::WillRetry)]),
        ),
        ("which is kept", vec![claimed(1), failed(1, Hope::Retry), claimed(3)], (Phase::Queued, 0, 1, 1, vec![])),
        (
            "and ends",
            vec![claimed(1), failed(1, Hope::Retry), claimed(12)],
            (Phase::Running, 0, 2, 1, vec![Run { attempt: 2, step: 0 }, Tell(Note::StepStarted(0))]),
        ),
        (
            "or is cut short",
            vec![claimed(1), failed(1, Hope::Retry), Event::Retry, claimed(3)],
            (Phase::Running, 0, 2, 0, vec![Run { attempt: 2, step: 0 }, Tell(Note::StepStarted(0))]),
        ),
        (
            "what can't help is not tried again",
            vec![claimed(1), failed(1, Hope::None)],
            (Phase::Failed, 0, 1, 1, vec![Stop { attempt: 1 }, Tell(Note::GaveUp)]),
        ),
        (
            "retries end",
            vec![
                claimed(1),
                failed(1, Hope::Retry),
                claimed(99),
                failed(2, Hope::Retry),
                claimed(99),
                failed(3, Hope::Retry),
            ],
            (Phase::Failed, 0, 3, 3, vec![Stop { attempt: 3 }, Tell(Note::GaveUp)]),
        ),
        (
            "another process at work is waited for, however often it is met",
            [1, 99, 299, 499]
                .into_iter()
                .zip(1..)
                .flat_map(|(now, attempt)| [claimed(now), failed(attempt, Hope::Later)])
                .collect(),
            (Phase::Queued, 0, 4, 0, vec![Stop { attempt: 4 }, Enqueue]),
        ),
        ("though not at once", vec![claimed(1), failed(1, Hope::Later), claimed(61)], (Phase::Queued, 0, 1, 0, vec![])),
        (
            "and what failed before still counts",
            vec![claimed(1), failed(1, Hope::Retry), claimed(99), failed(2, Hope::Later), claimed(199)],
            (Phase::Running, 0, 3, 1, vec![Run { attempt: 3, step: 0 }, Tell(Note::StepStarted(0))]),
        ),
        (
            "who asks for another try gets all retries",
            vec![claimed(1), failed(1, Hope::None), Event::Retry],
            (Phase::Queued, 0, 1, 0, vec![Enqueue]),
        ),
        (
            "a step that is finished starts the count anew",
            vec![claimed(1), failed(1, Hope::Retry), claimed(99), finished(2, 0)],
            (Phase::Running, 1, 2, 0, vec![Tell(Note::StepFinished(0)), Tell(Note::StepStarted(1))]),
        ),
        (
            "a holder that is silent for long is replaced",
            vec![claimed(1), finished(1, 0), Event::Looked { now: at(63) }],
            (Phase::Queued, 1, 1, 1, vec![Enqueue, Tell(Note::HolderLost("a".into()))]),
        ),
        (
            "one that beats is not",
            vec![
                claimed(1),
                Event::Beat { attempt: 1, progress: Progress::default(), now: at(30) },
                Event::Looked { now: at(63) },
            ],
            (Phase::Running, 0, 1, 0, vec![]),
        ),
        (
            "the next one goes on where it ended",
            vec![claimed(1), finished(1, 0), Event::Looked { now: at(63) }, claimed(64)],
            (Phase::Running, 1, 2, 1, vec![Run { attempt: 2, step: 1 }, Tell(Note::StepStarted(1))]),
        ),
        (
            "the one before stands down when it comes back",
            vec![claimed(1), Event::Looked { now: at(63) }, claimed(64), finished(1, 0)],
            (Phase::Running, 0, 2, 1, vec![]),
        ),
        (
            "one that is surely gone is replaced at once",
            vec![claimed(1), Event::Lost { attempt: 1 }],
            (Phase::Queued, 0, 1, 1, vec![Enqueue, Tell(Note::HolderLost("a".into()))]),
        ),
        (
            "a build that takes its holders along is given up like one that fails",
            vec![
                claimed(1),
                Event::Lost { attempt: 1 },
                claimed(2),
                Event::Looked { now: at(63) },
                claimed(64),
                Event::Lost { attempt: 3 },
            ],
            (Phase::Failed, 0, 3, 3, vec![Tell(Note::GaveUp)]),
        ),
        (
            "one that goes on is not, however many holders it loses",
            vec![
                claimed(1),
                Event::Lost { attempt: 1 },
                claimed(2),
                Event::Lost { attempt: 2 },
                claimed(3),
                finished(3, 0),
                Event::Lost { attempt: 3 },
                claimed(4),
                Event::Lost { attempt: 4 },
            ],
            (Phase::Queued, 1, 4, 2, vec![Enqueue, Tell(Note::HolderLost("a".into()))]),
        ),
        (
            "a holder that ends properly is none that is lost",
            (1..9).flat_map(|attempt| [claimed(1), Event::ShutDown { attempt }]).collect(),
            (Phase::Queued, 0, 8, 0, vec![Enqueue]),
        ),
        (
            "a loss of another attempt is none",
            vec![claimed(1), Event::Lost { attempt: 7 }],
            (Phase::Running, 0, 1, 0, vec![]),
        ),
        (
            "a holder that ends leaves the rest to another one",
            vec![claimed(1), finished(1, 0), Event::ShutDown { attempt: 1 }],
            (Phase::Queued, 1, 1, 0, vec![Enqueue]),
        ),
        (
            "a lost output runs its step again",
            vec![claimed(1), finished(1, 0), finished(1, 1), Event::OutputLost { step: 0 }],
            (Phase::Queued, 0, 1, 0, vec![Stop { attempt: 1 }, Enqueue, Tell(Note::StepRepeated(0))]),
        ),
        (
            "after the end too",
            vec![claimed(1), finished(1, 0), finished(1, 1), finished(1, 2), Event::OutputLost { step: 2 }],
            (Phase::Queued, 2, 1, 0, vec![Enqueue, Tell(Note::StepRepeated(2))]),
        ),
        (
            "cancelled, it stops",
            vec![claimed(1), finished(1, 0), Event::Cancel],
            (Phase::Cancelled, 1, 1, 0, vec![Stop { attempt: 1 }, Tell(Note::Cancelled)]),
        ),
        ("in the queue too", vec![Event::Cancel], (Phase::Cancelled, 0, 0, 0, vec![Dequeue, Tell(Note::Cancelled)])),
        ("and goes on when asked", vec![Event::Cancel, Event::Retry], (Phase::Queued, 0, 0, 0, vec![Enqueue])),
        (
            "suspended, it stops with what it has",
            vec![claimed(1), finished(1, 0), Event::Suspend],
            (Phase::Suspended, 1, 1, 0, vec![Stop { attempt: 1 }]),
        ),
        ("and goes on when resumed", vec![Event::Suspend, Event::Resume], (Phase::Queued, 0, 0, 0, vec![Enqueue])),
        (
            "what is wanted otherwise starts from the beginning",
            vec![claimed(1), finished(1, 0), Event::Wanted(recipe("j"))],
            (Phase::Queued, 0, 1, 0, vec![Stop { attempt: 1 }, Enqueue]),
        ),
        (
            "what is cancelled stays so",
            vec![Event::Cancel, Event::Wanted(recipe("j"))],
            (Phase::Cancelled, 0, 0, 0, vec![]),
        ),
    ];
    for (what, events, expected) in cases {
        assert_eq!(ends(&events), expected, "{what}");
    }
}

#[test]
fn after_the_last_attempt_nothing_says_that_there_is_another_one() {
    let build = Build::default().after(&Event::Wanted(Recipe { retries: 1, ..recipe("i") })).0;
    let fails = |build: &Build, now: i64| {
        let build = build.after(&claimed(now)).0;
        let (attempt, message) = (build.attempt, "it is not there; it is tried again".to_owned());
        build.after(&Event::StepFailed { attempt, hope: Hope::Retry, message, now: at(now) }).0
    };
    let once = fails(&build, 1);
    assert_eq!((once.phase, once.message.as_str()), (Phase::Queued, "it is not there; it is tried again"));
    let twice = fails(&once, 100);
    assert_eq!((twice.phase, twice.message.as_str()), (Phase::Failed, "it is not there"));
}

#[test]
fn a_holder_that_is_lost_is_named_and_counts_only_where_it_may_be_lost_by_the_build() {
    let lost = |steps: &[&str], retries: u32, times: u32| {
        let steps = steps.iter().map(|step| (*step).to_owned()).collect();
        let first = Build::default().after(&Event::Wanted(Recipe { inputs: "i".into(), steps, retries })).0;
        (1..=times).fold(first, |build, attempt| build.after(&claimed(1)).0.after(&Event::Lost { attempt }).0)
    };
    for (steps, retries, times, phase, failures, says) in [
        (&STEPS[..], 2, 1, Phase::Queued, 1, "a, which built it, is gone without a word; it is tried again"),
        // One is nobody's fault.
        (&STEPS, 0, 1, Phase::Queued, 1, "a, which built it, is gone without a word; it is tried again"),
        (&STEPS, 0, 2, Phase::Failed, 2, "`clusterstack images retry`"),
        (&STEPS, 2, 3, Phase::Failed, 3, "attempt 3 of this step"),
        // A Job goes on without us.
        (&[job::STEP], 2, 30, Phase::Queued, 0, ""),
    ] {
        let build = lost(steps, retries, times);
        assert_eq!((build.phase, build.failures), (phase, failures), "{steps:?} {retries} {times}");
        assert!(build.message.contains(says) && build.message.is_empty() == says.is_empty(), "{}", build.message);
    }
}

#[test]
fn pauses_double_up_to_ten_minutes() {
    let seconds: Vec<i64> = [1, 2, 3, 7, 8, 60, u32::MAX].map(|n| pause(n).as_secs()).to_vec();
    assert_eq!(seconds, [10, 20, 40, 600, 600, 600, 600]);
}

fn any_event() -> impl Strategy<Value = Event> {
    let attempt = 0_u32..6;
    let step = 0_usize..4;
    let now = (0_i64..2_000).prop_map(at);
    prop_oneof![
        2 => Just(Event::Wanted(recipe("i"))),
        1 => Just(Event::Wanted(recipe("j"))),
        6 => now.clone().prop_map(|now| Event::Claimed { identity: "a".into(), now }),
        2 => (attempt.clone(), now.clone()).prop_map(|(attempt, now)| Event::Beat {
            attempt,
            progress: Progress { done: 1, total: None },
            now,
        }),
        8 => (attempt.clone(), step.clone(), now.clone()).prop_map(|(attempt, step, now)| Event::StepFinished {
            attempt,
            step,
            output: output(step),
            now,
        }),
        4 => (attempt.clone(), any::<bool>(), now.clone()).prop_map(|(attempt, hope, now)| Event::StepFailed {
            attempt,
            hope: if hope { Hope::Retry } else { Hope::None },
            message: "x".into(),
            now,
        }),
        1 => attempt.clone().prop_map(|attempt| Event::Found { attempt, digest: "sha256:there".into() }),
        1 => step.prop_map(|step| Event::OutputLost { step }),
        2 => now.prop_map(|now| Event::Looked { now }),
        1 => attempt.clone().prop_map(|attempt| Event::ShutDown { attempt }),
        1 => attempt.prop_map(|attempt| Event::Lost { attempt }),
        1 => Just(Event::Cancel),
        2 => Just(Event::Retry),
        1 => Just(Event::Suspend),
        1 => Just(Event::Resume),
    ]
}

/// What must hold of every build.
fn is_possible(build: &Build) -> Result<(), TestCaseError> {
    prop_assert_eq!(build.holder.is_some(), build.phase == Phase::Running);
    prop_assert!(build.step() <= build.recipe.steps.len());
    prop_assert!(build.phase != Phase::Succeeded || build.step() == build.recipe.steps.len());
    prop_assert!(build.phase != Phase::Running || build.step() < build.recipe.steps.len());
    prop_assert!(build.not_before.is_none() || build.phase == Phase::Queued);
    prop_assert!(build.progress.is_none() || build.phase == Phase::Running);
    prop_assert!(build.phase != Phase::Running || build.attempt > 0);
    prop_assert!(
        build.message.is_empty() || matches!(build.phase, Phase::Queued | Phase::Running | Phase::Failed),
        "a failure is told of one that is not tried again"
    );
    Ok(())
}

proptest! {
    #[test]
    fn no_order_of_events_leads_to_an_impossible_build_or_loses_a_finished_step(
        events in prop::collection::vec(any_event(), 0..60)
    ) {
        let mut build = Build::default();
        // What runs somewhere and was not told to stop.
        let mut running: Vec<u32> = Vec::new();
        for event in &events {
            let (next, commands) = build.after(event);
            is_possible(&next)?;
            prop_assert!(next.attempt >= build.attempt);
            let kept = match event {
                Event::OutputLost { step } => build.step().min(*step),
                Event::Wanted(recipe) if recipe.inputs != build.recipe.inputs => 0,
                // Another image takes its place.
                Event::Found { .. } if next != build => 0,
                // What it made was removed when it was cancelled.
                Event::Retry if build.phase == Phase::Cancelled => 0,
                _ => build.step(),
            };
            prop_assert!(next.step() >= kept && next.finished[..kept] == build.finished[..kept]);
            match event {
                // It has ended by itself, or is believed to have.
                Event::ShutDown { .. } | Event::Lost { .. } | Event::Looked { .. } if next != build => running.clear(),
                Event::StepFinished { .. } | Event::Found { .. } if next.phase == Phase::Succeeded => running.clear(),
                _ => {}
            }
            for command in &commands {
                match command {
                    Command::Run { attempt, step } => {
                        prop_assert_eq!((*attempt, *step), (build.attempt + 1, build.step()));
                        running.push(*attempt);
                    }
                    Command::Stop { attempt } => running.retain(|one| one != attempt),
                    _ => {}
                }
            }
            let held = (next.phase == Phase::Running).then_some(next.attempt);
            prop_assert_eq!(running.iter().copied().max(), held, "{:?}", event);
            prop_assert!(running.len() <= 1);
            build = next;
        }
    }

    #[test]
    fn every_build_can_be_brought_to_its_end(events in prop::collection::vec(any_event(), 0..40)) {
        let mut build = Build::default().after(&Event::Wanted(recipe("i"))).0;
        let asked = [&Event::Resume, &Event::Retry, &Event::Looked { now: at(9_999) }, &Event::Retry];
        for event in events.iter().chain(asked) {
            build = build.after(event).0;
        }
        build = build.after(&Event::Claimed { identity: "b".into(), now: at(99_999) }).0;
        let attempt = build.attempt;
        for step in build.step()..STEPS.len() {
            build = build.after(&Event::StepFinished { attempt, step, output: output(step), now: at(99_999) }).0;
        }
        prop_assert_eq!(build.phase, Phase::Succeeded);
    }

    #[test]
    fn what_another_attempt_says_changes_nothing(events in prop::collection::vec(any_event(), 0..40), step in 0_usize..3) {
        let build = events.iter().fold(Build::default(), |build, event| build.after(event).0);
        for attempt in [build.attempt + 1, build.attempt.wrapping_sub(1)] {
            let told = [Event::ShutDown { attempt }, Event::Lost { attempt }];
            for event in told.into_iter().chain([finished(attempt, step), failed(attempt, Hope::Retry)]) {
                prop_assert_eq!(build.after(&event), (build.clone(), Vec::new()));
            }
        }
    }
}
