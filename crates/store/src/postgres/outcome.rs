//! Whether a commit was done of which the connection was lost.
//!
//! A commit that moves refs writes a token in its transaction. Whoever does not know the outcome writes the same token
//! alone: that waits while the transaction is still open, is refused if it was done, and, if it succeeds, keeps the
//! transaction from ever being done. So there is no third answer, and no guess.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Shared, failed};
use crate::error::Result;

/// How long to wait before the database is asked again.
const PAUSE: Duration = Duration::from_millis(50);

/// The tokens of commits whose outcome this process may still ask for.
#[derive(Debug, Default)]
pub(super) struct Tokens(Mutex<(i64, BTreeSet<i64>)>);

impl Tokens {
    /// Begins a try of a commit.
    pub(super) fn begin(&self) -> i64 {
        let mut tokens = self.0.lock();
        tokens.0 += 1;
        let number = tokens.0;
        tokens.1.insert(number);
        number
    }

    /// Says that the outcome is known.
    pub(super) fn end(&self, number: i64) {
        self.0.lock().1.remove(&number);
    }

    /// Tells whether an outcome is open.
    pub(super) fn has_open(&self) -> bool {
        !self.0.lock().1.is_empty()
    }

    /// Returns the number below which no outcome is open.
    pub(super) fn first_open(&self) -> i64 {
        let tokens = self.0.lock();
        tokens.1.first().copied().unwrap_or(tokens.0 + 1)
    }
}

/// What became of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// It is not done and never will be.
    NotDone,
}

impl Shared {
    /// Finds the outcome of a commit within the configured wait.
    pub(super) async fn find_outcome(&self, number: i64) -> Option<Outcome> {
        self.counts.outcomes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let found = async {
            loop {
                match self.settle(number).await {
                    Ok(outcome) => break outcome,
                    Err(error) => tracing::debug!(reason = %error, "the outcome is asked again"),
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::time::timeout(self.options.wait, found).await.ok()
    }

    /// Goes on to find the outcome of a commit after its caller has left.
    pub(super) async fn find_outcome_later(self: Arc<Self>, number: i64, name: String) {
        let outcome = loop {
            // On a connection that says nothing more, the answer would never come.
            let patience = self.options.statement_timeout.max(self.options.wait);
            match tokio::time::timeout(patience, self.settle(number)).await {
                Ok(Ok(outcome)) => break outcome,
                Ok(Err(_)) | Err(_) => tokio::time::sleep(PAUSE * 10).await,
            }
        };
        self.process.tokens.end(number);
        let is_done = outcome == Outcome::Done;
        tracing::info!(name, is_done, "the outcome of a commit is known now");
    }

    async fn settle(&self, number: i64) -> Result<Outcome> {
        let failed = failed("cannot find the outcome of a commit");
        let mut connection = self.side.acquire().await.map_err(&failed)?;
        let fence = "insert into token (process, number) values ($1, $2) on conflict do nothing";
        let fence = sqlx::query(fence).bind(self.process.id()).bind(number);
        match fence.execute(&mut *connection).await {
            Ok(done) if done.rows_affected() == 0 => Ok(Outcome::Done),
            Ok(_) => Ok(Outcome::NotDone),
            Err(source) => {
                // Whatever is wrong with this connection, the next try takes another.
                self.lose(connection);
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
        let tokens = Tokens::default();
        assert_eq!(tokens.first_open(), 1);
        let (first, second) = (tokens.begin(), tokens.begin());
        tokens.end(second);
        assert_eq!(tokens.first_open(), first);
        tokens.end(first);
        assert_eq!(tokens.first_open(), second + 1);
    }
}
