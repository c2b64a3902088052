//! The workflow steps that activate and deactivate.
//!
//! `ActivatePageProcess` and `DeactivatePageProcess` (and AEM's other names for these) act on the payload; with
//! `deep=true` an activation includes everything below it. They need `crx:replicate` there, for the user who started
//! the workflow or the service user that the step names. A step that is restarted after a kill activates again, which
//! changes nothing for visitors.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Map;
use tokio::runtime::Handle;
use tympan_content::{NodePath, SubtreeScope, Viewer};
use tympan_jobs::JobContext;
use tympan_jobs::workflow::{StepOutcome, StepRun, WorkflowProcess};
use tympan_notation::error_chain_text;

use crate::replicator::Replicator;
use crate::request::replication_request::{
    ReplicationAction, ReplicationRequest, require_replicate_permission,
};
use crate::{Error, Result};

/// Returns the workflow processes of a replicator.
#[must_use]
pub fn replication_processes(
    replicator: &Replicator,
    runtime: &Handle,
) -> Vec<Arc<dyn WorkflowProcess>> {
    let named = [
        ("com.day.cq.wcm.workflow.process.ActivatePageProcess", ReplicationAction::Activate),
        ("com.day.cq.wcm.workflow.process.ActivateProcess", ReplicationAction::Activate),
        ("com.day.cq.dam.core.process.ActivateAssetProcess", ReplicationAction::Activate),
        ("com.day.cq.wcm.workflow.process.DeactivatePageProcess", ReplicationAction::Deactivate),
        ("com.day.cq.wcm.workflow.process.DeactivateProcess", ReplicationAction::Deactivate),
    ];
    let process = |(name, action)| -> Arc<dyn WorkflowProcess> {
        let (replicator, runtime) = (replicator.clone(), runtime.clone());
        Arc::new(ReplicateProcess { name, action, replicator, runtime })
    };
    named.map(process).to_vec()
}

struct ReplicateProcess {
    name: &'static str,
    action: ReplicationAction,
    replicator: Replicator,
    runtime: Handle,
}

impl ReplicateProcess {
    fn replicate_payload(&self, step: &StepRun) -> Result<()> {
        let path = NodePath::new(&step.payload)?;
        let snapshot = self.replicator.repository().snapshot()?;
        let is_deep = step.argument("deep").as_deref() == Some("true");
        let depth = if is_deep { SubtreeScope::Subtree } else { SubtreeScope::Document };
        let request = ReplicationRequest {
            action: self.action,
            path,
            depth,
            user: step.effective_user.clone(),
        };
        let viewer = Viewer::from_name(&step.effective_user);
        require_replicate_permission(&snapshot.as_viewer(&viewer), &request)?;
        let replication = self.replicator.replicate(viewer, vec![request], SystemTime::now());
        self.runtime.block_on(replication).map(|_| ())
    }
}

impl WorkflowProcess for ReplicateProcess {
    fn name(&self) -> &str {
        self.name
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        match self.replicate_payload(step) {
            Ok(()) => StepOutcome::Done(Map::new()),
            Err(error) if is_retryable(&error) => StepOutcome::Retry(error_chain_text(&error)),
            Err(error) => StepOutcome::Failed(error_chain_text(&error)),
        }
    }
}

fn is_retryable(error: &Error) -> bool {
    let is_clash = matches!(error, Error::Content(tympan_content::Error::Conflicts(_)));
    is_clash || error.is_transient()
}
