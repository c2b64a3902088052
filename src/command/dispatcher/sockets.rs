//! The sockets of a dispatcher: bound, or taken over from the one that serves, and handed over to the next.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch::Sender;
use tympan_dispatcher::Dispatcher;
use tympan_web::handover::{Offer, Successor, Taken};
use tympan_web::listen::{Drain, Reuse, bind};

use super::Place;
use crate::command::Fault;
use crate::home::chain;

/// How long visitors may use connections to a dispatcher that was relieved.
const LINGER: Duration = Duration::from_secs(5);

/// The sockets of a dispatcher.
pub(super) struct Sockets {
    pub(super) visitors: TcpListener,
    pub(super) admin: Option<TcpListener>,
    pub(super) https_redirect: Option<TcpListener>,
    /// For the next process.
    pub(super) offer: Option<OpenOffer>,
}

/// Where a dispatcher listens besides for visitors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Others {
    pub(super) admin: Option<SocketAddr>,
    pub(super) https_redirect: Option<SocketAddr>,
}

/// What is bound already, and what another process still serves.
pub(super) struct Found {
    taken: Option<Taken>,
    path: Option<PathBuf>,
    visitors: Socket,
    admin: Option<Socket>,
    https_redirect: Option<Socket>,
}

/// A socket to be.
enum Socket {
    Bound(TcpListener),
    /// The other process has the socket with this address.
    Held(SocketAddr),
}

/// An offer with the sockets that belong to it.
pub(super) struct OpenOffer {
    offer: Offer,
    sockets: Vec<TcpListener>,
}

impl Sockets {
    /// Asks whether another process serves, and fails early if an address is taken by a stranger.
    ///
    /// # Errors
    /// If a process is there that does not hand over.
    pub(super) fn find(place: &Place, others: Others) -> Result<Found, Fault> {
        let taken = match &place.hand_over {
            None => None,
            Some(path) => Taken::ask(path).map_err(|error| {
                let path = path.display();
                Fault::cannot_run(format!(
                    "the dispatcher at `{path}` does not hand over: {error}; stop it, or start this one with another --hand-over"
                ))
            })?,
        };
        let held = taken.iter().flat_map(|taken| &taken.sockets);
        let held: Vec<SocketAddr> = held.filter_map(|socket| socket.local_addr().ok()).collect();
        // Bound before the other process stops, so that it goes on if this fails.
        let open = |address: SocketAddr| {
            if held.contains(&address) {
                return Ok(Socket::Held(address));
            }
            let bound = bind(address, Reuse::Exclusive);
            bound
                .map(Socket::Bound)
                .map_err(|error| Fault::cannot_run(format!("dispatcher: {}", chain(&error))))
        };
        let visitors = open(place.listen)?;
        let admin = others.admin.map(open).transpose()?;
        let https_redirect = others.https_redirect.map(open).transpose()?;
        Ok(Found { taken, path: place.hand_over.clone(), visitors, admin, https_redirect })
    }
}

impl Found {
    /// Returns the sockets, when no other process accepts from them any more.
    ///
    /// # Errors
    /// If the other process goes on.
    pub(super) async fn take(self) -> Result<Sockets, Fault> {
        let mut sockets = match self.taken {
            None => Vec::new(),
            Some(taken) => tokio::task::spawn_blocking(|| taken.relieve())
                .await
                .map_err(|error| Fault::cannot_run(chain(&error)))?
                .map_err(|error| {
                    Fault::cannot_run(format!("the dispatcher that serves does not stop: {error}"))
                })?,
        };
        let mut open = |socket: Socket| match socket {
            Socket::Bound(socket) => Ok(socket),
            Socket::Held(address) => {
                let is_it =
                    |socket: &TcpListener| socket.local_addr().is_ok_and(|own| own == address);
                let index = sockets.iter().position(is_it);
                index.map(|index| sockets.swap_remove(index)).ok_or_else(|| {
                    Fault::cannot_run(format!("the socket for {address} was not handed over"))
                })
            }
        };
        let visitors = open(self.visitors)?;
        let admin = self.admin.map(&mut open).transpose()?;
        let https_redirect = self.https_redirect.map(&mut open).transpose()?;
        let offer = self.path.and_then(|path| {
            let own = [Some(&visitors), admin.as_ref(), https_redirect.as_ref()];
            let own = own.into_iter().flatten();
            let offer = own.map(TcpListener::try_clone).collect::<std::io::Result<_>>().and_then(
                |sockets| Ok(OpenOffer { offer: Offer::open(&path)?, sockets }),
            );
            // To serve goes first; the next start then needs a stop before it.
            offer
                .inspect_err(|error| {
                    tracing::warn!(file = %path.display(), reason = %error, "cannot offer to hand over");
                })
                .ok()
        });
        Ok(Sockets { visitors, admin, https_redirect, offer })
    }
}

/// Copies of the sockets, which go when the waiting ends: a socket that nobody accepts from must not gather clients.
struct Copies(Arc<Mutex<Vec<TcpListener>>>);

impl Drop for Copies {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl OpenOffer {
    /// Waits for a process that takes this one's place, and lets it.
    pub(super) async fn wait(self, dispatcher: Dispatcher, drain: Drain, stop: Sender<bool>) {
        let (sender, mut successors) = tokio::sync::mpsc::channel(1);
        let Self { offer, sockets } = self;
        let copies = Copies(Arc::new(Mutex::new(sockets)));
        let sockets = Arc::clone(&copies.0);
        // A thread of its own: it waits for as long as the process lives, and the process does not wait for it.
        std::thread::spawn(move || {
            loop {
                match offer.wait() {
                    Ok(mut successor) => match send(&mut successor, &sockets) {
                        Ok(()) => {
                            drop(sender.blocking_send((successor, offer)));
                            return;
                        }
                        Err(error) => {
                            tracing::warn!(reason = %error, "a process that asked for the sockets did not get ready; this one goes on")
                        }
                    },
                    Err(error) => {
                        tracing::warn!(reason = %error, "the sockets cannot be handed over any more");
                        return;
                    }
                }
            }
        });
        let Some((mut successor, _offer)) = successors.recv().await else {
            return std::future::pending().await;
        };
        tracing::info!("another process takes over");
        // From now on flushes go to the other process, so nothing that is being fetched here may be kept.
        let leave = tokio::task::spawn_blocking(move || dispatcher.leave_cache());
        leave.await.ok();
        drain.linger(LINGER);
        stop.send_replace(true);
        drain.stopped().await;
        if let Err(error) = successor.tell_stopped() {
            tracing::warn!(reason = %error, "the process that takes over is gone");
        }
    }
}

fn send(successor: &mut Successor, sockets: &Mutex<Vec<TcpListener>>) -> std::io::Result<()> {
    successor.send(&sockets.lock().unwrap_or_else(PoisonError::into_inner))?;
    successor.wait_ready()
}
