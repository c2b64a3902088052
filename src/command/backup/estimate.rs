//! `tympan backup estimate`: what the next save, and a first one, would take in time and room.
//!
//! The next save is carried out but for writing. A first save of folders is extrapolated from a part of the files, one of a
//! repository from the last one in the log of runs, or carried out but for writing where there is none.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tympan_backup::{
    Estimate, Index, LockMode, Parent, Progress, Run, RunKind, RunLog, SaveOptions, Saved, Session,
    estimate_full, save_directories,
};

use super::selection::Sources;
use super::{Watch, failed, open, save};
use crate::args::backup::Save;
use crate::command::{Fault, Outcome};
use crate::say;

/// Estimates each source.
pub(super) fn run(arguments: &Save) -> Outcome {
    let begin = Instant::now();
    let opened = open::open(&arguments.vault)?;
    let lock = opened.lock(LockMode::Shared)?;
    let vault = Arc::new(opened.vault.dry());
    let index = Arc::new(Index::load(&vault).map_err(failed)?);
    // A save opens the vault, too.
    let opening = begin.elapsed();
    let log = open::runs(vault.id()).map(RunLog::new);
    let runs = log.and_then(|log| log.read().ok()).unwrap_or_default();
    // A carried out save sends nothing; to a disk of this machine, packs are written beside the work.
    let rate = if vault.is_remote() { rate(&runs) } else { None };
    let options = save::options(arguments)?;
    let Sources { repositories, folders: paths } = Sources::read(arguments)?;
    if !paths.is_empty() {
        let progress = Arc::new(Progress::default());
        save::limit_reading(&progress, &arguments.tuning);
        let watch = Watch::begin(&progress, arguments.vault.json);
        let session = Session::new((&vault, &index), &lock, &progress);
        let begin = Instant::now();
        let saved = save_directories(&session, &paths, &options).map_err(failed)?;
        let next = Predicted::of(Some(&saved), opening + begin.elapsed(), &progress).sent_at(rate);
        let Estimate { files, bytes, time, stored_bytes, .. } =
            estimate_full(&session, &paths, &options).map_err(failed)?;
        let full = Predicted { items: files, bytes, time: opening + time, stored_bytes };
        let full = full.sent_at(rate);
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        drop(watch);
        tell(
            &names.join(", "),
            [&full, &next],
            (&runs, &saved.snapshot.paths),
            arguments.vault.json,
        );
    }
    for source in &repositories {
        let dry = |options: &SaveOptions| {
            let progress = Arc::new(Progress::default());
            save::limit_reading(&progress, &arguments.tuning);
            let _watch = Watch::begin(&progress, arguments.vault.json);
            let session = Session::new((&vault, &index), &lock, &progress);
            let begin = Instant::now();
            let (saved, path) = save::save_source(&session, source, (arguments, options))?;
            let took = opening + begin.elapsed();
            let predicted = Predicted::of(saved.as_ref(), took, &progress);
            Ok::<_, Fault>((predicted.sent_at(rate), path))
        };
        let (next, path) = dry(&options)?;
        let paths = [path];
        let is_full = |run: &&Run| run.kind == RunKind::Full && run.paths == paths;
        let full = match runs.iter().rev().find(is_full) {
            Some(run) => Predicted::of_run(run),
            None => dry(&SaveOptions { parent: Parent::Nothing, ..options.clone() })?.0,
        };
        tell(source, [&full, &next], (&runs, &paths), arguments.vault.json);
    }
    Ok(ExitCode::SUCCESS)
}

/// What a save would take.
struct Predicted {
    items: u64,
    bytes: u64,
    time: Duration,
    stored_bytes: u64,
}

impl Predicted {
    fn of(saved: Option<&Saved>, time: Duration, progress: &Progress) -> Self {
        use std::sync::atomic::Ordering::Relaxed;
        Self {
            items: progress.items.load(Relaxed),
            bytes: progress.bytes.load(Relaxed),
            time,
            stored_bytes: saved.map_or(0, |saved| saved.written.stored_bytes),
        }
    }

    /// Takes no less time than the bytes need on their way to the vault, at so many a second.
    fn sent_at(self, rate: Option<f64>) -> Self {
        let sent = rate.map(|rate| Duration::from_secs_f64(self.stored_bytes as f64 / rate));
        Self { time: self.time.max(sent.unwrap_or_default()), ..self }
    }

    fn of_run(run: &Run) -> Self {
        let time = run.end.duration_since(run.start).unsigned_abs();
        Self { items: run.items, bytes: run.bytes, time, stored_bytes: run.stored_bytes }
    }
}

/// Less says nothing about how fast a line is.
const TELLING_BYTES: u64 = 4 << 20;

/// Returns how many bytes a second the last saves brought to the vault; nothing if none brought many.
fn rate(runs: &[Run]) -> Option<f64> {
    let telling = runs.iter().rev().filter(|run| run.stored_bytes >= TELLING_BYTES).take(5);
    let (bytes, seconds) = telling.fold((0, 0.0), |(bytes, seconds), run| {
        let took = run.end.duration_since(run.start).as_secs_f64();
        (bytes + run.stored_bytes, seconds + took.max(0.001))
    });
    (bytes > 0).then(|| bytes as f64 / seconds)
}

/// Returns how many bytes a day the vault has grown by for these paths; nothing before the second save.
fn growth(runs: &[Run], paths: &[String]) -> Option<f64> {
    let own: Vec<&Run> = runs.iter().filter(|run| run.paths == paths).collect();
    let (first, last) = (own.first()?, own.last()?);
    let days = last.end.duration_since(first.end).as_secs_f64() / 86_400.0;
    let later = own.iter().filter(|run| run.kind == RunKind::Incremental);
    let bytes = later.map(|run| run.stored_bytes).sum::<u64>();
    (days > 0.01).then(|| bytes as f64 / days)
}

fn tell(
    source: &str,
    [full, next]: [&Predicted; 2],
    (runs, paths): (&[Run], &[String]),
    json: bool,
) {
    let growth = growth(runs, paths);
    if json {
        let of = |one: &Predicted| {
            json!({
                "items": one.items, "bytes": one.bytes, "elapsed_ms": one.time.as_millis(),
                "data_added_packed": one.stored_bytes,
            })
        };
        say!(
            "{}",
            json!({
                "message_type": "estimate", "source": source, "full": of(full), "next": of(next),
                "bytes_per_day": growth,
            })
        );
        return;
    }
    say!("{source}: {} items, {}", full.items, indicatif::HumanBytes(full.bytes));
    for (what, one) in [("a first save", full), ("the next save", next)] {
        let seconds = one.time.as_secs_f64();
        say!(
            "  {what}: {seconds:.1} s, {} into the vault",
            indicatif::HumanBytes(one.stored_bytes)
        );
    }
    if let Some(bytes) = growth {
        say!("  so far {} a day", indicatif::HumanBytes(bytes as u64));
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn what_is_sent_takes_as_long_as_the_last_saves_say() {
        let run = |stored_bytes: u64, seconds: i64| {
            let end = Timestamp::from_second(seconds).unwrap();
            let outcome = Err("cut off".to_owned());
            let span = (Timestamp::UNIX_EPOCH, end);
            Run { stored_bytes, ..Run::of(span, Vec::new(), outcome, &Progress::default()) }
        };
        assert_eq!(
            rate(&[run(1000, 900)]),
            None,
            "a few bytes tell of the processor, not of the line"
        );
        let rate = rate(&[run(10 << 20, 10), run(1000, 900), run(30 << 20, 10)]);
        assert_eq!(rate, Some(f64::from(2 << 20)));
        let one = |seconds| Predicted {
            items: 1,
            bytes: 1,
            time: Duration::from_secs(seconds),
            stored_bytes: 20 << 20,
        };
        assert_eq!(one(3).sent_at(rate).time, Duration::from_secs(10));
        assert_eq!(one(30).sent_at(rate).time, Duration::from_secs(30));
        assert_eq!(one(3).sent_at(None).time, Duration::from_secs(3));
    }
}
