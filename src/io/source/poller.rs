//! One poll per source and interval, however many ask.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Listing, Source, SourceError};

/// How long a failure answers for everybody who asks.
const FAILURE: Duration = Duration::from_secs(2);
/// Sources that nobody asked for this long are forgotten.
const IDLE: Duration = Duration::from_hours(2);

type Slot = Arc<tokio::sync::Mutex<Last>>;

#[derive(Default)]
struct Last {
    listing: Option<(Arc<Listing>, Instant)>,
    failure: Option<(SourceError, Instant)>,
}

/// Remembers the last listing of each source.
#[derive(Default)]
pub struct Poller(Mutex<HashMap<String, (Slot, Instant)>>);

impl Poller {
    /// The source's listing, not older than `max_age`. Whoever asks while it is being read waits for that reading.
    ///
    /// # Errors
    /// Why the source could not be read; for a moment the same answer for all.
    pub async fn list(
        &self,
        source: &dyn Source,
        max_age: Duration,
        cancel: &CancellationToken,
    ) -> Result<Arc<Listing>, SourceError> {
        let asked = Instant::now();
        let slot = self.slot(&source.key());
        let mut last = slot.lock().await;
        if let Some((listing, at)) = &last.listing {
            // A reading that began after we asked is fresh enough for any age.
            if at.elapsed() <= max_age || *at >= asked {
                return Ok(Arc::clone(listing));
            }
        }
        if let Some((error, at)) = &last.failure
            && at.elapsed() < FAILURE
        {
            return Err(error.clone());
        }
        let began = Instant::now();
        match source.list(cancel).await {
            Ok(listing) => {
                let listing = Arc::new(listing);
                *last = Last { listing: Some((Arc::clone(&listing), began)), failure: None };
                Ok(listing)
            }
            Err(error) => {
                last.failure = Some((error.clone(), Instant::now()));
                Err(error)
            }
        }
    }

    fn slot(&self, key: &str) -> Slot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        slots.retain(|_, (_, used)| now.duration_since(*used) < IDLE);
        let (slot, used) = slots.entry(key.to_owned()).or_insert_with(|| (Slot::default(), now));
        *used = now;
        Arc::clone(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::name::ReleaseName;
    use crate::io::source::{Fetched, Tag};
    use async_trait::async_trait;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Counting {
        lists: AtomicUsize,
        fails: bool,
    }

    #[async_trait]
    impl Source for Counting {
        fn key(&self) -> String {
            "one".into()
        }

        async fn list(&self, _: &CancellationToken) -> Result<Listing, SourceError> {
            self.lists.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).await;
            if self.fails { Err(SourceError::Cancelled) } else { Ok(Listing::default()) }
        }

        async fn fetch(&self, _: &Tag, _: &ReleaseName, _: &CancellationToken) -> Result<Fetched, SourceError> {
            Err(SourceError::Cancelled)
        }
    }

    async fn ask(poller: &Poller, source: &Counting, times: usize, max_age: u64) {
        let cancel = CancellationToken::new();
        let asks = (0..times).map(|_| poller.list(source, Duration::from_secs(max_age), &cancel));
        futures::future::join_all(asks).await;
    }

    #[tokio::test(start_paused = true)]
    async fn two_hundred_that_ask_at_once_cost_one_poll() {
        let (poller, source) = (Poller::default(), Counting::default());
        ask(&poller, &source, 200, 300).await;
        assert_eq!(source.lists.load(Ordering::SeqCst), 1);
        tokio::time::advance(Duration::from_secs(299)).await;
        ask(&poller, &source, 200, 300).await;
        assert_eq!(source.lists.load(Ordering::SeqCst), 1);
        tokio::time::advance(Duration::from_secs(2)).await;
        ask(&poller, &source, 200, 300).await;
        assert_eq!(source.lists.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_source_is_asked_once_in_a_while() {
        let (poller, source) = (Poller::default(), Counting { fails: true, ..Counting::default() });
        ask(&poller, &source, 200, 300).await;
        assert_eq!(source.lists.load(Ordering::SeqCst), 1);
        tokio::time::advance(FAILURE).await;
        ask(&poller, &source, 1, 300).await;
        assert_eq!(source.lists.load(Ordering::SeqCst), 2);
    }
}
