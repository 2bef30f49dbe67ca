use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::api::cluster_stack_release::Artifact;

fn place(trust: &str) -> Place {
    let tag = ("docker-scs-1-34-v1".to_owned(), "abc".to_owned());
    let (source, release) = ("git https://x".into(), "docker-scs-1-34-v1".into());
    Place { source, tag, by_revision: false, release, trust: trust.into() }
}

/// Downloads, each of which gives `result`.
struct World {
    downloads: Downloads<Place, Artifact>,
    count: Arc<AtomicUsize>,
    result: Result<Artifact, Trouble>,
    takes: Duration,
}

impl World {
    /// Downloads that take a second.
    fn with(result: Result<Artifact, ErrorClass>) -> Self {
        let result = result.map_err(|class| Trouble::new(class, Reason::FetchFailed, "no"));
        let downloads = Downloads::on(Ground::default());
        Self { downloads, count: Arc::default(), result, takes: Duration::from_secs(1) }
    }

    async fn ask(&self, trust: &str, insists: bool, is_there: bool) -> Result<Artifact, Trouble> {
        self.ask_host("x", trust, insists, is_there).await
    }

    async fn ask_host(&self, host: &str, trust: &str, insists: bool, is_there: bool) -> Result<Artifact, Trouble> {
        let download = || {
            let (count, result, takes) = (Arc::clone(&self.count), self.result.clone(), self.takes);
            async move {
                tokio::time::sleep(takes).await;
                count.fetch_add(1, Ordering::SeqCst);
                result
            }
        };
        let ask = Ask {
            place: place(trust),
            host: host.to_owned(),
            doing: "fetching".to_owned(),
            insists,
            expires: !trust.is_empty(),
            waiter: None,
        };
        self.downloads.once(ask, async |_| is_there, download).await
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn who_asks_meanwhile_shares_the_download_and_its_failure() {
    for result in [Ok(Artifact::default()), Err(ErrorClass::Transient), Err(ErrorClass::Waiting)] {
        let world = World::with(result);
        let all = futures::future::join_all((0..200).map(|_| world.ask("", false, true))).await;
        assert!(all.iter().all(|result| *result == world.result));
        assert_eq!(world.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_known_is_downloaded_again_when_the_store_lost_it() {
    let world = World::with(Ok(Artifact::default()));
    for (is_there, count) in [(true, 1), (true, 1), (false, 2)] {
        world.ask("", false, is_there).await.unwrap();
        assert_eq!(world.count(), count);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_holds_until_somebody_insists_or_an_hour_is_over() {
    let world = World::with(Err(ErrorClass::Invalid));
    for (minutes, insists, count) in [(0, false, 1), (10, false, 1), (0, true, 2), (50, false, 2), (11, false, 3)] {
        tokio::time::advance(Duration::from_mins(minutes)).await;
        world.ask("", insists, true).await.unwrap_err();
        assert_eq!(world.count(), count);
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_go_away_by_itself_is_tried_again() {
    for class in [ErrorClass::Transient, ErrorClass::Waiting, ErrorClass::Bug] {
        let world = World::with(Err(class));
        for count in 1..3 {
            tokio::time::advance(Duration::from_secs(1)).await;
            world.ask("", false, true).await.unwrap_err();
            assert_eq!(world.count(), count);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_signature_holds_for_its_keys_and_an_hour() {
    let world = World::with(Ok(Artifact::default()));
    for (trust, minutes, count) in [("a", 0, 1), ("a", 30, 1), ("b", 0, 2), ("", 0, 3), ("a", 31, 4)] {
        tokio::time::advance(Duration::from_mins(minutes)).await;
        world.ask(trust, false, true).await.unwrap();
        assert_eq!(world.count(), count, "{trust} after {minutes} minutes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_download_is_waited_for_a_while_and_given_to_who_comes_back() {
    let world = World { takes: Duration::from_mins(1), ..World::with(Ok(Artifact::default())) };
    let start = Instant::now();
    for waited in [2, 2, 2] {
        let trouble = world.ask("", false, true).await.unwrap_err();
        assert_eq!((trouble.class, trouble.reason), (ErrorClass::Transient, Reason::Progressing));
        assert_eq!(start.elapsed(), Duration::from_secs(waited));
    }
    tokio::time::sleep(Duration::from_mins(1)).await;
    world.ask("", false, true).await.unwrap();
    assert_eq!(world.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_did_not_wait_for_a_failure_learns_of_it_before_the_next_try() {
    let world = World { takes: Duration::from_mins(1), ..World::with(Err(ErrorClass::Transient)) };
    assert_eq!(world.ask("", false, true).await.unwrap_err().reason, Reason::Progressing);
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(world.ask("", false, true).await.unwrap_err().message, "no");
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(world.count(), 1);
    // The next try: what went wrong the last time is said at once.
    let start = Instant::now();
    assert_eq!(world.ask("", false, true).await.unwrap_err().message, "no");
    assert_eq!(start.elapsed(), Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(world.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn downloads_of_a_dead_host_hold_up_no_others() {
    let slow = World { takes: Duration::from_mins(5), ..World::with(Err(ErrorClass::Transient)) };
    let keys: Vec<String> = (0..40).map(|n| format!("key {n}")).collect();
    let all = futures::future::join_all(keys.iter().map(|key| slow.ask_host("dead", key, false, true))).await;
    assert!(all.iter().all(|result| result.as_ref().is_err_and(|trouble| trouble.reason == Reason::Progressing)));
    let good = World { downloads: slow.downloads, ..World::with(Ok(Artifact::default())) };
    let start = Instant::now();
    good.ask_host("good", "", false, true).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}
