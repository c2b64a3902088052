//! `tympan backup save`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde_json::json;
use tympan_backup::{
    Compression, HomeFile, Index, LeftOut, Lock, LockMode, Parent, Progress, Rate, ReadLimits,
    RepositorySource, Run, RunLog, SaveOptions, Saved, Session, Tuning, Vault, View,
    save_directories, save_repository, save_stream, source_path, without_secrets,
};
use tympan_store::Retention;

use super::give_way::{Before, GivingWay};
use super::home_files::{self, StateDatabase};
use super::selection::{self, Sources};
use super::settings::Settings;
use super::source::{LeftBelow, OfBase};
use super::view::ContentView;
use super::{INCOMPLETE, Watch, copy, failed, open, source};
use crate::args::backup::{self, CompressionLevel, Save, VaultArguments};
use crate::base::{MAIN, is_url};
use crate::command::{Fault, Outcome};
use crate::config;
use crate::say;

/// Saves folders as one snapshot, and each repository as one of its own. What is wrong with one source does not keep the
/// others from being saved.
pub(super) fn run(arguments: &Save) -> Outcome {
    if let Some(place) = &arguments.to {
        return copy::run(arguments, place);
    }
    let Sources { repositories, folders } = Sources::read(arguments)?;
    let options = options(arguments)?;
    let found = Settings::read(&arguments.vault.vault);
    // The lock tells others which process to look for, whatever host the snapshot is to name.
    let who = tympan_backup::Who::this_process();
    // The password's key takes long to derive; a repository is opened meanwhile.
    let (vault, mut ahead) = std::thread::scope(|scope| {
        let first =
            repositories.first().map(|source| scope.spawn(move || Ready::open(source, arguments)));
        let vault = open::open_to_save(&vault_arguments(arguments, &found), &who);
        let opened = first
            .map(|first| first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        (vault, opened)
    });
    let mut vault = vault?;
    vault.set_compression(compression(arguments.compression));
    vault.set_tuning(tuning(arguments, &found));
    if let Some(Err(error)) = options.tables.as_ref().map(|tables| vault.keep_index_in(tables)) {
        tracing::debug!(reason = %error, "what the index says is not kept here");
    }
    let vault = Arc::new(vault);
    let wait = std::time::Duration::from_secs(arguments.vault.retry_lock);
    let lock = open::lock(&vault, &who, (LockMode::Shared, wait))?;
    let log = open::runs(vault.id()).map(RunLog::new).filter(|_| !arguments.dry_run);
    let vault = if arguments.dry_run { Arc::new(vault.dry()) } else { vault };
    let runner = Runner { vault, lock, log, arguments };
    let mut report = SaveReport::new(arguments);
    save_sources(&runner, (&repositories, &folders), (&options, &mut ahead), &mut report)?;
    report.outcome()
}

/// Saves the sources, one after another.
fn save_sources(
    runner: &Runner<'_>,
    (repositories, folders): (&[String], &[PathBuf]),
    (options, ahead): (&SaveOptions, &mut Option<Result<Ready, Fault>>),
    report: &mut SaveReport<'_>,
) -> Result<(), Fault> {
    let arguments = runner.arguments;
    if arguments.source_lists.stdin {
        let name = arguments.source_lists.stdin_filename.as_str();
        let names = vec![format!("/{}", name.trim_start_matches('/'))];
        report.add(runner.run((names, None), &mut |session| {
            let saved = save_stream(session, std::io::stdin().lock(), name, options);
            saved.map(Some).map_err(SaveFailure::of)
        }))?;
    }
    if !folders.is_empty() {
        let names = folders.iter().map(|folder| folder.display().to_string()).collect();
        let last = runner.log.as_ref().and_then(|log| last_of(&log.read().ok()?, folders));
        report.add(runner.run((names, last.as_ref()), &mut |session| {
            save_directories(session, folders, options).map(Some).map_err(SaveFailure::of)
        }))?;
    }
    for source in repositories {
        // How much has changed in it is known when it is saved.
        let done = runner.run((vec![without_secrets(source)], None), &mut |session| {
            let ready = ahead.take().unwrap_or_else(|| Ready::open(source, arguments));
            let ready = ready.map_err(SaveFailure::Source)?;
            let saved = ready.save(session, options).map_err(SaveFailure::of)?;
            ready.tell_left_out(arguments);
            Ok(saved)
        });
        report.add(done)?;
    }
    Ok(())
}

/// Why a source was not saved.
enum SaveFailure {
    /// Something is wrong with the source: others can still be saved.
    Source(Fault),
    /// Something is wrong with the vault or the run.
    Run(Fault),
}

impl SaveFailure {
    fn of(error: tympan_backup::Error) -> Self {
        if error.is_of_source() { Self::Source(failed(error)) } else { Self::Run(failed(error)) }
    }

    fn fault(&self) -> &Fault {
        let (Self::Source(fault) | Self::Run(fault)) = self;
        fault
    }
}

/// What came of all sources.
struct SaveReport<'a> {
    arguments: &'a Save,
    is_whole: bool,
    saved_sources: usize,
    /// What is wrong with sources that were not saved.
    failed_sources: Vec<Fault>,
    /// What is wrong with the vault; each run tells the same.
    damage: Vec<tympan_backup::Fault>,
}

impl<'a> SaveReport<'a> {
    const fn new(arguments: &'a Save) -> Self {
        Self {
            arguments,
            is_whole: true,
            saved_sources: 0,
            failed_sources: Vec::new(),
            damage: Vec::new(),
        }
    }

    /// Adds what came of a source; fails if no other can be saved either.
    fn add(&mut self, done: Result<Done, SaveFailure>) -> Result<(), Fault> {
        match done {
            Ok(done) => {
                self.saved_sources += 1;
                self.is_whole &= tell(&done, self.arguments);
                self.damage = done.damage;
                Ok(())
            }
            Err(SaveFailure::Source(fault)) => {
                self.failed_sources.push(fault);
                Ok(())
            }
            Err(SaveFailure::Run(fault)) => {
                self.failed_sources.iter().for_each(Fault::print);
                Err(fault)
            }
        }
    }

    fn outcome(mut self) -> Outcome {
        for fault in &self.damage {
            tell_fault(("the vault is damaged", fault), self.arguments.vault.json);
        }
        let last = self.failed_sources.pop();
        self.failed_sources.iter().for_each(Fault::print);
        let is_whole = self.is_whole && last.is_none() && self.damage.is_empty();
        match last {
            // Nothing is saved: the command has failed.
            Some(fault) if self.saved_sources == 0 => return Err(fault),
            Some(fault) => fault.print(),
            None => {}
        }
        Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
    }
}

/// Tells whether a source is a repository; all others are folders.
pub(super) fn is_repository(source: &str) -> bool {
    source.starts_with("repo:") || is_url(source)
}

/// A vault that several sources are saved into, one after another.
struct Runner<'a> {
    vault: Arc<Vault>,
    lock: Lock,
    log: Option<RunLog>,
    arguments: &'a Save,
}

/// Returns the last save of the same folders that went well.
fn last_of(runs: &[Run], folders: &[PathBuf]) -> Option<Run> {
    let named = |folder: &PathBuf| source_path(folder).to_string_lossy().into_owned();
    let mut paths: Vec<String> = folders.iter().map(named).collect();
    paths.sort();
    paths.dedup();
    runs.iter().rfind(|run| run.kind.is_success() && run.paths == paths).cloned()
}

/// What came of one source.
struct Done {
    saved: Option<Saved>,
    elapsed_ms: u128,
    /// Index files that could not be read: what they list was saved again.
    damage: Vec<tympan_backup::Fault>,
}

impl Runner<'_> {
    /// Saves one source, and notes the run. It will look at about as much as one that is `like` it.
    fn run(
        &self,
        (names, like): (Vec<String>, Option<&Run>),
        save: &mut dyn FnMut(&Session<'_>) -> Result<Option<Saved>, SaveFailure>,
    ) -> Result<Done, SaveFailure> {
        let (start, begin) = (open::now(), Instant::now());
        let progress = Arc::new(Progress::default());
        if let Some(like) = like {
            progress.expected_items.store(like.items, Ordering::Relaxed);
            progress.expected_bytes.store(like.bytes, Ordering::Relaxed);
        }
        let (tuning, json) = (&self.arguments.tuning, self.arguments.vault.json);
        limit_reading(&progress, tuning);
        let watch =
            if tuning.quiet { Watch::silent(&progress) } else { Watch::begin(&progress, json) };
        let beside = tuning.beside.as_ref();
        let giving_way = beside
            .map(|home| GivingWay::begin(home, (Before::Watched, tuning.finish_within), &progress))
            .transpose()
            .map_err(SaveFailure::Run)?;
        let index = Index::load_locked(&self.vault, &self.lock);
        let mut damage = Vec::new();
        let saved = index.map_err(|error| SaveFailure::Run(failed(error))).and_then(|index| {
            damage.extend_from_slice(index.damage());
            let index = Arc::new(index);
            save(&Session::new((&self.vault, &index), &self.lock, &progress))
        });
        drop(watch);
        if let Some(yielded) = giving_way.and_then(GivingWay::end).filter(|_| !tuning.quiet) {
            if json {
                say!("{}", yielded.to_json());
            } else {
                say!("{yielded}");
            }
        }
        if tuning.verbose && !json {
            tell_more(&progress);
        }
        let outcome = saved
            .as_ref()
            .map(Option::as_ref)
            .map_err(|failure| failure.fault().message().to_owned());
        let run = Run::of((start, open::now()), names, outcome, &progress);
        if let Some(Err(error)) = self.log.as_ref().map(|log| log.add(&run)) {
            tracing::warn!(reason = %error, "a run is not in the log of runs");
        }
        Ok(Done { saved: saved?, elapsed_ms: begin.elapsed().as_millis(), damage })
    }
}

/// Lists what this user has saved into the vault from this machine.
pub(super) fn runs(arguments: &VaultArguments) -> Outcome {
    // Without a vault, the plain copies.
    let name = match arguments.vault.as_str() {
        "" => copy::LOG.to_owned(),
        _ => open::open(arguments)?.vault.id().to_owned(),
    };
    let log = open::runs(&name).map(RunLog::new).ok_or_else(|| {
        Fault::usage("neither XDG_STATE_HOME nor HOME says where the log of runs is")
    })?;
    let runs = log.read();
    let runs = runs.map_err(|error| Fault::with_code(format!("the log of runs: {error}"), 1))?;
    for run in runs {
        if arguments.json {
            say!("{}", serde_json::to_string(&run).unwrap_or_default());
            continue;
        }
        let Run { start, end, kind, paths, .. } = &run;
        let seconds = end.duration_since(*start).as_secs_f64();
        let end = run.error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        say!(
            "{start:.0} {:<11} {seconds:.1} s {} looked at, {} stored, {}{end}",
            kind.name(),
            indicatif::HumanBytes(run.bytes),
            indicatif::HumanBytes(run.stored_bytes),
            paths.join(", ")
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Bounds how fast sources are read.
pub(super) fn limit_reading(progress: &Progress, tuning: &backup::Tuning) {
    progress.limit_reading(ReadLimits {
        bytes: tuning.limit_read.map(Rate),
        calls: tuning.limit_iops.map(Rate),
    });
}

/// Returns what a save is asked for.
pub(super) fn options(arguments: &Save) -> Result<SaveOptions, Fault> {
    let mut options = SaveOptions::new(tympan_backup::Who::this_process(), open::now());
    options.excludes = selection::excludes(&arguments.excludes)?;
    options.tags.clone_from(&arguments.tag);
    if let Some(host) = &arguments.host {
        options.who.host.clone_from(host);
    }
    if arguments.force {
        options.parent = Parent::Nothing;
    }
    if !arguments.no_cache {
        options.tables = open::cache();
    }
    Ok(options)
}

/// Obnam counted in nodes of this size.
const NODE_BYTES: u64 = 256 << 10;

/// Returns how the vault is opened; Obnam's word for what is kept of its folders counts in nodes.
fn vault_arguments(arguments: &Save, found: &Settings) -> VaultArguments {
    let mut vault = arguments.vault.clone();
    vault.place.connections = vault.place.connections.or(found.connections());
    let nodes = arguments.tuning.lru_size.map(|nodes| nodes.saturating_mul(NODE_BYTES));
    vault.place.tree_cache = vault.place.tree_cache.or(nodes).or(found.tree_cache());
    vault
}

/// What is given outdoes what was found by `tune`.
fn tuning(arguments: &Save, found: &Settings) -> Tuning {
    let given = &arguments.tuning;
    let nodes = given.upload_queue_size.map(|nodes| nodes.saturating_mul(NODE_BYTES));
    let usual = Tuning::default();
    Tuning {
        connections: arguments.vault.place.connections.or(found.connections()).map(usize::from),
        queue_bytes: given
            .upload_queue
            .or(nodes)
            .or(found.queue_bytes())
            .unwrap_or(usual.queue_bytes),
        delay: std::time::Duration::from_millis(given.delay_ms),
    }
}

const fn compression(level: CompressionLevel) -> Compression {
    match level {
        CompressionLevel::Auto => Compression::Auto,
        CompressionLevel::Off => Compression::Off,
        CompressionLevel::Fastest => Compression::Fastest,
        CompressionLevel::Better => Compression::Better,
        CompressionLevel::Max => Compression::Max,
    }
}

/// Saves a repository, beside the instance that may be writing it; returns the path of its snapshots, too.
pub(super) fn save_source(
    session: &Session<'_>,
    source: &str,
    (arguments, options): (&Save, &SaveOptions),
) -> Result<(Option<Saved>, String), Fault> {
    let ready = Ready::open(source, arguments)?;
    Ok((ready.save(session, options).map_err(failed)?, ready.opened.path))
}

/// A repository that can be saved.
struct Ready {
    opened: source::Opened,
    view: Option<ContentView>,
    files: Vec<HomeFile>,
    /// Which earlier revisions are saved.
    history: Option<Retention>,
}

impl Ready {
    fn open(source: &str, arguments: &Save) -> Result<Self, Fault> {
        let of_base = if arguments.with_base { OfBase::Saved } else { OfBase::Left };
        let opened = source::open(source, arguments, of_base)?;
        let view = if arguments.no_view { None } else { opened.view() };
        let state =
            if arguments.with_state { StateDatabase::Saved } else { StateDatabase::LeftOut };
        let files = opened.home.as_deref().map(|home| home_files::read(home, state));
        let files = files.transpose()?.unwrap_or_default();
        let history = match (arguments.with_history, opened.home.as_deref()) {
            (false, _) => None,
            (true, Some(home)) => Some(config::read(home)?.history.retention()),
            (true, None) => Some(Retention::default()),
        };
        Ok(Self { opened, view, files, history })
    }

    /// Says what of a home is not in its snapshot.
    fn tell_left_out(&self, arguments: &Save) {
        if arguments.tuning.quiet || arguments.vault.json {
            return;
        }
        let home = match (&self.opened.home, arguments.with_state) {
            (None, _) => ", and of its home all but the repository",
            (Some(_), false) => ", and jobs and logins (`--with-state` saves them)",
            (Some(_), true) => "",
        };
        let history = match arguments.with_history {
            true => "earlier revisions of other branches than `main`",
            false => "earlier revisions of branches (`--with-history` saves those of `main`)",
        };
        say!("left out: {history}, what is derived from content, logs{home}");
    }

    fn save(
        &self,
        session: &Session<'_>,
        options: &SaveOptions,
    ) -> tympan_backup::Result<Option<Saved>> {
        let Self { opened, view, files, history } = self;
        let options = &SaveOptions { history: *history, ..options.clone() };
        let source = RepositorySource {
            base: &*opened.base,
            blobs: &*opened.blobs,
            reference: MAIN,
            path: &opened.path,
            view: view.as_ref().map(|view| view as &dyn View),
            below: opened.below.as_ref().map(LeftBelow::as_below),
            files,
        };
        save_repository(session, source, options)
    }
}

/// Returns how much memory this process has used at most; nothing where the system does not say.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(peak.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// Tells what a run looked at, and what it took.
fn tell_more(progress: &Progress) {
    let count = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
    let peak = peak_bytes().map(|bytes| format!("{} kB", bytes / 1024));
    say!(
        "looked at {} things, {}; read {} of them; peak memory {}",
        count(&progress.items),
        indicatif::HumanBytes(count(&progress.bytes)),
        count(&progress.read_items),
        peak.unwrap_or_else(|| "unknown".to_owned())
    );
}

/// Tells what is wrong with one thing.
fn tell_fault((what, fault): (&str, &tympan_backup::Fault), json: bool) {
    if json {
        say!("{}", json!({ "message_type": "error", "item": fault.path, "error": fault.message }));
    } else {
        say!("{what}: {fault}");
    }
}

/// Says what came of a source, and tells whether it is saved whole.
fn tell(Done { saved, elapsed_ms, .. }: &Done, arguments: &Save) -> bool {
    let json = arguments.vault.json;
    let is_whole = saved.as_ref().is_none_or(|saved| saved.faults.is_empty());
    if arguments.tuning.quiet && is_whole {
        return true;
    }
    let Some(saved) = saved else {
        if json {
            say!(
                "{}",
                json!({ "message_type": "unchanged", "elapsed_ms": elapsed_ms, "peak_bytes": peak_bytes() })
            );
        } else {
            say!("nothing changed since the snapshot before; none was made");
        }
        return true;
    };
    let (written, snapshot) = (&saved.written, &saved.snapshot);
    for fault in &saved.faults {
        tell_fault(("not saved", fault), json);
    }
    if json {
        say!(
            "{}",
            json!({
                "message_type": "summary", "snapshot_id": snapshot.id.to_string(), "paths": snapshot.paths,
                "data_blobs": written.pieces, "tree_blobs": written.folders, "data_added": written.plain_bytes,
                "data_added_packed": written.stored_bytes, "elapsed_ms": elapsed_ms, "errors": saved.faults.len(),
                "peak_bytes": peak_bytes(), "left_chunks": saved.left_out.chunks, "left_blobs": saved.left_out.blobs,
                "dry_run": arguments.dry_run,
            })
        );
    } else {
        let begin = if arguments.dry_run {
            "would make a snapshot".to_owned()
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
        if saved.left_out != LeftOut::default() {
            let LeftOut { chunks, blobs } = saved.left_out;
            say!(
                "{chunks} chunks and {blobs} blobs are left to the base of the clone, whose owner saves them"
            );
        }
    }
    is_whole
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_save_looks_at_as_much_as_the_last_of_the_same_folders() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display().to_string();
        let at = Timestamp::UNIX_EPOCH;
        let run = |paths: &[&str], items: u64, outcome: Result<Option<&Saved>, String>| {
            let paths = paths.iter().map(ToString::to_string).collect();
            Run { items, ..Run::of((at, at), paths, outcome, &Progress::default()) }
        };
        let runs = [
            run(&[&path], 7, Ok(None)),
            run(&[&path], 8, Ok(None)),
            run(&[&path], 1, Err("cut off".to_owned())),
            run(&[&path, "/other"], 9, Ok(None)),
        ];
        // However it is written.
        let written = [PathBuf::from(format!("{path}/")), PathBuf::from(format!("{path}/."))];
        assert_eq!(last_of(&runs, &written).map(|run| run.items), Some(8));
        assert_eq!(last_of(&runs, &[dir.path().join("lost")]), None);
        assert_eq!(last_of(&runs, &[PathBuf::from("/")]), None);
    }
}
