//! Whether a commit was done of which the connection was lost.
//!
//! A commit that moves refs writes a token in its transaction. Whoever does not know the outcome writes the same token
//! alone: that waits while the transaction is still open, is refused if it was done, and, if it succeeds, keeps the
//! transaction from ever being done. So there is no third answer, and no guess.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{PostgresStoreState, database_error};
use crate::error::Result;

/// How long to wait before the database is asked again.
const OUTCOME_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The tokens of commits whose outcome this process may still ask for.
#[derive(Debug, Default)]
pub(super) struct CommitTokens(Mutex<(i64, BTreeSet<i64>)>);

impl CommitTokens {
    /// Begins a try of a commit.
    pub(super) fn begin_token(&self) -> i64 {
        let mut tokens = self.0.lock();
        tokens.0 += 1;
        let number = tokens.0;
        tokens.1.insert(number);
        number
    }

    /// Says that the outcome is known.
    pub(super) fn end_token(&self, number: i64) {
        self.0.lock().1.remove(&number);
    }

    /// Tells whether an outcome is open.
    pub(super) fn has_open_token(&self) -> bool {
        !self.0.lock().1.is_empty()
    }

    /// Returns the number below which no outcome is open.
    pub(super) fn first_open_token(&self) -> i64 {
        let tokens = self.0.lock();
        tokens.1.first().copied().unwrap_or(tokens.0 + 1)
    }
}

/// What became of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostgresCommitOutcome {
    Committed,
    /// It is not done and never will be.
    NotCommitted,
}

impl PostgresStoreState {
    /// Finds the outcome of a commit within the configured wait.
    pub(super) async fn find_outcome(&self, number: i64) -> Option<PostgresCommitOutcome> {
        self.counters.outcome_lookups.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let found = async {
            loop {
                match self.query_outcome(number).await {
                    Ok(outcome) => break outcome,
                    Err(error) => tracing::debug!(reason = %error, "the outcome is asked again"),
                }
                tokio::time::sleep(OUTCOME_RETRY_DELAY).await;
            }
        };
        tokio::time::timeout(self.options.wait_timeout, found).await.ok()
    }

    /// Goes on to find the outcome of a commit after its caller has left.
    pub(super) async fn find_outcome_later(self: Arc<Self>, number: i64, name: String) {
        let outcome = loop {
            // On a connection that says nothing more, the answer would never come.
            let patience = self.options.statement_timeout.max(self.options.wait_timeout);
            match tokio::time::timeout(patience, self.query_outcome(number)).await {
                Ok(Ok(outcome)) => break outcome,
                Ok(Err(_)) | Err(_) => tokio::time::sleep(OUTCOME_RETRY_DELAY * 10).await,
            }
        };
        self.process.tokens.end_token(number);
        let is_done = outcome == PostgresCommitOutcome::Committed;
        tracing::info!(name, is_done, "the outcome of a commit is known now");
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
                // Whatever is wrong with this connection, the next try takes another.
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
