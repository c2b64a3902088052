//! Moves, derived from identifiers: a removed document and a new one with the same `jcr:uuid` are the same document.

use std::collections::HashMap;

use tympan_store::{MapValue, SortedMap};

use crate::change_feed::move_cache::DocumentMoves;
use crate::document::record::ContentRecord;
use crate::model::subtree::JCR_CONTENT;
use crate::snapshot::SnapshotView;
use crate::{Result, Subtree, document::record_key};

/// A revision that removes more documents than this is not searched for moves.
const MAX_REMOVED_DOCUMENTS: usize = 10_000;

impl DocumentMoves {
    /// Finds the moves between two states. Bodies are read only if documents were both removed and added.
    pub(crate) fn detect(
        before: &SnapshotView,
        after: &SnapshotView,
        maps: (SortedMap, SortedMap),
    ) -> Result<Self> {
        let mut removed = Vec::new();
        for change in maps.0.diff(&maps.1, before.repository_state.chunk_reader()) {
            let change = change?;
            if let (Some(old), None) = (change.left, change.right) {
                removed.push((change.key, old));
            }
            if removed.len() > MAX_REMOVED_DOCUMENTS {
                return Ok(Self::default());
            }
        }
        let mut moves = Self::default();
        let mut removed_paths = HashMap::new();
        for (key, stored) in &removed {
            if let Some(identifier) = document_identifier(before, key, stored)? {
                removed_paths.insert(identifier, record_key::record_path(key)?);
            }
        }
        // New documents are read one by one, and only until every removed document is found: there may be a million of
        // them.
        let mut changes = maps.0.diff(&maps.1, before.repository_state.chunk_reader());
        while !removed_paths.is_empty() {
            let Some(change) = changes.next().transpose()? else { break };
            let (None, Some(stored)) = (change.left, change.right) else { continue };
            let key = &change.key;
            let identifier = document_identifier(after, key, &stored)?;
            if let Some(from) = identifier.and_then(|identifier| removed_paths.remove(&identifier))
            {
                let to = record_key::record_path(key)?;
                moves.origin_by_target.insert(to.clone(), from.clone());
                moves.target_by_origin.insert(from, to);
            }
        }
        Ok(moves)
    }
}

/// Returns the identifier of a document: its own, or that of its content.
fn document_identifier(
    view: &SnapshotView,
    key: &[u8],
    stored: &MapValue,
) -> Result<Option<String>> {
    let path = record_key::record_path(key)?;
    let Some(record) = ContentRecord::decode(stored) else { return Ok(None) };
    let body = view.load_body(&record, &path)?;
    let own = |tree: &Subtree| tree.text("jcr:uuid").map(str::to_owned);
    let tree = body.subtree(body.root());
    Ok(own(&tree).or_else(|| tree.child(JCR_CONTENT).and_then(own)))
}
