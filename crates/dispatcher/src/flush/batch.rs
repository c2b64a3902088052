//! Batching of flushes: flushes that arrive while others are carried out wait and are then carried out together.
//!
//! A storm of flushes costs as much as its files, not as much as its messages: a folder is listed once for all handles
//! in it, and a `.stat` file is touched once. Between two batches the disk is left to visitors for as long as the batch
//! took.
//!
//! Invariants
//! * A flush is answered after its files were changed.
//! * Flushes that list pages to re-fetch are carried out separately, in their order.
//! * No request waits for the removal of large folders: they are renamed away, and emptied afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;
use tympan_web::flush_message::{FlushAction, FlushMessage, FlushNumbering, FlushScope};

use crate::cache::freshness::flush_window_end;
use crate::cache::response_memory::ResponseMemory;
use crate::cache::{Docroot, DocrootState, FileEffect, FileFlushResult, FileFlushTarget};
use crate::config::{CacheConfig, FlushMode};
use crate::dispatcher_parts::DispatcherParts;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::farm_state::FarmState;
use crate::flush::batch_queue::{DocrootFlush, WaitingFlush};
use crate::flush::numbering::{FlushNumbers, FlushOrder};
use crate::flush::propagation::FlushEvent;
use crate::flush::propagation::recording::FlushRecorder;
use crate::observe::log::LogLevel;
use crate::observe::metrics::{DispatcherCounter, DispatcherMetrics};
use crate::upstream::request_coalescing::FetchCoalescer;

/// The longest pause between two batches.
const MAX_BATCH_PAUSE: Duration = Duration::from_millis(100);
/// Batches shorter than this are not followed by a pause.
const MIN_BATCH_DURATION_FOR_PAUSE: Duration = Duration::from_millis(2);

/// Updates the files of document roots after flushes.
#[derive(Debug)]
pub(crate) struct FlushBatcher {
    farms: Arc<[Arc<FarmState>]>,
    recorder: FlushRecorder,
    runtime: Arc<DispatcherRuntime>,
    fetch_coalescer: Arc<FetchCoalescer>,
    response_memory: Arc<ResponseMemory>,
    metrics: Arc<DispatcherMetrics>,
}

impl FlushBatcher {
    pub(crate) fn new(parts: &DispatcherParts) -> Self {
        Self {
            farms: Arc::clone(&parts.farms),
            recorder: FlushRecorder::new(parts),
            runtime: Arc::clone(&parts.runtime),
            fetch_coalescer: Arc::clone(&parts.fetch_coalescer),
            response_memory: Arc::clone(&parts.response_memory),
            metrics: Arc::clone(&parts.metrics),
        }
    }

    /// Queues a flush, and waits until a worker has updated its files, together with those of other waiting flushes.
    pub(crate) async fn enqueue_and_wait(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        root: Arc<DocrootState>,
        flush: DocrootFlush,
    ) -> std::io::Result<()> {
        let (result_sender, result) = oneshot::channel();
        if farm.flush_queue.push(WaitingFlush { flush, result_sender }) {
            let (batcher, farm) = (Arc::clone(self), Arc::clone(farm));
            tokio::task::spawn_blocking(move || batcher.run_batch_worker(&farm, &root));
        }
        result.await.unwrap_or_else(|_panicked| Err(std::io::ErrorKind::Other.into()))
    }

    /// Carries out batches until no flush waits.
    fn run_batch_worker(&self, farm: &FarmState, root: &DocrootState) {
        let guard = FlushBatcherGuard(farm);
        loop {
            let waiting_flushes = farm.flush_queue.take_waiting();
            if waiting_flushes.is_empty() {
                std::mem::forget(guard);
                return;
            }
            let started = Instant::now();
            let result = root.docroot_for_writing().map(|docroot| {
                for batch in split_into_batches(waiting_flushes) {
                    self.apply_batch(farm, &docroot, batch);
                }
                docroot.empty_trash();
            });
            if let Err(error) = result {
                tracing::error!(farm = %farm.config.name, reason = %error, "cannot open the document root");
            }
            let elapsed = started.elapsed();
            if elapsed > MIN_BATCH_DURATION_FOR_PAUSE {
                std::thread::sleep(elapsed.min(MAX_BATCH_PAUSE));
            }
        }
    }

    /// Updates the files of several flushes and reports the results to their senders.
    fn apply_batch(&self, farm: &FarmState, docroot: &Arc<Docroot>, batch: Vec<WaitingFlush>) {
        let Some(cache) = &farm.config.cache else { return };
        let flushes: Vec<&DocrootFlush> =
            batch.iter().map(|waiting_flush| &waiting_flush.flush).collect();
        // Held until the files are changed, as another farm may have the same document root.
        let mut numbers = docroot.flush_numbers.lock();
        let batch_numbers = BatchNumbers::from_flushes(&flushes, || {
            numbers.take().unwrap_or_else(|| docroot.read_flush_numbers())
        });
        let is_doubtful = batch_numbers.as_ref().is_some_and(BatchNumbers::is_doubtful);
        let change = || self.apply_flushes_to_files(docroot, cache, &flushes, is_doubtful);
        let mut result = self.fetch_coalescer.with_stores_blocked(change);
        if is_doubtful && result.first_error.is_none() {
            result.record_outcome(self.recorder.record_for_siblings(farm, FlushEvent::Stats));
        }
        if let Some(batch_numbers) = batch_numbers {
            // A flush that failed is not recorded as received, and is sent again.
            let is_done = result.first_error.is_none();
            *numbers =
                is_done.then(|| self.store_flush_numbers(farm, docroot, cache, batch_numbers));
        }
        drop(numbers);
        docroot.record_disk_full(
            &result.first_error.as_ref().map_or(Ok(()), |failure| Err(failure.kind().into())),
        );
        self.response_memory.record_change();
        self.metrics.add(DispatcherCounter::FilesDeleted, result.removed_count as u64);
        self.metrics.add(DispatcherCounter::FilesMarked, result.marked_count as u64);
        tracing::debug!(farm = %farm.config.name, flushes = flushes.len(), removed = result.removed_count,
            marked = result.marked_count, "flushes applied");
        for waiting_flush in batch {
            let outcome = match &result.first_error {
                None => Ok(()),
                Some(failure) => Err(std::io::Error::new(failure.kind(), failure.to_string())),
            };
            // The agent may have disconnected.
            waiting_flush.result_sender.send(outcome).ok();
        }
    }

    /// Counts and records the received flush numbers; returns them.
    fn store_flush_numbers(
        &self,
        farm: &FarmState,
        docroot: &Arc<Docroot>,
        cache: &CacheConfig,
        batch_numbers: BatchNumbers,
    ) -> FlushNumbers {
        for (source, order) in &batch_numbers.orders {
            if let Some(root) = &farm.docroot {
                root.flush_orders.count(*order);
            }
            if order.is_doubtful() {
                tracing::warn!(farm = %farm.config.name, agent = source, reason = order.name(),
                    "flushes may have been missed; invalidating all pages");
                self.runtime.write_log(LogLevel::Warn, || {
                    format!(
                        "Flushes of {source} may have been missed ({}): touched all stat files",
                        order.name()
                    )
                });
            } else if *order == FlushOrder::Restarted {
                tracing::info!(farm = %farm.config.name, agent = source, "sender of flushes restarted");
            }
        }
        if let Err(error) =
            docroot.write_flush_numbers(&batch_numbers.numbers.to_text(), cache.mode)
        {
            // After a restart some flushes before the next one will seem lost, which is safe.
            tracing::warn!(farm = %farm.config.name, reason = %error, "cannot write the flush numbers");
        }
        batch_numbers.numbers
    }

    /// Returns the caches of all farms that store files in a document root: flush numbers apply to all of them.
    fn caches_on<'a>(&'a self, docroot: &'a Docroot) -> impl Iterator<Item = &'a CacheConfig> {
        let is_there = |farm: &&Arc<FarmState>| {
            farm.docroot.as_ref().is_some_and(|root| root.path() == docroot.path())
        };
        let farms = self.farms.iter().filter(is_there);
        farms.filter_map(|farm| farm.config.cache.as_ref())
    }

    /// Touches all stat files of all farms on a document root, without waiting for a window, because the time of the
    /// missed changes is unknown. Stat files touched at or after `since` stay as they are.
    pub(crate) fn touch_all_stat_files(
        &self,
        docroot: &Docroot,
        since: Option<SystemTime>,
    ) -> FileFlushResult {
        let (mut result, mut touched) = (FileFlushResult::default(), BTreeSet::new());
        let now = self.runtime.clock.tick();
        for cache in self.caches_on(docroot) {
            result.record_outcome(docroot.touch_all_stat_files(cache, (now, since), &mut touched));
        }
        result
    }

    /// Touches stat files, and removes or marks the files of a batch.
    fn apply_flushes_to_files(
        &self,
        docroot: &Docroot,
        cache: &CacheConfig,
        flushes: &[&DocrootFlush],
        is_doubtful: bool,
    ) -> FileFlushResult {
        let mut result = FileFlushResult::default();
        let now = self.runtime.clock.tick();
        let mut touched = BTreeSet::new();
        if is_doubtful {
            // The time of the missed changes is unknown, so no window is applied.
            for cache in self.caches_on(docroot) {
                result.record_outcome(docroot.touch_all_stat_files(
                    cache,
                    (now, None),
                    &mut touched,
                ));
            }
        }
        let now = flush_window_end(now, cache.flush_window);
        for flush in flushes {
            if flush.message.scope != Some(FlushScope::ResourceOnly) {
                // A failure does not stop the removal of the other files.
                for handle in &flush.handles {
                    result.record_outcome(docroot.touch_stat_files(
                        handle,
                        cache,
                        now,
                        &mut touched,
                    ));
                }
            }
        }
        for file in &touched {
            self.runtime.write_log(LogLevel::Debug, || format!("Touched {}", file.display()));
        }
        let targets = flushes.iter().flat_map(|flush| {
            let handles = flush.handles.iter().chain(&flush.variant_handles);
            handles.map(|handle| FileFlushTarget {
                handle,
                effect: file_effect(cache, flush.message.action),
            })
        });
        let targets: Vec<FileFlushTarget<'_>> = targets.collect();
        // Only a batch of one flush has a re-fetch list (`split_into_batches`).
        let no_files = BTreeSet::new();
        let refetch_files = flushes.first().map_or(&no_files, |flush| &flush.refetch_files);
        result.merge(docroot.flush_handles(&targets, refetch_files));
        for flush in flushes.iter().filter(|flush| removes_files(flush.message.action)) {
            for handle in &flush.handles {
                result.merge(docroot.remove_subtree(handle));
            }
        }
        for file in refetch_files {
            result.merge(docroot.mark_file_stale(file));
        }
        result
    }
}

/// The flush numbers of a batch.
struct BatchNumbers {
    numbers: FlushNumbers,
    orders: Vec<(String, FlushOrder)>,
}

impl BatchNumbers {
    /// Collects the numbers of flushes; `None` if none of them has one.
    fn from_flushes(
        flushes: &[&DocrootFlush],
        read_numbers: impl FnOnce() -> FlushNumbers,
    ) -> Option<Self> {
        let numbered = |flush: &&DocrootFlush| {
            let FlushMessage { numbering, sequence, .. } = &flush.message;
            numbering.clone().map(|numbering| (numbering, *sequence))
        };
        let mut numbered = flushes.iter().filter_map(numbered).peekable();
        numbered.peek()?;
        let mut numbers = read_numbers();
        let note = |(numbering, sequence): (FlushNumbering, Option<u64>)| {
            let order = numbers.record_number(&numbering, sequence);
            (numbering.source, order)
        };
        let orders = numbered.map(note).collect();
        Some(Self { numbers, orders })
    }

    fn is_doubtful(&self) -> bool {
        self.orders.iter().any(|(_, order)| order.is_doubtful())
    }
}

/// Allows the next flush to start a batch if this one panics.
struct FlushBatcherGuard<'a>(&'a FarmState);

impl Drop for FlushBatcherGuard<'_> {
    fn drop(&mut self) {
        self.0.flush_queue.reset();
    }
}

fn removes_files(action: FlushAction) -> bool {
    matches!(action, FlushAction::Deactivate | FlushAction::Delete)
}

/// Returns the effect of a flush on the files of its handles.
pub(crate) fn file_effect(cache: &CacheConfig, action: FlushAction) -> FileEffect {
    match cache.flush_mode {
        FlushMode::Soft if !removes_files(action) => FileEffect::Mark,
        FlushMode::Soft | FlushMode::Delete => FileEffect::Delete,
    }
}

/// Splits flushes into batches that may be carried out together: a flush with a re-fetch list is a batch of its own.
fn split_into_batches(waiting_flushes: Vec<WaitingFlush>) -> Vec<Vec<WaitingFlush>> {
    let mut batches: Vec<Vec<WaitingFlush>> = Vec::new();
    let mut accepts_more = false;
    for waiting_flush in waiting_flushes {
        let has_refetch_list = !waiting_flush.flush.refetch_files.is_empty();
        match batches.last_mut().filter(|_| accepts_more && !has_refetch_list) {
            Some(batch) => batch.push(waiting_flush),
            None => batches.push(vec![waiting_flush]),
        }
        accepts_more = !has_refetch_list;
    }
    batches
}
