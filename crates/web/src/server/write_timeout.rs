//! A connection that times out if the peer reads nothing, or too slowly.
//!
//! Reads are limited elsewhere: heads by the listener's timer, bodies by [`crate::server::body_limit`].

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::server::slow_client_timeout::SlowClientTimeout;

/// Fails a write when the wait for the peer exceeds its [`SlowClientTimeout`].
pub(crate) struct WriteTimeoutStream<T> {
    inner: T,
    client_timeout: SlowClientTimeout,
    /// Origin of the timeout's clock.
    clock_start: Instant,
    // Created at the first stall only, so that a connection whose peer reads costs no timer.
    deadline_timer: Option<Pin<Box<Sleep>>>,
}

impl<T> WriteTimeoutStream<T> {
    pub(crate) fn new(inner: T, after: Duration) -> Self {
        Self {
            inner,
            client_timeout: SlowClientTimeout::new(after),
            clock_start: Instant::now(),
            deadline_timer: None,
        }
    }

    /// Returns the connection; its writer has to limit its own waits.
    pub(crate) fn get_ref(&self) -> &T {
        &self.inner
    }

    /// Returns the connection.
    pub(crate) fn into_inner(self) -> T {
        self.inner
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock_start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn check_timeout<R>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<Result<R>>,
        length_of: impl FnOnce(&R) -> usize,
    ) -> Poll<Result<R>> {
        if let Poll::Ready(outcome) = outcome {
            if !self.client_timeout.is_idle_with_full_budget() {
                let sent_length = outcome.as_ref().map_or(0, length_of);
                self.client_timeout.record_progress(self.now_ms(), sent_length as u64, false);
            }
            return Poll::Ready(outcome);
        }
        if !self.client_timeout.is_waiting() {
            self.client_timeout.record_progress(self.now_ms(), 0, true);
            let end = self.client_timeout.deadline_ms().map(Duration::from_millis);
            // A deadline beyond the range of the clock means no timeout.
            match (end.and_then(|end| self.clock_start.checked_add(end)), &mut self.deadline_timer)
            {
                (None, alarm) => *alarm = None,
                (Some(end), Some(alarm)) => alarm.as_mut().reset(end),
                (Some(end), alarm) => *alarm = Some(Box::pin(tokio::time::sleep_until(end))),
            }
        }
        let Some(alarm) = &mut self.deadline_timer else { return Poll::Pending };
        alarm.as_mut().poll(cx).map(|()| {
            Err(Error::new(ErrorKind::TimedOut, "the peer does not read, or reads too slowly"))
        })
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.check_timeout(cx, outcome, |count| *count)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_flush(cx);
        self.check_timeout(cx, outcome, |()| 0)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.check_timeout(cx, outcome, |()| 0)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.check_timeout(cx, outcome, |count| *count)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::WriteTimeoutStream;
    use std::io::ErrorKind;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Writes 100,000 bytes to a peer that reads `bytes` of them every 29 s; returns true if all were sent.
    async fn is_taken_by(bytes: usize) -> bool {
        let (near, mut far) = tokio::io::duplex(64);
        let mut near = WriteTimeoutStream::new(near, Duration::from_secs(30));
        let reader = tokio::spawn(async move {
            let mut piece = vec![0; bytes];
            loop {
                tokio::time::sleep(Duration::from_secs(29)).await;
                if far.read_exact(&mut piece).await.is_err() {
                    return;
                }
            }
        });
        let outcome = near.write_all(&[7; 100_000]).await;
        drop(near);
        reader.await.unwrap();
        match outcome {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::TimedOut);
                false
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_byte_by_byte_is_given_up() {
        assert!(!is_taken_by(1).await);
        assert!(!is_taken_by(64).await);
        assert!(is_taken_by(20_000).await);
    }
}
