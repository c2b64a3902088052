//! The interface between a worker and its users.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::measurement::SampleRecorder;
use crate::net::{ExchangeOutcome, TargetRequest};

/// The next step of a user.
#[derive(Debug)]
pub enum UserStep {
    /// Sends a request; the next turn receives its response.
    Fetch(TargetRequest),
    /// Sends requests with limited parallelism; the next turn receives all responses, in the order of the requests.
    FetchAll {
        /// The requests.
        requests: Vec<TargetRequest>,
        /// Maximum number of concurrent requests.
        max_parallel: usize,
    },
    /// As `FetchAll`, with a parallelism limit per host, as in browsers.
    FetchPerHost {
        /// The requests.
        requests: Vec<TargetRequest>,
        /// Maximum number of concurrent requests to one host.
        max_parallel_per_host: usize,
    },
    /// Waits until this time.
    WaitUntil(Instant),
    /// Continues after all other ready users had their turns.
    Yield,
    /// Waits for the next arrival; in the closed model, the next turn follows immediately.
    AwaitArrival,
    /// Ends the user.
    Leave,
}

/// One turn of a user on its worker.
#[derive(Debug)]
pub struct UserTurn<'a> {
    /// The current time.
    pub now: Instant,
    /// The due time of this turn: the arrival, the end of a wait, or the last byte of a response.
    pub due_at: Instant,
    /// Responses to the requests of the previous turn.
    pub outcomes: Vec<Box<ExchangeOutcome>>,
    /// Set when the run ends: a user must finish without sending more.
    pub is_stopping: bool,
    /// Receives the samples.
    pub recorder: &'a mut SampleRecorder,
    /// Set by a user that requires new connections from now on.
    pub(crate) drops_connections: bool,
}

/// A simulated user that sends requests, one turn after the other.
pub trait VirtualUser: Send + fmt::Debug {
    /// Processes the outcome of the previous step and returns the next step.
    fn next_step(&mut self, turn: &mut UserTurn<'_>) -> UserStep;
}

/// State shared by all workers of a run.
#[derive(Debug, Default)]
pub struct LoadRunState {
    is_stopping: AtomicBool,
    active_users: AtomicU64,
    peak_users: AtomicU64,
    trace_limit: AtomicUsize,
}

impl LoadRunState {
    /// Requests all users to finish.
    pub fn request_stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Clears the stop request for a subsequent part of a run.
    pub(crate) fn clear_stop(&self) {
        self.is_stopping.store(false, Ordering::Relaxed);
    }

    /// Sets the number of exchanges per label that are stored completely.
    pub(crate) fn set_trace_limit(&self, most: usize) {
        self.trace_limit.store(most, Ordering::Relaxed);
    }

    /// Returns the number of exchanges per label that are stored completely.
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

    /// Returns the maximum number of concurrent users since the last call.
    pub(crate) fn take_peak_users(&self) -> u64 {
        self.peak_users.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn active_users(&self) -> u64 {
        self.active_users.load(Ordering::Relaxed)
    }
}
