//! How a front ends: nobody is accepted any more, clients are told to come anew, and open requests finish.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::sync::watch;
use tracing::warn;

use super::ListenerOptions;
use crate::connection_limit::ConnectionLimiter;

/// How a front ends; clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct ListenerDrain(Arc<ListenerDrainState>);

#[derive(Debug, Default)]
struct ListenerDrainState {
    linger_ms: AtomicU64,
    stop_signal: watch::Sender<bool>,
}

impl ListenerDrain {
    /// Lets clients send one more request on connections that they hold open, for so long after the shutdown began; its
    /// answer tells them to come anew. Without it, a request that is on its way while its connection is closed is lost.
    pub fn set_linger_time(&self, time: Duration) {
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.0.linger_ms.store(milliseconds, Ordering::SeqCst);
    }

    /// Waits until no connection is accepted any more.
    pub async fn wait_stopped(&self) {
        // The sender lives as long as this.
        self.subscribe_stop().wait_for(|stopped| *stopped).await.ok();
    }

    /// Returns what tells that no connection is accepted any more.
    pub(super) fn subscribe_stop(&self) -> watch::Receiver<bool> {
        self.0.stop_signal.subscribe()
    }

    pub(super) fn is_stopped(&self) -> bool {
        *self.0.stop_signal.borrow()
    }

    fn begin_stop(&self) -> Duration {
        self.0.stop_signal.send_replace(true);
        Duration::from_millis(self.0.linger_ms.load(Ordering::SeqCst))
    }
}

/// What tells the connections of one listener to end.
pub(super) struct ConnectionShutdown {
    http1_shutdown: GracefulShutdown,
    http2_shutdown: GracefulShutdown,
    end_sender: watch::Sender<bool>,
}

impl ConnectionShutdown {
    pub(super) fn new() -> Self {
        let (http1, http2) = (GracefulShutdown::new(), GracefulShutdown::new());
        Self { http1_shutdown: http1, http2_shutdown: http2, end_sender: watch::Sender::new(false) }
    }

    /// Returns what tells a connection to end while hyper has it: of HTTP/1.1, and of HTTP/2.
    pub(super) fn shutdown_watchers(&self) -> (Watcher, Watcher) {
        (self.http1_shutdown.watcher(), self.http2_shutdown.watcher())
    }

    /// Returns what tells a connection to end while hyper does not have it.
    pub(super) fn subscribe_end(&self) -> watch::Receiver<bool> {
        self.end_sender.subscribe()
    }

    /// Ends all connections: returns when they have ended, or the time for that has.
    pub(super) async fn drain_connections(
        self,
        front: &ListenerOptions,
        seats: &ConnectionLimiter,
    ) {
        let Self { http1_shutdown: http1, http2_shutdown: http2, end_sender: lanes } = self;
        let (linger, limits) = (front.drain.begin_stop(), &front.limits);
        let end = async {
            let lingering = async {
                tokio::time::timeout(linger, seats.wait_empty(limits.max_connections)).await.ok();
                lanes.send_replace(true);
                http1.shutdown().await;
            };
            // HTTP/2 tells its clients itself which requests were not seen, so it need not linger.
            tokio::join!(lingering, http2.shutdown());
        };
        if tokio::time::timeout(linger + limits.drain_timeout, end).await.is_err() {
            warn!(
                elapsed_ms = limits.drain_timeout.as_millis() as u64,
                "requests were still open when the time to finish them ended"
            );
        }
    }
}
