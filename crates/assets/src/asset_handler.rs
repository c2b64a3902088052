//! Handles the job that processes an asset's original.
//!
//! Invariant: a job whose asset is finished or deleted ends without generating renditions, because a job may run again
//! after a crash.
//!
//! On failure: a fault of the file is recorded on the asset, and the job is done. A system failure is retried with
//! increasing delays, as often as the queue allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value as Json;
use tympan_content::NodePath;
use tympan_jobs::{Job, JobContext, JobHandler, JobOutcome};
use tympan_notation::error_chain_text;

use crate::asset_processor::{AssetError, AssetProcessor, AssetUpdateOutcome, original_if_due};
use crate::rendition_error::RenditionError;

/// Topic of the jobs that process the originals of assets.
pub const ASSET_UPDATE_TOPIC: &str = "dam/update_asset";
/// Delay before the first retry after a system failure; doubled with each attempt.
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_mins(5);

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// Counters of processed assets since the process started.
        #[derive(Debug, Default)]
        pub struct AssetCounters {
            $($(#[doc = $doc])+ pub $name: AtomicU64,)+
            /// Milliseconds spent processing, including waits for memory.
            pub processing_ms: AtomicU64,
        }

        impl AssetCounters {
            /// Returns each counter's name, the meaning of an increase, and its value.
            #[must_use]
            pub fn all(&self) -> Vec<(&'static str, &'static str, f64)> {
                let mut counters = vec![$((
                    stringify!($name),
                    concat!($($doc),+).trim_ascii(),
                    self.$name.load(Ordering::Relaxed) as f64,
                ),)+];
                let seconds = self.processing_ms.load(Ordering::Relaxed) as f64 / 1000.0;
                let meaning = "Seconds spent processing, including waits for memory.";
                counters.push(("processing_seconds", meaning, seconds));
                counters
            }
        }
    };
}

counters! {
    /// Assets that received their renditions and metadata.
    processed,
    /// Renditions that were generated.
    renditions,
    /// Assets for which no renditions can be generated; each records the reason. An increase indicates files of an
    /// unsupported kind or damaged files.
    failed,
    /// Attempts that failed because of the system: no process, no memory, a store that does not respond. Repeated
    /// increases need attention.
    retried,
    /// Bytes of the originals that were read.
    original_bytes,
}

impl AssetCounters {
    fn increment(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// Carries out the jobs of [`ASSET_UPDATE_TOPIC`].
#[derive(Debug)]
pub struct AssetHandler {
    processor: AssetProcessor,
    counters: Arc<AssetCounters>,
}

impl AssetHandler {
    /// Creates the handler.
    #[must_use]
    pub fn new(assets: AssetProcessor) -> Self {
        Self { processor: assets, counters: Arc::default() }
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Arc<AssetCounters> {
        Arc::clone(&self.counters)
    }

    /// Processes the asset if it is due; returns `None` if it is not.
    fn process_if_due(&self, path: &NodePath) -> Result<Option<AssetUpdateOutcome>, AssetError> {
        let content = |source| AssetError::Content { path: path.clone(), source: Box::new(source) };
        let node = self.processor.repository().snapshot().and_then(|snapshot| snapshot.node(path));
        let Some(node) = node.map_err(content)? else { return Ok(None) };
        let Some(original) = original_if_due(&node).map_err(content)? else { return Ok(None) };
        AssetCounters::increment(&self.counters.original_bytes, original.length());
        self.processor.process_asset(path, SystemTime::now()).map(Some)
    }

    /// Returns the outcome of a failed attempt. A file whose process is killed or stalls each time may be the cause; it
    /// is then given up on the asset. Otherwise the job is given up.
    fn failure_outcome(
        &self,
        path: &NodePath,
        error: &AssetError,
        job: &Job,
        context: &JobContext,
    ) -> JobOutcome {
        let reason = error_chain_text(error);
        let is_killed = matches!(
            error,
            AssetError::Rendition {
                source: RenditionError::Killed | RenditionError::CpuStarved { .. },
                ..
            }
        );
        if is_killed
            && context.is_last_attempt()
            && self.processor.mark_given_up(path, &reason, SystemTime::now()).is_ok()
        {
            AssetCounters::increment(&self.counters.failed, 1);
            return JobOutcome::Failed { reason };
        }
        AssetCounters::increment(&self.counters.retried, 1);
        JobOutcome::Retry { after: Some(retry_delay(job.attempt)), reason }
    }

    fn record_result(&self, path: &NodePath, processed: &AssetUpdateOutcome, start: Instant) {
        let elapsed_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        AssetCounters::increment(&self.counters.processing_ms, elapsed_ms);
        match processed {
            AssetUpdateOutcome::Processed { renditions, .. } => {
                AssetCounters::increment(&self.counters.processed, 1);
                AssetCounters::increment(&self.counters.renditions, *renditions as u64);
                tracing::debug!(path = %path, renditions, elapsed_ms, "asset processed");
            }
            AssetUpdateOutcome::Failed(reason) => {
                AssetCounters::increment(&self.counters.failed, 1);
                tracing::info!(path = %path, reason, elapsed_ms, "asset cannot be processed");
            }
            AssetUpdateOutcome::Gone => {}
        }
    }
}

impl JobHandler for AssetHandler {
    fn topic(&self) -> &str {
        ASSET_UPDATE_TOPIC
    }

    fn run(&self, job: &Job, context: &JobContext) -> JobOutcome {
        let start = Instant::now();
        let path = job.properties.get("path").and_then(Json::as_str);
        let Some(path) = path.and_then(|path| NodePath::new(path).ok()) else {
            return JobOutcome::Failed { reason: "the job names no asset".to_owned() };
        };
        match self.process_if_due(&path) {
            Ok(processed) => {
                if let Some(processed) = &processed {
                    self.record_result(&path, processed, start);
                }
                JobOutcome::Done
            }
            Err(error) => self.failure_outcome(&path, &error, job, context),
        }
    }
}

/// Returns the delay after an attempt that failed because of the system.
fn retry_delay(attempt: u32) -> Duration {
    FIRST_RETRY_DELAY.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(MAX_RETRY_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_are_bounded() {
        let seconds = |attempt| retry_delay(attempt).as_secs();
        assert_eq!([1, 2, 3, 9, 10, 1000].map(seconds), [1, 2, 4, 256, 300, 300]);
    }
}
