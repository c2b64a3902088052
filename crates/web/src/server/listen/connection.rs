//! A connection, from the accept to the detection of its protocol.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper_util::server::graceful::Watcher;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tracing::debug;

use super::connection_context::{ListenBoxError, ListenService};
use super::connection_peer::ConnectionPeer;
use super::listener_counter::ClientConnectionGuard;
use super::listener_option::ListenerOptions;
use super::refusal::refuse_connection;
use crate::ip_network::any_network_contains;
use crate::server::connection_limit::{ConnectionLimiter, ConnectionPermit, ConnectionWaiter};
use crate::server::connection_socket::{ConnectionSocket, LendableSocket};
use crate::server::proxy_protocol;
use crate::server::write_timeout::WriteTimeoutStream;
use crate::tls::{HTTP2_ALPN, TlsHandshake};

/// Maximum time that a connection waits before it is refused.
const MAX_CONNECTION_WAIT: Duration = Duration::from_secs(5);

/// A connection without a permit.
pub(super) struct UnadmittedConnection<S> {
    pub(super) peer: ConnectionPeer,
    pub(super) listener_options: Arc<ListenerOptions>,
    pub(super) service: S,
    pub(super) connection_limiter: Arc<ConnectionLimiter>,
    pub(super) end_signal: watch::Receiver<bool>,
    pub(super) shutdown_watchers: (Watcher, Watcher),
}

impl<S> UnadmittedConnection<S> {
    pub(super) fn admit(self, permit: ConnectionPermit) -> ServedConnection<S> {
        let Self {
            peer,
            listener_options: options,
            service,
            end_signal: ending,
            shutdown_watchers: watchers,
            ..
        } = self;
        options.counters.accepted.fetch_add(1, Ordering::Relaxed);
        options.counters.open.fetch_add(1, Ordering::Relaxed);
        ServedConnection {
            peer,
            listener_options: options,
            service,
            permit,
            end_signal: ending,
            shutdown_watchers: watchers,
        }
    }
}

/// A connection that is being served.
pub(super) struct ServedConnection<S> {
    pub(super) peer: ConnectionPeer,
    pub(super) listener_options: Arc<ListenerOptions>,
    pub(super) service: S,
    pub(super) permit: ConnectionPermit,
    /// Signals the shutdown while hyper does not have the connection.
    pub(super) end_signal: watch::Receiver<bool>,
    /// Signal the shutdown while hyper has the connection: for HTTP/1.1, and for HTTP/2.
    pub(super) shutdown_watchers: (Watcher, Watcher),
}

impl<S: ListenService> UnadmittedConnection<S> {
    /// Waits for a permit and serves the connection, or tells the client to retry later.
    pub(super) async fn wait_and_serve(
        self,
        waiting: ConnectionWaiter,
        stream: TcpStream,
        refusals: Arc<Semaphore>,
    ) {
        let permit = tokio::select! {
            biased;
            permit = tokio::time::timeout(MAX_CONNECTION_WAIT, waiting.wait_for_permit()) => permit.ok(),
            // This connection was accepted by this process only.
            () = self.listener_options.drain.wait_stopped() => Some(self.connection_limiter.acquire_beyond_limit()),
        };
        match permit {
            Some(permit) => Box::pin(self.admit(permit).run_connection(stream)).await,
            None => {
                self.listener_options.counters.wait_timed_out.fetch_add(1, Ordering::Relaxed);
                refuse_connection(stream, &self.listener_options, &refusals);
            }
        }
    }
}

impl<S: ListenService> ServedConnection<S> {
    pub(super) async fn run_connection(self, stream: TcpStream) {
        let counters = Arc::clone(&self.listener_options.counters);
        if let Err(error) = self.serve_stream(stream).await {
            counters.failed.fetch_add(1, Ordering::Relaxed);
            debug!(reason = %error, "connection ended early");
        }
        counters.open.fetch_sub(1, Ordering::Relaxed);
    }

    async fn serve_stream(mut self, mut stream: TcpStream) -> Result<(), ListenBoxError> {
        stream.set_nodelay(true)?;
        let timeout = self.listener_options.limits.write_timeout;
        if any_network_contains(&self.listener_options.proxies, self.peer.addr.ip()) {
            let proxied =
                tokio::time::timeout(timeout, proxy_protocol::read_proxy_header(&mut stream));
            let proxied = Box::pin(proxied).await??;
            if let Some(client) = proxied.client {
                self.peer = ConnectionPeer::new(client, self.peer.is_tls || proxied.is_tls);
            }
        }
        let client = self.peer.addr.ip().to_canonical();
        let _place = match self.listener_options.limits.max_connections_per_client {
            None => None,
            Some(max) => match ClientConnectionGuard::try_acquire(
                &self.listener_options.counters,
                client,
                max,
            ) {
                Some(permit) => Some(permit),
                None => return Ok(()),
            },
        };
        let fast_path =
            self.listener_options.fast_path.clone().filter(|fast_path| fast_path.is_open());
        // State that few connections need is boxed, because the size of the task is that of its largest state.
        match &self.listener_options.tls {
            None if fast_path.is_none() => self.serve_plain_requests(stream).await,
            None => {
                Box::pin(self.serve_http1(ConnectionSocket::from_plain(stream), None, fast_path))
                    .await
            }
            Some(tls) => {
                let handshake = tls.accept(LendableSocket::Handshaking(stream));
                let mut stream = Box::pin(tokio::time::timeout(timeout, handshake)).await??;
                let (socket, connection) = stream.get_mut();
                socket.end_handshake();
                let handshake = TlsHandshake::from_connection(connection);
                if connection.alpn_protocol() == Some(HTTP2_ALPN) {
                    if let Some(fast_path) = fast_path {
                        return Box::pin(self.serve_http2_with_fast_path(
                            &*fast_path,
                            stream,
                            handshake,
                        ))
                        .await;
                    }
                    let stream = WriteTimeoutStream::new(stream, timeout);
                    Box::pin(self.serve_http2(stream, handshake)).await
                } else {
                    Box::pin(self.serve_http1(
                        ConnectionSocket::from_tls(stream),
                        Some(handshake),
                        fast_path,
                    ))
                    .await
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::Ipv4Addr;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Full;
    use hyper::body::Incoming;
    use hyper_util::server::graceful::GracefulShutdown;

    use super::super::{PortReuse, bind_listener};
    use super::*;

    /// Ten thousand users may hold connections open and use few of them at a time.
    #[tokio::test]
    async fn an_idle_connection_takes_little_memory() {
        let listener =
            bind_listener((Ipv4Addr::LOCALHOST, 0).into(), PortReuse::Exclusive).unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, addr) =
            tokio::net::TcpListener::from_std(listener).unwrap().accept().await.unwrap();
        let service = tower::service_fn(async |_: Request<Incoming>| {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        });
        let graceful = GracefulShutdown::new();
        let limiter = ConnectionLimiter::new(1, Arc::default(), None);
        let arrival = UnadmittedConnection {
            peer: ConnectionPeer::new(addr, false),
            listener_options: Arc::default(),
            service,
            connection_limiter: Arc::clone(&limiter),
            end_signal: watch::channel(false).1,
            shutdown_watchers: (graceful.watcher(), graceful.watcher()),
        };
        let task = arrival.admit(limiter.try_acquire().unwrap()).run_connection(stream);
        let bytes = size_of_val(&task);
        assert!(bytes <= 4096, "{bytes} bytes");
        drop(client);
    }
}
