//! The begin of a connection to one of our servers: what comes first comes in time, and is HTTP/1.
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

/// Accepts what `inner` does, with a limit on how long the first bytes may take.
#[derive(Clone, Debug)]
pub(super) struct InTime<A> {
    /// Who accepts.
    pub(super) inner: A,
    /// How long the first bytes may take.
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
            Ok((Opening { inner, begin: Vec::new(), late }, service))
        })
    }
}

/// A connection whose first bytes are looked at.
#[derive(Debug)]
pub(super) struct Opening<I> {
    inner: I,
    begin: Vec<u8>,
    /// `None` once there was enough.
    late: Option<Pin<Box<Sleep>>>,
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
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
