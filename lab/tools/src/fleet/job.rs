//! The JSON messages between controller and agents: a job, the results of its parts, and the description of an agent.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tympan_lab_engine::get_load::GetLoad;
use tympan_lab_engine::measurement::RunResults;
use tympan_lab_engine::measurement::summariser::{SummaryTally, ThreadCounts};
use tympan_lab_plan::LoadPortion;

/// The first message of an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AgentHello {
    pub(super) protocol: u32,
    pub(super) version: String,
    /// The requested portion, counted from 0; engines that run numbered copies supply it.
    pub(super) index: Option<usize>,
}

/// The job of an agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct AgentJob {
    pub(super) portion: LoadPortion,
    /// True if every agent does all of the work.
    #[serde(skip)]
    pub(super) is_whole: bool,
    pub(super) wants_rows: bool,
    pub(super) work: AgentWork,
}

impl AgentJob {
    /// Returns the job of one of several agents.
    pub(super) fn for_agent(mut self, index: u64, count: u64) -> Self {
        if !self.is_whole {
            self.portion = LoadPortion { index, count };
            return self;
        }
        // Agents that do the same work use different random values.
        if let AgentWork::Plan { seed, .. } = &mut self.work {
            *seed = seed.wrapping_add(index);
        }
        self
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum AgentWork {
    Get(Box<GetLoad>),
    Plan {
        /// The plan's file name; the file itself is the first that was sent.
        name: String,
        /// The names by which the plan refers to the files that follow it.
        files: Vec<String>,
        properties: HashMap<String, String>,
        seed: u64,
        workers: usize,
        trace: usize,
        copies_rows: bool,
        /// Host names and their addresses for this run.
        hosts: HashMap<String, String>,
        /// Classes of elements that are omitted from the plan if they cannot be run.
        left_out: Vec<String>,
    },
}

/// The result of one part of a run on one agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FinishedPart {
    pub(super) elapsed: Duration,
    pub(super) workers: usize,
    pub(super) processors: usize,
    pub(super) is_open: bool,
    pub(super) offered: Option<f64>,
    /// True if the plan requested the end of the whole run.
    pub(super) is_stopping: bool,
}

impl FinishedPart {
    pub(super) fn from_results(results: &RunResults, is_stopping: bool) -> Self {
        let generator = &results.generator;
        Self {
            elapsed: results.elapsed,
            workers: generator.worker_count,
            processors: generator.processor_count,
            is_open: generator.is_open_model,
            offered: generator.offered_rate,
            is_stopping,
        }
    }
}

/// Samples and threads of an interval of about one second.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct TallyUpdate {
    pub(super) tally: SummaryTally,
    pub(super) threads: ThreadCounts,
}

/// The last message of an agent.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct AgentCompletion {
    /// Faults outside of samples.
    pub(super) faults: Vec<String>,
    /// The reason why the run itself failed.
    pub(super) failure: Option<String>,
}
