//! Documents in transfer between instances: encoded records with the list of their dependencies.
//!
//! An author sends the records of activated documents. A publisher holds a subset of the author's content, so the
//! chunks of the tree are never transferred; bodies and blobs are, if the publisher lacks them.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;
use tympan_store::{BlobId, ChunkId, MapValue, body as bodies};

use crate::document::boundary::{is_container, is_own_content};
use crate::document::record::ContentRecord;
use crate::document::sibling::container_orders_children;
use crate::model::subtree::SubtreeScope;
use crate::{Error, NodePath, Result, Session, Snapshot, document::record_key};

/// One record in its encoded form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDocument {
    /// The path of the document.
    pub path: NodePath,
    /// The record's bytes: header, and the body if it is short.
    pub record_bytes: Bytes,
    /// The body's hash, if it is not in the record.
    pub body: Option<ChunkId>,
}

/// The dependencies of a document outside its record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DocumentRequirements {
    /// The chunks of its body.
    pub chunks: BTreeSet<ChunkId>,
    /// The blobs of its binary properties.
    pub blobs: BTreeSet<BlobId>,
}

impl Snapshot {
    /// Returns the stored document that holds the node at `path` with its policies, and with [`SubtreeScope::Subtree`]
    /// all documents below it. Parents come before their children. Pending edits of a session are not included.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; errors of the store.
    pub fn stored_documents(
        &self,
        path: &NodePath,
        depth: SubtreeScope,
    ) -> Result<Vec<StoredDocument>> {
        let reads = self.view.repository_state.chunk_reader();
        let node = self.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let owner = node.record_path();
        let stored = self.view.content_map.get(reads, &record_key::record_key(owner)?)?;
        let stored = stored.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let mut documents = vec![stored_document(owner.clone(), stored)];
        if depth == SubtreeScope::Document
            && owner == path
            && is_container(path.name(), node.primary_type())
        {
            // The policies that protect a page are transferred with it.
            for name in ["rep:policy", "rep:cugPolicy"] {
                let policy = owner.child(name)?;
                if let Some(stored) =
                    self.view.content_map.get(reads, &record_key::record_key(&policy)?)?
                {
                    documents.push(stored_document(policy, stored));
                }
            }
        }
        if depth == SubtreeScope::Subtree && owner == path {
            let range = record_key::descendant_key_range(owner)?;
            let bounds = range.bounds();
            for entry in self.view.content_map.range(reads, bounds) {
                let (key, stored) = entry?;
                documents.push(stored_document(record_key::record_path(&key)?, stored));
            }
        }
        Ok(documents)
    }

    /// Returns the paths of the documents at and below a node in key order, parents first: at most `limit` paths after
    /// `after`. Pending edits of a session are not included.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn document_paths(
        &self,
        top: &NodePath,
        after: Option<&NodePath>,
        limit: usize,
    ) -> Result<Vec<NodePath>> {
        let reads = self.view.repository_state.chunk_reader();
        let mut paths = Vec::new();
        let below = record_key::descendant_key_range(top)?;
        let (start, end) = below.bounds();
        let last = after.filter(|path| *path != top).map(record_key::record_key).transpose()?;
        if after.is_none()
            && self.view.content_map.get(reads, &record_key::record_key(top)?)?.is_some()
        {
            paths.push(top.clone());
        }
        let start = last.as_deref().map_or(start, Bound::Excluded);
        for entry in self.view.content_map.range(reads, (start, end)) {
            if paths.len() >= limit {
                break;
            }
            paths.push(record_key::record_path(&entry?.0)?);
        }
        Ok(paths)
    }

    /// Returns the paths of the documents at and below a node in reverse key order, children before their parents: at
    /// most `limit` paths before `before`. Pending edits of a session are not included.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn document_paths_before(
        &self,
        top: &NodePath,
        before: Option<&NodePath>,
        limit: usize,
    ) -> Result<Vec<NodePath>> {
        let mut paths = Vec::new();
        if before == Some(top) {
            return Ok(paths);
        }
        let reads = self.view.repository_state.chunk_reader();
        let below = record_key::descendant_key_range(top)?;
        let (start, end) = below.bounds();
        let last = before.map(record_key::record_key).transpose()?;
        let end = last.as_deref().map_or(end, Bound::Excluded);
        for entry in self.view.content_map.range_reversed(reads, (start, end)).take(limit) {
            paths.push(record_key::record_path(&entry?.0)?);
        }
        if paths.len() < limit
            && self.view.content_map.get(reads, &record_key::record_key(top)?)?.is_some()
        {
            paths.push(top.clone());
        }
        Ok(paths)
    }

    /// Returns the chunks and blobs that a document needs.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn document_requirements(&self, document: &StoredDocument) -> Result<DocumentRequirements> {
        let mut needs = DocumentRequirements::default();
        if let Some(body) = document.body {
            let reads = self.view.repository_state.chunk_reader();
            for id in bodies::list_body_chunks(reads, &body)? {
                needs.blobs.extend(reads.read_chunk(&id)?.blob_refs());
                needs.chunks.insert(id);
            }
        }
        Ok(needs)
    }

    /// Returns the paths whose records differ between this state and `other`, sorted by key.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn changed_paths(&self, other: &Self) -> Result<Vec<NodePath>> {
        let diff = self
            .view
            .content_map
            .diff(&other.view.content_map, self.view.repository_state.chunk_reader());
        diff.map(|change| record_key::record_path(&change?.key)).collect()
    }
}

impl Session {
    /// Stores a document received from another instance. Its body's chunks and its blobs must already be in the stores;
    /// its parent must be a folder or page. Documents below it stay, unless it can no longer hold them. It is stored
    /// unchanged ([`Session::mark_as_received`]).
    ///
    /// # Errors
    /// [`Error::Damaged`] if the record or body does not decode; [`Error::NodeMissing`] for the parent; errors of the
    /// store, also when a chunk of the body is missing.
    pub fn put_document(&mut self, document: &StoredDocument) -> Result<()> {
        self.bypass_check_ins();
        let StoredDocument { path, record_bytes: record, body } = document;
        let damaged = || Error::Damaged {
            path: path.clone(),
            reason: "the received record cannot be decoded",
        };
        let record = ContentRecord::decode_strict(&MapValue { bytes: record.clone(), body: *body });
        let mut record = record.ok_or_else(damaged)?;
        let snapshot = self.snapshot()?;
        snapshot.view.load_body(&record, path)?;
        if let Some(parent) = path.parent() {
            let node = snapshot.node(&parent)?.ok_or_else(|| Error::NodeMissing(parent.clone()))?;
            let parent_type = node.primary_type();
            if node.summary().is_none()
                || !is_container(parent.name(), parent_type)
                || is_own_content(parent_type, path.name())
            {
                return Err(Error::InvalidEdit {
                    action: "receive",
                    path: path.clone(),
                    reason: "its parent cannot hold it as a separate document",
                });
            }
        }
        if let Some(parent) = path.parent()
            && record.order_key.0.is_empty()
        {
            record.order_key = self.next_order_key(&parent)?;
        }
        let old = snapshot.view.read_record(&record_key::record_key(path)?, path)?;
        let is_ordered_anew = container_orders_children(path, Some(&record))
            && !container_orders_children(path, old.as_deref());
        if !is_container(path.name(), record.summary.primary_type()) {
            self.remove_records(path)?;
        }
        drop(snapshot);
        self.mark_as_received();
        self.write_record(path, record)?;
        if is_ordered_anew { self.pending_view_mut().assign_order_keys(path) } else { Ok(()) }
    }
}

fn stored_document(path: NodePath, stored: MapValue) -> StoredDocument {
    StoredDocument { path, record_bytes: stored.bytes, body: stored.body }
}
