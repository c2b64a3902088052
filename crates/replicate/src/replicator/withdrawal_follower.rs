//! Follows content and stores the withdrawals of what commits removed (`withdrawal`).

use std::time::SystemTime;
use tympan_notation::error_chain_text;

use tokio::sync::watch;
use tracing::info;
use tympan_content::{ChunkId, RevisionDetails};
use tympan_jobs::FollowerLoop;

use super::{IDLE_POLL_INTERVAL, Replicator, root_poll_interval};
use crate::Result;
use crate::blocking::run_blocking;
use crate::request::withdrawal_job::plan_withdrawals;

impl Replicator {
    /// Stores jobs for what commits removed from the author and visitors still have; returns their number.
    ///
    /// # Errors
    /// If content or the queues fail.
    pub async fn store_withdrawals(&self, now: SystemTime) -> Result<usize> {
        let turn = self.lock_requests().await;
        let repository = self.repository().clone();
        let (jobs, done) =
            run_blocking(move || plan_withdrawals(&repository.snapshot()?)).await??;
        if jobs.is_empty() {
            return Ok(0);
        }
        let count = self.queues().add_jobs(jobs, now).await?.len();
        let repository = self.repository().clone();
        run_blocking(move || -> Result<()> {
            let message = match done.as_slice() {
                [withdrawal] => format!("withdraw {}", withdrawal.path),
                all => format!("withdraw {} addresses", all.len()),
            };
            let revising = RevisionDetails { user: "system", message: &message, time: now };
            Ok(repository.complete_withdrawals(&done, revising)?)
        })
        .await??;
        drop(turn);
        info!(jobs = count, "withdrawals of removed or moved content queued");
        self.wake_agent_workers();
        Ok(count)
    }

    /// Follows content until `stop` becomes true, so that removals by other processes and commands, and those left by
    /// crashes, are also withdrawn.
    pub async fn run_withdrawal_loop(self, stop: watch::Receiver<bool>) {
        let look = root_poll_interval(self.repository());
        let mut follower_loop = FollowerLoop::new("withdrawals", stop, IDLE_POLL_INTERVAL);
        let mut last = None;
        while !follower_loop.is_stopped() {
            let result = self.withdraw_if_changed(&mut last).await.map(|()| look);
            follower_loop.finish_round(result.map_err(|error| error_chain_text(&error))).await;
        }
    }

    /// Stores withdrawals if content has changed since the last check.
    async fn withdraw_if_changed(&self, last: &mut Option<ChunkId>) -> Result<()> {
        let repository = self.repository().clone();
        let head = run_blocking(move || repository.head_root()).await??;
        if *last == Some(head) {
            return Ok(());
        }
        self.store_withdrawals(SystemTime::now()).await?;
        *last = Some(head);
        Ok(())
    }
}
