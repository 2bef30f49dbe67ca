//! Ends the requests of a pass soon when its cluster stops answering in the middle of it: after some failures in a row no
//! more are sent until the next pass.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use thiserror::Error;
use tower::{BoxError, Layer, Service};

/// Requests in a row without an answer after which no more are sent.
const FAILURES: u32 = 3;
/// An answer that takes longer makes a cluster a slow one.
const SLOW: Duration = Duration::from_secs(5);

/// Counts what the requests of a client came to.
#[derive(Clone, Default)]
pub(super) struct Breaker(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    failures: u32,
    why: String,
    was_slow: bool,
}

/// A request that was not sent.
#[derive(Debug, Error)]
#[error("not asked any more: {0}")]
struct NotAsked(String);

impl Breaker {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new pass begins.
    pub(super) fn close(&self) {
        *self.lock() = State::default();
    }

    /// Why nothing is sent any more.
    pub(super) fn open(&self) -> Option<String> {
        let state = self.lock();
        (state.failures >= FAILURES).then(|| state.why.clone())
    }

    /// Whether an answer of this pass took long.
    pub(super) fn was_slow(&self) -> bool {
        self.lock().was_slow
    }

    fn note(&self, failure: Option<String>, took: Duration) {
        let mut state = self.lock();
        state.was_slow |= took > SLOW;
        match failure {
            Some(why) => {
                state.failures += 1;
                state.why = why;
            }
            // One that is open stays so: what is still under way says nothing new.
            None if state.failures < FAILURES => state.failures = 0,
            None => {}
        }
    }
}

impl<S> Layer<S> for Breaker {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, breaker: self.clone() }
    }
}

/// A service whose requests the breaker sees.
pub(super) struct Guarded<S> {
    inner: S,
    breaker: Breaker,
}

impl<S, R> Service<R> for Guarded<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    S::Response: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        if let Some(why) = self.breaker.open() {
            return Box::pin(std::future::ready(Err(NotAsked(why).into())));
        }
        let (start, breaker) = (Instant::now(), self.breaker.clone());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await.map_err(Into::into);
            breaker.note(answer.as_ref().err().map(ToString::to_string), start.elapsed());
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::{ServiceExt, service_fn};

    #[tokio::test]
    async fn after_three_failures_in_a_row_nothing_is_sent_until_the_next_pass() {
        let breaker = Breaker::default();
        let sent = Arc::new(Mutex::new(0));
        let count = Arc::clone(&sent);
        let inner = service_fn(move |fails: bool| {
            *count.lock().unwrap() += 1;
            async move { if fails { Err("timeout") } else { Ok(()) } }
        });
        let mut service = breaker.layer(inner);
        let mut results = Vec::new();
        for fails in [true, true, false, true, true, true, false, false] {
            results.push(service.ready().await.unwrap().call(fails).await.is_ok());
        }
        assert_eq!(results, [false, false, true, false, false, false, false, false]);
        assert_eq!((*sent.lock().unwrap(), breaker.open()), (6, Some("timeout".to_owned())));
        breaker.close();
        assert!(service.ready().await.unwrap().call(false).await.is_ok());
        assert!(breaker.open().is_none() && !breaker.was_slow());
    }
}
