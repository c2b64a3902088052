//! Quarantines damaged packs: their readable records move to other packs, and nothing is deleted.
//!
//! Invariants
//! * A pack is quarantined after everything readable in it is durable elsewhere.
//! * The contents of the tables (refs, leases, the log) are not changed here.
//!
//! On failure: each step can be interrupted and started again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::MutexGuard;

use super::garbage_collection::{CompactedPack, MOVE_BATCH_BYTES};
use super::history_reader::{revision_key, revision_value};
use super::index_file::{self, PackIndexFile, RecordLocation};
use super::lease_file;
use super::local_store::LocalStore;
use super::pack_name::{is_collection_pack, pack_file_name};
use super::pack_survey::{PackItem, PackReader, PackSurvey, check_record_payload};
use super::pack_writer::write_pack_index;
use super::record::{self, RecordKind};
use super::record_payload::{CommitRecord, RevisionLog, decode_update};
use super::recovery::{self, quarantine_file};
use crate::check::{MapKeySpan, MapPart, visit_map_parts};
use crate::disk::DiskFile;
use crate::error::{Error, Result};
use crate::id::ChunkId;
use crate::interface::chunk_batch::ChunkBatch;
use crate::interface::chunk_store::ChunkStore;
use crate::interface::history::Revision;
use crate::tree::SortedMap;

/// The changes that a repair made to files.
#[derive(Debug, Default)]
pub(crate) struct PackRepairReport {
    /// The new names of quarantined packs.
    pub(crate) quarantined_packs: Vec<String>,
    /// The index files that were rebuilt.
    pub(crate) rebuilt_indexes: Vec<String>,
    /// The number of chunks and small blobs that were moved out of damaged packs.
    pub(crate) moved_records: u64,
}

/// A pack with its number and index file.
type IndexedPack = (u32, Arc<dyn DiskFile>, PackIndexFile);

/// The readable revisions, newest first, and the faults of the others.
pub(crate) struct ReadableRevisions {
    pub(crate) revisions: Vec<Revision>,
    pub(crate) faults: Vec<String>,
}

impl LocalStore {
    /// Returns the root chunk of the log's map.
    pub(crate) fn revision_log_root(&self) -> Option<ChunkId> {
        self.tables.read().log.map.root()
    }

    /// Returns the sequence number of the next ref update.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.tables.read().next_sequence
    }

    /// Prevents collections until the guard is dropped.
    pub(crate) fn lock_collections(&self) -> Result<MutexGuard<'_, ()>> {
        self.check_writable()?;
        self.collection_lock.try_lock().ok_or(Error::CollectionRunning)
    }

    /// Ends the lease that a client has written as a file, if it exists.
    pub(crate) fn remove_lease_file(&self, holder: &str) -> Result<()> {
        lease_file::remove_lease(self.disk.as_ref(), lease_file::LEASE_FOLDER, holder)
    }

    /// Rebuilds damaged index files, and quarantines damaged packs after their readable records have been copied.
    pub(crate) fn repair_packs(&self, survey: &PackSurvey) -> Result<PackRepairReport> {
        let mut mended = PackRepairReport::default();
        for pack in survey.damaged_indexes.difference(&survey.damaged_packs) {
            let file = self.index.pack_file(*pack).filter(|_| *pack != self.writer.lock().pack);
            if let Some(file) = file {
                recovery::rebuild_pack_index(
                    self.disk.as_ref(),
                    &self.index,
                    *pack,
                    file.as_ref(),
                )?;
                mended.rebuilt_indexes.push(index_file::index_file_name(*pack));
            }
        }
        let damaged = self.seal_damaged_packs(&survey.damaged_packs)?;
        if damaged.iter().any(|pack| !is_collection_pack(*pack)) {
            // The commit records of damaged packs are the only copy of recent revisions.
            let readable = self.readable_revisions(survey)?;
            self.rewrite_revision_log(&readable.revisions)?;
        }
        for pack in damaged {
            let added = self.copy_readable_records(pack, &mut mended.moved_records)?;
            self.index.replace_damaged_pack(pack, added);
            for file in [index_file::index_file_name(pack), pack_file_name(pack)] {
                mended.quarantined_packs.extend(quarantine_file(self.disk.as_ref(), &file)?);
            }
        }
        for orphan in &survey.orphan_indexes {
            mended.quarantined_packs.extend(quarantine_file(self.disk.as_ref(), orphan)?);
        }
        self.damage_found.lock().clear();
        Ok(mended)
    }

    /// Seals the open pack if it is damaged. Returns the damaged packs that are no longer written.
    fn seal_damaged_packs(&self, damaged: &BTreeSet<u32>) -> Result<BTreeSet<u32>> {
        let (open, due) = {
            let mut writer = self.writer.lock();
            // A missing pack is followed by a new one.
            if damaged.contains(&writer.pack) || writer.is_sealed {
                let rotated = writer.rotate_pack(self.write_context(), 0);
                rotated.map_err(|failure| self.handle_write_failure(failure))?;
            }
            (writer.pack, std::mem::take(&mut writer.unindexed_packs))
        };
        let due = due.into_iter().filter(|(pack, ..)| !damaged.contains(pack));
        let failed = due.filter(|due| !write_pack_index(self.disk.as_ref(), &self.index, due));
        let failed: Vec<_> = failed.collect();
        self.writer.lock().unindexed_packs.extend(failed);
        Ok(damaged.iter().copied().filter(|pack| *pack != open).collect())
    }

    /// Returns the revisions that can be read.
    pub(crate) fn readable_revisions(&self, survey: &PackSurvey) -> Result<ReadableRevisions> {
        let tables = self.tables.read().clone();
        let folded = tables.log.folded_below;
        let mut revisions_by_sequence = BTreeMap::new();
        for location in self.index.commits_since(folded) {
            let Some(commit) = self.read_commit_record(location, survey)? else { continue };
            let young = commit.into_revisions().filter(|revision| revision.sequence >= folded);
            revisions_by_sequence.extend(young.map(|revision| (revision.sequence, revision)));
        }
        let mut faults = Vec::new();
        let mut next = folded;
        for sequence in revisions_by_sequence.keys().copied().chain([tables.next_sequence]) {
            if sequence > next {
                faults.push(format!("the revisions {next} to {} cannot be read", sequence - 1));
            }
            next = sequence.saturating_add(1).max(next);
        }
        let read = |id: &ChunkId| self.read_surveyed_chunk(id, survey);
        visit_map_parts(&read, tables.log.map, &MapKeySpan::ALL_KEYS, &mut |part| {
            match part {
                MapPart::Record(key, value) => {
                    let sequence = key.last_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes));
                    match sequence.zip(decode_update(&value.bytes)) {
                        Some((sequence, update)) => {
                            revisions_by_sequence.insert(sequence, Revision { sequence, update });
                        }
                        None => faults.push("a folded revision cannot be decoded".to_owned()),
                    }
                }
                MapPart::Unreadable(lost) => {
                    let (count, fault) = (lost.record_count, &lost.fault);
                    faults.push(format!("{count} or more folded revisions are lost: {fault}"));
                }
                MapPart::Skipped => {}
            }
            Ok(())
        })?;
        Ok(ReadableRevisions {
            revisions: revisions_by_sequence.into_values().rev().collect(),
            faults,
        })
    }

    fn read_commit_record(
        &self,
        location: RecordLocation,
        survey: &PackSurvey,
    ) -> Result<Option<CommitRecord>> {
        if survey.is_position_damaged(location.position) {
            return Ok(None);
        }
        let (header, record) = self.index.read_record(location)?;
        Ok(header
            .filter(|header| record::is_record_valid(header, &record, location.position))
            .and_then(|header| record::decode_record(&header, &record))
            .and_then(|payload| CommitRecord::decode(&payload)))
    }

    /// Replaces the contents of the log with these revisions.
    pub(crate) fn rewrite_revision_log(&self, revisions: &[Revision]) -> Result<()> {
        let records: BTreeMap<_, _> = revisions
            .iter()
            .map(|revision| (revision_key(revision), revision_value(revision)))
            .collect();
        let mut batch = ChunkBatch::new();
        let map = SortedMap::build(&mut batch, records.into_iter())?;
        self.commit(batch)?;
        let mut writer = self.writer.lock();
        let (generation, folded) = {
            let tables = self.tables.read();
            (tables.log.generation, tables.next_sequence)
        };
        let log = RevisionLog { map, folded_below: folded, generation };
        let commit = writer.write_log_commit(self.write_context(), log, Vec::new());
        let commit = commit.map_err(|failure| self.handle_write_failure(failure))?;
        self.tables.write().apply_commit(&commit);
        Ok(())
    }

    /// Writes the readable records of a pack to a new pack, durably; `None` if there are none.
    fn copy_readable_records(&self, pack: u32, moved: &mut u64) -> Result<Option<IndexedPack>> {
        let failed = |source| Error::FileRead { file: pack_file_name(pack), source };
        let Some(file) = self.index.pack_file(pack) else {
            return Ok(None);
        };
        let end = file.len().map_err(failed)?;
        let mut reader = PackReader::new(pack, file.as_ref(), end);
        let mut output: Option<CompactedPack> = None;
        let mut piece = Vec::new();
        let tables = self.tables.read().clone();
        while let Some(item) = reader.next_item() {
            let PackItem::Record(scanned_record) = item else { continue };
            let is_content =
                matches!(scanned_record.header.kind, RecordKind::Chunk | RecordKind::Blob);
            if !is_content
                || check_record_payload(&scanned_record.header, scanned_record.record).is_err()
            {
                continue;
            }
            let to = match &mut output {
                Some(open) => open,
                None => output.insert(CompactedPack::begin_pack(self)?),
            };
            to.add_record(
                &scanned_record.header,
                &Bytes::copy_from_slice(scanned_record.record),
                &mut piece,
            );
            *moved += 1;
            if piece.len() >= MOVE_BATCH_BYTES {
                to.append_records(&mut piece).inspect_err(|_| to.discard_pack(self))?;
            }
        }
        let Some(mut output) = output else {
            return Ok(None);
        };
        let written =
            output.append_records(&mut piece).and_then(|()| output.seal_pack(self, &tables));
        let index = written.inspect_err(|_| output.discard_pack(self))?;
        Ok(Some((output.pack, Arc::clone(&output.file), index)))
    }
}
