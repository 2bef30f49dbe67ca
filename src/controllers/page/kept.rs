//! Pages that were just made: many who look at the same one have it made once.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use tokio::time::Instant;

/// Pages that are kept; more are made anew.
const MOST: usize = 16;

/// The pages, the latest last.
pub(super) struct Kept {
    fresh: Duration,
    pages: Mutex<Vec<(String, Instant, Bytes)>>,
}

impl Kept {
    /// None yet; each is kept for `fresh`.
    pub(super) fn new(fresh: Duration) -> Self {
        Self { fresh, pages: Mutex::default() }
    }

    /// A page that was just made.
    pub(super) fn get(&self, key: &str) -> Option<Bytes> {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let found = pages.iter().find(|(of, made, _)| of == key && made.elapsed() < self.fresh);
        found.map(|(_, _, page)| page.clone())
    }

    /// Keeps a page, and gives it back.
    pub(super) fn put(&self, key: String, page: Bytes) -> Bytes {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|(of, made, _)| *of != key && made.elapsed() < self.fresh);
        if pages.len() >= MOST {
            pages.remove(0);
        }
        pages.push((key, Instant::now(), page.clone()));
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_page_is_kept_for_a_while_and_there_are_few() {
        let kept = Kept::new(Duration::from_secs(2));
        kept.put("a".into(), "1".into());
        assert_eq!((kept.get("a"), kept.get("b")), (Some("1".into()), None));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(kept.get("a"), None);
        for n in 0..100 {
            kept.put(n.to_string(), "x".into());
        }
        assert_eq!(kept.pages.lock().unwrap().len(), MOST);
        assert_eq!([kept.get("0"), kept.get("99")], [None, Some("x".into())]);
    }
}
