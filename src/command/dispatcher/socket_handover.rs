//! The sockets of a dispatcher: bound, or taken over from the process that serves, and handed over to the next one.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch::Sender;
use tympan_dispatcher::Dispatcher;
use tympan_terminal::{CommandFault, error_chain_text};
use tympan_web::listen::{ListenerDrain, PortReuse, bind_listener};
use tympan_web::socket_handover::{InheritedSockets, SocketOffer, SuccessorProcess};

use super::DispatcherPlacement;

/// The time for which clients may use connections to a dispatcher after a handover.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The sockets of a dispatcher.
pub(super) struct DispatcherSockets {
    pub(super) visitors: TcpListener,
    pub(super) admin: Option<TcpListener>,
    pub(super) https_redirect: Option<TcpListener>,
    /// The offer to the next process.
    pub(super) offer: Option<OpenSocketOffer>,
}

/// The addresses of a dispatcher's listeners besides the main one.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExtraListenAddresses {
    pub(super) admin: Option<SocketAddr>,
    pub(super) https_redirect: Option<SocketAddr>,
}

/// Sockets that are bound already, and those that another process still serves.
pub(super) struct SocketAcquisition {
    takeover: Option<InheritedSockets>,
    socket_path: Option<PathBuf>,
    visitors: SocketSource,
    admin: Option<SocketSource>,
    https_redirect: Option<SocketSource>,
}

/// The source of a socket.
enum SocketSource {
    Bound(TcpListener),
    /// The other process holds the socket with this address.
    HeldByPredecessor(SocketAddr),
}

/// An offer with its sockets.
pub(super) struct OpenSocketOffer {
    offer: SocketOffer,
    sockets: Vec<TcpListener>,
}

impl DispatcherSockets {
    /// Checks whether another process serves, and fails early if an unrelated process uses an address.
    ///
    /// # Errors
    /// If there is a process that does not hand over.
    pub(super) fn prepare(
        placement: &DispatcherPlacement,
        others: ExtraListenAddresses,
    ) -> Result<SocketAcquisition, CommandFault> {
        let inherited_sockets = match &placement.handover_socket {
            None => None,
            Some(path) => InheritedSockets::request_sockets(path).map_err(|error| {
                let path = path.display();
                CommandFault::cannot_run(format!(
                    "the dispatcher at `{path}` does not hand over its sockets: {error}; stop it, or start \
                     this one with another --hand-over"
                ))
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
            bound.map(SocketSource::Bound).map_err(|error| {
                CommandFault::cannot_run(format!("dispatcher: {}", error_chain_text(&error)))
            })
        };
        let visitors = open(placement.listen_address)?;
        let admin = others.admin.map(open).transpose()?;
        let https_redirect = others.https_redirect.map(open).transpose()?;
        Ok(SocketAcquisition {
            takeover: inherited_sockets,
            socket_path: placement.handover_socket.clone(),
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
    pub(super) async fn acquire(self) -> Result<DispatcherSockets, CommandFault> {
        let mut sockets = match self.takeover {
            None => Vec::new(),
            Some(inherited_sockets) => {
                tokio::task::spawn_blocking(|| inherited_sockets.take_over())
                    .await
                    .map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?
                    .map_err(|error| {
                        CommandFault::cannot_run(format!(
                            "the running dispatcher did not stop: {error}"
                        ))
                    })?
            }
        };
        let mut open = |socket: SocketSource| match socket {
            SocketSource::Bound(socket) => Ok(socket),
            SocketSource::HeldByPredecessor(address) => {
                let is_it =
                    |socket: &TcpListener| socket.local_addr().is_ok_and(|own| own == address);
                let index = sockets.iter().position(is_it);
                index.map(|index| sockets.swap_remove(index)).ok_or_else(|| {
                    CommandFault::cannot_run(format!(
                        "the socket for {address} was not handed over"
                    ))
                })
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
        Ok(DispatcherSockets { visitors, admin, https_redirect, offer })
    }
}

/// Copies of the sockets, dropped when the wait ends: clients must not queue on a socket that no process accepts from.
struct OfferedSocketCopies(Arc<Mutex<Vec<TcpListener>>>);

impl Drop for OfferedSocketCopies {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl OpenSocketOffer {
    /// Waits for a successor process, and hands over to it.
    pub(super) async fn hand_over(
        self,
        dispatcher: Dispatcher,
        drain: ListenerDrain,
        stop: Sender<bool>,
    ) {
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
    successor.send_sockets(&sockets.lock().unwrap_or_else(PoisonError::into_inner))?;
    successor.wait_ready()
}
