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
pub struct Snapshot {
    /// The state, with the pending edits of a session.
    pub(crate) view: Arc<SnapshotView>,
    /// Limits reading to what the viewer may see; `None` for the program itself.
    pub(crate) access_gate: Option<Arc<AccessGate>>,
}

impl Snapshot {
    /// Creates the snapshot of a view for the program itself.
    pub(crate) fn from_view(view: SnapshotView) -> Self {
        Self { view: Arc::new(view), access_gate: None }
    }

    /// Returns this state without access restrictions.
    pub(crate) fn unrestricted(&self) -> Self {
        self.with_access_gate(None)
    }

    /// Returns this state as an access gate shows it.
    pub(crate) fn with_access_gate(&self, access_gate: Option<Arc<AccessGate>>) -> Self {
        Self { view: Arc::clone(&self.view), access_gate }
    }

    /// Returns the hash of the pinned root. Pending edits of a session do not change it.
    #[must_use]
    pub fn root_id(&self) -> ChunkId {
        self.view.root_id
    }

    /// Returns the hash of the pinned root if visibility depends on it alone; `None` if permissions of a newer state of
    /// `main` also apply.
    #[must_use]
    pub fn visible_root_id(&self) -> Option<ChunkId> {
        let is_alone = self.access_gate.as_ref().is_none_or(|gate| gate.is_state_only());
        is_alone.then_some(self.view.root_id)
    }

    /// Returns true if the snapshot shows what a viewer may read; false if it belongs to the program itself.
    #[inline]
    #[must_use]
    pub fn has_viewer(&self) -> bool {
        self.access_gate.is_some()
    }

    /// Returns the gate that decides about single nodes; `None` if all of them are visible.
    pub(super) fn node_gate(&self) -> Option<&Arc<AccessGate>> {
        self.access_gate.as_ref().filter(|_| !self.view.is_detached)
    }

    /// Returns true if policies may hide something from the snapshot's viewer.
    #[must_use]
    pub fn is_restricted(&self) -> bool {
        self.access_gate.as_ref().is_some_and(|gate| !gate.is_unrestricted())
    }

    /// Returns the state that the session of this snapshot began with, for the same viewer. Indexes contain only what
    /// is committed.
    #[must_use]
    pub fn without_pending_edits(&self) -> Self {
        if self.view.record_edits.is_empty() {
            return self.clone();
        }
        let mut view = (*self.view).clone();
        view.record_edits = RecordEdits::default();
        view.order_edits = OrderEdits::default();
        Self { view: Arc::new(view), access_gate: self.access_gate.clone() }
    }

    /// Opens the bytes of a blob.
    ///
    /// # Errors
    /// [`Error::BlobMissing`]; errors of the blob store.
    pub fn open_blob(&self, blob: &BlobId) -> Result<BlobContent> {
        self.view.repository_state.blobs.open(blob)?.ok_or(Error::BlobMissing(*blob))
    }

    /// Returns true if this is currently the newest state of `main`.
    ///
    /// # Errors
    /// If the store fails.
    pub fn is_newest(&self) -> Result<bool> {
        Ok(self.view.repository_state.chunks.read_ref(MAIN_BRANCH)? == Some(self.view.root_id))
    }

    /// Records a read failure. Only the first failure is kept.
    pub(crate) fn record_failure(&self, error: Error) {
        drop(self.view.first_failure.set(Arc::new(error)));
    }

    /// Returns the first failure to load a body, if any; a response produced from this snapshot is then invalid.
    #[must_use]
    pub fn failure(&self) -> Option<&Error> {
        self.view.first_failure.get().map(|error| &**error)
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({})", self.view.root_id)
    }
}
