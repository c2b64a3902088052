//! The peer of a connection.

use std::net::SocketAddr;

/// The sender of a request; an extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionPeer {
    /// Address of the peer.
    pub addr: SocketAddr,
    /// True if the connection is encrypted.
    pub is_tls: bool,
    /// True if the peer is this machine.
    pub is_loopback: bool,
}

impl ConnectionPeer {
    /// Creates the description of the peer at `addr`.
    #[must_use]
    pub fn new(addr: SocketAddr, is_tls: bool) -> Self {
        Self { addr, is_tls, is_loopback: addr.ip().to_canonical().is_loopback() }
    }
}
