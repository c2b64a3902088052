//! One pinned state of the content, and who sees it.

use std::fmt;
use std::sync::Arc;

use tympan_store::ChunkId;

use super::snapshot_view::{OrderEdits, RecordEdits, SnapshotView};
use crate::access::AccessGate;
use crate::branch::branch_ref::MAIN_BRANCH;
use crate::{BlobContent, BlobId, Error, Result};

/// One pinned state of the content, as seen by the program itself or by a viewer.
#[derive(Clone)]
pub struct Snapshot(pub(crate) Arc<SnapshotView>, pub(crate) Option<Arc<AccessGate>>);

impl Snapshot {
    /// Creates the snapshot of a view for the program itself.
    pub(crate) fn from_view(view: SnapshotView) -> Self {
        Self(Arc::new(view), None)
    }

    /// Returns the hash of the pinned root. Pending edits of a session do not change it.
    #[must_use]
    pub fn root_id(&self) -> ChunkId {
        self.0.root_id
    }

    /// Returns the hash of the pinned root if visibility depends on it alone; `None` if permissions of a newer state of
    /// `main` also apply.
    #[must_use]
    pub fn visible_root_id(&self) -> Option<ChunkId> {
        let is_alone = self.1.as_ref().is_none_or(|gate| gate.is_state_only());
        is_alone.then_some(self.0.root_id)
    }

    /// Returns true if the snapshot shows what a viewer may read; false if it belongs to the program itself.
    #[inline]
    #[must_use]
    pub fn has_viewer(&self) -> bool {
        self.1.is_some()
    }

    /// Returns true if policies may hide something from the snapshot's viewer.
    #[must_use]
    pub fn is_restricted(&self) -> bool {
        self.1.as_ref().is_some_and(|gate| !gate.is_unrestricted())
    }

    /// Returns the state that the session of this snapshot began with, for the same viewer. Indexes contain only what
    /// is committed.
    #[must_use]
    pub fn without_pending_edits(&self) -> Self {
        if self.0.record_edits.is_empty() {
            return self.clone();
        }
        let mut view = (*self.0).clone();
        view.record_edits = RecordEdits::default();
        view.order_edits = OrderEdits::default();
        Self(Arc::new(view), self.1.clone())
    }

    /// Opens the bytes of a blob.
    ///
    /// # Errors
    /// [`Error::BlobMissing`]; errors of the blob store.
    pub fn open_blob(&self, blob: &BlobId) -> Result<BlobContent> {
        self.0.repository_state.blobs.open(blob)?.ok_or(Error::BlobMissing(*blob))
    }

    /// Returns true if this is currently the newest state of `main`.
    ///
    /// # Errors
    /// If the store fails.
    pub fn is_newest(&self) -> Result<bool> {
        Ok(self.0.repository_state.chunks.read_ref(MAIN_BRANCH)? == Some(self.0.root_id))
    }

    /// Records a read failure. Only the first failure is kept.
    pub(crate) fn record_failure(&self, error: Error) {
        drop(self.0.first_failure.set(Arc::new(error)));
    }

    /// Returns the first failure to load a body, if any; a response produced from this snapshot is then invalid.
    #[must_use]
    pub fn failure(&self) -> Option<&Error> {
        self.0.first_failure.get().map(|error| &**error)
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({})", self.0.root_id)
    }
}
