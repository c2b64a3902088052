//! The pending edits of a session, document by document, as differences between two of its states.

use std::fmt;
use std::sync::Arc;

use crate::document::record::ContentRecord;
use crate::snapshot::SnapshotView;
use crate::{NodePath, Result, Snapshot, Subtree, document::record_key};

/// A document that the pending edits of a session put or remove, in two states of the session.
pub struct DocumentEdit<'a> {
    path: NodePath,
    before: DocumentState<'a>,
    after: DocumentState<'a>,
}

/// A document in one state.
struct DocumentState<'a> {
    view: &'a SnapshotView,
    /// `None` if the state does not have the document.
    record: Option<Arc<ContentRecord>>,
}

impl Snapshot {
    /// Returns the documents that the pending edits of this state put or remove, in key order, compared with an earlier
    /// state of the same session. Documents that are put as they were are included. Access control does not apply.
    pub fn document_edits<'a>(
        &'a self,
        earlier: &'a Self,
    ) -> impl Iterator<Item = Result<DocumentEdit<'a>>> {
        self.view.record_edits.iter().map(|(key, record)| {
            let path = record_key::record_path(key)?;
            let old_record = earlier.view.read_record(key, &path)?;
            Ok(DocumentEdit {
                path,
                before: DocumentState { view: &earlier.view, record: old_record },
                after: DocumentState { view: &self.view, record: record.clone() },
            })
        })
    }
}

impl DocumentEdit<'_> {
    /// Returns the document's path.
    #[must_use]
    pub fn path(&self) -> &NodePath {
        &self.path
    }

    /// Returns true if both states have the document, at another position among its siblings.
    #[must_use]
    pub fn is_repositioned(&self) -> bool {
        match (&self.before.record, &self.after.record) {
            (Some(before), Some(after)) => before.order_key != after.order_key,
            _ => false,
        }
    }

    /// Decodes the document in the earlier state; `None` if it did not exist.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read_before(&self) -> Result<Option<Subtree>> {
        self.before.read_subtree(&self.path)
    }

    /// Decodes the document in the later state; `None` if it is removed.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read_after(&self) -> Result<Option<Subtree>> {
        self.after.read_subtree(&self.path)
    }
}

impl DocumentState<'_> {
    fn read_subtree(&self, path: &NodePath) -> Result<Option<Subtree>> {
        let Some(record) = &self.record else { return Ok(None) };
        let body = self.view.load_body(record, path)?;
        Ok(Some(body.subtree(body.root())))
    }
}

impl fmt::Debug for DocumentEdit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DocumentEdit({})", self.path)
    }
}
