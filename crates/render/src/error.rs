//! Errors before any component is rendered; failures of components are rendered, not returned.

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of rendering.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Content could not be read.
    #[error(transparent)]
    Content(#[from] tympan_content::Error),
    /// A blob that a node names could not be read.
    #[error("cannot read the blob of `{path}`")]
    Blob {
        /// The node's path.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A blob that a node names does not exist.
    #[error("the blob `{blob}` of `{path}` is missing")]
    BlobMissing {
        /// The node's path.
        path: String,
        /// The blob's id.
        blob: String,
    },
    /// A folder of live scripts cannot be read.
    #[error("cannot read the scripts in `{folder}`")]
    Scripts {
        /// The folder.
        folder: String,
        /// The cause.
        source: std::io::Error,
    },
}
