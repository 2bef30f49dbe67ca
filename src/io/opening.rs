//! A connection to one of our servers: what comes first comes in time, and is HTTP/1; what is answered is read in time.
//!
//! What serves them reads which version of HTTP is spoken without any limit of time, and only then waits for a head no longer
//! than it is told to; HTTP/2 it lets be idle for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum_server::accept::Accept;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Bytes by which the version is known: as many as HTTP/2 begins with.
const ENOUGH: usize = 24;

/// Accepts what `inner` does, with a limit on how long the first bytes may take, and on how long none of an answer is taken.
#[derive(Clone, Debug)]
pub(super) struct InTime<A> {
    /// Who accepts.
    pub(super) inner: A,
    /// How long that may be.
    pub(super) within: Duration,
}

impl<A, I, S> Accept<I, S> for InTime<A>
where
    A: Accept<I, S>,
    A::Future: Send + 'static,
{
    type Stream = Opening<A::Stream>;
    type Service = A::Service;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: I, service: S) -> Self::Future {
        let (accepted, within) = (self.inner.accept(stream, service), self.within);
        Box::pin(async move {
            let (inner, service) = accepted.await?;
            let late = Some(Box::pin(tokio::time::sleep(within)));
            Ok((Opening { inner, begin: Vec::new(), late, stalled: None, within }, service))
        })
    }
}

/// A connection whose first bytes are looked at, and whose other side has to read.
#[derive(Debug)]
pub(super) struct Opening<I> {
    inner: I,
    begin: Vec<u8>,
    /// `None` once there was enough.
    late: Option<Pin<Box<Sleep>>>,
    /// Since nothing of an answer could be written.
    stalled: Option<Pin<Box<Sleep>>>,
    within: Duration,
}

impl<I> Opening<I> {
    /// What came of a write, if it could not go on for too long an error.
    fn watched<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let within = self.within;
        ready!(self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(within))).as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the answer was not read in time")))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Opening<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.inner).poll_read(context, buffer);
        let Some(late) = &mut this.late else { return read };
        if read.is_pending() {
            ready!(late.as_mut().poll(context));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "nothing was asked in time")));
        }
        this.begin.extend_from_slice(&buffer.filled()[before..]);
        if this.begin.starts_with(b"PRI") {
            return Poll::Ready(Err(io::Error::other("HTTP/1 alone is spoken here")));
        }
        if this.begin.len() >= ENOUGH || this.begin.ends_with(b"\r\n\r\n") {
            (this.late, this.begin) = (None, Vec::new());
        }
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Opening<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watched(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, parts);
        self.watched(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.inner).poll_flush(context);
        self.watched(context, written)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.inner).poll_shutdown(context);
        self.watched(context, written)
    }
}
