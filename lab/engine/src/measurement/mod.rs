//! The measurements of a run: histograms per label and second, counters, and rows on request.
//!
//! In: [`RecordedSample`]s on each worker. Out: one [`WorkerInterval`] per worker and second, added up losslessly into
//! [`RunResults`].
//!
//! Invariants
//! * Histograms are added, percentiles never averaged, so that workers and agents merge to what one would have
//!   recorded.
//! * Memory grows neither with the number of samples nor with the number of labels.

mod cache_warmup;
pub mod hlog;
pub mod interval_codec;
pub mod jtl;
mod label;
pub mod log_watch_result;
pub mod metrics_csv;
mod process_metrics;
mod recorder;
mod results;
mod sample_stats;
mod server_timing;
mod slow_sample;
pub mod summariser;
mod trace;
pub mod trend;

pub use cache_warmup::{CacheEvidence, CacheWarmup, FirstCachedResponse};
pub(crate) use label::counted_label;
pub use label::{MAX_LABELS, OTHER_LABELS};
pub use process_metrics::{PoolUsage, ProcessMetrics};
pub use recorder::{JtlRowSink, RecordedSample, SampleLabelId, SampleRecorder, WorkerInterval};
pub use results::{
    GeneratorSecond, GeneratorStats, LabelSecond, LabelSeries, LoadProcess, RunResults,
};
pub use sample_stats::{SampleStats, TimingHistogram};
pub(crate) use slow_sample::{SampleMarkGenerator, insert_mark_header};
pub use slow_sample::{ServerLogJoin, ServerLogTiming, SlowSample, SlowestSamples, run_name};
pub use trace::ExchangeTrace;
pub use trace::{redact_head, trace_request_text, truncate_text};
