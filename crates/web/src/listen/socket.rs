//! Sockets that listen.

use std::net::{SocketAddr, TcpListener};

use crate::{Error, Result};

/// Whether several sockets may listen on one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortReuse {
    /// One socket; a second one gets "address in use".
    Exclusive,
    /// One socket per core (`SO_REUSEPORT`); the kernel spreads the connections.
    PerCore,
}

/// Returns a non-blocking socket that listens on `addr`.
///
/// # Errors
/// [`Error::Bind`] when the address is taken or not ours; the caller adds which role wanted it.
pub fn bind_listener(addr: SocketAddr, reuse: PortReuse) -> Result<TcpListener> {
    open_socket(addr, reuse).map_err(|source| Error::Bind { addr, source })
}

/// Connections that may wait to be accepted; the kernel's `net.core.somaxconn` bounds it further. Those beyond it are reset
/// after a minute, which a crowd that comes at once would see as errors.
const LISTEN_BACKLOG: i32 = 16_384;

fn open_socket(addr: SocketAddr, reuse: PortReuse) -> std::io::Result<TcpListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(addr),
        socket2::Type::STREAM,
        Some(socket2::Protocol::TCP),
    )?;
    // A restart must not wait until the old connections have left TIME_WAIT.
    socket.set_reuse_address(true)?;
    if reuse == PortReuse::PerCore {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(LISTEN_BACKLOG)?;
    Ok(socket.into())
}
