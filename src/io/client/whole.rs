//! Answers to reads that break off in the middle and look complete: they are told from whole ones before anybody reads
//! them, so that they are asked for again.

use std::task::{Context, Poll};

use axum::body::HttpBody;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use kube::client::Body;
use thiserror::Error;
use tower::{BoxError, Layer, Service};

/// An answer that is no whole object.
#[derive(Clone, Copy, Debug, Error)]
#[error("the answer broke off in the middle")]
pub(super) struct BrokenOff;

/// Lets whole answers through.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WholeAnswers;

impl<S> Layer<S> for WholeAnswers {
    type Service = Whole<S>;

    fn layer(&self, inner: S) -> Whole<S> {
        Whole(inner)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Whole<S>(S);

impl<S, B> Service<Request<Body>> for Whole<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_object = is_object(request.method(), request.uri().path(), request.uri().query());
        let answer = self.0.call(request);
        Box::pin(async move {
            let (head, body) = answer.await?.into_parts();
            if !is_object || head.status != StatusCode::OK {
                return Ok(Response::from_parts(head, Either::Left(body)));
            }
            let bytes = body.collect().await.map_err(Into::into)?.to_bytes();
            if !is_whole(&bytes) {
                return Err(BrokenOff.into());
            }
            Ok(Response::from_parts(head, Either::Right(Full::new(bytes))))
        })
    }
}

/// Whether what is asked for comes bit by bit, for as long as somebody listens.
pub(in crate::io) fn is_stream(query: Option<&str>) -> bool {
    query.unwrap_or_default().split('&').any(|part| matches!(part, "watch=true" | "watch=1" | "follow=true"))
}

/// Whether an object or a list is asked for: no watch, and no text of a log or a probe.
fn is_object(method: &Method, path: &str, query: Option<&str>) -> bool {
    let is_text =
        path.ends_with("/log") || path.contains("/proxy") || !(path.starts_with("/api/") || path.starts_with("/apis/"));
    *method == Method::GET && !is_stream(query) && !is_text
}

/// Objects end as they begin, whatever encoding the API server chose for others.
fn is_whole(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii();
    !text.starts_with(b"{") || text.ends_with(b"}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_are_looked_at() {
        for (method, path, query, expected) in [
            (Method::GET, "/api/v1/namespaces/a/secrets/b", None, true),
            (Method::GET, "/apis/apps/v1/deployments", Some("limit=500"), true),
            (Method::GET, "/apis/apps/v1/deployments", Some("limit=500&watch=true"), false),
            (Method::GET, "/api/v1/namespaces/a/pods/b/log", Some("follow=true"), false),
            (Method::GET, "/healthz", None, false),
            (Method::PATCH, "/api/v1/namespaces/a/secrets/b", None, false),
        ] {
            assert_eq!(is_object(&method, path, query), expected, "{method} {path} {query:?}");
        }
        for (text, expected) in [("{\"a\": 1}\n", true), ("{\"a\": \"b", false), ("ok", true), ("", true)] {
            assert_eq!(is_whole(text.as_bytes()), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn an_answer_that_broke_off_is_an_error() {
        let answer = |text: &'static str| {
            let inner = tower::service_fn(move |_: Request<Body>| async move {
                Ok::<_, BoxError>(Response::new(Body::from(text.as_bytes().to_vec())))
            });
            let request = Request::get("/api/v1/nodes").body(Body::empty()).unwrap();
            tower::ServiceExt::oneshot(WholeAnswers.layer(inner), request)
        };
        let whole = answer("{}").await.unwrap().into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&*whole, b"{}");
        assert!(answer("{\"a\"").await.unwrap_err().is::<BrokenOff>());
    }
}
