//! Estimates of saves: of a source from a save without writing or from the run log, and of a first save of folders from a
//! sample.
//!
//! Files are sampled by the hash of their path, so that the sample has the same mix of sizes as the whole, and are
//! split, compressed and sealed as in a save. The measured cost is scaled by the sampling rate.
//!
//! Not here: the time for writing to the vault's disk; a save writes packs concurrently with the work on the next ones.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::directory::DirectorySaver;
use super::folder_table::{FolderTable, NewFolderTable};
use super::user_group_names::UserGroupNames;
use crate::backup_progress::BackupProgress;
use crate::error::Result;
use crate::fault::FaultCollector;
use crate::object_id::VaultObjectId;
use crate::run_log::BackupRunRecord;
use crate::save::{SaveOptions, SaveSession, SaveSummary};
use crate::vault::index::VaultIndex;
use crate::vault::node::NodeTime;
use crate::vault::pack_writer::PackWriter;

/// Approximate number of sampled bytes.
const SAMPLE_BYTES: u64 = 96 << 20;
/// Minimum number of sampled files, if there are that many.
const MIN_SAMPLE_FILES: u64 = 4_000;

/// The estimated cost of a save.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SaveEstimate {
    /// The number of files.
    pub files: u64,
    /// The number of bytes in the files.
    pub bytes: u64,
    /// The number of files that were read for the estimate.
    pub sampled_files: u64,
    /// The estimated duration of the save.
    pub duration: Duration,
    /// The number of bytes that the save would add to the vault.
    pub stored_bytes: u64,
}

/// Estimates a first save of folders to an empty vault. Nothing is written.
///
/// # Errors
/// If none of the paths exists, or the vault fails.
pub fn estimate_full_save(
    session: &SaveSession<'_>,
    paths: &[PathBuf],
    options: &SaveOptions,
) -> Result<SaveEstimate> {
    let begin = Instant::now();
    let (vault, index) = (Arc::new(session.vault.to_dry_run()), Arc::new(VaultIndex::default()));
    let session = SaveSession::new(&vault, &index, session.lock, session.progress);
    let writer = PackWriter::new(&vault, &index, session.lock);
    let saver = DirectorySaver {
        session: &session,
        writer: &writer,
        options,
        names: UserGroupNames::read_system(),
        faults: FaultCollector::default(),
        trusted_until: NodeTime::default(),
        stable_until: NodeTime::default(),
        previous_table: FolderTable::default(),
        new_table: NewFolderTable::default(),
    };
    // A missing source must not prevent an estimate of the others.
    let present = paths.iter().filter(|path| path.symlink_metadata().is_ok());
    let lists = present.map(|path| saver.list_files(path)).collect::<Result<Vec<_>>>()?;
    let files: Vec<(PathBuf, Metadata)> = lists.into_iter().flatten().collect();
    let bytes = files.iter().map(|(_, facts)| facts.len()).sum::<u64>();
    let count = files.len() as u64;
    let walked = begin.elapsed();
    let share = sample_share(count, bytes);
    let is_drawn = |path: &Path| {
        use std::os::unix::ffi::OsStrExt;
        let hash = VaultObjectId::of(path.as_os_str().as_bytes());
        let number = hash
            .as_bytes()
            .iter()
            .take(4)
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        share >= 1.0 || (number as f64) < share * f64::from(u32::MAX)
    };
    let sample: Vec<&(PathBuf, Metadata)> =
        files.iter().filter(|(path, _)| is_drawn(path)).collect();
    let drawn_bytes = sample.iter().map(|(_, facts)| facts.len()).sum::<u64>();
    let begin = Instant::now();
    sample
        .par_iter()
        .try_for_each(|(path, facts)| saver.save_path(path, facts, None).map(|_| ()))?;
    let read_files = sample.len() as u64;
    let (written, _) = writer.finish(session.lock)?;
    // The cost of files depends on their number as well as on their bytes; the sampled fraction is taken of both.
    let by_bytes = ratio(bytes, drawn_bytes);
    let by_both = f64::midpoint(by_bytes, ratio(count, read_files));
    let time = walked + begin.elapsed().mul_f64(by_both);
    let stored_bytes = (written.stored_bytes as f64 * by_bytes) as u64;
    Ok(SaveEstimate {
        files: count,
        bytes,
        sampled_files: read_files,
        duration: time,
        stored_bytes,
    })
}

/// Returns the fraction of the files to sample.
fn sample_share(files: u64, bytes: u64) -> f64 {
    let by_bytes = SAMPLE_BYTES as f64 / bytes.max(1) as f64;
    let by_files = MIN_SAMPLE_FILES as f64 / files.max(1) as f64;
    by_bytes.min(by_files).clamp(0.01, 1.0)
}

fn ratio(whole: u64, part: u64) -> f64 {
    if part == 0 { 1.0 } else { whole as f64 / part as f64 }
}

/// The estimate of a save of one source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SourceSaveEstimate {
    /// The number of files, or of parts of a repository.
    pub items: u64,
    /// The number of their bytes.
    pub bytes: u64,
    /// The duration, including the opening of the vault.
    pub duration: Duration,
    /// The number of bytes that the save would add to the vault.
    pub stored_bytes: u64,
}

impl SourceSaveEstimate {
    /// Returns the cost of a save that was performed without writing.
    pub fn from_save(
        saved: Option<&SaveSummary>,
        time: Duration,
        progress: &BackupProgress,
    ) -> Self {
        Self {
            items: progress.items.load(Ordering::Relaxed),
            bytes: progress.bytes.load(Ordering::Relaxed),
            duration: time,
            stored_bytes: saved.map_or(0, |saved| saved.written.stored_bytes),
        }
    }

    /// Raises the estimated time to at least the upload time of the bytes at the given bytes per second.
    #[must_use]
    pub fn limit_to_rate(self, rate: Option<f64>) -> Self {
        let sent = rate.map(|rate| Duration::from_secs_f64(self.stored_bytes as f64 / rate));
        Self { duration: self.duration.max(sent.unwrap_or_default()), ..self }
    }

    /// Returns the cost of a save as the run log records it.
    pub fn from_run(run: &BackupRunRecord) -> Self {
        let time = run.end.duration_since(run.start).unsigned_abs();
        Self { items: run.items, bytes: run.bytes, duration: time, stored_bytes: run.stored_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_takes_as_long_as_the_last_saves_say() {
        let rate = Some(f64::from(2 << 20));
        let estimate = |seconds| SourceSaveEstimate {
            items: 1,
            bytes: 1,
            duration: Duration::from_secs(seconds),
            stored_bytes: 20 << 20,
        };
        assert_eq!(estimate(3).limit_to_rate(rate).duration, Duration::from_secs(10));
        assert_eq!(estimate(30).limit_to_rate(rate).duration, Duration::from_secs(30));
        assert_eq!(estimate(3).limit_to_rate(None).duration, Duration::from_secs(3));
    }
}
