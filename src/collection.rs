//! Collecting garbage: what a running instance does by schedule (`maintenance`), and a command.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant, SystemTime};

use tympan_content::{Purged, Repository, Revising};
use tympan_jobs::Queues;
use tympan_store::{ChunkId, ChunkStore, CollectOptions, Collected, Phase, Progress};

use crate::command::Fault;
use crate::config::Config;
use crate::home::chain;

pub(crate) const EVERY: Duration = Duration::from_hours(6);
pub(crate) const BYTES_PER_SECOND: u64 = 32 << 20;

/// Returns how a collection works for this configuration, by a time that [`trusted_now`](crate::clock::trusted_now) gave;
/// what followers have seen last is kept.
///
/// # Errors
/// If the state database fails.
pub(crate) async fn options(
    config: &Config,
    queues: &Queues,
    now: SystemTime,
) -> Result<CollectOptions, Fault> {
    let digested = queues.all_digested().await;
    let digested = digested.map_err(|error| Fault::cannot_run(chain(&error)))?;
    let keep: BTreeSet<ChunkId> = digested.iter().filter_map(|root| root.parse().ok()).collect();
    let retention = config.history.retention();
    Ok(CollectOptions { keep, retention, ..CollectOptions::at(now) })
}

/// Takes away the versions of nodes that outlived their time, by a time as for [`options`].
///
/// # Errors
/// If the store fails.
pub(crate) fn purge(
    repository: &Repository,
    config: &Config,
    now: SystemTime,
) -> tympan_content::Result<Purged> {
    let (user, message) = ("system", "take away outdated versions");
    let revising = Revising { user, message, at: now };
    repository.purge_versions(&config.versions.retention(), revising)
}

/// Collects at no more than `rate` bytes in a second, until it is done or told to stop.
pub(crate) fn collect_paced(
    chunks: &dyn ChunkStore,
    options: &CollectOptions,
    rate: u64,
    is_stopped: &dyn Fn() -> bool,
) -> tympan_store::Result<Collected> {
    let mut pacer = Pacer::at(rate);
    chunks.collect(options, &mut |progress: &Progress| {
        pacer.wait(progress);
        if is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

/// Keeps a walk at a number of bytes in a second.
pub(crate) struct Pacer {
    rate: u64,
    phase: Option<Phase>,
    began: Instant,
}

impl Pacer {
    pub(crate) fn at(rate: u64) -> Self {
        Self { rate, phase: None, began: Instant::now() }
    }

    /// Waits for as long as the walk is too fast.
    pub(crate) fn wait(&mut self, progress: &Progress) {
        if self.phase != Some(progress.phase) {
            (self.phase, self.began) = (Some(progress.phase), Instant::now());
        }
        let due = Duration::from_micros(progress.bytes.saturating_mul(1_000_000) / self.rate);
        // Little waits are left to add up: a timer is not so fine.
        let wait = due.checked_sub(self.began.elapsed()).filter(|wait| wait.as_millis() >= 5);
        if let Some(wait) = wait {
            std::thread::sleep(wait.min(Duration::from_millis(250)));
        }
    }
}
