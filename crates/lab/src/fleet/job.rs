//! What controller and agents tell each other in words: a job, what came of its parts, and what an agent is.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::get::Get;
use crate::load::Portion;
use crate::record::Results;
use crate::record::summariser::{Tally, Threads};

/// What an agent says first.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) protocol: u32,
    pub(super) version: String,
    /// The portion that it wants, counted from 0; engines that run numbered copies give it.
    pub(super) index: Option<usize>,
}

/// What an agent is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) portion: Portion,
    /// Every agent does all of the work.
    #[serde(skip)]
    pub(super) is_whole: bool,
    pub(super) wants_rows: bool,
    pub(super) work: Work,
}

impl Job {
    /// Returns the job of one of several agents.
    pub(super) fn of_agent(mut self, index: u64, count: u64) -> Self {
        if !self.is_whole {
            self.portion = Portion { index, count };
            return self;
        }
        // Agents that do the same draw other random values.
        if let Work::Plan { seed, .. } = &mut self.work {
            *seed = seed.wrapping_add(index);
        }
        self
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Work {
    Get(Box<Get>),
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
pub(super) struct PartOver {
    pub(super) elapsed: Duration,
    pub(super) workers: usize,
    pub(super) processors: usize,
    pub(super) is_open: bool,
    pub(super) offered: Option<f64>,
    /// The plan asked for the end of the whole run.
    pub(super) is_stopping: bool,
}

impl PartOver {
    pub(super) fn of(results: &Results, is_stopping: bool) -> Self {
        let generator = &results.generator;
        Self {
            elapsed: results.elapsed,
            workers: generator.workers,
            processors: generator.processors,
            is_open: generator.is_open,
            offered: generator.offered,
            is_stopping,
        }
    }
}

/// Samples and threads of about a second.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Pulse {
    pub(super) tally: Tally,
    pub(super) threads: Threads,
}

/// What an agent says last.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Done {
    /// What went wrong outside of samples.
    pub(super) faults: Vec<String>,
    /// Why the run itself failed.
    pub(super) failure: Option<String>,
}
