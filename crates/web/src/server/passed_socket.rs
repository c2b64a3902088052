//! Listening sockets that a service manager passes to this process (socket activation): they are bound before the
//! process starts, and stay open while it restarts.
//!
//! In: the variables `LISTEN_FDS` and `LISTEN_PID` with the descriptors from 3 on, as systemd sets them.
//! Out: the socket for an address, to the one place that binds listeners ([`bind_listener`](super::listen::bind_listener)).
//!
//! Invariants
//! * A socket is taken once, by the listener whose configured address is the socket's own.
//! * A process that nobody passed sockets to behaves as if this module did not exist.
//!
//! On failure: a descriptor that is not a listening TCP socket is logged and not used; the listener binds its
//! address.

use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;
use parking_lot::Mutex;

/// The passed sockets that no listener has taken.
static PASSED_SOCKETS: Mutex<Vec<PassedSocket>> = Mutex::new(Vec::new());

struct PassedSocket {
    address: SocketAddr,
    listener: TcpListener,
}

/// Registers the sockets that the service manager passed, and removes the variables that name them, so that no child
/// process takes them for its own. Returns their number.
///
/// Must be called while the process has one thread, as it changes the environment.
pub fn register_passed_sockets() -> usize {
    let mut passed = ListenFd::from_env();
    let mut sockets = PASSED_SOCKETS.lock();
    for index in 0..passed.len() {
        match take_listener(&mut passed, index) {
            Ok(Some(socket)) => sockets.push(socket),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(
                    descriptor = index + 3,
                    reason = %error,
                    "a passed descriptor is not a listening TCP socket; it is not used"
                );
            }
        }
    }
    sockets.len()
}

fn take_listener(passed: &mut ListenFd, index: usize) -> std::io::Result<Option<PassedSocket>> {
    let Some(listener) = passed.take_tcp_listener(index)? else { return Ok(None) };
    // A connection that was accepted already is passed with `Accept=yes`.
    if !socket2::SockRef::from(&listener).is_listener()? {
        return Err(std::io::Error::other("it is a connection; write `Accept=no` in its unit"));
    }
    listener.set_nonblocking(true)?;
    Ok(Some(PassedSocket { address: listener.local_addr()?, listener }))
}

/// Takes the passed socket with this address, if there is one.
pub(crate) fn take_passed_socket(address: SocketAddr) -> Option<TcpListener> {
    let mut sockets = PASSED_SOCKETS.lock();
    let index = sockets.iter().position(|socket| is_same_address(socket.address, address))?;
    Some(sockets.swap_remove(index).listener)
}

/// Compares host and port; the kernel adds a scope to IPv6 addresses that nobody configures.
fn is_same_address(first: SocketAddr, second: SocketAddr) -> bool {
    (first.ip(), first.port()) == (second.ip(), second.port())
}

/// Logs a warning for each passed socket that no listener has taken, and closes it. Clients can connect to its address
/// all the same, as the service manager holds the socket too, and get no response.
pub fn warn_of_unused_sockets() {
    for socket in std::mem::take(&mut *PASSED_SOCKETS.lock()) {
        tracing::warn!(
            address = %socket.address,
            "no listener has the address of a passed socket: configure it, or remove the address from the socket unit"
        );
    }
}
