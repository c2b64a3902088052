//! The handlers of the jobs of mounts and imports.

use std::sync::Arc;

use tympan_jobs::JobHandler;

use crate::import::ImportHandler;
use crate::mount_service::{MountHandler, MountService};

impl MountService {
    /// Returns the handlers of its jobs, to register with a worker.
    #[must_use]
    pub fn handlers(&self) -> Vec<Arc<dyn JobHandler>> {
        vec![Arc::new(MountHandler::new(self.clone())), Arc::new(ImportHandler::new(self.clone()))]
    }
}
