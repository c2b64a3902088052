//! Processes that come with the engine.

use serde_json::Map;

use crate::JobContext;
use crate::workflow::handler::{Process, StepOutcome, StepRun};

/// A process that does nothing: a place in a model, to be filled later.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoopProcess;

impl Process for NoopProcess {
    fn name(&self) -> &str {
        "com.adobe.granite.workflow.core.process.NoopProcess"
    }

    fn run(&self, _step: &StepRun, _context: &JobContext) -> StepOutcome {
        StepOutcome::Done(Map::new())
    }
}
