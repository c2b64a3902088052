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
    #[error(
        "the bytes are those of `{actual}`, not of `{expected}` as their sender says; send them again"
    )]
    IdMismatch {
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
    /// The file of a blob has the right length and other bytes.
    #[error(
        "the stored blob `{id}` is damaged: the bytes of `{}` do not have its hash; restore that file from a backup, or \
         upload the same file again; `tympan blobs check` finds all that are damaged",
        path.display()
    )]
    HashMismatch {
        /// The blob.
        id: BlobId,
        /// The file.
        path: PathBuf,
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
    #[error(
        "no blob store of the composite is writable: all of {roles} are read-only; configure one without `readOnly`"
    )]
    NoWritableDelegate {
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
    #[error(
        "`{name}` is no name of a note: it takes 1 to 100 letters, digits, `-`, `_` and `.`, with a letter first"
    )]
    InvalidNoteName {
        /// The name.
        name: String,
    },
    /// A bucket refused, or could not be reached for as long as that was tried.
    #[error("cannot {action} `{place}`")]
    Bucket {
        /// What was tried, as a verb.
        action: &'static str,
        /// The bucket's URL.
        place: String,
        /// The cause.
        source: Box<object_store::Error>,
    },
    /// A URL or setting of a bucket makes no sense.
    #[error("cannot use `{url}` as a bucket: {reason}")]
    InvalidAddress {
        /// The URL.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// The stored bytes are not those that the id names.
    #[error("the blob `{id}` in `{place}` has the bytes of `{actual}`; restore it from a backup")]
    ContentMismatch {
        /// The blob.
        id: BlobId,
        /// What its bytes are.
        actual: BlobId,
        /// Where it lies.
        place: String,
    },
    /// A bucket took a blob and does not have it.
    #[error(
        "`{place}` took the blob `{id}` and does not have it; see whether somebody else removes what is there"
    )]
    Lost {
        /// The blob.
        id: BlobId,
        /// The bucket's URL.
        place: String,
    },
    /// Another process uses the local folder of a bucket.
    #[error("another process uses `{}`; give each its own folder", dir.display())]
    CacheLocked {
        /// The folder.
        dir: PathBuf,
    },
    /// Blobs wait to be uploaded, and at least one failed.
    #[error("{count} blobs in `{}` are not uploaded yet: {reason}", dir.display())]
    UploadsPending {
        /// The local folder of the bucket.
        dir: PathBuf,
        /// How many there are.
        count: usize,
        /// What the bucket said.
        reason: String,
    },
    /// The place is being closed.
    #[error("`{place}` is being closed")]
    StorageClosed {
        /// The place.
        place: String,
    },
    /// A note of the place is not what its name says: nobody knows what it keeps.
    #[error(
        "the note `{name}` beside the blobs cannot be understood, so that nothing can be removed; see who wrote it, or \
         take its repository out with `tympan blobs forget`"
    )]
    MalformedNote {
        /// The note.
        name: String,
    },
    /// A guest wrote a note that is none of its own, or makes no sense.
    #[error("the note `{name}` is refused: {reason}")]
    RefusedNote {
        /// The note.
        name: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// Small blobs live in the chunk store, which failed; so may the store of another instance.
    #[error(transparent)]
    Store(#[from] tympan_store::Error),
}

impl Error {
    /// Tells whether a blob is there and has other bytes than it should: others may be whole.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::HashMismatch { .. } => true,
            Self::Delegate { source, .. } => source.is_damage(),
            _ => false,
        }
    }

    /// Tells whether it is a store of someone else that cannot be had: not now, or no more.
    #[must_use]
    pub fn is_base_unavailable(&self) -> bool {
        match self {
            Self::Delegate { source, .. } => source.is_base_unavailable(),
            Self::Store(error) => error.is_base_error(),
            _ => false,
        }
    }

    /// Tells whether trying again can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Delegate { source, .. } => source.is_transient(),
            Self::Store(error) => error.is_transient(),
            Self::Bucket { source, .. } => matches!(
                **source,
                object_store::Error::Generic { .. } | object_store::Error::JoinError { .. }
            ),
            Self::Lost { .. } | Self::UploadsPending { .. } => true,
            Self::Source(_)
            | Self::IdMismatch { .. }
            | Self::Disk { .. }
            | Self::Damaged { .. }
            | Self::HashMismatch { .. }
            | Self::NoWritableDelegate { .. }
            | Self::Unlistable { .. }
            | Self::InvalidNoteName { .. }
            | Self::MalformedNote { .. }
            | Self::RefusedNote { .. }
            | Self::InvalidAddress { .. }
            | Self::ContentMismatch { .. }
            | Self::CacheLocked { .. }
            | Self::StorageClosed { .. } => false,
        }
    }
}
