//! Maintenance: what a running instance does by schedule, as jobs under the topics of AEM's tasks.
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
//! * A task that fails says why in the list of jobs; the next time comes all the same.
//! * What is removed for its age is judged by a clock that is trusted (`clock`).
//! * A task that is stopped, or killed, leaves everything whole, and begins anew.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tympan_blobs::collect::SweepMode;
use tympan_content::{Purged, Repository};
use tympan_jobs::workflow::Workflows;
use tympan_jobs::{Handler, Job, JobContext, MAINTENANCE_TOPIC, NewJob, Outcome, Queues, Worker};
use tympan_store::Collected;

use crate::blobs::{Marked, Sharing};
use crate::clock::trusted_now;
use crate::collection::{self, BYTES_PER_SECOND, EVERY, Pacer, collect_paced};
use crate::command::Fault;
use crate::config::Config;
use crate::home::{Home, chain};

const BLOBS: &str = "0 30 3 * * ?";
const DAILY: &str = "0 0 2 * * ?";
const WEEKLY: &str = "0 0 1 ? * SAT";

/// One of the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Garbage,
    Blobs,
    Versions,
    Workflows,
}

impl Task {
    const ALL: [Self; 4] = [Self::Garbage, Self::Blobs, Self::Versions, Self::Workflows];

    fn schedule(self) -> &'static str {
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

    /// Returns when it runs by itself; nothing if never.
    fn rule(self, config: &Config) -> Option<String> {
        let section = &config.maintenance;
        let or = |rule: &Option<String>, default: &str| {
            Some(rule.clone().unwrap_or_else(|| default.to_owned()))
        };
        match self {
            Self::Garbage => {
                let every = config.collect.every.map_or(EVERY, |span| span.0);
                (!every.is_zero()).then(|| format!("every {}ms", every.as_millis().max(1)))
            }
            Self::Blobs => or(&section.blobs, BLOBS),
            Self::Versions => or(&section.daily, DAILY),
            Self::Workflows => section.workflows.and_then(|_| or(&section.weekly, WEEKLY)),
        }
    }
}

/// Registers the tasks with a worker, and their schedules.
///
/// # Errors
/// With the key if a rule of the configuration is none; if the state database fails.
pub(crate) async fn register(worker: &Worker, home: &Home) -> Result<(), Fault> {
    let (repository, config) = (&home.repository, &home.config);
    let queues = worker.queues();
    for task in Task::ALL {
        worker.register(Arc::new(Run {
            task,
            topic: task.topic(),
            repository: repository.clone(),
            queues: queues.clone(),
            dir: home.dir.clone(),
            sharing: Sharing::of(home),
            config: config.clone(),
            runtime: Handle::current(),
        }));
        // What a clone has read of its base is worth keeping, and nothing of its own refers to it.
        let rule = task.rule(config).filter(|_| task != Task::Blobs || home.composite.is_none());
        let done = match rule {
            Some(rule) => {
                let job = NewJob::new(task.topic(), serde_json::json!({}));
                queues.schedule(task.schedule(), &rule, &job, SystemTime::now()).await
            }
            None => queues.unschedule(task.schedule()).await.map(|_| ()),
        };
        done.map_err(|error| match error {
            tympan_jobs::Error::Schedule { .. } => {
                Fault::usage(format!("tympan.toml: [maintenance]: {}", chain(&error)))
            }
            error => Fault::cannot_run(chain(&error)),
        })?;
    }
    Ok(())
}

/// Carries out one task.
struct Run {
    task: Task,
    topic: String,
    dir: PathBuf,
    repository: Repository,
    queues: Queues,
    sharing: Sharing,
    config: Config,
    runtime: Handle,
}

impl Handler for Run {
    fn topic(&self) -> &str {
        &self.topic
    }

    fn run(&self, _job: &Job, context: &JobContext) -> Outcome {
        let done = match self.task {
            Task::Garbage => self.collect(context),
            Task::Blobs => self.sweep_blobs(context),
            Task::Versions => self.purge_versions(),
            Task::Workflows => self.purge_workflows(),
        };
        match done {
            Ok(()) if context.cancelled() => Outcome::Cancelled,
            Ok(()) => Outcome::Done,
            Err(reason) => {
                tracing::error!(reason, topic = self.topic, "maintenance failed");
                Outcome::Failed { reason }
            }
        }
    }
}

impl Run {
    /// Returns the time by which things are removed for their age.
    fn trusted_now(&self) -> SystemTime {
        trusted_now(&self.dir, &**self.repository.chunks(), SystemTime::now())
    }

    fn collect(&self, context: &JobContext) -> Result<(), String> {
        let options = self.runtime.block_on(collection::options(
            &self.config,
            &self.queues,
            self.trusted_now(),
        ));
        let options = options.map_err(|fault| fault.message().to_owned())?;
        let rate = self.config.collect.rate.map_or(BYTES_PER_SECOND, |rate| rate.0.max(1));
        let is_stopped = || context.cancelled();
        match collect_paced(&**self.repository.chunks(), &options, rate, &is_stopped) {
            Ok(done) => {
                let Collected { generation, freed_bytes, moved_bytes, live_bytes, .. } = done;
                tracing::info!(
                    generation,
                    freed_bytes,
                    moved_bytes,
                    live_bytes,
                    "garbage collected"
                );
                context.progress(1, 1, &format!("{freed_bytes} bytes freed"));
                Ok(())
            }
            Err(tympan_store::Error::Collecting) => {
                tracing::debug!("another process collects garbage");
                Ok(())
            }
            Err(error) => Err(chain(&error)),
        }
    }

    fn sweep_blobs(&self, context: &JobContext) -> Result<(), String> {
        let rate = self.config.collect.rate.map_or(BYTES_PER_SECOND, |rate| rate.0.max(1));
        let go_on = || {
            if context.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let mut pace = Pacer::at(rate);
        let marked = self.sharing.mark(&**self.repository.chunks(), &mut |progress| {
            pace.wait(progress);
            go_on()
        });
        let failed = |fault: Fault| fault.message().to_owned();
        let Some(Marked { count, untold }) = marked.map_err(failed)? else { return Ok(()) };
        let options = self.sharing.sweep_options(SweepMode::Remove, self.trusted_now());
        let options = options.map_err(failed)?;
        for (role, swept) in self.sharing.sweep(&options, &mut &go_on).map_err(failed)? {
            if swept.others_until.is_some() {
                tracing::info!(role, needed = count, "another process sweeps the blobs");
                continue;
            }
            let (discarded, purged) = (swept.discarded.blobs, swept.purged.blobs);
            if !swept.waits_for.is_empty() {
                tracing::warn!(role, waits_for = ?swept.waits_for, "no blobs go before all have said what they need");
            }
            tracing::info!(role, needed = count, discarded, purged, "blobs swept");
        }
        // Their owners go by what they were told before, and remove nothing that is younger.
        if untold.is_empty() { Ok(()) } else { Err(untold.join("; ")) }
    }

    fn purge_versions(&self) -> Result<(), String> {
        let purged = collection::purge(&self.repository, &self.config, self.trusted_now());
        let Purged { versions, removed } = purged.map_err(|error| chain(&error))?;
        if removed > 0 {
            tracing::info!(versions, removed, "outdated versions taken away");
        }
        Ok(())
    }

    fn purge_workflows(&self) -> Result<(), String> {
        let age = self.config.maintenance.workflows.map_or(Duration::MAX, |span| span.0);
        let Some(before) = self.trusted_now().checked_sub(age) else { return Ok(()) };
        let purging = Workflows::new(self.queues.clone());
        let removed = self.runtime.block_on(purging.purge(before, None));
        let removed = removed.map_err(|error| chain(&error))?;
        if removed > 0 {
            tracing::info!(removed, "ended workflows taken away");
        }
        Ok(())
    }
}
