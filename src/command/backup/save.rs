//! `tympan backup save`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tympan_backup::{
    BackupProgress, BackupRunLog, BackupRunRecord, BaselineSource, CompressionMode, OmittedCounts,
    ParentSelection, RateLimit, SaveOptions, SaveSession, SaveSources, SaveSummary,
    SourceReadLimits, ThrottleReport, ThrottledSave, TunedSaveSettings, Vault, VaultIndex,
    VaultLock, VaultLockMode, WriterTuning, last_run_of_folders, redact_address, save_directories,
    save_stream,
};
use tympan_home_backup::{
    BaseCoverage, RepositorySave, RepositorySaveOptions, StateDatabaseInclusion,
    start_save_throttle,
};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use super::instance_access::instance_access;
use super::source_selection;
use super::vault_location::user_config_dir;
use super::{
    INCOMPLETE_EXIT_CODE, ProgressDisplay, backup_fault, copy, home_backup_fault, vault_session,
};
use crate::args::backup::{self, BackupSaveArgs, CompressionLevel, VaultArgs};
use crate::home::home_access;

/// Saves all folders as one snapshot, and each repository as a snapshot of its own. An error in one source does not
/// prevent the others from being saved.
pub(super) fn run_save(arguments: &BackupSaveArgs) -> CommandOutcome {
    if let Some(destination) = &arguments.to {
        return copy::run_repository_copy(arguments, destination);
    }
    let SaveSources { repositories, folders } = source_selection::read_sources(arguments)?;
    let options = save_options(arguments)?;
    let tuned_settings =
        TunedSaveSettings::read(user_config_dir().as_deref(), &arguments.vault.vault);
    // The lock shows other processes who holds it, regardless of the host name in the snapshot.
    let user = tympan_backup::VaultUser::this_process();
    // Deriving the key from the password takes long; a repository is opened in parallel.
    let (vault, mut ahead) = std::thread::scope(|scope| {
        let first = repositories
            .first()
            .map(|source| scope.spawn(move || open_repository(source, arguments)));
        let vault = vault_session::open_vault_to_save(
            &effective_vault_args(arguments, &tuned_settings),
            &user,
        );
        let opened = first
            .map(|first| first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        (vault, opened)
    });
    let mut vault = vault?;
    vault.set_compression(to_compression(arguments.compression));
    vault.set_tuning(effective_tuning(arguments, &tuned_settings));
    if let Some(Err(error)) =
        options.table_dir.as_ref().map(|tables| vault.enable_index_table(tables))
    {
        tracing::debug!(reason = %error, "cannot enable the local index table");
    }
    let vault = Arc::new(vault);
    let wait = arguments.vault.retry_lock;
    let lock = vault_session::lock_vault(&vault, &user, VaultLockMode::Shared, wait)?;
    let log = vault_session::run_log_file(vault.id())
        .map(BackupRunLog::new)
        .filter(|_| !arguments.dry_run);
    let vault = if arguments.dry_run { Arc::new(vault.to_dry_run()) } else { vault };
    let runner = SourceSaver { vault, lock, log, arguments };
    let mut report = SaveSourcesReport::new(arguments);
    save_sources(&runner, &repositories, &folders, &options, &mut ahead, &mut report)?;
    report.into_outcome()
}

/// Saves the sources one after another.
fn save_sources(
    runner: &SourceSaver<'_>,
    repositories: &[String],
    folders: &[PathBuf],
    options: &SaveOptions,
    ahead: &mut Option<Result<RepositorySave, CommandFault>>,
    report: &mut SaveSourcesReport<'_>,
) -> Result<(), CommandFault> {
    let arguments = runner.arguments;
    if arguments.source_lists.stdin {
        let name = arguments.source_lists.stdin_filename.as_str();
        let names = vec![format!("/{}", name.trim_start_matches('/'))];
        report.add_result(runner.save_source((names, None), &mut |session| {
            let saved = save_stream(session, std::io::stdin().lock(), name, options);
            saved.map(Some).map_err(SaveFailure::from_error)
        }))?;
    }
    if !folders.is_empty() {
        let names = folders.iter().map(|folder| folder.display().to_string()).collect();
        let last = runner
            .log
            .as_ref()
            .and_then(|log| last_run_of_folders(&log.read().ok()?, folders).cloned());
        report.add_result(runner.save_source((names, last.as_ref()), &mut |session| {
            save_directories(session, folders, options).map(Some).map_err(SaveFailure::from_error)
        }))?;
    }
    for source in repositories {
        // The amount of changes is known only after the save.
        let done = runner.save_source((vec![redact_address(source)], None), &mut |session| {
            let ready = ahead.take().unwrap_or_else(|| open_repository(source, arguments));
            let ready = ready.map_err(SaveFailure::Source)?;
            let saved = ready.save(session, options).map_err(SaveFailure::from_error)?;
            print_excluded_parts(&ready, arguments);
            Ok(saved)
        });
        report.add_result(done)?;
    }
    Ok(())
}

/// The reason why a source was not saved.
enum SaveFailure {
    /// The source has an error: others can still be saved.
    Source(CommandFault),
    /// The vault or the run has an error.
    Run(CommandFault),
}

impl SaveFailure {
    fn from_error(error: tympan_backup::Error) -> Self {
        if error.is_source_error() {
            Self::Source(backup_fault(error))
        } else {
            Self::Run(backup_fault(error))
        }
    }

    fn fault(&self) -> &CommandFault {
        let (Self::Source(fault) | Self::Run(fault)) = self;
        fault
    }
}

/// The result of all sources.
struct SaveSourcesReport<'a> {
    arguments: &'a BackupSaveArgs,
    is_complete: bool,
    saved_sources: usize,
    /// The errors of sources that were not saved.
    failed_sources: Vec<CommandFault>,
    /// The errors of the vault; each run reports the same ones.
    vault_faults: Vec<tympan_backup::BackupFault>,
}

impl<'a> SaveSourcesReport<'a> {
    const fn new(arguments: &'a BackupSaveArgs) -> Self {
        Self {
            arguments,
            is_complete: true,
            saved_sources: 0,
            failed_sources: Vec::new(),
            vault_faults: Vec::new(),
        }
    }

    /// Adds the result of a source; fails if no other source can be saved either.
    fn add_result(&mut self, done: Result<SavedSource, SaveFailure>) -> Result<(), CommandFault> {
        match done {
            Ok(done) => {
                self.saved_sources += 1;
                self.is_complete &= print_saved_source(&done, self.arguments);
                self.vault_faults = done.vault_faults;
                Ok(())
            }
            Err(SaveFailure::Source(fault)) => {
                self.failed_sources.push(fault);
                Ok(())
            }
            Err(SaveFailure::Run(fault)) => {
                self.failed_sources.iter().for_each(CommandFault::print);
                Err(fault)
            }
        }
    }

    fn into_outcome(mut self) -> CommandOutcome {
        for fault in &self.vault_faults {
            print_item_fault("the vault is damaged", fault, self.arguments.vault.json);
        }
        let last = self.failed_sources.pop();
        self.failed_sources.iter().for_each(CommandFault::print);
        let is_whole = self.is_complete && last.is_none() && self.vault_faults.is_empty();
        match last {
            // Nothing was saved: the command has failed.
            Some(fault) if self.saved_sources == 0 => return Err(fault),
            Some(fault) => fault.print(),
            None => {}
        }
        Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE_EXIT_CODE) })
    }
}

/// Saves several sources into a vault, one after another.
struct SourceSaver<'a> {
    vault: Arc<Vault>,
    lock: VaultLock,
    log: Option<BackupRunLog>,
    arguments: &'a BackupSaveArgs,
}

/// The result of one source.
struct SavedSource {
    summary: Option<SaveSummary>,
    elapsed_ms: u128,
    /// Index files that could not be read: the data that they list was saved again.
    vault_faults: Vec<tympan_backup::BackupFault>,
}

impl SourceSaver<'_> {
    /// Saves one source, and logs the run. The run `like` it gives the expected amount of work.
    fn save_source(
        &self,
        (names, like): (Vec<String>, Option<&BackupRunRecord>),
        save: &mut dyn FnMut(&SaveSession<'_>) -> Result<Option<SaveSummary>, SaveFailure>,
    ) -> Result<SavedSource, SaveFailure> {
        let (start, begin) = (vault_session::current_timestamp(), Instant::now());
        let progress = Arc::new(BackupProgress::default());
        if let Some(like) = like {
            progress.expected_items.store(like.items, Ordering::Relaxed);
            progress.expected_bytes.store(like.bytes, Ordering::Relaxed);
        }
        let (tuning, json) = (&self.arguments.tuning, self.arguments.vault.json);
        limit_reading(&progress, tuning);
        let watch = if tuning.quiet {
            ProgressDisplay::start_silent(&progress)
        } else {
            ProgressDisplay::start(&progress, json)
        };
        let beside = tuning.beside.as_ref();
        let giving_way = beside
            .map(|home| {
                start_save_throttle(
                    home,
                    (BaselineSource::LiveMeasurement, tuning.finish_within),
                    &progress,
                )
            })
            .transpose()
            .map_err(|error| SaveFailure::Run(home_backup_fault(error)))?;
        let index = VaultIndex::load_locked(&self.vault, &self.lock);
        let mut damage = Vec::new();
        let saved =
            index.map_err(|error| SaveFailure::Run(backup_fault(error))).and_then(|index| {
                damage.extend_from_slice(index.damaged_files());
                let index = Arc::new(index);
                save(&SaveSession::new(&self.vault, &index, &self.lock, &progress))
            });
        drop(watch);
        if let Some(yielded) = giving_way.and_then(ThrottledSave::finish).filter(|_| !tuning.quiet)
        {
            if json {
                say!("{}", throttle_report_json(&yielded));
            } else {
                say!("{yielded}");
            }
        }
        if tuning.verbose && !json {
            print_run_details(&progress);
        }
        let outcome = saved
            .as_ref()
            .map(Option::as_ref)
            .map_err(|failure| failure.fault().message().to_owned());
        let run = BackupRunRecord::of(
            (start, vault_session::current_timestamp()),
            names,
            outcome,
            &progress,
        );
        if let Some(Err(error)) = self.log.as_ref().map(|log| log.append(&run)) {
            tracing::warn!(reason = %error, "cannot record the run in the run log");
        }
        Ok(SavedSource {
            summary: saved?,
            elapsed_ms: begin.elapsed().as_millis(),
            vault_faults: damage,
        })
    }
}

/// Lists the saves that this user made into the vault from this machine.
pub(super) fn list_runs(arguments: &VaultArgs) -> CommandOutcome {
    // Without a vault, list the plain copies.
    let name = match arguments.vault.as_str() {
        "" => copy::COPY_LOG_NAME.to_owned(),
        _ => vault_session::open_vault(arguments)?.vault.id().to_owned(),
    };
    let log = vault_session::run_log_file(&name).map(BackupRunLog::new).ok_or_else(|| {
        CommandFault::usage("cannot locate the run log: neither XDG_STATE_HOME nor HOME is set")
    })?;
    let runs = log.read();
    let runs = runs
        .map_err(|error| CommandFault::with_code(format!("cannot read the run log: {error}"), 1))?;
    for run in runs {
        if arguments.json {
            say!("{}", serde_json::to_string(&run).unwrap_or_default());
            continue;
        }
        let BackupRunRecord { start, end, kind, paths, .. } = &run;
        let seconds = end.duration_since(*start).as_secs_f64();
        let end = run.error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        say!(
            "{start:.0} {:<11} {seconds:.1} s {} scanned, {} stored, {}{end}",
            kind.name(),
            indicatif::HumanBytes(run.bytes),
            indicatif::HumanBytes(run.stored_bytes),
            paths.join(", ")
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Limits the rate at which sources are read.
pub(super) fn limit_reading(progress: &BackupProgress, tuning: &backup::SaveTuningArgs) {
    progress.set_read_limits(SourceReadLimits {
        bytes: tuning.limit_read.map(RateLimit),
        calls: tuning.limit_iops.map(RateLimit),
    });
}

/// Returns the options of a save.
pub(super) fn save_options(arguments: &BackupSaveArgs) -> Result<SaveOptions, CommandFault> {
    let mut options = SaveOptions::new(
        tympan_backup::VaultUser::this_process(),
        vault_session::current_timestamp(),
    );
    options.excludes = source_selection::read_excludes(&arguments.excludes)?;
    options.tags.clone_from(&arguments.tag);
    if let Some(host) = &arguments.host {
        options.user.host.clone_from(host);
    }
    if arguments.force {
        options.parent = ParentSelection::Nothing;
    }
    if !arguments.no_cache {
        options.table_dir = vault_session::cache_dir();
    }
    Ok(options)
}

/// The size of a node in Obnam, the unit of its options.
const OBNAM_NODE_BYTES: u64 = 256 << 10;

/// Returns the arguments that open the vault; Obnam's option for the tree cache counts in nodes.
fn effective_vault_args(
    arguments: &BackupSaveArgs,
    tuned_settings: &TunedSaveSettings,
) -> VaultArgs {
    let mut vault = arguments.vault.clone();
    vault.place.connections = vault.place.connections.or(tuned_settings.connection_count());
    let nodes = arguments.tuning.lru_size.map(|nodes| nodes.saturating_mul(OBNAM_NODE_BYTES));
    vault.place.tree_cache = vault.place.tree_cache.or(nodes).or(tuned_settings.tree_cache_bytes());
    vault
}

/// Command-line arguments take precedence over the settings that `tune` found.
fn effective_tuning(
    arguments: &BackupSaveArgs,
    tuned_settings: &TunedSaveSettings,
) -> WriterTuning {
    let tuning = &arguments.tuning;
    let nodes = tuning.upload_queue_size.map(|nodes| nodes.saturating_mul(OBNAM_NODE_BYTES));
    let usual = WriterTuning::default();
    WriterTuning {
        connections: arguments
            .vault
            .place
            .connections
            .or(tuned_settings.connection_count())
            .map(usize::from),
        queue_bytes: tuning
            .upload_queue
            .or(nodes)
            .or(tuned_settings.queue_bytes())
            .unwrap_or(usual.queue_bytes),
        piece_delay: tuning.piece_delay,
    }
}

const fn to_compression(level: CompressionLevel) -> CompressionMode {
    match level {
        CompressionLevel::Auto => CompressionMode::Auto,
        CompressionLevel::Off => CompressionMode::Off,
        CompressionLevel::Fastest => CompressionMode::Fastest,
        CompressionLevel::Better => CompressionMode::Better,
        CompressionLevel::Max => CompressionMode::Max,
    }
}

/// Opens a repository to be saved.
pub(super) fn open_repository(
    source: &str,
    arguments: &BackupSaveArgs,
) -> Result<RepositorySave, CommandFault> {
    let options = RepositorySaveOptions {
        base_coverage: match arguments.with_base {
            true => BaseCoverage::SavedHere,
            false => BaseCoverage::SavedByOwner,
        },
        has_view: !arguments.no_view,
        state: match arguments.with_state {
            true => StateDatabaseInclusion::Included,
            false => StateDatabaseInclusion::Excluded,
        },
        includes_history: arguments.with_history,
    };
    let instance = instance_access(&arguments.instance)?;
    RepositorySave::open(&home_access(), source, &instance, options).map_err(home_backup_fault)
}

/// Prints the parts of a home that its snapshot does not include.
fn print_excluded_parts(repository: &RepositorySave, arguments: &BackupSaveArgs) {
    if arguments.tuning.quiet || arguments.vault.json {
        return;
    }
    let home = match (repository.home(), arguments.with_state) {
        (None, _) => ", and everything in its home except the repository",
        (Some(_), false) => ", and jobs and logins (`--with-state` saves them)",
        (Some(_), true) => "",
    };
    let history = match arguments.with_history {
        true => "earlier revisions of branches other than `main`",
        false => "earlier revisions of branches (`--with-history` saves those of `main`)",
    };
    say!("left out: {history}, data derived from content, logs{home}");
}

/// Returns the peak memory of this process; `None` if the system does not report it.
fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(peak.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// Prints the items that a run read, and the resources that it used.
fn print_run_details(progress: &BackupProgress) {
    let count = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
    let peak = peak_memory_bytes().map(|bytes| format!("{} kB", bytes / 1024));
    say!(
        "scanned {} items, {}; read {} of them; peak memory {}",
        count(&progress.items),
        indicatif::HumanBytes(count(&progress.bytes)),
        count(&progress.read_items),
        peak.unwrap_or_else(|| "unknown".to_owned())
    );
}

/// Prints the fault of one item.
fn print_item_fault(item: &str, fault: &tympan_backup::BackupFault, json: bool) {
    if json {
        say!("{}", json!({ "message_type": "error", "item": fault.path, "error": fault.message }));
    } else {
        say!("{item}: {fault}");
    }
}

/// Prints the result of a source, and returns true if it was saved completely.
fn print_saved_source(
    SavedSource { summary: saved, elapsed_ms, .. }: &SavedSource,
    arguments: &BackupSaveArgs,
) -> bool {
    let json = arguments.vault.json;
    let is_whole = saved.as_ref().is_none_or(|saved| saved.faults.is_empty());
    if arguments.tuning.quiet && is_whole {
        return true;
    }
    let Some(saved) = saved else {
        if json {
            say!(
                "{}",
                json!({ "message_type": "unchanged", "elapsed_ms": elapsed_ms, "peak_bytes": peak_memory_bytes() })
            );
        } else {
            say!("nothing changed since the previous snapshot; no snapshot was created");
        }
        return true;
    };
    let (written, snapshot) = (&saved.written, &saved.snapshot);
    for fault in &saved.faults {
        print_item_fault("not saved", fault, json);
    }
    if json {
        say!(
            "{}",
            json!({
                "message_type": "summary", "snapshot_id": snapshot.id.to_string(), "paths": snapshot.paths,
                "data_blobs": written.pieces, "tree_blobs": written.folders, "data_added": written.plain_bytes,
                "data_added_packed": written.stored_bytes, "elapsed_ms": elapsed_ms, "errors": saved.faults.len(),
                "peak_bytes": peak_memory_bytes(), "left_chunks": saved.omitted.chunk_count, "left_blobs": saved.omitted.blob_count,
                "dry_run": arguments.dry_run,
            })
        );
    } else {
        let begin = if arguments.dry_run {
            "would create a snapshot".to_owned()
        } else {
            format!("snapshot {}", snapshot.id.short())
        };
        say!(
            "{begin} of {}: {} new pieces, {} new folders, {} stored, {elapsed_ms} ms",
            snapshot.paths.join(", "),
            written.pieces,
            written.folders,
            indicatif::HumanBytes(written.stored_bytes)
        );
        if saved.omitted != OmittedCounts::default() {
            let OmittedCounts { chunk_count: chunks, blob_count: blobs } = saved.omitted;
            say!(
                "{chunks} chunks and {blobs} blobs are in the base of the clone, whose owner saves them"
            );
        }
    }
    is_whole
}

fn throttle_report_json(report: &ThrottleReport) -> Value {
    let ms = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1000.0);
    json!({
        "message_type": "gave_way", "p95_ms_before": ms(report.baseline_p95), "p95_ms": ms(report.p95_during_save),
        "transactions_lost": report.lost_share.round(), "paused_ms": report.paused_time.as_millis(),
    })
}
