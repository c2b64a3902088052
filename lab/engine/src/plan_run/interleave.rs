//! Controllers that select one child for each of their iterations, in rotation or at random, as in JMeter: interleave
//! and random controllers.
//!
//! Invariants
//! * A child controller runs as a whole in one iteration, or returns one sampler per iteration, depending on the
//!   element.
//! * A child without a sampler is skipped within the same iteration; the search ends where it began.
//!
//! Not here: the random order controller, which runs all of its children (`walk`).

use std::sync::Arc;

use tympan_lab_plan::PlanNodeId;
use tympan_lab_plan::model::{InterleaveMode, PlanModel, PlanNodeKind};

use super::controller_walk::ControllerWalk;

/// The state of one thread in such a controller.
#[derive(Debug, Clone)]
pub(super) struct InterleaveState {
    /// Indexes of the children that may still return a sampler.
    remaining_children: Vec<usize>,
    /// The index of the next of these.
    next_index: usize,
    /// The child at which the search of this iteration began.
    search_start: Option<usize>,
    /// Set if no other child was tried since then.
    is_at_start: bool,
    /// Set if a child has returned a sampler in this iteration.
    has_yielded: bool,
    /// Set if this iteration returns no more samplers.
    is_over: bool,
}

impl InterleaveState {
    fn new(count: usize) -> Self {
        Self {
            remaining_children: (0..count).collect(),
            next_index: 0,
            search_start: None,
            is_at_start: true,
            has_yielded: false,
            is_over: false,
        }
    }

    /// Ends an iteration; the next one begins with the child after the last.
    pub(super) fn end_iteration(&mut self) {
        self.search_start = None;
        self.is_at_start = true;
        self.has_yielded = false;
        self.is_over = false;
    }
}

impl ControllerWalk<'_> {
    /// Returns the next sampler, from one child per iteration.
    pub(super) fn next_interleaved_sampler(
        &mut self,
        node: PlanNodeId,
        mode: InterleaveMode,
    ) -> Option<PlanNodeId> {
        let model = Arc::clone(&self.thread.model);
        let children = &model.nodes.get(node)?.children;
        let mut choice = match self.controller_state(node).choice.take() {
            Some(choice) => choice,
            None => Box::new(self.start_interleave(children.len(), mode)),
        };
        let sampler = self.search_children(node, mode, &model, &mut choice);
        self.controller_state(node).choice = Some(choice);
        sampler
    }

    fn start_interleave(&mut self, count: usize, mode: InterleaveMode) -> InterleaveState {
        let mut choice = InterleaveState::new(count);
        self.reset_to_first_child(&mut choice, mode);
        if mode.across_threads {
            choice.next_index = (self.thread.scope.thread_number - 1) % count.max(1);
        }
        choice
    }

    fn search_children(
        &mut self,
        node: PlanNodeId,
        mode: InterleaveMode,
        model: &PlanModel,
        choice: &mut InterleaveState,
    ) -> Option<PlanNodeId> {
        let children = &model.nodes.get(node)?.children;
        if !choice.is_over && self.controller_state(node).is_first {
            self.controller_state(node).is_first = false;
            self.counters.fire_iteration_events(node, self.thread);
            if self.thread.is_ending {
                return None;
            }
        }
        // A child that returned nothing although it had just completed.
        let mut barren = None;
        while !choice.is_over && !choice.remaining_children.is_empty() {
            let Some(&child_index) = choice.remaining_children.get(choice.next_index) else {
                self.reset_to_first_child(choice, mode);
                continue;
            };
            if choice.search_start == Some(child_index) && !choice.is_at_start {
                break;
            }
            choice.search_start.get_or_insert(child_index);
            let child = *children.get(child_index)?;
            let kind = &model.nodes.get(child)?.kind;
            if matches!(kind, PlanNodeKind::Sampler(_)) {
                self.advance_to_next_child(choice, mode);
                choice.is_over = true;
                return Some(child);
            }
            if let Some(sampler) = self.next_sampler(child) {
                choice.has_yielded = true;
                if mode.by_controller {
                    choice.search_start = None;
                } else {
                    self.advance_to_next_child(choice, mode);
                    choice.is_over = true;
                }
                return Some(sampler);
            }
            if self.thread.is_ending {
                return None;
            }
            let is_empty = model.nodes.get(child).is_none_or(|child| child.children.is_empty());
            if is_empty
                || self.controller_state(child).is_done && matches!(kind, PlanNodeKind::Loop { .. })
            {
                choice.remaining_children.remove(choice.next_index);
            } else if mode.by_controller || barren == Some(child_index) {
                self.advance_to_next_child(choice, mode);
            } else {
                // Its samplers completed in the previous iteration; it starts again.
                barren = Some(child_index);
            }
        }
        choice.end_iteration();
        self.controller_state(node).is_first = true;
        None
    }

    /// Advances to the next child. A child that returned a sampler has had its iteration.
    fn advance_to_next_child(&mut self, choice: &mut InterleaveState, mode: InterleaveMode) {
        choice.is_over |= choice.has_yielded;
        choice.is_at_start = false;
        choice.next_index += 1;
        if mode.is_random {
            self.reset_to_first_child(choice, mode);
        }
    }

    /// Selects the first child, or a random one.
    fn reset_to_first_child(&mut self, choice: &mut InterleaveState, mode: InterleaveMode) {
        let last = i64::try_from(choice.remaining_children.len()).unwrap_or(1) - 1;
        choice.next_index = if mode.is_random && last > 0 {
            usize::try_from(self.thread.scope.random_between(0, last)).unwrap_or(0)
        } else {
            0
        };
    }
}
