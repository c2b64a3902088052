//! The errors of homes.

use std::error::Error as StdError;

/// The reason why a home cannot be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration, what the caller named, or the state of a folder: a person must change it first.
    #[error("{0}")]
    Refused(String),
    /// The system, a store or another machine failed.
    #[error("{action}")]
    Failed {
        /// What failed, and where.
        action: String,
        /// The cause, if it is another error.
        #[source]
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The chunk store failed.
    #[error(transparent)]
    Store(Box<tympan_store::Error>),
    /// A blob storage failed.
    #[error(transparent)]
    Blobs(Box<tympan_blobs::Error>),
    /// The content failed.
    #[error(transparent)]
    Content(Box<tympan_content::Error>),
    /// The queues in the state database failed.
    #[error(transparent)]
    Jobs(Box<tympan_jobs::Error>),
}

/// The result of an operation on a home.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn refused(reason: impl Into<String>) -> Self {
        Self::Refused(reason.into())
    }

    pub(crate) fn failed(
        action: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::Failed { action: action.into(), source: Some(source.into()) }
    }

    pub(crate) fn failed_alone(action: impl Into<String>) -> Self {
        Self::Failed { action: action.into(), source: None }
    }
}

impl From<tympan_store::Error> for Error {
    fn from(error: tympan_store::Error) -> Self {
        Self::Store(Box::new(error))
    }
}

impl From<tympan_blobs::Error> for Error {
    fn from(error: tympan_blobs::Error) -> Self {
        Self::Blobs(Box::new(error))
    }
}

impl From<tympan_content::Error> for Error {
    fn from(error: tympan_content::Error) -> Self {
        Self::Content(Box::new(error))
    }
}

impl From<tympan_jobs::Error> for Error {
    fn from(error: tympan_jobs::Error) -> Self {
        Self::Jobs(Box::new(error))
    }
}
