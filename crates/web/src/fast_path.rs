//! A lane in front of the service: whoever answers simple requests with less work than hyper takes turns with it.
//!
//! A connection is lent to the lane. The lane answers on it until a request comes that it leaves to the service; then it
//! hands the connection back together with the bytes of that request, unanswered and unchanged.
//!
//! Invariants
//! * Bytes reach hyper exactly as the client sent them: the lane never changes what it hands back.
//! * After [`ReturnedConnection::request_bytes`] hyper gets exactly one request, and the connection goes back to the lane when the
//!   answer is written; without it hyper has the connection for good.
//! * A connection of HTTP/2 stays with the lane, as its requests share state, unless the lane serves nobody. What the lane leaves to the service goes
//!   there over connections of HTTP/2 within the process ([`FastPathHttp2::service_pipes`]).

use std::fmt::Debug;
use std::future::Future;
use std::io::Result;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::{mpsc, watch};

use crate::connection_limit::ConnectionLimiter;
use crate::connection_socket::ConnectionSocket;
use crate::listen::{ConnectionPeer, ListenerCounters};

/// Serves connections outside of the runtime.
pub trait FastPath: Send + Sync + Debug {
    /// Tells whether connections that come now are for it.
    fn is_open(&self) -> bool;

    /// Serves a connection until it ends, which gives nothing, or is handed back.
    fn serve_connection(
        &self,
        lent: LentConnection,
    ) -> Pin<Box<dyn Future<Output = Option<ReturnedConnection>> + Send>>;

    /// Ends about so many connections on which nothing is asked, those first that have been waited for longest: others
    /// want their places. They are counted as evicted.
    fn evict_idle(&self, count: usize, counters: &Arc<ListenerCounters>);
}

/// Whether answers are to be the last of their connections.
#[derive(Debug, Clone)]
pub struct KeepAlivePolicy {
    stop_signal: watch::Receiver<bool>,
    connection_limiter: Option<Arc<ConnectionLimiter>>,
}

impl KeepAlivePolicy {
    pub(crate) fn new(stopped: watch::Receiver<bool>, seats: &Arc<ConnectionLimiter>) -> Self {
        Self { stop_signal: stopped, connection_limiter: Some(Arc::clone(seats)) }
    }

    /// Makes one that tells of the end alone, when `stopped` is true.
    #[must_use]
    pub fn until_stopped(stopped: watch::Receiver<bool>) -> Self {
        Self { stop_signal: stopped, connection_limiter: None }
    }

    /// Tells whether an answer that is given now is to be the last one of its connection: all are to end, or hardly any
    /// place is free.
    #[must_use]
    pub fn must_close(&self) -> bool {
        *self.stop_signal.borrow()
            || self.connection_limiter.as_ref().is_some_and(|seats| seats.must_close_connection())
    }
}

/// A connection on its way to a lane.
#[derive(Debug)]
pub struct LentConnection {
    /// The socket, which no runtime has.
    pub socket: ConnectionSocket,
    /// What was read from it and not answered.
    pub unread: Vec<u8>,
    /// Who is at the other end.
    pub peer: ConnectionPeer,
    /// How many requests may still be answered; the last answer closes the connection.
    pub requests_left: u64,
    /// How long the next request may take to be complete.
    pub idle_timeout: Duration,
    /// How long a client may read nothing of its answer.
    pub write_timeout: Duration,
    /// Tells whether each answer is to be the connection's last.
    pub keep_alive_policy: KeepAlivePolicy,
    /// True when the connection is to end, also without an answer.
    pub end_signal: watch::Receiver<bool>,
    /// What a connection of HTTP/2 needs; without it the connection is one of HTTP/1.1.
    pub http2: Option<FastPathHttp2>,
}

/// What a client of the service may send of the body of a request over HTTP/2 before it is taken, in bytes.
pub const HTTP2_STREAM_WINDOW: u32 = 256 * 1024;

/// Returns the same for all requests of a connection with so many streams: what all of them may hold, as a body that nobody
/// takes yet must not hold up one that is taken.
#[must_use]
pub const fn http2_connection_window(max_streams: u32) -> u32 {
    // What the specification begins with (RFC 9113, section 6.9.2), and the most that it allows.
    const LEAST: u32 = 65_535;
    const MOST: u32 = 0x7fff_ffff;
    let window = HTTP2_STREAM_WINDOW.saturating_mul(max_streams);
    if window < LEAST {
        LEAST
    } else if window > MOST {
        MOST
    } else {
        window
    }
}

/// What a lane needs to serve a connection of HTTP/2, which it hands back only if it has not read of it.
#[derive(Debug)]
pub struct FastPathHttp2 {
    /// Streams that may be open at once.
    pub max_streams: u32,
    /// What the fields of a request may count, as HTTP/2 counts.
    pub max_header_bytes: usize,
    /// Takes one end of a pipe, on which the service answers as a server of HTTP/2 whose client knows that beforehand. It
    /// lets its client send [`HTTP2_STREAM_WINDOW`] bytes of each body, and [`http2_connection_window`] of all.
    pub service_pipes: mpsc::UnboundedSender<DuplexStream>,
}

/// A connection on its way back.
#[derive(Debug)]
pub struct ReturnedConnection {
    /// The socket, which no runtime has.
    pub socket: ConnectionSocket,
    /// What was read from it and not answered.
    pub unread: Vec<u8>,
    /// As lent, less what was answered.
    pub requests_left: u64,
    /// So many of these bytes are one whole request without a body, after which the lane goes on.
    pub request_bytes: Option<usize>,
}

/// A connection whose first bytes have been read already, and that may seem to end behind the first request.
#[derive(Debug)]
pub(crate) struct SingleRequestStream<T> {
    inner: T,
    unread: Vec<u8>,
    /// How many of these bytes were given out.
    delivered_bytes: usize,
    /// How many are given out before the connection seems to end; nothing if it goes on.
    delivery_limit: Option<usize>,
    /// Whether everything that was written is on its way.
    is_flushed: bool,
    /// Whether the reader was told that the connection ended.
    is_end_reported: bool,
    reader_waker: Option<Waker>,
}

impl<T> SingleRequestStream<T> {
    /// Gives out `unread` and then what comes.
    pub(crate) fn with_all_bytes(inner: T, unread: Vec<u8>) -> Self {
        Self { delivery_limit: None, ..Self::with_first_request(inner, unread, 0) }
    }

    /// Gives out `length` bytes of `unread`.
    pub(crate) fn with_first_request(inner: T, unread: Vec<u8>, length: usize) -> Self {
        Self {
            inner,
            unread,
            delivered_bytes: 0,
            delivery_limit: Some(length),
            is_flushed: true,
            is_end_reported: false,
            reader_waker: None,
        }
    }

    /// Tells whether the request was answered and the client may send another one.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_end_reported
    }

    /// Returns the connection, and what was read of it and not given out.
    pub(crate) fn into_parts(mut self) -> (T, Vec<u8>) {
        self.unread.drain(..self.delivered_bytes.min(self.unread.len()));
        // A connection may wait for long, and need not hold the room of its largest head.
        self.unread.shrink_to_fit();
        (self.inner, self.unread)
    }
}

impl<T: AsyncWrite + Unpin> SingleRequestStream<T> {
    /// Ends the connection itself.
    pub(crate) async fn shutdown_inner(&mut self) -> Result<()> {
        self.inner.shutdown().await
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for SingleRequestStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let this = &mut *self;
        let end = this.delivery_limit.unwrap_or(this.unread.len()).min(this.unread.len());
        let rest = this.unread.get(this.delivered_bytes..end).unwrap_or_default();
        if !rest.is_empty() {
            let count = rest.len().min(buffer.remaining());
            buffer.put_slice(rest.get(..count).unwrap_or_default());
            this.delivered_bytes += count;
            return Poll::Ready(Ok(()));
        }
        if this.delivery_limit.is_none() {
            return Pin::new(&mut this.inner).poll_read(cx, buffer);
        }
        // Whoever is told of the end would give the connection up with what it has not written yet.
        if !this.is_flushed {
            this.reader_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        this.is_end_reported = true;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for SingleRequestStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        self.is_flushed = false;
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_flush(cx);
        if outcome.is_ready() {
            self.is_flushed = true;
            if let Some(reader) = self.reader_waker.take() {
                reader.wake();
            }
        }
        outcome
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.is_end_reported {
            // It only seems to end.
            return self.poll_flush(cx);
        }
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.is_flushed = false;
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::SingleRequestStream;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_connection_seems_to_end_behind_the_first_request() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut one = SingleRequestStream::with_first_request(near, b"first second".to_vec(), 6);
        let mut read = String::new();
        one.write_all(b"answer").await.unwrap();
        one.flush().await.unwrap();
        one.read_to_string(&mut read).await.unwrap();
        assert_eq!((read.as_str(), one.is_answered()), ("first ", true));
        let (mut near, unread) = one.into_parts();
        assert_eq!(unread, b"second");
        near.write_all(b"more").await.unwrap();
        let mut seen = [0; 10];
        far.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"answermore");
    }

    #[tokio::test]
    async fn the_end_is_not_told_before_everything_is_written() {
        let (near, mut far) = tokio::io::duplex(4);
        let mut one = SingleRequestStream::with_first_request(near, Vec::new(), 0);
        one.write_all(b"1234").await.unwrap();
        let mut byte = [0; 1];
        let waits = tokio::time::timeout(std::time::Duration::ZERO, one.read(&mut byte)).await;
        assert!(waits.is_err());
        one.flush().await.unwrap();
        assert_eq!(one.read(&mut byte).await.unwrap(), 0);
        let mut seen = [0; 4];
        far.read_exact(&mut seen).await.unwrap();
    }

    #[tokio::test]
    async fn without_a_limit_nothing_is_held_back() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut one = SingleRequestStream::with_all_bytes(near, b"first ".to_vec());
        far.write_all(b"second").await.unwrap();
        drop(far);
        let mut read = String::new();
        one.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "first second");
    }
}
