//! Scheduled saves: an author saves itself into a vault, as a job.
//!
//! The vault's key and index stay in memory between two saves, so that the cost of a save depends only on the changes.
//! [`ScheduledSaveStatus`] reports an overdue save, and the time of the last one; each run is listed in the jobs and in
//! the log of runs.
//!
//! Invariants
//! * A save contains one consistent state of the repository, and other folders as they are when read.
//! * A failed save reports its error, and the schedule continues.
//! * Retention runs after a successful save, and never removes the snapshot of that save.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};
use tympan_notation::error_chain_text;
use tympan_notation::parse_duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tympan_backup::{
    BackupProgress, BackupRepositorySource, BackupRunLog, BackupRunRecord, BaselineSource,
    DocumentView, LiveStore, PruneOptions, RetentionPolicy, SaveOptions, SaveSession, SaveSummary,
    ThrottleReport, ThrottledSave, TunedSaveSettings, Vault, VaultAccess, VaultIndex, VaultLock,
    VaultLockMode, VaultPassword, VaultUser, WriterTuning, apply_retention, open_vault_backend,
    prune_snapshots, save_directories, save_repository, source_path,
};
use tympan_blobs::ReadBlobs;
use tympan_content::Repository;
use tympan_home::{Home, HomeAccess, MAIN_BRANCH, open_other_home_blobs, recorded_trusted_now};
use tympan_jobs::{Job, JobContext, JobHandler, JobOutcome, JobWorker, NewJob};
use tympan_store::{LocalStore, RevisionRetention};

use crate::document_view::ContentDocumentView;
use crate::error::{Error, Result};
use crate::home_file::{StateDatabaseInclusion, read_home_files};
use crate::repository_source::{SeparatelySavedBase, new_spool_dir, snapshot_path_of_home};
use crate::save_throttle::start_save_throttle;

/// The topic of its jobs.
const SAVE_TOPIC: &str = "tympan/backup/save";
/// The name of its schedule.
pub const SAVE_SCHEDULE_NAME: &str = "backup";
/// The default schedule: half past two every night.
pub(crate) const DEFAULT_SCHEDULE: &str = "0 30 2 * * ?";
/// The default maximum age, at which a daily save is half a day late.
pub(crate) const DEFAULT_MAX_AGE: Duration = Duration::from_hours(36);
/// The maximum duration of a throttled save, regardless of the interval between saves.
const MAX_THROTTLED_DURATION: Duration = Duration::from_hours(1);
/// The maximum wait for other processes that lock the vault.
const VAULT_LOCK_TIMEOUT: Duration = Duration::from_mins(10);
/// The grace period of unused packs in the vault, as for `tympan backup prune`.
const PRUNE_GRACE: Duration = Duration::from_hours(23);

/// The options of scheduled saves.
#[derive(Debug, Clone)]
pub struct ScheduledSaveOptions {
    /// The location of the vault.
    pub vault: String,
    /// How it is accessed.
    pub access: VaultAccess,
    /// The file with its password.
    pub password_file: PathBuf,
    /// The folder that caches data of a remote vault, and the default size of the cache in bytes.
    pub cache: Option<(PathBuf, u64)>,
    /// The user's folder for configuration, with the settings that a search found for the vault.
    pub config_dir: Option<PathBuf>,
    /// The schedule, as a Quartz expression in UTC, or `every` and a duration.
    pub schedule: String,
    /// Folders that are saved in addition to the repository.
    pub folders: Vec<PathBuf>,
    /// Whether jobs and logins are saved.
    pub state: StateDatabaseInclusion,
    /// The earlier revisions to save; `None` for none.
    pub history: Option<RevisionRetention>,
    /// True if a clone saves the data of its base as well.
    pub includes_base: bool,
    /// True if a save slows down while visitors wait.
    pub is_throttled: bool,
    /// The retention policy of this instance's snapshots; `None` if all are kept.
    pub retention: Option<RetentionPolicy>,
    /// The name of this client in snapshots, if it is not the host's.
    pub client: Option<String>,
    /// The maximum age of the last successful save.
    pub max_age: Duration,
}

/// Returns the log of a home's scheduled saves.
pub fn scheduled_save_log(home: &Path) -> BackupRunLog {
    BackupRunLog::new(home.join("logs/backup.jsonl"))
}

/// Registers the job with a worker, and its schedule. Returns the status of the saves.
///
/// # Errors
/// [`Error::Refused`] with the key if an option is invalid; otherwise if the state database fails.
pub async fn schedule_saves(
    worker: &JobWorker,
    access: &HomeAccess,
    home: &Home,
    options: ScheduledSaveOptions,
) -> Result<Arc<ScheduledSaveStatus>> {
    let log = scheduled_save_log(&home.dir);
    let runs = log.read().unwrap_or_default();
    let dir = home.dir.canonicalize().unwrap_or_else(|_| home.dir.clone());
    let path = snapshot_path_of_home(&dir);
    let last_success = last_successful_save(&runs, &path, !options.folders.is_empty());
    let status = Arc::new(ScheduledSaveStatus {
        last_success: AtomicI64::new(last_success),
        fault: Mutex::default(),
        max_age: options.max_age,
    });
    let clone_stores = match home.composite.as_ref().filter(|_| !options.includes_base) {
        None => None,
        Some(composite) => {
            let spool = new_spool_dir()?;
            let blobs = open_other_home_blobs(access, &dir, spool.path())?;
            Some(CloneOwnStores { chunks: composite.overlay().clone(), blobs, _spool_dir: spool })
        }
    };
    // An invalid address is reported at the start; the vault itself may be unreachable.
    open_vault_backend(&options.vault, &options.access)
        .map_err(|error| Error::Refused(format!("vault: {}", error_chain_text(&error))))?;
    let rule = to_schedule_rule(&options.schedule);
    worker.register_handler(Arc::new(ScheduledSaveJob {
        options,
        home_access: access.clone(),
        repository: home.repository.clone(),
        blobs: home.blobs.read_storage(&home.dir),
        snapshot_path: path,
        clone_stores,
        dir,
        log,
        status: status.clone(),
        last_retention: AtomicI64::new(current_timestamp().as_second()),
        vault_and_index: Mutex::default(),
    }));
    let job = NewJob::new(SAVE_TOPIC, serde_json::json!({}));
    let queues = worker.queues();
    queues.schedules().add(SAVE_SCHEDULE_NAME, &rule, &job, SystemTime::now()).await.map_err(
        |error| match error {
            tympan_jobs::Error::InvalidSchedule { .. } => {
                Error::Refused(format!("schedule: {}", error_chain_text(&error)))
            }
            error => error.into(),
        },
    )?;
    Ok(status)
}

/// Removes the schedule of saves, if there is one.
///
/// # Errors
/// If the state database fails.
pub async fn unschedule_saves(worker: &JobWorker) -> Result<()> {
    worker.queues().schedules().remove(SAVE_SCHEDULE_NAME).await?;
    Ok(())
}

/// Converts a period with the units of this file to the notation of the jobs; other rules are returned unchanged.
fn to_schedule_rule(text: &str) -> String {
    let period = schedule_period(text);
    period.map_or_else(|| text.to_owned(), |period| format!("every {}ms", period.as_millis()))
}

/// Returns the period of a rule; `None` if it has none.
fn schedule_period(text: &str) -> Option<Duration> {
    text.trim().strip_prefix("every ").and_then(|period| parse_duration(period).ok())
}

/// Returns the maximum duration of a throttled save: it must end well before the last save counts as overdue, and
/// before the next scheduled one.
fn throttled_save_limit(max_age: Duration, schedule: &str) -> Duration {
    let longest = (max_age / 4).min(MAX_THROTTLED_DURATION);
    schedule_period(schedule).map_or(longest, |period| longest.min(period / 2))
}

/// Returns the time of the last complete scheduled save, in seconds since 1970: of the repository, and of the folders
/// if there are any. 0 for never.
fn last_successful_save(runs: &[BackupRunRecord], path: &str, has_folders: bool) -> i64 {
    let last = |is_repository: bool| {
        let good = |run: &&BackupRunRecord| run.kind.is_success() && run.faults == 0;
        let of_it = |run: &&BackupRunRecord| (run.paths == [path]) == is_repository;
        let last = runs.iter().rev().filter(good).find(of_it);
        last.map_or(0, |run| run.end.as_second())
    };
    if has_folders { last(true).min(last(false)) } else { last(true) }
}

/// The time of the last successful save, and the fault since then.
#[derive(Debug)]
pub struct ScheduledSaveStatus {
    /// Seconds since 1970; 0 for never.
    last_success: AtomicI64,
    fault: Mutex<Option<String>>,
    max_age: Duration,
}

impl ScheduledSaveStatus {
    /// Returns the fault that an operator has to handle, if any.
    pub fn current_fault(&self, now: SystemTime) -> Option<String> {
        if let Some(fault) = &*self.fault.lock() {
            return Some(format!("the last save failed: {fault}"));
        }
        let success = self.last_success.load(Ordering::Relaxed);
        if success == 0 {
            return Some("no save has succeeded yet".to_owned());
        }
        let now = Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH).as_second();
        let age = Duration::from_secs(u64::try_from(now - success).unwrap_or(0));
        (age > self.max_age)
            .then(|| format!("the last successful save ended {} h ago", age.as_secs() / 3_600))
    }

    /// Returns the metrics of the saves of an instance with this role as Prometheus text.
    pub fn render_metrics(&self, role: &str) -> String {
        let table = [
            (
                "tympan_backup_last_success_timestamp_seconds",
                "Time of the end of the last successful save, in seconds since 1970; 0 for never. Later \
                 changes were not saved.",
                self.last_success.load(Ordering::Relaxed),
            ),
            (
                "tympan_backup_failing",
                "Whether the last save failed.",
                i64::from(self.fault.lock().is_some()),
            ),
        ];
        let mut text = String::new();
        for (name, help, value) in table {
            // Writing to a string cannot fail.
            write!(
                text,
                "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{role=\"{role}\"}} {value}\n"
            )
            .ok();
        }
        text
    }
}

/// A clone's own stores.
struct CloneOwnStores {
    chunks: Arc<LocalStore>,
    blobs: Arc<dyn ReadBlobs>,
    /// Stores large blobs of other machines while they are read.
    _spool_dir: tempfile::TempDir,
}

/// Runs a save.
struct ScheduledSaveJob {
    options: ScheduledSaveOptions,
    home_access: HomeAccess,
    repository: Repository,
    blobs: Arc<dyn ReadBlobs>,
    snapshot_path: String,
    /// A clone's own stores, if its base is backed up by its owner.
    clone_stores: Option<CloneOwnStores>,
    dir: PathBuf,
    log: BackupRunLog,
    status: Arc<ScheduledSaveStatus>,
    /// The time of the last successful retention, or of the instance's start, in seconds since 1970.
    last_retention: AtomicI64,
    /// The vault and its index, cached between saves. Locked during a save.
    vault_and_index: Mutex<Option<(Arc<Vault>, Arc<VaultIndex>)>>,
}

impl JobHandler for ScheduledSaveJob {
    fn topic(&self) -> &str {
        SAVE_TOPIC
    }

    fn run(&self, _job: &Job, context: &JobContext) -> JobOutcome {
        // A save that takes longer than an interval must not fill the queue with waiting ones.
        let Some(mut opened) = self.vault_and_index.try_lock() else {
            return JobOutcome::Done;
        };
        let done = self.save_all(&mut opened, context);
        match done {
            Ok(summary) => {
                *self.status.fault.lock() = None;
                self.status.last_success.store(current_timestamp().as_second(), Ordering::Relaxed);
                tracing::info!(reason = summary, "saved");
                context.report_progress(1, 1, &summary);
                JobOutcome::Done
            }
            Err(_) if context.is_cancelled() => JobOutcome::Cancelled,
            Err(reason) => {
                // The cached state may be the cause of the failure.
                *opened = None;
                tracing::error!(reason, "scheduled save failed");
                *self.status.fault.lock() = Some(reason.clone());
                JobOutcome::Failed { reason }
            }
        }
    }
}

fn current_timestamp() -> Timestamp {
    Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH)
}

impl ScheduledSaveJob {
    /// Saves the repository and the folders, and applies the retention. Returns a description of the result.
    fn save_all(
        &self,
        opened: &mut Option<(Arc<Vault>, Arc<VaultIndex>)>,
        context: &JobContext,
    ) -> Result<String, String> {
        let (user, since) = (VaultUser::this_process(), current_timestamp());
        if opened.is_none() {
            let vault = self.open_vault();
            let vault =
                vault.map_err(|error| self.record_failure(since, error_chain_text(&error)))?;
            *opened = Some((Arc::new(vault), Arc::default()));
        }
        let Some((vault, index)) = opened else { return Err("the vault is not open".to_owned()) };
        let (mut words, mut faults) = (Vec::new(), Vec::new());
        {
            let lock = VaultLock::acquire(vault, &user, VaultLockMode::Shared, VAULT_LOCK_TIMEOUT);
            let lock =
                lock.map_err(|error| self.record_failure(since, error_chain_text(&error)))?;
            let folders = Some(&*self.options.folders).filter(|folders| !folders.is_empty());
            // An error in one source must not prevent the other from being saved.
            for source in [Some(None), folders.map(Some)].into_iter().flatten() {
                match self.save_source(vault, index, &lock, context, since, source) {
                    Ok(summary) => words.push(summary),
                    Err(fault) => faults.push(fault),
                }
            }
        }
        if !faults.is_empty() {
            return Err(faults.join("; "));
        }
        if let Some(keep) = &self.options.retention {
            let done = self.apply_retention(vault, &user, (keep, since));
            if done.is_ok() {
                self.last_retention.store(current_timestamp().as_second(), Ordering::Relaxed);
            }
            let age = current_timestamp().as_second() - self.last_retention.load(Ordering::Relaxed);
            let age = Duration::from_secs(u64::try_from(age).unwrap_or(0));
            words.extend(retention_outcome(done, age > self.status.max_age)?);
        }
        Ok(words.join("; "))
    }

    fn open_vault(&self) -> tympan_backup::Result<Vault> {
        let options = &self.options;
        let password = VaultPassword::from_file(&options.password_file)?;
        let tuned = TunedSaveSettings::read(options.config_dir.as_deref(), &options.vault);
        let connections = tuned.connection_count().map(usize::from);
        let access = VaultAccess { connections, ..options.access.clone() };
        let backend = open_vault_backend(&options.vault, &access)?;
        let mut vault = password.open_with(|password| Vault::open(backend.clone(), password))?;
        if let Some((dir, default_bytes)) = options.cache.as_ref().filter(|_| backend.is_remote()) {
            let max_bytes = tuned.tree_cache_bytes().unwrap_or(*default_bytes);
            let cached = if max_bytes > 0 { vault.enable_cache(dir, max_bytes) } else { Ok(()) };
            if let Err(error) = cached {
                tracing::warn!(%error, file = %dir.display(), "cannot enable the local cache of the vault");
            }
        }
        let usual = WriterTuning::default();
        vault.set_tuning(WriterTuning {
            connections,
            queue_bytes: tuned.queue_bytes().unwrap_or(usual.queue_bytes),
            ..usual
        });
        Ok(vault)
    }

    /// Logs a run that failed before it read anything; returns the reason.
    fn record_failure(&self, start: Timestamp, reason: String) -> String {
        let outcome = Err(reason.clone());
        let run = BackupRunRecord::of(
            (start, current_timestamp()),
            vec![self.snapshot_path.clone()],
            outcome,
            &BackupProgress::default(),
        );
        self.record_run(&run);
        reason
    }

    fn record_run(&self, run: &BackupRunRecord) {
        if let Err(error) = self.log.append(run) {
            tracing::warn!(reason = %error, "cannot record the run in the run log");
        }
    }

    /// Returns the user that snapshots name. Locks name the process itself, regardless of the client name in the vault.
    fn vault_user(&self) -> VaultUser {
        let user = VaultUser::this_process();
        VaultUser { host: self.options.client.clone().unwrap_or_else(|| user.host.clone()), ..user }
    }

    /// Saves one source and logs the run.
    fn save_source(
        &self,
        vault: &Arc<Vault>,
        index: &mut Arc<VaultIndex>,
        lock: &VaultLock,
        context: &JobContext,
        since: Timestamp,
        folders: Option<&[PathBuf]>,
    ) -> Result<String, String> {
        let start = current_timestamp();
        let progress = Arc::new(BackupProgress::default());
        let stopping = JobCancelWatch::start(context, &progress);
        let giving_way =
            if self.options.is_throttled { self.start_throttle(&progress) } else { None };
        let done = VaultIndex::catch_up_locked(index, vault, lock).and_then(|()| {
            let session = SaveSession::new(vault, index, lock, &progress);
            // All snapshots of one save have the same time.
            let options = SaveOptions::new(self.vault_user(), since);
            let options = SaveOptions { revision_retention: self.options.history, ..options };
            match folders {
                Some(folders) => save_directories(&session, folders, &options).map(Some),
                None => self.save_repository(&session, &options),
            }
        });
        drop(stopping);
        let gave_way =
            giving_way.and_then(ThrottledSave::finish).filter(ThrottleReport::was_slowed);
        let outcome = done.as_ref().map(Option::as_ref).map_err(|error| error_chain_text(error));
        let name = |folder: &PathBuf| folder.display().to_string();
        let names = folders
            .map_or_else(|| vec![self.snapshot_path.clone()], |all| all.iter().map(name).collect());
        let run = BackupRunRecord::of((start, current_timestamp()), names, outcome, &progress);
        self.record_run(&run);
        let saved = done.map_err(|error| error_chain_text(&error))?;
        if let Some(fault) = index.damaged_files().first() {
            return Err(format!("the data is saved, but the vault is damaged: {fault}"));
        }
        if let Some(fault) = saved.iter().flat_map(|saved| &saved.faults).next() {
            return Err(format!("{} items were not saved, such as {fault}", run.faults));
        }
        let gave_way = gave_way.map_or_else(String::new, |yielded| format!(", {yielded}"));
        Ok(format!(
            "{} of {}: {} bytes stored{gave_way}",
            run.kind.name(),
            run.paths.join(", "),
            run.stored_bytes
        ))
    }

    /// Throttles a save while the instance's visitors wait, but so that it ends well before it counts as overdue;
    /// `None` if the instance writes no log of requests.
    fn start_throttle(&self, progress: &Arc<BackupProgress>) -> Option<ThrottledSave> {
        let deadline = throttled_save_limit(self.status.max_age, &self.options.schedule);
        let giving_way =
            start_save_throttle(&self.dir, (BaselineSource::RequestLog, Some(deadline)), progress);
        let log_fault = |error: &Error| {
            tracing::debug!(reason = %error, "scheduled save runs without throttling");
        };
        giving_way.inspect_err(log_fault).ok()
    }

    fn save_repository(
        &self,
        session: &SaveSession<'_>,
        options: &SaveOptions,
    ) -> tympan_backup::Result<Option<SaveSummary>> {
        let invalid = |error: Error| tympan_backup::Error::InvalidRequest(error_chain_text(&error));
        let files = &read_home_files(&self.dir, self.options.state).map_err(invalid)?;
        let (reference, path) = (MAIN_BRANCH, self.snapshot_path.as_str());
        if let Some(CloneOwnStores { chunks, blobs, .. }) = &self.clone_stores {
            let base = LiveStore::new(chunks.clone());
            let below =
                SeparatelySavedBase::of_home(&self.home_access, &self.dir).map_err(invalid)?;
            let below = below.as_ref().map(SeparatelySavedBase::as_separate_base);
            let blobs = &**blobs;
            let source = BackupRepositorySource {
                base: &base,
                blobs,
                reference,
                path,
                view: None,
                base_owner: below,
                files,
            };
            return save_repository(session, source, options);
        }
        let base = LiveStore::new(self.repository.chunks().clone());
        let view = ContentDocumentView::from_repository(self.repository.clone());
        let source = BackupRepositorySource {
            base: &base,
            blobs: &*self.blobs,
            reference,
            path,
            view: Some(&view as &dyn DocumentView),
            base_owner: None,
            files,
        };
        save_repository(session, source, options)
    }

    /// Removes this instance's snapshots that the policy does not keep, and prunes if any were removed.
    fn apply_retention(
        &self,
        vault: &Arc<Vault>,
        user: &VaultUser,
        (keep, since): (&RetentionPolicy, Timestamp),
    ) -> tympan_backup::Result<Option<String>> {
        let mut own = vault.read_snapshots()?;
        let client = self.vault_user();
        // As snapshots name them, regardless of the spelling in the configuration.
        let named = |folder: &PathBuf| source_path(folder).to_string_lossy().into_owned();
        let folders: Vec<String> = self.options.folders.iter().map(named).collect();
        own.retain(|snapshot| {
            let is_own = snapshot.paths == [self.snapshot_path.clone()]
                || (!folders.is_empty()
                    && snapshot.paths.iter().all(|path| folders.contains(path)));
            snapshot.hostname == client.host && is_own
        });
        let chosen = apply_retention(&own, keep);
        let expired_ids: Vec<_> = chosen
            .iter()
            // The snapshot of this save is kept even if the clock is wrong.
            .filter(|(snapshot, reasons)| reasons.is_empty() && snapshot.timestamp() < since)
            .map(|(snapshot, _)| snapshot.id)
            .collect();
        if expired_ids.is_empty() {
            return Ok(None);
        }
        let lock = VaultLock::acquire(vault, user, VaultLockMode::Exclusive, VAULT_LOCK_TIMEOUT)?;
        let trusted = recorded_trusted_now(&self.dir, SystemTime::now());
        let trusted_now = Timestamp::try_from(trusted).unwrap_or(Timestamp::UNIX_EPOCH);
        let options = PruneOptions {
            snapshots_to_remove: expired_ids.clone(),
            grace_period: PRUNE_GRACE,
            now: current_timestamp(),
            trusted_now,
        };
        let pruned = prune_snapshots(vault, &lock, &options, &BackupProgress::default())?;
        Ok(Some(format!("{} forgotten, {} bytes freed", expired_ids.len(), pruned.freed_bytes)))
    }
}

/// Returns the result of the retention. If other processes lock the vault, a later run applies it: the save itself was
/// successful. If the vault is always locked it grows, which is reported as a failure.
fn retention_outcome(
    done: tympan_backup::Result<Option<String>>,
    is_late: bool,
) -> Result<Option<String>, String> {
    match done {
        Err(error @ tympan_backup::Error::Locked { .. }) if !is_late => {
            tracing::warn!(
                reason = error_chain_text(&error),
                "vault locked; snapshots will be forgotten by a later run"
            );
            Ok(Some(format!("none forgotten yet: {}", error_chain_text(&error))))
        }
        done => done.map_err(|error| error_chain_text(&error)),
    }
}

/// Stops a save when its job is canceled.
struct JobCancelWatch {
    done_sender: std::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl JobCancelWatch {
    fn start(context: &JobContext, progress: &Arc<BackupProgress>) -> Self {
        let (done, ended) = std::sync::mpsc::channel::<()>();
        let (context, progress) = (context.clone(), progress.clone());
        let thread = std::thread::spawn(move || {
            let pause = Duration::from_millis(200);
            while ended.recv_timeout(pause) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                if context.is_cancelled() {
                    progress.request_stop();
                }
            }
        });
        Self { done_sender: done, thread: Some(thread) }
    }
}

impl Drop for JobCancelWatch {
    fn drop(&mut self) {
        // The thread ends on this message, or has ended.
        self.done_sender.send(()).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use tympan_backup::Error;

    use super::*;

    #[test]
    fn rules_have_the_units_of_the_file() {
        assert_eq!(to_schedule_rule("every 15min"), "every 900000ms");
        assert_eq!(to_schedule_rule("every 90s"), "every 90000ms");
        assert_eq!(to_schedule_rule(DEFAULT_SCHEDULE), DEFAULT_SCHEDULE);
        assert_eq!(to_schedule_rule("every so often"), "every so often");
    }

    #[test]
    fn a_mild_save_ends_before_the_next() {
        let mins = Duration::from_mins;
        assert_eq!(throttled_save_limit(DEFAULT_MAX_AGE, "every 15min"), Duration::from_secs(450));
        assert_eq!(throttled_save_limit(mins(20), "every 15min"), mins(5));
        assert_eq!(throttled_save_limit(DEFAULT_MAX_AGE, DEFAULT_SCHEDULE), mins(60));
        assert_eq!(throttled_save_limit(mins(120), DEFAULT_SCHEDULE), mins(30));
    }

    /// After a restart, saved folders do not count as a saved repository.
    #[test]
    fn a_success_is_one_of_all_that_is_saved() {
        let run = |path: &str, end: i64, outcome: Result<Option<&SaveSummary>, String>| {
            let end = Timestamp::from_second(end).unwrap();
            BackupRunRecord::of(
                (end, end),
                vec![path.to_owned()],
                outcome,
                &BackupProgress::default(),
            )
        };
        let failed = || Err("full".to_owned());
        let home = "/tympan/srv/author";
        let mut runs = vec![run(home, 10, Ok(None)), run("/etc/tympan", 11, Ok(None))];
        assert_eq!(
            [true, false].map(|folders| last_successful_save(&runs, home, folders)),
            [10, 10]
        );
        runs.extend([run(home, 20, failed()), run("/etc/tympan", 21, Ok(None))]);
        assert_eq!(last_successful_save(&runs, home, true), 10);
        runs.extend([run(home, 30, Ok(None)), run("/etc/tympan", 31, failed())]);
        assert_eq!(last_successful_save(&runs, home, true), 21);
        assert_eq!(last_successful_save(&runs, home, false), 30);
        assert_eq!(last_successful_save(&[], home, true), 0);
    }

    #[test]
    fn a_vault_in_use_is_no_failed_save() {
        let since = "2026-11-21T00:00:00Z".to_owned();
        let (host, user) = ("other".to_owned(), "ann".to_owned());
        let locked = || {
            let (host, user, since) = (host.clone(), user.clone(), since.clone());
            Err(Error::Locked { host, user, pid: 7, since, exclusive: false })
        };
        assert!(retention_outcome(locked(), false).unwrap().unwrap().contains("other"));
        // A lock that is never released lets the vault grow.
        assert!(retention_outcome(locked(), true).unwrap_err().contains("other"));
        assert!(retention_outcome(Err(Error::LockLost), false).is_err());
        assert_eq!(retention_outcome(Ok(None), true), Ok(None));
    }

    #[test]
    fn health_tells_what_is_late_or_failed() {
        let status = ScheduledSaveStatus {
            last_success: AtomicI64::new(0),
            fault: Mutex::default(),
            max_age: Duration::from_hours(1),
        };
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert!(status.current_fault(at(10_000)).unwrap().contains("yet"));
        status.last_success.store(10_000, Ordering::Relaxed);
        assert_eq!(status.current_fault(at(13_600)), None);
        assert!(status.current_fault(at(17_300)).unwrap().contains("2 h ago"));
        *status.fault.lock() = Some("full".to_owned());
        assert!(status.current_fault(at(10_000)).unwrap().contains("full"));
        assert!(
            status.render_metrics("author").contains("tympan_backup_failing{role=\"author\"} 1")
        );
    }
}
