//! What a run measured: histograms per label and second, counters, and rows where they are asked for.
//!
//! In: [`Sample`]s on each worker. Out: one [`Interval`] per worker and second, added up losslessly into [`Results`].
//!
//! Invariants
//! * Histograms are added, percentiles never averaged, so that workers and agents merge to what one would have seen.
//! * Memory does not grow with the number of samples, nor with that of labels.

pub mod hlog;
pub mod jtl;
mod label;
pub mod metrics;
mod opening;
mod phase;
mod recorder;
mod results;
mod slowest;
mod stats;
pub mod summariser;
mod trace;

pub(crate) use label::told;
pub use label::{MOST_LABELS, OTHER_LABELS};
pub use opening::{FirstCached, Known, Opening};
pub(crate) use recorder::{Interval, LabelId, Recorder, RowSink, Sample};
pub use results::{Generator, Member, OwnSecond, Results, Second, Series};
pub use slowest::{Joined, Served, Slow, Slowest, run_name};
pub(crate) use slowest::{Marks, put_mark};
pub use stats::{Stats, Timing};
pub use trace::Trace;
pub(crate) use trace::{cut, request_text, without_secrets};
