//! Setting damaged packs aside: what can be read of them moves to other packs, and nothing is deleted.
//!
//! Invariants
//! * A pack goes aside after everything readable in it is durable elsewhere.
//! * What the tables say (refs, leases, the log) is not changed here.
//!
//! On failure: each step can be cut off and begun again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::MutexGuard;

use super::collect::{MOVE_BYTES, Output};
use super::index_file::{self, IndexFile, Location};
use super::log::{key_of, value_of};
use super::payload::{Commit, Log, decode_update};
use super::record::{self, Kind};
use super::survey::{Item, PackReader, Survey, check_record};
use super::writer::write_due_index;
use super::{LocalStore, is_collected, lease_file, pack_name, recover};
use crate::batch::Batch;
use crate::check::{Part, Span, parts};
use crate::chunk_store::ChunkStore;
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::history::Revision;
use crate::id::ChunkId;
use crate::tree::Map;

/// Where damaged packs are kept.
const ASIDE: &str = "damaged";

/// What has been done to files.
#[derive(Debug, Default)]
pub(crate) struct Mended {
    /// The new names of packs that were set aside.
    pub(crate) set_aside: Vec<String>,
    /// Index files that were made again.
    pub(crate) remade: Vec<String>,
    /// Chunks and small blobs that were moved out of damaged packs.
    pub(crate) moved: u64,
}

/// A pack with its number and index file.
type Sealed = (u32, Arc<dyn DiskFile>, IndexFile);

/// The revisions that can be read, newest first, and what is wrong with the others.
pub(crate) struct Readable {
    pub(crate) revisions: Vec<Revision>,
    pub(crate) faults: Vec<String>,
}

impl LocalStore {
    /// Returns the root chunk of the log's map.
    pub(crate) fn log_root(&self) -> Option<ChunkId> {
        self.tables.read().log.map.root()
    }

    /// Returns the sequence number of the next move of a ref.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.tables.read().sequence
    }

    /// Keeps collections away until the guard is dropped.
    pub(crate) fn begin_repair(&self) -> Result<MutexGuard<'_, ()>> {
        self.check_open()?;
        self.collecting.try_lock().ok_or(Error::Collecting)
    }

    /// Ends the lease that a client has written as a file, if there is one.
    pub(crate) fn end_lease_file(&self, holder: &str) -> Result<()> {
        lease_file::remove(self.disk.as_ref(), lease_file::FOLDER, holder)
    }

    /// Makes damaged index files again, and sets damaged packs aside with all that can be read of them elsewhere.
    pub(crate) fn mend(&self, survey: &Survey) -> Result<Mended> {
        let mut mended = Mended::default();
        for pack in survey.damaged_indexes.difference(&survey.damaged_packs) {
            let file = self.index.file(*pack).filter(|_| *pack != self.writer.lock().pack);
            if let Some(file) = file {
                recover::remake_index(self.disk.as_ref(), &self.index, *pack, file.as_ref())?;
                mended.remade.push(index_file::file_name(*pack));
            }
        }
        let damaged = self.end_damaged(&survey.damaged_packs)?;
        if damaged.iter().any(|pack| !is_collected(*pack)) {
            // Their commit records are the only place of young revisions.
            let readable = self.readable_revisions(survey)?;
            self.rewrite_log(&readable.revisions)?;
        }
        for pack in damaged {
            let added = self.copy_readable(pack, &mut mended.moved)?;
            self.index.set_aside(pack, added);
            for file in [index_file::file_name(pack), pack_name(pack)] {
                mended.set_aside.extend(set_aside(self.disk.as_ref(), &file)?);
            }
        }
        for orphan in &survey.orphans {
            mended.set_aside.extend(set_aside(self.disk.as_ref(), orphan)?);
        }
        self.damage.lock().clear();
        Ok(mended)
    }

    /// Ends the open pack if it is damaged. Returns the damaged packs that are not written any more.
    fn end_damaged(&self, damaged: &BTreeSet<u32>) -> Result<BTreeSet<u32>> {
        let (open, due) = {
            let mut writer = self.writer.lock();
            // A pack that is gone is followed by another one.
            if damaged.contains(&writer.pack) || writer.is_sealed {
                let rotated = writer.rotate(self.session(), 0);
                rotated.map_err(|failure| self.settle(failure))?;
            }
            (writer.pack, std::mem::take(&mut writer.unindexed))
        };
        let due = due.into_iter().filter(|(pack, ..)| !damaged.contains(pack));
        let failed = due.filter(|due| !write_due_index(self.disk.as_ref(), &self.index, due));
        let failed: Vec<_> = failed.collect();
        self.writer.lock().unindexed.extend(failed);
        Ok(damaged.iter().copied().filter(|pack| *pack != open).collect())
    }

    /// Returns the revisions that can be read.
    pub(crate) fn readable_revisions(&self, survey: &Survey) -> Result<Readable> {
        let tables = self.tables.read().clone();
        let folded = tables.log.folded;
        let mut found = BTreeMap::new();
        for location in self.index.commits_since(folded) {
            let Some(commit) = self.read_commit(location, survey)? else { continue };
            let young = commit.into_revisions().filter(|one| one.sequence >= folded);
            found.extend(young.map(|one| (one.sequence, one)));
        }
        let mut faults = Vec::new();
        let mut next = folded;
        for sequence in found.keys().copied().chain([tables.sequence]) {
            if sequence > next {
                faults.push(format!("the revisions {next} to {} cannot be read", sequence - 1));
            }
            next = sequence.saturating_add(1).max(next);
        }
        let read = |id: &ChunkId| self.read_surveyed(id, survey);
        parts(&read, tables.log.map, &Span::ALL, &mut |part| {
            match part {
                Part::Record(key, value) => {
                    let sequence = key.last_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes));
                    match sequence.zip(decode_update(&value.bytes)) {
                        Some((sequence, update)) => {
                            found.insert(sequence, Revision { sequence, update });
                        }
                        None => faults.push("a folded revision does not decode".to_owned()),
                    }
                }
                Part::Unreadable(lost) => {
                    let (count, fault) = (lost.records, &lost.fault);
                    faults.push(format!("{count} or more folded revisions are lost: {fault}"));
                }
                Part::Skipped => {}
            }
            Ok(())
        })?;
        Ok(Readable { revisions: found.into_values().rev().collect(), faults })
    }

    fn read_commit(&self, location: Location, survey: &Survey) -> Result<Option<Commit>> {
        if survey.is_damaged(location.place) {
            return Ok(None);
        }
        let (header, record) = self.read_record(location)?;
        Ok(header
            .filter(|header| record::is_valid(header, &record, location.place))
            .and_then(|header| record::decode(&header, &record))
            .and_then(|payload| Commit::decode(&payload)))
    }

    /// Puts these revisions in the place of all that the log holds.
    pub(crate) fn rewrite_log(&self, revisions: &[Revision]) -> Result<()> {
        let records: BTreeMap<_, _> =
            revisions.iter().map(|one| (key_of(one), value_of(one))).collect();
        let mut batch = Batch::new();
        let map = Map::build(&mut batch, records.into_iter())?;
        self.commit(batch)?;
        let mut writer = self.writer.lock();
        let (generation, folded) = {
            let tables = self.tables.read();
            (tables.log.generation, tables.sequence)
        };
        let log = Log { map, folded, generation };
        let commit = writer.write_log(self.session(), log, Vec::new());
        let commit = commit.map_err(|failure| self.settle(failure))?;
        self.tables.write().apply(&commit);
        Ok(())
    }

    /// Writes what can be read of a pack to a new one, durably; `None` if that is nothing.
    fn copy_readable(&self, pack: u32, moved: &mut u64) -> Result<Option<Sealed>> {
        let failed = |source| Error::Read { file: pack_name(pack), source };
        let Some(file) = self.index.file(pack) else {
            return Ok(None);
        };
        let end = file.len().map_err(failed)?;
        let mut reader = PackReader::new(pack, file.as_ref(), end);
        let mut output: Option<Output> = None;
        let mut piece = Vec::new();
        let tables = self.tables.read().clone();
        while let Some(item) = reader.next_item() {
            let Item::Record(found) = item else { continue };
            let is_content = matches!(found.header.kind, Kind::Chunk | Kind::Blob);
            if !is_content || check_record(&found.header, found.record).is_err() {
                continue;
            }
            let to = match &mut output {
                Some(open) => open,
                None => output.insert(Output::begin(self)?),
            };
            to.add(&found.header, &Bytes::copy_from_slice(found.record), &mut piece);
            *moved += 1;
            if piece.len() >= MOVE_BYTES {
                to.append(&mut piece).inspect_err(|_| to.discard(self))?;
            }
        }
        let Some(mut output) = output else {
            return Ok(None);
        };
        let written = output.append(&mut piece).and_then(|()| output.seal(self, &tables));
        let index = written.inspect_err(|_| output.discard(self))?;
        Ok(Some((output.pack, Arc::clone(&output.file), index)))
    }
}

/// Renames a file to a name that is free; returns it, or `None` if there is no such file.
pub(super) fn set_aside(disk: &dyn Disk, file: &str) -> Result<Option<String>> {
    let names = std::iter::once(format!("{ASIDE}/{file}"))
        .chain((2..).map(|number| format!("{ASIDE}/{file}-{number}")));
    let mut free = names.skip_while(|name| disk.open(name).is_ok());
    let Some(to) = free.next().filter(|_| disk.open(file).is_ok()) else {
        return Ok(None);
    };
    let moved = disk.rename(file, &to);
    let synced = moved.and_then(|()| disk.sync_folder(ASIDE)).and_then(|()| disk.sync_folder(""));
    synced.map_err(|source| Error::Write { file: file.to_owned(), source })?;
    tracing::warn!(file, "a damaged file is set aside");
    Ok(Some(to))
}
