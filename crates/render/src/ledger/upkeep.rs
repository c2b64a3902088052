//! What is done beside recording and answering: rows are stored, a publisher says that it is alive, and those that are gone
//! are taken over.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::table::{Opened, Row};
use super::{Ledger, Result};

/// How long rows wait for company before they are stored.
const LINGER: Duration = Duration::from_millis(100);
/// How often a publisher says that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// A publisher that was silent for longer is dead, and its URLs are taken over.
const SILENCE: Duration = Duration::from_secs(60);

impl Ledger {
    /// Stores rows when there are some, says that this publisher is alive, and takes over from those that are not, until
    /// told to stop. Then everything is stored.
    pub async fn run(self, mut stop: tokio::sync::watch::Receiver<bool>) {
        let mut beat = tokio::time::interval(HEARTBEAT);
        while !*stop.borrow() {
            tokio::select! {
                () = self.0.bell.notified() => {
                    tokio::time::sleep(LINGER).await;
                    self.try_to("store", self.store().await);
                }
                _ = beat.tick() => self.try_to("keep", self.beat().await),
                _ = stop.changed() => {}
            }
        }
        let closed = self.close().await;
        self.try_to("close", closed);
    }

    /// Does what has to be done now and then.
    async fn beat(&self) -> Result<()> {
        match self.0.table.is_shared() {
            true => self.keep(SystemTime::now()).await,
            false => self.store().await,
        }
    }

    fn try_to(&self, action: &'static str, result: Result<()>) {
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
    pub async fn store(&self) -> Result<()> {
        let _turn = self.0.writing.lock().await;
        let Some(batch) = self.0.index.lock().take_batch() else { return Ok(()) };
        let stored = self.0.table.write(&batch).await;
        {
            let mut index = self.0.index.lock();
            index.end_batch(&batch, stored.is_ok());
            if matches!(stored, Ok(false)) {
                // Another one took this publisher for dead and has its other rows.
                index.mark_all();
                self.0.bell.notify_one();
            }
        }
        self.0.counters.stored.fetch_add(batch.rows.len() as u64, Ordering::Relaxed);
        stored.map(drop)
    }

    /// Says that this publisher is alive and takes over the URLs of those that are not.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn keep(&self, now: SystemTime) -> Result<()> {
        if !self.0.table.beat(now).await? {
            // Another one took this publisher for dead and has its rows.
            self.0.index.lock().mark_all();
            self.0.bell.notify_one();
        }
        self.store().await?;
        for mut gone in self.0.table.gone(now, SILENCE).await? {
            let taken = self.0.table.take_over(&mut gone, now).await?;
            let Some(Opened { rows, is_whole, .. }) = taken else {
                continue;
            };
            self.0.counters.taken_over.fetch_add(rows.len() as u64, Ordering::Relaxed);
            tracing::info!(
                publisher = gone.name(),
                urls = rows.len(),
                "URLs of a publisher that is gone are taken over"
            );
            self.adopt(rows, is_whole);
            self.store().await?;
            self.0.table.forget(&gone).await?;
            self.0.gone.lock().push(gone.name().to_owned());
        }
        Ok(())
    }

    /// Takes up rows of a publisher that is gone: changes that came since it went were answered without them.
    fn adopt(&self, rows: Vec<Row>, is_whole: bool) {
        let mut index = self.0.index.lock();
        rows.into_iter().for_each(|row| index.take_over(row));
        if !is_whole {
            index.add_due("/");
        }
    }

    /// Stores everything and notes that nothing is missing.
    ///
    /// # Errors
    /// If the database cannot be written; the next start finds the URLs in the files.
    pub async fn close(&self) -> Result<()> {
        self.store().await?;
        self.0.table.close().await
    }
}
