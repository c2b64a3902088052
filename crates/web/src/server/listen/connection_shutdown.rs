//! Shutdown of a listener: it stops accepting connections, tells clients to reconnect, and completes open requests.

use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::sync::watch;
use tracing::warn;

use super::listener_option::ListenerOptions;
use crate::server::connection_limit::ConnectionLimiter;

/// Signals the shutdown to the connections of one listener.
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

    /// Returns the shutdown signals for connections that hyper has: for HTTP/1.1, and for HTTP/2.
    pub(super) fn shutdown_watchers(&self) -> (Watcher, Watcher) {
        (self.http1_shutdown.watcher(), self.http2_shutdown.watcher())
    }

    /// Returns the shutdown signal for connections that hyper does not have.
    pub(super) fn subscribe_end(&self) -> watch::Receiver<bool> {
        self.end_sender.subscribe()
    }

    /// Ends all connections; returns when they have ended, or when the timeout is reached.
    pub(super) async fn drain_connections(
        self,
        options: &ListenerOptions,
        limiter: &ConnectionLimiter,
    ) {
        let Self { http1_shutdown: http1, http2_shutdown: http2, end_sender } = self;
        let (linger, limits) = (options.drain.begin_stop(), &options.limits);
        let end = async {
            let lingering = async {
                tokio::time::timeout(linger, limiter.wait_empty(limits.max_connections)).await.ok();
                end_sender.send_replace(true);
                http1.shutdown().await;
            };
            // HTTP/2 itself tells clients which requests were not handled, so it needs no linger time.
            tokio::join!(lingering, http2.shutdown());
        };
        if tokio::time::timeout(linger + limits.drain_timeout, end).await.is_err() {
            warn!(
                elapsed_ms = limits.drain_timeout.as_millis() as u64,
                "requests were still open at the drain timeout"
            );
        }
    }
}
