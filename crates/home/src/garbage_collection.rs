//! Garbage collection: the scheduled task of a running instance (`maintenance`), and the command.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant, SystemTime};

use tympan_content::{Repository, RevisionDetails, VersionPurgeReport};
use tympan_jobs::JobQueues;
use tympan_store::{
    ChunkId, ChunkStore, GarbageCollectionOptions, GarbageCollectionPhase,
    GarbageCollectionProgress, GarbageCollectionReport,
};

use crate::config::HomeConfig;
use crate::error::Result;

pub(crate) const COLLECTION_INTERVAL: Duration = Duration::from_hours(6);
pub(crate) const DEFAULT_BYTES_PER_SECOND: u64 = 32 << 20;

/// Returns the options of a collection for this configuration, for a time that
/// [`trusted_now`](crate::trusted_now) returned; the states that followers have seen last are kept.
///
/// # Errors
/// If the state database fails.
pub async fn collect_options(
    config: &HomeConfig,
    queues: &JobQueues,
    now: SystemTime,
) -> Result<GarbageCollectionOptions> {
    let digested = queues.followers().all_roots().await?;
    let keep: BTreeSet<ChunkId> = digested.iter().filter_map(|root| root.parse().ok()).collect();
    let retention = config.history.retention();
    Ok(GarbageCollectionOptions {
        retained_roots: keep,
        retention,
        ..GarbageCollectionOptions::at_time(now)
    })
}

/// Removes the expired versions of nodes, for a time as in [`collect_options`].
///
/// # Errors
/// If the store fails.
pub fn purge_versions(
    repository: &Repository,
    config: &HomeConfig,
    now: SystemTime,
) -> tympan_content::Result<VersionPurgeReport> {
    let (user, message) = ("system", "remove outdated versions");
    let revising = RevisionDetails { user, message, time: now };
    repository.purge_versions(&config.versions.retention(), revising)
}

/// Collects garbage at no more than `rate` bytes per second, until it is done or stopped.
pub(crate) fn collect_paced(
    chunks: &dyn ChunkStore,
    options: &GarbageCollectionOptions,
    rate: u64,
    is_stopped: &dyn Fn() -> bool,
) -> tympan_store::Result<GarbageCollectionReport> {
    let mut pacer = CollectionPacer::with_rate(rate);
    chunks.collect_garbage(options, &mut |progress: &GarbageCollectionProgress| {
        pacer.throttle(progress);
        if is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

/// Limits a walk to a number of bytes per second.
pub(crate) struct CollectionPacer {
    bytes_per_second: u64,
    phase: Option<GarbageCollectionPhase>,
    phase_start: Instant,
}

impl CollectionPacer {
    pub(crate) fn with_rate(rate: u64) -> Self {
        Self { bytes_per_second: rate, phase: None, phase_start: Instant::now() }
    }

    /// Sleeps for as long as the walk is ahead of its rate.
    pub(crate) fn throttle(&mut self, progress: &GarbageCollectionProgress) {
        if self.phase != Some(progress.phase) {
            (self.phase, self.phase_start) = (Some(progress.phase), Instant::now());
        }
        let due = Duration::from_micros(
            progress.byte_count.saturating_mul(1_000_000) / self.bytes_per_second,
        );
        // Short delays accumulate first, because timers are not that precise.
        let wait = due.checked_sub(self.phase_start.elapsed()).filter(|wait| wait.as_millis() >= 5);
        if let Some(wait) = wait {
            std::thread::sleep(wait.min(Duration::from_millis(250)));
        }
    }
}
