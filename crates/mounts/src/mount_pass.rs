//! One pass over a source: applies new, changed, moved and removed files to the assets.
//!
//! In: an [`AssetMount`], the ledger of earlier passes. Out: commits, and a [`MountPassReport`].
//!
//! Invariants
//! * Only files whose fingerprint differs from the ledger are read, and no more bytes than were listed.
//! * Only assets that this mount created are changed, moved or removed, and none whose original a person replaced.
//! * An incomplete listing removes nothing. Neither does one without any files, or without more than half of more than
//!   ten, until a person confirms it.
//! * Content is written first, the ledger second: a crash in between costs a check of one batch's assets.
//! * Memory grows by a few bytes per file, and with the changes up to [`MAX_PASS_CHANGES`].

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use tympan_assets::MOUNT_PROPERTY;
use tympan_content::{JCR_CONTENT, NodePath, Repository, RevisionDetails, Snapshot};
use tympan_notation::error_chain_text;

use crate::Result;
use crate::asset_mount::{AssetMount, MountPurpose, SYNCHRONIZATION_USER};
use crate::file_fetch::{MountFileFetch, MountFileRead, read_source_file, store_in_memory_files};
use crate::mount_ledger::{
    KnownMountFile, LastMountPass, MountFileRow, MountLedger, fingerprint_hash, path_hash,
};
use crate::mount_source::{MountSourceError, SourceFile, SourceItem};
use crate::mount_target::{
    FILE_PATH_PROPERTY, FINGERPRINT_PROPERTY, MountFileAction, MountFileOutcome, MountTarget,
};
use crate::pass_report::MountPassReport;

/// Maximum number of files per commit, and maximum total of their bytes.
const MAX_BATCH_FILES: usize = 64;
const MAX_BATCH_BYTES: u64 = 256 << 20;
/// Number of files that are read concurrently.
const PARALLEL_READS: usize = 4;
/// Maximum number of changes per pass; the next pass begins at once.
pub const MAX_PASS_CHANGES: usize = 50_000;
/// Number of removed files up to which removals need no confirmation, as long as other files are left.
const MAX_UNCONFIRMED_REMOVALS: usize = 10;
/// Number of consecutive read failures after which the source counts as unreachable.
const MAX_CONSECUTIVE_FAILURES: usize = 8;
const COMMIT_ATTEMPTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);

/// Options of a pass.
#[derive(Debug, Clone, Copy)]
pub struct MountPassOptions {
    /// The current time.
    pub now: SystemTime,
    /// True if any number of removed files is accepted.
    pub accepts_removals: bool,
    /// If true, nothing is written.
    pub is_dry_run: bool,
}

/// The reason why a pass ended early. Its commits remain, and the next pass continues from there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountPassError {
    /// The place cannot be read.
    #[error("cannot synchronize the mount `{mount}`")]
    Source {
        /// The mount.
        mount: String,
        /// The cause.
        source: MountSourceError,
    },
    /// Content or the ledger cannot be read or written.
    #[error("cannot synchronize the mount `{mount}`")]
    Store {
        /// The mount.
        mount: String,
        /// The cause.
        source: Box<crate::Error>,
    },
}

impl MountPassError {
    /// Returns true if the next pass may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Source { source, .. } => source.is_transient(),
            Self::Store { source, .. } => source.is_transient(),
        }
    }
}

/// Called with the number of processed files and the total; returns true to continue.
pub type MountPassCallback<'a> = dyn FnMut(u64, u64) -> bool + 'a;

/// Runs a pass.
///
/// # Errors
/// [`MountPassError`]; the ledger records the reason.
pub fn run_mount_pass(
    repository: &Repository,
    ledger: &MountLedger,
    mount: &AssetMount,
    options: MountPassOptions,
    on_progress: &mut MountPassCallback<'_>,
) -> Result<MountPassReport, MountPassError> {
    let store =
        |source| MountPassError::Store { mount: mount.name.clone(), source: Box::new(source) };
    let start_snapshot = repository.snapshot().map_err(|error| store(error.into()))?;
    let mut known_files = ledger.load_known_files(&mount.name).map_err(store)?;
    let mut pass = MountPass {
        repository,
        ledger,
        mount,
        options,
        progress_callback: on_progress,
        report: MountPassReport::default(),
    };
    let ran = pass.run_pass(&start_snapshot, &mut known_files);
    if !options.is_dry_run {
        let failure = ran.as_ref().err().map(|error| error_chain_text(error));
        // If local changes might not be recorded in the ledger, the next pass checks every asset.
        let root = match &ran {
            Err(MountPassError::Store { .. }) => String::new(),
            _ => pass.finish_pass(&start_snapshot, &mut known_files).unwrap_or_default(),
        };
        let last = LastMountPass {
            start_root: root,
            ended_at: options.now,
            report: pass.report.clone(),
            failure,
        };
        ledger.record_last_pass(&mount.name, &last).map_err(store)?;
    }
    ran.map(|()| pass.report)
}

struct MountPass<'a, 'b> {
    repository: &'a Repository,
    ledger: &'a MountLedger,
    mount: &'a AssetMount,
    options: MountPassOptions,
    progress_callback: &'a mut MountPassCallback<'b>,
    report: MountPassReport,
}

/// The remaining work after a listing.
#[derive(Default)]
struct MountPassWork {
    changed_files: Vec<SourceFile>,
    listed_count: u64,
}

impl MountPass<'_, '_> {
    fn run_pass(
        &mut self,
        start_snapshot: &Snapshot,
        known_files: &mut HashMap<u128, KnownMountFile>,
    ) -> Result<(), MountPassError> {
        let mount = self.mount.name.clone();
        let store =
            |source| MountPassError::Store { mount: mount.clone(), source: Box::new(source) };
        if !self.options.is_dry_run {
            self.forget_changed_since_last(start_snapshot, known_files).map_err(store)?;
        }
        let before = known_files.len();
        let mut work = self.list_source(known_files)?;
        let mut missing_count =
            known_files.values().filter(|known_file| !known_file.is_listed).count();
        let follows = self.mount.purpose == MountPurpose::Synchronize;
        // A missing file may have been renamed to one in the part of the listing that exceeded the limit.
        let is_whole = follows && self.report.waiting == 0;
        if self.options.is_dry_run {
            self.report.added = work.changed_files.len() as u64;
            return Ok(());
        }
        if is_whole && missing_count > 0 {
            missing_count -= self.move_renamed_files(known_files, &mut work).map_err(store)?;
        }
        if !self.write_all_batches(&work.changed_files)? {
            return Ok(());
        }
        if is_whole && missing_count > 0 {
            let is_believed = self.options.accepts_removals
                || (work.listed_count > 0
                    && (missing_count <= MAX_UNCONFIRMED_REMOVALS || missing_count * 2 <= before));
            if is_believed {
                self.remove_missing_files(known_files).map_err(store)?;
            } else {
                self.report.held_back = missing_count as u64;
            }
        }
        Ok(())
    }

    /// Removes from the ledger the files whose assets people removed, moved or changed since the last pass, so that
    /// they are checked again.
    fn forget_changed_since_last(
        &self,
        start_snapshot: &Snapshot,
        known_files: &mut HashMap<u128, KnownMountFile>,
    ) -> Result<()> {
        let Some(last) = self.ledger.last_pass_blocking(&self.mount.name)? else { return Ok(()) };
        let before =
            last.start_root.parse().ok().and_then(|root| self.repository.snapshot_at(root).ok());
        self.forget_changed_assets(before.as_ref(), start_snapshot, known_files)
    }

    /// Does the same for changes made during the pass. Returns the root from which the next pass continues.
    fn finish_pass(
        &self,
        start_snapshot: &Snapshot,
        known_files: &mut HashMap<u128, KnownMountFile>,
    ) -> Result<String> {
        let ended = self.repository.snapshot()?;
        self.forget_changed_assets(Some(start_snapshot), &ended, known_files)?;
        Ok(ended.root_id().to_string())
    }

    /// Removes from the ledger the files whose assets differ from their record, among those that differ between two
    /// states; among all if the earlier state was collected.
    fn forget_changed_assets(
        &self,
        before: Option<&Snapshot>,
        after: &Snapshot,
        known_files: &mut HashMap<u128, KnownMountFile>,
    ) -> Result<()> {
        let name = &*self.mount.name;
        let changed = before.and_then(|before| before.changed_paths(after).ok());
        let mut stale: Vec<String> = Vec::new();
        match changed {
            Some(changed) => {
                for path in changed.iter().filter(|path| path.is_within(&self.mount.target)) {
                    // The difference includes the commits of the pass itself, which are most of it.
                    if self.matches_ledger(after, path, known_files)? {
                        continue;
                    }
                    if let Some((file, mark)) = self.ledger.file_of_asset(name, path.as_str())?
                        && !self.target().has_recorded_fingerprint(after, path, &mark)?
                    {
                        stale.push(file);
                    }
                }
            }
            None => self.ledger.for_each_file(name, |row| {
                let path = NodePath::new(&row.asset_path)?;
                if !self.target().has_recorded_fingerprint(after, &path, &row.fingerprint)? {
                    stale.push(row.path);
                }
                Ok(())
            })?,
        }
        for file in &stale {
            known_files.remove(&path_hash(file));
        }
        let stale: Vec<&str> = stale.iter().map(String::as_str).collect();
        self.ledger.remove_files(name, &stale)
    }

    /// Returns true if an asset's properties match the ledger.
    fn matches_ledger(
        &self,
        snapshot: &Snapshot,
        path: &NodePath,
        known_files: &HashMap<u128, KnownMountFile>,
    ) -> Result<bool> {
        let Some(node) = snapshot.node(path)? else { return Ok(false) };
        let Some(content) = node.child(JCR_CONTENT)? else { return Ok(false) };
        let (Some(file), Some(mark)) =
            (content.text(FILE_PATH_PROPERTY), content.text(FINGERPRINT_PROPERTY))
        else {
            return Ok(false);
        };
        let is_here = content.text(MOUNT_PROPERTY).as_deref() == Some(&*self.mount.name)
            && self.target().asset_path_of(&file).is_ok_and(|expected| expected == *path);
        Ok(is_here
            && known_files
                .get(&path_hash(&file))
                .is_some_and(|known_file| known_file.fingerprint_hash == fingerprint_hash(&mark)))
    }

    fn list_source(
        &mut self,
        known_files: &mut HashMap<u128, KnownMountFile>,
    ) -> Result<MountPassWork, MountPassError> {
        let mut work = MountPassWork::default();
        let (report, on_progress, options) =
            (&mut self.report, &mut self.progress_callback, self.options);
        let settle = self.mount.min_file_age;
        let mut look = |item: SourceItem| {
            let entry = match item {
                SourceItem::Skipped(path, reason) => {
                    report.add_skipped(&path, reason);
                    return Ok(());
                }
                SourceItem::File(entry) => entry,
            };
            work.listed_count += 1;
            if work.listed_count.is_multiple_of(1000) && !on_progress(0, 0) {
                return Err(MountSourceError::Stopped);
            }
            let (at, mark) = (path_hash(&entry.path), fingerprint_hash(&entry.fingerprint));
            let present = known_files.get_mut(&at);
            if let Some(present) = present {
                present.is_listed = true;
                if present.fingerprint_hash == mark {
                    report.unchanged += 1;
                    return Ok(());
                }
            }
            let age =
                entry.modified_at.and_then(|modified| options.now.duration_since(modified).ok());
            if age.is_some_and(|age| age < settle) {
                report.settling += 1;
            } else if work.changed_files.len() >= MAX_PASS_CHANGES {
                report.waiting += 1;
            } else {
                // A file that the source lists twice is read once.
                known_files.insert(at, KnownMountFile { fingerprint_hash: mark, is_listed: true });
                work.changed_files.push(entry);
            }
            Ok(())
        };
        match self.mount.source.list_files(&mut look) {
            Ok(()) => Ok(work),
            Err(source) => Err(MountPassError::Source { mount: self.mount.name.clone(), source }),
        }
    }

    /// Moves the assets whose files were renamed, and removes them from the remaining work. Returns the number of moved
    /// assets.
    fn move_renamed_files(
        &mut self,
        known_files: &HashMap<u128, KnownMountFile>,
        work: &mut MountPassWork,
    ) -> Result<usize> {
        let mut new_files: HashMap<&str, usize> = HashMap::new();
        for (at, entry) in work.changed_files.iter().enumerate() {
            if let Some(identity) = &entry.identity {
                new_files.insert(identity, at);
            }
        }
        let mut pairs: Vec<(MountFileRow, usize)> = Vec::new();
        let mut matched_indexes = HashSet::new();
        self.ledger.for_each_file(&self.mount.name, |row| {
            let is_gone = known_files
                .get(&path_hash(&row.path))
                .is_some_and(|known_file| !known_file.is_listed);
            let new = row
                .identity
                .as_deref()
                .filter(|_| is_gone)
                .and_then(|identity| new_files.get(identity));
            let is_lasting = self.mount.source.has_persistent_identities();
            let is_it = |entry: &SourceFile| is_lasting || entry.fingerprint == row.fingerprint;
            if let Some(at) = new
                && work.changed_files.get(*at).is_some_and(is_it)
                && matched_indexes.insert(*at)
            {
                pairs.push((row, *at));
            }
            Ok(())
        })?;
        let (mut moved, mut count) = (HashSet::new(), 0);
        for batch in pairs.chunks(MAX_BATCH_FILES) {
            let revising = self.revising_as_synchronizer("move assets whose files moved");
            let done = self.repository.commit_with_retry(COMMIT_ATTEMPTS, revising, |session| {
                let mut done = Vec::new();
                for (row, at) in batch {
                    let Some(entry) = work.changed_files.get(*at) else { continue };
                    if self.target().move_asset(session, row, entry)? {
                        done.push(*at);
                    }
                }
                Ok(done)
            })?;
            // The others also have new bytes, which are still to be read.
            let is_read = |(row, at): &&(MountFileRow, usize)| {
                done.contains(at)
                    && work
                        .changed_files
                        .get(*at)
                        .is_some_and(|entry| entry.fingerprint == row.fingerprint)
            };
            let read: Vec<usize> = batch.iter().filter(is_read).map(|(_, at)| *at).collect();
            let of = |at: &usize| work.changed_files.get(*at);
            let rows: Vec<(&SourceFile, String)> = read
                .iter()
                .filter_map(|at| {
                    Some((of(at)?, self.target().asset_path_of_file(of(at)?).ok()?.to_string()))
                })
                .collect();
            self.ledger.record_files(&self.mount.name, &rows)?;
            let is_done = |(_, at): &&(MountFileRow, usize)| done.contains(at);
            let old: Vec<&str> = batch.iter().filter(is_done).map(|(row, _)| &*row.path).collect();
            self.ledger.remove_files(&self.mount.name, &old)?;
            count += done.len();
            moved.extend(read);
        }
        self.report.moved += count as u64;
        let mut at = 0;
        work.changed_files.retain(|_| {
            at += 1;
            !moved.contains(&(at - 1))
        });
        Ok(count)
    }

    /// Reads and commits new and changed files. Returns false if it was stopped.
    fn write_all_batches(&mut self, entries: &[SourceFile]) -> Result<bool, MountPassError> {
        let (total, mut done, mut failures) = (entries.len() as u64, 0_u64, 0);
        let mut rest = entries;
        while !rest.is_empty() {
            if !(self.progress_callback)(done, total) {
                return Ok(false);
            }
            let mut bytes = 0_u64;
            let count = rest.iter().take(MAX_BATCH_FILES).take_while(|entry| {
                let is_within = bytes == 0 || bytes < MAX_BATCH_BYTES;
                bytes = bytes.saturating_add(entry.byte_count.unwrap_or(1 << 20));
                is_within
            });
            let (batch, left) = rest.split_at(count.count().max(1).min(rest.len()));
            rest = left;
            let failed = self.write_batch(batch).map_err(|source| MountPassError::Store {
                mount: self.mount.name.clone(),
                source: Box::new(source),
            })?;
            done += batch.len() as u64;
            failures = if failed.0 == batch.len() { failures + failed.0 } else { 0 };
            if failures >= MAX_CONSECUTIVE_FAILURES
                && let Some(source) = failed.1
            {
                return Err(MountPassError::Source { mount: self.mount.name.clone(), source });
            }
        }
        (self.progress_callback)(done, total);
        Ok(true)
    }

    /// Reads and commits a batch. Returns the number of files that the source failed to provide, and the last error.
    fn write_batch(&mut self, batch: &[SourceFile]) -> Result<(usize, Option<MountSourceError>)> {
        // The blobs are protected from collection until the commit refers to them.
        let _hold = self.repository.hold_blobs()?;
        let fetched = self.fetch_batch(batch)?;
        let revising = self.revising_as_synchronizer("synchronize assets");
        let outcomes = self.repository.commit_with_retry(COMMIT_ATTEMPTS, revising, |session| {
            let put = |(entry, fetched): (&SourceFile, &MountFileFetch)| {
                self.target().put_file(session, entry, fetched)
            };
            batch.iter().zip(&fetched).map(put).collect::<tympan_content::Result<Vec<_>>>()
        })?;
        let mut rows = Vec::new();
        for (entry, outcome) in batch.iter().zip(&outcomes) {
            match outcome {
                MountFileOutcome::Added => self.report.added += 1,
                MountFileOutcome::Changed => self.report.changed += 1,
                MountFileOutcome::Unchanged => self.report.unchanged += 1,
                // The file's row in the ledger is unchanged, so the next pass checks it again.
                MountFileOutcome::Skipped(reason) => {
                    self.report.add_skipped(&entry.path, reason);
                    continue;
                }
            }
            rows.push((entry, self.target().asset_path_of_file(entry)?.to_string()));
        }
        self.ledger.record_files(&self.mount.name, &rows)?;
        let mut failed = (0, None);
        for fetch in fetched {
            match fetch {
                MountFileFetch::Blob(blob) => self.report.bytes += blob.length(),
                MountFileFetch::Failed(_, error) => {
                    failed.0 += 1;
                    failed.1 = error.or(failed.1);
                }
                MountFileFetch::Present => {}
            }
        }
        Ok(failed)
    }

    /// Fetches the files of a batch, several concurrently.
    fn fetch_batch(&self, batch: &[SourceFile]) -> Result<Vec<MountFileFetch>> {
        let snapshot = self.repository.snapshot()?;
        let mut reads: Vec<Mutex<Option<MountFileRead>>> = Vec::new();
        for entry in batch {
            // A file that will not be stored is not read.
            let decided_fetch = match self.target().decide_action(&snapshot, entry)? {
                MountFileAction::KeepUnchanged => Some(MountFileFetch::Present),
                MountFileAction::Blocked(reason) => Some(MountFileFetch::Failed(reason, None)),
                MountFileAction::Add(_)
                | MountFileAction::CompareBytes(..)
                | MountFileAction::Replace(..) => None,
            };
            reads.push(Mutex::new(decided_fetch.map(MountFileRead::Completed)));
        }
        let (source, blobs) = (&*self.mount.source, self.repository.blobs());
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..PARALLEL_READS.min(batch.len()) {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let (Some(entry), Some(slot)) = (batch.get(at), reads.get(at)) else {
                            return;
                        };
                        let is_open = slot.lock().is_none();
                        if is_open {
                            let file_read = read_source_file(source, blobs, entry);
                            *slot.lock() = Some(file_read);
                        }
                    }
                });
            }
        });
        let missing =
            || MountFileRead::Completed(MountFileFetch::Failed("it was not read".to_owned(), None));
        let reads = reads.into_iter().map(|cell| cell.into_inner().unwrap_or_else(missing));
        Ok(store_in_memory_files(blobs, reads.collect()))
    }

    fn remove_missing_files(&mut self, known_files: &HashMap<u128, KnownMountFile>) -> Result<()> {
        let mut missing_rows: Vec<MountFileRow> = Vec::new();
        let name = &*self.mount.name;
        let ledger = self.ledger;
        let mut removed = (0, Vec::new());
        let mut flush = |rows: &mut Vec<MountFileRow>| -> Result<()> {
            let revising = self.revising_as_synchronizer("remove assets whose files are gone");
            let batch =
                self.repository.commit_with_retry(COMMIT_ATTEMPTS, revising, |session| {
                    let mut batch = (0, Vec::new());
                    for row in rows.iter() {
                        match self.target().remove_asset(session, row)? {
                            true => batch.0 += 1,
                            false => batch.1.push(row.path.clone()),
                        }
                    }
                    Ok(batch)
                })?;
            removed.0 += batch.0;
            removed.1.extend(batch.1);
            ledger.remove_files(name, &rows.iter().map(|row| &*row.path).collect::<Vec<_>>())?;
            rows.clear();
            Ok(())
        };
        ledger.for_each_file(name, |row| {
            if known_files
                .get(&path_hash(&row.path))
                .is_some_and(|known_file| !known_file.is_listed)
            {
                missing_rows.push(row);
                if missing_rows.len() >= MAX_BATCH_FILES {
                    flush(&mut missing_rows)?;
                }
            }
            Ok(())
        })?;
        flush(&mut missing_rows)?;
        self.report.removed += removed.0;
        for path in removed.1 {
            self.report.add_skipped(
                &path,
                "its file is gone; the asset is kept, because it no longer belongs to the mount",
            );
        }
        Ok(())
    }

    fn target(&self) -> MountTarget<'_> {
        MountTarget { mount: self.mount, now: self.options.now }
    }

    fn revising_as_synchronizer(&self, message: &'static str) -> RevisionDetails<'static> {
        RevisionDetails { user: SYNCHRONIZATION_USER, message, time: self.options.now }
    }
}
