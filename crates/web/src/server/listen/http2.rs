//! HTTP/2 connections: streams handled by the service, alone or together with the fast path.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use http_body::Body;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;
use tracing::debug;

use super::connection::ServedConnection;
use super::connection_context::{ConnectionContext, ListenBoxError, ListenService};
use super::listener_limit::ListenerLimits;
use crate::server::connection_socket::{ConnectionSocket, LendableSocket};
use crate::server::fast_path::{
    FastPath, FastPathHttp2, HTTP2_STREAM_WINDOW, KeepAlivePolicy, LentConnection,
    http2_connection_window,
};
use crate::server::http2_monitor::{Http2CloseReason, StreamExecutor, StreamMonitor};
use crate::server::write_timeout::WriteTimeoutStream;
use crate::tls::TlsHandshake;

/// Maximum number of bytes that an HTTP/2 stream buffers for its client.
const HTTP2_STREAM_SEND_BUFFER_BYTES: usize = 128 * 1024;

/// Factor by which the timeout of one response is longer if the client reads others: parallel streams take turns on a
/// slow network.
const SINGLE_STREAM_TIMEOUT_FACTOR: u32 = 4;

/// Maximum number of streams that a client may reset before they are handled, or because of its own errors.
const MAX_HTTP2_RESETS: usize = 20;

impl<S: ListenService> ServedConnection<S> {
    pub(super) async fn serve_http2<T>(
        self,
        stream: T,
        handshake: TlsHandshake,
    ) -> Result<(), ListenBoxError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self {
            peer,
            listener_options: options,
            service,
            permit,
            shutdown_watchers: (_, watcher),
            ..
        } = self;
        let timeouts = Http2Timeouts::from_limits(&options.limits);
        let context = Arc::new(ConnectionContext::new((peer, Some(handshake)), options, &permit));
        permit.activity.record_first_wait();
        let outcome = serve_http2_streams(context, service, stream, Some(watcher), timeouts).await;
        drop(permit);
        outcome
    }

    /// Lets the fast path serve an HTTP/2 connection, and the service the requests that the fast path forwards.
    pub(super) async fn serve_http2_with_fast_path(
        self,
        fast_path: &dyn FastPath,
        stream: TlsStream<LendableSocket>,
        handshake: TlsHandshake,
    ) -> Result<(), ListenBoxError> {
        let Self {
            peer,
            listener_options: options,
            service,
            permit,
            shutdown_watchers: (_, watcher),
            ..
        } = self;
        let limits = options.limits.clone();
        // HTTP/2 itself tells clients which requests were not handled, so it needs no linger time.
        let ending = options.drain.subscribe_stop();
        let closing = KeepAlivePolicy::new(ending.clone(), permit.limiter.supply());
        let context = Arc::new(ConnectionContext::new((peer, Some(handshake)), options, &permit));
        let (opening, mut opened) = mpsc::unbounded_channel();
        let http2 = FastPathHttp2 {
            max_streams: limits.max_streams,
            max_header_bytes: limits.max_header_bytes,
            service_pipes: opening,
        };
        let lent_connection = LentConnection {
            socket: ConnectionSocket::from_tls(stream).detach_from_runtime()?,
            unread: Vec::new(),
            peer,
            requests_left: u64::MAX,
            idle_timeout: limits.header_timeout,
            write_timeout: limits.write_timeout,
            keep_alive_policy: closing,
            end_signal: ending,
            http2: Some(http2),
        };
        let mut serving = fast_path.serve_connection(lent_connection);
        let mut behind = JoinSet::new();
        loop {
            tokio::select! {
                handed = &mut serving => {
                    let Some(handed) = handed else { return Ok(()) };
                    // The fast path is closed, and has read nothing.
                    let wire = handed.socket.attach_to_runtime()?;
                    let stream = WriteTimeoutStream::new(wire, limits.write_timeout);
                    let timeouts = Http2Timeouts::from_limits(&limits);
                    return serve_http2_streams(context, service, stream, Some(watcher), timeouts).await;
                }
                Some(stream) = opened.recv() => {
                    let (asked, service) = (Arc::clone(&context), service.clone());
                    // The fast path closes it when it is idle, and cancels stalled responses.
                    behind.spawn(async move {
                        let ended = serve_http2_streams(asked, service, stream, None, Http2Timeouts::UNBOUNDED);
                        ended.await.inspect_err(|error| debug!(reason = %error, "streams ended early"))
                    });
                }
                Some(_ended) = behind.join_next() => {}
            }
        }
    }
}

/// Timeouts for the client of an HTTP/2 connection.
#[derive(Debug, Clone, Copy)]
struct Http2Timeouts {
    /// Maximum time without a request.
    idle_timeout: Duration,
    /// Maximum time without a read of any response.
    write_timeout: Duration,
    /// Maximum time without a read of one response while the client reads others.
    stream_write_timeout: Duration,
}

impl Http2Timeouts {
    const UNBOUNDED: Self = Self {
        idle_timeout: Duration::MAX,
        write_timeout: Duration::MAX,
        stream_write_timeout: Duration::MAX,
    };

    fn from_limits(limits: &ListenerLimits) -> Self {
        let write_timeout = limits.write_timeout;
        Self {
            idle_timeout: limits.header_timeout,
            write_timeout,
            stream_write_timeout: write_timeout.saturating_mul(SINGLE_STREAM_TIMEOUT_FACTOR),
        }
    }
}

/// Calls the service for the streams of a connection, until it ends or times out.
async fn serve_http2_streams<S, T>(
    context: Arc<ConnectionContext>,
    service: S,
    stream: T,
    watcher: Option<Watcher>,
    waits: Http2Timeouts,
) -> Result<(), ListenBoxError>
where
    S: ListenService,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (limits, own) = (context.listener_options.limits.clone(), Arc::clone(&context));
    let is_seated = watcher.is_some();
    let meter = StreamMonitor::new(is_seated.then(|| Arc::clone(&context.activity)));
    let streams = Arc::clone(&meter);
    let respond = move |request: Request<Incoming>| {
        let stream = streams.begin_stream();
        let (context, service) = (Arc::clone(&context), service.clone());
        async move {
            let is_head = request.method() == Method::HEAD;
            let mut response = context.serve_request(request, service).await?;
            if is_head {
                response = drop_response_body(response);
            }
            if is_seated
                && !context.activity.is_eviction_requested()
                && context.connection_limiter.supply().must_close_connection()
            {
                context.activity.request_eviction();
            }
            Ok::<_, S::Error>(response.map(|body| stream.monitor_body(Box::pin(body))))
        }
    };
    let connection =
        http2::Builder::new(StreamExecutor { write_timeout: waits.stream_write_timeout })
            .timer(TokioTimer::new())
            .initial_stream_window_size(HTTP2_STREAM_WINDOW)
            .initial_connection_window_size(http2_connection_window(limits.max_streams))
            .max_header_list_size(u32::try_from(limits.max_header_bytes).unwrap_or(u32::MAX))
            .max_concurrent_streams(limits.max_streams)
            .max_send_buf_size(HTTP2_STREAM_SEND_BUFFER_BYTES)
            .max_pending_accept_reset_streams(MAX_HTTP2_RESETS)
            .max_local_error_reset_streams(MAX_HTTP2_RESETS)
            .serve_connection(TokioIo::new(stream), hyper::service::service_fn(respond));
    let connection = async {
        let Some(_until_the_end) = watcher else { return connection.await };
        let mut connection = pin!(connection);
        tokio::select! {
            biased;
            outcome = &mut connection => return outcome,
            () = own.listener_options.drain.wait_stopped() => {}
            () = own.activity.wait_eviction() => {
                if own.activity.is_idle() {
                    own.listener_options.counters.evicted.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        // Tells the client which requests were received; those are answered.
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    tokio::select! {
        outcome = connection => outcome.map_err(ListenBoxError::from),
        closed = meter.wait_close_reason(waits.idle_timeout, waits.write_timeout) => match closed {
            Http2CloseReason::Idle => Ok(()),
            closed @ (Http2CloseReason::WriteTimeout | Http2CloseReason::CancelFlood) => Err(closed.into()),
        },
    }
}

/// Drops the body of a response to HEAD; hyper does so only for HTTP/1.1.
fn drop_response_body<B: Body<Data = Bytes>>(
    mut response: Response<Either<B, Full<Bytes>>>,
) -> Response<Either<B, Full<Bytes>>> {
    let hint = match response.body() {
        Either::Left(body) => body.size_hint(),
        Either::Right(body) => body.size_hint(),
    };
    if let Some(length) = hint.exact().filter(|length| *length > 0) {
        let length = HeaderValue::from(length);
        response.headers_mut().entry(header::CONTENT_LENGTH).or_insert(length);
    }
    response.map(|_body| Either::Right(Full::default()))
}
