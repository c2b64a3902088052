//! The state that all parts of a thread use: its variables, its plan, and what it shares with other threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tympan_lab_plan::model::{PlanModel, SampleErrorAction};
use tympan_lab_plan::{EnteredSections, PlanNodeId, TextTemplate, VariableScope};

use crate::load::LoadRunState;
use crate::measurement::SampleMarkGenerator;
use crate::measurement::summariser::{SummaryTally, ThreadCounts};
use crate::net::TargetRegistry;

/// State shared by all threads of a run besides the plan.
#[derive(Debug)]
pub(super) struct PlanRunState {
    pub(super) targets: TargetRegistry,
    pub(super) load_state: Arc<LoadRunState>,
    /// Number of threads started and finished.
    pub(super) started_threads: AtomicU64,
    pub(super) ended_threads: AtomicU64,
    /// Number of completed visits of the open model.
    pub(super) completed_visits: AtomicU64,
    pub(super) tallies: Mutex<(SummaryTally, SummaryTally)>,
    /// An instant, and the same time in milliseconds since the epoch.
    pub(super) epoch: (Instant, u64),
    /// Faults outside of samples, such as an unreadable data file.
    pub(super) faults: Mutex<Vec<String>>,
    /// True if rows include sub-samples: hops, resources, and samples of a transaction that replaces them.
    pub(super) writes_sub_samples: bool,
    /// Generates sample marks for servers, if marks are enabled.
    pub(super) sample_marks: Option<SampleMarkGenerator>,
}

impl PlanRunState {
    /// Converts an instant of this run to milliseconds since the epoch.
    pub(super) fn epoch_ms(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.epoch.0);
        self.epoch.1.saturating_add(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns the numbers of running, started and finished threads.
    pub(super) fn thread_counts(&self) -> ThreadCounts {
        let (started, finished) = (
            self.started_threads.load(Ordering::Relaxed),
            self.ended_threads.load(Ordering::Relaxed),
        );
        ThreadCounts { active: started.saturating_sub(finished), started, finished }
    }
}

/// State shared by the threads of a group.
#[derive(Debug)]
pub(super) struct ThreadGroupState {
    pub(super) active_threads: AtomicU64,
    pub(super) thread_count: u64,
    pub(super) on_error: SampleErrorAction,
    pub(super) is_same_user: bool,
    /// Number of loops; `None` for endless.
    pub(super) loop_count: Option<u64>,
    pub(super) root_node: PlanNodeId,
    /// In the open model: the initial variables of each visitor. An iteration is one visit.
    pub(super) initial_scope: Option<Arc<VariableScope>>,
}

impl ThreadGroupState {
    pub(super) fn is_open_model(&self) -> bool {
        self.initial_scope.is_some()
    }
}

/// What all parts of a thread use.
#[derive(Debug)]
pub(super) struct ThreadContext {
    pub(super) model: Arc<PlanModel>,
    pub(super) run_state: Arc<PlanRunState>,
    pub(super) group_state: Arc<ThreadGroupState>,
    pub(super) scope: VariableScope,
    pub(super) critical_sections: EnteredSections,
    /// True if the thread ends as soon as it may.
    pub(super) is_ending: bool,
}

impl ThreadContext {
    pub(super) fn new(
        model: Arc<PlanModel>,
        run_state: Arc<PlanRunState>,
        group_state: Arc<ThreadGroupState>,
        scope: VariableScope,
    ) -> Self {
        Self {
            model,
            run_state,
            group_state,
            scope,
            critical_sections: EnteredSections::default(),
            is_ending: false,
        }
    }

    /// Ends the whole run, and this thread.
    pub(super) fn stop_test(&mut self) {
        self.run_state.load_state.request_stop();
        self.is_ending = true;
    }

    pub(super) fn record_run_fault(&self, fault: &str) {
        let mut faults = self.run_state.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if !faults.iter().any(|recorded_fault| recorded_fault == fault) {
            faults.push(fault.to_owned());
        }
    }

    /// Evaluates a template to a number; 0 if it is none.
    pub(super) fn evaluate_number(&mut self, template: &TextTemplate) -> f64 {
        template.evaluate(&mut self.scope).trim().parse().unwrap_or(0.0)
    }

    /// Returns a normally distributed random number (Box and Muller).
    pub(super) fn random_normal(&mut self) -> f64 {
        let (first, second) = (self.scope.random_unit(), self.scope.random_unit());
        (-2.0 * first.ln()).sqrt() * (std::f64::consts::TAU * second).cos()
    }
}
