//! Users who execute tests: one request after the other, including waits for the effects.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tympan_lab_engine::load::asset_request::{AssetProcessingOutcome, asset_processing_outcome};
use tympan_lab_engine::load::{UserStep, UserTurn, VirtualUser};
use tympan_lab_engine::measurement::RecordedSample;
use tympan_lab_engine::net::ExchangeOutcome;

use super::action::{PollCondition, ToughAction};
use super::shared_state::ToughSharedState;

/// Interval between polls for an asset or a page on publish.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum wait for renditions and publication.
const POLL_TIMEOUT: Duration = Duration::from_secs(120);
/// Wait of a user if every test lacks its prerequisites.
const IDLE_WAIT: Duration = Duration::from_millis(100);

/// A user who executes tests.
#[derive(Debug)]
pub(super) struct ToughTester {
    shared_state: Arc<ToughSharedState>,
    pending_actions: VecDeque<ToughAction>,
    current_action: Option<ToughAction>,
    /// Due time of the execution; its first request is measured from this time.
    due: Option<Instant>,
    /// Time at which the request before the poll was answered.
    poll_start: Instant,
    /// Lifetime of the user, from its first turn.
    lifetime: Option<Duration>,
    end: Option<Instant>,
    is_open_model: bool,
    is_executing: bool,
}

impl ToughTester {
    pub(super) fn new(
        shared: Arc<ToughSharedState>,
        lives: Option<Duration>,
        is_open: bool,
    ) -> Self {
        Self {
            shared_state: shared,
            pending_actions: VecDeque::new(),
            current_action: None,
            due: None,
            poll_start: Instant::now(),
            lifetime: lives,
            end: None,
            is_open_model: is_open,
            is_executing: false,
        }
    }

    /// Selects a test and prepares its actions.
    fn begin_execution(&mut self, turn: &UserTurn<'_>) -> UserStep {
        let ends_at = self.lifetime.map(|lives| turn.now + lives);
        if self.end.is_none() {
            self.end = ends_at;
        }
        if turn.is_stopping || self.end.is_some_and(|end| turn.now >= end) {
            return UserStep::Leave;
        }
        let Some(test_index) = self.shared_state.next_test() else {
            // All tests are exhausted; a user of the open model waits for nothing more.
            return if self.is_open_model { UserStep::AwaitArrival } else { UserStep::Leave };
        };
        let Some(test) = self.shared_state.tests.get(test_index) else { return UserStep::Leave };
        let Some(acts) = self.shared_state.begin_execution(test) else {
            self.shared_state.record_skip(test_index);
            return match self.is_open_model {
                true => UserStep::AwaitArrival,
                false if self.shared_state.is_stuck() => UserStep::Leave,
                false => UserStep::WaitUntil(turn.now + IDLE_WAIT),
            };
        };
        self.pending_actions = acts;
        self.is_executing = true;
        self.due = Some(if self.is_open_model { turn.due_at } else { turn.now });
        self.next_step(turn.now)
    }

    /// Takes the next action. At the end of an execution, pauses.
    fn next_step(&mut self, now: Instant) -> UserStep {
        loop {
            match self.pending_actions.pop_front() {
                Some(ToughAction::AddedToTree { tree, node_number }) => {
                    self.shared_state.finish_tree_node(tree, node_number)
                }
                Some(ToughAction::Offer(kind, path)) => self.shared_state.offer_content(kind, path),
                Some(ToughAction::Send { label, request }) => {
                    self.current_action =
                        Some(ToughAction::Send { label, request: request.clone() });
                    return UserStep::Fetch(request);
                }
                Some(act @ ToughAction::Poll { .. }) => {
                    self.current_action = Some(act);
                    return UserStep::WaitUntil(now + POLL_INTERVAL);
                }
                None => {
                    if std::mem::take(&mut self.is_executing) {
                        self.shared_state.end_execution();
                    }
                    return if self.is_open_model {
                        UserStep::AwaitArrival
                    } else {
                        UserStep::WaitUntil(now + self.shared_state.pause)
                    };
                }
            }
        }
    }

    /// Abandons the rest of an execution. Its tree node counts as finished.
    fn abandon_execution(&mut self) {
        for act in std::mem::take(&mut self.pending_actions) {
            if let ToughAction::AddedToTree { tree, node_number } = act {
                self.shared_state.finish_tree_node(tree, node_number);
            }
        }
    }

    fn handle_reply(
        &mut self,
        turn: &mut UserTurn<'_>,
        label: &str,
        reply: &ExchangeOutcome,
    ) -> UserStep {
        let id = turn.recorder.label_id(label);
        let due = self.due.take().unwrap_or(reply.started_at);
        turn.recorder.record_sample(&RecordedSample::from_reply(id, due, reply));
        self.poll_start = reply.ended_at;
        let is_ok = reply.result.as_ref().is_ok_and(|response| response.status < 400);
        if !is_ok {
            self.abandon_execution();
        }
        self.next_step(turn.now)
    }

    fn handle_poll_reply(
        &mut self,
        turn: &mut UserTurn<'_>,
        act: ToughAction,
        reply: &ExchangeOutcome,
    ) -> UserStep {
        let ToughAction::Poll { label, condition, .. } = &act else {
            return self.next_step(turn.now);
        };
        let state = match condition {
            PollCondition::Exists => {
                let is_there = reply.result.as_ref().is_ok_and(|response| response.status < 400);
                is_there.then_some(Ok(()))
            }
            PollCondition::Processed => asset_processing_outcome(reply).map(|state| match state {
                AssetProcessingOutcome::Done => Ok(()),
                AssetProcessingOutcome::Failed => Err("the asset could not be processed"),
            }),
        };
        let is_late = turn.now.saturating_duration_since(self.poll_start) > POLL_TIMEOUT;
        if state.is_none() && !is_late && !turn.is_stopping {
            self.current_action = Some(act);
            return UserStep::WaitUntil(turn.now + POLL_INTERVAL);
        }
        let failure = match state {
            Some(Ok(())) => None,
            Some(Err(fault)) => Some(fault),
            None if is_late => Some("it did not appear in time"),
            None => {
                // The run ended during the wait. This is not a failure of the author, and no time can be reported.
                self.shared_state.record_pending_wait(
                    label,
                    turn.now.saturating_duration_since(self.poll_start),
                );
                self.abandon_execution();
                return self.next_step(turn.now);
            }
        };
        let id = turn.recorder.label_id(label);
        // Measured from the end of the previous request, regardless of the last poll's duration.
        turn.recorder.record_sample(&RecordedSample {
            start: self.poll_start,
            failure,
            ..RecordedSample::from_reply(id, self.poll_start, reply)
        });
        if failure.is_some() {
            self.abandon_execution();
        }
        self.next_step(turn.now)
    }
}

impl VirtualUser for ToughTester {
    fn next_step(&mut self, turn: &mut UserTurn<'_>) -> UserStep {
        let reply = std::mem::take(&mut turn.outcomes).into_iter().next();
        match (self.current_action.take(), reply) {
            (Some(ToughAction::Send { label, .. }), Some(reply)) => {
                self.handle_reply(turn, &label, &reply)
            }
            (Some(act @ ToughAction::Poll { .. }), Some(reply)) => {
                self.handle_poll_reply(turn, act, &reply)
            }
            (Some(ToughAction::Poll { label, request, condition }), None) => {
                let next = request.clone();
                self.current_action = Some(ToughAction::Poll { label, request, condition });
                UserStep::Fetch(next)
            }
            _ => self.begin_execution(turn),
        }
    }
}
