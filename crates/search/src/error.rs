//! The errors of the index, one variant for each different decision of the caller.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tantivy::TantivyError;
use tantivy::directory::error::OpenReadError;
use tympan_content_query::Error as QueryError;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the full-text index.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no index to search yet.
    #[error("the full-text index is being built: {done} of {total} documents are read")]
    Building {
        /// The number of documents read.
        done: u64,
        /// The number of documents in the indexed state.
        total: u64,
    },
    /// The files of the index cannot be written or read, for a reason outside of them.
    #[error("cannot {action} the full-text index at `{}`", dir.display())]
    FileAccess {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The folder.
        dir: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The files of the index are damaged; it has to be rebuilt.
    #[error("the full-text index is damaged: {0}; it is being rebuilt")]
    Damaged(String),
    /// The request is invalid.
    #[error("the full-text query cannot be run: {0}")]
    Refused(&'static str),
    /// Content cannot be read.
    #[error(transparent)]
    Content(#[from] tympan_content::Error),
    /// A query that the request belongs to cannot be continued.
    #[error(transparent)]
    Query(QueryError),
}

impl Error {
    /// Returns true if a retry may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Building { .. } | Self::FileAccess { .. } => true,
            Self::Damaged(_) | Self::Refused(_) => false,
            Self::Content(error) => error.is_transient(),
            Self::Query(error) => error.is_transient(),
        }
    }

    /// Creates the error for a failed access to the files of the index.
    pub(crate) fn index_access(action: &'static str, dir: &Path, error: TantivyError) -> Self {
        let is_damage = match &error {
            TantivyError::DataCorruption(_)
            | TantivyError::IncompatibleIndex(_)
            | TantivyError::SchemaError(_)
            | TantivyError::FieldNotFound(_)
            | TantivyError::DeserializeError(_) => true,
            TantivyError::OpenReadError(error) => !matches!(error, OpenReadError::IoError { .. }),
            // Truncated or invalid bytes mean damage; other I/O errors may be transient.
            TantivyError::IoError(error) => {
                matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof)
            }
            _ => false,
        };
        if is_damage {
            return Self::Damaged(error.to_string());
        }
        Self::FileAccess { action, dir: dir.to_owned(), source: Box::new(error) }
    }

    /// Creates the error for a failed access to a file beside the index.
    pub(crate) fn file_access(action: &'static str, dir: &Path, error: std::io::Error) -> Self {
        Self::FileAccess { action, dir: dir.to_owned(), source: Box::new(error) }
    }
}

impl From<QueryError> for Error {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Content(error) => Self::Content(error),
            error => Self::Query(error),
        }
    }
}

impl From<Error> for QueryError {
    fn from(error: Error) -> Self {
        match error {
            Error::Content(error) => Self::Content(error),
            Error::Query(error) => error,
            Error::Refused(reason) => Self::QueryRefused { reason: reason.to_owned() },
            error => Self::FullText(Box::new(error)),
        }
    }
}
