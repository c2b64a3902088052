//! The listening sockets of a dispatcher: bound, or taken over from the process that serves, and handed over to the next one.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch::Sender;
use tympan_web::listen::{ListenerDrain, PortReuse, bind_listener};
use tympan_web::socket_handover::{InheritedSockets, SocketOffer, SuccessorProcess};

use crate::dispatcher::Dispatcher;

/// The time for which clients may use connections to a dispatcher after a handover.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why a dispatcher has no sockets.
#[derive(Debug, thiserror::Error)]
pub enum ListenerSocketError {
    /// A socket cannot be bound.
    #[error("dispatcher")]
    Bind(#[from] tympan_web::Error),
    /// Another process serves, and does not hand over.
    #[error(
        "the dispatcher at `{}` does not hand over its sockets: {reason}; stop it, or start this one with another \
         --hand-over",
        path.display()
    )]
    Refused {
        /// The handover socket of the process.
        path: PathBuf,
        /// The error of the handover.
        reason: std::io::Error,
    },
    /// The process that hands over does not stop.
    #[error("the running dispatcher did not stop")]
    PredecessorRuns(#[source] std::io::Error),
    /// The process that hands over kept a socket.
    #[error("the socket for {0} was not handed over")]
    SocketMissing(SocketAddr),
}

/// The sockets of a dispatcher.
#[derive(Debug)]
pub struct ListenerSockets {
    /// The socket for visitors.
    pub visitors: TcpListener,
    /// The socket of the admin listener, if any.
    pub admin: Option<TcpListener>,
    /// The socket that redirects to `https`, if any.
    pub https_redirect: Option<TcpListener>,
    /// The offer to the next process.
    pub offer: Option<OpenSocketOffer>,
}

/// The addresses of a dispatcher's listeners.
#[derive(Debug, Clone, Copy)]
pub struct ListenerAddresses {
    /// The address for visitors.
    pub visitors: SocketAddr,
    /// The address of the admin listener, if any.
    pub admin: Option<SocketAddr>,
    /// The address that redirects to `https`, if any.
    pub https_redirect: Option<SocketAddr>,
}

/// Sockets that are bound already, and those that another process still serves.
#[derive(Debug)]
pub struct SocketAcquisition {
    takeover: Option<InheritedSockets>,
    socket_path: Option<PathBuf>,
    visitors: SocketSource,
    admin: Option<SocketSource>,
    https_redirect: Option<SocketSource>,
}

/// The source of a socket.
#[derive(Debug)]
enum SocketSource {
    Bound(TcpListener),
    /// The other process holds the socket with this address.
    HeldByPredecessor(SocketAddr),
}

/// An offer with its sockets.
#[derive(Debug)]
pub struct OpenSocketOffer {
    offer: SocketOffer,
    sockets: Vec<TcpListener>,
}

impl ListenerSockets {
    /// Checks whether another process serves, and fails early if an unrelated process uses an address.
    ///
    /// # Errors
    /// If there is a process that does not hand over.
    pub fn prepare(
        addresses: ListenerAddresses,
        handover_socket: Option<PathBuf>,
    ) -> Result<SocketAcquisition, ListenerSocketError> {
        let inherited_sockets = match &handover_socket {
            None => None,
            Some(path) => InheritedSockets::request_sockets(path).map_err(|error| {
                ListenerSocketError::Refused { path: path.clone(), reason: error }
            })?,
        };
        let inherited_addresses =
            inherited_sockets.iter().flat_map(|inherited_sockets| &inherited_sockets.sockets);
        let inherited_addresses: Vec<SocketAddr> =
            inherited_addresses.filter_map(|socket| socket.local_addr().ok()).collect();
        // Bind before the other process stops, so that it continues if this fails.
        let open = |address: SocketAddr| {
            if inherited_addresses.contains(&address) {
                return Ok(SocketSource::HeldByPredecessor(address));
            }
            let bound = bind_listener(address, PortReuse::Exclusive);
            bound.map(SocketSource::Bound).map_err(ListenerSocketError::Bind)
        };
        let visitors = open(addresses.visitors)?;
        let admin = addresses.admin.map(open).transpose()?;
        let https_redirect = addresses.https_redirect.map(open).transpose()?;
        Ok(SocketAcquisition {
            takeover: inherited_sockets,
            socket_path: handover_socket,
            visitors,
            admin,
            https_redirect,
        })
    }
}

impl SocketAcquisition {
    /// Returns the sockets after the other process has stopped accepting from them.
    ///
    /// # Errors
    /// If the other process does not stop.
    pub async fn acquire(self) -> Result<ListenerSockets, ListenerSocketError> {
        let mut sockets = match self.takeover {
            None => Vec::new(),
            Some(inherited_sockets) => {
                tokio::task::spawn_blocking(|| inherited_sockets.take_over())
                    .await
                    .unwrap_or_else(|error| Err(std::io::Error::other(error)))
                    .map_err(ListenerSocketError::PredecessorRuns)?
            }
        };
        let mut open = |socket: SocketSource| match socket {
            SocketSource::Bound(socket) => Ok(socket),
            SocketSource::HeldByPredecessor(address) => {
                let is_it =
                    |socket: &TcpListener| socket.local_addr().is_ok_and(|own| own == address);
                let index = sockets.iter().position(is_it);
                index
                    .map(|index| sockets.swap_remove(index))
                    .ok_or(ListenerSocketError::SocketMissing(address))
            }
        };
        let visitors = open(self.visitors)?;
        let admin = self.admin.map(&mut open).transpose()?;
        let https_redirect = self.https_redirect.map(&mut open).transpose()?;
        let offer = self.socket_path.and_then(|path| {
            let own = [Some(&visitors), admin.as_ref(), https_redirect.as_ref()];
            let own = own.into_iter().flatten();
            let offer = own.map(TcpListener::try_clone).collect::<std::io::Result<_>>().and_then(
                |sockets| Ok(OpenSocketOffer { offer: SocketOffer::open(&path)?, sockets }),
            );
            // Serving takes priority; the next start then requires a stop of this process.
            offer
                .inspect_err(|error| {
                    tracing::warn!(file = %path.display(), reason = %error, "cannot offer the sockets for \
                        handover");
                })
                .ok()
        });
        Ok(ListenerSockets { visitors, admin, https_redirect, offer })
    }
}

/// Copies of the sockets, dropped when the wait ends: clients must not queue on a socket that no process accepts from.
struct OfferedSocketCopies(Arc<Mutex<Vec<TcpListener>>>);

impl Drop for OfferedSocketCopies {
    fn drop(&mut self) {
        self.0.lock().clear();
    }
}

impl OpenSocketOffer {
    /// Waits for a successor process, and hands over to it.
    pub async fn hand_over(self, dispatcher: Dispatcher, drain: ListenerDrain, stop: Sender<bool>) {
        let (sender, mut successors) = tokio::sync::mpsc::channel(1);
        let Self { offer, sockets } = self;
        let copies = OfferedSocketCopies(Arc::new(Mutex::new(sockets)));
        let sockets = Arc::clone(&copies.0);
        // This is a detached thread: it waits for the whole lifetime of the process, and the process does not wait for
        // it.
        std::thread::spawn(move || {
            loop {
                match offer.wait_for_successor() {
                    Ok(mut successor) => match send_sockets(&mut successor, &sockets) {
                        Ok(()) => {
                            drop(sender.blocking_send((successor, offer)));
                            return;
                        }
                        Err(error) => {
                            tracing::warn!(reason = %error, "the process that requested the sockets did not \
                                become ready; continuing to serve")
                        }
                    },
                    Err(error) => {
                        tracing::warn!(reason = %error, "can no longer hand over the sockets");
                        return;
                    }
                }
            }
        });
        let Some((mut successor, _offer)) = successors.recv().await else {
            return std::future::pending().await;
        };
        tracing::info!("handing over to another process");
        // From now on flushes go to the other process, so that this one must not cache anything that it is still
        // fetching.
        let leave = tokio::task::spawn_blocking(move || dispatcher.leave_cache());
        leave.await.ok();
        drain.set_linger_time(DRAIN_TIMEOUT);
        stop.send_replace(true);
        drain.wait_stopped().await;
        if let Err(error) = successor.send_stopped() {
            tracing::warn!(reason = %error, "cannot notify the process that takes over");
        }
    }
}

fn send_sockets(
    successor: &mut SuccessorProcess,
    sockets: &Mutex<Vec<TcpListener>>,
) -> std::io::Result<()> {
    successor.send_sockets(&sockets.lock())?;
    successor.wait_ready()
}
