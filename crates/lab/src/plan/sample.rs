//! Samples that have ended: judged, counted in the transactions they stand in, and told to the recorder.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::actor::Actor;
use super::answer::Answer;
use super::judge::{Judge, Verdict};
use super::model::{After, Kind, NodeId, OnError};
use super::subs::{Node, Who};
use crate::load::Turn;
use crate::record::jtl::Row;
use crate::record::{Sample, Trace, cut, request_text, without_secrets};

/// How the message of a sample without an answer begins.
pub(super) const NO_ANSWER: &str = "Non HTTP response message: ";

/// What a sample adds up to with its redirects and parts.
#[derive(Debug)]
pub(super) struct Sum {
    pub(super) started: Instant,
    pub(super) ended: Instant,
    pub(super) first_byte: Instant,
    pub(super) connect: Duration,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) body: u64,
    pub(super) status: u16,
    pub(super) is_ok: bool,
    pub(super) data_type: &'static str,
    pub(super) answer: Answer,
    /// What the server said of its own time.
    pub(super) server_timing: Option<Box<str>>,
    /// Whether a header says that a cache answered, or that none did.
    pub(super) is_hit: Option<bool>,
    /// The request as it was sent, if the exchange is kept whole.
    pub(super) traced: Option<Arc<[u8]>>,
    pub(super) media_type: String,
    /// What it consists of, if that is more than one exchange and rows tell it.
    pub(super) subs: Option<Box<Node>>,
    /// By which servers know it.
    pub(super) mark: Option<Box<str>>,
}

/// Rows that stand below that of a transaction, and when each of their samples began.
#[derive(Debug)]
pub(super) struct Held {
    transaction: NodeId,
    rows: Vec<(Instant, Row<'static>)>,
}

/// A finished sample, to be told at the end of the turn.
#[derive(Debug)]
pub(super) struct Finished {
    label: Arc<str>,
    is_transaction: bool,
    /// Inside a transaction that stands for its samples.
    is_hidden: bool,
    /// The transaction that stands for it and tells of it below its own row.
    below: Option<NodeId>,
    /// The transaction that it is itself, if that stands for its samples.
    stands_for: Option<NodeId>,
    subs: Option<Box<Node>>,
    /// When it was due, if that is known.
    due: Option<Instant>,
    started: Instant,
    first_byte: Instant,
    ended: Instant,
    idle: Duration,
    connect: Duration,
    status: u16,
    is_ok: bool,
    received: u64,
    body: u64,
    sent: u64,
    code: Cow<'static, str>,
    message: Message,
    failure: String,
    data_type: &'static str,
    url: Cow<'static, str>,
    server_timing: Option<Box<str>>,
    is_hit: Option<bool>,
    trace: Option<Box<Trace>>,
    mark: Option<Box<str>>,
}

/// How a transaction comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// All that is in it was sampled.
    Whole,
    /// The iteration, or the pass of a loop, is given up.
    Abandoned,
    /// The thread ends.
    Stopped,
}

/// What a sample says, put into words where somebody reads it.
#[derive(Debug)]
enum Message {
    Text(String),
    /// Samples of a transaction, and how many of them failed.
    Transaction(u64, u64),
}

impl Message {
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

impl Actor {
    /// Finishes a sample that had no reply.
    pub(super) fn finish_plain(
        &mut self,
        node: NodeId,
        answer: Answer,
        started: Instant,
        is_ok: bool,
    ) {
        let now = Instant::now();
        let sum = Sum {
            started,
            ended: now,
            first_byte: started,
            connect: Duration::ZERO,
            sent: 0,
            received: answer.body.len() as u64,
            body: answer.body.len() as u64,
            status: answer.code.parse().unwrap_or(0),
            is_ok,
            data_type: "text",
            answer,
            server_timing: None,
            is_hit: None,
            traced: None,
            media_type: String::new(),
            subs: None,
            mark: None,
        };
        self.conclude(node, sum);
    }

    /// Judges a sample and notes it.
    pub(super) fn conclude(&mut self, node: NodeId, mut sum: Sum) {
        let model = Arc::clone(&self.model);
        let Some(Kind::Sampler(sampler)) = model.nodes.get(node).map(|node| &node.kind) else {
            return;
        };
        sum.answer.elapsed_ms = millis(sum.ended.saturating_duration_since(sum.started));
        sum.answer.bytes = sum.received;
        let mut is_ok = sum.is_ok;
        if sampler.judges.iter().any(Judge::assumes_success) && sum.status != 0 {
            is_ok = true;
        }
        let mut actions = Vec::new();
        // A script that is a sampler itself may say that it is none: nothing looks at it then.
        let was_ignored = sum.answer.said.is_ignored;
        for after in sampler.after.iter().filter(|_| !was_ignored) {
            match after {
                After::Extract(extractor) => {
                    extractor.run(&sum.answer, &mut self.scope, &mut self.patterns);
                }
                After::Script(script) => is_ok = self.run_after(script, &mut sum.answer, is_ok),
                After::OnError(action) => actions.push(*action),
            }
        }
        let judges = if was_ignored { &[] } else { sampler.judges.as_slice() };
        let failure = self.judge(judges, &mut sum.answer, &mut is_ok);
        let said = sum.answer.said;
        if !sampler.listeners.is_empty() {
            self.run_listeners(&sampler.listeners, &sum.answer, is_ok);
        }
        if model.keeps_previous {
            self.previous_answer = Some(sum.answer.clone());
        }
        if !said.is_ignored {
            self.note_sample(sum, is_ok, failure);
        }
        for (is_said, action) in [
            (said.stops_thread, OnError::StopThread),
            (said.stops_test, OnError::StopTest),
            (said.starts_next_loop, OnError::NextLoop),
        ] {
            if is_said {
                self.take_error(action);
            }
        }
        if !is_ok {
            actions.push(self.squad.on_error);
            for action in actions {
                if action != OnError::Continue {
                    self.take_error(action);
                    break;
                }
            }
        }
    }

    /// Lets assertions judge an answer; returns why the first of them fails it.
    fn judge(&mut self, judges: &[Judge], answer: &mut Answer, is_ok: &mut bool) -> String {
        let mut failure = String::new();
        for judge in judges {
            let verdict = match judge {
                Judge::Script(script) => self.run_judge(script, answer, is_ok),
                _ => judge.judge(answer, &mut self.scope, &mut self.patterns),
            };
            match verdict {
                Verdict::Right | Verdict::RightAtLast => {}
                Verdict::Wrong(fault) => {
                    *is_ok = false;
                    if failure.is_empty() {
                        failure = fault;
                    }
                }
            }
        }
        self.last_ok = *is_ok;
        self.scope.set("JMeterThread.last_sample_ok", if *is_ok { "true" } else { "false" });
        failure
    }

    /// Adds a sample to what is to be told.
    fn note_sample(&mut self, sum: Sum, is_ok: bool, failure: String) {
        let below = self.enter_transactions(&sum, is_ok);
        let trace = sum.trace(&self.scope.sampler, is_ok, &failure).map(Box::new);
        self.finished.push(Finished {
            label: Arc::clone(&self.scope.sampler),
            is_transaction: false,
            is_hidden: below.is_some(),
            below,
            stands_for: None,
            subs: sum.subs,
            due: self.due.take(),
            started: sum.started,
            first_byte: sum.first_byte,
            ended: sum.ended,
            idle: Duration::ZERO,
            connect: sum.connect,
            status: sum.status,
            is_ok,
            received: sum.received,
            body: sum.body,
            sent: sum.sent,
            code: sum.answer.code.into(),
            message: Message::Text(sum.answer.message),
            failure,
            data_type: sum.data_type,
            url: sum.answer.url.into(),
            server_timing: sum.server_timing,
            is_hit: sum.is_hit,
            trace,
            mark: sum.mark,
        });
    }

    /// Adds a sample to the transactions it stands in; returns the innermost that stands for it.
    fn enter_transactions(&mut self, sum: &Sum, is_ok: bool) -> Option<NodeId> {
        let model = Arc::clone(&self.model);
        // What is farther inside has a higher number.
        let mut innermost = None;
        for (node, state) in self.states.iter_mut().enumerate() {
            let Some(open) = &mut state.open else { continue };
            let Some(Kind::Transaction { is_parent, with_timers, .. }) =
                model.nodes.get(node).map(|node| &node.kind)
            else {
                continue;
            };
            if !with_timers {
                open.idle += sum.started.saturating_duration_since(open.previous_end);
            }
            open.previous_end = sum.ended;
            open.samples += 1;
            if *is_parent && open.failed == 0 {
                sum.answer.code.clone_into(&mut open.code);
            }
            open.failed += u64::from(!is_ok);
            open.received += sum.received;
            open.sent += sum.sent;
            open.latency += sum.first_byte.saturating_duration_since(sum.started);
            open.connect += sum.connect;
            open.children += sum.ended.saturating_duration_since(sum.started);
            innermost = is_parent.then_some(node).or(innermost);
        }
        innermost
    }

    /// Ends a transaction and notes its sample.
    pub(super) fn end_transaction(&mut self, node: NodeId, ending: Ending) {
        let model = Arc::clone(&self.model);
        let Some(entry) = model.nodes.get(node) else { return };
        let Kind::Transaction { is_parent, with_timers, judges } = &entry.kind else { return };
        let Some(open) = self.states.get_mut(node).and_then(|state| state.open.take()) else {
            return;
        };
        if open.calls == 0 {
            return;
        }
        let now = Instant::now();
        let mut idle = open.idle;
        if !with_timers {
            idle += now.saturating_duration_since(open.previous_end);
        }
        let below = self.states.iter().enumerate().rposition(|(other, state)| {
            let kind = model.nodes.get(other).map(|node| &node.kind);
            state.open.is_some() && matches!(kind, Some(Kind::Transaction { is_parent: true, .. }))
        });
        if *is_parent && !with_timers {
            idle = now.saturating_duration_since(open.started).saturating_sub(open.children);
        }
        let mut is_ok = open.failed == 0;
        // JMeter counts what is sampled where the transaction stands for it, and what is chosen elsewhere.
        let count = if *is_parent { open.samples } else { open.calls };
        let message = match ending {
            Ending::Stopped => Message::Text(String::new()),
            Ending::Whole | Ending::Abandoned => Message::Transaction(count, open.failed),
        };
        let code: Cow<'static, str> = match (ending, is_parent, is_ok) {
            (Ending::Whole, _, true) | (Ending::Abandoned, true, true) => "200".into(),
            (_, true, _) => open.code.clone().into(),
            (_, false, _) => "".into(),
        };
        let mut failure = String::new();
        if *is_parent {
            let lasted = now.saturating_duration_since(open.started).saturating_sub(idle);
            let mut answer = Answer {
                code: code.clone().into_owned(),
                message: message.text().into_owned(),
                elapsed_ms: millis(lasted),
                bytes: open.received,
                ..Answer::default()
            };
            failure = self.judge(judges, &mut answer, &mut is_ok);
        }
        self.finished.push(Finished {
            label: open.label,
            is_transaction: true,
            is_hidden: below.is_some(),
            // One that stands for nothing is told by itself, or not at all.
            below: below.filter(|_| *is_parent),
            stands_for: is_parent.then_some(node),
            subs: None,
            due: None,
            started: open.started,
            first_byte: open.started + open.latency,
            ended: now,
            idle,
            connect: open.connect,
            status: if is_ok { 200 } else { 0 },
            is_ok,
            received: open.received,
            body: open.received,
            sent: open.sent,
            code,
            message,
            failure,
            data_type: "",
            url: "null".into(),
            server_timing: None,
            is_hit: None,
            trace: None,
            mark: None,
        });
    }

    /// Tells the recorder what was finished.
    pub(super) fn tell(&mut self, turn: &mut Turn<'_>) {
        if self.finished.is_empty() {
            return;
        }
        let mut all = std::mem::take(&mut self.finished);
        for mut finished in all.drain(..) {
            let elapsed = finished
                .ended
                .saturating_duration_since(finished.started)
                .saturating_sub(finished.idle);
            let label = turn.recorder.label_of(&finished.label, finished.is_transaction);
            let message = if finished.is_ok { Cow::Borrowed("") } else { finished.message.text() };
            let reason = match (finished.is_ok, finished.failure.as_str()) {
                (true, _) => None,
                (false, "") if finished.status == 0 => Some(&*message),
                // Where nothing was answered, that is the reason, and not what was expected of the answer.
                (false, _) if message.starts_with(NO_ANSWER) => Some(&*message),
                (false, "") => Some("status"),
                (false, failure) => Some(failure),
            };
            let sample = Sample {
                label,
                intended: finished.due.map_or(finished.started, |due| due.min(finished.started)),
                started: finished.started,
                first_byte: finished.first_byte,
                ended: finished.started + elapsed,
                connect: finished.connect,
                status: finished.status,
                failure: reason,
                is_hit: finished.is_hit,
                received: finished.received,
                body: finished.body,
                sent: finished.sent,
            };
            turn.recorder.sample(&sample);
            if let Some(mark) = &finished.mark {
                turn.recorder.mark(&sample, mark, finished.server_timing.as_deref());
            }
            if let Some(header) = &finished.server_timing {
                turn.recorder.phases(label, header);
            }
            if let Some(trace) = finished.trace.take() {
                turn.recorder.trace(finished.started, *trace);
            }
            if finished.is_hidden {
                self.hold(&finished, elapsed, turn);
                continue;
            }
            if !finished.is_transaction {
                let start = self.stage.epoch_ms(finished.started);
                let mut tally = self.stage.tally.lock().unwrap_or_else(PoisonError::into_inner);
                tally.0.add(start, millis(elapsed), finished.is_ok);
                tally.1.add(start, millis(elapsed), finished.is_ok);
            }
            if turn.recorder.wants_rows() {
                self.each_row(&finished, elapsed, &mut |at, row| turn.recorder.row(at, row));
                let Some(transaction) = finished.stands_for else { continue };
                for (at, row) in self.take_held(transaction) {
                    turn.recorder.row(at, row);
                }
            }
        }
        // Its room serves the next sample.
        self.finished = all;
    }

    /// Keeps the rows of a sample for which a transaction stands, if they are told below that of the transaction.
    fn hold(&mut self, finished: &Finished, elapsed: Duration, turn: &Turn<'_>) {
        let Some(transaction) = finished.below else { return };
        if !self.stage.tells_subs || !turn.recorder.wants_rows() {
            return;
        }
        let mut rows = Vec::new();
        self.each_row(finished, elapsed, &mut |at, row| rows.push((at, row.into_owned())));
        rows.extend(finished.stands_for.into_iter().flat_map(|inner| self.take_held(inner)));
        self.held.push(Held { transaction, rows });
    }

    /// Returns the rows that stand below that of a transaction.
    fn take_held(&mut self, transaction: NodeId) -> Vec<(Instant, Row<'static>)> {
        let is_its = |held: &mut Held| held.transaction == transaction;
        self.held.extract_if(.., is_its).flat_map(|held| held.rows).collect()
    }

    /// Calls `each` with the rows of a sample, its own first, and when each began.
    fn each_row(
        &self,
        finished: &Finished,
        elapsed: Duration,
        each: &mut dyn FnMut(Instant, Row<'_>),
    ) {
        let group_threads = self.squad.active.load(Ordering::Relaxed);
        let all_threads = self.stage.threads().active.max(group_threads);
        let thread = self.scope.thread_name.as_ref();
        let row = Row {
            elapsed: millis(elapsed),
            label: (&*finished.label).into(),
            code: finished.code.as_ref().into(),
            message: finished.message.text(),
            thread: thread.into(),
            data_type: finished.data_type.into(),
            is_ok: finished.is_ok,
            failure: finished.failure.as_str().into(),
            bytes: finished.received,
            sent: finished.sent,
            group_threads,
            all_threads,
            url: finished.url.as_ref().into(),
            latency: millis(finished.first_byte.saturating_duration_since(finished.started)),
            idle: millis(finished.idle),
            connect: millis(finished.connect),
            elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            mark: finished.mark.as_deref().unwrap_or_default().into(),
            ..Row::default()
        };
        each(finished.started, row);
        if let Some(subs) = &finished.subs {
            let sample = &finished.label;
            subs.rows(Who { sample, thread, group_threads, all_threads }, each);
        }
    }
}

impl Sum {
    /// Returns the exchange, if it is kept whole.
    fn trace(&self, label: &str, is_ok: bool, failure: &str) -> Option<Trace> {
        let bytes = self.traced.as_ref()?;
        let answer = &self.answer;
        let elapsed = self.ended.saturating_duration_since(self.started);
        Some(Trace {
            label: label.to_owned(),
            url: answer.url.clone(),
            started_ms: 0,
            elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            code: answer.code.clone(),
            message: answer.message.clone(),
            is_ok,
            failure: failure.to_owned(),
            request: request_text(bytes),
            head: without_secrets(&answer.headers),
            body: cut(answer.body.clone()),
            media_type: self.media_type.clone(),
            body_bytes: self.body,
        })
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
