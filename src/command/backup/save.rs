//! `tympan backup save`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde_json::json;
use tympan_backup::{
    Compression, Excludes, Index, LeftOut, Lock, LockMode, Parent, Progress, Rate, ReadLimits,
    RepositorySource, Run, RunLog, SaveOptions, Saved, Session, Tuning, Vault, View, absolute,
    save_directories, save_repository, without_secrets,
};

use super::give_way::{Before, GivingWay};
use super::settings::Settings;
use super::source::{LeftBelow, OfBase};
use super::view::ContentView;
use super::{INCOMPLETE, Watch, copy, failed, open, source};
use crate::args::backup::{self, CompressionLevel, Save, VaultArguments};
use crate::base::{MAIN, is_url};
use crate::command::{Fault, Outcome};
use crate::say;

/// Saves folders as one snapshot, and each repository as one of its own.
pub(super) fn run(arguments: &Save) -> Outcome {
    if let Some(place) = &arguments.to {
        return copy::run(arguments, place);
    }
    let (repositories, folders): (Vec<&String>, Vec<&String>) =
        arguments.sources.iter().partition(|source| is_repository(source));
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
    let log = open::runs(vault.id()).map(RunLog::new);
    let runner = Runner { vault, lock, log, arguments };
    let mut is_whole = true;
    if !folders.is_empty() {
        let paths: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
        let names = folders.iter().map(ToString::to_string).collect();
        let last = runner.log.as_ref().and_then(|log| last_of(&log.read().ok()?, &paths));
        let done = runner.run((names, last.as_ref()), &mut |session| {
            save_directories(session, &paths, &options).map(Some).map_err(failed)
        })?;
        is_whole &= tell(&done, arguments);
    }
    for source in repositories {
        // How much has changed in it is known when it is saved.
        let done = runner.run((vec![without_secrets(source)], None), &mut |session| {
            let ready = ahead.take().unwrap_or_else(|| Ready::open(source, arguments))?;
            ready.save(session, &options)
        })?;
        is_whole &= tell(&done, arguments);
    }
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
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
    let named = |folder: &PathBuf| absolute(folder).map(|path| path.to_string_lossy().into_owned());
    let mut paths = folders.iter().map(named).collect::<tympan_backup::Result<Vec<_>>>().ok()?;
    paths.sort();
    paths.dedup();
    runs.iter().rfind(|run| run.kind.is_success() && run.paths == paths).cloned()
}

/// What came of one source.
struct Done {
    saved: Option<Saved>,
    elapsed_ms: u128,
}

impl Runner<'_> {
    /// Saves one source, and notes the run. It will look at about as much as one that is `like` it.
    fn run(
        &self,
        (names, like): (Vec<String>, Option<&Run>),
        save: &mut dyn FnMut(&Session<'_>) -> Result<Option<Saved>, Fault>,
    ) -> Result<Done, Fault> {
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
            .transpose()?;
        let index = Index::load_locked(&self.vault, &self.lock).map_err(failed);
        let saved = index.and_then(|index| {
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
        let outcome =
            saved.as_ref().map(Option::as_ref).map_err(|fault| fault.message().to_owned());
        let run = Run::of((start, open::now()), names, outcome, &progress);
        if let Some(Err(error)) = self.log.as_ref().map(|log| log.add(&run)) {
            tracing::warn!(reason = %error, "a run is not in the log of runs");
        }
        Ok(Done { saved: saved?, elapsed_ms: begin.elapsed().as_millis() })
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
    options.excludes = Excludes::new(arguments.exclude.clone()).map_err(failed)?;
    options.excludes.caches = arguments.exclude_caches;
    options.excludes.other_file_systems = arguments.one_file_system;
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
    Ok((ready.save(session, options)?, ready.opened.path))
}

/// A repository that can be saved.
struct Ready {
    opened: source::Opened,
    view: Option<ContentView>,
}

impl Ready {
    fn open(source: &str, arguments: &Save) -> Result<Self, Fault> {
        let of_base = if arguments.with_base { OfBase::Saved } else { OfBase::Left };
        let opened = source::open(source, arguments, of_base)?;
        let view = if arguments.no_view { None } else { opened.view() };
        Ok(Self { opened, view })
    }

    fn save(&self, session: &Session<'_>, options: &SaveOptions) -> Result<Option<Saved>, Fault> {
        let Self { opened, view } = self;
        let source = RepositorySource {
            base: &*opened.base,
            blobs: &*opened.blobs,
            reference: MAIN,
            path: &opened.path,
            view: view.as_ref().map(|view| view as &dyn View),
            below: opened.below.as_ref().map(LeftBelow::as_below),
        };
        save_repository(session, source, options).map_err(failed)
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

/// Says what came of a source, and tells whether it is saved whole.
fn tell(Done { saved, elapsed_ms }: &Done, arguments: &Save) -> bool {
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
        if json {
            say!(
                "{}",
                json!({ "message_type": "error", "item": fault.path, "error": fault.message })
            );
        } else {
            say!("not saved: {fault}");
        }
    }
    if json {
        say!(
            "{}",
            json!({
                "message_type": "summary", "snapshot_id": snapshot.id.to_string(), "paths": snapshot.paths,
                "data_blobs": written.pieces, "tree_blobs": written.folders, "data_added": written.plain_bytes,
                "data_added_packed": written.stored_bytes, "elapsed_ms": elapsed_ms, "errors": saved.faults.len(),
                "peak_bytes": peak_bytes(), "left_chunks": saved.left_out.chunks, "left_blobs": saved.left_out.blobs,
            })
        );
    } else {
        say!(
            "snapshot {} of {}: {} new pieces, {} new folders, {} stored, {elapsed_ms} ms",
            snapshot.id.short(),
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
