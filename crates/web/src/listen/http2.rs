//! Connections of HTTP/2: streams that the service answers, alone or beside a lane.

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
use tower::Service;
use tracing::debug;

use super::asked::Asked;
use super::connection::Connection;
use super::{BoxError, Limits};
use crate::lane::{Closing, Http2, Lane, Lent, STREAM_WINDOW, connection_window};
use crate::meter::{Closed, Meter, Streams};
use crate::stall::WriteStall;
use crate::tls::Handshake;
use crate::wire::{Socket, Wire};

/// What one stream of HTTP/2 may hold that its client has not taken.
const HTTP_2_SEND_BYTES: usize = 128 * 1024;

/// An answer may wait so many times as long for a client that takes others: many at once take turns on a slow network.
const ONE_STALL: u32 = 4;

/// Streams that a client may reset before they are looked at, or by its own mistakes.
const HTTP_2_RESETS: usize = 20;

impl<S, B> Connection<S>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    pub(super) async fn speak_http2<T>(
        self,
        stream: T,
        handshake: Handshake,
    ) -> Result<(), BoxError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { peer, front, service, seated, watchers: (_, watcher), .. } = self;
        let patience = Waits::of_clients(&front.limits);
        let asked = Arc::new(Asked::new((peer, Some(handshake)), front, &seated));
        seated.seat.note_first();
        let outcome = answer_streams(asked, service, stream, (Some(watcher), patience)).await;
        drop(seated);
        outcome
    }

    /// Lets the lane serve a connection of HTTP/2, and the service answer what is not for the lane.
    pub(super) async fn share_streams(
        self,
        lane: &dyn Lane,
        stream: TlsStream<Socket>,
        handshake: Handshake,
    ) -> Result<(), BoxError> {
        let Self { peer, front, service, seated, watchers: (_, watcher), .. } = self;
        let limits = front.limits.clone();
        // HTTP/2 tells its clients itself which requests were not seen, so it need not linger.
        let ending = front.drain.stopping();
        let closing = Closing::new(ending.clone(), &seated.seats);
        let asked = Arc::new(Asked::new((peer, Some(handshake)), front, &seated));
        let (opening, mut opened) = mpsc::unbounded_channel();
        let http2 = Http2 {
            max_streams: limits.max_streams,
            header_bytes: limits.header_bytes,
            service: opening,
        };
        let lent = Lent {
            wire: Wire::tls(stream).lend()?,
            unread: Vec::new(),
            peer,
            requests_left: u64::MAX,
            idle_timeout: limits.header_timeout,
            stall_timeout: limits.stall_timeout,
            closing,
            ending,
            http2: Some(http2),
        };
        let mut serving = lane.serve(lent);
        let mut behind = JoinSet::new();
        loop {
            tokio::select! {
                handed = &mut serving => {
                    let Some(handed) = handed else { return Ok(()) };
                    // The lane serves nobody any more, and has read nothing.
                    let wire = handed.wire.take_back()?;
                    let stream = WriteStall::new(wire, limits.stall_timeout);
                    let watch = (Some(watcher), Waits::of_clients(&limits));
                    return answer_streams(asked, service, stream, watch).await;
                }
                Some(stream) = opened.recv() => {
                    let (asked, service) = (Arc::clone(&asked), service.clone());
                    // The lane ends it when nothing is asked, and answers that nobody takes.
                    behind.spawn(async move {
                        let ended = answer_streams(asked, service, stream, (None, Waits::FOR_EVER));
                        ended.await.inspect_err(|error| debug!(reason = %error, "streams ended early"))
                    });
                }
                Some(_ended) = behind.join_next() => {}
            }
        }
    }
}

/// How long the client of a connection of HTTP/2 is waited for.
#[derive(Debug, Clone, Copy)]
struct Waits {
    /// For a request.
    idle: Duration,
    /// Until it takes something of its answers.
    stall: Duration,
    /// Until it takes something of one answer while it takes others.
    one_stall: Duration,
}

impl Waits {
    const FOR_EVER: Self =
        Self { idle: Duration::MAX, stall: Duration::MAX, one_stall: Duration::MAX };

    fn of_clients(limits: &Limits) -> Self {
        let stall = limits.stall_timeout;
        Self { idle: limits.header_timeout, stall, one_stall: stall.saturating_mul(ONE_STALL) }
    }
}

/// Lets the service answer the streams of a connection, until it ends or is waited for too long.
async fn answer_streams<S, B, T>(
    asked: Arc<Asked>,
    service: S,
    stream: T,
    (watcher, waits): (Option<Watcher>, Waits),
) -> Result<(), BoxError>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (limits, own) = (asked.front.limits.clone(), Arc::clone(&asked));
    let is_seated = watcher.is_some();
    let meter = Meter::new(is_seated.then(|| Arc::clone(&asked.seat)));
    let streams = Arc::clone(&meter);
    let answer = move |request: Request<Incoming>| {
        let stream = streams.begin();
        let (asked, service) = (Arc::clone(&asked), service.clone());
        async move {
            let is_head = request.method() == Method::HEAD;
            let mut response = asked.answer(request, service).await?;
            if is_head {
                response = without_body(response);
            }
            if is_seated && !asked.seat.is_wanted() && asked.seats.ask_back() {
                asked.seat.want();
            }
            Ok::<_, S::Error>(response.map(|body| stream.answer(Box::pin(body))))
        }
    };
    let connection = http2::Builder::new(Streams { after: waits.one_stall })
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(connection_window(limits.max_streams))
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(limits.max_streams)
        .max_send_buf_size(HTTP_2_SEND_BYTES)
        .max_pending_accept_reset_streams(HTTP_2_RESETS)
        .max_local_error_reset_streams(HTTP_2_RESETS)
        .serve_connection(TokioIo::new(stream), hyper::service::service_fn(answer));
    let connection = async {
        let Some(_until_the_end) = watcher else { return connection.await };
        let mut connection = pin!(connection);
        tokio::select! {
            biased;
            outcome = &mut connection => return outcome,
            () = own.front.drain.stopped() => {}
            () = own.seat.wanted() => {
                if own.seat.is_waiting() {
                    own.front.counters.evicted.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        // The client is told which requests were seen, and those are answered.
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    tokio::select! {
        outcome = connection => outcome.map_err(BoxError::from),
        closed = meter.closed(waits.idle, waits.stall) => match closed {
            Closed::Idle => Ok(()),
            closed @ (Closed::Stalled | Closed::Flood) => Err(closed.into()),
        },
    }
}

/// Leaves out the body of an answer to HEAD, of which hyper sends only HTTP/1.1's without one.
fn without_body<B: Body<Data = Bytes>>(
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
