//! Finished samples: evaluated, counted in their transactions, and passed to the recorder.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tympan_lab_plan::model::{PlanNodeKind, SampleErrorAction, SamplePostProcessor};
use tympan_lab_plan::{AssertionResult, PlanNodeId, SampleAssertion, SampleResponse};

use super::plan_thread::PlanThread;
use super::sub_sample::{SampleOwner, SubSampleNode};
use crate::load::UserTurn;
use crate::measurement::jtl::JtlRow;
use crate::measurement::{
    ExchangeTrace, RecordedSample, redact_head, trace_request_text, truncate_text,
};

/// The prefix of the message of a sample without a response.
pub(super) const NO_RESPONSE_PREFIX: &str = "Non HTTP response message: ";

/// The totals of a sample with its redirects and resources.
#[derive(Debug)]
pub(super) struct SampleTotals {
    pub(super) started: Instant,
    pub(super) ended: Instant,
    pub(super) first_byte: Instant,
    pub(super) connect_time: Duration,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) body_bytes: u64,
    pub(super) status: u16,
    pub(super) is_ok: bool,
    pub(super) data_type: &'static str,
    pub(super) response: SampleResponse,
    /// The server's own timing.
    pub(super) server_timing: Option<Box<str>>,
    /// The cache state that a header reports: true for a hit, false for none.
    pub(super) is_cache_hit: Option<bool>,
    /// The request as sent, if the exchange is traced.
    pub(super) traced_request: Option<Arc<[u8]>>,
    pub(super) media_type: String,
    /// Its sub-samples, if there is more than one exchange and rows include them.
    pub(super) sub_samples: Option<Box<SubSampleNode>>,
    /// The mark by which servers identify the sample.
    pub(super) sample_mark: Option<Box<str>>,
}

/// Rows below that of a transaction, and the start time of each sample.
#[derive(Debug)]
pub(super) struct TransactionRows {
    transaction: PlanNodeId,
    rows: Vec<(Instant, JtlRow<'static>)>,
}

/// A finished sample, to be reported at the end of the turn.
#[derive(Debug)]
pub(super) struct FinishedSample {
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

impl PlanThread {
    /// Finishes a sample that received no response.
    pub(super) fn finish_without_reply(
        &mut self,
        node: PlanNodeId,
        response: SampleResponse,
        started: Instant,
        is_ok: bool,
    ) {
        let now = Instant::now();
        let sum = SampleTotals {
            started,
            ended: now,
            first_byte: started,
            connect_time: Duration::ZERO,
            sent_bytes: 0,
            received_bytes: response.body.len() as u64,
            body_bytes: response.body.len() as u64,
            status: response.code.parse().unwrap_or(0),
            is_ok,
            data_type: "text",
            response,
            server_timing: None,
            is_cache_hit: None,
            traced_request: None,
            media_type: String::new(),
            sub_samples: None,
            sample_mark: None,
        };
        self.finish_sample(node, sum);
    }

    /// Evaluates a sample and records it.
    pub(super) fn finish_sample(&mut self, node: PlanNodeId, mut sum: SampleTotals) {
        let model = Arc::clone(&self.model);
        let Some(PlanNodeKind::Sampler(sampler)) = model.nodes.get(node).map(|node| &node.kind)
        else {
            return;
        };
        sum.response.elapsed_ms = to_millis(sum.ended.saturating_duration_since(sum.started));
        sum.response.bytes = sum.received_bytes;
        let mut is_ok = sum.is_ok;
        if sampler.assertions.iter().any(SampleAssertion::assumes_success) && sum.status != 0 {
            is_ok = true;
        }
        let mut actions = Vec::new();
        // A script sampler may discard its own sample: it is then not processed further.
        let was_ignored = sum.response.script_directives.is_ignored;
        for after in sampler.post_processors.iter().filter(|_| !was_ignored) {
            match after {
                SamplePostProcessor::Extractor(extractor) => {
                    extractor.set_variables(&sum.response, &mut self.scope, &mut self.patterns);
                }
                SamplePostProcessor::Script(script) => {
                    is_ok = self.run_post_processor(script, &mut sum.response, is_ok)
                }
                SamplePostProcessor::OnError(action) => actions.push(*action),
            }
        }
        let judges = if was_ignored { &[] } else { sampler.assertions.as_slice() };
        let failure = self.apply_assertions(judges, &mut sum.response, &mut is_ok);
        let said = sum.response.script_directives;
        if !sampler.listeners.is_empty() {
            self.run_listeners(&sampler.listeners, &sum.response, is_ok);
        }
        if model.retains_previous_sample {
            self.last_response = Some(sum.response.clone());
        }
        if !said.is_ignored {
            self.record_sample(sum, is_ok, failure);
        }
        for (is_said, action) in [
            (said.stops_thread, SampleErrorAction::StopThread),
            (said.stops_test, SampleErrorAction::StopTest),
            (said.starts_next_loop, SampleErrorAction::NextLoop),
        ] {
            if is_said {
                self.apply_error_action(action);
            }
        }
        if !is_ok {
            actions.push(self.group_state.on_error);
            for action in actions {
                if action != SampleErrorAction::Continue {
                    self.apply_error_action(action);
                    break;
                }
            }
        }
    }

    /// Evaluates the assertions for a response; returns the message of the first one that fails.
    fn apply_assertions(
        &mut self,
        judges: &[SampleAssertion],
        response: &mut SampleResponse,
        is_ok: &mut bool,
    ) -> String {
        let mut failure = String::new();
        for judge in judges {
            let verdict = match judge {
                SampleAssertion::Script(script) => self.run_assertion(script, response, is_ok),
                _ => judge.evaluate(response, &mut self.scope, &mut self.patterns),
            };
            match verdict {
                AssertionResult::Passed | AssertionResult::PassedOverridingStatus => {}
                AssertionResult::Failed(fault) => {
                    *is_ok = false;
                    if failure.is_empty() {
                        failure = fault;
                    }
                }
            }
        }
        self.last_sample_ok = *is_ok;
        self.scope
            .set_variable("JMeterThread.last_sample_ok", if *is_ok { "true" } else { "false" });
        failure
    }

    /// Adds a sample to those to be reported.
    fn record_sample(&mut self, sum: SampleTotals, is_ok: bool, failure: String) {
        let below = self.add_to_transactions(&sum, is_ok);
        let trace = sum.exchange_trace(&self.scope.sample_label, is_ok, &failure).map(Box::new);
        self.finished_samples.push(FinishedSample {
            label: Arc::clone(&self.scope.sample_label),
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

    /// Adds a sample to its transactions; returns the innermost that replaces it.
    fn add_to_transactions(&mut self, sum: &SampleTotals, is_ok: bool) -> Option<PlanNodeId> {
        let model = Arc::clone(&self.model);
        // Inner transactions have higher numbers.
        let mut innermost = None;
        for (node, state) in self.controller_states.iter_mut().enumerate() {
            let Some(open) = &mut state.open_transaction else { continue };
            let Some(PlanNodeKind::Transaction { is_parent, includes_timers: with_timers, .. }) =
                model.nodes.get(node).map(|node| &node.kind)
            else {
                continue;
            };
            if !with_timers {
                open.idle_time += sum.started.saturating_duration_since(open.previous_end);
            }
            open.previous_end = sum.ended;
            open.ended_samples += 1;
            if *is_parent && open.failed_samples == 0 {
                sum.response.code.clone_into(&mut open.response_code);
            }
            open.failed_samples += u64::from(!is_ok);
            open.received_bytes += sum.received_bytes;
            open.sent_bytes += sum.sent_bytes;
            open.latency += sum.first_byte.saturating_duration_since(sum.started);
            open.connect_time += sum.connect_time;
            open.children_time += sum.ended.saturating_duration_since(sum.started);
            innermost = is_parent.then_some(node).or(innermost);
        }
        innermost
    }

    /// Ends a transaction and records its sample.
    pub(super) fn end_transaction(&mut self, node: PlanNodeId, ending: TransactionEnding) {
        let model = Arc::clone(&self.model);
        let Some(entry) = model.nodes.get(node) else { return };
        let PlanNodeKind::Transaction {
            is_parent,
            includes_timers: with_timers,
            assertions: judges,
        } = &entry.kind
        else {
            return;
        };
        let Some(open) =
            self.controller_states.get_mut(node).and_then(|state| state.open_transaction.take())
        else {
            return;
        };
        if open.sampler_calls == 0 {
            return;
        }
        let now = Instant::now();
        let mut idle = open.idle_time;
        if !with_timers {
            idle += now.saturating_duration_since(open.previous_end);
        }
        let below = self.controller_states.iter().enumerate().rposition(|(index, state)| {
            let kind = model.nodes.get(index).map(|node| &node.kind);
            state.open_transaction.is_some()
                && matches!(kind, Some(PlanNodeKind::Transaction { is_parent: true, .. }))
        });
        if *is_parent && !with_timers {
            idle = now.saturating_duration_since(open.started).saturating_sub(open.children_time);
        }
        let mut is_ok = open.failed_samples == 0;
        // JMeter counts finished samples if the transaction replaces them, and selected samplers otherwise.
        let count = if *is_parent { open.ended_samples } else { open.sampler_calls };
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
        if *is_parent {
            let lasted = now.saturating_duration_since(open.started).saturating_sub(idle);
            let mut response = SampleResponse {
                code: code.clone().into_owned(),
                message: message.text().into_owned(),
                elapsed_ms: to_millis(lasted),
                bytes: open.received_bytes,
                ..SampleResponse::default()
            };
            failure = self.apply_assertions(judges, &mut response, &mut is_ok);
        }
        self.finished_samples.push(FinishedSample {
            label: open.label,
            is_transaction: true,
            is_hidden: below.is_some(),
            // A transaction that replaces nothing is reported separately, or not at all.
            parent_transaction: below.filter(|_| *is_parent),
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
    pub(super) fn report_finished_samples(&mut self, turn: &mut UserTurn<'_>) {
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
                self.retain_transaction_rows(&finished, elapsed, turn);
                continue;
            }
            if !finished.is_transaction {
                let start = self.run_state.epoch_ms(finished.started);
                let mut tally =
                    self.run_state.tallies.lock().unwrap_or_else(PoisonError::into_inner);
                tally.0.add_sample(start, to_millis(elapsed), finished.is_ok);
                tally.1.add_sample(start, to_millis(elapsed), finished.is_ok);
            }
            if turn.recorder.wants_rows() {
                self.for_each_row(&finished, elapsed, &mut |at, row| {
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
    ) {
        let Some(transaction) = finished.parent_transaction else { return };
        if !self.run_state.writes_sub_samples || !turn.recorder.wants_rows() {
            return;
        }
        let mut rows = Vec::new();
        self.for_each_row(finished, elapsed, &mut |at, row| rows.push((at, row.into_owned())));
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

    /// Calls `each` with the rows of a sample, its own first, and their start times.
    fn for_each_row(
        &self,
        finished: &FinishedSample,
        elapsed: Duration,
        each: &mut dyn FnMut(Instant, JtlRow<'_>),
    ) {
        let group_threads = self.group_state.active_threads.load(Ordering::Relaxed);
        let all_threads = self.run_state.thread_counts().active.max(group_threads);
        let thread = self.scope.thread_name.as_ref();
        let row = JtlRow {
            elapsed_ms: to_millis(elapsed),
            label: (&*finished.label).into(),
            response_code: finished.code.as_ref().into(),
            response_message: finished.message.text(),
            thread_name: thread.into(),
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
                SampleOwner {
                    sample_name: sample,
                    thread_name: thread,
                    group_threads,
                    all_threads,
                },
                each,
            );
        }
    }
}

impl SampleTotals {
    /// Returns the exchange, if it is traced.
    fn exchange_trace(&self, label: &str, is_ok: bool, failure: &str) -> Option<ExchangeTrace> {
        let bytes = self.traced_request.as_ref()?;
        let response = &self.response;
        let elapsed = self.ended.saturating_duration_since(self.started);
        Some(ExchangeTrace {
            label: label.to_owned(),
            url: response.url.clone(),
            started_ms: 0,
            elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            code: response.code.clone(),
            message: response.message.clone(),
            is_ok,
            failure: failure.to_owned(),
            request: trace_request_text(bytes),
            head: redact_head(&response.headers),
            body: truncate_text(response.body.clone()),
            media_type: self.media_type.clone(),
            body_bytes: self.body_bytes,
        })
    }
}

fn to_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
