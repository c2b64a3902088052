//! The cache of the moves in a revision that is read page by page.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tympan_store::SortedMap;

use crate::NodePath;

/// The moves of documents in one revision.
#[derive(Debug, Default)]
pub(crate) struct DocumentMoves {
    /// From the new path to the old one.
    pub(crate) origin_by_target: HashMap<NodePath, NodePath>,
    /// From the old path to the new one.
    pub(crate) target_by_origin: HashMap<NodePath, NodePath>,
}

/// The moves of the revision that was last read in part.
#[derive(Debug, Default)]
pub(crate) struct MoveCache(Mutex<Option<CachedMoves>>);

/// The content before and after a revision, and the moves in it.
#[derive(Debug)]
struct CachedMoves {
    content_maps: (SortedMap, SortedMap),
    moves: Arc<DocumentMoves>,
}

impl MoveCache {
    pub(crate) fn get(&self, maps: (SortedMap, SortedMap)) -> Option<Arc<DocumentMoves>> {
        let cache = self.0.lock();
        cache
            .as_ref()
            .filter(|cached| cached.content_maps == maps)
            .map(|cached| cached.moves.clone())
    }

    pub(crate) fn insert(&self, maps: (SortedMap, SortedMap), moves: Arc<DocumentMoves>) {
        *self.0.lock() = Some(CachedMoves { content_maps: maps, moves });
    }
}
