//! The history of refs: recent revisions in commit records, older ones folded into a map.
//!
//! A collection folds the history: it adds the revisions that are only in commit records to the map and leaves out
//! those that are not retained. From then on nothing needs the packs that hold the commit records.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use super::local_store::LocalStore;
use super::pack_name::pack_file_name;
use super::record;
use super::record_index::RecordIndex;
use super::record_payload::{CommitRecord, RevisionLog, decode_update, encode_update};
use crate::chunk::MapValue;
use crate::error::{Error, Result};
use crate::interface::chunk_batch::ChunkBatch;
use crate::interface::chunk_reader::ReadChunks;
use crate::interface::garbage_collection::GarbageCollectionOptions;
use crate::interface::history::Revision;

/// The terminator of the ref name in keys.
const REF_NAME_END: u8 = 0;

/// The result of a fold.
pub(super) struct FoldedHistory {
    pub(super) log: RevisionLog,
    /// The retained revisions, newest first.
    pub(super) retained: Vec<Revision>,
    pub(super) dropped_count: u64,
}

/// The sources from which the history of a store is read.
pub(super) struct HistoryReader<'a> {
    pub(super) index: &'a RecordIndex,
    pub(super) log: RevisionLog,
    pub(super) chunk_reader: &'a dyn ReadChunks,
}

impl HistoryReader<'_> {
    /// Returns revisions of a ref, or of all refs, newest first.
    pub(super) fn read_revisions(
        &self,
        name: Option<&str>,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Revision>> {
        let log = self.log;
        let before = before.unwrap_or(u64::MAX);
        let is_wanted = |revision: &Revision| {
            revision.sequence < before && name.is_none_or(|name| revision.update.name == name)
        };
        let mut revisions = self.read_recent_revisions(log.folded_below, limit, is_wanted)?;
        if revisions.len() < limit {
            revisions.extend(self.read_folded(name)?.into_iter().filter(is_wanted));
        }
        revisions.truncate(limit);
        Ok(revisions)
    }

    /// Returns about `limit` revisions from sequence number `since` on, which are not in the map yet, newest first.
    pub(super) fn read_recent_revisions(
        &self,
        since: u64,
        limit: usize,
        is_wanted: impl Fn(&Revision) -> bool,
    ) -> Result<Vec<Revision>> {
        let mut recent_revisions = Vec::new();
        for location in self.index.commits_since(since) {
            if recent_revisions.len() >= limit {
                break;
            }
            let (header, record) = self.index.read_record(location)?;
            let commit = header
                .filter(|header| record::is_record_valid(header, &record, location.position))
                .and_then(|header| record::decode_record(&header, &record))
                .and_then(|payload| CommitRecord::decode(&payload));
            let commit = commit.ok_or_else(|| Error::FileMalformed {
                file: pack_file_name(location.position.pack),
                fault: "a commit record is damaged; run `tympan repo check`",
            })?;
            let is_young = |revision: &Revision| revision.sequence >= since;
            let revisions = commit.into_revisions().rev();
            recent_revisions.extend(revisions.filter(is_young).filter(&is_wanted));
        }
        Ok(recent_revisions)
    }

    /// Returns the revisions in the map, newest first.
    fn read_folded(&self, name: Option<&str>) -> Result<Vec<Revision>> {
        let prefix = name.map(ref_key_prefix);
        let end = prefix.clone().map(|mut end| {
            end.pop();
            end.push(REF_NAME_END + 1);
            end
        });
        let start = prefix.as_deref().map_or(Bound::Unbounded, Bound::Included);
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut revisions = Vec::new();
        for entry in self.log.map.range(self.chunk_reader, (start, end)) {
            let (key, value) = entry?;
            let sequence = key.last_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes));
            let revision = sequence.zip(decode_update(&value.bytes));
            let (sequence, update) = revision.ok_or_else(|| Error::FileMalformed {
                file: "history".to_owned(),
                fault: "a revision cannot be decoded; run `tympan repo check`",
            })?;
            revisions.push(Revision { sequence, update });
        }
        revisions.sort_unstable_by_key(|item| std::cmp::Reverse(item.sequence));
        Ok(revisions)
    }
}

impl LocalStore {
    /// Returns revisions of a ref, or of all refs, newest first.
    pub(super) fn read_history(
        &self,
        name: Option<&str>,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Revision>> {
        loop {
            let past = self.history_reader();
            let revisions = past.read_revisions(name, before, limit);
            // A collection that has folded in between removes revisions not yet read, or the packs they are read from.
            if self.tables.read().log == past.log {
                return revisions;
            }
        }
    }

    /// Returns a reader of the history.
    pub(super) fn history_reader(&self) -> HistoryReader<'_> {
        let log = self.tables.read().log;
        HistoryReader { index: &self.index, log, chunk_reader: self }
    }

    /// Selects the retained revisions, and stages their map.
    pub(super) fn stage_history_fold(
        &self,
        options: &GarbageCollectionOptions,
        batch: &mut ChunkBatch,
    ) -> Result<FoldedHistory> {
        let log = self.tables.read().log;
        let all = self.read_history(None, None, usize::MAX)?;
        let mut by_name: BTreeMap<&str, Vec<&Revision>> = BTreeMap::new();
        for revision in &all {
            by_name.entry(&revision.update.name).or_default().push(revision);
        }
        let mut edits = BTreeMap::new();
        let mut retained_revisions = Vec::new();
        let mut dropped = 0;
        for revisions in by_name.values() {
            let times =
                revisions.iter().map(|revision| (revision.sequence, revision.update.updated_at));
            let stays = options.retention.select_retained(times, options.now);
            for revision in revisions {
                let is_followed = revision
                    .update
                    .new_root
                    .is_some_and(|root| options.retained_roots.contains(&root));
                if is_followed || stays.contains(&revision.sequence) {
                    retained_revisions.push(Revision::clone(revision));
                    if revision.sequence >= log.folded_below {
                        edits.insert(revision_key(revision), Some(revision_value(revision)));
                    }
                } else {
                    dropped += 1;
                    if revision.sequence < log.folded_below {
                        edits.insert(revision_key(revision), None);
                    }
                }
            }
        }
        retained_revisions.sort_unstable_by_key(|revision| std::cmp::Reverse(revision.sequence));
        let folded = all
            .iter()
            .map(|revision| revision.sequence + 1)
            .max()
            .unwrap_or(0)
            .max(log.folded_below);
        let map = log.map.edit(self as &dyn ReadChunks, batch, edits)?;
        Ok(FoldedHistory {
            log: RevisionLog { map, folded_below: folded, generation: log.generation + 1 },
            retained: retained_revisions,
            dropped_count: dropped,
        })
    }
}

fn ref_key_prefix(name: &str) -> Vec<u8> {
    let mut key = name.as_bytes().to_vec();
    key.push(REF_NAME_END);
    key
}

pub(super) fn revision_key(revision: &Revision) -> Vec<u8> {
    let mut key = ref_key_prefix(&revision.update.name);
    key.extend_from_slice(&revision.sequence.to_be_bytes());
    key
}

pub(super) fn revision_value(revision: &Revision) -> MapValue {
    let mut bytes = Vec::new();
    encode_update(&revision.update, &mut bytes);
    MapValue { bytes: Bytes::from(bytes), body: None }
}
