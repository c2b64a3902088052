//! The listener of every front: bind, accept within limits, serve HTTP/1.1, drain.
//!
//! In: a bound socket, a service, [`Front`] (limits, TLS, counters), a future that ends the serving.
//! Out: every request carries the extensions [`Peer`] and [`BodyLimit`].
//!
//! Invariants
//! * At most `max_connections` connections are open; further ones wait in the kernel's backlog.
//! * A head over `header_bytes` is answered 431, a `Content-Length` over `body_bytes` 413, both before the
//!   service sees the request. A head that is not complete within `header_timeout` closes the connection.
//! * After the shutdown future resolves no connection is accepted; open requests have `drain_timeout` to finish.
//!
//! Not here: chunked bodies over the limit ([`crate::limit`], as only the reader of a body sees them grow).

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::{Service, ServiceExt};
use tracing::{debug, warn};

use crate::limit::BodyLimit;
use crate::stall::WriteStall;
use crate::tls::Tls;
use crate::{Error, Result};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Whether several sockets may listen on one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// One socket; a second one gets "address in use".
    Exclusive,
    /// One socket per core (`SO_REUSEPORT`); the kernel spreads the connections.
    PerCore,
}

/// Bounds of one listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at once; default 10,000. Raise it with the process's limit of open files.
    pub max_connections: usize,
    /// Bytes of request line and headers; default 64 KiB. Lower it in front of old applications.
    pub header_bytes: usize,
    /// Bytes of a request body; default 64 MiB. Raise it where large assets are uploaded.
    pub body_bytes: u64,
    /// Time for the next complete head, from the accept or from the end of the previous answer; default 60 s.
    /// It bounds idle connections as well as clients that send a head byte by byte.
    pub header_timeout: Duration,
    /// Time in which a peer that is being written to must take at least one byte, and a TLS handshake must
    /// end; default 30 s.
    pub stall_timeout: Duration,
    /// Time for open requests to finish after the shutdown began; default 10 s.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            header_bytes: 64 * 1024,
            body_bytes: 64 * 1024 * 1024,
            header_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// What one listener serves with.
#[derive(Debug, Clone, Default)]
pub struct Front {
    /// The bounds.
    pub limits: Limits,
    /// The certificate; without one the front speaks cleartext.
    pub tls: Option<Tls>,
    /// What the front counts; share one to add up several listeners.
    pub counters: Arc<Counters>,
}

impl From<Limits> for Front {
    fn from(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }
}

/// What a listener counts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections accepted since the start.
    pub accepted: AtomicU64,
    /// Connections open now.
    pub open: AtomicU64,
    /// Times that accepting paused as `max_connections` were open; a rise means clients wait in the backlog.
    pub saturated: AtomicU64,
    /// Requests refused for the announced size of their body.
    pub bodies_refused: AtomicU64,
    /// Connections that ended with a protocol or socket error, slow heads included.
    pub failed: AtomicU64,
}

/// Who sent the request; an extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The other end of the connection.
    pub addr: SocketAddr,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
    /// Whether the other end is this machine.
    pub is_loopback: bool,
}

impl Peer {
    /// Describes the peer at `addr`.
    #[must_use]
    pub fn new(addr: SocketAddr, is_tls: bool) -> Self {
        Self { addr, is_tls, is_loopback: addr.ip().to_canonical().is_loopback() }
    }
}

/// Returns a non-blocking socket that listens on `addr`.
///
/// # Errors
/// [`Error::Bind`] when the address is taken or not ours; the caller adds which role wanted it.
pub fn bind(addr: SocketAddr, reuse: Reuse) -> Result<TcpListener> {
    open_socket(addr, reuse).map_err(|source| Error::Bind { addr, source })
}

fn open_socket(addr: SocketAddr, reuse: Reuse) -> std::io::Result<TcpListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(addr),
        socket2::Type::STREAM,
        Some(socket2::Protocol::TCP),
    )?;
    // A restart must not wait until the old connections have left TIME_WAIT.
    socket.set_reuse_address(true)?;
    if reuse == Reuse::PerCore {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

/// Serves `service` on `listener` until `shutdown` resolves and the open requests have ended.
///
/// # Errors
/// [`Error::Serve`] when the socket cannot be used on this runtime. Errors of single connections are counted.
pub async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    front: Front,
    shutdown: impl Future<Output = ()>,
) -> Result<()>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let listener =
        tokio::net::TcpListener::from_std(listener).map_err(|source| Error::Serve { source })?;
    let permits = Arc::new(Semaphore::new(front.limits.max_connections));
    let graceful = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let permit = tokio::select! {
            biased;
            () = &mut shutdown => break,
            permit = wait_for_permit(&permits, &front.counters) => permit,
        };
        let (stream, addr) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accept(&listener) => accepted,
        };
        front.counters.accepted.fetch_add(1, Ordering::Relaxed);
        front.counters.open.fetch_add(1, Ordering::Relaxed);
        let connection = Connection {
            peer: Peer::new(addr, front.tls.is_some()),
            front: front.clone(),
            service: service.clone(),
            permit,
        };
        tokio::spawn(connection.run(stream, graceful.watcher()));
    }
    // New clients are refused at once instead of waiting in the backlog of a socket that nobody accepts from.
    drop(listener);
    if tokio::time::timeout(front.limits.drain_timeout, graceful.shutdown()).await.is_err() {
        warn!(
            elapsed_ms = front.limits.drain_timeout.as_millis() as u64,
            "requests were still open when the time to finish them ended"
        );
    }
    Ok(())
}

async fn wait_for_permit(permits: &Arc<Semaphore>, counters: &Counters) -> OwnedSemaphorePermit {
    if permits.available_permits() == 0 {
        counters.saturated.fetch_add(1, Ordering::Relaxed);
    }
    match Arc::clone(permits).acquire_owned().await {
        Ok(permit) => permit,
        // Nobody closes the semaphore.
        Err(_closed) => std::future::pending().await,
    }
}

async fn accept(listener: &tokio::net::TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // Out of file descriptors or memory: the connection stays in the backlog and the cause may pass.
            Err(error) => {
                warn!(reason = %error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

struct Connection<S> {
    peer: Peer,
    front: Front,
    service: S,
    permit: OwnedSemaphorePermit,
}

impl<S, B> Connection<S>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    async fn run(self, stream: TcpStream, watcher: Watcher) {
        let counters = Arc::clone(&self.front.counters);
        if let Err(error) = self.serve(stream, watcher).await {
            counters.failed.fetch_add(1, Ordering::Relaxed);
            debug!(reason = %error, "connection ended early");
        }
        counters.open.fetch_sub(1, Ordering::Relaxed);
    }

    async fn serve(self, stream: TcpStream, watcher: Watcher) -> Result<(), BoxError> {
        stream.set_nodelay(true)?;
        let patience = self.front.limits.stall_timeout;
        match &self.front.tls {
            None => self.speak(WriteStall::new(stream, patience), watcher).await,
            Some(tls) => {
                let handshake = tls.acceptor().accept(stream);
                let stream = tokio::time::timeout(patience, handshake).await??;
                self.speak(WriteStall::new(stream, patience), watcher).await
            }
        }
    }

    async fn speak<T>(self, stream: T, watcher: Watcher) -> Result<(), BoxError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { peer, front, service, permit } = self;
        let Front { limits, counters, .. } = front;
        let answer = move |mut request: Request<Incoming>| {
            let service = service.clone();
            let counters = Arc::clone(&counters);
            async move {
                if announced_length(&request) > limits.body_bytes {
                    counters.bodies_refused.fetch_add(1, Ordering::Relaxed);
                    return Ok(refuse_body(limits.body_bytes).map(Either::Right));
                }
                let extensions = request.extensions_mut();
                extensions.insert(peer);
                extensions.insert(BodyLimit(limits.body_bytes));
                let response = service.oneshot(request).await;
                response.map(|response| response.map(Either::Left))
            }
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_header_size(limits.header_bytes)
            .max_buf_size(limits.header_bytes.max(64 * 1024))
            .half_close(true)
            .serve_connection(TokioIo::new(stream), hyper::service::service_fn(answer));
        let outcome = watcher.watch(connection).await;
        drop(permit);
        Ok(outcome?)
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
