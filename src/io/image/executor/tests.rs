use std::sync::{Mutex, PoisonError};

use super::*;
use crate::core::image::build::{Phase, Place};

/// A build in memory.
struct Notes {
    build: Mutex<Build>,
    told: Mutex<Vec<Event>>,
}

impl Notes {
    fn claimed(steps: usize) -> (Arc<Self>, Build) {
        let names = (0..steps).map(|step| format!("s{step}")).collect();
        let recipe = Recipe { inputs: "i".into(), steps: names, retries: 3 };
        let now = Timestamp::from_second(1).unwrap();
        let wanted = Build::default().after(&Event::Wanted(recipe)).0;
        let build = wanted.after(&Event::Claimed { identity: "me".into(), now }).0;
        (Arc::new(Self { build: Mutex::new(build.clone()), told: Mutex::default() }), build)
    }

    fn phase(&self) -> Phase {
        self.build.lock().unwrap().phase
    }

    fn change(&self, event: &Event) {
        let mut build = self.build.lock().unwrap();
        *build = build.after(event).0;
    }
}

impl Report for Notes {
    fn progress(&self, _: Progress) {}
    fn line(&self, _: &str) {}
}

#[async_trait]
impl Journal for Notes {
    async fn tell(&self, event: Event) -> Told {
        let before = self.build.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if before.phase != Phase::Running {
            return Told::NotOurs;
        }
        self.change(&event);
        self.told.lock().unwrap().push(event);
        Told::Written(Box::new(self.build.lock().unwrap().clone()))
    }

    async fn beat(&self) -> Told {
        let build = self.build.lock().unwrap().clone();
        if build.phase == Phase::Running { Told::Written(Box::new(build)) } else { Told::NotOurs }
    }
}

#[derive(Clone, Default)]
struct Fake {
    lost: Option<usize>,
    known: usize,
    /// The step that fails, waits for its cancellation, never ends, or panics.
    fails: Option<usize>,
    waits: Option<usize>,
    hangs: Option<usize>,
    panics: Option<usize>,
    ran: Arc<Mutex<Vec<usize>>>,
    abandoned: Arc<Mutex<usize>>,
}

fn output(step: usize) -> Output {
    Output { digest: format!("sha256:{step}"), place: Place::WorkDirectory("w".into()) }
}

#[async_trait]
impl Steps for Fake {
    async fn lost(&self, finished: &[Output], _: &CancellationToken) -> Result<Option<usize>, StepError> {
        Ok(self.lost.filter(|step| *step < finished.len()))
    }

    async fn run(
        &self,
        step: usize,
        finished: &[Output],
        report: &dyn Report,
        cancel: &CancellationToken,
    ) -> Result<Output, StepError> {
        assert_eq!(finished.len(), step);
        self.ran.lock().unwrap().push(step);
        report.progress(Progress { done: 1, total: None });
        if self.hangs == Some(step) {
            std::future::pending::<()>().await;
        }
        assert_ne!(self.panics, Some(step), "on purpose");
        if self.waits == Some(step) {
            cancel.cancelled().await;
            return Err(StepError { hope: Hope::Retry, message: "cancelled".into() });
        }
        if self.fails == Some(step) {
            return Err(StepError { hope: Hope::Retry, message: "no route".into() });
        }
        Ok(output(step))
    }

    async fn discard(&self, _: &CancellationToken) -> Result<(), StepError> {
        Ok(())
    }

    async fn abandon(&self, _: &CancellationToken) -> Result<(), StepError> {
        *self.abandoned.lock().unwrap() += 1;
        Ok(())
    }

    async fn recover(&self, finished: &[Output], _: &CancellationToken) -> Result<Vec<Output>, StepError> {
        Ok((finished.len()..self.known).map(output).collect())
    }
}

#[async_trait]
impl Workshop for Fake {
    async fn steps(&self, _: &Order) -> Result<Arc<dyn Steps>, StepError> {
        Ok(Arc::new(self.clone()))
    }

    async fn destination(&self, _: &Order) -> Result<Arc<dyn Destination>, StepError> {
        Err(StepError { hope: Hope::None, message: "none".into() })
    }
}

fn attempt(notes: &Arc<Notes>) -> Attempt {
    let process = CancellationToken::new();
    let order = Order {
        known: None,
        object: ObjectReference::default(),
        pipeline: Pipeline { image: "x".into(), steps: Vec::new(), properties: serde_json::Map::new() },
        recipe: Recipe::default(),
        template_name: "t".into(),
        template_namespace: String::new(),
        grant: Grant::Given,
        template: Arc::default(),
        claim: Claim { object: "u".into(), attempt: 1, cluster: "c".into() },
    };
    let stop = Stop { build: process.child_token(), process };
    Attempt { order, journal: Arc::clone(notes) as Arc<dyn Journal>, stop, tasks: TaskTracker::new() }
}

#[tokio::test(start_paused = true)]
async fn steps_run_in_their_order_to_the_end() {
    let (notes, build) = Notes::claimed(3);
    let fake = Fake::default();
    attempt(&notes).drive(build, &fake).await;
    assert_eq!((notes.phase(), fake.ran.lock().unwrap().clone()), (Phase::Succeeded, vec![0, 1, 2]));
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_ends_the_attempt() {
    for fake in [Fake { fails: Some(1), ..Fake::default() }, Fake { panics: Some(1), ..Fake::default() }] {
        let (notes, build) = Notes::claimed(3);
        attempt(&notes).drive(build, &fake).await;
        assert_eq!((notes.phase(), fake.ran.lock().unwrap().clone()), (Phase::Queued, vec![0, 1]));
        assert_eq!(notes.build.lock().unwrap().failures, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_is_told_before_anything_runs() {
    let (notes, _) = Notes::claimed(3);
    for step in 0..2 {
        notes.change(&Event::StepFinished { attempt: 1, step, output: output(step), now: Timestamp::UNIX_EPOCH });
    }
    let fake = Fake { lost: Some(1), ..Fake::default() };
    let build = notes.build.lock().unwrap().clone();
    attempt(&notes).drive(build, &fake).await;
    let build = notes.build.lock().unwrap().clone();
    assert_eq!((build.phase, build.finished.len(), build.repeated), (Phase::Queued, 1, 1));
    assert_eq!(*fake.ran.lock().unwrap(), Vec::<usize>::new());
}

#[tokio::test(start_paused = true)]
async fn a_build_that_is_given_up_leaves_nothing_at_its_destination() {
    for (retries, phase, abandoned) in [(0, Phase::Failed, 1), (3, Phase::Queued, 0)] {
        let (notes, _) = Notes::claimed(3);
        notes.build.lock().unwrap().recipe.retries = retries;
        let build = notes.build.lock().unwrap().clone();
        let fake = Fake { fails: Some(1), ..Fake::default() };
        attempt(&notes).drive(build, &fake).await;
        assert_eq!((notes.phase(), *fake.abandoned.lock().unwrap()), (phase, abandoned), "{retries} retries");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_at_hand_is_not_made_again_though_nobody_wrote_it_down() {
    let (notes, build) = Notes::claimed(3);
    let fake = Fake { known: 2, ..Fake::default() };
    attempt(&notes).drive(build, &fake).await;
    assert_eq!((notes.phase(), fake.ran.lock().unwrap().clone()), (Phase::Succeeded, vec![2]));

    // Nor where what came before it was.
    let (notes, _) = Notes::claimed(3);
    notes.change(&Event::StepFinished { attempt: 1, step: 0, output: output(0), now: Timestamp::UNIX_EPOCH });
    let fake = Fake { known: 2, ..Fake::default() };
    let build = notes.build.lock().unwrap().clone();
    attempt(&notes).drive(build, &fake).await;
    assert_eq!((notes.phase(), fake.ran.lock().unwrap().clone()), (Phase::Succeeded, vec![2]));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_process_puts_the_build_back_into_the_queue() {
    for fake in [Fake { waits: Some(1), ..Fake::default() }, Fake { hangs: Some(1), ..Fake::default() }] {
        let (notes, build) = Notes::claimed(3);
        let attempt = attempt(&notes);
        let process = attempt.stop.process.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            process.cancel();
        });
        attempt.drive(build, &fake).await;
        let build = notes.build.lock().unwrap().clone();
        assert_eq!((build.phase, build.finished.len(), build.failures), (Phase::Queued, 1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_is_stopped_says_nothing_more() {
    let (notes, build) = Notes::claimed(3);
    let (attempt, fake) = (attempt(&notes), Fake { waits: Some(0), ..Fake::default() });
    attempt.stop.build.cancel();
    attempt.drive(build, &fake).await;
    assert_eq!((notes.phase(), notes.told.lock().unwrap().len()), (Phase::Running, 0));
}

#[tokio::test(start_paused = true)]
async fn who_is_replaced_stands_down() {
    let (notes, build) = Notes::claimed(3);
    let fake = Fake { waits: Some(1), ..Fake::default() };
    let other = Arc::clone(&notes);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(5)).await;
        other.change(&Event::Suspend);
    });
    attempt(&notes).drive(build, &fake).await;
    // It ended by itself, and told of nothing but the step that it had done.
    assert_eq!((notes.phase(), notes.told.lock().unwrap().len()), (Phase::Suspended, 1));
}
