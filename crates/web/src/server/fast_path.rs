//! Fast path in front of the service: handles simple requests with less work than hyper, and alternates with it.
//!
//! A connection is lent to the fast path. The fast path handles its requests until one arrives that it leaves to the
//! service. It then returns the connection together with the bytes of that request, unhandled and unchanged.
//!
//! Invariants
//! * Bytes reach hyper exactly as the client sent them: the fast path never changes what it returns.
//! * After [`ReturnedConnection::request_bytes`] hyper gets exactly one request, and the connection goes back to the
//!   fast path when the response is written; without it hyper has the connection permanently.
//! * An HTTP/2 connection stays with the fast path, as its requests share state, unless the fast path is closed.
//!   Requests for the service are forwarded over HTTP/2 connections within the process
//!   ([`FastPathHttp2::service_pipes`]).

use std::fmt::Debug;
use std::future::Future;
use std::io::Result;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::{mpsc, watch};

use crate::server::connection_socket::ConnectionSocket;
use crate::server::listen::{ConnectionPeer, ListenerCounters};
use crate::server::permit_supply::PermitSupply;

/// Serves connections outside the runtime.
pub trait FastPath: Send + Sync + Debug {
    /// Returns true if new connections are accepted.
    fn is_open(&self) -> bool;

    /// Serves a connection until it ends (`None`) or is returned.
    fn serve_connection(
        &self,
        lent_connection: LentConnection,
    ) -> Pin<Box<dyn Future<Output = Option<ReturnedConnection>> + Send>>;

    /// Closes about `count` idle connections, the longest idle first, because other clients need their permits. They
    /// are counted as evicted.
    fn evict_idle(&self, count: usize, counters: &Arc<ListenerCounters>);
}

/// Determines whether responses are to be the last of their connections.
#[derive(Debug, Clone)]
pub struct KeepAlivePolicy {
    stop_signal: watch::Receiver<bool>,
    permit_supply: Option<Arc<PermitSupply>>,
}

impl KeepAlivePolicy {
    pub(crate) fn new(stopped: watch::Receiver<bool>, supply: &Arc<PermitSupply>) -> Self {
        Self { stop_signal: stopped, permit_supply: Some(Arc::clone(supply)) }
    }

    /// Creates a policy that closes connections only after the shutdown began, when `stopped` is true.
    #[must_use]
    pub fn until_stopped(stopped: watch::Receiver<bool>) -> Self {
        Self { stop_signal: stopped, permit_supply: None }
    }

    /// Returns true if a response sent now is to be the last one of its connection: the listener is shutting down, or
    /// permits are scarce.
    #[must_use]
    pub fn must_close(&self) -> bool {
        *self.stop_signal.borrow()
            || self.permit_supply.as_ref().is_some_and(|supply| supply.must_close_connection())
    }
}

/// A connection handed to the fast path.
#[derive(Debug)]
pub struct LentConnection {
    /// The socket, detached from the runtime.
    pub socket: ConnectionSocket,
    /// Data that was read from it and not handled.
    pub unread: Vec<u8>,
    /// The peer.
    pub peer: ConnectionPeer,
    /// Number of requests that may still be handled; the last response closes the connection.
    pub requests_left: u64,
    /// Maximum time until the next request is complete.
    pub idle_timeout: Duration,
    /// Maximum time in which a client may read nothing of its response.
    pub write_timeout: Duration,
    /// Determines whether a response is the last one of the connection.
    pub keep_alive_policy: KeepAlivePolicy,
    /// True when the connection is to end, even without a response.
    pub end_signal: watch::Receiver<bool>,
    /// Data required for an HTTP/2 connection; `None` for HTTP/1.1.
    pub http2: Option<FastPathHttp2>,
}

/// Flow-control window of a request body over HTTP/2 that is forwarded to the service, in bytes.
pub const HTTP2_STREAM_WINDOW: u32 = 256 * 1024;

/// Returns the flow-control window of a connection with `max_streams` streams: the sum of all their windows, so that a
/// body that is not being read does not block another one.
#[must_use]
pub const fn http2_connection_window(max_streams: u32) -> u32 {
    // The initial value of the specification (RFC 9113, section 6.9.2), and its maximum.
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

/// Data that the fast path needs to serve an HTTP/2 connection. The fast path may return such a connection only if it
/// has not read from it.
#[derive(Debug)]
pub struct FastPathHttp2 {
    /// Maximum number of open streams.
    pub max_streams: u32,
    /// Maximum size of a request's header fields, as HTTP/2 counts it.
    pub max_header_bytes: usize,
    /// Accepts one end of a pipe, on which the service acts as an HTTP/2 server with prior knowledge. The client may
    /// send [`HTTP2_STREAM_WINDOW`] bytes of each body, and [`http2_connection_window`] of all.
    pub service_pipes: mpsc::UnboundedSender<DuplexStream>,
}

/// A connection returned by the fast path.
#[derive(Debug)]
pub struct ReturnedConnection {
    /// The socket, detached from the runtime.
    pub socket: ConnectionSocket,
    /// Data that was read from it and not handled.
    pub unread: Vec<u8>,
    /// The number at lending, minus the handled requests.
    pub requests_left: u64,
    /// If set, this number of the bytes forms one complete request without a body, after which the fast path continues.
    pub request_bytes: Option<usize>,
}

/// A connection with bytes that were read already, which may report an end after the first request.
#[derive(Debug)]
pub(crate) struct SingleRequestStream<T> {
    inner: T,
    unread: Vec<u8>,
    /// Number of these bytes that were delivered.
    delivered_bytes: usize,
    /// Number of bytes delivered before the end is reported; `None` if the stream continues.
    delivery_limit: Option<usize>,
    /// True if everything that was written has been flushed.
    is_flushed: bool,
    /// True if the end was reported to the reader.
    is_end_reported: bool,
    reader_waker: Option<Waker>,
}

impl<T> SingleRequestStream<T> {
    /// Delivers `unread` and then further data.
    pub(crate) fn with_all_bytes(inner: T, unread: Vec<u8>) -> Self {
        Self { delivery_limit: None, ..Self::with_first_request(inner, unread, 0) }
    }

    /// Delivers the first `length` bytes of `unread`.
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

    /// Returns true if the request was answered and the client may send another one.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_end_reported
    }

    /// Returns the connection, and the bytes that were read from it and not delivered.
    pub(crate) fn into_parts(mut self) -> (T, Vec<u8>) {
        self.unread.drain(..self.delivered_bytes.min(self.unread.len()));
        // A connection may wait for a long time and must not retain the memory of its largest head.
        self.unread.shrink_to_fit();
        (self.inner, self.unread)
    }
}

impl<T: AsyncWrite + Unpin> SingleRequestStream<T> {
    /// Shuts down the underlying connection.
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
        // Do not report the end before the flush: the reader would drop the connection with its unwritten data.
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
            // The end is only simulated.
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
        let mut request_stream =
            SingleRequestStream::with_first_request(near, b"first second".to_vec(), 6);
        let mut read = String::new();
        request_stream.write_all(b"answer").await.unwrap();
        request_stream.flush().await.unwrap();
        request_stream.read_to_string(&mut read).await.unwrap();
        assert_eq!((read.as_str(), request_stream.is_answered()), ("first ", true));
        let (mut near, unread) = request_stream.into_parts();
        assert_eq!(unread, b"second");
        near.write_all(b"more").await.unwrap();
        let mut received = [0; 10];
        far.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"answermore");
    }

    #[tokio::test]
    async fn the_end_is_not_reported_before_everything_is_written() {
        let (near, mut far) = tokio::io::duplex(4);
        let mut request_stream = SingleRequestStream::with_first_request(near, Vec::new(), 0);
        request_stream.write_all(b"1234").await.unwrap();
        let mut byte = [0; 1];
        let waits =
            tokio::time::timeout(std::time::Duration::ZERO, request_stream.read(&mut byte)).await;
        assert!(waits.is_err());
        request_stream.flush().await.unwrap();
        assert_eq!(request_stream.read(&mut byte).await.unwrap(), 0);
        let mut received = [0; 4];
        far.read_exact(&mut received).await.unwrap();
    }

    #[tokio::test]
    async fn without_a_limit_nothing_is_held_back() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut request_stream = SingleRequestStream::with_all_bytes(near, b"first ".to_vec());
        far.write_all(b"second").await.unwrap();
        drop(far);
        let mut read = String::new();
        request_stream.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "first second");
    }
}
