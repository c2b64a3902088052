//! Listening sockets.

use std::net::{SocketAddr, TcpListener};

use crate::server::passed_socket::take_passed_socket;
use crate::{Error, Result};

/// Determines whether several sockets may listen on one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortReuse {
    /// One socket; a second one fails with "address in use".
    Exclusive,
    /// One socket per core (`SO_REUSEPORT`); the kernel distributes the connections.
    PerCore,
}

/// Returns a non-blocking socket that listens on `addr`: the one that a service manager passed for it, or a new one.
///
/// # Errors
/// [`Error::Bind`] if the address is in use or not local; the caller adds the role that needs it.
pub fn bind_listener(addr: SocketAddr, reuse: PortReuse) -> Result<TcpListener> {
    if let Some(socket) = take_passed_socket(addr) {
        return Ok(socket);
    }
    open_socket(addr, reuse).map_err(|source| Error::Bind { addr, source })
}

/// Maximum number of connections that wait to be accepted; also limited by the kernel's `net.core.somaxconn`.
/// Connections beyond it are reset after a minute, which a sudden burst of clients would see as errors.
const LISTEN_BACKLOG: i32 = 16_384;

fn open_socket(addr: SocketAddr, reuse: PortReuse) -> std::io::Result<TcpListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(addr),
        socket2::Type::STREAM,
        Some(socket2::Protocol::TCP),
    )?;
    // A restart must not wait until old connections have left TIME_WAIT.
    socket.set_reuse_address(true)?;
    if reuse == PortReuse::PerCore {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(LISTEN_BACKLOG)?;
    Ok(socket.into())
}
