//! The error type of blobs.

use std::path::PathBuf;

use tympan_store::BlobId;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a blob store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes to store could not be read to their end; nothing was stored.
    #[error("cannot read the bytes of a new blob")]
    Source(#[source] std::io::Error),
    /// The bytes have another id than the sender declared; nothing was stored.
    #[error(
        "the received bytes have the identifier `{actual}`, not `{expected}` as the sender claims; send them \
         again"
    )]
    IdMismatch {
        /// The declared id.
        expected: BlobId,
        /// The id of the received bytes.
        actual: BlobId,
    },
    /// The store's own files could not be read or written.
    #[error("cannot {action} `{}`", path.display())]
    Disk {
        /// The attempted action, as a verb.
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
        /// The length of the file in bytes.
        length: u64,
    },
    /// The file of a blob has the right length but other bytes.
    #[error(
        "the stored blob `{id}` is damaged: the bytes of `{}` do not match its hash; restore that file from a \
         backup, or upload the same file again; `tympan blobs check` lists all damaged blobs",
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
        /// The role of the delegate.
        role: String,
        /// The error of the delegate.
        source: Box<Error>,
    },
    /// A composite has no writable delegate.
    #[error(
        "no blob store of the composite is writable: all of {roles} are read-only; configure one without `readOnly`"
    )]
    NoWritableDelegate {
        /// The roles of its delegates.
        roles: String,
    },
    /// A storage that cannot list its blobs.
    #[error("`{place}` cannot list its blobs")]
    Unlistable {
        /// The storage.
        place: String,
    },
    /// An invalid note name.
    #[error(
        "`{name}` is not a valid note name: use 1 to 100 letters, digits, `-`, `_` and `.`, beginning with a \
         letter"
    )]
    InvalidNoteName {
        /// The name.
        name: String,
    },
    /// A bucket refused, or could not be reached until the timeout.
    #[error("cannot {action} `{place}`")]
    Bucket {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The bucket's URL.
        place: String,
        /// The cause.
        source: Box<object_store::Error>,
    },
    /// A URL or setting of a bucket is invalid.
    #[error("cannot use `{url}` as a bucket: {reason}")]
    InvalidAddress {
        /// The URL.
        url: String,
        /// The reason.
        reason: String,
    },
    /// The stored bytes do not have the requested id.
    #[error("the blob `{id}` in `{place}` has the bytes of `{actual}`; restore it from a backup")]
    ContentMismatch {
        /// The blob.
        id: BlobId,
        /// The id of the stored bytes.
        actual: BlobId,
        /// The location of the blob.
        place: String,
    },
    /// A bucket accepted a blob and does not have it.
    #[error(
        "`{place}` accepted the blob `{id}` but does not have it; check whether something else removes \
         objects there"
    )]
    Lost {
        /// The blob.
        id: BlobId,
        /// The bucket's URL.
        place: String,
    },
    /// Another process uses the local folder of a bucket.
    #[error("another process uses `{}`; configure a separate folder for each process", dir.display())]
    CacheLocked {
        /// The folder.
        dir: PathBuf,
    },
    /// Blobs wait for upload, and at least one upload failed.
    #[error("{count} blobs in `{}` are not uploaded yet: {reason}", dir.display())]
    UploadsPending {
        /// The local folder of the bucket.
        dir: PathBuf,
        /// The number of waiting blobs.
        count: usize,
        /// The error of the bucket.
        reason: String,
    },
    /// The storage is being closed.
    #[error("`{place}` is being closed")]
    StorageClosed {
        /// The storage.
        place: String,
    },
    /// The content of a note does not match its name: it is unknown which blobs it protects.
    #[error(
        "cannot parse the note `{name}` in the blob store, so no blob can be removed; check who wrote it, or \
         remove its repository with `tympan blobs forget`"
    )]
    MalformedNote {
        /// The note.
        name: String,
    },
    /// A note cannot be encoded.
    #[error("cannot encode a note of the blob store")]
    NoteEncoding(#[source] serde_json::Error),
    /// Other processes on the database kept changing the note that identifies the repository.
    #[error("other processes on the database keep changing the identity note; try again")]
    IdentityContended,
    /// A guest wrote a note that is not its own, or is invalid.
    #[error("the note `{name}` is refused: {reason}")]
    RefusedNote {
        /// The note.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// The chunk store that contains the small blobs failed, or the store of another instance.
    #[error(transparent)]
    Store(#[from] tympan_store::Error),
}

impl Error {
    /// Returns true if a blob exists but has wrong bytes: others may be intact.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::HashMismatch { .. } => true,
            Self::Delegate { source, .. } => source.is_damage(),
            _ => false,
        }
    }

    /// Returns true if the error concerns another owner's store that is unavailable, temporarily or permanently.
    #[must_use]
    pub fn is_base_unavailable(&self) -> bool {
        match self {
            Self::Delegate { source, .. } => source.is_base_unavailable(),
            Self::Store(error) => error.is_base_error(),
            _ => false,
        }
    }

    /// Returns true if a retry can succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Delegate { source, .. } => source.is_transient(),
            Self::Store(error) => error.is_transient(),
            Self::Bucket { source, .. } => matches!(
                **source,
                object_store::Error::Generic { .. } | object_store::Error::JoinError { .. }
            ),
            Self::Lost { .. } | Self::UploadsPending { .. } | Self::IdentityContended => true,
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
            | Self::NoteEncoding(_)
            | Self::InvalidAddress { .. }
            | Self::ContentMismatch { .. }
            | Self::CacheLocked { .. }
            | Self::StorageClosed { .. } => false,
        }
    }
}
