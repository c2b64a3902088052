//! The roots of refs, cached in memory for as long as the database sends notifications of updates.
//!
//! One connection listens. Each commit sends the ref, its new root, and the number of the revision. If that connection
//! is lost, or silent for longer than the heartbeat interval of this process allows, refs are queried one by one until
//! the connection is back and all refs have been read again.
//!
//! Invariants
//! * An update is applied only over an older one, so late or duplicate messages change nothing.
//! * Updates of this process are visible at once, also those made while the refs are read again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Executor, Row};

use super::store_query::root_from_row;
use super::{PostgresStoreState, database_error};
use crate::error::Result;
use crate::id::ChunkId;

/// The delay before the next attempt to listen.
const RECONNECT_DELAY: Duration = Duration::from_millis(200);
/// The number of heartbeat intervals without any message after which the connection counts as lost.
const MAX_MISSED_HEARTBEATS: u32 = 3;
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

#[derive(Clone, Copy, Debug)]
struct RefPosition {
    root: Option<ChunkId>,
    sequence: i64,
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

    fn from_message(message: &str) -> Option<Self> {
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

    fn mark_disconnected(&self) {
        let mut state = self.0.lock();
        state.is_live = false;
        state.pending_moves.clear();
    }

    /// Replaces the cached refs with those read from the database, and applies the updates since.
    fn replace_positions(&self, positions: HashMap<String, RefPosition>) {
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

/// Listens for as long as the store lives.
pub(super) async fn run_ref_listener(shared: Arc<PostgresStoreState>) {
    loop {
        if let Err(error) = listen_for_moves(&shared).await {
            tracing::debug!(reason = %error, "cannot listen for moves of refs; reading refs one by one");
        }
        shared.ref_cache.mark_disconnected();
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}

/// Listens until the connection is lost.
async fn listen_for_moves(shared: &PostgresStoreState) -> Result<()> {
    let failed = database_error("cannot listen for moves of refs");
    // The listener has a pool of its own, so that a dead connection occupies no slot among the others.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(shared.options.wait_timeout)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(shared.connect_options.clone());
    let mut listener = PgListener::connect_with(&pool).await.map_err(&failed)?;
    listener.eager_reconnect(false);
    listener.listen(&shared.notification_channel()).await.map_err(&failed)?;
    // Updates from here on are notified; earlier ones are read.
    let schema = &shared.options.schema;
    let query = format!("select name, root, sequence from \"{schema}\".ref");
    let rows =
        listener.fetch_all(sqlx::query(sqlx::AssertSqlSafe(query))).await.map_err(&failed)?;
    let mut positions = HashMap::with_capacity(rows.len());
    for row in &rows {
        let name: String = row.try_get(0).map_err(&failed)?;
        let sequence = row.try_get(2).map_err(&failed)?;
        positions.insert(name, RefPosition { root: root_from_row(row, 1)?, sequence });
    }
    shared.ref_cache.replace_positions(positions);
    let silence = shared.options.heartbeat_interval * MAX_MISSED_HEARTBEATS;
    while let Ok(event) = tokio::time::timeout(silence, listener.try_recv()).await {
        let Some(notification) = event.map_err(&failed)? else {
            return Ok(());
        };
        shared.ref_cache.record_moves(RefMove::from_message(notification.payload()));
    }
    Ok(())
}

impl PostgresStoreState {
    /// Returns the channel on which updates are notified.
    pub(super) fn notification_channel(&self) -> String {
        format!("tympan_{}", self.options.schema)
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
