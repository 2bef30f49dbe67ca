//! One poll per source and interval, however many ask.
//!
//! Guarantees: of callers that ask for the same source at the same time, one lists and all get its result; a listing
//! that is young enough is given without asking; a failure is given for a while that grows with each failure in a row,
//! so that many who try again don't hammer what is down, and leaves the last good listing where it was. Nobody waits
//! longer for a source that is back than its own interval; but a server that says when it may be asked again is not asked
//! before, whoever insists.
//!
//! A list runs in a task of its own. Who asks waits for it for as long as a pass waits, and not at all where the last one took
//! longer than that; whoever is not answered by then gets the last failure, else the last listing, else
//! [`SourceError::UnderWay`], and is told when the list ends. How many lists run at once is bounded, in all and per host;
//! those of sources that are slow or silent have places of their own ([`Room`]).
//!
//! Caveats: a list ends with the token of who asked first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::flights::{Flights, Ground, LONGEST, Waiter};
use super::room::{Guest, Pace, Room, Sizes};
use super::{Listing, Source, SourceError};
use crate::io::traces;

/// For how long a source that nobody asks for is remembered.
const FORGET: Duration = Duration::from_hours(24);
/// For how long the first failure answers for the source, unless a caller insists.
const FAILED: Duration = Duration::from_secs(2);
/// For how long a failure after many does.
const FAILED_LONGEST: Duration = Duration::from_mins(5);

/// Lists at once.
const ROOM: Sizes = Sizes { quick: 16, slow: 8, silent: 4, per_host: 4 };

/// A listing and when it was made.
#[derive(Clone, Debug)]
pub struct Polled {
    /// What the source offered.
    pub listing: Arc<Listing>,
    /// When it was asked.
    pub at: Instant,
    /// Where the trace of what comes of it begins, if there is one.
    pub trace: Option<Arc<str>>,
}

/// How old a listing may be.
#[derive(Clone, Copy, Debug)]
pub struct Age {
    /// So old; zero asks the source in any case.
    pub max: Duration,
    /// Or as old as this, where somebody asked for it then.
    pub since: Option<Instant>,
}

impl From<Duration> for Age {
    fn from(max: Duration) -> Self {
        Self { max, since: None }
    }
}

/// The last attempt, if it failed.
#[derive(Debug)]
struct Failed {
    error: SourceError,
    /// When it ended.
    at: Instant,
    /// How many there were in a row.
    times: u32,
    /// For how long it answers.
    pause: Duration,
}

impl Failed {
    fn after(before: Option<&Self>, error: SourceError) -> Self {
        let times = before.map_or(0, |failed| failed.times).saturating_add(1);
        let longest = FAILED.saturating_mul(2_u32.saturating_pow((times - 1).min(16))).min(FAILED_LONGEST);
        // Spread, so that replicas and sources that failed together don't return together.
        let pause = longest.mul_f64(0.75 + 0.25 * rand::random::<f64>());
        Self { error, at: Instant::now(), times, pause }
    }
}

/// What is known of one source.
#[derive(Debug, Default)]
struct Known {
    good: Option<Polled>,
    failed: Option<Failed>,
    /// How the last list went.
    pace: Pace,
    /// A list has its place, and the source is asked.
    is_asked: bool,
}

/// Says that the source is asked, until it is dropped.
struct Asked<'a>(&'a Mutex<Known>);

impl<'a> Asked<'a> {
    fn of(known: &'a Mutex<Known>) -> Self {
        lock(known).is_asked = true;
        Self(known)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        lock(self.0).is_asked = false;
    }
}

#[derive(Debug, Default)]
struct Entry {
    known: Mutex<Known>,
    /// Lists that were started.
    polls: std::sync::atomic::AtomicU64,
}

/// Lists sources and remembers what they offered.
#[derive(Debug)]
pub struct Poller {
    entries: Mutex<Entries>,
    flights: Flights<String>,
    room: Arc<Room>,
    counts: Counts,
}

impl Default for Poller {
    fn default() -> Self {
        Self::counting(Counter::default(), Counter::default())
    }
}

/// Lists that the source answered, and those that failed.
#[derive(Clone, Debug)]
struct Counts {
    listed: Counter,
    failed: Counter,
}

/// By the source's key, with when it was last asked for.
type Entries = HashMap<String, (Arc<Entry>, Instant)>;

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // What is behind these locks is whole after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Poller {
    /// A poller that knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that counts its lists: those that the source answered, and those that failed.
    pub fn counting(listed: Counter, failed: Counter) -> Self {
        Self {
            entries: Mutex::default(),
            flights: Flights::on(Ground::default()),
            room: Arc::new(Room::new(ROOM)),
            counts: Counts { listed, failed },
        }
    }

    /// The same, whose lists run on `ground`.
    #[must_use]
    pub fn on(self, ground: Ground) -> Self {
        Self { flights: Flights::on(ground), ..self }
    }

    /// What `source` offers, not older than `age` if it answers in time; zero shares a list only with those that insisted before it
    /// started. `waiter` is told when it answers later.
    ///
    /// # Errors
    /// What went wrong, or that it did not answer yet.
    pub async fn poll(
        &self,
        source: Arc<dyn Source>,
        age: impl Into<Age> + Send,
        waiter: Option<&Waiter>,
        cancel: &CancellationToken,
    ) -> Result<Polled, SourceError> {
        let (key, age) = (source.key(), age.into());
        let entry = self.entry(&key);
        // The key is for us.
        let shown = || Some(source.host()).filter(|host| !host.is_empty()).unwrap_or_else(|| key.clone());
        let asked = Instant::now();
        let mut known = entry.young(asked, age);
        // A list that began before, an own one, and one that somebody else called off.
        for _ in 0..3 {
            if let Some(result) = known {
                return result;
            }
            let pace = lock(&entry.known).pace;
            let list = || {
                let (entry, source, room) = (Arc::clone(&entry), Arc::clone(&source), Arc::clone(&self.room));
                let (counts, cancel, host) = (self.counts.clone(), cancel.clone(), source.host());
                let tenant = waiter.map_or("", Waiter::namespace).to_owned();
                async move {
                    tokio::select! {
                        () = cancel.cancelled() => {}
                        () = room.run(Guest { tenant: &tenant, host: &host }, pace, entry.list(source.as_ref(), &counts, &cancel)) => {}
                    }
                }
            };
            tokio::select! {
                biased;
                () = cancel.cancelled() => {
                    return Err(SourceError::Cancelled { action: "waiting for the list of", url: key });
                }
                ended = self.flights.join(key.clone(), pace.patience(), waiter, list) => if !ended {
                    return entry.meanwhile(shown());
                }
            }
            // What was found out while this one waited; a list that began before it is not enough for who insists.
            known = entry.since(asked).or_else(|| entry.young(Instant::now(), age));
        }
        known.unwrap_or_else(|| entry.meanwhile(shown()))
    }

    /// The last good listing, however old; also while the source fails.
    pub fn last_good(&self, source: &dyn Source) -> Option<Polled> {
        let entry = self.entry(&source.key());
        let known = lock(&entry.known);
        known.good.clone()
    }

    /// Whether `source` said something to a list that began at `since` or later, or failed after that; or says when it may be asked.
    pub fn has_answered(&self, source: &dyn Source, since: Instant) -> bool {
        let entry = self.entry(&source.key());
        let known = lock(&entry.known);
        let is_limited = |failed: &Failed| matches!(failed.error, SourceError::RateLimited { after, .. } if failed.at.elapsed() < after);
        known.good.as_ref().is_some_and(|polled| polled.at >= since)
            || known.failed.as_ref().is_some_and(|failed| failed.at >= since || is_limited(failed))
    }

    /// How many lists of `source` were started.
    pub fn polls(&self, source: &dyn Source) -> u64 {
        self.entry(&source.key()).polls.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn entry(&self, key: &str) -> Arc<Entry> {
        let now = Instant::now();
        let mut entries = lock(&self.entries);
        entries.retain(|_, (entry, used)| Arc::strong_count(entry) > 1 || now - *used < FORGET);
        let (entry, used) = entries.entry(key.to_owned()).or_insert_with(|| (Arc::default(), now));
        *used = now;
        Arc::clone(entry)
    }
}

impl Entry {
    /// Lists the source, and remembers what came of it.
    #[tracing::instrument(name = "poll", skip_all, fields(server.address = source.host(), otel.kind = "client", otel.status_code))]
    async fn list(&self, source: &dyn Source, counts: &Counts, cancel: &CancellationToken) {
        self.polls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let at = Instant::now();
        let _asked = Asked::of(&self.known);
        let result = tokio::time::timeout(LONGEST, source.list(cancel)).await;
        let result = result
            .unwrap_or_else(|_| Err(SourceError::TimedOut { action: "listing", url: source.key(), after: LONGEST }));
        let mut known = lock(&self.known);
        let pace = Pace::of(at.elapsed(), result.is_err());
        match result {
            Ok(listing) => {
                // The listing that is known already, if nothing changed: memory is shared.
                let listing = match &known.good {
                    Some(good) if *good.listing == listing => Arc::clone(&good.listing),
                    _ => Arc::new(listing),
                };
                known.good = Some(Polled { listing, at, trace: traces::place().map(Arc::from) });
                known.failed = None;
                known.pace = pace;
                counts.listed.inc();
            }
            // Called off by the one who asked: nothing is known by it.
            Err(SourceError::Cancelled { .. }) => {}
            Err(error) => {
                Span::current().record("otel.status_code", "ERROR");
                known.failed = Some(Failed::after(known.failed.as_ref(), error));
                known.pace = pace;
                counts.failed.inc();
            }
        }
    }

    /// What is said while the source is listed.
    fn meanwhile(&self, url: String) -> Result<Polled, SourceError> {
        let known = lock(&self.known);
        match (&known.failed, &known.good) {
            (Some(failed), _) => Err(failed.error.clone()),
            (None, Some(good)) => Ok(good.clone()),
            (None, None) if known.is_asked => Err(SourceError::UnderWay { url }),
            (None, None) => Err(SourceError::InLine { url }),
        }
    }

    fn young(&self, now: Instant, age: Age) -> Option<Result<Polled, SourceError>> {
        let known = lock(&self.known);
        let is_since = |at: Instant| age.since.is_some_and(|since| at >= since);
        let is_young = |at: Instant| now.saturating_duration_since(at) < age.max || is_since(at);
        let good = known.good.clone().filter(|polled| is_young(polled.at));
        let Some(failed) = &known.failed else { return good.map(Ok) };
        let since = now.saturating_duration_since(failed.at);
        if let SourceError::RateLimited { url, problem, after } = &failed.error
            && let Some(after) = after.checked_sub(since).filter(|left| !left.is_zero())
        {
            // What is young enough needs no asking.
            let limited = SourceError::RateLimited { url: url.clone(), problem: problem.clone(), after };
            return Some(good.ok_or(limited));
        }
        (since < age.max.min(failed.pause) || is_since(failed.at)).then(|| Err(failed.error.clone()))
    }

    /// What was found out by a list that started at `asked` or later, or failed since then.
    fn since(&self, asked: Instant) -> Option<Result<Polled, SourceError>> {
        let known = lock(&self.known);
        if let Some(failed) = known.failed.as_ref().filter(|failed| failed.at >= asked) {
            return Some(Err(failed.error.clone()));
        }
        known.good.clone().filter(|polled| polled.at >= asked).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use async_trait::async_trait;

    use super::super::flights::PATIENCE;
    use super::super::{Fetched, Tag, Wanted};
    use super::*;

    /// A source whose lists take a second and count up.
    #[derive(Default)]
    struct Slow {
        lists: AtomicU64,
        down: AtomicBool,
        limited: AtomicBool,
    }

    fn limited(after: Duration) -> SourceError {
        SourceError::RateLimited { url: "x".into(), problem: "enough".into(), after }
    }

    fn down() -> SourceError {
        SourceError::Unreachable { action: "listing", url: "x".into(), problem: "down".into() }
    }

    #[async_trait]
    impl Source for Slow {
        fn key(&self) -> String {
            "slow".to_owned()
        }

        fn host(&self) -> String {
            "good".to_owned()
        }

        async fn list(&self, _: &CancellationToken) -> Result<Listing, SourceError> {
            let revision = self.lists.fetch_add(1, Ordering::SeqCst).to_string();
            tokio::time::sleep(Duration::from_secs(1)).await;
            if self.down.load(Ordering::SeqCst) {
                return Err(down());
            }
            if self.limited.load(Ordering::SeqCst) {
                return Err(limited(Duration::from_mins(10)));
            }
            Ok(Listing::new(vec![Tag { name: "v".to_owned(), revision }]))
        }

        async fn fetch(&self, _: &Wanted<'_>, _: &CancellationToken) -> Result<Fetched, SourceError> {
            Err(down())
        }
    }

    const AGE: Duration = Duration::from_mins(5);

    fn revision(polled: &Polled) -> &str {
        &polled.listing.tags[0].revision
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_callers_share_one_list_per_interval() {
        let (poller, source, cancel) = (Poller::new(), Arc::new(Slow::default()), CancellationToken::new());
        for round in 1..=3 {
            let all =
                futures::future::join_all((0..100).map(|_| poller.poll(source.clone(), AGE, None, &cancel))).await;
            assert!(all.iter().all(|polled| revision(polled.as_ref().unwrap()) == (round - 1).to_string()));
            assert_eq!(poller.polls(&*source), round);
            tokio::time::advance(AGE).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_joins_a_list_under_way_shares_it() {
        let (poller, source, cancel) = (Poller::new(), Arc::new(Slow::default()), CancellationToken::new());
        let late = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            poller.poll(source.clone(), AGE, None, &cancel).await
        };
        let (first, late) = tokio::join!(poller.poll(source.clone(), AGE, None, &cancel), late);
        assert_eq!(first.unwrap().at, late.unwrap().at);
        assert_eq!(poller.polls(&*source), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_insists_gets_a_new_list() {
        let (poller, source, cancel) = (Poller::new(), Arc::new(Slow::default()), CancellationToken::new());
        poller.poll(source.clone(), AGE, None, &cancel).await.unwrap();
        assert_eq!(revision(&poller.poll(source.clone(), Duration::ZERO, None, &cancel).await.unwrap()), "1");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_shared_and_leaves_the_last_good_list() {
        let (poller, source, cancel) = (Poller::new(), Arc::new(Slow::default()), CancellationToken::new());
        assert!(poller.last_good(&*source).is_none());
        poller.poll(source.clone(), AGE, None, &cancel).await.unwrap();
        tokio::time::advance(AGE).await;
        source.down.store(true, Ordering::SeqCst);
        let all = futures::future::join_all((0..100).map(|_| poller.poll(source.clone(), AGE, None, &cancel))).await;
        assert!(all.iter().all(|result| result.as_ref().is_err_and(|error| *error == down())));
        poller.poll(source.clone(), AGE, None, &cancel).await.unwrap_err();
        assert_eq!(poller.polls(&*source), 2);
        assert_eq!(revision(&poller.last_good(&*source).unwrap()), "0");
        tokio::time::advance(FAILED).await;
        source.down.store(false, Ordering::SeqCst);
        assert_eq!(revision(&poller.poll(source.clone(), AGE, None, &cancel).await.unwrap()), "2");
    }

    #[tokio::test(start_paused = true)]
    async fn who_tries_again_and_again_asks_less_and_less_often() {
        let (poller, source, cancel) = (Poller::new(), Arc::new(Slow::default()), CancellationToken::new());
        source.down.store(true, Ordering::SeqCst);
        let mut per_hour = Vec::new();
        for _ in 0..2 {
            let before = poller.polls(&*source);
            let end = Instant::now() + Duration::from_hours(1);
            while Instant::now() < end {
                poller.poll(source.clone(), Duration::from_hours(1), None, &cancel).await.unwrap_err();
                tokio::time::advance(Duration::from_millis(500)).await;
            }
            per_hour.push(poller.polls(&*source) - before);
        }
        // Eight on the way to five minutes, then one in at most five and at least four minutes less a bit.
        assert!((17..=24).contains(&per_hour[0]) && (11..=16).contains(&per_hour[1]), "{per_hour:?}");
        // A source with a short interval is not left for longer than that.
        let before = poller.polls(&*source);
        tokio::time::advance(Duration::from_secs(10)).await;
        poller.poll(source.clone(), Duration::from_secs(10), None, &cancel).await.unwrap_err();
        assert_eq!(poller.polls(&*source), before + 1);
        // And forgets its failures when it is back.
        for down in [false, true] {
            source.down.store(down, Ordering::SeqCst);
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_eq!(poller.poll(source.clone(), Duration::ZERO, None, &cancel).await.is_err(), down);
        }
        tokio::time::advance(FAILED).await;
        let before = poller.polls(&*source);
        poller.poll(source.clone(), AGE, None, &cancel).await.unwrap_err();
        assert_eq!(poller.polls(&*source), before + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_wants_to_be_left_alone_is_not_asked_by_anybody() {
        let (poller, source, cancel) = (Poller::new(), Arc::new(Slow::default()), CancellationToken::new());
        source.limited.store(true, Ordering::SeqCst);
        poller.poll(source.clone(), AGE, None, &cancel).await.unwrap_err();
        source.limited.store(false, Ordering::SeqCst);
        for max_age in [AGE, Duration::ZERO, AGE] {
            tokio::time::advance(Duration::from_mins(3)).await;
            let error = poller.poll(source.clone(), max_age, None, &cancel).await.unwrap_err();
            assert!(
                matches!(error, SourceError::RateLimited { after, .. } if after < Duration::from_mins(8)),
                "{error:?}"
            );
        }
        assert_eq!(poller.polls(&*source), 1);
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(revision(&poller.poll(source.clone(), Duration::ZERO, None, &cancel).await.unwrap()), "1");

        // Who asks for no more than what is known gets it in the meantime.
        source.limited.store(true, Ordering::SeqCst);
        poller.poll(source.clone(), Duration::ZERO, None, &cancel).await.unwrap_err();
        assert_eq!(revision(&poller.poll(source.clone(), AGE, None, &cancel).await.unwrap()), "1");
        assert_eq!(poller.polls(&*source), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_leaves_its_list_to_the_next() {
        let (poller, source, cancel) = (Poller::new(), Arc::new(Slow::default()), CancellationToken::new());
        let gone = tokio::time::timeout(Duration::from_millis(100), poller.poll(source.clone(), AGE, None, &cancel));
        let (gone, next) = tokio::join!(gone, poller.poll(source.clone(), AGE, None, &cancel));
        assert!(gone.is_err());
        assert_eq!(revision(&next.unwrap()), "0");
        assert_eq!(poller.polls(&*source), 1);
    }

    /// Sources of one host that say nothing for a while, and then fail or answer.
    struct Silent(&'static str, u64, bool);

    #[async_trait]
    impl Source for Silent {
        fn key(&self) -> String {
            format!("{}/{}", self.0, self.1)
        }

        fn host(&self) -> String {
            self.0.to_owned()
        }

        async fn list(&self, _: &CancellationToken) -> Result<Listing, SourceError> {
            tokio::time::sleep(Duration::from_secs(20)).await;
            if self.2 { Ok(Listing::new(Vec::new())) } else { Err(down()) }
        }

        async fn fetch(&self, _: &Wanted<'_>, _: &CancellationToken) -> Result<Fetched, SourceError> {
            Err(down())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silent_sources_hold_up_nobody() {
        let (poller, good, cancel) = (Poller::new(), Arc::new(Slow::default()), CancellationToken::new());
        let start = Instant::now();
        let silent: Vec<_> = (0..40).map(|n| Arc::new(Silent("dead", n, false))).collect();
        let ask = || silent.iter().map(|source| poller.poll(source.clone(), AGE, None, &cancel));
        let results = futures::future::join_all(ask()).await;
        // Who has no place yet is not said to be silent.
        assert!(results[..4].iter().all(|result| matches!(result, Err(SourceError::UnderWay { .. }))), "{results:?}");
        assert!(results[4..].iter().all(|result| matches!(result, Err(SourceError::InLine { .. }))), "{results:?}");
        assert_eq!(start.elapsed(), PATIENCE);
        poller.poll(good.clone(), AGE, None, &cancel).await.unwrap();
        assert_eq!(start.elapsed(), PATIENCE + Duration::from_secs(1));
        // All of them had their turn, four at a time; then nobody waits for them any more.
        tokio::time::sleep(Duration::from_secs(200)).await;
        for source in &silent {
            assert_eq!(poller.polls(source.as_ref()), 1);
        }
        let start = Instant::now();
        for result in futures::future::join_all(ask()).await {
            assert_eq!(result.unwrap_err(), down());
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn many_dead_hosts_hold_up_others_once() {
        let (poller, good, cancel) = (Poller::new(), Arc::new(Slow::default()), CancellationToken::new());
        let silent: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h"]
            .into_iter()
            .flat_map(|host| (0..4).map(move |n| Arc::new(Silent(host, n, false))))
            .collect();
        for wait in [90, 2] {
            let ask = silent.iter().map(|source| poller.poll(source.clone(), Duration::ZERO, None, &cancel));
            futures::future::join_all(ask).await;
            tokio::time::sleep(Duration::from_secs(wait)).await;
        }
        assert_eq!(silent.iter().map(|source| poller.polls(source.as_ref())).sum::<u64>(), 32 + 4);
        let start = Instant::now();
        poller.poll(good.clone(), AGE, None, &cancel).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn sources_that_answer_late_hold_up_their_like() {
        let (poller, good, cancel) = (Poller::new(), Arc::new(Slow::default()), CancellationToken::new());
        let slow: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h"]
            .into_iter()
            .flat_map(|host| (0..4).map(move |n| Arc::new(Silent(host, n, true))))
            .collect();
        let ask =
            || futures::future::join_all(slow.iter().map(|source| poller.poll(source.clone(), AGE, None, &cancel)));
        // All that were never asked share the places; the first of them give theirs back.
        ask().await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(slow.iter().map(|source| poller.polls(source.as_ref())).sum::<u64>(), 32);
        tokio::time::advance(AGE).await;
        // Known as slow, they are not waited for, and what they said before stands.
        let start = Instant::now();
        assert!(ask().await.iter().all(Result::is_ok));
        assert_eq!(start.elapsed(), Duration::ZERO);
        poller.poll(good.clone(), AGE, None, &cancel).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        assert_eq!(slow.iter().map(|source| poller.polls(source.as_ref())).sum::<u64>(), 32 + 8);
    }

    #[tokio::test(start_paused = true)]
    async fn who_did_not_wait_is_told_and_has_what_was_known_until_then() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let ground = Ground { tell: Arc::new(move |who| lock(&tell).push(who)), ..Ground::default() };
        let (poller, cancel) = (Poller::new().on(ground), CancellationToken::new());
        let source = Arc::new(Silent("slow", 0, true));
        let who = Waiter::Stack(kube::runtime::reflector::ObjectRef::new("x").within("n"));
        let first = poller.poll(source.clone(), AGE, Some(&who), &cancel).await;
        assert!(matches!(first, Err(SourceError::UnderWay { .. })), "{first:?}");
        assert!(lock(&told).is_empty());
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(std::mem::take(&mut *lock(&told)), std::slice::from_ref(&who));
        let second = poller.poll(source.clone(), AGE, Some(&who), &cancel).await.unwrap();
        assert_eq!(poller.polls(source.as_ref()), 1);
        // The next time it is slow, nothing changes until it answered.
        tokio::time::advance(AGE).await;
        let third = poller.poll(source.clone(), AGE, Some(&who), &cancel).await.unwrap();
        assert_eq!(third.at, second.at);
        tokio::time::sleep(Duration::from_secs(21)).await;
        assert_eq!(lock(&told).len(), 1);
        assert!(poller.poll(source, AGE, Some(&who), &cancel).await.unwrap().at > second.at);
    }

    #[tokio::test(start_paused = true)]
    async fn who_asked_a_slow_source_is_content_with_what_it_said_since() {
        let (poller, cancel) = (Poller::new(), CancellationToken::new());
        let source = Arc::new(Silent("slow", 0, true));
        let poll = |age: Age| poller.poll(source.clone(), age, None, &cancel);
        let first = Instant::now();
        assert!(poll(AGE.into()).await.is_err());
        assert!(!poller.has_answered(source.as_ref(), first));
        tokio::time::sleep(Duration::from_secs(20)).await;
        poll(AGE.into()).await.unwrap();
        assert!(poller.has_answered(source.as_ref(), first));
        let since = Instant::now();
        let age = Age { max: Duration::ZERO, since: Some(since) };
        let known = poll(age).await.unwrap();
        assert!(!poller.has_answered(source.as_ref(), since), "what is known is older than what is asked for");
        tokio::time::sleep(Duration::from_secs(21)).await;
        let answered = poll(age).await.unwrap();
        assert!(answered.at > known.at && poller.has_answered(source.as_ref(), since));
        assert_eq!(poller.polls(source.as_ref()), 2, "one list for all who asked since then");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_when_it_is_cancelled() {
        let (poller, source, cancel) = (Poller::new(), Arc::new(Slow::default()), CancellationToken::new());
        let other = CancellationToken::new();
        let waiting = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            other.cancel();
        };
        let (first, second, ()) = tokio::join!(
            poller.poll(source.clone(), AGE, None, &cancel),
            poller.poll(source.clone(), AGE, None, &other),
            waiting
        );
        first.unwrap();
        assert!(matches!(second, Err(SourceError::Cancelled { .. })));
    }
}
