//! Determines the outcome of a commit whose connection was lost.
//!
//! A commit that updates refs writes a token in its transaction. A process that does not know the outcome writes the
//! same token in a transaction of its own. That write waits while the first transaction is still open, and fails if the
//! commit succeeded. If the write succeeds, the commit can never succeed. So the outcome is always definite.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{PostgresStoreState, database_error};
use crate::error::Result;

/// The delay before the next query for an outcome.
const OUTCOME_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The tokens of commits whose outcome this process may still query.
#[derive(Debug, Default)]
pub(super) struct CommitTokens(Mutex<(i64, BTreeSet<i64>)>);

impl CommitTokens {
    /// Begins an attempt to commit.
    pub(super) fn begin_token(&self) -> i64 {
        let mut tokens = self.0.lock();
        tokens.0 += 1;
        let number = tokens.0;
        tokens.1.insert(number);
        number
    }

    /// Marks the outcome as known.
    pub(super) fn end_token(&self, number: i64) {
        self.0.lock().1.remove(&number);
    }

    /// Returns true if an outcome is unknown.
    pub(super) fn has_open_token(&self) -> bool {
        !self.0.lock().1.is_empty()
    }

    /// Returns the number below which no outcome is unknown.
    pub(super) fn first_open_token(&self) -> i64 {
        let tokens = self.0.lock();
        tokens.1.first().copied().unwrap_or(tokens.0 + 1)
    }
}

/// The outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostgresCommitOutcome {
    Committed,
    /// The commit has failed and can no longer succeed.
    NotCommitted,
}

impl PostgresStoreState {
    /// Determines the outcome of a commit within the configured wait time.
    pub(super) async fn find_outcome(&self, number: i64) -> Option<PostgresCommitOutcome> {
        self.counters.outcome_lookups.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let lookup = async {
            loop {
                match self.query_outcome(number).await {
                    Ok(outcome) => break outcome,
                    Err(error) => {
                        tracing::debug!(reason = %error, "cannot query the outcome of a commit; \
                        retrying")
                    }
                }
                tokio::time::sleep(OUTCOME_RETRY_DELAY).await;
            }
        };
        tokio::time::timeout(self.options.wait_timeout, lookup).await.ok()
    }

    /// Continues to determine the outcome of a commit after its caller has returned.
    pub(super) async fn find_outcome_later(self: Arc<Self>, number: i64, name: String) {
        let outcome = loop {
            // On a connection that no longer responds, the result would never arrive.
            let query_timeout = self.options.statement_timeout.max(self.options.wait_timeout);
            match tokio::time::timeout(query_timeout, self.query_outcome(number)).await {
                Ok(Ok(outcome)) => break outcome,
                Ok(Err(_)) | Err(_) => tokio::time::sleep(OUTCOME_RETRY_DELAY * 10).await,
            }
        };
        self.process.tokens.end_token(number);
        let is_done = outcome == PostgresCommitOutcome::Committed;
        tracing::info!(name, is_done, "outcome of a commit is known");
    }

    async fn query_outcome(&self, number: i64) -> Result<PostgresCommitOutcome> {
        let failed = database_error("cannot find the outcome of a commit");
        let mut connection = self.side_pool.acquire().await.map_err(&failed)?;
        let fence = "insert into token (process, number) values ($1, $2) on conflict do nothing";
        let fence = sqlx::query(fence).bind(self.process.id()).bind(number);
        match fence.execute(&mut *connection).await {
            Ok(done) if done.rows_affected() == 0 => Ok(PostgresCommitOutcome::Committed),
            Ok(_) => Ok(PostgresCommitOutcome::NotCommitted),
            Err(source) => {
                // Whatever the fault of this connection, the next attempt uses another.
                self.discard_connection(connection);
                Err(failed(source))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_stay_open_until_their_outcome_is_known() {
        let tokens = CommitTokens::default();
        assert_eq!(tokens.first_open_token(), 1);
        let (first, second) = (tokens.begin_token(), tokens.begin_token());
        tokens.end_token(second);
        assert_eq!(tokens.first_open_token(), first);
        tokens.end_token(first);
        assert_eq!(tokens.first_open_token(), second + 1);
    }
}
