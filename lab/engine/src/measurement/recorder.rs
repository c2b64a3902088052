//! Collects the samples of one worker and hands them over once a second.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender};
use std::time::{Duration, Instant, SystemTime};

use super::server_timing::for_each_phase;
use super::slow_sample::{SlowSample, SlowestSamples};
use super::trace::{ExchangeTrace, TraceQuota};
use crate::measurement::jtl::{JtlExtraColumns, JtlRow};
use crate::measurement::{MAX_LABELS, SampleStats, TimingHistogram, counted_label};
use crate::net::{ExchangeFailure, ExchangeOutcome};

/// The index of a label in its worker's recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleLabelId(usize);

/// One measured request.
#[derive(Debug)]
pub struct RecordedSample<'a> {
    /// The label.
    pub label: SampleLabelId,
    /// The time at which the request was due; a later start is a delay of the server or the generator.
    pub due: Instant,
    /// The time at which the request was sent.
    pub start: Instant,
    /// The time of the first received byte.
    pub first_byte: Instant,
    /// The time of the last received byte.
    pub end: Instant,
    /// Zero if the connection was already open.
    pub connect_time: Duration,
    /// 0 if there was no response.
    pub status: u16,
    /// The failure reason, if the sample failed.
    pub failure: Option<&'a str>,
    /// The cache state that a header reports: true for a hit, false for none; `None` if unknown.
    pub is_hit: Option<bool>,
    /// Number of received bytes.
    pub received_bytes: u64,
    /// Number of bytes of the body.
    pub body_bytes: u64,
    /// Number of sent bytes.
    pub sent_bytes: u64,
}

impl<'a> RecordedSample<'a> {
    /// Returns the sample of a single exchange; statuses from 400 count as failed.
    pub fn from_reply(label: SampleLabelId, intended: Instant, reply: &'a ExchangeOutcome) -> Self {
        let (status, body, failure, is_hit) = match &reply.result {
            Ok(response) => {
                let failure = (response.status >= 400).then_some("status");
                (response.status, response.body_bytes, failure, response.is_cache_hit)
            }
            Err(failure) => (0, 0, Some(ExchangeFailure::description(*failure)), None),
        };
        Self {
            label,
            due: intended,
            start: reply.started_at,
            first_byte: reply.first_byte_at,
            end: reply.ended_at,
            connect_time: reply.connect_time,
            status,
            failure,
            is_hit,
            received_bytes: reply.received_bytes,
            body_bytes: body,
            sent_bytes: reply.sent_bytes,
        }
    }
}

/// The measurements of one worker in one second.
#[derive(Debug)]
pub struct WorkerInterval {
    /// The index of the worker.
    pub worker: usize,
    /// Counted from the start of the run.
    pub second: u32,
    /// Name, statistics, and true if they are sums of transactions.
    pub labels: Vec<(Arc<str>, SampleStats, bool)>,
    /// Delays of the generator itself.
    pub lag: TimingHistogram,
    /// Arrivals that found no free user.
    pub late_arrivals: u64,
    /// Arrivals that were never sent.
    pub unsent_arrivals: u64,
    /// Requests that were sent a second time because the server had closed the connection.
    pub repeated_requests: u64,
    /// Number of users that were active.
    pub active_users: u64,
    /// CPU time of the worker's thread since its start.
    pub cpu_time: Duration,
    /// Exchanges that are stored completely.
    pub traces: Vec<ExchangeTrace>,
    /// The slowest marked samples.
    pub slow_samples: Vec<SlowSample>,
}

/// The destination of rows, in chunks of text.
#[derive(Debug, Clone)]
pub struct JtlRowSink {
    pub(crate) sender: SyncSender<Vec<u8>>,
    /// The wall-clock time at `at`.
    pub(crate) epoch_time: SystemTime,
    pub(crate) epoch_instant: Instant,
    pub(crate) extra_columns: JtlExtraColumns,
}

/// Maximum number of phases of one label.
const MAX_LABEL_PHASES: usize = 64;
/// Size of the chunks in which rows are handed over, in bytes.
const ROW_CHUNK_LEN: usize = 64 * 1024;

/// Collects the samples of one worker.
#[derive(Debug)]
pub struct SampleRecorder {
    worker: usize,
    run_start: Instant,
    second: u32,
    label_indexes: HashMap<Arc<str>, usize>,
    transaction_indexes: HashMap<Arc<str>, usize>,
    labels: Vec<(Arc<str>, SampleStats, bool)>,
    lag: TimingHistogram,
    late_arrivals: u64,
    unsent_arrivals: u64,
    repeated_requests: u64,
    sender: Sender<WorkerInterval>,
    rows: Option<JtlRowSink>,
    row_text: Vec<u8>,
    /// Number of exchanges per label that are stored completely.
    max_traces: usize,
    trace_quotas: HashMap<String, TraceQuota>,
    traces: Vec<ExchangeTrace>,
    slowest: SlowestSamples,
}

impl SampleRecorder {
    pub(crate) fn new(
        worker: usize,
        started: Instant,
        sender: Sender<WorkerInterval>,
        rows: Option<JtlRowSink>,
    ) -> Self {
        Self {
            worker,
            run_start: started,
            second: 0,
            label_indexes: HashMap::new(),
            transaction_indexes: HashMap::new(),
            labels: Vec::new(),
            lag: TimingHistogram::new(),
            late_arrivals: 0,
            unsent_arrivals: 0,
            repeated_requests: 0,
            sender,
            rows,
            row_text: Vec::new(),
            max_traces: 0,
            trace_quotas: HashMap::new(),
            traces: Vec::new(),
            slowest: SlowestSamples::default(),
        }
    }

    /// Returns the ID of a label, which is valid for the lifetime of the recorder.
    pub fn label_id(&mut self, name: &str) -> SampleLabelId {
        self.label_id_of_kind(name, false)
    }

    /// Returns the ID of a label; sums of transactions are kept separately, because their samples already count.
    pub(crate) fn label_id_of_kind(&mut self, name: &str, is_transaction: bool) -> SampleLabelId {
        let names =
            if is_transaction { &mut self.transaction_indexes } else { &mut self.label_indexes };
        if let Some(&label_index) = names.get(name) {
            return SampleLabelId(label_index);
        }
        let name = counted_label(name, |name| names.contains_key(name), names.len());
        if let Some(&label_index) = names.get(name) {
            return SampleLabelId(label_index);
        }
        let name: Arc<str> = name.into();
        names.insert(Arc::clone(&name), self.labels.len());
        self.labels.push((name, SampleStats::default(), is_transaction));
        SampleLabelId(self.labels.len() - 1)
    }

    /// Records a sample.
    pub fn record_sample(&mut self, sample: &RecordedSample<'_>) {
        let Some((_, stats, is_sum)) = self.labels.get_mut(sample.label.0) else { return };
        if sample.failure.is_none() && !*is_sum {
            let us = |from: Instant| {
                let span = sample.end.saturating_duration_since(from);
                u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
            };
            stats.cache_warmup.record_response(us(self.run_start), us(sample.start), sample.is_hit);
        }
        stats.response_times.record(sample.end.saturating_duration_since(sample.due));
        stats.service_times.record(sample.end.saturating_duration_since(sample.start));
        stats.latency_times.record(sample.first_byte.saturating_duration_since(sample.start));
        if !sample.connect_time.is_zero() {
            stats.connect_times.record(sample.connect_time);
        }
        stats.received_bytes += sample.received_bytes;
        stats.body_bytes += sample.body_bytes;
        stats.sent_bytes += sample.sent_bytes;
        *stats.status_counts.entry(sample.status).or_default() += 1;
        if let Some(reason) = sample.failure {
            let took = sample.end.saturating_duration_since(sample.due);
            stats.record_failed_us(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
            let reason = match sample.status {
                0 => reason.to_owned(),
                status if reason == "status" => format!("status {status}"),
                _ => reason.to_owned(),
            };
            stats.count_failure_reason(&reason, 1);
        }
    }

    /// Adds the server's own timing for a sample.
    pub(crate) fn record_server_timing(&mut self, label: SampleLabelId, header: &str) {
        let Some((_, stats, _)) = self.labels.get_mut(label.0) else { return };
        for_each_phase(header, &mut |phase, time| {
            // A server that invents phase names must not make the report grow without bound.
            let is_full = stats.server_phases.len() >= MAX_LABEL_PHASES;
            match stats.server_phases.get_mut(phase) {
                Some(timing) => timing.record(time),
                None if is_full => {}
                None => stats.server_phases.entry(phase.to_owned()).or_default().record(time),
            }
        });
    }

    /// Records a marked sample if it is one of the slowest.
    pub(crate) fn record_marked(
        &mut self,
        sample: &RecordedSample<'_>,
        mark: &str,
        server_timing: Option<&str>,
    ) {
        let Some((label, ..)) = self.labels.get(sample.label.0) else { return };
        let us = |from: Instant| {
            let span = sample.end.saturating_duration_since(from);
            u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
        };
        let response_us = us(sample.due);
        if !self.slowest.is_slow_enough(label, response_us) {
            return;
        }
        self.slowest.add(SlowSample {
            label: Arc::clone(label),
            mark: mark.into(),
            started_ms: to_epoch_ms(sample.start),
            response_us,
            service_us: us(sample.start),
            outcome: match (sample.status, sample.failure) {
                (0, reason) => reason.unwrap_or_default().into(),
                (status, None | Some("status")) => status.to_string().into(),
                (status, Some(reason)) => format!("{status}: {reason}").into(),
            },
            server_timing: server_timing.map(Into::into),
            server_log_timing: None,
        });
    }

    /// Sets the number of exchanges per label that are stored completely.
    pub(crate) fn set_max_traces(&mut self, most: usize) {
        self.max_traces = most;
    }

    /// Returns true if another exchange of the label may be stored completely.
    pub(crate) fn wants_trace(&self, label: &str) -> bool {
        self.max_traces > 0
            && match self.trace_quotas.get(label) {
                Some(quota) => quota.is_open(self.max_traces),
                None => self.trace_quotas.len() < MAX_LABELS,
            }
    }

    /// Stores an exchange if the quota of its kind is not exhausted; `at` is its start time.
    pub(crate) fn record_trace(&mut self, at: Instant, mut trace: ExchangeTrace) {
        if !self.wants_trace(&trace.label) {
            return;
        }
        let quota = self.trace_quotas.entry(trace.label.clone()).or_default();
        if !quota.try_take(trace.is_ok, self.max_traces) {
            return;
        }
        trace.started_ms = to_epoch_ms(at);
        self.traces.push(trace);
    }

    /// Records the delay of an action of the generator.
    pub(crate) fn record_lag(&mut self, lag: Duration) {
        self.lag.record(lag);
    }

    /// Records an arrival that had to wait for a free user.
    pub(crate) fn record_late_arrival(&mut self) {
        self.late_arrivals += 1;
    }

    /// Records arrivals that were unsent at the end of the run.
    pub(crate) fn record_unsent_arrivals(&mut self, count: u64) {
        self.unsent_arrivals += count;
    }

    /// Records a request that is sent a second time.
    pub(crate) fn record_repeated_request(&mut self) {
        self.repeated_requests += 1;
    }

    /// Returns true if rows are required.
    pub(crate) fn wants_rows(&self) -> bool {
        self.rows.is_some()
    }

    /// Writes a row; `at` is the start time of its sample.
    pub(crate) fn write_row(&mut self, at: Instant, mut row: JtlRow<'_>) {
        let Some(sink) = &self.rows else { return };
        let since = at.saturating_duration_since(sink.epoch_instant);
        let wall = sink.epoch_time + since;
        let since_epoch = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        row.start_ms = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
        row.write_with_columns(sink.extra_columns, &mut self.row_text);
        if self.row_text.len() >= ROW_CHUNK_LEN {
            // A full queue blocks the worker; the lag records it.
            sink.sender.send(std::mem::take(&mut self.row_text)).ok();
        }
    }

    /// Hands over the measurements of a second if it has ended.
    pub(crate) fn flush_finished_second(
        &mut self,
        now: Instant,
        active: u64,
        cpu: impl FnOnce() -> Duration,
    ) {
        let second = u32::try_from(now.saturating_duration_since(self.run_start).as_secs())
            .unwrap_or(u32::MAX);
        if second > self.second {
            self.flush_interval(active, cpu());
            self.second = second;
        }
    }

    /// Hands over the current measurements.
    pub(crate) fn flush_interval(&mut self, active: u64, cpu: Duration) {
        let mut labels = Vec::new();
        for (name, stats, is_transaction) in &mut self.labels {
            if stats.count() > 0 {
                labels.push((Arc::clone(name), std::mem::take(stats), *is_transaction));
            }
        }
        let lag = self.lag.clone();
        self.lag.clear();
        let late = std::mem::take(&mut self.late_arrivals);
        let unsent = std::mem::take(&mut self.unsent_arrivals);
        let repeated = std::mem::take(&mut self.repeated_requests);
        let interval = WorkerInterval {
            worker: self.worker,
            second: self.second,
            labels,
            lag,
            late_arrivals: late,
            unsent_arrivals: unsent,
            repeated_requests: repeated,
            active_users: active,
            cpu_time: cpu,
            traces: std::mem::take(&mut self.traces),
            slow_samples: self.slowest.take_all(),
        };
        self.sender.send(interval).ok();
        if let Some(sink) = &self.rows
            && !self.row_text.is_empty()
        {
            sink.sender.send(std::mem::take(&mut self.row_text)).ok();
        }
    }
}

/// Converts an instant to milliseconds since the epoch.
fn to_epoch_ms(at: Instant) -> u64 {
    let began = SystemTime::now().checked_sub(at.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH);
    let since = began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
