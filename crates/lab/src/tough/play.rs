//! Users who execute tests: one request after the other, and waiting for what comes of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::act::{Act, Until};
use super::shared::Shared;
use crate::asset::{Processed, processed};
use crate::load::{Step, Turn, User};
use crate::net::Reply;
use crate::record::Sample;

/// How often an asset or a page of publish is asked for until it is there.
const LOOK: Duration = Duration::from_millis(200);
/// Longest wait for renditions and publication.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a user waits where every test lacks what it needs.
const NOTHING_TO_DO: Duration = Duration::from_millis(100);

/// A user who executes tests.
#[derive(Debug)]
pub(super) struct Tester {
    shared: Arc<Shared>,
    acts: VecDeque<Act>,
    current: Option<Act>,
    /// When the execution was due; its first request counts from then.
    due: Option<Instant>,
    /// When the request before the poll was answered.
    since: Instant,
    /// How long the user stays, from its first turn.
    lives: Option<Duration>,
    ends_at: Option<Instant>,
    is_open: bool,
    is_under_way: bool,
}

impl Tester {
    pub(super) fn new(shared: Arc<Shared>, lives: Option<Duration>, is_open: bool) -> Self {
        Self {
            shared,
            acts: VecDeque::new(),
            current: None,
            due: None,
            since: Instant::now(),
            lives,
            ends_at: None,
            is_open,
            is_under_way: false,
        }
    }

    /// Chooses a test and prepares what it does.
    fn begin(&mut self, turn: &Turn<'_>) -> Step {
        let ends_at = self.lives.map(|lives| turn.now + lives);
        if self.ends_at.is_none() {
            self.ends_at = ends_at;
        }
        if turn.is_stopping || self.ends_at.is_some_and(|end| turn.now >= end) {
            return Step::End;
        }
        let Some(place) = self.shared.next_test() else {
            // Everything is used up: a user of the open model waits for nothing more.
            return if self.is_open { Step::Rest } else { Step::End };
        };
        let Some(test) = self.shared.tests.get(place) else { return Step::End };
        let Some(acts) = self.shared.begin(test) else {
            self.shared.skip(place);
            return match self.is_open {
                true => Step::Rest,
                false if self.shared.is_stuck() => Step::End,
                false => Step::Wait(turn.now + NOTHING_TO_DO),
            };
        };
        self.acts = acts;
        self.is_under_way = true;
        self.due = Some(if self.is_open { turn.due } else { turn.now });
        self.go_on(turn.now)
    }

    /// Takes the next act; at the end of an execution, pauses.
    fn go_on(&mut self, now: Instant) -> Step {
        loop {
            match self.acts.pop_front() {
                Some(Act::Grown { tree, number }) => self.shared.grown(tree, number),
                Some(Act::HandOn(what, path)) => self.shared.hand_on(what, path),
                Some(Act::Send { label, request }) => {
                    self.current = Some(Act::Send { label, request: request.clone() });
                    return Step::Fetch(request);
                }
                Some(act @ Act::Await { .. }) => {
                    self.current = Some(act);
                    return Step::Wait(now + LOOK);
                }
                None => {
                    if std::mem::take(&mut self.is_under_way) {
                        self.shared.end();
                    }
                    return if self.is_open {
                        Step::Rest
                    } else {
                        Step::Wait(now + self.shared.wait)
                    };
                }
            }
        }
    }

    /// Gives the rest of an execution up; what it was to grow counts as grown.
    fn give_up(&mut self) {
        for act in std::mem::take(&mut self.acts) {
            if let Act::Grown { tree, number } = act {
                self.shared.grown(tree, number);
            }
        }
    }

    fn sent(&mut self, turn: &mut Turn<'_>, label: &str, reply: &Reply) -> Step {
        let id = turn.recorder.label(label);
        let due = self.due.take().unwrap_or(reply.started);
        turn.recorder.sample(&Sample::of(id, due, reply));
        self.since = reply.ended;
        let is_ok = reply.result.as_ref().is_ok_and(|response| response.status < 400);
        if !is_ok {
            self.give_up();
        }
        self.go_on(turn.now)
    }

    fn looked(&mut self, turn: &mut Turn<'_>, act: Act, reply: &Reply) -> Step {
        let Act::Await { label, until, .. } = &act else { return self.go_on(turn.now) };
        let state = match until {
            Until::There => {
                let is_there = reply.result.as_ref().is_ok_and(|response| response.status < 400);
                is_there.then_some(Ok(()))
            }
            Until::Processed => processed(reply).map(|state| match state {
                Processed::Done => Ok(()),
                Processed::Failed => Err("the asset could not be processed"),
            }),
        };
        let is_late = turn.now.saturating_duration_since(self.since) > PATIENCE;
        if state.is_none() && !is_late && !turn.is_stopping {
            self.current = Some(act);
            return Step::Wait(turn.now + LOOK);
        }
        let failure = match state {
            Some(Ok(())) => None,
            Some(Err(fault)) => Some(fault),
            None if is_late => Some("it was not there in time"),
            None => {
                // The run ended meanwhile: that is no failure of the author's, and no time that could be told.
                self.shared.leave(label, turn.now.saturating_duration_since(self.since));
                self.give_up();
                return self.go_on(turn.now);
            }
        };
        let id = turn.recorder.label(label);
        // From the end of the request before, whatever the last look took.
        turn.recorder.sample(&Sample {
            started: self.since,
            failure,
            ..Sample::of(id, self.since, reply)
        });
        if failure.is_some() {
            self.give_up();
        }
        self.go_on(turn.now)
    }
}

impl User for Tester {
    fn next(&mut self, turn: &mut Turn<'_>) -> Step {
        let reply = std::mem::take(&mut turn.replies).into_iter().next();
        match (self.current.take(), reply) {
            (Some(Act::Send { label, .. }), Some(reply)) => self.sent(turn, &label, &reply),
            (Some(act @ Act::Await { .. }), Some(reply)) => self.looked(turn, act, &reply),
            (Some(Act::Await { label, request, until }), None) => {
                let next = request.clone();
                self.current = Some(Act::Await { label, request, until });
                Step::Fetch(next)
            }
            _ => self.begin(turn),
        }
    }
}
