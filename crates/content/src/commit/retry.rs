//! Retries: an edit that conflicts with other commits is repeated on the newest state.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::{Error, Repository, Result, RevisionDetails, Session};

/// Increment of the wait before each further attempt, and the maximum wait.
const RETRY_BACKOFF_STEP: Duration = Duration::from_millis(1);
const MAX_RETRY_BACKOFF: Duration = Duration::from_millis(50);

impl Repository {
    /// Makes an edit and commits it; if that fails because of concurrent changes, repeats the edit on the newest state.
    /// For edits that depend on the current state, such as choosing the next free name.
    ///
    /// # Errors
    /// Errors of `edit` and of the commit; after the last attempt, its conflicts.
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
    /// Does the same as [`Repository::commit_with_retry`] in an existing session, whose pending edits are dropped
    /// first. The user is that of the session.
    ///
    /// # Errors
    /// Errors of `edit` and of the commit; after the last attempt, its conflicts.
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
            // The conflicting commit may not be durable yet, and becomes visible only then.
            wait = (wait + RETRY_BACKOFF_STEP).min(MAX_RETRY_BACKOFF);
            std::thread::sleep(wait);
        }
    }
}

/// Returns true if the edit may succeed when repeated on the newest state.
fn is_retryable(error: &Error) -> bool {
    matches!(error, Error::Conflicts(_)) || error.is_transient()
}
