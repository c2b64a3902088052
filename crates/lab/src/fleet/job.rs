//! What controller and agents tell each other in words: a job, what came of its parts, and what an agent is.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::get_load::GetLoad;
use crate::load::LoadPortion;
use crate::measurement::RunResults;
use crate::measurement::summariser::{SummaryTally, ThreadCounts};

/// What an agent says first.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AgentHello {
    pub(super) protocol: u32,
    pub(super) version: String,
    /// The portion that it wants, counted from 0; engines that run numbered copies give it.
    pub(super) index: Option<usize>,
}

/// What an agent is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct AgentJob {
    pub(super) portion: LoadPortion,
    /// Every agent does all of the work.
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
        // Agents that do the same draw other random values.
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
        /// What the plan calls the files that follow it.
        files: Vec<String>,
        properties: HashMap<String, String>,
        seed: u64,
        workers: usize,
        trace: usize,
        copies_rows: bool,
        /// Names with the addresses that they have for this run.
        hosts: HashMap<String, String>,
        /// Classes of elements that are left out of the plan where they cannot be run.
        left_out: Vec<String>,
    },
}

/// What came of a part of a run on one agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FinishedPart {
    pub(super) elapsed: Duration,
    pub(super) workers: usize,
    pub(super) processors: usize,
    pub(super) is_open: bool,
    pub(super) offered: Option<f64>,
    /// The plan asked for the end of the whole run.
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

/// Samples and threads of about a second.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct TallyUpdate {
    pub(super) tally: SummaryTally,
    pub(super) threads: ThreadCounts,
}

/// What an agent says last.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct AgentCompletion {
    /// What went wrong outside of samples.
    pub(super) faults: Vec<String>,
    /// Why the run itself failed.
    pub(super) failure: Option<String>,
}
