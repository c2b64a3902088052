//! The change feed: the changes of each revision, node by node, in order and exactly once.
//!
//! In: a [`ChangeCursor`], which names the last revision that a follower has consumed, and a [`ChangeFilter`]. Out: a
//! [`ChangePage`] of later changes with the user and time of each commit, and the cursor after them.
//!
//! Invariants
//! * A follower that continues with the cursor of each page gets every change exactly once, in the order of commits,
//!   and within a commit in the order of documents. The cursor is its only state.
//! * A cursor names the revision's number *and* its root. A cursor of another repository, of a restored older state, or
//!   of a revision that is no longer retained is refused and never mistaken for another one.
//! * A page ends after a complete document. It may exceed its limit by the content of that document. The cursor names
//!   no document that is hidden from the viewer, but it does reveal that a commit happened.
//!
//! On failure: [`Error::CursorLost`] names the start of the retained history and the cursor to begin again with.
//!
//! Not here: waiting for changes and sending them (`server`).

mod change_cursor;
mod change_filter;
mod document_difference;
mod document_move;
pub(crate) mod move_cache;
pub(crate) mod node_change;
pub(crate) mod recent_revisions;

use std::sync::Arc;
use std::time::SystemTime;

use tympan_store::{ChunkId, ReadChunks, Revision, SortedMap, StoreRoot};

pub use self::change_cursor::ChangeCursor;
pub use self::change_filter::ChangeFilter;
use self::document_difference::{ChangedDocuments, FollowerSnapshots};
use self::node_change::NodeChange;
use crate::document::record_key::CONTENT_MAP;
use crate::error::LostCursor;
use crate::{Error, Repository, Result, Snapshot, Viewer};

/// Maximum number of documents that one page compares; then it ends at the next revision, however few documents the
/// filter accepts.
const MAX_COMPARED_DOCUMENTS: usize = 100_000;
/// Maximum number of changed nodes that are checked before a revision's message is shown to the user of a conflict.
const MAX_MESSAGE_CHECK_NODES: usize = 1_000;
/// Maximum number of revisions that one page reads.
const MAX_PAGE_REVISIONS: usize = 10_000;

/// The changes of one commit, or the part of them on this page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionChanges {
    /// The revision's number.
    pub sequence: u64,
    /// The time of the commit.
    pub time: SystemTime,
    /// The user who committed.
    pub user: String,
    /// The message in the history; `None` if it may reveal hidden content to the follower.
    pub message: Option<String>,
    /// The root of the revision.
    pub root: ChunkId,
    /// The cursor after these changes.
    pub cursor: ChangeCursor,
    /// The changed nodes.
    pub changes: Vec<NodeChange>,
}

/// A page of changes, with the cursor to continue from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangePage {
    /// Revisions with changes that the filter accepts.
    pub revisions: Vec<RevisionChanges>,
    /// The cursor after everything that was read.
    pub next: ChangeCursor,
    /// True if that is the newest revision.
    pub is_end: bool,
}

impl Repository {
    /// Returns the cursor after the newest revision, for a follower that has consumed the current state.
    ///
    /// # Errors
    /// If the store fails.
    pub fn newest_cursor(&self) -> Result<ChangeCursor> {
        let newest = self.0.chunks.ref_history(&self.0.branch, None, 1)?;
        newest
            .first()
            .and_then(ChangeCursor::after_revision)
            .ok_or_else(|| self.missing_history_error())
    }

    /// Returns the cursor of the oldest revision after which every revision is retained.
    ///
    /// # Errors
    /// If the store fails.
    pub fn oldest_cursor(&self) -> Result<ChangeCursor> {
        let all = self.0.chunks.ref_history(&self.0.branch, None, usize::MAX)?;
        let newer = all.iter().zip(all.iter().skip(1));
        let chain =
            newer.take_while(|(newer, older)| newer.update.expected_root == older.update.new_root);
        let oldest = chain.map(|(_, older)| older).last().or(all.first());
        oldest.and_then(ChangeCursor::after_revision).ok_or_else(|| self.missing_history_error())
    }

    /// Returns the changes after a cursor that the viewer may see, for about `limit` nodes at most.
    ///
    /// # Errors
    /// [`Error::CursorLost`] if the history does not reach from the cursor to the newest revision; errors of the store.
    pub fn changes(
        &self,
        viewer: &Viewer,
        since: &ChangeCursor,
        filter: &ChangeFilter,
        limit: usize,
    ) -> Result<ChangePage> {
        let (revisions, is_whole) = self.revisions_after(since)?;
        let mut feed = ChangePageBuilder {
            repository: self,
            viewer,
            filter,
            remaining: limit.max(1),
            compared_count: 0,
            page: ChangePage { revisions: Vec::new(), next: since.clone(), is_end: false },
        };
        for revision in &revisions {
            match feed.add_revision(revision) {
                Ok(RevisionCoverage::Complete) => {}
                Ok(RevisionCoverage::Partial) => return Ok(feed.page),
                Err(error) => return Err(self.explain_missing_state(error, revision, since)),
            }
            if feed.remaining == 0 || feed.compared_count >= MAX_COMPARED_DOCUMENTS {
                break;
            }
        }
        let last = revisions.last().map_or(since.sequence, |last| last.sequence);
        feed.page.is_end = is_whole && feed.page.next.sequence >= last;
        Ok(feed.page)
    }

    /// Returns the message of a revision if the viewer may see everything that the revision changed.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn visible_message(&self, viewer: &Viewer, sequence: u64) -> Result<Option<String>> {
        let history = self.0.chunks.ref_history(&self.0.branch, sequence.checked_add(1), 1)?;
        let Some(revision) = history.first().filter(|entry| entry.sequence == sequence) else {
            return Ok(None);
        };
        let Some(from) = revision.update.expected_root else { return Ok(None) };
        let next = ChangeCursor::after_whole_revision(sequence.saturating_sub(1), from);
        let mut feed = ChangePageBuilder {
            repository: self,
            viewer,
            filter: &ChangeFilter::default(),
            remaining: MAX_MESSAGE_CHECK_NODES,
            compared_count: 0,
            page: ChangePage { revisions: Vec::new(), next, is_end: false },
        };
        feed.add_revision(revision)?;
        Ok(feed.page.revisions.pop().and_then(|feed_revision| feed_revision.message))
    }

    /// Returns the revisions after a cursor, each of which begins where the previous one ends, and true if these are
    /// all.
    fn revisions_after(&self, since: &ChangeCursor) -> Result<(Vec<Arc<Revision>>, bool)> {
        let (chunks, branch) = (&*self.0.chunks, self.0.branch.as_str());
        let cached_revisions = self.0.recent_revisions.with_updated(chunks, branch, |recent| {
            let at =
                recent.binary_search_by_key(&since.sequence, |revision| revision.sequence).ok()?;
            Some(recent.range(at..).take(MAX_PAGE_REVISIONS + 1).cloned().collect::<Vec<_>>())
        })?;
        let mut revisions = match cached_revisions {
            Some(cached_revisions) => cached_revisions,
            None => {
                // Older than the cached revisions, or of an unknown revision.
                let all = chunks.ref_history(branch, None, usize::MAX)?;
                let newer_revisions =
                    all.into_iter().take_while(|revision| revision.sequence >= since.sequence);
                let mut newer_revisions: Vec<_> = newer_revisions.map(Arc::new).collect();
                newer_revisions.reverse();
                newer_revisions.truncate(MAX_PAGE_REVISIONS + 1);
                newer_revisions
            }
        };
        let is_there = revisions.first().is_some_and(|first| {
            first.sequence == since.sequence && first.update.new_root == Some(since.root)
        });
        if !is_there {
            return Err(self.lost_cursor_error(since)?);
        }
        let is_chained = revisions.iter().zip(revisions.iter().skip(1)).all(|(older, newer)| {
            newer.update.expected_root == older.update.new_root && newer.update.new_root.is_some()
        });
        if !is_chained {
            return Err(self.lost_cursor_error(since)?);
        }
        let is_whole = revisions.len() <= MAX_PAGE_REVISIONS;
        revisions.remove(0);
        Ok((revisions, is_whole))
    }

    /// Returns the error for a cursor that the history does not reach.
    fn lost_cursor_error(&self, cursor: &ChangeCursor) -> Result<Error> {
        let (oldest, newest) = (self.oldest_cursor()?, self.newest_cursor()?);
        let fault = if cursor.sequence < oldest.sequence {
            "it is older than the retained history"
        } else if cursor.sequence > newest.sequence {
            "it is newer than this repository's history, so it belongs to another repository or to a state \
             before a restore"
        } else {
            "it does not belong to this repository's history"
        };
        let (cursor, oldest) = (cursor.to_string(), oldest.to_string());
        Ok(Error::CursorLost(Box::new(LostCursor {
            cursor,
            reason: fault,
            oldest,
            newest: newest.to_string(),
            root: newest.root,
        })))
    }

    /// Distinguishes a state that has been collected from one that should exist.
    fn explain_missing_state(
        &self,
        error: Error,
        revision: &Revision,
        since: &ChangeCursor,
    ) -> Error {
        let is_missing =
            |error: &tympan_store::Error| matches!(error, tympan_store::Error::ChunkMissing { .. });
        if !matches!(&error, Error::Store(error) if is_missing(error)) {
            return error;
        }
        let history = self.0.chunks.ref_history(&self.0.branch, Some(revision.sequence + 1), 2);
        let is_kept = history.is_ok_and(|revisions| {
            revisions.len() == 2
                && revisions.first().is_some_and(|newest| newest.sequence == revision.sequence)
        });
        if is_kept { error } else { self.lost_cursor_error(since).unwrap_or_else(|error| error) }
    }

    fn missing_history_error(&self) -> Error {
        Error::MissingContentMap(ChunkId::from_bytes([0; 32]))
    }
}

/// The extent to which a revision fitted on a page.
enum RevisionCoverage {
    Complete,
    Partial,
}

/// A page under construction.
struct ChangePageBuilder<'a> {
    repository: &'a Repository,
    viewer: &'a Viewer,
    filter: &'a ChangeFilter,
    remaining: usize,
    compared_count: usize,
    page: ChangePage,
}

impl ChangePageBuilder<'_> {
    /// Adds the changes of a revision, from the position of the page's cursor in it.
    fn add_revision(&mut self, revision: &Revision) -> Result<RevisionCoverage> {
        let (Some(from), Some(to)) = (revision.update.expected_root, revision.update.new_root)
        else {
            return Ok(RevisionCoverage::Complete);
        };
        // Pin before reading anything: a state that an earlier collection removed is then found missing and reported.
        let chunks = &self.repository.0.chunks;
        let _pins = (chunks.pin_root(from), chunks.pin_root(to));
        let maps = (content_map_of(&**chunks, &from)?, content_map_of(&**chunks, &to)?);
        let follower_snapshots = self.follower_snapshots(from, to)?;
        let mut documents = ChangedDocuments::open(
            self.repository,
            (from, to),
            maps,
            follower_snapshots,
            &self.page.next,
        )?;
        let mut changes = Vec::new();
        let mut coverage = RevisionCoverage::Complete;
        while let Some(key) = documents.advance()? {
            self.compared_count += 1;
            let before = changes.len();
            documents.collect_changes(self.filter, &mut changes)?;
            self.remaining = self.remaining.saturating_sub(changes.len() - before);
            if self.remaining == 0 && documents.has_more() && documents.is_key_visible(&key)? {
                self.page.next.is_reorder_reported = documents.is_reorder_reported(&key)?;
                self.page.next.last_document_key = Some(key);
                documents.cache_moves();
                coverage = RevisionCoverage::Partial;
                break;
            }
        }
        let message = documents
            .visible_message(&revision.update.message, self.page.next.last_document_key.is_some());
        if matches!(coverage, RevisionCoverage::Complete) {
            self.page.next = ChangeCursor::after_whole_revision(revision.sequence, to);
        }
        if !changes.is_empty() {
            self.page.revisions.push(RevisionChanges {
                cursor: self.page.next.clone(),
                sequence: revision.sequence,
                time: revision.update.updated_at,
                user: revision.update.author.clone(),
                message,
                root: to,
                changes,
            });
        }
        Ok(coverage)
    }

    /// Opens two states as the viewer sees them; `None` if the viewer sees everything.
    fn follower_snapshots(&self, from: ChunkId, to: ChunkId) -> Result<Option<FollowerSnapshots>> {
        if self.viewer.is_system() {
            return Ok(None);
        }
        let follower_snapshot = |root| -> Result<Snapshot> {
            Ok(self.repository.snapshot_at(root)?.as_viewer(self.viewer))
        };
        Ok(Some(FollowerSnapshots {
            snapshot_before: follower_snapshot(from)?,
            snapshot_after: follower_snapshot(to)?,
        }))
    }
}

fn content_map_of(reads: &dyn ReadChunks, root: &ChunkId) -> Result<SortedMap> {
    StoreRoot::read(reads, root)?
        .maps
        .get(CONTENT_MAP)
        .copied()
        .ok_or(Error::MissingContentMap(*root))
}
