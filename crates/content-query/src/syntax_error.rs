//! The description and position of an error in the text of a query.

use std::fmt;

/// A syntax error in the text of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuerySyntaxError {
    /// The position, in characters, counted from 1.
    pub column: usize,
    /// What was expected at the position, or what to use instead.
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
