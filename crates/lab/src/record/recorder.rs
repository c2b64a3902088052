//! Collects the samples of one worker and hands them over once a second.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender};
use std::time::{Duration, Instant, SystemTime};

use super::phase::each_phase;
use super::slowest::{Slow, Slowest};
use super::trace::{Quota, Trace};
use crate::net::{Failure, Reply};
use crate::record::jtl::{Added, Row};
use crate::record::{MOST_LABELS, Stats, Timing, told};

/// A label's place in its worker's recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LabelId(usize);

/// One measured request.
#[derive(Debug)]
pub(crate) struct Sample<'a> {
    pub(crate) label: LabelId,
    /// When the request was due; later than that is the server's or the generator's delay.
    pub(crate) intended: Instant,
    pub(crate) started: Instant,
    pub(crate) first_byte: Instant,
    pub(crate) ended: Instant,
    /// Zero if the connection stood.
    pub(crate) connect: Duration,
    /// 0 if there was no response.
    pub(crate) status: u16,
    /// Why the sample failed, if it did.
    pub(crate) failure: Option<&'a str>,
    /// Whether a header says that a cache answered, or that none did.
    pub(crate) is_hit: Option<bool>,
    pub(crate) received: u64,
    pub(crate) body: u64,
    pub(crate) sent: u64,
}

impl<'a> Sample<'a> {
    /// Returns the sample of a single exchange; statuses from 400 count as failed.
    pub(crate) fn of(label: LabelId, intended: Instant, reply: &'a Reply) -> Self {
        let (status, body, failure, is_hit) = match &reply.result {
            Ok(response) => {
                let failure = (response.status >= 400).then_some("status");
                (response.status, response.body_bytes, failure, response.is_hit)
            }
            Err(failure) => (0, 0, Some(Failure::words(*failure)), None),
        };
        Self {
            label,
            intended,
            started: reply.started,
            first_byte: reply.first_byte,
            ended: reply.ended,
            connect: reply.connect,
            status,
            failure,
            is_hit,
            received: reply.received,
            body,
            sent: reply.sent,
        }
    }
}

/// What one worker measured in one second.
#[derive(Debug)]
pub(crate) struct Interval {
    pub(crate) worker: usize,
    /// Counted from the start of the run.
    pub(crate) second: u32,
    /// Name, numbers, and whether they are sums of transactions.
    pub(crate) labels: Vec<(Arc<str>, Stats, bool)>,
    pub(crate) lag: Timing,
    /// Arrivals that found no free user.
    pub(crate) late: u64,
    /// Arrivals that were never sent.
    pub(crate) unsent: u64,
    /// Requests that were sent a second time because the server had closed their connection.
    pub(crate) repeated: u64,
    pub(crate) active: u64,
    /// Processor time of the worker's thread since its start.
    pub(crate) cpu: Duration,
    /// Exchanges that are kept whole.
    pub(crate) traces: Vec<Trace>,
    /// The slowest marked samples.
    pub(crate) slowest: Vec<Slow>,
}

/// Where rows go, in pieces of text.
#[derive(Debug, Clone)]
pub(crate) struct RowSink {
    pub(crate) sender: SyncSender<Vec<u8>>,
    /// The time of day at `at`.
    pub(crate) epoch: SystemTime,
    pub(crate) at: Instant,
    pub(crate) added: Added,
}

/// Most phases of one label.
const MOST_PHASES: usize = 64;
/// Rows are handed over in pieces of this size.
const PIECE: usize = 64 * 1024;

/// Collects on one worker.
#[derive(Debug)]
pub(crate) struct Recorder {
    worker: usize,
    started: Instant,
    second: u32,
    names: HashMap<Arc<str>, usize>,
    transactions: HashMap<Arc<str>, usize>,
    labels: Vec<(Arc<str>, Stats, bool)>,
    lag: Timing,
    late: u64,
    unsent: u64,
    repeated: u64,
    sender: Sender<Interval>,
    rows: Option<RowSink>,
    text: Vec<u8>,
    /// How many exchanges of a label are kept whole.
    most_traces: usize,
    quotas: HashMap<String, Quota>,
    traces: Vec<Trace>,
    slowest: Slowest,
}

impl Recorder {
    pub(crate) fn new(
        worker: usize,
        started: Instant,
        sender: Sender<Interval>,
        rows: Option<RowSink>,
    ) -> Self {
        Self {
            worker,
            started,
            second: 0,
            names: HashMap::new(),
            transactions: HashMap::new(),
            labels: Vec::new(),
            lag: Timing::new(),
            late: 0,
            unsent: 0,
            repeated: 0,
            sender,
            rows,
            text: Vec::new(),
            most_traces: 0,
            quotas: HashMap::new(),
            traces: Vec::new(),
            slowest: Slowest::default(),
        }
    }

    /// Returns the place of a label, which lasts as long as the recorder.
    pub(crate) fn label(&mut self, name: &str) -> LabelId {
        self.label_of(name, false)
    }

    /// Returns the place of a label; sums of transactions are kept apart, because their samples count already.
    pub(crate) fn label_of(&mut self, name: &str, is_transaction: bool) -> LabelId {
        let names = if is_transaction { &mut self.transactions } else { &mut self.names };
        if let Some(&place) = names.get(name) {
            return LabelId(place);
        }
        let name = told(name, |name| names.contains_key(name), names.len());
        if let Some(&place) = names.get(name) {
            return LabelId(place);
        }
        let name: Arc<str> = name.into();
        names.insert(Arc::clone(&name), self.labels.len());
        self.labels.push((name, Stats::default(), is_transaction));
        LabelId(self.labels.len() - 1)
    }

    pub(crate) fn sample(&mut self, sample: &Sample<'_>) {
        let Some((_, stats, is_sum)) = self.labels.get_mut(sample.label.0) else { return };
        if sample.failure.is_none() && !*is_sum {
            let us = |from: Instant| {
                let span = sample.ended.saturating_duration_since(from);
                u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
            };
            stats.opening.note(us(self.started), us(sample.started), sample.is_hit);
        }
        stats.response.record(sample.ended.saturating_duration_since(sample.intended));
        stats.service.record(sample.ended.saturating_duration_since(sample.started));
        stats.latency.record(sample.first_byte.saturating_duration_since(sample.started));
        if !sample.connect.is_zero() {
            stats.connect.record(sample.connect);
        }
        stats.received += sample.received;
        stats.body += sample.body;
        stats.sent += sample.sent;
        *stats.statuses.entry(sample.status).or_default() += 1;
        if let Some(reason) = sample.failure {
            let took = sample.ended.saturating_duration_since(sample.intended);
            stats.fail_us(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
            let reason = match sample.status {
                0 => reason.to_owned(),
                status if reason == "status" => format!("status {status}"),
                _ => reason.to_owned(),
            };
            stats.blame(&reason, 1);
        }
    }

    /// Adds what the server said of its own time for a sample.
    pub(crate) fn phases(&mut self, label: LabelId, header: &str) {
        let Some((_, stats, _)) = self.labels.get_mut(label.0) else { return };
        each_phase(header, &mut |phase, time| {
            // A server that makes up names does not make the report longer without end.
            let is_full = stats.phases.len() >= MOST_PHASES;
            match stats.phases.get_mut(phase) {
                Some(timing) => timing.record(time),
                None if is_full => {}
                None => stats.phases.entry(phase.to_owned()).or_default().record(time),
            }
        });
    }

    /// Keeps a sample that servers know by a mark, if it is one of the slowest.
    pub(crate) fn mark(&mut self, sample: &Sample<'_>, mark: &str, server_timing: Option<&str>) {
        let Some((label, ..)) = self.labels.get(sample.label.0) else { return };
        let us = |from: Instant| {
            let span = sample.ended.saturating_duration_since(from);
            u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
        };
        let response_us = us(sample.intended);
        if !self.slowest.wants(label, response_us) {
            return;
        }
        self.slowest.add(Slow {
            label: Arc::clone(label),
            mark: mark.into(),
            started_ms: epoch_ms(sample.started),
            response_us,
            service_us: us(sample.started),
            answer: match (sample.status, sample.failure) {
                (0, reason) => reason.unwrap_or_default().into(),
                (status, None | Some("status")) => status.to_string().into(),
                (status, Some(reason)) => format!("{status}: {reason}").into(),
            },
            server_timing: server_timing.map(Into::into),
            served: None,
        });
    }

    /// Keeps so many exchanges of each label whole.
    pub(crate) fn keep_traces(&mut self, most: usize) {
        self.most_traces = most;
    }

    /// Reports whether an exchange of a label may be kept whole.
    pub(crate) fn wants_trace(&self, label: &str) -> bool {
        self.most_traces > 0
            && match self.quotas.get(label) {
                Some(quota) => quota.is_open(self.most_traces),
                None => self.quotas.len() < MOST_LABELS,
            }
    }

    /// Keeps an exchange, if there is room for its kind; `at` is when it started.
    pub(crate) fn trace(&mut self, at: Instant, mut trace: Trace) {
        if !self.wants_trace(&trace.label) {
            return;
        }
        let quota = self.quotas.entry(trace.label.clone()).or_default();
        if !quota.takes(trace.is_ok, self.most_traces) {
            return;
        }
        trace.started_ms = epoch_ms(at);
        self.traces.push(trace);
    }

    /// Notes how late something was that the generator should have done at `due`.
    pub(crate) fn lag(&mut self, lag: Duration) {
        self.lag.record(lag);
    }

    /// Notes an arrival that had to wait for a free user.
    pub(crate) fn late(&mut self) {
        self.late += 1;
    }

    /// Notes arrivals that the run's end left unsent.
    pub(crate) fn unsent(&mut self, count: u64) {
        self.unsent += count;
    }

    /// Notes a request that is sent a second time.
    pub(crate) fn repeat(&mut self) {
        self.repeated += 1;
    }

    /// Reports whether rows are wanted.
    pub(crate) fn wants_rows(&self) -> bool {
        self.rows.is_some()
    }

    /// Writes a row; `at` is when its sample started.
    pub(crate) fn row(&mut self, at: Instant, mut row: Row<'_>) {
        let Some(sink) = &self.rows else { return };
        let since = at.saturating_duration_since(sink.at);
        let wall = sink.epoch + since;
        let since_epoch = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        row.time_stamp = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
        row.write_as(sink.added, &mut self.text);
        if self.text.len() >= PIECE {
            // A full queue makes the worker wait; the lag tells.
            sink.sender.send(std::mem::take(&mut self.text)).ok();
        }
    }

    /// Hands over the second that is over, if one is.
    pub(crate) fn tick(&mut self, now: Instant, active: u64, cpu: impl FnOnce() -> Duration) {
        let second = u32::try_from(now.saturating_duration_since(self.started).as_secs())
            .unwrap_or(u32::MAX);
        if second > self.second {
            self.flush(active, cpu());
            self.second = second;
        }
    }

    /// Hands over what there is.
    pub(crate) fn flush(&mut self, active: u64, cpu: Duration) {
        let mut labels = Vec::new();
        for (name, stats, is_transaction) in &mut self.labels {
            if stats.count() > 0 {
                labels.push((Arc::clone(name), std::mem::take(stats), *is_transaction));
            }
        }
        let lag = self.lag.clone();
        self.lag.clear();
        let late = std::mem::take(&mut self.late);
        let unsent = std::mem::take(&mut self.unsent);
        let repeated = std::mem::take(&mut self.repeated);
        let interval = Interval {
            worker: self.worker,
            second: self.second,
            labels,
            lag,
            late,
            unsent,
            repeated,
            active,
            cpu,
            traces: std::mem::take(&mut self.traces),
            slowest: self.slowest.take(),
        };
        self.sender.send(interval).ok();
        if let Some(sink) = &self.rows
            && !self.text.is_empty()
        {
            sink.sender.send(std::mem::take(&mut self.text)).ok();
        }
    }
}

/// Returns a moment as milliseconds of the epoch.
fn epoch_ms(at: Instant) -> u64 {
    let began = SystemTime::now().checked_sub(at.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH);
    let since = began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
