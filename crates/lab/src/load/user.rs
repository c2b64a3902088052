//! What a worker asks a user, and what a user answers.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::net::{Reply, Request};
use crate::record::Recorder;

/// What a user does next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Sends a request; the next turn brings its reply.
    Fetch(Request),
    /// Sends requests, some at a time; the next turn brings all replies, in the order of the requests.
    FetchAll { requests: Vec<Request>, parallel: usize },
    /// The same, with so many at a time for each host, as browsers do.
    FetchHosts { requests: Vec<Request>, parallel: usize },
    /// Waits.
    Wait(Instant),
    /// Goes on once all others who are ready had their turns.
    Again,
    /// Is ready for the next arrival; in the closed model, for its next turn at once.
    Rest,
    /// Leaves.
    End,
}

/// One visit of a worker at a user.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    pub(crate) now: Instant,
    /// When this turn was due: the arrival, the end of a wait, or the last byte of a reply.
    pub(crate) due: Instant,
    /// Replies to what the last turn sent.
    #[expect(clippy::vec_box, reason = "replies are moved several times, and are large")]
    pub(crate) replies: Vec<Box<Reply>>,
    /// The run ends: a user finishes without sending more.
    pub(crate) is_stopping: bool,
    pub(crate) recorder: &'a mut Recorder,
    /// Set by a user who wants new connections from now on.
    pub(crate) drops_connections: bool,
}

/// Someone who sends requests, one turn after the other.
pub(crate) trait User: Send + fmt::Debug {
    /// Takes what came of the last step and says what is next.
    fn next(&mut self, turn: &mut Turn<'_>) -> Step;
}

/// What all workers of a run know of each other.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    stop: AtomicBool,
    active: AtomicU64,
    most: AtomicU64,
    traces: AtomicUsize,
}

impl Crowd {
    /// Asks everyone to finish.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Takes the request to finish back, for a part of a run that follows.
    pub(crate) fn go_on(&self) {
        self.stop.store(false, Ordering::Relaxed);
    }

    /// Asks everyone to keep so many exchanges of each label whole.
    pub(crate) fn trace(&self, most: usize) {
        self.traces.store(most, Ordering::Relaxed);
    }

    /// Returns how many exchanges of a label are kept whole.
    pub(crate) fn traces(&self) -> usize {
        self.traces.load(Ordering::Relaxed)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn note_start(&self) {
        let active = self.active.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(active, Ordering::Relaxed);
    }

    pub(crate) fn note_end(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the most users at a time since this was asked last.
    pub(crate) fn take_most(&self) -> u64 {
        self.most.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn active(&self) -> u64 {
        self.active.load(Ordering::Relaxed)
    }
}
