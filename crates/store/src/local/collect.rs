//! Collecting garbage from packs: what is live is moved out of packs that are mostly garbage, then these are removed.
//! Small packs are brought together the same way.
//!
//! A collection works on the packs that were full when it began. It marks from all roots while commits go on; takes
//! the writer's lock for the few roots that came since, and *condemns* packs under it; from then on no writer relies
//! on what a condemned pack holds. What is live in condemned packs is written to a pack of its own, made durable, put
//! in their place, and then they are removed.
//!
//! Invariants
//! * Commits wait for marks of what was committed since the last look, and for nothing else.
//! * A pack is removed after everything live in it is durable elsewhere.
//!
//! On failure: a pack that is not finished is removed, or at the next start. Nothing else has changed by then.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::condemned::{self, Candidate};
use super::index::{Live, Purpose, is_live};
use super::index_file::{self, Contents, Entry, IndexFile, Location};
use super::log::Folded;
use super::payload::Tables;
use super::record::{self, HEADER_BYTES, Header, Kind, Place};
use super::writer::{begin_pack, seal_pack};
use super::{COLLECTED, LocalStore, is_collected, pack_name};
use crate::batch::{Batch, LeaseUpdate};
use crate::chunk::Chunk;
use crate::chunk_store::ChunkStore;
use crate::collect::{
    BlobVisitor, CollectMode, CollectOptions, Collected, Keeper, Marked, Marks, Phase, Progress,
    mark,
};
use crate::disk::DiskFile;
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};
use crate::keep::Lease;

/// An open pack below this length is not worth ending for a collection.
const MIN_ROTATE_BYTES: u64 = 64 << 10;
/// Live records are moved in pieces of about this many bytes.
pub(super) const MOVE_BYTES: usize = 256 << 10;
/// How often marking catches up with commits before it takes the writer's lock.
const MAX_CATCH_UPS: usize = 8;

const BEGIN: Progress = Progress { phase: Phase::Mark, records: 0, bytes: 0 };
/// Chunks that the base is asked for together.
const ASK_TOGETHER: usize = 1_024;

type Pace<'a> = &'a mut dyn FnMut(&Progress) -> ControlFlow<()>;

impl LocalStore {
    /// Collects garbage; see [`ChunkStore::collect`].
    pub(super) fn collect_garbage(
        &self,
        options: &CollectOptions,
        pace: Pace<'_>,
    ) -> Result<Collected> {
        let Some(_turn) = self.collecting.try_lock() else {
            return Err(Error::Collecting);
        };
        let removes = options.mode == CollectMode::Remove;
        self.check_indexes()?;
        if removes {
            self.check_open()?;
            self.rotate()?;
        }
        let boundary = self.writer.lock().pack.min(self.holds.first_pack());
        let folded = self.fold_history(options)?;
        let report = Collected {
            generation: folded.log.generation,
            revisions_kept: folded.kept.len() as u64,
            revisions_dropped: folded.dropped,
            ..Collected::default()
        };
        let mut marks = LocalMarks::new(self, boundary, report, options.blobs.as_ref());
        let mut pace = Paced { pace, progress: BEGIN };
        if self.mark_live(options, &folded, &mut marks, &mut pace)?.is_break() {
            return Ok(Collected { is_stopped: true, ..marks.report });
        }
        if !removes {
            let condemned = marks.condemned(options)?;
            let mut report = marks.report;
            for (length, live) in condemned.into_values() {
                report.moved_bytes += live;
                report.freed_bytes += length - live;
            }
            return Ok(report);
        }
        let condemned = self.condemn(options, &folded, &mut marks)?;
        let mut report = std::mem::take(&mut marks.report);
        pace.progress = Progress { phase: Phase::Sweep, ..BEGIN };
        let swept = self.sweep(&marks, &condemned, &mut report, &mut pace);
        self.index.condemn(&BTreeMap::new());
        swept.map(|()| report)
    }

    /// Thins the history and ends expired leases; a dry run only decides what would stay.
    fn fold_history(&self, options: &CollectOptions) -> Result<Folded> {
        let mut batch = Batch::new();
        let folded = self.fold(options, &mut batch)?;
        if options.mode == CollectMode::Remove {
            self.commit(batch)?;
            let mut writer = self.writer.lock();
            let expired: Vec<LeaseUpdate> = {
                let tables = self.tables.read();
                let expired = tables.leases.values().filter(|lease| !lease.is_live(options.now));
                expired.map(|lease| LeaseUpdate::Release { holder: lease.holder.clone() }).collect()
            };
            let commit = writer.write_log(self.session(), folded.log, expired);
            let commit = commit.map_err(|failure| self.settle(failure))?;
            self.tables.write().apply(&commit);
        }
        Ok(folded)
    }

    /// Marks from all roots, then from those that have come meanwhile, until hardly any come.
    fn mark_live(
        &self,
        options: &CollectOptions,
        folded: &Folded,
        marks: &mut LocalMarks<'_>,
        pace: &mut Paced<'_>,
    ) -> Result<ControlFlow<()>> {
        let mut roots = Vec::new();
        if let Some(log) = self.tables.read().log.map.root() {
            roots.push(("the list of revisions".to_owned(), vec![log]));
        }
        roots.extend(self.live_roots(options)?);
        for (name, kept) in by_name(&folded.kept) {
            roots.push((format!("history of `{name}`, {} revisions", kept.len()), kept));
        }
        for (what, roots) in roots {
            let ControlFlow::Continue(bytes) = marks.walk(roots, pace)? else {
                return Ok(ControlFlow::Break(()));
            };
            marks.report.keepers.extend((bytes > 0).then_some(Keeper { what, bytes }));
        }
        for (what, roots) in self.loose_roots() {
            let ControlFlow::Continue(bytes) = marks.walk_loosely(roots, pace)? else {
                return Ok(ControlFlow::Break(()));
            };
            marks.report.keepers.extend((bytes > 0).then_some(Keeper { what, bytes }));
        }
        for _ in 0..MAX_CATCH_UPS {
            match self.catch_up(options, folded, marks, pace)? {
                ControlFlow::Continue(0) => break,
                ControlFlow::Continue(_) => {}
                ControlFlow::Break(()) => return Ok(ControlFlow::Break(())),
            }
        }
        marks.check_base()?;
        Ok(ControlFlow::Continue(()))
    }

    /// Marks from the roots that have come since the last look; returns the bytes of what is new.
    fn catch_up(
        &self,
        options: &CollectOptions,
        folded: &Folded,
        marks: &mut LocalMarks<'_>,
        pace: &mut Paced<'_>,
    ) -> Result<ControlFlow<(), u64>> {
        let mut bytes = 0;
        let strict = self.new_roots(options, folded.log.folded)?;
        let loose = self.loose_roots().into_iter().flat_map(|(_, roots)| roots).collect();
        for walked in [marks.walk(strict, pace)?, marks.walk_loosely(loose, pace)?] {
            match walked {
                ControlFlow::Continue(more) => bytes += more,
                ControlFlow::Break(()) => return Ok(ControlFlow::Break(())),
            }
        }
        Ok(ControlFlow::Continue(bytes))
    }

    /// Marks the last roots and condemns packs, while nobody commits.
    fn condemn(
        &self,
        options: &CollectOptions,
        folded: &Folded,
        marks: &mut LocalMarks<'_>,
    ) -> Result<BTreeMap<u32, (u64, u64)>> {
        let _writer = self.writer.lock();
        let _condemning = self.holds.condemn();
        for digest in self.holds.blob_hits() {
            marks.set(Kind::Blob, &digest)?;
        }
        let mut never = |_: &Progress| ControlFlow::Continue(());
        let mut unpaced = Paced { pace: &mut never, progress: BEGIN };
        // Nothing breaks this off.
        let _bytes = self.catch_up(options, folded, marks, &mut unpaced)?;
        let condemned = marks.condemned(options)?;
        let live = |pack: &u32| (*pack, marks.bits(*pack));
        self.index.condemn(&condemned.keys().map(live).collect());
        Ok(condemned)
    }

    /// Ends the open pack, so that the collection can work on what it holds.
    fn rotate(&self) -> Result<()> {
        let due = {
            let mut writer = self.writer.lock();
            let rotated = writer.rotate(self.session(), MIN_ROTATE_BYTES);
            rotated.map_err(|failure| self.settle(failure))?;
            writer.take_due()
        };
        self.write_due_indexes(due);
        Ok(())
    }

    /// Returns what is live beside history, by what keeps it.
    fn live_roots(&self, options: &CollectOptions) -> Result<Vec<(String, Vec<ChunkId>)>> {
        let Tables { refs, leases, .. } = self.tables.read().clone();
        let files = self.lease_files()?;
        // Whoever asked for a lease too late finds out by itself; there is nothing to keep.
        let is_here = |lease: &Lease| self.index.find(Kind::Chunk, lease.root.as_bytes()).is_some();
        let leases = leases.into_values().chain(files.into_iter().filter(is_here));
        let mut roots: Vec<(String, Vec<ChunkId>)> =
            refs.into_iter().map(|(name, root)| (format!("ref `{name}`"), vec![root])).collect();
        let live = leases.filter(|lease| lease.is_live(options.now));
        roots.extend(live.map(|one| (format!("lease of `{}`", one.holder), vec![one.root])));
        Ok(roots)
    }

    /// Returns what readers and writers of this process need, for as much as is there: a chunk that nobody committed
    /// may have lost what it refers to, and a reader may have come too late for what it pins.
    fn loose_roots(&self) -> [(String, Vec<ChunkId>); 2] {
        [
            ("readers".to_owned(), self.pins.roots()),
            ("writers that have not moved a ref yet".to_owned(), self.holds.hits()),
        ]
    }

    /// Returns all roots that may have come since the last look.
    fn new_roots(&self, options: &CollectOptions, folded: u64) -> Result<Vec<ChunkId>> {
        let mut roots: Vec<ChunkId> =
            self.live_roots(options)?.into_iter().flat_map(|(_, roots)| roots).collect();
        let young = self.past().read_young(folded, usize::MAX, |_| true)?;
        roots.extend(young.into_iter().filter_map(|one| one.update.new));
        Ok(roots)
    }

    /// Moves what is live out of condemned packs and removes them.
    fn sweep(
        &self,
        marks: &LocalMarks<'_>,
        condemned: &BTreeMap<u32, (u64, u64)>,
        report: &mut Collected,
        pace: &mut Paced<'_>,
    ) -> Result<()> {
        let dead = condemned.iter().filter(|(_, (_, live))| *live == 0);
        let dead: BTreeSet<u32> = dead.map(|(pack, _)| *pack).collect();
        self.remove_packs(&dead, None, condemned, report)?;
        let mut output: Option<Output> = None;
        let mut moved = BTreeSet::new();
        for pack in condemned.keys().filter(|pack| !dead.contains(pack)) {
            let to = match &mut output {
                Some(open) => open,
                None => output.insert(Output::begin(self)?),
            };
            let is_done = self.move_live(marks, *pack, to, pace).inspect_err(|_| to.discard(self));
            if is_done?.is_break() {
                report.is_stopped = true;
                break;
            }
            moved.insert(*pack);
            if to.length >= self.limit() / 2
                && let Some(full) = output.take()
            {
                self.finish(full, &std::mem::take(&mut moved), condemned, report)?;
            }
        }
        if let Some(last) = output {
            self.finish(last, &moved, condemned, report)?;
        }
        Ok(())
    }

    /// Appends the live records of a pack to the output.
    fn move_live(
        &self,
        marks: &LocalMarks<'_>,
        pack: u32,
        to: &mut Output,
        pace: &mut Paced<'_>,
    ) -> Result<ControlFlow<()>> {
        let mut live = marks.live(pack);
        live.sort_unstable_by_key(|location| location.place.offset);
        let mut piece = Vec::new();
        let mut records = 0;
        let mut live = live.into_iter().peekable();
        while let Some(location) = live.next() {
            let (header, bytes) = self.read_record(location)?;
            let is_valid = |header: &Header| record::is_valid(header, &bytes, location.place);
            let header = header.filter(is_valid).ok_or_else(|| Error::FileMalformed {
                file: pack_name(pack),
                fault: "a live record is damaged; run `tympan repo check`",
            })?;
            to.add(&header, &bytes, &mut piece);
            records += 1;
            if piece.len() >= MOVE_BYTES || live.peek().is_none() {
                let length = piece.len() as u64;
                to.append(&mut piece)?;
                if pace.step(records, length).is_break() && live.peek().is_some() {
                    return Ok(ControlFlow::Break(()));
                }
                records = 0;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Makes the output durable and lets it stand for the packs that were moved to it.
    fn finish(
        &self,
        mut output: Output,
        moved: &BTreeSet<u32>,
        condemned: &BTreeMap<u32, (u64, u64)>,
        report: &mut Collected,
    ) -> Result<()> {
        let tables = self.tables.read().clone();
        let index = output.seal(self, &tables).inspect_err(|_| output.discard(self))?;
        report.moved_bytes += output.length;
        let added = (output.pack, Arc::clone(&output.file), index);
        self.remove_packs(moved, Some(added), condemned, report)
    }

    fn remove_packs(
        &self,
        removed: &BTreeSet<u32>,
        added: Option<(u32, Arc<dyn DiskFile>, IndexFile)>,
        condemned: &BTreeMap<u32, (u64, u64)>,
        report: &mut Collected,
    ) -> Result<()> {
        self.index.replace(removed, added);
        for pack in removed {
            for file in [index_file::file_name(*pack), pack_name(*pack)] {
                let gone = self.disk.remove(&file);
                gone.map_err(|source| Error::Write { file, source })?;
            }
            let (length, live) = condemned.get(pack).copied().unwrap_or_default();
            report.freed_bytes += length - live;
        }
        if !removed.is_empty() {
            let synced = self.disk.sync_folder("");
            synced.map_err(|source| Error::Write { file: String::new(), source })?;
        }
        Ok(())
    }

    fn limit(&self) -> u64 {
        self.writer.lock().limit
    }
}

/// Counts progress on behalf of whoever sets the pace.
struct Paced<'a> {
    pace: Pace<'a>,
    progress: Progress,
}

impl Paced<'_> {
    fn step(&mut self, records: u64, bytes: u64) -> ControlFlow<()> {
        self.progress.records += records;
        self.progress.bytes += bytes;
        (self.pace)(&self.progress)
    }
}

fn by_name(kept: &[crate::history::Revision]) -> BTreeMap<&str, Vec<ChunkId>> {
    let mut by_name: BTreeMap<&str, Vec<ChunkId>> = BTreeMap::new();
    for one in kept {
        by_name.entry(&one.update.name).or_default().extend(one.update.new);
    }
    by_name
}

/// The marks of one collection: a bit for each record of the packs that it works on.
struct LocalMarks<'a> {
    store: &'a LocalStore,
    packs: BTreeMap<u32, PackMarks>,
    /// What is marked in other packs, so that it is walked once, and how much that is in each.
    elsewhere: HashSet<[u8; 32]>,
    elsewhere_bytes: BTreeMap<u32, u64>,
    pack_limit: u64,
    /// What is missing does not end the collection.
    passes_gaps: bool,
    report: Collected,
    /// What the store's base must hold.
    below: Vec<ChunkId>,
    /// Who is told of blobs.
    blobs: Option<&'a BlobVisitor>,
}

struct PackMarks {
    index: Arc<IndexFile>,
    bits: Vec<u64>,
    live_bytes: u64,
}

impl<'a> LocalMarks<'a> {
    fn new(
        store: &'a LocalStore,
        boundary: u32,
        report: Collected,
        blobs: Option<&'a BlobVisitor>,
    ) -> Self {
        let packs = store.index.packs();
        let candidates = packs.indexes.iter().filter(|(pack, index)| {
            index.is_sealed() && (is_collected(**pack) || **pack < boundary)
        });
        let marks = candidates.map(|(pack, index)| {
            let bits = vec![0; index.len().div_ceil(64)];
            (*pack, PackMarks { index: Arc::clone(index), bits, live_bytes: 0 })
        });
        Self {
            store,
            packs: marks.collect(),
            elsewhere: HashSet::new(),
            elsewhere_bytes: BTreeMap::new(),
            pack_limit: store.limit(),
            below: Vec::new(),
            passes_gaps: false,
            report,
            blobs,
        }
    }

    /// Marks what roots reach; returns the bytes of what was not marked before.
    fn walk(&mut self, roots: Vec<ChunkId>, pace: &mut Paced<'_>) -> Result<ControlFlow<(), u64>> {
        let marked = mark(self, roots, &mut |records, bytes| pace.step(records, bytes))?;
        Ok(match marked {
            ControlFlow::Continue((records, bytes)) => {
                self.report.live_records += records;
                self.report.live_bytes += bytes;
                ControlFlow::Continue(bytes)
            }
            ControlFlow::Break(()) => ControlFlow::Break(()),
        })
    }

    /// Marks what roots reach, as far as it is there.
    fn walk_loosely(
        &mut self,
        roots: Vec<ChunkId>,
        pace: &mut Paced<'_>,
    ) -> Result<ControlFlow<(), u64>> {
        self.passes_gaps = true;
        let walked = self.walk(roots, pace);
        self.passes_gaps = false;
        walked
    }

    /// Marks a record; returns its stored bytes if it was not marked before.
    fn set(&mut self, kind: Kind, id: &[u8; 32]) -> Result<Option<(Location, u64)>> {
        let Some(found) = self.store.index.find_surely(kind, id, Purpose::Read)? else {
            return Ok(None);
        };
        let bytes = HEADER_BYTES as u64 + u64::from(found.location.stored);
        let place = found.location.place;
        let marks = self.packs.get_mut(&place.pack).and_then(|marks| {
            // What was found elsewhere than in the index is marked by its place all the same: the pack is about to go.
            let in_index = || marks.index.find(id).find(|(_, at)| at.place == place);
            let ordinal = found.ordinal.or_else(|| in_index().map(|(ordinal, _)| ordinal))?;
            Some((marks, ordinal))
        });
        let Some((marks, ordinal)) = marks else {
            if !self.elsewhere.insert(*id) {
                return Ok(Some((found.location, 0)));
            }
            *self.elsewhere_bytes.entry(found.location.place.pack).or_default() += bytes;
            return Ok(Some((found.location, bytes)));
        };
        let (word, bit) = (ordinal / 64, 1 << (ordinal % 64));
        let word = marks.bits.get_mut(word).filter(|word| **word & bit == 0);
        let Some(word) = word else {
            return Ok(Some((found.location, 0)));
        };
        *word |= bit;
        marks.live_bytes += bytes;
        Ok(Some((found.location, bytes)))
    }

    /// Makes sure that the base holds what the walks left to it: a gap must not pass for its border.
    fn check_base(&mut self) -> Result<()> {
        let Some(base) = self.store.base.get() else {
            return Ok(());
        };
        for ids in std::mem::take(&mut self.below).chunks(ASK_TOGETHER) {
            let present = base.contains_many(ids)?;
            if let Some((id, _)) = ids.iter().zip(present).find(|(_, is_here)| !is_here) {
                return Err(Error::ChunkMissing { id: *id });
            }
        }
        Ok(())
    }

    /// Returns the packs to rewrite: their length, and how much of it is live.
    fn condemned(&mut self, options: &CollectOptions) -> Result<BTreeMap<u32, (u64, u64)>> {
        let files = self.store.index.packs();
        let mut candidates = Vec::new();
        for (pack, file) in &files.files {
            let live = match self.packs.get(pack) {
                Some(marks) => marks.live_bytes,
                // A dry run counts as if it had ended the open pack.
                None if options.mode == CollectMode::DryRun => {
                    self.elsewhere_bytes.get(pack).copied().unwrap_or(0)
                }
                None => continue,
            };
            let length =
                file.len().map_err(|source| Error::Read { file: pack_name(*pack), source })?;
            self.report.garbage_bytes += length.saturating_sub(live);
            candidates.push(Candidate { pack: *pack, length, live });
        }
        let live = self.report.live_bytes;
        Ok(condemned::choose(candidates, live, options.min_live, self.pack_limit))
    }

    /// Returns which records of a pack are live.
    fn bits(&self, pack: u32) -> Live {
        self.packs.get(&pack).map(|marks| marks.bits.as_slice()).unwrap_or_default().into()
    }

    fn live(&self, pack: u32) -> Vec<Location> {
        let Some(marks) = self.packs.get(&pack) else {
            return Vec::new();
        };
        let ordinals = (0..marks.index.len()).filter(|ordinal| is_live(&marks.bits, *ordinal));
        ordinals.filter_map(|ordinal| marks.index.location(ordinal)).collect()
    }
}

impl Marks for LocalMarks<'_> {
    fn mark_chunk(&mut self, id: &ChunkId) -> Result<Marked> {
        Ok(match self.set(Kind::Chunk, id.as_bytes())? {
            None if self.passes_gaps => Marked::Before,
            // What the base holds is the base's to keep, with everything that it refers to.
            None if self.store.base.get().is_some() => {
                if self.elsewhere.insert(*id.as_bytes()) {
                    self.below.push(*id);
                }
                Marked::Before
            }
            None => return Err(Error::ChunkMissing { id: *id }),
            Some((_, 0)) => Marked::Before,
            Some((location, bytes)) if location.is_terminal => Marked::Terminal(bytes),
            Some((_, bytes)) => Marked::Follow(bytes),
        })
    }

    fn mark_blob(&mut self, id: &BlobId) -> Result<u64> {
        if let Some(visitor) = self.blobs {
            visitor.visit(id);
        }
        // One that is not here is a large one, which lies elsewhere.
        Ok(self.set(Kind::Blob, id.digest())?.map_or(0, |(_, bytes)| bytes))
    }

    fn load(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        ids.iter().map(|id| self.store.load_chunk(id)).collect()
    }
}

/// The pack that live records are moved to.
pub(super) struct Output {
    pub(super) pack: u32,
    pub(super) file: Arc<dyn DiskFile>,
    length: u64,
    entries: Vec<Entry>,
}

impl Output {
    pub(super) fn begin(store: &LocalStore) -> Result<Self> {
        let packs = store.index.packs();
        let last = packs.files.keys().next_back().copied().filter(|pack| is_collected(*pack));
        let pack = last.map_or(COLLECTED | 1, |last| last + 1);
        let tables = store.tables.read().clone();
        let begun = begin_pack(store.disk.as_ref(), pack, tables);
        let (file, length) =
            begun.map_err(|source| Error::Write { file: pack_name(pack), source })?;
        Ok(Self { pack, file, length, entries: Vec::new() })
    }

    /// Adds a record to what is appended next.
    pub(super) fn add(&mut self, header: &Header, bytes: &Bytes, piece: &mut Vec<u8>) {
        let offset = u32::try_from(self.length + piece.len() as u64).unwrap_or(u32::MAX);
        let place = Place { pack: self.pack, offset };
        let start = piece.len();
        piece.extend_from_slice(bytes);
        if let Some(record) = piece.get_mut(start..) {
            record::seal_crc(record, place);
        }
        let stored = u32::try_from(bytes.len() - HEADER_BYTES).unwrap_or(u32::MAX);
        let Header { kind, is_terminal, id, .. } = *header;
        self.entries.push((id, Location { place, stored, kind, is_terminal }));
    }

    pub(super) fn append(&mut self, piece: &mut Vec<u8>) -> Result<()> {
        let appended = self.file.append(piece).and_then(|()| self.file.sync());
        appended.map_err(|source| Error::Write { file: pack_name(self.pack), source })?;
        self.length += piece.len() as u64;
        piece.clear();
        Ok(())
    }

    /// Ends the pack and writes its index.
    pub(super) fn seal(&mut self, store: &LocalStore, tables: &Tables) -> Result<IndexFile> {
        let sealed = seal_pack(self.file.as_ref(), self.pack, self.length);
        self.length +=
            sealed.map_err(|source| Error::Write { file: pack_name(self.pack), source })?;
        let contents = Contents {
            pack: self.pack,
            is_sealed: true,
            covered: self.length,
            entries: &mut self.entries,
            tables,
        };
        index_file::write(store.disk.as_ref(), contents)?;
        IndexFile::open(store.disk.as_ref(), self.pack)?.ok_or_else(|| Error::FileMalformed {
            file: index_file::file_name(self.pack),
            fault: "it cannot be read back",
        })
    }

    /// Removes what cannot be finished; if that fails too, the next start does it.
    pub(super) fn discard(&self, store: &LocalStore) {
        for file in [index_file::file_name(self.pack), pack_name(self.pack)] {
            if let Err(error) = store.disk.remove(&file) {
                tracing::debug!(file, reason = %error, "left for the next start");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::RefUpdate;
    use crate::body;
    use crate::local::writer::all_entries;
    use std::time::UNIX_EPOCH;

    #[test]
    fn what_the_map_still_holds_of_a_pack_with_an_index_is_marked() {
        let store = LocalStore::memory().unwrap();
        let mut batch = Batch::new();
        let root = body::write(&mut batch, b"live", &[]).unwrap();
        let (author, message) = (String::new(), String::new());
        let (name, at) = ("main".to_owned(), UNIX_EPOCH);
        batch.move_ref(RefUpdate { name, expected: None, new: Some(root), at, author, message });
        body::write(&mut batch, b"garbage", &[]).unwrap();
        store.commit(batch).unwrap();
        store.writer.lock().rotate(store.session(), 0).map_err(|_| ()).unwrap();
        let due = store.writer.lock().take_due();
        let entries = all_entries(&store.index, 1).unwrap();
        store.write_due_indexes(due);
        store.index.publish(&entries);
        let options = CollectOptions { min_live: 1.1, ..CollectOptions::at(UNIX_EPOCH) };
        store.collect(&options, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(!store.index.packs().files.contains_key(&1), "it has moved");
        store.load_chunk(&root).unwrap();
    }
}
