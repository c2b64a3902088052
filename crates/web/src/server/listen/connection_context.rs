//! The state shared by the requests of one connection, and the calls of the service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use hyper::body::{Body, Incoming};
use tokio::sync::watch;
use tower::{Service, ServiceExt};

use super::connection_peer::ConnectionPeer;
use super::listener_option::ListenerOptions;
use crate::server::body_limit::BodyLimit;
use crate::server::connection_limit::{ConnectionActivity, ConnectionLimiter, ConnectionPermit};
use crate::server::connection_tunnel::ConnectionTunnel;
use crate::server::disconnect_detection::DisconnectDetection;
use crate::server::linger::{LingeringStream, MoreInputExpected};
use crate::server::shortcut::ReadyResponse;
use crate::tls::TlsHandshake;

/// The error of a service or of a body.
pub(super) type ListenBoxError = Box<dyn std::error::Error + Send + Sync>;

/// A service that responds to the requests of connections.
pub trait ListenService:
    Service<
        Request<Incoming>,
        Response = Response<<Self as ListenService>::ResponseBody>,
        Error: Into<ListenBoxError>,
        Future: Send,
    > + Clone
    + Send
    + 'static
{
    /// The body of its responses.
    type ResponseBody: Body<Data = Bytes, Error: Into<ListenBoxError>> + Send + 'static;
}

impl<S, B> ListenService for S
where
    S: Service<
            Request<Incoming>,
            Response = Response<B>,
            Error: Into<ListenBoxError>,
            Future: Send,
        > + Clone
        + Send
        + 'static,
    B: Body<Data = Bytes, Error: Into<ListenBoxError>> + Send + 'static,
{
    type ResponseBody = B;
}

/// The state shared by the requests of one connection.
pub(super) struct ConnectionContext {
    peer: ConnectionPeer,
    handshake: Option<TlsHandshake>,
    pub(super) listener_options: Arc<ListenerOptions>,
    pub(super) connection_limiter: Arc<ConnectionLimiter>,
    pub(super) activity: Arc<ConnectionActivity>,
    /// Number of requests.
    pub(super) request_count: AtomicU64,
    /// True if the client may be in the middle of a request.
    pub(super) more_input_expected: MoreInputExpected,
    pub(super) disconnect_detection: DisconnectDetection,
    pub(super) tunnel: ConnectionTunnel,
}

impl ConnectionContext {
    pub(super) fn new(
        (peer, handshake): (ConnectionPeer, Option<TlsHandshake>),
        options: Arc<ListenerOptions>,
        permit: &ConnectionPermit,
    ) -> Self {
        let (limiter, activity) = (Arc::clone(&permit.limiter), Arc::clone(&permit.activity));
        let requests = AtomicU64::new(0);
        Self {
            peer,
            handshake,
            listener_options: options,
            connection_limiter: limiter,
            activity,
            request_count: requests,
            more_input_expected: MoreInputExpected::default(),
            disconnect_detection: DisconnectDetection::default(),
            tunnel: ConnectionTunnel::default(),
        }
    }

    /// Creates a stream with a lingering close, which reports its end when its permit is needed.
    pub(super) fn lingering_stream<T>(&self, stream: T) -> LingeringStream<T> {
        let counters = Arc::clone(&self.listener_options.counters);
        LingeringStream::new(stream, self.more_input_expected.clone())
            .with_activity(Arc::clone(&self.activity), counters)
            .with_disconnect_detection(self.disconnect_detection.clone())
    }

    /// Runs what follows HTTP on this connection, if anything does, until the shutdown.
    pub(super) async fn run_tunnel(&self, end_signal: &watch::Receiver<bool>) {
        let Some(tunnel) = self.tunnel.take() else { return };
        // Not idle, however long it is silent.
        self.activity.record_active();
        let mut end_signal = end_signal.clone();
        tokio::select! {
            () = tunnel => {}
            // Without a sender the listener has ended.
            _ended = end_signal.wait_for(|is_ending| *is_ending) => {}
        }
    }

    /// Returns true if the current response is to be the last one.
    pub(super) fn must_close(&self) -> bool {
        self.listener_options.drain.is_stopped()
            || self.activity.is_eviction_requested()
            || self.connection_limiter.supply().must_close_connection()
    }

    /// Returns a response of the shortcut, and whether it is the connection's last; counts the request.
    pub(super) fn try_shortcut(&self, head: &[u8]) -> Option<(ReadyResponse, bool)> {
        let shortcut = self.listener_options.shortcut.as_ref()?;
        let mut response = shortcut.try_respond(head, self.peer)?;
        let answered = self.request_count.fetch_add(1, Ordering::Relaxed) + 1;
        let is_last = answered >= self.listener_options.limits.max_requests || self.must_close();
        if is_last {
            response.mark_connection_close();
        }
        Some((response, is_last))
    }

    /// Calls the service, unless the head or the announced body is too large.
    pub(super) async fn serve_request<S, B>(
        &self,
        mut request: Request<Incoming>,
        service: S,
    ) -> Result<Response<Either<B, Full<Bytes>>>, S::Error>
    where
        S: Service<Request<Incoming>, Response = Response<B>>,
    {
        let limits = &self.listener_options.limits;
        if exceeds_header_limit(&request, limits.max_header_bytes) {
            return Ok(header_too_large_response().map(Either::Right));
        }
        let limit = limits.max_body_bytes;
        if announced_length(&request) > limit {
            self.listener_options.counters.bodies_refused.fetch_add(1, Ordering::Relaxed);
            return Ok(body_too_large_response(limit).map(Either::Right));
        }
        let extensions = request.extensions_mut();
        extensions.insert(self.peer);
        extensions.insert(BodyLimit(limit));
        if let Some(handshake) = &self.handshake {
            extensions.insert(handshake.clone());
        }
        let response = service.oneshot(request).await;
        response.map(|response| response.map(Either::Left))
    }
}

/// Maximum number of header fields of a request; those of `Cookie`, which HTTP/2 may split, count as one.
const MAX_HEADER_FIELDS: usize = 100;
/// What a field counts besides its name and value (RFC 9113, section 6.5.2).
const FIELD_OVERHEAD_BYTES: usize = 32;
/// The fields of HTTP/2 for the method, the scheme and the target.
const PSEUDO_FIELD_BYTES: usize = ":method".len() + ":scheme".len() + "https".len() + ":path".len();

/// Returns true if the fields of a request exceed the limit, counted as HTTP/2 counts them in both versions.
fn exceeds_header_limit<B>(request: &Request<B>, max_bytes: usize) -> bool {
    let headers = request.headers();
    let cookie_lines = headers.get_all(header::COOKIE).iter().count();
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let fields = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD_BYTES)
        .sum::<usize>();
    let line =
        PSEUDO_FIELD_BYTES + 3 * FIELD_OVERHEAD_BYTES + request.method().as_str().len() + target;
    headers.len() - cookie_lines.saturating_sub(1) > MAX_HEADER_FIELDS || line + fields > max_bytes
}

fn header_too_large_response() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn announced_length<B>(request: &Request<B>) -> u64 {
    request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse().ok())
        .unwrap_or(0)
}

fn body_too_large_response(limit: u64) -> Response<Full<Bytes>> {
    let mut response =
        Response::new(Full::from(format!("the body is larger than {limit} bytes\n")));
    *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
