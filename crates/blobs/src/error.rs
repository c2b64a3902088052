//! What can go wrong with blobs.

use std::path::PathBuf;

use tympan_store::BlobId;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a blob store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes to store could not be read to their end; nothing was stored.
    #[error("cannot read the bytes of a new blob")]
    Source(#[source] std::io::Error),
    /// The store's own files could not be read or written.
    #[error("cannot {action} `{}`", path.display())]
    Disk {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A stored file has another length than its id says.
    #[error(
        "the stored blob `{id}` is damaged: its file holds {length} bytes; restore it from a backup"
    )]
    Damaged {
        /// The blob.
        id: BlobId,
        /// The file's length in bytes.
        length: u64,
    },
    /// Small blobs live in the chunk store, which failed.
    #[error(transparent)]
    Store(#[from] tympan_store::Error),
}
