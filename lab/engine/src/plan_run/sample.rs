//! Finished samples: collected during a turn of a thread, and passed to the recorder at its end.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tympan_lab_plan::{PlanNodeId, SampleResponse};

use super::sample_evaluation::{SampleEvaluation, SampleVerdict};
use super::sample_totals::{NO_RESPONSE_PREFIX, SampleTotals, to_millis};
use super::sub_sample::{SampleOwner, SubSampleNode};
use super::thread_context::ThreadContext;
use super::transaction::{EndedTransaction, TransactionEnding, TransactionSettings};
use crate::load::UserTurn;
use crate::measurement::jtl::JtlRow;
use crate::measurement::{ExchangeTrace, RecordedSample};

/// Rows below that of a transaction, and the start time of each sample.
#[derive(Debug)]
struct TransactionRows {
    transaction: PlanNodeId,
    rows: Vec<(Instant, JtlRow<'static>)>,
}

/// A finished sample, to be reported at the end of the turn.
#[derive(Debug)]
struct FinishedSample {
    label: Arc<str>,
    is_transaction: bool,
    /// Set inside a transaction that replaces its samples.
    is_hidden: bool,
    /// The transaction that replaces it and lists it below its own row.
    parent_transaction: Option<PlanNodeId>,
    /// The transaction that this sample is, if that replaces its samples.
    own_transaction: Option<PlanNodeId>,
    sub_samples: Option<Box<SubSampleNode>>,
    /// The time at which it was due, if known.
    due_at: Option<Instant>,
    started: Instant,
    first_byte: Instant,
    ended: Instant,
    idle_time: Duration,
    connect_time: Duration,
    status: u16,
    is_ok: bool,
    received_bytes: u64,
    body_bytes: u64,
    sent_bytes: u64,
    code: Cow<'static, str>,
    message: SampleMessage,
    failure: String,
    data_type: &'static str,
    url: Cow<'static, str>,
    server_timing: Option<Box<str>>,
    is_cache_hit: Option<bool>,
    trace: Option<Box<ExchangeTrace>>,
    sample_mark: Option<Box<str>>,
}

/// The message of a sample, formatted on demand.
#[derive(Debug)]
enum SampleMessage {
    Text(String),
    /// Number of samples of a transaction, and number of failed ones.
    Transaction(u64, u64),
}

impl SampleMessage {
    fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Transaction(calls, failed) => format!(
                "Number of samples in transaction : {calls}, number of failing samples : {failed}"
            )
            .into(),
        }
    }
}

/// The finished samples of one thread.
#[derive(Debug, Default)]
pub(super) struct PlanSampleRecorder {
    /// The due time of the first request of a visit; its sample takes it.
    due_at: Option<Instant>,
    finished_samples: Vec<FinishedSample>,
    /// Rows below that of a transaction, until it ends.
    pending_rows: Vec<TransactionRows>,
}

impl PlanSampleRecorder {
    /// Sets the due time of the next sample, if it is known.
    pub(super) fn set_due(&mut self, due_at: Option<Instant>) {
        self.due_at = due_at;
    }

    /// Delays the due time of the next sample.
    pub(super) fn delay_due(&mut self, delay: Duration) {
        self.due_at = self.due_at.map(|due| due + delay);
    }

    /// Adds a sample to those to be reported; `below` is the innermost transaction that replaces it.
    pub(super) fn record_sample(
        &mut self,
        sum: SampleTotals,
        label: &Arc<str>,
        verdict: SampleVerdict,
        below: Option<PlanNodeId>,
    ) {
        let SampleVerdict { is_ok, failure, .. } = verdict;
        let trace = sum.exchange_trace(label, is_ok, &failure).map(Box::new);
        self.finished_samples.push(FinishedSample {
            label: Arc::clone(label),
            is_transaction: false,
            is_hidden: below.is_some(),
            parent_transaction: below,
            own_transaction: None,
            sub_samples: sum.sub_samples,
            due_at: self.due_at.take(),
            started: sum.started,
            first_byte: sum.first_byte,
            ended: sum.ended,
            idle_time: Duration::ZERO,
            connect_time: sum.connect_time,
            status: sum.status,
            is_ok,
            received_bytes: sum.received_bytes,
            body_bytes: sum.body_bytes,
            sent_bytes: sum.sent_bytes,
            code: sum.response.code.into(),
            message: SampleMessage::Text(sum.response.message),
            failure,
            data_type: sum.data_type,
            url: sum.response.url.into(),
            server_timing: sum.server_timing,
            is_cache_hit: sum.is_cache_hit,
            trace,
            sample_mark: sum.sample_mark,
        });
    }

    /// Adds the sample of a transaction that has ended to those to be reported.
    pub(super) fn record_transaction(
        &mut self,
        ended: EndedTransaction<'_>,
        evaluation: &mut SampleEvaluation,
        thread: &mut ThreadContext,
    ) {
        let EndedTransaction { node, settings, open, ending, around } = ended;
        let TransactionSettings { is_parent, includes_timers, assertions } = settings;
        let now = Instant::now();
        let mut idle = open.idle_time;
        if !includes_timers {
            idle += now.saturating_duration_since(open.previous_end);
        }
        if is_parent && !includes_timers {
            idle = now.saturating_duration_since(open.started).saturating_sub(open.children_time);
        }
        let mut is_ok = open.failed_samples == 0;
        // JMeter counts finished samples if the transaction replaces them, and selected samplers otherwise.
        let count = if is_parent { open.ended_samples } else { open.sampler_calls };
        let message = match ending {
            TransactionEnding::Stopped => SampleMessage::Text(String::new()),
            TransactionEnding::Completed | TransactionEnding::Abandoned => {
                SampleMessage::Transaction(count, open.failed_samples)
            }
        };
        let code: Cow<'static, str> = match (ending, is_parent, is_ok) {
            (TransactionEnding::Completed, _, true)
            | (TransactionEnding::Abandoned, true, true) => "200".into(),
            (_, true, _) => open.response_code.clone().into(),
            (_, false, _) => "".into(),
        };
        let mut failure = String::new();
        if is_parent {
            let lasted = now.saturating_duration_since(open.started).saturating_sub(idle);
            let mut response = SampleResponse {
                code: code.clone().into_owned(),
                message: message.text().into_owned(),
                elapsed_ms: to_millis(lasted),
                bytes: open.received_bytes,
                ..SampleResponse::default()
            };
            failure = evaluation.apply_assertions(
                assertions,
                &mut response,
                &mut is_ok,
                &mut thread.scope,
            );
        }
        self.finished_samples.push(FinishedSample {
            label: open.label,
            is_transaction: true,
            is_hidden: around.is_some(),
            // A transaction that replaces nothing is reported separately, or not at all.
            parent_transaction: around.filter(|_| is_parent),
            own_transaction: is_parent.then_some(node),
            sub_samples: None,
            due_at: None,
            started: open.started,
            first_byte: open.started + open.latency,
            ended: now,
            idle_time: idle,
            connect_time: open.connect_time,
            status: if is_ok { 200 } else { 0 },
            is_ok,
            received_bytes: open.received_bytes,
            body_bytes: open.received_bytes,
            sent_bytes: open.sent_bytes,
            code,
            message,
            failure,
            data_type: "",
            url: "null".into(),
            server_timing: None,
            is_cache_hit: None,
            trace: None,
            sample_mark: None,
        });
    }

    /// Passes the finished samples to the recorder.
    pub(super) fn report_finished_samples(
        &mut self,
        turn: &mut UserTurn<'_>,
        thread: &ThreadContext,
    ) {
        if self.finished_samples.is_empty() {
            return;
        }
        let mut all = std::mem::take(&mut self.finished_samples);
        for mut finished in all.drain(..) {
            let elapsed = finished
                .ended
                .saturating_duration_since(finished.started)
                .saturating_sub(finished.idle_time);
            let label = turn.recorder.label_id_of_kind(&finished.label, finished.is_transaction);
            let message = if finished.is_ok { Cow::Borrowed("") } else { finished.message.text() };
            let reason = match (finished.is_ok, finished.failure.as_str()) {
                (true, _) => None,
                (false, "") if finished.status == 0 => Some(&*message),
                // Without a response, that is the failure reason, and not the failed assertion.
                (false, _) if message.starts_with(NO_RESPONSE_PREFIX) => Some(&*message),
                (false, "") => Some("status"),
                (false, failure) => Some(failure),
            };
            let sample = RecordedSample {
                label,
                due: finished.due_at.map_or(finished.started, |due| due.min(finished.started)),
                start: finished.started,
                first_byte: finished.first_byte,
                end: finished.started + elapsed,
                connect_time: finished.connect_time,
                status: finished.status,
                failure: reason,
                is_hit: finished.is_cache_hit,
                received_bytes: finished.received_bytes,
                body_bytes: finished.body_bytes,
                sent_bytes: finished.sent_bytes,
            };
            turn.recorder.record_sample(&sample);
            if let Some(mark) = &finished.sample_mark {
                turn.recorder.record_marked(&sample, mark, finished.server_timing.as_deref());
            }
            if let Some(header) = &finished.server_timing {
                turn.recorder.record_server_timing(label, header);
            }
            if let Some(trace) = finished.trace.take() {
                turn.recorder.record_trace(finished.started, *trace);
            }
            if finished.is_hidden {
                self.retain_transaction_rows(&finished, elapsed, turn, thread);
                continue;
            }
            if !finished.is_transaction {
                let start = thread.run_state.epoch_ms(finished.started);
                let mut tally =
                    thread.run_state.tallies.lock().unwrap_or_else(PoisonError::into_inner);
                tally.0.add_sample(start, to_millis(elapsed), finished.is_ok);
                tally.1.add_sample(start, to_millis(elapsed), finished.is_ok);
            }
            if turn.recorder.wants_rows() {
                for_each_row(&finished, elapsed, thread, &mut |at, row| {
                    turn.recorder.write_row(at, row)
                });
                let Some(transaction) = finished.own_transaction else { continue };
                for (at, row) in self.take_transaction_rows(transaction) {
                    turn.recorder.write_row(at, row);
                }
            }
        }
        // Reuse its capacity for the next sample.
        self.finished_samples = all;
    }

    /// Stores the rows of a sample that a transaction replaces, if they are listed below that of the transaction.
    fn retain_transaction_rows(
        &mut self,
        finished: &FinishedSample,
        elapsed: Duration,
        turn: &UserTurn<'_>,
        thread: &ThreadContext,
    ) {
        let Some(transaction) = finished.parent_transaction else { return };
        if !thread.run_state.writes_sub_samples || !turn.recorder.wants_rows() {
            return;
        }
        let mut rows = Vec::new();
        for_each_row(finished, elapsed, thread, &mut |at, row| rows.push((at, row.into_owned())));
        rows.extend(
            finished
                .own_transaction
                .into_iter()
                .flat_map(|inner| self.take_transaction_rows(inner)),
        );
        self.pending_rows.push(TransactionRows { transaction, rows });
    }

    /// Removes and returns the rows below that of a transaction.
    fn take_transaction_rows(
        &mut self,
        transaction: PlanNodeId,
    ) -> Vec<(Instant, JtlRow<'static>)> {
        let is_its = |entry: &mut TransactionRows| entry.transaction == transaction;
        self.pending_rows.extract_if(.., is_its).flat_map(|entry| entry.rows).collect()
    }
}

/// Calls `each` with the rows of a sample, its own first, and their start times.
fn for_each_row(
    finished: &FinishedSample,
    elapsed: Duration,
    thread: &ThreadContext,
    each: &mut dyn FnMut(Instant, JtlRow<'_>),
) {
    let group_threads = thread.group_state.active_threads.load(Ordering::Relaxed);
    let all_threads = thread.run_state.thread_counts().active.max(group_threads);
    let thread_name = thread.scope.thread_name.as_ref();
    let row = JtlRow {
        elapsed_ms: to_millis(elapsed),
        label: (&*finished.label).into(),
        response_code: finished.code.as_ref().into(),
        response_message: finished.message.text(),
        thread_name: thread_name.into(),
        data_type: finished.data_type.into(),
        is_ok: finished.is_ok,
        failure: finished.failure.as_str().into(),
        received_bytes: finished.received_bytes,
        sent_bytes: finished.sent_bytes,
        group_threads,
        all_threads,
        url: finished.url.as_ref().into(),
        latency_ms: to_millis(finished.first_byte.saturating_duration_since(finished.started)),
        idle_ms: to_millis(finished.idle_time),
        connect_ms: to_millis(finished.connect_time),
        elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
        mark: finished.sample_mark.as_deref().unwrap_or_default().into(),
        ..JtlRow::default()
    };
    each(finished.started, row);
    if let Some(subs) = &finished.sub_samples {
        let sample = &finished.label;
        subs.for_each_row(
            SampleOwner { sample_name: sample, thread_name, group_threads, all_threads },
            each,
        );
    }
}
