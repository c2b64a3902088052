//! The state of the shutdown of a listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// The shutdown of a listener; clones share the state.
#[derive(Debug, Clone, Default)]
pub struct ListenerDrain(Arc<ListenerDrainState>);

#[derive(Debug, Default)]
struct ListenerDrainState {
    linger_ms: AtomicU64,
    stop_signal: watch::Sender<bool>,
}

impl ListenerDrain {
    /// Lets clients send one more request on open connections for this time after the shutdown began; its response
    /// tells them to reconnect. Without it, a request that is on its way while its connection is closed is lost.
    pub fn set_linger_time(&self, time: Duration) {
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.0.linger_ms.store(milliseconds, Ordering::SeqCst);
    }

    /// Waits until no more connections are accepted.
    pub async fn wait_stopped(&self) {
        // The sender lives as long as `self`.
        self.subscribe_stop().wait_for(|stopped| *stopped).await.ok();
    }

    /// Returns a receiver that signals that no more connections are accepted.
    pub(super) fn subscribe_stop(&self) -> watch::Receiver<bool> {
        self.0.stop_signal.subscribe()
    }

    pub(super) fn is_stopped(&self) -> bool {
        *self.0.stop_signal.borrow()
    }

    /// Begins the shutdown; returns the time for which clients may send one more request.
    pub(super) fn begin_stop(&self) -> Duration {
        self.0.stop_signal.send_replace(true);
        Duration::from_millis(self.0.linger_ms.load(Ordering::SeqCst))
    }
}
