//! A scan of documents in key order, for a caller that reads their nodes in place.
//!
//! Bodies are read once and do not enter the cache, because a scan would replace everything in it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tympan_store::MapScan;
use tympan_store::key::KeyRange;

use super::StateReader;
use crate::document::body::DocumentBody;
use crate::document::borrowed_node::BorrowedNode;
use crate::document::boundary::is_container;
use crate::document::record::ContentRecord;
use crate::document::record_key;
use crate::snapshot::LoadedDocument;
use crate::{Error, NodePath, Result};

/// The documents below a node that a scan reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanScope {
    /// Those of its children.
    Children,
    /// Those of all descendants.
    Descendants,
}

impl ScanScope {
    fn key_range(self, path: &NodePath) -> Result<KeyRange> {
        match self {
            Self::Children => record_key::child_key_range(path),
            Self::Descendants => record_key::descendant_key_range(path),
        }
    }
}

/// Documents in key order. After an error it may be continued with the next document.
pub struct DocumentScan<'a> {
    reader: &'a StateReader<'a>,
    records: MapScan<'a>,
}

/// A document that a scan has read.
pub struct ScannedDocument<'a> {
    reader: &'a StateReader<'a>,
    key: Bytes,
    record: ContentRecord,
    body: Arc<DocumentBody>,
}

impl StateReader<'_> {
    /// Returns the number of documents below a node. The cost does not depend on their number.
    ///
    /// # Errors
    /// If the store fails.
    pub fn count_documents_below(&self, path: &NodePath, scope: ScanScope) -> Result<u64> {
        let range = scope.key_range(path)?;
        Ok(self.content_map().count_records_in(&self.chunk_reader, &range)?)
    }

    /// Scans the documents below a node, from the document `first` on or from the first one. The node's own document is
    /// not among them.
    ///
    /// # Errors
    /// If a path is too long for a key.
    pub fn scan_documents(
        &self,
        above: &NodePath,
        scope: ScanScope,
        first: Option<&NodePath>,
    ) -> Result<DocumentScan<'_>> {
        let mut range = scope.key_range(above)?;
        if let Some(first) = first {
            range.start = record_key::record_key(first)?;
        }
        let records = self.content_map().range(&self.chunk_reader, range.bounds());
        Ok(DocumentScan { reader: self, records })
    }
}

impl<'a> Iterator for DocumentScan<'a> {
    type Item = Result<ScannedDocument<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (key, stored) = match self.records.next()? {
            Ok(entry) => entry,
            Err(error) => return Some(Err(error.into())),
        };
        let Some(record) = ContentRecord::decode(&stored) else {
            return Some(Err(damaged_document_error(&key, "its record cannot be decoded")));
        };
        let body = match record.read_body(&self.reader.chunk_reader) {
            Ok(Some(body)) => body,
            Ok(None) => {
                return Some(Err(damaged_document_error(&key, "its body cannot be decoded")));
            }
            Err(error) => return Some(Err(error.into())),
        };
        Some(Ok(ScannedDocument { reader: self.reader, key, record, body }))
    }
}

impl ScannedDocument<'_> {
    /// Returns the document's path as a text, without validating its names again.
    #[must_use]
    pub fn path_text(&self) -> String {
        let mut path = String::with_capacity(self.key.len() + 1);
        path.push('/');
        let text = String::from_utf8_lossy(&self.key);
        let text = text.strip_prefix('\0').unwrap_or(&text);
        path.extend(
            text.chars().map(|character| if character < '\u{2}' { '/' } else { character }),
        );
        path
    }

    /// Returns true if children of the document's own node have documents of their own.
    #[must_use]
    pub fn is_container(&self) -> bool {
        let name = record_key::record_name(&self.key).unwrap_or_default();
        is_container(name, self.record.summary.primary_type())
    }

    /// Returns the document's own node with all its parts, visible or not.
    #[inline]
    #[must_use]
    pub fn root_node(&self) -> BorrowedNode<'_> {
        BorrowedNode::new(&self.body, self.body.root(), None)
    }

    /// Converts the document to one whose nodes belong to the snapshot, so that they show what its viewer may read.
    ///
    /// # Errors
    /// [`Error::InvalidName`] if the document has an invalid path.
    pub fn into_loaded(self) -> Result<LoadedDocument> {
        let path = record_key::record_path(&self.key)?;
        Ok(self.reader.snapshot.loaded_document(path, self.record, self.body))
    }
}

fn damaged_document_error(key: &[u8], reason: &'static str) -> Error {
    match record_key::record_path(key) {
        Ok(path) => Error::Damaged { path, reason },
        Err(error) => error,
    }
}

impl fmt::Debug for DocumentScan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DocumentScan({:?})", self.records)
    }
}

impl fmt::Debug for ScannedDocument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScannedDocument({})", self.path_text())
    }
}
