//! Moves, derived from identifiers: a document that is gone and one that is new with the same `jcr:uuid` are one.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tympan_store::{Map, Value as Stored};

use crate::record::Record;
use crate::snapshot::View;
use crate::subtree::JCR_CONTENT;
use crate::{NodePath, Result, Subtree, keys};

/// A revision that takes more documents away than this is not searched for moves.
const MAX_REMOVED: usize = 10_000;

/// Where documents have gone and come from in one revision.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// From the new path to the old one.
    pub(crate) origins: HashMap<NodePath, NodePath>,
    /// From the old path to the new one.
    pub(crate) targets: HashMap<NodePath, NodePath>,
}

/// The moves of the revision that was last read in part.
#[derive(Debug, Default)]
pub(crate) struct KnownMoves(Mutex<Option<Known>>);

/// The content before and after a revision, and where documents went in it.
#[derive(Debug)]
struct Known {
    maps: (Map, Map),
    moves: Arc<Moves>,
}

impl KnownMoves {
    pub(crate) fn find(&self, maps: (Map, Map)) -> Option<Arc<Moves>> {
        let known = self.0.lock();
        known.as_ref().filter(|known| known.maps == maps).map(|known| known.moves.clone())
    }

    pub(crate) fn keep(&self, maps: (Map, Map), moves: Arc<Moves>) {
        *self.0.lock() = Some(Known { maps, moves });
    }
}

impl Moves {
    /// Finds the moves between two states. Bodies are read only where documents both went and came.
    pub(crate) fn find(before: &View, after: &View, maps: (Map, Map)) -> Result<Self> {
        let mut removed = Vec::new();
        for change in maps.0.diff(&maps.1, before.shared.reads()) {
            let change = change?;
            if let (Some(old), None) = (change.left, change.right) {
                removed.push((change.key, old));
            }
            if removed.len() > MAX_REMOVED {
                return Ok(Self::default());
            }
        }
        let mut moves = Self::default();
        let mut gone = HashMap::new();
        for (key, stored) in &removed {
            if let Some(identifier) = identifier(before, key, stored)? {
                gone.insert(identifier, keys::path_of(key)?);
            }
        }
        // New documents are looked at one by one, and only while one that is gone has not been found again: there may be
        // a million of them.
        let mut changes = maps.0.diff(&maps.1, before.shared.reads());
        while !gone.is_empty() {
            let Some(change) = changes.next().transpose()? else { break };
            let (None, Some(stored)) = (change.left, change.right) else { continue };
            let key = &change.key;
            let identifier = identifier(after, key, &stored)?;
            if let Some(from) = identifier.and_then(|identifier| gone.remove(&identifier)) {
                let to = keys::path_of(key)?;
                moves.origins.insert(to.clone(), from.clone());
                moves.targets.insert(from, to);
            }
        }
        Ok(moves)
    }
}

/// Returns the identifier of a document: its own, or that of its content.
fn identifier(view: &View, key: &[u8], stored: &Stored) -> Result<Option<String>> {
    let path = keys::path_of(key)?;
    let Some(record) = Record::decode(stored) else { return Ok(None) };
    let body = view.body(&record, &path)?;
    let own = |tree: &Subtree| tree.text("jcr:uuid").map(str::to_owned);
    let tree = body.subtree(body.root());
    Ok(own(&tree).or_else(|| tree.child(JCR_CONTENT).and_then(own)))
}
