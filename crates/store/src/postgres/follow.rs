//! Where refs are, kept in memory for as long as the database says when they move.
//!
//! One connection listens. Each commit sends the ref, its new root, and the number of the revision. When that connection
//! is lost, or silent for longer than this process' own heartbeat allows, refs are asked for one by one until it is back
//! and all of them have been read again.
//!
//! Invariants
//! * A move is applied only over an older one, so that what comes late or twice changes nothing.
//! * Moves of this process are known at once, also those that are made while the refs are read again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Executor, Row};

use super::read::root_of;
use super::{Shared, failed};
use crate::error::Result;
use crate::id::ChunkId;

/// How long to wait before the next try to listen.
const PAUSE: Duration = Duration::from_millis(200);
/// After how many heartbeats without any word the connection counts as lost.
const SILENT_BEATS: u32 = 3;
/// Stands between the parts of a message; names hold no control characters.
const SEPARATOR: char = '\u{1f}';

/// The refs, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Followed(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_live: bool,
    known: HashMap<String, Place>,
    /// The moves since the refs began to be read again.
    meanwhile: Vec<Move>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    root: Option<ChunkId>,
    sequence: i64,
}

/// A ref's move, done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) name: String,
    pub(super) root: Option<ChunkId>,
    /// The number of the revision.
    pub(super) sequence: i64,
}

impl Move {
    /// The message that tells others.
    pub(super) fn to_message(&self) -> String {
        let root = self.root.map(|root| root.to_string()).unwrap_or_default();
        format!("{}{SEPARATOR}{root}{SEPARATOR}{}", self.name, self.sequence)
    }

    fn from_message(message: &str) -> Option<Self> {
        let mut parts = message.split(SEPARATOR);
        let (name, root, sequence) = (parts.next()?, parts.next()?, parts.next()?);
        let root = if root.is_empty() { None } else { Some(root.parse().ok()?) };
        Some(Self { name: name.to_owned(), root, sequence: sequence.parse().ok()? })
    }
}

impl Followed {
    pub(super) fn is_live(&self) -> bool {
        self.0.lock().is_live
    }

    /// Returns where a ref is; `None` if that has to be asked.
    #[expect(clippy::option_option, reason = "unknown and absent are two things")]
    pub(super) fn find(&self, name: &str) -> Option<Option<ChunkId>> {
        let state = self.0.lock();
        state.is_live.then(|| state.known.get(name).and_then(|place| place.root))
    }

    /// Returns all refs, sorted by name; `None` if they have to be asked for.
    pub(super) fn all(&self) -> Option<Vec<(String, ChunkId)>> {
        let state = self.0.lock();
        if !state.is_live {
            return None;
        }
        let present =
            state.known.iter().filter_map(|(name, place)| Some((name.clone(), place.root?)));
        let mut all: Vec<_> = present.collect();
        drop(state);
        all.sort_unstable();
        Some(all)
    }

    /// Notes moves that are done.
    pub(super) fn note(&self, moves: impl IntoIterator<Item = Move>) {
        let mut state = self.0.lock();
        for one in moves {
            if !state.is_live {
                state.meanwhile.push(one.clone());
            }
            state.apply(one);
        }
    }

    fn lose(&self) {
        let mut state = self.0.lock();
        state.is_live = false;
        state.meanwhile.clear();
    }

    /// Takes over what has been read, with the moves since.
    fn replace(&self, known: HashMap<String, Place>) {
        let mut state = self.0.lock();
        state.known = known;
        for one in std::mem::take(&mut state.meanwhile) {
            state.apply(one);
        }
        state.is_live = true;
    }
}

impl State {
    fn apply(&mut self, one: Move) {
        let Move { name, root, sequence } = one;
        let place = Place { root, sequence };
        let known = self.known.entry(name).or_insert(place);
        if known.sequence < sequence {
            *known = place;
        }
    }
}

/// Listens for as long as the store lives.
pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        if let Err(error) = listen(&shared).await {
            tracing::debug!(reason = %error, "refs are asked for one by one");
        }
        shared.refs.lose();
        tokio::time::sleep(PAUSE).await;
    }
}

/// Listens until the connection is lost.
async fn listen(shared: &Shared) -> Result<()> {
    let failed = failed("cannot listen for moves of refs");
    // A pool of its own: a connection that is dead without a word takes no place among others.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(shared.options.wait)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(shared.connect.clone());
    let mut listener = PgListener::connect_with(&pool).await.map_err(&failed)?;
    listener.eager_reconnect(false);
    listener.listen(&shared.channel()).await.map_err(&failed)?;
    // What moves from here on is told; the moves of before are read.
    let schema = &shared.options.schema;
    let query = format!("select name, root, sequence from \"{schema}\".ref");
    let rows =
        listener.fetch_all(sqlx::query(sqlx::AssertSqlSafe(query))).await.map_err(&failed)?;
    let mut known = HashMap::with_capacity(rows.len());
    for row in &rows {
        let name: String = row.try_get(0).map_err(&failed)?;
        let sequence = row.try_get(2).map_err(&failed)?;
        known.insert(name, Place { root: root_of(row, 1)?, sequence });
    }
    shared.refs.replace(known);
    let silence = shared.options.heartbeat * SILENT_BEATS;
    while let Ok(heard) = tokio::time::timeout(silence, listener.try_recv()).await {
        let Some(notification) = heard.map_err(&failed)? else {
            return Ok(());
        };
        shared.refs.note(Move::from_message(notification.payload()));
    }
    Ok(())
}

impl Shared {
    /// The channel on which moves are told.
    pub(super) fn channel(&self) -> String {
        format!("tympan_{}", self.options.schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(name: &str, root: Option<&[u8]>, sequence: i64) -> Move {
        Move { name: name.to_owned(), root: root.map(ChunkId::of), sequence }
    }

    #[test]
    fn messages_are_read_back() {
        for one in [moved("main", Some(b"a"), 7), moved("a/b c é", None, i64::MAX)] {
            assert_eq!(Move::from_message(&one.to_message()), Some(one));
        }
        for message in ["", "beat", "main\u{1f}zz\u{1f}1", "main\u{1f}\u{1f}x"] {
            assert_eq!(Move::from_message(message), None, "{message:?}");
        }
    }

    #[test]
    fn late_and_repeated_moves_change_nothing() {
        let refs = Followed::default();
        assert_eq!(refs.find("main"), None, "nothing is known yet");
        // A move of this process comes while the refs are read, which do not show it.
        refs.note([moved("main", Some(b"new"), 5)]);
        let old = Place { root: Some(ChunkId::of(b"old")), sequence: 4 };
        refs.replace(HashMap::from([("main".to_owned(), old), ("gone".to_owned(), old)]));
        assert_eq!(refs.find("main"), Some(Some(ChunkId::of(b"new"))));
        refs.note([moved("gone", None, 6), moved("gone", Some(b"old"), 4)]);
        refs.note([moved("main", Some(b"old"), 4), moved("main", Some(b"new"), 5)]);
        assert_eq!(refs.all(), Some(vec![("main".to_owned(), ChunkId::of(b"new"))]));
        refs.lose();
        assert_eq!(refs.all(), None);
    }
}
