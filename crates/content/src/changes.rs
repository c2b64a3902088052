//! The change feed: what each revision changed, node by node, in order and exactly once.
//!
//! In: a [`Cursor`], which names the last revision that a follower has digested, and a [`ChangeFilter`]. Out: a
//! [`ChangePage`] of later changes with the user and time of each commit, and the cursor behind them.
//!
//! Invariants
//! * A follower that asks again with the cursor of each page meets every change exactly once, in the order of commits;
//!   within a commit in the order of documents. The cursor is all that it has to keep.
//! * A cursor names the revision's number *and* the root it led to, so that one of another repository, of a restored
//!   older state, or of a revision that is not kept any more is refused and never taken for another.
//! * A page ends behind a whole document. It may exceed its limit by what that document holds. The cursor names no
//!   document that the viewer does not see; that something was committed, it tells.
//!
//! On failure: [`Error::CursorLost`] says from where on history is kept and where to begin again.
//!
//! Not here: waiting for changes and sending them (`server`).

mod cursor;
mod difference;
mod filter;
mod moves;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use tympan_store::{ChunkId, ChunkStore, Map, ReadChunks, Revision, Root};

pub use self::cursor::Cursor;
use self::difference::{Documents, Sight};
pub use self::filter::ChangeFilter;
pub(crate) use self::moves::KnownMoves;
use crate::repository::CONTENT;
use crate::{Error, NodePath, Repository, Result, Snapshot, Viewer};

/// Revisions that a process remembers, newest last: about 200 bytes each.
const MAX_RECENT: usize = 65_536;
/// Documents that one page compares before it ends at the next revision, however few of them the filter lets through.
const MAX_COMPARED: usize = 100_000;
/// Changed nodes of a revision whose message is told to whoever has a conflict with it.
const MAX_TOLD: usize = 1_000;
/// Revisions that one page goes through.
const MAX_REVISIONS: usize = 10_000;

/// What became of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeedKind {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// Its properties are others.
    Changed,
    /// It has come from another place, and may have been changed with that.
    Moved,
    /// Its children have another order.
    Reordered,
}

impl FeedKind {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::Added, Self::Removed, Self::Changed, Self::Moved, Self::Reordered];

    /// Returns the word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
            Self::Moved => "moved",
            Self::Reordered => "reordered",
        }
    }

    /// Finds the kind with this name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// One changed node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeChange {
    /// What became of it.
    pub kind: FeedKind,
    /// Where it is; where it was if it is gone.
    pub path: NodePath,
    /// Where it came from, if it was moved.
    pub from: Option<NodePath>,
    /// Its primary type; the last one it had if it is gone.
    pub node_type: String,
    /// Its properties that differ, by name; all of a new node, none of one that is gone.
    pub properties: Vec<PropertyChange>,
}

/// One changed property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyChange {
    /// The property.
    pub name: String,
    /// [`FeedKind::Added`], [`FeedKind::Changed`] or [`FeedKind::Removed`].
    pub kind: FeedKind,
}

/// What one commit changed, as far as a page reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionChanges {
    /// The revision's number.
    pub sequence: u64,
    /// When it was made.
    pub at: SystemTime,
    /// Who made it.
    pub user: String,
    /// What the history says about it; nothing where it may tell what the follower must not know.
    pub message: Option<String>,
    /// The state that it led to.
    pub root: ChunkId,
    /// The cursor behind these changes.
    pub cursor: Cursor,
    /// The changed nodes.
    pub changes: Vec<NodeChange>,
}

/// Some changes, and where to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangePage {
    /// Revisions with changes that the filter lets through.
    pub revisions: Vec<RevisionChanges>,
    /// The cursor behind everything that was looked at.
    pub next: Cursor,
    /// Whether that is the newest revision.
    pub is_end: bool,
}

/// The newest revisions of a branch, remembered so that a follower who reads page by page costs what it reads.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<VecDeque<Arc<Revision>>>);

impl Recent {
    /// Takes up what was committed since the last call, then gives a part of the list.
    fn with<T>(
        &self,
        chunks: &dyn ChunkStore,
        branch: &str,
        read: impl FnOnce(&VecDeque<Arc<Revision>>) -> T,
    ) -> Result<T> {
        let mut known = self.0.lock();
        let newest = known.back().map(|one| one.sequence);
        let mut step = 16;
        loop {
            let found = chunks.history(branch, None, step)?;
            let is_all = found.len() < step || step >= MAX_RECENT;
            let is_met = found.iter().any(|one| Some(one.sequence) == newest);
            if !is_all && !is_met {
                step *= 8;
                continue;
            }
            if !is_met {
                // Nothing known is in the history any more, or this is the first call.
                known.clear();
            }
            let new = found.into_iter().take_while(|one| !is_met || Some(one.sequence) > newest);
            let new: Vec<_> = new.map(Arc::new).collect();
            known.extend(new.into_iter().rev());
            while known.len() > MAX_RECENT {
                known.pop_front();
            }
            return Ok(read(&known));
        }
    }
}

impl Repository {
    /// Returns the cursor behind the newest revision: a follower that has digested the present state goes on from here.
    ///
    /// # Errors
    /// If the store fails.
    pub fn newest_cursor(&self) -> Result<Cursor> {
        let newest = self.0.chunks.history(&self.0.branch, None, 1)?;
        newest.first().and_then(Cursor::behind).ok_or_else(|| self.nothing())
    }

    /// Returns the cursor of the oldest revision from which every later one is kept.
    ///
    /// # Errors
    /// If the store fails.
    pub fn oldest_cursor(&self) -> Result<Cursor> {
        let all = self.0.chunks.history(&self.0.branch, None, usize::MAX)?;
        let newer = all.iter().zip(all.iter().skip(1));
        let chain = newer.take_while(|(newer, older)| newer.update.expected == older.update.new);
        let oldest = chain.map(|(_, older)| older).last().or(all.first());
        oldest.and_then(Cursor::behind).ok_or_else(|| self.nothing())
    }

    /// Returns what was changed behind a cursor, as far as a viewer may know, at most about `limit` nodes.
    ///
    /// # Errors
    /// [`Error::CursorLost`] if the history does not reach from the cursor to now; errors of the store.
    pub fn changes(
        &self,
        viewer: &Viewer,
        since: &Cursor,
        filter: &ChangeFilter,
        limit: usize,
    ) -> Result<ChangePage> {
        let (revisions, is_whole) = self.revisions_behind(since)?;
        let mut feed = Feed {
            repository: self,
            viewer,
            filter,
            left: limit.max(1),
            compared: 0,
            page: ChangePage { revisions: Vec::new(), next: since.clone(), is_end: false },
        };
        for revision in &revisions {
            match feed.take(revision) {
                Ok(Taken::Whole) => {}
                Ok(Taken::Part) => return Ok(feed.page),
                Err(error) => return Err(self.explain_missing(error, revision, since)),
            }
            if feed.left == 0 || feed.compared >= MAX_COMPARED {
                break;
            }
        }
        let last = revisions.last().map_or(since.sequence, |last| last.sequence);
        feed.page.is_end = is_whole && feed.page.next.sequence >= last;
        Ok(feed.page)
    }

    /// Returns what the history says about a revision, if the viewer may know of everything that it changed.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn message_for(&self, viewer: &Viewer, sequence: u64) -> Result<Option<String>> {
        let history = self.0.chunks.history(&self.0.branch, sequence.checked_add(1), 1)?;
        let Some(revision) = history.first().filter(|one| one.sequence == sequence) else {
            return Ok(None);
        };
        let Some(from) = revision.update.expected else { return Ok(None) };
        let next = Cursor::whole(sequence.saturating_sub(1), from);
        let mut feed = Feed {
            repository: self,
            viewer,
            filter: &ChangeFilter::default(),
            left: MAX_TOLD,
            compared: 0,
            page: ChangePage { revisions: Vec::new(), next, is_end: false },
        };
        feed.take(revision)?;
        Ok(feed.page.revisions.pop().and_then(|told| told.message))
    }

    /// Returns the revisions behind a cursor, each of which begins where the one before it ends, and whether these are
    /// all.
    fn revisions_behind(&self, since: &Cursor) -> Result<(Vec<Arc<Revision>>, bool)> {
        let (chunks, branch) = (&*self.0.chunks, self.0.branch.as_str());
        let found = self.0.recent.with(chunks, branch, |recent| {
            let at = recent.binary_search_by_key(&since.sequence, |one| one.sequence).ok()?;
            Some(recent.range(at..).take(MAX_REVISIONS + 1).cloned().collect::<Vec<_>>())
        })?;
        let mut revisions = match found {
            Some(found) => found,
            None => {
                // Older than what is remembered, or of no known revision.
                let all = chunks.history(branch, None, usize::MAX)?;
                let known = all.into_iter().take_while(|one| one.sequence >= since.sequence);
                let mut known: Vec<_> = known.map(Arc::new).collect();
                known.reverse();
                known.truncate(MAX_REVISIONS + 1);
                known
            }
        };
        let is_there = revisions.first().is_some_and(|first| {
            first.sequence == since.sequence && first.update.new == Some(since.root)
        });
        if !is_there {
            return Err(self.lost(since)?);
        }
        let is_chained = revisions.iter().zip(revisions.iter().skip(1)).all(|(older, newer)| {
            newer.update.expected == older.update.new && newer.update.new.is_some()
        });
        if !is_chained {
            return Err(self.lost(since)?);
        }
        let is_whole = revisions.len() <= MAX_REVISIONS;
        revisions.remove(0);
        Ok((revisions, is_whole))
    }

    /// Says what is wrong with a cursor that the history does not reach.
    fn lost(&self, cursor: &Cursor) -> Result<Error> {
        let (oldest, newest) = (self.oldest_cursor()?, self.newest_cursor()?);
        let fault = if cursor.sequence < oldest.sequence {
            "it is older than the history that is kept"
        } else if cursor.sequence > newest.sequence {
            "it is ahead of this repository, so it belongs to another one or to a state before a restore"
        } else {
            "it is of another history than this repository's"
        };
        let (cursor, oldest) = (cursor.to_string(), oldest.to_string());
        Ok(Error::CursorLost {
            cursor,
            fault,
            oldest,
            newest: newest.to_string(),
            root: newest.root,
        })
    }

    /// Tells a state that was collected meanwhile from one that should be there.
    fn explain_missing(&self, error: Error, revision: &Revision, since: &Cursor) -> Error {
        if !matches!(&error, Error::Store(tympan_store::Error::ChunkMissing { .. })) {
            return error;
        }
        let history = self.0.chunks.history(&self.0.branch, Some(revision.sequence + 1), 2);
        let is_kept = history.is_ok_and(|kept| {
            kept.len() == 2 && kept.first().is_some_and(|one| one.sequence == revision.sequence)
        });
        if is_kept { error } else { self.lost(since).unwrap_or_else(|error| error) }
    }

    fn nothing(&self) -> Error {
        Error::NotContent(ChunkId::from_bytes([0; 32]))
    }
}

/// Whether a revision found room in a page.
enum Taken {
    Whole,
    Part,
}

/// A page that is being filled.
struct Feed<'a> {
    repository: &'a Repository,
    viewer: &'a Viewer,
    filter: &'a ChangeFilter,
    left: usize,
    compared: usize,
    page: ChangePage,
}

impl Feed<'_> {
    /// Adds the changes of a revision, from where the page's cursor stands in it.
    fn take(&mut self, revision: &Revision) -> Result<Taken> {
        let (Some(from), Some(to)) = (revision.update.expected, revision.update.new) else {
            return Ok(Taken::Whole);
        };
        // Pinned before anything is read: what a collection took before this is found missing and explained.
        let chunks = &self.repository.0.chunks;
        let _pins = (chunks.pin(from), chunks.pin(to));
        let maps = (content_of(&**chunks, &from)?, content_of(&**chunks, &to)?);
        let sight = self.sight(from, to)?;
        let mut documents =
            Documents::open(self.repository, (from, to), maps, (sight, &self.page.next))?;
        let mut changes = Vec::new();
        let mut taken = Taken::Whole;
        while let Some(key) = documents.advance()? {
            self.compared += 1;
            let before = changes.len();
            documents.compare(self.filter, &mut changes)?;
            self.left = self.left.saturating_sub(changes.len() - before);
            if self.left == 0 && documents.has_more() && documents.may_name(&key)? {
                self.page.next.is_reorder_told = documents.is_reorder_told(&key)?;
                self.page.next.inside = Some(key);
                documents.keep_moves();
                taken = Taken::Part;
                break;
            }
        }
        let message = documents.message(&revision.update.message, self.page.next.inside.is_some());
        if matches!(taken, Taken::Whole) {
            self.page.next = Cursor::whole(revision.sequence, to);
        }
        if !changes.is_empty() {
            self.page.revisions.push(RevisionChanges {
                cursor: self.page.next.clone(),
                sequence: revision.sequence,
                at: revision.update.at,
                user: revision.update.author.clone(),
                message,
                root: to,
                changes,
            });
        }
        Ok(taken)
    }

    /// Opens two states as the viewer sees them, unless it sees everything.
    fn sight(&self, from: ChunkId, to: ChunkId) -> Result<Option<Sight>> {
        if self.viewer.is_system() {
            return Ok(None);
        }
        let seen = |root| -> Result<Snapshot> {
            Ok(self.repository.snapshot_at(root)?.seen_by(self.viewer))
        };
        Ok(Some(Sight { before: seen(from)?, after: seen(to)? }))
    }
}

fn content_of(reads: &dyn ReadChunks, root: &ChunkId) -> Result<Map> {
    Root::read(reads, root)?.maps.get(CONTENT).copied().ok_or(Error::NotContent(*root))
}
