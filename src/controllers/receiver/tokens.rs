//! Tokens of receivers, read from their Secrets now and then and not for each request: strangers cost the API server
//! nothing.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long a token is believed. A new one counts after that.
pub(in crate::controllers) const LIFE: Duration = Duration::from_secs(5);
/// Secrets that are remembered.
const REMEMBERED: usize = 1024;

/// A token, if there is one, and when it was read.
type Known = Arc<Mutex<Option<(Instant, Option<Vec<u8>>)>>>;

/// Tokens by namespace and name of their Secrets.
#[derive(Default)]
pub(in crate::controllers) struct Tokens(std::sync::Mutex<HashMap<(String, String), Known>>);

impl Tokens {
    /// The token of a Secret, by `read` if it was not read lately. Who asks meanwhile waits for the one who reads.
    pub(super) async fn get(
        &self,
        (namespace, name): (&str, &str),
        read: impl AsyncFnOnce() -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        let known = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() >= REMEMBERED {
                all.clear();
            }
            Arc::clone(all.entry((namespace.to_owned(), name.to_owned())).or_default())
        };
        let mut known = known.lock().await;
        if let Some((_, token)) = known.as_ref().filter(|(at, _)| at.elapsed() < LIFE) {
            return token.clone();
        }
        let token = read().await;
        *known = Some((Instant::now(), token.clone()));
        token
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_secret_is_read_now_and_then_however_many_ask() {
        let (tokens, reads) = (Tokens::default(), AtomicUsize::new(0));
        let get = async |name: &str| {
            let read = async || {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Some(format!("{name}{}", reads.fetch_add(1, Ordering::Relaxed)).into_bytes())
            };
            tokens.get(("a", name), read).await
        };
        let all = futures::future::join_all((0..100).map(|_| get("x"))).await;
        assert!(all.iter().all(|token| token.as_deref() == Some(b"x0")), "{all:?}");
        assert_eq!(get("y").await.as_deref(), Some(&b"y1"[..]));
        assert_eq!(get("x").await.as_deref(), Some(&b"x0"[..]));
        tokio::time::advance(LIFE).await;
        assert_eq!(get("x").await.as_deref(), Some(&b"x2"[..]));
    }
}
