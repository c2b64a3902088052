//! Lingering close: ends a connection so that its last response arrives.
//!
//! If a socket is closed while it has unread data, or receives data after that, the connection is reset. A reset
//! discards what the peer has not read yet: the response that says why its upload is refused, or the last one before
//! `Connection: close`. So the end is announced first, and data that the peer still sends is read and dropped for a
//! short time.
//!
//! Invariants
//! * There is no wait for a peer from which no more data is expected.
//! * At most [`MAX_LINGER_BYTES`] are read, for at most [`LINGER_TIMEOUT`].
//! * The end of the connection is reported to a reader when its permit is needed and no part of a request has arrived.
//! * If a request has enabled [`DisconnectDetection`], a flush fails once the peer has closed its sending side. At most
//!   [`MAX_EARLY_INPUT_BYTES`] that the peer sends meanwhile are held for the next reader.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::server::connection_limit::ConnectionActivity;
use crate::server::disconnect_detection::DisconnectDetection;
use crate::server::listen::ListenerCounters;

/// Maximum time to read the rest of a peer's data.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of bytes read and dropped.
const MAX_LINGER_BYTES: usize = 1024 * 1024;
/// Maximum number of bytes read while a request waits for its response.
const MAX_EARLY_INPUT_BYTES: usize = 16 * 1024;

/// True if the peer is in the middle of sending a request; clones share the state.
#[derive(Debug, Clone, Default)]
pub(crate) struct MoreInputExpected(Arc<AtomicBool>);

impl MoreInputExpected {
    /// Records whether the last request is incomplete.
    pub(crate) fn set(&self, goes_on: bool) {
        self.0.store(goes_on, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection that lingers before it is closed.
#[derive(Debug)]
pub(crate) struct LingeringStream<T> {
    inner: T,
    more_input_expected: MoreInputExpected,
    is_shutdown_sent: bool,
    discarded_bytes: usize,
    deadline_timer: Option<Pin<Box<Sleep>>>,
    activity_and_counters: Option<(Arc<ConnectionActivity>, Arc<ListenerCounters>)>,
    disconnect_detection: DisconnectDetection,
    /// Bytes that were read to detect the end, and not delivered.
    early_input: Vec<u8>,
}

impl<T> LingeringStream<T> {
    pub(crate) fn new(inner: T, expected: MoreInputExpected) -> Self {
        Self {
            inner,
            more_input_expected: expected,
            is_shutdown_sent: false,
            discarded_bytes: 0,
            deadline_timer: None,
            activity_and_counters: None,
            disconnect_detection: DisconnectDetection::default(),
            early_input: Vec::new(),
        }
    }

    /// Fails flushes when the peer closes its sending side, while the detection is enabled.
    pub(crate) fn with_disconnect_detection(self, detection: DisconnectDetection) -> Self {
        Self { disconnect_detection: detection, ..self }
    }

    /// Reports the end of the connection when its permit is needed.
    pub(crate) fn with_activity(
        self,
        activity: Arc<ConnectionActivity>,
        counters: Arc<ListenerCounters>,
    ) -> Self {
        Self { activity_and_counters: Some((activity, counters)), ..self }
    }

    /// Returns true if the connection is to end, and counts it.
    fn should_leave(&self, cx: &Context<'_>) -> bool {
        let Some((activity, counters)) = &self.activity_and_counters else { return false };
        let leaves = activity.should_leave(cx);
        if leaves {
            counters.evicted.fetch_add(1, Ordering::Relaxed);
        }
        leaves
    }

    /// Returns the connection, and the bytes that were read from it and not delivered.
    pub(crate) fn into_parts(self) -> (T, Vec<u8>) {
        (self.inner, self.early_input)
    }
}

impl<T: AsyncRead + Unpin> LingeringStream<T> {
    /// Reads and drops data; ready when the peer has ended too, or a limit is reached.
    fn poll_discard_rest(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut piece = [std::mem::MaybeUninit::uninit(); 8 * 1024];
        while self.discarded_bytes < MAX_LINGER_BYTES {
            let mut buffer = ReadBuf::uninit(&mut piece);
            match Pin::new(&mut self.inner).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.discarded_bytes += buffer.filled().len();
                }
                Poll::Ready(_ended) => return Poll::Ready(()),
                Poll::Pending
                    if self.discarded_bytes == 0 && !self.more_input_expected.is_set() =>
                {
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    let sleep = || Box::pin(tokio::time::sleep(LINGER_TIMEOUT));
                    return self.deadline_timer.get_or_insert_with(sleep).as_mut().poll(cx);
                }
            }
        }
        Poll::Ready(())
    }

    /// Fails if the peer has closed its sending side; otherwise wakes the task when it does.
    fn check_peer_connected(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let mut piece = [std::mem::MaybeUninit::uninit(); 1024];
        while self.early_input.len() < MAX_EARLY_INPUT_BYTES {
            let mut buffer = ReadBuf::uninit(&mut piece);
            match Pin::new(&mut self.inner).poll_read(cx, &mut buffer)? {
                Poll::Ready(()) if buffer.filled().is_empty() => {
                    let reason = "the client closed the connection";
                    return Err(Error::new(ErrorKind::ConnectionAborted, reason));
                }
                Poll::Ready(()) => self.early_input.extend_from_slice(buffer.filled()),
                Poll::Pending => break,
            }
        }
        Ok(())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for LingeringStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        if !self.early_input.is_empty() {
            let count = self.early_input.len().min(buffer.remaining());
            buffer.put_slice(&self.early_input.drain(..count).collect::<Vec<_>>());
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if read.is_pending() && self.should_leave(cx) {
            return Poll::Ready(Ok(()));
        }
        ready!(read)?;
        if buffer.filled().len() > before {
            // Holds until the service has read a complete request.
            self.more_input_expected.set(true);
            if let Some((activity, _)) = &self.activity_and_counters {
                activity.record_active();
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        match self.disconnect_detection.is_enabled() {
            true => Poll::Ready(self.check_peer_connected(cx)),
            false => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if !self.is_shutdown_sent {
            ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
            self.is_shutdown_sent = true;
        }
        self.poll_discard_rest(cx).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::{LingeringStream, MAX_LINGER_BYTES, MoreInputExpected};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn expected() -> MoreInputExpected {
        let expected = MoreInputExpected::default();
        expected.set(true);
        expected
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_in_the_middle_of_something_is_heard_out() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut lingering = LingeringStream::new(near, expected());
        lingering.write_all(b"answer").await.unwrap();
        let end = tokio::spawn(async move { lingering.shutdown().await });
        let mut response = String::new();
        far.read_to_string(&mut response).await.unwrap();
        assert_eq!(response, "answer");
        far.write_all(&[b'x'; 1000]).await.unwrap();
        assert!(!end.is_finished());
        drop(far);
        end.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_heard_for_ever() {
        let (near, mut far) = tokio::io::duplex(64);
        let silent = LingeringStream::new(near, expected()).shutdown().await;
        silent.unwrap();
        let written = far.write_all(b"x").await;
        assert!(written.is_err(), "the connection is gone");
        let (near, mut far) = tokio::io::duplex(64);
        let talking =
            tokio::spawn(async move { while far.write_all(&[b'x'; 64]).await.is_ok() {} });
        let mut lingering = LingeringStream::new(near, expected());
        lingering.shutdown().await.unwrap();
        assert!(lingering.discarded_bytes >= MAX_LINGER_BYTES);
        drop(lingering);
        talking.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_said_everything_is_not_waited_for() {
        let (near, _far) = tokio::io::duplex(64);
        let mut lingering = LingeringStream::new(near, MoreInputExpected::default());
        let end = tokio::time::timeout(Duration::ZERO, lingering.shutdown()).await;
        assert!(end.is_ok(), "it ends at once");
    }
}
