//! One connection, from the accept to the protocol that is spoken on it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::server::graceful::Watcher;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tower::Service;
use tracing::debug;

use super::counters::Place;
use super::refusal::refuse;
use super::{BoxError, Front, Peer};
use crate::network::any_contains;
use crate::proxy_protocol;
use crate::seats::{Seated, Seats, Waiting};
use crate::stall::WriteStall;
use crate::tls::{HTTP_2, Handshake};
use crate::wire::{Socket, Wire};

/// How long a connection waits before it is refused.
const MOST_WAIT: Duration = Duration::from_secs(5);

/// A connection that has no seat yet.
pub(super) struct Arrival<S> {
    pub(super) peer: Peer,
    pub(super) front: Arc<Front>,
    pub(super) service: S,
    pub(super) seats: Arc<Seats>,
    pub(super) ending: watch::Receiver<bool>,
    pub(super) watchers: (Watcher, Watcher),
}

impl<S> Arrival<S> {
    pub(super) fn be_seated(self, seated: Seated) -> Connection<S> {
        let Self { peer, front, service, ending, watchers, .. } = self;
        front.counters.accepted.fetch_add(1, Ordering::Relaxed);
        front.counters.open.fetch_add(1, Ordering::Relaxed);
        Connection { peer, front, service, seated, ending, watchers }
    }
}

/// A connection that is served.
pub(super) struct Connection<S> {
    pub(super) peer: Peer,
    pub(super) front: Arc<Front>,
    pub(super) service: S,
    pub(super) seated: Seated,
    /// Tells when it is to end while hyper does not have it.
    pub(super) ending: watch::Receiver<bool>,
    /// Tell so while hyper has it: of HTTP/1.1, and of HTTP/2.
    pub(super) watchers: (Watcher, Watcher),
}

impl<S, B> Arrival<S>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    /// Waits for a seat and serves, or tells the client to come again.
    pub(super) async fn wait(self, waiting: Waiting, stream: TcpStream, refusals: Arc<Semaphore>) {
        let seated = tokio::select! {
            biased;
            seated = tokio::time::timeout(MOST_WAIT, waiting.take()) => seated.ok(),
            // Nobody else has this one.
            () = self.front.drain.stopped() => Some(self.seats.add()),
        };
        match seated {
            Some(seated) => Box::pin(self.be_seated(seated).run(stream)).await,
            None => {
                self.front.counters.late.fetch_add(1, Ordering::Relaxed);
                refuse(stream, &self.front, &refusals);
            }
        }
    }
}

impl<S, B> Connection<S>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    pub(super) async fn run(self, stream: TcpStream) {
        let counters = Arc::clone(&self.front.counters);
        if let Err(error) = self.serve(stream).await {
            counters.failed.fetch_add(1, Ordering::Relaxed);
            debug!(reason = %error, "connection ended early");
        }
        counters.open.fetch_sub(1, Ordering::Relaxed);
    }

    async fn serve(mut self, mut stream: TcpStream) -> Result<(), BoxError> {
        stream.set_nodelay(true)?;
        let patience = self.front.limits.stall_timeout;
        if any_contains(&self.front.proxies, self.peer.addr.ip()) {
            let proxied = tokio::time::timeout(patience, proxy_protocol::read(&mut stream));
            let proxied = Box::pin(proxied).await??;
            if let Some(client) = proxied.client {
                self.peer = Peer::new(client, self.peer.is_tls || proxied.is_tls);
            }
        }
        let client = self.peer.addr.ip().to_canonical();
        let _place = match self.front.limits.max_connections_per_client {
            None => None,
            Some(max) => match Place::take(&self.front.counters, client, max) {
                Some(place) => Some(place),
                None => return Ok(()),
            },
        };
        let lane = self.front.lane.clone().filter(|lane| lane.is_open());
        // What few connections need is held elsewhere than by the task, which is as large as the largest of it.
        match &self.front.tls {
            None if lane.is_none() => self.take_requests(stream).await,
            None => Box::pin(self.speak_http1(Wire::clear(stream), None, lane)).await,
            Some(tls) => {
                let handshake = tls.accept(Socket::Shaking(stream));
                let mut stream = Box::pin(tokio::time::timeout(patience, handshake)).await??;
                let (socket, connection) = stream.get_mut();
                socket.end_handshake();
                let handshake = Handshake::of(connection);
                if connection.alpn_protocol() == Some(HTTP_2) {
                    if let Some(lane) = lane {
                        return Box::pin(self.share_streams(&*lane, stream, handshake)).await;
                    }
                    let stream = WriteStall::new(stream, patience);
                    Box::pin(self.speak_http2(stream, handshake)).await
                } else {
                    Box::pin(self.speak_http1(Wire::tls(stream), Some(handshake), lane)).await
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::Ipv4Addr;

    use http_body_util::Full;
    use hyper_util::server::graceful::GracefulShutdown;

    use super::super::{Reuse, bind};
    use super::*;

    /// Ten thousand users hold connections open, and ask on few of them at a time.
    #[tokio::test]
    async fn a_connection_on_which_nothing_is_asked_takes_little_room() {
        let listener = bind((Ipv4Addr::LOCALHOST, 0).into(), Reuse::Exclusive).unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, addr) =
            tokio::net::TcpListener::from_std(listener).unwrap().accept().await.unwrap();
        let service = tower::service_fn(async |_: Request<Incoming>| {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        });
        let graceful = GracefulShutdown::new();
        let seats = Seats::new(1, Arc::default(), None);
        let arrival = Arrival {
            peer: Peer::new(addr, false),
            front: Arc::default(),
            service,
            seats: Arc::clone(&seats),
            ending: watch::channel(false).1,
            watchers: (graceful.watcher(), graceful.watcher()),
        };
        let task = arrival.be_seated(seats.take_now().unwrap()).run(stream);
        let bytes = size_of_val(&task);
        assert!(bytes <= 4096, "{bytes} bytes");
        drop(client);
    }
}
