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
    /// The bytes are not those that their sender named; nothing was stored.
    #[error("the bytes are those of `{actual}`, not of `{expected}` as their sender says; send them again")]
    Mismatch {
        /// What the sender named.
        expected: BlobId,
        /// What came.
        actual: BlobId,
    },
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
    /// A delegate of a composite failed, and no other one holds the blob.
    #[error("the blob store with the role `{role}` failed")]
    Delegate {
        /// The delegate.
        role: String,
        /// What it said.
        source: Box<Error>,
    },
    /// A composite has nothing that could be written to.
    #[error("no blob store of the composite is writable: all of {roles} are read-only; configure one without `readOnly`")]
    NothingWritable {
        /// The roles of its delegates.
        roles: String,
    },
    /// A place that does not tell what it holds.
    #[error("`{place}` does not list its blobs")]
    Unlistable {
        /// The place.
        place: String,
    },
    /// A name that no note can have.
    #[error("`{name}` is no name of a note: it takes 1 to 100 letters, digits, `-`, `_` and `.`, with a letter first")]
    NoteName {
        /// The name.
        name: String,
    },
    /// Small blobs live in the chunk store, which failed; so may the store of another instance.
    #[error(transparent)]
    Store(#[from] tympan_store::Error),
}

impl Error {
    /// Tells whether trying again can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Delegate { source, .. } => source.is_transient(),
            Self::Store(error) => error.is_transient(),
            Self::Source(_)
            | Self::Mismatch { .. }
            | Self::Disk { .. }
            | Self::Damaged { .. }
            | Self::NothingWritable { .. }
            | Self::Unlistable { .. }
            | Self::NoteName { .. } => false,
        }
    }
}
