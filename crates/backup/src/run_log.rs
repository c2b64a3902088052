//! The log of runs: the start, end and kind of each save, and the number of bytes.
//!
//! The file contains one JSON object per line, the latest last. It is informational; nothing depends on it.
//!
//! Invariants
//! * A line is written by one call, so that lines of several processes do not mix.
//! * The file contains the last runs, and stays small.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::backup_progress::BackupProgress;
use crate::save::SaveSummary;
use crate::source::directory::source_path;

/// Length above which the file is truncated to the last runs.
const MAX_LOG_BYTES: u64 = 1 << 20;
/// Number of runs retained on truncation.
const MAX_RETAINED_RUNS: usize = 1_000;
/// Smaller amounts are no measure of a connection's speed.
const MIN_RATE_SAMPLE_BYTES: u64 = 4 << 20;

/// The kind or outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackupRunKind {
    /// Created a first snapshot.
    Full,
    /// Created a snapshot based on an earlier one.
    Incremental,
    /// Found no changes to save.
    Unchanged,
    /// Created a plain copy.
    Copy,
    /// Ended with an error.
    Failed,
}

impl BackupRunKind {
    /// Returns the name of the kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Incremental => "incremental",
            Self::Unchanged => "unchanged",
            Self::Copy => "copy",
            Self::Failed => "failed",
        }
    }

    /// Returns true if the requested data has been saved.
    #[must_use]
    pub fn is_success(self) -> bool {
        self != Self::Failed
    }
}

/// A record of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupRunRecord {
    /// The start time.
    #[serde(with = "time")]
    pub start: Timestamp,
    /// The end time.
    #[serde(with = "time")]
    pub end: Timestamp,
    /// The kind of the run.
    pub kind: BackupRunKind,
    /// The saved paths.
    pub paths: Vec<String>,
    /// The snapshot, if one was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The number of examined files and other items.
    #[serde(default)]
    pub items: u64,
    /// The number of items that had to be read.
    #[serde(default)]
    pub read_items: u64,
    /// The total bytes of all examined items.
    #[serde(default)]
    pub bytes: u64,
    /// Plain bytes that were new to the vault.
    #[serde(default)]
    pub added_bytes: u64,
    /// The bytes that they take in the vault.
    #[serde(default)]
    pub stored_bytes: u64,
    /// The number of items that could not be saved.
    #[serde(default)]
    pub faults: u64,
    /// The error of a failed run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

mod time {
    use jiff::Timestamp;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Timestamp, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(time)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Timestamp, D::Error> {
        String::deserialize(input)?.parse().map_err(D::Error::custom)
    }
}

impl BackupRunRecord {
    /// Creates the record of a finished run, successful or not.
    #[must_use]
    pub fn of(
        (start, end): (Timestamp, Timestamp),
        paths: Vec<String>,
        outcome: Result<Option<&SaveSummary>, String>,
        progress: &BackupProgress,
    ) -> Self {
        use std::sync::atomic::Ordering::Relaxed;
        let saved = outcome.as_ref().ok().copied().flatten();
        let kind = match (&outcome, saved) {
            (Err(_), _) => BackupRunKind::Failed,
            (Ok(_), None) => BackupRunKind::Unchanged,
            (Ok(_), Some(saved)) if saved.snapshot.parent.is_some() => BackupRunKind::Incremental,
            (Ok(_), Some(_)) => BackupRunKind::Full,
        };
        let written = saved.map(|saved| saved.written).unwrap_or_default();
        Self {
            start,
            end,
            kind,
            paths: saved.map_or(paths, |saved| saved.snapshot.paths.clone()),
            snapshot: saved.map(|saved| saved.snapshot.id.to_string()),
            items: progress.items.load(Relaxed),
            read_items: progress.read_items.load(Relaxed),
            bytes: progress.bytes.load(Relaxed),
            added_bytes: written.plain_bytes,
            stored_bytes: written.stored_bytes,
            faults: saved.map_or(0, |saved| saved.faults.len() as u64),
            error: outcome.err(),
        }
    }
}

/// A run log in a file.
#[derive(Clone, Debug)]
pub struct BackupRunLog(PathBuf);

impl BackupRunLog {
    /// Creates a log for the file, without accessing it.
    #[must_use]
    pub fn new(file: impl Into<PathBuf>) -> Self {
        Self(file.into())
    }

    /// Appends a run.
    ///
    /// # Errors
    /// Any I/O error of the system.
    pub fn append(&self, run: &BackupRunRecord) -> io::Result<()> {
        if let Some(folder) = self.0.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut line = serde_json::to_vec(run)?;
        line.push(b'\n');
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        file.write_all(&line)?;
        if file.metadata()?.len() > MAX_LOG_BYTES { self.truncate_log() } else { Ok(()) }
    }

    /// Returns the runs, oldest first; damaged lines are skipped.
    ///
    /// # Errors
    /// Any I/O error of the system; a missing file counts as empty.
    pub fn read(&self) -> io::Result<Vec<BackupRunRecord>> {
        let text = match fs::read(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read?,
        };
        let lines = text.split(|byte| *byte == b'\n');
        Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }

    fn truncate_log(&self) -> io::Result<()> {
        let runs = self.read()?;
        let folder = self.0.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        for run in runs.iter().skip(runs.len().saturating_sub(MAX_RETAINED_RUNS)) {
            serde_json::to_writer(&mut file, run)?;
            file.write_all(b"\n")?;
        }
        file.persist(&self.0)?;
        Ok(())
    }
}

/// Returns the upload rate of the last saves in bytes per second; `None` if none uploaded enough.
#[must_use]
pub fn upload_bytes_per_second(runs: &[BackupRunRecord]) -> Option<f64> {
    let telling = runs.iter().rev().filter(|run| run.stored_bytes >= MIN_RATE_SAMPLE_BYTES).take(5);
    let (bytes, seconds) = telling.fold((0, 0.0), |(bytes, seconds), run| {
        let took = run.end.duration_since(run.start).as_secs_f64();
        (bytes + run.stored_bytes, seconds + took.max(0.001))
    });
    (bytes > 0).then(|| bytes as f64 / seconds)
}

/// Returns the growth of the vault for these paths in bytes per day; `None` before the second save.
#[must_use]
pub fn growth_bytes_per_day(runs: &[BackupRunRecord], paths: &[String]) -> Option<f64> {
    let own: Vec<&BackupRunRecord> = runs.iter().filter(|run| run.paths == paths).collect();
    let (first, last) = (own.first()?, own.last()?);
    let days = last.end.duration_since(first.end).as_secs_f64() / 86_400.0;
    let later = own.iter().filter(|run| run.kind == BackupRunKind::Incremental);
    let bytes = later.map(|run| run.stored_bytes).sum::<u64>();
    (days > 0.01).then(|| bytes as f64 / days)
}

/// Returns the last successful save of the same folders, however they are written.
pub fn last_run_of_folders<'a>(
    runs: &'a [BackupRunRecord],
    folders: &[PathBuf],
) -> Option<&'a BackupRunRecord> {
    let named = |folder: &PathBuf| source_path(folder).to_string_lossy().into_owned();
    let mut paths: Vec<String> = folders.iter().map(named).collect();
    paths.sort();
    paths.dedup();
    runs.iter().rfind(|run| run.kind.is_success() && run.paths == paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_stored_and_old_ones_removed() {
        let dir = tempfile::tempdir().unwrap();
        let log = BackupRunLog::new(dir.path().join("a/runs"));
        assert_eq!(log.read().unwrap(), []);
        let at = |second| Timestamp::from_second(second).unwrap();
        let run = |number: i64| {
            let error = Err(format!("{number} {}", "x".repeat(400)));
            BackupRunRecord::of(
                (at(number), at(number + 1)),
                vec!["/a".into()],
                error,
                &BackupProgress::default(),
            )
        };
        for number in 0..3 {
            log.append(&run(number)).unwrap();
        }
        assert_eq!(log.read().unwrap(), [run(0), run(1), run(2)]);
        fs::write(&log.0, [fs::read(&log.0).unwrap().as_slice(), b"{damaged\n"].concat()).unwrap();
        for number in 3..4_000 {
            log.append(&run(number)).unwrap();
        }
        let left = log.read().unwrap();
        assert!(fs::metadata(&log.0).unwrap().len() <= MAX_LOG_BYTES + 1_000);
        assert!(
            left.len() >= MAX_RETAINED_RUNS && left.last() == Some(&run(3_999)),
            "{}",
            left.len()
        );
    }

    #[test]
    fn the_rate_is_that_of_the_last_saves_that_sent_enough() {
        let run = |stored_bytes: u64, seconds: i64| {
            let end = Timestamp::from_second(seconds).unwrap();
            let outcome = Err("cut off".to_owned());
            let span = (Timestamp::UNIX_EPOCH, end);
            BackupRunRecord {
                stored_bytes,
                ..BackupRunRecord::of(span, Vec::new(), outcome, &BackupProgress::default())
            }
        };
        assert_eq!(
            upload_bytes_per_second(&[run(1000, 900)]),
            None,
            "a few bytes tell of the processor, not of the line"
        );
        let rate = upload_bytes_per_second(&[run(10 << 20, 10), run(1000, 900), run(30 << 20, 10)]);
        assert_eq!(rate, Some(f64::from(2 << 20)));
    }

    #[test]
    fn a_save_looks_at_as_much_as_the_last_of_the_same_folders() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display().to_string();
        let at = Timestamp::UNIX_EPOCH;
        let run = |paths: &[&str], items: u64, outcome: Result<Option<&SaveSummary>, String>| {
            let paths = paths.iter().map(ToString::to_string).collect();
            BackupRunRecord {
                items,
                ..BackupRunRecord::of((at, at), paths, outcome, &BackupProgress::default())
            }
        };
        let runs = [
            run(&[&path], 7, Ok(None)),
            run(&[&path], 8, Ok(None)),
            run(&[&path], 1, Err("cut off".to_owned())),
            run(&[&path, "/other"], 9, Ok(None)),
        ];
        // Accept every spelling.
        let written = [PathBuf::from(format!("{path}/")), PathBuf::from(format!("{path}/."))];
        assert_eq!(last_run_of_folders(&runs, &written).map(|run| run.items), Some(8));
        assert_eq!(last_run_of_folders(&runs, &[dir.path().join("lost")]), None);
        assert_eq!(last_run_of_folders(&runs, &[PathBuf::from("/")]), None);
    }
}
