//! Reads that fail in passing are asked for again before a pass gives up: a pass makes many, and each failure would cost
//! all of it a growing pause. Writes are left to the pass, which decides anew. (429, 503 and 504 are kube's to try again.)

use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use tower::BoxError;
use tower::retry::Policy;

/// Tries after the first one.
const TRIES: u32 = 3;
/// Pause before the second try; it doubles, and is spread over its upper half.
const FIRST: Duration = Duration::from_millis(100);

/// The policy of one request.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadsAgain {
    tries: u32,
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for ReadsAgain {
    type Future = tokio::time::Sleep;

    fn retry(
        &mut self,
        request: &mut Request<Body>,
        result: &mut Result<Response<B>, BoxError>,
    ) -> Option<Self::Future> {
        let status = result.as_ref().ok().map(Response::status);
        if !is_again(request.method(), status, self.tries) {
            return None;
        }
        self.tries += 1;
        let pause = FIRST * 2u32.pow(self.tries - 1);
        Some(tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * rand::random::<f64>())))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        let body = (request.method() == Method::GET).then(|| request.body().try_clone())??;
        let mut again = Request::new(body);
        *again.method_mut() = request.method().clone();
        *again.uri_mut() = request.uri().clone();
        *again.version_mut() = request.version();
        again.headers_mut().clone_from(request.headers());
        again.extensions_mut().clone_from(request.extensions());
        Some(again)
    }
}

/// Whether a request is tried again that was answered with `status`, or not at all.
fn is_again(method: &Method, status: Option<StatusCode>, tries: u32) -> bool {
    let passes =
        status.is_none_or(|status| matches!(status, StatusCode::INTERNAL_SERVER_ERROR | StatusCode::BAD_GATEWAY));
    *method == Method::GET && passes && tries < TRIES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_fail_in_passing_are_tried_again() {
        let status = |code| Some(StatusCode::from_u16(code).unwrap());
        for (method, status, tries, expected) in [
            (Method::GET, status(500), 0, true),
            (Method::GET, status(502), 2, true),
            (Method::GET, None, 0, true),
            (Method::GET, None, 3, false),
            (Method::GET, status(200), 0, false),
            (Method::GET, status(404), 0, false),
            (Method::GET, status(410), 0, false),
            // kube's own.
            (Method::GET, status(429), 0, false),
            (Method::PATCH, status(500), 0, false),
            (Method::POST, None, 0, false),
            (Method::DELETE, None, 0, false),
        ] {
            assert_eq!(is_again(&method, status, tries), expected, "{method} {status:?} {tries}");
        }
    }

    #[test]
    fn the_second_try_is_the_same_request() {
        let request = Request::get("https://localhost/api?a=b").header("x", "y").body(Body::empty()).unwrap();
        let policy = &mut ReadsAgain::default();
        let again = Policy::<_, Response<()>, _>::clone_request(policy, &request).unwrap();
        assert_eq!((again.uri(), again.headers()), (request.uri(), request.headers()));
        let write = Request::post("https://localhost/api").body(Body::empty()).unwrap();
        assert!(Policy::<_, Response<()>, _>::clone_request(policy, &write).is_none());
    }
}
