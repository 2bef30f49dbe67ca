//! Requests that fail in passing are sent again before a pass gives up: a pass makes many, and each failure would cost all of
//! it a growing pause. Any request is sent again that the API server was too busy for; else only reads are, and writes are
//! left to the pass, which decides anew. Before each sending it is looked at whether the root is still ours ([`super::ours`]).

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use tower::BoxError;
use tower::retry::Policy;

/// Tries after the first one.
const TRIES: u32 = 3;
/// The same where the API server is too busy.
const BUSY_TRIES: u32 = 6;
/// Pause before the second try; it doubles, and is spread over its upper half.
const FIRST: Duration = Duration::from_millis(100);
/// Longest pause, whatever the API server asks for: the pass has a limit, and comes back.
const LONGEST: Duration = Duration::from_secs(10);

/// The policy of one request.
#[derive(Clone, Debug)]
pub(in crate::io) struct TriesAgain {
    tries: u32,
    reads: bool,
}

impl TriesAgain {
    /// What the API server was too busy for, and reads that failed.
    pub(super) fn of_reads() -> Self {
        Self { tries: 0, reads: true }
    }

    /// Only what the API server was too busy for: who never answers is not asked more often.
    pub(in crate::io) fn of_busy() -> Self {
        Self { tries: 0, reads: false }
    }
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for TriesAgain {
    type Future = tokio::time::Sleep;

    fn retry(
        &mut self,
        request: &mut Request<Body>,
        result: &mut Result<Response<B>, BoxError>,
    ) -> Option<Self::Future> {
        let answer = result.as_ref().ok();
        let reads = self.reads && *request.method() == Method::GET;
        let pause = pause(reads, answer.map(Response::status), answer.and_then(asked), self.tries)?;
        self.tries += 1;
        Some(tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * rand::random::<f64>())))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        let mut again = Request::new(request.body().try_clone()?);
        *again.method_mut() = request.method().clone();
        *again.uri_mut() = request.uri().clone();
        *again.version_mut() = request.version();
        again.headers_mut().clone_from(request.headers());
        again.extensions_mut().clone_from(request.extensions());
        Some(again)
    }
}

/// How long the API server asks to wait (RFC 9110, 10.2.3; it sends seconds).
fn asked<B>(answer: &Response<B>) -> Option<Duration> {
    answer.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// How long to wait before a request is sent again that was answered with `status`, or not at all; `None` where it is not.
fn pause(reads: bool, status: Option<StatusCode>, asked: Option<Duration>, tries: u32) -> Option<Duration> {
    let grown = FIRST * 2u32.saturating_pow(tries);
    match status {
        Some(StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT) => {
            // Twice, for it is spread over the upper half.
            (tries < BUSY_TRIES).then(|| grown.max(asked.unwrap_or_default().saturating_mul(2)).min(LONGEST))
        }
        None | Some(StatusCode::INTERNAL_SERVER_ERROR | StatusCode::BAD_GATEWAY) => {
            (reads && tries < TRIES).then_some(grown)
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_in_passing_is_tried_again() {
        let status = |code| Some(StatusCode::from_u16(code).unwrap());
        for (reads, status, asked, tries, expected) in [
            (true, status(500), None, 0, Some(100)),
            (true, status(502), None, 2, Some(400)),
            (true, None, None, 0, Some(100)),
            (true, None, None, 3, None),
            (true, status(200), None, 0, None),
            (true, status(404), None, 0, None),
            (true, status(410), None, 0, None),
            (false, status(500), None, 0, None),
            (false, None, None, 0, None),
            (false, status(429), None, 0, Some(100)),
            (false, status(503), None, 5, Some(3200)),
            (true, status(504), None, 6, None),
            (false, status(429), Some(1), 0, Some(2000)),
            (false, status(429), Some(1), 5, Some(3200)),
            (false, status(429), Some(u64::MAX), 0, Some(10_000)),
        ] {
            let found = pause(reads, status, asked.map(Duration::from_secs), tries).map(|pause| pause.as_millis());
            assert_eq!(found, expected, "{reads} {status:?} {asked:?} {tries}");
        }
    }

    #[test]
    fn the_second_try_is_the_same_request() {
        let policy = &mut TriesAgain::of_reads();
        for method in [Method::GET, Method::PATCH] {
            let request = Request::builder().method(method).uri("https://localhost/api?a=b").header("x", "y");
            let request = request.body(Body::from(b"z".to_vec())).unwrap();
            let again = Policy::<_, Response<()>, _>::clone_request(policy, &request).unwrap();
            assert_eq!((again.method(), again.uri()), (request.method(), request.uri()));
            assert_eq!(again.headers(), request.headers());
        }
    }
}
