//! Common code of content followers: rounds until a stop, and changes after a stored cursor.
//!
//! Invariants
//! * A failure is reported once, however many rounds it lasts, and again only after a successful round.
//! * A stop ends the wait between two rounds at once.

use std::time::Duration;

use tokio::sync::watch;
use tracing::{error, warn};
use tympan_content::{
    ChangeCursor, ChangeFilter, ChangePage, Error as ContentError, Repository, Viewer,
};
use tympan_notation::error_chain_text;

use crate::Result;

/// The rounds of one follower. The wait between two rounds is determined by the first of them.
#[derive(Debug)]
pub struct FollowerLoop {
    /// The subject of the follower, for the log.
    subject: &'static str,
    stop: watch::Receiver<bool>,
    /// Delay after a failure.
    failure_delay: Duration,
    is_failing: bool,
}

impl FollowerLoop {
    /// Creates a loop whose rounds continue until `stop` turns true.
    #[must_use]
    pub fn new(subject: &'static str, stop: watch::Receiver<bool>, failing: Duration) -> Self {
        Self { subject, stop, failure_delay: failing, is_failing: false }
    }

    /// Returns true if no further round may start.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Ends a round, with the delay until the next one or the reason of its failure, and waits.
    pub async fn finish_round(&mut self, result: Result<Duration, String>) {
        let wait = match result {
            Ok(wait) => {
                self.is_failing = false;
                wait
            }
            Err(reason) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    error!(reason, "cannot follow content changes for {}", self.subject);
                }
                self.failure_delay
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = self.stop.changed() => {}
        }
    }
}

/// Changes for a follower, or its start position.
#[derive(Debug)]
pub enum ChangesAfterCursor {
    /// Changes after the cursor, in order.
    Changes(ChangePage),
    /// There was no cursor yet, or history does not reach back to it: the first cursor to store.
    Start(ChangeCursor),
}

/// Reads at most about `limit` changed nodes after a stored cursor. A cursor that history no longer contains is
/// reported in the log.
///
/// # Errors
/// If the cursor is malformed, or content fails.
pub fn read_changes_after(
    repository: &Repository,
    stored: Option<&str>,
    limit: usize,
    subject: &'static str,
) -> Result<ChangesAfterCursor> {
    let Some(stored) = stored else {
        return Ok(ChangesAfterCursor::Start(repository.newest_cursor()?));
    };
    let cursor: ChangeCursor = stored.parse()?;
    match repository.changes(&Viewer::system(), &cursor, &ChangeFilter::default(), limit) {
        Ok(page) => Ok(ChangesAfterCursor::Changes(page)),
        Err(lost @ ContentError::CursorLost { .. }) => {
            warn!(reason = error_chain_text(&lost), "{subject} missed changes; starting over");
            Ok(ChangesAfterCursor::Start(repository.newest_cursor()?))
        }
        Err(failure) => Err(failure.into()),
    }
}
