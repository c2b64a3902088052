//! The roots of refs, cached in memory for as long as the database sends notifications of updates.
//!
//! One connection listens (`ref_listener`). Each commit sends the ref, its new root, and the number of the revision. If
//! that connection is lost, or silent for longer than the heartbeat interval of this process allows, refs are queried
//! one by one until the connection is back and all refs have been read again.
//!
//! Invariants
//! * An update is applied only over an older one, so late or duplicate messages change nothing.
//! * Updates of this process are visible at once, also those made while the refs are read again.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::id::ChunkId;

/// The separator between the parts of a message; names contain no control characters.
const MESSAGE_SEPARATOR: char = '\u{1f}';

/// The known refs.
#[derive(Debug, Default)]
pub(super) struct RefCache(Mutex<RefCacheState>);

#[derive(Debug, Default)]
struct RefCacheState {
    is_live: bool,
    positions: HashMap<String, RefPosition>,
    /// The updates since the refs began to be read again.
    pending_moves: Vec<RefMove>,
}

/// The root of a ref, and the number of the revision that set it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefPosition {
    pub(super) root: Option<ChunkId>,
    pub(super) sequence: i64,
}

/// A completed update of a ref.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RefMove {
    pub(super) name: String,
    pub(super) root: Option<ChunkId>,
    /// The number of the revision.
    pub(super) sequence: i64,
}

impl RefMove {
    /// Returns the message that notifies other processes.
    pub(super) fn to_message(&self) -> String {
        let root = self.root.map(|root| root.to_string()).unwrap_or_default();
        format!("{}{MESSAGE_SEPARATOR}{root}{MESSAGE_SEPARATOR}{}", self.name, self.sequence)
    }

    /// Parses a message of [`RefMove::to_message`]; returns `None` for any other.
    pub(super) fn from_message(message: &str) -> Option<Self> {
        let mut parts = message.split(MESSAGE_SEPARATOR);
        let (name, root, sequence) = (parts.next()?, parts.next()?, parts.next()?);
        let root = if root.is_empty() { None } else { Some(root.parse().ok()?) };
        Some(Self { name: name.to_owned(), root, sequence: sequence.parse().ok()? })
    }
}

impl RefCache {
    pub(super) fn is_live(&self) -> bool {
        self.0.lock().is_live
    }

    /// Returns the root of a ref; `None` if it must be queried.
    #[expect(clippy::option_option, reason = "unknown and absent are two things")]
    pub(super) fn find_ref(&self, name: &str) -> Option<Option<ChunkId>> {
        let state = self.0.lock();
        state.is_live.then(|| state.positions.get(name).and_then(|position| position.root))
    }

    /// Returns all refs, sorted by name; `None` if they must be queried.
    pub(super) fn all_refs(&self) -> Option<Vec<(String, ChunkId)>> {
        let state = self.0.lock();
        if !state.is_live {
            return None;
        }
        let present = state
            .positions
            .iter()
            .filter_map(|(name, position)| Some((name.clone(), position.root?)));
        let mut all: Vec<_> = present.collect();
        drop(state);
        all.sort_unstable();
        Some(all)
    }

    /// Records completed updates.
    pub(super) fn record_moves(&self, moves: impl IntoIterator<Item = RefMove>) {
        let mut state = self.0.lock();
        for ref_move in moves {
            if !state.is_live {
                state.pending_moves.push(ref_move.clone());
            }
            state.apply_move(ref_move);
        }
    }

    /// Forgets that the cached refs are current.
    pub(super) fn mark_disconnected(&self) {
        let mut state = self.0.lock();
        state.is_live = false;
        state.pending_moves.clear();
    }

    /// Replaces the cached refs with those read from the database, and applies the updates since.
    pub(super) fn replace_positions(&self, positions: HashMap<String, RefPosition>) {
        let mut state = self.0.lock();
        state.positions = positions;
        for ref_move in std::mem::take(&mut state.pending_moves) {
            state.apply_move(ref_move);
        }
        state.is_live = true;
    }
}

impl RefCacheState {
    fn apply_move(&mut self, ref_move: RefMove) {
        let RefMove { name, root, sequence } = ref_move;
        let position = RefPosition { root, sequence };
        let entry = self.positions.entry(name).or_insert(position);
        if entry.sequence < sequence {
            *entry = position;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(name: &str, root: Option<&[u8]>, sequence: i64) -> RefMove {
        RefMove { name: name.to_owned(), root: root.map(ChunkId::hash_of), sequence }
    }

    #[test]
    fn messages_are_read_back() {
        for ref_move in [moved("main", Some(b"a"), 7), moved("a/b c é", None, i64::MAX)] {
            assert_eq!(RefMove::from_message(&ref_move.to_message()), Some(ref_move));
        }
        for message in ["", "beat", "main\u{1f}zz\u{1f}1", "main\u{1f}\u{1f}x"] {
            assert_eq!(RefMove::from_message(message), None, "{message:?}");
        }
    }

    #[test]
    fn late_and_repeated_moves_change_nothing() {
        let refs = RefCache::default();
        assert_eq!(refs.find_ref("main"), None, "nothing is known yet");
        // An update of this process arrives while the refs are read, and the read does not contain it.
        refs.record_moves([moved("main", Some(b"new"), 5)]);
        let old = RefPosition { root: Some(ChunkId::hash_of(b"old")), sequence: 4 };
        refs.replace_positions(HashMap::from([("main".to_owned(), old), ("gone".to_owned(), old)]));
        assert_eq!(refs.find_ref("main"), Some(Some(ChunkId::hash_of(b"new"))));
        refs.record_moves([moved("gone", None, 6), moved("gone", Some(b"old"), 4)]);
        refs.record_moves([moved("main", Some(b"old"), 4), moved("main", Some(b"new"), 5)]);
        assert_eq!(refs.all_refs(), Some(vec![("main".to_owned(), ChunkId::hash_of(b"new"))]));
        refs.mark_disconnected();
        assert_eq!(refs.all_refs(), None);
    }
}
