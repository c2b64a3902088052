//! What is wrong with the text of a query, and where.

use std::fmt;

/// A fault in the text of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuerySyntaxError {
    /// Where it is, in characters, counted from 1.
    pub column: usize,
    /// What was expected there, or what to do instead.
    pub message: String,
}

impl QuerySyntaxError {
    pub(crate) fn new(column: usize, message: impl Into<String>) -> Self {
        Self { column, message: message.into() }
    }
}

impl fmt::Display for QuerySyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.message)
    }
}

impl std::error::Error for QuerySyntaxError {}
