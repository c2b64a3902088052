//! Trying again: an edit that others got in the way of is made anew on the newest state.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::{Error, Repository, Result, RevisionDetails, Session};

/// How much longer to wait before each further attempt, and how long at most.
const RETRY_BACKOFF_STEP: Duration = Duration::from_millis(1);
const MAX_RETRY_BACKOFF: Duration = Duration::from_millis(50);

impl Repository {
    /// Makes an edit and commits it; if that fails because others changed the same, makes it anew on the newest state.
    /// For edits that depend on what they find, such as taking the next free name.
    ///
    /// # Errors
    /// What `edit` or the commit fails with; after the last attempt, its conflicts.
    pub fn commit_with_retry<T>(
        &self,
        attempts: NonZeroUsize,
        revising: RevisionDetails<'_>,
        edit: impl FnMut(&mut Session) -> Result<T>,
    ) -> Result<T> {
        self.session(revising.user)?.commit_with_retry(attempts, revising, edit)
    }
}

impl Session {
    /// Does the same as [`Repository::commit_with_retry`] in a session that exists, which drops its pending edits first. The user
    /// is the session's own.
    ///
    /// # Errors
    /// What `edit` or the commit fails with; after the last attempt, its conflicts.
    pub fn commit_with_retry<T>(
        &mut self,
        attempts: NonZeroUsize,
        revising: RevisionDetails<'_>,
        mut edit: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let mut left = attempts.get();
        let mut wait = Duration::ZERO;
        loop {
            self.refresh()?;
            left -= 1;
            let made = edit(self)?;
            match self.commit(revising.message, revising.time) {
                Ok(_) => return Ok(made),
                Err(error) if left > 0 && is_retryable(&error) => {}
                Err(error) => return Err(error),
            }
            // What was in the way may not be durable yet, and is seen only then.
            wait = (wait + RETRY_BACKOFF_STEP).min(MAX_RETRY_BACKOFF);
            std::thread::sleep(wait);
        }
    }
}

/// Tells whether an edit made anew on the newest state may go through.
fn is_retryable(error: &Error) -> bool {
    matches!(error, Error::Conflicts(_)) || error.is_transient()
}
