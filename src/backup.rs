//! `[backup]` of `tympan.toml`: an author saves itself by schedule, as a job.
//!
//! The vault's key and index stay in memory between two saves, so that a save costs what changed. `/health` says when the
//! last one is too long ago, `/metrics` how long, and each run stands in the jobs and in `logs/backup.jsonl`.
//!
//! Invariants
//! * What is saved is one state of the repository, and folders beside it as they are read.
//! * A save that fails is told where it failed, and the next one comes all the same.
//! * Retention runs after a save that went well, and never takes the snapshot that it made.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;
use tympan_backup::{
    Error, Index, Keep, LiveStore, Lock, LockMode, Progress, PruneOptions, RepositorySource, Run,
    RunLog, SaveOptions, Saved, Session, Tuning, Vault, View, Who, choose, prune, save_directories,
    save_repository, source_path,
};
use tympan_blobs::ReadBlobs;
use tympan_content::Repository;
use tympan_jobs::{Handler, Job, JobContext, NewJob, Outcome, Worker};
use tympan_server::{BackupRun, Instance};
use tympan_store::{LocalStore, Retention};

use crate::args::vault::PlaceArguments;
use crate::base::MAIN;
use crate::clock;
use crate::command::{
    Before, ContentView, Fault, GivingWay, LeftBelow, Password, Settings, StateDatabase, Yielded,
    backend_at, keep_here, new_spool, read_home_files,
};
use crate::config::{Span, parse_span};
use crate::home::{Home, chain};
use crate::places;

/// The topic of its jobs.
const TOPIC: &str = "tympan/backup/save";
/// The name of its schedule.
const SCHEDULE: &str = "backup";
/// At half past two every night.
const DAILY: &str = "0 30 2 * * ?";
/// A daily save that is late by half a day is told.
const MAX_AGE: Duration = Duration::from_hours(36);
/// A save that gives way has to be through in this time, however seldom saves are.
const LONGEST_MILDNESS: Duration = Duration::from_hours(1);
/// Waits for others that use the vault.
const LOCK_WAIT: Duration = Duration::from_mins(10);
/// How long what nobody needs stays in the vault, as for `tympan backup prune`.
const GRACE: Duration = Duration::from_hours(23);

/// Saves by schedule. Without `vault` there are none.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Backup {
    /// The vault, which `tympan backup init` made: a folder, `sftp://…`, `s3:…` or `rest:…`; default none, and nothing is saved
    /// by schedule. What a bucket or server wants to know of the client comes from the environment, as for
    /// `tympan backup`, or from the files below.
    pub(crate) vault: Option<String>,
    /// Private keys for SSH; default the agent and the usual files of the user that the instance runs as.
    pub(crate) ssh_keys: Vec<PathBuf>,
    /// The file of known hosts for SSH; default those of that user and the system.
    pub(crate) ssh_known_hosts: Option<PathBuf>,
    /// For `rest:`: the file with the password of the user that the address names; default TYMPAN_REST_PASSWORD.
    pub(crate) rest_password_file: Option<PathBuf>,
    /// For `rest:https:`: a PEM file with the certificate that must have signed the server's; default those of the system.
    pub(crate) vault_ca: Option<PathBuf>,
    /// The file with the vault's password; needed with `vault`. Only the user of the instance should be able to read it.
    pub(crate) password_file: Option<PathBuf>,
    /// When, as a Quartz expression in UTC or `every 15min`; default `"0 30 2 * * ?"`. A save costs what changed, so every
    /// few minutes is fine where less may be lost.
    pub(crate) schedule: Option<String>,
    /// Folders that are saved beside the repository; default none. Name what else the machine needs to start anew.
    pub(crate) folders: Vec<PathBuf>,
    /// Whether jobs and logins are saved with the repository; default `false`. Set it where a restored instance has to go on
    /// with what waits in its queues; each save stores the state database anew then, as far as it has changed.
    pub(crate) with_state: bool,
    /// Whether earlier revisions of the branch `main` are saved with the repository, as far as `[history]` keeps them; default
    /// `false`. Set it where a restored instance has to be able to go back to them; the first save of each reads all of it.
    pub(crate) with_history: bool,
    /// Which snapshots of this instance stay, as `--keep` of `tympan backup forget`; default all. What they alone need goes
    /// in two phases, as by `tympan backup prune`.
    pub(crate) keep: Option<String>,
    /// Whether a clone saves what it reads of its base, too; default `false`: that is left to the base's owner, and named. Set
    /// it where the base is not saved by anybody.
    pub(crate) with_base: bool,
    /// Whether a save works less while the instance's answers take longer than in the minutes before, as by
    /// `tympan backup save --beside`; default `true`. Set it to `false` where saves have to end soon, whatever visitors notice.
    pub(crate) give_way: Option<bool>,
    /// The name of this client in the vault; default the host's name. Name it where instances on hosts of one name, such as
    /// containers, share a vault: each is compared with its own snapshots, and `keep` counts its own alone.
    pub(crate) client_name: Option<String>,
    /// How old the last success may be until `/health` says so; default 36 h. Set it to a little more than two turns.
    pub(crate) max_age: Option<Span>,
}

/// Registers the job and its schedule, and what watches it.
///
/// # Errors
/// With the key if the configuration makes no sense; if the state database fails.
pub(crate) async fn register(
    worker: &Worker,
    home: &Home,
    instance: &Instance,
) -> Result<(), Fault> {
    let section = &home.config.backup;
    let log = RunLog::new(home.dir.join("logs/backup.jsonl"));
    // Also where nothing is saved any more: what was saved is in the log.
    let told = log.clone();
    instance.tell_backups(move || Ok(told.read()?.into_iter().map(told_run).collect()));
    let queues = worker.queues();
    let Some(vault) = &section.vault else {
        let done = queues.unschedule(SCHEDULE).await;
        return done.map(|_| ()).map_err(|error| Fault::cannot_run(chain(&error)));
    };
    let wrong = |what: String| Fault::usage(format!("tympan.toml: [backup]: {what}"));
    let password_file = section.password_file.clone().ok_or_else(|| {
        wrong("`vault` needs a `password_file`; passwords have no place in this file".to_owned())
    })?;
    let keep = section.keep.as_deref().map(Keep::parse).transpose();
    let keep = keep.map_err(|error| wrong(format!("keep: {}", chain(&error))))?;
    let runs = log.read().unwrap_or_default();
    let dir = home.dir.canonicalize().unwrap_or_else(|_| home.dir.clone());
    let path = format!("/tympan{}", dir.display());
    let status = Arc::new(Status {
        success: AtomicI64::new(last_success(&runs, &path, !section.folders.is_empty())),
        fault: Mutex::default(),
        max_age: section.max_age.map_or(MAX_AGE, |span| span.0),
    });
    let own = match home.composite.as_ref().filter(|_| !section.with_base) {
        None => None,
        Some(composite) => {
            let spool = new_spool()?;
            let blobs = places::open_other(&dir, spool.path())?;
            Some(OwnPart { chunks: composite.own().clone(), blobs, _spool: spool })
        }
    };
    let place = PlaceArguments {
        ssh_key: section.ssh_keys.clone(),
        ssh_known_hosts: section.ssh_known_hosts.clone(),
        rest_password_file: section.rest_password_file.clone(),
        vault_ca: section.vault_ca.clone(),
        ..PlaceArguments::default()
    };
    // An address that makes no sense is told at the start; the vault itself may be away.
    backend_at(vault, &place).map_err(|fault| wrong(format!("vault: {}", fault.message())))?;
    let schedule = section.schedule.clone().unwrap_or_else(|| DAILY.to_owned());
    worker.register(Arc::new(Save {
        vault: vault.clone(),
        place,
        password_file,
        folders: section.folders.clone(),
        with_state: section.with_state,
        history: section.with_history.then(|| home.config.history.retention()),
        gives_way: section.give_way.unwrap_or(true),
        schedule: schedule.clone(),
        keep,
        client: section.client_name.clone().filter(|name| !name.is_empty()),
        repository: home.repository.clone(),
        blobs: home.blobs.readable(&home.dir),
        path,
        own,
        dir,
        log,
        status: status.clone(),
        thinned: AtomicI64::new(now().as_second()),
        opened: Mutex::default(),
    }));
    let rule = rule_of(&schedule);
    let job = NewJob::new(TOPIC, serde_json::json!({}));
    queues.schedule(SCHEDULE, &rule, &job, SystemTime::now()).await.map_err(
        |error| match error {
            tympan_jobs::Error::Schedule { .. } => wrong(format!("schedule: {}", chain(&error))),
            error => Fault::cannot_run(chain(&error)),
        },
    )?;
    instance.save_by(SCHEDULE);
    let watched = status.clone();
    instance.watch_health("backup", move || watched.fault_at(SystemTime::now()));
    instance.watch_metrics(move |role| status.metrics(role));
    Ok(())
}

/// Returns a run as the API tells it.
fn told_run(run: Run) -> BackupRun {
    BackupRun {
        start: run.start.into(),
        end: run.end.into(),
        kind: run.kind.name(),
        paths: run.paths,
        snapshot: run.snapshot,
        items: run.items,
        read_items: run.read_items,
        bytes: run.bytes,
        added_bytes: run.added_bytes,
        stored_bytes: run.stored_bytes,
        faults: run.faults,
        error: run.error,
    }
}

/// Writes a period with the units of this file as the jobs have it; other rules stay as they are.
fn rule_of(text: &str) -> String {
    let period = period_of(text);
    period.map_or_else(|| text.to_owned(), |period| format!("every {}ms", period.as_millis()))
}

/// Returns the period of a rule that has one.
fn period_of(text: &str) -> Option<Duration> {
    text.trim().strip_prefix("every ").and_then(parse_span)
}

/// Returns how long a save that gives way may take: so that it is through long before anybody misses it, and before the
/// next turn.
fn mild_for(max_age: Duration, schedule: &str) -> Duration {
    let longest = (max_age / 4).min(LONGEST_MILDNESS);
    period_of(schedule).map_or(longest, |period| longest.min(period / 2))
}

/// Returns when all that is saved by schedule was saved last, in seconds since 1970: the repository, and the folders beside
/// it if there are any. 0 for never.
fn last_success(runs: &[Run], path: &str, has_folders: bool) -> i64 {
    let last = |is_repository: bool| {
        let good = |run: &&Run| run.kind.is_success() && run.faults == 0;
        let of_it = |run: &&Run| (run.paths == [path]) == is_repository;
        let last = runs.iter().rev().filter(good).find(of_it);
        last.map_or(0, |run| run.end.as_second())
    };
    if has_folders { last(true).min(last(false)) } else { last(true) }
}

/// When the last save went well, and what is wrong since.
#[derive(Debug)]
struct Status {
    /// Seconds since 1970; 0 for never.
    success: AtomicI64,
    fault: Mutex<Option<String>>,
    max_age: Duration,
}

impl Status {
    /// Says what an operator has to look at.
    fn fault_at(&self, now: SystemTime) -> Option<String> {
        if let Some(fault) = &*self.fault.lock() {
            return Some(format!("the last save failed: {fault}"));
        }
        let success = self.success.load(Ordering::Relaxed);
        if success == 0 {
            return Some("no save has ended well yet".to_owned());
        }
        let now = Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH).as_second();
        let age = Duration::from_secs(u64::try_from(now - success).unwrap_or(0));
        (age > self.max_age)
            .then(|| format!("the last save that went well ended {} h ago", age.as_secs() / 3_600))
    }

    fn metrics(&self, role: &str) -> String {
        let table = [
            (
                "tympan_backup_last_success_seconds",
                "When the last save ended well, in seconds since 1970; 0 for never. What lags behind the clock was not saved.",
                self.success.load(Ordering::Relaxed),
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

/// What a clone has of its own.
struct OwnPart {
    chunks: Arc<LocalStore>,
    blobs: Arc<dyn ReadBlobs>,
    /// Large blobs of other machines lie here while they are read.
    _spool: tempfile::TempDir,
}

/// Carries out a save.
struct Save {
    vault: String,
    place: PlaceArguments,
    password_file: PathBuf,
    folders: Vec<PathBuf>,
    with_state: bool,
    /// Which earlier revisions are saved.
    history: Option<Retention>,
    gives_way: bool,
    /// Its schedule, as it is configured.
    schedule: String,
    keep: Option<Keep>,
    /// How snapshots name this client, if not by its host.
    client: Option<String>,
    repository: Repository,
    blobs: Arc<dyn ReadBlobs>,
    path: String,
    /// What a clone has of its own, if what it stands on is left to its owner.
    own: Option<OwnPart>,
    dir: PathBuf,
    log: RunLog,
    status: Arc<Status>,
    /// When the retention went well last, or the instance was started, in seconds since 1970.
    thinned: AtomicI64,
    /// The vault and its index, kept between two saves. Locked for the whole of a save.
    opened: Mutex<Option<(Arc<Vault>, Arc<Index>)>>,
}

impl Handler for Save {
    fn topic(&self) -> &str {
        TOPIC
    }

    fn run(&self, _job: &Job, context: &JobContext) -> Outcome {
        // A save that takes longer than a turn must not fill the queue with others that wait for it.
        let Some(mut opened) = self.opened.try_lock() else {
            return Outcome::Done;
        };
        let done = self.save_all(&mut opened, context);
        match done {
            Ok(said) => {
                *self.status.fault.lock() = None;
                self.status.success.store(now().as_second(), Ordering::Relaxed);
                tracing::info!(reason = said, "saved");
                context.progress(1, 1, &said);
                Outcome::Done
            }
            Err(_) if context.cancelled() => Outcome::Cancelled,
            Err(reason) => {
                // What is in memory may be what is wrong.
                *opened = None;
                tracing::error!(reason, "a save by schedule failed");
                *self.status.fault.lock() = Some(reason.clone());
                Outcome::Failed { reason }
            }
        }
    }
}

fn now() -> Timestamp {
    Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH)
}

impl Save {
    /// Saves the repository and the folders, and keeps to the retention. Says what came of it.
    fn save_all(
        &self,
        opened: &mut Option<(Arc<Vault>, Arc<Index>)>,
        context: &JobContext,
    ) -> Result<String, String> {
        let (who, since) = (Who::this_process(), now());
        if opened.is_none() {
            let vault = self.open_vault().map_err(|reason| self.note_failure(since, reason))?;
            *opened = Some((Arc::new(vault), Arc::default()));
        }
        let Some((vault, index)) = opened else { return Err("the vault is not open".to_owned()) };
        let (mut words, mut faults) = (Vec::new(), Vec::new());
        {
            let lock = Lock::take(vault, &who, LockMode::Shared, LOCK_WAIT);
            let lock = lock.map_err(|error| self.note_failure(since, chain(&error)))?;
            let folders = Some(&*self.folders).filter(|folders| !folders.is_empty());
            // What is wrong with one must not cost the other.
            for source in [Some(None), folders.map(Some)].into_iter().flatten() {
                match self.run_one((vault, index), &lock, (context, since), source) {
                    Ok(said) => words.push(said),
                    Err(fault) => faults.push(fault),
                }
            }
        }
        if !faults.is_empty() {
            return Err(faults.join("; "));
        }
        if let Some(keep) = &self.keep {
            let done = self.thin_out(vault, &who, (keep, since));
            if done.is_ok() {
                self.thinned.store(now().as_second(), Ordering::Relaxed);
            }
            let age = now().as_second() - self.thinned.load(Ordering::Relaxed);
            let age = Duration::from_secs(u64::try_from(age).unwrap_or(0));
            words.extend(thinned(done, age > self.status.max_age)?);
        }
        Ok(words.join("; "))
    }

    fn open_vault(&self) -> Result<Vault, String> {
        let said = |fault: Fault| fault.message().to_owned();
        let password = Password::of_file(&self.password_file).map_err(said)?;
        let found = Settings::read(&self.vault);
        let place = PlaceArguments {
            connections: found.connections(),
            tree_cache: found.tree_cache(),
            ..self.place.clone()
        };
        let backend = backend_at(&self.vault, &place).map_err(said)?;
        let opened = password.open_with(|password| Vault::open(backend.clone(), password));
        let mut vault = opened.map_err(|error| chain(&error))?;
        if backend.is_remote() {
            keep_here(&mut vault, place.tree_cache());
        }
        let usual = Tuning::default();
        vault.set_tuning(Tuning {
            connections: found.connections().map(usize::from),
            queue_bytes: found.queue_bytes().unwrap_or(usual.queue_bytes),
            ..usual
        });
        Ok(vault)
    }

    /// Notes a run that has failed before anything was looked at; returns why.
    fn note_failure(&self, start: Timestamp, reason: String) -> String {
        let outcome = Err(reason.clone());
        let run = Run::of((start, now()), vec![self.path.clone()], outcome, &Progress::default());
        self.note(&run);
        reason
    }

    fn note(&self, run: &Run) {
        if let Err(error) = self.log.add(run) {
            tracing::warn!(reason = %error, "a run is not in the log of runs");
        }
    }

    /// Returns who snapshots name. Locks name the process itself, whatever it is called in the vault.
    fn client(&self) -> Who {
        let who = Who::this_process();
        Who { host: self.client.clone().unwrap_or_else(|| who.host.clone()), ..who }
    }

    /// Saves one source and notes the run.
    fn run_one(
        &self,
        (vault, index): (&Arc<Vault>, &mut Arc<Index>),
        lock: &Lock,
        (context, since): (&JobContext, Timestamp),
        folders: Option<&[PathBuf]>,
    ) -> Result<String, String> {
        let start = now();
        let progress = Arc::new(Progress::default());
        let stopping = Stopping::begin(context, &progress);
        let giving_way = if self.gives_way { self.give_way(&progress) } else { None };
        let done = Index::catch_up_locked(index, vault, lock).and_then(|()| {
            let session = Session::new((vault, index), lock, &progress);
            // One time for all that is saved together.
            let options = SaveOptions::new(self.client(), since);
            let options = SaveOptions { history: self.history, ..options };
            match folders {
                Some(folders) => save_directories(&session, folders, &options).map(Some),
                None => self.save_own(&session, &options),
            }
        });
        drop(stopping);
        let gave_way = giving_way.and_then(GivingWay::end).filter(Yielded::was_asked_for);
        let outcome = done.as_ref().map(Option::as_ref).map_err(|error| chain(error));
        let name = |folder: &PathBuf| folder.display().to_string();
        let names =
            folders.map_or_else(|| vec![self.path.clone()], |all| all.iter().map(name).collect());
        let run = Run::of((start, now()), names, outcome, &progress);
        self.note(&run);
        let saved = done.map_err(|error| chain(&error))?;
        if let Some(fault) = index.damage().first() {
            return Err(format!("it is saved, but the vault is damaged: {fault}"));
        }
        if let Some(fault) = saved.iter().flat_map(|saved| &saved.faults).next() {
            return Err(format!("{} things are not saved, such as {fault}", run.faults));
        }
        let gave_way = gave_way.map_or_else(String::new, |yielded| format!(", {yielded}"));
        Ok(format!(
            "{} of {}: {} bytes stored{gave_way}",
            run.kind.name(),
            run.paths.join(", "),
            run.stored_bytes
        ))
    }

    /// Brakes a save while the instance's visitors wait, but so that it is through long before anybody misses it; nothing if
    /// the instance writes no log of requests.
    fn give_way(&self, progress: &Arc<Progress>) -> Option<GivingWay> {
        let deadline = mild_for(self.status.max_age, &self.schedule);
        let giving_way = GivingWay::begin(&self.dir, (Before::Logged, Some(deadline)), progress);
        let told = |fault: &Fault| {
            tracing::debug!(reason = fault.message(), "a save by schedule gives way to nobody");
        };
        giving_way.inspect_err(told).ok()
    }

    fn save_own(
        &self,
        session: &Session<'_>,
        options: &SaveOptions,
    ) -> tympan_backup::Result<Option<Saved>> {
        let state = if self.with_state { StateDatabase::Saved } else { StateDatabase::LeftOut };
        let files = &read_home_files(&self.dir, state)
            .map_err(|fault| Error::Refused(fault.message().to_owned()))?;
        let (reference, path) = (MAIN, self.path.as_str());
        if let Some(OwnPart { chunks, blobs, .. }) = &self.own {
            let base = LiveStore::new(chunks.clone());
            let below = LeftBelow::of(&self.dir);
            let below = below.map_err(|fault| Error::Refused(fault.message().to_owned()))?;
            let below = below.as_ref().map(LeftBelow::as_below);
            let blobs = &**blobs;
            let source =
                RepositorySource { base: &base, blobs, reference, path, view: None, below, files };
            return save_repository(session, source, options);
        }
        let base = LiveStore::new(self.repository.chunks().clone());
        let view = ContentView::of(self.repository.clone());
        let source = RepositorySource {
            base: &base,
            blobs: &*self.blobs,
            reference,
            path,
            view: Some(&view as &dyn View),
            below: None,
            files,
        };
        save_repository(session, source, options)
    }

    /// Forgets what the rule does not keep of this instance's snapshots, and prunes if anything went.
    fn thin_out(
        &self,
        vault: &Arc<Vault>,
        who: &Who,
        (keep, since): (&Keep, Timestamp),
    ) -> tympan_backup::Result<Option<String>> {
        let mut own = vault.snapshots()?;
        let client = self.client();
        // As snapshots name them, however they are written in the configuration.
        let named = |folder: &PathBuf| source_path(folder).to_string_lossy().into_owned();
        let folders: Vec<String> = self.folders.iter().map(named).collect();
        own.retain(|one| {
            let is_own = one.paths == [self.path.clone()]
                || (!folders.is_empty() && one.paths.iter().all(|path| folders.contains(path)));
            one.hostname == client.host && is_own
        });
        let chosen = choose(&own, keep);
        let gone: Vec<_> = chosen
            .iter()
            // Whatever clocks say: what was made just now stays.
            .filter(|(one, reasons)| reasons.is_empty() && one.timestamp() < since)
            .map(|(one, _)| one.id)
            .collect();
        if gone.is_empty() {
            return Ok(None);
        }
        let lock = Lock::take(vault, who, LockMode::Exclusive, LOCK_WAIT)?;
        let trusted = clock::noted_now(&self.dir, SystemTime::now());
        let trusted_now = Timestamp::try_from(trusted).unwrap_or(Timestamp::UNIX_EPOCH);
        let options = PruneOptions { forget: gone.clone(), grace: GRACE, now: now(), trusted_now };
        let pruned = prune(vault, &lock, &options, &Progress::default())?;
        Ok(Some(format!("{} forgotten, {} bytes freed", gone.len(), pruned.freed_bytes)))
    }
}

/// Says what came of the retention. A vault that others use is thinned out by a later turn: what was saved is saved. One
/// that others use all the time grows, which is told as a failure.
fn thinned(
    done: tympan_backup::Result<Option<String>>,
    is_late: bool,
) -> Result<Option<String>, String> {
    match done {
        Err(error @ Error::Locked { .. }) if !is_late => {
            tracing::warn!(reason = chain(&error), "no snapshots are forgotten in this turn");
            Ok(Some(format!("none forgotten yet: {}", chain(&error))))
        }
        done => done.map_err(|error| chain(&error)),
    }
}

/// Stops a save when its job is cancelled.
struct Stopping {
    done: std::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Stopping {
    fn begin(context: &JobContext, progress: &Arc<Progress>) -> Self {
        let (done, ended) = std::sync::mpsc::channel::<()>();
        let (context, progress) = (context.clone(), progress.clone());
        let thread = std::thread::spawn(move || {
            let pause = Duration::from_millis(200);
            while ended.recv_timeout(pause) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                if context.cancelled() {
                    progress.stop();
                }
            }
        });
        Self { done, thread: Some(thread) }
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        // The thread ends with this, or has ended.
        self.done.send(()).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_the_units_of_the_file() {
        assert_eq!(rule_of("every 15min"), "every 900000ms");
        assert_eq!(rule_of("every 90s"), "every 90000ms");
        assert_eq!(rule_of(DAILY), DAILY);
        assert_eq!(rule_of("every so often"), "every so often");
    }

    #[test]
    fn a_mild_save_ends_before_the_next() {
        let mins = Duration::from_mins;
        assert_eq!(mild_for(MAX_AGE, "every 15min"), Duration::from_secs(450));
        assert_eq!(mild_for(mins(20), "every 15min"), mins(5));
        assert_eq!(mild_for(MAX_AGE, DAILY), mins(60));
        assert_eq!(mild_for(mins(120), DAILY), mins(30));
    }

    /// After a restart, folders that were saved do not stand for a repository that was not.
    #[test]
    fn a_success_is_one_of_all_that_is_saved() {
        let run = |path: &str, end: i64, outcome: Result<Option<&Saved>, String>| {
            let end = Timestamp::from_second(end).unwrap();
            Run::of((end, end), vec![path.to_owned()], outcome, &Progress::default())
        };
        let failed = || Err("full".to_owned());
        let home = "/tympan/srv/author";
        let mut runs = vec![run(home, 10, Ok(None)), run("/etc/tympan", 11, Ok(None))];
        assert_eq!([true, false].map(|folders| last_success(&runs, home, folders)), [10, 10]);
        runs.extend([run(home, 20, failed()), run("/etc/tympan", 21, Ok(None))]);
        assert_eq!(last_success(&runs, home, true), 10);
        runs.extend([run(home, 30, Ok(None)), run("/etc/tympan", 31, failed())]);
        assert_eq!(last_success(&runs, home, true), 21);
        assert_eq!(last_success(&runs, home, false), 30);
        assert_eq!(last_success(&[], home, true), 0);
    }

    #[test]
    fn a_vault_in_use_is_no_failed_save() {
        let since = "2026-11-21T00:00:00Z".to_owned();
        let (host, user) = ("other".to_owned(), "ann".to_owned());
        let locked = || {
            let (host, user, since) = (host.clone(), user.clone(), since.clone());
            Err(Error::Locked { host, user, pid: 7, since, exclusive: false })
        };
        assert!(thinned(locked(), false).unwrap().unwrap().contains("other"));
        // Whoever keeps the vault forever lets it grow.
        assert!(thinned(locked(), true).unwrap_err().contains("other"));
        assert!(thinned(Err(Error::LockLost), false).is_err());
        assert_eq!(thinned(Ok(None), true), Ok(None));
    }

    #[test]
    fn health_tells_what_is_late_or_failed() {
        let status = Status {
            success: AtomicI64::new(0),
            fault: Mutex::default(),
            max_age: Duration::from_hours(1),
        };
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert!(status.fault_at(at(10_000)).unwrap().contains("yet"));
        status.success.store(10_000, Ordering::Relaxed);
        assert_eq!(status.fault_at(at(13_600)), None);
        assert!(status.fault_at(at(17_300)).unwrap().contains("2 h ago"));
        *status.fault.lock() = Some("full".to_owned());
        assert!(status.fault_at(at(10_000)).unwrap().contains("full"));
        assert!(status.metrics("author").contains("tympan_backup_failing{role=\"author\"} 1"));
    }
}
