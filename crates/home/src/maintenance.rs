//! Maintenance: the scheduled tasks of a running instance, as jobs under the topics of AEM's tasks.
//!
//! | schedule | topic below `com/adobe/granite/maintenance/job` | does |
//! |---|---|---|
//! | `maintenance/garbage` | `RevisionCleanupTask` | thins out old revisions and collects what nothing refers to |
//! | `maintenance/blobs` | `DataStoreGarbageCollectionTask` | says which blobs are needed, and sweeps those that nobody needs |
//! | `maintenance/versions` | `VersionPurgeTask` | takes away outdated versions of nodes |
//! | `maintenance/workflows` | `WorkflowPurgeTask` | takes away workflows that ended long ago |
//!
//! Invariants
//! * One task runs at a time, in one of the processes on a database.
//! * A task that fails reports the reason in the list of jobs; its schedule continues.
//! * Expiry is measured against a trusted clock (`trusted_clock`).
//! * A task that is stopped, or killed, leaves a consistent state, and starts again from the beginning.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tympan_notation::error_chain_text;

use tokio::runtime::Handle;
use tympan_blobs::garbage_collection::SweepMode;
use tympan_content::{Repository, VersionPurgeReport};
use tympan_jobs::workflow::WorkflowEngine;
use tympan_jobs::{
    Job, JobContext, JobHandler, JobOutcome, JobQueues, JobWorker, MAINTENANCE_TOPIC, NewJob,
};
use tympan_store::GarbageCollectionReport;

use crate::blob_sharing::{BlobMarkOutcome, BlobSharing};
use crate::config::HomeConfig;
use crate::error::{Error, Result};
use crate::garbage_collection::{
    COLLECTION_INTERVAL, CollectionPacer, DEFAULT_BYTES_PER_SECOND, collect_options, collect_paced,
    purge_versions,
};
use crate::opened_home::Home;
use crate::trusted_clock::trusted_now;

const BLOBS_SCHEDULE: &str = "0 30 3 * * ?";
const DAILY_SCHEDULE: &str = "0 0 2 * * ?";
const WEEKLY_SCHEDULE: &str = "0 0 1 ? * SAT";

/// A maintenance task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MaintenanceTask {
    Garbage,
    Blobs,
    Versions,
    Workflows,
}

impl MaintenanceTask {
    const ALL: [Self; 4] = [Self::Garbage, Self::Blobs, Self::Versions, Self::Workflows];

    fn default_schedule(self) -> &'static str {
        match self {
            Self::Garbage => "maintenance/garbage",
            Self::Blobs => "maintenance/blobs",
            Self::Versions => "maintenance/versions",
            Self::Workflows => "maintenance/workflows",
        }
    }

    fn topic(self) -> String {
        let name = match self {
            Self::Garbage => "RevisionCleanupTask",
            Self::Blobs => "DataStoreGarbageCollectionTask",
            Self::Versions => "VersionPurgeTask",
            Self::Workflows => "WorkflowPurgeTask",
        };
        format!("{MAINTENANCE_TOPIC}/{name}")
    }

    /// Returns the schedule of the task; `None` if it has none.
    fn schedule_rule(self, config: &HomeConfig) -> Option<String> {
        let section = &config.maintenance;
        let or = |rule: &Option<String>, default: &str| {
            Some(rule.clone().unwrap_or_else(|| default.to_owned()))
        };
        match self {
            Self::Garbage => {
                let every = config.collect.interval.map_or(COLLECTION_INTERVAL, |span| span.0);
                (!every.is_zero()).then(|| format!("every {}ms", every.as_millis().max(1)))
            }
            Self::Blobs => or(&section.blobs, BLOBS_SCHEDULE),
            Self::Versions => or(&section.daily, DAILY_SCHEDULE),
            Self::Workflows => section.workflows.and_then(|_| or(&section.weekly, WEEKLY_SCHEDULE)),
        }
    }
}

/// Registers the tasks with a worker, and their schedules.
///
/// # Errors
/// With the key if a schedule of the configuration is invalid; if the state database fails.
pub async fn register_maintenance(worker: &JobWorker, home: &Home) -> Result<()> {
    let (repository, config) = (&home.repository, &home.config);
    let queues = worker.queues();
    for task in MaintenanceTask::ALL {
        worker.register_handler(Arc::new(MaintenanceJob {
            task,
            topic: task.topic(),
            repository: repository.clone(),
            queues: queues.clone(),
            dir: home.dir.clone(),
            sharing: home.blob_sharing(),
            config: config.clone(),
            runtime: Handle::current(),
        }));
        // A clone keeps the data that it has read from its base, and nothing of its own refers to that data.
        let rule = task
            .schedule_rule(config)
            .filter(|_| task != MaintenanceTask::Blobs || home.composite.is_none());
        let done = match rule {
            Some(rule) => {
                let job = NewJob::new(task.topic(), serde_json::json!({}));
                queues
                    .schedules()
                    .add(task.default_schedule(), &rule, &job, SystemTime::now())
                    .await
            }
            None => queues.schedules().remove(task.default_schedule()).await.map(|_| ()),
        };
        done.map_err(|error| match error {
            tympan_jobs::Error::InvalidSchedule { .. } => {
                Error::refused(format!("tympan.toml: [maintenance]: {}", error_chain_text(&error)))
            }
            error => error.into(),
        })?;
    }
    Ok(())
}

/// Runs one task.
struct MaintenanceJob {
    task: MaintenanceTask,
    topic: String,
    dir: PathBuf,
    repository: Repository,
    queues: JobQueues,
    sharing: BlobSharing,
    config: HomeConfig,
    runtime: Handle,
}

impl JobHandler for MaintenanceJob {
    fn topic(&self) -> &str {
        &self.topic
    }

    fn run(&self, _job: &Job, context: &JobContext) -> JobOutcome {
        let done = match self.task {
            MaintenanceTask::Garbage => self.collect_garbage(context),
            MaintenanceTask::Blobs => self.sweep_blobs(context),
            MaintenanceTask::Versions => self.purge_versions(),
            MaintenanceTask::Workflows => self.purge_workflows(),
        };
        match done {
            Ok(()) if context.is_cancelled() => JobOutcome::Cancelled,
            Ok(()) => JobOutcome::Done,
            Err(reason) => {
                tracing::error!(reason, topic = self.topic, "maintenance failed");
                JobOutcome::Failed { reason }
            }
        }
    }
}

impl MaintenanceJob {
    /// Returns the time that expiry is measured against.
    fn trusted_now(&self) -> SystemTime {
        trusted_now(&self.dir, &**self.repository.chunks(), SystemTime::now())
    }

    fn collect_garbage(&self, context: &JobContext) -> Result<(), String> {
        let options =
            self.runtime.block_on(collect_options(&self.config, &self.queues, self.trusted_now()));
        let options = options.map_err(|error| error_chain_text(&error))?;
        let rate = self
            .config
            .collect
            .rate
            .map_or(DEFAULT_BYTES_PER_SECOND, |rate| rate.as_bytes().max(1));
        let is_stopped = || context.is_cancelled();
        match collect_paced(&**self.repository.chunks(), &options, rate, &is_stopped) {
            Ok(done) => {
                let GarbageCollectionReport {
                    generation,
                    freed_bytes,
                    moved_bytes,
                    live_bytes,
                    ..
                } = done;
                tracing::info!(
                    generation,
                    freed_bytes,
                    moved_bytes,
                    live_bytes,
                    "garbage collected"
                );
                context.report_progress(1, 1, &format!("{freed_bytes} bytes freed"));
                Ok(())
            }
            Err(tympan_store::Error::CollectionRunning) => {
                tracing::debug!("another process is collecting garbage");
                Ok(())
            }
            Err(error) => Err(error_chain_text(&error)),
        }
    }

    fn sweep_blobs(&self, context: &JobContext) -> Result<(), String> {
        let rate = self
            .config
            .collect
            .rate
            .map_or(DEFAULT_BYTES_PER_SECOND, |rate| rate.as_bytes().max(1));
        let go_on = || {
            if context.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let mut pace = CollectionPacer::with_rate(rate);
        let marked = self.sharing.mark_needed_blobs(&**self.repository.chunks(), &mut |progress| {
            pace.throttle(progress);
            go_on()
        });
        let failed = |error: Error| error_chain_text(&error);
        let Some(BlobMarkOutcome { blob_count, unreachable_owners }) = marked.map_err(failed)?
        else {
            return Ok(());
        };
        let options = self.sharing.sweep_options(SweepMode::Remove, self.trusted_now());
        let options = options.map_err(failed)?;
        for (role, swept) in self.sharing.sweep(&options, &mut &go_on).map_err(failed)? {
            if swept.occupied_until.is_some() {
                tracing::info!(role, needed = blob_count, "another process is sweeping the blobs");
                continue;
            }
            let (discarded, purged) = (swept.discarded.blob_count, swept.purged.blob_count);
            if !swept.unmarked_members.is_empty() {
                tracing::warn!(role, waits_for = ?swept.unmarked_members, "no blobs are removed until all \
                    members have marked the blobs that they need");
            }
            tracing::info!(role, needed = blob_count, discarded, purged, "blobs swept");
        }
        // Owners that could not be notified use the previous notification, and remove nothing newer.
        if unreachable_owners.is_empty() { Ok(()) } else { Err(unreachable_owners.join("; ")) }
    }

    fn purge_versions(&self) -> Result<(), String> {
        let purged = purge_versions(&self.repository, &self.config, self.trusted_now());
        let VersionPurgeReport { version_count, removed_count } =
            purged.map_err(|error| error_chain_text(&error))?;
        if removed_count > 0 {
            tracing::info!(
                versions = version_count,
                removed = removed_count,
                "outdated versions removed"
            );
        }
        Ok(())
    }

    fn purge_workflows(&self) -> Result<(), String> {
        let age = self.config.maintenance.workflows.map_or(Duration::MAX, |span| span.0);
        let Some(before) = self.trusted_now().checked_sub(age) else { return Ok(()) };
        let purging = WorkflowEngine::new(self.queues.clone());
        let removed = self.runtime.block_on(purging.purge_ended(before, None));
        let removed = removed.map_err(|error| error_chain_text(&error))?;
        if removed > 0 {
            tracing::info!(removed, "ended workflows removed");
        }
        Ok(())
    }
}
