//! Documents as they travel between instances: records unopened, with the list of what they refer to.
//!
//! An author ships the records of what was activated. A publisher holds a subset of the author's content, so the
//! chunks of the tree never travel; bodies and blobs do, where the publisher lacks them.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;
use tympan_store::{BlobId, ChunkId, Value as Stored, body as bodies};

use crate::boundary::{is_container, is_own_content};
use crate::record::Record;
use crate::siblings::orders_children;
use crate::{Error, NodePath, Result, Session, Snapshot, keys};

/// One record, unopened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDocument {
    /// Where it belongs.
    pub path: NodePath,
    /// The record's bytes: header, and the body if it is short.
    pub record: Bytes,
    /// The body's hash, if it is not in the record.
    pub body: Option<ChunkId>,
}

/// What a document needs beside its record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needs {
    /// The chunks of its body.
    pub chunks: BTreeSet<ChunkId>,
    /// The blobs that its binary properties name.
    pub blobs: BTreeSet<BlobId>,
}

/// How much of a subtree is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The document itself.
    Document,
    /// The document and every document below it.
    Subtree,
}

impl Snapshot {
    /// Returns the stored document that holds the node at `path` with its policies, and with [`Depth::Subtree`] all
    /// below it. Parents come before their children. Pending edits of a session do not show.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; errors of the store.
    pub fn documents(&self, path: &NodePath, depth: Depth) -> Result<Vec<StoredDocument>> {
        let reads = self.0.shared.reads();
        let node = self.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let owner = node.owner();
        let stored = self.0.content.get(reads, &keys::key_of(owner)?)?;
        let stored = stored.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let mut documents = vec![document(owner.clone(), stored)];
        if depth == Depth::Document
            && owner == path
            && is_container(path.name(), node.primary_type())
        {
            // What closes a page closes it wherever it goes.
            for name in ["rep:policy", "rep:cugPolicy"] {
                let policy = owner.child(name)?;
                if let Some(stored) = self.0.content.get(reads, &keys::key_of(&policy)?)? {
                    documents.push(document(policy, stored));
                }
            }
        }
        if depth == Depth::Subtree && owner == path {
            let range = keys::below(owner)?;
            let bounds = range.bounds();
            for entry in self.0.content.range(reads, bounds) {
                let (key, stored) = entry?;
                documents.push(document(keys::path_of(&key)?, stored));
            }
        }
        Ok(documents)
    }

    /// Returns the paths of the documents at and below a node in the order of keys, parents first: those behind `after`, at most
    /// `limit`. Pending edits of a session do not show.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn document_paths(
        &self,
        top: &NodePath,
        after: Option<&NodePath>,
        limit: usize,
    ) -> Result<Vec<NodePath>> {
        let reads = self.0.shared.reads();
        let mut paths = Vec::new();
        let below = keys::below(top)?;
        let (start, end) = below.bounds();
        let last = after.filter(|path| *path != top).map(keys::key_of).transpose()?;
        if after.is_none() && self.0.content.get(reads, &keys::key_of(top)?)?.is_some() {
            paths.push(top.clone());
        }
        let start = last.as_deref().map_or(start, Bound::Excluded);
        for entry in self.0.content.range(reads, (start, end)) {
            if paths.len() >= limit {
                break;
            }
            paths.push(keys::path_of(&entry?.0)?);
        }
        Ok(paths)
    }

    /// Returns the paths of the documents at and below a node in the reverse order of keys, children before their parents: those
    /// before `before`, at most `limit`. Pending edits of a session do not show.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn document_paths_back(
        &self,
        top: &NodePath,
        before: Option<&NodePath>,
        limit: usize,
    ) -> Result<Vec<NodePath>> {
        let mut paths = Vec::new();
        if before == Some(top) {
            return Ok(paths);
        }
        let reads = self.0.shared.reads();
        let below = keys::below(top)?;
        let (start, end) = below.bounds();
        let last = before.map(keys::key_of).transpose()?;
        let end = last.as_deref().map_or(end, Bound::Excluded);
        for entry in self.0.content.range_back(reads, (start, end)).take(limit) {
            paths.push(keys::path_of(&entry?.0)?);
        }
        if paths.len() < limit && self.0.content.get(reads, &keys::key_of(top)?)?.is_some() {
            paths.push(top.clone());
        }
        Ok(paths)
    }

    /// Returns the chunks and blobs that a document needs.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn needs_of(&self, document: &StoredDocument) -> Result<Needs> {
        let mut needs = Needs::default();
        if let Some(body) = document.body {
            let reads = self.0.shared.reads();
            for id in bodies::chunks(reads, &body)? {
                needs.blobs.extend(reads.read(&id)?.blob_refs());
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
        let diff = self.0.content.diff(&other.0.content, self.0.shared.reads());
        diff.map(|change| keys::path_of(&change?.key)).collect()
    }
}

impl Session {
    /// Puts a document that came from another instance. Its body's chunks and its blobs must be here already; its
    /// parent must be a folder or page. Documents below it stay, unless it can no longer hold them. It is stored as it
    /// is ([`Session::follow`]).
    ///
    /// # Errors
    /// [`Error::Damaged`] if the record or body does not decode; [`Error::NodeMissing`] for the parent; errors of the
    /// store, also when a chunk of the body is missing.
    pub fn put_document(&mut self, document: &StoredDocument) -> Result<()> {
        self.pass_check_ins();
        let StoredDocument { path, record, body } = document;
        let damaged = || Error::Damaged {
            path: path.clone(),
            reason: "a record that was received does not decode",
        };
        let record = Record::decode_whole(&Stored { bytes: record.clone(), body: *body });
        let mut record = record.ok_or_else(damaged)?;
        let snapshot = self.snapshot()?;
        snapshot.0.body(&record, path)?;
        if let Some(parent) = path.parent() {
            let node = snapshot.node(&parent)?.ok_or_else(|| Error::NodeMissing(parent.clone()))?;
            let parent_type = node.primary_type();
            if node.summary().is_none()
                || !is_container(parent.name(), parent_type)
                || is_own_content(parent_type, path.name())
            {
                return Err(Error::Refused {
                    action: "receive",
                    path: path.clone(),
                    reason: "its parent is no folder that holds records",
                });
            }
        }
        if let Some(parent) = path.parent()
            && record.order.0.is_empty()
        {
            record.order = self.next_order(&parent)?;
        }
        let old = snapshot.0.record(&keys::key_of(path)?, path)?;
        let is_ordered_anew =
            orders_children(path, Some(&record)) && !orders_children(path, old.as_deref());
        if !is_container(path.name(), record.summary.primary_type()) {
            self.remove_records(path)?;
        }
        drop(snapshot);
        self.follow();
        self.write(path, record)?;
        if is_ordered_anew { self.edits().deal_orders(path) } else { Ok(()) }
    }
}

fn document(path: NodePath, stored: Stored) -> StoredDocument {
    StoredDocument { path, record: stored.bytes, body: stored.body }
}
