//! How a thread walks the tree: each controller gives its next sampler until its iteration is over, as in JMeter.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::actor::Actor;
use super::data::Drawn;
use super::expression;
use super::model::{Event, Kind, NodeId};
use crate::load::Portion;

/// Where one thread stands in one controller.
#[derive(Debug, Clone)]
pub(super) struct State {
    at: usize,
    is_first: bool,
    is_done: bool,
    count: i64,
    executed: i64,
    runs: bool,
    skips: bool,
    order: Vec<usize>,
    since: Option<Instant>,
    pub(super) open: Option<Box<Open>>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            at: 0,
            is_first: true,
            is_done: false,
            count: 0,
            executed: 0,
            runs: false,
            skips: false,
            order: Vec::new(),
            since: None,
            open: None,
        }
    }
}

/// A transaction under way.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) started: Instant,
    /// Time that does not count.
    pub(super) idle: Duration,
    pub(super) previous_end: Instant,
    pub(super) calls: u64,
    pub(super) failed: u64,
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) latency: Duration,
    pub(super) connect: Duration,
    pub(super) children: Duration,
}

/// Passes through a loop without any sampler after which it ends: nothing would ever come.
const EMPTY_PASSES: u32 = 10_000;

impl Actor {
    fn state(&mut self, node: NodeId) -> &mut State {
        if self.states.len() <= node {
            self.states.resize_with(node + 1, State::default);
        }
        #[expect(clippy::indexing_slicing, reason = "the list was made long enough above")]
        &mut self.states[node]
    }

    /// Returns the next sampler of a controller; `None` when its iteration is over.
    pub(super) fn pick(&mut self, node: NodeId) -> Option<NodeId> {
        let model = std::sync::Arc::clone(&self.model);
        let kind = &model.nodes.get(node)?.kind;
        match kind {
            Kind::Sampler(_) => None,
            Kind::Simple => self.pass(node),
            Kind::Transaction { .. } => self.pick_transaction(node),
            Kind::Loop { count, only_once } => {
                let wanted: i64 = count.draw(&mut self.scope).trim().parse().unwrap_or(0);
                self.pick_loop(node, *only_once, |state| wanted >= 0 && state.count >= wanted)
            }
            Kind::Once => {
                if self.state(node).is_done {
                    return None;
                }
                let found = self.pass(node);
                self.state(node).is_done = found.is_none();
                found
            }
            Kind::If { condition, is_script, every } => {
                if *every || self.state(node).is_first {
                    let text = condition.draw(&mut self.scope).into_owned();
                    let holds = if *is_script {
                        expression::evaluate(&text, &mut self.scope)
                            .is_ok_and(|value| value.is_true())
                    } else {
                        text.trim().eq_ignore_ascii_case("true")
                    };
                    if !holds {
                        self.reset(node);
                        return None;
                    }
                }
                self.pass(node)
            }
            Kind::While(condition) => self.pick_while(node, condition),
            Kind::ForEach { .. } => self.pick_each(node, kind),
            Kind::Throughput { .. } => self.pick_share(node, kind),
            Kind::Random => self.pick_one(node, false, true),
            Kind::Interleave { by_controller } => self.pick_one(node, *by_controller, false),
            Kind::RandomOrder => {
                if self.state(node).is_first {
                    self.shuffle(node);
                }
                self.pass(node)
            }
            Kind::Switch(value) => {
                if self.state(node).is_first {
                    let value = value.draw(&mut self.scope).into_owned();
                    let at = self.choose(node, &value);
                    self.state(node).order = at.into_iter().collect();
                    // A choice that fits nothing leaves nothing to walk.
                    self.state(node).runs = true;
                }
                self.pass(node)
            }
            Kind::Mix { order, meter } => {
                if self.state(node).is_first {
                    let turn = model.meters.get(*meter)?.count.fetch_add(1, Ordering::Relaxed);
                    let turn = usize::try_from(turn).unwrap_or(0) % order.len().max(1);
                    self.state(node).order = order.get(turn).copied().into_iter().collect();
                    self.state(node).runs = true;
                }
                self.pass(node)
            }
            Kind::Runtime(seconds) => {
                let most: f64 = seconds.draw(&mut self.scope).trim().parse().unwrap_or(0.0);
                let most = Duration::try_from_secs_f64(most).unwrap_or_default();
                let since = *self.state(node).since.get_or_insert_with(Instant::now);
                let found = self.pick_loop(node, false, |_| since.elapsed() >= most);
                if found.is_none() {
                    self.state(node).since = None;
                }
                found
            }
        }
    }

    /// Walks the children once, in order.
    pub(super) fn pass(&mut self, node: NodeId) -> Option<NodeId> {
        if self.state(node).is_first {
            self.state(node).is_first = false;
            self.fire(node);
            if self.is_ending {
                return None;
            }
        }
        let model = std::sync::Arc::clone(&self.model);
        loop {
            let state = self.state(node);
            let at = state.at;
            let place = if state.runs || !state.order.is_empty() {
                state.order.get(at).copied()
            } else {
                Some(at)
            };
            let child = place.and_then(|place| model.nodes.get(node)?.children.get(place).copied());
            let Some(child) = child else {
                self.rewind(node);
                return None;
            };
            if matches!(model.nodes.get(child).map(|node| &node.kind), Some(Kind::Sampler(_))) {
                self.state(node).at += 1;
                return Some(child);
            }
            if let Some(found) = self.pick(child) {
                return Some(found);
            }
            if self.is_ending {
                return None;
            }
            self.state(node).at += 1;
        }
    }

    fn rewind(&mut self, node: NodeId) {
        let state = self.state(node);
        state.at = 0;
        state.is_first = true;
    }

    /// Puts a controller and everything below it back to its beginning.
    fn reset(&mut self, node: NodeId) {
        self.rewind(node);
        let model = std::sync::Arc::clone(&self.model);
        let Some(node) = model.nodes.get(node) else { return };
        for &child in &node.children {
            if !matches!(
                model.nodes.get(child).map(|node| &node.kind),
                Some(Kind::Sampler(_) | Kind::Once)
            ) {
                self.state(child).count = 0;
                self.reset(child);
            }
        }
    }

    /// Gives up the iteration of the whole tree, as an error that starts the next loop does.
    pub(super) fn abandon_iteration(&mut self, root: NodeId) {
        let open: Vec<NodeId> = (0..self.states.len())
            .rev()
            .filter(|&node| self.states.get(node).is_some_and(|state| state.open.is_some()))
            .collect();
        for node in open {
            self.end_transaction(node);
        }
        self.inside.leave_all();
        self.reset(root);
    }

    fn pick_loop(
        &mut self,
        node: NodeId,
        only_once: bool,
        is_over: impl Fn(&State) -> bool,
    ) -> Option<NodeId> {
        if self.state(node).is_done {
            return None;
        }
        for _ in 0..EMPTY_PASSES {
            if is_over(self.state(node)) {
                self.state(node).count = 0;
                self.state(node).is_done = only_once;
                return None;
            }
            let is_start = self.state(node).is_first && self.state(node).count == 0;
            if is_start {
                self.allow_once(node);
            }
            if let Some(found) = self.pass(node) {
                return Some(found);
            }
            if self.is_ending {
                return None;
            }
            self.state(node).count += 1;
        }
        self.state(node).count = 0;
        None
    }

    /// Lets the once-only controllers of a loop that begins anew run again.
    fn allow_once(&mut self, node: NodeId) {
        let model = std::sync::Arc::clone(&self.model);
        let Some(node) = model.nodes.get(node) else { return };
        for &child in &node.children {
            if matches!(model.nodes.get(child).map(|node| &node.kind), Some(Kind::Once)) {
                self.state(child).is_done = false;
                self.rewind(child);
            }
        }
    }

    fn pick_while(
        &mut self,
        node: NodeId,
        condition: &super::template::Template,
    ) -> Option<NodeId> {
        for _ in 0..EMPTY_PASSES {
            if self.state(node).is_first {
                let at_end = self.state(node).count > 0;
                let text = condition.draw(&mut self.scope).trim().to_owned();
                let is_over = if text.eq_ignore_ascii_case("LAST") || (text.is_empty() && at_end) {
                    !self.last_ok
                } else {
                    text.eq_ignore_ascii_case("false")
                };
                if is_over {
                    break;
                }
            }
            if let Some(found) = self.pass(node) {
                return Some(found);
            }
            if self.is_ending {
                return None;
            }
            self.state(node).count += 1;
        }
        self.state(node).count = 0;
        None
    }

    fn pick_each(&mut self, node: NodeId, kind: &Kind) -> Option<NodeId> {
        let Kind::ForEach { input, output, from, to, separator } = kind else { return None };
        let input = input.draw(&mut self.scope).into_owned();
        let output = output.draw(&mut self.scope).into_owned();
        let from: i64 = from.draw(&mut self.scope).trim().parse().unwrap_or(0);
        let to: i64 = to.draw(&mut self.scope).trim().parse().unwrap_or(i64::MAX);
        for _ in 0..EMPTY_PASSES {
            let index = from + self.state(node).count;
            let dash = if *separator { "_" } else { "" };
            let value =
                self.scope.variable(&format!("{input}{dash}{}", index + 1)).map(str::to_owned);
            let Some(value) = value.filter(|_| index < to) else { break };
            if self.state(node).is_first {
                self.scope.set(&output, &value);
            }
            if let Some(found) = self.pass(node) {
                return Some(found);
            }
            if self.is_ending {
                return None;
            }
            self.state(node).count += 1;
        }
        self.state(node).count = 0;
        None
    }

    fn pick_share(&mut self, node: NodeId, kind: &Kind) -> Option<NodeId> {
        let Kind::Throughput { is_percent, value, per_user, meter } = kind else { return None };
        if self.state(node).is_first {
            let value: f64 = value.draw(&mut self.scope).trim().parse().unwrap_or(0.0);
            // What all users together may do is divided among the processes that run them.
            let portion = if *per_user { Portion::default() } else { self.scope.world.portion };
            let most = portion.of(value.max(0.0).ceil() as u64) as i64;
            let decide = |executed: i64, iteration: i64| {
                if *is_percent {
                    (100.0 * executed as f64 + 50.0) / (iteration as f64 + 1.0) < value
                } else {
                    executed < most
                }
            };
            let runs = if *per_user {
                let state = self.state(node);
                let runs = decide(state.executed, state.count);
                state.count += 1;
                state.executed += i64::from(runs);
                runs
            } else {
                let model = std::sync::Arc::clone(&self.model);
                let meter = model.meters.get(*meter)?;
                // Both counts change together.
                let _held = meter.last.lock();
                let iteration = meter.count.fetch_add(1, Ordering::Relaxed);
                let runs = decide(meter.executed.load(Ordering::Relaxed), iteration);
                meter.executed.fetch_add(i64::from(runs), Ordering::Relaxed);
                runs
            };
            if !runs {
                return None;
            }
        }
        self.pass(node)
    }

    /// Gives one child per iteration: in turn, or at random.
    fn pick_one(&mut self, node: NodeId, by_controller: bool, is_random: bool) -> Option<NodeId> {
        let model = std::sync::Arc::clone(&self.model);
        let children = &model.nodes.get(node)?.children;
        if self.state(node).skips {
            self.state(node).skips = false;
            self.state(node).is_first = true;
            return None;
        }
        if self.state(node).is_first {
            self.state(node).is_first = false;
            self.fire(node);
            if is_random && !children.is_empty() {
                let last = i64::try_from(children.len()).unwrap_or(1) - 1;
                let at = usize::try_from(self.scope.random_between(0, last)).unwrap_or(0);
                self.state(node).at = at;
            }
        }
        for _ in 0..children.len() {
            let at = self.state(node).at % children.len().max(1);
            let child = children.get(at).copied()?;
            if matches!(model.nodes.get(child).map(|node| &node.kind), Some(Kind::Sampler(_))) {
                self.state(node).at = at + 1;
                self.state(node).skips = true;
                return Some(child);
            }
            if let Some(found) = self.pick(child) {
                if by_controller {
                    self.state(node).runs = true;
                } else {
                    self.state(node).at = at + 1;
                    self.state(node).skips = true;
                }
                return Some(found);
            }
            self.state(node).at = at + 1;
            if by_controller && std::mem::take(&mut self.state(node).runs) {
                break;
            }
        }
        self.state(node).is_first = true;
        None
    }

    fn shuffle(&mut self, node: NodeId) {
        let count = self.model.nodes.get(node).map_or(0, |node| node.children.len());
        let mut order: Vec<usize> = (0..count).collect();
        for at in (1..order.len()).rev() {
            let other = self.scope.random_between(0, i64::try_from(at).unwrap_or(0));
            order.swap(at, usize::try_from(other).unwrap_or(0));
        }
        self.state(node).order = order;
    }

    /// Returns which child a switch chooses: by number, else by name, else the one named `default`.
    fn choose(&mut self, node: NodeId, value: &str) -> Option<usize> {
        let model = std::sync::Arc::clone(&self.model);
        let children = &model.nodes.get(node)?.children;
        let value = value.trim();
        if value.is_empty() {
            return Some(0);
        }
        if let Ok(number) = value.parse::<usize>() {
            return Some(if number < children.len() { number } else { 0 });
        }
        let mut named = |wanted: &str| {
            children.iter().position(|&child| {
                let name =
                    model.nodes.get(child).map(|node| node.name.draw(&mut self.scope).into_owned());
                name.as_deref() == Some(wanted)
            })
        };
        named(value).or_else(|| named("default"))
    }

    fn pick_transaction(&mut self, node: NodeId) -> Option<NodeId> {
        if self.state(node).is_first && self.state(node).open.is_none() {
            let now = Instant::now();
            self.state(node).open = Some(Box::new(Open {
                started: now,
                idle: Duration::ZERO,
                previous_end: now,
                calls: 0,
                failed: 0,
                received: 0,
                sent: 0,
                latency: Duration::ZERO,
                connect: Duration::ZERO,
                children: Duration::ZERO,
            }));
        }
        let found = self.pass(node);
        if self.is_ending {
            return None;
        }
        match found {
            Some(_) => {
                if let Some(open) = &mut self.state(node).open {
                    open.calls += 1;
                }
            }
            None => self.end_transaction(node),
        }
        found
    }

    /// Does what happens when an iteration of a controller begins.
    pub(super) fn fire(&mut self, node: NodeId) {
        let model = std::sync::Arc::clone(&self.model);
        let Some(node) = model.nodes.get(node) else { return };
        for event in &node.events {
            match *event {
                Event::Data(place) => {
                    let Some(data) = model.data.get(place) else { continue };
                    match data.draw(&mut self.scope) {
                        Drawn::Row => {}
                        Drawn::Stop => self.is_ending = true,
                        Drawn::Broken(fault) => {
                            self.world_fault(&fault);
                            self.is_ending = true;
                        }
                    }
                }
                Event::Count(place) => self.step_counter(place),
                Event::Random(place) => {
                    let Some(variable) = model.randoms.get(place) else { continue };
                    let low = variable.low.draw(&mut self.scope).trim().parse().unwrap_or(0);
                    let high = variable.high.draw(&mut self.scope).trim().parse().unwrap_or(low);
                    let value = self.scope.random_between(low, high);
                    let format = variable.format.draw(&mut self.scope).into_owned();
                    let name = variable.name.draw(&mut self.scope).into_owned();
                    self.scope.set(&name, &decimal(&format, value));
                }
                Event::Parameters(place) => self.set_parameters(place),
            }
        }
    }

    pub(super) fn set_parameters(&mut self, place: usize) {
        let model = std::sync::Arc::clone(&self.model);
        let Some(parameters) = model.parameters.get(place) else { return };
        if parameters.users.is_empty() {
            return;
        }
        let user = (self.scope.thread - 1) % parameters.users.len();
        let Some(values) = parameters.users.get(user) else { return };
        for (name, value) in parameters.names.iter().zip(values) {
            let name = name.draw(&mut self.scope).into_owned();
            let value = value.draw(&mut self.scope).into_owned();
            self.scope.set(&name, &value);
        }
    }

    fn step_counter(&mut self, place: usize) {
        let model = std::sync::Arc::clone(&self.model);
        let Some(counter) = model.counters.get(place) else { return };
        let mut number = |template: &super::template::Template| -> Option<i64> {
            template.draw(&mut self.scope).trim().parse().ok()
        };
        let start = number(&counter.start).unwrap_or(0);
        let step = number(&counter.step).unwrap_or(1);
        let end = number(&counter.end).unwrap_or(i64::MAX);
        let advance = |known: Option<i64>| match known {
            None => start,
            Some(value) if value.saturating_add(step) > end => start,
            Some(value) => value.saturating_add(step),
        };
        let value = if counter.per_user {
            let resets = counter.resets && self.scope.iteration != self.counter_iteration(place);
            let known =
                if resets { None } else { self.counters.get(&place).map(|(value, _)| *value) };
            let value = advance(known);
            self.counters.insert(place, (value, self.scope.iteration));
            value
        } else {
            let mut shared =
                counter.shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // Each process that runs some of the users takes every so many of the counts.
            let portion = self.scope.world.portion;
            let turns = if shared.is_none() { portion.index + 1 } else { portion.count };
            let mut value = start;
            for _ in 0..turns {
                value = advance(*shared);
                *shared = Some(value);
            }
            value
        };
        let format = counter.format.draw(&mut self.scope).into_owned();
        let name = counter.name.draw(&mut self.scope).into_owned();
        self.scope.set(&name, &decimal(&format, value));
    }

    fn counter_iteration(&self, place: usize) -> u64 {
        self.counters.get(&place).map_or(0, |(_, iteration)| *iteration)
    }
}

/// Formats as Java's `DecimalFormat` does where plans use it: zeros for digits that are always shown, between texts.
fn decimal(format: &str, value: i64) -> String {
    let Some(from) = format.find(['0', '#']) else {
        return if format.is_empty() { value.to_string() } else { format!("{format}{value}") };
    };
    let rest = format.get(from..).unwrap_or_default();
    let length = rest.find(|c| !matches!(c, '0' | '#')).unwrap_or(rest.len());
    let (digits, suffix) = rest.split_at(length);
    let width = digits.bytes().filter(|&byte| byte == b'0').count();
    let prefix = format.get(..from).unwrap_or_default();
    format!("{prefix}{value:0width$}{suffix}")
}
