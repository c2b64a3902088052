//! The listener of every front: bind, accept within limits, serve HTTP/1.1 and, where TLS offers it, HTTP/2, drain.
//!
//! In: a bound socket, a service, [`Front`] (limits, TLS, trusted proxies, counters), a future that ends the serving.
//! Out: every request carries the extensions [`Peer`] and [`BodyLimit`], over TLS also [`crate::tls::Handshake`].
//!
//! Invariants
//! * At most `max_connections` connections are served; further ones wait, and those on which nothing is asked leave for
//!   them ([`crate::seats`]). They wait in the kernel's backlog, or accepted and in bounds, beyond which they are answered 503
//!   with `Retry-After` and closed ([`Overflow`]).
//! * A head over `header_bytes` is answered 431, a `Content-Length` over `body_bytes` 413, both before the
//!   service sees the request. A head that is not complete within `header_timeout` closes the connection.
//! * A connection from one of [`Front::proxies`] begins with a PROXY header, and no other one may.
//! * After the shutdown future resolves no connection is accepted; open requests have `drain_timeout` to finish.
//!
//! Not here: chunked bodies over the limit ([`crate::limit`], as only the reader of a body sees them grow).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};
use tokio_rustls::server::TlsStream;
use tower::{Service, ServiceExt};
use tracing::{debug, warn};

use crate::lane::{Closing, Http2, Lane, Lent, OneRequest, STREAM_WINDOW, connection_window};
use crate::limit::BodyLimit;
use crate::linger::{Expected, Linger};
use crate::meter::{Closed, Meter, Streams};
use crate::network::{Network, any_contains};
use crate::proxy_protocol;
use crate::quiet::{self, Next};
use crate::seats::{Seat, Seated, Seats, Waiting};
use crate::shortcut::{Ready, Shortcut, send_ready};
use crate::stall::WriteStall;
use crate::tls::{HTTP_2, Handshake, Tls};
use crate::wire::{Socket, Wire};
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

/// What becomes of a connection when `max_connections` are open. In both cases idle ones are closed for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// It waits until another one ends; clients see no answer meanwhile.
    #[default]
    Wait,
    /// It waits for 5 seconds, beside at most a quarter of `max_connections`. Others are answered 503, so that a balancer in
    /// front asks elsewhere. Encrypted ones are closed.
    Refuse,
}

/// Bounds of one listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at once; default 10,000. While fewer than one of 16 is free, answers close their connections. Raise
    /// it with the process's limit of open files.
    pub max_connections: usize,
    /// What becomes of further connections; default is that they wait.
    pub overflow: Overflow,
    /// Bytes of request line and headers; default 64 KiB. Lower it in front of old applications.
    pub header_bytes: usize,
    /// Bytes of a request body; default 64 MiB. Raise it where large assets are uploaded.
    pub body_bytes: u64,
    /// Time for the next complete head, from the accept or from the end of the previous answer; default 60 s.
    /// It bounds idle connections as well as clients that send a head byte by byte.
    pub header_timeout: Duration,
    /// Time in which a peer that is being written to must take at least one byte, and less often if it takes less than
    /// [`LEAST_RATE`](crate::patience::LEAST_RATE) on average. A TLS handshake must end in it, too. Default 30 s.
    pub stall_timeout: Duration,
    /// Time for open requests to finish after the shutdown began; default 10 s.
    pub drain_timeout: Duration,
    /// Connections of one client at once; further ones are closed. Default: any number.
    pub max_connections_per_client: Option<usize>,
    /// Requests on one connection of HTTP/1.1, so that connections move to other processes in time; default 10,000.
    pub max_requests: u64,
    /// Requests at once on one connection of HTTP/2; default 100.
    pub max_streams: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            overflow: Overflow::Wait,
            header_bytes: 64 * 1024,
            body_bytes: 64 * 1024 * 1024,
            header_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
            max_connections_per_client: None,
            max_requests: 10_000,
            max_streams: 100,
        }
    }
}

/// What one listener serves with.
#[derive(Debug, Clone, Default)]
pub struct Front {
    /// The bounds.
    pub limits: Limits,
    /// The certificates; without any the front speaks cleartext.
    pub tls: Option<Tls>,
    /// Proxies whose connections begin with a PROXY header, which names the client. Default none.
    pub proxies: Arc<[Network]>,
    /// What the front counts; share one to add up several listeners.
    pub counters: Arc<Counters>,
    /// How the front ends.
    pub drain: Drain,
    /// Answers what it can on connections of HTTP/1.1, before the service sees a request.
    pub lane: Option<Arc<dyn Lane>>,
    /// Answers what is at hand on connections without TLS that no lane has, before the service sees a request.
    pub shortcut: Option<Arc<dyn Shortcut>>,
}

/// How a front ends; clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Drain(Arc<DrainState>);

#[derive(Debug, Default)]
struct DrainState {
    linger_ms: AtomicU64,
    stopped: tokio::sync::watch::Sender<bool>,
}

impl Drain {
    /// Lets clients send one more request on connections that they hold open, for so long after the shutdown began; its
    /// answer tells them to come anew. Without it, a request that is on its way while its connection is closed is lost.
    pub fn linger(&self, time: Duration) {
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.0.linger_ms.store(milliseconds, Ordering::SeqCst);
    }

    /// Waits until no connection is accepted any more.
    pub async fn stopped(&self) {
        // The sender lives as long as this.
        self.0.stopped.subscribe().wait_for(|stopped| *stopped).await.ok();
    }

    fn is_stopped(&self) -> bool {
        *self.0.stopped.borrow()
    }

    fn stop(&self) -> Duration {
        self.0.stopped.send_replace(true);
        Duration::from_millis(self.0.linger_ms.load(Ordering::SeqCst))
    }
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
    /// Connections that came while `max_connections` were open; a rise means that clients wait.
    pub saturated: AtomicU64,
    /// Connections that wait for that now.
    pub waiting: AtomicU64,
    /// Connections answered 503 as `max_connections` were open and too many waited; a rise means overload.
    pub refused: AtomicU64,
    /// Connections answered 503 as they waited too long; a rise means overload.
    pub late: AtomicU64,
    /// Connections closed while nothing was asked on them, as others waited; a rise means that more clients keep
    /// connections than there are places.
    pub evicted: AtomicU64,
    /// Connections closed with an answer, as hardly any place was free; it rises before `evicted`.
    pub released: AtomicU64,
    /// Requests refused for the announced size of their body.
    pub bodies_refused: AtomicU64,
    /// Connections that ended with a protocol or socket error, slow heads included.
    pub failed: AtomicU64,
    /// Connections closed as their client had too many already.
    pub crowded: AtomicU64,
    /// How many connections each client has, while that is bounded.
    clients: Mutex<HashMap<IpAddr, usize>>,
}

/// A connection that counts for its client until it is dropped.
struct Place {
    counters: Arc<Counters>,
    client: IpAddr,
}

impl Place {
    /// Counts a connection of `client`; nothing if it has `max` of them.
    fn take(counters: &Arc<Counters>, client: IpAddr, max: usize) -> Option<Self> {
        let mut clients = counters.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let count = clients.entry(client).or_default();
        if *count >= max {
            counters.crowded.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *count += 1;
        Some(Self { counters: Arc::clone(counters), client })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut clients = self.counters.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut entry) = clients.entry(self.client) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
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

/// Connections that may wait to be accepted; the kernel's `net.core.somaxconn` bounds it further. Those beyond it are reset
/// after a minute, which a crowd that comes at once would see as errors.
const BACKLOG: i32 = 16_384;

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
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// So many connections are accepted before others have their turn.
const MOST_AT_ONCE: u64 = 1024;

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
    // All connections have it in common.
    let front = Arc::new(front);
    let limits = &front.limits;
    let seats = Seats::new(limits.max_connections, Arc::clone(&front.counters), front.lane.clone());
    let refusals = Arc::new(Semaphore::new(MOST_REFUSALS));
    let graceful = GracefulShutdown::new();
    // HTTP/2 tells its clients itself which requests were not seen, so it need not linger.
    let graceful_http2 = GracefulShutdown::new();
    let (lanes_end, ending) = watch::channel(false);
    let accepting = async {
        let mut shutdown = pin!(shutdown);
        for turn in 1_u64.. {
            if turn.is_multiple_of(MOST_AT_ONCE) {
                tokio::task::yield_now().await;
            }
            let (stream, addr) = tokio::select! {
                biased;
                () = &mut shutdown => break,
                accepted = accept(&listener) => accepted,
            };
            let arrival = Arrival {
                peer: Peer::new(addr, front.tls.is_some()),
                front: Arc::clone(&front),
                service: service.clone(),
                seats: Arc::clone(&seats),
                ending: ending.clone(),
                watchers: (graceful.watcher(), graceful_http2.watcher()),
            };
            if let Some(seated) = seats.take_now() {
                tokio::spawn(arrival.be_seated(seated).run(stream));
                continue;
            }
            front.counters.saturated.fetch_add(1, Ordering::Relaxed);
            match front.limits.overflow {
                Overflow::Wait => {
                    let seated = tokio::select! {
                        biased;
                        () = &mut shutdown => None,
                        seated = seats.take() => Some(seated),
                    };
                    let is_end = seated.is_none();
                    // Nobody else has this one, so it is served beyond the limit when all end.
                    let seated = seated.unwrap_or_else(|| seats.add());
                    tokio::spawn(arrival.be_seated(seated).run(stream));
                    if is_end {
                        break;
                    }
                }
                Overflow::Refuse => match seats.begin_to_wait() {
                    Some(waiting) => {
                        tokio::spawn(arrival.wait(waiting, stream, Arc::clone(&refusals)));
                    }
                    None => {
                        front.counters.refused.fetch_add(1, Ordering::Relaxed);
                        refuse(stream, &front, &refusals);
                    }
                },
            }
        }
    };
    // A task gives way to others after some operations, which many busy connections would make a long time each: the
    // kernel's queue of those who wait would run over, and it resets them.
    tokio::task::unconstrained(accepting).await;
    // New clients are refused at once instead of waiting in the backlog of a socket that nobody accepts from.
    drop(listener);
    let linger = front.drain.stop();
    let end = async {
        let http1 = async {
            tokio::time::timeout(linger, seats.emptied(front.limits.max_connections)).await.ok();
            lanes_end.send_replace(true);
            graceful.shutdown().await;
        };
        tokio::join!(http1, graceful_http2.shutdown());
    };
    if tokio::time::timeout(linger + front.limits.drain_timeout, end).await.is_err() {
        warn!(
            elapsed_ms = front.limits.drain_timeout.as_millis() as u64,
            "requests were still open when the time to finish them ended"
        );
    }
    Ok(())
}

/// Connections that are being told to come again at a time; further ones are closed without a word.
const MOST_REFUSALS: usize = 256;
/// How long one may take to hear it.
const REFUSAL_TIME: Duration = Duration::from_secs(2);
const REFUSAL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 59\r\nRetry-After: 1\r\nConnection: close\r\n\r\n\
    all connections are in use; please try again in a moment.\r\n";

/// Tells a client to come again, and closes.
fn refuse(mut stream: TcpStream, front: &Front, refusals: &Arc<Semaphore>) {
    let Ok(turn) = Arc::clone(refusals).try_acquire_owned() else { return };
    if front.tls.is_some() {
        return;
    }
    tokio::spawn(async move {
        let telling = async {
            stream.write_all(REFUSAL).await?;
            stream.shutdown().await?;
            // Closed before the request was read, the connection would be reset, and the answer lost.
            let mut rest = [0; 4096];
            while stream.read(&mut rest).await? > 0 {}
            Ok::<_, std::io::Error>(())
        };
        // A client that has gone, or sends without end, is none to wait for.
        tokio::time::timeout(REFUSAL_TIME, telling).await.ok();
        drop(turn);
    });
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

/// How long a connection waits before it is refused.
const MOST_WAIT: Duration = Duration::from_secs(5);

/// A connection that has no seat yet.
struct Arrival<S> {
    peer: Peer,
    front: Arc<Front>,
    service: S,
    seats: Arc<Seats>,
    ending: watch::Receiver<bool>,
    watchers: (Watcher, Watcher),
}

impl<S> Arrival<S> {
    fn be_seated(self, seated: Seated) -> Connection<S> {
        let Self { peer, front, service, ending, watchers, .. } = self;
        front.counters.accepted.fetch_add(1, Ordering::Relaxed);
        front.counters.open.fetch_add(1, Ordering::Relaxed);
        Connection { peer, front, service, seated, ending, watchers }
    }
}

struct Connection<S> {
    peer: Peer,
    front: Arc<Front>,
    service: S,
    seated: Seated,
    ending: watch::Receiver<bool>,
    watchers: (Watcher, Watcher),
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
    async fn wait(self, waiting: Waiting, stream: TcpStream, refusals: Arc<Semaphore>) {
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
    async fn run(self, stream: TcpStream) {
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
        // What few connections need is held elsewhere than by the task, which is as large as the largest of it.
        match &self.front.tls {
            None if self.front.lane.is_none() => self.take_requests(stream).await,
            None => Box::pin(self.speak_http1(Wire::clear(stream), None)).await,
            Some(tls) => {
                let handshake = tls.acceptor().accept(Socket::Shaking(stream));
                let mut stream = Box::pin(tokio::time::timeout(patience, handshake)).await??;
                let (socket, connection) = stream.get_mut();
                socket.end_handshake();
                let handshake = Handshake::of(connection);
                if connection.alpn_protocol() == Some(HTTP_2) {
                    if let Some(lane) = self.front.lane.clone() {
                        return Box::pin(self.share_streams(&*lane, stream, handshake)).await;
                    }
                    let stream = WriteStall::new(stream, patience);
                    Box::pin(self.speak_http2(stream, handshake)).await
                } else {
                    Box::pin(self.speak_http1(Wire::tls(stream), Some(handshake))).await
                }
            }
        }
    }

    async fn speak_http1(self, wire: Wire, handshake: Option<Handshake>) -> Result<(), BoxError> {
        match self.front.lane.clone() {
            None => {
                let stream = WriteStall::new(wire, self.front.limits.stall_timeout);
                self.speak(stream, handshake).await
            }
            Some(lane) => self.take_turns(&*lane, wire, handshake).await,
        }
    }

    async fn speak<T>(self, stream: T, handshake: Option<Handshake>) -> Result<(), BoxError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { peer, front, service, seated, watchers: (watcher, _), .. } = self;
        let builder = http1_builder(&front.limits);
        let asked = Arc::new(Asked::new((peer, handshake), front, &seated));
        seated.seat.note_first();
        let stream = asked.linger(stream);
        let connection = builder.serve_connection(TokioIo::new(stream), answering(asked, service));
        let outcome = watcher.watch(connection).await;
        drop(seated);
        Ok(outcome?)
    }

    /// Lets the service answer one request after another, and holds nothing but the socket between them.
    async fn take_requests(self, stream: TcpStream) -> Result<(), BoxError> {
        let Self { peer, front, service, seated, ending, watchers } = self;
        let asked = Arc::new(Asked::new((peer, None), front, &seated));
        let (limits, seat) = (&asked.front.limits, &*seated.seat);
        seat.note_first();
        let (mut stream, mut unread) = (WriteStall::new(stream, limits.stall_timeout), Vec::new());
        // Both last for many requests: to make and drop them for each costs more than to read a head.
        let mut ends = ending.clone();
        let mut ended = pin!(end_of(&mut ends));
        let mut timer = pin!(tokio::time::sleep(limits.header_timeout));
        let mut is_leaving = false;
        loop {
            let now = Instant::now();
            if asked.requests.load(Ordering::Relaxed) > 0 {
                seat.note_waiting(now);
            }
            let deadline = now + limits.header_timeout;
            let next = quiet::next(&mut stream, &mut unread, limits.header_bytes);
            let next = tokio::select! {
                biased;
                next = next => next?,
                () = &mut ended => Next::End,
                () = seat.wanted(), if !is_leaving => {
                    // What has come by now is answered, as the last.
                    is_leaving = true;
                    if !unread.is_empty() || !is_silent(stream.get_ref()) {
                        continue;
                    }
                    asked.front.counters.evicted.fetch_add(1, Ordering::Relaxed);
                    Next::End
                }
                () = until(timer.as_mut(), deadline) => {
                    let late = std::io::Error::new(std::io::ErrorKind::TimedOut, "no head came");
                    return Err(late.into());
                }
            };
            let next = if unread.is_empty() || next != Next::End { next } else { Next::Other };
            // What hyper holds is held elsewhere than by the task, which lives as long as the connection.
            match next {
                Next::End => return Ok(stream.shutdown().await?),
                Next::Request(length) => {
                    seat.note_busy();
                    let head = unread.get(..length).unwrap_or_default();
                    if let Some((ready, is_last)) = asked.shortcut(head) {
                        send_ready(stream.get_ref(), ready, limits.stall_timeout).await?;
                        unread.drain(..length);
                        if is_last {
                            asked.expected.set(!unread.is_empty());
                            return Ok(Box::pin(finish(asked.linger(stream))).await?);
                        }
                        if unread.is_empty() {
                            // Who waits holds none.
                            unread = Vec::new();
                        } else {
                            // Who has sent many requests at once takes turns with the others.
                            tokio::task::yield_now().await;
                        }
                        continue;
                    }
                    let service = answering(Arc::clone(&asked), service.clone());
                    // Read already, out of sight of what lingers.
                    asked.expected.set(true);
                    let lingering = asked.linger(stream);
                    let one = OneRequest::first(lingering, std::mem::take(&mut unread), length);
                    match Box::pin(answer_one(limits, one, service, &ending)).await? {
                        Some(left) => (stream, unread) = left,
                        None => return Ok(()),
                    }
                }
                Next::Other => {
                    let service = answering(Arc::clone(&asked), service.clone());
                    asked.expected.set(true);
                    seat.note_busy();
                    let all = TokioIo::new(OneRequest::all(asked.linger(stream), unread));
                    let connection = http1_builder(limits).serve_connection(all, service);
                    return Ok(Box::pin(watchers.0.watch(connection)).await?);
                }
            }
        }
    }

    /// Lets the lane serve, and the service each request that is not for the lane.
    async fn take_turns(
        self,
        lane: &dyn Lane,
        wire: Wire,
        handshake: Option<Handshake>,
    ) -> Result<(), BoxError> {
        let Self { peer, front, service, seated, ending, watchers } = self;
        let limits = front.limits.clone();
        let stopped = front.drain.0.stopped.subscribe();
        let (builder, closing) = (http1_builder(&limits), Closing::new(stopped, &seated.seats));
        let asked = Arc::new(Asked::new((peer, handshake), front, &seated));
        let mut current = (wire, Vec::new());
        loop {
            let lent = Lent {
                wire: current.0.lend()?,
                unread: current.1,
                peer,
                requests_left: limits
                    .max_requests
                    .saturating_sub(asked.requests.load(Ordering::Relaxed)),
                idle_timeout: limits.header_timeout,
                stall_timeout: limits.stall_timeout,
                closing: closing.clone(),
                ending: ending.clone(),
                http2: None,
            };
            let Some(handed) = lane.serve(lent).await else { return Ok(()) };
            let answered = limits.max_requests.saturating_sub(handed.requests_left);
            asked.requests.store(answered, Ordering::Relaxed);
            let stream = WriteStall::new(handed.wire.take_back()?, limits.stall_timeout);
            asked.expected.set(true);
            let stream = asked.linger(stream);
            let service = answering(Arc::clone(&asked), service.clone());
            let Some(length) = handed.request_bytes else {
                let all = TokioIo::new(OneRequest::all(stream, handed.unread));
                return Ok(watchers.0.watch(builder.serve_connection(all, service)).await?);
            };
            let one = OneRequest::first(stream, handed.unread, length);
            match answer_one(&limits, one, service, &ending).await? {
                Some((stream, unread)) => current = (stream.into_inner(), unread),
                None => return Ok(()),
            }
            // The lane knows what it waits for.
            seated.seat.note_busy();
        }
    }

    async fn speak_http2<T>(self, stream: T, handshake: Handshake) -> Result<(), BoxError>
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
    async fn share_streams(
        self,
        lane: &dyn Lane,
        stream: TlsStream<Socket>,
        handshake: Handshake,
    ) -> Result<(), BoxError> {
        let Self { peer, front, service, seated, watchers: (_, watcher), .. } = self;
        let limits = front.limits.clone();
        // HTTP/2 tells its clients itself which requests were not seen, so it need not linger.
        let ending = front.drain.0.stopped.subscribe();
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

/// Ends a connection so that its last answer arrives.
async fn finish<T: AsyncRead + AsyncWrite + Unpin>(mut stream: Linger<T>) -> std::io::Result<()> {
    stream.shutdown().await
}

/// Tells whether nothing has come that was not read.
fn is_silent(stream: &TcpStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let peeked = recv(stream, &mut [0_u8; 1][..], flags);
    peeked.is_err_and(|error| error == Errno::WOULDBLOCK)
}

/// Waits for a time by a timer that is put off often and hardly ever rings: it rings early, and sleeps on.
async fn until(mut timer: Pin<&mut Sleep>, deadline: Instant) {
    loop {
        timer.as_mut().await;
        if Instant::now() >= deadline {
            return;
        }
        timer.as_mut().reset(deadline);
    }
}

/// Waits until connections are to end.
async fn end_of(ending: &mut watch::Receiver<bool>) {
    // Without a sender nobody serves any more.
    ending.wait_for(|is_ending| *is_ending).await.ok();
}

/// Lets hyper answer one request. Gives the connection back, with what was read of it beyond, if the client may send
/// another one; it is ended otherwise.
async fn answer_one<T, S, B>(
    limits: &Limits,
    one: OneRequest<Linger<T>>,
    service: S,
    ending: &watch::Receiver<bool>,
) -> Result<Option<(T, Vec<u8>)>, BoxError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    let connection = http1_builder(limits).serve_connection(TokioIo::new(one), service);
    let mut one = connection.without_shutdown().await?.io.into_inner();
    if !one.is_over() || *ending.borrow() {
        one.shutdown().await?;
        return Ok(None);
    }
    let (stream, unread) = one.into_parts();
    Ok(Some((stream.into_inner(), unread)))
}

fn http1_builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_header_size(limits.header_bytes)
        .max_buf_size(limits.header_bytes.max(64 * 1024))
        .half_close(true);
    builder
}

/// Returns the service of one connection of HTTP/1.1.
fn answering<S, B>(
    asked: Arc<Asked>,
    service: S,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = Response<Either<B, Full<Bytes>>>,
    Error = S::Error,
    Future: Send,
>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    hyper::service::service_fn(move |request: Request<Incoming>| {
        let (asked, service) = (Arc::clone(&asked), service.clone());
        async move {
            asked.expected.set(!request.body().is_end_stream());
            let answering = Answering::begin(&asked.seat);
            let is_last = asked.requests.fetch_add(1, Ordering::Relaxed) + 1
                >= asked.front.limits.max_requests;
            let mut response = asked.answer(request, service).await?;
            drop(answering);
            if is_last || asked.is_to_end() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            Ok::<_, S::Error>(response)
        }
    })
}

/// Notes that a request is being answered, until it is.
struct Answering<'a>(&'a Seat);

impl<'a> Answering<'a> {
    fn begin(seat: &'a Seat) -> Self {
        seat.note_busy();
        Self(seat)
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.note_answered();
    }
}

/// What one stream of HTTP/2 may hold that its client has not taken.
const HTTP_2_SEND_BYTES: usize = 128 * 1024;

/// An answer may wait so many times as long for a client that takes others: many at once take turns on a slow network.
const ONE_STALL: u32 = 4;

/// Streams that a client may reset before they are looked at, or by its own mistakes.
const HTTP_2_RESETS: usize = 20;

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

/// What the requests of one connection have in common.
struct Asked {
    peer: Peer,
    handshake: Option<Handshake>,
    front: Arc<Front>,
    seats: Arc<Seats>,
    seat: Arc<Seat>,
    requests: AtomicU64,
    /// Whether the client may be in the middle of a request.
    expected: Expected,
}

impl Asked {
    fn new(
        (peer, handshake): (Peer, Option<Handshake>),
        front: Arc<Front>,
        seated: &Seated,
    ) -> Self {
        let (seats, seat) = (Arc::clone(&seated.seats), Arc::clone(&seated.seat));
        let requests = AtomicU64::new(0);
        Self { peer, handshake, front, seats, seat, requests, expected: Expected::default() }
    }

    /// Makes a connection that ends so that its last answer arrives, and that seems to end when its seat is wanted.
    fn linger<T>(&self, stream: T) -> Linger<T> {
        let counters = Arc::clone(&self.front.counters);
        Linger::new(stream, self.expected.clone()).seated(Arc::clone(&self.seat), counters)
    }

    /// Tells whether the answer that is given now is to be the last one.
    fn is_to_end(&self) -> bool {
        self.front.drain.is_stopped() || self.seat.is_wanted() || self.seats.ask_back()
    }

    /// Returns an answer that is at hand, counts the request, and tells whether the answer is the connection's last.
    fn shortcut(&self, head: &[u8]) -> Option<(Ready, bool)> {
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
    async fn answer<S, B>(
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::Ipv4Addr;

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
