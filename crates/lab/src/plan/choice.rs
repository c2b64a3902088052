//! Controllers that choose one child for each of their iterations, in turn or at random, as JMeter's do: interleave and
//! random.
//!
//! Invariants
//! * A child that is a controller runs as a whole in one iteration, or gives one sampler in each, as its element says.
//! * A child that gives nothing is passed over within the same iteration; the search ends where it began.
//!
//! Not here: the random order controller, which runs all of its children (`walk`).

use std::sync::Arc;

use super::actor::Actor;
use super::model::{Interleave, Kind, Model, NodeId};

/// Where one thread stands among the children of such a controller.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    /// Places of the children that may still give something.
    left: Vec<usize>,
    /// Which of these is next.
    at: usize,
    /// The child at which the search of this iteration began.
    start: Option<usize>,
    /// No other child was looked at since then.
    is_at_start: bool,
    /// A child has given a sampler in this iteration.
    has_given: bool,
    /// Nothing more comes in this iteration.
    is_over: bool,
}

impl Choice {
    fn new(count: usize) -> Self {
        Self {
            left: (0..count).collect(),
            at: 0,
            start: None,
            is_at_start: true,
            has_given: false,
            is_over: false,
        }
    }

    /// Ends an iteration; the next one begins with the child behind the last.
    pub(super) fn end(&mut self) {
        self.start = None;
        self.is_at_start = true;
        self.has_given = false;
        self.is_over = false;
    }
}

impl Actor {
    /// Gives the next sampler of one child per iteration.
    pub(super) fn pick_one(&mut self, node: NodeId, way: Interleave) -> Option<NodeId> {
        let model = Arc::clone(&self.model);
        let children = &model.nodes.get(node)?.children;
        let mut choice = match self.state(node).choice.take() {
            Some(choice) => choice,
            None => Box::new(self.first_choice(children.len(), way)),
        };
        let found = self.search(node, way, &model, &mut choice);
        self.state(node).choice = Some(choice);
        found
    }

    fn first_choice(&mut self, count: usize, way: Interleave) -> Choice {
        let mut choice = Choice::new(count);
        self.turn_back(&mut choice, way);
        if way.across_threads {
            choice.at = (self.scope.thread - 1) % count.max(1);
        }
        choice
    }

    fn search(
        &mut self,
        node: NodeId,
        way: Interleave,
        model: &Model,
        choice: &mut Choice,
    ) -> Option<NodeId> {
        let children = &model.nodes.get(node)?.children;
        if !choice.is_over && self.state(node).is_first {
            self.state(node).is_first = false;
            self.fire(node);
            if self.is_ending {
                return None;
            }
        }
        // Gave nothing although it had come to its end just before.
        let mut barren = None;
        while !choice.is_over && !choice.left.is_empty() {
            let Some(&place) = choice.left.get(choice.at) else {
                self.turn_back(choice, way);
                continue;
            };
            if choice.start == Some(place) && !choice.is_at_start {
                break;
            }
            choice.start.get_or_insert(place);
            let child = *children.get(place)?;
            let kind = &model.nodes.get(child)?.kind;
            if matches!(kind, Kind::Sampler(_)) {
                self.advance_choice(choice, way);
                choice.is_over = true;
                return Some(child);
            }
            if let Some(found) = self.pick(child) {
                choice.has_given = true;
                if way.by_controller {
                    choice.start = None;
                } else {
                    self.advance_choice(choice, way);
                    choice.is_over = true;
                }
                return Some(found);
            }
            if self.is_ending {
                return None;
            }
            let is_empty = model.nodes.get(child).is_none_or(|child| child.children.is_empty());
            if is_empty || self.state(child).is_done && matches!(kind, Kind::Loop { .. }) {
                choice.left.remove(choice.at);
            } else if way.by_controller || barren == Some(place) {
                self.advance_choice(choice, way);
            } else {
                // Its samplers came to their end in the iteration before; it begins anew.
                barren = Some(place);
            }
        }
        choice.end();
        self.state(node).is_first = true;
        None
    }

    /// Passes to the next child. One that gave something has had its iteration.
    fn advance_choice(&mut self, choice: &mut Choice, way: Interleave) {
        choice.is_over |= choice.has_given;
        choice.is_at_start = false;
        choice.at += 1;
        if way.is_random {
            self.turn_back(choice, way);
        }
    }

    /// Passes to the first child, or to any.
    fn turn_back(&mut self, choice: &mut Choice, way: Interleave) {
        let last = i64::try_from(choice.left.len()).unwrap_or(1) - 1;
        choice.at = if way.is_random && last > 0 {
            usize::try_from(self.scope.random_between(0, last)).unwrap_or(0)
        } else {
            0
        };
    }
}
