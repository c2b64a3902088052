//! HTTP/1.1 connections: sequential requests, handled by the service alone or alternating with the fast path.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

use super::connection::ServedConnection;
use super::connection_context::{ConnectionContext, ListenBoxError, ListenService};
use super::listener_limit::ListenerLimits;
use crate::server::connection_limit::ConnectionActivity;
use crate::server::connection_socket::ConnectionSocket;
use crate::server::fast_path::{FastPath, KeepAlivePolicy, LentConnection, SingleRequestStream};
use crate::server::keep_alive::{self, KeepAliveInput};
use crate::server::linger::LingeringStream;
use crate::server::shortcut::send_ready_response;
use crate::server::write_timeout::WriteTimeoutStream;
use crate::tls::TlsHandshake;

impl<S: ListenService> ServedConnection<S> {
    pub(super) async fn serve_http1(
        self,
        wire: ConnectionSocket,
        handshake: Option<TlsHandshake>,
        fast_path: Option<Arc<dyn FastPath>>,
    ) -> Result<(), ListenBoxError> {
        match fast_path {
            None => {
                let stream =
                    WriteTimeoutStream::new(wire, self.listener_options.limits.write_timeout);
                self.serve_http1_stream(stream, handshake).await
            }
            Some(fast_path) => self.alternate_with_fast_path(&*fast_path, wire, handshake).await,
        }
    }

    async fn serve_http1_stream<T>(
        self,
        stream: T,
        handshake: Option<TlsHandshake>,
    ) -> Result<(), ListenBoxError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self {
            peer,
            listener_options: options,
            service,
            permit,
            end_signal,
            shutdown_watchers: (watcher, _),
        } = self;
        let builder = http1_builder(&options.limits);
        let context = Arc::new(ConnectionContext::new((peer, handshake), options, &permit));
        permit.activity.record_first_wait();
        let stream = context.lingering_stream(stream);
        let service = http1_service(Arc::clone(&context), service);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let outcome = serve_until_upgrade(connection, watcher, &context, &end_signal).await;
        drop(permit);
        outcome
    }

    /// Calls the service for one request after another, and holds only the socket between them.
    pub(super) async fn serve_plain_requests(
        self,
        stream: TcpStream,
    ) -> Result<(), ListenBoxError> {
        let Self {
            peer,
            listener_options: options,
            service,
            permit,
            end_signal: ending,
            shutdown_watchers: watchers,
        } = self;
        let context = Arc::new(ConnectionContext::new((peer, None), options, &permit));
        let (limits, activity) = (&context.listener_options.limits, &*permit.activity);
        activity.record_first_wait();
        let (mut stream, mut unread) =
            (WriteTimeoutStream::new(stream, limits.write_timeout), Vec::new());
        // Reuse both for many requests: creating and dropping them for each costs more than reading a head.
        let mut ends = ending.clone();
        let mut ended = pin!(wait_for_end_signal(&mut ends));
        let mut timer = pin!(tokio::time::sleep(limits.header_timeout));
        let mut is_leaving = false;
        loop {
            let now = Instant::now();
            if context.request_count.load(Ordering::Relaxed) > 0 {
                activity.record_idle(now);
            }
            let deadline = now + limits.header_timeout;
            let next =
                keep_alive::wait_for_input(&mut stream, &mut unread, limits.max_header_bytes);
            let next = tokio::select! {
                biased;
                next = next => next?,
                () = &mut ended => KeepAliveInput::End,
                () = activity.wait_eviction(), if !is_leaving => {
                    // Data that has arrived by now is handled as the last request.
                    is_leaving = true;
                    if !unread.is_empty() || !has_no_unread_input(stream.get_ref()) {
                        continue;
                    }
                    context.listener_options.counters.evicted.fetch_add(1, Ordering::Relaxed);
                    KeepAliveInput::End
                }
                () = sleep_until_deadline(timer.as_mut(), deadline) => {
                    let late = std::io::Error::new(std::io::ErrorKind::TimedOut, "no request head received");
                    return Err(late.into());
                }
            };
            let next = if unread.is_empty() || next != KeepAliveInput::End {
                next
            } else {
                KeepAliveInput::Other
            };
            // Box the state of hyper, because the task lives as long as the connection.
            match next {
                KeepAliveInput::End => return Ok(stream.shutdown().await?),
                KeepAliveInput::Request(length) => {
                    activity.record_active();
                    let head = unread.get(..length).unwrap_or_default();
                    if let Some((ready, is_last)) = context.try_shortcut(head) {
                        send_ready_response(stream.get_ref(), ready, limits.write_timeout).await?;
                        unread.drain(..length);
                        if is_last {
                            context.more_input_expected.set(!unread.is_empty());
                            return Ok(
                                Box::pin(finish_stream(context.lingering_stream(stream))).await?
                            );
                        }
                        if unread.is_empty() {
                            // A waiting connection holds no buffer.
                            unread = Vec::new();
                        } else {
                            // Yield to other connections after a client has sent many requests at once.
                            tokio::task::yield_now().await;
                        }
                        continue;
                    }
                    let service = http1_service(Arc::clone(&context), service.clone());
                    // The data has been read already, so the lingering stream does not see it.
                    context.more_input_expected.set(true);
                    let lingering = context.lingering_stream(stream);
                    let request_stream = SingleRequestStream::with_first_request(
                        lingering,
                        std::mem::take(&mut unread),
                        length,
                    );
                    match Box::pin(serve_single_request(limits, request_stream, service, &ending))
                        .await?
                    {
                        Some(left) => (stream, unread) = left,
                        None => return Ok(()),
                    }
                }
                KeepAliveInput::Other => {
                    let service = http1_service(Arc::clone(&context), service.clone());
                    context.more_input_expected.set(true);
                    activity.record_active();
                    let all = TokioIo::new(SingleRequestStream::with_all_bytes(
                        context.lingering_stream(stream),
                        unread,
                    ));
                    let connection = http1_builder(limits).serve_connection(all, service);
                    let serving = serve_until_upgrade(connection, watchers.0, &context, &ending);
                    return Box::pin(serving).await;
                }
            }
        }
    }

    /// Lets the fast path serve the connection, and the service each request that the fast path returns.
    async fn alternate_with_fast_path(
        self,
        fast_path: &dyn FastPath,
        wire: ConnectionSocket,
        handshake: Option<TlsHandshake>,
    ) -> Result<(), ListenBoxError> {
        let Self {
            peer,
            listener_options: options,
            service,
            permit,
            end_signal: ending,
            shutdown_watchers: watchers,
        } = self;
        let limits = options.limits.clone();
        let stopped = options.drain.subscribe_stop();
        let (builder, closing) =
            (http1_builder(&limits), KeepAlivePolicy::new(stopped, permit.limiter.supply()));
        let context = Arc::new(ConnectionContext::new((peer, handshake), options, &permit));
        let mut current = (wire, Vec::new());
        loop {
            let lent_connection = LentConnection {
                socket: current.0.detach_from_runtime()?,
                unread: current.1,
                peer,
                requests_left: limits
                    .max_requests
                    .saturating_sub(context.request_count.load(Ordering::Relaxed)),
                idle_timeout: limits.header_timeout,
                write_timeout: limits.write_timeout,
                keep_alive_policy: closing.clone(),
                end_signal: ending.clone(),
                http2: None,
            };
            let Some(handed) = fast_path.serve_connection(lent_connection).await else {
                return Ok(());
            };
            let answered = limits.max_requests.saturating_sub(handed.requests_left);
            context.request_count.store(answered, Ordering::Relaxed);
            let stream =
                WriteTimeoutStream::new(handed.socket.attach_to_runtime()?, limits.write_timeout);
            context.more_input_expected.set(true);
            let stream = context.lingering_stream(stream);
            let service = http1_service(Arc::clone(&context), service.clone());
            let Some(length) = handed.request_bytes else {
                let all = TokioIo::new(SingleRequestStream::with_all_bytes(stream, handed.unread));
                let connection = builder.serve_connection(all, service);
                return serve_until_upgrade(connection, watchers.0, &context, &ending).await;
            };
            let request_stream =
                SingleRequestStream::with_first_request(stream, handed.unread, length);
            match serve_single_request(&limits, request_stream, service, &ending).await? {
                Some((stream, unread)) => current = (stream.into_inner(), unread),
                None => return Ok(()),
            }
            // The fast path tracks its own idle connections.
            permit.activity.record_active();
        }
    }
}

/// Closes a connection so that its last response arrives.
async fn finish_stream<T: AsyncRead + AsyncWrite + Unpin>(
    mut stream: LingeringStream<T>,
) -> std::io::Result<()> {
    stream.shutdown().await
}

/// Returns true if the socket has no unread data.
fn has_no_unread_input(stream: &TcpStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let peeked = recv(stream, &mut [0_u8; 1][..], flags);
    peeked.is_err_and(|error| error == Errno::WOULDBLOCK)
}

/// Waits for a deadline with a timer that is postponed often and rarely expires: it fires early and sleeps on.
async fn sleep_until_deadline(mut timer: Pin<&mut Sleep>, deadline: Instant) {
    loop {
        timer.as_mut().await;
        if Instant::now() >= deadline {
            return;
        }
        timer.as_mut().reset(deadline);
    }
}

/// Waits until connections are to end.
async fn wait_for_end_signal(ending: &mut watch::Receiver<bool>) {
    // Without a sender the listener has ended.
    ending.wait_for(|is_ending| *is_ending).await.ok();
}

/// Lets hyper handle one request. Returns the connection, and the bytes read beyond the request, if the client may send
/// another one; otherwise the connection has ended.
async fn serve_single_request<T, S, B>(
    limits: &ListenerLimits,
    request_stream: SingleRequestStream<LingeringStream<T>>,
    service: S,
    ending: &watch::Receiver<bool>,
) -> Result<Option<(T, Vec<u8>)>, ListenBoxError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<ListenBoxError>,
    B: Body + 'static,
    B::Error: Into<ListenBoxError>,
{
    let mut connection =
        http1_builder(limits).serve_connection(TokioIo::new(request_stream), service);
    // Do not use `without_shutdown`: it drops a connection that is to end before written data is sent.
    (&mut connection).await?;
    let mut request_stream = connection.into_parts().io.into_inner();
    if !request_stream.is_answered() {
        return Ok(None);
    }
    if *ending.borrow() {
        request_stream.shutdown_inner().await?;
        return Ok(None);
    }
    let (stream, mut unread) = request_stream.into_parts();
    let (stream, early_input) = stream.into_parts();
    unread.extend(early_input);
    Ok(Some((stream, unread)))
}

/// Lets hyper handle all further requests, and then runs the protocol that the connection changed to, if it did.
async fn serve_until_upgrade<T, S, B>(
    connection: http1::Connection<TokioIo<T>, S>,
    watcher: Watcher,
    context: &ConnectionContext,
    end_signal: &watch::Receiver<bool>,
) -> Result<(), ListenBoxError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<ListenBoxError>,
    B: Body + 'static,
    B::Error: Into<ListenBoxError>,
{
    // The shutdown waits for the watcher, which by itself watches only connections that cannot be upgraded.
    let _until_answered = watcher;
    let mut connection = pin!(connection.with_upgrades());
    let mut end_signal = end_signal.clone();
    tokio::select! {
        biased;
        outcome = connection.as_mut() => outcome?,
        () = wait_for_end_signal(&mut end_signal) => {
            connection.as_mut().graceful_shutdown();
            connection.await?;
        }
    }
    context.run_tunnel(&end_signal).await;
    Ok(())
}

fn http1_builder(limits: &ListenerLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_header_size(limits.max_header_bytes)
        .max_buf_size(limits.max_header_bytes.max(64 * 1024))
        .half_close(true);
    builder
}

/// Returns the service of one HTTP/1.1 connection.
fn http1_service<S: ListenService>(
    context: Arc<ConnectionContext>,
    service: S,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = Response<Either<S::ResponseBody, Full<Bytes>>>,
    Error = S::Error,
    Future: Send,
> {
    hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let (context, service) = (Arc::clone(&context), service.clone());
        async move {
            context.disconnect_detection.disable();
            request.extensions_mut().insert(context.disconnect_detection.clone());
            if request.headers().contains_key(header::UPGRADE) {
                request.extensions_mut().insert(context.tunnel.clone());
            }
            context.more_input_expected.set(!request.body().is_end_stream());
            let answering = ResponseInProgress::begin(&context.activity);
            let is_last = context.request_count.fetch_add(1, Ordering::Relaxed) + 1
                >= context.listener_options.limits.max_requests;
            let mut response = context.serve_request(request, service).await?;
            drop(answering);
            let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
            if !is_upgrade && (is_last || context.must_close()) {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            Ok::<_, S::Error>(response)
        }
    })
}

/// Marks a request as in progress until it is dropped.
struct ResponseInProgress<'a>(&'a ConnectionActivity);

impl<'a> ResponseInProgress<'a> {
    fn begin(activity: &'a ConnectionActivity) -> Self {
        activity.record_active();
        Self(activity)
    }
}

impl Drop for ResponseInProgress<'_> {
    fn drop(&mut self) {
        self.0.record_answered();
    }
}

#[cfg(test)]
mod tests {
    use super::{LingeringStream, ListenerLimits, SingleRequestStream, serve_single_request};
    use crate::server::linger::MoreInputExpected;
    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Full;
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use std::convert::Infallible;
    use tokio::io::{AsyncReadExt, DuplexStream};
    use tokio::sync::watch;

    /// Handles one request of a client that accepts data in small pieces. Returns the received response, and whether
    /// the connection continues.
    async fn exchange(head: &str) -> (String, bool) {
        let (near, mut far) = tokio::io::duplex(16);
        let ending = watch::channel(false);
        let unread = head.as_bytes().to_vec();
        let answering = tokio::spawn(async move {
            let stream: LingeringStream<DuplexStream> =
                LingeringStream::new(near, MoreInputExpected::default());
            let request_stream =
                SingleRequestStream::with_first_request(stream, unread.clone(), unread.len());
            let service = service_fn(|_: Request<Incoming>| async {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"body"))))
            });
            serve_single_request(&ListenerLimits::default(), request_stream, service, &ending.1)
                .await
                .is_ok_and(|left| left.is_some())
        });
        let mut response = String::new();
        far.read_to_string(&mut response).await.unwrap();
        (response, answering.await.unwrap())
    }

    #[tokio::test]
    async fn unreadable_requests_are_answered_with_an_error() {
        let (response, goes_on) = exchange("GET /<a> HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{response}");
        assert!(response.ends_with("\r\n\r\n"), "{response}");
        assert!(!goes_on);
    }

    #[tokio::test]
    async fn an_answer_goes_out_whole_whether_or_not_it_is_the_last() {
        for (close, expected) in [("", true), ("Connection: close\r\n", false)] {
            let head = format!("GET /a HTTP/1.1\r\nHost: h\r\n{close}\r\n");
            let (response, goes_on) = exchange(&head).await;
            assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
            assert!(response.ends_with("\r\n\r\nbody"), "{response}");
            assert_eq!(goes_on, expected, "{close}");
        }
    }
}
