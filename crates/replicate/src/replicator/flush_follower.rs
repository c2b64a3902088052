//! Follows content and stores the flushes for what changed (`flush`).

use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tympan_notation::error_chain_text;

use tokio::sync::watch;
use tympan_jobs::FollowerLoop;

use super::{IDLE_POLL_INTERVAL, Replicator, root_poll_interval};
use crate::Result;
use crate::blocking::run_blocking;
use crate::flushing::flush::{FlushContext, store_flushes};

impl Replicator {
    /// Stores the flushes for changes since this publisher's last call, for each enabled cache agent; returns their
    /// number. None is lost or duplicated, whenever the process ends. The very first call only stores the start
    /// position.
    ///
    /// # Errors
    /// If content or the queues fail, or the URLs cannot be resolved.
    pub async fn flush_changes(&self, now: SystemTime) -> Result<usize> {
        let affected = Arc::clone(&self.state.url_resolver.lock());
        let publisher = self.state.flush_numbers.publisher();
        let mut last = self.state.last_flushed_root.lock().await;
        let following = FlushContext {
            repository: self.repository(),
            queues: &self.state.queues,
            publisher: &publisher,
            url_resolver: &affected,
        };
        let count = store_flushes(following, &mut last, now).await?;
        drop(last);
        self.wake_agent_workers();
        Ok(count)
    }

    /// Follows content until `stop` becomes true, so that changes by other processes and by means other than
    /// replication are also flushed.
    pub async fn run_flush_loop(self, stop: watch::Receiver<bool>) {
        let look = root_poll_interval(self.repository());
        let mut follower_loop = FollowerLoop::new("flushes", stop, IDLE_POLL_INTERVAL);
        let mut last_attempt: Option<Instant> = None;
        while !follower_loop.is_stopped() {
            // Pending URLs stay pending while there is no agent to flush.
            let is_asked =
                last_attempt.is_some_and(|attempt| attempt.elapsed() < IDLE_POLL_INTERVAL);
            let is_owing = !is_asked && self.state.url_resolver.lock().has_pending_urls();
            if is_owing {
                last_attempt = Some(Instant::now());
            }
            let result = self.flush_if_needed(is_owing).await.map(|()| look);
            follower_loop.finish_round(result.map_err(|error| error_chain_text(&error))).await;
        }
    }

    /// Stores flushes if content changed or URLs are pending.
    async fn flush_if_needed(&self, is_owing: bool) -> Result<()> {
        let repository = self.repository().clone();
        let head = match repository.chunks().has_costly_round_trips() {
            true => run_blocking(move || repository.head_root()).await??,
            false => repository.head_root()?,
        };
        let is_new = *self.state.last_flushed_root.lock().await != Some(head);
        if is_new || is_owing {
            self.flush_changes(SystemTime::now()).await?;
        }
        Ok(())
    }
}
