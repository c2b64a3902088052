//! The tokens by which the outcome of a commit is determined (`commit_outcome`).

use std::collections::BTreeSet;

use parking_lot::Mutex;

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
