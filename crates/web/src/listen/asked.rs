//! What the requests of one connection have in common, and how the service is asked for their answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use tower::{Service, ServiceExt};

use super::{Front, Peer};
use crate::limit::BodyLimit;
use crate::linger::{Expected, Linger};
use crate::seats::{Seat, Seated, Seats};
use crate::shortcut::Ready;
use crate::tls::Handshake;

/// What the requests of one connection have in common.
pub(super) struct Asked {
    peer: Peer,
    handshake: Option<Handshake>,
    pub(super) front: Arc<Front>,
    pub(super) seats: Arc<Seats>,
    pub(super) seat: Arc<Seat>,
    /// How many were asked.
    pub(super) requests: AtomicU64,
    /// Whether the client may be in the middle of a request.
    pub(super) expected: Expected,
}

impl Asked {
    pub(super) fn new(
        (peer, handshake): (Peer, Option<Handshake>),
        front: Arc<Front>,
        seated: &Seated,
    ) -> Self {
        let (seats, seat) = (Arc::clone(&seated.seats), Arc::clone(&seated.seat));
        let requests = AtomicU64::new(0);
        Self { peer, handshake, front, seats, seat, requests, expected: Expected::default() }
    }

    /// Makes a connection that ends so that its last answer arrives, and that seems to end when its seat is wanted.
    pub(super) fn linger<T>(&self, stream: T) -> Linger<T> {
        let counters = Arc::clone(&self.front.counters);
        Linger::new(stream, self.expected.clone()).seated(Arc::clone(&self.seat), counters)
    }

    /// Tells whether the answer that is given now is to be the last one.
    pub(super) fn is_to_end(&self) -> bool {
        self.front.drain.is_stopped() || self.seat.is_wanted() || self.seats.ask_back()
    }

    /// Returns an answer that is at hand, counts the request, and tells whether the answer is the connection's last.
    pub(super) fn shortcut(&self, head: &[u8]) -> Option<(Ready, bool)> {
        let shortcut = self.front.shortcut.as_ref()?;
        let mut ready = shortcut.answer(head, self.peer)?;
        let answered = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let is_last = answered >= self.front.limits.max_requests || self.is_to_end();
        if is_last {
            ready.close();
        }
        Some((ready, is_last))
    }

    /// Lets the service answer, unless the announced body is too large.
    pub(super) async fn answer<S, B>(
        &self,
        mut request: Request<Incoming>,
        service: S,
    ) -> Result<Response<Either<B, Full<Bytes>>>, S::Error>
    where
        S: Service<Request<Incoming>, Response = Response<B>>,
    {
        let limit = self.front.limits.body_bytes;
        if announced_length(&request) > limit {
            self.front.counters.bodies_refused.fetch_add(1, Ordering::Relaxed);
            return Ok(refuse_body(limit).map(Either::Right));
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

fn announced_length<B>(request: &Request<B>) -> u64 {
    request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse().ok())
        .unwrap_or(0)
}

fn refuse_body(limit: u64) -> Response<Full<Bytes>> {
    let mut response =
        Response::new(Full::from(format!("the body is larger than {limit} bytes\n")));
    *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
