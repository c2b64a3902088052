//! How a thread walks the tree: each controller gives its next sampler until its iteration is over, as in JMeter.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::actor::Actor;
use super::choice::Choice;
use super::data::Drawn;
use super::expression;
use super::model::{Action, Event, Flow, Kind, Model, NodeId};
use super::sample::Ending;
use crate::load::Portion;

/// Where one thread stands in one controller.
#[derive(Debug, Clone)]
pub(super) struct State {
    at: usize,
    pub(super) is_first: bool,
    pub(super) is_done: bool,
    /// A loop that a sampler in it left.
    is_left: bool,
    count: i64,
    executed: i64,
    runs: bool,
    order: Vec<usize>,
    pub(super) choice: Option<Box<Choice>>,
    since: Option<Instant>,
    pub(super) open: Option<Box<Open>>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            at: 0,
            is_first: true,
            is_done: false,
            is_left: false,
            count: 0,
            executed: 0,
            runs: false,
            order: Vec::new(),
            choice: None,
            since: None,
            open: None,
        }
    }
}

/// A transaction under way.
#[derive(Debug, Clone)]
pub(super) struct Open {
    /// The name as it was when the transaction began.
    pub(super) label: Arc<str>,
    pub(super) started: Instant,
    /// Time that does not count.
    pub(super) idle: Duration,
    pub(super) previous_end: Instant,
    /// Samplers that were chosen.
    pub(super) calls: u64,
    /// Samples that ended.
    pub(super) samples: u64,
    pub(super) failed: u64,
    /// What the last sample was answered with, or the first one that failed.
    pub(super) code: String,
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) latency: Duration,
    pub(super) connect: Duration,
    pub(super) children: Duration,
}

/// How far a controller goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Restart {
    /// As if it had never run.
    Whole,
    /// To its next iteration: what comes in turn stays in turn.
    Iteration,
}

/// Passes through a loop without any sampler after which it ends: nothing would ever come.
const EMPTY_PASSES: u32 = 10_000;

impl Actor {
    pub(super) fn state(&mut self, node: NodeId) -> &mut State {
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
                        expression::evaluate(
                            &text,
                            expression::Numbers::JavaScript,
                            &mut self.scope,
                        )
                        .is_ok_and(|value| value.is_true())
                    } else {
                        text.trim().eq_ignore_ascii_case("true")
                    };
                    if !holds {
                        self.reset(node, Restart::Whole);
                        return None;
                    }
                }
                self.pass(node)
            }
            Kind::While(condition) => self.pick_while(node, condition),
            Kind::ForEach { .. } => self.pick_each(node, kind),
            Kind::Throughput { .. } => self.pick_share(node, kind),
            Kind::Interleave(way) => self.pick_one(node, *way),
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
    fn reset(&mut self, node: NodeId, restart: Restart) {
        self.rewind(node);
        let state = self.state(node);
        match (restart, &mut state.choice) {
            (Restart::Whole, choice) => *choice = None,
            (Restart::Iteration, Some(choice)) => choice.end(),
            (Restart::Iteration, None) => {}
        }
        let model = std::sync::Arc::clone(&self.model);
        let Some(node) = model.nodes.get(node) else { return };
        for &child in &node.children {
            if !matches!(
                model.nodes.get(child).map(|node| &node.kind),
                Some(Kind::Sampler(_) | Kind::Once)
            ) {
                self.state(child).count = 0;
                self.reset(child, restart);
            }
        }
    }

    /// Returns the transactions under way, the innermost first.
    fn open_transactions(&self) -> Vec<NodeId> {
        let is_open =
            |node: &NodeId| self.states.get(*node).is_some_and(|state| state.open.is_some());
        (0..self.states.len()).rev().filter(is_open).collect()
    }

    /// Ends the transactions that stand for their samples, because the thread ends in the middle of them. Of others nothing
    /// is told, as in JMeter.
    pub(super) fn end_parents(&mut self) {
        let model = std::sync::Arc::clone(&self.model);
        for node in self.open_transactions() {
            let kind = model.nodes.get(node).map(|node| &node.kind);
            if matches!(kind, Some(Kind::Transaction { is_parent: true, .. })) {
                self.end_transaction(node, Ending::Stopped);
            }
        }
    }

    /// Gives up the iteration of the whole tree, as an error that starts the next loop does.
    pub(super) fn abandon_iteration(&mut self, root: NodeId) {
        for node in self.open_transactions() {
            self.end_transaction(node, Ending::Abandoned);
        }
        self.inside.leave_all();
        self.reset(root, Restart::Iteration);
    }

    /// Gives up the pass of the innermost loop around a sampler, or all of its passes; false if there is no loop but the
    /// thread's own.
    pub(super) fn leave_pass(&mut self, node: NodeId, is_left: bool) -> bool {
        let model = std::sync::Arc::clone(&self.model);
        let mut path = Vec::new();
        if !way_to(&model, self.squad.root, node, &mut path) {
            return false;
        }
        let is_loop = |node: &NodeId| {
            let kind = model.nodes.get(*node).map(|node| &node.kind);
            matches!(kind, Some(Kind::Loop { .. } | Kind::While(_) | Kind::ForEach { .. }))
        };
        // The thread group's own controller stands first.
        let Some(at) = path.iter().rposition(is_loop).filter(|at| *at > 0) else { return false };
        let Some(&found) = path.get(at) else { return false };
        for &inner in path.iter().skip(at + 1).rev() {
            self.end_transaction(inner, Ending::Abandoned);
            if is_section(&model, inner) {
                self.inside.leave();
            }
        }
        self.reset(found, Restart::Iteration);
        let state = self.state(found);
        state.count += 1;
        state.is_left = is_left;
        true
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
            if is_over(self.state(node)) | std::mem::take(&mut self.state(node).is_left) {
                self.state(node).count = 0;
                self.state(node).is_done = only_once;
                self.tell_index(node);
                return None;
            }
            let is_start = self.state(node).is_first && self.state(node).count == 0;
            if is_start {
                self.allow_once(node);
            }
            self.tell_index(node);
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

    /// Gives the variable that holds how many passes of a controller are over, as JMeter names it.
    fn tell_index(&mut self, node: NodeId) {
        if !self.model.has_loop_indexes {
            return;
        }
        let model = std::sync::Arc::clone(&self.model);
        let Some(entry) = model.nodes.get(node) else { return };
        let name = format!("__jm__{}__idx", entry.name.draw(&mut self.scope));
        let count = self.state(node).count.to_string();
        self.scope.set(&name, &count);
    }

    fn pick_while(
        &mut self,
        node: NodeId,
        condition: &super::template::Template,
    ) -> Option<NodeId> {
        for _ in 0..EMPTY_PASSES {
            if std::mem::take(&mut self.state(node).is_left) {
                break;
            }
            self.tell_index(node);
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
        self.tell_index(node);
        None
    }

    fn pick_each(&mut self, node: NodeId, kind: &Kind) -> Option<NodeId> {
        let Kind::ForEach { input, output, from, to, separator } = kind else { return None };
        let input = input.draw(&mut self.scope).into_owned();
        let output = output.draw(&mut self.scope).into_owned();
        let from: i64 = from.draw(&mut self.scope).trim().parse().unwrap_or(0);
        let to: i64 = to.draw(&mut self.scope).trim().parse().unwrap_or(i64::MAX);
        for _ in 0..EMPTY_PASSES {
            if std::mem::take(&mut self.state(node).is_left) {
                break;
            }
            self.tell_index(node);
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
        self.tell_index(node);
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

    /// Evaluates the names of the transactions below a node, as JMeter does once for each thread that starts.
    pub(super) fn draw_transactions(&mut self, node: NodeId) {
        let model = Arc::clone(&self.model);
        let Some(entry) = model.nodes.get(node) else { return };
        if matches!(entry.kind, Kind::Transaction { .. }) && entry.name.as_literal().is_none() {
            entry.name.draw(&mut self.scope);
        }
        for &child in &entry.children {
            self.draw_transactions(child);
        }
    }

    fn pick_transaction(&mut self, node: NodeId) -> Option<NodeId> {
        if self.state(node).is_first && self.state(node).open.is_none() {
            let model = Arc::clone(&self.model);
            let label = model.nodes.get(node)?.name.share(&mut self.scope);
            let now = Instant::now();
            self.state(node).open = Some(Box::new(Open {
                label,
                started: now,
                idle: Duration::ZERO,
                previous_end: now,
                calls: 0,
                samples: 0,
                failed: 0,
                code: String::new(),
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
            None => self.end_transaction(node, Ending::Whole),
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

/// Finds the controllers from `from` down to what holds `node`; false if it is not below.
fn way_to(model: &Model, from: NodeId, node: NodeId, path: &mut Vec<NodeId>) -> bool {
    let Some(entry) = model.nodes.get(from) else { return false };
    path.push(from);
    let is_below = |child: &NodeId| *child == node || way_to(model, *child, node, path);
    if entry.children.iter().any(is_below) {
        return true;
    }
    path.pop();
    false
}

/// Reports whether a controller is a critical section: what enters it stands first.
fn is_section(model: &Model, node: NodeId) -> bool {
    let first = model.nodes.get(node).and_then(|node| node.children.first());
    let Some(Kind::Sampler(first)) =
        first.and_then(|first| model.nodes.get(*first)).map(|node| &node.kind)
    else {
        return false;
    };
    matches!(first.action, Action::Flow(Flow::Enter(_)))
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
