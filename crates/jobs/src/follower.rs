//! What everything that follows content has in common: rounds until a stop, and changes behind a stored cursor.
//!
//! Invariants
//! * A failure is told once, however many rounds it lasts, and again after a round that went well.
//! * A stop ends the wait between two rounds at once.

use std::time::Duration;

use tokio::sync::watch;
use tracing::{error, warn};
use tympan_content::{ChangeFilter, ChangePage, Cursor, Error as ContentError, Repository, Viewer};

use crate::{Result, chain};

/// The rounds of one follower. Between two of them it waits as long as the last one says.
#[derive(Debug)]
pub struct Rounds {
    /// What is followed, for the log.
    what: &'static str,
    stop: watch::Receiver<bool>,
    /// How long it waits after a failure.
    failing: Duration,
    is_failing: bool,
}

impl Rounds {
    /// Begins rounds that last until `stop` turns true.
    #[must_use]
    pub fn new(what: &'static str, stop: watch::Receiver<bool>, failing: Duration) -> Self {
        Self { what, stop, failing, is_failing: false }
    }

    /// Tells whether there is to be no further round.
    #[must_use]
    pub fn is_over(&self) -> bool {
        *self.stop.borrow()
    }

    /// Ends a round with how long to wait for the next one, or with why it failed, and waits.
    pub async fn end(&mut self, round: Result<Duration, String>) {
        let wait = match round {
            Ok(wait) => {
                self.is_failing = false;
                wait
            }
            Err(reason) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    error!(reason, "{} cannot follow content", self.what);
                }
                self.failing
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
pub enum Behind {
    /// Changes behind the cursor, in order.
    Changes(ChangePage),
    /// There was no cursor yet, or history does not reach back to it: what is to be stored as the first one.
    Begin(Cursor),
}

/// Reads at most about `limit` changed nodes behind a stored cursor. A cursor that history has lost is told in the log.
///
/// # Errors
/// If the cursor is malformed, or content fails.
pub fn changes_behind(
    repository: &Repository,
    stored: Option<&str>,
    limit: usize,
    what: &'static str,
) -> Result<Behind> {
    let Some(stored) = stored else { return Ok(Behind::Begin(repository.newest_cursor()?)) };
    let cursor: Cursor = stored.parse()?;
    match repository.changes(&Viewer::system(), &cursor, &ChangeFilter::default(), limit) {
        Ok(page) => Ok(Behind::Changes(page)),
        Err(lost @ ContentError::CursorLost { .. }) => {
            warn!(reason = chain(&lost), "{what} missed changes and begin anew");
            Ok(Behind::Begin(repository.newest_cursor()?))
        }
        Err(failure) => Err(failure.into()),
    }
}
