//! Errors of mounts and imports.

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a mount or an import.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The queues, or the ledger in their database, failed.
    #[error(transparent)]
    Jobs(#[from] tympan_jobs::Error),
    /// Content could not be read or changed.
    #[error(transparent)]
    Content(#[from] tympan_content::Error),
}

impl Error {
    /// Returns true if a retry can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Jobs(error) => error.is_transient(),
            Self::Content(error) => error.is_transient(),
        }
    }
}
