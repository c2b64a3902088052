//! Follows content, and applies queue configurations while the worker runs.
//!
//! Invariants
//! * A committed configuration takes effect after a moment, without a restart.
//! * Configurations are read again only if a difference affects one.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tracing::{info, warn};
use tympan_content::{ChunkId, Repository};
use tympan_notation::error_chain_text;

use crate::follower_loop::FollowerLoop;
use crate::osgi_config::{OsgiConfigs, can_change_configs};
use crate::{JobWorker, Result};

/// Interval at which the newest root is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Applies the configurations in content to a worker's queues. Clones share its state.
#[derive(Debug, Clone)]
pub struct OsgiConfigWatcher {
    state: Arc<OsgiConfigWatcherState>,
}

#[derive(Debug)]
struct OsgiConfigWatcherState {
    worker: JobWorker,
    repository: Repository,
    run_modes: Vec<String>,
    configured_root: Mutex<Option<ChunkId>>,
    configs: RwLock<Arc<OsgiConfigs>>,
    change_sender: watch::Sender<()>,
}

impl OsgiConfigWatcher {
    /// Creates a watcher for the run modes of an instance, such as `author`.
    #[must_use]
    pub fn new(worker: JobWorker, repository: Repository, run_modes: &[&str]) -> Self {
        let run_modes = run_modes.iter().map(|mode| (*mode).to_owned()).collect();
        let (configured_root, configs, changes) =
            (Mutex::default(), RwLock::default(), watch::Sender::default());
        Self {
            state: Arc::new(OsgiConfigWatcherState {
                worker,
                repository,
                run_modes,
                configured_root,
                configs,
                change_sender: changes,
            }),
        }
    }

    /// Returns the worker.
    #[must_use]
    pub fn worker(&self) -> &JobWorker {
        &self.state.worker
    }

    /// Returns the run modes that select configurations.
    pub fn run_modes(&self) -> impl Iterator<Item = &str> {
        self.state.run_modes.iter().map(String::as_str)
    }

    /// Returns the current configurations.
    #[must_use]
    pub fn configs(&self) -> Arc<OsgiConfigs> {
        self.state.configs.read().clone()
    }

    /// Returns a receiver that is notified when the configurations change.
    #[must_use]
    pub fn subscribe_changes(&self) -> watch::Receiver<()> {
        self.state.change_sender.subscribe()
    }

    /// Applies the newest state, if its configurations differ. Returns true if they do.
    ///
    /// # Errors
    /// If content cannot be read; the current configurations stay in force.
    pub fn refresh_configs(&self) -> Result<bool> {
        let inner = &self.state;
        let mut configured_root = inner.configured_root.lock();
        let head = inner.repository.head_root()?;
        if *configured_root == Some(head) {
            return Ok(false);
        }
        let snapshot = inner.repository.snapshot()?;
        // If the earlier root was collected, everything is read.
        let before = configured_root.and_then(|root| inner.repository.snapshot_at(root).ok());
        if let Some(changed) = before.and_then(|before| before.changed_paths(&snapshot).ok())
            && !changed.iter().any(can_change_configs)
        {
            *configured_root = Some(snapshot.root_id());
            return Ok(false);
        }
        let modes: Vec<&str> = inner.run_modes.iter().map(String::as_str).collect();
        let mut configs = OsgiConfigs::read_snapshot(&inner.repository, &snapshot, &modes)?;
        let queues = configs.take_queue_configs();
        *configured_root = Some(snapshot.root_id());
        let is_new = *inner.configs.read().as_ref() != configs;
        if is_new {
            for fault in &configs.faults {
                warn!(path = fault.path, reason = fault.message, "invalid configuration");
            }
            info!(queues = queues.len(), "configurations applied");
            inner.worker.set_queue_configs(queues);
            *inner.configs.write() = Arc::new(configs);
            inner.change_sender.send_replace(());
        }
        Ok(is_new)
    }

    /// Follows content until `stop` turns true.
    pub async fn run(self, stop: watch::Receiver<bool>) {
        let mut follower_loop = FollowerLoop::new("configurations", stop, POLL_INTERVAL);
        while !follower_loop.is_stopped() {
            let following = self.clone();
            let refreshed = tokio::task::spawn_blocking(move || following.refresh_configs()).await;
            follower_loop
                .finish_round(match refreshed {
                    Ok(Ok(_)) => Ok(POLL_INTERVAL),
                    Ok(Err(error)) => Err(error_chain_text(&error)),
                    Err(error) => Err(error.to_string()),
                })
                .await;
        }
    }
}
