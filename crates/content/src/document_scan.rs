//! What those who follow content need: its documents one after the other, and a state kept while they are away.
//!
//! A follower remembers the root that it has digested and asks for the difference to the newest one
//! ([`Snapshot::changed_paths`]). It begins, and begins anew, with all documents of one state.

use std::ops::Bound;
use std::time::SystemTime;

use tympan_store::{ChunkBatch, ChunkId, RootLease};

use crate::record::ContentRecord;
use crate::{Error, Node, NodePath, Repository, Result, Snapshot, record_key};

impl Snapshot {
    /// Returns every node that has a record of its own, in order of keys; records are read as the iterator advances,
    /// bodies when something of a node is asked for. Pending edits of a session do not show.
    ///
    /// A record that does not decode is an error of its own, after which the iterator goes on.
    pub fn document_nodes(&self) -> impl Iterator<Item = Result<Node>> + '_ {
        let range = self
            .0
            .content_map
            .range(self.0.repository_state.chunk_reader(), (Bound::Unbounded, Bound::Unbounded));
        range.map(|entry| {
            let (key, stored) = entry?;
            let path = record_key::record_path(&key)?;
            match ContentRecord::decode(&stored) {
                Some(record) => Ok(self.record_node(path, record)),
                None => Err(Error::Damaged { path, reason: "its record does not decode" }),
            }
        })
    }

    /// Counts the nodes that have records of their own, without decoding them.
    ///
    /// # Errors
    /// If the store fails.
    pub fn count_documents(&self) -> Result<u64> {
        Ok(self.0.content_map.count_records(self.0.repository_state.chunk_reader())?)
    }

    /// Finds the node at a path if it has a record of its own.
    ///
    /// # Errors
    /// If the store fails or the record is damaged.
    pub fn document_node(&self, path: &NodePath) -> Result<Option<Node>> {
        Ok(self.node(path)?.filter(|node| node.summary().is_some()))
    }
}

impl Repository {
    /// Keeps a root from being collected until a time, for a follower that may be away for a while. A later call for
    /// the same holder replaces an earlier one.
    ///
    /// # Errors
    /// If the store fails.
    pub fn retain_root(&self, holder: &str, root: ChunkId, until: SystemTime) -> Result<()> {
        let mut batch = ChunkBatch::new();
        batch.grant_lease(RootLease { holder: holder.to_owned(), root, expires_at: Some(until) });
        Ok(self.chunks().commit(batch)?)
    }
}
