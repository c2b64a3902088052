//! Support for followers of content: iteration over documents, and roots retained while a follower is away.
//!
//! A follower stores the root that it has processed and requests the difference to the newest one
//! ([`Snapshot::changed_paths`]). To start or restart, it reads all documents of one state.

use std::ops::Bound;
use std::time::SystemTime;

use tympan_store::{ChunkBatch, ChunkId, RootLease};

use crate::document::record::ContentRecord;
use crate::{Error, Node, NodePath, Repository, Result, Snapshot, document::record_key};

impl Snapshot {
    /// Returns every node that has a record of its own, in order of keys. Records are read as the iterator advances,
    /// bodies on first access. Pending edits of a session are not included.
    ///
    /// A record that does not decode is an error of its own, after which the iterator continues.
    pub fn document_nodes(&self) -> impl Iterator<Item = Result<Node>> + '_ {
        let range = self
            .view
            .content_map
            .range(self.view.repository_state.chunk_reader(), (Bound::Unbounded, Bound::Unbounded));
        range.map(|entry| {
            let (key, stored) = entry?;
            let path = record_key::record_path(&key)?;
            match ContentRecord::decode(&stored) {
                Some(record) => Ok(self.record_node(path, record)),
                None => Err(Error::Damaged { path, reason: "its record cannot be decoded" }),
            }
        })
    }

    /// Returns the number of nodes that have records of their own, without decoding them.
    ///
    /// # Errors
    /// If the store fails.
    pub fn count_documents(&self) -> Result<u64> {
        Ok(self.view.content_map.count_records(self.view.repository_state.chunk_reader())?)
    }

    /// Returns the node at a path if it has a record of its own.
    ///
    /// # Errors
    /// If the store fails or the record is damaged.
    pub fn document_node(&self, path: &NodePath) -> Result<Option<Node>> {
        Ok(self.node(path)?.filter(|node| node.summary().is_some()))
    }
}

impl Repository {
    /// Protects a root from collection until a time, for a follower that may be away for a while. A later call for the
    /// same holder replaces an earlier one.
    ///
    /// # Errors
    /// If the store fails.
    pub fn retain_root(&self, holder: &str, root: ChunkId, until: SystemTime) -> Result<()> {
        let mut batch = ChunkBatch::new();
        batch.grant_lease(RootLease { holder: holder.to_owned(), root, expires_at: Some(until) });
        Ok(self.chunks().commit(batch)?)
    }
}
