//! The listener of all fronts: binds, accepts within limits, serves HTTP/1.1 and, if negotiated over TLS, HTTP/2, and
//! drains.
//!
//! In: a bound socket, a service, [`ListenerOptions`] (limits, TLS, trusted proxies, counters), a future that ends the
//! serving. Out: every request has the extensions [`ConnectionPeer`] and [`crate::server::body_limit::BodyLimit`], over
//! TLS also [`crate::tls::TlsHandshake`], in HTTP/1.1 also
//! [`crate::server::disconnect_detection::DisconnectDetection`].
//!
//! Invariants
//! * At most `max_connections` connections are served; further ones wait, and idle connections are evicted for them
//!   ([`crate::server::connection_limit`]). They wait in the kernel's backlog, or accepted and up to a limit, beyond
//!   which they are answered with 503 and `Retry-After` and closed ([`OverflowPolicy`]).
//! * A head over `max_header_bytes`, counted alike in both versions of HTTP, is answered with 431, a `Content-Length` over `max_body_bytes` with 413, both
//!   before the service sees the request. A head that is not complete within `header_timeout` closes the connection.
//! * A connection from one of [`ListenerOptions::proxies`] must begin with a PROXY header, and no other one may.
//! * After the shutdown future resolves no connection is accepted; open requests have `drain_timeout` to finish.
//!
//! This module accepts connections. `connection` waits for a permit and detects the protocol, `http1` and `http2`
//! implement the protocols, `connection_context` calls the service, `connection_shutdown` performs the shutdown.
//!
//! Not here: chunked bodies over the limit ([`crate::server::body_limit`], as only the reader of a body sees them
//! grow).

mod connection;
mod connection_context;
mod connection_peer;
mod connection_shutdown;
mod drain;
mod http1;
mod http2;
mod listener_counter;
mod listener_limit;
mod listener_option;
mod refusal;
mod socket;

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tracing::warn;

use self::connection::UnadmittedConnection;
use self::connection_shutdown::ConnectionShutdown;
use self::refusal::{MAX_CONCURRENT_REFUSALS, refuse_connection};
use crate::server::connection_limit::ConnectionLimiter;
use crate::{Error, Result};

pub use self::connection_context::ListenService;
pub use self::connection_peer::ConnectionPeer;
pub use self::drain::ListenerDrain;
pub use self::listener_counter::ListenerCounters;
pub use self::listener_limit::{ListenerLimits, OverflowPolicy};
pub use self::listener_option::ListenerOptions;
pub use self::socket::{PortReuse, bind_listener};

/// Maximum number of connections accepted before other tasks run.
const MAX_ACCEPT_BATCH: u64 = 1024;

/// Serves `service` on `listener` until `shutdown` resolves and the open requests have ended.
///
/// # Errors
/// [`Error::Serve`] if the socket cannot be used on this runtime. Errors of single connections are counted.
pub async fn serve_listener<S: ListenService>(
    listener: TcpListener,
    service: S,
    options: ListenerOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    let listener =
        tokio::net::TcpListener::from_std(listener).map_err(|source| Error::Serve { source })?;
    // All connections share it.
    let options = Arc::new(options);
    let limits = &options.limits;
    let limiter = ConnectionLimiter::new(
        limits.max_connections,
        Arc::clone(&options.counters),
        options.fast_path.clone(),
    );
    let refusals = Arc::new(Semaphore::new(MAX_CONCURRENT_REFUSALS));
    let ends = ConnectionShutdown::new();
    let accepting = async {
        let mut shutdown = pin!(shutdown);
        let mut outage = AcceptOutage::default();
        for turn in 1_u64.. {
            if turn.is_multiple_of(MAX_ACCEPT_BATCH) {
                tokio::task::yield_now().await;
            }
            let (stream, addr) = tokio::select! {
                biased;
                () = &mut shutdown => break,
                accepted = accept_connection(&listener, &mut outage) => accepted,
            };
            let arrival = UnadmittedConnection {
                peer: ConnectionPeer::new(addr, options.tls.is_some()),
                listener_options: Arc::clone(&options),
                service: service.clone(),
                connection_limiter: Arc::clone(&limiter),
                end_signal: ends.subscribe_end(),
                shutdown_watchers: ends.shutdown_watchers(),
            };
            if let Some(permit) = limiter.try_acquire() {
                tokio::spawn(arrival.admit(permit).run_connection(stream));
                continue;
            }
            options.counters.saturated.fetch_add(1, Ordering::Relaxed);
            match options.limits.overflow {
                OverflowPolicy::Wait => {
                    let permit = tokio::select! {
                        biased;
                        () = &mut shutdown => None,
                        permit = limiter.acquire() => Some(permit),
                    };
                    let is_end = permit.is_none();
                    // This connection was accepted by this process only, so it is served beyond the limit at shutdown.
                    let permit = permit.unwrap_or_else(|| limiter.acquire_beyond_limit());
                    tokio::spawn(arrival.admit(permit).run_connection(stream));
                    if is_end {
                        break;
                    }
                }
                OverflowPolicy::Refuse => match limiter.try_begin_waiting() {
                    Some(waiting) => {
                        tokio::spawn(arrival.wait_and_serve(
                            waiting,
                            stream,
                            Arc::clone(&refusals),
                        ));
                    }
                    None => {
                        options.counters.refused.fetch_add(1, Ordering::Relaxed);
                        refuse_connection(stream, &options, &refusals);
                    }
                },
            }
        }
    };
    // A task yields after a number of operations, and many busy connections would make each yield long: the kernel's
    // accept queue would overflow, and it resets connections beyond it.
    tokio::task::unconstrained(accepting).await;
    // Refuse new clients immediately instead of leaving them in the backlog of a socket that is no longer accepted
    // from.
    drop(listener);
    ends.drain_connections(&options, &limiter).await;
    Ok(())
}

async fn accept_connection(
    listener: &tokio::net::TcpListener,
    outage: &mut AcceptOutage,
) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // File descriptors or memory are exhausted: the connection stays in the backlog, and the cause may be
            // temporary.
            Err(error) => {
                if outage.record_failure(Instant::now()) {
                    warn!(reason = %error, "cannot accept connections");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// A failure to accept is reported again only after this time without one: where few files are free, connections are
/// accepted occasionally and others fail in between.
const OUTAGE_QUIET_PERIOD: Duration = Duration::from_mins(1);

/// A period in which connections cannot be accepted, or only rarely.
#[derive(Debug, Default)]
struct AcceptOutage {
    last_failure: Option<Instant>,
}

impl AcceptOutage {
    /// Records a failed accept. Returns true if it begins a new outage.
    fn record_failure(&mut self, now: Instant) -> bool {
        let before = self.last_failure.replace(now);
        before.is_none_or(|before| now.duration_since(before) > OUTAGE_QUIET_PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_once_though_some_are_accepted_meanwhile() {
        let (mut outage, start) = (AcceptOutage::default(), Instant::now());
        let reported: Vec<u64> = [0, 1, 30, 89, 149, 210, 270, 400]
            .into_iter()
            .filter(|second| outage.record_failure(start + Duration::from_secs(*second)))
            .collect();
        assert_eq!(reported, [0, 210, 400]);
    }
}
