//! One thread of a plan: walks the tree, waits, sends, evaluates, and reports.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tympan_lab_plan::model::{
    FlowControlAction, PlanModel, PlanNodeKind, SampleErrorAction, SamplerAction, SamplerTimer,
    ThroughputMode,
};
use tympan_lab_plan::{
    EnteredSections, PlanNodeId, RegexPatternCache, SamplePacer, SampleResponse, VariableScope,
    rate_intervals,
};

use super::client_cache::ClientCache;
use super::controller_walk::ControllerState;
use super::cookie_jar::CookieJar;
use super::http_sample::HttpSampleExchange;
use super::sample::{FinishedSample, TransactionRows};
use crate::load::{LoadRunState, UserStep, UserTurn, VirtualUser};
use crate::measurement::SampleMarkGenerator;
use crate::measurement::summariser::{SummaryTally, ThreadCounts};
use crate::net::{LoadTarget, TargetRegistry};

/// Number of consecutive iterations without any sampler after which an otherwise endless thread ends.
const MAX_EMPTY_ITERATIONS: u64 = 10_000;
/// Maximum number of steps of a thread in one turn, enough to reach a request if one is sent, and the time of a turn
/// after which others go first.
const MAX_STEPS_PER_TURN: u32 = 8;
const MAX_TURN_DURATION: Duration = Duration::from_millis(1);
/// Interval between checks for a free critical section.
const CRITICAL_SECTION_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum interval between two samples of a constant throughput timer: longer than any run.
const MAX_THROUGHPUT_INTERVAL: Duration = Duration::from_secs(366 * 24 * 3600);

/// State shared by all threads of a run besides the plan.
#[derive(Debug)]
pub(super) struct PlanRunState {
    pub(super) targets: TargetRegistry,
    pub(super) load_state: Arc<LoadRunState>,
    /// Number of threads started and finished.
    pub(super) started_threads: AtomicU64,
    pub(super) ended_threads: AtomicU64,
    /// Number of completed visits of the open model.
    pub(super) completed_visits: AtomicU64,
    pub(super) tallies: Mutex<(SummaryTally, SummaryTally)>,
    /// An instant, and the same time in milliseconds since the epoch.
    pub(super) epoch: (Instant, u64),
    /// Faults outside of samples, such as an unreadable data file.
    pub(super) faults: Mutex<Vec<String>>,
    /// True if rows include sub-samples: hops, resources, and samples of a transaction that replaces them.
    pub(super) writes_sub_samples: bool,
    /// Generates sample marks for servers, if marks are enabled.
    pub(super) sample_marks: Option<SampleMarkGenerator>,
}

impl PlanRunState {
    /// Converts an instant of this run to milliseconds since the epoch.
    pub(super) fn epoch_ms(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.epoch.0);
        self.epoch.1.saturating_add(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns the numbers of running, started and finished threads.
    pub(super) fn thread_counts(&self) -> ThreadCounts {
        let (started, finished) = (
            self.started_threads.load(Ordering::Relaxed),
            self.ended_threads.load(Ordering::Relaxed),
        );
        ThreadCounts { active: started.saturating_sub(finished), started, finished }
    }
}

/// State shared by the threads of a group.
#[derive(Debug)]
pub(super) struct ThreadGroupState {
    pub(super) active_threads: AtomicU64,
    pub(super) thread_count: u64,
    pub(super) on_error: SampleErrorAction,
    pub(super) is_same_user: bool,
    /// Number of loops; `None` for endless.
    pub(super) loop_count: Option<u64>,
    pub(super) root_node: PlanNodeId,
    /// In the open model: the initial variables of each visitor. An iteration is one visit.
    pub(super) initial_scope: Option<Arc<VariableScope>>,
}

impl ThreadGroupState {
    pub(super) fn is_open_model(&self) -> bool {
        self.initial_scope.is_some()
    }
}

/// The phase of a thread at its next turn.
#[derive(Debug)]
pub(super) enum ThreadPhase {
    Begin,
    /// The iteration has ended, or has not begun.
    BetweenIterations,
    /// Selects the next sampler.
    PickSampler,
    /// The wait is over; the sample starts.
    Sample(PlanNodeId),
    /// Waits for other threads.
    Synchronize {
        node: PlanNodeId,
        min_threads: i64,
        meter_index: usize,
        timer_index: usize,
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

/// A resolved host.
#[derive(Debug)]
pub(super) struct ResolvedTarget {
    /// The address table that was used.
    pub(super) host_table: Option<usize>,
    /// The local address.
    pub(super) source_address: Option<IpAddr>,
    pub(super) is_tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) target: Arc<LoadTarget>,
}

/// One thread of a plan.
#[derive(Debug)]
pub(super) struct PlanThread {
    pub(super) model: Arc<PlanModel>,
    pub(super) run_state: Arc<PlanRunState>,
    pub(super) group_state: Arc<ThreadGroupState>,
    pub(super) scope: VariableScope,
    pub(super) controller_states: Vec<ControllerState>,
    pub(super) counters: HashMap<usize, (i64, u64)>,
    pub(super) patterns: RegexPatternCache,
    pub(super) cookie_jars: HashMap<usize, CookieJar>,
    pub(super) caches: HashMap<usize, ClientCache>,
    pub(super) phase: ThreadPhase,
    pub(super) last_sample_ok: bool,
    /// The last response, if scripts before a sample access it.
    pub(super) last_response: Option<SampleResponse>,
    pub(super) is_ending: bool,
    /// The time at which the thread ends unconditionally.
    pub(super) ends_at: Option<Instant>,
    /// Lifetime of the thread after its start; `ends_at` is set when it begins.
    pub(super) lifetime: Option<Duration>,
    previous_sample_times: HashMap<usize, Instant>,
    /// The due time of the first request of a visit; the request takes it.
    pub(super) due_at: Option<Instant>,
    is_in_visit: bool,
    pub(super) finished_samples: Vec<FinishedSample>,
    /// Rows below that of a transaction, until it ends.
    pub(super) pending_rows: Vec<TransactionRows>,
    iteration_count: u64,
    iteration_sample_count: u64,
    /// Number of consecutive iterations without a sampler.
    empty_iteration_count: u64,
    /// The bytes of the request in progress.
    pub(super) request_bytes: Option<Arc<[u8]>>,
    /// The target of the last request.
    pub(super) last_target: Option<ResolvedTarget>,
    pub(super) critical_sections: EnteredSections,
}

impl PlanThread {
    pub(super) fn new(
        model: Arc<PlanModel>,
        stage: Arc<PlanRunState>,
        squad: Arc<ThreadGroupState>,
        scope: VariableScope,
    ) -> Self {
        Self {
            model,
            run_state: stage,
            group_state: squad,
            scope,
            controller_states: Vec::new(),
            counters: HashMap::new(),
            patterns: RegexPatternCache::default(),
            cookie_jars: HashMap::new(),
            caches: HashMap::new(),
            phase: ThreadPhase::Begin,
            last_sample_ok: true,
            last_response: None,
            is_ending: false,
            ends_at: None,
            lifetime: None,
            previous_sample_times: HashMap::new(),
            due_at: None,
            is_in_visit: false,
            finished_samples: Vec::new(),
            pending_rows: Vec::new(),
            iteration_count: 0,
            iteration_sample_count: 0,
            empty_iteration_count: 0,
            request_bytes: None,
            last_target: None,
            critical_sections: EnteredSections::default(),
        }
    }

    pub(super) fn record_run_fault(&self, fault: &str) {
        let mut faults = self.run_state.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if !faults.iter().any(|recorded_fault| recorded_fault == fault) {
            faults.push(fault.to_owned());
        }
    }

    fn end_thread(&mut self) -> UserStep {
        self.end_parent_transactions();
        self.critical_sections.leave_all();
        if !matches!(self.phase, ThreadPhase::Begin) {
            self.group_state.active_threads.fetch_sub(1, Ordering::Relaxed);
            self.run_state.ended_threads.fetch_add(1, Ordering::Relaxed);
        }
        UserStep::Leave
    }

    /// Ends the visit and waits for the next visitor, which this thread then represents.
    fn end_visit(&mut self) -> UserStep {
        self.critical_sections.leave_all();
        self.group_state.active_threads.fetch_sub(1, Ordering::Relaxed);
        self.run_state.ended_threads.fetch_add(1, Ordering::Relaxed);
        self.run_state.completed_visits.fetch_add(1, Ordering::Relaxed);
        if let Some(first) = &self.group_state.initial_scope {
            self.scope.copy_variables(first);
        }
        self.is_in_visit = false;
        self.phase = ThreadPhase::Begin;
        UserStep::AwaitArrival
    }

    fn is_finished(&self, now: Instant, is_stopping: bool) -> bool {
        self.is_ending || is_stopping || self.ends_at.is_some_and(|at| now >= at)
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
                    self.evaluate_transaction_names(self.group_state.root_node);
                    self.group_state.active_threads.fetch_add(1, Ordering::Relaxed);
                    self.run_state.started_threads.fetch_add(1, Ordering::Relaxed);
                    self.ends_at = self.lifetime.map(|lives| turn.now + lives);
                    self.due_at = self.group_state.is_open_model().then_some(turn.due_at);
                    self.phase = ThreadPhase::BetweenIterations;
                }
                ThreadPhase::BetweenIterations if self.is_in_visit => return self.end_visit(),
                ThreadPhase::BetweenIterations => {
                    self.is_in_visit = self.group_state.is_open_model();
                    if self.group_state.loop_count.is_some_and(|most| self.iteration_count >= most)
                    {
                        return self.end_thread();
                    }
                    self.begin_iteration(turn);
                }
                ThreadPhase::PickSampler => {
                    let sampler_node = self.next_sampler(self.group_state.root_node);
                    self.report_finished_samples(turn);
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
                ThreadPhase::Synchronize {
                    node,
                    min_threads: at_least,
                    meter_index: meter,
                    timer_index: timers,
                    deadline: until,
                } => {
                    let model = Arc::clone(&self.model);
                    let is_late = until.is_some_and(|until| turn.now >= until);
                    let here = model.meters.get(meter).map_or(i64::MAX, |meter| match is_late {
                        // The first thread whose timeout expires releases all threads that wait with it.
                        true => meter.count.fetch_max(at_least, Ordering::Relaxed).max(at_least),
                        false => meter.count.load(Ordering::Relaxed),
                    });
                    if here >= at_least {
                        if let Some(step) = self.schedule_after_timers(node, timers, turn.now) {
                            return step;
                        }
                    } else {
                        self.phase = ThreadPhase::Synchronize {
                            node,
                            min_threads: at_least,
                            meter_index: meter,
                            timer_index: timers,
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
                    if let Some(step) = self.resume_exchange(exchange, turn) {
                        return step;
                    }
                }
            }
            turn.now = Instant::now();
        }
    }

    fn begin_iteration(&mut self, turn: &mut UserTurn<'_>) {
        self.iteration_count += 1;
        self.scope.iteration = self.iteration_count;
        let is_empty = self.iteration_count > 1 && self.iteration_sample_count == 0;
        self.empty_iteration_count = if is_empty { self.empty_iteration_count + 1 } else { 0 };
        // If no condition ever holds, a thread would loop forever.
        if self.empty_iteration_count >= MAX_EMPTY_ITERATIONS && self.is_endless() {
            self.is_ending = true;
            return;
        }
        self.iteration_sample_count = 0;
        let is_known_user = self.group_state.is_same_user && !self.group_state.is_open_model();
        let is_new_user = self.iteration_count > 1 && !is_known_user;
        if is_new_user && !self.group_state.is_same_user {
            turn.drops_connections = true;
        }
        let model = Arc::clone(&self.model);
        for (index, manager) in model.cookie_managers.iter().enumerate() {
            let clears = if manager.is_controlled_by_group {
                is_new_user
            } else {
                manager.clears_each_iteration
            };
            if clears {
                self.cookie_jars.remove(&index);
            }
        }
        for (index, manager) in model.cache_managers.iter().enumerate() {
            if manager.clears_each_iteration || is_new_user {
                self.caches.remove(&index);
            }
        }
    }

    /// Returns true if neither a number of loops, nor a time, nor a schedule ends the thread.
    fn is_endless(&self) -> bool {
        self.group_state.loop_count.is_none()
            && self.ends_at.is_none()
            && !self.group_state.is_open_model()
    }

    /// Prepares a sampler and waits for its timers.
    fn prepare_sampler(&mut self, node: PlanNodeId, now: Instant) -> Option<UserStep> {
        let model = Arc::clone(&self.model);
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
        self.scope.enter_sampler(&entry.name);
        for &index in &sampler.user_parameters {
            self.apply_user_parameters(index);
        }
        for script in &sampler.pre_processors {
            self.run_pre_processor(script);
        }
        self.schedule_after_timers(node, 0, now)
    }

    /// Returns the wait before a sampler: the sum of the delays of its timers from index `from` on. A synchronizing timer
    /// changes the phase of the thread instead, which resumes at the timer after it.
    fn schedule_after_timers(
        &mut self,
        node: PlanNodeId,
        from: usize,
        now: Instant,
    ) -> Option<UserStep> {
        let model = Arc::clone(&self.model);
        let Some(PlanNodeKind::Sampler(sampler)) = model.nodes.get(node).map(|node| &node.kind)
        else {
            return None;
        };
        let mut delay = Duration::from_millis(std::mem::take(&mut self.scope.sleep_ms));
        for (number, timer) in sampler.timers.iter().enumerate().skip(from) {
            if let SamplerTimer::Synchronize { size, timeout, meter_index: meter } = timer {
                let timeout = self.evaluate_number(timeout);
                let until = (timeout > 0.0)
                    .then(|| Duration::try_from_secs_f64(timeout / 1000.0).ok())
                    .flatten()
                    .map(|timeout| now + delay + timeout);
                let size: i64 = size.evaluate(&mut self.scope).trim().parse().unwrap_or(0);
                // Users gather in their own process, each process with its portion of the number.
                let size = match u64::try_from(size) {
                    Ok(size) if size > 0 => self.scope.run_context.portion.share_of(size),
                    _ => self.group_state.thread_count,
                };
                let size = i64::try_from(size).unwrap_or(i64::MAX).max(1);
                let Some(shared) = model.meters.get(*meter) else { continue };
                let ticket = shared.count.fetch_add(1, Ordering::Relaxed);
                let at_least = (ticket / size + 1) * size;
                let (meter, timers) = (*meter, number + 1);
                self.phase = ThreadPhase::Synchronize {
                    node,
                    min_threads: at_least,
                    meter_index: meter,
                    timer_index: timers,
                    deadline: until,
                };
                return Some(UserStep::WaitUntil(now + delay));
            }
            delay += self.timer_delay(timer, now);
        }
        self.due_at = self.due_at.map(|due| due + delay);
        self.phase = ThreadPhase::Sample(node);
        if delay.is_zero() {
            return None;
        }
        if self.ends_at.is_some_and(|end| now + delay > end) {
            self.is_ending = true;
            return None;
        }
        Some(UserStep::WaitUntil(now + delay))
    }

    fn timer_delay(&mut self, timer: &SamplerTimer, now: Instant) -> Duration {
        let millis = match timer {
            SamplerTimer::Constant(delay) => self.evaluate_number(delay),
            SamplerTimer::Uniform { delay, range } => {
                let unit = self.scope.random_unit();
                self.evaluate_number(delay) + unit * self.evaluate_number(range)
            }
            SamplerTimer::Gaussian { delay, range } => {
                let normal = self.random_normal();
                (normal * self.evaluate_number(range) + self.evaluate_number(delay)).abs()
            }
            SamplerTimer::Poisson { delay, range } => {
                let mean = self.evaluate_number(range);
                self.evaluate_number(delay)
                    + (mean + self.random_normal() * mean.max(0.0).sqrt()).max(0.0)
            }
            SamplerTimer::Throughput { per_minute, mode, meter_index: meter } => {
                let per_minute = self.evaluate_number(per_minute);
                return self.throughput_delay(per_minute, *mode, *meter, now);
            }
            SamplerTimer::Synchronize { .. } => 0.0,
            SamplerTimer::Script(script) => self.run_timer(script),
            SamplerTimer::Precise { .. } | SamplerTimer::ShapedThroughput { .. } => {
                return self.paced_delay(timer, now);
            }
        };
        Duration::try_from_secs_f64(millis / 1000.0).unwrap_or_default()
    }

    /// Returns the delay until a constant throughput timer allows the next sample. Missed samples are not made up for,
    /// as in JMeter.
    fn throughput_delay(
        &mut self,
        per_minute: f64,
        mode: ThroughputMode,
        meter: usize,
        now: Instant,
    ) -> Duration {
        // In the open model the schedule determines the times.
        if per_minute <= 0.0 || self.group_state.is_open_model() {
            return Duration::ZERO;
        }
        let distance =
            Duration::try_from_secs_f64(60.0 / per_minute).unwrap_or(MAX_THROUGHPUT_INTERVAL);
        let times = |count: u64| {
            let count = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
            distance.saturating_mul(count).min(MAX_THROUGHPUT_INTERVAL)
        };
        // A rate of several threads is divided among the processes that run them.
        let processes = self.scope.run_context.portion.count;
        let distance = match mode {
            ThroughputMode::ThisThread => times(1),
            ThroughputMode::AllThreads => {
                times(self.run_state.thread_counts().active.saturating_mul(processes))
            }
            ThroughputMode::GroupThreads => times(
                self.group_state.active_threads.load(Ordering::Relaxed).saturating_mul(processes),
            ),
            ThroughputMode::Shared | ThroughputMode::SharedByGroup => times(processes),
        };
        let due = |last: Option<Instant>| last.map_or(now, |last| (last + distance).max(now));
        let key = match mode {
            ThroughputMode::Shared => 0,
            ThroughputMode::SharedByGroup => self.group_state.root_node,
            ThroughputMode::ThisThread
            | ThroughputMode::AllThreads
            | ThroughputMode::GroupThreads => {
                let due = due(self.previous_sample_times.get(&meter).copied());
                self.previous_sample_times.insert(meter, due);
                return due - now;
            }
        };
        let Some(shared) = self.model.meters.get(meter) else { return Duration::ZERO };
        let mut last = shared.last_due.lock().unwrap_or_else(PoisonError::into_inner);
        let due = due(last.get(&key).copied());
        last.insert(key, due);
        due - now
    }

    /// Returns the delay until the next start time of a timer that all threads share.
    fn paced_delay(&mut self, timer: &SamplerTimer, now: Instant) -> Duration {
        let model = Arc::clone(&self.model);
        // In the open model the schedule determines the times.
        if self.group_state.is_open_model() {
            return Duration::ZERO;
        }
        let (meter, key) = match timer {
            // Each group has its own schedule.
            SamplerTimer::Precise { meter_index: meter, .. } => {
                (*meter, self.group_state.root_node)
            }
            SamplerTimer::ShapedThroughput { meter_index: meter, .. } => (*meter, 0),
            _ => return Duration::ZERO,
        };
        let Some(shared) = model.meters.get(meter) else { return Duration::ZERO };
        let mut pacers = shared.pacers.lock().unwrap_or_else(PoisonError::into_inner);
        let pacer = match pacers.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let Some(pacer) = self.create_pacer(timer) else { return Duration::ZERO };
                entry.insert(pacer)
            }
        };
        let moment = pacer.next_start();
        drop(pacers);
        match moment {
            Some(moment) => (self.run_state.epoch.0 + moment).saturating_duration_since(now),
            None => {
                // The end of the rows ends the test.
                self.run_state.load_state.request_stop();
                self.is_ending = true;
                Duration::ZERO
            }
        }
    }

    /// Creates the schedule of a timer; `None` if its numbers are invalid.
    fn create_pacer(&mut self, timer: &SamplerTimer) -> Option<SamplePacer> {
        let portion = self.scope.run_context.portion;
        match timer {
            SamplerTimer::Precise { settings: values, .. } => {
                let throughput = self.evaluate_number(&values.throughput);
                let period = self.evaluate_number(&values.period);
                let duration = self.evaluate_number(&values.duration);
                let batch = self.evaluate_number(&values.batch).max(1.0) as u64;
                let apart =
                    Duration::try_from_secs_f64(self.evaluate_number(&values.batch_delay) / 1000.0)
                        .ok()?;
                let count = throughput / period * duration;
                let duration = Duration::try_from_secs_f64(duration).ok()?;
                let seed =
                    self.scope.run_context.seed().wrapping_add(self.group_state.root_node as u64);
                SamplePacer::with_exact_throughput(count, duration, (batch, apart), (seed, portion))
            }
            SamplerTimer::ShapedThroughput { rows, .. } => {
                let stretches = match rate_intervals(rows, 1.0, &mut self.scope) {
                    // Both rates and times are in seconds.
                    Ok(stretches) => stretches,
                    Err(fault) => {
                        self.record_run_fault(&format!("throughput shaping timer: {fault}"));
                        return None;
                    }
                };
                Some(SamplePacer::with_rate_intervals(&stretches, portion))
            }
            _ => None,
        }
    }

    fn evaluate_number(&mut self, template: &tympan_lab_plan::TextTemplate) -> f64 {
        template.evaluate(&mut self.scope).trim().parse().unwrap_or(0.0)
    }

    /// Returns a normally distributed random number (Box and Muller).
    fn random_normal(&mut self) -> f64 {
        let (first, second) = (self.scope.random_unit(), self.scope.random_unit());
        (-2.0 * first.ln()).sqrt() * (std::f64::consts::TAU * second).cos()
    }

    /// Starts a sampler.
    fn start_sample(&mut self, node: PlanNodeId, turn: &mut UserTurn<'_>) -> Option<UserStep> {
        let model = Arc::clone(&self.model);
        let Some(PlanNodeKind::Sampler(sampler)) = model.nodes.get(node).map(|node| &node.kind)
        else {
            return None;
        };
        match &sampler.action {
            SamplerAction::Http(spec) => self.begin_http_sample(node, spec, turn),
            SamplerAction::FlowControl(FlowControlAction::EnterSection(name)) => {
                let name = name.evaluate(&mut self.scope).trim().to_owned();
                if self.critical_sections.enter(&self.scope.run_context.critical_sections, &name) {
                    return None;
                }
                self.phase = ThreadPhase::Sample(node);
                Some(UserStep::WaitUntil(turn.now + CRITICAL_SECTION_POLL_INTERVAL))
            }
            SamplerAction::FlowControl(flow) => self.run_flow_action(node, flow, turn.now),
            SamplerAction::Debug => {
                self.scope.label_sample();
                let variables: Vec<String> = self
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
                self.finish_without_reply(node, response, turn.now, true);
                turn.now = Instant::now();
                None
            }
            SamplerAction::Script(script) => {
                self.run_script_sampler(node, script, turn.now);
                turn.now = Instant::now();
                None
            }
            SamplerAction::Java(test) => {
                let sleep = self.evaluate_number(&test.sleep);
                let mask = self.evaluate_number(&test.sleep_mask) as u64;
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
        let model = Arc::clone(&self.model);
        let Some(PlanNodeKind::Sampler(sampler)) = model.nodes.get(node).map(|node| &node.kind)
        else {
            return;
        };
        let SamplerAction::Java(test) = &sampler.action else { return };
        self.scope.label_sample();
        let is_ok = test.status.evaluate(&mut self.scope).trim().eq_ignore_ascii_case("OK");
        if !test.label.is_empty() {
            self.scope.sample_label = test.label.evaluate(&mut self.scope).as_ref().into();
        }
        let response = SampleResponse {
            code: test.code.evaluate(&mut self.scope).into_owned(),
            message: test.message.evaluate(&mut self.scope).into_owned(),
            body: test.result.evaluate(&mut self.scope).into_owned(),
            ..SampleResponse::default()
        };
        self.finish_without_reply(node, response, started, is_ok);
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
                self.critical_sections.leave();
                None
            }
            FlowControlAction::Pause(pause) => {
                let pause = Duration::try_from_secs_f64(self.evaluate_number(pause) / 1000.0)
                    .unwrap_or_default();
                if self.ends_at.is_some_and(|end| now + pause > end) {
                    self.is_ending = true;
                    return None;
                }
                self.due_at = self.due_at.map(|due| due + pause);
                self.phase = ThreadPhase::Paused;
                Some(UserStep::WaitUntil(now + pause))
            }
            FlowControlAction::StopThread => {
                self.is_ending = true;
                None
            }
            FlowControlAction::StopTest => {
                self.run_state.load_state.request_stop();
                self.is_ending = true;
                None
            }
            FlowControlAction::NextLoop => {
                self.abandon_iteration(self.group_state.root_node);
                self.phase = ThreadPhase::BetweenIterations;
                None
            }
            FlowControlAction::ContinueLoop | FlowControlAction::BreakLoop => {
                let is_left = matches!(flow, FlowControlAction::BreakLoop);
                if !self.leave_loop_pass(node, is_left) {
                    self.abandon_iteration(self.group_state.root_node);
                    self.phase = ThreadPhase::BetweenIterations;
                    self.is_ending |= is_left;
                }
                None
            }
        }
    }

    /// Applies the error action of a failed sample.
    pub(super) fn apply_error_action(&mut self, action: SampleErrorAction) {
        match action {
            SampleErrorAction::Continue => {}
            SampleErrorAction::NextLoop => {
                self.abandon_iteration(self.group_state.root_node);
                self.phase = ThreadPhase::BetweenIterations;
            }
            SampleErrorAction::StopThread => self.is_ending = true,
            SampleErrorAction::StopTest => {
                self.run_state.load_state.request_stop();
                self.is_ending = true;
            }
        }
    }
}

impl VirtualUser for PlanThread {
    fn next_step(&mut self, turn: &mut UserTurn<'_>) -> UserStep {
        let step = self.run_until_step(turn);
        self.report_finished_samples(turn);
        step
    }
}
