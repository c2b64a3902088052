//! Walks the controller tree of a thread: each controller returns its next sampler until its iteration is over, as in
//! JMeter.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tympan_lab_plan::model::{FlowControlAction, PlanModel, PlanNodeKind, SamplerAction};
use tympan_lab_plan::{LoadPortion, NumberSemantics, PlanNodeId, evaluate_expression};

use super::interleave::InterleaveState;
use super::iteration_event::ThreadCounters;
use super::sample::PlanSampleRecorder;
use super::sample_evaluation::SampleEvaluation;
use super::sample_totals::SampleTotals;
use super::thread_context::ThreadContext;
use super::transaction::{
    EndedTransaction, OpenTransaction, TransactionEnding, TransactionSettings,
};

/// The state of one thread in one controller.
#[derive(Debug, Clone)]
pub(super) struct ControllerState {
    child_index: usize,
    pub(super) is_first: bool,
    pub(super) is_done: bool,
    /// Set if a sampler in the loop has left it.
    is_loop_left: bool,
    pass_count: i64,
    executed_count: i64,
    is_active: bool,
    child_order: Vec<usize>,
    pub(super) choice: Option<Box<InterleaveState>>,
    started: Option<Instant>,
    open_transaction: Option<Box<OpenTransaction>>,
}

impl Default for ControllerState {
    fn default() -> Self {
        Self {
            child_index: 0,
            is_first: true,
            is_done: false,
            is_loop_left: false,
            pass_count: 0,
            executed_count: 0,
            is_active: false,
            child_order: Vec::new(),
            choice: None,
            started: None,
            open_transaction: None,
        }
    }
}

/// The extent of a controller reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RestartScope {
    /// Reset as if it had never run.
    Whole,
    /// Reset to its next iteration; the order of alternation is preserved.
    Iteration,
}

/// Number of loop passes without any sampler after which the loop ends, because it would never produce one.
const MAX_EMPTY_PASSES: u32 = 10_000;

/// The states of one thread in all controllers.
#[derive(Debug, Default)]
pub(super) struct ControllerStates(Vec<ControllerState>);

impl ControllerStates {
    /// Returns the state in a controller.
    pub(super) fn state_of(&mut self, node: PlanNodeId) -> &mut ControllerState {
        if self.0.len() <= node {
            self.0.resize_with(node + 1, ControllerState::default);
        }
        #[expect(clippy::indexing_slicing, reason = "the list was made long enough above")]
        &mut self.0[node]
    }

    /// Adds a sample to the transactions in progress; returns the innermost that replaces it.
    pub(super) fn add_to_transactions(
        &mut self,
        model: &PlanModel,
        sum: &SampleTotals,
        is_ok: bool,
    ) -> Option<PlanNodeId> {
        // Inner transactions have higher numbers.
        let mut innermost = None;
        for (node, state) in self.0.iter_mut().enumerate() {
            let Some(open) = &mut state.open_transaction else { continue };
            let Some(settings) = transaction_settings(model, node) else { continue };
            open.add_sample(sum, is_ok, settings);
            innermost = settings.is_parent.then_some(node).or(innermost);
        }
        innermost
    }

    /// Returns the transactions in progress, the innermost first.
    fn open_transactions(&self) -> Vec<PlanNodeId> {
        let is_open = |node: &PlanNodeId| {
            self.0.get(*node).is_some_and(|state| state.open_transaction.is_some())
        };
        (0..self.0.len()).rev().filter(is_open).collect()
    }

    /// Returns the innermost transaction in progress that replaces its samples.
    fn innermost_parent_transaction(&self, model: &PlanModel) -> Option<PlanNodeId> {
        self.0.iter().enumerate().rposition(|(node, state)| {
            state.open_transaction.is_some()
                && transaction_settings(model, node).is_some_and(|settings| settings.is_parent)
        })
    }
}

/// Walks the controllers of a thread.
#[derive(Debug)]
pub(super) struct ControllerWalk<'a> {
    pub(super) controllers: &'a mut ControllerStates,
    pub(super) counters: &'a mut ThreadCounters,
    pub(super) evaluation: &'a mut SampleEvaluation,
    pub(super) recorder: &'a mut PlanSampleRecorder,
    pub(super) thread: &'a mut ThreadContext,
}

impl ControllerWalk<'_> {
    /// Returns the state of the thread in a controller.
    pub(super) fn controller_state(&mut self, node: PlanNodeId) -> &mut ControllerState {
        self.controllers.state_of(node)
    }

    /// Returns the next sampler of a controller; `None` at the end of its iteration.
    pub(super) fn next_sampler(&mut self, node: PlanNodeId) -> Option<PlanNodeId> {
        let model = Arc::clone(&self.thread.model);
        let kind = &model.nodes.get(node)?.kind;
        match kind {
            PlanNodeKind::Sampler(_) => None,
            PlanNodeKind::Simple => self.next_in_order(node),
            PlanNodeKind::Transaction { .. } => self.next_in_transaction(node),
            PlanNodeKind::Loop { count, only_once } => {
                let pass_limit: i64 =
                    count.evaluate(&mut self.thread.scope).trim().parse().unwrap_or(0);
                self.next_in_loop(node, *only_once, |state| {
                    pass_limit >= 0 && state.pass_count >= pass_limit
                })
            }
            PlanNodeKind::OnceOnly => {
                if self.controller_state(node).is_done {
                    return None;
                }
                let sampler = self.next_in_order(node);
                self.controller_state(node).is_done = sampler.is_none();
                sampler
            }
            PlanNodeKind::If { condition, is_script, evaluates_for_all: every } => {
                if *every || self.controller_state(node).is_first {
                    let text = condition.evaluate(&mut self.thread.scope).into_owned();
                    let holds = if *is_script {
                        evaluate_expression(
                            &text,
                            NumberSemantics::JavaScript,
                            &mut self.thread.scope,
                        )
                        .is_ok_and(|value| value.is_true())
                    } else {
                        text.trim().eq_ignore_ascii_case("true")
                    };
                    if !holds {
                        self.reset_controller(node, RestartScope::Whole);
                        return None;
                    }
                }
                self.next_in_order(node)
            }
            PlanNodeKind::While(condition) => self.next_in_while(node, condition),
            PlanNodeKind::ForEach { .. } => self.next_in_for_each(node, kind),
            PlanNodeKind::Throughput { .. } => self.next_in_throughput(node, kind),
            PlanNodeKind::Interleave(mode) => self.next_interleaved_sampler(node, *mode),
            PlanNodeKind::RandomOrder => {
                if self.controller_state(node).is_first {
                    self.shuffle_children(node);
                }
                self.next_in_order(node)
            }
            PlanNodeKind::Switch(value) => {
                if self.controller_state(node).is_first {
                    let value = value.evaluate(&mut self.thread.scope).into_owned();
                    let at = self.switch_child(node, &value);
                    self.controller_state(node).child_order = at.into_iter().collect();
                    // A switch without a matching child has nothing to walk.
                    self.controller_state(node).is_active = true;
                }
                self.next_in_order(node)
            }
            PlanNodeKind::ScenarioMix { order, meter_index: meter } => {
                if self.controller_state(node).is_first {
                    let turn = model.meters.get(*meter)?.count.fetch_add(1, Ordering::Relaxed);
                    let turn = usize::try_from(turn).unwrap_or(0) % order.len().max(1);
                    self.controller_state(node).child_order =
                        order.get(turn).copied().into_iter().collect();
                    self.controller_state(node).is_active = true;
                }
                self.next_in_order(node)
            }
            PlanNodeKind::Runtime(seconds) => {
                let most: f64 =
                    seconds.evaluate(&mut self.thread.scope).trim().parse().unwrap_or(0.0);
                let most = Duration::try_from_secs_f64(most).unwrap_or_default();
                let since = *self.controller_state(node).started.get_or_insert_with(Instant::now);
                let sampler = self.next_in_loop(node, false, |_| since.elapsed() >= most);
                if sampler.is_none() {
                    self.controller_state(node).started = None;
                }
                sampler
            }
        }
    }

    /// Walks the children once, in order.
    fn next_in_order(&mut self, node: PlanNodeId) -> Option<PlanNodeId> {
        if self.controller_state(node).is_first {
            self.controller_state(node).is_first = false;
            self.counters.fire_iteration_events(node, self.thread);
            if self.thread.is_ending {
                return None;
            }
        }
        let model = Arc::clone(&self.thread.model);
        loop {
            let state = self.controller_state(node);
            let at = state.child_index;
            let position = if state.is_active || !state.child_order.is_empty() {
                state.child_order.get(at).copied()
            } else {
                Some(at)
            };
            let child = position
                .and_then(|position| model.nodes.get(node)?.children.get(position).copied());
            let Some(child) = child else {
                self.rewind_controller(node);
                return None;
            };
            if matches!(
                model.nodes.get(child).map(|node| &node.kind),
                Some(PlanNodeKind::Sampler(_))
            ) {
                self.controller_state(node).child_index += 1;
                return Some(child);
            }
            if let Some(sampler) = self.next_sampler(child) {
                return Some(sampler);
            }
            if self.thread.is_ending {
                return None;
            }
            self.controller_state(node).child_index += 1;
        }
    }

    fn rewind_controller(&mut self, node: PlanNodeId) {
        let state = self.controller_state(node);
        state.child_index = 0;
        state.is_first = true;
    }

    /// Resets a controller and its subtree.
    fn reset_controller(&mut self, node: PlanNodeId, restart: RestartScope) {
        self.rewind_controller(node);
        let state = self.controller_state(node);
        match (restart, &mut state.choice) {
            (RestartScope::Whole, choice) => *choice = None,
            (RestartScope::Iteration, Some(choice)) => choice.end_iteration(),
            (RestartScope::Iteration, None) => {}
        }
        let model = Arc::clone(&self.thread.model);
        let Some(node) = model.nodes.get(node) else { return };
        for &child in &node.children {
            if !matches!(
                model.nodes.get(child).map(|node| &node.kind),
                Some(PlanNodeKind::Sampler(_) | PlanNodeKind::OnceOnly)
            ) {
                self.controller_state(child).pass_count = 0;
                self.reset_controller(child, restart);
            }
        }
    }

    /// Ends the transactions that replace their samples, because the thread ends within them. Other transactions are
    /// not reported, as in JMeter.
    pub(super) fn end_parent_transactions(&mut self) {
        let model = Arc::clone(&self.thread.model);
        for node in self.controllers.open_transactions() {
            if transaction_settings(&model, node).is_some_and(|settings| settings.is_parent) {
                self.end_transaction(node, TransactionEnding::Stopped);
            }
        }
    }

    /// Abandons the iteration of the whole tree, as after an error with the action to start the next loop.
    pub(super) fn abandon_iteration(&mut self, root: PlanNodeId) {
        for node in self.controllers.open_transactions() {
            self.end_transaction(node, TransactionEnding::Abandoned);
        }
        self.thread.critical_sections.leave_all();
        self.reset_controller(root, RestartScope::Iteration);
    }

    /// Abandons the pass of the innermost loop around a sampler, or all of its passes; returns false if there is only
    /// the thread's own loop.
    pub(super) fn leave_loop_pass(&mut self, node: PlanNodeId, is_left: bool) -> bool {
        let model = Arc::clone(&self.thread.model);
        let mut path = Vec::new();
        if !find_controller_path(&model, self.thread.group_state.root_node, node, &mut path) {
            return false;
        }
        let is_loop = |node: &PlanNodeId| {
            let kind = model.nodes.get(*node).map(|node| &node.kind);
            matches!(
                kind,
                Some(
                    PlanNodeKind::Loop { .. }
                        | PlanNodeKind::While(_)
                        | PlanNodeKind::ForEach { .. }
                )
            )
        };
        // The thread group's own controller comes first.
        let Some(at) = path.iter().rposition(is_loop).filter(|at| *at > 0) else { return false };
        let Some(&loop_node) = path.get(at) else { return false };
        for &inner in path.iter().skip(at + 1).rev() {
            self.end_transaction(inner, TransactionEnding::Abandoned);
            if is_critical_section(&model, inner) {
                self.thread.critical_sections.leave();
            }
        }
        self.reset_controller(loop_node, RestartScope::Iteration);
        let state = self.controller_state(loop_node);
        state.pass_count += 1;
        state.is_loop_left = is_left;
        true
    }

    fn next_in_loop(
        &mut self,
        node: PlanNodeId,
        only_once: bool,
        is_over: impl Fn(&ControllerState) -> bool,
    ) -> Option<PlanNodeId> {
        if self.controller_state(node).is_done {
            return None;
        }
        for _ in 0..MAX_EMPTY_PASSES {
            if is_over(self.controller_state(node))
                | std::mem::take(&mut self.controller_state(node).is_loop_left)
            {
                self.controller_state(node).pass_count = 0;
                self.controller_state(node).is_done = only_once;
                self.set_index_variable(node);
                return None;
            }
            let is_start =
                self.controller_state(node).is_first && self.controller_state(node).pass_count == 0;
            if is_start {
                self.reset_once_only(node);
            }
            self.set_index_variable(node);
            if let Some(sampler) = self.next_in_order(node) {
                return Some(sampler);
            }
            if self.thread.is_ending {
                return None;
            }
            self.controller_state(node).pass_count += 1;
        }
        self.controller_state(node).pass_count = 0;
        None
    }

    /// Resets the once-only controllers of a loop that starts again.
    fn reset_once_only(&mut self, node: PlanNodeId) {
        let model = Arc::clone(&self.thread.model);
        let Some(node) = model.nodes.get(node) else { return };
        for &child in &node.children {
            if matches!(model.nodes.get(child).map(|node| &node.kind), Some(PlanNodeKind::OnceOnly))
            {
                self.controller_state(child).is_done = false;
                self.rewind_controller(child);
            }
        }
    }

    /// Sets the variable with the number of completed passes of a controller, under JMeter's name.
    fn set_index_variable(&mut self, node: PlanNodeId) {
        if !self.thread.model.has_loop_indexes {
            return;
        }
        let model = Arc::clone(&self.thread.model);
        let Some(entry) = model.nodes.get(node) else { return };
        let name = format!("__jm__{}__idx", entry.name.evaluate(&mut self.thread.scope));
        let count = self.controller_state(node).pass_count.to_string();
        self.thread.scope.set_variable(&name, &count);
    }

    fn next_in_while(
        &mut self,
        node: PlanNodeId,
        condition: &tympan_lab_plan::TextTemplate,
    ) -> Option<PlanNodeId> {
        for _ in 0..MAX_EMPTY_PASSES {
            if std::mem::take(&mut self.controller_state(node).is_loop_left) {
                break;
            }
            self.set_index_variable(node);
            if self.controller_state(node).is_first {
                let at_end = self.controller_state(node).pass_count > 0;
                let text = condition.evaluate(&mut self.thread.scope).trim().to_owned();
                let is_over = if text.eq_ignore_ascii_case("LAST") || (text.is_empty() && at_end) {
                    !self.evaluation.last_sample_ok()
                } else {
                    text.eq_ignore_ascii_case("false")
                };
                if is_over {
                    break;
                }
            }
            if let Some(sampler) = self.next_in_order(node) {
                return Some(sampler);
            }
            if self.thread.is_ending {
                return None;
            }
            self.controller_state(node).pass_count += 1;
        }
        self.controller_state(node).pass_count = 0;
        self.set_index_variable(node);
        None
    }

    fn next_in_for_each(&mut self, node: PlanNodeId, kind: &PlanNodeKind) -> Option<PlanNodeId> {
        let PlanNodeKind::ForEach {
            input_prefix: input,
            output_variable: output,
            start_index: from,
            end_index: to,
            has_separator: separator,
        } = kind
        else {
            return None;
        };
        let input = input.evaluate(&mut self.thread.scope).into_owned();
        let output = output.evaluate(&mut self.thread.scope).into_owned();
        let from: i64 = from.evaluate(&mut self.thread.scope).trim().parse().unwrap_or(0);
        let to: i64 = to.evaluate(&mut self.thread.scope).trim().parse().unwrap_or(i64::MAX);
        for _ in 0..MAX_EMPTY_PASSES {
            if std::mem::take(&mut self.controller_state(node).is_loop_left) {
                break;
            }
            self.set_index_variable(node);
            let index = from + self.controller_state(node).pass_count;
            let dash = if *separator { "_" } else { "" };
            let value = self
                .thread
                .scope
                .variable(&format!("{input}{dash}{}", index + 1))
                .map(str::to_owned);
            let Some(value) = value.filter(|_| index < to) else { break };
            if self.controller_state(node).is_first {
                self.thread.scope.set_variable(&output, &value);
            }
            if let Some(sampler) = self.next_in_order(node) {
                return Some(sampler);
            }
            if self.thread.is_ending {
                return None;
            }
            self.controller_state(node).pass_count += 1;
        }
        self.controller_state(node).pass_count = 0;
        self.set_index_variable(node);
        None
    }

    fn next_in_throughput(&mut self, node: PlanNodeId, kind: &PlanNodeKind) -> Option<PlanNodeId> {
        let PlanNodeKind::Throughput { is_percent, value, per_user, meter_index: meter } = kind
        else {
            return None;
        };
        if self.controller_state(node).is_first {
            let value: f64 = value.evaluate(&mut self.thread.scope).trim().parse().unwrap_or(0.0);
            // The total limit for all users is divided among the processes that run them.
            let portion = if *per_user {
                LoadPortion::default()
            } else {
                self.thread.scope.run_context.portion
            };
            let most = portion.share_of(value.max(0.0).ceil() as u64) as i64;
            let decide = |executed: i64, iteration: i64| {
                if *is_percent {
                    (100.0 * executed as f64 + 50.0) / (iteration as f64 + 1.0) < value
                } else {
                    executed < most
                }
            };
            let runs = if *per_user {
                let state = self.controller_state(node);
                let runs = decide(state.executed_count, state.pass_count);
                state.pass_count += 1;
                state.executed_count += i64::from(runs);
                runs
            } else {
                let model = Arc::clone(&self.thread.model);
                let meter = model.meters.get(*meter)?;
                // Both counts must change together.
                let _held = meter.last_due.lock();
                let iteration = meter.count.fetch_add(1, Ordering::Relaxed);
                let runs = decide(meter.executed.load(Ordering::Relaxed), iteration);
                meter.executed.fetch_add(i64::from(runs), Ordering::Relaxed);
                runs
            };
            if !runs {
                return None;
            }
        }
        self.next_in_order(node)
    }

    fn shuffle_children(&mut self, node: PlanNodeId) {
        let count = self.thread.model.nodes.get(node).map_or(0, |node| node.children.len());
        let mut order: Vec<usize> = (0..count).collect();
        for at in (1..order.len()).rev() {
            let swap_index = self.thread.scope.random_between(0, i64::try_from(at).unwrap_or(0));
            order.swap(at, usize::try_from(swap_index).unwrap_or(0));
        }
        self.controller_state(node).child_order = order;
    }

    /// Returns the index of the child that a switch selects: by number, otherwise by name, otherwise the one named
    /// `default`.
    fn switch_child(&mut self, node: PlanNodeId, value: &str) -> Option<usize> {
        let model = Arc::clone(&self.thread.model);
        let children = &model.nodes.get(node)?.children;
        let value = value.trim();
        if value.is_empty() {
            return Some(0);
        }
        if let Ok(number) = value.parse::<usize>() {
            return Some(if number < children.len() { number } else { 0 });
        }
        let mut named = |target_name: &str| {
            children.iter().position(|&child| {
                let name = model
                    .nodes
                    .get(child)
                    .map(|node| node.name.evaluate(&mut self.thread.scope).into_owned());
                name.as_deref() == Some(target_name)
            })
        };
        named(value).or_else(|| named("default"))
    }

    /// Evaluates the names of the transactions below a node, as JMeter does once per started thread.
    pub(super) fn evaluate_transaction_names(&mut self, node: PlanNodeId) {
        let model = Arc::clone(&self.thread.model);
        let Some(entry) = model.nodes.get(node) else { return };
        if matches!(entry.kind, PlanNodeKind::Transaction { .. })
            && entry.name.as_literal().is_none()
        {
            entry.name.evaluate(&mut self.thread.scope);
        }
        for &child in &entry.children {
            self.evaluate_transaction_names(child);
        }
    }

    fn next_in_transaction(&mut self, node: PlanNodeId) -> Option<PlanNodeId> {
        if self.controller_state(node).is_first
            && self.controller_state(node).open_transaction.is_none()
        {
            let model = Arc::clone(&self.thread.model);
            let label = model.nodes.get(node)?.name.evaluate_shared(&mut self.thread.scope);
            self.controller_state(node).open_transaction =
                Some(Box::new(OpenTransaction::begin(label, Instant::now())));
        }
        let sampler = self.next_in_order(node);
        if self.thread.is_ending {
            return None;
        }
        match sampler {
            Some(_) => {
                if let Some(open) = &mut self.controller_state(node).open_transaction {
                    open.sampler_calls += 1;
                }
            }
            None => self.end_transaction(node, TransactionEnding::Completed),
        }
        sampler
    }

    /// Ends a transaction and records its sample.
    fn end_transaction(&mut self, node: PlanNodeId, ending: TransactionEnding) {
        let model = Arc::clone(&self.thread.model);
        let Some(settings) = transaction_settings(&model, node) else { return };
        let Some(open) = self.controller_state(node).open_transaction.take() else { return };
        if open.sampler_calls == 0 {
            return;
        }
        let around = self.controllers.innermost_parent_transaction(&model);
        let ended = EndedTransaction { node, settings, open: *open, ending, around };
        self.recorder.record_transaction(ended, self.evaluation, self.thread);
    }
}

/// Returns the settings of a controller that is a transaction.
fn transaction_settings(model: &PlanModel, node: PlanNodeId) -> Option<TransactionSettings<'_>> {
    match &model.nodes.get(node)?.kind {
        PlanNodeKind::Transaction { is_parent, includes_timers, assertions } => {
            Some(TransactionSettings {
                is_parent: *is_parent,
                includes_timers: *includes_timers,
                assertions,
            })
        }
        _ => None,
    }
}

/// Finds the controllers from `from` down to the parent of `node`; returns false if it is not below.
fn find_controller_path(
    model: &PlanModel,
    from: PlanNodeId,
    node: PlanNodeId,
    path: &mut Vec<PlanNodeId>,
) -> bool {
    let Some(entry) = model.nodes.get(from) else { return false };
    path.push(from);
    let is_below =
        |child: &PlanNodeId| *child == node || find_controller_path(model, *child, node, path);
    if entry.children.iter().any(is_below) {
        return true;
    }
    path.pop();
    false
}

/// Returns true if a controller is a critical section: its first child enters the section.
fn is_critical_section(model: &PlanModel, node: PlanNodeId) -> bool {
    let first = model.nodes.get(node).and_then(|node| node.children.first());
    let Some(PlanNodeKind::Sampler(first)) =
        first.and_then(|first| model.nodes.get(*first)).map(|node| &node.kind)
    else {
        return false;
    };
    matches!(first.action, SamplerAction::FlowControl(FlowControlAction::EnterSection(_)))
}
