//! One thread of a plan: walks the tree, waits, sends, evaluates, and reports.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tympan_lab_plan::model::{
    FlowControlAction, PlanNodeKind, SampleErrorAction, SamplerAction, SamplerTimer,
};
use tympan_lab_plan::{PlanNodeId, SampleResponse};

use super::controller_walk::{ControllerStates, ControllerWalk};
use super::http_client::PlanHttpClient;
use super::http_sample::{HttpSampleExchange, HttpSampleSender, HttpSampleStep};
use super::iteration_event::{ThreadCounters, apply_user_parameters};
use super::sample::PlanSampleRecorder;
use super::sample_evaluation::SampleEvaluation;
use super::sample_timer::SampleTimers;
use super::sample_totals::SampleTotals;
use super::thread_context::ThreadContext;
use crate::load::{UserStep, UserTurn, VirtualUser};

/// Number of consecutive iterations without any sampler after which an otherwise endless thread ends.
const MAX_EMPTY_ITERATIONS: u64 = 10_000;
/// Maximum number of steps of a thread in one turn, enough to reach a request if one is sent, and the time of a turn
/// after which others go first.
const MAX_STEPS_PER_TURN: u32 = 8;
const MAX_TURN_DURATION: Duration = Duration::from_millis(1);
/// Interval between checks for a free critical section.
const CRITICAL_SECTION_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The phase of a thread at its next turn.
#[derive(Debug)]
enum ThreadPhase {
    Begin,
    /// The iteration has ended, or has not begun.
    BetweenIterations,
    /// Selects the next sampler.
    PickSampler,
    /// The wait is over; the sample starts.
    Sample(PlanNodeId),
    /// The sleep of a script before a synchronizing timer is over.
    Timers(PendingTimers),
    /// Waits for other threads.
    Synchronize {
        timers: PendingTimers,
        min_threads: i64,
        meter_index: usize,
        /// The time at which they continue although too few have arrived.
        deadline: Option<Instant>,
    },
    /// The pause of a flow control action is over.
    Paused,
    /// Java's test sampler sleeps until its end.
    JavaSleep {
        node: PlanNodeId,
        started_at: Instant,
    },
    Exchange(Box<HttpSampleExchange>),
}

/// The timers of a sampler that are still to be evaluated.
#[derive(Debug, Clone, Copy)]
struct PendingTimers {
    node: PlanNodeId,
    /// The index of the next timer.
    next_index: usize,
    /// The sum of the delays of the timers before it. The thread waits for all delays together after the last timer, as in
    /// JMeter, where a synchronizing timer blocks at its place and the others return a number.
    delay: Duration,
}

/// One thread of a plan.
#[derive(Debug)]
pub(super) struct PlanThread {
    context: ThreadContext,
    controllers: ControllerStates,
    counters: ThreadCounters,
    timers: SampleTimers,
    client: PlanHttpClient,
    evaluation: SampleEvaluation,
    recorder: PlanSampleRecorder,
    phase: ThreadPhase,
    /// The time at which the thread ends unconditionally.
    ends_at: Option<Instant>,
    /// Lifetime of the thread after its start; `ends_at` is set when it begins.
    lifetime: Option<Duration>,
    is_in_visit: bool,
    iteration_count: u64,
    iteration_sample_count: u64,
    /// Number of consecutive iterations without a sampler.
    empty_iteration_count: u64,
}

impl PlanThread {
    pub(super) fn new(context: ThreadContext) -> Self {
        Self {
            context,
            controllers: ControllerStates::default(),
            counters: ThreadCounters::default(),
            timers: SampleTimers::default(),
            client: PlanHttpClient::default(),
            evaluation: SampleEvaluation::default(),
            recorder: PlanSampleRecorder::default(),
            phase: ThreadPhase::Begin,
            ends_at: None,
            lifetime: None,
            is_in_visit: false,
            iteration_count: 0,
            iteration_sample_count: 0,
            empty_iteration_count: 0,
        }
    }

    /// Ends the thread this long after its start.
    pub(super) fn with_lifetime(self, lifetime: Option<Duration>) -> Self {
        Self { lifetime, ..self }
    }

    fn walk(&mut self) -> ControllerWalk<'_> {
        ControllerWalk {
            controllers: &mut self.controllers,
            counters: &mut self.counters,
            evaluation: &mut self.evaluation,
            recorder: &mut self.recorder,
            thread: &mut self.context,
        }
    }

    fn http_samples(&mut self) -> HttpSampleSender<'_> {
        HttpSampleSender { client: &mut self.client, thread: &mut self.context }
    }

    fn end_thread(&mut self) -> UserStep {
        self.walk().end_parent_transactions();
        self.context.critical_sections.leave_all();
        if !matches!(self.phase, ThreadPhase::Begin) {
            self.context.group_state.active_threads.fetch_sub(1, Ordering::Relaxed);
            self.context.run_state.ended_threads.fetch_add(1, Ordering::Relaxed);
        }
        UserStep::Leave
    }

    /// Ends the visit and waits for the next visitor, which this thread then represents.
    fn end_visit(&mut self) -> UserStep {
        self.context.critical_sections.leave_all();
        self.context.group_state.active_threads.fetch_sub(1, Ordering::Relaxed);
        self.context.run_state.ended_threads.fetch_add(1, Ordering::Relaxed);
        self.context.run_state.completed_visits.fetch_add(1, Ordering::Relaxed);
        if let Some(first) = &self.context.group_state.initial_scope {
            self.context.scope.copy_variables(first);
        }
        self.is_in_visit = false;
        self.phase = ThreadPhase::Begin;
        UserStep::AwaitArrival
    }

    fn is_finished(&self, now: Instant, is_stopping: bool) -> bool {
        self.context.is_ending || is_stopping || self.ends_at.is_some_and(|at| now >= at)
    }

    /// Continues until there is a request to send or a wait.
    fn run_until_step(&mut self, turn: &mut UserTurn<'_>) -> UserStep {
        let began = turn.now;
        let mut steps = 0;
        loop {
            // A sample in progress is finished, regardless of the time.
            let is_under_way =
                matches!(self.phase, ThreadPhase::Exchange(_) | ThreadPhase::JavaSleep { .. });
            if !is_under_way && self.is_finished(turn.now, turn.is_stopping) {
                return self.end_thread();
            }
            // Samples without requests, and iterations without samples, would block all other users.
            if steps >= MAX_STEPS_PER_TURN && !is_under_way && turn.now - began >= MAX_TURN_DURATION
            {
                return UserStep::Yield;
            }
            steps += 1;
            match std::mem::replace(&mut self.phase, ThreadPhase::PickSampler) {
                ThreadPhase::Begin => {
                    let root = self.context.group_state.root_node;
                    self.walk().evaluate_transaction_names(root);
                    self.context.group_state.active_threads.fetch_add(1, Ordering::Relaxed);
                    self.context.run_state.started_threads.fetch_add(1, Ordering::Relaxed);
                    self.ends_at = self.lifetime.map(|lives| turn.now + lives);
                    let is_open_model = self.context.group_state.is_open_model();
                    self.recorder.set_due(is_open_model.then_some(turn.due_at));
                    self.phase = ThreadPhase::BetweenIterations;
                }
                ThreadPhase::BetweenIterations if self.is_in_visit => return self.end_visit(),
                ThreadPhase::BetweenIterations => {
                    self.is_in_visit = self.context.group_state.is_open_model();
                    if self
                        .context
                        .group_state
                        .loop_count
                        .is_some_and(|most| self.iteration_count >= most)
                    {
                        return self.end_thread();
                    }
                    self.begin_iteration(turn);
                }
                ThreadPhase::PickSampler => {
                    let root = self.context.group_state.root_node;
                    let sampler_node = self.walk().next_sampler(root);
                    self.recorder.report_finished_samples(turn, &self.context);
                    match sampler_node {
                        None => self.phase = ThreadPhase::BetweenIterations,
                        Some(node) => {
                            if let Some(step) = self.prepare_sampler(node, turn.now) {
                                return step;
                            }
                        }
                    }
                }
                ThreadPhase::Sample(node) => {
                    if let Some(step) = self.start_sample(node, turn) {
                        return step;
                    }
                }
                ThreadPhase::Timers(timers) => {
                    if let Some(step) = self.schedule_after_timers(timers, turn.now) {
                        return step;
                    }
                }
                ThreadPhase::Synchronize {
                    timers,
                    min_threads: at_least,
                    meter_index: meter,
                    deadline: until,
                } => {
                    let model = Arc::clone(&self.context.model);
                    let is_late = until.is_some_and(|until| turn.now >= until);
                    let here = model.meters.get(meter).map_or(i64::MAX, |meter| match is_late {
                        // The first thread whose timeout expires releases all threads that wait with it.
                        true => meter.count.fetch_max(at_least, Ordering::Relaxed).max(at_least),
                        false => meter.count.load(Ordering::Relaxed),
                    });
                    if here >= at_least {
                        if let Some(step) = self.schedule_after_timers(timers, turn.now) {
                            return step;
                        }
                    } else {
                        self.phase = ThreadPhase::Synchronize {
                            timers,
                            min_threads: at_least,
                            meter_index: meter,
                            deadline: until,
                        };
                        return UserStep::WaitUntil(turn.now + Duration::from_millis(2));
                    }
                }
                ThreadPhase::Paused => {}
                ThreadPhase::JavaSleep { node, started_at: started } => {
                    self.finish_java_sample(node, started, turn)
                }
                ThreadPhase::Exchange(exchange) => {
                    let next = self.http_samples().resume_sample(exchange, turn);
                    if let Some(step) = self.continue_http_sample(next) {
                        return step;
                    }
                }
            }
            turn.now = Instant::now();
        }
    }

    fn begin_iteration(&mut self, turn: &mut UserTurn<'_>) {
        self.iteration_count += 1;
        self.context.scope.iteration = self.iteration_count;
        let is_empty = self.iteration_count > 1 && self.iteration_sample_count == 0;
        self.empty_iteration_count = if is_empty { self.empty_iteration_count + 1 } else { 0 };
        // If no condition ever holds, a thread would loop forever.
        if self.empty_iteration_count >= MAX_EMPTY_ITERATIONS && self.is_endless() {
            self.context.is_ending = true;
            return;
        }
        self.iteration_sample_count = 0;
        let is_known_user =
            self.context.group_state.is_same_user && !self.context.group_state.is_open_model();
        let is_new_user = self.iteration_count > 1 && !is_known_user;
        if is_new_user && !self.context.group_state.is_same_user {
            turn.drops_connections = true;
        }
        self.client.begin_iteration(&self.context.model, is_new_user);
    }

    /// Returns true if neither a number of loops, nor a time, nor a schedule ends the thread.
    fn is_endless(&self) -> bool {
        self.context.group_state.loop_count.is_none()
            && self.ends_at.is_none()
            && !self.context.group_state.is_open_model()
    }

    /// Prepares a sampler and waits for its timers.
    fn prepare_sampler(&mut self, node: PlanNodeId, now: Instant) -> Option<UserStep> {
        let model = Arc::clone(&self.context.model);
        let entry = model.nodes.get(node)?;
        let PlanNodeKind::Sampler(sampler) = &entry.kind else { return None };
        // Enter and leave nodes of a critical section are no samples; an empty section must not loop forever.
        if matches!(
            sampler.action,
            SamplerAction::FlowControl(
                FlowControlAction::EnterSection(_) | FlowControlAction::LeaveSection
            )
        ) {
            self.phase = ThreadPhase::Sample(node);
            return None;
        }
        self.iteration_sample_count += 1;
        self.context.scope.enter_sampler(&entry.name);
        for &index in &sampler.user_parameters {
            apply_user_parameters(&mut self.context, index);
        }
        for script in &sampler.pre_processors {
            self.evaluation.run_pre_processor(script, &mut self.context.scope);
        }
        self.schedule_after_timers(
            PendingTimers { node, next_index: 0, delay: Duration::ZERO },
            now,
        )
    }

    /// Returns the wait before a sampler: the sum of the delays of its timers. A synchronizing timer changes the phase of the
    /// thread instead, which gathers at once, and resumes at the timer after it with the delays of those before it.
    fn schedule_after_timers(&mut self, timers: PendingTimers, now: Instant) -> Option<UserStep> {
        let PendingTimers { node, next_index: from, mut delay } = timers;
        let model = Arc::clone(&self.context.model);
        let Some(PlanNodeKind::Sampler(sampler)) = model.nodes.get(node).map(|node| &node.kind)
        else {
            return None;
        };
        for (number, timer) in sampler.timers.iter().enumerate().skip(from) {
            if let SamplerTimer::Synchronize { size, timeout, meter_index: meter } = timer {
                // A script before the timer has slept before the thread gathers with others.
                let sleep = self.take_script_sleep();
                if !sleep.is_zero() {
                    self.recorder.delay_due(sleep);
                    self.phase =
                        ThreadPhase::Timers(PendingTimers { node, next_index: number, delay });
                    return Some(UserStep::WaitUntil(now + sleep));
                }
                let timeout = self.context.evaluate_number(timeout);
                let until = (timeout > 0.0)
                    .then(|| Duration::try_from_secs_f64(timeout / 1000.0).ok())
                    .flatten()
                    .map(|timeout| now + timeout);
                let size: i64 = size.evaluate(&mut self.context.scope).trim().parse().unwrap_or(0);
                // Users gather in their own process, each process with its portion of the number.
                let size = match u64::try_from(size) {
                    Ok(size) if size > 0 => self.context.scope.run_context.portion.share_of(size),
                    _ => self.context.group_state.thread_count,
                };
                let size = i64::try_from(size).unwrap_or(i64::MAX).max(1);
                let Some(shared) = model.meters.get(*meter) else { continue };
                let ticket = shared.count.fetch_add(1, Ordering::Relaxed);
                let at_least = (ticket / size + 1) * size;
                self.phase = ThreadPhase::Synchronize {
                    timers: PendingTimers { node, next_index: number + 1, delay },
                    min_threads: at_least,
                    meter_index: *meter,
                    deadline: until,
                };
                return Some(UserStep::WaitUntil(now));
            }
            delay += self.timers.timer_delay(timer, now, &mut self.context, &mut self.evaluation);
        }
        delay += self.take_script_sleep();
        self.recorder.delay_due(delay);
        self.phase = ThreadPhase::Sample(node);
        if delay.is_zero() {
            return None;
        }
        if self.ends_at.is_some_and(|end| now + delay > end) {
            self.context.is_ending = true;
            return None;
        }
        Some(UserStep::WaitUntil(now + delay))
    }

    /// Takes the time that scripts have slept since the last call.
    fn take_script_sleep(&mut self) -> Duration {
        Duration::from_millis(std::mem::take(&mut self.context.scope.sleep_ms))
    }

    /// Starts a sampler.
    fn start_sample(&mut self, node: PlanNodeId, turn: &mut UserTurn<'_>) -> Option<UserStep> {
        let model = Arc::clone(&self.context.model);
        let Some(PlanNodeKind::Sampler(sampler)) = model.nodes.get(node).map(|node| &node.kind)
        else {
            return None;
        };
        match &sampler.action {
            SamplerAction::Http(spec) => {
                let next = self.http_samples().begin_sample(node, spec, turn);
                self.continue_http_sample(next)
            }
            SamplerAction::FlowControl(FlowControlAction::EnterSection(name)) => {
                let name = name.evaluate(&mut self.context.scope).trim().to_owned();
                if self
                    .context
                    .critical_sections
                    .enter(&self.context.scope.run_context.critical_sections, &name)
                {
                    return None;
                }
                self.phase = ThreadPhase::Sample(node);
                Some(UserStep::WaitUntil(turn.now + CRITICAL_SECTION_POLL_INTERVAL))
            }
            SamplerAction::FlowControl(flow) => self.run_flow_action(node, flow, turn.now),
            SamplerAction::Debug => {
                self.context.scope.label_sample();
                let variables: Vec<String> = self
                    .context
                    .scope
                    .sorted_variables()
                    .iter()
                    .map(|(name, value)| format!("{name}={value}\n"))
                    .collect();
                let response = SampleResponse {
                    code: "200".to_owned(),
                    message: "OK".to_owned(),
                    body: format!("\nJMeterVariables:\n{}", variables.concat()),
                    ..SampleResponse::default()
                };
                self.finish_sample(node, SampleTotals::without_reply(response, turn.now, true));
                turn.now = Instant::now();
                None
            }
            SamplerAction::Script(script) => {
                let scope = &mut self.context.scope;
                let totals = self.evaluation.run_script_sampler(script, turn.now, scope);
                self.finish_sample(node, totals);
                turn.now = Instant::now();
                None
            }
            SamplerAction::Java(test) => {
                let sleep = self.context.evaluate_number(&test.sleep);
                let mask = self.context.evaluate_number(&test.sleep_mask) as u64;
                let now = tympan_lab_plan::VariableScope::now_ms();
                let extra = if mask > 0 { (now & mask) as f64 } else { 0.0 };
                let pause =
                    Duration::try_from_secs_f64((sleep + extra) / 1000.0).unwrap_or_default();
                self.phase = ThreadPhase::JavaSleep { node, started_at: turn.now };
                Some(UserStep::WaitUntil(turn.now + pause))
            }
        }
    }

    fn finish_java_sample(&mut self, node: PlanNodeId, started: Instant, turn: &mut UserTurn<'_>) {
        let model = Arc::clone(&self.context.model);
        let Some(PlanNodeKind::Sampler(sampler)) = model.nodes.get(node).map(|node| &node.kind)
        else {
            return;
        };
        let SamplerAction::Java(test) = &sampler.action else { return };
        self.context.scope.label_sample();
        let is_ok = test.status.evaluate(&mut self.context.scope).trim().eq_ignore_ascii_case("OK");
        if !test.label.is_empty() {
            self.context.scope.sample_label =
                test.label.evaluate(&mut self.context.scope).as_ref().into();
        }
        let response = SampleResponse {
            code: test.code.evaluate(&mut self.context.scope).into_owned(),
            message: test.message.evaluate(&mut self.context.scope).into_owned(),
            body: test.result.evaluate(&mut self.context.scope).into_owned(),
            ..SampleResponse::default()
        };
        self.finish_sample(node, SampleTotals::without_reply(response, started, is_ok));
        turn.now = Instant::now();
    }

    fn run_flow_action(
        &mut self,
        node: PlanNodeId,
        flow: &FlowControlAction,
        now: Instant,
    ) -> Option<UserStep> {
        match flow {
            FlowControlAction::NoOp | FlowControlAction::EnterSection(_) => None,
            FlowControlAction::LeaveSection => {
                self.context.critical_sections.leave();
                None
            }
            FlowControlAction::Pause(pause) => {
                let pause =
                    Duration::try_from_secs_f64(self.context.evaluate_number(pause) / 1000.0)
                        .unwrap_or_default();
                if self.ends_at.is_some_and(|end| now + pause > end) {
                    self.context.is_ending = true;
                    return None;
                }
                self.recorder.delay_due(pause);
                self.phase = ThreadPhase::Paused;
                Some(UserStep::WaitUntil(now + pause))
            }
            FlowControlAction::StopThread => {
                self.context.is_ending = true;
                None
            }
            FlowControlAction::StopTest => {
                self.context.stop_test();
                None
            }
            FlowControlAction::NextLoop => {
                self.abandon_iteration();
                None
            }
            FlowControlAction::ContinueLoop | FlowControlAction::BreakLoop => {
                let is_left = matches!(flow, FlowControlAction::BreakLoop);
                if !self.walk().leave_loop_pass(node, is_left) {
                    self.abandon_iteration();
                    self.context.is_ending |= is_left;
                }
                None
            }
        }
    }

    /// Continues after a step of an HTTP sample.
    fn continue_http_sample(&mut self, step: HttpSampleStep) -> Option<UserStep> {
        match step {
            HttpSampleStep::Skipped => None,
            HttpSampleStep::Requested(exchange, step) => {
                self.phase = ThreadPhase::Exchange(exchange);
                Some(step)
            }
            HttpSampleStep::Finished(node, totals) => {
                self.finish_sample(node, totals);
                None
            }
        }
    }

    /// Evaluates a sample, records it, and applies its effects on the thread.
    fn finish_sample(&mut self, node: PlanNodeId, mut sum: SampleTotals) {
        let model = Arc::clone(&self.context.model);
        let Some(PlanNodeKind::Sampler(sampler)) = model.nodes.get(node).map(|node| &node.kind)
        else {
            return;
        };
        let scope = &mut self.context.scope;
        let retains_response = model.retains_previous_sample;
        let mut verdict =
            self.evaluation.evaluate_sample(sampler, &mut sum, retains_response, scope);
        let (is_ok, mut actions) = (verdict.is_ok, std::mem::take(&mut verdict.error_actions));
        let said = sum.response.script_directives;
        if !said.is_ignored {
            let below = self.controllers.add_to_transactions(&model, &sum, is_ok);
            self.recorder.record_sample(sum, &self.context.scope.sample_label, verdict, below);
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
            actions.push(self.context.group_state.on_error);
            for action in actions {
                if action != SampleErrorAction::Continue {
                    self.apply_error_action(action);
                    break;
                }
            }
        }
    }

    /// Abandons the iteration of the whole tree; the next one begins.
    fn abandon_iteration(&mut self) {
        let root = self.context.group_state.root_node;
        self.walk().abandon_iteration(root);
        self.phase = ThreadPhase::BetweenIterations;
    }

    /// Applies the error action of a failed sample.
    fn apply_error_action(&mut self, action: SampleErrorAction) {
        match action {
            SampleErrorAction::Continue => {}
            SampleErrorAction::NextLoop => self.abandon_iteration(),
            SampleErrorAction::StopThread => self.context.is_ending = true,
            SampleErrorAction::StopTest => {
                self.context.stop_test();
            }
        }
    }
}

impl VirtualUser for PlanThread {
    fn next_step(&mut self, turn: &mut UserTurn<'_>) -> UserStep {
        let step = self.run_until_step(turn);
        self.recorder.report_finished_samples(turn, &self.context);
        step
    }
}
