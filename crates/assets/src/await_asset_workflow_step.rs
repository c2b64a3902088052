//! Workflow steps under the names of AEM's asset processes: each waits until the asset is processed, which the asset service does
//! automatically for every new original.
//!
//! So such a model runs through its steps as in AEM, and later steps find metadata and renditions.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Map;
use tympan_content::{NodePath, Repository};
use tympan_jobs::JobContext;
use tympan_jobs::workflow::{StepOutcome, StepRun, WorkflowProcess};

use crate::asset_processor::needs_processing;

/// Interval at which an asset is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

const ASSET_PROCESS_NAMES: &[&str] = &[
    "com.day.cq.dam.core.process.ThumbnailProcess",
    "com.day.cq.dam.core.process.CreateWebEnabledImageProcess",
    "com.day.cq.dam.core.process.CreateThumbnailProcess",
    "com.day.cq.dam.core.process.MetadataProcessorProcess",
    "com.day.cq.dam.core.process.ExtractMetadataProcess",
    "com.day.cq.dam.core.process.CreatePdfPreviewProcess",
    "com.day.cq.dam.core.process.ThumbnailsProcess",
    "com.day.cq.dam.core.impl.process.DamUpdateAssetWorkflowCompletedProcess",
];

/// Returns the workflow steps of AEM's asset models, for [`StepRegistry::with_process`]. Each waits until the asset of its
/// payload is processed.
///
/// [`StepRegistry::with_process`]: tympan_jobs::workflow::StepRegistry::with_process
pub fn await_asset_workflow_steps(
    repository: &Repository,
) -> impl Iterator<Item = Arc<dyn WorkflowProcess>> {
    let repository = repository.clone();
    ASSET_PROCESS_NAMES.iter().map(move |name| -> Arc<dyn WorkflowProcess> {
        Arc::new(AwaitAssetWorkflowStep { process_name: name, repository: repository.clone() })
    })
}

struct AwaitAssetWorkflowStep {
    process_name: &'static str,
    repository: Repository,
}

impl AwaitAssetWorkflowStep {
    /// Returns true if the asset at or above the payload is processed.
    fn is_asset_processed(&self, payload: &NodePath) -> tympan_content::Result<bool> {
        let snapshot = self.repository.snapshot()?;
        let mut at = Some(payload.clone());
        while let Some(path) = at {
            match snapshot.node(&path)? {
                Some(node) if node.primary_type() == "dam:Asset" => {
                    return Ok(!needs_processing(&node)?);
                }
                _ => at = path.parent(),
            }
        }
        // A payload that is not an asset, or does not exist, requires no wait.
        Ok(true)
    }
}

impl WorkflowProcess for AwaitAssetWorkflowStep {
    fn name(&self) -> &str {
        self.process_name
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        let payload = match step.payload_path() {
            Ok(payload) => payload,
            Err(outcome) => return outcome,
        };
        match self.is_asset_processed(&payload) {
            Ok(true) => StepOutcome::Done(Map::new()),
            Ok(false) => StepOutcome::Wait { after: POLL_INTERVAL, saved_data: Map::new() },
            Err(error) => StepOutcome::from_content_error(&error),
        }
    }
}
