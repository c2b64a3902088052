//! The history of refs: young revisions in commit records, older ones folded into a map.
//!
//! A collection folds: it takes the revisions that are in commit records only into the map, leaves out those that are
//! not kept, and from then on nothing needs the packs that hold the commit records.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use super::index::Index;
use super::payload::{Commit, Log, decode_update, encode_update};
use super::record;
use super::{LocalStore, pack_name};
use crate::batch::Batch;
use crate::chunk_store::ReadChunks;
use crate::collect::CollectOptions;
use crate::error::{Error, Result};
use crate::history::Revision;
use crate::tree::Value;

/// Ends the name of a ref in keys.
const END: u8 = 0;

/// What a fold has decided.
pub(super) struct Folded {
    pub(super) log: Log,
    /// The revisions that stay, newest first.
    pub(super) kept: Vec<Revision>,
    pub(super) dropped: u64,
}

/// What the history of a store is read from.
pub(super) struct Past<'a> {
    pub(super) index: &'a Index,
    pub(super) log: Log,
    pub(super) chunks: &'a dyn ReadChunks,
}

impl Past<'_> {
    /// Returns revisions of a ref, or of all refs, newest first.
    pub(super) fn read(
        &self,
        name: Option<&str>,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Revision>> {
        let log = self.log;
        let before = before.unwrap_or(u64::MAX);
        let is_wanted = |one: &Revision| {
            one.sequence < before && name.is_none_or(|name| one.update.name == name)
        };
        let mut found = self.read_young(log.folded, limit, is_wanted)?;
        if found.len() < limit {
            found.extend(self.folded(name)?.into_iter().filter(is_wanted));
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Returns revisions from sequence number `since` on, which are in no map yet, newest first; about `limit`.
    pub(super) fn read_young(
        &self,
        since: u64,
        limit: usize,
        is_wanted: impl Fn(&Revision) -> bool,
    ) -> Result<Vec<Revision>> {
        let mut found = Vec::new();
        for location in self.index.commits_since(since) {
            if found.len() >= limit {
                break;
            }
            let (header, record) = self.index.read_record(location)?;
            let commit = header
                .filter(|header| record::is_valid(header, &record, location.place))
                .and_then(|header| record::decode(&header, &record))
                .and_then(|payload| Commit::decode(&payload));
            let commit = commit.ok_or_else(|| Error::FileMalformed {
                file: pack_name(location.place.pack),
                fault: "a commit record is damaged; run `tympan repo check`",
            })?;
            let is_young = |one: &Revision| one.sequence >= since;
            let revisions = commit.into_revisions().rev();
            found.extend(revisions.filter(is_young).filter(&is_wanted));
        }
        Ok(found)
    }

    /// Returns the revisions in the map, newest first.
    fn folded(&self, name: Option<&str>) -> Result<Vec<Revision>> {
        let prefix = name.map(prefix_of);
        let end = prefix.clone().map(|mut end| {
            end.pop();
            end.push(END + 1);
            end
        });
        let start = prefix.as_deref().map_or(Bound::Unbounded, Bound::Included);
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut found = Vec::new();
        for entry in self.log.map.range(self.chunks, (start, end)) {
            let (key, value) = entry?;
            let sequence = key.last_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes));
            let revision = sequence.zip(decode_update(&value.bytes));
            let (sequence, update) = revision.ok_or_else(|| Error::FileMalformed {
                file: "history".to_owned(),
                fault: "a revision does not decode; run `tympan repo check`",
            })?;
            found.push(Revision { sequence, update });
        }
        found.sort_unstable_by_key(|one| std::cmp::Reverse(one.sequence));
        Ok(found)
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
            let past = self.past();
            let found = past.read(name, before, limit);
            // A collection that has folded meanwhile removes what was still to be read, or what it is read from.
            if self.tables.read().log == past.log {
                return found;
            }
        }
    }

    /// Returns what the history is read from.
    pub(super) fn past(&self) -> Past<'_> {
        let log = self.tables.read().log;
        Past { index: &self.index, log, chunks: self }
    }

    /// Decides which revisions stay, and stages the map of them.
    pub(super) fn fold(&self, options: &CollectOptions, batch: &mut Batch) -> Result<Folded> {
        let log = self.tables.read().log;
        let all = self.read_history(None, None, usize::MAX)?;
        let mut by_name: BTreeMap<&str, Vec<&Revision>> = BTreeMap::new();
        for one in &all {
            by_name.entry(&one.update.name).or_default().push(one);
        }
        let mut edits = BTreeMap::new();
        let mut kept = Vec::new();
        let mut dropped = 0;
        for revisions in by_name.values() {
            let times = revisions.iter().map(|one| (one.sequence, one.update.at));
            let stays = options.retention.kept(times, options.now);
            for one in revisions {
                let is_followed = one.update.new.is_some_and(|root| options.keep.contains(&root));
                if is_followed || stays.contains(&one.sequence) {
                    kept.push(Revision::clone(one));
                    if one.sequence >= log.folded {
                        edits.insert(key_of(one), Some(value_of(one)));
                    }
                } else {
                    dropped += 1;
                    if one.sequence < log.folded {
                        edits.insert(key_of(one), None);
                    }
                }
            }
        }
        kept.sort_unstable_by_key(|one| std::cmp::Reverse(one.sequence));
        let folded = all.iter().map(|one| one.sequence + 1).max().unwrap_or(0).max(log.folded);
        let map = log.map.edit(self as &dyn ReadChunks, batch, edits)?;
        Ok(Folded { log: Log { map, folded, generation: log.generation + 1 }, kept, dropped })
    }
}

fn prefix_of(name: &str) -> Vec<u8> {
    let mut key = name.as_bytes().to_vec();
    key.push(END);
    key
}

pub(super) fn key_of(revision: &Revision) -> Vec<u8> {
    let mut key = prefix_of(&revision.update.name);
    key.extend_from_slice(&revision.sequence.to_be_bytes());
    key
}

pub(super) fn value_of(revision: &Revision) -> Value {
    let mut bytes = Vec::new();
    encode_update(&revision.update, &mut bytes);
    Value { bytes: Bytes::from(bytes), body: None }
}
