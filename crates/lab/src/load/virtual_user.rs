//! What a worker asks a user, and what a user answers.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::measurement::SampleRecorder;
use crate::net::{ExchangeOutcome, TargetRequest};

/// What a user does next.
#[derive(Debug)]
pub(crate) enum UserStep {
    /// Sends a request; the next turn brings its reply.
    Fetch(TargetRequest),
    /// Sends requests, some at a time; the next turn brings all replies, in the order of the requests.
    FetchAll { requests: Vec<TargetRequest>, max_parallel: usize },
    /// The same, with so many at a time for each host, as browsers do.
    FetchPerHost { requests: Vec<TargetRequest>, max_parallel_per_host: usize },
    /// Waits.
    WaitUntil(Instant),
    /// Goes on once all others who are ready had their turns.
    Yield,
    /// Is ready for the next arrival; in the closed model, for its next turn at once.
    AwaitArrival,
    /// Leaves.
    Leave,
}

/// One visit of a worker at a user.
#[derive(Debug)]
pub(crate) struct UserTurn<'a> {
    pub(crate) now: Instant,
    /// When this turn was due: the arrival, the end of a wait, or the last byte of a reply.
    pub(crate) due_at: Instant,
    /// Replies to what the last turn sent.
    #[expect(clippy::vec_box, reason = "replies are moved several times, and are large")]
    pub(crate) outcomes: Vec<Box<ExchangeOutcome>>,
    /// The run ends: a user finishes without sending more.
    pub(crate) is_stopping: bool,
    pub(crate) recorder: &'a mut SampleRecorder,
    /// Set by a user who wants new connections from now on.
    pub(crate) drops_connections: bool,
}

/// Someone who sends requests, one turn after the other.
pub(crate) trait VirtualUser: Send + fmt::Debug {
    /// Takes what came of the last step and says what is next.
    fn next_step(&mut self, turn: &mut UserTurn<'_>) -> UserStep;
}

/// What all workers of a run know of each other.
#[derive(Debug, Default)]
pub(crate) struct LoadRunState {
    is_stopping: AtomicBool,
    active_users: AtomicU64,
    peak_users: AtomicU64,
    trace_limit: AtomicUsize,
}

impl LoadRunState {
    /// Asks everyone to finish.
    pub(crate) fn request_stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Takes the request to finish back, for a part of a run that follows.
    pub(crate) fn clear_stop(&self) {
        self.is_stopping.store(false, Ordering::Relaxed);
    }

    /// Asks everyone to keep so many exchanges of each label whole.
    pub(crate) fn set_trace_limit(&self, most: usize) {
        self.trace_limit.store(most, Ordering::Relaxed);
    }

    /// Returns how many exchanges of a label are kept whole.
    pub(crate) fn trace_limit(&self) -> usize {
        self.trace_limit.load(Ordering::Relaxed)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn record_user_start(&self) {
        let active = self.active_users.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak_users.fetch_max(active, Ordering::Relaxed);
    }

    pub(crate) fn record_user_end(&self) {
        self.active_users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the most users at a time since this was asked last.
    pub(crate) fn take_peak_users(&self) -> u64 {
        self.peak_users.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn active_users(&self) -> u64 {
        self.active_users.load(Ordering::Relaxed)
    }
}
