//! The errors of the ledger.

use std::path::PathBuf;

/// The result of everything here that can fail.
pub type LedgerResult<T, E = LedgerError> = std::result::Result<T, E>;

/// An error of the ledger.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// Content could not be compared.
    #[error("cannot compare the two states of content")]
    Comparison(#[source] Box<crate::Error>),
    /// The database could not be read or written.
    #[error("cannot {action} the ledger of page dependencies")]
    Database {
        /// The attempted action.
        action: &'static str,
        /// The cause.
        source: sqlx::Error,
    },
    /// The journal of URLs whose rows are not stored yet cannot be used.
    #[error("cannot use `{}`, which names the recently rendered URLs", file.display())]
    JournalFile {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}
