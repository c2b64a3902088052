//! The errors of the export.

use std::path::PathBuf;

/// The result of everything here that can fail.
pub type ExportResult<T, E = ExportError> = std::result::Result<T, E>;

/// An error of the export.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// Another process exports to the folder.
    #[error("another process exports to `{}`", dir.display())]
    Busy {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder cannot be used.
    #[error("cannot export to `{}`", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Content could not be read.
    #[error("cannot read the content to export")]
    Content(#[from] tympan_content::Error),
    /// Two states of content could not be compared.
    #[error("cannot compare the content with what is exported")]
    Comparison(#[source] Box<tympan_render::Error>),
    /// The site's scripts could not be read.
    #[error("cannot read the scripts of the site to export")]
    Scripts(#[source] Box<tympan_render::Error>),
    /// There is no unfinished run to resume.
    #[error("nothing has been exported to `{}` with these settings; do a full export first", dir.display())]
    NoUnfinishedRun {
        /// The folder.
        dir: PathBuf,
    },
}

impl ExportError {
    /// Returns true if a retry can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::Folder { .. } => true,
            Self::Content(error) => error.is_transient(),
            Self::Comparison(_) | Self::Scripts(_) | Self::NoUnfinishedRun { .. } => false,
        }
    }
}
