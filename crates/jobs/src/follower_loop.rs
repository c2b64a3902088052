//! What everything that follows content has in common: rounds until a stop, and changes behind a stored cursor.
//!
//! Invariants
//! * A failure is told once, however many rounds it lasts, and again after a round that went well.
//! * A stop ends the wait between two rounds at once.

use std::time::Duration;

use tokio::sync::watch;
use tracing::{error, warn};
use tympan_content::{
    ChangeCursor, ChangeFilter, ChangePage, Error as ContentError, Repository, Viewer,
};

use crate::{Result, format_error_chain};

/// The rounds of one follower. Between two of them it waits as long as the last one says.
#[derive(Debug)]
pub struct FollowerLoop {
    /// What is followed, for the log.
    subject: &'static str,
    stop: watch::Receiver<bool>,
    /// How long it waits after a failure.
    failure_delay: Duration,
    is_failing: bool,
}

impl FollowerLoop {
    /// Begins rounds that last until `stop` turns true.
    #[must_use]
    pub fn new(what: &'static str, stop: watch::Receiver<bool>, failing: Duration) -> Self {
        Self { subject: what, stop, failure_delay: failing, is_failing: false }
    }

    /// Tells whether there is to be no further round.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Ends a round with how long to wait for the next one, or with why it failed, and waits.
    pub async fn finish_round(&mut self, round: Result<Duration, String>) {
        let wait = match round {
            Ok(wait) => {
                self.is_failing = false;
                wait
            }
            Err(reason) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    error!(reason, "{} cannot follow content", self.subject);
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

/// Changes that a follower reads, or the place where it begins.
#[derive(Debug)]
pub enum ChangesAfterCursor {
    /// Changes behind the cursor, in order.
    Changes(ChangePage),
    /// There was no cursor yet, or history does not reach back to it: what is to be stored as the first one.
    Start(ChangeCursor),
}

/// Reads at most about `limit` changed nodes behind a stored cursor. A cursor that history has lost is told in the log.
///
/// # Errors
/// If the cursor is malformed, or content fails.
pub fn read_changes_after(
    repository: &Repository,
    stored: Option<&str>,
    limit: usize,
    what: &'static str,
) -> Result<ChangesAfterCursor> {
    let Some(stored) = stored else {
        return Ok(ChangesAfterCursor::Start(repository.newest_cursor()?));
    };
    let cursor: ChangeCursor = stored.parse()?;
    match repository.changes(&Viewer::system(), &cursor, &ChangeFilter::default(), limit) {
        Ok(page) => Ok(ChangesAfterCursor::Changes(page)),
        Err(lost @ ContentError::CursorLost { .. }) => {
            warn!(reason = format_error_chain(&lost), "{what} missed changes and begin anew");
            Ok(ChangesAfterCursor::Start(repository.newest_cursor()?))
        }
        Err(failure) => Err(failure.into()),
    }
}
