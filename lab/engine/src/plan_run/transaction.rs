//! Transactions: controllers whose samples are added up to one of their own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tympan_lab_plan::{PlanNodeId, SampleAssertion};

use super::sample_totals::SampleTotals;

/// A transaction in progress.
#[derive(Debug, Clone)]
pub(super) struct OpenTransaction {
    /// The name at the start of the transaction.
    pub(super) label: Arc<str>,
    pub(super) started: Instant,
    /// Excluded time.
    pub(super) idle_time: Duration,
    pub(super) previous_end: Instant,
    /// Number of selected samplers.
    pub(super) sampler_calls: u64,
    /// Number of finished samples.
    pub(super) ended_samples: u64,
    pub(super) failed_samples: u64,
    /// The response code of the last sample, or of the first one that failed.
    pub(super) response_code: String,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
    pub(super) latency: Duration,
    pub(super) connect_time: Duration,
    pub(super) children_time: Duration,
}

impl OpenTransaction {
    /// Begins a transaction.
    pub(super) fn begin(label: Arc<str>, now: Instant) -> Self {
        Self {
            label,
            started: now,
            idle_time: Duration::ZERO,
            previous_end: now,
            sampler_calls: 0,
            ended_samples: 0,
            failed_samples: 0,
            response_code: String::new(),
            received_bytes: 0,
            sent_bytes: 0,
            latency: Duration::ZERO,
            connect_time: Duration::ZERO,
            children_time: Duration::ZERO,
        }
    }

    /// Adds a sample within the transaction, which has these settings in the plan.
    pub(super) fn add_sample(
        &mut self,
        sum: &SampleTotals,
        is_ok: bool,
        settings: TransactionSettings<'_>,
    ) {
        if !settings.includes_timers {
            self.idle_time += sum.started.saturating_duration_since(self.previous_end);
        }
        self.previous_end = sum.ended;
        self.ended_samples += 1;
        if settings.is_parent && self.failed_samples == 0 {
            sum.response.code.clone_into(&mut self.response_code);
        }
        self.failed_samples += u64::from(!is_ok);
        self.received_bytes += sum.received_bytes;
        self.sent_bytes += sum.sent_bytes;
        self.latency += sum.first_byte.saturating_duration_since(sum.started);
        self.connect_time += sum.connect_time;
        self.children_time += sum.ended.saturating_duration_since(sum.started);
    }
}

/// The settings of a transaction in the plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct TransactionSettings<'a> {
    /// True if its sample replaces those within it.
    pub(super) is_parent: bool,
    pub(super) includes_timers: bool,
    pub(super) assertions: &'a [SampleAssertion],
}

/// A transaction that has ended.
#[derive(Debug)]
pub(super) struct EndedTransaction<'a> {
    pub(super) node: PlanNodeId,
    pub(super) settings: TransactionSettings<'a>,
    pub(super) open: OpenTransaction,
    pub(super) ending: TransactionEnding,
    /// The innermost transaction around it that replaces its samples.
    pub(super) around: Option<PlanNodeId>,
}

/// The way in which a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransactionEnding {
    /// All of its samples were completed.
    Completed,
    /// The iteration, or the pass of a loop, is abandoned.
    Abandoned,
    /// The thread ends.
    Stopped,
}
