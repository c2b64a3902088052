//! One thread of a plan: walks the tree, waits, sends, judges, and tells.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::answer::Answer;
use super::cache::Cache;
use super::cookie::Jar;
use super::exchange::Exchange;
use super::model::{Action, Flow, Kind, Model, NodeId, OnError, Pace, Timer};
use super::pace::Pacer;
use super::pattern::Patterns;
use super::sample::{Finished, Held};
use super::scope::Scope;
use super::section::Inside;
use super::shape;
use super::walk::State;
use crate::load::{Crowd, Step, Turn, User};
use crate::net::{Target, Targets};
use crate::record::Marks;
use crate::record::summariser::{Tally, Threads};

/// Iterations without any sampler, one after the other, after which a thread ends that nothing else would end.
const EMPTY_ITERATIONS: u64 = 10_000;
/// Steps of a thread in one turn, as many as lead to a request where one is sent, and time of a turn beyond which
/// others come first.
const SOME_STEPS: u32 = 8;
const LONG_TURN: Duration = Duration::from_millis(1);
/// How often a thread looks whether a critical section is free.
const GATE: Duration = Duration::from_millis(1);
/// Longest time between two samples of a constant throughput timer: longer than any run.
const LONGEST_PACE: Duration = Duration::from_secs(366 * 24 * 3600);

/// What all threads of a run share beside the plan.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) targets: Targets,
    pub(super) crowd: Arc<Crowd>,
    /// Threads that began, and that ended.
    pub(super) begun: AtomicU64,
    pub(super) ended: AtomicU64,
    /// Visits of the open model that came to their end.
    pub(super) visits: AtomicU64,
    pub(super) tally: Mutex<(Tally, Tally)>,
    /// A moment, and milliseconds of the epoch at it.
    pub(super) epoch: (Instant, u64),
    /// What went wrong outside of samples, such as a data file that cannot be read.
    pub(super) faults: Mutex<Vec<String>>,
    /// Whether rows tell what samples consist of: hops, parts, and samples of a transaction that stands for them.
    pub(super) tells_subs: bool,
    /// Names samples to servers, if they are told.
    pub(super) marks: Option<Marks>,
}

impl Stage {
    /// Returns milliseconds of the epoch at a moment of this run.
    pub(super) fn epoch_ms(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.epoch.0);
        self.epoch.1.saturating_add(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns the threads that run now, that began, and that ended.
    pub(super) fn threads(&self) -> Threads {
        let (started, finished) =
            (self.begun.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed));
        Threads { active: started.saturating_sub(finished), started, finished }
    }
}

/// What the threads of a group share.
#[derive(Debug)]
pub(super) struct Squad {
    pub(super) active: AtomicU64,
    pub(super) size: u64,
    pub(super) on_error: OnError,
    pub(super) is_same_user: bool,
    /// `None` without end.
    pub(super) loops: Option<u64>,
    pub(super) root: NodeId,
    /// In the open model: the variables that each visitor begins with. An iteration is one visit.
    pub(super) first: Option<Arc<Scope>>,
}

impl Squad {
    pub(super) fn is_open(&self) -> bool {
        self.first.is_some()
    }
}

/// What a thread does at its next turn.
#[derive(Debug)]
pub(super) enum Phase {
    Begin,
    /// The iteration is over, or has not begun.
    Between,
    /// Looks for the next sampler.
    Pick,
    /// Waited, and now samples.
    Sample(NodeId),
    /// Waits for others.
    Gather {
        node: NodeId,
        at_least: i64,
        meter: usize,
        timers: usize,
        /// When they go on although too few have come.
        until: Option<Instant>,
    },
    /// A pause of the flow control action is over.
    Paused,
    /// Java's test sleeps until it is done.
    Slept {
        node: NodeId,
        started: Instant,
    },
    Exchange(Box<Exchange>),
}

/// Where a name led.
#[derive(Debug)]
pub(super) struct Led {
    /// By whose addresses.
    pub(super) hosts: Option<usize>,
    /// From which address of this machine.
    pub(super) source: Option<IpAddr>,
    pub(super) is_tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) target: Arc<Target>,
}

/// One thread.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) model: Arc<Model>,
    pub(super) stage: Arc<Stage>,
    pub(super) squad: Arc<Squad>,
    pub(super) scope: Scope,
    pub(super) states: Vec<State>,
    pub(super) counters: HashMap<usize, (i64, u64)>,
    pub(super) patterns: Patterns,
    pub(super) jars: HashMap<usize, Jar>,
    pub(super) caches: HashMap<usize, Cache>,
    pub(super) phase: Phase,
    pub(super) last_ok: bool,
    /// The last answer, where scripts before a sample look at it.
    pub(super) previous_answer: Option<Answer>,
    pub(super) is_ending: bool,
    /// When the thread ends, whatever it does.
    pub(super) ends_at: Option<Instant>,
    /// How long after its start the thread lives; `ends_at` is set when it begins.
    pub(super) lives: Option<Duration>,
    previous: HashMap<usize, Instant>,
    /// When the first request of a visit is due; taken by it.
    pub(super) due: Option<Instant>,
    is_visiting: bool,
    pub(super) finished: Vec<Finished>,
    /// Rows of samples that stand below that of a transaction, until it ends.
    pub(super) held: Vec<Held>,
    iterations: u64,
    samples_of_iteration: u64,
    /// Iterations without a sampler since the last one with any.
    empty_iterations: u64,
    /// The request under way as it is sent.
    pub(super) request: Option<Arc<[u8]>>,
    /// Where the last request went.
    pub(super) target: Option<Led>,
    pub(super) inside: Inside,
}

impl Actor {
    pub(super) fn new(
        model: Arc<Model>,
        stage: Arc<Stage>,
        squad: Arc<Squad>,
        scope: Scope,
    ) -> Self {
        Self {
            model,
            stage,
            squad,
            scope,
            states: Vec::new(),
            counters: HashMap::new(),
            patterns: Patterns::default(),
            jars: HashMap::new(),
            caches: HashMap::new(),
            phase: Phase::Begin,
            last_ok: true,
            previous_answer: None,
            is_ending: false,
            ends_at: None,
            lives: None,
            previous: HashMap::new(),
            due: None,
            is_visiting: false,
            finished: Vec::new(),
            held: Vec::new(),
            iterations: 0,
            samples_of_iteration: 0,
            empty_iterations: 0,
            request: None,
            target: None,
            inside: Inside::default(),
        }
    }

    pub(super) fn world_fault(&self, fault: &str) {
        let mut faults = self.stage.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if !faults.iter().any(|known| known == fault) {
            faults.push(fault.to_owned());
        }
    }

    fn end(&mut self) -> Step {
        self.end_parents();
        self.inside.leave_all();
        if !matches!(self.phase, Phase::Begin) {
            self.squad.active.fetch_sub(1, Ordering::Relaxed);
            self.stage.ended.fetch_add(1, Ordering::Relaxed);
        }
        Step::End
    }

    /// Waits for the next visitor, whom this thread then is.
    fn end_visit(&mut self) -> Step {
        self.inside.leave_all();
        self.squad.active.fetch_sub(1, Ordering::Relaxed);
        self.stage.ended.fetch_add(1, Ordering::Relaxed);
        self.stage.visits.fetch_add(1, Ordering::Relaxed);
        if let Some(first) = &self.squad.first {
            self.scope.copy_variables(first);
        }
        self.is_visiting = false;
        self.phase = Phase::Begin;
        Step::Rest
    }

    fn is_over(&self, now: Instant, is_stopping: bool) -> bool {
        self.is_ending || is_stopping || self.ends_at.is_some_and(|at| now >= at)
    }

    /// Goes on until there is something to send or to wait for.
    fn advance(&mut self, turn: &mut Turn<'_>) -> Step {
        let began = turn.now;
        let mut steps = 0;
        loop {
            // A sample under way is finished, whatever the time.
            let is_under_way = matches!(self.phase, Phase::Exchange(_) | Phase::Slept { .. });
            if !is_under_way && self.is_over(turn.now, turn.is_stopping) {
                return self.end();
            }
            // Samples without requests, and iterations without samples, would keep all others from their turns.
            if steps >= SOME_STEPS && !is_under_way && turn.now - began >= LONG_TURN {
                return Step::Again;
            }
            steps += 1;
            match std::mem::replace(&mut self.phase, Phase::Pick) {
                Phase::Begin => {
                    self.draw_transactions(self.squad.root);
                    self.squad.active.fetch_add(1, Ordering::Relaxed);
                    self.stage.begun.fetch_add(1, Ordering::Relaxed);
                    self.ends_at = self.lives.map(|lives| turn.now + lives);
                    self.due = self.squad.is_open().then_some(turn.due);
                    self.phase = Phase::Between;
                }
                Phase::Between if self.is_visiting => return self.end_visit(),
                Phase::Between => {
                    self.is_visiting = self.squad.is_open();
                    if self.squad.loops.is_some_and(|most| self.iterations >= most) {
                        return self.end();
                    }
                    self.begin_iteration(turn);
                }
                Phase::Pick => {
                    let found = self.pick(self.squad.root);
                    self.tell(turn);
                    match found {
                        None => self.phase = Phase::Between,
                        Some(node) => {
                            if let Some(step) = self.approach(node, turn.now) {
                                return step;
                            }
                        }
                    }
                }
                Phase::Sample(node) => {
                    if let Some(step) = self.sample(node, turn) {
                        return step;
                    }
                }
                Phase::Gather { node, at_least, meter, timers, until } => {
                    let model = Arc::clone(&self.model);
                    let is_late = until.is_some_and(|until| turn.now >= until);
                    let here = model.meters.get(meter).map_or(i64::MAX, |meter| match is_late {
                        // The first one whose time is over takes all along who wait with it.
                        true => meter.count.fetch_max(at_least, Ordering::Relaxed).max(at_least),
                        false => meter.count.load(Ordering::Relaxed),
                    });
                    if here >= at_least {
                        if let Some(step) = self.wait_for_timers(node, timers, turn.now) {
                            return step;
                        }
                    } else {
                        self.phase = Phase::Gather { node, at_least, meter, timers, until };
                        return Step::Wait(turn.now + Duration::from_millis(2));
                    }
                }
                Phase::Paused => {}
                Phase::Slept { node, started } => self.finish_java(node, started, turn),
                Phase::Exchange(exchange) => {
                    if let Some(step) = self.go_on(exchange, turn) {
                        return step;
                    }
                }
            }
            turn.now = Instant::now();
        }
    }

    fn begin_iteration(&mut self, turn: &mut Turn<'_>) {
        self.iterations += 1;
        self.scope.iteration = self.iterations;
        let is_empty = self.iterations > 1 && self.samples_of_iteration == 0;
        self.empty_iterations = if is_empty { self.empty_iterations + 1 } else { 0 };
        // Where no condition ever holds, a thread would turn without end.
        if self.empty_iterations >= EMPTY_ITERATIONS && self.is_endless() {
            self.is_ending = true;
            return;
        }
        self.samples_of_iteration = 0;
        let is_known_user = self.squad.is_same_user && !self.squad.is_open();
        let is_new_user = self.iterations > 1 && !is_known_user;
        if is_new_user && !self.squad.is_same_user {
            turn.drops_connections = true;
        }
        let model = Arc::clone(&self.model);
        for (place, manager) in model.cookies.iter().enumerate() {
            let clears = if manager.by_group { is_new_user } else { manager.clears };
            if clears {
                self.jars.remove(&place);
            }
        }
        for (place, manager) in model.caches.iter().enumerate() {
            if manager.clears || is_new_user {
                self.caches.remove(&place);
            }
        }
    }

    /// Reports whether neither a number of loops, nor a time, nor a schedule ends the thread.
    fn is_endless(&self) -> bool {
        self.squad.loops.is_none() && self.ends_at.is_none() && !self.squad.is_open()
    }

    /// Prepares a sampler and waits for its timers.
    fn approach(&mut self, node: NodeId, now: Instant) -> Option<Step> {
        let model = Arc::clone(&self.model);
        let entry = model.nodes.get(node)?;
        let Kind::Sampler(sampler) = &entry.kind else { return None };
        // The gates of a critical section are no samples; one that holds none must not turn without end.
        if matches!(sampler.action, Action::Flow(Flow::Enter(_) | Flow::Leave)) {
            self.phase = Phase::Sample(node);
            return None;
        }
        self.samples_of_iteration += 1;
        self.scope.enter_sampler(&entry.name);
        for &place in &sampler.before {
            self.set_parameters(place);
        }
        for script in &sampler.scripts {
            self.run_before(script);
        }
        self.wait_for_timers(node, 0, now)
    }

    /// Sums the delays of a sampler's timers, from one on.
    fn wait_for_timers(&mut self, node: NodeId, from: usize, now: Instant) -> Option<Step> {
        let model = Arc::clone(&self.model);
        let Some(Kind::Sampler(sampler)) = model.nodes.get(node).map(|node| &node.kind) else {
            return None;
        };
        let mut delay = Duration::from_millis(std::mem::take(&mut self.scope.sleep_ms));
        for (number, timer) in sampler.timers.iter().enumerate().skip(from) {
            if let Timer::Synchronize { size, timeout, meter } = timer {
                let timeout = self.number(timeout);
                let until = (timeout > 0.0)
                    .then(|| Duration::try_from_secs_f64(timeout / 1000.0).ok())
                    .flatten()
                    .map(|timeout| now + delay + timeout);
                let size: i64 = size.draw(&mut self.scope).trim().parse().unwrap_or(0);
                // Users gather in their own process, each with its portion of the number.
                let size = match u64::try_from(size) {
                    Ok(size) if size > 0 => self.scope.world.portion.of(size),
                    _ => self.squad.size,
                };
                let size = i64::try_from(size).unwrap_or(i64::MAX).max(1);
                let Some(shared) = model.meters.get(*meter) else { continue };
                let ticket = shared.count.fetch_add(1, Ordering::Relaxed);
                let at_least = (ticket / size + 1) * size;
                let (meter, timers) = (*meter, number + 1);
                self.phase = Phase::Gather { node, at_least, meter, timers, until };
                return Some(Step::Wait(now + delay));
            }
            delay += self.delay(timer, now);
        }
        self.due = self.due.map(|due| due + delay);
        self.phase = Phase::Sample(node);
        if delay.is_zero() {
            return None;
        }
        if self.ends_at.is_some_and(|end| now + delay > end) {
            self.is_ending = true;
            return None;
        }
        Some(Step::Wait(now + delay))
    }

    fn delay(&mut self, timer: &Timer, now: Instant) -> Duration {
        let millis = match timer {
            Timer::Constant(delay) => self.number(delay),
            Timer::Uniform { delay, range } => {
                let unit = self.scope.random_unit();
                self.number(delay) + unit * self.number(range)
            }
            Timer::Gaussian { delay, range } => {
                let normal = self.normal();
                (normal * self.number(range) + self.number(delay)).abs()
            }
            Timer::Poisson { delay, range } => {
                let mean = self.number(range);
                self.number(delay) + (mean + self.normal() * mean.max(0.0).sqrt()).max(0.0)
            }
            Timer::Throughput { per_minute, mode, meter } => {
                let per_minute = self.number(per_minute);
                return self.throttle(per_minute, *mode, *meter, now);
            }
            Timer::Synchronize { .. } => 0.0,
            Timer::Script(script) => self.run_timer(script),
            Timer::Precise { .. } | Timer::Shaped { .. } => return self.pace(timer, now),
        };
        Duration::try_from_secs_f64(millis / 1000.0).unwrap_or_default()
    }

    /// Waits until a constant throughput timer lets the next sample begin. Who is late owes nothing, as in JMeter.
    fn throttle(&mut self, per_minute: f64, mode: Pace, meter: usize, now: Instant) -> Duration {
        // In the open model the schedule says when.
        if per_minute <= 0.0 || self.squad.is_open() {
            return Duration::ZERO;
        }
        let distance = Duration::try_from_secs_f64(60.0 / per_minute).unwrap_or(LONGEST_PACE);
        let times = |count: u64| {
            let count = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
            distance.saturating_mul(count).min(LONGEST_PACE)
        };
        // A rate of several threads is divided among the processes that run them.
        let processes = self.scope.world.portion.count;
        let distance = match mode {
            Pace::ThisThread => times(1),
            Pace::AllThreads => times(self.stage.threads().active.saturating_mul(processes)),
            Pace::GroupThreads => {
                times(self.squad.active.load(Ordering::Relaxed).saturating_mul(processes))
            }
            Pace::Shared | Pace::SharedByGroup => times(processes),
        };
        let due = |last: Option<Instant>| last.map_or(now, |last| (last + distance).max(now));
        let place = match mode {
            Pace::Shared => 0,
            Pace::SharedByGroup => self.squad.root,
            Pace::ThisThread | Pace::AllThreads | Pace::GroupThreads => {
                let due = due(self.previous.get(&meter).copied());
                self.previous.insert(meter, due);
                return due - now;
            }
        };
        let Some(shared) = self.model.meters.get(meter) else { return Duration::ZERO };
        let mut last = shared.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = due(last.get(&place).copied());
        last.insert(place, due);
        due - now
    }

    /// Waits for the next moment of a timer that gives moments to all threads.
    fn pace(&mut self, timer: &Timer, now: Instant) -> Duration {
        let model = Arc::clone(&self.model);
        // In the open model the schedule says when.
        if self.squad.is_open() {
            return Duration::ZERO;
        }
        let (meter, place) = match timer {
            // Each group has moments of its own.
            Timer::Precise { meter, .. } => (*meter, self.squad.root),
            Timer::Shaped { meter, .. } => (*meter, 0),
            _ => return Duration::ZERO,
        };
        let Some(shared) = model.meters.get(meter) else { return Duration::ZERO };
        let mut pacers = shared.pacers.lock().unwrap_or_else(PoisonError::into_inner);
        let pacer = match pacers.entry(place) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let Some(pacer) = self.pacer(timer) else { return Duration::ZERO };
                place.insert(pacer)
            }
        };
        let moment = pacer.next();
        drop(pacers);
        match moment {
            Some(moment) => (self.stage.epoch.0 + moment).saturating_duration_since(now),
            None => {
                // The rows are over, and so is the test.
                self.stage.crowd.stop();
                self.is_ending = true;
                Duration::ZERO
            }
        }
    }

    /// Makes the moments of a timer; nothing if its numbers are none.
    fn pacer(&mut self, timer: &Timer) -> Option<Pacer> {
        let portion = self.scope.world.portion;
        match timer {
            Timer::Precise { values, .. } => {
                let throughput = self.number(&values.throughput);
                let period = self.number(&values.period);
                let duration = self.number(&values.duration);
                let batch = self.number(&values.batch).max(1.0) as u64;
                let apart =
                    Duration::try_from_secs_f64(self.number(&values.batch_delay) / 1000.0).ok()?;
                let count = throughput / period * duration;
                let duration = Duration::try_from_secs_f64(duration).ok()?;
                let seed = self.scope.world.seed().wrapping_add(self.squad.root as u64);
                Pacer::exact(count, duration, (batch, apart), (seed, portion))
            }
            Timer::Shaped { rows, .. } => {
                let stretches = match shape::stretches(rows, 1.0, &mut self.scope) {
                    // Rates count for a second, and so do times.
                    Ok(stretches) => stretches,
                    Err(fault) => {
                        self.world_fault(&format!("throughput shaping timer: {fault}"));
                        return None;
                    }
                };
                Some(Pacer::shaped(&stretches, portion))
            }
            _ => None,
        }
    }

    fn number(&mut self, template: &super::template::Template) -> f64 {
        template.draw(&mut self.scope).trim().parse().unwrap_or(0.0)
    }

    /// Returns a number of the normal distribution (Box and Muller).
    fn normal(&mut self) -> f64 {
        let (one, two) = (self.scope.random_unit(), self.scope.random_unit());
        (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * two).cos()
    }

    /// Begins a sampler.
    fn sample(&mut self, node: NodeId, turn: &mut Turn<'_>) -> Option<Step> {
        let model = Arc::clone(&self.model);
        let Some(Kind::Sampler(sampler)) = model.nodes.get(node).map(|node| &node.kind) else {
            return None;
        };
        match &sampler.action {
            Action::Http(spec) => self.begin(node, spec, turn),
            Action::Flow(Flow::Enter(name)) => {
                let name = name.draw(&mut self.scope).trim().to_owned();
                if self.inside.enter(&self.scope.world.sections, &name) {
                    return None;
                }
                self.phase = Phase::Sample(node);
                Some(Step::Wait(turn.now + GATE))
            }
            Action::Flow(flow) => self.control(node, flow, turn.now),
            Action::Debug => {
                self.scope.label_sample();
                let variables: Vec<String> = self
                    .scope
                    .all()
                    .iter()
                    .map(|(name, value)| format!("{name}={value}\n"))
                    .collect();
                let answer = Answer {
                    code: "200".to_owned(),
                    message: "OK".to_owned(),
                    body: format!("\nJMeterVariables:\n{}", variables.concat()),
                    ..Answer::default()
                };
                self.finish_plain(node, answer, turn.now, true);
                turn.now = Instant::now();
                None
            }
            Action::Script(script) => {
                self.run_sample(node, script, turn.now);
                turn.now = Instant::now();
                None
            }
            Action::Java(test) => {
                let sleep = self.number(&test.sleep);
                let mask = self.number(&test.mask) as u64;
                let now = super::scope::Scope::now_ms();
                let extra = if mask > 0 { (now & mask) as f64 } else { 0.0 };
                let pause =
                    Duration::try_from_secs_f64((sleep + extra) / 1000.0).unwrap_or_default();
                self.phase = Phase::Slept { node, started: turn.now };
                Some(Step::Wait(turn.now + pause))
            }
        }
    }

    fn finish_java(&mut self, node: NodeId, started: Instant, turn: &mut Turn<'_>) {
        let model = Arc::clone(&self.model);
        let Some(Kind::Sampler(sampler)) = model.nodes.get(node).map(|node| &node.kind) else {
            return;
        };
        let Action::Java(test) = &sampler.action else { return };
        self.scope.label_sample();
        let is_ok = test.status.draw(&mut self.scope).trim().eq_ignore_ascii_case("OK");
        if !test.label.is_empty() {
            self.scope.sampler = test.label.draw(&mut self.scope).as_ref().into();
        }
        let answer = Answer {
            code: test.code.draw(&mut self.scope).into_owned(),
            message: test.message.draw(&mut self.scope).into_owned(),
            body: test.result.draw(&mut self.scope).into_owned(),
            ..Answer::default()
        };
        self.finish_plain(node, answer, started, is_ok);
        turn.now = Instant::now();
    }

    fn control(&mut self, node: NodeId, flow: &Flow, now: Instant) -> Option<Step> {
        match flow {
            Flow::Nothing | Flow::Enter(_) => None,
            Flow::Leave => {
                self.inside.leave();
                None
            }
            Flow::Pause(pause) => {
                let pause =
                    Duration::try_from_secs_f64(self.number(pause) / 1000.0).unwrap_or_default();
                if self.ends_at.is_some_and(|end| now + pause > end) {
                    self.is_ending = true;
                    return None;
                }
                self.due = self.due.map(|due| due + pause);
                self.phase = Phase::Paused;
                Some(Step::Wait(now + pause))
            }
            Flow::StopThread => {
                self.is_ending = true;
                None
            }
            Flow::StopTest => {
                self.stage.crowd.stop();
                self.is_ending = true;
                None
            }
            Flow::NextLoop => {
                self.abandon_iteration(self.squad.root);
                self.phase = Phase::Between;
                None
            }
            Flow::NextPass | Flow::BreakLoop => {
                let is_left = matches!(flow, Flow::BreakLoop);
                if !self.leave_pass(node, is_left) {
                    self.abandon_iteration(self.squad.root);
                    self.phase = Phase::Between;
                    self.is_ending |= is_left;
                }
                None
            }
        }
    }

    /// Does what a failed sample asks for.
    pub(super) fn take_error(&mut self, action: OnError) {
        match action {
            OnError::Continue => {}
            OnError::NextLoop => {
                self.abandon_iteration(self.squad.root);
                self.phase = Phase::Between;
            }
            OnError::StopThread => self.is_ending = true,
            OnError::StopTest => {
                self.stage.crowd.stop();
                self.is_ending = true;
            }
        }
    }
}

impl User for Actor {
    fn next(&mut self, turn: &mut Turn<'_>) -> Step {
        let step = self.advance(turn);
        self.tell(turn);
        step
    }
}
