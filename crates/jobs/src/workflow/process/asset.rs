//! The processes of AEM's models for assets: each waits until the asset is processed, which the asset service does by
//! itself for every new original.
//!
//! So such a model goes through its steps as AEM's does, and what follows finds metadata and renditions.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Map;
use tympan_content::{NodePath, Repository};

use super::failed;
use crate::JobContext;
use crate::asset::needs_processing;
use crate::workflow::handler::{Process, StepOutcome, StepRun};

/// How often an asset is looked at.
const LOOK: Duration = Duration::from_millis(500);

const NAMES: &[&str] = &[
    "com.day.cq.dam.core.process.ThumbnailProcess",
    "com.day.cq.dam.core.process.CreateWebEnabledImageProcess",
    "com.day.cq.dam.core.process.CreateThumbnailProcess",
    "com.day.cq.dam.core.process.MetadataProcessorProcess",
    "com.day.cq.dam.core.process.ExtractMetadataProcess",
    "com.day.cq.dam.core.process.CreatePdfPreviewProcess",
    "com.day.cq.dam.core.process.ThumbnailsProcess",
    "com.day.cq.dam.core.impl.process.DamUpdateAssetWorkflowCompletedProcess",
];

pub(super) fn processes(repository: &Repository) -> impl Iterator<Item = Arc<dyn Process>> {
    let repository = repository.clone();
    NAMES.iter().map(move |name| -> Arc<dyn Process> {
        Arc::new(Processed { name, repository: repository.clone() })
    })
}

struct Processed {
    name: &'static str,
    repository: Repository,
}

impl Processed {
    /// Tells whether the asset that the payload is, or lies in, is processed.
    fn is_processed(&self, payload: &NodePath) -> tympan_content::Result<bool> {
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
        // What is no asset, or is gone, has nothing to wait for.
        Ok(true)
    }
}

impl Process for Processed {
    fn name(&self) -> &str {
        self.name
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        let payload = match step.payload_path() {
            Ok(payload) => payload,
            Err(outcome) => return outcome,
        };
        match self.is_processed(&payload) {
            Ok(true) => StepOutcome::Done(Map::new()),
            Ok(false) => StepOutcome::Wait { after: LOOK, keep: Map::new() },
            Err(error) => failed(&error),
        }
    }
}
