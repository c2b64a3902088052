//! The errors of saving and restoring homes.

/// The reason why a home is not saved or restored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request, or what it names, must be changed first.
    #[error("{0}")]
    Refused(String),
    /// The repository of a home or an instance cannot be read.
    #[error("cannot read the home `{home}`")]
    Read {
        /// The home.
        home: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file cannot be copied, read or written.
    #[error("{action}")]
    File {
        /// What failed, and the file.
        action: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The home failed.
    #[error(transparent)]
    Home(#[from] tympan_home::Error),
    /// The vault, or the source of a save, failed.
    #[error(transparent)]
    Backup(Box<tympan_backup::Error>),
    /// The chunk store failed.
    #[error(transparent)]
    Store(Box<tympan_store::Error>),
    /// The queues failed.
    #[error(transparent)]
    Jobs(Box<tympan_jobs::Error>),
}

/// The result of an operation on the backup of a home.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<tympan_backup::Error> for Error {
    fn from(error: tympan_backup::Error) -> Self {
        Self::Backup(Box::new(error))
    }
}

impl From<tympan_store::Error> for Error {
    fn from(error: tympan_store::Error) -> Self {
        Self::Store(Box::new(error))
    }
}

impl From<tympan_jobs::Error> for Error {
    fn from(error: tympan_jobs::Error) -> Self {
        Self::Jobs(Box::new(error))
    }
}
