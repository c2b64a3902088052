//! AEM's asset synchronization service: configured mounts, whose passes run as jobs.
//!
//! In: the configuration in `tympan.toml` and content. Out: a schedule for each mount, whose jobs run the passes.
//!
//! Invariants
//! * Without mounts there is no schedule, no job, no thread and no timer.
//! * A mount has one pass at a time, over all processes, because its job has a key.
//! * The assets of a mount whose configuration was removed are unchanged.
//!
//! On failure: a failed pass is recorded and logged once; the next one runs when it is due.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use serde_json::{Value as Json, json};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{error, info, warn};
use tympan_content::Repository;
use tympan_jobs::{
    ConfigFault, Job, JobContext, JobHandler, JobOutcome, JobPriority, JobQueues, JobState, NewJob,
    OsgiConfigWatcher, OsgiConfigs,
};
use tympan_notation::error_chain_text;

use crate::Result;
use crate::asset_mount::{AssetMount, MountPurpose};
use crate::mount_config::{ConfiguredMounts, MountConfig, MountSettings};
use crate::mount_ledger::{LastMountPass, MountLedger};
use crate::mount_pass::{MountPassError, MountPassOptions, run_mount_pass};
use crate::mount_source::{MountSource, MountSourceError};
use crate::source_http::SourceNetwork;
use crate::source_opening;

/// Prefix of the topics of passes, which end in the mount's name.
pub const MOUNT_TOPIC: &str = "dam/synchronize";
/// Prefix of the names of mount schedules.
const SCHEDULE_NAME_PREFIX: &str = "mount ";
/// Minimum age of a file.
const MIN_FILE_AGE: Duration = Duration::from_secs(5);

/// Counters since the start.
#[derive(Debug, Default)]
pub struct MountCounters {
    /// Passes that began. It stays zero without mounts.
    pub passes: AtomicU64,
    /// Passes that failed. An increase indicates an unreachable source; the mount's status gives the reason.
    pub failed_passes: AtomicU64,
    /// Assets that passes added, changed, moved or removed.
    pub changes: AtomicU64,
}

/// The status of a mount.
#[derive(Debug, Clone, PartialEq)]
pub struct MountStatus {
    /// The configuration.
    pub config: MountConfig,
    /// True if the mount is paused.
    pub is_paused: bool,
    /// Due time of the next pass.
    pub next_run: Option<SystemTime>,
    /// Its current pass, if it waits or runs.
    pub job: Option<Job>,
    /// The result of the last pass.
    pub last_pass: Option<LastMountPass>,
    /// Number of known files.
    pub file_count: u64,
}

/// The service. Clones share it.
#[derive(Debug, Clone)]
pub struct MountService {
    pub(crate) state: Arc<MountServiceState>,
}

#[derive(Debug)]
pub(crate) struct MountServiceState {
    pub(crate) repository: Repository,
    pub(crate) queues: JobQueues,
    pub(crate) network: SourceNetwork,
    pub(crate) ledger: MountLedger,
    pub(crate) settings: MountSettings,
    active_mounts: RwLock<Arc<ActiveMounts>>,
    counters: MountCounters,
}

#[derive(Debug, Default)]
struct ActiveMounts {
    mounts: ConfiguredMounts,
    sources: BTreeMap<String, Arc<dyn MountSource>>,
}

impl MountService {
    /// Creates the service; [`MountService::apply_configs`] starts it.
    #[must_use]
    pub fn new(
        repository: Repository,
        queues: JobQueues,
        runtime: Handle,
        settings: MountSettings,
    ) -> Self {
        let ledger = MountLedger::new(&queues, runtime.clone());
        let network = SourceNetwork { runtime, outgoing_policy: settings.outgoing_policy.clone() };
        let (current, counters) = (RwLock::default(), MountCounters::default());
        Self {
            state: Arc::new(MountServiceState {
                repository,
                queues,
                network,
                ledger,
                settings,
                active_mounts: current,
                counters,
            }),
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &MountCounters {
        &self.state.counters
    }

    /// Returns the faults of mount configurations.
    #[must_use]
    pub fn faults(&self) -> Vec<ConfigFault> {
        self.state.active_mounts.read().mounts.faults.clone()
    }

    /// Applies the current configurations: adds and removes mounts.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn apply_configs(&self, configs: &OsgiConfigs, now: SystemTime) -> Result<()> {
        self.load_configs(configs);
        let current = self.state.active_mounts.read().clone();
        let mounts = &current.mounts.mounts;
        let queues = &self.state.queues;
        let mut stored = BTreeMap::new();
        for schedule in queues.schedules().list().await? {
            if let Some(name) = schedule.name.strip_prefix(SCHEDULE_NAME_PREFIX) {
                if mounts.iter().any(|mount| mount.name == name) {
                    stored.insert(name.to_owned(), schedule.properties);
                } else {
                    queues.schedules().remove(&schedule.name).await?;
                    info!(mount = name, "mount is no longer synchronized");
                }
            }
        }
        for mount in mounts {
            let job = mount_pass_job(mount);
            let seconds = mount.sync_period.map_or(1, |period| period.as_secs().max(1));
            let name = format!("{SCHEDULE_NAME_PREFIX}{}", mount.name);
            queues.schedules().add(&name, &format!("every {seconds}s"), &job, now).await?;
            // A new mount, or one whose source or target changed, does not wait for its period.
            if stored.get(&mount.name) != Some(&job.properties) {
                queues.add_job(job.with_key(format!("schedule {name}")), now).await?;
            }
        }
        Ok(())
    }

    /// Loads configurations without changing schedules: for a process that runs passes but schedules none.
    pub fn load_configs(&self, configs: &OsgiConfigs) {
        let inner = &self.state;
        let mut configured = inner.settings.with_osgi_configs(configs);
        let mut sources = BTreeMap::new();
        configured.mounts.retain(|mount| {
            match source_opening::open_mount_source(
                &mount.source,
                &inner.settings.locations,
                &inner.network,
            ) {
                Ok(source) => {
                    sources.insert(mount.name.clone(), source);
                    true
                }
                Err(message) => {
                    let path = mount.path.clone().unwrap_or_else(|| "tympan.toml".to_owned());
                    configured.faults.push(ConfigFault { path, message });
                    false
                }
            }
        });
        for fault in &configured.faults {
            warn!(path = fault.path, reason = fault.message, "skipped an invalid mount");
        }
        *inner.active_mounts.write() = Arc::new(ActiveMounts { mounts: configured, sources });
    }

    /// Follows configurations until `stop` turns true. If `schedules` is true, the process also maintains the
    /// schedules.
    pub async fn run(
        self,
        configurator: OsgiConfigWatcher,
        schedules: bool,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut changes = configurator.subscribe_changes();
        loop {
            let configs = configurator.configs();
            if schedules {
                if let Err(failure) = self.apply_configs(&configs, SystemTime::now()).await {
                    error!(reason = error_chain_text(&failure), "cannot schedule mounts");
                }
            } else {
                self.load_configs(&configs);
            }
            if *stop.borrow() {
                return;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                _ = stop.changed() => return,
            }
        }
    }

    /// Returns the status of all mounts.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list_statuses(&self) -> Result<Vec<MountStatus>> {
        let current = self.state.active_mounts.read().clone();
        if current.mounts.mounts.is_empty() {
            return Ok(Vec::new());
        }
        let schedules = self.state.queues.schedules().list().await?;
        let mut statuses = Vec::new();
        for config in &current.mounts.mounts {
            let name = format!("{SCHEDULE_NAME_PREFIX}{}", config.name);
            let schedule = schedules.iter().find(|schedule| schedule.name == name);
            statuses.push(MountStatus {
                config: config.clone(),
                is_paused: schedule.is_some_and(|schedule| schedule.is_paused),
                next_run: schedule.and_then(|schedule| schedule.next_run),
                job: self.find_open_job(&config.name).await?,
                last_pass: self.state.ledger.last_pass(&config.name).await?,
                file_count: self.state.ledger.count_files(&config.name).await?,
            });
        }
        Ok(statuses)
    }

    async fn find_open_job(&self, mount: &str) -> Result<Option<Job>> {
        let jobs = self.state.queues.list_topic(&mount_topic(mount), 10).await?;
        Ok(jobs.into_iter().find(|job| job.state.is_open()))
    }

    /// Starts a pass now, also of a paused mount. Returns true if the mount exists.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn start_pass_now(&self, mount: &str, now: SystemTime) -> Result<bool> {
        let Some(config) = self.find_config(mount) else { return Ok(false) };
        let key = format!("schedule {SCHEDULE_NAME_PREFIX}{mount}");
        let job = mount_pass_job(&config).with_key(key).with_priority(JobPriority::High);
        self.state.queues.add_job(job, now).await?;
        Ok(true)
    }

    fn find_config(&self, mount: &str) -> Option<MountConfig> {
        let current = self.state.active_mounts.read().clone();
        current.mounts.mounts.iter().find(|config| config.name == mount).cloned()
    }

    /// Allows the next pass of a mount to accept any number of removed files. Returns true if the mount exists.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn accept_removals(&self, mount: &str) -> Result<bool> {
        if self.find_config(mount).is_none() {
            return Ok(false);
        }
        // Before the first pass no file can be missing.
        self.state.ledger.accept_removals(mount).await?;
        Ok(true)
    }

    /// Stops the current pass of a mount after its batch, and starts no other until [`MountService::resume_mount`].
    /// Returns true if the mount exists.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn pause_mount(&self, mount: &str) -> Result<bool> {
        let is_there = self.set_paused(mount, true).await?;
        if let Some(job) = self.find_open_job(mount).await?.filter(|_| is_there) {
            match job.state {
                JobState::Active => self.state.queues.request_stop(job.id).await?,
                _ => self.state.queues.cancel_job(job.id).await?,
            };
        }
        Ok(is_there)
    }

    /// Resumes a mount's passes, the first at once. Returns true if the mount exists.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn resume_mount(&self, mount: &str, now: SystemTime) -> Result<bool> {
        Ok(self.set_paused(mount, false).await? && self.start_pass_now(mount, now).await?)
    }

    /// Pauses or resumes the schedule of a mount. Returns true if the mount exists.
    async fn set_paused(&self, mount: &str, is_paused: bool) -> Result<bool> {
        if self.find_config(mount).is_none() {
            return Ok(false);
        }
        let schedule = format!("{SCHEDULE_NAME_PREFIX}{mount}");
        Ok(self.state.queues.schedules().set_paused(&schedule, is_paused).await?)
    }

    /// Runs a pass of a mount.
    fn run_pass_job(&self, name: &str, context: &JobContext) -> JobOutcome {
        let inner = &self.state;
        let current = inner.active_mounts.read().clone();
        let config = current.mounts.mounts.iter().find(|config| config.name == name);
        let (Some(config), Some(source)) = (config, current.sources.get(name)) else {
            let reason = format!("the mount `{name}` is not configured in this process");
            return JobOutcome::Failed { reason };
        };
        let mount = AssetMount {
            name: name.to_owned(),
            target: config.target.clone(),
            source: source.clone(),
            purpose: MountPurpose::Synchronize,
            min_file_age: MIN_FILE_AGE,
        };
        let accepts_removals = match inner.ledger.accepts_removals(name) {
            Ok(accepts) => accepts,
            Err(failure) => {
                return JobOutcome::Retry { after: None, reason: error_chain_text(&failure) };
            }
        };
        inner.counters.passes.fetch_add(1, Ordering::Relaxed);
        let options =
            MountPassOptions { now: SystemTime::now(), accepts_removals, is_dry_run: false };
        let mut on_progress = |done, total| {
            context.report_progress(done, total, if total == 0 { "listing" } else { "reading" });
            !context.is_cancelled()
        };
        let made =
            run_mount_pass(&inner.repository, &inner.ledger, &mount, options, &mut on_progress);
        if made.is_err() {
            inner.counters.failed_passes.fetch_add(1, Ordering::Relaxed);
        }
        match made {
            Ok(report) => {
                inner.counters.changes.fetch_add(report.change_count(), Ordering::Relaxed);
                if report.held_back > 0 {
                    warn!(
                        mount = name,
                        files = report.held_back,
                        "files are gone; their assets are kept until their removal is accepted"
                    );
                }
                if report.change_count() > 0 {
                    info!(mount = name, assets = report.change_count(), "mount synchronized");
                }
                // After a pass without any change, the next one would be the same.
                let goes_on = report.waiting > 0 && report.change_count() > 0;
                match (context.is_cancelled(), goes_on) {
                    (true, _) => JobOutcome::Cancelled,
                    (false, true) => JobOutcome::Wait { after: Duration::ZERO },
                    (false, false) => JobOutcome::Done,
                }
            }
            Err(MountPassError::Source { source: MountSourceError::Stopped, .. }) => {
                JobOutcome::Cancelled
            }
            // The source is at fault; the next pass runs when it is due.
            Err(failure @ MountPassError::Source { .. }) => {
                warn!(
                    mount = name,
                    reason = error_chain_text(&failure),
                    "cannot synchronize a mount"
                );
                JobOutcome::Done
            }
            Err(failure) if failure.is_transient() => {
                JobOutcome::Retry { after: None, reason: error_chain_text(&failure) }
            }
            Err(failure) => JobOutcome::Failed { reason: error_chain_text(&failure) },
        }
    }
}

fn mount_topic(mount: &str) -> String {
    format!("{MOUNT_TOPIC}/{mount}")
}

fn mount_pass_job(mount: &MountConfig) -> NewJob {
    let properties = json!({
        "mount": mount.name,
        "source": mount.source,
        "target": mount.target.as_str(),
    });
    NewJob::new(mount_topic(&mount.name), properties)
}

/// Handles the jobs of passes.
pub(crate) struct MountHandler {
    service: MountService,
    topic: String,
}

impl MountHandler {
    pub(crate) fn new(service: MountService) -> Self {
        Self { service, topic: format!("{MOUNT_TOPIC}/*") }
    }
}

impl JobHandler for MountHandler {
    fn topic(&self) -> &str {
        &self.topic
    }

    fn run(&self, job: &Job, context: &JobContext) -> JobOutcome {
        match job.properties.get("mount").and_then(Json::as_str) {
            Some(name) => self.service.run_pass_job(name, context),
            None => JobOutcome::Failed { reason: "the job names no mount".to_owned() },
        }
    }
}
