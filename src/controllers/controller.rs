//! What is due: each object gets its passes one after the other, all objects theirs beside each other.
//!
//! kube-runtime's `Controller` polls every pass that waits in line whenever anything happens to one of them: with a thousand in
//! line that was a fifth of the operator's processor time, and it grows with the square of their number. It also starts passes over
//! what a relist tells before its cache has it. Here an end of a pass wakes what it concerns, and what a watch tells while it reads
//! all there is starts when it has.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, Stream, StreamExt};
use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::time::{DelayQueue, delay_queue};

use super::Error;

/// When an object is looked at again, unless something happens before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action(Option<Duration>);

impl Action {
    /// After this time, or when something happens.
    #[must_use]
    pub fn requeue(after: Duration) -> Self {
        Self(Some(after))
    }

    /// When something happens.
    #[must_use]
    pub fn await_change() -> Self {
        Self(None)
    }

    /// The sooner one of two.
    pub(super) fn or_sooner(self, Self(other): Self) -> Self {
        Self(self.0.into_iter().chain(other).min())
    }
}

/// Whether a watch has read all there is, so that its cache has what its events tell.
#[derive(Clone, Debug)]
pub(super) struct Reading(Arc<watch::Sender<bool>>);

impl Reading {
    /// Of a watch that has not begun.
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Notes what a watch sees: it has to come after the cache.
    pub(super) fn noted<K>(&self) -> impl FnMut(&watcher::Event<K>) + Send + use<K> {
        let read = Arc::clone(&self.0);
        move |event| match event {
            watcher::Event::Init => drop(read.send_replace(false)),
            watcher::Event::InitDone => drop(read.send_replace(true)),
            watcher::Event::Apply(_) | watcher::Event::InitApply(_) | watcher::Event::Delete(_) => {}
        }
    }
}

/// Longest time until an object is looked at again: timers take no more than two years.
const LONGEST: Duration = Duration::from_hours(30 * 24);

/// When an object is looked at again of which even the error could not be met.
const AFTER_PANIC: Duration = Duration::from_mins(1);

/// Which objects are due, and which have a pass.
#[derive(Debug)]
struct Due<T: Clone + Eq + Hash> {
    at_work: HashSet<T>,
    /// What became due meanwhile; or before anything could begin.
    waiting: HashSet<T>,
    later: DelayQueue<T>,
    keys: HashMap<T, delay_queue::Key>,
}

impl<T: Clone + Eq + Hash> Due<T> {
    fn new() -> Self {
        Self { at_work: HashSet::new(), waiting: HashSet::new(), later: DelayQueue::new(), keys: HashMap::new() }
    }

    /// An object is due now. Whether its pass begins: it has none, and may.
    fn now(&mut self, object: &T, may_begin: bool) -> bool {
        if let Some(key) = self.keys.remove(object) {
            self.later.remove(&key);
        }
        if !may_begin || self.at_work.contains(object) {
            self.waiting.insert(object.clone());
            return false;
        }
        self.waiting.remove(object);
        self.at_work.insert(object.clone())
    }

    /// A pass ended. Whether another one has been asked for meanwhile.
    fn ended(&mut self, object: &T, next: Action) -> bool {
        self.at_work.remove(object);
        if self.waiting.contains(object) {
            return true;
        }
        if let Action(Some(after)) = next {
            let key = self.later.insert(object.clone(), after.min(LONGEST));
            self.keys.insert(object.clone(), key);
        }
        false
    }

    /// The next object whose time has come; never where there is none.
    async fn next(&mut self) -> T {
        loop {
            match self.later.next().await {
                Some(expired) => {
                    let object = expired.into_inner();
                    self.keys.remove(&object);
                    return object;
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Forgets what is due: nothing begins any more.
    fn end(&mut self) {
        self.waiting.clear();
        self.later.clear();
        self.keys.clear();
    }
}

/// Makes the passes over the objects of a kind.
pub(super) struct Controller<K, C>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    /// The objects as last seen.
    pub(super) store: Store<K>,
    /// Whether these are all there are.
    pub(super) reading: Reading,
    /// What passes share.
    pub(super) ctx: Arc<C>,
    /// What is done with an error that ended a pass.
    pub(super) on_error: fn(&K, &Error, &C) -> Action,
    /// Ends it: no pass begins any more.
    pub(super) intake: CancellationToken,
    /// Ends the passes that are under way then.
    pub(super) cancel: CancellationToken,
}

impl<K, C> Controller<K, C>
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    C: Send + Sync + 'static,
{
    /// Makes passes over what changes and what is told, until the intake ends and the passes that have begun are done, or cancelled:
    /// none of them does anything any more when it returns. Dropped before, it ends them.
    pub(super) async fn run<P, F>(
        self,
        changes: impl Stream<Item = Result<K, watcher::Error>> + Send,
        told: impl Stream<Item = ObjectRef<K>> + Send,
        pass: P,
    ) where
        P: Fn(Arc<K>, Arc<C>) -> F,
        F: Future<Output = Result<Action, Error>> + Send + 'static,
    {
        // What the API server does not answer is asked again by the watch itself.
        let changes = changes.filter_map(|change| async { change.ok().map(|object| ObjectRef::from_obj(&object)) });
        let (mut changes, mut told) = (std::pin::pin!(changes), std::pin::pin!(told));
        let mut read = self.reading.0.subscribe();
        let (mut due, mut tasks) = (Due::new(), JoinSet::new());
        let mut was_read = false;
        loop {
            let is_read = *read.borrow();
            was_read |= is_read;
            let mut may_begin = was_read;
            let begins: Vec<ObjectRef<K>> = tokio::select! {
                () = self.intake.cancelled() => break,
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => match ended {
                    Ok((object, next)) => due.ended(&object, next).then_some(object).into_iter().collect(),
                    // Passes are caught: none ends otherwise while the runtime lasts.
                    Err(_) => Vec::new(),
                },
                changed = read.changed() => match changed {
                    Ok(()) => {
                        may_begin = *read.borrow();
                        due.waiting.iter().cloned().collect()
                    }
                    Err(_) => break,
                },
                object = due.next() => vec![object],
                Some(object) = told.next() => vec![object],
                Some(object) = changes.next() => {
                    // The cache does not have it while the watch reads all there is. What else is due goes by what was there.
                    may_begin = *read.borrow();
                    vec![object]
                }
            };
            if self.intake.is_cancelled() {
                break;
            }
            for object in begins.into_iter().filter(|object| due.now(object, may_begin)).collect::<Vec<_>>() {
                self.begin(object, &pass, &mut due, &mut tasks);
            }
        }
        due.end();
        tokio::select! {
            () = async { while tasks.join_next().await.is_some() {} } => {}
            () = self.cancel.cancelled() => tasks.shutdown().await,
        }
    }

    fn begin<P, F>(
        &self,
        place: ObjectRef<K>,
        pass: &P,
        due: &mut Due<ObjectRef<K>>,
        tasks: &mut JoinSet<(ObjectRef<K>, Action)>,
    ) where
        P: Fn(Arc<K>, Arc<C>) -> F,
        F: Future<Output = Result<Action, Error>> + Send + 'static,
    {
        let Some(object) = self.store.get(&place) else {
            // It is gone.
            due.ended(&place, Action::await_change());
            return;
        };
        let (work, ctx, on_error) =
            (pass(Arc::clone(&object), Arc::clone(&self.ctx)), Arc::clone(&self.ctx), self.on_error);
        tasks.spawn(async move {
            let ended = AssertUnwindSafe(work).catch_unwind().await.unwrap_or(Err(Error::Panicked));
            let failed = |error| std::panic::catch_unwind(AssertUnwindSafe(|| on_error(&object, &error, &ctx)));
            let next = ended.unwrap_or_else(|error| failed(error).unwrap_or(Action::requeue(AFTER_PANIC)));
            (place, next)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use futures::channel::mpsc::{self, UnboundedSender};
    use futures::future::BoxFuture;
    use futures::stream;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;
    use kube::runtime::reflector;
    use kube::runtime::reflector::store::Writer;
    use kube::runtime::watcher::Event;
    use tokio::time::Instant;

    use super::*;

    fn object(name: &str, data: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.data = Some([("data".to_owned(), data.to_owned())].into());
        object
    }

    /// What a pass was over, and when it began, in seconds.
    type Passes = Arc<Mutex<Vec<(String, u64)>>>;

    /// A watch that is played, and the controller of it.
    struct Played {
        writer: Writer<ConfigMap>,
        reading: Reading,
        changes: UnboundedSender<Result<ConfigMap, watcher::Error>>,
        intake: CancellationToken,
        cancel: CancellationToken,
        passes: Passes,
        begin: Instant,
        run: tokio::task::JoinHandle<()>,
    }

    /// Each pass takes what `pass` takes.
    fn played(pass: fn(Arc<ConfigMap>) -> BoxFuture<'static, Result<Action, Error>>) -> Played {
        let (store, writer) = reflector::store();
        let (reading, intake, cancel) = (Reading::new(), CancellationToken::new(), CancellationToken::new());
        let (passes, begin) = (Passes::default(), Instant::now());
        let on_error = |_: &ConfigMap, _: &Error, _: &Passes| Action::requeue(Duration::from_secs(100));
        let controller = Controller {
            store,
            reading: reading.clone(),
            ctx: Arc::new(Arc::clone(&passes)),
            on_error,
            intake: intake.clone(),
            cancel: cancel.clone(),
        };
        let (changes, changed) = mpsc::unbounded();
        let counted = move |object: Arc<ConfigMap>, passes: Arc<Passes>| {
            let data = object.data.clone().unwrap_or_default().remove("data").unwrap_or_default();
            let at = begin.elapsed().as_secs();
            passes.lock().unwrap_or_else(PoisonError::into_inner).push((format!("{} {data}", object.name_any()), at));
            pass(object)
        };
        let run = tokio::spawn(controller.run(changed, stream::pending(), counted));
        Played { writer, reading, changes, intake, cancel, passes, begin, run }
    }

    impl Played {
        fn see(&mut self, event: Event<ConfigMap>) {
            self.writer.apply_watcher_event(&event);
            self.reading.noted()(&event);
            if let Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) = event {
                self.changes.unbounded_send(Ok(object)).unwrap();
            }
        }

        fn read(&mut self, all: &[(&str, &str)]) {
            self.see(Event::Init);
            for (name, data) in all {
                self.see(Event::InitApply(object(name, data)));
            }
            self.see(Event::InitDone);
        }

        async fn until(&self, second: u64) {
            tokio::time::sleep_until(self.begin + Duration::from_secs(second)).await;
        }

        fn passes(&self) -> Vec<(String, u64)> {
            let mut passes = self.passes.lock().unwrap().clone();
            passes.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
            passes
        }
    }

    fn expect(played: &Played, expected: &[(&str, u64)]) {
        let passes = played.passes();
        let passes: Vec<(&str, u64)> = passes.iter().map(|(what, at)| (what.as_str(), *at)).collect();
        assert_eq!(passes, expected);
    }

    #[test]
    fn what_comes_sooner_counts() {
        let (never, soon, late) =
            (Action::await_change(), Action::requeue(Duration::from_secs(1)), Action::requeue(Duration::from_secs(2)));
        for (one, other, sooner) in [(never, never, never), (never, late, late), (soon, late, soon), (late, soon, soon)]
        {
            assert_eq!((one.or_sooner(other), other.or_sooner(one)), (sooner, sooner));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_has_one_pass_at_a_time_and_another_for_all_that_happens_meanwhile() {
        let mut played = played(|_| {
            Box::pin(async {
                tokio::time::sleep(Duration::from_secs(10)).await;
                Ok(Action::await_change())
            })
        });
        played.read(&[("a", "1")]);
        for (second, data) in [(3, "2"), (5, "3")] {
            played.until(second).await;
            played.see(Event::Apply(object("a", data)));
        }
        played.see(Event::Apply(object("b", "1")));
        played.until(60).await;
        expect(&played, &[("a 1", 0), ("b 1", 5), ("a 3", 10)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_put_off_comes_at_its_time_or_when_something_happens() {
        let mut played = played(|_| Box::pin(async { Ok(Action::requeue(Duration::from_secs(20))) }));
        played.read(&[("a", "1"), ("b", "1")]);
        played.until(5).await;
        played.see(Event::Apply(object("a", "2")));
        played.until(10).await;
        played.see(Event::Delete(object("b", "1")));
        played.until(39).await;
        expect(&played, &[("a 1", 0), ("b 1", 0), ("a 2", 5), ("a 2", 25)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_watch_tells_while_it_reads_all_there_is_begins_when_it_has() {
        let mut played = played(|_| Box::pin(async { Ok(Action::await_change()) }));
        played.see(Event::Init);
        played.see(Event::InitApply(object("a", "1")));
        played.until(5).await;
        expect(&played, &[]);
        played.see(Event::InitDone);
        played.until(10).await;
        // The watch was cut: what is new is told before the cache has it.
        played.see(Event::Init);
        played.see(Event::InitApply(object("a", "2")));
        played.see(Event::InitApply(object("b", "1")));
        played.until(15).await;
        played.see(Event::InitDone);
        played.until(20).await;
        expect(&played, &[("a 1", 5), ("a 2", 15), ("b 1", 15)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_due_by_time_goes_on_while_a_watch_can_not_read() {
        let mut played = played(|_| Box::pin(async { Ok(Action::requeue(Duration::from_secs(10))) }));
        played.read(&[("a", "1")]);
        played.until(5).await;
        played.see(Event::Init);
        played.until(25).await;
        expect(&played, &[("a 1", 0), ("a 1", 10), ("a 1", 20)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_begun_ends_and_nothing_begins_when_the_intake_ends() {
        let mut played = played(|_| {
            Box::pin(async {
                tokio::time::sleep(Duration::from_secs(10)).await;
                Ok(Action::requeue(Duration::from_secs(1)))
            })
        });
        played.read(&[("a", "1")]);
        played.until(5).await;
        played.intake.cancel();
        played.see(Event::Apply(object("b", "1")));
        (&mut played.run).await.unwrap();
        assert_eq!(played.begin.elapsed().as_secs(), 10);
        expect(&played, &[("a 1", 0)]);
        // And where nothing was read yet.
        let unread = self::played(|_| Box::pin(async { Ok(Action::await_change()) }));
        unread.intake.cancel();
        unread.run.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_when_it_is_cancelled_does_nothing_any_more() {
        let mut played = played(|_| Box::pin(std::future::pending()));
        played.read(&[("a", "1")]);
        played.until(5).await;
        played.intake.cancel();
        played.until(10).await;
        assert!(!played.run.is_finished());
        played.cancel.cancel();
        (&mut played.run).await.unwrap();
        // Nobody holds what the pass held.
        assert_eq!((Arc::strong_count(&played.passes), played.begin.elapsed().as_secs()), (1, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_that_fails_or_panics_is_tried_again_and_others_go_on() {
        let mut played = played(|object| {
            Box::pin(async move {
                match object.name_any().as_str() {
                    "fails" => Err(Error::TimedOut),
                    "panics" => panic!("swordfish"),
                    _ => Ok(Action::requeue(Duration::from_hours(1_000_000))),
                }
            })
        });
        played.read(&[("fails", ""), ("fine", ""), ("panics", "")]);
        played.until(150).await;
        expect(&played, &[("fails ", 0), ("fine ", 0), ("panics ", 0), ("fails ", 100), ("panics ", 100)]);
    }

    /// 50 objects, each due again after 100 ms, with two passes of a second at once.
    #[tokio::test(start_paused = true)]
    async fn nobody_is_passed_twice_while_another_waits() {
        static LINE: std::sync::LazyLock<super::super::turns::Turns> =
            std::sync::LazyLock::new(|| super::super::turns::Turns::new(2, CancellationToken::new()));
        let mut played = played(|_| {
            Box::pin(async {
                let _turn = LINE.next().await;
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(Action::requeue(Duration::from_millis(100)))
            })
        });
        let names: Vec<String> = (0..50).map(|n| format!("object-{n}")).collect();
        played.read(&names.iter().map(|name| (name.as_str(), "")).collect::<Vec<_>>());
        played.until(120).await;
        let mut counts: HashMap<String, usize> = HashMap::new();
        for (what, _) in played.passes() {
            *counts.entry(what).or_default() += 1;
        }
        let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
        assert!(counts.len() == 50 && *least >= 4 && most - least <= 1, "{counts:?}");
    }
}
