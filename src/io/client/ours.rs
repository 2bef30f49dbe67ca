//! The last look at the fence, right before a request is sent: it may have waited for its turn, or be sent again, since it passed.

use std::task::{Context, Poll};

use futures::future::{Either, Ready, ready};
use http::Request;
use kube::client::Body;
use tower::{BoxError, Layer, Service};

use crate::io::fence::{Checked, NotOurs};

/// Lets a request through while its root is still ours.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::io) struct StillOurs;

impl<S> Layer<S> for StillOurs {
    type Service = Looked<S>;

    fn layer(&self, inner: S) -> Looked<S> {
        Looked(inner)
    }
}

/// A service that is asked only for what is ours.
#[derive(Clone, Debug)]
pub(in crate::io) struct Looked<S>(S);

impl<S> Service<Request<Body>> for Looked<S>
where
    S: Service<Request<Body>, Error = BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Either<S::Future, Ready<Result<S::Response, BoxError>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.extensions().get::<Checked>().is_some_and(|checked| !checked.holds()) {
            return Either::Right(ready(Err(kube::Error::Service(NotOurs.into()).into())));
        }
        Either::Left(self.0.call(request))
    }
}
