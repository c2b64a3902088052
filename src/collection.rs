//! Collecting garbage: by schedule in a running instance, and as a command.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use tympan_content::{Purged, Repository, Revising};
use tympan_jobs::Queues;
use tympan_store::{ChunkId, ChunkStore, CollectOptions, Collected, Progress};

use crate::command::Fault;
use crate::config::Config;
use crate::home::chain;

pub(crate) const EVERY: Duration = Duration::from_hours(6);
/// An instance that is started often collects too.
const FIRST: Duration = Duration::from_mins(10);
const BYTES_PER_SECOND: u64 = 32 << 20;

/// Returns how a collection works for this configuration; what followers have seen last is kept.
///
/// # Errors
/// If the state database fails.
pub(crate) async fn options(config: &Config, queues: &Queues) -> Result<CollectOptions, Fault> {
    let digested = queues.all_digested().await;
    let digested = digested.map_err(|error| Fault::cannot_run(chain(&error)))?;
    let keep: BTreeSet<ChunkId> = digested.iter().filter_map(|root| root.parse().ok()).collect();
    let retention = config.history.retention();
    Ok(CollectOptions { keep, retention, ..CollectOptions::at(SystemTime::now()) })
}

/// Takes away the versions of nodes that outlived their time.
///
/// # Errors
/// If the store fails.
pub(crate) fn purge(repository: &Repository, config: &Config) -> tympan_content::Result<Purged> {
    let (user, message) = ("system", "take away outdated versions");
    let revising = Revising { user, message, at: SystemTime::now() };
    repository.purge_versions(&config.versions.retention(), revising)
}

/// Collects again and again until the instance stops, and takes outdated versions away before. A failure is told and
/// tried again at the next time.
pub(crate) async fn run(
    repository: Repository,
    queues: Queues,
    config: Config,
    mut stopped: watch::Receiver<bool>,
) {
    let every = config.collect.every.map_or(EVERY, |span| span.0);
    if every.is_zero() {
        return;
    }
    let mut wait = every.min(FIRST);
    loop {
        tokio::select! {
            () = tokio::time::sleep(wait) => wait = every,
            () = until(&mut stopped) => return,
        }
        let (purging, of) = (repository.clone(), config.clone());
        match tokio::task::spawn_blocking(move || purge(&purging, &of)).await {
            Ok(Ok(Purged { removed: 0, .. })) => {}
            Ok(Ok(Purged { versions, removed })) => {
                tracing::info!(versions, removed, "outdated versions taken away");
            }
            Ok(Err(error)) => tracing::error!(reason = chain(&error), "no version is taken away"),
            Err(error) => tracing::error!(reason = %error, "no version is taken away"),
        }
        let options = match options(&config, &queues).await {
            Ok(options) => options,
            Err(fault) => {
                tracing::error!(reason = fault.message(), "no garbage is collected");
                continue;
            }
        };
        let rate = config.collect.rate.map_or(BYTES_PER_SECOND, |rate| rate.0.max(1));
        let is_stopped = Arc::new(AtomicBool::new(false));
        let mut collecting = {
            let (chunks, is_stopped) = (repository.chunks().clone(), is_stopped.clone());
            tokio::task::spawn_blocking(move || {
                collect_paced(&*chunks, &options, rate, &is_stopped)
            })
        };
        let done = tokio::select! {
            done = &mut collecting => done,
            () = until(&mut stopped) => {
                is_stopped.store(true, Ordering::Relaxed);
                collecting.await
            }
        };
        match done {
            Ok(Ok(done)) => {
                let Collected { generation, freed_bytes, moved_bytes, live_bytes, .. } = done;
                tracing::info!(
                    generation,
                    freed_bytes,
                    moved_bytes,
                    live_bytes,
                    "garbage collected"
                );
            }
            Ok(Err(tympan_store::Error::Collecting)) => {
                tracing::debug!("another process collects garbage");
            }
            Ok(Err(error)) => tracing::error!(reason = chain(&error), "no garbage is collected"),
            Err(error) => tracing::error!(reason = %error, "no garbage is collected"),
        }
    }
}

/// Waits for the instance to stop.
async fn until(stopped: &mut watch::Receiver<bool>) {
    // The sender lives as long as the process serves.
    stopped.wait_for(|stopped| *stopped).await.ok();
}

/// Collects at no more than `rate` bytes in a second, until it is done or told to stop.
fn collect_paced(
    chunks: &dyn ChunkStore,
    options: &CollectOptions,
    rate: u64,
    is_stopped: &AtomicBool,
) -> tympan_store::Result<Collected> {
    let mut phase = None;
    let mut began = Instant::now();
    chunks.collect(options, &mut |progress: &Progress| {
        if phase != Some(progress.phase) {
            (phase, began) = (Some(progress.phase), Instant::now());
        }
        let due = Duration::from_micros(progress.bytes.saturating_mul(1_000_000) / rate);
        // Little waits are left to add up: a timer is not so fine.
        if let Some(wait) = due.checked_sub(began.elapsed()).filter(|wait| wait.as_millis() >= 5) {
            std::thread::sleep(wait.min(Duration::from_millis(250)));
        }
        if is_stopped.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
}
