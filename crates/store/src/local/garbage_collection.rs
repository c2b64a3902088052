//! Garbage collection of packs: moves live records out of packs that are mostly garbage, then removes these packs.
//! Small packs are merged the same way.
//!
//! A collection works on the packs that were full when it began. It marks from all roots while commits continue. Then
//! it takes the writer's lock for the few roots added since, and *condemns* packs under it. From then on no writer
//! relies on the records in a condemned pack. The live records of condemned packs are written to a new pack and made
//! durable; the new pack replaces the condemned ones, which are then removed.
//!
//! Invariants
//! * Commits wait only for the marking of what was committed since the last catch-up.
//! * A pack is removed after every live record in it is durable elsewhere.
//!
//! On failure: an unfinished pack is removed, now or at the next start. Nothing else has changed by then.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::history_reader::FoldedHistory;
use super::index_file::{self, IndexFileContents, PackIndexEntry, PackIndexFile, RecordLocation};
use super::local_store::LocalStore;
use super::pack_name::{COLLECTION_PACK_FLAG, is_collection_pack, pack_file_name};
use super::pack_writer::{begin_pack, seal_pack};
use super::record::{self, RECORD_HEADER_BYTES, RecordHeader, RecordKind, RecordPosition};
use super::record_index::{LiveBits, RecordLookupPurpose, is_ordinal_live};
use super::record_payload::StoreTables;
use super::rewrite_candidate::{self, RewriteCandidate};
use crate::chunk::Chunk;
use crate::disk::DiskFile;
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};
use crate::interface::chunk_batch::{ChunkBatch, LeaseUpdate};
use crate::interface::chunk_store::ChunkStore;
use crate::interface::garbage_collection::{
    GarbageCollectionMode, GarbageCollectionOptions, GarbageCollectionPhase,
    GarbageCollectionProgress, GarbageCollectionReport, LiveBlobVisitor, MarkOutcome, MarkSet,
    StorageRetainer, mark_reachable,
};
use crate::interface::root_retention::RootLease;

/// The minimum length in bytes of an open pack to be sealed for a collection.
const MIN_PACK_ROTATE_BYTES: u64 = 64 << 10;
/// The approximate size in bytes of the pieces in which live records are moved.
pub(super) const MOVE_BATCH_BYTES: usize = 256 << 10;
/// The maximum number of times that marking catches up with commits before it takes the writer's lock.
const MAX_MARK_CATCH_UPS: usize = 8;

const INITIAL_PROGRESS: GarbageCollectionProgress = GarbageCollectionProgress {
    phase: GarbageCollectionPhase::Mark,
    record_count: 0,
    byte_count: 0,
};
/// The number of chunks requested from the base together.
const BASE_QUERY_CHUNKS: usize = 1_024;

type ProgressCallback<'a> = &'a mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>;

impl LocalStore {
    /// Collects garbage; see [`ChunkStore::collect_garbage`].
    pub(super) fn run_garbage_collection(
        &self,
        options: &GarbageCollectionOptions,
        pace: ProgressCallback<'_>,
    ) -> Result<GarbageCollectionReport> {
        let Some(_turn) = self.collection_lock.try_lock() else {
            return Err(Error::CollectionRunning);
        };
        let removes = options.mode == GarbageCollectionMode::Remove;
        self.check_index_files()?;
        if removes {
            self.check_writable()?;
            self.rotate_open_pack()?;
        }
        let boundary = self.writer.lock().pack.min(self.holds.first_held_pack());
        let folded = self.fold_history(options)?;
        let report = GarbageCollectionReport {
            generation: folded.log.generation,
            retained_revisions: folded.retained.len() as u64,
            dropped_revisions: folded.dropped_count,
            ..GarbageCollectionReport::default()
        };
        let mut marks = LocalMarkSet::new(self, boundary, report, options.blob_visitor.as_ref());
        let mut pace = ProgressReporter { callback: pace, progress: INITIAL_PROGRESS };
        if self.mark_live_records(options, &folded, &mut marks, &mut pace)?.is_break() {
            return Ok(GarbageCollectionReport { is_stopped: true, ..marks.report });
        }
        if !removes {
            let condemned = marks.choose_condemned(options)?;
            let mut report = marks.report;
            for (length, live) in condemned.into_values() {
                report.moved_bytes += live;
                report.freed_bytes += length - live;
            }
            return Ok(report);
        }
        let condemned = self.condemn_packs(options, &folded, &mut marks)?;
        let mut report = std::mem::take(&mut marks.report);
        pace.progress =
            GarbageCollectionProgress { phase: GarbageCollectionPhase::Sweep, ..INITIAL_PROGRESS };
        let swept = self.sweep_packs(&marks, &condemned, &mut report, &mut pace);
        self.index.set_condemned(&BTreeMap::new());
        swept.map(|()| report)
    }

    /// Thins the history and ends expired leases; a dry run only decides which revisions would stay.
    fn fold_history(&self, options: &GarbageCollectionOptions) -> Result<FoldedHistory> {
        let mut batch = ChunkBatch::new();
        let folded = self.stage_history_fold(options, &mut batch)?;
        if options.mode == GarbageCollectionMode::Remove {
            self.commit(batch)?;
            let mut writer = self.writer.lock();
            let expired: Vec<LeaseUpdate> = {
                let tables = self.tables.read();
                let expired = tables.leases.values().filter(|lease| !lease.is_live(options.now));
                expired.map(|lease| LeaseUpdate::Release { holder: lease.holder.clone() }).collect()
            };
            let commit = writer.write_log_commit(self.write_context(), folded.log, expired);
            let commit = commit.map_err(|failure| self.handle_write_failure(failure))?;
            self.tables.write().apply_commit(&commit);
        }
        Ok(folded)
    }

    /// Marks from all roots, then repeatedly from the roots added since, until few are added.
    fn mark_live_records(
        &self,
        options: &GarbageCollectionOptions,
        folded: &FoldedHistory,
        marks: &mut LocalMarkSet<'_>,
        pace: &mut ProgressReporter<'_>,
    ) -> Result<ControlFlow<()>> {
        let mut roots = Vec::new();
        if let Some(log) = self.tables.read().log.map.root() {
            roots.push(("the list of revisions".to_owned(), vec![log]));
        }
        roots.extend(self.live_roots(options)?);
        for (name, revision_roots) in roots_by_ref(&folded.retained) {
            roots.push((
                format!("history of `{name}`, {} revisions", revision_roots.len()),
                revision_roots,
            ));
        }
        for (description, roots) in roots {
            let ControlFlow::Continue(bytes) = marks.mark_roots(roots, pace)? else {
                return Ok(ControlFlow::Break(()));
            };
            marks.report.retainers.extend(
                (bytes > 0).then_some(StorageRetainer { description, retained_bytes: bytes }),
            );
        }
        for (description, roots) in self.uncommitted_roots() {
            let ControlFlow::Continue(bytes) = marks.mark_available(roots, pace)? else {
                return Ok(ControlFlow::Break(()));
            };
            marks.report.retainers.extend(
                (bytes > 0).then_some(StorageRetainer { description, retained_bytes: bytes }),
            );
        }
        for _ in 0..MAX_MARK_CATCH_UPS {
            match self.catch_up_marks(options, folded, marks, pace)? {
                ControlFlow::Continue(0) => break,
                ControlFlow::Continue(_) => {}
                ControlFlow::Break(()) => return Ok(ControlFlow::Break(())),
            }
        }
        marks.check_base_chunks()?;
        Ok(ControlFlow::Continue(()))
    }

    /// Marks from the roots added since the last call; returns the bytes newly marked.
    fn catch_up_marks(
        &self,
        options: &GarbageCollectionOptions,
        folded: &FoldedHistory,
        marks: &mut LocalMarkSet<'_>,
        pace: &mut ProgressReporter<'_>,
    ) -> Result<ControlFlow<(), u64>> {
        let mut bytes = 0;
        let strict = self.roots_since(options, folded.log.folded_below)?;
        let loose = self.uncommitted_roots().into_iter().flat_map(|(_, roots)| roots).collect();
        for walked in [marks.mark_roots(strict, pace)?, marks.mark_available(loose, pace)?] {
            match walked {
                ControlFlow::Continue(more) => bytes += more,
                ControlFlow::Break(()) => return Ok(ControlFlow::Break(())),
            }
        }
        Ok(ControlFlow::Continue(bytes))
    }

    /// Marks the last roots and condemns packs under the writer's lock, while no commit runs.
    fn condemn_packs(
        &self,
        options: &GarbageCollectionOptions,
        folded: &FoldedHistory,
        marks: &mut LocalMarkSet<'_>,
    ) -> Result<BTreeMap<u32, (u64, u64)>> {
        let _writer = self.writer.lock();
        let _condemning = self.holds.begin_condemning();
        for digest in self.holds.blob_hits() {
            marks.set_mark(RecordKind::Blob, &digest)?;
        }
        let mut never = |_: &GarbageCollectionProgress| ControlFlow::Continue(());
        let mut unpaced = ProgressReporter { callback: &mut never, progress: INITIAL_PROGRESS };
        // This pace never stops the marking.
        let _bytes = self.catch_up_marks(options, folded, marks, &mut unpaced)?;
        let condemned = marks.choose_condemned(options)?;
        let live = |pack: &u32| (*pack, marks.live_bits(*pack));
        self.index.set_condemned(&condemned.keys().map(live).collect());
        Ok(condemned)
    }

    /// Seals the open pack, so that the collection can work on its records.
    fn rotate_open_pack(&self) -> Result<()> {
        let due = {
            let mut writer = self.writer.lock();
            let rotated = writer.rotate_pack(self.write_context(), MIN_PACK_ROTATE_BYTES);
            rotated.map_err(|failure| self.handle_write_failure(failure))?;
            writer.take_unindexed()
        };
        self.write_pending_indexes(due);
        Ok(())
    }

    /// Returns the live roots other than history, grouped by the ref, lease or pin that retains them.
    fn live_roots(
        &self,
        options: &GarbageCollectionOptions,
    ) -> Result<Vec<(String, Vec<ChunkId>)>> {
        let StoreTables { refs, leases, .. } = self.tables.read().clone();
        let files = self.read_lease_files()?;
        // A lease that was requested too late has nothing to retain; its holder detects that itself.
        let is_here = |lease: &RootLease| {
            self.index.find_record(RecordKind::Chunk, lease.root.as_bytes()).is_some()
        };
        let leases = leases.into_values().chain(files.into_iter().filter(is_here));
        let mut roots: Vec<(String, Vec<ChunkId>)> =
            refs.into_iter().map(|(name, root)| (format!("ref `{name}`"), vec![root])).collect();
        let live = leases.filter(|lease| lease.is_live(options.now));
        roots.extend(live.map(|live_lease| {
            (format!("lease of `{}`", live_lease.holder), vec![live_lease.root])
        }));
        Ok(roots)
    }

    /// Returns the roots that readers and writers of this process need. They may be incomplete: a chunk that was never
    /// committed may have lost its references, and a reader may have pinned a root too late.
    fn uncommitted_roots(&self) -> [(String, Vec<ChunkId>); 2] {
        [
            ("readers".to_owned(), self.pins.pinned_roots()),
            ("writers that have not moved a ref yet".to_owned(), self.holds.chunk_hits()),
        ]
    }

    /// Returns all roots that may have been added since the last call.
    fn roots_since(&self, options: &GarbageCollectionOptions, folded: u64) -> Result<Vec<ChunkId>> {
        let mut roots: Vec<ChunkId> =
            self.live_roots(options)?.into_iter().flat_map(|(_, roots)| roots).collect();
        let young = self.history_reader().read_recent_revisions(folded, usize::MAX, |_| true)?;
        roots.extend(young.into_iter().filter_map(|revision| revision.update.new_root));
        Ok(roots)
    }

    /// Moves the live records out of condemned packs and removes these packs.
    fn sweep_packs(
        &self,
        marks: &LocalMarkSet<'_>,
        condemned: &BTreeMap<u32, (u64, u64)>,
        report: &mut GarbageCollectionReport,
        pace: &mut ProgressReporter<'_>,
    ) -> Result<()> {
        let dead = condemned.iter().filter(|(_, (_, live))| *live == 0);
        let dead: BTreeSet<u32> = dead.map(|(pack, _)| *pack).collect();
        self.remove_packs(&dead, None, condemned, report)?;
        let mut output: Option<CompactedPack> = None;
        let mut moved = BTreeSet::new();
        for pack in condemned.keys().filter(|pack| !dead.contains(pack)) {
            let to = match &mut output {
                Some(open) => open,
                None => output.insert(CompactedPack::begin_pack(self)?),
            };
            let is_done = self
                .move_live_records(marks, *pack, to, pace)
                .inspect_err(|_| to.discard_pack(self));
            if is_done?.is_break() {
                report.is_stopped = true;
                break;
            }
            moved.insert(*pack);
            if to.length >= self.pack_limit() / 2
                && let Some(full) = output.take()
            {
                self.finish_sweep(full, &std::mem::take(&mut moved), condemned, report)?;
            }
        }
        if let Some(last) = output {
            self.finish_sweep(last, &moved, condemned, report)?;
        }
        Ok(())
    }

    /// Appends the live records of a pack to the output.
    fn move_live_records(
        &self,
        marks: &LocalMarkSet<'_>,
        pack: u32,
        to: &mut CompactedPack,
        pace: &mut ProgressReporter<'_>,
    ) -> Result<ControlFlow<()>> {
        let mut live = marks.live_locations(pack);
        live.sort_unstable_by_key(|location| location.position.offset);
        let mut piece = Vec::new();
        let mut records = 0;
        let mut live = live.into_iter().peekable();
        while let Some(location) = live.next() {
            let (header, bytes) = self.index.read_record(location)?;
            let is_valid =
                |header: &RecordHeader| record::is_record_valid(header, &bytes, location.position);
            let header = header.filter(is_valid).ok_or_else(|| Error::FileMalformed {
                file: pack_file_name(pack),
                fault: "a live record is damaged; run `tympan repo check`",
            })?;
            to.add_record(&header, &bytes, &mut piece);
            records += 1;
            if piece.len() >= MOVE_BATCH_BYTES || live.peek().is_none() {
                let length = piece.len() as u64;
                to.append_records(&mut piece)?;
                if pace.report_progress(records, length).is_break() && live.peek().is_some() {
                    return Ok(ControlFlow::Break(()));
                }
                records = 0;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Makes the output durable and replaces the packs whose records were moved to it.
    fn finish_sweep(
        &self,
        mut output: CompactedPack,
        moved: &BTreeSet<u32>,
        condemned: &BTreeMap<u32, (u64, u64)>,
        report: &mut GarbageCollectionReport,
    ) -> Result<()> {
        let tables = self.tables.read().clone();
        let index = output.seal_pack(self, &tables).inspect_err(|_| output.discard_pack(self))?;
        report.moved_bytes += output.length;
        let added = (output.pack, Arc::clone(&output.file), index);
        self.remove_packs(moved, Some(added), condemned, report)
    }

    fn remove_packs(
        &self,
        removed: &BTreeSet<u32>,
        added: Option<(u32, Arc<dyn DiskFile>, PackIndexFile)>,
        condemned: &BTreeMap<u32, (u64, u64)>,
        report: &mut GarbageCollectionReport,
    ) -> Result<()> {
        self.index.replace_packs(removed, added);
        for pack in removed {
            for file in [index_file::index_file_name(*pack), pack_file_name(*pack)] {
                let removal = self.disk.remove_file(&file);
                removal.map_err(|source| Error::FileWrite { file, source })?;
            }
            let (length, live) = condemned.get(pack).copied().unwrap_or_default();
            report.freed_bytes += length - live;
        }
        if !removed.is_empty() {
            let synced = self.disk.sync_folder("");
            synced.map_err(|source| Error::FileWrite { file: String::new(), source })?;
        }
        Ok(())
    }

    fn pack_limit(&self) -> u64 {
        self.writer.lock().pack_limit
    }
}

/// Counts the progress and passes it to the pace callback.
struct ProgressReporter<'a> {
    callback: ProgressCallback<'a>,
    progress: GarbageCollectionProgress,
}

impl ProgressReporter<'_> {
    fn report_progress(&mut self, records: u64, bytes: u64) -> ControlFlow<()> {
        self.progress.record_count += records;
        self.progress.byte_count += bytes;
        (self.callback)(&self.progress)
    }
}

fn roots_by_ref(revisions: &[crate::interface::history::Revision]) -> BTreeMap<&str, Vec<ChunkId>> {
    let mut by_name: BTreeMap<&str, Vec<ChunkId>> = BTreeMap::new();
    for revision in revisions {
        by_name.entry(&revision.update.name).or_default().extend(revision.update.new_root);
    }
    by_name
}

/// The marks of one collection: one bit for each record of the packs that it works on.
struct LocalMarkSet<'a> {
    store: &'a LocalStore,
    packs: BTreeMap<u32, PackMarks>,
    /// The marked records in other packs, so that each is walked once, and their size in each pack.
    other_marks: HashSet<[u8; 32]>,
    other_live_bytes: BTreeMap<u32, u64>,
    pack_limit: u64,
    /// True if a missing chunk does not end the collection.
    tolerates_missing: bool,
    report: GarbageCollectionReport,
    /// The chunks that the store's base must hold.
    base_chunks: Vec<ChunkId>,
    /// The visitor that receives the blobs.
    blob_visitor: Option<&'a LiveBlobVisitor>,
}

struct PackMarks {
    index: Arc<PackIndexFile>,
    bits: Vec<u64>,
    live_bytes: u64,
}

impl<'a> LocalMarkSet<'a> {
    fn new(
        store: &'a LocalStore,
        boundary: u32,
        report: GarbageCollectionReport,
        blobs: Option<&'a LiveBlobVisitor>,
    ) -> Self {
        let packs = store.index.packs();
        let candidates = packs.indexes.iter().filter(|(pack, index)| {
            index.is_sealed() && (is_collection_pack(**pack) || **pack < boundary)
        });
        let marks = candidates.map(|(pack, index)| {
            let bits = vec![0; index.len().div_ceil(64)];
            (*pack, PackMarks { index: Arc::clone(index), bits, live_bytes: 0 })
        });
        Self {
            store,
            packs: marks.collect(),
            other_marks: HashSet::new(),
            other_live_bytes: BTreeMap::new(),
            pack_limit: store.pack_limit(),
            base_chunks: Vec::new(),
            tolerates_missing: false,
            report,
            blob_visitor: blobs,
        }
    }

    /// Marks everything reachable from the roots; returns the bytes not marked before.
    fn mark_roots(
        &mut self,
        roots: Vec<ChunkId>,
        pace: &mut ProgressReporter<'_>,
    ) -> Result<ControlFlow<(), u64>> {
        let marked = mark_reachable(self, roots, &mut |records, bytes| {
            pace.report_progress(records, bytes)
        })?;
        Ok(match marked {
            ControlFlow::Continue((records, bytes)) => {
                self.report.live_records += records;
                self.report.live_bytes += bytes;
                ControlFlow::Continue(bytes)
            }
            ControlFlow::Break(()) => ControlFlow::Break(()),
        })
    }

    /// Marks everything reachable from the roots, skipping missing chunks.
    fn mark_available(
        &mut self,
        roots: Vec<ChunkId>,
        pace: &mut ProgressReporter<'_>,
    ) -> Result<ControlFlow<(), u64>> {
        self.tolerates_missing = true;
        let walked = self.mark_roots(roots, pace);
        self.tolerates_missing = false;
        walked
    }

    /// Marks a record; returns its stored bytes if it was not marked before.
    fn set_mark(
        &mut self,
        kind: RecordKind,
        id: &[u8; 32],
    ) -> Result<Option<(RecordLocation, u64)>> {
        let Some(record_match) =
            self.store.index.find_verified(kind, id, RecordLookupPurpose::Read)?
        else {
            return Ok(None);
        };
        let bytes = RECORD_HEADER_BYTES as u64 + u64::from(record_match.location.stored_bytes);
        let position = record_match.location.position;
        let marks = self.packs.get_mut(&position.pack).and_then(|marks| {
            // A record that was found outside the index is marked by its position all the same, because the pack is
            // about to be removed.
            let in_index = || marks.index.find_entries(id).find(|(_, at)| at.position == position);
            let ordinal =
                record_match.ordinal.or_else(|| in_index().map(|(ordinal, _)| ordinal))?;
            Some((marks, ordinal))
        });
        let Some((marks, ordinal)) = marks else {
            if !self.other_marks.insert(*id) {
                return Ok(Some((record_match.location, 0)));
            }
            *self.other_live_bytes.entry(record_match.location.position.pack).or_default() += bytes;
            return Ok(Some((record_match.location, bytes)));
        };
        let (word_index, bit) = (ordinal / 64, 1 << (ordinal % 64));
        let word = marks.bits.get_mut(word_index).filter(|word| **word & bit == 0);
        let Some(word) = word else {
            return Ok(Some((record_match.location, 0)));
        };
        *word |= bit;
        marks.live_bytes += bytes;
        Ok(Some((record_match.location, bytes)))
    }

    /// Checks that the base holds the chunks that the walks left to it, so that a missing chunk is not mistaken for one
    /// of the base.
    fn check_base_chunks(&mut self) -> Result<()> {
        let Some(base) = self.store.base.get() else {
            return Ok(());
        };
        for ids in std::mem::take(&mut self.base_chunks).chunks(BASE_QUERY_CHUNKS) {
            let present = base.contains_chunks(ids)?;
            if let Some((id, _)) = ids.iter().zip(present).find(|(_, is_here)| !is_here) {
                return Err(Error::ChunkMissing { id: *id });
            }
        }
        Ok(())
    }

    /// Returns the packs to rewrite, each with its length and its live bytes.
    fn choose_condemned(
        &mut self,
        options: &GarbageCollectionOptions,
    ) -> Result<BTreeMap<u32, (u64, u64)>> {
        let files = self.store.index.packs();
        let mut candidates = Vec::new();
        for (pack, file) in &files.files {
            let live = match self.packs.get(pack) {
                Some(marks) => marks.live_bytes,
                // A dry run counts as if the open pack had been sealed.
                None if options.mode == GarbageCollectionMode::DryRun => {
                    self.other_live_bytes.get(pack).copied().unwrap_or(0)
                }
                None => continue,
            };
            let length = file
                .len()
                .map_err(|source| Error::FileRead { file: pack_file_name(*pack), source })?;
            self.report.garbage_bytes += length.saturating_sub(live);
            candidates.push(RewriteCandidate { pack: *pack, length, live_bytes: live });
        }
        let live = self.report.live_bytes;
        Ok(rewrite_candidate::choose_rewrites(
            candidates,
            live,
            options.min_live_share,
            self.pack_limit,
        ))
    }

    /// Returns one bit for each record of a pack, set if the record is live.
    fn live_bits(&self, pack: u32) -> LiveBits {
        self.packs.get(&pack).map(|marks| marks.bits.as_slice()).unwrap_or_default().into()
    }

    fn live_locations(&self, pack: u32) -> Vec<RecordLocation> {
        let Some(marks) = self.packs.get(&pack) else {
            return Vec::new();
        };
        let ordinals =
            (0..marks.index.len()).filter(|ordinal| is_ordinal_live(&marks.bits, *ordinal));
        ordinals.filter_map(|ordinal| marks.index.location(ordinal)).collect()
    }
}

impl MarkSet for LocalMarkSet<'_> {
    fn mark_chunk(&mut self, id: &ChunkId) -> Result<MarkOutcome> {
        Ok(match self.set_mark(RecordKind::Chunk, id.as_bytes())? {
            None if self.tolerates_missing => MarkOutcome::AlreadyMarked,
            // The base retains its own chunks and everything that they refer to.
            None if self.store.base.get().is_some() => {
                if self.other_marks.insert(*id.as_bytes()) {
                    self.base_chunks.push(*id);
                }
                MarkOutcome::AlreadyMarked
            }
            None => return Err(Error::ChunkMissing { id: *id }),
            Some((_, 0)) => MarkOutcome::AlreadyMarked,
            Some((location, bytes)) if location.is_terminal => MarkOutcome::Terminal(bytes),
            Some((_, bytes)) => MarkOutcome::HasReferences(bytes),
        })
    }

    fn mark_blob(&mut self, id: &BlobId) -> Result<u64> {
        if let Some(visitor) = self.blob_visitor {
            visitor.visit_blob(id);
        }
        // A blob that is not in this store is a large one, which is stored elsewhere.
        Ok(self.set_mark(RecordKind::Blob, id.digest())?.map_or(0, |(_, bytes)| bytes))
    }

    fn load_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        ids.iter().map(|id| self.store.load_chunk(id)).collect()
    }
}

/// The pack that live records are moved to.
pub(super) struct CompactedPack {
    pub(super) pack: u32,
    pub(super) file: Arc<dyn DiskFile>,
    length: u64,
    entries: Vec<PackIndexEntry>,
}

impl CompactedPack {
    pub(super) fn begin_pack(store: &LocalStore) -> Result<Self> {
        let packs = store.index.packs();
        let last = packs.files.keys().next_back().copied().filter(|pack| is_collection_pack(*pack));
        let pack = last.map_or(COLLECTION_PACK_FLAG | 1, |last| last + 1);
        let tables = store.tables.read().clone();
        let result = begin_pack(store.disk.as_ref(), pack, tables);
        let (file, length) =
            result.map_err(|source| Error::FileWrite { file: pack_file_name(pack), source })?;
        Ok(Self { pack, file, length, entries: Vec::new() })
    }

    /// Adds a record to the next piece to append.
    pub(super) fn add_record(&mut self, header: &RecordHeader, bytes: &Bytes, piece: &mut Vec<u8>) {
        let offset = u32::try_from(self.length + piece.len() as u64).unwrap_or(u32::MAX);
        let position = RecordPosition { pack: self.pack, offset };
        let start = piece.len();
        piece.extend_from_slice(bytes);
        if let Some(record) = piece.get_mut(start..) {
            record::write_record_crc(record, position);
        }
        let stored = u32::try_from(bytes.len() - RECORD_HEADER_BYTES).unwrap_or(u32::MAX);
        let RecordHeader { kind, is_terminal, id, .. } = *header;
        self.entries
            .push((id, RecordLocation { position, stored_bytes: stored, kind, is_terminal }));
    }

    pub(super) fn append_records(&mut self, piece: &mut Vec<u8>) -> Result<()> {
        let appended = self.file.append(piece).and_then(|()| self.file.sync());
        appended.map_err(|source| Error::FileWrite { file: pack_file_name(self.pack), source })?;
        self.length += piece.len() as u64;
        piece.clear();
        Ok(())
    }

    /// Seals the pack and writes its index.
    pub(super) fn seal_pack(
        &mut self,
        store: &LocalStore,
        tables: &StoreTables,
    ) -> Result<PackIndexFile> {
        let sealed = seal_pack(self.file.as_ref(), self.pack, self.length);
        self.length += sealed
            .map_err(|source| Error::FileWrite { file: pack_file_name(self.pack), source })?;
        let contents = IndexFileContents {
            pack: self.pack,
            is_sealed: true,
            covered_bytes: self.length,
            entries: &mut self.entries,
            tables,
        };
        index_file::write_index_file(store.disk.as_ref(), contents)?;
        PackIndexFile::open(store.disk.as_ref(), self.pack)?.ok_or_else(|| Error::FileMalformed {
            file: index_file::index_file_name(self.pack),
            fault: "it cannot be read back",
        })
    }

    /// Removes the unfinished pack; if that fails too, the next start does it.
    pub(super) fn discard_pack(&self, store: &LocalStore) {
        for file in [index_file::index_file_name(self.pack), pack_file_name(self.pack)] {
            if let Err(error) = store.disk.remove_file(&file) {
                tracing::debug!(file, reason = %error, "cannot remove an unfinished file; left for the next \
                    start");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body;
    use crate::interface::chunk_batch::RefUpdate;
    use crate::local::pack_writer::collect_pack_entries;
    use std::time::UNIX_EPOCH;

    #[test]
    fn what_the_map_still_holds_of_a_pack_with_an_index_is_marked() {
        let store = LocalStore::open_in_memory().unwrap();
        let mut batch = ChunkBatch::new();
        let root = body::write_body(&mut batch, b"live", &[]).unwrap();
        let (author, message) = (String::new(), String::new());
        let (name, at) = ("main".to_owned(), UNIX_EPOCH);
        batch.add_ref_update(RefUpdate {
            name,
            expected_root: None,
            new_root: Some(root),
            updated_at: at,
            author,
            message,
        });
        body::write_body(&mut batch, b"garbage", &[]).unwrap();
        store.commit(batch).unwrap();
        store.writer.lock().rotate_pack(store.write_context(), 0).map_err(|_| ()).unwrap();
        let due = store.writer.lock().take_unindexed();
        let entries = collect_pack_entries(&store.index, 1).unwrap();
        store.write_pending_indexes(due);
        store.index.publish_entries(&entries);
        let options = GarbageCollectionOptions {
            min_live_share: 1.1,
            ..GarbageCollectionOptions::at_time(UNIX_EPOCH)
        };
        store.collect_garbage(&options, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(!store.index.packs().files.contains_key(&1), "it has moved");
        store.load_chunk(&root).unwrap();
    }
}
