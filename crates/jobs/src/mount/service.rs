//! AEM's asset synchronization service: mounts by configuration, their passes as jobs.
//!
//! In: what `tympan.toml` and content configure. Out: a schedule for each mount, whose jobs make the passes.
//!
//! Invariants
//! * Without mounts there is nothing: no schedule, no job, no thread, no look at the time.
//! * A mount has one pass at a time, in all processes together: its job has a key.
//! * A mount that is configured no more leaves its assets as they are.
//!
//! On failure: a pass that fails is noted and logged once; the next one comes when it is due.

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

use super::config::{Configured, MountConfig, MountSettings};
use super::http::Way;
use super::import::ImportHandler;
use super::ledger::{LastPass, Ledger};
use super::pass::{Mount, Order, PassError, Purpose, synchronize};
use super::place;
use super::source::{Source, SourceError};
use crate::error::chain;
use crate::{
    ConfigFault, Configs, Configurator, Handler, Job, JobContext, JobState, NewJob, Outcome,
    Priority, Queues, Result,
};

/// The topics of passes end in the mount's name.
pub const MOUNT_TOPIC: &str = "dam/synchronize";
/// What schedules of mounts begin with.
const SCHEDULE: &str = "mount ";
/// How long ago a file must have been written to be taken.
const SETTLE: Duration = Duration::from_secs(5);

/// Counts since the start.
#[derive(Debug, Default)]
pub struct MountCounters {
    /// Passes that began. It stays zero where there are no mounts.
    pub passes: AtomicU64,
    /// Passes that failed. A rise means a place that cannot be reached; its mount says why.
    pub failed: AtomicU64,
    /// Assets that passes added, changed, moved or removed.
    pub changes: AtomicU64,
}

/// What is known of a mount.
#[derive(Debug, Clone, PartialEq)]
pub struct MountStatus {
    /// How it is configured.
    pub config: MountConfig,
    /// Whether it is paused.
    pub is_paused: bool,
    /// When its next pass is due.
    pub next_run: Option<SystemTime>,
    /// Its present pass, if it waits or runs.
    pub job: Option<Job>,
    /// Its last pass.
    pub last: Option<LastPass>,
    /// How many files are known.
    pub files: u64,
}

/// The service. Clones are the same.
#[derive(Debug, Clone)]
pub struct Mounts {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) repository: Repository,
    pub(crate) queues: Queues,
    pub(crate) way: Way,
    pub(crate) ledger: Ledger,
    pub(crate) settings: MountSettings,
    current: RwLock<Arc<Current>>,
    counters: MountCounters,
}

#[derive(Debug, Default)]
struct Current {
    configured: Configured,
    sources: BTreeMap<String, Arc<dyn Source>>,
}

impl Mounts {
    /// Makes the service; [`Mounts::apply`] begins it.
    #[must_use]
    pub fn new(
        repository: Repository,
        queues: Queues,
        runtime: Handle,
        settings: MountSettings,
    ) -> Self {
        let ledger = Ledger::new(&queues, runtime.clone());
        let way = Way { runtime, outgoing: settings.outgoing.clone() };
        let (current, counters) = (RwLock::default(), MountCounters::default());
        Self {
            inner: Arc::new(Inner { repository, queues, way, ledger, settings, current, counters }),
        }
    }

    /// Returns the handlers of its jobs, to be registered with a worker.
    #[must_use]
    pub fn handlers(&self) -> Vec<Arc<dyn Handler>> {
        vec![
            Arc::new(MountHandler { mounts: self.clone(), topic: format!("{MOUNT_TOPIC}/*") }),
            Arc::new(ImportHandler::new(self.clone())),
        ]
    }

    /// Returns what it has done so far.
    #[must_use]
    pub fn counters(&self) -> &MountCounters {
        &self.inner.counters
    }

    /// Returns what is wrong with configurations of mounts.
    #[must_use]
    pub fn faults(&self) -> Vec<ConfigFault> {
        self.inner.current.read().configured.faults.clone()
    }

    /// Takes over the configurations that are in force now: mounts come and go.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn apply(&self, configs: &Configs, now: SystemTime) -> Result<()> {
        self.load(configs);
        let current = self.inner.current.read().clone();
        let mounts = &current.configured.mounts;
        let queues = &self.inner.queues;
        let mut stored = BTreeMap::new();
        for schedule in queues.schedules().await? {
            if let Some(name) = schedule.name.strip_prefix(SCHEDULE) {
                if mounts.iter().any(|mount| mount.name == name) {
                    stored.insert(name.to_owned(), schedule.properties);
                } else {
                    queues.unschedule(&schedule.name).await?;
                    info!(mount = name, "a mount is not synchronized any more");
                }
            }
        }
        for mount in mounts {
            let job = job_of(mount);
            let seconds = mount.period.map_or(1, |period| period.as_secs().max(1));
            let name = format!("{SCHEDULE}{}", mount.name);
            queues.schedule(&name, &format!("every {seconds}s"), &job, now).await?;
            // A new mount, or one that leads elsewhere now, does not wait for its period.
            if stored.get(&mount.name) != Some(&job.properties) {
                queues.add(job.key(format!("schedule {name}")), now).await?;
            }
        }
        Ok(())
    }

    /// Reads configurations, without what they lead to: for a process that makes passes and schedules none.
    pub fn load(&self, configs: &Configs) {
        let inner = &self.inner;
        let mut configured = inner.settings.with(configs);
        let mut sources = BTreeMap::new();
        configured.mounts.retain(|mount| {
            match place::open(&mount.source, &inner.settings.places, &inner.way) {
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
            warn!(path = fault.path, reason = fault.message, "a mount is left out");
        }
        *inner.current.write() = Arc::new(Current { configured, sources });
    }

    /// Follows configurations until `stop` turns true. A process that `schedules` looks after the schedules, too.
    pub async fn run(
        self,
        configurator: Configurator,
        schedules: bool,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut changes = configurator.changes();
        loop {
            let configs = configurator.configs();
            if schedules {
                if let Err(failure) = self.apply(&configs, SystemTime::now()).await {
                    error!(reason = chain(&failure), "mounts cannot be scheduled");
                }
            } else {
                self.load(&configs);
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

    /// Lists the mounts with what is known of them.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn status(&self) -> Result<Vec<MountStatus>> {
        let current = self.inner.current.read().clone();
        if current.configured.mounts.is_empty() {
            return Ok(Vec::new());
        }
        let schedules = self.inner.queues.schedules().await?;
        let mut found = Vec::new();
        for config in &current.configured.mounts {
            let name = format!("{SCHEDULE}{}", config.name);
            let schedule = schedules.iter().find(|schedule| schedule.name == name);
            found.push(MountStatus {
                config: config.clone(),
                is_paused: schedule.is_some_and(|schedule| schedule.is_paused),
                next_run: schedule.and_then(|schedule| schedule.next_run),
                job: self.open_job(&config.name).await?,
                last: self.inner.ledger.last(&config.name).await?,
                files: self.inner.ledger.count(&config.name).await?,
            });
        }
        Ok(found)
    }

    async fn open_job(&self, mount: &str) -> Result<Option<Job>> {
        let jobs = self.inner.queues.list_topic(&topic_of(mount), 10).await?;
        Ok(jobs.into_iter().find(|job| job.state.is_open()))
    }

    /// Begins a pass now, also of a mount that is paused. Tells whether there is such a mount.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn run_now(&self, mount: &str, now: SystemTime) -> Result<bool> {
        let Some(config) = self.find(mount) else { return Ok(false) };
        let key = format!("schedule {SCHEDULE}{mount}");
        let job = job_of(&config).key(key).priority(Priority::High);
        self.inner.queues.add(job, now).await?;
        Ok(true)
    }

    fn find(&self, mount: &str) -> Option<MountConfig> {
        let current = self.inner.current.read().clone();
        current.configured.mounts.iter().find(|config| config.name == mount).cloned()
    }

    /// Lets the next pass of a mount believe that files are gone, however many. Tells whether there is such a mount.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn accept_removals(&self, mount: &str) -> Result<bool> {
        if self.find(mount).is_none() {
            return Ok(false);
        }
        // Before the first pass nothing can be gone.
        self.inner.ledger.accept_removals(mount).await?;
        Ok(true)
    }

    /// Ends the present pass of a mount after its batch, and begins no other until [`Mounts::resume`]. Tells whether
    /// there is such a mount.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn pause(&self, mount: &str) -> Result<bool> {
        if self.find(mount).is_none() {
            return Ok(false);
        }
        let is_there =
            self.inner.queues.pause_schedule(&format!("{SCHEDULE}{mount}"), true).await?;
        if let Some(job) = self.open_job(mount).await?.filter(|_| is_there) {
            match job.state {
                JobState::Active => self.inner.queues.stop(job.id).await?,
                _ => self.inner.queues.cancel(job.id).await?,
            };
        }
        Ok(is_there)
    }

    /// Lets a mount's passes begin again, the first at once. Tells whether there is such a mount.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn resume(&self, mount: &str, now: SystemTime) -> Result<bool> {
        if self.find(mount).is_none() {
            return Ok(false);
        }
        let is_there =
            self.inner.queues.pause_schedule(&format!("{SCHEDULE}{mount}"), false).await?;
        Ok(is_there && self.run_now(mount, now).await?)
    }

    /// Makes a pass of a mount.
    fn pass(&self, name: &str, context: &JobContext) -> Outcome {
        let inner = &self.inner;
        let current = inner.current.read().clone();
        let config = current.configured.mounts.iter().find(|config| config.name == name);
        let (Some(config), Some(source)) = (config, current.sources.get(name)) else {
            let reason = format!("the mount `{name}` is not configured in this process");
            return Outcome::Failed { reason };
        };
        let mount = Mount {
            name: name.to_owned(),
            target: config.target.clone(),
            source: source.clone(),
            purpose: Purpose::Follow,
            settle: SETTLE,
        };
        let accepts_removals = match inner.ledger.accepts_removals(name) {
            Ok(accepts) => accepts,
            Err(failure) => return Outcome::Retry { after: None, reason: chain(&failure) },
        };
        inner.counters.passes.fetch_add(1, Ordering::Relaxed);
        let order = Order { now: SystemTime::now(), accepts_removals, is_dry: false };
        let mut going = |done, total| {
            context.progress(done, total, if total == 0 { "listing" } else { "reading" });
            !context.cancelled()
        };
        let made = synchronize(&inner.repository, &inner.ledger, &mount, order, &mut going);
        if made.is_err() {
            inner.counters.failed.fetch_add(1, Ordering::Relaxed);
        }
        match made {
            Ok(report) => {
                inner.counters.changes.fetch_add(report.changes(), Ordering::Relaxed);
                if report.held_back > 0 {
                    warn!(
                        mount = name,
                        files = report.held_back,
                        "files are gone, and their assets stay until someone accepts it"
                    );
                }
                if report.changes() > 0 {
                    info!(mount = name, assets = report.changes(), "a mount is synchronized");
                }
                // A pass without any change would only be followed by its like.
                let goes_on = report.waiting > 0 && report.changes() > 0;
                match (context.cancelled(), goes_on) {
                    (true, _) => Outcome::Cancelled,
                    (false, true) => Outcome::Wait { after: Duration::ZERO },
                    (false, false) => Outcome::Done,
                }
            }
            Err(PassError::Source { source: SourceError::Stopped, .. }) => Outcome::Cancelled,
            // The place is to blame: the next pass comes when it is due.
            Err(failure @ PassError::Source { .. }) => {
                warn!(mount = name, reason = chain(&failure), "a mount is not synchronized");
                Outcome::Done
            }
            Err(failure) if failure.is_transient() => {
                Outcome::Retry { after: None, reason: chain(&failure) }
            }
            Err(failure) => Outcome::Failed { reason: chain(&failure) },
        }
    }
}

fn topic_of(mount: &str) -> String {
    format!("{MOUNT_TOPIC}/{mount}")
}

fn job_of(mount: &MountConfig) -> NewJob {
    let properties = json!({
        "mount": mount.name,
        "source": mount.source,
        "target": mount.target.as_str(),
    });
    NewJob::new(topic_of(&mount.name), properties)
}

/// Carries out passes.
struct MountHandler {
    mounts: Mounts,
    topic: String,
}

impl Handler for MountHandler {
    fn topic(&self) -> &str {
        &self.topic
    }

    fn run(&self, job: &Job, context: &JobContext) -> Outcome {
        match job.properties.get("mount").and_then(Json::as_str) {
            Some(name) => self.mounts.pass(name, context),
            None => Outcome::Failed { reason: "the job names no mount".to_owned() },
        }
    }
}
