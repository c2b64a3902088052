//! Determines the outcome of a commit whose connection was lost.
//!
//! A commit that updates refs writes a token in its transaction. A process that does not know the outcome writes the
//! same token in a transaction of its own. That write waits while the first transaction is still open, and fails if the
//! commit succeeded. If the write succeeds, the commit can never succeed. So the outcome is always definite.

use std::sync::Arc;
use std::time::Duration;

use super::database_error::database_error;
use super::store_state::PostgresStoreState;
use crate::error::Result;

/// The delay before the next query for an outcome.
const OUTCOME_RETRY_DELAY: Duration = Duration::from_millis(50);

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
