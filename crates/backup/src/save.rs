//! The common part of saving for all sources: options, progress and result.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tracing::warn;
use tympan_store::RevisionRetention;

use crate::backend::VaultFileKind;
use crate::error::{Error, Result};
use crate::fault::BackupFault;
use crate::object_id::VaultObjectId;
use crate::rate_limit::{RateLimit, RatePacer};
use crate::source::base_store::OmittedCounts;
use crate::source::exclude::ExcludeRules;
use crate::throttle::{RunThrottle, WorkGuard};
use crate::vault::index::VaultIndex;
use crate::vault::lock::VaultLock;
use crate::vault::node::SnapshotTree;
use crate::vault::pack_writer::{PackWriter, WriteTotals};
use crate::vault::snapshot::VaultSnapshot;
use crate::vault::tree_text::SnapshotTreeText;
use crate::vault::{Vault, VaultUser, index::PackBlobKind};

/// The parent snapshot that a save is compared with.
#[derive(Clone, Debug, Default)]
pub enum ParentSelection {
    /// The latest one of the same host and paths.
    #[default]
    LatestMatching,
    /// None: everything is read.
    Nothing,
}

/// The options of a save.
#[derive(Clone, Debug)]
pub struct SaveOptions {
    /// The user who saves.
    pub user: VaultUser,
    /// The start time of the save.
    pub started_at: Timestamp,
    /// The exclude rules.
    pub excludes: ExcludeRules,
    /// The tags of the snapshot.
    pub tags: Vec<String>,
    /// The choice of the parent snapshot.
    pub parent: ParentSelection,
    /// The folder for tables of sources, which avoid reading unchanged data; they may be deleted at any time.
    pub table_dir: Option<PathBuf>,
    /// The approximate number of chunks of one repository level that are newly read and in memory at once.
    pub chunk_batch_size: usize,
    /// The earlier revisions of a repository's ref that are saved with it; `None` saves none.
    pub revision_retention: Option<RevisionRetention>,
}

/// The default of [`SaveOptions::chunk_batch_size`].
const DEFAULT_CHUNK_BATCH_SIZE: usize = 4096;

impl SaveOptions {
    /// Returns options that exclude nothing.
    #[must_use]
    pub fn new(user: VaultUser, now: Timestamp) -> Self {
        let (excludes, parent) = (ExcludeRules::default(), ParentSelection::default());
        Self {
            user,
            started_at: now,
            excludes,
            tags: Vec::new(),
            parent,
            table_dir: None,
            chunk_batch_size: DEFAULT_CHUNK_BATCH_SIZE,
            revision_retention: None,
        }
    }
}

/// Limits on reading a source, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceReadLimits {
    /// The limit in bytes.
    pub bytes: Option<RateLimit>,
    /// The limit in reads, each of a file, a piece of a long one, or several chunks together.
    pub calls: Option<RateLimit>,
}

/// Maximum time of one sleep, so that a stop request is noticed soon.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// The progress of a run; other threads may read it and stop the run.
#[derive(Debug, Default)]
pub struct BackupProgress {
    /// The number of finished files and other items.
    pub items: AtomicU64,
    /// The number of items that had to be read.
    pub read_items: AtomicU64,
    /// The number of finished bytes, read or not.
    pub bytes: AtomicU64,
    /// The number of source bytes read.
    pub read_bytes: AtomicU64,
    /// The number of read calls.
    pub reads: AtomicU64,
    /// The expected number of items, if known.
    pub expected_items: AtomicU64,
    /// The expected number of bytes, if known.
    pub expected_bytes: AtomicU64,
    is_stopped: AtomicBool,
    throttle: OnceLock<Arc<RunThrottle>>,
    /// The pacers of source reads: by bytes, and by calls.
    read_pacers: OnceLock<[Option<Mutex<RatePacer>>; 2]>,
}

impl BackupProgress {
    /// Requests the run to stop soon.
    pub fn request_stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Sets the throttle of the run; only the first call has an effect.
    pub fn set_throttle(&self, throttle: Arc<RunThrottle>) {
        // A second throttle would belong to another user: the first stays.
        self.throttle.set(throttle).ok();
    }

    /// Limits the read rate of the source from now on; only the first call has an effect.
    pub fn set_read_limits(&self, limits: SourceReadLimits) {
        let pace = |rate: Option<RateLimit>| rate.map(|rate| Mutex::new(RatePacer::new(rate)));
        // As in `set_throttle`.
        self.read_pacers.set([pace(limits.bytes), pace(limits.calls)]).ok();
    }

    /// Records that one call read some bytes of the source; waits until the limits allow it, or the run is to stop.
    pub(crate) fn record_read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        if let Some(until) = self.reserve_read(bytes, Instant::now()) {
            while let Some(left) = until.checked_duration_since(Instant::now())
                && !self.is_stopped.load(Ordering::Relaxed)
            {
                std::thread::sleep(left.min(MAX_SLEEP));
            }
        }
    }

    /// Takes a read of some bytes from the budgets; returns when the limits allow to continue.
    fn reserve_read(&self, bytes: u64, now: Instant) -> Option<Instant> {
        let [by_bytes, by_calls] = self.read_pacers.get()?;
        let take = |pace: &Option<Mutex<RatePacer>>, amount| {
            let mut pace = pace.as_ref()?.lock();
            pace.reserve(amount, now);
            pace.available_at
        };
        take(by_bytes, bytes).max(take(by_calls, 1)).filter(|at| *at > now)
    }

    /// Returns an error if the run was asked to stop; waits while it is throttled.
    pub(crate) fn check_running(&self) -> Result<()> {
        if let Some(throttle) = self.throttle.get() {
            throttle.pause_if_due(&self.is_stopped);
        }
        if self.is_stopped.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Like [`BackupProgress::check_running`], at the start of some work: this thread counts as waiting once the guard
    /// is dropped, until it begins more work.
    pub(crate) fn begin_work(&self) -> Result<WorkGuard> {
        self.check_running()?;
        Ok(WorkGuard)
    }

    pub(crate) fn add_done(&self, items: u64, bytes: u64) {
        self.items.fetch_add(items, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The result of a save.
#[derive(Clone, Debug)]
pub struct SaveSummary {
    /// The snapshot.
    pub snapshot: VaultSnapshot,
    /// The amount of new data in the vault.
    pub written: WriteTotals,
    /// What was requested but is not in the snapshot; the snapshot is incomplete if there is any.
    pub faults: Vec<BackupFault>,
    /// The amount of data left to the owner of the source's base.
    pub omitted: OmittedCounts,
}

/// Snapshots from before a save.
#[derive(Debug, Default)]
pub(crate) struct EarlierSnapshots {
    /// Those of the same host and paths, oldest first.
    pub(crate) comparable: Vec<VaultSnapshot>,
    /// The originals of all snapshots in the vault, whether they still exist or not.
    pub(crate) originals: HashSet<VaultObjectId>,
}

/// A vault opened for writing by a save.
pub struct SaveSession<'a> {
    pub(crate) vault: &'a Arc<Vault>,
    pub(crate) index: &'a Arc<VaultIndex>,
    pub(crate) lock: &'a VaultLock,
    pub(crate) progress: &'a BackupProgress,
}

impl std::fmt::Debug for SaveSession<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SaveSession").finish_non_exhaustive()
    }
}

impl<'a> SaveSession<'a> {
    /// Creates a session. The index must have been loaded after the lock was taken.
    #[must_use]
    pub const fn new(
        (vault, index): (&'a Arc<Vault>, &'a Arc<VaultIndex>),
        lock: &'a VaultLock,
        progress: &'a BackupProgress,
    ) -> Self {
        Self { vault, index, lock, progress }
    }

    /// Lists the snapshots that a save of these paths may use as parent.
    pub(crate) fn list_earlier_snapshots(
        &self,
        options: &SaveOptions,
        paths: &[String],
    ) -> Result<EarlierSnapshots> {
        if let ParentSelection::Nothing = options.parent {
            return Ok(EarlierSnapshots::default());
        }
        let mut alike = self.vault.read_listed_usable(&self.lock.list_snapshots()?)?;
        let originals = alike.iter().filter_map(|earlier| earlier.original).collect();
        alike.retain(|earlier| earlier.hostname == options.user.host && earlier.paths == paths);
        Ok(EarlierSnapshots { comparable: alike, originals })
    }

    /// Reads a folder of the parent; `None` if it cannot be read, which costs only time.
    pub(crate) fn read_previous_tree(&self, id: Option<&VaultObjectId>) -> Option<SnapshotTree> {
        readable_or_none(self.vault.read_tree(self.index, id?))
    }

    /// Like [`SaveSession::read_previous_tree`], for a folder of which few nodes are needed.
    pub(crate) fn read_previous_tree_text(
        &self,
        id: Option<&VaultObjectId>,
    ) -> Option<SnapshotTreeText> {
        readable_or_none(self.vault.read_tree_text(self.index, id?))
    }

    /// Writes the remaining data, and then the snapshot; also returns the added index files.
    pub(crate) fn finish_snapshot(
        &self,
        writer: PackWriter,
        tree: VaultObjectId,
        options: &SaveOptions,
        paths: Vec<String>,
        parent: Option<VaultSnapshot>,
    ) -> Result<(VaultSnapshot, WriteTotals, Vec<VaultObjectId>)> {
        self.progress.check_running()?;
        let SaveOptions { user, started_at: now, excludes, tags, .. } = options;
        let mut snapshot = VaultSnapshot {
            time: now.to_string(),
            parent: parent.map(|parent| parent.id),
            original: None,
            tree,
            paths,
            hostname: user.host.clone(),
            username: user.user.clone(),
            uid: user.uid,
            gid: user.gid,
            excludes: excludes.patterns().to_vec(),
            tags: (!tags.is_empty()).then(|| tags.clone()),
            program_version: concat!("tympan ", env!("CARGO_PKG_VERSION")).to_owned(),
            id: VaultObjectId::default(),
        };
        let sealed = self.vault.seal_json(VaultFileKind::Snapshot, &snapshot)?;
        let also = Some((VaultFileKind::Snapshot, sealed));
        let (written, listed, staged) = writer.finish_with(self.lock, also)?;
        if let Some(staged) = staged {
            self.vault.reveal_file(&staged)?;
            snapshot.id = staged.id();
        }
        Ok((snapshot, written, listed.files))
    }
}

/// Returns a folder of the parent; `None` if it cannot be read.
fn readable_or_none<T>(read: Result<T>) -> Option<T> {
    read.inspect_err(|error| {
        warn!(%error, "cannot read a folder of the parent; reading its files again");
    })
    .ok()
}

impl Vault {
    /// Reads a folder.
    ///
    /// # Errors
    /// [`Error::UnreadableBlob`] if it is missing or damaged; [`Error::Backend`] if the backend cannot be read now.
    pub fn read_tree(&self, index: &VaultIndex, id: &VaultObjectId) -> Result<SnapshotTree> {
        let bytes = self.read_blob(index, PackBlobKind::Tree, id)?;
        SnapshotTree::parse(&bytes).map_err(|fault| Error::UnreadableBlob {
            what: "folder",
            id: *id,
            fault,
        })
    }

    /// Reads a folder as its text.
    fn read_tree_text(&self, index: &VaultIndex, id: &VaultObjectId) -> Result<SnapshotTreeText> {
        let bytes = self.read_blob(index, PackBlobKind::Tree, id)?;
        SnapshotTreeText::parse(bytes).map_err(|fault| Error::UnreadableBlob {
            what: "folder",
            id: *id,
            fault,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn a_source_is_read_no_faster_than_both_limits_allow() {
        let rate = |number| NonZeroU64::new(number).map(RateLimit);
        let begin = Instant::now();
        for (bytes, calls, least_ms) in [
            (rate(1_000), None, 10_000),
            (None, rate(5), 800),
            (rate(1_000), rate(5), 10_000),
            (rate(1 << 40), rate(5), 800),
        ] {
            let progress = BackupProgress::default();
            progress.set_read_limits(SourceReadLimits { bytes, calls });
            let mut now = begin;
            for _ in 0..4 {
                now = progress.reserve_read(2_500, now).unwrap_or(now);
            }
            let expected = begin + Duration::from_millis(least_ms);
            assert_eq!(now, expected, "{bytes:?} {calls:?}");
        }
        assert_eq!(BackupProgress::default().reserve_read(1 << 40, begin), None);
    }

    /// The limits require waiting for an hour; a run that is to stop does not wait.
    #[test]
    fn who_is_to_stop_does_not_wait_for_a_limit() {
        let progress = BackupProgress::default();
        progress.set_read_limits(SourceReadLimits {
            bytes: NonZeroU64::new(1).map(RateLimit),
            calls: None,
        });
        progress.request_stop();
        progress.record_read(3_600);
        assert_eq!(progress.read_bytes.load(Ordering::Relaxed), 3_600);
        assert_eq!(progress.reads.load(Ordering::Relaxed), 1);
    }
}
