//! Maintenance of the ledger: storing rows, sending heartbeats, and taking over the rows of dead publishers.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::DependencyLedger;
use super::ledger_error::LedgerResult;
use super::table::{LedgerRow, StoredLedger};

/// Time for which rows are collected before they are stored.
const STORE_BATCH_DELAY: Duration = Duration::from_millis(100);
/// Interval of a publisher's heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// A publisher without a heartbeat for longer is dead, and its URLs are taken over.
const PUBLISHER_TIMEOUT: Duration = Duration::from_secs(60);

impl DependencyLedger {
    /// Stores rows when there are some, sends heartbeats, and takes over the rows of dead publishers, until stopped.
    /// Then stores everything.
    pub async fn run_maintenance(self, mut stop: tokio::sync::watch::Receiver<bool>) {
        let mut beat = tokio::time::interval(HEARTBEAT_INTERVAL);
        while !*stop.borrow() {
            tokio::select! {
                () = self.0.store_signal.notified() => {
                    tokio::time::sleep(STORE_BATCH_DELAY).await;
                    self.log_failure("store", self.store_pending().await);
                }
                _ = beat.tick() => self.log_failure("maintain", self.maintain_once().await),
                _ = stop.changed() => {}
            }
        }
        let closed = self.close().await;
        self.log_failure("close", closed);
    }

    /// Runs one round of the periodic work.
    async fn maintain_once(&self) -> LedgerResult<()> {
        match self.0.table.is_shared() {
            true => self.renew_and_take_over(SystemTime::now()).await,
            false => self.store_pending().await,
        }
    }

    fn log_failure(&self, action: &'static str, result: LedgerResult<()>) {
        if let Err(error) = result {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(action, error = %error, reason = cause, "cannot update the ledger; will retry");
            // Retried with the next heartbeat at the latest.
        }
    }

    /// Stores everything recorded since the last call; returns when it is durable.
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
                // Another publisher considered this one dead and took over its other rows.
                index.mark_all_dirty();
                self.0.store_signal.notify_one();
            }
        }
        self.0.counters.rows_stored.fetch_add(batch.rows.len() as u64, Ordering::Relaxed);
        stored.map(drop)
    }

    /// Sends a heartbeat and takes over the URLs of dead publishers.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn renew_and_take_over(&self, now: SystemTime) -> LedgerResult<()> {
        if !self.0.table.send_heartbeat(now).await? {
            // Another publisher considered this one dead and took over its rows.
            self.0.index.lock().mark_all_dirty();
            self.0.store_signal.notify_one();
        }
        self.store_pending().await?;
        for mut publisher in self.0.table.dead_publishers(now, PUBLISHER_TIMEOUT).await? {
            let stored_ledger = self.0.table.take_over(&mut publisher, now).await?;
            let Some(StoredLedger { rows, is_complete, .. }) = stored_ledger else {
                continue;
            };
            self.0.counters.urls_taken_over.fetch_add(rows.len() as u64, Ordering::Relaxed);
            tracing::info!(
                publisher = publisher.publisher_name(),
                urls = rows.len(),
                "took over the URLs of a dead publisher"
            );
            self.adopt_rows(rows, is_complete);
            self.store_pending().await?;
            self.0.table.delete_publisher(&publisher).await?;
            self.0.taken_over_publishers.lock().push(publisher.publisher_name().to_owned());
        }
        Ok(())
    }

    /// Adopts rows of a dead publisher: changes since its death were answered without them.
    fn adopt_rows(&self, rows: Vec<LedgerRow>, is_whole: bool) {
        let mut index = self.0.index.lock();
        rows.into_iter().for_each(|row| index.adopt_row(row));
        if !is_whole {
            index.add_pending_scope("/");
        }
    }

    /// Stores everything and records that nothing is missing.
    ///
    /// # Errors
    /// If the database cannot be written; the next start finds the URLs in the files.
    pub async fn close(&self) -> LedgerResult<()> {
        self.store_pending().await?;
        self.0.table.close().await
    }
}
