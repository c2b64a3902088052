//! The state onto which a commit is staged.

use std::sync::Arc;

use tympan_store::{ChunkId, StoreRoot};

use crate::document::record_key::CONTENT_MAP;
use crate::repository::repository_state::RepositoryState;
use crate::snapshot::SnapshotView;
use crate::{Error, Result};

/// Opens the state that the branch will name once everything staged is written.
pub(crate) fn open_staged_head(
    staged: &Arc<RepositoryState>,
    root: Option<ChunkId>,
) -> Result<SnapshotView> {
    let root = root.ok_or(Error::MissingContentMap(ChunkId::from_bytes([0; 32])))?;
    let maps = StoreRoot::read(staged.chunk_reader(), &root)?.maps;
    let content = maps.get(CONTENT_MAP).copied().ok_or(Error::MissingContentMap(root))?;
    Ok(SnapshotView::new(staged.clone(), root, content))
}
