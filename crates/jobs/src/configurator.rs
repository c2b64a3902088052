//! Follows content: what queues are configured, applied while the worker runs.
//!
//! Invariants
//! * What stands in content a moment after a commit is how the queues work, without a restart.
//! * Only a difference that touches a configuration has them read anew.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tracing::{info, warn};
use tympan_content::{ChunkId, Repository};

use crate::error::chain;
use crate::follower::Rounds;
use crate::osgi::{Configs, is_config_path};
use crate::{Result, Worker};

/// How often the newest root is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Keeps a worker's queues as content says. Clones are the same.
#[derive(Debug, Clone)]
pub struct Configurator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    worker: Worker,
    repository: Repository,
    run_modes: Vec<String>,
    seen: Mutex<Option<ChunkId>>,
    configs: RwLock<Arc<Configs>>,
    changes: watch::Sender<()>,
}

impl Configurator {
    /// Makes one for the run modes of an instance, such as `author`.
    #[must_use]
    pub fn new(worker: Worker, repository: Repository, run_modes: &[&str]) -> Self {
        let run_modes = run_modes.iter().map(|mode| (*mode).to_owned()).collect();
        let (seen, configs, changes) =
            (Mutex::default(), RwLock::default(), watch::Sender::default());
        Self { inner: Arc::new(Inner { worker, repository, run_modes, seen, configs, changes }) }
    }

    /// Returns the worker.
    #[must_use]
    pub fn worker(&self) -> &Worker {
        &self.inner.worker
    }

    /// Returns the run modes by which configurations are chosen.
    pub fn run_modes(&self) -> impl Iterator<Item = &str> {
        self.inner.run_modes.iter().map(String::as_str)
    }

    /// Returns the configurations that are in force.
    #[must_use]
    pub fn configs(&self) -> Arc<Configs> {
        self.inner.configs.read().clone()
    }

    /// Returns what tells that other configurations are in force.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.inner.changes.subscribe()
    }

    /// Applies the newest state, if it differs in what is configured. Tells whether it did.
    ///
    /// # Errors
    /// If content cannot be read; what is in force stays so.
    pub fn refresh(&self) -> Result<bool> {
        let inner = &self.inner;
        let mut seen = inner.seen.lock();
        let head = inner.repository.head()?;
        if *seen == Some(head) {
            return Ok(false);
        }
        let snapshot = inner.repository.snapshot()?;
        // A root that is collected by now tells nothing: everything is read.
        let before = seen.and_then(|root| inner.repository.snapshot_at(root).ok());
        if let Some(changed) = before.and_then(|before| before.changed_paths(&snapshot).ok())
            && !changed.iter().any(is_config_path)
        {
            *seen = Some(snapshot.root_id());
            return Ok(false);
        }
        let modes: Vec<&str> = inner.run_modes.iter().map(String::as_str).collect();
        let mut configs = Configs::read(&inner.repository, &snapshot, &modes)?;
        let queues = configs.queues();
        *seen = Some(snapshot.root_id());
        let is_new = *inner.configs.read().as_ref() != configs;
        if is_new {
            for fault in &configs.faults {
                warn!(path = fault.path, reason = fault.message, "a configuration has a fault");
            }
            info!(queues = queues.len(), "configurations are applied");
            inner.worker.configure(queues);
            *inner.configs.write() = Arc::new(configs);
            inner.changes.send_replace(());
        }
        Ok(is_new)
    }

    /// Follows content until `stop` turns true.
    pub async fn run(self, stop: watch::Receiver<bool>) {
        let mut rounds = Rounds::new("configurations", stop, LOOK);
        while !rounds.is_over() {
            let following = self.clone();
            let refreshed = tokio::task::spawn_blocking(move || following.refresh()).await;
            rounds
                .end(match refreshed {
                    Ok(Ok(_)) => Ok(LOOK),
                    Ok(Err(error)) => Err(chain(&error)),
                    Err(error) => Err(error.to_string()),
                })
                .await;
        }
    }
}
