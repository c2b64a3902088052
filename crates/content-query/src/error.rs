//! Errors of queries, one variant for each different decision of the caller.

use crate::syntax_error::QuerySyntaxError;

/// The result of every fallible operation in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a query.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text of a query is invalid.
    #[error("the query is not valid at {0}")]
    Syntax(#[from] QuerySyntaxError),
    /// The full-text index failed.
    #[error("cannot query the full-text index")]
    FullText(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A query exceeded a resource limit.
    #[error("the query was stopped: {limit}; narrow it, or raise the limit")]
    QueryLimit {
        /// The limit.
        limit: String,
    },
    /// A query cannot be run as written.
    #[error("the query cannot be run: {reason}")]
    QueryRefused {
        /// The reason.
        reason: String,
    },
    /// Reading content failed.
    #[error(transparent)]
    Content(#[from] tympan_content::Error),
}

impl Error {
    /// Returns true if a retry can succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Content(error) if error.is_transient())
    }
}
