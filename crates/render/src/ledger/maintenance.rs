//! What is done beside recording and answering: rows are stored, a publisher says that it is alive, and those that are gone
//! are taken over.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::table::{LedgerRow, StoredLedger};
use super::{DependencyLedger, LedgerResult};

/// How long rows wait for company before they are stored.
const STORE_BATCH_DELAY: Duration = Duration::from_millis(100);
/// How often a publisher says that it is alive.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// A publisher that was silent for longer is dead, and its URLs are taken over.
const PUBLISHER_TIMEOUT: Duration = Duration::from_secs(60);

impl DependencyLedger {
    /// Stores rows when there are some, says that this publisher is alive, and takes over from those that are not, until
    /// told to stop. Then everything is stored.
    pub async fn run_maintenance(self, mut stop: tokio::sync::watch::Receiver<bool>) {
        let mut beat = tokio::time::interval(HEARTBEAT_INTERVAL);
        while !*stop.borrow() {
            tokio::select! {
                () = self.0.store_signal.notified() => {
                    tokio::time::sleep(STORE_BATCH_DELAY).await;
                    self.log_failure("store", self.store_pending().await);
                }
                _ = beat.tick() => self.log_failure("keep", self.maintain_once().await),
                _ = stop.changed() => {}
            }
        }
        let closed = self.close().await;
        self.log_failure("close", closed);
    }

    /// Does what has to be done now and then.
    async fn maintain_once(&self) -> LedgerResult<()> {
        match self.0.table.is_shared() {
            true => self.renew_and_take_over(SystemTime::now()).await,
            false => self.store_pending().await,
        }
    }

    fn log_failure(&self, action: &'static str, result: LedgerResult<()>) {
        if let Err(error) = result {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(action, error = %error, reason = cause, "the ledger is behind");
            // Tried again with the next beat at the latest.
        }
    }

    /// Stores what was recorded since the last call; returns when it is durable.
    ///
    /// # Errors
    /// If the database cannot be written; nothing is lost then.
    pub async fn store_pending(&self) -> LedgerResult<()> {
        let _turn = self.0.write_lock.lock().await;
        let Some(batch) = self.0.index.lock().take_batch() else { return Ok(()) };
        let stored = self.0.table.write_batch(&batch).await;
        {
            let mut index = self.0.index.lock();
            index.finish_batch(&batch, stored.is_ok());
            if matches!(stored, Ok(false)) {
                // Another one took this publisher for dead and has its other rows.
                index.mark_all_dirty();
                self.0.store_signal.notify_one();
            }
        }
        self.0.counters.stored.fetch_add(batch.rows.len() as u64, Ordering::Relaxed);
        stored.map(drop)
    }

    /// Says that this publisher is alive and takes over the URLs of those that are not.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn renew_and_take_over(&self, now: SystemTime) -> LedgerResult<()> {
        if !self.0.table.send_heartbeat(now).await? {
            // Another one took this publisher for dead and has its rows.
            self.0.index.lock().mark_all_dirty();
            self.0.store_signal.notify_one();
        }
        self.store_pending().await?;
        for mut gone in self.0.table.dead_publishers(now, PUBLISHER_TIMEOUT).await? {
            let taken = self.0.table.take_over(&mut gone, now).await?;
            let Some(StoredLedger { rows, is_complete: is_whole, .. }) = taken else {
                continue;
            };
            self.0.counters.taken_over.fetch_add(rows.len() as u64, Ordering::Relaxed);
            tracing::info!(
                publisher = gone.publisher_name(),
                urls = rows.len(),
                "URLs of a publisher that is gone are taken over"
            );
            self.adopt_rows(rows, is_whole);
            self.store_pending().await?;
            self.0.table.delete_publisher(&gone).await?;
            self.0.taken_over_publishers.lock().push(gone.publisher_name().to_owned());
        }
        Ok(())
    }

    /// Takes up rows of a publisher that is gone: changes that came since it went were answered without them.
    fn adopt_rows(&self, rows: Vec<LedgerRow>, is_whole: bool) {
        let mut index = self.0.index.lock();
        rows.into_iter().for_each(|row| index.adopt_row(row));
        if !is_whole {
            index.add_pending_scope("/");
        }
    }

    /// Stores everything and notes that nothing is missing.
    ///
    /// # Errors
    /// If the database cannot be written; the next start finds the URLs in the files.
    pub async fn close(&self) -> LedgerResult<()> {
        self.store_pending().await?;
        self.0.table.close().await
    }
}
