//! The steps of workflows that activate and deactivate.
//!
//! `ActivatePageProcess` and `DeactivatePageProcess` (and the names that AEM has beside these) act on the payload; with
//! `deep=true` an activation takes everything below it. They need `crx:replicate` there, of who started the workflow or of
//! the service user that the step names. A step that is begun again after a kill activates again, which changes nothing
//! for visitors.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Map;
use tokio::runtime::Handle;
use tympan_content::{Depth, NodePath};
use tympan_jobs::workflow::{Process, StepOutcome, StepRun};
use tympan_jobs::{JobContext, chain};

use crate::activation::{Action, Keeping, Wish, require_replicate, viewer_of};
use crate::replicator::Replicator;
use crate::{Error, Result};

/// Returns the processes of a replicator.
#[must_use]
pub fn processes(
    replicator: &Replicator,
    keeping: Keeping,
    runtime: &Handle,
) -> Vec<Arc<dyn Process>> {
    let named = [
        ("com.day.cq.wcm.workflow.process.ActivatePageProcess", Action::Activate),
        ("com.day.cq.wcm.workflow.process.ActivateProcess", Action::Activate),
        ("com.day.cq.dam.core.process.ActivateAssetProcess", Action::Activate),
        ("com.day.cq.wcm.workflow.process.DeactivatePageProcess", Action::Deactivate),
        ("com.day.cq.wcm.workflow.process.DeactivateProcess", Action::Deactivate),
    ];
    let process = |(name, action)| -> Arc<dyn Process> {
        let (replicator, runtime) = (replicator.clone(), runtime.clone());
        Arc::new(Replicate { name, action, replicator, keeping, runtime })
    };
    named.map(process).to_vec()
}

struct Replicate {
    name: &'static str,
    action: Action,
    replicator: Replicator,
    keeping: Keeping,
    runtime: Handle,
}

impl Replicate {
    fn replicate(&self, step: &StepRun) -> Result<()> {
        let path = NodePath::new(&step.payload)?;
        let snapshot = self.replicator.repository().snapshot()?;
        let is_deep = step.argument("deep").as_deref() == Some("true");
        let depth = if is_deep { Depth::Subtree } else { Depth::Document };
        let wish = Wish { action: self.action, path, depth, user: step.actor.clone() };
        let viewer = viewer_of(self.replicator.repository(), &step.actor)?;
        require_replicate(&snapshot.seen_by(&viewer), &wish)?;
        let done = self.replicator.wish(vec![wish], self.keeping, SystemTime::now());
        self.runtime.block_on(done).map(|_| ())
    }
}

impl Process for Replicate {
    fn name(&self) -> &str {
        self.name
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        match self.replicate(step) {
            Ok(()) => StepOutcome::Done(Map::new()),
            Err(error) if is_worth_trying(&error) => StepOutcome::Retry(chain(&error)),
            Err(error) => StepOutcome::Failed(chain(&error)),
        }
    }
}

fn is_worth_trying(error: &Error) -> bool {
    let is_clash = matches!(error, Error::Content(tympan_content::Error::Conflicts(_)));
    is_clash || error.is_transient()
}
