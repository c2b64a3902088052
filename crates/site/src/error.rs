//! The errors of sites.

/// The reason why a site is not created, read or imported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The site, or what the caller named, must be changed; for a file with its position.
    #[error("{0}")]
    Refused(String),
    /// A package cannot be read or installed.
    #[error(transparent)]
    Package(Box<tympan_content_package::Error>),
    /// A file cannot be read or written.
    #[error("{action}")]
    File {
        /// What failed, and the file or folder.
        action: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The content cannot be written.
    #[error("cannot import the site")]
    Import(#[source] Box<tympan_content::Error>),
    /// The status of published content cannot be written.
    #[error(transparent)]
    Status(Box<tympan_replicate::Error>),
}

/// The result of an operation on a site.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<tympan_content_package::Error> for Error {
    fn from(error: tympan_content_package::Error) -> Self {
        Self::Package(Box::new(error))
    }
}

impl From<tympan_replicate::Error> for Error {
    fn from(error: tympan_replicate::Error) -> Self {
        Self::Status(Box::new(error))
    }
}
