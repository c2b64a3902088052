//! A connection that gives up on a peer that reads nothing.
//!
//! Reading is bounded elsewhere: heads by the listener's timer, bodies by [`crate::limit`].

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Fails a write that makes no progress for `after`.
pub(crate) struct WriteStall<T> {
    inner: T,
    after: Duration,
    // Made at the first stall only, so that a connection whose peer reads costs no timer.
    alarm: Option<Pin<Box<Sleep>>>,
    is_armed: bool,
}

impl<T> WriteStall<T> {
    pub(crate) fn new(inner: T, after: Duration) -> Self {
        Self { inner, after, alarm: None, is_armed: false }
    }

    /// Returns the connection, of which a writer has to bound its waits itself.
    pub(crate) fn get_ref(&self) -> &T {
        &self.inner
    }

    /// Returns the connection.
    pub(crate) fn into_inner(self) -> T {
        self.inner
    }

    fn judge<R>(&mut self, cx: &mut Context<'_>, outcome: Poll<Result<R>>) -> Poll<Result<R>> {
        if outcome.is_ready() {
            self.is_armed = false;
            return outcome;
        }
        let deadline = Instant::now() + self.after;
        let is_armed = std::mem::replace(&mut self.is_armed, true);
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if !is_armed {
            alarm.as_mut().reset(deadline);
        }
        alarm
            .as_mut()
            .poll(cx)
            .map(|()| Err(Error::new(ErrorKind::TimedOut, "the peer reads nothing")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteStall<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteStall<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.judge(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_flush(cx);
        self.judge(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.judge(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.judge(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
