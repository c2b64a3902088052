//! Connections that change to another protocol after their response (RFC 9110, section 7.8).
//!
//! A service that answers a request with 101 (Switching Protocols) leaves here what carries the new protocol. The
//! listener runs it once the response is written, in place of further requests.
//!
//! Invariants
//! * The connection holds its permit for as long as it is used, so that the limits of the listener cover it.
//! * It ends when the listener shuts down.
//!
//! Not here: the handshake of a protocol, and the time for which a connection may be silent.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

type TunnelTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The successor of HTTP on one connection; an extension of each HTTP/1.1 request with `Upgrade`. Clones share it.
#[derive(Clone, Default)]
pub struct ConnectionTunnel(Arc<Mutex<Option<TunnelTask>>>);

impl ConnectionTunnel {
    /// Runs `tunnel` after the response, which must be 101. The task gets the connection by
    /// [`hyper::upgrade::on`] for the request.
    pub fn run_after_response(&self, tunnel: impl Future<Output = ()> + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::pin(tunnel));
    }

    /// Returns the task, if the last response began a tunnel.
    pub(crate) fn take(&self) -> Option<TunnelTask> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl fmt::Debug for ConnectionTunnel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ConnectionTunnel").finish_non_exhaustive()
    }
}
